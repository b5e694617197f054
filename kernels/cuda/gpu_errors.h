/* CUDA errors of one device.
 *
 * Three kinds: out of memory (no side effect; a smaller request may work), a lost GPU (the CUDA context is
 * destroyed and every later call fails), and all other errors. After a lost GPU no CUDA function is called
 * any more; every request returns the error of the loss at once. */
#ifndef SLUICE_CUDA_GPU_ERRORS_H
#define SLUICE_CUDA_GPU_ERRORS_H

#include "engine/base/error.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Error state of one device. All functions are thread-safe. */
struct gpu_errors {
    atomic_bool lost;     /* the GPU is lost, permanently */
    atomic_bool pending;  /* an error is not yet reported, or the GPU is lost */
    pthread_mutex_t lock; /* guards the fields below */
    struct error first;
};

void gpu_errors_init(struct gpu_errors *errors);
void gpu_errors_destroy(struct gpu_errors *errors);
bool gpu_errors_lost(struct gpu_errors *errors);
/* Returns OK or the error recorded since the last call; for a lost GPU always the error of the loss. */
enum status gpu_errors_take(struct gpu_errors *errors, struct error *e);
/* Converts a CUDA result to a status and fills e (OK on entry). Remembers a lost GPU. what: the failed call,
 * a noun for the message. */
enum status gpu_errors_check(struct gpu_errors *errors, cudaError_t code, const char *what, struct error *e);
/* Records a CUDA error in a function that cannot return an error. Later gpu_errors_take returns the first
 * recorded error, as DEVICE: by then other code relies on the failed action, so a retry is impossible.
 * Returns true if the code is success. */
bool gpu_errors_note(struct gpu_errors *errors, cudaError_t code, const char *what);

#endif
