#include "models/wan_sizes.h"

#include "models/mmdit.h"

/* WAN_MASK: mask channels of I2V, one per frame of a latent frame. VACE: one per pixel of a latent pixel. */
enum { WAN_MASK = 4, WAN_LATENT_PIXELS = 64 };

enum status wan_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"casual_audio_encoder.", "WAN 2.2 S2V (driven by audio)"},
        {"audio_injector.", "WAN 2.2 S2V (driven by audio)"},
        {"audio_proj.", "a WAN driven by audio (HuMo, InfiniteTalk)"},
        {"face_adapter.", "WAN 2.2 Animate (driven by face and pose)"},
        {"pose_patch_embedding.", "WAN 2.2 Animate (driven by face and pose)"},
        {"control_adapter.", "WAN Fun-Camera (driven by a camera path)"},
        {"ref_conv.", "WAN Fun-Control (control video and reference image)"},
        {"fps_embedding.", "SkyReels V2 (diffusion forcing)"},
        {0},
    };
    return component_refuse_similar(c, relatives, "WAN 2.1 or 2.2 T2V, I2V, FLF2V, TI2V or VACE", e);
}

/* Size of an axis of an optional tensor; 0 if the tensor is absent. */
static int32_t wan_dim_if(const struct component *c, const char *name, const char *checkpoint_name, int rank,
                          int axis, struct error *e) {
    const char *is = component_first_existing(c, name, checkpoint_name);
    return index_find(&c->index, is) ? component_dim(c, is, rank, axis, e) : 0;
}

/* Input channels of a patch embedding. Weights with four axes have output and input channels merged. */
static int32_t wan_patch_in_channels(const struct component *c, const char *name, struct error *e) {
    const struct index_entry *entry = index_find(&c->index, name);
    int32_t dim = c->dims[DIM];
    if (entry && entry->rank == 4 && dim > 0 && entry->dim[0] % dim == 0) return entry->dim[0] / dim;
    return component_dim(c, name, 5, 1, e);
}

static enum status wan_check_dims(const struct component *c, struct error *e) {
    enum { DIM_MAX = 1 << 16, HEAD_LEAST = 6, HEAD_MAX = 512, SQUARE = MMDIT_PATCH * MMDIT_PATCH };
    const int32_t *d = c->dims;
    bool fits = d[DIM] <= DIM_MAX && d[FEED_FORWARD] <= 8 * DIM_MAX && d[HEAD] >= HEAD_LEAST &&
                d[HEAD] <= HEAD_MAX && d[HEAD] % 2 == 0 && d[DIM] % d[HEAD] == 0 && d[LAYERS] >= 1 &&
                d[HINTS] <= d[LAYERS] && d[PATCH] % SQUARE == 0 && d[FREQUENCIES] % 2 == 0 &&
                !(d[HINTS] && d[IMAGE]) && 2 * (d[LAYERS] + d[HINTS]) + 8 <= FAMILY_BLOCKS_MAX;
    if (fits) return OK;
    return error_set(e, SHAPE,
                     "unsupported WAN transformer: width, heads or number of blocks" WHERE "%s" FOUND
                     "width %d, head size %d, %d blocks, %d values per output token" EXPECTED
                     "a width that is a multiple of an even head size (attention_head_dim in config.json)",
                     c->index.sources[0].path, d[DIM], d[HEAD], d[LAYERS], d[PATCH]);
}

/* Accepts the input channels of T2V (latent) and I2V (latent, mask, conditioning image's latent). */
static enum status wan_check_inputs(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    int32_t latent = d[PATCH] / (MMDIT_PATCH * MMDIT_PATCH), more = 2 * latent + WAN_MASK;
    if (d[IN] == latent || (d[IN] == more && !d[HINTS])) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported WAN variant: number of input channels (as in Fun-Control)" WHERE "%s" FOUND
                     "%d input channels, %d output channels" EXPECTED "%d (T2V), or %d (I2V) input channels",
                     c->index.sources[0].path, d[IN], latent, latent, more);
}

/* Reads or derives the block after which each hint is added: increasing, from block 0. */
static enum status wan_read_vace_layers(struct component *c, const struct config *config, struct error *e) {
    struct wan_settings *s = (struct wan_settings *)c->settings;
    int n = c->dims[HINTS], layers = c->dims[LAYERS];
    if (!n) return OK;
    bool listed = config_list_length(config, "vace_layers");
    for (int i = 0; i < n && !listed; i++) s->vace_layers[i] = (float)(i * (layers / n));
    for (int i = 0; i < n; i++) {
        int at = (int)s->vace_layers[i], before = i ? (int)s->vace_layers[i - 1] : -1;
        if (at > before && at < layers && (i || !at)) continue;
        error_set(e, META, "invalid 'vace_layers'" WHERE "%s",
                  config->path ? config->path : c->index.sources[0].path);
        if (i)
            error_found(e, "block %d after block %d", at, before);
        else
            error_found(e, "a first entry of %d", at);
        return error_expected(e, "block numbers that start at 0 and increase, below %d", layers);
    }
    return OK;
}

