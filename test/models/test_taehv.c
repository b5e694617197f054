/* Tiny video decoders (--taesd with TAEHV files): frames equal the reference's, alone and with each model
 * whose latents they decode; the same bits for every budget and plan; other files are refused. test_taesd.c
 * tests tiny decoders in general. */
#include "bench/dev/checkpoint.h"
#include "engine/run/component.h"
#include "models/models.h"
#include "test/lib/residency.h"
#include "test/lib/decoded_images.h"

#define GOLDEN "test/golden/"
#define TINIES GOLDEN "taehv/"

/* Reorders a video [1, 3, F, Y, X] to [F, Y, X, 3]. The caller frees the values. */
static float *colours_last(const struct item *t) {
    int64_t n = (int64_t)t->dim[2] * t->dim[3] * t->dim[4];
    const float *from = (const float *)(const void *)t->data;
    float *to = malloc((size_t)n * 3 * sizeof *to);
    if (!to) abort();
    for (int64_t i = 0; i < n; i++)
        for (int c = 0; c < 3; c++) to[3 * i + c] = from[c * n + i];
    return to;
}

/* Writes the first n frames of a latent [1, C, F, Y, X] to a file; returns the file's path. */
static const char *first_of_latent(const struct item *t, int n) {
    const int32_t dim[5] = {1, t->dim[1], n, t->dim[3], t->dim[4]};
    size_t frame = sizeof(float) * (size_t)(dim[3] * dim[4]);
    char *values = malloc((size_t)(dim[1] * n) * frame);
    if (!values) abort();
    for (int32_t c = 0; c < dim[1]; c++)
        memcpy(values + (size_t)(c * n) * frame, t->data + (size_t)(c * t->dim[2]) * frame,
               (size_t)n * frame);
    const char *path = write_latent_file("latent.safetensors", 5, dim, values);
    free(values);
    return path;
}

/* video, picture: fixtures whose video or image latents the tiny decoder decodes; NULL: none. */
static void test_frames_equal_reference(const char *name, const char *video, const char *picture) {
    char path[TENSOR_SET_PATH];
    snprintf(path, sizeof path, TINIES "%s/reference.safetensors", name);
    struct tensor_set *p = tensor_set_from_file(path);
    const struct item *latent = tensor_set_find(p, "video.decoder.in"),
                      *truth = tensor_set_find(p, "video.decoder.out");
    float *colours = colours_last(truth);
    snprintf(path, sizeof path, TINIES "%s", name);
    for (int n = 1; n <= latent->dim[2]; n++)
        for (int i = 0; i < 3; i++) {
            const char *model = i == 1 ? video : i == 2 && n == 1 ? picture : NULL;
            if (i && !model) continue;
            struct decoded_images decoded =
                decode_images((options){.taesd = path, .model = model}, first_of_latent(latent, n));
            check(decoded.frames == 4 * n - 3, "%s: %d frames decoded from %d latent frames", path,
                  decoded.frames, n);
            if (decoded.rgb) decoded_images_expect(&decoded, truth->dim[3], truth->dim[4], colours, path);
            check(!strcmp(decoded.decoder, "taehv"), "%s: decoded by %s", path, decoded.decoder);
            free(decoded.rgb);
        }
    free(colours);
    tensor_set_free(p);
}

/* LightTAE reads latents with the VAE's scale and shift undone, other TAEHV decoders normalised latents. Only
 * the file name distinguishes them. */
static void test_light_tae_by_file_name(void) {
    static struct component vae = {.family = &family_vae_wan};
    struct tensor_set *p = tensor_set_from_file(TINIES "encoded/reference.safetensors");
    struct item *latent = tensor_set_find(p, "video.decoder.in");
    const struct item *truth = tensor_set_find(p, "video.decoder.out");
    float *colours = colours_last(truth), *values = (float *)(void *)latent->data;
    int64_t n = (int64_t)latent->dim[2] * latent->dim[3] * latent->dim[4];
    const char *path = temporary_path("LightTAEw2_1.safetensors");
    component_derive(&vae, NULL);
    check(vae.latent_format.n == latent->dim[1], "wrong number of latent channels");
    for (int64_t i = 0; i < n * latent->dim[1]; i++)
        values[i] = (values[i] - vae.latent_format.shift[i / n]) * vae.latent_format.scale[i / n];
    copy_file(TINIES "encoded/diffusion_pytorch_model.safetensors", path);
    struct decoded_images decoded =
        decode_images((options){.taesd = path}, first_of_latent(latent, latent->dim[2]));
    if (decoded.rgb) decoded_images_expect(&decoded, truth->dim[3], truth->dim[4], colours, path);
    free(decoded.rgb);
    free(colours);
    tensor_set_free(p);
}

