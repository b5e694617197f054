/* The two streams: events, fences, and the seconds that operators waited. See device.h.
 *
 * Nothing is created between opening and closing: CUDA's events lie in two tables that are gone round. A
 * place is used again only once what it stood for has passed, for which the host waits if it must; so the
 * host runs ahead of the GPU by a bounded number of visits and copies, and a number that has left its table
 * has passed.
 *
 * No wait can close a circle: whoever waits holds nothing that work already queued needs, and queued work
 * waits only for work that was queued before it. */
#ifndef SLUICE_CUDA_STREAMS_H
#define SLUICE_CUDA_STREAMS_H

#include "engine/base/sys.h"
#include "kernels/cuda/failures.h"

#include <stddef.h>
#include <stdint.h>

struct streams;

/* For the current GPU; both streams and failures outlive it. MEMORY, DEVICE; NULL then. */
struct streams *streams_open(struct sys *sys, cudaStream_t compute, cudaStream_t copies,
                             struct failures *failures, struct error *e);
void streams_close(struct streams *streams);

/* Only the thread that runs operators: */

/* An operator is about to be queued. */
void streams_runs(struct streams *streams);
uint64_t streams_record_event(struct streams *streams);
void streams_await(struct streams *streams, uint64_t fence);
enum status streams_wait(struct streams *streams, double *stalled, struct error *e);

/* Any thread: */

uint64_t streams_copy(struct streams *streams, void *to, const void *from, size_t bytes, uint64_t event);
void streams_wait_copy(struct streams *streams, uint64_t fence);
/* Within the GPU's memory; waits until it is over. */
void streams_move(struct streams *streams, void *to, const void *from, size_t bytes);
/* Not two at once. */
void streams_finish(struct streams *streams);

#endif
