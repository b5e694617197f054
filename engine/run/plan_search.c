/* Searches for the plan of one stage that is predicted to be fastest within the budgets.
 * The candidates do not depend on the budgets: sets of residents times ring sizes, and on a
 * separate device times sets of pooled blocks (kept in pinned host memory) and sizes of staging buffers. Sets
 * of residents are evenly spread (block_stream_thin), one for each of GRID sizes; on small stages they are
 * improved block by block, or all sets are tried. Sets of pooled blocks are chosen in the same way. A budget
 * only excludes candidates, hence *more memory is never slower*. Stages hold memory at different times, so
 * each is solved alone. On a separate device a stage with full-frame buffers is solved for both placements.
 * Two passes enumerate the candidates without storing them: the first finds the best time, the second the
 * cheapest plan (struct cost) of that time. Lower bounds of the time skip candidates early. They assume that
 * more of a resource is never predicted slower. Simulated times obey this; extrapolated times violated it in
 * 1 of 9 million random pairs, by 2 %. Among plans of equal time (TIE allows for rounding) the one that
 * streams least wins; then the one whose ring is closest to space for two blocks; then the one with the
 * fewest bytes. So memory is used even where computation is predicted to be the limit: rates may be wrong,
 * and residents need no waiting if bus or disk is slower than assumed. If a rate is unknown, fewer streamed
 * bytes are better. */
#include "engine/run/plan.h"

#include <string.h>

enum {
    SET = PLAN_BLOCKS_MAX / 64,
    GRID = 256, /* number of total sizes of residents that are tried */
    /* Replaces GRID on a discrete GPU if host memory cannot hold all blocks that may be resident. */
    POOLED_GRID = 64,
    POOL_GRID = 16,
    EXACT_POOL = 8,      /* all sets of pooled blocks are tried if at most this many blocks may be pooled */
    EXACT_BLOCKS = 16,   /* all sets of residents are tried if at most this many blocks may be resident */
    EXACT_SEPARATE = 12, /* replaces EXACT_BLOCKS on a discrete GPU */
    EXACT_VISITS = 16,   /* all sets of residents are tried only in stages with at most this many blocks */
    /* Sets of residents are improved block by block if at most this many blocks may be resident. */
    IMPROVED_BLOCKS = 16,
    IMPROVE_EVERY = 8,
    ROUNDS = 6,
    DISK_WEIGHT = 8, /* a byte from the disk counts as 8 bytes over the bus if rates are unknown */
    /* Candidate sizes of ring and staging are sums of consecutive block sizes, because only the number of
     * consecutive blocks that fit matters: all sums of 1 to WINDOWS blocks, if at most this many blocks pass
     * the ring or staging. */
    WINDOWS = 16,
    SIZES_RING_BLOCKS = 16,
    SIZES_STAGING_BLOCKS = 12,
    SIZES_MAX = 2 * SIZES_STAGING_BLOCKS * WINDOWS + 16,
};
_Static_assert(SIZES_MAX >= SIZES_RING_BLOCKS * WINDOWS + 16, "sizes of a ring");
static const double TIE = 1 + 1e-9;
static const double ROUNDED = 1e-12; /* relative rounding error of a sum of times in another order */
static const double NEVER = 1e300;

/* Secondary cost of a plan, compared field by field among plans of equal time. Less is better. */
struct cost {
    uint64_t streamed; /* streamed bytes per evaluation */
    uint64_t narrow;   /* bytes by which the ring is too small for two blocks of the largest streamed size */
    uint64_t bytes;    /* device bytes of residents and ring */
};

struct search {
    const struct run_need *run;
    const struct stage_need *need;
    const struct block_stream *block_stream;
    int stage;
    bool timed;             /* rates are known */
    double picture_traffic; /* bytes per evaluation to and from full-frame buffers in host memory */
    bool exact;             /* all sets of residents and pooled blocks are tried */
    uint64_t device_bytes, host_bytes; /* device bytes left for residents and ring; host bytes left for pooled
                                          blocks and staging */
    /* Bit set of the blocks that may be resident or pooled: model blocks visited in every evaluation. */
    uint64_t eligible[SET], eligible_bytes;
    int eligible_place[PLAN_BLOCKS_MAX], n_eligible;
    uint64_t all[SET];
    double most_loads; /* largest number of loads of a block in an evaluation, at least 1 */
    double tie;        /* factor within which times count as equal */
    double best;       /* seconds of the fastest plan, found by the first pass */
    bool choosing;     /* second pass: choose the cheapest plan within `tie` of the best */
    struct cost cost;  /* cost of the chosen plan */
    double seconds;
    struct plan_stage chosen;
};

