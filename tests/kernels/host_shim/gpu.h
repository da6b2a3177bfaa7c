// Runs one block of a kernel on the CPU: a fiber a thread, with the barrier and shuffle semantics of waves of 32 or 64.
//
// Include it before a kernel's source. Fibers switch only where a GPU thread would wait. Each wave runs as far ahead of
// the others as barriers let it, in alternating order, so that an access that misses its barrier meets stale or early
// data. Waiting that not all threads of the wave or block join in is an error, not a hang; so is touching a guard page
// (or a misaligned vector, where this CPU's instruction minds). Blocks run one after the other.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __shared__ static
#define ROCATTN_BLOCK(threads)

namespace shim {

enum class Wait { nothing, wave, block, end };

struct Fiber {
    ucontext_t context;
    Wait wait;
    unsigned waits;  // how often it has waited: lanes that shuffle together must agree
};

constexpr unsigned MAX_THREADS = 1024;
constexpr size_t STACK_BYTES = 64 * 1024;

inline Fiber fibers[MAX_THREADS];
inline ucontext_t scheduler;
inline unsigned current, threads, wave, block, blocks;
inline int exchanged[MAX_THREADS];
inline void (*body)(void*);
inline void* body_data;

inline void wait(Wait what) {
    fibers[current].wait = what;
    ++fibers[current].waits;
    swapcontext(&fibers[current].context, &scheduler);
}

inline int bpermute(int byte_address, int value) {
    exchanged[current] = value;
    wait(Wait::wave);
    const int got = exchanged[current / wave * wave + static_cast<unsigned>(byte_address) / 4 % wave];
    wait(Wait::wave);
    return got;
}

inline void entry() {
    body(body_data);
    wait(Wait::end);
}

// Lets threads [first, first + count) go on if all of them wait for `what`; says whether it did.
inline bool release(unsigned first, unsigned count, Wait what) {
    for (unsigned t = first; t < first + count; ++t)
        if (fibers[t].wait != what || fibers[t].waits != fibers[t / wave * wave].waits) return false;
    for (unsigned t = first; t < first + count; ++t) fibers[t].wait = Wait::nothing;
    return true;
}

// Runs a wave until its lanes wait for the block, end, or wait for different things.
inline void run_wave(unsigned first) {
    do {
        for (current = first; current < first + wave; ++current)
            if (fibers[current].wait == Wait::nothing) swapcontext(&scheduler, &fibers[current].context);
    } while (release(first, wave, Wait::wave));
}

inline const char* run_block(char* stacks) {
    for (unsigned t = 0; t < threads; ++t) {
        getcontext(&fibers[t].context);
        fibers[t].context.uc_stack.ss_sp = stacks + t * STACK_BYTES;
        fibers[t].context.uc_stack.ss_size = STACK_BYTES;
        fibers[t].context.uc_link = nullptr;
        fibers[t].wait = Wait::nothing;
        fibers[t].waits = 0;
        makecontext(&fibers[t].context, entry, 0);
    }
    for (unsigned phase = 0;; ++phase) {
        for (unsigned i = 0; i < threads / wave; ++i) run_wave((phase % 2 ? threads / wave - 1 - i : i) * wave);
        if (release(0, threads, Wait::block)) continue;
        unsigned ended = 0;
        for (unsigned t = 0; t < threads; ++t) ended += fibers[t].wait == Wait::end;
        if (ended == threads) return nullptr;
        return ended ? "some threads ended while others wait" : "threads wait for different things";
    }
}

inline sigjmp_buf outside;

inline void on_fault(int) { siglongjmp(outside, 1); }

// Runs a kernel; returns what went wrong, or null.
template <typename... Parameters, typename... Arguments>
const char* launch(void (*kernel)(Parameters...), unsigned grid, unsigned block_threads, unsigned wave_size,
                   Arguments... arguments) {
    auto call = [&] { kernel(arguments...); };
    body = [](void* data) { (*static_cast<decltype(call)*>(data))(); };
    body_data = &call;
    blocks = grid;
    threads = block_threads;
    wave = wave_size;
    char* stacks = static_cast<char*>(malloc(threads * STACK_BYTES));
    struct sigaction ours = {}, theirs;
    ours.sa_handler = on_fault;
    sigaction(SIGSEGV, &ours, &theirs);
    const char* volatile problem = nullptr;
    if (sigsetjmp(outside, 1))
        problem = "an access outside of the buffers, or a misaligned one";
    else
        for (block = 0; block < blocks && !problem; ++block) problem = run_block(stacks);
    sigaction(SIGSEGV, &theirs, nullptr);
    free(stacks);
    return problem;
}

}  // namespace shim

#define __builtin_amdgcn_workitem_id_x() shim::current
#define __builtin_amdgcn_workgroup_id_x() shim::block
#define __builtin_amdgcn_grid_size_x() (shim::blocks * shim::threads)
#define __builtin_amdgcn_wavefrontsize() shim::wave
#define __builtin_amdgcn_fence(order, scope)
#define __builtin_amdgcn_s_barrier() shim::wait(shim::Wait::block)
#define __builtin_amdgcn_ds_bpermute(address, value) shim::bpermute(address, value)
#define __builtin_amdgcn_exp2f(x) exp2f(x)
#define __builtin_amdgcn_logf(x) log2f(x)
