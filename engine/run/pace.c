/* Pace: see pace.h. */
#include "engine/run/pace.h"

#include <math.h>
#include <string.h>

/* Evaluations grow alike after two or three; the mean of the last two also covers a rhythm of two. */
enum { SIMULATED = 6, VISITS_MAX = PLAN_BLOCKS_MAX * (SIMULATED + 1) };

static double larger(double a, double b) {
    return a > b ? a : b;
}

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static double pace_seconds_of(uint64_t bytes, double rate) {
    return rate > 0 ? (double)bytes / rate : 0;
}

static bool in_set(const uint64_t *set, int place) {
    return set[place / 64] >> (place % 64) & 1;
}

/* ---- loads ---- */

struct load course_first_load(const struct course *c) {
    struct load load = {{0}};
    for (int i = 0; i < c->n; i++) {
        load.busy[BOUND_COMPUTE] += c->compute[i];
        load.busy[BOUND_BUS] += c->bus[i];
        load.busy[BOUND_DISK] += c->disk[i];
    }
    return load;
}

struct load course_later_load(const struct course *c, const struct plan_stage *stage) {
    struct load load = {{0}};
    for (int i = c->n_once; i < c->n; i++) {
        load.busy[BOUND_COMPUTE] += c->compute[i];
        if (plan_is_resident(stage, c->place[i])) continue;
        load.busy[BOUND_BUS] += c->bus[i];
        if (!c->separate || !plan_is_pooled(stage, c->place[i])) load.busy[BOUND_DISK] += c->disk[i];
    }
    return load;
}

static double largest_load(const struct load *load) {
    return larger(load->busy[BOUND_COMPUTE], larger(load->busy[BOUND_BUS], load->busy[BOUND_DISK]));
}

/* ---- simulation ---- */

/* Bytes that are held in the order of the visits, and given back in it. */
struct held {
    int visit[VISITS_MAX], first, last;
    uint64_t bytes;
};

struct simulation {
    const struct course *c;
    const struct plan_stage *stage;
    int visit;                 /* the one at hand */
    int evaluation_start;      /* the first visit of its evaluation */
    double end[VISITS_MAX];    /* of computing */
    double copied[VISITS_MAX]; /* when the last byte was there */
    struct held ring, staging;
    uint64_t moved[VISITS_MAX]; /* bytes of the visit's block */
    double bus_free, disk_free, host_free;
    uint64_t windowed[PLAN_BLOCKS_MAX / 64]; /* by place: in the pool, and not all pinned */
};

static double end_of(const struct simulation *s, int visit) {
    return visit < 0 ? 0 : s->end[visit];
}

/* When the visit at hand may begin to move: the plan's fields that hold the copier back. */
static double gate(const struct simulation *s) {
    double from = 0;
    if (s->stage->depth) from = end_of(s, s->visit - s->stage->depth - 1);
    if (s->stage->no_wrap) from = larger(from, end_of(s, s->evaluation_start - 1));
    if (s->stage->waits) from = larger(from, end_of(s, s->visit - 1));
    return from;
}

/* When there is room for so many bytes more, in a store of limit bytes that visits leave at freed[visit]. */
static double wait_for_room(struct simulation *s, struct held *held, const double *freed, uint64_t limit) {
    double from = 0;
    uint64_t bytes = smaller(s->moved[s->visit], limit); /* what is larger passes alone */
    while (held->bytes + bytes > limit && held->first < held->last) {
        int oldest = held->visit[held->first++];
        held->bytes -= smaller(s->moved[oldest], limit);
        from = freed[oldest]; /* in order, so the last is the latest */
    }
    held->visit[held->last++] = s->visit;
    held->bytes += bytes;
    return from;
}

/* What a block comes from before the bus: the disk, or the host's own memory. */
struct spring {
    double seconds, rate;
    double *free;
};

/* From there through staging (or from the disk into the pool) and over the bus, both at once: the bus begins
 * when the first piece is there and ends a piece after the other. A block that is larger than staging waits
 * for the bus with what does not fit. */
static double spring_then_bus(struct simulation *s, int i, struct spring spring, bool staged, double from,
                              double bus_from) {
    const struct course *c = s->c;
    uint64_t bytes = c->bytes[i], limit = s->stage->staging_bytes;
    double piece = larger(1, (double)bytes / PLAN_STAGED_PIECE);
    if (staged) from = larger(from, wait_for_room(s, &s->staging, s->copied, limit));
    double began = larger(*spring.free, from), bus_began = larger(bus_from, began);
    double read = began + spring.seconds;
    if (staged && bytes > limit) read = larger(read, bus_began + pace_seconds_of(bytes - limit, spring.rate));
    *spring.free = read;
    return larger(bus_began + c->bus[i], read + c->bus[i] / piece);
}

static struct spring spring_of(struct simulation *s, int i, bool in_pool) {
    const struct course *c = s->c;
    return in_pool ? (struct spring){c->host[i], c->host_rate, &s->host_free}
                   : (struct spring){c->disk[i], c->disk_rate, &s->disk_free};
}