/* Sum of the sizes of a set of blocks, without padding. */
static uint64_t set_bytes(const struct search *s, const uint64_t *set) {
    uint64_t bytes = 0;
    for (int i = 0; i < s->need->n_blocks; i++)
        if (blocks_has(set, i)) bytes += s->need->block_bytes[i];
    return bytes;
}

/* Predicted seconds above which the search rejects a plan. */
static double limit(const struct search *s) {
    return s->choosing ? s->best * s->tie : s->best;
}

/* Predicted seconds of a plan; too low for some plans that are rejected anyway. If rates are unknown, the
 * substitute for seconds is bytes per evaluation: a ring without space for two blocks delays the copier by at
 * most half of the time, and an eighth is assumed. */
static double score(const struct search *s, const struct plan_stage *stage) {
    if (s->timed) return block_stream_seconds(s->block_stream, stage, limit(s) * (1 + ROUNDED));
    double bus = 0, disk = 0, least = (double)plan_least_ring(s->need, stage);
    for (int i = 0; i < s->need->n_blocks; i++) {
        if (!s->need->block_repeats[i] || plan_is_resident(stage, i)) continue;
        double bytes = (double)stage_streamed_bytes(s->need, i);
        bus += bytes;
        if (s->run->separate && !plan_is_pooled(stage, i)) disk += bytes;
    }
    double narrow = least > 0 ? 2 - (double)stage->ring_bytes / least : 0;
    return (bus + DISK_WEIGHT * disk) * (1 + (narrow > 0 ? narrow / 8 : 0)) + s->picture_traffic;
}

/* True if the search rejects a plan of these predicted seconds. The first pass also rejects plans as fast as
 * the best. */
static bool too_slow(const struct search *s, double seconds) {
    return s->choosing ? seconds > limit(s) * (1 + ROUNDED) : seconds * (1 + ROUNDED) >= s->best;
}

/* True if no plan with the same residents and pooled blocks can be better, for any ring and staging that fit.
 * Tests a cheap lower bound first, then ring and staging that fill the remaining memory. */
static bool cannot_fit_better(const struct search *s, const struct plan_stage *stage) {
    struct plan_stage widest = *stage;
    if (!s->timed) return false;
    if (too_slow(s, block_stream_bound(s->block_stream, stage))) return true;
    widest.ring_bytes = s->device_bytes - stage->resident_bytes;
    widest.staging_bytes = s->host_bytes - stage->pool_bytes;
    return too_slow(s, score(s, &widest));
}

/* Compares two costs as qsort does: negative if `a` is less. */
static int compare(const struct cost *a, const struct cost *b) {
    if (a->streamed != b->streamed) return a->streamed < b->streamed ? -1 : 1;
    if (a->narrow != b->narrow) return a->narrow < b->narrow ? -1 : 1;
    return a->bytes == b->bytes ? 0 : a->bytes < b->bytes ? -1 : 1;
}

static struct cost cost_of(const struct search *s, const struct plan_stage *stage) {
    uint64_t two = 2 * plan_least_ring(s->need, stage);
    return (struct cost){.streamed = stage->streamed_bytes_per_evaluation,
                         .narrow = two > stage->ring_bytes ? two - stage->ring_bytes : 0,
                         .bytes = stage->resident_bytes + stage->ring_bytes};
}

/* Evaluates a plan that fits the budgets. Of equal plans the last one tried wins, because later sets of
 * residents are spread more evenly. Returns the plan's seconds, or less for a plan that is skipped because it
 * cannot be chosen. */
static double try_plan(struct search *s, const struct plan_stage *stage) {
    struct cost cost = cost_of(s, stage);
    int dearer = s->choosing ? compare(&cost, &s->cost) : -1;
    if (dearer > 0) return 0;
    double seconds = score(s, stage);
    if (seconds > limit(s)) return seconds;
    if (!s->choosing) {
        s->best = seconds;
    } else if (dearer < 0 || seconds <= s->seconds) {
        s->cost = cost;
        s->seconds = seconds;
        s->chosen = *stage;
    }
    return seconds;
}

