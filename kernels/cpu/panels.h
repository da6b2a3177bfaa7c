// A panel's beginning and end: packing its queries, writing its rows. Between them: forward.h, amx.h.
#pragma once
#include "amx.h"

namespace rocattn {

// Rows of 32-bit pairs (2d, 2d + 1) from 16-bit rows, an odd last element paired with 0.
static void copy_pairs(const char* source, int64_t row, int64_t n, int64_t elements, float* to, int64_t ld) {
  for (int64_t j = 0; j < n; j++) {
    const uint16_t* from = (const uint16_t*)(source + j * row);
    uint16_t* out = (uint16_t*)(to + j * ld);
    __builtin_memcpy(out, from, (unsigned long)elements * 2);
    for (int64_t d = elements; d < ld * 2; d++) out[d] = 0;
  }
}

// The output is 0, unless products have been written there.
static void clear_output(Panel& panel, int64_t Dv) {
  if (panel.fresh)
    for (int64_t i = 0; i < Dv * PW; i++) panel.o[i] = 0;
  panel.fresh = false;
}

// Q^T of a panel for the vector path.
template <class T>
static void pack_queries(const Forward& f, const Panel& panel, const char* const* q_rows, float* staging) {
  const Problem& p = f.p;
  const int64_t D = p.a->D;
  if (!f.pairs) {
    pack_transposed<T>(q_rows, panel.rows, D, panel.q, PW, panel.vectors * VL, p.query, staging);
    return;
  }
  // Pairs keep their bits; the sign is the only factor.
  const int64_t lanes = panel.vectors * VL;
  if (!f.copy_q) {
    pack_transposed<F32>(q_rows, panel.rows, f.Dr, panel.q, PW, lanes, Unscaled{}, staging);
  } else {
    const char* pair_rows[PW];
    for (int64_t l = 0; l < panel.rows; l++) {
      copy_pairs(q_rows[l], 0, 1, D, staging + l * f.Dr, f.Dr);
      pair_rows[l] = (const char*)(staging + l * f.Dr);
    }
    pack_transposed<F32>(pair_rows, panel.rows, f.Dr, panel.q, PW, lanes, Unscaled{}, staging + PW * f.Dr);
  }
  if (p.sign == 1) return;
  for (int64_t i = 0; i < f.Dr * PW; i++) {
    uint32_t* x = (uint32_t*)panel.q + i;
    *x = p.sign == 0 ? 0 : *x ^ 0x80008000u;
  }
}

// Where a panel's query rows are.
template <class T>
static void find_queries(const Problem& p, const Panel& panel, int64_t b, int64_t kv, const char** q_rows) {
  Place place(p, kv, panel.first);
  for (int64_t l = 0; l < panel.rows; l++, place.advance())
    q_rows[l] = at(p.a->q, p.a->qs, b, place.head, place.position, T::bytes);
}

// Makes a panel ready for the vector path, if it is not. The query rows of the next panel, if there is one, are fetched
// while this one meets its first keys.
template <class T>
static void ready_vectors(const Forward& f, Panel& panel, const Panel* next, int64_t b, int64_t kv, float* staging) {
  const Args& a = *f.p.a;
  if (!panel.packed) {
    const char* q_rows[PW];
    find_queries<T>(f.p, panel, b, kv, q_rows);
    pack_queries<T>(f, panel, q_rows, staging);
    if (next && f.far) {
      find_queries<T>(f.p, *next, b, kv, q_rows);
      for (int64_t l = 0; l < next->rows; l++) fetch_row(q_rows[l], a.D * T::bytes);
    }
  }
  panel.packed = true;
}

template <class T>
static void start_panel(const Forward& f, Panel& panel, Scratch& scratch, int64_t b, int64_t kv, int64_t index,
                        int64_t split, int64_t k_first, int64_t k_last) {
  const Problem& p = f.p;
  const Args& a = *p.a;
  panel.first = index * PW;
  panel.rows = min2<int64_t>(PW, p.R - panel.first);
  panel.first_head = b * a.H + kv * p.G;
  panel.vectors = round_up(ceil_div(panel.rows, VL), f.amx ? 2 : 1);  // the matrix unit takes two at a time
  f.take(scratch, panel);
  for (int64_t l = 0; l < PW; l++) {
    panel.from[l] = 0, panel.to[l] = (int32_t)a.Sk, panel.diagonal[l] = 0;
    panel.m[l] = -kInf, panel.low[l] = panel.l[l] = panel.w[l] = panel.slope[l] = 0;
    panel.mask[l] = nullptr;
  }
  panel.lo = panel.inner_lo = k_first, panel.hi = panel.inner_hi = k_last;
  if (p.banded || p.general || a.sinks) {  // rows differ; lanes without a row repeat the last one
    panel.lo = k_last, panel.hi = k_first;
    Place place(p, kv, panel.first);
    for (int64_t l = 0; l < PW; l++) {
      const int64_t position = place.position, h = place.head;
      if (l + 1 < panel.rows) place.advance();
      int64_t from, to;
      p.visible(position, &from, &to);
      panel.from[l] = (int32_t)from, panel.to[l] = (int32_t)to;
      panel.diagonal[l] = (int32_t)(position + p.shift);
      panel.lo = min2(panel.lo, from), panel.hi = max2(panel.hi, to);
      panel.inner_lo = max2(panel.inner_lo, from), panel.inner_hi = min2(panel.inner_hi, to);
      if (a.sinks && split == 0) panel.m[l] = a.sinks[h] * kLog2e;
      if (panel.m[l] != -kInf) panel.l[l] = panel.w[l] = 1;
      if (a.slopes) panel.slope[l] = a.slopes[b * a.H + h] * kLog2e;
      if (a.mask_dtype != kNone) panel.mask[l] = p.mask_row(b, h, position);
    }
  }
  int64_t inner = k_last;
  for (int64_t v = PV - 1; v >= 0; v--) {
    panel.top[v] = 0;
    for (int64_t l = v * VL; l < (v + 1) * VL; l++) {
      panel.top[v] = max2<int64_t>(panel.top[v], panel.to[l]);
      inner = min2<int64_t>(inner, panel.to[l]);
    }
    panel.inner[v] = inner;
  }
  panel.lo = max2(panel.lo, k_first), panel.hi = min2(panel.hi, k_last);
  panel.fresh = true, panel.packed = false;
#if defined(__AMX_BF16__)
  if (f.amx) {
    const char* q_rows[PW];
    find_queries<T>(p, panel, b, kv, q_rows);
    panel.ordinary =
        amx::cut_bt<T>(q_rows, panel.rows, a.D, panel.vectors, p.query, panel.parts, f.q_part).ordinary();
  }
#endif
}

// Whether output is written in pairs of bf16.
#if defined(__AVX512BF16__)
template <class T> constexpr bool kPairs = Same<T, BF16>::value;
#else
template <class T> constexpr bool kPairs = false;
#endif

// Whether output goes past the caches: there is more than one near the core holds, and it is written in whole lines.
// Then no line is read first, and K and V stay. Zen 4: 1 to 7 % less time in fp32, also where the caller reads it at
// once, and up to 3 % in bf16.
template <class T>
static bool past_caches(const Problem& p) {
  const Args& a = *p.a;
  const int64_t bytes = T::bytes;
  if (VL < 16 || !(bytes == 4 || kPairs<T>) || a.Dv * bytes % 64 || a.B * a.H * a.Sq * a.Dv * bytes <= kNear)
    return false;
  return ((intptr_t)a.o | a.os[0] * bytes | a.os[1] * bytes | a.os[2] * bytes) % 64 == 0;
}

// Writes vectors of up to VL rows. Indices that are variables would keep even those of whole blocks in memory.
template <class Write>
RA_INLINE void write_rows(const vf* r, int64_t rows, Write write) {
  if (rows >= VL) {
#pragma GCC unroll 16
    for (int e = 0; e < VL; e++) write(e, r[e]);
    return;
  }
  vf kept[VL];
#pragma GCC unroll 16
  for (int e = 0; e < VL; e++) kept[e] = r[e];
  for (int e = 0; e < rows; e++) write(e, kept[e]);
}

// Writes a finished panel: divides by the sums, transposes back, converts.
template <class T>
static void finish_panel(const Problem& p, int64_t b, int64_t kv, int64_t first, int64_t rows, const float* o,
                         const float* m, const float* low, const float* l, const float* w) {
  const Args& a = *p.a;
  char* out_rows[PW];
  float inverse[PW];
  Place place(p, kv, first);
  for (int64_t i = 0; i < rows; i++, place.advance()) {
    out_rows[i] = (char*)at(a.o, a.os, b, place.head, place.position, T::bytes);
    if (a.lse) a.lse[(b * a.H + place.head) * a.ls + place.position] = natural_lse(m[i], low[i], l[i]);
  }
  for (int64_t i = 0; i < rows; i += VL) {
    const vf sum = load(w + i);
    store(inverse + i, 1.0f / select(sum == vf{}, set1(1.0f), sum));
  }
  const bool past = past_caches<T>(p);
  for (int64_t l0 = 0; l0 < rows; l0 += VL) {
    const vf factor = load(inverse + l0);
    int64_t next = 0;
#if defined(__AVX512BF16__)
    if constexpr (kPairs<T>)  // half of the shuffles
      for (; a.Dv - next > VL && a.Dv >= 2 * VL; next += 2 * VL) {
        vf r[VL];
        const int64_t d = min2<int64_t>(next, a.Dv - 2 * VL);
        bool tiny = false;
#pragma GCC unroll 16
        for (int e = 0; e < VL; e++) {
          const vf even = load(o + (d + 2 * e) * PW + l0) * factor, odd = load(o + (d + 2 * e + 1) * PW + l0) * factor;
          tiny |= any_subnormal(even);
          tiny |= any_subnormal(odd);
          r[e] = (vf)pair_bf16(even, odd);
        }
        if (__builtin_expect(tiny, 0))
#pragma GCC unroll 16
          for (int e = 0; e < VL; e++)
            r[e] = (vf)(BF16::round(load(o + (d + 2 * e) * PW + l0) * factor) |
                        BF16::round(load(o + (d + 2 * e + 1) * PW + l0) * factor) << 16);
        transpose(r);
        if (past) write_rows(r, rows - l0, [&](int e, vf x) { stream((float*)(out_rows[l0 + e] + 2 * d), x); });
        else write_rows(r, rows - l0, [&](int e, vf x) { store((float*)(out_rows[l0 + e] + 2 * d), x); });
      }
#endif
    for (; next < a.Dv; next += VL) {
      const int64_t d = vector_start(next, a.Dv), width = min2<int64_t>(VL, a.Dv - d);
      if (width < VL) {
        vf r[VL];
        for (int64_t e = 0; e < VL; e++) r[e] = e < width ? load(o + (d + e) * PW + l0) * factor : vf{};
        transpose(r);
        for (int64_t e = 0; e < min2<int64_t>(VL, rows - l0); e++)
          for (int64_t x = 0; x < width; x++) T::put(out_rows[l0 + e], d + x, r[e][x]);
        continue;
      }
      vf r[VL];
#pragma GCC unroll 16
      for (int e = 0; e < VL; e++) r[e] = load(o + (d + e) * PW + l0) * factor;
      transpose(r);
      if (past) write_rows(r, rows - l0, [&](int e, vf x) { stream((float*)out_rows[l0 + e] + d, x); });
      else write_rows(r, rows - l0, [&](int e, vf x) { T::put_vector(out_rows[l0 + e], d, x); });
    }
  }
  if (past) end_streams();  // before another thread is told that the item is done
}

}  // namespace rocattn
