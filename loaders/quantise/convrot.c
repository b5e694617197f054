/* Rotated int8 (ConvRot): groups of columns are multiplied by the Hadamard matrix H (tensor.h), then stored
 * as int8 codes with one scale per row. Source: comfy-kitchen 0.2.40, quantize_int8_convrot_weight in f32. */
#include "loaders/quantise/internal.h"
#include "loaders/quantise/quantise.h"

#include <math.h>
#include <string.h>

enum { GROUP_MOST = 256 };

/* Largest int8 code, and smallest row scale, so that a row of zeros does not divide by zero. */
#define CODE_MOST   127.0f
#define SCALE_LEAST 1e-30f

/* One step of the transform by H, along the highest base-4 digit of the column index; the digit becomes the
 * lowest. The factor 0.5 is exact in f32. */
static void rotate_digit(const float *restrict from, int quarter, float *restrict to) {
    for (int i = 0; i < quarter; i++) {
        float a = from[i], b = from[quarter + i], c = from[2 * quarter + i], d = from[3 * quarter + i];
        to[4 * i] = 0.5f * ((a + b) + (c - d));
        to[4 * i + 1] = 0.5f * ((a + b) - (c - d));
        to[4 * i + 2] = 0.5f * ((a - b) + (c + d));
        to[4 * i + 3] = 0.5f * ((c + d) - (a - b));
    }
}

/* Multiplies a group of columns by H in one step per base-4 digit of the column index. After all steps the
 * columns are in their original order. */
static void rotate_group(const float *from, int group, float *to) {
    float rotated[GROUP_MOST];
    memcpy(to, from, sizeof *to * (size_t)group);
    for (int left = group; left > 1; left /= 4) {
        rotate_digit(to, group / 4, rotated);
        memcpy(to, rotated, sizeof *to * (size_t)group);
    }
}

float quantise_row_scale(enum dtype dtype, const float *row, int64_t columns) {
    int group = dtype_block_values(dtype);
    float rotated[GROUP_MOST], most = 0;
    for (int64_t at = 0; at < columns; at += group) {
        rotate_group(row + at, group, rotated);
        for (int i = 0; i < group; i++) most = fabsf(rotated[i]) > most ? fabsf(rotated[i]) : most;
    }
    return fmaxf(most / CODE_MOST, SCALE_LEAST);
}

/* Code of a value: rounds to nearest even, like PyTorch. Adding and subtracting a large constant rounds to an
 * integer. */
static int8_t code_of(float value, float scale) {
    const float whole = 12582912;
    float code = value / scale + whole - whole;
    return (int8_t)(code > CODE_MOST ? CODE_MOST : code > -CODE_MOST ? code : -CODE_MOST);
}

void quantise_rotated(enum dtype dtype, const float *row, int64_t columns, int8_t *to) {
    int group = dtype_block_values(dtype);
    float rotated[GROUP_MOST], scale = quantise_row_scale(dtype, row, columns);
    for (int64_t at = 0; at < columns; at += group) {
        rotate_group(row + at, group, rotated);
        for (int i = 0; i < group; i++) to[at + i] = code_of(rotated[i], scale);
    }
}
