// Backward attention: dq, dk, dv from dout, out and the LSE (Dao, "FlashAttention-2", algorithm 2; no score is stored).
//
// An item is one block of KB keys of a KV head; it goes over all packed query rows in blocks of QB = 48 (AMX: 64):
//   S = Q K^T, P = exp2(c S - LSE), dP = dO V^T, dS = P (dP - delta)    A = Q, dO rows; B = K^T, V^T, packed once
//   dV += P^T dO, dK += dS^T Q                                          A = columns of P, dS; sums stay in L2
//   dQ += dS K                                                          A = dS rows, B = K
// so five products, all on the register tile of gemm.h, whatever the number of threads. dQ is shared by the key
// blocks of a head: each waits for its predecessor to have added its part of a query block, which keeps the order of
// additions, and so the bits, fixed. Items start in ascending order of a head's key blocks, so a predecessor
// has always started and seldom is waited for; with causal the first blocks are the heavy ones.
//
// Beyond 2^14 the rounding of an fp32 LSE shows in P (at 1e10 it is off by 512, and P is 0 or inf). For query blocks
// with such rows the items run twice: first they find each such row's largest score and sum of weights, from the same
// products as later P = exp2(c (S - largest)) / sum, in the order in which dQ is added up.
//
// Cache at D = 128 and 96 keys: K^T, V^T, K, dK, dV 240 KiB, a query block 48 KiB + 36 KiB of scores.
#include "backward_amx.h"
#include "dropout.h"
#include "gemm.h"
#include "pool.h"
#include "rows.h"
#include "varlen.h"

namespace rocattn {
namespace {

#if defined(__AMX_BF16__)
constexpr int KB = 64, QB = 64;  // whole tiles of the matrix unit
#else
// By 64 keys a block, 3 % more time on a Zen 4: rows of q, dout and dq are gone through more often.
constexpr int KB = VL == 16 ? 96 : 64, QB = 48;
#endif
constexpr int kHalf = QB / 2;  // on the diagonal the first rows of a query block see fewer keys than the others

constexpr int kRowsAhead = 4;  // of dout and out, which prepare() is the first to read: 1 to 2 % less time at S = 320
constexpr float kLargeLse = 0x1p14f;

// What a row's probabilities are relative to.
struct Reference {
  float lse;       // in log2 units
  float top, sum;  // of a large one: the largest score (log2 units are p.finished times it), and the sum of weights
  int32_t large;

  vf probabilities(vf x, float factor) const {
    if (large) return exp2v((x - top) * factor) * (1.0f / sum);
    return exp2v(fma(x, set1(factor), set1(-lse)));
  }
};

struct Buffers {
  float *K, *Kt, *Vt, *dK, *dV, *Q, *dQ, *dO, *S, *dP, *damp, *staging, *kept;
  Row* rows;
};

struct Backward {
  Problem p;
  int64_t Dp, Dvp, key_blocks, query_blocks, scratch_bytes;
  int64_t together;           // heads whose items stand side by side: one a thread
  bool sums;          // 16-bit dq is summed in fp32 first
  bool alone;         // a row's keys are all in one block: the sum of its P * dP needs no 16-bit O
  bool amx = false;   // products in the matrix unit
  bool far;           // rows of q, dout and dq do not stay in a core's own cache from one key block to the next
  char* scratch;
  Reference* references;     // [head][row]
  float *delta, *dq;         // [head][row]: rowsum(dO * O) - dLSE, or -dLSE where `alone`; [head][row][Dp]
  int32_t *turn, *large;     // [head][query block]: the key block whose addition is due; whether a reference is large
  int32_t any_large = 0;
  bool survey = false;       // whether items find large references' scores and sums

