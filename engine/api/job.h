/* A job: a request resolved for one model and device. A job holds everything that is computed before any
 * weight is read: tokens, schedule, denoiser calls, memory needs, the plan. The stages of a job are in
 * layout.h. */
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

/* Input pictures that are encoded, in the order of their stages. Latents sampled from the VAE encoder draw
 * from an image's random generator in this order too. */
enum encoded_kind {
    ENCODED_VISION,
    ENCODED_INIT,
    ENCODED_MASKED,
    ENCODED_REFERENCE,
    ENCODED_FRAMES,          /* a video of the first and last frame, grey in between (image-to-video) */
    ENCODED_FIRST,           /* the first frame of a video, encoded alone */
    ENCODED_CONTROL,         /* inactive or reactive part of a VACE control video (control_video.h) */
    ENCODED_REFERENCE_FRAME, /* VACE reference image: a latent frame in front of the video */
};

struct encoded {
    enum encoded_kind kind;
    int slot;
    int reference;            /* index among the encoded pictures of the same kind */
    struct picture_size size; /* size in pixels at which the picture is encoded */
    int32_t columns, rows;    /* vision encoders: grid of vision tokens */
    int n_chunks;             /* number of chunks of frames, one evaluation each (1 for an image) */
};

/* The model, device and session caches that a job uses. */
struct job_context {
    const struct sluice_model *model;
    struct device *device;
    struct requantised *requantised;   /* the session's weight conversion (--type); NULL: unused */
    struct session_adapters *adapters; /* the session's adapters (LoRA); NULL: unused */
    struct prompt_cache *prompt_cache; /* the session's prompt cache; NULL: unused */
    const struct job *parent; /* for a job that decodes previews: the job that shows them; else NULL */
};

/* One evaluation of the denoiser, for every image of the batch. */
struct denoiser_call {
    int step, evaluation; /* index of the step, and of the evaluation within the step; from 0 */
    bool ends_step;
    struct grid_point at; /* sigma and timestep of the sample */
    float input_scale;    /* the denoiser reads the sample times this factor */
    double scale;         /* guidance scale; 1: no guidance, no unconditional lane */
    double slg_scale;     /* skip-layer guidance scale; 0: off */
};

/* A range of consecutive calls of one denoiser. */
struct job_span {
    int slot, first_call, n_calls;
    int n_prompts; /* number of prompts evaluated: 2 with guidance, else 1 */
    double scale;
    int first_slg_call; /* first call with skip-layer guidance lanes, counted from first_call */
    int n_slg_calls;
};
/* Number of guidance branches, each a lane of every image: one per prompt, one for skip-layer guidance. */
static inline int job_span_branches(const struct job_span *span) {
    return span->n_prompts + (span->n_slg_calls > 0);
}

/* Indexes of a request's input images: first frame or image-to-image input, last frame, mask, references. */
enum {
    PICTURE_INIT,
    PICTURE_END,
    PICTURE_MASK,
    PICTURE_REFERENCES,
    PICTURE_VISION = PICTURE_REFERENCES + LANE_REFERENCES_MAX, /* copies at a vision encoder's size */
    PICTURES_MAX = PICTURE_VISION + LANE_REFERENCES_MAX
};

enum { GATHERED_MAX = TABLES_MAX * PROMPTS_MAX };

struct job {
    struct sys *sys;
    struct job_context context;
    const struct sluice_model *model;
    struct device *device;
    struct sluice_request request;
    struct sluice_picture input_picture[PICTURES_MAX]; /* copies of the request's pictures; zero: absent */
    struct sluice_picture picture[PICTURES_MAX];       /* input_picture, fitted to the encoder's input size */
    struct fitting fitting[PICTURES_MAX];              /* how input_picture becomes picture */
    uint8_t *pixels[PICTURES_MAX]; /* pixels of input images that the job has read; owned */
    const struct sluice_picture *references[LANE_REFERENCES_MAX];
    bool reference_assumed;             /* plan only: a placeholder reference image for an editing model */
    bool mask_assumed;                  /* plan only: placeholder image and mask for an inpainting model */
    bool frames_assumed;                /* plan only: placeholder first and last frame */
    struct lora_tags tags[PROMPTS_MAX]; /* <lora:...> tags of each prompt, and the prompt without tags */
    bool decode_only;
    int decoder_slot; /* slot of the decoder in use: VAE or tiny autoencoder */
    enum preview preview;
    struct job *preview_job;  /* job that decodes previews (preview_run.h); owned; NULL: none */
    enum precision precision; /* precision of text encoders and denoiser */
    enum dtype weights;       /* --type of text encoder and denoiser weights; N_DTYPES: not converted */

    int n_prompts, batch;  /* number of prompts (index 0: positive, 1: negative), and number of images */
    int n_encoded_prompts; /* prompts that are encoded; an absent negative prompt uses zero embeddings */
    int32_t C, F, Y, X;    /* latent dimensions; F includes the reference frames */
    int n_texts, text_slot[SLOTS_MAX]; /* slots of the text encoders, in the recipe's order */
    struct prompt_tokens tokens[SLOTS_MAX][PROMPTS_MAX];
    struct prompt_cache_hits prompt_cache_hits;
    struct block *gathered[SLOTS_MAX]; /* [GATHERED_MAX] embedding rows in use, as blocks; or NULL */
    struct sampling sampling;          /* the model's sampling with the request's choices */
    double terminal;                   /* terminal value of the schedule (schedule_options.terminal) */
    struct noise_table *noise;         /* noise levels by timestep; owned; NULL for flow models */
    struct grid grid; /* noise levels of the steps that run (img2img skips the first steps) */
    int n_steps;      /* number of requested steps that run (the sampler may add more) */
    int n_calls;
    struct denoiser_call *calls;
    float *timestep_inputs; /* [n_calls] timestep input of each denoiser call */
    bool scales_input;      /* true if the input_scale of some call is not 1 */
    int n_spans;
    struct job_span spans[DENOISER_SPANS_MAX];
    struct picture_size reference_size[LANE_REFERENCES_MAX]; /* encoded size of each reference image */
    struct encoded encoded[ENCODED_MAX];
    int n_encoded;
    int n_chunks; /* number of chunks in which the VAE decodes latent frames */
    struct frame_chunk chunks[FRAME_CHUNKS_MAX];
    int n_encoded_chunks; /* number of chunks in which the VAE encodes video frames */
    struct frame_chunk encoded_chunks[FRAME_CHUNKS_MAX];
    int n_clean_frames;             /* number of latent frames taken from the input image */
    int n_reference_frames;         /* number of VACE reference frames before the video */
    struct fitting control_fitting; /* how the control video's frames are fitted */

