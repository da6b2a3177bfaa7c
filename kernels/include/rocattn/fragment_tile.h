// Tiles of K and V that a wave loads from global memory directly as matrix fragments: for a block of one wave, where
// LDS would only return to a wave what it wrote there.
//
// fetch() takes a tile with `rows` existing rows, of at most ROWS, and loads the last of them for missing ones: their
// scores are hidden, and a hidden key's V is made finite. No tile follows one with missing rows, so its addresses are
// changed for good, in a branch without loads: with loads on both sides the compiler loses count and waits for all.
#pragma once

#include <rocattn/tile.h>

namespace rocattn {

// A of K's products with Q; its rows are keys. A lane's part of a group is 16 adjacent bytes (for 16-bit elements).
//
// One load covers 16 rows and 64 adjacent bytes of each (RDNA: 32). The loads of the rest of the same 128 bytes follow
// directly.
template <typename T, typename M, u32 ROWS, u32 COLUMNS, typename Stored = T>
struct KeyFragments {
    static constexpr u32 WIDTH = CHUNK<typename M::Element>, OWN_ROWS = ROWS / 16, GROUPS = COLUMNS / GROUP_DEPTH<M>;
    static constexpr u32 OF_LINE = least(GROUPS, 128 / (GROUP_DEPTH<M> * sizeof(Stored)));
    static_assert(COLUMNS % GROUP_DEPTH<M> == 0 && GROUPS % OF_LINE == 0, "whole groups and lines");

    u32 offset[OWN_ROWS];  // of this lane's first chunks, in bytes from the tile's lowest row
    Vector<Stored, WIDTH> x[OWN_ROWS][GROUPS];

    ROCATTN_INLINE explicit KeyFragments(const Rows<Stored>& matrix) { locate(matrix, ROWS); }

    ROCATTN_INLINE void fetch(const Rows<Stored>& matrix, u32 rows, Where where = Where::here()) {
        if (rows < ROWS) {
            keep_branch();
            locate(matrix, rows);
        }
        const Stored* low = matrix.template low<ROWS>();
        fetch_lines([&](u32 n) { return lane_address(low, offset[n]); }, where);
    }
    // The same for rows at any addresses: own_row(n) is at from[n].
    ROCATTN_INLINE void fetch_rows(const Stored* const (&from)[OWN_ROWS], Where where = Where::here()) {
        fetch_lines([&](u32 n) { return from[n] + column(); }, where);
    }
    ROCATTN_INLINE u32 own_row(u32 n) const { return lane_id() % 16 + 16 * n; }

    // A for rows 16 t to 16 t + 15 and column group d.
    ROCATTN_INLINE void read(u32 t, u32 d, typename M::A (&a)[FRAGMENTS<M>]) const {
        split(as_computed<T, Stored, WIDTH>(x[t][d]), a);
    }

private:
    static ROCATTN_INLINE u32 column() { return lane_id() / 16 * WIDTH; }
    ROCATTN_INLINE void locate(const Rows<Stored>& matrix, u32 rows) {
#pragma unroll
        for (u32 n = 0; n < OWN_ROWS; ++n) {
            offset[n] = matrix.template offset<ROWS>(smaller(own_row(n), rows - 1)) + column() * u32{sizeof(Stored)};
            settle(offset[n]);
        }
    }
    template <typename RowAt>
    ROCATTN_INLINE void fetch_lines(const RowAt& row_at, Where where) {
#pragma unroll
        for (u32 line = 0; line < GROUPS; line += OF_LINE)
#pragma unroll
            for (u32 n = 0; n < OWN_ROWS; ++n) {
#pragma unroll
                for (u32 d = line; d < line + OF_LINE; ++d)
                    x[n][d] = load<Stored, WIDTH>(row_at(n) + d * GROUP_DEPTH<M>, where);
                keep_order();  // otherwise the first one used is loaded last, and one wait covers all
            }
    }
};

// A of V^T's products with P^T; its rows are features, in any order. Row i of the fragment for feature tile f is
// feature WIDTH i + f, so 16 lanes load whole rows, WIDTH adjacent features each, of the keys that correspond to their
// part of the depth. Fragments are then in the lanes that use them: one v_perm packs a pair of keys into a word, as on
// the way to LDS.
template <typename T, typename M, u32 ROWS, u32 COLUMNS, typename Stored = T>
struct ValueFragments {
    static constexpr u32 WIDTH = COLUMNS / 16, KEYS = sizeof(typename M::A) / sizeof(T);
    static constexpr u32 COUNT = ROWS / M::DEPTH, OWN_ROWS = COUNT * KEYS;
    static_assert(sizeof(T) == 2 && WIDTH % 4 == 0 && M::CHAIN == M::DEPTH, "words, and a group a product");

    u32 offset[OWN_ROWS];
    Vector<Stored, WIDTH> x[OWN_ROWS];

    ROCATTN_INLINE explicit ValueFragments(const Rows<Stored>& matrix) { locate(matrix, ROWS); }

    ROCATTN_INLINE void fetch(const Rows<Stored>& matrix, u32 rows, Where where = Where::here()) {
        if (rows < ROWS) {
            keep_branch();
            locate(matrix, rows);
        }
        const Stored* low = matrix.template low<ROWS>();
#pragma unroll
        for (u32 n = 0; n < OWN_ROWS; ++n) x[n] = load<Stored, WIDTH>(lane_address(low, offset[n]), where);
    }
    ROCATTN_INLINE void fetch_rows(const Stored* const (&from)[OWN_ROWS], Where where = Where::here()) {
#pragma unroll
        for (u32 n = 0; n < OWN_ROWS; ++n) x[n] = load<Stored, WIDTH>(from[n] + column(), where);
    }
    ROCATTN_INLINE u32 own_row(u32 n) const {
        return M::chain_row(M::part() * KEYS) + n / KEYS * M::DEPTH + M::chain_row(n % KEYS);
    }

    ROCATTN_INLINE bool has_nonfinite() const {
        u32 found = 0;
#pragma unroll
        for (u32 n = 0; n < OWN_ROWS; ++n) NonFinite<Stored>::find(x[n], found);
        return NonFinite<Stored>::is_set(found);
    }
    ROCATTN_INLINE void clear_nonfinite() {
#pragma unroll
        for (u32 n = 0; n < OWN_ROWS; ++n) NonFinite<Stored>::clear(x[n]);
    }

    // A for feature tile f and the keys of P's fragment p.
    ROCATTN_INLINE typename M::A read(u32 p, u32 f) const {
        Vector<u32, KEYS / 2> words;
#pragma unroll
        for (u32 w = 0; w < KEYS / 2; ++w) {
            const u32 n = p * KEYS + 2 * w, first = word(n, f / 2), second = word(n + 1, f / 2);
            words[w] = f % 2 == 0 ? low_halves(first, second) : detail::high_halves(first, second);
        }
        return __builtin_bit_cast(typename M::A, words);
    }

private:
    ROCATTN_INLINE u32 word(u32 n, u32 w) const {
        return __builtin_bit_cast(Vector<u32, WIDTH / 2>, as_computed<T, Stored, WIDTH>(x[n]))[w];
    }
    static ROCATTN_INLINE u32 column() { return lane_id() % 16 * WIDTH; }
    ROCATTN_INLINE void locate(const Rows<Stored>& matrix, u32 rows) {
#pragma unroll
        for (u32 n = 0; n < OWN_ROWS; ++n) {
            offset[n] = matrix.template offset<ROWS>(smaller(own_row(n), rows - 1)) + column() * u32{sizeof(Stored)};
            settle(offset[n]);
        }
    }
};

}  // namespace rocattn
