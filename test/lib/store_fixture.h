/* Drives the store in test_store: random files, blocks, visits and a plan from a seed; a loop that acquires
 * and releases the visits and checks every byte; and an independent computation of the expected reads. */
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
    struct block base[STAGES][BLOCKS]; /* blocks with base weights only */
    /* The blocks of `base` after random adapters were added to some (store_adapters.h). */
    struct block blocks[STAGES][BLOCKS];
    bool same_adapters[STAGES]; /* true: adapter bytes of the previous run are still valid for this stage */
    const struct block *list[STAGES][BLOCKS];
    /* Dimensions of each block's weights: elements of each part (0: absent), 1, kernel size. */
    int32_t dims[STAGES][BLOCKS][5];
    struct store_stage stages[STAGES];
    struct visit_list visits;
    struct run_need need;
    struct plan plan, last_plan; /* plan of the current run; plan of the previous complete run */
    struct residents residents;
    int readers;
    bool direct;   /* files are read with O_DIRECT, if the file system allows direct reads */
    bool separate; /* true: the device has its own memory */
    bool evicted;  /* true: residents were evicted during the run, so the store holds less than planned */
    int stage;     /* stage that drive() currently runs, or -1 */
    struct packed_place place; /* address of the packed block of the current visit */
    const struct block *block;
    bool silent_tick; /* store_acquire and store_await are cancelled at once, without an error */
    int ticks_left; /* number of ticks after which store_acquire is cancelled; negative: the test fails at the
                       hang limit */
    double began;
} store_fixture;

void store_fixture_make(uint64_t seed);
void store_fixture_remove(void);

/* Makes one block of `elements` f32 values in a stage of its own, visited once. ring_bytes: ring space beyond
 * the block's size. */
void one_block(int32_t elements, uint64_t ring_bytes);

/* Makes a plan with random residents, and rings of any size from the largest block to all streamed blocks. */
void make_plan(bool keep);

/* Opens the files for direct reads; one file in `odds` refuses. */
void store_fixture_open_direct(uint64_t odds);

/* Opens the device with its own memory for fixtures that have one. */
extern struct device *(*store_fixture_device)(struct error *e);
/* If set, weights of new fixtures are the last temporal slices of kernels, strided in the file. */
extern bool store_fixture_sliced;

struct store *store_fixture_open(struct error *e);

/* Drives the store to the end; at up to two starts of an evaluation, the plan loses residents. Returns the
 * number of these changes; counts those that freed memory in *n_freed unless NULL. */
int drive_replanned(struct store *store, int *n_freed, struct error *e);

int drive(struct store *store, int stop, struct error *e);

/* Returns the file contents of the source, from byte `at` on. */
const unsigned char *source_contents(const struct byte_source *source, uint64_t at);
/* Checks bytes [from, to) of the packed block against the files' contents. */
void check_packed_bytes(const struct block *block, const struct packed_place *place, uint64_t from,
                        uint64_t to);

/* Runs all visits and checks reads, counters and pages. */
void run_whole(bool second_run);

/* Returns the bytes of a stage's weights that may outlive a run. */
int64_t keepable_bytes(int s);

/* Returns the index of the first visit, at or after `from`, of an evaluation that is not the first of its
 * stage; -1 if there is none. */
int next_evaluation_start(int from);

/* Makes a reduced plan: fewer residents in every stage, and rings that fit the blocks that now stream. */
void reduced_plan(struct plan *reduced);

#endif
