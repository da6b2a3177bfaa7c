// The two products of decode: a tile of scores, and the weighted sum of a block of V (see decode.h).
#pragma once
#include "simd.h"

namespace rocattn {

constexpr int DK = 64;  // keys per block

// A block of keys or values of one item: its location, and the query rows of each head that use it.
struct Block {
  const char* at;
  int64_t row, head;  // bytes from one key to the next, from one head to the next
  int64_t keys, heads, rows;
};

#if defined(RA_PREFETCH_TO_L2)  // see rocattn/toolchain/host.py
constexpr int kLocality = 2;
#else
constexpr int kLocality = 3;
#endif

// How K and V are read from memory, fp32 and 16-bit: keys of a tile of scores, keys that a head's values are added of
// before the next head's turn. Then, of K and of V: how far ahead lines are fetched where heads lie side by side, and
// how many times, kAgain bytes nearer each time: those that are fetched again between the products of a step.
#if defined(RA_SLOW_STORES)  // see rocattn/toolchain/host.py
constexpr int kTileKeys[] = {2, 4}, kTurnKeys[] = {8, 16};
constexpr int kAhead[] = {32 << 10, 64 << 10}, kTimes[] = {2, 3}, kAgain = 16 << 10;
#else
constexpr int kTileKeys[] = {1, 2}, kTurnKeys[] = {2, 8};
constexpr int kAhead[] = {16 << 10, 16 << 10}, kTimes[] = {1, 1}, kAgain = 0;
#endif
constexpr bool kBetween = kTimes[0] > 1;

// Prefetches the next Bytes of memory in the order of addresses.
template <int Bytes, int Times> RA_INLINE void fetch(const char*& next) {
  if (Bytes >= 64 || ((uintptr_t)next & 63) < Bytes)
#pragma GCC unroll 16
    for (int i = 0; i < Bytes; i += 64)
#pragma GCC unroll 4
      for (int t = 0; t < Times; t++) __builtin_prefetch(next + i - t * kAgain, 0, kLocality);
  next += Bytes;
}

// How a block of K and V is read: T::get_vector widens VL elements. Pairs keeps bf16: two elements per lane.
#if defined(__AVX512BF16__)
struct Pairs {
  static constexpr int bytes = 2;
};
#else
struct Pairs;
#endif
#if defined(__AVX512BF16__)
RA_INLINE vf pair_madd(vf a, vf b, vf c) {
  return (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)(__m512)a, (__m512bh)(__m512)b);
}
#endif

// sum_each, by shuffles that overwrite no operand: no copies, no index registers.
RA_INLINE vf sum_lanes_of(vf* r) {
#if defined(__AVX512F__)
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++)
    r[i] = (vf)_mm512_unpacklo_ps((__m512)r[2 * i], (__m512)r[2 * i + 1]) +
           (vf)_mm512_unpackhi_ps((__m512)r[2 * i], (__m512)r[2 * i + 1]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++)
    r[i] = (vf)_mm512_unpacklo_pd((__m512d)r[2 * i], (__m512d)r[2 * i + 1]) +
           (vf)_mm512_unpackhi_pd((__m512d)r[2 * i], (__m512d)r[2 * i + 1]);
#pragma GCC unroll 2
  for (int n = 2; n >= 1; n /= 2)
#pragma GCC unroll 2
    for (int i = 0; i < n; i++)
      r[i] = (vf)_mm512_shuffle_f32x4((__m512)r[2 * i], (__m512)r[2 * i + 1], 0x88) +
             (vf)_mm512_shuffle_f32x4((__m512)r[2 * i], (__m512)r[2 * i + 1], 0xdd);
  return r[0];
#else
  return sum_each(r);
#endif
}

template <class T> constexpr int kLaneBytes = Same<T, Pairs>::value ? 4 : T::bytes;  // in memory, of a lane

template <class T> RA_INLINE vf load_lanes(const char* p, int64_t i) {
  if constexpr (Same<T, Pairs>::value) return load((const float*)p + i);
  else return T::get_vector(p, i);
}
template <class T> RA_INLINE vf multiply_add(vf a, vf b, vf c) {
#if defined(__AVX512BF16__)
  if constexpr (Same<T, Pairs>::value) return pair_madd(a, b, c);
#endif
  return fma(a, b, c);
}

