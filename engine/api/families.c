/* JSON output of `families`: every recipe with its components, inputs, defaults and published files; control
 * networks and upscalers. */
#include "engine/job/request.h"
#include "engine/open/model.h"
#include "engine/open/public_structs.h"
#include "loaders/json.h"

#include <stdio.h>
#include <string.h>

static json_t *parts_json(const struct sluice_model *m, json_int_t *all) {
    json_t *parts = json_array();
    *all = 0;
    for (int i = 0; m->recipe->slot[i].family; i++) {
        const struct component *c = &m->component[i];
        uint64_t bytes = 0;
        const struct family *family = m->recipe->slot[i].family;
        /* Skipped in the file list: the VAE encoder is in the VAE decoder's files, and the tiny autoencoder
         * is not part of the model. */
        if (family->kind == FAMILY_ENCODER || slot_is_extra(&m->recipe->slot[i])) continue;
        for (int k = 0; k < c->index.n_entries; k++) bytes += c->index.entries[k].bytes;
        const struct slot *slot = &m->recipe->slot[i];
        json_push(parts, json_pack("{s:s, s:s, s:s?, s:b, s:I}", "name",
                                   slot->display_name ? slot->display_name : c->family->display_name,
                                   "family", c->family->name, "flag", slot->flag, "optional",
                                   (int)slot->optional, "bytes", (json_int_t)bytes));
        *all += (json_int_t)bytes;
    }
    return parts;
}

static void add_input(json_t *list, const char *flag, const char *what, bool needed) {
    json_push(list, json_pack("{s:s, s:s, s:b}", "flag", flag, "what", what, "needed", (int)needed));
}

/* Kinds of networks that no recipe has a slot for: "kind" in the JSON, flag, index in the model's components.
 */
static const struct network_kind {
    enum family_kind kind;
    const char *word, *flag;
    int component;
} network_kinds[] = {
    {FAMILY_CONTROL, "control", "--control-net", MODEL_CONTROL},
    {FAMILY_UPSCALER, "upscaler", "--upscale-model", MODEL_UPSCALER},
    {FAMILY_LATENT_UPSCALER, "latent upscaler", "--upscaler", MODEL_LATENT_UPSCALER},
};

/* network: family_outside_pipelines. */
static const struct network_kind *network_kind(const struct family *network) {
    int i = 0;
    while (network_kinds[i].kind != network->kind) i++;
    return &network_kinds[i];
}

/* True if a network can be opened with the model of a recipe, without files. *bytes: then its size. MEMORY.
 */
static bool network_fits(const struct family *network, const struct recipe *r, json_int_t *bytes,
                         struct error *e) {
    const struct network_kind *kind = network_kind(network);
    struct sluice_part part = {kind->flag, network->name};
    struct sluice_model_options options = {
        .struct_size = sizeof options, .family = r->name, .parts = &part, .n_parts = 1};
    struct sluice_model *m = NULL;
    struct error failure = {0};
    bool fits = model_open(NULL, &options, &m, &failure) == OK;
    if (failure.code == MEMORY) *e = failure;
    *bytes = 0;
    if (fits) *bytes = (json_int_t)index_bytes(&m->component[kind->component].index);
    model_close(m);
    return fits;
}

/* True if a network of this kind fits the model: a control network its denoiser, a latent upscaler its VAE.
 */
static bool has_networks(const struct recipe *r, enum family_kind kind) {
    struct error ignored = {0};
    json_int_t bytes;
    for (int i = 0; families[i]; i++) {
        if (families[i]->kind != kind) continue;
        /* A control network of another denoiser need not be opened. */
        if (kind == FAMILY_CONTROL && families[i]->control.denoiser != recipe_family(r, FAMILY_DENOISER))
            continue;
        if (network_fits(families[i], r, &bytes, &ignored)) return true;
    }
    return false;
}

