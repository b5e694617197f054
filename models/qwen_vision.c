#include "models/qwen_vision.h"

#include <math.h>

static struct tensor kernel_matrix(struct tensor weight) {
    return tensor_reshape(weight, 2,
                          (int32_t[]){weight.dim[0], weight.dim[1] * weight.dim[2] * weight.dim[3]});
}

void qwen_vision_embed(struct context *x, const struct qwen_patch_kernel *kernel,
                       const struct visit_scope *scope) {
    const struct qwen_vision_settings *settings = scope->settings;
    const struct qwen_vision_state *state = scope->lane->state;
    struct tensor first = kernel_matrix(kernel->first), tokens = state->tokens;
    struct token_grid grid = state->grid;
    int32_t half = state->rope.dim[1];
    struct tensor vectors = context_tensor(x, DTYPE_F32, 2, (int32_t[]){tokens.dim[0], first.dim[1]});
    op_patchify(x, vectors, lane_picture(scope->lane),
                (struct patches){.side = kernel->first.dim[2],
                                 .order = PATCH_CHANNELS_FIRST,
                                 .pixels = true,
                                 .token_order = grid.token_order});
    op_linear(x, tokens, vectors, first, (struct epilogue){.bias = kernel->bias});
    op_linear(x, tokens, vectors, kernel_matrix(kernel->second), (struct epilogue){.residual = tokens});
    struct rope_options rope = {
        .theta = settings->rope_theta,
        .n_axes = 2,
        .axis_dim = {half, half},
        .f32_frequencies = true,
        .n_grids = 1,
        .grid = {{.start = {0}, .extent = {grid.rows, grid.columns}, .token_order = grid.token_order}},
    };
    op_rope_table(x, state->rope, &rope);
}

void qwen_vision_project_heads(struct context *x, struct tensor out, struct tensor n,
                               const struct linear_weights *w, struct tensor rope) {
    uint64_t mark = x->scratch->used;
    struct tensor heads = context_unrounded(x, out);
    op_linear(x, heads, n, w->weight, (struct epilogue){.bias = w->bias});
    op_rope(x, out, heads, rope,
            (struct rotation){.heads = out.dim[1] / (2 * rope.dim[1]), .pairs = ROPE_HALVES});
    x->scratch->used = mark;
}

bool qwen_vision_is_gguf(const struct component *c) {
    return index_find(&c->index, "v.patch_embd.weight");
}

enum status qwen_vision_read_patch(struct component *c, struct error *e) {
    const struct qwen_vision_settings *s = (const struct qwen_vision_settings *)c->settings;
    int32_t *d = c->dims;
    bool gguf = qwen_vision_is_gguf(c);
    const char *name = gguf ? "v.patch_embd.weight" : "patch_embed.proj.weight";
    d[COLOURS] = component_dim(c, name, gguf ? 4 : 5, 1, e);
    d[FRAMES] = gguf ? 2 : component_dim(c, name, 5, 2, e);
    d[PATCH] = component_dim(c, name, gguf ? 4 : 5, gguf ? 3 : 4, e);
    d[HEAD] = s->heads ? d[WIDTH] / s->heads : 0;
    return e->code;
}

enum status qwen_vision_check_config(const struct component *c, const struct config *config,
                                     struct error *e) {
    static const char *const colours[] = {"image_mean", "image_std"};
    const struct qwen_vision_settings *s = (const struct qwen_vision_settings *)c->settings;
    const struct {
        const char *key;
        int value;
    } required[] = {
        {"patch_size", c->dims[PATCH]}, {"merge_size", s->merge_size}, {"temporal_patch_size", 2}};
    if (s->min_pixels > s->max_pixels) {
        return error_set(e, META,
                         "min_pixels is above max_pixels" WHERE "%s" FOUND
                         "min_pixels %d, max_pixels %d" EXPECTED "min_pixels at most max_pixels",
                         config->pictures ? config->pictures->path : c->index.sources[0].path, s->min_pixels,
                         s->max_pixels);
    }
    for (int i = 0; i < COUNT_OF(colours) && config->pictures; i++)
        config_check_list(config->pictures, colours[i], 3, e);
    for (int i = 0; i < COUNT_OF(required) && config->pictures; i++) {
        int value = required[i].value;
        config_int(config->pictures, required[i].key, value, value, &value, e);
    }
    return e->code;
}

static struct token_grid patch_grid(const struct component *c, int32_t height, int32_t width) {
    const struct qwen_vision_settings *s = (const struct qwen_vision_settings *)c->settings;
    int32_t patch = c->dims[PATCH], window = s->window / patch / s->merge_size * s->merge_size;
    return (struct token_grid){height / patch, width / patch, {window, s->merge_size}};
}

void qwen_vision_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                         struct arena *pictures, bool *ok) {
    int32_t most = 0, width = c->dims[WIDTH], pairs = c->dims[HEAD] / 2;
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct qwen_vision_state *state = lanes[i].state;
        state->grid = patch_grid(c, lanes[i].picture.dim[1], lanes[i].picture.dim[2]);
        if (state->grid.rows * state->grid.columns > most) most = state->grid.rows * state->grid.columns;
    }
    struct tensor tokens = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){most, width}, ok);
    struct tensor rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){most, pairs, 2}, ok);
    for (int i = 0; i < n_lanes; i++) {
        struct qwen_vision_state *state = lanes[i].state;
        int32_t T = state->grid.rows * state->grid.columns;
        state->tokens = tensor_slice(tokens, 0, T);
        state->rope = tensor_slice(rope, 0, T);
    }
}

struct vision_grid qwen_vision_grid_of(const struct component *c, int width, int height) {
    const struct qwen_vision_settings *s = (const struct qwen_vision_settings *)c->settings;
    enum { ASPECT_MOST = 200 };
    double unit = (double)c->dims[PATCH] * s->merge_size, area = (double)width * height;
    double rows = nearbyint(height / unit), columns = nearbyint(width / unit), pixels = unit * unit;
    double longer = width > height ? width : height, shorter = width > height ? height : width;
    if (longer / shorter > ASPECT_MOST) return (struct vision_grid){0};
    if (rows * columns * pixels > s->max_pixels) {
        double beta = sqrt(area / s->max_pixels);
        rows = fmax(1, floor(height / beta / unit));
        columns = fmax(1, floor(width / beta / unit));
    } else if (rows * columns * pixels < s->min_pixels) {
        double beta = sqrt(s->min_pixels / area);
        rows = ceil(height * beta / unit);
        columns = ceil(width * beta / unit);
    }
    return (struct vision_grid){.width = (int32_t)(columns * unit),
                                .height = (int32_t)(rows * unit),
                                .columns = (int32_t)columns,
                                .rows = (int32_t)rows};
}

const struct state_tensor qwen_vision_state_tensors[QWEN_VISION_STATE_TENSORS] = {
    STATE_TENSOR(qwen_vision_state, tokens), STATE_TENSOR(qwen_vision_state, rope)};
