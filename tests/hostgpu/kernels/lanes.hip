// Lanes, ids and arithmetic: each thread stores what it sees.
#include <rocattn/device.h>

using namespace rocattn;

constexpr u32 THREADS = 2 * WAVE;
constexpr u32 COLUMNS = 8, BLOCKS_X = 3;

// out [blocks][THREADS][COLUMNS] of u32.
ROCATTN_KERNEL(lanes, THREADS, (u32 * out, const u32* in)) {
    const u32 block = (block_z() * 2 + block_y()) * BLOCKS_X + block_x();
    const u32 value = load(in + thread_id());
    u32* const row = out + (block * THREADS + thread_id()) * COLUMNS;
    store(row, thread_id() | wave_id() << 16 | lane_id() << 24);
    store(row + 1, shuffle(value, (lane_id() * 7 + 3) % WAVE));
    store(row + 2, shuffle_xor(value, 5));
    store(row + 3, exchange_halves(value));
    store(row + 4, static_cast<u32>(any_lane(value == 17u)));
    store(row + 5, uniform(block));
    store(row + 6, __builtin_bit_cast(u32, wave_sum(static_cast<float>(value))));
    store(row + 7, __builtin_bit_cast(u32, wave_max(static_cast<float>(value))));
}

// out[i] = f(x[i]) for the three fast functions.
ROCATTN_KERNEL(functions, THREADS, (const float* x, float* exp2, float* log2, float* reciprocal, u32 count)) {
    for (u32 i = thread_id(); i < count; i += THREADS) {
        store(exp2 + i, exp2_fast(load(x + i)));
        store(log2 + i, log2_fast(load(x + i)));
        store(reciprocal + i, reciprocal_fast(load(x + i)));
    }
}

// Conversions there and back: every 16-bit pattern to float, and floats to 16 bits.
ROCATTN_KERNEL(conversions, THREADS, (const DTYPE* narrow, float* wide, const float* x, DTYPE* rounded, u32 count)) {
    for (u32 i = thread_id(); i < count; i += THREADS) {
        store(wide + i, to_float(load(narrow + i)));
        store(rounded + i, from_float<DTYPE>(load(x + i)));
    }
}

struct Pair {
    u8 first;
    i64 second;
};

// Every kind of argument: written back as bytes into [48].
ROCATTN_KERNEL(arguments, 1 * WAVE, (u8 a, i64 b, u16 c, float d, Pair e, u8* out)) {
    if (thread_id() != 0) return;
    store(out, a);
    store(reinterpret_cast<i64*>(out + 8), b);
    store(reinterpret_cast<u16*>(out + 16), c);
    store(reinterpret_cast<float*>(out + 20), d);
    store(out + 24, e.first);
    store(reinterpret_cast<i64*>(out + 32), e.second);
}
