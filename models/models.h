/* The families and the recipes: what a pipeline is, as data. */
#ifndef SLUICE_MODELS_H
#define SLUICE_MODELS_H

#include "engine/run/family.h"
#include "engine/sample/guidance.h"
#include "engine/sample/sampling.h"

/* All that are published: X(name) for family_NAME, each in models/NAME.c. */
/* clang-format off */
#define PUBLISHED_FAMILIES(X)                                                                                \
    X(zimage) X(flux) X(unet) X(qwen_image) X(wan) X(sd3)                                                           \
    X(qwen3) X(qwen25vl) X(qwen25vl_vision) X(clip) X(clip_vision) X(t5) X(umt5)                             \
    X(vae_kl) X(vae_kl_encoder) X(vae_wan) X(vae_wan_encoder) X(vae_wan22) X(vae_wan22_encoder)              \
    X(taesd) X(taehv)
/* clang-format on */
/* X(name) for recipe_NAME of models/recipes.c. Where nothing names the pipeline the first that fits the
 * weights is taken. */
/* clang-format off */
#define PUBLISHED_RECIPES(X)                                                                                 \
    X(zimage)                                                                                                \
    X(flux) X(flux_schnell) X(flux_kontext) X(flux_fill)                                                     \
    X(qwen_image) X(qwen_image_edit) X(qwen_image_edit_plus) X(qwen_image_edit_2511)                         \
    X(sd1) X(sd1_inpaint) X(sd2) X(sd2_inpaint) X(sdxl) X(sdxl_inpaint) X(sdxl_refiner)                      \
    X(sd1_lcm) X(sdxl_lcm)                                                                                   \
    X(wan) X(wan_i2v) X(wan22) X(wan22_i2v) X(wan_ti2v) X(wan_vace)                                          \
    X(sd3) X(sd35_medium) X(sd35_large) X(sd35_large_turbo)
/* clang-format on */

#define DECLARE_FAMILY(name) extern const struct family family_##name;
PUBLISHED_FAMILIES(DECLARE_FAMILY)

/* By its width, is it OpenAI's CLIP-L, or OpenCLIP's H or G, as far as it is any of them? For slots. */
bool clip_is_l(const struct tensor_index *view);
bool clip_is_h(const struct tensor_index *view);
bool clip_is_g(const struct tensor_index *view);

/* Of Flux: with distilled guidance (dev, Kontext), without (schnell), with a picture around a hole (Fill). */
enum { FLUX_GUIDED, FLUX_SCHNELL, FLUX_FILL };

/* Of WAN: what its shapes tell. 2.1's I2V sees rows of a vision encoder, 2.2's does not; how many denoisers
 * and which autoencoder there are tells more. */
enum { WAN_T2V, WAN_I2V, WAN22_I2V, WAN_VACE };

/* Of Stable Diffusion 3: what its shapes tell. 3.5 large has normed heads, 3.5 medium some second attention.
 */
enum { SD3_MEDIUM, SD35_MEDIUM, SD35_LARGE };

/* Of the UNet: what its shapes tell. */
enum {
    UNET_SD1,
    UNET_SD1_INPAINT,
    UNET_SD2,
    UNET_SD2_INPAINT,
    UNET_SDXL,
    UNET_SDXL_INPAINT,
    UNET_SDXL_REFINER,
    UNET_SD1_GUIDED,
    UNET_SDXL_GUIDED,
};

/* All families, NULL-terminated. */
extern const struct family *const families[];

/* How a prompt with pictures is told to a text encoder: their rows stand among its tokens. */
struct pictured {
    const char *template_before; /* instead of the text recipe's; NULL: its prompts have no pictures */
    int dropped;                 /* instead of the text recipe's */
    const char *before, *after; /* text around each picture, ahead of the prompt's; %d in it: which, from 1 */
    const char *pad;            /* the token in whose places a picture's rows stand */
};

