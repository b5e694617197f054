#include "test/lib/adapter_files.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/lib/check.h"

__attribute__((format(printf, 2, 3))) static void put(struct adapter_writer *w, const char *format, ...) {
    va_list list;
    va_start(list, format);
    if (w->room - w->bytes < 4096) {
        w->room = 2 * w->room + 65536;
        w->header = realloc(w->header, w->room);
    }
    w->bytes += (size_t)vsnprintf(w->header + w->bytes, w->room - w->bytes, format, list);
    va_end(list);
}

void adapter_writer_begin(struct adapter_writer *w) {
    *w = (struct adapter_writer){0};
    put(w, "{");
}

static void keep_values(struct adapter_writer *w, const void *data, uint64_t bytes) {
    if (w->n_values == w->values_room) {
        w->values_room = 2 * w->values_room + 64;
        w->values = realloc(w->values, (size_t)w->values_room * sizeof *w->values);
    }
    w->values[w->n_values].at = w->data_bytes;
    w->values[w->n_values].bytes = bytes;
    w->values[w->n_values].data = memcpy(malloc(bytes), data, bytes);
    w->n_values++;
}

void adapter_writer_add(struct adapter_writer *w, const char *name, const char *type, int size, int rank,
                        const int32_t *dim, const void *data) {
    uint64_t bytes = (uint64_t)size;
    put(w, "%s\"%s\": {\"dtype\": \"%s\", \"shape\": [", w->bytes > 1 ? ", " : "", name, type);
    for (int i = 0; i < rank; i++) {
        put(w, "%s%" PRId32, i ? ", " : "", dim[i]);
        bytes *= (uint64_t)dim[i];
    }
    put(w, "], \"data_offsets\": [%" PRIu64 ", %" PRIu64 "]}", w->data_bytes, w->data_bytes + bytes);
    if (data) keep_values(w, data, bytes);
    w->data_bytes += bytes;
}

void adapter_writer_add_f32(struct adapter_writer *w, const char *name, const float *values, ...) {
    int32_t dim[8];
    int rank = 0;
    va_list list;
    va_start(list, values);
    while ((dim[rank] = va_arg(list, int32_t))) rank++;
    va_end(list);
    adapter_writer_add(w, name, "F32", 4, rank, dim, values);
}

/* Writes JSON text inside a JSON string: a backslash before each quote. */
static void put_escaped(struct adapter_writer *w, const char *text) {
    for (; *text; text++) put(w, *text == '"' ? "\\%c" : "%c", *text);
}

const char *adapter_writer_end(struct adapter_writer *w, const char *path, const char *metadata) {
    if (metadata) {
        put(w, "%s\"__metadata__\": {\"lora_adapter_metadata\": \"", w->bytes > 1 ? ", " : "");
        put_escaped(w, metadata);
        put(w, "\"}");
    }
    put(w, "}");
    FILE *f = fopen(path, "wb");
    uint64_t length = w->bytes, data = sizeof length + length;
    check(f && fwrite(&length, sizeof length, 1, f) == 1 && fwrite(w->header, length, 1, f) == 1, "%s", path);
    for (int i = 0; i < w->n_values; i++) {
        fseek(f, (long)(data + w->values[i].at), SEEK_SET);
        fwrite(w->values[i].data, 1, w->values[i].bytes, f);
        free(w->values[i].data);
    }
    check(!fflush(f) && !ftruncate(fileno(f), (off_t)(data + w->data_bytes)) && !fclose(f), "%s", path);
    free(w->header);
    free(w->values);
    *w = (struct adapter_writer){0};
    return path;
}

struct sluice_model *adapter_test_model(const char *name) {
    bool folder = strchr(name, '/') != NULL;
    struct sluice_model_options options = {
        .struct_size = sizeof options, .model = folder ? name : NULL, .family = folder ? NULL : name};
    struct sluice_model *model = NULL;
    struct error e = {0};
    model_open(NULL, &options, &model, &e);
    if (!check(e.code == OK, "%s: %s", name, e.what)) exit(finish());
    return model;
}

int adapter_dimensions(const char *text, int32_t *dim) {
    int rank = 0;
    for (char *end; *text && *text != '-'; text = *end ? end + 1 : end)
        dim[rank++] = (int32_t)strtol(text, &end, 10);
    return rank;
}
