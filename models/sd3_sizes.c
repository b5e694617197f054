#include "models/sd3_sizes.h"

#include "models/mmdit.h"

#include <math.h>

enum status sd3_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"controlnet_", "a Stable Diffusion 3 ControlNet, not a complete model"},
        {"pos_embed_input.", "a Stable Diffusion 3 ControlNet, not a complete model"},
        {"image_proj.", "a Stable Diffusion 3 IP-Adapter, not a complete model"},
        {0},
    };
    return component_refuse_similar(c, relatives, "Stable Diffusion 3, 3.5 medium or large", e);
}

static enum status sd3_mismatch(const struct component *c, const char *key, double found, int expected,
                                const struct config *config, struct error *e) {
    return error_set(e, META,
                     "'%s' contradicts the transformer's tensors" WHERE "%s" FOUND "%g" EXPECTED "%d", key,
                     config->path ? config->path : c->index.sources[0].path, found, expected);
}

/* Returns META if config.json has another value under this key. */
static enum status sd3_check_key(const struct component *c, const char *key, int expected,
                                 const struct config *config, struct error *e) {
    int value = expected;
    if (config_int(config, key, 0, INT32_MAX, &value, e) != OK || value == expected) return e->code;
    return sd3_mismatch(c, key, value, expected, config, e);
}

/* Tensors whose presence shows query and key norms (sd3_norm_names) or attn2 (sd3_dual_names). Of one naming
 * scheme, a block has all tensors of a list or none. */
static const char *const sd3_norm_names[] = {DIFFUSERS_BLOCK "attn.norm_q.weight",
                                             DIFFUSERS_BLOCK "attn.norm_k.weight",
                                             DIFFUSERS_BLOCK "attn.norm_added_q.weight",
                                             DIFFUSERS_BLOCK "attn.norm_added_k.weight",
                                             CHECKPOINT_BLOCK "x_block.attn.ln_q.weight",
                                             CHECKPOINT_BLOCK "x_block.attn.ln_k.weight",
                                             CHECKPOINT_BLOCK "context_block.attn.ln_q.weight",
                                             CHECKPOINT_BLOCK "context_block.attn.ln_k.weight",
                                             NULL};
static const char *const sd3_dual_names[] = {DIFFUSERS_BLOCK "attn2.to_q.weight",
                                             DIFFUSERS_BLOCK "attn2.to_k.weight",
                                             DIFFUSERS_BLOCK "attn2.to_v.weight",
                                             DIFFUSERS_BLOCK "attn2.to_out.0.weight",
                                             DIFFUSERS_BLOCK "attn2.norm_q.weight",
                                             DIFFUSERS_BLOCK "attn2.norm_k.weight",
                                             CHECKPOINT_BLOCK "x_block.attn2.qkv.weight",
                                             CHECKPOINT_BLOCK "x_block.attn2.proj.weight",
                                             CHECKPOINT_BLOCK "x_block.attn2.ln_q.weight",
                                             CHECKPOINT_BLOCK "x_block.attn2.ln_k.weight",
                                             NULL};

/* Finds the blocks with attn2 by their tensors; META if dual_attention_layers disagrees. */
static enum status sd3_read_dual_layers(struct component *c, const struct config *config, struct error *e) {
    struct sd3_settings *s = (struct sd3_settings *)c->settings;
    bool value = config_list_length(config, "dual_attention_layers");
    int n = 0;
    for (int i = 0; i < c->dims[LAYERS] && n < c->dims[DUAL_LAYERS]; i++) {
        if (!component_has_block(c, sd3_dual_names, i)) continue;
        if (value && s->dual_layer[n] != (float)i)
            return sd3_mismatch(c, "dual_attention_layers", (double)s->dual_layer[n], i, config, e);
        s->dual_layer[n++] = (float)i;
    }
    if (n < c->dims[DUAL_LAYERS]) return sd3_mismatch(c, "num_layers", c->dims[LAYERS], n, config, e);
    return OK;
}

/* Reads the side of the position table, whose tensor may have a leading axis of 1. */
static enum status sd3_read_positions(struct component *c, struct error *e) {
    enum { TABLE_SIDE_MAX = 1 << 12 };
    int32_t *d = c->dims;
    const char *name = component_first_existing(c, "pos_embed.pos_embed", "pos_embed");
    const struct index_entry *entry = index_find(&c->index, name);
    d[POSITIONS] = component_dim(c, name, entry && entry->rank == 3 ? 3 : 2, entry && entry->rank == 3, e);
    if (e->code != OK) return e->code;
    d[TABLE_SIDE] = (int32_t)lround(sqrt(d[POSITIONS]));
    if (d[TABLE_SIDE] <= TABLE_SIDE_MAX && d[TABLE_SIDE] * d[TABLE_SIDE] == d[POSITIONS]) return OK;
    return error_set(e, SHAPE,
                     "the position table is not square" WHERE "%s" FOUND "%d rows" EXPECTED
                     "a square number of rows, one for each token of the largest image",
                     c->index.sources[0].path, d[POSITIONS]);
}

