/* Opens models: binds the components, finds the tokenizers, reads the default settings, and checks that the
 * parts fit together. Settings (schedule, treatment of negative prompts and input images, sizes, steps and
 * guidance) that no file in the model's folder contains come from the recipe. */
#include "engine/open/component_search.h"
#include "engine/open/control_nets.h"
#include "engine/open/latent_file.h"
#include "engine/open/model.h"
#include "engine/open/pipeline.h"
#include "engine/open/published.h"
#include "engine/open/tokenizers.h"
#include "engine/open/upscaler.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Opens the autoencoder's encoder if the decoder's files have its weights. */
static enum status open_encoder(struct sluice_model *m, const char *path, struct error *e) {
    int slot = recipe_slot(m->recipe, FAMILY_ENCODER);
    const struct tensor_index *index = &model_component(m, FAMILY_DECODER)->index;
    if (slot == SLOTS_MAX || m->decodes_only || !m->recipe->slot[slot].family->files.probe(index)) return OK;
    struct component *c = &m->component[slot];
    configuration_begin(m->recipe, slot, m->sys, c);
    c->index = index_view(index, index->prefix, index->view);
    c->index.claimed_bytes = 0; /* the decoder's component already counts total_size of the shared files */
    configuration_bind(c, path, &m->recipe->slot[slot], &m->config_origin[slot], e);
    c->n_unknown = 0;
    return e->code;
}

static enum status open_slot(struct sluice_model *m, int slot, struct component_files *files,
                             const struct component_file *file, struct error *e) {
    struct component *c = &m->component[slot];
    const char *path = component_files_path(files, file);
    configuration_begin(m->recipe, slot, m->sys, c);
    if (file->folder) configuration_in_pipeline(c);
    if (slot_is_extra(&m->recipe->slot[slot]))
        m->other_model_word = part_other_model_word(files, file, &m->recipe->slot[slot]);
    c->index = component_files_take(files, file);
    if (configuration_bind(c, path, &m->recipe->slot[slot], &m->config_origin[slot], e) != OK) return e->code;
    return file->family->kind == FAMILY_DECODER ? open_encoder(m, path, e) : OK;
}

static enum status mismatch(const struct component *c, const char *what, int a, const char *of_a, int b,
                            const char *of_b, struct error *e) {
    return error_set(e, SHAPE,
                     "the components of this model do not fit together: %s" WHERE "%s" FOUND
                     "%d in the %s" EXPECTED "%d as in the %s",
                     what, c->index.sources[0].path, a, of_a, b, of_b);
}

/* Sums the columns of text features that the recipe concatenates, starting at condition `first`. *of: the
 * first present encoder, or NULL. Returns the index after the last concatenated condition. */
static int add_adjacent(const struct sluice_model *m, int first, const struct component **of, int *columns) {
    const struct recipe *recipe = m->recipe;
    enum condition_kind what = recipe->text.condition[first].what;
    int i = first;
    *of = NULL;
    *columns = 0;
    for (; i < recipe->text.n_conditions; i++) {
        const struct condition *c = &recipe->text.condition[i];
        if (c->what != what || (what == CONDITION_TOKENS && i > first && !c->concat_columns)) break;
        if (!*of && m->component[c->slot].family) *of = &m->component[c->slot];
        *columns += model_condition_columns(m, i);
    }
    return i;
}

/* Checks that concatenated text features have as many columns as the denoiser reads, or that the recipe
 * allows padding with zero columns. */
static enum status check_columns(const struct sluice_model *m, const struct component *denoiser,
                                 struct error *e) {
    for (int i = 0; i < m->recipe->text.n_conditions;) {
        const struct condition *first = &m->recipe->text.condition[i];
        bool pools = first->what == CONDITION_POOLED;
        int wanted = pools ? denoiser->pooled_columns : denoiser->text_columns, columns;
        const struct component *of;
        i = add_adjacent(m, i, &of, &columns);
        if (!of || columns == wanted || (first->zero_padded && columns < wanted)) continue;
        return mismatch(of, pools ? "pooled text features" : "text features", columns,
                        of->family->display_name, wanted, denoiser->family->display_name, e);
    }
    return OK;
}

