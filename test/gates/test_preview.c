/* Previews: they change no bit of the image, show the denoised estimate (after the last step the final
 * image), count in the plan, and a failing preview does not end the run. */
#include "engine/generate/preview.h"
#include "engine/open/latent_file.h"
#include "test/lib/random_models.h"
#include "test/lib/residency.h"

#include <math.h>

enum { SIDE = 512, SHOWN_MOST = 64 };

struct shown {
    int index, step, of, width, height;
    uint64_t seed;
};

static struct recorder {
    struct shown shown[SHOWN_MOST];
    int n;
    uint8_t last[SIDE * SIDE * 3];
    uint8_t picture[SIDE * SIDE * 3];
    int n_warned;
    sluice_session *cancelled; /* session to cancel after the first preview */
    struct fault_sys *starved; /* simulated system; its next memory map call fails after the first preview */
} recorder;

static void on_preview(void *user, const struct sluice_preview *preview) {
    struct recorder *l = user;
    size_t bytes = 3 * (size_t)preview->width * (size_t)preview->height;
    if (!check(bytes <= sizeof l->last && l->n < SHOWN_MOST, "unexpected preview of %zu bytes, number %d",
               bytes, l->n))
        return;
    memcpy(l->last, preview->rgb, bytes);
    l->shown[l->n++] = (struct shown){preview->index, preview->step,   preview->of,
                                      preview->width, preview->height, preview->seed};
    if (l->cancelled) sluice_cancel(l->cancelled);
    if (l->starved && l->n == 1) fault_sys_fail(l->starved, CALL_MAP, 1, 0);
}

static void on_image(void *user, const struct sluice_image *image) {
    struct recorder *l = user;
    size_t bytes = 3 * (size_t)image->width * (size_t)image->height;
    if (check(bytes <= sizeof l->picture, "unexpected image of %zu bytes", bytes))
        memcpy(l->picture, image->rgb, bytes);
}

static void on_log(void *user, int level, const char *line) {
    struct recorder *l = user;
    l->n_warned += level == SLUICE_WARNING && strstr(line, "no more previews") != NULL;
}

static const char *tiny_decoder(void) {
    return random_model("tiny", "taesd", "latent_channels=16,dtype=f32", 5);
}

/* Opens the model, with a tiny autoencoder if previews are decoded by one ("taesd"). */
static bool open_recording(struct rig *rig, const char *folder, const char *preview) {
    bool tiny = !strcmp(preview, "taesd");
    const struct sluice_part part = {"--taesd", tiny ? tiny_decoder() : NULL};
    struct sluice_session_options options = {
        .threads = 2, .on_preview = on_preview, .on_image = on_image, .on_log = on_log, .user = &recorder};
    memset(&recorder, 0, sizeof recorder);
    return rig_open_with(rig, (struct sluice_model_options){.model = folder, .parts = &part, .n_parts = tiny},
                         options, 3);
}

static struct sluice_request request_of(const char *preview) {
    struct sluice_request r = request_fox(48, 32, 5, 1, 2.5);
    r.preview = preview;
    return r;
}

/* Returns the expected number of previews for steps 1 to `of`; the last step always shows the final image. */
static int n_expected(const struct sluice_request *r, int of) {
    int every = r->preview_every ? r->preview_every : 1, n = 0;
    for (int step = 1; step <= of; step++) n += step % every == 0 && (step < of || r->no_decode);
    return n * r->batch;
}

/* Compares with a run without previews; checks the number and the image of each preview. */
static void check_previews(struct rig *rig, const char *folder, struct sluice_request r, const char *what) {
    struct sluice_request plain = r;
    plain.preview = NULL;
    struct result want = run_fresh(folder, 2, plain);
    recorder.n = 0;
    struct result got = run_equal(rig, &r, &want, what);
    int of = recorder.n ? recorder.shown[0].of : 0;
    check(recorder.n && recorder.n == n_expected(&r, of), "%s: %d previews in %d steps", what, recorder.n,
          of);
    json_t *planned = json_object_get(json_object_get(got.plan, "request"), "preview");
    check(number(planned, "pictures") == recorder.n, "%s: %lld previews were planned", what,
          (long long)number(planned, "pictures"));
    for (int i = 0; i < recorder.n; i++) {
        const struct shown *s = &recorder.shown[i];
        check(s->index == i % r.batch && s->seed == r.seed + (uint64_t)s->index,
              "%s: preview of another image", what);
        check(s->of == of && s->step == (i / r.batch + 1) * (r.preview_every ? r.preview_every : 1),
              "%s: unexpected preview after step %d of %d", what, s->step, s->of);
    }
}

