/* Public functions on models, errors, request defaults and versions. */
#include "engine/machine/machine.h"
#include "engine/open/component_files.h"
#include "engine/open/model.h"
#include "engine/open/public_structs.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *sluice_code_name(int code) {
    return status_name((enum status)code);
}

char *sluice_error_line(const struct sluice_error *error, char *out, size_t out_bytes) {
    if (!out || !out_bytes) return out;
    out[0] = 0;
    if (!error) return out;
    struct error e;
    memcpy(&e, error, sizeof e);
    return error_line(&e, out, (int)out_bytes);
}

void sluice_free(char *text) {
    free(text);
}

int64_t sluice_memory_bytes(void) {
    uint64_t bytes = machine_memory_bytes("");
    return bytes ? (int64_t)bytes : INT64_MAX;
}

const char *sluice_version(void) {
    return SLUICE_VERSION;
}

const char *sluice_part_flag(int i, char *help, size_t help_bytes) {
    const char *flag = part_flag(i);
    if (!flag || !help) return flag;
    if (part_flag_chooses(flag, FAMILY_CONTROL))
        snprintf(help, help_bytes, "control network (ControlNet) for control images; repeat it for several");
    else
        part_flag_families(flag, help, help_bytes);
    size_t n = strlen(help);
    const char *more = part_flag_chooses(flag, FAMILY_TINY_DECODER)
                           ? ", faster, slightly different images; none: not used"
                           : "; none: leave it out";
    if (part_flag_optional(flag) && n < help_bytes) snprintf(help + n, help_bytes - n, "%s", more);
    return flag;
}

int sluice_model_open(const struct sluice_model_options *options, sluice_model **model,
                      struct sluice_error *error) {
    struct error e = {0};
    if (!check_not_null(model, "model", &e)) return publish_error(&e, error);
    *model = NULL;
    if (!check_struct_size(options, "options", &e)) return publish_error(&e, error);
    model_open_reserving(NULL, options, machine_base_bytes(), model, &e);
    return publish_error(&e, error);
}

void sluice_model_close(sluice_model *model) {
    model_close(model);
}

bool sluice_model_has_alpha(const sluice_model *model) {
    return model && component_picture_channels(model_decoder(model)) == RGBA;
}

bool sluice_model_reads_fps(const sluice_model *model) {
    return model && model->recipe && model->recipe->sound.channels;
}

bool sluice_model_has_sound(const sluice_model *model) {
    return model && model->recipe && model->recipe->sound.channels &&
           model_component(model, FAMILY_SOUND_DECODER)->family &&
           model_component(model, FAMILY_VOCODER)->family;
}

/* Sets the defaults of LTX-2's guidance. A model with fewer blocks than the published one lacks the last
 * published blocks of spatio-temporal guidance, or has none of them, which turns this guidance off. */
static void set_denoised_guidance(const sluice_model *model, struct sluice_request *request) {
    int last = component_last_perturbable(model_component(model, FAMILY_DENOISER)), n = 0;
    const int *blocks = model->recipe->defaults.guides.stg_blocks;
    while (n < STG_BLOCKS_MAX && blocks[n] >= 0 && blocks[n] <= last) n++;
    request->stg_blocks = blocks;
    request->n_stg_blocks = n;
    request->stg_scale = n ? model->recipe->defaults.guides.stg_scale : 0;
    request->audio_cfg_scale = model->recipe->defaults.guides.audio_cfg_scale;
    request->modality_scale = model->recipe->defaults.guides.modality_scale;
    request->cfg_rescale = model->recipe->defaults.guides.cfg_rescale;
}

void sluice_request_defaults(const sluice_model *model, struct sluice_request *request) {
    if (!model || !request) return;
    struct sluice_request ours = {
        .struct_size = request->struct_size,
        .width = model->width,
        .height = model->height,
        .frames = model->frames,
        .fps = model->fps,
        .steps = model->steps,
        .batch = 1,
        .cfg_scale = model->cfg_scale,
        .cfg_scale_low = model->cfg_scale_low,
        .guidance = model->guidance,
        .strength = model->strength,
        .cfg_norm = model->cfg_norm,
        .cfg_until = model->cfg_until,
        .slg_scale = 2.8,
        .slg_start = 0.01,
        .slg_end = 0.2,
    };
    if (model->recipe->denoising.guides_denoised) set_denoised_guidance(model, &ours);
    size_t bytes = request->struct_size < sizeof ours ? request->struct_size : sizeof ours;
    memset(request, 0, request->struct_size);
    memcpy(request, &ours, bytes);
}
