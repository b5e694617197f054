/* Model families, and components: a family opened with files.
 *
 * A family is one file in models/. It has a name, a probe over the tensor index, block kinds, lane state and
 * the visits of its stage. Its configuration is read from tensor shapes, and from config.json where shapes do
 * not tell. */
#ifndef SLUICE_RUN_FAMILY_H
#define SLUICE_RUN_FAMILY_H

#include "engine/base/config.h"
#include "engine/run/block.h"
#include "engine/run/dimension.h"
#include "engine/run/visit.h"
#include "kernels/ops.h"

/* The role of a family in a pipeline. */
enum family_kind {
    FAMILY_TEXT,
    FAMILY_VISION,
    FAMILY_DENOISER,
    FAMILY_DECODER,
    FAMILY_ENCODER,
    FAMILY_TINY_DECODER, /* decodes latents quickly and approximately (TAESD) */
};

enum { FAMILY_DIMS_MAX = 64, FAMILY_SETTINGS_BYTES = 512 };

enum { FAMILY_BLOCKS_MAX = 1024, TABLES_MAX = 4 };

/* A tensor of a family's lane state, published under a name. */
struct state_tensor {
    const char *name;
    size_t offset;
};

#define STATE_TENSOR(structure, field)                                                                       \
    { #field, offsetof(struct structure, field) }

/* Frames that a video decoder produces, or an encoder reads, in one evaluation. */
struct frame_chunk {
    int32_t first_latent, n_latents; /* frames of the latent */
    int32_t first_frame, n_frames;   /* frames of the video */
};

enum { FRAME_CHUNKS_MAX = 256 };

/* How a vision encoder reads an image: the size it is resampled to, and the grid of tokens that the encoder
 * writes to the lane's text, row by row. No tokens: the encoder rejects an image of that shape. */
struct vision_grid {
    int32_t width, height;
    int32_t columns, rows;
    /* If the image is cropped: the size it is resampled to first, and the position of the crop. width 0: no
     * crop. */
    struct {
        int32_t width, height, left, top;
    } whole;
};

/* Selects the parts of a text encoder's output that are used. */
struct text_reads {
    /* 0: output of the last layer, normalised; n: hidden state before the last n layers, without the norm. */
    int hidden_state_from_end;
    bool tokens, pooled;         /* a row for each token; one row for the whole prompt */
    bool final_norm;             /* the norm is applied to the tokens in any case */
    bool projected;              /* the pooled row is projected (text_projection) */
    const char *projected_class; /* only for this class in config.json; NULL: always */
};

struct family {
    const char *name;
    enum family_kind kind;
    const char *display_name; /* readable name such as "T5 text encoder" */
    /* Values of general.architecture in GGUF files, the usual one first, NULL-terminated. NULL: such files do
     * not occur. */
    const char *const *architectures;
    /* A configuration belongs to this family if it has this string under this key. */
    const char *config_key, *config_value;
    const char *const *config_others; /* more strings of this family, NULL-terminated; NULL: none */
    /* True if the index holds the characteristic tensors of this family. */
    bool (*probe)(const struct tensor_index *index);
    /* Rejects similar architectures that share tensor names but compute differently. Called before dims are
     * read. May be NULL. */
    enum status (*refuse)(const struct component *c, struct error *e);
    /* Dims and settings, and configuration values that must hold (NULL: none; a NULL key ends the list). */
    const struct dimension *dimensions;
    int n_dimensions;
    const struct setting *settings;
    int n_settings;
    const struct setting_list *lists;
    int n_lists;
    /* Of a vision encoder: settings read from preprocessor_config.json (config.pictures). */
    const struct setting *picture_settings;
    int n_picture_settings;
    const struct expectation *expects;
    /* Checks and settings that the rows cannot express; called after the rows are read. May be NULL. */
    enum status (*configure)(struct component *c, const struct config *config, struct error *e);
    /* Of a synthetic component: derives dims and settings from the chosen ones. May be NULL. */
    void (*derive_dims)(struct component *c);
    /* Last step for opened and synthetic components: dependent dims and public properties of the component.
     * May be NULL. */
    void (*derive)(struct component *c);
    struct text_reads reads;   /* of a text encoder: the default if the component does not specify it */
    const char *config_rest;   /* additional text of config.json, such as "\"key\": value, ..."; NULL: none */
    const char *pictures_rest; /* additional text of a vision encoder's preprocessor_config.json */
    /* Writes all blocks in the order of their visits. Returns their number, at most FAMILY_BLOCKS_MAX. */
    int (*blocks)(const struct component *c, struct block_ref *refs);
    /* True if lanes like this one do not need the block and skip it. NULL: no block is skipped. */
    bool (*skips_block)(const struct component *c, const struct block *block, const struct lane *lane);
    /* If blocks of one kind differ in shape: adjusts a copy of the component's dims for one block. May be
     * NULL. */
    void (*block_dims)(const struct component *c, const struct block_ref *ref, int32_t *dims);
    /* Prefixes of tensor names that may be present without being used, NULL-terminated. */
    const char *const *ignorable;

    size_t lane_state_bytes;
    const struct state_tensor *state; /* tensors published for comparison with reference outputs */
    int n_state;
    /* Declares the state of every lane from its shapes: takes tensors from the arenas (which only count in a
     * dry run) and writes structures at lanes[i].state, zeroed by the caller. *ok becomes false if an arena
     * is full. `pictures` is for full-frame buffers, which a plan may keep in host memory while the rest is
     * in device memory; otherwise both arenas are the same. Not called for a stage that inherits the state of
     * a hoisting stage. */
    void (*declare)(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                    struct arena *pictures, bool *ok);
    /* Rows of an embedding table that a lane needs, in the order of its gathered block. Writes them unless
     * rows is NULL; returns their number. In a text encoder each lane has its own rows; in other stages all
     * lanes have the same. Not called for lanes that check_lanes rejects. NULL: the token ids of the lane. */
    int (*rows)(const struct component *c, int i_table, const struct lane *lane, int32_t *rows);
    /* Of a vision encoder: the grid of tokens for an image of that size. */
    struct vision_grid (*vision_grid)(const struct component *c, int width, int height);
    /* Of a video VAE: splits latent_frames frames into chunks, one for each evaluation. State passes from
     * chunk to chunk and may be overwritten, so a repeated evaluation starts from the lane's first chunk,
     * which reads no state. Returns the number of chunks; if that exceeds FRAME_CHUNKS_MAX, writes nothing.
     * NULL: each latent frame is a chunk. */
    int (*chunks)(const struct component *c, int32_t latent_frames, struct frame_chunk *chunks);
    /* Rejects lanes that the weights do not support. NULL: all lanes are supported. */
    enum status (*check_lanes)(const struct component *c, const struct lane *lanes, int n_lanes,
                               struct error *e);
    /* Replaces the standard visit list of component_visits, where update rates are not sufficient. NULL in
     * most families. */
    enum status (*visits)(const struct component *c, int stage, const struct lane *lanes, int n_lanes,
                          int evaluations, struct visit_list *list, struct error *e);
};

/* How a vision encoder normalises images: (value - mean) / deviation for values from 0 to 1, per colour.
 * Deviations of 0: values from -1 to 1, as VAEs use. */
struct picture_format {
    float mean[3], deviation[3];
};

/* A family bound to files. Immutable once opened. */
struct component {
    const struct family *family;
    struct sys *sys;
    struct tensor_index index;
    int32_t dims[FAMILY_DIMS_MAX];
    _Alignas(16) unsigned char settings[FAMILY_SETTINGS_BYTES]; /* configuration structure of the family */
    struct text_reads reads;                   /* set before binding; all 0: the family's default */
    const struct published_setting *published; /* set before binding; NULL: the family's values */
    bool video;                                /* set before binding: the VAE works on videos */
    struct block *blocks;                      /* used blocks, in the order of visits */
    int n_blocks;
    struct block tables[TABLES_MAX]; /* embedding tables; only some of their rows are read */
    int n_tables;
    int n_unknown; /* number of unknown tensors in the files */
    /* Properties that the parts of a pipeline must agree on; 0 if not applicable. */
    int text_columns;   /* columns of a text encoder's output, or of the text that a denoiser expects */
    int pooled_columns; /* the same of the pooled row */
    /* Of a text encoder: valid range of clip_skip; 0: not supported. */
    int skip_least, skip_most;
    int latent_channels; /* of a denoiser or VAE */
    int concat_channels; /* concat channels that a denoiser reads with the latent */
    int image_columns;   /* columns of lane.image that a denoiser expects; 0: it reads none */
    int image_rows;      /* required number of rows of lane.image; 0: those of one image */
    int latent_side;     /* native image size of a denoiser, in latent pixels per side */
    int pixel_factor;    /* image pixels per latent pixel of a VAE, along one side */
    int frame_factor;    /* video frames per latent frame after the first, which has one; 0: one */
    struct latent_format latent_format;   /* of a VAE */
    struct picture_format picture_format; /* of a vision encoder */
    const char *architecture;             /* overrides the family's first architecture; NULL: no override */
    const char *config_value;             /* overrides the family's config_value */
    const char *config_rest;              /* overrides the family's config_rest */
    int variant;                          /* of a family with several recipes: selects recipe.variant */
};

/* The value of the component's configuration under the family's config_key. */
const char *component_config_value(const struct component *c);
/* The value of general.architecture in a GGUF file of this component; "": none. */
const char *component_architecture(const struct component *c);
/* True if the family turns latents into images. */
static inline bool family_decodes(const struct family *family) {
    return family->kind == FAMILY_DECODER || family->kind == FAMILY_TINY_DECODER;
}
/* True if a tensor of that name may be present without being used. */
bool family_ignores(const struct family *family, const char *name);
/* Returns whichever of two names exists as a tensor, preferring the first; `name` if neither exists. */
const char *component_first_existing(const struct component *c, const char *name, const char *other);
/* True if a tensor has one of these names (NULL-terminated), with `number` in place of %d. */
bool component_has_block(const struct component *c, const char *const *names, int number);
/* META if the configuration has another number of blocks under `key` than the files. */
enum status component_check_count(const struct component *c, const struct config *config, const char *key,
                                  int found, struct error *e);
/* The same check with the metadata of a GGUF file (ARCHITECTURE.block_count). */
enum status component_check_blocks(const struct component *c, const struct config *config, int found,
                                   struct error *e);
/* Dimension `place` of a tensor of that rank. On failure returns 1 and sets *e to MISSING or SHAPE. */
int32_t component_dim(const struct component *c, const char *name, int rank, int place, struct error *e);

/* A similar architecture: a tensor whose name has this prefix identifies it. A NULL prefix ends a list. */
struct similar_architecture {
    const char *prefix, *what;
};
/* UNSUPPORTED, with the description of the first similar architecture that the tensors match. For
 * family.refuse. */
enum status component_refuse_similar(const struct component *c, const struct similar_architecture *relatives,
                                     const char *expected, struct error *e);

/* The dims that a block's weight table refers to. */
void component_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims);

