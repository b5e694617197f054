/* Writes checkpoints with random weights for benchmarks and tests: a Hugging Face folder of a pipeline with
 * the published names, shapes and types, streamed from the families' weight tables. */
#include "bench/dev/checkpoint.h"

#include "bench/dev/checkpoint_types.h"
#include "bench/dev/synthetic_tokenizer.h"
#include "engine/open/model.h"
#include "engine/run/component.h"
#include "engine/open/paths.h"
#include "engine/open/published.h"
#include "loaders/gguf/gguf.h"
#include "loaders/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

enum { CHECKPOINT_SHARDS_MAX = 99 };

enum { TENSORS_MAX = FAMILY_BLOCKS_MAX * BLOCK_WEIGHTS_MAX * TENSORS_OF_WEIGHT_MAX };

/* Largest shard in bytes, as in published models. At least two shards are written, so that small models
 * exercise the loading of shards too. */
static const uint64_t shard_bytes_most = 5000000000;
enum { SHARDS_LEAST = 2 };

/* Returns the file name of a component's weights, as in transformers and diffusers. */
static const char *file_name(const struct slot *slot) {
    bool encodes = slot->family->kind == FAMILY_TEXT || slot->family->kind == FAMILY_VISION;
    return encodes ? "model" : "diffusion_pytorch_model";
}

static bool is_sharded(const struct slot *slot) {
    return !family_decodes(slot->family) && slot->family->kind != FAMILY_CONTROL;
}

/* Returns the folder of a slot's component. NULL: a tiny decoder, which is written to the checkpoint's top
 * folder. */
static const char *folder_of(const struct slot *slot) {
    return slot_is_extra(slot) ? NULL : slot->folder;
}

struct writer {
    struct sys *sys;
    const struct recipe *recipe;
    const char *folder;
    struct sizes sizes;
    struct stored_types types;
    uint64_t random;
    /* tensors of the component being written */
    struct named_tensor *tensors;
    struct synthetic_tensor *made;
    struct stored_types listed; /* types chosen for the component's weights */
    int n_tensors, shard_first; /* shard_first: index of the first tensor in the file being written */
    uint64_t done, all;         /* bytes of the checkpoint: written so far, and in total */
    const struct checkpoint_options *options;
};

static enum status make_tensor(void *user, int i, void *to, uint64_t bytes, struct error *e) {
    struct writer *w = user;
    const struct checkpoint_options *o = w->options;
    synthetic_tensor_fill(&w->random, &w->made[w->shard_first + i], to, bytes);
    w->done += bytes;
    if (!o->on_progress || o->on_progress(o->user, (double)w->done / (double)w->all)) return OK;
    return error_set(e, CANCELLED, "cancelled");
}

/* Returns a weight's name; `end`, if not NULL, replaces the last part of the name. */
static char *name_tensor(struct sys *sys, const char *weight, const char *end) {
    const char *dot = strrchr(weight, '.');
    size_t stem = end && dot ? (size_t)(dot - weight) : strlen(weight);
    size_t bytes = stem + (end ? strlen(end) : 0) + 1;
    char *name = sys->alloc(sys, LINE_HOST, bytes);
    if (name) snprintf(name, bytes, "%.*s%s", (int)stem, weight, end ? end : "");
    return name;
}

/* True if the tensor is already in the list: several weights may be parts of one tensor, and both halves of
 * Flux.2's VAE list the statistics of its latents. */
static bool is_listed(const struct writer *w, const char *name) {
    for (int i = w->n_tensors - 1; i >= 0; i--)
        if (!strcmp(w->tensors[i].name, name)) return true;
    return false;
}

static enum status add_weight(struct writer *w, const char *prefix, const struct block_ref *ref,
                              const struct weight_spec *spec, const int32_t *dims, struct error *e) {
    char name[2 * BLOCK_NAME_MAX + BLOCK_NAME_MAX];
    struct weight_tensors tensors;
    size_t before = (size_t)snprintf(name, BLOCK_NAME_MAX, "%s", prefix ? prefix : "");
    block_weight_name(spec->names[0], ref->number, name + before);
    if (is_listed(w, name)) return OK;
    int n = stored_types_divide(&w->listed, ref->kind, spec, dims, &tensors);
    for (int i = 0; i < n; i++) {
        char *copy = name_tensor(w->sys, name, tensors.end[i]);
        if (!copy) return error_set(e, MEMORY, "no memory for a tensor's name");
        w->tensors[w->n_tensors].name = copy;
        w->tensors[w->n_tensors].tensor = tensors.tensor[i];
        w->made[w->n_tensors++] = tensors.made[i];
    }
    return OK;
}

