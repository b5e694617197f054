/* `sluice convert`: writes one component's weights to one file, in other types.
 *
 * One file per step: opening the inputs (open.c), choosing the type of each tensor (types.c), merging
 * adapters (merge.c, merge_values.c), converting rows (stream.c), writing the file and its metadata
 * (convert.c). Only headers are read before all types are chosen and free disk space is checked. Tensors are
 * then converted some rows at a time, so memory does not grow with their size. */
#ifndef SLUICE_CONVERT_CONVERT_H
#define SLUICE_CONVERT_CONVERT_H

#include "engine/base/thread_pool.h"
#include "engine/convert/merge.h"
#include "engine/open/contents.h"
#include "engine/sluice.h"
#include "loaders/gguf/gguf.h"
#include "loaders/loaders.h"

/* Values converted at a time; rounded to whole rows, at least one. */
enum { CONVERT_VALUES = 1 << 20 };

/* A tensor of the output. A weight's auxiliary tensors precede it: its quantisation format, then its scale or
 * row scales. */
struct converted {
    enum { CONVERTED_WEIGHT, CONVERTED_QUANT_FORMAT, CONVERTED_SCALE, CONVERTED_ROW_SCALES } what;
    const struct index_entry *entry; /* the weight in the input */
    char *name;                      /* owned */
    enum dtype dtype;                /* type in the output */
    float scale;                     /* of an F8 tensor: divisor of its values */
    struct tensor shape;             /* type and shape in the file, without data */
};

/* Buffers for the rows in work. */
struct convert_buffers {
    char *stored, *scales, *out; /* bytes of some rows, all scales of the tensor, converted rows */
    float *numbers;
    int64_t values;          /* size of the buffers in values */
    uint64_t out_at, out_to; /* bytes of `out` that are not written yet */
    int item;                /* the current tensor; -1 before the first */
    int64_t row;             /* its next row */
};

struct conversion {
    struct sys *sys;
    const struct sluice_convert_options *options;
    bool to_gguf;
    /* input */
    char *place; /* path of the first input; in a pipeline's folder its component's; owned */
    struct tensor_index whole;
    const struct family *family;     /* NULL: unknown tensors */
    const struct family *denoiser;   /* in the same file, selects the pipelines; or NULL */
    const char *architecture;        /* general.architecture of the family; "": none */
    const char *prefix;              /* of names in the input, dropped in the output */
    int view;                        /* view of the component to convert */
    const struct block_kind **kinds; /* block kind of each entry, or NULL */
    bool
        *auxiliary; /* the entry belongs to a quantised weight (scales, format): it is no tensor of its own */
    struct merge *merge; /* adapters to merge; NULL: none */
    struct config config;
    bool config_is_file; /* config is a config.json next to the files */
    /* metadata of a GGUF input, copied to a GGUF output */
    struct gguf *header;
    struct gguf_value *values;
    char *keys;
    /* output */
    struct converted *items;
    int n_items;
    uint64_t bytes; /* size of all tensors */
    uint64_t done;
    struct convert_buffers buffers;
    struct thread_pool *thread_pool;
};

/* True if the weight's bytes change: another type, or a merged adapter. */
static inline bool is_rewritten(const struct conversion *c, const struct converted *weight) {
    return weight->dtype != weight->entry->dtype || merge_changes(c->merge, weight->entry);
}

/* Opens the inputs; finds the component and the block kind of each tensor. */
enum status convert_open(struct conversion *c, struct error *e);
/* Chooses the type of each tensor: fills items. */
enum status convert_choose(struct conversion *c, struct error *e);
/* Produces the next bytes of item i: the function of a tensor_maker. Items are called in order. */
enum status convert_make(void *conversion, int i, void *to, uint64_t bytes, struct error *e);
/* Allocates the buffers and threads of convert_make. */
enum status convert_prepare(struct conversion *c, struct error *e);
void convert_close(struct conversion *c);

/* sluice_convert with a given system interface. json: as in sluice_convert. */
enum status convert_files(struct sys *sys, const struct sluice_convert_options *options, char **json,
                          struct error *e);

#endif