/* Number of channels that the recipe concatenates to the latent: mask, image latents, control video. */
static int concat_expected(const struct sluice_model *m, const struct component *decoder) {
    switch (m->recipe->images.concat) {
    case CONCAT_FILL:
        return decoder->latent_channels + decoder->pixel_factor * decoder->pixel_factor;
    case CONCAT_INPAINT:
        return decoder->latent_channels + 1;
    case CONCAT_I2V:
        return decoder->latent_channels + component_frame_factor(decoder);
    case CONCAT_CONTROL:
        return 2 * decoder->latent_channels + decoder->pixel_factor * decoder->pixel_factor;
    case CONCAT_CONTROL_IMAGE:
        return decoder->latent_channels;
    case CONCAT_NONE:
        break;
    }
    return 0;
}

static enum status check_denoiser(const struct sluice_model *m, const struct component *denoiser,
                                  struct error *e) {
    const struct component *decoder = model_decoder(m);
    if (check_columns(m, denoiser, e) != OK) return e->code;
    int channels = decoder->latent_channels, latent = denoiser->latent_channels;
    if (channels != latent)
        return mismatch(decoder, "latent channels", channels, decoder->family->display_name, latent,
                        denoiser->family->display_name, e);
    int concat = concat_expected(m, decoder), has = denoiser->concat_channels;
    if (concat != has)
        return mismatch(denoiser, "channels concatenated to the latent", has, denoiser->family->display_name,
                        concat, "mask and image latents of this autoencoder", e);
    return OK;
}

static enum status check_encoder(const struct sluice_model *m, const struct component *encoder,
                                 struct error *e) {
    const struct component *decoder = model_component(m, FAMILY_DECODER);
    if (encoder->latent_channels != decoder->latent_channels)
        return mismatch(encoder, "latent channels", encoder->latent_channels, encoder->family->display_name,
                        decoder->latent_channels, "autoencoder's decoder", e);
    if (encoder->pixel_factor != decoder->pixel_factor)
        return mismatch(encoder, "pixels per latent pixel and axis", encoder->pixel_factor,
                        encoder->family->display_name, decoder->pixel_factor, "autoencoder's decoder", e);
    return OK;
}

/* Checks a tiny decoder against the decoder that it replaces, if that decoder is present. */
static enum status check_tiny(const struct sluice_model *m, const struct component *tiny, struct error *e) {
    const struct component *large = model_decoder(m);
    if (tiny->latent_channels != large->latent_channels)
        return mismatch(tiny, "latent channels", tiny->latent_channels, tiny->family->display_name,
                        large->latent_channels, large->family->display_name, e);
    if (tiny->pixel_factor != large->pixel_factor)
        return mismatch(tiny, "pixels per latent pixel and axis", tiny->pixel_factor,
                        tiny->family->display_name, large->pixel_factor, large->family->display_name, e);
    if (component_frame_factor(tiny) != component_frame_factor(large))
        return mismatch(tiny, "frames per latent frame", component_frame_factor(tiny),
                        tiny->family->display_name, component_frame_factor(large),
                        large->family->display_name, e);
    return OK;
}

/* Checks the vision encoder's features against the denoiser or the text encoder that reads them. */
static enum status check_vision(const struct sluice_model *m, const struct component *vision,
                                struct error *e) {
    const struct recipe *recipe = m->recipe;
    const struct component *denoiser = model_component(m, FAMILY_DENOISER);
    if (denoiser->image_columns && denoiser->image_columns != vision->text_columns)
        return mismatch(vision, "image features", vision->text_columns, vision->family->display_name,
                        denoiser->image_columns, denoiser->family->display_name, e);
    /* the denoiser's image token positions are for one image, or for two images (WAN's first and last
     * frame) */
    struct vision_grid grid = {0};
    if (denoiser->image_columns) grid = vision->family->lanes.vision_grid(vision, m->width, m->height);
    int tokens = grid.columns * grid.rows, rows = denoiser->image_columns ? denoiser->image_rows : 0;
    if (rows && rows != tokens && rows != 2 * tokens)
        return mismatch(denoiser, "image token positions", rows, denoiser->family->display_name, tokens,
                        "image tokens of the vision encoder, or twice that", e);
    for (int slot = 0; recipe->slot[slot].family && e->code == OK; slot++) {
        const struct component *text = &m->component[slot];
        int columns = vision->text_columns / (1 + vision->deepstack_features);
        if (recipe->slot[slot].text.image_prompt.pad && text->text_columns != columns)
            mismatch(vision, "image features", columns, vision->family->display_name, text->text_columns,
                     text->family->display_name, e);
    }
    return e->code;
}