static void check_preview_size(int width, int height, const char *what) {
    const struct shown *s = recorder.shown;
    check(s->width == width && s->height == height, "%s: preview of %d x %d, expected %d x %d", what,
          s->width, s->height, width, height);
}

static void test_previews_keep_bits(const char *folder, const char *preview, int factor) {
    struct rig rig;
    struct sluice_request r = request_of(preview);
    const char *what = format_text("%s, %s", folder, preview);
    if (!open_recording(&rig, folder, preview)) return;
    check_previews(&rig, folder, r, what);
    check_preview_size(48 / factor, 32 / factor, what);
    r.batch = 3;
    r.preview_every = 2;
    check_previews(&rig, folder, r, what);
    r.no_decode = true;
    r.preview_every = 5;
    check_previews(&rig, folder, r, what);
    rig_close(&rig);
}

/* Previews with samplers that evaluate twice per step, add noise in each step, or run one more step. */
static void test_previews_of_every_sampler(void) {
    static const char *const names[] = {"heun", "euler_a", "pndm", "lcm", "dpm++2m_sde"};
    const char *folder = "test/golden/sd1/model";
    struct rig rig;
    struct sluice_request r = request_of("latent");
    if (!open_recording(&rig, folder, r.preview)) return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        r.sampler = names[i];
        check_previews(&rig, folder, r, names[i]);
    }
    rig_close(&rig);
}

/* Previews of videos show all latent frames on one contact sheet, or the decoded first frame. */
static void test_previews_of_videos(void) {
    const char *one = "test/golden/wan_ti2v/model", *two = "test/golden/wan22/model";
    struct rig rig;
    struct sluice_request r = request_of("latent");
    r.width = r.height = 64;
    r.frames = 17;
    r.steps = 3;
    if (!open_recording(&rig, one, r.preview)) return;
    check_previews(&rig, one, r, "a video's latent");
    check_preview_size(3 * 4, 2 * 4, "contact sheet of five frames");
    r.preview = "vae";
    r.preview_every = 2;
    check_previews(&rig, one, r, "first frame of a video");
    check_preview_size(64, 64, "a frame");
    rig_close(&rig);
    if (!open_recording(&rig, two, r.preview)) return;
    r.steps = 4;
    r.preview_every = 1;
    check_previews(&rig, two, r, "pipeline with two denoisers");
    rig_close(&rig);
}

static uint8_t level(double value) {
    return (uint8_t)lrint(255 * fmin(fmax(value, 0), 1));
}

/* Returns the number of pixel values that differ by more than a rounding error. */
static int n_unlike(const uint8_t *a, const uint8_t *b, int n) {
    int count = 0;
    for (int i = 0; i < n; i++) count += abs(a[i] - b[i]) > 1;
    return count;
}

/* After the last step, the latent preview shows the projection of the final latent. */
static void test_last_latent_preview_is_final(void) {
    static uint8_t want[SIDE * SIDE * 3];
    struct rig rig;
    struct tensor_index index;
    struct error e = {0};
    int32_t dim[5];
    struct sluice_request r = request_of("latent");
    const char *path = format_text("%s/latent.safetensors", temporary);
    r.no_decode = true;
    r.save_latent = path;
    if (!open_recording(&rig, "test/golden/zimage_a/model", r.preview)) return;
    const struct latent_colours *colours = rig.model->recipe->colours;
    run(&rig, &r);
    check(recorder.n == 5, "%d previews", recorder.n);
    latent_open(&rig.fault_sys.sys, path, &index, dim, &e);
    int n = dim[3] * dim[4];
    float *values = calloc((size_t)(dim[1] * n), sizeof *values);
    latent_read(&index, 0, tensor_make(values, DTYPE_F32, 4, dim + 1), &e);
    check(e.code == OK, "%s", e.what);
    for (int i = 0; i < n * 3; i++) {
        double value = (double)colours->bias[i % 3];
        for (int c = 0; c < dim[1]; c++) value += (double)(values[c * n + i / 3] * colours->rgb[c][i % 3]);
        want[i] = level(value);
    }
    check(!n_unlike(want, recorder.last, n * 3), "%d of %d preview values differ from the projected latent",
          n_unlike(want, recorder.last, n * 3), n * 3);
    free(values);
    index_destroy(&index);
    rig_close(&rig);
}

