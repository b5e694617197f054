/* `sluice convert`: writes one component's weights to one file, in other types. Each step has a source file:
 * opening the inputs (open.c), choosing the type of each tensor (types.c), merging adapters (merge.c),
 * converting rows (stream.c), writing the file and its metadata (convert.c). Only headers are read before all
 * types are chosen and free disk space is checked. Tensors are then converted some rows at a time, so memory
 * does not grow with their size. */
#ifndef SLUICE_CONVERT_CONVERT_H
#define SLUICE_CONVERT_CONVERT_H

#include "engine/base/thread_pool.h"
#include "engine/convert/merge.h"
#include "engine/open/contents.h"
#include "engine/sluice.h"
#include "loaders/gguf/gguf.h"
#include "loaders/loaders.h"

/* Number of tensor values converted at a time, rounded to whole rows (at least one). */
enum { CONVERT_VALUES = 1 << 20 };

/* A tensor of the output. A weight is preceded by its auxiliary tensors: the quantisation format, then the
 * scale or row scales. */
struct converted {
    enum { CONVERTED_WEIGHT, CONVERTED_QUANT_FORMAT, CONVERTED_SCALE, CONVERTED_ROW_SCALES } what;
    const struct index_entry *entry; /* entry of the weight in the input's tensor index */
    char *name;                      /* tensor name in the output file; owned */
    enum dtype dtype;                /* element type in the output file */
    float scale;                     /* F8 tensors: values are divided by the scale before conversion */
    struct tensor shape;             /* element type and shape in the output file, without data */
};

/* Buffers for the rows that are being converted. */
struct convert_buffers {
    char *stored, *scales, *out; /* bytes of input rows, of the tensor's scales, of converted rows */
    float *numbers;
    int64_t values;          /* capacity of the buffers, in tensor values */
    uint64_t out_at, out_to; /* range of bytes in `out` that are still to be written */
    int item;                /* index of the current tensor; -1 before the first */
    int64_t row;             /* next row of the current tensor */
};

struct conversion {
    struct sys *sys;
    const struct sluice_convert_options *options;
    bool to_gguf;
    char *place; /* path of the first input, or of the component in a pipeline's folder; owned */
    struct tensor_index whole;
    const struct family *family;   /* family of the component; NULL: unknown tensors */
    const struct family *denoiser; /* denoiser in the same file, which decides the pipeline; NULL: none */
    const char *architecture;      /* value of general.architecture for the family; "": none */
    const char *prefix; /* prefix of the component's tensor names in the input, dropped in the output */
    int view;           /* number of the index view (index_view) with the component's tensors */
    const struct block_kind **kinds; /* block kind of each tensor in the input; NULL: belongs to no block */
    bool *auxiliary; /* for each input tensor: true for scales and format descriptions of quantised weights */
    struct merge *merge; /* adapters to merge; NULL: none */
    struct config config;
    bool config_is_file; /* true: config was read from a config.json next to the files */
    /* Metadata of a GGUF input, copied to a GGUF output. */
    struct gguf *header;
    struct gguf_value *values;
    char *keys;
    struct converted *items;
    int n_items;
    uint64_t bytes; /* total bytes of the output tensors */
    uint64_t done;
    struct convert_buffers buffers;
    struct thread_pool *thread_pool;
};

/* True if a weight's bytes change, by conversion to another type or by a merged adapter. */
static inline bool is_rewritten(const struct conversion *c, const struct converted *weight) {
    return weight->dtype != weight->entry->dtype || merge_changes(c->merge, weight->entry);
}

/* Opens the input files. Finds the component to convert and the block kind of each tensor. */
enum status convert_open(struct conversion *c, struct error *e);
/* Chooses the type of each output tensor; fills conversion.items. */
enum status convert_choose(struct conversion *c, struct error *e);
/* Writes the next bytes of output tensor i to `to` (a tensor_maker). Tensors must be written in order. */
enum status convert_make(void *conversion, int i, void *to, uint64_t bytes, struct error *e);
/* Allocates the buffers and threads that convert_make uses. */
enum status convert_prepare(struct conversion *c, struct error *e);
void convert_close(struct conversion *c);

/* Implements sluice_convert with a given system interface. json: as in sluice_convert. */
enum status convert_files(struct sys *sys, const struct sluice_convert_options *options, char **json,
                          struct error *e);

#endif