/* Fails with MISSING: the component in `slot` is present, but not the encoder in `source` that it reads. */
static enum status fail_no_source(const struct sluice_model *m, int slot, int source, struct error *e) {
    const struct slot *reader = &m->recipe->slot[slot], *read = &m->recipe->slot[source];
    return error_set(
        e, MISSING, "the %s reads the output of a %s, which is missing" WHERE "%s" EXPECTED "%s FILE%s",
        reader->family->display_name, read->family->display_name, m->component[slot].index.sources[0].path,
        read->flag,
        reader->extra ? ": sigclip_vision_patch14_384.safetensors of Comfy-Org/sigclip_vision_384; or "
                        "the folder of black-forest-labs/FLUX.1-Redux-dev for --redux"
                      : "");
}

/* Checks that the shapes of the model's components fit together. */
static enum status check_components(const struct sluice_model *m, struct error *e) {
    for (int slot = 0; slot < SLOTS_MAX && m->recipe->slot[slot].family && e->code == OK; slot++) {
        const struct component *c = &m->component[slot];
        if (m->tokenizer[slot]) {
            /* Published embedding tables have unused rows at the end: 151,936 for Qwen3's 151,669 ids,
             * 152,064 for Qwen2.5's 151,665. A larger difference means a tokenizer of another encoder. */
            enum { PADDING_ROWS_MOST = 512 };
            int ids = tokenizer_size(m->tokenizer[slot]), rows = c->tables[0].tensors[0].shape.dim[0];
            char table[64];
            snprintf(table, sizeof table, "%s's embedding rows", c->family->display_name);
            if (ids > rows || rows - ids > PADDING_ROWS_MOST)
                mismatch(c, "token ids", ids, "tokenizer", rows, table, e);
        }
        int source = recipe_source_slot(m->recipe, slot);
        const struct component *read = source < SLOTS_MAX ? &m->component[source] : NULL;
        if (e->code == OK && c->family && read && !read->family) fail_no_source(m, slot, source, e);
        if (e->code == OK && c->family && read && read->text_columns != c->source_columns)
            mismatch(read, "text features", read->text_columns, read->family->display_name, c->source_columns,
                     c->family->display_name, e);
        if (e->code == OK && c->family && c->family->kind == FAMILY_DENOISER) check_denoiser(m, c, e);
        if (c->family && c->family->kind == FAMILY_ENCODER) check_encoder(m, c, e);
        if (c->family && c->family->kind == FAMILY_VISION) check_vision(m, c, e);
        if (c->family && c->family->kind == FAMILY_TINY_DECODER) check_tiny(m, c, e);
    }
    return e->code == OK ? upscaler_check_latent(m, e) : e->code;
}

