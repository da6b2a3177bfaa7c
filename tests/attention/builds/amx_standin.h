// Intel's matrix unit (AMX, bf16) in AVX-512, for machines without one: put before the kernels by the compiler's
// -include (see sanitized.py). What the unit does: Intel's instruction set reference, TDPBF16PS. Sums of
// even and odd elements apart, subnormal numbers as 0; slow, and seen by sanitizers, which the real loads are not.
#pragma once
#include "../../../kernels/cpu/simd.h"  // immintrin.h as each compiler takes it

#define RA_UNIT_FOR_ALL_FEATURES  // the tests' problems are small

namespace amx_standin {

struct Unit {
  __m512i row[8][16];
  bool ready;
};
inline __thread Unit unit;

// Only the one shape that the kernels use: eight tiles of 16 rows of 64 bytes.
inline void configure(const void* shape) {
  const unsigned char* byte = (const unsigned char*)shape;
  unit.ready = byte[0] == 1 && byte[1] == 0;
  for (int i = 0; i < 8; i++) unit.ready &= byte[16 + 2 * i] == 64 && byte[17 + 2 * i] == 0 && byte[48 + i] == 16;
}
inline void release() { unit.ready = false; }
inline void check() {
  if (!unit.ready) __builtin_trap();  // the unit faults
}
inline void zero(int tile) {
  check();
  for (auto& row : unit.row[tile]) row = __m512i{};
}
inline void load(int tile, const void* from, long stride) {
  check();
  for (int i = 0; i < 16; i++) unit.row[tile][i] = _mm512_loadu_si512((const char*)from + i * stride);
}
inline void store(int tile, void* to, long stride) {
  check();
  for (int i = 0; i < 16; i++) _mm512_storeu_si512((char*)to + i * stride, unit.row[tile][i]);
}
inline __m512 normal(__m512 x) {
  return _mm512_maskz_mov_ps(~_mm512_fpclass_ps_mask(x, 0x20), x);
}
inline __m512 even(__m512i pairs) { return normal((__m512)_mm512_slli_epi32(pairs, 16)); }
inline __m512 odd(__m512i pairs) {
  return normal((__m512)_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
}
inline void multiply(int to, int left, int right) {
  check();
  for (int i = 0; i < 16; i++) {
    __m512 sums[2] = {};
    for (int k = 0; k < 16; k++) {
      const __m512i a = _mm512_set1_epi32(((const int*)&unit.row[left][i])[k]), b = unit.row[right][k];
      sums[0] = _mm512_fmadd_ps(even(a), even(b), sums[0]);
      sums[1] = _mm512_fmadd_ps(odd(a), odd(b), sums[1]);
    }
    const __m512 sum = normal(_mm512_add_ps(normal(sums[0]), normal(sums[1])));
    unit.row[to][i] = (__m512i)normal(_mm512_add_ps(normal((__m512)unit.row[to][i]), sum));
  }
}

}  // namespace amx_standin

#undef _tile_dpbf16ps
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#define _tile_loadconfig amx_standin::configure
#define _tile_release amx_standin::release
#define _tile_zero amx_standin::zero
#define _tile_loadd amx_standin::load
#define _tile_stored amx_standin::store
#define _tile_dpbf16ps amx_standin::multiply

// The process may use it unless AMX_REFUSED is set: the answer to arch_prctl (158); all other calls are the kernel's.
extern "C" char* getenv(const char*);
extern "C" long real_syscall(long, ...) __asm__("syscall");
extern "C" __attribute__((weak)) long syscall_with_amx(long number, ...) {
  __builtin_va_list list;
  __builtin_va_start(list, number);
  long given[6];
  for (long& one : given) one = __builtin_va_arg(list, long);
  __builtin_va_end(list);
  if (number == 158) return getenv("AMX_REFUSED") ? -1 : 0;
  return real_syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
#define syscall syscall_with_amx
