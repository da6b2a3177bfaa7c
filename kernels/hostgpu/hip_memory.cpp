// hipMalloc, hipMemcpy and their relatives. All of it happens at once, whatever the streams were asked for.
#include "hip.h"

using namespace rocattn::hostgpu;

namespace {

enum Kind { kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice, kDefault };

// Whether the bytes lie in one live allocation.
bool inside(const void* p, uint64_t bytes, const char* what) {
  const Allocation* a = allocation_of(p);
  const uint64_t offset = a ? (uint64_t)((const uint8_t*)p - a->start) : 0;
  if (a && bytes <= a->bytes - offset) return true;
  if (a) {
    complain("%s of %llu bytes at byte %llu of allocation %llu, which has %llu", what, (unsigned long long)bytes,
             (unsigned long long)offset, (unsigned long long)a->number, (unsigned long long)a->bytes);
  } else {
    char text[200];
    bool freed;
    describe_nowhere(p, text, sizeof text, &freed);
    complain("%s of %llu bytes: %s", what, (unsigned long long)bytes, text);
  }
  return false;
}

// Whether a copy or a fill has an order with who touched the memory before.
bool in_order(const char* what, const void* p, uint64_t bytes, bool writes) {
  char text[256];
  if (!ordering || !unordered_access(p, bytes, writes, text, sizeof text)) return true;
  complain("race between streams at a %s: %s", what, text);
  return false;
}

}  // namespace

namespace rocattn::hostgpu {

Error copy(void* to, const void* from, uint64_t bytes, int kind) {
  if (!device()) return kNoDevice;
  if (bytes == 0) return kSuccess;
  if (!to || !from || kind < kHostToHost || kind > kDefault) return kInvalidValue;
  const bool to_arena = in_arena(to), from_arena = in_arena(from);
  const bool to_device = to_arena || kind == kHostToDevice || kind == kDeviceToDevice;
  const bool from_device = from_arena || kind == kDeviceToHost || kind == kDeviceToDevice;
  if (to_device && !inside(to, bytes, "copy to the device")) return kInvalidValue;
  if (from_device && !inside(from, bytes, "copy from the device")) return kInvalidValue;
  memmove(to, from, bytes);
  const bool read = !from_device || in_order("copy", from, bytes, false);
  const bool written = !to_device || in_order("copy", to, bytes, true);
  if (to_device && !allocation_of(to)->host) {
    uint8_t* state = arena.state + offset_of(to);
    if (from_device) memmove(state, arena.state + offset_of(from), bytes);
    else memset(state, kInitialised, bytes);
  }
  return read && written ? kSuccess : kLaunchFailure;
}

Error fill(void* to, const void* pattern, unsigned width, uint64_t count) {
  if (!device()) return kNoDevice;
  if (count == 0) return kSuccess;
  if (!to || !inside(to, width * count, "memset")) return kInvalidValue;
  auto* p = (uint8_t*)to;
  for (uint64_t i = 0; i < count; i++) memcpy(p + i * width, pattern, width);
  memset(arena.state + offset_of(to), kInitialised, width * count);
  return in_order("memset", to, width * count, true) ? kSuccess : kLaunchFailure;
}

}  // namespace rocattn::hostgpu

namespace {

int get(void** to, size_t bytes, bool host) {
  Lock lock;
  if (!to) return result(kInvalidValue);
  *to = nullptr;
  if (const Error error = ready()) return result(error);
  if (const Error error = may_allocate()) return result(error);
  if (bytes == 0) return kSuccess;
  const Allocation* made = allocate(bytes, host);
  if (!made) return result(kOutOfMemory);
  *to = made->start;
  return kSuccess;
}

int give_back(void* p, bool host) {
  Lock lock;
  if (const Error error = may_allocate()) return result(error);
  if (!p) return kSuccess;
  wait_for_device();
  return result(release(p, host) ? kSuccess : kInvalidValue);
}

// The stand-in has no allocations within a graph.
bool captured(Stream* handle) {
  Lock lock;
  const Stream* stream = stream_of(handle);
  return stream && stream->capture;
}

Work copying(void* to, const void* from, uint64_t bytes, int kind) {
  return {Work::kCopy, nullptr, {}, {}, 0, nullptr, to, from, bytes, kind, 0};
}

Work filling(void* to, int pattern, unsigned width, uint64_t count) {
  return {Work::kFill, nullptr, {}, {}, 0, nullptr, to, nullptr, width * count, pattern, width};
}

int queue(Stream* stream, const Work& work) {
  Lock lock;
  return result(submit(stream, work));
}

// What has no stream is done on the default one, and waited for.
int do_now(const Work& work) {
  Lock lock;
  if (const Error error = may_wait()) return result(error);
  const Error error = submit(nullptr, work);
  wait_for_default_stream();
  return result(error);
}

struct PointerAttributes {  // hipPointerAttribute_t
  int type, device;
  void *device_pointer, *host_pointer;
  int managed;
  unsigned flags;
};

}  // namespace

