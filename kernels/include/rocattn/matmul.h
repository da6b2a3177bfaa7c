// The block-level matrix product of the standard path, shared by qk_matmul and pv_matmul: C^T[row][query], a 64x64 tile
// per block, staged through LDS. Its rows are keys (of K) or features (of V), so a lane's column is a query and its
// registers are adjacent elements of that query's row in memory: results are stored 16 bytes at a time.
//
// The instruction determines the row order of C (matrix.h); the rows of A are put into LDS in the order that makes the
// registers of a lane adjacent rows: row p of the tile is at chain_row(p).
//
// A block has 2x2 waves, each with a 32x32 tile. While a wave multiplies one step of the depth, the loads of the next
// step are in flight.
#pragma once

#include <rocattn/tile.h>

namespace rocattn {

constexpr u32 MATMUL_TILE = 64;
constexpr u32 MATMUL_THREADS = 4 * WAVE;

// A matrix in global memory: rows of `columns` elements, row_stride elements apart, contiguous within a row.
// Elements outside of it read as 0.
template <typename T>
struct GlobalMatrix {
    const T* data;
    i64 row_stride;
    u32 rows;
    u32 columns;
};

namespace detail {

template <typename T>
struct MatmulShape {
    using M = Matrix<T>;
    using Element = typename M::Element;
    static constexpr u32 VECTOR = VECTOR_BYTES / sizeof(T);            // of global memory
    static constexpr u32 STEP = sizeof(Element) == 2 ? 64 : 32;        // depth in LDS at a time
    static constexpr u32 PAD = VECTOR_BYTES / sizeof(Element);         // 16 bytes, as in tile.h
    static constexpr u32 STRIDE = STEP + PAD;                          // of a tile [64][STEP]
    static constexpr u32 UPRIGHT_STRIDE = MATMUL_TILE + PAD;           // of a tile [STEP][64]
    static constexpr bool MATRIX_UNITS = sizeof(Element) == 2;
    static constexpr u32 TILES = 2;                                    // 16x16 tiles per wave in each dimension
    static constexpr u32 TILE_ELEMENTS = MATMUL_TILE * STRIDE;         // of A or B in LDS; [STEP][64] is smaller
    static constexpr u32 RUN = M::CHAIN / (WAVE / 16);                 // adjacent rows of C^T in a lane
    static constexpr u32 GROUPS = TILES * 16 / M::CHAIN;               // such runs
};

// The matrix unit of CDNA 2 treats subnormal inputs as 0. With many keys, probabilities are subnormal f16 (above 16384
// keys all of them may be), so there they are multiplied by this on the way to LDS, and the sums divided by it.
template <typename T>
constexpr float PROBABILITY_UNIT = 1.0f;
#if defined(__gfx90a__)
template <>
constexpr float PROBABILITY_UNIT<f16> = 4096.0f;
#endif

// The LDS position of row p of a tile of A.
template <typename M>
ROCATTN_INLINE u32 stored_row(u32 p) {
    return p / M::CHAIN * M::CHAIN + M::chain_row(p % M::CHAIN);
}

// This thread's share of ROWS x COLUMNS elements on their way from memory to LDS.
template <typename T, u32 ROWS, u32 COLUMNS>
struct Staged {
    static constexpr u32 VECTOR = MatmulShape<T>::VECTOR, PER_ROW = COLUMNS / VECTOR;
    static constexpr u32 COUNT = ROWS * PER_ROW / MATMUL_THREADS;
    Vector<T, VECTOR> part[COUNT];

    ROCATTN_INLINE void fetch(const GlobalMatrix<T>& from, u32 first_row, u32 first_column) {
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n) {
            const u32 v = n * MATMUL_THREADS + thread_id();
            const u32 row = first_row + v / PER_ROW, column = first_column + v % PER_ROW * VECTOR;
            part[n] = load_columns<T, VECTOR>(from.data + row * from.row_stride, column,
                                              row < from.rows ? from.columns : 0);
        }
    }
    ROCATTN_INLINE void multiply_by(float unit) {
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n) part[n] *= static_cast<typename RawOf<T>::type>(unit);
    }
    // Writes to [ROWS][stride]; PERMUTED: in `stored_row` order.
    template <bool PERMUTED>
    ROCATTN_INLINE void put_rows(typename Matrix<T>::Element* tile, u32 stride) const {
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n) {
            const u32 v = n * MATMUL_THREADS + thread_id(), row = v / PER_ROW;
            const u32 at = PERMUTED ? stored_row<Matrix<T>>(row) : row;
            put_elements<typename Matrix<T>::Element, T, VECTOR>(tile + at * stride + v % PER_ROW * VECTOR, part[n]);
        }
    }
};

