// Joins the splits of flash_decode: out = sum of w_s out_s / total, w_s = sum_s exp(reference_s - top),
// total = sum of w_s + exp(sink - top), lse = top + ln(total).
//
// Grid      (Sq, H, B): one block per row.
// Block     4 waves. Each group of 2^lane_bits lanes, 4 features per lane, takes some of the splits: no lane is idle at
//           Dv = 128 on wave64. Groups are reduced by shuffles, waves through LDS.
// LDS       The weights of the splits and the waves' sums: 8.0 KiB on wave64, 6.0 on wave32.
// Registers At most 88 VGPRs.
// Memory    partial_out is read once, 16 bytes per lane, 8 loads in flight: the first are issued before the weights
//           are known.
// Numerics  Float32; rounded to T once. References and sums are separate: next to a score of 1e8, an LSE could not
//           represent the log of a sum, and splits of 1 and of 1000 keys would get equal weights. Splits without
//           visible keys have weight 0; a row without any: output 0, LSE -inf, or the sink.
// Not measured on a GPU yet.
//
// Compile-time define: DTYPE (f16, bf16, f32).
//
// Kernel arguments (88 bytes, no hidden ones); T is DTYPE, strides are in elements, the last is 1:
//    0  const float* partial_out [splits, B, H, Sq, Dv rounded up to 4]
//    8  const float* partial_ends [splits, B, H, Sq, 2]: reference and sum; both contiguous
//   16  T* out [B, H, Sq, Dv]         24  float* lse [B, H, Sq] contiguous, natural log; null: not written
//   32  const float* sinks [H], or null                    40  i64 out_stride_b, _h, _s
//   64  u32 splits: up to 1024   68  seq_q   72  num_heads   76  head_dim_v   80  batch
//   84  u32 lane_bits: 2^lane_bits lanes have Dv features, 4 each; up to 6
#include <rocattn/tile.h>

using namespace rocattn;

namespace {

constexpr u32 WIDTH = 4;  // features per lane
constexpr u32 BATCH = 8;  // loads in flight
constexpr u32 WAVES = 4, THREADS = WAVES * WAVE;
constexpr u32 MOST_SPLITS = 1024;
constexpr u32 ENDS = MOST_SPLITS / THREADS;  // splits whose weight a thread computes
using Part = Vector<float, WIDTH>;

// exp(reference - top); 0 without visible keys, even if no split has any.
ROCATTN_INLINE float weight_of(float reference, float top) {
    return reference == -INF ? 0.0f : exp2_fast((reference - top) * LOG2_E);
}

// Combines one value per wave through LDS; `combine` takes two values.
template <typename Combine>
ROCATTN_INLINE float over_waves(float value, float* of_waves, const Combine& combine) {
    if (lane_id() == 0) lds_store(of_waves + wave_id(), value);
    block_barrier();
    float all = lds_load(of_waves);
#pragma unroll
    for (u32 w = 1; w < WAVES; ++w) all = combine(all, lds_load(of_waves + w));
    return all;
}

// The parts of one row: this lane's features of split s start at first + s * step.
struct Parts {
    const float* first;
    i64 step;
    u32 splits, groups;  // each group of lanes takes every `groups`-th split

    // Issues the loads of BATCH splits from `split` on; splits past the end load the last one, because a branch would
    // cost a copy of every register that it skips.
    template <bool ALL>
    ROCATTN_INLINE void fetch(u32 split, Part (&x)[BATCH]) const {
#pragma unroll
        for (u32 i = 0; i < BATCH; ++i) {
            const u32 at = split + i * groups;
            x[i] = load<float, WIDTH>(first + (ALL ? at : smaller(at, splits - 1)) * step);
        }
    }
    template <bool ALL>
    ROCATTN_INLINE void add(u32 split, const Part (&x)[BATCH], const float* weights, float factor, Part& sum) const {
#pragma unroll
        for (u32 i = 0; i < BATCH; ++i) {
            const u32 at = split + i * groups;
            float weight = lds_load(weights + (ALL ? at : smaller(at, splits - 1))) * factor;
            if constexpr (!ALL) settle(weight);  // otherwise a branch around each one
            // Not through a weight of 0, because a part may be infinite.
            sum += ALL || at < splits ? x[i] * weight : Part{};
        }
    }
};

}  // namespace

