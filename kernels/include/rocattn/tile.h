// Tiles of a [rows, columns] matrix on their way from global memory through registers to LDS, and from there to matrix
// fragments. Shared by the attention kernels.
//
// A tile is fetched in two steps, so that its loads are in flight while the previous tile is in use: `fetch` issues
// them, `put` writes the registers to LDS. A RowTile keeps its memory layout in LDS; a TransposedTile has the columns
// as LDS rows, with its rows (the depth of the next product) in the order that Matrix::chain expects. fragments.h
// defines the LDS layout, which avoids bank conflicts.
//
// Rows are addressed as base + 32-bit byte offset, with a base that is the same in all lanes (an SGPR pair, advanced by
// scalar additions). So ROWS * |stride| * sizeof(T) must stay below 2^32; the stride may have either sign.
#pragma once

#include <rocattn/columns.h>
#include <rocattn/hints.h>

namespace rocattn {

namespace detail {
template <bool CHOICE, typename A, typename B>
struct Select {
    using type = A;
};
template <typename A, typename B>
struct Select<false, A, B> {
    using type = B;
};
}  // namespace detail

constexpr u32 power_of_two(u32 value) { return value <= 1 ? 1 : 2 * power_of_two((value + 1) / 2); }
constexpr u32 least(u32 a, u32 b) { return a < b ? a : b; }
constexpr u32 most(u32 a, u32 b) { return a > b ? a : b; }

// Number of lanes that share a row of `chunks`, where `threads` threads move `rows` rows: a divisor of the chunks if
// that gives all threads equal work, otherwise enough for the row, some of them idle.
constexpr u32 lanes_a_row(u32 chunks, u32 rows, u32 threads) {
    const u32 divisor = chunks & (0 - chunks);
    const bool even = divisor <= threads && threads / divisor <= rows && rows % (threads / divisor) == 0;
    return even ? divisor : least(power_of_two(chunks), threads);
}

// Advances to a tile's next rows by one scalar addition: the compiler would keep all multiples of the step in SGPRs.
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
    ROCATTN_INLINE Rows before(u32 count) const { return {base - count * stride, stride}; }
    // -1 for descending rows, otherwise 0. Arithmetic on it stays scalar; a 64-bit comparison would not.
    ROCATTN_INLINE i64 sign() const { return stride >> 63; }

    // The byte offset of a row below COUNT from the lowest address of COUNT rows.
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

// Infinities and NaNs in vectors of T, word by word: their exponents are all ones.
template <typename T>
struct NonFinite {
    // Masks of a word's exponents, of their lowest bits, and of where adding those to all-one exponents carries to.
    static constexpr u32 BYTES = sizeof(T);
    static constexpr u32 EXPONENT = BYTES == 4 ? 0x7f800000u : is_f16<T> ? 0x7c007c00u : 0x7f807f80u;
    static constexpr u32 EXPONENT_UNIT = BYTES == 4 ? 0x00800000u : is_f16<T> ? 0x04000400u : 0x00800080u;
    static constexpr u32 CARRY = BYTES == 4 ? 0x80000000u : BYTES == 2 ? 0x80008000u : 0x80808080u;