// The same, transposed on the way: columns become rows, in `stored_row` order. A thread has VECTOR columns of two
// adjacent rows and writes pairs; 8 lanes with adjacent pairs write 32 contiguous bytes.
template <typename T, u32 ROWS, u32 COLUMNS>
struct StagedTransposed {
    static constexpr u32 VECTOR = MatmulShape<T>::VECTOR, PAIRS = ROWS / 2, LANES = 8;
    static constexpr u32 PER_ROW = COLUMNS / VECTOR;
    static constexpr u32 COUNT = PAIRS * PER_ROW / MATMUL_THREADS;
    Vector<T, VECTOR> part[COUNT][2];

    static ROCATTN_INLINE u32 row_of(u32 v) { return (v / (LANES * PER_ROW) * LANES + v % LANES) * 2; }
    static ROCATTN_INLINE u32 column_of(u32 v) { return v / LANES % PER_ROW * VECTOR; }

    ROCATTN_INLINE void fetch(const GlobalMatrix<T>& from, u32 first_row, u32 first_column) {
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n) {
            const u32 v = n * MATMUL_THREADS + thread_id(), column = first_column + column_of(v);
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const u32 row = first_row + row_of(v) + half;
                part[n][half] = load_columns<T, VECTOR>(from.data + row * from.row_stride, column,
                                                        row < from.rows ? from.columns : 0);
            }
        }
    }
    ROCATTN_INLINE void put_columns(T* tile, u32 stride) const {
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n) {
            const u32 v = n * MATMUL_THREADS + thread_id();
#pragma unroll
            for (u32 i = 0; i < VECTOR; ++i)
                lds_store<T, 2>(tile + stored_row<Matrix<T>>(column_of(v) + i) * stride + row_of(v),
                                Vector<T, 2>{part[n][0][i], part[n][1][i]});
        }
    }
};

}  // namespace detail

// The accumulators of a wave, and their positions in C^T.
template <typename T>
struct MatmulTile {
    using Shape = detail::MatmulShape<T>;
    using M = Matrix<T>;
    static constexpr u32 RUN = Shape::RUN, GROUPS = Shape::GROUPS, COLUMN_TILES = Shape::TILES;
    typename M::C c[Shape::TILES][Shape::TILES] = {};  // [row tile][column tile]

    // The start of this wave's tile within the block's.
    static ROCATTN_INLINE u32 wave_row() { return uniform(wave_id()) / 2 * (MATMUL_TILE / 2); }
    static ROCATTN_INLINE u32 wave_column() { return uniform(wave_id()) % 2 * (MATMUL_TILE / 2); }
    // The first of RUN rows that run `group` of this lane holds, and its column in column tile `t`.
    static ROCATTN_INLINE u32 run_row(u32 group) { return wave_row() + group * M::CHAIN + M::part() * RUN; }
    static ROCATTN_INLINE u32 column(u32 t) { return wave_column() + t * 16 + M::column(); }
    // Element i of run `group` in column tile t.
    ROCATTN_INLINE float at(u32 group, u32 i, u32 t) const {
        return c[group * (M::CHAIN / 16) + i / M::C_ROWS][t][i % M::C_ROWS];
    }

    // One step of the depth. Floats are summed in fours, then by step: a single chain over thousands of keys would have
    // larger rounding errors than BLAS.
    template <typename LoadA>
    ROCATTN_INLINE void multiply(LoadA load_a, const typename M::Element* b_tile) {
        constexpr u32 TILES = Shape::TILES;
        typename M::C sum[TILES][TILES];
#pragma unroll
        for (u32 i = 0; i < TILES * TILES; ++i)
            sum[i / TILES][i % TILES] = Shape::MATRIX_UNITS ? c[i / TILES][i % TILES] : typename M::C{};
        // Not fully unrolled: the compiler would load all fragments of the step first, and need registers for them.
#pragma unroll Shape::MATRIX_UNITS ? 2 : 1
        for (u32 k = 0; k < Shape::STEP; k += M::DEPTH) {
            typename M::A a[TILES];
            typename M::B b[TILES];
#pragma unroll
            for (u32 t = 0; t < TILES; ++t) a[t] = load_a(wave_row() + t * 16, k);
#pragma unroll
            for (u32 t = 0; t < TILES; ++t)
                b[t] = M::b_from_lds(b_tile + (wave_column() + t * 16) * Shape::STRIDE + k, Shape::STRIDE);
#pragma unroll
            for (u32 i = 0; i < TILES; ++i)
#pragma unroll
                for (u32 j = 0; j < TILES; ++j)
                    sum[i][j] = Shape::MATRIX_UNITS ? M::multiply(a[i], b[j], sum[i][j])
                                                    : sum[i][j] + M::multiply(a[i], b[j], typename M::C{});
        }
#pragma unroll
        for (u32 i = 0; i < TILES * TILES; ++i) {
            typename M::C& total = c[i / TILES][i % TILES];
            total = Shape::MATRIX_UNITS ? sum[i / TILES][i % TILES] : total + sum[i / TILES][i % TILES];
        }
    }

