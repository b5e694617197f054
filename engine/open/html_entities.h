/* HTML entities, as in Python's html.unescape. */
#ifndef SLUICE_OPEN_HTML_HTML_ENTITIES_H
#define SLUICE_OPEN_HTML_HTML_ENTITIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ENTITY_NAME_BYTES = 32 };

struct entity {
    char name[ENTITY_NAME_BYTES]; /* letters and digits between "&" and ";" */
    bool bare;                    /* the entity is also valid without a semicolon ("&amp") */
    int32_t code[2];              /* code points of the character; the second is 0 if there is only one */
};

/* Finds the entity of a name; NULL: none. */
const struct entity *entity_find(const char *name, size_t bytes);

#endif
