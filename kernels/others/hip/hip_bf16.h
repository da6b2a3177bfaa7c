// ROCm's bfloat16 as the compiler's own type.
#pragma once
#include <hip/hip_fp16.h>

using __hip_bfloat16 = __bf16;
struct __hip_bfloat16_raw {
    unsigned short x;
};
ROCATTN_PAIR(__hip_bfloat16, __hip_bfloat162)
using __hip_bfloat162_raw = __hip_bfloat162;
ROCATTN_HALVES(float, __bfloat162float, (__hip_bfloat16 a), static_cast<float>(a))
ROCATTN_HALVES(__hip_bfloat16, __float2bfloat16, (float a), static_cast<__hip_bfloat16>(a))
ROCATTN_HALVES(__hip_bfloat16, __float2bfloat16_rn, (float a), static_cast<__hip_bfloat16>(a))
ROCATTN_HALVES(unsigned short, __bfloat16_as_ushort, (__hip_bfloat16 a), __builtin_bit_cast(unsigned short, a))
ROCATTN_HALVES(__hip_bfloat16, __ushort_as_bfloat16, (unsigned short a), __builtin_bit_cast(__hip_bfloat16, a))
ROCATTN_HALVES(__hip_bfloat162, __halves2bfloat162, (__hip_bfloat16 a, __hip_bfloat16 b), __hip_bfloat162(a, b))
ROCATTN_HALVES(__hip_bfloat162, make_bfloat162, (__hip_bfloat16 a, __hip_bfloat16 b), __hip_bfloat162(a, b))
ROCATTN_HALVES(__hip_bfloat162, __bfloat162bfloat162, (__hip_bfloat16 a), __hip_bfloat162(a, a))
ROCATTN_HALVES(__hip_bfloat162, __floats2bfloat162_rn, (float a, float b), __hip_bfloat162(__float2bfloat16(a), __float2bfloat16(b)))
ROCATTN_HALVES(__hip_bfloat162, __float22bfloat162_rn, (float2 a), __floats2bfloat162_rn(a.x, a.y))
ROCATTN_HALVES(float2, __bfloat1622float2, (__hip_bfloat162 a), float2(static_cast<float>(a.x), static_cast<float>(a.y)))
ROCATTN_HALVES(__hip_bfloat16, __low2bfloat16, (__hip_bfloat162 a), a.x)
ROCATTN_HALVES(__hip_bfloat16, __high2bfloat16, (__hip_bfloat162 a), a.y)
ROCATTN_BINARY(__hip_bfloat16, )
ROCATTN_BINARY(__hip_bfloat162, 2)
ROCATTN_HALVES(__hip_bfloat16, __hfma, (__hip_bfloat16 a, __hip_bfloat16 b, __hip_bfloat16 c), __builtin_elementwise_fma(a, b, c))
ROCATTN_HALVES(__hip_bfloat162, __hfma2, (__hip_bfloat162 a, __hip_bfloat162 b, __hip_bfloat162 c), __builtin_elementwise_fma(a.data, b.data, c.data))
ROCATTN_HALVES(__hip_bfloat16, __hmax, (__hip_bfloat16 a, __hip_bfloat16 b), a < b ? b : a)
ROCATTN_HALVES(__hip_bfloat16, __hmin, (__hip_bfloat16 a, __hip_bfloat16 b), b < a ? b : a)
