// The forward pass of flash attention for one block: the common core of flash_attention, _causal, _nocausal and
// flash_decode.
//
//   S^T = K Q^T    A = K rows from LDS, B = Q rows       a lane's column of S^T is a query, its registers are keys
//   P^T = exp2(S^T - reference)                          in lanes: no exchange between lanes
//   O^T += V^T P^T A = V^T from LDS, B = P^T by Matrix::chain
//
// A wave has Q_FRAGMENTS * 16 query rows of its own; the waves of a block share the K and V tiles in LDS (one buffer
// each). The loads of the next tile are issued before the compute of this one and wait in registers; or they go to a
// second buffer without passing through registers (S::DIRECT, flash_direct.h), or to two more, where half of the waves
// are half a tile behind the others (S::STAGGERED). A block of one wave shares nothing: it loads the fragments
// directly from global memory (S::LOADS_FRAGMENTS).
//
// With several PARTS, the instruction order is prescribed to the compiler: a part's softmax is interleaved with the
// products of the next part (the last part's with those of V), and fragments are read from LDS a batch ahead. On RDNA,
// where no vector instruction overlaps with a product, fragments roll: each next one is read after the product that
// frees its registers, with one wait per batch.
//
// Rescaling is lazy: P is relative to a reference, not to the running maximum. The reference moves (and O and the sum
// are rescaled) only when a score exceeds it by more than 2^8, on which a wave votes with each lane's own maximum; so a
// tile without such a score needs no exchange between lanes at all. P is then at most 256, which any T represents at
// full precision, and the partial sums of a row stay in their lanes until the end.
//
// A Scores policy defines which tiles need work on their scores, and does it:
//   PLAIN                      scores are plain q.k, and scale() > 0 converts them to log2 units in the exponent;
//                              otherwise apply() returns scores in natural units
//   scale()                    that factor (unused if not PLAIN)
//   block_hides(key)           whether any (row, key) pair of the block's rows and the tile at `key` may be hidden
//   wave_sees(key)             whether the wave may see any key of the tile; STAGGERED: if not, none later either
//   apply(query, s, key)       finishes the scores of query fragment `query` and of one part at `key`; -inf hides
//   sees(query, key)           whether this lane's row of query fragment `query` sees the key
//   drop(query, w, key)        DROPOUT: makes weights of the 16 keys from `key` on 0 that dropout drops
#pragma once

#include <rocattn/bias.h>
#include <rocattn/flash_direct.h>
#include <rocattn/flash_fragments.h>
#include <rocattn/flash_loads.h>

namespace rocattn {

template <typename S, typename Scores>
class FlashForward {
    using T = typename S::T;
    using KV = typename S::KV;
    using M = typename S::M;
    using Element = typename S::Element;
    using KM = typename S::KM;  // of the scores
    using KElement = typename S::KElement;
    using B = typename M::B;
    using C = typename M::C;
    static constexpr u32 Q_FRAGMENTS = S::Q_FRAGMENTS, FRAGS = FRAGMENTS<M>, K_FRAGS = FRAGMENTS<KM>;
    static constexpr bool PLAIN = Scores::PLAIN;
    static constexpr u32 BATCH = S::BATCH;
    using InFlight = FlashFragments<S>;
    using KeyTile = typename InFlight::Tile;
    using Direct = FlashDirect<S, FlashForward>;
    friend Direct;
    static constexpr bool ACCURATE = !PLAIN && sizeof(T) == 4;  // conversion from natural to log2 units loses digits
    // How far a score may exceed the reference, in the units of P's exponent.
    static constexpr float SLACK = PLAIN ? 8.0f : 8.0f * LN_2;
    static constexpr float LARGEST = 3.40282347e38f;
    // How far from 0 products may start, in the units of P's exponent.
    static constexpr float NEAR = 16384.0f;
    // P is scaled by 2^LIFT. CDNA 2's matrix unit flushes subnormal f16 to 0: with the scaling, only values below 2^-21
    // of the row's reference are lost there, and 2^8 above it still fits.
#if defined(__gfx90a__)
    static constexpr float LIFT = is_f16<T> ? 7.0f : 0.0f;
#else
    static constexpr float LIFT = 0.0f;
#endif

