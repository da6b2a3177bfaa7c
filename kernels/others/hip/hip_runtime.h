// What others' HIP kernels need in order to compile where ROCm's headers are not: `rocattn kernels audit kernel.hip`.
//
// Only for device code that is read, never run: the host's API is declared, not defined. What becomes the instructions
// that ROCm's becomes (its device library has clang's builtins behind expf, logf and sqrtf, too) stands plain. Where
// ROCm calls a function of that library (sinf, powf, tanhf) something simpler stands here, and the compiler says so.
#pragma once

#include <assert.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <rocattn/device.h>

#define __HIP_PLATFORM_AMD__ 1
#define __HIPCC__ 1
#define HIP_VERSION_MAJOR 6
#define HIP_VERSION_MINOR 4
#define HIP_VERSION_PATCH 0
#define HIP_VERSION 60400000
#define __host__ __attribute__((host))
#define __constant__ __attribute__((constant))
#define __managed__ __attribute__((managed))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define ROCATTN_BOUNDS(threads, attribute, ...) __attribute__((amdgpu_flat_work_group_size(1, threads) attribute))
#define ROCATTN_WAVES(threads, waves, ...) , amdgpu_waves_per_eu(waves)
#define __launch_bounds__(threads, ...) ROCATTN_BOUNDS(threads, __VA_OPT__(ROCATTN_WAVES(threads, __VA_ARGS__)), )
#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ type name[];
#define HIP_SYMBOL(name) name
#define HIP_KERNEL_NAME(...) __VA_ARGS__
#define hipLaunchKernelGGL(kernel, blocks, threads, lds, stream, ...) \
    (kernel)<<<(blocks), (threads), (lds), (stream)>>>(__VA_ARGS__)
#define ROCATTN_SIMPLER __attribute__((deprecated("rocattn: simpler than ROCm's")))
#define ROCATTN_DEVICE static __device__ __forceinline__
#define ROCATTN_BOTH static __host__ __device__ __forceinline__

// ---- vectors -------------------------------------------------------------------------------------------------------

namespace rocattn::hip {
template <bool>
struct Where;
template <>
struct Where<true> {
    using type = int;
};
template <typename T, unsigned N>
struct Lanes;
template <typename T>
struct Lanes<T, 1> {
    T x;
};
template <typename T>
struct Lanes<T, 2> {
    typedef T Raw __attribute__((ext_vector_type(2)));
    union {
        Raw data;
        struct {
            T x, y;
        };
    };
};
template <typename T>
struct Lanes<T, 3> {  // the compiler's own takes the room of four
    T x, y, z;
};
template <typename T>
struct Lanes<T, 4> {
    typedef T Raw __attribute__((ext_vector_type(4)));
    union {
        Raw data;
        struct {
            T x, y, z, w;
        };
    };
};
}  // namespace rocattn::hip

#define ROCATTN_EACH(of)        \
    of(x);                      \
    if constexpr (N > 1) of(y); \
    if constexpr (N > 2) of(z); \
    if constexpr (N > 3) of(w)