/* The latent equals the latent of a run with the full decoder. The frames differ from those of the full
 * decoder, but no plan changes the frames. */
static void test_plan_does_not_change_frames(const char *model, const char *tiny, int frames) {
    struct rig rig;
    const options with = {.model = model, .taesd = tiny}, without = {.model = model};
    struct sluice_request request = request_fox(64, 32, 2, 1, 1);
    struct result large = {0};
    request.frames = frames;
    if (rig_open_paths(&rig, without, model)) large = run(&rig, &request);
    rig_close(&rig);
    if (!rig_open_paths(&rig, with, model)) return;
    struct result want = run(&rig, &request);
    json_t *decode = stage_of(want.plan, "decode");
    const char *family = json_string_value(json_object_get(decode, "family"));
    check(family && !strcmp(family, "taehv"), "%s: decoded by %s", model, family ? family : "none");
    check(large.n_images > 0 && want.n_images == large.n_images, "%s: %s", model, want.error.what);
    check(!strcmp(want.latent[0], large.latent[0]), "%s: the tiny decoder changes the latent", model);
    check(strcmp(want.image[0], large.image[0]) != 0, "%s: the tiny decoder gives the full decoder's frames",
          model);
    rig.fault_sys.short_reads = true;
    budgets(&rig, request, &want, 2, model); /* here opening the model takes more memory than any stage */
    edited_plan(&rig, request, &want, model);
    edited_plans(&rig, request, &want, thorough_or(EDITS_ALL, 3), model);
    rig_close(&rig);
}

/* Changes one dimension of a tensor whose data suffices for the new shape; returns the path of the new file.
 */
static const char *reshaped(const struct tensor_set *tiny, const char *name, int axis, int32_t dim) {
    struct tensor_set *p = tensor_set_copy(tiny, "");
    const char *path = temporary_path("near.safetensors");
    struct item *t = tensor_set_find(p, name);
    struct item whole = *t;
    whole.dim[axis] = dim;
    size_t bytes = sizeof(float);
    for (int i = 0; i < whole.rank; i++) bytes *= (size_t)whole.dim[i];
    char *zeros = calloc(1, bytes);
    if (!zeros) abort();
    tensor_set_drop(p, name);
    tensor_set_add(p, "", name, "F32", whole.rank, whole.dim, zeros, bytes);
    write_tensor_set(p, path, NULL);
    free(zeros);
    tensor_set_free(p);
    return path;
}

