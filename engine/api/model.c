/* Opening models: see model.h. */
#include "engine/api/model.h"
#include "engine/api/prompt.h"

#include <stdio.h>
#include <string.h>

void copy_sized(void *to, size_t to_bytes, const void *from) {
    size_t bytes;
    memcpy(&bytes, from, sizeof bytes); /* struct_size comes first in every public structure */
    memset(to, 0, to_bytes);
    memcpy(to, from, bytes < to_bytes ? bytes : to_bytes);
}

/* ---- components ---- */

static enum status wrong_family(const struct component *c, const struct family *wanted, struct error *e) {
    if (!c->index.n_entries) {
        error_set(e, MISSING, "there are no tensors");
        error_where(e, "%s", c->index.n_sources ? c->index.sources[0].path : "");
        return error_expected(e, "the weights of %s", wanted->name);
    }
    const struct family *family = parts_family(&c->index);
    error_set(e, UNSUPPORTED, "these weights do not fit their slot");
    error_where(e, "%s", c->index.sources[0].path);
    if (family)
        error_found(e, "%s (%s)", family->word, family->name);
    else
        error_found(e, "an unknown kind with %d tensors", c->index.n_entries);
    return error_expected(e, "%s (%s) for %s", wanted->word, wanted->name, wanted->flag);
}

/* Takes the part's index, if it is one that is wanted. */
static enum status open_role(struct sluice_model *m, enum role role, struct model_parts *parts,
                             struct error *e) {
    struct component *c = &m->component[role];
    struct config config = {0};
    if (!parts->wanted[role]) return OK;
    c->sys = m->sys;
    c->family = m->recipe->role[role];
    c->index = parts->index[role];
    parts->index[role] = (struct tensor_index){0};
    if (index_check_quantised(&c->index, e) != OK) return e->code;
    if (!c->family->probe(&c->index)) return wrong_family(c, c->family, e);
    if (configuration_read(m->sys, parts->path[role], &c->index, c->family, &config, &m->config_origin[role],
                           e) == OK)
        component_bind(c, &config, e);
    config_destroy(&config);
    return e->code;
}

/* ---- the rest of a pipeline ---- */

/* Schedules that would give other sigmas are refused rather than ignored. */
static enum status check_schedule(const struct config *config, struct error *e) {
    static const char *const others[] = {
        "use_dynamic_shifting", "use_karras_sigmas",   "use_exponential_sigmas", "use_beta_sigmas",
        "invert_sigmas",        "stochastic_sampling", "shift_terminal"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) config_refuse(config, others[i], e);
    int timesteps = 1000;
    config_int(config, "num_train_timesteps", 1000, 1000, &timesteps, e);
    return config_expect(config, "_class_name", "FlowMatchEulerDiscreteScheduler", e);
}

/* A folder of another pipeline is refused by its name rather than by what does not fit in it. */
static enum status check_pipeline(struct sluice_model *m, const char *path, struct error *e) {
    struct config config = {0};
    if (!path) return OK;
    if (config_read(m->sys, path, &config, e) == OK)
        config_expect(&config, "_class_name", m->recipe->pipelines[0], e);
    config_destroy(&config);
    return e->code;
}

static enum status read_schedule(struct sluice_model *m, const char *path, struct error *e) {
    struct config config = {0};
    m->shift_rule = m->recipe->shift_rule;
    m->flow_shift = m->recipe->flow_shift;
    if (!path) return OK;
    if (config_read(m->sys, path, &config, e) == OK && check_schedule(&config, e) == OK)
        config_float(&config, "shift", 1e-3, 1e3, &m->flow_shift, e);
    m->has_schedule = true;
    config_destroy(&config);
    return e->code;
}

static enum status read_defaults(struct sluice_model *m, const char *path, struct error *e) {
    struct config config = {0};
    m->width = m->recipe->width;
    m->height = m->recipe->height;
    m->steps = m->recipe->steps;
    m->cfg_scale = m->recipe->cfg_scale;
    m->guidance = m->recipe->guidance;
    m->strength = m->recipe->strength;
    if (!path) return OK;
    if (config_read(m->sys, path, &config, e) == OK) {
        config_int(&config, "width", 1, 65536, &m->width, e);
        config_int(&config, "height", 1, 65536, &m->height, e);
        config_int(&config, "steps", 1, 10000, &m->steps, e);
        config_float(&config, "cfg_scale", 0, 1000, &m->cfg_scale, e);
        config_float(&config, "flow_shift", 1e-3, 1e3, &m->flow_shift, e);
        m->has_schedule |= config_find(&config, "flow_shift") != NULL;
    }
    config_destroy(&config);
    return e->code;
}

static enum status mismatch(const struct component *c, const char *what, int a, const char *of_a, int b,
                            const char *of_b, struct error *e) {
    error_set(e, SHAPE, "the parts of this model do not fit together: %s", what);
    error_where(e, "%s", c->index.sources[0].path);
    error_found(e, "%d in the %s", a, of_a);
    return error_expected(e, "%d as in the %s", b, of_b);
}

/* Embeddings are padded with rows that no token has: Qwen3's 151,669 ids have 151,936, Qwen2.5's 151,665 have
 * 152,064. More than that is another encoder's tokenizer. */
enum { PADDING_ROWS_MOST = 512 };

