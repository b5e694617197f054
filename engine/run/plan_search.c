/* The search for a stage's plan: of all that it knows, the one that is predicted to be fastest within the
 * budgets.
 *
 * A stage's plans are a list that does not depend on the budget: sets of residents (paced in time for every
 * GRID-th of the stage's bytes; on small stages improved block by block, or simply all sets) times some sizes
 * of the ring (sizes.h), and on a separate device times sets of pooled blocks, paced in the same way or all
 * of them, and sizes of staging. A budget only says which of them may be used. Hence *more memory is never
 * slower*: it can only add to what is chosen from. Stages do not share memory over time, so each is solved by
 * itself; on a separate device one with whole-picture buffers is solved for either place of those.
 *
 * Nothing is stored: the list is gone through twice, once for the best time and once for the cheapest plan
 * that is as good. What cannot be chosen is passed over early, by bounds. They rely on more of anything never
 * being predicted slower: certain for what is simulated, while what is extrapolated broke it in 1 of 9
 * million random pairs, by 2 % (a rhythm of three evaluations).
 *
 * Of plans that are as fast (TIE is for rounding) the one that streams least is taken, of those the one whose
 * ring comes nearest to room for two blocks, and of those the one of the fewest bytes. So memory that is
 * given is used even where computing binds and residents beyond the useful residency (reference/streaming.md,
 * r*) are predicted to buy nothing: rates are assumed or were measured on another day, a bus or a disk may be
 * slower than they say, and then what is resident need not be waited for.
 *
 * Where a rate is unknown there are no times to compare: then fewer streamed bytes are better. */
#include "engine/run/plan_search.h"

#include "engine/run/sizes.h"

#include <string.h>

enum {
    SET = PLAN_BLOCKS_MAX / 64,
    GRID = 256,       /* of a stage's bytes */
    POOLED_GRID = 64, /* where the pool cannot hold all: choosing it multiplies the work */
    POOL_GRID = 16,
    EXACT_POOL = 8,       /* all sets of pooled blocks are tried */
    EXACT_BLOCKS = 16,    /* all sets of residents are tried */
    EXACT_SEPARATE = 12,  /* and with each all sets of pooled blocks */
    EXACT_VISITS = 16,    /* but only where all blocks are few: each costs time in every simulation */
    IMPROVED_BLOCKS = 16, /* paced sets are improved */
    IMPROVE_EVERY = 8,
    ROUNDS = 6,
    DISK_WEIGHT = 8, /* against the bus, where rates are unknown */
};
static const double TIE = 1 + 1e-9;
static const double ROUNDED = 1e-12; /* of sums of the same seconds in another order */
static const double NEVER = 1e300;

/* What decides between plans that are as fast: the first of these that differs, the less the better. */
struct cost {
    uint64_t streamed; /* bytes in an evaluation */
    uint64_t narrow;   /* bytes that the ring lacks for any two streamed blocks: room for what comes late */
    uint64_t bytes;    /* of the device */
};

struct search {
    const struct run_need *run;
    const struct stage_need *need;
    const struct course *course;
    int stage;
    bool timed;                        /* rates are known */
    double picture_traffic;            /* bytes in an evaluation, of pictures on the host */
    bool exact;                        /* all sets of residents and pooled blocks are tried */
    uint64_t device_bytes, host_bytes; /* room for residents and ring; for pool and staging */
    uint64_t worth[SET], worth_bytes;  /* worth residence or pooling */
    int worth_place[PLAN_BLOCKS_MAX], n_worth;
    uint64_t all[SET];
    double tie;       /* how far from the best is as good */
    double best;      /* of the first pass */
    bool choosing;    /* the second pass: what streams least within TIE of the best */
    struct cost cost; /* of the chosen, like its seconds */
    double seconds;
    struct plan_stage chosen;
};

static void add(uint64_t *set, int place) {
    set[place / 64] |= (uint64_t)1 << (place % 64);
}

static void toggle(uint64_t *set, int place) {
    set[place / 64] ^= (uint64_t)1 << (place % 64);
}

