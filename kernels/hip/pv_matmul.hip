// Output: step 5 of the standard path (qk_matmul, scale, mask, softmax, pv_matmul). Not measured on a GPU yet.
//
//   out[b, h, i, d] = sum over visible keys j of probs[b, h, i, j] * v[b, h / group, j, d]
//
// Grid      x: feature tiles * query tiles * H * B blocks, feature tiles fastest (adjacent blocks share P), 64x64
//           outputs each.
// Block     4 waves (128 threads on wave32, 256 on wave64).
// LDS       18432 bytes: P [64 queries][64 keys] and V transposed [64 features][64 keys] in 16 bits; or P [64][32] and
//           V, not transposed, [32 keys][64 features], in float32; rows padded by 16 bytes.
// Registers at most 216 VGPRs on each target, no scratch, no spills (checked by tests/kernels).
// Memory    16-byte loads of P along keys and of V along features, the ends of rows one by one; stores of 16 bytes (8
//           on gfx90a and gfx942 in 16 bits: what a lane has). Bytes moved: P once per 64 features; V from cache
//           Sq / 64 times; out once.
// Numerics  products in DTYPE on the matrix units (float32: fused multiply-adds), sums in float32.
// Hidden    0 * NaN is NaN, so a NaN or inf in the V row of a hidden key would spoil the sum. softmax marks
//           hidden keys with -0.0: a wave with a sum that is not finite computes it again without those terms, in
//           scalar code. That costs nothing if everything is finite, and is slow (but correct) if not. A
//           visible probability that DTYPE rounds to 0 times inf is NaN.
//
// Compile-time define: DTYPE (f16, bf16 or f32). Dv is an argument: any size.
//
// Kernel arguments (92 bytes, no hidden ones):
//    0  const DTYPE* probs [B, H, Sq, Sk], contiguous   8  const DTYPE* v     [B, Hkv, Sk, Dv] by strides
//   16  DTYPE* out         [B, H, Sq, Dv] by strides
//   24  i64 v_stride_b    32  i64 v_stride_h    40  i64 v_stride_s
//   48  i64 out_stride_b  56  i64 out_stride_h  64  i64 out_stride_s
//   72  u32 seq_q   76  u32 seq_k   80  u32 num_heads   84  u32 group (= H / Hkv)   88  u32 head_dim_v
#include <rocattn/matmul.h>

using namespace rocattn;

using T = DTYPE;
using Tile = MatmulTile<T>;
constexpr u32 PIECE = Tile::RUN * sizeof(T) <= VECTOR_BYTES ? Tile::RUN : VECTOR_BYTES / sizeof(T);  // of a store

namespace {

ROCATTN_INLINE bool is_hidden(T p) { return __builtin_bit_cast(u32, to_float(p)) == 0x80000000u; }  // -0.0

// The exact sum for PIECE adjacent features of one query, without hidden keys.
ROCATTN_INLINE Vector<float, PIECE> visible_sum(const T* probs, const GlobalMatrix<T>& v, u32 feature) {
    Vector<float, PIECE> sum = {};
    for (u32 j = 0; j < v.rows; ++j) {
        const T p = load(probs + j);
        if (is_hidden(p)) continue;
        const auto row = load_columns<T, PIECE>(v.data + j * v.row_stride, feature, v.columns);
#pragma unroll
        for (u32 i = 0; i < PIECE; ++i) sum[i] = __builtin_fmaf(to_float(p), to_float(row[i]), sum[i]);
    }
    return sum;
}

}  // namespace

ROCATTN_KERNEL(pv_matmul, MATMUL_THREADS,
               (const T* probs, const T* v, T* out, i64 v_stride_b, i64 v_stride_h, i64 v_stride_s, i64 out_stride_b,
                i64 out_stride_h, i64 out_stride_s, u32 seq_q, u32 seq_k, u32 num_heads, u32 group, u32 head_dim_v)) {
    ROCATTN_LDS(Tile::M::Element, v_tile, Tile::Shape::TILE_ELEMENTS);
    ROCATTN_LDS(Tile::M::Element, p_tile, Tile::Shape::TILE_ELEMENTS);
    const u32 feature_tiles = ceil_div(head_dim_v, MATMUL_TILE), query_tiles = ceil_div(seq_q, MATMUL_TILE);
    const u32 first_feature = block_x() % feature_tiles * MATMUL_TILE;
    const u32 first_query = block_x() / feature_tiles % query_tiles * MATMUL_TILE;
    const u32 head_and_batch = block_x() / feature_tiles / query_tiles;
    const u32 h = head_and_batch % num_heads, b = head_and_batch / num_heads;
    const GlobalMatrix<T> values{v + b * v_stride_b + h / group * v_stride_h, v_stride_s, seq_k, head_dim_v};
    const GlobalMatrix<T> weights{probs + static_cast<i64>(head_and_batch) * seq_q * seq_k, seq_k, seq_q, seq_k};
    Tile tile;
    tile.multiply_columns(values, first_feature, weights, first_query, v_tile, p_tile);

    bool finite = true;
#pragma unroll
    for (u32 t = 0; t < Tile::COLUMN_TILES; ++t)
#pragma unroll
        for (u32 i = 0; i < Tile::GROUPS * Tile::RUN; ++i)
            finite = finite && __builtin_fabsf(tile.at(i / Tile::RUN, i % Tile::RUN, t)) < INF;
    const bool exact = any_lane(!finite);
    out += b * out_stride_b + h * out_stride_h;
#pragma unroll
    for (u32 t = 0; t < Tile::COLUMN_TILES; ++t) {
        const u32 query = first_query + Tile::column(t);
#pragma unroll
        for (u32 run = 0; run < Tile::GROUPS; ++run)
#pragma unroll
            for (u32 first = 0; first < Tile::RUN; first += PIECE) {
                const u32 feature = first_feature + Tile::run_row(run) + first;
                if (query >= seq_q || feature >= head_dim_v) continue;
                Vector<float, PIECE> sum;
#pragma unroll
                for (u32 i = 0; i < PIECE; ++i) sum[i] = tile.at(run, first + i, t);
                if (exact) sum = visible_sum(weights.data + query * weights.row_stride, values, feature);
                store_columns<T, PIECE>(out + query * out_stride_s, feature, head_dim_v, rounded<T, PIECE>(sum));
            }
    }
}
