/* Builds model files in other layouts from a Hugging Face folder: the tensors of its components are kept in
 * memory, renamed, fused, prefixed, and written with metadata to one or more safetensors files. */
#ifndef SLUICE_TEST_TENSOR_SET_H
#define SLUICE_TEST_TENSOR_SET_H

#include "loaders/gguf/gguf.h"
#include "test/lib/rig.h"

#include <sys/stat.h>

enum { TENSOR_SET_MAX = 2048, TENSOR_SET_NAME = 200, TENSOR_SET_PATH = 400, GGUF_PAIRS = 6 };

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
    char *config;    /* JSON text of the component's config.json, or NULL */
    const char *key; /* key of the configuration in the metadata of a file; NULL: the usual key */
    struct gguf_metadata gguf[GGUF_PAIRS];
    int n_gguf;
};

struct item *tensor_set_add(struct tensor_set *p, const char *prefix, const char *name, const char *type,
                            int rank, const int32_t *dim, const void *data, size_t bytes);

void tensor_set_free(struct tensor_set *p);

struct item *tensor_set_find(struct tensor_set *p, const char *name);

/* Reads the tensors of a file, or of a component's folder, whose config.json is not read. */
struct tensor_set *tensor_set_from_file(const char *path);
/* Reads a component of a model folder with its configuration. */
struct tensor_set *tensor_set_from_component(const char *model, const char *component);

void tensor_set_append(struct tensor_set *p, const struct tensor_set *from, const char *prefix);

struct tensor_set *tensor_set_copy(const struct tensor_set *from, const char *prefix);

/* Replaces `from` in the name by `to`, if it occurs. */
void rename_part(struct item *item, const char *from, const char *to);

/* Appends the rows of tensor `name` to tensor `to`. Tensor `name` is then empty and renamed "-". */
void join_rows(struct tensor_set *p, struct item *to, const char *name);

/* Removes the tensors whose names start with the prefix. */
void tensor_set_drop(struct tensor_set *p, const char *prefix);

/* Writes tensors [first, first + n). metadata: JSON text stored under `key`, or NULL. */
void write_tensors(const struct tensor_set *p, int first, int n, const char *path, const char *key,
                   const char *metadata);

void write_tensor_set(const struct tensor_set *p, const char *path, const char *config);

/* Writes a GGUF file with the metadata p->gguf. */
void write_gguf(struct tensor_set *p, const char *path);

/* Writes two shards and their index into a new folder. */
void write_sharded(const struct tensor_set *p, const char *folder, const char *config);

#endif
