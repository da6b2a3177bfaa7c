// The forward kernels' compile-time constants, and the arguments of the core in flash.h.
#pragma once

#include <rocattn/direct_tile.h>
#include <rocattn/fragment_tile.h>
#include <rocattn/flash_sequences.h>

namespace rocattn {

// The largest number up to `limit` that divides both.
constexpr u32 divisor_up_to(u32 limit, u32 a, u32 b) {
    return a % limit == 0 && b % limit == 0 ? limit : divisor_up_to(limit - 1, a, b);
}

// Element types of K, V and Q in memory.
#ifdef KV_DTYPE
template <typename T>
using Stored = KV_DTYPE;
#else
template <typename T>
using Stored = T;
#endif
#ifdef Q_DTYPE
template <typename T>
using StoredQ = Q_DTYPE;
#else
template <typename T>
using StoredQ = T;
#endif

// Compile-time constants. D, DV: padded head dimensions.
template <typename T_, u32 D_, u32 DV_, u32 WAVES_, u32 Q_FRAGMENTS_, u32 TILE_KEYS_, u32 TILE_SLICES_,
          bool KEEPS_Q_IN_LDS_, u32 STEP_, bool DIRECT_ = false, u32 PARTS_ = 1>
struct FlashShape {
    using T = T_;
    using KV = Stored<T>;
    using M = Matrix<T>;
    using Element = typename M::Element;
    // Q and K of 8 bits stay bytes where the target multiplies them. A slice is whole chunks of 16.
#ifdef Q_DTYPE
    static constexpr bool BYTE_SCORES = MULTIPLIES<KV> && sizeof(T) == 2 && D_ / TILE_SLICES_ % 16 == 0;
#else
    static constexpr bool BYTE_SCORES = false;
#endif
    using KT = typename detail::Select<BYTE_SCORES, KV, T>::type;  // element type of the Q K product
    using KM = Matrix<KT>;
    using KElement = typename KM::Element;
    static constexpr u32 D = D_, DV = DV_, BLOCK_WAVES = WAVES_;
    static constexpr u32 Q_FRAGMENTS = Q_FRAGMENTS_;  // of a wave, 16 query rows each
    static constexpr u32 TILE_KEYS = TILE_KEYS_;      // of a K and V tile in LDS
    // 1: the next tile is prefetched; otherwise tiles are fetched slice by slice when needed.
    static constexpr u32 TILE_SLICES = TILE_SLICES_;
    static constexpr bool KEEPS_Q_IN_LDS = KEEPS_Q_IN_LDS_;
    static constexpr u32 STEP = STEP_;  // of columns: divides the head dimensions; 0: they are D and DV
    // Parts of a tile's keys; 1: no overlap.
    static constexpr u32 PARTS = PARTS_;
    static constexpr u32 THREADS = BLOCK_WAVES * WAVE;
    static constexpr u32 WAVE_ROWS = 16 * Q_FRAGMENTS, BLOCK_ROWS = BLOCK_WAVES * WAVE_ROWS;
    static constexpr u32 DEPTH = round_up(D, GROUP_DEPTH<KM>);  // of the first product; zeros beyond D
    static constexpr u32 DEPTHS = DEPTH / GROUP_DEPTH<KM>;
    static constexpr u32 K_FRAGMENTS = TILE_KEYS / 16, FEATURE_FRAGMENTS = DV / 16;
    static constexpr u32 CHAINS = TILE_KEYS / CHAIN_ROWS<M>;              // groups of the second product
    static constexpr u32 CHAIN_FRAGMENTS = CHAIN_ROWS<M> / 16;       // of S, in one group
    static constexpr u32 CHAIN_PRODUCTS = CHAIN_ROWS<M> / M::DEPTH;  // fragments of B in one group
    // Whether O takes so many registers that only a few fragments can be in flight from LDS.
    static constexpr bool FULL_OF_SUMS = Q_FRAGMENTS * DV * 16 / WAVE >= 128;
    static constexpr u32 GROUPS = CHAIN_PRODUCTS / FRAGMENTS<M>;     // reads of A in one group
    static_assert(D % 16 == 0 && DV % 16 == 0 && TILE_KEYS % CHAIN_ROWS<M> == 0, "whole tiles");
    static constexpr u32 PART_FRAGMENTS = K_FRAGMENTS / PARTS, PART_KEYS = 16 * PART_FRAGMENTS;
    static_assert(K_FRAGMENTS % PARTS == 0 && PART_KEYS % M::CHAIN == 0, "whole groups");
    static constexpr u32 PART_READS = PART_FRAGMENTS * DEPTHS;                  // of K
    static constexpr u32 VALUE_READS = CHAINS * FEATURE_FRAGMENTS * GROUPS;  // of V
    static constexpr u32 FETCHED = TILE_KEYS * (D + DV) * sizeof(KV) / 4 / THREADS;  // registers of the next tiles
    // A block of one wave loads K and V directly as fragments, without LDS.
#if defined(__GFX9__) || defined(__GFX12__)
    static constexpr bool LOADS_FRAGMENTS = BLOCK_WAVES == 1 && sizeof(T) == 2 && STEP == 0 && TILE_SLICES == 1 &&
                                            !KEEPS_Q_IN_LDS && D % 64 == 0 && DV % 64 == 0;
#else
    static constexpr bool LOADS_FRAGMENTS = false;
#endif
    // Whether sums keep their registers. This forces an instruction order, which costs less on CDNA 2 than the waits of
    // fragments built in the registers of old sums; not on CDNA 3 and 4.
#if defined(__gfx90a__)
    static constexpr bool SETTLES_SUMS = LOADS_FRAGMENTS;
#else
    static constexpr bool SETTLES_SUMS = false;
#endif

