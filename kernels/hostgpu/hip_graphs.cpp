// Stream capture and graphs. What is asked of a captured stream is written down: pieces of work, and between them where
// one branch of the capture (a stream that takes part) marks a point and another waits for it. Launching the graph does
// all of it in that order. What a capture forbids is what AMD's runtime refuses (ROCm/clr,
// hipamd/src/hip_internal.hpp).
#include "hip.h"

namespace rocattn::hostgpu {

constexpr unsigned kMaxBranches = 16;
constexpr unsigned kMaxHeld = 64;  // addresses that one kernel is given
enum Mode { kGlobal, kThreadLocal, kRelaxed };

// Memory that a piece of work is given.
struct Held {
  const void* address;
  uint64_t allocation;  // its number
  unsigned argument;
};

struct Node {
  Node* next;
  enum Step { kWork, kRecord, kWait } step;
  unsigned branch;
  Work work;
  unsigned held_count;
  Held held[kMaxHeld];
  unsigned seen[kMaxBranches];  // of a record: how much of each branch comes before it
  Moment at;                    // of a record, in the launch that runs
  const Node* awaited;          // of a wait: the record
  uint8_t arguments[];
};

struct Recipe {  // what a graph and what is made from it share
  Node *first, **last;
  unsigned branches, node_count, users;
};

struct Graph {
  Graph* next;
  Recipe* recipe;
};

struct Capture {
  Capture* next;
  uint64_t number;
  Stream* origin;
  int mode;
  const void* thread;
  bool invalid;
  Recipe* recipe;
  unsigned seen[kMaxBranches][kMaxBranches];  // of each branch: how much of each comes before what it is asked next
};

namespace {

__thread int thread_mode = kGlobal;
Capture* captures;
Graph *graphs, *executables;
uint64_t capture_count;

const void* this_thread() { return &thread_mode; }

// Captures that the calling thread's mode protects from it.
Error refuse_unsafe() {
  Error error = kSuccess;
  for (Capture* c = captures; c && thread_mode != kRelaxed; c = c->next) {
    if (c->mode == kRelaxed) continue;
    if (c->thread != this_thread() && (thread_mode != kGlobal || c->mode != kGlobal)) continue;
    c->invalid = true;
    error = kCaptureUnsupported;
  }
  return error;
}

Error refuse_all(Error error) {
  for (Capture* c = captures; c; c = c->next) c->invalid = true;
  return captures ? error : kSuccess;
}

Capture* live(uint64_t number) {
  for (Capture* c = captures; c; c = c->next)
    if (c->number == number) return c;
  return nullptr;
}

Node* add(Stream& stream, Node::Step step, uint64_t argument_bytes) {
  auto* node = (Node*)calloc(1, sizeof(Node) + argument_bytes);
  if (!node) return nullptr;
  Recipe& recipe = *stream.capture->recipe;
  node->step = step;
  node->branch = stream.branch;
  *recipe.last = node;
  recipe.last = &node->next;
  return node;
}

void hold(Node& node, const void* address, unsigned argument) {
  const Allocation* a = allocation_of(address);
  if (a && node.held_count < kMaxHeld) node.held[node.held_count++] = {address, a->number, argument};
}

Error note(Stream& stream, const Work& work) {
  Node* node = add(stream, Node::kWork, work.kind == Work::kKernel ? work.bytes : 0);
  if (!node) return kOutOfMemory;
  node->work = work;
  if (work.kind == Work::kKernel) {
    memcpy(node->arguments, work.arguments, work.bytes);
    node->work.arguments = node->arguments;
    const Kernel& kernel = *work.function->kernel;
    for (unsigned i = 0; i < kernel.parameter_count; i++) {
      const Parameter& p = kernel.parameters[i];
      void* address;
      if (p.size != sizeof address || p.offset + p.size > work.bytes) continue;
      memcpy(&address, node->arguments + p.offset, sizeof address);
      hold(*node, address, i);
    }
  } else {
    hold(*node, work.to, 0);
    if (work.kind == Work::kCopy) hold(*node, work.from, 1);
  }
  stream.capture->recipe->node_count++;
  stream.capture->seen[stream.branch][stream.branch]++;
  return kSuccess;
}

const char* name_of(const Work& work) {
  return work.kind == Work::kKernel ? work.function->name : work.kind == Work::kCopy ? "memcpy" : "memset";
}

const char* kind_of(const Work& work) { return work.kind == Work::kKernel ? "kernel" : name_of(work); }

Error carry_out(Stream& stream, const Work& work) {
  take_up(stream, name_of(work), device_ns(name_of(work), kind_of(work)));
  if (work.kind == Work::kKernel) return run_kernel(work);
  return work.kind == Work::kCopy ? copy(work.to, work.from, work.bytes, work.value)
                                  : fill(work.to, &work.value, work.width, work.bytes / work.width);
}

// Whether all that the graph was given is still there.
bool intact(const Recipe& recipe) {
  bool all = true;
  for (const Node* node = recipe.first; node; node = node->next) {
    if (node->step != Node::kWork) continue;
    if (node->work.kind == Work::kKernel && !known_function(node->work.function)) {
      complain("graph launched after a module of its kernels was unloaded");
      return false;
    }
    begin_findings(name_of(node->work));
    for (unsigned i = 0; i < node->held_count; i++) {
      const Held& held = node->held[i];
      const Allocation* a = allocation_of(held.address);
      if (a && a->number == held.allocation) continue;
      report_launch("graph launched after its memory was freed", "argument %u is in allocation %llu, which was freed",
                    held.argument, (unsigned long long)held.allocation);
      all = false;
    }
    publish_findings();
  }
  return all;
}

Error launch_graph(Stream& on, Recipe& recipe) {
  if (!intact(recipe)) return kLaunchFailure;
  Stream branches[kMaxBranches];
  memset(branches, 0, sizeof branches);
  for (unsigned b = 0; b < recipe.branches; b++) {
    branches[b].non_blocking = true;
    branches[b].slot = b ? take_slot() : on.slot;
    branches[b].done = beginning(on);
  }
  Error error = kSuccess;
  for (Node* node = recipe.first; node && !error; node = node->next) {
    Stream& branch = branches[node->branch];
    if (node->step == Node::kRecord) node->at = branch.done;
    else if (node->step == Node::kWait) join(branch.done, node->awaited->at);
    else error = carry_out(branch, node->work);
  }
  for (unsigned b = 0; b < recipe.branches; b++) {
    join(on.done, branches[b].done);
    if (b) give_slot(branches[b].slot);
  }
  return error;
}

void drop(Recipe* recipe) {
  if (--recipe->users) return;
  while (Node* node = recipe->first) {
    recipe->first = node->next;
    free(node);
  }
  free(recipe);
}

Error make_graph(Graph** list, Graph** to, Recipe* recipe) {
  *to = (Graph*)calloc(1, sizeof(Graph));
  if (!*to) return kOutOfMemory;
  recipe->users++;
  **to = {*list, recipe};
  *list = *to;
  return kSuccess;
}

int destroy_graph(Graph** list, Graph* graph) {
  Lock lock;
  if (!unlink(list, graph)) return result(kInvalidValue);
  drop(graph->recipe);
  free(graph);
  return kSuccess;
}

Error begin(Stream* handle, int mode) {
  Stream* stream = stream_of(handle);
  if (!stream) return kInvalidHandle;
  if (const Error error = ready()) return error;
  if (is_default(*stream)) return kCaptureUnsupported;
  if (mode < kGlobal || mode > kRelaxed) return kInvalidValue;
  if (stream->capture) return kIllegalState;
  auto* made = (Capture*)calloc(1, sizeof(Capture));
  auto* recipe = (Recipe*)calloc(1, sizeof(Recipe));
  if (!made || !recipe) return kOutOfMemory;
  *recipe = {nullptr, &recipe->first, 1, 0, 1};
  made->next = captures;
  made->number = ++capture_count;
  made->origin = stream;
  made->mode = mode;
  made->thread = this_thread();
  made->recipe = recipe;
  captures = stream->capture = made;
  stream->branch = 0;
  return kSuccess;
}

// Whether what the other streams were asked comes before the end.
bool joined(const Capture& capture) {
  for (unsigned b = 1; b < capture.recipe->branches; b++)
    if (capture.seen[0][b] != capture.seen[b][b]) return false;
  return true;
}

Error end(Stream* handle, Graph** to) {
  if (!to) return kInvalidValue;
  *to = nullptr;
  Stream* stream = stream_of(handle);
  if (!stream) return kInvalidHandle;
  Capture* capture = stream->capture;
  if (!capture) return kIllegalState;
  if (capture->origin != stream) return kCaptureUnmatched;
  if (capture->mode != kRelaxed && capture->thread != this_thread()) return kCaptureWrongThread;
  unlink(&captures, capture);
  release_streams(capture);
  const Error error = capture->invalid    ? kCaptureInvalidated
                      : !joined(*capture) ? kCaptureUnjoined
                                          : make_graph(&graphs, to, capture->recipe);
  drop(capture->recipe);
  free(capture);
  return error;
}

// The default stream cannot be asked while a stream that waits for it is captured.
Error refuse_default(const Stream& stream) {
  if (!is_default(stream)) return kSuccess;
  for (const Capture* c = captures; c; c = c->next)
    if (!c->origin->non_blocking) return kCaptureImplicit;
  return kSuccess;
}

int status_of(Stream* handle, int* status, uint64_t* number) {
  Lock lock;
  const Stream* stream = stream_of(handle);
  if (!status) return result(kInvalidValue);
  if (!stream) return result(kInvalidHandle);
  if (const Error error = refuse_default(*stream)) return result(error);
  const Capture* capture = stream->capture;
  *status = !capture ? 0 : capture->invalid ? 2 : 1;  // hipStreamCaptureStatusNone, Invalidated, Active
  if (number && *status == 1) *number = capture->number;
  return kSuccess;
}

int instantiate(Graph** to, Graph* graph) {
  Lock lock;
  if (!to || !known(graphs, graph)) return result(kInvalidValue);
  return result(make_graph(&executables, to, graph->recipe));
}

}  // namespace

Error may_allocate() { return refuse_unsafe(); }
Error may_wait() { return refuse_all(kCaptureImplicit); }
Error may_wait_for_device() { return refuse_all(kCaptureUnsupported); }

Error may_wait_for(const Stream& stream) {
  if (is_default(stream)) return kSuccess;
  if (!stream.capture) return refuse_unsafe();
  stream.capture->invalid = true;
  return kCaptureUnsupported;
}

Error may_wait_for(const Event& event) {
  Capture* capture = live(event.capture);
  if (!capture) return refuse_unsafe();
  capture->invalid = true;
  return kCapturedEvent;
}

Error capture_record(Stream& stream, Event& event) {
  if (stream.capture->invalid) return kCaptureInvalidated;
  Node* node = add(stream, Node::kRecord, 0);
  if (!node) return kOutOfMemory;
  memcpy(node->seen, stream.capture->seen[stream.branch], sizeof node->seen);
  event.recorded = true;
  event.capture = stream.capture->number;
  event.record = node;
  return kSuccess;
}

Error capture_wait(Stream& stream, const Event& event) {
  Capture* capture = live(event.capture);
  if (!capture) {  // recorded outside, or in a capture that has ended
    if (!stream.capture || !event.recorded) return kSuccess;
    stream.capture->invalid = true;
    return kCaptureIsolation;
  }
  if (capture->invalid) return kCaptureInvalidated;
  if (!stream.capture) {
    if (is_default(stream) || capture->recipe->branches == kMaxBranches) return kCaptureUnsupported;
    stream.capture = capture;
    stream.branch = capture->recipe->branches++;
  } else if (stream.capture != capture) {
    stream.capture->invalid = capture->invalid = true;
    return kCaptureMerge;
  }
  Node* node = add(stream, Node::kWait, 0);
  if (!node) return kOutOfMemory;
  node->awaited = event.record;
  unsigned* seen = capture->seen[stream.branch];
  for (unsigned b = 0; b < kMaxBranches; b++)
    if (event.record->seen[b] > seen[b]) seen[b] = event.record->seen[b];
  return kSuccess;
}

void forget_stream(Stream& stream) {
  if (!stream.capture) return;
  stream.capture->invalid = true;
  if (stream.capture->origin != &stream) return;
  Capture* capture = stream.capture;
  unlink(&captures, capture);
  release_streams(capture);
  drop(capture->recipe);
  free(capture);
}

Error submit(Stream* handle, const Work& work) {
  Stream* stream = stream_of(handle);
  if (!stream) return kInvalidHandle;
  host_spends("call");
  if (stream->capture) return stream->capture->invalid ? kCaptureInvalidated : note(*stream, work);
  if (const Error error = refuse_default(*stream)) return error;
  return carry_out(*stream, work);
}

}  // namespace rocattn::hostgpu