static bool plan_search_has(const uint64_t *set, int place) {
    return set[place / 64] >> (place % 64) & 1;
}

static uint64_t plan_search_set_bytes(const struct search *s, const uint64_t *set) {
    uint64_t bytes = 0;
    for (int i = 0; i < s->need->n_blocks; i++)
        if (plan_search_has(set, i)) bytes += s->need->block_bytes[i];
    return bytes;
}

/* ---- one plan ---- */

/* Bytes of an evaluation stand for time; a ring that has no room for two blocks would keep the copier
 * waiting, for at most half the time: we guess an eighth. */
static double untimed(const struct search *s, const struct plan_stage *stage) {
    double bus = 0, disk = 0, least = (double)plan_least_ring(s->need, stage);
    for (int i = 0; i < s->need->n_blocks; i++) {
        if (!s->need->block_repeats[i] || plan_is_resident(stage, i)) continue;
        bus += (double)s->need->block_bytes[i];
        if (s->run->separate && !plan_is_pooled(stage, i)) disk += (double)s->need->block_bytes[i];
    }
    double narrow = least > 0 ? 2 - (double)stage->ring_bytes / least : 0;
    return (bus + DISK_WEIGHT * disk) * (1 + (narrow > 0 ? narrow / 8 : 0)) + s->picture_traffic;
}

/* Slower plans are of no interest. */
static double limit(const struct search *s) {
    return s->choosing ? s->best * s->tie : s->best;
}

/* Of plans that are too slow, maybe less than they take. */
static double score(const struct search *s, const struct plan_stage *stage) {
    double enough = limit(s) * (1 + ROUNDED);
    return s->timed ? course_seconds(s->course, stage, enough) : untimed(s, stage);
}

/* Whether nothing that is not faster than these seconds is of interest: in the first pass, what is as fast as
 * the best is not either. */
static bool too_slow(const struct search *s, double seconds) {
    return s->choosing ? seconds > limit(s) * (1 + ROUNDED) : seconds * (1 + ROUNDED) >= s->best;
}

/* Whether no ring and no staging that fit would do, with these residents and this pool: all room that is left
 * for both, which is tried after the cheap bound. */
static bool hopeless(const struct search *s, const struct plan_stage *stage) {
    struct plan_stage widest = *stage;
    if (!s->timed) return false;
    if (too_slow(s, course_bound(s->course, stage))) return true;
    widest.ring_bytes = s->device_bytes - stage->resident_bytes;
    widest.staging_bytes = s->host_bytes - stage->pool_bytes;
    return too_slow(s, score(s, &widest));
}

/* Whether what no pool can hold is too much for the disk. */
static bool pool_too_small(const struct search *s, const struct plan_stage *stage) {
    uint64_t streamed = stage->streamed_bytes_per_evaluation;
    if (!s->timed || !s->run->separate || streamed <= s->host_bytes) return false;
    double again = (double)(streamed - s->host_bytes) / s->run->rates.disk;
    return too_slow(s, s->course->start.busy[BOUND_DISK] + (s->course->evaluations - 1) * again);
}

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

/* Whether no ring with these residents costs less than what is chosen. Without times it may cost as much:
 * then nothing but the order tells even sets from others. */
static bool dear(const struct search *s, const struct plan_stage *stage) {
    struct plan_stage ideal = *stage;
    uint64_t two = 2 * plan_least_ring(s->need, stage), room = s->device_bytes - stage->resident_bytes;
    ideal.ring_bytes = two < room ? two : room; /* what is narrower costs more */
    struct cost least = cost_of(s, &ideal);
    return s->choosing && compare(&least, &s->cost) >= (s->timed ? 0 : 1);
}

/* Takes note of a plan that fits; of equals the last, because of sets that take as much the last is the most
 * even. Returns its seconds, or less. Bounds only save time: a plan that they rule out would not be chosen.
 */
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

/* ---- rings ---- */

