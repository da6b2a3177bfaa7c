// The backward pass of attention with respect to Q. Not measured on a GPU yet.
//
//   dq[i] = scale * sum over keys j of dS[i, j] k[j]   (backward.h has the whole derivation)
//
// Grid      (query tiles, H, B); the last query tiles, which a causal mask makes the longest, come first.
// Block     WAVES waves; teams of TEAM_WAVES waves share 16 ROW_BLOCKS queries, each wave with a part of the features.
// LDS       K, V and K^T of STREAM_ROWS keys, at once or in two phases, and data exchanged within a team: 7.6 to
//           48.5 KiB.
// Masks     tiles without a visible pair are skipped, by the block or (in one phase) by a wave; options and edges cost
//           time only in the tiles they affect. P = dS = 0 for a hidden pair whatever the values of q, k, v, dO there.
// Registers no VGPR spills and no scratch (checked by tests/kernels); on gfx9 some SGPRs spill to lanes of VGPRs. Q, dO
//           and the sums of a wave's features W = D / TEAM_WAVES stay in registers; the sums are W floats per
//           query: W / 2 VGPRs on wave32, W / 4 on wave64, per 16 queries.
// Memory    16-byte loads; the next tile is loaded into registers (16 bits) while one is used. Q and dO are read
//           once, K and V once per query tile; dQ is written once.
// Numerics  products in DTYPE on the matrix units (float32: fused multiply-adds), sums in float32, P and dS rounded to
//           DTYPE for the second product of each; exp2, with scale * log2 e folded in where scores have no options.
//
// Compile-time defines (rocattn/gpu/backward.py chooses): DTYPE (f16, bf16, f32), HEAD_DIM (D and Dv, padded), WAVES,
// TEAM_WAVES (waves that share queries), ROW_BLOCKS (16 queries each that they share), STREAM_ROWS (keys in LDS at a
// time), TWO_PHASES (first stored as they are, then transposed), PLAIN_SCORES (1: no mask, softcap or ALiBi,
// and D = Dv = HEAD_DIM), optionally MIN_WAVES.
//
// Kernel arguments (268 bytes, no hidden ones):
//    0  const DTYPE* q   8  k   16  v   24  dout         by strides
//   32  const float* lse      40  const float* delta      [B, H, Sq], contiguous
//   48  DTYPE* dq                                         by strides
//   56  const void* mask      64  const float* alibi_slopes ([B, H], contiguous)      null: none
//   72  i64 q_stride_b, _h, _s   96  k_stride   120  v_stride   144  dout_stride   168  dq_stride
//  192  i64 mask_stride_b, _h, _q, _k                     0 for a broadcast axis
//  224  u32 seq_q   228  seq_k   232  num_heads   236  group (= H / Hkv)   240  head_dim   244  head_dim_v
//  248  u32 mask_kind (0 none, 1 bool, 2 float32, 3 float16, 4 bfloat16)
//  252  i32 window_left   256  window_right               -1: open; causal is folded in
//  260  f32 scale   264  f32 softcap (0: off); DROPOUT: dropout.h has three more
#include <rocattn/backward.h>

using namespace rocattn;

using T = DTYPE;
using Shape = BackwardShape<T, HEAD_DIM, WAVES, TEAM_WAVES, ROW_BLOCKS, STREAM_ROWS, TWO_PHASES, false, PLAIN_SCORES>;

ROCATTN_KERNEL(attention_backward_dq, Shape::THREADS,
               (const T* q, const T* k, const T* v, const T* dout, const float* lse, const float* delta, T* dq,
                const void* mask, const float* alibi_slopes, i64 q_stride_b, i64 q_stride_h, i64 q_stride_s,
                i64 k_stride_b, i64 k_stride_h, i64 k_stride_s, i64 v_stride_b, i64 v_stride_h, i64 v_stride_s,
                i64 dout_stride_b, i64 dout_stride_h, i64 dout_stride_s, i64 dq_stride_b, i64 dq_stride_h,
                i64 dq_stride_s, i64 mask_stride_b, i64 mask_stride_h, i64 mask_stride_q, i64 mask_stride_k, u32 seq_q,
                u32 seq_k, u32 num_heads, u32 group, u32 head_dim, u32 head_dim_v, u32 mask_kind, i32 window_left,
                i32 window_right, float scale, float softcap ROCATTN_DROPOUT)) {
    ROCATTN_LDS(Shape::Element, tiles, Shape::LDS_ELEMENTS);
    ROCATTN_LDS(float, floats, Shape::LDS_FLOATS);
    const u32 blocks = ceil_div(seq_q, Shape::RESIDENT), h = block_y(), b = block_z();
    const u32 first_query = (blocks - 1 - block_x()) * Shape::RESIDENT, kv_head = uniform(h / group);
    const i64 head = static_cast<i64>(b) * num_heads + h;
    const BackwardBlock<Shape> block{first_query, seq_q, head_dim, head_dim_v, tiles, floats, nullptr};
    Backward<Shape> backward(block);
    backward.load_resident({q + b * q_stride_b + h * q_stride_h, q_stride_s},
                           {dout + b * dout_stride_b + h * dout_stride_h, dout_stride_s});
    const BackwardScores<PLAIN_SCORES> scores{mask,          b * mask_stride_b + h * mask_stride_h,
                                mask_stride_q, mask_stride_k,
                                mask_kind,     scale,
                                softcap,       alibi_slopes ? load(alibi_slopes + head) : 0.0f,
                                seq_q,         seq_k,
                                window_left,   window_right ROCATTN_DROPOUT_OF(b, h)};
    backward.load_statistics(scores, lse + head * seq_q, delta + head * seq_q);
    // The keys that any query of the block sees.
    const i64 shift = static_cast<i64>(seq_k) - seq_q, last_query = smaller(first_query + Shape::RESIDENT, seq_q) - 1;
    i64 start = window_left < 0 ? 0 : first_query + shift - window_left;
    i64 stop = window_right < 0 ? seq_k : last_query + shift + window_right + 1;
    start = start < 0 ? 0 : start / Shape::STREAMED_ROWS * Shape::STREAMED_ROWS;
    stop = stop > seq_k ? seq_k : stop;
    if (start < stop)
        backward.run(scores, {k + b * k_stride_b + kv_head * k_stride_h, k_stride_s},
                     {v + b * v_stride_b + kv_head * v_stride_h, v_stride_s}, nullptr, nullptr,
                     static_cast<u32>(start), static_cast<u32>(stop), seq_k);
    backward.write_first(dq + b * dq_stride_b + h * dq_stride_h, dq_stride_s, scale);
}