/* Tries ring sizes, largest first, until one is too slow: smaller rings are no faster. Returns the seconds
 * with the largest ring that fits (or less); NEVER if none fits. */
static double try_rings(struct search *s, struct plan_stage *stage, const uint64_t *sizes, int n) {
    double fastest = NEVER;
    for (int i = 0; i < n; i++) {
        stage->ring_bytes = sizes[i];
        if (stage->resident_bytes + sizes[i] > s->device_bytes) continue;
        double seconds = try_plan(s, stage);
        if (fastest == NEVER) fastest = seconds;
        if (too_slow(s, seconds)) break;
    }
    return fastest;
}

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

/* Size of the block that passes a ring or staging buffers as number i; the sequence repeats after p->n
 * blocks. */
static uint64_t passage_at(const struct passage *p, int i) {
    int n_later = p->n - p->n_first;
    if (i < p->n) return p->bytes[i];
    return n_later ? p->bytes[p->n_first + (i - p->n_first) % n_later] : 0;
}

/* Adds to `sizes` every sum above `least` of the sizes of 1 to WINDOWS consecutive blocks. */
static int add_all_sums(const struct passage *p, uint64_t least, uint64_t *sizes, int n_sizes) {
    for (int i = 0; i < p->n; i++) {
        uint64_t sum = 0;
        for (int k = 0; k < WINDOWS; k++) {
            sum += passage_at(p, i + k);
            if (sum > least) n_sizes = add_size(sizes, n_sizes, sum);
        }
    }
    return n_sizes;
}

/* Candidate ring sizes, from space for any 8 consecutive blocks down to the least ring, which holds the
 * largest block. Writes whole-page bytes, largest first, to `sizes` (SIZES_MAX). Returns their number.
 * Without rates the candidates are space for one block and for two blocks. With all_sums and at most
 * SIZES_RING_BLOCKS streamed blocks they are all sums of consecutive blocks. */
static int ring_sizes(const struct search *s, const struct plan_stage *stage, bool all_sums,
                      uint64_t *sizes) {
    static const int eighths[] = {9, 10, 12, 14}, windows[] = {2, 3, 4, 6, 8};
    const struct block_stream *c = s->block_stream;
    uint64_t least = plan_least_ring(s->need, stage);
    int n_sizes = add_size(sizes, 0, least);
    struct passage p;
    p.n_first = p.n = 0;
    for (int i = 0; i < c->n; i++) {
        if (plan_is_resident(stage, c->place[i]) || !c->bytes[i]) continue;
        p.n_first += i < c->n_once;
        p.bytes[p.n++] = c->bytes[i];
    }
    if (!p.n) return n_sizes;
    if (!s->timed) return add_size(sizes, n_sizes, 2 * least);
    if (all_sums && p.n <= SIZES_RING_BLOCKS) return add_all_sums(&p, least, sizes, n_sizes);
    for (int i = 0; i < 4; i++) n_sizes = add_size(sizes, n_sizes, least * (uint64_t)eighths[i] / 8);
    for (int w = 0; w < 5; w++) {
        uint64_t sum = 0, most = 0; /* largest size of windows[w] consecutive blocks */
        for (int i = 0; i < p.n + windows[w]; i++) {
            sum += passage_at(&p, i);
            if (i >= windows[w]) sum -= passage_at(&p, i - windows[w]);
            if (sum > most) most = sum;
        }
        n_sizes = add_size(sizes, n_sizes, most);
    }
    return n_sizes;
}

/* Candidate staging sizes; output as in ring_sizes. Larger staging keeps the disk busy while the bus copies
 * pooled blocks. */
static int staging_sizes(const struct search *s, const struct plan_stage *stage, uint64_t *sizes) {
    const struct block_stream *c = s->block_stream;
    /* Blocks that pass from the disk through staging; in the first evaluation also residents. */
    struct passage p;
    uint64_t least = plan_least_staging(s->run, stage, s->stage), most = 0;
    p.n = 0;
    for (int later = 0; later < 2; later++) {
        p.n_first = p.n;
        for (int i = later ? c->n_once : 0; i < c->n; i++) {
            int place = c->place[i];
            bool resident = plan_is_resident(stage, place);
            if (resident ? later : plan_is_pooled(stage, place)) continue;
            if (!c->bytes[i]) continue;
            p.bytes[p.n++] = c->bytes[i];
            if (c->bytes[i] > most) most = c->bytes[i];
        }
    }
    int n_sizes = add_size(sizes, 0, least);
    if (p.n_first <= SIZES_STAGING_BLOCKS) n_sizes = add_all_sums(&p, least, sizes, n_sizes);
    for (uint64_t i = 1; i <= 4; i *= 2)
        if (i * most > least) n_sizes = add_size(sizes, n_sizes, i * most);
    return n_sizes;
}

