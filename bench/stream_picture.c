/* A diagram of weight streaming: one steady-state step of Flux under the virtual clock of `sluice bench
 * stream`, with three memory layouts of the same size. It shows the bus traffic, the compute, the stalls and
 * the fill level of the ring buffer. Uses bench/dev/stream.h directly, because the program prints only a
 * table.
 *
 *     stream_picture OUT.png */
#include "bench/dev/stream.h"

#include <cairo/cairo.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    WIDTH = 1400,
    LEFT = 110, /* left edge of the time axis, after the labels, in pixels */
    RIGHT = 30,
    HEAD = 96,   /* height of title and legend in pixels */
    PANEL = 236, /* height of one layout's panel in pixels */
    ROW = 30,    /* height of the bus and compute bars in pixels */
    RING = 76,
    FOOT = 46,
    STEP = 3, /* index of the step in the diagram; earlier steps fill host memory pool and ring */
    N_PANELS = 3,
};

struct event {
    enum timed_event kind;
    double start, end; /* event times in seconds */
    uint64_t bytes;
    int block; /* index of the block in the model */
};

struct timeline {
    const char *title;
    struct stream_view view;
    struct event *events;
    int n_events, capacity;
    double from, to; /* start and end of the shown step in seconds */
};

static struct timeline timelines[N_PANELS] = {
    {.title = "Sluice: optimized choice of resident blocks, byte ring buffer with prefetch",
     .view = {.layout = LAYOUT_OURS}},
    {.title = "prefix: the first blocks are resident, ring buffer of two blocks",
     .view = {.layout = LAYOUT_PREFIX}},
    {.title = "depth1: every n-th block is resident, prefetches one block ahead",
     .view = {.layout = LAYOUT_DEPTH1}},
};

static void on_event(void *user, enum timed_event kind, uint64_t start, uint64_t end, uint64_t bytes) {
    struct timeline *t = user;
    if (t->n_events == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 4096;
        t->events = realloc(t->events, (size_t)t->capacity * sizeof *t->events);
        if (!t->events) exit(1);
    }
    t->events[t->n_events++] = (struct event){kind, (double)start * 1e-12, (double)end * 1e-12, bytes, -1};
}

static bool is_resident(const struct timeline *t, int block) {
    return plan_is_resident(&t->view.plan.stage[0], block);
}

/* Returns the first visit, from the given visit on, whose block is copied to the device. Blocks are copied
 * in the order of use, residents in the first step only. */
static int next_copied(const struct timeline *t, int visit) {
    int n = t->view.need.stage[0].n_blocks;
    while (visit >= n && is_resident(t, visit % n)) visit++;
    return visit;
}

/* Assigns a block to every trace event, and finds the start and end of the step in the diagram. */
static void assign_blocks(struct timeline *t) {
    const struct stage_need *need = &t->view.need.stage[0];
    int n = need->n_blocks, n_done = 0, crossing = 0;
    uint64_t crossed = 0;
    for (struct event *e = t->events; e < t->events + t->n_events; e++) {
        if (e->kind == TIMED_OPERATOR) {
            e->block = n_done++ % n;
            if (n_done == STEP * n) t->from = e->end;
            if (n_done == (STEP + 1) * n) t->to = e->end;
        } else if (e->kind == TIMED_COPY) {
            e->block = crossing % n;
            crossed += e->bytes;
            if (crossed < need->block_bytes[e->block]) continue;
            crossed = 0;
            crossing = next_copied(t, crossing + 1);
        }
    }
}

static enum status simulate(struct timeline *t, struct error *e) {
    t->view.blocks = "flux";
    t->view.resident_percent = 20;
    t->view.bus = 24e9;
    t->view.trace = on_event;
    t->view.user = t;
    if (stream_timed_row(&t->view, e) == OK) assign_blocks(t);
    return e->code;
}

/* Returns the bytes in the ring at a given time: copied, and not yet released by the computation of their
 * block. */
static double ring_at(const struct timeline *t, double when) {
    double bytes = 0;
    for (const struct event *e = t->events; e < t->events + t->n_events; e++) {
        if (e->block < 0 || is_resident(t, e->block)) continue;
        if (e->kind == TIMED_OPERATOR && e->end <= when)
            bytes -= (double)t->view.need.stage[0].block_bytes[e->block];
        if (e->kind == TIMED_COPY && e->start < when)
            bytes += (double)e->bytes * (e->end <= when ? 1 : (when - e->start) / (e->end - e->start));
    }
    return bytes;
}

