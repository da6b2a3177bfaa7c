// Forward attention for many query rows: FlashAttention-2 with queries in the vector lanes.
//
// A panel is PW = 64 packed query rows (AVX-512; 16 on AVX2 and NEON), one per lane. Per tile of TK keys:
//   S^T[key][query] = K Q^T     A = rows of K as the caller stores them, B = Q^T[d][query], packed once per panel
//   P^T = exp2(c S^T - m)       max, exp2 and sum run along the registers: no horizontal step, no transposed K
//   O^T[dv][query] += V^T P^T   A = columns of V as stored, B = P^T
// so fp32 K and V are read in place, whatever their strides, except rows that thrash L1 (plan()); only Q and the output
// are transposed, once. 16-bit K and V are converted once per tile for all panels of an item: to fp32, or (bf16 with
// vdpbf16ps) to pairs along the summed axis.
//
// The running maximum m moves only when a tile exceeds it by more than 2^8 in the softmax (Dao and others,
// FlashAttention-4): p stays below 256, sums stay exact to fp32, and most tiles need no rescaling pass. Tiles that
// causal or window hide are not visited; only tiles on the band's edge compare positions. All state is per lane, so a
// row's bits do not depend on the other rows of its item, or on the number of threads.
//
// Cache: Q^T and O^T 32 KiB each at D = 128, S^T 16 KiB, K and V tile 32 KiB each. Measured on Zen 5, D = 128: see
// docs.
#pragma once
#include "gemm.h"
#include "pool.h"
#include "problem.h"

namespace rocattn {

constexpr int TK = 64;           // keys per tile
constexpr int kMinChunk = 16;    // keys on the diagonal: 32 take 2 % more time in causal calls (Zen 4)
constexpr int kMaxPanels = 8;    // of one item
constexpr int64_t kSplitKeys = 1024;
// From this Dv on bf16 weights are rounded to bf16 for their product with V, which takes half the time then. With fewer
// columns that product is cheap, and too few rounded weights' errors meet in a row to be sure of averaging out.
constexpr int64_t kRoundedWeights = 32;

// The rows of one panel and their running state; arrays have one value per lane.
struct Panel {
  int64_t first, rows, vectors;       // packed rows [first, first + rows)
  int64_t first_head;                 // b * H + h of their KV head's first one
  int64_t lo, hi, inner_lo, inner_hi;  // keys any row sees; keys every row sees
  int64_t top[PV], inner[PV];          // last key that vector v sees; last key that vector v and all after it see
  float *q, *o;                       // Q^T [D][PW] (pairs: [D/2][PW]), O^T [Dv][PW]
  float* parts;                       // of Q^T for the matrix unit (amx.h)
  bool ordinary;                      // whether those stand for Q
  bool fresh, packed;                 // whether O^T has not been written, and Q^T has
  float *m, *low;                      // the reference of weights, and what rounding took from it (rounded_off)
  float *l, *w, *slope;                // sum of weights; the same of weights as rounded for V (or l itself)
  int32_t *from, *to, *diagonal;      // visible keys and t = i + Sk - Sq
  const char** mask;                  // mask row of each lane

