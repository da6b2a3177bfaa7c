// Flash attention, forward, for few query rows and many keys: computes one part of the keys (a split), for
// flash_decode_combine; or all keys and the output itself. All options.
//
// Grid      (splits, Hkv * row tiles, B); the rows of a KV head's group, Sq of each head, are packed into tiles of
//           16 QUERY_FRAGMENTS WAVES, so that K and V are read once for the group.
// Block     WAVES waves; one if there are at most 16 rows: no barrier, no merge. On CDNA and gfx12, with D and Dv 64 or
//           128, such a wave loads K and V directly as fragments, without LDS: 16 KiB at D = 128 (gfx12 8 KiB), half of
//           which stays in flight while it waits for the other half. Otherwise it has a key tile in LDS and loads the
//           next one into registers. Splits give the grid enough blocks for 48 KiB in flight per CU (gfx950 128, 64 per
//           WGP), where latency times bandwidth requires about 17 (31, 16): rocattn/gpu/flash.py.
// LDS       With fragments, only Q passes through it: 4.5 KiB at D = 128. Otherwise as in flash_attention: on gfx11
//           14.8 KiB (16 keys per tile, Q in LDS).
// Registers At most 256 VGPRs. With fragments they limit the waves, otherwise LDS does first.
// Layout    As in flash_attention, with the same core.
// Writes    One of several splits: normalized rows, their references and sums in float32; zeros and a reference of
//           -inf for a row without visible keys in it. The only split: the output and the LSE.
// Numerics  Products in float32 from T; P is rounded to T (nearest) for the second product, its sum is not. P is
//           relative to a reference that lags the maximum by at most 2^8. The output is divided once and rounded once.
// Hidden    A hidden key has no influence, whatever its K and V. A row without visible keys: output 0, LSE -inf.
// Not measured on a GPU yet.
//
// Compile-time defines: DTYPE (f16, bf16, f32), HEAD_DIM and HEAD_DIM_V (padded to one of rocattn/gpu/tiles.py's),
// COLUMN_STEP (a power of two, at most 16 bytes, that divides head_dim and head_dim_v; 0: they are not padded), WAVES,
// QUERY_FRAGMENTS, KEYS_PER_TILE, SLICES, Q_IN_LDS, MIN_WAVES; SEQUENCES, KV_DTYPE and Q_DTYPE (flash_sequences.h), which
// add arguments.
//
// Kernel arguments (264 bytes, no hidden ones); T is DTYPE, strides are in elements, the last is 1:
//    0  const T* q [B, H, Sq, D]       8  const T* k [B, Hkv, Sk, D]      16  const T* v [B, Hkv, Sk, Dv]
//   24  float* partial_out [splits, B, H, Sq, Dv rounded up to 4]   32  float* partial_ends [splits, B, H, Sq, 2]:
//       reference and sum; both contiguous, or null with one split
//   40  T* out [B, H, Sq, Dv]         48  float* lse [B, H, Sq] contiguous, natural log; null: not written. Both
//       and the sinks are used only with one split
//   56  const void* mask, by its strides broadcast to [B, H, Sq, Sk]
//   64  const float* alibi_slopes [B, H] contiguous, or null      72  const float* sinks [H], or null
//   80  i64 q_stride_b, _h, _s       104  k_stride_b, _h, _s  128  v_stride_b, _h, _s   152  out_stride_b, _h, _s
//  176  i64 mask_stride_b, _h, _q, _k (0: broadcast)
//  208  u32 seq_q   212  seq_k   216  num_heads   220  group (H / Hkv)   224  head_dim   228  head_dim_v   232  batch
//  236  u32 mask_kind: 0 none, 1 bool bytes, 2 float32, 3 float16, 4 bfloat16
//  240  u32 first_key of the first split, and 244 keys_per_split: multiples of KEYS_PER_TILE
//  248  i32 window_left   252  window_right: the band, causal folded in; -1: open
//  256  f32 scale (any)   260  softcap (0: off)
#include <rocattn/flash_scores.h>

using namespace rocattn;

using Shape = FlashShape<DTYPE, HEAD_DIM, HEAD_DIM_V, WAVES, QUERY_FRAGMENTS, KEYS_PER_TILE, SLICES, Q_IN_LDS,
                         COLUMN_STEP>;

