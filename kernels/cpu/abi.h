// C ABI of the CPU kernels: structs in, one status out. rocattn/backends/cpu_flash.py mirrors them.
//
// All sizes and strides are in elements; the last axis of q, k, v, o and the gradients has unit stride. Strides may
// be 0 or negative. Heads are grouped: query head h uses KV head h / (H / Hkv).
#pragma once
#include <stdint.h>

namespace rocattn {

enum Dtype : int32_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kBool = 3, kNone = -1 };
enum Status : int32_t { kOk = 0, kBadArguments = 1, kOutOfMemory = 2 };

struct Args {
  int64_t size;  // sizeof(Args): detects a stale library before it reads anything
  const void *q, *k, *v;
  void* o;     // forward: written; backward: read
  float* lse;  // [B, H, Sq], a head's rows contiguous; forward: written unless null; backward: read
  const void* mask;
  const float* slopes;  // contiguous [B, H], or null
  const float* sinks;   // contiguous [H], or null
  const void* dout;
  void *dq, *dk, *dv;
  const float* dlse;    // backward: the gradient of the LSE, with the same layout; or null
  const uint32_t* dropout_key;  // two words (dropout.h); null: no dropout. Never set in varlen calls
  int64_t B, H, Hkv, Sq, Sk, D, Dv;
  int64_t qs[3], ks[3], vs[3], os[3];  // b, h, s
  int64_t dos[3], dqs[3], dks[3], dvs[3];
  int64_t ms[4];         // mask: b, h, q, k; 0 for broadcast axes
  int64_t ls;            // lse: from one head to the next
  // Paged K and V: key j is row j % page_size of page table[j / page_size]; ks[0] and vs[0] are the page strides.
  // page_size 0: no pages.
  const int32_t* table;
  int64_t page_size;
  int64_t left, right;   // keys on each side of the diagonal i + Sk - Sq that row i sees; -1: all; causal: right = 0
  int32_t dtype;         // of q, k, v, o and gradients
  int32_t mask_dtype;    // kNone without a mask; kBool is 1 = may attend
  int32_t threads;       // at most this many, including the caller
  float scale, softcap;  // softcap 0 is off
  uint32_t drop_below;   // dropout: weights whose word is below it are 0
  float keep_factor;     // and the others are multiplied by this
};

// Sequences of different lengths, passed along with Args for all of them: B is their number, Sq the rows of q and o, Sk
// those of k and v (unused with pages). All arrays are contiguous.
struct Sequences {
  int64_t size;             // sizeof(Sequences)
  const int32_t* cu_seqlens_q;  // [B + 1]: sequence b has rows cu_seqlens_q[b] ... cu_seqlens_q[b + 1] - 1 of q and o
  const int32_t* cu_seqlens_k;  // the same of k and v; null with pages
  const int32_t* seqlens_k;  // [B]: keys of each sequence; null: as many as it has rows
  const int32_t* table;      // [B, table_width]: the pages of each sequence; null: rows lie side by side
  int64_t table_width;
};

}  // namespace rocattn

#define RA_EXPORT __attribute__((visibility("default")))

extern "C" {
RA_EXPORT int32_t rocattn_cpu_forward(const rocattn::Args* args);
RA_EXPORT int32_t rocattn_cpu_forward_varlen(const rocattn::Args* args, const rocattn::Sequences* sequences);
RA_EXPORT int32_t rocattn_cpu_backward(const rocattn::Args* args);
// For packed sequences; rows of dk and dv outside of every sequence with queries are left unchanged.
RA_EXPORT int32_t rocattn_cpu_backward_varlen(const rocattn::Args* args, const rocattn::Sequences* sequences);
// Wakes up to threads - 1 sleeping workers for a call that follows immediately.
RA_EXPORT void rocattn_cpu_rouse(int32_t threads);
// Makes later calls run on an OpenMP runtime's threads, as many as it has: its GOMP_parallel, omp_get_max_threads.
RA_EXPORT void rocattn_cpu_borrow(void (*parallel)(void (*)(void*), void*, unsigned, unsigned), int (*most)(void));
// The call's peak allocation in bytes, without inputs and outputs.
RA_EXPORT int64_t rocattn_cpu_workspace(const rocattn::Args* args, int32_t backward);
RA_EXPORT int64_t rocattn_cpu_workspace_varlen(const rocattn::Args* args, const rocattn::Sequences* sequences,
                                               int32_t backward);
// Peak bytes that this process's calls had allocated at one time since the last call of this with reset.
RA_EXPORT int64_t rocattn_cpu_most_allocated(int32_t reset);
// 1000 * float lanes, + 1 with products of bf16 pairs, + 2 with those of the matrix unit (AMX): what this library was
// compiled for and the kernel allows.
RA_EXPORT int32_t rocattn_cpu_isa(void);
// Ceilings of this machine: a register-only loop on all threads (kind 0: fp32 FMA, 1: bf16 dot product), which returns
// its FLOPs, and a sum over `count` floats.
RA_EXPORT double rocattn_cpu_probe_flops(int32_t kind, int64_t iterations, int32_t threads);
RA_EXPORT float rocattn_cpu_probe_read(const float* data, int64_t count, int32_t threads);
RA_EXPORT int32_t rocattn_cpu_probe_flush(const void* data, int64_t bytes);
}
