// The one SIMD abstraction: vectors of VL floats (16 on AVX-512, 8 on AVX2 + FMA, 4 elsewhere, NEON included).
//
// Everything else is written against vf / vi and the functions here, on the vector extensions that gcc and clang share;
// intrinsics appear only where the compilers do not find the instruction. PV is the register columns of a tile: with
// MR = 6 rows, 6 x PV accumulators + PV + 1 operands fit the register file (AVX-512 29 of 32, AVX2 15 of 16).
#pragma once
#include <stdint.h>
#if defined(__AVX2__) || defined(__SSE2__)
// GCC's immintrin.h includes mm_malloc.h, whose <stdlib.h> has no malloc in freestanding C++ since GCC 13.
#define _MM_MALLOC_H_INCLUDED
#include <immintrin.h>
#endif
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define RA_INLINE static inline __attribute__((always_inline))
#define RA_NOINLINE static __attribute__((noinline))

namespace rocattn {

#if defined(__AVX512F__)
constexpr int VL = 16, PV = 4;
#elif defined(__AVX2__)
constexpr int VL = 8, PV = 2;
#elif defined(__aarch64__)
constexpr int VL = 4, PV = 4;
#else
constexpr int VL = 4, PV = 2;
#endif
constexpr int PW = VL * PV;  // queries of a panel

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef float vf_any __attribute__((vector_size(VL * 4), aligned(1), may_alias));
typedef int32_t vi_any __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef uint16_t vh_any __attribute__((vector_size(VL * 2), aligned(1), may_alias));
typedef uint16_t vh __attribute__((vector_size(VL * 2)));
typedef uint8_t vb_any __attribute__((vector_size(VL), aligned(1), may_alias));
typedef uint32_t u32_any __attribute__((aligned(1), may_alias));

constexpr float kInf = __builtin_inff();
constexpr float kLog2e = 1.44269504088896340736f;
constexpr double kLn2 = 0.69314718055994530942, kLog2eDouble = 1.44269504088896340736;
constexpr float kMaxFloat = 3.402823466e38f;

RA_INLINE vf set1(float x) { return x - vf{}; }  // 0 + x is not x for -0: an addition would stay
RA_INLINE vf load(const float* p) { return *(const vf_any*)p; }
RA_INLINE void store(float* p, vf x) { *(vf_any*)p = x; }
#if defined(__AVX512F__)
// Past the caches, a whole line: p is a multiple of 64. Such stores are not ordered with others: end_streams.
RA_INLINE void stream(float* p, vf x) { _mm512_stream_ps(p, (__m512)x); }
RA_INLINE void end_streams() { _mm_sfence(); }
#else
RA_INLINE void stream(float* p, vf x) { store(p, x); }
RA_INLINE void end_streams() {}
#endif
RA_INLINE vi loadi(const int32_t* p) { return *(const vi_any*)p; }
RA_INLINE void storei(int32_t* p, vi x) { *(vi_any*)p = x; }
RA_INLINE vf select(vi m, vf a, vf b) { return m ? a : b; }
RA_INLINE vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}
// a > b ? a : b, so that a NaN in a gives b.
RA_INLINE vf vmax(vf a, vf b) {
#if defined(__AVX512F__)
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}
RA_INLINE bool any_greater(vf a, vf b) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ)) != 0;
#else
  vi m = a > b;
  int32_t any = 0;
  for (int i = 0; i < VL; i++) any |= m[i];
  return any != 0;
#endif
}