  explicit Backward(const Args* args) : p(args) {
    const Args& a = *args;
    sums = a.dtype != kFloat32;
    Dp = round_up(a.D, VL), Dvp = round_up(a.Dv, VL);
#if defined(__AMX_BF16__)
    amx = sums && amx::allowed();
    if (amx) Dp = round_up(a.D, amx::kStep), Dvp = round_up(a.Dv, amx::kStep);
#endif
    far = p.heads * p.R * (2 * a.D + a.Dv) * p.element() > kNear;
    key_blocks = ceil_div(a.Sk, KB), query_blocks = ceil_div(p.R, QB);
    alone = sums && key_blocks == 1;
    together = max2<int64_t>(1, min2<int64_t>(a.threads, p.heads));
    Scratch needed{};
    take(needed);
    if (a.dtype == kFloat16) GradientUnit<F16, QB, KB>(amx, needed, a);
    if (a.dtype == kBFloat16) GradientUnit<BF16, QB, KB>(amx, needed, a);
    scratch_bytes = needed.taken();
  }
  Buffers take(Scratch& scratch) const {
    Buffers x;
    x.K = scratch.take<float>(KB * Dp);
    x.Kt = scratch.take<float>(KB * p.a->D);
    x.Vt = scratch.take<float>(KB * p.a->Dv);
    x.dK = scratch.take<float>(KB * Dp);
    x.dV = scratch.take<float>(KB * Dvp);
    x.Q = scratch.take<float>(QB * Dp);
    x.dQ = scratch.take<float>(QB * Dp);
    x.dO = scratch.take<float>(QB * Dvp);
    x.S = scratch.take<float>(QB * KB);
    x.dP = scratch.take<float>(QB * KB);
    x.damp = scratch.take<float>(KB);
    x.staging = scratch.take<float>(VL);
    x.rows = scratch.take<Row>(QB);
    x.kept = p.a->dropout_key ? scratch.take<float>(round_up(KB, kWords * VL)) : nullptr;
    return x;
  }
  // Items go through a few heads at a time, key block by key block: those heads' rows of q, dout and dq stay in L2.
  int64_t group_of(int64_t item) const { return item / (together * key_blocks); }
  int64_t heads_of(int64_t group) const { return min2(together, p.heads - group * together); }
  int64_t block_of(int64_t item) const { return item % (together * key_blocks) / heads_of(group_of(item)); }
  int64_t head_of(int64_t item) const {
    const int64_t group = group_of(item);
    return group * together + item % (together * key_blocks) % heads_of(group);
  }
  int64_t rows() const { return p.heads * p.R; }
  int64_t shared_bytes() const {
    return 64 * 4 + 20 * rows() + (sums ? 4 * rows() * Dp : 0) + 8 * p.heads * query_blocks;
  }
  // Keys that some row of a query block sees.
  void keys_of(int64_t query_block, int64_t* lo, int64_t* hi) const {
    int64_t unused;
    p.visible(query_block * QB / p.G, lo, &unused);
    p.visible((min2(p.R, (query_block + 1) * QB) - 1) / p.G, &unused, hi);
  }
};

template <class T>
void prepare(void* context, int64_t item, int) {
  Backward& f = *(Backward*)context;
  const Problem& p = f.p;
  const Args& a = *p.a;
  const int64_t head = item / f.query_blocks, block = item % f.query_blocks, b = head / a.Hkv, kv = head % a.Hkv;
  int64_t lo, hi;
  f.keys_of(block, &lo, &hi);
  f.turn[item] = (int32_t)(lo / KB);
  f.large[item] = 0;
  Place place(p, kv, block * QB), ahead(p, kv, block * QB + kRowsAhead);
  for (int64_t r = block * QB; r < min2(p.R, (block + 1) * QB); r++, place.advance(), ahead.advance()) {
    const int64_t position = place.position, h = place.head;
    if (r + kRowsAhead < p.R) {
      fetch_row(at(a.dout, a.dos, b, ahead.head, ahead.position, T::bytes), a.Dv * T::bytes);
      fetch_row(at(a.o, a.os, b, ahead.head, ahead.position, T::bytes), a.Dv * T::bytes);
    }
    const char* dout = at(a.dout, a.dos, b, h, position, T::bytes);
    const char* out = at(a.o, a.os, b, h, position, T::bytes);
    vf sum{};
    int64_t d = 0;
    for (; d + VL <= a.Dv; d += VL) sum = fma(T::get_vector(dout, d), T::get_vector(out, d), sum);
    float total = sum_lanes(sum);
    for (; d < a.Dv; d++) total += T::get(dout, d) * T::get(out, d);
    const int64_t logs = (b * a.H + h) * a.ls + position;
    const float lse = a.lse[logs];
    f.delta[head * p.R + r] = (f.alone ? 0.0f : total) - (a.dlse ? a.dlse[logs] : 0.0f);
    const bool large = (lse > kLargeLse || lse < -kLargeLse) && lse - lse == 0;
    const float sink = large && a.sinks ? a.sinks[h] * kLog2e / p.finished : -kInf;
    f.references[head * p.R + r] = {lse == -kInf ? 0.0f : to_log2(lse),  // exp2(-inf - 0) is the 0 an empty row needs
                                    sink, sink == -kInf ? 0.0f : 1.0f, large};
    if (large) f.large[item] = 1, __atomic_store_n(&f.any_large, 1, __ATOMIC_RELAXED);
    if (lo >= hi)
      for (d = 0; d < a.D; d++) T::put((void*)at(a.dq, a.dqs, b, h, position, T::bytes), d, 0.0f);
  }
}

// rowsum(P * dP) of a row whose keys are all here, which is rowsum(dO * O) without the rounding of a 16-bit O.
RA_INLINE float exact_delta(const float* s, const float* dp, int64_t n, float factor, const Reference& reference) {
  vf sum{};
  for (int64_t j = 0; j < n; j += VL) {
    const vf x = load(s + j), e = reference.probabilities(x, factor);
    sum += select((x == set1(-kInf)) | (iota() + (int32_t)j >= (int32_t)n), vf{}, e * load(dp + j));
  }
  return sum_lanes(sum);
}

// Takes a row's scores of n keys into a large reference.
void survey_row(const Problem& p, const Row& row, int64_t k0, int64_t n, bool finish, float* s, Reference& reference) {
  if (finish) finish_row(p, row, k0, n, s, nullptr);
  vf top = set1(reference.top), sum{};
  for (int64_t j = 0; j < n; j += VL) {
    const vf x = select(iota() + (int32_t)j < (int32_t)n, load(s + j), set1(-kInf));
    store(s + j, x);
    top = vmax(x, top);
  }
  float peak = -kInf;
  for (int i = 0; i < VL; i++) peak = max2(peak, top[i]);
  if (peak == -kInf) return;
  for (int64_t j = 0; j < n; j += VL) sum += exp2v((load(s + j) - peak) * p.finished);
  const float kept = reference.top == peak ? 1.0f : exp2s((reference.top - peak) * p.finished);
  reference.sum = reference.sum * kept + sum_lanes(sum);
  reference.top = peak;
}

// P and dS of one row, in place of the products S and dP; `kept`: what dropout multiplies P, and dP, by; or null.
RA_INLINE void row_gradients(const Problem& p, const Row& row, int64_t k0, int64_t n, const Reference& reference,
                             float delta, bool alone, bool finish, bool may_hide, float* s, float* dp, float* damp,
                             const float* kept) {
  const bool damped = p.a->softcap > 0;
  if (finish) finish_row(p, row, k0, n, s, damped ? damp : nullptr);
  for (int64_t j = 0; kept && j < n; j += VL) store(dp + j, load(dp + j) * load(kept + j));
  if (alone) delta += exact_delta(s, dp, n, p.finished, reference);
  for (int64_t j = 0; j < n; j += VL) {
    const vf x = load(s + j);
    vf e = reference.probabilities(x, p.finished);
    vf g = e * (load(dp + j) - delta);
    if (damped) g = g * load(damp + j);
    if (may_hide) {  // whatever LSE, dout and V hold
      const vi hidden = x == set1(-kInf);
      e = select(hidden, vf{}, e);
      g = select(hidden | (e == vf{}), vf{}, g);
    }
    store(s + j, e);
    store(dp + j, g);
  }
  for (int64_t j = 0; kept && j < n; j += VL) store(s + j, load(s + j) * load(kept + j));
}

void await_turn(const int32_t* turn, int32_t mine) {
  for (int64_t spin = 0; __atomic_load_n(turn, __ATOMIC_ACQUIRE) != mine; spin++) {
    if (spin < 4000) relax();
    else yield_thread();
  }
}

// Where a row's gradient is summed: in place, if that is fp32.
template <class T>
float* dq_row(const Backward& f, int64_t head, int64_t r, const Row& row) {
  const Args& a = *f.p.a;
  if (f.sums) return f.dq + (head * f.p.R + r) * f.Dp;
  return (float*)at(a.dq, a.dqs, head / a.Hkv, row.head, row.position, T::bytes);
}

template <class T>
void add_queries(const Backward& f, int64_t head, int64_t r0, int64_t count, const Row* rows, const float* part,
                 bool first, bool last) {
  const Args& a = *f.p.a;
  const vf scale = set1(a.scale);
  for (int64_t i = 0; i < count; i++) {
    float* to = dq_row<T>(f, head, r0 + i, rows[i]);
    const float* from = part + i * f.Dp;
    int64_t d = 0;
    for (; d + VL <= a.D; d += VL)
      store(to + d, first ? load(from + d) * scale : fma(load(from + d), scale, load(to + d)));
    for (; d < a.D; d++) to[d] = first ? from[d] * a.scale : to[d] + from[d] * a.scale;
    if (f.sums && last)
      write_row<T>((void*)at(a.dq, a.dqs, head / a.Hkv, rows[i].head, rows[i].position, T::bytes), to, a.D, 1.0f);
  }
}

// Starts to read rows [r, end) of q and dout, which lie too far apart for the hardware to foresee.
template <class T>
void fetch_queries(const Problem& p, int64_t b, int64_t kv, int64_t r, int64_t end) {
  const Args& a = *p.a;
  for (; r < end; r++) {
    const int64_t h = p.head_of(kv, r), position = r / p.G;
    fetch_row(at(a.q, a.qs, b, h, position, T::bytes), a.D * T::bytes);
    fetch_row(at(a.dout, a.dos, b, h, position, T::bytes), a.Dv * T::bytes);
  }
}

// One block of keys of a head, and the blocks of queries that it goes over.
template <class T>
struct Item {
  using Unit = GradientUnit<T, QB, KB>;
  // A block of queries: rows [first, first + count), of which some sees keys [lo, hi) and `seen` of this item's.
  struct QueryBlock {
    int64_t index, first, count, lo, hi, seen;
    bool edge, may_hide;  // whether the band hides pairs of the two blocks; whether anything may
    int64_t early_rows, early_keys;  // so many first rows see fewer keys, and are multiplied apart; or 0 and `seen`
  };

