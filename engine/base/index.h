/* The tensor index: names, types, shapes and file positions of one component's tensors, read from file
 * headers only. Loaders fill the index, families are recognised by tensor names, and packed blocks are laid
 * out from the index. Names are unique and sorted. One file may hold several components, each under a prefix
 * ("vae.decoder.conv_in.weight"). Each component gets a view: the same entries, named without the prefix. One
 * view owns entries and sources; the others borrow them and must not outlive it. */
#ifndef SLUICE_BASE_INDEX_H
#define SLUICE_BASE_INDEX_H

#include "engine/base/error.h"
#include "engine/base/source.h"
#include "engine/base/tensor.h"

enum { SCALE_SECTIONS_MAX = 3 };

/* One section of a quantised tensor's scales: a separate tensor in the file. rows: how many rows of the
 * weight share one part of the section (1; 128 for tiles); 0: the section belongs to all rows. */
struct scale_section {
    int source;
    uint64_t offset, bytes;
    int32_t rows;
};

/* Scales of a quantised tensor, in the layout of tensor.scales: the sections in order, without gaps. */
struct index_scales {
    uint64_t bytes; /* bytes of all sections; 0: no scales */
    int n;
    struct scale_section section[SCALE_SECTIONS_MAX];
};

struct index_entry {
    const char *name;
    enum dtype dtype;      /* element type in values; a packed tensor may have another type in the file */
    const char *type_name; /* type name in the file if dtype is DTYPE_OTHER (unsupported), or NULL */
    int rank;              /* number of dimensions; families use at most TENSOR_RANK_MAX */
    int32_t dim[8]; /* shape in values, outermost first, even if one file element packs several values */
    float scale;    /* scale of the whole tensor; 1 if none */
    struct index_scales scales;
    bool quant_described;   /* the file's metadata describe how the tensor is quantised */
    bool is_quant_metadata; /* this tensor is auxiliary: a scale or a description of a quantised weight */
    int source;             /* index into sources */
    uint64_t offset, bytes; /* byte offset and size of the tensor's data in its source */
    /* A family reads the tensor, or it is known to be unnecessary; set while a model is opened. */
    bool used;
    int view; /* number of the index view that contains the entry */
};

struct tensor_index {
    struct sys *sys;             /* for allocations; NULL for a view, which owns nothing */
    struct index_entry *entries; /* sorted by name (strcmp) */
    int n_entries;
    struct byte_source *sources;
    int n_sources;
    char *names;  /* storage of the entries' names, NUL-terminated */
    char *config; /* JSON text of the safetensors metadata key `config`; NULL: none */
    /* JSON text of the metadata key `lora_adapter_metadata` of an adapter file; NULL: none. */
    char *adapter;
    /* JSON texts of the file's metadata that describe quantised layers, each NUL-terminated. NULL after the
     * loader has read them. */
    char *quantisation;
    uint64_t quantisation_bytes;
    bool quantised;      /* the file's metadata describe a quantisation by another program */
    bool predicts_v;     /* the file's metadata declare v-prediction */
    uint64_t host_bytes; /* host memory in bytes that the index holds */
    const char *prefix;  /* prefix of the tensor names of this view, borrowed; NULL: none */
    int view;            /* number of this index view, as in index_entry.view */
    /* Bytes of all tensors, from total_size of a sharded model's index file; 0: absent. */
    uint64_t claimed_bytes;
};

/* Returns a borrowing view of the entries whose names start with the prefix. */
struct tensor_index index_view(const struct tensor_index *whole, const char *prefix, int view);
/* The name prefix of an index view; "" if there is none. */
const char *index_prefix(const struct tensor_index *index);
/* Tensor name of an entry without the view's prefix; entry->name is the name in the file. */
const char *index_name(const struct tensor_index *index, const struct index_entry *entry);
/* Name of an entry's element type, such as "BF16"; the file's name if the type is unsupported. */
const char *index_type_name(const struct index_entry *entry);
bool index_contains(const struct tensor_index *index, const struct index_entry *entry);

static inline int64_t index_elements(const struct index_entry *entry) {
    int64_t n = 1;
    for (int i = 0; i < entry->rank; i++) n *= entry->dim[i];
    return n;
}

/* Appends a section to a tensor's scales. */
void index_add_scales(struct index_entry *entry, const struct index_entry *scales, int32_t rows);
/* Reads all scales of a tensor (entry->scales.bytes). Errors of source_read. */
enum status index_read_scales(const struct tensor_index *index, const struct index_entry *entry, void *to,
                              struct error *e);
/* Reads n values of an array and converts them to floats. offset: file byte where the array starts; first:
 * index of the first value to read. UNSUPPORTED: types other than F32, F16, BF16. Errors of source_read. */
enum status source_read_values(const struct byte_source *source, uint64_t offset, enum dtype dtype,
                               int64_t first, int64_t n, float *to, struct error *e);

/* Compares two entries by name, for sort_find_duplicate. */
int index_compare_names(const void *a, const void *b);

/* Finds an entry by its name without the view's prefix; NULL if absent. */
struct index_entry *index_find(const struct tensor_index *index, const char *name);
/* The highest N for which a tensor name starts with prefix, N and '.'; -1 if none. The prefix "layers." gives
 * the number of the last layer. */
int index_last_block(const struct tensor_index *index, const char *prefix);
uint64_t index_bytes(const struct tensor_index *index);
/* Closes the sources and frees everything that this index owns. An all-zero index is allowed. */
void index_destroy(struct tensor_index *index);

#endif
