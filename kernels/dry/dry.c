/* The dry device (dry.h), with a hash table of the primitives that were counted. */
#include "kernels/dry/dry.h"

#include "kernels/ops.h"

/* Returns the hash table entry of a primitive's id, or the unused entry where the id belongs. The table
 * always has unused entries. */
static uint64_t *place_of(uint64_t *table, int capacity, uint64_t id) {
    int i = (int)(id % (uint64_t)capacity);
    while (table[i] && table[i] != id) i = (i + 1) % capacity;
    return &table[i];
}

static enum status dry_grow(struct dry *d, struct error *e) {
    int capacity = d->capacity ? 2 * d->capacity : 256;
    uint64_t *table = d->sys->alloc(d->sys, LINE_HOST, (size_t)capacity * sizeof *table);
    if (!table) return error_set(e, MEMORY, "no memory for a table of %d primitives", capacity);
    for (int i = 0; i < d->capacity; i++)
        if (d->primitives[i]) *place_of(table, capacity, d->primitives[i]) = d->primitives[i];
    d->sys->release(d->sys, d->primitives);
    d->primitives = table;
    d->capacity = capacity;
    return OK;
}

static void dry_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    (void)device, (void)op;
    *cost = (struct op_cost){0};
}

static enum status dry_prepare(struct device *device, const struct op *op, struct error *e) {
    (void)device, (void)op, (void)e;
    return OK;
}

static enum status dry_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    (void)workspace;
    struct dry *d = (struct dry *)device;
    struct op_cost cost = {0};
    d->target->cost(d->target, op, &cost);
    if (d->rates) d->seconds += op_seconds(op, d->rates);
    if (d->pictures) d->picture_bytes += op_bytes_in(op, d->pictures);
    if (cost.workspace_bytes > d->workspace_bytes) d->workspace_bytes = cost.workspace_bytes;
    if (cost.internal_bytes > d->internal_bytes) d->internal_bytes = cost.internal_bytes;
    for (int i = 0; i < cost.n_primitives; i++) {
        uint64_t id = cost.primitive[i].id ? cost.primitive[i].id : 1;
        if (d->capacity && *place_of(d->primitives, d->capacity, id)) continue;
        if (2 * (d->n_primitives + 1) > d->capacity && dry_grow(d, e) != OK) return e->code;
        *place_of(d->primitives, d->capacity, id) = id;
        d->n_primitives++;
        d->primitives_bytes += cost.primitive[i].bytes;
    }
    return d->prepare ? d->target->prepare(d->target, op, e) : OK;
}

static void dry_device_destroy(struct device *device) {
    dry_destroy((struct dry *)device);
}

void dry_init(struct dry *dry, struct sys *sys, struct device *target, bool prepare) {
    *dry = (struct dry){
        .device = {.name = "dry",
                   .chunks = target->chunks,
                   .operands = target->operands,
                   .cost = dry_cost,
                   .prepare = dry_prepare,
                   .run = dry_run,
                   .destroy = dry_device_destroy},
        .sys = sys,
        .target = target,
        .prepare = prepare,
    };
}

void dry_destroy(struct dry *dry) {
    dry->sys->release(dry->sys, dry->primitives);
    dry->primitives = NULL;
    dry->n_primitives = dry->capacity = 0;
}
