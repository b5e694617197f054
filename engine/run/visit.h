/* Visits: a run is a list of them, computed before it starts, from text encoder to decoder. */
#ifndef SLUICE_RUN_VISIT_H
#define SLUICE_RUN_VISIT_H

#include "engine/base/error.h"
#include "engine/base/sys.h"
#include "engine/base/tensor.h"

#include <stdbool.h>

enum { LANE_REFERENCES_MAX = 3 };

/* One thing being worked on in a stage: a prompt, one image under one guidance branch, one picture.
 * The tensors cross stages and belong to the session; which of them a family reads and writes its role says.
 */
struct lane {
    struct tensor text;    /* [T, C]: conditioning, written by a text encoder, read by the denoiser */
    struct tensor pooled;  /* [1, C]: the same of the whole prompt, written by a text encoder that pools */
    struct tensor latent;  /* [C, Y, X]: read by the denoiser and the decoder */
    struct tensor control; /* [C, Y, X]: read beside the latent by a denoiser that fills masks */
    struct tensor reference[LANE_REFERENCES_MAX]; /* [C, Y, X], of any sizes: pictures to refer to, read by
                                                     the denoiser; those that are absent have rank 0 */
    struct tensor prediction;                     /* [C, Y, X]: written by the denoiser */
    struct tensor
        picture; /* [Y, X, 3], -1 to 1 and a little beyond: written by the decoder, read by the encoder
                  */
    struct tensor moments; /* [Y, X, 2 C]: mean and logarithm of the variance, written by the encoder */
    const int32_t *tokens; /* of the prompt, in a text encoder's stage */
    int n_tokens;
    int pooled_row; /* the token whose row is the pooled one */
    float guidance; /* distilled guidance */
    int prompt;     /* which prompt it is conditioned on: lanes of one prompt share what depends on it only */
    int hoisted;    /* timesteps whose rows its state holds at once: all if they are hoisted, else 0 */
    bool tiled;  /* of a decoder: whole-picture buffers are as small as can be; its state is the same else */
    bool idle;   /* of a group that has fewer lanes than others: never computed */
    void *state; /* the family's own structure of tensors, declared by family->declare */
};

/* What a forward is told besides its weights. */
struct visit_scope {
    const void *settings; /* the family's configuration */
    const struct lane *lane;
    int number; /* the block's */
    /* The timesteps it is for: that of this evaluation; all of them where its rows are hoisted; none for
     * other visits before the first. */
    int timestep, n_timesteps;
    const float *timesteps; /* these, as the family's recipe defines them */
};

struct visit {
    int stage, block; /* block: place in the stage's list */
    int first_lane, n_lanes;
    int evaluation;       /* -1: once before the first */
    int n_hoisted;        /* if -1: timesteps whose rows it computes, see block_hoists; 0: it has none */
    bool ends_evaluation; /* the host's turn comes after it: sampler update, picture out */
};

/* The first lane of lane i's prompt. */
int lane_first_of_prompt(const struct lane *lanes, int i);

struct visit_list {
    struct sys *sys;
    struct visit *visits;
    int n_visits, capacity;
};

/* Appends; MEMORY. The list grows only while it is computed. */
enum status visit_add(struct visit_list *list, struct visit visit, struct error *e);
/* The same for the first lane of every prompt in turn: for what depends on the prompt, which its lanes share.
 */
enum status visit_add_prompts(struct visit_list *list, struct visit visit, const struct lane *lanes,
                              int n_lanes, struct error *e);
void visit_list_destroy(struct visit_list *list);

#endif
