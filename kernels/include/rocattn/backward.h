// The backward pass on one block: the one core of attention_backward_dkdv and attention_backward_dq.
//
// A block holds RESIDENT rows of one side (keys with K and V, or queries with Q and dO) and streams the other side past
// them, STREAMED_ROWS rows at a time. With F, S the streamed pair (Q, dO or K, V) and f, s the resident one:
//
//   scores = F f^T, dP = S s^T       A = streamed rows from LDS, B = resident rows: a lane's column is a resident row
//   P  = exp(scores - LSE)           in lanes
//   dS = P * (dP - delta)            in lanes; delta = rowsum(dO * out); times the softcap's derivative
//   df^T += F^T dS                   A = F^T from LDS, B = dS by Matrix::chain: no exchange through LDS
//   ds^T += S^T P                    the same; for keys only (dV^T += dO^T P)
//
// 16 resident rows belong to a team of TEAM waves, each of which has WIDTH = D / TEAM features: of f and s, which stay
// in its registers, and of the gradients. So however large D is, a wave needs registers for WIDTH features alone, and
// no product is computed twice: a wave's scores and dP are sums over its own features, which the team adds up through
// LDS, every wave in the same order.
//
// If PHASED, the streamed rows lie in LDS first as they are, for the first products, then transposed in the same
// room, for the second. It halves the room and doubles the barriers, of which the team's exchange needs one anyway.
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
#include <rocattn/backward_shape.h>

namespace rocattn {

template <typename S>
class Backward {
    using T = typename S::T;
    using M = typename S::M;
    using Element = typename S::Element;
    using B = typename M::B;
    using C = typename M::C;
    using Scores = BackwardScores<S::PLAIN>;
    static constexpr u32 FRAGS = FRAGMENTS<M>;
    static constexpr bool ON_VECTOR_UNITS = M::DEPTH == 4;
    // CDNA 2's matrix unit takes subnormal f16 for 0. There P and dS are 2^LIFT times what they are, so that only what
    // is below 2^-26 is lost; a lane lowers its row's dS again by `lowered`, should one be too large for f16.
#if defined(__gfx90a__)
    static constexpr float LIFT = is_f16<T> ? 12.0f : 0.0f;
#else
    static constexpr float LIFT = 0.0f;
#endif
    static constexpr bool LIFTS = LIFT != 0.0f;
    static constexpr float LOWERING = LIFTS ? 1.0f / 4096 : 1.0f;  // 2^-LIFT

    const BackwardBlock<S>& block;
    const u32 wave;         // in the block
    const u32 wave_row;     // the first row of its team
    const u32 wave_column;  // the first of its features
    B first[S::DEPTHS][FRAGS], second[S::DEPTHS][FRAGS];
    C first_gradient[S::FEATURE_FRAGMENTS], second_gradient[S::KEYS ? S::FEATURE_FRAGMENTS : 1];
    float base = 0.0f, delta = 0.0f;  // of this lane's query, where queries are resident
    float lowered = 1.0f;             // a power of 2

public:
    ROCATTN_INLINE Backward(const BackwardBlock<S>& block)
        : block(block),
          wave(uniform(wave_id())),
          wave_row(block.first_resident + wave / S::TEAM * 16),
          wave_column(wave % S::TEAM * S::WIDTH) {
#pragma unroll
        for (u32 f = 0; f < S::FEATURE_FRAGMENTS; ++f) first_gradient[f] = second_gradient[S::KEYS ? f : 0] = C{};
    }

    ROCATTN_INLINE u32 lane_row() const { return wave_row + M::column(); }  // this lane's row

    ROCATTN_INLINE void load_resident(const Rows<T>& first_rows, const Rows<T>& second_rows) {
        load_resident(first_rows, block.head_dim, first);
        load_resident(second_rows, block.head_dim_v, second);
    }

    // LSE and delta of this lane's query (queries resident).
    ROCATTN_INLINE void load_statistics(const Scores& scores, const float* lse, const float* deltas) {
        if (lane_row() >= block.resident_rows) return;
        base = scores.exponent_base(load(lse + lane_row()), LIFT);
        delta = load(deltas + lane_row());
    }

