// ROCm's half and half2 as the compiler's own types, which become the same instructions.
#pragma once
#include <hip/hip_runtime.h>

using __half = _Float16;
using half = __half;
struct __half_raw {
    unsigned short x;
};
#define ROCATTN_PAIR(T, name)                                                                                \
    struct name {                                                                                            \
        using value_type = T;                                                                                \
        typedef T Raw __attribute__((ext_vector_type(2)));                                                   \
        union {                                                                                              \
            Raw data;                                                                                        \
            struct {                                                                                         \
                T x, y;                                                                                      \
            };                                                                                               \
        };                                                                                                   \
        name() = default;                                                                                    \
        __host__ __device__ constexpr name(T a, T b) : data{a, b} {}                                         \
        __host__ __device__ constexpr name(Raw raw) : data(raw) {}                                           \
        __host__ __device__ operator Raw() const { return data; }                                            \
        friend __host__ __device__ name operator+(name a, name b) { return a.data + b.data; }                \
        friend __host__ __device__ name operator-(name a, name b) { return a.data - b.data; }                \
        friend __host__ __device__ name operator*(name a, name b) { return a.data * b.data; }                \
        friend __host__ __device__ name operator/(name a, name b) { return a.data / b.data; }                \
        friend __host__ __device__ name operator-(name a) { return -a.data; }                                \
        __host__ __device__ name& operator+=(name other) { return data += other.data, *this; }               \
        __host__ __device__ name& operator-=(name other) { return data -= other.data, *this; }               \
        __host__ __device__ name& operator*=(name other) { return data *= other.data, *this; }               \
    };
ROCATTN_PAIR(__half, __half2)
using half2 = __half2;

#if __has_builtin(__builtin_elementwise_maxnum)
#define ROCATTN_MAXNUM __builtin_elementwise_maxnum
#define ROCATTN_MINNUM __builtin_elementwise_minnum
#else  // older compilers call it so
#define ROCATTN_MAXNUM __builtin_elementwise_max
#define ROCATTN_MINNUM __builtin_elementwise_min
#endif
#define ROCATTN_HALVES(T, name, parameters, value) ROCATTN_BOTH T name parameters { return value; }
ROCATTN_HALVES(float, __half2float, (__half a), static_cast<float>(a))
ROCATTN_HALVES(__half, __float2half, (float a), static_cast<__half>(a))
ROCATTN_HALVES(__half, __float2half_rn, (float a), static_cast<__half>(a))
ROCATTN_HALVES(__half, __int2half_rn, (int a), static_cast<__half>(a))
ROCATTN_HALVES(int, __half2int_rn, (__half a), static_cast<int>(__builtin_rintf(static_cast<float>(a))))
ROCATTN_HALVES(unsigned short, __half_as_ushort, (__half a), __builtin_bit_cast(unsigned short, a))
ROCATTN_HALVES(__half, __ushort_as_half, (unsigned short a), __builtin_bit_cast(__half, a))
ROCATTN_HALVES(__half2, __halves2half2, (__half a, __half b), __half2(a, b))
ROCATTN_HALVES(__half2, make_half2, (__half a, __half b), __half2(a, b))
ROCATTN_HALVES(__half2, __half2half2, (__half a), __half2(a, a))
ROCATTN_HALVES(__half2, __float2half2_rn, (float a), __half2(static_cast<__half>(a), static_cast<__half>(a)))
ROCATTN_HALVES(__half2, __floats2half2_rn, (float a, float b), __half2(static_cast<__half>(a), static_cast<__half>(b)))
ROCATTN_HALVES(__half2, __float22half2_rn, (float2 a), __floats2half2_rn(a.x, a.y))
ROCATTN_HALVES(float2, __half22float2, (__half2 a), float2(a.x, a.y))
ROCATTN_HALVES(__half, __low2half, (__half2 a), a.x)
ROCATTN_HALVES(__half, __high2half, (__half2 a), a.y)
ROCATTN_HALVES(float, __low2float, (__half2 a), static_cast<float>(a.x))
ROCATTN_HALVES(float, __high2float, (__half2 a), static_cast<float>(a.y))
ROCATTN_HALVES(__half2, __lows2half2, (__half2 a, __half2 b), __half2(a.x, b.x))
ROCATTN_HALVES(__half2, __highs2half2, (__half2 a, __half2 b), __half2(a.y, b.y))
ROCATTN_HALVES(__half2, __low2half2, (__half2 a), __half2(a.x, a.x))
ROCATTN_HALVES(__half2, __high2half2, (__half2 a), __half2(a.y, a.y))
#define ROCATTN_BINARY(T, suffix)                                                                            \
    ROCATTN_HALVES(T, __hadd##suffix, (T a, T b), a + b)                                                     \
    ROCATTN_HALVES(T, __hsub##suffix, (T a, T b), a - b)                                                     \
    ROCATTN_HALVES(T, __hmul##suffix, (T a, T b), a* b)                                                      \
    ROCATTN_HALVES(T, __hneg##suffix, (T a), -a)
ROCATTN_BINARY(__half, )
ROCATTN_BINARY(__half2, 2)
ROCATTN_HALVES(__half, __hdiv, (__half a, __half b), a / b)
ROCATTN_HALVES(__half2, __h2div, (__half2 a, __half2 b), a / b)
ROCATTN_HALVES(__half, __hfma, (__half a, __half b, __half c), __builtin_elementwise_fma(a, b, c))
ROCATTN_HALVES(__half2, __hfma2, (__half2 a, __half2 b, __half2 c), __builtin_elementwise_fma(a.data, b.data, c.data))
ROCATTN_HALVES(__half, __hmax, (__half a, __half b), ROCATTN_MAXNUM(a, b))
ROCATTN_HALVES(__half, __hmin, (__half a, __half b), ROCATTN_MINNUM(a, b))
ROCATTN_HALVES(__half2, __hmax2, (__half2 a, __half2 b), ROCATTN_MAXNUM(a.data, b.data))
ROCATTN_HALVES(__half2, __hmin2, (__half2 a, __half2 b), ROCATTN_MINNUM(a.data, b.data))
ROCATTN_HALVES(__half, __habs, (__half a), __builtin_elementwise_abs(a))
ROCATTN_HALVES(__half2, __habs2, (__half2 a), __builtin_elementwise_abs(a.data))
ROCATTN_HALVES(bool, __hgt, (__half a, __half b), a > b)
ROCATTN_HALVES(bool, __hge, (__half a, __half b), a >= b)
ROCATTN_HALVES(bool, __hlt, (__half a, __half b), a < b)
ROCATTN_HALVES(bool, __hle, (__half a, __half b), a <= b)
ROCATTN_HALVES(bool, __heq, (__half a, __half b), a == b)
ROCATTN_HALVES(bool, __hisnan, (__half a), __builtin_isnan(a))
ROCATTN_HALVES(__half, hexp, (__half a), static_cast<__half>(__builtin_expf(static_cast<float>(a))))
ROCATTN_HALVES(__half, hlog, (__half a), static_cast<__half>(__builtin_logf(static_cast<float>(a))))
ROCATTN_HALVES(__half, hsqrt, (__half a), __builtin_elementwise_sqrt(a))
ROCATTN_HALVES(__half, hrsqrt, (__half a), static_cast<__half>(1 / __builtin_sqrtf(static_cast<float>(a))))
ROCATTN_HALVES(__half2, h2exp, (__half2 a), __half2(hexp(a.x), hexp(a.y)))
