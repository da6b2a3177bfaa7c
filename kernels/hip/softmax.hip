// Softmax of rows, forward: step 3 of the standard path (scores, mask, softmax, ...). Not measured on a GPU yet.
//
//   probs[r, c] = exp(scores[r, c] - lse[r]),   lse[r] = ln(sum over c of exp(scores[r, c]) + exp(sinks[head(r)]))
//
// Grid      any number of blocks, each takes rows block_id, block_id + blocks, ...; one block a row is the usual launch.
// Block     BLOCK threads (a multiple of 64, at most 1024).
// LDS       8 * BLOCK / 32 bytes: one maximum and one sum a wave, room for waves of 32.
// Registers ITEMS floats of a row stay in registers, so rows of up to BLOCK * ITEMS columns are read once; longer rows
//           are read twice. Expected: at most 64 VGPRs on each target, no scratch, no spills (tests/kernels holds it).
// Memory    16-byte loads when a row of scores and of probs starts on a vector boundary, element by element otherwise
//           (odd strides); both are coalesced.
// Numerics  float32 throughout whatever the I/O types. A row whose scores are all -inf (or that has no columns) gives
//           zeros and LSE -inf, unless its sink is finite: then LSE is the sink. A NaN in a row makes all of it NaN.
//           Partial (maximum, sum) pairs: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".
// In place  probs may be scores if the types have one size and the strides agree: a thread writes what it read.
//
// Compile-time defines: IN_DTYPE and OUT_DTYPE (f16, bf16 or f32), BLOCK.
//
// Kernel arguments (64 bytes, no hidden ones):
//    0  const IN_DTYPE* scores      [rows, columns], in_stride elements from row to row
//    8  OUT_DTYPE* probs            [rows, columns], out_stride elements from row to row
//   16  float* lse                  [rows], natural log; null: not wanted
//   24  const float* sinks          [num_heads]; null: none
//   32  u32 rows                    B * H * Sq, ordered so that head(r) = r / seq_q % num_heads
//   36  u32 columns                 Sk
//   40  i64 in_stride   48  i64 out_stride
//   56  u32 seq_q       60  u32 num_heads
#include <rocattn/device.h>

using namespace rocattn;

using In = IN_DTYPE;
using Out = OUT_DTYPE;

static_assert(BLOCK % 64 == 0 && BLOCK <= 1024, "BLOCK must be a multiple of 64, at most 1024");

constexpr u32 VECTOR = VECTOR_BYTES / sizeof(In);
constexpr u32 ITEMS = 16;
constexpr u32 MAX_WAVES = BLOCK / 32;
static_assert(ITEMS % VECTOR == 0, "a thread's share of a row is whole vectors");