static enum status list_tensors(struct writer *w, const char *prefix, const struct component *c,
                                struct error *e) {
    struct block_ref *refs = w->sys->alloc(w->sys, LINE_HOST, FAMILY_BLOCKS_MAX * sizeof *refs);
    if (!refs) return error_set(e, MEMORY, "no memory for a list of blocks");
    int n = c->family->blocks.list(c, refs);
    for (int b = 0; b < n; b++) {
        int32_t dims[FAMILY_DIMS_MAX];
        component_block_dims(c, &refs[b], dims);
        for (int i = 0; i < refs[b].kind->n_weights && e->code == OK; i++) {
            const struct weight_spec *spec = &refs[b].kind->weights[i];
            if (!weight_is_optional(spec) && block_has_weight(spec, dims))
                add_weight(w, prefix, &refs[b], spec, dims, e);
        }
    }
    w->sys->release(w->sys, refs);
    return e->code;
}

static enum status make_folder(const char *path, struct error *e) {
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return OK;
    return error_set(e, OUTPUT, "cannot create folder" WHERE "%s", path);
}

/* Checks the free disk space before the writing starts, which takes minutes. */
static enum status checkpoint_check_disk(const struct writer *w, struct error *e) {
    struct statvfs s;
    if (statvfs(w->folder, &s)) return OK;
    uint64_t free_bytes = (uint64_t)s.f_bavail * s.f_frsize;
    if (free_bytes >= w->all) return OK;
    return error_set(e, OUTPUT,
                     "not enough disk space for the checkpoint" WHERE "%s" FOUND "%.2f GB free" EXPECTED
                     "%.2f GB",
                     w->folder, (double)free_bytes / 1e9, (double)w->all / 1e9);
}

/* Returns a file's path in a subfolder of the checkpoint (NULL: the top folder), and creates the folder.
 * Returns NULL after an error. */
static char *place_file(struct writer *w, const char *folder, const char *file, struct error *e) {
    char *inner = folder ? path_join(w->sys, w->folder, folder) : path_copy(w->sys, w->folder, e);
    char *path = inner ? path_join(w->sys, inner, file) : NULL;
    if (!path) error_set(e, MEMORY, "no memory for a path");
    if (path && make_folder(inner, e) != OK) {
        w->sys->release(w->sys, path);
        path = NULL;
    }
    w->sys->release(w->sys, inner);
    return path;
}

static enum status write_small(struct writer *w, const char *folder, const char *file, const char *bytes,
                               uint64_t n_bytes, struct error *e) {
    struct sys *sys = w->sys;
    char *path = place_file(w, folder, file, e);
    if (!path) return e->code;
    sys->remove(sys, path);
    int out = sys->create(sys, path);
    int64_t n = out < 0 ? out : 1;
    for (; n_bytes && n > 0; n_bytes -= (uint64_t)n, bytes += n) n = sys_write(sys, out, bytes, n_bytes);
    if (out >= 0) sys->close(sys, out);
    if (n <= 0) {
        error_set(e, OUTPUT, "cannot write file" WHERE "%s" FOUND "%s", path, strerror(n ? (int)-n : EIO));
    }
    sys->release(sys, path);
    return e->code;
}

/* Writes a JSON file. json_failures: value of failed_json_allocations() before the JSON was built. */
static enum status write_json(struct writer *w, const char *folder, const char *file, json_t *json,
                              unsigned json_failures, struct error *e) {
    char *text = json_to_text(json, JSON_INDENT(2), json_failures);
    if (!text) return error_set(e, MEMORY, "no memory for %s", file);
    write_small(w, folder, file, text, strlen(text), e);
    free(text);
    return e->code;
}

/* Shard i holds the tensors [first[i], first[i + 1]) of a component, in block order. */
struct shards {
    int n, first[CHECKPOINT_SHARDS_MAX + 1];
    uint64_t bytes;
};

