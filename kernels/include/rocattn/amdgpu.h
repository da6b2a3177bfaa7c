// device.h on an AMD GPU: clang builtins. Under hipRTC, which has headers built in, the guards keep its definitions.
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

#define ROCATTN_INLINE __device__ inline __attribute__((always_inline))

// A kernel with exactly `threads` threads per block: the compiler may use all registers this allows, and other launches
// are rejected. Used as: ROCATTN_KERNEL(name, threads, (const float* x, u32 n)) { ... }
// MIN_WAVES is the number of waves per SIMD that its registers must allow.
#ifdef MIN_WAVES
#define ROCATTN_KERNEL_ATTRIBUTES __attribute__((amdgpu_waves_per_eu(MIN_WAVES)))
#else
#define ROCATTN_KERNEL_ATTRIBUTES
#endif
#define ROCATTN_KERNEL(name, threads, parameters)                                           \
    extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(threads, threads))) \
    ROCATTN_KERNEL_ATTRIBUTES name parameters

// LDS of a block, declared in the kernel's scope: `name` points to COUNT elements, 16-byte aligned, uninitialized.
#define ROCATTN_LDS(T, name, count)                                                          \
    __shared__ __attribute__((aligned(16))) unsigned char name##_bytes[sizeof(T) * (count)]; \
    T* const name = reinterpret_cast<T*>(name##_bytes)

#if defined(__GFX9__)
#define ROCATTN_WAVE 64
#else
#define ROCATTN_WAVE 32
#endif

namespace rocattn {

constexpr u32 WAVE = ROCATTN_WAVE;

// Where a check of the stand-in GPU reports its finding; nothing on a GPU.
struct Where {
    static constexpr __device__ Where here() { return {}; }
};

ROCATTN_INLINE u32 thread_id() { return __builtin_amdgcn_workitem_id_x(); }
ROCATTN_INLINE u32 block_x() { return __builtin_amdgcn_workgroup_id_x(); }
ROCATTN_INLINE u32 block_y() { return __builtin_amdgcn_workgroup_id_y(); }
ROCATTN_INLINE u32 block_z() { return __builtin_amdgcn_workgroup_id_z(); }
// The number of blocks is an argument of the kernels that need it: reading it takes the dispatch packet or hidden
// arguments, which not every code-object loader provides.

// Makes a wave-uniform value a scalar, so that the compiler keeps it in an SGPR.
ROCATTN_INLINE u32 uniform(u32 value) {
    return static_cast<u32>(__builtin_amdgcn_readfirstlane(static_cast<int>(value)));
}

// ---- synchronisation -----------------------------------------------------------------------------------------------

// A fence for LDS only. One for all memory would wait for the next tile's loads and invalidate caches at every barrier;
// no kernel here passes global memory between threads.
#if __clang_major__ >= 19
#define ROCATTN_LDS_FENCE(order, scope) __builtin_amdgcn_fence(order, scope, "local")
#else
#define ROCATTN_LDS_FENCE(order, scope) __builtin_amdgcn_fence(order, scope)
#endif

// Waits for all threads of the block and makes their LDS writes visible to each other.
ROCATTN_INLINE void block_barrier(Where = Where::here()) {
    ROCATTN_LDS_FENCE(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    ROCATTN_LDS_FENCE(__ATOMIC_ACQUIRE, "workgroup");
}

// Makes a lane's LDS writes visible to the other lanes of its wave. A wave's LDS instructions stay in order, so this
// only keeps the compiler from moving them.
ROCATTN_INLINE void wave_barrier(Where = Where::here()) {
    ROCATTN_LDS_FENCE(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    ROCATTN_LDS_FENCE(__ATOMIC_ACQUIRE, "wavefront");
}

// ---- lanes ---------------------------------------------------------------------------------------------------------

// LDS hardware without LDS memory (ds_bpermute). On gfx10 and later it stays within 32 lanes, so wave32 is used there.
ROCATTN_INLINE u32 shuffle(u32 value, u32 lane, Where = Where::here()) {
    return static_cast<u32>(__builtin_amdgcn_ds_bpermute(static_cast<int>(lane * 4), static_cast<int>(value)));
}
ROCATTN_INLINE float shuffle(float value, u32 lane, Where = Where::here()) {
    return __builtin_bit_cast(float, shuffle(__builtin_bit_cast(u32, value), lane));
}

ROCATTN_INLINE u32 shuffle_xor(u32 value, u32 mask, Where = Where::here()) {
    return shuffle(value, (thread_id() % WAVE) ^ mask);
}
ROCATTN_INLINE float shuffle_xor(float value, u32 mask, Where = Where::here()) {
    return shuffle(value, (thread_id() % WAVE) ^ mask);
}

ROCATTN_INLINE u32 exchange_halves(u32 value, Where = Where::here()) {
#if ROCATTN_WAVE == 32  // one VALU instruction, its selectors in SGPRs: shorter than with two literals
    int low = 0x76543210, high = static_cast<int>(0xfedcba98u);
    asm("" : "+s"(low), "+s"(high));
    const int own = static_cast<int>(value);
    // All lanes are active, so the two flags only tell the compiler that it need not keep the old value.
    return static_cast<u32>(__builtin_amdgcn_permlanex16(own, own, low, high, true, true));
#else
    return shuffle_xor(value, 16);
#endif
}
ROCATTN_INLINE float exchange_halves(float value, Where = Where::here()) {
    return __builtin_bit_cast(float, exchange_halves(__builtin_bit_cast(u32, value)));
}

// The value of one lane (a constant) of this lane's 16: not an instruction, but an operand modifier (DPP row_share on
// RDNA, row_newbcast on CDNA), if the instruction that uses it supports one.
ROCATTN_INLINE float shared_by_16(float value, u32 lane, Where = Where::here()) {
    const int own = __builtin_bit_cast(int, value);
    int found = own;
    switch (lane) {  // the builtin only takes literals
#define ROCATTN_SHARED(n) \
    case n: found = __builtin_amdgcn_update_dpp(own, own, 0x150 + n, 0xf, 0xf, true); break;
        ROCATTN_SHARED(0) ROCATTN_SHARED(1) ROCATTN_SHARED(2) ROCATTN_SHARED(3)
        ROCATTN_SHARED(4) ROCATTN_SHARED(5) ROCATTN_SHARED(6) ROCATTN_SHARED(7)
        ROCATTN_SHARED(8) ROCATTN_SHARED(9) ROCATTN_SHARED(10) ROCATTN_SHARED(11)
        ROCATTN_SHARED(12) ROCATTN_SHARED(13) ROCATTN_SHARED(14) ROCATTN_SHARED(15)
#undef ROCATTN_SHARED
    }
    return __builtin_bit_cast(float, found);
}

ROCATTN_INLINE bool any_lane(bool condition, Where = Where::here()) {
#if ROCATTN_WAVE == 32
    return __builtin_amdgcn_ballot_w32(condition) != 0;
#else
    return __builtin_amdgcn_ballot_w64(condition) != 0;
#endif
}

// ---- arithmetic ----------------------------------------------------------------------------------------------------

// One instruction each (v_exp_f32, v_log_f32, v_rcp_f32), about 1 ulp; results and arguments below 2^-126 count as 0.
ROCATTN_INLINE float exp2_fast(float x) { return __builtin_amdgcn_exp2f(x); }
ROCATTN_INLINE float log2_fast(float x) { return __builtin_amdgcn_logf(x); }
ROCATTN_INLINE float reciprocal_fast(float x) { return __builtin_amdgcn_rcpf(x); }

// ---- memory --------------------------------------------------------------------------------------------------------

// N contiguous elements of global memory, with as few and wide instructions as possible. Elements need only be aligned
// to their own size: amdhsa enables unaligned access.
template <typename T, u32 N>
ROCATTN_INLINE Vector<T, N> load(const T* address, Where = Where::here()) {
    Vector<T, N> value;
    __builtin_memcpy(&value, __builtin_assume_aligned(address, alignof(T)), sizeof(T) * N);
    return value;
}

template <typename T, u32 N>
ROCATTN_INLINE void store(T* address, Vector<T, N> value, Where = Where::here()) {
    __builtin_memcpy(__builtin_assume_aligned(address, alignof(T)), &value, sizeof(T) * N);
}

}  // namespace rocattn

#include <rocattn/plain_memory.h>

namespace rocattn {

#if defined(__gfx950__)
// ds_read_b64_tr_b16. Lane l gives the address of 4 elements of 16 bits, aligned to 8 bytes; those of 16 lanes are 4 rows
// of 16 columns: row l % 16 / 4, columns 4 (l % 4) ... Lane l gets column l % 16 of the four rows.
template <typename T>
ROCATTN_INLINE Vector<T, 4> lds_load_transposed(const T* address, Where = Where::here()) {
    typedef short Four __attribute__((ext_vector_type(4)));
    using Local = __attribute__((address_space(3))) Four;
    return __builtin_bit_cast(Vector<T, 4>, __builtin_amdgcn_ds_read_tr16_b64_v4i16((Local*)address));
}

#endif

#if defined(__gfx942__) || defined(__gfx950__)
// global_load_lds_dword, and dwordx4 on gfx950: lane l has BYTES, 4 or 16, `offset` bytes from `base`, written to
// `lds` + BYTES * l; base and lds are the same in all lanes.
//
// In assembly, because after the builtin the compiler makes every read of that LDS array wait for the load, although
// two tiles of an array alternate and loads_arrived() is the wait. Hazards are ours: a wait state after writing M0.
template <u32 BYTES, typename T>
ROCATTN_INLINE void load_to_lds(const T* base, u32 offset, T* lds, Where = Where::here()) {
    auto* global = (__attribute__((address_space(1))) const void*)base;
    // The low half of a generic address of LDS.
    const u32 at = __builtin_amdgcn_readfirstlane(static_cast<u32>(reinterpret_cast<u64>(lds)));
#define ROCATTN_LOAD_TO_LDS(name) \
    asm volatile("s_mov_b32 m0, %2\n\ts_nop 0\n\t" name " %0, %1" ::"v"(offset), "s"(global), "s"(at) : "memory")
    if constexpr (BYTES == 4)
        ROCATTN_LOAD_TO_LDS("global_load_lds_dword");
    else
        ROCATTN_LOAD_TO_LDS("global_load_lds_dwordx4");
#undef ROCATTN_LOAD_TO_LDS
}
// Waits for all such loads of this wave (s_waitcnt vmcnt(0)).
ROCATTN_INLINE void loads_arrived(Where = Where::here()) { __builtin_amdgcn_s_waitcnt(0x0f70); }
#endif

// ---- matrix instructions -------------------------------------------------------------------------------------------
// D = A * B + C on one wave, operands as the instruction takes them (layouts: matrix.h).

using f32x4 = Vector<float, 4>;
using f32x8 = Vector<float, 8>;

#if defined(__GFX11__)
ROCATTN_INLINE f32x8 wmma_gfx11(Vector<f16, 16> a, Vector<f16, 16> b, f32x8 c, Where = Where::here()) {
    return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c);
}
ROCATTN_INLINE f32x8 wmma_gfx11(Vector<bf16, 16> a, Vector<bf16, 16> b, f32x8 c, Where = Where::here()) {
    return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c);
}
#elif defined(__GFX12__)
ROCATTN_INLINE f32x8 wmma_gfx12(Vector<f16, 8> a, Vector<f16, 8> b, f32x8 c, Where = Where::here()) {
    return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c);
}
ROCATTN_INLINE f32x8 wmma_gfx12(Vector<bf16, 8> a, Vector<bf16, 8> b, f32x8 c, Where = Where::here()) {
    return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, c);
}
ROCATTN_INLINE f32x8 multiply_fp8(Vector<u32, 2> a, Vector<u32, 2> b, f32x8 c, Where = Where::here()) {
    const auto first = __builtin_bit_cast(Vector<i32, 2>, a), second = __builtin_bit_cast(Vector<i32, 2>, b);
    return __builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12(first, second, c);
}
#elif defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
ROCATTN_INLINE f32x4 mfma_16x16x16(Vector<f16, 4> a, Vector<f16, 4> b, f32x4 c, Where = Where::here()) {
    return __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0);
}
ROCATTN_INLINE f32x4 mfma_16x16x16(Vector<bf16, 4> a, Vector<bf16, 4> b, f32x4 c, Where = Where::here()) {
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);
}
#if defined(__gfx942__) || defined(__gfx950__)
ROCATTN_INLINE f32x4 multiply_fp8(Vector<u32, 2> a, Vector<u32, 2> b, f32x4 c, Where = Where::here()) {
    const long first = __builtin_bit_cast(long, a), second = __builtin_bit_cast(long, b);
    return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(first, second, c, 0, 0, 0);
}
#endif
#if defined(__gfx950__)
ROCATTN_INLINE f32x4 mfma_16x16x32(Vector<f16, 8> a, Vector<f16, 8> b, f32x4 c, Where = Where::here()) {
    return __builtin_amdgcn_mfma_f32_16x16x32_f16(a, b, c, 0, 0, 0);
}
ROCATTN_INLINE f32x4 mfma_16x16x32(Vector<bf16, 8> a, Vector<bf16, 8> b, f32x4 c, Where = Where::here()) {
    typedef __bf16 bf16x8 __attribute__((ext_vector_type(8)));
    const auto first = __builtin_bit_cast(bf16x8, a), second = __builtin_bit_cast(bf16x8, b);
    return __builtin_amdgcn_mfma_f32_16x16x32_bf16(first, second, c, 0, 0, 0);
}
#endif
#endif

}  // namespace rocattn
