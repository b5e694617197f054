/* What a family's dims and settings are, as rows: from them follow reading them from files, choosing them for
 * a component that is made up, and config.json. */
#ifndef SLUICE_RUN_DIMENSION_H
#define SLUICE_RUN_DIMENSION_H

#include "engine/base/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DIMENSIONS_MAX = 64, DIMENSION_NAMES_MAX = 4, SETTING_KEYS_MAX = 6 };

/* How config.json writes a dimension. */
enum dimension_form { FORM_INT, FORM_BOOL, FORM_NULL_IF_0, FORM_ABSENT_IF_0 };

/* A place in component.dims. Where neither a tensor nor blocks tell it, a file does not: the family sets it.
 */
struct dimension {
    const char *name; /* by which a checkpoint of any size chooses it; NULL: it follows from those, and its
                         row comes behind theirs */
    int published;    /* the size of the best-known model of the family */
    int least, most;  /* that can be chosen */
    int place;
    /* The axis of a tensor of this rank, under the first of these names that there is; rank 0: 1 if there is
     * such a tensor, else 0. */
    const char *tensor[DIMENSION_NAMES_MAX];
    int rank, axis;
    /* Or how many blocks one of these prefixes counts: the most. */
    const char *blocks[DIMENSION_NAMES_MAX];
    /* Or how many numbers there are with a tensor of one of these names, %d being the number;
     * NULL-terminated.
     */
    const char *const *having;
    const char *key; /* in config.json, where it is written: shapes are what is read; NULL: none */
    enum dimension_form form;
    const char *const *words; /* that stand for its values there; NULL among them: it is not written */
};

/* Of a row: where a file tells the dimension. */
#define OF_TENSOR(rank_, axis_, ...) .rank = rank_, .axis = axis_, .tensor = {__VA_ARGS__}
#define OF_BLOCKS(...)               .blocks = {__VA_ARGS__}

/* What shapes cannot tell: a number in the family's settings. */
struct setting {
    const char *keys[SETTING_KEYS_MAX]; /* in configurations, as struct config has them: the last that is
                                           there holds. The first is config.json's. Of SETTING_WORD it is
                                           the only one: the others are what it may be, and the number is
                                           that of the word */
    size_t offset;                      /* in the settings structure */
    enum { SETTING_INT, SETTING_FLOAT, SETTING_DOUBLE, SETTING_WORD, SETTING_BOOL } type; /* BOOL: an int */
    double published; /* where nothing says it; an int outside of what follows stands for none, and is not
                         written */
    double least, most;
};

/* As many of them as a dim says, in configurations under "KEY.0" and on. */
struct setting_list {
    const char *key;
    size_t offset; /* of floats in the settings structure */
    int room;      /* for so many; files that need more are SHAPE */
    int count;     /* place in dims */
    double least, most;
    const float *published; /* where nothing says them and there are as many; of made-up ones the first */
    int n_published;
    bool follows; /* where nothing says them the family finds them itself */
};

/* Where the published model of a pipeline has another value than its family's: a setting's first key. */
struct published_setting {
    const char *key; /* NULL ends a list */
    double value;
};

/* What a configuration must say of a key, if it has it; NULL: that it does not have it, or not switched on.
 */
struct expectation {
    const char *key, *value;
};

struct component;

/* Dims and settings from the index and the configuration, then the family's own checks. */
enum status component_configure(struct component *c, const struct config *config, struct error *e);
/* Those of a component that is made up. chosen: a value for each row of family.dimensions that
 * has a name; NULL: the published ones. */
void component_derive(struct component *c, const int *chosen);
/* The config.json of components that share one, the first's kind of model; as snprintf. */
int component_write_config(const struct component *const *components, int n, char *out, size_t out_bytes);
/* The preprocessor_config.json of a vision encoder, likewise. */
int component_write_pictures(const struct component *c, char *out, size_t out_bytes);

#endif
