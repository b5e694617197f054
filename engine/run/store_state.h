/* Internals of the store, for its own files only:
 *
 *     store_fills.c    opening, stages, change of plan; the list of fills and their places in ring and
 *                      resident memory; acquire, await and release (I2 to I7)
 *     store_pieces.c   how the bytes of a fill are moved, piece by piece, and by which thread (I1, I4, I8)
 *
 * store.h lists the numbered invariants. All functions except opening and closing run under the store's lock;
 * a function that releases the lock for a while documents it. */
#ifndef SLUICE_RUN_STORE_STATE_H
#define SLUICE_RUN_STORE_STATE_H

#include "engine/run/reader.h"
#include "engine/run/store.h"

#include <pthread.h>

enum fill_state { FILL_EMPTY, FILL_FILLING, FILL_READY, FILL_FAILED };

enum { FILL_FENCES = 16 };

/* The weights of one visit, or of several consecutive visits of one block. */
struct fill {
    const struct block *block;
    int stage, number; /* number: index of the fill's block in the list of blocks of the stage */
    int first_visit;
    int last_visit; /* the release of this visit frees the fill's ring space */
    bool resident, pooled;
    bool reads_pool; /* the fill also copies the block into the host pool */
    enum fill_state state;
    struct packed_place place;
    /* Oldest fill that still occupies part of this fill's place in the ring; NULL: none. */
    struct fill *over;
    struct fill *above; /* next fill of the list ring_older */
    uint64_t event;     /* device event that all copies of this fill wait for */
    uint64_t released;  /* device event of the fill's last release */
    uint64_t claimed;   /* leading bytes of the packed block that readers have claimed */
    int pieces_in_flight;
    uint64_t awaited; /* leading bytes of the packed block that the computing thread has awaited */
    /* Fence of the last copy into each section of the packed block, on a device with its own memory. A
     * section is a whole number of pieces, so that a block has at most FILL_FENCES sections. A fence per
     * piece would need too much memory. */
    uint64_t fence[FILL_FENCES], fence_bytes;
};

/* Start address of a fill in the ring, where packed blocks are contiguous. */
static inline char *fill_address(const struct fill *fill) {
    return fill->place.part[PACKED_ADAPTER];
}

/* A staging buffer: host memory that pieces pass through from the disk to a device (I8). */
struct staging {
    bool taken;
    uint64_t fence; /* fence of the last copy out of the buffer */
};

enum { STAGING_MAX = 256 };

/* A piece: bytes [from, to) of a fill's packed block, all adapter bytes or all base weights. */
struct piece {
    struct fill *fill;
    uint64_t from, to;
    /* Device event after which the piece's place on the device is free; the copy waits for it (I3). */
    uint64_t event;
    int buffer;      /* index of the staging buffer that the piece passes through; -1: none */
    uint64_t number; /* sequence number in which readers claimed the piece */
};

/* State of one reader thread. Without reader threads the calling thread uses the first entry. */
struct store_reader {
    struct store *store;
    struct sys_thread *thread;
    struct reader reader;
    struct piece piece; /* the piece that this reader moves; .fill is NULL if there is none */
};

struct store {
    struct store_options o;
    struct device *device; /* NULL: weights are used in host memory */
    struct fill *fills;
    int n_fills;
    int oldest_fill;    /* index of the first streamed fill of the current plan */
    int *fill_of_visit; /* index of each visit's fill; -1: the block has no weights */

    pthread_mutex_t lock;       /* protects the fields below and all fills */
    pthread_cond_t work, ready; /* work: signalled to readers; ready: signalled when pieces arrive */
    struct store_reader readers[STORE_READERS_MAX];
    int n_threads;
    bool stopping;

    int stage;         /* index of the active stage, or -1 */
    int current_visit; /* visit being acquired or computed, or -1 */
    int next_place;    /* index of the next fill to place */
    int next_claim;    /* index of the first fill that may have unclaimed pieces */
    uint64_t event;    /* device event of the most recent release of a fill */
    char *ring;
    uint64_t ring_reserved, ring_committed;
    /* Each ring byte belongs to the fill that was placed on it most recently. Below ring_head lie the fills
     * from ring_wrap on, in order. Above ring_head lie older fills, listed by ring_older in order of
     * addresses. */
    uint64_t ring_head; /* ring offset at which the next fill is placed */
    int ring_wrap;      /* index of the first fill placed since the head last returned to offset 0 */
    struct fill *ring_older;

    char *staging_memory;
    struct pins staging_pins;
    uint64_t staging_bytes, staging_piece; /* bytes of all staging buffers; bytes of one staging buffer */
    /* Spare bytes in a staging buffer, to align memory with file offsets in direct reads. */
    uint64_t staging_slack;
    struct staging staging[STAGING_MAX];
    int n_staging;
    bool staging_open, staging_unpinned; /* staging_unpinned: some staging memory could not be pinned */
    char *bounce_memory;                 /* all readers' bounce memory, sized by the first plan */
    uint64_t bounce_bytes;
    char *work_memory; /* conversion buffers of all readers */

    int pieces_in_flight; /* number of pieces that readers are moving, over all fills */
    uint64_t pieces_claimed;
    int pinning;        /* number of reader threads that are pinning memory ahead of use */
    struct error error; /* error of the first read that failed */
    struct store_counters counters;
};

/* Places the next fill if it fits. Returns false if it does not, or if there is none. */
bool fills_place_next(struct store *store);
/* True if bytes [from, to) of a fill's place are free: all earlier fills at the same ring addresses are
 * released. Call with ascending ranges. *event: device event of the last such release, which a copy to the
 * place waits for (invariant I3). */
bool fills_place_is_free(struct fill *fill, uint64_t from, uint64_t to, uint64_t *event);
/* Marks adapter bytes and base weights that an earlier run filled as claimed: readers skip them. */
void fills_skip_ready(const struct store *store, struct fill *fill);
/* Divides the bounce memory among the readers; a reader with less than a page uses the page cache. Allocates
 * the buffers in which readers convert element types, and starts the reader threads. MEMORY; DEVICE if the
 * system refuses a thread. */
enum status pieces_open(struct store *store, struct error *e);
/* Without reader threads: moves all pieces that can be moved now. Releases the lock meanwhile. */
void pieces_move_inline(struct store *store);
/* Returns n such that bytes [0, n) of a packed block have arrived. Readers claim pieces in order but finish
 * in any order, so n is the start of the first piece in flight. */
uint64_t pieces_arrived(const struct store *store, const struct fill *fill);
/* Returns the last fence of the copies of bytes [0, `*to`), which must have arrived. Raises `*to` towards the
 * end of the section that contains it, as far as bytes have arrived. */
uint64_t pieces_last_fence(const struct store *store, const struct fill *fill, uint64_t *to);
/* Sets the fill to FAILED and waits for its reads in flight, because its memory will be reused. Releases the
 * lock meanwhile. */
void pieces_cancel(struct store *store, struct fill *fill);
/* Cancels all unfinished fills of a stage that ends early. */
void pieces_abandon(struct store *store, int stage);
/* Allocates and pins staging buffers, at least two if `bytes` is two pages or more. Releases the lock
 * meanwhile. Fails with MEMORY. */
enum status pieces_open_staging(struct store *store, uint64_t bytes, struct error *e);
/* Waits for all pieces in flight, including the next stage's, then frees the staging buffers. Releases the
 * lock while waiting. Without staging buffers no piece starts. */
void pieces_close_staging(struct store *store);

#endif
