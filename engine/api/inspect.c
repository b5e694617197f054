/* What is in a model's files, and the ids of a text: the JSON of `inspect` and `tokenize`. */
#include "engine/api/model.h"
#include "engine/api/prompt.h"
#include "loaders/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static json_t *tensor_json(const struct index_entry *entry) {
    json_t *shape = json_array();
    for (int i = 0; i < entry->rank; i++) json_array_append_new(shape, json_integer(entry->dim[i]));
    return json_pack("{s:s, s:s, s:o, s:I, s:b}", "name", entry->name, "type", dtype_name(entry->dtype),
                     "shape", shape, "bytes", (json_int_t)entry->bytes, "used", (int)entry->used);
}

static json_t *config_json(const struct config *config) {
    json_t *json = json_object();
    for (int i = 0; i < config->n_values; i++) {
        const struct config_value *v = &config->values[i];
        json_t *value = v->kind == CONFIG_STRING ? json_string(v->string)
                        : v->kind == CONFIG_BOOL ? json_boolean(v->number != 0)
                        : v->kind == CONFIG_NULL ? json_null()
                        : v->integer             ? json_integer((json_int_t)v->number)
                                                 : json_real(v->number);
        json_object_set_new(json, v->key, value);
    }
    return json;
}

static json_t *types_json(const struct tensor_index *index) {
    json_t *types = json_object();
    for (int i = 0; i < index->n_entries; i++) {
        if (!index_has(index, &index->entries[i])) continue;
        const char *name = dtype_name(index->entries[i].dtype);
        json_int_t bytes = json_integer_value(json_object_get(types, name));
        json_object_set_new(types, name, json_integer(bytes + (json_int_t)index->entries[i].bytes));
    }
    return types;
}

static json_t *component_json(const struct component *c, const struct config *config, const char *name,
                              enum config_origin origin, bool tensors) {
    json_t *files = json_array(), *list = json_array();
    json_int_t bytes = 0;
    int n = 0;
    for (int i = 0; i < c->index.n_sources; i++)
        json_array_append_new(files, json_string_of(c->index.sources[i].path));
    for (int i = 0; i < c->index.n_entries; i++) {
        if (!index_has(&c->index, &c->index.entries[i])) continue;
        n++;
        bytes += (json_int_t)c->index.entries[i].bytes;
        if (tensors) json_array_append_new(list, tensor_json(&c->index.entries[i]));
    }
    json_t *json = json_pack("{s:s, s:s?, s:o, s:i, s:I, s:o, s:o, s:s}", "name", name, "family",
                             c->family ? c->family->name : NULL, "files", files, "tensors", n, "bytes", bytes,
                             "types", types_json(&c->index), "config", config_json(config), "config_from",
                             config_origin_word[origin]);
    if (tensors)
        json_object_set_new(json, "list", list);
    else
        json_decref(list);
    return json;
}

static void list_leftovers(const struct component *c, json_t *unknown) {
    for (int i = 0; i < c->index.n_entries; i++) {
        const struct index_entry *entry = &c->index.entries[i];
        bool known = entry->used || !index_has(&c->index, entry);
        for (const char *const *p = c->family ? c->family->ignorable : NULL; p && *p && !known; p++)
            known = !strncmp(index_name(&c->index, entry), *p, strlen(*p));
        if (!known) json_array_append_new(unknown, json_string(entry->name));
    }
}

/* Where inspection puts what it finds. */
struct findings {
    bool tensors;
    json_t *components, *unknown, *missing;
};

static void add_line(json_t *list, const struct error *e) {
    char line[1024];
    json_array_append_new(list, json_string_of(error_line(e, line, sizeof line)));
}

/* A component that does not bind is still shown; what is wrong with it is listed as missing. */
static enum status inspect_component(struct component *c, const char *path, const char *name,
                                     struct findings *to, struct error *e) {
    struct config config = {0};
    enum config_origin origin = CONFIG_PUBLISHED;
    struct error misfit = {0};
    c->family = parts_family(&c->index);
    index_check_quantised(&c->index, &misfit);
    if (c->family && configuration_read(c->sys, path, &c->index, c->family, &config, &origin, e) == OK)
        component_bind(c, &config, &misfit);
    if (e->code == OK) {
        if (misfit.code != OK) add_line(to->missing, &misfit);
        list_leftovers(c, to->unknown);
        json_array_append_new(to->components, component_json(c, &config, name, origin, to->tensors));
    }
    config_destroy(&config);
    return e->code;
}

/* Components stay open until all are shown: they may share one index. */
static enum status inspect_parts(struct sys *sys, struct model_parts *parts, struct findings *to,
                                 struct error *e) {
    struct component c[N_ROLES + 1] = {0};
    for (int i = 0; i < N_ROLES && e->code == OK; i++) {
        c[i] = (struct component){.sys = sys, .index = parts->index[i]};
        parts->index[i] = (struct tensor_index){0};
        if (parts->path[i])
            inspect_component(&c[i], parts->path[i], role_folder[i], to, e);
        else if (parts->wanted[i])
            json_array_append_new(to->missing, json_string(role_folder[i]));
    }
    if (parts->unknown.n_sources && e->code == OK) {
        c[N_ROLES] = (struct component){.sys = sys, .index = parts->unknown};
        parts->unknown = (struct tensor_index){0};
        inspect_component(&c[N_ROLES], "", "unknown", to, e);
    }
    for (int i = 0; i <= N_ROLES; i++) component_destroy(&c[i]);
    if (parts->failure.code != OK) add_line(to->missing, &parts->failure);
    if (!parts->tokenizer) json_array_append_new(to->missing, json_string("tokenizer"));
    return e->code;
}

