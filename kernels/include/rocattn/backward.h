// The backward pass on one block: the one core of attention_backward_dkdv and attention_backward_dq.
//
// A block holds RESIDENT rows of one side (keys with K and V, or queries with Q and dO), 16 a wave, and streams the
// other side past them, STEP rows at a time. With F, S the streamed pair (Q, dO or K, V) and f, s the resident one:
//
//   scores = F f^T, dP = S s^T       A = streamed rows from LDS, B = resident rows: a lane's column is a resident row
//   P  = exp(scores - LSE)           in lanes
//   dS = P * (dP - delta)            in lanes; delta = rowsum(dO * out); times the softcap's derivative
//   df^T += F^T dS                   A = F^T from LDS, B = dS by Matrix::chain: no exchange through LDS
//   ds^T += S^T P                    the same; for keys only (dV^T += dO^T P)
//
// Each gradient is summed by one wave in a fixed order: no atomics, the same bits in every run. Scores and P are
// computed again here from q, k and the LSE (Dao et al. 2022, "FlashAttention", appendix B.4); a sink is in the LSE.
//
// A streamed row comes to LDS in two forms, by rows and transposed, each fetched from memory (the second time from
// cache). Where some pair of a tile is hidden, NaN and inf are taken out of the transposed form, as 0 * NaN is NaN. The
// pairs that do see such a value get P = dS = NaN: from the score, where it is in F, and from a spoilt LSE, where it is
// in S. So a NaN in one feature of dO makes all features of dV NaN in the keys that its row sees.
#pragma once

#include <rocattn/backward_scores.h>
#include <rocattn/tile.h>

namespace rocattn {

// What is known at compile time. D: head dimension of all four matrices, padded. KEYS: whether keys are resident.
// IS_PLAIN: scores are just scaled and the head dimensions are D exactly; what is hidden, the band and the ends hide.
template <typename T_, u32 D_, u32 WAVES_, u32 STEP_, bool KEYS_, bool RESIDENT_IN_LDS_, bool IS_PLAIN>
struct BackwardShape {
    using T = T_;
    using M = Matrix<T>;
    using Element = typename M::Element;
    static constexpr u32 D = D_, BLOCK_WAVES = WAVES_, STEP = STEP_;
    static constexpr bool KEYS = KEYS_, RESIDENT_IN_LDS = RESIDENT_IN_LDS_, PLAIN = IS_PLAIN;
    static constexpr u32 GRANULE = PLAIN ? 0 : ANY_COLUMNS;
    static constexpr u32 THREADS = BLOCK_WAVES * WAVE, RESIDENT = 16 * BLOCK_WAVES;
    static constexpr u32 DEPTHS = D / GROUP_DEPTH<M>, FEATURE_TILES = D / 16;
    static constexpr u32 CHAINS = STEP / CHAIN_ROWS<M>, CHAIN_TILES = CHAIN_ROWS<M> / 16;
    static constexpr u32 CHAIN_PRODUCTS = CHAIN_ROWS<M> / M::DEPTH, GROUPS = CHAIN_PRODUCTS / FRAGMENTS<M>;
    static constexpr bool PREFETCH = sizeof(Element) == 2;  // float tiles would take too many registers on their way
    static constexpr u32 RUN = CHAIN_ROWS<M> / (WAVE / 16);  // streamed rows of a group in one lane
    static_assert(D % GROUP_DEPTH<M> == 0 && D % 16 == 0 && STEP % CHAIN_ROWS<M> == 0, "whole tiles");

    // LDS, in elements: F | S | F^T | S^T (for keys) | f | s. Unless RESIDENT_IN_LDS, f and s pass through F's room.
    static constexpr u32 STRIDE = row_stride<Element>(D);
    static constexpr u32 ROWS = STEP * STRIDE, TRANSPOSED = transposed_offset<Element>(D, STEP);
    static constexpr u32 STREAMED = 2 * ROWS + (KEYS ? 2 : 1) * TRANSPOSED;
    static constexpr u32 RESIDENTS = RESIDENT * STRIDE;  // f or s
    static constexpr u32 LDS_ELEMENTS = RESIDENT_IN_LDS ? STREAMED + 2 * RESIDENTS
                                        : STREAMED > RESIDENTS ? STREAMED : RESIDENTS;

