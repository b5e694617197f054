/* Emulated CUDA devices, versions, errors, kernel attributes, and driver functions by name. */
#include "internal.h"

#include <cuda.h>
#include <stdio.h>

static EMU_THREAD_LOCAL cudaError_t last;
static uint32_t sticky;
quiet_lock copying;

/* Returns whether the error makes a CUDA context unusable, according to CUDA's documentation. */
bool is_sticky(cudaError_t error) {
    static const cudaError_t sticky_ones[] = {cudaErrorECCUncorrectable,
                                              cudaErrorNvlinkUncorrectable,
                                              cudaErrorContained,
                                              cudaErrorIllegalAddress,
                                              cudaErrorLaunchTimeout,
                                              cudaErrorContextIsDestroyed,
                                              cudaErrorAssert,
                                              cudaErrorHardwareStackError,
                                              cudaErrorIllegalInstruction,
                                              cudaErrorMisalignedAddress,
                                              cudaErrorInvalidAddressSpace,
                                              cudaErrorInvalidPc,
                                              cudaErrorLaunchFailure,
                                              cudaErrorTensorMemoryLeak,
                                              cudaErrorMpsClientTerminated,
                                              cudaErrorExternalDevice,
                                              cudaErrorUnknown};
    for (cudaError_t one : sticky_ones)
        if (error == one) return true;
    return false;
}

cudaError_t struck() {
    return (cudaError_t)__atomic_load_n(&sticky, __ATOMIC_ACQUIRE);
}

void strike(cudaError_t error) {
    lock(&copying);
    __atomic_store_n(&sticky, (uint32_t)error, __ATOMIC_RELEASE);
    unlock(&copying);
}

cudaError_t report(cudaError_t error) {
    if (error) last = error;
    if (is_sticky(error)) strike(error);
    return error;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = struck() ? struck() : last;
    last = cudaSuccess;
    return error;
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

const char *cudaGetErrorName(cudaError_t error) {
    for (auto &e : errors)
        if (e.error == error) return e.name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
    for (auto &e : errors)
        if (e.error == error) return e.text;
    return "unrecognized error code";
}

static cudaError_t driver_there() {
    if (now.driver < CUDART_VERSION / 1000 * 1000) return cudaErrorInsufficientDriver;
    return now.devices ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t need_device() {
    return struck() ? struck() : driver_there();
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = now.driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 0;
    cudaError_t bad = driver_there();
    if (!bad) *count = now.devices;
    return report(bad);
}

static cudaError_t device_valid(int device) {
    cudaError_t bad = driver_there();
    return bad ? bad : device < 0 || device >= now.devices ? cudaErrorInvalidDevice : cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    cudaError_t bad = device_valid(device);
    if (bad) return report(bad);
    *p = cudaDeviceProp{};
    snprintf(p->name, sizeof p->name, "Emulated GPU %d", device);
    p->totalGlobalMem = now.bytes;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = now.shared;
    p->sharedMemPerMultiprocessor = now.shared + (1 << 10);
    p->regsPerBlock = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->major = now.major, p->minor = now.minor;
    p->integrated = now.integrated;
    p->multiProcessorCount = 1;
    p->canMapHostMemory = p->unifiedAddressing = p->concurrentKernels = p->asyncEngineCount = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    cudaDeviceProp p;
    cudaError_t bad = cudaGetDeviceProperties(&p, device);
    if (bad) return bad;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = p.maxThreadsPerBlock;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = (int)p.sharedMemPerBlock;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        break;
    case cudaDevAttrIntegrated:
        *value = p.integrated;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)p.sharedMemPerBlockOptin;
        break;
    default:
        return report(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *bus, int bytes, int device) {
    cudaError_t bad = device_valid(device);
    if (!bad) snprintf(bus, (size_t)bytes, "0000:%02X:00.0", 0xC1 + device);
    return report(bad);
}

cudaError_t cudaSetDevice(int device) {
    cudaError_t bad = device_valid(device);
    if (!bad) make_context();
    return report(bad);
}

enum { KERNELS = 1024 };

static quiet_lock kernels_lock;
static struct {
    const void *function;
    size_t bytes;
    bool loaded;
} kernels[KERNELS];
static int n_kernels, n_loaded; /* n_loaded: 1 if the code of any kernel is loaded, else 0 */

/* Returns the kernel's index in the table; the caller holds the lock. */
static int kernel_place(const void *function) {
    int i = 0;
    while (i < n_kernels && kernels[i].function != function) i++;
    if (i == KERNELS) refuse("more than %d kernels", KERNELS);
    if (i == n_kernels) kernels[n_kernels++] = {function, 48 << 10, false};
    return i;
}

bool kernels_there() {
    return __atomic_load_n(&n_loaded, __ATOMIC_ACQUIRE);
}

bool kernel_loaded(const void *function) {
    lock(&kernels_lock);
    int i = kernel_place(function);
    bool before = kernels[i].loaded;
    kernels[i].loaded = true;
    __atomic_store_n(&n_loaded, 1, __ATOMIC_RELEASE);
    unlock(&kernels_lock);
    return before;
}

size_t shared_limit(const void *function) {
    lock(&kernels_lock);
    size_t bytes = kernels[kernel_place(function)].bytes;
    unlock(&kernels_lock);
    return bytes;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > 99 << 10)
        refuse("cudaFuncSetAttribute: %d bytes of shared memory; sm_86, sm_89 and sm_120 have 101376", value);
    lock(&kernels_lock);
    kernels[kernel_place(function)].bytes = (size_t)value;
    unlock(&kernels_lock);
    return report(struck());
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
    cudaError_t bad = need_device();
    if (bad) return report(bad);
    kernel_loaded(function);
    *attributes = cudaFuncAttributes{};
    attributes->maxThreadsPerBlock = 1024;
    attributes->binaryVersion = 10 * now.major + now.minor;
    attributes->ptxVersion = now.compiled_for ? now.compiled_for : attributes->binaryVersion;
    attributes->maxDynamicSharedSizeBytes = (int)shared_limit(function);
    return cudaSuccess;
}

#define ENTRY(name)                                                                                          \
    { #name, reinterpret_cast < void *>(name) }
static const struct {
    const char *name;
    void *function;
} entries[] = {ENTRY(cuMemGetAllocationGranularity),
               ENTRY(cuMemAddressReserve),
               ENTRY(cuMemAddressFree),
               ENTRY(cuMemCreate),
               ENTRY(cuMemRelease),
               ENTRY(cuMemMap),
               ENTRY(cuMemUnmap),
               ENTRY(cuMemSetAccess),
               ENTRY(cuDeviceGetAttribute)};

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned,
                                             unsigned long long,
                                             enum cudaDriverEntryPointQueryResult *result) {
    *function = nullptr;
    if (!now.driver) return report(cudaErrorInsufficientDriver);
    for (auto &e : entries)
        if (!strcmp(e.name, symbol)) *function = e.function;
    if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
