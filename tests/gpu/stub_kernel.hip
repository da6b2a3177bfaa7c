// A kernel for tests that run no kernel: pointers, 64-bit and 32-bit arguments, 64 threads.
#include <rocattn/device.h>

using namespace rocattn;

ROCATTN_KERNEL(scale_rows, 64,
               (const float* in, float* out, float* lse, const float* factors, i64 in_stride, i64 out_stride,
                u32 rows, u32 columns, u32 first, u32 step)) {
    const u32 column = block_x() * 64 + thread_id();
    if (column >= columns) return;
    for (u32 row = first; row < rows; row += step) {
        const float value = load(in + row * in_stride + column) * load(factors + row);
        store(out + row * out_stride + column, value);
        if (lse) store(lse + row, value);
    }
}