/* Refuses inpainting models, which also read a mask and the latent of the masked image. */
static enum status sd3_check_inputs(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    int32_t latent = d[PATCH] / (MMDIT_PATCH * MMDIT_PATCH);
    if (d[IN] == latent) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported Stable Diffusion 3 variant" WHERE "%s" FOUND
                     "pos_embed.proj with %d input channels, %d output channels" EXPECTED
                     "%d input channels; inpainting models (%d) are not supported",
                     c->index.sources[0].path, d[IN], latent, latent, 2 * latent + 1);
}

static enum status sd3_check_dims(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    struct mmdit_sizes sizes = {.dim = d[DIM],
                                .feed_forward = d[FEED_FORWARD],
                                .head = d[HEAD],
                                .frequencies = d[FREQUENCIES],
                                .patch = d[PATCH],
                                .layers = d[LAYERS],
                                .n_blocks = 2 * d[LAYERS] + 7};
    return mmdit_check_sizes(c, &sizes, e);
}

/* Returns META if qk_norm in config.json disagrees with the tensors. Accepts "rms_norm", null or no value. */
static enum status sd3_check_norms(const struct component *c, const struct config *config, struct error *e) {
    const struct config_value *value = config_find(config, "qk_norm");
    bool normed = value && value->kind != CONFIG_NULL;
    if (config_expect(config, "qk_norm", "rms_norm", e) != OK) return e->code;
    if (!value || normed == (c->dims[NORMED] > 0)) return OK;
    return error_set(e, META,
                     "'qk_norm' contradicts the transformer's tensors" WHERE "%s" FOUND "%s" EXPECTED "%s",
                     config->path,
                     normed ? "\"rms_norm\", but no norm tensors for queries and keys"
                            : "null, but norm tensors for queries and keys",
                     normed ? "null, or attn.norm_q and attn.norm_k tensors in each block" : "\"rms_norm\"");
}

static enum status sd3_check_config(const struct component *c, const struct config *config, struct error *e) {
    const int32_t *d = c->dims;
    int patch = MMDIT_PATCH;
    config_int(config, "patch_size", MMDIT_PATCH, MMDIT_PATCH, &patch, e);
    if (e->code != OK || sd3_check_norms(c, config, e) != OK) return e->code;
    sd3_check_key(c, "attention_head_dim", d[HEAD], config, e);
    sd3_check_key(c, "num_attention_heads", d[DIM] / d[HEAD], config, e);
    sd3_check_key(c, "caption_projection_dim", d[DIM], config, e);
    sd3_check_key(c, "pos_embed_max_size", d[TABLE_SIDE], config, e);
    sd3_check_key(c, "in_channels", d[IN], config, e);
    sd3_check_key(c, "out_channels", d[IN], config, e);
    sd3_check_key(c, "joint_attention_dim", d[TEXT], config, e);
    sd3_check_key(c, "pooled_projection_dim", d[POOLED], config, e);
    return e->code;
}

enum status sd3_configure(struct component *c, const struct config *config, struct error *e) {
    enum { HEAD_PUBLISHED = 64 }; /* default head size if neither a norm nor config.json gives it */
    int32_t *d = c->dims;
    int head = HEAD_PUBLISHED;
    const char *norm = component_first_existing(c, "transformer_blocks.0.attn.norm_q.weight",
                                                "joint_blocks.0.x_block.attn.ln_q.weight");
    config_int(config, "attention_head_dim", 1, 512, &head, e);
    d[NORMED] = d[NORMED] > 0;
    d[HEAD] = d[NORMED] ? component_dim(c, norm, 1, 0, e) : head;
    d[SIDE] = MMDIT_PATCH;
    if (e->code != OK || sd3_check_dims(c, e) != OK || sd3_check_inputs(c, e) != OK) return e->code;
    if (sd3_read_positions(c, e) != OK || sd3_check_config(c, config, e) != OK) return e->code;
    return sd3_read_dual_layers(c, config, e);
}

