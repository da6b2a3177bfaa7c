// The loads of key tiles from global memory: where a tile's rows are, contiguous or in pages, and which pages are
// looked up in advance. See flash.h.
//
// Each call gets the block: with a reference stored here, the compiler generates different code for paged kernels.
#pragma once

#include <rocattn/flash_shape.h>

namespace rocattn {

template <typename S>
class FlashLoads {
    using KV = typename S::KV;
    using KTile = typename S::KTile;
    using VTile = typename S::VTile;
    template <bool KEYS>
    using KeysOrValues = typename detail::Select<KEYS, KTile, VTile>::type;

#if SEQUENCES >= 2
    // Whether this thread keeps the pages of its rows of the next tile. A single wave of 32 has no registers for it.
    static constexpr bool FINDS_AHEAD = SEQUENCES == 3 && (WAVE == 64 || KTile::OWN_ROWS + VTile::OWN_ROWS <= 8);
    // PAGES_OF_TILES: of the tile that is fetched next.
    u32 tile_page;
    i64 page_now;  // LOADS_FRAGMENTS: of the tile of which K has been fetched
    u32 k_pages[FINDS_AHEAD ? KTile::OWN_ROWS : 1], v_pages[FINDS_AHEAD ? VTile::OWN_ROWS : 1];
#endif

public:
    // Issues the loads of a slice of the tile at `key`, whose rows are given.
    ROCATTN_INLINE void fetch(const FlashBlock<S>& block, KTile& k, VTile& v, [[maybe_unused]] Rows<KV> k_rows,
                              [[maybe_unused]] Rows<KV> v_rows, u32 key, u32 slice) {
        const u32 k_first = slice * S::K_COLUMNS, v_first = slice * S::V_COLUMNS;
#if SEQUENCES >= 2
        if (key + S::TILE_KEYS <= block.seq_k) {
            fetch_paged<true>(block, k, v, key, k_first, v_first);
            keep_branch<1>();
        } else {
            fetch_paged<false>(block, k, v, key, k_first, v_first);
            keep_branch<2>();
        }
        // Looks up the next tile's pages, so that no load of keys waits for their address.
        if (slice + 1 == S::TILE_SLICES) find_pages(block, k, v, key + S::TILE_KEYS);
#else
        if (key + S::TILE_KEYS <= block.seq_k) {
            k.template fetch<true>(k_rows, S::TILE_KEYS, k_first);
            v.template fetch<true>(v_rows, S::TILE_KEYS, v_first);
            keep_branch<1>();
        } else {
            k.template fetch<false>(k_rows, block.seq_k - key, k_first);
            v.template fetch<false>(v_rows, block.seq_k - key, v_first);
            keep_branch<2>();
        }
#endif
    }

    // The same of the fragments of K, or of V; `rows` of the tile exist. Which pages hold the tile behind it is asked
    // before the loads, so that the wait for the answer is not one for them, too.
    template <bool KEYS>
    ROCATTN_INLINE void fetch_fragments([[maybe_unused]] const FlashBlock<S>& block, KeysOrValues<KEYS>& tile,
                                        Rows<KV> from, [[maybe_unused]] u32 key, u32 rows) {
#if SEQUENCES >= 2
        const Pages& pages = block.pages;
        const Rows<KV>& all = KEYS ? block.k : block.v;
        const i64 page_stride = KEYS ? pages.k_stride : pages.v_stride;
        const u32 last = block.seq_k - 1, next = key + S::TILE_KEYS;
        if constexpr (!PAGES_OF_TILES) {
            constexpr u32 OWN_ROWS = KeysOrValues<KEYS>::OWN_ROWS;
            u32* const found = KEYS ? k_pages : v_pages;
            const KV* row[OWN_ROWS];
#pragma unroll
            for (u32 n = 0; n < OWN_ROWS; ++n) {
                const u32 at = key + smaller(tile.own_row(n), rows - 1);
                const i64 page = FINDS_AHEAD ? found[n] : pages.of(at);
                row[n] = all.base + (page * page_stride + pages.row(at) * all.stride);
            }
            if constexpr (FINDS_AHEAD) {
#pragma unroll
                for (u32 n = 0; n < OWN_ROWS; ++n) found[n] = pages.of(smaller(next + tile.own_row(n), last));
            }
            tile.fetch_rows(row);
            return;
        }
        if constexpr (KEYS) {  // before V, which is in the same page
            page_now = scalar(tile_page);
            tile_page = pages.of(smaller(next, last));
        }
        from = Rows<KV>{all.base + page_now * page_stride, all.stride}.from(pages.row(key));
#endif
        tile.fetch(from, rows);
    }

#if SEQUENCES >= 2
    // Loads the page numbers of the tile at `key`; for keys past the end, the last key's.
    ROCATTN_INLINE void find_pages(const FlashBlock<S>& block, const KTile& k, const VTile& v, u32 key) {
        const u32 last = block.seq_k - 1;
        if constexpr (PAGES_OF_TILES) {
            tile_page = block.pages.of(smaller(key, last));
        } else if constexpr (FINDS_AHEAD) {
#pragma unroll
            for (u32 n = 0; n < KTile::OWN_ROWS; ++n)
                k_pages[n] = block.pages.of(smaller(key + k.own_row(n), last));
#pragma unroll
            for (u32 n = 0; n < VTile::OWN_ROWS; ++n)
                v_pages[n] = block.pages.of(smaller(key + v.own_row(n), last));
        }
    }
#endif

private:
#if SEQUENCES >= 2
    // The tile at `key`, whose pages have been found.
    template <bool FULL>
    ROCATTN_INLINE void fetch_paged(const FlashBlock<S>& block, KTile& k, VTile& v, u32 key, u32 k_first,
                                    u32 v_first) const {
        const Pages& pages = block.pages;
        const u32 last = block.seq_k - 1, rows = FULL ? S::TILE_KEYS : block.seq_k - key;
        if constexpr (PAGES_OF_TILES) {
            const i64 page = scalar(tile_page);
            const u32 row = pages.row(key);
            auto k_rows = Rows<KV>{block.k.base + page * pages.k_stride, block.k.stride}.from(row);
            auto v_rows = Rows<KV>{block.v.base + page * pages.v_stride, block.v.stride}.from(row);
            if constexpr (S::TILE_SLICES > 1) {  // in whose loop the compiler vectorizes them
                k_rows.base = scalar(k_rows.base);
                v_rows.base = scalar(v_rows.base);
            }
            k.template fetch<FULL>(k_rows, rows, k_first);
            v.template fetch<FULL>(v_rows, rows, v_first);
        } else {
            const auto row_of = [&](const Rows<KV>& matrix, const u32* found, i64 page_stride, u32 key) {
                const u32 at = smaller(key, last), page = FINDS_AHEAD ? *found : pages.of(at);
                return matrix.base + (static_cast<i64>(page) * page_stride + pages.row(at) * matrix.stride);
            };
            const auto k_row_at = [&](u32 n) {
                return row_of(block.k, k_pages + (FINDS_AHEAD ? n : 0), pages.k_stride, key + k.own_row(n));
            };
            const auto v_row_at = [&](u32 n) {
                return row_of(block.v, v_pages + (FINDS_AHEAD ? n : 0), pages.v_stride, key + v.own_row(n));
            };
            k.template fetch_rows<FULL>(k_row_at, rows, k_first);
            v.template fetch_rows<FULL>(v_row_at, rows, v_first);
        }
    }
#endif
};

}  // namespace rocattn