static enum status open_tokenizers(struct sluice_model *m, const struct component_files *files,
                                   const struct sluice_model_options *o, struct error *e) {
    struct tokenizer_search search = {.sys = m->sys, .options = o, .files = files, .recipe = m->recipe};
    const struct component_file *in[SLOTS_MAX];
    parts_assign(files, m->recipe, in);
    for (int slot = 0; slot < SLOTS_MAX && m->recipe->slot[slot].family && e->code == OK; slot++)
        if (in[slot] && m->recipe->slot[slot].text.tokenizer)
            tokenizer_find(&search, slot, &m->tokenizer[slot], e);
    m->open_bytes = search.open_bytes;
    return tokenizer_check_flag(&search, e);
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

static enum status resolve_recipe(struct sluice_model *m, const struct component_files *files,
                                  const char *name, const struct sluice_model_options *o, struct error *e) {
    const struct recipe *guess = m->recipe;
    if (pipeline_resolve(m->sys, files, name, o->edit, &m->recipe, e) != OK) return e->code;
    m->pipeline_named = o->edit || pipeline_names(files, name);
    if (!m->pipeline_named || !m->recipe->images.references_if_unnamed)
        m->references_max = m->recipe->images.references_max;
    const struct component_file *denoiser = component_files_find_kind(files, FAMILY_DENOISER);
    if (denoiser && recipe_count_slots(m->recipe, denoiser->family) == 1)
        m->lone_expert = part_slot_by_file_name(files, denoiser);
    /* Checks the components again: the final recipe may need other encoders than the guessed recipe, which
     * passed an earlier check. */
    return m->recipe == guess ? OK : pipeline_check(files, m->recipe, o->model, e);
}

/* Opens the denoisers, or all other components. The caller opens denoisers first, because errors about
 * denoisers are the most helpful. */
static enum status open_kind(struct sluice_model *m, struct component_files *files, bool denoisers,
                             struct error *e) {
    const struct component_file *in[SLOTS_MAX];
    parts_assign(files, m->recipe, in);
    for (int i = 0; i < SLOTS_MAX && e->code == OK; i++) {
        if (!in[i] || (in[i]->family->kind == FAMILY_DENOISER) != denoisers) continue;
        if (!m->decodes_only || family_decodes(in[i]->family)) open_slot(m, i, files, in[i], e);
    }
    return e->code;
}

enum { SHIFT_TOKENS_MAX = 1 << 20 };

/* Reads the parameters of a resolution-dependent flow shift. Absent keys get diffusers' defaults, which are
 * Flux's values. */
static enum status read_shift_line(const struct config *config, struct flow_shift_line *line,
                                   struct error *e) {
    *line = (struct flow_shift_line){0.5, 1.15, 256, 4096};
    config_expect(config, "time_shift_type", "exponential", e);
    config_float(config, "base_shift", 0, 20, &line->base_shift, e);
    config_float(config, "max_shift", 0, 20, &line->max_shift, e);
    config_int(config, "base_image_seq_len", 1, SHIFT_TOKENS_MAX, &line->base_tokens, e);
    config_int(config, "max_image_seq_len", 1, SHIFT_TOKENS_MAX, &line->max_tokens, e);
    if (e->code != OK || line->max_tokens > line->base_tokens) return e->code;
    return error_set(e, META,
                     "'max_image_seq_len' is too small" WHERE "%s" FOUND "%d" EXPECTED
                     "more than 'base_image_seq_len', %d",
                     config->path, line->max_tokens, line->base_tokens);
}

/* Returns the configuration key of the flow shift: the key of the scheduler's class, else the key of the
 * other flow scheduler class, because files converted between the classes keep the old key. */
static const char *shift_key(const struct sluice_model *m, const struct config *config) {
    const char *own = m->sampling.schedule->shift_key, *other = schedule_flow.shift_key;
    if (!strcmp(own, other)) other = schedule_flow_unipc.shift_key;
    return config_find(config, other) && !config_find(config, own) ? other : own;
}

/* Reads the flow shift. A resolution-dependent flow shift is refused if the recipe does not support it. */
static enum status read_shift(struct sluice_model *m, const struct config *config, struct error *e) {
    enum flow_shift_rule rule = m->recipe->denoising.shift_rule;
    bool dynamic = rule != FLOW_SHIFT_FIXED;
    m->shift_terminal = 0;
    config_float(config, "shift_terminal", 0, 0.99, &m->shift_terminal, e);
    if (!m->recipe->denoising.shift_line.max_tokens && rule != FLOW_SHIFT_FLUX2)
        config_refuse(config, "use_dynamic_shifting", e);
    config_bool(config, "use_dynamic_shifting", &dynamic, e);
    m->shift_rule = !dynamic ? FLOW_SHIFT_FIXED : rule == FLOW_SHIFT_FIXED ? FLOW_SHIFT_BY_TOKENS : rule;
    if (m->shift_rule == FLOW_SHIFT_FLUX2) return config_expect(config, "time_shift_type", "exponential", e);
    if (dynamic && m->recipe->denoising.keeps_shift_line) return OK;
    if (dynamic) return read_shift_line(config, &m->shift_line, e);
    if (m->flow_shift == 0) m->flow_shift = 1; /* diffusers' default flow shift */
    return config_float(config, shift_key(m, config), SLUICE_FLOW_SHIFT_LEAST, SLUICE_FLOW_SHIFT_MAX,
                        &m->flow_shift, e);
}

/* Reads the noise schedule. path: scheduler_config.json, or NULL. UNSUPPORTED: a schedule that Sluice lacks.
 * Also errors of config_read, and errors about invalid values. */
static enum status read_schedule(struct sluice_model *m, const char *path, struct error *e) {
    struct config config = {0};
    m->sampling = m->recipe->denoising.sampling;
    m->shift_rule = m->recipe->denoising.shift_rule;
    m->flow_shift = m->recipe->denoising.flow_shift;
    m->shift_line = m->recipe->denoising.shift_line;
    m->shift_terminal = m->recipe->denoising.shift_terminal;
    if (!path) return OK;
    config_read(m->sys, path, &config, e);
    if (e->code == OK && sampling_read(&config, &m->sampling, e) == OK && m->sampling.prediction->is_flow)
        read_shift(m, &config, e);
    if (m->shift_rule != FLOW_SHIFT_FIXED) m->flow_shift = 0;
    m->has_schedule = true;
    config_destroy(&config);
    return e->code;
}

/* True if a tensor has the name, with or without the denoiser's tensor prefix. */
static bool has_marker(void *user, const char *name) {
    const struct tensor_index *index = user;
    if (index_find(index, name)) return true;
    for (int i = 0; i < index->n_entries; i++)
        if (!strcmp(index->entries[i].name, name)) return true;
    return false;
}

/* Standard deviation of n values. */
static double deviation(const float *values, int n) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += (double)values[i];
    for (int i = 0; i < n; i++) squares += pow((double)values[i] - sum / n, 2);
    return sqrt(squares / n);
}

