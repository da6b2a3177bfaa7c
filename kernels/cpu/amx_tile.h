// Products in the matrix unit of Intel's Xeons (AMX): bf16 tiles of 16 x 32, sums in fp32.
//
// Every operand is a sum of 1 (bf16), 2 (fp16) or 3 (fp32) bf16 numbers, its parts, each rounded from what the ones
// before it left: fp16 and fp32 are represented exactly. A product is the sum of the products of parts that matter at
// the result's precision: 4 and 3 of fp16 (scores, values), 6 of fp32, whose missing ones are below 2^-26 of |a| |b|.
// The unit does 16 times the multiply-adds of two 512-bit pipes, so even six of them pay. Measured on a Xeon (3.5 GHz):
// a product of tiles takes 16 cycles; the first one after 1000 idle cycles 950; while the unit works, the vector pipes
// do half as much, so mixing both gains nothing.
//
// The unit reads subnormal parts as 0, and parts of inf or of the largest floats are NaN or inf: whoever has such
// elements (ordinary() says no) takes the vectors.
#pragma once
#include "problem.h"

#if defined(__AMX_BF16__)
namespace rocattn {
namespace amx {

constexpr int64_t kStep = 32;  // summed elements of a tile product
constexpr int64_t kRows = 16;
constexpr int64_t kTile = 256;  // floats of a tile
constexpr uint32_t kHigh = 0xffff0000u;

template <class T> constexpr int kParts = T::bytes == 4 ? 3 : Same<T, F16>::value ? 2 : 1;

bool allowed();  // by the kernel, for this process; asked once

typedef uint16_t halves __attribute__((vector_size(VL * 4)));

// The unit's registers for one thread, from here to the end of a scope.
struct Tiles {
  const bool used;
  explicit Tiles(bool use) : used(use) {
    if (!used) return;
    struct alignas(64) {
      uint8_t palette, start, reserved[14];
      uint16_t bytes[16];
      uint8_t rows[16];
    } shape = {};
    shape.palette = 1;
    for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = kRows;
    _tile_loadconfig(&shape);
  }
  ~Tiles() {
    if (used) _tile_release();
  }
  Tiles(const Tiles&) = delete;
};

// Parts of a matrix in tiles of 16 x 64 bytes, each contiguous; all distances in bytes.
struct Operand {
  const char* data;
  int64_t next, step, part;  // from a tile to its neighbour across the sum, along it, to the same tile of the next part
};

// Which parts are multiplied, A's part a[i] with B's part b[i]: all with a + b <= DEPTH. Neighbours share one, which
// stays in its registers.
template <int PA, int PB, int DEPTH> struct Pairs;
template <> struct Pairs<1, 1, 0> {
  static constexpr int n = 1, a[] = {0}, b[] = {0};
};
template <> struct Pairs<1, 2, 1> {
  static constexpr int n = 2, a[] = {0, 0}, b[] = {1, 0};
};
template <> struct Pairs<2, 1, 1> {
  static constexpr int n = 2, a[] = {1, 0}, b[] = {0, 0};
};
template <> struct Pairs<2, 2, 1> {
  static constexpr int n = 3, a[] = {1, 0, 0}, b[] = {0, 0, 1};
};
template <> struct Pairs<2, 2, 2> {
  static constexpr int n = 4, a[] = {0, 1, 1, 0}, b[] = {1, 1, 0, 0};
};
template <> struct Pairs<3, 3, 2> {
  static constexpr int n = 6, a[] = {2, 1, 1, 0, 0, 0}, b[] = {0, 0, 1, 1, 2, 0};
};

// C (+)= A B in blocks of 32 x 32: rows and columns count those, steps the 32 elements along the sum; ld is in floats.
template <class Which, bool Accumulate>
RA_INLINE void product(Operand a, Operand b, int64_t steps, float* c, int64_t ld, int64_t rows,
                       int64_t columns) {
  for (int64_t i = 0; i < rows; i++, a.data += 2 * a.next)
    for (int64_t j = 0; j < columns; j++) {
      float* at = c + i * 32 * ld + j * 32;
      if (Accumulate) {
        _tile_loadd(0, at, ld * 4);
        _tile_loadd(1, at + 16, ld * 4);
        _tile_loadd(2, at + 16 * ld, ld * 4);
        _tile_loadd(3, at + 16 * ld + 16, ld * 4);
      } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      }
      const char *left = a.data, *right = b.data + 2 * j * b.next;
      for (int64_t k = 0; k < steps; k++, left += a.step, right += b.step)
#pragma GCC unroll 6
        for (int n = 0; n < Which::n; n++) {
          const char *x = left + Which::a[n] * a.part, *y = right + Which::b[n] * b.part;
          const bool new_a = n == 0 || Which::a[n] != Which::a[n - 1], new_b = n == 0 || Which::b[n] != Which::b[n - 1];
          if (new_b) _tile_loadd(6, y, 64);
          if (new_a) _tile_loadd(4, x, 64);
          _tile_dpbf16ps(0, 4, 6);
          if (new_b) _tile_loadd(7, y + b.next, 64);
          _tile_dpbf16ps(1, 4, 7);
          if (new_a) _tile_loadd(5, x + a.next, 64);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      _tile_stored(0, at, ld * 4);
      _tile_stored(1, at + 16, ld * 4);
      _tile_stored(2, at + 16 * ld, ld * 4);
      _tile_stored(3, at + 16 * ld + 16, ld * 4);
    }
}

// ---- parts ----

// Whether elements are 0 or so far from overflow and underflow that their parts and products are exact: by the largest
// magnitude - 1 and the smallest, where that of 0 is the largest of all numbers.
template <class Vector, int BITS>
struct Extent {
  static constexpr uint32_t kLeast = (127u - 100) << (BITS - 9), kMost = (127u + 126) << (BITS - 9);
  Vector most{}, least = Vector{} - 1;

