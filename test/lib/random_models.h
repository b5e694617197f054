/* Models of random weights, written into the program's temporary folder. */
#ifndef SLUICE_TEST_RANDOM_MODELS_H
#define SLUICE_TEST_RANDOM_MODELS_H

#include <stdint.h>

/* That recipe's of these sizes ("heads=2,..."), in the folder of that name. Returns the folder's path, which
 * stays; at most eight names. */
const char *random_model(const char *name, const char *recipe, const char *sizes, uint64_t seed);

/* Z-Image whose weights outweigh activations in every stage at 48x32. */
const char *wide_checkpoint(void);

/* Flux.1 of which the same is true, in spite of 512 tokens of text. */
const char *wide_flux_checkpoint(void);

/* Flux.1 with heads as published, so that files without any configuration are enough. */
const char *published_flux_checkpoint(void);

/* The synthetic pipeline: test/lib/synthetic_pipeline.h. */
const char *synthetic_checkpoint(void);

/* A small one like Z-Image whose transformer's matrices are of the type, or of several in turn with slashes
 * between them. In the place of the one before. */
const char *stored_checkpoint(const char *dtype);

#endif
