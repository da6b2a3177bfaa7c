// The fragments of K and V that a wave of the forward kernels has in registers: which part of a tile, when each is read
// from LDS, and the order of reads, products and overlapping instructions. See flash.h.
#pragma once

#include <rocattn/flash_shape.h>

namespace rocattn {

template <typename S>
class FlashFragments {
    using M = typename S::M;
    using KM = typename S::KM;
    using Element = typename S::Element;
    using KElement = typename S::KElement;
    static constexpr u32 BATCH = S::BATCH, HELD = S::HELD;
    u32 k_place, v_places[2];  // DIRECT: this lane's in a tile

public:
    struct TileInLds {  // the addresses of K and V
        const KElement* k;
        const Element* v;
    };
    struct TileInRegisters {  // LOADS_FRAGMENTS
        const typename S::KTile& k;
        const typename S::VTile& v;
    };
    using Tile = typename detail::Select<S::LOADS_FRAGMENTS, TileInRegisters, TileInLds>::type;
    // 16 bytes of a lane, or a fragment; where K and V differ in their products, words.
    using Fragments = typename detail::Select<S::BYTE_SCORES, Vector<u32, 4>[1], typename M::A[FRAGMENTS<M>]>::type;
    // The f-th fragment of a read.
    template <typename Matrix>
    static ROCATTN_INLINE typename Matrix::A get(const Fragments& a, u32 f) {
        if constexpr (!S::BYTE_SCORES) {
            return a[f];
        } else if constexpr (FRAGMENTS<Matrix> == 2) {
            return __builtin_bit_cast(typename Matrix::A, (Vector<u32, 2>{a[0][2 * f], a[0][2 * f + 1]}));
        } else {
            return __builtin_bit_cast(typename Matrix::A, a[0]);
        }
    }
    // Fragments of K, then of V, the n-th at n % HELD; in two batches if they are read in batches.
    static constexpr u32 OF_BATCH = S::ROLLS ? HELD : HELD / 2;
    using Held = Fragments[S::ROLLS ? 1 : 2][OF_BATCH];
    static ROCATTN_INLINE Fragments& at(Held& a, u32 n) { return a[n % HELD / OF_BATCH][n % OF_BATCH]; }
    static constexpr u32 PART_SCORES = S::Q_FRAGMENTS * S::PART_FRAGMENTS * M::C_ROWS;  // of a lane
    // Those that are read before the first product of a tile, and just before the first one with V.
    static constexpr u32 FIRST_READS = least(HELD, S::PART_READS + S::EARLY);
    static constexpr u32 LATE_READS = least(HELD, S::VALUE_READS) - S::EARLY;

    // DIRECT. Once for all tiles: what is added to a place becomes an instruction's offset, but only where the compiler
    // does not know the place's bits.
    ROCATTN_INLINE void find_places() {
        settle(k_place = S::KLayout::place());
        settle(v_places[0] = S::VDirectLayout::place_transposed(0));
        settle(v_places[1] = S::VDirectLayout::place_transposed(1));
    }

    // Batch b of the fragments. The one used first is read last, so that one wait covers all of them.
    ROCATTN_INLINE void read_batch(const Tile& tile, u32 b, Held& a) const {
#pragma unroll
        for (u32 j = BATCH; j-- > 0;) read_fragment(tile, b * BATCH + j, a);
    }

    // Fragments FIRST ... END - 1.
    template <u32 FIRST, u32 END>
    ROCATTN_INLINE void read_rolling(const Tile& tile, Held& a) const {
#pragma unroll
        for (u32 n = FIRST; n < END; ++n) read_fragment(tile, n, a);
    }

    // What comes before the products of batch b: the reads of the next; or the one wait where fragments roll, as this
    // asks for the fragment first that was read last.
    ROCATTN_INLINE void begin_batch(const Tile& tile, u32 b, Held& a) const {
        if constexpr (S::ROLLS) {
#pragma unroll
            for (u32 j = BATCH; j-- > 0;) settle(at(a, b * BATCH + j)[0]);
        } else {
            read_batch(tile, b + 1, a);
        }
    }

    // What comes behind the products of fragment n: the read of the next one that has its registers, if it is below
    // `end`.
    ROCATTN_INLINE void roll(const Tile& tile, u32 n, u32 end, Held& a) const {
        if constexpr (S::ROLLS)
            if (n + HELD < end) read_fragment(tile, n + HELD, a);
    }

    ROCATTN_INLINE void read_key(const Tile& tile, u32 part, u32 n, Fragments& a) const {
        const u32 t = part * S::PART_FRAGMENTS + n % S::PART_FRAGMENTS, d = n / S::PART_FRAGMENTS;
        if constexpr (S::LOADS_FRAGMENTS)
            put<KM>(a, [&](auto& fragments) { tile.k.read(t, d, fragments); });
        else if constexpr (S::DIRECT)
            a[0] = S::KLayout::template read<typename M::A>(tile.k, k_place, t, d);
        else
            put<KM>(a, [&](auto& fragments) {
                read_a<KM>(tile.k + t * 16 * S::STRIDE + d * GROUP_DEPTH<KM>, S::STRIDE, fragments);
            });
    }

