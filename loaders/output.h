/* Files that are there whole or not at all: written without a name, or where the system has no such files
 * under a temporary one in the same folder; flushed, and renamed. */
#ifndef SLUICE_LOADERS_OUTPUT_H
#define SLUICE_LOADERS_OUTPUT_H

#include "loaders/loaders.h"

/* A file being written. */
struct output {
    struct sys *sys;
    const char *path; /* its final name */
    char *temporary;
    bool unnamed; /* temporary is not there yet */
    int file;
    uint64_t bytes; /* so far */
};

/* OUTPUT with the system's reason; also where path is something that renaming would replace: a device, a
 * pipe.
 */
enum status output_open(struct sys *sys, const char *path, struct output *output, struct error *e);
enum status output_write(struct output *output, const void *from, uint64_t bytes, struct error *e);
/* Zeros until a multiple of align, a power of two up to 64. */
enum status output_pad(struct output *output, uint64_t align, struct error *e);
/* A tensor whose bytes a maker gives, in pieces that fit into 4 MiB: whole rows if one does, else whole
 * blocks. */
enum status output_make(struct output *output, const struct tensor_maker *maker, int i,
                        const struct tensor *tensor, struct error *e);
/* After output_open, whether it or what followed failed or not: makes the file durable and gives it its name,
 * or, if e has an error, removes what there is of it. */
enum status output_close(struct output *output, struct error *e);

#endif
