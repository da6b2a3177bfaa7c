// The interface between the stand-in GPU (kernels/hostgpu) and kernels compiled for it. Plain C++17, no headers.
#pragma once

namespace rocattn::hostgpu {

constexpr unsigned ABI = 3;  // raise it with any change to this file

// A location in a kernel's source. As a default argument, `Where::here()` is the location of the call.
struct Where {
    const char* file;
    unsigned line;
    static constexpr Where here(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
        return {file, line};
    }
};

// Operations that all lanes of a wave execute together (BLOCK_BARRIER: all threads of the block).
enum class Collective : unsigned {
    NONE,
    BLOCK_BARRIER,
    WAVE_BARRIER,
    SHUFFLE,
    ANY_LANE,
    UNIFORM,
    WMMA_GFX11,
    WMMA_GFX12,
    MFMA_16X16X16,
    MFMA_16X16X32,
    WMMA_GFX12_FP8,
    MFMA_16X16X32_FP8,
    TRANSPOSING_READ,
};

enum class Element : unsigned { F16, BF16, E4M3FN, E4M3FNUZ };

// A matrix instruction's operands, as the lane's registers hold them.
struct MatrixOperands {
    const void* a;
    const void* b;
    const float* c;
    float* d;
    Element element;
};

// The stand-in's functions and the running thread's numbers.
struct Runtime {
    unsigned thread;  // within the block
    unsigned block[3];
    unsigned grid[3];
    unsigned block_threads;
    void (*read)(void* to, const void* from, unsigned bytes, unsigned align, Where);
    void (*write)(void* to, const void* from, unsigned bytes, unsigned align, Where);
    void (*lds_read)(void* to, const void* from, unsigned bytes, unsigned align, Where);
    void (*lds_write)(void* to, const void* from, unsigned bytes, unsigned align, Where);
    void (*lds_read_transposed)(void* to, const void* from, Where);  // 8 bytes: 4 elements
    // Loads `bytes` (4 or 16) to `to` + bytes * lane; they have arrived once the thread has called loads_arrived.
    void (*load_to_lds)(const void* from, void* to, unsigned bytes, unsigned align, Where);
    void (*loads_arrived)(Where);
    void* (*lds_declare)(unsigned long long bytes, const char* name, Where);
    void (*barrier)(Collective, Where);  // BLOCK_BARRIER or WAVE_BARRIER
    unsigned (*shuffle)(unsigned value, unsigned lane, Where);
    bool (*any_lane)(bool condition, Where);
    unsigned (*uniform)(unsigned value, Where);
    void (*matrix)(Collective, const MatrixOperands&, Where);
};

// One parameter of a kernel in its argument buffer.
struct Parameter {
    unsigned offset;
    unsigned size;
};

// A module's export for each kernel, as rocattn_kernel_<name>.
struct Kernel {
    void (*run)(const void* arguments);
    unsigned threads;
    unsigned argument_bytes;
    unsigned parameter_count;
    const Parameter* parameters;
};

// A module's own export, as rocattn_hostgpu_module.
struct Module {
    unsigned abi;
    const char* arch;
    Runtime** runtime;
};

}  // namespace rocattn::hostgpu
