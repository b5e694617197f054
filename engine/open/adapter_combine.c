/* Combines adapters: implements adapter_combine.h. */
#include "engine/open/adapter_combine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct adapter_combined {
    float *values;
    struct byte_source source;
};

/* A vector (bias or norm) of the base model, and one adapter's change to the vector. */
struct vector_change {
    const struct adapted_vector *of;
    float scale;
    int i_use; /* index of the adapter; changes are added in this order */
    int64_t values;
};

struct combining {
    const struct component *component;
    struct adapter_combination *to;
    struct vector_change *changes;
    int n_changes;
    float *read; /* buffer for one adapter's change to a vector */
};

static int compare_vectors(const void *a, const void *b) {
    const struct vector_change *x = a, *y = b;
    if (x->of->block != y->of->block) return x->of->block - y->of->block;
    if (x->of->weight != y->of->weight) return x->of->weight - y->of->weight;
    return x->i_use - y->i_use;
}

/* Reads a vector of the base model as f32. Values without a file (a model without files) stay 0. */
static enum status read_base(const struct component *c, const struct adapted_vector *v, float *to,
                             struct error *e) {
    const struct block *block = &c->blocks[v->block];
    const struct packed_tensor *t = NULL;
    for (int i = 0; i < block->n_tensors; i++)
        if (block->tensors[i].offset == block->kind->weights[v->weight].offset) t = &block->tensors[i];
    uint64_t bytes = (uint64_t)tensor_bytes(&t->shape), begin = t->packed_offset, end = begin + bytes;
    int64_t size = tensor_elements(&t->shape) ? (int64_t)bytes / tensor_elements(&t->shape) : 1;
    for (int i = 0; i < block->n_segments && e->code == OK; i++) {
        const struct packed_segment *s = &block->segments[i];
        if (s->packed_offset < begin || s->packed_offset >= end || s->source->file < 0) continue;
        source_read_values(s->source, s->file_offset, t->shape.dtype, 0, (int64_t)s->bytes / size,
                           to + (int64_t)(s->packed_offset - begin) / size, e);
    }
    return e->code;
}

/* Adds one adapter's change to the vector `to`. read: buffer of change->values floats. */
static enum status add_change(const struct vector_change *change, float *read, float *to, struct error *e) {
    const struct factor *f = &change->of->values;
    int64_t columns = factor_columns(f);
    for (int i = 0; i < (f->n_parts ? f->n_parts : 1); i++) {
        int64_t first = f->n_parts ? f->part[i].first * columns : 0;
        int64_t n = f->n_parts ? f->part[i].rows * columns : change->values;
        if (source_read_values(f->source, f->offset, f->dtype, first, n, read, e) != OK) return e->code;
        for (int64_t k = 0; k < n; k++) to[k] += change->scale * read[k];
        to += n;
    }
    return OK;
}

/* Lists the changes of all adapters to vectors in a slot. Returns their number; changes NULL: only counts. */
static int list_changes(const struct adapter_use *uses, int n_uses, int slot, struct vector_change *changes) {
    int n = 0;
    for (int i = 0; i < n_uses; i++) {
        const struct adapter_part *part = &uses[i].match->part[slot];
        for (int k = 0; k < part->n_vectors; k++, n++)
            if (changes)
                changes[n] = (struct vector_change){
                    .of = &part->vectors[k],
                    .scale = (float)(uses[i].strength * (double)part->vectors[k].scale),
                    .i_use = i,
                    .values =
                        factor_rows(&part->vectors[k].values) * factor_columns(&part->vectors[k].values)};
    }
    return n;
}

/* True if change i is the first one of its vector in the sorted list. */
static bool is_first(const struct vector_change *changes, int i) {
    const struct adapted_vector *x = i ? changes[i - 1].of : NULL, *y = changes[i].of;
    return !x || x->block != y->block || x->weight != y->weight;
}

