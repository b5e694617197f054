/* Simulates a stage that streams weights through a ring: implements a part of plan.h. */
#include "engine/run/plan.h"

#include <math.h>
#include <string.h>

/* SIMULATED: maximum number of evaluations to simulate. After two or three, their times are equal or
 * alternate. */
enum { SIMULATED = 6, VISITS_MAX = PLAN_BLOCKS_MAX * (SIMULATED + 1) };

static double larger(double a, double b) {
    return a > b ? a : b;
}

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static double transfer_seconds(uint64_t bytes, double rate) {
    return rate > 0 ? (double)bytes / rate : 0;
}

struct stage_load block_stream_first_load(const struct block_stream *c) {
    struct stage_load load = {{0}};
    for (int i = 0; i < c->n; i++) {
        load.busy[BOUND_COMPUTE] += c->compute[i];
        load.busy[BOUND_BUS] += c->bus[i];
        load.busy[BOUND_DISK] += c->disk[i];
    }
    return load;
}

struct stage_load block_stream_later_load(const struct block_stream *c, const struct plan_stage *stage) {
    struct stage_load load = {{0}};
    for (int i = c->n_once; i < c->n; i++) {
        load.busy[BOUND_COMPUTE] += c->compute[i];
        if (plan_is_resident(stage, c->place[i])) continue;
        load.busy[BOUND_BUS] += c->bus[i];
        if (!c->separate || !plan_is_pooled(stage, c->place[i])) load.busy[BOUND_DISK] += c->disk[i];
    }
    return load;
}

static double largest_load(const struct stage_load *load) {
    return larger(load->busy[BOUND_COMPUTE], larger(load->busy[BOUND_BUS], load->busy[BOUND_DISK]));
}

/* Queue of visits whose weight bytes occupy a buffer (ring or staging). Visits take and free space in visit
 * order. */
struct held {
    int visit[VISITS_MAX], first, last;
    uint64_t bytes;
};

struct simulation {
    const struct block_stream *c;
    const struct plan_stage *stage;
    int visit;                 /* current visit */
    int evaluation_start;      /* first visit of the current evaluation */
    double end[VISITS_MAX];    /* end of each visit's computation in seconds */
    double copied[VISITS_MAX]; /* arrival of each visit's last byte in seconds */
    struct held ring, staging;
    uint64_t moved[VISITS_MAX]; /* bytes moved for each visit; 0 for a resident that is already loaded */
    double bus_free, disk_free, host_free;
    uint64_t windowed[PLAN_BLOCKS_MAX / 64]; /* bit set: blocks in the host pool, not entirely pinned */
};

static double end_of(const struct simulation *s, int visit) {
    return visit < 0 ? 0 : s->end[visit];
}

/* Time at which a buffer of `limit` bytes has space for the visit. freed: times at which earlier visits free
 * space. */
static double wait_for_space(struct simulation *s, struct held *held, const double *freed, uint64_t limit) {
    double from = 0;
    /* A block larger than the buffer (ring or staging) occupies the whole buffer. */
    uint64_t bytes = smaller(s->moved[s->visit], limit);
    while (held->bytes + bytes > limit && held->first < held->last) {
        int oldest = held->visit[held->first++];
        held->bytes -= smaller(s->moved[oldest], limit);
        from = freed[oldest]; /* visits free space in order, so the last time is the latest */
    }
    held->visit[held->last++] = s->visit;
    held->bytes += bytes;
    return from;
}

/* What a block passes before the bus: the disk, or a copy out of unpinned host memory. */
struct upstream {
    double seconds, rate;
    double *free;
};

/* Time at which a block from the disk or unpinned memory has passed over the bus. Reading and copying overlap
 * by pieces: the copy ends one piece after the read at the earliest. If a block exceeds staging, reading the
 * rest waits for the bus. */
static double upstream_then_bus(struct simulation *s, int i, struct upstream upstream, bool staged,
                                double from, double bus_from) {
    const struct block_stream *c = s->c;
    uint64_t bytes = c->bytes[i], limit = s->stage->staging_bytes;
    double piece = larger(1, (double)bytes / PLAN_STAGED_PIECE);
    if (staged) from = larger(from, wait_for_space(s, &s->staging, s->copied, limit));
    double began = larger(*upstream.free, from), bus_began = larger(bus_from, began);
    double read = began + upstream.seconds;
    if (staged && bytes > limit)
        read = larger(read, bus_began + transfer_seconds(bytes - limit, upstream.rate));
    *upstream.free = read;
    return larger(bus_began + c->bus[i], read + c->bus[i] / piece);
}

