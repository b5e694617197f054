/* Visits and lanes. A run is a list of visits, computed before the run starts, from text encoder to
 * decoder. */
#ifndef SLUICE_RUN_VISIT_H
#define SLUICE_RUN_VISIT_H

#include "engine/base/error.h"
#include "engine/base/sys.h"
#include "engine/base/tensor.h"

#include <stdbool.h>

enum { LANE_REFERENCES_MAX = 3, ADD_TIME_IDS_MAX = 6 };

/* An image inside a prompt. Its tokens form a grid, row by row, computed by a vision encoder. */
struct vision_span {
    struct tensor rows; /* [height width, C]: written by the vision encoder */
    int32_t first, height,
        width; /* index of its first token in the prompt, and size of the grid; 0: no image */
};

/* One sequence being computed in a stage: a prompt, an image under one guidance branch, or a picture to
 * encode or decode. The tensors pass between stages and belong to the session. The kind of family decides
 * which tensors are read and written. */
struct lane {
    struct tensor text;   /* [T, C]: prompt_embeds, written by a text encoder, read by the denoiser */
    struct tensor pooled; /* [1, C]: pooled_projections, written by a text encoder that pools */
    struct tensor latent; /* [C, F, Y, X]: read by the denoiser and the decoder */
    struct tensor concat; /* [C, F, Y, X]: concat channels (inpainting, image-to-video, VACE) */
    /* [T, C]: image embeddings of one or several images, one below the other, written by a vision encoder and
     * read by the denoiser in addition to the text. */
    struct tensor image;
    struct tensor reference[LANE_REFERENCES_MAX]; /* [C, 1, Y, X]: reference images; absent: rank 0 */
    struct tensor prediction;                     /* [C, F, Y, X]: written by the denoiser */
    /* [N, Y, X, 3], about -1 to 1: frames of a chunk, written by the decoder, read by encoders. N is the
     * frame count of the longest chunk; a shorter chunk uses the first frames. */
    struct tensor picture;
    struct tensor moments; /* [Y, X, 2 C]: mean and log variance of a latent frame, written by the encoder */
    const int32_t *tokens; /* token ids of the prompt, in a text encoder's stage */
    int n_tokens;
    /* In a text encoder's stage: images of the prompt in order of position. Their rows replace token
     * embeddings. Absent images come last. */
    struct vision_span vision_spans[LANE_REFERENCES_MAX];
    int window;     /* attention and positions are limited to windows of this many tokens; 0: no windows */
    int clip_skip;  /* 1: output of the last layer, 2: of the layer before; 0: as in the recipe */
    int pooled_row; /* index of the token whose row is pooled */
    float guidance; /* distilled guidance scale (guidance embedding) */
    int n_clean_frames; /* leading latent frames that come from the input image: no noise, timestep 0 */
    /* Micro-conditioning read with the pooled row: sizes, aesthetic score (SDXL's add_time_ids). Equal in all
     * lanes of one prompt. */
    float add_time_ids[ADD_TIME_IDS_MAX];
    int n_add_time_ids;
    int prompt; /* index of the prompt; lanes of one prompt share what depends on the prompt alone */
    /* Skip-layer guidance: numbers of the blocks that this lane skips, among kinds that may be skipped.
     * evaluations: the range in which the lane is computed, n = 0: all. Lanes with a range all have the same
     * range and come after lanes without one. */
    const int *skip_layers;
    int n_skip_layers;
    struct {
        int first, n;
    } evaluations;
    /* Operand type of matrix products and attention (see context_operand), for state that nothing else
     * reads. */
    enum dtype operand;
    int hoisted;  /* number of timesteps whose rows the state holds at once: all of them if hoisted, else 0 */
    bool tiled;   /* of a decoder: full-frame buffers are as small as possible */
    bool padding; /* fills up a group that has fewer lanes than the others; never computed */
    void *state;  /* the family's own structure of tensors, declared by family->declare */
};

static inline bool lane_is_of(const struct lane *lane, int evaluation) {
    int after = evaluation - lane->evaluations.first;
    return !lane->evaluations.n || (after >= 0 && after < lane->evaluations.n);
}

/* A latent [C, F, Y, X] as planes [C, F Y, X]. Patches never cross frames, because each frame is whole rows
 * of patches. */
static inline struct tensor latent_planes(struct tensor latent) {
    return tensor_reshape(latent, 3,
                          (int32_t[]){latent.dim[0], latent.dim[1] * latent.dim[2], latent.dim[3]});
}

/* One frame of a latent [C, F, Y, X] as a matrix [C, Y X]; the stride between its rows covers F frames. */
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
    const void *settings; /* configuration structure of the family */
    const struct lane *lane;
    int number; /* number of the block */
    int chunk;  /* index of the chunk of frames, in a VAE encoder or decoder */
    /* Range of timesteps of the visit: the one of this evaluation; all of them if the rows are hoisted; empty
     * in other visits before the first evaluation. */
    int timestep, n_timesteps;
    const float *timesteps; /* values of these timesteps, as the family's recipe defines them */
};

/* Slices rows [all timesteps or 1, C] that depend on the timestep to the rows [n_timesteps, C] of this visit.
 * Without hoisting there is one row, of the current evaluation. */
static inline struct tensor scope_rows(struct tensor rows, const struct visit_scope *scope) {
    return tensor_slice(rows, rows.dim[0] == 1 ? 0 : scope->timestep, scope->n_timesteps);
}

/* The same for this block within rows of all blocks, [blocks, rows, C]. */
static inline struct tensor scope_rows_of_block(struct tensor all, const struct visit_scope *scope) {
    return scope_rows(tensor_reshape(tensor_slice(all, scope->number, 1), 2, all.dim + 1), scope);
}

struct visit {
    int stage, block; /* block: index in the stage's list of blocks */
    int first_lane, n_lanes;
    int evaluation;       /* -1: runs once, before the first evaluation */
    int n_hoisted;        /* with evaluation -1: number of hoisted timesteps (see block_hoists) */
    bool ends_evaluation; /* the hook evaluation_ended follows: sampler update, output of a frame */
};

/* The first lane that has the same prompt as lane i. */
int lane_first_of_prompt(const struct lane *lanes, int i);

struct visit_list {
    struct sys *sys;
    struct visit *visits;
    int n_visits, capacity;
};

/* Appends a visit; MEMORY. The list grows only while it is built. */
enum status visit_add(struct visit_list *list, struct visit visit, struct error *e);
/* Appends the visit for the first lane of each prompt: for values that depend on the prompt alone. */
enum status visit_add_prompts(struct visit_list *list, struct visit visit, const struct lane *lanes,
                              int n_lanes, struct error *e);
void visit_list_destroy(struct visit_list *list);

#endif
