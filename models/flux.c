/* Flux.1 transformer (diffusers: FluxTransformer2DModel); its blocks are in flux_blocks.h.
 *
 * The conditioning is one row: timestep, guidance scale (dev), and pooled prompt. Rope positions: (0, 0, 0)
 * for text, (0, y, x) for the image, (i, y, x) for reference i from 1 (Kontext). Fill reads more channels in
 * x_embedder: the latent of the masked image and the mask. Canny and Depth read the control image's latent
 * there. */
#include "models/flux_blocks.h"

/* Variants of the Flux.1 transformer: guidance-distilled (dev, Kontext), schnell, inpainting (Fill), control
 * image (Canny, Depth). */
enum { FLUX_GUIDED, FLUX_SCHNELL, FLUX_FILL, FLUX_CONTROL };

static const struct flux_details flux_details = {.context = &flux_kind_context,
                                                 .conditioning = &flux_kind_conditioning,
                                                 .double_block = &flux_kind_double,
                                                 .single_block = &flux_kind_single,
                                                 .modulations = &flux_modulations_of_prompt,
                                                 .fills = true};

static bool flux_probe(const struct tensor_index *index) {
    bool pooled = index_find(index, "time_text_embed.text_embedder.linear_1.weight") ||
                  index_find(index, "vector_in.in_layer.weight");
    /* Control networks have the same blocks and controlnet_blocks. */
    return flux_has_blocks(index) && pooled && !index_find(index, "controlnet_blocks.0.weight");
}

static enum status flux_guided_configure(struct component *c, const struct config *config, struct error *e) {
    bool guided = c->dims[GUIDED];
    config_bool(config, "guidance_embeds", &guided, e);
    c->dims[GUIDED] = guided;
    return e->code == OK ? flux_configure(c, config, e) : e->code;
}

static void flux_derive_variant(struct component *c) {
    flux_derive(c);
    c->variant = c->dims[FILL]      ? FLUX_FILL
                 : c->dims[CONTROL] ? FLUX_CONTROL
                 : c->dims[GUIDED]  ? FLUX_GUIDED
                                    : FLUX_SCHNELL;
}

static const char *const flux_architectures[] = {"flux", NULL};
/* Sizes of the published Flux.1 dev, 11.9 B parameters. */
static const struct dimension flux_dimensions[] = {
    FLUX_DIMENSIONS(19, 38, 4096),
    {"pooled", 768, 8, 65536, .place = POOLED,
     OF_TENSOR(2, 1, "time_text_embed.text_embedder.linear_1.weight", "vector_in.in_layer.weight"),
     .key = "pooled_projection_dim"},
    {"guidance", 1, 0, 1, .place = GUIDED,
     OF_TENSOR(0, 0, "time_text_embed.guidance_embedder.linear_1.weight", "guidance_in.in_layer.weight"),
     .key = "guidance_embeds", .form = FORM_BOOL},
    {"fill", 0, 0, 1, .place = FILL},
    {"control", 0, 0, 1, .place = CONTROL},
    FLUX_TENSOR_DIMENSIONS,
    FLUX_FEED_FORWARD,
    {.place = FREQUENCIES,
     OF_TENSOR(2, 1, "time_text_embed.timestep_embedder.linear_1.weight", "time_in.in_layer.weight")},
};
static const struct setting flux_settings[] = {FLUX_AXES};

const struct family family_flux = {
    FLUX_FAMILY(flux, .configure = flux_guided_configure, .derive = flux_derive_variant),
    .name = "flux",
    .details = &flux_details,
    .files = {.architectures = flux_architectures,
              .config_key = "_class_name",
              .config_value = "FluxTransformer2DModel",
              .probe = flux_probe},
    .predicted = {{.kind = "single",
                   .alone = true,
                   .tokens = 4608,
                   .text_rows = 512,
                   .text_columns = 4096,
                   PREDICTED_IMAGE},
                  {.kind = "double",
                   .alone = true,
                   .tokens = 4608,
                   .text_rows = 512,
                   .text_columns = 4096,
                   PREDICTED_IMAGE}},
};

/* clang-format off */
/* Preview colours of Flux.1's VAE, which Z-Image shares. Fitted by stable-diffusion.cpp
 * (src/runtime/latent-preview.h at 2e0f042). */
static const float colours_flux[][3] = {
    {-0.020584F, 0.0099585F, 0.0486265F}, {0.014048F, 0.013365F, 0.064788F},
    {0.032809F, -0.033975F, -0.0073255F}, {-0.006499F, -0.007381F, 0.0406255F},
    {0.0392835F, 0.029648F, -0.0123435F}, {-0.0079935F, -0.0018485F, 0.002506F},
    {0.0168025F, 0.0694995F, 0.0342585F}, {-0.012225F, -0.0317835F, -0.0150505F},
    {-0.020097F, -0.008355F, 0.0635925F}, {0.0563405F, 0.044382F, -0.02097F},
    {-0.011749F, 0.046832F, 0.0127715F}, {0.0414495F, 0.02416F, 0.0037455F},
    {0.037856F, 0.0370695F, 0.0409825F}, {-0.0717505F, 0.0091315F, -0.068069F},
    {-0.0128835F, -0.0410175F, -0.0200115F}, {-0.0559245F, -0.0277945F, -0.0161805F}};
