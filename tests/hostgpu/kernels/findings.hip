// One kernel for each finding of the stand-in GPU. BUG = 1 makes it, at the line marked with the kernel's name; BUG = 0
// is the same kernel without the mistake.
#include <rocattn/matrix.h>

using namespace rocattn;

constexpr u32 THREADS = 2 * WAVE;
constexpr u32 BAD_LANE = 5;

// ---- global memory: x and y have THREADS floats -------------------------------------------------------------------

ROCATTN_KERNEL(global_read_past_end, THREADS, (const float* x, float* y)) {
    store(y + thread_id(), load(x + thread_id() + BUG));  // HERE global_read_past_end
}

ROCATTN_KERNEL(global_vector_read_past_end, THREADS, (const float* x, float* y)) {
    const u32 first = thread_id() / 4 * 4 + 2 * BUG;
    store(y + thread_id(), load<float, 4>(x + first)[0]);  // HERE global_vector_read_past_end
}

ROCATTN_KERNEL(global_write_before_start, THREADS, (const float* x, float* y)) {
    store(y + thread_id() - BUG, load(x + thread_id()));  // HERE global_write_before_start
}

ROCATTN_KERNEL(global_null_read, THREADS, (const float* x, float* y)) {
    const float* const from = BUG ? nullptr : x;
    store(y + thread_id(), load(from + thread_id()));  // HERE global_null_read
}

ROCATTN_KERNEL(global_stray_write, THREADS, (const float* x, float* y)) {
    float* const to = BUG ? reinterpret_cast<float*>(0x123456789000) : y;
    store(to + thread_id(), load(x + thread_id()));  // HERE global_stray_write
}

ROCATTN_KERNEL(global_uninitialised_read, THREADS, (const float* x, float* y)) {
    if (!BUG) store(y + thread_id(), 1.0f);
    const float value = load(y + thread_id());  // HERE global_uninitialised_read
    store(y + thread_id(), value + load(x));
}

ROCATTN_KERNEL(global_misaligned, THREADS, (const float* x, float* y)) {
    const auto* const from = reinterpret_cast<const u32*>(reinterpret_cast<const char*>(x) + 2 * BUG);
    store(y + thread_id(), __builtin_bit_cast(float, load(from)));  // HERE global_misaligned
}

ROCATTN_KERNEL(global_write_race, THREADS, (const float* x, float* y)) {
    const u32 to = BUG ? thread_id() : block_x() * THREADS + thread_id();
    store(y + to, load(x));  // HERE global_write_race
}

ROCATTN_KERNEL(global_read_race, THREADS, (const float* x, float* y)) {
    store(y + thread_id(), 0.0f);
    block_barrier();
    store(y + thread_id(), load(x));
    if (!BUG) block_barrier();
    const float other = load(y + (thread_id() + 1) % THREADS);  // HERE global_read_race
    block_barrier();
    store(y + thread_id(), other);
}

ROCATTN_KERNEL(needs_the_block_before, THREADS, (float* x)) {
    if (block_x() == 1) store(x + THREADS + thread_id(), load(x + thread_id()));
    else store(x + thread_id(), 2.0f);
}

ROCATTN_KERNEL(reads_first, THREADS, (const float* x, float* y)) {
    store(y + thread_id(), load(x));  // HERE reads_first
}

// ---- LDS ----------------------------------------------------------------------------------------------------------

ROCATTN_KERNEL(lds_read_past_end, THREADS, (const float* x, float* y)) {
    ROCATTN_LDS(float, tile, THREADS);
    ROCATTN_LDS(float, next, 4);
    lds_store(tile + thread_id(), load(x));
    if (thread_id() < 4) lds_store(next + thread_id(), 0.0f);
    block_barrier();
    store(y + thread_id(), lds_load(tile + thread_id() + BUG));  // HERE lds_read_past_end
}

ROCATTN_KERNEL(lds_write_past_end, THREADS, (const float* x, float* y)) {
    ROCATTN_LDS(float, tile, THREADS);
    lds_store(tile + thread_id() + BUG, load(x));  // HERE lds_write_past_end
    store(y + thread_id(), 0.0f);
}

ROCATTN_KERNEL(lds_global_address, THREADS, (const float* x, float* y)) {
    ROCATTN_LDS(float, tile, THREADS);
    lds_store(tile + thread_id(), load(x));
    const float* const from = BUG ? x : tile;
    store(y + thread_id(), lds_load(from + thread_id()));  // HERE lds_global_address
}

