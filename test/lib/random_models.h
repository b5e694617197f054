/* Writes models with random weights into the program's temporary folder. */
#ifndef SLUICE_TEST_RANDOM_MODELS_H
#define SLUICE_TEST_RANDOM_MODELS_H

#include <stdint.h>

/* Writes a model of the given recipe and sizes ("heads=2,...") to folder `name`. Returns the folder's path,
 * which stays valid; at most eight names. */
const char *random_model(const char *name, const char *recipe, const char *sizes, uint64_t seed);

/* A Z-Image model whose weights take more memory than its activations in every stage at 48x32. */
const char *wide_checkpoint(void);

/* A Flux.1 model whose weights take more memory than its activations, despite 512 text tokens. */
const char *wide_flux_checkpoint(void);

/* Flux.1 with the published head size, so that files open without any configuration. */
const char *published_flux_checkpoint(void);

/* Returns the folder of a model of the synthetic pipeline (synthetic_pipeline.h). */
const char *synthetic_checkpoint(void);

/* A small Z-Image model whose transformer matrices have the given dtype, or several dtypes in turn, separated
 * by slashes. Replaces the previous stored checkpoint. */
const char *stored_checkpoint(const char *dtype);

#endif