/* Detects v-prediction by the standard deviation of the recipe's probe, a vector of the denoiser. */
static enum status detect_by_probe(struct sluice_model *m, const struct tensor_index *index,
                                   struct error *e) {
    const struct prediction_probe *probe = &m->recipe->denoising.prediction_probe;
    enum { PROBE_VALUES_MAX = 4096 };
    const struct index_entry *entry = NULL;
    for (int i = 0; i < PREDICTION_PROBE_NAMES && probe->name[i] && !entry; i++)
        entry = index_find(index, probe->name[i]);
    if (!entry || entry->rank != 1 || entry->dim[0] > PROBE_VALUES_MAX) return OK;
    if (entry->dtype != DTYPE_F32 && entry->dtype != DTYPE_F16 && entry->dtype != DTYPE_BF16) return OK;
    float values[PROBE_VALUES_MAX];
    if (source_read_values(&index->sources[entry->source], entry->offset, entry->dtype, 0, entry->dim[0],
                           values, e) == OK &&
        deviation(values, entry->dim[0]) > probe->deviation)
        m->sampling.prediction = &prediction_v;
    return e->code;
}

/* Sets the prediction type (epsilon, v, ...) from markers in the denoiser's file: tensors named "v_pred",
 * "ztsnr", "edm_vpred.sigma_max", and "modelspec.prediction_type" in the metadata. Markers override
 * scheduler_config.json because finetunes carry them with the weights. Without scheduler_config.json, a
 * recipe may name a probe: a vector of a few KB whose standard deviation separates v-prediction from epsilon
 * weights. Call after reading the schedule and the denoiser. Errors of reading. */
static enum status detect_prediction(struct sluice_model *m, struct error *e) {
    struct tensor_index *index = &m->component[recipe_slot(m->recipe, FAMILY_DENOISER)].index;
    if (m->sampling.prediction->is_flow) return OK;
    if (!m->has_schedule && detect_by_probe(m, index, e) != OK) return e->code;
    if (index->predicts_v) m->sampling.prediction = &prediction_v;
    if (sampling_detect(has_marker, index, &m->sampling, e) != OK)
        return error_where(e, "%s", index->sources[0].path);
    /* `leading` timestep spacing is replaced for zero-SNR models. These models must start at the last
     * training timestep, which `leading` omits. */
    if (!m->has_schedule && m->sampling.noise.rescale_zero_snr != ZERO_SNR_NO)
        m->sampling.grid.spacing = SPACING_TRAILING;
    return OK;
}

