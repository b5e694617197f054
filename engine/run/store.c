/* The store: see store.h for the states and the invariants. */
#include "engine/run/store.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

enum { PIECE_BYTES = 8 << 20, READERS_MAX = 8 };

enum fill_state { FILL_EMPTY, FILL_FILLING, FILL_READY, FILL_FAILED };

/* The weights of one visit, or of several visits of one block that follow each other. */
struct fill {
    const struct block *block;
    int stage, place; /* place: the block's in the stage */
    int last_visit;   /* its release empties a ring slot */
    bool resident;
    enum fill_state state;
    char *address;
    int segment; /* next piece to claim: segment and byte within it */
    uint64_t segment_done;
    int pieces_in_flight;
};

struct store {
    struct store_options o;
    struct fill *fills;
    int n_fills;
    int *fill_of_visit; /* -1: a block without weights */

    pthread_mutex_t lock;       /* guards everything below and all fills */
    pthread_cond_t work, ready; /* readers wait for work, acquire for ready */
    struct sys_thread *threads[READERS_MAX];
    int n_threads;
    bool stopping;

    int stage;      /* the active one, or -1 */
    int next_place; /* next fill to place */
    int next_claim; /* first fill that may have unclaimed pieces */
    char *ring;
    uint64_t ring_reserved, ring_committed;
    uint64_t ring_head; /* where the next fill goes */
    int ring_oldest;    /* oldest live ring fill; n_fills if none */

    struct error error; /* of the first read that failed */
    struct store_counters counters;
};

/* ---- ring ---- */

static int next_live(const struct store *s, int from) {
    while (from < s->next_place && (s->fills[from].resident || s->fills[from].state == FILL_EMPTY)) from++;
    return from;
}

/* Finds room for n bytes, or returns false. Live bytes are [tail, head) or, wrapped, [tail, end) and [0,
 * head). */
static bool place_in_ring(struct store *s, uint64_t n, uint64_t limit, uint64_t *at) {
    bool empty = s->ring_oldest >= s->next_place;
    if (empty) {
        *at = 0;
        return n <= limit;
    }
    uint64_t tail = (uint64_t)(s->fills[s->ring_oldest].address - s->ring);
    if (s->ring_head > tail) {
        if (s->ring_head + n <= limit)
            *at = s->ring_head;
        else if (n <= tail && n <= limit)
            *at = 0;
        else
            return false;
        return true;
    }
    *at = s->ring_head;
    return s->ring_head + n <= tail && s->ring_head + n <= limit;
}

static uint64_t ring_limit(const struct store *s, const struct fill *f) {
    uint64_t here = s->o.plan->stage[s->stage].ring_bytes, there = s->o.plan->stage[f->stage].ring_bytes;
    return here < there ? here : there; /* I7 */
}

/* Gives the next fill its place if it can have one. */
static bool place_next(struct store *s) {
    if (s->next_place == s->n_fills || s->stage < 0) return false;
    struct fill *f = &s->fills[s->next_place];
    if (f->stage > s->stage + (f->resident ? 0 : 1)) return false;
    if (f->resident) {
        struct resident_area *area = &s->o.residents->area[f->stage];
        f->address = area->memory + area->offset[f->place];
    } else {
        uint64_t at;
        if (!place_in_ring(s, f->block->bytes, ring_limit(s, f), &at)) return false;
        f->address = s->ring + at;
        s->ring_head = at + f->block->bytes;
    }
    f->state = FILL_FILLING;
    s->next_place++; /* I5 */
    s->ring_oldest = next_live(s, s->ring_oldest);
    return true;
}

/* ---- readers ---- */

struct piece {
    struct fill *fill;
    const struct byte_source *source;
    char *to;
    uint64_t offset, bytes;
};

