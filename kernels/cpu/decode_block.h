// The two products of decode: a tile of scores, and the weighted sum of a block of V (see decode.h).
#pragma once
#include "simd.h"

namespace rocattn {

constexpr int DK = 64;  // keys a block

// Memory to prefetch, in the order of addresses and as fast as the loops read. With step 0 the same line is asked for
// again and again, which costs next to nothing.
struct Ahead {
  const char* at;
  int64_t step;
  template <int Bytes> __attribute__((always_inline)) void fetch() {
    if (Bytes >= 64 || ((uintptr_t)at & 63) < Bytes)
#pragma GCC unroll 16
      for (int i = 0; i < Bytes; i += 64) __builtin_prefetch(at + i, 0, 3);
    at += step * Bytes;
  }
};

// How a block of K and V is read: T::get_vector widens VL elements. Pairs keeps bf16 as it is: two elements a lane.
#if defined(__AVX512BF16__)
struct Pairs {
  static constexpr int bytes = 2;
};
#else
struct Pairs;
#endif
template <class A, class B> struct Same { static constexpr bool value = false; };
template <class A> struct Same<A, A> { static constexpr bool value = true; };
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

template <int RM> constexpr int kKeys = VL / RM > 1 ? VL / RM : 1;  // keys a tile of scores

// s[r][j] = q_r . k_j for RM rows and the n <= kKeys<RM> keys of a tile; the others repeat the last.
template <class T, int RM>
RA_INLINE void score_tile(const float* q, int64_t ldq, const char* k, int64_t k_row, int64_t n, int64_t D, float* s,
                          Ahead& ahead) {
  constexpr int KR = kKeys<RM>;
  vf acc[RM * KR];
  const char* key[KR];
#pragma GCC unroll 16
  for (int i = 0; i < RM * KR; i++) acc[i] = vf{};
#pragma GCC unroll 16
  for (int i = 0; i < KR; i++) key[i] = k + (i < n ? i : n - 1) * k_row;
  for (int64_t d = 0; d < D; d += VL) {
    vf x[RM];
#pragma GCC unroll 4
    for (int r = 0; r < RM; r++) x[r] = load(q + r * ldq + d);
    ahead.fetch<KR * VL * (Same<T, Pairs>::value ? 4 : T::bytes)>();
#pragma GCC unroll 16
    for (int i = 0; i < KR; i++) {
      vf kv;
      if constexpr (Same<T, Pairs>::value) kv = load((const float*)key[i] + d);
      else kv = T::get_vector(key[i], d);
#pragma GCC unroll 4
      for (int r = 0; r < RM; r++) {
#if defined(__AVX512BF16__)
        if constexpr (Same<T, Pairs>::value) acc[r * KR + i] = pair_madd(x[r], kv, acc[r * KR + i]);
        else
#endif
          acc[r * KR + i] = fma(x[r], kv, acc[r * KR + i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < RM * KR; i += VL) {
    float sums[VL];
    store(sums, sum_lanes_of(acc + i));
#pragma GCC unroll 16
    for (int e = 0; e < VL; e += KR)
      __builtin_memcpy(s + (i + e) / KR * DK, sums + e, sizeof(float) * KR);
  }
}

// The same for KR keys of HT heads that lie side by side in memory, s[(h * RM + r) * DK + j]: read nearly in the order
// of addresses, at the price of loading q more often.
template <class T, int RM, int KR, int HT>
RA_INLINE void score_heads(const float* q, int64_t ldq, const char* k, int64_t k_head, int64_t k_row, int64_t D,
                           float* s, Ahead& ahead) {
  vf acc[VL];
#pragma GCC unroll 16
  for (int i = 0; i < VL; i++) acc[i] = vf{};
#pragma GCC unroll 4
  for (int h = 0; h < HT; h++)
    for (int64_t d = 0; d < D; d += VL) {
      ahead.fetch<KR * VL * (Same<T, Pairs>::value ? 4 : T::bytes)>();
      vf kv[KR];
#pragma GCC unroll 4
      for (int j = 0; j < KR; j++) {
        const char* key = k + h * k_head + j * k_row;
        if constexpr (Same<T, Pairs>::value) kv[j] = load((const float*)key + d);
        else kv[j] = T::get_vector(key, d);
      }
#pragma GCC unroll 4
      for (int r = 0; r < RM; r++) {
        const vf x = load(q + (h * RM + r) * ldq + d);
#pragma GCC unroll 4
        for (int j = 0; j < KR; j++) {
          vf& sum = acc[(h * RM + r) * KR + j];
#if defined(__AVX512BF16__)
          if constexpr (Same<T, Pairs>::value) sum = pair_madd(x, kv[j], sum);
          else
#endif
            sum = fma(x, kv[j], sum);
        }
      }
    }
  float sums[VL];
  store(sums, sum_lanes_of(acc));
#pragma GCC unroll 16
  for (int i = 0; i < VL; i += KR) __builtin_memcpy(s + i / KR * DK, sums + i, sizeof(float) * KR);
}

// o[r] += sum of p[r][j] v_j for RM rows, NC vectors of columns and N keys (0: n keys).
template <class T, int RM, int NC, int N>
RA_INLINE void value_columns(const float* w, const char* v, int64_t v_row, int64_t n, float* o, int64_t ldo,
                             Ahead& ahead) {
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
    for (int64_t j = 0; j < n; j += 2, v += 2 * v_row) {
      ahead.fetch<NC * VL * 4>();
      const char* odd = j + 1 < n ? v + v_row : v;  // its weight is 0 where there is none
      vf x[NC];
#pragma GCC unroll 4
      for (int c = 0; c < NC; c += 2) {
        const __m512i a = (__m512i)load((const float*)v + c * VL / 2);
        const __m512i b = (__m512i)load((const float*)odd + c * VL / 2);
        x[c] = (vf)_mm512_permutex2var_epi16(a, low, b);
        x[c + 1] = (vf)_mm512_permutex2var_epi16(a, high, b);
      }
#pragma GCC unroll 4
      for (int r = 0; r < RM; r++)
#pragma GCC unroll 8
        for (int c = 0; c < NC; c++) acc[r][c] = pair_madd(set1(w[r * DK + j / 2]), x[c], acc[r][c]);
    }
  } else
#endif
    for (int64_t j = 0; j < n; j++, v += v_row) {
      ahead.fetch<NC * VL * T::bytes>();
      vf x[NC];
#pragma GCC unroll 8
      for (int c = 0; c < NC; c++) x[c] = T::get_vector(v, c * VL);
#pragma GCC unroll 4
      for (int r = 0; r < RM; r++)
#pragma GCC unroll 8
        for (int c = 0; c < NC; c++) acc[r][c] = fma(set1(w[r * DK + j]), x[c], acc[r][c]);
    }
#pragma GCC unroll 4
  for (int r = 0; r < RM; r++)
#pragma GCC unroll 8
    for (int c = 0; c < NC; c++) store(o + r * ldo + c * VL, acc[r][c]);
}

template <class T, int RM, int N>
RA_INLINE void value_block(const float* w, const char* v, int64_t v_row, int64_t n, float* o, int64_t ldo,
                           Ahead& ahead) {
  constexpr int step = Same<T, Pairs>::value ? 2 : 1;
  constexpr int wide = RM <= 2 && VL == 16 ? 8 : 4;
  for (int64_t columns = ldo / VL; columns > 0;) {
    const int64_t take = columns >= wide ? wide : columns >= 4 ? 4 : step;
    if (take == wide) value_columns<T, RM, wide, N>(w, v, v_row, n, o, ldo, ahead);
    else if (take == 4) value_columns<T, RM, 4, N>(w, v, v_row, n, o, ldo, ahead);
    else value_columns<T, RM, step, N>(w, v, v_row, n, o, ldo, ahead);
    columns -= take, v += take * VL * T::bytes, o += take * VL;
  }
}

// The same where a hidden key's V row is inf or NaN: a weight of 0 contributes nothing.
template <class T>
static void value_hidden(const float* w, const char* v, int64_t v_row, int64_t n, float* o, int64_t ldo, int64_t rows) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t d = 0; d < ldo; d += VL) {
      vf acc{};
      for (int64_t j = 0; j < n; j++)
        if (w[r * DK + j] != 0) acc = fma(set1(w[r * DK + j]), T::get_vector(v + j * v_row, d), acc);
      store(o + r * ldo + d, load(o + r * ldo + d) + acc);
    }
}

}  // namespace rocattn
