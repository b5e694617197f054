/* Adapters' files, made tensor by tensor. What has no values takes no place on the disk. */
#ifndef SLUICE_TEST_ADAPTER_FILES_H
#define SLUICE_TEST_ADAPTER_FILES_H

#include "engine/open/adapter_file.h"

struct adapter_writer {
    char *header; /* the members so far */
    size_t bytes, room;
    uint64_t data_bytes;
    struct {
        uint64_t at, bytes;
        void *data;
    } * values;
    int n_values, values_room;
};

void adapter_writer_begin(struct adapter_writer *w);
/* type: as safetensors has it, of so many bytes an element. data: NULL for zeros. */
void adapter_writer_add(struct adapter_writer *w, const char *name, const char *type, int size, int rank,
                        const int32_t *dim, const void *data);
/* f32; dims end with 0. */
void adapter_writer_add_f32(struct adapter_writer *w, const char *name, const float *values, ...);
/* Writes and ends it. metadata: JSON text that becomes lora_adapter_metadata, or NULL. Returns path. */
const char *adapter_writer_end(struct adapter_writer *w, const char *path, const char *metadata);

#endif