using namespace rocattn::hostgpu;

extern "C" {

HOSTGPU_EXPORT int hipStreamBeginCapture(Stream* stream, int mode) {
  Lock lock;
  return result(begin(stream, mode));
}
HOSTGPU_EXPORT int hipStreamEndCapture(Stream* stream, Graph** to) {
  Lock lock;
  return result(end(stream, to));
}
HOSTGPU_EXPORT int hipStreamIsCapturing(Stream* stream, int* status) { return status_of(stream, status, nullptr); }
HOSTGPU_EXPORT int hipStreamGetCaptureInfo(Stream* stream, int* status, unsigned long long* number) {
  uint64_t found = 0;
  const int error = status_of(stream, status, &found);
  if (number) *number = found;
  return error;
}
HOSTGPU_EXPORT int hipThreadExchangeStreamCaptureMode(int* mode) {
  Lock lock;
  if (!mode || *mode < kGlobal || *mode > kRelaxed) return result(kInvalidValue);
  const int before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return kSuccess;
}

HOSTGPU_EXPORT int hipGraphInstantiate(Graph** to, Graph* graph, Node**, char*, size_t) {
  return instantiate(to, graph);
}
HOSTGPU_EXPORT int hipGraphInstantiateWithFlags(Graph** to, Graph* graph, unsigned long long) {
  return instantiate(to, graph);
}
HOSTGPU_EXPORT int hipGraphDestroy(Graph* graph) { return destroy_graph(&graphs, graph); }
HOSTGPU_EXPORT int hipGraphExecDestroy(Graph* graph) { return destroy_graph(&executables, graph); }
HOSTGPU_EXPORT int hipGraphLaunch(Graph* graph, Stream* handle) {
  Lock lock;
  Stream* stream = stream_of(handle);
  if (!stream || !known(executables, graph)) return result(stream ? kInvalidValue : kInvalidHandle);
  host_spends("call");
  if (stream->capture) {
    complain("the stand-in does not capture the launch of a graph");
    stream->capture->invalid = true;
    return result(kCaptureUnsupported);
  }
  if (const Error error = refuse_default(*stream)) return result(error);
  return result(launch_graph(*stream, *graph->recipe));
}
// How many pieces of work it has; the nodes themselves are not to be had.
HOSTGPU_EXPORT int hipGraphGetNodes(Graph* graph, Node** nodes, size_t* count) {
  Lock lock;
  if (!count || nodes || !known(graphs, graph)) return result(kInvalidValue);
  *count = graph->recipe->node_count;
  return kSuccess;
}

}  // extern "C"
