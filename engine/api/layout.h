/* Layouts: a job as stages with lanes, visits and inter-stage buffers.
 *
 * A layout depends only on the job and a layout_choice: how many images are denoised at once, whether the VAE
 * uses its low-memory mode, which transformers have their timestep rows hoisted. The planner makes a layout
 * for each choice and compares them; no layout changes the job. */
#ifndef SLUICE_API_LAYOUT_H
#define SLUICE_API_LAYOUT_H

#include "engine/api/request.h"
#include "engine/run/executor.h"
#include "engine/sample/sampler.h"
#include "models/models.h"

/* Guidance branches: conditional, unconditional, and skip-layer guidance of the conditional prompt. */
enum { PROMPTS_MAX = 2, BRANCHES_MAX = PROMPTS_MAX + 1, ENCODED_MAX = 2 + 2 * LANE_REFERENCES_MAX };

struct job;
struct stage_kind;

struct layout_choice {
    int groups;       /* number of groups of images; a denoiser call evaluates one group after another */
    bool tiled;       /* true: the VAE's full-frame buffers are as small as possible (--vae-tiling on) */
    unsigned hoisted; /* bit set: job->spans whose timestep rows are computed before the first step */
};

/* Tensors of one encoded picture (struct encoded in job.h). The pictures and moments of all encoded pictures
 * share memory. */
struct encoded_tensors {
    struct tensor resized; /* [Y, X, 3] U8 at the vision encoder's size; rank 0: not resized */
    struct tensor picture; /* [N, Y, X, 3] F32: frames of one chunk */
    struct tensor moments; /* VAE output of one latent frame: [y, x, 2 C] mean and log variance */
    struct tensor tokens;  /* vision encoder output [tokens, columns], in memory of its own */
};

struct layout {
    struct layout_choice choice;
    int images_per_group; /* number of images in the largest group of the batch */

    struct stage stages[PLAN_STAGES_MAX];
    const struct stage_kind *kind[PLAN_STAGES_MAX];
    int slot[PLAN_STAGES_MAX];
    int span[PLAN_STAGES_MAX]; /* denoise stages: index in job->spans */
    int n_stages;
    const struct block **block_lists; /* storage of the stages' block lists; owned */
    struct lane *lanes;               /* storage of the stages' lanes; owned */
    struct visit_list visits;

    /* Inter-stage buffers; the tensors have no data if the layout was made without memory. */
    struct arena interstage;
    struct tensor text[PROMPTS_MAX];   /* prompt_embeds of each prompt; rank 0: unused */
    struct tensor pooled[PROMPTS_MAX]; /* pooled_projections of each prompt; rank 0: unused */
    /* Output of each text encoder per prompt: a view of `text` or `pooled`, or a separate tensor that the
     * host copies into `text` or `pooled`. */
    struct tensor encoder_text[SLOTS_MAX][PROMPTS_MAX], encoder_pooled[SLOTS_MAX][PROMPTS_MAX];
    struct tensor latent[BATCH_MAX]; /* latent of each image [C, F, Y, X] */
    struct tensor video[BATCH_MAX];  /* view of the latent without the VACE reference frames in front */
    struct tensor input[BATCH_MAX];  /* the denoiser's input: the latent itself, or a scaled copy */
    struct tensor history[BATCH_MAX][SAMPLER_HISTORY_MAX]; /* kept by the sampler */
    struct tensor noise;                                   /* fresh noise of a step */
    struct tensor concat[BATCH_MAX]; /* concat channels; rank 0: none. One shared tensor if not sampled */
    struct tensor image;             /* vision tokens that the denoiser reads; rank 0: none */
    struct tensor clean_frame;       /* image-to-video: latent of the first frame [C, 1, Y, X]; else rank 0 */
    /* For the inpainting blend (job_blends_mask), else of rank 0: the mask [Y, X], 1 where the image is
     * repainted; the latent of the input image; the initial noise. */
    struct tensor mask, inpaint_latent[BATCH_MAX], inpaint_noise[BATCH_MAX];
    struct tensor reference[LANE_REFERENCES_MAX];       /* latents of reference images */
    struct tensor prediction[BATCH_MAX * BRANCHES_MAX]; /* denoiser output of each lane */
    struct tensor denoised;    /* predicted clean latent [C, F, Y, X] for previews; rank 0: no previews */
    struct tensor preview;     /* preview image, RGB [Y, X, 3] U8; rank 0: no previews */
    struct tensor control_rgb; /* a frame of the control video [Y, X, 3] U8; rank 0: none */
    struct tensor picture;     /* decoded frames of a chunk [N, Y, X, 3] F32 */
    struct tensor rgb;         /* one decoded frame [Y, X, 3] U8 */
    struct encoded_tensors encoded[ENCODED_MAX];
};

/* Makes a layout of the job. memory: for the inter-stage buffers; a layout made with memory NULL has tensors
 * without data, and its interstage.peak is the number of bytes needed. The caller closes the layout, also
 * after failure. */
enum status layout_open(const struct job *job, struct layout_choice choice, void *memory,
                        struct layout *layout, struct error *e);
void layout_close(struct sys *sys, struct layout *layout);

/* Index in job->encoded of the picture that lane `number` encodes, in a stage with the given slot and number
 * of chunks; -1: the stage has no such lane. */
int layout_find_encoded(const struct job *job, int slot, int n_chunks, int number);

/* Where each condition of the recipe is placed in prompt_embeds [rows, columns] or pooled_projections
 * [pooled_columns]: first row and column. rows is 0 if the denoiser reads no prompt_embeds, pooled_columns is
 * 0 if the denoiser reads no pooled_projections. Values that no condition fills are zero. */
struct text_places {
    int32_t row[CONDITIONS_MAX], column[CONDITIONS_MAX];
    int32_t rows, columns, pooled_columns;
};
struct text_places layout_place_texts(const struct job *job, int prompt);

/* Sets *first and *n to the images of a group; group sizes differ by at most one, larger groups first. */
static inline void layout_images(const struct layout *l, int batch, int group, int *first, int *n) {
    int groups = l->choice.groups;
    *first = (group * batch + groups - 1) / groups;
    *n = ((group + 1) * batch + groups - 1) / groups - *first;
}

#endif
