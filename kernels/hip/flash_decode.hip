// Flash attention, forward, for few query rows and many keys: one piece of the keys (a split), for
// flash_decode_combine. All options but sinks, which the combination adds.
//
// Grid      (splits, Hkv * row tiles, B); the rows of a KV head's group, Sq of each head, are packed into row tiles of
//           16, so that K and V are read once for the group.
// Block     One wave. Waves would not share anything: each row tile is 16 rows, and a wave has a key tile in LDS and
//           the next one on its way into registers (16 KiB at D = 128 on CDNA, 8 KiB on RDNA). Three such blocks a CU
//           of 64 KiB LDS, eight a WGP, keep 48 KiB and 64 KiB in flight, where latency times bandwidth asks for about
//           17 and 16. One wave needs no barrier and no merge; the grid has enough blocks instead
//           (rocattn/gpu/flash.py).
// LDS       As flash_attention: 18.8 KiB at D = 128 on CDNA; 14.8 KiB on RDNA (16 keys a tile, Q in LDS).
// Registers At most 256 VGPRs on RDNA; LDS limits the waves before registers do.
// Layout    As flash_attention, through the same core.
// Writes    Normalised rows, their references and sums in float32; a split that a row sees nothing of gives zeros and
//           a reference of -inf.
// Numerics  Products in float32 from T; P is rounded to T (nearest) for the second product, its sum is not. P is
//           relative to a reference that lags the maximum by at most 2^8. The output is divided once and rounded once.
// Hidden    A hidden key has no influence, whatever its K and V hold. A row that sees nothing: output 0, LSE -inf.
// Not measured on a GPU yet.
//
// Compile-time defines: DTYPE (f16, bf16, f32), HEAD_DIM and HEAD_DIM_V (padded to one of rocattn/gpu/tiles.py's),
// COLUMN_STEP (a power of two, at most 16 bytes, that divides head_dim and head_dim_v; 0: they are just those), WAVES,
// QUERY_FRAGMENTS, KEYS_PER_TILE, SLICES, Q_IN_LDS, MIN_WAVES.
//
// Kernel arguments (212 bytes, no hidden ones); T is DTYPE, strides are in elements, the last is 1:
//    0  const T* q [B, H, Sq, D]       8  const T* k [B, Hkv, Sk, D]      16  const T* v [B, Hkv, Sk, Dv]
//   24  float* partial_out [splits, B, H, Sq, Dv]   32  float* partial_ends [splits, B, H, Sq, 2]: reference and sum;
//       both contiguous
//   40  const void* mask, by its strides broadcast to [B, H, Sq, Sk]
//   48  const float* alibi_slopes [B, H] contiguous, or null
//   56  i64 q_stride_b, _h, _s        80  k_stride_b, _h, _s  104  v_stride_b, _h, _s
//  128  i64 mask_stride_b, _h, _q, _k (0: broadcast)
//  160  u32 seq_q   164  seq_k   168  num_heads   172  group (H / Hkv)   176  head_dim   180  head_dim_v
//  184  u32 mask_kind: 0 none, 1 bool bytes, 2 float32, 3 float16, 4 bfloat16
//  188  u32 keys_per_split (a multiple of KEYS_PER_TILE)   192  u32 batch
//  196  i32 window_left   200  window_right: the band, causal folded in; -1: open
//  204  f32 scale (any)   208  softcap (0: off)
#include <rocattn/flash_scores.h>

using namespace rocattn;

using Shape = FlashShape<DTYPE, HEAD_DIM, HEAD_DIM_V, 1, QUERY_FRAGMENTS, KEYS_PER_TILE, SLICES, Q_IN_LDS,
                         COLUMN_STEP>;

