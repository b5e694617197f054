/* What the store's files share, and nobody else includes. Each has one concept:
 *
 *   store_fills.c    which fills there are, and where in ring or resident memory each has its place (I3, I5,
 *                    I6, I7)
 *   store_pieces.c   how a fill's bytes come to its place, piece by piece, and who moves them (I1, I4, I8)
 *   store.c          opening, stages, another plan, and what happens at a visit (I2, I4)
 *
 * The invariants are numbered in store.h. All but opening and closing is done under the store's lock; where a
 * function lets go of it for a while, its comment says so. */
#ifndef SLUICE_RUN_STORE_STATE_H
#define SLUICE_RUN_STORE_STATE_H

#include "engine/run/reader.h"
#include "engine/run/store.h"

#include <pthread.h>

enum fill_state { FILL_EMPTY, FILL_FILLING, FILL_READY, FILL_FAILED };

enum { FILL_FENCES = 16 };

/* The weights of one visit, or of several visits of one block that follow each other. */
struct fill {
    const struct block *block;
    int stage, number; /* number: the block's place in the stage */
    int first_visit;
    int last_visit; /* its release empties a ring slot */
    bool resident, pooled;
    bool reads_pool; /* this fill is the one that fills the pool */
    enum fill_state state;
    struct packed_place place;
    struct fill *over;  /* in the ring: the first that was there before it, where pieces are still to come */
    struct fill *above; /* in the ring: see ring_above */
    uint64_t event;     /* of the device: what its copies wait for wherever it lies */
    uint64_t released;  /* event of its last release */
    uint64_t claimed;   /* bytes of the packed block that readers have taken or done */
    int pieces_in_flight;
    uint64_t awaited; /* bytes that whoever computes may use: only the thread that acquires looks here */
    /* Of the last copy into each stretch of the packed block, on a device with memory of its own. A stretch
     * is as many whole pieces as it takes to have no more of them than fences: fills are as many as visits,
     * and a fence for each piece would make their memory grow with their blocks. */
    uint64_t fence[FILL_FENCES], fence_bytes;
};

/* In the ring, where it is in one piece. */
static inline char *fill_begin(const struct fill *fill) {
    return fill->place.part[PACKED_SIDE];
}

/* Part of the host's memory that pieces pass through on their way from the disk to a device (I8). */
struct staging {
    bool taken;
    uint64_t fence; /* of the last copy out of it */
};

enum { STAGING_MAX = 256 };

/* Bytes [from, to) of a fill's packed block, all of one part. */
struct piece {
    struct fill *fill;
    uint64_t from, to;
    uint64_t event;  /* of the device, when the place was free: a copy waits for it (I3) */
    int buffer;      /* staging that it passes through, or -1 */
    uint64_t number; /* of claiming */
};

/* A thread's part of the store; without threads the first one is whoever acquires and releases. */
struct store_reader {
    struct store *store;
    struct sys_thread *thread;
    struct reader reader;
    struct piece piece; /* on its way; without a fill: none */
};

struct store {
    struct store_options o;
    struct device *device; /* NULL where weights lie in the host's memory */
    struct fill *fills;
    int n_fills;
    int oldest_fill;    /* of those under the present plan, residents apart */
    int *fill_of_visit; /* -1: a block without weights */

    pthread_mutex_t lock;       /* guards everything below and all fills */
    pthread_cond_t work, ready; /* readers wait for work, whoever needs their pieces for ready */
    struct store_reader readers[STORE_READERS_MAX];
    int n_threads;
    bool stopping;

    int stage;         /* the active one, or -1 */
    int current_visit; /* the one being acquired or computed, or -1 */
    int next_place;    /* next fill to place */
    int next_claim;    /* first fill that may have unclaimed pieces */
    uint64_t event;    /* of the last release */
    char *ring;
    uint64_t ring_reserved, ring_committed;
    /* Every byte of the ring is whose who was placed there last. Below the head those are the fills from
     * ring_turn on, one behind the other; what lies above is older: a list in the order of addresses. */
    uint64_t ring_head; /* where the next fill goes */
    int ring_turn;      /* the first fill that was placed since the head was last at the beginning */
    struct fill *ring_above;

