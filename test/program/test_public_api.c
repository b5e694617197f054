/* The library as another program uses it (engine/sluice.h): progress, invalid arguments and texts, small
 * stacks. */
#include "engine/sluice_bench.h"
#include "test/lib/rig.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

/* Stack frames of the address sanitizer are several times larger; stack limits are not tested with it. */
#ifdef __SANITIZE_ADDRESS__
enum { HAS_LARGE_FRAMES = 1 };
#else
enum { HAS_LARGE_FRAMES = 0 };
#endif

static const char model_path[] = "test/golden/zimage_a/model";

/* ---- progress ---- */

struct progress_record {
    double fraction, eta;
    int n, n_falls;
};

static void record_progress(void *user, const struct sluice_progress *now) {
    struct progress_record *f = user;
    f->n_falls += now->fraction < f->fraction;
    f->fraction = now->fraction;
    f->eta = now->eta;
    f->n++;
}

/* Progress never decreases during a run and ends at 1 with 0 s left. */
static void progress_rises_to_one(void) {
    struct rig rig;
    struct progress_record f = {0};
    struct sluice_session_options options = {.threads = 1, .on_progress = record_progress, .user = &f};
    if (!rig_open(&rig, model_path, 1, 1)) return;
    for (int no_decode = 0; no_decode < 2; no_decode++) {
        struct sluice_request request = request_fox(64, 48, 3, 2, 2);
        request.no_decode = no_decode;
        f = (struct progress_record){0};
        if (!rig_open_session(&rig, options)) return;
        struct result r = run(&rig, &request);
        check(r.code == SLUICE_OK && f.n > 3 && f.n_falls == 0, "%d, %d reports, %d fall back", r.code, f.n,
              f.n_falls);
        check(f.fraction == 1 && f.eta == 0, "progress ends at %g, %g s left", f.fraction, f.eta);
    }
    rig_close(&rig);
}

struct nested_run {
    struct rig rig;
    int n, n_refused;
};

static void run_again(void *user, const struct sluice_progress *now) {
    struct nested_run *nested = user;
    struct sluice_request request = request_fox(64, 48, 1, 1, 2);
    struct sluice_error e;
    nested->n++;
    nested->n_refused += sluice_run(nested->rig.session, &request, &e) == SLUICE_USAGE && e.exit_code == 2;
}

/* A progress callback that starts a run in its own session gets an error; the outer run is not disturbed. */
static void nested_run_is_refused(void) {
    struct nested_run nested = {0};
    struct sluice_session_options options = {.threads = 1, .on_progress = run_again, .user = &nested};
    struct sluice_request request = request_fox(64, 48, 1, 1, 2);
    if (!rig_open(&nested.rig, model_path, 1, 1)) return;
    if (!rig_open_session(&nested.rig, options)) return;
    struct result r = run(&nested.rig, &request);
    check(r.code == SLUICE_OK && nested.n > 0 && nested.n_refused == nested.n,
          "%d: %d of %d nested runs refused", r.code, nested.n_refused, nested.n);
    rig_close(&nested.rig);
}

/* ---- invalid arguments ---- */

static void check_usage(int code, const struct sluice_error *e, const char *what) {
    check(code == SLUICE_USAGE && e->exit_code == 2 && strstr(e->where, what), "%s: %s, %s", what,
          sluice_code_name(code), e->where);
}

