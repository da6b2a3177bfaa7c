// A persistent thread pool on futexes: no C++ runtime, no headers of the C library, nothing started until first needed.
//
// run(n, threads, f, ctx) calls f(ctx, i, worker) for every i in [0, n), each exactly once, in ascending order of
// start; the caller works too. Results must not depend on who runs what: then any thread count gives the
// same bits. One job runs at a time; a second caller waits for the first. After fork the child forgets the parent's
// workers. Threads that were lent (rocattn_cpu_borrow) work instead of the pool's own, where there are enough.
#pragma once
#include "simd.h"

namespace rocattn {

constexpr int kMaxThreads = 256;

typedef void (*Work)(void* ctx, int64_t item, int worker);
void run(int64_t items, int threads, Work work, void* ctx);
// Wakes sleeping workers for a job that is about to come.
void rouse(int threads);
// How many workers (the caller included) run() would use at most.
int usable_threads(int64_t items, int threads);

void* allocate(int64_t bytes);  // 64-byte aligned, null when out of memory
void release(void* p);
RA_INLINE void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}
void yield_thread();

}  // namespace rocattn