    using RowForm = RowTile<T, Element, STEP, D, THREADS, GRANULE>;
    using TransposedForm = TransposedTile<T, M, STEP, D, THREADS, GRANULE>;
};

// What a kernel hands over: the resident side, and LDS.
template <typename S>
struct BackwardBlock {
    u32 first_resident, resident_rows;  // of the block, and of the problem
    u32 head_dim, head_dim_v;
    typename S::Element* lds;  // S::LDS_ELEMENTS
    float* stats;              // 2 * S::STEP: LSE (in log2 units) and delta of streamed queries
    u32* flags;                // S::BLOCK_WAVES words
};

template <typename S>
class Backward {
    using T = typename S::T;
    using M = typename S::M;
    using Element = typename S::Element;
    using B = typename M::B;
    using C = typename M::C;
    using Scores = BackwardScores<S::PLAIN>;
    static constexpr u32 FRAGS = FRAGMENTS<M>;

    const BackwardBlock<S>& block;
    const u32 wave_row;  // the first row of this wave
    B first[S::RESIDENT_IN_LDS ? 1 : S::DEPTHS][FRAGS], second[S::RESIDENT_IN_LDS ? 1 : S::DEPTHS][FRAGS];
    C first_gradient[S::FEATURE_TILES], second_gradient[S::KEYS ? S::FEATURE_TILES : 1];
    float base = 0.0f, delta = 0.0f;  // of this lane's query, where queries are resident

public:
    ROCATTN_INLINE Backward(const BackwardBlock<S>& block)
        : block(block), wave_row(block.first_resident + uniform(wave_id()) * 16) {
#pragma unroll
        for (u32 f = 0; f < S::FEATURE_TILES; ++f) first_gradient[f] = second_gradient[S::KEYS ? f : 0] = C{};
    }

    ROCATTN_INLINE u32 lane_row() const { return wave_row + M::column(); }  // this lane's row

    ROCATTN_INLINE void load_resident(const Rows<T>& first_rows, const Rows<T>& second_rows) {
        load_resident(first_rows, block.head_dim, block.lds + (S::RESIDENT_IN_LDS ? S::STREAMED : 0), first);
        load_resident(second_rows, block.head_dim_v,
                      block.lds + (S::RESIDENT_IN_LDS ? S::STREAMED + S::RESIDENTS : 0), second);
    }

    // LSE and delta of this lane's query (queries resident).
    ROCATTN_INLINE void load_statistics(const float* lse, const float* deltas) {
        if (lane_row() >= block.resident_rows) return;
        base = exponent_base(load(lse + lane_row()));
        delta = load(deltas + lane_row());
    }

    // Streams rows [start, stop), of which `rows` exist; start is a multiple of STEP. lse and deltas: of the streamed
    // queries (keys resident).
    ROCATTN_INLINE void run(const Scores& scores, const Rows<T>& first_rows, const Rows<T>& second_rows,
                            const float* lse, const float* deltas, u32 start, u32 stop, u32 rows) {
        if (start >= stop) return;
        typename S::RowForm f(first_rows, thread_id(), block.head_dim), s(second_rows, thread_id(), block.head_dim_v);
        typename S::TransposedForm ft(first_rows, thread_id(), block.head_dim);
        typename S::TransposedForm st(second_rows, thread_id(), block.head_dim_v);
        float next_base = 0.0f, next_delta = 0.0f;
        const auto fetch = [&](auto& tile, const Rows<T>& matrix, u32 row) {
            if (rows - row >= S::STEP)
                tile.template fetch<true>(matrix.from(row), S::STEP);
            else
                tile.template fetch<false>(matrix.from(row), rows - row);
        };
        const auto fetch_statistics = [&](u32 row) {
            const u32 mine = row + statistics_row();
            if (thread_id() >= S::STEP) return;
            next_base = mine < rows ? exponent_base(load(lse + mine)) : INF;
            next_delta = mine < rows ? load(deltas + mine) : 0.0f;
        };
        const auto fetch_all = [&](u32 row) {
            fetch(f, first_rows, row);
            fetch(s, second_rows, row);
            fetch(ft, first_rows, row);
            if constexpr (S::KEYS) {
                fetch(st, second_rows, row);
                fetch_statistics(row);
            }
        };
        const auto fetch_now = [&](auto& tile, const Rows<T>& matrix, u32 row) {
            if constexpr (!S::PREFETCH) {
                wave_barrier();  // or the compiler would fetch all tiles at once
                fetch(tile, matrix, row);
            }
        };
        if constexpr (S::PREFETCH) fetch_all(start);
        for (u32 row = start; row < stop; row += S::STEP) {
            block_barrier();  // all waves are done with what LDS held before
            const bool hides = block_hides(scores, row, rows);
            fetch_now(f, first_rows, row);
            f.put(block.lds, S::STRIDE);
            fetch_now(s, second_rows, row);
            s.put(block.lds + S::ROWS, S::STRIDE);
            fetch_now(ft, first_rows, row);
            if (hides) ft.clear_nonfinite();
            ft.put(block.lds + 2 * S::ROWS);
            if constexpr (S::KEYS) {
                fetch_now(st, second_rows, row);
                if (hides) note_nonfinite(st);
                st.put(block.lds + 2 * S::ROWS + S::TRANSPOSED);
                if constexpr (!S::PREFETCH) fetch_statistics(row);
                if (thread_id() < S::STEP) {
                    lds_store(block.stats + thread_id(), next_base);
                    lds_store(block.stats + S::STEP + thread_id(), next_delta);
                }
            }
            block_barrier();
            if (S::KEYS && hides && found_nonfinite()) spoil_rows();
            if (S::PREFETCH && row + S::STEP < stop) fetch_all(row + S::STEP);
            if (wave_sees(scores, row)) {
                const bool general = hides || !scores.plain();
#pragma unroll 1
                for (u32 c = 0; c < S::CHAINS; ++c) compute(scores, row, c, general);
            }
        }
    }

