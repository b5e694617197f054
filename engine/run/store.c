/* The store: opening, stages, and what happens at a visit. See store.h for states and invariants,
 * store_state.h for the other files. */
#include "engine/run/store_state.h"

#include <string.h>

static enum status allocate(struct store *s, struct error *e) {
    struct sys *sys = s->o.sys;
    size_t n = (size_t)s->o.visits->n_visits;
    s->fills = sys->alloc(sys, LINE_HOST, n * sizeof *s->fills);
    s->fill_of_visit = sys->alloc(sys, LINE_HOST, n * sizeof *s->fill_of_visit);
    if (s->fills && s->fill_of_visit)
        return ring_reserve(s, e) == OK && pieces_take_bounces(s, e) == OK ? pieces_take_work(s, e) : e->code;
    return error_set(e, MEMORY, "no memory for the weight store (%zu visits)", n);
}

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

static void lay_out_resident_memory(struct store *s) {
    struct residents *r = s->o.residents;
    int n = s->o.plan->n_stages;
    if (!s->o.plan->keep) residents_destroy(r);
    resident_memory_match(r->memory, s->o.stages, n);
    resident_memory_match(r->pool, s->o.stages, n);
    for (int i = n; i < PLAN_STAGES_MAX; i++) { /* frees memory of an earlier run that had more stages */
        resident_memory_end(&r->memory[i], s->o.sys, s->device);
        resident_memory_end(&r->pool[i], s->o.sys, NULL);
    }
    lay_out_stages(s, false);
    lay_out_stages(s, true);
}

enum status store_open(const struct store_options *options, struct store **store, struct error *e) {
    struct sys *sys = options->sys;
    struct store *s = sys->alloc(sys, LINE_HOST, sizeof *s);
    *store = s;
    if (!s) return error_set(e, MEMORY, "no memory for the weight store");
    s->o = *options;
    if (s->o.readers > STORE_READERS_MAX) s->o.readers = STORE_READERS_MAX;
    s->device = options->residents->device;
    s->stage = s->current_visit = -1;
    pthread_mutex_init(&s->lock, NULL);
    sys_cond_init(&s->work);
    sys_cond_init(&s->ready);
    lay_out_resident_memory(s); /* frees memory of earlier runs that is not kept, before this run allocates */
    if (allocate(s, e) != OK) goto out;
    fills_list(s, 0);
    pieces_start_readers(s, e);
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

/* Starts pinning base weights, then adapter bytes, up to pinned_bytes. */
static void begin_pinning(struct store *s, struct resident_memory *pool, uint64_t pinned_bytes) {
    for (int p = PACKED_PARTS - 1; p >= 0; p--) {
        struct resident_part *part = &pool->part[p];
        uint64_t bytes = pinned_bytes < part->bytes ? pinned_bytes : part->bytes;
        if (part->base) s->o.sys->use_large_pages(s->o.sys, part->base, part->bytes);
        pins_begin(&part->pins, s->device, part->base, bytes);
        pinned_bytes -= bytes;
    }
}

enum status store_begin_stage(struct store *s, int stage, struct error *e) {
    const struct plan_stage *p = &s->o.plan->stage[stage];
    struct residents *r = s->o.residents;
    if (ring_renew(s, p->ring_bytes)) /* keeps blocks prefetched for this stage (invariant I7) */
        return error_set(e, MEMORY, "no memory for a ring of %llu bytes", (unsigned long long)p->ring_bytes);
    if (resident_memory_begin(&r->memory[stage], s->o.sys, s->device, e) != OK ||
        (s->device && resident_memory_begin(&r->pool[stage], s->o.sys, NULL, e) != OK))
        return e->code;
    begin_pinning(s, &r->pool[stage], p->pinned_bytes);
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

/* Evicts the residents that the new plan lacks. Returns the pages of allocated residents; for unallocated
 * residents only the layout changes. */
static void evict_residents(struct store *s, const struct plan *plan) {
    for (int k = 0; k < plan->n_stages; k++)
        resident_memory_reduce(&s->o.residents->memory[k], s->o.sys, s->device, &s->o.stages[k],
                               plan->stage[k].resident);
}

enum status store_replan(struct store *s, const struct plan *plan, int visit, struct error *e) {
    int stage = s->stage;
    pthread_mutex_lock(&s->lock);
    s->stage = -1; /* no weights are placed while the plan changes */
    for (int k = 0; k < s->o.plan->n_stages; k++) pieces_abandon(s, k);
    if (s->device) s->device->memory->finish(s->device);
    evict_residents(s, plan);
    fills_drop_from(s, visit);
    s->o.plan = plan;
    fills_list(s, visit);
    s->stage = stage;
    s->current_visit = visit - 1; /* a repeated evaluation starts at an earlier visit */
    uint64_t ring_bytes = stage < 0 ? 0 : plan->stage[stage].ring_bytes;
    if (ring_renew(s, ring_bytes))
        error_set(e, MEMORY, "no memory for a ring of %llu bytes", (unsigned long long)ring_bytes);
    s->o.sys->wake(s->o.sys, &s->work);
    pthread_mutex_unlock(&s->lock);
    return e->code;
}

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
        *e = s->error; /* a failed fill is reported here (invariant I4) */
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
    if (to <= f->awaited) return OK; /* the bytes were awaited before: no lock needed */
    pthread_mutex_lock(&s->lock);
    enum status status = has_arrived(s, f, to) ? OK : wait_for(s, f, to, e);
    if (status == OK) fence = pieces_last_fence(s, f, &to);
    pthread_mutex_unlock(&s->lock);
    if (status != OK) return status;
    f->awaited = to;
    if (!s->device) return OK;
    /* not under the lock, so that readers continue */
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
    if (empties) fills_empty(f, event);
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
