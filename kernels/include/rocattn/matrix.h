// The 16x16 matrix product of a wave, C[16][16] += A[16][DEPTH] * B[DEPTH][16], in one form for every GPU.
//
//   target            instruction            DEPTH  a lane's A, B      row of C in register r of lane l (column l % 16)
//   gfx11, 16-bit     v_wmma 16x16x16        16     16, both halves    2 r + l / 16
//   gfx12, 16-bit     v_wmma 16x16x16        16     8                  8 (l / 16) + r
//   gfx90a, gfx942    v_mfma 16x16x16        16     4                  4 (l / 16) + r
//   gfx950, 16-bit    v_mfma 16x16x32        32     8                  4 (l / 16) + r
//   8-bit             see fp8.h
//   sm_80 on, 16-bit  2 x mma.m16n8k16       16     8, of two rows     see there
//   all others, f32   v_fma                  4      see VectorMatrix   (16 / (WAVE / 16)) (l / 16) + r
//
// A is distributed by rows and B by columns: a lane has adjacent elements, along the depth, of row (column) l % 16. The
// depth may be permuted as long as A and B agree, so a lane reads memory in contiguous order.
//
// Products chain without a trip through LDS: C^T of the first product (its columns: queries) becomes B of the second.
// `chain` does that; the depth positions of the second product then correspond to the rows of C in `chain_row` order,
// and its A must be laid out in LDS in that order.
//
// Layouts: AMD matrix instruction calculator; LLVM AMDGPU builtins.
#pragma once

#include <rocattn/device.h>

namespace rocattn {

// Matrix<T> has
//   Element               element type of LDS tiles (T, or float for VectorMatrix)
//   DEPTH, C_ROWS         depth of one product; registers of C per lane
//   A, B, C               fragments
//   column(), part()      this lane's column of C; which of the WAVE / 16 parts of the rows it has
//   of_column(value, c)   the value in the lane with column c and the same rows; c is a constant
//   c_row(r)              the row of C that register r of this lane holds, once `arranged`
//   row_step(r)           c_row(r) - c_row(0), a constant
//   PAIRED                whether accumulators hold parts of two columns, and so must be `arranged`
//   a_from_lds(tile, stride)    A from a row-major LDS tile: element (row, k) at tile[row * stride + k]
//   b_from_lds(tile, stride)    B likewise: element (k, column) at tile[column * stride + k]
//   multiply(a, b, c)     returns c + a * b
//   CHAIN                 rows of C that form one group in `chain`: 16, or 32 where DEPTH is 32
//   chain(c, b)           CHAIN / 16 tiles of C -> CHAIN / DEPTH fragments of B, rounded to T
//   chain_row(p)          the row (0 ... CHAIN - 1) at depth position p of the chained product
template <typename T>
struct Matrix;

namespace detail {

// The column of C that a lane has, on all AMD GPUs.
struct LanePlace {
    static constexpr bool PAIRED = false;
    static ROCATTN_INLINE u32 column(u32 lane = lane_id()) { return lane % 16; }
    static ROCATTN_INLINE u32 part(u32 lane = lane_id()) { return lane / 16; }
    static ROCATTN_INLINE float of_column(float value, u32 column, Where where = Where::here()) {
        return shared_by_16(value, column, where);
    }
};

// The upper 16 bits of two words as one word: v_perm_b32, which the compiler does not always select by itself.
ROCATTN_INLINE u32 high_halves(u32 first, u32 second) {
#ifndef __AMDGCN__
    return first >> 16 | (second & 0xffff0000u);
#else
    return __builtin_amdgcn_perm(second, first, 0x07060302u);
#endif
}

// Packs two floats, rounded to nearest, as 16-bit elements of a word; bf16 ties round away from zero, which takes one
// instruction less than to even and differs for one value in 65536. A softmax's P and gradients are no signaling NaNs.
template <typename T>
ROCATTN_INLINE u32 narrow(float first, float second);
template <>
ROCATTN_INLINE u32 narrow<f16>(float first, float second) {
    return __builtin_bit_cast(u32, Vector<f16, 2>{static_cast<f16>(first), static_cast<f16>(second)});
}
template <>
ROCATTN_INLINE u32 narrow<bf16>(float first, float second) {
#if defined(__gfx950__) && defined(__AMDGCN__)  // v_cvt_pk_bf16_f32
    typedef __bf16 bf16x2 __attribute__((ext_vector_type(2)));
    return __builtin_bit_cast(u32, __builtin_convertvector((Vector<float, 2>{first, second}), bf16x2));
#else
    return high_halves(__builtin_bit_cast(u32, first) + 0x8000u, __builtin_bit_cast(u32, second) + 0x8000u);
#endif
}

// Fragments of contiguous elements: lane l reads WIDTH of them from row l % 16; its part of the depth is l / 16.
template <typename T, u32 WIDTH, bool SPLIT>
ROCATTN_INLINE Vector<T, WIDTH> contiguous_fragment(const T* tile, u32 stride, Where where) {
    const T* row = tile + lane_id() % 16 * stride + (SPLIT ? lane_id() / 16 * WIDTH : 0);
    if constexpr (WIDTH == 16) {
        const auto low = lds_load<T, 8>(row, where), high = lds_load<T, 8>(row + 8, where);
        return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    } else {
        return lds_load<T, WIDTH>(row, where);
    }
}

}  // namespace detail

// float32 (and everything on GPUs without matrix instructions): fused multiply-adds. A lane computes C_ROWS rows of its
// column, so A is read for those rows (the same address in 16 lanes: a broadcast) and B in full depth.
struct VectorMatrix : detail::LanePlace {
    using Element = float;
    static constexpr u32 DEPTH = 4;
    static constexpr u32 C_ROWS = 256 / WAVE;
    static constexpr u32 CHAIN = 16;
    struct A {
        Vector<float, 4> row[C_ROWS];
    };
    using B = Vector<float, 4>;
    using C = Vector<float, C_ROWS>;

