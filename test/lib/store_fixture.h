/* What test_store drives the store with: a world of files, blocks, visits and a plan, all made up from a
 * seed; a loop that acquires and releases its visits and checks every byte; and what must be read, worked out
 * by another hand. */
#ifndef SLUICE_TEST_STORE_FIXTURE_H
#define SLUICE_TEST_STORE_FIXTURE_H

#include "engine/run/store.h"
#include "test/lib/assert_ok.h"
#include "test/lib/seeded.h"
#include "test/lib/synthetic_files.h"
#include "test/lib/memory_checker.h"

#include <errno.h>
#include <string.h>

enum { HANG_SECONDS = 60, STAGES = 3, BLOCKS = 14 };

struct raw_weights {
    struct tensor part[3];
};

extern struct store_fixture {
    struct synthetic_files files;
    struct block own[STAGES][BLOCKS];    /* as the files have them */
    struct block blocks[STAGES][BLOCKS]; /* these, some with sides: see store_adapters.h */
    bool same_adapters[STAGES];             /* of the last run, too */
    const struct block *list[STAGES][BLOCKS];
    int32_t dims[STAGES][BLOCKS][5]; /* of parts, 0: absent; 1; a kernel's side */
    struct store_stage stages[STAGES];
    struct visit_list visits;
    struct run_need need;
    struct plan plan, was; /* was: of the last whole run */
    struct residents residents;
    uint64_t random;
    int readers;
    bool direct;   /* files are read past the page cache, where that is allowed */
    bool separate; /* the device has memory of its own */
    bool evicted;  /* Residents were evicted in mid-run: what is held is less than the plan says */
    int stage;     /* where drive is, or -1 */
    struct packed_place place; /* of the visit at hand */
    const struct block *block;
    int ticks_left; /* of acquire's waiting; below 0: until it must be a hang */
    double began;
} store_fixture;

/* The world's random numbers. */
uint64_t below(uint64_t n);

void store_fixture_make(uint64_t seed);
void store_fixture_remove(void);

/* One block of this many f32 in a stage of its own, visited once. */
void one_block(int32_t elements, uint64_t ring_bytes);

/* Residents with some probability; rings from exactly the largest block to everything. */
void make_plan(bool keep);

/* One file in so many refuses. */
void store_fixture_open_direct(uint64_t odds);

/* Whose memory the worlds' weights lie in that are to lie in a device's. */
extern struct device *(*store_fixture_device)(struct error *e);
/* Weights of worlds that are made are last slices of kernels, in runs of files. */
extern bool store_fixture_sliced;

struct store *store_fixture_open(struct error *e);

/* Visits from at on, to the end or up to (not with) stop; returns where it came to. The last stage stays
 * open. A visit that fails may be released. */
int drive_from(struct store *store, int at, int stop, struct error *e);
int drive(struct store *store, int stop, struct error *e);

/* The files' contents from that byte of the source on. */
const unsigned char *source_contents(const struct byte_source *source, uint64_t at);
/* Bytes [from, to) of the packed block. */
void check_packed(const struct block *block, const struct packed_place *place, uint64_t from, uint64_t to);

/* A whole run, of which reads, counters and pages are checked. */
void run_whole(bool second_run);

/* Of a stage's memory what may outlive a run. */
int64_t stays_bytes(int s);

uint64_t paged(uint64_t bytes);

/* ---- residents evicted in mid-run ---- */

/* The first visit of an evaluation after the first, in any stage; -1 if there is none. */
int seam_after(int from);

/* Fewer residents in every stage, and a ring that holds what now streams. */
void reduced_plan(struct plan *reduced);

#endif
