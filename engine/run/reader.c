/* Readers: see reader.h. */
#include "engine/run/reader.h"

static enum status read_bytes(struct reader *reader, const struct byte_source *source, char *to,
                              uint64_t bytes, uint64_t offset, struct error *e) {
    bool direct = reader->bounce.memory && source_is_direct(source);
    reader->bytes_read += bytes;
    if (!direct) return source_read(source, to, bytes, offset, e);
    reader->bytes_direct += bytes;
    return source_read_direct(source, &reader->bounce, to, bytes, offset, e);
}

enum status reader_read(struct reader *reader, const struct block *block, uint64_t from, uint64_t to,
                        char *image, struct error *e) {
    reader->bytes_read = reader->bytes_direct = 0;
    for (int i = 0; i < block->n_segments && e->code == OK; i++) {
        const struct image_segment *g = &block->segments[i];
        uint64_t first = g->image_offset, last = first + g->bytes;
        if (first < from) first = from;
        if (last > to) last = to;
        if (first >= last) continue;
        read_bytes(reader, &block->index->sources[g->source], image + first, last - first,
                   g->file_offset + (first - g->image_offset), e);
    }
    return e->code;
}
