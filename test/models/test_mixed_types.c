/* Whole pipelines from quantised files: GGUF with types that differ by tensor, also ComfyUI's, T5 in scaled
 * fp8, tokenizers in GGUF metadata; found by content, by flags and in folders.
 *
 * Reference: diffusers in f32 with the dequantised weights (test/golden/stored.py). Exact dequantisation:
 * test_dequantise.c. */
#include "test/lib/golden_run.h"
#include "test/lib/model_paths.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <limits.h>

static const struct tolerance tolerances[] = {
    {"hidden", 5.12e-6, 1e-5},   {"pooled", 2e-7, 6e-7},         {"latent after a step", 3.72e-6, 1.1e-5},
    {"latent", 4.77e-6, 1.4e-5}, {"noise.randn", 9.16e-7, 2e-6}, {0},
};

/* bf16 tolerances, measured under emulation: the fixtures hold no errors of PyTorch in bf16. Weights that are
 * rounded to another type have an error of a different size. */
static const struct tolerance gpu_tolerances[] = {
    {"hidden", 1.64e-2, 3e-2}, {"pooled", 3.32e-3, 1e-2},      {"latent after a step", 3.29e-3, 1e-2},
    {"latent", 1.2e-2, 2e-2},  {"noise.randn", 9.16e-7, 2e-6}, {0},
};

static bool types_read[N_DTYPES]; /* weight types of all tensors that the runs of this test read */

static void note_types(const struct sluice_model *model) {
    for (int slot = 0; slot < SLOTS_MAX; slot++)
        for (int i = 0; i < model->component[slot].n_blocks; i++) {
            const struct block *block = &model->component[slot].blocks[i];
            for (int k = 0; k < block->n_tensors; k++) types_read[block->tensors[k].shape.dtype] = true;
        }
}

static void run_cases(struct public_run *p) {
    json_t *cases = json_object_get(p->golden->expect, "cases"), *c;
    size_t i;
    json_array_foreach(cases, i, c) run_latents(p, c);
}

static void test_found_by_content(const struct golden *g) {
    char path[PATH];
    struct public_run *p = open_run(g, model_path(g, path), false);
    note_types(p->model);
    run_cases(p);
    close_run(p);
}

static void test_by_flags(const struct golden *g) {
    static char paths[8][PATH];
    struct model_paths from = *g->fixture->stored->flags;
    const char **flags[] = {&from.diffusion_model, &from.llm, &from.llm_vision, &from.clip_l,
                            &from.t5xxl,           &from.vae, &from.tokenizer};
    for (int i = 0; i < COUNT_OF(flags); i++) {
        if (!*flags[i]) continue;
        snprintf(paths[i], PATH, "%s/model/%s", g->path, *flags[i]);
        *flags[i] = paths[i];
    }
    struct public_run *p = open_parts(g, model_options(&from), false);
    run_cases(p);
    close_run(p);
}

static void link_part(const struct golden *g, const char *folder, const char *to, const char *part) {
    char from[PATH], real[PATH_MAX], name[PATH];
    snprintf(from, sizeof from, "%s/model/%s", g->path, part);
    snprintf(name, sizeof name, "%s/%s", folder, to);
    assert_non_null(realpath(from, real));
    assert_int_equal(symlink(real, name), 0);
}

static void test_in_folders(const struct golden *g) {
    char folder[] = "/tmp/sluice-stored-XXXXXX", command[PATH];
    const struct stored *stored = g->fixture->stored;
    if (!stored->text_encoder) {
        printf("  %s has no folder layout\n", g->name);
        return;
    }
    assert_non_null(mkdtemp(folder));
    link_part(g, folder, "transformer", "diffusion_models");
    link_part(g, folder, "text_encoder", stored->text_encoder);
    if (stored->tokenizer) link_part(g, folder, "tokenizer", stored->tokenizer);
    link_part(g, folder, "vae", "vae");
    struct public_run *p = open_run(g, folder, false);
    run_cases(p);
    close_run(p);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
}

static const struct golden_test tests[] = {
    {"found by content", test_found_by_content, PRECISION_F32, true, NULL},
    {"by flags", test_by_flags, PRECISION_F32, false, NULL},
    {"in folders", test_in_folders, PRECISION_F32, false, NULL},
};

static const struct suite *const *suites_of(const struct fixture *f) {
    static const struct suite stored = {"stored", tests, COUNT_OF(tests), tolerances, gpu_tolerances},
                              *const suites[] = {&stored, NULL};
    return f->stored ? suites : NULL;
}

int main(int argc, char **argv) {
    int failed = golden_main("stored", suites_of, argv + (argc > 0));
    for (enum dtype type = 0; type < N_DTYPES; type++) {
        if (!dtype_is_weight(type) || types_read[type]) continue;
        printf("no fixture has weights of type %s\n", dtype_name(type));
        failed = 1;
    }
    return failed;
}
