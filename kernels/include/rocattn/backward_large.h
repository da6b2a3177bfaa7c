// The backward pass of rows with a large LSE: attention_backward_large_dq and _large_dkdv.
//
// The other backward kernels compute P = exp(score - LSE). In float32, an LSE of 2^14 has a resolution of 2^-10, one of
// 1e10 of 1024: the logarithm of the row's sum is lost, and a score summed in a different order than in the forward
// pass is off by many powers of e. Those kernels use P = 0 for such rows (`exponent_base` is infinite). Here they get
// P = exp(score - top) / sum, with the largest score and the sum recomputed from scores that are computed the same way
// every time, by one lane, feature after feature.
//
// It is optimized for correctness, not speed: such rows are rare (exploding scores, masks of -1e9 over a whole row).
#pragma once

#include <rocattn/backward_scores.h>
#include <rocattn/columns.h>

namespace rocattn {

constexpr u32 LARGE_THREADS = 256;
constexpr u32 LARGE_ROWS = 32;  // queries that share a word: whether any of their LSEs is large

// Strides of batch, head and row, in elements.
struct RowStrides {
    i64 b, h, s;
    template <typename T>
    ROCATTN_INLINE T* head(T* array, i64 batch, i64 head) const {
        return array + batch * b + head * h;
    }
};

// One batch and query head of a problem.
template <typename T>
struct LargeHead {
    const T *q, *k, *v, *dout;
    i64 q_stride, k_stride, v_stride, dout_stride;  // of rows
    const float *lse, *delta;
    const void* mask;
    i64 mask_start, mask_stride_q, mask_stride_k;
    u32 mask_kind, seq_q, seq_k, head_dim, head_dim_v;
    i32 window_left, window_right;
    float scale, softcap, slope;
#ifdef DROPOUT
    Dropout dropout;
#endif

    // The softmax of a row's scores: P = exp(score - top) * inverse.
    struct RowEnd {
        float top, inverse;
    };

    // P and dS of a pair; both 0 if it is hidden.
    struct Pair {
        float p, ds;
    };

    ROCATTN_INLINE bool is_large(u32 row) const { return row < seq_q && has_large_lse(load(lse + row)); }

    ROCATTN_INLINE KeyRange keys(u32 row) const {
        return visible_keys(row, seq_q, seq_k, window_left, window_right);
    }

    // The score of a key in the row's range; -inf: the mask hides it. `slope_of_cap`: the softcap's derivative.
    ROCATTN_INLINE float score(u32 row, u32 key, float& slope_of_cap) const {
        const float product = dot(q + row * q_stride, k + key * k_stride, head_dim);
        slope_of_cap = 1.0f;
        float score = rounded_product(product, scale);
        if (softcap != 0.0f) {
            const float curve = tanh_accurate(product * (scale / softcap));
            score = rounded_product(softcap, curve);
            slope_of_cap = 1.0f - curve * curve;
        }
        const i64 distance = static_cast<i64>(row) + seq_k - seq_q - key;
        score = __builtin_fmaf(-slope, __builtin_fabsf(static_cast<float>(distance)), score);
        return masked_score(score, mask_value(mask, mask_kind, mask_start + row * mask_stride_q + key * mask_stride_k));
    }

    ROCATTN_INLINE Pair pair(u32 row, u32 key, RowEnd end) const {
        float slope_of_cap;
        const float at = score(row, key, slope_of_cap);
        if (at == -INF) return {0.0f, 0.0f};
        const float p = exp_accurate(at - end.top) * end.inverse;
        const float dp = dot(dout + row * dout_stride, v + key * v_stride, head_dim_v);
#ifdef DROPOUT
        const bool keeps = dropout.keeps(row, key);
        return {keeps ? p * dropout.factor : 0.0f, p * (dropout.upstream(keeps, dp) - load(delta + row)) * slope_of_cap};
#else
        return {p, p * (dp - load(delta + row)) * slope_of_cap};
#endif
    }

private:
    // a * b, rounded before anything is added to it, as in the forward pass: fused with a bias, scores that are equal
    // there could differ by a step here.
    static ROCATTN_INLINE float rounded_product(float a, float b) { return __builtin_fmaf(a, b, 0.0f); }

    static ROCATTN_INLINE float dot(const T* x, const T* y, u32 columns) {
        constexpr u32 WIDTH = VECTOR_BYTES / sizeof(T);
        float sum = 0.0f;
        for (u32 column = 0; column < columns; column += WIDTH) {
            const auto a = load_columns<T, WIDTH>(x, column, columns), b = load_columns<T, WIDTH>(y, column, columns);
#pragma unroll
            for (u32 e = 0; e < WIDTH; ++e) sum = __builtin_fmaf(to_float(a[e]), to_float(b[e]), sum);
        }
        return sum;
    }
};

}  // namespace rocattn
