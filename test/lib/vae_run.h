/* Shared by tests of VAE encoders and decoders: image layouts, and a planned run of an encoder or decoder. */
#ifndef SLUICE_TEST_VAE_RUN_H
#define SLUICE_TEST_VAE_RUN_H

#include "engine/run/executor.h"
#include "bench/dev/paced.h"
#include "test/lib/block_runner.h"

/* Transposes an image [C, Y, X] to [Y, X, C]. */
struct tensor vae_channels_last(struct tensor t);
/* Transposes frames [1, C, N, Y, X] to [N, Y, X, C]. */
struct tensor vae_frames_last(struct tensor t);
/* Reads the reference tensor "NAME.SIDE" [1, C, Y, X] as [Y, X, C]. */
struct tensor vae_golden_picture(const struct golden *g, const char *name, const char *side);
void vae_expect_picture(const struct golden *g, const char *name, struct tensor ours);
/* Writes the image into the full-frame buffer, at the row where the level's first image begins. */
void vae_put_picture(struct block_runner *b, struct tensor picture, int level);
/* Returns the block of a module, such as "up_blocks.0.upsample" for "decoder.up_blocks.0.upsamplers.0". */
const struct block *vae_block_of(const struct block_runner *b, const char *module);

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

/* Measures a VAE run over the caller's lanes by a dry run. */
void vae_run_measure(struct vae_run *r, const struct component *c, struct lane *lanes, int n_lanes,
                     struct device *device);
/* Like vae_run_measure, for one lane in chunks of frames. */
void vae_run_measure_chunks(struct vae_run *r, const struct component *c, struct lane *lane, int n_chunks,
                            struct device *device);

/* Executes the measured run as planned. Checks that the device holds the planned bytes, except on a real GPU.
 */
void vae_run_execute(struct vae_run *r);

#endif
