// The thread pool (see pool.h). Measured: an empty job on two idle cores costs 3 us while workers spin, 10 us from
// sleep.
#include "simd.h"
#include "abi.h"
#include "pool.h"

extern "C" {
int pthread_create(unsigned long*, const void*, void* (*)(void*), void*);
int pthread_detach(unsigned long);
int posix_memalign(void**, __SIZE_TYPE__, __SIZE_TYPE__);
void free(void*);
long syscall(long, ...);
int getpid(void);
int sched_yield(void);
}

namespace rocattn {
namespace {

#if defined(__x86_64__)
constexpr long kFutex = 202;
#else
constexpr long kFutex = 98;  // aarch64, riscv64
#endif
constexpr int kWait = 128, kWake = 129;  // FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE
constexpr int kSpins = 8000;             // of a caller that waits for workers: 120 us (Zen 5) to 200 (Zen 4)
// A worker looks for the next job twice as long: the gap between two calls in a loop, with other work in it. To wake it
// takes 10 to 70 us, of which the caller loses up to 30 (in a virtual machine whose idle CPUs are halted). Meanwhile it
// offers its CPU to others now and then (0.5 us): the kernel may have woken it where its caller runs.
constexpr int kIdleSpins = 16000, kYield = 64;

struct Job {
  int64_t items;
  Work work;
  void* ctx;
  int threads;
};

// The threads of an OpenMP runtime in this process. After PyTorch's operators they look for work for milliseconds; this
// pool's workers would share their CPUs (two cores: calls took 1.4 to 1.6 times as long).
struct Team {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel: libgomp, LLVM's and Intel's runtimes
  int (*most)(void);                                            // omp_get_max_threads
  int32_t pid;                                                  // a child after fork has no such threads
};
Team team;

// Everything the workers share. `control` is (open jobs' generation << 1 | open); `inside` counts workers in the job.
struct Pool {
  int32_t lock;        // 0 free, 1 held, 2 held with waiters
  int32_t generation;  // futex: odd while a job is open
  int32_t inside;      // futex: workers that may still touch the job
  int32_t sleepers;
  int32_t workers;
  int32_t pid;
  Job job;
  alignas(64) int64_t next;
};
Pool pool;

template <class T> T get(const T* p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
template <class T> void set(T* p, T v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
template <class T> T add(T* p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }

void sleep_while(int32_t* word, int32_t value) { syscall(kFutex, word, kWait, value, 0, 0, 0); }
void wake(int32_t* word, int count) { syscall(kFutex, word, kWake, count, 0, 0, 0); }

void acquire() {
  int32_t expected = 0;
  if (__atomic_compare_exchange_n(&pool.lock, &expected, 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return;
  while (__atomic_exchange_n(&pool.lock, 2, __ATOMIC_SEQ_CST) != 0) sleep_while(&pool.lock, 2);
}
void unlock() {
  if (__atomic_exchange_n(&pool.lock, 0, __ATOMIC_SEQ_CST) == 2) wake(&pool.lock, 1);
}

// Rounding to nearest, with subnormals, whatever mode the calling or working thread has set (a library linked with
// -ffast-math, torch.set_flush_denormal): equal calls give equal bits.
struct DefaultFloats {
#if defined(__x86_64__)
  const unsigned before = __builtin_ia32_stmxcsr();
  DefaultFloats() { __builtin_ia32_ldmxcsr(0x1f80); }
  ~DefaultFloats() { __builtin_ia32_ldmxcsr(before); }
#elif defined(__aarch64__)
  uint64_t before;
  DefaultFloats() {
    asm volatile("mrs %0, fpcr" : "=r"(before));
    write(0);
  }
  ~DefaultFloats() { write(before); }
  static void write(uint64_t control) { asm volatile("msr fpcr, %0" ::"r"(control) : "memory"); }
#else
  DefaultFloats() {}  // RISC-V has no such mode
#endif
  DefaultFloats(const DefaultFloats&) = delete;
};

void drain(const Job& job, int worker) {
  const DefaultFloats scope;
  for (;;) {
    int64_t i = add<int64_t>(&pool.next, 1);
    if (i >= job.items) return;
    job.work(job.ctx, i, worker);
  }
}

// Call it after the pool has checked for a fork.
bool borrowed(int threads) {
  return get(&team.parallel) && team.pid == get(&pool.pid) && threads <= team.most();
}

// The function of each thread of the team; they run in any order.
void team_main(void* entered) {
  const int id = add<int32_t>((int32_t*)entered, 1);
  if (id < pool.job.threads) drain(pool.job, id);
}

void* worker_main(void* argument) {
  const int id = (int)(int64_t)argument;
  int32_t seen = 0;
  for (;;) {
    int32_t now = get(&pool.generation);
    for (int spin = 1; (now == seen || !(now & 1)) && spin <= kIdleSpins; spin++) {
      if (spin % kYield != 0) relax();
      else sched_yield();
      now = get(&pool.generation);
    }
    if (now == seen || !(now & 1)) {
      add<int32_t>(&pool.sleepers, 1);
      if (get(&pool.generation) == now) sleep_while(&pool.generation, now);
      add<int32_t>(&pool.sleepers, -1);
      continue;
    }
    seen = now;
    // Enter first, then look whether the job is still the one that was announced: the caller closes it the other way
    // round.
    add<int32_t>(&pool.inside, 1);
    if (get(&pool.generation) == now && id < pool.job.threads) drain(pool.job, id);
    if (add<int32_t>(&pool.inside, -1) == 1 && !(get(&pool.generation) & 1)) wake(&pool.inside, 1);
  }
  return nullptr;
}

}  // namespace

int usable_threads(int64_t items, int threads) {
#if !defined(__linux__)
  threads = 1;
#endif
  return (int)max2<int64_t>(1, min2<int64_t>(min2<int64_t>(items, threads), kMaxThreads));
}

void run(int64_t items, int threads, Work work, void* ctx) {
  threads = usable_threads(items, threads);
  if (threads == 1) {
    const DefaultFloats scope;
    for (int64_t i = 0; i < items; i++) work(ctx, i, 0);
    return;
  }
  const int32_t pid = getpid();
  if (get(&pool.pid) != pid) {  // first use, or a child after fork: the parent's workers do not exist here
    static int32_t reset;
    int32_t before = get(&reset);
    if (before != pid && __atomic_compare_exchange_n(&reset, &before, pid, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
      pool.lock = pool.generation = pool.inside = pool.sleepers = pool.workers = 0;
      set(&pool.pid, pid);
    }
    while (get(&pool.pid) != pid) sched_yield();
  }
  acquire();
  pool.job = {items, work, ctx, threads};
  set<int64_t>(&pool.next, 0);
  if (borrowed(threads)) {
    int32_t entered = 0;
    team.parallel(team_main, &entered, 0, 0);  // 0: all of them, since a team that changes its size restarts threads
    unlock();
    return;
  }
  while (pool.workers < threads - 1) {
    unsigned long thread;
    if (pthread_create(&thread, nullptr, worker_main, (void*)(int64_t)(pool.workers + 1)) != 0) break;
    pthread_detach(thread);
    pool.workers++;
  }
  add<int32_t>(&pool.generation, 1);
  if (get(&pool.sleepers) > 0) wake(&pool.generation, 1 << 30);
  drain(pool.job, 0);
  add<int32_t>(&pool.generation, 1);
  for (int32_t n, spin = 0; (n = get(&pool.inside)) != 0; spin++) {
    if (spin < kSpins) relax();
    else sleep_while(&pool.inside, n);
  }
  unlock();
}

// A worker that wakes finds no job and looks for one as after a job; one that is about to sleep is woken by run().
void rouse(int threads) {
  if (threads > 1 && get(&pool.sleepers) > 0 && !borrowed(threads)) wake(&pool.generation, threads - 1);
}

void yield_thread() { sched_yield(); }

namespace {
constexpr int64_t kHeader = 64;  // before each allocation: its size
int64_t allocated, most_allocated;
}  // namespace

void* allocate(int64_t bytes) {
  void* p = nullptr;
  if (posix_memalign(&p, 64, (__SIZE_TYPE__)(max2<int64_t>(bytes, 0) + kHeader)) != 0) return nullptr;
  *(int64_t*)p = bytes;
  const int64_t now = add(&allocated, bytes) + bytes;
  int64_t most = get(&most_allocated);
  while (now > most) {
    if (__atomic_compare_exchange_n(&most_allocated, &most, now, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) break;
  }
  return (char*)p + kHeader;
}
void release(void* p) {
  char* start = (char*)p - kHeader;
  add(&allocated, -*(int64_t*)start);
  free(start);
}

}  // namespace rocattn

extern "C" void rocattn_cpu_rouse(int32_t threads) { rocattn::rouse(threads); }

extern "C" void rocattn_cpu_borrow(void (*parallel)(void (*)(void*), void*, unsigned, unsigned), int (*most)(void)) {
  rocattn::team.most = most, rocattn::team.pid = getpid();
  rocattn::set(&rocattn::team.parallel, parallel);
}

extern "C" int64_t rocattn_cpu_most_allocated(int32_t reset) {
  const int64_t most = rocattn::get(&rocattn::most_allocated);
  if (reset) rocattn::set(&rocattn::most_allocated, rocattn::get(&rocattn::allocated));
  return most;
}