    const FlashBlock<S>& block;
    const Scores& scores;
    C o[Q_FRAGMENTS][S::FEATURE_FRAGMENTS];
    typename KM::B q[S::KEEPS_Q_IN_LDS ? 1 : Q_FRAGMENTS][S::KEEPS_Q_IN_LDS ? 1 : S::DEPTHS][K_FRAGS];
    float limit[Q_FRAGMENTS];      // scores beyond it move the reference; -inf: there is none yet; see restarts()
    float reference[Q_FRAGMENTS];  // in units of the scores; 0 if there is none yet
    C start[PLAIN ? Q_FRAGMENTS : 1];  // PLAIN: -reference, where the products start, so that they give scores less the
                             // reference; see restarts()
    InFlight fragments;
    u32 wave;  // DIRECT_K: this wave's number, as a scalar
    Vector<float, 2> sum[Q_FRAGMENTS];  // over this lane's keys, in two halves for packed adds
    FlashLoads<S> loads;
#ifdef DROPOUT
    u32 tile_key;  // first key of the current tile
#endif

public:
    ROCATTN_INLINE FlashForward(const FlashBlock<S>& block, const Scores& scores)
        : block(block), scores(scores) {
        if constexpr (S::DIRECT_K) wave = uniform(wave_id());
#pragma unroll
        for (u32 i = 0; i < Q_FRAGMENTS; ++i) {
            limit[i] = -INF;
            reference[i] = 0.0f;
            sum[i] = {};
            if constexpr (PLAIN) settle(start[i] = C{});
#pragma unroll
            for (u32 f = 0; f < S::FEATURE_FRAGMENTS; ++f) o[i][f] = C{};
        }
    }

    // Q of the wave's rows; row_at(r): address of row r of the wave, null: no such row.
    template <typename RowAt>
    ROCATTN_INLINE void load_queries(const RowAt& row_at) {
        KElement* mine = query_fragment(0);
#pragma unroll
        for (u32 i = 0; i < Q_FRAGMENTS; ++i) {
            KElement* tile = S::KEEPS_Q_IN_LDS ? query_fragment(i) : mine;
            const auto tile_row_at = [&](u32 row) { return row_at(i * 16 + row); };
            stage_rows<typename S::KT, KElement, S::DEPTH, S::STEP, StoredQ<T>>(tile, tile_row_at, block.head_dim);
            wave_barrier();
            if constexpr (!S::KEEPS_Q_IN_LDS) {
#pragma unroll
                for (u32 d = 0; d < S::DEPTHS; ++d)
                    read_b<KM>(tile + d * GROUP_DEPTH<KM>, S::STRIDE, q[i][d]);
                wave_barrier();
            }
        }
        if constexpr (S::DEPTH > S::D && !S::DIRECT) {  // K's columns beyond D, which no tile writes
            block_barrier();
            constexpr u32 EXTRA = S::DEPTH - S::D;
            for (u32 i = thread_id(); i < S::TILE_KEYS * EXTRA; i += S::THREADS)
                lds_store(k_room() + i / EXTRA * S::STRIDE + S::D + i % EXTRA, KElement{});
        }
    }

    // Key tiles [first, stop), the same for the whole block.
    ROCATTN_INLINE void run(u32 first, u32 stop) {
        if (first >= stop) return;
        Rows<KV> k_rows = block.k.from(first * S::TILE_KEYS), v_rows = block.v.from(first * S::TILE_KEYS);
        do {
            keep_order();  // otherwise the two loops are merged, and copy O in each iteration
            // Opaque, and moved back from the end: otherwise values for the first tile, and the start of all rows,
            // stay in scalar registers for the next pass.
            if constexpr (S::PARTS > 1) clear_features();
            pass(k_rows, v_rows, PLAIN ? first + unknown_zero() : first, stop);
            k_rows = k_rows.before((stop - first) * S::TILE_KEYS);
            v_rows = v_rows.before((stop - first) * S::TILE_KEYS);
        } while (restarts());
    }

    // The results of query fragment i, in this lane's column: the row's sum, its reference (as P's exponent has it)
    // and C_ROWS features of the output, the f-th of its groups, not divided by the sum yet; `lane`: l.
    ROCATTN_INLINE float total(u32 i, u32 lane) const { return column_sum<M>(sum[i][0] + sum[i][1], lane); }
    ROCATTN_INLINE float reference_of(u32 i) const { return limit[i] == -INF ? -INF : reference[i] * unit() - lift(); }
    ROCATTN_INLINE C features(u32 i, u32 f, u32 lane) const {
        if constexpr (S::LOADS_FRAGMENTS) {
            C some;
#pragma unroll
            for (u32 r = 0; r < M::C_ROWS; ++r) {
                const u32 n = f * M::C_ROWS + r;
                some[r] = o[i][n % S::FEATURE_FRAGMENTS][n / S::FEATURE_FRAGMENTS];
            }
            return some;
        } else {
            return contiguous_rows<M>(o[i][f], lane);
        }
    }
    // The first of them.
    static ROCATTN_INLINE u32 first_feature(u32 f, u32 lane) {
        if constexpr (S::LOADS_FRAGMENTS) return (M::part(lane) * S::FEATURE_FRAGMENTS + f) * M::C_ROWS;
        return 16 * f + M::part(lane) * M::C_ROWS;
    }

private:
    ROCATTN_INLINE KElement* k_room() const { return reinterpret_cast<KElement*>(block.lds); }
    ROCATTN_INLINE KElement* query_fragment(u32 i) const {
        Element* all = block.lds + (S::KEEPS_Q_IN_LDS ? S::K_ELEMENTS + S::V_ELEMENTS : 0);
        return reinterpret_cast<KElement*>(all) + (wave_id() * (S::KEEPS_Q_IN_LDS ? Q_FRAGMENTS : 1) + i) * 16 * S::STRIDE;
    }

