// device.h on the stand-in GPU (kernels/hostgpu): every access and collective calls into it. Compiled as C++20 by
// clang with -DROCATTN_HOSTGPU=<arch> and the target's own macros (rocattn/toolchain/hostgpu.py).
#pragma once

#include <rocattn/hostgpu_abi.h>

#define __device__  // __shared__ and __global__ stay undefined: ROCATTN_LDS and ROCATTN_KERNEL are what is checked
#define ROCATTN_INLINE inline __attribute__((always_inline))

// A variable that does not need the pattern with which the compiler fills all others.
#define ROCATTN_SET_BY_CALL __attribute__((uninitialized))

// The kernel's body becomes an ordinary function; rocattn_kernel_<name> tells the stand-in how to call it.
#define ROCATTN_KERNEL(name, threads, parameters) ROCATTN_KERNEL_NAMED(name, threads, parameters)
#define ROCATTN_KERNEL_NAMED(name, threads, parameters)                                                           \
    static void rocattn_body_##name parameters;                                                                   \
    extern "C" __attribute__((visibility("default"), used)) const ::rocattn::hostgpu::Kernel rocattn_kernel_##name = \
        ::rocattn::detail::Arguments<&rocattn_body_##name>::kernel(threads);                                       \
    static void rocattn_body_##name parameters