template <typename T, unsigned N>
struct HIP_vector_type : rocattn::hip::Lanes<T, N> {
    using value_type = T;
    HIP_vector_type() = default;
    template <typename A, typename rocattn::hip::Where<__is_convertible(A, T)>::type = 0>
    __host__ __device__ constexpr HIP_vector_type(A all) {
#define ROCATTN_ALL(lane) this->lane = static_cast<T>(all)
        ROCATTN_EACH(ROCATTN_ALL);
    }
    template <typename A, typename B>
    __host__ __device__ constexpr HIP_vector_type(A a, B b) {
        this->x = static_cast<T>(a), this->y = static_cast<T>(b);
    }
    template <typename A, typename B, typename C>
    __host__ __device__ constexpr HIP_vector_type(A a, B b, C c) {
        this->x = static_cast<T>(a), this->y = static_cast<T>(b), this->z = static_cast<T>(c);
    }
    template <typename A, typename B, typename C, typename D>
    __host__ __device__ constexpr HIP_vector_type(A a, B b, C c, D d) {
        this->x = static_cast<T>(a), this->y = static_cast<T>(b), this->z = static_cast<T>(c);
        this->w = static_cast<T>(d);
    }
#define ROCATTN_OPERATOR(op)                                                                       \
    __host__ __device__ HIP_vector_type& operator op##=(const HIP_vector_type & other) {           \
        const auto lane = [](T& a, T b) __attribute__((always_inline, host, device)) { a op## = b; }; \
        lane(this->x, other.x);                                                                    \
        if constexpr (N > 1) lane(this->y, other.y);                                               \
        if constexpr (N > 2) lane(this->z, other.z);                                               \
        if constexpr (N > 3) lane(this->w, other.w);                                               \
        return *this;                                                                              \
    }                                                                                              \
    friend __host__ __device__ HIP_vector_type operator op(HIP_vector_type a, const HIP_vector_type& b) { return a op##= b; }
    ROCATTN_OPERATOR(+)
    ROCATTN_OPERATOR(-)
    ROCATTN_OPERATOR(*)
    ROCATTN_OPERATOR(/)
#undef ROCATTN_OPERATOR
    friend __host__ __device__ HIP_vector_type operator-(const HIP_vector_type& a) { return HIP_vector_type(T(0)) - a; }
    friend __host__ __device__ bool operator==(const HIP_vector_type& a, const HIP_vector_type& b) {
        bool same = true;
#define ROCATTN_SAME(lane) same &= a.lane == b.lane
        ROCATTN_EACH(ROCATTN_SAME);
        return same;
    }
};

#define ROCATTN_VECTORS(T, name)                                             \
    using name##1 = HIP_vector_type<T, 1>;                                   \
    using name##2 = HIP_vector_type<T, 2>;                                   \
    using name##3 = HIP_vector_type<T, 3>;                                   \
    using name##4 = HIP_vector_type<T, 4>;                                   \
    ROCATTN_BOTH name##1 make_##name##1(T x) { return {x}; }                 \
    ROCATTN_BOTH name##2 make_##name##2(T x, T y) { return {x, y}; }         \
    ROCATTN_BOTH name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
    ROCATTN_BOTH name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
ROCATTN_VECTORS(signed char, char)
ROCATTN_VECTORS(unsigned char, uchar)
ROCATTN_VECTORS(short, short)
ROCATTN_VECTORS(unsigned short, ushort)
ROCATTN_VECTORS(int, int)
ROCATTN_VECTORS(unsigned int, uint)
ROCATTN_VECTORS(long, long)
ROCATTN_VECTORS(unsigned long, ulong)
ROCATTN_VECTORS(long long, longlong)
ROCATTN_VECTORS(unsigned long long, ulonglong)
ROCATTN_VECTORS(float, float)
ROCATTN_VECTORS(double, double)

// ---- where a thread is ---------------------------------------------------------------------------------------------

struct dim3 {
    uint32_t x, y, z;
    __host__ __device__ constexpr dim3(uint32_t x = 1, uint32_t y = 1, uint32_t z = 1) : x(x), y(y), z(z) {}
    __host__ __device__ constexpr dim3(uint3 of) : x(of.x), y(of.y), z(of.z) {}
};

// How many blocks there are is the first of the arguments that a runtime adds.
#define ROCATTN_BLOCKS(at) \
    ((const __attribute__((address_space(4))) unsigned*)__builtin_amdgcn_implicitarg_ptr())[at]
#define ROCATTN_PLACE(name, X, Y, Z)                                                                 \
    namespace rocattn::hip {                                                                         \
    struct name##_t {                                                                                \
        __declspec(property(get = get_x)) unsigned x;                                                \
        __declspec(property(get = get_y)) unsigned y;                                                \
        __declspec(property(get = get_z)) unsigned z;                                                \
        __device__ __forceinline__ unsigned get_x() const { return X; }                              \
        __device__ __forceinline__ unsigned get_y() const { return Y; }                              \
        __device__ __forceinline__ unsigned get_z() const { return Z; }                              \
        __device__ __forceinline__ operator dim3() const { return dim3(X, Y, Z); }                   \
        __device__ __forceinline__ operator uint3() const { return uint3(X, Y, Z); }                 \
    };                                                                                               \
    }                                                                                                \
    extern const __device__ __attribute__((weak)) rocattn::hip::name##_t name;
