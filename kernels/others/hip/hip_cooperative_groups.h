// Blocks and tiles of ROCm's cooperative groups.
#pragma once
#include <hip/hip_runtime.h>

namespace cooperative_groups {
struct thread_block {
    __device__ __forceinline__ unsigned thread_rank() const {
        return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    }
    __device__ __forceinline__ unsigned size() const { return blockDim.x * blockDim.y * blockDim.z; }
    __device__ __forceinline__ unsigned num_threads() const { return size(); }
    __device__ __forceinline__ dim3 thread_index() const { return threadIdx; }
    __device__ __forceinline__ dim3 group_index() const { return blockIdx; }
    __device__ __forceinline__ void sync() const { __syncthreads(); }
};
ROCATTN_DEVICE thread_block this_thread_block() { return {}; }

template <unsigned Size, typename Parent = thread_block>
struct thread_block_tile {
    static constexpr unsigned width = Size;
    __device__ __forceinline__ unsigned thread_rank() const { return this_thread_block().thread_rank() % Size; }
    __device__ __forceinline__ unsigned meta_group_rank() const { return this_thread_block().thread_rank() / Size; }
    __device__ __forceinline__ unsigned meta_group_size() const { return (this_thread_block().size() + Size - 1) / Size; }
    __device__ static constexpr unsigned size() { return Size; }
    __device__ static constexpr unsigned num_threads() { return Size; }
    __device__ __forceinline__ void sync() const { __syncwarp(); }
    template <typename T>
    __device__ __forceinline__ T shfl(T value, int lane) const { return __shfl(value, lane, Size); }
    template <typename T>
    __device__ __forceinline__ T shfl_up(T value, unsigned by) const { return __shfl_up(value, by, Size); }
    template <typename T>
    __device__ __forceinline__ T shfl_down(T value, unsigned by) const { return __shfl_down(value, by, Size); }
    template <typename T>
    __device__ __forceinline__ T shfl_xor(T value, int by) const { return __shfl_xor(value, by, Size); }
    __device__ __forceinline__ unsigned long long ballot(int on) const {
        const unsigned first = __lane_id() & ~(Size - 1);
        return __ballot(on) >> first & (Size < 64 ? (1ull << Size % 64) - 1 : ~0ull);
    }
    __device__ __forceinline__ int any(int on) const { return ballot(on) != 0; }
    __device__ __forceinline__ int all(int on) const { return ballot(!on) == 0; }
};
struct grid_group {
    __device__ __forceinline__ unsigned thread_rank() const {
        const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        return block * this_thread_block().size() + this_thread_block().thread_rank();
    }
    __device__ __forceinline__ unsigned size() const {
        return gridDim.x * gridDim.y * gridDim.z * this_thread_block().size();
    }
    ROCATTN_SIMPLER __device__ __forceinline__ void sync() const {
        __threadfence();
        __syncthreads();
    }
};
ROCATTN_DEVICE grid_group this_grid() { return {}; }

// Any of them, by how many threads it has.
struct thread_group {
    unsigned threads, rank;
    template <typename Group>
    __device__ __forceinline__ thread_group(const Group& of) : threads(of.size()), rank(of.thread_rank()) {}
    __device__ __forceinline__ unsigned thread_rank() const { return rank; }
    __device__ __forceinline__ unsigned size() const { return threads; }
    __device__ __forceinline__ void sync() const { threads > warpSize ? __syncthreads() : __syncwarp(); }
};

template <unsigned Size, typename Parent>
ROCATTN_DEVICE thread_block_tile<Size, Parent> tiled_partition(const Parent&) {
    return {};
}
template <typename Group>
ROCATTN_DEVICE void sync(const Group& group) {
    group.sync();
}
}  // namespace cooperative_groups
