#include "engine/generate/control_images.h"

#include "engine/generate/dump.h"
#include "engine/job/controls.h"
#include "engine/job/pictures.h"
#include "engine/pictures/pictures.h"

#include <stdio.h>
#include <string.h>

/* The network of control i; NULL: the denoiser reads the image. */
static const struct component *network_of(const struct job *job, int i) {
    int component = job->controls[i].component;
    return component < 0 ? NULL : &job->model->component[component];
}

/* With --dump, dumps the finished input of control i: of a network as control_NNN, else as concat. */
static enum status dump_control(const struct job *job, int i, struct error *e) {
    struct tensor input = job->layout.control_input[i];
    char name[16];
    if (!job->request.dump) return OK;
    if (!network_of(job, i)) return dump_save(job->sys, job->request.dump, "concat", *job->layout.concat, e);
    snprintf(name, sizeof name, "control_%03d", i);
    return dump_save(job->sys, job->request.dump, name, input.rank == 4 ? latent_planes(input) : input, e);
}

/* Writes 1 - mask to the mask channel of an inpainting network's input. */
static void write_mask(const struct job *job, int i) {
    const struct sluice_picture *mask = &job->pictures.fitted[control_picture(i, CONTROL_MASK)];
    struct tensor channel = tensor_slice(job->layout.control_input[i], job->latents.C, 1);
    float *values = channel.data;
    mask_to_latent(mask, model_decoder(job->model)->pixel_factor,
                   tensor_reshape(channel, 2, channel.dim + 2));
    for (int64_t k = 0; k < tensor_elements(&channel); k++) values[k] = 1 - values[k];
}

enum status control_images_begin(const struct job *job, struct error *e) {
    for (int i = 0; i < job->n_controls && e->code == OK; i++) {
        const struct component *network = network_of(job, i);
        struct tensor input = job->layout.control_input[i];
        if (!network) continue;
        if (network->family->control.input == CONTROL_LATENT) {
            memset(input.data, 0, (size_t)tensor_bytes(&input));
            if (job->pictures.input[control_picture(i, CONTROL_MASK)].width) write_mask(job, i);
            continue;
        }
        bool is_signed = network->family->control.input == CONTROL_SIGNED_PIXELS;
        picture_to_control(&job->pictures.fitted[control_picture(i, CONTROL_IMAGE)], NULL, is_signed ? 2 : 1,
                           is_signed ? -1 : 0, 0, input);
        dump_control(job, i, e);
    }
    return e->code;
}

void control_images_fill(const struct job *job, const struct encoded *encoded, struct tensor out) {
    int i = encoded->reference;
    const struct component *network = network_of(job, i);
    const struct sluice_picture *picture = pictures_fitted(job, encoded), *mask = NULL;
    struct tensor pixels = tensor_reshape(out, 3, out.dim + 1);
    bool masked = false;
    if (encoded->kind == ENCODED_CONTROL_INPAINT) {
        mask = &job->pictures.fitted[control_picture(i, CONTROL_MASK)];
        masked = controls_pictures(job, job->controls[i].component) == CONTROL_READS_MASKED;
    }
    if (pixels.dim[2] != 3)
        picture_to_tensor(picture, mask, false, pixels);
    else if (network && network->control.factor != 0)
        picture_to_control(picture, mask, network->control.factor, network->control.offset, masked ? -1 : 0,
                           pixels);
    else
        picture_to_control(picture, mask, 2, -1, masked ? -1 : 0, pixels);
}

enum status control_images_take(const struct job *job, int i, struct tensor moments, struct error *e) {
    const struct encoded *encoded = &job->pictures.encoded[i];
    int control = encoded->reference, C = job->latents.C;
    const struct component *network = network_of(job, control);
    struct latent_format format = model_component(job->model, FAMILY_ENCODER)->latent_format;
    struct tensor to = network ? job->layout.control_input[control] : *job->layout.concat;
    int32_t first = encoded->kind == ENCODED_CONTROL_INPAINT ? to.dim[0] - C : 0;
    if (network && controls_pictures(job, job->controls[control].component) == CONTROL_READS_MASKED)
        first = 0;
    if (network && network->control.unshifted) memset(format.shift, 0, sizeof format.shift);
    posterior_sample(moments, NULL, &format, latent_planes(tensor_slice(to, first, C)));
    bool last = i + 1 == job->pictures.n_encoded || job->pictures.encoded[i + 1].reference != control ||
                job->pictures.encoded[i + 1].kind != ENCODED_CONTROL_INPAINT;
    return last ? dump_control(job, control, e) : OK;
}