  const Backward& f;
  const Problem& p;
  const Args& a;
  const int64_t block, head, b, kv, k0, n;
  Scratch scratch;
  const Buffers buffers;
  Unit unit;
  const typename Unit::Registers registers;
  const char* k_rows[KB];
  const char* v_rows[KB];
  bool k_bad, packed = false;

  Item(const Backward& f, int64_t item, int worker)
      : f(f), p(f.p), a(*p.a), block(f.block_of(item)), head(f.head_of(item)), b(head / a.Hkv), kv(head % a.Hkv),
        k0(block * KB), n(min2<int64_t>(KB, a.Sk - k0)), scratch{f.scratch + worker * f.scratch_bytes},
        buffers(f.take(scratch)), unit(f.amx, scratch, a), registers(f.amx) {
    for (int64_t j = 0; j < n; j++) {
      k_rows[j] = at(a.k, a.ks, b, kv, k0 + j, T::bytes);
      v_rows[j] = at(a.v, a.vs, b, kv, k0 + j, T::bytes);
      convert_row<T>(k_rows[j], buffers.K + j * f.Dp, a.D, f.Dp);
    }
    unit.cut_keys(k_rows, v_rows, buffers.K, n);
    for (int64_t i = 0; i < KB * f.Dp; i++) buffers.dK[i] = 0;
    for (int64_t i = 0; i < KB * f.Dvp; i++) buffers.dV[i] = 0;
    k_bad = any_nonfinite<F32>(buffers.K, 0, 1, n * f.Dp);
  }

