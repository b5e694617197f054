/* GGUF files: metadata, tensor infos, the tensors' bytes. One parser for all uses: weights, configurations,
 * tokenizers.
 *
 * The header is read once, in growing pieces, into memory of ours, and checked whole before anything of it
 * can be asked for; what is asked for is found in it. Source: ggml's docs/gguf.md, versions 2 and 3. */
#ifndef SLUICE_LOADERS_GGUF_GGUF_H
#define SLUICE_LOADERS_GGUF_GGUF_H

#include "engine/base/index.h"

/* Kinds of metadata values, by their numbers in the file. */
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

/* A header in memory. */
struct gguf;

/* Text in the header; no NUL ends it, and it need not be UTF-8. */
struct gguf_text {
    const char *text;
    uint64_t bytes;
};

/* A metadata value. */
struct gguf_value {
    enum gguf_kind kind; /* of an array: of its elements */
    bool array;
    uint64_t n; /* elements; 1 for what is no array */
    const unsigned char *data;
    uint64_t bytes; /* of data; strings with their lengths */
    uint64_t at;    /* its byte in the file, for messages */
};

/* Reads the header of an opened source. Errors name file, byte, key or tensor, what was found and the limit:
 * rows G01 to G43 of the list of malformed inputs. Freed with gguf_close; borrows nothing of the source. */
enum status gguf_read(const struct byte_source *source, struct gguf **header, struct error *e);
void gguf_close(struct gguf *header);
uint64_t gguf_host_bytes(const struct gguf *header);

/* False if there is no such key. */
bool gguf_find(const struct gguf *header, const char *key, struct gguf_value *value);
/* Pair i of the metadata, in the order of the keys; false behind the last. */
bool gguf_pair_at(const struct gguf *header, int i, struct gguf_text *key, struct gguf_value *value);
/* Element i of a value of numbers, as a double (integers up to 2^53 are exact). */
double gguf_number(const struct gguf_value *value, uint64_t i);
/* Goes through the strings of a value: *place starts as 0. False at the end. */
bool gguf_next_text(const struct gguf_value *value, uint64_t *place, struct gguf_text *text);
/* What general.architecture says, or "" (a file without it, or one that is no UTF-8, which is UTF8). */
const char *gguf_architecture(const struct gguf *header);

/* One GGUF file as source 0 of a new index, freed with index_destroy, as safetensors_open. Shapes are in
 * PyTorch's order, those under comfy.gguf.orig_shape.NAME where a file has them (a row of blocks may then
 * have more values than the last dimension). Types that nothing here computes with are DTYPE_OTHER, with
 * their type_name. Bytes behind the last tensor are nobody's and no error.
 *
 * index->config: the scalar metadata as JSON, a flat object from key to value ("general.architecture",
 * "qwen3.block_count"); arrays of at most 64 numbers too, without comfy.gguf.orig_shape; strings of at most
 * 1,023 bytes of UTF-8, keys of at most 240. Of metadata that would be longer than LOADER_CONFIG_BYTES_MAX
 * there is none. An f32 is written as the shortest decimals that give it back.
 *
 * Of a file in parts (split.count) the first is opened: the others are found beside it by name and are
 * further sources. MISSING, DUP and META where they do not fit together; UNSUPPORTED for another than the
 * first. */
enum status gguf_open(struct sys *sys, const char *path, struct tensor_index *index, struct error *e);

/* Is this file's beginning that of a GGUF file? False also where it cannot be read. */
bool gguf_is(struct sys *sys, const char *path);

/* Writing: metadata, then tensors whose bytes a maker gives, as safetensors_write_made does (without one they
 * have data): temporary name, flushed, renamed; nothing is left behind on failure. Memory: the header alone.
 * Tensors must be packed; of blocks every row has whole ones. UNSUPPORTED: a type that GGUF does not have. */
struct gguf_metadata {
    const char *key;
    enum gguf_kind kind; /* GGUF_U32, GGUF_I32 (with n: an array), GGUF_F32, GGUF_BOOL or GGUF_STRING */
    double number;
    const char *text;
    const int32_t *array;
    int n;                          /* of array; 0: none */
    const struct gguf_value *value; /* of any kind, as another file has it, instead of all that; or NULL */
};
struct named_tensor;
struct tensor_maker;
enum status gguf_write_made(struct sys *sys, const char *path, const struct gguf_metadata *metadata,
                            int n_metadata, const struct named_tensor *tensors, int n_tensors,
                            const struct tensor_maker *maker, struct error *e);

#endif
