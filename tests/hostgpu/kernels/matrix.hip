// The matrix instructions alone (fragments straight from memory) and through matrix.h.
//
// instruction: register `e` of lane l is a[l * WIDTH + e], b likewise; c and d are [lane][C_ROWS].
// product:     d = c + a * b with a [16][DEPTH], b [16][DEPTH] (by columns), c and d [16][16].
// chained:     out = v * narrow(s), with s = k * q of CHAIN rows: k [CHAIN][DEPTH], q [16][DEPTH] (by columns),
//              v [16][CHAIN], out [16][16]: the two products of attention.
#include <rocattn/fp8.h>

using namespace rocattn;

using M = Matrix<DTYPE>;

#ifdef FRAGMENTS
constexpr u32 WIDTH = sizeof(M::A) / sizeof(DTYPE);

ROCATTN_KERNEL(instruction, WAVE, (const DTYPE* a, const DTYPE* b, const float* c, float* d)) {
    const u32 lane = lane_id();
    const auto product = M::multiply(load<DTYPE, WIDTH>(a + lane * WIDTH), load<DTYPE, WIDTH>(b + lane * WIDTH),
                                     load<float, M::C_ROWS>(c + lane * M::C_ROWS));
    store<float, M::C_ROWS>(d + lane * M::C_ROWS, product);
}
#endif

constexpr u32 STRIDE = 64;  // of LDS rows, in elements

template <typename E>
ROCATTN_INLINE void put(E* to, DTYPE x) {
    if constexpr (__is_same(E, float)) lds_store(to, to_float(x));
    else lds_store(to, x);
}

template <typename E>
ROCATTN_INLINE void to_lds(E* tile, const DTYPE* rows, u32 count, u32 columns) {
    for (u32 i = thread_id(); i < count * columns; i += WAVE)
        put(tile + i / columns * STRIDE + i % columns, load(rows + i));
}

ROCATTN_KERNEL(product, WAVE, (const DTYPE* a, const DTYPE* b, const float* c, float* d)) {
    ROCATTN_LDS(M::Element, a_tile, 16 * STRIDE);
    ROCATTN_LDS(M::Element, b_tile, 16 * STRIDE);
    to_lds(a_tile, a, 16, M::DEPTH);
    to_lds(b_tile, b, 16, M::DEPTH);
    block_barrier();
    M::C sum;
    for (u32 r = 0; r < M::C_ROWS; ++r) sum[r] = load(c + M::c_row(r) * 16 + lane_id() % 16);
    sum = M::multiply(M::a_from_lds(a_tile, STRIDE), M::b_from_lds(b_tile, STRIDE), sum);
    for (u32 r = 0; r < M::C_ROWS; ++r) store(d + M::c_row(r) * 16 + lane_id() % 16, sum[r]);
}

#ifndef UNCHAINED  // products of 8 bits are
ROCATTN_KERNEL(chained, WAVE, (const DTYPE* k, const DTYPE* q, const DTYPE* v, float* out)) {
    ROCATTN_LDS(M::Element, k_tile, M::CHAIN * STRIDE);
    ROCATTN_LDS(M::Element, q_tile, 16 * STRIDE);
    ROCATTN_LDS(M::Element, v_tile, 16 * STRIDE);
    to_lds(k_tile, k, M::CHAIN, M::DEPTH);
    to_lds(q_tile, q, 16, M::DEPTH);
    for (u32 i = thread_id(); i < 16 * M::CHAIN; i += WAVE) {
        const u32 row = i / M::CHAIN, position = i % M::CHAIN;
        put(v_tile + row * STRIDE + position, load(v + row * M::CHAIN + M::chain_row(position)));
    }
    block_barrier();
    M::C scores[M::CHAIN / 16];
    for (u32 t = 0; t < M::CHAIN / 16; ++t)
        scores[t] = M::multiply(M::a_from_lds(k_tile + t * 16 * STRIDE, STRIDE), M::b_from_lds(q_tile, STRIDE), M::C{});
    M::B p[M::CHAIN / M::DEPTH];
    M::chain(scores, p);
    M::C sum{};
    for (u32 i = 0; i < M::CHAIN / M::DEPTH; ++i)
        sum = M::multiply(M::a_from_lds(v_tile + i * M::DEPTH, STRIDE), p[i], sum);
    for (u32 r = 0; r < M::C_ROWS; ++r) store(out + M::c_row(r) * 16 + lane_id() % 16, sum[r]);
}
#endif
