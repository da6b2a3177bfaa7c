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
  kIllegalState = 401,
  kNotFound = 500,
  kNotReady = 600,
  kLaunchFailure = 719,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureMerge = 902,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
  kCapturedEvent = 907,
  kCaptureWrongThread = 908,
};

// What a call returns; hipGetLastError gives the last that was no success.
int result(Error error);
// Of calls that need the device.
Error ready();

// A list of objects that are handles.
template <class T>
bool known(const T* list, const T* one) {
  for (; list; list = list->next)
    if (list == one) return true;
  return false;
}
template <class T>
bool unlink(T** list, T* one) {
  for (; *list; list = &(*list)->next) {
    if (*list != one) continue;
    *list = one->next;
    return true;
  }
  return false;
}

// ---- streams and events (hip_streams.cpp) --------------------------------------------------------------------------

struct Capture;
struct Node;

// How far a stream has got.
struct Moment {
  uint64_t ns;  // when its work so far ends, by the made-up clock
  Past past;    // that work, and what comes before it
};

struct Stream {
  Stream* next;
  bool non_blocking;
  bool used;      // of the default stream and the thread's: whether there is such a stream for this program
  unsigned slot;  // in a Past
  Moment done;
  Capture* capture;  // null: its work is done
  unsigned branch;   // of the capture
};

struct Event {
  Event* next;
  bool recorded;
  Moment at;
  uint64_t capture;    // the number of the one in which it was recorded; 0: in none
  const Node* record;  // of that capture
};

// The stream of a handle, null if there is none: handle 0 is the default stream, 1 and 2 are HIP's legacy and
// per-thread ones.
Stream* stream_of(Stream* handle);
bool is_default(const Stream& stream);
// How far a stream will be when it begins what is asked for now.
Moment beginning(const Stream& stream);
void join(Moment& one, const Moment& other);
// Has a stream take up a piece of work, which lasts so long.
void take_up(Stream& stream, const char* name, uint64_t ns);
// What a call waits for that belongs to no stream, and what hipFree and hipDeviceSynchronize wait for.
void wait_for_default_stream();
void wait_for_device();

// ---- work (hip_graphs.cpp) -----------------------------------------------------------------------------------------

struct Work {
  enum Kind { kKernel, kCopy, kFill } kind;
  const Function* function;
  unsigned grid[3], block[3];
  uint64_t lds_bytes;
  const uint8_t* arguments;
  void* to;
  const void* from;
  uint64_t bytes;  // of the arguments, or of memory
  int value;       // the kind of a copy, the pattern of a fill
  unsigned width;  // of the pattern
};

// Has a stream do something: at once, or whenever the graph is launched into which the stream is captured.
Error submit(Stream* handle, const Work& work);
Error run_kernel(const Work& work);                                        // hip_module.cpp
bool known_function(const Function* function);                             // hip_module.cpp
Error copy(void* to, const void* from, uint64_t bytes, int kind);          // hip_memory.cpp
Error fill(void* to, const void* pattern, unsigned width, uint64_t count);  // hip_memory.cpp

// ---- stream capture (hip_graphs.cpp) -------------------------------------------------------------------------------

// What HIP refuses while streams are captured, which makes the captures invalid: allocating and freeing (unless the
// thread is in relaxed mode), what waits without a stream, waiting for the device, and for a stream.
Error may_allocate();
Error may_wait();
Error may_wait_for_device();
Error may_wait_for(const Stream& stream);
Error may_wait_for(const Event& event);
// What hipEventRecord and hipStreamWaitEvent do where a capture is concerned.
Error capture_record(Stream& stream, Event& event);
Error capture_wait(Stream& stream, const Event& event);
void forget_stream(Stream& stream);      // before it is destroyed
void release_streams(Capture* capture);  // hip_streams.cpp: none is captured into it any more

}  // namespace rocattn::hostgpu