static void test_last_decoded_preview_is_image(const char *folder, int width, int height, const char *preview,
                                               int references) {
    static uint8_t rgb[32 * 32 * 3];
    static const struct sluice_picture picture = {
        .struct_size = sizeof picture, .width = 32, .height = 32, .rgb = rgb};
    static const struct sluice_picture *const list[] = {&picture};
    struct rig rig;
    struct sluice_request r = request_of(preview);
    r.width = width;
    r.height = height;
    r.no_decode = true;
    r.frames = 1;
    r.references = list;
    r.n_references = references;
    if (!open_recording(&rig, folder, preview)) return;
    run(&rig, &r);
    r.no_decode = false;
    r.preview = NULL; /* without previews the tiny autoencoder decodes the final image */
    struct result generated = run(&rig, &r);
    check(recorder.n == 5 && generated.n_images == 1, "%s: %d previews, %d images", folder, recorder.n,
          generated.n_images);
    int n = n_unlike(recorder.last, recorder.picture, width * height * 3);
    check(!n, "%s, %s: %d preview values differ from the image", folder, preview, n);
    rig_close(&rig);
}

/* Inpainting: previews show the input image in the unmasked region. */
static void test_preview_blends_inpainting(void) {
    static uint8_t rgb[48 * 32 * 3], black[48 * 32 * 3];
    static const struct sluice_picture init = {
        .struct_size = sizeof init, .width = 48, .height = 32, .rgb = rgb};
    struct sluice_picture mask = init;
    struct rig rig;
    struct sluice_request r = request_of("latent");
    for (int i = 0; i < 48 * 32 * 3; i++) rgb[i] = (uint8_t)(i * 7);
    /* mask: white over the left third, the region to repaint */
    for (int y = 0; y < 32; y++) memset(black + y * 48 * 3, 255, 16 * 3);
    mask.rgb = black;
    r.init_image = &init;
    r.mask = &mask;
    r.strength = 1;
    r.no_decode = true;
    if (!open_recording(&rig, "test/golden/zimage_a/model", r.preview)) return;
    run(&rig, &r);
    static uint8_t end[sizeof recorder.last];
    memcpy(end, recorder.last, sizeof end);
    recorder.n = 0;
    r.preview_every = 4;
    run(&rig, &r);
    const struct shown *s = recorder.shown;
    check(recorder.n == 1 && s->step == 4, "%d previews, the last after step %d", recorder.n, s->step);
    int kept = 0, generated = 0;
    for (int y = 0; y < s->height; y++)
        for (int i = 0; i < s->width * 3; i++) {
            int differs = end[y * s->width * 3 + i] != recorder.last[y * s->width * 3 + i];
            i / 3 < s->width / 3 ? (generated += differs) : (kept += differs);
        }
    check(!kept && generated, "%d values differ in the unmasked region, %d in the masked one", kept,
          generated);
    rig_close(&rig);
}

/* Records the total live memory at every read. The preview's blocks are read while all other memory is in
 * use. */
static struct rig *observed;
static atomic_llong most_live;

static void record_memory(void *user, long n) {
    long long live = fault_sys_live_bytes(&observed->fault_sys), before = atomic_load(&most_live);
    while (live > before && !atomic_compare_exchange_weak(&most_live, &before, live)) {
    }
}

/* Returns the planned bytes, without the bytes of the bare process and of libraries. */
static json_int_t planned_without_libraries(json_t *plan) {
    json_int_t most = 0;
    json_t *stage;
    for (size_t i = 0; (stage = stage_at(plan, i)); i++) {
        json_int_t bytes = number(stage, "peak_ram_bytes") - number(stage, "library_bytes");
        if (bytes > most) most = bytes;
    }
    return most - number(plan, "base_bytes");
}

static void within_budget(struct rig *rig, const struct sluice_request *r, const struct result *want,
                          const char *what) {
    observed = rig;
    rig->fault_sys.on_read = record_memory;
    atomic_store(&most_live, 0);
    recorder.n = 0;
    struct result got = run_equal(rig, r, want, what);
    rig->fault_sys.on_read = NULL;
    check(recorder.n > 0, "%s: no preview was shown", what);
    json_int_t peak = planned_without_libraries(got.plan);
    check(atomic_load(&most_live) <= peak, "%s: %lld bytes used, %lld planned", what, atomic_load(&most_live),
          (long long)peak);
}

/* A run with previews fits its minimum budget, and one byte less is rejected. The minimum of a run without
 * previews is too small. */