static struct shards divide(const struct writer *w, const struct slot *slot) {
    struct shards s = {.n = 1};
    for (int i = 0; i < w->n_tensors; i++) s.bytes += (uint64_t)tensor_bytes(&w->tensors[i].tensor);
    if (is_sharded(slot)) s.n = (int)(s.bytes / shard_bytes_most) + 1;
    if (is_sharded(slot) && s.n < SHARDS_LEAST) s.n = SHARDS_LEAST;
    if (s.n > CHECKPOINT_SHARDS_MAX) s.n = CHECKPOINT_SHARDS_MAX;
    uint64_t bytes = 0;
    for (int i = 0, shard = 0; i < w->n_tensors; i++) {
        while (shard < s.n && bytes >= s.bytes / (uint64_t)s.n * (uint64_t)shard) s.first[shard++] = i;
        bytes += (uint64_t)tensor_bytes(&w->tensors[i].tensor);
    }
    s.first[s.n] = w->n_tensors;
    return s;
}

/* Writes the name of a weight file: "model-00001-of-00003.safetensors", or "model.safetensors" for a single
 * file. */
static void shard_name(const struct slot *slot, int shard, int n, char *out, size_t bytes) {
    if (n == 1)
        snprintf(out, bytes, "%s.safetensors", file_name(slot));
    else
        snprintf(out, bytes, "%s-%05d-of-%05d.safetensors", file_name(slot), shard + 1, n);
}

static enum status write_index(struct writer *w, const struct slot *slot, const struct shards *s,
                               struct error *e) {
    char file[80];
    unsigned json_failures = failed_json_allocations();
    json_t *map = json_object();
    for (int shard = 0; shard < s->n; shard++) {
        shard_name(slot, shard, s->n, file, sizeof file);
        for (int i = s->first[shard]; i < s->first[shard + 1]; i++)
            json_put(map, w->tensors[i].name, json_string(file));
    }
    json_t *root =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)s->bytes, "weight_map", map);
    snprintf(file, sizeof file, "%s.safetensors.index.json", file_name(slot));
    return write_json(w, folder_of(slot), file, root, json_failures, e);
}

static enum status write_shard(struct writer *w, const struct slot *slot, const struct shards *s, int shard,
                               struct error *e) {
    char file[80];
    shard_name(slot, shard, s->n, file, sizeof file);
    char *path = place_file(w, folder_of(slot), file, e);
    struct tensor_maker maker = {w, make_tensor};
    w->shard_first = s->first[shard];
    const struct safetensors_content content = {.tensors = w->tensors + w->shard_first,
                                                .n_tensors = s->first[shard + 1] - w->shard_first};
    if (path) safetensors_write_content(w->sys, path, &content, &maker, e);
    w->sys->release(w->sys, path);
    return e->code;
}

static enum status checkpoint_write_gguf(struct writer *w, const struct slot *slot, const struct component *c,
                                         struct error *e) {
    char file[80];
    struct gguf_metadata architecture = {
        .key = "general.architecture", .kind = GGUF_STRING, .text = component_architecture(c)};
    struct tensor_maker maker = {w, make_tensor};
    snprintf(file, sizeof file, "%s.gguf", file_name(slot));
    char *path = place_file(w, folder_of(slot), file, e);
    w->shard_first = 0;
    if (path)
        gguf_write_made(w->sys, path, &architecture, *architecture.text != 0, w->tensors, w->n_tensors,
                        &maker, e);
    w->sys->release(w->sys, path);
    return e->code;
}

static enum status write_weights(struct writer *w, const struct slot *slot, const struct component *c,
                                 struct error *e) {
    /* Only denoisers are written as GGUF; other components keep the published format. */
    if (slot->family->kind == FAMILY_DENOISER && stored_types_are_gguf(&w->types))
        return checkpoint_write_gguf(w, slot, c, e);
    struct shards s = divide(w, slot);
    for (int shard = 0; shard < s.n && e->code == OK; shard++) write_shard(w, slot, &s, shard, e);
    return s.n == 1 || e->code != OK ? e->code : write_index(w, slot, &s, e);
}

static void forget_tensors(struct writer *w) {
    for (int i = 0; i < w->n_tensors; i++) w->sys->release(w->sys, (char *)w->tensors[i].name);
    w->n_tensors = 0;
}

/* Lists the tensors of one component at the chosen sizes. */
static enum status list_slot(struct writer *w, int slot, struct component *c, struct error *e) {
    configuration_begin(w->recipe, slot, w->sys, c);
    w->listed = w->types;
    if (stored_types_are_gguf(&w->types) && c->family->kind != FAMILY_DENOISER)
        stored_types_read("bf16", 4, &w->listed, e);
    component_derive(c, w->sizes.of[slot]);
    return list_tensors(w, w->recipe->slot[slot].prefix, c, e);
}

/* Components that share a folder and its configuration, as VAE encoder and VAE decoder do. The component that
 * owns the folder is first. */
