/* Kinds of stages, one struct each: how a stage's lanes are connected, and the host's callbacks. */
#ifndef SLUICE_API_STAGES_H
#define SLUICE_API_STAGES_H

#include "engine/api/layout.h"

struct running;

struct stage_kind {
    const char *name;
    bool denoises;          /* the denoiser: a lane for each image and guidance branch, in groups of images */
    bool default_precision; /* computes in the device's most exact precision, whatever the request asks for */
    bool full_frames;       /* has full-frame buffers, which --vae-tiling makes smaller */
    bool encodes_prompts;   /* a text or vision stage, whose time is not predicted */
    /* Connects the lanes of stage s to the tensors of the layout. */
    void (*connect)(const struct job *job, const struct layout *layout, int s, struct lane *lanes);
    /* Host callbacks, or NULL. If an evaluation is repeated, evaluation_begins is called again. */
    enum status (*evaluation_begins)(struct running *r, int stage, int evaluation, struct error *e);
    enum status (*evaluation_ended)(struct running *r, int stage, int evaluation, struct error *e);
    enum status (*stage_ended)(struct running *r, int stage, struct error *e);
};

extern const struct stage_kind stage_text, stage_vision, stage_encode, stage_hoist, stage_denoise,
    stage_decode;

#endif
