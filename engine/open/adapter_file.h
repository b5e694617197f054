/* What is in an adapter's file: modules, each with the tensors that say what becomes of its weight. Names are
 * the file's, prefix included; whose modules they are only a model can say (adapters.h). */
#ifndef SLUICE_OPEN_ADAPTER_FILE_H
#define SLUICE_OPEN_ADAPTER_FILE_H

#include "engine/open/adapters.h"

/* What a tensor is to its module, by how its name ends. */
enum adapter_role {
    ADAPTER_DOWN, /* [r, in], [r, in, k, k] */
    ADAPTER_UP,   /* [out, r], [out, r, 1, 1] */
    ADAPTER_MID,  /* [r, r, k, k], then the others are 1x1 around it */
    ADAPTER_UP_BIAS,
    ADAPTER_ALPHA,
    ADAPTER_SCALE, /* in place of alpha / r */
    ADAPTER_DORA,  /* the norms of the sum's rows, or columns */
    ADAPTER_DIFF,  /* what is added to a weight as it is; to a vector, where nothing is merged */
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

/* How keys are written: for messages. */
enum adapter_dialect { ADAPTER_KOHYA, ADAPTER_PEFT, ADAPTER_OLD_DIFFUSERS };

struct adapter_module {
    const char *name; /* its tensors' names without what tells their roles; borrowed, not ended by a NUL */
    int name_bytes;
    const struct index_entry *tensor[N_ADAPTER_ROLES]; /* NULL: none */
    enum adapter_form form;
    enum adapter_dialect dialect;
    int rank;    /* that alpha is divided by; of LoRA the rows of down. 0: none */
    float alpha; /* as the file says, beside it or in its metadata; NaN: it says nothing */
    float scale; /* alpha / rank, or what stands in its place */
};

struct adapter {
    struct sys *sys;
    struct tensor_index index;      /* of one source */
    struct adapter_module *modules; /* sorted by name */
    int n_modules;
    const struct index_entry **strays; /* tensors whose names say nothing of an adapter */
    int n_strays;
    uint64_t host_bytes;
};

/* "[3, 64]". Returns out. */
char *adapter_print_shape(const struct index_entry *entry, char *out, size_t bytes);

const char *adapter_form_name(enum adapter_form form);
const char *adapter_dialect_name(enum adapter_dialect dialect);

#endif
