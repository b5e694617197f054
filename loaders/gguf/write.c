/* Writes GGUF files of version 3, with data aligned to 32 bytes: see gguf.h. */
#include "loaders/gguf/header.h"
#include "loaders/output.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/checked.h"
#include "engine/base/text.h"

enum { VERSION_WRITTEN = 3 };

/* State of a GGUF header being written; if `to` is NULL only the header's size is computed. */
struct header {
    unsigned char *to;
    uint64_t bytes;
};

static void put_bytes(struct header *h, const void *from, uint64_t bytes) {
    if (h->to && bytes) memcpy(h->to + h->bytes, from, bytes);
    h->bytes += bytes;
}

static void put(struct header *h, uint64_t number, int bytes) {
    unsigned char little[8];
    for (int i = 0; i < bytes; i++) little[i] = (unsigned char)(number >> 8 * i);
    put_bytes(h, little, (uint64_t)bytes);
}

static void put_text(struct header *h, const char *text) {
    put(h, strlen(text), 8);
    put_bytes(h, text, strlen(text));
}

static void put_pair(struct header *h, const struct gguf_metadata *m) {
    const struct gguf_value *value = m->value;
    float f32 = (float)m->number;
    uint32_t bits;
    bool array = value ? value->array : m->n > 0;
    put_text(h, m->key);
    if (array) put(h, GGUF_ARRAY, 4);
    put(h, value ? value->kind : array ? GGUF_I32 : m->kind, 4);
    if (array) put(h, value ? value->n : (uint64_t)m->n, 8);
    if (value) {
        put_bytes(h, value->data, value->bytes);
        return;
    }
    for (int i = 0; i < m->n; i++) put(h, (uint32_t)m->array[i], 4);
    if (array) return;
    switch (m->kind) {
    case GGUF_STRING:
        put_text(h, m->text);
        break;
    case GGUF_F32:
        memcpy(&bits, &f32, sizeof bits);
        put(h, bits, 4);
        break;
    case GGUF_BOOL:
        put(h, m->number != 0, 1);
        break;
    default:
        put(h, (uint64_t)(int64_t)m->number, 4);
    }
}

/* Type number of an element type in GGUF files; -1: GGUF lacks the type. */
static int type_of(enum dtype dtype) {
    for (int i = 0; i < GGUF_TYPES; i++)
        if (gguf_types[i].name && gguf_types[i].dtype == dtype && dtype != DTYPE_OTHER) return i;
    return -1;
}

struct writing {
    const char *path;
    const struct gguf_metadata *metadata;
    int n_metadata;
    const struct named_tensor *tensors;
    int n_tensors;
};

static void put_header(struct header *h, const struct writing *w) {
    uint64_t offset = 0;
    h->bytes = 0;
    put_bytes(h, "GGUF", 4);
    put(h, VERSION_WRITTEN, 4);
    put(h, (uint64_t)w->n_tensors, 8);
    put(h, (uint64_t)w->n_metadata, 8);
    for (int i = 0; i < w->n_metadata; i++) put_pair(h, &w->metadata[i]);
    for (int i = 0; i < w->n_tensors; i++) {
        const struct tensor *t = &w->tensors[i].tensor;
        put_text(h, w->tensors[i].name);
        put(h, (uint64_t)t->rank, 4);
        for (int d = t->rank - 1; d >= 0; d--) put(h, (uint64_t)t->dim[d], 8);
        put(h, (uint64_t)type_of(t->dtype), 4);
        put(h, offset, 8);
        offset += align_up((uint64_t)tensor_bytes(t), GGUF_ALIGNMENT);
    }
}

static enum status check_name(const struct writing *w, const char *kind, const char *name, uint64_t most,
                              struct error *e) {
    size_t bytes = strlen(name);
    if (!bytes || bytes > most)
        error_set(e, META, "invalid %s name '%s'", kind, name);
    else if (utf8_valid_bytes(name, bytes) < bytes)
        error_set(e, UTF8, "a %s name is not valid UTF-8", kind);
    else
        return OK;
    return error_where(e, "%s", w->path);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum status check_unique(const struct writing *w, const char **names, int n, struct error *e) {
    int twice = sort_find_duplicate(names, n, sizeof *names, compare_names);
    if (!twice) return OK;
    return error_set(e, DUP, "two keys or two tensors have the name '%s'" WHERE "%s", names[twice], w->path);
}

/* Checks names and types of all metadata and tensors to be written. */
static enum status check_all(struct sys *sys, const struct writing *w, struct error *e) {
    size_t most = (size_t)(w->n_tensors > w->n_metadata ? w->n_tensors : w->n_metadata);
    const char **names = sys_new(sys, most, sizeof *names, "the names in a GGUF file", e);
    for (int i = 0; i < w->n_metadata && e->code == OK; i++) {
        names[i] = w->metadata[i].key;
        check_name(w, "key", names[i], GGUF_KEY_MAX, e);
    }
    if (e->code == OK) check_unique(w, names, w->n_metadata, e);
    for (int i = 0; i < w->n_tensors && e->code == OK; i++) {
        const struct tensor *t = &w->tensors[i].tensor;
        names[i] = w->tensors[i].name;
        if (check_name(w, "tensor", names[i], LOADER_NAME_MAX, e) != OK) break;
        if (type_of(t->dtype) < 0)
            error_set(e, UNSUPPORTED, "tensor '%s' has a type that GGUF does not support", names[i]);
        else if (tensor_columns(t) % dtype_block_values(t->dtype))
            error_set(e, UNSUPPORTED, "tensor '%s' has rows that are not whole quantisation blocks",
                      names[i]);
        else
            continue;
        error_where(e, "%s", w->path);
        error_found(e, "%s, rows of %" PRId32, dtype_name(t->dtype), tensor_columns(t));
    }
    if (e->code == OK) check_unique(w, names, w->n_tensors, e);
    sys->release(sys, names);
    return e->code;
}

enum status gguf_write_made(struct sys *sys, const char *path, const struct gguf_metadata *metadata,
                            int n_metadata, const struct named_tensor *tensors, int n_tensors,
                            const struct tensor_maker *maker, struct error *e) {
    struct writing w = {path, metadata, n_metadata, tensors, n_tensors};
    struct header header = {0};
    struct output output;
    if (check_all(sys, &w, e) != OK) return e->code;
    put_header(&header, &w);
    header.to = sys_new(sys, header.bytes, 1, "a header", e);
    if (!header.to) return e->code;
    put_header(&header, &w);
    if (output_open(sys, path, &output, e) == OK && output_write(&output, header.to, header.bytes, e) == OK)
        output_pad(&output, GGUF_ALIGNMENT, e);
    for (int i = 0; i < n_tensors && e->code == OK; i++)
        if (output_tensor(&output, maker, i, &tensors[i].tensor, e) == OK)
            output_pad(&output, GGUF_ALIGNMENT, e);
    output_close(&output, e);
    sys->release(sys, header.to);
    return e->code;
}
