/* Families and the components opened with them.
 *
 * A family is one file in models/: a name, a probe over the tensor index, a configuration read from shapes
 * (and from config.json where shapes cannot tell), its block kinds, its lane state and the visits of its
 * stage. */
#ifndef SLUICE_RUN_FAMILY_H
#define SLUICE_RUN_FAMILY_H

#include "engine/base/config.h"
#include "engine/run/block.h"
#include "engine/run/dimension.h"
#include "engine/run/visit.h"
#include "kernels/ops.h"

/* What a family is, wherever it stands in a pipeline. */
enum family_kind {
    FAMILY_TEXT,
    FAMILY_VISION,
    FAMILY_DENOISER,
    FAMILY_DECODER,
    FAMILY_ENCODER,
    FAMILY_TINY_DECODER, /* decodes what the decoder does, to another picture */
};

enum { FAMILY_DIMS_MAX = 64, FAMILY_SETTINGS_BYTES = 512 };

enum { FAMILY_BLOCKS_MAX = 1024, TABLES_MAX = 4 };

/* A tensor of a family's lane state, by the name that those outside know it by. */
struct state_tensor {
    const char *name;
    size_t offset;
};

#define STATE_TENSOR(structure, field)                                                                       \
    { #field, offsetof(struct structure, field) }

/* Frames that a decoder makes in one evaluation, or that an encoder reads in one. */
struct frame_chunk {
    int32_t first_latent, n_latents; /* frames of the latent */
    int32_t first_frame, n_frames;   /* of the video */
};

enum { FRAME_CHUNKS_MAX = 256 };

/* The size that a vision encoder reads a picture at, and the grid of tokens that it makes of it, which it
 * writes row by row to the lane's text. No tokens: it reads no picture of such a shape. */
struct sight {
    int32_t width, height;
    int32_t columns, rows;
    /* The size that the picture is resampled to, and where what is read of it begins; width 0: all is read.
     */
    struct {
        int32_t width, height, left, top;
    } whole;
};

/* What is read of a text encoder. */
struct text_reads {
    /* 0: the last layer's output with the norm behind it; n: what all but the last n layers give, without it.
     */
    int layers_left_out;
    bool tokens, pooled;         /* a row for each token; one of the whole prompt */
    bool normed;                 /* tokens go through the norm in any case */
    bool projected;              /* the pooled row is projected to where text and pictures meet */
    const char *projected_class; /* only where the configuration says this class; NULL: in any case */
};

struct family {
    const char *name;
    enum family_kind kind;
    const char *word; /* what people call it: "T5 text encoder" */
    /* What a GGUF file's general.architecture says of it, the usual one first, NULL-terminated; NULL: nothing
     * ever does. */
    const char *const *architectures;
    /* A configuration is this family's if it has this string under this key. */
    const char *config_key, *config_value;
    const char *const *config_others; /* strings that are this family's too, NULL-terminated; NULL: none */
    /* True if the index holds this family's tell-tale tensors. */
    bool (*probe)(const struct tensor_index *index);
    /* Refuses relatives that share names with the family but not what is computed, before dims are read. May
     * be NULL. */
    enum status (*refuse)(const struct component *c, struct error *e);
    /* Dims and settings, and what else a configuration must say (NULL: nothing; a NULL key ends the list). */
    const struct dimension *dimensions;
    int n_dimensions;
    const struct setting *settings;
    int n_settings;
    const struct setting_list *lists;
    int n_lists;
    /* Of a vision encoder: what config.pictures tells, and config.json does not. */
    const struct setting *picture_settings;
    int n_picture_settings;
    const struct expectation *expects;
    /* What these rows cannot say, after they are read: checks, above all. May be NULL. */
    enum status (*configure)(struct component *c, const struct config *config, struct error *e);
    /* Of a component that is made up: dims and settings that follow from those chosen. May be NULL. */
    void (*follow)(struct component *c);
    /* Last, either way: dims that follow from others, and what the component says of itself. May be NULL. */
    void (*derive)(struct component *c);
    struct text_reads reads; /* of a text encoder: where whoever opens a component does not say */
    const char *config_rest; /* "\"key\": value, ...": what config.json has besides the rows; NULL: nothing */
    const char *pictures_rest; /* the same of preprocessor_config.json, of a vision encoder */
    /* All blocks in the order of their visits. Returns their number, at most FAMILY_BLOCKS_MAX. */
    int (*blocks)(const struct component *c, struct block_ref *refs);
    /* Has this block nothing to do for lanes like this one, so that they do not visit it? NULL: none has. */
    bool (*idles)(const struct component *c, const struct block *block, const struct lane *lane);
    /* Where blocks of one kind differ in shape: changes a copy of the component's dims for one block. May be
     * NULL. */
    void (*block_dims)(const struct component *c, const struct block_ref *ref, int32_t *dims);
    /* Names that may stand in a file without being used: prefixes, NULL-terminated. */
    const char *const *ignorable;

    size_t lane_state_bytes;
    const struct state_tensor *state; /* what of it is published, for comparing with references */
    int n_state;
    /* Declares every lane's state from its shapes: tensors from the arenas (which only count in a dry run),
     * structures at lanes[i].state, zeroed by the caller. *ok becomes false if an arena is full. pictures is
     * for whole-picture buffers, which a plan may keep in the host's memory while everything else is the
     * device's; where it does not, both are one arena. Not for a stage that hoists: its state goes on. */
    void (*declare)(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                    struct arena *pictures, bool *ok);
    /* Which rows of a table a lane needs, in the order of its gathered block: writes them unless rows is
     * NULL, returns how many. Every lane of a text encoder has rows of its own; in other stages all lanes
     * have the same. Not asked of lanes that check_lanes refuses. NULL: the lane's tokens. */
    int (*rows)(const struct component *c, int i_table, const struct lane *lane, int32_t *rows);
    /* Of a vision encoder: what it makes of a picture of that size. */
    struct sight (*sees)(const struct component *c, int width, int height);
    /* Of an autoencoder of videos: how the frames of a latent of so many are decoded or encoded, one chunk an
     * evaluation, with state that goes from chunk to chunk and that an evaluation may overwrite: whoever
     * computes one again begins with the lane's first. A first chunk reads nothing of the state. Returns
     * their number, which may be more than FRAME_CHUNKS_MAX: then nothing is written. NULL: each frame of the
     * latent is a chunk. */
    int (*chunks)(const struct component *c, int32_t latent_frames, struct frame_chunk *chunks);
    /* Refuses lanes that the weights cannot serve. NULL: they serve all. */
    enum status (*check_lanes)(const struct component *c, const struct lane *lanes, int n_lanes,
                               struct error *e);
    /* Instead of component_visits' own, where cadences cannot tell. NULL in most families. */
    enum status (*visits)(const struct component *c, int stage, const struct lane *lanes, int n_lanes,
                          int evaluations, struct visit_list *list, struct error *e);
};

/* How a vision encoder reads pictures: (value - mean) / deviation of values from 0 to 1, a colour each.
 * Deviations of 0: from -1 to 1, as autoencoders do. */
struct picture_format {
    float mean[3], deviation[3];
};

/* A family matched to files. Immutable once opened. */
struct component {
    const struct family *family;
    struct sys *sys;
    struct tensor_index index;
    int32_t dims[FAMILY_DIMS_MAX];
    _Alignas(16) unsigned char settings[FAMILY_SETTINGS_BYTES]; /* the family's configuration structure */
    struct text_reads reads;                   /* set before it is bound, or derived; all 0: the family's */
    const struct published_setting *published; /* the same; NULL: none but the family's */
    bool films;                                /* the same: it works on several frames, not on one alone */
    struct block *blocks;                      /* those that are used, in the order of visits */
    int n_blocks;
    struct block tables[TABLES_MAX]; /* of embeddings: no blocks, only rows of them are read */
    int n_tables;
    int n_unknown; /* tensors that nobody knows */
    /* What the parts of a pipeline must agree on, and sizes follow from; 0 where it means nothing. */
    int text_columns;   /* given by a text encoder, expected by a denoiser */
    int pooled_columns; /* the same of the whole prompt */
    /* Of a text encoder: what lanes may say of clip_skip; 0: nothing. */
    int skip_least, skip_most;
    int latent_channels; /* of a denoiser and of an autoencoder */
    int concat_channels; /* what a denoiser reads beside the latent */
    int image_columns;   /* of a denoiser that reads lane.image; 0: it reads none */
    int image_rows;      /* so many of them, where not any number will do; 0: those of one picture */
    int latent_side;     /* of a denoiser, of the square pictures that it draws best */
    int pixel_factor;    /* pixels on the side of an autoencoder's latent pixel */
    int frame_factor;    /* frames behind every latent frame but the first, which has one; 0: one */
    struct latent_format latent_format;   /* of an autoencoder */
    struct picture_format picture_format; /* of a vision encoder */
    const char *architecture;             /* of the family's, where it is not the usual one; NULL: it is */
    const char *config_value;             /* likewise */
    const char *config_rest;              /* likewise */
    int variant;                          /* of a family that several recipes have, as recipe.variant */
};

/* What its configuration has under the family's config_key. */
const char *component_config_value(const struct component *c);
/* What a GGUF file of it says under general.architecture; "": nothing. */
const char *component_architecture(const struct component *c);
/* Does it make pictures of latents? */
static inline bool family_decodes(const struct family *family) {
    return family->kind == FAMILY_DECODER || family->kind == FAMILY_TINY_DECODER;
}
/* May a tensor of that name stand beside the family's own without being used? */
bool family_ignores(const struct family *family, const char *name);
/* The first of two names that a tensor has; name if none has either. */
const char *component_either(const struct component *c, const char *name, const char *other);
/* Is there a tensor of one of these names (NULL-terminated), %d in them being the number? */
bool component_has_block(const struct component *c, const char *const *names, int number);
/* META if the configuration has another number of blocks under that key than there are. */
enum status component_check_count(const struct component *c, const struct config *config, const char *key,
                                  int found, struct error *e);
/* The same of a GGUF file's metadata (ARCHITECTURE.block_count). */
enum status component_check_blocks(const struct component *c, const struct config *config, int found,
                                   struct error *e);
/* Dimension number place of a tensor of that rank, for configure. On failure 1, and *e says MISSING or SHAPE.
 */
int32_t component_dim(const struct component *c, const char *name, int rank, int place, struct error *e);

/* What shares a family's names but not what is computed: a tensor whose name begins so tells. A NULL prefix
 * ends a list. */
struct relative {
    const char *prefix, *what;
};
/* UNSUPPORTED, saying what it is, for the first of these that the component's tensors are. For refuse. */
enum status component_refuse_relatives(const struct component *c, const struct relative *relatives,
                                       const char *expected, struct error *e);

/* The dimensions that a block's weight table refers to. */
void component_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims);

