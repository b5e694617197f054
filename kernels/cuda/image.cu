/* Operators that rearrange images, without workspace: conversions between latents, tokens and images
 * (patchify, unpatchify, latent_to_image, image_to_rgb), and the residual shortcuts of the Wan 2.2 VAE
 * (mean_down, repeat_up). Latents are small (64 channels of 128 x 128 are 4 MiB), so their kernels move
 * single values. */
#include "kernels/cuda/token_coords.cuh"
#include "kernels/cuda/row_access.cuh"

/* A latent [C,Y,X] or image [Y,X,C] and the sizes of its patches. */
struct patched {
    struct rows latent;
    struct patches patches;
    int32_t channels, rows, columns; /* size of the latent or image, in values and pixels */
};

/* Returns the address, in the latent or image, of value i of a token. Values are ordered (py, px, c), (c, py,
 * px) or (c, px, py), the last fastest. */
__device__ static inline float *cuda_patch_value(const struct patched &p, int64_t token, int32_t i) {
    int32_t side = p.patches.side;
    bool first = p.patches.order != PATCH_CHANNELS_LAST;
    int32_t c = first ? i / (side * side) : i % p.channels, pixel = first ? i : i / p.channels;
    struct token_coords place =
        cuda_token_coords_at(p.patches.token_order, p.rows / side, p.columns / side, (uint32_t)token);
    int32_t slow = pixel / side % side, fast = pixel % side;
    bool columns_first = p.patches.order == PATCH_COLUMNS_FIRST;
    int64_t y = place.row * side + (columns_first ? fast : slow);
    int64_t x = place.column * side + (columns_first ? slow : fast);
    int64_t row = p.patches.pixels ? y * p.columns + x : c * (int64_t)p.rows + y;
    return reinterpret_cast<float *>(p.latent.data + row * p.latent.step) + (p.patches.pixels ? c : x);
}

/* Returns the token's column of value i of frame p.frame; tokens are ordered (c, frame, y, x). */
__device__ static inline int64_t cuda_patch_column(const struct patches &p, int32_t i) {
    if (p.frames < 2) return i;
    int32_t area = p.side * p.side;
    return ((int64_t)(i / area) * p.frames + p.frame) * area + i % area;
}

/* Kernel: moves one value between token and latent. BACK: from token to latent, times factor. Grid:
 * rows_grid_of, rows are tokens, values of the image take the place of column groups; no shared memory; 37
 * registers. Bytes: 8 per value. Bound by memory; share of peak: not measured yet. */
template <bool BACK>
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    move_patches(struct patched p, struct rows tokens, int64_t n, int32_t columns, float factor) {
    int64_t i = first_quad();
    if (i >= columns) return;
    int64_t column = cuda_patch_column(p.patches, (int32_t)i);
    for (int64_t token = first_row(); token < n; token += next_row()) {
        float *value = reinterpret_cast<float *>(tokens.data + token * tokens.step) + column;
        float *place = cuda_patch_value(p, token, (int32_t)i);
        if (BACK)
            *place = *value * factor;
        else
            *value = *place;
    }
}

static enum status move_run(struct cuda *cuda, const struct op *op, const struct tensor *latent,
                            const struct tensor *tokens, struct error *e) {
    struct patched p = {rows_of(latent), op->patches};
    const int32_t *dim = latent->dim;
    p.channels = dim[op->patches.pixels ? 2 : 0];
    p.rows = dim[op->patches.pixels ? 0 : 1];
    p.columns = dim[op->patches.pixels ? 1 : 2];
    int64_t n = tokens->dim[0];
    int32_t columns = p.channels * p.patches.side * p.patches.side;
    struct rows_grid g = rows_grid_of(n, columns);
    if (latent == &op->out)
        LAUNCH((move_patches<true>), g.grid, g.block, 0, cuda->compute, p, rows_of(tokens), n, columns,
               op->scale);
    else
        LAUNCH((move_patches<false>), g.grid, g.block, 0, cuda->compute, p, rows_of(tokens), n, columns,
               1.0f);
    return cuda_launched(op, e);
}

static enum status cuda_patchify_run(struct cuda *cuda, const struct op *op, char *workspace,
                                     struct error *e) {
    (void)workspace;
    return move_run(cuda, op, &op->in[0], &op->out, e);
}

static const void *const patch_kernels[] = {KERNEL(move_patches<false>), KERNEL(move_patches<true>), NULL};

const struct cuda_operator cuda_patchify = {NULL, cuda_patchify_run, patch_kernels};

static enum status cuda_unpatchify_run(struct cuda *cuda, const struct op *op, char *workspace,
                                       struct error *e) {
    (void)workspace;
    return move_run(cuda, op, &op->out, &op->in[0], e);
}