const struct latent_colours latent_colours_flux = {
    16, colours_flux, {0.5123F, 0.4965315F, 0.4959555F}, 0.3611F};
/* clang-format on */

/* clang-format off */
static const struct hf_source flux_sources[] = {
    {"comfyanonymous/flux_text_encoders", "--clip_l", "clip_l.safetensors", 246},
    {"comfyanonymous/flux_text_encoders", "--t5xxl", "t5xxl_fp16.safetensors", 9790},
    {"comfyanonymous/flux_text_encoders", "--t5xxl", "t5xxl_fp8_e4m3fn.safetensors", 4890},
    {"city96/t5-v1_1-xxl-encoder-gguf", "--t5xxl", "t5-v1_1-xxl-encoder-Q8_0.gguf", 5060},
    {"black-forest-labs/FLUX.1-dev", "--vae", "ae.safetensors", 335},
    {"madebyollin/taef1", "--taesd", TAE, 0},
    {"black-forest-labs/FLUX.1-Redux-dev", "--redux", NULL, 0},
    {"black-forest-labs/FLUX.1-Redux-dev", "--redux", "flux1-redux-dev.safetensors", 129},
    {"Comfy-Org/sigclip_vision_384", "--clip_vision", "sigclip_vision_patch14_384.safetensors", 857},
    {0},
};
static const struct hf_source flux_files[] = {
    {"black-forest-labs/FLUX.1-dev", NULL, NULL, 0},
    {"Comfy-Org/flux1-dev", NULL, "flux1-dev-fp8.safetensors", 17200},
    {"black-forest-labs/FLUX.1-dev", "--diffusion-model", "flux1-dev.safetensors", 23800},
    {"city96/FLUX.1-dev-gguf", "--diffusion-model", "flux1-dev-Q4_K_S.gguf", 6810},
    {0},
};
static const struct hf_source flux_schnell_files[] = {
    {"black-forest-labs/FLUX.1-schnell", NULL, NULL, 0},
    {"Comfy-Org/flux1-schnell", NULL, "flux1-schnell-fp8.safetensors", 0},
    {"city96/FLUX.1-schnell-gguf", "--diffusion-model", "flux1-schnell-Q4_K_S.gguf", 0},
    {0},
};
static const struct hf_source flux_kontext_files[] = {
    {"black-forest-labs/FLUX.1-Kontext-dev", NULL, NULL, 0},
    {0},
};
static const struct hf_source flux_fill_files[] = {
    {"black-forest-labs/FLUX.1-Fill-dev", NULL, NULL, 0},
    {0},
};
static const struct hf_source flux_canny_files[] = {
    {"black-forest-labs/FLUX.1-Canny-dev", NULL, NULL, 0},
    {"black-forest-labs/FLUX.1-Canny-dev", "--diffusion-model", "flux1-canny-dev.safetensors", 23800},
    {0},
};
static const struct hf_source flux_depth_files[] = {
    {"black-forest-labs/FLUX.1-Depth-dev", NULL, NULL, 0},
    {"black-forest-labs/FLUX.1-Depth-dev", "--diffusion-model", "flux1-depth-dev.safetensors", 23800},
    {0},
};
/* clang-format on */

/* Redux: image embeddings, which follow T5's rows in prompt_embeds. Every pipeline of Flux.1 accepts them, as
 * in diffusers, where FluxPriorReduxPipeline returns prompt_embeds. */
enum { REDUX_SLOT = 7 }; /* index of family_redux in FLUX */
/* clang-format off */
#define REDUX                                                                                                \
    {.family = &family_siglip, .flag = "--clip_vision", .shares_file_with = "--redux", .optional = true,     \
     .extra = true, .folder = "image_encoder",                                                               \
     .prefixes = NAMES({"", "vision_model.", NULL})},                                                        \
    {.family = &family_redux, .flag = "--redux", .optional = true, .extra = true,                            \
     .folder = "image_embedder", .prefixes = NAMES({"", NULL}), .reads = "--clip_vision"}
/* clang-format on */

/* Flux.1: diffusers 0.42, pipelines/flux. CLIP and T5 read the raw prompt, padded to a fixed length without
 * an attention mask; CLIP reads 77 tokens. Defaults are those of each pipeline's __call__, except the steps
 * of schnell, Canny and Depth, and the guidance of Kontext, Canny and Depth (model cards) and the shifts
 * (published scheduler_config.json). */