    // Key tiles [first, stop); k_rows and v_rows start at the first tile, and end after the last.
    ROCATTN_INLINE void pass(Rows<KV>& k_rows, Rows<KV>& v_rows, u32 first, u32 stop) {
        if constexpr (S::LOADS_FRAGMENTS)
            pass_as_fragments(k_rows, v_rows, first, stop);
        else if constexpr (S::STAGGERED)
            Direct::pass_staggered(*this, k_rows, v_rows, first, stop);
        else if constexpr (S::DIRECT)
            Direct::pass_directly(*this, k_rows, v_rows, first, stop);
        else
            pass_through_registers(k_rows, v_rows, first, stop);
    }

    // The loads of the next tile of K are issued after the products with this one, and those of V likewise: during the
    // wait for one, the other is in flight. After the last tile, a row of K is loaded again, equally often: so the same
    // number of loads always follows those of V, and the compiler's wait for V leaves them in flight.
    ROCATTN_INLINE void pass_as_fragments(Rows<KV>& k_rows, Rows<KV>& v_rows, u32 first, u32 stop) {
        typename S::KTile k(block.k);
        typename S::VTile v(block.v);
#if SEQUENCES >= 2
        loads.find_pages(block, k, v, first * S::TILE_KEYS);
#endif
        const u32 rows = block.seq_k - first * S::TILE_KEYS;
        loads.template fetch_fragments<true>(block, k, k_rows, first * S::TILE_KEYS, rows);
        loads.template fetch_fragments<false>(block, v, v_rows, first * S::TILE_KEYS, rows);
        const u32 end = stop * S::TILE_KEYS;
        for (u32 key = first * S::TILE_KEYS;;) {
            const bool found = scores.block_hides(key) && keep_finite(v);
            const u32 next = key + S::TILE_KEYS;
            compute(key, {k, v}, [&] {
                const bool more = next < end;
                loads.template fetch_fragments<true>(block, k, k_rows.from(more ? S::TILE_KEYS : 0), more ? next : key,
                                                     more ? block.seq_k - next : 1);
            });
            if (found) add_nonfinite(v_rows, key);
            k_rows = k_rows.from(S::TILE_KEYS);
            v_rows = v_rows.from(S::TILE_KEYS);
            if (next >= end) break;
            loads.template fetch_fragments<false>(block, v, v_rows, next, block.seq_k - next);
            key = next;
        }
    }

    ROCATTN_INLINE void pass_through_registers(Rows<KV>& k_rows, Rows<KV>& v_rows, u32 first, u32 stop) {
        typename S::KTile k = k_tile();
        typename S::VTile v(block.v, thread_id(), block.head_dim_v);
#if SEQUENCES >= 2
        loads.find_pages(block, k, v, first * S::TILE_KEYS);
#endif
        if constexpr (S::TILE_SLICES == 1) loads.fetch(block, k, v, k_rows, v_rows, first * S::TILE_KEYS, 0);
        const u32 end = stop * S::TILE_KEYS;
        for (u32 key = first * S::TILE_KEYS; key < end; key += S::TILE_KEYS) {
            const bool hides = scores.block_hides(key);
            block_barrier();  // all waves are done with what LDS held before
            bool found = false;
            for (u32 slice = 0; slice < S::TILE_SLICES; ++slice) {
                if constexpr (S::TILE_SLICES > 1) loads.fetch(block, k, v, k_rows, v_rows, key, slice);
                if (hides) found = keep_finite(v) || found;
                k.put(k_room() + slice * S::K_COLUMNS, S::STRIDE, slice * S::K_COLUMNS);
                put_chained<typename S::VLayout>(v, block.lds + S::K_ELEMENTS, slice * S::V_COLUMNS);
            }
            if (hides && lane_id() == 0) lds_store(block.flags + wave_id(), static_cast<u32>(found));
            block_barrier();
            if constexpr (S::TILE_SLICES == 1)
                if (const u32 next = key + S::TILE_KEYS; next < end)
                    loads.fetch(block, k, v, k_rows.from(S::TILE_KEYS), v_rows.from(S::TILE_KEYS), next, 0);
            if (scores.wave_sees(key)) {
                compute(key, {k_in_lds(k), block.lds + S::K_ELEMENTS});
                if (hides && any_flag()) add_nonfinite(v_rows, key);
            }
            k_rows = k_rows.from(S::TILE_KEYS);
            v_rows = v_rows.from(S::TILE_KEYS);
        }
    }