#define ROCATTN_OF(what) __builtin_amdgcn_##what##_x(), __builtin_amdgcn_##what##_y(), __builtin_amdgcn_##what##_z()
#define ROCATTN_PLACES(name, ...) ROCATTN_PLACE(name, __VA_ARGS__)
ROCATTN_PLACES(threadIdx, ROCATTN_OF(workitem_id))
ROCATTN_PLACES(blockIdx, ROCATTN_OF(workgroup_id))
ROCATTN_PLACES(blockDim, ROCATTN_OF(workgroup_size))
ROCATTN_PLACES(gridDim, ROCATTN_BLOCKS(0), ROCATTN_BLOCKS(1), ROCATTN_BLOCKS(2))
#define hipThreadIdx_x threadIdx.x
#define hipThreadIdx_y threadIdx.y
#define hipThreadIdx_z threadIdx.z
#define hipBlockIdx_x blockIdx.x
#define hipBlockIdx_y blockIdx.y
#define hipBlockIdx_z blockIdx.z
#define hipBlockDim_x blockDim.x
#define hipBlockDim_y blockDim.y
#define hipBlockDim_z blockDim.z
#define hipGridDim_x gridDim.x
#define hipGridDim_y gridDim.y
#define hipGridDim_z gridDim.z
[[maybe_unused]] static constexpr int warpSize = ROCATTN_WAVE;

// ---- synchronisation -----------------------------------------------------------------------------------------------

#define ROCATTN_FENCED(scope, between)                                               \
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, scope);                                 \
    between;                                                                         \
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, scope)
ROCATTN_DEVICE void __syncthreads() { ROCATTN_FENCED("workgroup", __builtin_amdgcn_s_barrier()); }
ROCATTN_DEVICE void __syncwarp(unsigned long long = ~0ull) { ROCATTN_FENCED("wavefront", __builtin_amdgcn_wave_barrier()); }
ROCATTN_DEVICE void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
ROCATTN_DEVICE void __threadfence_block() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"); }
ROCATTN_DEVICE void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }
extern "C++" __device__ inline __attribute__((noinline, weak)) void __assert_fail(const char*, const char*, unsigned, const char*) {
    __builtin_trap();
}
[[noreturn]] ROCATTN_DEVICE void abort() { __builtin_trap(); }

// ---- lanes ---------------------------------------------------------------------------------------------------------

ROCATTN_DEVICE unsigned __lane_id() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)); }
ROCATTN_DEVICE unsigned long long __ballot(int on) {
#if ROCATTN_WAVE == 32
    return __builtin_amdgcn_ballot_w32(on != 0);
#else
    return __builtin_amdgcn_ballot_w64(on != 0);
#endif
}
ROCATTN_DEVICE unsigned long long __activemask() { return __ballot(1); }
ROCATTN_DEVICE int __any(int on) { return __ballot(on) != 0; }
ROCATTN_DEVICE int __all(int on) { return __ballot(!on) == 0; }
ROCATTN_DEVICE unsigned long long __ballot_sync(unsigned long long, int on) { return __ballot(on); }
ROCATTN_DEVICE int __any_sync(unsigned long long, int on) { return __any(on); }
ROCATTN_DEVICE int __all_sync(unsigned long long, int on) { return __all(on); }

namespace rocattn::hip {
template <typename T>
ROCATTN_DEVICE T from_lane(T value, int lane) {
    static_assert(sizeof(T) <= 8);
    if constexpr (sizeof(T) <= 4) {
        int bits = 0;
        __builtin_memcpy(&bits, &value, sizeof(T));
        bits = __builtin_amdgcn_ds_bpermute(lane << 2, bits);
        __builtin_memcpy(&value, &bits, sizeof(T));
    } else {
        int bits[2];
        __builtin_memcpy(bits, &value, sizeof(T));
        for (int& half : bits) half = __builtin_amdgcn_ds_bpermute(lane << 2, half);
        __builtin_memcpy(&value, bits, sizeof(T));
    }
    return value;
}
}  // namespace rocattn::hip
#define ROCATTN_SHUFFLE(name, Lane, at, outside)                                      \
    template <typename T>                                                             \
    ROCATTN_DEVICE T name(T value, Lane by, int width = warpSize) {                   \
        const int own = static_cast<int>(__lane_id());                                \
        const int from = at;                                                          \
        return rocattn::hip::from_lane(value, outside ? own : from);                  \
    }                                                                                 \
    template <typename T>                                                             \
    ROCATTN_DEVICE T name##_sync(unsigned long long, T value, Lane by, int width = warpSize) { \
        return name(value, by, width);                                                \
    }