/* The name that model_index.json gives, or null; what is wrong with the file is listed as missing, and so is
 * a pipeline that this program cannot run: its parts are shown all the same. */
static json_t *pipeline_json(struct sys *sys, const char *path, json_t *missing, struct error *e) {
    struct config config = {0};
    struct error misfit = {0};
    json_t *name = NULL;
    if (!path || e->code != OK) return NULL;
    if (config_read(sys, path, &config, &misfit) == OK) {
        name = json_string(config_string(&config, "_class_name", ""));
        config_expect(&config, "_class_name", recipes[0]->pipelines[0], &misfit);
    }
    if (misfit.code != OK) add_line(missing, &misfit);
    config_destroy(&config);
    return name;
}

static enum status hand_out(json_t *json, unsigned losses, char **text, struct error *e) {
    *text = NULL;
    if (e->code != OK) {
        json_decref(json);
        return e->code;
    }
    *text = json_hand_out(json, JSON_INDENT(1), losses);
    return *text ? OK : error_set(e, MEMORY, "no memory for the text");
}

int sluice_inspect(const struct sluice_model_options *options, bool tensors, char **json,
                   struct sluice_error *error) {
    struct error e = {0};
    struct sys sys;
    struct sluice_model_options o;
    struct model_parts parts;
    sys_init_machine(&sys);
    copy_sized(&o, sizeof o, options);
    *json = NULL;
    unsigned losses = json_losses();
    json_t *pipeline = NULL;
    struct findings to = {tensors, json_array(), json_array(), json_array()};
    if (parts_locate(&sys, &o, &parts, &e) == OK) {
        if (parts_open(&sys, &o, &parts, &e) == OK) inspect_parts(&sys, &parts, &to, &e);
        if (e.code == OK && !json_array_size(to.components)) {
            error_set(&e, MISSING, "there is no model here");
            error_where(&e, "%s", o.model ? o.model : "the given parts");
            error_expected(&e, "transformer, text encoder or autoencoder, in a folder or a file");
            if (parts.failure.code != OK) e = parts.failure;
        }
        pipeline = pipeline_json(&sys, parts.pipeline, to.missing, &e);
    }
    const char *schedule = parts.scheduler ? "scheduler_config.json" : "default";
    json_t *all =
        json_pack("{s:i, s:o?, s:o, s:o, s:o, s:s}", "version", 1, "pipeline", pipeline, "components",
                  to.components, "unknown", to.unknown, "missing", to.missing, "schedule", schedule);
    parts_destroy(&sys, &parts);
    hand_out(all, losses, json, &e);
    return publish_error(&e, error);
}

/* ---- tokens ---- */

static json_t *ids_json(const int32_t *ids, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static enum status tokenize_plain(struct sys *sys, const char *path, const char *text, size_t bytes,
                                  char **json, struct error *e) {
    struct tokenizer *tokenizer;
    int32_t *ids = NULL;
    int n = 0;
    unsigned losses = json_losses();
    if (tokenizer_open(sys, path, &tokenizer, e) != OK) return e->code;
    if (tokenizer_encode(tokenizer, text, bytes, &ids, &n, e) == OK)
        hand_out(ids_json(ids, n), losses, json, e);
    sys->release(sys, ids);
    tokenizer_close(tokenizer);
    return e->code;
}

static enum status tokenize_seen(struct sys *sys, const char *path, const char *text, size_t bytes,
                                 char **json, struct error *e) {
    struct tokenizer *tokenizer;
    struct prompt_tokens tokens = {0};
    unsigned losses = json_losses();
    if (tokenizer_open(sys, path, &tokenizer, e) != OK) return e->code;
    if (prompt_check(&recipes[0]->text[0], tokenizer, e) == OK &&
        prompt_encode(sys, &recipes[0]->text[0], tokenizer, text, bytes, &tokens, e) == OK)
        hand_out(json_pack("{s:i, s:[{s:s, s:i, s:b, s:o}]}", "version", 1, "encoders", "name",
                           role_folder[ROLE_TEXT], "tokens", tokens.n_ids, "truncated", (int)tokens.cut,
                           "ids", ids_json(tokens.ids, tokens.n_ids)),
                 losses, json, e);
    sys->release(sys, tokens.ids);
    tokenizer_close(tokenizer);
    return e->code;
}

int sluice_tokenize(const struct sluice_model_options *options, const char *text, size_t text_bytes,
                    char **json, struct sluice_error *error) {
    struct error e = {0};
    struct sys sys;
    struct sluice_model_options o;
    struct model_parts parts;
    sys_init_machine(&sys);
    copy_sized(&o, sizeof o, options);
    *json = NULL;
    if (o.tokenizer && !o.model) {
        tokenize_plain(&sys, o.tokenizer, text, text_bytes, json, &e);
    } else if (parts_locate(&sys, &o, &parts, &e) == OK) {
        if (!parts.tokenizer) parts_open(&sys, &o, &parts, &e);
        if (parts.tokenizer)
            tokenize_seen(&sys, parts.tokenizer, text, text_bytes, json, &e);
        else
            parts_missing_tokenizer(&parts, recipes[0], o.model, &e);
        parts_destroy(&sys, &parts);
    }
    return publish_error(&e, error);
}
