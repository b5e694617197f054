/* Loaders: read files into tensor indexes, configurations and token ids, independent of families and devices.
 * Every parser reads a file's header once into memory, validates the whole header before returning, and needs
 * at most 64 MiB besides the header. Every error names the file and, where possible, the byte. After a
 * failure nothing stays allocated and outputs are empty. */
#ifndef SLUICE_LOADERS_LOADERS_H
#define SLUICE_LOADERS_LOADERS_H

#include "engine/base/config.h"
#include "engine/base/index.h"

/* Largest configuration in bytes, as a file or in metadata. */
enum { LOADER_CONFIG_BYTES_MAX = 1 << 20 };
/* Limits of one file and of one component: tensors, bytes of a name, bytes of all names. */
enum { LOADER_TENSORS_MAX = 100000, LOADER_NAME_MAX = 1023, LOADER_NAMES_BYTES_MAX = 16 << 20 };

/* Returns an allocated copy of the bytes with a NUL appended; NULL with MEMORY in *e. */
char *copy_text(struct sys *sys, const char *from, uint64_t bytes, struct error *e);
/* Offset of the first byte that does not start a valid UTF-8 sequence; `bytes` if all are valid. Surrogates
 * and overlong forms are invalid. */
uint64_t utf8_valid_bytes(const char *text, uint64_t bytes);

/* Reads a small file completely and appends a NUL, which *bytes does not count. Free *text with sys->release;
 * NULL on failure. Fails with LIMIT if the file exceeds limit_bytes, or with MISSING, IO, TRUNC, CHANGED or
 * MEMORY.
 */
enum status file_read_text(struct sys *sys, const char *path, uint64_t limit_bytes, char **text,
                           uint64_t *bytes, struct error *e);

/* Reads JSON into a flat table sorted by key; empty objects are dropped. Free with config_destroy. LIMIT:
 * more than 1 MB, 64 levels, 65,536 values, or 255 bytes in a key including enclosing names. DUP: duplicate
 * keys, also after flattening. UTF8: invalid UTF-8. JSON: other invalid JSON, such as NaN. */
enum status config_read(struct sys *sys, const char *path, struct config *config, struct error *e);
/* As config_read, but reads only the object at the key `member`. config->path stays NULL if the file has no
 * such member. */
enum status config_read_member(struct sys *sys, const char *path, const char *member, struct config *config,
                               struct error *e);

/* As config_read, from a text in memory; path is the origin of the text, for messages. member: key of the
 * only object to read (config->path stays NULL if the key is absent); NULL: the whole document is read. */
enum status config_parse(struct sys *sys, const char *path, const char *text, const char *member,
                         struct config *config, struct error *e);

/* Text for messages: the supported weight formats. */
#define READABLE_WEIGHTS "safetensors (f32, f16, bf16, fp8, int8, nvfp4, mxfp8) or GGUF"
enum { FILE_KIND_BYTES = 8 };
/* Describes an unsupported file format by the first bytes of a file; NULL: the file may be safetensors. */
const char *file_kind_of(const unsigned char first[FILE_KIND_BYTES]);
/* Fails with BADMAGIC if a file starts like a known binary format; the error names that format and the
 * expected one. */
enum status file_check_text(struct sys *sys, const char *path, const char *expected, struct error *e);

/* Checks the weights of an index view. UNSUPPORTED: a recognised but unsupported quantisation, such as the
 * packing of another program, or integers without a description. The error names format and tensor. */
enum status index_check_quantised(const struct tensor_index *index, struct error *e);

/* Opens one safetensors file as source 0 of a new index; free it with index_destroy. Only the header is read.
 * Valid element types that the engine does not support become DTYPE_OTHER, but their sizes are checked. A
 * file without tensors gives an empty index. Sets the index's fields config, adapter, quantisation, quantised
 * and predicts_v from the metadata. Errors, as in safetensors 0.5's validate(): TRUNC, BADMAGIC (naming a
 * git-lfs pointer, zip archive, ...), LIMIT, JSON, UTF8, DUP, META (a field is missing or has the wrong
 * type), TYPE, SHAPE, BOUNDS (outside the file, holes, bytes of no tensor), OVERLAP, OVERFLOW. */
enum status safetensors_open(struct sys *sys, const char *path, struct tensor_index *index, struct error *e);

/* Writes tensors to a safetensors file in array order: to a temporary file in the same folder, flushed and
 * renamed. After a failure no file is left (OUTPUT with the system's reason). Tensors must be packed, of a
 * supported type. DUP and META for names that a reader would reject. Memory: only the header. */
struct named_tensor {
    const char *name;
    struct tensor tensor;
};
enum status safetensors_write(struct sys *sys, const char *path, const struct named_tensor *tensors,
                              int n_tensors, struct error *e);

/* Generates tensor bytes while a file is written: the function `make` writes the next `bytes` bytes of tensor
 * i to `to` (at most 4 MiB; whole rows if one fits, else whole blocks). A status other than OK ends the
 * writing. */
struct tensor_maker {
    void *user;
    enum status (*make)(void *user, int i, void *to, uint64_t bytes, struct error *e);
};
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

/* Total number of entries, and of bytes of the entries' names, in indexes to be merged. Both start with
 * 0. */
struct index_size {
    int n_entries;
    uint64_t name_bytes;
};
/* Adds the size of one file's index. LIMIT if the total exceeds the limits for one file. Call after opening
 * each file, so that many files cannot use more memory than one. path: the shard index, file or folder that
 * names all files, for messages. */
enum status index_add_size(struct index_size *size, const struct tensor_index *part, const char *path,
                           struct error *e);
/* Merges the indexes of several files into one: shards, parts of a GGUF file, several inputs of `convert`.
 * Moves sources and entries of the parts into one index, and keeps the first configuration among the parts.
 * The parts are empty afterwards. DUP: a tensor in two parts. After a failure call index_destroy on the parts
 * and on the result. */
enum status index_merge(struct sys *sys, const char *path, struct tensor_index *parts, int n_parts,
                        struct tensor_index *index, struct error *e);

/* Opens the weights of a component as one index over one or more files. path is a safetensors or GGUF
 * file, a shard index (*.json), or a folder, which is searched in this order:
 *     1. diffusion_pytorch_model.safetensors.index.json, then model.safetensors.index.json
 *     2. diffusion_pytorch_model.safetensors, then model.safetensors
 *     3. the only other *.safetensors.index.json, then the only other *.safetensors
 *     4. precision variants: *.safetensors.index.fp16.json, then *.fp16.safetensors
 *        (bf16, fp32, fp8, ema, non_ema)
 *     5. the only *.gguf, or the first part of a split one
 * A file that starts like a GGUF file is read as GGUF, whatever its name. Shards can only be opened through
 * their shard index. MISSING: nothing found, a missing shard, or a tensor missing from its shard.
 * UNSUPPORTED: several files without a standard name. BOUNDS: a shard path leaves the folder (symlinks may).
 * DUP: a tensor in two shards. META: an invalid shard index. LIMIT: more than 256 shards, or too many tensors
 * or name bytes in all shards together. Also all errors of safetensors_open and gguf_open. */
enum status component_open(struct sys *sys, const char *path, struct tensor_index *index, struct error *e);

/* True if a file of the given name may hold weights. True for shard indexes but not for shards; true also for
 * unsupported kinds of weight files, so that errors can name them. */
bool component_is_candidate(const char *name);

#endif
