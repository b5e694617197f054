/* Detects the components in one weight file by its tensors: each family probes for its characteristic tensors
 * under every tensor prefix of its slots. */
#ifndef SLUICE_OPEN_CONTENTS_H
#define SLUICE_OPEN_CONTENTS_H

#include "models/models.h"

/* The components found in a file, numbered by their index in the list (index_view takes this number). An
 * autoencoder is one component: its encoder is part of the decoder's entry. */
enum { CONTENTS_MAX = 16 };
struct contents {
    struct {
        const struct family *family;
        const char *prefix; /* prefix of the component's tensor names; "": none */
    } component[CONTENTS_MAX];
    int n;
};

/* Opens a file, shard index or folder, and assigns every tensor to one of its components. UNSUPPORTED: two
 * components cannot be told apart, or general.architecture of a GGUF file contradicts its tensors or is
 * unknown. Also all errors of component_open. */
enum status contents_open(struct sys *sys, const char *path, struct tensor_index *whole,
                          struct contents *contents, struct error *e);

/* As contents_open, for an index that is already open. The index stays open on failure. */
enum status contents_find(struct sys *sys, const struct tensor_index *whole, struct contents *contents,
                          struct error *e);

/* True if a pipeline cannot use components of both families, because the families are equal or of the same
 * kind. Text or vision encoders of different families can be used together. */
bool contents_exclusive(const struct family *one, const struct family *other);

/* True if GGUF files of the family may have `name` as general.architecture. */
bool contents_is_architecture(const struct family *family, const char *name);

#endif
