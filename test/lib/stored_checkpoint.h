/* A small Z-Image-like model whose transformer's matrices are of given types. */
#ifndef SLUICE_TEST_STORED_CHECKPOINT_H
#define SLUICE_TEST_STORED_CHECKPOINT_H

#include "test/lib/harness.h"

/* Wide enough for rows of whole blocks of 256: 768 and 2048 columns. */
#define STORED_SIZES                                                                                         \
    "heads=12,axis0=16,axis1=24,axis2=24,layers=2,refiners=1,hidden=64,text_heads=2,text_key_heads=1,"       \
    "text_head_dim=32,text_ff=128,text_layers=2,vocabulary=400,vae0=32,vae1=32,vae2=16,vae3=16,vae_groups="  \
    "8,"                                                                                                     \
    "latent_channels=4,dtype="

/* dtype: one, or several in turn with slashes between them. In the place of the one before. */
static inline const char *stored_checkpoint(const char *dtype) {
    static char folder[128];
    char text[512];
    struct sluice_error e;
    snprintf(folder, sizeof folder, "%s/stored", temporary);
    snprintf(text, sizeof text, "rm -rf '%s'", folder);
    check(!system(text), "%s stays", folder);
    snprintf(text, sizeof text, "%s%s", STORED_SIZES, dtype);
    int code = sluice_checkpoint_write("zimage", folder, text, 11, NULL, NULL, &e);
    check(!code, "%s: %s (%s) %s", dtype, e.what, e.where, e.found);
    return folder;
}

#endif
