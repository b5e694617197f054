/* A job: a request made concrete for one model and device. Everything that can be known before a weight is
 * read: tokens, schedule, calls of the denoiser, what they need, the plan. How it is laid out in stages is in
 * layout.h. */
#ifndef SLUICE_API_JOB_H
#define SLUICE_API_JOB_H

#include "engine/api/adapted.h"
#include "engine/api/conditionings.h"
#include "engine/pictures/fit.h"
#include "engine/api/layout.h"
#include "engine/pictures/pictures.h"
#include "engine/api/recalled.h"
#include "engine/api/requantised.h"
#include "engine/open/model.h"
#include "engine/open/prompt.h"

/* Pictures that are encoded, in the order of their stages; of an autoencoder's also in that of their draws
 * from an image's noise. */
enum encoded_kind {
    ENCODED_VISION,
    ENCODED_INIT,
    ENCODED_MASKED,
    ENCODED_REFERENCE,
    ENCODED_FRAMES, /* a video of frames that are given, and grey ones */
    ENCODED_FIRST,  /* a video's first frame alone */
    ENCODED_LED,    /* a video that leads: what of it stays, or what is drawn anew (led.h) */
    ENCODED_FRONT,  /* a picture that is a frame in front */
};

struct encoded {
    enum encoded_kind kind;
    int slot;
    int reference;            /* number, of references, leading videos and what vision encoders see */
    struct picture_size size; /* as it is encoded */
    int32_t columns, rows;    /* of the tokens that a vision encoder makes of it */
    int n_chunks;             /* of frames, each an evaluation: the job's encoded_chunks, or 1 of a picture */
};

/* Where jobs are for. */
struct job_place {
    const struct sluice_model *model;
    struct device *device;
    struct requantised *requantised;     /* the session's; NULL: no request asks for a type */
    struct adapted *adapted;             /* the session's; NULL: no request names adapters */
    struct conditionings *conditionings; /* the session's; NULL: none are kept */
    const struct job *around;            /* the job whose previews this one decodes; or NULL */
};

/* One evaluation of the denoiser for every image. */
struct denoiser_call {
    int step, evaluation; /* of the step, from 0 */
    bool ends_step;
    struct grid_point at; /* where the sample stands */
    float input_scale;    /* of what is read of it */
    double scale;         /* of guidance; 1: there is none, and no second lane */
    double slg_scale;     /* of skip-layer guidance; 0: there is none */
};

/* Calls of one denoiser. */
struct job_span {
    int slot, first_call, n_calls;
    int n_prompts; /* it has lanes for: one where nothing guides it */
    double scale;
    int first_slg_call, n_slg_calls; /* of its calls those that skip-layer guidance has lanes in */
};
/* Lanes of each image: of each prompt, and of skip-layer guidance. */
static inline int job_span_branches(const struct job_span *span) {
    return span->n_prompts + (span->n_slg_calls > 0);
}

/* Those that a request brings: to start from, to end with, the mask, to refer to. */
enum {
    PICTURE_INIT,
    PICTURE_END,
    PICTURE_MASK,
    PICTURE_REFERENCES,
    PICTURE_SHOWN =
        PICTURE_REFERENCES + LANE_REFERENCES_MAX, /* to vision encoders, where that is not the same */
    PICTURES_MAX = PICTURE_SHOWN + LANE_REFERENCES_MAX
};

enum { GATHERED_MAX = TABLES_MAX * PROMPTS_MAX };

struct job {
    struct sys *sys;
    struct job_place place;
    const struct sluice_model *model;
    struct device *device;
    struct sluice_request request;
    struct sluice_picture given[PICTURES_MAX];   /* the request's own copies; of those absent nothing */
    struct sluice_picture picture[PICTURES_MAX]; /* as they are used: of the size that they are made to fit */
    struct fitting fitting[PICTURES_MAX];        /* from the one to the other */
    uint8_t *pixels[PICTURES_MAX];               /* of those that the job has read */
    const struct sluice_picture *references[LANE_REFERENCES_MAX];
    bool reference_assumed;               /* planning only: no picture was given to a model that edits one */
    bool mask_assumed;                    /* the same of picture and mask, of one that fills masks */
    bool frames_assumed;                  /* the same of first and last frame */
    struct lora_marks marks[PROMPTS_MAX]; /* adapters that prompts name, and the prompts without them */
    bool decode_only;
    int decoder_slot; /* that decodes: the large one's, or the tiny one's */
    enum preview preview;
    struct job *within;       /* that decodes what previews show (preview_run.h); NULL: none does */
    enum precision precision; /* of text encoder and denoiser */
    enum dtype weights;       /* what theirs are converted to; N_DTYPES: nothing */

