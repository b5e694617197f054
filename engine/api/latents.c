/* Latents in files: see latents.h. */
#include "engine/api/latents.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum status latent_open(struct sys *sys, const char *path, struct tensor_index *index, int32_t dim[4],
                        struct error *e) {
    *index = (struct tensor_index){0};
    if (safetensors_open(sys, path, index, e) != OK) return e->code;
    const struct index_entry *entry = index_find(index, "latent");
    if (!entry) {
        error_set(e, MISSING, "there is no tensor 'latent'");
        error_where(e, "%s", path);
        return error_found(e, "%d other tensors", index->n_entries);
    }
    if (entry->rank == 4 && entry->dtype == DTYPE_F32 && entry->bytes) {
        memcpy(dim, entry->dim, 4 * sizeof *dim);
        return OK;
    }
    error_set(e, SHAPE, "the tensor 'latent' cannot be used");
    error_where(e, "%s", path);
    error_found(e, "%s of rank %d and %" PRIu64 " bytes", dtype_name(entry->dtype), entry->rank,
                entry->bytes);
    return error_expected(e, "F32 [N, C, h, w]");
}

enum status latent_read(const struct tensor_index *index, int i, struct tensor to, struct error *e) {
    const struct index_entry *entry = index_find(index, "latent");
    uint64_t bytes = (uint64_t)tensor_bytes(&to);
    return source_read(&index->sources[entry->source], to.data, bytes, entry->offset + (uint64_t)i * bytes,
                       e);
}

enum status latent_save(struct sys *sys, const char *path, const struct tensor *latents, int n,
                        struct error *e) {
    int32_t dim[4] = {n, latents->dim[0], latents->dim[1], latents->dim[2]};
    size_t each = (size_t)tensor_bytes(latents);
    /* Latents of a batch follow each other in memory only up to alignment. */
    char *together = sys->map(sys, LINE_STATE, each * (size_t)n);
    if (!together) return error_set(e, MEMORY, "no memory to write %d latents", n);
    for (int i = 0; i < n; i++) memcpy(together + (size_t)i * each, latents[i].data, each);
    struct named_tensor tensor = {"latent", tensor_make(together, DTYPE_F32, 4, dim)};
    safetensors_write(sys, path, &tensor, 1, e);
    sys->unmap(sys, LINE_STATE, together, each * (size_t)n);
    return e->code;
}

enum status ring_save(struct sys *sys, const char *folder, const char *name, struct tensor tensor,
                      struct error *e) {
    char file[64];
    snprintf(file, sizeof file, "%s.safetensors", name);
    char *path = path_join(sys, folder, file);
    if (!path) return error_set(e, MEMORY, "no memory for a path");
    struct named_tensor named = {name, tensor};
    safetensors_write(sys, path, &named, 1, e);
    sys->release(sys, path);
    return e->code;
}
