/* Finds flat shapes on a plain background in an image. Colours are classed by the nearest palette colour;
 * shapes are connected components, classed by their overlap with templates.
 *
 * models/demo_train/draw.py has the same reader in Python and draws the same palette and shapes. The
 * functions depend on the pixels alone: no state, no files, no code of the engine. Any image size; without
 * memory the image reads as empty. */
#ifndef SLUICE_TEST_DEMO_READER_H
#define SLUICE_TEST_DEMO_READER_H

#include <stdbool.h>
#include <stdint.h>

enum { N_COLOURS = 8, N_SHAPES = 4, REGIONS_MAX = 64, UNCLEAR = N_COLOURS };
enum shape { CIRCLE, SQUARE, TRIANGLE, STAR, NO_SHAPE };

extern const char *const colour_words[N_COLOURS];
extern const char *const shape_words[N_SHAPES + 1];

struct picture {
    int width, height;
    const uint8_t *rgb; /* RGB pixels: height rows of width pixels, packed */
};

struct detected_region {
    int colour, shape, n_pixels;
    double overlap; /* IoU with the shape's template, 0 to 1 */
    /* Offset of the bounding box's centre from the image's centre, in units of the image's shorter side. */
    double dx, dy;
};

struct reading {
    int background, n_regions;
    struct detected_region region[REGIONS_MAX];
    double share[N_COLOURS]; /* share of the image's area that each colour covers */
};

struct reading read_picture(const struct picture *p);

#endif
