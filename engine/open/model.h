/* An opened model: components bound to families, tokenizers, schedule and defaults. Immutable. */
#ifndef SLUICE_OPEN_MODEL_H
#define SLUICE_OPEN_MODEL_H

#include "engine/open/configuration.h"
#include "engine/sluice.h"
#include "loaders/loaders.h"
#include "loaders/tokenizer/tokenizer.h"
#include "models/models.h"

enum { MODEL_NOTES_MAX = 2 * SLOTS_MAX + 4, MODEL_NOTE_BYTES = 160 };

struct sluice_model {
    struct sys machine; /* the operating system's functions; tests replace them through sys */
    struct sys *sys;
    char *name; /* last part of the model's path */
    const struct recipe *recipe;
    struct component component[SLOTS_MAX]; /* component of each slot of the recipe; family NULL: absent */
    enum config_origin config_origin[SLOTS_MAX];
    bool decodes_only;    /* only decoders are open, and no tokenizer */
    bool decoder_assumed; /* the decoder fits several recipes, and no file identifies the right one */
    bool has_schedule;    /* the noise schedule or its flow shift was read from a file of the model */
    bool pipeline_named;  /* model_index.json or --edit names the pipeline */
    /* The only denoiser's file is named as one of WAN 2.2's two experts: the slot of that expert; or NULL. */
    const struct slot *lone_expert;
    const char *other_model_word; /* word in the tiny decoder's path that names another model; or NULL */
    bool published;               /* no files (--family): the model can only be planned */
    uint64_t tokenizer_bytes;     /* with --family: estimated bytes of the tokenizers, part of host_bytes */
    struct tokenizer *tokenizer[SLOTS_MAX];
    struct sampling sampling;
    enum flow_shift_rule shift_rule;
    double flow_shift; /* flow shift of the noise schedule; 0: shift_rule computes it from the image size */
    struct flow_shift_line shift_line;
    double shift_terminal; /* sigma to which the schedule is stretched for its last step; 0: no stretching */
    bool force_zeros_for_empty_prompt;     /* absent negative prompt: zero embeddings, not an encoded "" */
    enum init_image_rule init;             /* how the input image is used */
    int references_max;                    /* largest number of reference images in a request */
    int width, height, frames, fps, steps; /* defaults of a request; fps 0: image model */
    double cfg_scale, guidance, strength;
    double cfg_scale_low; /* cfg_scale of the second (low-noise) denoiser; 0: same as cfg_scale */
    double boundary; /* diffusers' boundary_ratio: timestep share of the second denoiser; 0: one denoiser */
    int size_step;   /* width and height must be multiples of this number of pixels */
    uint64_t host_bytes; /* bytes allocated by the open model */
    uint64_t open_bytes; /* temporary bytes of opening the model, on top of host_bytes */
    bool no_hoist;       /* disables the hoist stage, for tests */
};

/* Opens a model. sys: system functions, kept; NULL: the operating system's. On
 * failure *model is NULL. */
enum status model_open(struct sys *sys, const struct sluice_model_options *options,
                       struct sluice_model **model, struct error *e);
/* As model_open. reserved_bytes: the part of the options' memory budget that the process uses already. */
enum status model_open_reserving(struct sys *sys, const struct sluice_model_options *options,
                                 uint64_t reserved_bytes, struct sluice_model **model, struct error *e);
void model_close(struct sluice_model *model);

/* The slot of the tiny decoder (tiny) or of the autoencoder's decoder; the other of the two if the requested
 * decoder is absent. SLOTS_MAX: both are absent. */
int model_decoder_slot(const struct sluice_model *model, bool tiny);
/* A decoder of the model, for sizes that all its decoders share (latent channels, pixel factor). family NULL:
 * the model has no decoder. */
const struct component *model_decoder(const struct sluice_model *model);

/* The component in the first slot of a kind (text encoder, denoiser, ...); family NULL: absent. */
const struct component *model_component(const struct sluice_model *model, enum family_kind kind);

/* Columns of prompt_embeds or pooled_projections that this condition's encoder fills. If encoders are absent,
 * the first absent one gets the remaining columns of pooled_projections, further ones 0. */
int32_t model_condition_columns(const struct sluice_model *model, int condition);

/* Writes one line about a text encoder that the model lacks: which zeros replace its output. */
void model_note_absent(const struct recipe *recipe, int slot, char line[MODEL_NOTE_BYTES]);

/* Writes one line for each default assumed because no file has the value. Returns the number of lines. */
int model_notes(const struct sluice_model *model, char lines[MODEL_NOTES_MAX][MODEL_NOTE_BYTES]);

/* Copies a public structure that may be shorter or longer than this build's (struct_size). */
void copy_sized(void *to, size_t to_bytes, const void *from);

/* Copies an error to its public form. Returns the error's code. */
int publish_error(const struct error *e, struct sluice_error *public);
/* Copies an error that a caller's callback reported to e. Returns its code. */
enum status adopt_error(const struct sluice_error *public, struct error *e);

#endif