    // Number of K and V fragments per wait, which are read from LDS while the previous ones are in use; 0: each is read
    // where it is used. With several PARTS they are also read together. Otherwise reads are pipelined, with AHEAD more
    // in flight: on gfx11, where a fragment takes 8 registers, only two fit along with 16 rows. One wait covers WAITED
    // products.
#if defined(__GFX11__)
    static constexpr bool ROLLS = sizeof(T) == 2 && !KEEPS_Q_IN_LDS && Q_FRAGMENTS == 1 &&
                                  (D + DV < 256 || FETCHED <= 16);
    static constexpr u32 AHEAD = 2, WAITED = SEQUENCES == 3 ? 2 : 4;  // each row's own page takes registers, too
    static constexpr bool SHORT = DV > 64 || DV <= 32;
#elif defined(__GFX12__)
    static constexpr bool ROLLS = sizeof(T) == 2 && !KEEPS_Q_IN_LDS && !LOADS_FRAGMENTS;
    static constexpr bool SHORT = (DV > 64 && DV <= 96) || DV <= 32;
    static constexpr u32 AHEAD = Q_FRAGMENTS > 1 ? 2 : DV > 64 && SHORT ? 3 : 8, WAITED = 4;
#else
    static constexpr bool ROLLS = false, SHORT = false;
    static constexpr u32 AHEAD = 0, WAITED = 4;
#endif
    static constexpr u32 AT_MOST = ROLLS ? WAITED / Q_FRAGMENTS : PARTS == 1 ? 0 : WAITED;
    static constexpr u32 BATCH = AT_MOST == 0 ? 0 : divisor_up_to(AT_MOST, PART_READS, VALUE_READS);
    static constexpr u32 HELD = ROLLS ? BATCH + AHEAD : most(2 * BATCH, 2);  // in registers at once
    // Whether all products of a K fragment are issued in a row, which frees its registers early. Not where a part has
    // several fragments: dependent products, which add to the same scores, would be too close together.
    static constexpr bool BY_FRAGMENT = PARTS > 1 && PART_FRAGMENTS == 1;
    // V fragments that are read before the softmax. None where their registers would cost a wave of occupancy, or make
    // the compiler spill Q when it rotates the registers of K.
    static constexpr u32 EARLY = SHORT ? 0 : BATCH;

    // LDS, in elements: K | V | Q. Without KEEPS_Q_IN_LDS, Q passes through K's and V's space once, 16 rows per wave.
    static constexpr u32 STRIDE = row_stride<KElement>(DEPTH);  // of K and Q, in their elements
    static constexpr u32 K_ELEMENTS = TILE_KEYS * STRIDE * sizeof(KElement) / sizeof(Element);
    using VLayout = ChainedLayout<M, TILE_KEYS, DV>;
    static constexpr u32 V_ELEMENTS = VLayout::ELEMENTS;
    static constexpr u32 Q_ELEMENTS = BLOCK_WAVES * 16 * STRIDE * (KEEPS_Q_IN_LDS ? Q_FRAGMENTS : 1) *
                                      sizeof(KElement) / sizeof(Element);
    static constexpr u32 LDS_ELEMENTS = LOADS_FRAGMENTS  ? Q_ELEMENTS
                                        : KEEPS_Q_IN_LDS ? K_ELEMENTS + V_ELEMENTS + Q_ELEMENTS
                                        : K_ELEMENTS + V_ELEMENTS > Q_ELEMENTS ? K_ELEMENTS + V_ELEMENTS : Q_ELEMENTS;

