/* Pictures at another size, bit for bit as those who trained models make them, from rows as they come: a
 * picture that is read row by row is never held whole. Pure arithmetic over the memory that it is
 * given; must not know of files, jobs or why a picture is resampled. */
#ifndef SLUICE_PICTURES_RESAMPLE_H
#define SLUICE_PICTURES_RESAMPLE_H

#include "engine/base/error.h"
#include "engine/base/sys.h"
#include "engine/sluice.h"

struct picture_size {
    int width, height;
};

/* Whose. */
enum resampler {
    PILLOW_LANCZOS, /* Pillow 13's resize(size, LANCZOS) */
    TORCH_BICUBIC,  /* PyTorch 2.15's interpolate(mode="bicubic", antialias=True) of bytes on a CPU, which is
                       torchvision's resize and what transformers 5 shows vision encoders */
};

/* Of a picture that is resampled to `whole`: size pixels from (x, y), which lie within it. */
struct picture_part {
    enum resampler by;
    struct picture_size whole;
    int x, y;
    struct picture_size size;
};

/* From so many values to so many, of which n from `first` are made. */
struct direction {
    int from, to, first, n;
    enum resampler by;
    int bits; /* of weights, behind the point */
};

/* Which values an output sees. */
struct window {
    int first, n;
};

struct resampling {
    struct direction across, down;
    bool down_first;
    int taps_across, taps_down;
    int taken, made;
    struct window next;     /* of the row that is made next, whose weights are weights_down */
    struct window *windows; /* across.n */
    int32_t *weights;       /* across.n times taps_across */
    int32_t *weights_down;  /* taps_down */
    int32_t *sums;          /* of a row that comes down */
    uint8_t *rows;          /* the last taps_down rows, row y in place y % taps_down */
    uint8_t *row;           /* that has come down and goes across */
    uint8_t *to;
    size_t pitch;
};

/* What resampling takes beside the picture that it makes: no more than a few rows and weights. */
uint64_t resample_bytes(struct picture_size from, const struct picture_part *part);
/* memory: resample_bytes, aligned to 16. The part's rows go to `to`, each pitch bytes behind the other. */
void resample_begin(struct resampling *r, struct picture_size from, const struct picture_part *part,
                    void *memory, uint8_t *to, size_t pitch);
/* The picture's next row of RGB triples; rows behind its last are ignored. */
void resample_take(struct resampling *r, const uint8_t *row);
/* Has every row of the part been made? */
bool resample_done(const struct resampling *r);

/* to, of size.height rows of size.width RGB triples, packed: all of a picture that has its pixels. Takes
 * LINE_HOST memory, resample_bytes, while it works; MEMORY without. */
enum status picture_resize(struct sys *sys, const struct sluice_picture *picture, enum resampler by,
                           struct picture_size size, uint8_t *to, struct error *e);

#endif
