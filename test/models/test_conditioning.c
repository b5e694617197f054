/* CLIP conditioning of denoisers beyond the plain embeddings: several 77-token windows, prompt weights with
 * the mean restored, zero embeddings for an absent negative prompt, clip_skip, and SDXL's add_time_ids. Small
 * random models. Embeddings against transformers: test/models/test_blocks.c. */
#include "engine/job/open.h"
#include "engine/job/request.h"
#include "loaders/loaders.h"
#include "test/lib/random_models.h"
#include "test/lib/rig.h"

#include <math.h>
#include <sys/stat.h>

#define UNET                                                                                                 \
    "unet0=32,unet1=32,unet2=32,unet_layers1=1,unet_layers2=1,unet_middle_layers=1,clip_vocabulary=600,"     \
    "clip_ff=48,vae0=32,vae1=32,vae2=32,vae3=32,dtype=f16,"
#define CLIP_G "clip_g.pooled=40,clip_g.clip_heads=5,clip_g.clip_layers=4,clip_projection=16,"

static const struct {
    const char *family, *sizes;
} models[] = {
    {"sdxl",
     UNET CLIP_G "clip_l.pooled=32,clip_l.clip_heads=2,clip_l.clip_layers=3,unet_text=72,unet_pooled=16"},
    {"sdxl_refiner", UNET CLIP_G "unet3=32,unet_layers3=0,unet_text=40,unet_pooled=16"},
    {"sd15", UNET "unet3=32,unet_layers0=1,unet_heads=2,pooled=32,clip_heads=2,clip_layers=3,unet_text=32"},
};
enum { SDXL, REFINER, SD1, MODELS };

static const char *folders[MODELS];

static void make_models(void) {
    for (int i = 0; i < MODELS; i++)
        folders[i] = random_model(models[i].family, models[i].family, models[i].sizes, 7);
}

enum { COND, UNCOND, POOLED, POOLED_UNCOND, N_TENSORS };

struct texts {
    struct {
        float *values;
        int rows, columns; /* size of the tensor; 0: the run dumped no such tensor */
    } tensor[N_TENSORS];
    char latent[HEX];
    int code;
};

static struct sluice_request request_of(const char *prompt, const char *negative) {
    struct sluice_request r = request_fox(64, 64, 1, 1, negative ? 3 : 1);
    r.prompt = prompt;
    r.negative_prompt = negative;
    r.no_decode = true;
    return r;
}

static void read_tensor_dump(struct texts *t, int i, const char *folder) {
    static const char *const names[N_TENSORS] = {"cond", "uncond", "pooled", "pooled_uncond"};
    char path[192];
    struct sys sys;
    struct error e = {0};
    struct tensor_index index;
    struct stat there;
    sys_init_machine(&sys);
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, names[i]);
    if (stat(path, &there) || !check(safetensors_open(&sys, path, &index, &e) == OK, "%s", e.what)) return;
    const struct index_entry *entry = index_find(&index, names[i]);
    t->tensor[i].values = malloc(entry->bytes);
    t->tensor[i].rows = entry->dim[0];
    t->tensor[i].columns = entry->dim[1];
    source_read(&index.sources[0], t->tensor[i].values, entry->bytes, entry->offset, &e);
    index_destroy(&index);
}

static struct texts run_prompt(struct rig *rig, struct sluice_request request) {
    static int n;
    struct texts t = {0};
    char folder[128];
    snprintf(folder, sizeof folder, "%s/dump%d", temporary, n++);
    check(!mkdir(folder, 0700), "cannot create %s", folder);
    request.dump = folder;
    struct result r = run(rig, &request);
    t.code = r.code;
    if (check(r.code == SLUICE_OK, "\"%s\": %s (%s) %s", request.prompt, r.error.what, r.error.where,
              r.error.found)) {
        memcpy(t.latent, r.latent[0], HEX);
        for (int i = 0; i < N_TENSORS; i++) read_tensor_dump(&t, i, folder);
    }
    return t;
}

static void texts_free(struct texts *t) {
    for (int i = 0; i < N_TENSORS; i++) free(t->tensor[i].values);
}

static bool same_rows(const struct texts *a, int i, int row, const struct texts *b, int k, int rows) {
    int columns = a->tensor[i].columns;
    return columns && columns == b->tensor[k].columns && a->tensor[i].rows >= row + rows &&
           b->tensor[k].rows >= rows &&
           !memcmp(a->tensor[i].values + row * columns, b->tensor[k].values,
                   (size_t)rows * (size_t)columns * sizeof(float));
}

