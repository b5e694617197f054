/* Slots that the recipes of several families share: text encoders, autoencoders, tiny decoders. */
#ifndef SLUICE_MODELS_SLOTS_H
#define SLUICE_MODELS_SLOTS_H

#include "models/models.h"

#include <math.h>

/* Callbacks slot.matches: true if the CLIP weights have the width of CLIP-L, OpenCLIP-H or OpenCLIP-G, or of
 * none of the three (small test models). */
bool clip_is_l(const struct tensor_index *view);
bool clip_is_h(const struct tensor_index *view);
bool clip_is_g(const struct tensor_index *view);

/* Reference implementation that made the committed fixtures; version as in test/golden/requirements.txt. */
#define DIFFUSERS "diffusers 0.42.1"
/* File name pattern of a tiny VAE, encoder and decoder, in diffusers' format. */
#define TAE "diffusion_*"

/* Tensor name prefixes of transformers, ComfyUI and the authors' files. */
#define DENOISER_PREFIXES                                                                                    \
    { "", "model.diffusion_model.", "diffusion_model.", NULL }
#define VAE_PREFIXES                                                                                         \
    { "", "first_stage_model.", "vae.", NULL }
#define TINY_PREFIXES                                                                                        \
    { "", "taesd_decoder.", "decoder.", "tae.", "tae.decoder.", NULL }
#define CLIP_L_PREFIXES                                                                                      \
    {                                                                                                        \
        "", "text_encoders.clip_l.transformer.", "text_encoders.clip_l.", "clip_l.",                         \
            "cond_stage_model.transformer.", "conditioner.embedders.0.transformer.", NULL                    \
    }
#define T5XXL_PREFIXES                                                                                       \
    { "", "text_encoders.t5xxl.transformer.", "text_encoders.t5xxl.", "t5xxl.", NULL }
#define NAMES(...) (const char *const[]) __VA_ARGS__

/* clang-format off */
#define DENOISER(of, ...)                                                                                    \
    {.family = &(of), .flag = "--diffusion-model", .folder = "transformer",                                  \
     .prefixes = NAMES(DENOISER_PREFIXES), __VA_ARGS__}
#define TINY_DECODER(of, ...)                                                                                \
    {.family = &(of), .flag = "--taesd", .folder = "taesd", .prefixes = NAMES(TINY_PREFIXES),                \
     .optional = true, __VA_ARGS__}
#define VAE_KL                                                                                               \
    {.family = &family_vae_kl, .flag = "--vae", .folder = "vae", .prefixes = NAMES(VAE_PREFIXES)},           \
    {.family = &family_vae_kl_encoder, .folder = "vae"},                                                     \
    TINY_DECODER(family_taesd, .weights_name = "taef1")
#define VAE_WAN                                                                                              \
    {.family = &family_vae_wan, .flag = "--vae", .folder = "vae", .prefixes = NAMES(VAE_PREFIXES)},          \
    {.family = &family_vae_wan_encoder, .folder = "vae"},                                                    \
    TINY_DECODER(family_taehv, .weights_name = "taew2_1")
#define VAE_QWEN21                                                                                           \
    {.family = &family_vae_qwen21, .flag = "--vae", .folder = "vae", .prefixes = NAMES(VAE_PREFIXES)},       \
    {.family = &family_vae_qwen21_encoder, .folder = "vae"}

/* CLIP text encoders. Prefixes are those of transformers, ComfyUI and the authors' files;
 * stable-diffusion.cpp renames the authors' prefix to "cond_stage_model.transformer." and, for a second
 * encoder, "cond_stage_model.1.transformer.".
 *
 * CLIP has 77 positions. OpenCLIP pads with id 0, OpenAI's CLIP with the end token. windows: maximum number
 * of 77-token windows of a long prompt; 0: the prompt is truncated. */
enum { CLIP_TOKENS = 77, CLIP_WINDOWS_MAX = 64 };
static const struct published_setting erf_gelu[] = {{"hidden_act", 1}, {0}};
#define TEXT_CLIP(folder_number, windows, source, ...)                                                       \
    .text = {.bos = "<|startoftext|>", .eos = "<|endoftext|>",                                               \
             .tokens_max = CLIP_TOKENS, .windows_max = windows, .tokenizer = "CLIP BPE",                     \
             .tokenizer_folder = "tokenizer" folder_number,                                                  \
             .tokenizer_from = "--tokenizer PATH: the model's Hugging Face folder, or the tokenizer of "     \
                               source,                                                                       \
             .classes = {__VA_ARGS__}}
#define TEXT_CLIP_L(windows)                                                                                 \
    {.family = &family_clip, .flag = "--clip_l", .display_name = "CLIP-L text encoder",                      \
     .folder = "text_encoder", .prefixes = NAMES(CLIP_L_PREFIXES),                                           \
     .matches = clip_is_l,                                                                                   \
     TEXT_CLIP("", windows, "openai/clip-vit-large-patch14", "CLIPTextModel", "CLIPTokenizer"),              \
     .text.pad = "<|endoftext|>"}
#define TEXT_CLIP_G(windows)                                                                                 \
    .family = &family_clip, .flag = "--clip_g", .display_name = "OpenCLIP-G text encoder",                   \
     .folder = "text_encoder_2",                                                                             \
     .prefixes = (const char *const[]){"", "text_encoders.clip_g.transformer.", "text_encoders.clip_g.",     \
                                       "clip_g.", "conditioner.embedders.1.model.",                          \
                                       "cond_stage_model.1.transformer.",                                    \
                                       "conditioner.embedders.0.model.", NULL},                              \
     .matches = clip_is_g,                                                                                   \
     .dimension = {{"pooled", 1280}, {"clip_heads", 20}, {"clip_ff", 5120}, {"clip_layers", 32},             \
                   {"clip_projection", 1280}},                                                               \
     .published = erf_gelu,                                                                                  \
     TEXT_CLIP("_2", windows, "laion/CLIP-ViT-bigG-14-laion2B-39B-b160k",                                    \
               "CLIPTextModelWithProjection", "CLIPTokenizer"),                                              \
     .text.pad_with_id_0 = true