void sd3_derive_dims(struct component *c) {
    struct sd3_settings *s = (struct sd3_settings *)c->settings;
    int32_t *d = c->dims;
    if (d[DUAL_LAYERS] > d[LAYERS]) d[DUAL_LAYERS] = d[LAYERS];
    for (int i = 0; i < d[DUAL_LAYERS]; i++) s->dual_layer[i] = (float)i;
    d[DIM] = d[HEADS] * d[HEAD];
    d[FEED_FORWARD] = 4 * d[DIM];
    d[FREQUENCIES] = 256;
    d[PATCH] = MMDIT_PATCH * MMDIT_PATCH * d[LATENT];
    d[IN] = d[LATENT];
    d[POSITIONS] = d[TABLE_SIDE] * d[TABLE_SIDE];
}

void sd3_derive(struct component *c) {
    struct sd3_settings *s = (struct sd3_settings *)c->settings;
    int32_t *d = c->dims;
    d[SIDE] = MMDIT_PATCH;
    d[TWO_DIM] = 2 * d[DIM];
    d[SIX_DIM] = 6 * d[DIM];
    d[HEADS] = d[DIM] / d[HEAD];
    d[LATENT] = d[PATCH] / (MMDIT_PATCH * MMDIT_PATCH);
    s->head = d[HEAD];
    s->layers = d[LAYERS];
    s->table_side = d[TABLE_SIDE];
    s->n_dual_layers = d[DUAL_LAYERS];
    c->text_columns = d[TEXT];
    c->pooled_columns = d[POOLED];
    c->latent_channels = d[LATENT];
    c->latent_side = s->latent_side;
    c->variant = d[DUAL_LAYERS] ? SD35_MEDIUM : d[NORMED] ? SD35_LARGE : SD3_MEDIUM;
}

static const char *const sd3_norm_words[] = {NULL, "rms_norm"};

/* Published sizes: Stable Diffusion 3 medium, 2.0 B parameters. */
const struct dimension sd3_dimensions[N_SD3_DIMENSIONS] = {
    {"heads", 24, 1, 512, .place = HEADS, .key = "num_attention_heads"},
    {"sd3_head", 64, 2, 512, .place = HEAD, .key = "attention_head_dim"},
    {"layers", 24, 1, SD3_LAYERS_MAX, .place = LAYERS, OF_BLOCKS("transformer_blocks.", "joint_blocks."),
     .key = "num_layers"},
    {"hidden", 4096, 8, 65536, .place = TEXT, OF_TENSOR(2, 1, "context_embedder.weight"),
     .key = "joint_attention_dim"},
    {"sd3_pooled", 2048, 8, 65536, .place = POOLED,
     OF_TENSOR(2, 1, "time_text_embed.text_embedder.linear_1.weight", "y_embedder.mlp.0.weight"),
     .key = "pooled_projection_dim"},
    {"latent_channels", 16, 1, 1024, .place = LATENT, .key = "out_channels"},
    {"sd3_positions", 192, 1, 4096, .place = TABLE_SIDE, .key = "pos_embed_max_size"},
    {"sd3_norms", 0, 0, 1, .place = NORMED, .having = sd3_norm_names, .key = "qk_norm",
     .words = sd3_norm_words},
    {"sd3_seconds", 0, 0, SD3_DUAL_LAYERS_MAX, .place = DUAL_LAYERS, .having = sd3_dual_names},
    {.place = DIM, OF_TENSOR(2, 0, "context_embedder.weight"), .key = "caption_projection_dim"},
    {.place = IN, OF_TENSOR(4, 1, "pos_embed.proj.weight", "x_embedder.proj.weight"), .key = "in_channels"},
    {.place = PATCH, OF_TENSOR(2, 0, "proj_out.weight", "final_layer.linear.weight")},
    {.place = FREQUENCIES,
     OF_TENSOR(2, 1, "time_text_embed.timestep_embedder.linear_1.weight", "t_embedder.mlp.0.weight")},
    {.place = FEED_FORWARD,
     OF_TENSOR(2, 0, "transformer_blocks.0.ff.net.0.proj.weight", "joint_blocks.0.x_block.mlp.fc1.weight")},
};

const struct setting sd3_settings_rows[N_SD3_SETTINGS] = {
    {{"sample_size"}, offsetof(struct sd3_settings, latent_side), SETTING_INT, 128, 1, 4096}};
const struct setting_list sd3_lists[N_SD3_LISTS] = {{.key = "dual_attention_layers",
                                                     .offset = offsetof(struct sd3_settings, dual_layer),
                                                     .capacity = SD3_DUAL_LAYERS_MAX,
                                                     .count = DUAL_LAYERS,
                                                     .least = 0,
                                                     .most = SD3_LAYERS_MAX,
                                                     .derived = true}};
