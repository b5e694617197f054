/* Content of an adapter file: modules, each with its tensors. Module names are as in the file, with prefix;
 * adapter_match (adapters.h) matches the names to a model. */
#ifndef SLUICE_OPEN_ADAPTER_FILE_H
#define SLUICE_OPEN_ADAPTER_FILE_H

#include "engine/open/adapters.h"

/* Role of a tensor in its module, from the end of its name. */
enum adapter_role {
    ADAPTER_DOWN, /* [r, in] or [r, in, k, k] */
    ADAPTER_UP,   /* [out, r] or [out, r, 1, 1] */
    ADAPTER_MID,  /* [r, r, k, k]; if present, up and down are 1x1 convolutions */
    ADAPTER_UP_BIAS,
    ADAPTER_ALPHA,
    ADAPTER_SCALE, /* scalar that replaces alpha / r */
    ADAPTER_DORA,  /* DoRA magnitudes: norms of the rows or columns of the changed weight */
    ADAPTER_DIFF,  /* difference of a whole weight. Large matrix differences need `convert --lora` */
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

/* Naming convention of an adapter's keys, for messages. */
enum adapter_dialect { ADAPTER_KOHYA, ADAPTER_PEFT, ADAPTER_OLD_DIFFUSERS };

struct adapter_module {
    const char *name; /* name of the module; borrowed, not NUL-terminated */
    int name_bytes;
    const struct index_entry *tensor[N_ADAPTER_ROLES]; /* tensor of each role; NULL: none */
    enum adapter_form form;
    enum adapter_dialect dialect;
    int rank;    /* divisor of alpha; for LoRA the number of rows of the `down` tensor; 0: no rank */
    float alpha; /* alpha from the file or its configuration; NaN: absent */
    float scale; /* factor of the product: alpha / rank, or the scalar tensor of role ADAPTER_SCALE */
};

struct adapter {
    struct sys *sys;
    struct tensor_index index;      /* tensors of the adapter file */
    struct adapter_module *modules; /* sorted by name */
    int n_modules;
    const struct index_entry **unknown; /* tensors whose names are no adapter keys */
    int n_unknown;
    uint64_t host_bytes;
};

/* Prints the shape of a tensor as "[3, 64]". Returns out. */
char *adapter_print_shape(const struct index_entry *entry, char *out, size_t bytes);

const char *adapter_form_name(enum adapter_form form);
const char *adapter_dialect_name(enum adapter_dialect dialect);

#endif