    ROCATTN_INLINE typename S::KTile k_tile() const {
        if constexpr (S::DIRECT_K)
            return {block.lds, block.next_lds, wave};
        else
            return {block.k, thread_id(), block.head_dim};
    }
    ROCATTN_INLINE const KElement* k_in_lds([[maybe_unused]] const typename S::KTile& k) const {
        if constexpr (S::DIRECT_K)
            return k.now;
        else
            return k_room();
    }

    using Tile = C[Q_FRAGMENTS][S::PARTS][S::PART_FRAGMENTS];
    // As words: otherwise values live across branches are copied element by element.
    using Words = Vector<u32, sizeof(B) / 4>;
    using Weights = Words[Q_FRAGMENTS][S::TILE_KEYS / M::DEPTH];
    using Held = typename InFlight::Held;
    using Sums = Vector<float, 2>[Q_FRAGMENTS];

    struct Nothing {
        ROCATTN_INLINE void operator()() const {}
    };

    // A tile of keys, with K and V at `tile`. Each part but the last is weighed before it is known whether the
    // references suffice for the whole tile: if not, these parts are weighed again.
    // behind_keys() runs after the products with K. STAGGERED: halfway() runs after those with the first batch of V,
    // behind_weights() after those with the second, where the weights of the last part are known.
    template <typename BehindKeys = Nothing, typename Halfway = Nothing, typename BehindWeights = Nothing>
    ROCATTN_INLINE void compute(u32 key, const KeyTile& tile, const BehindKeys& behind_keys = {},
                                const Halfway& halfway = {}, const BehindWeights& behind_weights = {}) {
        Tile s;
        Weights p;
        Held a;
        Sums fresh;  // of weights that may have to be recomputed
        float top[Q_FRAGMENTS];
#ifdef DROPOUT
        tile_key = key;
#endif
        if constexpr (S::STAGGERED) set_priority<1>();
        if constexpr (S::ROLLS)
            fragments.template read_rolling<0, InFlight::FIRST_READS>(tile, a);
        else if constexpr (BATCH != 0)
            fragments.read_batch(tile, 0, a);
#pragma unroll
        for (u32 part = 0; part < S::PARTS; ++part) {
            multiply_queries(tile, part, a, s);
            if (part + 1 == S::PARTS) behind_keys();
            if (part > 0) {
                find_top(part - 1, s, top);
                weigh(part - 1, s, p, fresh);
            }
            if constexpr (BATCH != 0) {
                if (part == 0)
                    fragments.template arrange_keys<0, S::PARTS == 1>();
                else if (part + 1 < S::PARTS)
                    fragments.template arrange_keys<InFlight::PART_SCORES * 17 / 4, false>();
                else
                    fragments.template arrange_keys<InFlight::PART_SCORES * 17 / 4, true>();
            }
            if (part > 0) settle_weights(part - 1, p, fresh, top);
            finish(part, s, key);
        }
        if constexpr (S::STAGGERED) set_priority<0>();
        find_top(S::PARTS - 1, s, top);
        bool beyond = false;
#pragma unroll
        for (u32 i = 0; i < Q_FRAGMENTS; ++i) beyond |= top[i] > limit[i];
        if (any_lane(beyond)) {
            move_references(s, top);
#pragma unroll
            for (u32 part = 0; part + 1 < S::PARTS; ++part) {
                weigh(part, s, p, fresh);
                settle_weights(part, p, fresh, top);
            }
        }
        weigh(S::PARTS - 1, s, p, fresh);
        if constexpr (S::STAGGERED) {
            constexpr u32 END = S::VALUE_READS / BATCH;
            multiply_values<0, 1>(tile, a, p);
#pragma unroll
            for (u32 i = 0; i < Q_FRAGMENTS; ++i)  // otherwise the compiler moves the barrier between these products
#pragma unroll
                for (u32 f = 0; f < BATCH / S::GROUPS; ++f) settle(o[i][f]);
            halfway();
            multiply_values<1, 2>(tile, a, p);
            fragments.template arrange_values<0, 2>();
            settle_last_weights(p);
            behind_weights();
            multiply_values<2, END>(tile, a, p);
            fragments.template arrange_values<2, END>();
        } else {
            multiply_values(tile, a, p);
            if constexpr (BATCH != 0) fragments.arrange_values();
        }
    }