  void run() {
    for (int64_t index = 0; index < f.query_blocks; index++) {
      int64_t lo, hi;
      f.keys_of(index, &lo, &hi);
      if (lo >= hi || block < lo / KB || block > (hi - 1) / KB) continue;
      if (f.survey && !f.large[head * f.query_blocks + index]) continue;
      const QueryBlock queries = prepare(index, lo, hi);
      fetch_ahead(queries, 0);
      const bool in_unit = multiply(queries);
      if (f.survey) survey(queries);
      else add_gradients(queries, in_unit);
    }
    if (!f.survey) finish();
  }

 private:
  int32_t* turn(const QueryBlock& queries) const { return f.turn + head * f.query_blocks + queries.index; }
  Reference* references(const QueryBlock& queries) const { return f.references + head * p.R + queries.first; }

  // Rows of Q and dO as floats.
  QueryBlock prepare(int64_t index, int64_t lo, int64_t hi) {
    const int64_t first = index * QB, count = min2<int64_t>(QB, p.R - first), seen = min2(n, hi - k0);
    bool edge = false;
    Place place(p, kv, first);
    for (int64_t i = 0; i < count; i++, place.advance()) {
      Row& row = buffers.rows[i];
      row.locate(p, b, place);
      edge |= k0 < row.from || k0 + seen > row.to;
      convert_row<T>(at(a.q, a.qs, b, row.head, row.position, T::bytes), buffers.Q + i * f.Dp, a.D, f.Dp, p.query);
      convert_row<T>(at(a.dout, a.dos, b, row.head, row.position, T::bytes), buffers.dO + i * f.Dvp, a.Dv, f.Dvp);
    }
    if (p.sign == 0)
      for (int64_t i = 0; i < count * f.Dp; i++) buffers.Q[i] = 0;
    int64_t early_rows = 0, early_keys = seen;
    if (count > kHalf) {
      const int64_t keys = max2<int64_t>(buffers.rows[kHalf - 1].to - k0, 0);
      if (ceil_div(keys, VL) < ceil_div(seen, VL)) early_rows = kHalf, early_keys = keys;
    }
    return {index, first, count, lo, hi, seen, edge, edge || a.mask_dtype != kNone, early_rows, early_keys};
  }

