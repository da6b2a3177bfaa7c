// Device memory: one arena of address space with a state and a writer for each byte. Freed memory is used again as late
// as possible, so that an access to it is seen.
#include "runtime.h"

namespace rocattn::hostgpu {
namespace {

constexpr int kReadWrite = 3, kPrivateAnonymousNoReserve = 0x4022, kDontNeed = 4;
constexpr uint64_t kPage = 1 << kPageShift;
constexpr uint64_t kRedZone = 256;  // at least, on both sides; also what hipMalloc aligns to
constexpr uint64_t kPinnedSpace = 4ull << 30;
constexpr unsigned kFreedKept = 256;

struct Freed {
  uint8_t* start;
  uint64_t bytes, number;
};

Allocation* first;  // by address
uint64_t count, device_bytes, cursor;
Freed freed[kFreedKept];
uint64_t freed_count;
uint64_t* used_pages;
uint64_t used_count, used_capacity;

constexpr uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

void* reserve(uint64_t bytes) {
  void* p = mmap(nullptr, bytes, kReadWrite, kPrivateAnonymousNoReserve, -1, 0);
  return p == (void*)-1 ? nullptr : p;
}

// From the red zone before it to the page after the one behind it.
uint64_t begin_of(const Allocation* a) { return offset_of(a->start) - kRedZone; }
uint64_t end_of(const Allocation* a) { return begin_of(a) + round_up(a->bytes + 2 * kRedZone, kPage); }

// The first gap of `bytes` at or after `from`; `before` becomes the allocation in front of it.
bool find_gap(uint64_t from, uint64_t bytes, Allocation** before, uint64_t* at) {
  uint64_t free_from = 0;
  Allocation* previous = nullptr;
  for (Allocation* a = first;; a = a->next) {
    const uint64_t gap = free_from > from ? free_from : from;
    if (gap + bytes <= (a ? begin_of(a) : arena.bytes)) {
      *before = previous;
      *at = gap;
      return true;
    }
    if (!a) return false;
    free_from = end_of(a);
    previous = a;
  }
}

}  // namespace

Arena arena;

bool ready_memory() {
  if (arena.base) return true;
  // Address space for 16 times the limit, so that freed memory is not soon used again, and for pinned host memory; less
  // where there is little.
  for (uint64_t bytes = memory_limit() * 16 + kPinnedSpace; bytes >= memory_limit(); bytes /= 2) {
    const uint64_t space = round_up(bytes, kPage);
    const uint64_t accesses = space / 2 * sizeof(Access);
    auto* p = (uint8_t*)reserve(space * (2 + sizeof(Stamp)) + accesses + space / kPage);
    if (!p) continue;
    uint8_t* after_writers = p + space * (2 + sizeof(Stamp));
    arena = {p, space, p + space, (Stamp*)(p + 2 * space), after_writers + accesses, (Access*)after_writers};
    return true;
  }
  complain("no address space for %llu bytes of device memory: lower ROCATTN_HOSTGPU_MEMORY_BYTES",
           (unsigned long long)memory_limit());
  return false;
}

Allocation* allocate(uint64_t bytes, bool host) {
  const uint64_t whole = round_up(bytes + 2 * kRedZone, kPage);
  if (bytes > arena.bytes || (!host && device_bytes + bytes > memory_limit())) return nullptr;
  Allocation* before;
  uint64_t at;
  if (!find_gap(cursor, whole, &before, &at) && !find_gap(0, whole, &before, &at)) return nullptr;
  auto* made = (Allocation*)malloc(sizeof(Allocation));
  if (!made) return nullptr;
  Allocation** link = before ? &before->next : &first;
  *made = {arena.base + at + kRedZone, bytes, host, ++count, *link};
  *link = made;
  cursor = at + whole;
  if (!host) device_bytes += bytes;
  // What the host writes to its own memory is unseen.
  memset(arena.state + at + kRedZone, host ? kInitialised : kUninitialised, bytes);
  return made;
}

bool release(void* p, bool host) {
  for (Allocation** link = &first; *link; link = &(*link)->next) {
    Allocation* a = *link;
    if (a->start != p || a->host != host) continue;
    const uint64_t begin = begin_of(a), whole = end_of(a) - begin;
    freed[freed_count++ % kFreedKept] = {a->start, a->bytes, a->number};
    madvise(arena.base + begin, whole, kDontNeed);
    madvise(arena.state + begin, whole, kDontNeed);  // reads as kNowhere
    madvise(arena.writer + begin, whole * sizeof(Stamp), kDontNeed);
    madvise(arena.accesses + begin / 2, whole / 2 * sizeof(Access), kDontNeed);
    if (!host) device_bytes -= a->bytes;
    *link = a->next;
    free(a);
    return true;
  }
  return false;
}

const Allocation* allocation_of(const void* p) {
  for (const Allocation* a = first; a; a = a->next)
    if ((uint64_t)((const uint8_t*)p - a->start) < a->bytes) return a;
  return nullptr;
}

uint64_t allocated_bytes() { return device_bytes; }

void describe_nowhere(const void* p, char* text, size_t size, bool* was_freed) {
  *was_freed = false;
  const auto* at = (const uint8_t*)p;
  if ((uint64_t)p < kPage) {
    snprintf(text, size, "a null pointer (address %llu)", (unsigned long long)(uint64_t)p);
    return;
  }
  if (in_lds(p)) {
    snprintf(text, size, "the address is in LDS");
    return;
  }
  const uint64_t kept = freed_count < kFreedKept ? freed_count : kFreedKept;
  for (uint64_t i = 1; i <= kept; i++) {
    const Freed& f = freed[(freed_count - i) % kFreedKept];
    if ((uint64_t)(at - f.start) >= f.bytes) continue;
    *was_freed = true;
    snprintf(text, size, "byte %llu of allocation %llu, which had %llu and was freed",
             (unsigned long long)(at - f.start), (unsigned long long)f.number, (unsigned long long)f.bytes);
    return;
  }
  const Allocation *below = nullptr, *above = nullptr;
  for (const Allocation* a = first; a; a = a->next) {
    if (a->start <= at) below = a;
    else if (!above) above = a;
  }
  if (!in_arena(p) || (!below && !above)) {
    snprintf(text, size, "address 0x%llx is not in device memory", (unsigned long long)(uint64_t)p);
    return;
  }
  const uint64_t past = below ? (uint64_t)(at - below->start) - below->bytes : ~0ull;
  const uint64_t ahead = above ? (uint64_t)(above->start - at) : ~0ull;
  if (past <= ahead)
    snprintf(text, size, "%llu bytes past the end of allocation %llu, which has %llu", (unsigned long long)past,
             (unsigned long long)below->number, (unsigned long long)below->bytes);
  else
    snprintf(text, size, "%llu bytes before allocation %llu, which has %llu", (unsigned long long)ahead,
             (unsigned long long)above->number, (unsigned long long)above->bytes);
}

void mark_page(uint64_t page) {
  if (arena.page_used[page]) return;
  if (used_count == used_capacity) {
    const uint64_t capacity = used_capacity ? 2 * used_capacity : 1024;
    auto* pages = (uint64_t*)malloc(capacity * sizeof(uint64_t));
    if (!pages) return;  // this page's races stay unseen
    memcpy(pages, used_pages, used_count * sizeof(uint64_t));
    free(used_pages);
    used_pages = pages;
    used_capacity = capacity;
  }
  arena.page_used[page] = 1;
  used_pages[used_count++] = page;
}

void forget_writers() {
  for (uint64_t i = 0; i < used_count; i++) {
    arena.page_used[used_pages[i]] = 0;
    memset(arena.writer + used_pages[i] * kPage, 0, kPage * sizeof(Stamp));
  }
  used_count = 0;
}

}  // namespace rocattn::hostgpu
