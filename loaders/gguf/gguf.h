/* GGUF files: metadata, tensor infos and tensor data, for weights, configurations and tokenizers. The header
 * is read once, in growing pieces, and validated completely before any value is available. Values point into
 * the header's memory. Source: docs/gguf.md of ggml, versions 2 and 3. */
#ifndef SLUICE_LOADERS_GGUF_GGUF_H
#define SLUICE_LOADERS_GGUF_GGUF_H

#include "engine/base/index.h"

/* Types of metadata values; the enum has the numbers of the file format. */
enum gguf_kind {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    N_GGUF_KINDS,
};

struct gguf;

/* A string in the GGUF header; not NUL-terminated, possibly invalid UTF-8. */
struct gguf_text {
    const char *text;
    uint64_t bytes;
};

struct gguf_value {
    enum gguf_kind kind; /* type of the metadata value, or of the array's elements */
    bool array;
    uint64_t n; /* number of elements; 1 if not an array */
    const unsigned char *data;
    uint64_t bytes; /* bytes of data; strings include their lengths */
    uint64_t at;    /* byte offset in the file, for messages */
};

/* Reads the header of an open source. Errors name file, byte, key or tensor, found value and limit. Free with
 * gguf_close; borrows nothing from the source. */
enum status gguf_read(const struct byte_source *source, struct gguf **header, struct error *e);
void gguf_close(struct gguf *header);

/* Finds the value of a metadata key; false if absent. */
bool gguf_find(const struct gguf *header, const char *key, struct gguf_value *value);
/* Returns metadata pair i (from 0), sorted by key; false after the last pair. */
bool gguf_pair_at(const struct gguf *header, int i, struct gguf_text *key, struct gguf_value *value);
/* Converts element i of a numeric value to double; integers up to 2^53 are exact. */
double gguf_number(const struct gguf_value *value, uint64_t i);
/* Returns the next string of a value in *text. *place: iteration state, 0 at the start. False at the end. */
bool gguf_next_text(const struct gguf_value *value, uint64_t *place, struct gguf_text *text);
/* The value of general.architecture; "" if absent. gguf_read rejects a value that is not UTF-8. */
const char *gguf_architecture(const struct gguf *header);

/* Opens a GGUF file as source 0 of a new index; free it with index_destroy. Shapes are in PyTorch's order,
 * from comfy.gguf.orig_shape.NAME if present; a row of blocks may then have more values than the last
 * dimension. Unsupported types become DTYPE_OTHER with their type_name. Bytes after the last tensor are
 * ignored.
 * index->config: the scalar metadata as a flat JSON object ("general.architecture", "qwen3.block_count"), and
 * arrays of at most 64 numbers except comfy.gguf.orig_shape. Keys have at most 240 bytes, strings at most
 * 8,191 bytes of UTF-8. An f32 has the fewest decimals that reproduce it. index->config is NULL if the object
 * would exceed LOADER_CONFIG_BYTES_MAX. For a split file (split.count) path is the first part; the other
 * parts are found in the same folder by name and become further sources. MISSING, DUP and META if the parts
 * do not match; UNSUPPORTED if path is not the first part. */
enum status gguf_open(struct sys *sys, const char *path, struct tensor_index *index, struct error *e);

/* True if the file starts like a GGUF file; false also if it cannot be read. */
bool gguf_is(struct sys *sys, const char *path);

/* Writes a GGUF file of metadata and tensors. The callback `maker` generates tensor bytes as in
 * safetensors_write_content; if `maker` is NULL they come from tensor.data. The file is written under a
 * temporary name, flushed and renamed; after a failure no file is left. Memory: only the header. Tensors must
 * be packed, with rows of whole blocks. UNSUPPORTED: a type that GGUF lacks. */
struct gguf_metadata {
    const char *key;
    /* type: GGUF_U32, GGUF_I32 (an array if n > 0), GGUF_F32, GGUF_BOOL or GGUF_STRING */
    enum gguf_kind kind;
    double number;
    const char *text;
    const int32_t *array;
    int n;                          /* length of array; 0: not an array */
    const struct gguf_value *value; /* if not NULL, a value that replaces kind, number, text, array and n */
};
struct named_tensor;
struct tensor_maker;
enum status gguf_write_made(struct sys *sys, const char *path, const struct gguf_metadata *metadata,
                            int n_metadata, const struct named_tensor *tensors, int n_tensors,
                            const struct tensor_maker *maker, struct error *e);

#endif
