// What the kernels derive from Args once: band, scales, packed query rows, and where a row's data is.
//
// The query rows of a KV head's group are packed: row r is position r / G of head kv * G + r % G. Neighbouring rows
// then see nearly the same keys, and one pass over K and V serves the whole group.
#pragma once
#include "abi.h"
#include "simd.h"

namespace rocattn {

constexpr float kSlack = 8.0f;  // log2 of how far an unnormalised weight may exceed 1 before the maximum is moved

RA_INLINE vf vabs(vf x) { return x < vf{} ? -x : x; }

// Weights are 2^(score - reference) in log2 units, where the reference is a score times c. Rounded to fp32 it is off by
// its own spacing, which all weights of a row share and division by their sum takes out, unless they overflow or vanish
// by it. So from here on what rounding took is kept beside it, and subtracted too: equal scores, however large, have
// weights of exactly 1.
constexpr float kLargeReference = 0x1p20f;
RA_INLINE vf rounded_off(vf score, vf c, vf reference) {
  return select(vabs(reference) > set1(kLargeReference), fma(score, c, -reference), vf{});
}

// A number to nearly twice fp32's precision.
struct Factor {
  float high, low;
};
RA_INLINE vf operator*(vf x, Factor f) { return fma(x, set1(f.low), x * f.high); }
RA_INLINE float operator*(float x, Factor f) { return (float)((double)x * ((double)f.high + f.low)); }

struct Unscaled {};  // a factor of 1, which leaves even NaN as it is
RA_INLINE vf operator*(vf x, Unscaled) { return x; }
RA_INLINE float operator*(float x, Unscaled) { return x; }

constexpr int64_t kNear = 1 << 20;  // bytes of rows that a cache near the core may still hold when they are read again

struct Problem {
  const Args* a;
  int64_t G, R, heads;      // group, packed rows a KV head, B * Hkv
  int64_t shift;            // Sk - Sq
  bool banded, general;     // general: softcap, ALiBi or a mask change scores one by one
  float sign;               // of the scale; 0 if it is 0
  Factor query;             // q is multiplied by it before the products
  float c;                  // scores in log2 units are c * product (before softcap)
  float finished;           // and this times what softcap, ALiBi and mask have made of them
  float cap_in, cap_out;    // softcap: cap_out * tanh(cap_in * product)
  float key_gradient;       // dk is this times the sum over multiplied q
  bool mask_rows;           // whether the mask differs between packed rows
  int mask_bytes;

