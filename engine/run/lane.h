/* Lanes: the sequences that a stage computes, and the input of one forward function. */
#ifndef SLUICE_RUN_LANE_H
#define SLUICE_RUN_LANE_H

#include "engine/base/tensor.h"

#include <stdbool.h>

enum { LANE_REFERENCES_MAX = 8, ADD_TIME_IDS_MAX = 6, CONTROLS_MAX = 4 };

/* A control image of a lane of a control network. */
struct lane_control {
    /* Pixels [Y, X, 3] or a latent [C, 1, Y, X] with mask channels: see family_control.input. Written by the
     * host before the stage. */
    struct tensor input;
    float strength; /* factor of the residuals (controlnet_conditioning_scale) */
    int mode;       /* union networks: kind of the control image, a row of the network's mode embedding */
};

/* An image inside a prompt. A vision encoder computes its tokens, a grid in row order. */
struct vision_span {
    struct tensor rows;           /* [height width, C]: written by the vision encoder */
    int32_t first, height, width; /* first token's index; rows and columns of tokens; 0: none */
};

/* One sequence being computed in a stage: a prompt, an image under one guidance branch, or a picture to
 * encode or decode. The session writes the fields when it lays out a run and does not change them between the
 * first and the last visit; only `state` and the contents of the tensors change then. */
struct lane {
    /* Tensors that pass between stages, in inter-stage buffers of the session. Text encoders, denoisers and
     * VAEs each read and write some of them. */
    struct tensor text;   /* [T, C]: prompt_embeds, written by a text encoder, read by the denoiser */
    struct tensor pooled; /* [1, C]: pooled_projections, written by a text encoder that pools */
    struct tensor source; /* [S, C]: another text encoder's output, input of a text encoder with slot.reads */
    struct tensor latent; /* [C, F, Y, X]: read by the denoiser and the decoder */
    struct tensor concat; /* [C, F, Y, X]: concat channels (inpainting, image-to-video, VACE) */
    /* [T, C]: image embeddings of one or more images, one below the other, written by a vision encoder and
     * read by the denoiser in addition to the text. */
    struct tensor image;
    /* Latents of reference images, each [C, 1, Y, X]; rank 0: absent. */
    struct tensor reference[LANE_REFERENCES_MAX];
    struct tensor prediction; /* denoiser output [C, F, Y, X] */
    /* Sound that is denoised together with the video (LTX-2): latent [C, 1, L, B] of L latent frames and B
     * frequency bins, read by the denoiser and the sound decoder; the denoiser's output of the same shape. */
    struct tensor sound, sound_prediction;
    /* mel: log-mel spectrogram [T, channels * bins], written by the sound decoder and read by the vocoder.
     * wave: samples [N, channels], about -1 to 1, written by the vocoder. */
    struct tensor mel, wave;
    /* Frames of a VAE chunk [N, Y, X, 3], about -1 to 1: written by the decoder, read by encoders. N is the
     * longest chunk's frame count; a shorter chunk uses the first frames. */
    struct tensor picture;
    /* Output of an upscaler [1, s Y, s X, 3], about -1 to 1. Input: `picture` [1, Y, X, 3], 0 to 1. Output of
     * a latent upscaler [C, F, s Y, s X]; input: `latent`. Both latents are scaled as the denoiser reads
     * them. */
    struct tensor enlarged;
    /* Mean and log variance of a latent frame [Y, X, 2 C], written by the VAE encoder. */
    struct tensor moments;

    /* Input of a text encoder's stage, from the tokenizer and the recipe. */
    const int32_t *tokens; /* token ids of the prompt */
    int n_tokens;
    /* Tokens that attention reads as keys: n from `first` on. The rows of the other tokens (masked padding)
     * are computed too. n 0: all tokens. */
    struct {
        int first, n;
    } keys;
    /* Images inside the prompt in order of position; unused entries come last. The vision encoder writes the
     * rows that replace token embeddings. For a denoiser, `first` counts rows of `text`, and there are no
     * rows: image i is reference[i]. */
    struct vision_span vision_spans[LANE_REFERENCES_MAX];
    int window; /* attention and positions are limited to windows of this many tokens; 0: no windows */
    /* Hidden state of a CLIP encoder to read: 1: last layer, 2: the layer before; 0: as in the recipe. */
    int clip_skip;
    int pooled_row; /* index of the token whose row is pooled */

