#include "models/clip_layers.h"

#include <math.h>

void clip_norm(struct context *x, struct tensor out, struct tensor in, const struct linear_weights *norm,
               float eps) {
    op_layer_norm(x, out, in, (struct affine){.weight = norm->weight, .bias = norm->bias}, eps);
}

static void clip_product(struct context *x, struct tensor out, struct tensor in,
                         const struct linear_weights *w) {
    op_linear(x, out, in, w->weight, (struct epilogue){.bias = w->bias});
}

struct clip_scratch clip_layer_scratch(struct context *x, const struct clip_layer_weights *w,
                                       struct tensor rows) {
    int32_t up[] = {rows.dim[0], w->up.weight.dim[0]};
    return (struct clip_scratch){.n = context_operand(x, 2, rows.dim),
                                 .q = context_operand(x, 2, rows.dim),
                                 .k = context_operand(x, 2, rows.dim),
                                 .v = context_operand(x, 2, rows.dim),
                                 .up = context_operand(x, 2, up)};
}

void clip_layer(struct context *x, const struct clip_layer_weights *w, const struct clip_layer_settings *s,
                struct tensor rows, const struct clip_scratch *b) {
    static const enum activation gelu[] = {[CLIP_GELU_QUICK] = ACTIVATION_GELU_QUICK,
                                           [CLIP_GELU_ERF] = ACTIVATION_GELU_ERF,
                                           [CLIP_GELU_TANH] = ACTIVATION_GELU_TANH};
    struct attention_options heads = {.queries = s->heads,
                                      .keys = s->heads,
                                      .scale = 1 / sqrtf((float)(rows.dim[1] / s->heads)),
                                      .causal = s->causal};
    clip_norm(x, b->n, rows, &w->norm1, s->norm_eps);
    clip_product(x, b->q, b->n, &w->q);
    clip_product(x, b->k, b->n, &w->k);
    clip_product(x, b->v, b->n, &w->v);
    op_attention(x, b->q, b->q, b->k, b->v, heads);
    op_linear(x, rows, b->q, w->out.weight, (struct epilogue){.bias = w->out.bias, .residual = rows});
    clip_norm(x, b->n, rows, &w->norm2, s->norm_eps);
    op_linear(x, b->up, b->n, w->up.weight,
              (struct epilogue){.bias = w->up.bias, .activation = gelu[s->gelu]});
    op_linear(x, rows, b->up, w->down.weight, (struct epilogue){.bias = w->down.bias, .residual = rows});
}
