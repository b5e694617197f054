/* Quantises blocks of 32 values with one scale: Q4_0, Q5_0, Q8_0. Several candidate scales are tried for each
 * block. The first maps the value of largest magnitude to the largest code. The others map the value slightly
 * further or less far, and are then fitted to the resulting codes by least squares. Each candidate is rounded
 * to f16, as in the file, before its error is measured. The candidate with the least error wins, so no block
 * is worse than with the first candidate. */
#include "loaders/quantise/blocks.h"

enum { BLOCK = 32 };

struct trial {
    lanes scale, error;
};

/* Fits a scale by least squares to the codes of x for the scale 1 / inverse. */
LANES_INLINE void fit(const lanes *x, const lanes *inverse, lanes *scale, int lo, int hi) {
    lanes products, squares, inverse_squares;
    lanes_add_up(x, BLOCK, inverse, lo, hi, &products, &squares);
    lanes_inverse(&inverse_squares, &squares);
    *scale = products * inverse_squares;
}

/* Finds the scale with the least squared error. ends: codes to which candidate scales map the value of
 * largest magnitude; the first candidate is also tried without a least-squares fit. */
LANES_INLINE void search(const lanes *x, struct trial *best, const float *ends, int n_ends, int lo, int hi) {
    lanes extreme, inverse;
    lanes_extreme(x, BLOCK, &extreme);
    lanes_inverse(&inverse, &extreme);
    best->scale = extreme / ends[0];
    lanes_to_f16(&best->scale);
    lanes_measure(x, BLOCK, &best->scale, lo, hi, &best->error);
    for (int i = 0; i < n_ends; i++) {
        struct trial trial;
        lanes end = inverse * ends[i];
        fit(x, &end, &trial.scale, lo, hi);
        lanes_to_f16(&trial.scale);
        lanes_measure(x, BLOCK, &trial.scale, lo, hi, &trial.error);
        lane_ints better = trial.error < best->error;
        best->scale = lanes_select(better, trial.scale, best->scale);
        best->error = lanes_select(better, trial.error, best->error);
    }
}

struct coded {
    uint16_t scale[LANES];
    lane_ints code[BLOCK];
};

LANES_INLINE void finish(struct coded *to, const lanes *x, const struct trial *best, unsigned broken, int lo,
                         int hi) {
    lanes inverse, q;
    lanes_inverse(&inverse, &best->scale);
    for (int i = 0; i < BLOCK; i++) lanes_code(&to->code[i], &q, &x[i], &inverse, lo, hi);
    for (int l = 0; l < LANES; l++) to->scale[l] = broken >> l & 1 ? F16_NAN : quantise_f16(best->scale[l]);
}

static const float ends_4[] = {-8, -8.5f, -7.5f, -7, 7, 7.5f, 8, -9, 8.5f, -6.5f};

LANES_WIDE static void code_q4_0(struct coded *to, const float *from, int n_blocks) {
    lanes x[BLOCK];
    struct trial best;
    unsigned broken = lanes_load(x, from, BLOCK, n_blocks, 7 * 65504.0f);
    search(x, &best, ends_4, sizeof ends_4 / sizeof *ends_4, -8, 7);
    finish(to, x, &best, broken, -8, 7);
}

void quantise_q4_0(const float *from, int64_t n_blocks, unsigned char *to) {
    struct coded coded;
    for (int64_t done = 0; done < n_blocks; done += LANES) {
        int n = n_blocks - done < LANES ? (int)(n_blocks - done) : LANES;
        code_q4_0(&coded, from + done * BLOCK, n);
        for (int l = 0; l < n; l++, to += 18) {
            put_16(to, coded.scale[l]);
            for (int i = 0; i < 16; i++)
                to[2 + i] = (unsigned char)((coded.code[i][l] + 8) | (coded.code[i + 16][l] + 8) << 4);
        }
    }
}

static const float ends_5[] = {-16, -16.5f, -15.5f, -15, 15, 15.5f, 16, -17};

LANES_WIDE static void code_q5_0(struct coded *to, const float *from, int n_blocks) {
    lanes x[BLOCK];
    struct trial best;
    unsigned broken = lanes_load(x, from, BLOCK, n_blocks, 15 * 65504.0f);
    search(x, &best, ends_5, sizeof ends_5 / sizeof *ends_5, -16, 15);
    finish(to, x, &best, broken, -16, 15);
}

void quantise_q5_0(const float *from, int64_t n_blocks, unsigned char *to) {
    struct coded coded;
    for (int64_t done = 0; done < n_blocks; done += LANES) {
        int n = n_blocks - done < LANES ? (int)(n_blocks - done) : LANES;
        code_q5_0(&coded, from + done * BLOCK, n);
        for (int l = 0; l < n; l++, to += 22) {
            uint32_t fifth = 0;
            put_16(to, coded.scale[l]);
            for (int i = 0; i < BLOCK; i++) fifth |= (uint32_t)((coded.code[i][l] + 16) >> 4) << i;
            put_16(to + 2, (uint16_t)fifth);
            put_16(to + 4, (uint16_t)(fifth >> 16));
            for (int i = 0; i < 16; i++)
                to[6 + i] = (unsigned char)((coded.code[i][l] & 15) | (coded.code[i + 16][l] & 15) << 4);
        }
    }
}

/* Code -128 stays unused, because eight-bit matrix products negate codes. */
static const float ends_8[] = {127, 127.5f, 126};

LANES_WIDE static void code_q8_0(struct coded *to, const float *from, int n_blocks) {
    lanes x[BLOCK];
    struct trial best;
    unsigned broken = lanes_load(x, from, BLOCK, n_blocks, 127 * 65504.0f);
    search(x, &best, ends_8, sizeof ends_8 / sizeof *ends_8, -127, 127);
    finish(to, x, &best, broken, -127, 127);
}

void quantise_q8_0(const float *from, int64_t n_blocks, unsigned char *to) {
    struct coded coded;
    for (int64_t done = 0; done < n_blocks; done += LANES) {
        int n = n_blocks - done < LANES ? (int)(n_blocks - done) : LANES;
        code_q8_0(&coded, from + done * BLOCK, n);
        for (int l = 0; l < n; l++, to += 34) {
            put_16(to, coded.scale[l]);
            for (int i = 0; i < BLOCK; i++) to[2 + i] = (unsigned char)coded.code[i][l];
        }
    }
}