ROCATTN_SHUFFLE(__shfl, int, (by & (width - 1)) + (own & ~(width - 1)), false)
ROCATTN_SHUFFLE(__shfl_up, unsigned, own - static_cast<int>(by), from < (own & ~(width - 1)))
ROCATTN_SHUFFLE(__shfl_down, unsigned, own + static_cast<int>(by), (own & (width - 1)) + static_cast<int>(by) >= width)
ROCATTN_SHUFFLE(__shfl_xor, int, own ^ by, from >= ((own + width) & ~(width - 1)))

// ---- atomics -------------------------------------------------------------------------------------------------------

#define ROCATTN_ATOMIC(name, T, how)                                                                  \
    ROCATTN_DEVICE T name(T* at, T value) {                                                           \
        return __hip_atomic_##how(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);             \
    }
#define ROCATTN_ATOMICS(name, how)          \
    ROCATTN_ATOMIC(name, int, how)          \
    ROCATTN_ATOMIC(name, unsigned int, how) \
    ROCATTN_ATOMIC(name, unsigned long, how) \
    ROCATTN_ATOMIC(name, unsigned long long, how)
ROCATTN_ATOMICS(atomicAdd, fetch_add)
ROCATTN_ATOMIC(atomicAdd, float, fetch_add)
ROCATTN_ATOMIC(atomicAdd, double, fetch_add)
ROCATTN_ATOMICS(atomicSub, fetch_sub)
ROCATTN_ATOMICS(atomicMin, fetch_min)
ROCATTN_ATOMIC(atomicMin, float, fetch_min)
ROCATTN_ATOMICS(atomicMax, fetch_max)
ROCATTN_ATOMIC(atomicMax, float, fetch_max)
ROCATTN_ATOMICS(atomicAnd, fetch_and)
ROCATTN_ATOMICS(atomicOr, fetch_or)
ROCATTN_ATOMICS(atomicXor, fetch_xor)
ROCATTN_ATOMICS(atomicExch, exchange)
ROCATTN_ATOMIC(atomicExch, float, exchange)
template <typename T>
ROCATTN_DEVICE T atomicCAS(T* at, T expected, T value) {
    __hip_atomic_compare_exchange_strong(
        at, &expected, value, __ATOMIC_RELAXED, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    return expected;
}
template <typename T>
ROCATTN_DEVICE T unsafeAtomicAdd(T* at, T value) {
    [[clang::atomic(no_remote_memory, no_fine_grained_memory, ignore_denormal_mode)]] {
        return __hip_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    }
}

// ---- bits ----------------------------------------------------------------------------------------------------------

#define ROCATTN_FUNCTION(T, name, parameters, value) \
    ROCATTN_DEVICE T name parameters { return value; }
ROCATTN_FUNCTION(int, __popc, (unsigned x), __builtin_popcount(x))
ROCATTN_FUNCTION(int, __popcll, (unsigned long long x), __builtin_popcountll(x))
ROCATTN_FUNCTION(int, __clz, (int x), x ? __builtin_clz(static_cast<unsigned>(x)) : 32)
ROCATTN_FUNCTION(int, __clzll, (long long x), x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64)
ROCATTN_FUNCTION(int, __ffs, (int x), __builtin_ffs(x))
ROCATTN_FUNCTION(int, __ffsll, (long long x), __builtin_ffsll(x))
ROCATTN_FUNCTION(unsigned, __brev, (unsigned x), __builtin_bitreverse32(x))
ROCATTN_FUNCTION(unsigned long long, __brevll, (unsigned long long x), __builtin_bitreverse64(x))
ROCATTN_FUNCTION(int, __mul24, (int a, int b), (a << 8 >> 8) * (b << 8 >> 8))
ROCATTN_FUNCTION(unsigned, __umul24, (unsigned a, unsigned b), (a & 0xffffff) * (b & 0xffffff))
ROCATTN_FUNCTION(int, __mulhi, (int a, int b), static_cast<int>(static_cast<long long>(a) * b >> 32))
ROCATTN_FUNCTION(unsigned, __umulhi, (unsigned a, unsigned b), static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32))
ROCATTN_FUNCTION(int, __float_as_int, (float x), __builtin_bit_cast(int, x))
ROCATTN_FUNCTION(unsigned, __float_as_uint, (float x), __builtin_bit_cast(unsigned, x))
ROCATTN_FUNCTION(float, __int_as_float, (int x), __builtin_bit_cast(float, x))
ROCATTN_FUNCTION(float, __uint_as_float, (unsigned x), __builtin_bit_cast(float, x))
ROCATTN_FUNCTION(long long, __double_as_longlong, (double x), __builtin_bit_cast(long long, x))
ROCATTN_FUNCTION(double, __longlong_as_double, (long long x), __builtin_bit_cast(double, x))
ROCATTN_FUNCTION(unsigned, __byte_perm, (unsigned a, unsigned b, unsigned of), __builtin_amdgcn_perm(b, a, (of & 7) | (of & 0x70) << 4 | (of & 0x700) << 8 | (of & 0x7000) << 12))
ROCATTN_FUNCTION(unsigned, __funnelshift_r, (unsigned low, unsigned high, unsigned by), __builtin_amdgcn_alignbit(high, low, by))
ROCATTN_FUNCTION(unsigned, __bitextract_u32, (unsigned x, unsigned at, unsigned bits), __builtin_amdgcn_ubfe(x, at, bits))
ROCATTN_FUNCTION(int, __float2int_rn, (float x), static_cast<int>(__builtin_rintf(x)))
ROCATTN_FUNCTION(int, __float2int_rz, (float x), static_cast<int>(x))
ROCATTN_FUNCTION(float, __int2float_rn, (int x), static_cast<float>(x))
ROCATTN_FUNCTION(long long, clock64, (), static_cast<long long>(__builtin_readcyclecounter()))
ROCATTN_FUNCTION(long long, wall_clock64, (), static_cast<long long>(__builtin_readsteadycounter()))
ROCATTN_FUNCTION(void*, memcpy, (void* to, const void* from, size_t bytes), __builtin_memcpy(to, from, bytes))
ROCATTN_FUNCTION(void*, memset, (void* at, int byte, size_t bytes), __builtin_memset(at, byte, bytes))
template <typename T>
ROCATTN_FUNCTION(T, __ldg, (const T* at), *at)

