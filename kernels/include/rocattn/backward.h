// The backward pass of one block: the common core of attention_backward_dkdv and attention_backward_dq.
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
// A team of TEAM waves has BLOCKS times 16 resident rows. Each wave has WIDTH = D / TEAM features of f and s, which
// stay in its registers, and of the gradients. So for any D, a wave needs registers for only WIDTH features, and no
// product is computed twice: a wave's scores and dP are sums over its own features, which the team adds up through LDS,
// with the same order in every wave. Each fragment of streamed rows is used for all BLOCKS, and is read from LDS while
// the previous one's products are computed.
//
// The streamed rows are stored in LDS as they are, and transposed into another part of LDS. If PHASED, they are
// transposed in place after the first products: half of the LDS, twice the barriers. If IN_PLACE, the reads transpose.
//
// Each gradient is summed by one wave in a fixed order: no atomics, bitwise reproducible. Scores and P are
// recomputed from q, k and the LSE (Dao et al. 2022, "FlashAttention", appendix B.4); a sink is in the LSE.
//
// If any pair of a tile is hidden, NaN and inf are removed from the rows for the second products, because 0 * NaN is
// NaN. Visible pairs with such a value get P = dS = NaN: from the score, if it is in F, or from an LSE set to NaN,
// if it is in S. So a NaN in one feature of dO makes all features of dV NaN in the keys that its row sees.
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
    static constexpr u32 FRAGS = FRAGMENTS<M>, BLOCKS = S::BLOCKS;
    using Resident = B[BLOCKS][S::DEPTHS][FRAGS];        // rows
    using Products = C[S::CHAIN_FRAGMENTS][BLOCKS];      // of a group of streamed rows, 16 by 16, and resident ones
    using Factors = B[BLOCKS][S::CHAIN_PRODUCTS];        // the same as operands of the second products
    using Gradient = C[BLOCKS][S::FEATURE_FRAGMENTS];
    static constexpr bool ON_VECTOR_UNITS = M::DEPTH == 4;
    // CDNA 2's matrix unit flushes subnormal f16 to 0. There P and dS are scaled by 2^LIFT, so that only what
    // is below 2^-26 is lost; a lane lowers its row's dS again by `lowered`, should one be too large for f16.
#if defined(__gfx90a__)
    static constexpr float LIFT = is_f16<T> ? 12.0f : 0.0f;
#else
    static constexpr float LIFT = 0.0f;
#endif
    static constexpr bool LIFTS = LIFT != 0.0f;
    // Whether P and dS of 16 streamed rows become operands, which take half of the registers, before the products of
    // the next 16 are there. LIFT's factor is one for all rows of a group.
    static constexpr bool BY_TILE = S::CHAIN_FRAGMENTS == 2 && S::TEAM == 1 && !LIFTS;
    static constexpr float LOWERING = LIFTS ? 1.0f / 4096 : 1.0f;  // 2^-LIFT

    static constexpr u32 READS = sizeof(typename M::A) * FRAGS / VECTOR_BYTES;  // instructions that read A of a step

    const BackwardBlock<S>& block;
    const u32 wave;         // in the block
    const u32 wave_row;     // the first row of its team
    const u32 wave_column;  // the first of its features
    Resident first, second;
    Gradient first_gradient, second_gradient;  // the second for keys only
    float base[BLOCKS] = {}, delta[BLOCKS] = {};  // of this lane's queries, where queries are resident
    float lowered[BLOCKS];                        // powers of 2