    // Writes a gradient's row of this lane, times `factor`; rows beyond the end are not written. Collective.
    ROCATTN_INLINE void write_first(T* rows, i64 stride, float factor) const {
        write(first_gradient, rows, stride, block.head_dim, factor);
    }
    ROCATTN_INLINE void write_second(T* rows, i64 stride) const {
        write(second_gradient, rows, stride, block.head_dim_v, 1.0f);
    }

private:
    ROCATTN_INLINE void load_resident(const Rows<T>& rows, u32 columns, Element* room,
                                      B (&fragments)[S::RESIDENT_IN_LDS ? 1 : S::DEPTHS][FRAGS]) {
        Element* mine = room + wave_id() * 16 * S::STRIDE;
        const auto row_at = [&](u32 row) {
            return wave_row + row < block.resident_rows ? rows.from(wave_row + row).base : nullptr;
        };
        stage_rows<T, Element, S::D, S::GRANULE>(mine, row_at, columns);
        wave_barrier();
        if constexpr (!S::RESIDENT_IN_LDS) {
#pragma unroll
            for (u32 d = 0; d < S::DEPTHS; ++d) read_b<M>(mine + d * GROUP_DEPTH<M>, S::STRIDE, fragments[d]);
            wave_barrier();
        }
    }

    // The streamed row whose statistics this thread moves: they stand in the order of a transposed tile, in which those
    // of a lane are neighbours.
    static ROCATTN_INLINE u32 statistics_row() {
        return thread_id() / CHAIN_ROWS<M> * CHAIN_ROWS<M> + chain_group_row<M>(thread_id() % CHAIN_ROWS<M>);
    }

    // Whether some pair of the tile at `row` and the block is hidden: then zeros must not meet NaN in it. Rows beyond
    // the end are zeros; those of queries have probability 0, those of keys do not.
    ROCATTN_INLINE bool block_hides(const Scores& scores, u32 row, u32 rows) const {
        const u32 stop = smaller(row + S::STEP, rows);
        const u32 mine = block.first_resident, mine_stop = smaller(mine + S::RESIDENT, block.resident_rows);
        if (scores.masked() || (!S::KEYS && row + S::STEP > rows)) return true;
        return S::KEYS ? scores.band_hides_some(row, stop, mine, mine_stop)
                       : scores.band_hides_some(mine, mine_stop, row, stop);
    }
    ROCATTN_INLINE bool wave_sees(const Scores& scores, u32 row) const {
        return S::KEYS ? !scores.band_hides_all(row, row + S::STEP, wave_row, wave_row + 16)
                       : !scores.band_hides_all(wave_row, wave_row + 16, row, row + S::STEP);
    }

