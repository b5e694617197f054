/* The store: the pager of weights. It moves each visit's weights from files to the memory that computes.
 * The weights of one visit are one fill, with these states:
 *
 *      EMPTY --placed--> FILLING --all pieces arrived--> READY --release--> EMPTY
 *                           \--read failed or cancelled--> FAILED --release--> EMPTY
 *
 * A visit acquires its fill once the fill has a place in memory, and awaits each tensor before an operator
 * reads it. Computation of a large block therefore starts when its first tensors have arrived.
 * A fill moves in pieces. If weights are used in host memory, a piece has arrived when its bytes are read. On
 * a device with its own memory (a discrete GPU), a piece has arrived when its copy is queued; store_await
 * then makes the device wait, not the host. Copies come from the pinned host pool or from a staging buffer.
 * Staging carries bytes from the disk, and the part of the pool that could not be pinned.
 * Invariants; the code cites these numbers:
 *     I1  Only readers write a slot, only while it is FILLING, and one reader writes each byte.
 *     I2  Acquire waits only for a place; await returns only after the bytes have arrived.
 *     I3  A slot in use is never refilled. Ring space is freed in visit order, at release. A copy into it
 *         waits for the device event of that release and for no later event. Before memory passes to
 *         another stage or another plan, the host waits for the device.
 *     I4  A failed fill is reported by acquire or await; stale bytes are never returned.
 *     I5  Fills are placed in visit order. The next visit to be acquired therefore always gets a place:
 *         no deadlock.
 *     I6  A resident block is a slot that is not recycled. Its first visit fills it; later visits find it
 *         READY. Parts (adapter bytes, base weights) that an earlier run filled are not filled again.
 *     I7  During a stage the ring lies within ring_bytes of that stage. Blocks prefetched for the next
 *         stage lie within ring_bytes of both stages.
 *     I8  A staging buffer is read into only after the copy out of it has completed.
 * With bounce memory in the plan, files open for direct reads (source_open_direct) bypass the page cache.
 * Readers are threads that move pieces ahead along the visit list, across evaluations and into the next
 * stage, limited by ring space and plan (depth, no_wrap, waits). With 0 readers the calling thread moves
 * pieces inside acquire and release; a virtual clock needs that order. A single thread calls acquire, await
 * and release. */
#ifndef SLUICE_RUN_STORE_H
#define SLUICE_RUN_STORE_H

#include "engine/run/resident_memory.h"
#include "engine/run/reader.h"
#include "engine/run/visit.h"

enum { STORE_READERS_MAX = 8 };

/* Weights and memory that outlive a run. Owned by the session. */
struct residents {
    struct sys *sys;
    struct device *device; /* device with its own memory; NULL: weights are used in host memory */
    struct resident_memory memory[PLAN_STAGES_MAX]; /* resident blocks of each stage, in device memory */
    struct resident_memory pool[PLAN_STAGES_MAX];   /* pooled blocks in host memory, for discrete GPUs */
};

void residents_destroy(struct residents *residents);

struct store_options {
    struct sys *sys;
    const struct store_stage *stages;
    const struct visit_list *visits;
    const struct run_need *need;
    const struct plan *plan;
    struct residents *residents;
    int readers; /* number of reader threads, at most STORE_READERS_MAX; 0: the calling thread reads */
    packed_converter *converter; /* converts element types while reading (--type); NULL: no conversion */
    bool (*tick)(void *user);    /* called while waiting; false stops, with the error set */
    void *tick_user;
};

struct store_counters {
    int64_t bytes_moved;  /* bytes moved to where weights are used: read from files, or copied over the bus */
    double stall_seconds; /* seconds that computation waited for weights */
    int64_t bytes_read;   /* bytes read from files */
    int64_t bytes_direct; /* part of bytes_read that bypassed the page cache */
    int64_t bytes_unpinned; /* bytes copied over the bus from memory that could not be pinned (slow) */
    int64_t bytes_windowed; /* bytes copied from unpinned memory through pinned staging buffers */
};

struct store;

/* Allocates the store without memory for weights, and starts the readers, which wait for the first stage.
 * Copies the options; the objects behind their pointers must outlive the store. MEMORY; DEVICE if no thread
 * can be started. */
enum status store_open(const struct store_options *options, struct store **store, struct error *e);
/* Stops the readers after their current reads, and frees everything except residents that the plan keeps. */
void store_close(struct store *store);

/* store_begin_stage allocates and store_end_stage frees the weight memory of a stage. Between the two calls
 * the stage's visits are acquired in order. Call store_end_stage also if store_begin_stage fails. Fails with
 * MEMORY. */
enum status store_begin_stage(struct store *store, int stage, struct error *e);
void store_end_stage(struct store *store, int stage);

/* Waits until the packed block of a visit has a place in memory, and returns its address. The bytes may
 * arrive later: see store_await. Fails with the fill's error. */
enum status store_acquire(struct store *store, int visit, struct packed_place *place, struct error *e);
/* Waits until bytes [0, to) of the acquired packed block have arrived; `to` may exceed the block. On a device
 * with its own memory, operators queued after this call wait, not the host. Returns at once for bytes awaited
 * before. Fails with the fill's error. */
enum status store_await(struct store *store, int visit, uint64_t to, struct error *e);
/* Releases a visit whose whole packed block was awaited. If not all bytes were awaited, the missing bytes are
 * cancelled, for a run that ends or resumes from an earlier visit (store_replan). */
void store_release(struct store *store, int visit);

/* Continues the stage under another plan from `visit` on, the first visit of an evaluation; all acquired
 * visits must be released. The new plan has fewer residents, whose pages are returned at once, and may have a
 * larger ring. Visits from `visit` on run again if they ran already; prefetched blocks are read again.
 * Between two stages pass the next stage's first visit: the ring's pages are returned until that stage
 * begins. The plan must outlive the store. Fails with MEMORY. */
enum status store_replan(struct store *store, const struct plan *plan, int visit, struct error *e);

/* Adds seconds that operators waited for copies on the device, which the device reports afterwards. */
void store_add_stall(struct store *store, double seconds);
struct store_counters store_count(struct store *store);

#endif