  explicit Problem(const Args* args) : a(args) {
    G = a->H / a->Hkv;
    R = a->Sq * G;
    heads = a->B * a->Hkv;
    shift = a->Sk - a->Sq;
    banded = a->left >= 0 || a->right >= 0;
    general = a->softcap > 0 || a->slopes || a->mask_dtype != kNone;
    sign = a->scale > 0 ? 1.0f : a->scale < 0 ? -1.0f : 0.0f;
    const double magnitude = a->scale < 0 ? -(double)a->scale : a->scale;
    // What is left of the scale for the scores is a power of two in fp32: a rounded factor would shift all scores of
    // a row the same way, by 1e-5 at a score of 200; q rounded element by element averages out.
    double factor = sign == 0 ? 1 : a->softcap > 0 ? magnitude / a->softcap : magnitude * kLog2eDouble, folded = 1;
    if (a->dtype == kFloat32 && sign != 0) {
      folded = mantissa(factor);
      factor /= folded;
    }
    query = {(float)folded * sign, (float)(folded - (float)folded) * sign};
    c = cap_in = (float)factor;
    finished = general ? 1.0f : c;
    cap_out = a->softcap * kLog2e;
    key_gradient = sign == 0 ? 0 : (float)(magnitude / folded);
    mask_rows = a->mask_dtype != kNone && (a->ms[2] != 0 || (G > 1 && a->ms[1] != 0));
    mask_bytes = a->mask_dtype == kBool ? 1 : a->mask_dtype == kFloat32 ? 4 : 2;
  }
  // x / 2^floor(log2 x) for a normal x > 0.
  static double mantissa(double x) {
    union { double d; uint64_t u; } bits = {x};
    bits.u = (bits.u & 0xfffffffffffffULL) | 0x3ff0000000000000ULL;
    return bits.d;
  }
  // Keys [first, last) that causal and window leave to a query position.
  void visible(int64_t position, int64_t* first, int64_t* last) const {
    int64_t diagonal = position + shift, lo = 0, hi = a->Sk;
    if (a->left >= 0 && diagonal > a->left) lo = min2(diagonal - a->left, a->Sk);
    if (a->right >= 0) hi = max2<int64_t>(min2(diagonal + a->right + 1, a->Sk), 0);
    *first = lo, *last = max2(lo, hi);
  }
  int64_t head_of(int64_t kv, int64_t row) const { return kv * G + row % G; }
  const char* mask_row(int64_t b, int64_t h, int64_t position) const {
    return (const char*)a->mask + (b * a->ms[0] + h * a->ms[1] + position * a->ms[2]) * mask_bytes;
  }
  int element() const { return a->dtype == kFloat32 ? 4 : 2; }
  // Where the row of a key is in K or V.
  const char* key_row(const void* base, const int64_t* strides, int64_t b, int64_t kv, int64_t key) const {
    const int64_t page = a->page_size ? a->table[key / a->page_size] : b;
    const int64_t row = a->page_size ? key % a->page_size : key;
    return (const char*)base + (page * strides[0] + kv * strides[1] + row * strides[2]) * element();
  }
  // How many of the n keys from `key` on have rows of K and V that lie a stride apart: pages that follow each other in
  // memory are one run.
  int64_t run(int64_t key, int64_t n) const {
    const int64_t size = a->page_size;
    if (size == 0) return n;
    const bool joined = a->ks[0] == size * a->ks[2] && a->vs[0] == size * a->vs[2];
    int64_t end = (key / size + 1) * size;
    while (joined && end < key + n && a->table[end / size] == a->table[end / size - 1] + 1) end += size;
    return min2(end - key, n);
  }
};

// Where a packed row is, step by step: 64-bit divisions for each row of a panel would show.
struct Place {
  int64_t position, head, first_head, next_head;
  Place(const Problem& p, int64_t kv, int64_t r)
      : position(r / p.G), head(p.head_of(kv, r)), first_head(kv * p.G), next_head((kv + 1) * p.G) {}
  void advance() {
    if (++head == next_head) head = first_head, position++;
  }
};

// Per-thread scratch, cut from one allocation. A Scratch that starts at null only measures.
struct Scratch {
  char* at;
  template <class T> T* take(int64_t n) {
    T* p = (T*)at;
    // 64 more: equal buffers get different cache sets.
    at = (char*)((intptr_t)at + round_up(n * (int64_t)sizeof(T), 64) + 64);
    return p;
  }
  int64_t taken() const { return round_up((int64_t)at, 4096) + 256; }
};

RA_INLINE const char* at(const void* base, const int64_t* strides, int64_t b, int64_t h, int64_t s, int bytes) {
  return (const char*)base + (b * strides[0] + h * strides[1] + s * strides[2]) * bytes;
}

// Asks for a row that is read later.
RA_INLINE void fetch_row(const void* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)row + i, 0, 2);
}

// A natural mask or LSE in log2 units, which must stay finite as finfo.min * log2e would not: from 2^126 on the
// factor is 1/2. Floats there are 2^102 and more apart, so that a softmax of them is what it was. Inf and NaN are
// kept.
// The offset keeps values in order, and has few bits: the way back is exact.
constexpr float kFar = 0x1p126f, kFarOffset = 0x1.e4p125f, kFarLog2 = 1.444f * kFar;
RA_INLINE vf to_log2(vf x) {
  const vf far = x * 0.5f + select(x < vf{}, set1(-kFarOffset), set1(kFarOffset));
  return select(vabs(x) > set1(kFar), far, x * kLog2e);
}
RA_INLINE float to_log2(float x) {
  if (x > kFar) return x * 0.5f + kFarOffset;
  if (x < -kFar) return x * 0.5f - kFarOffset;
  return x * kLog2e;
}
RA_INLINE float mask_value(const char* row, int64_t i, int32_t dtype) {
  switch (dtype) {
    case kBool: return row[i] ? 0.0f : -kInf;
    case kFloat16: return to_log2(half_to_float(((const uint16_t*)row)[i]));
    case kBFloat16: return to_log2(bf16_to_float(((const uint16_t*)row)[i]));
    default: return to_log2(((const float*)row)[i]);
  }
}
RA_INLINE vf mask_vector(const char* row, int64_t i, int32_t dtype) {
  switch (dtype) {
    case kBool: {
      vi bits = __builtin_convertvector(*(const vb_any*)(row + i), vi);
      return select(bits != vi{}, vf{}, set1(-kInf));
    }
    case kFloat16: return to_log2(F16::get_vector(row, i));
    case kBFloat16: return to_log2(BF16::get_vector(row, i));
    default: return to_log2(F32::get_vector(row, i));
  }
}
// The LSE of a row from its reference (log2 units; `low` is what rounding took from m) and sum.
RA_INLINE float natural_lse(float m, float low, float l) {
  if (l == 0) return -kInf;
  if (l != l) return l;
  double x = ((double)m + low) * kLn2;
  if (m > kFarLog2) x = ((double)m - kFarOffset) * 2;
  if (m < -kFarLog2) x = ((double)m + kFarOffset) * 2;
  const double lse = x + log_positive(l);
  return m - m != 0 ? m : lse > kMaxFloat ? kMaxFloat : lse < -kMaxFloat ? -kMaxFloat : (float)lse;
}
// Adds a mask to scores: -inf hides whatever the score is.
RA_INLINE vf apply_mask(vf x, vf m) { return select(m == set1(-kInf), set1(-kInf), x + m); }

