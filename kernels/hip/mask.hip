// Masking of scores, in place: step 3 of the standard path (qk_matmul, scale, mask, softmax, pv_matmul). Not measured
// on a GPU yet.
//
//   for row i and key j of a batch and head, t = i + Sk - Sq the row's diagonal:
//   scores[b, h, i, j]  = (scores[b, h, i, j] - alibi_slopes[b, h] * |t - j|) + mask[b, h, i, j]
//   scores[b, h, i, j]  = -inf where hidden: j < t - window_left, j > t + window_right, mask False or -inf
//
// Grid      any number of blocks along x; their waves take pieces of PIECE columns of a row in turn.
// Block     256 threads.
// LDS       none.
// Registers at most 64 VGPRs on each target, no scratch, no spills (checked by tests/kernels).
// Memory    16-byte accesses to scores at any alignment, a row's last Sk % 4 one by one; the mask in vectors of
//           four if its last stride is 1. Bytes moved: 8 per score with ALiBi or an additive mask, otherwise 8 for
//           each score in a vector of four with a hidden one (4 if all are hidden), none elsewhere; and the mask.
// Numerics  float32. A hidden score becomes -inf, even from NaN.
//
// Kernel arguments (88 bytes, no hidden ones):
//    0  float* scores               [B, H, Sq, Sk], contiguous
//    8  const void* mask            by strides, 0 for a broadcast axis; null: none
//   16  const float* alibi_slopes   [B, H], contiguous; null: none
//   24  i64 mask_stride_b   32  i64 mask_stride_h   40  i64 mask_stride_q   48  i64 mask_stride_k
//   56  u32 rows            B * H * Sq
//   60  u32 seq_q           64  u32 seq_k           68  u32 num_heads
//   72  u32 mask_kind       0 none, 1 bool, 2 float32, 3 float16, 4 bfloat16
//   76  i32 window_left     80  i32 window_right    -1: open; causal is folded in
//   84  u32 blocks          of the grid
#include <rocattn/bias.h>

using namespace rocattn;

constexpr u32 BLOCK = 256;
constexpr u32 WAVES = BLOCK / WAVE;
constexpr u32 STEP = 4 * WAVE;   // columns that a wave handles at once
constexpr u32 PIECE = 8 * STEP;  // so that few rows (a decode step) still use many waves

namespace {

// A row's part of the problem; uniform.
struct Row {
    float* scores;
    const void* mask;
    i64 mask_start;
    i64 mask_stride;
    u32 mask_kind;
    float slope;
    i32 diagonal;
    KeyRange keys;
};

// Columns `first` ... of the mask, as addends.
template <u32 N>
ROCATTN_INLINE void load_mask(float (&added)[N], const Row& row, u32 first) {
    const i64 start = row.mask_start + first * row.mask_stride;
    if (N == 4 && row.mask_stride == 1 && row.mask_kind != MASK_NONE) {
        if (row.mask_kind == MASK_BOOL) {
            const auto raw = load<u8, N>(static_cast<const u8*>(row.mask) + start);
            for (u32 i = 0; i < N; ++i) added[i] = raw[i] ? 0.0f : -INF;
        } else if (row.mask_kind == MASK_F32) {
            const auto raw = load<f32, N>(static_cast<const f32*>(row.mask) + start);
            for (u32 i = 0; i < N; ++i) added[i] = raw[i];
        } else {
            const auto raw = load<u16, N>(static_cast<const u16*>(row.mask) + start);
            for (u32 i = 0; i < N; ++i) {
                const u16 bits = raw[i];  // __builtin_bit_cast of raw[i] itself would take element 0
                added[i] = row.mask_kind == MASK_F16 ? to_float(__builtin_bit_cast(f16, bits)) : to_float(bf16{bits});
            }
        }
    } else {
        for (u32 i = 0; i < N; ++i) added[i] = mask_value(row.mask, row.mask_kind, start + i * row.mask_stride);
    }
}

// Columns `first` ... `first` + N - 1 of a row.
template <u32 N>
ROCATTN_INLINE void mask_columns(const Row& row, u32 first) {
    float added[N], bias[N];
    load_mask(added, row, first);
    u32 hidden = 0;
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
        const u32 key = first + i;
        if (key < row.keys.first || key >= row.keys.stop) added[i] = -INF;
        hidden += added[i] == -INF;
        const i32 distance = row.diagonal - static_cast<i32>(key);
        bias[i] = row.slope * static_cast<float>(distance < 0 ? -distance : distance);
    }
    if (hidden == 0 && row.mask_kind <= MASK_BOOL && row.slope == 0.0f) return;
    Vector<float, N> x = {};
    if (hidden < N) x = load<float, N>(row.scores + first);
#pragma unroll
    for (u32 i = 0; i < N; ++i) x[i] = masked_score(x[i] - bias[i], added[i]);
    store<float, N>(row.scores + first, x);
}

}  // namespace

ROCATTN_KERNEL(mask_scores, BLOCK,
               (float* scores, const void* mask, const float* alibi_slopes, i64 mask_stride_b, i64 mask_stride_h,
                i64 mask_stride_q, i64 mask_stride_k, u32 rows, u32 seq_q, u32 seq_k, u32 num_heads, u32 mask_kind,
                i32 window_left, i32 window_right, u32 blocks)) {
    const u32 pieces = ceil_div(seq_k, PIECE);
    for (u32 item = block_x() * WAVES + uniform(wave_id()); item < rows * pieces; item += blocks * WAVES) {
        const u32 r = item / pieces, i = r % seq_q, head = r / seq_q;
        const u32 start = item % pieces * PIECE, stop = smaller(seq_k - start, PIECE) + start;
        const i64 mask_start = head / num_heads * mask_stride_b + head % num_heads * mask_stride_h + i * mask_stride_q;
        const Row row{scores + static_cast<i64>(r) * seq_k,
                      mask,
                      mask_start,
                      mask_stride_k,
                      mask_kind,
                      alibi_slopes ? load(alibi_slopes + head) : 0.0f,
                      static_cast<i32>(i + seq_k - seq_q),
                      visible_keys(i, seq_q, seq_k, window_left, window_right)};
        u32 column = start + lane_id() * 4;
        for (; column + 4 <= stop; column += STEP) mask_columns<4>(row, column);
        for (; column < stop; ++column) mask_columns<1>(row, column);
    }
}
