/* Models as people have them, made from a Hugging Face folder: the tensors of its components in a pile, which
 * is renamed, fused, given prefixes and metadata, and written as one or more safetensors files. */
#ifndef SLUICE_TEST_PILE_H
#define SLUICE_TEST_PILE_H

#include "test/lib/rig.h"

#include <sys/stat.h>

enum { PILE_MAX = 2048, PILE_NAME = 200, PILE_PATH = 400 };

struct item {
    char name[PILE_NAME];
    const char *type;
    int rank;
    int32_t dim[5];
    unsigned char *data;
    size_t bytes;
};

struct pile {
    struct item item[PILE_MAX];
    int n;
    char *config; /* of the component, as its folder has it */
};

struct item *pile_add(struct pile *p, const char *prefix, const char *name, const char *type, int rank,
                      const int32_t *dim, const void *data, size_t bytes);

void pile_free(struct pile *p);

struct item *pile_find(struct pile *p, const char *name);

char *read_whole(const char *path);

/* Of a file or a component's folder, without configuration. */
struct pile *pile_of(const char *path);
/* With it. */
struct pile *pile_read(const char *model, const char *component);

void pile_append(struct pile *p, const struct pile *from, const char *prefix);

struct pile *pile_copy(const struct pile *from, const char *prefix);

/* The part of a name that is `from`, if it has one, becomes `to`. */
void rename_part(struct item *item, const char *from, const char *to);

/* Takes the rows of the tensor of that name behind those of another; what is taken is called "-". */
void join_rows(struct pile *p, struct item *to, const char *name);

/* The same of the tensor that is called `other` where that one is called `from`. */
void join_named(struct pile *p, struct item *to, const char *from, const char *other);

/* Shift and scale of a norm, which diffusers keeps the other way round. */
void swap_halves(struct item *item);

void pile_drop(struct pile *p, const char *prefix);

/* Z-Image as its authors and ComfyUI name it; layers whose number is `split` keep three tensors. Inverse of
 * diffusers 0.42, single_file_utils.py, convert_z_image_transformer_checkpoint_to_diffusers. */
void name_originally(struct pile *p, int split);

/* The autoencoder as Flux's authors name it: the decoder's levels from the other end, projections as
 * convolutions. */
void name_vae_originally(struct pile *p);

/* ---- files ---- */

const char *under(const char *name);

/* Items first to first + n of a pile; metadata: NULL, or JSON text under that key. */
void write_items(const struct pile *p, int first, int n, const char *path, const char *key,
                 const char *metadata);

void write_pile(const struct pile *p, const char *path, const char *config);

/* Two shards and their index, in a folder of their own. */
void write_sharded(const struct pile *p, const char *folder, const char *config);

void write_file(const char *path, const char *bytes, size_t n);

#endif