// Whether any of `rows` rows of n elements holds inf or NaN (times 0 both are NaN).
template <class T>
RA_NOINLINE bool any_nonfinite(const void* first, int64_t row, int64_t rows, int64_t n) {
  vf bad{};
  float rest = 0;
  for (int64_t j = 0; j < rows; j++) {
    const char* p = (const char*)first + j * row;
    int64_t i = 0;
    for (; i + VL <= n; i += VL) bad += T::get_vector(p, i) * 0.0f;
    for (; i < n; i++) rest += T::get(p, i) * 0.0f;
  }
  rest += sum_lanes(bad);
  return rest != rest;
}

// Where the vector at element d of n starts: the last one overlaps the one before it, so that no element is left over.
RA_INLINE int64_t vector_start(int64_t d, int64_t n) { return n < VL ? d : min2<int64_t>(d, n - VL); }

// Converts n elements to float, times a factor, and pads with zeros to `padded`.
template <class T, class By = Unscaled>
RA_INLINE void convert_row(const void* source, float* to, int64_t n, int64_t padded, By factor = {}) {
  int64_t i = 0;
  for (; n >= VL && i < n; i += VL) {
    const int64_t start = vector_start(i, n);
    store(to + start, T::get_vector(source, start) * factor);
  }
  for (; i < n; i++) to[i] = T::get(source, i) * factor;
  for (i = n; i < padded; i++) to[i] = 0;
}
template <class T>
RA_INLINE void write_row(void* target, const float* from, int64_t n, float factor) {
  int64_t i = 0;
  for (; n >= VL && i < n; i += VL) {
    const int64_t start = vector_start(i, n);
    T::put_vector(target, start, load(from + start) * factor);
  }
  for (; i < n; i++) T::put(target, i, from[i] * factor);
}
// to[d][lane], ld PW: transposes `rows` rows of n elements, given by pointers, into the lanes; missing lanes become 0.
template <class T, class By>
static void pack_transposed(const char* const* sources, int64_t rows, int64_t n, float* to, int64_t ld, int64_t lanes,
                            By factor, float* staging) {
  for (int64_t l0 = 0; l0 < lanes; l0 += VL) {
    for (int64_t next = 0; next < n; next += VL) {
      const int64_t d = vector_start(next, n), width = min2<int64_t>(VL, n - d);
      if (n >= VL && l0 + VL <= rows) {  // in registers alone: no index that is a variable
        vf r[VL];
#pragma GCC unroll 16
        for (int l = 0; l < VL; l++) r[l] = T::get_vector(sources[l0 + l], d) * factor;
        transpose(r);
#pragma GCC unroll 16
        for (int e = 0; e < VL; e++) store(to + (d + e) * ld + l0, r[e]);
        continue;
      }
      vf r[VL];
      for (int64_t l = 0; l < VL; l++) {
        if (l0 + l >= rows) r[l] = vf{};
        else if (width == VL) r[l] = T::get_vector(sources[l0 + l], d) * factor;
        else {
          for (int64_t e = 0; e < VL; e++) staging[e] = e < width ? T::get(sources[l0 + l], d + e) * factor : 0.0f;
          r[l] = load(staging);
        }
      }
      transpose(r);
      for (int64_t e = 0; e < width; e++) store(to + (d + e) * ld + l0, r[e]);
    }
  }
}

}  // namespace rocattn