namespace {

// A softmax in progress: sum over the values seen of exp(value - max). NaN values are in the sum, not in the maximum.
struct Partial {
    float max;
    float sum;
};

constexpr Partial NOTHING{-INF, 0.0f};

// The maximum as a subtrahend: with -inf, -inf - -inf would be NaN where exp is to give 0.
__device__ inline float finite_base(float max) { return max == -INF ? 0.0f : max; }

__device__ inline float exp_above(float value, float base) { return exp2_fast((value - base) * LOG2_E); }

__device__ inline Partial rebased(Partial p, float max) { return {max, p.sum * exp_above(p.max, finite_base(max))}; }

__device__ inline Partial wave_combine(Partial p) {
    p = rebased(p, wave_max(p.max));
    return {p.max, wave_sum(p.sum)};
}

// Every thread returns the block's result. The barrier in front lets the LDS be used again row after row.
__device__ inline Partial block_combine(Partial mine) {
    __shared__ Partial of_wave[MAX_WAVES];
    mine = wave_combine(mine);
    block_barrier();
    if (lane_id() == 0) of_wave[wave_id()] = mine;
    block_barrier();
    Partial all = NOTHING;
    if (lane_id() < BLOCK / wave_size()) all = of_wave[lane_id()];
    return wave_combine(all);
}

// Vector number `index` of a row as floats.
template <u32 V>
__device__ inline void load(float (&x)[V], const In* row, u32 index) {
    const auto pack = *at_offset(reinterpret_cast<const Pack<In, V>*>(row), index);
#pragma unroll
    for (u32 i = 0; i < V; ++i) x[i] = to_float(pack.at[i]);
}

template <u32 V>
__device__ inline void store(Out* row, const float (&x)[V], float factor, u32 index) {
    Pack<Out, V> pack;
#pragma unroll
    for (u32 i = 0; i < V; ++i) pack.at[i] = from_float<Out>(x[i] * factor);
    *at_offset(reinterpret_cast<Pack<Out, V>*>(row), index) = pack;
}

// Takes V more values in; afterwards they are exp(value - the new maximum).
template <u32 V>
__device__ inline Partial accumulate(Partial p, float (&x)[V]) {
    float max = p.max;
#pragma unroll
    for (u32 i = 0; i < V; ++i) max = __builtin_fmaxf(max, x[i]);
    p = rebased(p, max);
    const float base = finite_base(max);
#pragma unroll
    for (u32 i = 0; i < V; ++i) {
        x[i] = exp_above(x[i], base);
        p.sum += x[i];
    }
    return p;
}

// The row's sink joins the sum; then LSE is written and 1 / sum returned (0 for a row without anything visible).
__device__ inline float finish(Partial& row, const float* sink, float* lse) {
    if (sink) {
        float logit[1] = {*sink};
        row = accumulate(row, logit);
    }
    if (lse && thread_id() == 0) *lse = row.sum == 0.0f ? -INF : finite_base(row.max) + log2_fast(row.sum) * LN_2;
    return row.sum == 0.0f ? 0.0f : 1.0f / row.sum;
}

// A row of at most BLOCK * ITEMS columns on vector boundaries: read once. All loads are issued before the first is
// used, which needs them free of branches: a thread without a vector of its own reads the last one and ignores it.
__device__ inline void short_row(const In* in, Out* out, u32 columns, const float* sink, float* lse) {
    constexpr u32 CHUNKS = ITEMS / VECTOR;
    const u32 vectors = columns / VECTOR;
    const u32 last = columns - 1 - thread_id();  // threads 0 ... columns % VECTOR - 1 take the elements past the vectors
    const bool has_tail = thread_id() < columns % VECTOR;
    float x[CHUNKS][VECTOR];
    float tail[1] = {has_tail ? to_float(in[last]) : -INF};
    float max = tail[0];
    if (vectors > 0) {
#pragma unroll
        for (u32 c = 0; c < CHUNKS; ++c) load<VECTOR>(x[c], in, smaller(c * BLOCK + thread_id(), vectors - 1));
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
    Partial row = block_combine(mine);
    const float inverse = finish(row, sink, lse);
    const float factor = inverse * exp_above(max, finite_base(row.max));
#pragma unroll
    for (u32 c = 0; c < CHUNKS; ++c)
        if (c * BLOCK + thread_id() < vectors) store<VECTOR>(out, x[c], factor, c * BLOCK + thread_id());
    if (has_tail) out[last] = from_float<Out>(tail[0] * factor);
}

// A row of any length, V elements a load: read once for the sum and once more for the output.
template <u32 V>
__device__ inline void long_row(const In* in, Out* out, u32 columns, const float* sink, float* lse) {
    const u32 vectors = columns / V;
    const u32 last = columns - 1 - thread_id();
    const bool has_tail = thread_id() < columns % V;
    float x[V];
    float tail[1] = {has_tail ? to_float(in[last]) : -INF};
    Partial mine = accumulate(NOTHING, tail);
    for (u32 v = thread_id(); v < vectors; v += BLOCK) {
        load<V>(x, in, v);
        mine = accumulate(mine, x);
    }
    Partial row = block_combine(mine);
    const float inverse = finish(row, sink, lse);
    const float base = finite_base(row.max);
    for (u32 v = thread_id(); v < vectors; v += BLOCK) {
        load<V>(x, in, v);
#pragma unroll
        for (u32 i = 0; i < V; ++i) x[i] = exp_above(x[i], base);
        store<V>(out, x, inverse, v);
    }
    if (has_tail) out[last] = from_float<Out>(exp_above(to_float(in[last]), base) * inverse);
}

}  // namespace

extern "C" __global__ void ROCATTN_BLOCK(BLOCK)
    softmax_rows(const In* scores, Out* probs, float* lse, const float* sinks, u32 rows, u32 columns, i64 in_stride,
                 i64 out_stride, u32 seq_q, u32 num_heads) {
    for (u32 r = block_id(); r < rows; r += block_count<BLOCK>()) {
        const In* in = scores + r * in_stride;
        Out* out = probs + r * out_stride;
        const float* sink = sinks ? sinks + r / seq_q % num_heads : nullptr;
        float* row_lse = lse ? lse + r : nullptr;
        if (!is_aligned<In, VECTOR>(in) || !is_aligned<Out, VECTOR>(out))
            long_row<1>(in, out, columns, sink, row_lse);
        else if (columns <= BLOCK * ITEMS)
            short_row(in, out, columns, sink, row_lse);
        else
            long_row<VECTOR>(in, out, columns, sink, row_lse);
    }
}
