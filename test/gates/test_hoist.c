/* Hoisting: modulation rows that depend only on the timestep are computed before the loop, with the same bits
 * as in each step, and the modulation weights are read once per run. Budgets do not influence hoisting.
 * Blocks that depend only on the prompt are always read once per run.
 *
 * sluice_model.no_hoist (engine/open/model.h) turns hoisting off for this program. */
#include "test/lib/rig.h"
#include "test/lib/random_models.h"

enum { SEGMENTS_MAX = 512, BUDGETS = 3 };

/* Predicate: selects the block kinds whose weight reads the test counts. */
static bool (*counted)(const struct block_kind *kind) = block_hoists;

/* Bytes that runs read from each file segment, for the blocks whose weight reads are counted. */
static struct ledger {
    struct {
        int file;
        int64_t from, to;
        atomic_llong bytes;
    } segment[SEGMENTS_MAX];
    int n;
} ledger;

static int64_t read_and_count(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    int64_t n = fault_sys_read_at(sys, file, to, bytes, offset);
    for (int i = 0; i < ledger.n && n > 0; i++) {
        int64_t from = offset, end = offset + n;
        if (ledger.segment[i].file != file) continue;
        if (from < ledger.segment[i].from) from = ledger.segment[i].from;
        if (end > ledger.segment[i].to) end = ledger.segment[i].to;
        if (end > from) atomic_fetch_add(&ledger.segment[i].bytes, end - from);
    }
    return n;
}

static void ledger_add(const struct block *block) {
    for (int i = 0; i < block->n_segments; i++) {
        const struct packed_segment *s = &block->segments[i];
        if (!check(ledger.n < SEGMENTS_MAX, "more than SEGMENTS_MAX segments")) return;
        ledger.segment[ledger.n].file = s->source->file;
        ledger.segment[ledger.n].from = (int64_t)s->file_offset;
        atomic_store(&ledger.segment[ledger.n].bytes, 0);
        ledger.segment[ledger.n++].to = (int64_t)(s->file_offset + s->bytes);
    }
}

static void ledger_open(const struct component *c) {
    ledger.n = 0;
    for (int b = 0; b < c->n_blocks; b++)
        if (counted(c->blocks[b].kind)) ledger_add(&c->blocks[b]);
    check(ledger.n >= 6, "only %d counted segments", ledger.n);
}

/* Returns the number of file segments that the previous run read exactly `times` times. */
static int n_read(int times) {
    int n = 0;
    for (int i = 0; i < ledger.n; i++) {
        long long whole = ledger.segment[i].to - ledger.segment[i].from;
        n += atomic_load(&ledger.segment[i].bytes) == times * whole;
    }
    return n;
}

static void check_reads(int times, const char *what) {
    int right = n_read(times);
    check(right == ledger.n, "%s: %d of %d segments were not read %d times", what, ledger.n - right, ledger.n,
          times);
}

static bool open_counting(struct rig *rig, const char *folder, bool plain) {
    if (!rig_open(rig, folder, 2, 9)) return false;
    rig->fault_sys.sys.read_at = read_and_count;
    rig->fault_sys.short_reads = true;
    rig->model->no_hoist = plain;
    return true;
}

static struct result run_fresh(struct rig *rig, const struct sluice_request *request) {
    rig_open_session(rig, (struct sluice_session_options){.threads = 2});
    ledger_open(model_component(rig->model, FAMILY_DENOISER));
    return run(rig, request);
}

static struct sluice_request request_of(int steps, int batch, double cfg_scale) {
    struct sluice_request request = request_fox(32, 16, steps, batch, cfg_scale);
    request.no_decode = true;
    return request;
}

/* Returns the number of a stage's blocks with `name` in their names and the given value of "hoisted". */
static int count_blocks(json_t *plan, const char *stage, const char *name, bool hoisted) {
    int n = 0;
    json_t *block;
    for (size_t i = 0; (block = block_at(stage_of(plan, stage), i)); i++)
        n += strstr(word(block, "name"), name) && json_is_true(json_object_get(block, "hoisted")) == hoisted;
    return n;
}

static json_int_t streaming_bytes(json_t *stage) {
    json_int_t bytes = 0;
    json_t *block;
    for (size_t i = 0; (block = block_at(stage, i)); i++)
        if (!json_is_true(json_object_get(block, "resident"))) bytes += number(block, "bytes");
    return bytes;
}