  __attribute__((always_inline)) Vector add_most(Vector x) {
    x &= (1u << (BITS - 1)) - 1;
    most = x > most ? x : most;
    return x;
  }
  __attribute__((always_inline)) void add(Vector x) {
    x = add_most(x) - 1;
    least = x < least ? x : least;
  }
  bool within(uint32_t smallest) const {
    bool good = true;
    for (unsigned i = 0; i < sizeof(Vector) * 8 / BITS; i++) good &= most[i] < kMost && least[i] >= smallest;
    return good;
  }
};
struct Extents {
  Extent<vu, 32> floats;
  Extent<halves, 16> bf16;
  bool ordinary() const { return floats.within(floats.kLeast - 1) && bf16.within(bf16.kLeast - 1); }
  bool not_huge() const { return floats.within(0) && bf16.within(0); }  // where tiny ones count as nothing
};

// Cuts PARTS parts off x, as bf16 in the upper halves.
template <int PARTS, bool ROUND = true>
RA_INLINE void cut(vf x, vu* parts) {
#pragma GCC unroll 3
  for (int p = 0; p < PARTS; p++) {
    // Half away from zero: what is left is as often above as below. The last part has no more bits than fit.
    parts[p] = (ROUND ? (vu)x + 0x8000u : (vu)x) & kHigh;
    x -= (vf)parts[p];
  }
}
RA_INLINE vu pair(vu even, vu odd) { return odd | even >> 16; }

// The same for elements of T times a factor, with a look at their extent.
template <class T, int PARTS>
RA_INLINE void cut_elements(vf x, Factor factor, vu* parts, Extents& extents) {
  if constexpr (Same<T, F16>::value && PARTS == 2) {
    // 11 bits are 8 and 3, none is too small, and the factor is a sign.
    if (factor.high != 1) x *= factor.high;
    extents.floats.add_most((vu)x);
    parts[0] = (vu)x & kHigh, parts[1] = (vu)(x - (vf)parts[0]);
  } else {
    if (factor.high != 1 || factor.low != 0) x = x * factor;
    extents.floats.add((vu)x);
    cut<PARTS>(x, parts);
  }
}

template <class T>
RA_INLINE vf get_padded(const void* p, int64_t i, int64_t n) {
  if (i + VL <= n) return T::get_vector(p, i);
  vf x{};
  for (int64_t e = i; e < n; e++) x[e - i] = T::get(p, e);
  return x;
}

// 32 elements from d on, padded with zeros, times a factor -> a row of 32 bf16 for each part.
template <class T, int PARTS>
RA_INLINE void cut_row(const char* row, int64_t d, int64_t D, Factor factor, vf* parts, Extents& extents) {
  if (PARTS == 1 && Same<T, BF16>::value && factor.high == 1 && d + kStep <= D) {
    parts[0] = load((const float*)(row + d * 2));
    return extents.bf16.add((halves)parts[0]);
  }
  vu low[PARTS], high[PARTS];
  cut_elements<T, PARTS>(get_padded<T>(row, d, D), factor, low, extents);
  cut_elements<T, PARTS>(get_padded<T>(row, d + VL, D), factor, high, extents);
#pragma GCC unroll 3
  for (int p = 0; p < PARTS; p++)
    parts[p] = (vf)__builtin_shufflevector((halves)low[p], (halves)high[p], 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23,
                                           25, 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61,
                                           63);
}

// Elements of two rows in pairs, 16 from d on, for each part.
template <class T, int PARTS>
RA_INLINE void cut_pairs(const char* even, const char* odd, int64_t d, int64_t D, vf* parts, Extents& extents) {
  if (PARTS == 1 && Same<T, BF16>::value && d + VL <= D) {
    const vh low = *(const vh_any*)(even + d * 2), high = *(const vh_any*)(odd + d * 2);
    const vu both = __builtin_convertvector(low, vu) | __builtin_convertvector(high, vu) << 16;
    parts[0] = (vf)both;
    return extents.bf16.add((halves)both);
  }
  vu low[PARTS], high[PARTS];
  cut_elements<T, PARTS>(get_padded<T>(even, d, D), {1, 0}, low, extents);
  cut_elements<T, PARTS>(get_padded<T>(odd, d, D), {1, 0}, high, extents);
#pragma GCC unroll 3
  for (int p = 0; p < PARTS; p++) parts[p] = (vf)pair(low[p], high[p]);
}

// What a product takes from rows of n elements: parts of C = A B's operands in tiles, `part` floats from part to part.
// Missing rows and elements are 0 up to whole tiles. All return whether the parts stand for the elements.

// B = X^T: parts[step of 32 elements][16 rows][pair of elements][row]; rows are given by pointers, times a factor.
template <class T, int PARTS = kParts<T>>
static Extents cut_bt(const char* const* rows, int64_t count, int64_t n, int64_t vectors, Factor factor, float* to,
                      int64_t part) {
  Extents extents;
  for (int64_t v = 0; v < vectors; v++)
    for (int64_t d = 0; d < n; d += kStep) {
      vf block[PARTS][VL];
      for (int64_t l = 0; l < VL; l++) {
        vf row[PARTS] = {};
        if (v * VL + l < count) cut_row<T, PARTS>(rows[v * VL + l], d, n, factor, row, extents);
        for (int p = 0; p < PARTS; p++) block[p][l] = row[p];
      }
      for (int p = 0; p < PARTS; p++) {
        transpose(block[p]);
        float* tile = to + p * part + (d / kStep * PV + v) * kTile;
        for (int64_t e = 0; e < VL; e++) store(tile + e * VL, block[p][e]);
      }
    }
  return extents;
}

// A = X: parts[16 rows][step of 32 elements][row][element]. Rows after the last are what they were: so is their C.
template <class T, int PARTS = kParts<T>>
static Extents cut_a(const char* x, int64_t x_row, int64_t count, int64_t n, float* to, int64_t part) {
  Extents extents;
  for (int64_t j = 0; j < count; j++)
    for (int64_t d = 0; d < n; d += kStep) {
      float* tile = to + (j / kRows * ceil_div(n, kStep) + d / kStep) * kTile + j % kRows * VL;
      vf row[PARTS];
      cut_row<T, PARTS>(x + j * x_row, d, n, {1, 0}, row, extents);
      for (int p = 0; p < PARTS; p++) store(tile + p * part, row[p]);
    }
  return extents;
}

// Rows in pairs. LEFT, A = X^T: parts[16 elements][step of 32 rows][element][row], `between` tiles from 16 elements to
// the next. Else B = X: parts[step of 32 rows][16 elements][pair of rows][element]. `zeros` is a row of them.
template <bool LEFT, class T, int PARTS>
RA_INLINE Extents cut_pairs_of_rows(const char* x, int64_t x_row, int64_t count, int64_t n, int64_t between, float* to,
                                    int64_t part, const float* zeros) {
  Extents extents;
  for (int64_t r = 0; r < count; r += kStep)
    for (int64_t d = 0; d < n; d += VL) {
      vf block[PARTS][VL];
      for (int64_t j = 0; j < VL; j++) {
        const int64_t i = r + 2 * j;
        vf row[PARTS] = {};
        if (i + 1 < count) cut_pairs<T, PARTS>(x + i * x_row, x + (i + 1) * x_row, d, n, row, extents);
        else if (i < count) cut_pairs<T, PARTS>(x + i * x_row, (const char*)zeros, d, n, row, extents);
        for (int p = 0; p < PARTS; p++) block[p][j] = row[p];
      }
      const int64_t tile = LEFT ? d / kRows * between + r / kStep : r / kStep * ceil_div(n, VL) + d / VL;
      for (int p = 0; p < PARTS; p++) {
        if (LEFT) transpose(block[p]);
        for (int64_t e = 0; e < VL; e++) store(to + p * part + tile * kTile + e * VL, block[p][e]);
      }
    }
  return extents;
}

// A = X^T, with room for `room` rows.
template <class T, int PARTS = kParts<T>>
static Extents cut_at(const char* x, int64_t x_row, int64_t count, int64_t n, int64_t room, float* to, int64_t part,
                      const float* zeros) {
  return cut_pairs_of_rows<true, T, PARTS>(x, x_row, count, n, room / kStep, to, part, zeros);
}

// B = X.
template <class T, int PARTS = kParts<T>>
static Extents cut_b(const char* x, int64_t x_row, int64_t count, int64_t n, float* to, int64_t part,
                     const float* zeros) {
  return cut_pairs_of_rows<false, T, PARTS>(x, x_row, count, n, 0, to, part, zeros);
}

}  // namespace amx
}  // namespace rocattn
#endif
