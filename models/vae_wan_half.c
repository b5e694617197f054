#include "models/vae_wan_half.h"

#include <stdio.h>
#include <string.h>

/* Returns the naming scheme of a file whose blocks are numbered consecutively: 0 diffusers', 1 the authors'.
 */
static int vae_wan_naming(const struct component *c, const struct vae_wan_half *half) {
    return !half->row[0] || index_last_block(&c->index, half->row[0]) < 0;
}

static bool vae_wan_has_level_names(const struct component *c, const struct vae_wan_half *half) {
    return half->level && index_last_block(&c->index, half->level) >= 0;
}

/* Counts resolution levels by consecutive block numbers: all levels but the last end with a resampling block.
 */
static void vae_wan_count_row(struct component *c, const struct vae_wan_half *half) {
    const char *row = half->row[vae_wan_naming(c, half)];
    char name[2 * BLOCK_NAME_MAX];
    int n = index_last_block(&c->index, row) + 1, resnets = 0;
    for (; resnets < n; resnets++) {
        snprintf(name, sizeof name, "%s%d.resample.1.weight", row, resnets);
        if (index_find(&c->index, name)) break;
    }
    c->dims[RESNETS] = resnets;
    c->dims[LEVELS] = (n + 1) / (resnets + 1);
}

/* Counts resolution levels by the tensor names of Wan 2.2's authors. The last level has no resampling block.
 */
static void vae_wan_count_nested(struct component *c, const struct vae_wan_half *half) {
    char blocks[BLOCK_NAME_MAX];
    int last = index_last_block(&c->index, half->nested[0]);
    snprintf(blocks, sizeof blocks, "%s%d.%s", half->nested[0], last, half->nested[1]);
    c->dims[LEVELS] = last + 1;
    c->dims[RESNETS] = index_last_block(&c->index, blocks) + 1;
}

static void vae_wan_count(struct component *c, const struct vae_wan_half *half) {
    char resnets[BLOCK_NAME_MAX];
    if (!vae_wan_has_level_names(c, half)) {
        half->nested[0] ? vae_wan_count_nested(c, half) : vae_wan_count_row(c, half);
        return;
    }
    snprintf(resnets, sizeof resnets, "%s0.resnets.", half->level);
    c->dims[LEVELS] = index_last_block(&c->index, half->level) + 1;
    c->dims[RESNETS] = index_last_block(&c->index, resnets) + 1;
}

static int32_t vae_wan_level_channels(const struct component *c, const struct vae_wan_half *half, int level,
                                      struct error *e) {
    char name[2 * BLOCK_NAME_MAX];
    int style = vae_wan_naming(c, half);
    if (vae_wan_has_level_names(c, half))
        snprintf(name, sizeof name, "%s%d.resnets.0.conv1.bias", half->level, level);
    else if (half->nested[0])
        snprintf(name, sizeof name, "%s%d.%s0.residual.2.bias", half->nested[0], level, half->nested[1]);
    else
        snprintf(name, sizeof name, "%s%d.%s", half->row[style], level * (c->dims[RESNETS] + 1),
                 half->row_bias[style]);
    return component_dim(c, name, 1, 0, e);
}

bool vae_wan_is_residual(const struct tensor_index *index, const char *word) {
    static const char *const names[] = {"decoder.up_blocks.0.upsampler.resample.1.weight",
                                        "decoder.upsamples.0.upsamples.0.residual.0.gamma",
                                        "encoder.down_blocks.0.resnets.0.norm1.gamma",
                                        "encoder.downsamples.0.downsamples.0.residual.0.gamma"};
    for (int i = 0; i < COUNT_OF(names); i++)
        if (!strncmp(names[i], word, strlen(word)) && index_find(index, names[i])) return true;
    return false;
}

/* True if blocks work on the frames of a chunk (vae_causal.h); false: on one image (vae_blocks.h). */
static bool vae_wan_is_causal(const struct component *c, const struct vae_wan_half *half) {
    return !half->image_only && (c->video || half->is_residual);
}

bool vae_wan_resamples_time(const struct component *c, const struct vae_wan_half *half, int level) {
    int from_deepest = half->from_deepest ? level : c->dims[LEVELS] - 2 - level;
    return causal_frame_rate(c, from_deepest + 1) > causal_frame_rate(c, from_deepest);
}

/* Level shortcuts average or repeat channels, so one of a level's two channel counts (input, output) must
 * divide the other. */
