/* Latent upscalers against diffusers (test/golden/ltx2_upsampler.py): x2 under the names of both versions,
 * x1.5 with odd sizes, one frame of two pixels. Feature maps in host and in device memory give results within
 * the tolerance. Temporal upscalers and other scales are refused. */
#include "engine/open/configuration.h"
#include "engine/run/component.h"
#include "loaders/loaders.h"
#include "models/models.h"
#include "test/lib/tensor_notation.h"
#include "test/lib/vae_run.h"

#include <string.h>

enum { SIZES = 2 };

/* Measured: at most 1.2e-6; on the emulated GPU 1.3e-3. */
static const double most = 2e-6, most_gpu = 4e-3;

static const struct upscaler {
    const char *name, *path;
    int factor, divisor;
} upscalers[] = {
    {"x2", "model", 2, 1},
    {"x1_5", "model", 3, 2},
    {"x2_named", "model/upscaler.safetensors", 2, 1},
};

/* Opens the weights of an upscaler and reads its configuration; *index gets the reference tensors. */
static void open_upscaler(const struct upscaler *u, struct component *c, struct tensor_index *reference) {
    struct error e = {0};
    enum config_origin origin;
    int slot;
    char path[GOLDEN_PATH];
    const struct recipe *slots = models_find_extra("ltx2_upsampler", &slot);
    snprintf(path, sizeof path, "test/golden/ltx2_upsampler/%s/%s", u->name, u->path);
    *c = (struct component){.family = &family_ltx2_upsampler, .sys = &golden_state.sys};
    component_open(c->sys, path, &c->index, &e);
    assert_ok(&e);
    for (const struct family *const *f = families; *f; f++)
        assert_int_equal((*f)->files.probe && (*f)->files.probe(&c->index), *f == c->family);
    configuration_bind(c, path, &slots->slot[slot], &origin, &e);
    assert_ok(&e);
    assert_int_equal(origin, strcmp(u->path, "model") ? CONFIG_METADATA : CONFIG_JSON_FILE);
    assert_int_equal(c->n_unknown, 0);
    assert_int_equal(c->pixel_factor, u->factor);
    assert_int_equal(c->pixel_divisor, u->divisor);
    snprintf(path, sizeof path, "test/golden/ltx2_upsampler/%s/reference.safetensors", u->name);
    safetensors_open(c->sys, path, reference, &e);
    assert_ok(&e);
}

static void set_format(struct component *c, const struct tensor_index *reference) {
    struct tensor mean = read_tensor(reference, "mean"), std = read_tensor(reference, "std");
    c->latent_format.n = mean.dim[0];
    assert_int_equal(mean.dim[0], c->latent_channels);
    for (int i = 0; i < mean.dim[0]; i++) {
        c->latent_format.shift[i] = ((const float *)mean.data)[i];
        c->latent_format.scale[i] = 1 / ((const float *)std.data)[i];
    }
}

static struct tensor numbered(const struct tensor_index *reference, const char *name, int i) {
    char text[32];
    snprintf(text, sizeof text, "%s%d", name, i);
    return read_tensor(reference, text);
}

static void check_size(const struct component *c, const struct upscaler *u,
                       const struct tensor_index *reference, int i) {
    static struct vae_run run;
    const uint64_t plenty = (uint64_t)1 << 40;
    struct tensor in = numbered(reference, "latent", i), want = numbered(reference, "enlarged", i);
    struct lane lane = {.latent = test_copy(in), .enlarged = test_tensor(DTYPE_F32, 4, want.dim)};
    struct device *device = golden_state.device;
    for (int k = 2; k < 4; k++)
        assert_int_equal(want.dim[k], (in.dim[k] * u->factor + u->divisor - 1) / u->divisor);
    for (int host = 0; host < (device->memory ? 2 : 1); host++) {
        vae_run_measure(&run, c, &lane, 1, device, 0);
        if (!device->memory) run.residents.device = NULL;
        plan_solve(&run.need, plenty, plenty, &run.plan);
        if (host) plan_solve(&run.need, plenty, run.plan.vram_least_bytes, &run.plan);
        memset(lane.enlarged.data, 0xff, (size_t)tensor_bytes(&lane.enlarged));
        vae_run_execute(&run);
        visit_list_destroy(&run.visits);
        double error = distance(lane.enlarged.data, want.data, tensor_elements(&want));
        printf("%s, size %d: relative error %.2e\n", u->name, i, error);
        assert_true(error <= (on_gpu() ? most_gpu : most));
    }
}

static void test_reference(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof upscalers / sizeof *upscalers; i++) {
        struct component c;
        struct tensor_index reference;
        open_upscaler(&upscalers[i], &c, &reference);
        set_format(&c, &reference);
        for (int k = 0; k < SIZES; k++) check_size(&c, &upscalers[i], &reference, k);
        index_destroy(&reference);
        component_destroy(&c);
        test_memory_free_to(NULL);
    }
}

static struct index_entry *entry_of(struct component *c, const char *name) {
    return (struct index_entry *)index_find(&c->index, name);
}

static void test_others_refused(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        static const char *const messages[] = {
            "it adds frames (temporal upscaler)", "its convolutions are 2D",
            "unsupported scale of a latent upscaler", "invalid width of a latent upscaler"};
        struct component c = {.family = &family_ltx2_upsampler, .sys = &golden_state.sys};
        struct config none = {0};
        struct error e = {0};
        component_open(c.sys, "test/golden/ltx2_upsampler/x2/model", &c.index, &e);
        assert_ok(&e);
        struct index_entry *up = entry_of(&c, "upsampler.conv.weight");
        if (i == 0) up->rank = 5;
        if (i == 1) entry_of(&c, "initial_conv.weight")->rank = 4;
        if (i == 2) up->dim[0] *= 4;
        if (i == 3) {
            entry_of(&c, "initial_norm.weight")->dim[0] = entry_of(&c, "initial_conv.weight")->dim[0] = 65;
            up->dim[0] = 4 * 65;
        }
        assert_int_equal(component_configure(&c, &none, &e), i == 3 ? SHAPE : UNSUPPORTED);
        if (!strstr(e.what, messages[i])) fail_msg("%s", e.what);
        component_destroy(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reference),
                                       cmocka_unit_test(test_others_refused)};
    if (!golden_begin()) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("%d passed, %d failed\n", (int)(sizeof tests / sizeof *tests) - failed, failed);
    golden_end();
    return failed != 0;
}
