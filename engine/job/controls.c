#include "engine/job/controls.h"

#include "engine/job/check.h"
#include "engine/open/paths.h"
#include "engine/open/public_structs.h"

#include <stdio.h>
#include <string.h>

/* Number of the model's control networks. */
static int count_networks(const struct sluice_model *m) {
    int n = 0;
    while (n < CONTROLS_MAX && m->component[MODEL_CONTROL + n].family) n++;
    return n;
}

/* True for Flux.1 Canny and Depth: the denoiser reads the control image as concat channels. */
static bool denoiser_reads_image(const struct job *job) {
    return job->model->recipe->images.concat == CONCAT_CONTROL_IMAGE;
}

static bool has_picture(const struct job *job, int i, enum control_part part) {
    return job->pictures.input[control_picture(i, part)].width;
}

/* File of a control network, for messages. */
static const char *path_of(const struct component *c) {
    return c->index.n_sources ? c->index.sources[0].path : c->family->name;
}

enum control_pictures controls_pictures(const struct job *job, int component) {
    if (component < 0) return CONTROL_READS_IMAGE;
    const struct component *c = &job->model->component[component];
    int latent = model_decoder(job->model)->latent_channels;
    if (c->family->control.input != CONTROL_LATENT || c->concat_channels == latent)
        return CONTROL_READS_IMAGE;
    return c->concat_channels == latent + 1 ? CONTROL_READS_MASKED : CONTROL_READS_INPAINT;
}

struct sluice_control controls_requested(const struct job *job, int i) {
    const struct sluice_control *first = job->request.controls;
    struct sluice_control control = {.struct_size = sizeof control,
                                     .network = denoiser_reads_image(job) ? -1 : i,
                                     .strength = 1,
                                     .mode = -1};
    if (!job->pictures.controls_assumed)
        copy_sized(&control, sizeof control, (const char *)first + (size_t)i * first->struct_size);
    return control;
}

static enum status find_network(const struct job *job, int i, int network, struct error *e) {
    const struct sluice_model *m = job->model;
    int n = count_networks(m);
    if (network == -1 && denoiser_reads_image(job)) return OK;
    if (network == -1)
        return error_set(e, USAGE,
                         "a control image (--control-image) needs a control network: this model reads no "
                         "control image itself" WHERE "%s" EXPECTED "--control-net FILE before it",
                         m->name);
    if (network >= 0 && network < n) return OK;
    error_set(e, USAGE, "control image %d is for a control network that is not open" WHERE "%s" FOUND "%d", i,
              m->name, network);
    return n ? error_expected(e, "0 to %d", n - 1) : error_expected(e, "--control-net FILE");
}

/* Names the control modes of a union network in the error: "0 pose, 1 depth". */
static enum status bad_mode(const struct component *c, const struct sluice_control *from, struct error *e) {
    const char *const *names = c->family->control.modes;
    char expected[256] = "";
    size_t n = 0;
    bool named = true;
    for (int i = 0; i < c->control.modes && n < sizeof expected; i++) {
        named = named && names && names[i];
        n += (size_t)snprintf(expected + n, sizeof expected - n, "%s%d%s%s", i ? ", " : "", i,
                              named ? " " : "", named ? names[i] : "");
    }
    bool absent = from->mode == -1 && !from->mode_name;
    error_set(e, USAGE, "%s" WHERE "%s",
              absent ? "this control network needs the kind of its control image (--control-mode)"
                     : "invalid value for --control-mode",
              path_of(c));
    if (from->mode_name)
        error_found(e, "%s", from->mode_name);
    else if (!absent)
        error_found(e, "%d", from->mode);
    return error_expected(e, "%s", expected);
}

/* Finds the mode of a control image by number or name. c NULL: no network. assumed: mode 0. */
static enum status find_mode(const struct component *c, const struct sluice_control *from, bool assumed,
                             int *mode, struct error *e) {
    const char *const *names = c ? c->family->control.modes : NULL;
    *mode = from->mode;
    if (!c || !c->control.modes) {
        *mode = 0;
        if (from->mode == -1 && !from->mode_name) return OK;
        return error_set(e, USAGE,
                         "--control-mode is only for union control networks" WHERE "%s" EXPECTED
                         "no --control-mode: this network takes one kind of control image",
                         c ? path_of(c) : "the model's own control image");
    }
    if (assumed) *mode = 0;
    for (int i = 0; from->mode_name && i < c->control.modes && names && names[i]; i++)
        if (!strcmp(names[i], from->mode_name)) {
            *mode = i;
            return OK;
        }
    if (!from->mode_name && *mode >= 0 && *mode < c->control.modes) return OK;
    return bad_mode(c, from, e);
}

