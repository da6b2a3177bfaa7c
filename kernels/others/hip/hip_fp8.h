// ROCm's 8-bit floats: what is one conversion of the GPU's; other targets convert in code that is not here.
#pragma once
#include <hip/hip_bf16.h>

using __hip_fp8_storage_t = unsigned char;
using __hip_fp8x2_storage_t = unsigned short;
using __hip_fp8x4_storage_t = unsigned int;
#define ROCATTN_FP8(name, from, to)                                                                             \
    struct name {                                                                                               \
        __hip_fp8_storage_t __x;                                                                                \
        name() = default;                                                                                       \
        __device__ name(float x) : __x(static_cast<__hip_fp8_storage_t>(__builtin_amdgcn_##from(x, x, 0, false))) {} \
        __device__ operator float() const { return __builtin_amdgcn_##to(__x, 0); }                             \
    };
#if defined(__gfx942__) || defined(__gfx950__) || defined(__gfx1200__) || defined(__gfx1201__) || defined(__gfx1250__)
#define ROCATTN_FP8S(suffix)                                                         \
    ROCATTN_FP8(__hip_fp8_e4m3##suffix, cvt_pk_fp8_f32, cvt_f32_fp8)                 \
    ROCATTN_FP8(__hip_fp8_e5m2##suffix, cvt_pk_bf8_f32, cvt_f32_bf8)
ROCATTN_FP8S()
ROCATTN_FP8S(_fnuz)
#else
struct __hip_fp8_e4m3 { __hip_fp8_storage_t __x; };
struct __hip_fp8_e5m2 { __hip_fp8_storage_t __x; };
struct __hip_fp8_e4m3_fnuz { __hip_fp8_storage_t __x; };
struct __hip_fp8_e5m2_fnuz { __hip_fp8_storage_t __x; };
#endif
