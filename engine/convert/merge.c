/* Finds the tensors that adapters are merged into; merge_values.c adds to their values. */
#include "engine/convert/merge_values.h"

#include "engine/open/adapter_file.h"
#include "engine/open/adapter_shapes.h"
#include "engine/open/configuration.h"
#include "loaders/alloc_array.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Row ranges of a stored tensor (such as a fused qkv) that make up one weight, in the order of the weight's
 * rows. */
struct row_parts {
    int n;
    struct merged_run at[WEIGHT_SLICES_MAX]; /* maps tensor rows to rows of the weight */
};

static struct row_parts parts_of(const struct weight_name *name) {
    struct row_parts p = {.n = name->n_parts};
    int32_t row = 0;
    for (int i = 0; i < p.n; i++) {
        p.at[i] = (struct merged_run){.from = name->part[i].first, .to = row, .rows = name->part[i].rows};
        row += p.at[i].rows;
    }
    if (p.n) return p;
    p.at[p.n++] = (struct merged_run){.from = 0, .to = 0, .rows = name->rows};
    return p;
}

/* Maps rows of the adapter's tensor to rows of the base tensor that stores the same weight. Returns the
 * number of row ranges written to `runs`. */
static int join_parts(const struct row_parts *adapter, const struct row_parts *base,
                      struct merged_run runs[MERGED_RUNS_MAX]) {
    int n = 0;
    for (int i = 0; i < adapter->n; i++)
        for (int k = 0; k < base->n; k++) {
            const struct merged_run *a = &adapter->at[i], *b = &base->at[k];
            int32_t first = a->to > b->to ? a->to : b->to;
            int32_t end = a->to + a->rows < b->to + b->rows ? a->to + a->rows : b->to + b->rows;
            if (first >= end) continue;
            runs[n++] = (struct merged_run){
                .from = a->from + first - a->to, .to = b->from + first - b->to, .rows = end - first};
        }
    return n;
}

static bool same_weight(const struct weight_name *x, const struct weight_name *y) {
    return x->spec == y->spec && x->ref.kind == y->ref.kind && x->ref.number == y->ref.number;
}

/* Finds the name table's entry for the tensor that stores the weight in the base model's files; NULL: not
 * found. */
static const struct weight_name *base_name(const struct weight_names *names, const struct weight_name *name,
                                           const char *of_entry) {
    int n = 0;
    const struct weight_name *at = weight_names_find(names, name->slot, of_entry, &n);
    for (int i = 0; i < n; i++)
        if (same_weight(&at[i], name) && !strcmp(at[i].name, of_entry)) return &at[i];
    return NULL;
}

/* Fails because the weight is a temporal slice of a larger kernel, which cannot be merged into. */
static enum status fail_slice(const struct index_entry *entry, const struct component *c, struct error *e) {
    return error_set(e, UNSUPPORTED, "an adapter cannot be merged into a slice of tensor '%s'" WHERE "%s",
                     entry->name, c->index.sources[entry->source].path);
}

static enum status fail_scale(const struct adapter *a, const struct change *c, struct error *e) {
    return error_set(
        e, META, "the strength of an adapter times the scale of its module '%.*s' is too large" WHERE "%s",
        c->module->name_bytes, c->module->name, a->index.sources[0].path);
}

/* Adds one change of an adapter to merge.pieces. Skips layers that the base model's files lack. */
static enum status add_piece(struct merge *m, struct merged_adapter *a, const struct change *c,
                             const struct component *component, struct error *e) {
    const struct index_entry *entry = block_find_weight(&c->name->ref, c->name->spec, &component->index);
    const char *of_entry = entry ? index_name(&component->index, entry) : NULL;
    const struct weight_name *base = entry ? base_name(&a->changes.names, c->name, of_entry) : NULL;
    if (!base) return OK;
    int64_t columns = weight_name_columns(c->name);
    if (index_elements(entry) != base->rows * columns) return fail_slice(entry, component, e);
    double scale = a->strength * (double)c->scale;
    if (!isfinite((float)scale)) return fail_scale(a->adapter, c, e);
    struct row_parts of_adapter = parts_of(c->name), of_base = parts_of(base);
    struct merged_piece *piece = &m->pieces[m->n_pieces];
    *piece = (struct merged_piece){
        .entry = entry, .adapter = a, .change = c, .order = m->n_pieces, .columns = columns, .scale = scale};
    piece->n_runs = join_parts(&of_adapter, &of_base, piece->runs);
    m->n_pieces++;
    return OK;
}