// s[h][r][j] = q_hr . k_hj for RM rows of each of HT heads and KR keys.
template <class T, int RM, int KR, int HT, bool Fetch>
RA_INLINE void score_tile(const float* q, int64_t q_row, int64_t q_head, const char* const* key, int64_t k_head,
                          int64_t width, float* s, int64_t s_head, const char*& next) {
  static_assert(RM * KR * HT % VL == 0);
  vf acc[RM * KR * HT];
#pragma GCC unroll 16
  for (int i = 0; i < RM * KR * HT; i++) acc[i] = vf{};
#pragma GCC unroll 16
  for (int h = 0; h < HT; h++)
    for (int64_t d = 0; d < width; d += VL) {
      if constexpr (Fetch && !kBetween) fetch<KR * VL * kLaneBytes<T>, kTimes[0]>(next);
      vf x[RM];
#pragma GCC unroll 4
      for (int r = 0; r < RM; r++) x[r] = load(q + h * q_head + r * q_row + d);
#pragma GCC unroll 16
      for (int j = 0; j < KR; j++) {
        if constexpr (Fetch && kBetween) fetch<VL * kLaneBytes<T>, kTimes[0]>(next);
        const vf kv = load_lanes<T>(key[j] + h * k_head, d);
#pragma GCC unroll 4
        for (int r = 0; r < RM; r++) {
          vf& sum = acc[(h * RM + r) * KR + j];
          sum = multiply_add<T>(x[r], kv, sum);
        }
      }
    }
#pragma GCC unroll 4
  for (int i = 0; i < RM * KR * HT; i += VL) {
    float sums[VL];
    store(sums, sum_lanes_of(acc + i));
#pragma GCC unroll 16
    for (int e = 0; e < VL; e += KR) {
      const int row = (i + e) / KR;
      __builtin_memcpy(s + row / RM * s_head + row % RM * DK, sums + e, sizeof(float) * (KR < VL ? KR : VL));
    }
  }
}

// Scores of all rows of all heads of a block; missing keys of a tile repeat the last one. `other` is work to
// interleave, one part after each tile's keys.
template <class T, int RM, int KR, int HT, bool Fetch, class Other>
RA_NOINLINE void score_tiles(const Block& block, const float* q, int64_t ldq, int64_t width, float* s,
                             const char* next, Other& other) {
  const Block z = block;
  const int64_t q_head = z.rows * ldq, s_head = z.rows * DK;
  for (int64_t j = 0; j < z.keys; j += KR, other.part())
    for (int64_t i = 0; i < z.heads; i += HT) {
      const char* key[KR];
#pragma GCC unroll 16
      for (int e = 0; e < KR; e++) key[e] = z.at + min2<int64_t>(j + e, z.keys - 1) * z.row + i * z.head;
      score_tile<T, RM, KR, HT, Fetch>(q + i * q_head, ldq, q_head, key, z.head, width, s + i * s_head + j, s_head,
                                       next);
      for (int64_t r = RM; r < z.rows; r += RM)
        score_tile<T, RM, KR, HT, false>(q + i * q_head + r * ldq, ldq, q_head, key, z.head, width,
                                         s + i * s_head + r * DK + j, s_head, next);
    }
}

// A tile has VL sums. In a stream, as few keys of as many heads as the extra loads of q allow.
template <class T, int RM, class Other>
RA_INLINE void score_rows(const Block& z, const float* q, int64_t ldq, int64_t width, float* s, const char* next,
                          Other& other) {
  constexpr int sums = VL / RM, most = kTileKeys[T::bytes == 2], keys = most < sums ? most : sums;
  if (!next) return score_tiles<T, RM, sums, 1, false>(z, q, ldq, width, s, next, other);
  if (z.heads % (sums / keys) == 0)
    return score_tiles<T, RM, keys, sums / keys, true>(z, q, ldq, width, s, next, other);
  score_tiles<T, RM, sums, 1, true>(z, q, ldq, width, s, next, other);
}
template <class T, class Other>
RA_INLINE void score_block(const Block& z, const float* q, int64_t ldq, int64_t width, float* s, const char* next,
                           Other& other) {
  if (z.rows == 1) score_rows<T, 1>(z, q, ldq, width, s, next, other);
  else if (z.rows == 2) score_rows<T, 2>(z, q, ldq, width, s, next, other);
  else score_rows<T, 4>(z, q, ldq, width, s, next, other);
}

