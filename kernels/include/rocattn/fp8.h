// 8-bit storage formats of Q, K and V, with 4 exponent and 3 mantissa bits: OCP's (e4m3fn: bias 7, up to 448, 0x7f and
// 0xff are NaN) and CDNA 3's (e4m3fnuz: bias 8, up to 240, 0x80 is NaN, so there is no -0). Neither has infinities. f16
// and bf16 represent each value exactly, so tiles are converted to these on their way to LDS without rounding. Where Q
// also has 8 bits and the target multiplies the format (`MULTIPLIES`), Q and K stay bytes.
#pragma once

#include <rocattn/matrix.h>

namespace rocattn {

struct e4m3fn {
    u8 bits;
    static constexpr float UNIT = 0x1p120f;  // scales a float with these exponent and mantissa bits: 2^(127 - bias)
    // Whether a byte without its sign (0 to 127), or with it, is NaN.
    static constexpr __device__ bool is_nan(u32 byte) { return (byte & 0x7fu) == 0x7fu; }
    // Sets the highest bit of each byte that is NaN and clears it in the others; the lower bits mean nothing.
    static constexpr __device__ u32 nans(u32 word) { return (word & 0x7f7f7f7fu) + 0x01010101u; }
};

struct e4m3fnuz {
    u8 bits;
    static constexpr float UNIT = 0x1p119f;
    static constexpr __device__ bool is_nan(u32 byte) { return (byte & 0xffu) == 0x80u; }
    static constexpr __device__ u32 nans(u32 word) { return (0x80808080u - (word & 0x7f7f7f7fu)) & word; }
};

namespace detail {
template <>
struct RawOf<e4m3fn> {
    using type = u8;
};
template <>
struct RawOf<e4m3fnuz> {
    using type = u8;
};
}  // namespace detail

template <typename T>
constexpr bool is_fp8 = __is_same(T, e4m3fn) || __is_same(T, e4m3fnuz);

// The lowest byte of a word as a float. Its subnormals are float subnormals until the multiplication.
template <typename T>
ROCATTN_INLINE float fp8_to_float(u32 byte) {
    const float size = __builtin_bit_cast(float, (byte & 0x7fu) << 20) * T::UNIT;
    const u32 bits = T::is_nan(byte) ? 0x7fc00000u : __builtin_bit_cast(u32, size);
    return __builtin_bit_cast(float, bits | (byte & 0x80u) << 24);
}
ROCATTN_INLINE float to_float(e4m3fn x) { return fp8_to_float<e4m3fn>(x.bits); }
ROCATTN_INLINE float to_float(e4m3fnuz x) { return fp8_to_float<e4m3fnuz>(x.bits); }

// The format that the target computes with: v_cvt_pk_f32_fp8 converts it, matrix instructions multiply it.
#if defined(__gfx942__)
template <typename T>
constexpr bool MULTIPLIES = __is_same(T, e4m3fnuz);
#elif defined(__gfx950__) || defined(__GFX12__)
template <typename T>
constexpr bool MULTIPLIES = __is_same(T, e4m3fn);
#else
template <typename T>
constexpr bool MULTIPLIES = false;
#endif

namespace detail {

#ifdef __AMDGCN__
template <typename T>
constexpr bool CONVERTS = MULTIPLIES<T>;
#else
template <typename T>
constexpr bool CONVERTS = false;
#endif

// The lower (HALF 0) or upper two bytes of a word as floats.
template <typename T, u32 HALF>
ROCATTN_INLINE Vector<float, 2> fp8_pair(u32 word) {
#if defined(__gfx942__) || defined(__gfx950__) || defined(__GFX12__)
#ifdef __AMDGCN__
    if constexpr (CONVERTS<T>) {
        typedef float Two __attribute__((ext_vector_type(2)));
        return __builtin_bit_cast(Two, __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(word), HALF != 0));
    }
#endif
#endif
    return {fp8_to_float<T>(word >> 16 * HALF), fp8_to_float<T>(word >> (16 * HALF + 8))};
}

// Packs two floats that are values of T into a word.
template <typename T>
ROCATTN_INLINE u32 exact_pair(Vector<float, 2> x) {
    if constexpr (__is_same(T, bf16)) {
        const auto words = __builtin_bit_cast(Vector<u32, 2>, x);
        return high_halves(words[0], words[1]);
    } else {
#ifdef __AMDGCN__
        return __builtin_bit_cast(u32, __builtin_amdgcn_cvt_pkrtz(x[0], x[1]));
#else
        return __builtin_bit_cast(u32, (Vector<f16, 2>{static_cast<f16>(x[0]), static_cast<f16>(x[1])}));
#endif
    }
}

}  // namespace detail