static int compare_pieces(const void *a, const void *b) {
    const struct merged_piece *x = a, *y = b;
    if (x->entry != y->entry) return x->entry < y->entry ? -1 : 1;
    return x->order - y->order;
}

/* Appends the changes of one adapter after the changes of earlier adapters. */
static enum status add_pieces(struct merge *m, struct merged_adapter *a, const struct component *component,
                              struct error *e) {
    uint64_t capacity = (uint64_t)m->n_pieces + (uint64_t)a->changes.n;
    struct merged_piece *pieces = alloc_array(m->sys, capacity, sizeof *pieces, e);
    if (!pieces) return e->code;
    if (m->n_pieces) memcpy(pieces, m->pieces, (size_t)m->n_pieces * sizeof *pieces);
    m->sys->release(m->sys, m->pieces);
    m->pieces = pieces;
    for (int i = 0; i < a->changes.n && e->code == OK; i++) add_piece(m, a, &a->changes.at[i], component, e);
    return e->code;
}

/* The component bound for one pipeline, and the adapter's changes to the component. */
struct candidate {
    struct component component;
    struct changes changes;
};

static void candidate_close(struct candidate *r) {
    changes_destroy(&r->changes);
    component_destroy(&r->component);
}

static enum status find_in_slot(const struct merge_subject *s, const struct adapter *a,
                                const struct recipe *recipe, int slot, struct candidate *r, struct error *e) {
    struct adapter_match match = {0};
    enum config_origin origin;
    struct sluice_model *model = alloc_array(s->sys, 1, sizeof *model, e);
    if (!model) return e->code;
    configuration_begin(recipe, slot, s->sys, &r->component);
    r->component.index = index_view(s->index, s->index->prefix, s->index->view);
    if (configuration_bind(&r->component, s->path, &recipe->slot[slot], &origin, e) == OK) {
        *model = (struct sluice_model){.sys = s->sys, .recipe = recipe};
        model->component[slot] = r->component;
        changes_find(a, model, CHANGES_MERGED, s->partial, &match, &r->changes, e);
    }
    s->sys->release(s->sys, model);
    struct derived_size size;
    for (int i = 0; i < r->changes.n && e->code == OK; i++)
        change_check_shape(a, &r->changes.at[i], &size, e);
    if (e->code != OK || r->changes.n) return e->code;
    return error_set(e, MISSING,
                     "the adapter changes nothing in this component" WHERE "%s" EXPECTED "modules for the %s",
                     a->index.sources[0].path, s->family->display_name);
}

static enum status fail_kind(const struct merge_subject *s, struct error *e) {
    return error_set(e, UNSUPPORTED,
                     "adapters can be merged only into transformers, UNets and text encoders" WHERE "%s" FOUND
                     "%s",
                     s->path, s->family->display_name);
}

/* Finds the best pipeline for an adapter. If none fits, returns the error of the first, most common
 * pipeline. */