extern "C" {

HOSTGPU_EXPORT int hipMalloc(void** to, size_t bytes) { return get(to, bytes, false); }
HOSTGPU_EXPORT int hipFree(void* p) { return give_back(p, false); }
HOSTGPU_EXPORT int hipMallocAsync(void** to, size_t bytes, Stream* stream) {
  return captured(stream) ? result(kCaptureUnsupported) : get(to, bytes, false);
}
HOSTGPU_EXPORT int hipFreeAsync(void* p, Stream* stream) {
  return captured(stream) ? result(kCaptureUnsupported) : give_back(p, false);
}
HOSTGPU_EXPORT int hipHostMalloc(void** to, size_t bytes, unsigned) { return get(to, bytes, true); }
HOSTGPU_EXPORT int hipHostFree(void* p) { return give_back(p, true); }

HOSTGPU_EXPORT int hipMemGetInfo(size_t* available, size_t* total) {
  Lock lock;
  if (!available || !total) return result(kInvalidValue);
  if (!device()) return result(kNoDevice);
  *total = memory_limit();
  *available = memory_limit() - allocated_bytes();
  return kSuccess;
}

HOSTGPU_EXPORT int hipMemcpy(void* to, const void* from, size_t bytes, int kind) {
  return do_now(copying(to, from, bytes, kind));
}
HOSTGPU_EXPORT int hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, Stream* stream) {
  return queue(stream, copying(to, from, bytes, kind));
}
HOSTGPU_EXPORT int hipMemcpyHtoD(void* to, const void* from, size_t bytes) {
  return hipMemcpy(to, from, bytes, kHostToDevice);
}
HOSTGPU_EXPORT int hipMemcpyDtoH(void* to, const void* from, size_t bytes) {
  return hipMemcpy(to, from, bytes, kDeviceToHost);
}
HOSTGPU_EXPORT int hipMemcpyDtoD(void* to, const void* from, size_t bytes) {
  return hipMemcpy(to, from, bytes, kDeviceToDevice);
}

HOSTGPU_EXPORT int hipMemset(void* to, int value, size_t bytes) { return do_now(filling(to, value, 1, bytes)); }
HOSTGPU_EXPORT int hipMemsetAsync(void* to, int value, size_t bytes, Stream* stream) {
  return queue(stream, filling(to, value, 1, bytes));
}
HOSTGPU_EXPORT int hipMemsetD8(void* to, unsigned char value, size_t count) {
  return do_now(filling(to, value, 1, count));
}
HOSTGPU_EXPORT int hipMemsetD16(void* to, unsigned short value, size_t count) {
  return do_now(filling(to, value, 2, count));
}
HOSTGPU_EXPORT int hipMemsetD32(void* to, int value, size_t count) { return do_now(filling(to, value, 4, count)); }

HOSTGPU_EXPORT int hipPointerGetAttributes(PointerAttributes* to, const void* p) {
  Lock lock;
  if (!to) return result(kInvalidValue);
  const Allocation* a = allocation_of(p);
  if (!a) {
    *to = {0, 0, nullptr, nullptr, 0, 0};  // hipMemoryTypeUnregistered
    return kSuccess;
  }
  *to = {a->host ? 1 : 2, 0, (void*)p, a->host ? (void*)p : nullptr, 0, 0};  // hipMemoryTypeHost, Device
  return kSuccess;
}

}  // extern "C"
