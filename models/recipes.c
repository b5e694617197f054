/* The recipes: components, conditioning, sampling and defaults of each pipeline (struct recipe, models.h). */
#include "models/models.h"

#include <math.h>

static const char *const denoiser_prefixes[] = {"", "model.diffusion_model.", "diffusion_model.", NULL};
static const char *const vae_prefixes[] = {"", "first_stage_model.", "vae.", NULL};
static const char *const tiny_prefixes[] = {"", "taesd_decoder.", "decoder.", "tae.", "tae.decoder.", NULL};
static const char *const qwen3_prefixes[] = {"", "text_encoders.qwen3_4b.transformer.", "text_encoders.llm.",
                                             NULL};
static const char *const clip_l_prefixes[] = {
    "",        "text_encoders.clip_l.transformer.", "text_encoders.clip_l.",
    "clip_l.", "cond_stage_model.transformer.",     "conditioner.embedders.0.transformer.",
    NULL};
static const char *const t5xxl_prefixes[] = {"", "text_encoders.t5xxl.transformer.", "text_encoders.t5xxl.",
                                             "t5xxl.", NULL};

/* Published schedulers (scheduler_config.json): PNDM for Stable Diffusion 1, DDIM for 2, Euler for XL. */
/* clang-format off */
#define SAMPLING_STABLE_DIFFUSION(schedule_, sampler_, levels)                                                \
    .prediction = &prediction_eps, .schedule = &(schedule_), .sampler = &(sampler_),                          \
    .grid = {.spacing = SPACING_LEADING, .steps_offset = 1, .original_steps = 50, .ays_sigmas = (levels)},    \
    .noise = NOISE_STABLE_DIFFUSION
#define SAMPLING_SD1                                                                                          \
    {SAMPLING_STABLE_DIFFUSION(schedule_diffusers_ddim, sampler_pndm, ays_sigmas_sd1),                        \
     .fixes_legacy_config = true}
#define SAMPLING_SD2                                                                                          \
    {SAMPLING_STABLE_DIFFUSION(schedule_diffusers_ddim, sampler_ddim, NULL), .fixes_legacy_config = true}
#define SAMPLING_SDXL {SAMPLING_STABLE_DIFFUSION(schedule_diffusers_euler, sampler_euler, ays_sigmas_sdxl)}
#define SAMPLING_LCM  {SAMPLING_STABLE_DIFFUSION(schedule_diffusers_lcm, sampler_lcm, NULL)}
/* WAN's scheduler is UniPC (diffusers 0.42, pipelines/wan). */
#define SAMPLING_WAN                                                                                          \
    {.prediction = &prediction_flow_timestep, .schedule = &schedule_flow_unipc, .sampler = &sampler_unipc,    \
     .grid = {.grid_f64 = true}, .grid_from_class = true}

#define DENOISER(of, ...)                                                                                     \
    {.family = &(of), .flag = "--diffusion-model", .folder = "transformer", .prefixes = denoiser_prefixes,    \
     __VA_ARGS__}
#define TINY_DECODER(of, ...)                                                                                 \
    {.family = &(of), .flag = "--taesd", .folder = "taesd", .prefixes = tiny_prefixes, .optional = true,      \
     __VA_ARGS__}
#define VAE_KL                                                                                                \
    {.family = &family_vae_kl, .flag = "--vae", .folder = "vae", .prefixes = vae_prefixes},                   \
    {.family = &family_vae_kl_encoder, .folder = "vae"},                                                      \
    TINY_DECODER(family_taesd, .weights_name = "taef1")
#define VAE_WAN                                                                                               \
    {.family = &family_vae_wan, .flag = "--vae", .folder = "vae", .prefixes = vae_prefixes},                  \
    {.family = &family_vae_wan_encoder, .folder = "vae"},                                                     \
    TINY_DECODER(family_taehv, .weights_name = "taew2_1")
#define VAE_WAN22                                                                                             \
    {.family = &family_vae_wan22, .flag = "--vae", .folder = "vae", .prefixes = vae_prefixes},                \
    {.family = &family_vae_wan22_encoder, .folder = "vae"},                                                   \
    TINY_DECODER(family_taehv, .weights_name = "taew2_2",                                                     \
                 .dimension = {{"latent_channels", 48}, {"taehv_patch", 2}})

/* Qwen-Image: diffusers 0.42, pipelines/qwenimage. Language model and vision encoder of Qwen2.5-VL are in
 * one folder, or in one file of ComfyUI; llama.cpp has the vision encoder in a separate file (mmproj).
 * diffusers tokenises up to 1,058 tokens and drops the template's 34 tokens; the denoiser reads at most 512
 * rows, so 546 tokens suffice, because attention is causal. Further arguments are initialisers of
 * text_recipe. */
#define VISION_QWEN25VL                                                                                       \
    {.family = &family_qwen25vl_vision, .flag = "--llm_vision", .shares_file_with = "--llm",                  \
     .optional = true,                                                                                        \
     .folder = "text_encoder", .prefix = "visual.",                                                           \
     .prefixes = (const char *const[]){"", "visual.", "model.visual.",                                        \
                                       "text_encoders.qwen25_7b.transformer.visual.",                         \
                                       "text_encoders.llm.visual.", NULL}}
