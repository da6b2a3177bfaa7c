// Decode: cutting keys into ranges, the softmax of a block, joining ranges (see decode.h; products: decode_block.h).
#include "decode.h"

#include "decode_block.h"
#include "pool.h"
#include "rows.h"

namespace rocattn {
namespace {

constexpr int64_t kCached = 1 << 20;  // bytes of K and V that are taken to be in a cache near the core
constexpr int64_t kAhead = 16 << 10;   // bytes between what is read and what is prefetched
constexpr int64_t kItems = 32;  // to cut the keys of all heads into, if each still has 128 keys: by the shape alone

struct Buffers {
  float *q, *o, *s, *m, *l, *w, *K, *V;
  Row* where;
};

struct Decode {
  Problem p;
  int64_t together, ranges, range_keys, Dp, Dvp, rows, scratch_bytes, partial_floats;
  bool copy, pairs, stream;  // stream: K and V come from memory; an item reads each nearly in the order of addresses
  int64_t value_keys;  // keys of V added for one head before the next head's turn
  char* scratch;
  float* partial;  // [head][range]: m[rows], l[rows], w[rows], O[rows][Dvp]

  static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }
  explicit Decode(const Problem& problem) : p(problem) {
    const Args& a = *p.a;
    Dp = round_up(a.D, VL), Dvp = round_up(a.Dv, VL);
    rows = p.R > 2 ? round_up(p.R, 4) : p.R;
    // Where heads lie side by side in memory (BSHD) an item takes them all, so that it reads whole pages in order.
    together = a.Hkv > 1 && magnitude(a.ks[1]) < magnitude(a.ks[2]) ? a.Hkv : 1;
    range_keys = min2<int64_t>(1024, max2<int64_t>(128, round_up(a.Sk * (p.heads / together) / kItems, DK)));
    ranges = max2<int64_t>(1, ceil_div(a.Sk, range_keys));
    copy = a.D % VL != 0 || a.Dv % VL != 0;
    const bool linear = a.ks[2] == together * a.D && a.vs[2] == together * a.Dv &&
                        (together == 1 || (a.ks[1] == a.D && a.vs[1] == a.Dv));
    stream = linear && !copy && p.heads * a.Sk * (a.D + a.Dv) * p.element() > kCached;
    value_keys = stream ? 8 / p.element() : DK;
#if defined(__AVX512BF16__)
    pairs = a.dtype == kBFloat16 && a.D % 32 == 0 && a.Dv % 32 == 0;
#else
    pairs = false;
#endif
    Scratch scratch_needed{};
    take(scratch_needed);
    scratch_bytes = scratch_needed.taken();
    partial_floats = rows * (Dvp + 3);
  }
  Buffers take(Scratch& scratch) const {
    const int64_t all = together * rows;
    Buffers x;
    x.q = scratch.take<float>(all * Dp);
    x.o = scratch.take<float>(all * Dvp);
    x.s = scratch.take<float>((pairs ? 2 : 1) * all * DK);  // and the weights in pairs
    x.m = scratch.take<float>(all);
    x.l = scratch.take<float>(round_up(all, VL) * VL);  // a vector a row
    x.w = pairs ? scratch.take<float>(round_up(all, VL) * VL) : x.l;
    x.K = scratch.take<float>(copy ? DK * Dp : 0);
    x.V = scratch.take<float>(copy ? DK * Dvp : 0);
    x.where = scratch.take<Row>(all);
    return x;
  }
  int64_t items() const { return p.heads / together * ranges; }
  int64_t partial_bytes() const { return ranges > 1 ? p.heads * ranges * partial_floats * 4 : 0; }
};

// One head's rows and running state.
struct State {
  float *q, *o, *m, *l, *w;  // sums of weights, exact and as rounded for V (or l itself): a vector a row
  Row* rows;
  int64_t lo, hi, inner_lo, inner_hi;  // keys any row sees, keys every row sees
};

// Scores -> weights of one row; rescales its sum and output where the maximum moves. Returns whether a weight is 0.
bool soften(const Problem& p, const Row& row, int64_t k0, int64_t n, bool finish, float* s, float* m, float* l,
            float* w, float* o, int64_t ldo, float* pairs) {
  if (finish) finish_row(p, row, k0, n, s, nullptr);
  const vf factor = set1(finish ? 1.0f : p.c);
  vf top = load(s);
  for (int64_t j = VL; j < n; j += VL) top = vmax(load(s + j), top);
  top = top * factor;
  if (any_greater(top, set1(*m + kSlack))) {
    float peak = *m;
    for (int i = 0; i < VL; i++) peak = top[i] > peak ? top[i] : peak;
    const float alpha = *m == -kInf ? 0.0f : exp2s(*m - peak);
    *m = peak;
    store(l, load(l) * alpha);
    if (w != l) store(w, load(w) * alpha);
    for (int64_t d = 0; d < ldo; d += VL) store(o + d, load(o + d) * alpha);
  }
  const vf base = set1(*m == -kInf ? 0.0f : -*m);
  vf sum = load(l), rounded = load(w);
  vi zero{};
  for (int64_t j = 0; j < n; j += VL) {
    const vf e = exp2v(fma(load(s + j), factor, base));
    sum += e;
    zero |= (vi)(e == vf{});
    store(s + j, e);
#if defined(__AVX512BF16__)
    if (pairs) {
      const vh half = (vh)_mm512_cvtneps_pbh((__m512)e);
      rounded += widen_bf16(half);
      *(vh_any*)((uint16_t*)pairs + j) = half;
    }
#endif
  }
  (void)pairs;
  if (w != l) store(w, rounded);
  store(l, sum);
  return any_greater(select(zero, set1(1.0f), vf{}), vf{});
}

template <class T>
void write_rows(const Decode& f, int64_t b, int64_t kv, const float* o, const float* m, const float* l,
                const float* w) {
  const Args& a = *f.p.a;
  for (int64_t r = 0; r < f.p.R; r++) {
    const int64_t position = r / f.p.G, h = f.p.head_of(kv, r);
    write_row<T>((void*)at(a.o, a.os, b, h, position, T::bytes), o + r * f.Dvp, a.Dv, w[r] == 0 ? 1.0f : 1.0f / w[r]);
    if (a.lse) a.lse[(b * a.H + h) * a.Sq + position] = natural_lse(m[r], l[r]);
  }
}

template <class T>
void start_head(const Decode& f, State& x, int64_t b, int64_t kv, bool first_range) {
  const Problem& p = f.p;
  const Args& a = *p.a;
  x.lo = a.Sk, x.hi = 0, x.inner_lo = 0, x.inner_hi = a.Sk;
  for (int64_t r = 0; r < f.rows; r++) {
    Row& row = x.rows[r];
    row.locate(p, b, kv, min2(r, p.R - 1));
    x.lo = min2(x.lo, row.from), x.hi = max2(x.hi, row.to);
    x.inner_lo = max2(x.inner_lo, row.from), x.inner_hi = min2(x.inner_hi, row.to);
    const char* q = at(a.q, a.qs, b, row.head, row.position, T::bytes);
    if (f.pairs) {
      const uint16_t flip = p.sign < 0 ? 0x8000 : 0;
      for (int64_t d = 0; d < a.D; d++)
        ((uint16_t*)(x.q + r * f.Dp))[d] = p.sign == 0 ? 0 : ((const uint16_t*)q)[d] ^ flip;
    } else {
      convert_row<T>(q, x.q + r * f.Dp, a.D, f.Dp, p.query);
      for (int64_t d = 0; p.sign == 0 && d < f.Dp; d++) x.q[r * f.Dp + d] = 0;
    }
    const float sink = a.sinks && first_range ? a.sinks[row.head] * kLog2e : -kInf;
    x.m[r] = sink;
    for (int i = 0; i < VL; i++) x.l[r * VL + i] = x.w[r * VL + i] = i == 0 && sink != -kInf ? 1.0f : 0.0f;
    for (int64_t d = 0; d < f.Dvp; d++) x.o[r * f.Dvp + d] = 0;
  }
}

// Scores of one head's rows and the n keys of a tile at k.
template <class T>
RA_INLINE void score_rows(const float* q, int64_t ldq, int64_t rows, const char* k, int64_t k_row, int64_t n,
                          int64_t width, float* s, Ahead& ahead) {
  if (rows == 1) return score_tile<T, 1>(q, ldq, k, k_row, n, width, s, ahead);
  if (rows == 2) return score_tile<T, 2>(q, ldq, k, k_row, n, width, s, ahead);
  for (int64_t r = 0; r < rows; r += 4) score_tile<T, 4>(q + r * ldq, ldq, k, k_row, n, width, s + r * DK, ahead);
}
int64_t tile_keys(int64_t rows) { return rows == 1 ? kKeys<1> : rows == 2 ? kKeys<2> : kKeys<4>; }

template <class T, int N>
RA_INLINE void add_values(const float* w, int64_t rows, const char* v, int64_t v_row, int64_t n, float* o, int64_t ldo,
                          Ahead& ahead) {
  constexpr int group = VL == 16 ? 4 : 2;  // rows whose sums, with four vectors of V, fit the registers
  if (rows == 1) return value_block<T, 1, N>(w, v, v_row, n, o, ldo, ahead);
  for (int64_t r = 0; r < rows; r += min2<int64_t>(rows, group)) {
    if (group == 4 && rows > 2) value_block<T, group, N>(w + r * DK, v, v_row, n, o + r * ldo, ldo, ahead);
    else value_block<T, 2, N>(w + r * DK, v, v_row, n, o + r * ldo, ldo, ahead);
    ahead.step = 0;  // the first rows fetched all of it
  }
}

// One block of keys [t, t + n) of `together` heads. T is how K and V are read; Source is their type in memory, which
// differs for pairs and for copies.
template <class T, class Source>
RA_NOINLINE void run_block(const Decode& f, const Buffers& y, const State& x, int64_t b, int64_t kv0, int64_t t,
                           int64_t n) {
  const Args& a = *f.p.a;
  const int64_t k_row = a.ks[2] * Source::bytes, k_head = a.ks[1] * Source::bytes;
  const int64_t v_row = a.vs[2] * Source::bytes, v_head = a.vs[1] * Source::bytes;
  const char* k = at(a.k, a.ks, b, kv0, t, Source::bytes);
  const char* v = at(a.v, a.vs, b, kv0, t, Source::bytes);
  Ahead next_k = {k + (f.stream ? kAhead : 0), f.stream}, next_v = {v + (f.stream ? kAhead : 0), f.stream};
  const int64_t width = Same<T, Pairs>::value ? a.D / 2 : f.Dp, tile = tile_keys(f.rows);
  const auto scores = [&](int64_t i, int64_t j, const char* keys, int64_t row) {
    const int64_t r = i * f.rows;
    score_rows<T>(y.q + r * f.Dp, f.Dp, f.rows, keys + j * row, row, n - j, width, y.s + r * DK + j, next_k);
  };
  if (f.copy) {
    for (int64_t i = 0; i < f.together; i++) {
      for (int64_t j = 0; j < n; j++) convert_row<Source>(k + i * k_head + j * k_row, y.K + j * f.Dp, a.D, f.Dp);
      for (int64_t j = 0; j < n; j += tile) scores(i, j, (const char*)y.K, f.Dp * 4);
    }
  } else {
    constexpr int side = Source::bytes == 4 || VL < 8 ? VL / 4 : VL / 8, keys = VL / 4 / side;
    int64_t j = 0;
    if (f.stream && f.rows == 4 && f.together % side == 0)
      for (; j + keys <= n; j += keys)
        for (int64_t i = 0; i < f.together; i += side)
          score_heads<T, 4, keys, side>(y.q + i * 4 * f.Dp, f.Dp, k + i * k_head + j * k_row, k_head, k_row, width,
                                        y.s + i * 4 * DK + j, next_k);
    for (; j < n; j += tile)
      for (int64_t i = 0; i < f.together; i++) scores(i, j, k + i * k_head, k_row);
  }

  const bool may_hide = t < x.inner_lo || t + n > x.inner_hi || a.mask_dtype != kNone;
  const bool finish = may_hide || f.p.general || n % VL != 0;
  const int64_t rows = f.together * f.rows;
  float* pairs = f.pairs ? y.s + rows * DK : nullptr;
  bool zero = false;
  for (int64_t r = 0; r < rows; r++)
    zero |= soften(f.p, y.where[r], t, n, finish, y.s + r * DK, y.m + r, y.l + r * VL, y.w + r * VL, y.o + r * f.Dvp,
                   f.Dvp, f.pairs ? pairs + r * DK : nullptr);

  const float* weights = f.pairs ? pairs : y.s;
  constexpr int64_t stream_keys = 8 / Source::bytes;
  const auto values = [&](int64_t i, int64_t j, int64_t count, const char* from, int64_t row) {
    const int64_t column = Same<T, Pairs>::value ? j / 2 : j, r = i * f.rows;
    const auto add = count == stream_keys ? add_values<T, stream_keys> : add_values<T, 0>;
    add(weights + r * DK + column, f.rows, from + j * row, row, count, y.o + r * f.Dvp, f.Dvp, next_v);
    next_v.step = f.stream;
  };
  const bool leaks = zero && may_hide;  // unless V is finite
  if (!f.copy && !leaks) {
    for (int64_t j = 0; j < n; j += f.value_keys)
      for (int64_t i = 0; i < f.together; i++) values(i, j, min2(f.value_keys, n - j), v + i * v_head, v_row);
    return;
  }
  for (int64_t i = 0; i < f.together; i++) {
    const char* from = v + i * v_head;
    const bool hidden = leaks && any_nonfinite<Source>(from, v_row, n, a.Dv);
    for (int64_t j = 0; f.copy && j < n; j++) convert_row<Source>(from + j * v_row, y.V + j * f.Dvp, a.Dv, f.Dvp);
    const char* read = f.copy ? (const char*)y.V : from;
    const int64_t row = f.copy ? f.Dvp * 4 : v_row, r = i * f.rows;
    if (!hidden) values(i, 0, n, read, row);
    else if (f.copy) value_hidden<F32>(y.s + r * DK, read, row, n, y.o + r * f.Dvp, f.Dvp, f.rows);
    else value_hidden<Source>(y.s + r * DK, read, row, n, y.o + r * f.Dvp, f.Dvp, f.rows);
  }
}

// A vector a row -> its sum, in place; room for a multiple of VL rows.
void sum_rows(float* x, int64_t rows) {
  for (int64_t r = 0; r < rows; r += VL) {
    vf t[VL];
    for (int i = 0; i < VL; i++) t[i] = load(x + (r + i) * VL);
    store(x + r, sum_lanes_of(t));
  }
}

template <class T>
void run_range(void* context, int64_t item, int worker) {
  const Decode& f = *(const Decode*)context;
  const Problem& p = f.p;
  const Args& a = *p.a;
  const int64_t range = item % f.ranges, first = item / f.ranges * f.together, b = first / a.Hkv, kv0 = first % a.Hkv;
  Scratch scratch = {f.scratch + worker * f.scratch_bytes};
  const Buffers y = f.take(scratch);
  const int64_t rows = f.together * f.rows;
  State x{};
  for (int64_t i = 0; i < f.together; i++) {  // what the rows see is the same for all heads
    const int64_t r = i * f.rows;
    x.q = y.q + r * f.Dp, x.o = y.o + r * f.Dvp, x.m = y.m + r, x.l = y.l + r * VL, x.w = y.w + r * VL;
    x.rows = y.where + r;
    start_head<T>(f, x, b, kv0 + i, range == 0);
  }
  const int64_t lo = max2(x.lo, range * f.range_keys), hi = min2(x.hi, (range + 1) * f.range_keys);
  for (int64_t t = lo; t < hi; t += DK) {
    const int64_t n = min2<int64_t>(DK, hi - t);
    if (f.copy) run_block<F32, T>(f, y, x, b, kv0, t, n);
#if defined(__AVX512BF16__)
    else if (f.pairs) run_block<Pairs, BF16>(f, y, x, b, kv0, t, n);
#endif
    else run_block<T, T>(f, y, x, b, kv0, t, n);
  }
  sum_rows(y.l, rows);
  if (y.w != y.l) sum_rows(y.w, rows);
  for (int64_t i = 0; i < f.together; i++) {
    const int64_t r = i * f.rows;
    if (f.ranges == 1) {
      write_rows<T>(f, b, kv0 + i, y.o + r * f.Dvp, y.m + r, y.l + r, y.w + r);
      continue;
    }
    float* to = f.partial + ((first + i) * f.ranges + range) * f.partial_floats;
    __builtin_memcpy(to, y.m + r, (unsigned long)f.rows * 4);
    __builtin_memcpy(to + f.rows, y.l + r, (unsigned long)f.rows * 4);
    __builtin_memcpy(to + 2 * f.rows, y.w + r, (unsigned long)f.rows * 4);
    __builtin_memcpy(to + 3 * f.rows, y.o + r * f.Dvp, (unsigned long)(f.rows * f.Dvp) * 4);
  }
}

template <class T>
void join_ranges(void* context, int64_t head, int) {
  const Decode& f = *(const Decode*)context;
  float* base = f.partial + head * f.ranges * f.partial_floats;
  for (int64_t r = 0; r < f.rows; r++) {
    float top = -kInf, sum = 0, rounded = 0;
    for (int64_t s = 0; s < f.ranges; s++) top = max2(top, base[s * f.partial_floats + r]);
    float* o = base + 3 * f.rows + r * f.Dvp;
    for (int64_t s = 0; s < f.ranges; s++) {
      const float* part = base + s * f.partial_floats;
      const float weight = part[r] == top ? 1.0f : exp2s(part[r] - top);
      sum += part[f.rows + r] * weight;
      rounded += part[2 * f.rows + r] * weight;
      const float* from = part + 3 * f.rows + r * f.Dvp;
      for (int64_t d = 0; d < f.Dvp; d += VL)
        store(o + d, s == 0 ? load(from + d) * weight : fma(load(from + d), set1(weight), load(o + d)));
    }
    base[r] = top, base[f.rows + r] = sum, base[2 * f.rows + r] = rounded;
  }
  write_rows<T>(f, head / f.p.a->Hkv, head % f.p.a->Hkv, base + 3 * f.rows, base, base + f.rows, base + 2 * f.rows);
}

template <class T>
int32_t run_decode(Decode& f) {
  const int used = usable_threads(f.items(), f.p.a->threads);
  char* memory = (char*)allocate(used * f.scratch_bytes + f.partial_bytes());
  if (!memory) return kOutOfMemory;
  f.scratch = memory, f.partial = (float*)(memory + used * f.scratch_bytes);
  run(f.items(), used, run_range<T>, &f);
  if (f.ranges > 1) run(f.p.heads, f.ranges * f.p.R >= 64 ? used : 1, join_ranges<T>, &f);
  release(memory);
  return kOk;
}

}  // namespace

int32_t decode(const Problem& p) {
  Decode f(p);
  switch (p.a->dtype) {
    case kFloat32: return run_decode<F32>(f);
    case kFloat16: return run_decode<F16>(f);
    default: return run_decode<BF16>(f);
  }
}
int64_t decode_workspace(const Problem& p) {
  Decode f(p);
  return usable_threads(f.items(), p.a->threads) * f.scratch_bytes + f.partial_bytes();
}

}  // namespace rocattn
