/* A JSON configuration as a flat table: "rope_parameters.rope_theta" -> number, "axes_dims.0" -> number. The
 * loaders fill it; families read from it what tensor shapes do not determine. */
#ifndef SLUICE_BASE_CONFIG_H
#define SLUICE_BASE_CONFIG_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

struct config_value {
    char *key; /* path of the value: object names and array indices, joined by '.' */
    enum { CONFIG_NUMBER, CONFIG_BOOL, CONFIG_STRING, CONFIG_NULL, CONFIG_EMPTY /* empty array */ } kind;
    double number; /* value of CONFIG_NUMBER; 0 or 1 for CONFIG_BOOL; integers up to 2^53 are exact */
    bool integer;  /* the number is written without fraction or exponent */
    char *string;  /* text of CONFIG_STRING */
};

struct config {
    struct sys *sys;
    char *path; /* path of the JSON file, for messages; NULL for an empty configuration */
    struct config_value *values;
    int n_values;
    struct config *pictures; /* flat table of preprocessor_config.json (vision encoders); owned */
};

const struct config_value *config_find(const struct config *config, const char *key);

/* Read the value of a key into *out. If the key is absent or null, *out keeps the caller's default. META if
 * the value has another type or lies outside [least, most]. */
enum status config_int(const struct config *config, const char *key, int least, int most, int *out,
                       struct error *e);
enum status config_float(const struct config *config, const char *key, double least, double most, double *out,
                         struct error *e);
enum status config_bool(const struct config *config, const char *key, bool *out, struct error *e);
/* Returns the string at the key, or fallback if the key is absent or not a string. */
const char *config_string(const struct config *config, const char *key, const char *fallback);

/* Returns UNSUPPORTED unless the key is absent, null or equal to `expected`. */
enum status config_expect(const struct config *config, const char *key, const char *expected,
                          struct error *e);
/* Returns UNSUPPORTED if the value of the key, or any value nested in it, is true, a non-zero number or a
 * string. For options of features that are not implemented. */
enum status config_refuse(const struct config *config, const char *key, struct error *e);

/* Returns the length of the list at a key; 0 if the key holds no list. */
int config_list_length(const struct config *config, const char *key);
/* Returns META if the key holds a list whose length is not n. */
enum status config_check_list(const struct config *config, const char *key, int n, struct error *e);

void config_destroy(struct config *config);

#endif
