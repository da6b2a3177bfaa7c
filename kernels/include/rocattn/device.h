// What our kernels need of a GPU, on clang builtins alone: no ROCm header, so any clang >= 17 with the AMDGPU target
// builds them. Under hipRTC, whose own headers are built in, the guards keep its definitions.
//
// Waves are 32 lanes on gfx10 and later, 64 on gfx9; a block is one-dimensional (x only) everywhere in this project.
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

// Exactly this many threads a block: lets the compiler use all registers that leaves, and refuses another launch.
#ifndef ROCATTN_BLOCK
#define ROCATTN_BLOCK(threads) __attribute__((amdgpu_flat_work_group_size(threads, threads)))
#endif

namespace rocattn {

using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
using f16 = _Float16;
using f32 = float;

// bfloat16 as its bits: arithmetic happens in float, and clang 17 has no conversions of its own for __bf16.
struct bf16 {
    u16 bits;
};

constexpr float INF = __builtin_inff();
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;

// ---- ids -----------------------------------------------------------------------------------------------------------

__device__ inline u32 thread_id() { return __builtin_amdgcn_workitem_id_x(); }
__device__ inline u32 block_id() { return __builtin_amdgcn_workgroup_id_x(); }
// Folds to a constant.
__device__ inline u32 wave_size() {
#if __clang_major__ < 19
    return __AMDGCN_WAVEFRONT_SIZE;
#else
    return __builtin_amdgcn_wavefrontsize();
#endif
}
__device__ inline u32 lane_id() { return thread_id() & (wave_size() - 1); }
__device__ inline u32 wave_id() { return thread_id() / wave_size(); }

// Blocks in the grid. Read from the dispatch packet: the other way adds hidden kernel arguments.
template <u32 THREADS>
__device__ inline u32 block_count() {
    return __builtin_amdgcn_grid_size_x() / THREADS;
}

// ---- synchronisation -----------------------------------------------------------------------------------------------

// Waits for all threads of the block and makes their LDS writes visible.
__device__ inline void block_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// ---- lanes ---------------------------------------------------------------------------------------------------------

// The value that another lane of the wave holds; all lanes take part. LDS hardware without LDS memory. On gfx10 and
// later this instruction stays within 32 lanes, hence kernels there are built for wave32, the compiler's default.
__device__ inline float shuffle_xor(float value, u32 mask) {
    const int from = static_cast<int>((lane_id() ^ mask) * 4);
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(from, __builtin_bit_cast(int, value)));
}

__device__ inline float wave_max(float value) {
    for (u32 mask = wave_size() / 2; mask > 0; mask /= 2) value = __builtin_fmaxf(value, shuffle_xor(value, mask));
    return value;
}

__device__ inline float wave_sum(float value) {
    for (u32 mask = wave_size() / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
    return value;
}

// ---- arithmetic ----------------------------------------------------------------------------------------------------

// One instruction each (v_exp_f32, v_log_f32), about 1 ulp; results and arguments below 2^-126 count as 0.
__device__ inline float exp2_fast(float x) { return __builtin_amdgcn_exp2f(x); }
__device__ inline float log2_fast(float x) { return __builtin_amdgcn_logf(x); }

__device__ inline u32 smaller(u32 a, u32 b) { return a < b ? a : b; }

__device__ inline float to_float(f32 x) { return x; }
__device__ inline float to_float(f16 x) { return static_cast<float>(x); }
__device__ inline float to_float(bf16 x) { return __builtin_bit_cast(float, static_cast<u32>(x.bits) << 16); }

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

// ---- memory --------------------------------------------------------------------------------------------------------

constexpr u32 VECTOR_BYTES = 16;  // the widest load or store of a lane

// COUNT neighbouring elements moved by as few, as wide instructions as there are; its address must be aligned to its
// size, or to VECTOR_BYTES if it is larger.
template <typename T, u32 COUNT>
struct alignas(sizeof(T) * COUNT < VECTOR_BYTES ? sizeof(T) * COUNT : VECTOR_BYTES) Pack {
    T at[COUNT];
};

template <typename T, u32 COUNT>
__device__ inline bool is_aligned(const T* address) {
    return reinterpret_cast<u64>(address) % alignof(Pack<T, COUNT>) == 0;
}

// base[index] with a 32-bit byte offset: a uniform base then stays in scalar registers, one VGPR holds the offset.
template <typename T>
__device__ inline T* at_offset(T* base, u32 index) {
    return (T*)((const char*)base + index * static_cast<u32>(sizeof(T)));
}

}  // namespace rocattn
