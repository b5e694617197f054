/* Configures and binds components: implements component.h. */
#include "engine/run/component.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void dimension_choose_reads(struct component *c) {
    if (!c->reads.tokens && !c->reads.pooled) c->reads = c->family->reads;
}

static void dimension_read(struct component *c, const struct dimension *d, struct error *e) {
    const char *name = d->tensor[0];
    bool found = false;
    if (d->blocks[0] || d->having) c->dims[d->place] = 0;
    for (int i = 0; i < DIMENSION_NAMES_MAX && d->blocks[i]; i++) {
        int n = index_last_block(&c->index, d->blocks[i]) + 1;
        if (n > c->dims[d->place]) c->dims[d->place] = n;
    }
    for (int i = 0; i < FAMILY_BLOCKS_MAX && d->having; i++)
        c->dims[d->place] += component_has_block(c, d->having, i);
    if (!name) return;
    for (int i = 0; i < DIMENSION_NAMES_MAX && d->tensor[i] && !found; i++) {
        found = index_find(&c->index, d->tensor[i]);
        if (found) name = d->tensor[i];
    }
    c->dims[d->place] = d->rank ? component_dim(c, name, d->rank, d->axis, e) : found;
}

/* base: the structure that holds the setting: the family's settings, or a struct latent_format. */
static void setting_put(void *base, const struct setting *s, double value) {
    unsigned char *at = (unsigned char *)base + s->offset;
    int whole = (int)value;
    float narrow = (float)value;
    switch (s->type) {
    case SETTING_INT:
    case SETTING_WORD:
    case SETTING_BOOL:
        memcpy(at, &whole, sizeof whole);
        break;
    case SETTING_FLOAT:
        memcpy(at, &narrow, sizeof narrow);
        break;
    case SETTING_DOUBLE:
        memcpy(at, &value, sizeof value);
        break;
    }
}

static void setting_read_word(const struct setting *s, const struct config *config, int *word,
                              struct error *e) {
    const char *found = config_string(config, s->keys[0], NULL);
    char list[96] = "";
    size_t n = 0;
    if (!found) {
        config_expect(config, s->keys[0], s->keys[1], e); /* error if the value is not a string */
        return;
    }
    for (int i = 1; i < SETTING_KEYS_MAX && s->keys[i] && n < sizeof list; i++) {
        n += (size_t)snprintf(list + n, sizeof list - n, "%s\"%s\"", n ? " or " : "", s->keys[i]);
        if (strcmp(s->keys[i], found) != 0) continue;
        *word = i - 1;
        return;
    }
    error_set(e, UNSUPPORTED,
              "unsupported value of '%s' in the configuration" WHERE "%s" FOUND "\"%s\"" EXPECTED "%s",
              s->keys[0], config->path, found, list);
}

static double setting_published(const struct component *c, const struct setting *s) {
    for (const struct published_setting *p = c->published; p && p->key; p++)
        if (!strcmp(p->key, s->keys[0])) return p->value;
    return s->published;
}

/* Sets a list setting to its first published values, as many as its length dim requires. */
static void setting_publish_list(const struct component *c, void *base, const struct setting_list *s) {
    int n = c->dims[s->count] < s->n_published ? c->dims[s->count] : s->n_published;
    if (n) memcpy((unsigned char *)base + s->offset, s->published, (size_t)n * sizeof *s->published);
}

static void setting_mismatch(const struct component *c, const struct setting_list *s,
                             const struct config *config, int declared, struct error *e) {
    int n = c->dims[s->count];
    if (n > s->capacity) {
        error_set(e, SHAPE, "configuration list '%s' is too long" WHERE "%s" FOUND "%d" EXPECTED "at most %d",
                  s->key, c->index.sources[0].path, n, s->capacity);
        return;
    }
    error_set(e, META, "configuration list '%s' has the wrong length" WHERE "%s", s->key,
              config->path ? config->path : c->index.sources[0].path);
    error_found(e, declared > n ? "more than %d" : "%d", declared > n ? n : declared);
    error_expected(e, "%d", n);
}

/* Reads a list setting of exactly the required length, else META. If the configuration lacks the list, the
 * published values are used, provided that their number matches. */
