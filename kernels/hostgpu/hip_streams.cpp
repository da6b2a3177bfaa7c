// Streams and events. Work is done when it is asked for, so a stream is only a name, and an event a time of this
// machine's clock: it says nothing about any GPU.
#include "hip.h"

extern "C" int clock_gettime(int, long[2]);

namespace rocattn::hostgpu {
namespace {

struct Event {
  Event* next;
  uint64_t recorded_ns;  // 0: not yet
};

Stream* streams;
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

uint64_t now_ns() {
  long now[2];
  clock_gettime(1, now);  // CLOCK_MONOTONIC
  return (uint64_t)now[0] * 1000000000 + (uint64_t)now[1];
}

}  // namespace

bool known_stream(const Stream* stream) { return (uint64_t)stream <= 2 || known(streams, stream); }

}  // namespace rocattn::hostgpu

using namespace rocattn::hostgpu;

extern "C" {

HOSTGPU_EXPORT int hipStreamCreate(Stream** to) {
  Lock lock;
  return result(create(&streams, to));
}
HOSTGPU_EXPORT int hipStreamCreateWithFlags(Stream** to, unsigned) { return hipStreamCreate(to); }
HOSTGPU_EXPORT int hipStreamDestroy(Stream* stream) {
  Lock lock;
  return result(destroy(&streams, stream));
}
HOSTGPU_EXPORT int hipStreamSynchronize(Stream* stream) {
  Lock lock;
  return result(known_stream(stream) ? ready() : kInvalidHandle);
}
HOSTGPU_EXPORT int hipStreamQuery(Stream* stream) { return hipStreamSynchronize(stream); }
HOSTGPU_EXPORT int hipDeviceSynchronize() { return hipStreamSynchronize(nullptr); }

HOSTGPU_EXPORT int hipEventCreate(Event** to) {
  Lock lock;
  return result(create(&events, to));
}
HOSTGPU_EXPORT int hipEventCreateWithFlags(Event** to, unsigned) { return hipEventCreate(to); }
HOSTGPU_EXPORT int hipEventDestroy(Event* event) {
  Lock lock;
  return result(destroy(&events, event));
}
HOSTGPU_EXPORT int hipEventRecord(Event* event, Stream* stream) {
  Lock lock;
  if (!known(events, event) || !known_stream(stream)) return result(kInvalidHandle);
  event->recorded_ns = now_ns();
  return kSuccess;
}
HOSTGPU_EXPORT int hipEventSynchronize(Event* event) {
  Lock lock;
  return result(known(events, event) ? kSuccess : kInvalidHandle);
}
HOSTGPU_EXPORT int hipEventQuery(Event* event) { return hipEventSynchronize(event); }
HOSTGPU_EXPORT int hipStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  Lock lock;
  return result(known(events, event) && known_stream(stream) ? kSuccess : kInvalidHandle);
}
HOSTGPU_EXPORT int hipEventElapsedTime(float* ms, Event* start, Event* stop) {
  Lock lock;
  if (!ms) return result(kInvalidValue);
  if (!known(events, start) || !known(events, stop)) return result(kInvalidHandle);
  if (!start->recorded_ns || !stop->recorded_ns) return result(kInvalidHandle);
  *ms = (float)((double)(int64_t)(stop->recorded_ns - start->recorded_ns) * 1e-6);
  return kSuccess;
}

}  // extern "C"
