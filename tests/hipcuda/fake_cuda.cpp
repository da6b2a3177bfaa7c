// A CUDA driver without a card, for tests of research/hipcuda: memory is the host's, copies copy, kernels do nothing but
// are counted, and events are ready at once. ROCATTN_FAKE_CUDA_FAULT=716 makes synchronising give that error.
#include "../../research/hipcuda/cuda.h"

extern "C" {
void* malloc(size_t);
void free(void*);
char* getenv(const char*);
int atoi(const char*);
}

namespace {
using rocattn::hipcuda::Address;
using rocattn::hipcuda::Handle;
thread_local Handle current;
char primary;
int next_handle = 16;
unsigned long long capture;

int fault() {
  const char* wanted = getenv("ROCATTN_FAKE_CUDA_FAULT");
  return wanted ? atoi(wanted) : 0;
}
int make(Handle* to) {
  *to = (Handle)(size_t)next_handle++;
  return 0;
}
int needs_context() { return current ? 0 : 201; }
}  // namespace

#define CUDA extern "C" __attribute__((visibility("default"))) int

CUDA cuInit(unsigned) { return 0; }
CUDA cuDriverGetVersion(int* version) { return *version = 13000, 0; }
CUDA cuDeviceGetCount(int* count) { return *count = getenv("ROCATTN_FAKE_CUDA_EMPTY") ? 0 : 1, 0; }
CUDA cuDeviceGet(int* device, int index) { return *device = index, index ? 101 : 0; }
CUDA cuDeviceGetName(char* name, int bytes, int) { return snprintf(name, (size_t)bytes, "Fake card"), 0; }
CUDA cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = 1 << 30, 0; }
CUDA cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 10 ? 32 : attribute == 16 ? 132 : 1024;
  return 0;
}
CUDA cuDevicePrimaryCtxRetain(Handle* context, int) { return *context = &primary, 0; }
CUDA cuCtxSetCurrent(Handle context) { return current = context, 0; }
CUDA cuCtxGetCurrent(Handle* context) { return *context = current, 0; }
CUDA cuCtxGetDevice(int* device) { return *device = 0, needs_context(); }
CUDA cuCtxSynchronize() { return fault(); }
CUDA cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = *total = 1 << 30, needs_context(); }
CUDA cuMemAlloc_v2(Address* address, size_t bytes) {
  if (bytes > 1 << 30) return 2;
  *address = (Address)malloc(bytes);
  return needs_context();
}
CUDA cuMemFree_v2(Address address) { return free((void*)address), 0; }
CUDA cuMemAllocAsync(Address* address, size_t bytes, Handle) { return cuMemAlloc_v2(address, bytes); }
CUDA cuMemFreeAsync(Address address, Handle) { return cuMemFree_v2(address); }
CUDA cuMemHostAlloc(void** address, size_t bytes, unsigned) { return *address = malloc(bytes), 0; }
CUDA cuMemFreeHost(void* address) { return free(address), 0; }
CUDA cuMemcpy(Address to, Address from, size_t bytes) { return memcpy((void*)to, (const void*)from, bytes), 0; }
CUDA cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) { return memcpy((void*)to, from, bytes), 0; }
CUDA cuMemcpyDtoH_v2(void* to, Address from, size_t bytes) { return memcpy(to, (const void*)from, bytes), 0; }
CUDA cuMemcpyDtoD_v2(Address to, Address from, size_t bytes) { return cuMemcpy(to, from, bytes); }
CUDA cuMemcpyAsync(Address to, Address from, size_t bytes, Handle) { return cuMemcpy(to, from, bytes); }
CUDA cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Handle) { return cuMemcpyHtoD_v2(to, from, bytes); }
CUDA cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Handle) { return cuMemcpyDtoH_v2(to, from, bytes); }
CUDA cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Handle) { return cuMemcpy(to, from, bytes); }
CUDA cuMemsetD8_v2(Address to, unsigned char value, size_t count) { return memset((void*)to, value, count), 0; }
CUDA cuMemsetD8Async(Address to, unsigned char value, size_t count, Handle) { return cuMemsetD8_v2(to, value, count); }
CUDA cuMemsetD16_v2(Address to, unsigned short value, size_t count) {
  for (size_t i = 0; i < count; i++) ((unsigned short*)to)[i] = value;
  return 0;
}
CUDA cuMemsetD32_v2(Address to, unsigned value, size_t count) {
  for (size_t i = 0; i < count; i++) ((unsigned*)to)[i] = value;
  return 0;
}
CUDA cuPointerGetAttribute(void*, int, Address) { return 1; }
CUDA cuModuleLoadData(Handle* module, const void* image) {
  return *(const char*)image == '/' ? make(module) : 218;  // PTX of clang begins with a comment
}
CUDA cuModuleUnload(Handle) { return 0; }
CUDA cuModuleGetFunction(Handle* function, Handle, const char*) { return make(function); }
CUDA cuFuncGetParamInfo(Handle, size_t index, size_t* offset, size_t* bytes) {  // ten pointers and an int
  *offset = 8 * index;
  *bytes = index < 10 ? 8 : 4;
  return index > 10;
}
CUDA cuFuncGetAttribute(int* value, int, Handle) { return *value = 256, 0; }
CUDA cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, void** extra) {
  if (!extra || extra[4]) return 1;             // CUDA's list ends with a null pointer, HIP's with 3
  if (*(size_t*)extra[3] != 84) return 701;     // as CUDA does for arguments of another size than the kernel's
  return needs_context();
}
CUDA cuStreamCreate(Handle* stream, unsigned) { return make(stream); }
CUDA cuStreamDestroy_v2(Handle) { return 0; }
CUDA cuStreamSynchronize(Handle) { return fault(); }
CUDA cuStreamQuery(Handle) { return 0; }
CUDA cuStreamWaitEvent(Handle, Handle, unsigned) { return 0; }
CUDA cuStreamIsCapturing(Handle, int* status) { return *status = capture != 0, 0; }
CUDA cuStreamBeginCapture_v2(Handle, int) { return capture = 7, 0; }
CUDA cuStreamEndCapture(Handle, Handle* graph) { return capture = 0, make(graph); }
CUDA cuStreamGetCaptureInfo_v2(Handle, int* status, uint64_t* number, Handle*, const Handle**, size_t*) {
  *status = capture != 0;
  *number = capture;
  return 0;
}
CUDA cuThreadExchangeStreamCaptureMode(int* mode) { return *mode = 0, 0; }
CUDA cuEventCreate(Handle* event, unsigned) { return make(event); }
CUDA cuEventDestroy_v2(Handle) { return 0; }
CUDA cuEventRecord(Handle, Handle) { return 0; }
CUDA cuEventSynchronize(Handle) { return 0; }
CUDA cuEventQuery(Handle) { return getenv("ROCATTN_FAKE_CUDA_BUSY") ? 600 : 0; }
CUDA cuEventElapsedTime(float* ms, Handle, Handle) { return *ms = 0.5f, 0; }
CUDA cuGraphInstantiateWithFlags(Handle* ready, Handle, unsigned long long) { return make(ready); }
CUDA cuGraphLaunch(Handle, Handle) { return 0; }
CUDA cuGraphDestroy(Handle) { return 0; }
CUDA cuGraphExecDestroy(Handle) { return 0; }
CUDA cuGraphGetNodes(Handle, Handle*, size_t* count) { return *count = 1, 0; }
