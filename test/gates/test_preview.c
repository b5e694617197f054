/* Previews: no bit of a picture changes for being looked at on the way; what is shown is what the denoiser
 * takes the picture to be, which is the picture itself behind the last step; what showing it takes is
 * planned; and what goes wrong with a preview ends no run. */
#include "engine/api/preview.h"
#include "engine/open/latent_file.h"
#include "test/lib/random_models.h"
#include "test/lib/residency.h"

#include <math.h>

enum { SIDE = 512, SHOWN_MOST = 64 };

/* ---- what is shown ---- */

struct shown {
    int index, step, of, width, height;
    uint64_t seed;
};

static struct looking {
    struct shown shown[SHOWN_MOST];
    int n;
    uint8_t last[SIDE * SIDE * 3];    /* of the last preview */
    uint8_t picture[SIDE * SIDE * 3]; /* of the last picture */
    int n_warned;
    sluice_session *cancelled; /* behind the first preview */
    struct fault_sys *starved;     /* what is mapped next behind the first preview is not to be had */
} looking;

static void on_preview(void *user, const struct sluice_preview *preview) {
    struct looking *l = user;
    size_t bytes = 3 * (size_t)preview->width * (size_t)preview->height;
    if (!check(bytes <= sizeof l->last && l->n < SHOWN_MOST, "%zu bytes, number %d", bytes, l->n)) return;
    memcpy(l->last, preview->rgb, bytes);
    l->shown[l->n++] = (struct shown){preview->index, preview->step,   preview->of,
                                      preview->width, preview->height, preview->seed};
    if (l->cancelled) sluice_cancel(l->cancelled);
    if (l->starved && l->n == 1) fault_sys_fail(l->starved, CALL_MAP, 1, 0);
}

static void on_image(void *user, const struct sluice_image *image) {
    struct looking *l = user;
    size_t bytes = 3 * (size_t)image->width * (size_t)image->height;
    if (check(bytes <= sizeof l->picture, "%zu bytes", bytes)) memcpy(l->picture, image->rgb, bytes);
}

static void on_log(void *user, int level, const char *line) {
    struct looking *l = user;
    l->n_warned += level == SLUICE_WARNING && strstr(line, "no more previews") != NULL;
}

/* Random weights: its pictures are as good as any to be alike. */
static const char *tiny_decoder(void) {
    return random_model("tiny", "taesd", "latent_channels=16,dtype=f32", 5);
}

static bool open_looking(struct rig *rig, const char *folder, const char *tiny) {
    struct error e = {0};
    const struct sluice_part part = {"--taesd", tiny};
    struct sluice_model_options from = {
        .struct_size = sizeof from, .model = folder, .parts = &part, .n_parts = tiny != NULL};
    struct sluice_session_options options = {
        .threads = 2, .on_preview = on_preview, .on_image = on_image, .on_log = on_log, .user = &looking};
    memset(rig, 0, sizeof *rig);
    memset(&looking, 0, sizeof looking);
    fault_sys_init(&rig->fault_sys, 3);
    if (!check(model_open(&rig->fault_sys.sys, &from, &rig->model, &e) == OK, "%s: %s", folder, e.what))
        return false;
    return rig_open_session(rig, &options);
}

static struct sluice_request request_of(const char *preview) {
    struct sluice_request r = request_fox(48, 32, 5, 1, 2.5);
    r.preview = preview;
    return r;
}

/* ---- no bit changes, and everyone has his own ---- */

/* Of steps 1 to `of`, the last one's is the picture itself. */
static int n_expected(const struct sluice_request *r, int of) {
    int every = r->preview_every ? r->preview_every : 1, n = 0;
    for (int step = 1; step <= of; step++) n += step % every == 0 && (step < of || r->no_decode);
    return n * r->batch;
}

/* The same bits as without previews; as many as there are to be, each of its image. */
static void looked_at(struct rig *rig, const char *folder, struct sluice_request r, const char *what) {
    struct sluice_request plain = r;
    plain.preview = NULL;
    struct result want = run_fresh(folder, 2, plain);
    looking.n = 0;
    struct result got = run(rig, &r);
    same(&want, &got, what);
    int of = looking.n ? looking.shown[0].of : 0;
    check(looking.n && looking.n == n_expected(&r, of), "%s: %d previews of %d steps", what, looking.n, of);
    json_t *planned = json_object_get(json_object_get(got.plan, "request"), "preview");
    check(number(planned, "pictures") == looking.n, "%s: %lld were planned", what,
          (long long)number(planned, "pictures"));
    for (int i = 0; i < looking.n; i++) {
        const struct shown *s = &looking.shown[i];
        check(s->index == i % r.batch && s->seed == r.seed + (uint64_t)s->index, "%s: of another image",
              what);
        check(s->of == of && s->step == (i / r.batch + 1) * (r.preview_every ? r.preview_every : 1),
              "%s: behind step %d of %d", what, s->step, s->of);
    }
    result_free(&want);
    result_free(&got);
}

