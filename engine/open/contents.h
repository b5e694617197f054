/* What one file of weights holds: families of ours, each behind its prefix. Decided by content alone: each
 * family looks for its tell-tale tensors behind each prefix that a slot of it has. */
#ifndef SLUICE_OPEN_CONTENTS_H
#define SLUICE_OPEN_CONTENTS_H

#include "models/models.h"

/* Numbers are those of the views. An autoencoder's encoder is no component of its own: it lies with the
 * decoder.
 */
enum { CONTENTS_MAX = 16 };
struct contents {
    struct {
        const struct family *family;
        const char *prefix; /* "" where there is none */
    } component[CONTENTS_MAX];
    int n;
};

/* Opens the file, shard index or folder, and gives every tensor to one of its components. UNSUPPORTED if two
 * components cannot be told apart, or if a GGUF file says that it is a model that no family is, or another
 * than its tensors are; and all of component_open's. */
enum status contents_open(struct sys *sys, const char *path, struct tensor_index *whole,
                          struct contents *contents, struct error *e);

/* The same of what is opened already; on failure it stays so. */
enum status contents_find(struct sys *sys, const struct tensor_index *whole, struct contents *contents,
                          struct error *e);

/* Does a pipeline with one of them have no use for the other, unless it has several slots of one family?
 * Encoders of prompts and of what goes with them differ; of the others a pipeline has one. */
bool contents_alike(const struct family *one, const struct family *other);

/* Is that what general.architecture says in files of this family? */
bool contents_is_architecture(const struct family *family, const char *name);

/* The family whose tensors this view sees, or NULL. */
const struct family *contents_family(const struct tensor_index *view);

#endif
