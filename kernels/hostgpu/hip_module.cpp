// Modules: shared objects that rocattn/toolchain/hostgpu.py compiles from kernels, given as a pointer to their bytes.
#include "hip.h"

extern "C" {
int memfd_create(const char*, unsigned);
void* dlopen(const char*, int);
void* dlsym(void*, const char*);
int dlclose(void*);
char* dlerror(void);
}

namespace rocattn::hostgpu {
namespace {

constexpr unsigned kAmdgpu = 224;  // EM_AMDGPU
#if defined(__x86_64__)
constexpr unsigned kThisMachine = 62;  // EM_X86_64
#else
constexpr unsigned kThisMachine = 183;  // EM_AARCH64
#endif
constexpr unsigned kSharedObject = 3, kNoBits = 8;  // ET_DYN, SHT_NOBITS
constexpr int kNow = 2;                             // RTLD_NOW
constexpr unsigned kMaxArgumentBytes = 4096;

struct Elf {
  uint8_t ident[16];
  uint16_t type, machine;
  uint32_t version;
  uint64_t entry, program_headers, sections;
  uint32_t flags;
  uint16_t header_bytes, program_header_bytes, program_header_count, section_bytes, section_count, names;
};
struct ProgramHeader {
  uint32_t type, flags;
  uint64_t offset, address, physical, bytes, memory_bytes, align;
};
struct Section {
  uint32_t name, type;
  uint64_t flags, address, offset, bytes;
  uint32_t link, info;
  uint64_t align, entry_bytes;
};

struct Loaded {
  void* handle;
  int file;
  Function* functions;
  Loaded* next;
};
Loaded* modules;

uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

// A file's length by its own headers: nobody else tells.
uint64_t length_of(const uint8_t* image, const Elf& elf) {
  uint64_t end = larger(elf.program_headers + (uint64_t)elf.program_header_bytes * elf.program_header_count,
                        elf.sections + (uint64_t)elf.section_bytes * elf.section_count);
  for (unsigned i = 0; i < elf.program_header_count; i++) {
    ProgramHeader header;
    memcpy(&header, image + elf.program_headers + (uint64_t)i * elf.program_header_bytes, sizeof header);
    end = larger(end, header.offset + header.bytes);
  }
  for (unsigned i = 0; i < elf.section_count; i++) {
    Section section;
    memcpy(&section, image + elf.sections + (uint64_t)i * elf.section_bytes, sizeof section);
    if (section.type != kNoBits) end = larger(end, section.offset + section.bytes);
  }
  return end;
}

bool write_all(int file, const uint8_t* from, uint64_t bytes) {
  while (bytes) {
    const long written = write(file, from, bytes);
    if (written <= 0) return false;
    from += written;
    bytes -= (uint64_t)written;
  }
  return true;
}

Error check(const uint8_t* image, const Elf& elf) {
  if (memcmp(image, "\177ELF\2\1", 6) != 0) {
    complain("hipModuleLoadData was given something that is no 64-bit ELF file");
    return kInvalidKernelFile;
  }
  if (elf.machine == kAmdgpu) {
    complain("hipModuleLoadData was given code for a real GPU; the stand-in runs what compile_hostgpu makes");
    return kNoBinaryForGpu;
  }
  if (elf.machine != kThisMachine || elf.type != kSharedObject) {
    complain("hipModuleLoadData was given an ELF file that is no shared object for this CPU");
    return kNoBinaryForGpu;
  }
  return kSuccess;
}

Error adopt(void* handle) {
  const auto* module = (const Module*)dlsym(handle, "rocattn_hostgpu_module");
  if (!module) {
    complain("hipModuleLoadData was given a shared object that is no kernel of rocattn");
    return kInvalidKernelFile;
  }
  if (module->abi != ABI) {
    complain("the kernel was compiled for version %u of the stand-in, this is version %u", module->abi, ABI);
    return kInvalidKernelFile;
  }
  if (strcmp(module->arch, device()->arch) != 0) {
    complain("the kernel was compiled for %s, ROCATTN_HOSTGPU_ARCH is %s", module->arch, device()->arch);
    return kNoBinaryForGpu;
  }
  *module->runtime = &runtime;
  return kSuccess;
}

Error load(Loaded** to, const uint8_t* image) {
  if (const Error error = ready()) return error;
  Elf elf;
  memcpy(&elf, image, sizeof elf);
  if (const Error error = check(image, elf)) return error;
  const int file = memfd_create("rocattn-kernel", 1);  // MFD_CLOEXEC
  if (file < 0) return kOutOfMemory;
  Error error = kOutOfMemory;
  void* handle = nullptr;
  if (write_all(file, image, length_of(image, elf))) {
    char path[40];  // stays unique: the file is open as long as the module is loaded
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    handle = dlopen(path, kNow);
    if (!handle) complain("the kernel does not load: %s", dlerror());
    error = handle ? adopt(handle) : kInvalidKernelFile;
  }
  auto* made = error ? nullptr : (Loaded*)malloc(sizeof(Loaded));
  if (made) {
    *made = {handle, file, nullptr, modules};
    modules = *to = made;
    return kSuccess;
  }
  if (handle) dlclose(handle);
  close(file);
  return error ? error : kOutOfMemory;
}

Error find(Function** to, Loaded* module, const char* name) {
  char symbol[160];
  snprintf(symbol, sizeof symbol, "rocattn_kernel_%s", name);
  const auto* kernel = (const Kernel*)dlsym(module->handle, symbol);
  if (!kernel) return kNotFound;
  for (Function* f = module->functions; f; f = f->next)
    if (f->kernel == kernel) return *to = f, kSuccess;
  auto* made = (Function*)malloc(sizeof(Function));
  if (!made) return kOutOfMemory;
  made->kernel = kernel;
  snprintf(made->name, sizeof made->name, "%s", name);
  made->next = module->functions;
  module->functions = *to = made;
  return kSuccess;
}

bool known_module(const Loaded* module) {
  for (const Loaded* m = modules; m; m = m->next)
    if (m == module) return true;
  return false;
}

// The two ways of giving arguments: an address for each, or a list with HIP_LAUNCH_PARAM_BUFFER_POINTER (1) before the
// address of all, HIP_LAUNCH_PARAM_BUFFER_SIZE (2) before that of their size, and HIP_LAUNCH_PARAM_END (3), in exactly
// this order: HIP looks at fixed places.
Error arguments_of(const Kernel& kernel, void** each, void** extra, uint8_t* buffer, uint64_t* bytes) {
  *bytes = 0;
  if (each) {
    for (unsigned i = 0; i < kernel.parameter_count; i++) {
      if (!each[i]) return kInvalidValue;
      memcpy(buffer + kernel.parameters[i].offset, each[i], kernel.parameters[i].size);
    }
    *bytes = kernel.argument_bytes;
    return extra ? kInvalidValue : kSuccess;
  }
  if (!extra) return kernel.parameter_count ? kInvalidValue : kSuccess;
  if (extra[0] != (void*)1 || extra[2] != (void*)2 || extra[4] != (void*)3) return kInvalidValue;
  *bytes = *(const size_t*)extra[3];
  if (*bytes > kMaxArgumentBytes || (*bytes && !extra[1])) return kInvalidValue;
  memcpy(buffer, extra[1], *bytes);
  return kSuccess;
}

}  // namespace

bool known_function(const Function* function) {
  for (const Loaded* m = modules; m; m = m->next)
    for (const Function* f = m->functions; f; f = f->next)
      if (f == function) return true;
  return false;
}

Error run_kernel(const Work& w) {
  return launch(*w.function, w.grid, w.block, w.lds_bytes, w.arguments, w.bytes) ? kSuccess : kLaunchFailure;
}

}  // namespace rocattn::hostgpu

