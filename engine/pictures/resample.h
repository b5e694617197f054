/* Resamples pictures with the same bits as Pillow or PyTorch in training code. Input rows are pushed one by
 * one, so the whole picture is never in memory. With alpha, premultiplied colours are resampled, as in
 * Pillow. Pure arithmetic over caller-provided memory; no files or jobs. */
#ifndef SLUICE_PICTURES_RESAMPLE_H
#define SLUICE_PICTURES_RESAMPLE_H

#include "engine/base/error.h"
#include "engine/base/sys.h"
#include "engine/sluice.h"

struct picture_size {
    int width, height;
};

/* The library whose resampling is reproduced. transformers 5 resizes with PyTorch for vision encoders. */
enum resampler {
    PILLOW_LANCZOS, /* Pillow 13's resize(size, LANCZOS) */
    TORCH_BICUBIC,  /* PyTorch 2.15's bicubic interpolate with antialias of uint8 on a CPU */
};

/* A resize to `whole` and a crop to `size`, with (x, y) in `whole` as the crop's upper left corner. */
struct picture_part {
    enum resampler by;
    struct picture_size whole;
    int x, y;
    struct picture_size size;
    bool alpha; /* input rows are RGBA quadruples; PILLOW_LANCZOS only */
};

/* One axis of resampling from `from` input values to `to` output values, of which n from index `first` on are
 * computed. */
struct direction {
    int from, to, first, n;
    enum resampler by;
    int bits;
};

/* The input values under the kernel of one output value. */
struct window {
    int first, n;
};

struct resampling {
    struct direction across, down;
    bool down_first;
    size_t channels; /* values per pixel: 3, or 4 with alpha */
    int taps_across, taps_down;
    int taken, made;
    struct window next; /* input rows under the kernel of the next output row, with weights_down as weights */
    struct window *windows; /* [across.n] input columns of each output column */
    int32_t *weights;       /* [across.n * taps_across] weights of each output column */
    int32_t *weights_down;  /* [taps_down] weights of the next output row */
    int32_t *sums;          /* accumulators of one output row */
    uint8_t *rows;          /* the last taps_down input rows; row y is at index y % taps_down */
    uint8_t *row;           /* one row after the vertical pass, before the horizontal pass */
    /* With alpha: one input row and one output row of RGBA, premultiplied. */
    uint8_t *pixels, *result;
    uint8_t *to;
    size_t pitch;
    uint8_t *alpha; /* with alpha: output rows of alpha, alpha_pitch bytes apart; the caller sets
                       both after resample_begin */
    size_t alpha_pitch;
};

/* A colour over white: (255 (255 - alpha) + value alpha) / 255, rounded to nearest as in Pillow's paste. */
static inline uint8_t picture_over_white(int value, int alpha) {
    int sum = 255 * (255 - alpha) + value * alpha + 128;
    return (uint8_t)((sum + (sum >> 8)) >> 8);
}

/* Temporary bytes of a resampling: a few rows and the weights. */
uint64_t resample_bytes(struct picture_size from, const struct picture_part *part);
/* Starts resampling. memory: resample_bytes bytes, aligned to 16 bytes. Output rows go to `to`, `pitch` bytes
 * apart. */
void resample_begin(struct resampling *r, struct picture_size from, const struct picture_part *part,
                    void *memory, uint8_t *to, size_t pitch);
/* Takes the next input row of RGB triples, with alpha of RGBA quadruples; rows after the last are ignored.
 * With alpha the row may be r->pixels. */
void resample_push_row(struct resampling *r, const uint8_t *row);
bool resample_done(const struct resampling *r);

/* Resizes a picture with pixels in memory to `to`: size.height packed rows of size.width RGB triples. A
 * picture with alpha is laid over white first. Allocates resample_bytes of LINE_HOST memory during the call,
 * with alpha also a row of RGB triples; MEMORY if the allocation fails. */
enum status picture_resize(struct sys *sys, const struct sluice_picture *picture, enum resampler by,
                           struct picture_size size, uint8_t *to, struct error *e);

#endif