    // Accumulates in `found` (initially 0) whether a vector contains any; is_set evaluates it at the end.
    template <typename V>
    static ROCATTN_INLINE void find(const V& x, u32& found) {
        const auto words = __builtin_bit_cast(Words<V>, x);
#pragma unroll
        for (u32 w = 0; w < sizeof(V) / 4; ++w) found |= carries(words[w]);
    }
    static ROCATTN_INLINE bool is_set(u32 found) { return (found & CARRY) != 0; }
    // Sets them to 0.
    template <typename V>
    static ROCATTN_INLINE void clear(V& x) {
        auto words = __builtin_bit_cast(Words<V>, x);
#pragma unroll
        for (u32 w = 0; w < sizeof(V) / 4; ++w) {
            const u32 carry = carries(words[w]) & CARRY;
            words[w] &= ~(carry | (carry - (carry >> (8 * BYTES - 1))));  // all bits of such an element
        }
        x = __builtin_bit_cast(V, words);
    }

private:
    template <typename V>
    using Words = Vector<u32, sizeof(V) / 4>;
    static ROCATTN_INLINE u32 carries(u32 word) {
        if constexpr (is_fp8<T>)
            return T::nans(word);
        else
            return (word & EXPONENT) + EXPONENT_UNIT;
    }
};

// Loads the chunk at column `at` of a row's columns from `first` on, as the tiles' fetch does.
template <typename T, u32 WIDTH, u32 STEP>
ROCATTN_INLINE Vector<T, WIDTH> load_chunk(const T* row, u32 first, u32 at, u32 columns, Where where) {
    using P = Pieces<T, WIDTH, STEP>;
    if constexpr (STEP == 0) return load<T, WIDTH>(row + first + at, where);
    else if constexpr (STEP == ANY_COLUMNS) return load_columns<T, WIDTH>(row, first + at, columns, where);
    else return P::load_all([&](u32 p) { return row + P::column(p, first + at, columns); }, where);
}

// ---- tiles ---------------------------------------------------------------------------------------------------------
// THREADS threads move a tile of ROWS rows and COLUMNS columns of a matrix with `columns` columns, from column `first`
// on (if it has several such tiles side by side). STEP divides `columns`; 0: all columns exist and none is checked.
// fetch<true> takes a tile whose rows all exist; fetch<false> gives zeros for rows from `rows` on. A thread without a
// chunk reads that of another, since a branch would cost a copy of every register that it skips.
//
// Elements are Stored in memory and in registers; they are converted to T, then to Element, on their way to LDS.

template <typename T, typename Element, u32 ROWS, u32 COLUMNS, u32 THREADS, u32 STEP, typename Stored = T>
struct RowTile {
    static constexpr u32 WIDTH = VECTOR_BYTES / sizeof(T);
    static constexpr u32 BYTES = sizeof(Stored);
    static constexpr u32 CHUNKS = COLUMNS / WIDTH;  // a thread moves WIDTH elements at a time
    static constexpr u32 LANES = lanes_a_row(CHUNKS, ROWS, THREADS);
    static constexpr u32 ACROSS = (CHUNKS + LANES - 1) / LANES;
    static constexpr u32 ROW_STEP = THREADS / LANES;
    static constexpr u32 DOWN = (ROWS + ROW_STEP - 1) / ROW_STEP;
    static constexpr bool ALL_COLUMNS = CHUNKS % LANES == 0, ALL_ROWS = ROWS % ROW_STEP == 0;  // each has a chunk
    static_assert(ALL_ROWS || DOWN == 1, "a thread's row exists in all rounds or in none");
    using P = Pieces<Stored, WIDTH, STEP>;

    u32 row, column, columns;
    u32 offset[ACROSS][P::COUNT];  // addresses of this thread's first chunks, in bytes from the tile's lowest row
    Vector<Stored, WIDTH> x[DOWN][ACROSS];

    ROCATTN_INLINE RowTile(const Rows<Stored>& matrix, u32 thread, u32 columns)
        : row(thread / LANES), column(thread % LANES * WIDTH), columns(columns) {
        locate(matrix, 0);
    }

