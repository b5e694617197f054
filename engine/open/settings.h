/* How a model draws where a request does not say: its schedule, what its pipeline does with prompts, sizes,
 * steps and guidance. Each by a file of its folder, else as its recipe has it. */
#ifndef SLUICE_OPEN_SETTINGS_H
#define SLUICE_OPEN_SETTINGS_H

#include "engine/open/model.h"

/* path: scheduler_config.json; NULL: there is none. UNSUPPORTED for schedules that nothing here computes;
 * what config_read and the like fail with. */
enum status settings_read_schedule(struct sluice_model *m, const char *path, struct error *e);
/* path: model_index.json. */
enum status settings_read_pipeline(struct sluice_model *m, const char *path, struct error *e);
/* path: sluice.json. After the schedule and all components. */
enum status settings_read_defaults(struct sluice_model *m, const char *path, struct error *e);

#endif
