// The five products of the backward pass in the matrix unit (amx_tile.h), for one block of KEYS keys and query blocks
// of ROWS rows, from the same fp32 rows and into the same fp32 sums as the vector path of backward.cpp:
//   S = Q K^T, dP = dO V^T      A = Q, dO; B = K^T, V^T, cut once a block of keys
//   dV += P^T dO, dK += dS^T Q  A = P^T, dS^T; B = dO, Q
//   dQ = dS K                   A = dS; B = K, cut once a block of keys
//
// For 16-bit inputs. Cutting fp32 into three parts, seven times a block, takes what the unit saves: measured.
#pragma once
#include "amx_tile.h"

namespace rocattn {

// Where there is no matrix unit.
template <class T, int ROWS, int KEYS>
struct GradientUnit {
  static constexpr bool keys = false, rows = false;
  struct Registers {
    explicit Registers(bool) {}
  };
  GradientUnit(bool, Scratch&, const Args&) {}
  void cut_keys(const char* const*, const char* const*, const float*, int64_t) {}
  void cut_rows(const float*, const float*, int64_t) {}
  void scores(int64_t, int64_t, float*, float*) const {}
  bool sums(int64_t, int64_t, float*, float*, float*, float*, float*) const { return false; }
};

#if defined(__AMX_BF16__)
namespace amx {

template <class T, int ROWS, int KEYS>
class Gradients {
  static constexpr int kIn = kParts<T>, kOut = max2(kIn, 2);  // of inputs; of P and dS
  static constexpr int64_t tile = kTile * 4;
  using Scores = Pairs<kIn, kIn, min2(2 * (kIn - 1), 2)>;
  using Sums = Pairs<kOut, kIn, kOut - 1>;
  static_assert(KEYS == PW && ROWS % kStep == 0);

  struct Parts {
    float* data;
    int64_t part;  // floats
    void take(Scratch& scratch, int parts, int64_t rows, int64_t columns) {
      part = rows * columns / 2;
      data = scratch.take<float>(parts * part);
    }
    Operand operand(int64_t next, int64_t step) const { return {(const char*)data, next, step, part * 4}; }
  };
  int64_t D, Dv, width, width_v;  // padded to whole steps
  Parts k_t, v_t, k_b, q_a, q_b, do_a, do_b, p_t, ds_t, ds_a;
  float* zeros;
  const bool used;

 public:
  using Registers = Tiles;  // to be held while products are made
  bool keys = false, rows = false;  // whether the parts stand for K and V, for Q and dO

  // Unused, it takes no scratch and finds no parts.
  Gradients(bool use, Scratch& scratch, const Args& a)
      : D(a.D), Dv(a.Dv), width(round_up(D, kStep)), width_v(round_up(Dv, kStep)), used(use) {
    if (!use) return;
    k_t.take(scratch, kIn, KEYS, width), v_t.take(scratch, kIn, KEYS, width_v), k_b.take(scratch, kIn, KEYS, width);
    q_a.take(scratch, kIn, ROWS, width), q_b.take(scratch, kIn, ROWS, width);
    do_a.take(scratch, kIn, ROWS, width_v), do_b.take(scratch, kIn, ROWS, width_v);
    p_t.take(scratch, kOut, ROWS, KEYS), ds_t.take(scratch, kOut, ROWS, KEYS), ds_a.take(scratch, kOut, ROWS, KEYS);
    zeros = scratch.take<float>(max2<int64_t>(max2(width, width_v), KEYS));
  }

  // K as pointers to its rows and as fp32 rows of `width`; V as pointers.
  void cut_keys(const char* const* k_rows, const char* const* v_rows, const float* K, int64_t n) {
    if (!used) return;
    __builtin_memset(zeros, 0, (unsigned long)max2<int64_t>(max2(width, width_v), KEYS) * 4);
    keys = cut_bt<T>(k_rows, n, D, PV, {1, 0}, k_t.data, k_t.part).ordinary();
    keys &= cut_bt<T>(v_rows, n, Dv, PV, {1, 0}, v_t.data, v_t.part).ordinary();
    cut_b<F32, kIn>((const char*)K, width * 4, n, width, k_b.data, k_b.part, zeros);
  }
  // Q and dO as fp32 rows of `width` and `width_v`.
  void cut_rows(const float* Q, const float* dO, int64_t count) {
    if (!keys) return;
    rows = cut_a<F32, kIn>((const char*)Q, width * 4, count, width, q_a.data, q_a.part).ordinary();
    rows &= cut_a<F32, kIn>((const char*)dO, width_v * 4, count, width_v, do_a.data, do_a.part).ordinary();
    cut_b<F32, kIn>((const char*)Q, width * 4, count, width, q_b.data, q_b.part, zeros);
    cut_b<F32, kIn>((const char*)dO, width_v * 4, count, width_v, do_b.data, do_b.part, zeros);
  }
  void scores(int64_t count, int64_t seen, float* S, float* dP) const {
    const int64_t blocks = ceil_div(count, kStep), columns = ceil_div(seen, kStep);
    product<Scores, false>(q_a.operand(width / kStep * tile, tile), k_t.operand(tile, PV * tile), width / kStep, S,
                           KEYS, blocks, columns);
    product<Scores, false>(do_a.operand(width_v / kStep * tile, tile), v_t.operand(tile, PV * tile), width_v / kStep,
                           dP, KEYS, blocks, columns);
  }
  // Adds to dK and dV, writes dQ; false, and nothing is done, if P or dS (fp32 rows of KEYS) has no parts. Keys from
  // `seen` on are made 0 there.
  bool sums(int64_t count, int64_t seen, float* P, float* dS, float* dV, float* dK, float* dQ) const {
    for (int64_t i = 0; i < count; i++)
      for (int64_t j = seen; j < KEYS; j++) P[i * KEYS + j] = dS[i * KEYS + j] = 0;
    // Tiny weights are nothing beside the others of their sums.
    const char *p = (const char*)P, *ds = (const char*)dS;
    constexpr int64_t row = KEYS * 4;
    if (!cut_at<F32, kOut>(p, row, count, KEYS, ROWS, p_t.data, p_t.part, zeros).not_huge()) return false;
    if (!cut_a<F32, kOut>(ds, row, count, KEYS, ds_a.data, ds_a.part).not_huge()) return false;
    cut_at<F32, kOut>(ds, row, count, KEYS, ROWS, ds_t.data, ds_t.part, zeros);
    const int64_t blocks = ceil_div(count, kStep), key_blocks = ceil_div(seen, kStep), room = ROWS / kStep * tile;
    product<Sums, true>(p_t.operand(room, tile), do_b.operand(tile, width_v / VL * tile), blocks, dV, width_v,
                        key_blocks, width_v / kStep);
    product<Sums, true>(ds_t.operand(room, tile), q_b.operand(tile, width / VL * tile), blocks, dK, width, key_blocks,
                        width / kStep);
    product<Sums, false>(ds_a.operand(KEYS / kStep * tile, tile), k_b.operand(tile, width / VL * tile), key_blocks, dQ,
                         width, blocks, width / kStep);
    return true;
  }
};

}  // namespace amx

template <int ROWS, int KEYS>
struct GradientUnit<F16, ROWS, KEYS> : amx::Gradients<F16, ROWS, KEYS> {
  using amx::Gradients<F16, ROWS, KEYS>::Gradients;
};
template <int ROWS, int KEYS>
struct GradientUnit<BF16, ROWS, KEYS> : amx::Gradients<BF16, ROWS, KEYS> {
  using amx::Gradients<BF16, ROWS, KEYS>::Gradients;
};
#endif

}  // namespace rocattn
