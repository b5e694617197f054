/* What a run did: collected while it runs, printed as the JSON of --report. */
#ifndef SLUICE_API_REPORT_H
#define SLUICE_API_REPORT_H

#include "engine/api/job.h"

#include <jansson.h>

enum { SHA256_HEX = 65 };

struct stage_record {
    double seconds, floor_seconds; /* the floor is the plan's; 0: unknown */
    struct store_counters moved;
};

struct step_record {
    double seconds;
    struct store_counters moved;
    const char *stall_block; /* the block that was waited for longest, or NULL */
};

struct report {
    json_t *plan; /* NULL until there is one */
    uint64_t seed;
    double seconds;
    int n_latents, n_images;
    char latent_sha256[BATCH_MAX][SHA256_HEX], image_sha256[BATCH_MAX][SHA256_HEX];
    int n_stages;
    char stage_name[PLAN_STAGES_MAX][16];
    struct stage_record stage[PLAN_STAGES_MAX];
    int n_steps;
    struct step_record *step; /* owned, from sys */
    float *sigma;             /* owned, from sys: one a step */
    uint64_t base_bytes, peak_bytes, library_bytes;
    struct error error;
};

/* Hexadecimal SHA-256 of bytes; out has SHA256_HEX bytes. Returns out. */
char *sha256_hex(const void *bytes, size_t n, char *out);

/* The whole report; a new reference. */
json_t *report_json(const struct report *report);
void report_destroy(struct sys *sys, struct report *report);

#endif
