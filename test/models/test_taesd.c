/* Tiny decoders (--taesd): read only by their flag, under all naming schemes; images equal the reference's;
 * the model may then lack its VAE; other files, and another model's tiny decoder, are refused. */
#include "test/lib/decoded_images.h"

#include "bench/dev/checkpoint.h"

#define MODEL  "test/golden/zimage_a/model"
#define TINIES "test/golden/taesd"

/* Decodes the latents of one fixture folder with the tiny decoder alone and with a model. */
static void test_image_equals_reference(const char *name) {
    char path[TENSOR_SET_PATH], number[24];
    snprintf(path, sizeof path, TINIES "/%s/reference.safetensors", name);
    struct tensor_set *p = tensor_set_from_file(path);
    snprintf(path, sizeof path, TINIES "/%s", name);
    for (int i = 0; i < 2; i++) {
        snprintf(number, sizeof number, "latent%d", i);
        struct item *t = tensor_set_find(p, number);
        const int32_t dim[4] = {1, t->dim[0], t->dim[1], t->dim[2]};
        const char *latent = write_latent_file(number, 4, dim, t->data);
        snprintf(number, sizeof number, "picture%d", i);
        const struct item *truth = tensor_set_find(p, number);
        const float *colours = (const float *)(const void *)truth->data;
        for (int beside = 0; beside < 1 + (dim[1] == 16); beside++) {
            struct decoded_images decoded =
                decode_images((options){.taesd = path, .model = beside ? MODEL : NULL}, latent);
            if (decoded.rgb) decoded_images_expect(&decoded, truth->dim[0], truth->dim[1], colours, path);
            check(!strcmp(decoded.decoder, "taesd"), "%s: decoded by %s", path, decoded.decoder);
            free(decoded.rgb);
        }
    }
    tensor_set_free(p);
}

/* Renames a decoder's tensors as TAESD's authors do, who count the clamp of the latent as a layer. */
static struct tensor_set *named_as_checkpoint(const struct tensor_set *of, const char *prefix) {
    static const char before[] = "decoder.layers.";
    struct tensor_set *p = calloc(1, sizeof *p);
    char name[TENSOR_SET_NAME];
    if (!p) abort();
    for (int i = 0; i < of->n; i++) {
        const struct item *t = &of->item[i];
        char *rest;
        long number = strtol(t->name + strlen(before), &rest, 10);
        snprintf(name, sizeof name, "%ld%s", number + 1, rest);
        tensor_set_add(p, prefix, name, t->type, t->rank, t->dim, t->data, t->bytes);
    }
    return p;
}

static void add_number(struct tensor_set *p, const char *name, float value) {
    tensor_set_add(p, "", name, "F32", 0, NULL, &value, sizeof value);
}

static void expect_readable(struct tensor_set *p, const char *config, const char *what) {
    struct rig rig;
    const char *path = temporary_path("named.safetensors");
    write_tensor_set(p, path, config);
    expect_same_result((options){.model = MODEL, .taesd = path}, what);
    if (rig_open_paths(&rig, (options){.model = MODEL, .taesd = path}, what)) {
        const struct component *tiny = model_component(rig.model, FAMILY_TINY_DECODER);
        check(tiny->family && !tiny->n_unknown, "%s: unknown tensors", what);
    }
    rig_close(&rig);
    tensor_set_free(p);
}

