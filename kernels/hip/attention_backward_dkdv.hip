// The backward pass of attention with respect to K and V. Not measured on a GPU yet.
//
//   dv[j] = sum over rows i of P[i, j] dout[i],  dk[j] = scale * sum over rows i of dS[i, j] q[i]
//   over the query rows of all heads that share the KV head (backward.h has the whole derivation)
//
// Grid      (key tiles, Hkv, B); the first key tiles, which a causal mask makes the longest, come first.
// Block     WAVES waves; teams of TEAM_WAVES waves share 16 ROW_BLOCKS keys, each wave with a part of the features.
// LDS       Q, dO, Q^T and dO^T of STREAM_ROWS queries, at once or in two phases, LSE and delta, and data exchanged
//           within a team: 5.6 to 60.8 KiB.
// Masks     tiles without a visible pair are skipped, by the block or (in one phase) by a wave; options and edges cost
//           time only in the tiles they affect. P = dS = 0 for a hidden pair whatever the values of q, k, v, dO there.
// Registers no VGPR spills and no scratch (checked by tests/kernels); some SGPRs spill to lanes of VGPRs. K, V and the
//           sums of a wave's features W = D / TEAM_WAVES stay in registers; the sums are 2 W floats for each of its
//           keys: W VGPRs on wave32, W / 2 on wave64, per 16 keys.
// Memory    16-byte loads; the next tile is loaded into registers (16 bits) while one is used. K and V are read once,
//           Q and dO once per key tile and group; dK and dV are written once.
// Numerics  products in DTYPE on the matrix units (float32: fused multiply-adds), sums in float32, P and dS rounded to
//           DTYPE for the second product of each; exp2, with scale * log2 e folded in where scores have no options.
//
// Compile-time defines (rocattn/gpu/backward.py chooses): DTYPE (f16, bf16, f32), HEAD_DIM (D and Dv, padded), WAVES,
// TEAM_WAVES (waves that share keys), ROW_BLOCKS (16 keys each that they share), STREAM_ROWS (queries in LDS at a
// time), TWO_PHASES (first stored as they are, then transposed), PLAIN_SCORES (1: no mask, softcap or ALiBi,
// and D = Dv = HEAD_DIM), optionally MIN_WAVES.
//
// Kernel arguments (300 bytes, no hidden ones):
//    0  const DTYPE* q   8  k   16  v   24  dout         by strides
//   32  const float* lse      40  const float* delta      [B, H, Sq], contiguous
//   48  DTYPE* dk   56  dv                                by strides
//   64  const void* mask      72  const float* alibi_slopes ([B, H], contiguous)      null: none
//   80  i64 q_stride_b, _h, _s   104  k_stride   128  v_stride   152  dout_stride   176  dk_stride   200  dv_stride
//  224  i64 mask_stride_b, _h, _q, _k                     0 for a broadcast axis
//  256  u32 seq_q   260  seq_k   264  num_heads   268  group (= H / Hkv)   272  head_dim   276  head_dim_v
//  280  u32 mask_kind (0 none, 1 bool, 2 float32, 3 float16, 4 bfloat16)
//  284  i32 window_left   288  window_right               -1: open; causal is folded in
//  292  f32 scale   296  f32 softcap (0: off); DROPOUT: dropout.h has three more
#include <rocattn/backward.h>

using namespace rocattn;

using T = DTYPE;
using Shape = BackwardShape<T, HEAD_DIM, WAVES, TEAM_WAVES, ROW_BLOCKS, STREAM_ROWS, TWO_PHASES, true, PLAIN_SCORES>;

ROCATTN_KERNEL(attention_backward_dkdv, Shape::THREADS,
               (const T* q, const T* k, const T* v, const T* dout, const float* lse, const float* delta, T* dk, T* dv,
                const void* mask, const float* alibi_slopes, i64 q_stride_b, i64 q_stride_h, i64 q_stride_s,
                i64 k_stride_b, i64 k_stride_h, i64 k_stride_s, i64 v_stride_b, i64 v_stride_h, i64 v_stride_s,
                i64 dout_stride_b, i64 dout_stride_h, i64 dout_stride_s, i64 dk_stride_b, i64 dk_stride_h,
                i64 dk_stride_s, i64 dv_stride_b, i64 dv_stride_h, i64 dv_stride_s, i64 mask_stride_b,
                i64 mask_stride_h, i64 mask_stride_q, i64 mask_stride_k, u32 seq_q, u32 seq_k, u32 num_heads, u32 group,
                u32 head_dim, u32 head_dim_v, u32 mask_kind, i32 window_left, i32 window_right, float scale,
                float softcap ROCATTN_DROPOUT)) {
    ROCATTN_LDS(Shape::Element, tiles, Shape::LDS_ELEMENTS);
    ROCATTN_LDS(float, floats, Shape::LDS_FLOATS);
    ROCATTN_LDS(u32, flags, WAVES);
    const u32 first_key = block_x() * Shape::RESIDENT, kv_head = block_y(), b = block_z();
    const BackwardBlock<Shape> block{first_key, seq_k, head_dim, head_dim_v, tiles, floats, flags};
    Backward<Shape> backward(block);
    backward.load_resident({k + b * k_stride_b + kv_head * k_stride_h, k_stride_s},
                           {v + b * v_stride_b + kv_head * v_stride_h, v_stride_s});
    // The queries that see any key of the block.
    const i64 shift = static_cast<i64>(seq_k) - seq_q, last_key = smaller(first_key + Shape::RESIDENT, seq_k) - 1;
    i64 start = window_right < 0 ? 0 : first_key - shift - window_right;
    i64 stop = window_left < 0 ? seq_q : last_key - shift + window_left + 1;
    start = start < 0 ? 0 : start / Shape::STREAMED_ROWS * Shape::STREAMED_ROWS;
    stop = stop > seq_q ? seq_q : stop;
    if (start < stop) {
        for (u32 h = kv_head * group; h < (kv_head + 1) * group; ++h) {
            const i64 head = static_cast<i64>(b) * num_heads + h;
            const BackwardScores<PLAIN_SCORES> scores{mask,          b * mask_stride_b + h * mask_stride_h,
                                        mask_stride_q, mask_stride_k,
                                        mask_kind,     scale,
                                        softcap,       alibi_slopes ? load(alibi_slopes + head) : 0.0f,
                                        seq_q,         seq_k,
                                        window_left,   window_right ROCATTN_DROPOUT_OF(b, h)};
            backward.run(scores, {q + b * q_stride_b + h * q_stride_h, q_stride_s},
                         {dout + b * dout_stride_b + h * dout_stride_h, dout_stride_s}, lse + head * seq_q,
                         delta + head * seq_q, static_cast<u32>(start), static_cast<u32>(stop), seq_q);
        }
    }
    backward.write_first(dk + b * dk_stride_b + kv_head * dk_stride_h, dk_stride_s, scale);
    backward.write_second(dv + b * dv_stride_b + kv_head * dv_stride_h, dv_stride_s, ROCATTN_KEEP_FACTOR);
}
