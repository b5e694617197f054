/* The life of fills: the store opens, lists the fills of a plan, places them in ring and resident memory, and
 * gives them to visits (acquire, await, release); stages begin and end, and the plan may change. Implements
 * store.h, which lists states and invariants; store_pieces.c moves the bytes. */
#include "engine/run/store_state.h"

#include <errno.h>
#include <string.h>

void fills_skip_ready(const struct store *s, struct fill *f) {
    const struct resident_memory *memory = &s->o.residents->memory[f->stage];
    uint64_t base_start = f->block->adapter_bytes;
    if (!f->resident) return;
    if (!f->claimed && resident_memory_ready(memory, PACKED_ADAPTER, f->number)) f->claimed = base_start;
    if (f->claimed == base_start && resident_memory_ready(memory, PACKED_BASE, f->number))
        f->claimed = f->block->bytes;
}

/* Appends the fills of the visits from first_visit on. A resident block has one fill; consecutive visits of a
 * streamed block share a fill. */
static void fills_list(struct store *s, int first_visit) {
    for (int i = first_visit; i < s->o.visits->n_visits; i++) {
        const struct visit *v = &s->o.visits->visits[i];
        const struct block *block = s->o.stages[v->stage].blocks[v->block];
        const struct plan_stage *p = &s->o.plan->stage[v->stage];
        bool resident = plan_is_resident(p, v->block);
        s->fill_of_visit[i] = -1;
        if (!block->bytes) continue;
        int found = resident ? 0 : s->n_fills > s->oldest_fill ? s->n_fills - 1 : s->n_fills;
        for (; found < s->n_fills; found++) {
            const struct fill *f = &s->fills[found];
            if (f->resident == resident && f->stage == v->stage && f->number == v->block) break;
        }
        if (found == s->n_fills) {
            s->fills[s->n_fills++] =
                (struct fill){.block = block,
                              .stage = v->stage,
                              .number = v->block,
                              .first_visit = i,
                              .resident = resident,
                              .pooled = s->device && !resident && plan_is_pooled(p, v->block)};
            fills_skip_ready(s, &s->fills[found]);
        }
        s->fills[found].last_visit = i;
        s->fill_of_visit[i] = found;
    }
}

/* Drops the fills of visits from `visit` on, except fills of residents in memory. Leaves the ring empty. */
static void fills_drop_from(struct store *s, int visit) {
    int n = s->n_fills;
    while (n && s->fills[n - 1].first_visit >= visit) n--;
    s->n_fills = s->oldest_fill = n;
    if (s->next_place > n) s->next_place = n;
    if (s->next_claim > n) s->next_claim = n;
    /* Also empties a fill of several visits that includes `visit`: its bytes are read again. */
    for (int i = 0; i < n; i++)
        if (!s->fills[i].resident) s->fills[i].state = FILL_EMPTY;
    s->ring_wrap = n;
    s->ring_head = 0;
    s->ring_older = NULL;
}

/* Largest ring of all stages in bytes. */
static uint64_t largest_ring(const struct plan *plan) {
    uint64_t most = 0;
    for (int i = 0; i < plan->n_stages; i++)
        if (plan->stage[i].ring_bytes > most) most = plan->stage[i].ring_bytes;
    return most;
}

/* Grows or shrinks the committed bytes of the ring. Returns 0 or a negative errno. */
static int ring_commit(struct store *s, uint64_t bytes) {
    uint64_t now = s->ring_committed;
    int failed = 0;
    if (bytes < now) weights_decommit(s->o.sys, s->device, s->ring + bytes, now - bytes);
    if (bytes > now) failed = weights_commit(s->o.sys, s->device, s->ring + now, bytes - now);
    if (!failed) s->ring_committed = bytes;
    return failed;
}

/* Resizes the ring after a change of plan; returns like ring_commit. A ring that needs more address space
 * moves, and must be empty. */
