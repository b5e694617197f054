/* Reads latents from safetensors files. */
#ifndef SLUICE_OPEN_LATENT_FILE_H
#define SLUICE_OPEN_LATENT_FILE_H

#include "loaders/loaders.h"

/* Opens a file with a tensor "latent", f32 [N, C, F, Y, X] (image, channel, frame, row, column) or [N, C, Y,
 * X]; *dim has five entries in either case. Reads headers only. The index stays open for latent_read.
 * MISSING, SHAPE, and errors of safetensors_open. */
enum status latent_open(struct sys *sys, const char *path, struct tensor_index *index, int32_t dim[5],
                        struct error *e);
/* Evidence of the model that made a latent file: several frames mean a video model, and files saved by Sluice
 * name the recipe in the metadata's config. path NULL: unknown origin. Does not report errors; latent_open
 * does. */
#define LATENT_RECIPE "recipe"
struct latent_origin {
    bool video;
    char recipe[32]; /* recipe name; "": unknown */
};
struct latent_origin latent_read_origin(struct sys *sys, const char *path);

/* Sets `found` in the error to the shape of the tensor "latent" in the file. */
enum status latent_found(const struct index_entry *entry, struct error *e);
/* Reads the latent of image i of the file into `to`, f32 [channel, frame, row, column]. */
enum status latent_read(const struct tensor_index *index, int i, struct tensor to, struct error *e);

#endif
