/* Opens GGUF files as tensor indexes: see gguf.h. */
#include "loaders/gguf/header.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Fills an index with the header's tensors; both are sorted by name. */
static enum status fill_index(const struct gguf *header, struct tensor_index *index, struct error *e) {
    struct sys *sys = index->sys;
    uint64_t n = (uint64_t)header->n_tensors;
    index->entries = sys_new(sys, n, sizeof *index->entries, "a tensor index", e);
    index->names = sys_new(sys, header->name_bytes, 1, "the tensor names", e);
    if (e->code != OK) return e->code;
    index->host_bytes += n * sizeof *index->entries + header->name_bytes;
    char *name = index->names;
    for (; index->n_entries < header->n_tensors; index->n_entries++) {
        const struct gguf_tensor *tensor = &header->tensors[index->n_entries];
        const struct gguf_type *type = &gguf_types[tensor->type];
        struct index_entry *entry = &index->entries[index->n_entries];
        *entry = (struct index_entry){.name = name,
                                      .dtype = type->dtype,
                                      .type_name = type->dtype == DTYPE_OTHER ? type->name : NULL,
                                      .rank = tensor->rank,
                                      .scale = 1,
                                      .offset = tensor->offset,
                                      .bytes = tensor->bytes};
        memcpy(entry->dim, tensor->dim, sizeof entry->dim);
        memcpy(name, tensor->name.text, tensor->name.bytes);
        name[tensor->name.bytes] = 0;
        name += tensor->name.bytes + 1;
    }
    index->config = gguf_to_json(header, index->sources[0].path, e);
    if (index->config) index->host_bytes += strlen(index->config) + 1;
    return e->code;
}

/* Split metadata of one part of a GGUF file: its number, the number of parts, and the total number of
 * tensors. */
struct part_of {
    int64_t count, no, n_tensors; /* fields are 0 if the metadata lacks the key */
};

static enum status read_split(const struct gguf *header, const char *path, struct part_of *of,
                              struct error *e) {
    struct {
        const char *key;
        int64_t most, *to;
    } keys[] = {{"split.count", GGUF_PARTS_MAX, &of->count},
                {"split.no", GGUF_PARTS_MAX - 1, &of->no},
                {"split.tensors.count", LOADER_TENSORS_MAX, &of->n_tensors}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct gguf_value value;
        *keys[i].to = 0;
        if (!gguf_find(header, keys[i].key, &value)) continue;
        if (!value.array && gguf_integer(&value, 0, keys[i].to) && *keys[i].to >= 0 &&
            *keys[i].to <= keys[i].most)
            continue;
        return error_set(e, META,
                         "invalid value of key '%s'" WHERE "%s, byte %" PRIu64 EXPECTED
                         "an integer from 0 to %" PRId64,
                         keys[i].key, path, value.at, keys[i].most);
    }
    return OK;
}

static enum status open_part(struct sys *sys, const char *path, struct tensor_index *index,
                             struct part_of *of, struct error *e) {
    struct gguf *header = NULL;
    *index = (struct tensor_index){.sys = sys};
    index->sources = sys_new(sys, 1, sizeof *index->sources, "an index", e);
    if (!index->sources) return e->code;
    if (source_open(sys, path, &index->sources[0], e) != OK) goto out;
    index->n_sources = 1;
    index->host_bytes = sizeof *index->sources + strlen(path) + 1;
    if (gguf_read(&index->sources[0], &header, e) != OK) goto out;
    if (read_split(header, path, of, e) == OK) fill_index(header, index, e);
out:
    gguf_close(header);
    if (e->code != OK) index_destroy(index);
    return e->code;
}

struct splitting {
    struct sys *sys;
    const char *path; /* path of the first part */
    char *name;       /* path of the part being opened; paths of parts differ only in the part number */
    size_t number_at;
    struct part_of first;
    struct index_size size;
    struct tensor_index part[GGUF_PARTS_MAX];
    int n_parts;
};

/* ENDING_BYTES: length of "-00001-of-00003.gguf"; NUMBER_AT: position of the part number in that ending. */
enum { ENDING_BYTES = 20, NUMBER_AT = 1 };

static enum status check_first(struct splitting *s, struct error *e) {
    char ending[64];
    size_t n = strlen(s->path);
    snprintf(ending, sizeof ending, "-00001-of-%05" PRId64 ".gguf", s->first.count);
    if (s->first.no) {
        error_set(e, UNSUPPORTED,
                  "the file is not the first part of a split GGUF file" WHERE "%s" FOUND "part %" PRId64
                  " of %" PRId64,
                  s->path, s->first.no + 1, s->first.count);
    } else if (n < ENDING_BYTES || strcmp(s->path + n - ENDING_BYTES, ending)) {
        error_set(e, MISSING, "the name of this split GGUF file does not lead to its other parts" WHERE "%s",
                  s->path);
    } else {
        s->number_at = n - ENDING_BYTES + NUMBER_AT;
        s->name = copy_text(s->sys, s->path, n, e);
        return e->code;
    }
    return error_expected(e, "a name that ends in %s", ending);
}

static enum status open_others(struct splitting *s, struct error *e) {
    const struct part_of *first = &s->first;
    while (s->n_parts < first->count) {
        struct part_of of;
        char number[16];
        snprintf(number, sizeof number, "%05d", s->n_parts + 1);
        memcpy(s->name + s->number_at, number, 5);
        struct tensor_index *part = &s->part[s->n_parts];
        open_part(s->sys, s->name, part, &of, e);
        if (e->code == MISSING) error_expected(e, "part %d of %" PRId64, s->n_parts + 1, first->count);
        if (e->code != OK) return e->code;
        s->n_parts++;
        if (of.no != s->n_parts - 1 || of.count != first->count) {
            bool repeats = of.count == first->count && of.no < s->n_parts - 1;
            return error_set(e, repeats ? DUP : META,
                             "%s" WHERE "%s" FOUND "part %" PRId64 " of %" PRId64 EXPECTED
                             "part %d of %" PRId64,
                             repeats ? "two parts of the split GGUF file have the same number"
                                     : "a part belongs to another split GGUF file",
                             s->name, of.no + 1, of.count, s->n_parts, first->count);
        }
        if (index_add_size(&s->size, part, s->path, e) != OK) return e->code;
    }
    if (!first->n_tensors || s->size.n_entries == first->n_tensors) return OK;
    return error_set(
        e, MISSING,
        "the parts of the split GGUF file hold more or fewer tensors than split.tensors.count" WHERE
        "%s" FOUND "%d" EXPECTED "%" PRId64 " tensors in all parts",
        s->path, s->size.n_entries, first->n_tensors);
}

enum status gguf_open(struct sys *sys, const char *path, struct tensor_index *index, struct error *e) {
    struct part_of of = {0};
    if (open_part(sys, path, index, &of, e) != OK || of.count <= 1) return e->code;
    /* A split file: opens the other parts and merges them with the index of the first part. */
    struct splitting *s = sys_new(sys, 1, sizeof *s, "the parts of a split GGUF file", e);
    if (s) {
        *s = (struct splitting){.sys = sys, .path = path, .first = of, .part = {*index}, .n_parts = 1};
        *index = (struct tensor_index){0};
        if (check_first(s, e) == OK && index_add_size(&s->size, &s->part[0], path, e) == OK &&
            open_others(s, e) == OK)
            index_merge(sys, path, s->part, s->n_parts, index, e);
        for (int i = 0; i < s->n_parts; i++) index_destroy(&s->part[i]);
        sys->release(sys, s->name);
    }
    sys->release(sys, s);
    if (e->code != OK) index_destroy(index);
    return e->code;
}
