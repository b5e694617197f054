/* Makes layouts: a job as stages with lanes, visits and inter-stage buffers, for one layout_choice. The
 * planner makes a layout for each choice and compares them; all layouts give the same images. A stage kind
 * connects the lanes of a stage to the tensors of the layout. */
#ifndef SLUICE_JOB_LAYOUT_H
#define SLUICE_JOB_LAYOUT_H

#include "engine/job/job.h"

/* Makes a layout of the job. memory: for the inter-stage buffers; a layout made with memory NULL has tensors
 * without data, and its interstage.peak is the number of bytes needed. The caller closes the layout, also
 * after failure. */
enum status layout_open(const struct job *job, struct layout_choice choice, void *memory,
                        struct layout *layout, struct error *e);
void layout_close(struct sys *sys, struct layout *layout);
/* Replaces job->layout by one of this choice, and the layout of the second pass's job by a shallow copy of
 * its second_pass. Parameters and errors as for layout_open. */
enum status layout_choose(struct job *job, struct layout_choice choice, void *memory, struct error *e);

enum { LAYOUT_NAME_BYTES = BLOCK_NAME_MAX + 16 };
/* Name of block i of stage s in plans and reports. Blocks of control networks have a prefix: "control." for
 * the model's first network, "control_2." for its second. out has LAYOUT_NAME_BYTES. Returns out. */
char *layout_block_name(const struct job *job, const struct layout *layout, int s, int i, char *out);

/* Allocates the inter-stage buffers of job->layout. Fails with MEMORY. */
enum status layout_allocate(struct job *job, struct error *e);
/* Moves the alpha of layout.rgb to layout.alpha, if there is one; layout.rgb then begins with packed RGB. */
void layout_split_alpha(const struct layout *layout);
/* Frees the inter-stage buffers before the job is closed. layout_allocate can be called again. */
void layout_release(struct job *job);

/* Builds the executor's input for a layout. */
struct run layout_run(const struct job *job, struct layout *layout, const struct run_hooks *hooks);

struct stage_kind {
    const char *name;
    bool denoises;        /* true: a stage of the denoiser, with a lane for each image and guidance branch */
    bool full_frames;     /* true: has full-frame buffers, which --vae-tiling makes smaller */
    bool encodes_prompts; /* true: a text or vision stage, whose time is not predicted */
    /* Connects the lanes of stage s to the tensors of the layout. */
    void (*connect)(const struct job *job, const struct layout *layout, int s, struct lane *lanes);
};

extern const struct stage_kind stage_text, stage_vision, stage_encode, stage_hoist, stage_denoise,
    stage_sound, stage_vocoder, stage_decode, stage_upscale, stage_upsample;

#endif
