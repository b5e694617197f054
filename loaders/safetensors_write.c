/* Writes safetensors files: see loaders.h. Readers find either the old file or the complete new one. */
#include "loaders/json.h"
#include "loaders/output.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "engine/base/checked.h"

static bool is_text(const char *text) {
    return utf8_valid_bytes(text, strlen(text)) == strlen(text);
}

static enum status add_tensor(const char *path, json_t *header, const struct named_tensor *named,
                              uint64_t *offset, struct error *e) {
    const struct tensor *t = &named->tensor;
    size_t name_bytes = strlen(named->name);
    assert(tensor_packed(t));
    if (!name_bytes || name_bytes > LOADER_NAME_MAX || !strcmp(named->name, "__metadata__"))
        error_set(e, META, "invalid tensor name '%s'", named->name);
    else if (json_object_get(header, named->name))
        error_set(e, DUP, "two tensors have the name '%s'", named->name);
    else if (!dtype_bits(t->dtype))
        error_set(e, UNSUPPORTED, "tensor '%s' has a type that safetensors files cannot hold", named->name);
    if (e->code != OK) return error_where(e, "%s", path);
    uint64_t end = *offset + (uint64_t)tensor_bytes(t);
    unsigned json_failures = failed_json_allocations();
    json_t *shape = json_array();
    for (int i = 0; i < t->rank; i++) json_push(shape, json_integer(t->dim[i]));
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_name(t->dtype), "shape", shape,
                              "data_offsets", (json_int_t)*offset, (json_int_t)end);
    *offset = end;
    json_put(header, named->name, entry);
    if (failed_json_allocations() == json_failures) return OK;
    bool text = is_text(named->name); /* Jansson's keys must be valid UTF-8 */
    error_set(e, text ? MEMORY : UTF8,
              text ? "no memory for the header entry of tensor '%s'"
                   : "the name of tensor '%s' is not valid UTF-8",
              named->name);
    return error_where(e, "%s", path);
}

/* Writes __metadata__ before the tensors, for readers that stop early. */
static enum status add_metadata(const char *path, json_t *header, const struct safetensors_content *content,
                                struct error *e) {
    if (!content->n_metadata) return OK;
    unsigned json_failures = failed_json_allocations();
    json_t *metadata = json_object();
    for (int i = 0; i < content->n_metadata && e->code == OK; i++) {
        const struct safetensors_text *m = &content->metadata[i];
        json_put(metadata, m->key, json_string(m->text));
        if (!is_text(m->key) || !is_text(m->text))
            error_set(e, UTF8, "the metadata value '%s' is not valid UTF-8", m->key);
    }
    json_put(header, "__metadata__", metadata);
    if (e->code == OK && failed_json_allocations() != json_failures)
        error_set(e, MEMORY, "no memory for metadata");
    return e->code == OK ? OK : error_where(e, "%s", path);
}

/* Makes the header including its length, padded with spaces so that data starts at a multiple of 8. */
static enum status make_header(struct sys *sys, const char *path, const struct safetensors_content *content,
                               char **text, uint64_t *bytes, struct error *e) {
    uint64_t offset = 0;
    json_t *header = json_object();
    add_metadata(path, header, content, e);
    for (int i = 0; i < content->n_tensors && e->code == OK; i++)
        add_tensor(path, header, &content->tensors[i], &offset, e);
    if (e->code == OK) {
        size_t json_bytes = json_dumpb(header, NULL, 0, JSON_COMPACT);
        uint64_t padded = align_up(json_bytes, 8);
        *bytes = 8 + padded;
        *text = json_bytes ? sys->alloc(sys, LINE_HOST, *bytes) : NULL;
        if (*text) {
            for (int i = 0; i < 8; i++) (*text)[i] = (char)(padded >> 8 * i);
            memset(*text + 8, ' ', padded);
            json_dumpb(header, *text + 8, json_bytes, JSON_COMPACT);
        } else {
            error_set(e, MEMORY, "no memory for a header of %" PRIu64 " bytes" WHERE "%s", *bytes, path);
        }
    }
    json_decref(header);
    return e->code;
}

enum status safetensors_write_content(struct sys *sys, const char *path,
                                      const struct safetensors_content *content,
                                      const struct tensor_maker *maker, struct error *e) {
    struct output output;
    char *header = NULL;
    uint64_t header_bytes = 0;
    if (make_header(sys, path, content, &header, &header_bytes, e) == OK) {
        if (output_open(sys, path, &output, e) == OK) output_write(&output, header, header_bytes, e);
        for (int i = 0; i < content->n_tensors && e->code == OK; i++)
            output_tensor(&output, maker, i, &content->tensors[i].tensor, e);
        output_close(&output, e);
    }
    sys->release(sys, header);
    return e->code;
}

enum status safetensors_write(struct sys *sys, const char *path, const struct named_tensor *tensors,
                              int n_tensors, struct error *e) {
    return safetensors_write_content(
        sys, path, &(struct safetensors_content){.tensors = tensors, .n_tensors = n_tensors}, NULL, e);
}
