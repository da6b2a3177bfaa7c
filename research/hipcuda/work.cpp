// Memory, modules, streams, events and graphs: each call of HIP as the call of CUDA that does the same.
#include "cuda.h"

namespace rocattn::hipcuda {
namespace {

enum CopyKind : int { kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice };
// CUpointer_attribute, CUmemorytype
constexpr int kMemoryType = 2, kDeviceOrdinal = 9, kHostMemory = 1;

struct PointerAttributes {  // hipPointerAttribute_t
  int type, device;
  void *device_pointer, *host_pointer;
  int managed;
  unsigned flags;
};

// HIP allocates nothing for 0 bytes, and frees a null pointer, without an error; CUDA has one for each.
int allocate(Address* to, size_t bytes) {
  *to = 0;
  return bytes ? driver()->cuMemAlloc_v2(to, bytes) : 0;
}

int copy(Address to, Address from, size_t bytes, int kind) {
  if (!bytes) return 0;
  switch (kind) {
    case kHostToDevice: return driver()->cuMemcpyHtoD_v2(to, (const void*)from, bytes);
    case kDeviceToHost: return driver()->cuMemcpyDtoH_v2((void*)to, from, bytes);
    case kDeviceToDevice: return driver()->cuMemcpyDtoD_v2(to, from, bytes);
    default: return driver()->cuMemcpy(to, from, bytes);
  }
}

int copy_async(Address to, Address from, size_t bytes, int kind, Handle stream) {
  if (!bytes) return 0;
  switch (kind) {
    case kHostToDevice: return driver()->cuMemcpyHtoDAsync_v2(to, (const void*)from, bytes, stream);
    case kDeviceToHost: return driver()->cuMemcpyDtoHAsync_v2((void*)to, from, bytes, stream);
    case kDeviceToDevice: return driver()->cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
    default: return driver()->cuMemcpyAsync(to, from, bytes, stream);
  }
}

// How many bytes of arguments each function takes. CUDA refuses a buffer of any other size, also one that ends with the
// padding of a C structure, which HIP takes.
constexpr size_t kFunctions = 1 << 14;  // a power of two, several times as many as a program loads
struct {
  Handle function;
  size_t bytes;
} takes[kFunctions];

size_t slot_of(Handle function) {
  size_t at = (size_t)function >> 4;
  for (at = (at ^ at >> 14) % kFunctions; takes[at].function && takes[at].function != function;)
    at = (at + 1) % kFunctions;
  return at;
}

void note_arguments(Handle function) {
  size_t offset = 0, bytes = 0, end = 0;
  for (size_t i = 0; !driver()->cuFuncGetParamInfo(function, i, &offset, &bytes); i++) end = offset + bytes;
  Lock lock;
  const size_t at = slot_of(function);
  takes[at].bytes = end;
  __atomic_store_n(&takes[at].function, function, __ATOMIC_RELEASE);
}

}  // namespace
}  // namespace rocattn::hipcuda

using namespace rocattn::hipcuda;

