// The backward pass with respect to K and V: adds the contribution of rows with a large LSE (|LSE| > 2^14), which
// attention_backward_dkdv leaves out. Returns at once if there are none. Not measured on a GPU yet.
//
//   dv[j] += sum over such rows i of P[i, j] dout[i],  dk[j] += scale * sum of dS[i, j] q[i]
//   over the query rows of all heads that share the KV head (backward.h has the whole derivation)
//
// Grid      (ceil(Sk / 16), Hkv, B): 16 keys per block. Runs after attention_backward_large_dq, which marks these
//           rows, and attention_backward_dkdv.
// Block     256 threads: one per pair of 16 rows and 16 keys for P and dS, one per feature, for all keys, for dK and
//           dV.
// LDS       2048 bytes: P and dS of 16 rows.
// Registers At most 120 VGPRs, 32 for the sums of a feature; no VGPR spills and no scratch (checked by
//           tests/kernels); some SGPRs spill to lanes of VGPRs.
// Memory    A word per 32 rows of the group's heads. For a large row, the block's K and V rows, Q and dO; dK and dV
//           are read and written once.
// Numerics  Float32 throughout, from T; the sum is added to the stored value and rounded to DTYPE again. No atomics:
//           the result is bitwise reproducible.
//
// Compile-time define: DTYPE (f16, bf16, f32). D and Dv are arguments: any up to 256.
//
// Kernel arguments (316 bytes, no hidden ones):
//    0  const DTYPE* q   8  k   16  v   24  dout         by strides
//   32  const float* lse      40  const float* delta      [B, H, Sq], contiguous
//   48  const float* ends [B, H, Sq, 2]: top and 1 / total     56  const u32* some [B, H, ceil(Sq / 32)]   contiguous
//   64  DTYPE* dk   72  dv                                by strides
//   80  const void* mask      88  const float* alibi_slopes ([B, H], contiguous)      null: none
//   96  i64 q_stride_b, _h, _s   120  k_stride   144  v_stride   168  dout_stride   192  dk_stride   216  dv_stride
//  240  i64 mask_stride_b, _h, _q, _k                     0 for a broadcast axis
//  272  u32 seq_q   276  seq_k   280  num_heads   284  group (= H / Hkv)   288  head_dim   292  head_dim_v
//  296  u32 mask_kind (0 none, 1 bool, 2 float32, 3 float16, 4 bfloat16)
//  300  i32 window_left   304  window_right               -1: open; causal is folded in
//  308  f32 scale   312  f32 softcap (0: off); DROPOUT: dropout.h has three more
#include <rocattn/backward_large.h>

using namespace rocattn;

using T = DTYPE;
using Head = LargeHead<T>;

namespace {

constexpr u32 KEYS = 16, ROWS = LARGE_THREADS / KEYS;  // of a block, and of one step

// Adds the sum of one feature to an element of dK or dV, which already has the other rows' sum.
ROCATTN_INLINE void add_to(T* element, float sum) { store(element, from_float<T>(to_float(load(element)) + sum)); }

}  // namespace

