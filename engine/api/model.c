/* Opening models: see model.h. */
#include "engine/api/model.h"
#include "engine/api/prompt.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const role_folder[N_ROLES] = {"text_encoder", "transformer", "vae"};

char *path_join(struct sys *sys, const char *folder, const char *name) {
    size_t a = strlen(folder), b = strlen(name);
    while (a > 1 && folder[a - 1] == '/') a--;
    char *path = sys->alloc(sys, LINE_HOST, a + b + 2);
    if (!path) return NULL;
    memcpy(path, folder, a);
    path[a] = '/';
    memcpy(path + a + 1, name, b + 1);
    return path;
}

/* A link that leads nowhere is there: what it should lead to is missing, and reading it says so. */
bool path_exists(const char *path) {
    struct stat s;
    return lstat(path, &s) == 0;
}

static bool is_folder(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

void copy_sized(void *to, size_t to_bytes, const void *from) {
    size_t bytes;
    memcpy(&bytes, from, sizeof bytes); /* struct_size comes first in every public structure */
    memset(to, 0, to_bytes);
    memcpy(to, from, bytes < to_bytes ? bytes : to_bytes);
}

/* ---- parts ---- */

/* NULL where there is none, and with MEMORY. */
static char *part(struct sys *sys, const char *given, const char *model, const char *name, struct error *e) {
    if (!given && !model) return NULL;
    char *path = given ? path_join(sys, given, "") : path_join(sys, model, name);
    if (!path) {
        error_set(e, MEMORY, "no memory for a path");
    } else if (given) {
        path[strlen(path) - 1] = 0; /* a file's name must not end in a slash */
    } else if (!path_exists(path)) {
        sys->release(sys, path);
        return NULL;
    }
    return path;
}

enum status model_find_parts(struct sys *sys, const struct sluice_model_options *o, struct model_parts *parts,
                             struct error *e) {
    memset(parts, 0, sizeof *parts);
    if (!o->model && !o->diffusion_model && !o->vae && !o->llm)
        return error_set(e, USAGE, "no model was given");
    if (o->model && !path_exists(o->model)) {
        error_set(e, MISSING, "there is no such model");
        return error_where(e, "%s", o->model);
    }
    if (o->model && !is_folder(o->model)) {
        error_set(e, UNSUPPORTED, "the model is a single file");
        error_where(e, "%s", o->model);
        return error_expected(e, "a Hugging Face folder (all-in-one files are not read yet)");
    }
    const char *given[N_ROLES] = {o->llm, o->diffusion_model, o->vae};
    for (int i = 0; i < N_ROLES; i++) parts->role[i] = part(sys, given[i], o->model, role_folder[i], e);
    parts->tokenizer = part(sys, o->tokenizer, o->model, "tokenizer", e);
    parts->scheduler = part(sys, NULL, o->model, "scheduler/scheduler_config.json", e);
    parts->pipeline = part(sys, NULL, o->model, "model_index.json", e);
    parts->defaults = part(sys, NULL, o->model, "sluice.json", e);
    if (e->code != OK) model_parts_destroy(sys, parts);
    return e->code;
}

void model_parts_destroy(struct sys *sys, struct model_parts *parts) {
    for (int i = 0; i < N_ROLES; i++) sys->release(sys, parts->role[i]);
    sys->release(sys, parts->tokenizer);
    sys->release(sys, parts->scheduler);
    sys->release(sys, parts->pipeline);
    sys->release(sys, parts->defaults);
    memset(parts, 0, sizeof *parts);
}

/* ---- components ---- */

static char *config_beside(struct sys *sys, const char *path) {
    if (is_folder(path)) return path_join(sys, path, "config.json");
    const char *slash = strrchr(path, '/');
    char folder[4096];
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    return path_join(sys, folder, "config.json");
}

enum status component_open_files(struct sys *sys, const char *path, struct component *c,
                                 struct config *config, struct error *e) {
    c->sys = sys;
    *config = (struct config){0};
    if (component_open(sys, path, &c->index, e) != OK) return e->code;
    char *beside = config_beside(sys, path);
    if (!beside)
        error_set(e, MEMORY, "no memory for a path");
    else if (path_exists(beside))
        config_read(sys, beside, config, e);
    sys->release(sys, beside);
    return e->code;
}

static enum status wrong_family(const struct component *c, const struct family *wanted, struct error *e) {
    if (!c->index.n_entries) {
        error_set(e, MISSING, "there are no tensors");
        error_where(e, "%s", c->index.n_sources ? c->index.sources[0].path : "");
        return error_expected(e, "the weights of %s", wanted->name);
    }
    error_set(e, UNSUPPORTED, "these weights do not fit their slot");
    error_where(e, "%s", c->index.n_sources ? c->index.sources[0].path : "");
    const char *found = "an unknown kind";
    for (const struct family *const *f = families; *f; f++)
        if ((*f)->probe(&c->index)) found = (*f)->name;
    error_found(e, "%s with %d tensors", found, c->index.n_entries);
    return error_expected(e, "%s", wanted->name);
}

static enum status open_role(struct sluice_model *m, enum role role, const char *path, const char *model,
                             struct error *e) {
    struct component *c = &m->component[role];
    struct config config;
    if (!path) {
        error_set(e, MISSING, "the model has no '%s'", role_folder[role]);
        return error_where(e, "%s", model ? model : "no folder given");
    }
    if (component_open_files(m->sys, path, c, &config, e) == OK) {
        c->family = m->recipe->role[role];
        if (!c->family->probe(&c->index))
            wrong_family(c, c->family, e);
        else
            component_bind(c, &config, e);
    }
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
        config_expect(&config, "_class_name", m->recipe->pipeline, e);
    config_destroy(&config);
    return e->code;
}

static enum status read_schedule(struct sluice_model *m, const char *path, struct error *e) {
    struct config config = {0};
    m->flow_shift = m->recipe->flow_shift;
    if (!path) return OK;
    if (config_read(m->sys, path, &config, e) == OK && check_schedule(&config, e) == OK)
        config_float(&config, "shift", 1e-3, 1e3, &m->flow_shift, e);
    config_destroy(&config);
    return e->code;
}

static enum status read_defaults(struct sluice_model *m, const char *path, struct error *e) {
    struct config config = {0};
    m->width = m->recipe->width;
    m->height = m->recipe->height;
    m->steps = m->recipe->steps;
    m->cfg_scale = m->recipe->cfg_scale;
    if (!path) return OK;
    if (config_read(m->sys, path, &config, e) == OK) {
        config_int(&config, "width", 1, 65536, &m->width, e);
        config_int(&config, "height", 1, 65536, &m->height, e);
        config_int(&config, "steps", 1, 10000, &m->steps, e);
        config_float(&config, "cfg_scale", 0, 1000, &m->cfg_scale, e);
        config_float(&config, "flow_shift", 1e-3, 1e3, &m->flow_shift, e);
    }
    config_destroy(&config);
    return e->code;
}

static enum status mismatch(const char *what, int a, const char *of_a, int b, const char *of_b,
                            struct error *e) {
    error_set(e, SHAPE, "the parts of this model do not fit together: %s", what);
    error_found(e, "%d in the %s", a, of_a);
    return error_expected(e, "%d as in the %s", b, of_b);
}

static enum status check_parts(const struct sluice_model *m, struct error *e) {
    const struct component *text = &m->component[ROLE_TEXT], *denoiser = &m->component[ROLE_DENOISER],
                           *decoder = &m->component[ROLE_DECODER];
    int columns = text->text_columns, wanted = denoiser->text_columns;
    if (columns != wanted)
        return mismatch("text features", columns, "text encoder", wanted, "transformer", e);
    int channels = decoder->latent_channels, latent = denoiser->latent_channels;
    if (channels != latent)
        return mismatch("latent channels", channels, "autoencoder", latent, "transformer", e);
    int ids = tokenizer_size(m->tokenizer), rows = text->table.tensors[0].shape.dim[0];
    if (ids > rows) return mismatch("token ids", ids, "tokenizer", rows, "text encoder's embedding rows", e);
    return OK;
}

static enum status open_tokenizer(struct sluice_model *m, const char *path, const char *model,
                                  struct error *e) {
    if (!path) {
        error_set(e, MISSING, "the model has no 'tokenizer'");
        return error_where(e, "%s", model ? model : "no folder given");
    }
    m->open_bytes = tokenizer_open_bytes(m->sys, path);
    if (tokenizer_open(m->sys, path, &m->tokenizer, e) == OK &&
        prompt_check(m->recipe, m->tokenizer, e) != OK)
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

static enum status fill_model(struct sluice_model *m, const struct sluice_model_options *o, struct error *e) {
    struct model_parts parts;
    int64_t before = sys_memory_use(m->sys).live_bytes[LINE_HOST];
    m->recipe = recipes[0];
    if (model_find_parts(m->sys, o, &parts, e) == OK)
        name_model(m, o->model ? o->model : o->diffusion_model ? o->diffusion_model : "parts", e);
    if (e->code == OK) check_pipeline(m, parts.pipeline, e);
    if (e->code == OK) open_tokenizer(m, parts.tokenizer, o->model, e);
    for (int i = 0; i < N_ROLES && e->code == OK; i++) open_role(m, (enum role)i, parts.role[i], o->model, e);
    if (e->code == OK) read_schedule(m, parts.scheduler, e);
    if (e->code == OK) read_defaults(m, parts.defaults, e);
    if (e->code == OK) check_parts(m, e);
    model_parts_destroy(m->sys, &parts);
    if (e->code != OK) return e->code;
    m->size_step = m->recipe->patch * m->component[ROLE_DECODER].pixel_factor;
    m->host_bytes = (uint64_t)(sys_memory_use(m->sys).live_bytes[LINE_HOST] - before);
    return OK;
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
    tokenizer_close(m->tokenizer);
    m->sys->release(m->sys, m->name);
    struct sys machine = m->machine; /* the table must outlive the memory that holds it */
    struct sys *sys = m->sys == &m->machine ? &machine : m->sys;
    sys->release(sys, m);
}