/* Tries one set of pooled blocks. Returns true if no other set of pooled blocks need be tried with these
 * residents: in the second pass after a success, because all sets of pooled blocks have equal cost. */
static bool try_pool(struct search *s, struct plan_stage *stage, const uint64_t *rings, int n_rings) {
    uint64_t sizes[SIZES_MAX];
    stage->pool_bytes = plan_blocks_bytes(s->need, stage->pooled);
    if (stage->pool_bytes + plan_least_staging(s->run, stage, s->stage) > s->host_bytes) return false;
    if (cannot_fit_better(s, stage)) return false;
    bool done = false;
    int n = staging_sizes(s, stage, sizes);
    stage->staging_bytes = 0;
    uint64_t pinnable = plan_pinnable(s->run, stage, s->stage);
    for (int i = 0; i < n; i++) {
        stage->staging_bytes = sizes[i];
        if (stage->pool_bytes + sizes[i] > s->host_bytes) continue;
        if (sizes[i] > pinnable && i + 1 < n)
            continue; /* skips staging sizes that cannot be pinned, except the least */
        stage->pinned_bytes = plan_pinnable(s->run, stage, s->stage);
        double seconds = try_rings(s, stage, rings, n_rings);
        if (too_slow(s, seconds) && !s->run->pin_limit_bytes)
            break; /* smaller staging buffers are worth trying only if pinned memory is limited */
        done = s->choosing && !too_slow(s, seconds);
    }
    stage->pinned_bytes = UINT64_MAX;
    return done;
}

struct pools {
    struct plan_stage *stage;
    const uint64_t *rings;
    int n_rings, n, place[EXACT_SEPARATE];
};

/* Tries all sets of pooled blocks that agree on the first i blocks, called decided. bytes: size of the
 * decided blocks that are pooled. The lower bound counts undecided blocks as pooled, so a bound that is too
 * slow excludes all these sets. */
static bool try_pools_from(struct search *s, struct pools *p, int i, uint64_t bytes) {
    if (i == p->n) return try_pool(s, p->stage, p->rings, p->n_rings);
    uint64_t more = bytes + s->need->block_bytes[p->place[i]];
    if (more <= s->host_bytes && try_pools_from(s, p, i + 1, more)) return true;
    blocks_toggle(p->stage->pooled, p->place[i]);
    p->stage->pool_bytes = bytes;
    bool done = !cannot_fit_better(s, p->stage) && try_pools_from(s, p, i + 1, bytes);
    blocks_toggle(p->stage->pooled, p->place[i]);
    return done;
}

/* Tries sets of pooled blocks for these residents. A device that shares the host's memory has no pool. */
static void try_pools(struct search *s, struct plan_stage *stage, const uint64_t *rings, int n_rings) {
    uint64_t stream[SET], poolable[SET];
    struct pools p = {.stage = stage, .rings = rings, .n_rings = n_rings};
    if (!s->run->separate) {
        try_rings(s, stage, rings, n_rings);
        return;
    }
    for (int i = 0; i < SET; i++) {
        stream[i] = s->all[i] & ~stage->resident[i];
        poolable[i] = s->eligible[i] & ~stage->resident[i];
    }
    uint64_t bytes = set_bytes(s, poolable);
    memcpy(stage->pooled, poolable, sizeof stage->pooled);
    if (try_pool(s, stage, rings, n_rings) || !bytes) return;
    int n = 0;
    for (int i = 0; i < s->n_eligible; i++) n += blocks_has(poolable, s->eligible_place[i]);
    if (s->exact || (s->timed && n <= EXACT_POOL)) {
        for (int i = 0; i < s->n_eligible; i++)
            if (blocks_has(poolable, s->eligible_place[i])) p.place[p.n++] = s->eligible_place[i];
        memcpy(stage->pooled, poolable, sizeof stage->pooled);
        try_pools_from(s, &p, 0, 0);
        return;
    }
    for (int i = POOL_GRID - 1; i >= 0; i--) {
        struct thinning thinning = {stream, poolable, bytes * (uint64_t)i / POOL_GRID, 0};
        block_stream_thin(s->block_stream, &thinning, stage->pooled);
        try_pool(s, stage, rings, n_rings);
    }
}

