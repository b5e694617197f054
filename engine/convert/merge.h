/* Merges adapters into the converted component: W + strength scale B A. The sum over the rank is computed in
 * f32 and added once, before quantisation. Also merges changes that cannot be applied at run time: whole
 * matrices, LoHa and LoKr of any rank.
 *
 * Matching needs a pipeline, which a single component does not determine. Of the pipelines with such a
 * component that accept the whole adapter, the one with most of the adapter in the component wins. */
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

/* Opens the adapters, checks that their values are finite, and finds the tensors that they change. Errors of
 * adapter_open and adapter_match except those about run-time use. MISSING: an adapter changes nothing in this
 * component. Free *merge with merge_close, also after failure. */
enum status merge_open(const struct merge_subject *subject, struct merge **merge, struct error *e);
void merge_close(struct merge *merge);

/* True if this device and inode are the file of one of the adapters. merge NULL: false. */
bool merge_reads(const struct merge *merge, uint64_t device, uint64_t inode);
/* True if an adapter changes this tensor. merge NULL: false. */
bool merge_changes(const struct merge *merge, const struct index_entry *entry);
/* Number of tensors that the adapters change. */
int merge_count(const struct merge *merge);

/* Loads the factors for this tensor and frees those of the last one. IO, CHANGED, MEMORY. */
enum status merge_load(struct merge *merge, const struct index_entry *entry, struct error *e);
/* Adds the adapters' changes to values [first, first + n) of the loaded tensor, in `numbers`. Thread-safe. */
void merge_add(const struct merge *merge, int64_t first, int64_t n, float *numbers);

#endif
