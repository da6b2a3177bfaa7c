// Flash attention, forward, with every option: scale, softcap, ALiBi, mask and band (in this order), sinks.
//
//   s = softcap(scale * q.k) - slope * |i + Sk - Sq - j| + mask,   out_i = sum of exp(s - lse_i) v_j over visible keys
//
// Grid      (ceil(Sq / (16 QUERY_FRAGMENTS WAVES)), H, B): one block, one range of rows of one head, the last rows
//           first.
// Block     WAVES waves.
// Waves     Each has QUERY_FRAGMENTS * 16 query rows of its own; a block's waves share the K and V tiles.
// LDS       K tile [KEYS_PER_TILE][D], V^T tile [Dv][KEYS_PER_TILE] (gfx950: V tile as K), rows padded as in
//           fragments.h; Q if Q_IN_LDS; a word per wave. 9.6 KiB at D = 64 (19.3 with 64 keys per tile, on CDNA;
//           gfx950 20.0), 18.8 at D = 128 (19.5 on CDNA; gfx950 34.0, with the next tile).
// Registers At D = 128: O 64, Q 64, S 16, fragments 48, next tiles 16 of at most 240 VGPRs on gfx11 (16 rows per
//           wave); O 64, Q 32, S 16, next tiles 16 of at most 256 on CDNA (32 rows, wave64). No scratch, no spills.
// Layout    S^T = K Q^T, so a lane's column is a query and the softmax needs no exchange between lanes; O^T = V^T P^T
//           takes P from the registers (rocattn/flash.h; rocattn/matrix.h has the fragments of every architecture).
// Tiles     Scores are finished in natural units, so that masks down to the lowest float32 are exact. Tiles outside the
//           band are not loaded; only those at its edges need masking. A mask is read in every tile, in vectors of
//           4 to 16 bytes if its keys are contiguous.
// Numerics  Products in float32 from T; P is rounded to T (nearest) for the second product, its sum is not. P is
//           relative to a reference that lags the maximum by at most 2^8. The output is divided once and rounded once.
// Hidden    A hidden key has no influence, whatever its K and V. A row without visible keys: output 0, LSE -inf.
// Not measured on a GPU yet.
//
// Compile-time defines: DTYPE (f16, bf16, f32), HEAD_DIM and HEAD_DIM_V (padded to one of rocattn/gpu/tiles.py's),
// COLUMN_STEP (a power of two, at most 16 bytes, that divides head_dim and head_dim_v; 0: they are not padded), WAVES,
// QUERY_FRAGMENTS, KEYS_PER_TILE, SLICES, Q_IN_LDS, MIN_WAVES; XCDS (see BlockPlace); SEQUENCES, KV_DTYPE and Q_DTYPE
// (flash_sequences.h) and DROPOUT (dropout.h), which add arguments.
//
// Kernel arguments (240 bytes, no hidden ones); T is DTYPE, strides are in elements, the last is 1:
//    0  const T* q [B, H, Sq, D]       8  const T* k [B, Hkv, Sk, D]      16  const T* v [B, Hkv, Sk, Dv]
//   24  T* out [B, H, Sq, Dv]         32  float* lse [B, H, Sq] contiguous, natural log; null: not written
//   40  const void* mask, by its strides broadcast to [B, H, Sq, Sk]
//   48  const float* alibi_slopes [B, H] contiguous, or null      56  const float* sinks [H], or null
//   64  i64 q_stride_b, _h, _s        88  k_stride_b, _h, _s  112  v_stride_b, _h, _s   136  out_stride_b, _h, _s
//  160  i64 mask_stride_b, _h, _q, _k (0: broadcast)
//  192  u32 seq_q   196  seq_k   200  num_heads   204  group (H / Hkv)   208  head_dim   212  head_dim_v   216  batch
//  220  u32 mask_kind: 0 none, 1 bool bytes, 2 float32, 3 float16, 4 bfloat16
//  224  i32 window_left   228  window_right: the band, causal folded in; -1: open
//  232  f32 scale (any)   236  softcap (0: off)
#include <rocattn/flash_prefill.h>
#include <rocattn/flash_scores.h>

