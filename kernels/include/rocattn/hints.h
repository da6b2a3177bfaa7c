// Hints that make the compiler keep the register allocation and the branches that the attention kernels are written
// for: empty assembly statements, no-ops on the stand-in GPU. Each one saves instructions or spills counted in the code
// objects; tests/kernels/test_flash_code_objects.py has the counts.
#pragma once

#include <rocattn/device.h>

namespace rocattn {

// Moves a value that is uniform but computed by vector instructions (a division) to an SGPR from here on: the compiler
// would remove a plain uniform(), as the value already is uniform, and continue in VGPRs.
ROCATTN_INLINE u32 scalar(u32 value) {
#ifdef __AMDGCN__
    asm("" : "+v"(value));
#endif
    return uniform(value);
}

// The same for an address.
template <typename T>
ROCATTN_INLINE const T* scalar(const T* pointer) {
    const u64 bits = reinterpret_cast<u64>(pointer);
    const u64 low = scalar(static_cast<u32>(bits)), high = scalar(static_cast<u32>(bits >> 32));
    return reinterpret_cast<const T*>(high << 32 | low);
}

// Keeps the compiler from computing both sides of a branch and selecting (SIDE 0 in one side), and from merging the
// ends of two sides (different numbers in both).
template <u32 SIDE = 0>
ROCATTN_INLINE void keep_branch() {
    asm volatile("" ::"i"(SIDE));
}

// Keeps loads from moving across it in either direction, where too many at once would take registers.
ROCATTN_INLINE void keep_order() { asm volatile("" ::: "memory"); }

// Has a value computed here rather than where it is used, which may be much later: its operands would take registers
// until then.
template <typename V>
ROCATTN_INLINE void settle([[maybe_unused]] V& value) {
#ifdef __AMDGCN__
    asm volatile("" : "+v"(value));
#endif
}

// The same for several values: all that come from memory are waited for here, by one wait.
template <typename V>
ROCATTN_INLINE void settle_together([[maybe_unused]] V& first, [[maybe_unused]] V& second, [[maybe_unused]] V& third,
                                    [[maybe_unused]] V& fourth) {
#ifdef __AMDGCN__
    asm volatile("" : "+v"(first), "+v"(second), "+v"(third), "+v"(fourth));
#endif
}

// The same for a pointer to global memory, which keeps its address space.
template <typename T>
ROCATTN_INLINE void settle([[maybe_unused]] T*& pointer) {
#ifdef __AMDGCN__
    auto global = (__attribute__((address_space(1))) T*)pointer;
    asm volatile("" : "+v"(global));
    pointer = (T*)global;
#endif
}

// Declares a value dead, although the program might read it: it takes no register until it is set again.
template <typename V>
ROCATTN_INLINE void forget([[maybe_unused]] V& value) {
#ifdef __AMDGCN__
    if constexpr (__is_array(V)) {
#pragma unroll
        for (auto& each : value) forget(each);
    } else {
        asm volatile("" : "=v"(value));
    }
#endif
}

// The same for sums of matrix products, in accumulation registers (AGPRs), where CDNA has as many of them as others.
template <typename V>
ROCATTN_INLINE void settle_sum([[maybe_unused]] V& value) {
#if defined(__AMDGCN__) && defined(__GFX9__)
    asm volatile("" : "+a"(value));
#endif
}

// As `settle`, for a pointer that is the same in all lanes.
template <typename T>
ROCATTN_INLINE void settle_scalar([[maybe_unused]] T*& pointer) {
#ifdef __AMDGCN__
    auto global = (__attribute__((address_space(1))) T*)pointer;
    asm("" : "+s"(global));
    pointer = (T*)global;
#endif
}

ROCATTN_INLINE void settle_scalar([[maybe_unused]] u32& value) {
#ifdef __AMDGCN__
    asm("" : "+s"(value));
#endif
}

// `settle` only where waves are short of registers: with matrix fragments of T on RDNA.
template <typename T, typename V>
ROCATTN_INLINE void settle_if_short([[maybe_unused]] V& value) {
#if defined(__GFX11__) || defined(__GFX12__)
    if constexpr (sizeof(T) == 2) settle(value);
#endif
}

// 0, opaque to the compiler: what depends on it is computed here, not hoisted out of a loop.
ROCATTN_INLINE u32 unknown_zero() {
    u32 zero = 0;
#ifdef __AMDGCN__
    asm volatile("" : "+s"(zero));
#endif
    return zero;
}

// This lane's number, computed from the thread's here: what depends on it takes no register before.
template <typename T>
ROCATTN_INLINE u32 lane_again() {
    u32 thread = thread_id();
    settle_if_short<T>(thread);
    return thread % WAVE;
}

// The same on CDNA, without the thread's number, so that not even that takes a register before.
ROCATTN_INLINE u32 lane_late() {
#if defined(__AMDGCN__) && defined(__GFX9__)
    return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, unknown_zero()));
#else
    return lane_id();
#endif
}

// A constant that takes no register before it is used, on CDNA.
ROCATTN_INLINE float constant_late(float value) {
#if defined(__AMDGCN__) && defined(__GFX9__)
    return __builtin_bit_cast(float, __builtin_bit_cast(u32, value) | unknown_zero());
#else
    return value;
#endif
}

// Kinds of instructions, as scheduler masks; VECTOR includes transcendental ones.
enum class Kind : u32 { VECTOR = 0x402, MATRIX = 0x8, GLOBAL_LOAD = 0x20, LDS_READ = 0x100, LDS_WRITE = 0x200 };

// Has the scheduler put COUNT preceding instructions of a kind after those of the previous calls: a sequence of calls
// at the end of a basic block gives the block's order.
template <Kind KIND, u32 COUNT>
ROCATTN_INLINE void schedule() {
#ifdef __AMDGCN__
    __builtin_amdgcn_sched_group_barrier(static_cast<u32>(KIND), COUNT, 0);
#endif
}

// Gives this wave's instructions priority over those of the SIMD's other waves (PRIORITY 1), or not (0); no instruction
// moves across it.
template <u32 PRIORITY>
ROCATTN_INLINE void set_priority() {
#ifdef __AMDGCN__
    __builtin_amdgcn_sched_barrier(0);
    __builtin_amdgcn_s_setprio(PRIORITY);
    __builtin_amdgcn_sched_barrier(0);
#endif
}

// base + bytes, with a uniform base: one load with a scalar base and a 32-bit offset. Unless the offset is opaque, the
// compiler hoists its widening out of loops, and each load takes two vector additions.
template <typename T>
ROCATTN_INLINE const T* lane_address(const T* base, u32 bytes) {
#ifdef __AMDGCN__
    asm("" : "+v"(bytes));
#endif
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(base) + bytes);
}

}  // namespace rocattn
