/* Control networks of MMDiT transformers (Qwen-Image, Stable Diffusion 3): a few layers of the denoiser's
 * kind with their own embedders. A linear layer turns the image tokens after each layer into a residual,
 * which several denoiser layers add to their image tokens. One residual exists at a time: layer j of the
 * network runs just before residual j is added for the first time. */
#ifndef SLUICE_MODELS_MMDIT_CONTROL_H
#define SLUICE_MODELS_MMDIT_CONTROL_H

#include "models/mmdit.h"

/* Block kinds in the visits of a control network. */
struct mmdit_control_kinds {
    /* Of the denoiser. The network's embedder runs after the denoiser's embedder. */
    const struct block_kind *denoiser_embedder, *denoiser_layer[2]; /* layers but the last; last layer */
    /* Of the network. `residual` has the number of its layer; `add` is a block without weights. */
    const struct block_kind *embedder, *layer[2], *residual, *add;
    /* Returns the index of the residual that is added after layer `layer` of the denoiser's n layers, if
     * there are n_residuals residuals; -1: none. */
    int (*residual_of)(int layer, int n, int n_residuals);
};

/* Implements family_control.visits for a network of n_residuals layers. */
int mmdit_control_visits(const struct component *c, const struct component *denoiser,
                         const struct mmdit_control_kinds *kinds, int n_residuals,
                         struct control_visit *visits);

/* Implements family_control.check: SHAPE if the widths of tokens, prompts or pooled prompts, or the latent
 * channels, differ, or if the network has more layers than the denoiser or too many for CONTROL_VISITS_MAX. A
 * network with text_columns or pooled_columns 0 reads no prompt or pooled prompt. i_dim, i_layers: indices of
 * the width and the number of layers in the dims of both. */
enum status mmdit_control_check(const struct component *c, const struct component *denoiser, int i_dim,
                                int i_layers, struct error *e);

/* Computes the control image's part of image tokens: out [image rows, C] = in + linear(patches of the lane's
 * control image). w: a linear layer over patches, or a convolution with their side and stride. out may alias
 * in.
 */
void mmdit_control_embed(struct context *x, struct tensor out, struct tensor in,
                         const struct linear_weights *w, const struct lane *lane);
/* Embeds timesteps and pooled prompt as mmdit_time_text_embed does. zero_pooled: with zeros as the pooled
 * prompt. */
void mmdit_control_condition(struct context *x, struct tensor rows,
                             const struct mmdit_time_text_embed_weights *w, const struct visit_scope *scope,
                             bool zero_pooled);
/* Adds strength * residual to the generated image's rows of the denoiser's tokens. lane: a lane of the
 * network. */
void mmdit_control_add(struct context *x, struct tensor denoiser_tokens, struct tensor residual,
                       const struct lane *lane);

#endif