    int n_prompts, batch;              /* prompt 0 is the positive one */
    int n_read;                        /* prompts that encoders read: of the others all is zeros */
    int32_t C, F, Y, X;                /* of the latent, with what is in front */
    int n_texts, text_slot[SLOTS_MAX]; /* of the text encoders, in their order */
    struct prompt_tokens tokens[SLOTS_MAX][PROMPTS_MAX];
    struct recalled recalled;
    struct block *rows[SLOTS_MAX]; /* of tables, as component_visits counts them: GATHERED_MAX, or none */
    struct sampling sampling;      /* the model's, with what the request chooses */
    double terminal;               /* of its own schedule */
    struct noise_table *noise;     /* of models that add it; else NULL */
    struct grid grid;              /* of what is run: a picture to start from leaves out the first steps */
    int n_steps;                   /* of the request's those that are run */
    int n_calls;
    struct denoiser_call *calls;
    float *told;       /* n_calls: what the denoiser is told */
    bool scales_input; /* it reads something else than the samples themselves */
    int n_spans;
    struct job_span spans[DENOISER_SPANS_MAX];
    struct picture_size reference_size[LANE_REFERENCES_MAX]; /* as encoded */
    struct encoded encoded[ENCODED_MAX];
    int n_encoded;
    int n_chunks; /* of frames that are decoded together */
    struct frame_chunk chunks[FRAME_CHUNKS_MAX];
    int n_encoded_chunks; /* the same of a video that is encoded */
    struct frame_chunk encoded_chunks[FRAME_CHUNKS_MAX];
    int given_frames;               /* of the latent, from the first: they have no noise */
    int n_front;                    /* frames of the latent before the video's own, cut off at the end */
    struct fitting control_fitting; /* of the frames that lead */

    /* What it needs in every layout that makes a difference: not tiled first, fewest groups first. */
    struct run_need **needs;       /* each with as many stages as the job has */
    struct layout_choice *choices; /* the need's */
    int n_needs;
    int chosen;            /* the one of the layout that the job has */
    struct run_need *need; /* that */
    struct layout layout;
    struct plan plan;
};

/* Checks the request (USAGE for what is wrong with it), reads tokens, lays everything out, and measures it
 * dry. latent_dim: for decode_only, [N, C, F, Y, X] of the file. The job is closed by the caller also after
 * failure. */
enum status job_open(struct job *job, const struct job_place *place, const struct sluice_request *request,
                     const int32_t *latent_dim, struct error *e);
/* Of device memory: what is asked for, else the default. */
uint64_t job_vram_budget(const struct job *job);
/* Makes the plan for the request's budget, and lays the job out for it. Does not check whether it fits. */
enum status job_plan(struct job *job, struct error *e);
/* Lays the job out in so many groups, tiled or not; BUDGET if no need is for that. */
enum status job_lay_out(struct job *job, int groups, bool tiled, struct error *e);
/* As many branches of guidance as any span has. */
int job_branches(const struct job *job);
/* Whether the host puts what the mask leaves back into every sample: models that see no mask do not heed it.
 */
bool job_keeps(const struct job *job);
/* Adapters (job_loras.c). Takes those that prompts name out of the request's; makes the session's components
 * those of the request; the component in a slot as it is run. */
enum status job_read_marks(struct job *job, struct error *e);
enum status job_make_components(struct job *job, struct error *e);
const struct component *job_component(const struct job *job, int slot);
/* Pictures (job_pictures.c). Copies those of the request; assumes those that a model needs where only a plan
 * is wanted; makes them fit what is drawn; lists what is encoded. */
void job_copy_pictures(struct job *job);
void job_assume_pictures(struct job *job);
void job_fit_pictures(struct job *job, enum fit fit);
void job_list_encoded(struct job *job);
/* The picture behind one that is encoded, made to fit, and as it was given; of a masked one the mask, of a
 * video its first. */
const struct sluice_picture *job_source(const struct job *job, const struct encoded *encoded);
const struct sluice_picture *job_given(const struct job *job, const struct encoded *encoded);
/* Does a vision encoder read it at another size than it is shown? */
bool job_resizes(const struct job *job, const struct encoded *encoded);
/* What reading pictures takes for a while beside their pixels: one after another. */
uint64_t job_reading_bytes(const struct job *job);
/* What frames that lead a video take in the run: the caller's pixels, and reading one after another. */
uint64_t job_control_bytes(const struct job *job);
/* Reads the pictures that the caller has no pixels of yet, or not of their size: once the plan is known to
 * fit, for it counts them. Whatever the caller's function fails with; MEMORY. */
enum status job_read_pictures(struct job *job, struct error *e);
/* Where pictures stand among the tokens of a prompt, as the text encoder in that slot sees it, and their
 * grids; rows have no data. */
void job_see(const struct job *job, int slot, int prompt, struct seen_picture seen[LANE_REFERENCES_MAX]);
/* Rows that the encoder in that slot adds to a prompt's text. */
int32_t job_text_rows(const struct job *job, int slot, int prompt);
/* Takes the memory of what crosses stages. */
enum status job_allocate(struct job *job, struct error *e);
/* Gives it back before the job is closed: it may be taken again. */
void job_give_back(struct job *job);
void job_close(struct job *job);

/* The device-independent view of a layout for the executor. */
struct run job_run(const struct job *job, struct layout *layout, const struct run_hooks *hooks);

/* Are weights read past the page cache? direct_io: the request's; a model of this many bytes, a machine with
 * this much memory. Pure, so that the same flags give the same plan. */
bool job_reads_direct(const char *direct_io, uint64_t model_bytes, uint64_t memory_bytes);

/* The name of number i, from 0, of things that are called NAME, NAME_2, ...; out has 16 bytes. Returns out.
 */
char *job_numbered(const char *name, int i, char out[16]);

/* The tiny decoder that decodes in the autoencoder's place; NULL: none does. */
const struct component *job_tiny_decoder(const struct job *job);

/* FLOPs of the whole job. */
double job_flops(const struct job *job);

/* Of a settled request: what it needs in each layout that it can have, as measured dry (candidates.c). */
enum status job_measure(struct job *job, struct error *e);

#endif
