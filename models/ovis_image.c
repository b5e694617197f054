/* Ovis-Image transformer (diffusers: OvisImageTransformer2DModel): Flux.1's blocks (flux_blocks.h) with
 * SiLU-gated feed-forwards, the hidden states of Ovis2.5's language model (Qwen3) as text, and no pooled row
 * or guidance.
 *
 * The text rows are normed before they are embedded. Rope positions: (0, i, i) for text token i, (0, y, x)
 * for the image. The conditioning depends on the timestep alone. Source: diffusers 0.42,
 * models/transformers/transformer_ovis_image.py; checkpoint names of the authors (Comfy-Org/Ovis-Image,
 * leejet/Ovis-Image-7B-GGUF): stable-diffusion.cpp, src/flux.hpp at 97d2990. */
#include "models/flux_blocks.h"

/* clang-format off */
#define CONTEXT(X, S)                                                                                        \
    X##WEIGHT(S, norm, (.rank = 1, .dim = {CAPTION}), "context_embedder_norm.weight", "txt_norm.scale")      \
    X##LINEAR(S, linear, DIM, CAPTION, "context_embedder", "txt_in")
struct context_weights { CONTEXT(FIELD_, ) };
WEIGHT_TABLE(ovis_image_context_table, CONTEXT, context_weights, "", "");

#define CONDITIONING(X, S)                                                                                   \
    X##LINEAR(S, time_in, DIM, FREQUENCIES, "timestep_embedder.linear_1", "time_in.in_layer")                \
    X##LINEAR(S, time_out, DIM, DIM, "timestep_embedder.linear_2", "time_in.out_layer")
WEIGHT_TABLE(ovis_image_conditioning_table, CONDITIONING, mmdit_time_text_embed_weights, "", "");

/* diffusers joins both first layers of a feed-forward: up, then gate. */
#define FEED_FORWARDS(X, S)                                                                                  \
    X##LINEAR(S, image.up, FEED_FORWARD, DIM, "ff.net.0.proj[0/2]", "img_mlp.up_proj")                       \
    X##LINEAR(S, image.gate, FEED_FORWARD, DIM, "ff.net.0.proj[1/2]", "img_mlp.gate_proj")                   \
    X##LINEAR(S, image.down, DIM, FEED_FORWARD, "ff.net.2", "img_mlp.down_proj")                             \
    X##LINEAR(S, text.up, FEED_FORWARD, DIM, "ff_context.net.0.proj[0/2]", "txt_mlp.up_proj")                \
    X##LINEAR(S, text.gate, FEED_FORWARD, DIM, "ff_context.net.0.proj[1/2]", "txt_mlp.gate_proj")            \
    X##LINEAR(S, text.down, DIM, FEED_FORWARD, "ff_context.net.2", "txt_mlp.down_proj")
#define DOUBLE_BLOCK(X, S) FLUX_DOUBLE_BLOCK(X, S, FEED_FORWARDS)
WEIGHT_TABLE(ovis_image_double_table, DOUBLE_BLOCK, mmdit_block_weights,
             "transformer_blocks.%d.", "double_blocks.%d.");

/* Row counts of the parts of linear1 in the authors' checkpoints: q, k, v, both first layers of the
 * feed-forward. diffusers' proj_mlp has two equal parts. */
static const int ovis_image_linear1_rows[] = {DIM, DIM, DIM, FEED_FORWARD, FEED_FORWARD};
#define OF_LINEAR1(S) WITH(S, .part_rows = ovis_image_linear1_rows)
#define SINGLE_FEED_FORWARD(X, S)                                                                            \
    X##LINEAR(S, up, FEED_FORWARD, DIM, "proj_mlp[0/2]", "linear1[3/5]")                                     \
    X##LINEAR(S, gate, FEED_FORWARD, DIM, "proj_mlp[1/2]", "linear1[4/5]")
#define SINGLE_BLOCK(X, S) FLUX_SINGLE_BLOCK(X, S, OF_LINEAR1(S), SINGLE_FEED_FORWARD, "/5]")
WEIGHT_TABLE(ovis_image_single_table, SINGLE_BLOCK, mmdit_single_weights,
             "single_transformer_blocks.%d.", "single_blocks.%d.");
/* clang-format on */

static void ovis_image_forward_context(struct context *x, const void *weights,
                                       const struct visit_scope *scope) {
    const struct context_weights *w = weights;
    const struct flux_state *state = scope->lane->state;
    struct tensor n = context_operand(x, 2, scope->lane->text.dim);
    flux_fill_rope(x, scope, 1 + mmdit_n_references(scope->lane));
    op_rms_norm(x, n, scope->lane->text, w->norm, mmdit_norm_eps, (struct modulation){0});
    mmdit_linear(x, state->text, n, &w->linear);
}

