// LDS accesses whose cycles and results are known. One wave.
//
// conflicts:  out[lane] = what LDS has at `offsets[lane]` bytes, WIDTH words of it; written there by the same lanes.
// strided:    rows of 16 lanes, of several lengths and widths: the code alone tells the addresses.
// divergent:  odd lanes read once more than even ones, from the same places in the source.
// direct:     16 bytes of each lane from memory to LDS, waited for if ARRIVED, and back.
// turns:      two waves add up STEPS tiles, which go to TILES arrays in turns. Wave LOADER loads each while the one
//             before is read, or after it has read that itself (READS_FIRST), and waits for the first WAITS. LEFT: it
//             loads one more than is read. All blocks do the same.
// transposed: out[lane][0 ... 3] = a transposing read of a 16x16 tile, row l / 4, columns 4 (l % 4) ...
#include <rocattn/device.h>

using namespace rocattn;

constexpr u32 BYTES = 32768;

ROCATTN_KERNEL(conflicts, WAVE, (const u32* offsets, u32* out)) {
    ROCATTN_LDS(u32, words, BYTES / 4);
    const u32 at = load(offsets + lane_id()) / 4;
    Vector<u32, WIDTH> own;
    for (u32 w = 0; w < WIDTH; ++w) own[w] = at + w;
    lds_store<u32, WIDTH>(words + at, own);
    wave_barrier();
    store<u32, WIDTH>(out + lane_id() * WIDTH, lds_load<u32, WIDTH>(words + at));
}

template <u32 WORDS, u32 STRIDE> ROCATTN_INLINE u32 through(u32* words, u32 seed) {
    u32* at = words + lane_id() % 16 * STRIDE + lane_id() / 16 * WORDS;
    Vector<u32, WORDS> own;
    for (u32 w = 0; w < WORDS; ++w) own[w] = seed + w;
    lds_store<u32, WORDS>(at, own);
    wave_barrier();
    own = lds_load<u32, WORDS>(at);
    wave_barrier();
    u32 sum = 0;
    for (u32 w = 0; w < WORDS; ++w) sum += own[w];
    return sum;
}

ROCATTN_KERNEL(strided, WAVE, (u32 * out)) {
    ROCATTN_LDS(u32, words, BYTES / 4);
    u32 sum = through<4, 68>(words, lane_id());
    sum = through<4, 72>(words, sum);
    sum = through<4, 64>(words, sum);
    sum = through<2, 36>(words, sum);
    sum = through<1, 18>(words, sum);
    store(out + lane_id(), sum);
}

ROCATTN_KERNEL(divergent, WAVE, (u32 * out)) {
    ROCATTN_LDS(u32, words, WAVE);
    lds_store(words + lane_id(), lane_id());
    wave_barrier();
    u32 sum = 0;
    for (u32 i = lane_id() % 2; i < 3; ++i) sum += lds_load(words + lane_id());
    store(out + lane_id(), sum);
}

#if defined(__gfx950__)
ROCATTN_KERNEL(transposed, WAVE, (const DTYPE* tile, DTYPE* out)) {
    ROCATTN_LDS(DTYPE, rows, 256);
    lds_store<DTYPE, 4>(rows + lane_id() * 4, load<DTYPE, 4>(tile + lane_id() * 4));
    wave_barrier();
    store<DTYPE, 4>(out + lane_id() * 4, lds_load_transposed(rows + lane_id() / 4 * 16 + lane_id() % 4 * 4));
}
#endif

#if defined(__gfx942__) || defined(__gfx950__)
ROCATTN_KERNEL(direct, WAVE, (const u32* from, u32* out)) {
    ROCATTN_LDS(u32, words, WAVE * WIDTH);
    load_to_lds<4 * WIDTH>(from, (WAVE - 1 - lane_id()) * 4 * WIDTH, words);
#ifdef ARRIVED
    loads_arrived();
#endif
    wave_barrier();
    store<u32, WIDTH>(out + lane_id() * WIDTH, lds_load<u32, WIDTH>(words + lane_id() * WIDTH));
}

#ifdef TILES
ROCATTN_KERNEL(turns, 2 * WAVE, (const u32* from, u32* out)) {
    ROCATTN_LDS(u32, words, TILES * WAVE);
    const auto fetch = [&](u32 step) {
        if (step == STEPS + LEFT || wave_id() != LOADER) return;
        load_to_lds<4>(from + step * WAVE, lane_id() * 4, words + step % TILES * WAVE);  // HERE load
    };
    fetch(0);
    u32 sum = 0;
    for (u32 step = 0; step < STEPS; ++step) {
        if (step < WAITS) loads_arrived();
        block_barrier();
        if (!READS_FIRST) fetch(step + 1);
        sum += lds_load(words + step % TILES * WAVE + lane_id());  // HERE read
        if (READS_FIRST) fetch(step + 1);
        block_barrier();
    }
    if (block_x() == 0) store(out + thread_id(), sum);
}
#endif
#endif
