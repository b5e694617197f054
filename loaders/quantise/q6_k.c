/* Quantises blocks of 256 values in sixteen parts of 16, each with an eight-bit scale and no offset: Q6_K.
 * Uses the method of k_quants.c: fits a scale for each part, then the block's scale, then chooses each part's
 * integer scale. */
#include "loaders/quantise/blocks.h"

enum { BLOCK = 256, PART = 16, GROUPS = 2, LOW = -32, HIGH = 31 };

/* A block as two groups of eight parts: parts 0..7 and 8..15. */
struct block {
    lanes x[GROUPS][PART], fit[GROUPS];
};

struct choice {
    float scale; /* scale of the block, rounded to f16 */
    lane_ints scales[GROUPS];
    lanes error[GROUPS];
};

/* Codes to which candidate scales map the value of largest magnitude in a part. */
static const float ends[] = {-32, 31, -31, -32.5f, 31.5f, -31.5f, 30.5f};

LANES_INLINE void fit_part(const lanes *x, lanes *fit) {
    lanes extreme, inverse, best_gain = {-1, -1, -1, -1, -1, -1, -1, -1};
    lanes_extreme(x, PART, &extreme);
    lanes_inverse(&inverse, &extreme);
    for (unsigned i = 0; i < sizeof ends / sizeof *ends; i++) {
        lanes end = inverse * ends[i], products, squares, inverse_squares;
        lanes_add_up(x, PART, &end, LOW, HIGH, &products, &squares);
        lanes_inverse(&inverse_squares, &squares);
        lanes scale = products * inverse_squares, gain = products * scale;
        lane_ints better = gain > best_gain;
        *fit = lanes_select(better, scale, *fit);
        best_gain = lanes_select(better, gain, best_gain);
    }
}

/* Chooses each part's integer scale: the better of the two integers next to the fitted scale. */
LANES_INLINE void choose(const struct block *b, int group, struct choice *c) {
    float inverse = c->scale != 0 ? 1 / c->scale : 0;
    lanes wanted = b->fit[group] * inverse - 0.5f;
    lane_ints low;
    lanes_round(&low, &wanted, -128, 126);
    for (int i = 0; i < 2; i++) {
        lane_ints scales = low + i;
        lanes scale = __builtin_convertvector(scales, lanes) * c->scale, error;
        lanes_measure(b->x[group], PART, &scale, LOW, HIGH, &error);
        lane_ints better = error < c->error[group];
        c->scales[group] = (scales & better) | (c->scales[group] & ~better);
        c->error[group] = lanes_select(better, error, c->error[group]);
    }
}

LANES_INLINE float sum(const lanes *one, const lanes *other) {
    const lanes both = *one + *other;
    return lanes_sum(&both);
}

LANES_INLINE float round_scale(float scale) {
    lanes v = {scale};
    lanes_to_f16(&v);
    return v[0] != 0 ? v[0] : scale > 0 ? 0x1p-24f : scale < 0 ? -0x1p-24f : 0;
}

LANES_INLINE void try_scale(const struct block *b, struct choice *trial, struct choice *best) {
    trial->scale = round_scale(trial->scale);
    for (int group = 0; group < GROUPS; group++) {
        trial->error[group] = (lanes){0} + 0x1p120f;
        choose(b, group, trial);
    }
    if (sum(&trial->error[0], &trial->error[1]) < sum(&best->error[0], &best->error[1])) *best = *trial;
}

/* Refits the block's scale by least squares to the integers that the parts chose. */
LANES_INLINE void refit(const struct block *b, struct choice *c) {
    lanes products[GROUPS], squares[GROUPS];
    for (int group = 0; group < GROUPS; group++) {
        lanes whole = __builtin_convertvector(c->scales[group], lanes), scale = whole * c->scale, inverse;
        lanes_inverse(&inverse, &scale);
        lanes_add_up(b->x[group], PART, &inverse, LOW, HIGH, &products[group], &squares[group]);
        products[group] *= whole;
        squares[group] *= whole * whole;
    }
    float all = sum(&squares[0], &squares[1]);
    if (all > 0) c->scale = sum(&products[0], &products[1]) / all;
}

LANES_INLINE float find_largest(const struct block *b) {
    float largest = 0;
    for (int i = 0; i < GROUPS * LANES; i++) {
        float scale = b->fit[i / LANES][i % LANES], magnitude = largest < 0 ? -largest : largest;
        if (scale > magnitude || -scale > magnitude) largest = scale;
    }
    return largest;
}

/* Candidates for the block's scale: the integers that the part scale of largest magnitude gets. */
static const float steps[] = {-128, 127, -126, 125};

LANES_INLINE void search(struct block *b, struct choice *best) {
    for (int group = 0; group < GROUPS; group++) fit_part(b->x[group], &b->fit[group]);
    float largest = find_largest(b);
    *best = (struct choice){.error = {{0x1p120f}, {0}}};
    for (unsigned i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct choice trial = {.scale = largest / steps[i]};
        try_scale(b, &trial, best);
        refit(b, &trial);
        try_scale(b, &trial, best);
    }
}

struct coded {
    uint16_t scale;
    lane_ints scales[GROUPS], code[GROUPS][PART];
};

LANES_WIDE static void code_q6_k(struct coded *to, const float *from) {
    struct block b;
    struct choice best;
    unsigned broken = 0;
    for (int group = 0; group < GROUPS; group++) {
        b.fit[group] = (lanes){0};
        broken |= lanes_load(b.x[group], from + group * (BLOCK / GROUPS), PART, LANES, 31 * 65504.0f);
    }
    search(&b, &best);
    to->scale = broken ? F16_NAN : quantise_f16(best.scale);
    for (int group = 0; group < GROUPS; group++) {
        lanes scale = __builtin_convertvector(best.scales[group], lanes) * best.scale, inverse, q;
        lanes_inverse(&inverse, &scale);
        to->scales[group] = best.scales[group];
        for (int i = 0; i < PART; i++)
            lanes_code(&to->code[group][i], &q, &b.x[group][i], &inverse, LOW, HIGH);
    }
}

/* Code of value i of one half of the block, from 0. */
static int code_of(const struct coded *coded, int half, int i) {
    return coded->code[half][i % PART][i / PART] - LOW;
}

void quantise_q6_k(const float *from, int64_t n_blocks, unsigned char *to) {
    struct coded coded;
    for (int64_t n = 0; n < n_blocks; n++, from += BLOCK, to += 210) {
        code_q6_k(&coded, from);
        /* In each half of a block values 64 apart share a byte for their low four bits, and values 32 apart a
         * byte for their high two bits. */
        for (int half = 0; half < 2; half++) {
            unsigned char *low = to + 64 * half, *high = to + 128 + 32 * half;
            for (int i = 0; i < 32; i++) {
                int a = code_of(&coded, half, i), b = code_of(&coded, half, i + 32);
                int c = code_of(&coded, half, i + 64), d = code_of(&coded, half, i + 96);
                low[i] = (unsigned char)((a & 15) | (c & 15) << 4);
                low[i + 32] = (unsigned char)((b & 15) | (d & 15) << 4);
                high[i] = (unsigned char)(a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6);
            }
        }
        for (int i = 0; i < GROUPS * LANES; i++)
            to[192 + i] = (unsigned char)coded.scales[i / LANES][i % LANES];
        put_16(to + 208, coded.scale);
    }
}