  // The next block's rows are fetched in three parts, between the products.
  void fetch_ahead(const QueryBlock& queries, int part) const {
    const int64_t next = queries.first + QB;
    if (f.far) fetch_queries<T>(p, b, kv, next + part * QB / 3, min2(p.R, next + (part + 1) * QB / 3));
  }

  // What the vector path needs beside rows, once an item.
  void pack() {
    if (packed) return;
    packed = true;
    pack_transposed<T>(k_rows, n, a.D, buffers.Kt, KB, KB, Unscaled{}, buffers.staging);
    pack_transposed<T>(v_rows, n, a.Dv, buffers.Vt, KB, KB, Unscaled{}, buffers.staging);
  }

  // S and dP of some rows of the block and its first `keys` keys, on vectors.
  void multiply_rows(int64_t first, int64_t count, int64_t keys) const {
    const float *Q = buffers.Q + first * f.Dp, *dO = buffers.dO + first * f.Dvp;
    float *S = buffers.S + first * KB, *dP = buffers.dP + first * KB;
    const int64_t columns = ceil_div(keys, VL);
    // Summed in the forward pass's order: a score that differs from the one in the LSE is an error of every gradient.
    product_short<Fp32Op>(Q, f.Dp * 4, buffers.Kt, KB, S, KB, count, columns, a.D, T::bytes == 4);
    product<Fp32Op, false, false>(dO, f.Dvp * 4, 4, buffers.Vt, KB, dP, KB, count, columns, a.Dv);
  }

