// The scores of the generic flash kernels, prefill and decode: scale, softcap, ALiBi, mask and band, in this order.
#pragma once

#include <rocattn/bias.h>
#include <rocattn/dropout.h>
#include <rocattn/flash_parts.h>

namespace rocattn {

// The row-independent options.
struct ScoreOptions {
    // Bits of `uses`, above the mask's kind in the lowest three.
    static constexpr u32 KIND = 7, ADJACENT = 8, SOFTCAP = 16, SLOPES = 32;  // ADJACENT: a mask's keys are contiguous

    const void* mask;
    i64 mask_stride_k;
    u32 mask_kind;
    i32 window_left, window_right;
    float scale, softcap;
    u32 seq_q, seq_k;
    u32 uses = 0;

    // Before the loop. What branches ask for becomes one word. On gfx9 scalar registers are short (102): what only
    // vector instructions use goes to vector registers.
    ROCATTN_INLINE void settle(bool has_slopes) {
        uses = mask_kind | (mask_stride_k == 1 ? ADJACENT : 0) | (softcap != 0.0f ? SOFTCAP : 0) |
               (has_slopes ? SLOPES : 0);
        settle_scalar(uses);
        if constexpr (WAVE == 64) {
            rocattn::settle(mask_stride_k);
            rocattn::settle(softcap);
            rocattn::settle(scale);
        }
    }

    // The first and the last key that a row sees by the band alone; last < first: none.
    ROCATTN_INLINE i32 first_key(u32 row) const {
        const i32 first = diagonal(row) - window_left;
        return window_left < 0 || first < 0 ? 0 : first;
    }
    ROCATTN_INLINE i32 last_key(u32 row) const {
        const i32 end = static_cast<i32>(seq_k) - 1, last = diagonal(row) + window_right;
        return window_right < 0 || last > end ? end : last;
    }
    ROCATTN_INLINE u32 kind() const { return uses & KIND; }
    ROCATTN_INLINE i32 diagonal(u32 row) const { return static_cast<i32>(row + seq_k - seq_q); }
};

// A range of query rows, and the keys that the band leaves visible to any and to all of them.
struct BandRange {
    i32 any_first, any_last;  // seen by any row
    i32 all_first, all_last;  // seen by every row

    ROCATTN_INLINE BandRange(const ScoreOptions& options, u32 first_row, u32 last_row)
        : any_first(options.first_key(first_row)),
          any_last(options.last_key(last_row)),
          all_first(options.first_key(last_row)),
          all_last(options.last_key(first_row)) {}
    ROCATTN_INLINE bool hides(u32 key, u32 keys) const {
        return static_cast<i32>(key) < all_first || static_cast<i32>(key + keys) - 1 > all_last;
    }
    ROCATTN_INLINE bool sees(u32 key, u32 keys) const {
        return static_cast<i32>(key + keys) - 1 >= any_first && static_cast<i32>(key) <= any_last;
    }
};

// This lane's row of one query fragment.
struct ScoreRow {
    i32 first, last;    // keys by the band
    i32 diagonal;
    float slope;        // 0: no ALiBi
    i64 mask;           // elements from the mask's start to the row
};

template <typename S>
struct OptionScores {
    static constexpr bool PLAIN = false;
    using M = typename S::M;
    using C = typename M::C;

    const ScoreOptions& options;
    const BandRange &block, &wave;
    ScoreRow row[S::Q_FRAGMENTS];
#ifdef DROPOUT
    Dropout dropout;

    ROCATTN_INLINE void drop(u32 i, C& weights, u32 key) const {
        const u32 at = static_cast<u32>(row[i].diagonal) + options.seq_q - options.seq_k;
        for (u32 r = 0; r < M::C_ROWS; ++r)
            if (!dropout.keeps(at, key + M::c_row(r))) weights[r] = 0.0f;
    }
#endif

    ROCATTN_INLINE float scale() const { return 1.0f; }
    ROCATTN_INLINE bool block_hides(u32 key) const {
        return options.kind() != MASK_NONE || block.hides(key, S::TILE_KEYS);
    }
    ROCATTN_INLINE bool wave_sees(u32 key) const { return wave.sees(key, S::TILE_KEYS); }

    ROCATTN_INLINE bool sees(u32 i, u32 key) const {
        const i32 at = static_cast<i32>(key);
        if (at < row[i].first || at > row[i].last) return false;
        if (options.kind() == MASK_NONE) return true;
        return mask_value(options.mask, options.kind(), row[i].mask + key * options.mask_stride_k) > -INF;
    }

