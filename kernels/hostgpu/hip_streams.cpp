// Streams and events. Work is done when it is asked for, so a stream is a name and, by the made-up clock, the time at
// which its work ends; an event is a time.
#include "hip.h"

namespace rocattn::hostgpu {
namespace {

struct Event {
  Event* next;
  uint64_t recorded_ns;  // 0: not yet
};

Stream* streams;
Stream legacy, per_thread;  // without handles of their own
Event* events;

template <class T>
bool known(const T* list, const T* one) {
  for (; list; list = list->next)
    if (list == one) return true;
  return false;
}

template <class T>
Error create(T** list, T** to) {
  if (!to) return kInvalidValue;
  if (const Error error = ready()) return error;
  auto* made = (T*)calloc(1, sizeof(T));
  if (!made) return kOutOfMemory;
  made->next = *list;
  *list = *to = made;
  return kSuccess;
}

template <class T>
Error destroy(T** list, T* one) {
  for (; *list; list = &(*list)->next) {
    if (*list != one) continue;
    *list = one->next;
    free(one);
    return kSuccess;
  }
  return kInvalidHandle;
}

uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

// When all streams that the default stream waits for have done their work, itself among them.
uint64_t blocking_until() {
  uint64_t until = later(legacy.busy_until, per_thread.busy_until);
  for (const Stream* s = streams; s; s = s->next)
    if (!s->non_blocking) until = later(until, s->busy_until);
  return until;
}

// When work that is asked for now begins.
uint64_t begins(const Stream& stream) {
  if (&stream == &legacy) return later(host_ns(), blocking_until());
  const uint64_t own = later(host_ns(), stream.busy_until);
  return stream.non_blocking ? own : later(own, legacy.busy_until);
}

Error query(uint64_t until) { return virtual_time() && until > host_ns() ? kNotReady : kSuccess; }

int create_stream(Stream** to, unsigned flags) {
  Lock lock;
  const Error error = create(&streams, to);
  if (!error) (*to)->non_blocking = flags & 1;  // hipStreamNonBlocking
  return result(error);
}

}  // namespace

Stream* stream_of(Stream* handle) {
  if ((uint64_t)handle <= 1) return &legacy;
  if ((uint64_t)handle == 2) return &per_thread;
  return known(streams, handle) ? handle : nullptr;
}

void occupy(Stream& stream, uint64_t ns) {
  host_spends("call");
  stream.busy_until = begins(stream) + ns;
}

void wait_for_default_stream() { host_waits_until(blocking_until()); }

void wait_for_device() {
  wait_for_default_stream();
  for (const Stream* s = streams; s; s = s->next) host_waits_until(s->busy_until);
}

}  // namespace rocattn::hostgpu

using namespace rocattn::hostgpu;

extern "C" {

HOSTGPU_EXPORT int hipStreamCreate(Stream** to) { return create_stream(to, 0); }
HOSTGPU_EXPORT int hipStreamCreateWithFlags(Stream** to, unsigned flags) { return create_stream(to, flags); }
HOSTGPU_EXPORT int hipStreamDestroy(Stream* stream) {
  Lock lock;
  return result(destroy(&streams, stream));
}
HOSTGPU_EXPORT int hipStreamSynchronize(Stream* handle) {
  Lock lock;
  const Stream* stream = stream_of(handle);
  if (!stream) return result(kInvalidHandle);
  if (const Error error = ready()) return result(error);
  if (stream == &legacy) wait_for_default_stream();
  else host_waits_until(stream->busy_until);
  return kSuccess;
}
HOSTGPU_EXPORT int hipStreamQuery(Stream* handle) {
  Lock lock;
  const Stream* stream = stream_of(handle);
  if (!stream) return result(kInvalidHandle);
  if (const Error error = ready()) return result(error);
  return result(query(stream == &legacy ? blocking_until() : stream->busy_until));
}
HOSTGPU_EXPORT int hipDeviceSynchronize() {
  Lock lock;
  if (const Error error = ready()) return result(error);
  wait_for_device();
  return kSuccess;
}

HOSTGPU_EXPORT int hipEventCreate(Event** to) {
  Lock lock;
  return result(create(&events, to));
}
HOSTGPU_EXPORT int hipEventCreateWithFlags(Event** to, unsigned) { return hipEventCreate(to); }
HOSTGPU_EXPORT int hipEventDestroy(Event* event) {
  Lock lock;
  return result(destroy(&events, event));
}
HOSTGPU_EXPORT int hipEventRecord(Event* event, Stream* handle) {
  Lock lock;
  const Stream* stream = stream_of(handle);
  if (!known(events, event) || !stream) return result(kInvalidHandle);
  host_spends("event");
  event->recorded_ns = begins(*stream);
  return kSuccess;
}
HOSTGPU_EXPORT int hipEventSynchronize(Event* event) {
  Lock lock;
  if (!known(events, event)) return result(kInvalidHandle);
  host_waits_until(event->recorded_ns);
  return kSuccess;
}
HOSTGPU_EXPORT int hipEventQuery(Event* event) {
  Lock lock;
  if (!known(events, event)) return result(kInvalidHandle);
  host_spends("event");
  return result(query(event->recorded_ns));
}
HOSTGPU_EXPORT int hipStreamWaitEvent(Stream* handle, Event* event, unsigned) {
  Lock lock;
  Stream* stream = stream_of(handle);
  if (!known(events, event) || !stream) return result(kInvalidHandle);
  host_spends("event");
  stream->busy_until = later(stream->busy_until, event->recorded_ns);
  return kSuccess;
}
HOSTGPU_EXPORT int hipEventElapsedTime(float* ms, Event* start, Event* stop) {
  Lock lock;
  if (!ms) return result(kInvalidValue);
  if (!known(events, start) || !known(events, stop)) return result(kInvalidHandle);
  if (!start->recorded_ns || !stop->recorded_ns) return result(kInvalidHandle);
  if (query(later(start->recorded_ns, stop->recorded_ns))) return result(kNotReady);
  *ms = (float)((double)(int64_t)(stop->recorded_ns - start->recorded_ns) * 1e-6);
  return kSuccess;
}

}  // extern "C"
