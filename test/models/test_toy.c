/* A pipeline of which the product knows nothing but its rows: bound by folders, flags and prefixes, planned,
 * hoisted, short of memory, reported and inspected; and the same computed once more in plain loops
 * (test/lib/toy_truth.c). That no plan and no batch changes its bits test_residency says, as of every
 * fixture.
 */
#include "test/lib/gates.h"
#include "test/lib/made_models.h"
#include "test/lib/rig.h"
#include "test/lib/toy_pipeline.h"
#include "test/lib/toy_truth.h"

#include <math.h>
#include <sys/stat.h>

/* ---- against the truth ---- */

/* A tensor that a run left in its folder. Freed by the caller. */
static void *read_dumped(const char *folder, const char *name, int *n) {
    char path[192];
    struct sys sys;
    struct error e = {0};
    struct tensor_index index;
    sys_init_machine(&sys);
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
    void *values = NULL;
    if (!check(safetensors_open(&sys, path, &index, &e) == OK, "%s: %s", path, e.what)) exit(finish());
    const struct index_entry *entry = index_find(&index, name);
    if (!check(entry, "%s: no tensor", path) || !(values = malloc(entry->bytes))) exit(finish());
    check(source_read(&index.sources[0], values, entry->bytes, entry->offset, &e) == OK, "%s", e.what);
    *n = (int)(entry->bytes / 4);
    index_destroy(&index);
    return values;
}

/* Measured on the committed toy, AVX-512 and AVX2; `most` is about three times that. */
static void compare(const char *folder, const char *name, const double *truth, int n, double most) {
    int found;
    double difference = 0, size = 0;
    float *values = read_dumped(folder, name, &found);
    check(found == n, "%s: %d values instead of %d", name, found, n);
    for (int i = 0; i < n && found == n; i++) {
        difference += ((double)values[i] - truth[i]) * ((double)values[i] - truth[i]);
        size += truth[i] * truth[i];
    }
    double error = sqrt(difference / size);
    check(error <= most, "%s: error %.2e, at most %.0e", name, error, most);
    printf("%-24s error %.2e, at most %.0e\n", name, error, most);
    free(values);
}

static void against_truth(struct rig *rig, struct sluice_request request) {
    static const char *const tokens[3][2] = {
        {"tokens", "tokens_uncond"}, {"tokens_2", "tokens_2_uncond"}, {"tokens_3", "tokens_3_uncond"}};
    char folder[128], name[48];
    struct toy_input input = {.model = rig->model, .request = &request};
    struct toy_truth truth;
    snprintf(folder, sizeof folder, "%s/dump", temporary);
    snprintf(name, sizeof name, "latent_%03d", request.steps);
    request.batch = 1;
    request.dump = folder;
    check(!mkdir(folder, 0700), "%s is there", folder);
    struct result r = run(rig, &request);
    if (!check(r.code == SLUICE_OK, "truth: %s (%s) %s", r.error.what, r.error.where, r.error.found)) return;
    for (int i = 0; i < 6; i++)
        input.tokens[i / 2][i % 2].ids =
            read_dumped(folder, tokens[i / 2][i % 2], &input.tokens[i / 2][i % 2].n);
    toy_truth_open(&truth, &input);
    compare(folder, "cond", truth.text, truth.rows * truth.columns, 2e-6);
    compare(folder, "pooled", truth.pooled, truth.columns, 2e-6);
    int pixels = request.width * request.height;
    compare(folder, name, truth.latent, TOY_CHANNELS * ((request.frames - 1) / 2 + 1) * pixels / 4, 2e-5);
    for (int i = 0; i < request.frames; i++) {
        snprintf(name, sizeof name, "decoded_frame_%04d", i);
        compare(folder, name, truth.frames + i * 3 * pixels, 3 * pixels, 2e-5);
    }
    toy_truth_close(&truth);
    for (int i = 0; i < 6; i++) free((void *)(uintptr_t)input.tokens[i / 2][i % 2].ids);
    result_free(&r);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    gates_begin();
    struct rig rig;
    const char *folder = toy_checkpoint();
    if (!rig_open(&rig, folder, 2, 3)) return finish();
    against_truth(&rig, gate_toy.request);
    rig_close(&rig);
    return finish();
}