/* Lists the model's inputs besides the prompt (reference images, mask, first frame, ...). */
static json_t *takes_json(const struct sluice_model *m) {
    json_t *list = json_array();
    const struct recipe *r = m->recipe;
    const struct component *denoiser = &m->component[recipe_slot(r, FAMILY_DENOISER)];
    bool hole = r->images.concat == CONCAT_FILL || r->images.concat == CONCAT_INPAINT,
         control = r->images.concat == CONCAT_CONTROL;
    bool frames = r->images.concat == CONCAT_I2V, skippable = false;
    char references[48] = "a reference image";
    if (r->defaults.cfg_scale != 1)
        add_input(list, "--negative-prompt", "negative prompt", false);
    else if (r->denoising.cfg_needs_negative)
        add_input(list, "--negative-prompt", "negative prompt, with --cfg-scale above 1", false);
    if (r->denoising.takes_guidance) add_input(list, "--guidance", "distilled guidance", false);
    if (r->images.init == INIT_IMG2IMG)
        add_input(list, "--init-img", hole ? "image to repaint" : "input image", hole);
    if (r->images.init == INIT_FIRST_FRAME) add_input(list, "--init-img", "first frame", frames);
    if (frames && request_vision_frames(m) != 1) add_input(list, "--end-img", "last frame", false);
    if (control) add_input(list, "--control", "control video", false);
    if (r->images.init == INIT_IMG2IMG || control) add_input(list, "--mask", "mask", hole);
    if (r->images.references_max > 1)
        snprintf(references, sizeof references, "up to %d reference images", r->images.references_max);
    if (r->images.concat == CONCAT_CONTROL_IMAGE) add_input(list, "--control-image", "control image", true);
    if (has_networks(r, FAMILY_CONTROL))
        add_input(list, "--control-net", "control network (ControlNet)", false);
    if (r->defaults.frames && has_networks(r, FAMILY_LATENT_UPSCALER))
        add_input(list, "--upscaler", "latent upscaler, for a second pass at a larger size", false);
    if (r->images.references_max) add_input(list, "--ref-image", references, r->images.references_min > 0);
    if (recipe_redux_slot(r) < SLOTS_MAX)
        add_input(list, "--redux-image", "images added to the prompt, with --redux", false);
    for (int i = 0; i < denoiser->n_blocks; i++) skippable |= denoiser->blocks[i].kind->skippable;
    if (r->defaults.cfg_scale != 1 && skippable)
        add_input(list, "--slg-layers", "skip-layer guidance", false);
    return list;
}

static json_t *layouts_json(const struct recipe *r) {
    json_t *list = json_array();
    /* Two slots with the same family and the same tensor name prefixes (two transformers) cannot share a
     * file: their tensor names would be equal. */
    bool one_file = true;
    for (int i = 0; r->slot[i].family; i++)
        for (int k = 0; k < i; k++)
            one_file &= r->slot[k].family != r->slot[i].family || r->slot[k].prefixes != r->slot[i].prefixes;
    json_push(list, json_string("a folder"));
    if (one_file) json_push(list, json_string("one file"));
    json_push(list, json_string("a file each"));
    return list;
}

/* Files of networks on Hugging Face, as safetensors, and a model that they are made for. */
static const struct {
    const char *family, *model;
    struct hf_source source;
} published_networks[] = {
    {"unet_control", "sd15", {"lllyasviel/control_v11p_sd15_canny", "--control-net", NULL, 0}},
    {"unet_control", "sdxl", {"diffusers/controlnet-canny-sdxl-1.0", "--control-net", NULL, 0}},
    {"unet_control_union", "sdxl", {"xinsir/controlnet-union-sdxl-1.0", "--control-net", NULL, 0}},
    {"zimage_control",
     "zimage",
     {"alibaba-pai/Z-Image-Turbo-Fun-Controlnet-Union-2.1", "--control-net",
      "Z-Image-Turbo-Fun-Controlnet-Union-2.1-2602-8steps.safetensors", 0}},
    {"flux_control", "flux", {"Shakker-Labs/FLUX.1-dev-ControlNet-Union-Pro-2.0", "--control-net", NULL, 0}},
    {"flux_control", "flux", {"InstantX/FLUX.1-dev-Controlnet-Union", "--control-net", NULL, 0}},
    {"flux_control_xlabs",
     "flux",
     {"XLabs-AI/flux-controlnet-canny-v3", "--control-net", "flux-canny-controlnet-v3.safetensors", 0}},
    {"qwen_image_control",
     "qwen_image",
     {"InstantX/Qwen-Image-ControlNet-Union", "--control-net", NULL, 3540}},
    {"sd3_control", "sd3", {"InstantX/SD3-Controlnet-Canny", "--control-net", NULL, 0}},
    {"sd35_control",
     "sd35_large",
     {"stabilityai/stable-diffusion-3.5-large-controlnet-canny", "--control-net", NULL, 0}},
    {"rrdbnet",
     NULL,
     {"Comfy-Org/Real-ESRGAN_repackaged", "--upscale-model", "RealESRGAN_x4plus.safetensors", 67}},
    {"ltx2_upsampler",
     "ltx2",
     {"Lightricks/LTX-2", "--upscaler", "ltx-2-spatial-upscaler-x2-1.0.safetensors", 996}}};

