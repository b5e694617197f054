/* The tensor index: what lies where in the files of one component, before a byte of it is read.
 *
 * Loaders fill it, families probe it, packed blocks are laid out from it. Names are unique and sorted.
 *
 * One file may hold several components, each behind a prefix ("vae.decoder.conv_in.weight"). Each is given a
 * view: the same entries, seen without its prefix. One view owns entries and sources, the others borrow them
 * and must not outlive it. Nobody but the functions here knows of prefixes. */
#ifndef SLUICE_BASE_INDEX_H
#define SLUICE_BASE_INDEX_H

#include "engine/base/error.h"
#include "engine/base/source.h"
#include "engine/base/tensor.h"

/* Scales that another tensor of the files holds for this one, as tensor.scales has them. */
struct index_scales {
    int source;
    uint64_t offset, bytes; /* bytes 0: none */
};

struct index_entry {
    const char *name;
    enum dtype dtype;      /* what the bytes are: of packed types not what the file calls them */
    const char *type_name; /* what the file calls a type that is DTYPE_OTHER here; NULL: nobody kept it */
    int rank;              /* up to 8 as files allow; families need at most TENSOR_RANK_MAX */
    int32_t dim[8];        /* outermost first; of values, also where several are packed into one element */
    float scale;           /* 1 if none */
    struct index_scales scales;
    bool described;         /* the file says how it is quantised */
    bool beside;            /* it is what a quantised weight needs, a scale or a description */
    int source;             /* which of the index's sources */
    uint64_t offset, bytes; /* in that file */
    bool used;              /* bound by a family, or known to be unnecessary; set while a model opens */
    int view;               /* the number of the view that it belongs to */
};

struct tensor_index {
    struct sys *sys;             /* NULL: a view that borrows everything */
    struct index_entry *entries; /* sorted by name (strcmp) */
    int n_entries;
    struct byte_source *sources;
    int n_sources;
    char *names;   /* storage of the entries' names, terminated by NULs */
    char *config;  /* what the files' metadata has under `config`, JSON text; NULL: nothing */
    char *adapter; /* likewise under `lora_adapter_metadata`, of an adapter's file */
    /* What it says of quantised layers, JSON texts that each end with a NUL; NULL once that is understood. */
    char *quantisation;
    uint64_t quantisation_bytes;
    bool quantised;         /* it describes a quantisation of another program */
    bool predicts_v;        /* it says that the model predicts v */
    uint64_t host_bytes;    /* of our allocator held by this index */
    const char *prefix;     /* of the names of this view, borrowed; NULL: none */
    int view;               /* number of this view */
    uint64_t claimed_bytes; /* of all tensors, by the shard index's total_size; 0: nothing is claimed */
};

/* A view that borrows, of the entries behind this prefix. */
struct tensor_index index_view(const struct tensor_index *whole, const char *prefix, int view);
/* The prefix as text, "" if there is none. */
const char *index_prefix(const struct tensor_index *index);
/* An entry's name as this view sees it: without the prefix, if it has it. entry->name is the file's. */
const char *index_name(const struct tensor_index *index, const struct index_entry *entry);
/* What its type is called: "BF16", or as the file says where nothing here computes with it. */
const char *index_type_name(const struct index_entry *entry);
/* Does the entry belong to this view? */
bool index_has(const struct tensor_index *index, const struct index_entry *entry);

/* Product of all dimensions. */
static inline int64_t index_elements(const struct index_entry *entry) {
    int64_t n = 1;
    for (int i = 0; i < entry->rank; i++) n *= entry->dim[i];
    return n;
}

/* By name, for sort_unlike. */
int index_compare_names(const void *a, const void *b);

/* The entry that this view sees under that name, or NULL. */
struct index_entry *index_find(const struct tensor_index *index, const char *name);
/* The highest N for which a tensor's name starts with prefix, N and '.', or -1: "layers." gives the last
 * layer. */
int index_last_block(const struct tensor_index *index, const char *prefix);
/* Bytes of all tensors. */
uint64_t index_bytes(const struct tensor_index *index);
/* Closes the sources and frees everything that this view owns; an all-zero index is fine. */
void index_destroy(struct tensor_index *index);

#endif