/* How a text encoder sees a prompt. */
struct text_recipe {
    const char *template_before, *template_after; /* text around the prompt's; NULL: none */
    bool cleaned; /* of HTML's characters and surplus white space: engine/open/prompt_clean.h */
    /* Tokens around it: they stay where a prompt is cut. NULL: none. */
    const char *first, *last;
    const char *pad;        /* shorter ones are padded to tokens_max with this token; NULL: they stay short */
    bool pads_with_0;       /* or with id 0, whatever that stands for */
    int tokens_max;         /* with all that is around it; of longer ones the first are seen */
    int windows_max;        /* longer ones go on in so many windows of tokens_max; 0: they do not */
    const char *special[5]; /* tokens of the template that the tokenizer must know, NULL-terminated */
    int dropped; /* tokens of the template before the prompt, whose rows the denoiser does not see */
    struct pictured pictured;     /* such prompts are not cut */
    const char *tokenizer;        /* its kind, as tokenizer_kind() names it: "BPE", "CLIP BPE", "unigram" */
    const char *tokenizer_folder; /* of Hugging Face's layout */
    const char *tokenizer_from;   /* where a missing tokenizer is usually found */
    const char *classes[2];       /* of encoder and tokenizer in model_index.json */
};

enum { SLOTS_MAX = 10, SLOT_DIMENSIONS_MAX = 16 };

/* A place in a pipeline, and the family that stands in it; one family may stand in several. */
struct slot {
    const struct family *family; /* NULL ends the list */
    /* That chooses its file ("--t5xxl"), and the name of that file's part where it is converted. An
     * autoencoder's encoder lies in its decoder's files: it has neither flag nor prefixes. A tiny decoder's
     * is found by its flag alone, never by content or folder. */
    const char *flag;
    const char *with; /* the flag of another slot, in whose file it is looked for too; NULL: none */
    /* A model may be without it. It is refused what needs a vision encoder; zeros stand in place of what a
     * text encoder would give (model_condition_columns), but one of a pipeline's text encoders there must be.
     */
    bool optional;
    const char *word;   /* what people call what stands here, where its family has a wider word; or NULL */
    const char *folder; /* of Hugging Face's layout */
    /* What files of weights for it are called, where those for other slots have the same shapes and nothing
     * else tells; NULL: nobody asks. */
    const char *known_as;
    /* What its tensors' names may begin with in files that hold other components too, NULL-terminated; the
     * first is "". */
    const char *const *prefixes;
    const char *prefix; /* and do in the published folder, which it shares with another slot; NULL: nothing */
    /* Where content must tell which slot of one family these weights are for: are they for this one? NULL:
     * whatever the family is. */
    bool (*is)(const struct tensor_index *view);
    /* Where only its file's name does, of slots of the same shapes: words of it, between other characters
     * than letters and digits. NULL-terminated. */
    const char *called[3];
    struct text_recipe text; /* of a text encoder */
    const char *class; /* transformers', in model_index.json, of a vision encoder in a folder of its own */
    /* Where its weights differ from their family's published dimensions. */
    struct {
        const char *name;
        int value;
    } dimension[SLOT_DIMENSIONS_MAX];
    const struct published_setting *published; /* and settings; NULL: nowhere */
};

/* The shift s of a schedule, in s u / (1 + (s - 1) u). */
enum flow_shift_rule {
    FLOW_SHIFT_FIXED,
    FLOW_SHIFT_BY_TOKENS, /* e^mu, mu linear in the latent's tokens */
};

/* mu at two numbers of tokens. */
struct flow_shift_line {
    double base_shift, max_shift;
    int base_tokens, max_tokens;
};

/* A vector of a denoiser by which weights that predict v are told from others of the same shapes: its values'
 * standard deviation is larger than this. */
enum { TELLING_NAMES = 2 };
struct telling_vector {
    const char *name[TELLING_NAMES]; /* authors' and diffusers'; NULL: nothing tells */
    double deviation;
};

/* What a latent as denoisers see it looks like, about: of each channel what it adds to red, green and blue,
 * from 0 to 1, of a picture whose pixels are the latent's. */
struct latent_colours {
    int n; /* channels */
    const float (*rgb)[3];
    float rest[3]; /* where all of them are 0 */
    float scale;   /* of the autoencoder whose latents they are; 0: its channels tell it */
};

extern const struct latent_colours latent_colours_sd1, latent_colours_sdxl, latent_colours_sd3,
    latent_colours_flux, latent_colours_wan, latent_colours_wan22;

