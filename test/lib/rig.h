/* A model and a session on a watching sys, and runs whose hashes can be compared. */
#ifndef SLUICE_TEST_RIG_H
#define SLUICE_TEST_RIG_H

#include "engine/api/session.h"
#include "engine/open/model.h"
#include "test/lib/check.h"
#include "test/lib/folder.h"
#include "test/lib/plans.h"
#include "test/lib/fault_sys.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- model and session ---- */

struct rig {
    struct fault_sys fault_sys;
    sluice_model *model;
    sluice_session *session;
};

bool rig_open_session(struct rig *rig, struct sluice_session_options *options);

bool rig_open(struct rig *rig, const char *folder, int threads, uint64_t seed);

/* Kept residents are the only memory of size that may outlive a run. */
void check_memory_released(struct rig *rig, bool keep, const char *what);

void rig_close(struct rig *rig);

/* ---- runs ---- */

enum { IMAGES = 8, HEX = 65 };

struct result {
    int code;
    struct sluice_error error;
    int n_latents, n_images;
    char latent[IMAGES][HEX], image[IMAGES][HEX];
    json_t *plan; /* the one that was used; may be NULL */
};

/* The session's report; NULL if there is none. The caller decrefs it. */
json_t *rig_report(struct rig *rig);

/* A number of the last run's stages, added up. */
json_int_t rig_stages_sum(struct rig *rig, const char *key);

/* Returns how many. */
int read_hashes(json_t *list, char (*to)[HEX]);

void result_free(struct result *r);

/* latent: a file to decode; NULL: a run from the prompt. */
struct result run_or_decode(struct rig *rig, const struct sluice_request *request, const char *latent);

struct result run(struct rig *rig, const struct sluice_request *request);

/* want: what the same request gave; first: image 0 of got is image `first` of want. */
bool same_from(const struct result *want, int first, const struct result *got, const char *what);

bool same(const struct result *want, const struct result *got, const char *what);

/* The latent of that request, drawn on the CPU without a decode by a model that is opened for it alone, and
 * all of whose tensors are known. */
bool sample_latent(const struct sluice_model_options *from, struct sluice_request request, char latent[HEX],
                 const char *what);

/* ---- requests ---- */

/* A short prompt against another; any budget will do. */
struct sluice_request request_fox(int width, int height, int steps, int batch, double cfg_scale);

#endif