struct sharing {
    struct component components[SLOTS_MAX];
    const struct component *configured[SLOTS_MAX];
    int n, n_configured;
};

static enum status checkpoint_list_folder(struct writer *w, const char *folder, struct sharing *s,
                                          struct error *e) {
    int n_slots = 0;
    while (n_slots < SLOTS_MAX && w->recipe->slot[n_slots].family) n_slots++;
    for (int i = n_slots; i-- > 0 && e->code == OK;) {
        bool left_out = w->sizes.only < SLOTS_MAX && i != w->sizes.only;
        if (left_out || strcmp(w->recipe->slot[i].folder, folder) != 0) continue;
        struct component *c = &s->components[s->n++];
        list_slot(w, i, c, e);
        if (c->family->kind != FAMILY_ENCODER) s->configured[s->n_configured++] = c;
    }
    return e->code;
}

/* Reads the configuration of a written control network: refuses sizes that cannot be opened. */
static enum status check_network(struct writer *w, const struct slot *slot, struct error *e) {
    struct component c = {.family = slot->family, .sys = w->sys};
    if (component_open(w->sys, w->folder, &c.index, e) == OK) configuration_apply(&c, w->folder, slot, e);
    index_destroy(&c.index);
    return e->code;
}

/* Lists the tensors of a folder, then counts the bytes of these tensors or writes the tensors. slot: the
 * folder's first component. */
static enum status process_folder(struct writer *w, const struct slot *slot, bool write, struct error *e) {
    struct sharing *s = w->sys->alloc(w->sys, LINE_HOST, sizeof *s);
    char config[4096];
    if (!s) return error_set(e, MEMORY, "no memory for a list of parts");
    *s = (struct sharing){0};
    if (checkpoint_list_folder(w, slot->folder, s, e) != OK) goto out;
    for (int i = 0; i < w->n_tensors && !write; i++) w->all += (uint64_t)tensor_bytes(&w->tensors[i].tensor);
    if (!write) goto out;
    component_write_config(s->configured, s->n_configured, config, sizeof config);
    if (write_small(w, folder_of(slot), "config.json", config, strlen(config), e) == OK)
        write_weights(w, slot, s->configured[0], e);
    if (e->code == OK && slot->family->kind == FAMILY_CONTROL) check_network(w, slot, e);
out:
    forget_tensors(w);
    w->sys->release(w->sys, s);
    return e->code;
}

static bool shares_earlier(const struct recipe *recipe, int slot) {
    for (int i = 0; i < slot; i++)
        if (!strcmp(recipe->slot[i].folder, recipe->slot[slot].folder)) return true;
    return false;
}

static enum status process_slots(struct writer *w, bool write, struct error *e) {
    int only = w->sizes.only;
    if (only < SLOTS_MAX) return process_folder(w, &w->recipe->slot[only], write, e);
    for (int i = 0; i < SLOTS_MAX && w->recipe->slot[i].family && e->code == OK; i++)
        if (!slot_is_extra(&w->recipe->slot[i]) && !shares_earlier(w->recipe, i))
            process_folder(w, &w->recipe->slot[i], write, e);
    return e->code;
}

/* Writes a tokenizer of the kind that the text encoder needs, with at most as many ids as the encoder's
 * embedding has rows. */
static enum status write_tokenizer(struct writer *w, int slot, struct error *e) {
    struct component c;
    struct synthetic_tokenizer made = {0};
    int32_t rows = list_slot(w, slot, &c, e) == OK ? w->tensors[0].tensor.dim[0] : 0;
    const struct text_recipe *text = &w->recipe->slot[slot].text;
    const char *kind = text->pad_with_id_0 ? "OpenCLIP BPE" : text->tokenizer;
    if (rows) synthetic_tokenizer_make(w->sys, kind, rows, &made, e);
    const char *const folders[] = {text->tokenizer_folder, w->recipe->text.processor.of_prompts
                                                               ? w->recipe->text.processor.folder
                                                               : NULL};
    for (int k = 0; k < 2 && folders[k]; k++)
        for (int i = 0; i < made.n_files && e->code == OK; i++)
            write_small(w, folders[k], made.files[i].name, made.files[i].text, made.files[i].bytes, e);
    synthetic_tokenizer_destroy(&made);
    forget_tensors(w);
    return e->code;
}

