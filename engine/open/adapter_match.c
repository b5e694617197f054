/* Matches adapters to models: implements adapter_match.h. */
#include "engine/open/adapter_match.h"

#include "engine/base/checked.h"
#include "engine/base/sys.h"
#include "engine/open/published.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* State of changes_find. */
struct finding {
    const struct adapter *adapter;
    const struct sluice_model *model;
    enum changes_mode mode;
    struct adapter_prefixes prefixes;
    struct adapter_match *match;
    struct changes *changes;
    const char *unmatched;      /* name of the adapter's first tensor that fits no weight */
    int n_matched, n_unmatched; /* number of modules that fit weights of the model; modules that fit none */
    int n_unused;               /* number of changes to layers that the model does not use */
    int n_without_effect;       /* number of changes with scale 0 */
    int n_twice;                /* number of layers that the adapter names by two conventions */
    int n_absent[SLOTS_MAX];    /* number of changes to the absent component of each slot */
};

static const char *path_of(const struct adapter *a) {
    return a->index.sources[0].path;
}

static enum status add_change(struct changes *c, struct change change, struct error *e) {
    if (c->n == c->capacity) {
        int capacity = c->capacity ? 2 * c->capacity : 256;
        struct change *at = sys_new(c->sys, (size_t)capacity, sizeof *at, "weight changes", e);
        if (!at) return e->code;
        if (c->n) memcpy(at, c->at, (size_t)c->n * sizeof *at);
        c->sys->release(c->sys, c->at);
        c->at = at;
        c->capacity = capacity;
    }
    c->at[c->n++] = change;
    return OK;
}

/* One tensor of the base model that a module of the adapter changes: `end` is appended to the module's
 * name. */
struct change_target {
    const char *end;
    const struct index_entry *vector; /* tensor to add; NULL: the product of the module's factors */
    float scale;
};

/* True if the tensor's name ends in "weight": a product of low-rank factors can be added to the tensor. */
static bool is_module(const struct weight_name *name) {
    static const char weight[] = "weight";
    size_t n = strlen(name->name), tail = sizeof weight - 1;
    return n > tail && !strcmp(name->name + n - tail, weight);
}

/* Fails with UNSUPPORTED if a change cannot be applied to its weight. */
static enum status refuse_change(const struct finding *f, const struct change *c, struct error *e) {
    const char *found = f->model->component[c->name->slot].adapters_refused;
    if (!found && f->mode == CHANGES_AT_RUN_TIME) found = c->name->refused;
    if (!found && !c->vector && c->name->rank < 2) found = "a vector, which no matrix product uses";
    if (!found && !c->vector && !is_module(c->name)) found = "a tensor that no matrix product uses";
    if (!found && !c->vector && c->module->tensor[ADAPTER_DORA])
        found = "DoRA, which rescales the weight's rows";
    if (!found) return OK;
    return error_set(e, UNSUPPORTED,
                     "module '%.*s' of the adapter cannot be added to '%s'" WHERE "%s" FOUND "%s" EXPECTED
                     "a LoRA pair for the weight of a linear layer or a convolution",
                     c->module->name_bytes, c->module->name, c->name->name, path_of(f->adapter), found);
}

/* Adds the changes of one module to n weights that share a tensor name. */
static enum status add_changes(struct finding *f, const struct adapter_module *m,
                               const struct change_target *target, const struct weight_name *name, int n,
                               struct error *e) {
    bool unused = true, merged = f->mode == CHANGES_MERGED;
    for (int i = 0; i < n && e->code == OK; i++) {
        struct change change = {m, &name[i], target->vector, target->scale};
        /* At run time a matrix difference becomes low-rank factors: difference times identity matrix. */
        if (!merged && name[i].rank > 1 && is_module(&name[i])) change.vector = NULL;
        if (refuse_change(f, &change, e) != OK || (name[i].block < 0 && !merged)) continue;
        unused = false;
        if (target->scale != 0) add_change(f->changes, change, e);
    }
    f->n_unused += unused;
    f->n_without_effect += !unused && target->scale == 0;
    return e->code;
}

/* Adds the changes to all weights of the name `text`, under every prefix of every slot. False: no such
 * weight. */
static bool find_name(struct finding *f, const struct adapter_module *m, const struct change_target *target,
                      const char *text, struct error *e) {
    bool found = false;
    for (int slot = 0; slot < SLOTS_MAX; slot++)
        for (const char *const *prefix = f->prefixes.of[slot]; *prefix; prefix++) {
            const char *rest = adapter_after_prefix(text, *prefix);
            int n = 0;
            const struct weight_name *name =
                rest ? weight_names_find(&f->changes->names, slot, rest, &n) : NULL;
            if (!name) continue;
            found = true;
            add_changes(f, m, target, name, n, e);
            break;
        }
    return found;
}

