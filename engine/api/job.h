/* A job: a request resolved for one model and device. It has all that is known before any weight is read:
 * tokens, schedule, denoiser calls, memory needs, the plan. layout.h has its stages. */
#ifndef SLUICE_API_JOB_H
#define SLUICE_API_JOB_H

#include "engine/api/session_adapters.h"
#include "engine/api/prompt_cache.h"
#include "engine/pictures/fit.h"
#include "engine/api/layout.h"
#include "engine/pictures/pictures.h"
#include "engine/api/prompt_cache_hits.h"
#include "engine/api/requantised.h"
#include "engine/open/model.h"
#include "engine/open/prompt.h"

/* Input pictures that are encoded, in the order of their stages. For the VAE this is also the order in which
 * they draw from an image's random generator. */
enum encoded_kind {
    ENCODED_VISION,
    ENCODED_INIT,
    ENCODED_MASKED,
    ENCODED_REFERENCE,
    ENCODED_FRAMES,          /* a video of the first and last frame, the rest grey (image-to-video) */
    ENCODED_FIRST,           /* a video's first frame alone */
    ENCODED_CONTROL,         /* VACE control video: its unmasked or its masked part (control_video.h) */
    ENCODED_REFERENCE_FRAME, /* VACE reference image, a latent frame in front of the video */
};

struct encoded {
    enum encoded_kind kind;
    int slot;
    int reference;            /* index among pictures of this kind */
    struct picture_size size; /* pixels, as encoded */
    int32_t columns, rows;    /* grid of the vision encoder's tokens */
    int n_chunks; /* chunks of frames, one evaluation each: job->n_encoded_chunks, or 1 for an image */
};

/* The model, device and session caches that a job uses. */
struct job_context {
    const struct sluice_model *model;
    struct device *device;
    struct requantised *requantised;   /* the session's; NULL: requests have no type */
    struct session_adapters *adapters; /* the session's; NULL: requests have no adapters */
    struct prompt_cache *prompt_cache; /* the session's; NULL: no cache */
    const struct job *parent;          /* job whose previews this job decodes, or NULL */
};

/* One evaluation of the denoiser, for every image of the batch. */
struct denoiser_call {
    int step, evaluation; /* step, and evaluation within the step; from 0 */
    bool ends_step;
    struct grid_point at; /* sigma and timestep of the sample */
    float input_scale;    /* factor on the denoiser's input */
    double scale;         /* guidance scale; 1: no guidance, no unconditional lane */
    double slg_scale;     /* skip-layer guidance scale; 0: off */
};

/* A range of consecutive calls of one denoiser. */
struct job_span {
    int slot, first_call, n_calls;
    int n_prompts; /* prompts with lanes: 2, or 1 without guidance */
    double scale;
    int first_slg_call, n_slg_calls; /* calls with skip-layer guidance lanes, counted from first_call */
};
/* Guidance branches, which are lanes of each image: the prompts, and skip-layer guidance. */
static inline int job_span_branches(const struct job_span *span) {
    return span->n_prompts + (span->n_slg_calls > 0);
}

/* Indexes of a request's input images: first frame or image-to-image input, last frame, mask, references. */
enum {
    PICTURE_INIT,
    PICTURE_END,
    PICTURE_MASK,
    PICTURE_REFERENCES,
    PICTURE_VISION =
        PICTURE_REFERENCES + LANE_REFERENCES_MAX, /* for vision encoders, where the size differs */
    PICTURES_MAX = PICTURE_VISION + LANE_REFERENCES_MAX
};

enum { GATHERED_MAX = TABLES_MAX * PROMPTS_MAX };

struct job {
    struct sys *sys;
    struct job_context context;
    const struct sluice_model *model;
    struct device *device;
    struct sluice_request request;
    struct sluice_picture input_picture[PICTURES_MAX]; /* copies of the request's; absent ones are zero */
    struct sluice_picture picture[PICTURES_MAX]; /* the same after fitting to the size that is encoded */
    struct fitting fitting[PICTURES_MAX];        /* from input_picture to picture */
    uint8_t *pixels[PICTURES_MAX];               /* owned pixels of pictures that the job read */
    const struct sluice_picture *references[LANE_REFERENCES_MAX];
    bool reference_assumed;             /* plan only: a placeholder reference image for an editing model */
    bool mask_assumed;                  /* plan only: placeholder image and mask for an inpainting model */
    bool frames_assumed;                /* plan only: placeholder first and last frame */
    struct lora_tags tags[PROMPTS_MAX]; /* <lora:...> tags of each prompt, and the prompt without them */
    bool decode_only;
    int decoder_slot; /* slot of the decoder in use: VAE or tiny autoencoder */
    enum preview preview;
    struct job *preview_job;  /* owned; decodes previews (preview_run.h); NULL: none */
    enum precision precision; /* of text encoders and denoiser */
    enum dtype weights;       /* type that their weights are converted to (--type); N_DTYPES: none */

