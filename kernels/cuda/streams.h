/* Compute stream and copy stream: events, fences, and the seconds that operators waited for copies. See
 * device.h.
 *
 * No CUDA object is created between opening and closing: events come from two tables that are reused in
 * rotation. A table entry is reused only after the entry's work has finished; the host waits if necessary.
 * The host therefore runs ahead of the GPU by a bounded number of visits and copies, and an event or fence
 * that is no longer in its table has passed.
 *
 * No deadlock is possible: a waiting thread holds nothing that queued work needs, and queued work waits only
 * for work queued before it. */
#ifndef SLUICE_CUDA_STREAMS_H
#define SLUICE_CUDA_STREAMS_H

#include "engine/base/sys.h"
#include "kernels/cuda/gpu_errors.h"

#include <stddef.h>
#include <stdint.h>

struct streams;

/* Opens the streams of the current GPU. The streams compute and copies, and errors, must outlive the result.
 * NULL with MEMORY or DEVICE. */
struct streams *streams_open(struct sys *sys, cudaStream_t compute, cudaStream_t copies,
                             struct gpu_errors *errors, struct error *e);
void streams_close(struct streams *streams);

/* Only the thread that runs operators may call these functions; it calls streams_runs before queueing each
 * operator. */
void streams_runs(struct streams *streams);
uint64_t streams_record_event(struct streams *streams);
void streams_await(struct streams *streams, uint64_t fence);
enum status streams_wait(struct streams *streams, double *stalled, struct error *e);

/* Any thread may call these functions. */
uint64_t streams_copy(struct streams *streams, void *to, const void *from, size_t bytes, uint64_t event);
void streams_wait_copy(struct streams *streams, uint64_t fence);
/* Copies within GPU memory and blocks until the copy is done. */
void streams_move(struct streams *streams, void *to, const void *from, size_t bytes);
/* Blocks the host until compute and copy stream are empty. Only one thread at a time may call it. */
void streams_finish(struct streams *streams);

#endif
