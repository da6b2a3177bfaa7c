// The register tile that all products share: C[MR x NC vectors] (+)= A[MR x K] B[K x NC vectors].
//
// A is read one scalar at a time and broadcast, so it may have any strides: rows of K as the caller stores them, a
// column of V, a transposed P. B and C are panels of whole vectors. Per step of K the 6 x 4 tile of AVX-512 does 24
// FMAs on 10 loads: the FMA pipes are the limit, not the load ports (12 against 5 cycles on Zen 5), and 24
// independent sums hide the FMA latency. Measured in registers and L1: 95 % of the FMA peak at K = 128 (benchmarks:
// share of FMA peak).
#pragma once
#include "simd.h"

namespace rocattn {

// fp32 operands.
struct Fp32Op {
  RA_INLINE vf broadcast(const char* a) { return set1(*(const float*)a); }
  RA_INLINE vf madd(vf a, vf b, vf c) { return fma(a, b, c); }
};
#if defined(__AVX512BF16__)
// Pairs of bf16 along K in each 32-bit element: two products a lane and instruction, summed in fp32.
struct PairOp {
  RA_INLINE vf broadcast(const char* a) { return (vf)(vu{} + *(const u32_any*)a); }
  RA_INLINE vf madd(vf a, vf b, vf c) {
    return (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)(__m512)a, (__m512bh)(__m512)b);
  }
};
#endif

// A tile starts from 0 and is added to C at its end: sums over many keys stay sums of short sums, as in blocked BLAS.
// a_row, a_k: bytes between A's rows and between its steps of K; UnitRow: a_row is 4.
template <class Op, int MR, int NC, bool Accumulate, bool UnitRow>
RA_NOINLINE void tile(const char* a, int64_t a_row, int64_t a_k, const float* b, int64_t ldb, float* c, int64_t ldc,
                      int64_t K) {
  vf acc[MR][NC];
#pragma GCC unroll 12
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NC; j++) acc[i][j] = vf{};
#pragma GCC unroll 2
  for (int64_t k = 0; k < K; k++) {
    vf column[NC];
#pragma GCC unroll 4
    for (int j = 0; j < NC; j++) column[j] = load(b + j * VL);
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++) {
      vf x = Op::broadcast(a + (UnitRow ? i * 4 : i * a_row));
#pragma GCC unroll 4
      for (int j = 0; j < NC; j++) acc[i][j] = Op::madd(x, column[j], acc[i][j]);
    }
    a += a_k;
    b += ldb;
  }
#pragma GCC unroll 12
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NC; j++)
      store(c + i * ldc + j * VL, Accumulate ? load(c + i * ldc + j * VL) + acc[i][j] : acc[i][j]);
}

// One column panel of NC vectors, all M rows.
template <class Op, int NC, bool Accumulate, bool UnitRow>
static void column_panel(const void* a, int64_t a_row, int64_t a_k, const float* b, int64_t ldb, float* c, int64_t ldc,
                         int64_t M, int64_t K) {
  const char* p = (const char*)a;
  const int64_t step = UnitRow ? 4 : a_row;
#define RA_ROWS(MR)                                                                      \
  (tile<Op, MR, NC, Accumulate, UnitRow>(p, a_row, a_k, b, ldb, c, ldc, K), p += MR * step, \
   c += MR * ldc, M -= MR)
  while (M >= 6 && M != 8) RA_ROWS(6);  // 8 is 4 + 4: a 6 x 4 and a slow 2 x 4 would take longer
  if (M >= 8) RA_ROWS(4);
  if (M >= 4) RA_ROWS(4);
  if (M >= 2) RA_ROWS(2);
  if (M >= 1) RA_ROWS(1);
#undef RA_ROWS
}

// The same, C = A B, summed in short parts: the error of a score grows with its partial sums, and the softmax shows it.
// What is hardly longer than a part stays one sum: adding the rest would cost more exactness than it brings. Parts of
// 16 make the errors of `rocattn verify` 2 % smaller on average, the largest no smaller, and the forward pass 2 to 4 %
// slower (Zen 4).
constexpr int64_t kShortSum = 32;
RA_INLINE int64_t short_sum(int64_t K) {
  return K <= kShortSum + kShortSum / 2 ? max2<int64_t>(K, 1) : kShortSum;
}
template <class Op, int NC>
static void column_panel_short(const char* a, int64_t a_row, const float* b, int64_t ldb, float* c, int64_t ldc,
                               int64_t M, int64_t K) {
  const int64_t length = short_sum(K);
  column_panel<Op, NC, false, false>(a, a_row, 4, b, ldb, c, ldc, M, min2(K, length));
  for (int64_t k = length; k < K; k += length)
    column_panel<Op, NC, true, false>(a + k * 4, a_row, 4, b + k * ldb, ldb, c, ldc, M, min2(K - k, length));
}

// C[M x columns vectors] (+)= A[M x K] B[K x columns vectors], in column panels of at most PV vectors, evenly cut.
template <class Op, bool Accumulate, bool UnitRow>
static void product(const void* a, int64_t a_row, int64_t a_k, const float* b, int64_t ldb, float* c, int64_t ldc,
                    int64_t M, int64_t columns, int64_t K) {
  while (columns > 0) {
    int64_t panels = ceil_div(columns, PV), n = ceil_div(columns, panels);
    switch (n) {
      case 1: column_panel<Op, 1, Accumulate, UnitRow>(a, a_row, a_k, b, ldb, c, ldc, M, K); break;
      case 2: column_panel<Op, 2, Accumulate, UnitRow>(a, a_row, a_k, b, ldb, c, ldc, M, K); break;
#if defined(__AVX512F__) || defined(__aarch64__)
      case 3: column_panel<Op, 3, Accumulate, UnitRow>(a, a_row, a_k, b, ldb, c, ldc, M, K); break;
      case 4: column_panel<Op, 4, Accumulate, UnitRow>(a, a_row, a_k, b, ldb, c, ldc, M, K); break;
#endif
    }
    b += n * VL, c += n * VL, columns -= n;
  }
}

// C = A B in column panels, in short parts if asked.
template <class Op>
static void product_short(const void* a, int64_t a_row, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t M,
                          int64_t columns, int64_t K, bool parts) {
  const int64_t length = parts ? short_sum(K) : max2<int64_t>(K, 1);
  product<Op, false, false>(a, a_row, 4, b, ldb, c, ldc, M, columns, min2(K, length));
  for (int64_t k = length; k < K; k += length)
    product<Op, true, false>((const char*)a + k * 4, a_row, 4, b + k * ldb, ldb, c, ldc, M, columns,
                             min2(K - k, length));
}

// C[M x columns vectors] += A B where hidden entries of A are 0 and B may hold NaN or inf: a 0 in A contributes
// nothing.
template <bool UnitRow>
static void product_hidden(const void* a, int64_t a_row, int64_t a_k, const float* b, int64_t ldb, float* c,
                           int64_t ldc, int64_t M, int64_t columns, int64_t K) {
  for (int64_t i = 0; i < M; i++)
    for (int64_t k = 0; k < K; k++) {
      float x = *(const float*)((const char*)a + i * (UnitRow ? 4 : a_row) + k * a_k);
      if (x == 0) continue;
      for (int64_t j = 0; j < columns; j++)
        store(c + i * ldc + j * VL, fma(set1(x), load(b + k * ldb + j * VL), load(c + i * ldc + j * VL)));
    }
}

}  // namespace rocattn