ROCATTN_KERNEL(attention_backward_large_dkdv, LARGE_THREADS,
               (const T* q, const T* k, const T* v, const T* dout, const float* lse, const float* delta,
                const float* ends, const u32* some, T* dk, T* dv, const void* mask, const float* alibi_slopes,
                i64 q_stride_b, i64 q_stride_h, i64 q_stride_s, i64 k_stride_b, i64 k_stride_h, i64 k_stride_s,
                i64 v_stride_b, i64 v_stride_h, i64 v_stride_s, i64 dout_stride_b, i64 dout_stride_h,
                i64 dout_stride_s, i64 dk_stride_b, i64 dk_stride_h, i64 dk_stride_s, i64 dv_stride_b,
                i64 dv_stride_h, i64 dv_stride_s, i64 mask_stride_b, i64 mask_stride_h, i64 mask_stride_q,
                i64 mask_stride_k, u32 seq_q, u32 seq_k, u32 num_heads, u32 group, u32 head_dim, u32 head_dim_v,
                u32 mask_kind, i32 window_left, i32 window_right, float scale, float softcap ROCATTN_DROPOUT)) {
    ROCATTN_LDS(float, probabilities, LARGE_THREADS);
    ROCATTN_LDS(float, derivatives, LARGE_THREADS);
    const i64 b = block_z(), kv_head = block_y();
    const u32 first_head = block_y() * group, words = ceil_div(seq_q, LARGE_ROWS), first_key = block_x() * KEYS;
    const u32* some_of_group = some + (b * num_heads + first_head) * words;
    u32 found = 0;
    for (u32 i = lane_id(); i < group * words; i += WAVE) found |= load(some_of_group + i);
    if (!any_lane(found != 0)) return;

    const u32 column = thread_id(), my_row = thread_id() / KEYS, my_key = first_key + thread_id() % KEYS;
    float dk_sum[KEYS] = {}, dv_sum[KEYS] = {};
    for (u32 word = 0; word < group * words; ++word) {
        if (!uniform(load(some_of_group + word))) continue;
        const i64 h = first_head + word / words, at = b * num_heads + h;
        const Head head{q + b * q_stride_b + h * q_stride_h, k + b * k_stride_b + kv_head * k_stride_h,
                        v + b * v_stride_b + kv_head * v_stride_h, dout + b * dout_stride_b + h * dout_stride_h,
                        q_stride_s, k_stride_s, v_stride_s, dout_stride_s,
                        lse + at * seq_q, delta + at * seq_q,
                        mask, b * mask_stride_b + h * mask_stride_h, mask_stride_q, mask_stride_k,
                        mask_kind, seq_q, seq_k, head_dim, head_dim_v, window_left, window_right,
                        scale, softcap, alibi_slopes ? load(alibi_slopes + at) : 0.0f ROCATTN_DROPOUT_OF(b, h)};
        const u32 first = word % words * LARGE_ROWS;
        for (u32 step = first; step < smaller(first + LARGE_ROWS, seq_q); step += ROWS) {
            const u32 row = step + my_row;
            Head::Pair pair{0.0f, 0.0f};
            if (head.is_large(row)) {
                const KeyRange keys = head.keys(row);
                const auto end = load<float, 2>(ends + (at * seq_q + row) * 2);
                if (my_key >= keys.first && my_key < keys.stop) pair = head.pair(row, my_key, {end[0], end[1]});
            }
            block_barrier();  // all threads are done with the previous step's
            lds_store(probabilities + thread_id(), pair.p);
            lds_store(derivatives + thread_id(), pair.ds);
            block_barrier();
            for (u32 r = 0; r < ROWS; ++r) {
                if (!uniform(head.is_large(step + r))) continue;
                const T *q_row = head.q + (step + r) * q_stride_s, *dout_row = head.dout + (step + r) * dout_stride_s;
                const float feature = column < head_dim ? to_float(load(q_row + column)) : 0.0f;
                const float value = column < head_dim_v ? to_float(load(dout_row + column)) : 0.0f;
#pragma unroll
                for (u32 i = 0; i < KEYS; ++i) {  // 0 for a hidden pair, whatever the values of Q and dO
                    const float ds = lds_load(derivatives + r * KEYS + i), p = lds_load(probabilities + r * KEYS + i);
                    dk_sum[i] = ds != 0.0f ? __builtin_fmaf(ds, feature, dk_sum[i]) : dk_sum[i];
                    dv_sum[i] = p != 0.0f ? __builtin_fmaf(p, value, dv_sum[i]) : dv_sum[i];
                    settle(dv_sum[i]);  // otherwise all comparisons come first, each in two SGPRs
                }
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < KEYS; ++i) {
        if (first_key + i >= seq_k) continue;
        const i64 key = first_key + i;
        if (column < head_dim)
            add_to(dk + b * dk_stride_b + kv_head * dk_stride_h + key * dk_stride_s + column, dk_sum[i] * scale);
        if (column < head_dim_v)
            add_to(dv + b * dv_stride_b + kv_head * dv_stride_h + key * dv_stride_s + column, dv_sum[i]);
    }
}
