/* The store's list of fills, and their places in ring and resident memory: see store_state.h. */
#include "engine/run/store_state.h"

#include <errno.h>

static bool joins_previous(const struct store *s, const struct visit *v, bool resident) {
    const struct fill *last = s->n_fills > s->oldest_fill ? &s->fills[s->n_fills - 1] : NULL;
    return last && !resident && !last->resident && last->stage == v->stage && last->number == v->block;
}

/* Index of the first fill (weights of one visit) of a resident block; -1 if none. */
static int resident_fill(const struct store *s, const struct visit *v) {
    for (int i = 0; i < s->n_fills; i++)
        if (s->fills[i].resident && s->fills[i].stage == v->stage && s->fills[i].number == v->block) return i;
    return -1;
}

void fills_skip_ready(const struct store *s, struct fill *f) {
    const struct resident_memory *memory = &s->o.residents->memory[f->stage];
    uint64_t base_start = f->block->adapter_bytes;
    if (!f->resident) return;
    if (!f->claimed && resident_memory_ready(memory, PACKED_ADAPTER, f->number)) f->claimed = base_start;
    if (f->claimed == base_start && resident_memory_ready(memory, PACKED_BASE, f->number))
        f->claimed = f->block->bytes;
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
                                        .number = v->block,
                                        .first_visit = i_visit,
                                        .resident = resident,
                                        .pooled = s->device && !resident && plan_is_pooled(p, v->block)};
        fills_skip_ready(s, &s->fills[found]);
    }
    s->fills[found].last_visit = i_visit;
    s->fill_of_visit[i_visit] = found;
}

void fills_list(struct store *s, int first_visit) {
    for (int i = first_visit; i < s->o.visits->n_visits; i++) list_fill(s, i);
}

void fills_drop_from(struct store *s, int visit) {
    int n = s->n_fills;
    while (n && s->fills[n - 1].first_visit >= visit) n--;
    s->n_fills = s->oldest_fill = n;
    if (s->next_place > n) s->next_place = n;
    if (s->next_claim > n) s->next_claim = n;
    for (int i = 0; i < n; i++) /* a fill of several visits that includes `visit` is read again */
        if (!s->fills[i].resident) s->fills[i].state = FILL_EMPTY;
    s->ring_wrap = n;
    s->ring_head = 0;
    s->ring_older = NULL;
}

static uint64_t largest_ring(const struct plan *plan) {
    uint64_t most = 0;
    for (int i = 0; i < plan->n_stages; i++)
        if (plan->stage[i].ring_bytes > most) most = plan->stage[i].ring_bytes;
    return most;
}

enum status ring_reserve(struct store *s, struct error *e) {
    s->ring_reserved = largest_ring(s->o.plan);
    if (!s->ring_reserved) return OK;
    s->ring = weights_reserve(s->o.sys, s->device, s->ring_reserved);
    if (s->ring) return OK;
    return error_set(e, MEMORY, "no memory for a ring of %llu bytes", (unsigned long long)s->ring_reserved);
}

int ring_commit(struct store *s, uint64_t bytes) {
    uint64_t now = s->ring_committed;
    int failed = 0;
    if (bytes < now) weights_decommit(s->o.sys, s->device, s->ring + bytes, now - bytes);
    if (bytes > now) failed = weights_commit(s->o.sys, s->device, s->ring + now, bytes - now);
    if (!failed) s->ring_committed = bytes;
    return failed;
}

int ring_renew(struct store *s, uint64_t bytes) {
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

static char *end_of(const struct fill *f) {
    return fill_address(f) + f->block->bytes;
}

/* Returns the ring's head to offset 0. Fills (weights of a visit) below the old head join the list
 * ring_older. */
static void wrap_ring(struct store *s) {
    for (int i = s->next_place - 1; i >= s->ring_wrap; i--) {
        if (s->fills[i].resident) continue;
        s->fills[i].above = s->ring_older;
        s->ring_older = &s->fills[i];
    }
    s->ring_wrap = s->next_place;
    s->ring_head = 0;
}

/* Places a fill in the ring; false if it does not fit. Older fills that the new fill overwrites entirely
 * leave the list ring_older. */
static bool place_in_ring(struct store *s, struct fill *f) {
    uint64_t here = s->o.plan->stage[s->stage].ring_bytes, there = s->o.plan->stage[f->stage].ring_bytes;
    uint64_t limit =
        here < there ? here : there; /* the place lies in the rings of both stages (invariant I7) */
    if (f->block->bytes > limit) return false;
    if (s->ring_head + f->block->bytes > limit) wrap_ring(s);
    f->place = packed_contiguous(f->block, s->ring + s->ring_head);
    f->over = s->ring_older;
    s->ring_head += f->block->bytes;
    while (s->ring_older && end_of(s->ring_older) <= end_of(f)) s->ring_older = s->ring_older->above;
    return true;
}

/* True if the plan of a stage limits prefetching. The device may lag behind the host, so copies into the ring
 * must then also wait for the device event of the last release. */
static bool limits_prefetch(const struct plan_stage *p) {
    return p->depth || p->no_wrap || p->waits;
}

/* True if the plan's depth, no_wrap and waits (see plan.h) allow this fill to be placed now. */
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
    struct fill *f = &s->fills[s->next_place];
    if (f->stage > s->stage + (f->resident || f->pooled ? 0 : 1) || !may_prefetch(s, f)) return false;
    if (f->resident) {
        f->place = resident_memory_place(&s->o.residents->memory[f->stage], f->number);
    } else if (!place_in_ring(s, f)) {
        return false;
    }
    f->event = limits_prefetch(&s->o.plan->stage[s->stage]) ? s->event : 0;
    f->state = f->claimed == f->block->bytes
                   ? FILL_READY
                   : FILL_FILLING; /* a resident block that an earlier run filled is READY (I6) */
    s->next_place++;               /* fills are placed in visit order (invariant I5) */
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

void fills_empty(struct fill *f, uint64_t event) {
    f->released = event;
    f->state = FILL_EMPTY; /* only now may the fill's space be reused (invariant I3) */
}
