// Reads matrix fragments from LDS tiles, chains products, and puts results in row order: what attention kernels need
// around Matrix<T>.
#pragma once

#include <rocattn/matrix.h>

namespace rocattn {

// ---- fragments -----------------------------------------------------------------------------------------------------

// Number of products whose A and B a lane reads together from LDS, 16 bytes of each: two where a fragment has 8 bytes.
// Within such a group the depth is permuted in the same way for A and B: lane part l / 16 has 16 adjacent bytes.
template <typename M>
constexpr u32 FRAGMENTS = sizeof(typename M::B) == 8 ? 2 : 1;

// Depth of such a group; a tile's depth is a multiple of it.
template <typename M>
constexpr u32 GROUP_DEPTH = M::DEPTH * FRAGMENTS<M>;

constexpr u32 round_up(u32 value, u32 multiple) { return (value + multiple - 1) / multiple * multiple; }

// ---- where a tile's elements lie in LDS ----------------------------------------------------------------------------
// The layout avoids bank conflicts between lanes that LDS serves together (docs/kernels.md, "LDS bank conflicts"). We
// assume that RDNA serves consecutive lanes, 8 for 16-byte accesses, so 16 bytes of padding per row suffice. CDNA
// serves lanes 0-3 with 20-23 and 4-7 with 16-19 (CDNA 4: twice as many). There, two adjacent chunks of a 16-bit matrix
// are served in one cycle, so a row takes an odd multiple of 32 bytes. In a transposed tile, writes would conflict:
// its rows take an odd multiple of 16 bytes, and the two chunks swap places in half of the rows.

template <typename Element>
#if defined(__GFX9__)
constexpr bool SERVED_CROSSWISE = sizeof(Element) <= 2;
#else
constexpr bool SERVED_CROSSWISE = false;
#endif

template <typename Element>
constexpr u32 CHUNK = VECTOR_BYTES / sizeof(Element);  // elements in 16 bytes

// The row stride, in LDS elements, of a tile with `columns` columns (a multiple of 16).
template <typename Element>
constexpr u32 row_stride(u32 columns) {
    if (!SERVED_CROSSWISE<Element>) return columns + CHUNK<Element>;
    return columns / (2 * CHUNK<Element>) % 2 == 0 ? columns + 2 * CHUNK<Element> : columns;
}

// The first LDS row that this lane reads of a 16-row A or B tile.
template <typename M>
ROCATTN_INLINE u32 first_a_row() {
    if constexpr (M::DEPTH == 4)
        return M::c_row(0);
    else
        return lane_id() % 16;
}

// Splits what a lane reads at once into the fragments of a group.
template <typename Both, typename Fragment, u32 N>
ROCATTN_INLINE void split(Both both, Fragment (&fragments)[N]) {
    if constexpr (N == 2 && sizeof(both[0]) == 1) {
        const auto words = __builtin_bit_cast(Vector<u32, 4>, both);
        fragments[0] = __builtin_bit_cast(Fragment, (Vector<u32, 2>{words[0], words[1]}));
        fragments[1] = __builtin_bit_cast(Fragment, (Vector<u32, 2>{words[2], words[3]}));
    } else if constexpr (N == 2) {
        fragments[0] = __builtin_shufflevector(both, both, 0, 1, 2, 3);
        fragments[1] = __builtin_shufflevector(both, both, 4, 5, 6, 7);
    } else {
        fragments[0] = both;
    }
}

// A fragments of one group from a row-major tile; `tile` points to row 0 at the group's first column.
template <typename M>
ROCATTN_INLINE void read_a(const typename M::Element* tile, u32 stride, typename M::A (&a)[FRAGMENTS<M>],
                           Where where = Where::here()) {
    if constexpr (FRAGMENTS<M> == 2) {
        using T = typename M::Element;
        constexpr u32 N = CHUNK<T>;
        split(lds_load<T, N>(tile + lane_id() % 16 * stride + lane_id() / 16 * N, where), a);
    } else {
        a[0] = M::a_from_lds(tile, stride, where);
    }
}

template <typename M>
ROCATTN_INLINE void read_b(const typename M::Element* tile, u32 stride, typename M::B (&b)[FRAGMENTS<M>],
                           Where where = Where::here()) {
    if constexpr (FRAGMENTS<M> == 2)
        read_a<M>(tile, stride, b, where);
    else
        b[0] = M::b_from_lds(tile, stride, where);
}

// A tile of ROWS keys and COLUMNS features from which A of a chained product (features by keys) is read.
//
// Where LDS reads can transpose (CDNA 4, 16 bits), the tile keeps its layout from memory. Elsewhere features are LDS
// rows, with their keys in `chain_group_row` order.
template <typename M, u32 ROWS, u32 COLUMNS>
struct ChainedLayout {
    using Element = typename M::Element;
#if defined(__gfx950__)
    static constexpr bool TRANSPOSES_READS = sizeof(Element) == 2;
#else
    static constexpr bool TRANSPOSES_READS = false;
#endif
    // The row stride, in LDS elements; a row is a key or a feature.
    static constexpr u32 STRIDE = TRANSPOSES_READS ? row_stride<Element>(COLUMNS) : ROWS + CHUNK<Element>;
    // Padding after every 8 features, in elements: rows that are written together.
    static constexpr u32 SKIP = SERVED_CROSSWISE<Element> ? 2 * CHUNK<Element> : CHUNK<Element>;