const struct cuda_operator cuda_unpatchify = {NULL, cuda_unpatchify_run};

/* Computes one value of a pixel: in / scale + shift of its channel, limited by tanh if the format has a
 * limit. Grid: rows_grid_of, rows are pixels, channels take the place of column groups; no shared memory; 34
 * registers. Bytes: 8 per value; FLOPs: 2. Bound by memory; share of peak: not measured yet. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    move_latent(struct rows out, struct rows latent, int32_t rows, int32_t columns, int32_t channels,
                struct latent_format format) {
    int64_t c = first_quad();
    if (c >= channels) return;
    float scale = format.scale[format.n > 1 ? c : 0], shift = format.shift[format.n > 1 ? c : 0];
    for (int64_t pixel = first_row(); pixel < (int64_t)rows * columns; pixel += next_row()) {
        int64_t row = c * rows + pixel / columns, x = pixel % columns;
        float v = value_at(latent.data + row * latent.step, DTYPE_F32, x) / scale + shift;
        if (format.limit > 0) v = format.limit * tanhf(v / format.limit);
        reinterpret_cast<float *>(out.data + pixel * out.step)[c] = v;
    }
}

static enum status cuda_latent_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    const int32_t *dim = op->out.dim;
    struct rows_grid g = rows_grid_of((int64_t)dim[0] * dim[1], dim[2]);
    LAUNCH(move_latent, g.grid, g.block, 0, cuda->compute, rows_of(&op->out), rows_of(&op->in[0]), dim[0],
           dim[1], dim[2], op->format);
    return cuda_launched(op, e);
}

static const void *const latent_kernels[] = {KERNEL(move_latent), NULL};

const struct cuda_operator cuda_latent_to_image = {NULL, cuda_latent_run, latent_kernels};

/* Converts a value in -1..1 to a byte 0..255; NaN becomes 0; halves round to even. */
__device__ static inline uint32_t cuda_rgb_value(float value) {
    float v = value / 2 + 0.5f;
    v = v > 0 ? v : 0;
    v = v < 1 ? v : 1;
    return (uint32_t)rintf(255 * v);
}

/* Converts four values to RGB bytes; writes one 32-bit word where out is aligned. Grid: rows_grid_of; no
 * shared memory; 26 registers. Bytes: 5 per value; FLOPs: 3. Bound by memory; share of peak: not measured
 * yet. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    rgb_rows(uint8_t *out, int64_t step, bool wide, struct rows in, int64_t rows, int64_t columns) {
    int64_t i = 4 * first_quad();
    if (i >= columns) return;
    for (int64_t row = first_row(); row < rows; row += next_row()) {
        float4 v = rows_load_f32(in, row, i, columns);
        uint32_t four = cuda_rgb_value(v.x) | cuda_rgb_value(v.y) << 8 | cuda_rgb_value(v.z) << 16 |
                        cuda_rgb_value(v.w) << 24;
        uint8_t *to = out + row * step + i;
        if (wide && i + 4 <= columns)
            *reinterpret_cast<uint32_t *>(to) = four;
        else
            for (int j = 0; j < 4; j++)
                if (i + j < columns) to[j] = (uint8_t)(four >> 8 * j);
    }
}

/* An image without gaps between rows is processed as one long row. */
static enum status cuda_rgb_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    bool one = tensor_packed(&op->out) && tensor_packed(&op->in[0]);
    int64_t rows = one ? 1 : tensor_rows(&op->out), columns = tensor_elements(&op->out) / rows;
    int64_t step = one ? 0 : op->out.row_bytes;
    struct rows in = one ? rows_at(op->in[0].data, 0, DTYPE_F32) : rows_of(&op->in[0]);
    uint8_t *out = static_cast<uint8_t *>(op->out.data);
    struct rows_grid g = rows_grid_of(rows, (columns + 3) / 4);
    LAUNCH(rgb_rows, g.grid, g.block, 0, cuda->compute, out, step,
           ((uintptr_t)out | (uintptr_t)step) % 4 == 0, in, rows, columns);
    return cuda_launched(op, e);
}

static const void *const rgb_kernels[] = {KERNEL(rgb_rows), NULL};

const struct cuda_operator cuda_image_to_rgb = {NULL, cuda_rgb_run, rgb_kernels};

/* Shape of the Wan 2.2 VAE's shortcuts AvgDown3D (mean_down) and DupUp3D (repeat_up). Values of frames of
 * side x side pixels are numbered (channel, frame, row, column), the last fastest. Side and frames are powers
 * of two. */
struct shortcut_shape {
    int32_t side, frames, frame;
    int32_t columns; /* pixels per row of the finer image */
    int32_t run;     /* values per mean (mean_down), or repeats per channel (repeat_up) */
};