    // Group c of CHAIN_ROWS streamed rows of the tile that begins at `row`.
    ROCATTN_INLINE void compute(const Scores& scores, u32 row, u32 c, bool general) {
        C p[S::CHAIN_TILES], ds[S::CHAIN_TILES];
        multiply_rows(block.lds + c * CHAIN_ROWS<M> * S::STRIDE, S::STREAMED, first, p);
        multiply_rows(block.lds + S::ROWS + c * CHAIN_ROWS<M> * S::STRIDE, S::STREAMED + S::RESIDENTS, second, ds);
        float bases[S::RUN], deltas[S::RUN];
        load_statistics(c, bases, deltas);
#pragma unroll
        for (u32 t = 0; t < S::CHAIN_TILES; ++t) {
            p[t] = arranged<M>(p[t]);
            ds[t] = arranged<M>(ds[t]);
        }
        if (general)
            differentiate(scores, row + c * CHAIN_ROWS<M>, p, ds, bases, deltas);
        else
            differentiate_plain(scores.scale * LOG2_E, p, ds, bases, deltas);
        const Element* transposed = block.lds + 2 * S::ROWS + c * CHAIN_ROWS<M>;
        multiply_transposed(transposed, ds, first_gradient);
        if constexpr (S::KEYS) multiply_transposed(transposed + S::TRANSPOSED, p, second_gradient);
    }

    // products = streamed rows at `tile` times the resident rows, in registers or at `room` in LDS.
    ROCATTN_INLINE void multiply_rows(const Element* tile, u32 room,
                                      const B (&resident)[S::RESIDENT_IN_LDS ? 1 : S::DEPTHS][FRAGS],
                                      C (&products)[S::CHAIN_TILES]) const {
#pragma unroll
        for (u32 t = 0; t < S::CHAIN_TILES; ++t) products[t] = C{};
#pragma unroll S::RESIDENT_IN_LDS ? 1 : S::DEPTHS
        for (u32 d = 0; d < S::DEPTHS; ++d) {
            B b[FRAGS];
            if constexpr (S::RESIDENT_IN_LDS) {
                read_b<M>(block.lds + room + wave_id() * 16 * S::STRIDE + d * GROUP_DEPTH<M>, S::STRIDE, b);
            } else {
#pragma unroll
                for (u32 n = 0; n < FRAGS; ++n) b[n] = resident[d][n];
            }
#pragma unroll
            for (u32 t = 0; t < S::CHAIN_TILES; ++t) {
                typename M::A a[FRAGS];
                read_a<M>(tile + t * 16 * S::STRIDE + d * GROUP_DEPTH<M>, S::STRIDE, a);
#pragma unroll
                for (u32 n = 0; n < FRAGS; ++n) products[t] = M::multiply(a[n], b[n], products[t]);
            }
        }
    }

    ROCATTN_INLINE void multiply_transposed(const Element* tile, const C (&factors)[S::CHAIN_TILES],
                                            C (&gradient)[S::FEATURE_TILES]) const {
        B b[S::CHAIN_PRODUCTS];
        chain_group<M>(factors, b);
#pragma unroll
        for (u32 f = 0; f < S::FEATURE_TILES; ++f) {
            keep_loads_here();
#pragma unroll
            for (u32 g = 0; g < S::GROUPS; ++g) {
                typename M::A a[FRAGS];
                const Element* features = tile + transposed_offset<Element>(16 * f, S::STEP);
                read_a_transposed<M>(features + g * GROUP_DEPTH<M>, S::STEP, a);
#pragma unroll
                for (u32 n = 0; n < FRAGS; ++n) gradient[f] = M::multiply(a[n], b[g * FRAGS + n], gradient[f]);
            }
        }
    }

    // The compiler would issue the loads of several tiles first and not have the registers for them.
    static ROCATTN_INLINE void keep_loads_here() {
        if constexpr (S::RESIDENT_IN_LDS) wave_barrier();
    }

    ROCATTN_INLINE void load_statistics(u32 c, float (&bases)[S::RUN], float (&deltas)[S::RUN]) const {
#pragma unroll
        for (u32 i = 0; i < S::RUN; i += 4) {
            Vector<float, 4> four = base, four_deltas = delta;
            if constexpr (S::KEYS) {
                const u32 place = M::PAIRED ? M::c_row(i) : M::part() * S::RUN + i;
                const float* mine = block.stats + c * CHAIN_ROWS<M> + place;
                four = lds_load<float, 4>(mine);
                four_deltas = lds_load<float, 4>(mine + S::STEP);
            }
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                bases[i + e] = four[e];
                deltas[i + e] = four_deltas[e];
            }
        }
    }

