#include "models/mmdit_control.h"

/* Index of block `number` of the first or the second kind; -1: none. */
static int layer_block(const struct component *c, const struct block_kind *const kinds[2], int number) {
    int block = component_find_block(c, kinds[0], number);
    return block >= 0 ? block : component_find_block(c, kinds[1], number);
}

int mmdit_control_visits(const struct component *c, const struct component *denoiser,
                         const struct mmdit_control_kinds *kinds, int n_residuals,
                         struct control_visit *visits) {
    int embedder = component_find_block(denoiser, kinds->denoiser_embedder, 0);
    int add = component_find_block(c, kinds->add, 0);
    int layers = 0, n = 0, next = 0; /* next: layer of the network that runs next */
    int held = -1;                   /* index of the residual in memory */
    while (layer_block(denoiser, kinds->denoiser_layer, layers) >= 0) layers++;
    visits[n++] =
        (struct control_visit){.block = component_find_block(c, kinds->embedder, 0), .after = embedder};
    for (int i = 0; i < layers; i++) {
        int residual = kinds->residual_of(i, layers, n_residuals);
        int after = layer_block(denoiser, kinds->denoiser_layer, i);
        if (residual < 0) continue;
        while (next <= residual)
            visits[n++] =
                (struct control_visit){.block = layer_block(c, kinds->layer, next++), .after = after};
        if (residual != held)
            visits[n++] = (struct control_visit){.block = component_find_block(c, kinds->residual, residual),
                                                 .after = after};
        held = residual;
        visits[n++] = (struct control_visit){.block = add, .after = after, .adds = true};
    }
    return n;
}

enum status mmdit_control_check(const struct component *c, const struct component *denoiser, int i_dim,
                                int i_layers, struct error *e) {
    const int32_t *d = c->dims, *of = denoiser->dims;
    const char *network = c->index.sources[0].path, *model = denoiser->index.sources[0].path;
    int layers_max = (CONTROL_VISITS_MAX - 1 - of[i_layers]) / 2;
    if (layers_max > of[i_layers]) layers_max = of[i_layers];
    if (d[i_dim] == of[i_dim] && c->latent_channels == denoiser->latent_channels &&
        (!c->text_columns || c->text_columns == denoiser->text_columns) &&
        (!c->pooled_columns || c->pooled_columns == denoiser->pooled_columns) && d[i_layers] <= layers_max)
        return OK;
    error_set(e, SHAPE, "the control network does not fit the transformer" WHERE "%s and %s", network, model);
    error_found(e, "width %d, prompt width %d, pooled prompt %d, %d latent channels, %d layers", d[i_dim],
                c->text_columns, c->pooled_columns, c->latent_channels, d[i_layers]);
    return error_expected(
        e, "width %d, prompt width %d, pooled prompt %d, %d latent channels, at most %d layers", of[i_dim],
        denoiser->text_columns, denoiser->pooled_columns, denoiser->latent_channels, layers_max);
}

void mmdit_control_embed(struct context *x, struct tensor out, struct tensor in,
                         const struct linear_weights *w, const struct lane *lane) {
    struct tensor latent = latent_planes(lane->control[0].input);
    int32_t columns = MMDIT_PATCH * MMDIT_PATCH * latent.dim[0];
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){out.dim[0], columns});
    op_patchify(x, patches, latent, (struct patches){.side = MMDIT_PATCH, .order = PATCH_CHANNELS_FIRST});
    op_linear(x, out, patches, tensor_reshape(w->weight, 2, (int32_t[]){out.dim[1], columns}),
              (struct epilogue){.bias = w->bias, .residual = in});
}

void mmdit_control_condition(struct context *x, struct tensor rows,
                             const struct mmdit_time_text_embed_weights *w, const struct visit_scope *scope,
                             bool zero_pooled) {
    if (!zero_pooled) {
        mmdit_time_text_embed(x, rows, w, scope, 1);
        return;
    }
    struct mmdit_time_text_embed_weights time_only = *w;
    struct tensor bias = tensor_reshape(w->pooled_in.bias, 2, (int32_t[]){1, rows.dim[1]});
    struct tensor h = context_tensor(x, DTYPE_F32, 2, bias.dim),
                  pooled = context_tensor(x, DTYPE_F32, 2, bias.dim);
    time_only.pooled_in = (struct linear_weights){0};
    mmdit_time_text_embed(x, rows, &time_only, scope, 1);
    op_broadcast_row(x, h, bias); /* the first layer maps a row of zeros to its bias */
    op_linear_few(x, pooled, h, w->pooled_out.weight, w->pooled_out.bias, ACTIVATION_SILU);
    op_add(x, rows, rows, pooled);
}

void mmdit_control_add(struct context *x, struct tensor denoiser_tokens, struct tensor residual,
                       const struct lane *lane) {
    struct tensor images = mmdit_image_rows(denoiser_tokens, lane->denoiser);
    struct tensor rows = tensor_slice(images, 0, residual.dim[0]);
    op_add_scaled(x, rows, rows, residual, lane->control[0].strength);
}
