/* Writes adapter files (safetensors) tensor by tensor. A tensor without values becomes a hole in the sparse
 * file and takes no disk space. */
#ifndef SLUICE_TEST_ADAPTER_FILES_H
#define SLUICE_TEST_ADAPTER_FILES_H

#include "engine/open/adapter_file.h"
#include "engine/open/model.h"

struct adapter_writer {
    char *header; /* text of the JSON header so far */
    size_t bytes, room;
    uint64_t data_bytes;
    struct {
        uint64_t at, bytes;
        void *data;
    } * values;
    int n_values, values_room;
};

void adapter_writer_begin(struct adapter_writer *w);
/* Adds a tensor. `type`: safetensors type name; `size`: bytes of an element; `data` NULL: all zeros. */
void adapter_writer_add(struct adapter_writer *w, const char *name, const char *type, int size, int rank,
                        const int32_t *dim, const void *data);
/* Adds an f32 tensor; the variable arguments are its dimensions, ended by 0. */
void adapter_writer_add_f32(struct adapter_writer *w, const char *name, const float *values, ...);
/* Writes the file, frees the writer and returns path. metadata: JSON for lora_adapter_metadata, or NULL. */
const char *adapter_writer_end(struct adapter_writer *w, const char *path, const char *metadata);

/* Opens a model: from a folder, or without files by a recipe's name, at its published sizes. */
struct sluice_model *adapter_test_model(const char *name);

/* Reads the sizes of "2,3" or "2x3", none of "-"; returns the rank. */
int adapter_dimensions(const char *text, int32_t *dim);

#endif
