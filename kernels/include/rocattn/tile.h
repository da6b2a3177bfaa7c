// Tiles of a [rows, columns] matrix on their way from global memory through registers to LDS, and from there to matrix
// fragments. Shared by the attention kernels.
//
// A tile is fetched in two steps, so that its loads are in flight while the tile before it is being used:
// `fetch` issues them, `put` writes the registers to LDS. A RowTile lies in LDS as in memory; a TransposedTile has the
// columns as LDS rows, with its rows (the depth of the next product) in the order in which Matrix::chain wants them.
//
// LDS rows are 16 bytes longer than a multiple of 32, so that eight lanes that read 16 bytes each from consecutive rows
// hit all banks once; transposed tiles skip another 16 bytes after every 8 rows, so that their writes spread as well.
//
// Rows are addressed as base + 32-bit byte offset, the base being the same in all lanes (an SGPR pair, advanced by
// scalar additions). So KEY_TILE * |stride| * sizeof(T) must stay below 2^32; any sign of the stride will do.
#pragma once

#include <rocattn/fragments.h>
#include <rocattn/hints.h>

namespace rocattn {

// ---- global memory -------------------------------------------------------------------------------------------------

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

// Elements as an LDS tile holds them, written to it.
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
// 4 rows of N elements as N columns of 4 (V, C: Vector<T, N> and Vector<T, 4>). Two elements of 16 bits are put
// together as a word, one v_perm each.
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

// 16 rows of T, one wave's share, into a row-major LDS tile with COLUMNS columns; columns from `columns` on, and rows
// whose pointer is null, become 0. row_at(row) is the address of a row.
template <typename T, typename Element, u32 COLUMNS, typename RowAt>
ROCATTN_INLINE void stage_rows(Element* tile, const RowAt& row_at, u32 columns, Where where = Where::here()) {
    constexpr u32 WIDTH = VECTOR_BYTES / sizeof(T), CHUNKS = COLUMNS / WIDTH;
    for (u32 unit = lane_id(); unit < 16 * CHUNKS; unit += WAVE) {
        const T* row = row_at(unit / CHUNKS);
        const u32 column = unit % CHUNKS * WIDTH;
        Vector<T, WIDTH> x = {};
        if (row) x = load_columns<T, WIDTH>(row, column, columns, where);
        put_elements<Element, T, WIDTH>(tile + unit / CHUNKS * row_stride<Element>(COLUMNS) + column, x, where);
    }
}

constexpr u32 power_of_two(u32 value) { return value <= 1 ? 1 : 2 * power_of_two((value + 1) / 2); }
constexpr u32 least(u32 a, u32 b) { return a < b ? a : b; }

// Lanes that share a row of `chunks`, of THREADS threads that move `rows` rows: a divisor of the chunks if every thread
// has as much to do then, else enough for the row, some of them idle.
constexpr u32 lanes_a_row(u32 chunks, u32 rows, u32 threads) {
    const u32 divisor = chunks & (0 - chunks);
    const bool even = divisor <= threads && threads / divisor <= rows && rows % (threads / divisor) == 0;
    return even ? divisor : least(power_of_two(chunks), threads);
}

// On to the next rows of a tile, by one scalar addition: else the compiler keeps every multiple of the step in SGPRs.
template <typename T>
ROCATTN_INLINE void advance(const T*& low, i64 elements) {
    low += elements;
    settle_scalar(low);
}

// Rows of a matrix in global memory, `stride` elements from row to row (any sign).
template <typename T>
struct Rows {
    const T* base;
    i64 stride;

    ROCATTN_INLINE Rows from(u32 first) const { return {base + first * stride, stride}; }
    // -1 for descending rows, else 0. Arithmetic on it stays scalar; a 64-bit comparison would not.
    ROCATTN_INLINE i64 sign() const { return stride >> 63; }

