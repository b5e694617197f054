/* File layouts of Stable Diffusion 3: the Hugging Face folder; the checkpoint with all encoders, with CLIP
 * only and with none, and a flag for each missing part; ComfyUI's files. Checkpoints fuse q, k and v, and
 * store shift and scale of some norms in exchanged order. */
#include "test/lib/layouts.h"

static void fuse(struct tensor_set *p, struct item *item) {
    static const char *const heads[][3] = {{".attn.to_q.", ".attn.to_k.", ".attn.to_v."},
                                           {".attn2.to_q.", ".attn2.to_k.", ".attn2.to_v."},
                                           {".add_q_proj.", ".add_k_proj.", ".add_v_proj."}};
    for (int i = 0; i < COUNT_OF(heads); i++) {
        if (!strstr(item->name, heads[i][0])) continue;
        join_named(p, item, heads[i][0], heads[i][1]);
        join_named(p, item, heads[i][0], heads[i][2]);
    }
}

/* Renames tensors from diffusers' to checkpoint names: inverse of diffusers 0.42, single_file_utils.py,
 * convert_sd3_transformer_checkpoint_to_diffusers. */
static void rename_sd3_to_checkpoint(struct item *item) {
    static const char *const names[][2] = {
        {"transformer_blocks.", "joint_blocks."},
        {".norm1.linear.", ".x_block.adaLN_modulation.1."},
        {".norm1_context.linear.", ".context_block.adaLN_modulation.1."},
        {".attn.norm_q.", ".x_block.attn.ln_q."},
        {".attn.norm_k.", ".x_block.attn.ln_k."},
        {".attn.norm_added_q.", ".context_block.attn.ln_q."},
        {".attn.norm_added_k.", ".context_block.attn.ln_k."},
        {".attn2.norm_q.", ".x_block.attn2.ln_q."},
        {".attn2.norm_k.", ".x_block.attn2.ln_k."},
        {".attn.to_q.", ".x_block.attn.qkv."},
        {".attn.add_q_proj.", ".context_block.attn.qkv."},
        {".attn2.to_q.", ".x_block.attn2.qkv."},
        {".attn.to_out.0.", ".x_block.attn.proj."},
        {".attn.to_add_out.", ".context_block.attn.proj."},
        {".attn2.to_out.0.", ".x_block.attn2.proj."},
        {".ff.net.0.proj.", ".x_block.mlp.fc1."},
        {".ff.net.2.", ".x_block.mlp.fc2."},
        {".ff_context.net.0.proj.", ".context_block.mlp.fc1."},
        {".ff_context.net.2.", ".context_block.mlp.fc2."},
        {"pos_embed.proj.", "x_embedder.proj."},
        {"pos_embed.pos_embed", "pos_embed"},
        {"time_text_embed.timestep_embedder.linear_1.", "t_embedder.mlp.0."},
        {"time_text_embed.timestep_embedder.linear_2.", "t_embedder.mlp.2."},
        {"time_text_embed.text_embedder.linear_1.", "y_embedder.mlp.0."},
        {"time_text_embed.text_embedder.linear_2.", "y_embedder.mlp.2."},
        {"norm_out.linear.", "final_layer.adaLN_modulation.1."},
        {"proj_out.", "final_layer.linear."}};
    for (int i = 0; i < COUNT_OF(names); i++) rename_part(item, names[i][0], names[i][1]);
}

/* True for the modulations that hold only shift and scale: the final norm and the last block's text norm. */
static bool has_two_parts(const struct item *item, int32_t columns) {
    bool norm = strstr(item->name, "norm_out.linear.") || strstr(item->name, ".norm1_context.linear.");
    return norm && item->dim[0] == 2 * columns;
}

static struct tensor_set *transformer_to_checkpoint(const struct tensor_set *of) {
    struct tensor_set *p = tensor_set_copy(of, "");
    int32_t columns = tensor_set_find(p, "context_embedder.bias")->dim[0];
    for (int i = 0; i < p->n; i++) {
        if (has_two_parts(&p->item[i], columns)) swap_halves(&p->item[i]);
        fuse(p, &p->item[i]);
    }
    for (int i = 0; i < p->n; i++) rename_sd3_to_checkpoint(&p->item[i]);
    tensor_set_drop(p, "-");
    return p;
}

#define TRANSFORMER(file)                                                                                    \
    {                                                                                                        \
        "transformer", file, offsetof(options, diffusion_model), transformer_to_checkpoint, NULL, NULL,      \
            "transformer (sd3)", EXPECTED_TRANSFORMER, "for --diffusion-model"                               \
    }
#define CLIP_L                                                                                               \
    {                                                                                                        \
        "text_encoder", "clip_l.safetensors", offsetof(options, clip_l), NULL, NULL, NULL,                   \
            "CLIP text encoder (clip)", "CLIP-L text encoder (clip)", "for --clip_l"                         \
    }
#define CLIP_G                                                                                               \
    {                                                                                                        \
        "text_encoder_2", "clip_g.safetensors", offsetof(options, clip_g), NULL, NULL, NULL,                 \
            "CLIP text encoder (clip)", "OpenCLIP-G text encoder (clip)", "for --clip_g"                     \
    }