static void null_arguments(void) {
    struct rig rig;
    struct sluice_error e;
    struct sluice_model_options from = {.struct_size = sizeof from, .model = model_path};
    struct sluice_session_options to = {.struct_size = sizeof to};
    sluice_model *model = NULL;
    sluice_session *session = NULL;
    char *json = NULL, line[64] = "x";
    bool fits;
    if (!rig_open(&rig, model_path, 1, 1)) return;
    struct sluice_request request = request_fox(32, 32, 1, 1, 1);
    struct sluice_plan plan = {.struct_size = sizeof plan};
    check_usage(sluice_model_open(NULL, &model, &e), &e, "options");
    check_usage(sluice_model_open(&from, NULL, &e), &e, "model");
    check_usage(sluice_inspect(NULL, true, &json, &e), &e, "options");
    check_usage(sluice_inspect(&from, true, NULL, &e), &e, "json");
    check_usage(sluice_tokenize(NULL, "x", 1, &json, &e), &e, "options");
    check_usage(sluice_tokenize(&from, NULL, 0, &json, &e), &e, "text");
    check_usage(sluice_tokenize(&from, "x", 1, NULL, &e), &e, "json");
    check_usage(sluice_session_open(NULL, &to, &session, &e), &e, "model");
    check_usage(sluice_session_open(rig.model, NULL, &session, &e), &e, "options");
    check_usage(sluice_session_open(rig.model, &to, NULL, &e), &e, "session");
    check_usage(sluice_plan_query(NULL, &request, NULL, &json, &fits, &e), &e, "session");
    check_usage(sluice_plan_query(rig.session, NULL, NULL, &json, &fits, &e), &e, "request");
    check_usage(sluice_plan_query(rig.session, &request, NULL, NULL, &fits, &e), &e, "json");
    check_usage(sluice_plan_query(rig.session, &request, NULL, &json, NULL, &e), &e, "fits");
    check_usage(sluice_run(NULL, &request, &e), &e, "session");
    check_usage(sluice_run(rig.session, NULL, &e), &e, "request");
    check_usage(sluice_decode(NULL, &request, "x", &e), &e, "session");
    check_usage(sluice_decode(rig.session, NULL, "x", &e), &e, "request");
    check_usage(sluice_decode(rig.session, &request, NULL, &e), &e, "latent_file");
    check_usage(sluice_plan_summary(NULL, &plan, &e), &e, "session");
    check_usage(sluice_plan_summary(rig.session, NULL, &e), &e, "plan");
    check(sluice_plan_summary(rig.session, &plan, &e) == SLUICE_USAGE, "a summary before the first plan");
    check_usage(sluice_report(NULL, &json, &e), &e, "session");
    check_usage(sluice_report(rig.session, NULL, &e), &e, "json");
    check_usage(sluice_convert(NULL, &json, &e), &e, "options");
    check_usage(sluice_devices(NULL, &e), &e, "json");
    check_usage(sluice_families(NULL, &e), &e, "json");
    check_usage(sluice_bench_bus(NULL, &json, NULL, &e), &e, "options");
    check_usage(sluice_bench_ops(NULL, &json, NULL, &e), &e, "options");
    check_usage(sluice_bench_load(NULL, &json, &e), &e, "options");
    check_usage(sluice_bench_block(NULL, &json, &e), &e, "options");
    check(sluice_run(NULL, NULL, NULL) == SLUICE_USAGE, "only NULL arguments");
    sluice_cancel(NULL);
    sluice_request_defaults(NULL, &request);
    sluice_request_defaults(rig.model, NULL);
    sluice_session_close(NULL);
    sluice_model_close(NULL);
    sluice_free(NULL);
    check(!*sluice_error_line(NULL, line, sizeof line) && !sluice_error_line(&e, NULL, 0),
          "error line without an error or a buffer");
    check(!model && !session && !json, "an output argument was set");
    rig_close(&rig);
}

/* A model opened by family, without files, can be planned but not run. */
static void family_without_files(void) {
    struct rig rig;
    struct sluice_request request = request_fox(64, 64, 1, 1, 1);
    bool fits = false;
    if (!rig_open_with(&rig, (struct sluice_model_options){.family = "sd15"},
                       (struct sluice_session_options){.device = "cpu", .threads = 1}, 1))
        return;
    request.max_ram_bytes = (int64_t)1 << 30;
    json_t *json = query(&rig, &request, &fits);
    struct sluice_plan plan = {.struct_size = sizeof plan};
    struct sluice_error e;
    check(fits, "the plan without files does not fit");
    check(!sluice_plan_summary(rig.session, &plan, &e), "no summary of a plan: %s", e.what);
    check(plan.fits && plan.width == 64 && plan.frames == 1 && plan.batch == 1 &&
              plan.ram_budget_bytes == request.max_ram_bytes && plan.ram_least_bytes <= plan.ram_peak_bytes &&
              plan.ram_peak_bytes == ram(json, "peak") && !strcmp(plan.hash, word(json, "hash")),
          "the summary differs from the plan's JSON");
    run_refused(&rig, &request, "USAGE", 2, "opens no files");
    rig_close(&rig);
}