// ---- arithmetic ----------------------------------------------------------------------------------------------------

#define ROCATTN_LESSER(T)                                             \
    ROCATTN_BOTH T min(T a, T b) { return b < a ? b : a; }            \
    ROCATTN_BOTH T max(T a, T b) { return a < b ? b : a; }
ROCATTN_LESSER(int)
ROCATTN_LESSER(unsigned int)
ROCATTN_LESSER(long)
ROCATTN_LESSER(unsigned long)
ROCATTN_LESSER(long long)
ROCATTN_LESSER(unsigned long long)
#define ROCATTN_MIXED(A, B) __is_arithmetic(A) && __is_arithmetic(B) && !__is_same(A, B)
template <typename A, typename B, typename rocattn::hip::Where<ROCATTN_MIXED(A, B)>::type = 0>
ROCATTN_BOTH auto min(A a, B b) -> decltype(a + b) {
    return b < a ? b : a;
}
template <typename A, typename B, typename rocattn::hip::Where<ROCATTN_MIXED(A, B)>::type = 0>
ROCATTN_BOTH auto max(A a, B b) -> decltype(a + b) {
    return a < b ? b : a;
}
ROCATTN_FUNCTION(int, abs, (int x), __builtin_abs(x))
ROCATTN_FUNCTION(long long, llabs, (long long x), __builtin_llabs(x))

// Of float by both names, and of double.
#define ROCATTN_MATH(name, parameters, arguments, attribute)                                                      \
    attribute ROCATTN_DEVICE float name##f ROCATTN_##parameters(float) { return __builtin_##name##f arguments; }  \
    attribute ROCATTN_DEVICE float name ROCATTN_##parameters(float) { return __builtin_##name##f arguments; }     \
    attribute ROCATTN_DEVICE double name ROCATTN_##parameters(double) { return __builtin_##name arguments; }
