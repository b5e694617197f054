/* Merges adapters into tensors: implements merge.h. Opening finds the tensors that the adapters change. Each
 * change is then computed for COLUMNS_AT_ONCE columns of a row at a time and added to the base values. So
 * few columns stay in the CPU cache. */
#include "engine/convert/merge.h"

#include "engine/open/adapter_match.h"
#include "engine/open/configuration.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MERGED_RUNS_MAX = 2 * WEIGHT_SLICES_MAX };

/* Rows [from, from + rows) of one tensor map to rows [to, to + rows) of another. */
struct merged_run {
    int32_t from, to, rows;
};

struct merged_adapter {
    struct adapter *adapter;
    double strength;
    struct changes changes;
};

struct merged_piece {
    const struct index_entry *entry; /* base tensor that the adapter changes */
    const struct merged_adapter *adapter;
    const struct change *change;
    int order;       /* position among all changes to the base tensor: changes are added in ascending order */
    int64_t columns; /* values per row of the base tensor */
    double scale;
    int n_runs;
    /* maps rows of the adapter's tensor to rows of the base tensor */
    struct merged_run runs[MERGED_RUNS_MAX];
};

/* Factors of one change in f32. A vector's values are in half[0].down. LoRA uses half[0].up and half[0].down,
 * LoHa `up` and `down` of both halves. LoKr's two matrices are half[0].down and half[1].down. */
struct merged_values {
    const struct merged_piece *piece;
    struct derived_half half[2];
};

struct merge {
    struct sys *sys;
    struct merged_adapter *adapters;
    int n_adapters;
    struct merged_piece *pieces; /* all changes, sorted by base tensor, then by order */
    int n_pieces;
    /* factors of all changes to the base tensor that merge_load loaded most recently */
    struct merged_values *loaded;
    int n_loaded;
    int64_t columns; /* values per row of the loaded tensor */
};

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

/* Adds one change of an adapter to merge.pieces. Skips layers that the base model's files lack. */
static enum status add_piece(struct merge *m, struct merged_adapter *a, const struct change *c,
                             const struct component *component, struct error *e) {
    const struct weight_name *name = c->name, *base = NULL;
    const struct index_entry *entry = block_find_weight(&name->ref, name->spec, &component->index);
    if (!entry) return OK;
    const char *of_entry = index_name(&component->index, entry);
    int n = 0; /* several weights may share the entry's name (fused tensors): find the name of this weight */
    const struct weight_name *names = weight_names_find(&a->changes.names, name->slot, of_entry, &n);
    for (int i = 0; i < n && !base; i++) {
        const struct weight_name *at = &names[i];
        bool same_weight =
            at->spec == name->spec && at->ref.kind == name->ref.kind && at->ref.number == name->ref.number;
        if (same_weight && !strcmp(at->name, of_entry)) base = at;
    }
    if (!base) return OK;
    int64_t columns = weight_name_columns(name);
    /* the weight is one temporal slice of a larger kernel */
    if (index_elements(entry) != base->rows * columns)
        return error_set(e, UNSUPPORTED, "an adapter cannot be merged into a slice of tensor '%s'" WHERE "%s",
                         entry->name, component->index.sources[entry->source].path);
    double scale = a->strength * (double)c->scale;
    if (!isfinite((float)scale))
        return error_set(e, META,
                         "the strength of an adapter times the scale of its module '%.*s' is too large" WHERE
                         "%s",
                         c->module->name_bytes, c->module->name, adapter_source(a->adapter)->path);
    struct row_parts of_adapter = parts_of(name), of_base = parts_of(base);
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
    struct merged_piece *pieces = sys_new(m->sys, capacity, sizeof *pieces, "merged pieces", e);
    if (!pieces) return e->code;
    if (m->n_pieces) memcpy(pieces, m->pieces, (size_t)m->n_pieces * sizeof *pieces);
    m->sys->release(m->sys, m->pieces);
    m->pieces = pieces;
    for (int i = 0; i < a->changes.n && e->code == OK; i++) add_piece(m, a, &a->changes.at[i], component, e);
    return e->code;
}

/* A candidate pipeline for an adapter: the component bound for the pipeline, and the adapter's changes to
 * the component. */
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
    struct sluice_model *model = sys_new(s->sys, 1, sizeof *model, "a model", e);
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

/* Finds the pipeline that fits an adapter best. If none fits, returns the error of the first pipeline, which
 * is the most common one. */
