// Tiles of a [rows, columns] matrix of 16-bit elements that go from global memory to LDS without passing through
// registers: by CDNA 4's global_load_lds_dwordx4, by which a wave writes 64 x 16 consecutive bytes, or CDNA 3's
// global_load_lds_dword, of 64 x 4 bytes.
//
// Each load on CDNA 4 covers 16 rows and 32 columns, 64 bytes per row. Lanes may load from any address, so the four
// chunks of a row are swizzled by the row: fragment reads by rows (ds_read_b128) or transposed (ds_read_b64_tr_b16)
// have no bank conflicts, without padding. The four lanes of a row's block load 64 contiguous bytes.
#pragma once

#include <rocattn/tile.h>

namespace rocattn {

template <typename T, u32 ROWS, u32 COLUMNS>
struct DirectLayout {
    static constexpr u32 ACROSS = COLUMNS / 32, BLOCKS = ROWS / 16 * ACROSS, BLOCK = 16 * 32;
    static constexpr u32 ELEMENTS = ROWS * COLUMNS;
    static_assert(ROWS % 16 == 0 && COLUMNS % 32 == 0, "whole blocks");

    // The swizzle of the chunks in a block's row.
    static ROCATTN_INLINE u32 exchange(u32 row) { return (4 - row / 4) % 4; }

    // This lane's place in the blocks that read() and read_transposed() (of even and odd f) read.
    static ROCATTN_INLINE u32 place() {
        const u32 row = lane_id() % 16;
        return row * 32 + (lane_id() / 16 ^ exchange(row)) * 8;
    }
    static ROCATTN_INLINE u32 place_transposed(u32 f) {
        const u32 row = lane_id() / 4, chunk = (lane_id() % 4 / 2 ^ exchange(row)) ^ f % 2 * 2;
        return row * 32 + chunk * 8 + lane_id() % 2 * 4;
    }

    // A of 16 rows, from row 16 t on, over 32 columns from column 32 d on.
    template <typename A>
    static ROCATTN_INLINE A read(const T* tile, u32 place, u32 t, u32 d, Where where = Where::here()) {
        return lds_load<T, 8>(tile + ((t * ACROSS + d) * BLOCK + place), where);
    }
#if defined(__gfx950__)
    // A of features 16 f ... by the 32 rows from row 32 c on, in the order of Matrix::chain_row.
    template <typename A>
    static ROCATTN_INLINE A read_transposed(const T* tile, u32 place, u32 c, u32 f, Where where = Where::here()) {
        const u32 block = 2 * c * ACROSS + f / 2;
        const auto low = lds_load_transposed(tile + (block * BLOCK + place), where);
        const auto high = lds_load_transposed(tile + ((block + ACROSS) * BLOCK + place), where);
        return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    }

    // The blocks that one of BLOCK_WAVES waves loads. KEEPS: their offsets in a full tile, in bytes from its lowest
    // address, are kept in registers.
    template <u32 BLOCK_WAVES, bool KEEPS>
    struct Share {
        static constexpr u32 LOADS = (BLOCKS + BLOCK_WAVES - 1) / BLOCK_WAVES;
        u32 wave, offsets[LOADS];

        ROCATTN_INLINE explicit Share(const Rows<T>& matrix) : wave(uniform(wave_id())) {
            settle_scalar(wave);
#pragma unroll
            for (u32 i = 0; i < LOADS; ++i)
                if constexpr (KEEPS) settle(offsets[i] = offset(matrix, i, ROWS));
        }

        // Issues the loads of a tile of which `rows` rows exist (FULL: all; else the last one stands for others). They
        // are there after arrived() and a barrier.
        template <bool FULL>
        ROCATTN_INLINE void fetch(const Rows<T>& matrix, u32 rows, T* tile, Where where = Where::here()) const {
#pragma unroll
            for (u32 i = 0; i < LOADS; ++i) {
                if (BLOCKS % BLOCK_WAVES != 0 && block(i) >= BLOCKS) continue;
                const u32 at = FULL && KEEPS ? offsets[i] : offset(matrix, i, FULL ? ROWS : rows);
                load_to_lds<16>(matrix.template low<ROWS>(), at, tile + block(i) * BLOCK, where);
            }
        }

    private:
        ROCATTN_INLINE u32 block(u32 i) const { return wave + i * BLOCK_WAVES; }
        ROCATTN_INLINE u32 offset(const Rows<T>& matrix, u32 i, u32 rows) const {
            const u32 row = lane_id() / 4, column = block(i) % ACROSS * 32 + (lane_id() % 4 ^ exchange(row)) * 8;
            return matrix.template offset<ROWS>(smaller(block(i) / ACROSS * 16 + row, rows - 1)) +
                   column * static_cast<u32>(sizeof(T));
        }
    };
    static ROCATTN_INLINE void arrived(Where where = Where::here()) { loads_arrived(where); }
#endif

    // Replaces infinities and NaNs with 0, by THREADS threads; returns whether this wave found any.
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

#if defined(__gfx942__)
// A tile of rows of 256 bytes, STRIDE elements apart, that waves load row by row: CDNA 3's global_load_lds_dword.
template <typename T, u32 ROWS, u32 STRIDE, u32 BLOCK_WAVES>
struct DirectRowTile {
    static constexpr u32 LOADS = ROWS / BLOCK_WAVES;
    static_assert(ROWS % BLOCK_WAVES == 0, "as many rows for each wave");
    u32 first, offset;
    T *now, *next;  // the tile that has arrived, and where the next one goes

    ROCATTN_INLINE DirectRowTile(T* now, T* next, u32 wave)
        : first(wave * LOADS), offset(lane_late() * 4), now(now), next(next) {}

    // Issues the loads to `next` of a tile of which `rows` rows exist (FULL: all; else the last one stands for others).
    template <bool FULL>
    ROCATTN_INLINE void fetch(const Rows<T>& matrix, u32 rows, u32 = 0, Where where = Where::here()) const {
        const T* row = matrix.from(FULL ? first : smaller(first, rows - 1)).base;
#pragma unroll
        for (u32 i = 0; i < LOADS; ++i) {
            load_to_lds<4>(row, offset, next + (first + i) * STRIDE, where);
            if (FULL || first + i + 1 < rows) row += matrix.stride;
        }
    }

    // Waits for the loads, where other tiles are written from registers: after a barrier the tile is `now`.
    ROCATTN_INLINE void put(const T*, u32, u32, Where where = Where::here()) {
        loads_arrived(where);
        T* const before = now;
        now = next;
        next = before;
    }
};
#endif

}  // namespace rocattn
