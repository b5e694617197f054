/* Latents in safetensors files, as they are read. */
#ifndef SLUICE_OPEN_LATENT_FILE_H
#define SLUICE_OPEN_LATENT_FILE_H

#include "loaders/loaders.h"

/* The tensor "latent" of a file: f32, [N, C, F, Y, X], or without F where that is 1; dim has F always.
 * Headers only. The index stays open for latent_read. */
enum status latent_open(struct sys *sys, const char *path, struct tensor_index *index, int32_t dim[5],
                        struct error *e);
/* What a file of latents says of whose they are: several frames are a video's, and those that were saved here
 * name their recipe, in the metadata's config. What is wrong with the file is said when it is read. path:
 * NULL says nothing. */
#define LATENT_RECIPE "recipe"
struct latent_origin {
    bool video;
    char recipe[32]; /* "": not said */
};
struct latent_origin latent_look(struct sys *sys, const char *path);

/* Its shape as it was found, as the file has it. */
enum status latent_found(const struct index_entry *entry, struct error *e);
/* Image i of it into to, [C, F, Y, X]. */
enum status latent_read(const struct tensor_index *index, int i, struct tensor to, struct error *e);

#endif
