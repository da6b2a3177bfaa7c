// Memory accesses shared by amdgpu.h and nvgpu.h: single elements, and LDS.
#pragma once

namespace rocattn {

template <typename T>
ROCATTN_INLINE T load(const T* address, Where = Where::here()) {
    return *address;
}

template <typename T>
ROCATTN_INLINE void store(T* address, T value, Where = Where::here()) {
    *address = value;
}

// N adjacent elements of LDS; the address must be aligned to the vector, or to VECTOR_BYTES if that is larger.
template <typename T, u32 N>
ROCATTN_INLINE Vector<T, N> lds_load(const T* address, Where = Where::here()) {
    constexpr u32 ALIGN = sizeof(T) * N < VECTOR_BYTES ? sizeof(T) * N : VECTOR_BYTES;
    Vector<T, N> value;
    __builtin_memcpy(&value, __builtin_assume_aligned(address, ALIGN), sizeof(T) * N);
    return value;
}

template <typename T, u32 N>
ROCATTN_INLINE void lds_store(T* address, Vector<T, N> value, Where = Where::here()) {
    constexpr u32 ALIGN = sizeof(T) * N < VECTOR_BYTES ? sizeof(T) * N : VECTOR_BYTES;
    __builtin_memcpy(__builtin_assume_aligned(address, ALIGN), &value, sizeof(T) * N);
}

template <typename T>
ROCATTN_INLINE T lds_load(const T* address, Where = Where::here()) {
    return *address;
}

template <typename T>
ROCATTN_INLINE void lds_store(T* address, T value, Where = Where::here()) {
    *address = value;
}

}  // namespace rocattn
