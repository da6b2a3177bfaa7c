// Attention for few query rows (decode): the limit is reading K and V once, so nothing is packed or transposed.
//
// Up to kDecodeRows packed rows (a group's heads, a few positions) share the stream. Per block of DK = 64 keys:
//   scores   KR keys x RM rows of sums in registers (KR * RM = VL), d in the lanes; one tree adds all VL of them up
//   softmax  per row over the block, keys in the lanes
//   values   O[4 rows][4 vectors] += p[row][key] * V[key], dv in the lanes
// 16-bit K and V are widened in registers; bf16 with vdpbf16ps stays in pairs (along d for scores; rows of V are
// interleaved in registers for values). Register budget on AVX-512: 16 sums + 4 q + 1 K; 16 sums + 4 V + 1 p.
//
// Where the heads of a key lie side by side (BSHD) one item takes all heads, a few keys at a time: K and V are read in
// the order of addresses, where one head at a time would touch a page a row. What does not fit the last-level cache is
// prefetched kAhead before it is read; what fits is not: there prefetches only take load slots. Keys are cut in ranges
// of fixed size (by shape alone), joined in order: results are the same for any number of threads.
//
// What limits it (one Zen 5 core, D = 128, 4 heads a group): 64 FMAs per KiB of fp32 K and V, which is 126 GB/s at the
// FMA peak, while a bare read gets 110 GB/s from cache and 41 GB/s from memory. Tried without gain: prefetch to L2,
// prefetch 8 to 128 KiB ahead, tiles of 2 keys (faster from memory, slower from cache), blocks of 16 and 32 keys.
#pragma once
#include "problem.h"

namespace rocattn {
constexpr int64_t kDecodeRows = 8;
int32_t decode(const Problem& p);
int64_t decode_workspace(const Problem& p);
}  // namespace rocattn
