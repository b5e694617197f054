/* The store: see store.h for the states and the invariants. */
#include "engine/run/store.h"

#include "engine/run/reader.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

enum fill_state { FILL_EMPTY, FILL_FILLING, FILL_READY, FILL_FAILED };

/* The weights of one visit, or of several visits of one block that follow each other. */
struct fill {
    const struct block *block;
    int stage, place; /* place: the block's in the stage */
    int first_visit;
    int last_visit; /* its release empties a ring slot */
    bool resident, pooled;
    bool reads_pool; /* this fill is the one that fills the pool */
    enum fill_state state;
    char *address;
    uint64_t claimed; /* bytes of the image that readers have taken or done */
    int pieces_in_flight;
    uint64_t ticket; /* of the last copy so far */
};

/* Part of the host's memory that pieces pass through on their way from the disk to a device (I8). */
struct staging {
    bool taken;
    uint64_t ticket; /* of the last copy out of it */
};

enum { STAGING_MAX = 64 };

/* A thread's part of the store; without threads the first one is whoever acquires and releases. */
struct store_reader {
    struct store *store;
    struct sys_thread *thread;
    struct reader reader;
};

struct store {
    struct store_options o;
    struct device *device; /* NULL where weights lie in the host's memory */
    struct fill *fills;
    int n_fills;
    int oldest_fill;    /* of those under the present plan, residents apart */
    int *fill_of_visit; /* -1: a block without weights */

    pthread_mutex_t lock;       /* guards everything below and all fills */
    pthread_cond_t work, ready; /* readers wait for work, acquire for ready */
    struct store_reader readers[STORE_READERS_MAX];
    int n_threads;
    bool stopping;

    int stage;         /* the active one, or -1 */
    int current_visit; /* the one being acquired or computed, or -1 */
    int next_place;    /* next fill to place */
    int next_claim;    /* first fill that may have unclaimed pieces */
    uint64_t mark;     /* of the last release */
    char *ring;
    uint64_t ring_reserved, ring_committed;
    uint64_t ring_head; /* where the next fill goes */
    int ring_oldest;    /* oldest live ring fill; n_fills if none */

    char *staging_memory;
    uint64_t staging_bytes, staging_piece; /* of all buffers, of one */
    struct staging staging[STAGING_MAX];
    int n_staging;
    bool staging_open;
    char *bounce_memory; /* of all readers, as first planned: another plan in mid-run does not move it */
    uint64_t bounce_bytes;

    int pieces_in_flight; /* of all fills */
    struct error error;   /* of the first read that failed */
    struct store_counters counters;
};

/* ---- ring ---- */

static int next_live(const struct store *s, int from) {
    while (from < s->next_place && (s->fills[from].resident || s->fills[from].state == FILL_EMPTY)) from++;
    return from;
}

static uint64_t ring_limit(const struct store *s, const struct fill *f) {
    uint64_t here = s->o.plan->stage[s->stage].ring_bytes, there = s->o.plan->stage[f->stage].ring_bytes;
    return here < there ? here : there; /* I7 */
}

/* What the plan allows beyond room: see depth, no_wrap and waits in plan.h. */
static bool may_run_ahead(const struct store *s, const struct fill *f) {
    const struct plan_stage *p = &s->o.plan->stage[s->stage];
    const struct visit *visits = s->o.visits->visits;
    if (f->first_visit <= s->current_visit) return true;
    if (p->waits || (p->depth && f->first_visit > s->current_visit + p->depth)) return false;
    if (!p->no_wrap) return true;
    return s->current_visit >= 0 && f->stage == s->stage &&
           visits[f->first_visit].evaluation <= visits[s->current_visit].evaluation;
}