#define TEXT_QWEN25VL(...)                                                                                    \
    {.family = &family_qwen25vl, .flag = "--llm", .folder = "text_encoder",                                   \
     .prefixes = (const char *const[]){"", "model.language_model.", "language_model.",                        \
                                       "text_encoders.qwen25_7b.transformer.", "text_encoders.llm.", NULL},   \
     .text = {.template_before = "<|im_start|>system\nDescribe the image by detailing the color, shape, size, "\
                                 "texture, quantity, text, spatial relationships of the objects and "         \
                                 "background:<|im_end|>\n<|im_start|>user\n",                                 \
              .template_after = "<|im_end|>\n<|im_start|>assistant\n",                                        \
              .tokens_max = 34 + 512, .drop_idx = 34, .tokenizer = "BPE", .tokenizer_folder = "tokenizer",    \
              .special_tokens = {"<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"},         \
              .tokenizer_from = "--tokenizer PATH: the model's Hugging Face folder, or tokenizer.json of "    \
                                "Qwen/Qwen2.5-VL-7B-Instruct",                                                \
              .classes = {"Qwen2_5_VLForConditionalGeneration", "Qwen2Tokenizer"}, __VA_ARGS__}}

/* Template of prompts with reference images. number: format of the label before each image; "": no label. */
#define IMAGE_PROMPT(number)                                                                                  \
    .image_prompt = {.template_before =                                                                       \
                     "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, " \
                     "texture, objects, background), then explain how the user's text instruction should "    \
                     "alter or modify the image. Generate a new image that meets the user's requirements "    \
                     "while maintaining consistency with the original input where appropriate.<|im_end|>\n"   \
                     "<|im_start|>user\n",                                                                    \
                 .drop_idx = 64, .before = number "<|vision_start|>", .after = "<|vision_end|>",              \
                 .pad = "<|image_pad|>"}
/* clang-format on */

/* Z-Image. Template and limits: diffusers 0.42, pipelines/z_image (Qwen3's chat template with thinking
 * enabled adds no think block). Sizes, steps and guidance are those of Z-Image-Turbo, which is distilled.
 * Strength: pipeline_z_image_img2img.py. */
const struct recipe recipe_zimage = {
    .name = "zimage",
    .slot = {{.family = &family_qwen3,
              .flag = "--llm",
              .folder = "text_encoder",
              .prefixes = qwen3_prefixes,
              .text = {.template_before = "<|im_start|>user\n",
                       .template_after = "<|im_end|>\n<|im_start|>assistant\n",
                       .tokens_max = 512,
                       .special_tokens = {"<|im_start|>", "<|im_end|>"},
                       .tokenizer = "BPE",
                       .tokenizer_folder = "tokenizer",
                       .tokenizer_from = "--tokenizer PATH: tokenizer/tokenizer.json of the model's Hugging "
                                         "Face folder, or tokenizer.json of Qwen/Qwen3-4B",
                       .classes = {"Qwen3Model", "Qwen2Tokenizer"}}},
             DENOISER(family_zimage),
             VAE_KL},
    .condition = {{.slot = 0, .what = CONDITION_TOKENS, .hidden_state_from_end = 1}},
    .n_conditions = 1,
    .span = {{1, INFINITY}},
    .pipelines = {"ZImagePipeline", "ZImageImg2ImgPipeline"},
    .patch = 2,
    .shift_rule = FLOW_SHIFT_FIXED,
    .flow_shift = 3.0,
    .sampling = {.prediction = &prediction_flow_inverted,
                 .schedule = &schedule_flow,
                 .sampler = &sampler_euler},
    .guide = guidance_cfg,
    .samples_posterior = true,
    .colours = &latent_colours_flux,
    .width = 1024,
    .height = 1024,
    .steps = 8,
    .cfg_scale = 1,
    .strength = 0.6,
};

/* CLIP text encoders. Prefixes are those of transformers, ComfyUI and the authors' files;
 * stable-diffusion.cpp renames the authors' prefix to "cond_stage_model.transformer." and, for a second
 * encoder, "cond_stage_model.1.transformer.".
 *
 * CLIP has 77 positions. OpenCLIP pads with id 0, OpenAI's CLIP with the end token. windows: maximum number
 * of 77-token windows of a long prompt; 0: the prompt is truncated. */
enum { CLIP_TOKENS = 77, CLIP_WINDOWS_MAX = 64 };
static const struct published_setting erf_gelu[] = {{"hidden_act", 1}, {0}};
/* clang-format off */
#define TEXT_CLIP(folder_number, windows, source, ...)                                                        \
    .text = {.bos = "<|startoftext|>", .eos = "<|endoftext|>",                                                \
             .tokens_max = CLIP_TOKENS, .windows_max = windows, .tokenizer = "CLIP BPE",                      \
             .tokenizer_folder = "tokenizer" folder_number,                                                   \
             .tokenizer_from = "--tokenizer PATH: the model's Hugging Face folder, or the tokenizer of "      \
                               source,                                                                        \
             .classes = {__VA_ARGS__}}
#define TEXT_CLIP_L(windows)                                                                                  \
    {.family = &family_clip, .flag = "--clip_l", .display_name = "CLIP-L text encoder",                       \
     .folder = "text_encoder", .prefixes = clip_l_prefixes,                                                   \
     .matches = clip_is_l,                                                                                    \
     TEXT_CLIP("", windows, "openai/clip-vit-large-patch14", "CLIPTextModel", "CLIPTokenizer"),               \
     .text.pad = "<|endoftext|>"}