    // Streams rows [start, stop), of which `rows` exist; start is a multiple of STREAMED_ROWS. lse, deltas: of streamed
    // queries (keys resident).
    ROCATTN_INLINE void run(const Scores& scores, const Rows<T>& first_rows, const Rows<T>& second_rows,
                            const float* lse, const float* deltas, u32 start, u32 stop, u32 rows) {
        if (start >= stop) return;
        typename S::RowForm f(first_rows, thread_id(), block.head_dim), s(second_rows, thread_id(), block.head_dim_v);
        typename S::TransposedForm ft(first_rows, thread_id(), block.head_dim);
        typename S::TransposedForm st(second_rows, thread_id(), block.head_dim_v);
        float next_base = 0.0f, next_delta = 0.0f;
        const auto fetch = [&](auto& tile, const Rows<T>& matrix, u32 row) {
            if (rows - row >= S::STREAMED_ROWS)
                tile.template fetch<true>(matrix.from(row), S::STREAMED_ROWS);
            else
                tile.template fetch<false>(matrix.from(row), rows - row);
        };
        const auto fetch_statistics = [&](u32 row) {
            const u32 mine = row + statistics_row();
            if (thread_id() >= S::STREAMED_ROWS) return;
            next_base = mine < rows ? scores.exponent_base(load(lse + mine), LIFT) : INF;
            next_delta = mine < rows ? load(deltas + mine) : 0.0f;
        };
        const auto fetch_rows = [&](u32 row) {
            fetch(f, first_rows, row);
            fetch(s, second_rows, row);
            if constexpr (S::KEYS) fetch_statistics(row);
        };
        const auto fetch_transposed = [&](u32 row) {
            fetch(ft, first_rows, row);
            if constexpr (S::KEYS) fetch(st, second_rows, row);
        };
        const auto fetch_now = [&](auto& tile, const Rows<T>& matrix, u32 row) {
            if constexpr (!S::PREFETCH) {
                wave_barrier();  // or the compiler would fetch all tiles at once
                fetch(tile, matrix, row);
            }
        };
        const auto put_rows = [&](u32 row, bool hides) {
            fetch_now(f, first_rows, row);
            f.put(block.lds, S::STRIDE);
            fetch_now(s, second_rows, row);
            if (S::KEYS && hides) note_nonfinite(s);
            s.put(block.lds + S::ROWS, S::STRIDE);
            if constexpr (S::KEYS) {
                if constexpr (!S::PREFETCH) fetch_statistics(row);
                if (thread_id() < S::STREAMED_ROWS) {
                    lds_store(block.floats + thread_id(), next_base);
                    lds_store(block.floats + S::STREAMED_ROWS + thread_id(), next_delta);
                }
            }
        };
        const auto put_transposed = [&](u32 row, bool hides) {
            Element* room = block.lds + S::FIRST_TRANSPOSED;
            fetch_now(ft, first_rows, row);
            if (hides) ft.clear_nonfinite();
            ft.put(room);
            if constexpr (S::KEYS) {
                fetch_now(st, second_rows, row);
                if (hides) st.clear_nonfinite();
                st.put(room + S::TRANSPOSED);
            }
        };
        if constexpr (S::PREFETCH) {
            fetch_rows(start);
            if constexpr (!S::PHASED) fetch_transposed(start);
        }
        for (u32 row = start; row < stop; row += S::STREAMED_ROWS) {
            const bool hides = block_hides(scores, row, rows), last = row + S::STREAMED_ROWS >= stop;
            block_barrier();  // all waves are done with what LDS held before
            put_rows(row, hides);
            if constexpr (!S::PHASED) put_transposed(row, hides);
            block_barrier();
            if (S::KEYS && hides && found_nonfinite()) spoil_rows();
            const bool general = hides || !scores.plain();
            C p[S::CHAIN_FRAGMENTS], ds[S::CHAIN_FRAGMENTS];
            if constexpr (S::PHASED) {
                if constexpr (S::PREFETCH) fetch_transposed(row);
                multiply(0, p, ds);
                if constexpr (S::TEAM > 1) share(p, ds);
                block_barrier();  // all waves are done with the rows
                put_transposed(row, hides);
                if constexpr (S::TEAM > 1) add_shared(p, ds);
                differentiate(scores, row, 0, general, p, ds);
                if (S::PREFETCH && !last) fetch_rows(row + S::STREAMED_ROWS);
                block_barrier();
                accumulate(0, p, ds);
            } else {
                if (S::PREFETCH && !last) {
                    fetch_rows(row + S::STREAMED_ROWS);
                    fetch_transposed(row + S::STREAMED_ROWS);
                }
                if (!wave_sees(scores, row)) continue;
#pragma unroll 1
                for (u32 c = 0; c < S::CHAINS; ++c) {
                    multiply(c, p, ds);
                    differentiate(scores, row, c, general, p, ds);
                    accumulate(c, p, ds);
                }
            }
        }
    }