static void test_tensor_names(const struct tensor_set *tiny) {
    struct tensor_set *p = tensor_set_copy(tiny, "");
    add_other_tensor(p, "encoder.layers.");
    expect_readable(p, tiny->config, "diffusers' names");
    expect_readable(named_as_checkpoint(tiny, ""), tiny->config, "their authors' names");
    p = named_as_checkpoint(tiny, "decoder.");
    add_other_tensor(p, "encoder.");
    expect_readable(p, tiny->config, "encoder and decoder in one file");
    p = named_as_checkpoint(tiny, "taesd_decoder.");
    add_other_tensor(p, "taesd_encoder.");
    add_number(p, "vae_scale", 0.3611F);
    add_number(p, "vae_shift", 0.1159F);
    expect_readable(p, tiny->config, "ComfyUI's names");
    expect_readable(tensor_set_copy(tiny, "tae."), tiny->config, "with a prefix");
    /* The tiny decoder's file also holds a VAE: the flag decides which of the two is read. */
    p = named_as_checkpoint(tiny, "taesd_decoder.");
    struct tensor_set *vae = tensor_set_from_component(MODEL, "vae");
    tensor_set_append(p, vae, "vae.");
    tensor_set_free(vae);
    expect_readable(p, tiny->config, "together with a VAE");
}

static const char *tiny_path(void) {
    return temporary_path("tiny.safetensors");
}

static void link_model(const char *folder) {
    char command[4 * TENSOR_SET_PATH];
    snprintf(command, sizeof command, "mkdir '%s' && cp -rL %s/. '%s'", folder, MODEL, folder);
    check(!system(command), "%s", command);
}

static void test_not_used_without_flag(void) {
    struct result tiny = expected_result;
    struct rig rig;
    const char *folder = temporary_path("with");
    char place[TENSOR_SET_PATH];
    link_model(folder);
    if (rig_open_paths(&rig, (options){.model = MODEL}, "without"))
        expected_result = run(&rig, &expected_request);
    rig_close(&rig);
    check(strcmp(expected_result.image[0], tiny.image[0]) != 0, "the tiny decoder gives the VAE's image");
    check(!strcmp(expected_result.latent[0], tiny.latent[0]), "the tiny decoder changes the latent");
    for (int i = 0; i < 2; i++) { /* tiny decoders in the model's folder, as in ComfyUI's folder vae_approx */
        snprintf(place, sizeof place, "%s/taesd_%d.safetensors", folder, i);
        copy_file(tiny_path(), place);
    }
    expect_same_result((options){.model = folder}, "tiny decoders in the model's folder");
    expect_same_result((options){.model = MODEL, .taesd = "none"}, "none");
    expected_result = tiny;
    expect_same_result((options){.model = folder, .taesd = place}, "one of them by flag");
}

/* Without --taesd a folder is decoded by its VAE, even if a tiny decoder is found first. */
static void test_vae_preferred_without_flag(void) {
    char place[TENSOR_SET_PATH];
    snprintf(place, sizeof place, "mkdir '%s'", temporary_path("flat"));
    check(!system(place), "%s", place);
    snprintf(place, sizeof place, "%s/a.safetensors", temporary_path("flat"));
    copy_file(tiny_path(), place);
    snprintf(place, sizeof place, "%s/b.safetensors", temporary_path("flat"));
    copy_file(MODEL "/vae/diffusion_pytorch_model.safetensors", place);
    snprintf(place, sizeof place, "%s/config.json", temporary_path("flat"));
    copy_file(MODEL "/vae/config.json", place);
    struct tensor_set *reference = tensor_set_from_file(TINIES "/authors/reference.safetensors");
    const struct item *t = tensor_set_find(reference, "latent0");
    const char *latent =
        write_latent_file("first", 4, (int32_t[]){1, t->dim[0], t->dim[1], t->dim[2]}, t->data);
    tensor_set_free(reference);
    struct decoded_images decoded = decode_images((options){.model = temporary_path("flat")}, latent);
    check(!strcmp(decoded.decoder, "none"), "decoded by %s", decoded.decoder);
    free(decoded.rgb);
}