    template <bool FULL>
    ROCATTN_INLINE void fetch(const Rows<Stored>& tile, u32 rows, u32 first = 0, Where where = Where::here()) {
        const Stored* low = tile.template low<ROWS>();
        if constexpr (STEP == 0 || STEP == ANY_COLUMNS)
            low += first;
        else
            locate(tile, first);
        u32 row_at = row;
        if constexpr (!FULL && STEP == 0) settle(row_at);  // or all rows stay in registers for the last tile
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d, advance(low, ROW_STEP * tile.stride))
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a) {
                if (!FULL && row_at + d * ROW_STEP >= rows)
                    x[d][a] = {};
                else if constexpr (STEP == ANY_COLUMNS)
                    x[d][a] = load_some<Stored, WIDTH>(lane_address(low, offset[a][0]), left(first, a), where);
                else
                    x[d][a] = P::load_all([&](u32 p) { return lane_address(low, offset[a][p]); }, where);
            }
    }

    // As `fetch`, for rows at any addresses: row_at(n) is the address of this thread's row n, of OWN_ROWS, which is row
    // own_row(n) of the tile.
    static constexpr u32 OWN_ROWS = DOWN;
    ROCATTN_INLINE u32 own_row(u32 n) const { return (ALL_ROWS ? row : smaller(row, ROWS - 1)) + n * ROW_STEP; }
    template <bool FULL, typename RowAt>
    ROCATTN_INLINE void fetch_rows(const RowAt& row_at, u32 rows, u32 first = 0, Where where = Where::here()) {
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d) {
            const Stored* from = row_at(d);
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a) {
                const u32 at = column + a * LANES * WIDTH, mine = ALL_COLUMNS || at < COLUMNS ? at : 0;
                if (!FULL && row + d * ROW_STEP >= rows)
                    x[d][a] = {};
                else
                    x[d][a] = load_chunk<Stored, WIDTH, STEP>(from, first, mine, columns, where);
            }
        }
    }

    // Whether this thread holds an infinity or a NaN.
    ROCATTN_INLINE bool has_nonfinite() const {
        u32 found = 0;
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a) NonFinite<Stored>::find(x[d][a], found);
        return NonFinite<Stored>::is_set(found);
    }

    // Makes those 0.
    ROCATTN_INLINE void clear_nonfinite() {
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a) NonFinite<Stored>::clear(x[d][a]);
    }

    // `stride`: LDS elements between rows.
    ROCATTN_INLINE void put(Element* tile, u32 stride, u32 first = 0, Where where = Where::here()) const {
        u32 column = this->column;
        if constexpr (!ALL_COLUMNS || STEP != 0)
            settle(column);  // or its comparands stay in scalar registers all the time
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a) {
                const u32 from = column + a * LANES * WIDTH;
                if ((!ALL_COLUMNS && from >= COLUMNS) || (!ALL_ROWS && row >= ROWS)) continue;
                constexpr bool WHOLE = STEP == 0 || STEP == ANY_COLUMNS;
                auto chunk = as_computed<T, Stored, WIDTH>(x[d][a]);
                if constexpr (!WHOLE) chunk = Pieces<T, WIDTH, STEP>::existing(chunk, first + from, columns);
                put_elements<Element, T, WIDTH>(tile + (row + d * ROW_STEP) * stride + from, chunk, where);
            }
    }

private:
    // Elements left from the chunk's first on.
    ROCATTN_INLINE u32 left(u32 first, u32 a) const {
        const u32 at = first + column + a * LANES * WIDTH;
        return columns > at ? columns - at : 0;
    }
    ROCATTN_INLINE void locate(const Rows<Stored>& matrix, u32 first) {
        const u32 start = matrix.template offset<ROWS>(ALL_ROWS ? row : smaller(row, ROWS - 1));
#pragma unroll
        for (u32 a = 0; a < ACROSS; ++a)
#pragma unroll
            for (u32 p = 0; p < P::COUNT; ++p) {
                const u32 at = column + a * LANES * WIDTH;
                u32 from = STEP == 0 || STEP == ANY_COLUMNS ? at : P::column(p, first + at, columns);
                if (!ALL_COLUMNS && at >= COLUMNS) from = 0;
                offset[a][p] = start + from * BYTES;
            }
    }
};

// The same, transposed on the way into LDS: element (row, column) goes to ChainedLayout's at(column), and there to the
// place of the row's position. A thread takes WIDTH columns of 4 rows at 4 adjacent positions, and writes 4 rows WIDTH
// times. Missing columns contain copies of others: they become features that are never stored.
//
// 16 consecutive lanes write 8 bytes each at a time (16-bit elements). All at one position would need 16 LDS rows in
// different banks, but with rows of 16-byte chunks there are 8: so RUN lanes have adjacent columns, and the next RUN
// lanes the next position.
template <typename T, typename M, u32 ROWS, u32 COLUMNS, u32 THREADS, u32 STEP, typename Stored = T>
struct TransposedTile {
    using Element = typename M::Element;
    static constexpr u32 BYTES = sizeof(Stored), WIDEST = VECTOR_BYTES / sizeof(T);
    static constexpr bool ENOUGH = ROWS / 4 * (COLUMNS / WIDEST) >= THREADS;  // work for all threads
    static constexpr u32 WIDTH = WIDEST == 8 && !ENOUGH ? 4 : WIDEST;
    static constexpr u32 CHUNKS = COLUMNS / WIDTH;
    static constexpr u32 LANES = lanes_a_row(CHUNKS, ROWS / 4, THREADS);
    static constexpr u32 ACROSS = (CHUNKS + LANES - 1) / LANES;
    static constexpr u32 ROW_STEP = THREADS / LANES * 4;  // positions
    static constexpr u32 DOWN = (ROWS + ROW_STEP - 1) / ROW_STEP;
    static constexpr bool ALL_COLUMNS = CHUNKS % LANES == 0, ALL_ROWS = ROWS % ROW_STEP == 0;
    static_assert(ALL_ROWS || DOWN == 1, "a thread's rows exist in all rounds or in none");
    static_assert(STEP != ANY_COLUMNS, "columns exist in pieces");
    // Not where columns are checked: its extra registers would spill there.
    static constexpr bool SPREADS = sizeof(Element) == 2 && STEP == 0;
    static constexpr u32 RUN = SPREADS ? least(LANES, SERVED_CROSSWISE<Element> && WIDTH == 8 ? 4 : 8) : LANES;
    static constexpr u32 POSITIONS = SPREADS ? least(16 / RUN, THREADS / LANES) : 1;  // of 16 lanes
    using Layout = ChainedLayout<M, ROWS, COLUMNS>;
    using P = Pieces<Stored, WIDTH, STEP>;

