// The backward pass with respect to Q for the rows with a large LSE (|LSE| > 2^14), which attention_backward_dq leaves
// at 0. Returns at once if there are none. Not measured on a GPU yet.
//
//   top = largest score, total = sum of exp(score - top) + exp(sink - top),   P = exp(score - top) / total
//   dq[i] = scale * sum over keys j of dS[i, j] k[j]   (backward.h has the whole derivation)
//
// Grid      (ceil(Sq / 32), H, B): a block checks the LSE of 32 rows and computes the large ones one by one.
// Block     256 threads: one per key for scores and dS, one per feature for dQ.
// LDS       1024 bytes of dS, and 8 * 256 / WAVE: one maximum and one sum per wave.
// Registers At most 48 VGPRs, no VGPR spills and no scratch (checked by tests/kernels); on CDNA some SGPRs spill to
//           lanes of VGPRs.
// Memory    LSE, once; for a large row, K twice and V once, 16 bytes per lane, each lane along its own row; then K
//           again, with adjacent lanes at adjacent features.
// Numerics  Float32 throughout, from T; rounded once. Writes each large row's top and 1 / total, and per 32 rows
//           whether any is large, for attention_backward_large_dkdv.
//
// Compile-time define: DTYPE (f16, bf16, f32). D and Dv are arguments: any up to 256.
//
// Kernel arguments (292 bytes, no hidden ones):
//    0  const DTYPE* q   8  k   16  v   24  dout         by strides
//   32  const float* lse      40  const float* delta      [B, H, Sq], contiguous
//   48  float* ends [B, H, Sq, 2]: top and 1 / total     56  u32* some [B, H, ceil(Sq / 32)]      contiguous
//   64  DTYPE* dq                                         by strides
//   72  const void* mask   80  const float* alibi_slopes ([B, H], contiguous)   88  const float* sinks [H]   null: none
//   96  i64 q_stride_b, _h, _s   120  k_stride   144  v_stride   168  dout_stride   192  dq_stride
//  216  i64 mask_stride_b, _h, _q, _k                     0 for a broadcast axis
//  248  u32 seq_q   252  seq_k   256  num_heads   260  group (= H / Hkv)   264  head_dim   268  head_dim_v
//  272  u32 mask_kind (0 none, 1 bool, 2 float32, 3 float16, 4 bfloat16)
//  276  i32 window_left   280  window_right               -1: open; causal is folded in
//  284  f32 scale   288  f32 softcap (0: off); DROPOUT: dropout.h has three more
#include <rocattn/backward_large.h>

using namespace rocattn;

using T = DTYPE;
using Head = LargeHead<T>;

namespace {

constexpr u32 WAVES = LARGE_THREADS / WAVE;

// A row's largest score and sum, of the whole block's keys. Collective; `of_wave`: 2 * WAVES floats.
ROCATTN_INLINE Head::RowEnd end_of(const Head& head, u32 row, KeyRange keys, float sink, float* of_wave) {
    float top = -INF, total = 0.0f, unused;
    for (u32 key = keys.first + thread_id(); key < keys.stop; key += LARGE_THREADS) {
        const float score = head.score(row, key, unused);
        if (score == -INF) continue;
        if (score > top) {
            total *= exp_accurate(top - score);
            top = score;
        }
        total += exp_accurate(score - top);
    }
    const auto rebased = [](float total, float from, float to) {
        return from == -INF ? 0.0f : total * exp_accurate(from - to);
    };
    const float highest = wave_max(top), sum = wave_sum(rebased(total, top, highest));
    block_barrier();  // the waves are done with the previous row's
    if (lane_id() == 0) lds_store<float, 2>(of_wave + wave_id() * 2, Vector<float, 2>{highest, sum});
    block_barrier();
    top = sink;
    for (u32 w = 0; w < WAVES; ++w) top = __builtin_fmaxf(top, lds_load(of_wave + w * 2));
    total = rebased(1.0f, sink, top);
    for (u32 w = 0; w < WAVES; ++w) total += rebased(lds_load(of_wave + w * 2 + 1), lds_load(of_wave + w * 2), top);
    return {top, total == 0.0f ? 0.0f : 1.0f / total};
}

}  // namespace

