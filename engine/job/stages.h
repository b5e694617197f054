/* Kinds of stages: how the lanes of a stage are connected to the tensors of a layout. */
#ifndef SLUICE_JOB_STAGES_H
#define SLUICE_JOB_STAGES_H

#include "engine/job/job.h"

struct stage_kind {
    const char *name;
    bool denoises; /* true: a stage of the denoiser, with a lane for each image and guidance branch */
    /* true: computes in the device's most exact precision, whatever the request asks for. */
    bool default_precision;
    bool full_frames;     /* true: has full-frame buffers, which --vae-tiling makes smaller */
    bool encodes_prompts; /* true: a text or vision stage, whose time is not predicted */
    /* Connects the lanes of stage s to the tensors of the layout. */
    void (*connect)(const struct job *job, const struct layout *layout, int s, struct lane *lanes);
};

extern const struct stage_kind stage_text, stage_vision, stage_encode, stage_hoist, stage_denoise,
    stage_decode;

#endif