static enum status write_processor(struct writer *w, struct error *e) {
    struct component c;
    char config[1024];
    int slot = recipe_slot(w->recipe, FAMILY_VISION);
    if (!w->recipe->text.processor.class || slot == SLOTS_MAX) return OK;
    if (list_slot(w, slot, &c, e) == OK) {
        component_write_pictures(&c, config, sizeof config);
        write_small(w, w->recipe->text.processor.folder, "preprocessor_config.json", config, strlen(config),
                    e);
    }
    forget_tensors(w);
    return e->code;
}

/* Adds the scheduler's noise schedule, as in the published models. */
static void add_noise_schedule(json_t *json, const struct sampling *s) {
    bool scaled = s->noise.beta_schedule == BETAS_SCALED_LINEAR;
    json_count_failure(json_object_update_new(
        json,
        json_pack("{s:f, s:f, s:s, s:s, s:i, s:s, s:b, s:b, s:b}", "beta_start", s->noise.beta_start,
                  "beta_end", s->noise.beta_end, "beta_schedule", scaled ? "scaled_linear" : "linear",
                  "prediction_type", s->prediction == &prediction_v ? "v_prediction" : "epsilon",
                  "steps_offset", s->grid.steps_offset, "timestep_spacing", "leading", "set_alpha_to_one",
                  s->grid.set_alpha_to_one, "skip_prk_steps", true, "clip_sample", false)));
}

static enum status write_scheduler(struct writer *w, struct error *e) {
    const struct recipe *r = w->recipe;
    unsigned json_failures = failed_json_allocations();
    bool is_flow = r->denoising.sampling.prediction->is_flow,
         dynamic_shift = r->denoising.shift_rule != FLOW_SHIFT_FIXED;
    json_t *json = json_pack("{s:s, s:i}", "_class_name", sampling_class_name(&r->denoising.sampling),
                             "num_train_timesteps", 1000);
    if (!is_flow) add_noise_schedule(json, &r->denoising.sampling);
    if (is_flow) json_put(json, "use_dynamic_shifting", json_boolean(dynamic_shift));
    if (is_flow && !dynamic_shift)
        json_put(json, r->denoising.sampling.schedule->shift_key, json_real(r->denoising.flow_shift));
    if (is_flow && r->denoising.sampling.sampler->flow_schedule) {
        json_put(json, "prediction_type", json_string("flow_prediction"));
        json_put(json, "use_flow_sigmas", json_true());
    }
    if (r->denoising.shift_terminal > 0)
        json_put(json, "shift_terminal", json_real(r->denoising.shift_terminal));
    if (is_flow && dynamic_shift)
        json_count_failure(json_object_update_new(
            json, json_pack("{s:f, s:f, s:i, s:i}", "base_shift", r->denoising.shift_line.base_shift,
                            "max_shift", r->denoising.shift_line.max_shift, "base_image_seq_len",
                            r->denoising.shift_line.base_tokens, "max_image_seq_len",
                            r->denoising.shift_line.max_tokens)));
    return write_json(w, "scheduler", "scheduler_config.json", json, json_failures, e);
}

static void add_class(json_t *json, const char *name, const char *library, const char *class_name) {
    json_put(json, name, json_pack("[s, s]", library, class_name));
}

/* Returns the diffusers class of a component. */
static const char *class_of_model(const struct writer *w, int slot) {
    struct component c;
    configuration_begin(w->recipe, slot, w->sys, &c);
    component_derive(&c, w->sizes.of[slot]);
    return component_config_value(&c);
}

static enum status write_model_index(struct writer *w, struct error *e) {
    const struct recipe *r = w->recipe;
    unsigned json_failures = failed_json_allocations();
    json_t *json = json_pack("{s:s}", "_class_name", r->selection.pipelines[0]);
    add_class(json, "scheduler", "diffusers", sampling_class_name(&r->denoising.sampling));
    for (const struct slot *s = r->slot; s->family; s++) {
        if (s->family->kind == FAMILY_ENCODER || s->prefix || slot_is_extra(s)) continue;
        const char *class = s->family->kind == FAMILY_TEXT ? s->text.classes[0] : s->class;
        add_class(json, s->folder, class ? "transformers" : "diffusers",
                  class ? class : class_of_model(w, (int)(s - r->slot)));
        if (s->text.tokenizer_folder)
            add_class(json, s->text.tokenizer_folder, "transformers", s->text.classes[1]);
    }
    if (r->selection.index_key)
        json_put(json, r->selection.index_key, json_boolean(r->selection.index_value));
    if (r->text.processor.class)
        add_class(json, r->text.processor.folder, "transformers", r->text.processor.class);
    if (r->denoising.span[1].below > 0)
        json_put(json, "boundary_ratio", json_real(r->denoising.span[1].below));
    if (r->images.init == INIT_FIRST_FRAME && r->images.concat == CONCAT_NONE)
        json_put(json, "expand_timesteps", json_true());
    return write_json(w, NULL, "model_index.json", json, json_failures, e);
}

