/* The demo model's grammar in C: scenes, the captions that models/demo_train/draw.py writes for them, and
 * what of a scene a reading got right. Words stand in draw.py's order; -1 is "not said".
 *
 * Knows nothing of pixels (demo_reader.h) and nothing of the engine. */
#ifndef SLUICE_TEST_DEMO_SCENE_H
#define SLUICE_TEST_DEMO_SCENE_H

#include "test/lib/demo_reader.h"

enum place { PLACE_LEFT, PLACE_RIGHT, PLACE_TOP, PLACE_BOTTOM, PLACE_CENTRE, N_PLACES };
enum relation { LEFT_OF, RIGHT_OF, ABOVE, BELOW, N_RELATIONS };
enum { N_SIZES = 2, GROUPS_MAX = 2, COUNT_MAX = 3, CAPTION_MAX = 160, UNSAID = -1 };

extern const char *const size_words[N_SIZES];
extern const char *const place_words[N_PLACES];
extern const char *const relation_words[N_RELATIONS];
/* Where a relation puts its first group; the second is on the opposite side. */
extern const enum place relation_sides[N_RELATIONS][GROUPS_MAX];

struct group {
    int count, colour, shape, size, place;
};

struct scene {
    int background, relation, n_groups; /* a relation has two groups */
    struct group group[GROUPS_MAX];
};

int word_index(const char *word, const char *const *words, int n);

/* ---- captions ---- */

void caption(const struct scene *s, char text[CAPTION_MAX]);

/* ---- what a reading got right ---- */

enum aspect { BACKGROUND, COLOUR, SIDE, SHAPE, COUNT, N_ASPECTS };

extern const char *const aspect_words[N_ASPECTS];

struct score {
    int asked[N_ASPECTS], right[N_ASPECTS];
};

/* One scene's score; draw.py's score() by its definitions, but that a group which is not there has no right
 * shape (there it has none either: 0 > 0 is false). Every group must have a colour. */
struct score score_scene(const struct scene *s, const struct reading *r);
void score_add(struct score *to, const struct score *from);
double score_percent(const struct score *s, enum aspect aspect);

/* Right answers of all that were asked, every aspect the same weight. */
double score_mean(const struct score *s);

#endif