/* A model without a VAE, as a folder and as separate files, decodes with a tiny decoder. */
static void test_model_without_vae(void) {
    static const unsigned char grey[48 * 32 * 3];
    struct rig rig;
    struct sluice_picture picture = {.struct_size = sizeof picture, .width = 48, .height = 32, .rgb = grey};
    struct sluice_request request = expected_request;
    char command[TENSOR_SET_PATH];
    link_model(temporary_path("without"));
    snprintf(command, sizeof command, "rm -r '%s/vae'", temporary_path("without"));
    check(!system(command), "%s", command);
    options from = {.model = temporary_path("without"), .taesd = tiny_path()};
    expect_same_result(from, "without a VAE");
    expect_refused((options){.model = from.model}, MISSING, "without VAE and tiny decoder",
                   WORDS("no 'vae'", "--vae"));
    request.init_image = &picture;
    request.strength = 0.5;
    if (rig_open_paths(&rig, from, "an input image")) {
        struct result r = run(&rig, &request);
        check(r.code == SLUICE_MISSING && strstr(r.error.what, "no autoencoder") &&
                  strstr(r.error.expected, "--vae"),
              "an input image without a VAE: %s", r.error.what);
    }
    rig_close(&rig);
    json_t *all = inspect(from);
    check(all && !count(all, "missing") && !count(all, "unknown"),
          "inspect with a model reports missing or unknown tensors");
    json_decref(all);
    all = inspect((options){.model = tiny_path()});
    check(all && count(all, "components") == 1 && !count(all, "unknown"),
          "inspect does not find a tiny decoder alone");
    json_decref(all);
    expect_refused((options){.model = tiny_path(), .decodes_only = true}, MISSING, "without --taesd",
                   WORDS("no 'vae'", "tiny decoder", "--taesd"));
}

static void expect_warning_for_name(const char *name, const char *warning) {
    struct rig rig;
    char path[TENSOR_SET_PATH];
    snprintf(path, sizeof path, "mkdir -p '%s/%s'", temporary_path("names"), name);
    check(!system(path), "%s", path);
    snprintf(path, sizeof path, "%s/%s/x.safetensors", temporary_path("names"), name);
    copy_file(tiny_path(), path);
    if (rig_open_paths(&rig, (options){.model = MODEL, .taesd = path}, name))
        check(warning ? strstr(captured_log, warning) && strstr(captured_log, "colours may be wrong")
                      : !strstr(captured_log, "colours may be wrong"),
              "%s: %s", name, captured_log);
    rig_close(&rig);
}

static void test_name_of_other_model_warned(void) {
    expect_warning_for_name("taef1", NULL);
    expect_warning_for_name("tiny", NULL);
    expect_warning_for_name("taesd33", NULL);
    expect_warning_for_name("taesd3", "has \"taesd3\", which is for another model than zimage");
    expect_warning_for_name("models--madebyollin--TAESDXL", "has \"taesdxl\"");
    expect_warning_for_name("taesd3_and_taef1", NULL);
}

static void test_other_component_refused(const struct tensor_set *tiny) {
    static const char vae[] = MODEL "/vae";
    expect_refused((options){.model = MODEL, .taesd = vae}, UNSUPPORTED, "a VAE for --taesd",
                   WORDS("holds another component", "autoencoder (vae_kl)", "tiny decoder (", "--taesd"));
    expect_refused((options){.model = MODEL, .vae = tiny_path()}, UNSUPPORTED, "--vae with a tiny decoder",
                   WORDS("holds another component", "tiny decoder (taesd)", "autoencoder (", "--vae"));
    expect_refused((options){.model = MODEL, .taesd = TINIES "/f32"}, SHAPE, "another model's tiny decoder",
                   WORDS("latent channels", "4 in the tiny decoder", "16 as in the autoencoder"));
    expect_refused((options){.model = temporary_path("without"), .taesd = TINIES "/f32"}, SHAPE,
                   "another model's tiny decoder, no VAE",
                   WORDS("latent channels", "4 in the tiny decoder", "16 as in the transformer"));
    expect_refused((options){.model = MODEL, .taesd = TINIES "/f32", .decodes_only = true}, SHAPE,
                   "another model's tiny decoder, sluice decode",
                   WORDS("latent channels", "4 in the tiny decoder"));
    expect_refused((options){.model = MODEL, .taesd = "/nowhere"}, MISSING, "nothing", WORDS("/nowhere"));
    expect_refused((options){.model = MODEL, .taesd = write_near_decoder(tiny, NULL, "decoder.layers.19.")},
                   UNSUPPORTED, "an extra layer", WORDS("more layers"));
    expect_refused((options){.model = MODEL, .taesd = write_near_decoder(tiny, "decoder.layers.6.", NULL)},
                   MISSING, "shorter", WORDS("decoder.layers.6.weight", "near.safetensors"));
}