/* True if an adapter's module changes a weight that the family does not use (family_files.ignorable). */
static bool find_ignored(struct finding *f, const char *text) {
    for (int slot = 0; slot < SLOTS_MAX; slot++) {
        const struct family *family = f->model->component[slot].family;
        for (const char *const *prefix = f->prefixes.of[slot]; *prefix && family; prefix++) {
            const char *rest = **prefix ? adapter_after_prefix(text, *prefix) : NULL;
            for (const char *const *ignored = family->files.ignorable; rest && ignored && *ignored;
                 ignored++) {
                const char *x = rest, *y = *ignored; /* a dot in y matches an underscore in x */
                while (*y && (*y == *x || (*y == '.' && *x == '_'))) x++, y++;
                if (*y) continue;
                f->n_unused++;
                return true;
            }
        }
    }
    return false;
}

/* True if the prefix of an adapter's module belongs to a component that the model lacks. */
static bool find_absent(struct finding *f, const char *text) {
    for (int slot = 0; slot < SLOTS_MAX; slot++) {
        if (f->model->component[slot].family) continue;
        for (const char *const *prefix = f->prefixes.of[slot]; *prefix; prefix++)
            if (**prefix && adapter_after_prefix(text, *prefix)) {
                f->n_absent[slot]++;
                return true;
            }
    }
    return false;
}

/* Looks up a weight that a module changes by each possible name, first with ".weight" at the end, then
 * without: some weights lack this ending. */
static bool find_target(struct finding *f, const struct adapter_module *m, const struct change_target *target,
                        struct error *e) {
    char text[LOADER_NAME_MAX + 32];
    bool weight = !strcmp(target->end, ".weight");
    for (int i = 0; adapter_module_name(m, i, text); i++) {
        size_t bytes = strlen(text);
        strcat(text, target->end);
        if (find_name(f, m, target, text, e)) return true;
        text[weight ? bytes : strlen(text)] = 0;
        if (weight && find_name(f, m, target, text, e)) return true;
        if (find_absent(f, text) || find_ignored(f, text)) return true;
    }
    return false;
}

static const char *first_tensor(const struct adapter_module *m) {
    for (int i = 0; i < N_ADAPTER_ROLES; i++)
        if (m->tensor[i]) return m->tensor[i]->name;
    return "";
}

static void count_unmatched(struct finding *f, const char *tensor) {
    if (!f->unmatched) f->unmatched = tensor;
    f->n_unmatched++;
}

/* Adds all changes that one module of the adapter makes. */
static enum status find_module(struct finding *f, const struct adapter_module *m, struct error *e) {
    const struct index_entry *const *t = m->tensor;
    const struct change_target targets[] = {
        {".weight", NULL, m->scale},
        {".weight", t[ADAPTER_DIFF], 1},
        {".bias", t[ADAPTER_DIFF_BIAS], 1},
        {".bias", t[ADAPTER_UP_BIAS], m->scale},
        {".modulation", t[ADAPTER_DIFF_MODULATION], 1},
    };
    bool all = true;
    for (int i = 0; i < (int)(sizeof targets / sizeof *targets) && e->code == OK; i++) {
        bool is_target = i ? targets[i].vector != NULL : m->form != ADAPTER_DIFFERENCE;
        if (is_target) all &= find_target(f, m, &targets[i], e);
    }
    if (all)
        f->n_matched++;
    else
        count_unmatched(f, first_tensor(m));
    return e->code;
}

static int compare_places(const struct change *x, const struct change *y) {
    const struct weight_name *a = x->name, *b = y->name;
    if (a->slot != b->slot) return a->slot - b->slot;
    if (a->block != b->block) return a->block - b->block;
    if (a->block < 0 && a->ref.kind != b->ref.kind) return a->ref.kind < b->ref.kind ? -1 : 1;
    if (a->block < 0 && a->ref.number != b->ref.number) return a->ref.number - b->ref.number;
    if (a->weight != b->weight) return a->weight - b->weight;
    return (x->vector != NULL) - (y->vector != NULL);
}

