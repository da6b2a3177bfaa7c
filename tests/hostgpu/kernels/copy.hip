// y = TIMES * x.
#include <rocattn/device.h>

using namespace rocattn;

#ifndef TIMES
#define TIMES 1
#endif

ROCATTN_KERNEL(copy, 128, (const float* x, float* y, u32 count)) {
    for (u32 i = thread_id(); i < count; i += 128) store(y + i, TIMES * load(x + i));
}
