// The first step of the backward pass: the softmax's correction of each row of dP. Not measured on a GPU yet.
//
//   delta[b, h, i] = sum over d of dout[b, h, i, d] * out[b, h, i, d]
//
// Grid      any number of blocks along x; each takes 32 rows at a time.
// Block     256 threads: 8 lanes per row.
// LDS       none.
// Registers at most 48 VGPRs on each target, no scratch, no spills (checked by tests/kernels).
// Memory    16-byte loads, 8 lanes at 128 contiguous bytes; a row's end one by one. Bytes moved: dout and out once.
// Numerics  float32 sums.
//
// Compile-time define: DTYPE (f16, bf16 or f32). Dv is an argument: any size.
//
// Kernel arguments (92 bytes, no hidden ones):
//    0  const DTYPE* dout      [B, H, Sq, Dv] by strides     8  const DTYPE* out   likewise
//   16  float* delta           [B, H, Sq], contiguous
//   24  i64 dout_stride_b     32  i64 dout_stride_h     40  i64 dout_stride_s
//   48  i64 out_stride_b      56  i64 out_stride_h      64  i64 out_stride_s
//   72  u32 rows (= B * H * Sq)   76  u32 seq_q   80  u32 num_heads   84  u32 head_dim_v
//   88  u32 blocks (of the grid)
#include <rocattn/tile.h>

using namespace rocattn;

using T = DTYPE;
constexpr u32 BLOCK = 256, LANES = 8, BLOCK_ROWS = BLOCK / LANES, VECTOR = VECTOR_BYTES / sizeof(T);

ROCATTN_KERNEL(attention_backward_preprocess, BLOCK,
               (const T* dout, const T* out, float* delta, i64 dout_stride_b, i64 dout_stride_h, i64 dout_stride_s,
                i64 out_stride_b, i64 out_stride_h, i64 out_stride_s, u32 rows, u32 seq_q, u32 num_heads,
                u32 head_dim_v, u32 blocks)) {
    for (u32 first = block_x() * BLOCK_ROWS; first < rows; first += blocks * BLOCK_ROWS) {
        const u32 row = first + thread_id() / LANES;
        float sum = 0.0f;
        if (row < rows) {
            const u32 i = row % seq_q, h = row / seq_q % num_heads, b = row / seq_q / num_heads;
            const T* mine = dout + b * dout_stride_b + h * dout_stride_h + i * dout_stride_s;
            const T* theirs = out + b * out_stride_b + h * out_stride_h + i * out_stride_s;
            for (u32 column = thread_id() % LANES * VECTOR; column < head_dim_v; column += LANES * VECTOR) {
                const auto x = load_columns<T, VECTOR>(mine, column, head_dim_v);
                const auto y = load_columns<T, VECTOR>(theirs, column, head_dim_v);
#pragma unroll
                for (u32 e = 0; e < VECTOR; ++e) sum = __builtin_fmaf(to_float(x[e]), to_float(y[e]), sum);
            }
        }
#pragma unroll
        for (u32 mask = LANES / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
        if (row < rows && thread_id() % LANES == 0) store(delta + row, sum);
    }
}
