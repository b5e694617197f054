#include "engine/open/adapter_alpha.h"

#include "engine/base/half.h"
#include "engine/open/paths.h"
#include "loaders/loaders.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCALAR_BYTES_MAX = 8 };

static bool scalar_value(const struct index_entry *entry, const void *from, double *value) {
    const char *type = index_type_name(entry);
    float f32;
    double f64;
    uint16_t half;
    int32_t i32;
    int64_t i64;
    memcpy(&f32, from, sizeof f32);
    memcpy(&f64, from, sizeof f64);
    memcpy(&half, from, sizeof half);
    memcpy(&i32, from, sizeof i32);
    memcpy(&i64, from, sizeof i64);
    if (!strcmp(type, "F32"))
        *value = (double)f32;
    else if (!strcmp(type, "BF16"))
        *value = (double)half_bf16_f32(half);
    else if (!strcmp(type, "F16"))
        *value = (double)half_f16_f32(half);
    else if (!strcmp(type, "F64"))
        *value = f64;
    else if (!strcmp(type, "I64"))
        *value = (double)i64;
    else if (!strcmp(type, "I32"))
        *value = (double)i32;
    else
        return false;
    return true;
}

static enum status alpha_fail(const struct adapter *a, const struct index_entry *entry, enum status code,
                              const char *what, struct error *e) {
    return error_set(e, code, "tensor '%s' of an adapter %s" WHERE "%s", entry->name, what,
                     a->index.sources[0].path);
}

static enum status read_scalar(const struct adapter *a, const struct index_entry *entry, double *value,
                               struct error *e) {
    int64_t n = 1;
    char bytes[SCALAR_BYTES_MAX] = {0};
    for (int i = 0; i < entry->rank; i++) n = n && entry->dim[i] == 1;
    if (!n || entry->bytes > sizeof bytes) {
        alpha_fail(a, entry, SHAPE, "is not a scalar", e);
        error_found(e, "%llu bytes", (unsigned long long)entry->bytes);
        return error_expected(e, "one number");
    }
    if (source_read(&a->index.sources[0], bytes, entry->bytes, entry->offset, e) != OK) return e->code;
    if (!scalar_value(entry, bytes, value)) {
        alpha_fail(a, entry, UNSUPPORTED, "has an unsupported type", e);
        error_found(e, "%s", index_type_name(entry));
        return error_expected(e, "F32, F16, BF16, F64, I32 or I64");
    }
    if (isfinite((float)*value)) return OK;
    alpha_fail(a, entry, META, "is not finite in f32", e);
    return error_found(e, "%g", *value);
}

static int compare_key(const void *key, const void *value) {
    return strcmp(key, ((const struct config_value *)value)->key);
}

/* Binary search in peft's configuration for a key of three parts: the first `part` bytes of the module's
 * name, `key`, and `end`. */
static const struct config_value *peft_find(const struct config *peft, int part, const char *name,
                                            const char *key, const char *end) {
    char whole[2 * LOADER_NAME_MAX];
    snprintf(whole, sizeof whole, "%.*s%s%s", part, name, key, end);
    if (!peft->n_values) return NULL;
    return bsearch(whole, peft->values, (size_t)peft->n_values, sizeof *peft->values, compare_key);
}

/* Length of the component prefix ("transformer." of "transformer.blocks.0.to_q") that a module's name shares
 * with keys of peft's configuration. 0: the configuration does not use the prefix. */
static int peft_part(const struct config *peft, const char *name) {
    const char *dot = strchr(name, '.');
    int n = dot ? (int)(dot - name) + 1 : 0;
    return peft_find(peft, n, name, "lora_alpha", "") ? n : 0;
}

/* Finds a module's alpha in alpha_pattern of peft's configuration. A pattern is the module's whole name or
 * the last parts of the name. */
static const struct config_value *peft_pattern(const struct config *peft, int part, const char *name) {
    const struct config_value *value = NULL;
    for (const char *at = name + part; at && !value; at = strchr(at, '.')) {
        at += *at == '.';
        value = peft_find(peft, part, name, "alpha_pattern.", at);
    }
    return value;
}

