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

static bool is_upscaler(const struct family *family) {
    return family->kind == FAMILY_UPSCALER || family->kind == FAMILY_LATENT_UPSCALER;
}

static int place_of(const char *flag) {
    if (part_flag_chooses(flag, FAMILY_LATENT_UPSCALER)) return MODEL_LATENT_UPSCALER;
    return strcmp(flag, "--hires-upscaler") ? MODEL_UPSCALER : MODEL_HIRES_UPSCALER;
}

/* The latent upscaler computes with latents in the VAE's scale: it undoes the VAE's normalisation, and
 * applies it to its result. */
static void set_latent_format(struct sluice_model *m) {
    struct component *c = &m->component[MODEL_LATENT_UPSCALER];
    if (c->family && model_decoder(m)->family) c->latent_format = model_decoder(m)->latent_format;
}

enum status upscaler_open(struct sluice_model *m, struct component_files *files, struct error *e) {
    for (int i = 0; i < files->n_files && e->code == OK; i++) {
        const struct component_file *file = &files->file[i];
        if (!file->flag || file->misplaced || !is_upscaler(file->family)) continue;
        int place = place_of(file->flag);
        struct component *c = &m->component[place];
        int slot;
        const struct recipe *slots = models_find_slot(file->family, file->prefix, NULL, &slot);
        *c = (struct component){.family = file->family, .sys = m->sys};
        c->index = component_files_take(files, file);
        configuration_bind(c, component_files_path(files, file), &slots->slot[slot], &m->config_origin[place],
                           e);
    }
    set_latent_format(m);
    return e->code;
}

enum status upscaler_open_published(struct sluice_model *m, const struct sluice_model_options *o,
                                    struct error *e) {
    for (int i = 0; i < o->n_parts && e->code == OK; i++) {
        const struct sluice_part *part = &o->parts[i];
        bool upscales = part_flag_chooses(part->flag, FAMILY_UPSCALER) ||
                        part_flag_chooses(part->flag, FAMILY_LATENT_UPSCALER);
        if (part->path && upscales)
            published_bind_network(m->sys, part, NULL, &m->component[place_of(part->flag)], e);
    }
    set_latent_format(m);
    return e->code;
}

enum status upscaler_check_latent(const struct sluice_model *m, struct error *e) {
    const struct component *c = &m->component[MODEL_LATENT_UPSCALER], *vae = model_decoder(m);
    if (!c->family) return OK;
    if (component_frame_factor(vae) == 1)
        return error_set(e, USAGE,
                         "--upscaler needs a model that makes videos" WHERE "%s" FOUND "%s" EXPECTED
                         "an LTX-2 model",
                         m->name, m->recipe->name);
    if (c->latent_channels == vae->latent_channels) return OK;
    return error_set(e, SHAPE,
                     "the latent upscaler does not fit the model" WHERE "%s" FOUND
                     "%d latent channels" EXPECTED "%d, as in %s",
                     c->index.n_sources ? c->index.sources[0].path : c->family->name, c->latent_channels,
                     vae->latent_channels, m->name);
}
