/* hipDeviceProp_tR0600, declared by its fields up to the last one that is read (hip_runtime_api.h of ROCm 6 and 7). */
#include <stddef.h>

typedef struct {
    char name[256], uuid[16], luid[8];
    unsigned luidDeviceNodeMask;
    size_t totalGlobalMem, sharedMemPerBlock;
    int regsPerBlock, warpSize;
    size_t memPitch;
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate;
    size_t totalConstMem;
    int major, minor;
    size_t textureAlignment, texturePitchAlignment;
    int deviceOverlap, multiProcessorCount;
} Properties;

enum { ARCH_OFFSET = 1160 }; /* of its gcnArchName */
