/* File layouts of WAN: the Hugging Face folder, ComfyUI's split files, one file with everything; checkpoint
 * names; two denoisers in two files, distinguished by name or by flag. */
#include "test/lib/layouts.h"

struct tensor_set *layouts_wan_to_checkpoint(const struct tensor_set *of) {
    static const char *const parts[][2] = {
        {"condition_embedder.text_embedder.linear_1.", "text_embedding.0."},
        {"condition_embedder.text_embedder.linear_2.", "text_embedding.2."},
        {"condition_embedder.time_embedder.linear_1.", "time_embedding.0."},
        {"condition_embedder.time_embedder.linear_2.", "time_embedding.2."},
        {"condition_embedder.time_proj.", "time_projection.1."},
        {"condition_embedder.image_embedder.norm1.", "img_emb.proj.0."},
        {"condition_embedder.image_embedder.ff.net.0.proj.", "img_emb.proj.1."},
        {"condition_embedder.image_embedder.ff.net.2.", "img_emb.proj.3."},
        {"condition_embedder.image_embedder.norm2.", "img_emb.proj.4."},
        {"condition_embedder.image_embedder.pos_embed", "img_emb.emb_pos"},
        {".add_k_proj.", ".k_img."},
        {".add_v_proj.", ".v_img."},
        {".norm_added_k.", ".norm_k_img."},
        {".proj_in.", ".before_proj."},
        {".proj_out.", ".after_proj."},
        {".attn1.to_out.0.", ".self_attn.o."},
        {".attn2.to_out.0.", ".cross_attn.o."},
        {".attn1.", ".self_attn."},
        {".attn2.", ".cross_attn."},
        {"_attn.to_", "_attn."},
        {".norm2.", ".norm3."},
        {".ffn.net.0.proj.", ".ffn.0."},
        {".ffn.net.2.", ".ffn.2."}};
    struct tensor_set *p = tensor_set_copy(of, "");
    for (int i = 0; i < p->n; i++) {
        struct item *t = &p->item[i];
        bool of_head = !strcmp(t->name, "scale_shift_table");
        if (!strncmp(t->name, "proj_out.", strlen("proj_out."))) rename_part(t, "proj_out.", "head.head.");
        rename_part(t, "scale_shift_table", of_head ? "head.modulation" : "modulation");
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) rename_part(t, parts[k][0], parts[k][1]);
    }
    return p;
}

static struct tensor_set *text_to_checkpoint(const struct tensor_set *of) {
    static const char *const names[][2] = {
        {"shared.", "token_embedding."},
        {"encoder.block.", "blocks."},
        {"encoder.final_layer_norm.", "norm."},
        {".layer.0.layer_norm.", ".norm1."},
        {".layer.1.layer_norm.", ".norm2."},
        {".layer.0.SelfAttention.relative_attention_bias.", ".pos_embedding.embedding."},
        {".layer.0.SelfAttention.", ".attn."},
        {".layer.1.DenseReluDense.wi_0.", ".ffn.gate.0."},
        {".layer.1.DenseReluDense.wi_1.", ".ffn.fc1."},
        {".layer.1.DenseReluDense.wo.", ".ffn.fc2."}};
    struct tensor_set *p = tensor_set_copy(of, "");
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < COUNT_OF(names); k++) rename_part(&p->item[i], names[k][0], names[k][1]);
    return p;
}

#define TEXT_PART                                                                                            \
    {                                                                                                        \
        "text_encoder", "umt5_xxl_fp16.safetensors", offsetof(options, t5xxl), text_to_checkpoint, NULL,     \
            NULL, "umT5 text encoder (umt5)", "T5 text encoder (t5 or umt5)", "for --t5xxl"                  \
    }
#define VAE_PART                                                                                             \
    {                                                                                                        \
        "vae", "wan_2.1_vae.safetensors", offsetof(options, vae), layouts_wan_vae_to_checkpoint, NULL, NULL, \
            "autoencoder (vae_wan)", EXPECTED_VAE, "for --vae"                                               \
    }

static const struct layout_part parts[] = {
    {"transformer", "wan2.1_t2v_1.3B_fp16.safetensors", offsetof(options, diffusion_model),
     layouts_wan_to_checkpoint, "model.diffusion_model.", "head.modulation", "transformer (wan)",
     EXPECTED_TRANSFORMER, "for --diffusion-model"},
    TEXT_PART,
    VAE_PART,
};

static const struct all_in_one all_in_one[] = {
    {{"model.diffusion_model.", "text_encoders.umt5xxl.transformer.", "vae."},
     {"transformer", "text_encoder", "vae"},
     {"text_encoders.umt5xxl.logit_scale"}},
};

const struct layout_family layouts_of_wan = {parts, COUNT_OF(parts), all_in_one, COUNT_OF(all_in_one)};

