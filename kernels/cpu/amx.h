// The forward pass in the matrix unit (amx_tile.h), in the layouts of forward.h: S^T[key][query] = K Q^T with rows of K
// and Q^T in pairs along d, and O^T[dv][query] += V^T P^T with rows of V^T and P^T in pairs of keys.
//
// A tile of keys or a panel of queries whose parts do not stand for it takes the vector path: the choice depends on
// fixed sets of rows only, so that a row's bits do not depend on which rows share its item.
#pragma once
#include "amx_tile.h"
#include "forward.h"

#if defined(__AMX_BF16__)
namespace rocattn {
namespace amx {

// As exponentiate (forward.h), into PARTS parts of pairs of keys P[part][step of 32 keys][vector][pair of keys][lane].
// One part alone is rounded to bf16: then the rounded weights are summed too, by which the output is divided.
template <int NC, int PARTS, int DEGREE>
static void exponentiate(const Panel& panel, int64_t n, const float* S, float c, float* P, int64_t part) {
  vf m[NC], l[NC], w[NC];
  for (int v = 0; v < NC; v++) {
    m[v] = load(panel.m + v * VL);
    m[v] = select(m[v] == set1(-kInf), vf{}, -m[v]);
    l[v] = w[v] = vf{};
  }
  for (int64_t j = 0; j < round_up(n, kStep); j += 2)
#pragma GCC unroll 4
    for (int v = 0; v < NC; v++) {
      vf e0 = j < n ? exp2v<DEGREE>(fma(load(S + j * PW + v * VL), set1(c), m[v])) : vf{};
      vf e1 = j + 1 < n ? exp2v<DEGREE>(fma(load(S + (j + 1) * PW + v * VL), set1(c), m[v])) : vf{};
      l[v] += e0;
      l[v] += e1;
      vu even[PARTS], odd[PARTS];
      cut<PARTS>(e0, even), cut<PARTS>(e1, odd);
      if (PARTS == 1) w[v] += (vf)even[0], w[v] += (vf)odd[0];
      float* tile = P + (j / kStep * PV + v) * kTile + j % kStep / 2 * VL;
      for (int p = 0; p < PARTS; p++) store(tile + p * part, (vf)pair(even[p], odd[p]));
    }
  for (int v = 0; v < NC; v++) {
    const vf sum = load(panel.l + v * VL) + l[v], rounded = load(panel.w + v * VL) + w[v];
    store(panel.l + v * VL, sum);
    if (PARTS == 1) store(panel.w + v * VL, select(sum == sum, rounded, sum));  // rounding may lose a NaN
  }
}

// Cuts n keys for all panels of an item; returns whether their parts stand for them.
template <class T>
static bool cut_tile(const Forward& f, const char* k, int64_t k_row, const char* v, int64_t v_row, int64_t n,
                     const Buffers& buffers) {
  const Args& a = *f.p.a;
  const Extents keys = cut_a<T>(k, k_row, n, a.D, buffers.k_parts, f.k_part);
  const Extents values = cut_at<T>(v, v_row, n, a.Dv, f.keys, buffers.v_parts, f.v_part, buffers.zeros);
  return keys.ordinary() && values.ordinary();
}

template <class T, int WEIGHTS, int NC>
static void panel_columns(const Forward& f, const Panel& panel, const Buffers& buffers, int64_t skip, int64_t k0,
                          int64_t n) {
  constexpr int kIn = kParts<T>, kDegree = T::bytes == 4 ? 6 : 5;
  constexpr int64_t tile = kTile * 4;
  const int64_t d_steps = ceil_div(f.p.a->D, kStep), k_steps = ceil_div(n, kStep), p_part = f.keys / 2 * PW;
  const Operand k = {(const char*)buffers.k_parts + skip / kRows * d_steps * tile, d_steps * tile, tile, f.k_part * 4};
  const Operand q = {(const char*)panel.parts, tile, PV * tile, f.q_part * 4};
  product<Pairs<kIn, kIn, min2(2 * (kIn - 1), 2)>, false>(k, q, d_steps, buffers.S, PW, k_steps, NC / 2);
  const float c = finish_scores<NC>(f.p, panel, k0, n, panel.edge(k0, n), buffers.S, buffers.M);
  exponentiate<NC, WEIGHTS, kDegree>(panel, n, buffers.S, c, buffers.p_parts, p_part);
  const Operand v = {(const char*)buffers.v_parts + skip / kStep * tile, f.keys / kStep * tile, tile, f.v_part * 4};
  const Operand p = {(const char*)buffers.p_parts, tile, PV * tile, p_part * 4};
  using Which = Pairs<kIn, WEIGHTS, WEIGHTS - 1>;
  const int64_t rows = ceil_div(f.p.a->Dv, 2 * kRows);
  if (panel.fresh) product<Which, false>(v, p, k_steps, panel.o, PW, rows, NC / 2);
  else product<Which, true>(v, p, k_steps, panel.o, PW, rows, NC / 2);
}

// Keys [k0, k0 + n), `skip` after the first that was cut, for one panel of 2 or 4 vectors; written to its output if
// that is fresh, else added.
template <class T>
static void panel_tile(const Forward& f, const Panel& panel, const Buffers& buffers, int64_t skip, int64_t k0,
                       int64_t n) {
  const auto run = [&](auto weights) {
    constexpr int kWeights = decltype(weights)::value;
    if (panel.vectors > 2) panel_columns<T, kWeights, 4>(f, panel, buffers, skip, k0, n);
    else panel_columns<T, kWeights, 2>(f, panel, buffers, skip, k0, n);
  };
  if constexpr (kParts<T> > 1) run(Number<kParts<T>>{});
  else if (f.weight_parts == 1) run(Number<1>{});
  else run(Number<2>{});
}

}  // namespace amx
}  // namespace rocattn
#endif