// The product of 8-bit elements, for scores only: no `chain`. A lane has 8 elements of A and B; C is as for 16 bits:
//   gfx942, gfx950   v_mfma 16x16x32
//   gfx12            v_wmma 16x16x16
#if defined(__gfx942__) || defined(__gfx950__) || defined(__GFX12__)
template <typename T>
struct Fp8Matrix : detail::LanePlace {
    using Element = T;
    static constexpr u32 DEPTH = Matrix<f16>::C_ROWS == 4 ? 32 : 16, C_ROWS = Matrix<f16>::C_ROWS;
    using A = Vector<T, 8>;
    using B = Vector<T, 8>;
    using C = Vector<float, C_ROWS>;

    static ROCATTN_INLINE u32 c_row(u32 r, u32 lane = lane_id()) { return Matrix<f16>::c_row(r, lane); }
    static ROCATTN_INLINE A a_from_lds(const T* tile, u32 stride, Where where = Where::here()) {
        return detail::contiguous_fragment<T, 8, true>(tile, stride, where);
    }
    static ROCATTN_INLINE B b_from_lds(const T* tile, u32 stride, Where where = Where::here()) {
        return a_from_lds(tile, stride, where);
    }
    static ROCATTN_INLINE C multiply(A a, B b, C c, Where where = Where::here()) {
        return multiply_fp8(__builtin_bit_cast(Vector<u32, 2>, a), __builtin_bit_cast(Vector<u32, 2>, b), c, where);
    }
};
#if defined(__gfx942__)
template <>
struct Matrix<e4m3fnuz> : Fp8Matrix<e4m3fnuz> {};
#else
template <>
struct Matrix<e4m3fn> : Fp8Matrix<e4m3fn> {};
#endif
#endif

// Converts elements from their stored type to T; N is a multiple of 4 if the types differ.
template <typename T, typename Stored, u32 N>
ROCATTN_INLINE Vector<T, N> as_computed(Vector<Stored, N> x) {
    if constexpr (__is_same(T, Stored)) {
        return x;
    } else {
        static_assert(is_fp8<Stored>, "the storage of K and V");
        const auto words = __builtin_bit_cast(Vector<u32, N / 4>, x);
        Vector<u32, N * sizeof(T) / 4> made;
#pragma unroll
        for (u32 w = 0; w < N / 4; ++w) {
            const auto low = detail::fp8_pair<Stored, 0>(words[w]), high = detail::fp8_pair<Stored, 1>(words[w]);
            if constexpr (sizeof(T) == 2) {
                made[2 * w] = detail::exact_pair<T>(low);
                made[2 * w + 1] = detail::exact_pair<T>(high);
            } else {
                const auto first = __builtin_bit_cast(Vector<u32, 2>, low);
                const auto second = __builtin_bit_cast(Vector<u32, 2>, high);
#pragma unroll
                for (u32 i = 0; i < 2; ++i) {
                    made[4 * w + i] = first[i];
                    made[4 * w + 2 + i] = second[i];
                }
            }
        }
        return __builtin_bit_cast(Vector<T, N>, made);
    }
}

}  // namespace rocattn