/* Writes sluice.json for recipes that are otherwise recognised only by the folder's name, because a random
 * checkpoint's folder may have any name. */
static enum status write_defaults(struct writer *w, struct error *e) {
    const struct recipe *r = w->recipe;
    unsigned json_failures = failed_json_allocations();
    if (!r->selection.name_word) return OK;
    json_t *json = json_pack("{s:i, s:f}", "steps", r->defaults.steps, "cfg_scale", r->defaults.cfg_scale);
    return write_json(w, NULL, "sluice.json", json, json_failures, e);
}

static enum status write_rest(struct writer *w, struct error *e) {
    if (w->sizes.only < SLOTS_MAX) return OK;
    write_scheduler(w, e);
    if (e->code == OK) write_defaults(w, e);
    for (int i = 0; i < SLOTS_MAX && w->recipe->slot[i].family && e->code == OK; i++)
        if (w->recipe->slot[i].text.tokenizer) write_tokenizer(w, i, e);
    if (e->code == OK) write_processor(w, e);
    return e->code == OK ? write_model_index(w, e) : e->code;
}

enum status checkpoint_write(const struct checkpoint_options *options, const char *folder, struct error *e) {
    struct sys sys;
    int only;
    sys_init_machine(&sys);
    struct writer w = {.sys = &sys, .folder = folder, .random = options->seed, .options = options};
    w.recipe = models_find_extra(options->family, &only);
    if (!w.recipe) {
        only = SLOTS_MAX;
        w.recipe = sizes_find_recipe(options->family, e);
    }
    if (!w.recipe || sizes_read(&w.sizes, w.recipe, only, options->dimensions, e) != OK ||
        stored_types_read(w.sizes.dtype ? w.sizes.dtype : "bf16", w.sizes.dtype ? w.sizes.dtype_bytes : 4,
                          &w.types, e) != OK)
        return e->code;
    w.tensors = sys.alloc(&sys, LINE_HOST, TENSORS_MAX * sizeof *w.tensors);
    w.made = sys.alloc(&sys, LINE_HOST, TENSORS_MAX * sizeof *w.made);
    if (!w.tensors || !w.made) error_set(e, MEMORY, "no memory for a list of tensors");
    process_slots(&w, false, e);
    if (e->code == OK && make_folder(folder, e) == OK) checkpoint_check_disk(&w, e);
    if (e->code == OK) write_rest(&w, e);
    if (e->code == OK) process_slots(&w, true, e);
    sys.release(&sys, w.tensors);
    sys.release(&sys, w.made);
    return e->code;
}

static void list_dimensions(const struct slot *s, json_t *list) {
    for (int i = 0; i < s->family->config.n_dimensions; i++) {
        const struct dimension *d = &s->family->config.dimensions[i];
        if (!d->name) continue;
        json_push(list, json_pack("{s:s, s:s, s:i, s:i, s:i}", "name", d->name, "component", s->folder,
                                  "published", slot_dimension(s, d), "least", d->least, "most", d->most));
    }
}

static json_t *recipe_json(const struct recipe *recipe) {
    json_t *list = json_array();
    for (const struct slot *s = recipe->slot; s->family; s++)
        if (s->family->kind != FAMILY_ENCODER &&
            !slot_is_extra(s)) /* VAE encoders are skipped: they have the dimensions of the VAE decoder */
            list_dimensions(s, list);
    return json_pack("{s:s, s:o}", "name", recipe->name, "dimensions", list);
}

/* Adds the tiny decoders, as families of their own, to the list. */
static void list_extras(json_t *families_list) {
    const struct slot *slot;
    for (int i = 0; (slot = models_slot(i)); i++) {
        int first;
        if (!slot_is_extra(slot)) continue;
        const struct recipe *recipe = models_find_extra(slot->family->name, &first);
        if (slot != &recipe->slot[first]) continue;
        json_t *list = json_array();
        list_dimensions(slot, list);
        json_push(families_list, json_pack("{s:s, s:o}", "name", slot->family->name, "dimensions", list));
    }
}

json_t *checkpoint_families(void) {
    json_t *list = json_array();
    for (const struct recipe *const *r = recipes; *r; r++) json_push(list, recipe_json(*r));
    list_extras(list);
    return list;
}
