// Which (query, key) pairs are visible in the backward pass, and how their scores are computed.
#pragma once

#include <rocattn/bias.h>
#include <rocattn/dropout.h>
#include <rocattn/hints.h>

namespace rocattn {

// An LSE above it (in magnitude) has lost too much precision: backward_large.h computes such rows.
constexpr float LARGE_LSE = 16384.0f;

ROCATTN_INLINE bool has_large_lse(float lse) {
    return __builtin_fabsf(lse) > LARGE_LSE && __builtin_fabsf(lse) < INF;
}

// How a problem turns q.k into probabilities, for one batch and head. IS_PLAIN: mask, softcap and ALiBi are off.
template <bool IS_PLAIN>
struct BackwardScores {
    const void* mask;  // of this batch and head, in elements from mask_start
    i64 mask_start, mask_stride_q, mask_stride_k;
    u32 mask_kind;
    float scale, softcap, slope;
    u32 seq_q, seq_k;
    i32 window_left, window_right;
#ifdef DROPOUT
    Dropout dropout;
    static constexpr bool DROPS = true;
#else
    static constexpr bool DROPS = false;
#endif

    // The distance of a key from its row's diagonal, that is key - shift() - row.
    ROCATTN_INLINE i32 shift() const { return static_cast<i32>(seq_k) - static_cast<i32>(seq_q); }
    // Whether probabilities are exp(scale * q.k - LSE) where nothing is hidden.
    ROCATTN_INLINE bool plain() const { return !DROPS && (IS_PLAIN || (softcap == 0.0f && slope == 0.0f && !masked())); }
    ROCATTN_INLINE bool masked() const { return !IS_PLAIN && mask_kind != MASK_NONE; }

    // Whether the band hides any, or all, pairs of queries [q, q_stop) and keys [k, k_stop).
    ROCATTN_INLINE bool band_hides_some(i64 q, i64 q_stop, i64 k, i64 k_stop) const {
        return (window_right >= 0 && k_stop - 1 > q + shift() + window_right) ||
               (window_left >= 0 && k < q_stop - 1 + shift() - window_left);
    }
    ROCATTN_INLINE bool band_hides_all(i64 q, i64 q_stop, i64 k, i64 k_stop) const {
        return (window_right >= 0 && k > q_stop - 1 + shift() + window_right) ||
               (window_left >= 0 && k_stop - 1 < q + shift() - window_left);
    }

    // Plain scores are in log2 units, so that a probability is one fused multiply-add and one exp2. Others are in
    // natural units: a mask's lowest number, times log2(e), would be infinite.
    ROCATTN_INLINE float score_scale() const { return either(scale * LOG2_E, scale); }
    // An LSE as what is subtracted from a score, for probabilities 2^lift times as large: infinite, so that there are
    // none, for a row that sees nothing and for one whose LSE is large.
    ROCATTN_INLINE float exponent_base(float lse, float lift) const {
        return __builtin_fabsf(lse) > LARGE_LSE ? INF : plain() ? lse * LOG2_E - lift : lse;
    }
    // The rest of a score as a power of 2. The units are chosen once, not per score.
    ROCATTN_INLINE float exponent(float difference, float lift) const {
        if (IS_PLAIN) return difference;
        const float power = difference * either(1.0f, LOG2_E);
        return lift == 0.0f ? power : power + either(0.0f, lift);
    }

    // What plain scores take, or others; in a scalar register.
    ROCATTN_INLINE float either(float for_plain, float for_others) const {
        return __builtin_bit_cast(float, scalar(__builtin_bit_cast(u32, IS_PLAIN || plain() ? for_plain : for_others)));
    }

    // The addend of a score; -inf: hidden.
    ROCATTN_INLINE float added(u32 query, u32 key) const {
        const i32 distance = static_cast<i32>(key) - shift() - static_cast<i32>(query);
        if (query >= seq_q || key >= seq_k || (window_right >= 0 && distance > window_right) ||
            (window_left >= 0 && distance < -window_left))
            return -INF;
        if (IS_PLAIN) return 0.0f;
        const float bias = mask_value(mask, mask_kind, mask_start + query * mask_stride_q + key * mask_stride_k);
        return bias == -INF ? -INF : bias - slope * static_cast<float>(distance < 0 ? -distance : distance);
    }
};

}  // namespace rocattn
