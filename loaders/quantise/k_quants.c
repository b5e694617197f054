/* Quantises blocks of 256 values: Q4_K and Q5_K have eight parts of 32 values, each with a scale and an
 * offset. Scales and offsets of parts are small integers times the block's scale and the block's offset.
 * First each part is fitted alone: value ranges slightly narrower or wider than the actual range are tried,
 * with scale and offset fitted by least squares. Then several candidates for the block's scale and offset are
 * rounded to f16, as in the file. For each candidate every part chooses the integers and codes of least
 * error; the candidate is refitted to the choices, and the parts choose again. The candidate with the least
 * error of the whole block wins. The error is the unweighted sum of squares, which is proportional to the
 * error of a matrix product with random inputs. */
#include "loaders/quantise/blocks.h"

enum { BLOCK = 256, PART = 32, SCALES_MOST = 63 };

/* Parts decode as code (0..top) * scale + offset; the offset is not positive. */
struct affine {
    lanes scale, offset;
};

LANES_INLINE void least(lanes *to, const lanes *v) {
    *to = lanes_select(*v < *to, *v, *to);
}

LANES_INLINE void largest(lanes *to, const lanes *v) {
    *to = lanes_select(*v > *to, *v, *to);
}

/* Quantises x - offset with the scale 1 / inverse to codes from 0 to top; as_float: the same as floats. */
LANES_INLINE void code_at(lane_ints *code, lanes *as_float, const lanes *x, const lanes *offset,
                          const lanes *inverse, int top) {
    lanes rest = *x - *offset;
    lanes_code(code, as_float, &rest, inverse, 0, top);
}

/* Sums over a part of 32 values: codes q, squares of codes, and products of codes and values x. */
struct sums {
    lanes q, qq, xq;
};

LANES_INLINE void add_up(const lanes *x, const lanes *from, const lanes *inverse, int top,
                         struct sums *sums) {
    *sums = (struct sums){{0}, {0}, {0}};
    for (int i = 0; i < PART; i++) {
        lane_ints code;
        lanes q;
        code_at(&code, &q, &x[i], from, inverse, top);
        sums->q += q;
        sums->qq += q * q;
        sums->xq += x[i] * q;
    }
}

/* Fits scale and offset by least squares. gain: reduction of the squared error by the fit, compared with
 * decoding to zeros. */
LANES_INLINE void solve(const struct sums *sums, const lanes *x_sum, struct affine *fit, lanes *gain) {
    const lanes zero = {0};
    lanes n = zero + (float)PART, inverse, slope, offset, plain;
    lanes determinant = n * sums->qq - sums->q * sums->q;
    lanes_inverse(&inverse, &determinant);
    slope = (n * sums->xq - *x_sum * sums->q) * inverse;
    offset = (*x_sum - slope * sums->q) / n;
    lanes_inverse(&inverse, &sums->qq);
    plain = sums->xq * inverse;
    lane_ints through_zero = (offset > zero) | ((sums->qq > zero) & (determinant <= zero));
    fit->scale = lanes_select(through_zero, plain, slope);
    fit->offset = (lanes)((lane_ints)offset & ~through_zero);
    fit->scale = lanes_select(fit->scale < zero, zero, fit->scale);
    *gain = fit->scale * sums->xq + fit->offset * *x_sum;
}

/* Candidate value ranges of a part: distances, in codes, by which the least and the largest value are mapped
 * beyond the lowest and highest code. */
static const float margins[][2] = {{0, 0},    {0, 0.4f},    {0.4f, 0},    {0.4f, 0.4f}, {-0.4f, 0.4f},
                                   {0, 0.8f}, {0.8f, 0.8f}, {0.8f, 0.2f}, {0, -0.5f},   {-0.4f, -0.4f}};

LANES_INLINE void fit_parts(const lanes *x, int top, struct affine *best) {
    const lanes zero = {0};
    lanes low = x[0], high = x[0], x_sum = zero, best_gain = zero - 1.0f, range, inverse;
    for (int i = 0; i < PART; i++) {
        least(&low, &x[i]);
        largest(&high, &x[i]);
        x_sum += x[i];
    }
    low = lanes_select(low > zero, zero, low);
    range = high - low;
    lanes_inverse(&inverse, &range);
    for (unsigned i = 0; i < sizeof margins / sizeof *margins; i++) {
        struct sums sums;
        struct affine fit;
        lanes gain, steps = inverse * ((float)top + margins[i][0] + margins[i][1]);
        lanes step, from;
        lanes_inverse(&step, &steps);
        from = low + step * margins[i][0];
        add_up(x, &from, &steps, top, &sums);
        solve(&sums, &x_sum, &fit, &gain);
        lane_ints better = gain > best_gain;
        best->scale = lanes_select(better, fit.scale, best->scale);
        best->offset = lanes_select(better, fit.offset, best->offset);
        best_gain = lanes_select(better, gain, best_gain);
    }
}