/* When the bytes of the visit at hand are on the device. */
static double arrival(struct simulation *s, int i, bool first) {
    const struct course *c = s->c;
    bool resident = plan_is_resident(s->stage, c->place[i]);
    bool pooled = !resident && plan_is_pooled(s->stage, c->place[i]);
    bool windowed = pooled && in_set(s->windowed, c->place[i]);
    if (!c->bytes[i] || (resident && !first)) return 0;
    s->moved[s->visit] = c->bytes[i];
    double from = gate(s), bus_from = from;
    if (!resident) bus_from = larger(from, wait_for_room(s, &s->ring, s->end, s->stage->ring_bytes));
    bus_from = larger(bus_from, s->bus_free);
    if (!c->separate)
        s->bus_free = s->disk_free = bus_from + c->disk[i];
    else if (pooled && !first && !windowed)
        s->bus_free = bus_from + c->bus[i];
    else
        s->bus_free =
            spring_then_bus(s, i, spring_of(s, i, pooled && !first), !pooled || windowed, from, bus_from);
    if (windowed && first) s->host_free = larger(s->host_free, s->disk_free); /* it is in the pool now */
    s->copied[s->visit] = s->bus_free;
    return s->bus_free;
}

static void simulate(struct simulation *s, int from, int to, bool first) {
    s->evaluation_start = s->visit;
    for (int i = from; i < to; i++, s->visit++) {
        double there = arrival(s, i, first);
        s->end[s->visit] = larger(end_of(s, s->visit - 1), there) + s->c->compute[i];
    }
}

/* The later evaluations: as long as they differ, and at most SIMULATED; then each takes as long as the last
 * two. Never less than the load: a full ring may hide it for longer than we look. */
static void extrapolate(const struct simulation *s, const double *ended, int n, double least,
                        struct pace *pace) {
    double last = n > 1 ? ended[n - 1] - ended[n - 2] : ended[0];
    if (n > 2) last = (ended[n - 1] - ended[n - 3]) / 2;
    pace->evaluation_seconds = n > 1 ? larger(last, least) : last;
    pace->seconds = ended[n - 1] + (s->c->evaluations - n) * pace->evaluation_seconds;
}

static bool same_length(double a, double b, double of) {
    return a - b < 1e-12 * of && b - a < 1e-12 * of;
}

/* When each of the three is done with what was gone through. */
static struct load load_so_far(const struct simulation *s) {
    return (struct load){
        {[BOUND_COMPUTE] = end_of(s, s->visit - 1), [BOUND_BUS] = s->bus_free, [BOUND_DISK] = s->disk_free}};
}

/* With n evaluations more in which nothing waits: never more than what is predicted, extrapolated or not. */
static double least_seconds(const struct load *so_far, const struct load *later, int n) {
    struct load load = *so_far;
    for (int b = 0; b < N_BOUNDS; b++) load.busy[b] += n * later->busy[b];
    return largest_load(&load);
}

/* In the pool blocks lie in the order of their places. */
static void find_windowed(struct simulation *s) {
    uint64_t bytes[PLAN_BLOCKS_MAX], end = 0;
    memset(s->windowed, 0, sizeof s->windowed);
    if (s->stage->pinned_bytes >= s->stage->pool_bytes) return;
    memset(bytes, 0, sizeof bytes);
    for (int i = 0; i < s->c->n; i++) bytes[s->c->place[i]] = s->c->bytes[i];
    for (int place = 0; place < PLAN_BLOCKS_MAX; place++) {
        if (!plan_is_pooled(s->stage, place) || plan_is_resident(s->stage, place)) continue;
        end += bytes[place];
        if (end > s->stage->pinned_bytes) s->windowed[place / 64] |= (uint64_t)1 << (place % 64);
    }
}

static void simulation_begin(struct simulation *s, const struct course *c, const struct plan_stage *stage) {
    s->c = c;
    s->stage = stage;
    s->visit = s->ring.first = s->ring.last = s->staging.first = s->staging.last = 0;
    s->ring.bytes = s->staging.bytes = 0;
    s->bus_free = s->disk_free = s->host_free = 0;
    find_windowed(s);
    simulate(s, 0, c->n_once, true);
}

/* enough: see course_seconds; pace->seconds then is all that is set. */
static void pace_run(const struct course *c, const struct plan_stage *stage, double enough,
                     struct pace *pace) {
    struct simulation s; /* large, and written before it is read: not cleared */
    struct load later = course_later_load(c, stage);
    double ended[SIMULATED], lag = -1;
    int n = 0;
    simulation_begin(&s, c, stage);
    for (bool alike = false; n < c->evaluations && n < SIMULATED && !alike; n++) {
        simulate(&s, c->n_once, c->n, n == 0);
        struct load so_far = load_so_far(&s);
        pace->seconds = least_seconds(&so_far, &later, c->evaluations - n - 1);
        if (pace->seconds > enough) return;
        ended[n] = end_of(&s, s.visit - 1);
        double now = ended[n] - s.bus_free, end = ended[n];
        alike = n > 1 && same_length(now, lag, end) &&
                same_length(end - ended[n - 1], ended[n - 1] - ended[n - 2], end);
        lag = now;
    }
    extrapolate(&s, ended, n, largest_load(&later), pace);
}