extern "C" {

// ---- memory --------------------------------------------------------------------------------------------------------

HIPCUDA_EXPORT int hipMemGetInfo(size_t* free, size_t* total) { HIPCUDA_CALL(cuMemGetInfo_v2(free, total)); }

HIPCUDA_EXPORT int hipMalloc(Address* to, size_t bytes) {
  if (!to) return result(kInvalidValue);
  if (const int status = ready()) return result(status);
  return result(allocate(to, bytes));
}
HIPCUDA_EXPORT int hipFree(Address address) {
  if (!address) return kSuccess;
  HIPCUDA_CALL(cuMemFree_v2(address));
}
HIPCUDA_EXPORT int hipMallocAsync(Address* to, size_t bytes, Handle stream) {
  HIPCUDA_CALL(cuMemAllocAsync(to, bytes, stream));
}
HIPCUDA_EXPORT int hipFreeAsync(Address address, Handle stream) { HIPCUDA_CALL(cuMemFreeAsync(address, stream)); }

HIPCUDA_EXPORT int hipHostMalloc(void** to, size_t bytes, unsigned) {  // CUDA's flags ask for what HIP always gives
  HIPCUDA_CALL(cuMemHostAlloc(to, bytes, 1));                          // CU_MEMHOSTALLOC_PORTABLE
}
HIPCUDA_EXPORT int hipHostFree(void* address) {
  if (!address) return kSuccess;
  HIPCUDA_CALL(cuMemFreeHost(address));
}

HIPCUDA_EXPORT int hipMemcpy(Address to, Address from, size_t bytes, int kind) {
  if (const int status = ready()) return result(status);
  return result(copy(to, from, bytes, kind));
}
HIPCUDA_EXPORT int hipMemcpyAsync(Address to, Address from, size_t bytes, int kind, Handle stream) {
  if (const int status = ready()) return result(status);
  return result(copy_async(to, from, bytes, kind, stream));
}
HIPCUDA_EXPORT int hipMemcpyHtoD(Address to, void* from, size_t bytes) {
  return hipMemcpy(to, (Address)from, bytes, kHostToDevice);
}
HIPCUDA_EXPORT int hipMemcpyDtoH(void* to, Address from, size_t bytes) {
  return hipMemcpy((Address)to, from, bytes, kDeviceToHost);
}
HIPCUDA_EXPORT int hipMemcpyDtoD(Address to, Address from, size_t bytes) {
  return hipMemcpy(to, from, bytes, kDeviceToDevice);
}

HIPCUDA_EXPORT int hipMemset(Address to, int value, size_t bytes) {
  HIPCUDA_CALL(cuMemsetD8_v2(to, (unsigned char)value, bytes));
}
HIPCUDA_EXPORT int hipMemsetAsync(Address to, int value, size_t bytes, Handle stream) {
  HIPCUDA_CALL(cuMemsetD8Async(to, (unsigned char)value, bytes, stream));
}
HIPCUDA_EXPORT int hipMemsetD8(Address to, unsigned char value, size_t count) {
  HIPCUDA_CALL(cuMemsetD8_v2(to, value, count));
}
HIPCUDA_EXPORT int hipMemsetD16(Address to, unsigned short value, size_t count) {
  HIPCUDA_CALL(cuMemsetD16_v2(to, value, count));
}
HIPCUDA_EXPORT int hipMemsetD32(Address to, int value, size_t count) {
  HIPCUDA_CALL(cuMemsetD32_v2(to, (unsigned)value, count));
}

HIPCUDA_EXPORT int hipPointerGetAttributes(PointerAttributes* to, Address address) {
  if (!to) return result(kInvalidValue);
  if (const int status = ready()) return result(status);
  *to = {};
  unsigned type = 0;
  if (driver()->cuPointerGetAttribute(&type, kMemoryType, address)) return kSuccess;  // hipMemoryTypeUnregistered
  driver()->cuPointerGetAttribute(&to->device, kDeviceOrdinal, address);
  to->type = (int)type;  // 1 host, 2 device in both
  to->device_pointer = (void*)address;
  to->host_pointer = type == kHostMemory ? (void*)address : nullptr;
  return kSuccess;
}

// ---- modules -------------------------------------------------------------------------------------------------------

HIPCUDA_EXPORT int hipModuleLoadData(Handle* to, const void* image) {  // PTX, which ends with a zero
  HIPCUDA_CALL(cuModuleLoadData(to, image));
}
HIPCUDA_EXPORT int hipModuleUnload(Handle module) { HIPCUDA_CALL(cuModuleUnload(module)); }
HIPCUDA_EXPORT int hipModuleGetFunction(Handle* to, Handle module, const char* name) {
  if (const int status = ready()) return result(status);
  const int status = driver()->cuModuleGetFunction(to, module, name);
  if (!status) note_arguments(*to);
  return result(status);
}
HIPCUDA_EXPORT int hipFuncGetAttribute(int* value, int attribute, Handle function) {  // the first of both are the same
  HIPCUDA_CALL(cuFuncGetAttribute(value, attribute, function));
}

HIPCUDA_EXPORT int hipModuleLaunchKernel(Handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                         unsigned block_x, unsigned block_y, unsigned block_z, unsigned lds_bytes,
                                         Handle stream, void** each, void** extra) {
  void* list[5];
  size_t bytes = 0;
  if (extra) {  // the same list, but that HIP ends it with 3 and CUDA with 0
    if (extra[0] != (void*)1 || extra[2] != (void*)2 || extra[4] != (void*)3) return result(kInvalidValue);
    memcpy(list, extra, sizeof list);
    list[4] = nullptr;
    bytes = takes[slot_of(function)].bytes;
    if (*(const size_t*)extra[3] < bytes) return result(kInvalidValue);
    list[3] = &bytes;
  }
  HIPCUDA_CALL(cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, lds_bytes, stream, each,
                              extra ? list : nullptr));
}

// ---- streams and events --------------------------------------------------------------------------------------------

