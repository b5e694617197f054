#include "models/mmdit_control.h"

/* Index of the component's first block of one of two kinds with this number; -1: none. */
static int control_block(const struct component *c, const struct block_kind *kind,
                         const struct block_kind *other, int number) {
    for (int i = 0; i < c->n_blocks; i++)
        if ((c->blocks[i].kind == kind || c->blocks[i].kind == other) && c->blocks[i].number == number)
            return i;
    return -1;
}

int mmdit_control_visits(const struct component *c, const struct component *denoiser,
                         const struct mmdit_control_kinds *kinds, int n_residuals,
                         struct control_visit *visits) {
    const struct block_kind *const *of_denoiser = kinds->denoiser_layer, *const *of_network = kinds->layer;
    int embedder = control_block(denoiser, kinds->denoiser_embedder, NULL, 0);
    int add = control_block(c, kinds->add, NULL, 0);
    int layers = 0, n = 0, next = 0, computed = -1;
    while (control_block(denoiser, of_denoiser[0], of_denoiser[1], layers) >= 0) layers++;
    visits[n++] =
        (struct control_visit){.block = control_block(c, kinds->embedder, NULL, 0), .after = embedder};
    for (int b = 0; b < layers; b++) {
        int wanted = kinds->residual_of(b, layers, n_residuals);
        int after = control_block(denoiser, of_denoiser[0], of_denoiser[1], b);
        if (wanted < 0) continue;
        while (next <= wanted)
            visits[n++] = (struct control_visit){
                .block = control_block(c, of_network[0], of_network[1], next++), .after = after};
        if (wanted != computed)
            visits[n++] = (struct control_visit){.block = control_block(c, kinds->residual, NULL, wanted),
                                                 .after = after};
        computed = wanted;
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
    struct mmdit_time_text_embed_weights of_time = *w;
    struct tensor bias = tensor_reshape(w->pooled_in.bias, 2, (int32_t[]){1, rows.dim[1]});
    struct tensor h = context_tensor(x, DTYPE_F32, 2, bias.dim),
                  one = context_tensor(x, DTYPE_F32, 2, bias.dim);
    if (!zero_pooled) {
        mmdit_time_text_embed(x, rows, w, scope, 1);
        return;
    }
    of_time.pooled_in = (struct linear_weights){0};
    mmdit_time_text_embed(x, rows, &of_time, scope, 1);
    op_broadcast_row(x, h, bias); /* the first layer of a row of zeros is its bias */
    op_linear_few(x, one, h, w->pooled_out.weight, w->pooled_out.bias, ACTIVATION_SILU);
    op_add(x, rows, rows, one);
}

void mmdit_control_add(struct context *x, struct tensor denoiser_tokens, struct tensor residual,
                       const struct lane *lane) {
    struct tensor images = mmdit_image_rows(denoiser_tokens, lane->denoiser);
    struct tensor rows = tensor_slice(images, 0, residual.dim[0]);
    op_add_scaled(x, rows, rows, residual, lane->control[0].strength);
}