    ROCATTN_INLINE void multiply_queries(const KeyTile& tile, u32 part, Held& a, Tile& s) const {
#pragma unroll
        for (u32 i = 0; i < Q_FRAGMENTS; ++i)
#pragma unroll
            for (u32 t = 0; t < S::PART_FRAGMENTS; ++t) s[i][part][t] = PLAIN ? start[i] : C{};
        if constexpr (BATCH != 0) {
            constexpr u32 BATCHES = S::PART_READS / BATCH;
            constexpr bool BY_FRAGMENT = S::BY_FRAGMENT || S::ROLLS;
#pragma unroll
            for (u32 b = part * BATCHES; b < (part + 1) * BATCHES; ++b) {
                fragments.begin_batch(tile, b, a);
#pragma unroll
                for (u32 outer = 0; outer < (BY_FRAGMENT ? BATCH : K_FRAGS); ++outer)
#pragma unroll
                    for (u32 inner = 0; inner < (BY_FRAGMENT ? K_FRAGS : BATCH); ++inner) {
                        const u32 j = BY_FRAGMENT ? outer : inner, f = BY_FRAGMENT ? inner : outer;
                        const u32 of_part = b * BATCH + j - part * S::PART_READS;
                        const u32 t = of_part % S::PART_FRAGMENTS, d = of_part / S::PART_FRAGMENTS;
#pragma unroll
                        for (u32 i = 0; i < Q_FRAGMENTS; ++i)
                            s[i][part][t] = KM::multiply(InFlight::template get<KM>(InFlight::at(a, b * BATCH + j), f),
                                                         q[i][d][f], s[i][part][t]);
                        if (f + 1 == K_FRAGS) fragments.roll(tile, b * BATCH + j, S::PART_READS + S::EARLY, a);
                    }
            }
            return;
        }
#pragma unroll
        for (u32 d = 0; d < S::DEPTHS; ++d) {
            // Otherwise the products of the second query fragment come after the masking of the first, with all of K
            // live in registers. Only before the last depth: known results of products are compared directly.
            if (Q_FRAGMENTS > 1 && d + 1 == S::DEPTHS) {
#pragma unroll
                for (u32 i = 0; i < Q_FRAGMENTS; ++i)
#pragma unroll
                    for (u32 t = 0; t < S::PART_FRAGMENTS; ++t) settle(s[i][part][t]);
            }
            typename KM::B mine[Q_FRAGMENTS][K_FRAGS];
#pragma unroll
            for (u32 i = 0; i < Q_FRAGMENTS; ++i) {
                if constexpr (S::KEEPS_Q_IN_LDS) {
                    read_b<KM>(query_fragment(i) + d * GROUP_DEPTH<KM>, S::STRIDE, mine[i]);
                } else {
#pragma unroll
                    for (u32 f = 0; f < K_FRAGS; ++f) mine[i][f] = q[i][d][f];
                }
            }
#pragma unroll
            for (u32 t = 0; t < S::PART_FRAGMENTS; ++t) {
                typename InFlight::Fragments one;
                fragments.read_key(tile, part, d * S::PART_FRAGMENTS + t, one);
#pragma unroll
                for (u32 f = 0; f < K_FRAGS; ++f)
#pragma unroll
                    for (u32 i = 0; i < Q_FRAGMENTS; ++i)
                        s[i][part][t] = KM::multiply(InFlight::template get<KM>(one, f), mine[i][f], s[i][part][t]);
            }
            if ((S::FULL_OF_SUMS || S::KEEPS_Q_IN_LDS) && d % 4 == 3) keep_order();
        }
    }

    ROCATTN_INLINE void finish(u32 part, Tile& s, u32 key) const {
#pragma unroll
        for (u32 i = 0; i < Q_FRAGMENTS; ++i)
#pragma unroll
            for (u32 t = 0; t < S::PART_FRAGMENTS; ++t) s[i][part][t] = arranged<M>(s[i][part][t]);
#pragma unroll
        for (u32 i = 0; i < Q_FRAGMENTS; ++i) scores.template apply<S>(i, s[i][part], key + part * S::PART_KEYS);
    }

