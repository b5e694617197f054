/* A reader: what one thread of the store reads files with. It knows a packed block and where its bytes lie
 * in files; not why they are read, nor where the packed block goes afterwards. */
#ifndef SLUICE_RUN_READER_H
#define SLUICE_RUN_READER_H

#include "engine/run/block.h"

/* Converts so many values, whole blocks of either type: a pure function. numbers: room for as many. */
typedef void packed_converter(const struct packed_conversion *conversion, const void *from, float *numbers,
                              void *to, int64_t values);

/* What a reader that converts works in, of its own. */
enum {
    READER_VALUES = 1 << 15,               /* at a time: whole blocks of every type */
    READER_WORK_BYTES = 9 * READER_VALUES, /* as they are stored (at most 4 bytes each) and as numbers; and a
                                              block or two of which a part is wanted */
};

struct reader {
    struct bounce bounce;        /* its own; without memory: everything goes through the page cache */
    packed_converter *converter; /* NULL: no block is to be converted */
    char *work;                  /* READER_WORK_BYTES, aligned to 16; NULL without a converter */
    uint64_t bytes_read;         /* by the last reader_read */
    uint64_t bytes_direct;       /* of those, past the page cache */
};

/* How far behind a page's beginning byte `from` of the packed block should lie in memory for most of [from,
 * to) to be read where it belongs: there memory and file agree modulo PLAN_PAGE. */
uint64_t reader_phase(const struct block *block, uint64_t from, uint64_t to);

/* Reads what files have of bytes [from, to) of the packed block to where byte 0 of the packed block would be;
 * of a segment in runs, what lies between them too, which then is in none of these bytes. A source that is
 * not direct is read through the page cache. TRUNC, IO, CHANGED. */
enum status reader_read(struct reader *reader, const struct block *block, uint64_t from, uint64_t to,
                        char *packed, struct error *e);

#endif