/* Gives the next fill its place if it can have one. */
static bool place_next(struct store *s) {
    if (s->next_place == s->n_fills || s->next_claim < s->next_place || s->stage < 0) return false;
    struct fill *f = &s->fills[s->next_place];
    if (f->stage > s->stage + (f->resident || f->pooled ? 0 : 1) || !may_run_ahead(s, f)) return false;
    if (f->resident) {
        struct area *area = &s->o.residents->area[f->stage];
        f->address = area->memory + area->offset[f->place];
    } else {
        uint64_t limit = ring_limit(s, f), at = s->ring_head;
        if (f->block->bytes > limit) return false;
        if (at + f->block->bytes > limit) at = 0;
        f->address = s->ring + at;
        s->ring_head = at + f->block->bytes;
    }
    f->state = FILL_FILLING;
    s->next_place++; /* I5 */
    s->ring_oldest = next_live(s, s->ring_oldest);
    return true;
}

/* ---- pieces ---- */

/* Bytes [from, to) of a fill's image. */
struct piece {
    struct fill *fill;
    uint64_t from, to;
    uint64_t mark; /* of the device, when the place was free: a copy waits for it (I3) */
};

/* The room of a fill may still hold earlier fills; its pieces follow as they are released (I3). */
static bool room_is_free(const struct store *s, const struct fill *f, uint64_t from, uint64_t to) {
    if (f->resident) return true;
    for (int i = s->ring_oldest; &s->fills[i] < f; i++) {
        const struct fill *other = &s->fills[i];
        if (!other->resident && other->state != FILL_EMPTY && other->address < f->address + to &&
            f->address + from < other->address + other->block->bytes)
            return false;
    }
    return true;
}

/* Several fills of a pooled block may be under way: the first reads, the others wait for it. */
static bool pool_allows(struct store *s, struct fill *f) {
    if (!f->pooled || s->o.residents->pool[f->stage].ready[f->place]) return true;
    if (f->claimed) return f->reads_pool;
    for (struct fill *other = s->fills; other < f; other++)
        if (other->reads_pool && other->stage == f->stage && other->place == f->place) return false;
    f->reads_pool = true;
    return true;
}

static uint64_t largest_piece(const struct store *s, const struct fill *f) {
    if (!s->device) return PLAN_READ_PIECE;
    if (f->pooled) return PLAN_COPY_PIECE;
    return s->staging_open ? s->staging_piece : 0;
}

/* Takes the next unread piece of the earliest placed fill. */
static bool claim_piece(struct store *s, struct piece *piece) {
    for (; s->next_claim < s->next_place; s->next_claim++) {
        struct fill *f = &s->fills[s->next_claim];
        if (f->state != FILL_FILLING || f->claimed == f->block->bytes) continue;
        if (!pool_allows(s, f)) return false;
        uint64_t left = f->block->bytes - f->claimed, most = largest_piece(s, f);
        if (!most) return false; /* between two stages there is no staging */
        *piece = (struct piece){f, f->claimed, f->claimed + (left < most ? left : most), s->mark};
        if (!room_is_free(s, f, piece->from, piece->to)) return false;
        f->claimed = piece->to;
        f->pieces_in_flight++;
        s->pieces_in_flight++;
        return true;
    }
    return false;
}

/* A staging buffer whose last copy has passed (I8). There are as many as there are readers, or the reader
 * waits here for another to finish. */
static int take_staging(struct store *s) {
    int i = 0;
    while (s->staging[i].taken)
        if (++i == s->n_staging) {
            pthread_cond_wait(&s->work, &s->lock);
            i = 0;
        }
    for (int k = i + 1; k < s->n_staging; k++)
        if (!s->staging[k].taken && s->staging[k].ticket < s->staging[i].ticket) i = k;
    s->staging[i].taken = true;
    return i;
}

static void count_reads(struct store *s, const struct reader *reader) {
    s->counters.bytes_read += (int64_t)reader->bytes_read;
    s->counters.bytes_direct += (int64_t)reader->bytes_direct;
}