    // q.k and dP to P and dS, where nothing is hidden and the score is just scaled.
    ROCATTN_INLINE void differentiate_plain(float scale_log2, C (&p)[S::CHAIN_TILES], C (&ds)[S::CHAIN_TILES],
                                            const float (&bases)[S::RUN], const float (&deltas)[S::RUN]) const {
#pragma unroll
        for (u32 i = 0; i < S::RUN; ++i) {
            const u32 t = i / M::C_ROWS, r = i % M::C_ROWS;
            p[t][r] = exp2_fast(__builtin_fmaf(p[t][r], scale_log2, -bases[i]));
            ds[t][r] = p[t][r] * (ds[t][r] - deltas[i]);
        }
    }

    // The same for every option. A hidden pair has P = dS = 0, whatever its score.
    ROCATTN_INLINE void differentiate(const Scores& scores, u32 row, C (&p)[S::CHAIN_TILES],
                                      C (&ds)[S::CHAIN_TILES], const float (&bases)[S::RUN],
                                      const float (&deltas)[S::RUN]) const {
#pragma unroll
        for (u32 i = 0; i < S::RUN; ++i) {
            const u32 t = i / M::C_ROWS, r = i % M::C_ROWS, streamed = row + t * 16 + M::c_row(r);
            const float added = S::KEYS ? scores.added(streamed, lane_row()) : scores.added(lane_row(), streamed);
            float score = p[t][r] * scores.scale, slope = 1.0f;
            if (!S::PLAIN && scores.softcap != 0.0f) {
                const float curve = tanh_accurate(p[t][r] * (scores.scale / scores.softcap));
                score = scores.softcap * curve;
                slope = 1.0f - curve * curve;
            }
            const float probability = exp2_fast(__builtin_fmaf(score + added, LOG2_E, -bases[i]));
            p[t][r] = added == -INF ? 0.0f : probability;
            ds[t][r] = added == -INF ? 0.0f : probability * (ds[t][r] - deltas[i]) * slope;
        }
    }

    // Takes infinities and NaNs out of a transposed tile, each wave leaving a note.
    ROCATTN_INLINE void note_nonfinite(typename S::TransposedForm& tile) const {
        const bool found = any_lane(tile.has_nonfinite());
        if (found) tile.clear_nonfinite();
        if (lane_id() == 0) lds_store(block.flags + wave_id(), static_cast<u32>(found));
    }

    ROCATTN_INLINE bool found_nonfinite() const {
        u32 found = 0;
#pragma unroll
        for (u32 w = 0; w < S::BLOCK_WAVES; ++w) found |= lds_load(block.flags + w);
        return uniform(found) != 0;
    }

    // Gives streamed queries whose dO has such a value a NaN for an LSE, so that all they see becomes NaN. Rare.
    ROCATTN_INLINE void spoil_rows() const {
        if (thread_id() < S::STEP) {
            const Element* row = block.lds + S::ROWS + statistics_row() * S::STRIDE;
            bool finite = true;
#pragma unroll 1
            for (u32 i = 0; i < S::D; ++i) finite = finite && __builtin_fabsf(to_float(lds_load(row + i))) < INF;
            if (!finite) lds_store(block.stats + thread_id(), __builtin_nanf(""));
        }
        block_barrier();
    }

    ROCATTN_INLINE void write(const C (&gradient)[S::FEATURE_TILES], T* rows, i64 stride, u32 columns,
                              float factor) const {
        T* row = rows + lane_row() * stride;
#pragma unroll
        for (u32 f = 0; f < S::FEATURE_TILES; ++f) {
            const C features = contiguous_rows<M>(gradient[f]) * factor;
            const u32 column = 16 * f + M::part() * M::C_ROWS;
            if (lane_row() >= block.resident_rows) continue;
            if constexpr (S::PLAIN)
                store<T, M::C_ROWS>(row + column, rounded<T, M::C_ROWS>(features));
            else
                store_columns<T, M::C_ROWS>(row, column, columns, rounded<T, M::C_ROWS>(features));
        }
    }
};

}  // namespace rocattn
