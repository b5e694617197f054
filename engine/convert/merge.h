/* Adapters merged into what is converted: W + strength scale B A, whose sum over the rank is made in f32 and
 * added once, before the row gets its type. What operators cannot add is merged too: whole matrices, LoHa and
 * LoKr of any rank.
 *
 * An adapter's modules find their weights by the names of a pipeline, of which a part alone says little: of
 * the pipelines that have such a part, and take all of the adapter, the one counts in which most of it is for
 * the part. */
#ifndef SLUICE_CONVERT_MERGE_H
#define SLUICE_CONVERT_MERGE_H

#include "engine/run/family.h"
#include "engine/sluice.h"

struct merge;

/* What is merged, and into what. */
struct merge_subject {
    struct sys *sys;
    const struct sluice_lora *loras;
    int n_loras;
    bool partial;
    const struct family *family;
    const struct tensor_index *index; /* the part's view */
    const char *path;                 /* of its files */
};

/* Opens the adapters, reads that all their values are numbers, and finds what they are added to. All of
 * adapter_open's errors and of adapter_match's, but those that only adding without merging has; MISSING too
 * if nothing of one is for this part. *merge is freed with merge_close, also on failure. */
enum status merge_open(const struct merge_subject *subject, struct merge **merge, struct error *e);
void merge_close(struct merge *merge);

/* Is this the file of one of the adapters? NULL: there are none. */
bool merge_reads(const struct merge *merge, uint64_t device, uint64_t inode);
/* Is something added to this tensor? NULL: nothing is. */
bool merge_changes(const struct merge *merge, const struct index_entry *entry);
/* How many tensors are changed. */
int merge_count(const struct merge *merge);

/* Reads the factors of what is added to this tensor, in place of those of the last. IO, CHANGED, MEMORY. */
enum status merge_load(struct merge *merge, const struct index_entry *entry, struct error *e);
/* Adds to values [first, first + n) of the tensor that was loaded. Thread-safe. */
void merge_add(const struct merge *merge, int64_t first, int64_t n, float *numbers);

#endif
