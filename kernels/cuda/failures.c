/* Failures: see failures.h; and cuda_check and cuda_launched of operators.h. */
#include "kernels/cuda/failures.h"
#include "kernels/cuda/operators.h"

#if CUDART_VERSION < 12080
#error "CUDA 12.8 or later is needed; make CUDA=0 builds without"
#endif

/* After these the context answers every call with the same error; only another process gets a new one. An
 * unknown error is among them because it comes from a driver that no longer knows its own state. */
static bool loses(cudaError_t code) {
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
    (void)cudaGetLastError(); /* resets what can be tried again */
    bool memory = code == cudaErrorMemoryAllocation;
    if (loses(code))
        error_set(e, DEVICE, "the GPU was lost: %s", what);
    else
        error_set(e, memory ? MEMORY : DEVICE, memory ? "no memory on the GPU: %s" : "the GPU refused: %s",
                  what);
    error_found(e, "%s, %s", cudaGetErrorName(code), cudaGetErrorString(code));
    if (loses(code)) error_expected(e, "this session closed, and another process");
    return e->code;
}

enum status cuda_launched(const struct op *op, struct error *e) {
    return cuda_check(cudaGetLastError(), op_name(op->kind), e);
}

/* ---- one device's ---- */

void failures_init(struct failures *f) {
    *f = (struct failures){0};
    pthread_mutex_init(&f->lock, NULL);
}

void failures_destroy(struct failures *f) {
    pthread_mutex_destroy(&f->lock);
}

bool failures_lost(struct failures *f) {
    return atomic_load(&f->lost);
}

/* What those who ask later hear of it. */
static void keep(struct failures *f, const struct error *e, const char *what, bool lost) {
    struct error later = *e;
    if (lost) {
        later = (struct error){0};
        error_set(&later, DEVICE, "the GPU was lost by an earlier error");
        error_where(&later, "%s", what);
        error_found(&later, "%s", e->found);
        error_expected(&later, "%s", e->expected);
    }
    pthread_mutex_lock(&f->lock);
    if (f->first.code == OK || (lost && !atomic_load(&f->lost))) f->first = later;
    if (lost) atomic_store(&f->lost, true);
    atomic_store(&f->pending, true);
    pthread_mutex_unlock(&f->lock);
}

enum status failures_take(struct failures *f, struct error *e) {
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

enum status failures_check(struct failures *f, cudaError_t code, const char *what, struct error *e) {
    struct error failed = {0};
    if (cuda_check(code, what, &failed) == OK) return OK;
    if (loses(code)) keep(f, &failed, what, true);
    if (e->code == OK) *e = failed;
    return e->code;
}

bool failures_note(struct failures *f, cudaError_t code, const char *what) {
    struct error failed = {0};
    if (cuda_check(code, what, &failed) == OK) return true;
    failed.code = DEVICE; /* MEMORY would say that nothing has happened */
    keep(f, &failed, what, loses(code));
    return false;
}
