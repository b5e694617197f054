/* Parts shared by the vision encoders of Qwen2.5-VL and Qwen3-VL: patches, rope over row and column, sizes of
 * images, and the image processor's settings.
 *
 * transformers feeds an image as two equal video frames. Here both kernel slices of the patch embedding are
 * applied to the one image. */
#ifndef SLUICE_MODELS_QWEN_VISION_H
#define SLUICE_MODELS_QWEN_VISION_H

#include "engine/run/family.h"

/* Indices into component.dims. A family's own indices begin at QWEN_VISION_DIMS. */
enum {
    WIDTH,
    HEAD,
    HEADS,
    FEED_FORWARD,
    LAYERS,
    OUT,
    MERGED_WIDTH, /* width of the concatenated tokens of a merge block */
    COLOURS,
    FRAMES,
    PATCH,
    QWEN_VISION_DIMS,
};

/* First member of both families' settings. */
struct qwen_vision_settings {
    double rope_theta;
    int heads;      /* number of attention heads; 0: absent in the configuration */
    int merge_size; /* side of a merge block, in tokens */
    int window;     /* attention window size in image pixels; 0: attention to the whole image */
    int activation;
    int min_pixels, max_pixels; /* bounds of the pixel count of the resized image */
    struct picture_format format;
};

/* Grid of patch tokens before merging, and the order of the tokens. */
struct token_grid {
    int32_t rows, columns;
    struct token_order token_order;
};

struct qwen_vision_state {
    struct tensor tokens; /* [T, WIDTH] */
    struct tensor rope;   /* [T, HEAD/2, 2] */
    struct token_grid grid;
};

/* Slices of the patch embedding's kernel for two video frames, [WIDTH, COLOURS, PATCH, PATCH]; absent or
 * [WIDTH] bias. */
struct qwen_patch_kernel {
    struct tensor first, second, bias;
};

/* Naming macro of rows with two names: transformers' (prefix P) and llama.cpp's in GGUF files (prefix C). */
#define QWEN_VISION_NAMED(P, C, end, name, gguf) .names = {P name end, C gguf end}

/* Weight rows of the kernel's slices. GGUF files have one tensor for each slice. */
/* clang-format off */
#define QWEN_KERNEL .rank = 4, .dim = {WIDTH, COLOURS, PATCH, PATCH}, .init_scale = 1
#define QWEN_PATCH_SLICES(X, S)                                                                              \
    X##WEIGHT(S, first, (QWEN_KERNEL, .slices = FRAMES, .before_last = 1), "patch_embed.proj.weight")        \
    X##WEIGHT(S, second, (QWEN_KERNEL, .slices = FRAMES), "patch_embed.proj.weight")
#define QWEN_PATCH_HALVES(X, S)                                                                              \
    X##WEIGHT(S, first, (QWEN_KERNEL), "v.patch_embd.weight")                                                \
    X##WEIGHT(S, second, (QWEN_KERNEL), "v.patch_embd.weight.1")
/* clang-format on */

/* Writes the tokens of the lane's image to state.tokens, and the rope table to state.rope. */
void qwen_vision_embed(struct context *x, const struct qwen_patch_kernel *kernel,
                       const struct visit_scope *scope);
/* out [T, WIDTH] = queries or keys of n, rotated by rope on halves of each head. */
void qwen_vision_project_heads(struct context *x, struct tensor out, struct tensor n,
                               const struct linear_weights *w, struct tensor rope);

bool qwen_vision_is_gguf(const struct component *c);
/* Reads COLOURS, FRAMES and PATCH from the kernel's shape, and HEAD from the number of heads (0: HEAD is 0).
 */
enum status qwen_vision_read_patch(struct component *c, struct error *e);
/* Checks the settings against the image processor's configuration: patch size, merge size, frames, colours,
 * and min_pixels at most max_pixels. */
enum status qwen_vision_check_config(const struct component *c, const struct config *config, struct error *e);
/* Callback family_state.declare. Lanes run one after another, so they share memory of the largest image's
 * size. */
void qwen_vision_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                         struct arena *pictures, bool *ok);
/* Callback family_lanes.vision_grid: as smart_resize of transformers'
 * models/qwen2_vl/image_processing_qwen2_vl.py. Halves are rounded to even, as in Python. */
struct vision_grid qwen_vision_grid_of(const struct component *c, int width, int height);

/* Setting row of a member of qwen_vision_settings. */
#define QWEN_VISION_SETTING(field, type_, published_, least_, most_, ...)                                    \
    { {__VA_ARGS__}, offsetof(struct qwen_vision_settings, field), type_, published_, least_, most_ }
#define QWEN_PER_COLOUR(field, a, b, c, ...)                                                                 \
    QWEN_VISION_SETTING(format.field[0], SETTING_FLOAT, a, __VA_ARGS__ ".0"),                                \
        QWEN_VISION_SETTING(format.field[1], SETTING_FLOAT, b, __VA_ARGS__ ".1"),                            \
        QWEN_VISION_SETTING(format.field[2], SETTING_FLOAT, c, __VA_ARGS__ ".2")
/* Limit of min_pixels and max_pixels: the cost of full attention is quadratic, so a file with far more than
 * the published pixels would run for days. */
enum { QWEN_PIXELS_MOST = 1 << 24 };
#define QWEN_PIXELS(field, published, ...)                                                                   \
    QWEN_VISION_SETTING(field, SETTING_INT, published, 1, QWEN_PIXELS_MOST, __VA_ARGS__)

/* Initialiser of family.state. */
enum { QWEN_VISION_STATE_TENSORS = 2 };
extern const struct state_tensor qwen_vision_state_tensors[QWEN_VISION_STATE_TENSORS];
#define QWEN_VISION_STATE                                                                                    \
    {                                                                                                        \
        .bytes = sizeof(struct qwen_vision_state), .tensors = qwen_vision_state_tensors,                     \
        .n_tensors = QWEN_VISION_STATE_TENSORS, .declare = qwen_vision_declare                               \
    }

/* JSON text of preprocessor_config.json that both families share, after processor_class. */
#define QWEN_PICTURES_REST                                                                                   \
    "\"do_resize\": true, \"resample\": 3, \"do_rescale\": true, \"rescale_factor\": 0.00392156862745098, "  \
    "\"do_normalize\": true, \"do_convert_rgb\": true, \"temporal_patch_size\": 2, \"merge_size\": 2"

#endif
