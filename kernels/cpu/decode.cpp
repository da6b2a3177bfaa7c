// Decode: cutting keys into ranges, the softmax of a block, joining ranges (see decode.h; products: decode_block.h).
#include "decode_block.h"
#include "rows.h"
#include "varlen.h"

namespace rocattn {
namespace {

constexpr int64_t kCached = 1 << 20;  // bytes of K and V that are taken to be in a cache near the core
constexpr int64_t kSplit = 1 << 17;   // bytes of K and V that an item keeps when heads are split for more threads
constexpr int64_t kJoin = 1 << 17;    // floats of parts that are worth waking the workers again

struct Buffers {
  float *q, *s, *K, *V;
  float* run;     // scores of some keys of a block, where pages cut it
  float* pairs;   // weights in bf16
  float *l, *w;   // sums of weights, exact and as rounded for V (or l itself): a vector a row
  float *o, *m, *low;  // in the item's part; low: what rounding took from the reference m (rounded_off)
  Row* where;
  int64_t* held;  // the heads whose queries are in q, as an item's first head; -1 before the first item
  int64_t* next;  // the item after the worker's last one: the start of its keys is prefetched already
};

struct Decode {
  Problem p;
  int64_t together, ranges, range_keys, Dp, Dvp, rows, scratch_bytes, part_floats;
  int64_t ahead[2];  // of K and V: bytes between what is read and what is prefetched, as measured
  bool copy, pairs, stream;  // stream: K and V come from memory; an item reads each nearly in the order of addresses
  bool alone = true;  // whether workers have no items but this plan's
  char* scratch;
  float* parts;  // an item's sums: O[all][Dvp], m[all], low[all], l[all], w[all], where all is its heads' rows
  int64_t part_step;  // floats from an item's or a worker's part to the next

  static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }
  Decode(const Problem& problem, int64_t threads) : p(problem) {
    const Args& a = *p.a;
    Dp = round_up(a.D, VL), Dvp = round_up(a.Dv, VL);
    rows = p.R > 2 ? round_up(p.R, 4) : p.R;
    // Where heads lie side by side in memory (BSHD) an item takes them all, so that it reads whole pages in order.
    together = a.Hkv > 1 && magnitude(a.ks[1]) < magnitude(a.ks[2]) ? a.Hkv : 1;
    range_keys = min2<int64_t>(1024, max2<int64_t>(256, round_up(a.Sk * (p.heads / together) / 16, DK)));
    ranges = max2<int64_t>(1, ceil_div(a.Sk, range_keys));
    const int64_t bytes = p.heads * a.Sk * (a.D + a.Dv) * p.element();
    // Which heads share an item changes no bit of the result, so this may depend on the threads; the ranges may not.
    while (together % 2 == 0 && items() < threads && bytes > items() * kSplit) together /= 2;
    copy = a.D % VL != 0 || a.Dv % VL != 0;
    const bool linear = a.ks[2] == together * a.D && a.vs[2] == together * a.Dv &&
                        (together == 1 || (a.ks[1] == a.D && a.vs[1] == a.Dv));
    stream = linear && !copy && bytes > kCached;
#if defined(__AVX512BF16__)
    // A page of an odd number of keys would cut pairs: its bits are then those of widened keys.
    pairs = a.dtype == kBFloat16 && a.D % 32 == 0 && a.Dv % 32 == 0 && a.page_size % 2 == 0;
#else
    pairs = false;
#endif
    Scratch scratch_needed{};
    take(scratch_needed);
    scratch_bytes = scratch_needed.taken();
    for (int i = 0; i < 2; i++) ahead[i] = together > 1 || kTimes[i] > 1 ? kAhead[i] : kAhead[i] / 2;
    part_floats = part_step = round_up(together * rows * (Dvp + 4), VL);
  }
  // What is prefetched while the keys from `key` on are read: of a few small pages just as many keys, so that no line
  // beyond a page's end is; of K (which 0) or V.
  const char* ahead_of(int which, const void* base, const int64_t* strides, int64_t b, int64_t kv, int64_t key,
                       const char* here) const {
    const Args& a = *p.a;
    if (!stream) return nullptr;
    if (a.page_size == 0) return here + ahead[which];
    int64_t keys = ceil_div(ahead[which], strides[2] * p.element());
    if (keys * 4 > a.page_size) keys = round_up(keys, a.page_size);
    return p.key_row(base, strides, b, kv, min2(key + keys, a.Sk - 1));
  }
  Buffers take(Scratch& scratch) const {
    const int64_t all = together * rows;
    Buffers x;
    x.q = scratch.take<float>(all * Dp);
    x.s = scratch.take<float>(2 * all * DK);  // of two blocks
    x.run = scratch.take<float>(p.a->page_size ? all * DK : 0);
    x.pairs = scratch.take<float>(pairs ? all * DK : 0);
    x.l = scratch.take<float>(round_up(all, VL) * VL);  // a vector a row
    x.w = pairs ? scratch.take<float>(round_up(all, VL) * VL) : x.l;
    x.K = scratch.take<float>(copy ? DK * Dp : 0);
    x.V = scratch.take<float>(copy ? DK * Dvp : 0);
    x.where = scratch.take<Row>(all);
    x.held = scratch.take<int64_t>(1);
    x.next = scratch.take<int64_t>(1);
    return x;
  }
  int64_t items() const { return p.heads / together * ranges; }
  // Where there is one range, a part is a worker's and serves one item after another.
  int64_t part_bytes(int used) const { return (ranges > 1 ? items() : used) * part_floats * 4; }
  float* part(int64_t item, int worker) const { return parts + (ranges > 1 ? item : worker) * part_step; }
};

// The items of a plan that is the whole job.
struct Shares {
  Decode* plan;
  int used;                    // workers, the caller included
  int64_t taken[kMaxThreads];  // of each worker's share of the items, by whoever took them

