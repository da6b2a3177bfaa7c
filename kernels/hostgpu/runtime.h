// The parts of the stand-in GPU and what they know of each other. One lock around every call of the C ABI makes all of
// it single-threaded: blocks run one after another, and two runs of the same launch are the same.
#pragma once
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "../include/rocattn/hostgpu_abi.h"

// Of the C library; its headers are not needed for so little.
extern "C" {
void* memcpy(void*, const void*, size_t);
void* memset(void*, int, size_t);
void* memmove(void*, const void*, size_t);
int memcmp(const void*, const void*, size_t);
size_t strlen(const char*);
int strcmp(const char*, const char*);
void* malloc(size_t);
void* calloc(size_t, size_t);
void free(void*);
char* getenv(const char*);
unsigned long long strtoull(const char*, char**, int);
int snprintf(char*, size_t, const char*, ...);
int vsnprintf(char*, size_t, const char*, va_list);
void* mmap(void*, size_t, int, int, int, long);
int mprotect(void*, size_t, int);
int madvise(void*, size_t, int);
long write(int, const void*, size_t);
int close(int);
}

#define HOSTGPU_EXPORT __attribute__((visibility("default")))

namespace rocattn::hostgpu {

constexpr unsigned kMaxThreads = 1024;  // of a block
constexpr unsigned kMaxWaves = kMaxThreads / 32;

// ---- the device (device.cpp) ---------------------------------------------------------------------------------------

struct Device {
  const char* arch;
  unsigned wave, lds_bytes, compute_units, major, minor, stepping;
};

// Null when ROCATTN_HOSTGPU_ARCH names no architecture; what is wrong has then been said.
const Device* device();
bool checks_on();      // ROCATTN_HOSTGPU_CHECKS
bool last_to_first();  // ROCATTN_HOSTGPU_ORDER: of blocks
uint64_t memory_limit();

// ---- time (clock.cpp) ----------------------------------------------------------------------------------------------

bool virtual_time();                 // whether ROCATTN_HOSTGPU_TIME has made it up
uint64_t host_ns();                  // now, for the program
void host_spends(const char* call);  // what a "call" or an "event" takes of it
void host_waits_until(uint64_t ns);  // for the end of some work
// What work takes on the device: its own entry in ROCATTN_HOSTGPU_TIME, or that of its kind; 0 in real time.
uint64_t device_ns(const char* work, const char* kind);

// ---- every call ----------------------------------------------------------------------------------------------------

class Lock {  // of every call of the C ABI
 public:
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

// ---- findings (report.cpp) -----------------------------------------------------------------------------------------

// Notes a finding about the running thread; the same name at the same place is counted. Does not return when there are
// so many that the kernel may never end.
__attribute__((format(printf, 3, 4))) void report(const char* name, Where where, const char* format, ...);
// Notes one about the launch as a whole, before or after it runs.
__attribute__((format(printf, 2, 3))) void report_launch(const char* name, const char* format, ...);
// One line to stderr, and into the text that rocattn_hostgpu_report gives.
__attribute__((format(printf, 1, 2))) void complain(const char* format, ...);
void begin_findings(const char* kernel);
bool any_findings();
void publish_findings();  // to stderr and rocattn_hostgpu_report

// ---- who accessed a byte (races.cpp) -------------------------------------------------------------------------------

// From the highest bit: block epoch 20 (counts barriers and blocks of a launch, from 1), wave epoch 20 (collectives of
// the wave since then), site 12, SEVERAL_WAVES, SEVERAL, thread 10. 0 is nobody.
using Stamp = uint64_t;
constexpr unsigned kEpochShift = 44, kWaveShift = 24, kSiteShift = 12;
constexpr Stamp kSeveralWaves = 1 << 11, kSeveral = 1 << 10;
constexpr uint64_t kMaxEpoch = (1 << 20) - 1;
constexpr uint64_t kInFlight = kMaxEpoch;  // instead of the block epoch: a write that may happen now or later

constexpr uint64_t epoch_of(Stamp s) { return s >> kEpochShift; }
constexpr uint64_t wave_epoch_of(Stamp s) { return s >> kWaveShift & 0xfffff; }
constexpr unsigned thread_of(Stamp s) { return s & 1023; }

struct Wave;
struct Running {
  Stamp stamp;           // of the running thread, without a site
  uint64_t first_epoch;  // of the running block
  unsigned wave_size, wave_shift;
  Wave* wave;  // of the running thread
  unsigned lane;
  bool in_fiber;
};
extern Running running;

Stamp stamp_at(Where where);
Where site_of(Stamp s);
// Whether an access stamped `now` and an earlier one in the same block and epoch are unordered. `old` may stand for
// several readers. With one in flight nothing is ordered.
bool unordered(Stamp old, Stamp now);
void forget_sites();

// The sizes that kernels use are single instructions.
inline void copy_bytes(void* to, const void* from, unsigned bytes) {
  switch (bytes) {
    case 2: __builtin_memcpy(to, from, 2); break;
    case 4: __builtin_memcpy(to, from, 4); break;
    case 8: __builtin_memcpy(to, from, 8); break;
    case 16: __builtin_memcpy(to, from, 16); break;
    case 32: __builtin_memcpy(to, from, 32); break;
    default: memcpy(to, from, bytes);
  }
}

// ---- memory (memory.cpp, global.cpp) -------------------------------------------------------------------------------

enum State : uint8_t { kNowhere = 0, kUninitialised = 1, kInitialised = 2 };  // of a byte of the arena

struct Allocation {
  uint8_t* start;
  uint64_t bytes;
  bool host;
  uint64_t number;
  Allocation* next;  // by address
};

// The work that wrote and read two bytes last (order.cpp); 0 is none.
struct Access {
  uint32_t writer, reader;
};

struct Arena {
  uint8_t* base;
  uint64_t bytes;
  uint8_t* state;      // a State for each byte
  Stamp* writer;       // of each byte, in the running launch
  uint8_t* page_used;  // whether a page has a writer
  Access* accesses;    // of each two bytes
};
extern Arena arena;

inline bool in_arena(const void* p) { return (uint64_t)((const uint8_t*)p - arena.base) < arena.bytes; }
inline uint64_t offset_of(const void* p) { return (uint64_t)((const uint8_t*)p - arena.base); }
constexpr unsigned kPageShift = 12;

bool ready_memory();  // false: no address space, said so
Allocation* allocate(uint64_t bytes, bool host);
bool release(void* p, bool host);
const Allocation* allocation_of(const void* p);  // the live one with this byte in it
uint64_t allocated_bytes();
// Where a byte of no allocation lies, in words; `freed` tells whether it was in one.
void describe_nowhere(const void* p, char* text, size_t size, bool* freed);
void mark_page(uint64_t page);
void forget_writers();

void global_read(void* to, const void* from, unsigned bytes, unsigned align, Where where);
void global_write(void* to, const void* from, unsigned bytes, unsigned align, Where where);
void global_read_unchecked(void* to, const void* from, unsigned bytes, unsigned align, Where where);
void global_write_unchecked(void* to, const void* from, unsigned bytes, unsigned align, Where where);

// ---- the order of streams (order.cpp) ------------------------------------------------------------------------------

constexpr unsigned kSlots = 64;     // streams that are told apart
constexpr unsigned kFirstSlot = 2;  // the ones before are the default stream's and the thread's
// What comes before: of each slot's work the last number.
struct Past {
  uint32_t last[kSlots];
};
void join(Past& one, const Past& other);
unsigned take_slot();
void give_slot(unsigned slot);

extern bool ordering;  // whether accesses are noted: there are two streams or more
// Numbers a piece of work that begins with this past, which becomes that of what comes after it.
void begin_work(const char* name, unsigned slot, Past& past);
// Notes that the work accesses memory of an allocation; true, and what is wrong, if that has no order with an earlier
// access.
bool unordered_access(const void* address, uint64_t bytes, bool writes, char* text, size_t size);
void check_order(const void* address, unsigned bytes, bool writes, Where where);  // of a kernel's access

// ---- LDS (lds.cpp) -------------------------------------------------------------------------------------------------

constexpr uint64_t kLdsSpace = 1 << 20;  // what a block gets as LDS, guards between the arrays included
bool ready_lds();
bool in_lds(const void* p);
void begin_lds(uint64_t dynamic_bytes);  // of a launch
uint64_t lds_bytes();                    // of the launch so far
void* lds_declare(unsigned long long bytes, const char* name, Where where);
void lds_read(void* to, const void* from, unsigned bytes, unsigned align, Where where);
void lds_write(void* to, const void* from, unsigned bytes, unsigned align, Where where);
uint64_t lds_offset(const void* p);
void begin_loads_to_lds();  // of a block
void load_to_lds(const void* from, void* to, unsigned bytes, unsigned align, Where where);
void loads_arrived(Where where);
void lds_read_unchecked(void* to, const void* from, unsigned bytes, unsigned align, Where where);
void lds_write_unchecked(void* to, const void* from, unsigned bytes, unsigned align, Where where);

// ---- LDS bank conflicts (lds_banks.cpp) ------------------------------------------------------------------------------

enum class LdsAccess : uint8_t { READ, WRITE, TRANSPOSING_READ };
bool counts_lds_cycles();  // ROCATTN_HOSTGPU_LDS_GROUPS
// Notes the running lane's part of an access; its wave's lanes come one after another.
void note_lds_access(LdsAccess access, uint64_t offset, unsigned bytes, Where where);
void count_lds_cycles(unsigned wave);  // of what was noted since the last time
void count_lds_cycles_of_block();
void begin_lds_cycles(const char* kernel);

constexpr int kPoison = 0xff;  // each byte of what a refused read gives: NaN in every float type

// ---- execution (fibers.cpp, collectives.cpp, matrix.cpp, launch.cpp) -----------------------------------------------

struct Wave {
  uint64_t present;   // lanes it has
  uint64_t runnable;  // lanes that can go on
  uint64_t waiting;   // lanes in the collective
  uint64_t at_barrier;
  uint64_t returned;
  uint64_t epoch;  // collectives since the last block barrier
  Collective kind;
  Where where;
  uint32_t value[64], source[64], result[64];
  uint16_t elements[64][4];  // of a transposing read
  const MatrixOperands* operands[64];
};
extern Wave waves[kMaxWaves];
extern Runtime runtime;

class FaultGuard {  // faults of this thread, while a kernel runs, are findings
 public:
  FaultGuard();
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;
};

bool ready_fibers();
bool on_guard_page(const void* address);
void run_block(const Kernel& kernel, const void* arguments);
// Lets other threads run until this one can go on.
void suspend();
// After a collective: in the order of the threads, from this one.
void go_on_from(unsigned thread);
// After its epoch or its wave's has changed.
void restamp();
[[noreturn]] void stop_block();
[[noreturn]] void report_divergence();
void begin_block_epoch();

void barrier(Collective kind, Where where);
uint32_t shuffle(unsigned value, unsigned lane, Where where);
bool any_lane(bool condition, Where where);
uint32_t uniform(unsigned value, Where where);
void matrix(Collective kind, const MatrixOperands& operands, Where where);
void lds_read_transposed(void* to, const void* from, Where where);
void multiply(Wave& wave);

struct Function {
  const Kernel* kernel;
  char name[128];
  Function* next;
};

// False: findings have been published.
bool launch(const Function& function, const unsigned grid[3], const unsigned block[3], uint64_t dynamic_lds,
            const void* arguments, uint64_t argument_bytes);

}  // namespace rocattn::hostgpu
