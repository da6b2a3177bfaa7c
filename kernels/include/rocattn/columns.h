// Vectors of a row in global memory whose last columns may not exist, and the transfer of rows to LDS.
#pragma once

#include <rocattn/fp8.h>
#include <rocattn/fragments.h>

namespace rocattn {

// N elements, of which the first `count` exist; zeros for the others.
template <typename T, u32 N>
ROCATTN_INLINE Vector<T, N> load_some(const T* address, u32 count, Where where = Where::here()) {
    if (count >= N) return load<T, N>(address, where);
    Vector<T, N> value = {};
#pragma unroll
    for (u32 i = 0; i < N; ++i)
        if (i < count) value[i] = __builtin_bit_cast(typename detail::RawOf<T>::type, load(address + i, where));
    return value;
}

// N elements from `column` on of a row with `columns` of them; zeros beyond.
template <typename T, u32 N>
ROCATTN_INLINE Vector<T, N> load_columns(const T* row, u32 column, u32 columns, Where where = Where::here()) {
    return load_some<T, N>(row + column, columns > column ? columns - column : 0, where);
}

template <typename T, u32 N>
ROCATTN_INLINE void store_columns(T* row, u32 column, u32 columns, Vector<T, N> value, Where where = Where::here()) {
    if (column + N <= columns) {
        store<T, N>(row + column, value, where);
        return;
    }
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
        const typename detail::RawOf<T>::type raw = value[i];  // __builtin_bit_cast of value[i] itself takes element 0
        if (column + i < columns) store(row + column + i, __builtin_bit_cast(T, raw), where);
    }
}

// In the place of a STEP: any column count, found at run time. Chunks at the end of a row are loaded element by element
// in a branch of their own.
constexpr u32 ANY_COLUMNS = ~0u;

// In rows whose column count is a multiple of STEP, a chunk of WIDTH elements has pieces of STEP (at most WIDTH;
// 0: whole chunks), each of which exists or not. A missing piece is read from column 0 instead and zeroed where needed:
// without branches, the loads of a tile stay in flight together, and no predicate is kept for each.
template <typename T, u32 WIDTH, u32 STEP>
struct Pieces {
    static constexpr u32 SIZE = STEP == 0 || STEP > WIDTH ? WIDTH : STEP, COUNT = WIDTH / SIZE;
    static constexpr u32 WORD = 4 / sizeof(T);  // elements per word
    using Words = Vector<u32, WIDTH / WORD>;

    // Piece p of the chunk at `column`: the column from which it is read.
    static ROCATTN_INLINE u32 column(u32 p, u32 column, u32 columns) {
        return column + p * SIZE < columns ? column + p * SIZE : 0;
    }

    template <typename AddressOf>
    static ROCATTN_INLINE Vector<T, WIDTH> load_all(const AddressOf& address_of, Where where = Where::here()) {
        Vector<T, WIDTH> chunk;
#pragma unroll
        for (u32 p = 0; p < COUNT; ++p) {
            const auto piece = load<T, SIZE>(address_of(p), where);
#pragma unroll
            for (u32 e = 0; e < SIZE; ++e) chunk[p * SIZE + e] = piece[e];
        }
        return chunk;
    }

    // A chunk with zeros for missing pieces.
    static ROCATTN_INLINE Vector<T, WIDTH> existing(Vector<T, WIDTH> chunk, u32 column, u32 columns) {
        auto words = __builtin_bit_cast(Words, chunk);
#pragma unroll
        for (u32 w = 0; w < WIDTH / WORD; ++w) {
            const u32 first = column + w * WORD;
            u32 mask = column + w * WORD / SIZE * SIZE < columns ? ~0u : 0u;
            if constexpr (SIZE < WORD) mask &= first + 1 < columns ? ~0u : 0xffffu;
            words[w] &= mask;
        }
        return __builtin_bit_cast(Vector<T, WIDTH>, words);
    }
};

template <typename T, u32 N, u32 STEP>
ROCATTN_INLINE void store_pieces(T* row, u32 column, u32 columns, Vector<T, N> value, Where where = Where::here()) {
    using P = Pieces<T, N, STEP>;
#pragma unroll
    for (u32 p = 0; p < P::COUNT; ++p) {
        Vector<T, P::SIZE> piece;
#pragma unroll
        for (u32 e = 0; e < P::SIZE; ++e) piece[e] = value[p * P::SIZE + e];
        if (column + p * P::SIZE < columns) store<T, P::SIZE>(row + column + p * P::SIZE, piece, where);
    }
}