static enum status allocate_vectors(struct combining *x, struct error *e) {
    struct adapter_combination *to = x->to;
    uint64_t values = 0, longest = 0, bytes;
    int n = 0;
    for (int i = 0; i < x->n_changes; i++) {
        uint64_t of = (uint64_t)x->changes[i].values;
        if (of > longest) longest = of;
        if (!is_first(x->changes, i)) continue;
        values += of;
        n++;
    }
    bytes = (values + longest) * sizeof(float);
    to->derived = sys_new(to->sys, 1, sizeof *to->derived, "derived weights", e);
    to->vectors = to->derived ? sys_new(to->sys, (size_t)n, sizeof *to->vectors, "derived vectors", e) : NULL;
    if (to->vectors) to->derived->values = sys_new(to->sys, bytes, 1, "derived values", e);
    if (e->code != OK) return e->code;
    to->derived->source =
        source_of_memory(to->sys, "vectors with adapters", to->derived->values, values * sizeof(float));
    x->read = to->derived->values + values;
    to->host_bytes += bytes + (uint64_t)n * sizeof *to->vectors;
    return OK;
}

static enum status begin_vector(struct combining *x, const struct vector_change *change, float *values,
                                struct error *e) {
    struct adapter_combination *to = x->to;
    struct replaced_vector *v = &to->vectors[to->n_vectors++];
    *v = (struct replaced_vector){change->of->block, change->of->weight, change->of->values};
    v->values.source = &to->derived->source;
    v->values.offset = (uint64_t)(values - to->derived->values) * sizeof *values;
    v->values.dtype = DTYPE_F32;
    v->values.dim[0] = factor_rows(&change->of->values);
    v->values.n_parts = 0;
    return read_base(x->component, change->of, values, e);
}

static enum status fail_scale(const struct factor *f, struct error *e) {
    return error_set(e, META, "strength times scale is too large for tensor '%s' of the adapter" WHERE "%s",
                     f->name, f->source->path);
}

static enum status make_vectors(struct combining *x, struct error *e) {
    if (!x->n_changes) return OK;
    qsort(x->changes, (size_t)x->n_changes, sizeof *x->changes, compare_vectors);
    if (allocate_vectors(x, e) != OK) return e->code;
    float *values = x->to->derived->values;
    for (int i = 0; i < x->n_changes && e->code == OK; i++) {
        const struct vector_change *change = &x->changes[i];
        if (i && is_first(x->changes, i)) values += change[-1].values;
        if (!isfinite(change->scale)) return fail_scale(&change->of->values, e);
        if (is_first(x->changes, i) && begin_vector(x, change, values, e) != OK) break;
        add_change(change, x->read, values, e);
    }
    return e->code;
}

static enum status make_weights(struct adapter_combination *to, const struct adapter_use *uses, int n_uses,
                                int slot, struct error *e) {
    uint64_t n = 0;
    for (int i = 0; i < n_uses; i++) n += (uint64_t)uses[i].match->part[slot].n_weights;
    to->weights = sys_new(to->sys, n, sizeof *to->weights, "adapted weights", e);
    to->host_bytes += n * sizeof *to->weights;
    for (int i = 0; i < n_uses && to->weights; i++)
        for (int k = 0; k < uses[i].match->part[slot].n_weights; k++) {
            struct adapted_weight *w = &to->weights[to->n_weights++];
            *w = uses[i].match->part[slot].weights[k];
            w->scale = (float)(uses[i].strength * (double)w->scale);
            if (!isfinite(w->scale)) return fail_scale(&w->down, e);
        }
    return e->code;
}

enum status adapters_combine(const struct sluice_model *model, int slot, const struct adapter_use *uses,
                             int n_uses, struct adapter_combination *combination, struct error *e) {
    struct combining x = {.component = &model->component[slot], .to = combination};
    struct sys *sys = model->sys;
    *combination = (struct adapter_combination){.sys = sys};
    x.n_changes = list_changes(uses, n_uses, slot, NULL);
    x.changes = sys_new(sys, (size_t)x.n_changes, sizeof *x.changes, "weight changes", e);
    if (x.changes) list_changes(uses, n_uses, slot, x.changes);
    if (x.changes && make_weights(combination, uses, n_uses, slot, e) == OK) make_vectors(&x, e);
    sys->release(sys, x.changes);
    if (e->code != OK) adapter_combination_destroy(combination);
    return e->code;
}

void adapter_combination_destroy(struct adapter_combination *combination) {
    struct sys *sys = combination->sys;
    if (!sys) return;
    sys->release(sys, combination->weights);
    sys->release(sys, combination->vectors);
    if (combination->derived) sys->release(sys, combination->derived->values);
    sys->release(sys, combination->derived);
    *combination = (struct adapter_combination){0};
}