/* Takes the next unread piece of the earliest placed fill. */
static bool claim_piece(struct store *s, struct piece *piece) {
    for (; s->next_claim < s->next_place; s->next_claim++) {
        struct fill *f = &s->fills[s->next_claim];
        if (f->state != FILL_FILLING || f->segment == f->block->n_segments) continue;
        const struct image_segment *segment = &f->block->segments[f->segment];
        uint64_t left = segment->bytes - f->segment_done;
        *piece = (struct piece){
            .fill = f,
            .source = &f->block->index->sources[segment->source],
            .to = f->address + segment->image_offset + f->segment_done,
            .offset = segment->file_offset + f->segment_done,
            .bytes = left < PIECE_BYTES ? left : PIECE_BYTES,
        };
        f->segment_done += piece->bytes;
        if (f->segment_done == segment->bytes) f->segment++, f->segment_done = 0;
        f->pieces_in_flight++;
        return true;
    }
    return false;
}

static void finish_piece(struct store *s, const struct piece *piece, const struct error *e) {
    struct fill *f = piece->fill;
    f->pieces_in_flight--;
    if (e->code != OK) {
        if (s->error.code == OK) s->error = *e;
        f->state = FILL_FAILED; /* I4 */
    } else {
        s->counters.bytes_moved += (int64_t)piece->bytes;
    }
    if (f->pieces_in_flight || f->segment < f->block->n_segments) return;
    if (f->state == FILL_FILLING) {
        f->state = FILL_READY;
        if (f->resident) s->o.residents->area[f->stage].ready[f->place] = true;
    }
    pthread_cond_broadcast(&s->ready);
}

