/* From files to what the engine works with: tensor indexes, configurations, token ids.
 *
 * Nothing here knows families or devices. Every parser validates the whole file before it returns, reads its
 * header once into memory, and needs at most 64 MiB of our allocator beyond that header. Every error names
 * the file, and the byte where one can be named. On failure nothing stays allocated and outputs are empty. */
#ifndef SLUICE_LOADERS_LOADERS_H
#define SLUICE_LOADERS_LOADERS_H

#include "engine/base/config.h"
#include "engine/base/index.h"

/* A configuration, in a file of its own or in metadata. */
enum { LOADER_CONFIG_BYTES_MAX = 1 << 20 };
/* Of one file and of one component. */
enum { LOADER_TENSORS_MAX = 100000, LOADER_NAME_MAX = 1023, LOADER_NAMES_BYTES_MAX = 16 << 20 };

/* Reads a small file whole, with a terminating NUL that is not counted. *text is freed with sys->release;
 * NULL on failure. LIMIT when it is longer than limit_bytes; MISSING, IO, TRUNC, CHANGED, MEMORY. */
enum status file_read_text(struct sys *sys, const char *path, uint64_t limit_bytes, char **text,
                           uint64_t *bytes, struct error *e);

/* JSON to a flat table, sorted by key; empty objects leave no trace. Freed with config_destroy. At
 * most 1 MB, 64 levels, 65,536 values, keys of 255 bytes with everything around them (LIMIT). Duplicate keys,
 * also those that only flattening makes equal, are DUP; bad UTF-8 is UTF8; NaN and whatever else is not JSON
 * is JSON. */
enum status config_read(struct sys *sys, const char *path, struct config *config, struct error *e);
/* The object under that name alone, and config->path stays NULL if there is none. */
enum status config_read_member(struct sys *sys, const char *path, const char *member, struct config *config,
                               struct error *e);

/* The same from a text; path names where it came from, for messages. member: the object under that name
 * alone, and config->path stays NULL if there is none; NULL: the whole document. */
enum status config_parse(struct sys *sys, const char *path, const char *text, const char *member,
                         struct config *config, struct error *e);

/* BADMAGIC for a file that begins as no text does, naming what it is and what was expected. */
enum status file_check_text(struct sys *sys, const char *path, const char *expected, struct error *e);

/* UNSUPPORTED if weights of this view are quantised in a form that is recognised and not read, naming form
 * and tensor: another program's packing, or integers that nothing describes. */
enum status index_check_quantised(const struct tensor_index *index, struct error *e);

/* One safetensors file as source 0 of a new index, freed with index_destroy; only its header is read. Element
 * types that are legal but unknown to the engine become DTYPE_OTHER, their bytes checked all the same. A file
 * without tensors is an empty index: whether something is missing is for the family to say. Of the metadata
 * index->config, index->adapter, index->quantisation and index->quantised are kept.
 *
 * Errors, after the format (https://huggingface.co/docs/safetensors, and safetensors 0.5's validate()):
 * TRUNC, BADMAGIC (named: git-lfs pointer, zip, ...), LIMIT, JSON, UTF8, DUP, META (a field is missing or of
 * the wrong kind), TYPE, SHAPE, BOUNDS (outside the file, holes, bytes of no tensor), OVERLAP, OVERFLOW. */
enum status safetensors_open(struct sys *sys, const char *path, struct tensor_index *index, struct error *e);

/* Writes tensors to a safetensors file in the order given: temporary name in the same folder, flushed,
 * renamed; nothing is left behind on failure (OUTPUT with the system's reason). Tensors must be packed, of a
 * known type. DUP and META for names that a reader would reject. Memory: the header alone; data
 * is streamed. */
struct named_tensor {
    const char *name;
    struct tensor tensor;
};
enum status safetensors_write(struct sys *sys, const char *path, const struct named_tensor *tensors,
                              int n_tensors, struct error *e);

/* The same for tensors without data, whose bytes are made as they are written: make fills the next bytes (at
 * most 4 MiB: whole rows if one fits, else whole elements or blocks) of tensor i. Anything but OK from it
 * ends the writing. */
struct tensor_maker {
    void *user;
    enum status (*make)(void *user, int i, void *to, uint64_t bytes, struct error *e);
};
/* What its metadata says: a text under a key. */
struct safetensors_text {
    const char *key, *text;
};
struct safetensors_content {
    const struct named_tensor *tensors;
    int n_tensors;
    const struct safetensors_text *metadata;
    int n_metadata;
};
enum status safetensors_write_content(struct sys *sys, const char *path,
                                      const struct safetensors_content *content,
                                      const struct tensor_maker *maker, struct error *e);
enum status safetensors_write_made(struct sys *sys, const char *path, const struct named_tensor *tensors,
                                   int n_tensors, const struct tensor_maker *maker, struct error *e);

/* A component's weights as one index over one or more files. path is a safetensors or GGUF file, a shard
 * index (*.json), or a folder, in which these are looked for in this order:
 *   1. diffusion_pytorch_model.safetensors.index.json, then model.safetensors.index.json
 *   2. diffusion_pytorch_model.safetensors, then model.safetensors
 *   3. the only other *.safetensors.index.json, then the only other *.safetensors
 *   4. precision variants: *.safetensors.index.fp16.json, then *.fp16.safetensors (bf16, fp32, fp8, ema,
 *      non_ema)
 *   5. the only *.gguf; of one in parts its first
 * A file of any name that begins as GGUF files do is read as one. Shards are never taken without their index.
 * MISSING (nothing found; a shard; a tensor that its
 * shard lacks), UNSUPPORTED (several files, none preferred), BOUNDS (a shard's path leaves the folder;
 * symlinks may), DUP (a tensor in two shards), META, LIMIT (256 shards, and the limits above over all
 * shards), and all of safetensors_open's and gguf_open's. */
enum status component_open(struct sys *sys, const char *path, struct tensor_index *index, struct error *e);

/* Is a file of that name worth opening as weights? Shard indexes are, their shards are not; files of other
 * kinds are, so that they can be refused by name. */
bool component_is_candidate(const char *name);

#endif