public:
    ROCATTN_INLINE Backward(const BackwardBlock<S>& block)
        : block(block),
          wave(uniform(wave_id())),
          wave_row(block.first_resident + wave / S::TEAM * S::TEAM_ROWS),
          wave_column(wave % S::TEAM * S::WIDTH) {
#pragma unroll
        for (u32 r = 0; r < BLOCKS; ++r) {
            lowered[r] = 1.0f;
#pragma unroll
            for (u32 f = 0; f < S::FEATURE_FRAGMENTS; ++f) {
                first_gradient[r][f] = C{};
                settle(first_gradient[r][f]);  // otherwise one zero for all is kept live
                if constexpr (S::KEYS) second_gradient[r][f] = C{};
                if constexpr (S::KEYS) settle(second_gradient[r][f]);
            }
        }
    }

    ROCATTN_INLINE void load_resident(const Rows<T>& first_rows, const Rows<T>& second_rows) {
        load_resident(first_rows, block.head_dim, first);
        load_resident(second_rows, block.head_dim_v, second);
    }

    // LSE and delta of this lane's query (queries resident).
    ROCATTN_INLINE void load_statistics(const Scores& scores, const float* lse, const float* deltas) {
#pragma unroll
        for (u32 r = 0; r < BLOCKS; ++r) {
            if (lane_row(r) >= block.resident_rows) continue;
            base[r] = scores.exponent_base(load(lse + lane_row(r)), LIFT);
            delta[r] = load(deltas + lane_row(r));
        }
    }

    // Streams rows [start, stop), of which `rows` exist; start is a multiple of STREAMED_ROWS. lse, deltas: of streamed
    // queries (keys resident).
    ROCATTN_INLINE void run(const Scores& scores, const Rows<T>& first_rows, const Rows<T>& second_rows,
                            const float* lse, const float* deltas, u32 start, u32 stop, u32 rows) {
        if (start >= stop) return;
        typename S::RowForm f(first_rows, thread_id(), block.head_dim), s(second_rows, thread_id(), block.head_dim_v);
        // For keys each half of the waves transposes one of the two.
        const bool of_second = S::KEYS && wave >= S::BLOCK_WAVES / 2;
        float statistic = 0.0f;  // to be written to LDS
        const auto fetch = [&](auto& tile, const Rows<T>& matrix, u32 row) {
            if (rows - row >= S::STREAMED_ROWS)
                tile.template fetch<true>(matrix.from(row), S::STREAMED_ROWS);
            else
                tile.template fetch<false>(matrix.from(row), rows - row);
        };
        const auto fetch_statistics = [&](u32 row) {
            u32 thread = thread_id();
            settle(thread);  // so that values derived from it take no registers meanwhile
            if (thread >= S::STATISTICS) return;
            const u32 mine = statistics_row(thread);
            statistic = moves_base(thread) ? INF : 0.0f;
            if (row + mine >= rows) return;
            if (moves_base(thread))
                statistic = load(lane_address(lse + row, mine * 4));
            else
                statistic = load(lane_address(deltas + row, mine * 4));
        };
        const auto fetch_rows = [&](u32 row) {
            fetch(f, first_rows, row);
            fetch(s, second_rows, row);
            if constexpr (S::KEYS) fetch_statistics(row);
        };
        const auto fetch_now = [&](auto& tile, const Rows<T>& matrix, u32 row) {
            if constexpr (!S::PREFETCH) {
                wave_barrier();  // otherwise the compiler would load all tiles at once
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
                u32 thread = thread_id();
                settle(thread);
                if (thread < S::STATISTICS)
                    lds_store(block.floats + thread,
                              moves_base(thread) ? scores.exponent_base(statistic, LIFT) : statistic);
            }
        };
        const auto take = [&](auto& tile) { tile.take(block.lds + (of_second ? S::ROWS : 0), S::STRIDE); };
        const auto put_transposed = [&](auto& tile, bool hides) {
            if (hides) tile.clear_nonfinite();
            tile.put(block.lds + S::FIRST_TRANSPOSED + (of_second ? S::TRANSPOSED : 0));
        };
        if constexpr (S::PREFETCH) fetch_rows(start);
        block_barrier();  // all waves are done with the previous content of LDS
        for (u32 row = start; row < stop; row += S::STREAMED_ROWS) {
            const bool hides = block_hides(scores, row, rows), last = row + S::STREAMED_ROWS >= stop;
            const bool general = hides || !scores.plain();
            put_rows(row, hides);
            if constexpr (S::PREFETCH) {  // otherwise the last tile's leftovers stay live throughout
                forget(f.x);
                forget(s.x);
                forget(statistic);
            }
            block_barrier();
            if (S::KEYS && hides && found_nonfinite()) spoil_rows();
            u32 thread = thread_id();
            settle(thread);
            typename S::TransposedForm t(thread % S::TRANSPOSERS);
            if constexpr (!S::PHASED && !S::IN_PLACE) {
                take(t);
                put_transposed(t, hides);
            }
            const auto end_first_products = [&] {
                if (S::IN_PLACE && hides) {  // the rows once more, for the second products
                    fetch(f, first_rows, row);
                    if constexpr (S::KEYS) fetch(s, second_rows, row);
                    f.clear_nonfinite();
                    s.clear_nonfinite();
                    block_barrier();
                    f.put(block.lds, S::STRIDE);
                    if constexpr (S::KEYS) s.put(block.lds + S::ROWS, S::STRIDE);
                }
                if (S::PREFETCH && !last) fetch_rows(row + S::STREAMED_ROWS);
                if (!S::IN_PLACE || S::TEAM > 1 || hides) block_barrier();
            };
            const auto end_second_products = [&] {
                if (S::PHASED || S::IN_PLACE) block_barrier();  // all waves are done with the LDS of the next rows
            };
            if (!S::PHASED && !wave_sees(scores, row)) {
                end_first_products();
                end_second_products();
                continue;
            }
            float statistics[S::CHAINS];
            Products p[S::CHAINS], ds[S::CHAINS];
            Factors of_p[S::CHAINS], of_ds[S::CHAINS];
#pragma unroll
            for (u32 c = 0; c < S::CHAINS; ++c) {
                multiply(scores, row, c, general, statistics[c], p[c], ds[c], of_p[c], of_ds[c]);
                if constexpr (S::TEAM == 1)
                    finish(scores, row, c, general, statistics[c], p[c], ds[c], of_p[c], of_ds[c]);
                else
                    share(p[c], ds[c]);
            }
            const auto finish_shared = [&] {
#pragma unroll
                for (u32 c = 0; c < S::CHAINS; ++c) {
                    add_shared(p[c], ds[c]);
                    finish(scores, row, c, general, statistics[c], p[c], ds[c], of_p[c], of_ds[c]);
                }
            };
            if constexpr (S::PHASED) {
                take(t);
                block_barrier();  // all waves are done with the rows
                put_transposed(t, hides);
                if constexpr (S::TEAM > 1) finish_shared();
            }
            end_first_products();
            if constexpr (S::TEAM > 1 && !S::PHASED) finish_shared();
#pragma unroll
            for (u32 c = 0; c < S::CHAINS; ++c) accumulate(c, of_p[c], of_ds[c]);
            end_second_products();
        }
    }

    // Writes a gradient's rows of this lane, times `factor`; rows beyond the end are not written. Collective.
    ROCATTN_INLINE void write_first(T* rows, i64 stride, float factor) const {
#pragma unroll
        for (u32 r = 0; r < BLOCKS; ++r)
            write(r, first_gradient, rows, stride, block.head_dim, LIFTS ? factor * LOWERING / lowered[r] : factor);
    }
    ROCATTN_INLINE void write_second(T* rows, i64 stride, float factor) const {
#pragma unroll
        for (u32 r = 0; r < BLOCKS; ++r) write(r, second_gradient, rows, stride, block.head_dim_v, LOWERING * factor);
    }