static int compare_changes(const void *a, const void *b) {
    const struct change *x = a, *y = b;
    int order = compare_places(x, y);
    if (order) return order;
    if (x->name->naming != y->name->naming) return (int)x->name->naming - (int)y->name->naming;
    if (x->module != y->module) return x->module < y->module ? -1 : 1;
    return x->vector != y->vector ? (x->vector < y->vector ? -1 : 1) : 0;
}

/* Sorts changes and drops duplicates. A weight may be found under two names. If the adapter file has a layer
 * in two naming conventions, the first convention in enum weight_naming wins, as in diffusers. DUP: two
 * modules of one convention change the same weight. */
static enum status drop_duplicates(struct finding *f, struct error *e) {
    struct changes *c = f->changes;
    int n = 0;
    if (c->n) qsort(c->at, (size_t)c->n, sizeof *c->at, compare_changes);
    for (int i = 0; i < c->n; i++) {
        const struct change *last = n ? &c->at[n - 1] : NULL, *next = &c->at[i];
        if (last && !compare_places(last, next)) {
            bool alike = last->name->naming == next->name->naming;
            if (alike && last->module != next->module) {
                return error_set(e, DUP,
                                 "two modules of the adapter change '%s'" WHERE "%s" FOUND "'%s' and '%s'",
                                 last->name->name, path_of(f->adapter), first_tensor(last->module),
                                 first_tensor(next->module));
            }
            f->n_twice += last->module != next->module;
            if (!alike || last->vector == next->vector) continue;
        }
        c->at[n++] = *next;
    }
    c->n = n;
    return OK;
}

/* Writes to `out` the names of weights that are nearest to the adapter's first unmatched tensor. */
static void print_nearest(const struct finding *f, char *out, size_t bytes) {
    enum { SHOWN = 2 };
    const struct weight_name *nearest[SHOWN];
    struct adapter_key key;
    char name[LOADER_NAME_MAX + 32];
    const char *rest = f->unmatched; /* the unmatched name without its longest known prefix */
    int slot = -1, whole = (int)strlen(f->unmatched);
    for (int i = 0; i < SLOTS_MAX; i++)
        for (const char *const *prefix = f->prefixes.of[i]; *prefix; prefix++) {
            const char *after = adapter_after_prefix(f->unmatched, *prefix);
            if (!after || after <= rest) continue;
            rest = after;
            slot = i;
        }
    if (adapter_key_read(f->unmatched, &key)) whole = key.name_bytes;
    snprintf(name, sizeof name, "%.*s.weight", whole - (int)(rest - f->unmatched), rest);
    int n = weight_names_nearest(&f->changes->names, slot, name, nearest, SHOWN);
    size_t at = (size_t)snprintf(out, bytes, n ? "a weight, nearest: " : "a name of the model's weights");
    for (int i = 0; i < n && at < bytes; i++)
        at += (size_t)snprintf(out + at, bytes - at, i ? " or '%s'" : "'%s'", nearest[i]->name);
}

static enum status fail_unmatched(const struct finding *f, struct error *e) {
    char nearest[160], more[32] = "";
    if (f->n_unmatched > 1) snprintf(more, sizeof more, " and %d more", f->n_unmatched - 1);
    print_nearest(f, nearest, sizeof nearest);
    f->changes->nothing = !f->n_matched;
    return error_set(e, MISSING, "%s '%s'%s" WHERE "%s" EXPECTED "%s",
                     f->n_matched ? "the model has no weight for the adapter's"
                                  : "the adapter fits nothing in this model: no weight for",
                     f->unmatched, more, path_of(f->adapter), nearest);
}

__attribute__((format(printf, 2, 3))) static void note(struct finding *f, const char *format, ...) {
    if (f->match->n_notes == ADAPTER_NOTES_MAX) return;
    va_list list;
    va_start(list, format);
    vsnprintf(f->match->note[f->match->n_notes++], MODEL_NOTE_BYTES, format, list);
    va_end(list);
}

static const char *word_of(const struct slot *slot) {
    return slot->display_name ? slot->display_name : slot->family->display_name;
}