/* Moves one piece to a device with memory of its own. The lock is held on entry and exit. */
static uint64_t move_to_device(struct store *s, const struct piece *piece, struct reader *reader,
                               struct error *e) {
    struct fill *f = piece->fill;
    const struct area *pool = &s->o.residents->pool[f->stage];
    bool in_pool = f->pooled && pool->ready[f->place];
    int buffer = f->pooled ? -1 : take_staging(s);
    char *from = f->pooled ? pool->memory + pool->offset[f->place]
                           : s->staging_memory + (uint64_t)buffer * s->staging_piece - piece->from;
    uint64_t passed = buffer < 0 ? 0 : s->staging[buffer].ticket, ticket = 0;
    pthread_mutex_unlock(&s->lock);
    if (passed) s->device->memory->wait_copy(s->device, passed);
    if (!in_pool) reader_read(reader, f->block, piece->from, piece->to, from, e);
    if (e->code == OK)
        ticket = s->device->memory->copy(s->device, f->address + piece->from, from + piece->from,
                                         piece->to - piece->from, piece->mark);
    pthread_mutex_lock(&s->lock);
    if (ticket > f->ticket) f->ticket = ticket;
    if (buffer >= 0) {
        s->staging[buffer] = (struct staging){.ticket = ticket};
        pthread_cond_broadcast(&s->work);
    }
    if (!in_pool) count_reads(s, reader);
    return piece->to - piece->from;
}

static uint64_t move_within_host(struct store *s, const struct piece *piece, struct reader *reader,
                                 struct error *e) {
    const struct fill *f = piece->fill;
    pthread_mutex_unlock(&s->lock);
    reader_read(reader, f->block, piece->from, piece->to, f->address, e); /* I1 */
    pthread_mutex_lock(&s->lock);
    count_reads(s, reader);
    return reader->bytes_read;
}

static void finish_piece(struct store *s, const struct piece *piece, uint64_t moved, const struct error *e) {
    struct fill *f = piece->fill;
    f->pieces_in_flight--;
    s->pieces_in_flight--;
    if (s->stage < 0) pthread_cond_broadcast(&s->ready); /* somebody waits for all of them */
    if (e->code != OK) {
        if (s->error.code == OK) s->error = *e;
        f->state = FILL_FAILED; /* I4 */
    } else {
        s->counters.bytes_moved += (int64_t)moved;
    }
    if (f->pieces_in_flight || f->claimed < f->block->bytes) return;
    if (f->state == FILL_FILLING) {
        f->state = FILL_READY;
        if (f->resident) s->o.residents->area[f->stage].ready[f->place] = true;
        if (f->reads_pool) s->o.residents->pool[f->stage].ready[f->place] = true;
        if (f->reads_pool) pthread_cond_broadcast(&s->work);
    }
    pthread_cond_broadcast(&s->ready);
}

/* One thing that can be done now: a piece, or a place for the next fill. False if there is none. */
static bool work_once(struct store *s, struct reader *reader) {
    struct piece piece;
    if (s->error.code != OK) return false;
    if (claim_piece(s, &piece)) {
        struct error e = {0};
        uint64_t moved =
            s->device ? move_to_device(s, &piece, reader, &e) : move_within_host(s, &piece, reader, &e);
        finish_piece(s, &piece, moved, &e);
        return true;
    }
    if (!place_next(s)) return false;
    pthread_cond_broadcast(&s->work);
    return true;
}