BLOCK(ovis_image_kind_context, "context", "context_embedder", ovis_image_context_table, context_weights,
      ovis_image_forward_context, .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK(ovis_image_kind_conditioning, "conditioning", "conditioning", ovis_image_conditioning_table,
      mmdit_time_text_embed_weights, flux_forward_conditioning, .update_rate = UPDATE_PER_TIMESTEP,
      .never_quantised = true);
BLOCK(ovis_image_kind_double, "double", "transformer_blocks.%d", ovis_image_double_table, mmdit_block_weights,
      flux_forward_double);
BLOCK(ovis_image_kind_single, "single", "single_transformer_blocks.%d", ovis_image_single_table,
      mmdit_single_weights, flux_forward_single);

static const struct flux_details ovis_image_details = {.context = &ovis_image_kind_context,
                                                       .conditioning = &ovis_image_kind_conditioning,
                                                       .double_block = &ovis_image_kind_double,
                                                       .single_block = &ovis_image_kind_single,
                                                       .modulations = &flux_modulations_of_timestep,
                                                       .positions.text_diagonal = true};

static bool ovis_image_probe(const struct tensor_index *index) {
    return flux_has_blocks(index) && (index_find(index, "context_embedder_norm.weight") ||
                                      index_find(index, "double_blocks.0.img_mlp.gate_proj.weight"));
}

static const char *const ovis_image_architectures[] = {"flux", NULL};
/* Sizes of the published Ovis-Image-7B, 7.4 B parameters. */
static const struct dimension ovis_image_dimensions[] = {
    FLUX_DIMENSIONS(6, 27, 2048),
    FLUX_TENSOR_DIMENSIONS,
    {.place = FEED_FORWARD,
     OF_TENSOR(2, 1, "transformer_blocks.0.ff.net.2.weight", "double_blocks.0.img_mlp.down_proj.weight")},
    {.place = FREQUENCIES, OF_TENSOR(2, 1, "timestep_embedder.linear_1.weight", "time_in.in_layer.weight")},
};
static const struct setting ovis_image_settings[] = {FLUX_AXES};

#define PREDICTED_BLOCK(name)                                                                                \
    { .kind = name, .alone = true, .tokens = 4352, .text_rows = 256, .text_columns = 2048, PREDICTED_IMAGE }

const struct family family_ovis_image = {
    FLUX_FAMILY(ovis_image, .configure = flux_configure, .derive = flux_derive),
    .name = "ovis_image",
    .details = &ovis_image_details,
    .files = {.architectures = ovis_image_architectures,
              .config_key = "_class_name",
              .config_value = "OvisImageTransformer2DModel",
              .probe = ovis_image_probe},
    .predicted = {PREDICTED_BLOCK("single"), PREDICTED_BLOCK("double")},
};

/* clang-format off */
static const struct hf_source ovis_image_files[] = {
    {"AIDC-AI/Ovis-Image-7B", NULL, NULL, 0},
    {"Comfy-Org/Ovis-Image", "--diffusion-model", "ovis_image_bf16.safetensors", 0},
    {"leejet/Ovis-Image-7B-GGUF", "--diffusion-model", "ovis_image-Q4_0.gguf", 0},
    {"Comfy-Org/Ovis-Image", "--llm", "ovis_2.5.safetensors", 0},
    {"black-forest-labs/FLUX.1-schnell", "--vae", "ae.safetensors", 335},
    {"madebyollin/taef1", "--taesd", TAE, 0},
    {0},
};
/* clang-format on */

/* Tokens of the template that precede the rows of prompt_embeds; rows of prompt_embeds. */
enum { OVIS_DROPPED = 28, OVIS_ROWS = 256 };

/* Ovis-Image: diffusers 0.42, pipelines/ovis_image. One user turn without thinking. The rows after the final
 * norm are padded with zeros to 256; the transformer reads them without a mask. The first 28 tokens of the
 * template are dropped, but not the 29th, a colon, as in diffusers. Sizes of Ovis2.5-2B's language model:
 * ComfyUI, comfy/text_encoders/llama.py, Ovis25_2BConfig; prefix of its files: AIDC-AI/Ovis-Image,
 * hf_embedder.py. */
const struct recipe recipe_ovis_image = {
    .name = "ovis_image",
    .slot = {{.family = &family_qwen3,
              .flag = "--llm",
              .folder = "text_encoder",
              .prefixes =
                  NAMES({"", "text_encoders.qwen3_2b.transformer.", "text_encoders.llm.", "llm.", NULL}),
              .text = {.template_before = "<|im_start|>user\nDescribe the image by detailing the color, "
                                          "quantity, text, shape, size, texture, spatial relationships of "
                                          "the objects and background: ",
                       .template_after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
                       .tokens_max = OVIS_DROPPED + OVIS_ROWS,
                       .drop_idx = OVIS_DROPPED,
                       .special_tokens = {"<|im_start|>", "<|im_end|>", "<think>", "</think>"},
                       .tokenizer = "BPE",
                       .tokenizer_folder = "tokenizer",
                       .tokenizer_from = "--tokenizer PATH: tokenizer/tokenizer.json of the model's Hugging "
                                         "Face folder, or tokenizer.json of Qwen/Qwen3-1.7B",
                       .classes = {"Qwen3Model", "Qwen2TokenizerFast"}},
              .dimension = {{"hidden", 2048}, {"text_heads", 16}, {"text_ff", 6144}, {"text_layers", 28}}},
             DENOISER(family_ovis_image),
             VAE_KL},
    .selection.pipelines = {"OvisImagePipeline"},
    .text = {.condition =
                 {{.slot = 0, .what = CONDITION_TOKENS, .hidden = {.layers = {-1}}, .padded_to = OVIS_ROWS}},
             .n_conditions = 1},
    .images.samples_posterior = true,
    .denoising = {.span = {{1, INFINITY}},
                  .guide = guidance_cfg,
                  .sampling = {.prediction = &prediction_flow,
                               .schedule = &schedule_flow,
                               .sampler = &sampler_euler,
                               .grid = {.grid_f64 = true}},
                  .shift_rule = FLOW_SHIFT_BY_TOKENS,
                  .shift_line = {.base_shift = 0.5,
                                 .max_shift = 1.15,
                                 .base_tokens = 256,
                                 .max_tokens = 4096}},
    .defaults = {.width = 1024, .height = 1024, .steps = 50, .cfg_scale = 5, .strength = 0.6},
    .patch = 2,
    .colours = &latent_colours_flux,
    .published = {.title = "Ovis-Image-7B", .reference = DIFFUSERS, .sources = {ovis_image_files}},
};
