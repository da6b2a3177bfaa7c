// The steps of a score between q.k and the softmax: softcap, ALiBi, mask, causal band. Shared by the kernels that
// work on stored scores (scale, mask) and by those that recompute them (backward).
#pragma once

#include <rocattn/device.h>

namespace rocattn {

// As the ABI numbers them.
enum MaskKind : u32 { MASK_NONE, MASK_BOOL, MASK_F32, MASK_F16, MASK_BF16 };

// 2^(x * log2(e)) within 2 ulp: the product's rounding error, which grows with x, is corrected.
ROCATTN_INLINE float exp_accurate(float x) {
    constexpr float LOG2_E_REST = 1.9259629911e-8f;  // log2(e) - LOG2_E
    const float exponent = x * LOG2_E;
    const float rest = __builtin_fmaf(x, LOG2_E_REST, __builtin_fmaf(x, LOG2_E, -exponent));
    const float power = exp2_fast(exponent);
    return power == 0.0f ? 0.0f : __builtin_fmaf(power, rest * LN_2, power);
}

// tanh within 2 ulp. Away from 0, (1 - t) / (1 + t) with t = exp(-2 |x|); near 0 that cancels, and the Taylor series to
// x^11 is exact to float32 for |x| < 0.3.
ROCATTN_INLINE float tanh_accurate(float x) {
    const float magnitude = __builtin_fabsf(x);
    const float t = exp_accurate(-2.0f * magnitude);
    const float far = (1.0f - t) / (1.0f + t);
    const float square = x * x;
    float series = __builtin_fmaf(square, -1382.0f / 155925, 62.0f / 2835);
    series = __builtin_fmaf(square, series, -17.0f / 315);
    series = __builtin_fmaf(square, series, 2.0f / 15);
    series = __builtin_fmaf(square, series, -1.0f / 3);
    const float near = __builtin_fmaf(x * square, series, x);
    return magnitude < 0.3f ? near : __builtin_copysignf(far, x);
}

// Element `index` of a mask as the addend of the score: False is -inf, True is 0.
ROCATTN_INLINE float mask_value(const void* mask, u32 kind, i64 index, Where where = Where::here()) {
    switch (kind) {
        case MASK_BOOL:
            return load(static_cast<const u8*>(mask) + index, where) ? 0.0f : -INF;
        case MASK_F32:
            return load(static_cast<const f32*>(mask) + index, where);
        case MASK_F16:
            return to_float(load(static_cast<const f16*>(mask) + index, where));
        case MASK_BF16:
            return to_float(load(static_cast<const bf16*>(mask) + index, where));
        default:
            return 0.0f;
    }
}

// A score with its mask; -inf hides whatever the score is, NaN too.
ROCATTN_INLINE float masked_score(float score, float mask) { return mask == -INF ? -INF : score + mask; }

// The keys [first, stop) of [0, seq_k) visible to row `row` within the causal band and the window; first <= stop.
struct KeyRange {
    u32 first;
    u32 stop;
};

ROCATTN_INLINE KeyRange visible_keys(u32 row, u32 seq_q, u32 seq_k, i32 left, i32 right) {
    const i64 diagonal = static_cast<i64>(row) + seq_k - seq_q;
    i64 first = left < 0 ? 0 : diagonal - left;
    i64 stop = right < 0 ? static_cast<i64>(seq_k) : diagonal + right + 1;
    first = first < 0 ? 0 : first > seq_k ? seq_k : first;
    stop = stop > seq_k ? seq_k : stop < first ? first : stop;
    return {static_cast<u32>(first), static_cast<u32>(stop)};
}

}  // namespace rocattn
