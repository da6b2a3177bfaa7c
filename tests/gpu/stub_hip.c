/* A HIP runtime that computes nothing: it remembers what it was told, and fails where the environment says so. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stub_properties.h"

enum { OUT_OF_MEMORY = 2, TOTAL = 1 << 20 };

static char log_text[1 << 16];
static size_t in_use, events;

static int scripted(const char* name) { return getenv(name) ? atoi(getenv(name)) : 0; }
static void note(const char* text) { strncat(log_text, text, sizeof log_text - strlen(log_text) - 1); }

const char* stub_log(void) { return log_text; }
void stub_clear(void) { log_text[0] = 0; }
int hipInit(unsigned flags) { return (int)(flags * 0); }
int hipRuntimeGetVersion(int* version) { return *version = 70253211, 0; }
static const char* arch_of(int device) { /* STUB_ARCH has a word for each device */
    const char* word = getenv("STUB_ARCH") ? getenv("STUB_ARCH") : "gfx1100";
    while (word && device--) word = (word = strchr(word, ' ')) ? word + 1 : 0;
    return word;
}
int hipGetDeviceCount(int* count) {
    for (*count = 0; arch_of(*count);) ++*count;
    return 0;
}
static int current;
int hipGetDevice(int* device) { return *device = current, 0; }
int hipSetDevice(int device) {
    char text[32];
    if (!arch_of(device)) return 101;
    snprintf(text, sizeof text, "device %d;", device);
    if (device != current) note(text); /* of one device nothing is noted */
    return current = device, 0;
}
int hipGetDevicePropertiesR0600(Properties* p, int device) {
    if (!arch_of(device)) return 101;
    strcpy(p->name, "stub");
    sscanf(arch_of(device), "%255s", (char*)p + ARCH_OFFSET);
    p->totalGlobalMem = TOTAL;
    p->multiProcessorCount = 1;
    p->warpSize = 32;
    return 0;
}
int hipDeviceGetPCIBusId(char* id, int length, int device) {
    return snprintf(id, (size_t)length, "0000:%02x:00.0", 3 + device), 0;
}
int hipMalloc(void** pointer, size_t bytes) {
    if (in_use + bytes > TOTAL) return OUT_OF_MEMORY;
    size_t* block = malloc(bytes + 64);
    *block = bytes;
    in_use += bytes;
    return *pointer = (char*)block + 64, 0;
}
int hipFree(void* pointer) {
    size_t* block = (size_t*)((char*)pointer - 64);
    in_use -= *block;
    free(block);
    return 0;
}
int hipMemGetInfo(size_t* free_bytes, size_t* total) { return *free_bytes = TOTAL - in_use, *total = TOTAL, 0; }
int hipHostMalloc(void** pointer, size_t bytes, unsigned flags) { return *pointer = malloc(bytes + flags), 0; }
int hipHostFree(void* pointer) { return free(pointer), 0; }
int hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) {
    note(kind == 1 ? "upload;" : "download;");
    return memcpy(to, from, bytes), stream == (void*)-1;
}
int hipMemsetAsync(void* to, int value, size_t bytes, void* stream) {
    note("fill;");
    return memset(to, value, bytes), stream == (void*)-1;
}
int hipStreamCreate(void** stream) { return *stream = malloc(8), 0; }
int hipStreamSynchronize(void* stream) { return stream == (void*)-1 ? 400 : scripted("STUB_SYNC"); }
int hipStreamGetCaptureInfo(void* stream, int* status, unsigned long long* number) {
    return *status = 0, *number = 0, stream == 0; /* none is captured, and the default stream is not asked */
}
int hipEventCreate(void** event) { return *event = calloc(1, sizeof(size_t)), 0; }
int hipEventDestroy(void* event) { return free(event), 0; }
int hipEventSynchronize(void* event) {
    note("wait;");
    return event == 0;
}
int hipEventQuery(void* event) { return event && !getenv("STUB_IDLE") ? 600 : 0; } /* busy, or done at once */
int hipEventRecord(void* event, void* stream) { /* the n-th one is recorded at n * n ms */
    note("event;");
    return *(size_t*)event = ++events, stream == (void*)-1;
}
int hipEventElapsedTime(float* ms, void* start, void* stop) {
    const size_t a = *(size_t*)start, b = *(size_t*)stop;
    return *ms = (float)(b * b - a * a), 0;
}
int hipModuleLoadData(void** module, const void* image) { return *module = (void*)image, scripted("STUB_LOAD"); }
int hipModuleGetFunction(void** function, void* module, const char* name) {
    note("function ");
    note(name);
    note(";");
    return *function = strdup(name), module == 0;
}
int hipModuleLaunchKernel(const char* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned lds, void* stream, void** params, void** extra) {
    char line[4096];
    const uint8_t* bytes = extra[1];
    const size_t size = *(size_t*)extra[3];
    const int whole = extra[0] == (void*)1 && extra[2] == (void*)2 && extra[4] == (void*)3 && !params;
    if (getenv("STUB_QUIET")) return 0;
    int used = snprintf(line, sizeof line, "%s %u,%u,%u %u,%u,%u %u %zu %d ", function, gx, gy, gz, bx, by, bz, lds,
                        (size_t)stream, whole);
    for (size_t i = 0; i < size && used < 4000; i++) used += snprintf(line + used, 3, "%02x", bytes[i]);
    note(line);
    note(";");
    return scripted("STUB_LAUNCH");
}
