/* Writes random adapters for benchmarks and tests: one file of factors for every matrix of a family, in any
 * trainer's naming, from the families' weight tables. */
#include "bench/dev/checkpoint.h"

#include "bench/dev/adapter_dialects.h"
#include "bench/dev/checkpoint_types.h"
#include "engine/base/text.h"
#include "engine/run/component.h"
#include "engine/open/configuration.h"
#include "engine/open/model.h"
#include "engine/open/published.h"
#include "engine/sluice_bench.h"
#include "loaders/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Largest distance between the parts of one fused tensor (such as qkv), in entries of the module list. */
enum { PARTS_APART = 24 };

/* A module of the adapter file: a layer with a weight, or a norm or bias vector. */
struct module {
    char *name; /* module name as in the adapter file; owned */
    enum { MODULE_PRODUCT, MODULE_NORM, MODULE_BIAS } what;
    int rank;
    int32_t dim[WEIGHT_FILE_RANK_MAX];
};

struct adapter_writer {
    struct sys *sys;
    const struct adapter_options *options;
    const struct recipe *recipe;
    const struct adapter_naming *dialect;
    struct sizes sizes;
    enum dtype dtype;
    uint64_t random;
    struct module *modules;
    int n_modules;
    struct named_tensor *tensors; /* tensors of the adapter file; their names are owned */
    struct synthetic_tensor *made;
    int n_tensors;
    uint64_t done, all; /* bytes of the file: written so far, and in total */
};

/* True for weights of matrix products; false for embedding tables. */
static bool is_product(const struct weight_spec *spec, const struct block_kind *kind, const char *name) {
    return spec->rank >= 2 && !spec->embedding_lookup && !kind->embedding_table && ends_with(name, ".weight");
}

/* Name and shape of the tensor that stores a weight in files with a given naming convention: the weight's
 * own tensor, or a fused tensor. */
struct published_place {
    char name[2 * BLOCK_NAME_MAX];
    int rank;
    int32_t dim[WEIGHT_FILE_RANK_MAX];
};

/* Finds the tensor that stores a weight. authors: in the authors' checkpoint, which fuses some tensors that
 * diffusers splits, and splits a few tensors that diffusers fuses. */
static struct published_place place_weight(const struct block_ref *ref, const struct weight_spec *spec,
                                           const int32_t *dims, bool authors) {
    struct published_place place;
    const char *pattern = authors && spec->checkpoint_name ? spec->checkpoint_name : spec->names[0];
    block_weight_name(pattern, ref->number + (authors ? ref->number_offset : 0), place.name);
    place.rank = block_published_shape(spec, pattern, dims, place.dim);
    return place;
}

static bool is_listed_module(const struct adapter_writer *w, const char *name, int what) {
    for (int i = w->n_modules - 1; i >= 0 && i >= w->n_modules - PARTS_APART; i--)
        if (!strcmp(w->modules[i].name, name) && (int)w->modules[i].what == what) return true;
    return false;
}

static enum status add_module(struct adapter_writer *w, const char *prefix, struct published_place *place,
                              int what, struct error *e) {
    size_t bytes = strlen(prefix) + strlen(place->name) + 1;
    *strrchr(place->name, '.') = 0;
    char *name = w->sys->alloc(w->sys, LINE_HOST, bytes);
    if (!name) return error_set(e, MEMORY, "no memory for a module's name");
    int before = snprintf(name, bytes, "%s%s", prefix, place->name) - (int)strlen(place->name);
    for (char *at = name + before; w->dialect->flattened && *at; at++)
        if (*at == '.') *at = '_';
    if (is_listed_module(w, name, what)) {
        w->sys->release(w->sys, name);
        return OK;
    }
    struct module *module = &w->modules[w->n_modules++];
    *module = (struct module){.name = name, .what = what, .rank = place->rank};
    memcpy(module->dim, place->dim, sizeof module->dim);
    return OK;
}

