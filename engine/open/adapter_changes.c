#include "engine/open/adapter_changes.h"

#include "engine/open/adapter_keys.h"
#include "engine/open/adapter_prefixes.h"
#include "loaders/alloc_array.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct finding {
    const struct adapter *adapter;
    const struct sluice_model *model;
    enum changes_mode mode;
    struct adapter_prefixes prefixes;
    struct adapter_match *match;
    struct changes *changes;
    const char *unmatched; /* name of the first tensor that fits no weight */
    int n_matched, n_unmatched, n_unused, n_without_effect, n_twice;
    int n_absent[SLOTS_MAX];
};

static const char *path_of(const struct finding *f) {
    return f->adapter->index.sources[0].path;
}

static enum status add_change(struct changes *c, struct change change, struct error *e) {
    if (c->n == c->capacity) {
        int capacity = c->capacity ? 2 * c->capacity : 256;
        struct change *at = alloc_array(c->sys, (uint64_t)capacity, sizeof *at, e);
        if (!at) return e->code;
        if (c->n) memcpy(at, c->at, (size_t)c->n * sizeof *at);
        c->sys->release(c->sys, c->at);
        c->at = at;
        c->capacity = capacity;
    }
    c->at[c->n++] = change;
    return OK;
}

/* One tensor that a module changes: `end` is appended to the module's name. */
struct change_target {
    const char *end;
    const struct index_entry *vector; /* tensor to add; NULL: the product of the module's factors */
    float scale;
};

static bool is_module(const struct weight_name *name) {
    static const char weight[] = "weight";
    size_t n = strlen(name->name), tail = sizeof weight - 1;
    return n > tail && !strcmp(name->name + n - tail, weight);
}

static enum status refuse_change(const struct finding *f, const struct change *c, struct error *e) {
    const char *found = f->mode == CHANGES_AT_RUN_TIME ? c->name->refused : NULL;
    if (!found && !c->vector && c->name->rank < 2) found = "a vector, which no matrix product uses";
    if (!found && !c->vector && !is_module(c->name)) found = "a tensor that no matrix product uses";
    if (!found && !c->vector && c->module->tensor[ADAPTER_DORA])
        found = "DoRA, which rescales the weight's rows";
    if (!found) return OK;
    return error_set(e, UNSUPPORTED,
                     "module '%.*s' of the adapter cannot be added to '%s'" WHERE "%s" FOUND "%s" EXPECTED
                     "a LoRA pair for the weight of a linear layer or a convolution",
                     c->module->name_bytes, c->module->name, c->name->name, path_of(f), found);
}

/* Returns the tensor that a change adds to a weight; NULL for a matrix difference, which is treated as
 * low-rank factors (difference times identity matrix). */
static const struct index_entry *vector_of(const struct change_target *target,
                                           const struct weight_name *name) {
    return name->rank > 1 && is_module(name) ? NULL : target->vector;
}

static enum status add_changes(struct finding *f, const struct adapter_module *m,
                               const struct change_target *target, const struct weight_name *name, int n,
                               struct error *e) {
    bool unused = true;
    for (int i = 0; i < n && e->code == OK; i++) {
        bool merged = f->mode == CHANGES_MERGED;
        const struct index_entry *vector = merged ? target->vector : vector_of(target, &name[i]);
        struct change change = {m, &name[i], vector, target->scale};
        if (refuse_change(f, &change, e) != OK || (name[i].block < 0 && !merged)) continue;
        unused = false;
        if (target->scale != 0) add_change(f->changes, change, e);
    }
    f->n_unused += unused;
    f->n_without_effect += !unused && target->scale == 0;
    return e->code;
}

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

static bool begins_with_flat(const char *name, const char *prefix) {
    for (; *prefix && (*prefix == *name || (*prefix == '.' && *name == '_')); prefix++, name++) {
    }
    return !*prefix;
}

/* True if an adapter's module changes a weight that the component's family does not use (family.ignorable).
 */