/* A struct whose struct_size is not set is refused with an error that names struct_size. */
static void struct_size_not_set(void) {
    struct rig rig;
    struct sluice_error e;
    struct sluice_model_options from = {.model = model_path};
    struct sluice_session_options to = {.threads = 1};
    struct sluice_convert_options convert = {.n_inputs = 1};
    struct sluice_bench_options bench = {.threads = 1};
    struct sluice_picture picture = {.width = 32, .height = 32, .rgb = (const uint8_t *)"x"};
    struct sluice_request request = {.prompt = "x"};
    sluice_model *model = NULL;
    sluice_session *session = NULL;
    char *json = NULL;
    bool fits;
    if (!rig_open(&rig, model_path, 1, 1)) return;
    check_usage(sluice_model_open(&from, &model, &e), &e, "options->struct_size");
    check_usage(sluice_inspect(&from, true, &json, &e), &e, "options->struct_size");
    check_usage(sluice_tokenize(&from, "x", 1, &json, &e), &e, "options->struct_size");
    check_usage(sluice_session_open(rig.model, &to, &session, &e), &e, "options->struct_size");
    check_usage(sluice_plan_query(rig.session, &request, NULL, &json, &fits, &e), &e, "request->struct_size");
    check_usage(sluice_run(rig.session, &request, &e), &e, "request->struct_size");
    check_usage(sluice_decode(rig.session, &request, "x", &e), &e, "request->struct_size");
    check_usage(sluice_convert(&convert, &json, &e), &e, "options->struct_size");
    check_usage(sluice_bench_ops(&bench, &json, NULL, &e), &e, "options->struct_size");
    request = request_fox(32, 32, 1, 1, 1);
    request.init_image = &picture;
    check(sluice_run(rig.session, &request, &e) == SLUICE_USAGE && strstr(e.what, "struct_size"),
          "input image: %s, %s", e.what, e.found);
    check(!model && !session && !json, "an output argument was set");
    rig_close(&rig);
}

/* ---- texts ---- */

static void invalid_texts(void) {
    struct rig rig;
    struct sluice_error e;
    struct sluice_model_options from = {.struct_size = sizeof from, .model = model_path};
    char *json = NULL, *longest = malloc(SLUICE_TEXT_BYTES_MAX + 2);
    bool fits;
    if (!rig_open(&rig, model_path, 1, 1)) return;
    struct sluice_request request = request_fox(32, 32, 1, 1, 2);
    /* The error gives the byte offset in the caller's text, without the chat template. */
    request.negative_prompt = "fox \xff";
    check(sluice_run(rig.session, &request, &e) == SLUICE_UTF8 && e.exit_code == 2 &&
              !strcmp(e.where, "byte 4 of the negative prompt"),
          "%s (%s)", e.what, e.where);
    request.prompt = "\xe4";
    check(sluice_run(rig.session, &request, &e) == SLUICE_UTF8 && !strcmp(e.where, "byte 0 of the prompt"),
          "%s (%s)", e.what, e.where);
    check(sluice_tokenize(&from, "ab\xff", 3, &json, &e) == SLUICE_UTF8 &&
              !strcmp(e.where, "byte 2 of the text"),
          "%s (%s)", e.what, e.where);
    memset(longest, 'a', SLUICE_TEXT_BYTES_MAX + 1);
    longest[SLUICE_TEXT_BYTES_MAX + 1] = 0;
    request.prompt = longest;
    request.negative_prompt = NULL;
    check(sluice_run(rig.session, &request, &e) == SLUICE_LIMIT && e.exit_code == 2, "too long: %s", e.what);
    check(sluice_tokenize(&from, longest, SLUICE_TEXT_BYTES_MAX + 1, &json, &e) == SLUICE_LIMIT, "too long");
    longest[SLUICE_TEXT_BYTES_MAX] = 0; /* the longest accepted text, to which the chat template is added */
    check(!sluice_plan_query(rig.session, &request, NULL, &json, &fits, &e), "the longest: %s", e.what);
    sluice_free(json);
    free(longest);
    rig_close(&rig);
}

