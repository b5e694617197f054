/* Reads a model's default settings: schedule, treatment of negative prompts and input images, sizes, steps
 * and guidance. Settings that no file in the model's folder contains come from the recipe. */
#ifndef SLUICE_OPEN_SETTINGS_H
#define SLUICE_OPEN_SETTINGS_H

#include "engine/open/model.h"

/* Reads the noise schedule. path: scheduler_config.json, or NULL. UNSUPPORTED: a schedule that Sluice lacks.
 * Also errors of config_read, and errors about invalid values. */
enum status settings_read_schedule(struct sluice_model *m, const char *path, struct error *e);
/* Sets the prediction type (epsilon, v, ...) from markers in the denoiser's file: tensors named "v_pred",
 * "ztsnr", "edm_vpred.sigma_max", and "modelspec.prediction_type" in the metadata. Markers override
 * scheduler_config.json because finetunes carry them with the weights. Without scheduler_config.json, a
 * recipe may name a probe: a vector of a few KB whose standard deviation separates v-prediction from epsilon
 * weights. Call after reading the schedule and the denoiser. Errors of reading. */
enum status settings_detect_prediction(struct sluice_model *m, struct error *e);
/* Reads the pipeline's settings. path: model_index.json, or NULL. */
enum status settings_read_pipeline(struct sluice_model *m, const char *path, struct error *e);
/* Reads the remaining default settings (sizes, steps, guidance). path: sluice.json, or NULL. Call after
 * reading the schedule and all components. */
enum status settings_read_defaults(struct sluice_model *m, const char *path, struct error *e);

#endif