    struct run_need **needs;       /* [n_needs] memory needs of the candidate layouts */
    struct layout_choice *choices; /* [n_needs] groups, tiling and hoisting of each candidate layout */
    int n_needs;
    int chosen;            /* index of the current layout in needs and choices */
    struct run_need *need; /* needs[chosen] */
    struct layout layout;
    struct plan plan;
};

/* Resolves the request, encodes its prompts to tokens, makes the candidate layouts and measures each by a dry
 * run. latent_dim: [N, C, F, Y, X] of a latent file to decode, or NULL. Fails with USAGE for an invalid
 * request. The caller closes the job, also after failure. */
enum status job_open(struct job *job, const struct job_context *place, const struct sluice_request *request,
                     const int32_t *latent_dim, struct error *e);
/* Device memory budget in bytes: the request's, else the device's default. */
uint64_t job_vram_budget(const struct job *job);
/* Chooses the fastest plan under the request's budgets and lays the job out for the plan. plan_check checks
 * whether the plan fits. */
enum status job_plan(struct job *job, struct error *e);
/* Switches the job to the candidate layout with the given number of groups and VAE tiling; BUDGET if none has
 * them. */
enum status job_lay_out(struct job *job, int groups, bool tiled, struct error *e);
/* The largest number of guidance branches of any span. */
int job_branches(const struct job *job);
/* Whether the host blends the unmasked region of the input image into every sample: inpainting with a model
 * that has no mask channels. */
bool job_blends_mask(const struct job *job);
/* In job_loras.c. job_extract_lora_tags moves <lora:...> tags from the prompts to job->tags;
 * job_make_components builds the session's components with the request's adapters and weight type;
 * job_component returns the component of a slot. */
enum status job_extract_lora_tags(struct job *job, struct error *e);
enum status job_make_components(struct job *job, struct error *e);
const struct component *job_component(const struct job *job, int slot);
/* In job_pictures.c, called in this order: copy the request's input images; add placeholder images that only
 * a plan uses; compute how images are fitted to the output size; list the pictures to encode. */
void job_copy_pictures(struct job *job);
void job_assume_pictures(struct job *job);
void job_fit_pictures(struct job *job, enum fit fit);
void job_list_encoded(struct job *job);
/* The input image of an encoded picture, after fitting (job_fitted_picture) or before (job_input_picture).
 * For a masked image returns the mask, for a video the first frame. */
const struct sluice_picture *job_fitted_picture(const struct job *job, const struct encoded *encoded);
const struct sluice_picture *job_input_picture(const struct job *job, const struct encoded *encoded);
/* True if the vision encoder resizes the fitted picture once more. */
bool job_resizes(const struct job *job, const struct encoded *encoded);
/* Temporary bytes for reading the input images one at a time, excluding the resulting pixels. */
uint64_t job_reading_bytes(const struct job *job);
/* Bytes of the control video during the run: the caller's pixels, and buffers for reading one frame. */
uint64_t job_control_bytes(const struct job *job);
/* Reads and fits the input images. Call when the plan fits the budget. Returns the status of the
 * image-reading callback, or MEMORY. */
enum status job_read_pictures(struct job *job, struct error *e);
/* Writes the position and token grid of each picture in a prompt of the text encoder in this slot; does not
 * set vision_span.rows. */
void job_list_vision_spans(const struct job *job, int slot, int prompt,
                           struct vision_span vision_spans[LANE_REFERENCES_MAX]);
/* Number of rows that the encoder in this slot contributes to a prompt's prompt_embeds. */
int32_t job_text_rows(const struct job *job, int slot, int prompt);
/* Allocates the inter-stage buffers. Fails with MEMORY. */
enum status job_allocate(struct job *job, struct error *e);
/* Frees the inter-stage buffers before the job is closed. job_allocate can be called again. */
void job_release(struct job *job);
void job_close(struct job *job);

/* Builds the executor's input for a layout. */
struct run job_run(const struct job *job, struct layout *layout, const struct run_hooks *hooks);

/* True if weights are read with O_DIRECT, past the page cache. direct_io: the request's choice. model_bytes,
 * memory_bytes: size of the model and of the machine's memory. Pure, so that the same flags give the same
 * plan. */
bool job_reads_direct(const char *direct_io, uint64_t model_bytes, uint64_t memory_bytes);

/* Name of item i, from 0, in the series NAME, NAME_2, ...; out has 16 bytes. Returns out. */
char *job_numbered(const char *name, int i, char out[16]);

/* The tiny autoencoder if the model decodes images with one instead of the VAE; else NULL. */
const struct component *job_tiny_decoder(const struct job *job);

double job_flops(const struct job *job);

/* Measures the memory need of each candidate layout of a resolved request by a dry run (candidates.c). */
enum status job_measure(struct job *job, struct error *e);

#endif
