// The part of HIP's C interface that the stand-in has, as in hip/hip_runtime_api.h of ROCm 6 and later.
#pragma once
#include "runtime.h"

namespace rocattn::hostgpu {

enum Error : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidConfiguration = 9,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kNoBinaryForGpu = 209,
  kInvalidKernelFile = 218,
  kInvalidHandle = 400,
  kNotFound = 500,
  kLaunchFailure = 719,
};

// What a call returns; hipGetLastError gives the last that was no success.
int result(Error error);
// Of calls that need the device.
Error ready();

struct Stream {
  Stream* next;
};
// Null is the default stream, 1 and 2 are HIP's legacy and per-thread ones.
bool known_stream(const Stream* stream);

}  // namespace rocattn::hostgpu