static int ring_renew(struct store *s, uint64_t bytes) {
    uint64_t most = largest_ring(s->o.plan);
    if (bytes && most > s->ring_reserved) {
        ring_commit(s, 0);
        if (s->ring) weights_unreserve(s->o.sys, s->device, s->ring, s->ring_reserved);
        s->ring = weights_reserve(s->o.sys, s->device, most);
        s->ring_reserved = s->ring ? most : 0;
        if (!s->ring) return -ENOMEM;
    }
    return ring_commit(s, bytes);
}

/* Address of the first byte after a fill's place in the ring. */
static char *end_of(const struct fill *f) {
    return fill_address(f) + f->block->bytes;
}

/* Places a fill in the ring; false if it does not fit. Older fills that the new fill overwrites entirely
 * leave the list ring_older. */
static bool place_in_ring(struct store *s, struct fill *f) {
    uint64_t here = s->o.plan->stage[s->stage].ring_bytes, there = s->o.plan->stage[f->stage].ring_bytes;
    /* The place must lie in the current and in the fill's stage's ring (invariant I7). */
    uint64_t limit = here < there ? here : there;
    if (f->block->bytes > limit) return false;
    if (s->ring_head + f->block->bytes > limit) {
        /* Wraps around: the next place is at offset 0. Fills below the old ring head join the list
         * ring_older. */
        for (int i = s->next_place - 1; i >= s->ring_wrap; i--) {
            if (s->fills[i].resident) continue;
            s->fills[i].above = s->ring_older;
            s->ring_older = &s->fills[i];
        }
        s->ring_wrap = s->next_place;
        s->ring_head = 0;
    }
    f->place = packed_contiguous(f->block, s->ring + s->ring_head);
    f->over = s->ring_older;
    s->ring_head += f->block->bytes;
    while (s->ring_older && end_of(s->ring_older) <= end_of(f)) s->ring_older = s->ring_older->above;
    return true;
}

/* True if the plan's depth, no_wrap and waits (limits on prefetching, plan.h) allow this fill to be placed
 * now. */
static bool may_prefetch(const struct store *s, const struct fill *f) {
    const struct plan_stage *p = &s->o.plan->stage[s->stage];
    const struct visit *visits = s->o.visits->visits;
    if (f->first_visit <= s->current_visit) return true;
    if (p->waits || (p->depth && f->first_visit > s->current_visit + p->depth)) return false;
    if (!p->no_wrap) return true;
    return s->current_visit >= 0 && f->stage == s->stage &&
           visits[f->first_visit].evaluation <= visits[s->current_visit].evaluation;
}

bool fills_place_next(struct store *s) {
    if (s->next_place == s->n_fills || s->next_claim < s->next_place || s->stage < 0) return false;
    const struct plan_stage *p = &s->o.plan->stage[s->stage];
    struct fill *f = &s->fills[s->next_place];
    if (f->stage > s->stage + (f->resident || f->pooled ? 0 : 1) || !may_prefetch(s, f)) return false;
    if (f->resident) {
        f->place = resident_memory_place(&s->o.residents->memory[f->stage], f->number);
    } else if (!place_in_ring(s, f)) {
        return false;
    }
    /* If the plan limits prefetching, the device may lag behind the host. Copies into the ring must then also
     * wait for the device event of the last release. */
    f->event = p->depth || p->no_wrap || p->waits ? s->event : 0;
    /* a resident block that an earlier run filled is READY (I6) */
    f->state = f->claimed == f->block->bytes ? FILL_READY : FILL_FILLING;
    s->next_place++; /* fills are placed in visit order (invariant I5) */
    return true;
}

bool fills_place_is_free(struct fill *f, uint64_t from, uint64_t to, uint64_t *event) {
    *event = f->event;
    if (f->resident) return true;
    while (f->over && end_of(f->over) <= fill_address(f) + from) f->over = f->over->above;
    for (const struct fill *o = f->over; o && fill_address(o) < fill_address(f) + to; o = o->above) {
        if (o->state != FILL_EMPTY) return false;
        if (o->released > *event) *event = o->released;
    }
    return true;
}