    static ROCATTN_INLINE u32 c_row(u32 r, u32 lane = lane_id()) { return lane / 16 * C_ROWS + r; }
    static constexpr __device__ u32 row_step(u32 r) { return r; }
    static ROCATTN_INLINE A a_from_lds(const float* tile, u32 stride, Where where = Where::here()) {
        A a;
#pragma unroll
        for (u32 r = 0; r < C_ROWS; ++r) a.row[r] = lds_load<float, 4>(tile + c_row(r) * stride, where);
        return a;
    }
    static ROCATTN_INLINE B b_from_lds(const float* tile, u32 stride, Where where = Where::here()) {
        return lds_load<float, 4>(tile + lane_id() % 16 * stride, where);
    }
    static ROCATTN_INLINE C multiply(const A& a, B b, C c, Where = Where::here()) {
#pragma unroll
        for (u32 r = 0; r < C_ROWS; ++r)
#pragma unroll
            for (u32 k = 0; k < 4; ++k) c[r] = __builtin_fmaf(a.row[r][k], b[k], c[r]);
        return c;
    }
    static ROCATTN_INLINE void chain(const C (&c)[1], B (&b)[4], Where where = Where::here()) {
#pragma unroll
        for (u32 row = 0; row < 16; ++row)  // from the lane that has it
            b[row / 4][row % 4] = shuffle(c[0][row % C_ROWS], row / C_ROWS * 16 + lane_id() % 16, where);
    }
    static ROCATTN_INLINE u32 chain_row(u32 position) { return position; }
};

template <>
struct Matrix<float> : VectorMatrix {};

#if defined(__GFX11__)

template <typename T>
struct Matrix : detail::LanePlace {
    using Element = T;
    static constexpr u32 DEPTH = 16, C_ROWS = 8, CHAIN = 16;
    using A = Vector<T, 16>;  // lanes 16 ... 31 copy lanes 0 ... 15
    using B = Vector<T, 16>;
    using C = Vector<float, 8>;