/* ---- threads with small stacks ---- */

/* A thread that opens, plans and runs a model, with a stack of stack_bytes. */
struct worker {
    size_t stack_bytes;
    struct sluice_error opened, planned, ran;
    bool advised; /* the plan contains advice; the search for advice needs the most stack */
};

static int64_t least_of(const char *plan) {
    json_t *json = json_loads(plan, 0, NULL);
    int64_t bytes = ram(json, "least");
    json_decref(json);
    return bytes;
}

static void *work(void *user) {
    struct worker *w = user;
    struct sluice_model_options from = {.struct_size = sizeof from, .model = "models/demo"};
    struct sluice_session_options to = {.struct_size = sizeof to, .threads = 1};
    struct sluice_request request = {.struct_size = sizeof request};
    sluice_model *model = NULL;
    sluice_session *session = NULL;
    char *json = NULL;
    bool fits;
    if (sluice_model_open(&from, &model, &w->opened)) return NULL;
    if (!sluice_inspect(&from, true, &json, &w->opened)) sluice_free(json);
    if (!sluice_tokenize(&from, "a fox", 5, &json, &w->opened)) sluice_free(json);
    if (!w->opened.code && !sluice_session_open(model, &to, &session, &w->opened)) {
        sluice_request_defaults(model, &request);
        request.prompt = "a fox";
        request.width = request.height = 64;
        request.steps = 2;
        request.cfg_scale = 2;
        request.max_ram_bytes = 1;
        request.rates = "{\"version\":1,\"disk\":10000000}"; /* 10 MB/s: so slow that every plan has advice */
        json = NULL;
        if (!sluice_plan_query(session, &request, NULL, &json, &fits, &w->planned))
            request.max_ram_bytes = least_of(json) + (1 << 20);
        sluice_free(json);
        if (!w->planned.code && !sluice_plan_query(session, &request, NULL, &json, &fits, &w->planned)) {
            w->advised = strstr(json, "\"batch\"") && strstr(json, "\"disk\"");
            sluice_free(json);
        }
        sluice_run(session, &request, &w->ran);
        sluice_session_close(session);
    }
    sluice_model_close(model);
    return NULL;
}

/* Runs a function on a thread whose stack is filled with 0xA5 and ends at an inaccessible page. Returns the
 * number of stack bytes used, counted from the first byte that is not 0xA5. */
