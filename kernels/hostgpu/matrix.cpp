// Matrix instructions from the lanes' registers, by AMD's documented layouts (matrix instruction calculator; RDNA 3 and
// CDNA 3 ISA documents) and nothing of matrix.h. With lane l, its part g = l / 16 of the wave, and n = l % 16:
//
//   v_wmma_f32_16x16x16 gfx11   A: row n, B: column n, element e is k = e; lanes 16 ... 31 repeat lanes 0 ... 15
//                               C, D: register r is row 2 r + g, column n
//   v_wmma_f32_16x16x16 gfx12   A, B: VGPR v, half h is k = 8 (v / 2) + 4 g + 2 (v % 2) + h; C, D: row 8 g + r
//   v_mfma_f32_16x16x16         A, B: k = 4 g + e; C, D: row 4 g + r
//   v_mfma_f32_16x16x32 gfx950  A, B: k = 8 g + e; C, D: row 4 g + r
//   ..._fp8_fp8                 A, B: gfx12 VGPR v, byte i is k = 8 v + 4 g + i; gfx942, gfx950 k = 8 g + e; C, D as above
//
// Products of two such values are exact in float; they are added to C in the order of k, rounding each time. CDNA 2
// (gfx90a) takes subnormal 16-bit inputs for 0 and gives 0 for subnormal results (MIOpen's documentation: "MI200 MFMA
// behavior specifics").
#include "runtime.h"

namespace rocattn::hostgpu {
namespace {

float from_f16(uint16_t half) {
  const uint32_t size = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
  float x;
  memcpy(&x, &size, 4);
  x *= 0x1p112f;  // the exponents' biases differ; subnormals become normal
  uint32_t bits;
  memcpy(&bits, &x, 4);
  bits = (size >= 0x0f800000 ? size | 0x7f800000 : bits) | sign;
  memcpy(&x, &bits, 4);
  return x;
}

float from_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float x;
  memcpy(&x, &wide, 4);
  return x;
}

// 4 exponent bits of the given bias and 3 mantissa bits. OCP's (bias 7) has NaN where all but the sign is 1, CDNA 3's
// (bias 8) in place of -0.
float from_e4m3(uint8_t byte, int bias) {
  if (bias == 7 ? (byte & 0x7f) == 0x7f : byte == 0x80) return __builtin_nanf("");
  const uint32_t bits = (uint32_t)(byte & 0x7f) << 20;
  float size;
  memcpy(&size, &bits, 4);
  size *= bias == 7 ? 0x1p120f : 0x1p119f;  // the exponents' biases differ; subnormals become normal
  return byte & 0x80 ? -size : size;
}

// Element `e` of an operand.
float read_element(const void* operand, unsigned e, Element kind, bool zero_subnormals) {
  if (kind == Element::E4M3FN || kind == Element::E4M3FNUZ)
    return from_e4m3(((const uint8_t*)operand)[e], kind == Element::E4M3FN ? 7 : 8);
  const bool f16 = kind == Element::F16;
  uint16_t bits = ((const uint16_t*)operand)[e];
  if (zero_subnormals && (bits & (f16 ? 0x7c00 : 0x7f80)) == 0) bits &= 0x8000;
  return f16 ? from_f16(bits) : from_bf16(bits);
}

bool zeroes_subnormals() { return strcmp(device()->arch, "gfx90a") == 0; }

struct Tile {
  unsigned depth, elements, registers;
  alignas(64) float a[16][32], b[32][16], c[16][16];
};

template <class Depth>
void gather(Tile& t, const Wave& wave, unsigned lanes, Depth depth_of) {
  const bool zeroes = zeroes_subnormals();
  for (unsigned l = 0; l < lanes; l++) {
    const MatrixOperands& operands = *wave.operands[l];
    for (unsigned e = 0; e < t.elements; e++) {
      const unsigned k = depth_of(l / 16, e);
      t.a[l % 16][k] = read_element(operands.a, e, operands.element, zeroes);
      t.b[k][l % 16] = read_element(operands.b, e, operands.element, zeroes);
    }
  }
}

template <class Row>
void run(Tile& t, const Wave& wave, Row row_of) {
  for (unsigned l = 0; l < running.wave_size; l++)
    for (unsigned r = 0; r < t.registers; r++) t.c[row_of(l / 16, r)][l % 16] = wave.operands[l]->c[r];
  for (unsigned i = 0; i < 16; i++) {
    float sum[16];
    memcpy(sum, t.c[i], sizeof sum);
    for (unsigned k = 0; k < t.depth; k++)
      for (unsigned j = 0; j < 16; j++) sum[j] += t.a[i][k] * t.b[k][j];
    if (zeroes_subnormals())
      for (unsigned j = 0; j < 16; j++) sum[j] = sum[j] < 0x1p-126f && sum[j] > -0x1p-126f ? 0.0f : sum[j];
    memcpy(t.c[i], sum, sizeof sum);
  }
  for (unsigned l = 0; l < running.wave_size; l++)
    for (unsigned r = 0; r < t.registers; r++) wave.operands[l]->d[r] = t.c[row_of(l / 16, r)][l % 16];
}

void check_copies(const Wave& wave) {
  for (unsigned l = 0; l < 16; l++) {
    const MatrixOperands &low = *wave.operands[l], &high = *wave.operands[l + 16];
    const bool a_differs = memcmp(low.a, high.a, 32) != 0;
    if (!a_differs && memcmp(low.b, high.b, 32) == 0) continue;
    report("fragment halves differ", wave.where, "%s of lane %u is no copy of lane %u's, as gfx11 needs",
           a_differs ? "A" : "B", l + 16, l);
    return;
  }
}

}  // namespace

void multiply(Wave& wave) {
  Tile t;
  switch (wave.kind) {
    case Collective::WMMA_GFX11:
      t.depth = 16, t.elements = 16, t.registers = 8;
      if (checks_on()) check_copies(wave);
      gather(t, wave, 16, [](unsigned, unsigned e) { return e; });
      run(t, wave, [](unsigned g, unsigned r) { return 2 * r + g; });
      return;
    case Collective::WMMA_GFX12:
    case Collective::WMMA_GFX12_FP8:
      t.depth = 16, t.elements = 8, t.registers = 8;
      gather(t, wave, 32, [](unsigned g, unsigned e) { return 8 * (e / 4) + 4 * g + e % 4; });  // e = 2 v + h
      run(t, wave, [](unsigned g, unsigned r) { return 8 * g + r; });
      return;
    case Collective::MFMA_16X16X16:
      t.depth = 16, t.elements = 4, t.registers = 4;
      gather(t, wave, 64, [](unsigned g, unsigned e) { return 4 * g + e; });
      run(t, wave, [](unsigned g, unsigned r) { return 4 * g + r; });
      return;
    default:
      t.depth = 32, t.elements = 8, t.registers = 4;
      gather(t, wave, 64, [](unsigned g, unsigned e) { return 8 * g + e; });
      run(t, wave, [](unsigned g, unsigned r) { return 4 * g + r; });
  }
}

}  // namespace rocattn::hostgpu
