/* Shared by the block tests of two-stream transformers (models/mmdit.h): the lane of case 0 after the first
 * step, and checks of the embedders, final layers and whole forward passes. */
#ifndef SLUICE_TEST_BLOCK_RUNNER_MMDIT_H
#define SLUICE_TEST_BLOCK_RUNNER_MMDIT_H

#include "test/lib/block_runner.h"

/* Returns member `name` of "blocks"."block" in the fixture's expect.json. */
const json_t *mmdit_expectation(const struct golden *g, const char *name);

/* Returns the lane of case 0 after its first step: first text tokens, latent, reference latents. */
struct lane mmdit_lane(const struct golden *g);

float mmdit_timestep(const struct golden *g);

struct block_runner *runner_open_mmdit(const struct golden *g, struct lane lane);

/* Runs the block named by the printf format `format` and `number`, after its modulation block. */
void mmdit_run(struct block_runner *b, const char *format, int number);

/* Compares the RoPE table and the first text and image rows with the reference. The text must be embedded
 * already; `embedder` names the block that embeds the image. Closes `b`. */
void mmdit_expect_embedders(const struct golden *g, struct block_runner *b, const char *embedder);

/* Compares the final layers with "block.final" and "block.final_small", on the reference's conditioning. */
void mmdit_expect_final(const struct golden *g);

/* Compares the prediction of a whole forward pass; `tolerance` names a row of the suite's tolerance table. */
void mmdit_expect_velocity(const struct golden *g, struct lane lane, const char *tolerance);

#endif