  // S = Q K^T and dP = dO V^T; says whether the matrix unit computed them.
  bool multiply(const QueryBlock& queries) {
    unit.cut_rows(buffers.Q, buffers.dO, queries.count);
    const bool in_unit = unit.keys && unit.rows;
    if (in_unit) {
      unit.scores(queries.count, queries.seen, buffers.S, buffers.dP);
      return true;
    }
    pack();
    multiply_rows(0, queries.early_rows, queries.early_keys);
    multiply_rows(queries.early_rows, queries.count - queries.early_rows, queries.seen);
    return false;
  }

  void survey(const QueryBlock& queries) const {
    await_turn(turn(queries), (int32_t)block);
    for (int64_t i = 0; i < queries.count; i++)
      if (Reference& reference = references(queries)[i]; reference.large)
        survey_row(p, buffers.rows[i], k0, queries.seen, queries.edge || p.general, buffers.S + i * KB, reference);
    // The last one leaves it as it found it, for the items' second run.
    const int64_t next = block == (queries.hi - 1) / KB ? queries.lo / KB : block + 1;
    __atomic_store_n(turn(queries), (int32_t)next, __ATOMIC_RELEASE);
  }

  void add_gradients(const QueryBlock& queries, bool in_unit) {
    fetch_ahead(queries, 1);
    for (int64_t i = 0; i < queries.count; i++) {
      if (buffers.kept) kept_of_row(p, buffers.rows[i], b, k0, queries.seen, buffers.kept);
      row_gradients(p, buffers.rows[i], k0, queries.seen, references(queries)[i],
                    f.delta[head * p.R + queries.first + i], f.alone,
                    queries.edge || p.general, queries.may_hide, buffers.S + i * KB, buffers.dP + i * KB, buffers.damp,
                    buffers.kept);
    }
    fetch_ahead(queries, 2);
    // The rows of dq that this block adds to.
    for (int64_t i = 0; f.far && i < queries.count; i++)
      fetch_row(dq_row<T>(f, head, queries.first + i, buffers.rows[i]), a.D * 4);
    if (!in_unit || !unit.sums(queries.count, queries.seen, buffers.S, buffers.dP, buffers.dV, buffers.dK, buffers.dQ))
      multiply_gradients(queries);
    await_turn(turn(queries), (int32_t)block);
    add_queries<T>(f, head, queries.first, queries.count, buffers.rows, buffers.dQ, block == queries.lo / KB,
                   block == (queries.hi - 1) / KB);
    __atomic_store_n(turn(queries), (int32_t)block + 1, __ATOMIC_RELEASE);
  }

