/* What goes wrong on a GPU, and what can still be done.
 *
 * Three kinds: no memory (nothing has happened, less may work), a lost GPU (the process's context is gone for
 * good and every further call fails), and the rest. After the second nobody calls CUDA any more: whatever is
 * asked for returns at once, with the error that was the first. */
#ifndef SLUICE_CUDA_FAILURES_H
#define SLUICE_CUDA_FAILURES_H

#include "engine/base/error.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Of one device. Any thread may call any of these. */
struct failures {
    atomic_bool lost;     /* for good */
    atomic_bool pending;  /* first holds what nobody has been told yet, or lost */
    pthread_mutex_t lock; /* guards what follows */
    struct error first;
};

void failures_init(struct failures *failures);
void failures_destroy(struct failures *failures);
bool failures_lost(struct failures *failures);
/* OK, or what was noted since the last time; if the GPU is lost that, always. */
enum status failures_take(struct failures *failures, struct error *e);
/* OK, or code as an error in e, which is OK on entry. A lost GPU is remembered. what: a noun. */
enum status failures_check(struct failures *failures, cudaError_t code, const char *what, struct error *e);
/* The same where there is nobody to tell: the first waits for failures_take, as DEVICE: by then others rely
 * on what did not happen, and whoever hears of it cannot try it again. Returns whether code is none. */
bool failures_note(struct failures *failures, cudaError_t code, const char *what);

#endif