/* Reads sample_sigmas of model_index.json: one sigma per step of a distilled model, before the shift. */
static enum status read_sample_sigmas(struct sluice_model *m, const struct config *config, struct error *e) {
    static const char key[] = "sample_sigmas";
    int n = config_list_length(config, key);
    if (n > SAMPLE_SIGMAS_MAX || (n && m->sampling.schedule != &schedule_flow))
        return error_set(e, UNSUPPORTED,
                         "unsupported sample_sigmas in model_index.json" FOUND
                         "%d values, schedule %s" EXPECTED
                         "at most %d values, FlowMatchEulerDiscreteScheduler",
                         n, m->sampling.schedule->name, SAMPLE_SIGMAS_MAX);
    for (int i = 0; i < n && e->code == OK; i++) {
        char name[32];
        double sigma = 0;
        snprintf(name, sizeof name, "%s.%d", key, i);
        config_float(config, name, 1e-6, 1, &sigma, e);
        m->sample_sigmas[i] = (float)sigma;
    }
    m->sampling.grid.sample_sigmas = n ? m->sample_sigmas : NULL;
    m->sampling.grid.n_sample_sigmas = n;
    return e->code;
}

/* Reads the pipeline's settings. path: model_index.json, or NULL. */
static enum status read_pipeline(struct sluice_model *m, const char *path, struct error *e) {
    struct config config = {0};
    m->force_zeros_for_empty_prompt = m->recipe->text.force_zeros_for_empty_prompt;
    m->init = m->recipe->images.init;
    m->boundary = m->recipe->denoising.span[1].below;
    if (!path) return OK;
    if (config_read(m->sys, path, &config, e) != OK) goto out;
    config_bool(&config, "force_zeros_for_empty_prompt", &m->force_zeros_for_empty_prompt, e);
    if (read_sample_sigmas(m, &config, e) != OK) goto out;
    if (m->boundary > 0) {
        const struct config_value *value = config_find(&config, "boundary_ratio");
        if (value && value->kind == CONFIG_NULL)
            m->boundary = 0; /* boundary_ratio null or 0: the first denoiser runs alone, as in diffusers */
        else
            config_float(&config, "boundary_ratio", 0, 1, &m->boundary, e);
    }
    /* expand_timesteps: a timestep per token, 0 for tokens of the input image's latent frame. Models that
     * read the image in concat channels have one timestep for all tokens, so the key is refused for them. */
    if (m->recipe->frames_max && m->recipe->images.concat != CONCAT_NONE) {
        config_refuse(&config, "expand_timesteps", e);
    } else if (m->recipe->frames_max) {
        bool expands = m->init == INIT_FIRST_FRAME;
        if (config_bool(&config, "expand_timesteps", &expands, e) == OK)
            m->init = expands ? INIT_FIRST_FRAME : INIT_NONE;
    }
out:
    config_destroy(&config);
    return e->code;
}

/* True for a distilled model (sd-turbo, sdxl-turbo). No configuration key marks distilled models; they have
 * trailing timesteps without zero-SNR rescaling, and a smaller latent than the base model
 * (recipe_defaults.distilled). */
static bool is_distilled(const struct sluice_model *m) {
    const struct sampling *s = &m->sampling;
    return m->recipe->defaults.distilled.steps && m->has_schedule && s->grid.spacing == SPACING_TRAILING &&
           s->noise.rescale_zero_snr == ZERO_SNR_NO &&
           model_component(m, FAMILY_DENOISER)->latent_side == m->recipe->defaults.distilled.latent_side;
}

/* Reads the remaining default settings (sizes, steps, guidance). path: sluice.json, or NULL. Call after
 * reading the schedule and all components. */