private:
    ROCATTN_INLINE u32 lane_row(u32 r) const { return wave_row + 16 * r + M::column(); }  // this lane's of block r

    ROCATTN_INLINE void load_resident(const Rows<T>& rows, u32 columns, Resident& fragments) {
        Element* mine = block.lds + wave * 16 * S::PIECE_STRIDE;
#pragma unroll
        for (u32 r = 0; r < BLOCKS; ++r)
#pragma unroll
            for (u32 piece = 0; piece < S::WIDTH; piece += S::PIECE) {
                const u32 first_row = wave_row + 16 * r, column = wave_column + piece;
                const auto row_at = [&](u32 row) {
                    return first_row + row < block.resident_rows ? rows.from(first_row + row).base + column : nullptr;
                };
                stage_rows<T, Element, S::PIECE, S::STEP>(mine, row_at, columns > column ? columns - column : 0);
                wave_barrier();
#pragma unroll
                for (u32 d = 0; d < S::PIECE; d += GROUP_DEPTH<M>)
                    read_b<M>(mine + d, S::PIECE_STRIDE, fragments[r][(piece + d) / GROUP_DEPTH<M>]);
                wave_barrier();
            }
    }

    // Statistics stand in LDS in the order of a transposed tile, in which those of a lane's rows are neighbours: RUN
    // bases and then as many deltas. Each lane takes one of them, and has the others from its neighbours. A
    // thread moves the one at its number: whether it is a base, and of which streamed row.
    static ROCATTN_INLINE bool moves_base(u32 thread) { return thread % (2 * S::RUN) < S::RUN; }
    static ROCATTN_INLINE u32 statistics_row(u32 thread) {
        const u32 position = thread / (2 * S::RUN) * S::RUN + thread % S::RUN, in_group = position % CHAIN_ROWS<M>;
        u32 row = chain_group_row<M>(in_group);
        if constexpr (M::PAIRED) row = in_group / S::RUN * 4 + M::row_step(in_group % S::RUN);  // positions are rows there
        return position / CHAIN_ROWS<M> * CHAIN_ROWS<M> + row;
    }

    // Whether any pair of the tile at `row` and the block is hidden: then zeros must not meet NaN in it. Rows beyond
    // the end are zeros; those of queries have probability 0, those of keys do not.
    ROCATTN_INLINE bool block_hides(const Scores& scores, u32 row, u32 rows) const {
        const u32 stop = smaller(row + S::STREAMED_ROWS, rows);
        const u32 mine = block.first_resident, mine_stop = smaller(mine + S::RESIDENT, block.resident_rows);
        if (scores.masked() || (!S::KEYS && row + S::STREAMED_ROWS > rows)) return true;
        return S::KEYS ? scores.band_hides_some(row, stop, mine, mine_stop)
                       : scores.band_hides_some(mine, mine_stop, row, stop);
    }
    ROCATTN_INLINE bool wave_sees(const Scores& scores, u32 row) const {
        const u32 stop = row + S::STREAMED_ROWS, mine_stop = wave_row + S::TEAM_ROWS;
        return S::KEYS ? !scores.band_hides_all(row, stop, wave_row, mine_stop)
                       : !scores.band_hides_all(wave_row, mine_stop, row, stop);
    }

    // Runs steps of products with fragments of A from LDS: read(step, a), READS instructions, then, AHEAD steps later,
    // use(step, a), which multiplies each with something of every block. `others`: reads of LDS before them.
    template <u32 STEPS, u32 READS, typename Read, typename Use>
    static ROCATTN_INLINE void pipeline(u32 others, const Read& read, const Use& use) {
        constexpr u32 AHEAD = least(S::AHEAD, STEPS - 1), BUFFERS = AHEAD + 1;
        typename M::A a[BUFFERS][FRAGS];
#pragma unroll
        for (u32 step = 0; step < STEPS + AHEAD; ++step) {
            if (step < STEPS) read(step, a[step % BUFFERS]);
            if (step >= AHEAD) use(step - AHEAD, a[(step - AHEAD) % BUFFERS]);
        }
        if constexpr (AHEAD > 0) {
            if (others) schedule<Kind::LDS_READ, 1>();
            schedule<Kind::LDS_READ, AHEAD * READS>();
#pragma unroll
            for (u32 step = 0; step < STEPS; ++step) {
                if (step + AHEAD < STEPS) schedule<Kind::LDS_READ, READS>();
                schedule<Kind::MATRIX, FRAGS * BLOCKS>();
            }
        }
    }

    // Scores and dP of group c of CHAIN_ROWS streamed rows in LDS, over this wave's features; if BY_TILE, all but the
    // last tile of them as operands already.
    ROCATTN_INLINE void multiply(const Scores& scores, u32 row, u32 c, bool general, float& statistics, Products& p,
                                 Products& ds, Factors& of_p, Factors& of_ds) const {
        statistics = 0.0f;
        if constexpr (S::KEYS)
            statistics = lds_load(block.floats + 2 * (c * CHAIN_ROWS<M> + M::part() * S::RUN) +
                                  M::column() % (2 * S::RUN));
#pragma unroll
        for (u32 t = 0; t < S::CHAIN_FRAGMENTS; ++t) {
            const Element* tile = block.lds + (c * CHAIN_ROWS<M> + t * 16) * S::STRIDE + wave_column;
            multiply_tile(tile, S::KEYS && t == 0 ? 1 : 0, p[t], ds[t]);
            if (BY_TILE && t + 1 < S::CHAIN_FRAGMENTS) {
                differentiate(scores, row, c, t, general, statistics, p[t], ds[t]);
                chain(t, p[t], ds[t], of_p, of_ds);
            }
        }
    }

    // The rest of the operands.
    ROCATTN_INLINE void finish(const Scores& scores, u32 row, u32 c, bool general, float statistics, Products& p,
                               Products& ds, Factors& of_p, Factors& of_ds) {
        constexpr u32 FIRST = BY_TILE ? S::CHAIN_FRAGMENTS - 1 : 0;
#pragma unroll
        for (u32 t = FIRST; t < S::CHAIN_FRAGMENTS; ++t)
            differentiate(scores, row, c, t, general, statistics, p[t], ds[t]);
        if constexpr (LIFTS) lower(ds);
#pragma unroll
        for (u32 t = FIRST; t < S::CHAIN_FRAGMENTS; ++t) chain(t, p[t], ds[t], of_p, of_ds);
    }

    static ROCATTN_INLINE void chain(u32 t, const C (&p)[BLOCKS], const C (&ds)[BLOCKS], Factors& of_p,
                                     Factors& of_ds) {
#pragma unroll
        for (u32 r = 0; r < BLOCKS; ++r) {
            chain_tile<M>(ds[r], t, of_ds[r]);
            if constexpr (S::KEYS) chain_tile<M>(p[r], t, of_p[r]);
            if constexpr (BY_TILE) {
                settle_tile(t, of_ds[r]);
                if constexpr (S::KEYS) settle_tile(t, of_p[r]);
            }
        }
    }

    // Makes the compiler convert the part of tile t here, not where it is used.
    static ROCATTN_INLINE void settle_tile(u32 t, B (&factors)[S::CHAIN_PRODUCTS]) {
        if constexpr (FRAGS == 2) {
            settle(factors[t]);
        } else {
            auto words = __builtin_bit_cast(Vector<u32, sizeof(B) / 4>, factors[0]);
#pragma unroll
            for (u32 i = 2 * t; i < 2 * t + 2; ++i) {
                u32 word = words[i];
                settle(word);
                words[i] = word;
            }
            factors[0] = __builtin_bit_cast(B, words);
        }
    }

    // Of 16 streamed rows, which are at `tile`. `others`: reads of LDS before them.
    ROCATTN_INLINE void multiply_tile(const Element* tile, u32 others, C (&p)[BLOCKS], C (&ds)[BLOCKS]) const {
#pragma unroll
        for (u32 r = 0; r < BLOCKS; ++r) p[r] = ds[r] = C{};
        // Matrix units have twice the independent products when scores and dP take turns.
        const auto of_ds = [](u32 step) { return ON_VECTOR_UNITS ? step >= S::DEPTHS : step % 2 == 1; };
        const auto depth = [](u32 step) { return ON_VECTOR_UNITS ? step % S::DEPTHS : step / 2; };
        pipeline<2 * S::DEPTHS, READS>(
            others,
            [&](u32 step, typename M::A (&a)[FRAGS]) {
                read_a<M>(tile + (of_ds(step) ? S::ROWS : 0) + depth(step) * GROUP_DEPTH<M>, S::STRIDE, a);
            },
            [&](u32 step, const typename M::A (&a)[FRAGS]) {
                const Resident& resident = of_ds(step) ? second : first;
                C(&products)[BLOCKS] = of_ds(step) ? ds : p;
#pragma unroll
                for (u32 n = 0; n < FRAGS; ++n)
#pragma unroll
                    for (u32 r = 0; r < BLOCKS; ++r) {
                        B mine = resident[r][depth(step)][n];
                        // Otherwise copies for packed instructions stay live as well.
                        if constexpr (ON_VECTOR_UNITS) settle(mine);
                        products[r] = M::multiply(a[n], mine, products[r]);
                    }
                if (ON_VECTOR_UNITS && step % 2 == 1) {
#pragma unroll
                    for (u32 r = 0; r < BLOCKS; ++r) settle(products[r]);
                    keep_order();  // fragments of A that are loaded ahead take registers
                }
            });
    }

    // Where a wave's accumulators of a block in the first (second) product are for its team: each lane's lie together,
    // by fours.
    ROCATTN_INLINE float* shared_part(u32 of_wave, u32 product, u32 r) const {
        return block.floats + S::STATISTICS + ((of_wave * 2 + product) * BLOCKS + r) * S::PART + lane_id() * 4;
    }
    ROCATTN_INLINE void share(const Products& p, const Products& ds) const {
#pragma unroll
        for (u32 r = 0; r < BLOCKS; ++r)
#pragma unroll
            for (u32 i = 0; i < S::RUN; i += 4) {
                Vector<float, 4> scores, products;
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    scores[e] = p[(i + e) / M::C_ROWS][r][(i + e) % M::C_ROWS];
                    products[e] = ds[(i + e) / M::C_ROWS][r][(i + e) % M::C_ROWS];
                }
                lds_store<float, 4>(shared_part(wave, 0, r) + i * WAVE, scores);
                lds_store<float, 4>(shared_part(wave, 1, r) + i * WAVE, products);
            }
    }
    // The sums over the team, in the order of its waves: bitwise equal in all of them.
    ROCATTN_INLINE void add_shared(Products& p, Products& ds) const {
        if constexpr (S::TEAM == 2 && !ON_VECTOR_UNITS) {
            add_other(p, ds);
            return;
        }
        const u32 team = wave / S::TEAM * S::TEAM;
#pragma unroll
        for (u32 r = 0; r < BLOCKS; ++r)
#pragma unroll
            for (u32 i = 0; i < S::RUN; i += 4) {
                Vector<float, 4> scores = {}, products = {};
                if constexpr (S::TEAM == 2) {  // a sum of two commutes: the other wave's part suffices
#pragma unroll
                    for (u32 e = 0; e < 4; ++e) {
                        scores[e] = p[(i + e) / M::C_ROWS][r][(i + e) % M::C_ROWS];
                        products[e] = ds[(i + e) / M::C_ROWS][r][(i + e) % M::C_ROWS];
                    }
                }
#pragma unroll
                for (u32 w = S::TEAM == 2 ? 1 : 0; w < S::TEAM; ++w) {
                    const u32 other = S::TEAM == 2 ? wave ^ 1 : team + w;
                    scores += lds_load<float, 4>(shared_part(other, 0, r) + i * WAVE);
                    products += lds_load<float, 4>(shared_part(other, 1, r) + i * WAVE);
                }
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    p[(i + e) / M::C_ROWS][r][(i + e) % M::C_ROWS] = scores[e];
                    ds[(i + e) / M::C_ROWS][r][(i + e) % M::C_ROWS] = products[e];
                }
            }
    }
    // The same in a team of two, with one wait for all of the other wave's data.
    ROCATTN_INLINE void add_other(Products& p, Products& ds) const {
        constexpr u32 PIECES = S::RUN / 4, COUNT = 2 * BLOCKS * PIECES;
        Vector<float, 4> others[COUNT];
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n) {
            others[n] = lds_load<float, 4>(shared_part(wave ^ 1, n % 2, n / 2 / PIECES) + n / 2 % PIECES * 4 * WAVE);
            keep_order();
        }
