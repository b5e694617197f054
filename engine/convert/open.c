/* Opens the inputs of a conversion: see convert.h. */
#include "engine/convert/convert.h"
#include "engine/open/adapter_file.h"
#include "engine/run/component.h"

#include "engine/open/model.h"
#include "engine/open/paths.h"
#include "loaders/loaders.h"

#include <stdio.h>
#include <string.h>

enum { INPUTS_MAX = 256 };

/* Returns the path of an input file, or of the component that --part names in a pipeline's folder; the
 * caller frees the path. Returns NULL after an error. */
static char *input_path(struct conversion *c, const char *path, struct error *e) {
    static const char *const indexes[] = {"model_index.json", "modular_model_index.json"};
    bool is_pipeline = false;
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes && path_is_folder(path) && !is_pipeline; i++) {
        char *pipeline = path_existing(c->sys, path, indexes[i], e);
        is_pipeline = pipeline != NULL;
        c->sys->release(c->sys, pipeline);
    }
    if (e->code != OK) return NULL;
    if (!is_pipeline) return path_copy(c->sys, path, e);
    char *part = c->options->part ? path_existing(c->sys, path, c->options->part, e) : NULL;
    if (part || e->code != OK) return part;
    error_set(e, USAGE, "--part is needed to choose the component to convert" WHERE "%s", path);
    if (c->options->part) error_found(e, "%s", c->options->part);
    error_expected(e, "--part with the name of one of its folders, such as transformer");
    return NULL;
}

static enum status open_inputs(struct conversion *c, struct tensor_index *parts, int n, struct error *e) {
    struct index_size size = {0};
    for (int i = 0; i < n && e->code == OK; i++) {
        char *path = input_path(c, c->options->inputs[i], e);
        if (path && component_open(c->sys, path, &parts[i], e) == OK)
            index_add_size(&size, &parts[i], path, e);
        if (i) c->sys->release(c->sys, path);
        if (!i) c->place = path;
    }
    if (e->code != OK) return e->code;
    if (n > 1) return index_merge(c->sys, c->options->inputs[0], parts, n, &c->whole, e);
    c->whole = parts[0];
    parts[0] = (struct tensor_index){0};
    return OK;
}

static enum status open_files(struct conversion *c, struct error *e) {
    int n = c->options->n_inputs;
    if (n < 1 || n > INPUTS_MAX)
        return error_set(e, USAGE,
                         "wrong number of inputs to convert" FOUND "%d inputs" EXPECTED
                         "1 to %d files or folders",
                         n, INPUTS_MAX);
    struct tensor_index *parts = c->sys->alloc(c->sys, LINE_HOST, (size_t)n * sizeof *parts);
    if (!parts) return error_set(e, MEMORY, "no memory for %d inputs", n);
    open_inputs(c, parts, n, e);
    for (int i = 0; i < n; i++) index_destroy(&parts[i]);
    c->sys->release(c->sys, parts);
    return e->code;
}

/* Finds the first recipe and slot for a component, preferably in a pipeline whose denoiser is in the same
 * file. */
static const struct recipe *part_place(const struct conversion *c, const struct family *family,
                                       const char *prefix, int *slot) {
    const struct recipe *recipe = c->denoiser ? models_find_slot(family, prefix, c->denoiser, slot) : NULL;
    return recipe ? recipe : models_find_slot(family, prefix, NULL, slot);
}

static const struct slot *part_slot(const struct conversion *c, const struct family *family,
                                    const char *prefix) {
    int slot;
    const struct recipe *recipe = part_place(c, family, prefix, &slot);
    return &recipe->slot[slot];
}

/* The name of a slot for --part: the slot's component flag without dashes. */
static const char *part_name(const struct slot *slot) {
    return slot->flag + strspn(slot->flag, "-");
}

static enum status fail_part(const struct conversion *c, const struct contents *contents, struct error *e) {
    char names[160] = "";
    size_t n = 0;
    for (int i = 0; i < contents->n && n < sizeof names; i++)
        n += (size_t)snprintf(
            names + n, sizeof names - n, "%s%s", i ? ", " : "",
            part_name(part_slot(c, contents->component[i].family, contents->component[i].prefix)));
    error_set(e, USAGE, "--part is needed to choose the component of this file" WHERE "%s",
              c->whole.sources[0].path);
    if (c->options->part) error_found(e, "%s", c->options->part);
    return error_expected(e, "--part with one of %s", names);
}

/* Chooses the component to convert. Drops the component's prefix from tensor names if the file has several
 * components. */
