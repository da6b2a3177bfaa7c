// The backward kernels' compile-time constants and LDS layout; see backward.h for the letters.
#pragma once

#include <rocattn/tile.h>

namespace rocattn {

// Compile-time constants. D: head dimension of all four matrices, padded. BLOCKS: a team has BLOCKS times 16 resident
// rows. KEYS: whether keys are resident.
// IS_PLAIN: scores are only scaled and the head dimensions are exactly D; only the band and the ends hide pairs.
template <typename T_, u32 D_, u32 WAVES_, u32 TEAM_, u32 BLOCKS_, u32 STREAMED_ROWS_, bool PHASED_, bool KEYS_,
          bool IS_PLAIN>
struct BackwardShape {
    using T = T_;
    using M = Matrix<T>;
    using Element = typename M::Element;
    static constexpr u32 D = D_, BLOCK_WAVES = WAVES_, TEAM = TEAM_, BLOCKS = BLOCKS_, STREAMED_ROWS = STREAMED_ROWS_;
    static constexpr bool PHASED = PHASED_, KEYS = KEYS_, PLAIN = IS_PLAIN;
    static constexpr u32 STEP = PLAIN ? 0 : ANY_COLUMNS;
    static constexpr u32 THREADS = BLOCK_WAVES * WAVE, TEAM_ROWS = 16 * BLOCKS;
    static constexpr u32 RESIDENT = TEAM_ROWS * BLOCK_WAVES / TEAM;
    static constexpr u32 WIDTH = D / TEAM;  // features of a wave
    static constexpr u32 DEPTHS = WIDTH / GROUP_DEPTH<M>, FEATURE_FRAGMENTS = WIDTH / 16;
    static constexpr u32 CHAINS = STREAMED_ROWS / CHAIN_ROWS<M>, CHAIN_FRAGMENTS = CHAIN_ROWS<M> / 16;
    static constexpr u32 CHAIN_PRODUCTS = CHAIN_ROWS<M> / M::DEPTH, GROUPS = CHAIN_PRODUCTS / FRAGMENTS<M>;
    static constexpr bool PREFETCH = sizeof(Element) == 2;  // float tiles in flight would take too many registers
    // Whether sums take half of a lane's 512 registers: that half which only matrix instructions use.
    static constexpr bool MANY_SUMS = KEYS && WAVE == 64 && BLOCK_WAVES == 4 && 2 * WIDTH * TEAM_ROWS / WAVE >= 128;
    static constexpr u32 RUN = CHAIN_ROWS<M> / (WAVE / 16);  // streamed rows of a group in one lane
    // Steps that fragments are read ahead of their products: two products, at least. A third where registers allow, for
    // queries of a team.
    static constexpr u32 AHEAD = sizeof(Element) == 4 ? 0 : FRAGMENTS<M> * BLOCKS > 1 ? 1 : !KEYS && TEAM == 2 ? 3 : 2;
    static_assert(D % TEAM == 0 && BLOCK_WAVES % TEAM == 0, "whole teams");
    static_assert(WIDTH % GROUP_DEPTH<M> == 0 && WIDTH % 16 == 0 && STREAMED_ROWS % CHAIN_ROWS<M> == 0, "whole tiles");
    static_assert(!PHASED || CHAINS == 1, "a wave keeps the scores of one group from phase to phase");

    // LDS, in elements: F | S, and F^T | S^T (for keys), behind them or, if PHASED, in their place. f and s pass
    // through this room, too, PIECE features of each wave at a time.
    static constexpr u32 PIECE = WIDTH > 128 ? WIDTH / 2 : WIDTH;
    static_assert(PIECE % GROUP_DEPTH<M> == 0, "whole fragments");
    static constexpr u32 STRIDE = row_stride<Element>(D), PIECE_STRIDE = row_stride<Element>(PIECE);
    static constexpr u32 ROWS = STREAMED_ROWS * STRIDE;
    using TransposedLayout = ChainedLayout<M, STREAMED_ROWS, D>;
    static constexpr bool IN_PLACE = TransposedLayout::TRANSPOSES_READS;  // F^T is read from F
    static constexpr u32 TRANSPOSED = TransposedLayout::ELEMENTS;
    static constexpr u32 BOTH_ROWS = 2 * ROWS, ALL_TRANSPOSED = IN_PLACE ? 0 : (KEYS ? 2 : 1) * TRANSPOSED;
    static constexpr u32 FIRST_TRANSPOSED = PHASED || IN_PLACE ? 0 : BOTH_ROWS;
    static constexpr u32 STREAMED = PHASED ? most(BOTH_ROWS, ALL_TRANSPOSED) : BOTH_ROWS + ALL_TRANSPOSED;
    static constexpr u32 LDS_ELEMENTS = most(STREAMED, BLOCK_WAVES * 16 * PIECE_STRIDE);
    // In floats: LSE (in log2 units) and delta of the streamed queries (for keys), and what the waves of a team tell
    // each other: accumulators of their parts of the scores and of dP. At least 1: arrays of nothing do not exist.
    static constexpr u32 STATISTICS = KEYS ? 2 * STREAMED_ROWS : 0, PART = CHAIN_FRAGMENTS * 256;
    static constexpr u32 LDS_FLOATS = most(1, STATISTICS + (TEAM > 1 ? BLOCK_WAVES * 2 * BLOCKS * PART : 0));

    using RowForm = RowTile<T, Element, STREAMED_ROWS, D, THREADS, STEP>;
    static constexpr u32 TRANSPOSERS = KEYS ? THREADS / 2 : THREADS;  // threads of a matrix
    using TransposedForm = TransposedTile<typename detail::RawOf<Element>::type, M, STREAMED_ROWS, D, TRANSPOSERS, 0>;
};

// A kernel's arguments: the resident side, and LDS.
template <typename S>
struct BackwardBlock {
    u32 first_resident, resident_rows;  // of the block, and of the problem
    u32 head_dim, head_dim_v;
    typename S::Element* lds;  // S::LDS_ELEMENTS
    float* floats;             // S::LDS_FLOATS
    u32* flags;                // S::BLOCK_WAVES words
};

}  // namespace rocattn