// 2^x: a polynomial on [0, 1) times 2^floor(x). Degree 6 is exact to 2e-9, so that the result is to about 1 ulp; degree
// 5 to 8e-8, for weights that become 16-bit, whose sum the LSE shows (degree 4, 3e-6, would be seen there). x <= 128;
// below -126 and of -inf it is exactly 0, NaN is kept.
template <int DEGREE>
RA_INLINE vf exp2_polynomial(vf f) {
  if (DEGREE == 5) {
    vf p = fma(set1(0.00187757669f), f, set1(0.00898934063f));
    p = fma(p, f, set1(0.0558263175f));
    p = fma(p, f, set1(0.240153611f));
    p = fma(p, f, set1(0.693153083f));
    return fma(p, f, set1(0.99999994f));
  }
  vf p = fma(set1(2.1702255e-4f), f, set1(1.2439688e-3f));
  p = fma(p, f, set1(9.6788410e-3f));
  p = fma(p, f, set1(5.5483342e-2f));
  p = fma(p, f, set1(2.4022983e-1f));
  p = fma(p, f, set1(6.9314700e-1f));
  return fma(p, f, set1(1.0f));
}
RA_INLINE vf exp2v(vf x) {
#if defined(__AVX512DQ__)
  // Left out, not computed: a subnormal result takes Intel's cores 150 cycles, and what is hidden would give one.
  const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  const vf p = exp2_polynomial<6>((vf)_mm512_reduce_ps((__m512)x, 1));
  return (vf)_mm512_maskz_scalef_ps(normal, (__m512)p, (__m512)x);
#else
  x = x < set1(-127.0f) ? set1(-127.0f) : x;
  x = x > set1(128.0f) ? set1(128.0f) : x;
  vi n = __builtin_convertvector(x, vi);
  n += (vi)(__builtin_convertvector(n, vf) > x);  // truncation to floor: true is -1
  const vf p = exp2_polynomial<6>(x - __builtin_convertvector(n, vf));
  return p * (vf)((n + 127) << 23);
#endif
}
RA_INLINE float exp2s(float x) { return exp2v(set1(x))[0]; }

#if defined(__AVX512DQ__)
// Subnormal results are 0 in this scope: they take Intel's cores 150 cycles, and below 2^-126 a weight is 0.
struct FlushToZero {
  const unsigned before = _mm_getcsr();
  FlushToZero() { _mm_setcsr(before | _MM_FLUSH_ZERO_ON); }
  ~FlushToZero() { _mm_setcsr(before); }
  FlushToZero(const FlushToZero&) = delete;
};
// exp2v in that scope: nothing is compared.
template <int DEGREE>
RA_INLINE vf exp2_flushed(vf x) {
  const vf p = exp2_polynomial<DEGREE>((vf)_mm512_reduce_ps((__m512)x, 1));  // x - floor(x)
  return (vf)_mm512_scalef_ps((__m512)p, (__m512)x);
}
#else
struct FlushToZero {};
template <int>
RA_INLINE vf exp2_flushed(vf x) { return exp2v(x); }
#endif

// tanh to about 1 ulp: Cephes' odd polynomial below 0.625, 1 - 2 / (e^2x + 1) above.
RA_INLINE vf tanhv(vf x) {
  const vf magnitude = x < vf{} ? -x : x, s = x * x;
  vf p = fma(set1(-5.70498872745e-3f), s, set1(2.06390887954e-2f));
  p = fma(p, s, set1(-5.37397155531e-2f));
  p = fma(p, s, set1(1.33314422036e-1f));
  p = fma(p, s, set1(-3.33332819422e-1f));
  p = fma(p * s, x, x);
  vf e = exp2v(magnitude * (2 * kLog2e) > set1(64.0f) ? set1(64.0f) : magnitude * (2 * kLog2e));
  vf far = 1.0f - 2.0f / (e + 1.0f);
  far = x < vf{} ? -far : far;
  return magnitude < set1(0.625f) ? p : (x == x ? far : x);
}

