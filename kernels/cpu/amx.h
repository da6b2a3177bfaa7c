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

// As exponentiate (forward.h), for up to 32 keys, into PARTS parts of pairs of keys
// P[part][vector][pair of keys][lane]. One part alone is of bf16: then what it holds is summed too, by which the output
// is divided. Parts of 16-bit outputs are cut off, not rounded: that sum takes the bias out, and two parts have little.
// Nothing is summed, and false returned, if the running maximum must be raised first.
template <int PARTS, int NC, bool LARGE>
static bool exponentiate(const Panel& panel, int64_t n, const float* S, float c, float* P, int64_t part) {
  constexpr int kDegree = PARTS == kParts<F32> ? 6 : 5;
  vf m[NC], low[NC], l[NC], w[NC], top[NC];
  for (int v = 0; v < NC; v++) {
    m[v] = load(panel.m + v * VL), low[v] = load(panel.low + v * VL);
    m[v] = select(m[v] == set1(-kInf), vf{}, -m[v]);
    l[v] = w[v] = vf{};
    top[v] = set1(-kInf);
  }
  const FlushToZero scope;
  const auto weight = [&](int64_t j, int v) {
    const vf s = load(S + j * PW + v * VL);
    top[v] = vmax(s, top[v]);
    return exp2_flushed<kDegree>(exponent<LARGE>(s, c, m[v], low[v]));
  };
  const auto two_keys = [&](int64_t j, int v, vf e0, vf e1) {
    l[v] += e0;
    l[v] += e1;
    vu even[PARTS], odd[PARTS];
    cut<PARTS, kDegree == 6>(e0, even), cut<PARTS, kDegree == 6>(e1, odd);
    if (PARTS == 1) w[v] += (vf)even[0], w[v] += (vf)odd[0];
    for (int p = 0; p < PARTS; p++) store(P + v * kTile + j / 2 * VL + p * part, (vf)pair(even[p], odd[p]));
  };
  int64_t j = 0;
  for (; j + 1 < n; j += 2)
#pragma GCC unroll 4
    for (int v = 0; v < NC; v++) two_keys(j, v, weight(j, v), weight(j + 1, v));
  for (; j < kStep; j += 2)
    for (int v = 0; v < NC; v++) two_keys(j, v, j < n ? weight(j, v) : vf{}, vf{});
  bool exceeded = false;
  for (int v = 0; v < NC; v++) exceeded |= any_greater(above(panel, v, top[v], c), set1(kSlack));
  if (__builtin_expect(exceeded, 0)) return false;
  for (int v = 0; v < NC; v++) {
    const vf sum = load(panel.l + v * VL) + l[v], cut_off = load(panel.w + v * VL) + w[v];
    store(panel.l + v * VL, sum);
    if (PARTS == 1) store(panel.w + v * VL, select(sum == sum, cut_off, sum));  // cutting may lose a NaN
  }
  return true;
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

// Keys [k0, k0 + n), `skip` after the first that was cut, for NC vectors of queries at a time; written to the panel's
// output if that is fresh, else added.
//
// 32 keys become scores and weights at a time: the 4 KiB of scores stay in L1, and the unit idles for less than the
// 1000 cycles after which it has to wake. fp32, which takes six products, does better with four vectors and the next
// scores made ahead; 16-bit inputs do better without (measured on a Xeon whose cores are shared).
template <class T, int WEIGHTS, int NC>
static void panel_blocks(const Forward& f, const Panel& panel, const Buffers& buffers, int64_t skip, int64_t k0,
                         int64_t n) {
  constexpr int kIn = kParts<T>;
  constexpr bool kAhead = T::bytes == 4;
  constexpr int64_t tile = kTile * 4;
  const int64_t d_steps = ceil_div(f.p.a->D, kStep), p_part = f.keys / 2 * PW;
  const int64_t columns = panel.vectors / NC, blocks = ceil_div(n, kStep);
  const Operand k = {(const char*)buffers.k_parts + skip / kRows * d_steps * tile, d_steps * tile, tile, f.k_part * 4};
  const Operand q = {(const char*)panel.parts, tile, PV * tile, f.q_part * 4};
  const Operand v = {(const char*)buffers.v_parts + skip / kStep * tile, f.keys / kStep * tile, tile, f.v_part * 4};
  const Operand p = {(const char*)buffers.p_parts, tile, PV * tile, p_part * 4};

  const auto scores = [&](int64_t block, int64_t column) {
    Operand keys = k, queries = q;
    keys.data += block * 2 * keys.next, queries.data += column * NC * queries.next;
    float* S = buffers.S + (kAhead ? block % 2 : 0) * kStep * PW;
    product<Pairs<kIn, kIn, min2(2 * (kIn - 1), 2)>, false>(keys, queries, d_steps, S, PW, 1, NC / 2);
    return S;
  };
  // O^T += V^T P^T for blocks [first, last) and `count` times 32 queries from a column on.
  const auto add_values = [&](int64_t first, int64_t last, int64_t column, int64_t count) {
    using Which = Pairs<kIn, WEIGHTS, WEIGHTS - 1>;
    Operand left = v, right = p;
    left.data += first * left.step, right.data += first * right.step + column * NC * right.next;
    const int64_t steps = last - first, rows = ceil_div(f.p.a->Dv, 2 * kRows);
    float* o = panel.o + column * NC * VL;
    if (panel.fresh && first == 0) product<Which, false>(left, right, steps, o, PW, rows, count);
    else product<Which, true>(left, right, steps, o, PW, rows, count);
  };

  Panel parts[2] = {panel, panel.without(panel.vectors - NC)};
  parts[0].vectors = NC;
  int64_t added[2] = {};  // blocks whose values are in the output, by column
  float* ahead = kAhead ? scores(0, 0) : nullptr;
  for (int64_t block = 0; block < blocks; block++)
    for (int64_t column = 0; column < columns; column++) {
      float* S = kAhead ? ahead : scores(block, column);
      if (kAhead && block + 1 < blocks) ahead = scores(block + 1, 0);  // then there is one column
      const Panel& part = parts[column];
      const int64_t count = min2(kStep, n - block * kStep);
      const float c = finish_scores<NC>(f.p, part, k0 + block * kStep, count, S, buffers.M);
      const auto raise = [&] {
        raise_maximum<NC>(part, count, S, c, f.p.a->Dv, [&] {
          if (added[column] < block) add_values(added[column], block, column, NC / 2);
          added[column] = block;
          return !panel.fresh || block > 0;
        });
      };
      if (panel.fresh && block == 0) raise();
      float* P = buffers.p_parts + (block * PV + column * NC) * kTile;
      const auto weigh = [&] {
        const bool large = T::bytes == 2 && large_reference<NC>(part);  // fp32 has a c that rounds nothing off
        return (large ? exponentiate<WEIGHTS, NC, true> : exponentiate<WEIGHTS, NC, false>)(part, count, S, c, P,
                                                                                            p_part);
      };
      while (!weigh()) raise();
    }
  if (added[0] == added[columns - 1]) return add_values(added[0], blocks, 0, panel.vectors / 2);
  for (int64_t column = 0; column < columns; column++) add_values(added[column], blocks, column, NC / 2);
}

template <class T>
static void panel_tile(const Forward& f, const Panel& panel, const Buffers& buffers, int64_t skip, int64_t k0,
                       int64_t n) {
  if constexpr (T::bytes == 4) {
    if (panel.vectors > 2) panel_blocks<T, 3, 4>(f, panel, buffers, skip, k0, n);
    else panel_blocks<T, 3, 2>(f, panel, buffers, skip, k0, n);
  } else if (f.weight_parts == 1) {
    if constexpr (kParts<T> == 1) panel_blocks<T, 1, 2>(f, panel, buffers, skip, k0, n);
  } else {
    panel_blocks<T, 2, 2>(f, panel, buffers, skip, k0, n);
  }
}

}  // namespace amx
}  // namespace rocattn
#endif