static struct load start_of(const struct course *c) {
    const struct plan_stage endless = {.ring_bytes = UINT64_MAX / 2, .staging_bytes = UINT64_MAX / 2};
    struct simulation s;
    simulation_begin(&s, c, &endless);
    simulate(&s, c->n_once, c->n, true);
    return load_so_far(&s);
}

void course_make(const struct stage_need *need, const struct rates *rates, bool separate,
                 bool pictures_on_host, struct course *course) {
    course->separate = separate;
    course->evaluations = need->evaluations > 1 ? need->evaluations : 1;
    course->disk_rate = rates->disk;
    course->host_rate = rates->host_copy;
    course->n = course->n_once = 0;
    for (int repeats = 0; repeats < 2; repeats++)
        for (int i = 0; i < need->n_blocks; i++) {
            if (need->block_repeats[i] != repeats) continue;
            int to = course->n++;
            course->n_once += !repeats;
            course->place[to] = i;
            course->bytes[to] = need->block_bytes[i];
            course->compute[to] = need->block_seconds[i];
            if (pictures_on_host)
                course->compute[to] += pace_seconds_of(need->block_picture_bytes[i], rates->h2d);
            course->bus[to] = separate ? pace_seconds_of(need->block_bytes[i], rates->h2d) : 0;
            course->host[to] = pace_seconds_of(need->block_bytes[i], rates->host_copy);
            course->disk[to] =
                pace_seconds_of(need->block_bytes[i], rates->disk) + need->block_fill_seconds[i];
        }
    course->start = start_of(course);
}

double course_bound(const struct course *c, const struct plan_stage *stage) {
    struct load later = course_later_load(c, stage);
    return least_seconds(&c->start, &later, c->evaluations - 1);
}

double course_seconds(const struct course *c, const struct plan_stage *stage, double enough) {
    struct pace pace = {0};
    if (c->n) pace_run(c, stage, enough, &pace);
    return pace.seconds;
}

struct pace course_pace(const struct course *c, const struct plan_stage *stage) {
    struct load first = course_first_load(c), later = course_later_load(c, stage);
    struct pace pace = {.bound = BOUND_COMPUTE};
    double longest = -1;
    int more = c->evaluations - 1;
    pace.first_floor_seconds = largest_load(&first);
    pace.later_floor_seconds = largest_load(&later);
    pace.floor_seconds = pace.first_floor_seconds + more * pace.later_floor_seconds;
    for (int b = 0; b < N_BOUNDS; b++) {
        double busy = first.busy[b] + more * later.busy[b];
        if (busy <= longest) continue;
        longest = busy;
        pace.bound = (enum bound)b;
    }
    if (c->n) pace_run(c, stage, HUGE_VAL, &pace);
    return pace;
}

struct pace pace_predict(const struct run_need *need, const struct plan *plan, int stage) {
    struct course course;
    course_make(&need->stage[stage], &need->rates, need->separate, plan->stage[stage].pictures_on_host,
                &course);
    return course_pace(&course, &plan->stage[stage]);
}

/* ---- choosing in time ---- */

/* Where computing takes no time that is known, bytes stand for it: the blocks are then spread evenly. */
static double weight_of(const struct course *c, int i, bool timed) {
    return timed ? c->compute[i] : (double)c->bytes[i];
}

void course_spread(const struct course *c, const struct spread *spread, uint64_t *taken) {
    uint64_t bytes = 0, got = 0;
    double all = 0, passed = 0, streamed = 0;
    bool timed = false;
    memset(taken, 0, PLAN_BLOCKS_MAX / 8);
    for (int i = c->n_once; i < c->n; i++) timed = timed || c->compute[i] > 0;
    for (int i = c->n_once; i < c->n; i++) {
        all += weight_of(c, i, timed);
        if (in_set(spread->stream, c->place[i])) bytes += c->bytes[i];
    }
    double rate = all > 0 && bytes > spread->most ? (double)(bytes - spread->most) / all : 0;
    for (int i = c->n_once; i < c->n; i++) {
        int place = c->place[i];
        passed += weight_of(c, i, timed);
        if (!in_set(spread->stream, place)) continue;
        bool take = in_set(spread->eligible, place) && got + c->bytes[i] <= spread->most &&
                    streamed + (double)c->bytes[i] > rate * passed + spread->allowance;
        if (take) {
            taken[place / 64] |= (uint64_t)1 << (place % 64);
            got += c->bytes[i];
        } else {
            streamed += (double)c->bytes[i];
        }
    }
}
