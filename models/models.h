/* Declares the model families (architectures) and the recipes (pipelines as data). */
#ifndef SLUICE_MODELS_H
#define SLUICE_MODELS_H

#include "engine/run/family.h"
#include "engine/sample/guidance.h"
#include "engine/sample/sampling.h"

/* All families and recipes: FAMILY(name) for family_name, defined in models/, RECIPE(name) for recipe_name in
 * the file of its denoiser. Families are in the order of messages and listings. Recipes are in the order of
 * preference: if the files name no pipeline, the first recipe that matches the weights is used. */
/* clang-format off */
#define PUBLISHED_MODELS(FAMILY, RECIPE)                                                                     \
    FAMILY(zimage) RECIPE(zimage) RECIPE(zimage_base)                                                        \
    FAMILY(flux) RECIPE(flux) RECIPE(flux_schnell) RECIPE(flux_kontext) RECIPE(flux_fill)                    \
        RECIPE(flux_canny) RECIPE(flux_depth)                                                                \
    FAMILY(flux2) RECIPE(flux2_dev) RECIPE(flux2_klein) RECIPE(flux2_klein_base) RECIPE(flux2_klein_9b)      \
        RECIPE(flux2_klein_base_9b)                                                                          \
    FAMILY(longcat_image) RECIPE(longcat_image) RECIPE(longcat_image_edit)                                   \
    FAMILY(chroma) RECIPE(chroma) RECIPE(chroma_flash) RECIPE(chroma_base)                                   \
    FAMILY(ovis_image) RECIPE(ovis_image)                                                                    \
    FAMILY(krea2) RECIPE(krea2) RECIPE(krea2_turbo)                                                          \
    FAMILY(unet)                                                                                             \
    FAMILY(qwen_image) RECIPE(qwen_image) RECIPE(qwen_image_edit) RECIPE(qwen_image_edit_plus)               \
        RECIPE(qwen_image_edit_2511)                                                                         \
    FAMILY(qwen_image_21) RECIPE(qwen_image_21)                                                              \
    RECIPE(sd1) RECIPE(sd1_inpaint) RECIPE(sd2) RECIPE(sd2_inpaint) RECIPE(sdxl) RECIPE(sdxl_inpaint)        \
        RECIPE(sdxl_refiner) RECIPE(sd1_lcm) RECIPE(sdxl_lcm)                                                \
    FAMILY(wan) RECIPE(wan) RECIPE(wan_i2v) RECIPE(wan22) RECIPE(wan22_i2v) RECIPE(wan_ti2v)                 \
        RECIPE(wan_vace)                                                                                     \
    FAMILY(ltx2) RECIPE(ltx2) RECIPE(ltx2_distilled) RECIPE(ltx23) RECIPE(ltx23_distilled)                   \
    FAMILY(sd3) RECIPE(sd3) RECIPE(sd35_medium) RECIPE(sd35_large) RECIPE(sd35_large_turbo)                  \
    FAMILY(anima) RECIPE(anima)                                                                              \
    FAMILY(unet_control) FAMILY(unet_control_union)                                                          \
    FAMILY(zimage_control) FAMILY(flux_control) FAMILY(flux_control_xlabs)                                   \
    FAMILY(qwen_image_control) FAMILY(sd3_control) FAMILY(sd35_control)                                      \
    FAMILY(qwen3) FAMILY(mistral) FAMILY(anima_adapter) FAMILY(qwen25vl) FAMILY(qwen25vl_vision)             \
    FAMILY(qwen3vl) FAMILY(qwen3vl_vision)                                                                   \
    FAMILY(gemma3) FAMILY(ltx2_projection) FAMILY(ltx2_connectors)                                           \
    FAMILY(clip) FAMILY(clip_vision) FAMILY(siglip) FAMILY(redux) FAMILY(t5) FAMILY(umt5)                    \
    FAMILY(vae_kl) FAMILY(vae_kl_encoder) FAMILY(vae_flux2) FAMILY(vae_flux2_encoder)                        \
    FAMILY(vae_wan) FAMILY(vae_wan_encoder) FAMILY(vae_wan22) FAMILY(vae_wan22_encoder)                      \
    FAMILY(vae_qwen21) FAMILY(vae_qwen21_encoder) FAMILY(vae_ltx2) FAMILY(vae_ltx2_encoder)                  \
    FAMILY(ltx2_audio_vae) FAMILY(ltx2_vocoder)                                                              \
    FAMILY(taesd) FAMILY(taehv)                                                                          \
    FAMILY(rrdbnet) FAMILY(srvgg) FAMILY(ltx2_upsampler)