ROCATTN_KERNEL(attention_backward_large_dq, LARGE_THREADS,
               (const T* q, const T* k, const T* v, const T* dout, const float* lse, const float* delta, float* ends,
                u32* some, T* dq, const void* mask, const float* alibi_slopes, const float* sinks, i64 q_stride_b,
                i64 q_stride_h, i64 q_stride_s, i64 k_stride_b, i64 k_stride_h, i64 k_stride_s, i64 v_stride_b,
                i64 v_stride_h, i64 v_stride_s, i64 dout_stride_b, i64 dout_stride_h, i64 dout_stride_s,
                i64 dq_stride_b, i64 dq_stride_h, i64 dq_stride_s, i64 mask_stride_b, i64 mask_stride_h,
                i64 mask_stride_q, i64 mask_stride_k, u32 seq_q, u32 seq_k, u32 num_heads, u32 group, u32 head_dim,
                u32 head_dim_v, u32 mask_kind, i32 window_left, i32 window_right, float scale, float softcap ROCATTN_DROPOUT)) {
    ROCATTN_LDS(float, weights, LARGE_THREADS);
    ROCATTN_LDS(float, of_wave, 2 * WAVES);
    const i64 b = block_z(), h = block_y(), kv_head = uniform(block_y() / group), at = b * num_heads + h;
    const Head head{q + b * q_stride_b + h * q_stride_h, k + b * k_stride_b + kv_head * k_stride_h,
                    v + b * v_stride_b + kv_head * v_stride_h, dout + b * dout_stride_b + h * dout_stride_h,
                    q_stride_s, k_stride_s, v_stride_s, dout_stride_s,
                    lse + at * seq_q, delta + at * seq_q,
                    mask, b * mask_stride_b + h * mask_stride_h, mask_stride_q, mask_stride_k,
                    mask_kind, seq_q, seq_k, head_dim, head_dim_v, window_left, window_right,
                    scale, softcap, alibi_slopes ? load(alibi_slopes + at) : 0.0f ROCATTN_DROPOUT_OF(b, h)};
    const u32 first = block_x() * LARGE_ROWS;
    const bool found = any_lane(head.is_large(first + lane_id() % LARGE_ROWS));
    if (thread_id() == 0) store(some + at * ceil_div(seq_q, LARGE_ROWS) + block_x(), static_cast<u32>(found));
    if (!found) return;
    const float sink = sinks ? load(sinks + h) : -INF;
    for (u32 row = first; row < smaller(first + LARGE_ROWS, seq_q); ++row) {
        if (!uniform(head.is_large(row))) continue;
        const KeyRange keys = head.keys(row);
        const Head::RowEnd end = end_of(head, row, keys, sink, of_wave);
        if (thread_id() == 0) store<float, 2>(ends + (at * seq_q + row) * 2, Vector<float, 2>{end.top, end.inverse});
        const u32 column = thread_id();
        float sum = 0.0f;
        for (u32 tile = keys.first; tile < keys.stop; tile += LARGE_THREADS) {
            const u32 key = tile + thread_id();
            const float ds = key < keys.stop ? head.pair(row, key, end).ds : 0.0f;
            block_barrier();  // all threads are done with the previous tile's
            lds_store(weights + thread_id(), ds);
            block_barrier();
            if (column >= head_dim) continue;
            for (u32 i = 0; i < smaller(keys.stop - tile, LARGE_THREADS); ++i) {
                const float weight = lds_load(weights + i);  // 0 for a hidden key, whatever its K
                if (weight != 0.0f)
                    sum = __builtin_fmaf(weight, to_float(load(head.k + (tile + i) * head.k_stride + column)), sum);
            }
        }
        T* out = dq + b * dq_stride_b + h * dq_stride_h + row * dq_stride_s;
        if (column < head_dim) store(out + column, from_float<T>(sum * scale));
    }
}