/* Time at which the weight bytes of the current visit are on the device. */
static double arrival(struct simulation *s, int i, bool first) {
    const struct block_stream *c = s->c;
    const struct plan_stage *stage = s->stage;
    bool resident = plan_is_resident(stage, c->place[i]);
    bool pooled = !resident && plan_is_pooled(stage, c->place[i]);
    bool windowed = pooled && blocks_has(s->windowed, c->place[i]);
    double from = 0; /* earliest time at which the plan's limits on prefetching allow the block to move */
    if (!c->bytes[i] || (resident && !first)) return 0;
    s->moved[s->visit] = c->bytes[i];
    if (stage->depth) from = end_of(s, s->visit - stage->depth - 1);
    if (stage->no_wrap) from = larger(from, end_of(s, s->evaluation_start - 1));
    if (stage->waits) from = larger(from, end_of(s, s->visit - 1));
    double bus_from = from;
    if (!resident) bus_from = larger(from, wait_for_space(s, &s->ring, s->end, stage->ring_bytes));
    bus_from = larger(bus_from, s->bus_free);
    if (!c->separate) {
        s->bus_free = s->disk_free = bus_from + c->disk[i];
    } else if (pooled && !first && !windowed) {
        s->bus_free = bus_from + c->bus[i];
    } else {
        struct upstream disk = {c->disk[i], c->disk_rate, &s->disk_free},
                        host = {c->host[i], c->host_rate, &s->host_free};
        s->bus_free =
            upstream_then_bus(s, i, pooled && !first ? host : disk, !pooled || windowed, from, bus_from);
    }
    if (windowed && first) /* the block enters the host pool when the disk read ends */
        s->host_free = larger(s->host_free, s->disk_free);
    s->copied[s->visit] = s->bus_free;
    return s->bus_free;
}

/* Simulates one pass over blocks [from, to) of the stream. first: the first evaluation. */
static void simulate(struct simulation *s, int from, int to, bool first) {
    s->evaluation_start = s->visit;
    for (int i = from; i < to; i++, s->visit++) {
        double there = arrival(s, i, first);
        s->end[s->visit] = larger(end_of(s, s->visit - 1), there) + s->c->compute[i];
    }
}

static bool same_length(double a, double b, double of) {
    return a - b < 1e-12 * of && b - a < 1e-12 * of;
}

/* Times at which compute, bus and disk finish the visits simulated so far. */
static struct stage_load load_so_far(const struct simulation *s) {
    return (struct stage_load){
        {[BOUND_COMPUTE] = end_of(s, s->visit - 1), [BOUND_BUS] = s->bus_free, [BOUND_DISK] = s->disk_free}};
}

/* Lower bound of the predicted seconds: n more evaluations in which no resource waits. */
static double least_seconds(const struct stage_load *so_far, const struct stage_load *later, int n) {
    struct stage_load load = *so_far;
    for (int b = 0; b < N_BOUNDS; b++) load.busy[b] += n * later->busy[b];
    return largest_load(&load);
}

/* Begins a simulation: everything is free, and the blocks that are visited once have passed. */
static void simulation_begin(struct simulation *s, const struct block_stream *c,
                             const struct plan_stage *stage) {
    s->c = c;
    s->stage = stage;
    s->visit = s->ring.first = s->ring.last = s->staging.first = s->staging.last = 0;
    s->ring.bytes = s->staging.bytes = 0;
    s->bus_free = s->disk_free = s->host_free = 0;
    memset(s->windowed, 0, sizeof s->windowed);
    if (stage->pinned_bytes < stage->pool_bytes) {
        /* Finds pooled blocks that are not entirely pinned; the pool holds blocks in order of their index. */
        uint64_t bytes[PLAN_BLOCKS_MAX] = {0}, end = 0;
        for (int i = 0; i < c->n; i++) bytes[c->place[i]] = c->bytes[i];
        for (int place = 0; place < PLAN_BLOCKS_MAX; place++) {
            if (!plan_is_pooled(stage, place) || plan_is_resident(stage, place)) continue;
            end += bytes[place];
            if (end > stage->pinned_bytes) blocks_set(s->windowed, place, true);
        }
    }
    simulate(s, 0, c->n_once, true);
}

/* Predicts a stage. If the time exceeds `enough` (see block_stream_seconds), only timing->seconds is set. */
static void timing_run(const struct block_stream *c, const struct plan_stage *stage, double enough,
                       struct timing *timing) {
    /* Not initialised, because it is large; simulation_begin sets the fields that are read. */
    struct simulation s;
    struct stage_load later = block_stream_later_load(c, stage);
    double ended[SIMULATED] = {0}, lag = -1;
    int n = 0;
    simulation_begin(&s, c, stage);
    for (bool alike = false; n < c->evaluations && n < SIMULATED && !alike; n++) {
        simulate(&s, c->n_once, c->n, n == 0);
        struct stage_load so_far = load_so_far(&s);
        timing->seconds = least_seconds(&so_far, &later, c->evaluations - n - 1);
        if (timing->seconds > enough) return;
        ended[n] = end_of(&s, s.visit - 1);
        double now = ended[n] - s.bus_free, end = ended[n];
        alike = n > 1 && same_length(now, lag, end) &&
                same_length(end - ended[n - 1], ended[n - 1] - ended[n - 2], end);
        lag = now;
    }
    /* Each further evaluation takes the mean time of the last two simulated evaluations, but at least the
     * busiest resource's busy time, which a large ring can hide during the simulation. */
    double last = n > 1 ? ended[n - 1] - ended[n - 2] : ended[0], least = largest_load(&later);
    if (n > 2) last = (ended[n - 1] - ended[n - 3]) / 2;
    timing->evaluation_seconds = n > 1 ? larger(last, least) : last;
    timing->seconds = ended[n - 1] + (c->evaluations - n) * timing->evaluation_seconds;
}