/* Refuses alpha patterns with regular expressions; diffusers and trainers write plain names. */
static enum status check_patterns(const struct config *config, struct error *e) {
    for (int i = 0; i < config->n_values; i++) {
        const char *at = strstr(config->values[i].key, "alpha_pattern.");
        if (!at || !strpbrk(at, "*+?[](){}|^$\\")) continue;
        return error_set(e, UNSUPPORTED,
                         "the adapter's alpha_pattern is a regular expression" WHERE "%s" FOUND "%s" EXPECTED
                         "plain names of modules",
                         config->path, at);
    }
    return OK;
}

/* Reads a module's alpha from peft's configuration. Without the configuration alpha is the rank, so that the
 * scale is 1. */
static enum status peft_alpha(const struct config *peft, struct adapter_module *m, struct error *e) {
    char name[LOADER_NAME_MAX + 1];
    snprintf(name, sizeof name, "%.*s", m->name_bytes, m->name);
    int part = peft_part(peft, name);
    const struct config_value *alpha = peft_pattern(peft, part, name);
    if (!alpha) alpha = peft_find(peft, part, name, "lora_alpha", "");
    const struct config_value *by_root = peft_find(peft, part, name, "use_rslora", "");
    if (!alpha || alpha->kind == CONFIG_NULL) return OK;
    if (alpha->kind != CONFIG_NUMBER || !isfinite((float)alpha->number)) {
        return error_set(e, META, "the adapter's configuration value '%s' is not a finite number" WHERE "%s",
                         alpha->key, peft->path);
    }
    double divisor = by_root && by_root->number != 0 ? sqrt((double)m->rank) : (double)m->rank;
    m->alpha = (float)alpha->number;
    m->scale = (float)(alpha->number / divisor);
    return OK;
}

char *adapter_config_path(struct sys *sys, const char *path, struct error *e) {
    static const char name[] = "adapter_model.safetensors";
    size_t n = strlen(path), tail = sizeof name - 1;
    if (n < tail || strcmp(path + n - tail, name) != 0 || (n > tail && path[n - tail - 1] != '/'))
        return NULL;
    char *folder = path_folder(sys, path, e);
    char *config = folder ? path_existing(sys, folder, "adapter_config.json", e) : NULL;
    sys->release(sys, folder);
    return config;
}

static enum status read_peft_file(const struct adapter *a, struct config *config, struct error *e) {
    char *path = adapter_config_path(a->sys, a->index.sources[0].path, e);
    if (path) config_read(a->sys, path, config, e);
    a->sys->release(a->sys, path);
    return e->code;
}

static enum status read_peft(const struct adapter *a, struct config *config, struct error *e) {
    const char *path = a->index.sources[0].path;
    if (a->index.adapter)
        config_parse(a->sys, path, a->index.adapter, NULL, config, e);
    else
        read_peft_file(a, config, e);
    return e->code == OK ? check_patterns(config, e) : e->code;
}

/* Reads the alpha of one module. The alpha of a LoKr module is ignored if neither of its two matrices is
 * factored: such a module has no rank. */
static enum status read_alpha(const struct adapter *a, const struct config *peft, struct adapter_module *m,
                              struct error *e) {
    const struct index_entry *alpha = m->tensor[ADAPTER_ALPHA], *scale = m->tensor[ADAPTER_SCALE];
    double value = 1;
    m->alpha = NAN;
    m->scale = 1;
    if (alpha && read_scalar(a, alpha, &value, e) != OK) return e->code;
    if (alpha) m->alpha = (float)value;
    if (alpha && m->rank) m->scale = (float)(value / m->rank);
    if (scale && read_scalar(a, scale, &value, e) == OK) m->scale = (float)value;
    if (!alpha && !scale && m->rank) return peft_alpha(peft, m, e);
    return e->code;
}

enum status adapter_read_alphas(struct adapter *a, struct error *e) {
    struct config peft = {0};
    if (read_peft(a, &peft, e) == OK)
        for (int i = 0; i < a->n_modules && e->code == OK; i++) read_alpha(a, &peft, &a->modules[i], e);
    config_destroy(&peft);
    return e->code;
}
