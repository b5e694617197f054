/* Resamples pictures with the same bits as Pillow or PyTorch in training code. Input rows are pushed one by
 * one, so the whole picture is never in memory. Pure arithmetic over caller-provided memory; no files or
 * jobs. */
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
    int taps_across, taps_down;
    int taken, made;
    struct window next; /* input rows under the kernel of the next output row, with weights_down as weights */
    struct window *windows; /* [across.n] input columns of each output column */
    int32_t *weights;       /* [across.n * taps_across] weights of each output column */
    int32_t *weights_down;  /* [taps_down] weights of the next output row */
    int32_t *sums;          /* accumulators of one output row */
    uint8_t *rows;          /* the last taps_down input rows; row y is at index y % taps_down */
    uint8_t *row;           /* one row after the vertical pass, before the horizontal pass */
    uint8_t *to;
    size_t pitch;
};

/* Temporary bytes of a resampling: a few rows and the weights. */
uint64_t resample_bytes(struct picture_size from, const struct picture_part *part);
/* Starts resampling. memory: resample_bytes bytes, aligned to 16 bytes. Output rows go to `to`, `pitch` bytes
 * apart. */
void resample_begin(struct resampling *r, struct picture_size from, const struct picture_part *part,
                    void *memory, uint8_t *to, size_t pitch);
/* Takes the next input row of RGB triples; rows after the last are ignored. */
void resample_push_row(struct resampling *r, const uint8_t *row);
bool resample_done(const struct resampling *r);

/* Resizes a picture with pixels in memory to `to`: size.height packed rows of size.width RGB triples.
 * Allocates resample_bytes of LINE_HOST memory during the call; MEMORY if the allocation fails. */
enum status picture_resize(struct sys *sys, const struct sluice_picture *picture, enum resampler by,
                           struct picture_size size, uint8_t *to, struct error *e);

#endif
