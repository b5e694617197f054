/* LongCat-Image transformer (diffusers: LongCatImageTransformer2DModel): Flux.1's blocks (flux_blocks.h),
 * without pooled row and guidance scale. The text is the last hidden state of Qwen2.5-VL.
 *
 * The conditioning depends on the timestep alone. Rope positions, with N text tokens: (0, i, i) for text
 * token i, (1, N + y, N + x) for the image, (2, N + y, N + x) for the reference (Edit). Source: diffusers
 * 0.42, models/transformers/transformer_longcat_image.py; checkpoint names: stable-diffusion.cpp,
 * src/flux.hpp at 97d2990. */
#include "models/flux_blocks.h"

/* clang-format off */
#define CONDITIONING(X, S)                                                                                   \
    X##LINEAR(S, time_in, DIM, FREQUENCIES, "linear_1", "in_layer")                                          \
    X##LINEAR(S, time_out, DIM, DIM, "linear_2", "out_layer")
WEIGHT_TABLE(longcat_image_conditioning_table, CONDITIONING, mmdit_time_text_embed_weights,
             "time_embed.timestep_embedder.", "time_in.");
/* clang-format on */

BLOCK(longcat_image_kind_conditioning, "conditioning", "conditioning", longcat_image_conditioning_table,
      mmdit_time_text_embed_weights, flux_forward_conditioning, .update_rate = UPDATE_PER_TIMESTEP,
      .never_quantised = true);

static const struct flux_details longcat_image_details = {
    .context = &flux_kind_context,
    .conditioning = &longcat_image_kind_conditioning,
    .double_block = &flux_kind_double,
    .single_block = &flux_kind_single,
    .modulations = &flux_modulations_of_timestep,
    .positions = {.text_diagonal = true, .after_text = true, .first_image = 1}};

/* The authors' names distinguish the relatives: Flux.1 also has vector_in, Ovis-Image has other
 * feed-forwards, and Flux.2's blocks have no modulation. */
static bool longcat_image_probe(const struct tensor_index *index) {
    return flux_has_blocks(index) && (index_find(index, "time_embed.timestep_embedder.linear_1.weight") ||
                                      (index_find(index, "time_in.in_layer.weight") &&
                                       index_find(index, "double_blocks.0.img_mod.lin.weight") &&
                                       index_find(index, "double_blocks.0.img_mlp.0.weight") &&
                                       !index_find(index, "vector_in.in_layer.weight")));
}

static const char *const longcat_image_architectures[] = {"flux", NULL};
/* Sizes of the published LongCat-Image, 6.3 B parameters: Tenstorrent's tt-forge-models, longcat_image. */
static const struct dimension longcat_image_dimensions[] = {
    FLUX_DIMENSIONS(10, 20, 3584),
    FLUX_TENSOR_DIMENSIONS,
    FLUX_FEED_FORWARD,
    {.place = FREQUENCIES,
     OF_TENSOR(2, 1, "time_embed.timestep_embedder.linear_1.weight", "time_in.in_layer.weight")},
};
static const struct setting longcat_image_settings[] = {FLUX_AXES};

#define PREDICTED_BLOCK(name)                                                                                \
    { .kind = name, .alone = true, .tokens = 4608, .text_rows = 512, .text_columns = 3584, PREDICTED_IMAGE }

const struct family family_longcat_image = {
    FLUX_FAMILY(longcat_image, .configure = flux_configure, .derive = flux_derive),
    .name = "longcat_image",
    .details = &longcat_image_details,
    .files = {.architectures = longcat_image_architectures,
              .config_key = "_class_name",
              .config_value = "LongCatImageTransformer2DModel",
              .probe = longcat_image_probe},
    .predicted = {PREDICTED_BLOCK("single"), PREDICTED_BLOCK("double")},
};

/* clang-format off */
static const struct hf_source longcat_image_sources[] = {
    {"Comfy-Org/Qwen-Image_ComfyUI", "--llm", "qwen_2.5_vl_7b*.safetensors", 0},
    {"unsloth/Qwen2.5-VL-7B-Instruct-GGUF", "--llm", "Qwen2.5-VL-7B-Instruct-Q4_K_M.gguf", 0},
    {"unsloth/Qwen2.5-VL-7B-Instruct-GGUF", "--llm_vision", "mmproj-F16.gguf", 0},
    {"black-forest-labs/FLUX.1-dev", "--vae", "ae.safetensors", 335},
    {"madebyollin/taef1", "--taesd", TAE, 0},
    {0},
};
static const struct hf_source longcat_image_files[] = {
    {"meituan-longcat/LongCat-Image", NULL, NULL, 0},
    {"meituan-longcat/LongCat-Image-Dev", NULL, NULL, 0},
    {"Comfy-Org/LongCat-Image", "--diffusion-model", "longcat_image_bf16.safetensors", 0},
    {"vantagewithai/LongCat-Image-GGUF", "--diffusion-model", "comfy/LongCat-Image-Q4_0.gguf", 3590},
    {0},
};
static const struct hf_source longcat_image_edit_files[] = {
    {"meituan-longcat/LongCat-Image-Edit", NULL, NULL, 0},
    {"Comfy-Org/LongCat-Image", "--diffusion-model", "longcat_image_edit_bf16.safetensors", 0},
    {"vantagewithai/LongCat-Image-Edit-GGUF", "--diffusion-model", "LongCat-Image-Edit-Q4_K_M.gguf", 3870},
    {0},
};
/* clang-format on */

