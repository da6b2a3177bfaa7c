// Helpers around the core of flash.h: hiding keys of a tile, and the end of a row.
#pragma once

#include <rocattn/flash.h>

namespace rocattn {

// Calls finish(score, offset of its key from c_row(0) of the tile) for this lane's scores, one 16x16 tile after the
// other: interleaved, the results of their comparisons would take many scalar registers.
template <typename S, typename Finish>
ROCATTN_INLINE void for_each_score(typename S::M::C (&s)[S::PART_FRAGMENTS], const Finish& finish) {
    keep_branch();
#pragma unroll
    for (u32 t = 0; t < S::PART_FRAGMENTS; ++t) {
        settle(s[t]);
#pragma unroll
        for (u32 r = 0; r < S::M::C_ROWS; ++r) s[t][r] = finish(s[t][r], 16 * t + S::M::row_step(r));
        settle(s[t]);
    }
}

// Hides the keys of a tile (at `key`) that lie after `last`, in this lane's row.
template <typename S>
ROCATTN_INLINE void hide_after(typename S::M::C (&s)[S::PART_FRAGMENTS], u32 key, i32 last) {
    i32 room = last - static_cast<i32>(key) - static_cast<i32>(S::M::c_row(0, S::late_lane()));
    settle(room);  // else what two query fragments compute alike moves out of both branches, into tiles without either
    const float hidden = S::late(-INF);
    for_each_score<S>(s, [&](float score, u32 offset) { return static_cast<i32>(offset) > room ? hidden : score; });
}

// The same for keys before `first`.
template <typename S>
ROCATTN_INLINE void hide_before(typename S::M::C (&s)[S::PART_FRAGMENTS], u32 key, i32 first) {
    i32 room = first - static_cast<i32>(key) - static_cast<i32>(S::M::c_row(0, S::late_lane()));
    settle(room);
    const float hidden = S::late(-INF);
    for_each_score<S>(s, [&](float score, u32 offset) { return static_cast<i32>(offset) < room ? hidden : score; });
}

// A row's sum and reference as they end: its LSE in natural units, and the factor on its features.
struct RowEnd {
    float lse, factor;
};

// `sink`: a weight in natural logarithm that joins the sum without a value, or -inf; none if PLAIN.
template <bool PLAIN>
ROCATTN_INLINE RowEnd end_row(float reference, float total, float sink) {
    float kept = 1.0f;
    if (!PLAIN && sink > -INF) {
        const float top = __builtin_fmaxf(reference, sink);
        kept = exp2_fast((reference - top) * LOG2_E);
        total = total * kept + exp2_fast((sink - top) * LOG2_E);
        reference = top;
    }
    const float top = PLAIN ? reference * LN_2 : reference;
    return {total == 0.0f ? -INF : top + log2_fast(total) * LN_2, total == 0.0f ? 0.0f : 1.0f / total * kept};
}

// Writes this lane's part of a row: its features of all feature tiles, times `factor`; nothing where `row` is null.
// STEP divides `columns`; 0: there are DV. `lane`: this one's number.
template <typename S, typename Out, u32 STEP = S::STEP, typename Forward>
ROCATTN_INLINE void write_row(const Forward& forward, u32 i, Out* row, u32 columns, float factor,
                              u32 lane = lane_id()) {
    using M = typename S::M;
#pragma unroll
    for (u32 f = 0; f < S::FEATURE_FRAGMENTS; ++f) {
        const auto features = forward.features(i, f, lane) * factor;
        const u32 column = Forward::first_feature(f, lane);
        if (!row) continue;
        if constexpr (STEP == 0)
            store<Out, M::C_ROWS>(row + column, rounded<Out, M::C_ROWS>(features));
        else
            store_pieces<Out, M::C_ROWS, STEP>(row, column, columns, rounded<Out, M::C_ROWS>(features));
    }
}

}  // namespace rocattn
