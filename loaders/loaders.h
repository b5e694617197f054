/* From files to what the engine works with: tensor indexes, configurations, token ids.
 *
 * Nothing here knows families or devices. Every parser validates the whole file before it returns. */
#ifndef SLUICE_LOADERS_LOADERS_H
#define SLUICE_LOADERS_LOADERS_H

#include "engine/base/config.h"
#include "engine/base/index.h"

/* Reads a small file whole, with a terminating NUL that is not counted. *text is freed with sys->release. LIMIT
 * when it is longer than limit_bytes. */
enum status file_read_text(struct sys *sys, const char *path, uint64_t limit_bytes, char **text, uint64_t *bytes,
                           struct error *e);

/* JSON to a flat table. Depth up to 64, 1 MB. Duplicate keys, bad UTF-8, NaN are errors. */
enum status config_read(struct sys *sys, const char *path, struct config *config, struct error *e);

/* One safetensors file. Adds its tensors as source 0 of a new index. */
enum status safetensors_open(struct sys *sys, const char *path, struct tensor_index *index, struct error *e);

/* Writes f32/any tensors to a safetensors file: temporary name in the same folder, flushed, renamed; nothing is
 * left behind on failure (OUTPUT). Tensors must be packed host tensors. */
struct named_tensor {
    const char *name;
    struct tensor tensor;
};
enum status safetensors_write(struct sys *sys, const char *path, const struct named_tensor *tensors, int n_tensors,
                              struct error *e);

/* A component's weights: dir/<base>.safetensors.index.json (shards), or the single file, or path itself when it is
 * a file. Common bases are "diffusion_pytorch_model" and "model"; otherwise the only *.safetensors there is.
 * Precision variants ("model.fp16.safetensors") are taken when there is nothing else. */
enum status component_open(struct sys *sys, const char *path, struct tensor_index *index, struct error *e);

#endif
