/* What tests of transformers over two streams (models/mmdit.h) have in common: case 0 after its first step,
 * and the parts that these families have alike. */
#ifndef SLUICE_TEST_BENCH_STREAMS_H
#define SLUICE_TEST_BENCH_STREAMS_H

#include "test/lib/bench.h"

/* Of the fixture's blocks in expect.json. */
const json_t *streams_about(const struct golden *g, const char *name);

/* The first tokens of the text, the latent and what it refers to. */
struct lane streams_lane(const struct golden *g);

float streams_timestep(const struct golden *g);

struct bench *bench_streams_open(const struct golden *g, struct lane lane);

/* What the numbered block of that name's format makes of the state; its modulation too. */
void streams_visit(struct bench *b, const char *format, int number);

/* Rope and both streams' first rows, the text's being there; embedder: the block that embeds pictures.
 * Closes the bench. */
void streams_expect_embedders(const struct golden *g, struct bench *b, const char *embedder);

/* The last layers on all rows of "block.final", then on small ones, under the reference's conditioning. */
void streams_expect_final(const struct golden *g);

/* A whole forward's prediction; tolerance: its name. */
void streams_expect_velocity(const struct golden *g, struct lane lane, const char *tolerance);

#endif