/* clang-format on */
#define NOT_LISTED(name)
#define PUBLISHED_FAMILIES(X) PUBLISHED_MODELS(X, NOT_LISTED)
#define PUBLISHED_RECIPES(X)  PUBLISHED_MODELS(NOT_LISTED, X)

#define DECLARE_FAMILY(name) extern const struct family family_##name;
PUBLISHED_FAMILIES(DECLARE_FAMILY)

/* All families, NULL-terminated. */
extern const struct family *const families[];

/* Template of a prompt with reference images. An image's vision tokens replace its pad tokens; the prompt
 * is truncated only if text_recipe.template_apart is set. */
struct image_prompt {
    const char *template_before; /* replaces text_recipe.template_before in prompts with images; NULL: prompts
                                    cannot have images */
    int drop_idx;                /* replaces text_recipe.drop_idx in prompts with images */
    const char *before, *after;  /* text before and after each image; %d is the image number from 1 */
    const char *between;         /* text between two images; NULL: none */
    const char *pad;             /* placeholder token, repeated once for each vision token */
};

/* How one text encoder tokenizes a prompt. */
struct text_recipe {
    const char *template_before, *template_after; /* template text before and after the prompt; NULL: none */
    /* Not 0: template_after, of this many tokens with the published tokenizer, is tokenised separately; the
     * text before it is truncated to tokens_max minus this number. */
    int template_after_tokens;
    const char *empty;     /* text that replaces an empty prompt; NULL: none */
    const char *deleted;   /* text that is deleted from prompts, such as Mistral's image token; NULL: none */
    bool strips;           /* delete white space at both ends of prompts, as Python's str.strip */
    bool clean_html;       /* decode HTML entities and collapse white space: engine/open/prompt_clean.h */
    const char *bos, *eos; /* start and end token, kept when a prompt is truncated; NULL: none */
    const char *pad;       /* token that pads short prompts to tokens_max; NULL: no padding */
    bool pad_with_id_0;    /* pad short prompts with token id 0; overrides the token `pad` */
    bool pads_left;        /* padding precedes the prompt (padding_side "left") */
    bool masks_padding; /* the encoder's attention masks padding as keys; the rows of padding are computed */
    int padding_max;    /* largest number of padding tokens; 0: pad up to tokens_max */
    /* Template and prompt are tokenised separately. The prompt is truncated to tokens_max - drop_idx tokens;
     * then the actual number of tokens of template_before replaces drop_idx. template_after is NULL: rows of
     * a causal encoder do not depend on text after the padding. */
    bool template_apart;
    bool quotes_by_character; /* quoted parts of the prompt are tokenised one code point at a time */
    int tokens_max;     /* maximum number of tokens, including template, bos and eos; the rest is truncated */
    int tokens_planned; /* number of prompt tokens in a plan without a prompt; 0: tokens_max */
    int windows_max; /* a long prompt is split into at most this many windows of tokens_max; 0: truncated */
    const char *special_tokens[6]; /* template tokens that the tokenizer must define, NULL-terminated */
    int drop_idx; /* leading template tokens whose hidden states are dropped (diffusers: drop_idx) */
    struct image_prompt image_prompt;
    /* Required tokenizer_kind(): "BPE", "SentencePiece BPE", "CLIP BPE" or "unigram". NULL: no tokens, the
     * component reads the output of another text encoder (slot.reads). Its number of rows is tokens_max, or
     * that of the other encoder if tokens_max is 0. */
    const char *tokenizer;
    const char *tokenizer_folder; /* subfolder of the tokenizer in a Hugging Face folder */
    const char *tokenizer_from;   /* where to get the tokenizer; part of the error for a missing tokenizer */
    const char *classes[2];       /* class names of encoder and tokenizer in model_index.json */
};