ROCATTN_KERNEL(flash_decode_combine, THREADS,
               (const float* partial_out, const float* partial_ends, DTYPE* out, float* lse, const float* sinks,
                i64 out_stride_b, i64 out_stride_h, i64 out_stride_s, u32 splits, u32 seq_q, u32 num_heads,
                u32 head_dim_v, u32 batch, u32 lane_bits)) {
    ROCATTN_LDS(float, weights, MOST_SPLITS);
    ROCATTN_LDS(float, of_waves, 2 * WAVES);
    ROCATTN_LDS(float, wave_sums, THREADS * WIDTH);
    const i64 row = (static_cast<i64>(block_z()) * num_heads + block_y()) * seq_q + block_x();
    const i64 rows = static_cast<i64>(batch) * num_heads * seq_q;  // of one split
    const u32 padded = round_up(head_dim_v, WIDTH), lanes = 1u << lane_bits;
    const u32 lane = thread_id() & (lanes - 1), group = thread_id() >> lane_bits;
    const u32 groups = THREADS >> lane_bits;
    DTYPE* out_row = out + block_z() * out_stride_b + block_y() * out_stride_h + block_x() * out_stride_s;
    const float sink = sinks ? load(sinks + block_y()) : -INF;
    Vector<float, 2> ends[ENDS] = {};
#pragma unroll
    for (u32 i = 0; i < ENDS; ++i) {
        const u32 at = smaller(thread_id() + i * THREADS, splits - 1);
        if (i == 0 || i * THREADS < splits) ends[i] = load<float, 2>(partial_ends + (at * rows + row) * 2);
    }
    const u32 column = lane * WIDTH;
    const Parts parts{partial_out + row * padded + (column < padded ? column : 0), rows * padded, splits, groups};
    const u32 whole = splits / (BATCH * groups) * (BATCH * groups);  // splits in full batches
    u32 split = group;
    Part x[BATCH], sum = {};
    parts.fetch<false>(split, x);

    float top = sink, total = 0.0f;
#pragma unroll
    for (u32 i = 0; i < ENDS; ++i) {
        settle(ends[i]);  // otherwise the wait comes before the loads of the parts
        if (thread_id() + i * THREADS < splits) top = __builtin_fmaxf(top, ends[i][0]);
    }
    top = over_waves(wave_max(top), of_waves, [](float a, float b) { return __builtin_fmaxf(a, b); });
#pragma unroll
    for (u32 i = 0; i < ENDS; ++i) {
        const u32 at = thread_id() + i * THREADS;
        if (at >= splits) continue;
        const float weight = ends[i][1] * weight_of(ends[i][0], top);
        lds_store(weights + at, weight);
        total += weight;
    }
    total = over_waves(wave_sum(total), of_waves + WAVES, [](float a, float b) { return a + b; });
    total += weight_of(sink, top);
    const float factor = total == 0.0f ? 0.0f : 1.0f / total;
    if (lse && thread_id() == 0) store(lse + row, total == 0.0f ? -INF : top + log2_fast(total) * LN_2);

    if (whole != 0) {
        parts.add<true>(split, x, weights, factor, sum);
        for (split += BATCH * groups; split < whole; split += BATCH * groups) {
            parts.fetch<true>(split, x);
            parts.add<true>(split, x, weights, factor, sum);
        }
        if (whole != splits) parts.fetch<false>(split, x);
    }
    if (whole != splits) parts.add<false>(split, x, weights, factor, sum);
    for (u32 apart = lanes; apart < WAVE; apart *= 2)
#pragma unroll
        for (u32 i = 0; i < WIDTH; ++i) sum[i] += shuffle_xor(sum[i], apart);
    lds_store<float, WIDTH>(wave_sums + thread_id() * WIDTH, sum);
    block_barrier();
    if (group != 0) return;
    const u32 across = lanes > WAVE ? lanes / WAVE : 1;  // waves per row, side by side
    sum = {};
#pragma unroll
    for (u32 w = 0; w < WAVES; ++w)
        if (w % across == lane / WAVE)
            sum += lds_load<float, WIDTH>(wave_sums + (w * WAVE + lane % WAVE) * WIDTH);
    store_columns<DTYPE, WIDTH>(out_row, column, head_dim_v, rounded<DTYPE, WIDTH>(sum));
}
