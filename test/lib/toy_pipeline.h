/* A whole toy pipeline, which has all that pipelines may have and published ones have not: see
 * toy_pipeline.c. Its families and its recipe stand in the tables behind the published ones. */
#ifndef SLUICE_TEST_TOY_PIPELINE_H
#define SLUICE_TEST_TOY_PIPELINE_H

#include "models/models.h"

#define TOY_FAMILIES(X) X(toy_text) X(toy_words) X(toy_eye) X(toy_mixer) X(toy_film)
#define TOY_RECIPES(X)  X(toy)

TOY_FAMILIES(DECLARE_FAMILY)
TOY_RECIPES(DECLARE_RECIPE)

/* In the order of their stages. */
enum toy_slot { TOY_TEXT, TOY_TEXT_2, TOY_WORDS, TOY_EYE, TOY_MIXER, TOY_MIXER_2, TOY_FILM };

/* Sizes that shapes do not tell, for those who compute the same again. */
enum { TOY_CHANNELS = 4, TOY_HEADS = 4, TOY_SIDE = 16, TOY_PADDED = 11, TOY_DROPPED = 2 };
#define TOY_EPS      1e-5f
#define TOY_BOUNDARY 0.551 /* below which part of the timesteps the second denoiser works */

#endif
