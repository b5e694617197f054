/* Opens the upscalers of a model (--upscale-model, --hires-upscaler, --upscaler). */
#ifndef SLUICE_OPEN_UPSCALER_H
#define SLUICE_OPEN_UPSCALER_H

#include "engine/open/component_files.h"
#include "engine/open/model.h"

/* True if the options name an upscaler and no other file: the model then has no pipeline. */
bool upscaler_is_alone(const struct sluice_model_options *options);
/* The recipe of a model whose only component is an upscaler: a name without slots. */
extern const struct recipe upscaler_recipe;

/* Opens the file of --upscale-model as m->component[MODEL_UPSCALER], that of --hires-upscaler as
 * MODEL_HIRES_UPSCALER, and that of --upscaler as MODEL_LATENT_UPSCALER, with the latent_format of the
 * model's VAE; absent files are skipped. Call after the model's own components. Errors of binding. */
enum status upscaler_open(struct sluice_model *m, struct component_files *files, struct error *e);
/* The same without files (--family): the flags name families (published_bind_network). */
enum status upscaler_open_published(struct sluice_model *m, const struct sluice_model_options *o,
                                    struct error *e);
/* Checks that the latent upscaler fits the model's VAE. USAGE: the model makes no videos; SHAPE: another
 * number of latent channels. Does nothing without a latent upscaler. */
enum status upscaler_check_latent(const struct sluice_model *m, struct error *e);

#endif