// Natural logarithm of a positive finite float (subnormals included): atanh series on [1/sqrt2, sqrt2).
RA_INLINE double log_positive(float x) {
  union { double d; uint64_t u; } bits = {(double)x};
  int64_t e = (int64_t)((bits.u - 0x3fe6a09e667f3bcdULL) >> 52);
  e = (e << 52) >> 52;  // the difference may be negative
  bits.u -= (uint64_t)e << 52;
  double t = (bits.d - 1) / (bits.d + 1), s = t * t;
  double series = 1 + s * (1.0 / 3 + s * (1.0 / 5 + s * (1.0 / 7 + s * (1.0 / 9 + s * (1.0 / 11 + s * (1.0 / 13))))));
  return (double)e * kLn2 + 2 * t * series;
}

// ---- 16-bit storage ----
RA_INLINE vf widen_bf16(vh h) { return (vf)(__builtin_convertvector(h, vu) << 16); }
RA_INLINE float bf16_to_float(uint16_t h) {
  union { uint32_t u; float f; } b = {(uint32_t)h << 16};
  return b.f;
}
RA_INLINE uint16_t float_to_bf16(float x) {
  union { float f; uint32_t u; } b = {x};
  if ((b.u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((b.u >> 16) | 0x40);
  return (uint16_t)((b.u + 0x7fffu + ((b.u >> 16) & 1)) >> 16);
}
RA_INLINE float half_to_float(uint16_t h) {
#if defined(__F16C__)
  return _cvtsh_ss(h);
#else
  union { uint32_t u; float f; } b;
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00) b.u = sign | 0x7f800000u | (rest & 0x3ff) << 13 | (rest > 0x7c00 ? 0x400000u : 0);
  else if (rest >= 0x400) b.u = sign | ((rest << 13) + (112u << 23));
  else { b.f = (float)rest * 0x1p-24f; b.u |= sign; }
  return b.f;
#endif
}
RA_INLINE uint16_t float_to_half(float x) {
#if defined(__F16C__)
  return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
  union { float f; uint32_t u; } b = {x};
  uint32_t sign = b.u >> 16 & 0x8000, rest = b.u & 0x7fffffff;
  if (rest > 0x7f800000u) return (uint16_t)(sign | 0x7e00);
  if (rest >= 0x477ff000u) return (uint16_t)(sign | 0x7c00);
  if (rest < 0x38800000u) {  // subnormal: the addition rounds to the nearest multiple of 2^-24
    b.u = rest;
    b.f += 0.5f;
    return (uint16_t)(sign | (b.u - 0x3f000000u));
  }
  return (uint16_t)(sign | ((rest - (112u << 23) + 0xfff + ((rest >> 13) & 1)) >> 13));
#endif
}
RA_INLINE vf widen_half(vh h) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
  return (vf)_mm256_cvtph_ps((__m128i)h);
#elif defined(__aarch64__)
  return (vf)vcvt_f32_f16(vreinterpret_f16_u16((uint16x4_t)h));
#else
  vf r{};
  for (int i = 0; i < VL; i++) r[i] = half_to_float(h[i]);
  return r;
#endif
}

