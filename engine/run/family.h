/* Model families, and components: families bound to files. A family is one file in models/: name, probe,
 * block kinds, lane state, visits. Its configuration comes from tensor shapes and, where shapes do not
 * suffice, from config.json. */
#ifndef SLUICE_RUN_FAMILY_H
#define SLUICE_RUN_FAMILY_H

#include "engine/base/config.h"
#include "engine/run/block.h"
#include "engine/run/dimension.h"
#include "engine/run/hidden_states.h"
#include "kernels/ops.h"

struct component;
struct visit_list;

enum family_kind {
    FAMILY_TEXT,
    FAMILY_VISION,
    FAMILY_DENOISER,
    FAMILY_DECODER,
    FAMILY_ENCODER,
    FAMILY_TINY_DECODER,    /* decodes latents quickly and approximately (TAESD) */
    FAMILY_CONTROL,         /* control network: computes residuals that a denoiser adds (ControlNet) */
    FAMILY_UPSCALER,        /* enlarges images (ESRGAN) */
    FAMILY_LATENT_UPSCALER, /* enlarges latents (LTX) */
    FAMILY_SOUND_DECODER,   /* decodes sound latents to a mel spectrogram (audio VAE) */
    FAMILY_VOCODER,         /* synthesises the samples of a waveform from a mel spectrogram */
};

enum { FAMILY_DIMS_MAX = 64, FAMILY_SETTINGS_BYTES = 512 };

enum { FAMILY_BLOCKS_MAX = 1024, TABLES_MAX = 4 };

/* A tensor of the lane state that can be looked up by name. */
struct state_tensor {
    const char *name;
    size_t offset;
};