static void setting_read_list(const struct component *c, void *base, const struct setting_list *s,
                              const struct config *config, struct error *e) {
    float *list = (float *)(void *)((unsigned char *)base + s->offset);
    const struct config_value *number = config_find(config, s->key);
    int n = c->dims[s->count], declared = config_list_length(config, s->key);
    char key[64];
    bool none = !declared && (!number || number->kind == CONFIG_NULL);
    bool published = none && n == s->n_published;
    bool fits = declared == n || published || (none && s->derived);
    if (n > s->capacity || !fits) setting_mismatch(c, s, config, declared, e);
    if (published) setting_publish_list(c, base, s);
    for (int i = 0; i < declared && e->code == OK; i++) {
        double value = 0;
        snprintf(key, sizeof key, "%s.%d", s->key, i);
        config_float(config, key, s->least, s->most, &value, e);
        list[i] = (float)value;
    }
}

static void setting_read_number(const struct setting *s, const char *key, const struct config *config,
                                double *value, struct error *e) {
    int whole = (int)*value;
    bool is = whole;
    if (s->type == SETTING_BOOL) {
        config_bool(config, key, &is, e);
        *value = is;
    } else if (s->type == SETTING_INT) {
        config_int(config, key, (int)s->least, (int)s->most, &whole, e);
        *value = whole;
    } else {
        config_float(config, key, s->least, s->most, value, e);
    }
}

/* True if a configuration key may hold an object instead of a value, because an earlier key of the setting is
 * nested in that object: "size.shortest_edge" in "size". */
static bool setting_may_be_object(const struct setting *s, int i_key) {
    size_t n = strlen(s->keys[i_key]);
    for (int i = 0; i < i_key; i++)
        if (!strncmp(s->keys[i], s->keys[i_key], n) && s->keys[i][n] == '.') return true;
    return false;
}

static void setting_read(const struct component *c, void *base, const struct setting *s,
                         const struct config *config, struct error *e) {
    double value = setting_published(c, s);
    int word = (int)value;
    if (s->type == SETTING_WORD) setting_read_word(s, config, &word, e);
    for (int i = 0; i < SETTING_KEYS_MAX && s->keys[i] && s->type != SETTING_WORD; i++)
        if (config_find(config, s->keys[i]) || !setting_may_be_object(s, i))
            setting_read_number(s, s->keys[i], config, &value, e);
    setting_put(base, s, s->type == SETTING_WORD ? word : value);
}

/* META if the configuration's number of blocks at `key` differs from the number in the files. */
static enum status dimension_check_count(const struct component *c, const struct config *config,
                                         const char *key, int found, struct error *e) {
    int declared = found;
    if (config_int(config, key, found ? 1 : 0, FAMILY_BLOCKS_MAX, &declared, e) != OK || declared == found)
        return e->code;
    return error_set(e, META,
                     "configuration value '%s' differs from the number of blocks in the weights" WHERE
                     "%s" FOUND "%d" EXPECTED "%d, as in %s",
                     key, config->path ? config->path : c->index.sources[0].path, declared, found,
                     c->index.sources[0].path);
}

/* Only a block count in the configuration reveals that a file lacks its last blocks. GGUF metadata of a text
 * encoder has it at ARCHITECTURE.block_count. */
static enum status dimension_check_blocks(const struct component *c, const struct dimension *d,
                                          const struct config *config, struct error *e) {
    char key[128];
    int found = c->dims[d->place];
    if (!d->blocks[0] || !d->key || dimension_check_count(c, config, d->key, found, e) != OK ||
        c->family->kind != FAMILY_TEXT)
        return e->code;
    snprintf(key, sizeof key, "%.64s.block_count", config_string(config, "general.architecture", ""));
    return dimension_check_count(c, config, key, found, e);
}

/* META if the configuration's value at the row's key differs from the tensors' value. */
static enum status dimension_check_key(const struct component *c, const struct dimension *d,
                                       const struct config *config, struct error *e) {
    const char *declared, *path = config->path ? config->path : c->index.sources[0].path;
    int found = c->dims[d->place], number = found;
    if (!d->words) {
        if (config_int(config, d->key, 0, INT32_MAX, &number, e) != OK || number == found) return e->code;
        return error_set(e, META, "'%s' contradicts the %s's tensors" WHERE "%s" FOUND "%d" EXPECTED "%d",
                         d->key, c->family->display_name, path, number, found);
    }
    const char *word = d->words[found];
    declared = config_string(config, d->key, NULL);
    if (!config_find(config, d->key) || (declared && word ? !strcmp(declared, word) : declared == word))
        return OK;
    error_set(e, META, "'%s' contradicts the %s's tensors" WHERE "%s", d->key, c->family->display_name, path);
    error_found(e, declared ? "\"%s\"" : "null", declared);
    if (word) return error_expected(e, "\"%s\"", word);
    return error_expected(e, d->having ? "null, or the tensors '%s'" : "null", d->having ? *d->having : "");
}