/* OpenCLIP-H with the dimensions of diffusers' files, which have the first 23 of its 24 layers. */
#define TEXT_CLIP_H                                                                                           \
    {.family = &family_clip, .flag = "--clip_h", .display_name = "OpenCLIP-H text encoder",                   \
     .folder = "text_encoder",                                                                                \
     .prefixes = (const char *const[]){"", "text_encoders.clip_h.transformer.", "text_encoders.clip_h.",      \
                                       "clip_h.", "cond_stage_model.model.", "cond_stage_model.transformer.", \
                                       "conditioner.embedders.0.model.", NULL},                               \
     .matches = clip_is_h,                                                                                    \
     .dimension = {{"pooled", 1024}, {"clip_heads", 16}, {"clip_ff", 4096}, {"clip_layers", 23}},             \
     .published = erf_gelu,                                                                                   \
     TEXT_CLIP("", CLIP_WINDOWS_MAX, "stabilityai/stable-diffusion-2-1", "CLIPTextModel", "CLIPTokenizer"),   \
     .text.pad_with_id_0 = true}
#define TEXT_CLIP_G(windows)                                                                                  \
    .family = &family_clip, .flag = "--clip_g", .display_name = "OpenCLIP-G text encoder",                    \
     .folder = "text_encoder_2",                                                                              \
     .prefixes = (const char *const[]){"", "text_encoders.clip_g.transformer.", "text_encoders.clip_g.",      \
                                       "clip_g.", "conditioner.embedders.1.model.",                           \
                                       "cond_stage_model.1.transformer.",                                     \
                                       "conditioner.embedders.0.model.", NULL},                               \
     .matches = clip_is_g,                                                                                    \
     .dimension = {{"pooled", 1280}, {"clip_heads", 20}, {"clip_ff", 5120}, {"clip_layers", 32},              \
                   {"clip_projection", 1280}},                                                                \
     .published = erf_gelu,                                                                                   \
     TEXT_CLIP("_2", windows, "laion/CLIP-ViT-bigG-14-laion2B-39B-b160k",                                     \
               "CLIPTextModelWithProjection", "CLIPTokenizer"),                                               \
     .text.pad_with_id_0 = true

#define VISION_CLIP                                                                                           \
    {.family = &family_clip_vision, .flag = "--clip_vision", .optional = true, .folder = "image_encoder",     \
     .class = "CLIPVisionModel",                                                                              \
     .prefixes = (const char *const[]){"", "vision_model.", "visual.", "clip_vision.vision_model.", NULL}}
#define CLIP_PROCESSOR {"CLIPImageProcessor", "image_processor", false}

/* Text encoder of WAN: diffusers 0.42, pipelines/wan. The encoder reads the prompt without padding; the
 * denoiser reads 512 rows, padded with zeros (condition.padded_to). stable-diffusion.cpp has the same flag
 * for Flux.1's T5. */
#define TEXT_UMT5                                                                                             \
    {.family = &family_umt5, .flag = "--t5xxl", .folder = "text_encoder",                                     \
     .prefixes = (const char *const[]){"", "text_encoders.umt5xxl.transformer.", "text_encoders.umt5xxl.",    \
                                       "umt5xxl.", "text_encoders.t5xxl.transformer.",                        \
                                       "text_encoders.t5xxl.", "t5xxl.", NULL},                               \
     .text = {.clean_html = true, .eos = "</s>", .tokens_max = 512,                                           \
              .tokenizer = "unigram", .tokenizer_folder = "tokenizer",                                        \
              .tokenizer_from = "--tokenizer PATH: the model's Hugging Face folder, or spiece.model of "      \
                                "google/umt5-xxl",                                                            \
              .classes = {"UMT5EncoderModel", "T5TokenizerFast"}}}

/* Flux.1: diffusers 0.42, pipelines/flux. CLIP and T5 read the raw prompt, padded to a fixed length without
 * an attention mask; CLIP reads 77 tokens. Defaults are those of each pipeline's __call__, except the steps
 * of schnell and the guidance of Kontext (model cards) and the shifts (published scheduler_config.json). */
#define TEXT_T5(folder_number, most)                                                                          \
    .text = {.eos = "</s>", .pad = "<pad>", .tokens_max = (most), .tokenizer = "unigram",                     \
             .tokenizer_folder = "tokenizer" folder_number,                                                   \
             .tokenizer_from = "--tokenizer PATH: the model's Hugging Face folder, or "                       \
                               "spiece.model of google/t5-v1_1-xxl",                                          \
             .classes = {"T5EncoderModel", "T5TokenizerFast"}}
#define FLUX(t5_tokens, ...)                                                                                  \
    .slot = {TEXT_CLIP_L(0),                                                                                  \
             {.family = &family_t5, .flag = "--t5xxl", .folder = "text_encoder_2",                            \
              .prefixes = t5xxl_prefixes,                                                                     \
              TEXT_T5("_2", t5_tokens)},                                                                      \
             DENOISER(family_flux, __VA_ARGS__), VAE_KL},                                                     \
    .condition = {{.slot = 1, .what = CONDITION_TOKENS}, {.slot = 0, .what = CONDITION_POOLED}},              \
    .n_conditions = 2, .span = {{2, INFINITY}},                                                               \
    .patch = 2, .shift_line = {.base_shift = 0.5, .max_shift = 1.15, .base_tokens = 256, .max_tokens = 4096}, \
    .sampling = {.prediction = &prediction_flow, .schedule = &schedule_flow, .sampler = &sampler_euler,       \
                 .grid = {.grid_f64 = true}},                                                                 \
    .guide = guidance_cfg, .samples_posterior = true, .colours = &latent_colours_flux,                        \
    .width = 1024, .height = 1024, .cfg_scale = 1
