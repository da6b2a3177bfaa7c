// Softmax of rows: step 4 of the standard path (qk_matmul, scale, mask, softmax, pv_matmul). Not measured on a GPU yet.
//
//   probs[r, c] = exp(scores[r, c] - lse[r]),   lse[r] = ln(sum over c of exp(scores[r, c]) + exp(sinks[head(r)]))
//
// Grid      any number of blocks, which take rows in turn; usually one block per row.
// Block     BLOCK threads (a multiple of 64, at most 1024).
// LDS       8 * BLOCK / WAVE bytes: one maximum and one sum per wave.
// Registers ITEMS floats of a row stay in registers, so rows of up to BLOCK * ITEMS columns are read once; longer rows
//           are read twice. Expected: at most 64 VGPRs per target, no scratch, no spills (checked by tests/kernels).
// Memory    16-byte accesses at any row alignment, the last columns % (16 / sizeof(IN_DTYPE)) one by one.
//           Bytes moved: the scores once (long rows twice) and the probs once.
// Numerics  float32 throughout whatever the I/O types. A row whose scores are all -inf (or that has no columns) gives
//           zeros and LSE -inf, unless its sink is finite: then LSE is the sink. A NaN makes its whole row NaN.
//           Partial (maximum, sum) pairs: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".
// Hidden    A score of -inf gives -0.0, a score that is merely too small gives +0.0: pv_matmul can tell a hidden key
//           (whose V row must not matter even if it is NaN) from an improbable one.
// In place  probs may be scores if the types have equal sizes and strides: a thread writes where it read.
//
// Compile-time defines: IN_DTYPE and OUT_DTYPE (f16, bf16 or f32), BLOCK.
//
// Kernel arguments (68 bytes, no hidden ones):
//    0  const IN_DTYPE* scores      [rows, columns], in_stride elements from row to row
//    8  OUT_DTYPE* probs            [rows, columns], out_stride elements from row to row
//   16  float* lse                  [rows], natural log; null: not written
//   24  const float* sinks          [num_heads]; null: none
//   32  i64 in_stride   40  i64 out_stride
//   48  u32 rows                    B * H * Sq, ordered so that head(r) = r / seq_q % num_heads
//   52  u32 columns                 Sk
//   56  u32 seq_q       60  u32 num_heads       64  u32 blocks (of the grid)
#include <rocattn/bias.h>

using namespace rocattn;

using In = IN_DTYPE;
using Out = OUT_DTYPE;

static_assert(BLOCK % 64 == 0 && BLOCK <= 1024, "BLOCK must be a multiple of 64, at most 1024");

constexpr u32 VECTOR = VECTOR_BYTES / sizeof(In);
constexpr u32 ITEMS = 16;
constexpr u32 WAVES = BLOCK / WAVE;
static_assert(ITEMS % VECTOR == 0, "a thread's share of a row is whole vectors");