static enum status list_weight(struct adapter_writer *w, const char *prefix, const struct block_ref *ref,
                               const struct weight_spec *spec, const int32_t *dims, bool authors,
                               struct error *e) {
    if (weight_is_optional(spec) || !block_has_weight(spec, dims)) return OK;
    struct published_place place = place_weight(ref, spec, dims, authors);
    if (is_product(spec, ref->kind, place.name)) return add_module(w, prefix, &place, MODULE_PRODUCT, e);
    if (!w->dialect->vectors || spec->rank != 1) return OK;
    if (ends_with(place.name, ".bias")) return add_module(w, prefix, &place, MODULE_BIAS, e);
    return ends_with(place.name, ".weight") ? add_module(w, prefix, &place, MODULE_NORM, e) : OK;
}

static enum status grow_modules(struct adapter_writer *w, int n, struct error *e) {
    struct module *modules =
        w->sys->alloc(w->sys, LINE_HOST, (size_t)(w->n_modules + n) * sizeof *w->modules);
    if (!modules) return error_set(e, MEMORY, "no memory for %d modules", n);
    if (w->n_modules) memcpy(modules, w->modules, (size_t)w->n_modules * sizeof *modules);
    w->sys->release(w->sys, w->modules);
    w->modules = modules;
    return OK;
}

static enum status list_blocks(struct adapter_writer *w, const char *prefix, const struct component *c,
                               const struct block_ref *refs, int n, struct error *e) {
    bool authors = w->dialect->authors && c->family->kind == FAMILY_DENOISER;
    int weights = 0;
    for (int b = 0; b < n; b++) weights += refs[b].kind->n_weights;
    if (grow_modules(w, weights, e) != OK) return e->code;
    for (int b = 0; b < n; b++) {
        int32_t dims[FAMILY_DIMS_MAX];
        component_block_dims(c, &refs[b], dims);
        for (int i = 0; i < refs[b].kind->n_weights && e->code == OK; i++)
            list_weight(w, prefix, &refs[b], &refs[b].kind->weights[i], dims, authors, e);
    }
    return e->code;
}

static enum status list_component(struct adapter_writer *w, int slot, struct error *e) {
    struct component c;
    char prefix[BLOCK_NAME_MAX];
    if (!adapter_naming_prefix(w->dialect, w->recipe, slot, prefix)) {
        return error_set(e, USAGE,
                         "this adapter dialect does not support text encoders" FOUND "%s" EXPECTED
                         "another dialect, or the denoiser only",
                         w->dialect->name);
    }
    struct block_ref *refs = w->sys->alloc(w->sys, LINE_HOST, FAMILY_BLOCKS_MAX * sizeof *refs);
    if (!refs) return error_set(e, MEMORY, "no memory for a list of blocks");
    configuration_begin(w->recipe, slot, w->sys, &c);
    component_derive(&c, w->sizes.of[slot]);
    list_blocks(w, prefix, &c, refs, c.family->blocks.list(&c, refs), e);
    w->sys->release(w->sys, refs);
    return e->code;
}

/* Lists the modules of the text encoders and of the first denoiser; a second denoiser has its own adapter
 * file. */
static enum status list_modules(struct adapter_writer *w, struct error *e) {
    int denoiser = recipe_slot(w->recipe, FAMILY_DENOISER);
    for (int i = 0; w->recipe->slot[i].family && e->code == OK; i++) {
        bool text = w->options->text_encoders && w->recipe->slot[i].family->kind == FAMILY_TEXT;
        if (text || i == denoiser) list_component(w, i, e);
    }
    return e->code;
}