#define TEXT_T5(folder_number, most)                                                                         \
    .text = {.eos = "</s>", .pad = "<pad>", .tokens_max = (most), .tokenizer = "unigram",                    \
             .tokenizer_folder = "tokenizer" folder_number,                                                  \
             .tokenizer_from = "--tokenizer PATH: the model's Hugging Face folder, or "                      \
                               "spiece.model of google/t5-v1_1-xxl",                                         \
             .classes = {"T5EncoderModel", "T5TokenizerFast"}}

/* Qwen2.5-VL. Language model and vision encoder lie in one folder or, for ComfyUI, in one file; for llama.cpp
 * the vision encoder lies in a separate file (mmproj). Arguments of TEXT_QWEN25VL: the recipe's own fields of
 * text_recipe. */
#define VISION_QWEN25VL                                                                                      \
    {.family = &family_qwen25vl_vision, .flag = "--llm_vision", .shares_file_with = "--llm",                 \
     .optional = true, .folder = "text_encoder", .prefix = "visual.",                                        \
     .prefixes = NAMES({"", "visual.", "model.visual.", "text_encoders.qwen25_7b.transformer.visual.",       \
                        "text_encoders.llm.visual.", NULL})}
#define TEXT_QWEN25VL(...)                                                                                   \
    {.family = &family_qwen25vl, .flag = "--llm", .folder = "text_encoder",                                  \
     .prefixes = NAMES({"", "model.language_model.", "language_model.",                                      \
                        "text_encoders.qwen25_7b.transformer.", "text_encoders.llm.", NULL}),                \
     .text = {.tokenizer = "BPE", .tokenizer_folder = "tokenizer",                                           \
              .special_tokens = {"<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"},        \
              .tokenizer_from = "--tokenizer PATH: the model's Hugging Face folder, or tokenizer.json of "   \
                                "Qwen/Qwen2.5-VL-7B-Instruct",                                               \
              .classes = {"Qwen2_5_VLForConditionalGeneration", "Qwen2Tokenizer"}, __VA_ARGS__}}

/* Qwen3-VL, in the layouts of Qwen2.5-VL. Arguments of TEXT_QWEN3VL (8B) and TEXT_QWEN3VL_4B: the recipe's own
 * fields of text_recipe. */
#define VISION_QWEN3VL                                                                                       \
    {.family = &family_qwen3vl_vision, .flag = "--llm_vision", .shares_file_with = "--llm",                  \
     .optional = true, .folder = "text_encoder", .prefix = "visual.",                                        \
     .prefixes = NAMES({"", "visual.", "model.visual.", "text_encoders.qwen3vl_8b.transformer.visual.",      \
                        "text_encoders.llm.visual.", NULL})}
#define QWEN3VL_PREFIXES                                                                                     \
    {                                                                                                        \
        "", "model.language_model.", "language_model.", "text_encoders.qwen3vl_8b.transformer.",             \
            "text_encoders.qwen3vl_4b.transformer.", "text_encoders.llm.", NULL                              \
    }
#define TEXT_QWEN3VL_OF(size, class, tokens, ...)                                                            \
    .family = &family_qwen3vl, .flag = "--llm", .folder = "text_encoder",                                    \
    .prefixes = NAMES(QWEN3VL_PREFIXES),                                                                     \
    .text = {.tokenizer = "BPE", .tokenizer_folder = (tokens),                                               \
             .special_tokens = {"<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"},         \
             .tokenizer_from = "--tokenizer PATH: the model's Hugging Face folder, or tokenizer.json of "    \
                               "Qwen/Qwen3-VL-" size "-Instruct",                                            \
             .classes = {class, "Qwen2Tokenizer"}, __VA_ARGS__}
#define TEXT_QWEN3VL(...)                                                                                    \
    {TEXT_QWEN3VL_OF("8B", "Qwen3VLForConditionalGeneration", "processor", __VA_ARGS__)}
#define TEXT_QWEN3VL_4B(...)                                                                                 \
    {TEXT_QWEN3VL_OF("4B", "Qwen3VLModel", "tokenizer", __VA_ARGS__),                                         \
     .dimension = {{"hidden", 2560}, {"text_ff", 9728}}}

/* Gemma 3 12B: prompts without template, at most 1,024 tokens. Arguments: the recipe's own fields of
 * text_recipe. */
#define TEXT_GEMMA3(...)                                                                                     \
    {.family = &family_gemma3, .flag = "--llm", .folder = "text_encoder",                                    \
     .prefixes = NAMES({"", "language_model.", "model.language_model.",                                      \
                        "text_encoders.gemma3_12b.transformer.", "text_encoders.llm.", NULL}),               \
     .text = {.strips = true, .bos = "<bos>", .tokens_max = 1024, .tokens_planned = 256,                     \
              .tokenizer = "SentencePiece BPE", .tokenizer_folder = "tokenizer",                             \
              .tokenizer_from = "--tokenizer PATH: the model's Hugging Face folder, or tokenizer.json of "   \
                                "google/gemma-3-12b-it",                                                     \
              .classes = {"Gemma3ForConditionalGeneration", "GemmaTokenizerFast"}, __VA_ARGS__}}
/* clang-format on */

#endif