    char *staging_memory;
    struct pins staging_pins;
    uint64_t staging_bytes, staging_piece; /* of all buffers, of one */
    uint64_t staging_slack; /* of one: where files are read directly, memory agrees with them */
    struct staging staging[STAGING_MAX];
    int n_staging;
    bool staging_open, staging_unpinned; /* some of it, as of the last stage */
    char *bounce_memory; /* of all readers, as first planned: another plan in mid-run does not move it */
    uint64_t bounce_bytes;
    char *work_memory; /* of all readers that convert */

    int pieces_in_flight; /* of all fills */
    uint64_t pieces_claimed;
    int pinning;        /* readers that pin what nobody waits for yet */
    struct error error; /* of the first read that failed */
    struct store_counters counters;
};

/* ---- store_fills.c ---- */

/* Lists the fills of the visits from one on, behind those that there are. */
void fills_list(struct store *store, int first_visit);
/* Drops the fills of visits that are still to come, but for residents that are there: those keep their fill.
 * The ring is empty then. */
void fills_forget_from(struct store *store, int visit);
/* Gives the next fill its place if it can have one. */
bool fills_place_next(struct store *store);
/* The place of a fill may still hold earlier fills; its pieces, which are asked for in order, follow as those
 * are released. *event: the last of those releases, which a copy there waits for (I3). */
bool fills_place_is_free(struct fill *fill, uint64_t from, uint64_t to, uint64_t *event);
/* Past the parts that are kept from the run before, which nobody need fill. */
void fills_skip_kept(const struct store *store, struct fill *fill);
/* The fill is over, its place is free as of that event. */
void fills_empty(struct fill *fill, uint64_t event);

/* Address space for the largest ring. MEMORY. */
enum status ring_reserve(struct store *store, struct error *e);
/* Grows or shrinks the ring's pages; 0 or negative errno. */
int ring_commit(struct store *store, uint64_t bytes);
/* The same under a plan that may be another: if its rings need more address space than there is, the ring
 * moves, and must be empty. */
int ring_renew(struct store *store, uint64_t bytes);

/* ---- store_pieces.c ---- */

/* Each reader's part of the bounce memory; a part without a page leaves them to the page cache. MEMORY. */
enum status pieces_take_bounces(struct store *store, struct error *e);
/* What readers convert in, where they do. MEMORY. */
enum status pieces_take_work(struct store *store, struct error *e);
/* DEVICE. */
enum status pieces_start_readers(struct store *store, struct error *e);
/* Without readers: everything that can be done now. Lets go of the lock. */
void pieces_move_inline(struct store *store);
/* Bytes [0, n) of a fill's packed block are there: returns n. Readers claim pieces in order, but finish them
 * in any, so it is what lies before the first that is still on its way. */
uint64_t pieces_there(const struct store *store, const struct fill *fill);
/* The last fence of the copies of bytes [0, *to), which are there. Raises *to to the end of the stretch that
 * it lies in, as far as that is there. */
uint64_t pieces_last_fence(const struct store *store, const struct fill *fill, uint64_t *to);
/* The fill has FAILED: no more of it is claimed, and reads in flight are waited for, because others will
 * write the memory that they write. Lets go of the lock. */
void pieces_cancel(struct store *store, struct fill *fill);
/* The same for all that a stage that is cut short has under way. */
void pieces_abandon(struct store *store, int stage);
/* At least two buffers, if they can be of whole pages. Lets go of the lock. MEMORY. */
enum status pieces_open_staging(struct store *store, uint64_t bytes, struct error *e);
/* Pieces of the next stage may be on their way; nothing new sets out while there is no staging. Lets go of
 * the lock. */
void pieces_close_staging(struct store *store);

#endif
