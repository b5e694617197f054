/* The demo model's scenes in C: the captions that models/demo_train/draw.py writes for them, and the score of
 * a reading (demo_reader.h) against a scene. Word lists have draw.py's order; -1 means "not in the caption".
 *
 * Independent of pixels and of the engine. */
#ifndef SLUICE_TEST_DEMO_SCENE_H
#define SLUICE_TEST_DEMO_SCENE_H

#include "test/lib/demo_reader.h"

enum place { PLACE_LEFT, PLACE_RIGHT, PLACE_TOP, PLACE_BOTTOM, PLACE_CENTRE, N_PLACES };
enum relation { LEFT_OF, RIGHT_OF, ABOVE, BELOW, N_RELATIONS };
enum { N_SIZES = 2, GROUPS_MAX = 2, COUNT_MAX = 3, CAPTION_MAX = 160, UNSAID = -1 };

extern const char *const size_words[N_SIZES];
extern const char *const place_words[N_PLACES];
extern const char *const relation_words[N_RELATIONS];
/* Positions of the two groups of a relation ("above", "left of"); the second group is opposite the first. */
extern const enum place relation_sides[N_RELATIONS][GROUPS_MAX];

struct group {
    int count, colour, shape, size, place;
};

struct scene {
    int background, relation, n_groups; /* a scene with a relation has two groups */
    struct group group[GROUPS_MAX];
};

int word_index(const char *word, const char *const *words, int n);

void caption(const struct scene *s, char text[CAPTION_MAX]);

enum aspect { BACKGROUND, COLOUR, SIDE, SHAPE, COUNT, N_ASPECTS };

extern const char *const aspect_words[N_ASPECTS];

struct score {
    int asked[N_ASPECTS], right[N_ASPECTS];
};

/* Returns one scene's score, as draw.py's score() defines it. A group that the reading lacks counts as wrong
 * in shape. Every group must have a colour. */
struct score score_scene(const struct scene *s, const struct reading *r);
void score_add(struct score *to, const struct score *from);
double score_percent(const struct score *s, enum aspect aspect);

/* Returns the mean percentage of right answers over all aspects (background, colour, side, shape, count),
 * with equal weights. */
double score_mean(const struct score *s);

#endif