    static ROCATTN_INLINE u32 c_row(u32 r, u32 lane = lane_id()) { return 2 * r + lane / 16; }
    static constexpr __device__ u32 row_step(u32 r) { return 2 * r; }
    static ROCATTN_INLINE A a_from_lds(const T* tile, u32 stride, Where where = Where::here()) {
        return detail::contiguous_fragment<T, 16, false>(tile, stride, where);
    }
    static ROCATTN_INLINE B b_from_lds(const T* tile, u32 stride, Where where = Where::here()) {
        return a_from_lds(tile, stride, where);
    }
    static ROCATTN_INLINE C multiply(A a, B b, C c, Where where = Where::here()) { return wmma_gfx11(a, b, c, where); }
    // A lane has the even or the odd rows; its partner 16 lanes away has the others: evens first, then odds.
    static ROCATTN_INLINE void chain(const C (&c)[1], B (&b)[1], Where where = Where::here()) {
        Vector<u32, 4> mine, other;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            mine[i] = detail::narrow<T>(c[0][2 * i], c[0][2 * i + 1]);
            other[i] = exchange_halves(mine[i], where);
        }
        const bool odd = lane_id() >= 16;
        Vector<u32, 8> both;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            both[i] = odd ? other[i] : mine[i];
            both[4 + i] = odd ? mine[i] : other[i];
        }
        b[0] = __builtin_bit_cast(B, both);
    }
    static ROCATTN_INLINE u32 chain_row(u32 position) { return position % 8 * 2 + position / 8; }
};

#elif defined(__GFX12__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)

template <typename T>
struct Matrix : detail::LanePlace {
    using Element = T;
#if defined(__GFX12__)
    static constexpr u32 DEPTH = 16, C_ROWS = 8, CHAIN = 16, WIDTH = 8;
#elif defined(__gfx950__)
    static constexpr u32 DEPTH = 32, C_ROWS = 4, CHAIN = 32, WIDTH = 8;
#else
    static constexpr u32 DEPTH = 16, C_ROWS = 4, CHAIN = 16, WIDTH = 4;
#endif
    using A = Vector<T, WIDTH>;
    using B = Vector<T, WIDTH>;
    using C = Vector<float, C_ROWS>;

    static ROCATTN_INLINE u32 c_row(u32 r, u32 lane = lane_id()) { return lane / 16 * C_ROWS + r; }
    static constexpr __device__ u32 row_step(u32 r) { return r; }
    static ROCATTN_INLINE A a_from_lds(const T* tile, u32 stride, Where where = Where::here()) {
        return detail::contiguous_fragment<T, WIDTH, true>(tile, stride, where);
    }
    static ROCATTN_INLINE B b_from_lds(const T* tile, u32 stride, Where where = Where::here()) {
        return a_from_lds(tile, stride, where);
    }
    static ROCATTN_INLINE C multiply(A a, B b, C c, Where where = Where::here()) {
#if defined(__GFX12__)
        return wmma_gfx12(a, b, c, where);
#elif defined(__gfx950__)
        return mfma_16x16x32(a, b, c, where);
#else
        return mfma_16x16x16(a, b, c, where);
#endif
    }
    // A lane's rows of C are the depth positions of its B: only the conversion remains.
    static ROCATTN_INLINE void chain(const C (&c)[CHAIN / 16], B (&b)[1], Where = Where::here()) {
        Vector<u32, WIDTH / 2> words;
#pragma unroll
        for (u32 i = 0; i < WIDTH; i += 2)
            words[i / 2] = detail::narrow<T>(c[i / C_ROWS][i % C_ROWS], c[i / C_ROWS][i % C_ROWS + 1]);
        b[0] = __builtin_bit_cast(B, words);
    }
    // Lane part g has positions from WIDTH g on: rows from C_ROWS g on of each tile, tile after tile.
    static ROCATTN_INLINE u32 chain_row(u32 position) {
        return position % WIDTH / C_ROWS * 16 + position / WIDTH * C_ROWS + position % C_ROWS;
    }
};

#elif defined(__NVPTX__)