#define ROCATTN_ONE(T) (T x)
#define ROCATTN_TWO(T) (T x, T y)
#define ROCATTN_THREE(T) (T x, T y, T z)
ROCATTN_MATH(fabs, ONE, (x), )
ROCATTN_MATH(sqrt, ONE, (x), )
ROCATTN_MATH(floor, ONE, (x), )
ROCATTN_MATH(ceil, ONE, (x), )
ROCATTN_MATH(trunc, ONE, (x), )
ROCATTN_MATH(rint, ONE, (x), )
ROCATTN_MATH(nearbyint, ONE, (x), )
ROCATTN_MATH(round, ONE, (x), )
ROCATTN_MATH(fmin, TWO, (x, y), )
ROCATTN_MATH(fmax, TWO, (x, y), )
ROCATTN_MATH(copysign, TWO, (x, y), )
ROCATTN_MATH(fma, THREE, (x, y, z), )
ROCATTN_FUNCTION(float, min, (float a, float b), __builtin_fminf(a, b))
ROCATTN_FUNCTION(float, max, (float a, float b), __builtin_fmaxf(a, b))
ROCATTN_FUNCTION(double, min, (double a, double b), __builtin_fmin(a, b))
ROCATTN_FUNCTION(double, max, (double a, double b), __builtin_fmax(a, b))
ROCATTN_FUNCTION(float, abs, (float x), __builtin_fabsf(x))
ROCATTN_FUNCTION(double, abs, (double x), __builtin_fabs(x))
ROCATTN_DEVICE float rsqrtf(float x) {  // the instruction does not take denormals
    const bool tiny = x < 0x1p-126f;
    return __builtin_amdgcn_rsqf(x * (tiny ? 0x1p24f : 1.0f)) * (tiny ? 0x1p12f : 1.0f);
}
ROCATTN_FUNCTION(float, rsqrt, (float x), rsqrtf(x))
#define ROCATTN_CLASS(T, suffix)                                                \
    ROCATTN_FUNCTION(bool, isnan, (T x), __builtin_isnan(x))                    \
    ROCATTN_FUNCTION(bool, isinf, (T x), __builtin_isinf(x))                    \
    ROCATTN_FUNCTION(bool, isfinite, (T x), __builtin_isfinite(x))              \
    ROCATTN_FUNCTION(bool, signbit, (T x), __builtin_signbit(x))
ROCATTN_CLASS(float, f)
ROCATTN_CLASS(double, )