    u32 position, column, columns;
    u32 offset[DOWN][ACROSS][P::COUNT];
    Vector<Stored, WIDTH> x[DOWN][ACROSS][4];

    ROCATTN_INLINE TransposedTile(const Rows<Stored>& matrix, u32 thread, u32 columns)
        : TransposedTile(thread, columns) {
        locate(matrix, 0);
    }
    // A tile that comes from LDS.
    explicit ROCATTN_INLINE TransposedTile(u32 thread, u32 columns = COLUMNS)
        : position((thread / (POSITIONS * LANES) * POSITIONS + thread / RUN % POSITIONS) * 4),
          column((thread / (POSITIONS * RUN) % (LANES / RUN) * RUN + thread % RUN) * WIDTH),
          columns(columns) {}

    // Reads it from LDS rows, `stride` elements apart. Where lanes of adjacent positions would have a bank conflict,
    // one of them reads its rows in another order.
    ROCATTN_INLINE void take(const Element* rows, u32 stride, Where where = Where::here()) {
        constexpr u32 BANKS = 128;  // bytes
        const bool meet = POSITIONS > 1 && chain_group_row<M>(4) * stride * sizeof(Element) % BANKS == 0;
        const bool turns = meet && (position & 4) != 0;
        const u32 turn = meet ? (position & 4) / 2 : 0;
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a) {
                const u32 at = column + a * LANES * WIDTH, from = ALL_COLUMNS ? at : smaller(at, COLUMNS - WIDTH);
                const u32 step = CHAIN_STEP<M> * stride, start = row(d) * stride + from;
                Vector<T, WIDTH> taken[4];
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    const Element* pair = rows + (start + (i / 2 * 2 ^ turn) * step);
                    taken[i] = lds_load<Element, WIDTH>(pair + i % 2 * step, where);
                }
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    const auto first = taken[i], second = taken[i ^ 2];
                    x[d][a][i] = turns ? second : first;
                }
            }
    }

    template <bool FULL>
    ROCATTN_INLINE void fetch(const Rows<Stored>& tile, u32 rows, u32 first = 0, Where where = Where::here()) {
        const Stored* low = tile.template low<ROWS>();
        if constexpr (STEP == 0)
            low += first;
        else
            locate(tile, first);
        u32 row_at[DOWN];
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d) {
            row_at[d] = FULL ? 0 : row(d);
            if constexpr (!FULL) settle(row_at[d]);  // or all of them stay in registers for the last tile
        }
#pragma unroll
        for (u32 i = 0; i < 4; ++i, advance(low, CHAIN_STEP<M> * tile.stride))
