#include "engine/open/latent_file.h"

#include "engine/open/paths.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum status latent_open(struct sys *sys, const char *path, struct tensor_index *index, int32_t dim[5],
                        struct error *e) {
    *index = (struct tensor_index){0};
    if (safetensors_open(sys, path, index, e) != OK) return e->code;
    const struct index_entry *entry = index_find(index, "latent");
    if (!entry) {
        return error_set(e, MISSING, "the file has no tensor 'latent'" WHERE "%s" FOUND "%d other tensors",
                         path, index->n_entries);
    }
    if ((entry->rank == 4 || entry->rank == 5) && entry->dtype == DTYPE_F32 && entry->bytes) {
        int frames = entry->rank == 5;
        memcpy(dim, entry->dim, 2 * sizeof *dim);
        dim[2] = frames ? entry->dim[2] : 1;
        memcpy(dim + 3, entry->dim + 2 + frames, 2 * sizeof *dim);
        return OK;
    }
    return error_set(e, SHAPE,
                     "unsupported type or shape of the tensor 'latent'" WHERE "%s" FOUND
                     "%s of rank %d and %" PRIu64 " bytes" EXPECTED
                     "F32 [N, C, h, w], or [N, C, F, h, w] for a video",
                     path, dtype_name(entry->dtype), entry->rank, entry->bytes);
}

struct latent_origin latent_read_origin(struct sys *sys, const char *path) {
    struct latent_origin origin = {0};
    struct tensor_index index;
    struct config config = {0};
    struct error ignored = {0};
    int32_t dim[5];
    if (!path) return origin;
    if (latent_open(sys, path, &index, dim, &ignored) == OK) {
        origin.video = dim[2] > 1;
        if (index.config && config_parse(sys, path, index.config, NULL, &config, &ignored) == OK)
            snprintf(origin.recipe, sizeof origin.recipe, "%s", config_string(&config, LATENT_RECIPE, ""));
    }
    config_destroy(&config);
    index_destroy(&index);
    return origin;
}

enum status latent_found(const struct index_entry *entry, struct error *e) {
    char shape[96] = "";
    for (int i = 0, n = 0; i < entry->rank && n < (int)sizeof shape; i++)
        n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%d", i ? ", " : "", (int)entry->dim[i]);
    return error_found(e, "[%s]", shape);
}

enum status latent_read(const struct tensor_index *index, int i, struct tensor to, struct error *e) {
    const struct index_entry *entry = index_find(index, "latent");
    uint64_t bytes = (uint64_t)tensor_bytes(&to);
    return source_read(&index->sources[entry->source], to.data, bytes, entry->offset + (uint64_t)i * bytes,
                       e);
}