ROCATTN_KERNEL(flash_decode, WAVES* ROCATTN_WAVE,
               (const StoredQ<DTYPE>* q, const Stored<DTYPE>* k, const Stored<DTYPE>* v, float* partial_out,
                float* partial_ends, DTYPE* out, float* lse, const void* mask, const float* alibi_slopes,
                const float* sinks, i64 q_stride_b, i64 q_stride_h, i64 q_stride_s, i64 k_stride_b, i64 k_stride_h,
                i64 k_stride_s, i64 v_stride_b, i64 v_stride_h, i64 v_stride_s, i64 out_stride_b, i64 out_stride_h,
                i64 out_stride_s, i64 mask_stride_b, i64 mask_stride_h, i64 mask_stride_q, i64 mask_stride_k,
                u32 seq_q, u32 seq_k, u32 num_heads, u32 group, u32 head_dim, u32 head_dim_v, u32 batch,
                u32 mask_kind, u32 first_key, u32 keys_per_split, i32 window_left, i32 window_right, f32 scale,
                f32 softcap ROCATTN_SEQUENCES ROCATTN_SCALES)) {
    ROCATTN_LDS(Shape::Element, lds, Shape::LDS_ELEMENTS);
    ROCATTN_LDS(u32, flags, WAVES);
#if SEQUENCES
    const SequencePlace sequence(cu_seqlens_q, cu_seqlens_k, seqlens_k, block_z());
    const u32 row_tiles = ceil_div(group * seq_q, Shape::BLOCK_ROWS), packed_rows = group * sequence.seq_q;
    const u32 kv_head = scalar(block_y() / row_tiles);
    if ((block_y() - kv_head * row_tiles) * Shape::BLOCK_ROWS >= packed_rows) return;
    ROCATTN_USE_SEQUENCE(sequence)
    const i64 b = 0, slopes_of = block_z();
#else
    const u32 packed_rows = group * seq_q, row_tiles = ceil_div(packed_rows, Shape::BLOCK_ROWS);
    const u32 kv_head = scalar(block_y() / row_tiles);
    const i64 b = block_z(), slopes_of = b;
#endif
    const u32 first_row = uniform((block_y() - kv_head * row_tiles) * Shape::BLOCK_ROWS + wave_id() * Shape::WAVE_ROWS);
    const FlashBlock<Shape> block{{k + b * k_stride_b + kv_head * k_stride_h, k_stride_s},
                                  {v + b * v_stride_b + kv_head * v_stride_h, v_stride_s},
                                  seq_k, head_dim, head_dim_v, lds, nullptr, flags
#if SEQUENCES >= 2
                                  , ROCATTN_PAGES(block_z())
#endif
    };
    // Packed row r is row r % Sq of head r / Sq of the group.
    const auto head_of = [&](u32 packed) { return kv_head * group + packed / seq_q; };

    ScoreOptions options{mask, mask_stride_k, mask_kind, window_left, window_right,
                         scale * ROCATTN_SCORE_SCALE(block_z(), kv_head), softcap, seq_q, seq_k};
    const float v_scale = ROCATTN_SCALE(v_scale, block_z(), kv_head);
    options.settle(alibi_slopes != nullptr);
    const BandRange band(options, 0, seq_q - 1);
    OptionScores<Shape> scores{options, band, band, {}};
    // Computed here for the end, so that its inputs take fewer scalar registers in the loop. But where those suffice,
    // in a single wave of 32 without column checks, vector registers would not.
    constexpr bool EARLY = WAVE == 64 || COLUMN_STEP != 0 || WAVES > 1;
    const bool is_part = partial_ends != nullptr;
    const u32 columns = round_up(head_dim_v, 4);  // of partial results
    float* ends = is_part ? partial_ends : lse;
    settle_scalar(ends);
    struct {
        void* out;  // null: the row does not exist
        u32 at;     // index into [B, H, Sq], or into all splits
        float sink;
    } rows[QUERY_FRAGMENTS];
    // This lane's row of query fragment i; `zero` is 0.
    const auto locate = [&](u32 i, u32 zero) {
        const u32 packed = first_row + 16 * i + Shape::M::column() + zero;
        const u32 at = smaller(packed, packed_rows - 1), row = at % seq_q, head = head_of(at);
        // All rows with their features take 4 GiB long before it overflows.
#if SEQUENCES
        rows[i].at = ((is_part ? block_x() * num_heads : 0) + head) * total_q + sequence.first_q + row;
#else
        rows[i].at = (((is_part ? block_x() * batch : 0) + block_z()) * num_heads + head) * seq_q + row;
#endif
        if (is_part)
            rows[i].out = partial_out + static_cast<i64>(rows[i].at) * columns;
        else
            rows[i].out = out + b * out_stride_b + head * out_stride_h + row * out_stride_s;
        if (packed >= packed_rows) rows[i].out = nullptr;
        rows[i].sink = sinks && !is_part ? load(sinks + head) : -INF;
    };
#pragma unroll
    for (u32 i = 0; i < QUERY_FRAGMENTS; ++i) {
        const u32 packed = smaller(first_row + 16 * i + Shape::M::column(), packed_rows - 1);
        const u32 row = packed % seq_q, head = head_of(packed);
        if constexpr (EARLY) {
            locate(i, 0);
            settle(rows[i].at);
            settle(rows[i].out);
        }
        scores.row[i] = {options.first_key(row), options.last_key(row), options.diagonal(row),
                         alibi_slopes ? load(alibi_slopes + slopes_of * num_heads + head) : 0.0f,
                         b * mask_stride_b + head * mask_stride_h + row * mask_stride_q};
        // Here, because in the loop the wait would include the keys in flight.
        if constexpr (Shape::LOADS_FRAGMENTS) settle(scores.row[i].slope);
    }

    FlashForward<Shape, OptionScores<Shape>> forward(block, scores);
    forward.load_queries([&](u32 at) -> const StoredQ<DTYPE>* {
        const u32 row = first_row + at;
        if (row >= packed_rows) return nullptr;
        return q + b * q_stride_b + head_of(row) * q_stride_h + row % seq_q * q_stride_s;
    });
    // The intersection of the split and the band.
#if SEQUENCES
    // The splits of this sequence: as many as its keys fill, or longer ones than planned.
    const i32 lowest = band.any_first / i32{KEYS_PER_TILE} * i32{KEYS_PER_TILE};
    const u32 span = band.any_last < lowest ? 0 : static_cast<u32>(band.any_last - lowest) + 1;
    const u32 least = round_up(ceil_div(span, splits), KEYS_PER_TILE);
    const i32 each = static_cast<i32>(least > keys_per_split ? least : keys_per_split);
    const i32 start = lowest + static_cast<i32>(block_x()) * each, end = start + each - 1;
#else
    const i32 start = static_cast<i32>(first_key + block_x() * keys_per_split);
    const i32 end = start + static_cast<i32>(keys_per_split) - 1;
#endif
    const i32 from = band.any_first > start ? band.any_first : start, to = band.any_last < end ? band.any_last : end;
    const bool any = from <= to;
    forward.run(any ? static_cast<u32>(from) / KEYS_PER_TILE : 0, any ? static_cast<u32>(to) / KEYS_PER_TILE + 1 : 0);

#pragma unroll
    for (u32 i = 0; i < QUERY_FRAGMENTS; ++i) {
        const float reference = forward.reference_of(i), total = forward.total(i, lane_id());
        if constexpr (!EARLY) locate(i, unknown_zero());
        const bool first_lane = rows[i].out && Shape::M::part() == 0;
        if (is_part) {
            // Whole vectors of 4: features beyond Dv are copies of others.
            constexpr u32 STEP = COLUMN_STEP == 0 ? 0 : most(COLUMN_STEP, 4);
            const float factor = total == 0.0f ? 0.0f : v_scale / total;
            write_row<Shape, float, STEP>(forward, i, static_cast<float*>(rows[i].out), columns, factor);
            if (first_lane) store<float, 2>(ends + rows[i].at * 2, Vector<float, 2>{reference, total});
        } else {
            const RowEnd end = end_row<false>(reference, total, rows[i].sink);
            write_row<Shape, DTYPE>(forward, i, static_cast<DTYPE*>(rows[i].out), head_dim_v, end.factor * v_scale);
            if (ends && first_lane) store(ends + rows[i].at, end.lse);
        }
    }
}
