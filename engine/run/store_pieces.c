/* Moves the bytes of fills in pieces of a few MiB, on reader threads, through staging buffers and out of the
 * pinned host pool: see store_state.h. */
#include "engine/run/store_state.h"

#include <string.h>

/* True if the pool holds the part (adapter bytes or base weights) with byte `at` of the fill's block. */
static bool part_in_pool(const struct store *s, const struct fill *f, uint64_t at) {
    enum packed_part part = packed_part_of(f->block, at);
    return f->pooled && resident_memory_ready(&s->o.residents->pool[f->stage], part, f->number);
}

/* Pool memory of the part (adapter bytes or base weights) that contains byte `at` of the packed block. */
static struct resident_part *pool_part(const struct store *s, const struct fill *f, uint64_t at) {
    return &s->o.residents->pool[f->stage].part[packed_part_of(f->block, at)];
}

/* Address of byte `at` of the packed block in the pool. */
static char *pool_byte(const struct store *s, const struct fill *f, uint64_t at) {
    struct packed_place place = resident_memory_place(&s->o.residents->pool[f->stage], f->number);
    return packed_byte(f->block, &place, at);
}

/* True unless another fill is already reading the same block from the disk into the host pool. Of several
 * fills of one block, the later ones wait for the first. */
static bool pool_allows(struct store *s, struct fill *f) {
    if (!f->pooled || (part_in_pool(s, f, 0) && part_in_pool(s, f, f->block->bytes))) return true;
    if (f->claimed) return f->reads_pool;
    for (struct fill *other = s->fills; other < f; other++)
        if (other->reads_pool && other->stage == f->stage && other->number == f->number) return false;
    f->reads_pool = true;
    return true;
}

/* True if the fill's next piece passes through staging: it comes from the disk, or from unpinned pool memory
 * while staging is pinned. *most: number of bytes for which the result is the same. */
static bool passes_staging(const struct store *s, const struct fill *f, uint64_t *most) {
    *most = UINT64_MAX;
    if (!s->device || !f->pooled) return s->device;
    const struct resident_part *pool = pool_part(s, f, f->claimed);
    bool all = !pins_refuse(&pool->pins) && pool->pins.bytes >= pool->bytes;
    if (!pool->pins.memory || all || s->staging_unpinned) return false;
    if (!s->o.plan->stage[f->stage].staging_bytes) return false;
    uint64_t from = (uint64_t)(pool_byte(s, f, f->claimed) - pool->base), end;
    bool refused = pins_state(&pool->pins, from, &end) == PIN_REFUSED;
    *most = end - from;
    return refused;
}

/* Claims the next unread piece of the earliest placed fill; false if it cannot start now. A piece is never
 * claimed without a staging buffer, because later pieces would wait for the claimed piece. */
static bool claim_piece(struct store *s, struct piece *piece) {
    struct fill *f = NULL;
    for (; s->next_claim < s->next_place; s->next_claim++) {
        f = &s->fills[s->next_claim];
        if (f->state == FILL_FILLING && f->claimed < f->block->bytes) break;
    }
    if (s->next_claim == s->next_place || !pool_allows(s, f)) return false;
    const struct block *block = f->block;
    uint64_t from = f->claimed, alike, most = PLAN_READ_PIECE, event;
    uint64_t left = (from < block->adapter_bytes ? block->adapter_bytes : block->bytes) - from;
    int buffer = -1;
    bool staged = passes_staging(s, f, &alike);
    if (staged) { /* the free staging buffer that has been unused for longest */
        for (int i = 0; i < s->n_staging; i++)
            if (!s->staging[i].taken && (buffer < 0 || s->staging[i].fence < s->staging[buffer].fence))
                buffer = i;
        /* there are no staging buffers between two stages */
        if (!s->staging_open || buffer < 0) return false;
        most = s->staging_piece - s->staging_slack;
    } else if (s->device) {
        most = part_in_pool(s, f, from) ? PLAN_COPY_PIECE : PLAN_STAGED_PIECE;
    }
    uint64_t n = left < most ? left : most, to = from + (n < alike ? n : alike);
    if (!most || !fills_place_is_free(f, from, to, &event)) return false;
    *piece = (struct piece){f, from, to, event, buffer, s->pieces_claimed++};
    if (staged) s->staging[buffer].taken = true;
    /* Sections (byte ranges that share a fence) are multiples of the first piece's size. If later pieces
     * differ in size, waits may be longer than necessary, never shorter. */
    uint64_t sections = most * FILL_FENCES;
    if (!f->fence_bytes) f->fence_bytes = most * ((block->bytes + sections - 1) / sections);
    f->claimed = to;
    fills_skip_ready(s, f);
    f->pieces_in_flight++;
    s->pieces_in_flight++;
    return true;
}