/* Sizes from the largest: where one is too slow, smaller ones are not faster. Returns the seconds of the
 * largest that fits, or less; for none that fits, for ever. */
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

/* ---- pool and staging ---- */

/* Returns true if other pools with these residents need not be tried: in the second pass, if this one does,
 * since they would cost as much. */
static bool try_pool(struct search *s, struct plan_stage *stage, const uint64_t *rings, int n_rings) {
    uint64_t sizes[SIZES_MAX];
    stage->pool_bytes = plan_kept_bytes(s->need, stage->pooled);
    if (stage->pool_bytes + plan_least_staging(s->run, stage, s->stage) > s->host_bytes) return false;
    if (hopeless(s, stage)) return false;
    bool done = false;
    int n = sizes_of_staging(s->run, s->stage, s->course, stage, sizes);
    stage->staging_bytes = 0;
    uint64_t pinnable = plan_pinnable(s->run, stage, s->stage);
    for (int i = 0; i < n; i++) {
        stage->staging_bytes = sizes[i];
        if (stage->pool_bytes + sizes[i] > s->host_bytes) continue;
        if (sizes[i] > pinnable && i + 1 < n) continue; /* the last is the least */
        stage->pinned_bytes = plan_pinnable(s->run, stage, s->stage);
        double seconds = try_rings(s, stage, rings, n_rings);
        if (too_slow(s, seconds) && !s->run->pin_limit_bytes) break; /* less staging leaves more to pin */
        done = s->choosing && !too_slow(s, seconds);
    }
    stage->pinned_bytes = UINT64_MAX;
    return done;
}

/* All sets of pooled blocks, where there are few. */
struct pools {
    struct plan_stage *stage;
    const uint64_t *rings;
    int n_rings, n, place[EXACT_SEPARATE];
};

/* Of the blocks before place i those with so many bytes are chosen; the others are still all pooled. Only
 * what is chosen takes from staging: so what is hopeless here is hopeless with every set that begins like
 * this. */
static bool try_pools_from(struct search *s, struct pools *p, int i, uint64_t bytes) {
    if (i == p->n) return try_pool(s, p->stage, p->rings, p->n_rings);
    uint64_t more = bytes + s->need->block_bytes[p->place[i]];
    if (more <= s->host_bytes && try_pools_from(s, p, i + 1, more)) return true;
    toggle(p->stage->pooled, p->place[i]);
    p->stage->pool_bytes = bytes;
    bool done = !hopeless(s, p->stage) && try_pools_from(s, p, i + 1, bytes);
    toggle(p->stage->pooled, p->place[i]);
    return done;
}

static void try_all_pools(struct search *s, struct plan_stage *stage, const uint64_t *poolable,
                          const uint64_t *rings, int n_rings) {
    struct pools p = {.stage = stage, .rings = rings, .n_rings = n_rings};
    for (int i = 0; i < s->n_worth; i++)
        if (plan_search_has(poolable, s->worth_place[i])) p.place[p.n++] = s->worth_place[i];
    memcpy(stage->pooled, poolable, sizeof stage->pooled);
    try_pools_from(s, &p, 0, 0);
}

static int plan_search_count(const struct search *s, const uint64_t *set) {
    int n = 0;
    for (int i = 0; i < s->n_worth; i++) n += plan_search_has(set, s->worth_place[i]);
    return n;
}

static void try_pools(struct search *s, struct plan_stage *stage, const uint64_t *rings, int n_rings) {
    uint64_t stream[SET], poolable[SET];
    if (!s->run->separate) {
        try_rings(s, stage, rings, n_rings);
        return;
    }
    for (int i = 0; i < SET; i++) {
        stream[i] = s->all[i] & ~stage->resident[i];
        poolable[i] = s->worth[i] & ~stage->resident[i];
    }
    uint64_t bytes = plan_search_set_bytes(s, poolable);
    memcpy(stage->pooled, poolable, sizeof stage->pooled);
    if (try_pool(s, stage, rings, n_rings) || !bytes) return;
    if (s->exact || (s->timed && plan_search_count(s, poolable) <= EXACT_POOL)) {
        try_all_pools(s, stage, poolable, rings, n_rings);
        return;
    }
    for (int i = POOL_GRID - 1; i >= 0; i--) {
        struct spread spread = {stream, poolable, bytes * (uint64_t)i / POOL_GRID, 0};
        course_spread(s->course, &spread, stage->pooled);
        try_pool(s, stage, rings, n_rings);
    }
}

