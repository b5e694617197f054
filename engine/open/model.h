/* An opened model: components bound to families, tokenizers, schedule and defaults. Immutable. */
#ifndef SLUICE_OPEN_MODEL_H
#define SLUICE_OPEN_MODEL_H

#include "engine/open/configuration.h"
#include "engine/open/public_structs.h"
#include "engine/sluice.h"
#include "loaders/loaders.h"
#include "loaders/tokenizer/tokenizer.h"
#include "models/models.h"

/* Components after those of the recipe's slots: control networks (--control-net, in the order of the flags),
 * then upscalers (--upscale-model, --hires-upscaler, --upscaler). */
enum {
    MODEL_CONTROL = SLOTS_MAX,
    MODEL_UPSCALER = MODEL_CONTROL + CONTROLS_MAX,
    MODEL_HIRES_UPSCALER,
    MODEL_LATENT_UPSCALER,
    MODEL_COMPONENTS
};

enum { MODEL_NOTES_MAX = 2 * SLOTS_MAX + CONTROLS_MAX + 4, MODEL_NOTE_BYTES = 160 };

struct sluice_model {
    struct sys machine; /* functions of the operating system; tests set `sys` to other functions */
    struct sys *sys;
    char *name; /* last part of the model's path */
    const struct recipe *recipe;
    /* Component of each slot of the recipe, control networks and upscalers; family NULL: absent. */
    struct component component[MODEL_COMPONENTS];
    enum config_origin config_origin[MODEL_COMPONENTS];
    bool decodes_only;    /* for decoding alone: only decoders are open, and no tokenizer */
    bool upscales_only;   /* the upscaler is the only component (--upscale-model without a model) */
    bool decoder_assumed; /* the decoder fits several recipes, and no file identifies the right one */
    bool has_schedule;    /* the noise schedule or its flow shift was read from a file of the model */
    bool pipeline_named;  /* model_index.json or --edit names the pipeline */
    /* If the model has only one of WAN 2.2's two experts, judged by the file's name: the slot of the present
     * expert; else NULL. */
    const struct slot *lone_expert;
    const char *other_model_word; /* word in the tiny decoder's path that names another model; or NULL */
    bool published; /* the model has published sizes and no files (--family): only planning is possible */
    uint64_t tokenizer_bytes; /* with --family: estimated bytes of the tokenizers, part of host_bytes */
    struct tokenizer *tokenizer[SLOTS_MAX];
    struct sampling sampling;
    enum flow_shift_rule shift_rule;
    double flow_shift; /* flow shift of the noise schedule; 0: shift_rule computes it from the image size */
    struct flow_shift_line shift_line;
    double shift_terminal; /* sigma of the last step after stretching the schedule; 0: no stretching */
    /* for an absent negative prompt: use zero embeddings, do not encode "" */
    bool force_zeros_for_empty_prompt;
    enum init_image_rule init; /* rule for the use of an input image (img2img, first frame, ...) */
    int references_max;        /* largest number of reference images that a request may have */
    int width, height, frames, fps, steps; /* default values of a request; fps is 0 for an image model */
    double cfg_scale, guidance, strength;
    double cfg_norm, cfg_until; /* default limits of guidance; 0 and 1: none */
    double cfg_scale_low;       /* default for the second (low-noise) denoiser; 0: same as cfg_scale */
    double boundary;            /* diffusers' boundary_ratio: share of the second denoiser; 0: one denoiser */
    int token_side;             /* side of a denoiser's token in pixels of the image */
    int size_step;              /* width and height must be multiples of this number of pixels */
    float sample_sigmas[SAMPLE_SIGMAS_MAX]; /* sampling.grid.sample_sigmas, from model_index.json */
    uint64_t host_bytes;                    /* bytes allocated by the open model */
    uint64_t open_bytes;                    /* temporary bytes of opening the model, on top of host_bytes */
    bool no_hoist;                          /* disables the hoist stage, for tests */
};

/* Opens a model (model_open.c). sys: system functions, kept; NULL: the operating system's. On
 * failure *model is NULL. */
enum status model_open(struct sys *sys, const struct sluice_model_options *options,
                       struct sluice_model **model, struct error *e);
/* As model_open. reserved_bytes: part of max_ram_bytes that the process already uses. */
enum status model_open_reserving(struct sys *sys, const struct sluice_model_options *options,
                                 uint64_t reserved_bytes, struct sluice_model **model, struct error *e);
void model_close(struct sluice_model *model);

/* The slot of the tiny decoder (tiny) or of the autoencoder's decoder; if the requested decoder is absent,
 * the slot of the other decoder. SLOTS_MAX: both decoders are absent. */
int model_decoder_slot(const struct sluice_model *model, bool tiny);
/* Returns any decoder of the model, for reading sizes that all decoders of a model share (latent channels,
 * pixel factor). family NULL: the model has no decoder. */
const struct component *model_decoder(const struct sluice_model *model);

/* The component in the first slot of a kind (text encoder, denoiser, ...); family NULL: absent. */
const struct component *model_component(const struct sluice_model *model, enum family_kind kind);

/* Number of columns that the text encoder of a condition fills in prompt_embeds or pooled_projections. If
 * encoders of pooled_projections are absent, the first absent encoder counts with all remaining columns,
 * further absent encoders with 0. */
int32_t model_condition_columns(const struct sluice_model *model, int condition);

/* Writes one line about an absent text encoder, for the log: the shape of the zeros that replace the
 * encoder's output. */
void model_note_absent(const struct recipe *recipe, int slot, char line[MODEL_NOTE_BYTES]);

/* Writes one log line for each default value that is assumed because no file of the model has the value.
 * Returns the number of lines. */
int model_notes(const struct sluice_model *model, char lines[MODEL_NOTES_MAX][MODEL_NOTE_BYTES]);

#endif