using namespace rocattn::hostgpu;

extern "C" {

HOSTGPU_EXPORT int hipModuleLoadData(Loaded** to, const void* image) {
  Lock lock;
  if (!to || !image) return result(kInvalidValue);
  *to = nullptr;
  return result(load(to, (const uint8_t*)image));
}

HOSTGPU_EXPORT int hipModuleUnload(Loaded* module) {
  Lock lock;
  for (Loaded** link = &modules; *link; link = &(*link)->next) {
    if (*link != module) continue;
    *link = module->next;
    while (Function* f = module->functions) {
      module->functions = f->next;
      free(f);
    }
    dlclose(module->handle);
    close(module->file);
    free(module);
    return kSuccess;
  }
  return result(kInvalidHandle);
}

HOSTGPU_EXPORT int hipModuleGetFunction(Function** to, Loaded* module, const char* name) {
  Lock lock;
  if (!to || !name) return result(kInvalidValue);
  *to = nullptr;
  return result(known_module(module) ? find(to, module, name) : kInvalidHandle);
}

HOSTGPU_EXPORT int hipFuncGetAttribute(int* value, int attribute, Function* function) {
  Lock lock;
  if (!value || !known_function(function)) return result(kInvalidValue);
  if (attribute != 0) return result(kInvalidValue);  // HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK is all there is
  *value = (int)function->kernel->threads;
  return kSuccess;
}

HOSTGPU_EXPORT int hipModuleLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                         unsigned block_x, unsigned block_y, unsigned block_z, unsigned lds_bytes,
                                         Stream* stream, void** each, void** extra) {
  Lock lock;
  if (!known_function(function) || !stream_of(stream)) return result(kInvalidHandle);
  static uint8_t buffer[kMaxArgumentBytes];
  Work work = {};
  work.function = function;
  work.lds_bytes = lds_bytes;
  work.arguments = buffer;
  const unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
  for (unsigned i = 0; i < 3; i++) {
    if (!grid[i] || !block[i]) return result(kInvalidConfiguration);
    work.grid[i] = grid[i];
    work.block[i] = block[i];
  }
  if (const Error error = arguments_of(*function->kernel, each, extra, buffer, &work.bytes)) return result(error);
  return result(submit(stream, work));
}

}  // extern "C"