    // Writes a gradient's row of this lane, times `factor`; rows beyond the end are not written. Collective.
    ROCATTN_INLINE void write_first(T* rows, i64 stride, float factor) const {
        write(first_gradient, rows, stride, block.head_dim, LIFTS ? factor * LOWERING / lowered : factor);
    }
    ROCATTN_INLINE void write_second(T* rows, i64 stride) const {
        write(second_gradient, rows, stride, block.head_dim_v, LOWERING);
    }

private:
    ROCATTN_INLINE void load_resident(const Rows<T>& rows, u32 columns, B (&fragments)[S::DEPTHS][FRAGS]) {
        Element* mine = block.lds + wave * 16 * S::PIECE_STRIDE;
#pragma unroll
        for (u32 piece = 0; piece < S::WIDTH; piece += S::PIECE) {
            const u32 column = wave_column + piece;
            const auto row_at = [&](u32 row) {
                return wave_row + row < block.resident_rows ? rows.from(wave_row + row).base + column : nullptr;
            };
            stage_rows<T, Element, S::PIECE, S::STEP>(mine, row_at, columns > column ? columns - column : 0);
            wave_barrier();
#pragma unroll
            for (u32 d = 0; d < S::PIECE; d += GROUP_DEPTH<M>)
                read_b<M>(mine + d, S::PIECE_STRIDE, fragments[(piece + d) / GROUP_DEPTH<M>]);
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
        const u32 stop = smaller(row + S::STREAMED_ROWS, rows);
        const u32 mine = block.first_resident, mine_stop = smaller(mine + S::RESIDENT, block.resident_rows);
        if (scores.masked() || (!S::KEYS && row + S::STREAMED_ROWS > rows)) return true;
        return S::KEYS ? scores.band_hides_some(row, stop, mine, mine_stop)
                       : scores.band_hides_some(mine, mine_stop, row, stop);
    }
    ROCATTN_INLINE bool wave_sees(const Scores& scores, u32 row) const {
        return S::KEYS ? !scores.band_hides_all(row, row + S::STREAMED_ROWS, wave_row, wave_row + 16)
                       : !scores.band_hides_all(wave_row, wave_row + 16, row, row + S::STREAMED_ROWS);
    }

    // Scores and dP of group c of CHAIN_ROWS streamed rows in LDS, over this wave's features.
    ROCATTN_INLINE void multiply(u32 c, C (&p)[S::CHAIN_FRAGMENTS], C (&ds)[S::CHAIN_FRAGMENTS]) const {
        const Element* tile = block.lds + c * CHAIN_ROWS<M> * S::STRIDE + wave_column;
        multiply_rows(tile, first, p);
        multiply_rows(tile + S::ROWS, second, ds);
    }

    // products = streamed rows at `tile` times the resident rows.
    ROCATTN_INLINE void multiply_rows(const Element* tile, const B (&resident)[S::DEPTHS][FRAGS],
                                      C (&products)[S::CHAIN_FRAGMENTS]) const {
#pragma unroll
        for (u32 t = 0; t < S::CHAIN_FRAGMENTS; ++t) products[t] = C{};
#pragma unroll
        for (u32 d = 0; d < S::DEPTHS; ++d) {
            B mine[FRAGS];
#pragma unroll
            for (u32 n = 0; n < FRAGS; ++n) {
                mine[n] = resident[d][n];
                // Else copies for packed instructions are kept as well, or it is kept in an accumulation register.
                if (ON_VECTOR_UNITS || S::MANY_SUMS) settle(mine[n]);
            }
#pragma unroll
            for (u32 t = 0; t < S::CHAIN_FRAGMENTS; ++t) {
                typename M::A a[FRAGS];
                read_a<M>(tile + t * 16 * S::STRIDE + d * GROUP_DEPTH<M>, S::STRIDE, a);
#pragma unroll
                for (u32 n = 0; n < FRAGS; ++n) products[t] = M::multiply(a[n], mine[n], products[t]);
            }
            if ((ON_VECTOR_UNITS && d % 2 == 1) || (S::MANY_SUMS && d % 4 == 3)) {
#pragma unroll
                for (u32 t = 0; t < S::CHAIN_FRAGMENTS; ++t) settle(products[t]);
                keep_order();  // fragments of A that are loaded ahead take registers
            }
        }
    }

    // Where a wave's accumulators of the first (second) product are for its team: each lane's lie together, by fours.
    ROCATTN_INLINE float* shared_part(u32 of_wave, u32 product) const {
        return block.floats + S::STATISTICS + (of_wave * 2 + product) * S::PART + lane_id() * 4;
    }
    ROCATTN_INLINE void share(const C (&p)[S::CHAIN_FRAGMENTS], const C (&ds)[S::CHAIN_FRAGMENTS]) const {
#pragma unroll
        for (u32 i = 0; i < S::RUN; i += 4) {
            Vector<float, 4> scores, products;
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                scores[e] = p[(i + e) / M::C_ROWS][(i + e) % M::C_ROWS];
                products[e] = ds[(i + e) / M::C_ROWS][(i + e) % M::C_ROWS];
            }
            lds_store<float, 4>(shared_part(wave, 0) + i * WAVE, scores);
            lds_store<float, 4>(shared_part(wave, 1) + i * WAVE, products);
        }
    }
    // The sums over the team, in the order of its waves: the same bits in all of them.
    ROCATTN_INLINE void add_shared(C (&p)[S::CHAIN_FRAGMENTS], C (&ds)[S::CHAIN_FRAGMENTS]) const {
        const u32 team = wave / S::TEAM * S::TEAM;
#pragma unroll
        for (u32 i = 0; i < S::RUN; i += 4) {
            Vector<float, 4> scores = {}, products = {};
#pragma unroll
            for (u32 w = 0; w < S::TEAM; ++w) {
                scores += lds_load<float, 4>(shared_part(team + w, 0) + i * WAVE);
                products += lds_load<float, 4>(shared_part(team + w, 1) + i * WAVE);
            }
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                p[(i + e) / M::C_ROWS][(i + e) % M::C_ROWS] = scores[e];
                ds[(i + e) / M::C_ROWS][(i + e) % M::C_ROWS] = products[e];
            }
        }
    }

