// Flash attention, forward, every row sees every key: out = softmax(scale * q k^T) v.
//
// Grid      (ceil(Sq / (16 QUERY_FRAGMENTS WAVES)), H, B): one block, one range of rows of one head.
// Block     WAVES waves.
// Waves     Each has QUERY_FRAGMENTS * 16 query rows of its own; a block's waves share the K and V tiles.
// LDS       K tile [KEYS_PER_TILE][D], V^T tile [Dv][KEYS_PER_TILE] (gfx950: V tile as K), rows padded as in
//           fragments.h; Q if Q_IN_LDS; a word per wave. 9.6 KiB at D = 64 (19.3 with 64 keys per tile, on CDNA;
//           gfx950 20.0), 34.0 at D = 128 (gfx12 51.0; 36.5 on CDNA; gfx950 96.0, with the next two tiles, or 36.0
//           with pages; gfx942 28.5, with the next tile of K, or 36.5 with pages).
// Registers At D = 128: O 64, Q 64, S 16, fragments 48, next tiles 16 of at most 240 VGPRs on gfx11 (16 rows per
//           wave); O 64, Q 32, S 32, fragments 32, next tiles 16 (gfx950: in LDS) of at most 256 on CDNA (32 rows,
//           wave64); gfx942 without pages: O 96, Q 48, S 24, fragments 32, next tile of V 8 (48 rows). No scratch, no
//           spills.
// Layout    S^T = K Q^T, so a lane's column is a query and the softmax needs no exchange between lanes; O^T = V^T P^T
//           takes P from the registers (rocattn/flash.h; rocattn/matrix.h has the fragments of every architecture).
// Tiles     All but the last are full and run without any masking.
// Numerics  Products in float32 from T; P is rounded to T (nearest) for the second product, its sum is not. P is
//           relative to a reference that lags the maximum by at most 2^8. The output is divided once and rounded once.
// Hidden    A hidden key has no influence, whatever its K and V. A row without visible keys: output 0, LSE -inf.
// Not measured on a GPU yet.
//
// Compile-time defines: DTYPE (f16, bf16, f32), HEAD_DIM and HEAD_DIM_V (padded to one of rocattn/gpu/tiles.py's),
// COLUMN_STEP (a power of two, at most 16 bytes, that divides head_dim and head_dim_v; 0: they are not padded), WAVES,
// QUERY_FRAGMENTS, KEYS_PER_TILE, KEY_PARTS, SLICES, Q_IN_LDS, MIN_WAVES; XCDS (see BlockPlace).
//
// Kernel arguments (168 bytes, no hidden ones); T is DTYPE, strides are in elements, the last is 1:
//    0  const T* q [B, H, Sq, D]       8  const T* k [B, Hkv, Sk, D]      16  const T* v [B, Hkv, Sk, Dv]
//   24  T* out [B, H, Sq, Dv]         32  float* lse [B, H, Sq] contiguous, natural log; null: not written
//   40  i64 q_stride_b, _h, _s        64  k_stride_b, _h, _s   88  v_stride_b, _h, _s   112  out_stride_b, _h, _s
//  136  u32 seq_q   140  seq_k   144  num_heads   148  group (H / Hkv)   152  head_dim   156  head_dim_v
//  160  u32 batch   164  f32 scale_log2: scale * log2 e, greater than 0
#include <rocattn/flash_prefill.h>

using namespace rocattn;

using Shape = FlashShape<DTYPE, HEAD_DIM, HEAD_DIM_V, WAVES, QUERY_FRAGMENTS, KEYS_PER_TILE, SLICES, Q_IN_LDS,
                         COLUMN_STEP, true, KEY_PARTS>;

namespace {

// Every row sees every key; the last tile may extend past the last key.
struct AllKeys {
    static constexpr bool PLAIN = true;
    float scale_log2;
    u32 seq_k;

    ROCATTN_INLINE float scale() const { return scale_log2; }
    ROCATTN_INLINE bool block_hides(u32 key) const { return key + KEYS_PER_TILE > seq_k; }
    ROCATTN_INLINE bool wave_sees(u32) const { return true; }
    ROCATTN_INLINE bool sees(u32, u32) const { return true; }
    template <typename S>
    ROCATTN_INLINE void apply(u32, Shape::M::C (&s)[S::PART_FRAGMENTS], u32 key) const {
        if (key + S::PART_KEYS > seq_k) hide_after<S>(s, key, static_cast<i32>(seq_k) - 1);
    }
};

}  // namespace

ROCATTN_KERNEL(flash_attention_nocausal, WAVES* ROCATTN_WAVE,
               (const DTYPE* q, const DTYPE* k, const DTYPE* v, DTYPE* out, float* lse, i64 q_stride_b, i64 q_stride_h,
                i64 q_stride_s, i64 k_stride_b, i64 k_stride_h, i64 k_stride_s, i64 v_stride_b, i64 v_stride_h,
                i64 v_stride_s, i64 out_stride_b, i64 out_stride_h, i64 out_stride_s, u32 seq_q, u32 seq_k,
                u32 num_heads, u32 group, u32 head_dim, u32 head_dim_v, u32 batch, f32 scale_log2 ROCATTN_SEQUENCES)) {
    ROCATTN_LDS(Shape::Element, lds, Shape::FIRST_ELEMENTS);
    ROCATTN_LDS(Shape::Element, next_lds, Shape::NEXT_ELEMENTS);
    ROCATTN_LDS(u32, flags, WAVES);
    ROCATTN_PLACE_BLOCK();
    const FlashArguments<DTYPE> arguments{q, k, v, out, lse,
                                          {ROCATTN_BATCH_STRIDE(q), q_stride_h, q_stride_s},
                                          {ROCATTN_BATCH_STRIDE(k), k_stride_h, k_stride_s},
                                          {ROCATTN_BATCH_STRIDE(v), v_stride_h, v_stride_s},
                                          {ROCATTN_BATCH_STRIDE(out), out_stride_h, out_stride_s},
                                          seq_q, seq_k, num_heads, group, head_dim, head_dim_v ROCATTN_OF_SEQUENCE};
    const QueryRows<Shape> rows(place.tile);
    const AllKeys scores{scale_log2, seq_k};
    flash_prefill<Shape>(arguments, place, rows, scores, 0, ceil_div(seq_k, KEYS_PER_TILE), -INF, lds, next_lds, flags);
}