static void reader_main(void *argument) {
    struct store_reader *r = argument;
    struct store *s = r->store;
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        if (work_once(s, &r->reader)) continue;
        if (s->error.code != OK) pthread_cond_broadcast(&s->ready);
        pthread_cond_wait(&s->work, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

/* Without readers: everything that can be done now. The lock is held. */
static void work_inline(struct store *s) {
    while (!s->n_threads && !s->stopping && work_once(s, &s->readers[0].reader)) {
    }
}

/* ---- opening ---- */

static bool joins_previous(const struct store *s, const struct visit *v, bool resident) {
    const struct fill *last = s->n_fills > s->oldest_fill ? &s->fills[s->n_fills - 1] : NULL;
    return last && !resident && !last->resident && last->stage == v->stage && last->place == v->block;
}

/* The first fill of a resident block, or -1. */
static int resident_fill(const struct store *s, const struct visit *v) {
    for (int i = 0; i < s->n_fills; i++)
        if (s->fills[i].resident && s->fills[i].stage == v->stage && s->fills[i].place == v->block) return i;
    return -1;
}

static void list_fill(struct store *s, int i_visit) {
    const struct visit *v = &s->o.visits->visits[i_visit];
    const struct block *block = s->o.stages[v->stage].blocks[v->block];
    const struct plan_stage *p = &s->o.plan->stage[v->stage];
    bool resident = plan_is_resident(p, v->block);
    int found = -1;
    if (!block->bytes) {
        s->fill_of_visit[i_visit] = -1;
        return;
    }
    if (resident) found = resident_fill(s, v);
    if (joins_previous(s, v, resident)) found = s->n_fills - 1;
    if (found < 0) {
        found = s->n_fills++;
        s->fills[found] = (struct fill){.block = block,
                                        .stage = v->stage,
                                        .place = v->block,
                                        .first_visit = i_visit,
                                        .resident = resident,
                                        .pooled = s->device && !resident && plan_is_pooled(p, v->block)};
        if (resident && s->o.residents->area[v->stage].ready[v->block])
            s->fills[found].claimed = block->bytes; /* kept from the run before: nothing to read */
    }
    s->fills[found].last_visit = i_visit;
    s->fill_of_visit[i_visit] = found;
}

static uint64_t largest_ring(const struct plan *plan) {
    uint64_t most = 0;
    for (int i = 0; i < plan->n_stages; i++)
        if (plan->stage[i].ring_bytes > most) most = plan->stage[i].ring_bytes;
    return most;
}

/* Address space for the largest ring. */
static enum status reserve_ring(struct store *s, struct error *e) {
    s->ring_reserved = largest_ring(s->o.plan);
    if (!s->ring_reserved) return OK;
    s->ring = weights_reserve(s->o.sys, s->device, s->ring_reserved);
    if (s->ring) return OK;
    return error_set(e, MEMORY, "no memory for a ring of %llu bytes", (unsigned long long)s->ring_reserved);
}

/* Each reader's part of the bounce memory; a part without a page leaves them to the page cache. */
static enum status take_bounces(struct store *s, struct error *e) {
    uint64_t all = s->o.plan->bounce_bytes, n = s->o.readers > 0 ? (uint64_t)s->o.readers : 1;
    s->bounce_bytes = all;
    uint64_t part = all / n / PLAN_PAGE * PLAN_PAGE;
    if (all) s->bounce_memory = s->o.sys->map(s->o.sys, LINE_STORE, all);
    if (all && !s->bounce_memory)
        return error_set(e, MEMORY, "no memory for bounce buffers of %llu bytes", (unsigned long long)all);
    for (uint64_t i = 0; i < n && part; i++)
        s->readers[i].reader.bounce = (struct bounce){s->bounce_memory + i * part, part};
    return OK;
}

static enum status allocate(struct store *s, struct error *e) {
    struct sys *sys = s->o.sys;
    size_t n = (size_t)s->o.visits->n_visits;
    s->fills = sys->alloc(sys, LINE_HOST, n * sizeof *s->fills);
    s->fill_of_visit = sys->alloc(sys, LINE_HOST, n * sizeof *s->fill_of_visit);
    if (s->fills && s->fill_of_visit) return reserve_ring(s, e) == OK ? take_bounces(s, e) : e->code;
    return error_set(e, MEMORY, "no memory for the store of %zu visits", n);
}

static void lay_out_areas(struct store *s) {
    static const uint64_t none[PLAN_BLOCKS_MAX / 64];
    struct residents *r = s->o.residents;
    for (int i = 0; i < s->o.plan->n_stages; i++) {
        const struct plan_stage *p = &s->o.plan->stage[i];
        const struct stage_need *need = &s->o.need->stage[i];
        bool keep = s->o.plan->keep;
        area_lay_out(&r->area[i], s->o.sys, s->device, &s->o.stages[i], p->resident, need, p->resident_bytes,
                     keep);
        area_lay_out(&r->pool[i], s->o.sys, NULL, &s->o.stages[i], s->device ? p->pooled : none, need,
                     p->pool_bytes, keep);
    }
    for (int i = s->o.plan->n_stages; i < PLAN_STAGES_MAX; i++) { /* of a run of more stages */
        area_end(&r->area[i], s->o.sys, s->device);
        area_end(&r->pool[i], s->o.sys, NULL);
    }
}

/* The fills of the visits from one on, behind those that there are. */
static void list_fills(struct store *s, int first_visit) {
    for (int i = first_visit; i < s->o.visits->n_visits; i++) list_fill(s, i);
}

static enum status start_readers(struct store *s, struct error *e) {
    for (int i = 0; i < s->o.readers; i++) {
        struct store_reader *r = &s->readers[i];
        r->store = s;
        int failed = s->o.sys->thread_start(s->o.sys, &r->thread, reader_main, r);
        if (failed) {
            error_set(e, DEVICE, "cannot start a reader thread");
            return error_found(e, "%s", strerror(-failed));
        }
        s->n_threads++;
    }
    return OK;
}

enum status store_open(const struct store_options *options, struct store **store, struct error *e) {
    struct sys *sys = options->sys;
    struct store *s = sys->alloc(sys, LINE_HOST, sizeof *s);
    *store = s;
    if (!s) return error_set(e, MEMORY, "no memory for the store");
    s->o = *options;
    if (s->o.readers > STORE_READERS_MAX) s->o.readers = STORE_READERS_MAX;
    s->device = options->residents->device;
    s->stage = s->current_visit = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->ready, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (allocate(s, e) != OK) goto out;
    lay_out_areas(s);
    list_fills(s, 0);
    start_readers(s, e);
out:
    if (e->code != OK) {
        store_close(s);
        *store = NULL;
    }
    return e->code;
}

/* Grows or shrinks the ring's pages; 0 or negative errno. */
static int commit_ring(struct store *s, uint64_t bytes) {
    uint64_t now = s->ring_committed;
    int failed = 0;
    if (bytes < now) weights_decommit(s->o.sys, s->device, s->ring + bytes, now - bytes);
    if (bytes > now) failed = weights_commit(s->o.sys, s->device, s->ring + now, bytes - now);
    if (!failed) s->ring_committed = bytes;
    return failed;
}

void store_close(struct store *s) {
    if (!s) return;
    struct sys *sys = s->o.sys;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_threads; i++) sys->thread_join(sys, s->readers[i].thread);
    if (s->stage >= 0) store_end_stage(s, s->stage);
    commit_ring(s, 0);
    if (s->ring) weights_unreserve(sys, s->device, s->ring, s->ring_reserved);
    sys->unmap(sys, LINE_STORE, s->bounce_memory, s->bounce_bytes);
    pthread_cond_destroy(&s->ready);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    sys->release(sys, s->fill_of_visit);
    sys->release(sys, s->fills);
    sys->release(sys, s);
}

/* ---- stages ---- */

/* At least two buffers, if they can be of whole pages. */
static enum status open_staging(struct store *s, uint64_t bytes, struct error *e) {
    uint64_t n = bytes / PLAN_COPY_PIECE;
    if (n < 2) n = bytes >= 2 * PLAN_PAGE ? 2 : 1;
    if (n > STAGING_MAX) n = STAGING_MAX;
    if (!s->device || !bytes) return OK;
    s->staging_memory = s->o.sys->map(s->o.sys, LINE_STORE, bytes);
    if (!s->staging_memory)
        return error_set(e, MEMORY, "no memory for %llu bytes of staging", (unsigned long long)bytes);
    s->staging_bytes = bytes;
    s->staging_piece = bytes / n / PLAN_PAGE * PLAN_PAGE;
    s->n_staging = (int)n;
    s->staging_open = true;
    memset(s->staging, 0, sizeof s->staging);
    return OK;
}

/* Pieces of the next stage may be on their way; nothing new sets out while there is no staging. The lock is
 * held. */
static void close_staging(struct store *s) {
    if (!s->device) return;
    s->staging_open = false; /* those that wait for a buffer still need its size */
    while (s->pieces_in_flight) pthread_cond_wait(&s->ready, &s->lock);
    s->device->memory->finish(s->device);
    s->o.sys->unmap(s->o.sys, LINE_STORE, s->staging_memory, s->staging_bytes);
    s->staging_memory = NULL;
    s->staging_bytes = 0;
    s->n_staging = 0;
}

enum status store_begin_stage(struct store *s, int stage, struct error *e) {
    const struct plan_stage *p = &s->o.plan->stage[stage];
    struct residents *r = s->o.residents;
    if (commit_ring(s, p->ring_bytes)) /* live bytes lie within the ring of both stages (I7) */
        return error_set(e, MEMORY, "no memory for a ring of %llu bytes", (unsigned long long)p->ring_bytes);
    if (area_begin(&r->area[stage], s->o.sys, s->device, p->resident_bytes, e) != OK ||
        (s->device && area_begin(&r->pool[stage], s->o.sys, NULL, p->pool_bytes, e) != OK))
        return e->code;
    pthread_mutex_lock(&s->lock);
    if (open_staging(s, p->staging_bytes, e) == OK) s->stage = stage;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    return e->code;
}

/* A stage that is cut short may have fills under way: no more of them is claimed, and reads in flight are
 * waited for, because the memory that they write goes next. */
static void abandon_fills(struct store *s, int stage) {
    for (int i = 0; i < s->next_place; i++) {
        struct fill *f = &s->fills[i];
        if (f->stage != stage || (f->state != FILL_FILLING && f->state != FILL_FAILED)) continue;
        f->state = FILL_FAILED;
        f->claimed = f->block->bytes;
        while (f->pieces_in_flight) pthread_cond_wait(&s->ready, &s->lock);
    }
}

void store_end_stage(struct store *s, int stage) {
    pthread_mutex_lock(&s->lock);
    s->stage = -1; /* nothing is placed until the next stage has its memory */
    abandon_fills(s, stage);
    close_staging(s);
    pthread_mutex_unlock(&s->lock);
    struct residents *r = s->o.residents;
    if (s->o.plan->keep) return;
    area_end(&r->area[stage], s->o.sys, s->device);
    area_end(&r->pool[stage], s->o.sys, NULL);
}

void residents_destroy(struct residents *residents) {
    for (int i = 0; i < PLAN_STAGES_MAX; i++) {
        area_end(&residents->area[i], residents->sys, residents->device);
        area_end(&residents->pool[i], residents->sys, NULL);
    }
}

/* ---- another plan ---- */

/* Drops the fills of visits that are still to come, but for residents that are there: those keep their fill.
 */
static void forget_from(struct store *s, int visit) {
    int n = s->n_fills;
    while (n && s->fills[n - 1].first_visit >= visit) n--;
    s->n_fills = s->oldest_fill = n;
    if (s->next_place > n) s->next_place = n;
    if (s->next_claim > n) s->next_claim = n;
    for (int i = 0; i < n; i++) /* one that visits before and after share is read again */
        if (!s->fills[i].resident) s->fills[i].state = FILL_EMPTY;
    s->ring_oldest = n;
    s->ring_head = 0;
}

/* The ring is empty. Address space for the rings of all stages, pages for this one's. */
static enum status renew_ring(struct store *s, const struct plan *plan) {
    uint64_t most = largest_ring(plan);
    if (most > s->ring_reserved) {
        commit_ring(s, 0);
        if (s->ring) weights_unreserve(s->o.sys, s->device, s->ring, s->ring_reserved);
        s->ring = weights_reserve(s->o.sys, s->device, most);
        s->ring_reserved = s->ring ? most : 0;
        if (!s->ring) return MEMORY;
    }
    return commit_ring(s, plan->stage[s->stage].ring_bytes) ? MEMORY : OK;
}

/* Residents that the new plan has not: their pages if they are there, else only their place. */
static void drop_residents(struct store *s, const struct plan *plan) {
    for (int k = 0; k < plan->n_stages; k++) {
        struct area *area = &s->o.residents->area[k];
        const struct plan_stage *p = &plan->stage[k];
        if (!area->memory)
            area_lay_out(area, s->o.sys, s->device, &s->o.stages[k], p->resident, &s->o.need->stage[k],
                         p->resident_bytes, false);
        for (int b = 0; b < s->o.stages[k].n_blocks; b++)
            if (!plan_is_resident(p, b)) area_give_up(area, s->o.sys, s->device, b);
    }
}

enum status store_replan(struct store *s, const struct plan *plan, int visit, struct error *e) {
    int stage = s->stage;
    pthread_mutex_lock(&s->lock);
    s->stage = -1; /* nothing is placed meanwhile */
    for (int k = 0; k < s->o.plan->n_stages; k++) abandon_fills(s, k);
    if (s->device) s->device->memory->finish(s->device);
    drop_residents(s, plan);
    forget_from(s, visit);
    s->o.plan = plan;
    list_fills(s, visit);
    s->stage = stage;
    s->current_visit = visit - 1; /* an evaluation that is computed again goes back */
    if (renew_ring(s, plan) != OK)
        error_set(e, MEMORY, "no memory for a ring of %llu bytes",
                  (unsigned long long)plan->stage[stage].ring_bytes);
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    return e->code;
}

/* ---- visits ---- */

/* A fill that was kept has no pieces, so no reader ever finishes it. */
static bool is_ready(struct fill *f) {
    if (f->state == FILL_FILLING && f->claimed == f->block->bytes && !f->pieces_in_flight)
        f->state = FILL_READY;
    return f->state == FILL_READY;
}

static enum status wait_until_ready(struct store *s, struct fill *f, struct error *e) {
    enum { POLL_NS = 20000000 };
    double since = s->o.sys->clock(s->o.sys);
    bool go_on = true;
    if (!s->n_threads && s->error.code == OK) return error_set(e, INTERNAL, "a visit found no place");
    while (!is_ready(f) && s->error.code == OK && go_on) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += POLL_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&s->ready, &s->lock, &until);
        pthread_mutex_unlock(&s->lock);
        go_on = !s->o.tick || s->o.tick(s->o.tick_user);
        pthread_mutex_lock(&s->lock);
    }
    s->counters.stall_seconds += s->o.sys->clock(s->o.sys) - since;
    if (f->state != FILL_READY && s->error.code != OK && e->code == OK) *e = s->error; /* I4 */
    if (f->state != FILL_READY && !go_on) error_set(e, CANCELLED, "cancelled while waiting for weights");
    return f->state == FILL_READY ? OK : e->code; /* I2 */
}

