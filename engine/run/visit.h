/* Visits: a run is a list of them, computed before it starts, from text encoder to decoder. */
#ifndef SLUICE_RUN_VISIT_H
#define SLUICE_RUN_VISIT_H

#include "engine/base/error.h"
#include "engine/base/sys.h"
#include "engine/base/tensor.h"

#include <stdbool.h>

enum { LANE_REFERENCES_MAX = 3, LANE_NUMBERS_MAX = 6 };

/* A picture in a prompt. Its tokens are a grid, row by row, of those that a vision encoder made of it. */
struct seen_picture {
    struct tensor rows;           /* [height width, C]: written by a vision encoder */
    int32_t first, height, width; /* its first token's place in the prompt, and the grid; 0: no picture */
};

/* One thing being worked on in a stage: a prompt, one image under one guidance branch, one picture.
 * The tensors cross stages and belong to the session; which of them a family reads and writes its role says.
 */
struct lane {
    struct tensor text;   /* [T, C]: conditioning, written by a text encoder, read by the denoiser */
    struct tensor pooled; /* [1, C]: the same of the whole prompt, written by a text encoder that pools */
    struct tensor latent; /* [C, F, Y, X]: read by the denoiser and the decoder */
    struct tensor concat; /* [C, F, Y, X]: read beside the latent by a denoiser that fills masks, continues
                             pictures or is led by a video */
    /* [T, C]: of a picture, or of several one below the other: rows that a vision encoder made, read by the
     * denoiser beside the text. */
    struct tensor image;
    struct tensor reference[LANE_REFERENCES_MAX]; /* [C, 1, Y, X], of any sizes: pictures to refer to, read by
                                                     the denoiser; those that are absent have rank 0 */
    struct tensor prediction;                     /* [C, F, Y, X]: written by the denoiser */
    /* [N, Y, X, 3], -1 to 1 and a little beyond: frames of a chunk, written by the decoder, read by encoders.
     * N is the longest chunk's; a shorter one's come first. */
    struct tensor picture;
    struct tensor moments; /* [Y, X, 2 C]: mean and logarithm of the variance of a chunk's frame of the
                              latent, written by the encoder */
    const int32_t *tokens; /* of the prompt, in a text encoder's stage */
    int n_tokens;
    /* In a text encoder's stage, in the order of their places: their rows stand where embeddings of tokens
     * would. Those that are absent come last. */
    struct seen_picture seen[LANE_REFERENCES_MAX];
    int window;     /* so many tokens see each other, and positions begin anew behind them; 0: all */
    int clip_skip;  /* 1: the last layer's tokens are given, 2: the one's before; 0: the recipe's */
    int pooled_row; /* the token whose row is the pooled one */
    float guidance; /* distilled guidance */
    int given; /* frames of the latent, from the first, that are given: they have no noise, and their timestep
                  is 0 */
    /* Told to the denoiser beside the pooled row: sizes, an aesthetic score. Lanes of one prompt have the
     * same. */
    float numbers[LANE_NUMBERS_MAX];
    int n_numbers;
    int prompt; /* which prompt it is conditioned on: lanes of one prompt share what depends on it only */
    /* Numbers of the blocks that it leaves out, of kinds that may be left out; and the evaluations that it is
     * of, n 0: all. Lanes that are not of all are all of the same ones, and come behind those that are. */
    const int *left_out;
    int n_left_out;
    struct {
        int first, n;
    } evaluations;
    /* The type of what products and attention read where it is computed, see context_operand: of state that
     * nothing else reads. */
    enum dtype operand;
    int hoisted; /* timesteps whose rows its state holds at once: all if they are hoisted, else 0 */
    bool tiled;  /* of a decoder: whole-picture buffers are as small as can be; its state is the same else */
    bool idle;   /* of a group that has fewer lanes than others: never computed */
    void *state; /* the family's own structure of tensors, declared by family->declare */
};

static inline bool lane_is_of(const struct lane *lane, int evaluation) {
    int after = evaluation - lane->evaluations.first;
    return !lane->evaluations.n || (after >= 0 && after < lane->evaluations.n);
}

/* A latent [C, F, Y, X] as planes [C, F Y, X]: patches never straddle frames, whose rows are whole ones. */
static inline struct tensor latent_planes(struct tensor latent) {
    return tensor_reshape(latent, 3,
                          (int32_t[]){latent.dim[0], latent.dim[1] * latent.dim[2], latent.dim[3]});
}

/* One frame of a latent [C, F, Y, X] as a matrix [C, Y X], whose rows are F frames apart. */
static inline struct tensor latent_frame(struct tensor latent, int32_t frame) {
    int32_t pixels = latent.dim[2] * latent.dim[3];
    struct tensor rows = tensor_reshape(latent, 2, (int32_t[]){latent.dim[0], latent.dim[1] * pixels});
    return tensor_slice_columns(rows, frame * pixels, pixels);
}

/* The first frame, [Y, X, 3]. */
static inline struct tensor lane_picture(const struct lane *lane) {
    return tensor_reshape(tensor_slice(lane->picture, 0, 1), 3, lane->picture.dim + 1);
}

/* What a forward is told besides its weights. */
struct visit_scope {
    const void *settings; /* the family's configuration */
    const struct lane *lane;
    int number; /* the block's */
    int chunk;  /* of frames, in an autoencoder's half */
    /* The timesteps it is for: that of this evaluation; all of them where its rows are hoisted; none for
     * other visits before the first. */
    int timestep, n_timesteps;
    const float *timesteps; /* these, as the family's recipe defines them */
};

/* Of rows that depend on the timestep, [all timesteps or 1, C], those of this visit, [n_timesteps, C]: where
 * they are not hoisted there is one, of the evaluation under way. */
static inline struct tensor scope_rows(struct tensor rows, const struct visit_scope *scope) {
    return tensor_slice(rows, rows.dim[0] == 1 ? 0 : scope->timestep, scope->n_timesteps);
}

/* The same of this block in all blocks', [blocks, rows, C]. */
static inline struct tensor scope_rows_of_block(struct tensor all, const struct visit_scope *scope) {
    return scope_rows(tensor_reshape(tensor_slice(all, scope->number, 1), 2, all.dim + 1), scope);
}

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
