/* A reader: reads byte ranges of packed blocks from files, for one thread of the store, and optionally
 * converts element types. */
#ifndef SLUICE_RUN_READER_H
#define SLUICE_RUN_READER_H

#include "engine/run/block.h"

/* Pure function: converts values [first, first + values) of a segment between element types. Both numbers are
 * multiples of the quantisation blocks of both types. numbers: scratch memory for `values` floats. */
typedef void packed_converter(const struct packed_conversion *conversion, const void *from, float *numbers,
                              void *to, int64_t first, int64_t values);

enum {
    READER_VALUES = 1 << 15, /* values converted at a time; a whole number of blocks of every type */
    READER_WORK_BYTES = 9 * READER_VALUES, /* memory for stored values, floats and a partial unit */
};

struct reader {
    struct bounce bounce; /* buffer for direct reads; without memory all reads go through the page cache */
    packed_converter *converter; /* converts element types; NULL: no conversion */
    char *work;                  /* READER_WORK_BYTES bytes, aligned to 16; NULL without a converter */
    uint64_t bytes_read;         /* bytes that the last reader_read read from files */
    uint64_t bytes_direct;       /* part of bytes_read that bypassed the page cache */
};

/* Offset within a page at which byte `from` of the packed block should lie in memory, so that address and
 * file offset agree modulo PLAN_PAGE. Most of [from, to) can then be read without a bounce buffer. */
uint64_t reader_phase(const struct block *block, uint64_t from, uint64_t to);

/* Reads bytes [at, at + bytes) of a segment from the file without conversion. Offsets do not count the gaps
 * between the segment's runs. Errors as for reader_read. */
enum status reader_read_stored(struct reader *reader, const struct packed_segment *segment, uint64_t at,
                               uint64_t bytes, char *to, struct error *e);

/* Reads bytes [from, to) of the packed block from files. `packed`: the address that byte 0 of the packed
 * block would have. For segments with a stride, gaps are read too and dropped. Sources not open for direct
 * reads go through the page cache. Errors: TRUNC, IO, CHANGED. */
enum status reader_read(struct reader *reader, const struct block *block, uint64_t from, uint64_t to,
                        char *packed, struct error *e);

#endif
