#include "engine/api/budget_error.h"

#include <stdio.h>
#include <string.h>

static bool fits_with(const struct job *job, const struct sluice_request *request) {
    struct job other;
    struct error e = {0};
    int32_t latent[5] = {job->batch, job->C, job->F, job->Y, job->X};
    bool fits = job_open(&other, &job->context, request, job->decode_only ? latent : NULL, &e) == OK &&
                job_plan(&other, &e) == OK && plan_check(other.need, &other.plan, &e) == OK;
    job_close(&other);
    return fits;
}

static bool fits_tiled(const struct job *job) {
    struct sluice_request other = job->request;
    other.vae_tiling = "on";
    return job->request.vae_tiling && !strcmp(job->request.vae_tiling, "off") && fits_with(job, &other);
}

static bool fits_without(const struct job *job) {
    struct sluice_request other = job->request;
    other.no_decode = true;
    return !job->decode_only && fits_with(job, &other);
}

enum status budget_error_suggest(const struct job *job, struct error *e) {
    const struct error plain = *e;
    if (job->request.plan || job->request.no_decode)
        return e->code; /* no suggestion: a --plan file is fixed, or --no-decode is already set */
    bool tiled = fits_tiled(job), without = fits_without(job);
    if (!tiled && !without) return e->code;
    *e = (struct error){0};
    return error_set(e, BUDGET, "%s is too large: %s" WHERE "%s" FOUND "%s" EXPECTED "%s%s%s",
                     without ? "only the decode" : "the decode", plain.what, plain.where, plain.found,
                     plain.expected, tiled ? "; or --vae-tiling on" : "",
                     without ? "; or --no-decode --save-latent FILE, then `sluice decode` elsewhere" : "");
}
