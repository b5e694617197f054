/* Reads and converts ranges of packed blocks: implements reader.h. */
#include "engine/run/reader.h"

#include <string.h>

/* Reads bytes of a file. The read bypasses the page cache if the reader has bounce memory and the source is
 * open for direct reads. */
static enum status reader_read_bytes(struct reader *reader, const struct byte_source *source, char *to,
                                     uint64_t bytes, uint64_t offset, struct error *e) {
    bool direct = reader->bounce.memory && source_is_direct(source);
    reader->bytes_read += bytes;
    if (!direct) return source_read(source, to, bytes, offset, e);
    reader->bytes_direct += bytes;
    return source_read_direct(source, &reader->bounce, to, bytes, offset, e);
}

/* Gaps between runs are read too, into the unused part of `to`: runs are shorter than a disk block. */
enum status reader_read_stored(struct reader *reader, const struct packed_segment *g, uint64_t at,
                               uint64_t bytes, char *to, struct error *e) {
    enum { LAST_BYTES = 16 << 10 };
    char last[LAST_BYTES];
    uint64_t run = g->run, stride = g->stride;
    if (!stride) return reader_read_bytes(reader, g->source, to, bytes, g->file_offset + at, e);
    while (bytes && e->code == OK) {
        uint64_t skip = at % run, n = run - skip < bytes ? run - skip : bytes, runs = 1;
        uint64_t capacity = bytes > LAST_BYTES ? bytes : LAST_BYTES;
        /* Number of runs of the strided segment that are read at once; only the last may be partial. */
        if (n == run && capacity > stride) runs = (capacity - run) / stride + 1;
        if (runs > bytes / n) runs = bytes / n;
        uint64_t span = (runs - 1) * stride + n;
        char *read = bytes > LAST_BYTES ? to + bytes - span : last;
        if (reader_read_bytes(reader, g->source, read, span, packed_file_byte(g, at), e) != OK) break;
        for (uint64_t i = 0; i < runs; i++) memmove(to + i * run, read + i * stride, n);
        n *= runs;
        at += n;
        to += n;
        bytes -= n;
    }
    return e->code;
}

/* Reads and converts bytes [first, last) of a packed segment to `packed`; `packed` is the address of its byte
 * 0. The values are converted in units; a unit that is requested in part is converted as a whole into a
 * buffer. */
static enum status read_converted(struct reader *reader, const struct packed_segment *g, uint64_t first,
                                  uint64_t last, char *packed, struct error *e) {
    const struct packed_conversion *c = &g->conversion;
    char *stored = reader->work, *whole = reader->work + 8 * READER_VALUES;
    float *numbers = (float *)(reader->work + 4 * READER_VALUES);
    /* A unit is the fewest values that form whole quantisation blocks in both types; block sizes are powers
     * of 2. */
    int64_t from_block = dtype_block_values(c->from), to_block = dtype_block_values(c->to),
            unit = from_block > to_block ? from_block : to_block;
    uint64_t unit_bytes = (uint64_t)dtype_bytes(c->to, unit),
             file_bytes = (uint64_t)dtype_bytes(c->from, unit);
    while (first < last && e->code == OK) {
        uint64_t i = first / unit_bytes, n = (last - i * unit_bytes) / unit_bytes;
        bool cut = first % unit_bytes || !n;
        if (cut) n = 1;
        if (n > READER_VALUES / (uint64_t)unit) n = READER_VALUES / (uint64_t)unit;
        if (reader_read_stored(reader, g, i * file_bytes, n * file_bytes, stored, e) != OK) break;
        uint64_t end = (i + n) * unit_bytes < last ? (i + n) * unit_bytes : last;
        reader->converter(c, stored, numbers, cut ? whole : packed + first, (int64_t)i * unit,
                          (int64_t)n * unit);
        if (cut) memcpy(packed + first, whole + first - i * unit_bytes, end - first);
        first = end;
    }
    return e->code;
}

uint64_t reader_phase(const struct block *block, uint64_t from, uint64_t to) {
    uint64_t most = 0, phase = 0;
    for (int i = 0; i < block->n_segments; i++) {
        const struct packed_segment *g = &block->segments[i];
        uint64_t first = g->packed_offset > from ? g->packed_offset : from,
                 last = g->packed_offset + g->bytes;
        if (last > to) last = to;
        if (packed_converts(g) || g->stride || first >= last || last - first <= most) continue;
        most = last - first;
        phase = (g->file_offset - g->packed_offset + from) %
                SYS_DIRECT_BLOCK; /* an unsigned wrap-around does not matter modulo a power of 2 */
    }
    return phase;
}

enum status reader_read(struct reader *reader, const struct block *block, uint64_t from, uint64_t to,
                        char *packed, struct error *e) {
    reader->bytes_read = reader->bytes_direct = 0;
    for (int i = 0; i < block->n_segments && e->code == OK; i++) {
        const struct packed_segment *g = &block->segments[i];
        uint64_t first = g->packed_offset, last = first + g->bytes;
        if (first < from) first = from;
        if (last > to) last = to;
        if (first >= last) continue;
        if (packed_converts(g))
            read_converted(reader, g, first - g->packed_offset, last - g->packed_offset,
                           packed + g->packed_offset, e);
        else
            reader_read_stored(reader, g, first - g->packed_offset, last - first, packed + first, e);
    }
    return e->code;
}
