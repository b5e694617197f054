/* Visits and lanes. A run is a list of visits, from text encoder to decoder, made before the run starts. */
#ifndef SLUICE_RUN_VISIT_H
#define SLUICE_RUN_VISIT_H

#include "engine/base/error.h"
#include "engine/base/sys.h"
#include "engine/base/tensor.h"

#include <stdbool.h>

enum { LANE_REFERENCES_MAX = 3, ADD_TIME_IDS_MAX = 6 };

/* An image inside a prompt. A vision encoder computes its tokens, a grid in row order. */
struct vision_span {
    struct tensor rows;           /* [height width, C]: written by the vision encoder */
    int32_t first, height, width; /* first token's index; rows and columns of tokens; 0: none */
};

/* One sequence being computed in a stage: a prompt, an image under one guidance branch, or a picture to
 * encode or decode. The tensors pass between stages and belong to the session; the kind of family decides
 * which ones are read and written. */
struct lane {
    struct tensor text;   /* [T, C]: prompt_embeds, written by a text encoder, read by the denoiser */
    struct tensor pooled; /* [1, C]: pooled_projections, written by a text encoder that pools */
    struct tensor latent; /* [C, F, Y, X]: read by the denoiser and the decoder */
    struct tensor concat; /* [C, F, Y, X]: concat channels (inpainting, image-to-video, VACE) */
    /* [T, C]: image embeddings of one or more images, one below the other, written by a vision encoder and
     * read by the denoiser in addition to the text. */
    struct tensor image;
    struct tensor reference[LANE_REFERENCES_MAX]; /* [C, 1, Y, X]: reference images; absent: rank 0 */
    struct tensor prediction;                     /* [C, F, Y, X]: written by the denoiser */
    /* [N, Y, X, 3], about -1 to 1: frames of a chunk, written by the decoder, read by encoders. N is the
     * longest chunk's frame count; a shorter chunk uses the first frames. */
    struct tensor picture;
    struct tensor moments; /* [Y, X, 2 C]: mean and log variance of a latent frame, written by the encoder */
    const int32_t *tokens; /* token ids of the prompt, in a text encoder's stage */
    int n_tokens;
    /* In a text encoder's stage: images of the prompt in order of position; their rows replace token
     * embeddings. Absent images come last. */
    struct vision_span vision_spans[LANE_REFERENCES_MAX];
    int window;     /* attention and positions are limited to windows of this many tokens; 0: no windows */
    int clip_skip;  /* 1: output of the last layer, 2: of the layer before; 0: as in the recipe */
    int pooled_row; /* index of the token whose row is pooled */
    float guidance; /* distilled guidance scale (guidance embedding) */
    int n_clean_frames; /* leading latent frames that come from the input image: no noise, timestep 0 */
    /* Micro-conditioning read with the pooled row: SDXL's sizes, crop, aesthetic score (add_time_ids). Equal
     * in all lanes of one prompt. */
    float add_time_ids[ADD_TIME_IDS_MAX];
    int n_add_time_ids;
    int prompt; /* index of the prompt; lanes of one prompt share what depends on the prompt alone */
    /* Skip-layer guidance: numbers of the blocks that this lane skips. evaluations: range in which the lane
     * is computed; n = 0: all. All lanes with a range have the same range and come after lanes without a
     * range. */
    const int *skip_layers;
    int n_skip_layers;
    struct {
        int first, n;
    } evaluations;
    /* Element type of state tensors that only matrix products and attention read (see context_operand). */
    enum dtype operand;
    int hoisted;  /* number of timesteps that the state holds hoisted rows for; 0: none */
    bool tiled;   /* decoder with full-frame buffers as small as possible (VAE tiling) */
    bool padding; /* padding lane, which completes a group of lanes; never computed */
    void *state;  /* structure of the family's state tensors, filled by family->declare */
};

static inline bool lane_is_of(const struct lane *lane, int evaluation) {
    int after = evaluation - lane->evaluations.first;
    return !lane->evaluations.n || (after >= 0 && after < lane->evaluations.n);
}

/* Reshapes a latent [C, F, Y, X] to planes [C, F Y, X]: frames become rows of one image. A patch never
 * crosses frames, because a frame is a whole number of rows of patches. */
static inline struct tensor latent_planes(struct tensor latent) {
    return tensor_reshape(latent, 3,
                          (int32_t[]){latent.dim[0], latent.dim[1] * latent.dim[2], latent.dim[3]});
}

/* One frame of a latent [C, F, Y, X] as a matrix [C, Y X]; its row stride covers F frames. */
static inline struct tensor latent_frame(struct tensor latent, int32_t frame) {
    int32_t pixels = latent.dim[2] * latent.dim[3];
    struct tensor rows = tensor_reshape(latent, 2, (int32_t[]){latent.dim[0], latent.dim[1] * pixels});
    return tensor_slice_columns(rows, frame * pixels, pixels);
}

static inline struct tensor lane_picture(const struct lane *lane) {
    return tensor_reshape(tensor_slice(lane->picture, 0, 1), 3, lane->picture.dim + 1);
}

/* Inputs of a forward function besides the weights. */
struct visit_scope {
    const void *settings; /* the family's settings structure */
    const struct lane *lane;
    int number; /* number of the block */
    int chunk;  /* index of the chunk of video frames, in a VAE's stage */
    /* Range of timestep indices of the visit: the timestep of the current evaluation; all timesteps if
     * hoisted; none in other visits before the first evaluation. */
    int timestep, n_timesteps;
    const float *timesteps; /* timestep values, as the family's recipe defines them */
};

/* Slices timestep-dependent rows [all timesteps or 1, C] to this visit's rows [n_timesteps, C]. Without
 * hoisting there is one row, of the current evaluation. */
static inline struct tensor scope_rows(struct tensor rows, const struct visit_scope *scope) {
    return tensor_slice(rows, rows.dim[0] == 1 ? 0 : scope->timestep, scope->n_timesteps);
}

/* Applies scope_rows to this block's rows in a tensor of all blocks' rows, [blocks, rows, C]. */
static inline struct tensor scope_rows_of_block(struct tensor all, const struct visit_scope *scope) {
    return scope_rows(tensor_reshape(tensor_slice(all, scope->number, 1), 2, all.dim + 1), scope);
}

struct visit {
    int stage, block; /* block: index in the stage's list of blocks */
    int first_lane, n_lanes;
    int evaluation;       /* -1: the visit runs once, before the first evaluation */
    int n_hoisted;        /* with evaluation -1: number of hoisted timesteps (see block_hoists) */
    bool ends_evaluation; /* last visit: the hook evaluation_ended is called after it */
};

/* Index of the first lane that has the same prompt as lane i. */
int lane_first_of_prompt(const struct lane *lanes, int i);

struct visit_list {
    struct sys *sys;
    struct visit *visits;
    int n_visits, capacity;
};

/* Appends a visit. Fails with MEMORY. */
enum status visit_add(struct visit_list *list, struct visit visit, struct error *e);
/* Appends a visit for the first lane of each prompt: for values that depend on the prompt alone. */
enum status visit_add_prompts(struct visit_list *list, struct visit visit, const struct lane *lanes,
                              int n_lanes, struct error *e);
void visit_list_destroy(struct visit_list *list);

#endif
