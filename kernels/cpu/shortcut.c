/* Residual shortcuts of the Wan 2.2 VAE: mean_down (AvgDown3D), repeat_up (DupUp3D). */
#include "kernels/cpu/operators.h"

/* mean_down of one pixel: means of runs of `run` values, summed in order. */
static void mean_pixel(const struct op *op, int32_t y, int32_t x, float *to, const float *base) {
    const struct tensor *frames[2] = {&op->in[1], &op->in[0]}; /* the earlier frame first */
    int32_t side = op->shortcut.side, f = op->shortcut.frames, channels = op->in[0].dim[2];
    int32_t each = f * side * side, run = channels * each / op->out.dim[2];
    int64_t columns = op->in[0].dim[1];
    float sum = 0;
    for (int32_t c = 0, i = 0; c < channels; c++)
        for (int32_t j = 0; j < each; j++) {
            const struct tensor *frame = frames[f == 1 ? 1 : j / (side * side)];
            int64_t row = y * side + j / side % side, column = x * side + j % side;
            sum += frame->rank ? tensor_row(frame, row * columns + column)[c] : 0;
            if (++i % run) continue;
            int32_t n = i / run - 1;
            to[n] = (base ? base[n] : 0) + sum / (float)run;
            sum = 0;
        }
}

static const float *base_pixel(const struct tensor *base, int64_t pixel) {
    return base->rank ? tensor_row(base, pixel) : NULL;
}

static void mean_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    for (int64_t pixel = first; pixel < end; pixel++)
        mean_pixel(op, (int32_t)(pixel / op->out.dim[1]), (int32_t)(pixel % op->out.dim[1]),
                   tensor_row(&op->out, pixel), base_pixel(&op->in[2], pixel));
}

static enum status mean_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    (void)e;
    thread_pool_run(cpu->thread_pool, tensor_rows(&op->out), mean_rows, op);
    return OK;
}

const struct cpu_operator cpu_mean_down = {NULL, NULL, mean_run};

static void repeat_pixel(const struct op *op, int32_t y, int32_t x, float *to, const float *base) {
    int32_t side = op->shortcut.side, each = op->shortcut.frames * side * side;
    int32_t place = (op->shortcut.frame * side + y % side) * side + x % side;
    int32_t outputs = op->out.dim[2], repeats = outputs * each / op->in[0].dim[2];
    const float *from = tensor_row(&op->in[0], (int64_t)(y / side) * op->in[0].dim[1] + x / side);
    for (int32_t n = 0; n < outputs; n++) to[n] = (base ? base[n] : 0) + from[(n * each + place) / repeats];
}

static void repeat_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    for (int64_t pixel = first; pixel < end; pixel++)
        repeat_pixel(op, (int32_t)(pixel / op->out.dim[1]), (int32_t)(pixel % op->out.dim[1]),
                     tensor_row(&op->out, pixel), base_pixel(&op->in[1], pixel));
}

static enum status repeat_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    (void)e;
    thread_pool_run(cpu->thread_pool, tensor_rows(&op->out), repeat_rows, op);
    return OK;
}

const struct cpu_operator cpu_repeat_up = {NULL, NULL, repeat_run};