enum { SLOTS_MAX = 10, SLOT_DIMENSIONS_MAX = 16 };

/* A component's place in a pipeline. Several slots may hold components of the same family. */
struct slot {
    const struct family *family; /* a slot without family ends a list of slots */
    /* Flag that selects the file, such as "--t5xxl"; also the name of the part in `convert`. A VAE encoder is
     * in the file of its decoder and has no flag and no prefixes. A tiny decoder is loaded by its flag only,
     * never found by content or folder. */
    const char *flag;
    const char *shares_file_with; /* flag of another slot whose file may contain this component; NULL: none */
    /* The model may lack this component. Without a vision encoder, requests that need it fail. The output of
     * an absent text encoder is zeros (model_condition_columns); one text encoder must be present. */
    bool optional;
    /* The component is no part of a model: only its flag loads it, never content or a folder of -m. Tiny
     * decoders are loaded the same way without this mark (slot_is_extra). */
    bool extra;
    const char *display_name; /* readable name, such as "CLIP-L text encoder"; NULL: family.display_name */
    const char *folder;       /* subfolder of the component in a Hugging Face folder */
    /* Usual name of the weight file ("taef1"), which selects the slot if weights for other slots have the
     * same shapes; NULL: shapes are unambiguous. */
    const char *weights_name;
    /* Tensor name prefixes in files that hold several components, NULL-terminated; the first is "". */
    const char *const *prefixes;
    const char *prefix; /* tensor name prefix in a Hugging Face folder that two slots share; NULL: none */
    /* Callback: true if the weights belong to this slot, not to another slot of the same family. NULL: all
     * weights of the family belong to this slot. */
    bool (*matches)(const struct tensor_index *view);
    /* Words in the file name that select this slot among slots with equal tensor shapes, such as "high". A
     * word ends at every character that is no letter or digit. NULL-terminated. */
    const char *name_words[3];
    struct text_recipe text; /* how a text encoder's prompt becomes tokens */
    /* Flag of an earlier slot whose text encoder writes this text encoder's second input, lane.source; or of
     * a vision encoder whose output is this component's input. NULL: none. */
    const char *reads;
    const char *class; /* class name in model_index.json of a vision encoder with its own folder */
    /* Dimensions whose published value in this slot differs from the family's. */
    struct {
        const char *name;
        int value;
    } dimension[SLOT_DIMENSIONS_MAX];
    const struct published_setting
        *published; /* settings whose values differ from the family's; NULL: none */
};

/* Timestep shift s of a flow-matching schedule: sigma = s u / (1 + (s - 1) u). */
enum flow_shift_rule {
    FLOW_SHIFT_FIXED,
    FLOW_SHIFT_BY_TOKENS, /* s = e^mu, mu linear in the number of image tokens (use_dynamic_shifting) */
    FLOW_SHIFT_FLUX2,     /* s = e^mu, mu by image tokens and steps (schedule_shift_flux2) */
};

/* Timestep shift by image tokens: mu is linear from base_shift at base_tokens to max_shift at max_tokens. */
struct flow_shift_line {
    double base_shift, max_shift;
    int base_tokens, max_tokens;
};

/* Distinguishes v-prediction weights from epsilon-prediction weights of equal shapes. In v-prediction
 * weights, the standard deviation of the values of a bias vector is above a threshold. */
enum { PREDICTION_PROBE_NAMES = 2 };
struct prediction_probe {
    const char *name[PREDICTION_PROBE_NAMES]; /* names of the bias tensor in authors' checkpoints and in
                                                 diffusers' files; NULL: no probe */
    double deviation;
};

/* Linear approximation of a VAE decoder for previews: pixel = bias + sum over channels c of value[c] *
 * rgb[c], 0 to 1, one pixel for each latent pixel. The latent is scaled as the denoiser reads it. */