static enum status vae_wan_check_shortcuts(const struct component *c, const struct vae_wan_half *half,
                                           struct error *e) {
    for (int i = 0; i < c->dims[LEVELS]; i++) {
        bool steps = i + 1 < c->dims[LEVELS];
        int32_t in = c->dims[CHANNELS + (i ? i - 1 : 0)], out = c->dims[CHANNELS + i];
        int32_t values = !steps ? 1 : vae_wan_resamples_time(c, half, i) ? 8 : 4;
        bool adds_up = half->from_deepest ? !steps || out * values % in == 0 : in * values % out == 0;
        if (adds_up) continue;
        return error_set(e, SHAPE,
                         "unsupported VAE %s: the shortcut of level %d does not fit its channels" WHERE
                         "%s" FOUND "%d input and %d output channels" EXPECTED
                         "channel counts where one divides the other",
                         half->word, i, c->index.sources[0].path, in, out);
    }
    return OK;
}

static enum status vae_wan_check_dims(const struct component *c, const struct vae_wan_half *half,
                                      struct error *e) {
    enum { WIDTH_MAX = 1 << 16, ATTENTION_MAX = ATTENTION_HEAD_MAX };
    int32_t deepest = c->dims[CHANNELS + (half->from_deepest ? 0 : c->dims[LEVELS] - 1)], widest = 0;
    for (int i = 0; i < c->dims[LEVELS]; i++)
        if (c->dims[CHANNELS + i] > widest) widest = c->dims[CHANNELS + i];
    if (deepest <= ATTENTION_MAX && widest <= WIDTH_MAX) return OK;
    return error_set(e, SHAPE,
                     "unsupported VAE %s: too many channels" WHERE "%s" FOUND
                     "mid-block attention over %d channels, widest level %d channels" EXPECTED
                     "at most %d channels of attention and %d per level",
                     half->word, c->index.sources[0].path, deepest, widest, ATTENTION_MAX, WIDTH_MAX);
}

/* Checks that frames are doubled or halved between all levels but the two nearest to the image, as published.
 * Only the number of time_conv tensors shows this. */
static enum status vae_wan_check_time_convs(const struct component *c, const struct vae_wan_half *half,
                                            struct error *e) {
    int found = 0, expected = c->dims[LEVELS] - 2;
    for (int i = 0; i < c->index.n_entries; i++) {
        const char *name = index_name(&c->index, &c->index.entries[i]);
        found += !strncmp(name, half->word, strlen(half->word)) && strstr(name, ".time_conv.weight");
    }
    if (found == expected) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported VAE %s: wrong number of temporal resampling layers" WHERE "%s" FOUND
                     "%d tensors 'time_conv.weight'" EXPECTED
                     "%d tensors, one per resampling except the one nearest to the image",
                     half->word, c->index.sources[0].path, found, expected);
}

enum status vae_wan_configure(struct component *c, const struct config *config, struct error *e) {
    const struct vae_wan_half *half = c->family->details;
    (void)config;
    int32_t *d = c->dims, least = vae_wan_is_causal(c, half) ? CAUSAL_LEVELS_MIN : 1;
    vae_wan_count(c, half);
    if (d[LEVELS] < least || d[LEVELS] > VAE_LEVELS_MAX || d[RESNETS] < 1 || d[RESNETS] > 8) {
        return error_set(e, SHAPE,
                         "unsupported VAE %s: %d levels with %d resnets each" WHERE "%s" EXPECTED
                         "%d to %d levels with 1 to 8 resnets each",
                         half->word, d[LEVELS], d[RESNETS], c->index.sources[0].path, least, VAE_LEVELS_MAX);
    }
    for (int i = 0; i < d[LEVELS]; i++) d[CHANNELS + i] = vae_wan_level_channels(c, half, i, e);
    if (e->code != OK || vae_wan_check_dims(c, half, e) != OK) return e->code;
    if (half->is_residual && vae_wan_check_shortcuts(c, half, e) != OK) return e->code;
    return c->video || half->is_residual ? vae_wan_check_time_convs(c, half, e) : OK;
}

void vae_wan_derive_dims(struct component *c) {
    const struct vae_wan_half *half = c->family->details;
    int32_t *d = c->dims;
    if (!half->from_deepest) d[RESNETS]--; /* an encoder level has one resnet less than vae_resnets */
    while (d[LEVELS] < VAE_LEVELS_MAX && d[CHANNEL_MULT + d[LEVELS]]) d[LEVELS]++;
    for (int i = 0; i < d[LEVELS]; i++)
        d[CHANNELS + i] = d[BASE] * d[CHANNEL_MULT + (half->from_deepest ? d[LEVELS] - 1 - i : i)];
}

