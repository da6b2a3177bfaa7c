// Reading matrix fragments from LDS tiles, chaining products, and results in the order of their rows: what attention
// kernels need around Matrix<T>.
#pragma once

#include <rocattn/matrix.h>

namespace rocattn {

// ---- fragments -----------------------------------------------------------------------------------------------------

// Products whose A and B a lane reads together from LDS, 16 bytes of each: two where a fragment has only 8 bytes.
// Within such a group the depth is permuted, the same way for A and B: lane part l / 16 has 8 neighbouring elements.
template <typename M>
constexpr u32 FRAGMENTS = sizeof(typename M::B) == 8 ? 2 : 1;

// Depth covered by such a group; tiles are as deep as a multiple of it.
template <typename M>
constexpr u32 GROUP_DEPTH = M::DEPTH * FRAGMENTS<M>;

constexpr u32 round_up(u32 value, u32 multiple) { return (value + multiple - 1) / multiple * multiple; }

// Elements that `transposed_offset` and `row_stride` add.
template <typename Element>
constexpr u32 PADDING = VECTOR_BYTES / sizeof(Element);

// LDS elements from row to row of a tile with `columns` (a multiple of 16).
template <typename Element>
constexpr u32 row_stride(u32 columns) {
    return columns + PADDING<Element>;
}

// LDS elements that a transposed tile of `columns` features and `rows` keys takes, and where feature f starts.
template <typename Element>
constexpr u32 transposed_offset(u32 feature, u32 rows) {
    return feature * row_stride<Element>(rows) + feature / 8 * PADDING<Element>;
}

// The first LDS row that this lane reads of a 16-row A or B tile.
template <typename M>
ROCATTN_INLINE u32 first_a_row() {
    if constexpr (M::DEPTH == 4)
        return M::c_row(0);
    else
        return lane_id() % 16;
}

// A fragments of one group from a row-major tile; `tile` points to row 0 at the group's first column.
template <typename M>
ROCATTN_INLINE void read_a(const typename M::Element* tile, u32 stride, typename M::A (&a)[FRAGMENTS<M>],
                           Where where = Where::here()) {
    if constexpr (FRAGMENTS<M> == 2) {
        using T = typename M::Element;
        const auto both = lds_load<T, 8>(tile + lane_id() % 16 * stride + lane_id() / 16 * 8, where);
        a[0] = __builtin_shufflevector(both, both, 0, 1, 2, 3);
        a[1] = __builtin_shufflevector(both, both, 4, 5, 6, 7);
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

// The same from a transposed tile of `rows` keys: `tile` points to the first of 16 features, at the group's first key
// position.
template <typename M>
ROCATTN_INLINE void read_a_transposed(const typename M::Element* tile, u32 rows,
                                      typename M::A (&a)[FRAGMENTS<M>], Where where = Where::here()) {
    using E = typename M::Element;
    if constexpr (M::PAIRED)
        a[0] = M::from_lds(tile, row_stride<E>(rows), PADDING<E>, where);
    else
        read_a<M>(tile + first_a_row<M>() / 8 * PADDING<E>, row_stride<E>(rows), a, where);
}

// ---- the order of keys in a transposed tile ------------------------------------------------------------------------

// Rows of C that `chain_group` turns into B fragments together.
template <typename M>
constexpr u32 CHAIN_ROWS = FRAGMENTS<M> == 2 ? 32 : M::CHAIN;

// Tile t of such a group to its part of the B fragments of the chained product.
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

// CHAIN_ROWS / 16 tiles of C to the B fragments of the chained product.
template <typename M>
ROCATTN_INLINE void chain_group(const typename M::C (&c)[CHAIN_ROWS<M> / 16],
                                typename M::B (&b)[CHAIN_ROWS<M> / M::DEPTH], Where where = Where::here()) {
    if constexpr (FRAGMENTS<M> == 2) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            typename M::B one[1];
            const typename M::C of[1] = {c[i]};
            M::chain(of, one, where);
            b[i] = one[0];
        }
    } else {
        M::chain(c, b, where);
    }
}

// The row of C (0 ... CHAIN_ROWS - 1) at a position of a transposed tile; positions 4 j ... 4 j + 3 are the rows
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

// Accumulators as (c_row, column): what works on single scores takes them so.
template <typename M>
ROCATTN_INLINE typename M::C arranged(typename M::C c, [[maybe_unused]] Where where = Where::here()) {
    if constexpr (M::PAIRED)
        return M::arranged(c, where);
    else
        return c;
}

// Accumulators of which each has the value that its column's lanes hold.
template <typename M>
ROCATTN_INLINE typename M::C column_values(float value, [[maybe_unused]] Where where = Where::here()) {
    if constexpr (M::PAIRED)
        return M::arranged(typename M::C(value), where);
    else
        return typename M::C(value);
}

// Accumulators with their registers in the order of the rows: register r becomes row C_ROWS * part + r of this lane's
// column. On gfx11, where a lane has every other row, half of them come from the lane that has the others.
template <typename M>
ROCATTN_INLINE typename M::C contiguous_rows(typename M::C c, [[maybe_unused]] Where where = Where::here()) {
    if constexpr (M::PAIRED) {
        const auto mine = M::arranged(c, where);
        const bool second = M::part() != 0;
        typename M::C rows;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const float received = shuffle_xor(second ? mine[i] : mine[4 + i], 2, where);
            rows[i] = second ? received : mine[i];
            rows[4 + i] = second ? mine[4 + i] : received;
        }
        return rows;
    } else if constexpr (CHAIN_STEP<M> == 2) {
        const bool upper = lane_id() >= 16;
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

// The maximum (sum) over the lanes that have other rows of the same column of C.
template <typename M>
ROCATTN_INLINE float column_max(float value, Where where = Where::here()) {
    if constexpr (M::PAIRED) return __builtin_fmaxf(value, shuffle_xor(value, 2, where));
    value = __builtin_fmaxf(value, exchange_halves(value, where));
    if constexpr (WAVE == 64) value = __builtin_fmaxf(value, shuffle_xor(value, 32, where));
    return value;
}

template <typename M>
ROCATTN_INLINE float column_sum(float value, Where where = Where::here()) {
    if constexpr (M::PAIRED) return value + shuffle_xor(value, 2, where);
    value += exchange_halves(value, where);
    if constexpr (WAVE == 64) value += shuffle_xor(value, 32, where);
    return value;
}

}  // namespace rocattn