/* Copies or moves a picture of the job. */
static void copy_input(struct job *job, int from, int to, bool moves) {
    job->pictures.input[to] = job->pictures.input[from];
    if (moves) job->pictures.input[from] = (struct sluice_picture){0};
}

/* Finds mask and image to inpaint of control i: its own, else the request's. For CONTROL_READS_MASKED, moves
 * the control image to the place of the image to inpaint. */
static enum status find_inpaint(struct job *job, int i, const char *path, struct error *e) {
    const struct sluice_request *r = &job->request;
    enum control_pictures reads = controls_pictures(job, job->controls[i].component);
    bool mask = has_picture(job, i, CONTROL_MASK), inpaint = has_picture(job, i, CONTROL_INPAINT);
    if (reads == CONTROL_READS_IMAGE) {
        if (!mask && !inpaint) return OK;
        return error_set(e, USAGE,
                         "%s cannot be used with this control network" WHERE "%s" EXPECTED
                         "a control network for inpainting",
                         mask ? "--control-mask" : "--control-inpaint", path);
    }
    if (reads == CONTROL_READS_MASKED && has_picture(job, i, CONTROL_IMAGE)) {
        if (inpaint)
            return error_set(e, USAGE,
                             "this control network reads one image, the image to inpaint" WHERE "%s" FOUND
                             "--control-image and --control-inpaint" EXPECTED "one of them",
                             path);
        copy_input(job, control_picture(i, CONTROL_IMAGE), control_picture(i, CONTROL_INPAINT), true);
        inpaint = true;
    }
    if (!mask && !inpaint && r->init_image && r->mask) {
        copy_input(job, PICTURE_INIT, control_picture(i, CONTROL_INPAINT), false);
        copy_input(job, PICTURE_MASK, control_picture(i, CONTROL_MASK), false);
        job->controls[i].inpaints_init = mask = inpaint = true;
    }
    if (mask == inpaint && (mask || reads == CONTROL_READS_INPAINT)) return OK;
    return error_set(e, USAGE,
                     "inpainting with a control network needs an image and a mask" WHERE "%s" FOUND
                     "%s" EXPECTED "--control-inpaint FILE and --control-mask FILE",
                     path,
                     mask      ? "no image"
                     : inpaint ? "no mask"
                               : "neither");
}

static enum status check_pictures(const struct job *job, int i, const char *path, struct error *e) {
    static const char *const flags[CONTROL_PARTS] = {"--control-image", "--control-mask",
                                                     "--control-inpaint"};
    const struct job_control *control = &job->controls[i];
    bool image = has_picture(job, i, CONTROL_IMAGE);
    if (!image && control->canny)
        return error_set(e, USAGE, "--canny needs a control image" WHERE "%s" EXPECTED "--control-image FILE",
                         path);
    if (!image && !has_picture(job, i, CONTROL_INPAINT))
        return error_set(
            e, USAGE, "control %d has no control image" WHERE "%s" EXPECTED "--control-image FILE%s", i, path,
            controls_pictures(job, control->component) == CONTROL_READS_INPAINT
                ? ", or for inpainting --control-inpaint FILE and --control-mask FILE"
                : "");
    for (int part = 0; part < CONTROL_PARTS; part++) {
        const struct sluice_picture *picture =
            &job->pictures.input[control_picture(i, (enum control_part)part)];
        if (picture->width && picture_check(picture, flags[part], e) != OK) return e->code;
    }
    return OK;
}

static enum status resolve_one(struct job *job, int i, struct error *e) {
    const struct sluice_control from = controls_requested(job, i);
    struct job_control *to = &job->controls[i];
    if (!from.struct_size)
        return error_set(
            e, USAGE,
            "controls[%d]: struct_size is not set" FOUND "0" EXPECTED "sizeof(struct sluice_control)", i);
    if (find_network(job, i, from.network, e) != OK) return e->code;
    const struct component *c =
        from.network < 0 ? NULL : &job->model->component[MODEL_CONTROL + from.network];
    const char *path = c ? path_of(c) : job->model->name;
    *to = (struct job_control){.component = from.network < 0 ? -1 : MODEL_CONTROL + from.network,
                               .strength = from.strength,
                               .start = from.start,
                               .end = from.end == 0 ? 1 : from.end,
                               .canny = from.canny};
    if (find_mode(c, &from, job->pictures.controls_assumed, &to->mode, e) != OK ||
        check_range("--control-strength", to->strength, 0, SLUICE_SCALE_MAX, e) != OK ||
        check_range("--control-start", to->start, 0, 1, e) != OK ||
        check_range("--control-end", to->end, 0, 1, e) != OK)
        return e->code;
    if (to->start >= to->end)
        return error_set(e, USAGE,
                         "--control-start must be below --control-end" WHERE "%s" FOUND "%g and %g" EXPECTED
                         "two numbers from 0 to 1, the smaller one first",
                         path, to->start, to->end);
    if (!c && (to->strength != 1 || to->start > 0 || to->end < 1))
        return error_set(e, USAGE,
                         "this model reads its control image in every step, at full strength" WHERE
                         "%s" EXPECTED "no --control-strength, --control-start and --control-end",
                         path);
    return find_inpaint(job, i, path, e) == OK ? check_pictures(job, i, path, e) : e->code;
}

