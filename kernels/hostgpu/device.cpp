// The device as programs ask for it: properties, errors, versions.
#include "hip.h"
#include "properties.h"

extern "C" {
int pthread_mutex_lock(void*);
int pthread_mutex_unlock(void*);
}

namespace rocattn::hostgpu {
namespace {

// LDS: what one block can have. Compute units: as HIP counts them on a board of that architecture.
constexpr Device kDevices[] = {
    {"gfx1030", 32, 64 << 10, 40, 10, 3, 0},  {"gfx1100", 32, 64 << 10, 48, 11, 0, 0},
    {"gfx1201", 32, 64 << 10, 32, 12, 0, 1},  {"gfx90a", 64, 64 << 10, 104, 9, 0, 10},
    {"gfx942", 64, 64 << 10, 304, 9, 4, 2},   {"gfx950", 64, 160 << 10, 256, 9, 5, 0},
};
constexpr const char* kName = "rocattn hostgpu: a stand-in for %s, no GPU";
constexpr int kRuntimeVersion = 70200000;  // HIP 7.2.0, whose interface this is

alignas(64) char mutex[64];  // a pthread_mutex_t; all zeros is an unlocked one
int last_error;

const Device* choose_device() {
  const char* wanted = getenv("ROCATTN_HOSTGPU_ARCH");
  if (!wanted || !*wanted) wanted = "gfx1100";
  for (const Device& d : kDevices)
    if (strcmp(d.arch, wanted) == 0) return &d;
  complain("ROCATTN_HOSTGPU_ARCH is '%s': it can be gfx1030, gfx1100, gfx1201, gfx90a, gfx942 or gfx950", wanted);
  return nullptr;
}

// Which of two words a variable has; the first when it has none.
int choose(const char* variable, const char* first, const char* second) {
  const char* wanted = getenv(variable);
  if (!wanted || !*wanted || strcmp(wanted, first) == 0) return 0;
  if (strcmp(wanted, second) == 0) return 1;
  complain("%s is '%s': it can be %s or %s; it is %s", variable, wanted, first, second, first);
  return 0;
}

constexpr int kThreadsPerUnit = 2048;

}  // namespace

Lock::Lock() { pthread_mutex_lock(mutex); }
Lock::~Lock() { pthread_mutex_unlock(mutex); }

const Device* device() {
  static bool chosen;
  static const Device* choice;
  if (!chosen) choice = choose_device();
  chosen = true;
  return choice;
}

bool checks_on() {
  static int choice = -1;
  if (choice < 0) choice = choose("ROCATTN_HOSTGPU_CHECKS", "all", "none");
  return choice == 0;
}

bool last_to_first() {
  static int choice = -1;
  if (choice < 0) choice = choose("ROCATTN_HOSTGPU_ORDER", "forward", "reverse");
  return choice == 1;
}

uint64_t memory_limit() {
  static uint64_t limit;
  if (!limit) {
    const char* wanted = getenv("ROCATTN_HOSTGPU_MEMORY_BYTES");
    char* end = nullptr;
    limit = wanted && *wanted ? strtoull(wanted, &end, 10) : 4ull << 30;
    if (limit < 4096 || limit > 1ull << 40 || (end && *end)) {
      complain("ROCATTN_HOSTGPU_MEMORY_BYTES is '%s': it can be 4096 to 2^40; it is 4 GiB", wanted);
      limit = 4ull << 30;
    }
  }
  return limit;
}

int result(Error error) {
  if (error != kSuccess) last_error = error;
  return error;
}

Error ready() {
  if (!device()) return kNoDevice;
  checks_on(), last_to_first(), virtual_time(), counts_lds_cycles();  // all settings are read at the same time
  return ready_memory() && ready_lds() && ready_fibers() ? kSuccess : kOutOfMemory;
}

}  // namespace rocattn::hostgpu

using namespace rocattn::hostgpu;