/* Adds the bytes of the last read to the counters. */
static void count_reads(struct store *s, const struct reader *reader) {
    s->counters.bytes_read += (int64_t)reader->bytes_read;
    s->counters.bytes_direct += (int64_t)reader->bytes_direct;
}

/* True if the piece's copy must be delayed. All copies share one queue: a copy that waits for a late device
 * event would block copies of earlier pieces, which wait for earlier events. */
static bool would_block_queue(const struct store *s, const struct piece *piece) {
    for (int i = 0; i < STORE_READERS_MAX; i++) {
        const struct piece *other = &s->readers[i].piece;
        if (other->fill && other->number < piece->number && other->event < piece->event) return true;
    }
    return false;
}

/* Pins the chunk with byte `from`, which the caller has claimed. Call without the lock. */
static void pin_claimed(struct store *s, struct pins *pins, uint64_t from) {
    pins_pin(pins, from);
    pthread_mutex_lock(&s->lock);
    s->o.sys->wake(s->o.sys, &s->ready);
    pthread_mutex_unlock(&s->lock);
}

/* Queues a piece's copy, split at borders of pinned chunks. Returns the last fence. Call without the lock. */
static uint64_t copy_piece(struct store *s, const struct piece *piece, struct pins *pins, const char *from,
                           int64_t *unpinned) {
    uint64_t fence = 0, at = piece->from;
    while (at < piece->to) {
        uint64_t offset = (uint64_t)(from + at - pins->memory), end, n = piece->to - at;
        if (pins_state(pins, offset, &end) !=
            PIN_DONE) { /* pins the chunk, or waits for the thread that does */
            pthread_mutex_lock(&s->lock);
            bool mine = pins_claim(pins, offset);
            while (!mine && pins_state(pins, offset, &end) == PIN_UNDER_WAY)
                s->o.sys->wait(s->o.sys, &s->ready, &s->lock, 0);
            pthread_mutex_unlock(&s->lock);
            if (mine) pin_claimed(s, pins, offset);
        }
        if (pins->memory && n > end - offset) n = end - offset;
        if (pins_state(pins, offset, &end) != PIN_DONE) *unpinned += (int64_t)n;
        fence = s->device->memory->copy(s->device, packed_byte(piece->fill->block, &piece->fill->place, at),
                                        from + at, n, piece->event);
        at += n;
    }
    return fence;
}

/* Returns the pinning state of the host memory (pool or staging) that a piece is copied from. *packed: the
 * address that byte 0 of the packed block would have in this memory. */
static struct pins *copy_source(struct store *s, const struct piece *piece, char **packed) {
    const struct fill *f = piece->fill;
    if (piece->buffer < 0) {
        *packed = pool_byte(s, f, piece->from) - piece->from;
        return &pool_part(s, f, piece->from)->pins;
    }
    uint64_t phase = s->staging_slack ? reader_phase(f->block, piece->from, piece->to) : 0;
    *packed = s->staging_memory + (uint64_t)piece->buffer * s->staging_piece + phase - piece->from;
    return &s->staging_pins;
}

/* Moves one piece to a device with its own memory. Returns the bytes moved. The lock is held on entry and
 * exit. */
static uint64_t move_to_device(struct store *s, const struct piece *piece, struct reader *reader,
                               struct error *e) {
    struct fill *f = piece->fill;
    bool reads = !part_in_pool(s, f, piece->from);
    int buffer = piece->buffer;
    char *from, *read;
    struct pins *pins = copy_source(s, piece, &from);
    read = f->pooled ? pool_byte(s, f, piece->from) - piece->from : from;
    uint64_t passed = buffer < 0 ? 0 : s->staging[buffer].fence, fence = 0;
    int64_t unpinned = 0;
    pthread_mutex_unlock(&s->lock);
    if (reads && f->pooled) reader_read(reader, f->block, piece->from, piece->to, read, e);
    /* the previous copy out of the staging buffer must be complete (invariant I8) */
    if (passed) s->device->memory->wait_copy(s->device, passed);
    if (!f->pooled) reader_read(reader, f->block, piece->from, piece->to, read, e);
    if (from != read && e->code == OK)
        memcpy(from + piece->from, read + piece->from, piece->to - piece->from);
    pthread_mutex_lock(&s->lock);
    while (would_block_queue(s, piece)) s->o.sys->wait(s->o.sys, &s->ready, &s->lock, 0);
    pthread_mutex_unlock(&s->lock);
    if (e->code == OK) fence = copy_piece(s, piece, pins, from, &unpinned);
    pthread_mutex_lock(&s->lock);
    s->counters.bytes_unpinned += unpinned;
    if (from != read) s->counters.bytes_windowed += (int64_t)(piece->to - piece->from);
    for (uint64_t i = piece->from / f->fence_bytes; i * f->fence_bytes < piece->to; i++)
        if (fence > f->fence[i]) f->fence[i] = fence;
    if (buffer >= 0) {
        s->staging[buffer] = (struct staging){.fence = fence};
        s->o.sys->wake(s->o.sys, &s->work);
    }
    if (reads) count_reads(s, reader);
    return piece->to - piece->from;
}