static void write_notes(struct finding *f) {
    const struct slot *slots = f->model->recipe->slot;
    if (f->n_unmatched)
        note(f, "ignored modules of the adapter that fit nothing: %d, '%.80s' first", f->n_unmatched,
             f->unmatched);
    for (int i = 0; i < SLOTS_MAX; i++)
        if (f->n_absent[i])
            note(f, "ignored modules of the adapter for the %s, which this model lacks: %d",
                 word_of(&slots[i]), f->n_absent[i]);
    if (f->n_unused)
        note(f, "ignored modules of the adapter for layers that the model does not use: %d", f->n_unused);
    if (f->n_without_effect)
        note(f, "modules of the adapter without effect (alpha is 0): %d", f->n_without_effect);
    if (f->n_twice) note(f, "layers that the adapter names by two conventions (one is used): %d", f->n_twice);
    if (f->prefixes.named)
        note(f, "the adapter is for the %s only, by the name of its file or folder",
             word_of(f->prefixes.named));
    if (f->prefixes.for_all)
        note(f, "the adapter is for both transformers: its name has neither \"%s\" nor \"%s\"", "high",
             "low");
}

enum status changes_find(const struct adapter *adapter, const struct sluice_model *model,
                         enum changes_mode mode, bool partial, struct adapter_match *match,
                         struct changes *changes, struct error *e) {
    struct finding f = {.adapter = adapter, .model = model, .mode = mode, .match = match, .changes = changes};
    *changes = (struct changes){.sys = adapter->sys};
    adapter_find_prefixes(adapter, model->recipe, &f.prefixes);
    if (weight_names_list(model, &changes->names, e) != OK) return e->code;
    for (int i = 0; i < adapter->n_modules && e->code == OK; i++) find_module(&f, &adapter->modules[i], e);
    for (int i = 0; i < adapter->n_unknown; i++) count_unmatched(&f, adapter->unknown[i]->name);
    if (e->code != OK || drop_duplicates(&f, e) != OK) return e->code;
    match->n_unmatched = f.n_unmatched;
    if (f.n_unmatched && (!partial || !f.n_matched)) return fail_unmatched(&f, e);
    write_notes(&f);
    return OK;
}

void changes_destroy(struct changes *changes) {
    if (!changes->sys) return;
    weight_names_destroy(&changes->names);
    changes->sys->release(changes->sys, changes->at);
    *changes = (struct changes){0};
}

static enum status shape_fail(const struct adapter *a, const struct change *c,
                              const struct index_entry *entry, const char *expected, struct error *e) {
    char shape[128];
    return error_set(
        e, SHAPE,
        "tensor '%s' of the adapter does not fit the weight '%s'" WHERE "%s" FOUND "%s" EXPECTED "%s",
        entry->name, c->name->name, path_of(a), adapter_print_shape(entry, shape, sizeof shape), expected);
}

/* True if two shapes agree, ignoring dimensions of 1. */
static bool same_dims(const int32_t *x, int nx, const int32_t *y, int ny) {
    int i = 0, k = 0;
    for (;; i++, k++) {
        while (i < nx && x[i] == 1) i++;
        while (k < ny && y[k] == 1) k++;
        if (i == nx || k == ny) return i == nx && k == ny;
        if (x[i] != y[k]) return false;
    }
}

/* Checks that a module in LoRA form fits the weight. */
static enum status check_derived(const struct adapter *a, const struct change *c, struct derived_size *size,
                                 struct error *e) {
    const struct adapter_module *module = c->module;
    const struct index_entry *diff = module->tensor[ADAPTER_DIFF];
    const struct index_entry *w1 = module->tensor[ADAPTER_LOKR_W1], *w2 = module->tensor[ADAPTER_LOKR_W2];
    const struct weight_name *name = c->name;
    int64_t columns = weight_name_columns(name), rows = name->rows;
    if (adapter_derived_size(a, module, size, e) != OK) return e->code;
    bool fits = size->rows == rows && size->columns == columns;
    /* LoKr for a convolution: the second matrix has the kernel's dimensions, or has the kernel flattened
     * into its columns. */
    if (module->form == ADAPTER_LOKR)
        fits = fits && (!w1 || same_dims(w1->dim + 2, w1->rank - 2, NULL, 0)) &&
               (!w2 || w2->rank <= 2 || name->rank < 2 ||
                same_dims(w2->dim + 2, w2->rank - 2, name->dim + 2, name->rank - 2));
    if (module->form == ADAPTER_DIFFERENCE)
        fits = fits && same_dims(diff->dim + 1, diff->rank - 1, name->dim + 1, name->rank - 1);
    if (fits) return OK;
    return error_set(e, SHAPE,
                     "module '%.*s' of the adapter does not fit '%s'" WHERE "%s" FOUND "%s [%" PRId64
                     ", %" PRId64 "]%s" EXPECTED "[%" PRId64 ", %" PRId64 "]",
                     module->name_bytes, module->name, name->name, path_of(a),
                     adapter_form_name(module->form), size->rows, size->columns,
                     size->rows == rows && size->columns == columns ? " with other axes" : "", rows, columns);
}

