/* Candidate sizes of rings and staging: see plan_sizes.h. */
#include "engine/run/plan_sizes.h"

#include "engine/base/arena.h"

/* Largest number of consecutive blocks whose sizes are added up to a candidate size. */
enum { WINDOWS = 16 };
_Static_assert(SIZES_MAX >= SIZES_RING_BLOCKS * WINDOWS + 16, "sizes of a ring");
_Static_assert(SIZES_MAX >= 2 * SIZES_STAGING_BLOCKS * WINDOWS + 16, "sizes of staging");

/* Inserts a byte size in descending order, without duplicates. Returns the new number of sizes. */
static int add_size(uint64_t *sizes, int n, uint64_t bytes) {
    int at = n;
    bytes = align_up(bytes, PLAN_PAGE);
    for (int i = 0; i < n; i++)
        if (sizes[i] == bytes) return n;
    for (; at && sizes[at - 1] < bytes; at--) sizes[at] = sizes[at - 1];
    sizes[at] = bytes;
    return n + 1;
}

/* Sizes of the blocks that pass through a ring or staging buffers, in order. The first n_first blocks pass
 * once; the later blocks pass again in every evaluation. */
struct passage {
    uint64_t bytes[2 * PLAN_BLOCKS_MAX];
    int n_first, n;
};

static uint64_t passage_at(const struct passage *p, int i) {
    int n_later = p->n - p->n_first;
    if (i < p->n) return p->bytes[i];
    return n_later ? p->bytes[p->n_first + (i - p->n_first) % n_later] : 0;
}

static uint64_t window(const struct passage *p, int k) {
    uint64_t sum = 0, most = 0;
    for (int i = 0; i < p->n + k; i++) {
        sum += passage_at(p, i);
        if (i >= k) sum -= passage_at(p, i - k);
        if (sum > most) most = sum;
    }
    return most;
}

/* Adds every sum above `least` of the sizes of 1 to WINDOWS consecutive blocks. */
static int all_windows(const struct passage *p, uint64_t least, uint64_t *sizes, int n_sizes) {
    for (int i = 0; i < p->n; i++) {
        uint64_t sum = 0;
        for (int k = 0; k < WINDOWS; k++) {
            sum += passage_at(p, i + k);
            if (sum > least) n_sizes = add_size(sizes, n_sizes, sum);
        }
    }
    return n_sizes;
}

/* Lists the streamed blocks for a ring: blocks visited once, then the blocks of one evaluation. */
static void ring_passage(const struct block_stream *c, const struct plan_stage *stage, struct passage *p) {
    p->n_first = p->n = 0;
    for (int i = 0; i < c->n; i++) {
        if (plan_is_resident(stage, c->place[i]) || !c->bytes[i]) continue;
        p->n_first += i < c->n_once;
        p->bytes[p->n++] = c->bytes[i];
    }
}

int sizes_of_ring(const struct stage_need *need, const struct block_stream *block_stream,
                  const struct plan_stage *stage, enum sizes_kind kind, uint64_t *sizes) {
    static const int eighths[] = {9, 10, 12, 14}, windows[] = {2, 3, 4, 6, 8};
    struct passage p;
    uint64_t least = plan_least_ring(need, stage);
    int n_sizes = add_size(sizes, 0, least);
    ring_passage(block_stream, stage, &p);
    if (!p.n) return n_sizes;
    if (kind == SIZES_UNTIMED) return add_size(sizes, n_sizes, 2 * least);
    if (kind == SIZES_ALL && p.n <= SIZES_RING_BLOCKS) return all_windows(&p, least, sizes, n_sizes);
    for (int i = 0; i < 4; i++) n_sizes = add_size(sizes, n_sizes, least * (uint64_t)eighths[i] / 8);
    for (int i = 0; i < 5; i++) n_sizes = add_size(sizes, n_sizes, window(&p, windows[i]));
    return n_sizes;
}

/* Lists the blocks that come from the disk through staging; residents once, in the first evaluation. */
static uint64_t staging_passage(const struct block_stream *c, const struct plan_stage *stage,
                                struct passage *p) {
    uint64_t most = 0;
    p->n = 0;
    for (int later = 0; later < 2; later++) {
        p->n_first = p->n;
        for (int i = later ? c->n_once : 0; i < c->n; i++) {
            int place = c->place[i];
            bool resident = plan_is_resident(stage, place);
            if (resident ? later : plan_is_pooled(stage, place)) continue;
            if (!c->bytes[i]) continue;
            p->bytes[p->n++] = c->bytes[i];
            if (c->bytes[i] > most) most = c->bytes[i];
        }
    }
    return most;
}

int sizes_of_staging(const struct run_need *need, int i_stage, const struct block_stream *block_stream,
                     const struct plan_stage *stage, uint64_t *sizes) {
    struct passage p;
    uint64_t least = plan_least_staging(need, stage, i_stage),
             most = staging_passage(block_stream, stage, &p);
    int n_sizes = add_size(sizes, 0, least);
    if (p.n_first <= SIZES_STAGING_BLOCKS) n_sizes = all_windows(&p, least, sizes, n_sizes);
    for (uint64_t i = 1; i <= 4; i *= 2)
        if (i * most > least) n_sizes = add_size(sizes, n_sizes, i * most);
    return n_sizes;
}
