/* What a denoiser's file tells of what it predicts, beside its weights' shapes. */
#ifndef SLUICE_OPEN_RECOGNITION_H
#define SLUICE_OPEN_RECOGNITION_H

#include "engine/open/model.h"

/* Into m->sampling: the marks that finetunes are shared with (tensors named "v_pred", "ztsnr",
 * "edm_vpred.sigma_max"; "modelspec.prediction_type" in the metadata), which say more than a folder's
 * scheduler_config.json, since they are in the weights' own file; and, without scheduler_config.json, the
 * spread of a vector that tells one kind of weights from the other, where the recipe names one. Reads that
 * vector, a few KB, and no other weights. Whatever reading fails with. */
enum status recognise_sampling(struct sluice_model *m, struct error *e);

#endif