    // This lane's largest scores of the tile so far.
    ROCATTN_INLINE void find_top(u32 part, const Tile& s, float (&top)[Q_FRAGMENTS]) const {
#pragma unroll
        for (u32 i = 0; i < Q_FRAGMENTS; ++i) {
            if (part == 0) top[i] = s[i][0][0][0];
#pragma unroll
            for (u32 t = 0; t < S::PART_FRAGMENTS; ++t)
#pragma unroll
                for (u32 r = 0; r < M::C_ROWS; ++r) top[i] = __builtin_fmaxf(top[i], s[i][part][t][r]);
        }
    }

    // Moves all references up to the maxima so far; `top` has this lane's.
    ROCATTN_INLINE void move_references(Tile& s, const float (&top)[Q_FRAGMENTS]) {
        const u32 lane = S::late_lane();
        const float none = S::late(-INF), largest = S::late(LARGEST);
        const bool distant = PLAIN && any_lane(limit[0] == -largest);
        bool too_far = false;
#pragma unroll
        for (u32 i = 0; i < Q_FRAGMENTS; ++i) {
            const float before = limit[i] == none ? none : reference[i];
            const float base = PLAIN && !distant ? reference[i] : 0.0f;
            const float now = __builtin_fmaxf(before, column_max<M>(top[i], lane) + base);
            const float moved = now == none ? 0.0f : now;
            if constexpr (PLAIN) {
#pragma unroll
                for (u32 part = 0; part < S::PARTS; ++part)
#pragma unroll
                    for (u32 t = 0; t < S::PART_FRAGMENTS; ++t) s[i][part][t] -= moved - base;
                settle(start[i] = column_values<M>(distant ? 0.0f : -moved));
                too_far |= !distant && __builtin_fabsf(moved) * unit() > NEAR;
            }
            reference[i] = moved;
            float scale = unit();
            if constexpr (S::PARTS > 1)
                settle(scale);
            else
                settle_if_short<T>(scale);  // otherwise the quotient stays live across the loop
            const float room = distant ? -largest : SLACK * reciprocal_fast(scale);
            limit[i] = now == none ? none : PLAIN ? room : now + SLACK;
            const float by = before - moved;
            const float factor = ACCURATE ? exp_accurate(by) : exp2_fast(by * (PLAIN ? unit() : LOG2_E));
            sum[i] *= factor;
            const C column_factor = column_values<M>(factor);
#pragma unroll
            for (u32 f = 0; f < S::FEATURE_FRAGMENTS; ++f) o[i][f] *= column_factor;
        }
        if (PLAIN && any_lane(too_far)) {
            keep_branch();
#pragma unroll
            for (u32 i = 0; i < Q_FRAGMENTS; ++i) limit[i] = INF;
        }
    }

    // After all tiles: whether they must be processed again, by the whole block.
    //
    // A product that starts at a large -reference is rounded by more than exponents span (the steps of 1e10 are 1024),
    // so that equal scores do not stay equal. A wave that comes to such a reference gives up (its limits are INF).
    // Then all waves of the block become *distant*: their products start at 0, and their references are subtracted in
    // move_references, which the limit forces for every tile. Rare, and without cost for the usual loop.
    ROCATTN_INLINE bool restarts() {
        if constexpr (!PLAIN) return false;
        const bool gave_up = any_lane(limit[0] == INF);
        block_barrier();  // all waves have read the last tile's flags
        if (lane_id() == 0) lds_store(block.flags + wave_id(), static_cast<u32>(gave_up));
        block_barrier();
        if (!any_flag()) return false;
#pragma unroll
        for (u32 i = 0; i < Q_FRAGMENTS; ++i) {
            limit[i] = reference[i] = -LARGEST;
            sum[i] = {};
            settle(start[PLAIN ? i : 0] = C{});
        }
        if constexpr (S::PARTS == 1) clear_features();
        return true;
    }

    // O = 0: before a pass with several PARTS, where O and the zeros would otherwise both be live. With one part,
    // before a pass is repeated, since zeros kept live before the loop would cost more.
    ROCATTN_INLINE void clear_features() {
#pragma unroll
        for (u32 i = 0; i < Q_FRAGMENTS; ++i)
#pragma unroll
            for (u32 f = 0; f < S::FEATURE_FRAGMENTS; ++f) {
                o[i][f] = C{};
                // Otherwise zeroed registers stay live across the loop; on RDNA, O would be spilled for them.
                if constexpr (S::PARTS == 1 && WAVE == 64 && M::DEPTH > 4) settle(o[i][f]);
            }
    }

    // LIFT in the units of reference_of().
    static constexpr ROCATTN_INLINE float lift() { return PLAIN ? LIFT : LIFT * LN_2; }
    // Factor that converts scores to the units of reference_of().
    ROCATTN_INLINE float unit() const { return PLAIN ? scores.scale() : 1.0f; }

