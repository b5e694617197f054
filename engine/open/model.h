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
    struct sys machine; /* the system interface, unless a test supplies its own */
    struct sys *sys;
    char *name; /* the last component of its path */
    const struct recipe *recipe;
    struct component component[SLOTS_MAX]; /* of each slot of the recipe; family NULL: absent */
    enum config_origin config_origin[SLOTS_MAX];
    bool decodes_only;    /* only decoders are open, and no tokenizer */
    bool decoder_assumed; /* the decoder fits several recipes and no file identifies one */
    bool has_schedule;    /* a file of the model has the schedule, or its flow shift */
    bool pipeline_named;  /* model_index.json or --edit names the pipeline */
    /* The file of the only denoiser is named as one of WAN 2.2's two experts: that expert's slot; or NULL. */
    const struct slot *lone_expert;
    const char *other_model_word; /* word of another model in the tiny decoder's path; or NULL */
    bool published;               /* no files (--family): the model can only be planned */
    uint64_t tokenizer_bytes;     /* with --family: estimated memory of the tokenizers; part of host_bytes */
    struct tokenizer *tokenizer[SLOTS_MAX];
    struct sampling sampling;
    enum flow_shift_rule shift_rule;
    double flow_shift; /* 0: shift_rule computes it */
    struct flow_shift_line shift_line;
    double shift_terminal;             /* sigma that the shifted schedule is stretched to end at; 0: none */
    bool force_zeros_for_empty_prompt; /* an absent negative prompt means zero embeddings, not "" */
    enum init_image_rule init;         /* how the input image is used */
    int references_max;                /* most reference images a request may have */
    int width, height, frames, fps, steps; /* defaults; fps 0: an image model */
    double cfg_scale, guidance, strength;
    double cfg_scale_low; /* of the second of two denoisers; 0: cfg_scale */
    double boundary;      /* fraction of the training timesteps below which the second denoiser runs; 0: one
                             denoiser */
    int size_step;        /* width and height are multiples of it */
    uint64_t host_bytes;  /* held by the model, from our allocator */
    uint64_t open_bytes;  /* temporary memory that opening took on top of host_bytes */
    bool no_hoist;        /* for tests: no hoist stage */
};

/* sys: NULL for the machine; the model keeps the pointer. On failure *model is NULL. */
enum status model_open(struct sys *sys, const struct sluice_model_options *options,
                       struct sluice_model **model, struct error *e);
/* As model_open. reserved_bytes: the part of the options' memory budget that the process uses already. */
enum status model_open_reserving(struct sys *sys, const struct sluice_model_options *options,
                                 uint64_t reserved_bytes, struct sluice_model **model, struct error *e);
void model_close(struct sluice_model *model);

/* The slot of the autoencoder's decoder, or of the tiny decoder; the other one if the requested one is
 * absent. SLOTS_MAX: both are absent. */
int model_decoder_slot(const struct sluice_model *model, bool tiny);
/* A decoder of the model, for the sizes that all its decoders share (latent channels, pixel factor). family
 * NULL: the model has no decoder. */
const struct component *model_decoder(const struct sluice_model *model);

/* The component in the first slot of that kind; family NULL: absent. */
const struct component *model_component(const struct sluice_model *model, enum family_kind kind);

/* Columns of the denoiser's text or pooled row that this condition's encoder fills. Of absent encoders the
 * first gets the columns of the pooled row that the others leave over; the rest get 0. */
int32_t model_condition_columns(const struct sluice_model *model, int condition);

/* One line for a text encoder that the model lacks: which zeros replace its output. */
void model_note_absent(const struct recipe *recipe, int slot, char line[MODEL_NOTE_BYTES]);

/* One line for each default assumed because no file of the model has the value. Returns their number. */
int model_notes(const struct sluice_model *model, char lines[MODEL_NOTES_MAX][MODEL_NOTE_BYTES]);

/* Copies a public structure that may be shorter or longer than ours (struct_size). */
void copy_sized(void *to, size_t to_bytes, const void *from);

/* Fills the public form of an error. Returns its code. */
int publish_error(const struct error *e, struct sluice_error *public);
/* Converts an error that a caller's callback reported. Returns its code. */
enum status adopt_error(const struct sluice_error *public, struct error *e);

#endif