static void try_residents(struct search *s, const uint64_t *set) {
    struct plan_stage stage = {.pinned_bytes = UINT64_MAX}; /* until staging is chosen: no plan is faster */
    uint64_t sizes[SIZES_MAX];
    memcpy(stage.resident, set, sizeof stage.resident);
    stage.resident_bytes = plan_kept_bytes(s->need, set);
    if (stage.resident_bytes + plan_least_ring(s->need, &stage) > s->device_bytes) return;
    for (int i = 0; i < s->n_worth; i++)
        if (!plan_search_has(set, s->worth_place[i]))
            stage.streamed_bytes_per_evaluation += s->need->block_bytes[s->worth_place[i]];
    if (dear(s, &stage)) return;
    memcpy(stage.pooled, s->all, sizeof stage.pooled);
    if (pool_too_small(s, &stage) || hopeless(s, &stage)) return;
    memset(stage.pooled, 0, sizeof stage.pooled);
    enum sizes_kind kind = s->n_worth <= IMPROVED_BLOCKS ? SIZES_ALL : SIZES_SOME;
    if (!s->timed) kind = SIZES_UNTIMED;
    try_pools(s, &stage, sizes, sizes_of_ring(s->need, s->course, &stage, kind, sizes));
}

/* ---- sets of residents ---- */

/* Whether nothing that streams as much as this, and perhaps more, would be chosen. */
static bool fruitless(const struct search *s, const struct plan_stage *stage) {
    if (s->choosing && stage->streamed_bytes_per_evaluation > s->cost.streamed) return true;
    return s->timed && too_slow(s, course_bound(s->course, stage));
}

/* All sets that go on from this one, in which the first i places are not decided yet but still resident;
 * bytes: of the others that are. What has no room, or streams too much already, has no more room and streams
 * no less with any of them. */
static void try_sets_from(struct search *s, struct plan_stage *stage, int i, uint64_t bytes) {
    if (!i) {
        try_residents(s, stage->resident);
        return;
    }
    int place = s->worth_place[i - 1];
    uint64_t more = s->need->block_bytes[place];
    toggle(stage->resident, place);
    stage->streamed_bytes_per_evaluation += more;
    if (!fruitless(s, stage)) try_sets_from(s, stage, i - 1, bytes);
    stage->streamed_bytes_per_evaluation -= more;
    toggle(stage->resident, place);
    if (plan_pages(bytes + more) <= s->device_bytes) try_sets_from(s, stage, i - 1, bytes + more);
}

/* With everything that is worth it resident and all else pooled: no plan streams less. */
static struct plan_stage ideal_of(const struct search *s) {
    struct plan_stage ideal = {0};
    memcpy(ideal.resident, s->worth, sizeof ideal.resident);
    memcpy(ideal.pooled, s->all, sizeof ideal.pooled);
    return ideal;
}

/* Seconds with a ring for any n_ring blocks and everything pooled: what sets are compared by. */
static double plan_search_seconds_of(const struct search *s, const uint64_t *set, int n_ring) {
    struct plan_stage stage = {0};
    memcpy(stage.resident, set, sizeof stage.resident);
    for (int i = 0; i < SET; i++) stage.pooled[i] = s->worth[i] & ~set[i];
    stage.ring_bytes = (uint64_t)n_ring * plan_least_ring(s->need, &stage);
    stage.staging_bytes = PLAN_STAGING;
    return course_pace(s->course, &stage).seconds;
}

