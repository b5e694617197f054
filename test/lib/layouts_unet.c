/* File layouts of SD1 and SDXL: the Hugging Face folder, and published single files: UNet and VAE with the
 * names of CompVis latent-diffusion, OpenCLIP's encoders with OpenCLIP's names, and leftover training
 * tensors. */
#include "test/lib/layouts.h"

struct renaming {
    const char *from, *to;
};

static void rename_by(struct item *item, const struct renaming *names) {
    for (; names->from; names++) rename_part(item, names->from, names->to);
}

/* Parses the level and the block number in a tensor name; *tail is the rest of the name. Returns false if the
 * name does not match. */
static bool numbered(const struct item *item, const char *format, int *level, int *number,
                     const char **tail) {
    int n = 0;
    if (sscanf(item->name, format, level, number, &n) != 2 || !n) return false;
    *tail = item->name + n;
    return true;
}

static void name_block(struct item *item, const char *stem, int number, int place, const char *tail) {
    char name[TENSOR_SET_NAME];
    snprintf(name, sizeof name, "%s.%d.%d.%s", stem, number, place, tail);
    snprintf(item->name, sizeof item->name, "%s", name);
}

/* Returns the index of the up-sampler in a level's last output block: 2 after a transformer, else 1. */
static int upsampler_place(const struct tensor_set *of, int level) {
    char name[TENSOR_SET_NAME];
    snprintf(name, sizeof name, "up_blocks.%d.attentions.0.norm.weight", level);
    for (int i = 0; i < of->n; i++)
        if (!strcmp(of->item[i].name, name)) return 2;
    return 1;
}

/* Renames a block. Checkpoint numbers run through all levels: two blocks and a down-sampler per down level,
 * three blocks per up level. */
static bool name_place(struct item *item, const struct tensor_set *of) {
    int level, number;
    const char *tail;
    if (numbered(item, "down_blocks.%d.resnets.%d.%n", &level, &number, &tail))
        name_block(item, "input_blocks", 3 * level + number + 1, 0, tail);
    else if (numbered(item, "down_blocks.%d.attentions.%d.%n", &level, &number, &tail))
        name_block(item, "input_blocks", 3 * level + number + 1, 1, tail);
    else if (numbered(item, "down_blocks.%d.downsamplers.%d.conv.%n", &level, &number, &tail)) {
        name_block(item, "input_blocks", 3 * level + 3, 0, tail);
        rename_part(item, ".0.weight", ".0.op.weight");
        rename_part(item, ".0.bias", ".0.op.bias");
    } else if (numbered(item, "up_blocks.%d.resnets.%d.%n", &level, &number, &tail))
        name_block(item, "output_blocks", 3 * level + number, 0, tail);
    else if (numbered(item, "up_blocks.%d.attentions.%d.%n", &level, &number, &tail))
        name_block(item, "output_blocks", 3 * level + number, 1, tail);
    else if (numbered(item, "up_blocks.%d.upsamplers.%d.%n", &level, &number, &tail))
        name_block(item, "output_blocks", 3 * level + 2, upsampler_place(of, level), tail);
    else
        return false;
    return true;
}

/* Renames tensors from diffusers' to checkpoint names: inverse of diffusers 0.42, single_file_utils.py,
 * convert_ldm_unet_checkpoint. */
static struct tensor_set *unet_to_checkpoint(const struct tensor_set *of) {
    static const struct renaming ends[] = {{"conv_in.", "input_blocks.0.0."},
                                           {"conv_norm_out.", "out.0."},
                                           {"conv_out.", "out.2."},
                                           {"time_embedding.linear_1.", "time_embed.0."},
                                           {"time_embedding.linear_2.", "time_embed.2."},
                                           {"add_embedding.linear_1.", "label_emb.0.0."},
                                           {"add_embedding.linear_2.", "label_emb.0.2."},
                                           {"mid_block.resnets.0.", "middle_block.0."},
                                           {"mid_block.attentions.0.", "middle_block.1."},
                                           {"mid_block.resnets.1.", "middle_block.2."},
                                           {NULL, NULL}};
    static const struct renaming resnets[] = {{".norm1.", ".in_layers.0."},
                                              {".conv1.", ".in_layers.2."},
                                              {".time_emb_proj.", ".emb_layers.1."},
                                              {".norm2.", ".out_layers.0."},
                                              {".conv2.", ".out_layers.3."},
                                              {".conv_shortcut.", ".skip_connection."},
                                              {NULL, NULL}};
    struct tensor_set *p = tensor_set_copy(of, "");
    for (int i = 0; i < p->n; i++) {
        struct item *item = &p->item[i];
        if (strstr(item->name, ".resnets.")) rename_by(item, resnets);
        if (!name_place(item, of)) rename_by(item, ends);
    }
    return p;
}

static void transpose(struct item *item) {
    size_t n = (size_t)item->dim[0], size = item->bytes / n / n;
    unsigned char *turned = malloc(item->bytes);
    if (!turned || item->dim[1] != item->dim[0]) abort();
    for (size_t i = 0; i < n * n; i++)
        memcpy(turned + i * size, item->data + (i % n * n + i / n) * size, size);
    free(item->data);
    item->data = turned;
}