/* Configures and binds a component whose family and index are set. Unused scale tensors are UNUSED, because
 * quantised weights are wrong without them; other unused tensors are counted. On failure the caller destroys
 * the component. */
enum status component_bind(struct component *c, const struct config *config, struct error *e);
/* After a failed binding of a configured component: marks all tensors that blocks use, and reports the name
 * of each missing one. MEMORY. */
enum status component_list_missing(struct component *c, void (*report)(void *user, const char *name),
                                   void *user, struct error *e);
void component_destroy(struct component *c);
/* Host memory of the layouts of all blocks and tables. */
uint64_t component_layout_bytes(const struct component *c);

/* The published state tensor of that name in a lane; rank 0: none. */
struct tensor component_state_tensor(const struct component *c, const struct lane *lane, const char *name);

/* Video frames per latent frame after the first. */
static inline int component_frame_factor(const struct component *c) {
    return c->frame_factor ? c->frame_factor : 1;
}
/* How a VAE encoder or decoder divides the frames of a latent: see family.chunks. */
int component_frame_chunks(const struct component *c, int32_t latent_frames, struct frame_chunk *chunks);

/* Appends the visits of a stage for these lanes and evaluations; visits before the first evaluation come
 * first. visit.block is an index into c->blocks, followed by the component_gathered_blocks() blocks of
 * gathered rows: table t for lane i at c->n_blocks + t * n_lanes + i in a text encoder, else table t at
 * c->n_blocks + t. */
enum status component_visits(const struct component *c, int stage, const struct lane *lanes, int n_lanes,
                             int evaluations, struct visit_list *list, struct error *e);
/* Number of blocks of gathered embedding rows in a stage with n_lanes lanes. */
int component_gathered_blocks(const struct component *c, int n_lanes);
/* Makes a block of the rows of an embedding table that a lane needs. The caller destroys it, also on
 * failure. */
enum status component_gather_rows(const struct component *c, int i_table, const struct lane *lane,
                                  struct block *out, struct error *e);

#endif
