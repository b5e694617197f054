#include "engine/open/upscaler.h"

#include "engine/open/published.h"

#include <string.h>

const struct recipe upscaler_recipe = {.name = "upscale"};

bool upscaler_is_alone(const struct sluice_model_options *o) {
    bool upscales = false;
    for (int i = 0; i < o->n_parts; i++) {
        if (!o->parts[i].path) continue;
        if (!part_flag_chooses(o->parts[i].flag, FAMILY_UPSCALER)) return false;
        upscales = true;
    }
    return upscales && !o->model && !o->family;
}

static int place_of(const char *flag) {
    return strcmp(flag, "--hires-upscaler") ? MODEL_UPSCALER : MODEL_HIRES_UPSCALER;
}

enum status upscaler_open(struct sluice_model *m, struct component_files *files, struct error *e) {
    for (int i = 0; i < files->n_files && e->code == OK; i++) {
        const struct component_file *file = &files->file[i];
        if (!file->flag || file->misplaced || file->family->kind != FAMILY_UPSCALER) continue;
        int place = place_of(file->flag);
        struct component *c = &m->component[place];
        int slot;
        const struct recipe *slots = models_find_slot(file->family, file->prefix, NULL, &slot);
        *c = (struct component){.family = file->family, .sys = m->sys};
        c->index = component_files_take(files, file);
        configuration_bind(c, component_files_path(files, file), &slots->slot[slot], &m->config_origin[place],
                           e);
    }
    return e->code;
}

enum status upscaler_open_published(struct sluice_model *m, const struct sluice_model_options *o,
                                    struct error *e) {
    for (int i = 0; i < o->n_parts && e->code == OK; i++) {
        const struct sluice_part *part = &o->parts[i];
        if (part->path && part_flag_chooses(part->flag, FAMILY_UPSCALER))
            published_bind_network(m->sys, part, NULL, &m->component[place_of(part->flag)], e);
    }
    return e->code;
}
