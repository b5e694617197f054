/* Test rig: a model and a session on a fault-injecting sys, and runs whose hashes can be compared. */
#ifndef SLUICE_TEST_RIG_H
#define SLUICE_TEST_RIG_H

#include "engine/api/session.h"
#include "engine/open/model.h"
#include "test/lib/check.h"
#include "test/lib/temporary_folder.h"
#include "test/lib/plans.h"
#include "test/lib/fault_sys.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fixture;

struct rig {
    struct fault_sys fault_sys;
    sluice_model *model;
    sluice_session *session;
    json_t *owned; /* array of the plans, plan texts and reports that the test has asked for; NULL: none */
};

/* Fixture whose further parts (control networks, Redux) rig_open loads with the model; NULL: none. */
extern const struct fixture *rig_fixture;

/* Opens a model and a session. seed: of the simulated system's random delays. */
bool rig_open(struct rig *rig, const char *folder, int threads, uint64_t seed);

/* The same with all options; `from` and `options` need no struct_size. */
bool rig_open_with(struct rig *rig, struct sluice_model_options from, struct sluice_session_options options,
                   uint64_t seed);

/* Opens a session, and closes the rig's session first if there is one. */
bool rig_open_session(struct rig *rig, struct sluice_session_options options);

/* Hands a JSON value to the rig, which frees it in rig_close; returns the value. */
json_t *rig_own(struct rig *rig, json_t *json);

/* Checks that the run freed its memory. If the plan's "keep" is true, residents may outlive the run. */
void check_memory_released(struct rig *rig, bool keep, const char *what);

void rig_close(struct rig *rig);

enum { IMAGES = 8, HEX = 65 };

struct result {
    int code;
    struct sluice_error error;
    int n_latents, n_images;
    char latent[IMAGES][HEX], image[IMAGES][HEX];
    json_t *plan; /* the plan that the run used, freed in rig_close; may be NULL */
};

/* Returns the session's report of the last run as JSON, or NULL; valid until rig_close. */
json_t *rig_report(struct rig *rig);

/* Returns the sum of the values of `key` over the stages of the last run's report. */
json_int_t rig_stages_sum(struct rig *rig, const char *key);

/* Runs the whole request, or decodes a latent file. latent: path of this file; NULL: run the request. */
struct result run_or_decode(struct rig *rig, const struct sluice_request *request, const char *latent);

struct result run(struct rig *rig, const struct sluice_request *request);

/* Runs a request that must succeed. */
struct result run_ok(struct rig *rig, const struct sluice_request *request, const char *what);

/* Runs a request that must give the latents and images of `want`. */
struct result run_equal(struct rig *rig, const struct sluice_request *request, const struct result *want,
                        const char *what);

/* Runs a request that must fail with this code ("USAGE"), exit code and `words` in its error line. */
struct result run_refused(struct rig *rig, const struct sluice_request *request, const char *code,
                          int exit_code, const char *words);

/* Checks that the run `got` succeeded, and by hash that its images equal the images of `want` from index
 * `first` on. */
bool same_from(const struct result *want, int first, const struct result *got, const char *what);

bool same(const struct result *want, const struct result *got, const char *what);

/* Hashes the request's final latent, from a CPU run without decoding on a newly opened model. Fails if the
 * model has unknown tensors. */
bool sample_latent(const struct sluice_model_options *from, struct sluice_request request, char latent[HEX],
                   const char *what);

/* Returns a picture of noise. Numbers 0 to 9 have different pixels, which noise_pixels returns; at most 192
 * KiB.
 */
struct sluice_picture noise_picture(int number, int width, int height);
uint8_t *noise_pixels(int number);

/* A request with a short prompt and negative prompt, seed 42 and a budget above the need of every fixture. */
struct sluice_request request_fox(int width, int height, int steps, int batch, double cfg_scale);

#endif