/* Checks --guess-mode, which only control networks of UNets (input CONTROL_PIXELS) have. */
static enum status check_guess_mode(const struct job *job, struct error *e) {
    for (int i = 0; i < job->n_controls; i++)
        if (job->controls[i].component >= 0 &&
            job->model->component[job->controls[i].component].family->control.input == CONTROL_PIXELS)
            return OK;
    return error_set(e, USAGE,
                     "--guess-mode cannot be used with this model" WHERE "%s" FOUND "%s" EXPECTED
                     "a control network of SD 1.5, SD 2 or SDXL (--control-net)",
                     job->model->name, job->model->recipe->name);
}

enum status controls_resolve(struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    int n = job->pictures.controls_assumed ? (denoiser_reads_image(job) ? 1 : count_networks(job->model))
                                           : r->n_controls,
        own = 0;
    if (n < 0 || n > CONTROLS_MAX)
        return error_set(e, USAGE,
                         "too many control images (--control-image)" FOUND "%d" EXPECTED "at most %d", n,
                         CONTROLS_MAX);
    if (n && !r->controls && !job->pictures.controls_assumed)
        return error_set(e, USAGE, "controls is NULL" FOUND "n_controls %d" EXPECTED "n_controls 0", n);
    job->n_controls = n;
    for (int i = 0; i < n && e->code == OK; i++)
        if (resolve_one(job, i, e) == OK) own += job->controls[i].component < 0;
    if (e->code != OK) return e->code;
    if (denoiser_reads_image(job) && own != 1)
        return error_set(e, USAGE,
                         "this model needs %s" WHERE "%s" FOUND "%d" EXPECTED "--control-image FILE",
                         own ? "one control image only" : "a control image", job->model->name, own);
    return r->guess_mode ? check_guess_mode(job, e) : OK;
}

bool controls_need_encoder(const struct job *job) {
    for (int i = 0; i < job->n_controls; i++)
        if (job->controls[i].component < 0 ||
            job->model->component[job->controls[i].component].family->control.input == CONTROL_LATENT)
            return true;
    return false;
}

char *controls_name(const struct job *job, int i, char out[CONTROL_NAME_BYTES]) {
    int component = job->controls[i].component;
    const struct component *c = component < 0 ? NULL : &job->model->component[component];
    const char *path = c ? path_of(c) : job->model->name, *name = path_last_part(path);
    const char *end = name + strlen(name), *dot = c ? strrchr(name, '.') : NULL;
    if (name > path && !strncmp(name, "diffusion_pytorch_model", 23)) {
        end = name - 1;
        for (name = end; name > path && name[-1] != '/'; name--) continue;
    } else if (dot > name) {
        end = dot;
    }
    snprintf(out, CONTROL_NAME_BYTES, "%.*s", (int)(end - name), name);
    return out;
}

const char *controls_mode_name(const struct job *job, int i) {
    int component = job->controls[i].component;
    const struct component *c = component < 0 ? NULL : &job->model->component[component];
    const char *const *names = c && c->control.modes ? c->family->control.modes : NULL;
    for (int k = 0; names && names[k]; k++)
        if (k == job->controls[i].mode) return names[k];
    return NULL;
}

char *controls_text(const struct job *job, char out[CONTROLS_TEXT_BYTES]) {
    size_t at = 0;
    for (int i = 0; i < job->n_controls; i++) {
        const struct job_control *control = &job->controls[i];
        char name[CONTROL_NAME_BYTES];
        const char *mode = controls_mode_name(job, i);
        at += (size_t)snprintf(out + at, CONTROLS_TEXT_BYTES - at, "%sModule: %s, Model: %s, Weight: %.9g",
                               i ? "\n" : "", control->canny ? "canny" : "none", controls_name(job, i, name),
                               control->strength);
        if (mode) at += (size_t)snprintf(out + at, CONTROLS_TEXT_BYTES - at, ", Union type: %s", mode);
        at += (size_t)snprintf(out + at, CONTROLS_TEXT_BYTES - at,
                               ", Guidance Start: %.9g, Guidance End: %.9g%s", control->start, control->end,
                               job->request.guess_mode ? ", Control Mode: ControlNet is more important" : "");
    }
    return at ? out : NULL;
}