    // Scores of a part to weights, added up: in `fresh` before the last part, which adds all to `sum`.
    ROCATTN_INLINE void weigh(u32 part, Tile& s, Weights& p, Sums& fresh) {
        constexpr u32 FROM = M::CHAIN / 16, TO = M::CHAIN / M::DEPTH;
#pragma unroll
        for (u32 i = 0; i < Q_FRAGMENTS; ++i) {
            if (part > 0 && part + 1 == S::PARTS) sum[i] += fresh[i];
#pragma unroll
            for (u32 t = 0; t < S::PART_FRAGMENTS; t += FROM) {
                C group[FROM];
#pragma unroll
                for (u32 n = 0; n < FROM; ++n) {
                    group[n] = exponential(i, s[i][part][t + n]);
                    Vector<float, 2>& total = part + 1 == S::PARTS ? sum[i] : fresh[i];
#pragma unroll
                    for (u32 r = 0; r < M::C_ROWS; r += 2) {
                        const Vector<float, 2> two{group[n][r], group[n][r + 1]};
                        total = part + 1 < S::PARTS && part + t + n + r == 0 ? two : total + two;
                    }
                    if constexpr (S::PARTS == 1) settle(total);
                }
#ifdef DROPOUT
#pragma unroll
                for (u32 n = 0; n < FROM; ++n)
                    scores.drop(i, group[n], tile_key + part * S::PART_KEYS + 16 * (t + n));
#endif
                B to[TO];
                M::chain(group, to);
#pragma unroll
                for (u32 n = 0; n < TO; ++n)
                    p[i][(part * S::PART_FRAGMENTS + t) / FROM * TO + n] = __builtin_bit_cast(Words, to[n]);
            }
        }
    }

    // Otherwise the compiler sinks them past the following branches, to their use.
    ROCATTN_INLINE void settle_weights(u32 part, Weights& p, Sums& fresh, float (&top)[Q_FRAGMENTS]) const {
        constexpr u32 COUNT = S::PART_KEYS / M::DEPTH;
#pragma unroll
        for (u32 i = 0; i < Q_FRAGMENTS; ++i) {
            settle(fresh[i]);
            settle(top[i]);
#pragma unroll
            for (u32 n = 0; n < COUNT; ++n) settle(p[i][part * COUNT + n]);
        }
    }

    // The same of the last part, and of the sums, before a branch among the products with V.
    ROCATTN_INLINE void settle_last_weights(Weights& p) {
        constexpr u32 COUNT = S::PART_KEYS / M::DEPTH;
#pragma unroll
        for (u32 i = 0; i < Q_FRAGMENTS; ++i) {
#pragma unroll
            for (u32 n = 0; n < COUNT; ++n) settle(p[i][(S::PARTS - 1) * COUNT + n]);
            settle(sum[i]);
        }
    }

    ROCATTN_INLINE C exponential(u32 i, C s) const {
        if constexpr (PLAIN)
            s *= scores.scale();
        else
            s = ACCURATE ? s - reference[i] : (s - reference[i]) * LOG2_E;
        if constexpr (LIFT != 0.0f) s += LIFT;
#pragma unroll
        for (u32 r = 0; r < M::C_ROWS; ++r) s[r] = ACCURATE ? exp_accurate(s[r]) : exp2_fast(s[r]);
        return s;
    }

