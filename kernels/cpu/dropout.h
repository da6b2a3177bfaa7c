// Dropout's mask (rocattn/dropout.py defines which weights are kept): Philox 4x32-10, one counter per lane.
#pragma once
#include "rows.h"

namespace rocattn {

constexpr int kWords = 4;  // per counter: adjacent keys of a row

// The high and the low halves of a * by.
RA_INLINE void multiply_wide(vu a, uint32_t by, vu& high, vu& low) {
  typedef uint64_t vd __attribute__((vector_size(VL * 4)));
  const vd even = ((vd)a & 0xffffffffu) * (uint64_t)by, odd = ((vd)a >> 32) * (uint64_t)by;
  high = (vu)((even >> 32) | ((odd >> 32) << 32));
  low = (vu)((even & 0xffffffffu) | (odd << 32));
}

// The words of keys 4 group ... 4 group + 3 of a row of head b * H + h.
RA_INLINE void draw(const uint32_t* key, vu group, vu row, vu head, vu (&words)[kWords]) {
  uint32_t k0 = key[0], k1 = key[1];
  vu c0 = group, c1 = row, c2 = head, c3{};
  for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
    vu high0, low0, high1, low1;
    multiply_wide(c0, 0xd2511f53u, high0, low0);
    multiply_wide(c2, 0xcd9e8d57u, high1, low1);
    c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
  }
  words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

RA_INLINE vf keep(const Args& a, vu words, vf x) { return select((vi)(words >= a.drop_below), x * a.keep_factor, vf{}); }

// The factors for the weights of a row's n keys from k0 (a multiple of 4) on; `kept` has space for whole vectors of
// counters.
RA_INLINE void kept_of_row(const Problem& p, const Row& row, int64_t b, int64_t k0, int64_t n, float* kept) {
  const Args& a = *p.a;
  for (int64_t j = 0; j < n; j += kWords * VL) {
    vu words[kWords];
    draw(a.dropout_key, (vu)iota() + (uint32_t)((k0 + j) / kWords), vu{} + (uint32_t)row.position,
         vu{} + (uint32_t)(b * a.H + row.head), words);
    for (int t = 0; t < kWords; t++) {
      const vf x = keep(a, words[t], set1(1.0f));
      for (int l = 0; l < VL; l++) kept[j + kWords * l + t] = x[l];
    }
  }
}

}  // namespace rocattn