static enum status read_defaults(struct sluice_model *m, const char *path, struct error *e) {
    struct config config = {0};
    int side = model_component(m, FAMILY_DENOISER)->latent_side;
    side *= model_decoder(m)->pixel_factor;
    m->width = side ? side : m->recipe->defaults.width;
    m->height = side ? side : m->recipe->defaults.height;
    m->steps = is_distilled(m) ? m->recipe->defaults.distilled.steps : m->recipe->defaults.steps;
    if (m->sampling.grid.n_sample_sigmas) m->steps = m->sampling.grid.n_sample_sigmas;
    m->cfg_scale = is_distilled(m) ? 1 : m->recipe->defaults.cfg_scale;
    m->cfg_scale_low = m->boundary > 0 ? m->recipe->defaults.cfg_scale_low : 0;
    m->cfg_until = 1;
    m->frames = m->recipe->defaults.frames ? m->recipe->defaults.frames : 1;
    m->fps = m->recipe->defaults.fps;
    m->guidance = m->recipe->defaults.guidance;
    m->strength = m->recipe->defaults.strength;
    if (!path) return OK;
    if (config_read(m->sys, path, &config, e) == OK) {
        config_int(&config, "width", 1, 65536, &m->width, e);
        config_int(&config, "height", 1, 65536, &m->height, e);
        config_int(&config, "steps", 1, 10000, &m->steps, e);
        if (config_find(&config, "cfg_scale")) m->cfg_scale_low = 0;
        config_float(&config, "cfg_scale", 0, SLUICE_SCALE_MAX, &m->cfg_scale, e);
        if (m->boundary > 0)
            config_float(&config, "cfg_scale_low", 0, SLUICE_SCALE_MAX, &m->cfg_scale_low, e);
        config_float(&config, "cfg_norm", 0, SLUICE_SCALE_MAX, &m->cfg_norm, e);
        config_float(&config, "cfg_until", SLUICE_CFG_UNTIL_LEAST, 1, &m->cfg_until, e);
        if (m->recipe->frames_max) config_int(&config, "frames", 1, m->recipe->frames_max, &m->frames, e);
        if (m->recipe->frames_max) config_int(&config, "fps", 1, SLUICE_FPS_MAX, &m->fps, e);
        if (m->recipe->denoising.takes_guidance) config_float(&config, "guidance", 0, 1000, &m->guidance, e);
        if (config_find(&config, "flow_shift")) {
            m->shift_rule = FLOW_SHIFT_FIXED;
            m->shift_terminal = 0;
            m->has_schedule = true;
            if (m->flow_shift == 0) m->flow_shift = 1;
            config_float(&config, "flow_shift", SLUICE_FLOW_SHIFT_LEAST, SLUICE_FLOW_SHIFT_MAX,
                         &m->flow_shift, e);
        }
    }
    config_destroy(&config);
    return e->code;
}

static enum status fill_from(struct sluice_model *m, struct component_files *files,
                             const struct sluice_model_options *o, const char *name, struct error *e) {
    if (pipeline_check(files, m->recipe, o->model, e) != OK) return e->code;
    if (m->decodes_only) {
        struct latent_origin latent = latent_read_origin(m->sys, o->latent);
        m->recipe = pipeline_of_decoder(m->sys, files, name, &latent, &m->decoder_assumed);
        if (pipeline_check_flags(files, m->recipe, e) != OK) return e->code;
    }
    if (!m->decodes_only && resolve_recipe(m, files, name, o, e) == OK && open_kind(m, files, true, e) == OK)
        open_tokenizers(m, files, o, e);
    if (e->code == OK) open_kind(m, files, false, e);
    if (e->code == OK && !m->decodes_only && control_nets_open(m, files, e) == OK) upscaler_open(m, files, e);
    if (e->code == OK) read_schedule(m, files->scheduler, e);
    if (e->code == OK && !m->decodes_only) detect_prediction(m, e);
    if (e->code == OK) read_pipeline(m, m->decodes_only ? NULL : files->pipeline, e);
    if (e->code == OK) read_defaults(m, files->defaults, e);
    return e->code == OK ? check_components(m, e) : e->code;
}

static enum status fill_from_files(struct sluice_model *m, const struct sluice_model_options *o,
                                   struct error *e) {
    struct component_files files;
    struct error failure = {0};
    char name[PIPELINE_NAME_BYTES] = ""; /* name of the pipeline, from model_index.json */
    const char *file = part_path_of_kind(o, o->decodes_only ? FAMILY_DECODER : FAMILY_DENOISER);
    if (!file && o->decodes_only) file = part_path_of_kind(o, FAMILY_TINY_DECODER);
    m->decodes_only = o->decodes_only;
    m->upscales_only = upscaler_is_alone(o);
    if (m->upscales_only) file = part_path_of_kind(o, FAMILY_UPSCALER);
    if (component_files_locate(m->sys, o, &files, e) == OK)
        name_model(m, o->model ? o->model : file ? file : "parts", e);
    if (e->code == OK && files.pipeline && pipeline_read(m->sys, files.pipeline, name, &failure) != OK &&
        (!o->decodes_only || failure.code == MEMORY)) /* decoding alone accepts unknown pipelines */
        *e = failure;
    if (e->code == OK) component_files_open(m->sys, o, &files, &m->recipe, e);
    if (e->code == OK && m->upscales_only && pipeline_check_flags(&files, NULL, e) == OK)
        upscaler_open(m, &files, e);
    if (e->code == OK && !m->upscales_only) fill_from(m, &files, o, name, e);
    if (m->upscales_only) m->recipe = &upscaler_recipe;
    component_files_destroy(m->sys, &files);
    return e->code;
}

