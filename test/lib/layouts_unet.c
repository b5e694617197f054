/* Layouts of Stable Diffusion 1: Hugging Face's folder, a file for each part, and checkpoints with everything
 * in one file under the authors' names, with what training leaves there. */
#include "test/lib/layouts.h"

/* ---- the authors' names ---- */

enum { DOWN_RESNETS = 2, UP_RESNETS = 3 };

/* Two numbers of a name behind these words, and what follows them; or of one, -1. */
static bool places_of(const char *name, const char *format, int *level, int *place, const char **tail) {
    int end = 0;
    *place = -1;
    if (sscanf(name, format, level, place, &end) < 1 || !end) return false;
    *tail = name + end;
    return true;
}

static void name_block(struct item *item, const char *name) {
    int level, place;
    const char *tail;
    char *to = item->name;
    if (places_of(name, "down_blocks.%d.resnets.%d%n", &level, &place, &tail))
        snprintf(to, PILE_NAME, "input_blocks.%d.0%s", level * (DOWN_RESNETS + 1) + place + 1, tail);
    else if (places_of(name, "down_blocks.%d.attentions.%d%n", &level, &place, &tail))
        snprintf(to, PILE_NAME, "input_blocks.%d.1%s", level * (DOWN_RESNETS + 1) + place + 1, tail);
    else if (places_of(name, "down_blocks.%d.downsamplers.%d.conv%n", &level, &place, &tail))
        snprintf(to, PILE_NAME, "input_blocks.%d.0.op%s", (level + 1) * (DOWN_RESNETS + 1), tail);
    else if (places_of(name, "up_blocks.%d.resnets.%d%n", &level, &place, &tail))
        snprintf(to, PILE_NAME, "output_blocks.%d.0%s", level * UP_RESNETS + place, tail);
    else if (places_of(name, "up_blocks.%d.attentions.%d%n", &level, &place, &tail))
        snprintf(to, PILE_NAME, "output_blocks.%d.1%s", level * UP_RESNETS + place, tail);
    else if (places_of(name, "up_blocks.%d.upsamplers.%d.conv%n", &level, &place,
                       &tail)) /* level 0 attends to nothing */
        snprintf(to, PILE_NAME, "output_blocks.%d.%d.conv%s", level * UP_RESNETS + UP_RESNETS - 1,
                 level ? 2 : 1, tail);
}

static struct pile *original(const struct pile *of) {
    static const char *const parts[][2] = {{"time_embedding.linear_1.", "time_embed.0."},
                                           {"time_embedding.linear_2.", "time_embed.2."},
                                           {"conv_in.", "input_blocks.0.0."},
                                           {"conv_norm_out.", "out.0."},
                                           {"conv_out.", "out.2."},
                                           {"mid_block.resnets.0.", "middle_block.0."},
                                           {"mid_block.resnets.1.", "middle_block.2."},
                                           {"mid_block.attentions.0.", "middle_block.1."}};
    static const char *const resnet[][2] = {
        {".norm1.", ".in_layers.0."},          {".conv1.", ".in_layers.2."},
        {".time_emb_proj.", ".emb_layers.1."}, {".norm2.", ".out_layers.0."},
        {".conv2.", ".out_layers.3."},         {".conv_shortcut.", ".skip_connection."}};
    struct pile *p = pile_copy(of, "");
    for (int i = 0; i < p->n; i++) {
        struct item *item = &p->item[i];
        char name[PILE_NAME];
        bool of_resnet = strstr(item->name, ".resnets.") != NULL;
        for (size_t k = 0; of_resnet && k < COUNT_OF(resnet); k++)
            rename_part(item, resnet[k][0], resnet[k][1]);
        for (size_t k = 0; k < COUNT_OF(parts); k++) rename_part(item, parts[k][0], parts[k][1]);
        snprintf(name, sizeof name, "%s", item->name);
        name_block(item, name);
    }
    return p;
}

/* ---- the layouts ---- */

static const struct layout_part parts[] = {
    {"unet", "v1-5.safetensors", offsetof(options, diffusion_model), original, NULL, NULL, "UNet (unet)",
     "transformer (zimage, flux or unet)", "for --diffusion-model"},
    {"text_encoder", "clip_l.safetensors", offsetof(options, clip_l), NULL, NULL, NULL,
     "CLIP text encoder (clip)", "CLIP-L text encoder (clip)", "for --clip_l"},
    {"vae", "vae.safetensors", offsetof(options, vae), layouts_vae_originally, NULL, NULL,
     "autoencoder (vae_kl)", "autoencoder (vae_kl)", "for --vae"},
};

#define KEYS                                                                                                 \
    { "unet", "text_encoder", "vae" }

static const struct all_in_one all_in_one[] = {
    {{"model.diffusion_model.", "cond_stage_model.transformer.", "first_stage_model."}, KEYS, {NULL}},
};

const struct layout_family layouts_of_unet = {parts, COUNT_OF(parts), all_in_one, COUNT_OF(all_in_one)};

/* An autoencoder alone, whose configuration does not say its scale, is taken for one of those whose latents
 * have as many channels. */
static void test_decoder_alone(void) {
    sluice_model *m = NULL;
    struct sluice_error e;
    options from = {.vae = under("bare_vae.safetensors")};
    struct sluice_model_options open = *model_options(&from);
    open.decodes_only = true;
    write_pile(layouts_part("vae"), from.vae, "{\"_class_name\": \"AutoencoderKL\", \"norm_num_groups\": 8}");
    if (!check(!sluice_model_open(&open, &m, &e), "%s (%s)", e.what, e.where)) return;
    const struct component *decoder = model_component(m, FAMILY_DECODER);
    check(decoder->latent_format.scale[0] == 0.18215f && decoder->latent_format.shift[0] == 0,
          "latents are scaled by %g and shifted by %g", (double)decoder->latent_format.scale[0],
          (double)decoder->latent_format.shift[0]);
    sluice_model_close(m);
}

static void (*const own[])(void) = {test_decoder_alone, NULL};

const struct layouts layouts_unet = {.family = &layouts_of_unet,
                                     .width = 56,
                                     .height = 72,
                                     .said = {"no config.json for the UNet", "metadata"},
                                     .everything = true,
                                     .own = own};