static void reader_main(void *argument) {
    struct store *s = argument;
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        struct piece piece;
        if (s->error.code == OK && claim_piece(s, &piece)) {
            pthread_mutex_unlock(&s->lock);
            struct error e = {0};
            source_read(piece.source, piece.to, piece.bytes, piece.offset, &e); /* I1 */
            pthread_mutex_lock(&s->lock);
            finish_piece(s, &piece, &e);
        } else if (s->error.code == OK && place_next(s)) {
            pthread_cond_broadcast(&s->work);
        } else {
            if (s->error.code != OK) pthread_cond_broadcast(&s->ready);
            pthread_cond_wait(&s->work, &s->lock);
        }
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- opening ---- */

/* Kept residents are those of the same blocks at the same places; anything else is given back. */
static bool same_layout(const struct resident_area *area, const struct run_need *need,
                        const struct plan *plan, const struct store_stage *stage, int i_stage) {
    const struct plan_stage *p = &plan->stage[i_stage];
    if (!plan->keep || !area->memory || area->bytes != p->resident_bytes || area->first != stage->blocks[0])
        return false;
    for (int i = 0; i < stage->n_lasting; i++)
        if (plan_is_resident(p, i) != (area->resident[i / 64] >> (i % 64) & 1) ||
            (plan_is_resident(p, i) && area->offset[i] != plan_resident_offset(&need->stage[i_stage], p, i)))
            return false;
    return true;
}

static void give_back_area(struct sys *sys, struct resident_area *area) {
    sys->unmap(sys, LINE_STORE, area->memory, area->bytes);
    memset(area, 0, sizeof *area);
}

static void lay_out_residents(struct store *s, int i_stage) {
    struct resident_area *area = &s->o.residents->area[i_stage];
    const struct store_stage *stage = &s->o.stages[i_stage];
    const struct plan_stage *p = &s->o.plan->stage[i_stage];
    if (!same_layout(area, s->o.need, s->o.plan, stage, i_stage)) give_back_area(s->o.sys, area);
    area->first = stage->blocks[0];
    memcpy(area->resident, p->resident, sizeof area->resident);
    for (int i = 0; i < stage->n_blocks; i++) {
        area->offset[i] = plan_resident_offset(&s->o.need->stage[i_stage], p, i);
        if (i >= stage->n_lasting) area->ready[i] = false;
    }
}

static bool joins_previous(const struct store *s, const struct visit *v, bool resident) {
    const struct fill *last = s->n_fills ? &s->fills[s->n_fills - 1] : NULL;
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
    bool resident = plan_is_resident(&s->o.plan->stage[v->stage], v->block);
    int found = -1;
    if (!block->bytes) {
        s->fill_of_visit[i_visit] = -1;
        return;
    }
    if (resident) found = resident_fill(s, v);
    if (joins_previous(s, v, resident)) found = s->n_fills - 1;
    if (found < 0) {
        found = s->n_fills++;
        s->fills[found] =
            (struct fill){.block = block, .stage = v->stage, .place = v->block, .resident = resident};
        if (resident && s->o.residents->area[v->stage].ready[v->block]) {
            s->fills[found].segment = block->n_segments; /* kept from the run before: nothing to read */
        }
    }
    s->fills[found].last_visit = i_visit;
    s->fill_of_visit[i_visit] = found;
}

static enum status allocate(struct store *s, struct error *e) {
    struct sys *sys = s->o.sys;
    size_t n = (size_t)s->o.visits->n_visits;
    s->fills = sys->alloc(sys, LINE_HOST, n * sizeof *s->fills);
    s->fill_of_visit = sys->alloc(sys, LINE_HOST, n * sizeof *s->fill_of_visit);
    for (int i = 0; i < s->o.plan->n_stages; i++)
        if (s->o.plan->stage[i].ring_bytes > s->ring_reserved)
            s->ring_reserved = s->o.plan->stage[i].ring_bytes;
    if (s->ring_reserved) s->ring = sys->reserve(sys, s->ring_reserved);
    if (s->fills && s->fill_of_visit && (s->ring || !s->ring_reserved)) return OK;
    return error_set(e, MEMORY, "no memory for the store of %zu visits", n);
}

enum status store_open(const struct store_options *options, struct store **store, struct error *e) {
    struct sys *sys = options->sys;
    struct store *s = sys->alloc(sys, LINE_HOST, sizeof *s);
    *store = s;
    if (!s) return error_set(e, MEMORY, "no memory for the store");
    s->o = *options;
    s->stage = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->ready, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (allocate(s, e) != OK) goto out;
    for (int i = 0; i < s->o.plan->n_stages; i++) lay_out_residents(s, i);
    for (int i = s->o.plan->n_stages; i < PLAN_STAGES_MAX;
         i++) /* of a run of more stages: not in this plan */
        give_back_area(s->o.sys, &s->o.residents->area[i]);
    for (int i = 0; i < s->o.visits->n_visits; i++) list_fill(s, i);
    for (int i = 0; i < options->readers && i < READERS_MAX; i++) {
        int failed = sys->thread_start(sys, &s->threads[i], reader_main, s);
        if (failed) {
            error_set(e, DEVICE, "cannot start a reader thread");
            error_found(e, "%s", strerror(-failed));
            break;
        }
        s->n_threads++;
    }
out:
    if (e->code != OK) {
        store_close(s);
        *store = NULL;
    }
    return e->code;
}

void store_close(struct store *s) {
    if (!s) return;
    struct sys *sys = s->o.sys;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_threads; i++) sys->thread_join(sys, s->threads[i]);
    if (s->stage >= 0) store_end_stage(s, s->stage);
    if (s->ring_committed) sys->decommit(sys, LINE_STORE, s->ring, s->ring_committed);
    sys->unreserve(sys, s->ring, s->ring_reserved);
    pthread_cond_destroy(&s->ready);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    sys->release(sys, s->fill_of_visit);
    sys->release(sys, s->fills);
    sys->release(sys, s);
}

/* ---- stages ---- */

