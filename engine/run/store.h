/* The store ("the pager"): weights flow through it, and nobody else knows where they lie.
 *
 * Every visit's weights are one fill. A fill goes
 *
 *     EMPTY --placed--> FILLING --all pieces read--> READY --acquire--> IN USE --release--> EMPTY
 *                          \--a read failed--> FAILED
 *
 * Invariants, cited where they are kept:
 *   I1  a slot is written only while FILLING, by readers, each byte by one of them;
 *   I2  acquire yields only READY;
 *   I3  a slot in use is never refilled: ring space comes back in the order of the visits, at release;
 *   I4  a failed fill surfaces at acquire, never as stale bytes;
 *   I5  fills are placed in the order of the visit list, so whatever is acquired next has its place: no
 * deadlock; I6  a resident block is a slot that is not recycled: its first visit fills it, later ones find it
 * READY; I7  in a stage, the ring lies within that stage's ring_bytes; what is fetched ahead for the next
 * stage lies within both stages' ring_bytes.
 *
 * Readers are threads that pread pieces of at most PIECE_BYTES. They run ahead along the visit list as far as
 * the ring has room, over evaluations and into the next stage. One thread acquires and releases. The store
 * knows nothing of families, operators or pixels. */
#ifndef SLUICE_RUN_STORE_H
#define SLUICE_RUN_STORE_H

#include "engine/run/block.h"
#include "engine/run/plan.h"
#include "engine/run/visit.h"

/* What the store must know of a stage. */
struct store_stage {
    const struct block *const *blocks;
    int n_blocks;
    int n_lasting; /* the first n_lasting are the model's; the others belong to this request */
};

/* Residents' memory. It belongs to the session, so that a plan that keeps them finds them again in the next
 * run. */
struct resident_area {
    char *memory;
    uint64_t bytes;
    const struct block *first; /* of the stage's blocks: tells one component's residents from another's */
    uint64_t offset[PLAN_BLOCKS_MAX];
    uint64_t resident[PLAN_BLOCKS_MAX / 64];
    bool ready[PLAN_BLOCKS_MAX];
};

struct residents {
    struct sys *sys;
    struct resident_area area[PLAN_STAGES_MAX];
};

void residents_destroy(struct residents *residents);

struct store_options {
    struct sys *sys;
    const struct store_stage *stages;
    const struct visit_list *visits;
    const struct run_need *need;
    const struct plan *plan;
    struct residents *residents;
    int readers;              /* threads, at least 1 */
    bool (*tick)(void *user); /* called while acquire waits; false ends the wait with the error set by it */
    void *tick_user;
};

struct store_counters {
    int64_t bytes_moved;
    double stall_seconds; /* spent in acquire waiting */
};

struct store;

/* Allocates everything that the run needs but pages, starts readers; they wait for the first stage. Options
 * are copied, what they point to must live as long. */
enum status store_open(const struct store_options *options, struct store **store, struct error *e);
/* Stops readers (a read in flight is waited for) and frees everything but kept residents. */
void store_close(struct store *store);

/* Takes and gives back a stage's memory. Between them its visits are acquired, in order. */
enum status store_begin_stage(struct store *store, int stage, struct error *e);
void store_end_stage(struct store *store, int stage);

/* The base address of the image of a visit's block, waiting until it is READY. Fills *e with the fill's
 * failure. */
enum status store_acquire(struct store *store, int visit, void **image, struct error *e);
void store_release(struct store *store, int visit);

/* Since store_open. */
struct store_counters store_count(struct store *store);

#endif