    /* Input of a denoiser's stage, from the request. */
    float guidance;     /* distilled guidance scale (guidance embedding) */
    int n_clean_frames; /* leading latent frames that come from the input image: no noise, timestep 0 */
    float fps;          /* frames per second of the video */
    /* Micro-conditioning read with the pooled row: SDXL's sizes, crop, aesthetic score (add_time_ids). Equal
     * in all lanes of one prompt. */
    float add_time_ids[ADD_TIME_IDS_MAX];
    int n_add_time_ids;
    /* Skip-layer guidance: numbers of the blocks that this lane skips. */
    const int *skip_layers;
    int n_skip_layers;
    /* Spatio-temporal guidance (LTX-2): numbers of the blocks whose self-attention outputs its values,
     * without attention weights. */
    const int *stg_blocks;
    int n_stg_blocks;
    bool isolated; /* no attention between video and sound (modality guidance of LTX-2) */
    /* Range of evaluations in which the lane is computed; n = 0: all; n = -1: none (control networks). Each
     * lane's range lies within the range of the lane before it, so the lanes of an evaluation are the first
     * lanes of the stage. */
    struct {
        int first, n;
    } evaluations;

    /* Input of a control network's lane. It belongs to one lane of the denoiser, and has the same latent,
     * timesteps and guidance. The network's blocks read that lane's state and add residuals to it. */
    const struct lane *denoiser;               /* that lane; NULL: this is not a lane of a control network */
    struct lane_control control[CONTROLS_MAX]; /* one, or several with family_control.combines_images */
    int n_controls;
    bool guess_mode; /* residuals get the factors of guess mode, smaller in shallow layers */
    /* Distance to the earlier lane that computes the residuals of this lane
     * (family_control.conditional_only). This lane uses that lane's state and prompt, and only adds the
     * residuals. 0: it computes its own. */
    int residuals_of;

    /* Chosen together with the grouping of lanes, before the dry run. */
    int prompt; /* index of the prompt; lanes of one prompt share what depends on the prompt alone */
    /* Element type of activations that only matrix products and attention read (context_operand). */
    enum dtype operand;
    int hoisted; /* number of timesteps with precomputed (hoisted) rows in the state; 0: none */
    /* The state keeps the keys and values of the prefix (family_lanes.prefix) from the first evaluation on;
     * false: each evaluation computes them. Both give the same bits. */
    bool keeps_prefix;
    bool tiled;   /* decoder with full-frame buffers as small as possible (VAE tiling) */
    bool padding; /* padding lane, which completes a group of lanes; never computed */

    /* Structure of the family's state tensors: the executor allocates it when the stage begins, and
     * family->state.declare fills it. */
    void *state;
};

/* True if the lane is computed in this evaluation. Unconditional lanes (--cfg-until) and skip-layer guidance
 * lanes may be computed in a range of evaluations only. */
static inline bool lane_is_of(const struct lane *lane, int evaluation) {
    int after = evaluation - lane->evaluations.first;
    return !lane->evaluations.n || (after >= 0 && after < lane->evaluations.n);
}

/* False for a lane of a control network that computes no residuals: it never runs, or adds another lane's. */
static inline bool lane_computes(const struct lane *lane) {
    return lane->evaluations.n >= 0 && !lane->residuals_of;
}

/* Index of the first lane that has the same prompt as lane i. */
static inline int lane_first_of_prompt(const struct lane *lanes, int i) {
    int first = 0;
    while (lanes[first].prompt != lanes[i].prompt) first++;
    return first;
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

/* First frame of the lane's picture [Y, X, C], a view. */
static inline struct tensor lane_picture(const struct lane *lane) {
    return tensor_reshape(tensor_slice(lane->picture, 0, 1), 3, lane->picture.dim + 1);
}

struct latent_format;

/* Inputs of a block's forward function besides the weights. */
struct visit_scope {
    const void *settings;                      /* settings structure of the component's family */
    const struct latent_format *latent_format; /* scaling of the component's latents, for a VAE decoder */
    const struct lane *lane;
    int number;           /* number of the block: the %d in its tensor names */
    int chunk;            /* index of the chunk of video frames, in a VAE's stage */
    int pass;             /* control_visit.pass */
    bool first;           /* the visit belongs to the stage's first evaluation or precedes it */
    bool first_of_prompt; /* the lane is its prompt's first one, which computes the prefix */
    /* Range of timestep indices of the visit: the timestep of the current evaluation; all timesteps if
     * hoisted; none in other visits before the first evaluation. */
    int timestep, n_timesteps;
    const float *timesteps; /* timestep values of the stage, as the family's recipe defines them */
};

/* Takes from timestep-dependent rows [all timesteps or 1, C] this visit's rows [n_timesteps, C]. Without
 * hoisting there is one row, of the current evaluation. */
static inline struct tensor scope_rows(struct tensor rows, const struct visit_scope *scope) {
    return tensor_slice(rows, rows.dim[0] == 1 ? 0 : scope->timestep, scope->n_timesteps);
}

/* Applies scope_rows to this block's rows in a tensor of all blocks' rows, [blocks, rows, C]. */
static inline struct tensor scope_rows_of_block(struct tensor all, const struct visit_scope *scope) {
    return scope_rows(tensor_reshape(tensor_slice(all, scope->number, 1), 2, all.dim + 1), scope);
}

#endif