    static constexpr u32 K_COLUMNS = D / TILE_SLICES, V_COLUMNS = DV / TILE_SLICES;  // of a slice
    static_assert(D % TILE_SLICES == 0 && DV % (8 * TILE_SLICES) == 0, "whole slices");
    using VTile = typename detail::Select<LOADS_FRAGMENTS, ValueFragments<T, M, TILE_KEYS, DV, KV>,
                                          ChainedTile<T, M, TILE_KEYS, V_COLUMNS, THREADS, STEP, KV>>::type;

    // DIRECT: K and V are loaded directly to LDS, the next tile to a second LDS array: K | V, which Q passes through,
    // and K | V. Not at D = 64, where staging takes few registers and gives the loop a better schedule. DIRECT_K: only
    // K is loaded this way, and the second array holds only K.
#if defined(__gfx950__)
    static constexpr bool DIRECT = DIRECT_ && !PAGED && sizeof(KV) == 2 && STEP == 0 && TILE_SLICES == 1 &&
                                   TILE_KEYS <= 64 && D % 32 == 0 && DV % 32 == 0 && D + DV > 128 && D + DV <= 256 &&
                                   !KEEPS_Q_IN_LDS;
#else
    static constexpr bool DIRECT = false;
#endif
#if defined(__gfx942__)
    static constexpr bool DIRECT_K = DIRECT_ && !PAGED && sizeof(KV) == 2 && STEP == 0 && TILE_SLICES == 1 &&
                                     D * sizeof(KV) == WAVE * 4 && Q_FRAGMENTS == 3 && !KEEPS_Q_IN_LDS;
    using DirectKTile = DirectRowTile<T, TILE_KEYS, STRIDE, BLOCK_WAVES>;
#else
    static constexpr bool DIRECT_K = false;
    using DirectKTile = void;
#endif
    using KRowTile = RowTile<KT, KElement, TILE_KEYS, K_COLUMNS, THREADS, STEP, KV>;
    using KTile = typename detail::Select<
        LOADS_FRAGMENTS, KeyFragments<KT, KM, TILE_KEYS, D, KV>,
        typename detail::Select<DIRECT_K, DirectKTile, KRowTile>::type>::type;
    using KLayout = DirectLayout<T, TILE_KEYS, round_up(D, 32)>;
    using VDirectLayout = DirectLayout<T, TILE_KEYS, round_up(DV, 32)>;
    // STAGGERED: half of the waves run half a tile behind the rest; tiles rotate through three places (flash_direct.h).
    static constexpr bool STAGGERED = DIRECT && PARTS > 1 && BLOCK_WAVES == 8;
    static constexpr u32 DIRECT_ELEMENTS = KLayout::ELEMENTS + VDirectLayout::ELEMENTS;
    static constexpr u32 NEXT_ELEMENTS = STAGGERED ? 1 : DIRECT ? DIRECT_ELEMENTS : DIRECT_K ? K_ELEMENTS : 1;
    static constexpr u32 FIRST_ELEMENTS = STAGGERED ? most(3 * DIRECT_ELEMENTS, Q_ELEMENTS)
                                          : DIRECT  ? most(DIRECT_ELEMENTS, Q_ELEMENTS)
                                                    : LDS_ELEMENTS;

    // With several PARTS registers are scarce: take the lane number and constants late, so that they need none earlier.
    // With one, late values would make the compiler schedule the loop for one more wave, and hide less latency.
    static ROCATTN_INLINE u32 late_lane() { return PARTS > 1 ? lane_late() : lane_id(); }
    static ROCATTN_INLINE float late(float constant) { return PARTS > 1 ? constant_late(constant) : constant; }
};

// What a kernel passes on: one head's K and V, and LDS.
template <typename S>
struct FlashBlock {
    Rows<typename S::KV> k, v;
    u32 seq_k, head_dim, head_dim_v;
    typename S::Element* lds;       // S::FIRST_ELEMENTS
    typename S::Element* next_lds;  // S::NEXT_ELEMENTS, if S::DIRECT or S::DIRECT_K
    u32* flags;                     // S::BLOCK_WAVES words
#if SEQUENCES >= 2
    Pages pages;                    // k and v point to the start of their first page
#endif
};

}  // namespace rocattn