// Floats as T, nearest even.
template <typename T, u32 N>
ROCATTN_INLINE Vector<T, N> rounded(Vector<float, N> x) {
    Vector<T, N> y;
#pragma unroll
    for (u32 i = 0; i < N; ++i) y[i] = raw_from_float<T>(x[i]);
    return y;
}

template <typename T>
constexpr bool is_f16 = false;
template <>
constexpr bool is_f16<f16> = true;

// Writes elements to an LDS tile, converted to its type.
template <typename Element, typename T, u32 N>
ROCATTN_INLINE void put_elements(Element* at, Vector<T, N> x, Where where = Where::here()) {
    if constexpr (sizeof(Element) == sizeof(T)) {
        lds_store<Element, N>(at, x, where);
    } else {
#pragma unroll
        for (u32 i = 0; i < N; i += 4) {
            Vector<float, 4> part;
#pragma unroll
            for (u32 e = 0; e < 4; ++e) part[e] = to_float(x[i + e]);
            lds_store<float, 4>(at + i, part, where);
        }
    }
}

// The lower 16 bits of two words as one word.
ROCATTN_INLINE u32 low_halves(u32 first, u32 second) {
#ifndef __AMDGCN__
    return (first & 0xffffu) | second << 16;
#else
    return __builtin_amdgcn_perm(second, first, 0x05040100u);
#endif
}
// 4 rows of N elements as N columns of 4 (V, C: Vector<T, N> and Vector<T, 4>). Two 16-bit elements are combined
// into a word by one v_perm.
template <typename V, typename C, u32 N>
ROCATTN_INLINE void transpose(const V (&rows)[4], C (&columns)[N]) {
    if constexpr (sizeof(C) == 8) {
        Vector<u32, N / 2> words[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) words[i] = __builtin_bit_cast(Vector<u32, N / 2>, rows[i]);
#pragma unroll
        for (u32 e = 0; e < N; ++e) {
            Vector<u32, 2> pairs;
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const u32 first = words[2 * i][e / 2], second = words[2 * i + 1][e / 2];
                pairs[i] = e % 2 == 0 ? low_halves(first, second) : detail::high_halves(first, second);
            }
            columns[e] = __builtin_bit_cast(C, pairs);
        }
    } else {
#pragma unroll
        for (u32 e = 0; e < N; ++e)
#pragma unroll
            for (u32 i = 0; i < 4; ++i) columns[e][i] = rows[i][e];
    }
}

// 16 rows of T, one wave's share, into a row-major LDS tile with COLUMNS columns; columns from `columns` (a multiple of
// STEP) on, and rows whose pointer is null, become 0. row_at(row) is the address of a row, as it is stored.
template <typename T, typename Element, u32 COLUMNS, u32 STEP, typename Stored = T, typename RowAt>
ROCATTN_INLINE void stage_rows(Element* tile, const RowAt& row_at, u32 columns, Where where = Where::here()) {
    constexpr u32 WIDTH = VECTOR_BYTES / sizeof(T), CHUNKS = COLUMNS / WIDTH;
    using P = Pieces<Stored, WIDTH, STEP>;
    for (u32 unit = lane_id(); unit < 16 * CHUNKS; unit += WAVE) {
        const Stored* row = row_at(unit / CHUNKS);
        const u32 column = unit % CHUNKS * WIDTH;
        Vector<Stored, WIDTH> x = {};
        if (!row) {
        } else if constexpr (STEP == ANY_COLUMNS) {
            x = load_columns<Stored, WIDTH>(row, column, columns, where);
        } else {
            x = P::load_all([&](u32 p) { return row + P::column(p, column, columns); }, where);
            x = P::existing(x, column, columns);
        }
        Element* place = tile + unit / CHUNKS * row_stride<Element>(COLUMNS) + column;
        put_elements<Element, T, WIDTH>(place, as_computed<T, Stored, WIDTH>(x), where);
    }
}

}  // namespace rocattn
