#include "engine/open/control_nets.h"

#include "engine/open/adapter_file.h"

#include <string.h>

/* The slot of a control network's family; its configuration is read as that of a slot in a pipeline. */
static const struct slot *slot_of(const struct component_file *file) {
    int slot;
    const struct recipe *recipe = models_find_slot(file->family, file->prefix, NULL, &slot);
    return &recipe->slot[slot];
}

static enum status check_denoiser(const struct component *c, const struct component *denoiser,
                                  struct error *e) {
    const struct family *wanted = c->family->control.denoiser;
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
        *c = (struct component){.family = file->family, .sys = m->sys};
        c->index = component_files_take(files, file);
        if (configuration_bind(c, component_files_path(files, file), slot_of(file),
                               &m->config_origin[MODEL_CONTROL + n++], e) == OK)
            check_denoiser(c, model_component(m, FAMILY_DENOISER), e);
        if (e->code != OK && !*e->where) error_where(e, "%s", component_files_path(files, file));
    }
    return e->code;
}

const char *control_net_describe(const struct tensor_index *view) {
    /* Beginnings of tensor names. Sources: ComfyUI, comfy/controlnet.py; diffusers, T2IAdapter. */
    static const struct {
        const char *name, *what;
    } kinds[] = {
        {"lora_controlnet", "a Control-LoRA, which is not supported"},
        {"difference", "a ControlNet stored as difference from its model, which is not supported"},
        {"controlnet_blocks.0.linear.weight", "a MistoLine network, which is not supported"},
        {"body.0.", "a T2I adapter, which is not supported"},
        {"adapter.body.0.", "a T2I adapter, which is not supported"},
        {"adapter.conv_in.", "a T2I adapter, which is not supported"},
        {"image_proj.", "an IP-Adapter, which is not supported"},
        {"redux_up.", "Flux.1 Redux, which --redux takes"},
    };
    bool adapter = false;
    for (int i = 0; i < view->n_entries; i++) {
        const char *name = index_name(view, &view->entries[i]);
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            if (!strncmp(name, kinds[k].name, strlen(kinds[k].name))) return kinds[k].what;
        adapter = adapter || adapter_is_key(name);
    }
    return adapter ? "a LoRA or other adapter, which --lora takes" : NULL;
}