/* ---- scaling of latents ---- */

/* latent_format.scale holds standard deviations after a list was read: inverts them. */
static void latent_invert_deviations(struct component *c, const struct setting_list *deviations) {
    c->latent_format.n = c->dims[deviations->count];
    for (int i = 0; i < c->latent_format.n; i++) c->latent_format.scale[i] = 1 / c->latent_format.scale[i];
}

static void latent_read_config(struct component *c, const struct config *config, struct error *e) {
    const struct latent_norm *norm = &c->family->config.latent_norm;
    c->latent_format = (struct latent_format){.n = 1, .scale = {1}};
    for (int i = 0; i < norm->n_settings; i++)
        setting_read(c, &c->latent_format, &norm->settings[i], config, e);
    for (int i = 0; i < LATENT_LISTS && norm->lists; i++)
        setting_read_list(c, &c->latent_format, &norm->lists[i], config, e);
    if (norm->lists && e->code == OK) latent_invert_deviations(c, &norm->lists[1]);
}

/* Sets the published scaling of latents. A family whose scaling is in tensors gets scale 1 and shift 0. */
static void latent_publish(struct component *c) {
    const struct latent_norm *norm = &c->family->config.latent_norm;
    c->latent_format = (struct latent_format){.n = 1, .scale = {1}};
    for (int i = 0; i < norm->n_settings; i++)
        setting_put(&c->latent_format, &norm->settings[i], setting_published(c, &norm->settings[i]));
    for (int i = 0; i < LATENT_LISTS && norm->lists; i++)
        setting_publish_list(c, &c->latent_format, &norm->lists[i]);
    if (norm->lists) latent_invert_deviations(c, &norm->lists[1]);
}

/* Reads weight i of the block of latent_norm, a vector [latent_channels]. MISSING; SHAPE; UNSUPPORTED: the
 * element type. */
static enum status latent_read_vector(const struct component *c, int i, float *to, struct error *e) {
    const struct block_ref ref = {.kind = c->family->config.latent_norm.tensors};
    const struct weight_spec *spec = &ref.kind->weights[i];
    const struct index_entry *entry = block_find_weight(&ref, spec, &c->index);
    char name[2 * BLOCK_NAME_MAX];
    if (entry && entry->rank == 1 && entry->dim[0] == c->latent_channels &&
        entry->dim[0] <= LATENT_VALUES_MAX)
        return source_read_values(&c->index.sources[entry->source], entry->offset, entry->dtype, 0,
                                  entry->dim[0], to, e);
    return error_set(e, entry ? SHAPE : MISSING, "tensor '%s' %s" WHERE "%s" EXPECTED "%d latent channels",
                     block_missing_name(&ref, spec, &c->index, name),
                     entry ? "has the wrong shape" : "is missing", c->index.sources[0].path,
                     c->latent_channels);
}

/* Reads mean and variance of each latent channel from tensors. NONFINITE: a channel has no finite scale. */
static enum status latent_read_tensors(struct component *c, const struct config *config, struct error *e) {
    const struct latent_norm *norm = &c->family->config.latent_norm;
    struct latent_format *format = &c->latent_format;
    double eps = norm->eps;
    const struct byte_source *source = c->index.sources;
    if (norm->tensors && source->file < 0 && !source->memory)
        return OK; /* a model planned without files has no values of tensors */
    if (!norm->tensors || (norm->eps_key && config_float(config, norm->eps_key, 0, 1, &eps, e) != OK) ||
        latent_read_vector(c, 0, format->shift, e) != OK || latent_read_vector(c, 1, format->scale, e) != OK)
        return e->code;
    format->n = c->latent_channels;
    for (int i = 0; i < format->n; i++) {
        const char *form = norm->deviations ? "standard deviation" : "variance";
        double mean = (double)format->shift[i], variance = (double)format->scale[i];
        format->scale[i] = (float)(1 / (norm->deviations ? variance : sqrt(variance + eps)));
        if (isfinite(mean) && variance >= 0 && isfinite(format->scale[i]) && format->scale[i] > 0) continue;
        return error_set(e, NONFINITE,
                         "unusable normalisation of latent channel %d" WHERE "%s" FOUND
                         "mean %g, %s %g" EXPECTED "finite numbers, a positive %s",
                         i, c->index.sources[0].path, mean, form, variance, form);
    }
    return OK;
}