/* The best of: one block more, or one for another, within the bytes. Returns false if none is better. */
static bool improve_once(const struct search *s, uint64_t *set, uint64_t most, int n_ring, double *seconds) {
    uint64_t used = plan_search_set_bytes(s, set);
    int best_in = -1, best_out = -1;
    for (int in = 0; in < s->n_worth; in++)
        for (int out = -1; out < s->n_worth; out++) {
            int a = s->worth_place[in], b = out < 0 ? -1 : s->worth_place[out];
            if (plan_search_has(set, a) || (b >= 0 && !plan_search_has(set, b))) continue;
            uint64_t less = b < 0 ? 0 : s->need->block_bytes[b];
            if (used - less + s->need->block_bytes[a] > most) continue;
            toggle(set, a);
            if (b >= 0) toggle(set, b);
            double now = plan_search_seconds_of(s, set, n_ring);
            if (now < *seconds) *seconds = now, best_in = a, best_out = b;
            toggle(set, a);
            if (b >= 0) toggle(set, b);
        }
    if (best_in < 0) return false;
    toggle(set, best_in);
    if (best_out >= 0) toggle(set, best_out);
    return true;
}

static void try_improved(struct search *s, const uint64_t *from, uint64_t most) {
    for (int n_ring = 1; n_ring <= 2; n_ring++) {
        uint64_t set[SET];
        memcpy(set, from, sizeof set);
        double seconds = plan_search_seconds_of(s, set, n_ring);
        for (int i = 0; i < ROUNDS && improve_once(s, set, most, n_ring, &seconds); i++)
            try_residents(s, set);
    }
}

/* How far the stream may run ahead of computing before a block is kept instead: the more, the larger the
 * ring. */
static void try_paced(struct search *s, double allowance) {
    uint64_t set[SET] = {0}, last[SET] = {0};
    bool improves = s->timed && !s->exact && s->n_worth <= IMPROVED_BLOCKS;
    bool pool_chosen = s->run->separate && s->host_bytes < s->worth_bytes + 2 * PLAN_STAGING;
    uint64_t grid = pool_chosen ? POOLED_GRID : GRID; /* the first is a part of the second */
    for (uint64_t i = grid; i > 0; i--) {
        struct spread spread = {s->all, s->worth, s->worth_bytes * i / grid, allowance};
        course_spread(s->course, &spread, set);
        if (memcmp(set, last, sizeof set)) try_residents(s, set);
        if (improves && i % IMPROVE_EVERY == 0) try_improved(s, set, spread.most);
        memcpy(last, set, sizeof last);
    }
}

static void try_sets(struct search *s) {
    uint64_t largest = 0;
    for (int i = 0; i < s->n_worth; i++) {
        uint64_t bytes = s->need->block_bytes[s->worth_place[i]];
        if (bytes > largest) largest = bytes;
    }
    struct plan_stage ideal = ideal_of(s);
    try_residents(s, s->worth);
    if (s->choosing ? !s->cost.streamed : fruitless(s, &ideal)) return;
    for (int i = 0; i <= 2 && s->n_worth; i += s->run->separate ? 2 : 1)
        try_paced(s, 0.4995 * i * (double)largest);
    if (s->n_worth) try_residents(s, (uint64_t[SET]){0});
    if (s->exact) try_sets_from(s, &ideal, s->n_worth, 0);
}

/* ---- stages ---- */

static bool timed(const struct run_need *run, const struct stage_need *need) {
    double compute = 0;
    for (int i = 0; i < need->n_blocks; i++) compute += need->block_seconds[i];
    return compute > 0 && run->rates.disk > 0 && (!run->separate || run->rates.h2d > 0);
}

/* The sooner what does not fit is ruled out. */
static void largest_first(struct search *s) {
    for (int i = 1; i < s->n_worth; i++)
        for (int k = i; k; k--) {
            int *a = &s->worth_place[k - 1], *b = &s->worth_place[k], first = *a;
            if (s->need->block_bytes[*b] <= s->need->block_bytes[*a]) break;
            *a = *b;
            *b = first;
        }
}

