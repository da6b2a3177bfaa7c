// The passes over key tiles that are loaded directly to LDS, without passing through registers: which buffer is
// loaded while another is used, and where the barriers are. See flash.h.
//
// Each call gets the core, which has the queries' state and processes a tile. It accesses the core's block and
// scores at each use: with locals, the compiler generates different code for staggered kernels with D = 96.
#pragma once

#include <rocattn/flash_shape.h>

namespace rocattn {

// Forward: FlashForward of S and any scores.
template <typename S, typename Forward>
class FlashDirect {
    using KV = typename S::KV;
    using Element = typename S::Element;

public:
    // Two LDS arrays alternate: while one is used, the next tile is loaded into the other. The loop has one copy of its
    // body for both, because two would spill some registers.
    static ROCATTN_INLINE void pass_directly(Forward& forward, Rows<KV>& k_rows, Rows<KV>& v_rows, u32 first,
                                             u32 stop) {
        const u32 end = stop * S::TILE_KEYS;
        forward.fragments.find_places();
        const typename S::KLayout::template Share<S::BLOCK_WAVES, (S::PARTS > 1)> k_share(k_rows);
        const typename S::VDirectLayout::template Share<S::BLOCK_WAVES, (S::PARTS > 1)> v_share(v_rows);
        const auto fetch_tile = [&](Element* tile, u32 key, const Rows<KV>& k, const Rows<KV>& v) {
            fetch_directly(forward.block, k_share, v_share, tile, key, k, v);
        };
        const auto step = [&](u32 key, Element* tile, Element* next) {
            S::KLayout::arrived();
            block_barrier();  // for all waves, and all are done with the previous tile in `next`
            k_rows = k_rows.from(S::TILE_KEYS);
            v_rows = v_rows.from(S::TILE_KEYS);
            if (key + S::TILE_KEYS < end) fetch_tile(next, key + S::TILE_KEYS, k_rows, v_rows);
            const bool hides = forward.scores.block_hides(key);
            if (hides) {
                const bool found = S::VDirectLayout::template clear_nonfinite<S::THREADS>(tile + S::KLayout::ELEMENTS);
                if (lane_id() == 0) lds_store(forward.block.flags + wave_id(), static_cast<u32>(found));
                block_barrier();
            }
            if (forward.scores.wave_sees(key)) {
                forward.compute(key, {tile, tile + S::KLayout::ELEMENTS});
                if (hides && forward.any_flag()) forward.add_nonfinite(v_rows.before(S::TILE_KEYS), key);
            }
        };
        block_barrier();  // Q has passed, and a pass before this one is over
        fetch_tile(forward.block.lds, first * S::TILE_KEYS, k_rows, v_rows);
        bool odd = false;
        for (u32 key = first * S::TILE_KEYS; key < end; key += S::TILE_KEYS, odd = !odd)
            step(key, odd ? forward.block.next_lds : forward.block.lds,
                 odd ? forward.block.lds : forward.block.next_lds);
    }

