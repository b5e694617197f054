/* The store ("the pager"): weights flow through it, and nobody else knows where they lie.
 *
 * Every visit's weights are one fill. A fill goes
 *
 *     EMPTY --placed--> FILLING --all pieces there--> READY --release--> EMPTY
 *                          \--a read failed, or cancelled--> FAILED --release--> EMPTY
 *
 * A visit acquires its fill as soon as that has its place, and awaits each tensor before it reads it: a large
 * block begins when its first tensors are there. A piece is there when its bytes are, or, on a device with
 * memory of its own, when its copy is queued: then await lets the device wait, not the host. There a piece
 * comes from the pinned pool, or through a staging buffer: from the disk, or from what of the pool could not
 * be pinned.
 *
 * Invariants, cited where they are kept:
 *   I1  a slot is written only while FILLING, by readers, each byte by one of them;
 *   I2  acquire yields only a place, await only bytes that are there;
 *   I3  a slot in use is never refilled: ring space comes back in the order of the visits, at release, and a
 *       copy into it waits for the device's event of that release and for no later one. Memory that is handed
 *       on otherwise (another stage's, another plan's) was waited for by the host;
 *   I4  a failed fill surfaces at acquire or await, never as stale bytes;
 *   I5  fills are placed in the order of the visit list, so whatever is acquired next has its place: no
 *       deadlock;
 *   I6  a resident block is a slot that is not recycled: its first visit fills it, later ones find it READY.
 *       What an earlier run filled of its parts (the side, the own bytes) is not filled again;
 *   I7  in a stage, the ring lies within that stage's ring_bytes; what is fetched ahead for the next stage
 * lies within both stages' ring_bytes; I8  a staging buffer is read into only when the copy out of it has
 * passed.
 *
 * Where the plan has bounce memory, sources that have been opened for direct reads (source_open_direct) are
 * read past the page cache, each reader through a part of that memory; the others through the page cache.
 *
 * Readers are threads that move pieces. They run ahead along the visit list as far as the ring has room and
 * the plan's depth, no_wrap and waits allow, over evaluations and into the next stage. Without readers (0)
 * the thread that acquires and releases does their work in between: that is the order of a virtual clock. One
 * thread acquires, awaits and releases. The store knows nothing of families, operators or pixels. */
#ifndef SLUICE_RUN_STORE_H
#define SLUICE_RUN_STORE_H

#include "engine/run/resident_memory.h"
#include "engine/run/reader.h"
#include "engine/run/visit.h"

enum { STORE_READERS_MAX = 8 };

/* What stays from run to run. Belongs to the session. */
struct residents {
    struct sys *sys;
    struct device *device;                          /* NULL where weights lie in the host's memory */
    struct resident_memory memory[PLAN_STAGES_MAX]; /* on the device */
    struct resident_memory pool[PLAN_STAGES_MAX];   /* on the host, for a device with memory of its own */
};

void residents_destroy(struct residents *residents);

struct store_options {
    struct sys *sys;
    const struct store_stage *stages;
    const struct visit_list *visits;
    const struct run_need *need;
    const struct plan *plan;
    struct residents *residents;
    int readers;                 /* threads, at most STORE_READERS_MAX; 0: none, see above */
    packed_converter *converter; /* where blocks are to be converted; else NULL */
    bool (*tick)(void *user); /* called while the store waits; false ends the wait with the error set by it */
    void *tick_user;
};

struct store_counters {
    int64_t bytes_moved;    /* to where weights are used: from files, or over the bus */
    double stall_seconds;   /* that computing waited for them */
    int64_t bytes_read;     /* from files */
    int64_t bytes_direct;   /* of those, past the page cache */
    int64_t bytes_unpinned; /* over the bus out of memory that could not be pinned: slower, and in the way */
    int64_t bytes_windowed; /* out of such memory by way of staging that could */
};

struct store;

/* Allocates everything that the run needs but pages, starts readers; they wait for the first stage. Options
 * are copied, what they point to must live as long. */
enum status store_open(const struct store_options *options, struct store **store, struct error *e);
/* Stops readers (a read in flight is waited for) and frees everything but kept residents. */
void store_close(struct store *store);

/* Takes and gives back a stage's memory. Between them its visits are acquired, in order. A stage that did not
 * begin is ended too. MEMORY. */
enum status store_begin_stage(struct store *store, int stage, struct error *e);
void store_end_stage(struct store *store, int stage);

/* Where a visit's packed block lies, waiting until it has its place: nothing of it need be there. Fills *e
 * with the fill's failure. */
enum status store_acquire(struct store *store, int visit, struct packed_place *place, struct error *e);
/* Waits until bytes [0, to) of the acquired packed block are there; what lies beyond its end is not waited
 * for. On a device with memory of its own, operators from here on wait for them. Free once they have been
 * awaited. Fills *e with the fill's failure. */
enum status store_await(struct store *store, int visit, uint64_t to, struct error *e);
/* A visit that ends well has awaited all of its packed block. What another has not awaited is cancelled with
 * its place: the run ends, or goes on from an earlier visit (store_replan). */
void store_release(struct store *store, int visit);

/* From this visit on (the first of an evaluation; everything acquired has been released) the stage goes on
 * under another plan: the same but for residents evicted, whose pages go back at once, and a ring that may
 * be larger. Visits from this one on that have been made already will be made again. The plan must live as
 * long as the store. What was fetched ahead is fetched again. Between two stages the same, with the first
 * visit of the next; the ring's pages go back until that begins. */
enum status store_replan(struct store *store, const struct plan *plan, int visit, struct error *e);

/* Operators have waited this long for copies, as the device says after the fact. */
void store_add_stall(struct store *store, double seconds);
/* Since store_open. */
struct store_counters store_count(struct store *store);

#endif