/* GGUF-like files of at most four axes merge the leading axes of five-axis kernels and drop axes of size 1.
 */
static void test_four_axes(void) {
    struct tensor_set *p = layouts_checkpoint_part("transformer");
    for (int i = 0; i < p->n; i++) {
        struct item *t = &p->item[i];
        if (t->rank == 3) {
            t->rank = 2;
            memmove(t->dim, t->dim + 1, 2 * sizeof *t->dim);
        }
        if (t->rank != 5) continue;
        t->rank = 4;
        t->dim[0] *= t->dim[1];
        memmove(t->dim + 1, t->dim + 2, 3 * sizeof *t->dim);
    }
    expect_same_result(layouts_replace_part("transformer", p), "tensors of four axes");
}

/* The checkpoint's configuration has the number of heads but no head size. */
static void test_authors_config(void) {
    struct tensor_set *p = layouts_checkpoint_part("transformer");
    json_t *config = json_loads(p->config, 0, NULL);
    json_object_set_new(config, "_class_name", json_string("WanModel"));
    json_object_set(config, "num_heads", json_object_get(config, "num_attention_heads"));
    json_object_del(config, "attention_head_dim");
    json_object_del(config, "num_attention_heads");
    free(p->config);
    p->config = json_dumps(config, 0);
    json_decref(config);
    expect_same_result(layouts_replace_part("transformer", p), "the authors' configuration");
}

static void test_folders(void) {
    static const char *const inner[] = {"comfy_wan", "comfy_wan/diffusion_models", "comfy_wan/text_encoders",
                                        "comfy_wan/vae"};
    for (size_t i = 0; i < COUNT_OF(inner); i++) mkdir(temporary_path(inner[i]), 0777);
    layouts_write_parts(WORDS("comfy_wan/diffusion_models/wan2.1_t2v_1.3B_fp16.safetensors",
                              "comfy_wan/text_encoders/umt5_xxl_fp16.safetensors",
                              "comfy_wan/vae/wan_2.1_vae.safetensors"),
                        true);
    options from = {.model = temporary_path("comfy_wan"), .tokenizer = current_model.tokenizer};
    expect_same_result(from, "ComfyUI's folders");
    expect_allocation_failures(from);
}

static void (*const extra_tests[])(void) = {test_folders, test_four_axes, test_authors_config, NULL};

const struct layouts layouts_wan = {.family = &layouts_of_wan,
                                    .tokenizer = "/tokenizer",
                                    .width = 48,
                                    .height = 32,
                                    .frames = 5,
                                    .flow_shift = 3,
                                    .warnings = {"metadata", "flow shift 5"},
                                    .one_file = true,
                                    .wrong_slots = true,
                                    .extra_tests = extra_tests};

static const struct layout_part experts[] = {
    {"transformer", "wan2.2_t2v_high_noise.safetensors", offsetof(options, high_noise),
     layouts_wan_to_checkpoint, NULL, NULL, "transformer (wan)", EXPECTED_TRANSFORMER,
     "for --high-noise-diffusion-model"},
    {"transformer_2", "wan2.2_t2v_low_noise.safetensors", offsetof(options, diffusion_model),
     layouts_wan_to_checkpoint, NULL, NULL, "transformer (wan)", EXPECTED_TRANSFORMER,
     "for --diffusion-model"},
    TEXT_PART,
    VAE_PART,
};
static const struct layout_family layouts_of_experts = {experts, COUNT_OF(experts), NULL, 0};

/* Two experts are assigned by their file names. */
static void test_expert_names(void) {
    static const char *const inner[] = {"comfy_wan22", "comfy_wan22/diffusion_models",
                                        "comfy_wan22/text_encoders", "comfy_wan22/vae"};
    for (size_t i = 0; i < COUNT_OF(inner); i++) mkdir(temporary_path(inner[i]), 0777);
    layouts_write_parts(WORDS("comfy_wan22/diffusion_models/wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors",
                              "comfy_wan22/diffusion_models/wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors",
                              "comfy_wan22/text_encoders/umt5_xxl_fp16.safetensors",
                              "comfy_wan22/vae/wan_2.1_vae.safetensors"),
                        true);
    expect_same_result(
        (options){.model = temporary_path("comfy_wan22"), .tokenizer = current_model.tokenizer},
        "two experts told apart by file name");
}

static void (*const own_of_experts[])(void) = {test_expert_names, NULL};

const struct layouts layouts_wan22 = {.family = &layouts_of_experts,
                                      .tokenizer = "/tokenizer",
                                      .width = 48,
                                      .height = 32,
                                      .frames = 5,
                                      .flow_shift = 3,
                                      .warnings = {"metadata", "flow shift"},
                                      .extra_tests = own_of_experts};