static bool is_zero(const struct texts *t, int i) {
    int n = t->tensor[i].rows * t->tensor[i].columns, zeros = 0;
    while (zeros < n && t->tensor[i].values[zeros] == 0) zeros++;
    return n && zeros == n;
}

static void expect_usage_error(struct rig *rig, struct sluice_request request, const char *what) {
    struct result r = run(rig, &request);
    check(r.code == SLUICE_USAGE, "%s: %d, %s", what, r.code, r.error.what);
}

enum { WINDOW = 77 };

static void test_windows_follow_each_other(struct rig *rig) {
    struct texts both = run_prompt(rig, request_of("a red fox BREAK b", NULL)),
                 first = run_prompt(rig, request_of("a red fox", NULL)),
                 second = run_prompt(rig, request_of("b", NULL));
    check(both.tensor[COND].rows == 2 * WINDOW && first.tensor[COND].rows == WINDOW,
          "not one window of rows per BREAK");
    check(same_rows(&both, COND, 0, &first, COND, WINDOW), "the first window's embeddings differ");
    check(same_rows(&both, COND, WINDOW, &second, COND, WINDOW), "the second window's embeddings differ");
    check(same_rows(&both, POOLED, 0, &first, POOLED, 1), "the pooled embedding is not the first window's");
    texts_free(&both);
    texts_free(&first);
    texts_free(&second);
}

/* Positive and negative prompts of different numbers of windows: each guidance branch reads only its own
 * prompt's rows. */
static void test_prompts_of_different_length(struct rig *rig) {
    const char *longer = "a red fox BREAK b", *shorter = "a blue house";
    struct texts a = run_prompt(rig, request_of(longer, shorter)),
                 b = run_prompt(rig, request_of(shorter, longer)),
                 even = run_prompt(rig, request_of(longer, longer));
    check(same_rows(&a, COND, 0, &b, UNCOND, 2 * WINDOW) && same_rows(&a, UNCOND, 0, &b, COND, WINDOW),
          "exchanged prompts do not exchange their embeddings");
    check(strcmp(a.latent, b.latent) != 0 && strcmp(a.latent, even.latent) != 0,
          "the number of windows has no effect");
    texts_free(&a);
    texts_free(&b);
    texts_free(&even);
}

/* Returns the relative error of weighted embeddings: an encoder's embeddings times token weights, rescaled to
 * keep each window's mean. */
static double weigh(const struct prompt_tokens *tokens, const struct texts *even, const struct texts *weighed,
                    int from, int to) {
    double error = 0, size = 0;
    int columns = even->tensor[COND].columns;
    for (int first = 0; first < tokens->n_ids; first += WINDOW) {
        const float *rows = even->tensor[COND].values + first * columns,
                    *found = weighed->tensor[COND].values + first * columns;
        double before = 0, after = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int i = 0; i < WINDOW; i++)
                for (int c = from; c < to; c++) {
                    double value = (double)rows[i * columns + c];
                    double times = value * (double)tokens->weights[first + i];
                    double wanted = times * before / after, off = (double)found[i * columns + c] - wanted;
                    before += pass ? 0 : value;
                    after += pass ? 0 : times;
                    error += pass ? off * off : 0;
                    size += pass ? wanted * wanted : 0;
                }
    }
    return sqrt(error / size);
}

