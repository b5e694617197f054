/* Latents and dumps in and out of safetensors files. */
#ifndef SLUICE_API_LATENTS_H
#define SLUICE_API_LATENTS_H

#include "loaders/loaders.h"

/* The tensor "latent" of a file: f32, [N, C, F, Y, X], or without F where that is 1; dim has F always.
 * Headers only. The index stays open for latent_read. */
enum status latent_open(struct sys *sys, const char *path, struct tensor_index *index, int32_t dim[5],
                        struct error *e);
/* Its shape as it was found, as the file has it. */
enum status latent_found(const struct index_entry *entry, struct error *e);
/* Image i of it into to, [C, F, Y, X]. */
enum status latent_read(const struct tensor_index *index, int i, struct tensor to, struct error *e);
/* n latents of one shape that lie anywhere, [C, F, Y, X], as one tensor NAME [n, C, F, Y, X], without F
 * where that is 1. */
enum status latents_save(struct sys *sys, const char *path, const char *name, const struct tensor *latents,
                         int n, struct error *e);

/* Dumps, for comparing with a reference: FOLDER/NAME.safetensors holds one tensor of that name. */
enum status dump_save(struct sys *sys, const char *folder, const char *name, struct tensor tensor,
                      struct error *e);
enum status dump_save_latents(struct sys *sys, const char *folder, const char *name,
                              const struct tensor *latents, int n, struct error *e);
/* A picture [Y, X, 3] as [1, 3, Y, X]. */
enum status dump_save_picture(struct sys *sys, const char *folder, const char *name, struct tensor picture,
                              struct error *e);

#endif
