// The driver, its devices, and errors.
#include "cuda.h"

#include "../../kernels/hostgpu/properties.h"

extern "C" {
int pthread_mutex_lock(void*);
int pthread_mutex_unlock(void*);
}

namespace rocattn::hipcuda {
namespace {

constexpr int kRuntimeVersion = 70200000;  // HIP 7.2.0, whose interface this is
constexpr int kNow = 2;                    // RTLD_NOW
constexpr int kMaxDevices = 64;

// CUdevice_attribute
enum Attribute : int {
  kMaxThreadsPerBlock = 1,
  kMaxBlockX = 2,
  kMaxGridX = 5,
  kSharedPerBlock = 8,
  kWarpSize = 10,
  kRegistersPerBlock = 12,
  kClockRate = 13,
  kUnits = 16,
  kMemoryClockRate = 36,
  kBusWidth = 37,
  kL2Bytes = 38,
  kThreadsPerUnit = 39,
  kMajor = 75,
  kMinor = 76,
  kSharedPerUnit = 81,
  kRegistersPerUnit = 82,
  kSharedPerBlockOptin = 97,
};

alignas(64) char mutex[64];  // a pthread_mutex_t; all zeros is an unlocked one
Driver table;
enum { kUntried, kThere, kMissing } state;
Handle contexts[kMaxDevices];
thread_local int last_error;

bool load() {
  void* library = dlopen("libcuda.so.1", kNow);
  if (!library) return false;
#define ROCATTN_FIND(name, parameters) \
  if (!(table.name = (int(*) parameters)dlsym(library, #name))) return false;
  ROCATTN_CUDA_CALLS(ROCATTN_FIND)
#undef ROCATTN_FIND
  return table.cuInit(0) == 0;
}

// HIP's number for an error of CUDA's. Most are the same; bindings know no others than HIP's.
int hip_error(int status) {
  switch (status) {
    case 0: case 1: case 2: case 3: case 4: case 9: case 100: case 101: case 201: case 209: case 218: case 304:
    case 400: case 401: case 500: case 600: case 700: case 701: case 702: case 710: case 719: case 801:
    case 900: case 901: case 902: case 903: case 904: case 905: case 906: case 907: case 908:
      return status;
    case 200: case 222: case 223: return kNoBinaryForGpu;  // invalid image, PTX version, no JIT compiler
    case 713: case 714: case 715: case 716: case 717: case 718: return kLaunchFailure;  // what only CUDA tells apart
    default: return kUnknown;
  }
}

int attribute(Attribute which, int device) {
  int value = 0;
  return driver()->cuDeviceGetAttribute(&value, which, device) ? 0 : value;
}

}  // namespace

Lock::Lock() { pthread_mutex_lock(mutex); }
Lock::~Lock() { pthread_mutex_unlock(mutex); }

const Driver* driver() {
  Lock lock;
  if (state == kUntried) state = load() ? kThere : kMissing;
  return state == kThere ? &table : nullptr;
}

int result(int status) {
  const int error = hip_error(status);
  if (error != kSuccess && error != kNotReady) last_error = error;
  return error;
}

int ready() {
  if (!driver()) return kNoDevice;
  Handle context = nullptr;
  if (const int status = table.cuCtxGetCurrent(&context)) return status;
  return context ? 0 : hipSetDevice(0);
}

}  // namespace rocattn::hipcuda

using namespace rocattn::hipcuda;

extern "C" {

// That this is no HIP of AMD's.
HIPCUDA_EXPORT unsigned rocattn_hipcuda_version() { return 1; }

HIPCUDA_EXPORT int hipInit(unsigned flags) { return result(flags ? kInvalidValue : driver() ? 0 : kNoDevice); }

HIPCUDA_EXPORT int hipRuntimeGetVersion(int* version) {
  if (!version) return result(kInvalidValue);
  *version = kRuntimeVersion;
  return kSuccess;
}
HIPCUDA_EXPORT int hipDriverGetVersion(int* version) {
  return result(driver() ? driver()->cuDriverGetVersion(version) : kNoDevice);
}

HIPCUDA_EXPORT int hipGetDeviceCount(int* count) {
  if (!count) return result(kInvalidValue);
  *count = 0;
  if (!driver()) return result(kNoDevice);
  const int status = driver()->cuDeviceGetCount(count);
  return result(status ? status : *count ? kSuccess : kNoDevice);
}
HIPCUDA_EXPORT int hipGetDevice(int* index) { HIPCUDA_CALL(cuCtxGetDevice(index)); }

HIPCUDA_EXPORT int hipSetDevice(int index) {
  int count = 0, device = 0;
  if (const int status = hipGetDeviceCount(&count)) return status;
  if (index < 0 || index >= count || index >= kMaxDevices) return result(kInvalidDevice);
  if (const int status = driver()->cuDeviceGet(&device, index)) return result(status);
  // The primary context: the one that PyTorch uses, too.
  Lock lock;
  const int status = contexts[index] ? 0 : table.cuDevicePrimaryCtxRetain(&contexts[index], device);
  return result(status ? status : table.cuCtxSetCurrent(contexts[index]));
}

HIPCUDA_EXPORT int hipDeviceGetName(char* name, int bytes, int index) {
  HIPCUDA_CALL(cuDeviceGetName(name, bytes, index));
}

HIPCUDA_EXPORT int hipGetDevicePropertiesR0600(void* to, int index) {
  if (!to) return result(kInvalidValue);
  int device = 0;
  if (!driver()) return result(kNoDevice);
  if (driver()->cuDeviceGet(&device, index)) return result(kInvalidDevice);
  rocattn::HipProperties p;
  memset(&p, 0, sizeof p);
  driver()->cuDeviceGetName(p.name, sizeof p.name, device);
  driver()->cuDeviceTotalMem_v2(&p.totalGlobalMem, device);
  p.major = attribute(kMajor, device);
  p.minor = attribute(kMinor, device);
  snprintf(p.gcnArchName, sizeof p.gcnArchName, "sm_%d%d", p.major, p.minor);
  p.sharedMemPerBlock = (size_t)attribute(kSharedPerBlock, device);
  p.sharedMemPerBlockOptin = (size_t)attribute(kSharedPerBlockOptin, device);
  p.sharedMemPerMultiprocessor = p.maxSharedMemoryPerMultiProcessor = (size_t)attribute(kSharedPerUnit, device);
  p.regsPerBlock = attribute(kRegistersPerBlock, device);
  p.regsPerMultiprocessor = attribute(kRegistersPerUnit, device);
  p.warpSize = attribute(kWarpSize, device);
  p.maxThreadsPerBlock = attribute(kMaxThreadsPerBlock, device);
  p.maxThreadsPerMultiProcessor = attribute(kThreadsPerUnit, device);
  p.multiProcessorCount = attribute(kUnits, device);
  p.clockRate = attribute(kClockRate, device);
  p.memoryClockRate = attribute(kMemoryClockRate, device);
  p.memoryBusWidth = attribute(kBusWidth, device);
  p.l2CacheSize = attribute(kL2Bytes, device);
  for (int i = 0; i < 3; i++) {
    p.maxThreadsDim[i] = attribute((Attribute)(kMaxBlockX + i), device);
    p.maxGridSize[i] = attribute((Attribute)(kMaxGridX + i), device);
  }
  p.canMapHostMemory = p.unifiedAddressing = p.concurrentKernels = 1;
  memcpy(to, &p, sizeof p);
  return kSuccess;
}

HIPCUDA_EXPORT int hipDeviceGetAttribute(int* value, int which, int index) {
  if (!value || !driver()) return result(value ? kNoDevice : kInvalidValue);
  int device = 0;
  if (driver()->cuDeviceGet(&device, index)) return result(kInvalidDevice);
  switch (which) {  // hipDeviceAttribute_t
    case 23: *value = attribute(kMajor, device); return kSuccess;
    case 61: *value = attribute(kMinor, device); return kSuccess;
    case 26: case 27: case 28: *value = attribute((Attribute)(kMaxBlockX + which - 26), device); return kSuccess;
    case 29: case 30: case 31: *value = attribute((Attribute)(kMaxGridX + which - 29), device); return kSuccess;
    case 56: *value = attribute(kMaxThreadsPerBlock, device); return kSuccess;
    case 57: *value = attribute(kThreadsPerUnit, device); return kSuccess;
    case 63: *value = attribute(kUnits, device); return kSuccess;
    case 71: *value = attribute(kRegistersPerBlock, device); return kSuccess;
    case 74: *value = attribute(kSharedPerBlock, device); return kSuccess;
    case 87: *value = attribute(kWarpSize, device); return kSuccess;
    default: return result(kInvalidValue);
  }
}

HIPCUDA_EXPORT int hipDeviceSynchronize() { HIPCUDA_CALL(cuCtxSynchronize()); }

HIPCUDA_EXPORT int hipGetLastError() {
  const int error = last_error;
  last_error = kSuccess;
  return error;
}
HIPCUDA_EXPORT int hipPeekAtLastError() { return last_error; }

}  // extern "C"