static void sized(int width, int height, const char *what) {
    const struct shown *s = looking.shown;
    check(s->width == width && s->height == height, "%s: %d x %d is shown, not %d x %d", what, s->width,
          s->height, width, height);
}

static void pictures(const char *folder, const char *preview, int factor) {
    struct rig rig;
    char what[128];
    struct sluice_request r = request_of(preview);
    snprintf(what, sizeof what, "%s, %s", folder, preview);
    bool tiny = !strcmp(preview, "taesd");
    if (!open_looking(&rig, folder, tiny ? tiny_decoder() : NULL)) return;
    looked_at(&rig, folder, r, what);
    sized(48 / factor, 32 / factor, what);
    r.batch = 3;
    r.preview_every = 2;
    looked_at(&rig, folder, r, what);
    r.no_decode = true;
    r.preview_every = 5;
    looked_at(&rig, folder, r, what);
    rig_close(&rig);
}

/* Solvers with two evaluations a step, with noise drawn in between, and a grid with a step more. */
static void by_samplers(void) {
    static const char *const names[] = {"heun", "euler_a", "pndm", "lcm", "dpm++2m_sde"};
    const char *folder = "test/golden/sd1/model";
    struct rig rig;
    struct sluice_request r = request_of("latent");
    if (!open_looking(&rig, folder, NULL)) return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        r.sampler = names[i];
        looked_at(&rig, folder, r, names[i]);
    }
    rig_close(&rig);
}

/* All latent frames on one sheet, or the first frame as a picture. */
static void videos(void) {
    const char *one = "test/golden/wan_ti2v/model", *two = "test/golden/wan22/model";
    struct rig rig;
    struct sluice_request r = request_of("latent");
    r.width = r.height = 64;
    r.frames = 17;
    r.steps = 3;
    if (!open_looking(&rig, one, NULL)) return;
    looked_at(&rig, one, r, "a video's latent");
    sized(3 * 4, 2 * 4, "a sheet of five frames");
    r.preview = "vae";
    r.preview_every = 2;
    looked_at(&rig, one, r, "a video's first frame");
    sized(64, 64, "a frame");
    rig_close(&rig);
    if (!open_looking(&rig, two, NULL)) return;
    r.steps = 4;
    r.preview_every = 1;
    looked_at(&rig, two, r, "two denoisers");
    rig_close(&rig);
}

/* ---- what it shows ---- */

static uint8_t level(double value) {
    return (uint8_t)lrint(255 * fmin(fmax(value, 0), 1));
}

/* Pixels that are more than a rounding apart. */
static int unlike(const uint8_t *a, const uint8_t *b, int n) {
    int count = 0;
    for (int i = 0; i < n; i++) count += abs(a[i] - b[i]) > 1;
    return count;
}

/* Behind the last step the model takes the picture to be what it is. */
static void shows_latent(void) {
    static uint8_t want[SIDE * SIDE * 3];
    struct rig rig;
    struct tensor_index index;
    struct error e = {0};
    char path[256];
    int32_t dim[5];
    struct sluice_request r = request_of("latent");
    snprintf(path, sizeof path, "%s/latent.safetensors", temporary);
    r.no_decode = true;
    r.save_latent = path;
    if (!open_looking(&rig, "test/golden/zimage_a/model", NULL)) return;
    const struct latent_colours *colours = rig.model->recipe->colours;
    struct result got = run(&rig, &r);
    check(looking.n == 5, "%d previews", looking.n);
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
    check(!unlike(want, looking.last, n * 3), "%d values of %d differ", unlike(want, looking.last, n * 3),
          n * 3);
    free(values);
    index_destroy(&index);
    result_free(&got);
    rig_close(&rig);
}

