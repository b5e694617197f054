/* JSON output of `inspect` (contents of model files) and `tokenize` (token ids of a prompt). */
#include "engine/open/adapter_match.h"
#include "engine/open/component_search.h"
#include "engine/open/model.h"
#include "engine/open/paths.h"
#include "engine/open/pipeline.h"
#include "engine/open/prompt.h"
#include "engine/open/public_structs.h"
#include "engine/open/tokenizers.h"
#include "engine/run/component.h"
#include "loaders/json.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void count_up(json_t *counts, const char *key, json_int_t n) {
    json_put(counts, key, json_integer(json_integer_value(json_object_get(counts, key)) + n));
}

/* Lists all tensors of a file as JSON: [{"name","type","shape","bytes","used"}]. */
static json_t *inspect_tensors(const struct tensor_index *index) {
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

/* Returns a file's weight bytes per tensor type as JSON: {TYPE:bytes}. */
static json_t *inspect_types(const struct tensor_index *index) {
    json_t *types = json_object();
    for (int i = 0; i < index->n_entries; i++)
        if (index_contains(index, &index->entries[i]))
            count_up(types, index_type_name(&index->entries[i]), (json_int_t)index->entries[i].bytes);
    return types;
}

/* True for a safetensors file with tensors named like adapter factors (lora_A, lora_down, ...). False if the
 * file cannot be read. */
static bool inspect_is_adapter(struct sys *sys, const char *path) {
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

/* Counts an adapter module, by rank and by alpha; "none": the module has no rank or alpha. */
static void count_sizes(json_t *counts, const struct adapter_module *m) {
    char rank[32] = "none", alpha[32] = "none";
    if (m->rank > 0) snprintf(rank, sizeof rank, "%d", (int)m->rank);
    if (m->alpha >= 0) snprintf(alpha, sizeof alpha, "%g", (double)m->alpha);
    count_up(counts, "modules", 1);
    count_up(json_object_get(counts, "ranks"), rank, 1);
    count_up(json_object_get(counts, "alphas"), alpha, 1);
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

static json_t *adapter_json(const struct adapter *a, bool tensors) {
    enum { RECIPES_MAX = 64 };
    const struct recipe *fits[RECIPES_MAX];
    int n_fits = adapter_recipes(a, fits, RECIPES_MAX);
    json_t *names = json_array();
    for (int i = 0; i < n_fits; i++) json_push(names, json_string(fits[i]->name));
    const struct recipe *largest = recipes[0]; /* recipe with the most components */
    for (const struct recipe *const *r = recipes; *r; r++) {
        int n = 0;
        while ((*r)->slot[n].family && largest->slot[n].family) n++;
        if ((*r)->slot[n].family) largest = *r;
    }
    json_t *all = json_pack("{s:o, s:i, s:I, s:o, s:i, s:{}, s:{}, s:{}, s:{}, s:o, s:o}", "file",
                            json_string_of(a->index.sources[0].path), "tensors", a->index.n_entries, "bytes",
                            (json_int_t)index_bytes(&a->index), "types", inspect_types(&a->index), "modules",
                            0, "dialects", "forms", "ranks", "alphas", "parts",
                            parts_json(a, n_fits ? fits[0] : largest), "recipes", names);
    for (int i = 0; i < a->n_modules && all; i++) {
        count_up(json_object_get(all, "dialects"), adapter_dialect_name(a->modules[i].dialect), 1);
        bool dora = a->modules[i].tensor[ADAPTER_DORA];
        count_up(json_object_get(all, "forms"), dora ? "DoRA" : adapter_form_name(a->modules[i].form), 1);
        count_sizes(all, &a->modules[i]);
    }
    if (tensors && all) json_put(all, "list", inspect_tensors(&a->index));
    return all;
}

/* Describes an adapter file as in sluice.h, with "list" if tensors is set. Appends the names of tensors that
 * are not adapter factors to unknown. Fails like adapter_open. */
static enum status inspect_adapter(struct sys *sys, const char *path, bool tensors, json_t **json,
                                   json_t *unknown, struct error *e) {
    struct adapter *a = NULL;
    if (adapter_open(sys, path, &a, e) != OK) return e->code;
    *json = adapter_json(a, tensors);
    for (int i = 0; i < a->n_unknown; i++) json_push(unknown, json_string(a->unknown[i]->name));
    adapter_close(a);
    return OK;
}

static json_int_t inspect_values_of(const struct index_entry *entry) {
    json_int_t values = 1;
    if (entry->is_quant_metadata || !entry->bytes) return 0;
    for (int i = 0; i < entry->rank; i++) values *= entry->dim[i];
    return values;
}

static void set_bits(json_t *counted) {
    double values = (double)json_integer_value(json_object_get(counted, "values"));
    double bits = 8 * (double)json_integer_value(json_object_get(counted, "bytes"));
    json_put(counted, "bits_per_weight", json_real(values > 0 ? bits / values : 0));
}

/* Adds to a component's JSON: "values" (number of weights), "bits_per_weight" (with scales) and "groups", one
 * group for each series of repeated blocks ("layers.N" for "layers.12.to_k.weight"):
 * [{"name":"layers.N","tensors","bytes","values","bits_per_weight", "types":{TYPE:bytes}}]. Other tensors are
 * in the group "others". Scales count as bytes, not as values. */
static void add_groups(const struct tensor_index *index, json_t *component) {
    json_t *list = json_array(), *by_name = json_object(), *group;
    json_int_t values = 0;
    const char *key;
    for (int i = 0; i < index->n_entries; i++) {
        char name[256] = "others";
        const struct index_entry *entry = &index->entries[i];
        if (!index_contains(index, entry)) continue;
        const char *tensor = index_name(index, entry), *dot = strchr(tensor, '.');
        for (; dot; dot = strchr(dot + 1, '.')) {
            size_t digits = strspn(dot + 1, "0123456789");
            if (!digits || dot[1 + digits] != '.') continue;
            snprintf(name, sizeof name, "%.*s.N", (int)(dot - tensor), tensor);
            break;
        }
        if (!json_object_get(by_name, name))
            json_put(by_name, name, json_pack("{s:s, s:{}}", "name", name, "types"));
        group = json_object_get(by_name, name);
        count_up(group, "tensors", 1);
        count_up(group, "bytes", (json_int_t)entry->bytes);
        count_up(group, "values", inspect_values_of(entry));
        count_up(json_object_get(group, "types"), index_type_name(entry), (json_int_t)entry->bytes);
        values += inspect_values_of(entry);
    }
    json_object_foreach(by_name, key, group) {
        set_bits(group);
        json_count_failure(json_array_append(list, group));
    }
    json_decref(by_name);
    json_put(component, "values", json_integer(values));
    set_bits(component);
    json_put(component, "groups", list);
}

/* Describes a control network: the family of models that it controls, its input and its modes. */
static json_t *control_json(const struct component *c) {
    static const char *const inputs[] = {
        [CONTROL_PIXELS] = "pixels", [CONTROL_SIGNED_PIXELS] = "pixels", [CONTROL_LATENT] = "latent"};
    const struct family_control *control = &c->family->control;
    json_t *modes = json_array();
    const char *const *name = control->modes;
    for (int i = 0; i < c->control.modes; i++) { /* modes after the named ones have numbers */
        json_push(modes, name && *name ? json_string(*name) : json_integer(i));
        if (name && *name) name++;
    }
    return json_pack("{s:s, s:s, s:o, s:i}", "denoiser", control->denoiser->name, "input",
                     inputs[control->input], "modes", modes, "blocks", c->n_blocks);
}

static json_t *component_json(const struct component *c, const struct config *config, const char *name,
                              enum config_origin origin, bool tensors) {
    json_t *files = json_array();
    json_int_t bytes = 0;
    int n = 0;
    for (int i = 0; i < c->index.n_sources; i++) json_push(files, json_string_of(c->index.sources[i].path));
    for (int i = 0; i < c->index.n_entries; i++) {
        if (!index_contains(&c->index, &c->index.entries[i])) continue;
        n++;
        bytes += (json_int_t)c->index.entries[i].bytes;
    }
    json_t *json = json_pack("{s:s, s:s?, s:o, s:i, s:I, s:o, s:o, s:s}", "name", name, "family",
                             c->family ? c->family->name : NULL, "files", files, "tensors", n, "bytes", bytes,
                             "types", inspect_types(&c->index), "config", config_json(config), "config_from",
                             config_origin_word[origin]);
    if (c->family && c->family->kind == FAMILY_CONTROL) json_put(json, "control", control_json(c));
    if (c->family && c->family->kind == FAMILY_UPSCALER)
        json_put(json, "scale", json_integer(c->pixel_factor));
    if (c->family && c->family->kind == FAMILY_LATENT_UPSCALER)
        json_put(json, "scale", json_real((double)c->pixel_factor / c->pixel_divisor));
    add_groups(&c->index, json);
    if (tensors) json_put(json, "list", inspect_tensors(&c->index));
    return json;
}

struct findings {
    bool tensors;
    json_t *components, *unknown, *missing, *notes;
    /* Components of an inspected model; all stay open until the end, because several may share one tensor
     * index. */
    struct component component[COMPONENT_FILES_MAX];
    int n_components;
    json_t *text[SLOTS_MAX];     /* JSON of the text encoders found; borrowed */
    const struct recipe *recipe; /* recipe that the components fit; NULL: none */
};

/* Appends an error's line to a JSON list, unless the list has it: a damaged file may be opened twice. */
static void add_line(void *list, const struct error *e) {
    char line[1024];
    size_t i;
    json_t *other, *text = json_string_of(error_line(e, line, sizeof line));
    bool listed = false;
    json_array_foreach((json_t *)list, i, other) listed |= json_equal(other, text);
    listed ? json_decref(text) : json_push(list, text);
}

/* Adds error messages on missing tensors to a JSON list. reported: a message that the list already has and
 * that is not added again. */
struct missing_names {
    json_t *list;
    const char *reported, *prefix;
};

static void add_missing(void *user, const char *name) {
    const struct missing_names *to = user;
    json_t *line = json_sprintf("tensor '%s%s' is missing", to->prefix, name);
    if (line && strcmp(json_string_value(line), to->reported))
        json_push(to->list, line);
    else
        json_decref(line);
}

/* What to describe: a component file's path and display name, and the recipe and slot that it is read as. */
struct shown {
    const struct recipe *recipe; /* NULL: unknown */
    int slot;
    const char *path, *name;
};

/* Describes a component. A component whose tensors do not fit its family is described too, with the error
 * under "missing". */
static json_t *inspect_component(struct component *c, const struct shown *shown, struct findings *to,
                                 struct error *e) {
    struct config config = {0};
    enum config_origin origin = CONFIG_PUBLISHED;
    struct error failure = {0};
    struct config_place place = {shown->path, NULL, &c->index};
    json_t *json = NULL;
    index_check_quantised(&c->index, &failure);
    if (shown->recipe) place.slot = &shown->recipe->slot[shown->slot];
    if (shown->recipe && configuration_read(c->sys, &place, &config, &origin, &failure) == OK &&
        component_bind(c, &config, &failure) == OK) {
        /* Binds the VAE encoder's tensors in the decoder's files, so that they are not listed as unknown. */
        struct component encoder = {.sys = c->sys, .family = recipe_family(shown->recipe, FAMILY_ENCODER)};
        if (c->family->kind == FAMILY_DECODER && encoder.family && encoder.family->files.probe(&c->index)) {
            encoder.index = index_view(&c->index, c->index.prefix, c->index.view);
            component_bind(&encoder, &config, &failure);
            component_destroy(&encoder);
        }
    }
    if (failure.code == MEMORY) *e = failure;
    if (e->code == OK) {
        struct missing_names names = {to->missing, failure.what, index_prefix(&c->index)};
        if (failure.code != OK) add_line(to->missing, &failure);
        if (failure.code != OK) component_list_missing(c, add_missing, &names, e);
        /* Unknown tensors are listed only for a component bound to a family; otherwise every tensor would be
         * unknown. */
        for (int i = 0; i < c->index.n_entries && (!c->family || c->blocks); i++) {
            const struct index_entry *entry = &c->index.entries[i];
            bool known = entry->used || !index_contains(&c->index, entry) ||
                         (c->family && family_ignores(c->family, index_name(&c->index, entry)));
            if (!known) json_push(to->unknown, json_string(entry->name));
        }
        json = component_json(c, &config, shown->name, origin, to->tensors);
        json_push(to->components, json);
    }
    config_destroy(&config);
    return json;
}

static json_t *inspect_component_file(struct sys *sys, struct component_files *files,
                                      const struct component_file *file, struct shown shown,
                                      struct findings *to, struct error *e) {
    struct component *c = &to->component[to->n_components++];
    shown.path = component_files_path(files, file);
    if (shown.recipe) configuration_begin(shown.recipe, shown.slot, sys, c);
    if (file->folder) configuration_in_pipeline(c);
    c->sys = sys;
    c->index = component_files_take(files, file);
    return inspect_component(c, &shown, to, e);
}

/* Describes a component file for which the recipe has no slot. The file is read as in the first recipe that
 * includes the file's family. */
static enum status inspect_unplaced(struct sys *sys, struct component_files *files,
                                    const struct component_file *file, struct findings *to, struct error *e) {
    struct shown shown = {.name = file->folder ? file->folder : "unknown"};
    if (file->family) shown.recipe = models_find_slot(file->family, file->prefix, NULL, &shown.slot);
    if (shown.recipe && !file->misplaced) shown.name = shown.recipe->slot[shown.slot].folder;
    char name[32]; /* second and later control networks: controlnet_2, ... */
    int before = 0;
    for (int i = 0; i < to->n_components && file->family && file->family->kind == FAMILY_CONTROL; i++)
        before += to->component[i].family && to->component[i].family->kind == FAMILY_CONTROL;
    snprintf(name, sizeof name, "controlnet_%d", before + 1);
    if (before) shown.name = name;
    inspect_component_file(sys, files, file, shown, to, e);
    return e->code;
}

static bool is_missing(const struct component_files *files, const struct recipe *recipe, int slot) {
    struct missing_part missing[SLOTS_MAX];
    int n = pipeline_missing(files, recipe, missing);
    for (int i = 0; i < n; i++)
        if (missing[i].slot == &recipe->slot[slot]) return true;
    return false;
}

/* True for the parts without which a model makes silent videos. */
static bool decodes_sound(const struct slot *slot) {
    return slot->family->kind == FAMILY_SOUND_DECODER || slot->family->kind == FAMILY_VOCODER;
}

/* True if the slot's text encoder is absent but optional: zeros replace its output. */
static bool is_absent(const struct component_files *files, const struct recipe *recipe, int slot) {
    return !is_missing(files, recipe, slot) && recipe->slot[slot].family->kind == FAMILY_TEXT &&
           !parts_in_slot(files, recipe, slot);
}

static enum status inspect_slots(struct sys *sys, struct component_files *files, struct findings *to,
                                 struct error *e) {
    const struct component_file *in[SLOTS_MAX];
    parts_assign(files, to->recipe, in);
    for (int i = 0; to->recipe->slot[i].family && e->code == OK; i++) {
        const struct slot *slot = &to->recipe->slot[i];
        struct shown shown = {.recipe = to->recipe, .slot = i, .name = slot->folder};
        char line[MODEL_NOTE_BYTES];
        /* Never reported as missing: the VAE encoder (it is in the decoder's files) and the tiny autoencoder;
         * nor the VAE decoder if the files include a tiny autoencoder. */
        bool needed = slot->family->kind == FAMILY_DECODER
                          ? !component_files_find_tiny(files)
                          : slot->family->kind != FAMILY_ENCODER && !slot_is_extra(slot) &&
                                (!decodes_sound(slot) || is_missing(files, to->recipe, i));
        if (in[i]) {
            to->text[i] = inspect_component_file(sys, files, in[i], shown, to, e);
        } else if (needed && is_absent(files, to->recipe, i)) {
            model_note_absent(to->recipe, i, line);
            json_push(to->notes, json_string(line));
        } else if (needed) {
            json_push(to->missing, json_string(slot->folder));
        }
    }
    return e->code;
}

/* Reads the pipeline name from model_index.json. An invalid file or unsupported pipeline is listed under
 * "missing" and its name set to "", so that the components are still described. */
static json_t *pipeline_json(struct sys *sys, const char *path, char name[PIPELINE_NAME_BYTES],
                             json_t *missing) {
    struct error failure = {0};
    if (!path) return json_null();
    pipeline_read(sys, path, name, &failure);
    json_t *json = *name ? json_string_of(name) : json_null();
    if (failure.code == OK) return json;
    add_line(missing, &failure);
    *name = 0;
    return json;
}

static enum status finish_json(json_t *json, unsigned json_failures, char **text, struct error *e) {
    *text = NULL;
    if (e->code != OK) {
        json_decref(json);
        return e->code;
    }
    *text = json_to_text(json, JSON_INDENT(1), json_failures);
    return *text ? OK : error_set(e, MEMORY, "no memory for the JSON output");
}

/* The recipe that the denoiser's weights and the pipeline name determine; NULL: none. */
static const struct recipe *inspect_recipe(const struct component_files *files, const char *name,
                                           struct findings *to) {
    const struct component_file *file = component_files_find_kind(files, FAMILY_DENOISER);
    const struct component *denoiser = NULL;
    const struct recipe *recipe = NULL;
    struct error failure = {0};
    char line[MODEL_NOTE_BYTES];
    for (int i = 0; i < to->n_components && !denoiser; i++)
        if (to->component[i].blocks && to->component[i].family->kind == FAMILY_DENOISER)
            denoiser = &to->component[i];
    if (!denoiser) return NULL;
    if (file->flag) name = "";
    if (pipeline_choose(files, name, denoiser, &recipe, &failure) != OK) add_line(to->missing, &failure);
    if (recipe && !*name && pipeline_note_ambiguous(recipe, line, sizeof line))
        json_push(to->notes, json_string(line));
    return recipe;
}

static void inspect_text(struct tokenizer_search *search, int slot, struct findings *to) {
    struct tokenizer *tokenizer = NULL;
    struct error failure = {0};
    const struct text_recipe *text = &search->recipe->slot[slot].text;
    if (tokenizer_find(search, slot, &tokenizer, &failure) == MISSING)
        json_push(to->missing, json_string(text->tokenizer_folder));
    else if (failure.code != OK)
        add_line(to->missing, &failure);
    int longest = text->tokens_max;
    if (tokenizer && failure.code == OK &&
        prompt_longest(search->sys, text, tokenizer, &longest, &failure) != OK)
        add_line(to->missing, &failure);
    json_t *json = to->text[slot];
    if (json) {
        json_put(json, "max_sequence_length", json_integer(longest));
        json_put(json, "tokenizer", tokenizer ? json_string(tokenizer_kind(tokenizer)) : json_null());
    }
    tokenizer_close(tokenizer);
}

static enum status inspect_all(struct sys *sys, const struct sluice_model_options *o,
                               struct component_files *files, struct findings *to, json_t *all,
                               struct error *e) {
    char name[PIPELINE_NAME_BYTES] = "";
    if (component_files_open(sys, o, files, &to->recipe, e) != OK) return e->code;
    /* Chooses among recipes with the same denoiser but different slots. Errors other than MEMORY are reported
     * when the denoiser is described. */
    struct error unresolved = {0};
    if (component_files_find_kind(files, FAMILY_DENOISER) &&
        pipeline_resolve(sys, files, "", NULL, &to->recipe, &unresolved) == MEMORY)
        *e = unresolved;
    if (e->code == OK && to->recipe) pipeline_check_disabled_parts(o, to->recipe, o->model, e);
    if (e->code == OK && to->recipe) inspect_slots(sys, files, to, e);
    bool alone = files->n_files > 0; /* true: only control networks and upscalers, so no part is missing */
    for (int i = 0; i < files->n_files; i++)
        alone = alone && files->file[i].family && family_outside_pipelines(files->file[i].family);
    if (e->code == OK && !to->recipe && !alone) {
        /* If no recipe fits the files, only VAE decoders and vision encoders (of Redux) are described. */
        static const enum family_kind kinds[] = {FAMILY_DECODER, FAMILY_TINY_DECODER, FAMILY_VISION,
                                                 FAMILY_SOUND_DECODER, FAMILY_VOCODER};
        struct missing_part missing[SLOTS_MAX];
        int n = pipeline_missing(files, NULL, missing);
        for (int i = 0; i < n; i++) json_push(to->missing, json_string(missing[i].folder));
        for (int i = 0; i < COUNT_OF(kinds) && e->code == OK; i++) {
            const struct component_file *file = component_files_find_kind(files, kinds[i]);
            if (file) inspect_unplaced(sys, files, file, to, e);
        }
    }
    for (int i = 0; i < files->n_files && e->code == OK; i++)
        if (!files->file[i].family || files->file[i].misplaced ||
            family_outside_pipelines(files->file[i].family))
            inspect_unplaced(sys, files, &files->file[i], to, e);
    if (files->failure.code != OK) add_line(to->missing, &files->failure);
    if (e->code != OK) return e->code;
    if (!json_array_size(to->components)) {
        error_set(e, MISSING,
                  "no model found" WHERE "%s" EXPECTED
                  "a folder or file with a transformer, text encoder or VAE",
                  o->model ? o->model : "the given components");
        if (files->failure.code != OK) *e = files->failure;
        return e->code;
    }
    json_put(all, "pipeline", pipeline_json(sys, files->pipeline, name, to->missing));
    const struct recipe *recipe = inspect_recipe(files, name, to);
    json_put(all, "recipe", recipe ? json_string(recipe->name) : json_null());
    if (recipe) to->recipe = recipe;
    if (!to->recipe) return OK;
    struct tokenizer_search search = {.sys = sys, .options = o, .files = files, .recipe = to->recipe};
    struct error failure = {0};
    for (int i = 0; i < SLOTS_MAX && to->recipe->slot[i].family; i++)
        if (to->recipe->slot[i].text.tokenizer && !is_absent(files, to->recipe, i))
            inspect_text(&search, i, to);
    if (tokenizer_check_flag(&search, &failure) != OK) add_line(to->missing, &failure);
    return OK;
}

static enum status inspect_text_of(const struct sluice_model_options *options, bool tensors, char **json,
                                   struct error *e) {
    struct sys sys;
    struct sluice_model_options o;
    struct component_files files = {0};
    sys_init_machine(&sys);
    copy_sized(&o, sizeof o, options);
    unsigned json_failures = failed_json_allocations();
    struct findings *to = sys.alloc(&sys, LINE_HOST, sizeof *to);
    if (!to) return error_set(e, MEMORY, "no memory to inspect a model");
    *to = (struct findings){.tensors = tensors,
                            .components = json_array(),
                            .unknown = json_array(),
                            .missing = json_array(),
                            .notes = json_array()};
    json_t *all =
        json_pack("{s:i, s:n, s:n, s:o, s:o, s:o, s:o}", "version", 1, "pipeline", "recipe", "components",
                  to->components, "unknown", to->unknown, "missing", to->missing, "notes", to->notes);
    json_t *adapter = NULL;
    if (o.model && !o.n_parts && !o.tokenizer && inspect_is_adapter(&sys, o.model)) {
        if (inspect_adapter(&sys, o.model, tensors, &adapter, to->unknown, e) == OK)
            json_put(all, "adapter", adapter);
    } else if (component_files_locate(&sys, &o, &files, e) == OK) {
        files.on_failure = add_line;
        files.user = to->missing;
        inspect_all(&sys, &o, &files, to, all, e);
    }
    if (!adapter) json_put(all, "complete", json_boolean(!json_array_size(to->missing)));
    json_put(all, "schedule", json_string(files.scheduler ? "scheduler_config.json" : "default"));
    for (int i = 0; i < to->n_components; i++) component_destroy(&to->component[i]);
    sys.release(&sys, to);
    component_files_destroy(&sys, &files);
    return finish_json(all, json_failures, json, e);
}

int sluice_inspect(const struct sluice_model_options *options, bool tensors, char **json,
                   struct sluice_error *error) {
    struct error e = {0};
    if (!check_not_null(json, "json", &e) || !check_struct_size(options, "options", &e))
        return publish_error(&e, error);
    *json = NULL;
    inspect_text_of(options, tensors, json, &e);
    return publish_error(&e, error);
}

static json_t *ids_json(const int32_t *ids, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_push(list, json_integer(ids[i]));
    return list;
}

/* Lists token ids of a prompt without a model's prompt template. path: a tokenizer's file or folder, or a
 * model's folder. */
static enum status tokenize_plain(struct sys *sys, const char *path, const char *text, size_t bytes,
                                  char **json, struct error *e) {
    struct tokenizer *tokenizer = NULL;
    int32_t *ids = NULL;
    int n = 0;
    unsigned json_failures = failed_json_allocations();
    char *of_model = path_existing(sys, path, "tokenizer", e);
    if (e->code == OK) tokenizer_open(sys, of_model ? of_model : path, &tokenizer, e);
    sys->release(sys, of_model);
    if (e->code != OK) return e->code;
    if (tokenizer_encode(tokenizer, text, bytes, &ids, &n, e) == OK)
        finish_json(ids_json(ids, n), json_failures, json, e);
    sys->release(sys, ids);
    tokenizer_close(tokenizer);
    return e->code;
}

static json_t *encoder_json(const char *name, const struct prompt_tokens *tokens) {
    json_t *weights = json_array(), *json;
    for (int i = 0; i < tokens->n_ids && tokens->weights; i++)
        json_push(weights, json_real((double)tokens->weights[i]));
    json = json_pack("{s:s, s:i, s:b, s:o}", "name", name, "tokens", tokens->n_ids, "truncated",
                     (int)tokens->cut, "ids", ids_json(tokens->ids, tokens->n_ids));
    if (tokens->window) json_put(json, "window", json_integer(tokens->window));
    if (tokens->weights)
        json_put(json, "weights", weights);
    else
        json_decref(weights);
    return json;
}

/* Lists token ids of the prompt for the text encoder in this slot, prompt template included. For image
 * editing models the minimum number of reference images is assumed, with one vision token each. */
static enum status tokenize_slot(struct tokenizer_search *search, int slot, const char *text, size_t bytes,
                                 json_t *encoders, struct error *e) {
    struct tokenizer *tokenizer = NULL;
    struct prompt_tokens tokens = {0};
    const struct text_recipe *recipe = &search->recipe->slot[slot].text;
    int32_t vision_tokens[LANE_REFERENCES_MAX];
    for (int i = 0; i < LANE_REFERENCES_MAX; i++) vision_tokens[i] = 1;
    int pictures = recipe->image_prompt.pad ? search->recipe->images.references_min : 0;
    if (tokenizer_find(search, slot, &tokenizer, e) == OK && pictures)
        prompt_encode_pictured(search->sys, recipe, tokenizer, text, bytes, vision_tokens, pictures, &tokens,
                               e);
    else if (e->code == OK)
        prompt_encode(search->sys, recipe, tokenizer, text, bytes, true, &tokens, e);
    if (e->code == OK) json_push(encoders, encoder_json(search->recipe->slot[slot].folder, &tokens));
    prompt_destroy(search->sys, &tokens);
    tokenizer_close(tokenizer);
    return e->code;
}

/* Finds the recipe, from the denoiser's weights if present. The recipe sets the prompt template and the
 * length limit. */
static enum status find_recipe(struct sys *sys, const struct sluice_model_options *o,
                               struct component_files *files, const struct recipe **recipe, struct error *e) {
    char name[PIPELINE_NAME_BYTES] = "";
    if (files->pipeline && pipeline_read(sys, files->pipeline, name, e) != OK) return e->code;
    if (component_files_open(sys, o, files, recipe, e) != OK) return e->code;
    if (!*recipe) return pipeline_check(files, NULL, o->model, e);
    if (component_files_find_kind(files, FAMILY_DENOISER) &&
        pipeline_resolve(sys, files, name, o->edit, recipe, e) != OK)
        return e->code;
    return pipeline_check_disabled_parts(o, *recipe, o->model, e);
}

static enum status tokenize_with_model(struct sys *sys, const struct sluice_model_options *o,
                                       struct component_files *files, const char *text, size_t bytes,
                                       char **json, struct error *e) {
    struct tokenizer_search search = {.sys = sys, .options = o, .files = files};
    unsigned json_failures = failed_json_allocations();
    if (find_recipe(sys, o, files, &search.recipe, e) != OK) return e->code;
    json_t *encoders = json_array();
    for (int i = 0; i < SLOTS_MAX && search.recipe->slot[i].family && e->code == OK; i++)
        if (search.recipe->slot[i].text.tokenizer && !is_absent(files, search.recipe, i))
            tokenize_slot(&search, i, text, bytes, encoders, e);
    tokenizer_check_flag(&search, e);
    finish_json(json_pack("{s:i, s:o}", "version", 1, "encoders", encoders), json_failures, json, e);
    return e->code;
}

static enum status tokenize_text(const struct sluice_model_options *options, const char *text, size_t bytes,
                                 char **json, struct error *e) {
    struct sys sys;
    struct sluice_model_options o;
    struct component_files files;
    sys_init_machine(&sys);
    copy_sized(&o, sizeof o, options);
    bool has_files = o.model;
    for (int i = 0; i < o.n_parts; i++) has_files |= o.parts[i].path != NULL;
    if (o.tokenizer && !has_files) return tokenize_plain(&sys, o.tokenizer, text, bytes, json, e);
    if (component_files_locate(&sys, &o, &files, e) != OK) return e->code;
    tokenize_with_model(&sys, &o, &files, text, bytes, json, e);
    component_files_destroy(&sys, &files);
    return e->code;
}

int sluice_tokenize(const struct sluice_model_options *options, const char *text, size_t text_bytes,
                    char **json, struct sluice_error *error) {
    struct error e = {0};
    if (!check_not_null(json, "json", &e) || !check_struct_size(options, "options", &e) ||
        !check_not_null(text, "text", &e))
        return publish_error(&e, error);
    *json = NULL;
    if (tokenizer_check_text("text", text, text_bytes, SLUICE_TEXT_BYTES_MAX, &e) == OK)
        tokenize_text(options, text, text_bytes, json, &e);
    return publish_error(&e, error);
}
