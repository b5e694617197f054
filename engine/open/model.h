/* An opened model: components matched to families, tokenizer, schedule and defaults. Immutable. */
#ifndef SLUICE_OPEN_MODEL_H
#define SLUICE_OPEN_MODEL_H

#include "engine/open/configuration.h"
#include "engine/sluice.h"
#include "loaders/loaders.h"
#include "loaders/tokenizer/tokenizer.h"
#include "models/models.h"

enum { MODEL_NOTES_MAX = 2 * SLOTS_MAX + 4, MODEL_NOTE_BYTES = 160 };

struct sluice_model {
    struct sys machine; /* used unless a test brings its own */
    struct sys *sys;
    char *name; /* the last component of its path */
    const struct recipe *recipe;
    struct component component[SLOTS_MAX]; /* of each slot of the recipe; without family: none is there */
    enum config_origin config_origin[SLOTS_MAX];
    bool decodes_only;    /* of the components only decoders are there, and no tokenizer */
    bool decoder_assumed; /* nothing says which of several recipes that decoder is of */
    bool has_schedule;    /* a file says the schedule, or its flow shift */
    bool named;           /* a model_index.json, or --edit, names the pipeline */
    /* Of a pipeline with one denoiser, whose file is called as one of two is: that one's slot; or NULL. */
    const struct slot *half;
    const char *misnamed;     /* what the tiny decoder's path calls it, which is another model's; or NULL */
    bool published;           /* there are no files: plans alone can be made */
    uint64_t tokenizer_bytes; /* that tokenizers which are not there would take; part of host_bytes */
    struct tokenizer *tokenizer[SLOTS_MAX];
    struct sampling sampling;
    enum flow_shift_rule shift_rule;
    double flow_shift; /* 0 where the rule makes it */
    struct flow_shift_line shift_line;
    double shift_terminal;                 /* of the schedule's own shift; 0: none */
    bool zero_negative;                    /* an absent negative prompt is zeros, not "" */
    enum init_rule init;                   /* what a picture to start from is */
    int references_max;                    /* pictures to refer to that a request may have */
    int width, height, frames, fps, steps; /* defaults; fps 0: it draws pictures */
    double cfg_scale, guidance, strength;
    double cfg_scale_low; /* of two denoisers the second's; 0: as cfg_scale */
    double boundary; /* below which part of training's timesteps the second denoiser works; 0: there is one */
    int size_step;   /* width and height are multiples of it */
    uint64_t host_bytes; /* our allocator's, held by the model */
    uint64_t open_bytes; /* what opening needed for a while beyond that */
    bool plain;          /* nothing is hoisted: only for the test that this changes no bit */
};

/* sys: NULL for the machine. The model keeps the pointer. */
enum status model_open(struct sys *sys, const struct sluice_model_options *options,
                       struct sluice_model **model, struct error *e);
/* beside_bytes: what of the options' budget is not for files: the process as it stands. */
enum status model_open_beside(struct sys *sys, const struct sluice_model_options *options,
                              uint64_t beside_bytes, struct sluice_model **model, struct error *e);
void model_close(struct sluice_model *model);

/* The slot of the autoencoder's decoder, or that of the tiny one; the other where the model has not the one
 * that is asked for. SLOTS_MAX: it has neither. */
int model_decoder_slot(const struct sluice_model *model, bool tiny);
/* What tells about latents and their pictures what all decoders of the model agree on. One without family if
 * there is none. */
const struct component *model_decoder(const struct sluice_model *model);

/* The component in the first slot of that kind; one without family if there is none. */
const struct component *model_component(const struct sluice_model *model, enum family_kind kind);

/* How many columns of a denoiser's text, or pooled row, are for that condition's encoder: its own. Where it
 * is absent the first such has what the others leave of the pooled row, if it has a part of it; others have
 * none. */
int32_t model_condition_columns(const struct sluice_model *model, int condition);

/* One line for a text encoder that a model is without: what stands in its place. */
void model_note_absent(const struct recipe *recipe, int slot, char line[MODEL_NOTE_BYTES]);

/* One line for everything that no file of the model says and that was assumed. Returns how many. */
int model_notes(const struct sluice_model *model, char lines[MODEL_NOTES_MAX][MODEL_NOTE_BYTES]);

/* A copy of a public structure that may be shorter or longer than ours. */
void copy_sized(void *to, size_t to_bytes, const void *from);

/* The public face of an error. Returns its code. */
int publish_error(const struct error *e, struct sluice_error *public);
/* The same the other way: what a caller's own function failed with. */
enum status adopt_error(const struct sluice_error *public, struct error *e);

#endif
