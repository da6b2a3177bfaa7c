// Tiles of a [rows, columns] matrix of 16-bit elements that go from global memory to LDS without passing through
// registers: CDNA 4's global_load_lds_dwordx4, by which a wave writes 64 x 16 consecutive bytes.
//
// Each such load is a block of 16 rows and 32 columns, 64 bytes a row. What a lane loads is free, so the four chunks of
// a row change places with its number: no bank conflict when fragments are read, by rows (ds_read_b128) or transposed
// (ds_read_b64_tr_b16), and no padding. The four lanes of a row's block load 64 neighbouring bytes.
#pragma once

#include <rocattn/tile.h>

namespace rocattn {

template <typename T, u32 ROWS, u32 COLUMNS>
struct DirectLayout {
    static constexpr u32 ACROSS = COLUMNS / 32, BLOCKS = ROWS / 16 * ACROSS, BLOCK = 16 * 32;
    static constexpr u32 ELEMENTS = ROWS * COLUMNS;
    static_assert(ROWS % 16 == 0 && COLUMNS % 32 == 0, "whole blocks");

    // What the chunks of a block's row are exchanged by.
    static ROCATTN_INLINE u32 exchange(u32 row) { return (4 - row / 4) % 4; }

    // A of 16 rows, from row 16 t on, over 32 columns from column 32 d on.
    template <typename A>
    static ROCATTN_INLINE A read(const T* tile, u32 t, u32 d, Where where = Where::here()) {
        const u32 row = lane_id() % 16, chunk = lane_id() / 16 ^ exchange(row);
        return lds_load<T, 8>(tile + ((t * ACROSS + d) * BLOCK + row * 32 + chunk * 8), where);
    }
#if defined(__gfx950__)
    // A of features 16 f ... by the 32 rows from row 32 c on, in the order of Matrix::chain_row.
    template <typename A>
    static ROCATTN_INLINE A read_transposed(const T* tile, u32 c, u32 f, Where where = Where::here()) {
        const u32 row = lane_id() / 4, chunk = (lane_id() % 4 / 2 ^ exchange(row)) ^ f % 2 * 2;
        // One addition to the tile's address: through more of them the compiler does not see which array it is.
        const u32 lane = row * 32 + chunk * 8 + lane_id() % 2 * 4, block = 2 * c * ACROSS + f / 2;
        const auto low = lds_load_transposed(tile + (block * BLOCK + lane), where);
        const auto high = lds_load_transposed(tile + ((block + ACROSS) * BLOCK + lane), where);
        return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    }

    // Issues this wave's loads, of BLOCK_WAVES waves, of a tile of which `rows` rows exist (FULL: all; else the last one
    // stands for others). They are there after arrived() and a barrier.
    template <u32 BLOCK_WAVES, bool FULL>
    static ROCATTN_INLINE void fetch(const Rows<T>& matrix, u32 rows, T* tile, Where where = Where::here()) {
        const u32 wave = uniform(wave_id()), row = lane_id() / 4;
        const u32 column = (lane_id() % 4 ^ exchange(row)) * 8;
        const u32 offset = matrix.template offset<16>(row) + column * static_cast<u32>(sizeof(T));
#pragma unroll
        for (u32 i = 0; i < (BLOCKS + BLOCK_WAVES - 1) / BLOCK_WAVES; ++i) {
            const u32 block = wave + i * BLOCK_WAVES, first = block / ACROSS * 16;
            if (BLOCKS % BLOCK_WAVES != 0 && block >= BLOCKS) continue;
            const Rows<T> part = matrix.from(first);
            const u32 columns = block % ACROSS * 32;
            if constexpr (FULL) {
                load_to_lds(lane_address(part.template low<16>() + columns, offset), tile + block * BLOCK, where);
            } else {
                const T* mine = matrix.base + smaller(first + row, rows - 1) * matrix.stride;
                load_to_lds(mine + columns + column, tile + block * BLOCK, where);
            }
        }
    }
    static ROCATTN_INLINE void arrived(Where where = Where::here()) { loads_arrived(where); }
#endif

    // Makes infinities and NaNs 0, each thread of THREADS its part; whether this wave found some.
    template <u32 THREADS>
    static ROCATTN_INLINE bool clear_nonfinite(T* tile, Where where = Where::here()) {
        u32 any = 0;
        for (u32 i = thread_id() * 8; i < ELEMENTS; i += THREADS * 8) {
            auto x = lds_load<T, 8>(tile + i, where);
            u32 found = 0;
            NonFinite<T>::find(x, found);
            any |= found;
            if (!NonFinite<T>::is_set(found)) continue;
            NonFinite<T>::clear(x);
            lds_store<T, 8>(tile + i, x, where);
        }
        return any_lane(NonFinite<T>::is_set(any), where);
    }
};

}  // namespace rocattn
