/* A job: a request made concrete for one model and device. Everything that can be known before a weight is
 * read: tokens, schedule, lanes, stages, visits, what they need, the plan. */
#ifndef SLUICE_API_JOB_H
#define SLUICE_API_JOB_H

#include "engine/open/model.h"
#include "engine/api/pictures.h"
#include "engine/open/prompt.h"
#include "engine/api/retyped.h"
#include "engine/run/executor.h"

enum { PROMPTS_MAX = 2, BATCH_MAX = 64 };

enum stage_kind { STAGE_TEXT, STAGE_ENCODE, STAGE_HOIST, STAGE_DENOISE, STAGE_DECODE };

/* Pictures that are encoded, in the order of their draws from an image's noise. */
enum encoded_kind { ENCODED_INIT, ENCODED_MASKED, ENCODED_REFERENCE };
enum { ENCODED_MAX = 2 + LANE_REFERENCES_MAX };

struct encoded {
    enum encoded_kind kind;
    int reference;         /* number, of references */
    struct tensor resized; /* [Y, X, 3] U8: the picture at the size that is encoded; rank 0: it has it */
    struct tensor picture, moments; /* views of what all encoded pictures share */
};

/* Where jobs are for. */
struct job_place {
    const struct sluice_model *model;
    struct device *device;
    struct retyped *retyped; /* the session's; NULL: no request asks for a type */
};

struct job {
    struct sys *sys;
    struct job_place place;
    const struct sluice_model *model;
    struct device *device;
    struct sluice_request request;
    bool decode_only;
    enum precision precision; /* of text encoder and denoiser */
    enum dtype weights;       /* what theirs are converted to; N_DTYPES: nothing */

    int n_prompts, batch; /* prompt 0 is the positive one */
    /* Images that are denoised at once, at most; they make so many groups, which take turns in every step. */
    int together, groups;
    bool tiled;   /* the decoder's whole pictures are as small as can be */
    int hoisted;  /* evaluations whose rows are computed before the loop: all of them, or 0 */
    int32_t Y, X; /* of the latent */
    int n_texts, text_slot[SLOTS_MAX]; /* of the text encoders, in their order */
    struct prompt_tokens tokens[SLOTS_MAX][PROMPTS_MAX];
    int steps;                 /* that are run: a picture to start from leaves out the first */
    float *sigmas, *timesteps; /* steps + 1, steps */
    float *inputs;             /* steps: what the denoiser is told of the timestep */
    struct picture_size reference_size[LANE_REFERENCES_MAX]; /* as encoded */
    struct encoded encoded[ENCODED_MAX];
    int n_encoded;

    struct block rows[SLOTS_MAX][PROMPTS_MAX]; /* gathered embeddings */
    struct stage stages[PLAN_STAGES_MAX];
    enum stage_kind kind[PLAN_STAGES_MAX];
    int slot[PLAN_STAGES_MAX];
    int n_stages;
    const struct block **block_lists; /* storage of the stages' lists */
    struct lane *lanes;               /* storage of the stages' lanes */
    struct visit_list visits;

    /* What crosses stages; without data until job_allocate. */
    struct arena cross;
    struct tensor text[PROMPTS_MAX], pooled[PROMPTS_MAX]; /* pooled: rank 0 without an encoder that pools */
    struct tensor latent[BATCH_MAX];
    struct tensor control[BATCH_MAX];                  /* rank 0 where the denoiser reads none */
    struct tensor reference[LANE_REFERENCES_MAX];      /* the latents of pictures to refer to */
    struct tensor prediction[BATCH_MAX * PROMPTS_MAX]; /* of one group: prompt * together + place in it */
    struct tensor picture, rgb;

    /* What it needs, not tiled first, in each number of groups that makes a difference, fewest first; the one
     * that the job is laid out for. */
    struct run_need *needs;
    int n_needs;
    struct run_need *need;
    struct plan plan;
};

/* Checks the request (USAGE for what is wrong with it), reads tokens, lays everything out, and measures it
 * dry. latent_dim: for decode_only, [N, C, Y, X] of the file. The job is closed by the caller also after
 * failure. */
enum status job_open(struct job *job, const struct job_place *place, const struct sluice_request *request,
                     const int32_t *latent_dim, struct error *e);
/* Of device memory: what is asked for, else the default. */
uint64_t job_vram_budget(const struct job *job);
/* Makes the plan: solved for the budget, or the one that the request brings; lays the job out for it.
 * Does not check whether it fits. */
enum status job_plan(struct job *job, struct error *e);
/* Lays the job out in so many groups, tiled or not; BUDGET if no need is for that. */
enum status job_lay_out(struct job *job, int groups, bool tiled, struct error *e);
/* The caller's picture behind one that is encoded; of a masked one that is the mask. */
const struct sluice_picture *job_source(const struct job *job, const struct encoded *encoded);
/* The images of a group are first to first + n. */
void job_images(const struct job *job, int group, int *first, int *n);
/* Takes the memory of what crosses stages. */
enum status job_allocate(struct job *job, struct error *e);
void job_close(struct job *job);

/* The device-independent view of the job for the executor. */
struct run job_run(struct job *job, const struct run_hooks *hooks);

/* Are weights read past the page cache? direct_io: the request's; a model of this many bytes, a machine with
 * this much memory. Pure, so that the same flags give the same plan. */
bool job_reads_direct(const char *direct_io, uint64_t model_bytes, uint64_t memory_bytes);

/* The name of number i, from 0, of things that are called NAME, NAME_2, ...; out has 16 bytes. Returns out.
 */
char *job_numbered(const char *name, int i, char out[16]);

/* FLOPs of the whole job. */
double job_flops(const struct job *job);

#endif
