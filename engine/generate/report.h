/* Measurements of a run, collected while it runs. plan_json.h writes them as JSON for --report. */
#ifndef SLUICE_GENERATE_REPORT_H
#define SLUICE_GENERATE_REPORT_H

#include "engine/cache/sha256.h"
#include "engine/job/layout.h"
#include "engine/machine/machine.h"

/* The longest wait of a visit for its block. The block's name is copied, because some blocks are freed at the
 * end of a run. */
struct stall {
    double seconds; /* 0: no wait */
    char block[LAYOUT_NAME_BYTES];
};

struct stage_record {
    double seconds;
    double floor_seconds; /* seconds if all transfers overlapped: larger of compute time and transfer time */
    struct processor_time spent; /* CPU time of all threads in the stage */
    struct store_counters moved; /* bytes of weights that were read and copied */
    struct stall stall;          /* the longest */
    uint64_t planned_bytes;      /* planned peak of host memory in the stage */
    uint64_t measured_bytes;     /* peak memory of the process from its start to the stage's end */
};

/* Measurements of one step, with fields as in stage_record. */
struct step_record {
    double seconds, floor_seconds;
    struct processor_time spent;
    struct store_counters moved;
    struct stall stall;
};

struct evicted {
    const char *stage;
    int step; /* first step that runs without the evicted residents */
    uint64_t bytes;
};

/* Capacity of the list of evictions (blocks freed under memory pressure). The last entry sums up all later
 * evictions. */
enum { EVICTED_MAX = 64 };

struct report {
    uint64_t seed;
    double seconds;
    int n_latents, n_images, n_sounds;
    char latent_sha256[BATCH_MAX][SHA256_HEX], image_sha256[BATCH_MAX][SHA256_HEX];
    char sound_sha256[BATCH_MAX][SHA256_HEX]; /* of each video's sound: SHA-256 of sluice_sound.pcm */
    int n_stages;
    char stage_name[PLAN_STAGES_MAX][16];
    struct stage_record stage[PLAN_STAGES_MAX];
    int n_evicted;
    struct evicted evicted[EVICTED_MAX];
    int n_steps;
    struct step_record *step; /* one record per step; owned */
    float *sigma;             /* sigma of each step; owned */
    uint64_t base_bytes;      /* resident memory of the process before the run */
    uint64_t peak_bytes;      /* peak resident memory of the process */
    uint64_t library_bytes;   /* part of peak_bytes that libraries allocated */
    uint64_t device_bytes;    /* device memory that the run allocated; 0: the device uses host memory */
    uint64_t context_bytes;   /* part of device_bytes that the driver's context takes, measured; 0: unknown */
    struct error error;
};

#endif