/* Grows or shrinks the ring's pages to this stage's size; live bytes lie within both (I7). */
static enum status resize_ring(struct store *s, uint64_t bytes, struct error *e) {
    struct sys *sys = s->o.sys;
    if (bytes < s->ring_committed)
        sys->decommit(sys, LINE_STORE, s->ring + bytes, s->ring_committed - bytes);
    else if (bytes > s->ring_committed &&
             sys->commit(sys, LINE_STORE, s->ring + s->ring_committed, bytes - s->ring_committed))
        return error_set(e, MEMORY, "no memory for a ring of %llu bytes", (unsigned long long)bytes);
    s->ring_committed = bytes;
    return OK;
}

enum status store_begin_stage(struct store *s, int stage, struct error *e) {
    struct sys *sys = s->o.sys;
    const struct plan_stage *p = &s->o.plan->stage[stage];
    struct resident_area *area = &s->o.residents->area[stage];
    if (resize_ring(s, p->ring_bytes, e) != OK) return e->code;
    if (p->resident_bytes && !area->memory) {
        area->memory = sys->map(sys, LINE_STORE, p->resident_bytes);
        if (!area->memory)
            return error_set(e, MEMORY, "no memory for residents of %llu bytes",
                             (unsigned long long)p->resident_bytes);
        area->bytes = p->resident_bytes;
    }
    pthread_mutex_lock(&s->lock);
    s->stage = stage;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    return OK;
}

/* A stage that is cut short may have fills under way: no more of them is claimed, and reads in flight are
 * waited for, because the memory that they write goes next. */
static void abandon_fills(struct store *s, int stage) {
    for (int i = 0; i < s->next_place; i++) {
        struct fill *f = &s->fills[i];
        if (f->stage != stage || (f->state != FILL_FILLING && f->state != FILL_FAILED)) continue;
        f->state = FILL_FAILED;
        f->segment = f->block->n_segments;
        while (f->pieces_in_flight) pthread_cond_wait(&s->ready, &s->lock);
    }
}

void store_end_stage(struct store *s, int stage) {
    pthread_mutex_lock(&s->lock);
    s->stage = -1; /* nothing is placed until the next stage has its memory */
    abandon_fills(s, stage);
    pthread_mutex_unlock(&s->lock);
    struct resident_area *area = &s->o.residents->area[stage];
    if (s->o.plan->keep) return;
    s->o.sys->unmap(s->o.sys, LINE_STORE, area->memory, area->bytes);
    area->memory = NULL;
    area->bytes = 0;
    memset(area->ready, 0, sizeof area->ready);
}

void residents_destroy(struct residents *residents) {
    for (int i = 0; i < PLAN_STAGES_MAX; i++) give_back_area(residents->sys, &residents->area[i]);
}

/* ---- visits ---- */

/* A fill that was kept has no pieces, so no reader ever finishes it. */
static bool is_ready(struct fill *f) {
    if (f->state == FILL_FILLING && f->segment == f->block->n_segments && !f->pieces_in_flight)
        f->state = FILL_READY;
    return f->state == FILL_READY;
}

static enum status wait_until_ready(struct store *s, struct fill *f, struct error *e) {
    enum { POLL_NS = 20000000 };
    double since = s->o.sys->clock(s->o.sys);
    bool go_on = true;
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
    pthread_cond_broadcast(&s->work);
    enum status status = is_ready(f) ? OK : wait_until_ready(s, f, e);
    pthread_mutex_unlock(&s->lock);
    if (status == OK) *image = f->address;
    return status;
}

void store_release(struct store *s, int visit) {
    if (s->fill_of_visit[visit] < 0) return;
    struct fill *f = &s->fills[s->fill_of_visit[visit]];
    if (f->resident || f->last_visit != visit) return;
    s->o.sys->discard(s->o.sys, f->address, f->block->bytes);
    pthread_mutex_lock(&s->lock);
    f->state = FILL_EMPTY; /* I3 */
    s->ring_oldest = next_live(s, s->ring_oldest);
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
}

struct store_counters store_count(struct store *s) {
    pthread_mutex_lock(&s->lock);
    struct store_counters counters = s->counters;
    pthread_mutex_unlock(&s->lock);
    return counters;
}