    // A second barrier, halfway through each tile, and the late half of the waves half a tile behind: one of the two of
    // each SIMD, if waves are dealt to SIMDs in turn. So these two are not at the same instructions: products of one
    // run while the other waits or has none; those with K go first where both want to issue. The barrier and the loads
    // stand where a simulation of a CU's issue, not calibrated on a GPU, had them cost least.
    //
    // Half 2 t is the first one of tile t to the early waves, and the second one of t - 1 to the late ones, which read
    // V of t until the end of half 2 t + 2. Tile t is loaded in the halves 2 t - 3 and 2 t - 2, when its place has been
    // free since the end of half 2 t - 4 (t - 3 was there; of two places, t - 2 would still be read), and each wave
    // waits for its own share before the barriers at the end of 2 t - 2 (early) and 2 t - 1 (late). A tile with hidden
    // keys takes one more barrier in half 2 t, behind what the early waves do to its V; the late ones meet it among the
    // products with V of the tile before. Every wave meets all barriers, whatever it skips.
    static ROCATTN_INLINE void pass_staggered(Forward& forward, Rows<KV>& k_rows, Rows<KV>& v_rows, u32 first,
                                              u32 stop) {
        constexpr u32 KEYS = S::TILE_KEYS, LAST_PLACE = 2 * S::DIRECT_ELEMENTS;
        const u32 end = stop * KEYS;
        forward.fragments.find_places();
        const typename S::KLayout::template Share<S::BLOCK_WAVES, true> k_share(k_rows);
        const typename S::VDirectLayout::template Share<S::BLOCK_WAVES, true> v_share(v_rows);
        const bool late = uniform(wave_id()) >= S::BLOCK_WAVES / 2;
        const auto fetch_next = [&](u32 key, u32 place) {
            if (key < end)
                fetch_directly(forward.block, k_share, v_share, forward.block.lds + place, key, k_rows, v_rows);
            k_rows = k_rows.from(KEYS);
            v_rows = v_rows.from(KEYS);
        };
        u32 key = first * KEYS, place = 0;
        block_barrier();  // Q has passed, and a pass before this one is over
        fetch_next(key, 0);
        S::KLayout::arrived();
        fetch_next(key + KEYS, S::DIRECT_ELEMENTS);
        next_step();
        if (late) {
            if (forward.scores.block_hides(key)) next_step();
            next_step();
        }
        const auto begin_tile = [&] {  // the early waves clear for all
            if (late || !forward.scores.block_hides(key)) return;
            Element* const v = forward.block.lds + place + S::KLayout::ELEMENTS;
            const bool found = S::VDirectLayout::template clear_nonfinite<S::THREADS / 2>(v);
            if (lane_id() == 0) lds_store(flags_of(forward.block, key) + wave_id(), static_cast<u32>(found));
            next_step();
        };
        const auto halfway = [&] {
            S::KLayout::arrived();
            next_step();
        };
        const auto fetch = [&] {  // of the tile behind the next: its place is the one before this tile's
            if (late && key + KEYS < end && forward.scores.block_hides(key + KEYS)) next_step();
            fetch_next(key + 2 * KEYS, place == 0 ? LAST_PLACE : place - S::DIRECT_ELEMENTS);
        };
        const auto end_tile = [&] {
            key += KEYS;
            next_step();
            place = place == LAST_PLACE ? 0 : place + S::DIRECT_ELEMENTS;
        };
        while (key < end && forward.scores.wave_sees(key)) {
            begin_tile();
            Element* const tile = forward.block.lds + place;
            forward.compute(key, {tile, tile + S::KLayout::ELEMENTS}, {}, halfway, fetch);
            if (forward.scores.block_hides(key) && any_flag_of(forward.block, key))
                forward.add_nonfinite(v_rows.before(3 * KEYS), key);
            end_tile();
        }
        while (key < end) {
            begin_tile();
            halfway();
            fetch();
            end_tile();
        }
        if (!late) next_step();
        k_rows = k_rows.before(2 * KEYS);
        v_rows = v_rows.before(2 * KEYS);
    }

private:
    template <typename KShare, typename VShare>
    static ROCATTN_INLINE void fetch_directly(const FlashBlock<S>& block, const KShare& k_share, const VShare& v_share,
                                              Element* tile, u32 key, const Rows<KV>& k, const Rows<KV>& v) {
        const u32 rows = block.seq_k - key;
        if (rows >= S::TILE_KEYS) {
            k_share.template fetch<true>(k, rows, tile);
            v_share.template fetch<true>(v, rows, tile + S::KLayout::ELEMENTS);
            keep_branch<1>();
        } else {
            k_share.template fetch<false>(k, rows, tile);
            v_share.template fetch<false>(v, rows, tile + S::KLayout::ELEMENTS);
            keep_branch<2>();
        }
    }

    // Where all waves meet, whatever their step: the stand-in requires one common barrier.
    static ROCATTN_INLINE void next_step() { block_barrier(); }

    // STAGGERED: the early waves' flags for a tile. The late waves read them while the next tile's are written.
    static ROCATTN_INLINE u32* flags_of(const FlashBlock<S>& block, u32 key) {
        return block.flags + key / S::TILE_KEYS % 2 * (S::BLOCK_WAVES / 2);
    }
    static ROCATTN_INLINE bool any_flag_of(const FlashBlock<S>& block, u32 key) {
        u32 found = 0;
#pragma unroll
        for (u32 w = 0; w < S::BLOCK_WAVES / 2; ++w) found |= lds_load(flags_of(block, key) + w);
        return uniform(found) != 0;
    }
};

}  // namespace rocattn
