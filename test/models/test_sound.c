/* Sound decoder and vocoders of LTX-2 and 2.3 against diffusers (test/golden/ltx): an odd number of latent
 * frames, few channels; names of diffusers and of the authors; files that also hold the encoder. Buffers in
 * host and in device memory give results within the tolerance. Other architectures are refused. */
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

/* Names of diffusers and of the authors: of the vocoders, then of the audio VAE. */
enum { VOCODER_RENAMES = 6 };
static const char *const renames[][2] = {{"upsamplers.", "ups."},
                                         {"resnets.", "resblocks."},
                                         {"conv_in.", "conv_pre."},
                                         {"conv_out.", "conv_post."},
                                         {"act_out.", "act_post."},
                                         {"downsample.filter", "downsample.lowpass.filter"},
                                         {"latents_mean", "per_channel_statistics.mean-of-means"},
                                         {"latents_std", "per_channel_statistics.std-of-means"}};

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct index_entry *)a)->name, ((const struct index_entry *)b)->name);
}

/* Gives a component's tensors the authors' names. */
static void rename_tensors(struct tensor_index *index, bool vocoder) {
    for (int i = 0; i < index->n_entries; i++)
        for (int k = vocoder ? 0 : VOCODER_RENAMES; k < (vocoder ? VOCODER_RENAMES : COUNT_OF(renames));
             k++) {
            const char *name = index->entries[i].name, *at = strstr(name, renames[k][0]);
            char *renamed = at ? test_memory(strlen(name) + 64) : NULL;
            if (!at) continue;
            sprintf(renamed, "%.*s%s%s", (int)(at - name), name, renames[k][1], at + strlen(renames[k][0]));
            index->entries[i].name = renamed;
        }
    qsort(index->entries, (size_t)index->n_entries, sizeof *index->entries, by_name);
}

/* Opens and binds a component. named: with the authors' names and without a configuration. */
static void open_component(struct component *c, const char *model, const struct slot *slot, bool named) {
    struct error e = {0};
    enum config_origin origin;
    char path[GOLDEN_PATH];
    snprintf(path, sizeof path, "test/golden/%s/model/%s", model, slot->folder);
    *c = (struct component){.family = slot->family, .sys = &golden_state.sys};
    component_open(c->sys, path, &c->index, &e);
    assert_ok(&e);
    if (named) rename_tensors(&c->index, slot == &slots[1]);
    for (const struct family *const *f = families; *f; f++)
        if ((*f)->files.probe && (*f)->files.probe(&c->index) != (*f == c->family))
            fail_msg("%s is taken for %s", path, (*f)->name);
    if (named)
        component_bind(c, &(struct config){0}, &e);
    else
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

static void check_decoder(bool named) {
    struct component c;
    struct tensor_index reference;
    open_component(&c, "ltx2", &slots[0], named);
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

static void check_vocoder(bool extended, bool named) {
    struct component c;
    struct tensor_index reference;
    const char *model = extended ? "ltx23" : "ltx2";
    open_component(&c, model, &slots[1], named);
    open_reference(model, &reference);
    assert_int_equal(c.sample_rate, extended ? 48000 : 24000);
    assert_int_equal(c.sound_channels, 2);
    struct tensor in = read_tensor(&reference, "vocoder.in"), want = read_tensor(&reference, "vocoder.out");
    assert_int_equal(want.dim[0], in.dim[0] * c.samples_a_frame);
    struct lane lane = {.mel = test_copy(in), .wave = test_tensor(DTYPE_F32, 2, want.dim)};
    check_run(&c, &lane, lane.wave, want, model);
    index_destroy(&reference);
    component_destroy(&c);
    test_memory_free_to(NULL);
}

static void test_reference(void **state) {
    (void)state;
    check_decoder(false);
    check_vocoder(false, false);
    check_vocoder(true, false);
}

static void test_names_of_the_authors(void **state) {
    (void)state;
    check_decoder(true);
    check_vocoder(false, true);
    check_vocoder(true, true);
}

/* Each case changes a tensor's shape or the configuration. message: part of the refusal; NULL: no refusal. */
static void test_others_refused(void **state) {
    (void)state;
    static const struct {
        const char *model, *tensor;
        int slot, axis, size; /* the axis of the tensor gets another size */
        const char *json, *message;
    } cases[] = {
        {"ltx2", "latents_mean", 0, 0, 7, "{}", "a multiple of the 3 latent channels"},
        {"ltx2", NULL, 0, 0, 0, "{\"norm_type\": \"group\"}", "norm_type"},
        {"ltx2", NULL, 0, 0, 0, "{\"causality_axis\": \"width\"}", "causality_axis"},
        {"ltx2", NULL, 1, 0, 0, "{\"act_fn\": \"snakebeta\"}", "act_fn"},
        {"ltx2", NULL, 1, 0, 0, "{\"final_act_fn\": \"clamp\"}", "final_act_fn"},
        {"ltx2", NULL, 1, 0, 0, "{\"upsample_factors\": [6, 5, 2, 2]}", "upsample_factors"},
        {"ltx2", NULL, 1, 0, 0, "{\"upsample_factors\": [5, 5, 2, 2, 2]}",
         "kernel of an upsampling convolution"},
        {"ltx2", "upsamplers.1.weight", 1, 2, 13, "{}", "kernel of an upsampling convolution"},
        {"ltx2", "resnets.4.convs1.0.weight", 1, 2, 7, "{}", NULL},
        {"ltx2", "resnets.1.convs1.0.weight", 1, 2, 8, "{}", "kernel of a residual block"},
        {"ltx23", NULL, 1, 0, 0, "{\"hop_length\": 60}", "samples per frame of the first generator"},
        {"ltx23", NULL, 1, 0, 0, "{\"output_sampling_rate\": 44100}", "output sampling rate"},
        {"ltx23", NULL, 1, 0, 0, "{\"output_sampling_rate\": 32000}", "of the bandwidth extension"},
        {"ltx23", "mel_stft.mel_basis", 1, 0, 8, "{}", "inputs of the bandwidth extension"},
    };
    for (int i = 0; i < COUNT_OF(cases); i++) {
        const struct slot *slot = &slots[cases[i].slot];
        struct component c = {.family = slot->family, .sys = &golden_state.sys};
        struct config config = {0};
        struct error e = {0};
        char path[GOLDEN_PATH];
        snprintf(path, sizeof path, "test/golden/%s/model/%s", cases[i].model, slot->folder);
        component_open(c.sys, path, &c.index, &e);
        config_parse(c.sys, path, cases[i].json, NULL, &config, &e);
        assert_ok(&e);
        if (cases[i].tensor)
            ((struct index_entry *)index_find(&c.index, cases[i].tensor))->dim[cases[i].axis] = cases[i].size;
        component_configure(&c, &config, &e);
        if (cases[i].message ? !strstr(e.what, cases[i].message) && !strstr(e.expected, cases[i].message)
                             : e.code != OK)
            fail_msg("case %d: \"%s\"", i, e.what);
        config_destroy(&config);
        component_destroy(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reference),
                                       cmocka_unit_test(test_names_of_the_authors),
                                       cmocka_unit_test(test_others_refused)};
    if (!golden_begin()) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("%d passed, %d failed\n", (int)(sizeof tests / sizeof *tests) - failed, failed);
    golden_end();
    return failed != 0;
}