enum status store_acquire(struct store *s, int visit, void **image, struct error *e) {
    *image = NULL;
    if (s->fill_of_visit[visit] < 0) return OK;
    struct fill *f = &s->fills[s->fill_of_visit[visit]];
    pthread_mutex_lock(&s->lock);
    s->current_visit = visit;
    pthread_cond_broadcast(&s->work);
    work_inline(s);
    enum status status = is_ready(f) ? OK : wait_until_ready(s, f, e);
    if (status == OK && s->device)
        s->counters.stall_seconds += s->device->memory->await_copy(s->device, f->ticket);
    pthread_mutex_unlock(&s->lock);
    if (status == OK) *image = f->address;
    return status;
}

void store_release(struct store *s, int visit) {
    if (s->fill_of_visit[visit] < 0) return;
    struct fill *f = &s->fills[s->fill_of_visit[visit]];
    uint64_t mark = s->device ? s->device->memory->mark(s->device) : 0;
    bool empties = !f->resident && f->last_visit == visit;
    if (empties && !s->device) s->o.sys->discard(s->o.sys, f->address, f->block->bytes);
    pthread_mutex_lock(&s->lock);
    s->mark = mark;
    if (empties) f->state = FILL_EMPTY; /* I3 */
    s->ring_oldest = next_live(s, s->ring_oldest);
    pthread_cond_broadcast(&s->work);
    work_inline(s);
    pthread_mutex_unlock(&s->lock);
}

struct store_counters store_count(struct store *s) {
    pthread_mutex_lock(&s->lock);
    struct store_counters counters = s->counters;
    pthread_mutex_unlock(&s->lock);
    return counters;
}