/* Fills a model without files (--family) with published sizes and settings. */
static enum status fill_published(struct sluice_model *m, const struct sluice_model_options *o,
                                  struct error *e) {
    struct sizes sizes;
    m->published = m->pipeline_named = true;
    m->recipe = sizes_find_recipe(o->family, e);
    if (!m->recipe || sizes_read(&sizes, m->recipe, SLOTS_MAX, o->dimensions, e) != OK) return e->code;
    bool has_parts = false;
    for (int i = 0; i < o->n_parts; i++)
        has_parts |= o->parts[i].path && !part_is_none(&o->parts[i]) &&
                     !part_flag_chooses(o->parts[i].flag, FAMILY_CONTROL) &&
                     !part_flag_chooses(o->parts[i].flag, FAMILY_UPSCALER) &&
                     !part_flag_chooses(o->parts[i].flag, FAMILY_LATENT_UPSCALER) &&
                     !published_takes_part(&o->parts[i]);
    if (o->model || has_parts || o->tokenizer || o->edit || o->decodes_only || sizes.dtype) {
        return error_set(
            e, USAGE,
            "--family plans a published model; flags that name files do not apply" WHERE
            "--family %s" EXPECTED
            "no --model, --tokenizer, --edit, latent file or dtype in --dims; --vae and other "
            "component flags only with the value none; --control-net, --redux and upscalers with a family's "
            "name",
            o->family);
    }
    if (pipeline_check_disabled_parts(o, m->recipe, o->family, e) == OK && name_model(m, o->family, e) == OK)
        published_bind(m->sys, m->recipe, &sizes, o, m->component, &m->tokenizer_bytes, e);
    if (e->code == OK && control_nets_open_published(m, o, e) == OK) upscaler_open_published(m, o, e);
    /* With --family inconsistent sizes are a usage error, because the sizes come from --dims and not from a
     * file. */
    if (e->code != OK && e->code != MEMORY) error_is_usage(e);
    m->references_max = m->recipe->images.references_max;
    if (e->code == OK) read_schedule(m, NULL, e);
    if (e->code == OK) read_pipeline(m, NULL, e);
    if (e->code == OK) read_defaults(m, NULL, e);
    return e->code == OK ? check_components(m, e) : e->code;
}

enum status model_open(struct sys *sys, const struct sluice_model_options *options,
                       struct sluice_model **model, struct error *e) {
    return model_open_reserving(sys, options, 0, model, e);
}

enum status model_open_reserving(struct sys *sys, const struct sluice_model_options *options,
                                 uint64_t reserved_bytes, struct sluice_model **model, struct error *e) {
    struct sys machine;
    sys_init_machine(&machine);
    struct sys *from = sys ? sys : &machine;
    struct sluice_model *m = from->alloc(from, LINE_HOST, sizeof *m);
    *model = NULL;
    if (!m) return error_set(e, MEMORY, "no memory for a model");
    m->machine = machine; /* copied after the allocation of *m, so that the memory counters include *m */
    m->sys = sys ? sys : &m->machine;
    struct sluice_model_options o;
    copy_sized(&o, sizeof o, options);
    m->sys->header_limit =
        (struct sys_header_limit){o.max_ram_bytes > 0 ? (uint64_t)o.max_ram_bytes : 0, reserved_bytes};
    int64_t before = sys_memory_use(m->sys).live_bytes[LINE_HOST];
    if ((o.family ? fill_published(m, &o, e) : fill_from_files(m, &o, e)) != OK) {
        model_close(m);
        return e->code;
    }
    m->token_side = m->recipe->patch * model_decoder(m)->pixel_factor;
    m->size_step = m->token_side * (m->recipe->size_tokens ? m->recipe->size_tokens : 1);
    struct memory_use use = sys_memory_use(m->sys);
    m->host_bytes = (uint64_t)(use.live_bytes[LINE_HOST] - before) + m->tokenizer_bytes;
    uint64_t temporary = (uint64_t)(use.peak_bytes[LINE_HOST] - use.live_bytes[LINE_HOST]);
    if (temporary > m->open_bytes) m->open_bytes = temporary;
    *model = m;
    return OK;
}