struct latent_colours {
    int n; /* latent channels */
    const float (*rgb)[3];
    float bias[3];
    float scale; /* scaling_factor of the VAE that the values fit; 0: any VAE with n latent channels */
};

/* Preview colours of VAEs that several families share. */
extern const struct latent_colours latent_colours_flux, latent_colours_wan, latent_colours_qwen21;

enum { CONDITIONS_MAX = 8, DENOISER_SPANS_MAX = 2 };

enum condition_kind { CONDITION_TOKENS, CONDITION_POOLED };

/* One part of the denoiser's text input: prompt_embeds or pooled_projections from one slot. A slot has at
 * most one condition of each kind. */
struct condition {
    int slot;
    enum condition_kind what;
    struct hidden_states hidden; /* hidden states of the text encoder that make up prompt_embeds */
    bool states_by_rows;         /* several hidden states are concatenated along the token axis; otherwise
                                    along the feature axis */
    bool projected;              /* apply text_projection to the pooled row */
    /* text_projection is applied only in a pipeline folder whose config.json names the slot's class.
     * Otherwise text_projection is unused and may be absent. */
    bool projected_if_class;
    /* Concatenate with the previous condition's tokens along the feature axis (torch.cat, dim=-1);
     * otherwise along the token axis. Pooled rows are always concatenated along the feature axis. */
    bool concat_columns;
    bool zero_padded; /* zero-pad the (concatenated) features to the denoiser's width */
    int padded_to;    /* pad with zero rows to this many tokens; 0: no padding */
    /* The condition's rows are the embeddings of request.redux_images, summed over the images. They follow
     * the text's rows in the positive prompt; without images there are none. request.redux_strength scales
     * all rows of the prompt. */
    bool of_redux;
    /* Key in model_index.json of a list that must equal the layers of `hidden`; NULL: none. */
    const char *layers_key;
};

/* A denoiser and the timesteps (0 to 1000) that it runs for: from 1000 * `below` down to 1000 * `below` of
 * the next span. */
struct denoiser_span {
    int slot;
    double below; /* upper end of the timestep range / 1000; boundary_ratio in model_index.json replaces it; 0
                     ends the list */
};

/* Extra input channels that are concatenated with the latent (lane.concat). */
enum concat_rule {
    CONCAT_NONE,
    CONCAT_FILL,    /* Flux Fill, needs --init-img and --mask: latent of the masked image, then the mask, one
                       channel per pixel of a latent pixel */
    CONCAT_INPAINT, /* Stable Diffusion inpainting, needs --init-img and --mask: one mask channel, sampled at
                       each latent pixel's top left pixel, then the latent of the masked image */
    CONCAT_I2V, /* WAN image-to-video, needs --init-img, takes no --mask. First a mask, one channel per video
                   frame of a latent frame, 1 in input frames (first, last); then the latent of a video that
                   has the input frames and is grey elsewhere */
    CONCAT_CONTROL, /* WAN VACE, takes a control video, mask and reference images (leading frames): latent of
                       the video outside the mask, latent inside, then the mask, one channel per pixel of a
                       latent pixel */
    CONCAT_CONTROL_IMAGE, /* Flux Canny and Depth, need a control image (--control-image): its latent */
};

/* How a pipeline uses --init-img. */
enum init_image_rule {
    INIT_IMG2IMG,     /* --init-img is encoded and noised; sampling starts from it at the step that --strength
                         sets */
    INIT_FIRST_FRAME, /* --init-img is the first frame of the video: concat channels (CONCAT_I2V), or a first
                         latent frame without noise */
    INIT_NONE,        /* --init-img is refused */
};

/* Micro-conditioning of SDXL (diffusers: add_time_ids), in lane.add_time_ids. */
enum add_time_ids_rule {
    ADD_TIME_IDS_NONE,
    ADD_TIME_IDS_SIZES,           /* image height and width, crop top and left (0), height and width again */
    ADD_TIME_IDS_SIZES_AND_SCORE, /* image height, width; crop top, left (0); aesthetic score (6; negative
                                     prompt: 2.5) */
};

