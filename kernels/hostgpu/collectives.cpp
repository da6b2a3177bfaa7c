// What the threads of a wave or block do together: each arrives and waits, the last one does it for all.
#include "runtime.h"

namespace rocattn::hostgpu {
namespace {

Where barrier_at;  // where the threads at the block barrier wait
unsigned at_barrier;

const char* name_of(Collective kind) {
  switch (kind) {
    case Collective::BLOCK_BARRIER: return "divergent barrier";
    case Collective::WAVE_BARRIER: return "divergent wave barrier";
    case Collective::SHUFFLE: return "divergent shuffle";
    case Collective::ANY_LANE: return "divergent any_lane";
    case Collective::UNIFORM: return "divergent uniform";
    case Collective::TRANSPOSING_READ: return "divergent transposing read";
    default: return "divergent matrix product";
  }
}

bool same_place(Where a, Where b) { return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0); }

unsigned lowest(uint64_t lanes) { return (unsigned)__builtin_ctzll(lanes); }
unsigned number(uint64_t lanes) { return (unsigned)__builtin_popcountll(lanes); }

// Reports as one of the threads that wait.
[[noreturn]] void report_waiting(unsigned thread, Collective kind, Where where, const char* text) {
  runtime.thread = thread;
  report(name_of(kind), where, "%s", text);
  stop_block();
}

// The running lane is at another place than the lanes that wait.
[[noreturn]] void report_mismatch(const Wave& wave, Collective kind, Where where) {
  char text[300];
  const unsigned first = runtime.thread - running.lane;
  snprintf(text, sizeof text, "%u lanes wait here, thread %u is at %s:%u (%s)", number(wave.waiting), runtime.thread,
           where.file, where.line, name_of(kind) + sizeof "divergent");
  report_waiting(first + lowest(wave.waiting), wave.kind, wave.where, text);
}

// Arrives at a collective of the wave. True in the lane that completes it, which then calls `complete`.
bool arrive(Wave& wave, Collective kind, Where where) {
  if (!wave.waiting) {
    wave.kind = kind;
    wave.where = where;
  } else if (wave.kind != kind || !same_place(wave.where, where)) {
    report_mismatch(wave, kind, where);
  }
  wave.waiting |= 1ull << running.lane;
  return wave.waiting == wave.present;
}

void complete(Wave& wave) {
  wave.runnable = wave.present;
  wave.waiting = 0;
  wave.epoch++;
  if (counts_lds_cycles()) count_lds_cycles(runtime.thread >> running.wave_shift);
  go_on_from(runtime.thread - running.lane);
}

void block_barrier(Where where) {
  if (at_barrier && !same_place(barrier_at, where)) {
    const Where first = barrier_at;
    char text[300];
    snprintf(text, sizeof text, "%u threads wait at %s:%u, this one came here", at_barrier, first.file, first.line);
    report_waiting(runtime.thread, Collective::BLOCK_BARRIER, where, text);
  }
  barrier_at = where;
  running.wave->at_barrier |= 1ull << running.lane;
  if (++at_barrier < runtime.block_threads) {
    suspend();
    return;
  }
  const unsigned count = (runtime.block_threads + running.wave_size - 1) / running.wave_size;
  for (unsigned w = 0; w < count; w++) {
    waves[w].runnable = waves[w].present;
    waves[w].at_barrier = waves[w].epoch = 0;
  }
  at_barrier = 0;
  if (counts_lds_cycles()) count_lds_cycles_of_block();
  begin_block_epoch();
  go_on_from(0);
}

}  // namespace

// Nobody can go on: somebody waits for threads that returned or wait elsewhere.
void report_divergence() {
  const unsigned size = running.wave_size, count = (runtime.block_threads + size - 1) / size;
  char text[300];
  for (unsigned w = 0; w < count; w++) {
    const Wave& wave = waves[w];
    if (!wave.waiting || wave.present & ~wave.waiting & wave.at_barrier) continue;
    snprintf(text, sizeof text, "%u lanes wait here, thread %u has returned", number(wave.waiting),
             w * size + lowest(wave.returned));
    report_waiting(w * size + lowest(wave.waiting), wave.kind, wave.where, text);
  }
  unsigned waiting = runtime.block_threads;
  const char* elsewhere = "";
  for (unsigned w = 0; w < count; w++) {
    const Wave& wave = waves[w];
    if (wave.at_barrier && waiting == runtime.block_threads) waiting = w * size + lowest(wave.at_barrier);
    if (*elsewhere) continue;
    if (wave.waiting) {
      snprintf(text, sizeof text, "%u of %u threads wait here, thread %u is at %s:%u (%s)", at_barrier,
               runtime.block_threads, w * size + lowest(wave.waiting), wave.where.file, wave.where.line,
               name_of(wave.kind) + sizeof "divergent");
      elsewhere = text;
    } else if (wave.returned) {
      snprintf(text, sizeof text, "%u of %u threads wait here, thread %u has returned", at_barrier,
               runtime.block_threads, w * size + lowest(wave.returned));
      elsewhere = text;
    }
  }
  report_waiting(waiting, Collective::BLOCK_BARRIER, barrier_at, elsewhere);
}

