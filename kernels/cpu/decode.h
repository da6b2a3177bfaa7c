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
// few keys at a time as the extra loads of q (scores) and of the sums (values) allow, and each line is prefetched
// `ahead` bytes before it is read. The softmax of a block runs row by row between the scores of the next one, so that
// memory is read meanwhile.
//
// Keys are cut in ranges of fixed size (by shape alone), joined in order: results are the same for any number of
// threads. Each worker goes through ranges that follow each other: what it prefetches is what it reads next. A range
// costs: its sums are written to memory that no cache holds, 16 KiB for 32 rows of 128, and read when they are joined.
// So a range has 256 keys or more, the sums are made where they are joined from, and a worker loads q once. Where there
// are more threads than ranges, heads are split among items instead.
//
// What limits it (one Zen 5 core, D = 128, 4 heads a group): a bare read gets 100 GB/s from L3 and 36 to 40 GB/s from
// memory, 7 ns for the 256 bytes of a bf16 key; from L2 its scores take 4.5 ns, its values 5.6, softmax 0.8. Reading
// overlaps with arithmetic only as far as it is nearly in the order of addresses: one key (fp32) or two (16-bit) of
// several heads for scores; 2 or 8 of one head for values. numpy's arrays start 16 bytes after a line, so that most
// vectors cross one: 15 % of the time from L2. Tried without gain: blocks of 128 and 256 keys, prefetch to L2, 12, 24
// and 32 KiB ahead (for V alone: 20 and 24), prefetch of V during softmax, 2, 4 and 16 keys of V a turn, a second
// prefetch to L2 further ahead, prefetching the lines of a part before it is written, memory kept from call to call.
// Ranges of 512 keys of 16 bits: 2 to 5 % faster with one thread, 2 to 7 % slower with two, where the second one wakes
// late and there is no third and fourth range left to even that out.
//
// On Zen 4 (AVX-512 in halves, 32 KiB of L1; 22 to 35 GB/s of memory a core) prefetches go to L2: from memory half the
// time of those to L1, none or non-temporal ones 1.6 to 2.6 times as long: reading in the order of a tile starts no
// hardware prefetcher (12 to 17 GB/s). One to L2 that finds the queue full is dropped (10 % of a bare run of them at 50
// GB/s, 0.4 % at 36), and who needs such a line waits for all of memory. So each is repeated nearer, K's from 32 and 16
// KiB ahead, V's from 64, 48 and 32, between products: from memory 0.79 to 0.84 (fp32) and 0.80 to 0.90 (bf16) of the
// time of one, from 32 KiB; fp16, which is widened, the same. From L3 fp32 takes 7 % longer. A 512-bit store takes two
// cycles there, so a tile of scores has 2 (16-bit: 4) keys and a turn of values 8 (16-bit: 16, which the repeats make
// pay: 0.91 of the time from L3). Tried without gain: 3 times for K, 2 for V, 16 to 128 KiB ahead, the repeats to L1
// (12 to 20 % longer), loads of lines ahead instead, 32 and 64 keys a turn, sums by blends.
//
// On a Xeon with AMX (15 GB/s of memory a core): vdpbf16ps has half the rate of FMA, prefetches to L1 wait for its few
// fill buffers (host.py chooses). With both changed 1024 to 4096 tokens from memory took 10 to 24 % less. Tried without
// gain there: 8, 12, 24, 32 and 64 KiB ahead, a second prefetch to L1, prefetching one line of 2, 4 or 64, ranges of
// 128 keys, and bf16 widened by a shift and a mask, with even and odd d apart: 8 to 15 % faster from L2, 15 % slower
// from memory.
#pragma once
#include "problem.h"

namespace rocattn {
constexpr int64_t kDecodeRows = 8;
int32_t decode(const Problem& p);
int64_t decode_workspace(const Problem& p);
}  // namespace rocattn
