// Queues the kernels of a GPU's plan in one call from Python: rocattn/gpu/runtime.py packs the data read here.
//
// Nothing is written to what a plan owns, so threads share one: arguments are completed on the caller's stack. HIP's
// functions come as addresses, of the library that hip-python opened.
#include "abi.h"

namespace {

struct Hip {
  int (*launch)(void* function, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z, uint32_t block_x, uint32_t block_y,
                uint32_t block_z, uint32_t lds_bytes, void* stream, void** each, void** extra);
  int (*get_device)(int* index);
  int (*set_device)(int index);
};

struct Kernel {
  void* function;
  uint32_t size[7];         // grid, block, bytes of dynamic LDS
  uint32_t places;          // how many of the plan's follow those of the kernels before
  uint64_t bytes;           // of the arguments, kMostBytes at most
  const char* arguments;    // with zeros where addresses go
};

struct Place {
  uint32_t at, value;       // byte of the arguments; which of the call's values goes there
  uint64_t offset;          // is added to it
};

struct Plan {
  Hip hip;
  const Kernel* kernels;
  const Place* places;
  int64_t device;
};

struct Call {
  const Plan* plan;
  uint32_t first, end;      // of the kernels
  void* stream;
  uint64_t values[];        // addresses of arrays and workspaces
};

constexpr uint32_t kMostBytes = 1024;
enum Step : int64_t { kLaunch, kGetDevice, kSetDevice };

int64_t failure(Step step, uint32_t kernel, int status) {
  return (int64_t)step << 56 | (int64_t)kernel << 32 | (uint32_t)status;
}

}  // namespace

// Returns 0; or HIP's status in the low 32 bits, above it the index of the rejected kernel, above that the step.
// Restores this thread's current device.
extern "C" RA_EXPORT int64_t rocattn_gpu_launch(const Call* call) {
  const Plan* plan = call->plan;
  const int device = (int)plan->device;
  int before = device;
  if (const int status = plan->hip.get_device(&before)) return failure(kGetDevice, 0, status);
  if (before != device)
    if (const int status = plan->hip.set_device(device)) return failure(kSetDevice, 0, status);
  int64_t result = 0;
  const Place* place = plan->places;
  for (uint32_t i = 0; i < call->end; i++) {
    const Kernel* kernel = &plan->kernels[i];
    const Place* last = place + kernel->places;
    if (i >= call->first) {
      alignas(16) char arguments[kMostBytes];
      __builtin_memcpy(arguments, kernel->arguments, kernel->bytes);
      for (; place < last; place++) {
        const uint64_t value = call->values[place->value] + place->offset;
        __builtin_memcpy(arguments + place->at, &value, sizeof value);
      }
      uint64_t bytes = kernel->bytes;
      void* extra[] = {(void*)1, arguments, (void*)2, &bytes, (void*)3};  // HIP_LAUNCH_PARAM_BUFFER_POINTER, _SIZE, _END
      const uint32_t* n = kernel->size;
      const int status = plan->hip.launch(kernel->function, n[0], n[1], n[2], n[3], n[4], n[5], n[6], call->stream,
                                          nullptr, extra);
      if (status) {
        result = failure(kLaunch, i, status);
        break;
      }
    }
    place = last;
  }
  if (before != device)
    if (const int status = plan->hip.set_device(before))
      if (!result) result = failure(kSetDevice, 0, status);
  return result;
}
