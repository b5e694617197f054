/* The tensor index: names, types, shapes and file positions of the tensors of one component, read from file
 * headers only.
 *
 * Loaders fill it, families probe it, packed blocks are laid out from it. Names are unique and sorted.
 *
 * One file may hold several components, each under a prefix ("vae.decoder.conv_in.weight"). Each component
 * gets a view: the same entries, named without the prefix. One view owns entries and sources; the others
 * borrow them and must not outlive it. Only functions of this header handle prefixes. */
#ifndef SLUICE_BASE_INDEX_H
#define SLUICE_BASE_INDEX_H

#include "engine/base/error.h"
#include "engine/base/source.h"
#include "engine/base/tensor.h"

/* Scales of a tensor that are stored in another tensor, in the layout of tensor.scales. */
struct index_scales {
    int source;
    uint64_t offset, bytes; /* bytes 0: none */
};

struct index_entry {
    const char *name;
    enum dtype dtype; /* type of the bytes as used here; for packed types not the type named in the file */
    const char *type_name; /* name of an element type that is DTYPE_OTHER here; NULL: not recorded */
    int rank;              /* up to 8, the limit of files; families use at most TENSOR_RANK_MAX */
    int32_t dim[8]; /* shape in values, outermost first, also if several values are packed into one element */
    float scale;    /* 1 if none */
    struct index_scales scales;
    bool quant_described;   /* the file describes how it is quantised */
    bool is_quant_metadata; /* auxiliary tensor of a quantised weight: a scale or a description */
    int source;             /* index of its source */
    uint64_t offset, bytes; /* position in that file */
    bool used;              /* bound by a family, or known to be unnecessary; set while a model is opened */
    int view;               /* number of the view that it belongs to */
};

struct tensor_index {
    struct sys *sys;             /* NULL: a view that borrows everything */
    struct index_entry *entries; /* sorted by name (strcmp) */
    int n_entries;
    struct byte_source *sources;
    int n_sources;
    char *names;   /* storage of the entries' names, NUL-terminated */
    char *config;  /* JSON text of the metadata key `config`; NULL: none */
    char *adapter; /* JSON text of the metadata key `lora_adapter_metadata`, of an adapter file; NULL: none */
    /* Descriptions of quantised layers from the metadata: JSON texts, each NUL-terminated; NULL once
     * processed. */
    char *quantisation;
    uint64_t quantisation_bytes;
    bool quantised;         /* the metadata describes a quantisation by another program */
    bool predicts_v;        /* the metadata declares v-prediction */
    uint64_t host_bytes;    /* host memory held by this index */
    const char *prefix;     /* prefix of names in this view, borrowed; NULL: none */
    int view;               /* number of this view */
    uint64_t claimed_bytes; /* total_size of the shard index, in bytes of all tensors; 0: not given */
};

/* A borrowing view of the entries with this prefix. */
struct tensor_index index_view(const struct tensor_index *whole, const char *prefix, int view);
/* The prefix; "" if there is none. */
const char *index_prefix(const struct tensor_index *index);
/* Name of an entry in this view, without the prefix. entry->name is the name in the file. */
const char *index_name(const struct tensor_index *index, const struct index_entry *entry);
/* Name of an entry's type: "BF16", or the file's name for unsupported types. */
const char *index_type_name(const struct index_entry *entry);
/* True if the entry belongs to this view. */
bool index_contains(const struct tensor_index *index, const struct index_entry *entry);

static inline int64_t index_elements(const struct index_entry *entry) {
    int64_t n = 1;
    for (int i = 0; i < entry->rank; i++) n *= entry->dim[i];
    return n;
}

/* Compares by name, for sort_find_duplicate. */
int index_compare_names(const void *a, const void *b);

/* Finds an entry by its name in this view; NULL if absent. */
struct index_entry *index_find(const struct tensor_index *index, const char *name);
/* The highest N for which a tensor name starts with prefix, N and '.'; -1 if none. "layers." gives the number
 * of the last layer. */
int index_last_block(const struct tensor_index *index, const char *prefix);
uint64_t index_bytes(const struct tensor_index *index);
/* Closes the sources and frees everything that this view owns. An all-zero index is allowed. */
void index_destroy(struct tensor_index *index);

#endif