/* clang-format on */

const struct recipe recipe_flux = {
    FLUX(512),
    .name = "flux",
    .variant = FLUX_GUIDED,
    .pipelines = {"FluxPipeline", "FluxImg2ImgPipeline"},
    .shift_rule = FLOW_SHIFT_BY_TOKENS,
    .references_max = LANE_REFERENCES_MAX,
    .references_if_unnamed = true,
    .steps = 28,
    .guidance = 3.5,
    .takes_guidance = true,
    .strength = 0.6,
};

const struct recipe recipe_flux_schnell = {
    FLUX(256, .dimension = {{"guidance", 0}}),
    .name = "flux_schnell",
    .variant = FLUX_SCHNELL,
    .pipelines = {"FluxPipeline", "FluxImg2ImgPipeline"},
    .shift_rule = FLOW_SHIFT_FIXED,
    .flow_shift = 1,
    .steps = 4,
    .strength = 0.6,
};

const struct recipe recipe_flux_kontext = {
    FLUX(512),
    .name = "flux_kontext",
    .variant = FLUX_GUIDED,
    .pipelines = {"FluxKontextPipeline"},
    .shift_rule = FLOW_SHIFT_BY_TOKENS,
    .references_max = LANE_REFERENCES_MAX,
    .steps = 28,
    .guidance = 2.5,
    .takes_guidance = true,
    .strength = 0.6,
};

const struct recipe recipe_flux_fill = {
    FLUX(512, .dimension = {{"fill", 1}}),
    .name = "flux_fill",
    .variant = FLUX_FILL,
    .pipelines = {"FluxFillPipeline"},
    .shift_rule = FLOW_SHIFT_BY_TOKENS,
    .concat = CONCAT_FILL,
    .steps = 50,
    .guidance = 30,
    .takes_guidance = true,
    .strength = 1,
};

/* Qwen-Image. Defaults are those of QwenImagePipeline.__call__; the schedule is that of the published
 * scheduler_config.json. Lightning's schedule has base_shift and max_shift ln 3 and no shift_terminal. */
/* clang-format off */
#define QWEN_IMAGE(text, ...)                                                                                 \
    .slot = {VISION_QWEN25VL, text, DENOISER(family_qwen_image, __VA_ARGS__), VAE_WAN},                       \
    .condition = {{.slot = 1, .what = CONDITION_TOKENS}}, .n_conditions = 1, .span = {{2, INFINITY}},         \
    .patch = 2, .shift_rule = FLOW_SHIFT_BY_TOKENS,                                                           \
    .shift_line = {.base_shift = 0.5, .max_shift = 0.9, .base_tokens = 256, .max_tokens = 8192},              \
    .shift_terminal = 0.02,                                                                                   \
    .sampling = {.prediction = &prediction_flow, .schedule = &schedule_flow, .sampler = &sampler_euler,       \
                 .grid = {.grid_f64 = true}},                                                                 \
    .guide = guidance_cfg_keep_norm, .cfg_needs_negative = true, .samples_posterior = true,                   \
    .colours = &latent_colours_wan,                                                                           \
    .width = 1024, .height = 1024, .steps = 50, .cfg_scale = 4, .strength = 0.6
/* clang-format on */

/* Picture areas: the first editing pipeline feeds one image, resized to the output area, to vision encoder
 * and VAE. Later pipelines, and files without a pipeline name, resize each image to a smaller area for the
 * vision encoder. */
enum { QWEN_AREA = 1024 * 1024, QWEN_AREA_VISION = 384 * 384 };
#define QWEN_PROCESSOR                                                                                       \
    { "Qwen2VLProcessor", "processor", true }

const struct recipe recipe_qwen_image = {
    QWEN_IMAGE(TEXT_QWEN25VL(IMAGE_PROMPT("Picture %d: "))),
    .name = "qwen_image",
    .pipelines = {"QwenImagePipeline", "QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline"},
    .references_max = LANE_REFERENCES_MAX,
    .references_if_unnamed = true,
    .areas = {.vision = QWEN_AREA_VISION, .vae = QWEN_AREA, .output = QWEN_AREA, .multiple = 32},
};

const struct recipe recipe_qwen_image_edit = {
    QWEN_IMAGE(TEXT_QWEN25VL(IMAGE_PROMPT(""))),
    .name = "qwen_image_edit",
    .processor = QWEN_PROCESSOR,
    .edit = "plain",
    .pipelines = {"QwenImageEditPipeline", "QwenImageEditInpaintPipeline"},
    .references_min = 1,
    .references_max = 1,
    .areas = {.vision = QWEN_AREA, .vae = QWEN_AREA, .output = QWEN_AREA, .multiple = 32},
};

const struct recipe recipe_qwen_image_edit_plus = {
    QWEN_IMAGE(TEXT_QWEN25VL(IMAGE_PROMPT("Picture %d: "))),
    .name = "qwen_image_edit_plus",
    .processor = QWEN_PROCESSOR,
    .edit = "plus",
    .pipelines = {"QwenImageEditPlusPipeline"},
    .references_min = 1,
    .references_max = LANE_REFERENCES_MAX,
    .areas = {.vision = QWEN_AREA_VISION, .vae = QWEN_AREA, .output = QWEN_AREA, .multiple = 32},
};

