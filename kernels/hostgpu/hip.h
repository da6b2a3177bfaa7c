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
  kNotReady = 600,
  kLaunchFailure = 719,
};

// What a call returns; hipGetLastError gives the last that was no success.
int result(Error error);
// Of calls that need the device.
Error ready();

struct Stream {
  Stream* next;
  bool non_blocking;
  uint64_t busy_until;  // when its work ends, by the made-up clock
};
// The stream of a handle, null if there is none: handle 0 is the default stream, 1 and 2 are HIP's legacy and per-thread
// ones.
Stream* stream_of(Stream* handle);
// A call that has a stream work for so long.
void occupy(Stream& stream, uint64_t ns);
// What a call waits for that belongs to no stream, and what hipFree and hipDeviceSynchronize wait for.
void wait_for_default_stream();
void wait_for_device();

}  // namespace rocattn::hostgpu