#define STATE_TENSOR(structure, field)                                                                       \
    { #field, offsetof(struct structure, field) }

/* The frames that a video VAE decodes or encodes in one evaluation. If the decoder's output lags its input,
 * as that of LTX-2's convolutions over later frames, an evaluation may have n_frames 0 or n_latents 0. */
struct frame_chunk {
    int32_t first_latent, n_latents; /* in latent frames */
    int32_t first_frame, n_frames;   /* in video frames */
};

enum { FRAME_CHUNKS_MAX = 256 };

/* How a vision encoder reads an image: the size in pixels to resample to, and the grid of tokens that the
 * encoder writes to the lane's text, row by row. No tokens: the encoder rejects images of this size. */
struct vision_grid {
    int32_t width, height;
    int32_t columns, rows;
    /* For encoders that crop: size in pixels to resample to first; position of the crop. width 0: no crop. */
    struct {
        int32_t width, height, left, top;
    } whole;
};

/* The text encoder outputs that a pipeline reads. */
struct text_reads {
    struct hidden_states hidden;
    bool tokens, pooled;         /* outputs in use: hidden states of all tokens; one pooled row per prompt */
    bool projected;              /* text_projection is applied to the pooled row */
    const char *projected_class; /* model class in config.json for which text_projection is applied; NULL: any
                                    class */
};

enum { PREDICTED_MAX = 2 };

/* A block of a family that `sluice bench block --predict` predicts, with input sizes as in an image of
 * 1024 x 1024 or a video, and the longest prompts. Sizes of 0 mean 1. */
struct predicted_block {
    const char *kind; /* name of the predicted block's kind; NULL ends the list */
    int number;
    bool alone;      /* earlier blocks do not run; false: they run, but are not counted */
    bool whole;      /* all blocks run and are counted; `kind` then names the component in the table */
    const int *dims; /* values of the family's dimensions; NULL: published values */
    int32_t tokens;  /* number of tokens that the block processes; for VAEs, number of pixels */
    int32_t text_rows, text_columns;
    int32_t latent_channels, latent_frames, latent_side; /* latent_side: height of the latent */
    int32_t latent_columns;                              /* width of the latent; 0: equal to latent_side */
    int32_t sound[3]; /* channels, frames and bins of the sound's latent, or of a vocoder's spectrogram; 0:
                         no sound */
    int32_t picture_side; /* side of the image in pixels */
    int chunk;            /* frames per chunk of a video VAE; 0: a single image */
};

/* Sizes at which `sluice bench block` measures a family on the CPU, one case of the benchmark. */
struct measured_block {
    const char *name, *shape; /* name of the case, such as "block", and its description in the report; a NULL
                                 name ends a list */
    const char *kind;         /* name of the measured block's kind; NULL: all blocks */
    int32_t text_rows, text_columns, latent_channels, latent_side, picture_side; /* as in predicted_block */
    int rounds; /* timed repetitions; the report has their median */
};

/* Initialisers of predicted_block for an image of 1024 x 1024 with 16 latent channels. */
#define PREDICTED_IMAGE .latent_channels = 16, .latent_side = 128, .picture_side = 1024

/* How the files of a family are recognised when a model is opened. */
struct family_files {
    /* Values of general.architecture in GGUF files, usual one first, NULL-terminated. NULL: no GGUF files. */
    const char *const *architectures;
    /* A config.json with the string config_value at config_key belongs to this family. */
    const char *config_key, *config_value;
    const char *const *config_others; /* further values of config_key, NULL-terminated; NULL: none */
    /* True if the index holds the family's characteristic tensors. */
    bool (*probe)(const struct tensor_index *index);
    /* Another family with the same tensor names and shapes. A file that fits both is recognised as the other
     * family, and slots of this family accept it. NULL: none. */
    const struct family *same_tensors;
    /* Rejects other architectures with the same tensor names, before dims are read. May be NULL. */
    enum status (*refuse)(const struct component *c, struct error *e);
    /* Prefixes of tensor names that files may contain and no block uses, NULL-terminated. NULL: none. */
    const char *const *ignorable;
    /* Beginnings of all the family's tensor names, NULL-terminated. They tell the family's tensors from those
     * of another component in the same file with the same tensor prefix, as in files with LTX-2's transformer
     * and connectors. NULL: no such files. */
    const char *const *names;
};

enum { LATENT_LISTS = 2 }; /* latent_norm.lists: mean, standard deviation */

/* Where the scaling of a VAE's latents (component.latent_format) is in files: configuration values for all
 * channels together, a list per channel, or tensors. Without any: scale 1, shift 0. */
struct latent_norm {
    const struct setting *settings; /* scale and shift of all channels; offsets in struct latent_format */
    int n_settings;
    /* Mean and standard deviation of each channel, two lists: latent = (z - mean) / deviation. Offsets in
     * struct latent_format. NULL: none. */
    const struct setting_list *lists;
    /* Block with two weights [C]: mean and variance of each latent channel, latent = (z - mean) /
     * sqrt(variance + eps). The values are read when the model is opened; family_blocks.list lists the block
     * as unused. NULL: none. */
    const struct block_kind *tensors;
    bool deviations;     /* the second tensor holds standard deviations instead of variances (LTX); no eps */
    const char *eps_key; /* configuration key of eps */
    double eps;          /* published eps */
};

/* How a component's dims and settings are read from files, chosen for a synthetic component, and written as
 * config.json (component.h). */
struct family_config {
    /* Tables of dims, settings and required configuration values (`expects`: may be NULL; a NULL key ends
     * that table). */
    const struct dimension *dimensions;
    int n_dimensions;
    const struct setting *settings;
    int n_settings;
    const struct setting_list *lists;
    int n_lists;
    struct latent_norm latent_norm;
    /* Table of the settings that a vision encoder reads from preprocessor_config.json (config.pictures). */
    const struct setting *picture_settings;
    int n_picture_settings;
    const struct expectation *expects;
    /* Makes checks and computes settings that the tables cannot express. Called after the tables are read.
     * May be NULL. */
    enum status (*configure)(struct component *c, const struct config *config, struct error *e);
    /* Derives dims and settings of a synthetic component from the dims and settings that the caller chose.
     * May be NULL. */
    void (*derive_dims)(struct component *c);
    /* Sets dims that depend on other dims, and the component's public fields. Called last. May be NULL. */
    void (*derive)(struct component *c);
    const char *rest;          /* additional text of config.json, such as "\"key\": value, ..."; NULL: none */
    const char *pictures_rest; /* additional text of preprocessor_config.json; NULL: none */
};

/* Lists the blocks of a component, and selects blocks and embedding rows that a lane needs. */
struct family_blocks {
    /* Lists all blocks in visit order in refs. Returns their number, at most FAMILY_BLOCKS_MAX. */
    int (*list)(const struct component *c, struct block_ref *refs);
    /* Adjusts a copy of the dims for one block, if blocks of one kind differ in shape. May be NULL. */
    void (*dims)(const struct component *c, const struct block_ref *ref, int32_t *dims);
    /* True if this lane does not need the block and skips it. NULL: no lane skips a block. */
    bool (*skips)(const struct component *c, const struct block *block, const struct lane *lane);
    /* Writes the indices of the embedding-table rows that a lane needs, unless `rows` is NULL. Returns their
     * number. Each lane of a text encoder has its own rows; lanes of other stages share them. Not called for
     * lanes that lanes.check rejects. Function NULL: the lane's token ids. */
    int (*rows)(const struct component *c, int i_table, const struct lane *lane, int32_t *rows);
};

/* The state of a stage's lanes (lane.state), as tensors. */
struct family_state {
    size_t bytes;                       /* size of the structure at lane.state */
    const struct state_tensor *tensors; /* named tensors, for comparison with reference outputs */
    int n_tensors;
    /* Declares every lane's state from the lanes' shapes: takes tensors from the arenas (which only count in
     * a dry run) and fills the structures at lanes[i].state, zeroed by the caller. *ok becomes false if an
     * arena is full. `pictures` is the arena of full-frame buffers. If the plan does not keep these buffers
     * in host memory, `pictures` is the state arena. Not called for a stage that inherits the state of a
     * hoisting stage.
     *
     * Control networks are declared after the denoiser, so lane.denoiser->state is complete. Declare state
     * only for lanes with lane_computes. lane.state of a lane with residuals_of is that of the lane that
     * computes. The structures of other lanes stay zero and are not used. */
    void (*declare)(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                    struct arena *pictures, bool *ok);
};

/* The lanes of a stage: which are supported, and their visits, frame chunks and vision tokens. */
struct family_lanes {
    /* Rejects lanes that the weights do not support. NULL: all lanes are supported. */
    enum status (*check)(const struct component *c, const struct lane *lanes, int n_lanes, struct error *e);
    /* Builds a visit list that the blocks' update rates cannot describe. Mostly NULL: see
     * stage_visits. */
    enum status (*visits)(const struct component *c, int stage, const struct lane *lanes, int n_lanes,
                          int evaluations, struct visit_list *list, struct error *e);
    /* For video VAEs: splits latent_frames frames into chunks, one per evaluation. Returns their number, and
     * writes nothing if that exceeds FRAME_CHUNKS_MAX. State passes from chunk to chunk, so a repeated
     * evaluation starts from the lane's first chunk, which reads no state. Function NULL: one chunk per
     * latent frame. */
    int (*chunks)(const struct component *c, int32_t latent_frames, struct frame_chunk *chunks);
    /* For denoisers: true if some tokens (the prefix) depend on prompt and references alone. A prompt's first
     * lane computes the prefix: in each evaluation, or in the first one alone (lane.keeps_prefix). */
    bool prefix;
    /* For vision encoders: the token grid for an image of this size in pixels. */
    struct vision_grid (*vision_grid)(const struct component *c, int width, int height);
};

/* What a control network reads from a control image. */
enum control_input {
    CONTROL_PIXELS,        /* pixels from 0 to 1 */
    CONTROL_SIGNED_PIXELS, /* pixels from -1 to 1 */
    /* Latent with C channels, encoded by the pipeline's VAE and scaled like the denoiser's latent.
     * component.concat_channels is one of:
     * - C: the control image;
     * - C + 1: the image to inpaint, black in repainted pixels, then 1 - mask;
     * - 2 C + 1: the control image, 1 - mask, the image to inpaint (zeros without image and mask). */
    CONTROL_LATENT,
};

/* A visit of a control network in an evaluation of the denoiser. */
struct control_visit {
    int block; /* index of an UPDATE_PER_EVALUATION block in the control network's blocks */
    int after; /* index in the denoiser's blocks: the visit follows this block; -1: it precedes the first
                  block */
    /* The visit adds a computed residual to the denoiser's state. It runs for every lane, also for lanes with
     * lane.residuals_of. */
    bool adds;
    int pass; /* visit_scope.pass: tells the forward which of the block's visits in the evaluation this is */
};

enum { CONTROL_VISITS_MAX = 1024 };

/* For control networks (FAMILY_CONTROL). */
struct family_control {
    const struct family *denoiser; /* family of the denoisers that the network controls */
    enum control_input input;
    bool combines_images;  /* true: the network reads all its control images at once (SDXL Union); false: it
                              runs for each image, and the residuals add up */
    bool conditional_only; /* the network runs for the conditional prompt only; its residuals are added to all
                              lanes of the image */
    const char *const *modes; /* names of the control modes of a union network, NULL-terminated; NULL: none */
    /* SHAPE or UNSUPPORTED if the network does not fit this denoiser. */
    enum status (*check)(const struct component *c, const struct component *denoiser, struct error *e);
    /* Writes the network's visits in one evaluation, ordered by `after`. Returns their number, at most
     * CONTROL_VISITS_MAX. Each UPDATE_PER_EVALUATION block has one or more visits. stage_visits adds the
     * visits of other blocks before the first one. */
    int (*visits)(const struct component *c, const struct component *denoiser, struct control_visit *visits);
};

struct family {
    const char *name;
    enum family_kind kind;
    const char *display_name; /* readable name, such as "T5 text encoder" */
    const void *details;      /* constants that the family's own callbacks read; NULL: none */
    struct family_files files;
    struct family_config config;
    struct text_reads reads; /* outputs of a text encoder that are used by default */
    struct family_blocks blocks;
    struct family_state state;
    struct family_lanes lanes;
    struct family_control control; /* for FAMILY_CONTROL only */
    /* True for a denoiser whose products have operands within f16's range (65,504): they follow norms, or the
     * authors run the model in f16. Devices with f16 products then use f16 by default: it has three more bits
     * than bf16, and f16 weights need no conversion. */
    bool f16_operands;
    struct predicted_block predicted[PREDICTED_MAX];
    const struct measured_block *measured; /* NULL: the family is not measured */
};

/* Image normalisation of a vision encoder, per colour: (value - mean) / deviation for values 0 to 1.
 * Deviation 0: values -1 to 1, as for VAEs. */
struct picture_format {
    float mean[3], deviation[3];
};

/* A family bound to files. Immutable once opened. */
struct component {
    const struct family *family;
    struct sys *sys;
    struct tensor_index index;
    int32_t dims[FAMILY_DIMS_MAX];
    _Alignas(16) unsigned char settings[FAMILY_SETTINGS_BYTES]; /* the family's settings structure */
    struct text_reads reads; /* text encoder outputs in use; set before binding; all 0: default */
    const struct published_setting *published; /* changed defaults of settings; set before binding */
    bool video;           /* true: the VAE encodes and decodes videos; set before binding */
    struct block *blocks; /* bound blocks, in visit order */
    int n_blocks;
    struct block tables[TABLES_MAX]; /* embedding tables, of which only some rows are read */
    int n_tables;
    int n_unknown; /* number of tensors in the files that no block uses (unknown tensors) */
    /* Properties that the components of a pipeline must agree on; 0 if not applicable. */
    int text_columns; /* columns of a text encoder's tokens, or of a denoiser's prompt_embeds */
    /* Number of deepstack features of a vision encoder. Each of its rows has text_columns columns: the token,
     * then the features, all of equal size. The text encoder adds the features to its hidden states. */
    int deepstack_features;
    int pooled_columns; /* columns of a text encoder's pooled row, or of a denoiser's pooled_projections */
    int source_columns; /* columns of lane.source that a text encoder expects; 0: it reads no source */
    /* valid range of clip_skip of a text encoder; 0: not supported */
    int skip_least, skip_most;
    int latent_channels;  /* latent channels of a denoiser or VAE */
    int concat_channels;  /* channels that a denoiser reads besides the latent (inpainting, image-to-video) */
    int image_columns;    /* columns of lane.image that a denoiser expects; 0: it reads no image embeddings */
    int image_rows;       /* rows of lane.image that a denoiser needs; 0: the rows of one image */
    int latent_side;      /* a denoiser's native image size, in latent pixels per side */
    int picture_channels; /* channels of a VAE's images: 4 with alpha; 0 means 3 */
    int pixel_factor;     /* per side: image pixels per latent pixel (VAE), or per input pixel (upscaler) */
    /* Latent upscaler: an enlarged side is side * pixel_factor / pixel_divisor, rounded up; 0 means 1. */
    int pixel_divisor;
    int sample_rate, sound_channels; /* vocoder: samples per second of a channel; channels */
    int samples_a_frame;             /* vocoder: samples of a channel per spectrogram frame */
    int sound_bins;                  /* sound decoder: frequency bins of a latent */
    int mel_columns;                 /* sound decoder: channels * bins of its spectrogram */
    /* Video frames (sound decoder: spectrogram frames) per latent frame; the first latent frame is 1 frame. 0
     * means 1. */
    int frame_factor;
    /* Scaling of a VAE's latents, for encoder, decoder and previews: see latent_norm. */
    struct latent_format latent_format;
    struct picture_format picture_format; /* image normalisation of a vision encoder */
    /* For control networks. */
    struct {
        /* Networks that read latents: the VAE encodes factor * v + offset for pixel values v from 0 to 1;
         * factor 0: 2 v - 1. unshifted: the latent is scaled, not shifted. */
        float factor, offset;
        bool unshifted;
        int modes;              /* number of control modes of a union network; 0: none */
        bool conditional_lanes; /* no residuals for other prompts than the conditional one */
    } control;
    const char *architecture; /* replaces family.files.architectures[0]; NULL: unchanged */
    const char *config_value; /* replaces family.files.config_value; NULL: unchanged */
    const char *config_rest;  /* replaces family.config.rest; NULL: unchanged */
    /* Reason why adapters cannot change these files' weights, for the error; NULL: adapters are allowed. */
    const char *adapters_refused;
    int variant; /* selects the recipe whose selection.variant is equal, for families with several recipes */
};

/* Returns the string that the component's config.json has at family.files.config_key. */
const char *component_config_value(const struct component *c);
/* Returns the component's general.architecture in GGUF files; "": none. */
const char *component_architecture(const struct component *c);
/* True for families that no recipe has a slot for: control networks and upscalers, added by their flags. */
static inline bool family_outside_pipelines(const struct family *family) {
    return family->kind == FAMILY_CONTROL || family->kind == FAMILY_UPSCALER ||
           family->kind == FAMILY_LATENT_UPSCALER;
}
static inline bool family_decodes(const struct family *family) {
    return family->kind == FAMILY_DECODER || family->kind == FAMILY_TINY_DECODER;
}
/* True if files may contain this tensor although no block uses it. */
bool family_ignores(const struct family *family, const char *name);
/* Returns `name` or its alternative, whichever exists as a tensor; `name` if neither does. */
const char *component_first_existing(const struct component *c, const char *name, const char *other);
/* True if a tensor has one of these names (NULL-terminated), with `number` for %d. */
bool component_has_block(const struct component *c, const char *const *names, int number);
/* Returns the size of axis `place` of a tensor of this rank; on failure 1, with *e MISSING or SHAPE. */
int32_t component_dim(const struct component *c, const char *name, int rank, int place, struct error *e);

/* An unsupported architecture, recognised by a tensor with this name prefix. A NULL prefix ends a list. */
struct similar_architecture {
    const char *prefix, *what;
};
/* Returns UNSUPPORTED, naming the first architecture of the list that the tensors match. For
 * family.files.refuse. */
enum status component_refuse_similar(const struct component *c, const struct similar_architecture *relatives,
                                     const char *expected, struct error *e);

/* Channels of the images of a VAE or vision encoder: 3, or RGBA with alpha. */
static inline int32_t component_picture_channels(const struct component *c) {
    return c->picture_channels ? c->picture_channels : 3;
}

/* Returns the precision in which a component of the family computes by default: the device's most exact one,
 * or f16 (f16_operands). */
static inline enum precision family_precision(const struct family *family, const struct device *device) {
    enum precision exact = device_default_precision(device);
    bool f16 = family->f16_operands && exact == PRECISION_BF16 && !device->unsupported[PRECISION_F16];
    return f16 ? PRECISION_F16 : exact;
}

/* Writes the dims of one block, to which its weight table refers. */
void component_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims);

/* After a failed binding of a configured component: marks all tensors that blocks use, and calls report with
 * the name of each missing one. Fails with MEMORY. */
enum status component_list_missing(struct component *c, void (*report)(void *user, const char *name),
                                   void *user, struct error *e);
void component_destroy(struct component *c);
/* Bytes of host memory that the layout descriptions (struct block) of a component's blocks and embedding
 * tables take; their weights not included. */
uint64_t component_layout_bytes(const struct component *c);

/* Returns the tensor of this name in a lane's state (see family_state.tensors); rank 0 if there is none. */
struct tensor component_state_tensor(const struct component *c, const struct lane *lane, const char *name);

/* Returns frame_factor, at least 1: video frames per latent frame after the first. */
static inline int component_frame_factor(const struct component *c) {
    return c->frame_factor ? c->frame_factor : 1;
}
/* Returns the largest number of a block that spatio-temporal guidance can perturb (block_kind.perturbable);
 * -1: there is none. These blocks are numbered from 0. */
int component_last_perturbable(const struct component *c);
/* Splits the frames of a latent into the chunks of a VAE: see family_lanes.chunks. */
int component_frame_chunks(const struct component *c, int32_t latent_frames, struct frame_chunk *chunks);

#endif