// A storage type: how elements of q, k, v, o and floating masks are read and written.
struct F32 {
  static constexpr int bytes = 4;
  RA_INLINE float get(const void* p, int64_t i) { return ((const float*)p)[i]; }
  RA_INLINE void put(void* p, int64_t i, float x) { ((float*)p)[i] = x; }
  RA_INLINE vf get_vector(const void* p, int64_t i) { return load((const float*)p + i); }
  RA_INLINE void put_vector(void* p, int64_t i, vf x) { store((float*)p + i, x); }
};
struct F16 {
  static constexpr int bytes = 2;
  RA_INLINE float get(const void* p, int64_t i) { return half_to_float(((const uint16_t*)p)[i]); }
  RA_INLINE void put(void* p, int64_t i, float x) { ((uint16_t*)p)[i] = float_to_half(x); }
  RA_INLINE vf get_vector(const void* p, int64_t i) { return widen_half(*(const vh_any*)((const uint16_t*)p + i)); }
  RA_INLINE void put_vector(void* p, int64_t i, vf x) {
#if defined(__AVX512F__)
    *(vh_any*)((uint16_t*)p + i) = (vh)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
    *(vh_any*)((uint16_t*)p + i) = (vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#else
    for (int j = 0; j < VL; j++) put(p, i + j, x[j]);
#endif
  }
};
struct BF16 {
  static constexpr int bytes = 2;
  RA_INLINE float get(const void* p, int64_t i) { return bf16_to_float(((const uint16_t*)p)[i]); }
  RA_INLINE void put(void* p, int64_t i, float x) { ((uint16_t*)p)[i] = float_to_bf16(x); }
  RA_INLINE vf get_vector(const void* p, int64_t i) { return widen_bf16(*(const vh_any*)((const uint16_t*)p + i)); }
  RA_INLINE vu round(vf x) {
    vu u = (vu)x;
    vu rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
    vi nan = (vi)(x != x);
    return nan ? ((u >> 16) | 0x40u) : rounded;
  }
  RA_INLINE void put_vector(void* p, int64_t i, vf x) {
    *(vh_any*)((uint16_t*)p + i) = __builtin_convertvector(round(x), vh);
  }
};
#if defined(__AVX512BF16__)
// Elements of two vectors, rounded to bf16, side by side: (first[i], second[i]). Subnormals become 0.
RA_INLINE vu pair_bf16(vf first, vf second) {
  const __m512i order = (__m512i)(__attribute__((vector_size(64))) short){
      0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return (vu)_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
}
RA_INLINE bool any_subnormal(vf x) { return _mm512_fpclass_ps_mask((__m512)x, 0x20) != 0; }
#endif

// ---- shuffles ----
#if defined(__AVX512F__)
#define RA_INTERLEAVE_LO 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define RA_INTERLEAVE_HI 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define RA_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define RA_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif defined(__AVX2__)
#define RA_INTERLEAVE_LO 0, 8, 1, 9, 2, 10, 3, 11
#define RA_INTERLEAVE_HI 4, 12, 5, 13, 6, 14, 7, 15
#define RA_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define RA_ODD 1, 3, 5, 7, 9, 11, 13, 15
#else
#define RA_INTERLEAVE_LO 0, 4, 1, 5
#define RA_INTERLEAVE_HI 2, 6, 3, 7
#define RA_EVEN 0, 2, 4, 6
#define RA_ODD 1, 3, 5, 7
#endif
// Transposes a VL x VL block held in registers: log2(VL) perfect shuffles.
RA_INLINE void transpose(vf* r) {
#pragma GCC unroll 4
  for (int step = 1; step < VL; step *= 2) {
    vf t[VL];
#pragma GCC unroll 16
    for (int i = 0; i < VL / 2; i++) {
      t[2 * i] = __builtin_shufflevector(r[i], r[i + VL / 2], RA_INTERLEAVE_LO);
      t[2 * i + 1] = __builtin_shufflevector(r[i], r[i + VL / 2], RA_INTERLEAVE_HI);
    }
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++) r[i] = t[i];
  }
}
// Lane i of the result is the sum of r[i]'s lanes; r is overwritten.
RA_INLINE vf sum_each(vf* r) {
#pragma GCC unroll 4
  for (int n = VL / 2; n >= 1; n /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
      r[i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], RA_EVEN) +
             __builtin_shufflevector(r[2 * i], r[2 * i + 1], RA_ODD);
  return r[0];
}
RA_INLINE float sum_lanes(vf x) {
  float s = 0;
  for (int i = 0; i < VL; i++) s += x[i];
  return s;
}

template <class A, class B> struct Same { static constexpr bool value = false; };
template <class A> struct Same<A, A> { static constexpr bool value = true; };
template <class T> RA_INLINE constexpr T min2(T a, T b) { return a < b ? a : b; }
template <class T> RA_INLINE constexpr T max2(T a, T b) { return a > b ? a : b; }
RA_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
RA_INLINE int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace rocattn