static void shows_picture(const char *folder, int width, int height, const char *preview, int references) {
    static uint8_t rgb[32 * 32 * 3];
    static const struct sluice_picture picture = {
        .struct_size = sizeof picture, .width = 32, .height = 32, .rgb = rgb};
    static const struct sluice_picture *const list[] = {&picture};
    struct rig rig;
    struct sluice_request r = request_of(preview);
    bool tiny = !strcmp(preview, "taesd");
    r.width = width;
    r.height = height;
    r.no_decode = true;
    r.frames = 1;
    r.references = list;
    r.n_references = references;
    if (!open_looking(&rig, folder, tiny ? tiny_decoder() : NULL)) return;
    struct result looked = run(&rig, &r);
    r.no_decode = false;
    r.preview = NULL; /* with a tiny decoder, which then decodes */
    struct result drawn = run(&rig, &r);
    check(looking.n == 5 && drawn.n_images == 1, "%s: %d previews, %d pictures", folder, looking.n,
          drawn.n_images);
    int n = unlike(looking.last, looking.picture, width * height * 3);
    check(!n, "%s, %s: %d values differ from the picture", folder, preview, n);
    result_free(&looked);
    result_free(&drawn);
    rig_close(&rig);
}

/* Where the picture stays as it is, the preview has it. */
static void shows_what_is_kept(void) {
    static uint8_t rgb[48 * 32 * 3], black[48 * 32 * 3];
    static const struct sluice_picture init = {
        .struct_size = sizeof init, .width = 48, .height = 32, .rgb = rgb};
    struct sluice_picture mask = init;
    struct rig rig;
    struct sluice_request r = request_of("latent");
    for (int i = 0; i < 48 * 32 * 3; i++) rgb[i] = (uint8_t)(i * 7);
    for (int y = 0; y < 32; y++) memset(black + y * 48 * 3, 255, 16 * 3); /* its left third is drawn */
    mask.rgb = black;
    r.init_image = &init;
    r.mask = &mask;
    r.strength = 1;
    r.no_decode = true;
    if (!open_looking(&rig, "test/golden/zimage_a/model", NULL)) return;
    struct result got = run(&rig, &r);
    static uint8_t end[sizeof looking.last];
    memcpy(end, looking.last, sizeof end);
    looking.n = 0;
    r.preview_every = 4;
    result_free(&got);
    got = run(&rig, &r);
    const struct shown *s = looking.shown;
    check(looking.n == 1 && s->step == 4, "%d previews, behind step %d", looking.n, s->step);
    int kept = 0, drawn = 0;
    for (int y = 0; y < s->height; y++)
        for (int i = 0; i < s->width * 3; i++) {
            int differs = end[y * s->width * 3 + i] != looking.last[y * s->width * 3 + i];
            i / 3 < s->width / 3 ? (drawn += differs) : (kept += differs);
        }
    check(!kept && drawn, "%d values differ where nothing is drawn, %d where something is", kept, drawn);
    result_free(&got);
    rig_close(&rig);
}

/* ---- what it takes ---- */

/* At every read what is taken altogether: a preview's blocks are read when all else is there. */
static struct rig *observed;
static atomic_llong most_live;

static void look_at_memory(void *user, long n) {
    (void)user, (void)n;
    long long live = fault_sys_live_bytes(&observed->fault_sys), before = atomic_load(&most_live);
    while (live > before && !atomic_compare_exchange_weak(&most_live, &before, live)) {
    }
}

/* But for the bare process and what libraries take. */
static json_int_t planned_of_ours(json_t *plan) {
    json_int_t most = 0;
    size_t i;
    json_t *stage;
    json_array_foreach(json_object_get(plan, "stages"), i, stage) {
        json_int_t bytes = number(stage, "peak_ram_bytes") - number(stage, "library_bytes");
        if (bytes > most) most = bytes;
    }
    return most - number(plan, "base_bytes");
}

static void within_budget(struct rig *rig, const struct sluice_request *r, const struct result *want,
                          const char *what) {
    observed = rig;
    rig->fault_sys.on_read = look_at_memory;
    atomic_store(&most_live, 0);
    looking.n = 0;
    struct result got = run(rig, r);
    rig->fault_sys.on_read = NULL;
    same(want, &got, what);
    check(looking.n > 0, "%s: no previews", what);
    json_int_t peak = planned_of_ours(got.plan);
    check(atomic_load(&most_live) <= peak, "%s: %lld bytes are taken, %lld planned", what,
          atomic_load(&most_live), (long long)peak);
    result_free(&got);
}

static double denoising_seconds(json_t *plan) {
    return json_number_value(json_object_get(stage_of(plan, "denoise"), "seconds"));
}