static void test_other_models_decoder_refused(const struct tensor_set *tiny) {
    static const char model[] = GOLDEN "wan21/model";
    expect_refused((options){.model = model, .taesd = GOLDEN "taesd/f32"}, UNSUPPORTED,
                   "an image decoder for videos",
                   WORDS("holds another component", "tiny decoder (taesd)", "tiny video decoder", "--taesd"));
    expect_refused((options){.model = GOLDEN "zimage_a/model", .taesd = TINIES "f32"}, UNSUPPORTED,
                   "a video decoder for images",
                   WORDS("holds another component", "tiny video decoder (taehv)", "--taesd"));
    expect_refused((options){.model = model, .vae = TINIES "f32"}, UNSUPPORTED, "--vae with a tiny decoder",
                   WORDS("holds another component", "tiny video decoder (taehv)", "--vae"));
    expect_refused((options){.model = model, .taesd = TINIES "encoded"}, SHAPE,
                   "another model's tiny decoder",
                   WORDS("latent channels", "16 in the tiny video decoder", "5 as in the autoencoder"));
    expect_refused(
        (options){.model = GOLDEN "wan_ti2v/model", .taesd = reshaped(tiny, "decoder.1.weight", 1, 48)},
        SHAPE, "of single pixels", WORDS("pixels per latent pixel and axis", "8 in the tiny", "16 as in"));
    expect_refused((options){.model = model, .taesd = reshaped(tiny, "decoder.22.weight", 0, 48)},
                   UNSUPPORTED, "a patch size of 4",
                   WORDS("patch size", "48 output channels", "near.safetensors"));
    expect_refused((options){.model = model, .taesd = reshaped(tiny, "decoder.4.conv.0.weight", 1, 7)}, SHAPE,
                   "a decoder of one frame",
                   WORDS("decoder.4.conv.0.weight", "[7, 7, 3, 3]", "[7, 14, 3, 3]"));
    expect_refused((options){.model = model, .taesd = reshaped(tiny, "decoder.7.conv.weight", 0, 14)}, SHAPE,
                   "a decoder of eight frames", WORDS("decoder.7.conv.weight", "[14, 7, 1, 1]"));
    expect_refused((options){.model = model, .taesd = reshaped(tiny, "decoder.8.weight", 0, 8193)}, SHAPE,
                   "too many channels", WORDS("too many channels", "8193 channels", "at most 8192"));
    expect_refused((options){.model = model, .taesd = write_near_decoder(tiny, NULL, "decoder.3.skip.")},
                   UNSUPPORTED, "other channel widths", WORDS("other channel widths", "TAEW 2.1 or 2.2"));
    expect_refused((options){.model = model, .taesd = write_near_decoder(tiny, NULL, "decoder.23.")},
                   UNSUPPORTED, "longer", WORDS("more layers"));
    expect_refused((options){.model = model, .taesd = write_near_decoder(tiny, "decoder.16.conv.4.", NULL)},
                   MISSING, "shorter", WORDS("decoder.16.conv.4.weight", "near.safetensors"));
}

/* Tests files with a prefix, with an encoder and a VAE besides the decoder, and generated files. */
static void test_prefixed_and_generated_files(const struct tensor_set *tiny) {
    static const char model[] = GOLDEN "wan21/model";
    struct error e = {0};
    struct rig rig;
    const char *path = temporary_path("named.safetensors"), *folder = temporary_path("made");
    expected_request = request_fox(48, 32, 2, 1, 1);
    expected_request.frames = 5;
    if (rig_open_paths(&rig, (options){.model = model, .taesd = TINIES "f32"}, "a folder"))
        expected_result = run(&rig, &expected_request);
    rig_close(&rig);
    check(expected_result.n_images > 0, "no frames: %s", expected_result.error.what);
    struct tensor_set *p = tensor_set_copy(tiny, "tae."), *vae = tensor_set_from_component(model, "vae");
    add_other_tensor(p, "tae.encoder.");
    tensor_set_append(p, vae, "vae.");
    write_tensor_set(p, path, NULL);
    expect_same_result((options){.model = model, .taesd = path}, "with a prefix");
    expect_allocation_failures((options){.model = model, .taesd = path});
    tensor_set_free(p);
    tensor_set_free(vae);
    struct checkpoint_options made = {
        .family = "taehv", .dimensions = "latent_channels=5,taehv_channels0=8", .seed = 5};
    check(!checkpoint_write(&made, folder, &e), "made: %s", e.what);
    if (rig_open_paths(&rig, (options){.model = model, .taesd = folder}, "made")) {
        struct result r = run(&rig, &expected_request);
        check(r.code == SLUICE_OK && strcmp(r.image[0], expected_result.image[0]) != 0, "made: %s",
              r.error.what);
    }
    rig_close(&rig);
}

int main(void) {
    temporary_make();
    struct tensor_set *tiny = tensor_set_from_file(TINIES "f32/diffusion_pytorch_model.safetensors");
    test_frames_equal_reference("f32", GOLDEN "wan21/model", GOLDEN "qwen_image/model");
    test_frames_equal_reference("bf16", GOLDEN "wan_ti2v/model", NULL);
    test_frames_equal_reference("encoded", NULL, NULL);
    test_light_tae_by_file_name();
    test_plan_does_not_change_frames(GOLDEN "wan21/model", TINIES "f32", 9);
    test_plan_does_not_change_frames(GOLDEN "wan_ti2v/model", TINIES "bf16", 5);
    test_plan_does_not_change_frames(GOLDEN "qwen_image/model", TINIES "f32", 0);
    test_other_models_decoder_refused(tiny);
    test_prefixed_and_generated_files(tiny);
    tensor_set_free(tiny);
    return finish();
}
