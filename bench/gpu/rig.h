/* Test rig on a CUDA device: memory for one case at a time, filled with data, and timing of queued work. Runs
 * on a GPU and on the emulated device (CONFIG=emu), where times are meaningless. */
#ifndef SLUICE_BENCH_GPU_RIG_H
#define SLUICE_BENCH_GPU_RIG_H

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/workspace.h"
#include "kernels/cuda/operators.h"

struct rig {
    struct sys sys;
    struct cuda *cuda;
    struct device *device; /* the device's interface: same object as cuda */
    char *noise;           /* pinned data that memory is filled with */
    char *memory;          /* memory of the current case */
    uint64_t bytes;
    double seconds_a_case; /* approximate limit for the repetitions of a case */
};

enum status rig_open(struct rig *rig, double seconds_a_case, struct error *e);
void rig_close(struct rig *rig);

/* Allocates GPU memory filled with small numbers of random mantissas (valid as f32 and bf16), until rig_give.
 * With constants the tensor cores would need less power and run faster than in practice. MEMORY. */
enum status rig_take(struct rig *rig, uint64_t bytes, struct error *e);
void rig_give(struct rig *rig);

/* Measures the median seconds of one call of queue, which queues the same work on rig->cuda->compute each
 * time. Calls run back to back; the first two are not counted. */
enum status rig_time(struct rig *rig, enum status (*queue)(void *user, struct error *e), void *user,
                     double *seconds, struct error *e);

#endif