/* Edit-Plus whose reference tokens are modulated as at timestep 0 (zero_cond_t), for files without a
 * configuration that sets zero_cond_t. */
static const struct published_setting qwen_2511[] = {{"zero_cond_t", 1}, {0}};

const struct recipe recipe_qwen_image_edit_2511 = {
    QWEN_IMAGE(TEXT_QWEN25VL(IMAGE_PROMPT("Picture %d: ")), .published = qwen_2511),
    .name = "qwen_image_edit_2511",
    .processor = QWEN_PROCESSOR,
    .edit = "2511",
    .pipelines = {"QwenImageEditPlusPipeline"},
    .references_min = 1,
    .references_max = LANE_REFERENCES_MAX,
    .areas = {.vision = QWEN_AREA_VISION, .vae = QWEN_AREA, .output = QWEN_AREA, .multiple = 32},
};

/* WAN: diffusers 0.42, pipelines/wan. Shifts, steps and guidance are those of the authors' configurations
 * (Wan2.1 generate.py, Wan2.2 wan/configs); image sizes depend on the model, as in these configurations. The
 * sampler is the one in the published scheduler_config.json. Text is 512 rows, zero-padded. Of two
 * transformers, the first is for high noise. */
enum { WAN_TEXT_ROWS = 512, WAN_FRAMES_MAX = 1 + 4 * 255 };
/* clang-format off */
/* Default negative prompt of the authors' programs. */
#define WAN_NEGATIVE                                                                                          \
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，"                                                          \
    "低质量，JPEG压缩残留，丑陋的，残缺的，多余的手指，画得不好的手部，画得不好的脸部，"                                                             \
    "畸形的，毁容的，形态畸形的肢体，手指融合，静止不动的画面，杂乱的背景，三条腿，"                                                                 \
    "背景人很多，倒着走"
#define WAN(text_slot, ...)                                                                                   \
    .condition = {{.slot = text_slot, .what = CONDITION_TOKENS, .padded_to = WAN_TEXT_ROWS}},                 \
    .n_conditions = 1, .patch = 2, .shift_rule = FLOW_SHIFT_FIXED, .sampling = SAMPLING_WAN,                  \
    .guide = guidance_cfg, .default_negative = WAN_NEGATIVE, .frames_max = WAN_FRAMES_MAX, .strength = 1,     \
    __VA_ARGS__
#define WAN_480P .width = 832, .height = 480, .frames = 81, .fps = 16
#define HIGH_NOISE(...)                                                                                       \
    {.family = &family_wan, .flag = "--high-noise-diffusion-model", .display_name = "high-noise transformer", \
     .folder = "transformer", .prefixes = denoiser_prefixes, .name_words = {"high", "highnoise"}, __VA_ARGS__}
#define LOW_NOISE(...)                                                                                        \
    {.family = &family_wan, .flag = "--diffusion-model", .display_name = "low-noise transformer",             \
     .folder = "transformer_2", .prefixes = denoiser_prefixes, .name_words = {"low", "lownoise"}, __VA_ARGS__}
#define WAN_I2V_DIMS .dimension = {{"wan_goes_on", 1}}
#define WAN_I2V_CLIP_DIMS    .dimension = {{"wan_goes_on", 1}, {"clip_vision_width", 1280}}
/* clang-format on */

const struct recipe recipe_wan = {
    .slot = {TEXT_UMT5, DENOISER(family_wan), VAE_WAN},
    WAN(0, WAN_480P, .flow_shift = 5, .steps = 50, .cfg_scale = 5),
    .span = {{1, INFINITY}},
    .name = "wan",
    .colours = &latent_colours_wan,
    .variant = WAN_T2V,
    .pipelines = {"WanPipeline", "WanImageToVideoPipeline", "WanVideoToVideoPipeline"},
    .init = INIT_NONE,
};

const struct recipe recipe_wan_i2v = {
    .slot = {VISION_CLIP, TEXT_UMT5, DENOISER(family_wan, WAN_I2V_CLIP_DIMS), VAE_WAN},
    WAN(1, WAN_480P, .flow_shift = 5, .steps = 40, .cfg_scale = 5),
    .span = {{2, INFINITY}},
    .name = "wan_i2v",
    .colours = &latent_colours_wan,
    .processor = CLIP_PROCESSOR,
    .variant = WAN_I2V,
    .pipelines = {"WanImageToVideoPipeline", "WanPipeline"},
    .concat = CONCAT_I2V,
    .init = INIT_FIRST_FRAME,
};

const struct recipe recipe_wan22 = {
    .slot = {TEXT_UMT5, HIGH_NOISE(), LOW_NOISE(), VAE_WAN},
    WAN(0, WAN_480P, .flow_shift = 12, .steps = 40, .cfg_scale = 4, .cfg_scale_low = 3),
    .span = {{1, INFINITY}, {2, 0.875}},
    .name = "wan22",
    .colours = &latent_colours_wan,
    .variant = WAN_T2V,
    .pipelines = {"WanPipeline", "WanImageToVideoPipeline", "WanVideoToVideoPipeline"},
    .init = INIT_NONE,
};