/* Areas in pixels to which reference images are resized, and of the output image. Aspect ratios are kept;
 * sides are rounded to multiples of `multiple`. */
struct picture_areas {
    int64_t vision; /* image area for the vision encoder, which may resize again; 0: unchanged */
    int64_t vae;    /* image area for the VAE encoder; 0: see vae_max */
    int64_t output; /* default output area, in the last reference's aspect ratio; 0: recipe_defaults.width,
                       height */
    int multiple;
    /* Flux.2: largest image area for the VAE encoder. A larger image is shrunk to this area; then each image
     * is cropped around its centre to whole tokens. Small and narrow images are refused, as in diffusers
     * (Flux2ImageProcessor.check_image_input). The default output area for an input image (--init-img)
     * has the same limit. 0: as in Flux Kontext (picture_reference_size). */
    int64_t vae_max;
    bool output_of_first; /* the default output size is the size at which the first reference is encoded */
    /* LongCat-Image-Edit */
    bool rounds_up;     /* the sides of the default output size are rounded up to multiples of `multiple` */
    bool vae_of_output; /* references are resized to the output size for the VAE encoder */
    int vision_divisor; /* the vision encoder reads the image of the VAE encoder, with sides divided by this;
                           0: the reference itself */
};

/* Files in a Hugging Face repository. A list ends with repository NULL. */
struct hf_source {
    const char *repository;
    const char *flag;  /* flag that loads the files; NULL: -m (model with or without text encoders) */
    const char *files; /* file name in the repository; NULL: the whole repository, in diffusers' layout */
    int megabytes;     /* file size in 10^6 bytes, rounded to three digits; 0: unknown */
};

/* Published models of a recipe, for listings (`sluice families`, models/README.md) and advice in errors only:
 * no file is chosen by this data. */
enum { PUBLISHED_SOURCES_MAX = 2 };
struct publication {
    const char *title; /* readable model names, such as "Flux.1 dev" */
    /* Reference implementation and version of the test fixture for whole pipelines of this recipe; NULL: no
     * fixture. */
    const char *reference;
    const struct recipe *parts_compared_in; /* if there is no fixture: recipe whose fixture covers all
                                               components of this recipe */
    /* Lists of files: those of this recipe alone, then those that recipes of the denoiser's family share. */
    const struct hf_source *sources[PUBLISHED_SOURCES_MAX];
};

/* How files and flags select a recipe among those whose denoiser has the same family. */
struct recipe_selection {
    int variant; /* required component.variant of the denoiser */
    /* Word in the name of the model or of the denoiser's file that selects this recipe among recipes with the
     * same shapes; NULL: the default recipe for these shapes. */
    const char *name_word;
    const char *name_aliases[3]; /* alternatives of name_word (NULL: of its absence); ends with NULL */
    const char *name_excludes;   /* word that deselects a name despite name_word; NULL: none */
    /* Boolean key of model_index.json (false if absent) that must equal index_value. If model_index.json
     * names the pipeline, this key decides instead of name_word. NULL: no key. */
    const char *index_key;
    bool index_value;
    /* Range of `shift` (0 if absent) in the model's scheduler_config.json. If the model has this file, the
     * range decides instead of name_word. shift_below 0: no range. */
    double shift_least, shift_below;
    const char *pipelines[5]; /* values of _class_name in model_index.json, NULL-terminated */
    const char *edit;         /* value of --edit that selects this recipe; NULL: --edit does not select it */
};

/* The denoiser's text input: prompt_embeds and pooled_projections. */
struct recipe_text {
    struct condition condition[CONDITIONS_MAX];
    int n_conditions;
    /* Image processor of the vision encoder: class in model_index.json and folder; NULL: none. of_prompts:
     * the processor's folder also holds the tokenizer. */
    struct {
        const char *class, *folder;
        bool of_prompts;
    } processor;
    bool force_zeros_for_empty_prompt; /* default of this model_index.json key; true: the embeddings of an
                                          absent negative prompt are zeros; false: the embeddings of "" */
    const char *default_negative;      /* negative prompt if none is passed; NULL: "" or zeros */
};