    // A row below COUNT as bytes from the lowest address of COUNT rows.
    template <u32 COUNT>
    ROCATTN_INLINE u32 offset(u32 row) const {
        const u32 step = static_cast<u32>((stride ^ sign()) - sign()) * static_cast<u32>(sizeof(T));
        const u32 flip = static_cast<u32>(sign());
        return ((row ^ flip) + (COUNT & flip)) * step;  // COUNT - 1 - row if descending
    }
    template <u32 COUNT>
    ROCATTN_INLINE const T* low() const {
        return base + (static_cast<i64>(COUNT - 1) * stride & sign());
    }
};

// ---- tiles ---------------------------------------------------------------------------------------------------------
// THREADS threads move a tile of ROWS rows and COLUMNS columns. EXACT: the matrix has just as many columns, so that no
// column is ever checked. fetch<true> takes a tile whose rows all exist; fetch<false> gives zeros for rows from `rows`
// on.

template <typename T, typename Element, u32 ROWS, u32 COLUMNS, u32 THREADS, bool EXACT>
struct RowTile {
    static constexpr u32 WIDTH = VECTOR_BYTES / sizeof(T);
    static constexpr u32 BYTES = sizeof(T);
    static constexpr u32 CHUNKS = COLUMNS / WIDTH;  // a thread moves WIDTH elements at a time
    static constexpr u32 LANES = lanes_a_row(CHUNKS, ROWS, THREADS);
    static constexpr u32 ACROSS = (CHUNKS + LANES - 1) / LANES;
    static constexpr u32 STEP = THREADS / LANES;
    static constexpr u32 DOWN = (ROWS + STEP - 1) / STEP;
    static constexpr bool BUSY = CHUNKS % LANES == 0 && ROWS % STEP == 0;  // every thread, in every round

    u32 row, column;  // of this thread's first chunk
    u32 offset;       // its address, in bytes from the tile's lowest row
    Vector<T, WIDTH> x[DOWN][ACROSS];

    ROCATTN_INLINE RowTile(const Rows<T>& matrix, u32 thread)
        : row(thread / LANES),
          column(thread % LANES * WIDTH),
          offset(matrix.template offset<ROWS>(row) + column * BYTES) {}

    // Whether this thread has a chunk in round (d, a).
    ROCATTN_INLINE bool busy(u32 d, u32 a) const {
        return BUSY || (column + a * LANES * WIDTH < COLUMNS && row + d * STEP < ROWS);
    }

    template <bool FULL>
    ROCATTN_INLINE void fetch(const Rows<T>& tile, u32 rows, u32 columns, Where where = Where::here()) {
        const T* low = tile.template low<ROWS>();
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d, advance(low, STEP * tile.stride))
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a) {
                const u32 from = column + a * LANES * WIDTH;
                const T* start = lane_address(low + a * LANES * WIDTH, offset);
                if (!busy(d, a)) continue;
                if (!FULL && row + d * STEP >= rows)
                    x[d][a] = {};
                else if constexpr (EXACT)
                    x[d][a] = load<T, WIDTH>(start, where);
                else
                    x[d][a] = load_some<T, WIDTH>(start, columns > from ? columns - from : 0, where);
            }
    }

    // `stride`: LDS elements from row to row.
    ROCATTN_INLINE void put(Element* tile, u32 stride, Where where = Where::here()) const {
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a)
                if (busy(d, a)) {
                    Element* at = tile + (row + d * STEP) * stride + column + a * LANES * WIDTH;
                    put_elements<Element, T, WIDTH>(at, x[d][a], where);
                }
    }
};

// The same, transposed on the way into LDS: element (row, column) goes to transposed_offset(column, ROWS) + the
// position of the row. A thread takes WIDTH columns of 4 rows, those of 4 neighbouring positions, and writes WIDTH
// times 4 rows.
template <typename T, typename M, u32 ROWS, u32 COLUMNS, u32 THREADS, bool EXACT>
struct TransposedTile {
    using Element = typename M::Element;
    static constexpr u32 BYTES = sizeof(T), WIDEST = VECTOR_BYTES / BYTES;
    static constexpr bool ENOUGH = ROWS / 4 * (COLUMNS / WIDEST) >= THREADS;  // work for all threads
    static constexpr u32 WIDTH = WIDEST == 8 && !ENOUGH ? 4 : WIDEST;
    static constexpr u32 CHUNKS = COLUMNS / WIDTH;
    static constexpr u32 LANES = lanes_a_row(CHUNKS, ROWS / 4, THREADS);
    static constexpr u32 ACROSS = (CHUNKS + LANES - 1) / LANES;
    static constexpr u32 STEP = THREADS / LANES * 4;  // positions
    static constexpr u32 DOWN = (ROWS + STEP - 1) / STEP;
    static constexpr bool BUSY = CHUNKS % LANES == 0 && ROWS % STEP == 0;

