// HIP's C interface on CUDA's driver: what its files share. The driver is opened at run time, so that the library is
// built, and loads, on machines without one.
#pragma once
#include <stddef.h>
#include <stdint.h>

// Of the C library; its headers are not needed for so little.
extern "C" {
void* memcpy(void*, const void*, size_t);
void* memset(void*, int, size_t);
int snprintf(char*, size_t, const char*, ...);
void* dlopen(const char*, int);
void* dlsym(void*, const char*);
int hipSetDevice(int);
}

#define HIPCUDA_EXPORT __attribute__((visibility("default")))

namespace rocattn::hipcuda {

using Handle = void*;  // of a context, stream, event, module, function or graph
using Address = unsigned long long;

// Every call of the driver that is made: its name, and its parameters. Types as in cuda.h of CUDA 12 and later.
#define ROCATTN_CUDA_CALLS(X)                                                                              \
  X(cuInit, (unsigned flags))                                                                              \
  X(cuDriverGetVersion, (int* version))                                                                    \
  X(cuDeviceGetCount, (int* count))                                                                        \
  X(cuDeviceGet, (int* device, int index))                                                                 \
  X(cuDeviceGetName, (char* name, int bytes, int device))                                                  \
  X(cuDeviceTotalMem_v2, (size_t* bytes, int device))                                                      \
  X(cuDeviceGetAttribute, (int* value, int attribute, int device))                                         \
  X(cuDevicePrimaryCtxRetain, (Handle * context, int device))                                              \
  X(cuCtxSetCurrent, (Handle context))                                                                     \
  X(cuCtxGetCurrent, (Handle * context))                                                                   \
  X(cuCtxGetDevice, (int* device))                                                                         \
  X(cuCtxSynchronize, ())                                                                                  \
  X(cuMemGetInfo_v2, (size_t* free, size_t* total))                                                        \
  X(cuMemAlloc_v2, (Address * address, size_t bytes))                                                      \
  X(cuMemFree_v2, (Address address))                                                                       \
  X(cuMemAllocAsync, (Address * address, size_t bytes, Handle stream))                                     \
  X(cuMemFreeAsync, (Address address, Handle stream))                                                      \
  X(cuMemHostAlloc, (void** address, size_t bytes, unsigned flags))                                        \
  X(cuMemFreeHost, (void* address))                                                                        \
  X(cuMemcpyHtoD_v2, (Address to, const void* from, size_t bytes))                                         \
  X(cuMemcpyDtoH_v2, (void* to, Address from, size_t bytes))                                               \
  X(cuMemcpyDtoD_v2, (Address to, Address from, size_t bytes))                                             \
  X(cuMemcpy, (Address to, Address from, size_t bytes))                                                    \
  X(cuMemcpyHtoDAsync_v2, (Address to, const void* from, size_t bytes, Handle stream))                     \
  X(cuMemcpyDtoHAsync_v2, (void* to, Address from, size_t bytes, Handle stream))                           \
  X(cuMemcpyDtoDAsync_v2, (Address to, Address from, size_t bytes, Handle stream))                         \
  X(cuMemcpyAsync, (Address to, Address from, size_t bytes, Handle stream))                                \
  X(cuMemsetD8_v2, (Address to, unsigned char value, size_t count))                                        \
  X(cuMemsetD16_v2, (Address to, unsigned short value, size_t count))                                      \
  X(cuMemsetD32_v2, (Address to, unsigned value, size_t count))                                            \
  X(cuMemsetD8Async, (Address to, unsigned char value, size_t count, Handle stream))                       \
  X(cuPointerGetAttribute, (void* value, int attribute, Address address))                                  \
  X(cuModuleLoadData, (Handle * module, const void* image))                                                \
  X(cuModuleUnload, (Handle module))                                                                       \
  X(cuModuleGetFunction, (Handle * function, Handle module, const char* name))                             \
  X(cuFuncGetParamInfo, (Handle function, size_t index, size_t* offset, size_t* bytes))                    \
  X(cuFuncGetAttribute, (int* value, int attribute, Handle function))                                      \
  X(cuLaunchKernel, (Handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
                     unsigned block_y, unsigned block_z, unsigned shared_bytes, Handle stream, void** each, \
                     void** extra))                                                                        \
  X(cuStreamCreate, (Handle * stream, unsigned flags))                                                     \
  X(cuStreamDestroy_v2, (Handle stream))                                                                   \
  X(cuStreamSynchronize, (Handle stream))                                                                  \
  X(cuStreamQuery, (Handle stream))                                                                        \
  X(cuStreamWaitEvent, (Handle stream, Handle event, unsigned flags))                                      \
  X(cuStreamIsCapturing, (Handle stream, int* status))                                                     \
  X(cuStreamBeginCapture_v2, (Handle stream, int mode))                                                    \
  X(cuStreamEndCapture, (Handle stream, Handle* graph))                                                    \
  X(cuStreamGetCaptureInfo_v2, (Handle stream, int* status, uint64_t* number, Handle* graph,               \
                                const Handle** dependencies, size_t* count))                               \
  X(cuThreadExchangeStreamCaptureMode, (int* mode))                                                        \
  X(cuEventCreate, (Handle * event, unsigned flags))                                                       \
  X(cuEventDestroy_v2, (Handle event))                                                                     \
  X(cuEventRecord, (Handle event, Handle stream))                                                          \
  X(cuEventSynchronize, (Handle event))                                                                    \
  X(cuEventQuery, (Handle event))                                                                          \
  X(cuEventElapsedTime, (float* ms, Handle start, Handle stop))                                            \
  X(cuGraphInstantiateWithFlags, (Handle * ready, Handle graph, unsigned long long flags))                 \
  X(cuGraphLaunch, (Handle ready, Handle stream))                                                          \
  X(cuGraphDestroy, (Handle graph))                                                                        \
  X(cuGraphExecDestroy, (Handle ready))                                                                    \
  X(cuGraphGetNodes, (Handle graph, Handle* nodes, size_t* count))

struct Driver {
#define ROCATTN_POINTER(name, parameters) int(*name) parameters;
  ROCATTN_CUDA_CALLS(ROCATTN_POINTER)
#undef ROCATTN_POINTER
};

// Of HIP; where HIP and CUDA have the same error they have the same number.
enum Error : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kNoBinaryForGpu = 209,
  kInvalidKernelFile = 218,
  kInvalidHandle = 400,
  kNotReady = 600,
  kLaunchFailure = 719,
  kUnknown = 999,
};

// The driver, initialised; null where there is none.
const Driver* driver();
// What a call returns, from what CUDA said; hipGetLastError gives the last that was no success.
int result(int status);
// Whoever holds it is alone with what the threads share.
class Lock {
 public:
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};
// Makes the context of this thread's device current: that of device 0 if it has chosen none, as HIP does.
int ready();

}  // namespace rocattn::hipcuda

// One call of HIP that is one call of CUDA.
#define HIPCUDA_CALL(...)                                                           \
  do {                                                                              \
    if (const int status = rocattn::hipcuda::ready()) return rocattn::hipcuda::result(status); \
    return rocattn::hipcuda::result(rocattn::hipcuda::driver()->__VA_ARGS__);       \
  } while (false)
