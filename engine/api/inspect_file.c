#include "engine/api/inspect_file.h"

#include "engine/open/adapter_match.h"
#include "loaders/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

json_t *inspect_tensors(const struct tensor_index *index) {
    json_t *list = json_array();
    for (int i = 0; i < index->n_entries; i++) {
        const struct index_entry *entry = &index->entries[i];
        if (!index_contains(index, entry)) continue;
        json_t *shape = json_array();
        for (int k = 0; k < entry->rank; k++) json_push(shape, json_integer(entry->dim[k]));
        json_push(list,
                  json_pack("{s:s, s:s, s:o, s:I, s:b}", "name", entry->name, "type", index_type_name(entry),
                            "shape", shape, "bytes", (json_int_t)entry->bytes, "used", (int)entry->used));
    }
    return list;
}

json_t *inspect_types(const struct tensor_index *index) {
    json_t *types = json_object();
    for (int i = 0; i < index->n_entries; i++) {
        if (!index_contains(index, &index->entries[i])) continue;
        const char *name = index_type_name(&index->entries[i]);
        json_int_t bytes = json_integer_value(json_object_get(types, name));
        json_put(types, name, json_integer(bytes + (json_int_t)index->entries[i].bytes));
    }
    return types;
}

bool inspect_is_adapter(struct sys *sys, const char *path) {
    struct tensor_index index = {0};
    struct error ignored = {0};
    struct stat s;
    bool found = false;
    if (stat(path, &s) || !S_ISREG(s.st_mode) || safetensors_open(sys, path, &index, &ignored) != OK)
        return false;
    for (int i = 0; i < index.n_entries && !found; i++) found = adapter_is_key(index.entries[i].name);
    index_destroy(&index);
    return found;
}

static void count_module(json_t *counts, const char *key) {
    json_put(counts, key, json_integer(json_integer_value(json_object_get(counts, key)) + 1));
}

static void count_number(json_t *counts, const char *key, double number) {
    char text[32] = "none";
    if (!isnan(number) && number >= 0) snprintf(text, sizeof text, "%g", number);
    count_module(json_object_get(counts, key), text);
}

static void count_sizes(json_t *counts, const struct adapter_module *m) {
    json_put(counts, "modules", json_integer(json_integer_value(json_object_get(counts, "modules")) + 1));
    count_number(counts, "ranks", m->rank ? m->rank : -1);
    count_number(counts, "alphas", (double)m->alpha);
}

/* Finds the slot of an adapter module: the slot with the longest prefix of the module's name; SLOTS_MAX: no
 * slot. */
static int slot_of_module(const struct adapter_prefixes *prefixes, const struct adapter_module *m) {
    size_t longest = 0;
    int found = SLOTS_MAX;
    for (int slot = 0; slot < SLOTS_MAX; slot++)
        for (const char *const *prefix = prefixes->of[slot]; *prefix; prefix++) {
            size_t n = strlen(*prefix);
            bool begins = n <= (size_t)m->name_bytes && !strncmp(m->name, *prefix, n);
            if (!begins || (found != SLOTS_MAX && n <= longest)) continue;
            longest = n;
            found = slot;
        }
    return found;
}

/* Counts an adapter's modules per pipeline component. recipe: a recipe whose model takes the whole adapter;
 * without one, the recipe with the most components. */
static json_t *parts_json(const struct adapter *a, const struct recipe *recipe) {
    struct adapter_prefixes prefixes;
    json_t *parts = json_array();
    adapter_find_prefixes(a, recipe, &prefixes);
    for (int i = 0; i < a->n_modules; i++) {
        int slot = slot_of_module(&prefixes, &a->modules[i]);
        const char *name = slot < SLOTS_MAX ? recipe->slot[slot].folder : "unknown";
        json_t *part = NULL;
        for (size_t k = 0; k < json_array_size(parts) && !part; k++) {
            part = json_array_get(parts, k);
            if (strcmp(json_string_value(json_object_get(part, "name")), name)) part = NULL;
        }
        if (!part) {
            json_push(parts,
                      json_pack("{s:s, s:i, s:{}, s:{}}", "name", name, "modules", 0, "ranks", "alphas"));
            part = json_array_get(parts, json_array_size(parts) - 1);
        }
        if (part) count_sizes(part, &a->modules[i]);
    }
    return parts;
}

static const struct recipe *largest_recipe(void) {
    const struct recipe *largest = recipes[0];
    for (const struct recipe *const *r = recipes; *r; r++) {
        int n = 0;
        while ((*r)->slot[n].family && largest->slot[n].family) n++;
        if ((*r)->slot[n].family) largest = *r;
    }
    return largest;
}

static json_t *adapter_json(const struct adapter *a, bool tensors) {
    enum { RECIPES_MAX = 64 };
    const struct recipe *fits[RECIPES_MAX];
    int n_fits = adapter_recipes(a, fits, RECIPES_MAX);
    json_t *names = json_array();
    for (int i = 0; i < n_fits; i++) json_push(names, json_string(fits[i]->name));
    json_t *all = json_pack("{s:o, s:i, s:I, s:o, s:i, s:{}, s:{}, s:{}, s:{}, s:o, s:o}", "file",
                            json_string_of(a->index.sources[0].path), "tensors", a->index.n_entries, "bytes",
                            (json_int_t)index_bytes(&a->index), "types", inspect_types(&a->index), "modules",
                            0, "dialects", "forms", "ranks", "alphas", "parts",
                            parts_json(a, n_fits ? fits[0] : largest_recipe()), "recipes", names);
    for (int i = 0; i < a->n_modules && all; i++) {
        count_module(json_object_get(all, "dialects"), adapter_dialect_name(a->modules[i].dialect));
        bool dora = a->modules[i].tensor[ADAPTER_DORA];
        count_module(json_object_get(all, "forms"), dora ? "DoRA" : adapter_form_name(a->modules[i].form));
        count_sizes(all, &a->modules[i]);
    }
    if (tensors && all) json_put(all, "list", inspect_tensors(&a->index));
    return all;
}

enum status inspect_adapter(struct sys *sys, const char *path, bool tensors, json_t **json, json_t *unknown,
                            struct error *e) {
    struct adapter *a = NULL;
    if (adapter_open(sys, path, &a, e) != OK) return e->code;
    *json = adapter_json(a, tensors);
    for (int i = 0; i < a->n_unknown; i++) json_push(unknown, json_string(a->unknown[i]->name));
    adapter_close(a);
    return OK;
}