/* Configures and binds a component whose family and index are set. Leftover scale tensors are UNUSED, because
 * weights without their scales are other weights; others are counted. On failure the caller destroys it. */
enum status component_bind(struct component *c, const struct config *config, struct error *e);
/* Of a component that was configured but did not bind: marks every tensor that a block would have used, and
 * tells the names of those that are not there. MEMORY. */
enum status component_list_missing(struct component *c, void (*tell)(void *user, const char *name),
                                   void *user, struct error *e);
void component_destroy(struct component *c);
/* Of our allocator, by the layouts of its blocks and tables. */
uint64_t component_layout_bytes(const struct component *c);

/* The published tensor of that name in a lane's state; rank 0: none. */
struct tensor component_state_tensor(const struct component *c, const struct lane *lane, const char *name);

/* Frames of a video behind every frame of the latent but the first. */
static inline int component_frame_factor(const struct component *c) {
    return c->frame_factor ? c->frame_factor : 1;
}
/* How an autoencoder's half goes through the frames of a latent: see family.chunks. */
int component_frame_chunks(const struct component *c, int32_t latent_frames, struct frame_chunk *chunks);

/* Appends the visits of a stage with these lanes and evaluations, those before the first evaluation first. A
 * block's place is that in c->blocks; behind them come the blocks of gathered rows, component_gathers() of
 * them: of a text encoder those of table t for lane i at c->n_blocks + t * n_lanes + i, else those of table t
 * at c->n_blocks + t. */
enum status component_visits(const struct component *c, int stage, const struct lane *lanes, int n_lanes,
                             int evaluations, struct visit_list *list, struct error *e);
/* Blocks of gathered rows in a stage with so many lanes. */
int component_gathers(const struct component *c, int n_lanes);
/* The rows of a table that a lane needs, as a block. On failure the caller destroys it too. */
enum status component_gather_rows(const struct component *c, int i_table, const struct lane *lane,
                                  struct block *out, struct error *e);

#endif