extern "C" {

HOSTGPU_EXPORT int hipInit(unsigned flags) {
  Lock lock;
  return result(flags ? kInvalidValue : ready());
}

HOSTGPU_EXPORT int hipRuntimeGetVersion(int* version) {
  if (!version) return result(kInvalidValue);
  *version = kRuntimeVersion;
  return kSuccess;
}
HOSTGPU_EXPORT int hipDriverGetVersion(int* version) { return hipRuntimeGetVersion(version); }

HOSTGPU_EXPORT int hipGetDeviceCount(int* count) {
  Lock lock;
  if (!count) return result(kInvalidValue);
  *count = device() ? 1 : 0;
  return result(device() ? kSuccess : kNoDevice);
}
HOSTGPU_EXPORT int hipGetDevice(int* index) {
  if (!index) return result(kInvalidValue);
  *index = 0;
  return kSuccess;
}
HOSTGPU_EXPORT int hipSetDevice(int index) { return result(index == 0 ? kSuccess : kInvalidDevice); }

HOSTGPU_EXPORT int hipDeviceGetName(char* name, int bytes, int index) {
  Lock lock;
  if (!name || bytes <= 0) return result(kInvalidValue);
  if (index != 0 || !device()) return result(kInvalidDevice);
  snprintf(name, (size_t)bytes, kName, device()->arch);
  return kSuccess;
}

HOSTGPU_EXPORT int hipGetDevicePropertiesR0600(void* to, int index) {
  Lock lock;
  if (!to) return result(kInvalidValue);
  if (index != 0 || !device()) return result(kInvalidDevice);
  const Device& d = *device();
  rocattn::HipProperties p;
  memset(&p, 0, sizeof p);
  snprintf(p.name, sizeof p.name, kName, d.arch);
  snprintf(p.gcnArchName, sizeof p.gcnArchName, "%s", d.arch);
  p.totalGlobalMem = memory_limit();
  p.sharedMemPerBlock = p.sharedMemPerBlockOptin = p.sharedMemPerMultiprocessor = d.lds_bytes;
  p.maxSharedMemoryPerMultiProcessor = d.lds_bytes;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.warpSize = (int)d.wave;
  p.maxThreadsPerBlock = (int)kMaxThreads;
  p.maxThreadsPerMultiProcessor = kThreadsPerUnit;
  for (int& extent : p.maxThreadsDim) extent = (int)kMaxThreads;
  p.maxGridSize[0] = 0x7fffffff;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.multiProcessorCount = (int)d.compute_units;
  p.major = (int)d.major;
  p.minor = (int)d.minor;
  p.canMapHostMemory = p.unifiedAddressing = 1;
  memcpy(to, &p, sizeof p);
  return kSuccess;
}

HOSTGPU_EXPORT int hipDeviceGetAttribute(int* value, int attribute, int index) {
  Lock lock;
  if (!value) return result(kInvalidValue);
  if (index != 0 || !device()) return result(kInvalidDevice);
  const Device& d = *device();
  switch (attribute) {
    case 23: *value = (int)d.major; return kSuccess;                          // ComputeCapabilityMajor
    case 61: *value = (int)d.minor; return kSuccess;                          // ComputeCapabilityMinor
    case 26: case 27: case 28: case 56: *value = (int)kMaxThreads; return kSuccess;  // MaxBlockDim, MaxThreadsPerBlock
    case 29: *value = 0x7fffffff; return kSuccess;                            // MaxGridDimX
    case 30: case 31: *value = 65535; return kSuccess;                        // MaxGridDimY, Z
    case 57: *value = kThreadsPerUnit; return kSuccess;                       // MaxThreadsPerMultiProcessor
    case 63: *value = (int)d.compute_units; return kSuccess;                  // MultiprocessorCount
    case 71: *value = 65536; return kSuccess;                                 // MaxRegistersPerBlock
    case 74: case 76: case 10002: *value = (int)d.lds_bytes; return kSuccess;  // shared memory of a block, a unit
    case 87: *value = (int)d.wave; return kSuccess;                           // WarpSize
    case 3: case 85: *value = 1; return kSuccess;                             // CanMapHostMemory, UnifiedAddressing
    case 0: case 6: case 10: case 16: case 24: case 67: case 68: case 69: case 88:  // what it has not, or is 0
      *value = 0;
      return kSuccess;
    default: return result(kInvalidValue);
  }
}

HOSTGPU_EXPORT int hipGetLastError() {
  Lock lock;
  const int error = last_error;
  last_error = kSuccess;
  return error;
}
HOSTGPU_EXPORT int hipPeekAtLastError() { return last_error; }

HOSTGPU_EXPORT const char* hipGetErrorName(int error) {
  switch (error) {
    case kSuccess: return "hipSuccess";
    case kInvalidValue: return "hipErrorInvalidValue";
    case kOutOfMemory: return "hipErrorOutOfMemory";
    case kNotInitialized: return "hipErrorNotInitialized";
    case kInvalidConfiguration: return "hipErrorInvalidConfiguration";
    case kNoDevice: return "hipErrorNoDevice";
    case kInvalidDevice: return "hipErrorInvalidDevice";
    case kNoBinaryForGpu: return "hipErrorNoBinaryForGpu";
    case kInvalidKernelFile: return "hipErrorInvalidKernelFile";
    case kInvalidHandle: return "hipErrorInvalidHandle";
    case kNotFound: return "hipErrorNotFound";
    case kNotReady: return "hipErrorNotReady";
    case kIllegalState: return "hipErrorIllegalState";
    case kCaptureUnsupported: return "hipErrorStreamCaptureUnsupported";
    case kCaptureInvalidated: return "hipErrorStreamCaptureInvalidated";
    case kCaptureMerge: return "hipErrorStreamCaptureMerge";
    case kCaptureUnmatched: return "hipErrorStreamCaptureUnmatched";
    case kCaptureUnjoined: return "hipErrorStreamCaptureUnjoined";
    case kCaptureIsolation: return "hipErrorStreamCaptureIsolation";
    case kCaptureImplicit: return "hipErrorStreamCaptureImplicit";
    case kCapturedEvent: return "hipErrorCapturedEvent";
    case kCaptureWrongThread: return "hipErrorStreamCaptureWrongThread";
    case kLaunchFailure: return "hipErrorLaunchFailure";
    default: return "hipErrorUnknown";
  }
}
HOSTGPU_EXPORT const char* hipGetErrorString(int error) {
  switch (error) {
    case kSuccess: return "no error";
    case kInvalidValue: return "invalid argument";
    case kOutOfMemory: return "out of memory";
    case kNotInitialized: return "initialization error";
    case kInvalidConfiguration: return "invalid configuration argument";
    case kNoDevice: return "no ROCm-capable device is detected";
    case kInvalidDevice: return "invalid device ordinal";
    case kNoBinaryForGpu: return "no kernel image is available for execution on the device";
    case kInvalidKernelFile: return "invalid kernel file";
    case kInvalidHandle: return "invalid resource handle";
    case kNotFound: return "named symbol not found";
    case kNotReady: return "device not ready";
    case kIllegalState: return "the operation cannot be performed in the present state";
    case kCaptureUnsupported: return "operation not permitted when stream is capturing";
    case kCaptureInvalidated: return "operation failed due to a previous error during capture";
    case kCaptureMerge: return "operation would result in a merge of separate capture sequences";
    case kCaptureUnmatched: return "capture was not ended in the same stream as it began";
    case kCaptureUnjoined: return "capturing stream has unjoined work";
    case kCaptureIsolation: return "dependency created on uncaptured work in another stream";
    case kCaptureImplicit: return "operation would make the legacy stream depend on a capturing blocking stream";
    case kCapturedEvent: return "operation not permitted on an event last recorded in a capturing stream";
    case kCaptureWrongThread: return "attempt to terminate a thread-local capture sequence from another thread";
    case kLaunchFailure: return "unspecified launch failure";
    default: return "unknown error";
  }
}

}  // extern "C"
