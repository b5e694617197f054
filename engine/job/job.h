/* The data of a job: a request resolved for one model and device, and everything that is computed before any
 * weight is read: tokens, schedule, denoiser calls, memory needs, the plan, and the stages of the chosen
 * layout.
 *
 * Each part of struct job is written by one file of this folder, in this order (open.c): request and
 * `settings` by request.c, `controls` by controls.c, `pictures` by pictures.c, `prompts` by prompts.c,
 * `schedule` by job.c, `upscale` by upscale.c, `candidates`, `need` and `plan` by planner.c, `layout` by
 * layout.c. During the run only the contents of the layout's tensors and `pictures.pixels` change. */
#ifndef SLUICE_JOB_JOB_H
#define SLUICE_JOB_JOB_H

#include "engine/cache/prompt_cache.h"
#include "engine/cache/requantised.h"
#include "engine/cache/session_adapters.h"
#include "engine/open/prompt_syntax.h"
#include "engine/open/model.h"
#include "engine/open/prompt.h"
#include "engine/pictures/fit.h"
#include "engine/pictures/pictures.h"
#include "engine/run/executor.h"
#include "engine/sample/sampler.h"
#include "engine/sample/sampling.h"
#include "models/models.h"

enum { BATCH_MAX = SLUICE_BATCH_MAX };

enum { PROMPTS_MAX = 2 };
/* Guidance branches: passes of the denoiser for one image, in the order of their lanes. BRANCH_NEGATIVE has
 * the negative prompt, all others the prompt. BRANCH_STG: spatio-temporal guidance. BRANCH_ISOLATED: modality
 * guidance. BRANCH_SKIP: skip-layer guidance. The last two come last because their lanes may run in fewer
 * evaluations than the others (lane.evaluations). */
enum branch { BRANCH_PROMPT, BRANCH_STG, BRANCH_ISOLATED, BRANCH_NEGATIVE, BRANCH_SKIP, BRANCHES_MAX };

/* The model, device and session caches that a job uses. */
struct job_context {
    const struct sluice_model *model;
    struct device *device;
    struct requantised *requantised;   /* the session's weight conversion (--type); NULL: unused */
    struct session_adapters *adapters; /* the session's adapters (LoRA); NULL: unused */
    struct prompt_cache *prompt_cache; /* the session's prompt cache; NULL: unused */
    const struct job *parent;          /* for a preview job: the job whose latents it decodes; else NULL */
    /* For the job of a second pass (--hires): the job of the first pass, whose prompts and references it
     * uses; else NULL. */
    const struct job *first_pass;
    bool upscales; /* the job only enlarges request.init_image */
};

/* How previews are decoded: by a linear map of latent channels to RGB, the tiny autoencoder or the VAE. */
enum preview { PREVIEW_NONE, PREVIEW_LATENT, PREVIEW_TAESD, PREVIEW_VAE, N_PREVIEWS };

/* How a second pass (--hires, --upscaler) enlarges the first pass's result. Before HIRES_LANCZOS: the latent,
 * by interpolation or a latent upscaler. From HIRES_LANCZOS on: the decoded image. */
enum hires {
    HIRES_NONE,
    HIRES_NEAREST,
    HIRES_BILINEAR,
    HIRES_UPSCALER,
    HIRES_LANCZOS,
    HIRES_MODEL,
    N_HIRES,
};

/* The choices of the request, with absent ones taken from model and device. */
struct job_settings {
    bool decode_only; /* true: the job decodes a latent file or only enlarges an image; it has no prompts and
                         no steps */
    /* Sampler, schedule and prediction type: the request's choice, else the model's. */
    struct sampling sampling;
    double terminal; /* flow models: sigma at which the last step begins (shift_terminal); 0: not set */
    enum precision precision; /* compute precision of the denoiser */
    /* Precision of text and vision encoders: the denoiser's; with int8 and f16, the device's default. */
    enum precision text_precision;
    enum fit fit; /* how input images are fitted to the output size */
    enum preview preview;
    enum hires hires;                 /* enlargement before the second pass */
    struct conversion_choice weights; /* conversion of weights on load */
    int decoder_slot;                 /* slot of the decoder in use: VAE or tiny autoencoder */
    int n_prompts;                    /* number of prompts (index 0: positive, 1: negative) */
    bool zero_prompt;      /* no positive prompt, only redux_images: its text embeddings are zeros */
    int n_encoded_prompts; /* prompts that are encoded; an absent negative prompt uses zero embeddings */
};