void vae_wan_derive(struct component *c) {
    const struct vae_wan_half *half = c->family->details;
    struct vae_wan_settings *s = (struct vae_wan_settings *)c->settings;
    int32_t *d = c->dims;
    s->half.attention = true;
    s->half.packing = 1;
    s->resnet_number_stride = half->level ? BLOCK_NUMBER_STEP : d[RESNETS] + 1;
    s->resample_number_stride = half->level ? 1 : d[RESNETS] + 1;
    d[MOMENTS] = 2 * d[LATENT];
    d[COLOURS] = half->colours ? half->colours : 3;
    d[K1] = 1;
    d[K3] = 3;
    d[KT] = half->image_only ? 1 : 3;
    d[NORM_AXES] = 3;
    d[PICTURE_AXES] = 2;
    d[ENCODER_RESNETS] = d[RESNETS] - 1;
    d[IN_CHANNELS] = d[CHANNELS];
    for (int i = 1; i < d[LEVELS]; i++)
        d[IN_CHANNELS + i] = d[CHANNELS + i - 1] / (half->from_deepest && !half->is_residual ? 2 : 1);
    c->latent_channels = d[LATENT];
    if (half->image_only) c->picture_channels = d[COLOURS];
    c->pixel_factor = (half->colours == VAE_WAN22_COLOURS ? CAUSAL_PATCH : 1) << (d[LEVELS] - 1);
    if (!vae_wan_is_causal(c, half)) return; /* VAEs of image models have no frame factor */
    c->frame_factor = causal_frame_rate(c, d[LEVELS]);
    c->config_value = *vae_wan_video_classes;
}

static const struct vae_wan_kinds *vae_wan_kinds(const struct component *c, const struct vae_wan_half *half) {
    return c->video ? half->video : half->image;
}

static int vae_wan_list_level(const struct component *c, const struct vae_wan_half *half, int level,
                              struct block_ref *refs) {
    const struct vae_wan_kinds *kinds = vae_wan_kinds(c, half);
    int n = 0, resnets = c->dims[RESNETS], row = level * (resnets + 1), numbered = level * BLOCK_NUMBER_STEP;
    int first = half->level ? numbered : row, checkpoint_offset = (half->row[1] ? row : numbered) - first;
    for (int i = 0; i < resnets; i++)
        refs[n++] = (struct block_ref){
            .kind = i == 0 && vae_level_has_shortcut(c, level) ? &kinds->wider_resnet : &kinds->resnet,
            .number = first + i,
            .number_offset = checkpoint_offset};
    if (level + 1 == c->dims[LEVELS]) return n;
    int number = half->level ? level : row + resnets;
    struct block_ref step = {.kind = &kinds->resample,
                             .number = number,
                             .number_offset = checkpoint_offset + first + resnets - number};
    bool in_time = vae_wan_resamples_time(c, half, level);
    if (in_time && kinds->resample_time.name) step.kind = &kinds->resample_time;
    refs[n++] = step;
    if (!in_time || !kinds->time_conv.name) return n;
    step.kind = &kinds->time_conv;
    step.unused = true;
    refs[n++] = step;
    return n;
}

static int vae_wan_list_middle(const struct vae_wan_kinds *kinds, struct block_ref *refs) {
    refs[0] = (struct block_ref){.kind = &kinds->mid_resnet, .number = 0};
    refs[1] = (struct block_ref){.kind = &kinds->attention};
    refs[2] = (struct block_ref){.kind = &kinds->mid_resnet, .number = 1, .number_offset = 1};
    return 3;
}

int vae_wan_blocks(const struct component *c, struct block_ref *refs) {
    const struct vae_wan_half *half = c->family->details;
    const struct vae_wan_kinds *kinds = vae_wan_kinds(c, half);
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &kinds->in};
    if (half->from_deepest) n += vae_wan_list_middle(kinds, refs + n);
    for (int level = 0; level < c->dims[LEVELS]; level++) n += vae_wan_list_level(c, half, level, refs + n);
    if (!half->from_deepest) n += vae_wan_list_middle(kinds, refs + n);
    refs[n++] = (struct block_ref){.kind = &kinds->out};
    return n;
}

void vae_wan_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    const struct vae_wan_half *half = c->family->details;
    const struct vae_wan_kinds *kinds = vae_wan_kinds(c, half);
    const struct vae_wan_settings *s = (const struct vae_wan_settings *)c->settings;
    int last = c->dims[LEVELS] - 1,
        level = half->from_deepest
                    ? 0
                    : last; /* number of the level that contains the mid block, in execution order */
    bool wider = ref->kind == &kinds->wider_resnet;
    bool steps =
        ref->kind == &kinds->resample || ref->kind == &kinds->time_conv || ref->kind == &kinds->resample_time;
    if (ref->kind == &kinds->in) level = 0;
    if (ref->kind == &kinds->out) level = last;
    if (ref->kind == &kinds->resnet || wider) level = ref->number / s->resnet_number_stride;
    if (steps) level = ref->number / s->resample_number_stride;
    dims[IN] = dims[OUT] = dims[CHANNELS + level];
    if (ref->kind == &kinds->in || (ref->kind == &kinds->mid_resnet && half->from_deepest))
        dims[OUT] = dims[IN_CHANNELS];
    dims[QKV] = 3 * dims[OUT];
    dims[TIME_CHANNELS] = half->from_deepest ? 2 * dims[IN] : dims[IN];
    if (wider) dims[IN] = dims[IN_CHANNELS + level];
    if (steps && ref->kind != &kinds->time_conv) dims[OUT] = dims[IN_CHANNELS + level + 1];
}

