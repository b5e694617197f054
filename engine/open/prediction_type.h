/* Detects the prediction type (epsilon, v, ...) of a denoiser from its file. */
#ifndef SLUICE_OPEN_PREDICTION_TYPE_H
#define SLUICE_OPEN_PREDICTION_TYPE_H

#include "engine/open/model.h"

/* Sets m->sampling from markers in the weight file: tensors named "v_pred", "ztsnr", "edm_vpred.sigma_max",
 * and "modelspec.prediction_type" in the metadata. Markers override scheduler_config.json because finetunes
 * carry them with the weights. Without scheduler_config.json, a recipe may name a probe: a vector of a few KB
 * whose standard deviation separates v-prediction from epsilon weights. Errors of reading. */
enum status prediction_type_detect(struct sluice_model *m, struct error *e);

#endif
