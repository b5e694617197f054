/* The order of the two streams: marks, tickets, and the seconds that operators waited. See device.h.
 *
 * Nothing is created between opening and closing: events lie in rings. A place in a ring is used again only
 * once what it stood for has passed, for which the host waits if it must; so the host runs ahead of the GPU
 * by a bounded number of visits and copies, and a number that has left its ring has passed.
 *
 * No wait can close a circle: whoever waits holds nothing that work already queued needs, and queued work
 * waits only for work that was queued before it. */
#ifndef SLUICE_CUDA_ORDER_H
#define SLUICE_CUDA_ORDER_H

#include "engine/base/sys.h"
#include "kernels/cuda/failures.h"

#include <stddef.h>
#include <stdint.h>

struct order;

/* For the current GPU; both streams and failures outlive it. MEMORY, DEVICE; NULL then. */
struct order *order_open(struct sys *sys, cudaStream_t compute, cudaStream_t copies,
                         struct failures *failures, struct error *e);
void order_close(struct order *order);

/* Only the thread that runs operators: */

/* An operator is about to be queued. */
void order_runs(struct order *order);
uint64_t order_mark(struct order *order);
void order_await(struct order *order, uint64_t ticket);
enum status order_wait(struct order *order, double *stalled, struct error *e);

/* Any thread: */

uint64_t order_copy(struct order *order, void *to, const void *from, size_t bytes, uint64_t mark);
void order_wait_copy(struct order *order, uint64_t ticket);
/* Not two at once. */
void order_finish(struct order *order);

#endif
