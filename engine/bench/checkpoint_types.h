/* What types a made-up checkpoint's weights are stored in: which tensors lie in a file for one weight, and
 * what is in them. */
#ifndef SLUICE_BENCH_CHECKPOINT_TYPES_H
#define SLUICE_BENCH_CHECKPOINT_TYPES_H

#include "engine/run/block.h"
#include "loaders/loaders.h"

struct stored_type;

/* Types that a checkpoint's matrices take in turn; one most of the time. */
enum { TYPES_IN_TURN_MAX = 8, TENSORS_OF_WEIGHT_MAX = 4 };
struct stored_types {
    const struct stored_type *in_turn[TYPES_IN_TURN_MAX];
    int n, next;
};

/* Reads "bf16", "f8_e4m3_scaled", "q4_k/q6_k" of length bytes. USAGE lists what there is. */
enum status stored_types_read(const char *text, size_t length, struct stored_types *types, struct error *e);
/* Do they only exist in GGUF files? */
bool stored_types_are_gguf(const struct stored_types *types);
/* Numbers as they are, for all tensors alike? */
bool stored_types_are_plain(const struct stored_types *types);

/* Which these are, of types that are plain. */
enum dtype stored_types_plain(const struct stored_types *types);

/* What is in a tensor of a file. */
struct synthetic_tensor {
    enum { SYNTHETIC_VALUES, SYNTHETIC_SCALES, SYNTHETIC_SCALE, SYNTHETIC_DESCRIPTION } what;
    struct tensor values; /* of the weight that it belongs to */
    double init_scale;
    const char *description;
};

/* The tensors of a weight called name, itself the first, their names' endings instead of ".weight" in end[]
 * (NULL: the name as it is). Takes the next type in turn if the weight is of a kind that is quantised.
 * Returns how many. */
struct weight_tensors {
    const char *end[TENSORS_OF_WEIGHT_MAX];
    struct tensor tensor[TENSORS_OF_WEIGHT_MAX]; /* as the file calls them */
    struct synthetic_tensor made[TENSORS_OF_WEIGHT_MAX];
};
int stored_types_divide(struct stored_types *types, const struct block_kind *kind,
                        const struct weight_spec *spec, const int32_t *dims, struct weight_tensors *out);

/* The next bytes of a tensor; whole blocks. */
void synthetic_tensor_fill(uint64_t *random, const struct synthetic_tensor *made, void *to, uint64_t bytes);

#endif
