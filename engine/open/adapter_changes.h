/* Lists the weights that an adapter changes: looks up each module's weight by name. If the adapter file has a
 * layer twice, under its checkpoint name and its diffusers name, the layer is used once. */
#ifndef SLUICE_OPEN_ADAPTER_CHANGES_H
#define SLUICE_OPEN_ADAPTER_CHANGES_H

#include "engine/open/adapter_file.h"
#include "engine/open/adapter_names.h"

enum { PATH_SHOWN = 256 };

/* A change to one weight, or to one part of a fused tensor. */
struct change {
    const struct adapter_module *module;
    const struct weight_name *name;
    const struct index_entry *vector; /* tensor to add, times scale; NULL: low-rank factors */
    float scale;
};

/* All changes of an adapter, in the order of slots, blocks and weights. */
struct changes {
    struct sys *sys;
    struct weight_names names;
    struct change *at;
    int n, capacity;
    bool nothing; /* true if no module of the adapter fits the model */
};

/* Purpose of the changes: operators add them at run time, or `convert --lora` merges them into weights.
 * Merging also takes embedding tables and unused layers, and keeps a matrix difference whole. */
enum changes_mode { CHANGES_AT_RUN_TIME, CHANGES_MERGED };

/* Fills *changes, and the counts and log messages of *match. Fails like adapter_match, except that shapes are
 * not checked. */
enum status changes_find(const struct adapter *adapter, const struct sluice_model *model,
                         enum changes_mode mode, bool partial, struct adapter_match *match,
                         struct changes *changes, struct error *e);
void changes_destroy(struct changes *changes);

#endif