#define T5                                                                                                   \
    {                                                                                                        \
        "text_encoder_3", "t5xxl.safetensors", offsetof(options, t5xxl), NULL, NULL, NULL,                   \
            "T5 text encoder (t5)", "T5 text encoder (t5 or umt5)", "for --t5xxl"                            \
    }
#define VAE                                                                                                  \
    {                                                                                                        \
        "vae", "sd3_vae.safetensors", offsetof(options, vae), layouts_vae_to_checkpoint, NULL, NULL,         \
            "autoencoder (vae_kl)", EXPECTED_VAE, "for --vae"                                                \
    }

static const struct layout_part parts[] = {TRANSFORMER("sd3_medium.safetensors"), CLIP_L, CLIP_G, T5, VAE};
static const struct layout_part parts_without_t5[] = {TRANSFORMER("sd3.5_medium.safetensors"), CLIP_L, CLIP_G,
                                                      VAE};

/* Tensors without a use that ComfyUI's files contain for the text encoders. */
static const struct all_in_one all_in_one[] = {
    {{"model.diffusion_model.", "text_encoders.clip_l.transformer.", "text_encoders.clip_g.transformer.",
      "text_encoders.t5xxl.transformer.", "first_stage_model."},
     {"transformer", "text_encoder", "text_encoder_2", "text_encoder_3", "vae"},
     {"text_encoders.clip_l.logit_scale", "text_encoders.clip_g.logit_scale",
      "text_encoders.t5xxl.logit_scale"}}};
static const struct all_in_one without_t5[] = {
    {{"model.diffusion_model.", "text_encoders.clip_l.transformer.", "text_encoders.clip_g.transformer.",
      "first_stage_model."},
     {"transformer", "text_encoder", "text_encoder_2", "vae"},
     {"text_encoders.clip_l.logit_scale", "text_encoders.clip_g.logit_scale"}}};

const struct layout_family layouts_of_sd3 = {parts, COUNT_OF(parts), all_in_one, COUNT_OF(all_in_one)};
const struct layout_family layouts_of_sd35 = {parts_without_t5, COUNT_OF(parts_without_t5), without_t5,
                                              COUNT_OF(without_t5)};

/* Tests one file with diffusers' tensor names, and each name prefix of published files. */
static void test_names(void) {
    static const char *const prefixes[] = {"model.diffusion_model.", "diffusion_model."};
    struct tensor_set *transformer = layouts_part("transformer"),
                      *original = layouts_checkpoint_part("transformer");
    options from = layouts_part_files();
    from.diffusion_model = temporary_path("again.safetensors");
    write_tensor_set(transformer, from.diffusion_model, transformer->config);
    expect_same_result(from, "diffusers' names in one file");
    for (int i = 0; i < COUNT_OF(prefixes); i++) {
        struct tensor_set *p = tensor_set_copy(original, prefixes[i]);
        write_tensor_set(p, from.diffusion_model, original->config);
        expect_same_result(from, prefixes[i]);
        tensor_set_free(p);
    }
    tensor_set_free(original);
}

/* Tests a position table with two axes instead of three, as in GGUF files. */
static void test_flat_positions(void) {
    struct tensor_set *p = layouts_checkpoint_part("transformer");
    struct item *positions = tensor_set_find(p, "pos_embed");
    options from = layouts_part_files();
    check(positions && positions->rank == 3 && positions->dim[0] == 1, "the table of positions");
    positions->rank = 2;
    memmove(positions->dim, positions->dim + 1, 2 * sizeof *positions->dim);
    from.diffusion_model = temporary_path("again.safetensors");
    write_tensor_set(p, from.diffusion_model, p->config);
    expect_same_result(from, "positions of two axes");
    tensor_set_free(p);
}

/* Tests the checkpoint without encoders: transformer and VAE in one file, encoders by flags. */
static void test_no_encoders(void) {
    struct tensor_set *vae = layouts_checkpoint_part("vae"),
                      *transformer = layouts_checkpoint_part("transformer");
    char config[8 * TENSOR_SET_PATH];
    options from = layouts_part_files();
    struct tensor_set *all = tensor_set_copy(vae, "first_stage_model.");
    tensor_set_append(all, transformer, "model.diffusion_model.");
    snprintf(config, sizeof config, "{\"transformer\": %s, \"vae\": %s}", transformer->config, vae->config);
    write_tensor_set(all, temporary_path("alone.safetensors"), config);
    from.diffusion_model = from.vae = NULL;
    from.model = temporary_path("alone.safetensors");
    expect_same_result(from, "encoders by flags beside one file");
    tensor_set_free(transformer);
    tensor_set_free(vae);
    tensor_set_free(all);
}

static void (*const extra_tests[])(void) = {test_names, test_flat_positions, test_no_encoders, NULL};
static void (*const own_sd35[])(void) = {test_names, NULL};

#define LIKE_ALL .width = 48, .height = 32, .warnings = {"metadata", "metadata"}, .one_file = true

const struct layouts layouts_sd3 = {.family = &layouts_of_sd3, LIKE_ALL, .extra_tests = extra_tests};
const struct layouts layouts_sd35 = {
    .family = &layouts_of_sd35, LIKE_ALL, .folder_warning = "no T5 text encoder", .extra_tests = own_sd35};