static void search_begin(struct search *s, const struct run_need *run, int stage, bool pictures_on_host,
                         struct course *course) {
    memset(s, 0, sizeof *s);
    const struct stage_need *need = &run->stage[stage];
    course_make(need, &run->rates, run->separate, pictures_on_host, course);
    for (int i = 0; pictures_on_host && i < need->n_blocks; i++)
        s->picture_traffic += (double)need->block_picture_bytes[i];
    s->run = run;
    s->need = need;
    s->course = course;
    s->stage = stage;
    s->timed = timed(run, need);
    for (int i = 0; i < need->n_blocks; i++) {
        add(s->all, i);
        bool worth = need->block_repeats[i] && need->block_lasts[i] && need->evaluations > 1;
        if (!worth || !need->block_bytes[i]) continue;
        add(s->worth, i);
        s->worth_bytes += need->block_bytes[i];
        s->worth_place[s->n_worth++] = i;
    }
    int most = run->separate ? EXACT_SEPARATE : EXACT_BLOCKS;
    s->exact = s->timed && s->n_worth <= most && need->n_blocks <= EXACT_VISITS;
    if (s->exact) largest_first(s);
}

double plan_search_bound(const struct run_need *need, int stage) {
    struct search s;
    struct course course;
    search_begin(&s, need, stage, false, &course);
    struct plan_stage ideal = ideal_of(&s);
    return s.timed ? course_bound(&course, &ideal) : 0;
}

/* Runs both passes over the sets; residents: only this one. Writes what it chose to stage. */
static bool search_run(struct search *s, const uint64_t *residents, struct plan_stage *stage) {
    s->best = NEVER;
    s->tie = residents ? 1 : TIE;
    s->cost = (struct cost){.streamed = UINT64_MAX};
    for (int pass = 0; pass < 2; pass++) {
        s->choosing = pass == 1;
        if (residents)
            try_residents(s, residents);
        else
            try_sets(s);
    }
    if (s->cost.streamed == UINT64_MAX) return false;
    memcpy(stage->resident, s->chosen.resident, sizeof stage->resident);
    memcpy(stage->pooled, s->chosen.pooled, sizeof stage->pooled);
    stage->ring_bytes = s->chosen.ring_bytes;
    stage->staging_bytes = s->chosen.staging_bytes;
    return true;
}

/* Residents and ring on the device, pool and staging on the host: in what is left beside the fixed bytes and
 * what other stages keep. Returns the seconds, or what stands for them; NEVER if nothing fits. */
static double search_place(const struct plan_question *q, bool pictures_on_host, struct plan_stage *stage) {
    struct search s;
    struct course course;
    const struct run_need *need = q->need;
    uint64_t fixed_ram = plan_fixed_ram(need, q->stage, pictures_on_host),
             fixed = need->separate ? plan_fixed_vram(need, q->stage, pictures_on_host) : fixed_ram;
    uint64_t device = need->separate ? q->budget->vram_budget_bytes : q->budget->ram_budget_bytes;
    if (fixed + q->kept > device || fixed_ram > q->budget->ram_budget_bytes) return NEVER;
    search_begin(&s, need, q->stage, pictures_on_host, &course);
    s.device_bytes = device - fixed - q->kept;
    s.host_bytes = q->budget->ram_budget_bytes - fixed_ram;
    if (!search_run(&s, q->residents, stage)) return NEVER;
    stage->pictures_on_host = pictures_on_host;
    return s.seconds;
}

/* Of two places that are as fast the device, which frees the bus. */
void plan_search(const struct plan_question *q, struct plan_stage *stage) {
    struct plan_stage host = *stage;
    const struct stage_need *need = &q->need->stage[q->stage];
    bool choice = q->need->separate && need->picture_bytes;
    double seconds = !choice || plan_pictures_may(need, false) ? search_place(q, false, stage) : NEVER;
    if (!choice || !plan_pictures_may(need, true)) return;
    double on_host = search_place(q, true, &host);
    if (on_host * TIE < seconds) *stage = host;
}
