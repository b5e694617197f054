/* Conditionings as files, which other sessions find: FOLDER/KEY.safetensors has the tensors "text" and
 * "pooled", those that there are, in f32, and the hash of key and bytes in its metadata. A file is there
 * whole or not at all; one that is damaged is none, and written again. */
#ifndef SLUICE_API_CONDITIONING_FILE_H
#define SLUICE_API_CONDITIONING_FILE_H

#include "engine/api/conditionings.h"
#include "loaders/loaders.h"

struct conditioning_place {
    struct sys *sys;
    const char *folder;
    const uint8_t *key; /* CONDITIONING_KEY_BYTES */
};

/* What an encoder makes of a prompt: [T, C], [1, C]; rank 0: none. */
struct conditioning_tensors {
    struct tensor text, pooled;
};

/* Whether a sound file is there for tensors of these shapes, of which every byte is read and hashed. It stays
 * open in index, which the caller destroys; false: the index is empty. */
bool conditioning_file_open(const struct conditioning_place *place, const struct conditioning_tensors *shapes,
                            struct tensor_index *index);
/* Reads them: IO, CHANGED where the file has been written to since. */
enum status conditioning_file_read(const struct tensor_index *index, const struct conditioning_tensors *to,
                                   struct error *e);
/* Writes them in the place of whatever is there: OUTPUT, MEMORY. */
enum status conditioning_file_write(const struct conditioning_place *place,
                                    const struct conditioning_tensors *tensors, struct error *e);

#endif
