/* Matches an adapter to a model. changes_find (adapter_changes.h) lists the changed weights without
 * duplicates; the functions here check shapes and make low-rank factors. */
#include "engine/open/adapter_shapes.h"
#include "engine/base/checked.h"
#include "engine/base/header_limit.h"
#include "loaders/alloc_array.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Memory limit for one adapter's factors in LoRA form. */
#define ADAPTER_DERIVED_BYTES_MAX (UINT64_C(1) << 30)

struct adapter_derived {
    float *values;
    struct byte_source source;
    char path[PATH_SHOWN];
};

struct derivation {
    struct derived_size size;
    uint64_t up, down; /* offsets in adapter_derived.values */
};

struct matching {
    const struct adapter *adapter;
    struct adapter_match *match;
    struct changes changes;
    struct derivation *derivations; /* LoRA form of each module; rank 0: unchanged */
    uint64_t derived_bytes;
};

static struct factor factor_of(const struct matching *m, const struct index_entry *entry) {
    struct factor f = {.name = entry->name,
                       .source = &m->adapter->index.sources[entry->source],
                       .offset = entry->offset,
                       .dtype = entry->dtype};
    return f;
}

static void take_parts(struct factor *f, const struct weight_name *name) {
    f->n_parts = name->n_parts;
    for (int i = 0; i < name->n_parts; i++) {
        f->part[i].first = name->part[i].first;
        f->part[i].rows = name->part[i].rows;
    }
}

static void shape_pair(struct adapted_weight *w, const struct weight_name *name, int64_t rank) {
    w->down.rank = name->rank;
    memcpy(w->down.dim, name->dim, sizeof name->dim);
    w->down.dim[0] = (int32_t)rank;
    w->up.rank = 2;
    w->up.dim[0] = name->rows;
    w->up.dim[1] = (int32_t)rank;
    take_parts(&w->up, name);
}

static uint64_t matrix_bytes(int64_t rows, int64_t columns) {
    return align_up((uint64_t)rows * (uint64_t)columns * sizeof(float), ARENA_ALIGN);
}

/* Assigns offsets to the factors of a module in LoRA form. The memory limit is checked before allocation,
 * because the file determines the sizes. */
static enum status place_derived(struct matching *m, const struct change *c, struct derivation *d,
                                 struct error *e) {
    const char *path = m->adapter->index.sources[0].path;
    d->up = m->derived_bytes;
    d->down = d->up + matrix_bytes(d->size.rows, d->size.rank);
    m->derived_bytes = d->down + matrix_bytes(d->size.rank, d->size.columns);
    if (m->derived_bytes <= ADAPTER_DERIVED_BYTES_MAX) return OK;
    return error_set(e, UNSUPPORTED,
                     "the adapter needs too much memory when its factors are multiplied out" WHERE "%s" FOUND
                     "%s of rank %" PRId64 ", among others" EXPECTED
                     "at most %d MiB; `sluice convert --lora` merges it into the weights instead",
                     path, adapter_form_name(c->module->form), d->size.rank,
                     (int)(ADAPTER_DERIVED_BYTES_MAX >> 20));
}

/* Largest rank of a module with full rank (rank at least the weight's shorter side). Modules above the limit
 * are refused, because their two factors are larger than the weight. */
enum { LOW_RANK = 64 };
static enum status check_rank(const struct matching *m, const struct change *c,
                              const struct derived_size *size, struct error *e) {
    const struct adapter_module *module = c->module;
    if (size->rank < (size->rows < size->columns ? size->rows : size->columns) || size->rank <= LOW_RANK)
        return OK;
    return error_set(e, UNSUPPORTED,
                     "module '%.*s' of the adapter has full rank" WHERE "%s" FOUND "%s of rank %" PRId64
                     " in [%" PRId64 ", %" PRId64 "]" EXPECTED
                     "a low rank; `sluice convert --lora` merges it into the weights instead",
                     module->name_bytes, module->name, m->adapter->index.sources[0].path,
                     adapter_form_name(module->form), size->rank, size->rows, size->columns);
}

static enum status add_derived(struct matching *m, const struct change *c, struct adapted_weight *w,
                               struct error *e) {
    struct derivation *d = &m->derivations[c->module - m->adapter->modules];
    bool first = !d->size.rank;
    if (change_check_shape(m->adapter, c, &d->size, e) != OK || check_rank(m, c, &d->size, e) != OK)
        return e->code;
    if (first && place_derived(m, c, d, e) != OK) return e->code;
    const char *name = c->module->name;
    w->up = (struct factor){.name = name, .offset = d->up, .dtype = DTYPE_F32};
    w->down = (struct factor){.name = name, .offset = d->down, .dtype = DTYPE_F32};
    shape_pair(w, c->name, d->size.rank);
    return OK;
}

static enum status add_product(struct matching *m, const struct change *c, struct error *e) {
    struct adapter_part *part = &m->match->part[c->name->slot];
    struct adapted_weight *w = &part->weights[part->n_weights++];
    *w = (struct adapted_weight){
        .block = c->name->block, .weight = c->name->weight, .scale = c->module->scale};
    if (adapter_is_derived(c->module)) return add_derived(m, c, w, e);
    struct derived_size none;
    if (change_check_shape(m->adapter, c, &none, e) != OK) return e->code;
    w->down = factor_of(m, c->module->tensor[ADAPTER_DOWN]);
    w->up = factor_of(m, c->module->tensor[ADAPTER_UP]);
    shape_pair(w, c->name, c->module->rank);
    return OK;
}