/* A control image of the request, in the request's order. Its pictures: see control_picture. */
struct job_control {
    /* Index of the control network in sluice_model.component (MODEL_CONTROL + k); -1: the denoiser itself
     * reads the image, as concat channels, and no network runs. */
    int component;
    double strength;    /* factor of the residuals */
    double start, end;  /* step i of n steps uses the network if i/n >= start and (i+1)/n <= end */
    int mode;           /* kind of the control image of a union network; 0 for other networks */
    bool canny;         /* replace the image by its edges */
    bool inpaints_init; /* mask and image to inpaint are the request's --mask and --init-img */
};

/* Dimensions of the latents, and the chunks in which the VAE decodes their frames. */
struct job_latents {
    int batch;              /* number of images or videos in the batch */
    int32_t C, F, Y, X;     /* dimensions of one latent; F includes the reference frames */
    int32_t sound[4];       /* dimensions of the latent of a video's sound [C, 1, L, B]: channels, latent
                               frames, frequency bins; 0: no sound */
    int n_clean_frames;     /* number of latent frames taken from the input image, without noise */
    int n_reference_frames; /* number of VACE reference frames in front of the video */
    int n_chunks;
    struct frame_chunk chunks[FRAME_CHUNKS_MAX];
};

/* Input pictures that are encoded, in the order of their stages. Latents sampled from the VAE encoder draw
 * from an image's random generator in this order too. */
enum encoded_kind {
    ENCODED_VISION,
    ENCODED_REDUX, /* image of redux_images: listed for the vision encoder, then for the embedder */
    ENCODED_INIT,
    ENCODED_MASKED,
    ENCODED_REFERENCE,
    ENCODED_FRAMES,          /* a video of the first and last frame, grey in between (image-to-video) */
    ENCODED_FIRST,           /* the first frame of a video, encoded alone as an image */
    ENCODED_CONTROL,         /* inactive or reactive part of a VACE control video (control_video.h) */
    ENCODED_REFERENCE_FRAME, /* VACE reference image: a latent frame in front of the video */
    /* Control image and image to inpaint of control `reference` (control_images.h). */
    ENCODED_CONTROL_IMAGE,
    ENCODED_CONTROL_INPAINT,
    ENCODED_ENLARGED, /* second pass: enlarged image `reference` of the first pass (--hires) */
};

struct encoded {
    enum encoded_kind kind;
    int slot;                 /* slot of the vision encoder or VAE encoder */
    int reference;            /* index among the encoded pictures of the same kind */
    struct picture_size size; /* size in pixels at which the picture is encoded */
    int32_t columns, rows;    /* vision encoders: grid of vision tokens */
    int n_chunks;             /* number of chunks of frames, one evaluation each (1 for an image) */
};
enum { ENCODED_MAX = BATCH_MAX + 2 + 2 * LANE_REFERENCES_MAX + 3 * CONTROLS_MAX };

/* True for pictures whose encoder writes token rows, false for pictures that the VAE encodes. */
static inline bool encoded_is_tokens(const struct encoded *encoded) {
    return encoded->kind == ENCODED_VISION || encoded->kind == ENCODED_REDUX;
}

/* Pictures of a control: the control image, the mask and the image to inpaint. */
enum control_part { CONTROL_IMAGE, CONTROL_MASK, CONTROL_INPAINT, CONTROL_PARTS };

/* Indexes of a request's input images: first frame or image-to-image input, last frame, mask, references. */
enum {
    PICTURE_INIT,
    PICTURE_END,
    PICTURE_MASK,
    PICTURE_REFERENCES,
    /* Copies of pictures at a vision encoder's input size. */
    PICTURE_VISION = PICTURE_REFERENCES + LANE_REFERENCES_MAX,
    /* Images of redux_images, at the vision encoder's input size. */
    PICTURE_REDUX = PICTURE_VISION + LANE_REFERENCES_MAX,
    PICTURE_CONTROL = PICTURE_REDUX + SLUICE_CONTROLS_MAX, /* pictures of control 0, then of control 1, ... */
    PICTURES_MAX = PICTURE_CONTROL + CONTROL_PARTS * CONTROLS_MAX
};

