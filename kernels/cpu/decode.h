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
// the order of addresses, where one head at a time would touch a page a row. What is larger than kCached streams: as
// few keys at a time as the extra loads of q (scores) and of the sums (values) allow, 8 bytes of a column, and each
// line is prefetched kAhead before it is read. Keys are cut in ranges of fixed size (by shape alone), joined in order:
// results are the same for any number of threads.
//
// What limits it (one Zen 5 core, D = 128, 4 heads a group): 64 FMAs per KiB of fp32 K and V, which is 126 GB/s at the
// FMA peak; a bare read gets 100 GB/s from L3 and 39 GB/s from memory. Reading memory overlaps with arithmetic only as
// far as it is in the order of addresses: fp32 from memory in tiles of 4 keys reaches 25 GB/s, with 1 key of 4 heads
// and 2 keys of V at a time 32 (from L2 these take 16 and 23 ns per KiB). bf16 has half the bytes: 2 keys of 2 heads,
// 4 keys of V, 30 GB/s. Tried without gain: prefetch to L2, prefetch 4, 8, 24 and 32 KiB ahead, plain loads instead.
#pragma once
#include "problem.h"

namespace rocattn {
constexpr int64_t kDecodeRows = 8;
int32_t decode(const Problem& p);
int64_t decode_workspace(const Problem& p);
}  // namespace rocattn
