/* Defaults of a model: schedule, treatment of negative prompts and input images, sizes, steps and guidance.
 * Each is read from a file of the model's folder, else taken from the recipe. */
#ifndef SLUICE_OPEN_SETTINGS_H
#define SLUICE_OPEN_SETTINGS_H

#include "engine/open/model.h"

/* Reads the schedule. path: scheduler_config.json, or NULL. UNSUPPORTED: a schedule that Sluice lacks. Also
 * errors of config_read and of single values. */
enum status settings_read_schedule(struct sluice_model *m, const char *path, struct error *e);
/* Reads the pipeline's settings. path: model_index.json, or NULL. */
enum status settings_read_pipeline(struct sluice_model *m, const char *path, struct error *e);
/* Reads other defaults. path: sluice.json, or NULL. Call after reading the schedule and all components. */
enum status settings_read_defaults(struct sluice_model *m, const char *path, struct error *e);

#endif