    // Adds group c of the transposed tiles times dS, and P, to the gradients.
    ROCATTN_INLINE void accumulate(u32 c, const C (&p)[S::CHAIN_FRAGMENTS], const C (&ds)[S::CHAIN_FRAGMENTS]) {
        const Element* transposed = block.lds + S::FIRST_TRANSPOSED + c * CHAIN_ROWS<M> +
                                    transposed_offset<Element>(wave_column, S::STREAMED_ROWS);
        if constexpr (S::MANY_SUMS) {
#pragma unroll
            for (u32 f = 0; f < S::FEATURE_FRAGMENTS; ++f) {
                settle_sum(first_gradient[f]);
                settle_sum(second_gradient[f]);
            }
        }
        multiply_transposed(transposed, ds, first_gradient);
        if constexpr (S::KEYS) multiply_transposed(transposed + S::TRANSPOSED, p, second_gradient);
    }

    ROCATTN_INLINE void multiply_transposed(const Element* tile, const C (&factors)[S::CHAIN_FRAGMENTS],
                                            C (&gradient)[S::FEATURE_FRAGMENTS]) const {
        B b[S::CHAIN_PRODUCTS];
        chain_group<M>(factors, b);
#pragma unroll
        for (u32 f = 0; f < S::FEATURE_FRAGMENTS; ++f) {
#pragma unroll
            for (u32 g = 0; g < S::GROUPS; ++g) {
                typename M::A a[FRAGS];
                const Element* features = tile + transposed_offset<Element>(16 * f, S::STREAMED_ROWS);
                read_a_transposed<M>(features + g * GROUP_DEPTH<M>, S::STREAMED_ROWS, a);
#pragma unroll
                for (u32 n = 0; n < FRAGS; ++n) gradient[f] = M::multiply(a[n], b[g * FRAGS + n], gradient[f]);
            }
        }
    }