static void check_plan(json_t *plan, bool hoisted, const char *what) {
    int modulations = count_blocks(plan, hoisted ? "hoist" : "denoise", "modulation", hoisted);
    check(modulations >= 3, "%s: only %d modulation blocks in the expected stage", what, modulations);
    check(!count_blocks(plan, hoisted ? "denoise" : "hoist", "modulation", !hoisted),
          "%s: modulation blocks in the wrong stage", what);
    check(count_blocks(plan, hoisted ? "hoist" : "denoise", "time", hoisted) == 1,
          "%s: no time embedding block", what);
    check(count_blocks(plan, "hoist", "context_refiner", true) >= 1, "%s: no hoisted context refiner", what);
    check(!count_blocks(plan, "hoist", "", false) && !count_blocks(plan, "denoise", "", true),
          "%s: a stage mixes hoisted and other blocks", what);
    check(number(stage_of(plan, "hoist"), "state_bytes") == number(stage_of(plan, "denoise"), "state_bytes"),
          "%s: hoist and denoise have different state_bytes", what);
    check(streamed(plan, "hoist") == streaming_bytes(stage_of(plan, "hoist")),
          "%s: the hoist stage does not stream its blocks exactly once", what);
}

static json_int_t weight_bytes(const struct component *c) {
    json_int_t bytes = 0;
    for (int i = 0; i < c->n_blocks; i++)
        if (block_hoists(c->blocks[i].kind)) bytes += (json_int_t)c->blocks[i].bytes;
    return bytes;
}

/* Returns the state bytes that hoisting adds: modulation rows of all steps instead of one step. */
static json_int_t rows_bytes(struct rig *rig, struct sluice_request request) {
    json_t *hoisted = query(rig, &request, NULL);
    rig->model->no_hoist = true;
    json_t *plain = query(rig, &request, NULL);
    rig->model->no_hoist = false;
    return number(stage_of(hoisted, "denoise"), "state_bytes") -
           number(stage_of(plain, "denoise"), "state_bytes");
}

static bool is_hoisted(struct rig *rig, int steps, int batch, int64_t budget) {
    struct sluice_request request = request_of(steps, batch, 1);
    request.max_ram_bytes = budget;
    return count_blocks(query(rig, &request, NULL), "hoist", "modulation", true) > 0;
}

/* Modulation is hoisted up to the number of steps at which the hoisted rows take more bytes than the
 * modulation weights. */
static void test_only_steps_decide_hoisting(const char *folder) {
    struct rig rig;
    int low = 2, high = 10000;
    if (!rig_open(&rig, folder, 1, 9)) return;
    check(is_hoisted(&rig, low, 1, plenty) && !is_hoisted(&rig, high, 1, plenty),
          "%s: hoisting does not depend on the number of steps", folder);
    while (high - low > 1) {
        int middle = (low + high) / 2;
        is_hoisted(&rig, middle, 1, plenty) ? (low = middle) : (high = middle);
    }
    json_int_t weights = weight_bytes(model_component(rig.model, FAMILY_DENOISER));
    json_int_t rows = rows_bytes(&rig, request_of(low, 1, 1)), row = rows / (low - 1), page = PLAN_PAGE;
    check(rows <= weights + page && rows + 2 * row + page > weights, "%s: %d steps, rows %lld, weights %lld",
          folder, low, (long long)rows, (long long)weights);
    for (int i = 0; i < 2; i++)
        check(is_hoisted(&rig, low + i, 4, plenty) == !i && is_hoisted(&rig, low + i, 1, 1) == !i,
              "%s: %d steps: batch size or budget changes hoisting", folder, low + i);
    rig_close(&rig);
}

static int
    n_streamed; /* number of runs without hoisting that read the modulation weights again in every step */

/* Compares runs with and without hoisting at minimum and medium budgets, and all blocks resident. */
static void one_request(struct rig *hoisted, struct rig *plain, struct sluice_request request,
                        const char *name) {
    json_int_t least, all, plain_least, plain_all;
    bounds(hoisted, request, &least, &all);
    bounds(plain, request, &plain_least, &plain_all);
    struct result want = run_fresh(plain, &request);
    for (int i = 0; i < BUDGETS; i++) {
        struct sluice_request r = request;
        const char *what = format_text("%s, %d steps, batch %d, cfg %g, budget %d of %d", name, r.steps,
                                       r.batch, r.cfg_scale, i, BUDGETS - 1);
        r.max_ram_bytes = least + (all - least) * i / (BUDGETS - 1);
        struct result got = run_fresh(hoisted, &r);
        check_reads(1, what);
        same(&want, &got, what);
        check_plan(got.plan, true, what);
        r.max_ram_bytes = plain_least + (plain_all - plain_least) * i / (BUDGETS - 1);
        got = run_fresh(plain, &r);
        int evaluations = (int)number(stage_of(got.plan, "denoise"), "evaluations");
        if (!number(stage_of(got.plan, "denoise"), "resident_bytes")) check_reads(evaluations, what);
        n_streamed += evaluations > 1 && n_read(evaluations) > 0;
        same(&want, &got, what);
        check_plan(got.plan, false, what);
    }
}

