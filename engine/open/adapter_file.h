/* Adapter files (LoRA, LoHa, LoKr, weight differences): opens a safetensors file and groups its tensors into
 * modules. Module names are as in the file, with prefix; adapter_match.h matches them to a model. Only
 * headers and scalars (alpha) are read. */
#ifndef SLUICE_OPEN_ADAPTER_FILE_H
#define SLUICE_OPEN_ADAPTER_FILE_H

#include "engine/base/index.h"

/* Role of a tensor in an adapter's module, derived from the ending of the tensor's name. */
enum adapter_role {
    ADAPTER_DOWN, /* shape [r, in], or [r, in, k, k] for a convolution */
    ADAPTER_UP,   /* shape [out, r], or [out, r, 1, 1] for a convolution */
    ADAPTER_MID,  /* shape [r, r, k, k]; if it exists, up and down are 1x1 convolutions */
    ADAPTER_UP_BIAS,
    ADAPTER_ALPHA,
    ADAPTER_SCALE, /* scalar factor that replaces alpha / rank */
    ADAPTER_DORA,  /* DoRA magnitudes: the norm of each row or column of the changed weight */
    ADAPTER_DIFF,  /* difference of a whole weight; a large matrix needs `convert --lora` */
    ADAPTER_DIFF_BIAS,
    ADAPTER_DIFF_MODULATION,
    ADAPTER_HADA_W1_A,
    ADAPTER_HADA_W1_B,
    ADAPTER_HADA_W2_A,
    ADAPTER_HADA_W2_B,
    ADAPTER_HADA_T1,
    ADAPTER_HADA_T2,
    ADAPTER_LOKR_W1,
    ADAPTER_LOKR_W1_A,
    ADAPTER_LOKR_W1_B,
    ADAPTER_LOKR_W2,
    ADAPTER_LOKR_W2_A,
    ADAPTER_LOKR_W2_B,
    ADAPTER_LOKR_T2,
    N_ADAPTER_ROLES,
};

enum adapter_form { ADAPTER_LORA, ADAPTER_LOHA, ADAPTER_LOKR, ADAPTER_DIFFERENCE };

/* Naming conventions of adapter keys (tensor names), for messages. */
enum adapter_dialect { ADAPTER_KOHYA, ADAPTER_PEFT, ADAPTER_OLD_DIFFUSERS };

struct adapter_module {
    const char *name; /* name of the module; borrowed, not NUL-terminated */
    int name_bytes;
    const struct index_entry *tensor[N_ADAPTER_ROLES]; /* tensor of each role; NULL: none */
    enum adapter_form form;
    enum adapter_dialect dialect;
    int rank; /* rank, the divisor of alpha; for LoRA the number of rows of the `down` tensor; 0: no rank */
    float alpha; /* alpha from the file or its configuration; NaN: absent */
    float scale; /* factor of the low-rank product: alpha / rank, or the tensor of role ADAPTER_SCALE */
};

/* An opened adapter file. Immutable; may be matched to several models. */
struct adapter {
    struct sys *sys;
    struct tensor_index index;      /* tensors of the adapter file */
    struct adapter_module *modules; /* sorted by name */
    int n_modules;
    const struct index_entry **unknown; /* tensors whose names are no adapter keys */
    int n_unknown;
    uint64_t host_bytes;
};

/* Opens a safetensors file and groups its tensors by module. UNSUPPORTED: a model instead of an adapter, an
 * unsupported kind of adapter (OFT, ...), which the error names, or an alpha_pattern that is a regular
 * expression. SHAPE, DUP, MISSING: factors that do not form a pair. META: alpha is not finite. Also errors of
 * safetensors_open. */
enum status adapter_open(struct sys *sys, const char *path, struct adapter **adapter, struct error *e);
void adapter_close(struct adapter *adapter);

/* The adapter's open file, for comparing adapters, for messages, and for reading factors. */
static inline struct byte_source *adapter_source(const struct adapter *adapter) {
    return &adapter->index.sources[0];
}

/* Path of the adapter_config.json next to peft's adapter_model.safetensors; the configuration has the alphas
 * that the file lacks. The caller frees the path with sys->release. NULL: no such file, or no memory
 * (*e). */
char *adapter_config_path(struct sys *sys, const char *path, struct error *e);

/* A key of an adapter file: the end gives the tensor's role, the rest is the module's name. */
struct adapter_key {
    int name_bytes; /* length of the module's name, which begins the key */
    enum adapter_role role;
    enum adapter_dialect dialect;
    const char *refused; /* name of the unsupported kind of adapter; NULL: supported, role is set */
};

/* Parses a tensor name as an adapter key. False: the name is no adapter key. */
bool adapter_key_read(const char *key, struct adapter_key *out);
/* True for the name of a tensor that only adapter files have. Models also have tensors named scale or
 * alpha. */
bool adapter_is_key(const char *key);

/* Prints the shape of a tensor as "[3, 64]". Returns out. */
char *adapter_print_shape(const struct index_entry *entry, char *out, size_t bytes);

const char *adapter_form_name(enum adapter_form form);
const char *adapter_dialect_name(enum adapter_dialect dialect);

/* Describes a file without a known component, by its tensor names: an adapter, or an unsupported kind of
 * control network. NULL: unknown. */
const char *adapter_describe(const struct tensor_index *view);

#endif
