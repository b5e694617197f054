/* A JSON configuration as a flat table: "rope_parameters.rope_theta" -> number, "axes_dims.0" -> number.
 *
 * Families read what shapes cannot tell from it and never see JSON. Loaders fill it. */
#ifndef SLUICE_BASE_CONFIG_H
#define SLUICE_BASE_CONFIG_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

struct config_value {
    char *key; /* objects and arrays joined by '.', array places as numbers */
    enum { CONFIG_NUMBER, CONFIG_BOOL, CONFIG_STRING, CONFIG_NULL, CONFIG_EMPTY /* array */ } kind;
    double number; /* also 0 and 1 for CONFIG_BOOL; integers up to 2^53 are exact */
    bool integer;  /* it was written as an integer */
    char *string;  /* CONFIG_STRING */
};

struct config {
    struct sys *sys;
    char *path; /* where it came from, for messages; NULL for an empty one */
    struct config_value *values;
    int n_values;
    struct config
        *pictures; /* of a vision encoder, owned: how pictures are prepared for it; NULL: not said */
};

/* NULL if there is no such key. */
const struct config_value *config_find(const struct config *config, const char *key);

/* Read a value into *out; *out is left alone (the caller's default stays) when the key is absent or null.
 * META when it has another type, or lies outside [least, most]. */
enum status config_int(const struct config *config, const char *key, int least, int most, int *out,
                       struct error *e);
enum status config_float(const struct config *config, const char *key, double least, double most, double *out,
                         struct error *e);
enum status config_bool(const struct config *config, const char *key, bool *out, struct error *e);
/* The string of that key, or fallback when the key is absent or no string. */
const char *config_string(const struct config *config, const char *key, const char *fallback);

/* UNSUPPORTED unless the key is absent, null, or this string: what would compute something else is refused.
 */
enum status config_expect(const struct config *config, const char *key, const char *expected,
                          struct error *e);
/* UNSUPPORTED if the key, or anything in the list or object under it, is true, a number but 0, or a string:
 * for features that nothing here honours. */
enum status config_refuse(const struct config *config, const char *key, struct error *e);

/* Values of a list; 0: the key is none. */
int config_list_length(const struct config *config, const char *key);
/* META if the key is a list of another number of values than n: one that is read in part would be another's.
 */
enum status config_check_list(const struct config *config, const char *key, int n, struct error *e);

void config_destroy(struct config *config);

#endif
