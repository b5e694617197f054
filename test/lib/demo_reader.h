/* A plain reader: what is drawn in a picture of flat shapes on a plain background. Colour classes by the
 * nearest colour of the palette, shapes as connected components, their kind by overlap with templates.
 *
 * models/demo_train/draw.py has the same reader in Python, and the palette and shapes drawn there are those
 * here. Pure: no state, no files, nothing of the engine. Any size; out of memory reads as an empty picture.
 */
#ifndef SLUICE_TEST_DEMO_READER_H
#define SLUICE_TEST_DEMO_READER_H

#include <stdbool.h>
#include <stdint.h>

enum { N_COLOURS = 8, N_SHAPES = 4, COMPONENT_FILES_MAX = 64, UNCLEAR = N_COLOURS };
enum shape { CIRCLE, SQUARE, TRIANGLE, STAR, NO_SHAPE };

extern const char *const colour_words[N_COLOURS];
extern const char *const shape_words[N_SHAPES + 1];

struct picture {
    int width, height;
    const uint8_t *rgb; /* height rows of width triples, packed */
};

struct component_file {
    int colour, shape, n_pixels;
    double overlap; /* with the shape's template, 0 to 1 */
    double dx, dy;  /* from the picture's centre to the box's, in shorter sides */
};

struct reading {
    int background, n_parts;
    struct component_file file[COMPONENT_FILES_MAX];
    double share[N_COLOURS]; /* of the picture's area */
};

/* ---- the reader ---- */

struct reading read_picture(const struct picture *p);

#endif