/* LongCat-Image: diffusers 0.42, pipelines/longcat_image, without enable_prompt_rewrite. The transformer
 * reads 512 rows of prompt and padding without a mask; the language model's attention masks the padding.
 * Edit's transformer also reads the rows of the image and of the tokens directly before and after it. The
 * pipelines end the template with "<|im_end|>\n<|im_start|>assistant\n". These tokens are omitted here:
 * attention is causal, and they follow all rows that are read. Edit does not limit the norm of guided tokens.
 */
enum { LONGCAT_DROPPED = 36, LONGCAT_ROWS = 512 };

/* clang-format off */
#define TEXT_LONGCAT(...)                                                                                    \
    TEXT_QWEN25VL(.template_before = "<|im_start|>system\nAs an image captioning expert, generate a "        \
                                     "descriptive text prompt based on an image content, suitable for "      \
                                     "input to a text-to-image model.<|im_end|>\n<|im_start|>user\n",        \
                  .pad = "<|endoftext|>", .masks_padding = true, .template_apart = true,                     \
                  .quotes_by_character = true, .tokens_max = LONGCAT_DROPPED + LONGCAT_ROWS,                 \
                  .drop_idx = LONGCAT_DROPPED, __VA_ARGS__)
#define LONGCAT_IMAGE(text_slot)                                                                             \
    .slot = {VISION_QWEN25VL, text_slot, DENOISER(family_longcat_image), VAE_KL},                            \
    .text = {.condition = {{.slot = 1, .what = CONDITION_TOKENS}}, .n_conditions = 1,                        \
             .processor = {"Qwen2_5_VLProcessor", "text_processor", true}},                                  \
    .denoising = {.span = {{2, INFINITY}},                                                                   \
                  .sampling = {.prediction = &prediction_flow, .schedule = &schedule_flow,                   \
                               .sampler = &sampler_euler, .grid = {.grid_f64 = true}},                       \
                  .shift_rule = FLOW_SHIFT_BY_TOKENS,                                                        \
                  .shift_line = {.base_shift = 0.5, .max_shift = 1.15,                                       \
                                 .base_tokens = 256, .max_tokens = 4096}},                                   \
    .defaults = {.width = 1024, .height = 1024, .steps = 50, .cfg_scale = 4.5, .strength = 0.6},             \
    .patch = 2, .colours = &latent_colours_flux
/* clang-format on */

const struct recipe recipe_longcat_image = {
    LONGCAT_IMAGE(TEXT_LONGCAT()),
    .name = "longcat_image",
    .selection.pipelines = {"LongCatImagePipeline"},
    .denoising.guide = guidance_cfg_limit_norm,
    .published = {.title = "LongCat-Image",
                  .reference = DIFFUSERS,
                  .sources = {longcat_image_files, longcat_image_sources}},
};

const struct recipe recipe_longcat_image_edit = {
    LONGCAT_IMAGE(
        TEXT_LONGCAT(.image_prompt =
                         {.template_before =
                              "<|im_start|>system\nAs an image editing expert, first analyze the content and "
                              "attributes of the input image(s). Then, based on the user's editing "
                              "instructions, clearly and precisely determine how to modify the given "
                              "image(s), ensuring that only the specified parts are altered and all other "
                              "aspects remain consistent with the original(s).<|im_end|>\n<|im_start|>user\n",
                          .before = "<|vision_start|>",
                          .after = "<|vision_end|>",
                          .pad = "<|image_pad|>"})),
    .name = "longcat_image_edit",
    .selection.edit = "longcat",
    .selection.name_word = "edit",
    .selection.pipelines = {"LongCatImageEditPipeline"},
    .denoising.guide = guidance_cfg,
    .images.references_min = 1,
    .images.references_max = 1,
    .images.areas = {.output = 1024 * 1024,
                     .multiple = 16,
                     .rounds_up = true,
                     .vae_of_output = true,
                     .vision_divisor = 2},
    .published = {.title = "LongCat-Image-Edit",
                  .reference = DIFFUSERS,
                  .sources = {longcat_image_edit_files, longcat_image_sources}},
};