static void test_prompt_weights_restore_mean(struct rig *rig) {
    const char *text = "a (red:1.3) fox, [b] BREAK (a:0.4) c";
    const struct recipe *recipe = rig->model->recipe;
    struct prompt_tokens tokens;
    struct error e = {0};
    struct texts even = run_prompt(rig, request_of("a red fox, b BREAK a c", NULL)),
                 weighed = run_prompt(rig, request_of(text, NULL));
    prompt_encode(rig->model->sys, &recipe->slot[0].text, rig->model->tokenizer[0], text, strlen(text), true,
                  &tokens, &e);
    int l = rig->model->component[0].text_columns, all = even.tensor[COND].columns;
    bool fits = check(tokens.weights && tokens.n_ids == even.tensor[COND].rows &&
                          even.tensor[COND].rows == weighed.tensor[COND].rows,
                      "the weighted prompt has other tokens");
    for (int encoder = 0; encoder < 2 && fits; encoder++) {
        double error = weigh(&tokens, &even, &weighed, encoder ? l : 0, encoder ? all : l);
        printf("prompt weights, encoder %d: error %.1e, at most 4e-7\n", encoder, error);
        check(error < 4e-7, "encoder %d: error %.1e", encoder, error);
    }
    check(same_rows(&even, POOLED, 0, &weighed, POOLED, 1), "prompt weights change the pooled embedding");
    prompt_destroy(rig->model->sys, &tokens);
    texts_free(&even);
    texts_free(&weighed);
    struct sluice_request request = request_of(text, NULL);
    request.prompt_weights = "off";
    struct texts off = run_prompt(rig, request);
    check(off.tensor[COND].rows == WINDOW, "--prompt-weights off still splits at BREAK");
    texts_free(&off);
    request.prompt_weights = "perhaps";
    expect_usage_error(rig, request, "--prompt-weights perhaps");
}

static void test_absent_negative_prompt(struct rig *rig, bool zeros, const char *what) {
    struct sluice_request request = request_of("a red fox", "");
    struct texts empty = run_prompt(rig, request), plain = run_prompt(rig, request_of("", NULL));
    request.negative_prompt = NULL;
    struct texts absent = run_prompt(rig, request);
    check(same_rows(&empty, UNCOND, 0, &plain, COND, WINDOW) && !is_zero(&empty, UNCOND),
          "%s: a negative prompt \"\" is not encoded", what);
    check(absent.tensor[UNCOND].rows == WINDOW, "%s: rows of an absent negative prompt", what);
    check(is_zero(&absent, UNCOND) == zeros, "%s: an absent negative prompt", what);
    check(zeros || same_rows(&absent, UNCOND, 0, &plain, COND, WINDOW),
          "%s: an absent negative prompt must equal \"\"", what);
    if (empty.tensor[POOLED].columns) {
        check(same_rows(&empty, POOLED_UNCOND, 0, &plain, POOLED, 1),
              "%s: pooled embedding of a negative prompt \"\"", what);
        check(is_zero(&absent, POOLED_UNCOND) == zeros, "%s: pooled embedding of an absent negative prompt",
              what);
    }
    check(same_rows(&absent, COND, 0, &empty, COND, WINDOW), "%s: the positive prompt's embeddings change",
          what);
    texts_free(&empty);
    texts_free(&plain);
    texts_free(&absent);
}

/* Tests a model_index.json that disables zero embeddings for an absent negative prompt. */
static void test_zero_embeddings_disabled(void) {
    static const char index[] = "{\"_class_name\": \"StableDiffusionXLPipeline\", "
                                "\"force_zeros_for_empty_prompt\": false}";
    char path[192];
    struct rig rig;
    snprintf(path, sizeof path, "%s/model_index.json", folders[SDXL]);
    FILE *to = fopen(path, "w");
    if (!check(to, "%s", path)) return;
    fputs(index, to);
    fclose(to);
    if (rig_open(&rig, folders[SDXL], 1, 1))
        test_absent_negative_prompt(&rig, false, "sdxl, force_zeros_for_empty_prompt false");
    rig_close(&rig);
}

/* Runs twice in one session: residents of another clip_skip must not be reused. */
static void test_clip_skip(struct rig *rig, int usual, int most, const char *what) {
    struct sluice_request request = request_of("a red fox", NULL);
    struct texts plain = run_prompt(rig, request), skipped[4] = {0};
    for (int turn = 0; turn < 2; turn++)
        for (int n = 1; n <= most; n++) {
            request.clip_skip = n;
            struct texts t = run_prompt(rig, request);
            check(turn ? !strcmp(t.latent, skipped[n].latent) : true,
                  "%s: clip_skip %d differs the second time", what, n);
            check(same_rows(&t, COND, 0, &plain, COND, WINDOW) == (n == usual),
                  "%s: embeddings at clip_skip %d", what, n);
            if (t.tensor[POOLED].columns)
                check(same_rows(&t, POOLED, 0, &plain, POOLED, 1),
                      "%s: clip_skip %d changes the pooled embedding", what, n);
            texts_free(&t);
            skipped[n] = t;
        }
    texts_free(&plain);
    request.clip_skip = most + 1;
    expect_usage_error(rig, request, "clip_skip beyond the first layer");
    request.clip_skip = -1;
    expect_usage_error(rig, request, "clip_skip -1");
}