/* Lays out resident memory and host pools. grow true: only parts that need more memory than before; false:
 * only the other parts. */
static void lay_out_stages(struct store *s, bool grow) {
    static const uint64_t none[PLAN_BLOCKS_MAX / 64];
    struct residents *r = s->o.residents;
    for (int i = 0; i < s->o.plan->n_stages; i++) {
        const struct plan_stage *p = &s->o.plan->stage[i];
        const struct store_stage *stage = &s->o.stages[i];
        resident_memory_lay_out(&r->memory[i], s->o.sys, s->device, stage, p->resident, grow);
        resident_memory_lay_out(&r->pool[i], s->o.sys, NULL, stage, s->device ? p->pooled : none, grow);
    }
}

/* Lays out resident memory for this run; frees memory of earlier runs that the plan does not keep. */
static void lay_out_resident_memory(struct store *s) {
    struct residents *r = s->o.residents;
    int n = s->o.plan->n_stages;
    if (!s->o.plan->keep) residents_destroy(r);
    resident_memory_match(r->memory, s->o.stages, n);
    resident_memory_match(r->pool, s->o.stages, n);
    for (int i = n; i < PLAN_STAGES_MAX; i++) { /* an earlier run had more stages: frees their memory */
        resident_memory_end(&r->memory[i], s->o.sys, s->device);
        resident_memory_end(&r->pool[i], s->o.sys, NULL);
    }
    lay_out_stages(s, false);
    lay_out_stages(s, true);
}

enum status store_open(const struct store_options *options, struct store **store, struct error *e) {
    struct sys *sys = options->sys;
    struct store *s = *store = sys_new(sys, 1, sizeof *s, "the weight store", e);
    if (!s) return e->code;
    size_t n = (size_t)options->visits->n_visits;
    s->o = *options;
    if (s->o.readers > STORE_READERS_MAX) s->o.readers = STORE_READERS_MAX;
    s->device = options->residents->device;
    s->stage = s->current_visit = -1;
    pthread_mutex_init(&s->lock, NULL);
    sys_cond_init(&s->work);
    sys_cond_init(&s->ready);
    lay_out_resident_memory(s); /* frees memory of earlier runs that is not kept, before this run allocates */
    s->fills = sys_new(sys, n, sizeof *s->fills, "the weight store", e);
    s->fill_of_visit = sys_new(sys, n, sizeof *s->fill_of_visit, "the weight store", e);
    s->ring_reserved = largest_ring(s->o.plan);
    if (s->ring_reserved && e->code == OK) {
        s->ring = weights_reserve(sys, s->device, s->ring_reserved);
        if (!s->ring)
            error_set(e, MEMORY, "no memory for a ring of %llu bytes", (unsigned long long)s->ring_reserved);
    }
    if (e->code == OK) {
        fills_list(s, 0);
        pieces_open(s, e);
    }
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
    s->o.sys->wake(s->o.sys, &s->work);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_threads; i++) sys->thread_join(sys, s->readers[i].thread);
    if (s->stage >= 0) store_end_stage(s, s->stage);
    ring_commit(s, 0);
    if (s->ring) weights_unreserve(sys, s->device, s->ring, s->ring_reserved);
    sys->unmap(sys, LINE_STORE, s->bounce_memory, s->bounce_bytes);
    sys->release(sys, s->work_memory);
    pthread_cond_destroy(&s->ready);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    sys->release(sys, s->fill_of_visit);
    sys->release(sys, s->fills);
    sys->release(sys, s);
}

