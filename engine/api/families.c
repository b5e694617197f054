/* What can be run: the recipes with what is published of them, as plans without files have it. */
#include "engine/api/caller.h"
#include "engine/open/model.h"
#include "loaders/json.h"

#include <string.h>

static json_t *parts_json(const struct sluice_model *m, json_int_t *all) {
    json_t *parts = json_array();
    *all = 0;
    for (int i = 0; m->recipe->slot[i].family; i++) {
        const struct component *c = &m->component[i];
        uint64_t bytes = 0;
        if (c->family->kind == FAMILY_ENCODER) continue; /* it lies in its decoder's files */
        for (int k = 0; k < c->index.n_entries; k++) bytes += c->index.entries[k].bytes;
        json_push(parts,
                  json_pack("{s:s, s:s, s:s?, s:I}", "name", c->family->word, "family", c->family->name,
                            "flag", m->recipe->slot[i].flag, "bytes", (json_int_t)bytes));
        *all += (json_int_t)bytes;
    }
    return parts;
}

static json_t *family_json(const struct sluice_model *m) {
    json_int_t bytes;
    json_t *parts = parts_json(m, &bytes), *pipelines = json_array();
    for (const char *const *name = m->recipe->pipelines; *name; name++)
        json_push(pipelines, json_string(*name));
    return json_pack("{s:s, s:o, s:i, s:i, s:i, s:f, s:I, s:o}", "name", m->recipe->name, "pipelines",
                     pipelines, "width", m->width, "height", m->height, "steps", m->steps, "cfg_scale",
                     m->cfg_scale, "bytes", bytes, "parts", parts);
}

int sluice_families(char **json, struct sluice_error *error) {
    struct error e = {0};
    if (!caller_gave(json, "json", &e) || !caller_has_stack(SLUICE_STACK_BYTES_TO_OPEN, &e))
        return publish_error(&e, error);
    *json = NULL;
    unsigned losses = json_losses();
    json_t *list = json_array();
    for (const struct recipe *const *r = recipes; *r && e.code == OK; r++) {
        struct sluice_model_options options = {.struct_size = sizeof options, .family = (*r)->name};
        struct sluice_model *m = NULL;
        if (model_open(NULL, &options, &m, &e) == OK) json_push(list, family_json(m));
        model_close(m);
    }
    *json = json_hand_out(json_pack("{s:i, s:o}", "version", 1, "families", list), JSON_INDENT(1), losses);
    if (!*json) error_set(&e, MEMORY, "no memory for a list of families");
    if (e.code != OK) sluice_free(*json), *json = NULL;
    return publish_error(&e, error);
}
