/* Implements gpu_errors.h, and cuda_check, cuda_launched and cuda_allow_shared of operators.h. */
#include "kernels/cuda/gpu_errors.h"
#include "kernels/cuda/operators.h"

#include <stdio.h>

#if CUDART_VERSION < 12080
#error "CUDA 12.8 or later is needed; make CUDA=0 builds without"
#endif

/* Errors after which the CUDA context fails every later call; a new context needs a new process.
 * cudaErrorUnknown is included because the driver's state is then undefined. */
static bool loses_context(cudaError_t code) {
    switch (code) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
        return true;
    default:
        return false;
    }
}

enum status cuda_check(cudaError_t code, const char *what, struct error *e) {
    if (code == cudaSuccess) return OK;
    (void)cudaGetLastError(); /* clears CUDA's last error, unless the context is lost */
    bool memory = code == cudaErrorMemoryAllocation;
    if (loses_context(code))
        error_set(e, DEVICE, "GPU error, the CUDA context is lost: %s failed", what);
    else
        error_set(e, memory ? MEMORY : DEVICE,
                  memory ? "out of GPU memory: %s failed" : "CUDA error: %s failed", what);
    error_found(e, "%s, %s", cudaGetErrorName(code), cudaGetErrorString(code));
    if (loses_context(code)) error_expected(e, "a restart of this program (a lost GPU needs a new process)");
    return e->code;
}

enum status cuda_launched(const struct op *op, struct error *e) {
    return cuda_check(cudaGetLastError(), op_name(op->kind), e);
}

enum status cuda_allow_shared(const void *kernel, int bytes, const char *what, struct error *e) {
    char call[64];
    snprintf(call, sizeof call, "cudaFuncSetAttribute (%s)", what);
    if (cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), call,
                   e) != OK)
        return e->code;
    return cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                           cudaSharedmemCarveoutMaxShared),
                      "cudaFuncSetAttribute (carveout)", e);
}

void gpu_errors_init(struct gpu_errors *f) {
    *f = (struct gpu_errors){0};
    pthread_mutex_init(&f->lock, NULL);
}

void gpu_errors_destroy(struct gpu_errors *f) {
    pthread_mutex_destroy(&f->lock);
}

bool gpu_errors_lost(struct gpu_errors *f) {
    return atomic_load(&f->lost);
}

static void store_error(struct gpu_errors *f, const struct error *e, const char *what, bool lost) {
    struct error later = *e;
    if (lost) {
        later = (struct error){0};
        error_set(&later, DEVICE,
                  "the GPU was lost after an earlier error" WHERE "%s" FOUND "%s" EXPECTED "%s", what,
                  e->found, e->expected);
    }
    pthread_mutex_lock(&f->lock);
    if (f->first.code == OK || (lost && !atomic_load(&f->lost))) f->first = later;
    if (lost) atomic_store(&f->lost, true);
    atomic_store(&f->pending, true);
    pthread_mutex_unlock(&f->lock);
}

enum status gpu_errors_take(struct gpu_errors *f, struct error *e) {
    if (!atomic_load(&f->pending)) return OK;
    pthread_mutex_lock(&f->lock);
    struct error first = f->first;
    if (!atomic_load(&f->lost)) {
        f->first = (struct error){0};
        atomic_store(&f->pending, false);
    }
    pthread_mutex_unlock(&f->lock);
    if (e->code == OK) *e = first;
    return e->code;
}

enum status gpu_errors_check(struct gpu_errors *f, cudaError_t code, const char *what, struct error *e) {
    struct error failed = {0};
    if (cuda_check(code, what, &failed) == OK) return OK;
    if (loses_context(code)) store_error(f, &failed, what, true);
    if (e->code == OK) *e = failed;
    return e->code;
}

bool gpu_errors_note(struct gpu_errors *f, cudaError_t code, const char *what) {
    struct error failed = {0};
    if (cuda_check(code, what, &failed) == OK) return true;
    failed.code = DEVICE; /* DEVICE, not MEMORY, because MEMORY promises that the failed call had no effect */
    store_error(f, &failed, what, loses_context(code));
    return false;
}