enum status change_check_shape(const struct adapter *a, const struct change *c, struct derived_size *size,
                               struct error *e) {
    const struct weight_name *name = c->name;
    char expected[128];
    *size = (struct derived_size){0};
    if (c->vector) {
        int64_t n = name->rank > 1 ? (int64_t)name->rows * weight_name_columns(name) : name->rows;
        if (index_elements(c->vector) == n) return OK;
        snprintf(expected, sizeof expected, "%" PRId64 " values", n);
        return shape_fail(a, c, c->vector, expected, e);
    }
    if (adapter_is_derived(c->module)) return check_derived(a, c, size, e);
    const struct index_entry *down = c->module->tensor[ADAPTER_DOWN], *up = c->module->tensor[ADAPTER_UP];
    if (name->rank == 2 && down->rank == 2 && down->dim[1] == 2 * (int64_t)name->dim[1] &&
        (strstr(name->name, "x_embedder") || strstr(name->name, "img_in")))
        return error_set(e, UNSUPPORTED,
                         "the adapter adds input channels to the model, as those of Flux.1 Canny and Depth "
                         "do" WHERE "%s" FOUND "'%s' with %" PRId32 " inputs" EXPECTED
                         "the whole model, such as FLUX.1-Canny-dev, instead of the adapter",
                         path_of(a), down->name, down->dim[1]);
    if (!same_dims(down->dim + 1, down->rank - 1, name->dim + 1, name->rank - 1)) {
        size_t n = (size_t)snprintf(expected, sizeof expected, "[r");
        for (int i = 1; i < name->rank && n < sizeof expected; i++)
            n += (size_t)snprintf(expected + n, sizeof expected - n, ", %" PRId32, name->dim[i]);
        if (n < sizeof expected) snprintf(expected + n, sizeof expected - n, "]");
        return shape_fail(a, c, down, expected, e);
    }
    if (up->dim[0] == name->rows && same_dims(up->dim + 2, up->rank - 2, NULL, 0)) return OK;
    snprintf(expected, sizeof expected, "[%" PRId32 ", r]", name->rows);
    return shape_fail(a, c, up, expected, e);
}

/* Memory limit for one adapter's factors in LoRA form. */
#define ADAPTER_DERIVED_BYTES_MAX (UINT64_C(1) << 30)

struct adapter_derived {
    float *values;
    struct byte_source source;
    char path[256]; /* path of the adapter file for messages, shortened if too long */
};

/* The two factors of one module, converted to LoRA form. */
struct derivation {
    struct derived_size size;
    uint64_t up, down; /* offsets in adapter_derived.values */
};

struct matching {
    const struct adapter *adapter;
    struct adapter_match *match;
    struct changes changes;
    struct derivation *derivations; /* LoRA form of each module; rank 0: the module needs no conversion */
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
    const char *path = path_of(m->adapter);
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

/* Refuses a module of full rank, whose two factors are larger than the weight: its rank is at least the
 * weight's shorter side, and more than LOW_RANK. */
static enum status check_rank(const struct matching *m, const struct change *c,
                              const struct derived_size *size, struct error *e) {
    enum { LOW_RANK = 64 };
    const struct adapter_module *module = c->module;
    if (size->rank < (size->rows < size->columns ? size->rows : size->columns) || size->rank <= LOW_RANK)
        return OK;
    return error_set(e, UNSUPPORTED,
                     "module '%.*s' of the adapter has full rank" WHERE "%s" FOUND "%s of rank %" PRId64
                     " in [%" PRId64 ", %" PRId64 "]" EXPECTED
                     "a low rank; `sluice convert --lora` merges it into the weights instead",
                     module->name_bytes, module->name, path_of(m->adapter), adapter_form_name(module->form),
                     size->rank, size->rows, size->columns);
}

/* Adds low-rank factors for one weight: the adapter file's factors, or the factors that derive_all
 * computed. */
static enum status add_product(struct matching *m, const struct change *c, struct error *e) {
    struct adapter_part *part = &m->match->part[c->name->slot];
    struct adapted_weight *w = &part->weights[part->n_weights++];
    struct derivation *d = &m->derivations[c->module - m->adapter->modules];
    bool placed = d->size.rank != 0;
    const char *name = c->module->name;
    *w = (struct adapted_weight){
        .block = c->name->block, .weight = c->name->weight, .scale = c->module->scale};
    if (change_check_shape(m->adapter, c, &d->size, e) != OK) return e->code;
    if (!adapter_is_derived(c->module)) {
        w->down = factor_of(m, c->module->tensor[ADAPTER_DOWN]);
        w->up = factor_of(m, c->module->tensor[ADAPTER_UP]);
        shape_pair(w, c->name, c->module->rank);
        return OK;
    }
    if (check_rank(m, c, &d->size, e) != OK || (!placed && place_derived(m, c, d, e) != OK)) return e->code;
    w->up = (struct factor){.name = name, .offset = d->up, .dtype = DTYPE_F32};
    w->down = (struct factor){.name = name, .offset = d->down, .dtype = DTYPE_F32};
    shape_pair(w, c->name, d->size.rank);
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
    const char *path = path_of(m->adapter);
    struct adapter_derived *d = match->derived = sys_new(sys, 1, sizeof *d, "derived weights", e);
    if (!d || header_limit_check(sys, path, m->derived_bytes, e) != OK) return e->code;
    d->values = sys_new(sys, m->derived_bytes, 1, "derived values", e);
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
        if (weights[i])
            part->weights = sys_new(sys, (size_t)weights[i], sizeof *part->weights, "adapted weights", e);
        if (vectors[i])
            part->vectors = sys_new(sys, (size_t)vectors[i], sizeof *part->vectors, "adapted vectors", e);
        m->match->host_bytes += bytes;
    }
    if (e->code == OK)
        m->derivations =
            sys_new(sys, (size_t)m->adapter->n_modules, sizeof *m->derivations, "derived weights", e);
    return e->code;
}

