/* Sound decoder and vocoders of LTX-2 and 2.3 against diffusers (test/golden/ltx): odd numbers of moments,
 * narrow channels; names of diffusers and of the authors, the encoder in the file; buffers in host and in
 * device memory give equal results; other architectures are refused. */
#include "engine/open/configuration.h"
#include "engine/run/component.h"
#include "loaders/loaders.h"
#include "models/models.h"
#include "test/lib/vae_run.h"

#include <string.h>

/* Measured: at most 1.7e-6 (LTX-2.3), 5.3e-7 (the others) with AVX-512. */
static const double most = 5e-6, most_gpu = 2e-2;

static const struct slot slots[] = {
    {.family = &family_ltx2_audio_vae, .flag = "--audio-vae", .folder = "audio_vae"},
    {.family = &family_ltx2_vocoder, .flag = "--vocoder", .folder = "vocoder"}};

static void open_component(struct component *c, const char *model, const struct slot *slot) {
    struct error e = {0};
    enum config_origin origin;
    char path[GOLDEN_PATH];
    snprintf(path, sizeof path, "test/golden/%s/model/%s", model, slot->folder);
    *c = (struct component){.family = slot->family, .sys = &golden_state.sys};
    component_open(c->sys, path, &c->index, &e);
    assert_ok(&e);
    for (const struct family *const *f = families; *f; f++)
        if ((*f)->files.probe && (*f)->files.probe(&c->index) != (*f == c->family))
            fail_msg("%s is taken for %s", path, (*f)->name);
    configuration_bind(c, path, slot, &origin, &e);
    assert_ok(&e);
    assert_int_equal(c->n_unknown, 0);
}

/* Runs the component with as much memory as it needs, then with as little as possible. */
static void check_run(struct component *c, struct lane *lane, struct tensor out, struct tensor want,
                      const char *name) {
    static struct vae_run run;
    const uint64_t plenty = (uint64_t)1 << 40;
    struct device *device = golden_state.device;
    assert_int_equal(tensor_elements(&out), tensor_elements(&want));
    for (int host = 0; host < (device->memory ? 2 : 1); host++) {
        vae_run_measure(&run, c, lane, 1, device, 0);
        if (!device->memory) run.residents.device = NULL;
        plan_solve(&run.need, plenty, plenty, &run.plan);
        if (host) plan_solve(&run.need, plenty, run.plan.vram_least_bytes, &run.plan);
        memset(out.data, 0xff, (size_t)tensor_bytes(&out));
        vae_run_execute(&run);
        visit_list_destroy(&run.visits);
        double error = distance(out.data, want.data, tensor_elements(&want));
        printf("  %s: relative error %.2e\n", name, error);
        assert_true(error <= (on_gpu() ? most_gpu : most));
    }
}

static void open_reference(const char *model, struct tensor_index *reference) {
    struct error e = {0};
    char path[GOLDEN_PATH];
    snprintf(path, sizeof path, "test/golden/%s/reference.safetensors", model);
    safetensors_open(&golden_state.sys, path, reference, &e);
    assert_ok(&e);
}

static void test_decoder(void **state) {
    (void)state;
    struct component c;
    struct tensor_index reference;
    open_component(&c, "ltx2", &slots[0]);
    open_reference("ltx2", &reference);
    struct tensor in = read_tensor(&reference, "sound.decoder.in"),
                  want = read_tensor(&reference, "sound.decoder.out");
    struct lane lane = {.sound = tensor_reshape(test_copy(in), 4, in.dim + 1),
                        .mel = test_tensor(DTYPE_F32, 2, want.dim)};
    assert_int_equal(c.mel_columns, want.dim[1]);
    assert_int_equal(want.dim[0], c.frame_factor * (lane.sound.dim[2] - 1) + 1);
    check_run(&c, &lane, lane.mel, want, "decoder");
    index_destroy(&reference);
    component_destroy(&c);
    test_memory_free_to(NULL);
}

static void test_vocoders(void **state) {
    (void)state;
    for (int extended = 0; extended < 2; extended++) {
        struct component c;
        struct tensor_index reference;
        const char *model = extended ? "ltx23" : "ltx2";
        open_component(&c, model, &slots[1]);
        open_reference(model, &reference);
        assert_int_equal(c.sample_rate, extended ? 48000 : 24000);
        assert_int_equal(c.sound_channels, 2);
        struct tensor in = read_tensor(&reference, "vocoder.in"),
                      want = read_tensor(&reference, "vocoder.out");
        assert_int_equal(want.dim[0], in.dim[0] * c.samples_a_frame);
        struct lane lane = {.mel = test_copy(in), .wave = test_tensor(DTYPE_F32, 2, want.dim)};
        check_run(&c, &lane, lane.wave, want, model);
        index_destroy(&reference);
        component_destroy(&c);
        test_memory_free_to(NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_decoder), cmocka_unit_test(test_vocoders)};
    if (!golden_begin()) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("%d passed, %d failed\n", (int)(sizeof tests / sizeof *tests) - failed, failed);
    golden_end();
    return failed != 0;
}
