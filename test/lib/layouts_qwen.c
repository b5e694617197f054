/* Layouts of Qwen-Image: Hugging Face's folder, ComfyUI's split files, and one file with everything in it.
 * The transformer's names are diffusers' wherever it is. */
#include "test/lib/layouts.h"

/* ---- the autoencoder as its authors name it, and ComfyUI ---- */

static void rename_resnet(struct item *t) {
    rename_part(t, ".norm1.", ".residual.0.");
    rename_part(t, ".conv1.", ".residual.2.");
    rename_part(t, ".norm2.", ".residual.3.");
    rename_part(t, ".conv2.", ".residual.6.");
    rename_part(t, ".conv_shortcut.", ".shortcut.");
}

/* A decoder's blocks in a row: a level's resnets, then what goes to the next. */
static void rename_level(struct item *t, int resnets) {
    char from[PILE_NAME], to[PILE_NAME];
    int level, number = resnets;
    if (sscanf(t->name, "decoder.up_blocks.%d.resnets.%d.", &level, &number) == 2)
        snprintf(from, sizeof from, "up_blocks.%d.resnets.%d.", level, number);
    else
        snprintf(from, sizeof from, "up_blocks.%d.upsamplers.0.", level);
    snprintf(to, sizeof to, "upsamples.%d.", level * (resnets + 1) + number);
    rename_part(t, from, to);
}

static struct pile *vae_originally(const struct pile *of) {
    static const char *const parts[][2] = {{".mid_block.resnets.0.", ".middle.0."},
                                           {".mid_block.attentions.0.", ".middle.1."},
                                           {".mid_block.resnets.1.", ".middle.2."},
                                           {"encoder.down_blocks.", "encoder.downsamples."},
                                           {"coder.conv_in.", "coder.conv1."},
                                           {"coder.norm_out.", "coder.head.0."},
                                           {"coder.conv_out.", "coder.head.2."},
                                           {"post_quant_conv.", "conv2."},
                                           {"quant_conv.", "conv1."}};
    struct pile *p = pile_copy(of, "");
    int resnets = 0, number;
    for (int i = 0; i < p->n; i++)
        if (sscanf(p->item[i].name, "decoder.up_blocks.0.resnets.%d.", &number) == 1 && number >= resnets)
            resnets = number + 1;
    for (int i = 0; i < p->n; i++) {
        rename_resnet(&p->item[i]);
        if (!strncmp(p->item[i].name, "decoder.up_blocks.", 18)) rename_level(&p->item[i], resnets);
        for (int k = 0; k < COUNT_OF(parts); k++) rename_part(&p->item[i], parts[k][0], parts[k][1]);
    }
    return p;
}

/* ---- parts ---- */

static const struct layout_part parts[] = {
    {"transformer", "qwen_image.safetensors", offsetof(options, diffusion_model), NULL, NULL, NULL,
     "transformer (qwen_image)", ASKED_TRANSFORMER, "for --diffusion-model"},
    {"text_encoder", "qwen_2.5_vl_7b.safetensors", offsetof(options, llm), NULL, NULL, NULL,
     "text encoder (qwen25vl)", ASKED_LLM, "for --llm"},
    {"vae", "qwen_image_vae.safetensors", offsetof(options, vae), vae_originally, NULL, NULL,
     "autoencoder (vae_wan)", ASKED_VAE, "for --vae"},
};

static const struct all_in_one all_in_one[] = {
    {{"model.diffusion_model.", "text_encoders.qwen25_7b.transformer.", "vae."},
     {"transformer", "text_encoder", "vae"},
     {"text_encoders.qwen25_7b.logit_scale"}},
};

const struct layout_family layouts_of_qwen = {parts, COUNT_OF(parts), all_in_one, COUNT_OF(all_in_one)};

/* ---- the autoencoder in other files ---- */

/* As files of four axes at most have kernels of five. */
static void test_merged_kernels(void) {
    struct pile *p = layouts_original("vae");
    for (int i = 0; i < p->n; i++) {
        struct item *t = &p->item[i];
        if (t->rank != 5) continue;
        t->rank = 4;
        t->dim[0] *= t->dim[1];
        memmove(t->dim + 1, t->dim + 2, 3 * sizeof *t->dim);
    }
    gives_the_same(layouts_with("vae", p), "kernels whose outer axes are one");
}

/* Published values are of 16 channels; this one has 5. */
static void test_unsaid_scale(void) {
    struct pile *p = layouts_original("vae");
    write_pile(p, under("unsaid.safetensors"), NULL);
    is_refused((options){.model = at_hand.folder, .vae = under("unsaid.safetensors")}, META,
               "a latent's scale that nothing says", WORDS("'latents_mean'", "0", "5"));
    pile_free(p);
}

/* ---- the row ---- */

static void (*const own[])(void) = {test_merged_kernels, test_unsaid_scale, NULL};

const struct layouts layouts_qwen = {.family = &layouts_of_qwen,
                                     .tokenizer = "/tokenizer",
                                     .width = 48,
                                     .height = 32,
                                     .said = {"metadata", "flow shift from e^0.5"},
                                     .both = "text_encoder",
                                     .one_file = true,
                                     .wrong_slots = true,
                                     .own = own};