enum { CONDITIONS_MAX = 8, DENOISER_SPANS_MAX = 2 };

enum condition_kind { CONDITION_TOKENS, CONDITION_POOLED };

/* What a denoiser sees of a prompt: rows of its text, or columns of its pooled row, from one slot. Of each
 * kind a slot has one at most. */
struct condition {
    int slot;
    enum condition_kind what;
    int layers_left_out; /* the output of all layers but so many last ones is read; 0: the encoder's own end
                          */
    bool normed;         /* rows go through the encoder's last norm also where layers are left out */
    bool projected;      /* the pooled row goes through the encoder's projection */
    bool projected_of_class; /* it does, but only in its pipeline's folder, and where a configuration says
                                that the encoder is of its slot's class: elsewhere the projection is neither
                                used nor needed */
    bool beside;  /* its rows begin where those of the tokens before begin, its columns behind theirs;
                     else it lies below all before. Pooled ones lie beside each other always */
    bool widened; /* zeros stand behind its columns, and those of what lies beside it, up to the denoiser's */
    int padded_to; /* rows, with zeros; 0: as many as there are */
};

/* Steps whose timestep is below this part of training's 1000 are this denoiser's, up to the next span. */
struct denoiser_span {
    int slot;
    double below; /* a model_index.json may say another boundary between two; 0 ends the list */
};

/* What a denoiser reads beside the latent. */
enum concat_rule {
    CONCAT_NONE,
    /* Such models need a picture and a mask: */
    CONCAT_MASKED,  /* the latent of the picture around the mask, then the mask, a channel a pixel under a
                       latent pixel */
    CONCAT_INPAINT, /* the mask in one channel, of each latent pixel its upper left pixel, then the latent of
                       the picture around it */
    /* Such models need a picture and take no mask: */
    CONCAT_FRAMES, /* of a video whose first frame is given, or the first and the last: which frames are, in a
                      channel a frame under a latent one, 1 where it is; then the latent of these frames with
                      grey ones between them */
    /* Such models may have pictures to refer to, which are frames in front, and a video that leads: */
    CONCAT_LED, /* the latent of the leading video where it stays, that of where it is drawn anew, and the
                   mask, a channel a pixel under a latent pixel */
};

/* What a picture to start from is to a pipeline. */
enum init_rule {
    INIT_NOISED, /* where the run begins, noised as far as the steps say that strength leaves */
    INIT_FRAME, /* the first frame of a video, as it is: beside the latent (CONCAT_FRAMES), or as the latent's
                   own first frame, which stays without noise */
    INIT_NONE,  /* nothing: it takes none */
};

/* What a denoiser is told beside the pooled row (lane.numbers), as diffusers' pipelines have it. */
enum numbers_rule {
    NUMBERS_NONE,
    NUMBERS_SIZES,           /* height and width of an original, top and left of what is cut out of it, height
                                and width of the target: nothing is cut, and all are the picture's */
    NUMBERS_SIZES_AND_SCORE, /* those of the original and what is cut out, and an aesthetic score: 6, of a
                                negative prompt 2.5 */
};

/* Sizes of pictures to refer to, and of what is drawn after them: of so many pixels, about, with the aspect
 * of a picture, sides rounded to multiples. */
struct picture_areas {
    int64_t seen;    /* as a vision encoder is shown it, which may read it at another size; 0: as it is */
    int64_t encoded; /* by an autoencoder; 0: as Kontext reads it (picture_reference_size) */
    int64_t drawn;   /* where the request says no size: after its last picture; 0: whatever it refers to */
    int multiple;
};