void vae_wan_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                     struct arena *pictures, bool *ok) {
    const struct vae_wan_half *half = c->family->details;
    bool causal = vae_wan_is_causal(c, half);
    if (half->from_deepest && causal)
        causal_declare_decoder(c, lanes, n_lanes, half->is_residual, arena, pictures, ok);
    else if (half->from_deepest)
        vae_declare_decoder(c, lanes, n_lanes, arena, pictures, ok);
    else if (causal)
        causal_declare_encoder(c, lanes, n_lanes, half->is_residual, arena, pictures, ok);
    else
        vae_declare_encoder(c, lanes, n_lanes, arena, pictures, ok);
}

static const float published_mean[VAE_WAN_LATENT] = {
    -0.7571f, -0.7089f, -0.9113f, 0.1075f,  -0.1745f, 0.9653f,  -0.1517f, 1.5508f,
    0.4134f,  -0.0715f, 0.5517f,  -0.3632f, -0.1922f, -0.9497f, 0.2503f,  -0.2921f};
static const float published_std[VAE_WAN_LATENT] = {2.8184f, 1.4541f, 2.3275f, 2.6558f, 1.2196f, 1.7708f,
                                                    2.6052f, 2.0743f, 3.2687f, 2.1526f, 2.8652f, 1.5579f,
                                                    1.6382f, 1.1253f, 2.8251f, 1.9160f};
static const float published_mean22[VAE_WAN22_LATENT] = {
    -0.2289f, -0.0052f, -0.1323f, -0.2339f, -0.2799f, 0.0174f,  0.1838f,  0.1557f,  -0.1382f, 0.0542f,
    0.2813f,  0.0891f,  0.1570f,  -0.0098f, 0.0375f,  -0.1825f, -0.2246f, -0.1207f, -0.0698f, 0.5109f,
    0.2665f,  -0.2108f, -0.2158f, 0.2502f,  -0.2055f, -0.0322f, 0.1109f,  0.1567f,  -0.0729f, 0.0899f,
    -0.2799f, -0.1230f, -0.0313f, -0.1649f, 0.0117f,  0.0723f,  -0.2839f, -0.2083f, -0.0520f, 0.3748f,
    0.0152f,  0.1957f,  0.1433f,  -0.2944f, 0.3573f,  -0.0548f, -0.1681f, -0.0667f};
static const float published_std22[VAE_WAN22_LATENT] = {
    0.4765f, 1.0364f, 0.4514f, 1.1677f, 0.5313f, 0.4990f, 0.4818f, 0.5013f, 0.8158f, 1.0344f,
    0.5894f, 1.0901f, 0.6885f, 0.6165f, 0.8454f, 0.4978f, 0.5759f, 0.3523f, 0.7135f, 0.6804f,
    0.5833f, 1.4146f, 0.8986f, 0.5659f, 0.7069f, 0.5338f, 0.4889f, 0.4917f, 0.4069f, 0.4999f,
    0.6866f, 0.4093f, 0.5709f, 0.6065f, 0.6415f, 0.4944f, 0.5726f, 1.2042f, 0.5458f, 1.6887f,
    0.3971f, 1.0600f, 0.3943f, 0.5537f, 0.5444f, 0.4089f, 0.7468f, 0.7744f};
#define LIST(key, field, least, list)                                                                        \
    {                                                                                                        \
        key, offsetof(struct latent_format, field), VAE_WAN_LATENT_MAX, LATENT, least, 1e6, list,            \
            COUNT_OF(list), false                                                                            \
    }
const struct setting_list vae_wan_lists[LATENT_LISTS] = {
    LIST("latents_mean", shift, -1e6, published_mean),
    LIST("latents_std", scale, 1e-6, published_std),
};
const struct setting_list vae_wan22_lists[LATENT_LISTS] = {
    LIST("latents_mean", shift, -1e6, published_mean22),
    LIST("latents_std", scale, 1e-6, published_std22),
};
/* Refuses attention outside the mid block and, in a VAE of Wan 2.1, the features of Wan 2.2. */
const struct expectation vae_wan_expects[] = {
    {"attn_scales", NULL}, {"is_residual", NULL}, {"patch_size", NULL}, {0}};
const struct expectation vae_wan22_expects[] = {{"attn_scales", NULL}, {0}};

const char *const vae_wan_video_classes[] = {"AutoencoderKLWan", NULL};
