/* A single-file checkpoint of each recipe that the table of families lists as "one file" opens: published
 * tensor names and shapes under the usual prefixes, in a sparse file. All components are found, no tensor is
 * unknown, the recipe is right. */
#include "engine/open/model.h"
#include "engine/sluice.h"
#include "test/lib/check.h"
#include "test/lib/temporary_folder.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The JSON header that is being written, and the file offset of the next tensor. */
struct header {
    FILE *to;
    uint64_t bytes;
    bool any;
};

static void put_tensor(struct header *h, const char *prefix, const char *name,
                       const struct index_entry *entry) {
    fprintf(h->to, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[", h->any ? "," : "{", prefix, name,
            dtype_name(entry->dtype));
    for (int i = 0; i < entry->rank; i++) fprintf(h->to, "%s%d", i ? "," : "", (int)entry->dim[i]);
    fprintf(h->to, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", h->bytes, h->bytes + entry->bytes);
    h->bytes += entry->bytes;
    h->any = true;
}

/* Encoder and decoder of a VAE share one index, which is written once. */
static void put_component(struct header *h, const struct slot *slot, const struct component *c) {
    if (!c->family || c->family->kind == FAMILY_ENCODER) return;
    for (int i = 0; i < c->index.n_entries; i++)
        put_tensor(h, slot->prefixes[1], index_name(&c->index, &c->index.entries[i]), &c->index.entries[i]);
}

static void write_gguf(const struct sluice_model *m, const char *path) {
    char *text = NULL;
    size_t bytes = 0;
    struct header h = {.to = open_memstream(&text, &bytes)};
    for (int i = 0; m->recipe->slot[i].family; i++) put_component(&h, &m->recipe->slot[i], &m->component[i]);
    fprintf(h.to, "}");
    fclose(h.to);
    FILE *f = fopen(path, "wb");
    uint64_t length = bytes;
    check(f && fwrite(&length, 8, 1, f) == 1 && fwrite(text, bytes, 1, f) == 1 && !fflush(f) &&
              !ftruncate(fileno(f), (off_t)(8 + bytes + h.bytes)),
          "cannot write %s", path);
    if (f) fclose(f);
    free(text);
}

static bool has_component(const json_t *inspected, const char *family) {
    size_t i;
    json_t *component;
    json_array_foreach(json_object_get(inspected, "components"), i, component) {
        const char *name = json_string_value(json_object_get(component, "family"));
        if (name && !strcmp(name, family)) return true;
    }
    return false;
}

static void test_inspected(const struct sluice_model *m, const json_t *inspected) {
    const char *recipe = json_string_value(json_object_get(inspected, "recipe"));
    const struct recipe *const *found = recipes;
    while (*found && recipe && strcmp((*found)->name, recipe) != 0) found++;
    check(recipe && *found &&
              recipe_family(*found, FAMILY_DENOISER) == recipe_family(m->recipe, FAMILY_DENOISER) &&
              (*found)->selection.variant == m->recipe->selection.variant,
          "%s: recognised as %s", m->recipe->name, recipe ? recipe : "nothing");
    check(!json_array_size(json_object_get(inspected, "unknown")), "%s: unknown tensors", m->recipe->name);
    for (int i = 0; m->recipe->slot[i].family; i++) {
        const struct family *family = m->recipe->slot[i].family;
        if (slot_is_extra(&m->recipe->slot[i])) continue;
        check(family->kind == FAMILY_ENCODER || has_component(inspected, family->name),
              "%s: component %s not found", m->recipe->name, family->name);
    }
}

static void test_recipe(const char *name) {
    struct sluice_error error;
    struct error e = {0};
    struct sluice_model_options published = {.struct_size = sizeof published, .family = name};
    struct sluice_model *m = NULL;
    char path[128], *json = NULL;
    snprintf(path, sizeof path, "%s/%s.safetensors", temporary, name);
    struct sluice_model_options file = {.struct_size = sizeof file, .model = path};
    if (!check(model_open(NULL, &published, &m, &e) == OK, "%s: %s", name, e.what)) return;
    write_gguf(m, path);
    if (check(!sluice_inspect(&file, false, &json, &error), "%s: %s (%s) %s", name, error.what, error.where,
              error.found)) {
        json_t *inspected = json_loads(json, 0, NULL);
        test_inspected(m, inspected);
        json_decref(inspected);
    }
    sluice_free(json);
    model_close(m);
    unlink(path);
}

static bool is_one_file(const json_t *family) {
    size_t i;
    json_t *layout;
    json_array_foreach(json_object_get(family, "layouts"), i, layout) {
        if (!strcmp(json_string_value(layout), "one file")) return true;
    }
    return false;
}

/* Recipes without a title are not published (the test library has a synthetic one). */
int main(void) {
    struct sluice_error error;
    char *text = NULL;
    size_t i;
    json_t *family;
    temporary_make();
    if (!check(!sluice_families(&text, &error), "%s", error.what)) return finish();
    json_t *root = json_loads(text, 0, NULL);
    json_array_foreach(json_object_get(root, "families"), i, family) {
        if (json_is_string(json_object_get(family, "title")) && is_one_file(family))
            test_recipe(json_string_value(json_object_get(family, "name")));
    }
    json_decref(root);
    sluice_free(text);
    return finish();
}