static enum status check_parts(const struct sluice_model *m, struct error *e) {
    const struct component *text = &m->component[ROLE_TEXT], *denoiser = &m->component[ROLE_DENOISER],
                           *decoder = &m->component[ROLE_DECODER];
    int columns = text->text_columns, wanted = denoiser->text_columns;
    if (columns != wanted)
        return mismatch(text, "text features", columns, "text encoder", wanted, "transformer", e);
    int channels = decoder->latent_channels, latent = denoiser->latent_channels;
    if (channels != latent)
        return mismatch(decoder, "latent channels", channels, "autoencoder", latent, "transformer", e);
    int ids = tokenizer_size(m->tokenizer[0]), rows = text->table.tensors[0].shape.dim[0];
    if (ids > rows || rows - ids > PADDING_ROWS_MOST)
        return mismatch(text, "token ids", ids, "tokenizer", rows, "text encoder's embedding rows", e);
    return OK;
}

static enum status open_tokenizer(struct sluice_model *m, const struct model_parts *parts, const char *model,
                                  struct error *e) {
    const char *path = parts->tokenizer;
    if (!path) return parts_missing_tokenizer(parts, m->recipe, model, e);
    if (!path_is_folder(path) && file_check_text(m->sys, path, "a tokenizer.json", e) != OK) return e->code;
    m->open_bytes = tokenizer_open_bytes(m->sys, path);
    if (tokenizer_open(m->sys, path, &m->tokenizer[0], e) == OK &&
        prompt_check(&m->recipe->text[0], m->tokenizer[0], e) != OK)
        error_where(e, "%s", path);
    return e->code;
}

static enum status name_model(struct sluice_model *m, const char *path, struct error *e) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && path[from - 1] != '/') from--;
    m->name = m->sys->alloc(m->sys, LINE_HOST, n - from + 1);
    if (!m->name) return error_set(e, MEMORY, "no memory for the model's name");
    memcpy(m->name, path + from, n - from);
    return OK;
}

static enum status fill_from(struct sluice_model *m, struct model_parts *parts, const char *model,
                             struct error *e) {
    if (parts_check_found(parts, model, e) != OK) return e->code;
    if (!m->decodes_only && open_tokenizer(m, parts, model, e) != OK) return e->code;
    for (int i = 0; i < N_ROLES && e->code == OK; i++) open_role(m, (enum role)i, parts, e);
    if (e->code == OK) read_schedule(m, parts->scheduler, e);
    if (e->code == OK) read_defaults(m, parts->defaults, e);
    return e->code == OK && !m->decodes_only ? check_parts(m, e) : e->code;
}

static enum status fill_model(struct sluice_model *m, const struct sluice_model_options *o, struct error *e) {
    struct model_parts parts;
    int64_t before = sys_memory_use(m->sys).live_bytes[LINE_HOST];
    const char *part = o->decodes_only ? o->vae : o->diffusion_model;
    m->recipe = recipes[0];
    m->decodes_only = o->decodes_only;
    if (parts_locate(m->sys, o, &parts, e) == OK)
        name_model(m, o->model ? o->model : part ? part : "parts", e);
    if (e->code == OK) check_pipeline(m, parts.pipeline, e);
    if (e->code == OK) parts_open(m->sys, o, &parts, e);
    if (e->code == OK) fill_from(m, &parts, o->model, e);
    parts_destroy(m->sys, &parts);
    if (e->code != OK) return e->code;
    m->size_step = m->recipe->patch * m->component[ROLE_DECODER].pixel_factor;
    struct memory_use use = sys_memory_use(m->sys);
    m->host_bytes = (uint64_t)(use.live_bytes[LINE_HOST] - before);
    uint64_t gone = (uint64_t)(use.peak_bytes[LINE_HOST] - use.live_bytes[LINE_HOST]);
    if (gone > m->open_bytes) m->open_bytes = gone;
    return OK;
}

int model_notes(const struct sluice_model *m, char lines[MODEL_NOTES_MAX][MODEL_NOTE_BYTES]) {
    int n = 0;
    for (int i = 0; i < N_ROLES; i++)
        if (m->component[i].family && m->config_origin[i] != CONFIG_BESIDE)
            snprintf(lines[n++], MODEL_NOTE_BYTES,
                     "no config.json for the %s: what shapes cannot tell is from %s (%s)",
                     m->component[i].family->word, config_origin_word[m->config_origin[i]],
                     m->component[i].family->name);
    if (!m->has_schedule && !m->decodes_only)
        snprintf(lines[n++], MODEL_NOTE_BYTES, "no scheduler_config.json: flow shift %g is the default of %s",
                 m->recipe->flow_shift, m->recipe->name);
    return n;
}

enum status model_open(struct sys *sys, const struct sluice_model_options *options,
                       struct sluice_model **model, struct error *e) {
    struct sys machine;
    sys_init_machine(&machine);
    struct sys *from = sys ? sys : &machine;
    struct sluice_model *m = from->alloc(from, LINE_HOST, sizeof *m);
    *model = NULL;
    if (!m) return error_set(e, MEMORY, "no memory for a model");
    m->machine = machine; /* with the counters that the allocation above has moved */
    m->sys = sys ? sys : &m->machine;
    struct sluice_model_options o;
    copy_sized(&o, sizeof o, options);
    if (fill_model(m, &o, e) != OK) {
        model_close(m);
        return e->code;
    }
    *model = m;
    return OK;
}

void model_close(struct sluice_model *m) {
    if (!m) return;
    for (int i = 0; i < N_ROLES; i++) component_destroy(&m->component[i]);
    for (int i = 0; i < N_TEXTS; i++) tokenizer_close(m->tokenizer[i]);
    m->sys->release(m->sys, m->name);
    struct sys machine = m->machine; /* the table must outlive the memory that holds it */
    struct sys *sys = m->sys == &m->machine ? &machine : m->sys;
    sys->release(sys, m);
}
