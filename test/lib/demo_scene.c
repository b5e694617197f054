#include "test/lib/demo_scene.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *const size_words[N_SIZES] = {"large", "small"};
const char *const place_words[N_PLACES] = {"left", "right", "top", "bottom", "centre"};
static const char *const place_phrases[N_PLACES] = {"on the left", "on the right", "at the top",
                                                    "at the bottom", "in the centre"};
const char *const relation_words[N_RELATIONS] = {"left of", "right of", "above", "below"};
const enum place relation_sides[N_RELATIONS][GROUPS_MAX] = {{PLACE_LEFT, PLACE_RIGHT},
                                                            {PLACE_RIGHT, PLACE_LEFT},
                                                            {PLACE_TOP, PLACE_BOTTOM},
                                                            {PLACE_BOTTOM, PLACE_TOP}};

int word_index(const char *word, const char *const *words, int n) {
    for (int i = 0; i < n; i++)
        if (!strcmp(word, words[i])) return i;
    return UNSAID;
}

__attribute__((format(printf, 2, 3))) static void append(char *text, const char *format, ...) {
    size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, CAPTION_MAX - n, format, args);
    va_end(args);
}

static const char *article(const char *word) {
    return strchr("aeiou", word[0]) ? "an" : "a";
}

static void append_group(char *text, const struct group *g) {
    static const char *const counts[] = {"", "", "two", "three"};
    char words[CAPTION_MAX] = "";
    if (g->size != UNSAID) append(words, "%s ", size_words[g->size]);
    if (g->colour != UNSAID) append(words, "%s ", colour_words[g->colour]);
    append(words, "%s%s", shape_words[g->shape], g->count > 1 ? "s" : "");
    append(text, "%s %s", g->count > 1 ? counts[g->count] : article(words), words);
}

void caption(const struct scene *s, char text[CAPTION_MAX]) {
    const char *background = colour_words[s->background];
    text[0] = 0;
    append_group(text, &s->group[0]);
    if (s->relation != UNSAID) {
        append(text, " %s ", relation_words[s->relation]);
        append_group(text, &s->group[1]);
    } else if (s->group[0].place != UNSAID) {
        append(text, " %s", place_phrases[s->group[0].place]);
    }
    append(text, " on %s %s background", article(background), background);
}

const char *const aspect_words[N_ASPECTS] = {"background", "colour", "side", "shape", "count"};

/* Detected shapes with a group's colour: their number, the number that also have the group's shape, and their
 * mean position. */
struct found {
    int n, n_shape;
    double dx, dy;
};

static struct found find_group(const struct group *g, const struct reading *r) {
    struct found f = {0};
    for (int i = 0; i < r->n_regions; i++) {
        const struct detected_region *p = &r->region[i];
        if (p->colour != g->colour) continue;
        f.n++;
        f.n_shape += p->shape == g->shape;
        f.dx += p->dx;
        f.dy += p->dy;
    }
    f.dx /= f.n ? f.n : 1;
    f.dy /= f.n ? f.n : 1;
    return f;
}

static bool is_at(int place, double dx, double dy) {
    if (place == PLACE_CENTRE) return fmax(fabs(dx), fabs(dy)) < .14;
    bool horizontal = place == PLACE_LEFT || place == PLACE_RIGHT;
    double along = horizontal ? dx : dy, across = horizontal ? dy : dx;
    double toward = place == PLACE_LEFT || place == PLACE_TOP ? -along : along;
    return toward > .07 && toward > fabs(across);
}

static bool side_right(const struct scene *s, const struct found *f) {
    if (s->relation == UNSAID) return f[0].n && is_at(s->group[0].place, f[0].dx, f[0].dy);
    bool horizontal = s->relation == LEFT_OF || s->relation == RIGHT_OF;
    double gap = horizontal ? f[1].dx - f[0].dx : f[1].dy - f[0].dy;
    return f[0].n && f[1].n && (s->relation == LEFT_OF || s->relation == ABOVE ? gap : -gap) > .15;
}

/* True if the detected colours are exactly those of the scene. */
static bool colours_right(const struct scene *s, const struct reading *r) {
    unsigned named = 0, detected = 0;
    for (int i = 0; i < s->n_groups; i++) named |= 1u << s->group[i].colour;
    for (int i = 0; i < r->n_regions; i++) detected |= 1u << r->region[i].colour;
    return named == detected;
}

struct score score_scene(const struct scene *s, const struct reading *r) {
    struct score out = {.asked = {1, 1, s->relation != UNSAID || s->group[0].place != UNSAID, 1, 1}};
    struct found f[GROUPS_MAX] = {0};
    bool shape = true, count = true;
    for (int i = 0; i < s->n_groups; i++) {
        f[i] = find_group(&s->group[i], r);
        shape = shape && 2 * f[i].n_shape > f[i].n;
        count = count && f[i].n == s->group[i].count;
    }
    out.right[BACKGROUND] = r->background == s->background;
    out.right[COLOUR] = colours_right(s, r);
    out.right[SIDE] = out.asked[SIDE] && side_right(s, f);
    out.right[SHAPE] = shape;
    out.right[COUNT] = count;
    return out;
}

void score_add(struct score *to, const struct score *from) {
    for (int i = 0; i < N_ASPECTS; i++) {
        to->asked[i] += from->asked[i];
        to->right[i] += from->right[i];
    }
}

double score_percent(const struct score *s, enum aspect aspect) {
    return s->asked[aspect] ? 100. * s->right[aspect] / s->asked[aspect] : 0;
}

double score_mean(const struct score *s) {
    double sum = 0;
    for (int i = 0; i < N_ASPECTS; i++) sum += score_percent(s, (enum aspect)i);
    return sum / N_ASPECTS;
}
