/* What is in a model's files, and the ids of a text: the JSON of `inspect` and `tokenize`. */
#include "engine/api/model.h"
#include "engine/api/prompt.h"
#include "loaders/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *const role_name[N_ROLES] = {"text_encoder", "transformer", "vae"};

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
        const char *name = dtype_name(index->entries[i].dtype);
        json_int_t bytes = json_integer_value(json_object_get(types, name));
        json_object_set_new(types, name, json_integer(bytes + (json_int_t)index->entries[i].bytes));
    }
    return types;
}

static json_t *component_json(const struct component *c, const struct config *config, const char *name,
                              bool tensors) {
    json_t *files = json_array(), *list = json_array();
    json_int_t bytes = 0;
    for (int i = 0; i < c->index.n_sources; i++)
        json_array_append_new(files, json_string_of(c->index.sources[i].path));
    for (int i = 0; i < c->index.n_entries; i++) {
        bytes += (json_int_t)c->index.entries[i].bytes;
        if (tensors) json_array_append_new(list, tensor_json(&c->index.entries[i]));
    }
    json_t *json =
        json_pack("{s:s, s:s?, s:o, s:i, s:I, s:o, s:o}", "name", name, "family",
                  c->family ? c->family->name : NULL, "files", files, "tensors", c->index.n_entries, "bytes",
                  bytes, "types", types_json(&c->index), "config", config_json(config));
    if (tensors)
        json_object_set_new(json, "list", list);
    else
        json_decref(list);
    return json;
}

static const struct family *match_family(const struct tensor_index *index) {
    for (const struct family *const *f = families; *f; f++)
        if ((*f)->probe(index)) return *f;
    return NULL;
}

static void list_leftovers(const struct component *c, json_t *unknown) {
    for (int i = 0; i < c->index.n_entries; i++) {
        const struct index_entry *entry = &c->index.entries[i];
        bool known = entry->used;
        for (const char *const *p = c->family ? c->family->ignorable : NULL; p && *p && !known; p++)
            known = !strncmp(entry->name, *p, strlen(*p));
        if (!known) json_array_append_new(unknown, json_string(entry->name));
    }
}

/* A component that does not bind is still shown; what is wrong with it is listed as missing. */
static enum status inspect_role(struct sys *sys, const char *path, const char *name, bool tensors,
                                json_t *components, json_t *unknown, json_t *missing, struct error *e) {
    struct component c = {.sys = sys};
    struct config config = {0};
    if (component_open_files(sys, path, &c, &config, e) == OK) {
        c.family = match_family(&c.index);
        struct error misfit = {0};
        char line[1024];
        if (c.family && component_bind(&c, &config, &misfit) != OK)
            json_array_append_new(missing, json_string_of(error_line(&misfit, line, sizeof line)));
        list_leftovers(&c, unknown);
        json_array_append_new(components, component_json(&c, &config, name, tensors));
    }
    config_destroy(&config);
    component_destroy(&c);
    return e->code;
}

/* The name that model_index.json gives, or null; what is wrong with the file is listed as missing, and so is
 * a pipeline that this program cannot run: its parts are shown all the same. */
static json_t *pipeline_json(struct sys *sys, const char *path, json_t *missing, struct error *e) {
    struct config config = {0};
    struct error misfit = {0};
    json_t *name = NULL;
    char line[1024];
    if (!path || e->code != OK) return NULL;
    if (config_read(sys, path, &config, &misfit) == OK) {
        name = json_string(config_string(&config, "_class_name", ""));
        config_expect(&config, "_class_name", recipes[0]->pipeline, &misfit);
    }
    if (misfit.code != OK)
        json_array_append_new(missing, json_string_of(error_line(&misfit, line, sizeof line)));
    config_destroy(&config);
    return name;
}

static enum status hand_out(json_t *json, char **text, struct error *e) {
    *text = json && e->code == OK ? json_dumps(json, JSON_INDENT(1)) : NULL;
    json_decref(json);
    if (!*text) error_set(e, MEMORY, "no memory for the text");
    return e->code;
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
    json_t *pipeline = NULL;
    json_t *components = json_array(), *unknown = json_array(), *missing = json_array();
    if (model_find_parts(&sys, &o, &parts, &e) == OK) {
        for (int i = 0; i < N_ROLES && e.code == OK; i++) {
            if (parts.role[i])
                inspect_role(&sys, parts.role[i], role_name[i], tensors, components, unknown, missing, &e);
            else
                json_array_append_new(missing, json_string(role_name[i]));
        }
        if (e.code == OK && !json_array_size(components)) {
            error_set(&e, MISSING, "there is no model here");
            error_where(&e, "%s", o.model ? o.model : "the given parts");
            error_expected(&e, "a folder with transformer, text_encoder or vae");
        }
        if (!parts.tokenizer) json_array_append_new(missing, json_string("tokenizer"));
        pipeline = pipeline_json(&sys, parts.pipeline, missing, &e);
        model_parts_destroy(&sys, &parts);
    }
    hand_out(json_pack("{s:i, s:o?, s:o, s:o, s:o}", "version", 1, "pipeline", pipeline, "components",
                       components, "unknown", unknown, "missing", missing),
             json, &e);
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
    if (tokenizer_open(sys, path, &tokenizer, e) != OK) return e->code;
    if (tokenizer_encode(tokenizer, text, bytes, &ids, &n, e) == OK) hand_out(ids_json(ids, n), json, e);
    sys->release(sys, ids);
    tokenizer_close(tokenizer);
    return e->code;
}

static enum status tokenize_seen(struct sys *sys, const char *path, const char *text, size_t bytes,
                                 char **json, struct error *e) {
    struct tokenizer *tokenizer;
    struct prompt_tokens tokens = {0};
    if (tokenizer_open(sys, path, &tokenizer, e) != OK) return e->code;
    if (prompt_check(recipes[0], tokenizer, e) == OK &&
        prompt_encode(sys, recipes[0], tokenizer, text, bytes, &tokens, e) == OK)
        hand_out(json_pack("{s:i, s:[{s:s, s:i, s:b, s:o}]}", "version", 1, "encoders", "name",
                           role_name[ROLE_TEXT], "tokens", tokens.n_ids, "truncated", (int)tokens.cut, "ids",
                           ids_json(tokens.ids, tokens.n_ids)),
                 json, e);
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
    } else if (model_find_parts(&sys, &o, &parts, &e) == OK) {
        if (parts.tokenizer)
            tokenize_seen(&sys, parts.tokenizer, text, text_bytes, json, &e);
        else
            error_set(&e, MISSING, "the model has no 'tokenizer'");
        model_parts_destroy(&sys, &parts);
    }
    return publish_error(&e, error);
}
