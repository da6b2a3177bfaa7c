// Scaling of scores, in place: step 2 of the standard path (qk_matmul, scale, mask, softmax, pv_matmul). Not measured
// on a GPU yet.
//
//   scores[n] = scale * scores[n], then softcap * tanh(scores[n] / softcap) if softcap is not 0
//
// Grid      any number of blocks along x; they take vectors of four scores in turn.
// Block     256 threads.
// LDS       none.
// Registers at most 32 VGPRs on each target, no scratch, no spills (checked by tests/kernels).
// Memory    16-byte accesses, adjacent lanes at adjacent vectors; the last count % 4 scores one by one. Bytes
//           moved: 8 per score.
// Numerics  float32; tanh within 2 ulp (bias.h).
//
// Kernel arguments (28 bytes, no hidden ones):
//    0  float* scores     [count]
//    8  i64 count         B * H * Sq * Sk
//   16  f32 scale         20  f32 softcap         24  u32 blocks (of the grid)
#include <rocattn/bias.h>

using namespace rocattn;

constexpr u32 BLOCK = 256;

namespace {

ROCATTN_INLINE float scaled(float score, float scale, float softcap) {
    score *= scale;
    return softcap == 0.0f ? score : softcap * tanh_accurate(score / softcap);
}

}  // namespace

ROCATTN_KERNEL(scale_scores, BLOCK, (float* scores, i64 count, float scale, float softcap, u32 blocks)) {
    const i64 vectors = count / 4;
    const i64 first = static_cast<i64>(block_x()) * BLOCK + thread_id();
    for (i64 v = first; v < vectors; v += static_cast<i64>(blocks) * BLOCK) {
        auto x = load<float, 4>(scores + v * 4);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) x[i] = scaled(x[i], scale, softcap);
        store<float, 4>(scores + v * 4, x);
    }
    if (first < count % 4) {
        float* last = scores + vectors * 4 + first;
        store(last, scaled(load(last), scale, softcap));
    }
}