    // C^T = A B^T, both with the depth contiguous (K and Q, by head dimension). LDS: TILE_ELEMENTS each.
    ROCATTN_INLINE void multiply_rows(const GlobalMatrix<T>& a, u32 a_row, const GlobalMatrix<T>& b, u32 b_row,
                                      typename M::Element* a_tile, typename M::Element* b_tile) {
        detail::Staged<T, MATMUL_TILE, Shape::STEP> next_a, next_b;
        if (a.columns == 0) return;
        next_a.fetch(a, a_row, 0);
        next_b.fetch(b, b_row, 0);
        for (u32 depth = 0; depth < a.columns; depth += Shape::STEP) {
            next_a.template put_rows<true>(a_tile, Shape::STRIDE);
            next_b.template put_rows<false>(b_tile, Shape::STRIDE);
            block_barrier();
            if (depth + Shape::STEP < a.columns) {
                next_a.fetch(a, a_row, depth + Shape::STEP);
                next_b.fetch(b, b_row, depth + Shape::STEP);
            }
            multiply([&](u32 row, u32 k) { return M::a_from_lds(a_tile + row * Shape::STRIDE + k, Shape::STRIDE); },
                     b_tile);
            block_barrier();
        }
        arrange();
    }

    // C^T = A^T B^T: A has the depth along its rows (V: one row per key), B along its columns (P). Matrix units take A
    // transposed from LDS; vector units, whose lanes have adjacent rows of C^T, take it as it is.
    ROCATTN_INLINE void multiply_columns(const GlobalMatrix<T>& a, u32 a_column, const GlobalMatrix<T>& b, u32 b_row,
                                         typename M::Element* a_tile, typename M::Element* b_tile) {
        using StagedA =
            typename detail::Select<Shape::MATRIX_UNITS, detail::StagedTransposed<T, Shape::STEP, MATMUL_TILE>,
                                    detail::Staged<T, Shape::STEP, MATMUL_TILE>>::type;
        StagedA next_a;
        detail::Staged<T, MATMUL_TILE, Shape::STEP> next_b;
        if (a.rows == 0) return;
        next_a.fetch(a, 0, a_column);
        next_b.fetch(b, b_row, 0);
        for (u32 depth = 0; depth < a.rows; depth += Shape::STEP) {
            if constexpr (Shape::MATRIX_UNITS)
                next_a.put_columns(a_tile, Shape::STRIDE);
            else
                next_a.template put_rows<false>(a_tile, Shape::UPRIGHT_STRIDE);
            if constexpr (detail::PROBABILITY_UNIT<T> != 1.0f) next_b.multiply_by(detail::PROBABILITY_UNIT<T>);
            next_b.template put_rows<false>(b_tile, Shape::STRIDE);
            block_barrier();
            if (depth + Shape::STEP < a.rows) {
                next_a.fetch(a, depth + Shape::STEP, a_column);
                next_b.fetch(b, b_row, depth + Shape::STEP);
            }
            if constexpr (Shape::MATRIX_UNITS)
                multiply([&](u32 row, u32 k) { return M::a_from_lds(a_tile + row * Shape::STRIDE + k, Shape::STRIDE); },
                         b_tile);
            else
                multiply([&](u32 row, u32 k) { return upright_a(a_tile + k * Shape::UPRIGHT_STRIDE + row); }, b_tile);
            block_barrier();
        }
        if constexpr (detail::PROBABILITY_UNIT<T> != 1.0f)
#pragma unroll
            for (u32 i = 0; i < Shape::TILES * Shape::TILES; ++i)
                c[i / Shape::TILES][i % Shape::TILES] *= 1.0f / detail::PROBABILITY_UNIT<T>;
        arrange();
    }

private:
    ROCATTN_INLINE void arrange() {
        if constexpr (M::PAIRED)
#pragma unroll
            for (u32 i = 0; i < Shape::TILES * Shape::TILES; ++i)
                c[i / Shape::TILES][i % Shape::TILES] = contiguous_rows<M>(c[i / Shape::TILES][i % Shape::TILES]);
    }
    static ROCATTN_INLINE typename M::A upright_a(const float* tile) {
        typename M::A a;
#pragma unroll
        for (u32 k = 0; k < M::DEPTH; ++k)
#pragma unroll
            for (u32 r = 0; r < M::C_ROWS; r += 4) {
                const auto four = lds_load<float, 4>(tile + k * Shape::UPRIGHT_STRIDE + M::c_row(r));
#pragma unroll
                for (u32 i = 0; i < 4; ++i) a.row[r + i][k] = four[i];
            }
        return a;
    }
};

}  // namespace rocattn