/* Quantised scale and offset of a 256-value block and of its parts (Q4_K, Q5_K). */
struct affine_block {
    float scale, offset; /* scale and offset of the block, as f16; decoding subtracts the offset */
    lane_ints scales, offsets;
    lanes error; /* squared error of each part of 32 values */
};

/* Squared error of a part for a scale and an offset, and mean residual without the offset. */
LANES_INLINE void measure(const lanes *x, const struct affine *at, int top, lanes *error, lanes *mean) {
    lanes inverse;
    *error = *mean = (lanes){0};
    lanes_inverse(&inverse, &at->scale);
    for (int i = 0; i < PART; i++) {
        lane_ints code;
        lanes q;
        code_at(&code, &q, &x[i], &at->offset, &inverse, top);
        lanes rest = x[i] - at->scale * q, wrong = rest - at->offset;
        *mean += rest;
        *error += wrong * wrong;
    }
    *mean /= (float)PART;
}

LANES_INLINE void offset_steps(const lanes *offset, float inverse, lane_ints *steps) {
    lanes v = *offset * -inverse;
    lanes_round(steps, &v, 0, SCALES_MOST);
}

/* Chooses each part's integer scale and integer offset: the better of the two integer scales next to the
 * fitted scale, each with its best offset. */
LANES_INLINE void choose(const lanes *x, const struct affine *fit, int top, struct affine_block *b) {
    float inverse = b->scale > 0 ? 1 / b->scale : 0, inverse_offset = b->offset > 0 ? 1 / b->offset : 0;
    lanes wanted = fit->scale * inverse - 0.5f;
    lane_ints low;
    lanes_round(&low, &wanted, 0, SCALES_MOST - 1);
    for (int i = 0; i < 2; i++) {
        lane_ints scales = low + i, offsets;
        struct affine at = {__builtin_convertvector(scales, lanes) * b->scale, fit->offset};
        lanes error, mean = fit->offset;
        for (int round = 0; round < 2; round++) {
            offset_steps(&mean, inverse_offset, &offsets);
            at.offset = __builtin_convertvector(offsets, lanes) * -b->offset;
            measure(x, &at, top, &error, &mean);
            lane_ints better = error < b->error;
            b->scales = (scales & better) | (b->scales & ~better);
            b->offsets = (offsets & better) | (b->offsets & ~better);
            b->error = lanes_select(better, error, b->error);
        }
    }
}

LANES_INLINE void round_scales(float *scale, float *offset) {
    lanes v = {*scale, *offset};
    lanes_to_f16(&v);
    *scale = *scale > 0 && v[0] < 0x1p-24f ? 0x1p-24f : v[0];
    *offset = *offset > 0 && v[1] < 0x1p-24f ? 0x1p-24f : v[1];
}

LANES_INLINE float most(const lanes *v) {
    float found = (*v)[0];
    for (int l = 1; l < LANES; l++) found = (*v)[l] > found ? (*v)[l] : found;
    return found;
}

LANES_INLINE void parts_at(const struct affine_block *b, struct affine *at) {
    at->scale = __builtin_convertvector(b->scales, lanes) * b->scale;
    at->offset = __builtin_convertvector(b->offsets, lanes) * -b->offset;
}

/* Refits the block's scales by least squares to the integers that the parts chose. */
LANES_INLINE void refit(const lanes *x, int top, struct affine_block *b) {
    struct affine at;
    lanes aa = {0}, ab = {0}, xa = {0}, xb = {0}, inverse, bb, down;
    parts_at(b, &at);
    lanes_inverse(&inverse, &at.scale);
    down = __builtin_convertvector(-b->offsets, lanes);
    bb = down * down * (float)PART;
    for (int i = 0; i < PART; i++) {
        lane_ints code;
        lanes q;
        code_at(&code, &q, &x[i], &at.offset, &inverse, top);
        lanes a = __builtin_convertvector(code * b->scales, lanes);
        aa += a * a;
        ab += a * down;
        xa += x[i] * a;
        xb += x[i] * down;
    }
    double A = lanes_sum(&aa), B = lanes_sum(&bb), C = lanes_sum(&ab), P = lanes_sum(&xa), R = lanes_sum(&xb),
           determinant = A * B - C * C;
    float scale = (float)(determinant > 0 ? (P * B - R * C) / determinant : A > 0 ? P / A : 0);
    float offset = (float)(determinant > 0 ? (R * A - P * C) / determinant : B > 0 ? R / B : 0);
    b->scale = scale > 0 ? scale : b->scale;
    b->offset = offset > 0 ? offset : b->offset;
}

