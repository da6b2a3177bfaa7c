// Findings: gathered while a kernel runs, written out when it ends.
#include "runtime.h"

namespace rocattn::hostgpu {
namespace {

constexpr unsigned kMaxFindings = 16;
constexpr uint64_t kMaxCount = 20000;  // of a launch: a loop over a poisoned bound would go on for hours

struct Finding {
  const char* name;
  Where where;
  uint64_t count;
  char text[480];
};
Finding findings[kMaxFindings];
unsigned found;
uint64_t total;
char kernel_name[128];
char published[16384];
size_t published_bytes;

void publish(const char* text) {
  const size_t bytes = strlen(text);
  (void)!write(2, text, bytes);
  const size_t kept = bytes < sizeof published - 1 - published_bytes ? bytes : sizeof published - 1 - published_bytes;
  memcpy(published + published_bytes, text, kept);
  published_bytes += kept;
  published[published_bytes] = 0;
}

Finding* same_as(const char* name, Where where) {
  for (unsigned i = 0; i < found; i++) {
    Finding& f = findings[i];
    if (f.name == name && f.where.line == where.line && strcmp(f.where.file, where.file) == 0) return &f;
  }
  return nullptr;
}

}  // namespace

void report(const char* name, Where where, const char* format, ...) {
  total++;
  if (Finding* same = same_as(name, where)) {
    same->count++;
  } else if (found < kMaxFindings) {
    Finding& f = findings[found++];
    f.name = name;
    f.where = where;
    f.count = 1;
    const unsigned wave = device()->wave, thread = runtime.thread, *at = runtime.block;
    const int used = snprintf(f.text, sizeof f.text,
                              "%s at %s:%u, kernel %s, block (%u, %u, %u), thread %u (wave %u, lane %u): ", name,
                              where.file, where.line, kernel_name, at[0], at[1], at[2], thread, thread / wave,
                              thread % wave);
    va_list more;
    va_start(more, format);
    if (used > 0 && (size_t)used < sizeof f.text) vsnprintf(f.text + used, sizeof f.text - (size_t)used, format, more);
    va_end(more);
  }
  if (total >= kMaxCount) stop_block();
}

void report_launch(const char* name, const char* format, ...) {
  total++;
  if (found == kMaxFindings) return;
  Finding& f = findings[found++];
  f.name = name;
  f.where = {"", 0};
  f.count = 1;
  const int used = snprintf(f.text, sizeof f.text, "%s, kernel %s: ", name, kernel_name);
  va_list more;
  va_start(more, format);
  if (used > 0 && (size_t)used < sizeof f.text) vsnprintf(f.text + used, sizeof f.text - (size_t)used, format, more);
  va_end(more);
}

void complain(const char* format, ...) {
  char text[512];
  va_list more;
  va_start(more, format);
  vsnprintf(text, sizeof text, format, more);
  va_end(more);
  char line[560];
  snprintf(line, sizeof line, "rocattn hostgpu: %s\n", text);
  publish(line);
}

void begin_findings(const char* kernel) {
  snprintf(kernel_name, sizeof kernel_name, "%s", kernel);
  found = 0;
  total = 0;
}

bool any_findings() { return total != 0; }

void publish_findings() {
  uint64_t told = 0;
  for (unsigned i = 0; i < found; i++) {
    const Finding& f = findings[i];
    told += f.count;
    if (f.count == 1) complain("%s", f.text);
    else complain("%s (%llu times)", f.text, (unsigned long long)f.count);
  }
  if (total > told) complain("%llu more findings at other places", (unsigned long long)(total - told));
}

}  // namespace rocattn::hostgpu

using namespace rocattn::hostgpu;

// What has been found since the last rocattn_hostgpu_clear, one line each; empty if nothing. Valid until the next call.
extern "C" HOSTGPU_EXPORT const char* rocattn_hostgpu_report() { return published; }

extern "C" HOSTGPU_EXPORT void rocattn_hostgpu_clear() {
  Lock lock;
  published_bytes = 0;
  published[0] = 0;
}

// Marks this library as the stand-in, and says which version of the interface to its modules it has.
extern "C" HOSTGPU_EXPORT unsigned rocattn_hostgpu_version() { return ABI; }