// o[r] += sum of w[r][j] v_j for RM rows, NC vectors of columns and N keys (0: n keys).
template <class T, int RM, int NC, int N, bool Fetch>
RA_INLINE void value_columns(const float* w, const char* v, int64_t v_row, int64_t n, float* o, int64_t ldo,
                             const char*& next) {
  if constexpr (N != 0) n = N;
  vf acc[RM][NC];
#pragma GCC unroll 4
  for (int r = 0; r < RM; r++)
#pragma GCC unroll 8
    for (int c = 0; c < NC; c++) acc[r][c] = load(o + r * ldo + c * VL);
#if defined(__AVX512BF16__)
  if constexpr (Same<T, Pairs>::value) {  // w holds pairs of keys; V rows 2j and 2j + 1 are interleaved in registers
    static_assert(NC % 2 == 0);
    typedef short v32 __attribute__((vector_size(64)));
    const __m512i low = (__m512i)(v32){0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39,
                                       8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
#pragma GCC unroll 4
    for (int64_t j = 0; j < n; j += 2, v += 2 * v_row) {
      if constexpr (Fetch && !kBetween) fetch<NC * VL * 4, kTimes[1]>(next);
      const char* odd = j + 1 < n ? v + v_row : v;  // if there is none, its weight is 0
      vf x[NC];
#pragma GCC unroll 4
      for (int c = 0; c < NC; c += 2) {
        const __m512i a = (__m512i)load((const float*)v + c * VL / 2);
        const __m512i b = (__m512i)load((const float*)odd + c * VL / 2);
        x[c] = (vf)_mm512_permutex2var_epi16(a, low, b);
        x[c + 1] = (vf)_mm512_permutex2var_epi16(a, high, b);
      }
#pragma GCC unroll 4
      for (int r = 0; r < RM; r++) {
        if constexpr (Fetch && kBetween) fetch<NC * VL * 4 / RM, kTimes[1]>(next);
#pragma GCC unroll 8
        for (int c = 0; c < NC; c++) acc[r][c] = pair_madd(set1(w[r * DK + j / 2]), x[c], acc[r][c]);
      }
    }
  } else
#endif
#pragma GCC unroll 4
    for (int64_t j = 0; j < n; j++, v += v_row) {
      if constexpr (Fetch && !kBetween) fetch<NC * VL * T::bytes, kTimes[1]>(next);
      vf x[NC];
#pragma GCC unroll 8
      for (int c = 0; c < NC; c++) x[c] = T::get_vector(v, c * VL);
#pragma GCC unroll 4
      for (int r = 0; r < RM; r++) {
        if constexpr (Fetch && kBetween) fetch<NC * VL * T::bytes / RM, kTimes[1]>(next);
#pragma GCC unroll 8
        for (int c = 0; c < NC; c++) acc[r][c] = fma(set1(w[r * DK + j]), x[c], acc[r][c]);
      }
    }
#pragma GCC unroll 4
  for (int r = 0; r < RM; r++)
#pragma GCC unroll 8
    for (int c = 0; c < NC; c++) store(o + r * ldo + c * VL, acc[r][c]);
}

// The same for all columns of RM rows.
template <class T, int RM, int N, bool Fetch>
RA_INLINE void value_rows(const float* w, const char* v, int64_t v_row, int64_t n, float* o, int64_t ldo,
                          const char*& next) {
  constexpr int step = Same<T, Pairs>::value ? 2 : 1;
  constexpr int wide = RM <= 2 && VL == 16 ? 8 : 4;
  int64_t c = 0;
  for (; c + wide * VL <= ldo; c += wide * VL)
    value_columns<T, RM, wide, N, Fetch>(w, v + c * T::bytes, v_row, n, o + c, ldo, next);
  for (; c < ldo; c += step * VL)
    value_columns<T, RM, step, N, Fetch>(w, v + c * T::bytes, v_row, n, o + c, ldo, next);
}

// Adds the values of a block to the outputs of all rows of all heads, N keys of a head before the next head's turn.
template <class T, int RM, int N, bool Fetch>
RA_NOINLINE void value_turns(const Block& block, const float* w, float* o, int64_t ldo, const char* next) {
  const Block z = block;
  const int64_t whole = N ? z.keys / (N ? N : 1) * N : 0;
  for (int64_t j = 0; j < z.keys;) {
    const int64_t count = j < whole ? N : z.keys - j;
    for (int64_t i = 0; i < z.heads; i++) {
      const char* v = z.at + j * z.row + i * z.head;
      for (int64_t r = 0; r < z.rows; r += RM) {
        const float* weights = w + (i * z.rows + r) * DK + (Same<T, Pairs>::value ? j / 2 : j);
        float* to = o + (i * z.rows + r) * ldo;
        if (j >= whole) value_rows<T, RM, 0, false>(weights, v, z.row, count, to, ldo, next);
        else if (r == 0) value_rows<T, RM, N, Fetch>(weights, v, z.row, N, to, ldo, next);
        else value_rows<T, RM, N, false>(weights, v, z.row, N, to, ldo, next);
      }
    }
    j += count;
  }
}

template <class T>
RA_INLINE void value_block(const Block& z, const float* w, float* o, int64_t ldo, const char* next) {
  constexpr int group = VL == 16 ? 4 : 2;  // rows whose sums, with four vectors of V, fit the registers
  constexpr int turn = kTurnKeys[T::bytes == 2];
  const auto add = [&](auto turns, auto whole) { (next ? turns : whole)(z, w, o, ldo, next); };
  if (z.rows == 1) add(value_turns<T, 1, turn, true>, value_turns<T, 1, 0, false>);
  else if (z.rows == 2) add(value_turns<T, 2, turn, true>, value_turns<T, 2, 0, false>);
  else add(value_turns<T, group, turn, true>, value_turns<T, group, 0, false>);
}

// The same if a hidden key's V row is inf or NaN: a weight of 0 contributes nothing.
template <class T>
static void value_hidden(const float* w, const char* v, int64_t v_row, int64_t n, float* o, int64_t ldo, int64_t rows) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t d = 0; d < ldo; d += VL) {
      vf acc = load(o + r * ldo + d);  // one chain, as where nothing is hidden: the same bits
      for (int64_t j = 0; j < n; j++)
        if (w[r * DK + j] != 0) acc = fma(set1(w[r * DK + j]), T::get_vector(v + j * v_row, d), acc);
      store(o + r * ldo + d, acc);
    }
}

}  // namespace rocattn
