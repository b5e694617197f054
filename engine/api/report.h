/* What a run did: collected while it runs, printed as the JSON of --report. */
#ifndef SLUICE_API_REPORT_H
#define SLUICE_API_REPORT_H

#include "engine/api/machine.h"
#include "engine/api/job.h"

#include <jansson.h>
#include <nettle/sha2.h>

enum { SHA256_HEX = 65 };

/* The block that was waited for longest at one visit; copied, because some last no longer than their run. */
struct stall {
    double seconds; /* 0: none */
    char block[BLOCK_NAME_MAX];
};

struct stage_record {
    double seconds,
        floor_seconds; /* measured; what it had to take: of measured computing and the link's rate */
    struct processor_time spent;
    struct store_counters moved;
    struct stall stall;
    uint64_t planned_bytes, measured_bytes; /* peaks; measured: of the process so far, when it ended */
};

struct step_record {
    double seconds, floor_seconds; /* as above */
    struct processor_time spent;
    struct store_counters moved;
    struct stall stall;
};

/* Residents evicted in mid-run. */
struct evicted {
    const char *stage;
    int step; /* from this one on */
    uint64_t bytes;
};

enum { EVICTED_MAX = 64 }; /* later ones are added to the last */

struct report {
    json_t *plan; /* NULL until there is one */
    uint64_t seed;
    double seconds;
    int n_latents, n_images;
    char latent_sha256[BATCH_MAX][SHA256_HEX], image_sha256[BATCH_MAX][SHA256_HEX];
    int n_stages;
    char stage_name[PLAN_STAGES_MAX][16];
    struct stage_record stage[PLAN_STAGES_MAX];
    int n_evicted;
    struct evicted evicted[EVICTED_MAX];
    int n_steps;
    struct step_record *step; /* owned, from sys */
    float *sigma;             /* owned, from sys: one a step */
    uint64_t base_bytes, peak_bytes, library_bytes;
    uint64_t
        device_bytes; /* of the device, where it has memory of its own: all is taken before the first visit */
    uint64_t context_bytes; /* of those what the device takes by itself, measured; 0: not known */
    json_t *algorithms;     /* what libraries computed with; NULL: the device leaves them no choice */
    struct error error;
};

/* Hexadecimal SHA-256 of bytes; out has SHA256_HEX bytes. Returns out. */
char *sha256_hex(const void *bytes, size_t n, char *out);
/* The same of what was hashed in pieces. */
char *sha256_end(struct sha256_ctx *sha, char *out);

/* The whole report; a new reference. */
json_t *report_json(const struct report *report);
void report_destroy(struct sys *sys, struct report *report);

#endif