  void take(Scratch& scratch, int64_t Dr, int64_t Dv, bool rounded, int64_t part_floats) {
    q = scratch.take<float>(Dr * PW);
    o = scratch.take<float>(round_up(Dv, 32) * PW);
    parts = scratch.take<float>(part_floats);
    m = scratch.take<float>(PW);
    low = scratch.take<float>(PW);
    l = scratch.take<float>(PW);
    w = rounded ? scratch.take<float>(PW) : l;
    slope = scratch.take<float>(PW);
    from = scratch.take<int32_t>(PW);
    to = scratch.take<int32_t>(PW);
    diagonal = scratch.take<int32_t>(PW);
    mask = scratch.take<const char*>(PW);
  }
  bool edge(int64_t k0, int64_t n) const { return k0 < inner_lo || k0 + n > inner_hi; }
  // The panel without its first v vectors.
  Panel without(int64_t v) const {
    Panel x = *this;
    const int64_t lanes = v * VL;
    x.first += lanes, x.rows -= lanes, x.vectors -= v, x.inner_hi = inner[v];
    x.q += lanes, x.parts += v * 16 * VL, x.o += lanes, x.m += lanes, x.low += lanes, x.l += lanes, x.w += lanes;
    x.slope += lanes, x.from += lanes, x.to += lanes, x.diagonal += lanes, x.mask += lanes;
    return x;
  }
  // Vectors [v, end) of the panel.
  Panel between(int64_t v, int64_t end) const {
    Panel x = without(v);
    x.rows = min2(x.rows, (end - v) * VL), x.vectors = min2(x.vectors, end - v);
    return x;
  }
};

// Buffers of one thread in addition to its panels.
struct Buffers {
  float *S, *M, *staging, *K, *V;
  float *k_parts, *v_parts, *p_parts, *zeros;  // for the matrix unit; zeros: a row of V
  char *k_rows, *v_rows;                       // of a tile that pages cut
};

struct Forward {
  Problem p;
  bool pairs, value_pairs;    // bf16 in vdpbf16ps: Q K^T; P V too
  bool amx;                   // products in the matrix unit (amx.h)
  int input_parts = 0, weight_parts = 0;  // of Q, K, V and of P there
  int64_t q_part = 0, k_part = 0, v_part = 0;  // floats of one part of a panel's Q^T, of K's and V's keys
  int64_t keys;               // of K and V that an item's panels meet at a time
  bool copy_q, copy_k, copy_v;  // whether vectors cannot read them in place
  bool far;                   // rows are fetched ahead
  bool cut;                   // pages cut tiles
  int64_t Dr, panels, panel_count, items, blocks, splits, split_keys;
  int64_t shares = 1;         // threads that share the vectors of a panel
  int64_t scratch_bytes;
  char* scratch;
  float* partial;             // splits > 1: [head][panel][split][partial_floats()]

