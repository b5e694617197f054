/* Dims and settings of a family as table rows. The rows drive three things: reading dims and settings from
 * files, choosing them for a synthetic component, and writing config.json. */
#ifndef SLUICE_RUN_DIMENSION_H
#define SLUICE_RUN_DIMENSION_H

#include "engine/base/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DIMENSIONS_MAX = 64, DIMENSION_NAMES_MAX = 4, SETTING_KEYS_MAX = 6 };

/* How config.json writes a dimension. */
enum dimension_form { FORM_INT, FORM_BOOL, FORM_NULL_IF_0, FORM_ABSENT_IF_0 };

/* One entry of component.dims. Without a tensor or block count in the row, the family sets the entry
 * itself. */
struct dimension {
    const char *name; /* name of a choice for synthetic checkpoints; NULL: derived from earlier rows */
    int published;    /* value of the best-known model of the family */
    int least, most;  /* range of values that can be chosen */
    int place;
    /* Read from an axis of a tensor of this rank, under the first of these names that exists. rank 0: 1 if
     * such a tensor exists, else 0. */
    const char *tensor[DIMENSION_NAMES_MAX];
    int rank, axis;
    /* Or: the number of blocks under one of these prefixes, whichever is largest. */
    const char *blocks[DIMENSION_NAMES_MAX];
    /* Or: the count of numbers for which a tensor of one of these names exists (%d is the number).
     * NULL-terminated. */
    const char *const *having;
    const char *key; /* key in config.json, for writing only: reading uses shapes; NULL: none */
    enum dimension_form form;
    const char *const *words; /* words for its values in config.json; a NULL word is not written */
};

/* Initialisers of a row: where files tell the dimension. */
#define OF_TENSOR(rank_, axis_, ...) .rank = rank_, .axis = axis_, .tensor = {__VA_ARGS__}
#define OF_BLOCKS(...)               .blocks = {__VA_ARGS__}

/* A number in the family's settings that tensor shapes do not tell. */
struct setting {
    /* Keys in struct config; the last existing one wins, the first is the key of config.json. Of
     * SETTING_WORD: one key, then its words; the setting is the index of the word. */
    const char *keys[SETTING_KEYS_MAX];
    size_t offset; /* in the settings structure */
    enum {
        SETTING_INT,
        SETTING_FLOAT,
        SETTING_DOUBLE,
        SETTING_WORD,
        SETTING_BOOL
    } type;           /* BOOL: stored as int */
    double published; /* default; an int outside [least, most] means none and is not written */
    double least, most;
};

/* A list of numbers whose length is a dim; under keys "KEY.0", "KEY.1" and so on. */
struct setting_list {
    const char *key;
    size_t offset; /* of floats in the settings structure */
    int room;      /* capacity; files that need more are SHAPE */
    int count;     /* index of the dim with its length */
    double least, most;
    const float *published; /* default, if the length matches; synthetic components use the first ones */
    int n_published;
    bool derived; /* without a value in the configuration, the family computes the list itself */
};

/* Overrides the published value of a setting, by its first key, for one pipeline. */
struct published_setting {
    const char *key; /* NULL ends a list */
    double value;
};

/* A required value of a configuration key, if the key exists. value NULL: the key must be absent or off. */
struct expectation {
    const char *key, *value;
};

struct component;

/* Reads dims and settings from the index and the configuration, then runs the family's own checks. */
enum status component_configure(struct component *c, const struct config *config, struct error *e);
/* Sets dims and settings of a synthetic component. chosen: a value for each named row of family.dimensions;
 * NULL: the published values. */
void component_derive(struct component *c, const int *chosen);
/* Writes the config.json of components that share one, with the model type of the first. Returns like
 * snprintf. */
int component_write_config(const struct component *const *components, int n, char *out, size_t out_bytes);
/* Writes the preprocessor_config.json of a vision encoder. Returns like snprintf. */
int component_write_pictures(const struct component *c, char *out, size_t out_bytes);

#endif
