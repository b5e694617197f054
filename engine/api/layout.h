/* Layouts: a job in stages, with their lanes, visits, and the tensors that cross from one to the next.
 *
 * A layout is a pure function of the job and of a choice: how many images are denoised at once, whether the
 * decoder's whole pictures are as small as can be, whose rows are hoisted. Whoever decides makes layouts of
 * several choices and compares them; nothing of a job is set to see what would come of it. */
#ifndef SLUICE_API_LAYOUT_H
#define SLUICE_API_LAYOUT_H

#include "engine/api/request.h"
#include "engine/run/executor.h"
#include "engine/sample/sampler.h"
#include "models/models.h"

/* Branches of guidance: each prompt's, and the first one's that leaves blocks out. */
enum { PROMPTS_MAX = 2, BRANCHES_MAX = PROMPTS_MAX + 1, ENCODED_MAX = 2 + 2 * LANE_REFERENCES_MAX };

struct job;
struct stage_kind;

struct layout_choice {
    int groups;       /* the images are denoised in so many groups, which take turns in every call */
    bool tiled;       /* whole pictures of the autoencoder are as small as can be */
    unsigned hoisted; /* set of the spans whose rows are all computed before the first call */
};

/* A picture that is encoded, in memory that all of them share: see job.h. */
struct encoded_tensors {
    struct tensor
        resized; /* [Y, X, 3] U8: the picture at the size that a vision encoder reads; rank 0: it has it */
    struct tensor picture; /* frames of a chunk [N, Y, X, 3] */
    struct tensor moments; /* of an autoencoder: of a latent frame */
    struct tensor tokens;  /* of a vision encoder; memory of its own */
};

struct layout {
    struct layout_choice choice;
    int together; /* images of a group, at most */

    struct stage stages[PLAN_STAGES_MAX];
    const struct stage_kind *kind[PLAN_STAGES_MAX];
    int slot[PLAN_STAGES_MAX], span[PLAN_STAGES_MAX]; /* span: of stages that denoise */
    int n_stages;
    const struct block **block_lists; /* storage of the stages' lists */
    struct lane *lanes;               /* storage of the stages' lanes */
    struct visit_list visits;

    /* What crosses stages; without data where the layout was made without memory. */
    struct arena cross;
    struct tensor text[PROMPTS_MAX], pooled[PROMPTS_MAX]; /* what denoisers read; rank 0: nothing */
    /* What each encoder writes of a prompt: its place in the above, or a tensor of its own that the host
     * copies there. */
    struct tensor encoder_text[SLOTS_MAX][PROMPTS_MAX], encoder_pooled[SLOTS_MAX][PROMPTS_MAX];
    struct tensor latent[BATCH_MAX]; /* [C, F, Y, X] */
    struct tensor video[BATCH_MAX];  /* the same memory without what is in front, once that is cut off */
    struct tensor input[BATCH_MAX];  /* what denoisers read: the latent itself, or scaled */
    struct tensor history[BATCH_MAX][SAMPLER_HISTORY_MAX], noise; /* the sampler's */
    struct tensor concat[BATCH_MAX]; /* rank 0 where the denoiser reads none; one for all where nothing of it
                                        is drawn */
    struct tensor image;             /* rows of pictures that denoisers read; rank 0: none */
    struct tensor given; /* [C, 1, Y, X]: the latent's first frame where that is given, else rank 0 */
    /* Where the host heeds the mask (job_keeps), else rank 0: 1 where it draws, [Y, X]; the picture's latent
     * and the noise that the run began with. */
    struct tensor mask, kept[BATCH_MAX], kept_noise[BATCH_MAX];
    struct tensor reference[LANE_REFERENCES_MAX];       /* latents of pictures to refer to */
    struct tensor prediction[BATCH_MAX * BRANCHES_MAX]; /* of one group: branch * together + place in it */
    /* Of a preview, else rank 0: what the denoiser takes an image's latent to be; and its picture. */
    struct tensor denoised, preview; /* [C, F, Y, X]; [Y, X, 3] U8 */
    struct tensor led_rgb;           /* a frame that leads [Y, X, 3] U8; rank 0: none does */
    struct tensor picture, rgb;      /* frames of a chunk [N, Y, X, 3]; one of them */
    struct encoded_tensors encoded[ENCODED_MAX];
};

/* memory: of layout->cross.peak bytes as a layout of the same choice without memory tells; NULL: tensors have
 * no data. Closed by the caller also after failure. */
enum status layout_open(const struct job *job, struct layout_choice choice, void *memory,
                        struct layout *layout, struct error *e);
void layout_close(struct sys *sys, struct layout *layout);

/* The encoded picture of that number among those of that slot and of so many chunks, which are a stage's
 * lanes; -1: there are fewer. */
int layout_find_encoded(const struct job *job, int slot, int n_chunks, int number);

/* Where what each row of the recipe's conditioning gives begins in a prompt's text, or in its pooled row; the
 * text's rows and columns, and the pooled row's. 0: the denoiser reads no tokens, or no pooled row. Zeros lie
 * where nothing is given. */
struct text_places {
    int32_t row[CONDITIONS_MAX], column[CONDITIONS_MAX];
    int32_t rows, columns, pooled_columns;
};
struct text_places layout_place_texts(const struct job *job, int prompt);

/* The images of a group are first to first + n: as even as can be, the larger groups first. */
static inline void layout_images(const struct layout *l, int batch, int group, int *first, int *n) {
    int groups = l->choice.groups;
    *first = (group * batch + groups - 1) / groups;
    *n = ((group + 1) * batch + groups - 1) / groups - *first;
}

#endif
