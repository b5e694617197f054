/* Models without files (--family): sizes of a pipeline, published or from --dims, and components whose
 * indexes list tensor names, shapes and types, as a plan needs. */
#ifndef SLUICE_OPEN_PUBLISHED_H
#define SLUICE_OPEN_PUBLISHED_H

#include "engine/sluice.h"
#include "models/models.h"

/* Dimensions of all components of a pipeline. */
struct sizes {
    int only; /* the only slot whose sizes are needed; SLOTS_MAX: all components of the model */
    int of[SLOTS_MAX][DIMENSIONS_MAX]; /* values of the dimensions of the family in each slot */
    const char *dtype;                 /* value of "dtype=" in --dims, not NUL-terminated; NULL: absent */
    size_t dtype_bytes;
};

/* Finds a recipe by name; NULL with USAGE, which lists the names. */
const struct recipe *sizes_find_recipe(const char *name, struct error *e);
/* Reads --dims. only: the only slot that is needed, or SLOTS_MAX. text: "name=value,..." with names of the
 * families' dimensions and "dtype=TYPE"; borrowed; NULL: published sizes. "clip_g.name=value" or
 * "text_encoder_2.name=value" sets only the slot with that flag or folder. USAGE: an unknown name (lists
 * all), a repeated name, a value out of range. */
enum status sizes_read(struct sizes *sizes, const struct recipe *recipe, int only, const char *text,
                       struct error *e);

/* True for the flag of an extra part (slot.extra) with the name of its family: "--redux redux". */
bool published_takes_part(const struct sluice_part *part);

/* Binds a component in bf16 for each slot of the recipe that the options do not disable, and for extra slots
 * whose flags the options have. component: SLOTS_MAX entries, to be destroyed also after failure. The
 * components' weights cannot be read, because there are no files. *tokenizer_bytes: estimated memory of the
 * tokenizers. MEMORY, or a family's error about inconsistent sizes. */
enum status published_bind(struct sys *sys, const struct recipe *recipe, const struct sizes *sizes,
                           const struct sluice_model_options *options, struct component *component,
                           uint64_t *tokenizer_bytes, struct error *e);

/* Binds a control network or an upscaler in bf16, without files. part->path: a family, such as
 * "unet_control", with published sizes, or "unet_control:size=value,..." with changed ones as in --dims.
 * denoiser: slot of the denoiser, whose sizes the control network follows; NULL: an upscaler. *c is destroyed
 * by the caller, also after failure. USAGE: an unknown name; lists the known ones. */
enum status published_bind_network(struct sys *sys, const struct sluice_part *part,
                                   const struct slot *denoiser, struct component *c, struct error *e);

#endif