#pragma unroll
        for (u32 n = COUNT; n-- > 0;) settle(others[n]);  // last read first
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                const u32 r = n / 2 / PIECES, i = n / 2 % PIECES * 4 + e;
                C& mine = (n % 2 == 0 ? p : ds)[i / M::C_ROWS][r];
                mine[i % M::C_ROWS] += others[n][e];
            }
    }

    // Keeps sums in their registers: otherwise they are moved to others, and copied back.
    static ROCATTN_INLINE void settle_gradient(C& sum) {
        if constexpr (S::MANY_SUMS)
            settle_sum(sum);
        else
            settle(sum);
    }

    // Adds group c of the transposed tiles times dS, and P, to the gradients.
    ROCATTN_INLINE void accumulate(u32 c, const Factors& of_p, const Factors& of_ds) {
        const Element* transposed = block.lds + S::FIRST_TRANSPOSED + S::TransposedLayout::at(wave_column);
        if constexpr (!ON_VECTOR_UNITS) {
#pragma unroll
            for (u32 r = 0; r < BLOCKS; ++r)
#pragma unroll
                for (u32 f = 0; f < S::FEATURE_FRAGMENTS; ++f) {
                    settle_gradient(first_gradient[r][f]);
                    if constexpr (S::KEYS) settle_gradient(second_gradient[r][f]);
                }
        }
        constexpr u32 STEPS = S::FEATURE_FRAGMENTS * S::GROUPS;  // of one product
        pipeline<(S::KEYS ? 2 : 1) * STEPS, S::IN_PLACE ? 2 * READS : READS>(
            0,
            [&](u32 step, typename M::A (&a)[FRAGS]) {
                const u32 f = step % STEPS / S::GROUPS, g = step % S::GROUPS;
                const Element* tile = transposed + step / STEPS * S::TRANSPOSED + S::TransposedLayout::at(16 * f);
                S::TransposedLayout::read(tile, c * CHAIN_ROWS<M> + g * GROUP_DEPTH<M>, a);
            },
            [&](u32 step, const typename M::A (&a)[FRAGS]) {
                const u32 f = step % STEPS / S::GROUPS, g = step % S::GROUPS;
#pragma unroll
                for (u32 n = 0; n < FRAGS; ++n)
#pragma unroll
                    for (u32 r = 0; r < BLOCKS; ++r) {
                        if (step < STEPS)
                            first_gradient[r][f] = M::multiply(a[n], of_ds[r][g * FRAGS + n], first_gradient[r][f]);
                        else
                            second_gradient[r][f] = M::multiply(a[n], of_p[r][g * FRAGS + n], second_gradient[r][f]);
                    }
                if (ON_VECTOR_UNITS && step % 2 == 1) keep_order();
            });
    }

    // q.k and dP of 16 streamed rows, tile t of group c of those at `row`, to P and dS.
    ROCATTN_INLINE void differentiate(const Scores& scores, u32 row, u32 c, u32 t, bool general,
                                      float statistics, C (&p)[BLOCKS], C (&ds)[BLOCKS]) const {
#pragma unroll
        for (u32 r = 0; r < BLOCKS; ++r) {
            p[r] = arranged<M>(p[r]);
            ds[r] = arranged<M>(ds[r]);
        }
        if (!S::PLAIN && general) {
            differentiate_general(scores, row + c * CHAIN_ROWS<M>, t, statistics, p, ds);
        } else {
            differentiate_plain(scores.score_scale(), t, statistics, p, ds);
            if (S::PLAIN && general) hide(scores, row + c * CHAIN_ROWS<M> + t * 16, p, ds);
        }
    }

    // The exponent's base, and delta, of the query of a score: in register e of tile t in block r. `statistics`: of
    // streamed queries, each of which one of the lanes that have the same ones holds.
    ROCATTN_INLINE float base_of(float statistics, u32 r, u32 t, u32 e) const {
        return S::KEYS ? M::of_column(statistics, t * M::C_ROWS + e) : base[r];
    }
    ROCATTN_INLINE float delta_of(float statistics, u32 r, u32 t, u32 e) const {
        return S::KEYS ? M::of_column(statistics, S::RUN + t * M::C_ROWS + e) : delta[r];
    }

    // Where nothing is hidden and the score is just scaled.
    ROCATTN_INLINE void differentiate_plain(float scale_log2, u32 t, float statistics, C (&p)[BLOCKS],
                                            C (&ds)[BLOCKS]) const {
#pragma unroll
        for (u32 e = 0; e < M::C_ROWS; ++e)
#pragma unroll
            for (u32 r = 0; r < BLOCKS; ++r) {
                p[r][e] = exp2_fast(__builtin_fmaf(p[r][e], scale_log2, -base_of(statistics, r, t, e)));
                ds[r][e] = p[r][e] * (ds[r][e] - delta_of(statistics, r, t, e));
            }
    }

    // P = dS = 0 for pairs that the band or an end hides, of the 16 streamed rows at `row`.
    ROCATTN_INLINE void hide(const Scores& scores, u32 row, C (&p)[BLOCKS], C (&ds)[BLOCKS]) const {
        u32 first_row = M::c_row(0), column = M::column();
        settle(first_row);  // otherwise a sum with every constant stays live throughout
        settle(column);
#pragma unroll
        for (u32 e = 0; e < M::C_ROWS; ++e)
#pragma unroll
            for (u32 r = 0; r < BLOCKS; ++r) {
                const u32 streamed = row + first_row + M::row_step(e), mine = wave_row + 16 * r + column;
                float added = S::KEYS ? scores.added(streamed, mine) : scores.added(mine, streamed);
                // Otherwise clang 22 emits branches, and its code for gfx9 loses the 0 of P (not of dS) in one of them.
                if constexpr (WAVE == 64) settle(added);
                p[r][e] = added == -INF ? 0.0f : p[r][e];
                ds[r][e] = added == -INF ? 0.0f : ds[r][e];
            }
    }

    // Both, with all options. A hidden pair has P = dS = 0, whatever its score.
    ROCATTN_INLINE void differentiate_general(const Scores& scores, u32 row, u32 t, float statistics, C (&p)[BLOCKS],
                                              C (&ds)[BLOCKS]) const {
#pragma unroll
        for (u32 e = 0; e < M::C_ROWS; ++e) {
            const u32 streamed = row + t * 16 + M::c_row(e);
#pragma unroll
            for (u32 r = 0; r < BLOCKS; ++r) {
                const float base = base_of(statistics, r, t, e), delta = delta_of(statistics, r, t, e);
                const float added = S::KEYS ? scores.added(streamed, lane_row(r)) : scores.added(lane_row(r), streamed);
                float score = p[r][e] * scores.score_scale(), slope = 1.0f;
                if (scores.softcap != 0.0f) {
                    const float curve = tanh_accurate(p[r][e] * (scores.scale / scores.softcap));
                    score = scores.softcap * curve;
                    slope = 1.0f - curve * curve;
                }
                const float probability = exp2_fast(scores.exponent(score + added - base, LIFT));
#ifdef DROPOUT
                const bool keeps = S::KEYS ? scores.dropout.keeps(streamed, lane_row(r))
                                           : scores.dropout.keeps(lane_row(r), streamed);
                p[r][e] = added == -INF || !keeps ? 0.0f : probability;
                ds[r][e] = scores.dropout.upstream(keeps, ds[r][e]);
#else
                p[r][e] = added == -INF ? 0.0f : probability;
#endif
                ds[r][e] = added == -INF ? 0.0f : probability * (ds[r][e] - delta) * slope;
            }
        }
    }

    // Keeps dS of every row below 2^15: where one is larger, its row's sum so far and from now on is lowered. Rare.
    ROCATTN_INLINE void lower(Products& ds) {
        constexpr float LIMIT = 32768.0f;
#pragma unroll
        for (u32 r = 0; r < BLOCKS; ++r) {
            float top = 0.0f;
#pragma unroll
            for (u32 t = 0; t < S::CHAIN_FRAGMENTS; ++t)
#pragma unroll
                for (u32 e = 0; e < M::C_ROWS; ++e) top = __builtin_fmaxf(top, __builtin_fabsf(ds[t][r][e]));
            if (any_lane(top * lowered[r] >= LIMIT)) {
                // 2^14 over the power of 2 at or below the largest (of infinity: that above all numbers), at most 1.
                constexpr u32 BIAS = 127, LEAST = BIAS + 14;
                const u32 found = __builtin_bit_cast(u32, column_max<M>(top)) >> 23, exponent = most(found, LEAST);
                const float wanted = __builtin_bit_cast(float, (LEAST + BIAS - exponent) << 23);
                const float factor = wanted < lowered[r] ? wanted / lowered[r] : 1.0f;
                lowered[r] *= factor;
#pragma unroll
                for (u32 f = 0; f < S::FEATURE_FRAGMENTS; ++f) first_gradient[r][f] *= factor;
            }
#pragma unroll
            for (u32 t = 0; t < S::CHAIN_FRAGMENTS; ++t) ds[t][r] *= lowered[r];
        }
    }

    // Records for the block whether this wave is about to write an infinity or a NaN to LDS.
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

    // Sets the LSE of streamed queries with such a value in dO to NaN, so that all keys they see become NaN. Rare.
    ROCATTN_INLINE void spoil_rows() const {
        u32 thread = thread_id();
        settle(thread);
        if (thread < S::STATISTICS && moves_base(thread)) {
            const Element* row = block.lds + S::ROWS + statistics_row(thread) * S::STRIDE;
            bool finite = true;
#pragma unroll 1
            for (u32 i = 0; i < S::D; ++i) finite = finite && __builtin_fabsf(to_float(lds_load(row + i))) < INF;
            if (!finite) lds_store(block.floats + thread, __builtin_nanf(""));
        }
        block_barrier();
    }

    ROCATTN_INLINE void write(u32 r, const Gradient& gradient, T* rows, i64 stride, u32 columns, float factor) const {
        T* row = rows + lane_row(r) * stride;
#pragma unroll
        for (u32 f = 0; f < S::FEATURE_FRAGMENTS; ++f) {
            const C features = contiguous_rows<M>(gradient[r][f]) * factor;
            const u32 column = wave_column + 16 * f + M::part() * M::C_ROWS;
            if (lane_row(r) >= block.resident_rows) continue;
            if constexpr (S::PLAIN)
                store<T, M::C_ROWS>(row + column, rounded<T, M::C_ROWS>(features));
            else
                store_columns<T, M::C_ROWS>(row, column, columns, rounded<T, M::C_ROWS>(features));
        }
    }
};

}  // namespace rocattn
