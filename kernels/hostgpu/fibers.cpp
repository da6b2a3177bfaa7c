// Threads of a block as fibers: each has a stack, and runs until it waits for others. One wave runs until it can go no
// further, then the next.
#include "runtime.h"

// void hostgpu_switch(void** saved, void* next): keeps what a called function must, changes stacks.
#if defined(__x86_64__)
__asm__(R"(
    .text
    .hidden hostgpu_switch
    .globl hostgpu_switch
    .type hostgpu_switch, @function
hostgpu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size hostgpu_switch, . - hostgpu_switch
)");
#elif defined(__aarch64__)
__asm__(R"(
    .text
    .hidden hostgpu_switch
    .globl hostgpu_switch
    .type hostgpu_switch, %function
hostgpu_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size hostgpu_switch, . - hostgpu_switch
)");
#else
#error "the stand-in GPU runs on x86-64 and aarch64"
#endif

extern "C" void hostgpu_switch(void** saved, void* next);

namespace rocattn::hostgpu {
namespace {

constexpr uint64_t kStack = 256 << 10, kGuardPage = 4096;
// Tops of stacks are moved apart: else the same variable of all threads would fall into one set of the cache.
constexpr uint64_t kSpread = 64 * 5, kSpreads = 97;

uint8_t* stacks;
unsigned guarded;  // those with a guard page: each is two mappings, of which Linux allows a process 65530
void* saved[kMaxThreads];  // stack pointers of fibers that do not run
void* main_saved;
const Kernel* kernel;
const void* kernel_arguments;
unsigned returned_threads;

void become(unsigned thread) {
  runtime.thread = thread;
  running.wave = &waves[thread >> running.wave_shift];
  running.lane = thread & (running.wave_size - 1);
  restamp();
}

void switch_to(unsigned thread) {
  const unsigned from = runtime.thread;
  become(thread);
  hostgpu_switch(&saved[from], saved[thread]);
}

// The next thread that can go on: of this wave, then of the waves after it.
bool next_runnable(unsigned* thread) {
  const uint64_t above = running.wave->runnable & ~1ull << running.lane;
  if (above) {
    *thread = runtime.thread - running.lane + (unsigned)__builtin_ctzll(above);
    return true;
  }
  const unsigned count = (runtime.block_threads + running.wave_size - 1) >> running.wave_shift;
  for (unsigned i = 0, w = runtime.thread >> running.wave_shift; i < count; i++, w = w + 1 == count ? 0 : w + 1) {
    if (!waves[w].runnable) continue;
    *thread = (w << running.wave_shift) + (unsigned)__builtin_ctzll(waves[w].runnable);
    return true;
  }
  return false;
}

void fiber_main() {
  kernel->run(kernel_arguments);
  const uint64_t bit = 1ull << running.lane;
  running.wave->runnable &= ~bit;
  running.wave->returned |= bit;
  if (++returned_threads == runtime.block_threads) stop_block();
  unsigned next;
  if (!next_runnable(&next)) report_divergence();
  switch_to(next);
  __builtin_unreachable();
}

void prepare(unsigned thread) {
  auto* top = (uint64_t*)(stacks + (thread + 1) * (kStack + kGuardPage) - thread % kSpreads * kSpread - 64);
#if defined(__x86_64__)
  top = (uint64_t*)((uint64_t)top & ~15ull) - 1;  // so that fiber_main starts as if it had been called
  top -= 7;
  for (unsigned i = 0; i < 6; i++) top[i] = 0;
  top[6] = (uint64_t)&fiber_main;
  top[7] = 0;
#else
  top = (uint64_t*)((uint64_t)top & ~15ull) - 20;
  for (unsigned i = 0; i < 20; i++) top[i] = 0;
  top[11] = (uint64_t)&fiber_main;
#endif
  saved[thread] = top;
}

}  // namespace

Wave waves[kMaxWaves];

bool ready_fibers() {
  if (stacks) return true;
  constexpr uint64_t kWhole = kMaxThreads * (kStack + kGuardPage);
  auto* p = (uint8_t*)mmap(nullptr, kWhole, 3, 0x4022, -1, 0);  // read and write; private, anonymous, no reserve
  if (p == (uint8_t*)-1) return false;
  stacks = p;
  return true;
}

bool on_guard_page(const void* address) {
  const uint64_t offset = (uint64_t)((const uint8_t*)address - stacks);
  return offset < kMaxThreads * (kStack + kGuardPage) && offset % (kStack + kGuardPage) < kGuardPage;
}

void run_block(const Kernel& of, const void* arguments) {
  kernel = &of;
  kernel_arguments = arguments;
  returned_threads = 0;
  const unsigned size = running.wave_size;
  for (unsigned t = 0; t < runtime.block_threads; t += size) {
    const unsigned lanes = runtime.block_threads - t < size ? runtime.block_threads - t : size;
    Wave& wave = waves[t / size];
    wave.present = wave.runnable = ~0ull >> (64 - lanes);
    wave.waiting = wave.at_barrier = wave.returned = wave.epoch = 0;
  }
  for (; guarded < runtime.block_threads; guarded++) mprotect(stacks + guarded * (kStack + kGuardPage), kGuardPage, 0);
  for (unsigned t = 0; t < runtime.block_threads; t++) prepare(t);
  become(0);
  running.in_fiber = true;
  hostgpu_switch(&main_saved, saved[0]);
  running.in_fiber = false;
}

void suspend() {
  running.wave->runnable &= ~(1ull << running.lane);
  unsigned next;
  if (!next_runnable(&next)) report_divergence();
  switch_to(next);
}

void go_on_from(unsigned thread) {
  if (thread == runtime.thread) restamp();
  else switch_to(thread);
}

// Leaves the fibers as they are: a kernel's variables need no end.
void stop_block() {
  void* unused;
  hostgpu_switch(&unused, main_saved);
  __builtin_unreachable();
}

}  // namespace rocattn::hostgpu
