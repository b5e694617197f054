/* Looks up and checks configuration values: implements config.h. */
#include "engine/base/config.h"

#include <math.h>
#include <string.h>

const struct config_value *config_find(const struct config *config, const char *key) {
    for (int i = 0; i < config->n_values; i++)
        if (!strcmp(config->values[i].key, key)) return &config->values[i];
    return NULL;
}

/* True if the value is nested in the array or object that the key names. */
static bool is_below(const struct config_value *value, const char *key) {
    size_t n = strlen(key);
    return !strncmp(value->key, key, n) && value->key[n] == '.';
}

/* Returns the configuration value of a key; NULL if the value is absent, null or an empty array. */
static const struct config_value *find_value(const struct config *config, const char *key) {
    const struct config_value *value = config_find(config, key);
    return value && value->kind != CONFIG_NULL && value->kind != CONFIG_EMPTY ? value : NULL;
}

/* Fails with META (invalid value) or UNSUPPORTED; the error shows the configuration's value. */
static enum status bad_value(const struct config *config, enum status code, const struct config_value *value,
                             struct error *e) {
    error_set(e, code, "%s value of '%s' in the configuration" WHERE "%s",
              code == META ? "invalid" : "unsupported", value->key,
              config->path ? config->path : "configuration");
    return value->kind == CONFIG_STRING ? error_found(e, "\"%s\"", value->string)
                                        : error_found(e, code == META ? "%.17g" : "%g", value->number);
}

/* Returns META if the configuration has an array or object at this key, where a number is expected. */
static enum status refuse_nested(const struct config *config, const char *key, struct error *e) {
    for (int i = 0; i < config->n_values; i++) {
        if (!is_below(&config->values[i], key)) continue;
        bad_value(config, META, &config->values[i], e);
        return error_expected(e, "a number at '%s'", key);
    }
    return OK;
}

enum status config_int(const struct config *config, const char *key, int least, int most, int *out,
                       struct error *e) {
    const struct config_value *value = find_value(config, key);
    if (!value) return refuse_nested(config, key, e);
    if (value->kind != CONFIG_NUMBER || value->number != floor(value->number) || value->number < least ||
        value->number > most) {
        bad_value(config, META, value, e);
        return error_expected(e, "an integer from %d to %d", least, most);
    }
    *out = (int)value->number;
    return OK;
}

enum status config_float(const struct config *config, const char *key, double least, double most, double *out,
                         struct error *e) {
    const struct config_value *value = find_value(config, key);
    if (!value) return refuse_nested(config, key, e);
    if (value->kind != CONFIG_NUMBER || !(value->number >= least && value->number <= most)) {
        bad_value(config, META, value, e);
        return error_expected(e, "a number from %g to %g", least, most);
    }
    *out = value->number;
    return OK;
}

enum status config_bool(const struct config *config, const char *key, bool *out, struct error *e) {
    const struct config_value *value = find_value(config, key);
    if (!value) return OK;
    if (value->kind != CONFIG_BOOL) {
        bad_value(config, META, value, e);
        return error_expected(e, "true or false");
    }
    *out = value->number != 0;
    return OK;
}

const char *config_string(const struct config *config, const char *key, const char *fallback) {
    const struct config_value *value = config_find(config, key);
    return value && value->kind == CONFIG_STRING ? value->string : fallback;
}

enum status config_expect(const struct config *config, const char *key, const char *expected,
                          struct error *e) {
    const struct config_value *value = find_value(config, key);
    if (!value || (value->kind == CONFIG_STRING && !strcmp(value->string, expected))) return OK;
    bad_value(config, UNSUPPORTED, value, e);
    return error_expected(e, "\"%s\"", expected);
}

enum status config_refuse(const struct config *config, const char *key, struct error *e) {
    for (int i = 0; i < config->n_values; i++) {
        const struct config_value *value = &config->values[i];
        bool off = value->kind == CONFIG_NULL || (value->kind != CONFIG_STRING && value->number == 0);
        if (!off && (!strcmp(value->key, key) || is_below(value, key)))
            return bad_value(config, UNSUPPORTED, value, e);
    }
    return OK;
}

int config_list_length(const struct config *config, const char *key) {
    int n = 0;
    for (int i = 0; i < config->n_values; i++) {
        const char *in_list = config->values[i].key;
        n += is_below(&config->values[i], key) && !strchr(in_list + strlen(key) + 1, '.');
    }
    return n;
}

enum status config_check_list(const struct config *config, const char *key, int n, struct error *e) {
    int found = config_list_length(config, key);
    if (!found || found == n) return OK;
    return error_set(e, META,
                     "configuration list '%s' has the wrong length" WHERE "%s" FOUND "%d" EXPECTED "%d", key,
                     config->path, found, n);
}

void config_destroy(struct config *config) {
    for (int i = 0; i < config->n_values; i++) {
        config->sys->release(config->sys, config->values[i].key);
        config->sys->release(config->sys, config->values[i].string);
    }
    if (config->sys) {
        if (config->pictures) config_destroy(config->pictures);
        config->sys->release(config->sys, config->pictures);
        config->sys->release(config->sys, config->values);
        config->sys->release(config->sys, config->path);
    }
    *config = (struct config){0};
}