/* Runs with and without hoisting alternate in one session, so that residents move between stages. */
static void alternate_hoisting(struct rig *rig, const char *name) {
    struct sluice_request request = request_of(3, 2, 4);
    request.no_decode = false;
    struct result want = run_fresh(rig, &request);
    for (int i = 0; i < 6; i++) {
        const char *what = format_text("%s alternating %d", name, i);
        rig->model->no_hoist = i % 3 == 1;
        request.steps = i == 4 ? 5 : 3;
        struct result got = run(rig, &request);
        if (request.steps == 3) same(&want, &got, what);
    }
    rig->model->no_hoist = false;
}

static void test_hoisting_keeps_bits(const char *folder, const char *name) {
    static const int steps[] = {1, 2, 7};
    struct rig hoisted, plain;
    if (!open_counting(&plain, folder, true)) return;
    if (open_counting(&hoisted, folder, false)) {
        for (int i = 0; i < 3; i++)
            for (int lanes = 0; lanes < 3; lanes++) {
                if (!thorough() && lanes != i) continue;
                struct sluice_request r = request_of(steps[i], lanes == 2 ? 2 : 1, lanes ? 3.5 : 1);
                one_request(&hoisted, &plain, r, name);
            }
        alternate_hoisting(&hoisted, name);
        rig_close(&hoisted);
    }
    rig_close(&plain);
}

static bool is_per_prompt(const struct block_kind *kind) {
    return kind->update_rate == UPDATE_PER_PROMPT;
}

/* A test case: a model that has `blocks` blocks with `word` in their names, all in the hoist stage. */
struct once {
    const char *folder, *name, *word;
    int blocks, frames;
};

/* At the minimum budget, weights that depend only on the prompt are read once for any number of steps: Wan's
 * cross-attention keys and values, SD3's modulation. */
static void test_prompt_blocks_are_read_once(struct once o) {
    struct rig rig;
    if (!open_counting(&rig, o.folder, false)) return;
    for (int steps = 1; steps <= 3; steps += 2) {
        struct sluice_request request = request_of(steps, 1, 3.5);
        json_int_t least, all;
        request.frames = o.frames;
        const char *what = format_text("%s, %d steps", o.name, steps);
        bounds(&rig, request, &least, &all);
        request.max_ram_bytes = least;
        struct result got = run_fresh(&rig, &request);
        check(got.code == SLUICE_OK, "%s: %s", what, got.error.what);
        check_reads(1, what);
        int n = count_blocks(got.plan, "hoist", o.word, true);
        check(n == o.blocks && !count_blocks(got.plan, "denoise", o.word, false),
              "%s: %d blocks in the hoist stage", what, n);
    }
    rig_close(&rig);
}

/* Only the position embedding rows that the image needs are read, once per run, under any budget. */
static void test_position_rows_are_read_once(const char *folder, const char *name) {
    struct rig rig;
    json_int_t budget[2];
    if (!open_counting(&rig, folder, false)) return;
    const struct component *c = model_component(rig.model, FAMILY_DENOISER);
    const struct block *table = &c->tables[0];
    struct sluice_request request = request_of(3, 1, 3.5);
    bounds(&rig, request, &budget[0], &budget[1]);
    for (int i = 0; i < 2 && check(c->n_tables == 1, "%s: %d tables", name, c->n_tables); i++) {
        rig_open_session(&rig, (struct sluice_session_options){.threads = 2});
        ledger.n = 0;
        ledger_add(table);
        request.max_ram_bytes = budget[i];
        struct result got = run(&rig, &request);
        long long read = atomic_load(&ledger.segment[0].bytes), row = table->tensors[0].shape.row_bytes;
        long long rows = request.width / 16 * (request.height / 16);
        check(got.code == SLUICE_OK && read == rows * row,
              "%s, budget %d: read %lld bytes of positions, expected %lld", name, i, read, rows * row);
    }
    rig_close(&rig);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    const char *wide = wide_checkpoint(); /* a model with f32 weights; fixtures have bf16 */
    test_hoisting_keeps_bits(wide, "wide");
    test_hoisting_keeps_bits("test/golden/zimage_b/model", "zimage_b");
    check(n_streamed >= (thorough() ? 2 : 1), "only %d runs without hoisting streamed weights", n_streamed);
    test_only_steps_decide_hoisting(wide);
    test_only_steps_decide_hoisting("test/golden/zimage_a/model");
    counted = is_per_prompt;
    test_prompt_blocks_are_read_once((struct once){"test/golden/wan21/model", "wan21", ".seen", 3, 5});
    counted = block_hoists;
    test_prompt_blocks_are_read_once(
        (struct once){"test/golden/sd3_medium/model", "sd3_medium", ".modulation", 3, 0});
    test_position_rows_are_read_once("test/golden/sd3_medium/model", "sd3_medium");
    return finish();
}