/* Index of a picture of control i among the job's pictures. */
static inline int control_picture(int i, enum control_part part) {
    return PICTURE_CONTROL + CONTROL_PARTS * i + (int)part;
}

/* The request's input images. */
struct job_pictures {
    struct sluice_picture input[PICTURES_MAX];  /* copies of the request's pictures; zero: absent */
    struct sluice_picture fitted[PICTURES_MAX]; /* `input`, fitted to the encoder's input size */
    struct fitting fitting[PICTURES_MAX];       /* resize and crop that make `fitted` from `input` */
    uint8_t *pixels[PICTURES_MAX];              /* pixels of input images that the job has read; owned */
    const struct sluice_picture *references[LANE_REFERENCES_MAX], *redux[SLUICE_CONTROLS_MAX];
    /* Size in pixels at which each reference image is encoded. */
    struct picture_size reference_size[LANE_REFERENCES_MAX];
    bool reference_assumed; /* plan without input images: assumes one reference image (editing model) */
    bool redux_assumed;     /* plan without input images: assumes one image of redux_images */
    bool mask_assumed;      /* plan without input images: assumes image and mask (inpainting model) */
    bool frames_assumed;    /* plan without input images: assumes first and last frame */
    bool controls_assumed;  /* plan without control images: assumes one for each network */
    struct fitting control_fitting; /* how the control video's frames are fitted */
    struct encoded encoded[ENCODED_MAX];
    int n_encoded;
    int n_encoded_chunks; /* number of chunks in which the VAE encodes video frames */
    struct frame_chunk encoded_chunks[FRAME_CHUNKS_MAX];
};

/* Prompt cache lookup: which prompts are in the session's memory or in a file, and which have to be encoded.
 * Misses become the lanes of their encoder's stage. An encoder without misses has no stage: its weights are
 * neither planned for nor read. */
struct prompt_cache_hits {
    /* By slot and prompt: the cached entry in memory, or the open cache file. A prompt without entry and file
     * is a miss. */
    const struct prompt_cache_entry *entry[SLOTS_MAX][PROMPTS_MAX];
    struct tensor_index file[SLOTS_MAX][PROMPTS_MAX];
    uint8_t key[SLOTS_MAX][PROMPTS_MAX][PROMPT_CACHE_KEY_BYTES];
    bool cacheable[SLOTS_MAX]; /* outputs of this slot's text encoder can be cached */
    /* Number and indices of the prompts that this slot's encoder must encode. */
    int n_misses[SLOTS_MAX], misses[SLOTS_MAX][PROMPTS_MAX];
    bool misses_fit; /* entries for all misses fit the cache's memory limit, together with the job's hits */
    uint64_t peak_bytes; /* planned size of the session's prompt cache after the last text stage */
};

enum { GATHERED_MAX = TABLES_MAX * PROMPTS_MAX };

struct job_prompts {
    struct lora_tags tags[PROMPTS_MAX]; /* <lora:...> tags of each prompt, and the prompt without tags */
    int n_texts, text_slot[SLOTS_MAX];  /* slots of the text encoders, in the recipe's order */
    struct prompt_tokens tokens[SLOTS_MAX][PROMPTS_MAX];
    struct prompt_cache_hits hits;
    /* [GATHERED_MAX] embedding rows that the request reads, as blocks; or NULL. */
    struct block *gathered[MODEL_COMPONENTS];
};

/* One evaluation of the denoiser, for every image of the batch. */
struct denoiser_call {
    int step, evaluation; /* index of the step, and of the evaluation within the step; from 0 */
    bool ends_step;
    struct grid_point at; /* sigma and timestep of the sample */
    float input_scale;    /* factor on the sample to get the denoiser's input */
    double scale;         /* guidance scale; 1: no guidance */
    double slg_scale;     /* skip-layer guidance scale; 0: off */
    bool guided;          /* the negative prompt is evaluated, for the video or its sound */
};