enum status component_configure(struct component *c, const struct config *config, struct error *e) {
    static const struct config nothing;
    const struct family *family = c->family;
    dimension_choose_reads(c);
    if (family->files.refuse && family->files.refuse(c, e) != OK) return e->code;
    for (int i = 0; i < family->config.n_dimensions; i++) dimension_read(c, &family->config.dimensions[i], e);
    for (int i = 0; i < family->config.n_dimensions && e->code == OK; i++)
        dimension_check_blocks(c, &family->config.dimensions[i], config, e);
    if (e->code != OK) return e->code;
    for (const struct expectation *x = family->config.expects; x && x->key; x++)
        x->value ? config_expect(config, x->key, x->value, e) : config_refuse(config, x->key, e);
    for (int i = 0; i < family->config.n_settings; i++)
        setting_read(c, c->settings, &family->config.settings[i], config, e);
    for (int i = 0; i < family->config.n_lists; i++)
        setting_read_list(c, c->settings, &family->config.lists[i], config, e);
    latent_read_config(c, config, e);
    for (int i = 0; i < family->config.n_picture_settings; i++)
        setting_read(c, c->settings, &family->config.picture_settings[i],
                     config->pictures ? config->pictures : &nothing, e);
    if (e->code != OK || (family->config.configure && family->config.configure(c, config, e) != OK))
        return e->code;
    if (family->config.derive) family->config.derive(c);
    latent_read_tensors(c, config, e);
    for (int i = 0; i < family->config.n_dimensions && e->code == OK; i++)
        if (family->config.dimensions[i].checked)
            dimension_check_key(c, &family->config.dimensions[i], config, e);
    return e->code;
}

void component_derive(struct component *c, const int *chosen) {
    const struct family *family = c->family;
    dimension_choose_reads(c);
    for (int i = 0; i < family->config.n_dimensions; i++) {
        const struct dimension *d = &family->config.dimensions[i];
        if (d->name) c->dims[d->place] = chosen ? chosen[i] : d->published;
    }
    for (int i = 0; i < family->config.n_settings; i++)
        setting_put(c->settings, &family->config.settings[i],
                    setting_published(c, &family->config.settings[i]));
    for (int i = 0; i < family->config.n_picture_settings; i++)
        setting_put(c->settings, &family->config.picture_settings[i],
                    setting_published(c, &family->config.picture_settings[i]));
    for (int i = 0; i < family->config.n_lists; i++)
        setting_publish_list(c, c->settings, &family->config.lists[i]);
    latent_publish(c);
    if (family->config.derive_dims) family->config.derive_dims(c);
    if (family->config.derive) family->config.derive(c);
}

struct config_text {
    char *out;
    size_t bytes;
    int n;
    const char *last; /* last key written to config.json; the objects and arrays around this key are still
                         open; NULL: none */
};

static void config_text_add(struct config_text *text, const char *format, ...) {
    va_list arguments;
    bool fits = (size_t)text->n < text->bytes;
    va_start(arguments, format);
    text->n += vsnprintf(fits ? text->out + text->n : NULL, fits ? text->bytes - (size_t)text->n : 0, format,
                         arguments);
    va_end(arguments);
}

/* Length of the common prefix of two dotted configuration keys, up to and including the last shared dot. */
static size_t config_text_shared(const char *one, const char *other) {
    size_t shared = 0;
    for (size_t i = 0; one && other && one[i] && one[i] == other[i]; i++)
        if (one[i] == '.') shared = i + 1;
    return shared;
}

/* True if a part of a dotted configuration key is an array index. */
static bool config_text_is_place(const char *part) {
    return *part >= '0' && *part <= '9';
}

