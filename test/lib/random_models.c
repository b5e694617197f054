#include "test/lib/random_models.h"

#include "bench/dev/checkpoint.h"
#include "test/lib/check.h"
#include "test/lib/temporary_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *folder_of(const char *name) {
    static char folders[8][128];
    char path[128];
    snprintf(path, sizeof path, "%s/%s", temporary, name);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (!*folders[i] || !strcmp(folders[i], path)) return strcpy(folders[i], path);
    abort();
}

const char *random_model(const char *name, const char *recipe, const char *sizes, uint64_t seed) {
    struct error e = {0};
    const char *folder = folder_of(name);
    checkpoint_write(&(struct checkpoint_options){.family = recipe, .dimensions = sizes, .seed = seed},
                     folder, &e);
    check(e.code == OK, "%s: %s (%s) %s", name, e.what, e.where, e.found);
    return folder;
}

const char *wide_checkpoint(void) {
    return random_model("wide", "zimage",
                        "heads=3,axis0=16,axis1=24,axis2=24,layers=7,refiners=1,hidden=160,text_heads=4,"
                        "text_key_heads=2,text_head_dim=32,text_ff=416,text_layers=6,vocabulary=400,"
                        "vae0=96,vae1=96,vae2=64,vae3=32,vae_groups=8,latent_channels=16,dtype=f32",
                        11);
}

const char *wide_flux_checkpoint(void) {
    return random_model("wide_flux", "flux",
                        "heads=4,axis0=8,axis1=12,axis2=12,double_layers=4,single_layers=6,hidden="
                        "128,pooled=96,t5_vocabulary=500,"
                        "t5_heads=4,t5_head_dim=24,t5_ff=512,t5_layers=7,clip_vocabulary=900,clip_"
                        "heads=4,clip_ff=384,clip_layers=6,"
                        "vae0=96,vae1=96,vae2=64,vae3=32,vae_groups=8,latent_channels=16,dtype=f32",
                        11);
}

const char *published_flux_checkpoint(void) {
    return random_model("published", "flux",
                        "heads=1,double_layers=1,single_layers=2,hidden=64,pooled=64,"
                        "clip_heads=1,clip_ff=96,clip_layers=2,clip_vocabulary=714,t5_heads=1,"
                        "t5_ff=80,t5_layers=2,t5_vocabulary=415,vae0=64,vae1=32,vae2=32,vae3=32,"
                        "dtype=f32",
                        3);
}

/* Matrices have 768 and 2048 columns, so that a row consists of whole quantisation blocks of 256 values. */
#define STORED_SIZES                                                                                         \
    "heads=12,axis0=16,axis1=24,axis2=24,layers=2,refiners=1,hidden=64,text_heads=2,text_key_heads=1,"       \
    "text_head_dim=32,text_ff=128,text_layers=2,vocabulary=400,vae0=32,vae1=32,vae2=16,vae3=16,vae_groups="  \
    "8,"                                                                                                     \
    "latent_channels=4,dtype="

const char *stored_checkpoint(const char *dtype) {
    char text[512];
    snprintf(text, sizeof text, "rm -rf '%s/stored'", temporary);
    check(!system(text), "cannot remove the model before dtype %s", dtype);
    snprintf(text, sizeof text, "%s%s", STORED_SIZES, dtype);
    return random_model("stored", "zimage", text, 11);
}

const char *synthetic_checkpoint(void) {
    return random_model("synthetic", "synthetic", "dtype=f32", 11);
}