static void test_allocation_failures_and_nan(const struct tensor_set *tiny) {
    struct rig rig;
    expect_allocation_failures((options){.model = MODEL, .taesd = tiny_path()});
    struct tensor_set *p = tensor_set_copy(tiny, "");
    const char *path = temporary_path("nan.safetensors");
    memset(p->item[0].data, 0xff, 2);
    write_tensor_set(p, path, tiny->config);
    tensor_set_free(p);
    if (rig_open_paths(&rig, (options){.model = MODEL, .taesd = path}, "NaN")) {
        struct result r = run(&rig, &expected_request);
        check(r.code == SLUICE_NONFINITE && r.error.exit_code == 7 && !r.n_images && r.n_latents == 1,
              "NaN: %s", r.code ? r.error.what : "drawn");
    }
    rig_close(&rig);
}

static void test_generated_decoder(void) {
    struct error e = {0}, other = {0};
    struct checkpoint_options made = {.family = "taesd", .dimensions = "taesd_channels=8", .seed = 5};
    const char *folder = temporary_path("made");
    check(!checkpoint_write(&made, folder, &e), "made: %s", e.what);
    struct rig rig;
    if (rig_open_paths(&rig, (options){.model = MODEL, .taesd = folder}, "made")) {
        struct result r = run(&rig, &expected_request);
        check(r.code == SLUICE_OK && strcmp(r.image[0], expected_result.image[0]) != 0, "made: %s",
              r.error.what);
        check(strstr(captured_log, "decoded with the tiny decoder (taesd): the image differs slightly") !=
                  NULL,
              "no warning: %s", captured_log);
    }
    rig_close(&rig);
    made.dimensions = "vae0=8";
    check(checkpoint_write(&made, temporary_path("other"), &e) == USAGE &&
              strstr(e.where, "taesd_channels") && !strstr(e.where, "layers"),
          "another component's dimension is not refused: %s", e.where);
    made = (struct checkpoint_options){.family = "zimage", .dimensions = "taesd_channels=8", .seed = 5};
    check(checkpoint_write(&made, temporary_path("other"), &other) == USAGE,
          "a dimension of an unused component is not refused");
}

int main(void) {
    struct rig rig;
    temporary_make();
    struct tensor_set *tiny = tensor_set_from_component(TINIES, "bf16");
    write_tensor_set(tiny, tiny_path(), tiny->config);
    test_image_equals_reference("f32");
    test_image_equals_reference("bf16");
    test_image_equals_reference("authors");
    expected_request = request_fox(48, 32, 2, 1, 1);
    if (rig_open_paths(&rig, (options){.model = MODEL, .taesd = TINIES "/bf16"}, "a folder"))
        expected_result = run(&rig, &expected_request);
    rig_close(&rig);
    check(expected_result.n_images == 1, "no image: %s", expected_result.error.what);
    test_tensor_names(tiny);
    test_not_used_without_flag();
    test_vae_preferred_without_flag();
    test_model_without_vae();
    test_name_of_other_model_warned();
    test_other_component_refused(tiny);
    test_allocation_failures_and_nan(tiny);
    test_generated_decoder();
    tensor_set_free(tiny);
    return finish();
}
