// Where K and V of the forward kernels come from: sequences of different lengths, by the compile-time define SEQUENCES,
// and storage in 8 bits, by KV_DTYPE (below).
//
//
//   0  all sequences have one length: nothing here is used
//   1  packed: the rows of q, and of k and v, of all sequences are contiguous                 symbol <kernel>_varlen
//   2  q packed, k and v in pages of whole key tiles: a tile has one address                  <kernel>_paged
//   3  q packed, k and v in pages of any size: each row of a tile has its own address         <kernel>_small_pages
//
// All but 0 add these arguments at the end, and seq_q and seq_k, which size the grid, are bounds:
//   const i32* cu_seqlens_q [B + 1]: the first row of each sequence in q, out and lse [H, total_q], and the end of the last
//   const i32* cu_seqlens_k [B + 1]: the same for packed k and v
//   const i32* seqlens_k [B]: keys of each sequence; null: those between its start and the next one
//   const i32* block_table [B, table_width]: the pages of each sequence
//   u32 sequences (B), total_q, table_width, page_size; page_factor and page_shift: n / page_size is the upper half of
//   2 n * page_factor, shifted by page_shift, for n below 2^30; splits (flash_decode)
// Strides of q, out, and packed k and v along the batch are 0; those of paged k and v are from page to page.
#pragma once

#include <rocattn/hints.h>

#ifndef SEQUENCES
#define SEQUENCES 0
#endif

// A kernel's symbol names its variant, because profilers show it.
#if SEQUENCES == 1
#define ROCATTN_KIND _varlen
#elif SEQUENCES == 2
#define ROCATTN_KIND _paged
#elif SEQUENCES == 3
#define ROCATTN_KIND _small_pages
#else
#define ROCATTN_KIND
#endif
#ifdef Q_DTYPE
#define ROCATTN_STORAGE _fp8_q
#elif defined(KV_DTYPE)
#define ROCATTN_STORAGE _fp8
#else
#define ROCATTN_STORAGE
#endif
#define ROCATTN_JOIN(name, kind, storage) name##kind##storage
#define ROCATTN_SYMBOL(name, kind, storage) ROCATTN_JOIN(name, kind, storage)
#define flash_attention ROCATTN_SYMBOL(flash_attention, ROCATTN_KIND, ROCATTN_STORAGE)
#define flash_attention_causal ROCATTN_SYMBOL(flash_attention_causal, ROCATTN_KIND, ROCATTN_STORAGE)
#define flash_attention_nocausal ROCATTN_SYMBOL(flash_attention_nocausal, ROCATTN_KIND, ROCATTN_STORAGE)
#define flash_decode ROCATTN_SYMBOL(flash_decode, ROCATTN_KIND, ROCATTN_STORAGE)

#if SEQUENCES
#pragma clang diagnostic ignored "-Wunused-parameter"  // all variants share one argument list
#define ROCATTN_SEQUENCES                                                                                             \
    , const i32 *cu_seqlens_q, const i32 *cu_seqlens_k, const i32 *seqlens_k, const i32 *block_table, u32 sequences,  \
        u32 total_q, u32 table_width, u32 page_size, u32 page_factor, u32 page_shift, u32 splits
#else
#define ROCATTN_SEQUENCES
#endif

// K and V in 8 bits: KV_DTYPE is e4m3fn or e4m3fnuz (fp8.h), the symbol <kernel>..._fp8; flash_attention and flash_decode
// only. With Q_DTYPE, which must be equal, Q is stored in it, too: <kernel>..._fp8_q. An element's value is its number
// times a scale. These arguments follow all others:
//   const float* q_scales, k_scales, v_scales: by strides broadcast to [B, Hkv], B counting sequences; null: 1
//   u32 q_scale_stride_b, _h, k_scale_stride_b, _h, v_scale_stride_b, _h
// The scales of Q and K are applied to the scores, the scale of V to the output.
#ifdef KV_DTYPE
#define ROCATTN_SCALES                                                                                                \
    , const float *q_scales, const float *k_scales, const float *v_scales, u32 q_scale_stride_b,  \
        u32 q_scale_stride_h, u32 k_scale_stride_b, u32 k_scale_stride_h, u32 v_scale_stride_b,                        \
        u32 v_scale_stride_h
