/* Latents and dumps, as safetensors files that are written. */
#ifndef SLUICE_API_LATENTS_H
#define SLUICE_API_LATENTS_H

#include "loaders/loaders.h"

/* n latents of one shape that lie anywhere, [C, F, Y, X], as one tensor NAME [n, C, F, Y, X], without F
 * where that is 1. recipe: whose they are, for latent_look; NULL: the file does not say it. */
enum status latents_save(struct sys *sys, const char *path, const char *name, const char *recipe,
                         const struct tensor *latents, int n, struct error *e);

/* Dumps, for comparing with a reference: FOLDER/NAME.safetensors holds one tensor of that name. */
enum status dump_save(struct sys *sys, const char *folder, const char *name, struct tensor tensor,
                      struct error *e);
enum status dump_save_latents(struct sys *sys, const char *folder, const char *name,
                              const struct tensor *latents, int n, struct error *e);
/* A picture [Y, X, 3] as [1, 3, Y, X]. */
enum status dump_save_picture(struct sys *sys, const char *folder, const char *name, struct tensor picture,
                              struct error *e);

#endif