/* Kernel: computes one mean of mean_down for a pixel; values are summed in order. before: the earlier frame,
 * may be absent. Grid: rows_grid_of, rows are pixels, outputs take the place of column groups; no shared
 * memory; 68 registers. Bytes: 4 per frame value, 4 per output, 8 with a base; values that neighbouring
 * pixels read again come from the cache. Bound by memory; share of peak: not measured yet. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    mean_pixels(struct rows out, struct rows in, struct rows before, struct rows base,
                struct shortcut_shape s, int64_t pixels, int32_t outputs) {
    int64_t n = first_quad();
    if (n >= outputs) return;
    int32_t across = s.columns / s.side, each = s.frames * s.side * s.side;
    for (int64_t pixel = first_row(); pixel < pixels; pixel += next_row()) {
        int64_t corner = (pixel / across * s.columns + pixel % across) * s.side;
        float sum = 0;
        for (int32_t i = 0; i < s.run; i++) {
            int32_t value = (int32_t)n * s.run + i, place = value & (each - 1);
            bool current = s.frames == 1 || place >= each / 2;
            const char *frame = current ? in.data : before.data;
            int64_t step = current ? in.step : before.step;
            int32_t row = place / s.side & (s.side - 1), column = place & (s.side - 1);
            if (frame)
                sum += value_at(frame + (corner + (int64_t)row * s.columns + column) * step, DTYPE_F32,
                                value / each);
        }
        float mean = sum / (float)s.run;
        if (base.data) mean += value_at(base.data + pixel * base.step, DTYPE_F32, n);
        reinterpret_cast<float *>(out.data + pixel * out.step)[n] = mean;
    }
}

static enum status cuda_mean_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    const struct tensor *in = &op->in[0];
    struct shortcut_shape s = {op->shortcut.side, op->shortcut.frames, 0, in->dim[1]};
    int32_t outputs = op->out.dim[2];
    int64_t pixels = tensor_rows(&op->out);
    s.run = in->dim[2] * s.frames * s.side * s.side / outputs;
    struct rows_grid g = rows_grid_of(pixels, outputs);
    LAUNCH(mean_pixels, g.grid, g.block, 0, cuda->compute, rows_of(&op->out), rows_of(in),
           rows_of(&op->in[1]), rows_of(&op->in[2]), s, pixels, outputs);
    return cuda_launched(op, e);
}

static const void *const mean_kernels[] = {KERNEL(mean_pixels), NULL};

const struct cuda_operator cuda_mean_down = {NULL, cuda_mean_run, mean_kernels};

/* Kernel: computes one repeat_up value of a pixel. Grid as mean_pixels; 34 registers. Bytes: 8 per output, 12
 * with a base. Bound by memory; share of peak: not measured yet. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    repeat_pixels(struct rows out, struct rows in, struct rows base, struct shortcut_shape s, int64_t pixels,
                  int32_t outputs) {
    int64_t n = first_quad();
    if (n >= outputs) return;
    uint32_t each = (uint32_t)(s.frames * s.side * s.side);
    for (int64_t pixel = first_row(); pixel < pixels; pixel += next_row()) {
        int32_t y = (int32_t)(pixel / s.columns), x = (int32_t)(pixel % s.columns);
        uint32_t place = (uint32_t)((s.frame * s.side + y % s.side) * s.side + x % s.side);
        int64_t from = (int64_t)(y / s.side) * (s.columns / s.side) + x / s.side;
        float v =
            value_at(in.data + from * in.step, DTYPE_F32, ((uint32_t)n * each + place) / (uint32_t)s.run);
        if (base.data) v += value_at(base.data + pixel * base.step, DTYPE_F32, n);
        reinterpret_cast<float *>(out.data + pixel * out.step)[n] = v;
    }
}

static enum status cuda_repeat_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    struct shortcut_shape s = {op->shortcut.side, op->shortcut.frames, op->shortcut.frame, op->out.dim[1]};
    int32_t outputs = op->out.dim[2];
    int64_t pixels = tensor_rows(&op->out);
    s.run = outputs * s.frames * s.side * s.side / op->in[0].dim[2];
    struct rows_grid g = rows_grid_of(pixels, outputs);
    LAUNCH(repeat_pixels, g.grid, g.block, 0, cuda->compute, rows_of(&op->out), rows_of(&op->in[0]),
           rows_of(&op->in[1]), s, pixels, outputs);
    return cuda_launched(op, e);
}

static const void *const repeat_kernels[] = {KERNEL(repeat_pixels), NULL};

const struct cuda_operator cuda_repeat_up = {NULL, cuda_repeat_run, repeat_kernels};
