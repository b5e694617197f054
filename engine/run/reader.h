/* A reader: reads a range of a packed block from files, for one thread of the store. Converts element types
 * on the way if asked. */
#ifndef SLUICE_RUN_READER_H
#define SLUICE_RUN_READER_H

#include "engine/run/block.h"

/* Converts `values` values, whole blocks of both element types. numbers: scratch for as many floats. Pure
 * function. */
typedef void packed_converter(const struct packed_conversion *conversion, const void *from, float *numbers,
                              void *to, int64_t values);

/* Buffer sizes of a reader that converts. */
enum {
    READER_VALUES = 1 << 15, /* values converted at a time; a whole number of blocks of every type */
    READER_WORK_BYTES = 9 * READER_VALUES, /* stored values, floats, and one or two partial blocks */
};

struct reader {
    struct bounce bounce; /* buffer for direct reads; without memory all reads go through the page cache */
    packed_converter *converter; /* NULL: no conversion */
    char *work;                  /* READER_WORK_BYTES, aligned to 16; NULL without a converter */
    uint64_t bytes_read;         /* bytes read by the last reader_read */
    uint64_t bytes_direct;       /* part of bytes_read that bypassed the page cache */
};

/* Offset from a page boundary at which byte `from` of the packed block should lie in memory. Memory address
 * and file offset then agree modulo PLAN_PAGE, and most of [from, to) can be read directly in place. */
uint64_t reader_phase(const struct block *block, uint64_t from, uint64_t to);

/* Reads bytes [from, to) of the packed block from files. `packed` is the address that byte 0 of the packed
 * block would have. Of a segment with a stride, the gaps are read too and dropped. Sources not opened for
 * direct reads go through the page cache. TRUNC, IO, CHANGED. */
enum status reader_read(struct reader *reader, const struct block *block, uint64_t from, uint64_t to,
                        char *packed, struct error *e);

#endif
