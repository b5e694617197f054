/* Reads the settings of a model: implements settings.h. */
#include "engine/open/settings.h"

#include "engine/base/half.h"

#include <math.h>
#include <string.h>

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
    bool dynamic = m->shift_rule == FLOW_SHIFT_BY_TOKENS;
    m->shift_terminal = 0;
    config_float(config, "shift_terminal", 0, 0.99, &m->shift_terminal, e);
    if (!m->recipe->shift_line.max_tokens) config_refuse(config, "use_dynamic_shifting", e);
    config_bool(config, "use_dynamic_shifting", &dynamic, e);
    m->shift_rule = dynamic ? FLOW_SHIFT_BY_TOKENS : FLOW_SHIFT_FIXED;
    if (dynamic) return read_shift_line(config, &m->shift_line, e);
    if (m->flow_shift == 0) m->flow_shift = 1; /* the default in diffusers */
    return config_float(config, shift_key(m, config), SLUICE_FLOW_SHIFT_LEAST, SLUICE_FLOW_SHIFT_MAX,
                        &m->flow_shift, e);
}

enum status settings_read_schedule(struct sluice_model *m, const char *path, struct error *e) {
    struct config config = {0};
    m->sampling = m->recipe->sampling;
    m->shift_rule = m->recipe->shift_rule;
    m->flow_shift = m->recipe->flow_shift;
    m->shift_line = m->recipe->shift_line;
    m->shift_terminal = m->recipe->shift_terminal;
    if (!path) return OK;
    config_read(m->sys, path, &config, e);
    if (e->code == OK && sampling_read(&config, &m->sampling, e) == OK && m->sampling.prediction->is_flow)
        read_shift(m, &config, e);
    if (m->shift_rule == FLOW_SHIFT_BY_TOKENS) m->flow_shift = 0;
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

static float value_of(const void *values, enum dtype dtype, int i) {
    uint16_t half = 0;
    if (dtype == DTYPE_F32) return ((const float *)values)[i];
    memcpy(&half, (const char *)values + (size_t)i * sizeof half, sizeof half);
    return dtype == DTYPE_BF16 ? half_bf16_f32(half) : half_f16_f32(half);
}

/* Standard deviation of n values. */
static double deviation(const void *values, enum dtype dtype, int n) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += (double)value_of(values, dtype, i);
    for (int i = 0; i < n; i++) squares += pow((double)value_of(values, dtype, i) - sum / n, 2);
    return sqrt(squares / n);
}

/* Detects v-prediction by the standard deviation of the recipe's probe, a vector of the denoiser. */
static enum status detect_by_probe(struct sluice_model *m, const struct tensor_index *index,
                                   struct error *e) {
    const struct prediction_probe *probe = &m->recipe->prediction_probe;
    enum { PROBE_VALUES_MAX = 4096 };
    const struct index_entry *entry = NULL;
    for (int i = 0; i < PREDICTION_PROBE_NAMES && probe->name[i] && !entry; i++)
        entry = index_find(index, probe->name[i]);
    if (!entry || entry->rank != 1 || entry->dim[0] > PROBE_VALUES_MAX) return OK;
    if (entry->dtype != DTYPE_F32 && entry->dtype != DTYPE_F16 && entry->dtype != DTYPE_BF16) return OK;
    void *values = m->sys->alloc(m->sys, LINE_HOST, entry->bytes);
    if (!values) return error_set(e, MEMORY, "no memory to detect the prediction type");
    if (source_read(&index->sources[entry->source], values, entry->bytes, entry->offset, e) == OK &&
        deviation(values, entry->dtype, entry->dim[0]) > probe->deviation)
        m->sampling.prediction = &prediction_v;
    m->sys->release(m->sys, values);
    return e->code;
}