    ROCATTN_INLINE void read_value(const Tile& tile, u32 n, Fragments& a) const {
        const u32 c = n / (S::GROUPS * S::FEATURE_FRAGMENTS), f = n / S::GROUPS % S::FEATURE_FRAGMENTS;
        const u32 position = c * CHAIN_ROWS<M> + n % S::GROUPS * GROUP_DEPTH<M>;
        if constexpr (S::LOADS_FRAGMENTS)
            put<M>(a, [&](auto& fragments) {
#pragma unroll
                for (u32 e = 0; e < FRAGMENTS<M>; ++e) fragments[e] = tile.v.read(position / M::DEPTH + e, f);
            });
        else if constexpr (S::DIRECT)
            a[0] = S::VDirectLayout::template read_transposed<typename M::A>(tile.v, v_places[f % 2], c, f);
        else
            put<M>(a, [&](auto& fragments) { S::VLayout::read(tile.v + S::VLayout::at(16 * f), position, fragments); });
    }

    // The order of a part's instructions: its products, the reads of the batches behind them, and VECTORS instructions
    // of the part before beside them; without any also the read of the tile's first batch.
    template <u32 VECTORS, bool LAST>
    ROCATTN_INLINE void arrange_keys() const {
        if constexpr (S::ROLLS) {
            arrange_rolling<FIRST_READS, S::PART_READS, S::PART_READS + S::EARLY, KEY_PRODUCTS>();
            return;
        }
        if constexpr (VECTORS == 0) arrange_reads<KEY_LOADS>();
#pragma unroll
        for (u32 b = 1; b < S::PART_READS / BATCH; ++b) {
            arrange_reads<KEY_LOADS>();
            arrange_products<VECTORS, S::PART_READS, KEY_PRODUCTS>();
        }
        if constexpr (S::BY_FRAGMENT && VECTORS > 0) {  // the reads have the registers of the first fragment
            arrange_products<VECTORS, S::PART_READS, KEY_PRODUCTS, 1>();
            arrange_reads<LAST ? VALUE_LOADS : KEY_LOADS>();
            arrange_products<VECTORS, S::PART_READS, KEY_PRODUCTS, BATCH - 1>();
            return;
        }
        arrange_reads<LAST ? VALUE_LOADS : KEY_LOADS>();
        arrange_products<VECTORS, S::PART_READS, KEY_PRODUCTS>();
    }
    // The same for the products with batches FROM ... TO - 1 of V.
    template <u32 FROM = 0, u32 TO = S::VALUE_READS / (BATCH == 0 ? 1 : BATCH)>
    ROCATTN_INLINE void arrange_values() const {
        if constexpr (S::ROLLS) {
            arrange_rolling<LATE_READS, S::VALUE_READS, S::VALUE_READS, VALUE_PRODUCTS>();
            return;
        }
#pragma unroll
        for (u32 b = FROM; b < TO; ++b) {
            if (b + 1 < S::VALUE_READS / BATCH) arrange_reads<VALUE_LOADS>();
            arrange_products<PART_SCORES * 15 / 4, S::VALUE_READS, VALUE_PRODUCTS>();
        }
    }

private:
    template <typename Matrix, typename Read>
    static ROCATTN_INLINE void put(Fragments& a, const Read& read) {
        if constexpr (!S::BYTE_SCORES) {
            read(a);
        } else {
            typename Matrix::A fragments[FRAGMENTS<Matrix>];
            read(fragments);
            a[0] = __builtin_bit_cast(Vector<u32, 4>, fragments);
        }
    }
    ROCATTN_INLINE void read_fragment(const Tile& tile, u32 n, Held& a) const {
        if (n < S::PARTS * S::PART_READS)
            read_key(tile, n / S::PART_READS, n % S::PART_READS, at(a, n));
        else if (n < S::PARTS * S::PART_READS + S::VALUE_READS)
            read_value(tile, n - S::PARTS * S::PART_READS, at(a, n));
        keep_order();
    }

    // Products per fragment.
    static constexpr u32 KEY_PRODUCTS = S::Q_FRAGMENTS * FRAGMENTS<KM>, VALUE_PRODUCTS = S::Q_FRAGMENTS * FRAGMENTS<M>;
    // Instructions per fragment read.
    static constexpr u32 KEY_LOADS = sizeof(Fragments) / VECTOR_BYTES;
    static constexpr u32 VALUE_LOADS = KEY_LOADS * (S::VLayout::TRANSPOSES_READS ? 2 : 1);

    // Where fragments roll: FIRST of them, then the products of COUNT, and behind each the read that follows, up to END.
    template <u32 FIRST, u32 COUNT, u32 END, u32 PRODUCTS>
    ROCATTN_INLINE void arrange_rolling() const {
        schedule<Kind::LDS_READ, FIRST * KEY_LOADS>();
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n) {
            schedule<Kind::MATRIX, PRODUCTS>();
            if (n + HELD < END) schedule<Kind::LDS_READ, KEY_LOADS>();
        }
    }

    template <u32 COUNT>
    ROCATTN_INLINE void arrange_reads() const {
        schedule<Kind::LDS_READ, BATCH * COUNT>();
    }
    // Those of so many fragments, with their share of VECTORS instructions beside READS reads' products.
    template <u32 VECTORS, u32 READS, u32 PRODUCTS, u32 COUNT = BATCH>
    ROCATTN_INLINE void arrange_products() const {
        if constexpr (VECTORS == 0) {
            schedule<Kind::MATRIX, COUNT * PRODUCTS>();
        } else {
#pragma unroll
            for (u32 n = 0; n < COUNT * PRODUCTS; ++n) {
                schedule<Kind::MATRIX, 1>();
                schedule<Kind::VECTOR, (VECTORS - 1) / (READS * PRODUCTS) + 1>();
            }
        }
    }
};

}  // namespace rocattn