const struct recipe recipe_wan22_i2v = {
    .slot = {TEXT_UMT5, HIGH_NOISE(WAN_I2V_DIMS), LOW_NOISE(WAN_I2V_DIMS), VAE_WAN},
    WAN(0, WAN_480P, .flow_shift = 5, .steps = 40, .cfg_scale = 3.5),
    .span = {{1, INFINITY}, {2, 0.9}},
    .name = "wan22_i2v",
    .colours = &latent_colours_wan,
    .variant = WAN22_I2V,
    .pipelines = {"WanImageToVideoPipeline", "WanPipeline"},
    .concat = CONCAT_I2V,
    .init = INIT_FIRST_FRAME,
};

const struct recipe recipe_wan_ti2v = {
    .slot = {TEXT_UMT5,
             DENOISER(
                 family_wan,
                 .dimension = {{"heads", 24}, {"wan_ff", 14336}, {"layers", 30}, {"latent_channels", 48}}),
             VAE_WAN22},
    WAN(0, .width = 1280, .height = 704, .flow_shift = 5, .steps = 50, .cfg_scale = 5, .frames = 121,
        .fps = 24),
    .span = {{1, INFINITY}},
    .name = "wan_ti2v",
    .colours = &latent_colours_wan22,
    .variant = WAN_T2V,
    .pipelines = {"WanPipeline", "WanImageToVideoPipeline", "WanVideoToVideoPipeline"},
    .init = INIT_FIRST_FRAME,
};

const struct recipe recipe_wan_vace = {
    .slot = {TEXT_UMT5, DENOISER(family_wan, .dimension = {{"wan_hints", 8}}), VAE_WAN},
    WAN(0, WAN_480P, .flow_shift = 16, .steps = 50, .cfg_scale = 5),
    .span = {{1, INFINITY}},
    .name = "wan_vace",
    .colours = &latent_colours_wan,
    .variant = WAN_VACE,
    .pipelines = {"WanVACEPipeline"},
    .concat = CONCAT_CONTROL,
    .init = INIT_NONE,
    .references_max = LANE_REFERENCES_MAX,
};

/* Stable Diffusion 1, 2, XL: diffusers 0.42, pipelines/stable_diffusion and stable_diffusion_xl. Steps,
 * guidance and strength are those of each pipeline's __call__; guidance of Stable Diffusion 1 and 2 is
 * rounded down (7.5 to 7). Sizes are those of the published UNets. */
static const struct published_setting sd_vae[] = {{"scaling_factor", 0.18215}, {"shift_factor", 0}, {0}};
static const struct published_setting sdxl_vae[] = {{"scaling_factor", 0.13025}, {"shift_factor", 0}, {0}};
static const struct published_setting sd2_unet[] = {{"sample_size", 96}, {0}};
static const struct published_setting sdxl_unet[] = {{"sample_size", 128}, {0}};
/* clang-format off */
#define VAE_KL_4(settings, tiny)                                                                              \
    {.family = &family_vae_kl, .flag = "--vae", .folder = "vae", .prefixes = vae_prefixes,                    \
     .dimension = {{"latent_channels", 4}, {"vae_quant", 1}}, .published = settings},                         \
    {.family = &family_vae_kl_encoder, .folder = "vae",                                                       \
     .dimension = {{"latent_channels", 4}, {"vae_quant", 1}}, .published = settings},                         \
    TINY_DECODER(family_taesd, .weights_name = tiny, .dimension = {{"latent_channels", 4}})
#define UNET(settings, inpaints, ...)                                                                         \
    {.family = &family_unet, .flag = "--diffusion-model", .folder = "unet", .prefixes = denoiser_prefixes,    \
     .published = settings, .dimension = {{"unet_fill", inpaints}, __VA_ARGS__}}
#define SD_DEFAULTS(of)                                                                                       \
    .patch = 1, .sampling = of, .flow_shift = 1, .guide = guidance_cfg, .samples_posterior = true, .steps = 50

#define SD1(inpaints, guided)                                                                                 \
    .slot = {TEXT_CLIP_L(CLIP_WINDOWS_MAX), UNET(NULL, inpaints, {"unet_guidance", guided}),                  \
             VAE_KL_4(sd_vae, "taesd")},                                                                      \
    .condition = {{.slot = 0, .what = CONDITION_TOKENS}}, .n_conditions = 1, .span = {{1, INFINITY}},         \
    .colours = &latent_colours_sd1, .width = 512, .height = 512
#define SD2(inpaints)                                                                                         \
    .slot = {TEXT_CLIP_H,                                                                                     \
             UNET(sd2_unet, inpaints, {"unet_heads", 0}, {"unet_convolved", 0}, {"unet_text", 1024}),         \
             VAE_KL_4(sd_vae, "taesd")},                                                                      \
    .condition = {{.slot = 0, .what = CONDITION_TOKENS, .hidden_state_from_end = 1, .final_norm = true}},     \
    .n_conditions = 1, .span = {{1, INFINITY}}, SD_DEFAULTS(SAMPLING_SD2), .width = 768, .height = 768,       \
    .colours = &latent_colours_sd1, .cfg_scale = 7