void begin_block_epoch() {
  at_barrier = 0;
  running.stamp += 1ull << kEpochShift;
}

void restamp() {
  const uint64_t epoch = epoch_of(running.stamp);
  running.stamp = epoch << kEpochShift | (running.wave->epoch & 0xfffff) << kWaveShift | runtime.thread;
}

void barrier(Collective kind, Where where) {
  if (kind == Collective::BLOCK_BARRIER) {
    block_barrier(where);
    return;
  }
  Wave& wave = *running.wave;
  if (arrive(wave, kind, where)) complete(wave);
  else suspend();
}

uint32_t shuffle(unsigned value, unsigned lane, Where where) {
  Wave& wave = *running.wave;
  const unsigned own = running.lane;
  wave.value[own] = value;
  wave.source[own] = lane & (running.wave_size - 1);  // as ds_bpermute does
  if (!arrive(wave, Collective::SHUFFLE, where)) {
    suspend();
    return wave.result[own];
  }
  for (unsigned l = 0; l < running.wave_size; l++) wave.result[l] = wave.value[wave.source[l]];
  if (number(wave.present) < running.wave_size) {
    for (uint64_t lanes = wave.present; lanes; lanes &= lanes - 1) {
      const unsigned l = lowest(lanes);
      if (wave.present >> wave.source[l] & 1) continue;
      report("shuffle from an absent lane", where, "lane %u reads lane %u", l, wave.source[l]);
      wave.result[l] = 0xffffffffu;
    }
  }
  complete(wave);
  return wave.result[own];
}

bool any_lane(bool condition, Where where) {
  Wave& wave = *running.wave;
  const unsigned own = running.lane;
  wave.value[own] = condition;
  if (!arrive(wave, Collective::ANY_LANE, where)) {
    suspend();
    return wave.result[own] != 0;
  }
  uint32_t any = 0;
  for (uint64_t lanes = wave.present; lanes; lanes &= lanes - 1) any |= wave.value[lowest(lanes)];
  for (unsigned l = 0; l < running.wave_size; l++) wave.result[l] = any;
  complete(wave);
  return any != 0;
}

uint32_t uniform(unsigned value, Where where) {
  Wave& wave = *running.wave;
  const unsigned own = running.lane;
  wave.value[own] = value;
  if (!arrive(wave, Collective::UNIFORM, where)) {
    suspend();
    return wave.result[own];
  }
  for (uint64_t lanes = wave.present; lanes; lanes &= lanes - 1) {
    const unsigned l = lowest(lanes);
    if (wave.value[l] == wave.value[0]) continue;
    report("uniform of different values", where, "lane 0 has %u, lane %u has %u", wave.value[0], l, wave.value[l]);
    break;
  }
  for (unsigned l = 0; l < running.wave_size; l++) wave.result[l] = wave.value[0];  // as readfirstlane does
  complete(wave);
  return wave.result[own];
}

// ds_read_b64_tr_b16 (CDNA 4 ISA, "MFMA transpose load from LDS"; as HipKittens, include/ops/warp/memory/tile/
// shared_to_register.cuh, addresses and uses it): 16 lanes read 4 rows of 16 elements, lane i the elements from
// 4 (i % 4) on of row i / 4, and get a column each.
void lds_read_transposed(void* to, const void* from, Where where) {
  constexpr unsigned kLanes = 16, kRows = 4, kBytes = 8;
  Wave& wave = *running.wave;
  const unsigned own = running.lane;
  if (counts_lds_cycles()) note_lds_access(LdsAccess::TRANSPOSING_READ, lds_offset(from), kBytes, where);
  (checks_on() ? lds_read : lds_read_unchecked)(wave.elements[own], from, kBytes, kBytes, where);
  if (arrive(wave, Collective::TRANSPOSING_READ, where)) {
    if (number(wave.present) < running.wave_size) {
      report(name_of(wave.kind), where, "the wave has %u lanes of %u", number(wave.present), running.wave_size);
      stop_block();
    }
    for (unsigned first = 0; first < running.wave_size; first += kLanes) {
      uint16_t rows[kRows][kLanes];
      memcpy(rows, wave.elements[first], sizeof rows);
      for (unsigned lane = 0; lane < kLanes; lane++)
        for (unsigned row = 0; row < kRows; row++) wave.elements[first + lane][row] = rows[row][lane];
    }
    complete(wave);
  } else {
    suspend();
  }
  memcpy(to, wave.elements[own], kBytes);
}

void matrix(Collective kind, const MatrixOperands& operands, Where where) {
  Wave& wave = *running.wave;
  wave.operands[running.lane] = &operands;
  if (!arrive(wave, kind, where)) {
    suspend();
    return;
  }
  if (number(wave.present) == running.wave_size) {
    multiply(wave);
  } else {
    report(name_of(kind), where, "the wave has %u lanes of %u", number(wave.present), running.wave_size);
    stop_block();
  }
  complete(wave);
}

}  // namespace rocattn::hostgpu