HIPCUDA_EXPORT int hipStreamCreate(Handle* to) { HIPCUDA_CALL(cuStreamCreate(to, 0)); }
HIPCUDA_EXPORT int hipStreamCreateWithFlags(Handle* to, unsigned flags) { HIPCUDA_CALL(cuStreamCreate(to, flags & 1)); }
HIPCUDA_EXPORT int hipStreamDestroy(Handle stream) { HIPCUDA_CALL(cuStreamDestroy_v2(stream)); }
HIPCUDA_EXPORT int hipStreamSynchronize(Handle stream) { HIPCUDA_CALL(cuStreamSynchronize(stream)); }
HIPCUDA_EXPORT int hipStreamQuery(Handle stream) { HIPCUDA_CALL(cuStreamQuery(stream)); }
HIPCUDA_EXPORT int hipStreamWaitEvent(Handle stream, Handle event, unsigned) {
  HIPCUDA_CALL(cuStreamWaitEvent(stream, event, 0));
}

HIPCUDA_EXPORT int hipEventCreate(Handle* to) { HIPCUDA_CALL(cuEventCreate(to, 0)); }
HIPCUDA_EXPORT int hipEventCreateWithFlags(Handle* to, unsigned flags) {
  HIPCUDA_CALL(cuEventCreate(to, flags & 3));  // blocking, without times; the others are AMD's own
}
HIPCUDA_EXPORT int hipEventDestroy(Handle event) { HIPCUDA_CALL(cuEventDestroy_v2(event)); }
HIPCUDA_EXPORT int hipEventRecord(Handle event, Handle stream) { HIPCUDA_CALL(cuEventRecord(event, stream)); }
HIPCUDA_EXPORT int hipEventSynchronize(Handle event) { HIPCUDA_CALL(cuEventSynchronize(event)); }
HIPCUDA_EXPORT int hipEventQuery(Handle event) { HIPCUDA_CALL(cuEventQuery(event)); }
HIPCUDA_EXPORT int hipEventElapsedTime(float* ms, Handle start, Handle stop) {
  HIPCUDA_CALL(cuEventElapsedTime(ms, start, stop));
}

// ---- stream capture and graphs -------------------------------------------------------------------------------------

HIPCUDA_EXPORT int hipStreamBeginCapture(Handle stream, int mode) { HIPCUDA_CALL(cuStreamBeginCapture_v2(stream, mode)); }
HIPCUDA_EXPORT int hipStreamEndCapture(Handle stream, Handle* graph) { HIPCUDA_CALL(cuStreamEndCapture(stream, graph)); }
HIPCUDA_EXPORT int hipStreamIsCapturing(Handle stream, int* status) { HIPCUDA_CALL(cuStreamIsCapturing(stream, status)); }
HIPCUDA_EXPORT int hipStreamGetCaptureInfo(Handle stream, int* status, unsigned long long* number) {
  uint64_t found = 0;
  if (const int error = ready()) return result(error);
  const int error = driver()->cuStreamGetCaptureInfo_v2(stream, status, &found, nullptr, nullptr, nullptr);
  if (number) *number = found;
  return result(error);
}
HIPCUDA_EXPORT int hipThreadExchangeStreamCaptureMode(int* mode) { HIPCUDA_CALL(cuThreadExchangeStreamCaptureMode(mode)); }

HIPCUDA_EXPORT int hipGraphInstantiate(Handle* to, Handle graph, Handle*, char*, size_t) {
  HIPCUDA_CALL(cuGraphInstantiateWithFlags(to, graph, 0));
}
HIPCUDA_EXPORT int hipGraphInstantiateWithFlags(Handle* to, Handle graph, unsigned long long flags) {
  HIPCUDA_CALL(cuGraphInstantiateWithFlags(to, graph, flags));
}
HIPCUDA_EXPORT int hipGraphLaunch(Handle ready, Handle stream) { HIPCUDA_CALL(cuGraphLaunch(ready, stream)); }
HIPCUDA_EXPORT int hipGraphDestroy(Handle graph) { HIPCUDA_CALL(cuGraphDestroy(graph)); }
HIPCUDA_EXPORT int hipGraphExecDestroy(Handle ready) { HIPCUDA_CALL(cuGraphExecDestroy(ready)); }
HIPCUDA_EXPORT int hipGraphGetNodes(Handle graph, Handle* nodes, size_t* count) {
  HIPCUDA_CALL(cuGraphGetNodes(graph, nodes, count));
}

}  // extern "C"