/* Checks the add_time_ids of the positive and of the negative lane. */
static void test_add_time_ids(struct rig *rig, const float (*wanted)[ADD_TIME_IDS_MAX], int n,
                              const char *what) {
    static struct job job;
    struct error e = {0};
    struct sluice_request request = request_of("a", "b");
    request.width = 64;
    request.height = 128;
    struct job_context place = {.model = rig->model, .device = rig->session->device};
    if (!check(job_open(&job, &place, &request, NULL, &e) == OK, "%s: %s", what, e.what)) return;
    int s = job.layout.n_stages - 1;
    for (int i = 0; i < 2; i++) {
        const struct lane *lane = &job.layout.stages[s].lanes[i];
        check(lane->n_add_time_ids == n && !memcmp(lane->add_time_ids, wanted[i], (size_t)n * sizeof(float)),
              "%s: add_time_ids of lane %d", what, i);
    }
    job_close(&job);
}

static void test_options_refused_without_clip(void) {
    struct rig rig;
    if (rig_open(&rig, "test/golden/zimage_a/model", 1, 1)) {
        struct sluice_request request = request_of("a", NULL);
        request.clip_skip = 1;
        expect_usage_error(&rig, request, "no CLIP");
        request.clip_skip = 0;
        request.prompt_weights = "on";
        expect_usage_error(&rig, request, "prompt weights");
        request.prompt_weights = "off";
        struct texts t = run_prompt(&rig, request);
        texts_free(&t);
    }
    rig_close(&rig);
}

/* A prompt of several windows with skipped layers gives the same bits at its plan's minimum budget; one byte
 * less is an error. */
static void test_least_budget_keeps_bits(struct rig *rig) {
    struct sluice_request request = request_of("a (red:1.3) fox BREAK b", "c BREAK d BREAK e");
    struct sluice_error e;
    struct texts plain = run_prompt(rig, request);
    char *json = NULL;
    bool fits;
    check(!sluice_plan_query(rig->session, &request, NULL, &json, &fits, &e), "%s", e.what);
    json_t *plan = json_loads(json ? json : "", 0, NULL);
    request.max_ram_bytes =
        (int64_t)json_integer_value(json_object_get(json_object_get(plan, "least"), "ram_bytes"));
    struct texts tight = run_prompt(rig, request);
    check(!strcmp(tight.latent, plain.latent), "the least budget changes the latent");
    request.max_ram_bytes--;
    struct result r = run(rig, &request);
    check(r.code == SLUICE_BUDGET, "below the least budget: %d", r.code);
    json_decref(plan);
    sluice_free(json);
    texts_free(&plain);
    texts_free(&tight);
}

int main(void) {
    static const float sizes[2][ADD_TIME_IDS_MAX] = {{128, 64, 0, 0, 128, 64}, {128, 64, 0, 0, 128, 64}},
                       scored[2][ADD_TIME_IDS_MAX] = {{128, 64, 0, 0, 6}, {128, 64, 0, 0, 2.5F}};
    struct rig rig;
    temporary_make();
    make_models();
    if (n_failed) return finish();
    if (rig_open(&rig, folders[SDXL], 1, 1)) {
        test_windows_follow_each_other(&rig);
        test_prompts_of_different_length(&rig);
        test_least_budget_keeps_bits(&rig);
        test_prompt_weights_restore_mean(&rig);
        test_absent_negative_prompt(&rig, true, "sdxl");
        test_clip_skip(&rig, 2, 3, "sdxl");
        test_add_time_ids(&rig, sizes, 6, "sdxl");
    }
    rig_close(&rig);
    if (rig_open(&rig, folders[REFINER], 1, 1)) {
        test_absent_negative_prompt(&rig, false, "refiner");
        test_add_time_ids(&rig, scored, 5, "refiner");
    }
    rig_close(&rig);
    if (rig_open(&rig, folders[SD1], 1, 1)) {
        test_absent_negative_prompt(&rig, false, "sd1");
        test_clip_skip(&rig, 1, 3, "sd1");
        test_add_time_ids(&rig, sizes, 0, "sd1");
    }
    rig_close(&rig);
    test_zero_embeddings_disabled();
    test_options_refused_without_clip();
    return finish();
}