// Two mma.m16n8k16, as C = B A: their M is our column, so that P becomes an operand where it is. Lane (g, t) = (l / 4,
// l % 4) has accumulators of columns g and g + 8: c[0], c[1] of rows 2 t, 2 t + 1 of column g, c[2], c[3] the same for
// g + 8, c[4] ... c[7] for 8 rows further down. `arranged` exchanges with lane l ^ 1, so that each lane has one column,
// g + 8 (t % 2), with four rows from 4 (t / 2) on and four from 8 + 4 (t / 2) on. Of A and B, lane t takes the four
// depth positions from 8 (t % 2) + 4 (t / 2) on.
template <typename T>
struct Matrix {
    using Element = T;
    static constexpr u32 DEPTH = 16, C_ROWS = 8, CHAIN = 16;
    static constexpr bool PAIRED = true;
    using A = Vector<T, 8>;  // 4 of row g, 4 of row g + 8
    using B = Vector<T, 8>;
    using C = Vector<float, 8>;

    static ROCATTN_INLINE bool odd() { return lane_id() % 2 != 0; }
    static ROCATTN_INLINE u32 column(u32 lane = lane_id()) { return lane / 4 + lane % 2 * 8; }
    static ROCATTN_INLINE u32 part(u32 lane = lane_id()) { return lane / 2 % 2; }
    static ROCATTN_INLINE float of_column(float value, u32 column, Where where = Where::here()) {
        return shuffle(value, column % 8 * 4 + part() * 2 + column / 8, where);
    }
    static constexpr __device__ u32 row_step(u32 r) { return r + r / 4 * 4; }
    static ROCATTN_INLINE u32 c_row(u32 r, u32 lane = lane_id()) { return 4 * part(lane) + row_step(r); }

    // `skip`: elements between rows 7 and 8 in addition to the stride.
    static ROCATTN_INLINE A from_lds(const T* tile, u32 stride, u32 skip, Where where) {
        const T* row = tile + lane_id() / 4 * stride + lane_id() % 2 * 8 + lane_id() / 2 % 2 * 4;
        const auto low = lds_load<T, 4>(row, where), high = lds_load<T, 4>(row + 8 * stride + skip, where);
        return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    }
    static ROCATTN_INLINE A a_from_lds(const T* tile, u32 stride, Where where = Where::here()) {
        return from_lds(tile, stride, 0, where);
    }
    static ROCATTN_INLINE B b_from_lds(const T* tile, u32 stride, Where where = Where::here()) {
        return from_lds(tile, stride, 0, where);
    }
    static ROCATTN_INLINE C multiply(A a, B b, C c, Where = Where::here()) {
        const auto rows = __builtin_bit_cast(Vector<u32, 4>, a), columns = __builtin_bit_cast(Vector<u32, 4>, b);
        const Vector<u32, 4> first{columns[0], columns[2], columns[1], columns[3]};
        const auto low = mma_16x8x16<T>(first, rows[0], rows[1], __builtin_shufflevector(c, c, 0, 1, 2, 3));
        const auto high = mma_16x8x16<T>(first, rows[2], rows[3], __builtin_shufflevector(c, c, 4, 5, 6, 7));
        return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    }
    // Its own inverse.
    static ROCATTN_INLINE C arranged(C c, Where where = Where::here()) {
        C rows;
#pragma unroll
        for (u32 half = 0; half < 8; half += 4)
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const float own = odd() ? c[half + 2 + i] : c[half + i];
                const float received = shuffle_xor(odd() ? c[half + i] : c[half + 2 + i], 1, where);
                rows[half + i] = odd() ? received : own;
                rows[half + 2 + i] = odd() ? own : received;
            }
        return rows;
    }
    // Takes C arranged. Rows 4 p ... of both columns go to the even lane, rows 8 + 4 p ... to the odd one.
    static ROCATTN_INLINE void chain(const C (&c)[1], B (&b)[1], Where where = Where::here()) {
        Vector<u32, 4> words, both;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) words[i] = detail::narrow<T>(c[0][2 * i], c[0][2 * i + 1]);
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 received = shuffle_xor(odd() ? words[i] : words[2 + i], 1, where);
            both[i] = odd() ? received : words[i];
            both[2 + i] = odd() ? words[2 + i] : received;
        }
        b[0] = __builtin_bit_cast(B, both);
    }
    static ROCATTN_INLINE u32 chain_row(u32 position) { return position; }
};

#else

template <typename T>
struct Matrix : VectorMatrix {};

#endif

}  // namespace rocattn