void wan_derive(struct component *c) {
    struct wan_settings *s = (struct wan_settings *)c->settings;
    int32_t *d = c->dims;
    d[ONE] = 1;
    d[TWO] = 2;
    d[SIX] = 6;
    d[SIDE] = MMDIT_PATCH;
    d[SIX_DIM] = 6 * d[DIM];
    d[HEADS] = d[DIM] / d[HEAD];
    d[LATENT] = d[PATCH] / (MMDIT_PATCH * MMDIT_PATCH);
    d[CONCAT_IMAGE] = d[IN] != d[LATENT];
    d[IMAGE_DIM] = d[IMAGE] ? d[DIM] : 0;
    s->layers = d[LAYERS];
    s->head = d[HEAD];
    c->text_columns = d[TEXT];
    c->latent_channels = d[LATENT];
    c->concat_channels = d[HINTS] ? d[HINTS_IN] : d[IN] - d[LATENT];
    c->image_columns = d[IMAGE];
    c->image_rows = d[IMAGE_ROWS];
    c->config_value = d[HINTS] ? "WanVACETransformer3DModel" : NULL;
    c->variant = d[HINTS] ? WAN_VACE : d[IMAGE] ? WAN_I2V : d[CONCAT_IMAGE] ? WAN22_I2V : WAN_T2V;
}

enum status wan_configure(struct component *c, const struct config *config, struct error *e) {
    enum { HEAD_PUBLISHED = 128 }; /* default head size without a configuration */
    int32_t *d = c->dims;
    int head = HEAD_PUBLISHED, heads = 0;
    config_int(config, "num_heads", 1, 512, &heads, e); /* key of the authors' config.json */
    if (heads && d[DIM] % heads == 0) head = d[DIM] / heads;
    config_int(config, "attention_head_dim", 1, 512, &head, e);
    d[HEAD] = head;
    d[IN] = wan_patch_in_channels(c, "patch_embedding.weight", e);
    if (d[HINTS]) d[HINTS_IN] = wan_patch_in_channels(c, "vace_patch_embedding.weight", e);
    d[IMAGE] =
        wan_dim_if(c, WAN_CONDITION "image_embedder.ff.net.0.proj.weight", "img_emb.proj.1.weight", 2, 1, e);
    d[IMAGE_ROWS] = wan_dim_if(c, WAN_CONDITION "image_embedder.pos_embed", "img_emb.emb_pos", 3, 1, e);
    if (e->code != OK || wan_check_dims(c, e) != OK || wan_check_inputs(c, e) != OK) return e->code;
    return wan_read_vace_layers(c, config, e);
}

/* Published sizes: WAN 2.1 T2V, 14.3 B parameters. */
const struct dimension wan_dimensions[N_WAN_DIMENSIONS] = {
    {"heads", 40, 1, 512, .place = HEADS, .key = "num_attention_heads"},
    {"wan_head", 128, 6, 512, .place = HEAD, .key = "attention_head_dim"},
    {"wan_ff", 13824, 8, 524288, .place = FEED_FORWARD,
     OF_TENSOR(2, 0, "blocks.0.ffn.net.0.proj.weight", "blocks.0.ffn.0.weight"), .key = "ffn_dim"},
    {"layers", 40, 1, 400, .place = LAYERS, OF_BLOCKS("blocks."), .key = "num_layers"},
    {"hidden", 4096, 8, 65536, .place = TEXT,
     OF_TENSOR(2, 1, WAN_CONDITION "text_embedder.linear_1.weight", "text_embedding.0.weight"),
     .key = "text_dim"},
    {"latent_channels", 16, 1, 1024, .place = LATENT, .key = "out_channels"},
    {"wan_goes_on", 0, 0, 1, .place = CONCAT_IMAGE},
    {"clip_vision_width", 0, 0, 65536, .place = IMAGE, .key = "image_dim", .form = FORM_NULL_IF_0},
    {"wan_image_rows", 0, 0, 65536, .place = IMAGE_ROWS, .key = "pos_embed_seq_len", .form = FORM_NULL_IF_0},
    {"wan_hints", 0, 0, WAN_HINTS_MAX, .place = HINTS, OF_BLOCKS("vace_blocks.")},
    {.place = DIM, OF_TENSOR(1, 0, "patch_embedding.bias")},
    {.place = IN, .key = "in_channels"},
    {.place = PATCH, OF_TENSOR(2, 0, "proj_out.weight", "head.head.weight")},
    {.place = FREQUENCIES,
     OF_TENSOR(2, 1, WAN_CONDITION "time_embedder.linear_1.weight", "time_embedding.0.weight"),
     .key = "freq_dim"},
    {.place = IMAGE_DIM, .key = "added_kv_proj_dim", .form = FORM_NULL_IF_0},
    {.place = HINTS_IN, .key = "vace_in_channels", .form = FORM_ABSENT_IF_0},
};

const struct setting wan_settings_rows[N_WAN_SETTINGS] = {
    {{"eps"}, offsetof(struct wan_settings, eps), SETTING_FLOAT, 1e-6, 0, 1}};
const struct setting_list wan_lists[N_WAN_LISTS] = {{.key = "vace_layers",
                                                     .offset = offsetof(struct wan_settings, vace_layers),
                                                     .capacity = WAN_HINTS_MAX,
                                                     .count = HINTS,
                                                     .least = 0,
                                                     .most = 400,
                                                     .derived = true}};

void wan_derive_dims(struct component *c) {
    struct wan_settings *s = (struct wan_settings *)c->settings;
    int32_t *d = c->dims;
    if (d[HINTS] > d[LAYERS]) d[HINTS] = d[LAYERS];
    for (int i = 0; i < d[HINTS]; i++) s->vace_layers[i] = (float)(i * (d[LAYERS] / d[HINTS]));
    d[HEAD] = d[HEAD] / 2 * 2;
    d[DIM] = d[HEADS] * d[HEAD];
    d[FREQUENCIES] = 256;
    d[PATCH] = MMDIT_PATCH * MMDIT_PATCH * d[LATENT];
    d[IN] = d[LATENT] + d[CONCAT_IMAGE] * (d[LATENT] + WAN_MASK);
    d[HINTS_IN] = d[HINTS] ? 2 * d[LATENT] + WAN_LATENT_PIXELS : 0;
}