/* for_run: true computes LoRA factors and explains failures; false only tests whether the adapter fits. */
static enum status make_match(const struct adapter *adapter, const struct sluice_model *model, bool partial,
                              bool for_run, struct adapter_match *match, struct error *e) {
    struct matching m = {.adapter = adapter, .match = match};
    *match = (struct adapter_match){.sys = adapter->sys, .n_modules = adapter->n_modules};
    if (changes_find(adapter, model, CHANGES_AT_RUN_TIME, partial, match, &m.changes, e) == OK)
        allocate(&m, e);
    for (int i = 0; i < m.changes.n && e->code == OK; i++) {
        const struct change *c = &m.changes.at[i];
        if (c->vector)
            add_vector(&m, c, e);
        else
            add_product(&m, c, e);
    }
    if (e->code == OK && for_run && m.derived_bytes) derive_all(&m, e);
    if (m.changes.nothing && for_run) {
        /* An adapter that does not match the model is usually made for another model. */
        enum { SHOWN = 4 };
        const struct recipe *fits[SHOWN];
        char text[128];
        int n = adapter_recipes(adapter, fits, SHOWN);
        size_t at = (size_t)snprintf(text, sizeof text, "an adapter of ");
        for (int i = 0; i < n && at < sizeof text; i++)
            at += (size_t)snprintf(text + at, sizeof text - at, i ? ", %s" : "%s", fits[i]->name);
        if (n) error_found(e, "%s", text);
    }
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

/* True if every module of the adapter fits the published model of the recipe. m and sizes: temporary
 * buffers. */
static bool fits_published(const struct adapter *a, const struct recipe *recipe, struct sluice_model *m,
                           struct sizes *sizes) {
    struct error failure = {0};
    struct adapter_match match = {0};
    struct sluice_model_options options = {0};
    *m = (struct sluice_model){.sys = a->sys, .recipe = recipe, .published = true};
    bool fits =
        sizes_read(sizes, recipe, SLOTS_MAX, NULL, &failure) == OK &&
        published_bind(a->sys, recipe, sizes, &options, m->component, &m->tokenizer_bytes, &failure) == OK &&
        make_match(a, m, false, false, &match, &failure) == OK;
    adapter_match_destroy(&match);
    for (int i = 0; i < SLOTS_MAX; i++) component_destroy(&m->component[i]);
    return fits;
}

int adapter_recipes(const struct adapter *a, const struct recipe **list, int n_max) {
    struct error failure = {0};
    int n = 0;
    struct sluice_model *m = sys_new(a->sys, 1, sizeof *m, "a model", &failure);
    struct sizes *sizes = sys_new(a->sys, 1, sizeof *sizes, "sizes of a family", &failure);
    for (const struct recipe *const *r = recipes; *r && n < n_max && m && sizes; r++)
        if (fits_published(a, *r, m, sizes)) list[n++] = *r;
    a->sys->release(a->sys, m);
    a->sys->release(a->sys, sizes);
    return n;
}
