/* What halves of autoencoders of videos are made of, as forwards: what vae_blocks.h has for one picture, here
 * for the frames of a chunk, which see those before them.
 *
 * A convolution over time is three of pictures, of this frame and of the two before it, added up from the
 * oldest. What it reads of a frame is kept until two more have come, normed and activated, so that it is
 * computed once: so a frame's bits do not depend on the chunks, and memory not on their number. Before the
 * first frame there is nothing, and nothing is added.
 *
 * Frames of a chunk go through a block one after another and lie in a film: see struct film. What is kept of
 * each convolution lies beside it, where it may be far from the device: then a visit computes with a copy,
 * and of four frames and what they see eight need not be fetched (lane.tiled: without copies, and the film
 * lies there too). Reference: diffusers 0.42, models/autoencoders/autoencoder_kl_wan.py. */
#ifndef SLUICE_VAE_FILM_H
#define SLUICE_VAE_FILM_H

#include "models/vae_blocks.h"

/* FILM_PATCH: of pixels on a side that are one where a picture is patched. FILM_ROW: values of a row of
 * memory, so long that published models of the largest pictures have no more rows than 32 bits count. */
enum { FILM_RESNETS_MAX = 8, FILM_SLICES = 3, FILM_PATCH = 2, FILM_ROW = 1024 };
/* With fewer levels frames would be as many as the latent's. */
enum { FILM_LEVELS_LEAST = 3 };
/* Where the resnets of the middle stand among the levels. */
enum { FILM_MIDDLE = CANVAS_LEVELS_MAX };

/* The frames of a chunk, in one buffer: what a block reads lies at one end of it, and what it writes at the
 * other, frame by frame, over frames that have been read. Where it writes as much as it reads, it writes
 * where it reads. */
struct film {
    struct tensor memory; /* [rows, FILM_ROW] f32 */
    struct tensor frames; /* [N, Y, X, C]: what the last block left */
    bool at_back;         /* they lie at the end of it */
};

/* Frames that are kept, [2, Y, X, C], frame t as number t % 2; where a latent has one frame there is none
 * after it to keep anything for, and all have rank 0. */
struct film_state {
    struct film film;
    bool first_at_back;                    /* a chunk's first frames are put there */
    struct tensor in, out;                 /* of the convolutions at both ends; an encoder's has the first */
    struct tensor time[CANVAS_LEVELS_MAX]; /* between this level and the next; [1, Y, X, C] where frames are
                                              halved */
    struct tensor resnet[CANVAS_LEVELS_MAX + 1][FILM_RESNETS_MAX][2];
    /* Memory for what a resnet's convolutions keep, while it computes; rank 0: they compute where it lies. */
    struct tensor near[2];
    /* What the level began with, [N, Y, X, C], where that is added behind it, all in one memory; else rank 0.
     * An encoder's middle has its last level's. */
    struct tensor level[CANVAS_LEVELS_MAX + 1];
};

/* Rows of memory for so many values. */
static inline int64_t film_rows(int64_t floats) {
    return (floats + FILM_ROW - 1) / FILM_ROW;
}

/* ---- weights ---- */

struct film_conv {
    struct tensor weight[FILM_SLICES], bias; /* the oldest frame's first */
};

struct film_latent_in_weights {
    struct tensor post, post_bias;
    struct film_conv conv;
};

struct film_resnet_weights {
    struct tensor norm1, norm2, shortcut, shortcut_bias;
    struct film_conv conv1, conv2;
};

struct film_out_weights {
    struct tensor norm, post, post_bias; /* post: of an encoder */
    struct film_conv conv;
};

/* From a level to the next; time: [2 C, C, 1, 1] where frames are doubled, [C, C, 1, 1] where they are
 * halved. */
struct film_step_weights {
    struct tensor weight, bias;
    struct film_conv time;
};

/* ---- forwards ---- */

void film_forward_latent_in(struct context *x, const void *weights, const struct visit_scope *scope,
                            const struct latent_format *format);
/* Number i of a level's, or of FILM_MIDDLE's. */
void film_forward_resnet(struct context *x, const struct film_resnet_weights *w,
                         const struct visit_scope *scope, int level, int i);
/* The attention of each frame by itself. */
void film_forward_attention(struct context *x, const struct attention_weights *w,
                            const struct visit_scope *scope);
/* From this level, with what it began with. A frame but the first becomes two where the weights have time. */
void film_forward_up(struct context *x, const struct film_step_weights *w, const struct visit_scope *scope,
                     int level);
void film_forward_colours(struct context *x, const void *weights, const struct visit_scope *scope);

void film_forward_picture_in(struct context *x, const void *weights, const struct visit_scope *scope);
/* Where the weights have time every other frame but the first goes into the one behind it. */
void film_forward_down(struct context *x, const struct film_step_weights *w, const struct visit_scope *scope,
                       int level);
void film_forward_moments(struct context *x, const void *weights, const struct visit_scope *scope);

/* ---- a half's family ---- */

/* Frames of a level for each of the latent but the first: doubled from level to level from the deepest, but
 * for the last time, as published. */
int film_rate(const struct component *c, int from_deepest);
/* family.declare. adds: what a level began with is added behind it. */
void film_declare_decoder(const struct component *c, struct lane *lanes, int n_lanes, bool adds,
                          struct arena *arena, struct arena *pictures, bool *ok);
void film_declare_encoder(const struct component *c, struct lane *lanes, int n_lanes, bool adds,
                          struct arena *arena, struct arena *pictures, bool *ok);

#endif
