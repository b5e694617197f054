/* Kinds of stages, a row each: what sets them apart in a layout, and the host's turns after them. */
#ifndef SLUICE_API_STAGES_H
#define SLUICE_API_STAGES_H

#include "engine/api/layout.h"

struct running;

struct stage_kind {
    const char *name;
    bool denoises;        /* lanes are images under guidance branches, in groups that take turns */
    bool first_precision; /* it computes in the device's first precision, whatever the request's */
    bool whole_pictures;  /* it has buffers that tiling makes smaller */
    bool of_texts;        /* before anything is known of the time that is left */
    /* Fills the lanes of stage s in. */
    void (*connect)(const struct job *job, const struct layout *layout, int s, struct lane *lanes);
    /* The host's turns; NULL: nothing is to be done. The first again where an evaluation is computed again.
     */
    enum status (*evaluation_begins)(struct running *r, int stage, int evaluation, struct error *e);
    enum status (*evaluation_ended)(struct running *r, int stage, int evaluation, struct error *e);
    enum status (*stage_ended)(struct running *r, int stage, struct error *e);
};

extern const struct stage_kind stage_text, stage_vision, stage_encode, stage_hoist, stage_denoise,
    stage_decode;

#endif