  explicit Forward(const Args* a) : p(a) {}
  int64_t partial_floats() const { return (p.a->Dv + 4) * PW; }  // m, low, l, w, O^T
  void plan(int threads);
  void choose_blocks(int64_t most, int threads);
  bool rounded() const { return value_pairs || weight_parts == 1; }  // the weights for V are those of bf16
  void take(Scratch& scratch, Panel& panel) const;
  Buffers take(Scratch& scratch) const;
};

// ---- what happens to a tile of scores, S[n][PW] ----

// The mask of keys [k0, k0 + n) for all lanes of a panel, in log2 units, as M[n][PW]; hidden is -inf.
RA_NOINLINE void mask_tile(const Problem& p, const Panel& panel, int64_t k0, int64_t n, float* M) {
  const Args& a = *p.a;
  const int64_t step = a.ms[3], width = panel.vectors * VL;
  if (!p.mask_rows) {
    for (int64_t j = 0; j < n; j++) {
      vf x = set1(mask_value(panel.mask[0], (k0 + j) * step, a.mask_dtype));
      for (int64_t l = 0; l < width; l += VL) store(M + j * PW + l, x);
    }
    return;
  }
  for (int64_t l0 = 0; l0 < width; l0 += VL) {
    int64_t j = 0;
    for (; step == 1 && j + VL <= n; j += VL) {
      vf r[VL];
      for (int l = 0; l < VL; l++)
        r[l] = l0 + l < panel.rows ? mask_vector(panel.mask[l0 + l], k0 + j, a.mask_dtype) : vf{};
      transpose(r);
      for (int l = 0; l < VL; l++) store(M + (j + l) * PW + l0, r[l]);
    }
    for (int l = 0; l < VL; l++)
      for (int64_t i = j; i < n; i++)
        M[i * PW + l0 + l] = l0 + l < panel.rows ? mask_value(panel.mask[l0 + l], (k0 + i) * step, a.mask_dtype) : 0.0f;
  }
}

// Products -> scores in log2 units: softcap, ALiBi, mask. Returns whether a mask may have hidden something.
template <int NC>
static void change_scores(const Problem& p, const Panel& panel, int64_t k0, int64_t n, float* S, float* M) {
  const Args& a = *p.a;
  if (a.mask_dtype != kNone) mask_tile(p, panel, k0, n, M);
  for (int64_t j = 0; j < n; j++)
    for (int v = 0; v < NC; v++) {
      float* s = S + j * PW + v * VL;
      vf x = load(s);
      x = a.softcap > 0 ? tanhv(x * p.cap_in) * p.cap_out : x * p.c;
      if (a.slopes) {
        vf distance = __builtin_convertvector(loadi(panel.diagonal + v * VL) - (int32_t)(k0 + j), vf);
        x -= load(panel.slope + v * VL) * vabs(distance);
      }
      if (a.mask_dtype != kNone) x = apply_mask(x, load(M + j * PW + v * VL));
      store(s, x);
    }
}

template <int NC>
static void hide_edges(const Panel& panel, int64_t k0, int64_t n, float* S) {
  for (int v = 0; v < NC; v++) {
    const vi from = loadi(panel.from + v * VL), to = loadi(panel.to + v * VL);
    for (int64_t j = 0; j < n; j++) {
      const vi key = vi{} + (int32_t)(k0 + j);
      float* s = S + j * PW + v * VL;
      store(s, select((key >= from) & (key < to), load(s), set1(-kInf)));
    }
  }
}

// How far scores are above the reference of vector v's weights, in log2 units.
RA_INLINE vf above(const Panel& panel, int v, vf s, float c) {
  return fma(s, set1(c), -load(panel.m + v * VL)) - load(panel.low + v * VL);
}

// Whether any reference is so large that exponents need both of its parts.
template <int NC>
static bool large_reference(const Panel& panel) {
  bool any = false;
  for (int v = 0; v < NC; v++) any |= any_greater(vabs(load(panel.low + v * VL)), vf{});
  return any;
}

// Moves the running maximum where a tile exceeds it, and rescales sums and output then. Before that, `written` adds
// what has the old scale to the output, and says whether that holds anything.
template <int NC, class Written>
static void raise_maximum(const Panel& panel, int64_t n, const float* S, float c, int64_t Dv, Written written) {
  vf top[NC];
  for (int v = 0; v < NC; v++) top[v] = set1(-kInf);
  for (int64_t j = 0; j < n; j++)
#pragma GCC unroll 4
    for (int v = 0; v < NC; v++) top[v] = vmax(load(S + j * PW + v * VL), top[v]);
  bool raised = false;
  for (int v = 0; v < NC; v++) raised |= any_greater(above(panel, v, top[v], c), set1(kSlack));
  if (__builtin_expect(!raised, 1)) return;
  if (!written()) Dv = 0;
  for (int v = 0; v < NC; v++) {
    const vf m = load(panel.m + v * VL), low = load(panel.low + v * VL), scaled = top[v] * c;
    const vi higher = above(panel, v, top[v], c) > set1(kSlack);
    const vf now = select(higher, scaled, m), now_low = select(higher, rounded_off(top[v], set1(c), scaled), low);
    const vf keep = exp2v((m - now) + (low - now_low));
    // An empty row has nothing to rescale.
    const vf alpha = select(higher, select(m == set1(-kInf), vf{}, keep), set1(1.0f));
    store(panel.m + v * VL, now);
    store(panel.low + v * VL, now_low);
    store(panel.l + v * VL, load(panel.l + v * VL) * alpha);
    if (panel.w != panel.l) store(panel.w + v * VL, load(panel.w + v * VL) * alpha);
    for (int64_t d = 0; d < Dv; d++) store(panel.o + d * PW + v * VL, load(panel.o + d * PW + v * VL) * alpha);
  }
}

// Runs the steps between a tile's products and their maximum. Returns the factor that remains for exp2.
template <int NC>
static float finish_scores(const Problem& p, const Panel& panel, int64_t k0, int64_t n, float* S, float* M) {
  if (p.general) change_scores<NC>(p, panel, k0, n, S, M);
  if (panel.edge(k0, n)) hide_edges<NC>(panel, k0, n, S);
  return p.finished;
}

// A score's exponent, given the negated reference.
template <bool LARGE>
RA_INLINE vf exponent(vf s, float c, vf minus_m, vf low) {
  const vf x = fma(s, set1(c), minus_m);
  return LARGE ? x - low : x;
}

template <int NC, bool LARGE>
static void exponentiate(const Panel& panel, int64_t n, float* S, float c) {
  vf m[NC], low[NC], l[NC];
  for (int v = 0; v < NC; v++) {
    m[v] = load(panel.m + v * VL), low[v] = load(panel.low + v * VL);
    m[v] = select(m[v] == set1(-kInf), vf{}, -m[v]);
    l[v] = vf{};
  }
  [[maybe_unused]] const FlushToZero scope;
  for (int64_t j = 0; j < n; j++)
#pragma GCC unroll 4
    for (int v = 0; v < NC; v++) {
      vf e = exp2_flushed<6>(exponent<LARGE>(load(S + j * PW + v * VL), c, m[v], low[v]));
      l[v] += e;
      store(S + j * PW + v * VL, e);
    }
  for (int v = 0; v < NC; v++) {
    if (panel.w != panel.l) store(panel.w + v * VL, load(panel.w + v * VL) + l[v]);
    store(panel.l + v * VL, load(panel.l + v * VL) + l[v]);
  }
}

#if defined(__AVX512BF16__)
// As exponentiate, but sums the rounded weights too (the output is divided by their sum, so that rounding a dominant
// weight cancels; the LSE keeps the exact one) and writes bf16 pairs of keys 2j and 2j + 1 in place, as
// [ceil(n / 2)][PW]; row n is 0 if n is odd.
template <int NC, bool LARGE>
static void exponentiate_pairs(const Panel& panel, int64_t n, float* S, float c) {
  vf m[NC], low[NC], l[NC], w[NC];
  for (int v = 0; v < NC; v++) {
    m[v] = load(panel.m + v * VL), low[v] = load(panel.low + v * VL);
    m[v] = select(m[v] == set1(-kInf), vf{}, -m[v]);
    l[v] = w[v] = vf{};
  }
  const FlushToZero scope;
  for (int64_t j = 0; j < n; j += 2)
#pragma GCC unroll 4
    for (int v = 0; v < NC; v++) {
      const float* s = S + j * PW + v * VL;
      vf e0 = exp2_flushed<5>(exponent<LARGE>(load(s), c, m[v], low[v]));
      vf e1 = j + 1 < n ? exp2_flushed<5>(exponent<LARGE>(load(s + PW), c, m[v], low[v])) : vf{};
      l[v] += e0;
      l[v] += e1;
      const vu pairs = pair_bf16(e0, e1);
      w[v] += (vf)(pairs << 16);
      w[v] += (vf)(pairs & 0xffff0000u);
      store(S + j / 2 * PW + v * VL, (vf)pairs);
    }
  for (int v = 0; v < NC; v++) {
    store(panel.l + v * VL, load(panel.l + v * VL) + l[v]);
    store(panel.w + v * VL, load(panel.w + v * VL) + w[v]);
  }
}
#endif

// O^T += V^T P^T where P hides keys whose V row is inf or NaN: p = 0 contributes nothing. V as V[key * v_row + dv].
template <class T, int NC>
static void add_values_hidden(const Panel& panel, const float* P, const char* V, int64_t v_row, int64_t n, int64_t Dv,
                              bool pairs) {
  for (int64_t d = 0; d < Dv; d++)
    for (int v = 0; v < NC; v++) {
      vf acc{};
      for (int64_t j = 0; j < n; j++) {
        vf w;
        if (pairs) {
          vu both = (vu)load(P + j / 2 * PW + v * VL);
          w = (vf)(j & 1 ? both & 0xffff0000u : both << 16);
        } else {
          w = load(P + j * PW + v * VL);
        }
        acc = select(w != vf{}, fma(w, set1(T::get(V + j * v_row, d)), acc), acc);
      }
      float* o = panel.o + d * PW + v * VL;
      store(o, panel.fresh ? acc : load(o) + acc);
    }
}

}  // namespace rocattn
