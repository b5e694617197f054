/* A reader: what one thread of the store reads files with. It knows a block's image and where its bytes lie
 * in files; not why they are read, nor where the image goes afterwards. */
#ifndef SLUICE_RUN_READER_H
#define SLUICE_RUN_READER_H

#include "engine/run/block.h"

struct reader {
    struct bounce bounce;  /* its own; without memory: everything goes through the page cache */
    uint64_t bytes_read;   /* by the last reader_read */
    uint64_t bytes_direct; /* of those, past the page cache */
};

/* Reads what files have of bytes [from, to) of the block's image to where byte 0 of the image would be. A
 * source that is not direct is read through the page cache. TRUNC, IO, CHANGED. */
enum status reader_read(struct reader *reader, const struct block *block, uint64_t from, uint64_t to,
                        char *image, struct error *e);

#endif