/* Closes config.json's objects and arrays that the next key does not share, innermost first. n_shared: length
 * of the shared prefix in bytes. */
static void config_text_close(struct config_text *text, size_t n_shared) {
    for (size_t i = text->last ? strlen(text->last) : 0; i-- > n_shared;)
        if (text->last[i] == '.') config_text_add(text, config_text_is_place(text->last + i + 1) ? "]" : "}");
}

/* Writes a key to config.json with an object or array per dot: "axes.0" opens one, "axes.1" continues it. */
static void config_text_key(struct config_text *text, const char *key) {
    size_t shared = config_text_shared(text->last, key);
    const char *between = ", ";
    config_text_close(text, shared);
    text->last = key;
    for (const char *part = key ? key + shared : NULL, *dot; part; part = dot ? dot + 1 : NULL) {
        dot = strchr(part, '.');
        config_text_add(text, "%s", between);
        if (!config_text_is_place(part))
            config_text_add(text, "\"%.*s\": ", (int)(dot ? (size_t)(dot - part) : strlen(part)), part);
        if (dot) config_text_add(text, config_text_is_place(dot + 1) ? "[" : "{");
        between = "";
    }
}

static void config_text_dimension(struct config_text *text, const struct dimension *d, int32_t value) {
    const char *word = d->words ? d->words[value] : NULL;
    bool absent = d->words ? !word : d->form == FORM_ABSENT_IF_0 && !value;
    if (!d->key || absent) return;
    config_text_key(text, d->key);
    if (word)
        config_text_add(text, "\"%s\"", word);
    else if (d->form == FORM_BOOL)
        config_text_add(text, value ? "true" : "false");
    else if (d->form == FORM_NULL_IF_0 && !value)
        config_text_add(text, "null");
    else
        config_text_add(text, "%d", value);
}

/* Writes a number with as few digits as give the same number when read. */
static void config_text_number(struct config_text *text, double value, bool narrow) {
    char digits[32] = "";
    for (int n = 6; n <= 17; n++) {
        snprintf(digits, sizeof digits, "%.*g", n, value);
        double again = strtod(digits, NULL);
        if (narrow ? (float)again == (float)value : again == value) break;
    }
    config_text_add(text, "%s", digits);
}

static void config_text_list(struct config_text *text, const struct component *c,
                             const struct setting_list *s, const float *values, int n_values) {
    if (!c->dims[s->count]) return;
    config_text_key(text, s->key);
    for (int i = 0; i < c->dims[s->count]; i++) {
        config_text_add(text, i ? ", " : "[");
        config_text_number(text, i < n_values ? (double)values[i] : 0, true);
    }
    config_text_add(text, "]");
}

static void config_text_setting(struct config_text *text, const void *base, const struct setting *s) {
    const unsigned char *at = (const unsigned char *)base + s->offset;
    double value = 0;
    float narrow;
    int whole;
    memcpy(&whole, at, sizeof whole);
    memcpy(&narrow, at, sizeof narrow);
    if (s->type == SETTING_DOUBLE) memcpy(&value, at, sizeof value);
    if (s->type == SETTING_INT && (whole < s->least || whole > s->most)) return;
    config_text_key(text, s->keys[0]);
    if (s->type == SETTING_WORD) {
        config_text_add(text, "\"%s\"", s->keys[1 + whole]);
        return;
    }
    if (s->type == SETTING_BOOL) {
        config_text_add(text, whole ? "true" : "false");
        return;
    }
    if (s->type == SETTING_INT)
        config_text_add(text, "%d", whole);
    else
        config_text_number(text, s->type == SETTING_FLOAT ? (double)narrow : value, s->type == SETTING_FLOAT);
}

static void config_text_component(struct config_text *text, const struct component *c) {
    const struct family *family = c->family;
    const struct latent_norm *norm = &family->config.latent_norm;
    for (int i = 0; i < family->config.n_dimensions; i++)
        config_text_dimension(text, &family->config.dimensions[i],
                              c->dims[family->config.dimensions[i].place]);
    for (int i = 0; i < family->config.n_settings; i++)
        config_text_setting(text, c->settings, &family->config.settings[i]);
    for (int i = 0; i < family->config.n_lists; i++) {
        const struct setting_list *list = &family->config.lists[i];
        config_text_list(text, c, list, (const float *)(const void *)(c->settings + list->offset),
                         list->capacity);
    }
    for (int i = 0; i < norm->n_settings; i++)
        config_text_setting(text, &c->latent_format, &norm->settings[i]);
    for (int i = 0; i < LATENT_LISTS && norm->lists; i++)
        config_text_list(text, c, &norm->lists[i], norm->lists[i].published, norm->lists[i].n_published);
}

