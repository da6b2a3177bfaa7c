// device.h on an NVIDIA GPU (sm_80 and later), compiled to PTX by the same clang: to check and time the portable
// parts of the kernels on an available card. Its numbers never stand in for those of an AMD GPU.
//
// A wave is a warp of 32 lanes, LDS is shared memory.
#pragma once

#ifndef __global__
#define __global__ __attribute__((global))
#endif
#ifndef __device__
#define __device__ __attribute__((device))
#endif
#ifndef __shared__
#define __shared__ __attribute__((shared))
#endif

#define ROCATTN_NVGPU 1
#define ROCATTN_INLINE __device__ inline __attribute__((always_inline))

#define ROCATTN_WAVE 32

#define ROCATTN_KERNEL(name, threads, parameters) \
    extern "C" __global__ void __attribute__((launch_bounds(threads))) name parameters

#define ROCATTN_LDS(T, name, count)                                               \
    __shared__ __attribute__((aligned(16))) unsigned char name##_bytes[sizeof(T) * (count)]; \
    T* const name = reinterpret_cast<T*>(name##_bytes)

namespace rocattn {

constexpr u32 WAVE = ROCATTN_WAVE;

struct Where {
    static constexpr __device__ Where here() { return {}; }
};

ROCATTN_INLINE u32 thread_id() { return __nvvm_read_ptx_sreg_tid_x(); }
ROCATTN_INLINE u32 block_x() { return __nvvm_read_ptx_sreg_ctaid_x(); }
ROCATTN_INLINE u32 block_y() { return __nvvm_read_ptx_sreg_ctaid_y(); }
ROCATTN_INLINE u32 block_z() { return __nvvm_read_ptx_sreg_ctaid_z(); }
ROCATTN_INLINE u32 uniform(u32 value) { return value; }  // the compiler detects uniform values by itself

// ---- synchronisation -----------------------------------------------------------------------------------------------

ROCATTN_INLINE void block_barrier(Where = Where::here()) { __syncthreads(); }
ROCATTN_INLINE void wave_barrier(Where = Where::here()) { __nvvm_bar_warp_sync(0xffffffffu); }

// ---- lanes ---------------------------------------------------------------------------------------------------------

ROCATTN_INLINE u32 shuffle(u32 value, u32 lane, Where = Where::here()) {
    return static_cast<u32>(__nvvm_shfl_sync_idx_i32(0xffffffffu, static_cast<int>(value), static_cast<int>(lane), 31));
}
ROCATTN_INLINE float shuffle(float value, u32 lane, Where = Where::here()) {
    return __builtin_bit_cast(float, shuffle(__builtin_bit_cast(u32, value), lane));
}
ROCATTN_INLINE u32 shuffle_xor(u32 value, u32 mask, Where = Where::here()) {
    const int own = static_cast<int>(value), lanes = static_cast<int>(mask);
    return static_cast<u32>(__nvvm_shfl_sync_bfly_i32(0xffffffffu, own, lanes, 31));
}
ROCATTN_INLINE float shuffle_xor(float value, u32 mask, Where = Where::here()) {
    return __builtin_bit_cast(float, shuffle_xor(__builtin_bit_cast(u32, value), mask));
}
ROCATTN_INLINE u32 exchange_halves(u32 value, Where = Where::here()) { return shuffle_xor(value, 16); }
ROCATTN_INLINE float exchange_halves(float value, Where = Where::here()) { return shuffle_xor(value, 16); }
ROCATTN_INLINE float shared_by_16(float value, u32 lane, Where = Where::here()) {
    return shuffle(value, thread_id() % WAVE / 16 * 16 + lane);
}

ROCATTN_INLINE bool any_lane(bool condition, Where = Where::here()) {
    return __nvvm_vote_any_sync(0xffffffffu, condition);
}

// ---- arithmetic ----------------------------------------------------------------------------------------------------

ROCATTN_INLINE float exp2_fast(float x) { return __nvvm_ex2_approx_ftz_f(x); }
ROCATTN_INLINE float log2_fast(float x) { return __nvvm_lg2_approx_ftz_f(x); }
ROCATTN_INLINE float reciprocal_fast(float x) { return __nvvm_rcp_approx_ftz_f(x); }

// ---- memory --------------------------------------------------------------------------------------------------------

namespace detail {
// Wide loads must be naturally aligned here (they trap otherwise); unaligned addresses are read element by element.
template <u32 BYTES>
ROCATTN_INLINE bool aligned(const void* address) {
    return reinterpret_cast<u64>(address) % BYTES == 0;
}
}  // namespace detail

template <typename T, u32 N>
ROCATTN_INLINE Vector<T, N> load(const T* address, Where = Where::here()) {
    constexpr u32 BYTES = sizeof(T) * N, WIDTH = BYTES < VECTOR_BYTES ? BYTES : VECTOR_BYTES;
    Vector<T, N> value;
    if (detail::aligned<WIDTH>(address))
        __builtin_memcpy(&value, __builtin_assume_aligned(address, WIDTH), BYTES);
    else
#pragma unroll
        for (u32 i = 0; i < N; ++i) value[i] = __builtin_bit_cast(typename detail::RawOf<T>::type, address[i]);
    return value;
}

template <typename T, u32 N>
ROCATTN_INLINE void store(T* address, Vector<T, N> value, Where = Where::here()) {
    constexpr u32 BYTES = sizeof(T) * N, WIDTH = BYTES < VECTOR_BYTES ? BYTES : VECTOR_BYTES;
    if (detail::aligned<WIDTH>(address))
        __builtin_memcpy(__builtin_assume_aligned(address, WIDTH), &value, BYTES);
    else
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            const typename detail::RawOf<T>::type raw = value[i];
            address[i] = __builtin_bit_cast(T, raw);
        }
}

}  // namespace rocattn

#include <rocattn/plain_memory.h>

namespace rocattn {

// ---- matrix instructions -------------------------------------------------------------------------------------------

// D = A B + C: A has 16 rows (registers in PTX's order), B 8 columns, depth is 16.
template <typename T>
ROCATTN_INLINE Vector<float, 4> mma_16x8x16(Vector<u32, 4> a, u32 b0, u32 b1, Vector<float, 4> c) {
    float d0 = c[0], d1 = c[1], d2 = c[2], d3 = c[3];
    const u32 a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
    if constexpr (__is_same(T, f16))
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    return {d0, d1, d2, d3};
}

}  // namespace rocattn
