/* A thread pool for one parallel loop at a time, which tolerates other load on the machine.
 * Threads, including the caller, take the next few items of the loop until none are left; the call returns
 * when the last item is finished. A thread that is not scheduled takes no items and delays no others. An item
 * must give the same result on any thread. Idle threads spin for 50 us, then sleep. OpenMP threads (libgomp
 * 12) spin for milliseconds, which under other load or a CPU quota made runs fifty times slower
 * (bench/LOG.md).
 * Invariants: a thread starts an item only during the call that offers it; the fields of the loop change only
 * while no thread is inside. */
#ifndef SLUICE_BASE_THREAD_POOL_H
#define SLUICE_BASE_THREAD_POOL_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

struct thread_pool;

/* Processes items [first, end) on one thread. member: index for per-thread memory, less than the number of
 * pool members and than the number of items; concurrent calls have different indices. Must not call
 * thread_pool_run. */
typedef void thread_pool_work(const void *context, int64_t first, int64_t end, int member);

/* Creates a pool of 1 to 1,024 members, including the caller; starts no threads. sys must outlive the pool.
 * NULL if memory is short, with *e set. */
struct thread_pool *thread_pool_open(struct sys *sys, int members, struct error *e);
void thread_pool_close(struct thread_pool *thread_pool);

/* Starts the pool's threads that do not run yet; may be called again, from one thread at a time. MEMORY if
 * the system refuses a thread: predicted times assume all threads, so the error names the possible number. */
enum status thread_pool_start(struct thread_pool *thread_pool, struct error *e);

/* Processes n items (0 or more), each in exactly one call of `work`. One thread at a time may call this. */
void thread_pool_run(struct thread_pool *thread_pool, int64_t n, thread_pool_work *work, const void *context);

int thread_pool_members(const struct thread_pool *thread_pool);

#endif
