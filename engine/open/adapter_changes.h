/* Which weights the modules of an adapter change: every one finds the names of the model's weights that it
 * means, and of a layer that the file has in two namings one is taken. */
#ifndef SLUICE_OPEN_ADAPTER_CHANGES_H
#define SLUICE_OPEN_ADAPTER_CHANGES_H

#include "engine/open/adapter_file.h"
#include "engine/open/adapter_names.h"

enum { PATH_SHOWN = 256 };

/* One weight, or one of the parts of a fused tensor. */
struct change {
    const struct adapter_module *module;
    const struct weight_name *name;
    const struct index_entry *vector; /* is added to it, times scale; NULL: the module's product is */
    float scale;
};

/* In the order of slots, blocks and weights. */
struct changes {
    struct sys *sys;
    struct weight_names names;
    struct change *at;
    int n, room;
    bool nothing; /* of the adapter fits the model */
};

/* What becomes of changes: operators add them, or they are merged into weights. Merging takes more: rows
 * that are looked up, and layers that nothing depends on; a whole matrix stays one. */
enum changes_for { CHANGES_ADDED, CHANGES_MERGED };

/* Counts and notes go to *match. As adapter_match, but for shapes. */
enum status changes_find(const struct adapter *adapter, const struct sluice_model *model,
                         enum changes_for what_for, bool partial, struct adapter_match *match,
                         struct changes *changes, struct error *e);
void changes_destroy(struct changes *changes);

#endif
