/* Residual shortcuts of the Wan 2.2 VAE: mean_down (AvgDown3D), repeat_up (DupUp3D). No workspace. Values of
 * frames of side x side pixels are numbered (channel, frame, row, column), the last fastest; all but the
 * channels are powers of two. */
#include "kernels/cuda/row_access.cuh"

struct shortcut_shape {
    int32_t side, frames, frame;
    int32_t columns; /* pixels per row of the finer image */
    int32_t run;     /* number of values per mean, or of repeats per channel */
};

/* Computes one mean of a pixel; values are summed in order. before: the earlier frame, may be absent. Grid:
 * rows_grid_of, rows are pixels, outputs take the place of column groups; no shared memory; 68 registers.
 * Bytes: 4 per frame value, 4 per output, 8 with a base; values that neighbouring pixels read again come from
 * the cache. Bound by memory; share of peak: not measured yet. */
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
            const struct rows &frame = s.frames == 1 || place >= each / 2 ? in : before;
            int32_t row = place / s.side & (s.side - 1), column = place & (s.side - 1);
            if (frame.data)
                sum += value_at(frame.data + (corner + (int64_t)row * s.columns + column) * frame.step,
                                DTYPE_F32, value / each);
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

/* Computes one repeat_up value of a pixel. Grid as mean_pixels; 34 registers. Bytes: 8 per output, 12 with a
 * base. Bound by memory; share of peak: not measured yet. */
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
