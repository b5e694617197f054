/* A component's configuration: see configuration.h. */
#include "engine/api/configuration.h"

#include "engine/api/paths.h"
#include "loaders/loaders.h"

#include <stdio.h>
#include <string.h>

enum { MEMBER_BYTES = 32 };

const char *const config_origin_word[] = {
    [CONFIG_PUBLISHED] = "published values", [CONFIG_BESIDE] = "config.json", [CONFIG_METADATA] = "metadata"};

/* Does it say that it is this family's? */
static bool names_family(const struct config *config, const struct family *family) {
    return !strcmp(config_string(config, family->config_key, ""), family->config_value);
}

/* Does it say what it is at all? */
static bool names_model(const struct config *config) {
    return config_find(config, "_class_name") || config_find(config, "model_type");
}

static char *beside(struct sys *sys, const char *path) {
    static const char name[] = "config.json";
    if (path_is_folder(path)) return path_join(sys, path, name);
    const char *slash = strrchr(path, '/');
    size_t folder = slash ? (size_t)(slash - path) + 1 : 0;
    char *file = sys->alloc(sys, LINE_HOST, folder + sizeof name);
    if (!file) return NULL;
    memcpy(file, path, folder);
    memcpy(file + folder, name, sizeof name);
    return file;
}

static enum status read_beside(struct sys *sys, const char *path, const struct family *family,
                               struct config *config, struct error *e) {
    char *file = beside(sys, path);
    if (!file)
        error_set(e, MEMORY, "no memory for a path");
    else if (path_exists(file))
        config_read(sys, file, config, e);
    sys->release(sys, file);
    /* Several parts may share a folder. */
    if (!path_is_folder(path) && !names_family(config, family)) config_destroy(config);
    return e->code;
}

/* The name of a flag as files have it: "--diffusion-model" is "diffusion_model". */
static void flag_name(const char *flag, char name[MEMBER_BYTES]) {
    snprintf(name, MEMBER_BYTES, "%s", flag + strspn(flag, "-"));
    for (char *c = name; *c; c++)
        if (*c == '-') *c = '_';
}

/* Under the component's name, or its flag's; else the whole of it. A whole that names nothing is the
 * component's if the file holds nothing else, so has no prefixes. */
static enum status read_metadata(struct sys *sys, const struct config_place *place, struct config *config,
                                 struct error *e) {
    const struct tensor_index *index = place->index;
    if (!index->config) return OK;
    const char *path = index->sources[0].path;
    char flag[MEMBER_BYTES];
    flag_name(place->family->flag, flag);
    const char *const members[] = {place->name, flag};
    for (int i = 0; i < 2 && !config->path; i++)
        if (config_parse(sys, path, index->config, members[i], config, e) != OK) goto out;
    if (config->path || config_parse(sys, path, index->config, NULL, config, e) != OK) goto out;
    if (!names_family(config, place->family) && (names_model(config) || index->prefix))
        config_destroy(config);
out:
    return e->code == OK ? OK : error_expected(e, "JSON in the metadata's config");
}

enum status configuration_read(struct sys *sys, const struct config_place *place, struct config *config,
                               enum config_origin *origin, struct error *e) {
    *config = (struct config){0};
    *origin = CONFIG_BESIDE;
    if (read_beside(sys, place->path, place->family, config, e) != OK || config->path) return e->code;
    *origin = CONFIG_METADATA;
    if (read_metadata(sys, place, config, e) != OK || config->path) return e->code;
    *origin = CONFIG_PUBLISHED;
    return OK;
}

enum status configuration_bind(struct component *c, const char *path, const char *name,
                               enum config_origin *origin, struct error *e) {
    struct config_place place = {path, name, &c->index, c->family};
    struct config config = {0};
    if (index_check_quantised(&c->index, e) != OK) return e->code;
    if (configuration_read(c->sys, &place, &config, origin, e) == OK) component_bind(c, &config, e);
    config_destroy(&config);
    return e->code;
}