namespace {

// A partial softmax: the sum of exp(value - max) so far. NaN values are in the sum, not in the maximum.
struct Partial {
    float max;
    float sum;
};

constexpr Partial NOTHING{-INF, 0.0f};

// The maximum as a subtrahend: -inf - -inf would be NaN where exp must give 0.
ROCATTN_INLINE float finite_base(float max) { return max == -INF ? 0.0f : max; }

ROCATTN_INLINE float exp_above(float value, float base) { return exp_accurate(value - base); }

// The stored value: -0.0 if the key is hidden.
ROCATTN_INLINE float marked_exp(float value, float base) { return value == -INF ? -0.0f : exp_above(value, base); }

ROCATTN_INLINE Partial rebased(Partial p, float max) { return {max, p.sum * exp_above(p.max, finite_base(max))}; }

ROCATTN_INLINE Partial wave_combine(Partial p) {
    p = rebased(p, wave_max(p.max));
    return {p.max, wave_sum(p.sum)};
}

// Every thread returns the block's result. The first barrier lets each row reuse the LDS.
ROCATTN_INLINE Partial block_combine(Partial mine, float* of_wave) {
    mine = wave_combine(mine);
    block_barrier();
    if (lane_id() == 0) lds_store<float, 2>(of_wave + wave_id() * 2, Vector<float, 2>{mine.max, mine.sum});
    block_barrier();
    Partial all = NOTHING;
    if (lane_id() < WAVES) {
        const auto pair = lds_load<float, 2>(of_wave + lane_id() * 2);
        all = {pair[0], pair[1]};
    }
    return wave_combine(all);
}

// Vector number `index` of a row as floats.
ROCATTN_INLINE void load_floats(float (&x)[VECTOR], const In* row, u32 index) {
    const auto raw = load<In, VECTOR>(row + static_cast<u64>(index) * VECTOR);
#pragma unroll
    for (u32 i = 0; i < VECTOR; ++i) x[i] = to_float(raw[i]);
}

ROCATTN_INLINE void store_floats(Out* row, const float (&x)[VECTOR], float factor, u32 index) {
    Vector<Out, VECTOR> raw;
#pragma unroll
    for (u32 i = 0; i < VECTOR; ++i) raw[i] = raw_from_float<Out>(x[i] * factor);
    store<Out, VECTOR>(row + static_cast<u64>(index) * VECTOR, raw);
}

// Adds V values, and replaces them with exp(value - the new maximum).
template <u32 V>
ROCATTN_INLINE Partial accumulate(Partial p, float (&x)[V]) {
    float max = p.max;
#pragma unroll
    for (u32 i = 0; i < V; ++i) max = __builtin_fmaxf(max, x[i]);
    p = rebased(p, max);
    const float base = finite_base(max);
#pragma unroll
    for (u32 i = 0; i < V; ++i) {
        x[i] = marked_exp(x[i], base);
        p.sum += x[i];
    }
    return p;
}

// Adds the row's sink to the sum, writes LSE and returns 1 / sum (0 for a row without visible keys).
ROCATTN_INLINE float finish(Partial& row, const float* sink, float* lse) {
    if (sink) {
        float logit[1] = {load(sink)};
        row = accumulate(row, logit);
    }
    if (lse && thread_id() == 0) store(lse, row.sum == 0.0f ? -INF : finite_base(row.max) + log2_fast(row.sum) * LN_2);
    return row.sum == 0.0f ? 0.0f : 1.0f / row.sum;
}

// A row of at most BLOCK * ITEMS columns: read once. All loads are issued before the first use, so they
// must not branch: a thread without its own vector reads the last one and ignores it.
ROCATTN_INLINE void short_row(const In* in, Out* out, u32 columns, const float* sink, float* lse, float* of_wave) {
    constexpr u32 CHUNKS = ITEMS / VECTOR;
    const u32 vectors = columns / VECTOR;
    const u32 last = columns - 1 - thread_id();  // the first columns % VECTOR threads take the remainder
    const bool has_tail = thread_id() < columns % VECTOR;
    float x[CHUNKS][VECTOR] = {};
    float tail[1] = {has_tail ? to_float(load(in + last)) : -INF};
    float max = tail[0];
    if (vectors > 0) {
#pragma unroll
        for (u32 c = 0; c < CHUNKS; ++c) load_floats(x[c], in, smaller(c * BLOCK + thread_id(), vectors - 1));
    }
#pragma unroll
    for (u32 c = 0; c < CHUNKS; ++c) {
#pragma unroll
        for (u32 i = 0; i < VECTOR; ++i) {
            x[c][i] = c * BLOCK + thread_id() < vectors ? x[c][i] : -INF;
            max = __builtin_fmaxf(max, x[c][i]);
        }
    }
    Partial mine = accumulate(Partial{max, 0.0f}, tail);
#pragma unroll
    for (u32 c = 0; c < CHUNKS; ++c) mine = accumulate(mine, x[c]);
    Partial row = block_combine(mine, of_wave);
    const float inverse = finish(row, sink, lse);
    const float factor = inverse * exp_above(max, finite_base(row.max));
#pragma unroll
    for (u32 c = 0; c < CHUNKS; ++c)
        if (c * BLOCK + thread_id() < vectors) store_floats(out, x[c], factor, c * BLOCK + thread_id());
    if (has_tail) store(out + last, from_float<Out>(tail[0] * factor));
}

// A row of any length: read once for the sum and again for the output.
ROCATTN_INLINE void long_row(const In* in, Out* out, u32 columns, const float* sink, float* lse, float* of_wave) {
    const u32 vectors = columns / VECTOR;
    const u32 last = columns - 1 - thread_id();
    const bool has_tail = thread_id() < columns % VECTOR;
    float x[VECTOR];
    float tail[1] = {has_tail ? to_float(load(in + last)) : -INF};
    float tail_exp[1] = {tail[0]};
    Partial mine = accumulate(NOTHING, tail_exp);
    for (u32 v = thread_id(); v < vectors; v += BLOCK) {
        load_floats(x, in, v);
        mine = accumulate(mine, x);
    }
    Partial row = block_combine(mine, of_wave);
    const float inverse = finish(row, sink, lse);
    const float base = finite_base(row.max);
    for (u32 v = thread_id(); v < vectors; v += BLOCK) {
        load_floats(x, in, v);
#pragma unroll
        for (u32 i = 0; i < VECTOR; ++i) x[i] = marked_exp(x[i], base);
        store_floats(out, x, inverse, v);
    }
    if (has_tail) store(out + last, from_float<Out>(marked_exp(tail[0], base) * inverse));
}

}  // namespace

ROCATTN_KERNEL(softmax_rows, BLOCK,
               (const In* scores, Out* probs, float* lse, const float* sinks, i64 in_stride, i64 out_stride, u32 rows,
                u32 columns, u32 seq_q, u32 num_heads, u32 blocks)) {
    ROCATTN_LDS(float, of_wave, 2 * WAVES);
    for (u32 r = block_x(); r < rows; r += blocks) {
        const In* in = scores + r * in_stride;
        Out* out = probs + r * out_stride;
        const float* sink = sinks ? sinks + r / seq_q % num_heads : nullptr;
        float* row_lse = lse ? lse + r : nullptr;
        if (columns <= BLOCK * ITEMS)
            short_row(in, out, columns, sink, row_lse, of_wave);
        else
            long_row(in, out, columns, sink, row_lse, of_wave);
    }
}
