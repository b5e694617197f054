/* Operators on sound waves and spectrograms: map, snake, sinc_up. */
#include "engine/base/wide.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/weights.h"

#include <math.h>

static void map_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    float limit = op->scale;
    int64_t columns = tensor_columns(&op->out);
    for (int64_t row = first; row < end; row++) {
        float *to = tensor_row(&op->out, row);
        const float *from = tensor_row(&op->in[0], row);
        switch (op->map) {
        case MAP_LEAKY_RELU:
            for (int64_t i = 0; i < columns; i++) to[i] = from[i] < 0 ? limit * from[i] : from[i];
            break;
        case MAP_MAGNITUDE:
            for (int64_t i = 0; i < columns; i++)
                to[i] = sqrtf(from[i] * from[i] + from[columns + i] * from[columns + i]);
            break;
        case MAP_LOG:
            for (int64_t i = 0; i < columns; i++) to[i] = logf(from[i] < limit ? limit : from[i]);
            break;
        case MAP_TANH:
            for (int64_t i = 0; i < columns; i++) to[i] = tanhf(from[i]);
            break;
        case MAP_CLAMP:
            for (int64_t i = 0; i < columns; i++)
                to[i] = from[i] < -limit ? -limit : from[i] > limit ? limit : from[i];
            break;
        case MAP_SCALE:
            for (int64_t i = 0; i < columns; i++) to[i] = limit * from[i];
            break;
        case MAP_FILL:
            for (int64_t i = 0; i < columns; i++) to[i] = limit;
            break;
        }
    }
}

const struct cpu_operator cpu_map = {.rows = map_rows};

enum { SNAKE_CHANNELS = 64, SNAKE_UP = SNAKE_TAPS / 2 };

/* A group of channels of a wave, with their weights. */
struct snake_part {
    const struct tensor *out, *in;
    int64_t channel;                                        /* first channel */
    int n;                                                  /* number of channels */
    float alpha[SNAKE_CHANNELS], amplitude[SNAKE_CHANNELS]; /* e^a and 1 / (e^b + 1e-9) */
    float up[SNAKE_TAPS], down[SNAKE_TAPS]; /* filters; up: times the upsampling's gain of 2 */
};

static int64_t clamped(int64_t i, int64_t n) {
    return i < 0 ? 0 : i < n ? i : n - 1;
}

/* Computes rows [first, end) of a group of channels. A ring holds the last SNAKE_TAPS rows of the upsampled
 * wave; `at` is a row of that wave, at the ends possibly outside. The angle is reduced by multiples of pi in
 * double (adding 1.5 * 2^52 rounds to an integer), so sin has f32 precision up to angles of 1e9. The
 * polynomial is the Taylor series up to x^13: its error at pi/2 is 6e-9. */
WIDE static void snake_rows_of(const struct snake_part *p, int64_t first, int64_t end) {
    int64_t rows = p->in->dim[0];
    int n = p->n;
    float ring[SNAKE_TAPS][SNAKE_CHANNELS];
    for (int64_t at = 2 * first - (SNAKE_UP - 1); at <= 2 * end + SNAKE_UP - 2; at++) {
        int64_t u = clamped(at, 2 * rows), base = u / 2 + u % 2 + 2;
        const float *x[SNAKE_UP], *tap = p->up + (u % 2 ? 0 : 1);
        for (int k = 0; k < SNAKE_UP; k++) x[k] = tensor_row(p->in, clamped(base - k, rows)) + p->channel;
        float *sample = ring[(at + SNAKE_TAPS) % SNAKE_TAPS];
#pragma omp simd
        for (int c = 0; c < n; c++) {
            float v = x[0][c] * tap[0] + x[1][c] * tap[2] + x[2][c] * tap[4] + x[3][c] * tap[6] +
                      x[4][c] * tap[8] + x[5][c] * tap[10];
            double angle = (double)(v * p->alpha[c]);
            double periods = (angle * 0.31830988618379067154 + 6755399441055744.0) - 6755399441055744.0;
            float r = (float)(angle - periods * 3.14159265358979323846), q = r * r;
            float s = 1.6059044e-10f;
            s = s * q - 2.5052108e-8f;
            s = s * q + 2.7557319e-6f;
            s = s * q - 1.9841270e-4f;
            s = s * q + 8.3333333e-3f;
            s = s * q - 1.6666667e-1f;
            s = s * q * r + r;
            sample[c] = v + p->amplitude[c] * (s * s);
        }
        if (at % 2 || at < 2 * first + SNAKE_UP) continue;
        int64_t row = at / 2 - SNAKE_UP / 2;
        const float *y[SNAKE_TAPS];
        for (int k = 0; k < SNAKE_TAPS; k++) y[k] = ring[(at + 1 + k) % SNAKE_TAPS];
        float *to = tensor_row(p->out, row) + p->channel;
#pragma omp simd
        for (int c = 0; c < n; c++) {
            float sum = 0;
            for (int k = 0; k < SNAKE_TAPS; k++) sum += p->down[k] * y[k][c];
            to[c] = sum;
        }
    }
}

static void snake_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    struct snake_part part = {.out = &op->out, .in = &op->in[0]};
    weights_widen(part.up, &op->in[3], 0, 1);
    weights_widen(part.down, &op->in[4], 0, 1);
    for (int k = 0; k < SNAKE_TAPS; k++) part.up[k] *= 2;
    for (int64_t channels = tensor_columns(&op->out); part.channel < channels; part.channel += part.n) {
        int64_t left = channels - part.channel;
        part.n = left < SNAKE_CHANNELS ? (int)left : SNAKE_CHANNELS;
        weights_widen_part(part.alpha, &op->in[1], 0, part.channel, part.n);
        weights_widen_part(part.amplitude, &op->in[2], 0, part.channel, part.n);
        for (int c = 0; c < part.n; c++) {
            part.alpha[c] = expf(part.alpha[c]);
            part.amplitude[c] = 1.0f / (expf(part.amplitude[c]) + 1e-9f);
        }
        snake_rows_of(&part, first, end);
    }
}

const struct cpu_operator cpu_snake = {.rows = snake_rows};

static void sinc_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    const struct tensor *in = &op->in[0], *base = &op->in[1];
    int32_t ratio = op->ratio, taps = 2 * SINC_WIDTH * ratio + 1;
    float tap[SINC_TAPS_MAX];
    for (int32_t k = 0; k < taps; k++) tap[k] = sinc_tap(ratio, k);
    int64_t columns = tensor_columns(&op->out), rows = in->dim[0];
    for (int64_t row = first; row < end; row++) {
        float *to = tensor_row(&op->out, row);
        int64_t last = row / ratio + SINC_WIDTH;
        for (int64_t c = 0; c < columns; c++) {
            float sum = 0;
            for (int32_t k = (int32_t)(row % ratio), i = 0; k < taps; k += ratio, i++)
                sum += tensor_row(in, clamped(last - i, rows))[c] * tap[k];
            to[c] = (base->rank ? tensor_row(base, row)[c] : 0) + sum;
        }
    }
}

const struct cpu_operator cpu_sinc_up = {.rows = sinc_rows};