static enum status add_factor(struct adapter_writer *w, const struct module *module,
                              const struct adapter_factor *factor, struct error *e) {
    size_t bytes = strlen(module->name) + strlen(factor->end) + 1;
    char *name = w->sys->alloc(w->sys, LINE_HOST, bytes);
    if (!name) return error_set(e, MEMORY, "no memory for a tensor's name");
    snprintf(name, bytes, "%s%s", module->name, factor->end);
    enum dtype dtype = factor->rank ? w->dtype : DTYPE_F32;
    struct tensor tensor = tensor_make(NULL, dtype, factor->rank, factor->dim);
    struct synthetic_tensor made = {.values = tensor, .init_scale = factor->init_scale};
    if (!factor->rank) {
        made.what = SYNTHETIC_SCALE;
        made.values.scale = factor->alpha;
    }
    w->tensors[w->n_tensors] = (struct named_tensor){name, tensor};
    w->made[w->n_tensors++] = made;
    w->all += (uint64_t)tensor_bytes(&tensor);
    return OK;
}

/* Adds the low-rank factors of one module. Modules alternate between two values of alpha: the rank, and half
 * the rank. */
static enum status add_factors(struct adapter_writer *w, int i_module, struct error *e) {
    const struct module *module = &w->modules[i_module];
    struct adapter_factor factors[ADAPTER_FACTORS_MAX] = {
        {.end = module->what == MODULE_BIAS ? ".diff_b" : ".diff", .rank = 1, .init_scale = 0.25}};
    int n = 1;
    if (module->what == MODULE_PRODUCT) {
        double alpha = w->dialect->alphas != ALPHAS_OF_MODULES ? 0 : i_module % 2 ? 0.5 : 1;
        n = adapter_naming_factors(w->dialect, module->rank, module->dim, w->options->rank, alpha, factors);
    } else {
        factors[0].dim[0] = module->dim[0];
    }
    for (int i = 0; i < n && e->code == OK; i++) add_factor(w, module, &factors[i], e);
    return e->code;
}

static enum status make_factors(struct adapter_writer *w, struct error *e) {
    size_t n = (size_t)w->n_modules * ADAPTER_FACTORS_MAX;
    w->tensors = w->sys->alloc(w->sys, LINE_HOST, (n + 1) * sizeof *w->tensors);
    w->made = w->sys->alloc(w->sys, LINE_HOST, (n + 1) * sizeof *w->made);
    if (!w->tensors || !w->made) return error_set(e, MEMORY, "no memory for %zu tensors", n);
    for (int i = 0; i < w->n_modules && e->code == OK; i++) add_factors(w, i, e);
    return e->code;
}

static enum status make_factor(void *user, int i, void *to, uint64_t bytes, struct error *e) {
    struct adapter_writer *w = user;
    const struct checkpoint_options *o = &w->options->base;
    synthetic_tensor_fill(&w->random, &w->made[i], to, bytes);
    w->done += bytes;
    if (!o->on_progress || o->on_progress(o->user, (double)w->done / (double)w->all)) return OK;
    return error_set(e, CANCELLED, "cancelled");
}

/* Returns peft's rank_pattern: the ranks of modules with lower rank, by module name without the component's
 * prefix. */
static json_t *rank_pattern(const struct adapter_writer *w, const char *prefix) {
    json_t *pattern = json_object();
    for (int i = 0; i < w->n_modules; i++) {
        const struct module *m = &w->modules[i];
        int32_t rank = adapter_rank_of(m->rank, m->dim, w->options->rank);
        if (strncmp(m->name, prefix, strlen(prefix)) != 0 || rank == w->options->rank) continue;
        json_put(pattern, m->name + strlen(prefix), json_integer(rank));
    }
    return pattern;
}

/* Returns the entry target_modules of peft's configuration, which diffusers requires. */
static json_t *target_modules(const struct adapter_writer *w, const char *prefix) {
    json_t *names = json_array();
    size_t n = strlen(prefix);
    for (int i = 0; i < w->n_modules; i++)
        if (!strncmp(w->modules[i].name, prefix, n)) json_push(names, json_string(w->modules[i].name + n));
    return names;
}

static void put_of_component(json_t *json, const char *prefix, const char *key, json_t *value) {
    json_t *name = json_sprintf("%s%s", prefix, key);
    json_put(json, json_string_value(name), value);
    json_decref(name);
}