static enum status find_candidate(const struct merge_subject *s, const struct adapter *a,
                                  struct candidate *best, struct error *e) {
    if (s->family->kind != FAMILY_TEXT && s->family->kind != FAMILY_DENOISER)
        return error_set(e, UNSUPPORTED,
                         "adapters can be merged only into transformers, UNets and text encoders" WHERE
                         "%s" FOUND "%s",
                         s->path, s->family->display_name);
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

static enum status open_adapter(struct merge *m, const struct merge_subject *s,
                                const struct sluice_lora *lora, struct error *e) {
    if (!lora->path || !isfinite(lora->strength))
        return error_set(e, USAGE, "a LoRA needs a file and a finite strength" WHERE "%s",
                         lora->path ? lora->path : "NULL");
    if (lora->strength == 0) return OK;
    struct merged_adapter *a = &m->adapters[m->n_adapters++];
    a->strength = lora->strength;
    if (adapter_open(s->sys, lora->path, &a->adapter, e) != OK) return e->code;
    struct candidate best = {0};
    if (find_candidate(s, a->adapter, &best, e) == OK) {
        a->changes = best.changes;
        best.changes = (struct changes){0};
        add_pieces(m, a, &best.component, e);
    }
    candidate_close(&best);
    return e->code == OK ? adapter_check_finite(a->adapter, e) : e->code;
}

enum status merge_open(const struct merge_subject *s, struct merge **merge, struct error *e) {
    struct merge *m = *merge = sys_new(s->sys, 1, sizeof *m, "a merge", e);
    if (!m) return e->code;
    *m = (struct merge){.sys = s->sys};
    m->adapters = sys_new(s->sys, (size_t)s->n_loras, sizeof *m->adapters, "the adapters", e);
    if (!m->adapters) return e->code;
    memset(m->adapters, 0, (size_t)s->n_loras * sizeof *m->adapters);
    for (int i = 0; i < s->n_loras && e->code == OK; i++) open_adapter(m, s, &s->loras[i], e);
    if (e->code == OK && m->n_pieces)
        qsort(m->pieces, (size_t)m->n_pieces, sizeof *m->pieces, compare_pieces);
    return e->code;
}

/* Frees the adapter factors that merge_load loaded. */
static void unload(struct merge *m) {
    for (int i = 0; i < m->n_loaded; i++)
        adapter_drop_halves(m->loaded[i].piece->adapter->adapter, m->loaded[i].half);
    m->sys->release(m->sys, m->loaded);
    m->loaded = NULL;
    m->n_loaded = 0;
}

void merge_close(struct merge *m) {
    if (!m) return;
    unload(m);
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

/* Index of the tensor's first change in merge.pieces; n_pieces if no adapter changes the tensor. */
static int first_piece(const struct merge *m, const struct index_entry *entry) {
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

bool merge_changes(const struct merge *m, const struct index_entry *entry) {
    return m && first_piece(m, entry) < m->n_pieces;
}

int merge_count(const struct merge *m) {
    int n = 0;
    for (int i = 0; m && i < m->n_pieces; i++) n += !i || m->pieces[i].entry != m->pieces[i - 1].entry;
    return n;
}

static float *read_factor(const struct adapter *a, const struct index_entry *entry, struct error *e) {
    int64_t n = index_elements(entry);
    float *values =
        e->code == OK ? sys_new(a->sys, (size_t)n, sizeof *values, "an adapter's values", e) : NULL;
    if (values) source_read_values(&a->index.sources[0], entry->offset, entry->dtype, 0, n, values, e);
    return values;
}

/* Computes columns [first, first + n) of a row of the product up * down. Skips zeros in `up`, which is often
 * an identity matrix. */
static void sum_row(const struct derived_half *h, int64_t row, int64_t first, int64_t n, float *to) {
    memset(to, 0, (size_t)n * sizeof *to);
    for (int64_t j = 0; j < h->rank; j++) {
        float up = h->up[row * h->rank + j];
        const float *down = h->down + j * h->columns + first;
        if (up == 0) continue;
        for (int64_t i = 0; i < n; i++) to[i] += up * down[i];
    }
}

/* Multiplies the two factors of one matrix of LoKr's Kronecker product, because every row of the product
 * needs the whole matrix. */
static enum status multiply_half(const struct adapter *a, struct derived_half *h, struct error *e) {
    float *whole = sys_new(a->sys, (size_t)h->rows * (size_t)h->columns, sizeof *whole, "a whole matrix", e);
    if (!whole) return e->code;
    for (int64_t row = 0; row < h->rows; row++) sum_row(h, row, 0, h->columns, whole + row * h->columns);
    a->sys->release(a->sys, h->up);
    a->sys->release(a->sys, h->down);
    h->up = NULL;
    h->down = whole;
    return OK;
}

/* Loads the factors of one adapter's change to a tensor. */
static enum status load_piece(const struct merged_piece *piece, struct merged_values *v, struct error *e) {
    const struct adapter *a = piece->adapter->adapter;
    const struct adapter_module *m = piece->change->module;
    const struct index_entry *down = m->tensor[ADAPTER_DOWN], *up = m->tensor[ADAPTER_UP];
    struct derived_half *half = &v->half[0];
    v->piece = piece;
    if (piece->change->vector) {
        half->down = read_factor(a, piece->change->vector, e);
        return e->code;
    }
    if (!adapter_is_derived(m)) {
        *half = (struct derived_half){
            .rows = up->dim[0], .rank = down->dim[0], .columns = index_elements(down) / down->dim[0]};
        half->up = read_factor(a, up, e);
        half->down = read_factor(a, down, e);
        return e->code;
    }
    if (m->form == ADAPTER_LORA) { /* LoRA with a middle factor (lora_mid) */
        struct derived_size size;
        if (adapter_derived_size(a, m, &size, e) != OK) return e->code;
        *half = (struct derived_half){.rows = size.rows, .rank = size.rank, .columns = size.columns};
        half->up = sys_new(a->sys, (size_t)size.rows * (size_t)size.rank, sizeof *half->up,
                           "an adapter's values", e);
        half->down = sys_new(a->sys, (size_t)size.rank * (size_t)size.columns, sizeof *half->down,
                             "an adapter's values", e);
        return half->up && half->down ? adapter_derive(a, m, half->up, half->down, e) : e->code;
    }
    if (adapter_read_halves(a, m, v->half, e) != OK || m->form == ADAPTER_LOHA) return e->code;
    if (multiply_half(a, &v->half[0], e) == OK) multiply_half(a, &v->half[1], e);
    return e->code;
}

enum status merge_load(struct merge *m, const struct index_entry *entry, struct error *e) {
    int first = first_piece(m, entry), n = 0;
    unload(m);
    while (first + n < m->n_pieces && m->pieces[first + n].entry == entry) n++;
    if (!n) return OK;
    m->columns = m->pieces[first].columns;
    m->loaded = sys_new(m->sys, (size_t)n, sizeof *m->loaded, "the adapters of a weight", e);
    if (!m->loaded) return e->code;
    memset(m->loaded, 0, (size_t)n * sizeof *m->loaded);
    for (int i = 0; i < n && e->code == OK; i++)
        load_piece(&m->pieces[first + i], &m->loaded[m->n_loaded++], e);
    return e->code;
}

enum { COLUMNS_AT_ONCE = 512 };

/* Computes columns [first, first + n) of a row of LoKr's Kronecker product. */
static void kronecker_row(const struct derived_half half[2], int64_t row, int64_t first, int64_t n,
                          float *to) {
    const struct derived_half *outer = &half[0], *inner = &half[1];
    const float *one = outer->down + row / inner->rows * outer->columns;
    const float *other = inner->down + row % inner->rows * inner->columns;
    for (int64_t at = 0, some; at < n; at += some) {
        int64_t column = (first + at) % inner->columns;
        float factor = one[(first + at) / inner->columns];
        some = inner->columns - column < n - at ? inner->columns - column : n - at;
        for (int64_t i = 0; i < some; i++) to[at + i] = factor * other[column + i];
    }
}

/* Computes what one change (merged_piece) adds to columns [first, first + n). row: row of the adapter's
 * tensor. */
static void piece_row(const struct merged_values *v, int64_t columns, int64_t row, int64_t first, int64_t n,
                      float *to) {
    const struct change *c = v->piece->change;
    if (c->vector) {
        memcpy(to, v->half[0].down + row * columns + first, (size_t)n * sizeof *to);
    } else if (c->module->form == ADAPTER_LOKR) {
        kronecker_row(v->half, row, first, n, to);
    } else {
        sum_row(&v->half[0], row, first, n, to);
    }
    if (c->vector || c->module->form != ADAPTER_LOHA) return;
    float other[COLUMNS_AT_ONCE];
    sum_row(&v->half[1], row, first, n, other);
    for (int64_t i = 0; i < n; i++) to[i] *= other[i];
}

/* Adds one change to columns [first, first + n) of a row of the base tensor. columns: values per row. */
static void add_to_row(const struct merged_values *v, int64_t columns, int64_t row, int64_t first, int64_t n,
                       float *numbers) {
    float sums[COLUMNS_AT_ONCE], scale = (float)v->piece->scale;
    for (int i = 0; i < v->piece->n_runs; i++) {
        const struct merged_run *run = &v->piece->runs[i];
        if (row < run->to || row >= (int64_t)run->to + run->rows) continue;
        for (int64_t at = 0; at < n; at += COLUMNS_AT_ONCE) {
            int64_t some = n - at < COLUMNS_AT_ONCE ? n - at : COLUMNS_AT_ONCE;
            piece_row(v, columns, row - run->to + run->from, first + at, some, sums);
            for (int64_t k = 0; k < some; k++) numbers[at + k] += scale * sums[k];
        }
    }
}

/* The range [first, first + n) may begin and end within a row, because callers convert whole quantisation
 * blocks. */
void merge_add(const struct merge *m, int64_t first, int64_t n, float *numbers) {
    while (n > 0) {
        int64_t row = first / m->columns, column = first % m->columns;
        int64_t some = m->columns - column < n ? m->columns - column : n;
        for (int i = 0; i < m->n_loaded; i++)
            add_to_row(&m->loaded[i], m->columns, row, column, some, numbers);
        first += some;
        numbers += some;
        n -= some;
    }
}
