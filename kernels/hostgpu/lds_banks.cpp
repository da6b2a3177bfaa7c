// The cycles of LDS accesses, by the addresses that lanes executed and the lanes that a GPU is said to serve together.
//
// Lanes run one after another, so a wave's instruction is put together again: from collective to collective the
// accesses of a lane are matched with those of the lanes before it, in order, by place in the source, direction, width.
#include "runtime.h"

namespace rocattn::hostgpu {
namespace {

constexpr unsigned kMaxRules = 16, kMaxGroups = 16, kMaxBanks = 64, kMaxSums = 1024;
constexpr unsigned kWord = 4, kWidest = 16;
constexpr const char* kNames[] = {"read", "write", "transposing read"};

struct Rule {  // how accesses of a direction and width are served
  LdsAccess access;
  unsigned bytes, banks, groups;
  uint64_t lanes[kMaxGroups];  // of each group
};
Rule rules[kMaxRules];
unsigned rule_count;

struct Instruction {  // of a wave
  LdsAccess access;
  unsigned bytes;
  Where where;
  uint64_t lanes;  // that have come
  uint32_t offset[64];
};
struct Noted {  // of a wave since its last collective
  Instruction* instructions;
  unsigned count, room;
  unsigned next[64];  // by lane: the first that it may be part of
};
Noted noted[kMaxWaves];

struct Sum {  // of all waves at one place
  char kernel[128];
  LdsAccess access;
  unsigned bytes;
  Where where;
  char file[160];
  uint64_t instructions, cycles, least;
};
Sum sums[kMaxSums];
unsigned sum_count;
char kernel_name[128];
char text[kMaxSums * 400];

uint64_t number_at(const char*& at, int base) {
  char* end = nullptr;
  const uint64_t value = strtoull(at, &end, base);
  at = end;
  return value;
}

// A line: direction, bytes, banks, and each group as a mask of lanes.
bool read_rule(const char*& at, Rule& rule) {
  for (unsigned kind = 0; kind < sizeof kNames / sizeof *kNames; kind++) {
    const size_t length = strlen(kNames[kind]);
    if (memcmp(at, kNames[kind], length) != 0 || at[length] != ' ') continue;
    rule.access = (LdsAccess)kind;
    at += length;
    rule.bytes = (unsigned)number_at(at, 10);
    rule.banks = (unsigned)number_at(at, 10);
    rule.groups = 0;
    while (*at == ' ' && rule.groups < kMaxGroups) rule.lanes[rule.groups++] = number_at(at, 16);
    return *at++ == '\n' && rule.bytes && rule.bytes <= kWidest && rule.banks && rule.banks <= kMaxBanks && rule.groups;
  }
  return false;
}

bool read_rules() {
  const char* at = getenv("ROCATTN_HOSTGPU_LDS_GROUPS");
  if (!at || !*at) return false;
  for (rule_count = 0; *at; rule_count++) {
    if (rule_count < kMaxRules && read_rule(at, rules[rule_count])) continue;
    complain("ROCATTN_HOSTGPU_LDS_GROUPS has no lines of direction, bytes, banks, groups of lanes: no cycles counted");
    return false;
  }
  return true;
}

const Rule* rule_of(LdsAccess access, unsigned bytes) {
  const Rule* best = nullptr;
  for (const Rule* rule = rules; rule < rules + rule_count; rule++)
    if (rule->access == access && rule->bytes >= bytes && (!best || rule->bytes < best->bytes)) best = rule;
  return best;
}

bool same(const Instruction& i, LdsAccess access, unsigned bytes, Where where) {
  return i.access == access && i.bytes == bytes && i.where.line == where.line && i.where.file == where.file;
}

// The most words that the group's lanes want of one bank; a word that several want counts once.
unsigned cycles_of(const Instruction& i, uint64_t group, unsigned banks) {
  uint32_t words[kMaxBanks][64];
  uint8_t count[kMaxBanks] = {};
  unsigned most = 0;
  for (uint64_t lanes = group & i.lanes; lanes; lanes &= lanes - 1) {
    const uint32_t offset = i.offset[__builtin_ctzll(lanes)];
    for (uint32_t word = offset / kWord; word <= (offset + i.bytes - 1) / kWord; word++) {
      const unsigned bank = word % banks;
      unsigned at = 0;
      while (at < count[bank] && words[bank][at] != word) at++;
      if (at < count[bank]) continue;
      words[bank][count[bank]++] = word;
      if (count[bank] > most) most = count[bank];
    }
  }
  return most;
}

Sum* sum_of(const Instruction& i) {
  for (Sum* sum = sums; sum < sums + sum_count; sum++)
    if (sum->access == i.access && sum->bytes == i.bytes && sum->where.line == i.where.line &&
        strcmp(sum->file, i.where.file) == 0 && strcmp(sum->kernel, kernel_name) == 0)
      return sum;
  if (sum_count == kMaxSums) return nullptr;
  Sum& sum = sums[sum_count++];
  sum = {{}, i.access, i.bytes, i.where, {}, 0, 0, 0};
  snprintf(sum.kernel, sizeof sum.kernel, "%s", kernel_name);
  snprintf(sum.file, sizeof sum.file, "%s", i.where.file);
  return &sum;
}

}  // namespace

bool counts_lds_cycles() {
  static int choice = -1;
  if (choice < 0) choice = read_rules();
  return choice != 0;
}

void begin_lds_cycles(const char* kernel) {
  snprintf(kernel_name, sizeof kernel_name, "%s", kernel);
  for (Noted& wave : noted) wave.count = 0, memset(wave.next, 0, sizeof wave.next);
}

void note_lds_access(LdsAccess access, uint64_t offset, unsigned bytes, Where where) {
  for (; bytes > kWidest; bytes -= kWidest, offset += kWidest) note_lds_access(access, offset, kWidest, where);
  Noted& wave = noted[runtime.thread >> running.wave_shift];
  const uint64_t lane = 1ull << running.lane;
  unsigned& next = wave.next[running.lane];
  unsigned at = next;
  while (at < wave.count && (wave.instructions[at].lanes & lane || !same(wave.instructions[at], access, bytes, where)))
    at++;
  if (at == wave.count) {
    if (wave.count == wave.room) {
      auto* larger = (Instruction*)malloc((2 * wave.room + 64) * sizeof(Instruction));
      if (!larger) return;
      if (wave.count) memcpy(larger, wave.instructions, wave.count * sizeof(Instruction));
      free(wave.instructions);
      wave.instructions = larger;
      wave.room = 2 * wave.room + 64;
    }
    Instruction& added = wave.instructions[wave.count++];
    added.access = access;
    added.bytes = bytes;
    added.where = where;
    added.lanes = 0;
  }
  wave.instructions[at].lanes |= lane;
  wave.instructions[at].offset[running.lane] = (uint32_t)offset;
  next = at + 1;
}

void count_lds_cycles(unsigned index) {
  Noted& wave = noted[index];
  for (Instruction* i = wave.instructions; i < wave.instructions + wave.count; i++) {
    const Rule* rule = rule_of(i->access, i->bytes);
    Sum* sum = rule ? sum_of(*i) : nullptr;
    if (!sum) continue;
    sum->instructions++;
    for (unsigned g = 0; g < rule->groups; g++) {
      const unsigned cycles = cycles_of(*i, rule->lanes[g], rule->banks);
      sum->cycles += cycles;
      sum->least += cycles != 0;
    }
  }
  wave.count = 0;
  memset(wave.next, 0, sizeof wave.next);
}

void count_lds_cycles_of_block() {
  for (unsigned wave = 0; wave < kMaxWaves; wave++)
    if (noted[wave].count) count_lds_cycles(wave);
}

}  // namespace rocattn::hostgpu

using namespace rocattn::hostgpu;

// The LDS accesses since the last call, a line for each kernel, direction, width and place: kernel, direction, bytes of
// a lane, instructions, their cycles, their cycles without conflicts, file and line, with tabs between. Valid until the
// next call; empty unless ROCATTN_HOSTGPU_LDS_GROUPS is set.
extern "C" HOSTGPU_EXPORT const char* rocattn_hostgpu_lds_cycles() {
  Lock lock;
  size_t used = 0;
  text[0] = 0;
  for (const Sum* sum = sums; sum < sums + sum_count; sum++) {
    const int bytes = snprintf(text + used, sizeof text - used, "%s\t%s\t%u\t%llu\t%llu\t%llu\t%s:%u\n", sum->kernel,
                               kNames[(unsigned)sum->access], sum->bytes, (unsigned long long)sum->instructions,
                               (unsigned long long)sum->cycles, (unsigned long long)sum->least, sum->file,
                               sum->where.line);
    if (bytes > 0 && used + (size_t)bytes < sizeof text) used += (size_t)bytes;
  }
  sum_count = 0;
  return text;
}
