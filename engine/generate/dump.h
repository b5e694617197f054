/* Writes latents (--save-latent) and dumps (--dump) as safetensors files. */
#ifndef SLUICE_GENERATE_DUMP_H
#define SLUICE_GENERATE_DUMP_H

#include "engine/job/job.h"
#include "loaders/loaders.h"

/* Writes n latents [C, F, Y, X] of one shape as one tensor NAME [n, C, F, Y, X]. Dimension F is left out if F
 * is 1. recipe: stored in the metadata for latent_read_origin; NULL: not stored. Fails like
 * safetensors_write.
 */
enum status latents_save(struct sys *sys, const char *path, const char *name, const char *recipe,
                         const struct tensor *latents, int n, struct error *e);

/* Dumps a tensor to FOLDER/NAME.safetensors under the name NAME, for comparison with a reference
 * implementation. */
enum status dump_save(struct sys *sys, const char *folder, const char *name, struct tensor tensor,
                      struct error *e);
/* Dumps the batch's latents after `step` steps as latent_NNN. */
enum status dump_step_latents(const struct job *job, int step, struct error *e);
/* Dumps the token ids and the sigmas, which are known before the first visit. */
enum status dump_run_start(const struct job *job, struct error *e);
/* Dumps a picture [Y, X, 3] as a tensor [1, 3, Y, X]. */
enum status dump_save_picture(struct sys *sys, const char *folder, const char *name, struct tensor picture,
                              struct error *e);

#endif