    int n_prompts, batch;  /* prompt 0 is positive, 1 negative */
    int n_encoded_prompts; /* prompts that are encoded; an absent negative prompt uses zero embeddings */
    int32_t C, F, Y, X;    /* latent dimensions; F includes the reference frames */
    int n_texts, text_slot[SLOTS_MAX]; /* slots of the text encoders, in order */
    struct prompt_tokens tokens[SLOTS_MAX][PROMPTS_MAX];
    struct prompt_cache_hits prompt_cache_hits;
    struct block
        *gathered[SLOTS_MAX];  /* [GATHERED_MAX] embedding rows that this request reads, as blocks; or NULL */
    struct sampling sampling;  /* the model's, with the request's choices */
    double terminal;           /* the schedule's terminal value */
    struct noise_table *noise; /* owned; models that are not flow models; else NULL */
    struct grid grid;          /* steps that run: image-to-image skips the first ones */
    int n_steps;               /* steps of the request that run */
    int n_calls;
    struct denoiser_call *calls;
    float *timestep_inputs; /* [n_calls] timestep input of the denoiser */
    bool scales_input;      /* some call's input_scale is not 1 */
    int n_spans;
    struct job_span spans[DENOISER_SPANS_MAX];
    struct picture_size reference_size[LANE_REFERENCES_MAX]; /* reference images, as encoded */
    struct encoded encoded[ENCODED_MAX];
    int n_encoded;
    int n_chunks; /* chunks of frames that the VAE decodes together */
    struct frame_chunk chunks[FRAME_CHUNKS_MAX];
    int n_encoded_chunks; /* chunks of frames that the VAE encodes together */
    struct frame_chunk encoded_chunks[FRAME_CHUNKS_MAX];
    int n_clean_frames;     /* leading latent frames that come from the input image: no noise, timestep 0 */
    int n_reference_frames; /* VACE reference frames in front of the video; cut off before decoding */
    struct fitting control_fitting; /* of the control video's frames */

    /* Memory needs of the candidate layouts: untiled before tiled, fewer groups first. */
    struct run_need **needs;       /* [n_needs], each with as many stages as the layout */
    struct layout_choice *choices; /* [n_needs] */
    int n_needs;
    int chosen;            /* index of the current layout's need */
    struct run_need *need; /* needs[chosen] */
    struct layout layout;
    struct plan plan;
};

/* Resolves the request, encodes its prompts to tokens, makes the candidate layouts and measures each by a dry
 * run. latent_dim: [N, C, F, Y, X] of a latent file to decode, or NULL. Fails with USAGE for an invalid
 * request. The caller closes the job, also after failure. */
enum status job_open(struct job *job, const struct job_context *place, const struct sluice_request *request,
                     const int32_t *latent_dim, struct error *e);
/* Device memory budget in bytes: the request's, else the default. */
uint64_t job_vram_budget(const struct job *job);
/* Chooses the fastest plan under the request's budgets and lays the job out for it. Does not check whether
 * the plan fits: see plan_check. */
enum status job_plan(struct job *job, struct error *e);
/* Switches to the layout with these groups and this VAE tiling; BUDGET if it is no candidate. */
enum status job_lay_out(struct job *job, int groups, bool tiled, struct error *e);
/* The largest number of guidance branches of any span. */
int job_branches(const struct job *job);
/* Whether the host blends the unmasked region of the input image into every sample: inpainting with a model
 * that has no mask channels. */
bool job_blends_mask(const struct job *job);
/* Adapters (job_loras.c). Removes the prompts' <lora:...> tags into job->tags; gives the session the
 * request's adapters and weight type; returns a slot's component with both applied. */
enum status job_extract_lora_tags(struct job *job, struct error *e);
enum status job_make_components(struct job *job, struct error *e);
const struct component *job_component(const struct job *job, int slot);
/* Input images (job_pictures.c): copies the request's; adds placeholders that a plan needs; computes how they
 * are fitted to the output size; lists the pictures to encode. */
void job_copy_pictures(struct job *job);
void job_assume_pictures(struct job *job);
void job_fit_pictures(struct job *job, enum fit fit);
void job_list_encoded(struct job *job);
/* The input image of an encoded picture, after fitting and before. For a masked picture: the mask; for a
 * video: its first frame. */
const struct sluice_picture *job_fitted_picture(const struct job *job, const struct encoded *encoded);
const struct sluice_picture *job_input_picture(const struct job *job, const struct encoded *encoded);
/* Whether the vision encoder resizes the picture once more. */
bool job_resizes(const struct job *job, const struct encoded *encoded);
/* Temporary bytes for reading the input images, beside their pixels; the images are read one after another.
 */
uint64_t job_reading_bytes(const struct job *job);
/* Bytes that the control video takes through the run: the caller's pixels, and reading one frame at a time.
 */
uint64_t job_control_bytes(const struct job *job);
/* Reads and fits the input images, after the plan is known to fit. Returns the status of the image-reading
 * callback, or MEMORY. */
enum status job_read_pictures(struct job *job, struct error *e);
/* Positions of vision tokens among a prompt's tokens for the text encoder in this slot, and their grids. The
 * rows tensors stay empty. */
void job_list_vision_spans(const struct job *job, int slot, int prompt,
                           struct vision_span vision_spans[LANE_REFERENCES_MAX]);
/* Rows that the encoder in this slot contributes to a prompt's prompt_embeds. */
int32_t job_text_rows(const struct job *job, int slot, int prompt);
/* Allocates the inter-stage buffers; MEMORY. */
enum status job_allocate(struct job *job, struct error *e);
/* Frees the inter-stage buffers before the job is closed; they can be allocated again. */
void job_release(struct job *job);
void job_close(struct job *job);

/* The executor's view of a layout. */
struct run job_run(const struct job *job, struct layout *layout, const struct run_hooks *hooks);

/* Whether weights are read past the page cache. direct_io: the request's; model and machine memory in bytes.
 * Pure: the same flags give the same plan. */
bool job_reads_direct(const char *direct_io, uint64_t model_bytes, uint64_t memory_bytes);

/* Name of item i, from 0, in the series NAME, NAME_2, ...; out has 16 bytes. Returns out. */
char *job_numbered(const char *name, int i, char out[16]);

/* The tiny autoencoder if it decodes the images instead of the VAE; else NULL. */
const struct component *job_tiny_decoder(const struct job *job);

/* FLOPs of the whole job. */
double job_flops(const struct job *job);

/* Measures the memory needs of every candidate layout by a dry run (candidates.c). The request is resolved.
 */
enum status job_measure(struct job *job, struct error *e);

#endif
