// The GPU functions of our kernels. The target's part comes from amdgpu.h (clang builtins only, no ROCm header), with
// ROCATTN_HOSTGPU from hostgpu.h (the stand-in GPU, which executes the same sources on a CPU and checks each access),
// or from nvgpu.h (an NVIDIA card, for checking portable parts).
//
// Waves have 32 lanes on gfx10 and later, 64 on gfx9 (`WAVE`); blocks are 1D, grids up to 3D. Kernels never
// access global memory or LDS through * or [], but by load, store, lds_load, lds_store, so that the stand-in sees it.
#pragma once

namespace rocattn {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using i32 = int;
using i64 = long long;
using u64 = unsigned long long;
using f16 = _Float16;
using f32 = float;

// bfloat16 as bits: arithmetic is in float, and clang 17 has no conversions for __bf16.
struct bf16 {
    u16 bits;
};

constexpr float INF = __builtin_inff();
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;
constexpr u32 VECTOR_BYTES = 16;  // the widest load or store of a lane

namespace detail {
template <typename T>
struct RawOf {
    using type = T;
};
template <>
struct RawOf<bf16> {
    using type = short;
};
template <typename T, u32 N>
struct VectorOf {
    typedef typename RawOf<T>::type type __attribute__((ext_vector_type(N)));
};
}  // namespace detail

// N elements in registers; a bf16 element is its bits, as a short.
template <typename T, u32 N>
using Vector = typename detail::VectorOf<T, N>::type;

}  // namespace rocattn

#ifdef ROCATTN_HOSTGPU
#include <rocattn/hostgpu.h>
#elif defined(__NVPTX__)
#include <rocattn/nvgpu.h>
#else
#include <rocattn/amdgpu.h>
#endif

namespace rocattn {

__device__ inline u32 lane_id() { return thread_id() % WAVE; }
__device__ inline u32 wave_id() { return thread_id() / WAVE; }

// ---- lanes ---------------------------------------------------------------------------------------------------------
// From the target: shuffle(value, lane), shuffle_xor(value, mask), exchange_halves(value): the value of lane l ^ 16,
// any_lane(condition): whether it is true in any lane of the wave. All lanes of the wave take part in each.

__device__ inline float wave_max(float value, Where where = Where::here()) {
    for (u32 mask = WAVE / 2; mask > 0; mask /= 2) value = __builtin_fmaxf(value, shuffle_xor(value, mask, where));
    return value;
}

__device__ inline float wave_sum(float value, Where where = Where::here()) {
    for (u32 mask = WAVE / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask, where);
    return value;
}

// ---- arithmetic ----------------------------------------------------------------------------------------------------

__device__ inline u32 smaller(u32 a, u32 b) { return a < b ? a : b; }
__device__ inline u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }

__device__ inline float to_float(f32 x) { return x; }
__device__ inline float to_float(f16 x) { return static_cast<float>(x); }
__device__ inline float to_float(bf16 x) { return __builtin_bit_cast(float, static_cast<u32>(x.bits) << 16); }
__device__ inline float to_float(short bits) { return to_float(bf16{static_cast<u16>(bits)}); }

template <typename T>
__device__ inline T from_float(float x) {
    return static_cast<T>(x);
}

// Round to nearest, ties to even; a NaN keeps its sign and becomes quiet.
template <>
__device__ inline bf16 from_float<bf16>(float x) {
    const u32 bits = __builtin_bit_cast(u32, x);
    const u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return {static_cast<u16>(x == x ? rounded : (bits >> 16) | 0x40u)};
}

// The representation of an element in a Vector<T, N>.
template <typename T>
__device__ inline typename detail::RawOf<T>::type raw_from_float(float x) {
    return __builtin_bit_cast(typename detail::RawOf<T>::type, from_float<T>(x));
}

}  // namespace rocattn
