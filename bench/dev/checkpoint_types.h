/* Types of a random checkpoint's weights: which tensors a file has for one weight, and their contents. */
#ifndef SLUICE_DEV_CHECKPOINT_TYPES_H
#define SLUICE_DEV_CHECKPOINT_TYPES_H

#include "engine/run/block.h"
#include "loaders/loaders.h"

struct stored_type;

/* STORED_TYPES_MAX: largest number of types that a checkpoint's matrices alternate between ("q4_k/q6_k");
 * most checkpoints have one type. */
enum { STORED_TYPES_MAX = 8, TENSORS_OF_WEIGHT_MAX = 4 };
struct stored_types {
    const struct stored_type *type[STORED_TYPES_MAX];
    int n, next;
};

/* Parses the weight types "bf16", "f8_e4m3_scaled" or "q4_k/q6_k", of `length` bytes. USAGE lists the
 * supported types. */
enum status stored_types_read(const char *text, size_t length, struct stored_types *types, struct error *e);
/* True if the element types of the list exist only in GGUF files. */
bool stored_types_are_gguf(const struct stored_types *types);
/* True if all tensors have the same unquantised type. */
bool stored_types_are_plain(const struct stored_types *types);

/* Returns the type of a list for which stored_types_are_plain is true. */
enum dtype stored_types_plain(const struct stored_types *types);

/* Values to generate for one tensor of a weight file. */
struct synthetic_tensor {
    enum { SYNTHETIC_VALUES, SYNTHETIC_SCALES, SYNTHETIC_SCALE, SYNTHETIC_DESCRIPTION } what;
    struct tensor values; /* the weight that the tensor belongs to */
    double init_scale;
    const char *description;
};

/* Lists the tensors of a weight, the weight itself first. end[]: name ending that replaces ".weight" (NULL:
 * the name unchanged). If the checkpoint alternates between types, each quantised weight takes the next type.
 * Returns the number of tensors. */
struct weight_tensors {
    const char *end[TENSORS_OF_WEIGHT_MAX];
    struct tensor tensor[TENSORS_OF_WEIGHT_MAX]; /* tensor as declared in the file's header */
    struct synthetic_tensor made[TENSORS_OF_WEIGHT_MAX];
};
int stored_types_divide(struct stored_types *types, const struct block_kind *kind,
                        const struct weight_spec *spec, const int32_t *dims, struct weight_tensors *out);

/* Generates the next bytes of a tensor. Their number must be a multiple of the tensor's quantisation
 * block. */
void synthetic_tensor_fill(uint64_t *random, const struct synthetic_tensor *made, void *to, uint64_t bytes);

#endif