#pragma unroll
            for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
                for (u32 a = 0; a < ACROSS; ++a) {
                    if (!FULL && row_at[d] + i * CHAIN_STEP<M> >= rows)
                        x[d][a][i] = {};
                    else
                        x[d][a][i] = P::load_all([&](u32 p) { return lane_address(low, offset[d][a][p]); }, where);
                }
    }

    // As in RowTile.
    static constexpr u32 OWN_ROWS = 4 * DOWN;
    ROCATTN_INLINE u32 own_row(u32 n) const { return row(n / 4) + n % 4 * CHAIN_STEP<M>; }
    template <bool FULL, typename RowAt>
    ROCATTN_INLINE void fetch_rows(const RowAt& row_at, u32 rows, u32 first = 0, Where where = Where::here()) {
#pragma unroll
        for (u32 n = 0; n < OWN_ROWS; ++n) {
            const Stored* from = row_at(n);
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a) {
                const u32 at = column + a * LANES * WIDTH, mine = ALL_COLUMNS || at < COLUMNS ? at : 0;
                if (!FULL && own_row(n) >= rows)
                    x[n / 4][a][n % 4] = {};
                else
                    x[n / 4][a][n % 4] = load_chunk<Stored, WIDTH, STEP>(from, first, mine, columns, where);
            }
        }
    }

    // Whether this thread holds an infinity or a NaN.
    ROCATTN_INLINE bool has_nonfinite() const {
        u32 found = 0;
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a)
#pragma unroll
                for (u32 i = 0; i < 4; ++i) NonFinite<Stored>::find(x[d][a][i], found);
        return NonFinite<Stored>::is_set(found);
    }

    // Makes those 0.
    ROCATTN_INLINE void clear_nonfinite() {
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a)
#pragma unroll
                for (u32 i = 0; i < 4; ++i) NonFinite<Stored>::clear(x[d][a][i]);
    }

    // `before`: number of features in the layout before the tile's; the order within a row depends on it.
    ROCATTN_INLINE void put(Element* tile, [[maybe_unused]] u32 before = 0, Where where = Where::here()) const {
        u32 column = this->column;
        if constexpr (!ALL_COLUMNS) settle(column);
        const u32 in_front = COLUMNS % 16 == 0 ? 0 : before;
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a) {
                const u32 first = column + a * LANES * WIDTH;
                if ((!ALL_COLUMNS && first >= COLUMNS) || (!ALL_ROWS && position >= ROWS)) continue;
                Element* start = tile + Layout::at(first);
                Vector<T, WIDTH> rows[4];
#pragma unroll
                for (u32 i = 0; i < 4; ++i) rows[i] = as_computed<T, Stored, WIDTH>(x[d][a][i]);
                Vector<T, 4> columns[WIDTH];
                transpose(rows, columns);
#pragma unroll
                for (u32 e = 0; e < WIDTH; ++e) {
                    const u32 feature = in_front + (LANES * WIDTH % 16 == 0 ? column : first) + e / 4 * 4;  // of 16
                    const u32 place = Layout::place(feature, position + d * ROW_STEP);
                    put_elements<Element, T, 4>(start + e * Layout::STRIDE + place, columns[e], where);
                }
            }
    }

private:
    // The first of this thread's 4 rows in round d; the others follow CHAIN_STEP apart.
    ROCATTN_INLINE u32 row(u32 d) const {
        const u32 at = (ALL_ROWS ? position : smaller(position, ROWS - 4)) + d * ROW_STEP;
        return at / CHAIN_ROWS<M> * CHAIN_ROWS<M> + chain_group_row<M>(at % CHAIN_ROWS<M>);
    }
    ROCATTN_INLINE void locate(const Rows<Stored>& matrix, u32 first) {
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d) {
            const u32 start = matrix.template offset<ROWS>(row(d));
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a)
#pragma unroll
                for (u32 p = 0; p < P::COUNT; ++p) {
                    const u32 at = column + a * LANES * WIDTH;
                    u32 from = STEP == 0 ? at : P::column(p, first + at, columns);
                    if (!ALL_COLUMNS && at >= COLUMNS) from = 0;
                    offset[d][a][p] = start + from * BYTES;
                }
        }
    }
};

// The tile from which a chained product reads its A, and its way to LDS: a slice, from column `first` on, of the space
// for `Layout`.
template <typename T, typename M, u32 ROWS, u32 COLUMNS, u32 THREADS, u32 STEP, typename Stored = T>
using ChainedTile = typename detail::Select<ChainedLayout<M, ROWS, COLUMNS>::TRANSPOSES_READS,
                                            RowTile<T, typename M::Element, ROWS, COLUMNS, THREADS, STEP, Stored>,
                                            TransposedTile<T, M, ROWS, COLUMNS, THREADS, STEP, Stored>>::type;

template <typename Layout, typename Tile>
ROCATTN_INLINE void put_chained(const Tile& tile, typename Layout::Element* room, u32 first,
                                Where where = Where::here()) {
    if constexpr (Layout::TRANSPOSES_READS)
        tile.put(room + Layout::at(first), Layout::STRIDE, first, where);
    else
        tile.put(room + Layout::at(first), first, where);
}

}  // namespace rocattn
