// One launch: its limits, then block after block.
#include "runtime.h"

namespace rocattn::hostgpu {
namespace {

constexpr uint64_t kMaxGridYZ = 65535;

// Whether the hardware could run it.
bool possible(const Function& f, const unsigned grid[3], const unsigned block[3], uint64_t lds, uint64_t bytes) {
  const Kernel& kernel = *f.kernel;
  const Device& on = *device();
  if (bytes < kernel.argument_bytes) {
    unsigned missing = 0;
    while (kernel.parameters[missing].offset + kernel.parameters[missing].size <= bytes) missing++;
    report_launch("read past end of kernel arguments", "%llu bytes are given, parameter %u is at %u ... %u",
                  (unsigned long long)bytes, missing, kernel.parameters[missing].offset,
                  kernel.parameters[missing].offset + kernel.parameters[missing].size);
  } else if (bytes > (kernel.argument_bytes + 7) / 8 * 8) {  // a struct of them may end in padding
    report_launch("too many kernel arguments", "%llu bytes are given, the kernel reads %u", (unsigned long long)bytes,
                  kernel.argument_bytes);
  }
  if ((uint64_t)block[0] * block[1] * block[2] > kMaxThreads)
    report_launch("block too large", "%u x %u x %u threads, %u are possible", block[0], block[1], block[2],
                  kMaxThreads);
  else if (block[1] != 1 || block[2] != 1 || block[0] != kernel.threads)
    report_launch("wrong block size", "%u x %u x %u threads, the kernel is compiled for %u", block[0], block[1],
                  block[2], kernel.threads);
  if ((uint64_t)grid[0] * block[0] > 0xffffffff || grid[1] > kMaxGridYZ || grid[2] > kMaxGridYZ)
    report_launch("grid too large", "%u x %u x %u blocks of %u threads", grid[0], grid[1], grid[2], block[0]);
  if (lds > on.lds_bytes)
    report_launch("LDS too large", "%llu bytes of dynamic LDS, %s has %u for a block", (unsigned long long)lds, on.arch,
                  on.lds_bytes);
  return !any_findings();
}

void lds_read_counted(void* to, const void* from, unsigned bytes, unsigned align, Where where) {
  note_lds_access(LdsAccess::READ, lds_offset(from), bytes, where);
  (checks_on() ? lds_read : lds_read_unchecked)(to, from, bytes, align, where);
}

void lds_write_counted(void* to, const void* from, unsigned bytes, unsigned align, Where where) {
  note_lds_access(LdsAccess::WRITE, lds_offset(to), bytes, where);
  (checks_on() ? lds_write : lds_write_unchecked)(to, from, bytes, align, where);
}

void begin_block() {
  if (epoch_of(running.stamp) > kMaxEpoch / 2) {  // the numbers would run out: forget what earlier blocks did
    forget_writers();
    begin_lds(0);
    running.stamp = 0;
  }
  begin_block_epoch();
  running.first_epoch = epoch_of(running.stamp);
}

void run_grid(const Kernel& kernel, const void* arguments) {
  const FaultGuard guard;
  const uint64_t x = runtime.grid[0], y = runtime.grid[1], blocks = x * y * runtime.grid[2];
  for (uint64_t i = 0; i < blocks && !any_findings(); i++) {
    const uint64_t block = last_to_first() ? blocks - 1 - i : i;
    runtime.block[0] = (unsigned)(block % x);
    runtime.block[1] = (unsigned)(block / x % y);
    runtime.block[2] = (unsigned)(block / x / y);
    begin_block();
    begin_loads_to_lds();
    run_block(kernel, arguments);
    if (counts_lds_cycles()) count_lds_cycles_of_block();
  }
}

}  // namespace

Runtime runtime = {};

bool launch(const Function& function, const unsigned grid[3], const unsigned block[3], uint64_t dynamic_lds,
            const void* arguments, uint64_t argument_bytes) {
  begin_findings(function.name);
  if (possible(function, grid, block, dynamic_lds, argument_bytes)) {
    const bool checked = checks_on();
    runtime.read = checked ? global_read : global_read_unchecked;
    runtime.write = checked ? global_write : global_write_unchecked;
    runtime.lds_read = checked ? lds_read : lds_read_unchecked;
    runtime.lds_write = checked ? lds_write : lds_write_unchecked;
    if (counts_lds_cycles()) {
      runtime.lds_read = lds_read_counted;
      runtime.lds_write = lds_write_counted;
      begin_lds_cycles(function.name);
    }
    runtime.lds_read_transposed = lds_read_transposed;
    runtime.load_to_lds = load_to_lds;
    runtime.loads_arrived = loads_arrived;
    runtime.lds_declare = lds_declare;
    runtime.barrier = barrier;
    runtime.shuffle = shuffle;
    runtime.any_lane = any_lane;
    runtime.uniform = uniform;
    runtime.matrix = matrix;
    runtime.block_threads = block[0];
    memcpy(runtime.grid, grid, sizeof runtime.grid);
    running = {0, 0, device()->wave, (unsigned)__builtin_ctz(device()->wave), waves, 0, false};
    forget_sites();
    begin_lds(dynamic_lds);
    run_grid(*function.kernel, arguments);
    forget_writers();
  }
  publish_findings();
  return !any_findings();
}

}  // namespace rocattn::hostgpu
