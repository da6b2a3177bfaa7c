// Ceilings of this machine, for reports: a register-only FMA loop and a sum over memory.
#include "abi.h"
#include "pool.h"
#include "simd.h"

using namespace rocattn;

namespace {
constexpr int kSums = PV * 6;  // as many as the attention tile keeps

struct Read {
  const float* data;
  int64_t count, part;
  float* sums;
};
void read_part(void* context, int64_t i, int) {
  const Read& r = *(const Read*)context;
  vf sum[8] = {};
  const float* p = r.data + i * r.part;
  const int64_t n = min2(r.part, r.count - i * r.part) / (8 * VL) * (8 * VL);
  for (int64_t j = 0; j < n; j += 8 * VL)
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) sum[k] += load(p + j + k * VL);
  for (int k = 1; k < 8; k++) sum[0] += sum[k];
  r.sums[i % 64] = sum_lanes(sum[0]);
}

#if defined(__AVX512BF16__)
constexpr bool kPairs = true;
#else
constexpr bool kPairs = false;
#endif
struct Loop {
  int32_t kind;
  int64_t iterations;
  float sink;
};
void run_loop(void* context, int64_t, int) {
  Loop& loop = *(Loop*)context;
  vf sums[kSums];
  for (int i = 0; i < kSums; i++) sums[i] = set1((float)i);
  const vf x = set1(0.999f), y = set1(0.001f);
#if defined(__AVX512BF16__)
  if (loop.kind == 1) {
    const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    for (int64_t k = 0; k < loop.iterations; k++) {
#pragma GCC unroll 24
      for (int i = 0; i < kSums; i++) sums[i] = (vf)_mm512_dpbf16_ps((__m512)sums[i], ones, ones);
      asm volatile("" ::: "memory");  // every iteration counts
    }
  } else
#endif
    for (int64_t k = 0; k < loop.iterations; k++) {
#pragma GCC unroll 24
      for (int i = 0; i < kSums; i++) sums[i] = fma(sums[i], x, y);
      asm volatile("" ::: "memory");
    }
  for (int i = 1; i < kSums; i++) sums[0] += sums[i];
  float total = sum_lanes(sums[0]);
  __atomic_store(&loop.sink, &total, __ATOMIC_RELAXED);
}
}  // namespace

extern "C" double rocattn_cpu_probe_flops(int32_t kind, int64_t iterations, int32_t threads) {
  Loop loop = {kind, iterations, 0};
  run(8 * (int64_t)threads, threads, run_loop, &loop);
  return (kind == 1 && kPairs ? 4.0 : 2.0) * VL * kSums * (double)iterations * 8 * threads;
}

extern "C" float rocattn_cpu_probe_read(const float* data, int64_t count, int32_t threads) {
  float sums[64] = {};
  // Four parts per thread, at most 4 MiB each, so that all threads read a small array.
  const int64_t part = round_up(ceil_div(count, 4 * (int64_t)max2(threads, 1)), 8 * VL);
  Read r = {data, count, min2<int64_t>(1 << 20, max2<int64_t>(part, 8 * VL)), sums};
  run(ceil_div(count, r.part), threads, read_part, &r);
  float total = 0;
  for (float s : sums) total += s;
  return total;
}

// Evicts an array from every cache; returns 0 where code cannot do that: the caller then reads something larger.
extern "C" int32_t rocattn_cpu_probe_flush(const void* data, int64_t bytes) {
#if defined(__x86_64__)
  for (int64_t i = 0; i < bytes; i += 64) __builtin_ia32_clflush((const char*)data + i);
  __builtin_ia32_mfence();
  return 1;
#else
  (void)data, (void)bytes;
  return 0;
#endif
}