/* Tries all plans with this set of residents, unless a lower bound excludes them. */
static void try_residents(struct search *s, const uint64_t *set) {
    /* all memory counts as pinned until the size of staging is chosen: gives a lower bound of the time */
    struct plan_stage stage = {.pinned_bytes = UINT64_MAX};
    uint64_t sizes[SIZES_MAX], streamed = 0, least_ring;
    memcpy(stage.resident, set, sizeof stage.resident);
    stage.resident_bytes = plan_blocks_bytes(s->need, set);
    least_ring = plan_least_ring(s->need, &stage);
    if (stage.resident_bytes + least_ring > s->device_bytes) return;
    for (int i = 0; i < s->n_eligible; i++)
        if (!blocks_has(set, s->eligible_place[i]))
            streamed += stage_streamed_bytes(s->need, s->eligible_place[i]);
    stage.streamed_bytes_per_evaluation = streamed;
    if (s->choosing) {
        /* Skips these residents if no ring makes them cheaper than the chosen plan. Without known rates, sets
         * of equal cost are tried too, because later sets are spread more evenly. */
        struct plan_stage ideal = stage;
        uint64_t capacity = s->device_bytes - stage.resident_bytes;
        ideal.ring_bytes = 2 * least_ring < capacity ? 2 * least_ring : capacity; /* the cheapest ring */
        struct cost least = cost_of(s, &ideal);
        if (compare(&least, &s->cost) >= (s->timed ? 0 : 1)) return;
    }
    memcpy(stage.pooled, s->all, sizeof stage.pooled);
    /* Most bytes that the pool can serve in an evaluation. */
    double pooled = (double)s->host_bytes * s->most_loads;
    if (s->timed && s->run->separate && (double)streamed > pooled) {
        /* Blocks that exceed host memory are read from the disk in every evaluation, whatever the pool holds.
         */
        double again = ((double)streamed - pooled) / s->run->rates.disk;
        const struct block_stream *c = s->block_stream;
        if (too_slow(s, c->start.busy[BOUND_DISK] + (c->evaluations - 1) * again)) return;
    }
    if (cannot_fit_better(s, &stage)) return;
    memset(stage.pooled, 0, sizeof stage.pooled);
    try_pools(s, &stage, sizes, ring_sizes(s, &stage, s->n_eligible <= IMPROVED_BLOCKS, sizes));
}

/* True if no plan that streams at least as many bytes as this one would be chosen. */
static bool cannot_improve(const struct search *s, const struct plan_stage *stage) {
    if (s->choosing && stage->streamed_bytes_per_evaluation > s->cost.streamed) return true;
    return s->timed && too_slow(s, block_stream_bound(s->block_stream, stage));
}

/* Tries all sets of residents that agree on all but the first i eligible blocks (undecided, counted as
 * resident); bytes: size of the decided residents. All these sets are skipped if the decided residents exceed
 * memory, or if the decided blocks that stream are too many bytes. */
static void try_sets_from(struct search *s, struct plan_stage *stage, int i, uint64_t bytes) {
    if (!i) {
        try_residents(s, stage->resident);
        return;
    }
    int place = s->eligible_place[i - 1];
    uint64_t more = s->need->block_bytes[place], streamed = stage_streamed_bytes(s->need, place);
    blocks_toggle(stage->resident, place);
    stage->streamed_bytes_per_evaluation += streamed;
    if (!cannot_improve(s, stage)) try_sets_from(s, stage, i - 1, bytes);
    stage->streamed_bytes_per_evaluation -= streamed;
    blocks_toggle(stage->resident, place);
    if (plan_pages(bytes + more) <= s->device_bytes) try_sets_from(s, stage, i - 1, bytes + more);
}

/* Returns a plan with all eligible blocks resident and all other blocks in the host pool: no plan streams
 * less. */
static struct plan_stage ideal_of(const struct search *s) {
    struct plan_stage ideal = {0};
    memcpy(ideal.resident, s->eligible, sizeof ideal.resident);
    memcpy(ideal.pooled, s->all, sizeof ideal.pooled);
    return ideal;
}

/* Predicted seconds of the stage with this set of residents, a ring for n_ring blocks, and all other blocks
 * in the host pool. */
