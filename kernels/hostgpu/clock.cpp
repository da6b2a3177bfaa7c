// Time as the program sees it. Usually it is this machine's clock, which says nothing about any GPU.
// ROCATTN_HOSTGPU_TIME replaces it by a made-up one, so that tests can tell the GPU's time from the host's: each call
// of the program takes host time, each kernel and memset takes device time, and a stream begins its work when the host
// has asked for it and what is before it has ended.
#include "runtime.h"

extern "C" int clock_gettime(int, long[2]);

namespace rocattn::hostgpu {
namespace {

constexpr unsigned kMaxCosts = 32;

struct Cost {
  char name[64];
  uint64_t ns;
};
Cost costs[kMaxCosts];
unsigned cost_count;
uint64_t host_time = 1;  // 0 is the time of an event that was not recorded

// Reads NAME=NANOSECONDS, and what separates it from the next; false if it is something else.
bool read_cost(const char** from, Cost* to) {
  const char* at = *from;
  unsigned length = 0;
  while (at[length] && at[length] != '=' && at[length] != ' ') length++;
  if (at[length] != '=' || length == 0 || length >= sizeof to->name) return false;
  memcpy(to->name, at, length);
  to->name[length] = 0;
  char* end;
  to->ns = strtoull(at + length + 1, &end, 10);
  if (end == at + length + 1 || (*end && *end != ' ')) return false;
  while (*end == ' ') end++;
  *from = end;
  return true;
}

const Cost* cost_of(const char* name) {
  for (unsigned i = 0; i < cost_count; i++)
    if (strcmp(costs[i].name, name) == 0) return &costs[i];
  return nullptr;
}

}  // namespace

bool virtual_time() {
  static bool read;
  const char* at = read ? nullptr : getenv("ROCATTN_HOSTGPU_TIME");
  read = true;
  while (at && *at == ' ') at++;
  while (at && *at) {
    if (cost_count < kMaxCosts && read_cost(&at, &costs[cost_count])) {
      cost_count++;
      continue;
    }
    complain("ROCATTN_HOSTGPU_TIME has '%s': it can be up to %u times NAME=NANOSECONDS, with spaces between", at,
             kMaxCosts);
    cost_count = 0;
    break;
  }
  return cost_count != 0;
}

uint64_t host_ns() {
  if (virtual_time()) return host_time;
  long now[2];
  clock_gettime(1, now);  // CLOCK_MONOTONIC
  return (uint64_t)now[0] * 1000000000 + (uint64_t)now[1];
}

void host_spends(const char* call) {
  if (!virtual_time()) return;
  if (const Cost* cost = cost_of(call)) host_time += cost->ns;
}

void host_waits_until(uint64_t ns) {
  if (virtual_time() && ns > host_time) host_time = ns;
}

uint64_t device_ns(const char* work, const char* kind) {
  if (!virtual_time()) return 0;
  const Cost* cost = cost_of(work);
  if (!cost) cost = cost_of(kind);
  return cost ? cost->ns : 0;
}

}  // namespace rocattn::hostgpu
