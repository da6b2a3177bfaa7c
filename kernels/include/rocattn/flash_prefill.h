// The code that flash_attention, flash_attention_causal and flash_attention_nocausal share around the core: a block's
// place in the grid, its rows, and its output.
#pragma once

#include <rocattn/flash_parts.h>

#ifndef KEY_PARTS
#define KEY_PARTS 1
#endif
#ifndef XCDS
#define XCDS 1
#endif

namespace rocattn {

// Which query tile, head and batch a block has.
//
// A GPU with several compute dies (XCDS), each with its own L2, assigns blocks to them round robin. Here, each die
// gets whole consecutive heads, so that their K and V enter one L2 instead of all. Heads that do not divide evenly keep
// the order of the grid.
struct BlockPlace {
    u32 tile, head, batch;

    ROCATTN_INLINE BlockPlace(u32 tiles, u32 heads, u32 batches) : tile(block_x()), head(block_y()), batch(block_z()) {
        if constexpr (XCDS > 1) {
            const u32 number = (batch * heads + head) * tiles + tile;
            const u32 each = heads * batches / XCDS;  // heads per die
            if (number >= each * XCDS * tiles) return;
            const u32 turn = number / XCDS, of_die = scalar(turn / tiles), at = number % XCDS * each + of_die;
            tile = turn - of_die * tiles;
            batch = scalar(at / heads);
            head = at - batch * heads;
        }
    }
};

#if SEQUENCES
// A block's query tile and sequence; `place.batch` is the sequence.
template <u32 ROWS>
struct SequenceTile {
    BlockPlace place;
    SequencePlace sequence;
    u32 tiles;  // of the sequence

    ROCATTN_INLINE SequenceTile(const i32* cu_seqlens_q, const i32* cu_seqlens_k, const i32* seqlens_k, u32 sequences,
                                u32 total_q, u32 heads)
        : place(found(BlockPlace(total_q / ROWS + sequences, heads, 1), cu_seqlens_q, sequences)),
          sequence(cu_seqlens_q, cu_seqlens_k, seqlens_k, place.batch),
          tiles(ceil_div(sequence.seq_q, ROWS)) {}
    // Some tiles belong to no sequence.
    ROCATTN_INLINE bool exists() const { return place.tile < tiles; }

private:
    static ROCATTN_INLINE BlockPlace found(BlockPlace at, const i32* cu_seqlens_q, u32 sequences) {
        u32 first;
        at.batch = SequencePlace::find(cu_seqlens_q, sequences, ROWS, at.tile, first);
        at.tile -= first;
        return at;
    }
};
// In a prefill kernel: leaves if the block has no rows; else `place` and `tiles` are its own sequence's.
#define ROCATTN_PLACE_BLOCK()                                                                                       \
    const SequenceTile<Shape::BLOCK_ROWS> of_sequence(cu_seqlens_q, cu_seqlens_k, seqlens_k, sequences, total_q, num_heads); \
    if (!of_sequence.exists()) return;                                                                              \
    ROCATTN_USE_SEQUENCE(of_sequence.sequence)                                                                      \
    if (lse) lse += of_sequence.sequence.first_q;                                                                   \
    const BlockPlace place = of_sequence.place;                                                                     \
    [[maybe_unused]] const u32 tiles = of_sequence.tiles
#define ROCATTN_BATCH_STRIDE(name) 0
#if SEQUENCES >= 2
#define ROCATTN_OF_SEQUENCE , total_q, ROCATTN_PAGES(place.batch)
#else
#define ROCATTN_OF_SEQUENCE , total_q
#endif
#else
#define ROCATTN_BATCH_STRIDE(name) name##_stride_b
#define ROCATTN_OF_SEQUENCE
#define ROCATTN_PLACE_BLOCK()                                              \
    const u32 tiles = ceil_div(seq_q, Shape::BLOCK_ROWS);                  \
    const BlockPlace place(tiles, num_heads, batch)
#endif

// Strides of batch, head and row, in elements.
struct Strides {
    i64 b, h, s;
};

template <typename T>
struct FlashArguments {
    const StoredQ<T>* q;
    const Stored<T> *k, *v;
    T* out;
    float* lse;
    Strides q_strides, k_strides, v_strides, out_strides;
    u32 seq_q, seq_k, num_heads, group, head_dim, head_dim_v;
#if SEQUENCES
    u32 total_q;  // rows of lse [H, total_q]
#endif
#if SEQUENCES >= 2
    Pages pages;
#endif
    float v_scale = 1.0f;
};

// The block's query rows: [first, first + BLOCK_ROWS) of one head.
template <typename S>
struct QueryRows {
    u32 first;       // of the block
    u32 wave_first;  // of the wave

    ROCATTN_INLINE explicit QueryRows(u32 tile)
        : first(tile * S::BLOCK_ROWS), wave_first(uniform(tile * S::BLOCK_ROWS + wave_id() * S::WAVE_ROWS)) {}

    // This lane's row of query fragment i.
    ROCATTN_INLINE u32 lane_row(u32 i, u32 lane = lane_id()) const { return wave_first + 16 * i + S::M::column(lane); }
};

// Key tiles [first, stop) of the block; `sink`: natural-log weight that joins the row's sum without a value, or -inf.
template <typename S, typename Scores>
ROCATTN_INLINE void flash_prefill(const FlashArguments<typename S::T>& a, const BlockPlace& place,
                                  const QueryRows<S>& rows, const Scores& scores, u32 first, u32 stop, float sink,
                                  typename S::Element* lds, typename S::Element* next_lds, u32* flags) {
    using T = typename S::T;
    const i64 batch = place.batch, head = place.head, kv_head = scalar(place.head / a.group);
    const FlashBlock<S> block{{a.k + batch * a.k_strides.b + kv_head * a.k_strides.h, a.k_strides.s},
                              {a.v + batch * a.v_strides.b + kv_head * a.v_strides.h, a.v_strides.s},
                              a.seq_k, a.head_dim, a.head_dim_v, lds, next_lds, flags
#if SEQUENCES >= 2
                              , a.pages
#endif
    };
    const StoredQ<T>* q = a.q + batch * a.q_strides.b + head * a.q_strides.h;
    // Computed before the loop, so that their inputs take fewer scalar registers in it.
    T* out = a.out + batch * a.out_strides.b + head * a.out_strides.h;
#if SEQUENCES
    float* lse = a.lse ? a.lse + head * a.total_q : nullptr;
#else
    float* lse = a.lse ? a.lse + (batch * a.num_heads + head) * a.seq_q : nullptr;
#endif
    settle_scalar(out);
    settle_scalar(lse);
    FlashForward<S, Scores> forward(block, scores);
    forward.load_queries([&](u32 row) {
        const u32 at = rows.wave_first + row;
        return at < a.seq_q ? q + at * a.q_strides.s : nullptr;
    });
    forward.run(first, stop);
    const u32 lane = S::PARTS > 1 ? lane_late() : lane_again<T>();

#pragma unroll
    for (u32 i = 0; i < S::Q_FRAGMENTS; ++i) {
        const u32 row = rows.lane_row(i, lane);
        const RowEnd end = end_row<Scores::PLAIN>(forward.reference_of(i), forward.total(i, lane), sink);
        T* out_row = row < a.seq_q ? out + row * a.out_strides.s : nullptr;
        write_row<S>(forward, i, out_row, a.head_dim_v, end.factor * a.v_scale, lane);
        if (lse && row < a.seq_q && S::M::part(lane) == 0) store(lse + row, end.lse);
    }
}

}  // namespace rocattn