static json_t *source_json(const struct hf_source *s) {
    return json_pack("{s:s, s:s?, s:s?, s:o}", "repository", s->repository, "flag", s->flag, "files",
                     s->files, "megabytes", s->megabytes ? json_integer(s->megabytes) : json_null());
}

static json_t *family_json(const struct sluice_model *m) {
    const struct recipe *r = m->recipe;
    const struct publication *p = &r->published;
    json_int_t bytes;
    json_t *parts = parts_json(m, &bytes), *pipelines = json_array(), *sources = json_array();
    const struct hf_source *s;
    for (const char *const *name = r->selection.pipelines; *name; name++)
        json_push(pipelines, json_string(*name));
    for (int i = 0; (s = recipe_source(r, i)); i++) json_push(sources, source_json(s));
    json_t *family =
        json_pack("{s:s, s:s?, s:s, s:o, s:i, s:i, s:i, s:i, s:f, s:b, s:I, s:o}", "name", r->name, "title",
                  p->title, "denoiser", recipe_family(r, FAMILY_DENOISER)->name, "pipelines", pipelines,
                  "width", m->width, "height", m->height, "frames", m->frames ? m->frames : 1, "steps",
                  m->steps, "cfg_scale", m->cfg_scale, "cfg_needs_negative",
                  (int)r->denoising.cfg_needs_negative, "bytes", bytes, "parts", parts);
    if (!family) json_decref(sources);
    if (!family) return NULL;
    json_put(family, "takes", takes_json(m));
    json_put(family, "layouts", layouts_json(r));
    json_put(family, "sources", sources);
    json_put(family, "reference", p->reference ? json_string(p->reference) : json_null());
    json_put(family, "like", p->parts_compared_in ? json_string(p->parts_compared_in->name) : json_null());
    return family;
}

static json_t *network_json(const struct family *network, struct error *e) {
    json_t *of = json_array(), *modes = json_array(), *sources = json_array();
    const struct network_kind *kind = network_kind(network);
    /* An upscaler of images fits every model: it has no list of models, and its size comes from the first. */
    bool control = network->kind == FAMILY_CONTROL, of_models = network->kind != FAMILY_UPSCALER,
         opened = false;
    const char *model = NULL; /* the model that the size is for */
    json_int_t bytes = 0, size = 0;
    for (int i = COUNT_OF(published_networks); i--;)
        if (!strcmp(published_networks[i].family, network->name)) model = published_networks[i].model;
    for (const struct recipe *const *r = recipes; *r && e->code == OK; r++) {
        if (control ? recipe_family(*r, FAMILY_DENOISER) != network->control.denoiser : opened && !of_models)
            continue;
        bool fits = network_fits(network, *r, &size, e);
        if (fits && of_models) json_push(of, json_string((*r)->name));
        if (fits && (!opened || (model && !strcmp((*r)->name, model)))) bytes = size;
        opened |= fits;
    }
    for (const char *const *mode = network->control.modes; mode && *mode; mode++)
        json_push(modes, json_string(*mode));
    for (int i = 0; i < COUNT_OF(published_networks); i++)
        if (!strcmp(published_networks[i].family, network->name))
            json_push(sources, source_json(&published_networks[i].source));
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:I, s:s?, s:o}", "name", network->name, "title",
                     network->display_name, "kind", kind->word, "flag", kind->flag, "of", of, "modes", modes,
                     "bytes", bytes, "bytes_for", model, "sources", sources);
}

int sluice_families(char **json, struct sluice_error *error) {
    struct error e = {0};
    if (!check_not_null(json, "json", &e)) return publish_error(&e, error);
    *json = NULL;
    unsigned json_failures = failed_json_allocations();
    json_t *list = json_array(), *networks = json_array();
    for (const struct recipe *const *r = recipes; *r && e.code == OK; r++) {
        struct sluice_model_options options = {.struct_size = sizeof options, .family = (*r)->name};
        struct sluice_model *m = NULL;
        if (model_open(NULL, &options, &m, &e) == OK) json_push(list, family_json(m));
        model_close(m);
    }
    for (const struct family *const *f = families; *f && e.code == OK; f++)
        if (family_outside_pipelines(*f)) json_push(networks, network_json(*f, &e));
    *json = json_to_text(json_pack("{s:i, s:o, s:o}", "version", 1, "families", list, "networks", networks),
                         JSON_INDENT(1), json_failures);
    if (!*json) error_set(&e, MEMORY, "no memory for a list of families");
    if (e.code != OK) sluice_free(*json), *json = NULL;
    return publish_error(&e, error);
}