/* The least budget does, a byte less is refused, and so is the least of a run without previews. */
static void planned(const char *preview) {
    struct rig rig;
    json_int_t least, all, without;
    const char *folder = wide_checkpoint(), *tiny = strcmp(preview, "taesd") ? NULL : tiny_decoder();
    struct sluice_request r = request_of(preview);
    r.width = 160;
    r.height = 128;
    r.steps = 2;
    struct sluice_request plain = r;
    plain.preview = NULL;
    if (!open_looking(&rig, folder, tiny)) return;
    struct result want = run(&rig, &r);
    bounds(&rig, r, &least, &all);
    for (int i = 0; i < 2; i++) {
        r.max_ram_bytes = i ? all : least;
        within_budget(&rig, &r, &want, preview);
    }
    r.max_ram_bytes = least - 1;
    struct result got = run(&rig, &r);
    check(got.code == SLUICE_BUDGET, "%s: a byte below the least: %s", preview, sluice_code_name(got.code));
    result_free(&got);
    if (!tiny) { /* which is then not what decodes */
        json_t *plan = query(&rig, &plain, NULL);
        check(denoising_seconds(plan) < denoising_seconds(want.plan), "%s: it takes no time", preview);
        json_decref(plan);
        bounds(&rig, plain, &without, &all);
        check(without < least, "%s: nothing is planned for it: %lld", preview, (long long)least);
    }
    result_free(&want);
    rig_close(&rig);
}

/* ---- what goes wrong ---- */

static void starved(void) {
    struct rig rig;
    struct sluice_request r = request_of("vae");
    if (!open_looking(&rig, "test/golden/zimage_a/model", NULL)) return;
    struct result want = run(&rig, &r);
    check(looking.n == 4, "%d previews", looking.n);
    looking.n = 0;
    looking.starved = &rig.fault_sys;
    struct result got = run(&rig, &r);
    same(&want, &got, "no memory for the second preview");
    check(looking.n == 1 && looking.n_warned == 1, "%d previews, %d warnings", looking.n, looking.n_warned);
    looking.starved = NULL;
    fault_sys_restart(&rig.fault_sys);
    result_free(&want);
    result_free(&got);
    rig_close(&rig);
}

static void cancelled(const char *preview) {
    struct rig rig;
    struct sluice_request r = request_of(preview);
    if (!open_looking(&rig, "test/golden/zimage_a/model", NULL)) return;
    looking.cancelled = rig.session;
    struct result got = run(&rig, &r);
    check(got.code == SLUICE_CANCELLED && looking.n == 1, "%s: %s, %d previews", preview,
          sluice_code_name(got.code), looking.n);
    result_free(&got);
    rig_close(&rig);
}

static void refused(const char *folder, struct sluice_request r, const char *what) {
    struct rig rig;
    if (!open_looking(&rig, folder, NULL)) return;
    struct result got = run(&rig, &r);
    check(got.code == SLUICE_USAGE && strstr(got.error.what, what), "%s: %s %s", what,
          sluice_code_name(got.code), got.error.what);
    result_free(&got);
    rig_close(&rig);
}

static void refusals(void) {
    const char *folder = "test/golden/zimage_a/model";
    struct rig rig;
    struct sluice_request r = request_of("latent");
    if (!rig_open(&rig, folder, 2, 3)) return;
    struct result got = run(&rig, &r);
    check(got.code == SLUICE_USAGE && strstr(got.error.what, "on_preview callback"), "nobody takes them: %s",
          sluice_code_name(got.code));
    result_free(&got);
    rig_close(&rig);
    refused(folder, request_of("sketch"), "invalid value for --preview");
    refused(folder, request_of("taesd"), "needs a tiny autoencoder");
    refused("test/golden/flux_a/model", request_of("latent"), "no colour table");
    r.preview_every = -1;
    refused(folder, r, "--preview-every");
}

int main(void) {
    temporary_make();
    pictures("test/golden/zimage_a/model", "latent", 8);
    pictures("test/golden/zimage_a/model", "taesd", 1);
    pictures("test/golden/sdxl/model", "vae", 1);
    by_samplers();
    videos();
    shows_latent();
    shows_picture("test/golden/zimage_a/model", 48, 32, "vae", 0);
    shows_picture("test/golden/zimage_a/model", 160, 128, "taesd", 0);
    shows_picture("test/golden/sdxl/model", 48, 32, "vae", 0);
    shows_picture("test/golden/wan_vace/model", 32, 32, "vae", 1); /* is a frame in front */
    shows_what_is_kept();
    planned("vae");
    planned("taesd");
    starved();
    cancelled("latent");
    cancelled("vae");
    refusals();
    return finish();
}