static void test_previews_are_planned(const char *preview) {
    struct rig rig;
    json_int_t least, all, without;
    struct sluice_request r = request_of(preview);
    r.width = 160;
    r.height = 128;
    r.steps = 2;
    struct sluice_request plain = r;
    plain.preview = NULL;
    if (!open_recording(&rig, wide_checkpoint(), preview)) return;
    struct result want = run(&rig, &r);
    bounds(&rig, r, &least, &all);
    for (int i = 0; i < 2; i++) {
        r.max_ram_bytes = i ? all : least;
        within_budget(&rig, &r, &want, preview);
    }
    r.max_ram_bytes = least - 1;
    run_refused(&rig, &r, "BUDGET", 4, "");
    if (!strcmp(preview, "vae")) { /* previews add time, because their decoder is not the VAE */
        json_t *plan = query(&rig, &plain, NULL);
        check(real(stage_of(plan, "denoise"), "seconds") < real(stage_of(want.plan, "denoise"), "seconds"),
              "%s: the plan counts no time for previews", preview);
        bounds(&rig, plain, &without, &all);
        check(without < least, "%s: the plan counts no memory for previews: %lld", preview, (long long)least);
    }
    rig_close(&rig);
}

static void test_preview_without_memory_continues(void) {
    struct rig rig;
    struct sluice_request r = request_of("vae");
    if (!open_recording(&rig, "test/golden/zimage_a/model", r.preview)) return;
    struct result want = run(&rig, &r);
    check(recorder.n == 4, "%d previews", recorder.n);
    recorder.n = 0;
    recorder.starved = &rig.fault_sys;
    run_equal(&rig, &r, &want, "run whose second preview has no memory");
    check(recorder.n == 1 && recorder.n_warned == 1, "%d previews, %d warnings", recorder.n,
          recorder.n_warned);
    recorder.starved = NULL;
    fault_sys_restart(&rig.fault_sys);
    rig_close(&rig);
}

static void test_cancel_from_preview(const char *preview) {
    struct rig rig;
    struct sluice_request r = request_of(preview);
    if (!open_recording(&rig, "test/golden/zimage_a/model", r.preview)) return;
    recorder.cancelled = rig.session;
    struct result got = run(&rig, &r);
    check(got.code == SLUICE_CANCELLED && recorder.n == 1, "%s: %s, %d previews", preview,
          sluice_code_name(got.code), recorder.n);
    rig_close(&rig);
}

static void test_invalid_previews_are_rejected(void) {
    static const struct {
        const char *fixture, *preview;
        int every;
        const char *words;
    } rows[] = {{"zimage_a", "sketch", 0, "invalid value for --preview"},
                {"zimage_a", "taesd", 0, "needs a tiny autoencoder"},
                {"zimage_a", "latent", -1, "--preview-every"},
                {"flux_a", "latent", 0, "no colour table"}};
    struct rig rig;
    struct sluice_request r = request_of("latent");
    if (!rig_open(&rig, "test/golden/zimage_a/model", 2, 3)) return;
    run_refused(&rig, &r, "USAGE", 2, "on_preview callback");
    rig_close(&rig);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        r = request_of(rows[i].preview);
        r.preview_every = rows[i].every;
        const char *folder = format_text("test/golden/%s/model", rows[i].fixture);
        if (!open_recording(&rig, folder, "latent")) return;
        run_refused(&rig, &r, "USAGE", 2, rows[i].words);
        rig_close(&rig);
    }
}

int main(void) {
    temporary_make();
    test_previews_keep_bits("test/golden/zimage_a/model", "latent", 8);
    test_previews_keep_bits("test/golden/zimage_a/model", "taesd", 1);
    test_previews_keep_bits("test/golden/sdxl/model", "vae", 1);
    test_previews_of_every_sampler();
    test_previews_of_videos();
    test_last_latent_preview_is_final();
    test_last_decoded_preview_is_image("test/golden/zimage_a/model", 48, 32, "vae", 0);
    test_last_decoded_preview_is_image("test/golden/zimage_a/model", 160, 128, "taesd", 0);
    test_last_decoded_preview_is_image("test/golden/sdxl/model", 48, 32, "vae", 0);
    /* VACE: one reference frame precedes the frames of the video */
    test_last_decoded_preview_is_image("test/golden/wan_vace/model", 32, 32, "vae", 1);
    test_preview_blends_inpainting();
    test_previews_are_planned("vae");
    test_previews_are_planned("taesd");
    test_preview_without_memory_continues();
    test_cancel_from_preview("latent");
    test_cancel_from_preview("vae");
    test_invalid_previews_are_rejected();
    return finish();
}
