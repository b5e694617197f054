/* A planned run of a VAE's encoder or decoder alone, for tests. */
#ifndef SLUICE_TEST_VAE_RUN_H
#define SLUICE_TEST_VAE_RUN_H

#include "engine/run/executor.h"
#include "bench/dev/paced.h"
#include "test/lib/block_runner.h"

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

/* Measures a VAE run over the caller's lanes by a dry run. n_chunks: chunks of frames of a video; 0: images.
 */
void vae_run_measure(struct vae_run *r, const struct component *c, struct lane *lanes, int n_lanes,
                     struct device *device, int n_chunks);

/* Executes the measured run as planned. Checks that the device holds the planned bytes, except on a real GPU.
 */
void vae_run_execute(struct vae_run *r);

#endif
