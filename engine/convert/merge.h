/* Merges adapters into the converted component: W + strength scale B A. The sum over the rank is computed in
 * f32 and added once, before quantisation. Also merges changes that a run cannot apply: whole matrices, LoHa
 * and LoKr of any rank.
 *
 * An adapter is matched with the tensor names of a pipeline, but several pipelines may contain the converted
 * component. Only pipelines that accept the whole adapter count; the pipeline that assigns most of the
 * adapter's changes to the component is chosen. */
#ifndef SLUICE_CONVERT_MERGE_H
#define SLUICE_CONVERT_MERGE_H

#include "engine/run/family.h"
#include "engine/sluice.h"

struct merge;

/* The adapters, and the component to merge them into. */
struct merge_subject {
    struct sys *sys;
    const struct sluice_lora *loras;
    int n_loras;
    bool partial;
    const struct family *family;
    const struct tensor_index *index; /* the component's tensors */
    const char *path;                 /* path of the component's files */
};

/* Opens the adapters, checks that their values are finite, and finds the tensors that they change. Fails like
 * adapter_open and adapter_match, but accepts adapters that a run cannot apply; with MISSING if an adapter
 * changes nothing in the component. Free *merge with merge_close, also after failure. */
enum status merge_open(const struct merge_subject *subject, struct merge **merge, struct error *e);
void merge_close(struct merge *merge);

/* True if the file with the given device and inode is one of the adapter files. merge NULL: false. */
bool merge_reads(const struct merge *merge, uint64_t device, uint64_t inode);
/* True if an adapter changes the tensor. merge NULL: false. */
bool merge_changes(const struct merge *merge, const struct index_entry *entry);
/* Number of tensors that the adapters change. */
int merge_count(const struct merge *merge);

/* Frees the loaded factors and loads the factors that change the tensor. Fails with IO, CHANGED or MEMORY. */
enum status merge_load(struct merge *merge, const struct index_entry *entry, struct error *e);
/* Adds the adapters' changes to values [first, first + n) of the loaded tensor, in `numbers`. Thread-safe. */
void merge_add(const struct merge *merge, int64_t first, int64_t n, float *numbers);

#endif