static double seconds_of(const struct search *s, const uint64_t *set, int n_ring) {
    struct plan_stage stage = {0};
    memcpy(stage.resident, set, sizeof stage.resident);
    for (int i = 0; i < SET; i++) stage.pooled[i] = s->eligible[i] & ~set[i];
    stage.ring_bytes = (uint64_t)n_ring * plan_least_ring(s->need, &stage);
    stage.staging_bytes = PLAN_STAGING;
    return block_stream_timing(s->block_stream, &stage).seconds;
}

/* Adds or exchanges one block in a set of residents: the change that saves most time within `most` bytes.
 * Returns false if no change saves time. */
static bool improve_once(const struct search *s, uint64_t *set, uint64_t most, int n_ring, double *seconds) {
    uint64_t used = set_bytes(s, set);
    int best_in = -1, best_out = -1;
    for (int in = 0; in < s->n_eligible; in++)
        for (int out = -1; out < s->n_eligible; out++) {
            int a = s->eligible_place[in], b = out < 0 ? -1 : s->eligible_place[out];
            if (blocks_has(set, a) || (b >= 0 && !blocks_has(set, b))) continue;
            uint64_t less = b < 0 ? 0 : s->need->block_bytes[b];
            if (used - less + s->need->block_bytes[a] > most) continue;
            blocks_toggle(set, a);
            if (b >= 0) blocks_toggle(set, b);
            double now = seconds_of(s, set, n_ring);
            if (now < *seconds) *seconds = now, best_in = a, best_out = b;
            blocks_toggle(set, a);
            if (b >= 0) blocks_toggle(set, b);
        }
    if (best_in < 0) return false;
    blocks_toggle(set, best_in);
    if (best_out >= 0) blocks_toggle(set, best_out);
    return true;
}

/* Tries evenly spread sets of residents, from the largest. allowance: bytes by which streaming may exceed an
 * even rate over computation time before a block becomes resident; larger rings permit more. */
static void try_paced(struct search *s, double allowance) {
    uint64_t set[SET] = {0}, last[SET] = {0};
    bool improves = s->timed && !s->exact && s->n_eligible <= IMPROVED_BLOCKS;
    bool pool_chosen = s->run->separate && s->host_bytes < s->eligible_bytes + 2 * PLAN_STAGING;
    uint64_t grid = pool_chosen ? POOLED_GRID : GRID;
    for (uint64_t i = grid; i > 0; i--) {
        struct thinning thinning = {s->all, s->eligible, s->eligible_bytes * i / grid, allowance};
        block_stream_thin(s->block_stream, &thinning, set);
        if (memcmp(set, last, sizeof set)) try_residents(s, set);
        for (int n_ring = 1; n_ring <= 2 && improves && i % IMPROVE_EVERY == 0; n_ring++) {
            uint64_t better[SET];
            memcpy(better, set, sizeof better);
            double seconds = seconds_of(s, better, n_ring);
            for (int k = 0; k < ROUNDS && improve_once(s, better, thinning.most, n_ring, &seconds); k++)
                try_residents(s, better);
        }
        memcpy(last, set, sizeof last);
    }
}

/* Tries all candidate sets of residents in one pass. */
static void try_sets(struct search *s) {
    uint64_t largest = 0;
    for (int i = 0; i < s->n_eligible; i++) {
        uint64_t bytes = s->need->block_bytes[s->eligible_place[i]];
        if (bytes > largest) largest = bytes;
    }
    struct plan_stage ideal = ideal_of(s);
    try_residents(s, s->eligible);
    if (s->choosing ? !s->cost.streamed : cannot_improve(s, &ideal)) return;
    for (int i = 0; i <= 2 && s->n_eligible; i += s->run->separate ? 2 : 1)
        try_paced(s, 0.4995 * i * (double)largest);
    if (s->n_eligible) try_residents(s, (uint64_t[SET]){0});
    if (s->exact) try_sets_from(s, &ideal, s->n_eligible, 0);
}

