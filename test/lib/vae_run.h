/* A run of nothing but one half of an autoencoder, planned and executed as any other. */
#ifndef SLUICE_TEST_VAE_RUN_H
#define SLUICE_TEST_VAE_RUN_H

#include "engine/run/executor.h"
#include "kernels/paced/paced.h"
#include "test/lib/golden.h"

struct vae_run {
    const struct block *blocks[PLAN_PICTURE_BLOCKS_MAX];
    struct stage stage;
    struct visit_list visits;
    struct run run;
    struct run_need need;
    struct plan plan;
    struct residents residents;
    struct error error;
};

/* The lanes are the caller's. */
void vae_run_measure(struct vae_run *r, const struct component *c, struct lane *lanes, int n_lanes,
                     struct device *device);

/* As planned; the device holds what was planned. */
void vae_run_execute(struct vae_run *r);

#endif