static bool find_ignored(struct finding *f, const char *text) {
    for (int slot = 0; slot < SLOTS_MAX; slot++) {
        const struct family *family = f->model->component[slot].family;
        for (const char *const *prefix = f->prefixes.of[slot]; *prefix && family; prefix++) {
            const char *rest = **prefix ? adapter_after_prefix(text, *prefix) : NULL;
            for (const char *const *ignored = family->ignorable; rest && *ignored; ignored++)
                if (begins_with_flat(rest, *ignored)) {
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

enum { TARGETS_MAX = 4 };

static int list_targets(const struct adapter_module *m, struct change_target targets[TARGETS_MAX]) {
    int n = 0;
    if (m->form != ADAPTER_DIFFERENCE) targets[n++] = (struct change_target){".weight", NULL, m->scale};
    if (m->tensor[ADAPTER_DIFF]) targets[n++] = (struct change_target){".weight", m->tensor[ADAPTER_DIFF], 1};
    if (m->tensor[ADAPTER_DIFF_BIAS])
        targets[n++] = (struct change_target){".bias", m->tensor[ADAPTER_DIFF_BIAS], 1};
    if (m->tensor[ADAPTER_UP_BIAS])
        targets[n++] = (struct change_target){".bias", m->tensor[ADAPTER_UP_BIAS], m->scale};
    if (m->tensor[ADAPTER_DIFF_MODULATION])
        targets[n++] = (struct change_target){".modulation", m->tensor[ADAPTER_DIFF_MODULATION], 1};
    return n;
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

static enum status find_module(struct finding *f, const struct adapter_module *m, struct error *e) {
    struct change_target targets[TARGETS_MAX];
    int n = list_targets(m, targets);
    bool all = true;
    for (int i = 0; i < n && e->code == OK; i++) all &= find_target(f, m, &targets[i], e);
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

static enum status fail_duplicate_change(const struct finding *f, const struct change *x,
                                         const struct change *y, struct error *e) {
    return error_set(e, DUP, "two modules of the adapter change '%s'" WHERE "%s" FOUND "'%s' and '%s'",
                     x->name->name, path_of(f), first_tensor(x->module), first_tensor(y->module));
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
            if (alike && last->module != next->module) return fail_duplicate_change(f, last, next, e);
            f->n_twice += last->module != next->module;
            if (!alike || last->vector == next->vector) continue;
        }
        c->at[n++] = *next;
    }
    c->n = n;
    return OK;
}

static const char *after_any_prefix(const struct finding *f, const char *name, int *slot) {
    const char *rest = name;
    *slot = -1;
    for (int i = 0; i < SLOTS_MAX; i++)
        for (const char *const *prefix = f->prefixes.of[i]; *prefix; prefix++) {
            const char *after = adapter_after_prefix(name, *prefix);
            if (!after || after <= rest) continue;
            rest = after;
            *slot = i;
        }
    return rest;
}

static void list_nearest(const struct finding *f, char *out, size_t bytes) {
    enum { SHOWN = 2 };
    const struct weight_name *nearest[SHOWN];
    struct adapter_key key;
    char name[LOADER_NAME_MAX + 32];
    int slot, whole = (int)strlen(f->unmatched);
    if (adapter_key_read(f->unmatched, &key)) whole = key.name_bytes;
    const char *rest = after_any_prefix(f, f->unmatched, &slot);
    snprintf(name, sizeof name, "%.*s.weight", whole - (int)(rest - f->unmatched), rest);
    int n = weight_names_nearest(&f->changes->names, slot, name, nearest, SHOWN);
    size_t at = (size_t)snprintf(out, bytes, n ? "a weight, nearest: " : "a name of the model's weights");
    for (int i = 0; i < n && at < bytes; i++)
        at += (size_t)snprintf(out + at, bytes - at, i ? " or '%s'" : "'%s'", nearest[i]->name);
}

static enum status fail_unmatched(const struct finding *f, struct error *e) {
    char nearest[160], more[32] = "";
    if (f->n_unmatched > 1) snprintf(more, sizeof more, " and %d more", f->n_unmatched - 1);
    list_nearest(f, nearest, sizeof nearest);
    f->changes->nothing = !f->n_matched;
    if (f->n_matched)
        error_set(e, MISSING, "the model has no weight for the adapter's '%s'%s", f->unmatched, more);
    else
        error_set(e, MISSING, "the adapter fits nothing in this model: no weight for '%s'%s", f->unmatched,
                  more);
    error_where(e, "%s", path_of(f));
    return error_expected(e, "%s", nearest);
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