/* Fuses q, k and v into one tensor that belongs to no submodule. */
static void fuse_heads(struct tensor_set *p, struct item *item) {
    static const char *const parts[] = {".k_proj.", ".v_proj."};
    for (int i = 0; i < 2 && strstr(item->name, ".q_proj."); i++) {
        struct item other = *item;
        rename_part(&other, ".q_proj.", parts[i]);
        join_rows(p, item, other.name);
    }
    rename_part(item, "self_attn.q_proj.", "attn.in_proj_");
}

/* Renames tensors from transformers' to OpenCLIP's names: inverse of diffusers 0.42, single_file_utils.py,
 * convert_open_clip_checkpoint. */
static struct tensor_set *openclip_to_checkpoint(const struct tensor_set *of) {
    static const struct renaming names[] = {
        {"text_model.embeddings.token_embedding", "token_embedding"},
        {"text_model.embeddings.position_embedding.weight", "positional_embedding"},
        {"text_model.encoder.layers.", "transformer.resblocks."},
        {"text_model.final_layer_norm", "ln_final"},
        {"layer_norm1", "ln_1"},
        {"layer_norm2", "ln_2"},
        {"self_attn.out_proj", "attn.out_proj"},
        {"mlp.fc1", "mlp.c_fc"},
        {"mlp.fc2", "mlp.c_proj"},
        {"text_projection.weight", "text_projection"},
        {NULL, NULL}};
    struct tensor_set *p = tensor_set_copy(of, "");
    for (int i = 0; i < p->n; i++) fuse_heads(p, &p->item[i]);
    for (int i = 0; i < p->n; i++) {
        if (!strcmp(p->item[i].name, "text_projection.weight")) transpose(&p->item[i]);
        rename_by(&p->item[i], names);
    }
    tensor_set_drop(p, "-");
    return p;
}

#define UNET                                                                                                 \
    {                                                                                                        \
        "unet", "unet.safetensors", offsetof(options, diffusion_model), unet_to_checkpoint, NULL, NULL,      \
            "UNet", "UNet", "for --diffusion-model"                                                          \
    }
#define CLIP_L                                                                                               \
    {                                                                                                        \
        "text_encoder", "clip_l.safetensors", offsetof(options, clip_l), NULL, NULL, NULL, "CLIP", "CLIP",   \
            "for --clip_l"                                                                                   \
    }
#define CLIP_G                                                                                               \
    {                                                                                                        \
        "text_encoder_2", "clip_g.safetensors", offsetof(options, clip_g), openclip_to_checkpoint, NULL,     \
            NULL, "CLIP", "CLIP", "for --clip_g"                                                             \
    }
#define VAE                                                                                                  \
    {                                                                                                        \
        "vae", "vae.safetensors", offsetof(options, vae), layouts_vae_to_checkpoint, NULL, NULL,             \
            "autoencoder (vae_kl)", EXPECTED_VAE, "for --vae"                                                \
    }

/* Extra tensors of published files, which the engine ignores: averaged weights with flat names, the latent
 * scale, CLIP's temperature. */
#define EXTRA_TENSORS                                                                                        \
    {                                                                                                        \
        "model_ema.diffusion_modeltime_embed0weight", "model_ema.decay", "scale_factor",                     \
            "cond_stage_model.logit_scale", "conditioner.embedders.0.logit_scale"                            \
    }
#define UNET_PREFIX "model.diffusion_model."
#define VAE_PREFIX  "first_stage_model."

static const struct layout_part sd1_parts[] = {UNET, CLIP_L, VAE};
static const struct layout_part sdxl_parts[] = {UNET, CLIP_L, CLIP_G, VAE};
static const struct all_in_one sd1_one[] = {{{UNET_PREFIX, "cond_stage_model.transformer.", VAE_PREFIX},
                                             {"unet", "text_encoder", "vae"},
                                             EXTRA_TENSORS}};
static const struct all_in_one sdxl_one[] = {
    {{UNET_PREFIX, "conditioner.embedders.0.transformer.", "conditioner.embedders.1.model.", VAE_PREFIX},
     {"unet", "text_encoder", "text_encoder_2", "vae"},
     EXTRA_TENSORS}};

const struct layout_family layouts_of_sd1 = {sd1_parts, COUNT_OF(sd1_parts), sd1_one, COUNT_OF(sd1_one)};
static const struct layout_family layouts_of_sdxl = {sdxl_parts, COUNT_OF(sdxl_parts), sdxl_one,
                                                     COUNT_OF(sdxl_one)};

static void (*const extra_tests[])(void) = {NULL};

#define LIKE_ALL                                                                                             \
    .width = 56, .height = 40, .warnings = {"metadata", "metadata"}, .one_file = true,                       \
    .extra_tests = extra_tests

const struct layouts layouts_sd1 = {.family = &layouts_of_sd1, LIKE_ALL};
const struct layouts layouts_sdxl = {.family = &layouts_of_sdxl, LIKE_ALL};
