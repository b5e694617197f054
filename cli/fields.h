/* Read members of the library's JSON. An absent or null member reads as 0, false or "-". */
#ifndef SLUICE_CLI_FIELDS_H
#define SLUICE_CLI_FIELDS_H

#include <jansson.h>
#include <stdbool.h>

static inline double field_number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

static inline bool field_flag(const json_t *object, const char *key) {
    return json_is_true(json_object_get(object, key));
}

static inline const char *field_string(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "-";
}

#endif