/* How a pipeline uses the images of a request. */
struct recipe_images {
    enum init_image_rule init;
    enum concat_rule concat;
    bool samples_posterior; /* true: the latent of an input image is a sample of the VAE posterior; false: its
                               mode */
    int references_min, references_max; /* allowed number of reference images (-r) */
    /* Inpainting without mask channels: the latent of the input image is also the denoiser's first reference;
     * references of the request follow. Needs samples_posterior false. */
    bool init_is_reference;
    /* Inpainting without mask channels: latent pixels have the interpolated mask (mask_to_latent_bilinear),
     * from 0 to 1; false: the mask of the nearest pixel, 0 or 1. */
    bool mask_bilinear;
    bool references_if_unnamed; /* -r is allowed only if neither --edit nor model_index.json names the
                                   pipeline */
    struct picture_areas areas;
};

/* The denoising loop: denoisers, schedule, guidance and further denoiser inputs. Keys of
 * scheduler_config.json replace the sampling and shift values. */
struct recipe_denoising {
    struct denoiser_span span[DENOISER_SPANS_MAX + 1];
    struct sampling sampling; /* sampling defaults for keys that scheduler_config.json lacks */
    struct prediction_probe prediction_probe; /* probe for v-prediction weights, used if scheduler_config.json
                                                 lacks prediction_type */
    /* Timestep shift, used if scheduler_config.json sets none. */
    enum flow_shift_rule shift_rule;
    double flow_shift;
    struct flow_shift_line shift_line;
    bool keeps_shift_line; /* scheduler_config.json does not replace shift_line, which the pipeline sets */
    double shift_terminal; /* end of the shifted schedule (engine/sample/schedule.h); 0: none */
    guidance_rule *guide;
    bool cfg_needs_negative; /* without a negative prompt there is no classifier-free guidance, at any
                                cfg_scale */
    bool takes_guidance;     /* the denoiser has an embedding of the distilled guidance scale */
    /* Guidance of LTX-2 (guidance_denoised): combines denoised latents, separately for video and sound, and
     * rescales the result. The request may set stg_*, modality_* and cfg_rescale. */
    bool guides_denoised;
    /* Sigmas of a distilled model, without the final 0. A run of n_sigmas steps uses them without a shift;
     * other numbers of steps use the schedule. NULL: none. */
    const double *sigmas;
    int n_sigmas;
    enum add_time_ids_rule add_time_ids;
};

/* Sound that is denoised together with the video. Its latent is [channels, 1, L, bins], with L =
 * latents_per_second times the video's seconds, rounded half to even. channels 0: no sound. */
struct recipe_sound {
    int channels, bins;
    double latents_per_second;
};

enum { STG_BLOCKS_MAX = 8 };

/* Default generation settings for models without a sluice.json. */
struct recipe_defaults {
    int width, height, frames, fps, steps; /* frames: default num_frames; 0: one image */
    double cfg_scale, guidance, strength;
    /* Guidance of models with guides_denoised. audio_cfg_scale: 0 means cfg_scale. stg_blocks: ends with -1.
     */
    struct {
        double audio_cfg_scale, stg_scale, modality_scale, cfg_rescale;
        int stg_blocks[STG_BLOCKS_MAX];
    } guides;
    double cfg_scale_low; /* cfg_scale of the second of two denoisers; 0: the first denoiser's cfg_scale */
    /* Distilled model (Turbo) with equal shapes: its sample_size and its default steps (0: no such model).
     * Its default cfg_scale is 1. A configuration with this sample_size and trailing timesteps without zero
     * terminal SNR selects these defaults. */
    struct {
        int latent_side, steps;
    } distilled;
};