    // With batches FROM ... TO - 1 of V.
    template <u32 FROM = 0, u32 TO = S::VALUE_READS / (BATCH == 0 ? 1 : BATCH)>
    ROCATTN_INLINE void multiply_values(const KeyTile& tile, Held& a, const Weights& p) {
        constexpr u32 COUNT = BATCH == 0 ? 1 : BATCH, BEFORE = BATCH == 0 ? 0 : S::PARTS * S::PART_READS;
        if constexpr (S::ROLLS) {
            constexpr u32 READ = BEFORE + S::EARLY;
            fragments.template read_rolling<READ, READ + InFlight::LATE_READS>(tile, a);
        }
#pragma unroll
        for (u32 batch = FROM; batch < TO; ++batch) {
            if constexpr (BATCH == 0)
                fragments.read_value(tile, batch, InFlight::at(a, batch));
            else
                fragments.begin_batch(tile, BEFORE / COUNT + batch, a);
#pragma unroll
            for (u32 e = 0; e < FRAGS; ++e)
#pragma unroll
                for (u32 outer = 0; outer < (S::ROLLS ? COUNT : Q_FRAGMENTS); ++outer)
#pragma unroll
                    for (u32 inner = 0; inner < (S::ROLLS ? Q_FRAGMENTS : COUNT); ++inner) {
                        const u32 i = S::ROLLS ? inner : outer, j = S::ROLLS ? outer : inner;
                        const u32 n = batch * COUNT + j, g = n % S::GROUPS, f = n / S::GROUPS % S::FEATURE_FRAGMENTS;
                        const u32 c = n / (S::GROUPS * S::FEATURE_FRAGMENTS);
                        const auto b = __builtin_bit_cast(B, p[i][c * S::CHAIN_PRODUCTS + g * FRAGS + e]);
                        o[i][f] = M::multiply(InFlight::template get<M>(InFlight::at(a, BEFORE + n), e), b, o[i][f]);
                        if constexpr (S::SETTLES_SUMS) settle(o[i][f]);
                        if (S::ROLLS && i + 1 == Q_FRAGMENTS) {
                            fragments.roll(tile, BEFORE + n, BEFORE + S::VALUE_READS, a);
                            if (j + 1 == COUNT) settle(o[i][f]);  // otherwise the next batch's wait comes first
                        }
                    }
            if (BATCH == 0 && S::FULL_OF_SUMS && batch / S::GROUPS % 4 == 3) keep_order();
        }
    }

    // 0 * NaN is NaN, so a non-finite value would reach rows that do not see its key. If any pair of a tile is hidden,
    // such values are removed from V, with a flag set by each wave that finds one, and added only to the rows that see
    // them.
    ROCATTN_INLINE bool keep_finite(typename S::VTile& v) const {
        const bool found = any_lane(v.has_nonfinite());
        if (found) v.clear_nonfinite();
        return found;
    }

    // Whether any wave of the block set its flag.
    ROCATTN_INLINE bool any_flag() const {
        u32 found = 0;
#pragma unroll
        for (u32 w = 0; w < S::BLOCK_WAVES; ++w) found |= lds_load(block.flags + w);
        return uniform(found) != 0;
    }

    // Rare, so it reads V again. A visible p > 0 times an infinity or NaN is just that infinity or NaN.
    ROCATTN_INLINE void add_nonfinite(Rows<KV> v_rows, u32 first) {
        const u32 stop = smaller(first + S::TILE_KEYS, block.seq_k);
        for (u32 key = first; key < stop; ++key, v_rows = v_rows.from(1)) {
            const KV* row = v_rows.base;
#if SEQUENCES >= 2
            const i64 page = scalar(block.pages.of(key));
            row = block.v.base + (page * block.pages.v_stride + block.pages.row(key) * block.v.stride);
#endif
            const float largest = S::late(LARGEST);
            u32 seen[Q_FRAGMENTS];  // as a mask of bits, so that no branch gathers the additions at the end
            u32 lane_column = M::c_row(0, S::PARTS > 1 ? lane_late() : lane_again<T>());
            settle(lane_column);  // otherwise the comparisons of all columns stay in SGPRs across the loop
#pragma unroll
            for (u32 i = 0; i < Q_FRAGMENTS; ++i) seen[i] = scores.sees(i, key) ? ~0u : 0u;
#pragma unroll
            for (u32 f = 0; f < S::FEATURE_FRAGMENTS; ++f) {
                if constexpr (M::PAIRED) {
#pragma unroll
                    for (u32 i = 0; i < Q_FRAGMENTS; ++i) o[i][f] = M::arranged(o[i][f]);
                }
#pragma unroll
                for (u32 r = 0; r < M::C_ROWS; ++r) {
                    u32 column = S::LOADS_FRAGMENTS ? f + S::FEATURE_FRAGMENTS * (M::row_step(r) + lane_column)
                                                    : 16 * f + M::row_step(r) + lane_column;
                    if (S::STEP != 0 && column >= block.head_dim_v) column = 0;  // a feature that is never written
                    const float value = to_float(load(lane_address(row, column * u32{sizeof(KV)})));
                    // Infinity less the largest number is infinity, and finite values become 0. No comparisons: their
                    // results would take two scalars each.
                    const float excess = value - __builtin_fminf(__builtin_fmaxf(value, -largest), largest);
#pragma unroll
                    for (u32 i = 0; i < Q_FRAGMENTS; ++i)
                        o[i][f][r] += __builtin_bit_cast(float, __builtin_bit_cast(u32, excess) & seen[i]);
                }
                if constexpr (M::PAIRED) {
#pragma unroll
                    for (u32 i = 0; i < Q_FRAGMENTS; ++i) o[i][f] = M::arranged(o[i][f]);
                }
                keep_order();
            }
        }
    }
};

}  // namespace rocattn
