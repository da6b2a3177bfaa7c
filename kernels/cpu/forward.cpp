// Forward attention: cutting a problem into items, running an item, finishing rows (the arithmetic is in forward.h).
//
// An item is up to kMaxPanels panels of one KV head (and, where there are few items, one range of keys). Panels are
// cut at fixed rows and tiles at fixed keys, so how many panels an item holds may depend on the number of threads: it
// changes who computes a row, not how.
#include "forward.h"
#include "decode.h"

namespace rocattn {
namespace {

template <class T, class Op, int NC>
void panel_tile(const Forward& f, const Panel& panel, const char* K, int64_t k_row, const float* V, int64_t v_row,
                const char* raw_v, int64_t raw_v_row, int64_t k0, int64_t n, float* S, float* M, int* v_finite) {
  const Problem& p = f.p;
  const int64_t Dv = p.a->Dv;
  if (T::bytes == 4) column_panel_short<Op, NC>(K, k_row, panel.q, PW, S, PW, n, f.Dr);
  else column_panel<Op, NC, false, false>(K, k_row, 4, panel.q, PW, S, PW, n, f.Dr);  // 16-bit inputs cannot show it
  float c = p.c;
  if (p.general) {
    change_scores<NC>(p, panel, k0, n, S, M);
    c = 1;
  }
  const bool edge = k0 < panel.inner_lo || k0 + n > panel.inner_hi;
  if (edge) hide_edges<NC>(panel, k0, n, S);
  raise_maximum<NC>(panel, n, S, c, Dv);
#if defined(__AVX512BF16__)
  if (f.value_pairs) exponentiate_pairs<NC>(panel, n, S, c);
  else
#endif
    exponentiate<NC>(panel, n, S, c);
  if (edge || p.a->mask_dtype != kNone) {
    // A hidden key must not leak: 0 * NaN is NaN. Looked at only where something may be hidden, once a tile.
    if (*v_finite < 0) *v_finite = !any_nonfinite<T>(raw_v, raw_v_row, n, Dv);
    if (!*v_finite) return add_values_hidden<T, NC>(panel, S, raw_v, raw_v_row, n, Dv, f.value_pairs);
  }
  if (f.value_pairs) column_panel<Op, NC, true, true>(V, 4, v_row, S, PW, panel.o, PW, Dv, (n + 1) / 2);
  else column_panel<Fp32Op, NC, true, true>(V, 4, v_row, S, PW, panel.o, PW, Dv, n);
}

template <class T, class Op>
void panel_dispatch(const Forward& f, const Panel& panel, const char* K, int64_t k_row, const float* V, int64_t v_row,
                    const char* raw_v, int64_t raw_v_row, int64_t k0, int64_t n, float* S, float* M, int* v_finite) {
#define RA_PANEL(NC) \
  case NC: return panel_tile<T, Op, NC>(f, panel, K, k_row, V, v_row, raw_v, raw_v_row, k0, n, S, M, v_finite)
  switch (panel.vectors) {
    RA_PANEL(1);
    RA_PANEL(2);
#if defined(__AVX512F__) || defined(__aarch64__)
    RA_PANEL(3);
    RA_PANEL(4);
#endif
  }
#undef RA_PANEL
}

// Rows of 32-bit pairs (2d, 2d + 1) from 16-bit rows, an odd last element paired with 0.
void copy_pairs(const char* source, int64_t row, int64_t n, int64_t elements, float* to, int64_t ld) {
  for (int64_t j = 0; j < n; j++) {
    const uint16_t* from = (const uint16_t*)(source + j * row);
    uint16_t* out = (uint16_t*)(to + j * ld);
    __builtin_memcpy(out, from, (unsigned long)elements * 2);
    for (int64_t d = elements; d < ld * 2; d++) out[d] = 0;
  }
}
// V rows 2j and 2j + 1 interleaved: to[j][dv] = (V[2j][dv], V[2j + 1][dv]).
void interleave_keys(const char* source, int64_t row, int64_t n, int64_t Dv, float* to, int64_t ld) {
  for (int64_t j = 0; j < n; j += 2) {
    const uint16_t* even = (const uint16_t*)(source + j * row);
    const uint16_t* odd = (const uint16_t*)(source + (j + 1) * row);
    uint32_t* out = (uint32_t*)(to + j / 2 * ld);
    if (j + 1 < n)
      for (int64_t d = 0; d < Dv; d++) out[d] = (uint32_t)even[d] | (uint32_t)odd[d] << 16;
    else
      for (int64_t d = 0; d < Dv; d++) out[d] = even[d];
  }
}

template <class T>
void start_panel(const Forward& f, Panel& panel, Scratch& scratch, int64_t b, int64_t kv, int64_t index, int64_t split,
                 int64_t k_first, int64_t k_last, float* staging) {
  const Problem& p = f.p;
  const Args& a = *p.a;
  panel.first = index * PW;
  panel.rows = min2<int64_t>(PW, p.R - panel.first);
  panel.vectors = ceil_div(panel.rows, VL);
  panel.take(scratch, f.Dr, a.Dv, f.value_pairs);
  panel.lo = k_last, panel.hi = k_first, panel.inner_lo = k_first, panel.inner_hi = k_last;
  const char* q_rows[PW];
  for (int64_t l = 0; l < PW; l++) {
    const int64_t r = panel.first + min2(l, panel.rows - 1), position = r / p.G, h = p.head_of(kv, r);
    int64_t from, to;
    p.visible(position, &from, &to);
    panel.from[l] = (int32_t)from, panel.to[l] = (int32_t)to;
    panel.diagonal[l] = (int32_t)(position + p.shift);
    panel.lo = min2(panel.lo, from), panel.hi = max2(panel.hi, to);
    panel.inner_lo = max2(panel.inner_lo, from), panel.inner_hi = min2(panel.inner_hi, to);
    const float sink = a.sinks && split == 0 ? a.sinks[h] * kLog2e : -kInf;
    panel.m[l] = sink;
    panel.l[l] = panel.w[l] = sink == -kInf ? 0.0f : 1.0f;
    panel.slope[l] = a.slopes ? a.slopes[b * a.H + h] * kLog2e : 0;
    panel.mask[l] = a.mask_dtype != kNone ? p.mask_row(b, h, position) : nullptr;
    q_rows[l] = at(a.q, a.qs, b, h, position, T::bytes);
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
  if (f.pairs) {
    float* rows = (float*)staging;  // pairs keep their bits; the sign is the only factor
    for (int64_t l = 0; l < panel.rows; l++) copy_pairs(q_rows[l], 0, 1, a.D, rows + l * f.Dr, f.Dr);
    const char* pair_rows[PW];
    for (int64_t l = 0; l < panel.rows; l++) pair_rows[l] = (const char*)(rows + l * f.Dr);
    if (p.sign != 1)
      for (int64_t i = 0; i < panel.rows * f.Dr; i++) {
        uint32_t* x = (uint32_t*)rows + i;
        *x = p.sign == 0 ? 0 : *x ^ 0x80008000u;
      }
    pack_transposed<F32>(pair_rows, panel.rows, f.Dr, panel.q, PW, panel.vectors * VL, {1, 0}, staging + PW * f.Dr);
  } else {
    pack_transposed<T>(q_rows, panel.rows, a.D, panel.q, PW, panel.vectors * VL, p.query, staging);
  }
  for (int64_t i = 0; i < a.Dv * PW; i++) panel.o[i] = 0;
}

// Writes a finished panel: divides by the sums, transposes back, converts.
template <class T>
void finish_panel(const Problem& p, int64_t b, int64_t kv, int64_t first, int64_t rows, const float* o, const float* m,
                  const float* l, const float* w) {
  const Args& a = *p.a;
  char* out_rows[PW];
  float inverse[PW];
  for (int64_t i = 0; i < PW; i++) {
    const int64_t r = first + min2(i, rows - 1), position = r / p.G, h = p.head_of(kv, r);
    out_rows[i] = (char*)at(a.o, a.os, b, h, position, T::bytes);
    inverse[i] = w[i] == 0 ? 1.0f : 1.0f / w[i];
    if (a.lse && i < rows) {
      a.lse[(b * a.H + h) * a.Sq + position] = natural_lse(m[i], l[i]);
    }
  }
  for (int64_t l0 = 0; l0 < rows; l0 += VL) {
    const vf factor = load(inverse + l0);
    for (int64_t d = 0; d < a.Dv; d += VL) {
      vf r[VL];
      const int64_t width = min2<int64_t>(VL, a.Dv - d);
      for (int64_t e = 0; e < VL; e++) r[e] = e < width ? load(o + (d + e) * PW + l0) * factor : vf{};
      transpose(r);
      for (int64_t e = 0; e < min2<int64_t>(VL, rows - l0); e++) {
        if (width == VL) T::put_vector(out_rows[l0 + e], d, r[e]);
        else
          for (int64_t x = 0; x < width; x++) T::put(out_rows[l0 + e], d + x, r[e][x]);
      }
    }
  }
}

template <class T, class Op>
void run_item(void* context, int64_t item, int worker) {
  const Forward& f = *(const Forward*)context;
  const Problem& p = f.p;
  const Args& a = *p.a;
  const int64_t split = item % f.splits, head = item / f.splits % p.heads;
  const int64_t block = f.blocks - 1 - item / f.splits / p.heads;  // the last rows see most keys: heavy first
  const int64_t b = head / a.Hkv, kv = head % a.Hkv;
  const int64_t k_first = split * f.split_keys, k_last = min2(a.Sk, k_first + f.split_keys);
  Scratch scratch = {f.scratch + worker * f.scratch_bytes};
  const auto [S, M, staging, K, V] = f.take(scratch);
  const int64_t v_ld = round_up(a.Dv, VL);
  Panel panels[kMaxPanels];
  int64_t count = 0, lo = k_last, hi = k_first;
  for (int64_t i = block * f.panel_count; i < min2(f.panels, (block + 1) * f.panel_count); i++, count++) {
    start_panel<T>(f, panels[count], scratch, b, kv, i, split, k_first, k_last, staging);
    lo = min2(lo, panels[count].lo), hi = max2(hi, panels[count].hi);
  }
  for (int64_t t = lo / TK * TK; t < hi; t += TK) {
    const int64_t n = min2<int64_t>(TK, hi - t);
    const char* raw_k = at(a.k, a.ks, b, kv, t, T::bytes);
    const char* raw_v = at(a.v, a.vs, b, kv, t, T::bytes);
    const int64_t raw_k_row = a.ks[2] * T::bytes, raw_v_row = a.vs[2] * T::bytes;
    if (f.copy_k) {
      if (f.pairs) copy_pairs(raw_k, raw_k_row, n, a.D, K, f.Dr);
      else
        for (int64_t j = 0; j < n; j++) convert_row<T>(raw_k + j * raw_k_row, K + j * f.Dr, a.D, a.D);
    }
    if (f.copy_v) {
      if (f.value_pairs) interleave_keys(raw_v, raw_v_row, n, a.Dv, V, v_ld);
      else
        for (int64_t j = 0; j < n; j++) convert_row<T>(raw_v + j * raw_v_row, V + j * v_ld, a.Dv, a.Dv);
    }
    int tile_finite = -1;
    for (int64_t i = 0; i < count; i++) {
      const Panel& panel = panels[i];
      int64_t from = max2(t, panel.lo), to = min2(t + n, panel.hi);
      if (from >= to) continue;
      if (f.value_pairs) from = from / 2 * 2, to = min2(t + n, round_up(to, 2));  // whole pairs: the rest is hidden
      while (from < to) {
        // On the diagonal the first vectors of queries stop seeing keys before the last ones do: leave them out.
        int64_t v = 0;
        while (v < panel.vectors - 1 && panel.top[v] <= from) v++;
        int64_t end = min2(to, max2(panel.top[v], from + kMinChunk));
        if (f.value_pairs) end = min2(to, round_up(end, 2));
        const int64_t skip = from - t, keys = end - from;
        const char* k_at = f.copy_k ? (const char*)(K + skip * f.Dr) : raw_k + skip * raw_k_row;
        const float* v_at = (const float*)(raw_v + skip * raw_v_row);
        if (f.copy_v) v_at = V + (f.value_pairs ? skip / 2 : skip) * v_ld;
        int part_finite = -1;
        int* finite = keys == n ? &tile_finite : &part_finite;
        panel_dispatch<T, Op>(f, v == 0 ? panel : panel.without(v), k_at, f.copy_k ? f.Dr * 4 : raw_k_row, v_at,
                              f.copy_v ? v_ld * 4 : raw_v_row, raw_v + skip * raw_v_row, raw_v_row, from, keys, S, M,
                              finite);
        from = end;
      }
    }
  }
  for (int64_t i = 0; i < count; i++) {
    const Panel& panel = panels[i];
    if (f.splits == 1) {
      finish_panel<T>(p, b, kv, panel.first, panel.rows, panel.o, panel.m, panel.l, panel.w);
      continue;
    }
    float* to = f.partial + ((head * f.panels + panel.first / PW) * f.splits + split) * f.partial_floats();
    __builtin_memcpy(to, panel.m, PW * 4);
    __builtin_memcpy(to + PW, panel.l, PW * 4);
    __builtin_memcpy(to + 2 * PW, panel.w, PW * 4);
    __builtin_memcpy(to + 3 * PW, panel.o, (unsigned long)(a.Dv * PW) * 4);
  }
}

// Joins the partial results of one panel in the order of its key ranges.
template <class T>
void join_splits(void* context, int64_t item, int) {
  const Forward& f = *(const Forward*)context;
  const Args& a = *f.p.a;
  const int64_t head = item / f.panels, index = item % f.panels;
  float* base = f.partial + item * f.splits * f.partial_floats();
  for (int64_t v = 0; v < PW; v += VL) {
    vf top = set1(-kInf), sum{}, rounded{};
    for (int64_t s = 0; s < f.splits; s++) top = vmax(load(base + s * f.partial_floats() + v), top);
    for (int64_t s = 0; s < f.splits; s++) {
      float* part = base + s * f.partial_floats();
      const vf m = load(part + v);
      const vf weight = select(m == top, set1(1.0f), exp2v(m - top));
      sum += load(part + PW + v) * weight;
      rounded += load(part + 2 * PW + v) * weight;
      for (int64_t d = 0; d < a.Dv; d++) {
        float* to = base + (3 + d) * PW + v;
        const vf x = load(part + (3 + d) * PW + v) * weight;
        store(to, s == 0 ? x : load(to) + x);
      }
    }
    store(base + v, top);
    store(base + PW + v, sum);
    store(base + 2 * PW + v, rounded);
  }
  finish_panel<T>(f.p, head / a.Hkv, head % a.Hkv, index * PW, min2<int64_t>(PW, f.p.R - index * PW), base + 3 * PW,
                  base, base + PW, base + 2 * PW);
}

template <class T, class Op>
int32_t run_forward(Forward& f, int threads) {
  const int used = usable_threads(f.items, threads);
  const int64_t partial = f.splits > 1 ? f.p.heads * f.panels * f.splits * f.partial_floats() * 4 : 0;
  char* memory = (char*)allocate(used * f.scratch_bytes + partial);
  if (!memory) return kOutOfMemory;
  f.scratch = memory;
  f.partial = (float*)(memory + used * f.scratch_bytes);
  run(f.items, used, run_item<T, Op>, &f);
  if (f.splits > 1) run(f.p.heads * f.panels, threads, join_splits<T>, &f);
  release(memory);
  return kOk;
}

}  // namespace

void Forward::plan(int threads) {
  const Args& a = *p.a;
#if defined(__AVX512BF16__)
  pairs = a.dtype == kBFloat16;
#else
  pairs = false;
#endif
  value_pairs = pairs && a.Dv >= kRoundedWeights;
  Dr = pairs ? ceil_div(a.D, 2) : a.D;
  copy_k = pairs ? a.D % 2 != 0 : a.dtype != kFloat32;
  copy_v = a.dtype != kFloat32;
  panels = ceil_div(p.R, PW);
  // Few rows and many keys: cut the keys too, by the shape alone, for partial sums are joined in this order.
  splits = 1, split_keys = max2<int64_t>(a.Sk, 1);
  if (p.heads * panels < 64 && a.Sk > kSplitKeys && !(a.left >= 0 && a.left < kSplitKeys)) {
    splits = min2(ceil_div(a.Sk, kSplitKeys), ceil_div(64, p.heads * panels));
    split_keys = round_up(ceil_div(a.Sk, splits), TK);
    splits = ceil_div(a.Sk, split_keys);
  }
  // As many panels an item as the cache holds (they share converted K and V), but enough items for all threads.
  Scratch one{};
  Panel{}.take(one, Dr, a.Dv, value_pairs);
  const int64_t fit = max2<int64_t>(1, (384 << 10) / one.taken());
  panel_count = min2<int64_t>(min2<int64_t>(kMaxPanels, fit), max2<int64_t>(1, panels));
  while (panel_count > 1 && p.heads * splits * ceil_div(panels, panel_count) < 4 * threads)
    panel_count = (panel_count + 1) / 2;
  blocks = ceil_div(panels, panel_count);
  items = p.heads * blocks * splits;
  Scratch all{};
  take(all);
  for (int64_t i = 0; i < panel_count; i++) Panel{}.take(all, Dr, a.Dv, value_pairs);
  scratch_bytes = all.taken();
}

Buffers Forward::take(Scratch& scratch) const {
  Buffers x;
  x.S = scratch.take<float>(TK * PW);
  x.M = scratch.take<float>(p.a->mask_dtype != kNone ? TK * PW : 0);
  x.staging = scratch.take<float>(pairs ? Dr * PW + VL : VL);
  x.K = scratch.take<float>(copy_k ? TK * Dr : 0);
  x.V = scratch.take<float>(copy_v ? TK * round_up(p.a->Dv, VL) : 0);
  return x;
}

int32_t forward(const Args& a) {
  if (a.B * a.H * a.Sq == 0) return kOk;
  Forward f(&a);
  if (f.p.R <= kDecodeRows) return decode(f.p);
  f.plan(a.threads);
  if (a.dtype == kFloat32) return run_forward<F32, Fp32Op>(f, a.threads);
  if (a.dtype == kFloat16) return run_forward<F16, Fp32Op>(f, a.threads);
#if defined(__AVX512BF16__)
  return run_forward<BF16, PairOp>(f, a.threads);
#else
  return run_forward<BF16, Fp32Op>(f, a.threads);
#endif
}

int64_t forward_workspace(const Args& a) {
  if (a.B * a.H * a.Sq == 0) return 0;
  Forward f(&a);
  if (f.p.R <= kDecodeRows) return decode_workspace(f.p);
  f.plan(a.threads);
  const int64_t partial = f.splits > 1 ? f.p.heads * f.panels * f.splits * f.partial_floats() * 4 : 0;
  return usable_threads(f.items, a.threads) * f.scratch_bytes + partial;
}

}  // namespace rocattn

namespace {
bool sane(const rocattn::Args* a) {
  return a && a->size == (int64_t)sizeof(rocattn::Args) && a->Hkv > 0 && a->H % a->Hkv == 0 && a->B >= 0 &&
         a->Sq >= 0 && a->Sk >= 0 && a->D >= 0 && a->Dv >= 0 && a->Sk < (1LL << 30) && a->Sq < (1LL << 30) &&
         a->dtype >= 0 && a->dtype <= 2;
}
}  // namespace

namespace rocattn {
int32_t backward(const Args& a);
int64_t backward_workspace(const Args& a);
}  // namespace rocattn

extern "C" {
int64_t rocattn_cpu_workspace(const rocattn::Args* a, int32_t backward) {
  if (!sane(a)) return -1;
  return backward ? rocattn::backward_workspace(*a) : rocattn::forward_workspace(*a);
}
int32_t rocattn_cpu_forward(const rocattn::Args* a) { return sane(a) ? rocattn::forward(*a) : rocattn::kBadArguments; }
int32_t rocattn_cpu_backward(const rocattn::Args* a) {
  return sane(a) ? rocattn::backward(*a) : rocattn::kBadArguments;
}
int32_t rocattn_cpu_isa(void) {
#if defined(__AVX512BF16__)
  return rocattn::VL * 1000 + 1;
#else
  return rocattn::VL * 1000;
#endif
}
}