static double stall_seconds(const struct timeline *t) {
    double seconds = 0;
    for (const struct event *e = t->events; e < t->events + t->n_events; e++)
        if (e->kind == TIMED_STALL && e->end > t->from && e->end <= t->to) seconds += e->end - e->start;
    return seconds;
}

struct chart {
    cairo_t *c;
    double span; /* length of the time axis in seconds */
};

static double across(const struct chart *v, double seconds) {
    return LEFT + (WIDTH - LEFT - RIGHT) * seconds / v->span;
}

static void text(cairo_t *c, double x, double y, double size, bool bold, const char *words) {
    cairo_select_font_face(c, "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL,
                           bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(c, size);
    cairo_move_to(c, x, y);
    cairo_show_text(c, words);
}

static const double colours[][3] = {
    {.16, .45, .72}, /* two alternating colours of streamed blocks */
    {.45, .69, .88},
    {.68, .70, .72}, /* resident blocks */
    {.84, .22, .18}, /* stall */
};
enum { STREAMED, RESIDENT = 2, STALL };

/* Consecutive streamed blocks alternate between two shades; a block has the same shade on the bus and in
 * compute. */
static int colour_of(const struct timeline *t, const struct event *e) {
    int n = 0;
    if (e->kind == TIMED_STALL) return STALL;
    if (is_resident(t, e->block)) return RESIDENT;
    for (int i = 0; i < e->block; i++) n += !is_resident(t, i);
    return STREAMED + n % 2;
}

static void bar(const struct chart *v, const struct timeline *t, const struct event *e, double y) {
    const double *rgb = colours[colour_of(t, e)];
    double start = e->start - t->from, end = e->end - t->from;
    if (end <= 0 || start >= v->span) return;
    if (start < 0) start = 0;
    if (end > v->span) end = v->span;
    cairo_set_source_rgb(v->c, rgb[0], rgb[1], rgb[2]);
    double left = round(across(v, start)); /* rounded, so that adjacent bars share an edge without a gap */
    cairo_rectangle(v->c, left, y, round(across(v, end)) - left, ROW);
    cairo_fill(v->c);
}

static void draw_ring(const struct chart *v, const struct timeline *t, double y, double most) {
    cairo_t *c = v->c;
    double ring = (double)t->view.plan.stage[0].ring_bytes, foot = y + RING, left = LEFT;
    cairo_set_source_rgb(c, .55, .75, .55);
    cairo_move_to(c, left, foot);
    for (int x = LEFT; x <= WIDTH - RIGHT; x++) {
        double when = t->from + v->span * (x - LEFT) / (WIDTH - LEFT - RIGHT);
        cairo_line_to(c, x, foot - RING * ring_at(t, when) / most);
    }
    cairo_line_to(c, WIDTH - RIGHT, foot);
    cairo_fill(c);
    cairo_set_source_rgb(c, .2, .45, .2);
    cairo_set_line_width(c, 1);
    cairo_move_to(c, left, foot - RING * ring / most);
    cairo_line_to(c, WIDTH - RIGHT, foot - RING * ring / most);
    cairo_stroke(c);
}

/* Fades the events that come after the shown step. */
static void fade_rest(const struct chart *v, const struct timeline *t, double y) {
    double x = across(v, t->to - t->from);
    cairo_set_source_rgba(v->c, 1, 1, 1, .62);
    cairo_rectangle(v->c, x, y, WIDTH - RIGHT - x + 1, 2 * ROW + RING + 20);
    cairo_fill(v->c);
    cairo_set_source_rgb(v->c, .1, .1, .1);
    cairo_set_line_width(v->c, 1.5);
    cairo_move_to(v->c, x, y - 4);
    cairo_line_to(v->c, x, y + 2 * ROW + RING + 24);
    cairo_stroke(v->c);
}

static void draw_labels(const struct chart *v, const struct timeline *t, double y) {
    char line[256];
    const struct stream_row *row = &t->view.row;
    const struct plan_stage *p = &t->view.plan.stage[0];
    snprintf(line, sizeof line, "%.3f s per step, lower bound %.3f s (%.0f %%); stalled %.0f ms",
             row->seconds, row->floor_seconds, 100 * row->floor_seconds / row->seconds,
             1e3 * stall_seconds(t));
    cairo_set_source_rgb(v->c, .1, .1, .1);
    text(v->c, LEFT, y - 10, 15, true, t->title);
    text(v->c, WIDTH - RIGHT - 480, y - 10, 15, false, line);
    text(v->c, 24, y + 20, 14, false, "bus");
    text(v->c, 24, y + ROW + 28, 14, false, "compute");
    text(v->c, 24, y + 2 * ROW + 40, 14, false, "ring");
    snprintf(line, sizeof line, "%.2f GB", (double)p->ring_bytes / 1e9);
    text(v->c, 24, y + 2 * ROW + 58, 13, false, line);
}

static void draw_panel(const struct chart *v, const struct timeline *t, double y, double most) {
    draw_labels(v, t, y);
    for (const struct event *e = t->events; e < t->events + t->n_events; e++) {
        if (e->kind == TIMED_COPY) bar(v, t, e, y);
        if (e->kind == TIMED_OPERATOR || e->kind == TIMED_STALL) bar(v, t, e, y + ROW + 8);
    }
    draw_ring(v, t, y + 2 * ROW + 16, most);
    fade_rest(v, t, y);
}

static void draw_legend(cairo_t *c) {
    static const char *const words[] = {"streamed block", "next streamed block", "resident block",
                                        "compute stalls"};
    for (int i = 0; i < 4; i++) {
        double x = LEFT + 190 * i;
        cairo_set_source_rgb(c, colours[i][0], colours[i][1], colours[i][2]);
        cairo_rectangle(c, x, 54, 22, 14);
        cairo_fill(c);
        cairo_set_source_rgb(c, .1, .1, .1);
        text(c, x + 30, 66, 13, false, words[i]);
    }
    text(c, LEFT + 760, 66, 13, false, "green: ring fill level; line: ring size; pale: the next step");
}

static void draw_axis(const struct chart *v, double y) {
    char line[32];
    for (int i = 0; i * 0.1 < v->span; i++) {
        snprintf(line, sizeof line, "%.1f s", i * 0.1);
        text(v->c, across(v, i * 0.1) - 12, y + 22, 13, false, line);
        cairo_move_to(v->c, across(v, i * 0.1), y);
        cairo_line_to(v->c, across(v, i * 0.1), y + 6);
        cairo_stroke(v->c);
    }
}

static void draw(cairo_t *c) {
    struct chart v = {.c = c};
    double most = 0;
    for (int i = 0; i < N_PANELS; i++) {
        const struct timeline *t = &timelines[i];
        if (1.03 * (t->to - t->from) > v.span) v.span = 1.03 * (t->to - t->from);
        if ((double)t->view.plan.stage[0].ring_bytes > most) most = (double)t->view.plan.stage[0].ring_bytes;
    }
    cairo_set_source_rgb(c, 1, 1, 1);
    cairo_paint(c);
    cairo_set_source_rgb(c, .1, .1, .1);
    text(c, LEFT, 34, 20, true,
         "Flux, one steady-state step: 23.7 GB of blocks, 20 % of them resident, bus at 24 GB/s");
    draw_legend(c);
    for (int i = 0; i < N_PANELS; i++) draw_panel(&v, &timelines[i], HEAD + 24 + i * PANEL, most);
    draw_axis(&v, HEAD + N_PANELS * PANEL - 14);
}

int main(int argc, char **argv) {
    struct error e = {0};
    if (argc != 2) {
        fputs("usage: stream_picture OUT.png\n", stderr);
        return 2;
    }
    for (int i = 0; i < N_PANELS && e.code == OK; i++) simulate(&timelines[i], &e);
    cairo_surface_t *surface =
        cairo_image_surface_create(CAIRO_FORMAT_RGB24, WIDTH, HEAD + N_PANELS * PANEL + FOOT);
    cairo_t *c = cairo_create(surface);
    cairo_set_antialias(
        c, CAIRO_ANTIALIAS_NONE); /* unantialiased bars have no seams; text is antialiased separately */
    if (e.code == OK) draw(c);
    bool written = e.code == OK && !cairo_surface_write_to_png(surface, argv[1]);
    cairo_destroy(c);
    cairo_surface_destroy(surface);
    for (int i = 0; i < N_PANELS; i++) free(timelines[i].events);
    if (!written) fprintf(stderr, "stream_picture: %s\n", e.code ? e.what : "cannot write the image");
    return !written;
}