    template <typename S2>
    ROCATTN_INLINE void apply(u32 i, C (&s)[S::PART_FRAGMENTS], u32 key) const {
#pragma unroll
        for (u32 t = 0; t < S::PART_FRAGMENTS; ++t) s[t] *= options.scale;
        u32 uses = options.uses;
        settle_scalar(uses);  // here, too: otherwise each condition stays in two SGPRs across the loop
        const u32 kind = uses & ScoreOptions::KIND;
        if (uses & ScoreOptions::SOFTCAP) apply_softcap(s);
        if (uses & ScoreOptions::SLOPES) apply_slope(i, s, key);
        const bool adjacent = (uses & ScoreOptions::ADJACENT) && key + S::PART_KEYS <= options.seq_k;
        if (kind == MASK_BOOL) apply_mask<u8>(i, s, key, adjacent);
        if (kind == MASK_F32) apply_mask<f32>(i, s, key, adjacent);
        if (kind == MASK_F16) apply_mask<f16>(i, s, key, adjacent);
        if (kind == MASK_BF16) apply_mask<bf16>(i, s, key, adjacent);
        if (wave.hides(key, S::PART_KEYS)) {
            hide_after<S>(s, key, row[i].last);
            hide_before<S>(s, key, row[i].first);
        }
    }

private:
    ROCATTN_INLINE void apply_softcap(C (&s)[S::PART_FRAGMENTS]) const {
        const float inverse = 1.0f / options.softcap;
        for_each_score<S>(s, [&](float score, u32) { return options.softcap * tanh_accurate(score * inverse); });
    }

    // Distances are exact in float32 up to 2^24.
    ROCATTN_INLINE void apply_slope(u32 i, C (&s)[S::PART_FRAGMENTS], u32 key) const {
        const float distance = static_cast<float>(row[i].diagonal - static_cast<i32>(key + M::c_row(0)));
        for_each_score<S>(s, [&](float score, u32 offset) {
            const float ahead = distance - static_cast<float>(offset);
            return __builtin_fmaf(-row[i].slope, __builtin_fabsf(ahead), score);
        });
    }

    template <typename E>
    using Raw = typename detail::RawOf<E>::type;

    // An element of a mask as the addend of the score.
    template <typename E>
    static ROCATTN_INLINE float added(Raw<E> element) {
        if constexpr (sizeof(E) == 1)
            return element ? 0.0f : -INF;
        else
            return to_float(element);
    }

    // All elements of a tile are loaded before the first is used: by vectors if adjacent (neighbours, all of which
    // exist); else one by one, the last key in the place of those beyond it, whose scores are hidden later.
    template <typename E>
    ROCATTN_INLINE void apply_mask(u32 i, C (&s)[S::PART_FRAGMENTS], u32 key, bool adjacent) const {
        i64 start = row[i].mask;
        settle(start);  // otherwise the row's address stays live, once per kind of mask
        const E* mask = static_cast<const E*>(options.mask) + start;
        C mine[S::PART_FRAGMENTS];
        if (adjacent) {
#pragma unroll
            for (u32 t = 0; t < S::PART_FRAGMENTS; ++t) mine[t] = adjacent_mask(mask + key + 16 * t);
            keep_branch<1>();
        } else {
#pragma unroll
            for (u32 t = 0; t < S::PART_FRAGMENTS; ++t) {
#pragma unroll
                for (u32 r = 0; r < M::C_ROWS; ++r) {
                    const u32 at = smaller(key + 16 * t + M::c_row(r), options.seq_k - 1);
                    mine[t][r] = added<E>(load<E, 1>(mask + at * options.mask_stride_k)[0]);
                }
                keep_order();  // each address takes two registers
            }
            keep_branch<2>();
        }
#pragma unroll
        for (u32 t = 0; t < S::PART_FRAGMENTS; ++t) {  // as for_each_score
            settle(s[t]);
#pragma unroll
            for (u32 r = 0; r < M::C_ROWS; ++r) s[t][r] = masked_score(s[t][r], mine[t][r]);
            settle(s[t]);
        }
    }

    // The addends of this lane's keys, of the 16 from `mask` on.
    template <typename E>
    static ROCATTN_INLINE C adjacent_mask(const E* mask) {
        C mine;
        if constexpr (M::row_step(1) == 1) {  // runs of 4 rows
#pragma unroll
            for (u32 r = 0; r < M::C_ROWS; r += 4) {
                const auto run = load<E, 4>(mask + M::c_row(r));
#pragma unroll
                for (u32 e = 0; e < 4; ++e) mine[r + e] = added<E>(run[e]);
            }
        } else if constexpr (sizeof(E) == 4) {
#pragma unroll
            for (u32 r = 0; r < M::C_ROWS; ++r) mine[r] = added<E>(load(mask + M::c_row(r)));
        } else {  // every other one: the words with all, shifted by one element in the lanes that want the odd ones
            constexpr u32 WIDTH = VECTOR_BYTES / sizeof(E), WORD = 4 / sizeof(E);
#pragma unroll
            for (u32 first = 0; first < 16; first += WIDTH) {
                auto words = __builtin_bit_cast(Vector<u32, 4>, load<E, WIDTH>(mask + first));
                words >>= M::c_row(0) * 8 * u32{sizeof(E)};
#pragma unroll
                for (u32 e = 0; e < WIDTH; e += 2) {
                    const u32 element = words[e / WORD] >> e % WORD * 8;
                    if constexpr (sizeof(E) == 1)
                        mine[(first + e) / 2] = added<E>(static_cast<u8>(element));
                    else
                        mine[(first + e) / 2] = added<E>(__builtin_bit_cast(Raw<E>, static_cast<u16>(element)));
                }
            }
        }
        return mine;
    }
};

}  // namespace rocattn
