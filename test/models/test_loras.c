/* Pipelines with LoRA adapters: every naming scheme, fused and split weights, convolutions, text encoders,
 * biases, two adapters at once, two transformers, quantised base weights. The cases of a fixture run in turn
 * in one session.
 *
 * Reference: diffusers with peft, unfused, or, for files that peft cannot read, with W + BA written into the
 * weights. test/golden/adapters.py makes the reference and checks that every LoRA pair changes the latent by
 * ten times the tolerance. */
#include "test/lib/golden_run.h"

#include <stdio.h>

static const struct tolerance tolerances[] = {
    {"hidden", 1.45e-6, 4.4e-6},
    {"pooled", 1.24e-6, 3.7e-6},
    {"latent after a step", 7.34e-6, 2e-5},
    {"latent", 1.2e-5, 2e-5},
    {0},
};

/* bf16 tolerances, measured under emulation: the fixtures hold no errors of PyTorch in bf16. */
static const struct tolerance gpu_tolerances[] = {
    {"hidden", 5.9e-3, 1.8e-2},
    {"pooled", 8.19e-3, 2.5e-2},
    {"latent after a step", 1.05e-2, 3e-2},
    {"latent", 1.05e-2, 3e-2},
    {0},
};

static void test_latents_with_adapters(const struct golden *g) {
    json_t *cases = json_object_get(g->expect, "cases"), *c;
    size_t i;
    char path[PATH];
    struct public_run *p = open_run(g, model_path(g, path), false);
    json_array_foreach(cases, i, c) run_latents(p, c);
    close_run(p);
}

static const struct golden_test tests[] = {
    {"adapted", test_latents_with_adapters, PRECISION_F32, true, NULL}};

static const struct suite *const *suites_of(const struct fixture *f) {
    static const struct suite adapted = {"adapters", tests, COUNT_OF(tests), tolerances, gpu_tolerances},
                              *const suites[] = {&adapted, NULL};
    return f->has_adapters ? suites : NULL;
}

int main(int argc, char **argv) {
    return golden_main("adapters", suites_of, argv + (argc > 0));
}
