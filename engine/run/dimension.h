/* Dims and settings of a family as table rows. The rows drive three things: reading dims and settings from
 * files, choosing them for a synthetic component, and writing config.json. */
#ifndef SLUICE_RUN_DIMENSION_H
#define SLUICE_RUN_DIMENSION_H

#include "engine/base/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DIMENSIONS_MAX = 64, DIMENSION_NAMES_MAX = 4, SETTING_KEYS_MAX = 6 };

/* JSON form in which config.json stores a dimension. */
enum dimension_form { FORM_INT, FORM_BOOL, FORM_NULL_IF_0, FORM_ABSENT_IF_0 };

/* One entry of component.dims. Entries that no tensor or block count determines are set by the family's own
 * code. */
struct dimension {
    const char *name; /* name under which a caller sets the dim of a synthetic checkpoint; NULL: derived from
                         other dims */
    int published;    /* value of the family's best-known model */
    int least, most;  /* range of values that synthetic checkpoints can choose */
    int place;
    /* The dim is the size of `axis` of the first tensor in this list of names that exists. rank 0: the dim is
     * 1 if any of the tensors exists. */
    const char *tensor[DIMENSION_NAMES_MAX];
    int rank, axis;
    /* If not NULL: a list of name prefixes. The dim is the largest number of blocks under any of the
     * prefixes. */
    const char *blocks[DIMENSION_NAMES_MAX];
    /* If not NULL: tensor names with %d for a block number. The dim is the number of blocks that have one of
     * these tensors. */
    const char *const *having;
    const char *key; /* key in the config.json that is written; reading uses tensor shapes; NULL: config.json
                        omits the dim */
    bool checked;    /* true: META if a configuration's value at `key` (an integer or one of `words`) differs
                        from the tensors' value */
    enum dimension_form form;
    const char *const *words; /* strings that config.json stores for 0, 1, ...; a NULL string: no key */
};

/* Initialisers of a dimension row: the tensor axis or the blocks that determine the dim. */
#define OF_TENSOR(rank_, axis_, ...) .rank = rank_, .axis = axis_, .tensor = {__VA_ARGS__}
#define OF_BLOCKS(...)               .blocks = {__VA_ARGS__}

/* A configuration value of a family that tensor shapes do not determine. */
struct setting {
    /* Keys in struct config: the last existing key wins, the first is written to config.json. SETTING_WORD:
     * one key, then the allowed strings; the setting is the index of the string. */
    const char *keys[SETTING_KEYS_MAX];
    size_t offset; /* offset in the family's settings structure */
    enum {
        SETTING_INT,
        SETTING_FLOAT,
        SETTING_DOUBLE,
        SETTING_WORD,
        SETTING_BOOL
    } type;           /* SETTING_BOOL values are stored as int */
    double published; /* default value; if it is an integer outside [least, most], the setting has no default
                         and config.json omits it */
    double least, most;
};

/* A list of numbers in the configuration, under "KEY.0", "KEY.1" and so on. */
struct setting_list {
    const char *key;
    size_t offset; /* offset of an array of floats in the settings structure */
    int capacity;  /* capacity of the array in floats; a longer list is error SHAPE */
    int count;     /* index into component.dims of the list's required length */
    double least, most;
    const float *published; /* default list, if its length is the required one; synthetic components use the
                               first values */
    int n_published;
    bool derived; /* if the configuration lacks the list, the family computes the values */
};

/* Overrides the published value of a setting (named by its first key) for one pipeline. */
struct published_setting {
    const char *key; /* NULL ends a list */
    double value;
};

/* A value that a configuration key must have if the key exists. value NULL: the key must be absent or off. */
struct expectation {
    const char *key, *value;
};

#endif
