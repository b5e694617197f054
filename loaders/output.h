/* Atomic file output: a file appears complete or not at all. The file is written without a name (O_TMPFILE),
 * or if the file system does not support this, under a temporary name in the same folder. It is then flushed
 * and gets its final name. */
#ifndef SLUICE_LOADERS_OUTPUT_H
#define SLUICE_LOADERS_OUTPUT_H

#include "loaders/loaders.h"

struct output {
    struct sys *sys;
    const char *path; /* final name */
    char *temporary;
    bool unnamed; /* the file has no name yet */
    int file;
    uint64_t bytes; /* bytes written so far */
};

/* Opens an output file. Fails with OUTPUT and the system's reason, or with OUTPUT if the path is a device or
 * pipe. */
enum status output_open(struct sys *sys, const char *path, struct output *output, struct error *e);
enum status output_write(struct output *output, const void *from, uint64_t bytes, struct error *e);
/* Writes zeros until the file position is a multiple of `align` bytes (a power of two up to 64). */
enum status output_pad(struct output *output, uint64_t align, struct error *e);
/* Writes tensor i: tensor->data, or if maker is not NULL the bytes that it generates, in pieces of at most
 * 4 MiB: whole rows if one fits, else whole blocks. */
enum status output_tensor(struct output *output, const struct tensor_maker *maker, int i,
                          const struct tensor *tensor, struct error *e);
/* Flushes and names the file, or removes it if e holds an error. Call after output_open in any case. */
enum status output_close(struct output *output, struct error *e);

#endif
