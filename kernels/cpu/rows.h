// Scores with keys in the vector lanes: what decode and the backward pass share (forward.h has queries in the lanes).
#pragma once
#include "problem.h"

namespace rocattn {

// One packed query row: its location, visible keys and bias.
struct Row {
  int64_t position, head, from, to;
  float slope;
  const char* mask;

  void locate(const Problem& p, int64_t b, const Place& place) {
    const Args& a = *p.a;
    position = place.position, head = place.head;
    p.visible(position, &from, &to);
    slope = a.slopes ? a.slopes[b * a.H + head] * kLog2e : 0;
    mask = a.mask_dtype != kNone ? p.mask_row(b, head, position) : nullptr;
  }
};

RA_INLINE vi iota() {
  vi x{};
  for (int i = 0; i < VL; i++) x[i] = i;
  return x;
}

// Products of one row with keys [k0, k0 + n) -> scores that p.finished turns into log2 units, in place; hidden and
// missing ones become -inf. s has space for whole vectors. damp, unless null, gets the derivative of the softcap.
RA_INLINE void finish_row(const Problem& p, const Row& row, int64_t k0, int64_t n, float* s, float* damp) {
  const Args& a = *p.a;
  const vi from = vi{} + (int32_t)row.from, to = vi{} + (int32_t)min2(row.to, k0 + n);
  for (int64_t j = 0; j < n; j += VL) {
    const vi key = iota() + (int32_t)(k0 + j);
    vf x = load(s + j);
    if (a.softcap > 0) {
      const vf t = tanhv(x * p.cap_in);
      if (damp) store(damp + j, 1.0f - t * t);
      x = t * p.cap_out;
    } else if (p.general) {
      x = x * p.c;
    }
    if (a.slopes) x -= set1(row.slope) * vabs(__builtin_convertvector((int32_t)(row.position + p.shift) - key, vf));
    if (a.mask_dtype != kNone) {
      vf m{};
      if (a.ms[3] == 1 && j + VL <= n) m = mask_vector(row.mask, k0 + j, a.mask_dtype);
      else
        for (int64_t i = 0; i < min2<int64_t>(VL, n - j); i++)
          m[i] = mask_value(row.mask, (k0 + j + i) * a.ms[3], a.mask_dtype);
      x = apply_mask(x, m);
    }
    store(s + j, select((key >= from) & (key < to), x, set1(-kInf)));
  }
}

}  // namespace rocattn