enum status store_begin_stage(struct store *s, int stage, struct error *e) {
    const struct plan_stage *p = &s->o.plan->stage[stage];
    struct residents *r = s->o.residents;
    if (ring_renew(s, p->ring_bytes)) /* keeps blocks prefetched for this stage (invariant I7) */
        return error_set(e, MEMORY, "no memory for a ring of %llu bytes", (unsigned long long)p->ring_bytes);
    if (resident_memory_begin(&r->memory[stage], s->o.sys, s->device, e) != OK ||
        (s->device && resident_memory_begin(&r->pool[stage], s->o.sys, NULL, e) != OK))
        return e->code;
    uint64_t pinned_bytes = p->pinned_bytes;
    for (int i = PACKED_PARTS - 1; i >= 0; i--) { /* pins base weights, then adapter bytes */
        struct resident_part *part = &r->pool[stage].part[i];
        uint64_t bytes = pinned_bytes < part->bytes ? pinned_bytes : part->bytes;
        if (part->base) s->o.sys->use_large_pages(s->o.sys, part->base, part->bytes);
        pins_begin(&part->pins, s->device, part->base, bytes);
        pinned_bytes -= bytes;
    }
    pthread_mutex_lock(&s->lock);
    if (pieces_open_staging(s, p->staging_bytes, e) == OK) s->stage = stage;
    s->o.sys->wake(s->o.sys, &s->work);
    pthread_mutex_unlock(&s->lock);
    return e->code;
}

void store_end_stage(struct store *s, int stage) {
    pthread_mutex_lock(&s->lock);
    s->stage = -1; /* no weights are placed until the next stage has memory */
    pieces_abandon(s, stage);
    pieces_close_staging(s);
    pthread_mutex_unlock(&s->lock);
    struct residents *r = s->o.residents;
    if (s->o.plan->keep) return;
    resident_memory_end(&r->memory[stage], s->o.sys, s->device);
    resident_memory_end(&r->pool[stage], s->o.sys, NULL);
}

void residents_destroy(struct residents *residents) {
    for (int i = 0; i < PLAN_STAGES_MAX; i++) {
        resident_memory_end(&residents->memory[i], residents->sys, residents->device);
        resident_memory_end(&residents->pool[i], residents->sys, NULL);
    }
}

enum status store_replan(struct store *s, const struct plan *plan, int visit, struct error *e) {
    int stage = s->stage;
    pthread_mutex_lock(&s->lock);
    s->stage = -1; /* no weights are placed while the plan changes */
    for (int k = 0; k < s->o.plan->n_stages; k++) pieces_abandon(s, k);
    if (s->device) s->device->memory->finish(s->device);
    for (int k = 0; k < plan->n_stages; k++) /* evicts the residents that the new plan lacks */
        resident_memory_reduce(&s->o.residents->memory[k], s->o.sys, s->device, &s->o.stages[k],
                               plan->stage[k].resident);
    fills_drop_from(s, visit);
    s->o.plan = plan;
    fills_list(s, visit);
    s->stage = stage;
    s->current_visit = visit - 1; /* a repeated evaluation begins at an earlier visit */
    uint64_t ring_bytes = stage < 0 ? 0 : plan->stage[stage].ring_bytes;
    if (ring_renew(s, ring_bytes))
        error_set(e, MEMORY, "no memory for a ring of %llu bytes", (unsigned long long)ring_bytes);
    s->o.sys->wake(s->o.sys, &s->work);
    pthread_mutex_unlock(&s->lock);
    return e->code;
}

/* True if the fill is placed and its bytes [0, to) have arrived. */
static bool has_arrived(const struct store *s, const struct fill *f, uint64_t to) {
    return (f->state == FILL_FILLING || f->state == FILL_READY) && pieces_arrived(s, f) >= to;
}