/* A range of consecutive calls of one denoiser. */
struct job_span {
    int slot, first_call, n_calls;
    int n_prompts;      /* number of prompts evaluated: 2 with guidance, else 1 */
    double scale;       /* guidance scale; 1: no guidance, but that of the sound may be on */
    int n_guided_calls; /* number of leading calls with guidance, the only ones with unconditional lanes */
    int first_slg_call; /* first call with skip-layer guidance lanes, counted from first_call */
    int n_slg_calls;
    bool stg, isolated; /* every call has BRANCH_STG, BRANCH_ISOLATED */
};
/* Returns the number of the span's branches before `branch`, which is the branch's index if the span has it.
 */
static inline int job_span_branch(const struct job_span *span, enum branch branch) {
    return (branch > BRANCH_PROMPT) + (branch > BRANCH_STG && span->stg) +
           (branch > BRANCH_ISOLATED && span->isolated) + (branch > BRANCH_NEGATIVE && span->n_prompts > 1);
}
/* Number of guidance branches, each a lane of every image. */
static inline int job_span_branches(const struct job_span *span) {
    return job_span_branch(span, BRANCH_SKIP) + (span->n_slg_calls > 0);
}

/* Noise levels and denoiser calls of the run. */
struct job_schedule {
    struct noise_table *noise; /* training noise levels by timestep; owned; NULL for flow models */
    struct grid grid;          /* noise levels of the steps that run (img2img skips the first steps) */
    int n_steps;               /* number of requested steps that run (the sampler may add more) */
    int n_calls;
    struct denoiser_call *calls; /* [n_calls]; owned */
    float *timestep_inputs;      /* [n_calls] timestep input of each denoiser call; owned */
    bool scales_input;           /* true if the input_scale of some call is not 1 */
    int n_spans;
    struct job_span spans[DENOISER_SPANS_MAX];
};

/* The upscaler of the job. */
struct job_upscale {
    struct picture_size from, to; /* sizes of its input and output images; `to` 0x0: no upscaler runs */
    int component;                /* index in sluice_model.component */
};

/* What a layout may choose. No choice changes the job's result. */
struct layout_choice {
    int groups;        /* number of groups of images; a denoiser call evaluates one group after another */
    bool tiled;        /* true: the VAE's full-frame buffers are as small as possible (--vae-tiling on) */
    unsigned hoisted;  /* bit set: spans of the schedule whose timestep rows are computed before step 1 */
    bool keeps_prefix; /* true: keys and values of the prefix are kept for all blocks (lane.keeps_prefix) */
};

/* Tensors of one encoded picture. The pictures and moments of all encoded pictures share memory. */
struct encoded_tensors {
    struct tensor resized; /* [Y, X, 3] U8 at the vision encoder's size; rank 0: not resized */
    struct tensor picture; /* [N, Y, X, 3] F32: frames of one chunk */
    struct tensor moments; /* VAE output of one latent frame: [y, x, 2 C] mean and log variance */
    struct tensor tokens;  /* vision encoder output [tokens, columns], in memory of its own */
};

/* The job as stages with lanes, visits and inter-stage buffers, for one layout_choice (layout.h). */
struct layout {
    struct layout_choice choice;
    int images_per_group; /* number of images in the largest group of the batch */

    struct stage stages[PLAN_STAGES_MAX];
    const struct stage_kind *kind[PLAN_STAGES_MAX]; /* layout.h */
    int slot[PLAN_STAGES_MAX];
    int span[PLAN_STAGES_MAX]; /* denoise stages: index in job_schedule.spans */
    int n_stages;
    const struct block **block_lists; /* storage of the stages' block lists; owned */
    struct lane *lanes;               /* storage of the stages' lanes; owned */
    struct visit_list visits;
    /* Layout of the second pass (--hires); owned; NULL: none. This layout also has copies of its stages, from
     * index `second_stage` on, and of its visits. Without a second pass second_stage is n_stages. */
    struct layout *second_pass;
    int second_stage;

