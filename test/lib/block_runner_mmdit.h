/* What tests of transformers over two streams (models/mmdit.h) have in common: case 0 after its first step,
 * and the parts that these families have alike. */
#ifndef SLUICE_TEST_BLOCK_RUNNER_MMDIT_H
#define SLUICE_TEST_BLOCK_RUNNER_MMDIT_H

#include "test/lib/block_runner.h"

/* Of the fixture's blocks in expect.json. */
const json_t *mmdit_expectation(const struct golden *g, const char *name);

/* The first tokens of the text, the latent and what it refers to. */
struct lane mmdit_lane(const struct golden *g);

float mmdit_timestep(const struct golden *g);

struct block_runner *runner_open_mmdit(const struct golden *g, struct lane lane);

/* What the numbered block of that name's format makes of the state; its modulation too. */
void mmdit_run(struct block_runner *b, const char *format, int number);

/* Rope and both streams' first rows, the text's being there; embedder: the block that embeds pictures.
 * Closes the bench. */
void mmdit_expect_embedders(const struct golden *g, struct block_runner *b, const char *embedder);

/* The last layers on all rows of "block.final", then on small ones, under the reference's conditioning. */
void mmdit_expect_final(const struct golden *g);

/* A whole forward's prediction; tolerance: its name. */
void mmdit_expect_velocity(const struct golden *g, struct lane lane, const char *tolerance);

#endif