LANES_INLINE void try_scales(const lanes *x, const struct affine *fit, int top, struct affine_block *trial,
                             struct affine_block *best) {
    const lanes zero = {0};
    round_scales(&trial->scale, &trial->offset);
    trial->error = zero + 0x1p120f;
    choose(x, fit, top, trial);
    if (lanes_sum(&trial->error) < lanes_sum(&best->error)) *best = *trial;
}

/* Candidates for the block's scale and offset: the integers that the largest scale and the largest offset of
 * the parts get. */
static const float steps[][2] = {{63, 63}, {62, 63}, {61, 62}, {60, 61}};

LANES_INLINE void search(const lanes *x, int top, struct affine_block *best) {
    const lanes zero = {0};
    struct affine fit = {{0}, {0}};
    fit_parts(x, top, &fit);
    lanes down = -fit.offset;
    float scale = most(&fit.scale), offset = most(&down);
    *best = (struct affine_block){0};
    best->error = zero + 0x1p120f;
    for (unsigned i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct affine_block trial = {.scale = scale / steps[i][0], .offset = offset / steps[i][1]};
        try_scales(x, &fit, top, &trial, best);
        refit(x, top, &trial);
        try_scales(x, &fit, top, &trial, best);
    }
}

struct affine_codes {
    uint16_t scale, offset;
    lane_ints scales, offsets, code[PART];
};

LANES_INLINE void finish(struct affine_codes *to, const lanes *x, const struct affine_block *b, int top) {
    struct affine at;
    lanes inverse, q;
    parts_at(b, &at);
    lanes_inverse(&inverse, &at.scale);
    for (int i = 0; i < PART; i++) code_at(&to->code[i], &q, &x[i], &at.offset, &inverse, top);
    to->scale = quantise_f16(b->scale);
    to->offset = quantise_f16(b->offset);
    to->scales = b->scales;
    to->offsets = b->offsets;
}

LANES_INLINE void code_affine(struct affine_codes *to, const float *from, int top) {
    lanes x[PART];
    struct affine_block best;
    unsigned broken = lanes_load(x, from, PART, LANES, 63 * 65504.0f);
    search(x, top, &best);
    finish(to, x, &best, top);
    if (broken) to->scale = F16_NAN;
}

LANES_WIDE static void code_q4_k(struct affine_codes *to, const float *from) {
    code_affine(to, from, 15);
}

LANES_WIDE static void code_q5_k(struct affine_codes *to, const float *from) {
    code_affine(to, from, 31);
}

/* Writes the block's scale and offset as f16, then packs the parts' eight scales and eight offsets of six
 * bits into twelve bytes. Scales and offsets 0 to 3 use the low six bits of bytes 0 to 7. Scales and offsets
 * 4 to 7 have their low four bits in bytes 8 to 11 and their high two bits at the top of bytes 0 to 7. */
static void put_scales(unsigned char *to, const struct affine_codes *from) {
    put_16(to, from->scale);
    put_16(to + 2, from->offset);
    for (int i = 0; i < 4; i++) {
        int scale = from->scales[i + 4], offset = from->offsets[i + 4];
        to[4 + i] = (unsigned char)(from->scales[i] | scale >> 4 << 6);
        to[8 + i] = (unsigned char)(from->offsets[i] | offset >> 4 << 6);
        to[12 + i] = (unsigned char)((scale & 15) | (offset & 15) << 4);
    }
}

/* Writes the lower four bits of the codes: two parts share a byte. */
static void put_nibbles(unsigned char *to, const struct affine_codes *from) {
    for (int part = 0; part < LANES; part += 2)
        for (int i = 0; i < PART; i++)
            *to++ = (unsigned char)((from->code[i][part] & 15) | (from->code[i][part + 1] & 15) << 4);
}

void quantise_q4_k(const float *from, int64_t n_blocks, unsigned char *to) {
    struct affine_codes coded;
    for (int64_t i = 0; i < n_blocks; i++, from += BLOCK, to += 144) {
        code_q4_k(&coded, from);
        put_scales(to, &coded);
        put_nibbles(to + 16, &coded);
    }
}

void quantise_q5_k(const float *from, int64_t n_blocks, unsigned char *to) {
    struct affine_codes coded;
    for (int64_t i = 0; i < n_blocks; i++, from += BLOCK, to += 176) {
        code_q5_k(&coded, from);
        put_scales(to, &coded);
        for (int k = 0; k < PART; k++) {
            int fifth = 0;
            for (int part = 0; part < LANES; part++) fifth |= coded.code[k][part] >> 4 << part;
            to[16 + k] = (unsigned char)fifth;
        }
        put_nibbles(to + 48, &coded);
    }
}