    /* Inter-stage buffers; the tensors have no data if the layout was made without memory. */
    struct arena interstage;
    struct tensor text[PROMPTS_MAX];   /* prompt_embeds of each prompt; rank 0: unused */
    struct tensor pooled[PROMPTS_MAX]; /* pooled_projections of each prompt; rank 0: unused */
    /* Output of each text encoder per prompt: a view of `text` or `pooled`, or a separate tensor that the
     * host copies into `text` or `pooled`. */
    struct tensor encoder_text[SLOTS_MAX][PROMPTS_MAX], encoder_pooled[SLOTS_MAX][PROMPTS_MAX];
    /* Latent of each image [C, F, Y, X]. Like input, history, noise and prediction, it is followed in memory
     * by the values of the sound's latent: see job_sound. */
    struct tensor latent[BATCH_MAX];
    /* Second pass: final latents of the first pass, which a latent upscaler reads. */
    struct tensor first_latent[BATCH_MAX];
    struct tensor video[BATCH_MAX]; /* view of the latent without the VACE reference frames in front */
    struct tensor input[BATCH_MAX]; /* the denoiser's input: the latent itself, or a scaled copy */
    struct tensor history[BATCH_MAX][SAMPLER_HISTORY_MAX]; /* earlier predictions that the sampler keeps */
    struct tensor noise;                                   /* noise that the sampler adds in a step */
    /* Concat channels of each image; rank 0: none. One shared tensor if they hold no sampled latents. */
    struct tensor concat[BATCH_MAX];
    /* Input of each control network, shared by all lanes: pixels [Y, X, 3] or a latent with mask channels
     * [C, 1, Y, X] (lane_control.input); rank 0: job_control.component is -1. */
    struct tensor control_input[CONTROLS_MAX];
    struct tensor image;       /* vision tokens that the denoiser reads; rank 0: none */
    struct tensor clean_frame; /* image-to-video: latent of the first frame [C, 1, Y, X]; else rank 0 */
    /* For the inpainting blend (job_blends_mask), else of rank 0: the mask [Y, X], from 0 (kept) to 1
     * (repainted); the latent of the input image; the initial noise. */
    struct tensor mask, inpaint_latent[BATCH_MAX], inpaint_noise[BATCH_MAX];
    /* Latents of reference images. The first is inpaint_latent[0] if job_init_is_reference. */
    struct tensor reference[LANE_REFERENCES_MAX];
    struct tensor prediction[BATCH_MAX * BRANCHES_MAX]; /* denoiser output of each lane */
    /* Second pass: enlarged images of the first pass [Y, X, 3] U8, and temporary memory of resampling [1,
     * bytes] U8; rank 0 if latents are enlarged, or without a second pass. */
    struct tensor enlarged[BATCH_MAX], resampling;
    struct tensor denoised;       /* predicted clean latent [C, F, Y, X] for previews; rank 0: no previews */
    struct tensor preview;        /* preview image, RGB [Y, X, 3] U8; rank 0: no previews */
    struct tensor control_rgb;    /* a frame of the control video [Y, X, 3] U8; rank 0: none */
    struct tensor mel[BATCH_MAX]; /* spectrogram of each video's sound: lane.mel; rank 0: no sound */
    struct tensor wave;           /* samples of one video's sound: lane.wave */
    struct tensor picture;        /* decoded frames of a chunk [N, Y, X, C] F32; C: 3, or 4 with alpha */
    struct tensor rgb;            /* one decoded frame [Y, X, C] U8; layout_split_alpha leaves packed RGB */
    struct tensor alpha;          /* alpha of that frame [Y, X] U8; rank 0: the model has no alpha */
    struct encoded_tensors encoded[ENCODED_MAX];
    /* Tensors of the upscaler's stage; rank 0: there is none. decoded, decoded_alpha: all decoded frames, U8
     * [N, Y, X, 3] and [N, Y, X]. input, enlarged: lane.picture and lane.enlarged. rgb, alpha: the enlarged
     * image as bytes, [Y, X, 3] and [Y, X]. */
    struct {
        struct tensor decoded, decoded_alpha, input, enlarged, rgb, alpha;
    } upscale;
};

/* Sets *first and *n to the images of a group; group sizes differ by at most one, larger groups first. */
static inline void layout_images(const struct layout *l, int batch, int group, int *first, int *n) {
    int groups = l->choice.groups;
    *first = (group * batch + groups - 1) / groups;
    *n = ((group + 1) * batch + groups - 1) / groups - *first;
}

