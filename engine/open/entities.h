/* HTML's names of characters, as Python's html.unescape knows them. */
#ifndef SLUICE_OPEN_ENTITIES_H
#define SLUICE_OPEN_ENTITIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ENTITY_NAME_BYTES = 32 };

struct entity {
    char name[ENTITY_NAME_BYTES]; /* of letters and digits */
    bool bare;                    /* also without a semicolon behind it */
    int32_t code[2];              /* characters that it stands for; 0: no second */
};

/* The entity whose name is these bytes, or NULL. */
const struct entity *entity_find(const char *name, size_t bytes);

#endif