int component_write_config(const struct component *const *components, int n, char *out, size_t out_bytes) {
    const struct family *first = components[0]->family;
    struct config_text text = {.out = out, .bytes = out_bytes};
    config_text_add(&text, "{\"%s\": \"%s\"", first->files.config_key, component_config_value(components[0]));
    for (int i = 0; i < n; i++) {
        const char *own = components[i]->config_rest, *rest = own ? own : components[i]->family->config.rest;
        if (rest) config_text_add(&text, ", %s", rest);
    }
    for (int i = 0; i < n; i++) config_text_component(&text, components[i]);
    config_text_key(&text, NULL);
    config_text_add(&text, "}\n");
    return text.n;
}

int component_write_pictures(const struct component *c, char *out, size_t out_bytes) {
    const struct family *family = c->family;
    struct config_text text = {.out = out, .bytes = out_bytes};
    config_text_add(&text, "{%s", family->config.pictures_rest);
    for (int i = 0; i < family->config.n_picture_settings; i++)
        config_text_setting(&text, c->settings, &family->config.picture_settings[i]);
    config_text_key(&text, NULL);
    config_text_add(&text, "}\n");
    return text.n;
}

/* ---- binding ---- */

static enum status check_leftovers(struct component *c, struct error *e) {
    for (int i = 0; i < c->index.n_entries; i++) {
        struct index_entry *entry = &c->index.entries[i];
        if (entry->used || !index_contains(&c->index, entry)) continue;
        if (family_ignores(c->family, index_name(&c->index, entry))) continue;
        c->n_unknown++;
        if (!strstr(entry->name, "scale")) continue;
        return error_set(
            e, UNUSED,
            "tensor '%s' looks like a scale of quantised weights in an unsupported format; ignoring it "
            "would change the weights" WHERE "%s",
            entry->name, c->index.sources[entry->source].path);
    }
    return OK;
}

static enum status bind_ref(struct component *c, const struct block_ref *ref, struct error *e) {
    for (int i = 0; i < ref->kind->n_weights && ref->unused; i++) {
        struct index_entry *entry = block_find_weight(ref, &ref->kind->weights[i], &c->index);
        if (entry) entry->used = true;
    }
    if (ref->unused) return OK;
    int32_t dims[FAMILY_DIMS_MAX];
    component_block_dims(c, ref, dims);
    if (ref->kind->embedding_table && c->n_tables == TABLES_MAX)
        return error_set(e, UNSUPPORTED, "family %s has more than %d embedding tables", c->family->name,
                         TABLES_MAX);
    struct block *block = ref->kind->embedding_table ? &c->tables[c->n_tables++] : &c->blocks[c->n_blocks++];
    return block_bind(c->sys, ref, &c->index, dims, block, e);
}

enum status component_bind(struct component *c, const struct config *config, struct error *e) {
    struct sys *sys = c->sys;
    if (component_configure(c, config, e) != OK) return e->code;
    struct block_ref *refs = sys->alloc(sys, LINE_HOST, FAMILY_BLOCKS_MAX * sizeof *refs);
    if (!refs) return error_set(e, MEMORY, "no memory for a list of blocks");
    int n = c->family->blocks.list(c, refs);
    c->blocks = sys->alloc(sys, LINE_HOST, (size_t)n * sizeof *c->blocks);
    if (!c->blocks) error_set(e, MEMORY, "no memory for %d blocks", n);
    for (int i = 0; i < n && e->code == OK; i++) bind_ref(c, &refs[i], e);
    sys->release(sys, refs);
    return e->code == OK ? check_leftovers(c, e) : e->code;
}

int component_last_perturbable(const struct component *c) {
    int last = -1;
    for (int i = 0; i < c->n_blocks; i++)
        if (c->blocks[i].kind->perturbable && c->blocks[i].number > last) last = c->blocks[i].number;
    return last;
}