ROCATTN_KERNEL(lds_uninitialised_read, THREADS, (const float* x, float* y)) {
    ROCATTN_LDS(float, tile, THREADS);
    if (!BUG || thread_id() != BAD_LANE) lds_store(tile + thread_id(), load(x));
    block_barrier();
    store(y + thread_id(), lds_load(tile + thread_id()));  // HERE lds_uninitialised_read
}

// What an earlier block left in LDS is no value either.
ROCATTN_KERNEL(lds_left_by_another_block, THREADS, (const float* x, float* y)) {
    ROCATTN_LDS(float, tile, THREADS);
    if (!BUG || block_x() == 0) lds_store(tile + thread_id(), load(x));
    block_barrier();
    const float value = lds_load(tile + thread_id());  // HERE lds_left_by_another_block
    if (block_x() == 0) store(y + thread_id(), value);
}

ROCATTN_KERNEL(lds_misaligned, THREADS, (const float* x, float* y)) {
    ROCATTN_LDS(float, tile, THREADS + 4);
    lds_store(tile + thread_id(), load(x));
    if (thread_id() < 4) lds_store(tile + THREADS + thread_id(), 0.0f);
    block_barrier();
    store(y + thread_id(), lds_load<float, 4>(tile + thread_id() / 4 * 4 + BUG)[0]);  // HERE lds_misaligned
}

ROCATTN_KERNEL(lds_write_then_read, THREADS, (const float* x, float* y)) {
    ROCATTN_LDS(float, tile, THREADS);
    lds_store(tile + thread_id(), 0.0f);
    block_barrier();
    lds_store(tile + thread_id(), load(x));
    if (!BUG) block_barrier();
    const float value = lds_load(tile + (thread_id() + WAVE) % THREADS);  // HERE lds_write_then_read
    store(y + thread_id(), value);
}

ROCATTN_KERNEL(lds_read_then_write, THREADS, (const float* x, float* y)) {
    ROCATTN_LDS(float, tile, THREADS);
    lds_store(tile + thread_id(), load(x));
    block_barrier();
    const float value = lds_load(tile + (thread_id() + WAVE) % THREADS);
    if (!BUG) block_barrier();
    lds_store(tile + thread_id(), value);  // HERE lds_read_then_write
    store(y + thread_id(), value);
}

ROCATTN_KERNEL(lds_write_twice, THREADS, (const float* x, float* y)) {
    ROCATTN_LDS(float, tile, THREADS);
    lds_store(tile + (BUG ? lane_id() : thread_id()), load(x));  // HERE lds_write_twice
    store(y + thread_id(), 0.0f);
}

// Lanes of one wave: a wave barrier is enough, nothing is not.
ROCATTN_KERNEL(lds_race_in_wave, THREADS, (const float* x, float* y)) {
    ROCATTN_LDS(float, tile, THREADS);
    lds_store(tile + thread_id(), 0.0f);
    block_barrier();
    lds_store(tile + thread_id(), load(x));
    if (!BUG) wave_barrier();
    const float value = lds_load(tile + (thread_id() ^ 1));  // HERE lds_race_in_wave
    store(y + thread_id(), value);
}

ROCATTN_KERNEL(lds_too_large, THREADS, (const float* x, float* y)) {
    ROCATTN_LDS(float, tile, LDS_BYTES / 4 + BUG);  // HERE lds_too_large
    lds_store(tile + thread_id(), load(x));
    store(y + thread_id(), lds_load(tile + thread_id()));
}

// ---- collectives --------------------------------------------------------------------------------------------------

ROCATTN_KERNEL(barrier_without_some, THREADS, (const float* x, float* y)) {
    if (BUG && thread_id() == BAD_LANE) return;
    block_barrier();  // HERE barrier_without_some
    store(y + thread_id(), load(x));
}

ROCATTN_KERNEL(barrier_in_a_branch, THREADS, (const float* x, float* y)) {
    if (!BUG || wave_id() == 0) block_barrier();
    else block_barrier();  // HERE barrier_in_a_branch
    store(y + thread_id(), load(x));
}

ROCATTN_KERNEL(barrier_skipped, THREADS, (const float* x, float* y)) {
    if (!BUG || thread_id() % WAVE < 16) block_barrier();  // HERE barrier_skipped
    store(y + thread_id(), load(x) + wave_max(1.0f));
}

