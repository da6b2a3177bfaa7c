// A kernel's loads and stores of global memory.
#include "runtime.h"

namespace rocattn::hostgpu {
namespace {

bool all_initialised(const uint8_t* state, unsigned bytes) {
  unsigned i = 0;
  for (; i + 8 <= bytes; i += 8) {
    uint64_t eight;
    memcpy(&eight, state + i, 8);
    if (eight != 0x0202020202020202) return false;
  }
  if (i + 4 <= bytes) {
    uint32_t four;
    memcpy(&four, state + i, 4);
    if (four != 0x02020202) return false;
    i += 4;
  }
  for (; i < bytes; i++)
    if (state[i] != kInitialised) return false;
  return true;
}

// Whether all bytes are in one allocation; if not, tells.
bool reachable(const void* address, unsigned bytes, bool reads, Where where) {
  const auto* p = (const uint8_t*)address;
  unsigned i = 0;
  while (i < bytes && in_arena(p + i) && arena.state[offset_of(p + i)] != kNowhere) i++;
  if (i == bytes) return true;
  char text[200];
  bool freed;
  describe_nowhere(p + i, text, sizeof text, &freed);
  report(freed ? "use after free" : reads ? "out-of-bounds global read" : "out-of-bounds global write", where,
         "%s %u bytes; %s%s", reads ? "reads" : "writes", bytes, i ? "their end is " : "", text);
  return false;
}

bool aligned(const void* address, unsigned align, Where where) {
  if ((uint64_t)address % align == 0) return true;
  report("misaligned global element", where, "elements of %u bytes at an address that is %llu past a multiple", align,
         (unsigned long long)((uint64_t)address % align));
  return false;
}

// Looks for an unordered write of another thread, or one of another block at all.
void check_writers(const void* address, unsigned bytes, Stamp now, const char* name, Where where) {
  const Stamp* writer = arena.writer + offset_of(address);
  for (unsigned i = 0; i < bytes; i++) {
    const Stamp old = writer[i];
    if (!old) continue;
    const bool other_block = epoch_of(old) < running.first_epoch;
    if (!other_block && !unordered(old, now)) continue;
    const Where by = site_of(old);
    const Allocation* a = allocation_of(address);
    report(name, where, "byte %llu of allocation %llu was written by thread %u of %s block at %s:%u%s",
           (unsigned long long)((const uint8_t*)address + i - a->start), (unsigned long long)a->number, thread_of(old),
           other_block ? "another" : "this", by.file, by.line, other_block ? "" : ", with no barrier between");
    return;
  }
}

bool any_page_used(uint64_t from, unsigned bytes) {
  return arena.page_used[from >> kPageShift] | arena.page_used[(from + bytes - 1) >> kPageShift];
}

bool inside_arena(const void* address, unsigned bytes) {
  return in_arena(address) && in_arena((const uint8_t*)address + bytes - 1);
}

}  // namespace

void global_read(void* to, const void* from, unsigned bytes, unsigned align, Where where) {
  const uint64_t offset = offset_of(from);
  if (offset < arena.bytes && (uint64_t)from % align == 0 && all_initialised(arena.state + offset, bytes)) {
    if (any_page_used(offset, bytes)) check_writers(from, bytes, running.stamp, "read race in global memory", where);
    if (ordering) check_order(from, bytes, false, where);
    copy_bytes(to, from, bytes);
    return;
  }
  memset(to, kPoison, bytes);
  if (!reachable(from, bytes, true, where)) return;
  if (!aligned(from, align, where)) return;
  unsigned i = 0;
  while (arena.state[offset + i] == kInitialised) i++;
  const Allocation* a = allocation_of(from);
  report("uninitialised global read", where, "%u bytes; byte %llu of allocation %llu was never written", bytes,
         (unsigned long long)(offset + i - offset_of(a->start)), (unsigned long long)a->number);
}

void global_write(void* to, const void* from, unsigned bytes, unsigned align, Where where) {
  if (!reachable(to, bytes, false, where)) return;
  if (!aligned(to, align, where)) return;
  const uint64_t offset = offset_of(to);
  const Stamp now = stamp_at(where);
  if (any_page_used(offset, bytes)) check_writers(to, bytes, now, "write race in global memory", where);
  if (ordering) check_order(to, bytes, true, where);
  mark_page(offset >> kPageShift);
  mark_page((offset + bytes - 1) >> kPageShift);
  for (unsigned i = 0; i < bytes; i++) arena.writer[offset + i] = now;
  memset(arena.state + offset, kInitialised, bytes);
  copy_bytes(to, from, bytes);
}

// Without checks an access outside the arena, where there may be no memory at all, is still found.
void global_read_unchecked(void* to, const void* from, unsigned bytes, unsigned, Where where) {
  if (inside_arena(from, bytes)) {
    copy_bytes(to, from, bytes);
    return;
  }
  memset(to, kPoison, bytes);
  reachable(from, bytes, true, where);
}

void global_write_unchecked(void* to, const void* from, unsigned bytes, unsigned, Where where) {
  if (inside_arena(to, bytes)) {
    memset(arena.state + offset_of(to), kInitialised, bytes);
    copy_bytes(to, from, bytes);
  } else {
    reachable(to, bytes, false, where);
  }
}

}  // namespace rocattn::hostgpu
