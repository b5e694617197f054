/* Writes GGUF files of version 3, with data aligned to 32 bytes: see gguf.h. */
#include "loaders/gguf/header.h"
#include "loaders/alloc_array.h"
#include "loaders/output.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/checked.h"
#include "engine/base/text.h"

enum { VERSION_WRITTEN = 3 };

/* GGUF header being written; if `to` is NULL only its size is computed. */
struct header {
    unsigned char *to;
    uint64_t bytes;
};

static void gguf_write_put_bytes(struct header *h, const void *from, uint64_t bytes) {
    if (h->to && bytes) memcpy(h->to + h->bytes, from, bytes);
    h->bytes += bytes;
}

static void gguf_write_put(struct header *h, uint64_t number, int bytes) {
    unsigned char little[8];
    for (int i = 0; i < bytes; i++) little[i] = (unsigned char)(number >> 8 * i);
    gguf_write_put_bytes(h, little, (uint64_t)bytes);
}

static void put_text(struct header *h, const char *text) {
    gguf_write_put(h, strlen(text), 8);
    gguf_write_put_bytes(h, text, strlen(text));
}

static void put_value(struct header *h, const struct gguf_metadata *m) {
    float f32 = (float)m->number;
    uint32_t bits;
    switch (m->kind) {
    case GGUF_STRING:
        put_text(h, m->text);
        break;
    case GGUF_F32:
        memcpy(&bits, &f32, sizeof bits);
        gguf_write_put(h, bits, 4);
        break;
    case GGUF_BOOL:
        gguf_write_put(h, m->number != 0, 1);
        break;
    default:
        gguf_write_put(h, (uint64_t)(int64_t)m->number, 4);
    }
}

static void put_copy(struct header *h, const struct gguf_value *value) {
    if (value->array) {
        gguf_write_put(h, GGUF_ARRAY, 4);
        gguf_write_put(h, value->kind, 4);
        gguf_write_put(h, value->n, 8);
    } else {
        gguf_write_put(h, value->kind, 4);
    }
    gguf_write_put_bytes(h, value->data, value->bytes);
}

static void put_pair(struct header *h, const struct gguf_metadata *m) {
    put_text(h, m->key);
    if (m->value) {
        put_copy(h, m->value);
        return;
    }
    if (!m->n) {
        gguf_write_put(h, m->kind, 4);
        put_value(h, m);
        return;
    }
    gguf_write_put(h, GGUF_ARRAY, 4);
    gguf_write_put(h, GGUF_I32, 4);
    gguf_write_put(h, (uint64_t)m->n, 8);
    for (int i = 0; i < m->n; i++) gguf_write_put(h, (uint32_t)m->array[i], 4);
}

/* Number of an element type in GGUF files; -1: GGUF lacks the type. */
static int gguf_write_type_of(enum dtype dtype) {
    for (int i = 0; i < GGUF_TYPES; i++)
        if (gguf_types[i].name && gguf_types[i].dtype == dtype && dtype != DTYPE_OTHER) return i;
    return -1;
}

static void put_info(struct header *h, const struct named_tensor *named, uint64_t offset) {
    const struct tensor *t = &named->tensor;
    put_text(h, named->name);
    gguf_write_put(h, (uint64_t)t->rank, 4);
    for (int i = t->rank - 1; i >= 0; i--) gguf_write_put(h, (uint64_t)t->dim[i], 8);
    gguf_write_put(h, (uint64_t)gguf_write_type_of(t->dtype), 4);
    gguf_write_put(h, offset, 8);
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
    gguf_write_put_bytes(h, "GGUF", 4);
    gguf_write_put(h, VERSION_WRITTEN, 4);
    gguf_write_put(h, (uint64_t)w->n_tensors, 8);
    gguf_write_put(h, (uint64_t)w->n_metadata, 8);
    for (int i = 0; i < w->n_metadata; i++) put_pair(h, &w->metadata[i]);
    for (int i = 0; i < w->n_tensors; i++) {
        put_info(h, &w->tensors[i], offset);
        offset += align_up((uint64_t)tensor_bytes(&w->tensors[i].tensor), GGUF_ALIGNMENT);
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

static enum status gguf_write_check_tensor(const struct writing *w, const struct named_tensor *named,
                                           struct error *e) {
    const struct tensor *t = &named->tensor;
    int values = dtype_block_values(t->dtype);
    if (check_name(w, "tensor", named->name, LOADER_NAME_MAX, e) != OK) return e->code;
    if (gguf_write_type_of(t->dtype) < 0)
        error_set(e, UNSUPPORTED, "tensor '%s' has a type that GGUF does not support", named->name);
    else if (tensor_columns(t) % values)
        error_set(e, UNSUPPORTED, "tensor '%s' has rows that are not whole quantisation blocks", named->name);
    else
        return OK;
    error_where(e, "%s", w->path);
    return error_found(e, "%s, rows of %" PRId32, dtype_name(t->dtype), tensor_columns(t));
}

static int gguf_write_compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum status check_unique(const struct writing *w, const char **names, int n, struct error *e) {
    int twice = sort_find_duplicate(names, n, sizeof *names, gguf_write_compare_names);
    if (!twice) return OK;
    return error_set(e, DUP, "two keys or two tensors have the name '%s'" WHERE "%s", names[twice], w->path);
}

static enum status check_all(struct sys *sys, const struct writing *w, struct error *e) {
    uint64_t most = (uint64_t)(w->n_tensors > w->n_metadata ? w->n_tensors : w->n_metadata);
    const char **names = alloc_array(sys, most, sizeof *names, e);
    for (int i = 0; i < w->n_metadata && e->code == OK; i++) {
        names[i] = w->metadata[i].key;
        check_name(w, "key", names[i], GGUF_KEY_MAX, e);
    }
    if (e->code == OK) check_unique(w, names, w->n_metadata, e);
    for (int i = 0; i < w->n_tensors && e->code == OK; i++) {
        names[i] = w->tensors[i].name;
        gguf_write_check_tensor(w, &w->tensors[i], e);
    }
    if (e->code == OK) check_unique(w, names, w->n_tensors, e);
    sys->release(sys, names);
    return e->code;
}

static enum status write_tensors(struct output *output, const struct writing *w,
                                 const struct tensor_maker *maker, struct error *e) {
    for (int i = 0; i < w->n_tensors && e->code == OK; i++) {
        const struct tensor *t = &w->tensors[i].tensor;
        maker ? output_make(output, maker, i, t, e)
              : output_write(output, t->data, (uint64_t)tensor_bytes(t), e);
        if (e->code == OK) output_pad(output, GGUF_ALIGNMENT, e);
    }
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
    header.to = alloc_array(sys, header.bytes, 1, e);
    if (!header.to) return e->code;
    header.bytes = 0;
    put_header(&header, &w);
    if (output_open(sys, path, &output, e) == OK && output_write(&output, header.to, header.bytes, e) == OK &&
        output_pad(&output, GGUF_ALIGNMENT, e) == OK)
        write_tensors(&output, &w, maker, e);
    output_close(&output, e);
    sys->release(sys, header.to);
    return e->code;
}