using namespace rocattn;

using Shape = FlashShape<DTYPE, HEAD_DIM, HEAD_DIM_V, WAVES, QUERY_FRAGMENTS, KEYS_PER_TILE, SLICES, Q_IN_LDS,
                         COLUMN_STEP, true>;

ROCATTN_KERNEL(flash_attention, WAVES* ROCATTN_WAVE,
               (const StoredQ<DTYPE>* q, const Stored<DTYPE>* k, const Stored<DTYPE>* v, DTYPE* out, float* lse,
                const void* mask, const float* alibi_slopes, const float* sinks, i64 q_stride_b, i64 q_stride_h,
                i64 q_stride_s, i64 k_stride_b, i64 k_stride_h, i64 k_stride_s, i64 v_stride_b, i64 v_stride_h,
                i64 v_stride_s, i64 out_stride_b, i64 out_stride_h, i64 out_stride_s, i64 mask_stride_b,
                i64 mask_stride_h, i64 mask_stride_q, i64 mask_stride_k, u32 seq_q, u32 seq_k, u32 num_heads,
                u32 group, u32 head_dim, u32 head_dim_v, u32 batch, u32 mask_kind, i32 window_left, i32 window_right,
                f32 scale, f32 softcap ROCATTN_SEQUENCES ROCATTN_SCALES ROCATTN_DROPOUT)) {
    ROCATTN_LDS(Shape::Element, lds, Shape::FIRST_ELEMENTS);
    ROCATTN_LDS(Shape::Element, next_lds, Shape::NEXT_ELEMENTS);
    ROCATTN_LDS(u32, flags, WAVES);
    ROCATTN_PLACE_BLOCK();
    const FlashArguments<DTYPE> arguments{q, k, v, out, lse,
                                          {ROCATTN_BATCH_STRIDE(q), q_stride_h, q_stride_s},
                                          {ROCATTN_BATCH_STRIDE(k), k_stride_h, k_stride_s},
                                          {ROCATTN_BATCH_STRIDE(v), v_stride_h, v_stride_s},
                                          {ROCATTN_BATCH_STRIDE(out), out_stride_h, out_stride_s},
                                          seq_q, seq_k, num_heads, group, head_dim, head_dim_v ROCATTN_OF_SEQUENCE,
                                          ROCATTN_SCALE(v_scale, place.batch, scalar(place.head / group)) * ROCATTN_KEEP_FACTOR};
    ScoreOptions options{mask, mask_stride_k, mask_kind, window_left, window_right,
                         scale * ROCATTN_SCORE_SCALE(place.batch, scalar(place.head / group)), softcap, seq_q, seq_k};
    options.settle(alibi_slopes != nullptr);
    // With a band, the last rows usually see the most keys: their blocks start first.
    const QueryRows<Shape> rows(tiles - 1 - place.tile);
    const BandRange block(options, rows.first, smaller(rows.first + Shape::BLOCK_ROWS, seq_q) - 1);
    const BandRange wave(options, rows.wave_first, rows.wave_first + Shape::WAVE_ROWS - 1);
    OptionScores<Shape> scores{options, block, wave, {} ROCATTN_DROPOUT_OF(place.batch, place.head)};
    const float slope = alibi_slopes ? load(alibi_slopes + place.batch * num_heads + place.head) : 0.0f;
#pragma unroll
    for (u32 i = 0; i < QUERY_FRAGMENTS; ++i) {
        const u32 row = smaller(rows.lane_row(i), seq_q - 1);
        scores.row[i] = {options.first_key(row), options.last_key(row), options.diagonal(row), slope,
                         place.batch * mask_stride_b + place.head * mask_stride_h + row * mask_stride_q};
    }
    const bool any = block.any_first <= block.any_last;
    const u32 first = any ? static_cast<u32>(block.any_first) / KEYS_PER_TILE : 0;
    const u32 stop = any ? static_cast<u32>(block.any_last) / KEYS_PER_TILE + 1 : 0;
    const float sink = sinks ? load(sinks + place.head) : -INF;
    flash_prefill<Shape>(arguments, place, rows, scores, first, stop, sink, lds, next_lds, flags);
}
