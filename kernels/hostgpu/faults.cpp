// Faults of a kernel's own instructions: a pointer followed without load or store, a division by zero, a stack that is
// too small. They end the block like any other finding; a fault of anything else goes to whoever handled it before.
#include "runtime.h"

extern "C" {
int sigaction(int, const void*, void*);
int sigaltstack(const void*, void*);
long syscall(long, ...);
}

namespace rocattn::hostgpu {
namespace {

// struct sigaction, siginfo_t's beginning and stack_t, the same in glibc and musl on x86-64 and aarch64.
struct Action {
  void (*handler)(int, void*, void*);
  uint64_t mask[16];
  int flags;
  void (*restorer)();
};
struct Info {
  int number, error, code, padding;
  const void* address;
};
struct SignalStack {
  void* start;
  int flags;
  size_t bytes;
};

constexpr int kInfo = 4, kOnStack = 0x08000000, kNoDefer = 0x40000000;  // SA_SIGINFO, SA_ONSTACK, SA_NODEFER
constexpr int kIll = 4, kBus = 7, kFpe = 8, kSegv = 11;
constexpr int kSignals[] = {kIll, kBus, kFpe, kSegv};
constexpr size_t kStackBytes = 64 << 10;

alignas(16) uint8_t stack[kStackBytes];
Action before[4];
SignalStack stack_before;
int guarded_thread;

#if defined(__x86_64__)
constexpr long kGettid = 186;
#else
constexpr long kGettid = 178;
#endif

int this_thread() { return (int)syscall(kGettid); }

int index_of(int signal) {
  for (int i = 0; i < 4; i++)
    if (kSignals[i] == signal) return i;
  return 0;
}

void handle(int signal, void* info, void*) {
  if (!running.in_fiber || this_thread() != guarded_thread) {  // the instruction runs again, under the earlier handler
    sigaction(signal, &before[index_of(signal)], nullptr);
    return;
  }
  running.in_fiber = false;  // a fault in here is not the kernel's
  const void* at = ((const Info*)info)->address;
  if (signal == kFpe) report("fault in the kernel", {"?", 0}, "an integer division by zero, or one that overflows");
  else if (signal == kIll) report("fault in the kernel", {"?", 0}, "an instruction that this CPU does not have");
  else if (on_guard_page(at)) report("fault in the kernel", {"?", 0}, "its variables need more stack than there is");
  else report("fault in the kernel", {"?", 0}, "address %p, without load or store", at);
  stop_block();
}

}  // namespace

FaultGuard::FaultGuard() {
  guarded_thread = this_thread();
  const SignalStack own = {stack, 0, kStackBytes};
  sigaltstack(&own, &stack_before);
  Action action = {};
  action.handler = handle;
  action.flags = kInfo | kOnStack | kNoDefer;
  for (int i = 0; i < 4; i++) sigaction(kSignals[i], &action, &before[i]);
}

FaultGuard::~FaultGuard() {
  for (int i = 0; i < 4; i++) sigaction(kSignals[i], &before[i], nullptr);
  sigaltstack(&stack_before, nullptr);
}

}  // namespace rocattn::hostgpu
