#include "test/lib/made_models.h"

#include "engine/sluice_bench.h"
#include "test/lib/check.h"
#include "test/lib/folder.h"

#include <stdio.h>
#include <stdlib.h>

const char *wide_checkpoint(void) {
    static char folder[128];
    struct sluice_error e;
    snprintf(folder, sizeof folder, "%s/wide", temporary);
    int code = sluice_checkpoint_write(
        "zimage", folder,
        "heads=3,axis0=16,axis1=24,axis2=24,layers=7,refiners=1,hidden=160,text_heads=4,"
        "text_key_heads=2,text_head_dim=32,text_ff=416,text_layers=6,vocabulary=400,"
        "vae0=96,vae1=96,vae2=64,vae3=32,vae_groups=8,latent_channels=16,dtype=f32",
        11, NULL, NULL, &e);
    check(!code, "wide checkpoint: %s (%s) %s", e.what, e.where, e.found);
    return folder;
}

const char *wide_flux_checkpoint(void) {
    static char folder[128];
    struct sluice_error e;
    snprintf(folder, sizeof folder, "%s/wide_flux", temporary);
    int code =
        sluice_checkpoint_write("flux", folder,
                                "heads=4,axis0=8,axis1=12,axis2=12,double_layers=4,single_layers=6,hidden="
                                "128,pooled=96,t5_vocabulary=500,"
                                "t5_heads=4,t5_head_dim=24,t5_ff=512,t5_layers=7,clip_vocabulary=900,clip_"
                                "heads=4,clip_ff=384,clip_layers=6,"
                                "vae0=96,vae1=96,vae2=64,vae3=32,vae_groups=8,latent_channels=16,dtype=f32",
                                11, NULL, NULL, &e);
    check(!code, "wide checkpoint: %s (%s) %s", e.what, e.where, e.found);
    return folder;
}

const char *published_flux_checkpoint(void) {
    static char folder[128];
    struct sluice_error e;
    snprintf(folder, sizeof folder, "%s/published", temporary);
    int code =
        sluice_checkpoint_write("flux", folder,
                                "heads=1,double_layers=1,single_layers=2,hidden=64,pooled=64,"
                                "clip_heads=1,clip_ff=96,clip_layers=2,clip_vocabulary=714,t5_heads=1,"
                                "t5_ff=80,t5_layers=2,t5_vocabulary=415,vae0=64,vae1=32,vae2=32,vae3=32,"
                                "dtype=f32",
                                3, NULL, NULL, &e);
    check(!code, "published heads: %s (%s) %s", e.what, e.where, e.found);
    return folder;
}

/* Wide enough for rows of whole blocks of 256: 768 and 2048 columns. */
#define STORED_SIZES                                                                                         \
    "heads=12,axis0=16,axis1=24,axis2=24,layers=2,refiners=1,hidden=64,text_heads=2,text_key_heads=1,"       \
    "text_head_dim=32,text_ff=128,text_layers=2,vocabulary=400,vae0=32,vae1=32,vae2=16,vae3=16,vae_groups="  \
    "8,"                                                                                                     \
    "latent_channels=4,dtype="

const char *stored_checkpoint(const char *dtype) {
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

const char *toy_checkpoint(void) {
    static char folder[128];
    struct sluice_error e;
    snprintf(folder, sizeof folder, "%s/toy", temporary);
    int code = sluice_checkpoint_write("toy", folder, "dtype=f32", 11, NULL, NULL, &e);
    check(!code, "toy: %s (%s) %s", e.what, e.where, e.found);
    return folder;
}
