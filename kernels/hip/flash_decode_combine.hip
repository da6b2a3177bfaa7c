// Joins the splits of flash_decode: out = sum of w_s out_s / total, w_s = sum_s exp(reference_s - top),
// total = sum of w_s + exp(sink - top), lse = top + ln(total).
//
// Grid      (Sq, H, B): one block a row.
// Block     One wave; a lane has 4 features of every 4 * WAVE.
// LDS       None: a lane holds the weight of one split of WAVE, shuffles hand it out.
// Registers At most 32 VGPRs.
// Memory    partial_out is read once, 16 bytes a lane.
// Numerics  Float32; rounded to T once. References and sums come apart: beside a score of 1e8 an LSE could not hold
//           the logarithm of a sum, and splits of 1 and of 1000 keys would weigh the same. Splits with nothing visible
//           have no weight; a row without any: output 0, LSE -inf, or the sink.
// Not measured on a GPU yet.
//
// Compile-time define: DTYPE (f16, bf16, f32).
//
// Kernel arguments (84 bytes, no hidden ones); T is DTYPE, strides are in elements, the last is 1:
//    0  const float* partial_out [splits, B, H, Sq, Dv]    8  const float* partial_ends [splits, B, H, Sq, 2]:
//       reference and sum; both contiguous
//   16  T* out [B, H, Sq, Dv]         24  float* lse [B, H, Sq] contiguous, natural log; null: not wanted
//   32  const float* sinks [H], or null                    40  i64 out_stride_b, _h, _s
//   64  u32 splits   68  seq_q   72  num_heads   76  head_dim_v   80  batch
#include <rocattn/tile.h>

using namespace rocattn;

namespace {

constexpr u32 WIDTH = 4;  // features a lane

// exp(reference - top), 0 for what saw nothing, also if none did.
ROCATTN_INLINE float weight_of(float reference, float top) {
    return reference == -INF ? 0.0f : exp2_fast((reference - top) * LOG2_E);
}

}  // namespace

ROCATTN_KERNEL(flash_decode_combine, ROCATTN_WAVE,
               (const float* partial_out, const float* partial_ends, DTYPE* out, float* lse, const float* sinks,
                i64 out_stride_b, i64 out_stride_h, i64 out_stride_s, u32 splits, u32 seq_q, u32 num_heads,
                u32 head_dim_v, u32 batch)) {
    const i64 row = (static_cast<i64>(block_z()) * num_heads + block_y()) * seq_q + block_x();
    const i64 rows = static_cast<i64>(batch) * num_heads * seq_q;  // of one split
    const auto end_of = [&](u32 split) {
        return split < splits ? load<float, 2>(partial_ends + (split * rows + row) * 2) : Vector<float, 2>{-INF, 0.0f};
    };
    const auto split_weight = [&](u32 split, float top) {
        const auto end = end_of(split);
        return end[1] * weight_of(end[0], top);
    };

    const float sink = sinks ? load(sinks + block_y()) : -INF;
    float top = sink;
    for (u32 first = 0; first < splits; first += WAVE)
        top = __builtin_fmaxf(top, wave_max(end_of(first + lane_id())[0]));
    float total = 0.0f;
    for (u32 first = 0; first < splits; first += WAVE) total += wave_sum(split_weight(first + lane_id(), top));
    total += weight_of(sink, top);
    const float factor = total == 0.0f ? 0.0f : 1.0f / total;
    if (lse && lane_id() == 0) store(lse + row, total == 0.0f ? -INF : top + log2_fast(total) * LN_2);

    DTYPE* out_row = out + block_z() * out_stride_b + block_y() * out_stride_h + block_x() * out_stride_s;
    for (u32 columns = 0; columns < head_dim_v; columns += WAVE * WIDTH) {
        const u32 column = columns + lane_id() * WIDTH;
        const u32 count = column < head_dim_v ? head_dim_v - column : 0;
        Vector<float, WIDTH> sum = {};
        for (u32 first = 0; first < splits; first += WAVE) {
            const float weight = split_weight(first + lane_id(), top) * factor;
            const u32 in_chunk = smaller(splits - first, WAVE);
            for (u32 s = 0; s < in_chunk; ++s) {
                const float* part = partial_out + ((first + s) * rows + row) * head_dim_v + column;
                sum += load_some<float, WIDTH>(part, count) * shuffle(weight, s);
            }
        }
        store_columns<DTYPE, WIDTH>(out_row, column, head_dim_v, rounded<DTYPE, WIDTH>(sum));
    }
}