    ROCATTN_INLINE void load_statistics(u32 c, float (&bases)[S::RUN], float (&deltas)[S::RUN]) const {
#pragma unroll
        for (u32 i = 0; i < S::RUN; i += 4) {
            Vector<float, 4> four = base, four_deltas = delta;
            if constexpr (S::KEYS) {
                const u32 place = M::PAIRED ? M::c_row(i) : M::part() * S::RUN + i;
                const float* mine = block.floats + c * CHAIN_ROWS<M> + place;
                four = lds_load<float, 4>(mine);
                four_deltas = lds_load<float, 4>(mine + S::STREAMED_ROWS);
            }
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                bases[i + e] = four[e];
                deltas[i + e] = four_deltas[e];
            }
        }
    }

    // q.k and dP of group c of the tile at `row` to P and dS.
    ROCATTN_INLINE void differentiate(const Scores& scores, u32 row, u32 c, bool general, C (&p)[S::CHAIN_FRAGMENTS],
                                      C (&ds)[S::CHAIN_FRAGMENTS]) {
        float bases[S::RUN], deltas[S::RUN];
        load_statistics(c, bases, deltas);
#pragma unroll
        for (u32 t = 0; t < S::CHAIN_FRAGMENTS; ++t) {
            p[t] = arranged<M>(p[t]);
            ds[t] = arranged<M>(ds[t]);
        }
        if (general)
            differentiate_general(scores, row + c * CHAIN_ROWS<M>, p, ds, bases, deltas);
        else
            differentiate_plain(scores.score_scale(), p, ds, bases, deltas);
        if constexpr (LIFTS) lower(ds);
    }

    // Keeps dS of every row below 2^15: where one is larger, its row's sum so far and from now on is lowered. Rare.
    ROCATTN_INLINE void lower(C (&ds)[S::CHAIN_FRAGMENTS]) {
        constexpr float LIMIT = 32768.0f;
        float top = 0.0f;
#pragma unroll
        for (u32 t = 0; t < S::CHAIN_FRAGMENTS; ++t)
#pragma unroll
            for (u32 r = 0; r < M::C_ROWS; ++r) top = __builtin_fmaxf(top, __builtin_fabsf(ds[t][r]));
        if (any_lane(top * lowered >= LIMIT)) {
            // 2^14 over the power of 2 at or below the largest (of infinity: that above all numbers), at most 1.
            constexpr u32 BIAS = 127, LEAST = BIAS + 14;
            const u32 found = __builtin_bit_cast(u32, column_max<M>(top)) >> 23, exponent = most(found, LEAST);
            const float wanted = __builtin_bit_cast(float, (LEAST + BIAS - exponent) << 23);
            const float factor = wanted < lowered ? wanted / lowered : 1.0f;
            lowered *= factor;
#pragma unroll
            for (u32 f = 0; f < S::FEATURE_FRAGMENTS; ++f) first_gradient[f] *= factor;
        }
#pragma unroll
        for (u32 t = 0; t < S::CHAIN_FRAGMENTS; ++t) ds[t] *= lowered;
    }

    // Where nothing is hidden and the score is just scaled.
    ROCATTN_INLINE void differentiate_plain(float scale_log2, C (&p)[S::CHAIN_FRAGMENTS], C (&ds)[S::CHAIN_FRAGMENTS],
                                            const float (&bases)[S::RUN], const float (&deltas)[S::RUN]) const {
#pragma unroll
        for (u32 i = 0; i < S::RUN; ++i) {
            const u32 t = i / M::C_ROWS, r = i % M::C_ROWS;
            p[t][r] = exp2_fast(__builtin_fmaf(p[t][r], scale_log2, -bases[i]));
            ds[t][r] = p[t][r] * (ds[t][r] - deltas[i]);
        }
    }

    // The same for every option. A hidden pair has P = dS = 0, whatever its score.
    ROCATTN_INLINE void differentiate_general(const Scores& scores, u32 row, C (&p)[S::CHAIN_FRAGMENTS],
                                              C (&ds)[S::CHAIN_FRAGMENTS], const float (&bases)[S::RUN],
                                              const float (&deltas)[S::RUN]) const {
#pragma unroll
        for (u32 i = 0; i < S::RUN; ++i) {
            const u32 t = i / M::C_ROWS, r = i % M::C_ROWS, streamed = row + t * 16 + M::c_row(r);
            const float added = S::KEYS ? scores.added(streamed, lane_row()) : scores.added(lane_row(), streamed);
            float score = p[t][r] * scores.score_scale(), slope = 1.0f;
            if (!S::PLAIN && scores.softcap != 0.0f) {
                const float curve = tanh_accurate(p[t][r] * (scores.scale / scores.softcap));
                score = scores.softcap * curve;
                slope = 1.0f - curve * curve;
            }
            const float probability = exp2_fast(scores.exponent(score + added - bases[i], LIFT));
            p[t][r] = added == -INF ? 0.0f : probability;
            ds[t][r] = added == -INF ? 0.0f : probability * (ds[t][r] - deltas[i]) * slope;
        }
    }

    // Notes for the block whether this wave has an infinity or a NaN on its way to LDS.
    ROCATTN_INLINE void note_nonfinite(const typename S::RowForm& tile) const {
        const bool found = any_lane(tile.has_nonfinite());
        if (lane_id() == 0) lds_store(block.flags + wave, static_cast<u32>(found));
    }

    ROCATTN_INLINE bool found_nonfinite() const {
        u32 found = 0;
#pragma unroll
        for (u32 w = 0; w < S::BLOCK_WAVES; ++w) found |= lds_load(block.flags + w);
        return uniform(found) != 0;
    }

    // Gives streamed queries whose dO has such a value a NaN for an LSE, so that all they see becomes NaN. Rare.
    ROCATTN_INLINE void spoil_rows() const {
        if (thread_id() < S::STREAMED_ROWS) {
            const Element* row = block.lds + S::ROWS + statistics_row() * S::STRIDE;
            bool finite = true;
#pragma unroll 1
            for (u32 i = 0; i < S::D; ++i) finite = finite && __builtin_fabsf(to_float(lds_load(row + i))) < INF;
            if (!finite) lds_store(block.floats + thread_id(), __builtin_nanf(""));
        }
        block_barrier();
    }

    ROCATTN_INLINE void write(const C (&gradient)[S::FEATURE_FRAGMENTS], T* rows, i64 stride, u32 columns,
                              float factor) const {
        T* row = rows + lane_row() * stride;
#pragma unroll
        for (u32 f = 0; f < S::FEATURE_FRAGMENTS; ++f) {
            const C features = contiguous_rows<M>(gradient[f]) * factor;
            const u32 column = wave_column + 16 * f + M::part() * M::C_ROWS;
            if (lane_row() >= block.resident_rows) continue;
            if constexpr (S::PLAIN)
                store<T, M::C_ROWS>(row + column, rounded<T, M::C_ROWS>(features));
            else
                store_columns<T, M::C_ROWS>(row, column, columns, rounded<T, M::C_ROWS>(features));
        }
    }
};

}  // namespace rocattn