/* Returns peft's configuration as diffusers saves it in metadata: every module's alpha is half the rank. */
static char *peft_text(const struct adapter_writer *w) {
    unsigned json_failures = failed_json_allocations();
    json_t *json = json_object();
    int denoiser = recipe_slot(w->recipe, FAMILY_DENOISER);
    for (int i = 0; w->recipe->slot[i].family; i++) {
        char prefix[BLOCK_NAME_MAX];
        bool text = w->options->text_encoders && w->recipe->slot[i].family->kind == FAMILY_TEXT;
        if (!text && i != denoiser) continue;
        adapter_naming_prefix(w->dialect, w->recipe, i, prefix);
        put_of_component(json, prefix, "r", json_integer(w->options->rank));
        put_of_component(json, prefix, "lora_alpha", json_real(0.5 * w->options->rank));
        put_of_component(json, prefix, "rank_pattern", rank_pattern(w, prefix));
        put_of_component(json, prefix, "alpha_pattern", json_object());
        put_of_component(json, prefix, "use_rslora", json_false());
        put_of_component(json, prefix, "target_modules", target_modules(w, prefix));
    }
    return json_to_text(json, JSON_COMPACT, json_failures);
}

static enum status write_adapter(struct adapter_writer *w, const char *path, struct error *e) {
    struct safetensors_text metadata[2] = {{"format", "pt"}};
    struct safetensors_content content = {
        .tensors = w->tensors, .n_tensors = w->n_tensors, .metadata = metadata, .n_metadata = 1};
    struct tensor_maker maker = {w, make_factor};
    char *peft = NULL;
    if (w->dialect->alphas == ALPHAS_IN_METADATA) {
        peft = peft_text(w);
        if (!peft) return error_set(e, MEMORY, "no memory for metadata");
        metadata[content.n_metadata++] = (struct safetensors_text){"lora_adapter_metadata", peft};
    }
    safetensors_write_content(w->sys, path, &content, &maker, e);
    free(peft);
    return e->code;
}

static enum status read_options(struct adapter_writer *w, struct error *e) {
    const struct adapter_options *o = w->options;
    struct stored_types types;
    w->recipe = sizes_find_recipe(o->base.family, e);
    if (w->recipe) w->dialect = adapter_naming_find(o->dialect, e);
    if (!w->dialect || sizes_read(&w->sizes, w->recipe, SLOTS_MAX, o->base.dimensions, e) != OK)
        return e->code;
    const char *dtype = w->sizes.dtype ? w->sizes.dtype : "bf16";
    if (stored_types_read(dtype, w->sizes.dtype ? w->sizes.dtype_bytes : strlen(dtype), &types, e) != OK)
        return e->code;
    if (!stored_types_are_plain(&types))
        return error_set(e, USAGE, "an adapter's dtype must be f32, f16 or bf16");
    w->dtype = stored_types_plain(&types);
    if (o->rank >= 1 && o->rank <= SLUICE_ADAPTER_RANK_MAX) return OK;
    return error_set(e, USAGE, "invalid adapter rank" FOUND "%d" EXPECTED "1 to %d", o->rank,
                     SLUICE_ADAPTER_RANK_MAX);
}

static void adapter_writer_end(struct adapter_writer *w) {
    for (int i = 0; i < w->n_modules; i++) w->sys->release(w->sys, w->modules[i].name);
    for (int i = 0; i < w->n_tensors; i++) w->sys->release(w->sys, (char *)w->tensors[i].name);
    w->sys->release(w->sys, w->modules);
    w->sys->release(w->sys, w->tensors);
    w->sys->release(w->sys, w->made);
}

enum status adapter_write(const struct adapter_options *options, const char *path, struct error *e) {
    struct sys sys;
    sys_init_machine(&sys);
    struct adapter_writer w = {.sys = &sys, .options = options, .random = options->base.seed};
    if (read_options(&w, e) == OK && list_modules(&w, e) == OK && make_factors(&w, e) == OK)
        write_adapter(&w, path, e);
    adapter_writer_end(&w);
    return e->code;
}