#define SDXL(inpaints, guided)                                                                                \
    .slot = {TEXT_CLIP_L(CLIP_WINDOWS_MAX), {TEXT_CLIP_G(CLIP_WINDOWS_MAX)},                                  \
             UNET(sdxl_unet, inpaints, {"unet3", 0}, {"unet_layers0", 0}, {"unet_layers1", 2},                \
                  {"unet_layers2", 10}, {"unet_heads", 0}, {"unet_convolved", 0}, {"unet_text", 2048},        \
                  {"unet_pooled", 1280}, {"unet_numbers", 6}, {"unet_guidance", guided}),                     \
             VAE_KL_4(sdxl_vae, "taesdxl")},                                                                  \
    .condition = {{.slot = 0, .what = CONDITION_TOKENS, .hidden_state_from_end = 1},                          \
                  {.slot = 1, .what = CONDITION_TOKENS, .hidden_state_from_end = 1, .concat_columns = true},  \
                  {.slot = 1, .what = CONDITION_POOLED, .projected = true}},                                  \
    .n_conditions = 3, .span = {{2, INFINITY}}, .add_time_ids = ADD_TIME_IDS_SIZES,                           \
    .force_zeros_for_empty_prompt = true,                                                                     \
    .colours = &latent_colours_sdxl, .width = 1024, .height = 1024
/* Latent consistency models (LCM): default guidance of pipelines/latent_consistency_models and, for SDXL, of
 * the model card; these models need few steps and read the guidance scale through an embedding. */
#define LCM_DEFAULTS                                                                                          \
    .patch = 1, .sampling = SAMPLING_LCM, .flow_shift = 1, .guide = guidance_cfg, .samples_posterior = true,  \
    .steps = 4, .cfg_scale = 1, .takes_guidance = true
/* clang-format on */

const struct recipe recipe_sd1 = {
    SD1(0, 0),
    SD_DEFAULTS(SAMPLING_SD1),
    .cfg_scale = 7,
    .name = "sd15",
    .variant = UNET_SD1,
    .pipelines = {"StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline",
                  "StableDiffusionInpaintPipeline"},
    .strength = 0.8,
};

const struct recipe recipe_sd1_inpaint = {
    SD1(1, 0),
    SD_DEFAULTS(SAMPLING_SD1),
    .cfg_scale = 7,
    .name = "sd15_inpaint",
    .variant = UNET_SD1_INPAINT,
    .pipelines = {"StableDiffusionInpaintPipeline", "StableDiffusionPipeline"},
    .concat = CONCAT_INPAINT,
    .strength = 1,
};

/* Stable Diffusion 2. Source of the probed tensor and of the threshold 0.09: ComfyUI,
 * comfy/supported_models.py, SD20. */
const struct recipe recipe_sd2 = {
    SD2(0),
    .prediction_probe = {{"output_blocks.11.1.transformer_blocks.0.norm1.bias",
                          "up_blocks.3.attentions.2.transformer_blocks.0.norm1.bias"},
                         0.09},
    .distilled = {.latent_side = 64, .steps = 4}, /* SD-Turbo */
    .name = "sd2",
    .variant = UNET_SD2,
    .pipelines = {"StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline",
                  "StableDiffusionInpaintPipeline"},
    .strength = 0.8,
};

const struct recipe recipe_sd2_inpaint = {
    SD2(1),
    .name = "sd2_inpaint",
    .variant = UNET_SD2_INPAINT,
    .pipelines = {"StableDiffusionInpaintPipeline", "StableDiffusionPipeline"},
    .concat = CONCAT_INPAINT,
    .strength = 1,
};

const struct recipe recipe_sdxl = {
    SDXL(0, 0),
    SD_DEFAULTS(SAMPLING_SDXL),
    .cfg_scale = 5,
    .distilled = {.latent_side = 64, .steps = 4}, /* SDXL-Turbo */
    .name = "sdxl",
    .variant = UNET_SDXL,
    .pipelines = {"StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline",
                  "StableDiffusionXLInpaintPipeline"},
    .strength = 0.3,
};

const struct recipe recipe_sdxl_inpaint = {
    SDXL(1, 0),
    SD_DEFAULTS(SAMPLING_SDXL),
    .cfg_scale = 5,
    .name = "sdxl_inpaint",
    .variant = UNET_SDXL_INPAINT,
    .pipelines = {"StableDiffusionXLInpaintPipeline", "StableDiffusionXLPipeline"},
    .concat = CONCAT_INPAINT,
    .strength = 0.9999,
};

const struct recipe recipe_sd1_lcm = {
    SD1(0, 256),
    LCM_DEFAULTS,
    .name = "sd15_lcm",
    .variant = UNET_SD1_GUIDED,
    .pipelines = {"LatentConsistencyModelPipeline", "LatentConsistencyModelImg2ImgPipeline",
                  "StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline"},
    .guidance = 8.5,
    .strength = 0.8,
};

const struct recipe recipe_sdxl_lcm = {
    SDXL(0, 256),
    LCM_DEFAULTS,
    .name = "sdxl_lcm",
    .variant = UNET_SDXL_GUIDED,
    .pipelines = {"StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline"},
    .guidance = 8,
    .strength = 0.3,
};

