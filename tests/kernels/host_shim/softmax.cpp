// hip/softmax.hip as a function for ctypes.
#include "gpu.h"

#include <hip/softmax.hip>

extern "C" const char* softmax_on_host(u32 blocks, u32 wave, const void* scores, void* probs, float* lse,
                                       const float* sinks, u32 rows, u32 columns, i64 in_stride, i64 out_stride,
                                       u32 seq_q, u32 num_heads) {
    return shim::launch(softmax_rows, blocks, BLOCK, wave, static_cast<const In*>(scores), static_cast<Out*>(probs), lse,
                        sinks, rows, columns, in_stride, out_stride, seq_q, num_heads);
}