static size_t stack_taken(void *(*what)(void *), void *user, size_t bytes) {
    pthread_attr_t attributes;
    pthread_t thread;
    size_t guard = (size_t)sysconf(_SC_PAGESIZE), untouched = 0;
    pthread_attr_init(&attributes);
    char *mapped = mmap(NULL, bytes + guard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *stack = mapped + guard;
    mprotect(mapped, guard, PROT_NONE);
    memset(stack, 0xA5, bytes);
    pthread_attr_setstack(&attributes, stack, bytes);
    check(!pthread_create(&thread, &attributes, what, user) && !pthread_join(thread, NULL), "no thread");
    pthread_attr_destroy(&attributes);
    while (untouched < bytes && (unsigned char)stack[untouched] == 0xA5) untouched++;
    munmap(mapped, bytes + guard);
    return bytes - untouched;
}

/* Extra stack bytes of a thread: the C library puts thread-local variables there. */
enum { TLS_BYTES = 64 << 10 };

/* Planning and running use less stack than SLUICE_STACK_BYTES, of which oneDNN takes a part. */
static void stack_of_a_run(void) {
    struct worker large_stack = {.stack_bytes = 8 << 20},
                  least = {.stack_bytes = SLUICE_STACK_BYTES + TLS_BYTES};
    stack_taken(work, &large_stack, large_stack.stack_bytes);
    check(!large_stack.opened.code && !large_stack.planned.code && !large_stack.ran.code,
          "a stack of 8 MiB: %s", large_stack.ran.what);
    check(large_stack.advised, "the plan has no advice");
    check(stack_taken(work, &least, least.stack_bytes) < least.stack_bytes, "the stack overflowed");
    check(!least.opened.code && !least.planned.code && !least.ran.code, "the least stack: %s",
          least.ran.what);
}

/* ---- call stack of each public function ---- */

enum public_call {
    CALL_MODEL_OPEN,
    CALL_INSPECT,
    CALL_TOKENIZE,
    CALL_SESSION_OPEN,
    CALL_REPORT,
    CALL_CONVERT,
    CALL_DEVICES,
    CALL_FAMILIES,
    N_PUBLIC_CALLS
};

struct stack_call {
    enum public_call call;
    struct rig *rig;
    struct sluice_error error;
};

static const struct sluice_model_options demo = {.struct_size = sizeof demo, .model = "models/demo"};

static void convert_small(struct sluice_error *e) {
    const char *from[] = {"models/demo/transformer"}, *rules[] = {"^layers[.]0[.].*w1=q4_k", "(a+)+t=f16"};
    struct sluice_convert_options options = {.struct_size = sizeof options,
                                             .inputs = from,
                                             .n_inputs = 1,
                                             .output = "build/small_stack.gguf",
                                             .type = "q6_k",
                                             .rules = rules,
                                             .n_rules = 2};
    sluice_convert(&options, NULL, e);
    unlink(options.output);
}

static void *make_call(void *user) {
    struct stack_call *c = user;
    struct sluice_session_options to = {.struct_size = sizeof to, .threads = 2};
    sluice_model *model = NULL;
    sluice_session *session = NULL;
    char *json = NULL;
    if (c->call == CALL_MODEL_OPEN) sluice_model_open(&demo, &model, &c->error);
    if (c->call == CALL_INSPECT) sluice_inspect(&demo, true, &json, &c->error);
    if (c->call == CALL_TOKENIZE) sluice_tokenize(&demo, "a fox", 5, &json, &c->error);
    if (c->call == CALL_SESSION_OPEN) sluice_session_open(c->rig->model, &to, &session, &c->error);
    if (c->call == CALL_REPORT) sluice_report(c->rig->session, &json, &c->error);
    if (c->call == CALL_CONVERT) convert_small(&c->error);
    if (c->call == CALL_DEVICES) sluice_devices(&json, &c->error);
    if (c->call == CALL_FAMILIES) sluice_families(&json, &c->error);
    sluice_session_close(session);
    sluice_model_close(model);
    sluice_free(json);
    return NULL;
}

/* Calls that neither plan nor run take at most half of the stack that sluice.h documents for them,
 * SLUICE_STACK_BYTES_TO_OPEN. */
static void stack_of_a_call(void) {
    static const size_t sizes[] = {8 << 20, SLUICE_STACK_BYTES_TO_OPEN + TLS_BYTES};
    struct rig rig;
    if (!rig_open(&rig, demo.model, 1, 1)) return;
    for (int i = 0; i < N_PUBLIC_CALLS; i++)
        for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
            struct stack_call call = {(enum public_call)i, &rig, {0}};
            size_t taken = stack_taken(make_call, &call, sizes[j]);
            check(!call.error.code && 2 * taken <= SLUICE_STACK_BYTES_TO_OPEN, "call %d takes %zu of %zu: %s",
                  i, taken, sizes[j], call.error.what);
        }
    rig_close(&rig);
}

int main(void) {
    progress_rises_to_one();
    nested_run_is_refused();
    null_arguments();
    struct_size_not_set();
    family_without_files();
    invalid_texts();
    if (!HAS_LARGE_FRAMES) {
        stack_of_a_run();
        stack_of_a_call();
    }
    return finish();
}