  // dV += P^T dO, dK += dS^T Q, dQ = dS K, on vectors.
  void multiply_gradients(const QueryBlock& queries) const {
    float *P = buffers.S, *dS = buffers.dP, *K = buffers.K, *Q = buffers.Q, *dO = buffers.dO;
    float *dK = buffers.dK, *dV = buffers.dV, *dQ = buffers.dQ;
    const int64_t columns = f.Dp / VL, columns_v = f.Dvp / VL, count = queries.count, seen = queries.seen;
    const bool bad = queries.may_hide && (k_bad || any_nonfinite<F32>(Q, 0, 1, count * f.Dp) ||
                                          any_nonfinite<F32>(dO, 0, 1, count * f.Dvp));
    if (bad) {
      for (int64_t i = 0; i < count * f.Dp; i++) dQ[i] = 0;
      product_hidden<true>(P, 4, KB * 4, dO, f.Dvp, dV, f.Dvp, seen, columns_v, count);
      product_hidden<true>(dS, 4, KB * 4, Q, f.Dp, dK, f.Dp, seen, columns, count);
      product_hidden<false>(dS, KB * 4, 4, K, f.Dp, dQ, f.Dp, count, columns, seen);
    } else {
      const int64_t few = queries.early_rows, keys = queries.early_keys;
      const auto add = [&](const float* weights, const float* rows, int64_t width, float* sums) {
        product<Fp32Op, true, true>(weights, 4, KB * 4, rows, width, sums, width, keys, width / VL, count);
        product<Fp32Op, true, true>(weights + few * KB + keys, 4, KB * 4, rows + few * width, width,
                                    sums + keys * width, width, seen - keys, width / VL, count - few);
      };
      add(P, dO, f.Dvp, dV);
      add(dS, Q, f.Dp, dK);
      product<Fp32Op, false, false>(dS, KB * 4, 4, K, f.Dp, dQ, f.Dp, few, columns, keys);
      product<Fp32Op, false, false>(dS + few * KB, KB * 4, 4, K, f.Dp, dQ + few * f.Dp, f.Dp, count - few, columns,
                                    seen);
    }
  }

  void finish() const {
    for (int64_t j = 0; j < n; j++) {
      write_row<T>((void*)at(a.dk, a.dks, b, kv, k0 + j, T::bytes), buffers.dK + j * f.Dp, a.D, p.key_gradient);
      write_row<T>((void*)at(a.dv, a.dvs, b, kv, k0 + j, T::bytes), buffers.dV + j * f.Dvp, a.Dv, 1.0f);
    }
  }
};

template <class T>
void run_item(void* context, int64_t item, int worker) {
  Item<T>(*(const Backward*)context, item, worker).run();
}

template <class T>
void run_backward(Backward& f, char* memory) {
  const int threads = f.p.a->threads;
  const int64_t items = f.p.heads * f.key_blocks;
  const int used = usable_threads(items, threads);
  f.scratch = memory;
  f.references = (Reference*)(memory + used * f.scratch_bytes);
  f.delta = (float*)(f.references + f.rows());
  f.turn = (int32_t*)(f.delta + f.rows());
  f.large = f.turn + f.p.heads * f.query_blocks;
  f.dq = (float*)f.turn + round_up(2 * f.p.heads * f.query_blocks, 16);
  run(f.p.heads * f.query_blocks, threads, prepare<T>, &f);
  if (f.any_large) {
    f.survey = true;
    run(items, used, run_item<T>, &f);
    f.survey = false;
  }
  run(items, used, run_item<T>, &f);
}

}  // namespace

int64_t backward_items(const Args& a) { return a.B * a.Hkv * ceil_div(a.Sk, KB); }

int64_t backward_workspace(const Args& a) {
  Backward f(&a);
  return usable_threads(f.p.heads * f.key_blocks, a.threads) * f.scratch_bytes + f.shared_bytes();
}

void backward_in(const Args& a, char* memory) {
  Backward f(&a);
  switch (a.dtype) {
    case kFloat32: return run_backward<F32>(f, memory);
    case kFloat16: return run_backward<F16>(f, memory);
    default: return run_backward<BF16>(f, memory);
  }
}

int32_t backward(const Args& a) {
  char* memory = (char*)allocate(backward_workspace(a));
  if (!memory) return kOutOfMemory;
  backward_in(a, memory);
  release(memory);
  return kOk;
}

}  // namespace rocattn