static enum status choose_part(struct conversion *c, const struct contents *contents, struct error *e) {
    const char *name = c->options->part;
    int chosen = contents->n == 1 ? 0 : -1;
    for (int i = 0; i < contents->n; i++)
        if (contents->component[i].family->kind == FAMILY_DENOISER)
            c->denoiser = contents->component[i].family;
    /* --part names a component by its flag without dashes, its folder in Hugging Face's layout (unless
     * components share the folder), its family, or its tensor prefix. */
    for (int i = 0; i < contents->n && name; i++) {
        const struct family *family = contents->component[i].family;
        const char *prefix = contents->component[i].prefix;
        const struct slot *slot = part_slot(c, family, prefix);
        size_t n = strlen(prefix);
        if (!strcmp(name, part_name(slot)) || (!slot->prefix && !strcmp(name, slot->folder)) ||
            !strcmp(name, family->name) ||
            (n && (!strcmp(name, prefix) || (strlen(name) == n - 1 && !strncmp(name, prefix, n - 1)))))
            chosen = i;
    }
    if (!contents->n) return OK;
    if (chosen < 0) return fail_part(c, contents, e);
    c->view = chosen;
    c->family = contents->component[chosen].family;
    c->prefix = contents->n > 1 ? contents->component[chosen].prefix : "";
    return OK;
}

/* Replaces the component's family by a family with the same tensors (family_files.same_tensors), if the
 * configuration or --part names the other family. */
static enum status choose_family(struct conversion *c, const char *prefix, struct error *e) {
    struct tensor_index view = index_view(&c->whole, *prefix ? prefix : NULL, c->view);
    const struct family *found = c->family;
    for (const struct family *const *f = families; *f && c->family == found && e->code == OK; f++) {
        struct config config = {0};
        enum config_origin origin;
        int slot;
        const struct recipe *recipe =
            (*f)->files.same_tensors == found ? part_place(c, *f, prefix, &slot) : NULL;
        if (!recipe) continue;
        struct config_place place = {c->place, &recipe->slot[slot], &view};
        bool is = c->options->part && !strcmp(c->options->part, (*f)->name);
        configuration_read(c->sys, &place, &config, &origin, e);
        if (is || configuration_names(&config, *f)) c->family = *f;
        config_destroy(&config);
    }
    return e->code;
}

/* Stores the block kind of each tensor of a bound component. */
static enum status find_kinds(struct conversion *c, const struct component *component, struct error *e) {
    struct block_ref *refs = c->sys->alloc(c->sys, LINE_HOST, FAMILY_BLOCKS_MAX * sizeof *refs);
    if (!refs) return error_set(e, MEMORY, "no memory for a list of blocks");
    int n = component->family->blocks.list(component, refs);
    for (int b = 0; b < n; b++)
        for (int i = 0; i < refs[b].kind->n_weights; i++) {
            const struct block_kind *kind = refs[b].kind;
            const struct index_entry *entry =
                block_find_weight(&refs[b], &kind->weights[i], &component->index);
            const struct block_kind **place = entry ? &c->kinds[entry - c->whole.entries] : NULL;
            if (place && (!*place || kind->never_quantised)) *place = kind;
        }
    c->sys->release(c->sys, refs);
    return OK;
}

/* Binds the component as in a run with the given recipe and slot, and stores the block kind of each tensor.
 */
static enum status bind_slot(struct conversion *c, const struct recipe *recipe, int slot,
                             struct tensor_index view, struct config *config, enum config_origin *origin,
                             struct error *e) {
    struct component component;
    configuration_begin(recipe, slot, c->sys, &component);
    component.index = view;
    struct config_place place = {c->place, &recipe->slot[slot], &component.index};
    if (index_check_quantised(&component.index, e) == OK &&
        configuration_read(c->sys, &place, config, origin, e) == OK &&
        component_bind(&component, config, e) == OK)
        find_kinds(c, &component, e);
    if (component.family == c->family) c->architecture = component_architecture(&component);
    component_destroy(&component);
    return e->code;
}

/* Binds a text encoder repeatedly, once as each pipeline reads it, because some pipelines read the last
 * hidden states and some read the projection. A tensor that any pipeline keeps unquantised stays unquantised.
 */
static enum status bind_readers(struct conversion *c, const char *prefix, struct tensor_index view,
                                struct error *e) {
    for (const struct recipe *const *r = recipes; *r && e->code == OK; r++)
        for (int i = 0; (*r)->slot[i].family; i++) {
            const struct slot *slot = &(*r)->slot[i];
            struct config config = {0};
            struct error failure = {0};
            enum config_origin origin;
            if (!slot_takes(slot, c->family, prefix) || (slot->matches && !slot->matches(&view))) continue;
            if (bind_slot(c, *r, i, view, &config, &origin, &failure) == MEMORY) *e = failure;
            config_destroy(&config);
        }
    return e->code;
}

