// Scores: step 1 of the standard path (qk_matmul, scale, mask, softmax, pv_matmul). Not measured on a GPU yet.
//
//   scores[b, h, i, j] = q[b, h, i] . k[b, h / group, j]
//
// Grid      x: key tiles * query tiles * H * B blocks, key tiles fastest (adjacent blocks share Q); 64x64 scores each.
// Block     4 waves (128 threads on wave32, 256 on wave64).
// LDS       two tiles of 64 rows: 64 elements of 16 bits, or 32 floats, and 16 bytes of padding per row: 18432 bytes.
// Registers at most 216 VGPRs on each target, no scratch, no spills (checked by tests/kernels).
// Memory    16-byte loads of Q and K rows along D, their ends one by one; 16-byte stores of scores. Bytes moved:
//           4 per score; Q and K once if a head's K stays in cache, from cache Sk / 64 and Sq / 64 times. 64x64,
//           because the score matrix dominates: at D = 64 in 16 bits a tile reads 16 KiB of cache to write 16 KiB.
// Numerics  products in DTYPE on the matrix units (float32: fused multiply-adds), sums in float32.
//
// Compile-time define: DTYPE (f16, bf16 or f32). D is an argument: any size.
//
// Kernel arguments (92 bytes, no hidden ones):
//    0  const DTYPE* q     [B, H, Sq, D] by strides     8  const DTYPE* k     [B, Hkv, Sk, D] by strides
//   16  float* scores      [B, H, Sq, Sk], contiguous
//   24  i64 q_stride_b    32  i64 q_stride_h    40  i64 q_stride_s
//   48  i64 k_stride_b    56  i64 k_stride_h    64  i64 k_stride_s
//   72  u32 seq_q   76  u32 seq_k   80  u32 num_heads   84  u32 group (= H / Hkv)   88  u32 head_dim
#include <rocattn/matmul.h>

using namespace rocattn;

using T = DTYPE;
using Tile = MatmulTile<T>;

ROCATTN_KERNEL(qk_matmul, MATMUL_THREADS,
               (const T* q, const T* k, float* scores, i64 q_stride_b, i64 q_stride_h, i64 q_stride_s, i64 k_stride_b,
                i64 k_stride_h, i64 k_stride_s, u32 seq_q, u32 seq_k, u32 num_heads, u32 group, u32 head_dim)) {
    ROCATTN_LDS(Tile::M::Element, k_tile, Tile::Shape::TILE_ELEMENTS);
    ROCATTN_LDS(Tile::M::Element, q_tile, Tile::Shape::TILE_ELEMENTS);
    const u32 key_tiles = ceil_div(seq_k, MATMUL_TILE), query_tiles = ceil_div(seq_q, MATMUL_TILE);
    const u32 first_key = block_x() % key_tiles * MATMUL_TILE;
    const u32 first_query = block_x() / key_tiles % query_tiles * MATMUL_TILE;
    const u32 head_and_batch = block_x() / key_tiles / query_tiles;
    const u32 h = head_and_batch % num_heads, b = head_and_batch / num_heads;
    Tile tile;
    tile.multiply_rows({k + b * k_stride_b + h / group * k_stride_h, k_stride_s, seq_k, head_dim}, first_key,
                       {q + b * q_stride_b + h * q_stride_h, q_stride_s, seq_q, head_dim}, first_query, k_tile, q_tile);
    scores += static_cast<i64>(head_and_batch) * seq_q * seq_k;
#pragma unroll
    for (u32 t = 0; t < Tile::COLUMN_TILES; ++t) {
        const u32 query = first_query + Tile::column(t);
#pragma unroll
        for (u32 run = 0; run < Tile::GROUPS; ++run)
#pragma unroll
            for (u32 first = 0; first < Tile::RUN; first += 4) {
                const u32 key = first_key + Tile::run_row(run) + first;
                Vector<float, 4> four;
#pragma unroll
                for (u32 i = 0; i < 4; ++i) four[i] = tile.at(run, first + i, t);
                if (query < seq_q) store_columns<float, 4>(scores + static_cast<i64>(query) * seq_k, key, seq_k, four);
            }
    }
}