/* A pipeline as data. The same session code runs every recipe. */
struct recipe {
    const char *name; /* value of --family, such as "zimage" */
    /* Components in the order of their stages, then the VAE encoder, then a tiny decoder (TAESD), which is no
     * part of a model. Without a VAE encoder, image inputs are disabled. */
    struct slot slot[SLOTS_MAX + 1]; /* an empty slot ends the list */
    struct recipe_selection selection;
    struct recipe_text text;
    struct recipe_images images;
    struct recipe_denoising denoising;
    struct recipe_sound sound;
    struct recipe_defaults defaults;
    int patch; /* side of a denoiser's token, in latent pixels */
    /* Width and height are multiples of this many tokens; 0 means 1. */
    int size_tokens;
    int frames_max;                       /* maximum num_frames; 0: an image model */
    const struct latent_colours *colours; /* preview colours for the published VAE; NULL: none known */
    struct publication published;
};

#define DECLARE_RECIPE(name) extern const struct recipe recipe_##name;
PUBLISHED_RECIPES(DECLARE_RECIPE)

extern const struct recipe *const recipes[]; /* NULL-terminated */

/* Index of the recipe's first slot with a family of this kind, without slots that are slot.extra; SLOTS_MAX:
 * none. */
int recipe_slot(const struct recipe *recipe, enum family_kind kind);
/* Family of the recipe's first slot with a family of this kind; NULL: none. */
const struct family *recipe_family(const struct recipe *recipe, enum family_kind kind);
/* True if a recipe that --edit selects has a denoiser of the same family and variant. */
bool recipe_has_edit_variant(const struct recipe *recipe);
int recipe_count_slots(const struct recipe *recipe, const struct family *family);

/* Returns number i of the download sources of a recipe's published models; NULL after the last. */
const struct hf_source *recipe_source(const struct recipe *recipe, int i);

/* Published value of a dimension: the slot's override, else the family's. */
int slot_dimension(const struct slot *slot, const struct dimension *d);

/* Returns slot number i, counted over the slots of all recipes in order, then of components that belong to no
 * pipeline (control networks, upscalers); NULL after the last. */
const struct slot *models_slot(int i);
/* True for the slots of components that are no part of a model and loaded by their flag only: tiny decoders
 * and slot.extra. */
bool slot_is_extra(const struct slot *slot);
/* Finds the first recipe with a slot that is extra and has the family of this name; sets *slot. Returns NULL
 * if none. */
const struct recipe *models_find_extra(const char *name, int *slot);
/* True if the slot accepts this family under this tensor name prefix. Does not call slot.matches. */
bool slot_takes(const struct slot *slot, const struct family *family, const char *prefix);
/* True if a file recognised as this family may fill the slot: the slot's family, or one with the same tensors
 * (family_files.same_tensors). */
bool slot_fits_family(const struct slot *slot, const struct family *family);
/* Finds the first recipe (if denoiser is not NULL: with this denoiser) that has a slot for the family and
 * prefix. Sets *slot to the slot's index; returns NULL if none. For a component that belongs to no pipeline
 * (control networks, upscalers), returns a recipe that only lists slots. */
const struct recipe *models_find_slot(const struct family *family, const char *prefix,
                                      const struct family *denoiser, int *slot);
/* Index of the component that embeds request.redux_images (condition.of_redux); the vision encoder in front
 * of it is its source slot. SLOTS_MAX: none. */
int recipe_redux_slot(const struct recipe *recipe);
/* Index of the text or vision encoder that writes this slot's lane.source (slot.reads); SLOTS_MAX: none. */
int recipe_source_slot(const struct recipe *recipe, int slot);
/* Index of the text encoder whose lane.source is the output of this slot; SLOTS_MAX: none. */
int recipe_reader_slot(const struct recipe *recipe, int slot);
/* Number of parts into which a condition's encoder output is split by columns; the parts are concatenated
 * along the token axis of prompt_embeds (condition.states_by_rows). */
int condition_parts(const struct condition *condition);
/* The recipe's condition of this kind (prompt_embeds or pooled_projections) that reads the slot's text
 * encoder; NULL: none. */
const struct condition *recipe_condition(const struct recipe *recipe, int slot, enum condition_kind what);

/* Index of the component's block of this kind and number; -1: none. */
static inline int component_find_block(const struct component *c, const struct block_kind *kind, int number) {
    for (int i = 0; i < c->n_blocks; i++)
        if (c->blocks[i].kind == kind && c->blocks[i].number == number) return i;
    return -1;
}

#endif