ROCATTN_KERNEL(wave_barrier_without_some, THREADS, (const float* x, float* y)) {
    if (!BUG || lane_id() != BAD_LANE) wave_barrier();  // HERE wave_barrier_without_some
    store(y + thread_id(), load(x));
}

ROCATTN_KERNEL(shuffle_in_a_branch, THREADS, (const float* x, float* y)) {
    float value = load(x);
    if (!BUG || lane_id() < 16) value = shuffle_xor(value, 1);  // HERE shuffle_in_a_branch
    store(y + thread_id(), value);
}

ROCATTN_KERNEL(shuffle_in_different_lines, THREADS, (const float* x, float* y)) {
    float value = load(x);
    if (!BUG || lane_id() < 16) value = shuffle_xor(value, 1);  // HERE shuffle_in_different_lines
    else value = shuffle_xor(value, 2);
    store(y + thread_id(), value);
}

ROCATTN_KERNEL(any_lane_without_some, THREADS, (const float* x, float* y)) {
    bool any = false;
    if (!BUG || lane_id() != BAD_LANE) any = any_lane(lane_id() == 0);  // HERE any_lane_without_some
    store(y + thread_id(), any ? load(x) : 0.0f);
}

ROCATTN_KERNEL(uniform_without_some, THREADS, (const float* x, float* y)) {
    u32 value = 0;
    if (!BUG || lane_id() != BAD_LANE) value = uniform(wave_id());  // HERE uniform_without_some
    store(y + thread_id(), load(x + value));
}

ROCATTN_KERNEL(uniform_differs, THREADS, (const float* x, float* y)) {
    store(y + thread_id(), load(x + uniform(BUG ? thread_id() : wave_id())));  // HERE uniform_differs
}

ROCATTN_KERNEL(shuffle_from_nobody, 16, (const float* x, float* y)) {
    store(y + thread_id(), shuffle(load(x), BUG ? 20 : 7));  // HERE shuffle_from_nobody
}

#ifdef MATRIX
using M = Matrix<f16>;
constexpr u32 WIDTH = sizeof(M::A) / sizeof(f16);

// The instruction's own place is in matrix.h; a kernel's is what counts.
ROCATTN_KERNEL(matrix_without_some, THREADS, (const float* x, float* y)) {
    M::C c{};
    if (!BUG || lane_id() != BAD_LANE) c = M::multiply(M::A{}, M::B{}, c);  // HERE matrix_without_some
    store(y + thread_id(), load(x) + c[0]);
}

ROCATTN_KERNEL(halves_differ, THREADS, (const float* x, float* y)) {
    M::A a{};
    if (BUG) a[3] = static_cast<f16>(thread_id() == 16 + BAD_LANE);
    store(y + thread_id(), load(x) + M::multiply(a, M::B{}, M::C{})[0]);  // HERE halves_differ
}
#endif

// ---- what hardware would survive and a CPU would not --------------------------------------------------------------

ROCATTN_KERNEL(plain_pointer, THREADS, (const float* x, float* y)) {
    const volatile float* const from = BUG ? reinterpret_cast<const float*>(0x1000) : x;
    if (thread_id() == BAD_LANE) store(y, *from);
}

ROCATTN_KERNEL(division_by_zero, THREADS, (const float* x, float* y)) {
    const u32 zero = static_cast<u32>(load(x)) - BUG;
    if (thread_id() == BAD_LANE) store(y, static_cast<float>(7 / zero));
}

ROCATTN_KERNEL(endless_stack, THREADS, (const float* x, float* y)) {
    volatile char large[BUG ? 512 << 10 : 16 << 10];
    for (u32 i = 0; i < sizeof large; i += 1024) large[sizeof large - 1 - i] = 1;
    if (thread_id() == BAD_LANE) store(y, load(x) + large[0]);
}

ROCATTN_KERNEL(findings_at_many_places, THREADS, (const float* x, float* y)) {
    for (u32 line = 1; line <= 20; ++line) store(y + thread_id(), load(x + BUG * THREADS, Where{"many", line}));
}

ROCATTN_KERNEL(unset_variable, THREADS, (const float* x, float* y)) {
    float value;
    if (!BUG) value = load(x);
    store(y + thread_id(), value);
}

ROCATTN_KERNEL(endless_findings, THREADS, (const float* x, float* y)) {
    while (load(x + BUG * THREADS) != 1.0f) {
    }
    store(y + thread_id(), 0.0f);
}