    u32 position, column;
    u32 offset[DOWN];
    Vector<T, WIDTH> x[DOWN][ACROSS][4];

    ROCATTN_INLINE TransposedTile(const Rows<T>& matrix, u32 thread)
        : position(thread / LANES * 4), column(thread % LANES * WIDTH) {
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d) offset[d] = matrix.template offset<ROWS>(row(d)) + column * BYTES;
    }

    // The first of this thread's 4 rows in round d; the others follow CHAIN_STEP apart.
    ROCATTN_INLINE u32 row(u32 d) const {
        const u32 at = position + d * STEP;
        return at / CHAIN_ROWS<M> * CHAIN_ROWS<M> + chain_group_row<M>(at % CHAIN_ROWS<M>);
    }
    ROCATTN_INLINE bool busy(u32 d, u32 a) const {
        return BUSY || (column + a * LANES * WIDTH < COLUMNS && position + d * STEP < ROWS);
    }

    template <bool FULL>
    ROCATTN_INLINE void fetch(const Rows<T>& tile, u32 rows, u32 columns, Where where = Where::here()) {
        const T* low = tile.template low<ROWS>();
#pragma unroll
        for (u32 i = 0; i < 4; ++i, advance(low, CHAIN_STEP<M> * tile.stride))
#pragma unroll
            for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
                for (u32 a = 0; a < ACROSS; ++a) {
                    const u32 from = column + a * LANES * WIDTH;
                    const T* start = lane_address(low + a * LANES * WIDTH, offset[d]);
                    if (!busy(d, a)) continue;
                    if (!FULL && row(d) + i * CHAIN_STEP<M> >= rows)
                        x[d][a][i] = {};
                    else if constexpr (EXACT)
                        x[d][a][i] = load<T, WIDTH>(start, where);
                    else
                        x[d][a][i] = load_some<T, WIDTH>(start, columns > from ? columns - from : 0, where);
                }
    }

    // Whether this thread holds an infinity or a NaN.
    ROCATTN_INLINE bool has_nonfinite() const {
        u32 found = 0;
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a)
                if (busy(d, a))
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) {
                        const auto words = __builtin_bit_cast(Words, x[d][a][i]);
#pragma unroll
                        for (u32 w = 0; w < WORDS; ++w) found |= (words[w] & EXPONENT) + EXPONENT_UNIT;
                    }
        return (found & CARRY) != 0;
    }

    // Makes those 0.
    ROCATTN_INLINE void clear_nonfinite() {
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a)
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    auto words = __builtin_bit_cast(Words, x[d][a][i]);
#pragma unroll
                    for (u32 w = 0; w < WORDS; ++w) {
                        const u32 carry = ((words[w] & EXPONENT) + EXPONENT_UNIT) & CARRY;
                        words[w] &= ~(carry | (carry - (carry >> (8 * BYTES - 1))));  // all bits of such an element
                    }
                    x[d][a][i] = __builtin_bit_cast(Vector<T, WIDTH>, words);
                }
    }

    ROCATTN_INLINE void put(Element* tile, Where where = Where::here()) const {
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a) {
                if (!busy(d, a)) continue;
                const u32 first = column + a * LANES * WIDTH;
                Element* start = tile + transposed_offset<Element>(first, ROWS) + position + d * STEP;
                Vector<T, 4> columns[WIDTH];
                transpose(x[d][a], columns);
#pragma unroll
                for (u32 e = 0; e < WIDTH; ++e)
                    put_elements<Element, T, 4>(start + e * row_stride<Element>(ROWS), columns[e], where);
            }
    }

private:
    static constexpr u32 WORDS = WIDTH * BYTES / 4;
    using Words = Vector<u32, WORDS>;
    // The exponents of the elements of a word, one unit of each, and where adding it to an exponent of ones carries to.
    static constexpr u32 EXPONENT = BYTES == 4 ? 0x7f800000u : is_f16<T> ? 0x7c007c00u : 0x7f807f80u;
    static constexpr u32 EXPONENT_UNIT = BYTES == 4 ? 0x00800000u : is_f16<T> ? 0x04000400u : 0x00800080u;
    static constexpr u32 CARRY = BYTES == 4 ? 0x80000000u : 0x80008000u;
};

}  // namespace rocattn