static enum status find_candidate(const struct merge_subject *s, const struct adapter *a,
                                  struct candidate *best, struct error *e) {
    if (s->family->kind != FAMILY_TEXT && s->family->kind != FAMILY_DENOISER) return fail_kind(s, e);
    for (const struct recipe *const *r = recipes; *r && e->code != MEMORY; r++)
        for (int i = 0; (*r)->slot[i].family; i++) {
            const struct slot *slot = &(*r)->slot[i];
            struct error failure = {0};
            struct candidate one = {0};
            if (!slot_takes(slot, s->family, index_prefix(s->index)) ||
                (slot->matches && !slot->matches(s->index)))
                continue;
            if (find_in_slot(s, a, *r, i, &one, &failure) == OK && one.changes.n > best->changes.n) {
                candidate_close(best);
                *best = one;
                continue;
            }
            candidate_close(&one);
            if (failure.code != OK && (e->code == OK || failure.code == MEMORY)) *e = failure;
        }
    if (best->changes.n && e->code != MEMORY) *e = (struct error){0};
    return e->code;
}

static enum status find_changes(struct merge *m, const struct merge_subject *s, struct merged_adapter *a,
                                struct error *e) {
    struct candidate best = {0};
    if (find_candidate(s, a->adapter, &best, e) == OK) {
        a->changes = best.changes;
        best.changes = (struct changes){0};
        add_pieces(m, a, &best.component, e);
    }
    candidate_close(&best);
    return e->code;
}

static enum status open_adapter(struct merge *m, const struct merge_subject *s,
                                const struct sluice_lora *lora, struct error *e) {
    if (!lora->path || !isfinite(lora->strength)) {
        return error_set(e, USAGE, "a LoRA needs a file and a finite strength" WHERE "%s",
                         lora->path ? lora->path : "NULL");
    }
    if (lora->strength == 0) return OK;
    struct merged_adapter *a = &m->adapters[m->n_adapters++];
    a->strength = lora->strength;
    if (adapter_open(s->sys, lora->path, &a->adapter, e) != OK || find_changes(m, s, a, e) != OK)
        return e->code;
    return adapter_check_finite(a->adapter, e);
}

enum status merge_open(const struct merge_subject *s, struct merge **merge, struct error *e) {
    struct merge *m = *merge = alloc_array(s->sys, 1, sizeof *m, e);
    if (!m) return e->code;
    *m = (struct merge){.sys = s->sys};
    m->adapters = alloc_array(s->sys, (uint64_t)s->n_loras, sizeof *m->adapters, e);
    if (!m->adapters) return e->code;
    memset(m->adapters, 0, (size_t)s->n_loras * sizeof *m->adapters);
    for (int i = 0; i < s->n_loras && e->code == OK; i++) open_adapter(m, s, &s->loras[i], e);
    if (e->code == OK && m->n_pieces)
        qsort(m->pieces, (size_t)m->n_pieces, sizeof *m->pieces, compare_pieces);
    return e->code;
}

void merge_close(struct merge *m) {
    if (!m) return;
    merge_unload(m);
    for (int i = 0; i < m->n_adapters; i++) {
        changes_destroy(&m->adapters[i].changes);
        adapter_close(m->adapters[i].adapter);
    }
    m->sys->release(m->sys, m->adapters);
    m->sys->release(m->sys, m->pieces);
    m->sys->release(m->sys, m);
}

bool merge_reads(const struct merge *m, uint64_t device, uint64_t inode) {
    for (int i = 0; m && i < m->n_adapters; i++) {
        const struct file_identity *identity = &adapter_source(m->adapters[i].adapter)->identity;
        if (identity->device == device && identity->inode == inode) return true;
    }
    return false;
}

bool merge_changes(const struct merge *m, const struct index_entry *entry) {
    return m && merge_first(m, entry) < m->n_pieces;
}

int merge_count(const struct merge *m) {
    int n = 0;
    for (int i = 0; m && i < m->n_pieces; i++) n += !i || m->pieces[i].entry != m->pieces[i - 1].entry;
    return n;
}

int merge_first(const struct merge *m, const struct index_entry *entry) {
    int first = 0, end = m->n_pieces;
    while (first < end) {
        int middle = first + (end - first) / 2;
        if (m->pieces[middle].entry < entry)
            first = middle + 1;
        else
            end = middle;
    }
    return first < m->n_pieces && m->pieces[first].entry == entry ? first : m->n_pieces;
}