static enum status add_vector(struct matching *m, const struct change *c, struct error *e) {
    struct adapter_part *part = &m->match->part[c->name->slot];
    struct adapted_vector *v = &part->vectors[part->n_vectors++];
    struct derived_size none;
    if (change_check_shape(m->adapter, c, &none, e) != OK) return e->code;
    *v = (struct adapted_vector){.block = c->name->block,
                                 .weight = c->name->weight,
                                 .values = factor_of(m, c->vector),
                                 .scale = c->scale};
    v->values.rank = c->name->rank;
    memcpy(v->values.dim, c->name->dim, sizeof c->name->dim);
    v->values.dim[0] = c->name->rows;
    take_parts(&v->values, c->name);
    return OK;
}

static enum status derive_all(struct matching *m, struct error *e) {
    struct adapter_match *match = m->match;
    struct sys *sys = m->adapter->sys;
    const char *path = m->adapter->index.sources[0].path;
    struct adapter_derived *d = match->derived = alloc_array(sys, 1, sizeof *d, e);
    if (!d || header_limit_check(sys, path, m->derived_bytes, e) != OK) return e->code;
    d->values = alloc_array(sys, m->derived_bytes, 1, e);
    if (!d->values) return e->code;
    snprintf(d->path, sizeof d->path, "%s", path);
    d->source = source_of_memory(sys, d->path, d->values, m->derived_bytes);
    for (int i = 0; i < m->adapter->n_modules && e->code == OK; i++) {
        const struct derivation *one = &m->derivations[i];
        if (one->size.rank)
            adapter_derive(m->adapter, &m->adapter->modules[i], d->values + one->up / sizeof(float),
                           d->values + one->down / sizeof(float), e);
    }
    for (int slot = 0; slot < SLOTS_MAX; slot++)
        for (int i = 0; i < match->part[slot].n_weights; i++) {
            struct adapted_weight *w = &match->part[slot].weights[i];
            if (!w->up.source) w->up.source = w->down.source = &d->source;
        }
    match->derived_bytes = m->derived_bytes;
    return e->code;
}

static enum status allocate(struct matching *m, struct error *e) {
    int weights[SLOTS_MAX] = {0}, vectors[SLOTS_MAX] = {0};
    struct sys *sys = m->adapter->sys;
    for (int i = 0; i < m->changes.n; i++) {
        const struct change *c = &m->changes.at[i];
        ++*(c->vector ? &vectors[c->name->slot] : &weights[c->name->slot]);
    }
    for (int i = 0; i < SLOTS_MAX && e->code == OK; i++) {
        struct adapter_part *part = &m->match->part[i];
        uint64_t bytes =
            (uint64_t)weights[i] * sizeof *part->weights + (uint64_t)vectors[i] * sizeof *part->vectors;
        if (weights[i]) part->weights = alloc_array(sys, (uint64_t)weights[i], sizeof *part->weights, e);
        if (vectors[i]) part->vectors = alloc_array(sys, (uint64_t)vectors[i], sizeof *part->vectors, e);
        m->match->host_bytes += bytes;
    }
    if (e->code == OK)
        m->derivations = alloc_array(sys, (uint64_t)m->adapter->n_modules, sizeof *m->derivations, e);
    return e->code;
}

static enum status fill(struct matching *m, struct error *e) {
    for (int i = 0; i < m->changes.n && e->code == OK; i++) {
        const struct change *c = &m->changes.at[i];
        if (c->vector)
            add_vector(m, c, e);
        else
            add_product(m, c, e);
    }
    return e->code;
}

/* Adds the names of recipes that the adapter fits to the error: an adapter that does not match the model is
 * usually made for another model. */
static enum status name_fitting_recipes(const struct adapter *adapter, struct error *e) {
    enum { SHOWN = 4 };
    const struct recipe *fits[SHOWN];
    char text[128];
    int n = adapter_recipes(adapter, fits, SHOWN);
    size_t at = (size_t)snprintf(text, sizeof text, "an adapter of ");
    for (int i = 0; i < n && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, i ? ", %s" : "%s", fits[i]->name);
    return n ? error_found(e, "%s", text) : e->code;
}

/* deriving: true computes LoRA factors and explains failures; false only tests whether the adapter fits. */
static enum status make_match(const struct adapter *adapter, const struct sluice_model *model, bool partial,
                              bool deriving, struct adapter_match *match, struct error *e) {
    struct matching m = {.adapter = adapter, .match = match};
    *match = (struct adapter_match){.sys = adapter->sys, .n_modules = adapter->n_modules};
    if (changes_find(adapter, model, CHANGES_AT_RUN_TIME, partial, match, &m.changes, e) == OK &&
        allocate(&m, e) == OK && fill(&m, e) == OK && deriving && m.derived_bytes)
        derive_all(&m, e);
    if (m.changes.nothing && deriving) name_fitting_recipes(adapter, e);
    match->host_bytes += match->derived_bytes;
    changes_destroy(&m.changes);
    adapter->sys->release(adapter->sys, m.derivations);
    if (e->code != OK) adapter_match_destroy(match);
    return e->code;
}

enum status adapter_match(const struct adapter *adapter, const struct sluice_model *model, bool partial,
                          struct adapter_match *match, struct error *e) {
    return make_match(adapter, model, partial, true, match, e);
}

bool adapter_fits(const struct adapter *adapter, const struct sluice_model *model) {
    struct adapter_match match;
    struct error ignored = {0};
    bool fits = make_match(adapter, model, false, false, &match, &ignored) == OK;
    if (fits) adapter_match_destroy(&match);
    return fits;
}

void adapter_match_destroy(struct adapter_match *match) {
    struct sys *sys = match->sys;
    if (!sys) return;
    for (int i = 0; i < SLOTS_MAX; i++) {
        sys->release(sys, match->part[i].weights);
        sys->release(sys, match->part[i].vectors);
    }
    if (match->derived) sys->release(sys, match->derived->values);
    sys->release(sys, match->derived);
    *match = (struct adapter_match){0};
}