/* Reads one piece to host memory where weights are used. The lock is held on entry and exit. */
static uint64_t move_to_host(struct store *s, const struct piece *piece, struct reader *reader,
                             struct error *e) {
    const struct fill *f = piece->fill;
    char *packed = packed_byte(f->block, &f->place, piece->from) - piece->from;
    pthread_mutex_unlock(&s->lock);
    reader_read(reader, f->block, piece->from, piece->to, packed,
                e); /* only this reader writes these bytes (invariant I1) */
    pthread_mutex_lock(&s->lock);
    count_reads(s, reader);
    return reader->bytes_read;
}

/* Counts a moved piece, or records its error; the last piece ends the fill. */
static void finish_piece(struct store *s, const struct piece *piece, uint64_t moved, const struct error *e) {
    struct fill *f = piece->fill;
    f->pieces_in_flight--;
    s->pieces_in_flight--;
    s->o.sys->wake(s->o.sys, &s->ready);
    if (e->code != OK) {
        if (s->error.code == OK) s->error = *e;
        f->state = FILL_FAILED; /* acquire or await reports the failure (invariant I4) */
    } else {
        s->counters.bytes_moved += (int64_t)moved;
    }
    if (f->pieces_in_flight || f->claimed < f->block->bytes) return;
    if (f->state == FILL_FILLING) {
        f->state = FILL_READY;
        if (f->resident) resident_memory_set_ready(&s->o.residents->memory[f->stage], f->number);
        if (f->reads_pool) resident_memory_set_ready(&s->o.residents->pool[f->stage], f->number);
        if (f->reads_pool) s->o.sys->wake(s->o.sys, &s->work);
    }
}

/* Lets an idle reader pin one of the pool's next chunks before copies reach it. At most half of the readers
 * pin, the others read on. Releases the lock meanwhile. */
static void pin_ahead(struct store *s, const struct piece *piece) {
    enum { CHUNKS_AHEAD = 4 };
    char *packed;
    struct pins *pins = copy_source(s, piece, &packed);
    if (!pins->memory || 2 * s->pinning > s->n_threads) return;
    uint64_t at = (uint64_t)(packed + piece->to - 1 - pins->memory), next;
    bool mine = false;
    for (int i = 0; i < CHUNKS_AHEAD && !mine; i++, at = next) {
        pins_state(pins, at, &next);
        mine = pins_claim(pins, next);
    }
    if (!mine) return;
    s->pinning++;
    s->pieces_in_flight++; /* keeps the pool allocated while its chunk is pinned */
    pthread_mutex_unlock(&s->lock);
    pin_claimed(s, pins, at);
    pthread_mutex_lock(&s->lock);
    s->pieces_in_flight--;
    s->pinning--;
    s->o.sys->wake(s->o.sys, &s->ready);
}

/* Reader work: moves a piece or places the next fill. Returns false if neither is possible now. */
static bool work_once(struct store *s, struct store_reader *r) {
    struct piece *piece = &r->piece;
    if (s->error.code != OK) return false;
    if (claim_piece(s, piece)) {
        struct error e = {0};
        uint64_t moved =
            s->device ? move_to_device(s, piece, &r->reader, &e) : move_to_host(s, piece, &r->reader, &e);
        struct piece done = *piece;
        finish_piece(s, piece, moved, &e);
        piece->fill = NULL;
        if (s->device && done.buffer < 0) pin_ahead(s, &done);
        return true;
    }
    if (!fills_place_next(s)) return false;
    s->o.sys->wake(s->o.sys, &s->work);
    s->o.sys->wake(s->o.sys, &s->ready);
    return true;
}

uint64_t pieces_arrived(const struct store *s, const struct fill *f) {
    uint64_t there = f->claimed;
    for (int i = 0; i < STORE_READERS_MAX && f->pieces_in_flight; i++) {
        const struct piece *piece = &s->readers[i].piece;
        if (piece->fill == f && piece->from < there) there = piece->from;
    }
    return there;
}

uint64_t pieces_last_fence(const struct store *s, const struct fill *f, uint64_t *to) {
    uint64_t last = 0, there = pieces_arrived(s, f), from = 0;
    for (int i = 0; from < *to && f->fence_bytes; i++, from += f->fence_bytes)
        if (f->fence[i] > last) last = f->fence[i];
    *to = from && from < there ? from : there;
    return last;
}

