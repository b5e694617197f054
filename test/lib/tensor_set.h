/* Models as people have them, made from a Hugging Face folder: the tensors of its components in a pile, which
 * is renamed, fused, given prefixes and metadata, and written as one or more safetensors files. */
#ifndef SLUICE_TEST_TENSOR_SET_H
#define SLUICE_TEST_TENSOR_SET_H

#include "test/lib/rig.h"

#include <sys/stat.h>

enum { TENSOR_SET_MAX = 2048, TENSOR_SET_NAME = 200, TENSOR_SET_PATH = 400 };

struct item {
    char name[TENSOR_SET_NAME];
    const char *type;
    int rank;
    int32_t dim[5];
    unsigned char *data;
    size_t bytes;
};

struct tensor_set {
    struct item item[TENSOR_SET_MAX];
    int n;
    char *config; /* of the component, as its folder has it */
};

struct item *tensor_set_add(struct tensor_set *p, const char *prefix, const char *name, const char *type, int rank,
                      const int32_t *dim, const void *data, size_t bytes);

void tensor_set_free(struct tensor_set *p);

struct item *tensor_set_find(struct tensor_set *p, const char *name);

char *read_whole_file(const char *path);

/* Of a file or a component's folder, without configuration. */
struct tensor_set *tensor_set_from_file(const char *path);
/* With it. */
struct tensor_set *tensor_set_from_component(const char *model, const char *component);

void tensor_set_append(struct tensor_set *p, const struct tensor_set *from, const char *prefix);

struct tensor_set *tensor_set_copy(const struct tensor_set *from, const char *prefix);

/* The part of a name that is `from`, if it has one, becomes `to`. */
void rename_part(struct item *item, const char *from, const char *to);

/* Takes the rows of the tensor of that name behind those of another; what is taken is called "-". */
void join_rows(struct tensor_set *p, struct item *to, const char *name);

/* The same of the tensor that is called `other` where that one is called `from`. */
void join_named(struct tensor_set *p, struct item *to, const char *from, const char *other);

/* Shift and scale of a norm, which diffusers keeps the other way round. */
void swap_halves(struct item *item);

void tensor_set_drop(struct tensor_set *p, const char *prefix);

/* Z-Image as its authors and ComfyUI name it; layers whose number is `split` keep three tensors. Inverse of
 * diffusers 0.42, single_file_utils.py, convert_z_image_transformer_checkpoint_to_diffusers. */
void rename_zimage_to_checkpoint(struct tensor_set *p, int split);

/* The autoencoder as Flux's authors name it: the decoder's levels from the other end, projections as
 * convolutions. */
void rename_vae_to_checkpoint(struct tensor_set *p);

/* ---- files ---- */

const char *temporary_path(const char *name);

/* Items first to first + n of a pile; metadata: NULL, or JSON text under that key. */
void write_tensors(const struct tensor_set *p, int first, int n, const char *path, const char *key,
                 const char *metadata);

void write_tensor_set(const struct tensor_set *p, const char *path, const char *config);

/* Two shards and their index, in a folder of their own. */
void write_sharded(const struct tensor_set *p, const char *folder, const char *config);

void write_file(const char *path, const char *bytes, size_t n);

#endif
