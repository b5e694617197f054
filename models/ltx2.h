/* Shared by the two files of LTX-2's transformer: ltx2.c (blocks) and ltx2_recipes.c (sizes, recipes). */
#ifndef SLUICE_MODELS_LTX2_H
#define SLUICE_MODELS_LTX2_H

#include "models/models.h"

/* component.variant. LTX2_PROMPT_ROWS: LTX-2.0, whose transformer embeds the prompt's rows. LTX2_GATED:
 * LTX-2.3, whose attention has a gate per head and whose timestep modulates the prompt's rows. */
enum { LTX2_PROMPT_ROWS, LTX2_GATED };

/* Indices into component.dims. SOUND_: of the sound stream. */
enum ltx2_dim {
    DIM, /* DIM has index 0, which weight_spec.if_dim reads as "always" */
    HEADS,
    HEAD, /* channels per head */
    FEED_FORWARD,
    CHANNELS, /* values of a token's input and output */
    TABLE,    /* vectors of a block's modulation table: 6, or 9 with a modulated prompt */
    SOUND_DIM,
    SOUND_HEADS,
    SOUND_HEAD,
    SOUND_FEED_FORWARD,
    SOUND_CHANNELS,
    SOUND_TABLE,
    TWO,
    FIVE,
    TABLE_DIM, /* TABLE * DIM */
    FOUR_DIM,
    TWO_DIM,
    SOUND_TABLE_DIM,
    SOUND_FOUR_DIM,
    SOUND_TWO_DIM,
    FREQUENCIES,
    CAPTION, /* width of the prompt's rows, for each stream; 0: the rows have the streams' widths (LTX-2.3) */
    GATED,   /* 1: LTX-2.3 */
    LAYERS,
    /* For config.json alone. */
    SOUND_GATED,
    TEXT_MODULATED,
    SOUND_TEXT_MODULATED,
    CAPTIONED,
    CHANNELS_OUT,
    SOUND_CHANNELS_OUT,
};

struct ltx2_settings {
    float eps;
    float gate_time_scale; /* cross_attn_timestep_scale_multiplier: factor of sigma for the gates of attention
                              between the streams */
    double theta;
    /* rope_axis.size of the video's axes, in seconds and pixels, and of the sound's, in seconds */
    float time_size, height_size, width_size, sound_time_size;
    float sample_rate, hop; /* of the spectrogram: samples per second; samples per spectrogram frame */
    int perturbed;          /* 0: spatio-temporal guidance has no effect (perturbed_attn in config.json) */
    int heads, sound_heads;
};

enum { N_LTX2_DIMENSIONS = 22, N_LTX2_SETTINGS = 10 };
extern const struct dimension ltx2_dimensions[N_LTX2_DIMENSIONS];
extern const struct setting ltx2_settings_rows[N_LTX2_SETTINGS];
extern const struct expectation ltx2_expects[];

/* True for LTX-2, 2.3 and 2.5; false for LTX-Video 0.9. */
bool ltx2_has_sound(const struct tensor_index *index);
/* Callbacks of family_ltx2; struct family documents each. */
enum status ltx2_refuse(const struct component *c, struct error *e);
enum status ltx2_configure(struct component *c, const struct config *config, struct error *e);
void ltx2_derive_dims(struct component *c);
void ltx2_derive(struct component *c);

#endif