/* The refiner is made for img2img on images of SDXL's base model, but can also start from noise. */
const struct recipe recipe_sdxl_refiner = {
    .slot = {{TEXT_CLIP_G(CLIP_WINDOWS_MAX)},
             UNET(sdxl_unet, 0, {"unet0", 384}, {"unet1", 768}, {"unet2", 1536}, {"unet3", 1536},
                  {"unet_layers0", 0}, {"unet_layers1", 4}, {"unet_layers2", 4}, {"unet_middle_layers", 4},
                  {"unet_heads", 0}, {"unet_convolved", 0}, {"unet_text", 1280}, {"unet_pooled", 1280},
                  {"unet_numbers", 5}),
             VAE_KL_4(sdxl_vae, "taesdxl")},
    .condition = {{.slot = 0, .what = CONDITION_TOKENS, .hidden_state_from_end = 1},
                  {.slot = 0, .what = CONDITION_POOLED, .projected = true}},
    .n_conditions = 2,
    .span = {{1, INFINITY}},
    SD_DEFAULTS(SAMPLING_SDXL),
    .add_time_ids = ADD_TIME_IDS_SIZES_AND_SCORE,
    .name = "sdxl_refiner",
    .colours = &latent_colours_sdxl,
    .variant = UNET_SDXL_REFINER,
    .pipelines = {"StableDiffusionXLImg2ImgPipeline", "StableDiffusionXLPipeline",
                  "StableDiffusionXLInpaintPipeline"},
    .width = 1024,
    .height = 1024,
    .cfg_scale = 5,
    .strength = 0.3,
};

/* Stable Diffusion 3 and 3.5: diffusers 0.42, pipelines/stable_diffusion_3. Steps and guidance of 3 medium
 * are the pipeline's; steps and guidance of 3.5 are the authors' program's (sd3.5, sd3_infer.py). All three
 * encoders read the whole prompt: CLIP-L and CLIP-G side by side (77 tokens each, concatenated by feature),
 * then T5's tokens (concatenated along the token axis). */
static const struct published_setting sd3_vae[] = {{"scaling_factor", 1.5305}, {"shift_factor", 0.0609}, {0}};
enum { SD3_T5_TOKENS = 256 };
/* clang-format off */
#define SD35_SIZES_MEDIUM                                                                                     \
    .dimension = {{"sd3_norms", 1}, {"sd3_seconds", 13}, {"sd3_positions", 384}}
#define SD35_SIZES_LARGE   .dimension = {{"heads", 38}, {"layers", 38}, {"sd3_norms", 1}}
#define SD3(...)                                                                                              \
    .slot = {{.family = &family_clip, .flag = "--clip_l", .optional = true,                                   \
              .display_name = "CLIP-L text encoder", .folder = "text_encoder", .prefixes = clip_l_prefixes,   \
              .matches = clip_is_l,                                                                           \
              TEXT_CLIP("", 0, "openai/clip-vit-large-patch14", "CLIPTextModelWithProjection",                \
                        "CLIPTokenizer"),                                                                     \
              .text.pad = "<|endoftext|>"},                                                                   \
             {TEXT_CLIP_G(0), .optional = true},                                                              \
             {.family = &family_t5, .flag = "--t5xxl", .optional = true, .folder = "text_encoder_3",          \
              .prefixes = t5xxl_prefixes,                                                                     \
              TEXT_T5("_3", SD3_T5_TOKENS)},                                                                  \
             DENOISER(family_sd3, __VA_ARGS__),                                                               \
             {.family = &family_vae_kl, .flag = "--vae", .folder = "vae", .prefixes = vae_prefixes,           \
              .published = sd3_vae},                                                                          \
             {.family = &family_vae_kl_encoder, .folder = "vae", .published = sd3_vae},                       \
             TINY_DECODER(family_taesd, .weights_name = "taesd3")},                                           \
    .condition = {{.slot = 0, .what = CONDITION_TOKENS, .hidden_state_from_end = 1, .zero_padded = true},     \
                  {.slot = 1, .what = CONDITION_TOKENS, .hidden_state_from_end = 1, .concat_columns = true,   \
                   .zero_padded = true},                                                                      \
                  {.slot = 2, .what = CONDITION_TOKENS},                                                      \
                  {.slot = 0, .what = CONDITION_POOLED, .projected = true, .projected_if_class = true},       \
                  {.slot = 1, .what = CONDITION_POOLED, .projected = true}},                                  \
    .n_conditions = 5, .span = {{3, INFINITY}},                                                               \
    .pipelines = {"StableDiffusion3Pipeline", "StableDiffusion3Img2ImgPipeline",                              \
                  "StableDiffusion3InpaintPipeline"},                                                         \
    .patch = 2, .shift_rule = FLOW_SHIFT_FIXED, .flow_shift = 3,                                              \
    .sampling = {.prediction = &prediction_flow_timestep, .schedule = &schedule_flow,                         \
                 .sampler = &sampler_euler, .grid = {.shift_twice = true}, .grid_from_class = true},          \
    .guide = guidance_cfg, .samples_posterior = true, .colours = &latent_colours_sd3,                         \
    .width = 1024, .height = 1024, .strength = 0.6
/* clang-format on */

const struct recipe recipe_sd3 = {
    SD3(), .name = "sd3", .variant = SD3_MEDIUM, .steps = 28, .cfg_scale = 7,
};

const struct recipe recipe_sd35_medium = {
    SD3(SD35_SIZES_MEDIUM), .name = "sd35_medium", .variant = SD35_MEDIUM, .steps = 50, .cfg_scale = 5,
};

const struct recipe recipe_sd35_large = {
    SD3(SD35_SIZES_LARGE), .name = "sd35_large", .variant = SD35_LARGE, .steps = 40, .cfg_scale = 4.5,
};

const struct recipe recipe_sd35_large_turbo = {
    SD3(SD35_SIZES_LARGE),
    .name = "sd35_large_turbo",
    .name_word = "turbo",
    .variant = SD35_LARGE,
    .steps = 4,
    .cfg_scale = 1,
};
