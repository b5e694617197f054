/* A CUDA device to measure on: memory for one case at a time, filled, and the seconds of what is queued
 * there. Works on a GPU and on the emulated one (CONFIG=emu), where times mean nothing. */
#ifndef SLUICE_BENCH_GPU_RIG_H
#define SLUICE_BENCH_GPU_RIG_H

#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/costs.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/cublaslt.h"

struct rig {
    struct sys sys;
    struct cuda *cuda;
    struct device *device; /* the same */
    char *noise;           /* pinned: what memory is filled with */
    char *memory;          /* of the case at hand */
    uint64_t bytes;
    double seconds_a_case; /* repetitions end about there */
};

/* GPU 0. */
enum status rig_open(struct rig *rig, double seconds_a_case, struct error *e);
void rig_close(struct rig *rig);

/* Memory on the GPU, filled with small numbers of random mantissas, as f32 and as bf16: with constants the
 * tensor cores take less power and run faster than they ever will. Until rig_give. MEMORY. */
enum status rig_take(struct rig *rig, uint64_t bytes, struct error *e);
void rig_give(struct rig *rig);

/* The median seconds of one call of queue, which queues the same work on rig->cuda->compute each time. Calls
 * stand in line behind each other; the first two are not counted. */
enum status rig_time(struct rig *rig, enum status (*queue)(void *user, struct error *e), void *user,
                     double *seconds, struct error *e);

#endif