void block_stream_make(const struct stage_need *need, const struct rates *rates, bool separate,
                       bool pictures_on_host, struct block_stream *block_stream) {
    block_stream->separate = separate;
    block_stream->evaluations = need->evaluations > 1 ? need->evaluations : 1;
    block_stream->disk_rate = rates->disk;
    block_stream->host_rate = rates->host_copy;
    block_stream->n = block_stream->n_once = 0;
    for (int repeats = 0; repeats < 2; repeats++)
        for (int i = 0; i < need->n_blocks; i++) {
            if (need->block_repeats[i] != repeats) continue;
            int to = block_stream->n++;
            double loads = 1 + (double)need->block_extra_loads[i];
            block_stream->n_once += !repeats;
            block_stream->place[to] = i;
            block_stream->bytes[to] = need->block_bytes[i];
            block_stream->compute[to] = need->block_seconds[i];
            if (pictures_on_host)
                block_stream->compute[to] += transfer_seconds(need->block_picture_bytes[i], rates->h2d);
            block_stream->bus[to] = separate ? loads * transfer_seconds(need->block_bytes[i], rates->h2d) : 0;
            block_stream->host[to] = loads * transfer_seconds(need->block_bytes[i], rates->host_copy);
            block_stream->disk[to] =
                loads * (transfer_seconds(need->block_bytes[i], rates->disk) + need->block_fill_seconds[i]);
        }
    const struct plan_stage endless = {.ring_bytes = UINT64_MAX / 2, .staging_bytes = UINT64_MAX / 2};
    struct simulation s;
    simulation_begin(&s, block_stream, &endless);
    simulate(&s, block_stream->n_once, block_stream->n, true);
    block_stream->start = load_so_far(&s);
}

double block_stream_bound(const struct block_stream *c, const struct plan_stage *stage) {
    struct stage_load later = block_stream_later_load(c, stage);
    return least_seconds(&c->start, &later, c->evaluations - 1);
}

double block_stream_seconds(const struct block_stream *c, const struct plan_stage *stage, double enough) {
    struct timing timing = {0};
    if (c->n) timing_run(c, stage, enough, &timing);
    return timing.seconds;
}

struct timing block_stream_timing(const struct block_stream *c, const struct plan_stage *stage) {
    struct stage_load first = block_stream_first_load(c), later = block_stream_later_load(c, stage);
    struct timing timing = {.bound = BOUND_COMPUTE};
    double longest = -1;
    int more = c->evaluations - 1;
    timing.first_floor_seconds = largest_load(&first);
    timing.later_floor_seconds = largest_load(&later);
    timing.floor_seconds = timing.first_floor_seconds + more * timing.later_floor_seconds;
    for (int b = 0; b < N_BOUNDS; b++) {
        double busy = first.busy[b] + more * later.busy[b];
        if (busy <= longest) continue;
        longest = busy;
        timing.bound = (enum bound)b;
    }
    if (c->n) timing_run(c, stage, HUGE_VAL, &timing);
    return timing;
}

struct timing timing_predict(const struct run_need *need, const struct plan *plan, int stage) {
    struct block_stream block_stream;
    block_stream_make(&need->stage[stage], &need->rates, need->separate, plan->stage[stage].pictures_on_host,
                      &block_stream);
    return block_stream_timing(&block_stream, &plan->stage[stage]);
}

/* Weight of a block in even spreading: its seconds of computation, or its bytes if seconds are unknown. */
static double weight_of(const struct block_stream *c, int i, bool timed) {
    return timed ? c->compute[i] : (double)c->bytes[i];
}

void block_stream_thin(const struct block_stream *c, const struct thinning *thinning, uint64_t *taken) {
    uint64_t bytes = 0, got = 0;
    double all = 0, passed = 0, streamed = 0;
    bool timed = false;
    memset(taken, 0, PLAN_BLOCKS_MAX / 8);
    for (int i = c->n_once; i < c->n; i++) timed = timed || c->compute[i] > 0;
    for (int i = c->n_once; i < c->n; i++) {
        all += weight_of(c, i, timed);
        if (blocks_has(thinning->stream, c->place[i])) bytes += c->bytes[i];
    }
    double rate = all > 0 && bytes > thinning->most ? (double)(bytes - thinning->most) / all : 0;
    for (int i = c->n_once; i < c->n; i++) {
        int place = c->place[i];
        passed += weight_of(c, i, timed);
        if (!blocks_has(thinning->stream, place)) continue;
        bool take = blocks_has(thinning->eligible, place) && got + c->bytes[i] <= thinning->most &&
                    streamed + (double)c->bytes[i] > rate * passed + thinning->allowance;
        if (take) {
            blocks_set(taken, place, true);
            got += c->bytes[i];
        } else {
            streamed += (double)c->bytes[i];
        }
    }
}
