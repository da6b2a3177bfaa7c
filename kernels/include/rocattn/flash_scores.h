// The scores of the generic flash kernels, prefill and decode: scale, softcap, ALiBi, mask and band, in this order.
#pragma once

#include <rocattn/bias.h>
#include <rocattn/flash_parts.h>

namespace rocattn {

// What does not depend on the row.
struct ScoreOptions {
    const void* mask;
    i64 mask_stride_k;
    u32 mask_kind;
    i32 window_left, window_right;
    float scale, softcap;
    u32 seq_q, seq_k;

    // On gfx9 scalar registers are short (102): what only vector instructions use goes to vector registers.
    ROCATTN_INLINE void settle() {
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
    ROCATTN_INLINE i32 diagonal(u32 row) const { return static_cast<i32>(row + seq_k - seq_q); }
};

// A range of query rows and what the band leaves of the keys to any, and to all of them.
struct BandRange {
    i32 any_first, any_last;  // seen by some row
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

// What this lane knows of its row of one query tile.
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
    u32 has_slopes;
    ScoreRow row[S::QUERIES];

    ROCATTN_INLINE float scale() const { return 1.0f; }
    ROCATTN_INLINE bool block_hides(u32 key) const {
        return options.mask_kind != MASK_NONE || block.hides(key, S::KEYS);
    }
    ROCATTN_INLINE bool wave_sees(u32 key) const { return wave.sees(key, S::KEYS); }

    ROCATTN_INLINE bool sees(u32 i, u32 key) const {
        const i32 at = static_cast<i32>(key);
        if (at < row[i].first || at > row[i].last) return false;
        return options.mask_kind == MASK_NONE || mask_at(i, key) > -INF;
    }

    template <typename S2>
    ROCATTN_INLINE void apply(u32 i, C (&s)[S::KEYS / 16], u32 key) const {
#pragma unroll
        for (u32 t = 0; t < S::KEY_TILES; ++t) s[t] *= options.scale;
        if (options.softcap != 0.0f) apply_softcap(s);
        if (has_slopes) apply_slope(i, s, key);
        if (options.mask_kind != MASK_NONE) apply_mask(i, s, key);
        if (wave.hides(key, S::KEYS)) {
            hide_after<S>(s, key, row[i].last);
            hide_before<S>(s, key, row[i].first);
        }
    }

private:
    ROCATTN_INLINE float mask_at(u32 i, u32 key) const {
        return mask_value(options.mask, options.mask_kind, row[i].mask + key * options.mask_stride_k);
    }

    ROCATTN_INLINE void apply_softcap(C (&s)[S::KEY_TILES]) const {
        const float inverse = 1.0f / options.softcap;
        for_each_score<S>(s, [&](float score, u32) { return options.softcap * tanh_accurate(score * inverse); });
    }

    // Distances are exact in float32 up to 2^24.
    ROCATTN_INLINE void apply_slope(u32 i, C (&s)[S::KEY_TILES], u32 key) const {
        const float distance = static_cast<float>(row[i].diagonal - static_cast<i32>(key + M::c_row(0)));
        for_each_score<S>(s, [&](float score, u32 offset) {
            const float ahead = distance - static_cast<float>(offset);
            return __builtin_fmaf(-row[i].slope, __builtin_fabsf(ahead), score);
        });
    }

    // The last key is read in the place of those beyond it, whose scores are hidden later.
    ROCATTN_INLINE void apply_mask(u32 i, C (&s)[S::KEY_TILES], u32 key) const {
        const u32 first = key + M::c_row(0);
        for_each_score<S>(s, [&](float score, u32 offset) {
            return masked_score(score, mask_at(i, smaller(first + offset, options.seq_k - 1)));
        });
    }
};

}  // namespace rocattn