/* Binds the component. An autoencoder's encoder and decoder are bound together. */
static enum status bind_family(struct conversion *c, const char *prefix, struct error *e) {
    struct tensor_index view = index_view(&c->whole, *prefix ? prefix : NULL, c->view);
    struct config config = {0};
    enum config_origin origin = CONFIG_PUBLISHED;
    int slot;
    const struct recipe *recipe = part_place(c, c->family, prefix, &slot);
    const struct sluice_convert_options *o = c->options;
    struct merge_subject subject = {.sys = c->sys,
                                    .loras = o->loras,
                                    .n_loras = o->n_loras,
                                    .partial = o->lora_partial,
                                    .family = c->family,
                                    .index = &view,
                                    .path = c->place};
    bind_slot(c, recipe, slot, view, &c->config, &origin, e);
    /* A text encoder may lack layers that the recipe reads. Then tries all slots of all recipes; if all fail,
     * returns the first error. */
    for (const struct recipe *const *r = recipes; *r && c->family->kind == FAMILY_TEXT; r++)
        for (int i = 0; (*r)->slot[i].family && e->code != OK && e->code != MEMORY; i++) {
            struct error failure = {0};
            if (!slot_takes(&(*r)->slot[i], c->family, prefix)) continue;
            config_destroy(&c->config);
            c->config = (struct config){0};
            if (bind_slot(c, *r, i, view, &c->config, &origin, &failure) == OK) *e = failure;
        }
    if (e->code != OK) return e->code;
    if (o->n_loras && merge_open(&subject, &c->merge, e) != OK) return e->code;
    c->config_is_file = origin == CONFIG_JSON_FILE;
    if (c->family->kind == FAMILY_TEXT) return bind_readers(c, prefix, view, e);
    const struct family *encoder = recipe_family(recipe, FAMILY_ENCODER);
    if (c->family->kind != FAMILY_DECODER || !encoder || !encoder->files.probe(&view)) return OK;
    bind_slot(c, recipe, recipe_slot(recipe, FAMILY_ENCODER), view, &config, &origin, e);
    config_destroy(&config);
    return e->code;
}

enum status convert_open(struct conversion *c, struct error *e) {
    struct contents contents = {0};
    c->prefix = "";
    if (open_files(c, e) != OK) return e->code;
    size_t n = (size_t)c->whole.n_entries + 1;
    c->kinds = c->sys->alloc(c->sys, LINE_HOST, n * sizeof(void *));
    c->auxiliary = c->sys->alloc(c->sys, LINE_HOST, n * sizeof *c->auxiliary);
    if (!c->kinds || !c->auxiliary) return error_set(e, MEMORY, "no memory for %zu tensors", n - 1);
    for (int i = 0; i < c->whole.n_entries; i++) c->auxiliary[i] = c->whole.entries[i].used;
    if (contents_find(c->sys, &c->whole, &contents, e) != OK) return e->code;
    if (choose_part(c, &contents, e) != OK) return e->code;
    if (!c->family && c->options->n_loras)
        return error_set(e, UNSUPPORTED,
                         "an adapter cannot be merged into weights of an unknown model" WHERE "%s" EXPECTED
                         "a transformer, UNet or text encoder",
                         c->whole.sources[0].path);
    for (int i = 0; i < c->whole.n_entries && !c->family; i++)
        if (adapter_is_key(c->whole.entries[i].name))
            return error_set(e, USAGE,
                             "the file is a LoRA or other adapter, not a model" WHERE "%s" EXPECTED
                             "the model's file, with --lora %s to merge the adapter into it",
                             c->whole.sources[0].path, c->whole.sources[0].path);
    if (!c->family) return index_check_quantised(&c->whole, e);
    const char *prefix = contents.component[c->view].prefix;
    return choose_family(c, prefix, e) == OK ? bind_family(c, prefix, e) : e->code;
}

void convert_close(struct conversion *c) {
    struct sys *sys = c->sys;
    for (int i = 0; c->items && i < c->n_items; i++) sys->release(sys, c->items[i].name);
    sys->release(sys, c->items);
    merge_close(c->merge);
    gguf_close(c->header);
    sys->release(sys, c->values);
    sys->release(sys, c->keys);
    sys->release(sys, c->kinds);
    sys->release(sys, c->auxiliary);
    sys->release(sys, c->buffers.stored);
    sys->release(sys, c->buffers.scales);
    sys->release(sys, c->buffers.out);
    sys->release(sys, c->buffers.numbers);
    thread_pool_close(c->thread_pool);
    config_destroy(&c->config);
    index_destroy(&c->whole);
    sys->release(sys, c->place);
}