// One allocation per declaration and block, made by the first thread that arrives.
#define ROCATTN_LDS(T, name, count)                                                                              \
    T* const name = static_cast<T*>(                                                                             \
        ::rocattn::detail::runtime->lds_declare(sizeof(T) * (count), #name, ::rocattn::Where::here()))

#if defined(__GFX9__)
#define ROCATTN_WAVE 64
#else
#define ROCATTN_WAVE 32
#endif

// Conversions and operations for CPUs without the instruction; the compiler calls them by these names.
#if defined(__x86_64__) && !defined(__F16C__)
extern "C" __attribute__((visibility("hidden"), used)) inline float __extendhfsf2(_Float16 half) {
    const unsigned bits = __builtin_bit_cast(unsigned short, half);
    const unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, fraction = bits & 0x3ffu;
    if (exponent == 31) return __builtin_bit_cast(float, sign | 0x7f800000u | fraction << 13);
    if (exponent) return __builtin_bit_cast(float, sign | (exponent + 112) << 23 | fraction << 13);
    const float small = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -small : small;
}
extern "C" __attribute__((visibility("hidden"), used)) inline _Float16 __truncsfhf2(float x) {
    const unsigned bits = __builtin_bit_cast(unsigned, x), sign = bits >> 16 & 0x8000u;
    const float size = __builtin_bit_cast(float, bits & 0x7fffffffu);
    unsigned half;
    if (!(size == size)) {
        half = 0x7e00u | (bits >> 13 & 0x3ffu);
    } else if (size >= 65520.0f) {
        half = 0x7c00u;
    } else if (size < 0x1p-14f) {  // the sum's ulp is a subnormal half's: the addition rounds
        half = __builtin_bit_cast(unsigned, size + 0.5f) - 0x3f000000u;
    } else {
        const unsigned normal = __builtin_bit_cast(unsigned, size) - (112u << 23);
        half = (normal + 0xfffu + (normal >> 13 & 1u)) >> 13;
    }
    return __builtin_bit_cast(_Float16, static_cast<unsigned short>(sign | half));
}
#endif
#if defined(__x86_64__) && !defined(__FMA__)
// The product is exact in double; rounding the sum twice can differ from rounding once only in ties.
extern "C" __attribute__((visibility("hidden"), used)) inline float fmaf(float a, float b, float c) {
    return static_cast<float>(static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c));
}
#endif

namespace rocattn {

constexpr u32 WAVE = ROCATTN_WAVE;

using hostgpu::Where;

namespace detail {

// -DROCATTN_HOSTGPU=<arch>
#define ROCATTN_TEXT_OF(x) #x
#define ROCATTN_TEXT(x) ROCATTN_TEXT_OF(x)

static hostgpu::Runtime* runtime;  // set by the stand-in when it loads the module

extern "C" __attribute__((visibility("default"), used)) const hostgpu::Module rocattn_hostgpu_module = {
    hostgpu::ABI, ROCATTN_TEXT(ROCATTN_HOSTGPU), &runtime};
#undef ROCATTN_TEXT
#undef ROCATTN_TEXT_OF

template <typename I, I... N>
struct Sequence {};

// Argument buffers as amdhsa lays them out: parameters in order, each aligned to its type.
template <auto BODY>
struct Arguments;
template <typename... P, void (*BODY)(P...)>
struct Arguments<BODY> {
    static constexpr u32 COUNT = sizeof...(P);
    struct Layout {
        hostgpu::Parameter parameter[COUNT + 1];
        u32 bytes;
    };
    static constexpr Layout layout() {
        Layout made{};
        const u32 sizes[] = {sizeof(P)..., 0}, aligns[] = {alignof(P)..., 1};
        for (u32 i = 0; i < COUNT; ++i) {
            const u32 offset = (made.bytes + aligns[i] - 1) / aligns[i] * aligns[i];
            made.parameter[i] = {offset, sizes[i]};
            made.bytes = offset + sizes[i];
        }
        return made;
    }
    static constexpr Layout LAYOUT = layout();

    template <typename T>
    static T at(const void* arguments, u32 offset) {
        T value ROCATTN_SET_BY_CALL;
        __builtin_memcpy(&value, static_cast<const char*>(arguments) + offset, sizeof(T));
        return value;
    }
    template <u32... I>
    static void call(const void* arguments, Sequence<u32, I...>) {
        BODY(at<P>(arguments, LAYOUT.parameter[I].offset)...);
    }
    static void run(const void* arguments) { call(arguments, __make_integer_seq<Sequence, u32, COUNT>{}); }

    static constexpr hostgpu::Kernel kernel(u32 threads) {
        return {&run, threads, LAYOUT.bytes, COUNT, LAYOUT.parameter};
    }
};

}  // namespace detail

ROCATTN_INLINE u32 thread_id() { return detail::runtime->thread; }
ROCATTN_INLINE u32 block_x() { return detail::runtime->block[0]; }
ROCATTN_INLINE u32 block_y() { return detail::runtime->block[1]; }
ROCATTN_INLINE u32 block_z() { return detail::runtime->block[2]; }

// All lanes of the wave must agree.
ROCATTN_INLINE u32 uniform(u32 value, Where where = Where::here()) { return detail::runtime->uniform(value, where); }

// ---- synchronisation and lanes -------------------------------------------------------------------------------------

ROCATTN_INLINE void block_barrier(Where where = Where::here()) {
    detail::runtime->barrier(hostgpu::Collective::BLOCK_BARRIER, where);
}
ROCATTN_INLINE void wave_barrier(Where where = Where::here()) {
    detail::runtime->barrier(hostgpu::Collective::WAVE_BARRIER, where);
}

ROCATTN_INLINE u32 shuffle(u32 value, u32 lane, Where where = Where::here()) {
    return detail::runtime->shuffle(value, lane, where);
}
ROCATTN_INLINE float shuffle(float value, u32 lane, Where where = Where::here()) {
    return __builtin_bit_cast(float, shuffle(__builtin_bit_cast(u32, value), lane, where));
}

ROCATTN_INLINE u32 shuffle_xor(u32 value, u32 mask, Where where = Where::here()) {
    return shuffle(value, (thread_id() % WAVE) ^ mask, where);
}
ROCATTN_INLINE float shuffle_xor(float value, u32 mask, Where where = Where::here()) {
    return shuffle(value, (thread_id() % WAVE) ^ mask, where);
}

ROCATTN_INLINE u32 exchange_halves(u32 value, Where where = Where::here()) { return shuffle_xor(value, 16, where); }
ROCATTN_INLINE float exchange_halves(float value, Where where = Where::here()) { return shuffle_xor(value, 16, where); }

ROCATTN_INLINE float shared_by_16(float value, u32 lane, Where where = Where::here()) {
    return shuffle(value, thread_id() % WAVE / 16 * 16 + lane, where);
}

ROCATTN_INLINE bool any_lane(bool condition, Where where = Where::here()) {
    return detail::runtime->any_lane(condition, where);
}

// ---- arithmetic ----------------------------------------------------------------------------------------------------
// More accurate than the GPU's instructions (about 1 ulp), but with their treatment of numbers below 2^-126.

inline float exp2_fast(float x) {
    if (!(x >= -126.0f)) return x == x ? 0.0f : x;
    if (x >= 128.0f) return INF;
    constexpr double C[] = {1.0,
                            0.6931471805599453,
                            0.2402265069591007,
                            0.05550410866482158,
                            0.009618129107628477,
                            0.0013333558146428443,
                            0.00015403530393381608,
                            0.000015252733804059841,
                            0.0000013215486790144307};  // ln(2)^k / k!
    const float whole = (x + 0x1.8p23f) - 0x1.8p23f;    // to the nearest integer
    const double f = static_cast<double>(x) - static_cast<double>(whole);
    double sum = C[8];
    for (int k = 7; k >= 0; --k) sum = sum * f + C[k];
    return static_cast<float>(sum * __builtin_bit_cast(double, static_cast<u64>(1023 + static_cast<i64>(whole)) << 52));
}

inline float log2_fast(float x) {
    if (__builtin_fabsf(x) < 0x1p-126f) return -INF;
    if (!(x > 0.0f)) return __builtin_nanf("");
    if (x == INF) return INF;
    const u32 bits = __builtin_bit_cast(u32, x) - 0x3f3504f3u;  // the mantissa in sqrt(1/2) ... sqrt(2)
    const double m = __builtin_bit_cast(float, (bits & 0x7fffffu) + 0x3f3504f3u);
    const double s = (m - 1.0) / (m + 1.0), square = s * s;
    double sum = 0.0;
    for (int k = 13; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
    return static_cast<float>((static_cast<i32>(bits) >> 23) + 2.885390081777927 * s * sum);  // 2 / ln(2)
}

inline float reciprocal_fast(float x) {
    const float size = __builtin_fabsf(x);
    return size < 0x1p-126f ? __builtin_copysignf(INF, x) : size > 0x1p126f ? __builtin_copysignf(0.0f, x) : 1.0f / x;
}

// ---- memory --------------------------------------------------------------------------------------------------------

template <typename T, u32 N>
ROCATTN_INLINE Vector<T, N> load(const T* address, Where where = Where::here()) {
    Vector<T, N> value ROCATTN_SET_BY_CALL;
    detail::runtime->read(&value, address, sizeof(T) * N, alignof(T), where);
    return value;
}

template <typename T, u32 N>
ROCATTN_INLINE void store(T* address, Vector<T, N> value, Where where = Where::here()) {
    detail::runtime->write(address, &value, sizeof(T) * N, alignof(T), where);
}

template <typename T>
ROCATTN_INLINE T load(const T* address, Where where = Where::here()) {
    T value ROCATTN_SET_BY_CALL;
    detail::runtime->read(&value, address, sizeof(T), alignof(T), where);
    return value;
}

template <typename T>
ROCATTN_INLINE void store(T* address, T value, Where where = Where::here()) {
    detail::runtime->write(address, &value, sizeof(T), alignof(T), where);
}

template <typename T, u32 N>
ROCATTN_INLINE Vector<T, N> lds_load(const T* address, Where where = Where::here()) {
    constexpr u32 ALIGN = sizeof(T) * N < VECTOR_BYTES ? sizeof(T) * N : VECTOR_BYTES;
    Vector<T, N> value ROCATTN_SET_BY_CALL;
    detail::runtime->lds_read(&value, address, sizeof(T) * N, ALIGN, where);
    return value;
}

template <typename T, u32 N>
ROCATTN_INLINE void lds_store(T* address, Vector<T, N> value, Where where = Where::here()) {
    constexpr u32 ALIGN = sizeof(T) * N < VECTOR_BYTES ? sizeof(T) * N : VECTOR_BYTES;
    detail::runtime->lds_write(address, &value, sizeof(T) * N, ALIGN, where);
}

template <typename T>
ROCATTN_INLINE T lds_load(const T* address, Where where = Where::here()) {
    T value ROCATTN_SET_BY_CALL;
    detail::runtime->lds_read(&value, address, sizeof(T), alignof(T), where);
    return value;
}

template <typename T>
ROCATTN_INLINE void lds_store(T* address, T value, Where where = Where::here()) {
    detail::runtime->lds_write(address, &value, sizeof(T), alignof(T), where);
}

#if defined(__gfx950__)
template <typename T>
ROCATTN_INLINE Vector<T, 4> lds_load_transposed(const T* address, Where where = Where::here()) {
    Vector<T, 4> value ROCATTN_SET_BY_CALL;
    detail::runtime->lds_read_transposed(&value, address, where);
    return value;
}
#endif

#if defined(__gfx942__) || defined(__gfx950__)
template <u32 BYTES, typename T>
ROCATTN_INLINE void load_to_lds(const T* base, u32 offset, T* lds, Where where = Where::here()) {
    uniform(static_cast<u32>(reinterpret_cast<u64>(base)), where);
    uniform(static_cast<u32>(reinterpret_cast<u64>(lds)), where);
    detail::runtime->load_to_lds(reinterpret_cast<const char*>(base) + offset, lds, BYTES, alignof(T), where);
}
ROCATTN_INLINE void loads_arrived(Where where = Where::here()) { detail::runtime->loads_arrived(where); }
#endif

// ---- matrix instructions -------------------------------------------------------------------------------------------

using f32x4 = Vector<float, 4>;
using f32x8 = Vector<float, 8>;

namespace detail {
template <hostgpu::Element ELEMENT, hostgpu::Collective INSTRUCTION, typename Operand, typename Sum>
ROCATTN_INLINE Sum matrix(Operand a, Operand b, Sum c, Where where) {
    Sum d ROCATTN_SET_BY_CALL;
    runtime->matrix(INSTRUCTION, {&a, &b, reinterpret_cast<float*>(&c), reinterpret_cast<float*>(&d), ELEMENT}, where);
    return d;
}
}  // namespace detail

#define ROCATTN_MATRIX_INSTRUCTION(T, name, instruction, elements, Sum)                                            \
    ROCATTN_INLINE Sum name(Vector<T, elements> a, Vector<T, elements> b, Sum c, Where where = Where::here()) {    \
        constexpr auto ELEMENT = __is_same(T, f16) ? hostgpu::Element::F16 : hostgpu::Element::BF16;               \
        return detail::matrix<ELEMENT, hostgpu::Collective::instruction>(a, b, c, where);                          \
    }
#if defined(__GFX11__)
ROCATTN_MATRIX_INSTRUCTION(f16, wmma_gfx11, WMMA_GFX11, 16, f32x8)
ROCATTN_MATRIX_INSTRUCTION(bf16, wmma_gfx11, WMMA_GFX11, 16, f32x8)
#elif defined(__GFX12__)
ROCATTN_MATRIX_INSTRUCTION(f16, wmma_gfx12, WMMA_GFX12, 8, f32x8)
ROCATTN_MATRIX_INSTRUCTION(bf16, wmma_gfx12, WMMA_GFX12, 8, f32x8)
#elif defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
ROCATTN_MATRIX_INSTRUCTION(f16, mfma_16x16x16, MFMA_16X16X16, 4, f32x4)
ROCATTN_MATRIX_INSTRUCTION(bf16, mfma_16x16x16, MFMA_16X16X16, 4, f32x4)
#if defined(__gfx950__)
ROCATTN_MATRIX_INSTRUCTION(f16, mfma_16x16x32, MFMA_16X16X32, 8, f32x4)
ROCATTN_MATRIX_INSTRUCTION(bf16, mfma_16x16x32, MFMA_16X16X32, 8, f32x4)
#endif
#endif
#undef ROCATTN_MATRIX_INSTRUCTION

#if defined(__GFX12__)
ROCATTN_INLINE f32x8 multiply_fp8(Vector<u32, 2> a, Vector<u32, 2> b, f32x8 c, Where where = Where::here()) {
    return detail::matrix<hostgpu::Element::E4M3FN, hostgpu::Collective::WMMA_GFX12_FP8>(a, b, c, where);
}
#elif defined(__gfx942__) || defined(__gfx950__)
ROCATTN_INLINE f32x4 multiply_fp8(Vector<u32, 2> a, Vector<u32, 2> b, f32x4 c, Where where = Where::here()) {
#if defined(__gfx942__)
    constexpr auto ELEMENT = hostgpu::Element::E4M3FNUZ;
#else
    constexpr auto ELEMENT = hostgpu::Element::E4M3FN;
#endif
    return detail::matrix<ELEMENT, hostgpu::Collective::MFMA_16X16X32_FP8>(a, b, c, where);
}
#endif

}  // namespace rocattn