enum status settings_detect_prediction(struct sluice_model *m, struct error *e) {
    struct tensor_index *index = &m->component[recipe_slot(m->recipe, FAMILY_DENOISER)].index;
    if (m->sampling.prediction->is_flow) return OK;
    if (!m->has_schedule && detect_by_probe(m, index, e) != OK) return e->code;
    if (index->predicts_v) m->sampling.prediction = &prediction_v;
    if (sampling_detect(has_marker, index, &m->sampling, e) != OK)
        return error_where(e, "%s", index->sources[0].path);
    /* `leading` spacing is replaced for zero-SNR models: it omits the last training timestep, at which they
     * must start. */
    if (!m->has_schedule && m->sampling.noise.rescale_zero_snr != ZERO_SNR_NO)
        m->sampling.grid.spacing = SPACING_TRAILING;
    return OK;
}

enum status settings_read_pipeline(struct sluice_model *m, const char *path, struct error *e) {
    struct config config = {0};
    m->force_zeros_for_empty_prompt = m->recipe->force_zeros_for_empty_prompt;
    m->init = m->recipe->init;
    m->boundary = m->recipe->span[1].below;
    if (!path) return OK;
    if (config_read(m->sys, path, &config, e) != OK) goto out;
    config_bool(&config, "force_zeros_for_empty_prompt", &m->force_zeros_for_empty_prompt, e);
    if (m->boundary > 0) {
        const struct config_value *value = config_find(&config, "boundary_ratio");
        if (value && value->kind == CONFIG_NULL)
            m->boundary = 0; /* null or 0: the first denoiser runs alone, as in diffusers */
        else
            config_float(&config, "boundary_ratio", 0, 1, &m->boundary, e);
    }
    /* expand_timesteps: a timestep per token, 0 for tokens of the input image's latent frame. Models that
     * read the image in concat channels have one timestep for all tokens, so the key is refused for them. */
    if (m->recipe->frames_max && m->recipe->concat != CONCAT_NONE) {
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
 * (recipe.distilled). */
static bool is_distilled(const struct sluice_model *m) {
    const struct sampling *s = &m->sampling;
    return m->recipe->distilled.steps && m->has_schedule && s->grid.spacing == SPACING_TRAILING &&
           s->noise.rescale_zero_snr == ZERO_SNR_NO &&
           model_component(m, FAMILY_DENOISER)->latent_side == m->recipe->distilled.latent_side;
}

enum status settings_read_defaults(struct sluice_model *m, const char *path, struct error *e) {
    struct config config = {0};
    int side = model_component(m, FAMILY_DENOISER)->latent_side;
    side *= model_decoder(m)->pixel_factor;
    m->width = side ? side : m->recipe->width;
    m->height = side ? side : m->recipe->height;
    m->steps = is_distilled(m) ? m->recipe->distilled.steps : m->recipe->steps;
    m->cfg_scale = is_distilled(m) ? 1 : m->recipe->cfg_scale;
    m->cfg_scale_low = m->boundary > 0 ? m->recipe->cfg_scale_low : 0;
    m->frames = m->recipe->frames ? m->recipe->frames : 1;
    m->fps = m->recipe->fps;
    m->guidance = m->recipe->guidance;
    m->strength = m->recipe->strength;
    if (!path) return OK;
    if (config_read(m->sys, path, &config, e) == OK) {
        config_int(&config, "width", 1, 65536, &m->width, e);
        config_int(&config, "height", 1, 65536, &m->height, e);
        config_int(&config, "steps", 1, 10000, &m->steps, e);
        if (config_find(&config, "cfg_scale")) m->cfg_scale_low = 0;
        config_float(&config, "cfg_scale", 0, SLUICE_SCALE_MAX, &m->cfg_scale, e);
        if (m->boundary > 0)
            config_float(&config, "cfg_scale_low", 0, SLUICE_SCALE_MAX, &m->cfg_scale_low, e);
        if (m->recipe->frames_max) config_int(&config, "frames", 1, m->recipe->frames_max, &m->frames, e);
        if (m->recipe->frames_max) config_int(&config, "fps", 1, SLUICE_FPS_MAX, &m->fps, e);
        if (m->recipe->takes_guidance) config_float(&config, "guidance", 0, 1000, &m->guidance, e);
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
