/* Readers: see reader.h. */
#include "engine/run/reader.h"

#include <string.h>

static enum status reader_read_bytes(struct reader *reader, const struct byte_source *source, char *to,
                                     uint64_t bytes, uint64_t offset, struct error *e) {
    bool direct = reader->bounce.memory && source_is_direct(source);
    reader->bytes_read += bytes;
    if (!direct) return source_read(source, to, bytes, offset, e);
    reader->bytes_direct += bytes;
    return source_read_direct(source, &reader->bounce, to, bytes, offset, e);
}

/* The least that stands by itself in both types; block sizes are powers of 2. */
static int64_t unit_values(const struct packed_conversion *c) {
    int from = dtype_block_values(c->from), to = dtype_block_values(c->to);
    return from > to ? from : to;
}

/* Bytes [first, last) of a segment that is converted, to where its byte 0 would be. Where a unit is cut, all
 * of it is made, and the part that is wanted copied. */
static enum status read_converted(struct reader *reader, const struct byte_source *source,
                                  const struct packed_segment *g, uint64_t first, uint64_t last, char *packed,
                                  struct error *e) {
    const struct packed_conversion *c = &g->conversion;
    char *stored = reader->work, *whole = reader->work + 8 * READER_VALUES;
    float *numbers = (float *)(reader->work + 4 * READER_VALUES);
    int64_t unit = unit_values(c);
    uint64_t unit_bytes = (uint64_t)dtype_bytes(c->to, unit),
             file_bytes = (uint64_t)dtype_bytes(c->from, unit);
    while (first < last && e->code == OK) {
        uint64_t i = first / unit_bytes, n = (last - i * unit_bytes) / unit_bytes;
        bool cut = first % unit_bytes || !n;
        if (cut) n = 1;
        if (n > READER_VALUES / (uint64_t)unit) n = READER_VALUES / (uint64_t)unit;
        if (reader_read_bytes(reader, source, stored, n * file_bytes, g->file_offset + i * file_bytes, e) !=
            OK)
            break;
        uint64_t end = (i + n) * unit_bytes < last ? (i + n) * unit_bytes : last;
        reader->converter(c, stored, numbers, cut ? whole : packed + first, (int64_t)n * unit);
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
        if (packed_converts(g) || first >= last || last - first <= most) continue;
        most = last - first;
        phase =
            (g->file_offset - g->packed_offset + from) % SYS_DIRECT_BLOCK; /* whole blocks wrap round 2^64 */
    }
    return phase;
}

enum status reader_read(struct reader *reader, const struct block *block, uint64_t from, uint64_t to,
                        char *packed, struct error *e) {
    reader->bytes_read = reader->bytes_direct = 0;
    for (int i = 0; i < block->n_segments && e->code == OK; i++) {
        const struct packed_segment *g = &block->segments[i];
        const struct byte_source *source = &block->index->sources[g->source];
        uint64_t first = g->packed_offset, last = first + g->bytes;
        if (first < from) first = from;
        if (last > to) last = to;
        if (first >= last) continue;
        if (packed_converts(g))
            read_converted(reader, source, g, first - g->packed_offset, last - g->packed_offset,
                           packed + g->packed_offset, e);
        else
            reader_read_bytes(reader, source, packed + first, last - first,
                              g->file_offset + (first - g->packed_offset), e);
    }
    return e->code;
}
