// Streams and events. Work is done when it is asked for, so a stream is a name and how far it has got, and an event is
// how far a stream had got.
#include "hip.h"

namespace rocattn::hostgpu {
namespace {

Stream* streams;
Stream legacy, per_thread = {nullptr, false, false, 1, {}, nullptr, 0};  // without handles of their own
Event* events;
Moment host;       // what the host has waited for
Moment destroyed;  // the work of streams that are gone

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

// How far all streams are that the default stream waits for, itself among them.
Moment all_blocking() {
  Moment all = legacy.done;
  join(all, per_thread.done);
  for (const Stream* s = streams; s; s = s->next)
    if (!s->non_blocking) join(all, s->done);
  return all;
}

void host_waits_for(const Moment& moment) {
  host_waits_until(moment.ns);
  join(host.past, moment.past);
}

Error query(const Moment& moment) {
  if (virtual_time() && moment.ns > host_ns()) return kNotReady;
  host_waits_for(moment);
  return kSuccess;
}

Moment end_of(const Stream& stream) { return is_default(stream) ? all_blocking() : stream.done; }

// With one stream everything has an order.
void count_streams() {
  unsigned count = legacy.used + per_thread.used;
  for (const Stream* s = streams; s; s = s->next) count++;
  ordering = checks_on() && count > 1;
}

int create_stream(Stream** to, unsigned flags) {
  Lock lock;
  if (const Error error = create(&streams, to)) return result(error);
  (*to)->non_blocking = flags & 1;  // hipStreamNonBlocking
  (*to)->slot = take_slot();
  count_streams();
  return kSuccess;
}

}  // namespace

Stream* stream_of(Stream* handle) {
  if ((uint64_t)handle <= 1) return &legacy;
  if ((uint64_t)handle == 2) return &per_thread;
  return known(streams, handle) ? handle : nullptr;
}

bool is_default(const Stream& stream) { return &stream == &legacy; }

void join(Moment& one, const Moment& other) {
  if (other.ns > one.ns) one.ns = other.ns;
  join(one.past, other.past);
}

Moment beginning(const Stream& stream) {
  Moment now = end_of(stream);
  if (!stream.non_blocking) join(now, legacy.done);
  host.ns = host_ns();
  join(now, host);
  return now;
}

void take_up(Stream& stream, const char* name, uint64_t ns) {
  if ((&stream == &legacy || &stream == &per_thread) && !stream.used) {
    stream.used = true;
    count_streams();
  }
  stream.done = beginning(stream);
  stream.done.ns += ns;
  begin_work(name, stream.slot, stream.done.past);
}

void release_streams(Capture* capture) {
  if (per_thread.capture == capture) per_thread.capture = nullptr;
  for (Stream* s = streams; s; s = s->next)
    if (s->capture == capture) s->capture = nullptr;
}

void wait_for_default_stream() { host_waits_for(all_blocking()); }

void wait_for_device() {
  wait_for_default_stream();
  for (const Stream* s = streams; s; s = s->next) host_waits_for(s->done);
  host_waits_for(destroyed);
}

}  // namespace rocattn::hostgpu

using namespace rocattn::hostgpu;

extern "C" {

HOSTGPU_EXPORT int hipStreamCreate(Stream** to) { return create_stream(to, 0); }
HOSTGPU_EXPORT int hipStreamCreateWithFlags(Stream** to, unsigned flags) { return create_stream(to, flags); }
HOSTGPU_EXPORT int hipStreamDestroy(Stream* stream) {
  Lock lock;
  if (!unlink(&streams, stream)) return result(kInvalidHandle);
  forget_stream(*stream);
  join(destroyed, stream->done);
  give_slot(stream->slot);
  free(stream);
  count_streams();
  return kSuccess;
}
HOSTGPU_EXPORT int hipStreamSynchronize(Stream* handle) {
  Lock lock;
  const Stream* stream = stream_of(handle);
  if (!stream) return result(kInvalidHandle);
  if (const Error error = ready()) return result(error);
  if (const Error error = may_wait_for(*stream)) return result(error);
  host_waits_for(end_of(*stream));
  return kSuccess;
}
HOSTGPU_EXPORT int hipStreamQuery(Stream* handle) {
  Lock lock;
  const Stream* stream = stream_of(handle);
  if (!stream) return result(kInvalidHandle);
  if (const Error error = ready()) return result(error);
  if (const Error error = may_wait_for(*stream)) return result(error);
  return result(query(end_of(*stream)));
}
HOSTGPU_EXPORT int hipDeviceSynchronize() {
  Lock lock;
  if (const Error error = ready()) return result(error);
  if (const Error error = may_wait_for_device()) return result(error);
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
  if (!unlink(&events, event)) return result(kInvalidHandle);
  free(event);
  return kSuccess;
}
HOSTGPU_EXPORT int hipEventRecord(Event* event, Stream* handle) {
  Lock lock;
  Stream* stream = stream_of(handle);
  if (!known(events, event) || !stream) return result(kInvalidHandle);
  host_spends("event");
  if (stream->capture) return result(capture_record(*stream, *event));
  event->recorded = true;
  event->at = beginning(*stream);
  event->capture = 0;
  return kSuccess;
}
HOSTGPU_EXPORT int hipEventSynchronize(Event* event) {
  Lock lock;
  if (!known(events, event)) return result(kInvalidHandle);
  if (const Error error = may_wait_for(*event)) return result(error);
  host_waits_for(event->at);
  return kSuccess;
}
HOSTGPU_EXPORT int hipEventQuery(Event* event) {
  Lock lock;
  if (!known(events, event)) return result(kInvalidHandle);
  if (const Error error = may_wait_for(*event)) return result(error);
  host_spends("event");
  return result(query(event->at));
}
HOSTGPU_EXPORT int hipStreamWaitEvent(Stream* handle, Event* event, unsigned) {
  Lock lock;
  Stream* stream = stream_of(handle);
  if (!known(events, event) || !stream) return result(kInvalidHandle);
  host_spends("event");
  if (stream->capture || event->capture) return result(capture_wait(*stream, *event));
  join(stream->done, event->at);
  return kSuccess;
}
HOSTGPU_EXPORT int hipEventElapsedTime(float* ms, Event* start, Event* stop) {
  Lock lock;
  if (!ms) return result(kInvalidValue);
  if (!known(events, start) || !known(events, stop)) return result(kInvalidHandle);
  if (!start->recorded || start->capture || !stop->recorded || stop->capture) return result(kInvalidHandle);
  if (query(start->at) || query(stop->at)) return result(kNotReady);
  *ms = (float)((double)(int64_t)(stop->at.ns - start->at.ns) * 1e-6);
  return kSuccess;
}

}  // extern "C"