/* clang-format off */
#define FLUX(t5_tokens, ...)                                                                                 \
    .slot = {TEXT_CLIP_L(0),                                                                                 \
             {.family = &family_t5, .flag = "--t5xxl", .folder = "text_encoder_2",                           \
              .prefixes = NAMES(T5XXL_PREFIXES),                                                             \
              TEXT_T5("_2", t5_tokens)},                                                                     \
             DENOISER(family_flux, __VA_ARGS__), VAE_KL, REDUX},                                             \
    .text = {.condition = {{.slot = 1, .what = CONDITION_TOKENS},                                            \
                           {.slot = 0, .what = CONDITION_POOLED},                                            \
                           {.slot = REDUX_SLOT, .what = CONDITION_TOKENS, .of_redux = true}},                \
             .n_conditions = 3},                                                                             \
    .images.samples_posterior = true,                                                                        \
    .denoising = {.span = {{2, INFINITY}}, .guide = guidance_cfg,                                            \
                  .sampling = {.prediction = &prediction_flow, .schedule = &schedule_flow,                   \
                               .sampler = &sampler_euler, .grid = {.grid_f64 = true}},                       \
                  .shift_line = {.base_shift = 0.5, .max_shift = 1.15,                                       \
                                 .base_tokens = 256, .max_tokens = 4096}},                                   \
    .defaults = {.width = 1024, .height = 1024, .cfg_scale = 1}, .patch = 2, .colours = &latent_colours_flux
/* clang-format on */

const struct recipe recipe_flux = {
    FLUX(512),
    .name = "flux",
    .selection.variant = FLUX_GUIDED,
    .selection.pipelines = {"FluxPipeline", "FluxImg2ImgPipeline"},
    .denoising.shift_rule = FLOW_SHIFT_BY_TOKENS,
    .images.references_max = 3,
    .images.references_if_unnamed = true,
    .defaults.steps = 28,
    .defaults.guidance = 3.5,
    .denoising.takes_guidance = true,
    .defaults.strength = 0.6,
    .published = {.title = "Flux.1 dev; Kontext as a single file",
                  .reference = DIFFUSERS,
                  .sources = {flux_files, flux_sources}},
};

const struct recipe recipe_flux_schnell = {
    FLUX(256, .dimension = {{"guidance", 0}}),
    .name = "flux_schnell",
    .selection.variant = FLUX_SCHNELL,
    .selection.pipelines = {"FluxPipeline", "FluxImg2ImgPipeline"},
    .denoising.shift_rule = FLOW_SHIFT_FIXED,
    .denoising.flow_shift = 1,
    .defaults.steps = 4,
    .defaults.strength = 0.6,
    .published = {.title = "Flux.1 schnell",
                  .reference = DIFFUSERS,
                  .sources = {flux_schnell_files, flux_sources}},
};

const struct recipe recipe_flux_kontext = {
    FLUX(512),
    .name = "flux_kontext",
    .selection.variant = FLUX_GUIDED,
    .selection.pipelines = {"FluxKontextPipeline"},
    .denoising.shift_rule = FLOW_SHIFT_BY_TOKENS,
    .images.references_max = 3,
    .defaults.steps = 28,
    .defaults.guidance = 2.5,
    .denoising.takes_guidance = true,
    .defaults.strength = 0.6,
    .published = {.title = "Flux.1 Kontext",
                  .reference = DIFFUSERS,
                  .sources = {flux_kontext_files, flux_sources}},
};

const struct recipe recipe_flux_fill = {
    FLUX(512, .dimension = {{"fill", 1}}),
    .name = "flux_fill",
    .selection.variant = FLUX_FILL,
    .selection.pipelines = {"FluxFillPipeline"},
    .denoising.shift_rule = FLOW_SHIFT_BY_TOKENS,
    .images.concat = CONCAT_FILL,
    .defaults.steps = 50,
    .defaults.guidance = 30,
    .denoising.takes_guidance = true,
    .defaults.strength = 1,
    .published = {.title = "Flux.1 Fill", .reference = DIFFUSERS, .sources = {flux_fill_files, flux_sources}},
};

/* Canny and Depth have the same tensors and pipeline. They differ in steps and guidance; the model's or
 * file's name selects the recipe. */
/* clang-format off */
#define FLUX_CONTROL_IMAGE                                                                                   \
    FLUX(512, .dimension = {{"control", 1}}),                                                                \
    .selection.variant = FLUX_CONTROL,                                                                       \
    .selection.pipelines = {"FluxControlPipeline", "FluxControlImg2ImgPipeline"},                            \
    .denoising.shift_rule = FLOW_SHIFT_BY_TOKENS,                                                            \
    .images.concat = CONCAT_CONTROL_IMAGE,                                                                   \
    .denoising.takes_guidance = true,                                                                        \
    .defaults.strength = 0.6
/* clang-format on */

const struct recipe recipe_flux_canny = {
    FLUX_CONTROL_IMAGE,
    .name = "flux_canny",
    .defaults.steps = 50,
    .defaults.guidance = 30,
    .published = {.title = "Flux.1 Canny",
                  .reference = DIFFUSERS,
                  .sources = {flux_canny_files, flux_sources}},
};

const struct recipe recipe_flux_depth = {
    FLUX_CONTROL_IMAGE,
    .name = "flux_depth",
    .selection.name_word = "depth",
    .defaults.steps = 30,
    .defaults.guidance = 10,
    .published = {.title = "Flux.1 Depth",
                  .parts_compared_in = &recipe_flux_canny,
                  .sources = {flux_depth_files, flux_sources}},
};
