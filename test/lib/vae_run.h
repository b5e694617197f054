/* What tests of one half of an autoencoder share: pictures as its blocks have them, and a run of nothing but
 * one half, planned and executed as any other. */
#ifndef SLUICE_TEST_VAE_RUN_H
#define SLUICE_TEST_VAE_RUN_H

#include "engine/run/executor.h"
#include "kernels/paced/paced.h"
#include "test/lib/block_runner.h"

/* ---- pictures ---- */

/* [C, Y, X] to [Y, X, C]. */
struct tensor vae_channels_last(struct tensor t);
/* [1, C, N, Y, X] to [N, Y, X, C]. */
struct tensor vae_frames_last(struct tensor t);
/* The reference's tensor "NAME.SIDE", [1, C, Y, X]. */
struct tensor vae_golden_picture(const struct golden *g, const char *name, const char *side);
void vae_expect_picture(const struct golden *g, const char *name, struct tensor ours);
/* Start row of a level's first picture in the full-frame buffer. */
void vae_put_picture(struct block_runner *b, struct tensor picture, int level);
/* The block of a module of the reference: "decoder.up_blocks.0.upsamplers.0" is our "up_blocks.0.upsample".
 */
const struct block *vae_block_of(const struct block_runner *b, const char *module);

/* ---- a run ---- */

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
/* The same of one lane in chunks of frames. */
void vae_run_measure_chunks(struct vae_run *r, const struct component *c, struct lane *lane, int n_chunks,
                            struct device *device);

/* As planned; the device holds what was planned, which is counted where it only stands for one. */
void vae_run_execute(struct vae_run *r);

#endif
