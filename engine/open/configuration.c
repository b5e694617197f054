/* Reads the configurations of components: implements configuration.h. */
#include "engine/open/configuration.h"
#include "engine/run/component.h"

#include "engine/open/contents.h"
#include "engine/open/paths.h"
#include "loaders/loaders.h"

#include <stdio.h>
#include <string.h>

enum { MEMBER_BYTES = 32 };

const char *const config_origin_word[] = {[CONFIG_PUBLISHED] = "published values",
                                          [CONFIG_JSON_FILE] = "config.json",
                                          [CONFIG_METADATA] = "metadata"};

/* Returns the value of general.architecture in a GGUF file's metadata, or "". Other GGUF keys begin with this
 * value ("qwen3.block_count"). */
static const char *architecture_of(const struct config *config) {
    return config_string(config, "general.architecture", "");
}

bool configuration_names(const struct config *config, const struct family *family) {
    const char *name = config_string(config, family->files.config_key, "");
    bool is = !strcmp(name, family->files.config_value);
    for (const char *const *other = family->files.config_others; other && *other && !is; other++)
        is = !strcmp(name, *other);
    return is || contents_is_architecture(family, architecture_of(config));
}

static char *config_json_path(struct sys *sys, const char *path) {
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

static enum status read_config_json(struct sys *sys, const char *path, const struct family *family,
                                    struct config *config, struct error *e) {
    char *file = config_json_path(sys, path);
    if (!file)
        error_set(e, MEMORY, "no memory for a path");
    else if (path_exists(file))
        config_read(sys, file, config, e);
    sys->release(sys, file);
    /* Several components may share a folder: a config.json that belongs to another component's family is
     * ignored. */
    if (!path_is_folder(path) && !configuration_names(config, family)) config_destroy(config);
    return e->code;
}

/* Parses the key `config` of a file's metadata: the member named like the slot's folder or flag, else the
 * whole object. A whole object without a model name is accepted only if the file holds one component (no
 * prefix). */
static enum status parse_metadata(struct sys *sys, const struct config_place *place, const char *text,
                                  struct config *config, struct error *e) {
    const char *path = place->index->sources[0].path;
    char flag[MEMBER_BYTES] = "";
    if (place->slot->flag) /* "--diffusion-model" becomes "diffusion_model" */
        snprintf(flag, sizeof flag, "%s", place->slot->flag + strspn(place->slot->flag, "-"));
    for (char *c = flag; *c; c++)
        if (*c == '-') *c = '_';
    const char *const members[] = {place->slot->folder, flag};
    for (int i = 0; i < 2 && *members[i] && !config->path; i++)
        if (config_parse(sys, path, text, members[i], config, e) != OK) goto out;
    if (config->path || config_parse(sys, path, text, NULL, config, e) != OK) goto out;
    bool names_model = config_find(config, "_class_name") || config_find(config, "model_type") ||
                       config_find(config, "general.architecture");
    if (!configuration_names(config, place->slot->family) && (names_model || place->index->prefix))
        config_destroy(config);
out:
    return e->code == OK ? OK : error_expected(e, "JSON under the key `config` of the file's metadata");
}

/* Reads the configuration from metadata. A GGUF file has single keys, or JSON under the key `config`. */
static enum status read_metadata(struct sys *sys, const struct config_place *place, struct config *config,
                                 struct error *e) {
    const char *text = place->index->config;
    if (!text || parse_metadata(sys, place, text, config, e) != OK) return e->code;
    const char *nested = config_string(config, "config", NULL);
    bool is_gguf = *architecture_of(config) || config_find(config, "general.quantization_version");
    if (!nested || !is_gguf) {
        /* GGUF metadata without model settings (keys that begin with the architecture), as in most GGUF files
         * of diffusion models, is ignored: the family's published values apply. */
        const char *architecture = architecture_of(config);
        size_t n = strlen(architecture);
        bool has_settings = !n;
        for (int i = 0; i < config->n_values && !has_settings; i++) {
            const char *name = config->values[i].key;
            has_settings = !strncmp(name, architecture, n) && name[n] == '.';
        }
        if (!has_settings) config_destroy(config);
        return OK;
    }
    struct config flat = *config;
    *config = (struct config){0};
    parse_metadata(sys, place, nested, config, e);
    config_destroy(&flat);
    return e->code;
}

/* Fails if the image processor's configuration disables a preprocessing step that Sluice always does, or
 * requires another resampling filter. */
static enum status check_pictures(const struct config *config, struct error *e) {
    static const char *const done[] = {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"};
    enum { PILLOWS_BICUBIC = 3 };
    int resample = PILLOWS_BICUBIC;
    double factor = 0;
    for (size_t i = 0; i < sizeof done / sizeof *done; i++) {
        bool does = true;
        if (config_bool(config, done[i], &does, e) != OK || does) continue;
        return error_set(e, UNSUPPORTED,
                         "unsupported image preprocessing" WHERE "%s" FOUND "%s false" EXPECTED "true",
                         config->path, done[i]);
    }
    config_float(config, "rescale_factor", 0.00392, 0.00393, &factor, e); /* 1 / 255 */
    return config_int(config, "resample", PILLOWS_BICUBIC, PILLOWS_BICUBIC, &resample, e);
}

/* Reads the image processor's configuration into config->pictures from the first configuration file that
 * exists. transformers 5 writes one processor_config.json. */
static enum status read_pictures(struct sys *sys, const char *path, struct config *config, struct error *e) {
    static const struct {
        const char *file, *member;
    } places[] = {
        {"processor_config.json", "image_processor"},
        {"preprocessor_config.json", NULL},
        {"../processor/processor_config.json", "image_processor"},
        {"../processor/preprocessor_config.json", NULL},
        {"../image_processor/preprocessor_config.json", NULL},
        {"../text_processor/processor_config.json", "image_processor"},
        {"../text_processor/preprocessor_config.json", NULL},
    };
    char *folder = path_is_folder(path) ? path_copy(sys, path, e) : path_folder(sys, path, e);
    config->sys = sys;
    config->pictures = sys->alloc(sys, LINE_HOST, sizeof *config->pictures);
    if (folder && !config->pictures) error_set(e, MEMORY, "no memory for a configuration");
    for (size_t i = 0; i < sizeof places / sizeof *places && e->code == OK; i++) {
        char *file = path_existing(sys, folder, places[i].file, e);
        if (file) config_read_member(sys, file, places[i].member, config->pictures, e);
        sys->release(sys, file);
        if (e->code != OK || !config->pictures->path) continue;
        check_pictures(config->pictures, e);
        break;
    }
    sys->release(sys, folder);
    return e->code;
}

enum status configuration_read(struct sys *sys, const struct config_place *place, struct config *config,
                               enum config_origin *origin, struct error *e) {
    *config = (struct config){0};
    *origin = CONFIG_JSON_FILE;
    read_config_json(sys, place->path, place->slot->family, config, e);
    if (e->code == OK && !config->path) {
        *origin = CONFIG_METADATA;
        read_metadata(sys, place, config, e);
    }
    if (e->code == OK && !config->path) *origin = CONFIG_PUBLISHED;
    if (e->code == OK && place->slot->family->kind == FAMILY_VISION)
        read_pictures(sys, place->path, config, e);
    return e->code;
}

static enum status read_and_call(struct component *c, const char *path, const struct slot *slot,
                                 enum status (*call)(struct component *, const struct config *,
                                                     struct error *),
                                 enum config_origin *origin, struct error *e) {
    struct config_place place = {path, slot, &c->index};
    struct config config = {0};
    if (index_check_quantised(&c->index, e) != OK) return e->code;
    if (configuration_read(c->sys, &place, &config, origin, e) == OK) call(c, &config, e);
    config_destroy(&config);
    return e->code;
}

void configuration_begin(const struct recipe *recipe, int slot, struct sys *sys, struct component *c) {
    *c = (struct component){.family = recipe->slot[slot].family,
                            .sys = sys,
                            .published = recipe->slot[slot].published,
                            .video = recipe->frames_max > 0};
    /* A text encoder whose output another one reads (slot.reads) outputs its last hidden state, after the
     * final norm, or all hidden states if that is the family's default (Gemma 3). */
    c->reads.tokens = recipe_reader_slot(recipe, slot) < SLOTS_MAX;
    c->reads.hidden.all = c->reads.tokens && c->family->reads.hidden.all;
    for (int i = 0; i < recipe->text.n_conditions; i++) {
        const struct condition *condition = &recipe->text.condition[i];
        if (condition->slot != slot) continue;
        if (condition->what == CONDITION_POOLED) {
            c->reads.pooled = true;
            c->reads.projected = condition->projected;
            if (condition->projected_if_class) c->reads.projected_class = recipe->slot[slot].text.classes[0];
            continue;
        }
        c->reads.tokens = true;
        c->reads.hidden = condition->hidden;
    }
}

void configuration_in_pipeline(struct component *c) {
    c->reads.projected_class = NULL;
}

enum status configuration_bind(struct component *c, const char *path, const struct slot *slot,
                               enum config_origin *origin, struct error *e) {
    return read_and_call(c, path, slot, component_bind, origin, e);
}

enum status configuration_apply(struct component *c, const char *path, const struct slot *slot,
                                struct error *e) {
    enum config_origin origin;
    return read_and_call(c, path, slot, component_configure, &origin, e);
}
