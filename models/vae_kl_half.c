#include "models/vae_kl_half.h"

#include <stdio.h>

static int vae_last_block_either(const struct component *c, const char *prefix, const char *checkpoint_name) {
    int last = index_last_block(&c->index, prefix);
    return last < 0 ? index_last_block(&c->index, checkpoint_name) : last;
}

static int vae_resnets(const struct component *c, const struct vae_half *half) {
    char name[BLOCK_NAME_MAX], checkpoint_name[BLOCK_NAME_MAX];
    snprintf(name, sizeof name, "%s0.resnets.", half->level);
    snprintf(checkpoint_name, sizeof checkpoint_name, "%s0.block.", half->level_checkpoint);
    return vae_last_block_either(c, name, checkpoint_name) + 1;
}

static int32_t vae_level_channels(const struct component *c, const struct vae_half *half, int level,
                                  struct error *e) {
    char format[BLOCK_NAME_MAX], name[2 * BLOCK_NAME_MAX], checkpoint_name[2 * BLOCK_NAME_MAX];
    int authors = half->reversed_levels ? c->dims[LEVELS] - 1 - level : level;
    snprintf(format, sizeof format, "%sconv1.weight", half->resnet);
    block_weight_name(format, level * BLOCK_NUMBER_STEP, name);
    snprintf(format, sizeof format, "%sconv1.weight", half->resnet_checkpoint);
    block_weight_name(format, authors * BLOCK_NUMBER_STEP, checkpoint_name);
    return component_dim(c, component_first_existing(c, name, checkpoint_name), 4, 0, e);
}

static bool vae_has_attention(const struct component *c, const struct vae_half *half) {
    char name[BLOCK_NAME_MAX], checkpoint_name[BLOCK_NAME_MAX];
    snprintf(name, sizeof name, "%sgroup_norm.weight", half->attention);
    snprintf(checkpoint_name, sizeof checkpoint_name, "%snorm.weight", half->attention_checkpoint);
    return index_find(&c->index, component_first_existing(c, name, checkpoint_name)) != NULL;
}

static enum status vae_check_dims(const struct component *c, const struct vae_half *half, struct error *e) {
    const struct vae_settings *s = (const struct vae_settings *)c->settings;
    int bad = 0, deepest = half->reversed_levels ? 0 : c->dims[LEVELS] - 1;
    for (int i = 0; i < c->dims[LEVELS]; i++)
        if (c->dims[CHANNELS + i] % s->groups) bad = c->dims[CHANNELS + i];
    if (!bad && (!s->attention || c->dims[CHANNELS + deepest] <= 512) && s->scale != 0) return OK;
    return error_set(
        e, SHAPE,
        "unsupported VAE %s: channels, groups or attention width" WHERE "%s" FOUND
        "%d channels in %d groups, mid-block attention over %d channels, scaling_factor %g" EXPECTED
        "channels divisible by norm_num_groups, attention over at most 512 channels, a "
        "scaling_factor other than 0",
        half->word, c->index.sources[0].path, bad ? bad : c->dims[CHANNELS + deepest], s->groups,
        c->dims[CHANNELS + deepest], (double)s->scale);
}

enum status vae_configure(struct component *c, const struct vae_half *half, const struct config *config,
                          struct error *e) {
    struct vae_settings *s = (struct vae_settings *)c->settings;
    int32_t *d = c->dims;
    d[LEVELS] = vae_last_block_either(c, half->level, half->level_checkpoint) + 1;
    d[RESNETS] = vae_resnets(c, half);
    if (d[LEVELS] < 1 || d[LEVELS] > VAE_LEVELS_MAX || d[RESNETS] < 1 || d[RESNETS] > 8) {
        return error_set(e, SHAPE,
                         "unsupported VAE %s: %d levels with %d resnets each" WHERE "%s" EXPECTED
                         "1 to %d levels with 1 to 8 resnets each",
                         half->word, d[LEVELS], d[RESNETS], c->index.sources[0].path, VAE_LEVELS_MAX);
    }
    for (int i = 0; i < d[LEVELS]; i++) d[CHANNELS + i] = vae_level_channels(c, half, i, e);
    s->attention = vae_has_attention(c, half);
    /* A shift_factor of null means no shift, as in diffusers 0.42 pipelines. If the key is absent, the
     * published default applies, as for single files without a configuration. */
    const struct config_value *shift = config_find(config, "shift_factor");
    if (shift && shift->kind == CONFIG_NULL) s->shift = 0;
    return e->code == OK ? vae_check_dims(c, half, e) : e->code;
}

#define SETTING(key, field, type_, published, least, most)                                                   \
    { {key}, offsetof(struct vae_settings, field), type_, published, least, most }
const struct setting vae_settings_rows[N_VAE_SETTINGS] = {
    SETTING("norm_num_groups", groups, SETTING_INT, 32, 1, 4096),
    SETTING("scaling_factor", scale, SETTING_FLOAT, 0.3611, -1e6, 1e6), /* Flux.1 and Z-Image */
    SETTING("shift_factor", shift, SETTING_FLOAT, 0.1159, -1e6, 1e6),
};
/* Refuses latents_mean and latents_std (Playground 2.5), which are not supported. */
const struct expectation vae_expects[] = {
    {"act_fn", "silu"}, {"latents_mean", NULL}, {"latents_std", NULL}, {0}};

void vae_derive_dims(struct component *c) {
    struct vae_settings *s = (struct vae_settings *)c->settings;
    s->groups = c->dims[GROUPS];
    s->attention = true;
    c->dims[LEVELS] = VAE_LEVELS;
}

void vae_derive(struct component *c) {
    const struct vae_settings *s = (const struct vae_settings *)c->settings;
    int32_t *d = c->dims;
    d[MOMENTS] = 2 * d[LATENT];
    d[COLOURS] = 3;
    d[K1] = 1;
    d[K3] = 3;
    d[ENCODER_RESNETS] = d[RESNETS] - 1;
    for (int i = 0; i < d[LEVELS]; i++) d[IN_CHANNELS + i] = d[CHANNELS + (i ? i - 1 : 0)];
    c->latent_channels = d[LATENT];
    c->pixel_factor = 1 << (d[LEVELS] - 1);
    c->latent_format = (struct latent_format){.n = 1, .scale = {s->scale}, .shift = {s->shift}};
}