/* Prepares the search of one stage with one placement of full-frame buffers; fills *block_stream. */
static void search_begin(struct search *s, const struct run_need *run, int stage, bool pictures_on_host,
                         struct block_stream *block_stream) {
    const struct stage_need *need = &run->stage[stage];
    double compute = 0;
    memset(s, 0, sizeof *s);
    s->run = run;
    s->need = need;
    s->block_stream = block_stream;
    s->stage = stage;
    s->most_loads = 1;
    block_stream_make(need, &run->rates, run->separate, pictures_on_host, block_stream);
    for (int i = 0; i < need->n_blocks; i++) {
        compute += need->block_seconds[i];
        if (pictures_on_host) s->picture_traffic += (double)need->block_picture_bytes[i];
        blocks_set(s->all, i, true);
        if (1 + (double)need->block_extra_loads[i] > s->most_loads)
            s->most_loads = 1 + (double)need->block_extra_loads[i];
        bool eligible = need->block_repeats[i] && need->block_keepable[i] && need->evaluations > 1;
        if (!eligible || !need->block_bytes[i]) continue;
        blocks_set(s->eligible, i, true);
        s->eligible_bytes += need->block_bytes[i];
        s->eligible_place[s->n_eligible++] = i;
    }
    s->timed = compute > 0 && run->rates.disk > 0 && (!run->separate || run->rates.h2d > 0);
    int most = run->separate ? EXACT_SEPARATE : EXACT_BLOCKS;
    s->exact = s->timed && s->n_eligible <= most && need->n_blocks <= EXACT_VISITS;
    /* Sorts blocks by size, largest first, so that sets that do not fit are excluded early. */
    for (int i = 1; i < s->n_eligible && s->exact; i++)
        for (int k = i; k; k--) {
            int *x = &s->eligible_place[k - 1], *y = &s->eligible_place[k], first = *x;
            if (need->block_bytes[*y] <= need->block_bytes[*x]) break;
            *x = *y;
            *y = first;
        }
}

double plan_search_bound(const struct run_need *need, int stage) {
    struct search s;
    struct block_stream block_stream;
    search_begin(&s, need, stage, false, &block_stream);
    struct plan_stage ideal = ideal_of(&s);
    return s.timed ? block_stream_bound(&block_stream, &ideal) : 0;
}

/* Searches a stage's plan with one placement of full-frame buffers, in the memory that fixed bytes and other
 * stages leave. Returns the plan's seconds (without rates see `score`); NEVER if no plan fits. */
static double search_place(const struct plan_search_input *q, bool pictures_on_host,
                           struct plan_stage *stage) {
    struct search s;
    struct block_stream block_stream;
    const struct run_need *need = q->need;
    uint64_t fixed_ram = plan_fixed_ram(need, q->stage, pictures_on_host),
             fixed = need->separate ? plan_fixed_vram(need, q->stage, pictures_on_host) : fixed_ram;
    uint64_t device = need->separate ? q->budget->vram_budget_bytes : q->budget->ram_budget_bytes;
    if (fixed + q->other_stages_bytes > device || fixed_ram > q->budget->ram_budget_bytes) return NEVER;
    search_begin(&s, need, q->stage, pictures_on_host, &block_stream);
    s.device_bytes = device - fixed - q->other_stages_bytes;
    s.host_bytes = q->budget->ram_budget_bytes - fixed_ram;
    s.best = NEVER;
    s.tie = q->residents ? 1 : TIE;
    s.cost = (struct cost){.streamed = UINT64_MAX};
    for (int pass = 0; pass < 2; pass++) {
        s.choosing = pass == 1;
        if (q->residents)
            try_residents(&s, q->residents);
        else
            try_sets(&s);
    }
    if (s.cost.streamed == UINT64_MAX) return NEVER;
    memcpy(stage->resident, s.chosen.resident, sizeof stage->resident);
    memcpy(stage->pooled, s.chosen.pooled, sizeof stage->pooled);
    stage->ring_bytes = s.chosen.ring_bytes;
    stage->staging_bytes = s.chosen.staging_bytes;
    stage->pictures_on_host = pictures_on_host;
    return s.seconds;
}

/* If both placements of full-frame buffers are equally fast, device memory wins: it leaves the bus free. */
void plan_search(const struct plan_search_input *q, struct plan_stage *stage) {
    struct plan_stage host = *stage;
    const struct stage_need *need = &q->need->stage[q->stage];
    bool choice = q->need->separate && need->picture_bytes;
    double seconds = !choice || plan_pictures_may(need, false) ? search_place(q, false, stage) : NEVER;
    if (!choice || !plan_pictures_may(need, true)) return;
    double on_host = search_place(q, true, &host);
    if (on_host * TIE < seconds) *stage = host;
}
