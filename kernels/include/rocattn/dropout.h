// The dropout mask for kernels compiled with DROPOUT (rocattn/dropout.py defines which weights are kept).
//
// Kernels have three arguments for it after all others: const u32* dropout_key (two words), u32 drop_below (as i32), f32
// keep_factor. Weights are zeroed at their use; the factor is applied to the output (or dV) and dP, so that weights fit
// in 16 bits.
#pragma once

#include <rocattn/device.h>

#ifdef DROPOUT
#define ROCATTN_KEEP_FACTOR keep_factor
#define ROCATTN_DROPOUT , const u32 *dropout_key, i32 drop_below, f32 keep_factor
#define ROCATTN_DROPOUT_OF(batch, head) , Dropout(dropout_key, drop_below, keep_factor, (batch) * num_heads + (head))
#else
#define ROCATTN_KEEP_FACTOR 1.0f
#define ROCATTN_DROPOUT
#define ROCATTN_DROPOUT_OF(batch, head)
#endif

namespace rocattn {

// Which weights of one head are kept.
struct Dropout {
    u32 key[2];
    u32 below;     // weights whose word is below it are dropped
    float factor;  // and the others multiplied by this
    u32 head;      // b * H + h

    ROCATTN_INLINE Dropout(const u32* dropout_key, i32 drop_below, float keep_factor, u32 number)
        : key{load(dropout_key), load(dropout_key + 1)},
          below(static_cast<u32>(drop_below)),
          factor(keep_factor),
          head(number) {}

    ROCATTN_INLINE bool keeps(u32 row, u32 column) const { return word(row, column) >= below; }
    // dP of a pair: dO V^T after dropout.
    ROCATTN_INLINE float upstream(bool keeps, float product) const { return keeps ? product * factor : 0.0f; }

private:
    // Word column % 4 of Philox 4x32-10. Source: Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".
    ROCATTN_INLINE u32 word(u32 row, u32 column) const {
        u32 c[4] = {column / 4, row, head, 0}, k0 = key[0], k1 = key[1];
#pragma unroll 1
        for (u32 round = 0; round < 10; ++round) {
            const u64 first = u64{c[0]} * 0xd2511f53u, second = u64{c[2]} * 0xcd9e8d57u;
            c[0] = static_cast<u32>(second >> 32) ^ c[1] ^ k0;
            c[1] = static_cast<u32>(second);
            c[2] = static_cast<u32>(first >> 32) ^ c[3] ^ k1;
            c[3] = static_cast<u32>(first);
            k0 += 0x9e3779b9u;
            k1 += 0xbb67ae85u;
        }
        const u32 low = column & 1 ? c[1] : c[0], high = column & 1 ? c[3] : c[2];
        return column & 2 ? high : low;
    }
};

}  // namespace rocattn