ROCATTN_KERNEL(flash_decode, ROCATTN_WAVE,
               (const DTYPE* q, const DTYPE* k, const DTYPE* v, float* partial_out, float* partial_ends,
                const void* mask, const float* alibi_slopes, i64 q_stride_b, i64 q_stride_h, i64 q_stride_s,
                i64 k_stride_b, i64 k_stride_h, i64 k_stride_s, i64 v_stride_b, i64 v_stride_h, i64 v_stride_s,
                i64 mask_stride_b, i64 mask_stride_h, i64 mask_stride_q, i64 mask_stride_k, u32 seq_q, u32 seq_k,
                u32 num_heads, u32 group, u32 head_dim, u32 head_dim_v, u32 mask_kind, u32 keys_per_split, u32 batch,
                i32 window_left, i32 window_right,
                f32 scale, f32 softcap)) {
    ROCATTN_LDS(Shape::Element, lds, Shape::LDS_ELEMENTS);
    ROCATTN_LDS(u32, flags, 1);
    const u32 packed_rows = group * seq_q, row_tiles = ceil_div(packed_rows, Shape::BLOCK_ROWS);
    const u32 kv_head = scalar(block_y() / row_tiles);
    const u32 first_row = (block_y() - kv_head * row_tiles) * Shape::BLOCK_ROWS;
    const i64 b = block_z();
    const FlashBlock<Shape> block{{k + b * k_stride_b + kv_head * k_stride_h, k_stride_s},
                                  {v + b * v_stride_b + kv_head * v_stride_h, v_stride_s},
                                  seq_k, head_dim, head_dim_v, lds, flags};
    // Packed row r is row r % Sq of head r / Sq of the group.
    const auto head_of = [&](u32 packed) { return kv_head * group + packed / seq_q; };

    ScoreOptions options{mask, mask_stride_k, mask_kind, window_left, window_right,
                               scale, softcap, seq_q, seq_k};
    options.settle(alibi_slopes != nullptr);
    const BandRange band(options, 0, seq_q - 1);
    OptionScores<Shape> scores{options, band, band, {}};
    u32 out_rows[QUERY_FRAGMENTS];  // of the partial results; ~0: none
#pragma unroll
    for (u32 i = 0; i < QUERY_FRAGMENTS; ++i) {
        const u32 packed = first_row + 16 * i + Shape::M::column();
        const u32 at = smaller(packed, packed_rows - 1), row = at % seq_q, head = head_of(at);
        // Rather than all it is computed from. All rows with their features take 4 GiB long before it overflows.
        out_rows[i] = packed < packed_rows ? ((block_x() * batch + block_z()) * num_heads + head) * seq_q + row : ~0u;
        settle(out_rows[i]);
        scores.row[i] = {options.first_key(row), options.last_key(row), options.diagonal(row),
                         alibi_slopes ? load(alibi_slopes + b * num_heads + head) : 0.0f,
                         b * mask_stride_b + head * mask_stride_h + row * mask_stride_q};
    }

    FlashForward<Shape, OptionScores<Shape>> forward(block, scores);
    forward.load_queries([&](u32 at) -> const DTYPE* {
        const u32 row = first_row + at;
        if (row >= packed_rows) return nullptr;
        return q + b * q_stride_b + head_of(row) * q_stride_h + row % seq_q * q_stride_s;
    });
    // What the split and the band have in common.
    const i32 start = static_cast<i32>(block_x() * keys_per_split), end = start + static_cast<i32>(keys_per_split) - 1;
    const i32 from = band.any_first > start ? band.any_first : start, to = band.any_last < end ? band.any_last : end;
    const bool any = from <= to;
    forward.run(any ? static_cast<u32>(from) / KEYS_PER_TILE : 0, any ? static_cast<u32>(to) / KEYS_PER_TILE + 1 : 0);

#pragma unroll
    for (u32 i = 0; i < QUERY_FRAGMENTS; ++i) {
        const float total = forward.total(i);
        const i64 row = out_rows[i];
        const bool exists = out_rows[i] != ~0u;
        float* out_row = exists ? partial_out + row * head_dim_v : nullptr;
        write_row<Shape, float>(forward, i, out_row, head_dim_v, total == 0.0f ? 0.0f : 1.0f / total);
        if (exists && Shape::M::part() == 0)
            store<float, 2>(partial_ends + row * 2, Vector<float, 2>{forward.reference_of(i), total});
    }
}