    // Where a feature starts; also the LDS elements that this many features take (all of them, if not transposed).
    static constexpr __device__ u32 at(u32 feature) {
        return TRANSPOSES_READS ? feature : feature * STRIDE + feature / 8 * SKIP;
    }
    static constexpr u32 ELEMENTS = TRANSPOSES_READS ? ROWS * STRIDE : COLUMNS * STRIDE + COLUMNS / 8 * SKIP;

    // The place of a position within a feature's row, for a transposed tile.
    static ROCATTN_INLINE u32 place(u32 feature, u32 position) {
        return SERVED_CROSSWISE<Element> ? position ^ ((feature + 4) & CHUNK<Element>) : position;
    }

    // A fragments of one group: 16 features, starting at key position `position` (a multiple of GROUP_DEPTH). `tile`
    // points to the first feature.
    static ROCATTN_INLINE void read(const Element* tile, u32 position, typename M::A (&a)[FRAGMENTS<M>],
                                    Where where = Where::here()) {
        if constexpr (TRANSPOSES_READS) {
            const Element* mine = tile + (position + lane_id() / 4) * STRIDE + lane_id() % 4 * 4;
            const auto low = lds_load_transposed(mine, where), high = lds_load_transposed(mine + 16 * STRIDE, where);
            a[0] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
        } else if constexpr (M::PAIRED) {
            a[0] = M::from_lds(tile + position, STRIDE, SKIP, where);
        } else if constexpr (SERVED_CROSSWISE<Element>) {
            const u32 feature = lane_id() % 16;
            const Element* mine = tile + feature * STRIDE + feature / 8 * SKIP + place(feature, lane_id() / 16 * 8);
            split(lds_load<Element, 8>(mine + position, where), a);
        } else {
            read_a<M>(tile + first_a_row<M>() / 8 * SKIP + position, STRIDE, a, where);
        }
    }
};

// ---- the order of keys in a transposed tile ------------------------------------------------------------------------

// Number of C rows that become B fragments together.
template <typename M>
constexpr u32 CHAIN_ROWS = FRAGMENTS<M> == 2 ? 32 : M::CHAIN;

// Converts tile t of such a group to its part of the chained product's B fragments.
template <typename M>
ROCATTN_INLINE void chain_tile(typename M::C c, u32 t, typename M::B (&b)[CHAIN_ROWS<M> / M::DEPTH],
                               Where where = Where::here()) {
    typename M::B one[CHAIN_ROWS<M> / M::DEPTH / FRAGMENTS<M>];
    if constexpr (M::CHAIN == 32) {  // half of a fragment
        const typename M::C twice[2] = {c, c};
        M::chain(twice, one, where);
        constexpr u32 HALF = M::WIDTH / 2;
#pragma unroll
        for (u32 i = t * HALF; i < (t + 1) * HALF; ++i) b[0][i] = one[0][i];
    } else if constexpr (FRAGMENTS<M> == 2) {
        const typename M::C of[1] = {c};
        M::chain(of, one, where);
        b[t] = one[0];
    } else {
        const typename M::C of[1] = {c};
        M::chain(of, b, where);
    }
}

// The row of C (0 ... CHAIN_ROWS - 1) at a position of a transposed tile; positions 4 j ... 4 j + 3 hold rows
// chain_group_row(4 j) + CHAIN_STEP * (0 ... 3).
template <typename M>
ROCATTN_INLINE u32 chain_group_row(u32 position) {
    if constexpr (FRAGMENTS<M> == 2)
        return position % 8 / 4 * 16 + position / 8 * 4 + position % 4;
    else
        return M::chain_row(position);
}

#if defined(__GFX11__)
template <typename M>
constexpr u32 CHAIN_STEP = M::DEPTH == 16 ? 2 : 1;
#else
template <typename M>
constexpr u32 CHAIN_STEP = 1;
#endif

// ---- results -------------------------------------------------------------------------------------------------------

// Accumulators as (c_row, column), for code that works on single scores.
template <typename M>
ROCATTN_INLINE typename M::C arranged(typename M::C c, [[maybe_unused]] Where where = Where::here()) {
    if constexpr (M::PAIRED)
        return M::arranged(c, where);
    else
        return c;
}

// Accumulators that each contain the value of their column's lanes.
template <typename M>
ROCATTN_INLINE typename M::C column_values(float value, [[maybe_unused]] Where where = Where::here()) {
    if constexpr (M::PAIRED)
        return M::arranged(typename M::C(value), where);
    else
        return typename M::C(value);
}

// Puts the accumulators' registers in row order: register r becomes row C_ROWS * part + r of this lane's column. On
// gfx11, where a lane has every other row, half of them come from the lane with the remaining rows. `lane`: this lane's
// number.
template <typename M>
ROCATTN_INLINE typename M::C contiguous_rows(typename M::C c, [[maybe_unused]] u32 lane = lane_id(),
                                             [[maybe_unused]] Where where = Where::here()) {
    if constexpr (M::PAIRED) {
        const auto mine = M::arranged(c, where);
        const bool second = M::part(lane) != 0;
        typename M::C rows;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const float received = shuffle_xor(second ? mine[i] : mine[4 + i], 2, where);
            rows[i] = second ? received : mine[i];
            rows[4 + i] = second ? mine[4 + i] : received;
        }
        return rows;
    } else if constexpr (CHAIN_STEP<M> == 2) {
        const bool upper = lane >= 16;
        typename M::C rows;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const float received = exchange_halves(upper ? c[i] : c[4 + i], where);
            rows[2 * i] = upper ? received : c[i];
            rows[2 * i + 1] = upper ? c[4 + i] : received;
        }
        return rows;
    } else {
        return c;
    }
}

// The maximum (sum) over the lanes that hold the same column of C. `lane`: this lane's number.
template <typename M>
ROCATTN_INLINE float column_max(float value, [[maybe_unused]] u32 lane = lane_id(), Where where = Where::here()) {
    if constexpr (M::PAIRED) return __builtin_fmaxf(value, shuffle_xor(value, 2, where));
    if constexpr (WAVE == 64) {
        value = __builtin_fmaxf(value, shuffle(value, lane ^ 16, where));
        return __builtin_fmaxf(value, shuffle(value, lane ^ 32, where));
    }
    return __builtin_fmaxf(value, exchange_halves(value, where));
}

template <typename M>
ROCATTN_INLINE float column_sum(float value, [[maybe_unused]] u32 lane = lane_id(), Where where = Where::here()) {
    if constexpr (M::PAIRED) return value + shuffle_xor(value, 2, where);
    if constexpr (WAVE == 64) {
        value += shuffle(value, lane ^ 16, where);
        return value + shuffle(value, lane ^ 32, where);
    }
    return value + exchange_halves(value, where);
}

}  // namespace rocattn
