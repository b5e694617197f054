/* `convert`: one component's weights from any files to one file, in other types.
 *
 * Steps, a file each: what is converted (open.c), which type each tensor becomes (types.c), which of them
 * adapters are merged into (merge.c, merge_values.c), how bytes are made (stream.c), and the file around them
 * with what it says of itself (convert.c). Nothing but headers is read before all types are chosen and the
 * disk is known to have room; then tensors follow one another in rows, so memory does not grow with them. */
#ifndef SLUICE_CONVERT_CONVERT_H
#define SLUICE_CONVERT_CONVERT_H

#include "engine/base/thread_pool.h"
#include "engine/convert/merge.h"
#include "engine/open/contents.h"
#include "engine/sluice.h"
#include "loaders/gguf/gguf.h"
#include "loaders/loaders.h"

/* Values converted at a time: whole rows, at least one. */
enum { CONVERT_VALUES = 1 << 20 };

/* A tensor of the output. What a weight needs stands before it: its form, then its scale or scales. */
struct converted {
    enum { CONVERTED_WEIGHT, CONVERTED_QUANT_FORMAT, CONVERTED_SCALE, CONVERTED_ROW_SCALES } what;
    const struct index_entry *entry; /* the weight's */
    char *name;                      /* owned */
    enum dtype dtype;                /* what it becomes */
    float scale;                     /* of an F8 tensor: what its values are divided by */
    struct tensor shape;             /* as the file calls it, without data */
};

/* What rows go through. */
struct convert_buffers {
    char *stored, *scales,
        *out; /* of a tensor: bytes of some rows, all its scales, the rows as they become */
    float *numbers;
    int64_t values;          /* that the buffers are for */
    uint64_t out_at, out_to; /* bytes of `out` that are not handed on yet */
    int item;                /* the tensor under way, -1 before the first */
    int64_t row;             /* its next row */
};

struct conversion {
    struct sys *sys;
    const struct sluice_convert_options *options;
    bool to_gguf;
    /* what is read */
    char *place; /* owned: of the first input, within a pipeline its part's */
    struct tensor_index whole;
    const struct family *family;     /* NULL: nobody knows these tensors */
    const struct family *denoiser;   /* that lies with them, whose pipelines they are of; or NULL */
    const char *architecture;        /* of the family's component; "": none */
    const char *prefix;              /* of names that is not written */
    int view;                        /* whose tensors are converted */
    const struct block_kind **kinds; /* of each entry, or NULL */
    bool *auxiliary;                   /* the entry lies beside quantised weights: no tensor of its own */
    struct merge *merge;             /* adapters that are merged into it; NULL: none */
    struct config config;
    bool config_is_file;/* it lies beside the files */
    /* what a GGUF file says that is converted to one */
    struct gguf *header;
    struct gguf_value *values;
    char *keys;
    /* what is written */
    struct converted *items;
    int n_items;
    uint64_t bytes; /* all that is written */
    uint64_t done;
    struct convert_buffers buffers;
    struct thread_pool *thread_pool;
};

/* Does what is written of a weight differ from what the file has? */
static inline bool is_rewritten(const struct conversion *c, const struct converted *weight) {
    return weight->dtype != weight->entry->dtype || merge_changes(c->merge, weight->entry);
}

/* Opens the inputs, finds the component and which block kind each of its tensors belongs to. */
enum status convert_open(struct conversion *c, struct error *e);
/* Chooses types: fills items. */
enum status convert_choose(struct conversion *c, struct error *e);
/* Makes the output's bytes: a tensor_maker's function over a conversion, for the items in turn. */
enum status convert_make(void *conversion, int i, void *to, uint64_t bytes, struct error *e);
/* Room for convert_make. */
enum status convert_prepare(struct conversion *c, struct error *e);
void convert_close(struct conversion *c);

/* sluice_convert on any machine. json: as there. */
enum status convert_files(struct sys *sys, const struct sluice_convert_options *options, char **json,
                          struct error *e);

#endif
