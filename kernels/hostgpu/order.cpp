// Which piece of work comes before which, and what touches memory without such an order. Each piece of work has a
// number; each stream, event and the host know, for every stream, the last number that comes before what they do next
// (a vector clock). Two bytes of memory at a time remember who wrote and who read them last.
#include "runtime.h"

namespace rocattn::hostgpu {
namespace {

constexpr unsigned kNumberBits = 26;
constexpr uint32_t kMaxNumber = (1 << kNumberBits) - 1;
constexpr unsigned kNames = 256;

struct Name {
  uint32_t number;
  char text[64];
};
Name names[kNames];  // of the last pieces of work
uint32_t last_number;
uint64_t slots_taken;
unsigned last_slot;

uint32_t current;  // of the work that runs: its slot and its number
const Past* current_past;

bool before(uint32_t work) { return (work & kMaxNumber) <= current_past->last[work >> kNumberBits]; }

const char* name_of(uint32_t work) {
  const Name& name = names[work % kNames];
  return name.number == (work & kMaxNumber) ? name.text : "earlier work";
}

// The work that has no order with an access to these two bytes, 0 if there is none; notes the access.
uint32_t conflict(Access& access, bool writes, bool* written) {
  uint32_t found = 0;
  *written = true;
  if (access.writer && !before(access.writer)) found = access.writer;
  if (writes) {
    if (!found && access.reader && !before(access.reader)) {
      found = access.reader;
      *written = false;
    }
    access = {current, 0};  // who comes after this comes after those that read before it
  } else {
    access.reader = current;
  }
  return found;
}

}  // namespace

bool ordering;

unsigned take_slot() {
  for (unsigned tries = 0; tries < kSlots; tries++) {
    last_slot = (last_slot + 1) % kSlots;  // late: the work of who had it before stays told apart for longer
    if (last_slot < kFirstSlot || slots_taken >> last_slot & 1) continue;
    slots_taken |= 1ull << last_slot;
    return last_slot;
  }
  return kSlots - 1;  // shared: races between those that share it stay unseen
}

void give_slot(unsigned slot) { slots_taken &= ~(1ull << slot); }

void join(Past& one, const Past& other) {
  for (unsigned i = 0; i < kSlots; i++)
    if (other.last[i] > one.last[i]) one.last[i] = other.last[i];
}

void begin_work(const char* name, unsigned slot, Past& past) {
  const uint32_t number = last_number < kMaxNumber ? ++last_number : kMaxNumber;  // from there on races stay unseen
  past.last[slot] = number;
  current = slot << kNumberBits | number;
  current_past = &past;
  Name& kept = names[current % kNames];
  kept.number = number;
  snprintf(kept.text, sizeof kept.text, "%s", name);
}

bool unordered_access(const void* address, uint64_t bytes, bool writes, char* text, size_t size) {
  const uint64_t offset = offset_of(address), end = offset + bytes;
  uint32_t found = 0;
  for (uint64_t at = offset / 2; at < (end + 1) / 2; at++) {
    bool written;
    const uint32_t other = conflict(arena.accesses[at], writes, &written);
    if (!other || found) continue;
    found = other;
    const uint8_t* byte = arena.base + (2 * at > offset ? 2 * at : offset);
    const Allocation* a = allocation_of(byte);
    snprintf(text, size, "%s byte %llu of allocation %llu, which %s %s on another stream, and nothing orders the two",
             writes ? "writes" : "reads", a ? (unsigned long long)(byte - a->start) : 0,
             a ? (unsigned long long)a->number : 0, name_of(other), written ? "writes" : "reads");
  }
  return found;
}

void check_order(const void* address, unsigned bytes, bool writes, Where where) {
  char text[256];
  if (unordered_access(address, bytes, writes, text, sizeof text)) report("race between streams", where, "%s", text);
}

}  // namespace rocattn::hostgpu