static void reader_main(void *argument) {
    struct store_reader *r = argument;
    struct store *s = r->store;
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        if (work_once(s, r)) continue;
        if (s->error.code != OK) s->o.sys->wake(s->o.sys, &s->ready);
        s->o.sys->wait(s->o.sys, &s->work, &s->lock, 0);
    }
    pthread_mutex_unlock(&s->lock);
}

void pieces_move_inline(struct store *s) {
    while (!s->n_threads && !s->stopping && work_once(s, &s->readers[0])) {
    }
}

enum status pieces_open(struct store *s, struct error *e) {
    struct sys *sys = s->o.sys;
    uint64_t n = s->o.readers > 0 ? (uint64_t)s->o.readers : 1, all = s->o.plan->bounce_bytes;
    uint64_t part = all / n / PLAN_PAGE * PLAN_PAGE;
    s->bounce_bytes = all;
    if (all) s->bounce_memory = sys->map(sys, LINE_STORE, all);
    if (all && !s->bounce_memory)
        return error_set(e, MEMORY, "no memory for bounce buffers of %llu bytes", (unsigned long long)all);
    for (uint64_t i = 0; i < n && part; i++)
        s->readers[i].reader.bounce = (struct bounce){s->bounce_memory + i * part, part};
    if (s->o.converter) {
        s->work_memory = sys_new(sys, n, READER_WORK_BYTES, "the buffers of weight conversion (--type)", e);
        if (!s->work_memory) return e->code;
        for (uint64_t i = 0; i < n; i++) {
            s->readers[i].reader.converter = s->o.converter;
            s->readers[i].reader.work = s->work_memory + i * READER_WORK_BYTES;
        }
    }
    for (int i = 0; i < s->o.readers; i++) {
        struct store_reader *r = &s->readers[i];
        r->store = s;
        int failed = sys->thread_start(sys, &r->thread, reader_main, r);
        if (failed) return error_set(e, DEVICE, "cannot start a reader thread" FOUND "%s", strerror(-failed));
        s->n_threads++;
    }
    return OK;
}

void pieces_cancel(struct store *s, struct fill *f) {
    f->state = FILL_FAILED;
    f->claimed = f->block->bytes;
    while (f->pieces_in_flight) s->o.sys->wait(s->o.sys, &s->ready, &s->lock, 0);
    f->reads_pool = false; /* other fills may now read this block into the pool */
}

void pieces_abandon(struct store *s, int stage) {
    for (int i = 0; i < s->next_place; i++) {
        struct fill *f = &s->fills[i];
        if (f->stage == stage && (f->state == FILL_FILLING || f->state == FILL_FAILED)) pieces_cancel(s, f);
    }
}

enum status pieces_open_staging(struct store *s, uint64_t bytes, struct error *e) {
    enum { SLACK_FROM = 4 * PLAN_PAGE };
    uint64_t n = bytes / PLAN_STAGED_PIECE;
    if (n < 2) n = bytes >= 2 * PLAN_PAGE ? 2 : 1;
    if (n > STAGING_MAX) n = STAGING_MAX;
    if (!s->device || !bytes) return OK;
    s->staging_memory = s->o.sys->map(s->o.sys, LINE_STORE, bytes);
    if (!s->staging_memory)
        return error_set(e, MEMORY, "no memory for %llu bytes of staging", (unsigned long long)bytes);
    s->o.sys->use_large_pages(s->o.sys, s->staging_memory, bytes);
    pthread_mutex_unlock(&s->lock); /* readers may need the lock to copy out of pools */
    /* Pins all staging buffers at once, before the pool uses up the system's limit of pinned memory; unpinned
     * parts of the pool need pinned staging. */
    struct pins *pins = &s->staging_pins;
    pins_begin(pins, s->device, s->staging_memory, bytes);
    for (uint64_t at = 0; pins->memory && at < bytes; at += pins->chunk)
        if (pins_claim(pins, at)) pins_pin(pins, at);
    pthread_mutex_lock(&s->lock);
    s->staging_unpinned = pins_refuse(&s->staging_pins);
    s->staging_bytes = bytes;
    s->staging_piece = bytes / n / PLAN_PAGE * PLAN_PAGE;
    s->n_staging = (int)n;
    s->staging_slack = s->bounce_bytes && s->staging_piece >= SLACK_FROM ? PLAN_PAGE : 0;
    s->staging_open = true;
    memset(s->staging, 0, sizeof s->staging);
    return OK;
}

void pieces_close_staging(struct store *s) {
    if (!s->device) return;
    s->staging_open = false;
    while (s->pieces_in_flight) s->o.sys->wait(s->o.sys, &s->ready, &s->lock, 0);
    s->device->memory->finish(s->device);
    pins_end(&s->staging_pins);
    s->o.sys->unmap(s->o.sys, LINE_STORE, s->staging_memory, s->staging_bytes);
    s->staging_memory = NULL;
    s->staging_bytes = 0;
    s->n_staging = 0;
}