  // A worker goes through a share of its own in order, so that each range's keys follow those it has just read, then
  // helps the others: one that wakes late does less.
  int64_t deal(int worker) {
    const int64_t items = plan->items();
    for (int i = 0;; i++) {
      const int64_t owner = (worker + i) % used, first = items * owner / used, end = items * (owner + 1) / used;
      const int64_t item = first + __atomic_fetch_add(taken + owner, 1, __ATOMIC_RELAXED);
      if (item < end) return item;
    }
  }
};

// Keys that any row sees, keys that every row sees.
struct Seen {
  int64_t lo, hi, inner_lo, inner_hi;
};

// Scores -> weights of one row; rescales its sum and output where the maximum moves. Returns whether a weight is 0.
RA_NOINLINE bool soften(const Problem& p, const Row& row, int64_t k0, int64_t n, bool finish, float* s, float* m,
                        float* low, float* l, float* w, float* o, int64_t ldo, float* pairs) {
  if (finish) finish_row(p, row, k0, n, s, nullptr);
  const vf factor = set1(p.finished);
  vf top = load(s);
  for (int64_t j = VL; j < n; j += VL) top = vmax(load(s + j), top);
  if (any_greater(fma(top, factor, set1(-*m)) - *low, set1(kSlack))) {
    float peak = -kInf;
    for (int i = 0; i < VL; i++) peak = top[i] > peak ? top[i] : peak;
    const vf now = set1(peak) * factor, now_low = rounded_off(set1(peak), factor, now);
    const vf keep = exp2v((*m - now) + (*low - now_low));
    const float alpha = *m == -kInf ? 0.0f : keep[0];
    *m = now[0], *low = now_low[0];
    store(l, load(l) * alpha);
    if (w != l) store(w, load(w) * alpha);
    for (int64_t d = 0; d < ldo; d += VL) store(o + d, load(o + d) * alpha);
  }
  const vf base = set1(*m == -kInf ? 0.0f : -*m), rest = set1(*low);
  vf sum = load(l), rounded = load(w);
  vi zero{};
  for (int64_t j = 0; j < n; j += VL) {
    const vf e = exp2v(fma(load(s + j), factor, base) - rest);
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
void write_rows(const Decode& f, int64_t b, int64_t kv, const float* o, const float* m, const float* low,
                const float* l, const float* w) {
  const Args& a = *f.p.a;
  for (int64_t r = 0; r < f.p.R; r++) {
    const int64_t position = r / f.p.G, h = f.p.head_of(kv, r);
    write_row<T>((void*)at(a.o, a.os, b, h, position, T::bytes), o + r * f.Dvp, a.Dv, w[r] == 0 ? 1.0f : 1.0f / w[r]);
    if (a.lse) a.lse[(b * a.H + h) * a.ls + position] = natural_lse(m[r], low[r], l[r]);
  }
}

// What does not depend on the range: where a head's rows are, and their q.
template <class T>
void load_queries(const Decode& f, Row* rows, float* to, int64_t b, int64_t kv) {
  const Problem& p = f.p;
  const Args& a = *p.a;
  for (int64_t r = 0; r < f.rows; r++, to += f.Dp) {
    rows[r].locate(p, b, Place(p, kv, min2(r, p.R - 1)));
    const char* q = at(a.q, a.qs, b, rows[r].head, rows[r].position, T::bytes);
    if (p.sign == 0) {
      for (int64_t d = 0; d < f.Dp; d++) to[d] = 0;
    } else if (f.pairs) {
      const uint16_t sign = p.sign < 0 ? 0x8000 : 0;
      const vh flip = vh{} + sign;
      for (int64_t d = 0; d < a.D; d += VL)
        *(vh_any*)((uint16_t*)to + d) = *(const vh_any*)((const uint16_t*)q + d) ^ flip;
    } else {
      convert_row<T>(q, to, a.D, f.Dp, p.query);
    }
  }
}

// Starts to read a range's K and V: memory is busy while its sums are set up.
void fetch_start(const Decode& f, int64_t b, int64_t kv, int64_t key) {
  const Args& a = *f.p.a;
  const char *k = f.p.key_row(a.k, a.ks, b, kv, key), *v = f.p.key_row(a.v, a.vs, b, kv, key);
  const char *const k_end = k + f.ahead[0], *const v_end = v + f.ahead[1];
  while (k < k_end) fetch<64, 1>(k), fetch<64, 1>(v);
  while (v < v_end) fetch<64, 1>(v);
}

// The state of all rows before a range's first key.
void start_range(const Decode& f, const Buffers& y, bool first_range) {
  const Args& a = *f.p.a;
  const int64_t all = f.together * f.rows;
  for (int64_t i = 0; i < all * f.Dvp; i += VL) store(y.o + i, vf{});
  for (int64_t r = 0; r < all; r++) {
    const float sink = a.sinks && first_range ? a.sinks[y.where[r].head] * kLog2e : -kInf;
    vf sum{};
    sum[0] = sink != -kInf ? 1.0f : 0.0f;
    y.m[r] = sink, y.low[r] = 0;
    store(y.l + r * VL, sum);
    store(y.w + r * VL, sum);
  }
}

// The softmax of a block of keys, [t, t + n), row by row.
struct Softmax {
  const Decode* f;
  const Buffers* y;
  float* s;
  int64_t t, n, row, rows;  // next row
  bool may_hide, finish, zero;  // zero: whether a weight is 0

  void part() {
    if (row == rows) return;
    float *o = y->o + row * f->Dvp, *pairs = f->pairs ? y->pairs + row * DK : nullptr;
    zero |= soften(f->p, y->where[row], t, n, finish, s + row * DK, y->m + row, y->low + row, y->l + row * VL,
                   y->w + row * VL, o, f->Dvp, pairs);
    row++;
  }
};

// Scores of a block of keys of `together` heads, and meanwhile the softmax of the block before it. T is how K and V
// are read; Source is their type in memory, which differs for pairs and for copies.
template <class T, class Source>
void add_scores(const Decode& f, const Buffers& y, int64_t b, int64_t kv0, const Softmax& block, Softmax& before) {
  const Args& a = *f.p.a;
  const int64_t row = a.ks[2] * Source::bytes, head = a.ks[1] * Source::bytes;
  const int64_t width = Same<T, Pairs>::value ? a.D / 2 : f.Dp;
  const int64_t rows = f.together * f.rows;
  for (int64_t j0 = 0, n; j0 < block.n; j0 += n) {
    n = f.p.run(block.t + j0, block.n - j0);
    const char* k = f.p.key_row(a.k, a.ks, b, kv0, block.t + j0);
    // A tile writes whole vectors of keys, which end where a block does but not where a page does.
    float* s = n == block.n ? block.s : y.run;
    if (!f.copy) {
      const Block keys = {k, row, head, n, f.together, f.rows};
      score_block<T>(keys, y.q, f.Dp, width, s,
                     f.ahead_of(0, a.k, a.ks, b, kv0, block.t + j0, k), before);
    }
    for (int64_t i = 0; f.copy && i < f.together; i++) {
      for (int64_t j = 0; j < n; j++) convert_row<Source>(k + i * head + j * row, y.K + j * f.Dp, a.D, f.Dp);
      const Block copied = {(const char*)y.K, f.Dp * 4, 0, n, 1, f.rows};
      score_block<T>(copied, y.q + i * f.rows * f.Dp, f.Dp, width, s + i * f.rows * DK, nullptr, before);
    }
    for (int64_t r = 0; s == y.run && r < rows; r++)
      __builtin_memcpy(block.s + r * DK + j0, s + r * DK, (unsigned long)n * 4);
  }
}

// The rest of a block's softmax, and its values.
template <class T, class Source>
void add_values(const Decode& f, const Buffers& y, int64_t b, int64_t kv0, Softmax& block) {
  while (block.row < block.rows) block.part();
  const Args& a = *f.p.a;
  const int64_t row = a.vs[2] * Source::bytes, head = a.vs[1] * Source::bytes;
  const bool leaks = block.zero && block.may_hide;  // unless V is finite
  for (int64_t j0 = 0, n; j0 < block.n; j0 += n) {
    n = f.p.run(block.t + j0, block.n - j0);
    const char* v = f.p.key_row(a.v, a.vs, b, kv0, block.t + j0);
    const float *s = block.s + j0, *weights = f.pairs ? y.pairs + j0 / 2 : s;
    if (!f.copy && !leaks) {
      const Block values = {v, row, head, n, f.together, f.rows};
      value_block<T>(values, weights, y.o, f.Dvp, f.ahead_of(1, a.v, a.vs, b, kv0, block.t + j0, v));
      continue;
    }
    for (int64_t i = 0; i < f.together; i++) {
      const char* from = v + i * head;
      const bool hidden = leaks && any_nonfinite<Source>(from, row, n, a.Dv);
      for (int64_t j = 0; f.copy && j < n; j++) convert_row<Source>(from + j * row, y.V + j * f.Dvp, a.Dv, f.Dvp);
      const Block values = {f.copy ? (const char*)y.V : from, f.copy ? f.Dvp * 4 : row, 0, n, 1, f.rows};
      const int64_t r = i * f.rows;
      if (!hidden) value_block<T>(values, weights + r * DK, y.o + r * f.Dvp, f.Dvp, nullptr);
      else if (f.copy) value_hidden<F32>(s + r * DK, values.at, values.row, n, y.o + r * f.Dvp, f.Dvp, f.rows);
      else value_hidden<Source>(s + r * DK, values.at, values.row, n, y.o + r * f.Dvp, f.Dvp, f.rows);
    }
  }
}

// Keys [lo, hi). Reading memory overlaps with a block's softmax, as that runs beside the next block's scores.
template <class T, class Source>
RA_NOINLINE void run_blocks(const Decode& f, const Buffers& y, const Seen& seen, int64_t b, int64_t kv0, int64_t lo,
                            int64_t hi) {
  const int64_t rows = f.together * f.rows;
  Softmax before{};
  for (int64_t t = lo, i = 0; t < hi; t += DK, i++) {
    const int64_t n = min2<int64_t>(DK, hi - t);
    const bool may_hide = t < seen.inner_lo || t + n > seen.inner_hi || f.p.a->mask_dtype != kNone;
    Softmax block = {&f, &y, y.s + i % 2 * rows * DK, t, n, 0, rows, may_hide, false, false};
    block.finish = may_hide || f.p.general || n % VL != 0;
    add_scores<T, Source>(f, y, b, kv0, block, before);
    if (i > 0) add_values<T, Source>(f, y, b, kv0, before);
    before = block;
  }
  if (lo < hi) add_values<T, Source>(f, y, b, kv0, before);
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
  const int64_t all = f.together * f.rows;
  Scratch scratch = {f.scratch + worker * f.scratch_bytes};
  Buffers y = f.take(scratch);
  y.o = f.part(item, worker), y.m = y.o + all * f.Dvp, y.low = y.m + all;
  if (f.stream && !(f.alone && *y.next == item)) fetch_start(f, b, kv0, range * f.range_keys);
  *y.next = item + 1;
  if (!f.alone || *y.held != first) {
    for (int64_t i = 0; i < f.together; i++)
      load_queries<T>(f, y.where + i * f.rows, y.q + i * f.rows * f.Dp, b, kv0 + i);
    *y.held = first;
  }
  start_range(f, y, range == 0);
  Seen seen = {a.Sk, 0, 0, a.Sk};
  for (int64_t r = 0; r < f.rows; r++) {  // the same for all heads
    const Row& row = y.where[r];
    seen.lo = min2(seen.lo, row.from), seen.hi = max2(seen.hi, row.to);
    seen.inner_lo = max2(seen.inner_lo, row.from), seen.inner_hi = min2(seen.inner_hi, row.to);
  }
  const int64_t lo = max2(seen.lo, range * f.range_keys), hi = min2(seen.hi, (range + 1) * f.range_keys);
  if (f.copy) run_blocks<F32, T>(f, y, seen, b, kv0, lo, hi);
#if defined(__AVX512BF16__)
  else if (f.pairs) run_blocks<Pairs, BF16>(f, y, seen, b, kv0, lo, hi);
#endif
  else run_blocks<T, T>(f, y, seen, b, kv0, lo, hi);
  sum_rows(y.l, all);
  if (y.w != y.l) sum_rows(y.w, all);
  if (f.ranges == 1) {
    for (int64_t i = 0; i < f.together; i++) {
      const int64_t r = i * f.rows;
      write_rows<T>(f, b, kv0 + i, y.o + r * f.Dvp, y.m + r, y.low + r, y.l + r, y.w + r);
    }
    return;
  }
  __builtin_memcpy(y.m + 2 * all, y.l, (unsigned long)all * 4);
  __builtin_memcpy(y.m + 3 * all, y.w, (unsigned long)all * 4);
}

template <class T>
void run_shared_range(void* context, int64_t, int worker) {
  Shares& shares = *(Shares*)context;
  run_range<T>(shares.plan, shares.deal(worker), worker);
}

// Joins the parts of a head, in place of its first one.
template <class T>
void join_ranges(void* context, int64_t head, int) {
  const Decode& f = *(const Decode*)context;
  const int64_t all = f.together * f.rows, row0 = head % f.together * f.rows;
  float* first = f.parts + head / f.together * f.ranges * f.part_floats;
  for (int64_t r = row0; r < row0 + f.rows; r++) {
    float* m = first + all * f.Dvp + r;
    float top = -kInf, low = 0, sum = 0, rounded = 0;
    for (int64_t s = 0; s < f.ranges; s++) {
      const float* part = m + s * f.part_floats;
      if (part[0] > top || (part[0] == top && part[all] > low)) top = part[0], low = part[all];
    }
    for (int64_t s = 0; s < f.ranges; s++) {
      float* part = m + s * f.part_floats;
      const bool highest = part[0] == top && part[all] == low;
      const float weight = highest ? 1.0f : exp2s((part[0] - top) + (part[all] - low));
      sum += part[2 * all] * weight;
      rounded += part[3 * all] * weight;
      part[0] = weight;
    }
    float* o = first + r * f.Dvp;
    for (int64_t d = 0; d < f.Dvp; d += VL) {
      vf total = load(o + d) * m[0];
      for (int64_t s = 1; s < f.ranges; s++)
        total = fma(load(o + s * f.part_floats + d), set1(m[s * f.part_floats]), total);
      store(o + d, total);
    }
    m[0] = top, m[all] = low, m[2 * all] = sum, m[3 * all] = rounded;
  }
  const float* m = first + all * f.Dvp + row0;
  const Args& a = *f.p.a;
  write_rows<T>(f, head / a.Hkv, head % a.Hkv, first + row0 * f.Dvp, m, m + all, m + 2 * all,
                m + 3 * all);
}

template <class T>
int32_t run_decode(Decode& f) {
  const int used = usable_threads(f.items(), f.p.a->threads);
  char* memory = (char*)allocate(used * f.scratch_bytes + f.part_bytes(used));
  if (!memory) return kOutOfMemory;
  f.scratch = memory, f.parts = (float*)(memory + used * f.scratch_bytes);
  for (int i = 0; i < used; i++) {
    Scratch scratch = {f.scratch + i * f.scratch_bytes};
    const Buffers x = f.take(scratch);
    *x.held = *x.next = -1;
  }
  Shares shares = {&f, used, {}};
  run(f.items(), used, run_shared_range<T>, &shares);
  if (f.ranges > 1) run(f.p.heads, f.items() * f.part_floats >= kJoin ? used : 1, join_ranges<T>, &f);
  release(memory);
  return kOk;
}

}  // namespace

int32_t decode(const Problem& p) {
  Decode f(p, p.a->threads);
  switch (p.a->dtype) {
    case kFloat32: return run_decode<F32>(f);
    case kFloat16: return run_decode<F16>(f);
    default: return run_decode<BF16>(f);
  }
}

const int64_t kDecodePlanBytes = sizeof(Decode);

Steps plan_decode(void* room, const Args* args, int threads) {
  Decode& f = *(Decode*)room;
  f = Decode(Problem(args), threads);
  f.alone = false;
  const bool ranges = f.ranges > 1;
  // Where there is one range, a part follows the worker's scratch.
  const int64_t part_bytes = f.part_floats * 4, own = ranges ? 0 : round_up(part_bytes, 64);
  Steps steps = {nullptr, nullptr, f.items(), ranges ? f.p.heads : 0, f.scratch_bytes + own,
                 ranges ? f.items() * part_bytes : 0};
  if (args->dtype == kFloat32) steps.item = run_range<F32>, steps.join = join_ranges<F32>;
  else if (args->dtype == kFloat16) steps.item = run_range<F16>, steps.join = join_ranges<F16>;
  else steps.item = run_range<BF16>, steps.join = join_ranges<BF16>;
  return steps;
}

void place_decode(void* plan, char* scratch, int64_t step, char* shared) {
  Decode& f = *(Decode*)plan;
  f.scratch = scratch;
  if (f.ranges > 1) f.parts = (float*)shared;
  else f.parts = (float*)(scratch + f.scratch_bytes), f.part_step = step / 4;
  f.scratch_bytes = step;
}

int64_t decode_workspace(const Problem& p) {
  Decode f(p, p.a->threads);
  const int used = usable_threads(f.items(), p.a->threads);
  return used * f.scratch_bytes + f.part_bytes(used);
}

}  // namespace rocattn