/* A pipeline. One session runs every recipe. */
struct recipe {
    const char *name; /* "zimage" */
    /* In the order of their stages; an autoencoder's encoder last, and behind it what is no part of a model:
     * a tiny decoder. The encoder may be absent from a model, which then takes no pictures. */
    struct slot slot[SLOTS_MAX + 1]; /* the last stays empty */
    int variant;                     /* the denoiser's */
    /* A word of the model's name, or of that of the denoiser's file, that tells it from recipes of the same
     * shapes; NULL: it is taken where there is none. */
    const char *called;
    struct condition condition[CONDITIONS_MAX];
    int n_conditions;
    struct denoiser_span span[DENOISER_SPANS_MAX + 1];
    const char *pipelines[5]; /* _class_names in model_index.json, NULL-terminated */
    /* transformers' class of what prepares pictures for the vision encoder, and its folder; NULL: the
     * pipeline has none. One of a prompt and its pictures has the prompt's tokenizer too. */
    struct {
        const char *class, *folder;
        bool of_prompts;
    } processor;
    int patch;      /* latent pixels on a token's side: width and height are multiples of patch * factor */
    int frames_max; /* of a video; 0: it draws pictures */
    struct sampling sampling;      /* where scheduler_config.json does not say */
    struct telling_vector telling; /* likewise */
    guidance_rule *guide;
    bool guides_if_negative; /* without a negative prompt there is no guidance, whatever its scale */
    enum concat_rule concat;
    enum init_rule init;
    enum numbers_rule numbers;
    bool zero_negative;   /* where no model_index.json says it: an absent negative prompt is zeros, not "" */
    const char *negative; /* an absent negative prompt is this; NULL: "", or zeros */
    const struct latent_colours *colours; /* of its published autoencoder; NULL: nobody knows them */
    /* The schedule's shift, where scheduler_config.json does not say. */
    enum flow_shift_rule shift_rule;
    double flow_shift;
    struct flow_shift_line shift_line;
    double shift_terminal; /* see schedule.h; 0: none */
    /* Pictures. */
    bool samples_init; /* pictures to start from are drawn from the encoder's distribution, not its mean */
    int references_min, references_max; /* pictures to refer to */
    bool references_if_unnamed;         /* only where no model_index.json names another pipeline */
    struct picture_areas areas;
    const char *edit; /* what --edit calls it; NULL: it is not chosen so */
    /* Defaults where the model's folder has no sluice.json. */
    int width, height, frames, fps, steps; /* frames 0: one */
    /* A distilled model has the same shapes; its files say a smaller latent, and steps that begin at the last
     * timestep, without noise alone being there. It is guided by nothing. steps 0: none is known. */
    struct {
        int latent_side, steps;
    } distilled;
    double cfg_scale, guidance, strength;
    double cfg_scale_low; /* of two denoisers the second's; 0: as cfg_scale */
    bool takes_guidance;
};

#define DECLARE_RECIPE(name) extern const struct recipe recipe_##name;
PUBLISHED_RECIPES(DECLARE_RECIPE)

extern const struct recipe *const recipes[]; /* NULL-terminated */

/* The first slot of that kind; SLOTS_MAX: none. */
int recipe_slot(const struct recipe *recipe, enum family_kind kind);
/* The same slot's family; NULL: none. */
const struct family *recipe_family(const struct recipe *recipe, enum family_kind kind);
/* Do editing pipelines (--edit) have a denoiser of the same shapes? */
bool recipe_is_edited(const struct recipe *recipe);
/* In how many slots does that family stand? */
int recipe_count(const struct recipe *recipe, const struct family *family);

/* The size that is published: of the slot's family, or of the slot where that differs. */
int slot_dimension(const struct slot *slot, const struct dimension *d);

/* Slot i of all recipes, one recipe after the other; NULL behind the last. */
const struct slot *models_slot(int i);
/* Is what stands there no part of a model, so that only its flag brings it? */
bool slot_is_extra(const struct slot *slot);
/* The first recipe with an extra of that name (its family's), and the slot's number; NULL: none has one. */
const struct recipe *models_extra(const char *name, int *slot);
/* May weights of that family stand there, whose tensors' names begin so? Its `is` has not been asked. */
bool slot_takes(const struct slot *slot, const struct family *family, const char *prefix);
/* The first recipe of that denoiser, NULL: of any, with a slot that takes them, and the slot's number; NULL:
 * none has one. */
const struct recipe *models_place(const struct family *family, const char *prefix,
                                  const struct family *denoiser, int *slot);
/* What is seen of that slot, or NULL. */
const struct condition *recipe_condition(const struct recipe *recipe, int slot, enum condition_kind what);

#endif