// The backend has these of float; ROCm's of double are functions.
#define ROCATTN_EXPONENTIAL(name)                                                                        \
    ROCATTN_FUNCTION(float, name##f, (float x), __builtin_##name##f(x))                                  \
    ROCATTN_FUNCTION(float, name, (float x), __builtin_##name##f(x))                                     \
    ROCATTN_SIMPLER ROCATTN_FUNCTION(double, name, (double x), __builtin_##name##f(static_cast<float>(x)))
ROCATTN_EXPONENTIAL(exp)
ROCATTN_EXPONENTIAL(exp2)
ROCATTN_EXPONENTIAL(exp10)
ROCATTN_EXPONENTIAL(log)
ROCATTN_EXPONENTIAL(log2)
ROCATTN_EXPONENTIAL(log10)
ROCATTN_FUNCTION(float, __expf, (float x), __builtin_amdgcn_exp2f(x * 1.4426950408889634f))
ROCATTN_FUNCTION(float, __exp10f, (float x), __builtin_amdgcn_exp2f(x * 3.3219280948873623f))
ROCATTN_FUNCTION(float, __logf, (float x), __builtin_amdgcn_logf(x) * 0.6931471805599453f)
ROCATTN_FUNCTION(float, __log2f, (float x), __builtin_amdgcn_logf(x))
ROCATTN_FUNCTION(float, __sinf, (float x), __builtin_amdgcn_sinf(x * 0.15915494309189535f))
ROCATTN_FUNCTION(float, __cosf, (float x), __builtin_amdgcn_cosf(x * 0.15915494309189535f))
ROCATTN_FUNCTION(float, __powf, (float x, float y), __builtin_amdgcn_exp2f(y * __builtin_amdgcn_logf(x)))
ROCATTN_FUNCTION(float, __saturatef, (float x), __builtin_amdgcn_fmed3f(x, 0.0f, 1.0f))
ROCATTN_FUNCTION(float, __fdividef, (float a, float b), a* __builtin_amdgcn_rcpf(b))
ROCATTN_FUNCTION(float, __frcp_rn, (float x), 1.0f / x)
ROCATTN_FUNCTION(float, __fsqrt_rn, (float x), __builtin_sqrtf(x))
ROCATTN_FUNCTION(float, __frsqrt_rn, (float x), __builtin_amdgcn_rsqf(x))
ROCATTN_FUNCTION(float, __fadd_rn, (float a, float b), a + b)
ROCATTN_FUNCTION(float, __fsub_rn, (float a, float b), a - b)
ROCATTN_FUNCTION(float, __fmul_rn, (float a, float b), a* b)
ROCATTN_FUNCTION(float, __fdiv_rn, (float a, float b), a / b)
ROCATTN_FUNCTION(float, __fmaf_rn, (float a, float b, float c), __builtin_fmaf(a, b, c))

ROCATTN_FUNCTION(float, __ocml_exp_f32, (float x), __builtin_expf(x))
ROCATTN_FUNCTION(float, __ocml_exp2_f32, (float x), __builtin_exp2f(x))
ROCATTN_FUNCTION(float, __ocml_log_f32, (float x), __builtin_logf(x))
ROCATTN_FUNCTION(float, __ocml_log2_f32, (float x), __builtin_log2f(x))
ROCATTN_FUNCTION(float, __ocml_sqrt_f32, (float x), __builtin_sqrtf(x))

// Functions of ROCm's device library.
#define ROCATTN_FUNCTIONS(name, parameters, value)                                    \
    ROCATTN_SIMPLER ROCATTN_FUNCTION(float, name##f, ROCATTN_##parameters(float), value) \
    ROCATTN_SIMPLER ROCATTN_FUNCTION(float, name, ROCATTN_##parameters(float), value)    \
    ROCATTN_SIMPLER ROCATTN_FUNCTION(double, name, ROCATTN_##parameters(double), value)
#define ROCATTN_OWN_EXP(x) __builtin_expf(static_cast<float>(x))
#define ROCATTN_TANH(x) (1 - 2 / (ROCATTN_OWN_EXP(2 * (x)) + 1))
ROCATTN_FUNCTIONS(sin, ONE, __sinf(static_cast<float>(x)))
ROCATTN_FUNCTIONS(cos, ONE, __cosf(static_cast<float>(x)))
ROCATTN_FUNCTIONS(tan, ONE, __sinf(static_cast<float>(x)) / __cosf(static_cast<float>(x)))
ROCATTN_FUNCTIONS(tanh, ONE, ROCATTN_TANH(x))
ROCATTN_FUNCTIONS(erf, ONE, ROCATTN_TANH(1.1283791670955126f * x * (1 + 0.089430f * x * x)))
ROCATTN_FUNCTIONS(expm1, ONE, ROCATTN_OWN_EXP(x) - 1)
ROCATTN_FUNCTIONS(log1p, ONE, __builtin_logf(static_cast<float>(1 + x)))
ROCATTN_FUNCTIONS(cbrt, ONE, __powf(static_cast<float>(x), 1 / 3.0f))
ROCATTN_FUNCTIONS(pow, TWO, __powf(static_cast<float>(x), static_cast<float>(y)))
ROCATTN_FUNCTIONS(fmod, TWO, x - y * __builtin_trunc(x / y))
ROCATTN_FUNCTIONS(hypot, TWO, __builtin_sqrtf(static_cast<float>(x * x + y * y)))
ROCATTN_SIMPLER ROCATTN_FUNCTION(float, powf, (float x, int y), __powf(x, static_cast<float>(y)))
ROCATTN_SIMPLER ROCATTN_FUNCTION(double, rsqrt, (double x), 1 / __builtin_sqrt(x))
ROCATTN_SIMPLER ROCATTN_DEVICE void sincosf(float x, float* sine, float* cosine) { *sine = __sinf(x), *cosine = __cosf(x); }
template <typename... A>
ROCATTN_SIMPLER ROCATTN_DEVICE int printf(const char*, A...) {
    return 0;
}

// ---- the host's side, so that it can be passed over ----------------------------------------------------------------

enum hipError_t { hipSuccess, hipErrorInvalidValue, hipErrorOutOfMemory, hipErrorNotReady = 600, hipErrorPeerAccessAlreadyEnabled = 704, hipErrorUnknown = 999 };
enum hipMemcpyKind { hipMemcpyHostToHost, hipMemcpyHostToDevice, hipMemcpyDeviceToHost, hipMemcpyDeviceToDevice, hipMemcpyDefault };
enum hipDeviceAttribute_t { hipDeviceAttributeMultiprocessorCount, hipDeviceAttributeWarpSize, hipDeviceAttributeMaxThreadsPerBlock, hipDeviceAttributeMaxSharedMemoryPerBlock, hipDeviceAttributeCooperativeLaunch, hipDeviceAttributePciChipId };
enum hipFuncAttribute { hipFuncAttributeMaxDynamicSharedMemorySize };
#define hipStreamDefault 0
#define hipStreamNonBlocking 1
#define hipStreamPerThread (reinterpret_cast<hipStream_t>(2))
#define hipEventDefault 0
#define hipEventDisableTiming 2
#define hipHostMallocDefault 0
#define hipHostMallocMapped 2
#define hipHostRegisterDefault 0
#define HIP_LAUNCH_PARAM_BUFFER_POINTER (reinterpret_cast<void*>(1))
#define HIP_LAUNCH_PARAM_BUFFER_SIZE (reinterpret_cast<void*>(2))
#define HIP_LAUNCH_PARAM_END (reinterpret_cast<void*>(3))
using hipStream_t = struct ihipStream_t*;
using hipEvent_t = struct ihipEvent_t*;
using hipModule_t = struct ihipModule_t*;
using hipFunction_t = struct ihipModuleSymbol_t*;
using hipDevice_t = int;
using hipDeviceptr_t = void*;
struct hipDeviceProp_t {
    char name[256], gcnArchName[256];
    size_t totalGlobalMem, sharedMemPerBlock, totalConstMem, maxSharedMemoryPerMultiProcessor;
    int regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate, memoryClockRate;
    int memoryBusWidth, major, minor, multiProcessorCount, l2CacheSize, maxThreadsPerMultiProcessor, integrated;
    int canMapHostMemory, cooperativeLaunch, concurrentKernels;
};
extern "C" hipError_t __hipPushCallConfiguration(dim3 blocks, dim3 threads, size_t lds = 0, hipStream_t stream = nullptr);
const char* hipGetErrorString(hipError_t error);
const char* hipGetErrorName(hipError_t error);
#define ROCATTN_API(name)    \
    template <typename... A> \
    hipError_t name(A&&...);
ROCATTN_API(hipMalloc) ROCATTN_API(hipMallocAsync) ROCATTN_API(hipMallocManaged) ROCATTN_API(hipHostMalloc)
ROCATTN_API(hipFree) ROCATTN_API(hipFreeAsync) ROCATTN_API(hipHostFree) ROCATTN_API(hipHostRegister) ROCATTN_API(hipHostUnregister) ROCATTN_API(hipHostGetDevicePointer)
ROCATTN_API(hipMemcpy) ROCATTN_API(hipMemcpyAsync) ROCATTN_API(hipMemcpyToSymbol) ROCATTN_API(hipMemcpyFromSymbol)
ROCATTN_API(hipMemcpyPeerAsync) ROCATTN_API(hipMemcpy2DAsync) ROCATTN_API(hipMemset) ROCATTN_API(hipMemsetAsync)
ROCATTN_API(hipMemGetInfo) ROCATTN_API(hipGetSymbolAddress) ROCATTN_API(hipGetSymbolSize) ROCATTN_API(hipGetLastError) ROCATTN_API(hipPeekAtLastError)
ROCATTN_API(hipGetDevice) ROCATTN_API(hipSetDevice) ROCATTN_API(hipGetDeviceCount) ROCATTN_API(hipGetDeviceProperties)
ROCATTN_API(hipDeviceSynchronize) ROCATTN_API(hipDeviceReset) ROCATTN_API(hipDeviceGetAttribute) ROCATTN_API(hipInit)
ROCATTN_API(hipStreamCreate) ROCATTN_API(hipStreamCreateWithFlags) ROCATTN_API(hipStreamDestroy)
ROCATTN_API(hipStreamSynchronize) ROCATTN_API(hipStreamWaitEvent) ROCATTN_API(hipEventCreate)
ROCATTN_API(hipEventCreateWithFlags) ROCATTN_API(hipEventRecord) ROCATTN_API(hipEventSynchronize)
ROCATTN_API(hipEventElapsedTime) ROCATTN_API(hipEventDestroy) ROCATTN_API(hipLaunchKernel)
ROCATTN_API(hipLaunchCooperativeKernel) ROCATTN_API(hipFuncSetAttribute) ROCATTN_API(hipDeviceCanAccessPeer)
ROCATTN_API(hipDeviceEnablePeerAccess) ROCATTN_API(hipModuleLoad) ROCATTN_API(hipModuleGetFunction)
ROCATTN_API(hipModuleLaunchKernel) ROCATTN_API(hipGetFuncBySymbol) ROCATTN_API(hipModuleLoadData) ROCATTN_API(hipModuleUnload)
ROCATTN_API(hipOccupancyMaxActiveBlocksPerMultiprocessor) ROCATTN_API(hipOccupancyMaxPotentialBlockSize)