/* Waits until the fill is placed and bytes [0, to) of the fill have arrived. Releases the lock meanwhile. */
static enum status wait_for(struct store *s, struct fill *f, uint64_t to, struct error *e) {
    const double poll_seconds = 20e-3;
    double since = s->o.sys->clock(s->o.sys);
    bool go_on = true;
    if (!s->n_threads && s->error.code == OK)
        return error_set(e, INTERNAL, "a weight block found no place in the ring");
    while (!has_arrived(s, f, to) && s->error.code == OK && go_on) {
        s->o.sys->wait(s->o.sys, &s->ready, &s->lock, poll_seconds);
        pthread_mutex_unlock(&s->lock);
        go_on = !s->o.tick || s->o.tick(s->o.tick_user);
        pthread_mutex_lock(&s->lock);
    }
    s->counters.stall_seconds += s->o.sys->clock(s->o.sys) - since;
    bool arrived = has_arrived(s, f, to);
    if (!arrived && s->error.code != OK && e->code == OK)
        *e = s->error; /* reports a failed fill (invariant I4) */
    if (!arrived && !go_on) error_set(e, CANCELLED, "cancelled while waiting for weights");
    return arrived ? OK : e->code; /* OK only after the bytes have arrived (invariant I2) */
}

enum status store_acquire(struct store *s, int visit, struct packed_place *place, struct error *e) {
    *place = (struct packed_place){{NULL}};
    if (s->fill_of_visit[visit] < 0) return OK;
    struct fill *f = &s->fills[s->fill_of_visit[visit]];
    pthread_mutex_lock(&s->lock);
    s->current_visit = visit;
    s->o.sys->wake(s->o.sys, &s->work);
    pieces_move_inline(s);
    enum status status = has_arrived(s, f, 0) ? OK : wait_for(s, f, 0, e);
    if (status == OK && !s->device) f->awaited = pieces_arrived(s, f);
    pthread_mutex_unlock(&s->lock);
    if (status == OK) *place = f->place;
    return status;
}

enum status store_await(struct store *s, int visit, uint64_t to, struct error *e) {
    if (s->fill_of_visit[visit] < 0) return OK;
    struct fill *f = &s->fills[s->fill_of_visit[visit]];
    uint64_t fence = 0;
    if (to > f->block->bytes) to = f->block->bytes;
    if (to <= f->awaited) return OK; /* no lock needed for bytes that were awaited before */
    pthread_mutex_lock(&s->lock);
    enum status status = has_arrived(s, f, to) ? OK : wait_for(s, f, to, e);
    if (status == OK) fence = pieces_last_fence(s, f, &to);
    pthread_mutex_unlock(&s->lock);
    if (status != OK) return status;
    f->awaited = to;
    if (!s->device) return OK;
    /* waits without holding the store's lock, so that readers continue */
    store_add_stall(s, s->device->memory->await_copy(s->device, fence));
    return OK;
}

void store_release(struct store *s, int visit) {
    if (s->fill_of_visit[visit] < 0) return;
    struct fill *f = &s->fills[s->fill_of_visit[visit]];
    uint64_t event = s->device ? s->device->memory->record_event(s->device) : 0;
    bool empties = !f->resident && f->last_visit == visit;
    pthread_mutex_lock(&s->lock);
    if (empties && f->state != FILL_READY)
        pieces_cancel(s, f); /* invariant I1: no reader may write memory that is about to be freed */
    pthread_mutex_unlock(&s->lock);
    if (empties && !s->device) s->o.sys->discard(s->o.sys, fill_address(f), f->block->bytes);
    pthread_mutex_lock(&s->lock);
    s->event = event;
    if (empties) {
        f->released = event;
        f->state = FILL_EMPTY; /* only now may the fill's space be reused (invariant I3) */
    }
    s->o.sys->wake(s->o.sys, &s->work);
    pieces_move_inline(s);
    pthread_mutex_unlock(&s->lock);
}

void store_add_stall(struct store *s, double seconds) {
    pthread_mutex_lock(&s->lock);
    s->counters.stall_seconds += seconds;
    pthread_mutex_unlock(&s->lock);
}

struct store_counters store_count(struct store *s) {
    pthread_mutex_lock(&s->lock);
    struct store_counters counters = s->counters;
    pthread_mutex_unlock(&s->lock);
    return counters;
}
