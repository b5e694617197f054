#include "engine/open/control_nets.h"

#include "engine/open/published.h"

static enum status check_model(const struct component *c, const struct sluice_model *m, struct error *e) {
    const struct component *denoiser = model_component(m, FAMILY_DENOISER);
    const struct family *wanted = c->family->control.denoiser;
    if (m->recipe->images.concat == CONCAT_CONTROL_IMAGE)
        return error_set(e, UNSUPPORTED,
                         "this model reads a control image itself and takes no control network" WHERE
                         "--control-net %s" FOUND "a model of %s" EXPECTED "--control-image FILE alone",
                         c->index.n_sources ? c->index.sources[0].path : c->family->name, m->recipe->name);
    if (denoiser->family != wanted)
        return error_set(e, UNSUPPORTED,
                         "the control network is for another model" WHERE "%s" FOUND
                         "%s (%s), for models of %s (%s)" EXPECTED "a control network for %s (%s)",
                         c->index.sources[0].path, c->family->display_name, c->family->name,
                         wanted->display_name, wanted->name, denoiser->family->display_name,
                         denoiser->family->name);
    return c->family->control.check ? c->family->control.check(c, denoiser, e) : OK;
}

enum status control_nets_open(struct sluice_model *m, struct component_files *files, struct error *e) {
    int n = 0;
    for (int i = 0; i < files->n_files && e->code == OK; i++) {
        const struct component_file *file = &files->file[i];
        if (!file->flag || file->misplaced || file->family->kind != FAMILY_CONTROL) continue;
        struct component *c = &m->component[MODEL_CONTROL + n];
        int slot;
        const struct recipe *slots = models_find_slot(file->family, file->prefix, NULL, &slot);
        *c = (struct component){.family = file->family, .sys = m->sys};
        c->index = component_files_take(files, file);
        if (configuration_bind(c, component_files_path(files, file), &slots->slot[slot],
                               &m->config_origin[MODEL_CONTROL + n++], e) == OK)
            check_model(c, m, e);
        if (e->code != OK && !*e->where) error_where(e, "%s", component_files_path(files, file));
    }
    return e->code;
}

enum status control_nets_open_published(struct sluice_model *m, const struct sluice_model_options *o,
                                        struct error *e) {
    int n = 0;
    for (int i = 0; i < o->n_parts && e->code == OK; i++) {
        if (!o->parts[i].path || !part_flag_chooses(o->parts[i].flag, FAMILY_CONTROL)) continue;
        if (n == CONTROLS_MAX)
            return error_set(e, USAGE, "too many control networks (--control-net)" EXPECTED "at most %d",
                             CONTROLS_MAX);
        struct component *c = &m->component[MODEL_CONTROL + n++];
        const struct slot *denoiser = &m->recipe->slot[recipe_slot(m->recipe, FAMILY_DENOISER)];
        if (published_bind_network(m->sys, &o->parts[i], denoiser, c, e) == OK) check_model(c, m, e);
    }
    return e->code;
}
