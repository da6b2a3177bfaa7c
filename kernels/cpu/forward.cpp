// Forward attention: cutting a problem into items, running an item, finishing rows (the arithmetic is in forward.h).
//
// An item is up to kMaxPanels panels of one KV head (and, where there are few items, one range of keys, or some of a
// panel's vectors). Panels are cut at fixed rows and tiles at fixed keys, so what an item holds may depend on the number
// of threads: it changes who computes a row, not how.
#include "dropout.h"
#include "panels.h"
#include "varlen.h"

extern "C" long syscall(long, ...);

namespace rocattn {
namespace {

// O^T = V^T P^T, or += if it holds something.
template <class Op, int NC>
void add_values(const Panel& panel, const float* V, int64_t v_row, const float* P, int64_t Dv, int64_t steps) {
  if (panel.fresh) column_panel<Op, NC, false, true>(V, 4, v_row, P, PW, panel.o, PW, Dv, steps);
  else column_panel<Op, NC, true, true>(V, 4, v_row, P, PW, panel.o, PW, Dv, steps);
}

// Dropout of the weights of keys [k0, k0 + n) in S[n][PW].
template <int NC>
void drop_weights(const Problem& p, const Panel& panel, int64_t k0, int64_t n, float* S) {
  const Args& a = *p.a;
  for (int v = 0; v < NC; v++) {
    vu row, head;
    for (int l = 0; l < VL; l++) {
      const int64_t r = panel.first + v * VL + l;
      row[l] = (uint32_t)(r / p.G), head[l] = (uint32_t)(panel.first_head + r % p.G);
    }
    for (int64_t first = k0 / kWords * kWords; first < k0 + n; first += kWords) {
      vu words[kWords];
      draw(a.dropout_key, vu{} + (uint32_t)(first / kWords), row, head, words);
      for (int64_t key = max2(first, k0); key < min2(first + kWords, k0 + n); key++) {
        float* s = S + (key - k0) * PW + v * VL;
        store(s, keep(a, words[key - first], load(s)));
      }
    }
  }
}

template <class T, class Op, int NC>
void panel_tile(const Forward& f, const Panel& panel, const char* K, int64_t k_row, const float* V, int64_t v_row,
                const char* raw_v, int64_t raw_v_row, int64_t k0, int64_t n, float* S, float* M, int* v_finite) {
  const Problem& p = f.p;
  const int64_t Dv = p.a->Dv;
  if (T::bytes == 4) column_panel_short<Op, NC>(K, k_row, panel.q, PW, S, PW, n, f.Dr);
  else column_panel<Op, NC, false, false>(K, k_row, 4, panel.q, PW, S, PW, n, f.Dr);  // 16-bit inputs cannot show it
  const bool edge = panel.edge(k0, n);
  const float c = finish_scores<NC>(p, panel, k0, n, S, M);
  raise_maximum<NC>(panel, n, S, c, Dv, [&] { return !panel.fresh; });
  const bool large = T::bytes == 2 && large_reference<NC>(panel);  // fp32 has a c that rounds nothing off
#if defined(__AVX512BF16__)
  if (f.value_pairs) (large ? exponentiate_pairs<NC, true> : exponentiate_pairs<NC, false>)(panel, n, S, c);
  else
#endif
    (large ? exponentiate<NC, true> : exponentiate<NC, false>)(panel, n, S, c);
  if (__builtin_expect(p.a->dropout_key != nullptr, 0)) drop_weights<NC>(p, panel, k0, n, S);
  if (edge || p.a->mask_dtype != kNone) {
    // A hidden key must not leak: 0 * NaN is NaN. Looked at only where something may be hidden, once a tile.
    if (*v_finite < 0) *v_finite = !any_nonfinite<T>(raw_v, raw_v_row, n, Dv);
    if (!*v_finite) return add_values_hidden<T, NC>(panel, S, raw_v, raw_v_row, n, Dv, f.value_pairs);
  }
  if (f.value_pairs) add_values<Op, NC>(panel, V, v_row, S, Dv, (n + 1) / 2);
  else add_values<Fp32Op, NC>(panel, V, v_row, S, Dv, n);
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

// A tile of keys [first, first + n) on its way through an item's panels.
struct KeyTile {
  int64_t first, n;
  const char *k, *v;      // its rows as the caller stores them
  int64_t k_row, v_row;   // bytes from one to the next
  bool copied = false;    // whether the buffers hold the copies that vectors need
  bool ordinary = false;  // whether the matrix unit's parts stand for it
  int v_finite = -1;      // not looked at yet
};

// One item: its panels' queries against the keys of its split, tile by tile.
template <class T, class Op>
struct Item {
  const Forward& f;
  const Args& a;
  const int64_t share, split, head, block, b, kv, k_first, k_last, v_ld;
  const int64_t vectors_from, vectors_to;  // of each panel
  Scratch scratch;
  const Buffers buffers;
  int64_t count = 0, lo, hi;  // its panels, and the keys that some of them sees
  Panel panels[kMaxPanels];

  Item(const Forward& f, int64_t item, int worker)
      : f(f), a(*f.p.a), share(item % f.shares), split(item / f.shares % f.splits),
        head(item / f.shares / f.splits % f.p.heads),
        block(f.blocks - 1 - item / f.shares / f.splits / f.p.heads),  // the last rows see most keys: heavy first
        b(head / a.Hkv), kv(head % a.Hkv), k_first(split * f.split_keys), k_last(min2(a.Sk, k_first + f.split_keys)),
        v_ld(round_up(a.Dv, VL)), vectors_from(PV / f.shares * share), vectors_to(PV / f.shares * (share + 1)),
        scratch{f.scratch + worker * f.scratch_bytes}, buffers(f.take(scratch)), lo(k_last), hi(k_first) {
    for (int64_t i = block * f.panel_count; i < min2(f.panels, (block + 1) * f.panel_count); i++, count++) {
      start_panel<T>(f, panels[count], scratch, b, kv, i, split, k_first, k_last);
      lo = min2(lo, panels[count].lo), hi = max2(hi, panels[count].hi);
    }
  }

  void run() {
#if defined(__AMX_BF16__)
    const amx::Tiles tiles(f.amx);
    if (f.amx) __builtin_memset(buffers.zeros, 0, (unsigned long)a.Dv * 4);
#endif
    for (int64_t first = lo / f.keys * f.keys; first < hi; first += f.keys) {
      KeyTile tile = prepare(first);
      for (int64_t i = 0; i < count; i++) {
        fetch_next(tile, i);
        multiply(tile, i);
      }
    }
    for (int64_t i = 0; i < count; i++) finish(panels[i]);
  }

 private:
  KeyTile prepare(int64_t first) {
    // For the matrix unit keys are cut whole whatever this item's rows see: their elements decide which way they go.
    const int64_t n = min2(f.keys, (f.amx ? k_last : hi) - first);
    KeyTile tile{first, n, f.p.key_row(a.k, a.ks, b, kv, first), f.p.key_row(a.v, a.vs, b, kv, first),
                 a.ks[2] * T::bytes, a.vs[2] * T::bytes};
    if (f.cut && f.p.run(first, n) < n) gather(tile);
#if defined(__AMX_BF16__)
    if (f.amx) tile.ordinary = amx::cut_tile<T>(f, tile.k, tile.k_row, tile.v, tile.v_row, n, buffers);
#endif
    return tile;
  }

  // Brings the rows of a tile that lies on several pages together.
  void gather(KeyTile& tile) const {
    const int64_t k_bytes = a.D * T::bytes, v_bytes = a.Dv * T::bytes;
    for (int64_t j = 0; j < tile.n;) {
      const char *k = f.p.key_row(a.k, a.ks, b, kv, tile.first + j), *v = f.p.key_row(a.v, a.vs, b, kv, tile.first + j);
      for (const int64_t end = j + f.p.run(tile.first + j, tile.n - j); j < end; j++) {
        __builtin_memcpy(buffers.k_rows + j * k_bytes, k, (unsigned long)k_bytes);
        __builtin_memcpy(buffers.v_rows + j * v_bytes, v, (unsigned long)v_bytes);
        k += tile.k_row, v += tile.v_row;
      }
    }
    tile.k = buffers.k_rows, tile.v = buffers.v_rows, tile.k_row = k_bytes, tile.v_row = v_bytes;
  }

  // The i-th part of the next tile's rows, beside this one: other heads lie between two of them.
  void fetch_next(const KeyTile& tile, int64_t i) const {
    if (!f.far) return;
    const int64_t ahead = min2(f.keys, hi - (tile.first + tile.n));
    for (int64_t j = i * ahead / count; j < (i + 1) * ahead / count; j++) {
      fetch_row(tile.k + (tile.n + j) * tile.k_row, a.D * T::bytes);
      fetch_row(tile.v + (tile.n + j) * tile.v_row, a.Dv * T::bytes);
    }
  }

  // What vectors cannot read in place, once a tile.
  void copy(KeyTile& tile) const {
    if (tile.copied) return;
    tile.copied = true;
    if (f.copy_k) {
      if (f.pairs) copy_pairs(tile.k, tile.k_row, tile.n, a.D, buffers.K, f.Dr);
      else
        for (int64_t j = 0; j < tile.n; j++) convert_row<T>(tile.k + j * tile.k_row, buffers.K + j * f.Dr, a.D, a.D);
    }
    if (f.copy_v) {
      if (f.value_pairs) interleave_keys(tile.v, tile.v_row, tile.n, a.Dv, buffers.V, v_ld);
      else
        for (int64_t j = 0; j < tile.n; j++) convert_row<T>(tile.v + j * tile.v_row, buffers.V + j * v_ld, a.Dv, a.Dv);
    }
  }

  // Panel i against the keys of a tile that it sees.
  void multiply(KeyTile& tile, int64_t i) {
    Panel& panel = panels[i];
    int64_t from = max2(tile.first, panel.lo), to = min2(tile.first + tile.n, panel.hi);
    if (from >= to) return;
    // Whole pairs, or steps of the matrix unit: the rest is hidden.
    const int64_t step = f.amx ? 32 : f.value_pairs ? 2 : 1;
    from = from / step * step, to = min2(tile.first + tile.n, round_up(to, step));
    const bool vectors = !tile.ordinary || !panel.ordinary;
    if (vectors) copy(tile), ready_vectors<T>(f, panel, i + 1 < count ? &panel + 1 : nullptr, b, kv, buffers.staging);
    while (from < to) {
      // On the diagonal the first vectors of queries stop seeing keys before the last ones do: leave them out.
      int64_t skipped = 0;
      while (skipped < panel.vectors - 1 && panel.top[skipped] <= from) skipped++;
      int64_t end = min2(to, max2(panel.top[skipped], from + kMinChunk));
      end = min2(to, round_up(end, step));
      if (skipped > 0) clear_output(panel, a.Dv);
      if (!vectors) skipped = skipped / 2 * 2;
      // The chunks, and what is an edge, are the whole panel's: a row's sums do not depend on the share.
      Panel seen = panel.between(max2(skipped, vectors_from), vectors_to);
      seen.inner_hi = panel.inner[skipped];
      if (seen.vectors > 0) {
        if (vectors) multiply_vectors(tile, seen, from, end - from);
        else multiply_matrix(seen, from - tile.first, from, end - from);
      }
      panel.fresh = false;
      from = end;
    }
  }

  void multiply_vectors(KeyTile& tile, const Panel& panel, int64_t from, int64_t keys) {
    const int64_t offset = from - tile.first;
    const char* raw_v = tile.v + offset * tile.v_row;
    const char* k = f.copy_k ? (const char*)(buffers.K + offset * f.Dr) : tile.k + offset * tile.k_row;
    const float* v = f.copy_v ? buffers.V + (f.value_pairs ? offset / 2 : offset) * v_ld : (const float*)raw_v;
    int part_finite = -1;
    panel_dispatch<T, Op>(f, panel, k, f.copy_k ? f.Dr * 4 : tile.k_row, v, f.copy_v ? v_ld * 4 : tile.v_row, raw_v,
                          tile.v_row, from, keys, buffers.S, buffers.M,
                          keys == tile.n ? &tile.v_finite : &part_finite);
  }

  void multiply_matrix([[maybe_unused]] const Panel& panel, [[maybe_unused]] int64_t skip,
                       [[maybe_unused]] int64_t from, [[maybe_unused]] int64_t keys) {
#if defined(__AMX_BF16__)
    amx::panel_tile<T>(f, panel, buffers, skip, from, keys);
#endif
  }

  // Writes a panel's rows, or its part of them.
  void finish(Panel& panel) {
    clear_output(panel, a.Dv);
    if (f.splits == 1) {
      const Panel part = panel.between(vectors_from, vectors_to);
      if (part.rows > 0)
        finish_panel<T>(f.p, b, kv, part.first, part.rows, part.o, part.m, part.low, part.l, part.w);
      return;
    }
    float* to = f.partial + ((head * f.panels + panel.first / PW) * f.splits + split) * f.partial_floats();
    __builtin_memcpy(to, panel.m, PW * 4);
    __builtin_memcpy(to + PW, panel.low, PW * 4);
    __builtin_memcpy(to + 2 * PW, panel.l, PW * 4);
    __builtin_memcpy(to + 3 * PW, panel.w, PW * 4);
    __builtin_memcpy(to + 4 * PW, panel.o, (unsigned long)(a.Dv * PW) * 4);
  }
};

template <class T, class Op>
void run_item(void* context, int64_t item, int worker) {
  Item<T, Op>(*(const Forward*)context, item, worker).run();
}

// Joins the partial results of one panel in the order of its key ranges.
template <class T>
void join_splits(void* context, int64_t item, int) {
  const Forward& f = *(const Forward*)context;
  const Args& a = *f.p.a;
  const int64_t head = item / f.panels, index = item % f.panels;
  float* base = f.partial + item * f.splits * f.partial_floats();
  for (int64_t v = 0; v < PW; v += VL) {
    vf top = set1(-kInf), top_low{}, sum{}, rounded{};
    for (int64_t s = 0; s < f.splits; s++) {
      const float* part = base + s * f.partial_floats() + v;
      const vf m = load(part), low = load(part + PW);
      const vi higher = (m > top) | ((m == top) & (low > top_low));
      top = select(higher, m, top), top_low = select(higher, low, top_low);
    }
    for (int64_t s = 0; s < f.splits; s++) {
      float* part = base + s * f.partial_floats();
      const vf m = load(part + v), low = load(part + PW + v);
      const vf weight = select((m == top) & (low == top_low), set1(1.0f), exp2v((m - top) + (low - top_low)));
      sum += load(part + 2 * PW + v) * weight;
      rounded += load(part + 3 * PW + v) * weight;
      for (int64_t d = 0; d < a.Dv; d++) {
        float* to = base + (4 + d) * PW + v;
        const vf x = load(part + (4 + d) * PW + v) * weight;
        store(to, s == 0 ? x : load(to) + x);
      }
    }
    store(base + v, top);
    store(base + PW + v, top_low);
    store(base + 2 * PW + v, sum);
    store(base + 3 * PW + v, rounded);
  }
  finish_panel<T>(f.p, head / a.Hkv, head % a.Hkv, index * PW, min2<int64_t>(PW, f.p.R - index * PW), base + 4 * PW,
                  base, base + PW, base + 2 * PW, base + 3 * PW);
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

#if defined(__AMX_BF16__)
// The kernel keeps room for the tile registers of a thread only where the process asked for it.
bool amx::allowed() {
  static int32_t answer;  // 0: not asked
  int32_t known = __atomic_load_n(&answer, __ATOMIC_RELAXED);
  if (known == 0) {
    constexpr long kArchPrctl = 158, kRequest = 0x1023, kTileData = 18;
    known = syscall(kArchPrctl, kRequest, kTileData) == 0 ? 1 : -1;
    __atomic_store_n(&answer, known, __ATOMIC_RELAXED);
  }
  return known > 0;
}

namespace {
// Whether this process had at most two CPUs when it was first asked: the same answer for any number of threads.
[[maybe_unused]] bool few_cpus() {
  static int32_t answer;  // 0: not asked
  int32_t known = __atomic_load_n(&answer, __ATOMIC_RELAXED);
  if (known == 0) {
    constexpr long kGetAffinity = 204;
    uint64_t mask[128] = {};
    int count = syscall(kGetAffinity, 0L, sizeof mask, mask) > 0 ? 0 : 3;
    for (const uint64_t word : mask) count += __builtin_popcountll(word);
    known = count <= 2 ? 1 : -1;
    __atomic_store_n(&answer, known, __ATOMIC_RELAXED);
  }
  return known > 0;
}
}  // namespace
#endif

void Forward::plan(int threads) {
  const Args& a = *p.a;
#if defined(__AVX512BF16__)
  pairs = a.dtype == kBFloat16;
#else
  pairs = false;
#endif
  value_pairs = pairs && a.Dv >= kRoundedWeights && !a.dropout_key;  // it drops weights that are floats
  amx = false, keys = TK;
#if defined(__AMX_BF16__)
  // Cutting fp32 into three parts costs more than the unit saves where rows, keys or features are few; features count in
  // steps of 32. Measured on a Xeon, from 0.7 (long, D >= 96) to 1.8 times (D = 16) the time of vectors. And where the
  // CPUs are hardware threads of a shared server, the unit took 1.3 to 1.5 times the time of vectors in the mean with 4
  // and with 16 of them, 0.9 times with one, and varied threefold.
#if defined(RA_UNIT_FOR_ALL_FEATURES)  // tests/attention/builds/amx_standin.h
  const bool many = true;
#else
  const bool many = a.D > 48 && a.D * a.Sk >= 1 << 14 && few_cpus();
#endif
  amx = amx::allowed() && !a.dropout_key && (a.dtype != kFloat32 || (p.R > 32 && many));
  if (amx) {
    keys = a.dtype == kFloat32 ? 64 : 128;  // longer tiles wake the unit less often, three parts leave L1
    input_parts = a.dtype == kFloat32 ? amx::kParts<F32> : a.dtype == kFloat16 ? amx::kParts<F16> : amx::kParts<BF16>;
    weight_parts = input_parts > 1 || a.Dv >= kRoundedWeights ? input_parts : 2;
    q_part = ceil_div(a.D, amx::kStep) * PV * amx::kTile;
    k_part = ceil_div(a.D, amx::kStep) * (keys / amx::kRows) * amx::kTile;
    v_part = round_up(ceil_div(a.Dv, amx::kRows), 2) * (keys / amx::kStep) * amx::kTile;
  }
#endif
  Dr = pairs ? ceil_div(a.D, 2) : a.D;
  // Rows that lie a large power of two apart share so few sets of L1 that it cannot hold a tile of them. Up to four
  // panels of queries a copy costs what it saves, with panels of 64 rows and 512-bit stores of two cycles as much or
  // more whatever they are.
#if defined(RA_SLOW_STORES)  // see rocattn/toolchain/host.py
  const bool copies = VL < 16 && p.R > 4 * PW;
#else
  const bool copies = p.R > 4 * PW;
#endif
  const auto crowded = [&](int64_t stride) { return copies && stride * 4 % 2048 == 0; };
  copy_q = pairs && (a.D % 2 != 0 || Dr < VL);
  copy_k = pairs ? a.D % 2 != 0 : a.dtype != kFloat32 || crowded(a.ks[2]);
  copy_v = a.dtype != kFloat32 || crowded(a.vs[2]);
  far = a.page_size == 0 && p.heads * a.Sk * (a.D + a.Dv) * p.element() > kNear;
  cut = a.page_size % keys != 0;
  panels = ceil_div(p.R, PW);
  // Few rows and many keys: cut the keys too, by the shape alone, for partial sums are joined in this order.
  splits = 1, split_keys = max2<int64_t>(a.Sk, 1);
  if (p.heads * panels < 64 && a.Sk > kSplitKeys && !(a.left >= 0 && a.left < kSplitKeys)) {
    splits = min2(ceil_div(a.Sk, kSplitKeys), ceil_div(64, p.heads * panels));
    split_keys = round_up(ceil_div(a.Sk, splits), keys);
    splits = ceil_div(a.Sk, split_keys);
  }
  // As many panels an item as the cache holds (they share converted K and V), but enough items for all threads.
  Scratch one{};
  Panel panel;
  take(one, panel);
  // CPUs with AVX-512 have an L2 of 1 MiB or more. Zen 4: 2 to 7 % less time at D = 256 than with 384 KiB, 1 to 4 % at
  // 128. Rows of K's and V's copies a line longer, to spread them over the sets of L1: no gain.
  const int64_t fit = max2<int64_t>(1, ((amx ? 1024 : VL == 16 ? 640 : 384) << 10) / one.taken());
  choose_blocks(max2<int64_t>(1, min2<int64_t>(min2<int64_t>(kMaxPanels, fit), panels)), threads);
  items = p.heads * blocks * splits * shares;
  Scratch all{};
  take(all);
  for (int64_t i = 0; i < panel_count; i++) take(all, panel);
  scratch_bytes = all.taken();
}

// How many panels an item has, at most `most`. They share what is read, converted or cut of K and V, which costs as much
// as `shared` panels (traced with AMX at 16 threads on a Xeon; without AMX, estimates): so few, large items, but as many
// for each thread, and small enough that the last one is not waited for for long.
void Forward::choose_blocks(int64_t most, int threads) {
  if (threads <= 2) {  // memory then grows evenly with the length
    for (panel_count = most; panel_count > 1 && p.heads * splits * ceil_div(panels, panel_count) < 4 * threads;)
      panel_count = (panel_count + 1) / 2;
    blocks = ceil_div(panels, panel_count);
    return;
  }
  const double shared = amx ? 0.45 : copy_k || copy_v ? 0.25 : 0.1;
  double least = 0;
  const auto consider = [&](int64_t count, double mean, double largest, int64_t parts) {
    const int64_t number = p.heads * splits * count * parts;
    // Causal rows see more keys the later they are: the heaviest blocks start first, and weigh two mean ones.
    const double work = p.banded ? max2(number * mean / threads, 2 * largest) : ceil_div(number, threads) * mean;
    const double time = work + mean * (0.5 - 0.5 / threads);
    if (least != 0 && time >= least) return;
    least = time, blocks = count, panel_count = ceil_div(panels, count), shares = parts;
  };
  for (int64_t size = most; size > 0; size--) {
    const int64_t count = ceil_div(panels, size);
    consider(count, (double)panels / count + shared, ceil_div(panels, count) + shared, 1);
  }
  // Fewer panels than threads. Half a panel's vectors take more than half of its time (an estimate: each element of K and
  // V that is loaded meets fewer of them).
  if (splits == 1 && PV > 2 && p.heads * panels < threads) consider(panels, 0.6 + shared, 0.6 + shared, 2);
}

Buffers Forward::take(Scratch& scratch) const {
  Buffers x;
  x.S = scratch.take<float>(keys * PW);
  x.M = scratch.take<float>(p.a->mask_dtype != kNone ? keys * PW : 0);
  x.staging = scratch.take<float>(copy_q ? Dr * PW + VL : VL);
  x.K = scratch.take<float>(copy_k ? keys * Dr : 0);
  x.V = scratch.take<float>(copy_v ? keys * round_up(p.a->Dv, VL) : 0);
  x.k_parts = scratch.take<float>(input_parts * k_part);
  x.v_parts = scratch.take<float>(input_parts * v_part);
  x.zeros = scratch.take<float>(amx ? p.a->Dv : 0);
  x.p_parts = scratch.take<float>(weight_parts * (keys / 2 * PW));
  x.k_rows = scratch.take<char>(cut ? keys * p.a->D * p.element() : 0);
  x.v_rows = scratch.take<char>(cut ? keys * p.a->Dv * p.element() : 0);
  return x;
}

void Forward::take(Scratch& scratch, Panel& panel) const {
  panel.take(scratch, Dr, p.a->Dv, rounded(), input_parts * q_part);
}

const int64_t kForwardPlanBytes = sizeof(Forward);

Steps plan_forward(void* room, const Args* args, int threads) {
  Forward& f = *(Forward*)room;
  f = Forward(args);
  f.plan(threads);
  const bool splits = f.splits > 1;
  const int64_t joins = splits ? f.p.heads * f.panels : 0;
  Steps steps = {nullptr, nullptr, f.items, joins, f.scratch_bytes, joins * f.splits * f.partial_floats() * 4};
  if (args->dtype == kFloat32) steps.item = run_item<F32, Fp32Op>, steps.join = join_splits<F32>;
  else if (args->dtype == kFloat16) steps.item = run_item<F16, Fp32Op>, steps.join = join_splits<F16>;
#if defined(__AVX512BF16__)
  else steps.item = run_item<BF16, PairOp>, steps.join = join_splits<BF16>;
#else
  else steps.item = run_item<BF16, Fp32Op>, steps.join = join_splits<BF16>;
#endif
  return steps;
}

void place_forward(void* plan, char* scratch, int64_t step, char* shared) {
  Forward& f = *(Forward*)plan;
  f.scratch = scratch, f.scratch_bytes = step, f.partial = (float*)shared;
}

int32_t forward(const Args& a) {
  if (a.B * a.H * a.Sq == 0) return kOk;
  Forward f(&a);
  if (f.p.R <= kDecodeRows && !a.dropout_key) return decode(f.p);
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
  if (f.p.R <= kDecodeRows && !a.dropout_key) return decode_workspace(f.p);
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
#if defined(__AMX_BF16__)
  return rocattn::VL * 1000 + (rocattn::amx::allowed() ? 2 : 0);
#elif defined(__AVX512BF16__)
  return rocattn::VL * 1000 + 1;
#else
  return rocattn::VL * 1000;
#endif
}
}
