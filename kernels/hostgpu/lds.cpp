// LDS: arrays with guards between them, and for each byte who wrote it last and who has read it since.
#include "runtime.h"

namespace rocattn::hostgpu {
namespace {

constexpr unsigned kMaxArrays = 64;
constexpr uint64_t kGuard = 64, kAlign = 16;

struct Array {
  const char* name;
  Where where;
  uint64_t start, bytes;
};

uint8_t* space;   // kLdsSpace bytes
Stamp* writers;   // of each byte
Stamp* readers;   // of each byte, since it was written
uint8_t* inside;  // 1 for bytes of an array
Array arrays[kMaxArrays];
unsigned count;
uint64_t end;  // of the arrays and their guards
uint64_t bytes_used;

constexpr unsigned kMaxLoads = 64, kMostLoadBytes = 16;
struct Load {  // from global memory, on its way
  uint8_t* to;
  unsigned count;
  uint8_t bytes[kMostLoadBytes];
  Where where;
};
struct Loads {
  Load load[kMaxLoads];
  unsigned count;
};
Loads loads[kMaxThreads];  // of each thread

uint64_t offset_in(const void* p) { return (uint64_t)((const uint8_t*)p - space); }

bool all_inside(uint64_t offset, unsigned bytes) {
  unsigned inner = 1;
  for (unsigned i = 0; i < bytes; i++) inner &= inside[offset + i];
  return inner;
}

void report_outside(const void* address, unsigned bytes, const char* name, Where where) {
  uint64_t at = offset_in(address);
  if (at >= kLdsSpace) {
    report(name, where, "%u bytes; %s", bytes,
           in_arena(address) ? "the address is in global memory" : "the address is not in LDS");
    return;
  }
  while (inside[at]) at++;
  const Array* below = nullptr;
  for (unsigned i = 0; i < count; i++)
    if (arrays[i].start <= at && (!below || arrays[i].start > below->start)) below = &arrays[i];
  if (below)
    report(name, where, "%u bytes; byte %llu of %s, which has %llu", bytes, (unsigned long long)(at - below->start),
           below->name, (unsigned long long)below->bytes);
  else
    report(name, where, "%u bytes; %llu bytes before the first array", bytes, (unsigned long long)(kGuard - at));
}

// Whether the access can be made.
bool check(const void* address, unsigned bytes, unsigned align, const char* name, Where where) {
  const uint64_t offset = offset_in(address);
  if (offset >= kLdsSpace || !all_inside(offset, bytes)) {
    report_outside(address, bytes, name, where);
    return false;
  }
  if (offset % align == 0) return true;
  report("misaligned LDS access", where, "%u bytes need a multiple of %u, the address is %llu past one", bytes, align,
         (unsigned long long)(offset % align));
  return false;
}

const Array& array_of(uint64_t offset) {  // of a byte that is in one
  unsigned i = 0;
  while (offset - arrays[i].start >= arrays[i].bytes) i++;
  return arrays[i];
}

void report_race(Stamp other, uint64_t at, const char* did, const char* doing, Where where) {
  const Array& array = array_of(at);
  const Where by = site_of(other);
  const bool flies = epoch_of(other) == kInFlight;
  report("LDS race", where, "%s byte %llu of %s, which thread %u%s %s at %s:%u%s", doing,
         (unsigned long long)(at - array.start), array.name, thread_of(other),
         other & (kSeveral | kSeveralWaves) ? " and others" : "", flies ? "loads" : did, by.file, by.line,
         flies ? " and has not waited for" : ", with no barrier between");
}

// Looks for accesses that have no order with a write.
void check_write(uint64_t offset, unsigned bytes, Stamp now, Where where) {
  for (unsigned i = 0; i < bytes; i++) {
    const Stamp writer = writers[offset + i], reader = readers[offset + i];
    if (epoch_of(writer) < epoch_of(now) && epoch_of(reader) < epoch_of(now)) continue;
    const bool by_writer = unordered(writer, now);
    if (!by_writer && !unordered(reader, now)) continue;
    report_race(by_writer ? writer : reader, offset + i, by_writer ? "wrote" : "read", "writes", where);
    return;
  }
}

void set_writer(uint64_t offset, unsigned bytes, Stamp writer) {
  for (unsigned i = 0; i < bytes; i++) writers[offset + i] = writer;
}

// Readers of a byte as one stamp: whoever a write may clash with.
Stamp joined(Stamp old, Stamp now) {
  if (epoch_of(old) != epoch_of(now)) return now;
  if (old & kSeveralWaves) return old;
  const unsigned was = thread_of(old), is = thread_of(now);
  if (was >> running.wave_shift != is >> running.wave_shift) return now | kSeveralWaves;
  if (wave_epoch_of(old) != wave_epoch_of(now)) return now;  // a later collective: the earlier readers are done
  return was == is ? old : now | kSeveral;
}

void note_readers(Stamp* reader, unsigned bytes, Stamp now) {
  const Stamp first = reader[0];
  uint64_t differ = 0;
  for (unsigned i = 0; i < bytes; i++) differ |= reader[i] ^ first;
  if (!differ) {
    const Stamp after = joined(first, now);
    if (after == first) return;
    for (unsigned i = 0; i < bytes; i++) reader[i] = after;
  } else {
    for (unsigned i = 0; i < bytes; i++) reader[i] = joined(reader[i], now);
  }
}

}  // namespace

bool ready_lds() {
  if (space) return true;
  constexpr uint64_t kBytes = kLdsSpace * (2 + 2 * sizeof(Stamp));
  auto* p = (uint8_t*)mmap(nullptr, kBytes, 3, 0x22, -1, 0);  // read and write; private, anonymous
  if (p == (uint8_t*)-1) return false;
  writers = (Stamp*)p;
  readers = writers + kLdsSpace;
  space = (uint8_t*)(readers + kLdsSpace);
  inside = space + kLdsSpace;
  return true;
}

uint64_t lds_offset(const void* p) { return offset_in(p); }

bool in_lds(const void* p) { return space && offset_in(p) < kLdsSpace; }

void begin_lds(uint64_t dynamic_bytes) {
  memset(writers, 0, end * sizeof(Stamp));
  memset(readers, 0, end * sizeof(Stamp));
  memset(inside, 0, end);
  count = 0;
  end = kGuard;
  bytes_used = dynamic_bytes;
}

uint64_t lds_bytes() { return bytes_used; }

void* lds_declare(unsigned long long bytes, const char* name, Where where) {
  for (unsigned i = 0; i < count; i++) {
    const Array& a = arrays[i];
    if (a.where.line == where.line && a.bytes == bytes && a.name == name && a.where.file == where.file)
      return space + a.start;
  }
  const uint64_t whole = (bytes + kAlign - 1) / kAlign * kAlign;
  bytes_used += whole;
  if (bytes_used > device()->lds_bytes)
    report("LDS too large", where, "%s with %llu bytes makes %llu; %s has %u for a block", name, bytes,
           (unsigned long long)bytes_used, device()->arch, device()->lds_bytes);
  if (count == kMaxArrays || end + whole + kGuard > kLdsSpace) {
    report("LDS too large", where, "%s does not fit the stand-in either", name);
    stop_block();
  }
  arrays[count++] = {name, where, end, bytes};
  memset(inside + end, 1, bytes);
  void* made = space + end;
  end += whole + kGuard;
  return made;
}

void lds_read(void* to, const void* from, unsigned bytes, unsigned align, Where where) {
  if (!check(from, bytes, align, "out-of-bounds LDS read", where)) {
    memset(to, kPoison, bytes);
    return;
  }
  const uint64_t offset = offset_in(from);
  const Stamp* writer = writers + offset;
  // Nearly always all bytes were written by this block before the last barrier: nothing more to look at.
  const uint64_t now_epoch = epoch_of(running.stamp), span = now_epoch - running.first_epoch;
  uint64_t other = 0;
  for (unsigned i = 0; i < bytes; i++) other |= epoch_of(writer[i]) - running.first_epoch >= span;
  const Stamp now = stamp_at(where);
  note_readers(readers + offset, bytes, now);
  if (other) {
    for (unsigned i = 0; i < bytes; i++) {
      if (epoch_of(writer[i]) < running.first_epoch) {
        memset(to, kPoison, bytes);
        const Array& array = array_of(offset + i);
        report("uninitialised LDS read", where, "%u bytes; byte %llu of %s was not written in this block", bytes,
               (unsigned long long)(offset + i - array.start), array.name);
        return;
      }
      if (!unordered(writer[i], now)) continue;
      report_race(writer[i], offset + i, "wrote", "reads", where);
      break;
    }
  }
  copy_bytes(to, from, bytes);
}

void lds_write(void* to, const void* from, unsigned bytes, unsigned align, Where where) {
  if (!check(to, bytes, align, "out-of-bounds LDS write", where)) return;
  const uint64_t offset = offset_in(to);
  const Stamp now = stamp_at(where);
  check_write(offset, bytes, now, where);
  set_writer(offset, bytes, now);
  copy_bytes(to, from, bytes);
}

void begin_loads_to_lds() {
  for (unsigned t = 0; t < runtime.block_threads; t++) {
    Loads& left = loads[t];  // by the block before
    if (checks_on())
      for (unsigned i = 0; i < left.count; i++) set_writer(offset_in(left.load[i].to), left.load[i].count, 0);
    left.count = 0;
  }
}

// On a GPU the bytes may arrive at any moment from here to the wait. Here they do at the wait, and nobody can tell:
// until then any access to them is a race, as is an earlier one that has no order with this.
void load_to_lds(const void* from, void* to, unsigned bytes, unsigned align, Where where) {
  Loads& mine = loads[runtime.thread];
  if (mine.count == kMaxLoads) loads_arrived(where);
  auto* const own = (uint8_t*)to + running.lane * bytes;
  if (checks_on()) {
    if (!check(own, bytes, bytes, "out-of-bounds LDS write", where)) return;
    const uint64_t offset = offset_in(own);
    const Stamp now = stamp_at(where);
    check_write(offset, bytes, now, where);
    set_writer(offset, bytes, now | kInFlight << kEpochShift);
  }
  Load& load = mine.load[mine.count++];
  load.to = own;
  load.count = bytes;
  load.where = where;
  runtime.read(load.bytes, from, bytes, align, where);
}

void loads_arrived(Where) {
  Loads& mine = loads[runtime.thread];
  for (Load* load = mine.load; load < mine.load + mine.count; load++) {
    if (checks_on()) set_writer(offset_in(load->to), load->count, running.stamp);
    runtime.lds_write(load->to, load->bytes, load->count, load->count, load->where);
  }
  mine.count = 0;
}

void lds_read_unchecked(void* to, const void* from, unsigned bytes, unsigned align, Where where) {
  if (offset_in(from) <= kLdsSpace - bytes) copy_bytes(to, from, bytes);
  else check(from, bytes, align, "out-of-bounds LDS read", where), memset(to, kPoison, bytes);
}

void lds_write_unchecked(void* to, const void* from, unsigned bytes, unsigned align, Where where) {
  if (offset_in(to) <= kLdsSpace - bytes) copy_bytes(to, from, bytes);
  else check(to, bytes, align, "out-of-bounds LDS write", where);
}

}  // namespace rocattn::hostgpu