/* Layouts that the planner may choose from, each measured by a dry run. */
struct job_candidates {
    int n;
    struct run_need **needs;       /* [n] memory need; owned */
    struct layout_choice *choices; /* [n]; owned */
    int chosen;                    /* index of the current layout */
};

struct job {
    struct sys *sys;
    struct job_context context;
    const struct sluice_model *model;
    struct device *device;
    struct sluice_request request; /* the caller's request, with defaults filled in */
    struct job_settings settings;
    struct job_control controls[CONTROLS_MAX];
    int n_controls;
    struct job_latents latents;
    struct job_pictures pictures;
    struct job_prompts prompts;
    struct job_schedule schedule;
    struct job *preview_job; /* job that decodes previews (--preview vae, taesd); owned; NULL: none */
    /* Job of the second pass (--hires), with its own size and schedule; owned; NULL: none. Its layout is a
     * shallow copy of layout.second_pass. */
    struct job *second_pass;
    struct job_upscale upscale;
    struct job_candidates candidates;
    struct run_need *need; /* candidates.needs[candidates.chosen] */
    struct layout layout;  /* of candidates.choices[candidates.chosen] */
    struct plan plan;
};

/* The component of a slot, with the request's adapters and weight type. */
const struct component *job_component(const struct job *job, int slot);
/* The tiny autoencoder if the job decodes images with one instead of the VAE; else NULL. */
const struct component *job_tiny_decoder(const struct job *job);
/* Size of the job's finished images in pixels. */
struct picture_size job_output_size(const struct job *job);
/* True if the run decodes the job's latents: as the result, or for a second pass that enlarges images. */
bool job_decodes(const struct job *job);
/* Number of f32 values of an image's sample: its latent and, after it, the latent of its sound. */
int64_t job_sample_values(const struct job *job);
/* Returns the latent of the sound [C, 1, L, B], which follows a latent (or input, prediction, ...) of the
 * layout in memory; rank 0: the model has no sound. */
struct tensor job_sound(const struct job *job, struct tensor latent);
/* True if the run decodes the sound of its videos. */
bool job_decodes_sound(const struct job *job);
/* Whether the host blends the unmasked region of the input image into every sample: inpainting with a model
 * that has no mask channels. */
bool job_blends_mask(const struct job *job);
/* True if the denoiser reads the input image as lane.reference[0] (recipe_images.init_is_reference). Then
 * reference image i of the request is lane.reference[i + 1]. */
bool job_init_is_reference(const struct job *job);
/* The largest number of guidance branches of any span. */
int job_branches(const struct job *job);
/* True if any step uses skip-layer guidance. */
bool job_skips_layers(const struct job *job);
/* FLOPs of the whole run. */
double job_flops(const struct job *job);
/* Index in pictures.encoded of the picture that lane `number` encodes, in a stage with the given slot and
 * number of chunks; -1: the stage has no such lane. */
int job_find_encoded(const struct job *job, int slot, int n_chunks, int number);
/* True if control i is used in this step, by job_control.start and end (diffusers: controlnet_keep). */
bool job_control_runs(const struct job *job, int i, int step);
/* Writes the shape of the input of control i (layout.control_input) to dim; returns its rank, 0 for an image
 * that the denoiser itself reads. */
int job_control_shape(const struct job *job, int i, int32_t dim[4]);
/* Name of item i, from 0, in the series NAME, NAME_2, ...; out has 16 bytes. Returns out. */
char *job_numbered(const char *name, int i, char out[16]);

/* Fills job->schedule from the resolved request. Fails with MEMORY. */
enum status schedule_make(struct job *job, struct error *e);
/* Level at which a step begins, in the unit of --cfg-until: 0 is pure noise, 1 the clean image. */
float schedule_level(const struct job *job, const struct grid_point *at);
/* True if a step, counted from the first that runs, is between --slg-start and --slg-end. */
bool schedule_in_slg_interval(const struct job *job, int step);
/* True if previews are shown after this step. The last step has no preview, because the decoded image
 * follows, unless decoding is off. */
bool schedule_previews_step(const struct job *job, int step);
/* Number of previews of the run, over all images. */
int schedule_count_previews(const struct job *job);

#endif