#define ROCATTN_SCALE(name, batch, kv_head) \
    (name##s ? load(name##s + ((batch) * name##_stride_b + (kv_head) * name##_stride_h)) : 1.0f)
#define ROCATTN_SCORE_SCALE(batch, kv_head) \
    (ROCATTN_SCALE(q_scale, batch, kv_head) * ROCATTN_SCALE(k_scale, batch, kv_head))
#else
#define ROCATTN_SCALES
#define ROCATTN_SCALE(name, batch, kv_head) 1.0f
#define ROCATTN_SCORE_SCALE(batch, kv_head) 1.0f
#endif

namespace rocattn {

constexpr bool PAGED = SEQUENCES >= 2;
constexpr bool PAGES_OF_TILES = SEQUENCES == 2;

// The pages of one sequence.
struct Pages {
    const i32* table;  // of the sequence
    i64 k_stride, v_stride;  // elements from page to page
    u32 size, factor, shift;

    ROCATTN_INLINE u32 index(u32 key) const {
        return static_cast<u32>(static_cast<u64>(2 * key) * factor >> 32) >> shift;
    }
    // The page of a key, which must exist; lanes may differ.
    ROCATTN_INLINE u32 of(u32 key) const { return static_cast<u32>(load(table + index(key))); }
    // The key's row in its page.
    ROCATTN_INLINE u32 row(u32 key) const { return key - index(key) * size; }
};

// Where one sequence's rows are, and how many it has.
struct SequencePlace {
    u32 first_q, seq_q, first_k, seq_k;

    ROCATTN_INLINE SequencePlace(const i32* cu_seqlens_q, const i32* cu_seqlens_k, const i32* seqlens_k, u32 number)
        : first_q(at(cu_seqlens_q, number)),
          seq_q(at(cu_seqlens_q, number + 1) - first_q),
          first_k(PAGED ? 0 : at(cu_seqlens_k, number)),
          seq_k(seqlens_k ? at(seqlens_k, number) : at(cu_seqlens_k, number + 1) - first_k) {}

    static ROCATTN_INLINE u32 at(const i32* values, u32 index) {
        return scalar(static_cast<u32>(load(values + index)));
    }
    // The sequence that tile `tile` of `rows` query rows is of, and from which of these tiles on: sequence b has those
    // from cu_seqlens_q[b] / rows + b on, which leaves it enough whatever its length.
    static ROCATTN_INLINE u32 find(const i32* cu_seqlens_q, u32 sequences, u32 rows, u32 tile, u32& first) {
        u32 low = 0, high = sequences;
        first = 0;
        while (high - low > 1) {
            const u32 middle = (low + high) / 2, start = at(cu_seqlens_q, middle) / rows + middle;
            if (start <= tile) {
                low = middle;
                first = start;
            } else {
                high = middle;
            }
        }
        return low;
    }
};

}  // namespace rocattn

// Makes a kernel's arguments those of one sequence, except for the LSE.
#define ROCATTN_USE_SEQUENCE(place)                            \
    seq_q = (place).seq_q, seq_k = (place).seq_k;              \
    q += (place).first_q * q_stride_s;                         \
    out += (place).first_q * out_stride_s;                     \
    if constexpr (!PAGED) {                                    \
        k += (place).first_k * k_stride_s;                     \
        v += (place).first_k * v_stride_s;                     \
    }
#define ROCATTN_PAGES(number) \
    Pages { block_table + static_cast<i64>(number) * table_width, k_stride_b, v_stride_b, page_size, page_factor, page_shift }
