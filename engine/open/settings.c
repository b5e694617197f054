#include "engine/open/settings.h"

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

static void read_default_shift(struct sluice_model *m, const struct config *config, struct error *e) {
    if (!config_find(config, "flow_shift")) return;
    m->shift_rule = FLOW_SHIFT_FIXED;
    m->shift_terminal = 0;
    m->has_schedule = true;
    if (m->flow_shift == 0) m->flow_shift = 1;
    config_float(config, "flow_shift", SLUICE_FLOW_SHIFT_LEAST, SLUICE_FLOW_SHIFT_MAX, &m->flow_shift, e);
}

/* Reads expand_timesteps: a timestep per token, 0 for tokens of the input image's latent frame. Models that
 * read the image in concat channels have one timestep for all tokens, so the key is refused for them. */
static enum status read_expansion(struct sluice_model *m, const struct config *config, struct error *e) {
    bool concatenates = m->recipe->concat != CONCAT_NONE,
         expands = m->init == INIT_FIRST_FRAME && !concatenates;
    if (concatenates) return config_refuse(config, "expand_timesteps", e);
    if (config_bool(config, "expand_timesteps", &expands, e) == OK)
        m->init = expands ? INIT_FIRST_FRAME : INIT_NONE;
    return e->code;
}

/* Reads boundary_ratio; null or 0: the first denoiser runs alone, as in diffusers. */
static void read_boundary(struct sluice_model *m, const struct config *config, struct error *e) {
    const struct config_value *value = config_find(config, "boundary_ratio");
    if (value && value->kind == CONFIG_NULL)
        m->boundary = 0;
    else
        config_float(config, "boundary_ratio", 0, 1, &m->boundary, e);
}

enum status settings_read_pipeline(struct sluice_model *m, const char *path, struct error *e) {
    struct config config = {0};
    m->force_zeros_for_empty_prompt = m->recipe->force_zeros_for_empty_prompt;
    m->init = m->recipe->init;
    m->boundary = m->recipe->span[1].below;
    if (path && config_read(m->sys, path, &config, e) == OK) {
        config_bool(&config, "force_zeros_for_empty_prompt", &m->force_zeros_for_empty_prompt, e);
        if (m->boundary > 0) read_boundary(m, &config, e);
        if (m->recipe->frames_max) read_expansion(m, &config, e);
    }
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
        read_default_shift(m, &config, e);
    }
    config_destroy(&config);
    return e->code;
}
