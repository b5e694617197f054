/* Streaming time against the lower bound and an independent simulator: every row of the predicted-time table,
 * and a run on the paced device that checks weight bytes.
 *
 * test/golden/stream/table.csv has the simulator's figures; make_table.py writes it. */
#include "bench/dev/stream_async.h"

#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"
#include "bench/dev/paced.h"
#include "test/lib/word_file.h"
#include "test/lib/seeded.h"

#include <string.h>

enum { ROWS = 384, LAYOUTS = N_STREAM_LAYOUTS, SIMULATED = LAYOUTS - 1 };

static struct stream_table table, again;

#if defined(__SANITIZE_ADDRESS__)
static const double compared = 0.2; /* fraction of table rows that are simulated twice, which is slow */
#else
static const double compared = 2;
#endif

static bool refuse_after(void *user, double fraction) {
    return fraction < *(const double *)user;
}

static int fill_tables(void **state) {
    struct error e = {0}, cut = {0};
    double until = compared;
    struct stream_watch watch = {.go_on = refuse_after, .user = &until};
    if (stream_timed(&table, NULL, &e) == OK) stream_timed(&again, &watch, &cut);
    printf("%s%s", e.what, e.code ? "\n" : "");
    return e.code || (cut.code && cut.code != CANCELLED);
}

static bool is(const struct stream_row *row, const char *layout) {
    return strcmp(row->layout, layout) == 0;
}

static const struct stream_row *find_row(const char *blocks, const char *layout, int percent, double bus) {
    for (int i = 0; i < table.n_rows; i++) {
        const struct stream_row *r = &table.rows[i];
        if (is(r, layout) && strcmp(r->blocks, blocks) == 0 && r->resident_percent == percent &&
            r->bus == bus)
            return r;
    }
    return NULL;
}

/* Unless `good`: prints the table row and the figure, and fails the test. */
static void expect(bool good, const struct stream_row *row, const char *what, double figure) {
    if (!good)
        printf("%s %s %d %% at %.0f GB/s: %.6f s, lower bound %.6f: %s %.6f\n", row->blocks, row->layout,
               row->resident_percent, row->bus / 1e9, row->seconds, row->floor_seconds, what, figure);
    assert_true(good);
}

TEST(table_is_complete) {
    static const char *const blocks[] = {"zimage", "flux", "qwen_image", "uniform"};
    static const char *const layouts[LAYOUTS] = {"ours",   "prefix",  "suffix", "even",
                                                 "depth1", "no_wrap", "sync",   "branches_apart"};
    static const double buses[] = {12e9, 24e9, 56e9};
    assert_int_equal(table.n_rows, ROWS);
    for (int b = 0; b < COUNT_OF(blocks); b++)
        for (int l = 0; l < LAYOUTS; l++)
            for (int percent = 0; percent <= 60; percent += 20)
                for (int i = 0; i < COUNT_OF(buses); i++)
                    assert_non_null(find_row(blocks[b], layouts[l], percent, buses[i]));
}

TEST(table_is_deterministic) {
    assert_true(again.n_rows >= (compared < 1 ? compared : 1) * table.n_rows);
    for (int i = 0; i < again.n_rows; i++) {
        const struct stream_row *a = &table.rows[i], *b = &again.rows[i];
        assert_string_equal(a->blocks, b->blocks);
        assert_string_equal(a->layout, b->layout);
        assert_int_equal(a->resident_percent, b->resident_percent);
        const double before[] = {a->bus, a->seconds, a->copy_seconds, a->floor_seconds};
        const double after[] = {b->bus, b->seconds, b->copy_seconds, b->floor_seconds};
        assert_memory_equal(before, after, sizeof before);
    }
}

TEST(no_row_beats_lower_bound) {
    for (int i = 0; i < table.n_rows; i++) {
        const struct stream_row *r = &table.rows[i];
        expect(r->seconds >= r->floor_seconds * (1 - 1e-6), r, "faster than the lower bound by",
               r->floor_seconds - r->seconds);
    }
}

/* table.csv has the simulator's times for all layouts except branches_apart. The layout "ours" takes at most
 * 1 % longer, and comes within 5 % of the lower bound where the simulator does. Other layouts differ by at
 * most 2 %.
 */
TEST(streaming_matches_simulator) {
    char head[256], blocks[32], layout[32];
    double bus, seconds, floor;
    int percent, n = 0, n_ours = 0, n_reachable = 0;
    FILE *file = fopen("test/golden/stream/table.csv", "r");
    assert_non_null(file);
    assert_non_null(fgets(head, sizeof head, file));
    assert_string_equal(head, "blocks,layout,resident_percent,bus_gbytes_per_second,seconds,floor_seconds\n");
    for (; fscanf(file, "%31[^,],%31[^,],%d,%lf,%lf,%lf\n", blocks, layout, &percent, &bus, &seconds,
                  &floor) == 6;
         n++) {
        const struct stream_row *row = find_row(blocks, layout, percent, bus * 1e9);
        assert_non_null(row);
        double ratio = row->seconds / seconds;
        bool ours = !strcmp(layout, "ours"), reachable = ours && seconds <= 1.05 * floor;
        expect(ratio <= (ours ? 1.01 : 1.02), row, "slower than the simulator:", seconds);
        expect(ours || ratio >= 0.98, row, "faster than the simulator:", seconds);
        expect(!reachable || row->seconds <= 1.05 * row->floor_seconds, row,
               "above the lower bound; the simulator reaches", seconds);
        n_ours += ours;
        n_reachable += reachable;
    }
    fclose(file);
    assert_int_equal(n, ROWS / LAYOUTS * SIMULATED);
    assert_int_equal(n_ours, ROWS / LAYOUTS);
    assert_true(n_reachable >= n_ours * 9 / 10);
}

/* Where the bus is the bottleneck, streaming the weights once per guidance branch takes twice the time of
 * streaming once per step. */
TEST(separate_branches_double_time) {
    int n = 0;
    for (int i = 0; i < table.n_rows; i++) {
        const struct stream_row *apart = &table.rows[i];
        if (!is(apart, "branches_apart") || apart->floor_seconds > apart->copy_seconds) continue;
        const struct stream_row *ours = find_row(apart->blocks, "ours", apart->resident_percent, apart->bus);
        expect(apart->seconds >= 1.9 * ours->seconds, apart, "less than 1.9 times ours:", ours->seconds);
        n++;
    }
    assert_true(n >= 4);
}

/* Checks that step times are within 3 % of the lower bound. Longer times are allowed if the predicted time
 * exceeds the lower bound too: a ring holds only whole blocks. */
static void check_ahead(const struct stream_async_row *r, int *n_out_of_reach) {
    double over = r->seconds / r->floor_seconds, predicted = r->predicted_seconds / r->floor_seconds;
    if (over < 1 - 1e-6 || over > 1.03 * (predicted > 1.03 ? predicted : 1))
        fail_msg(
            "%s, %d %% resident, %.0f us per visit, %.0f us per piece, disk %.0f GB/s: %.4f of the lower "
            "bound, predicted %.4f",
            r->blocks, r->resident_percent, r->host_seconds * 1e6, r->reader_seconds * 1e6, r->disk / 1e9,
            over, predicted);
    *n_out_of_reach += predicted > 1.03;
    /* Readers pin the next chunks of the host pool while other chunks are being read. */
    assert_true(!r->pooled || r->first_seconds < 0.75 * r->pinning_seconds);
}

TEST(async_host_reaches_lower_bound) {
    static struct stream_async_table ahead, repeated;
    struct error e = {0};
    int n_out_of_reach = 0;
    assert_int_equal(stream_async(&ahead, NULL, &e), OK);
    assert_int_equal(stream_async(&repeated, NULL, &e), OK);
    assert_true(ahead.n_rows > 60 && repeated.n_rows == ahead.n_rows);
    for (int i = 0; i < ahead.n_rows; i++) {
        check_ahead(&ahead.rows[i], &n_out_of_reach);
        assert_memory_equal(&ahead.rows[i].seconds, &repeated.rows[i].seconds, sizeof(double));
    }
    assert_true(n_out_of_reach <= 2);
}

enum { PACED_BLOCKS = 24, PACED_BLOCK_BYTES = 1 << 20, PACED_STEPS = 5 };
static const double paced_bus = 0.4e9;

/* Returns the 16-bit word of the test file at a byte offset: a hash of the offset, chosen so that all values
 * are near 0.01 as bf16. */
static uint16_t word_at(uint64_t offset) {
    uint64_t z = offset / 2 * 0x9e3779b97f4a7c15u;
    return (uint16_t)(0x3C00 + (z >> 40) % 128);
}

/* A CPU device that checks the bytes of each weight before it computes. */
struct checking_device {
    struct device device; /* first member, because struct device * is cast to struct checking_device * */
    struct device *cpu;
    int n_operators, n_wrong;
};

static void checking_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    const struct checking_device *l = (const struct checking_device *)device;
    l->cpu->cost(l->cpu, op, cost);
}

static enum status checking_prepare(struct device *device, const struct op *op, struct error *e) {
    struct checking_device *l = (struct checking_device *)device;
    return l->cpu->prepare(l->cpu, op, e);
}

static bool weight_is(const struct tensor *weight, uint64_t offset) {
    const uint16_t *words = weight->data;
    for (int64_t i = 0; i < tensor_bytes(weight) / 2; i++)
        if (words[i] != word_at(offset + 2 * (uint64_t)i)) return false;
    return true;
}

static enum status checking_run(struct device *device, const struct op *op, void *workspace,
                                struct error *e) {
    struct checking_device *l = (struct checking_device *)device;
    uint64_t block = (uint64_t)(l->n_operators++ % PACED_BLOCKS);
    l->n_wrong += !weight_is(&op->in[1], block * PACED_BLOCK_BYTES);
    return l->cpu->run(l->cpu, op, workspace, e);
}

struct paced_fixture {
    struct sys sys;
    struct checking_device checking_device;
    struct device *paced;
    struct stream_model model;
    struct stream_run run;
};

static struct paced_fixture fixture;
static struct run_need need;
static struct plan plan;

static void paced_fixture_open(struct error *e) {
    struct paced_fixture *w = &fixture;
    memset(w, 0, sizeof *w);
    sys_init_machine(&w->sys);
    w->sys.read_at = read_words;
    w->sys.identify = identify_words;
    w->checking_device.cpu = cpu_open(&w->sys, 1, e);
    assert_non_null(w->checking_device.cpu);
    w->checking_device.device = *w->checking_device.cpu;
    w->checking_device.device.cost = checking_cost;
    w->checking_device.device.prepare = checking_prepare;
    w->checking_device.device.run = checking_run;
    w->paced = paced_open(&w->sys, &w->checking_device.device, paced_bus, e);
    assert_non_null(w->paced);
    for (int i = 0; i < PACED_BLOCKS; i++)
        w->model.sizes[w->model.n_blocks++] = stream_block_of(PACED_BLOCK_BYTES, 0, 1);
    stream_model_make(&w->model, &w->sys);
    w->run = (struct stream_run){.model = &w->model,
                                 .device = w->paced,
                                 .rates = {.disk = 1e9, .host_copy = 4e9, .h2d = paced_bus},
                                 .lanes = 1,
                                 .readers = 2,
                                 .evaluations = PACED_STEPS};
    w->run.rates.ops.per_second[CLASS_LINEAR] = 50e9;
}

static void paced_fixture_close(void) {
    fixture.paced->destroy(fixture.paced);
    fixture.checking_device.cpu->destroy(fixture.checking_device.cpu);
    for (int i = 0; i < N_MEMORY_LINES; i++) assert_int_equal(fixture.sys.use.live_bytes[i], 0);
}

/* Runs on the paced device with VRAM for `more_blocks` blocks beyond the minimum; checks weights and the time
 * of two steps. Blocks that are in the ring before the two steps do not cross the bus during the steps. */
static void run_paced(int more_blocks, struct error *e) {
    struct stream_times times = {0};
    assert_int_equal(stream_measure(&fixture.run, &need, e), OK);
    plan_solve(&need, (uint64_t)1 << 50, 0, &plan);
    uint64_t more = (uint64_t)more_blocks * PACED_BLOCK_BYTES;
    plan_solve(&need, (uint64_t)1 << 50, plan.vram_least_bytes + more, &plan);
    fixture.checking_device.n_operators = 0;
    if (stream_execute(&fixture.run, &need, &plan, &times, e) != OK) printf("%s\n", e->what);
    assert_int_equal(e->code, OK);
    assert_int_equal(fixture.checking_device.n_operators, PACED_BLOCKS * PACED_STEPS);
    assert_int_equal(fixture.checking_device.n_wrong, 0);
    double streamed = (double)plan.stage[0].streamed_bytes_per_evaluation;
    double ring = (double)plan.stage[0].ring_bytes;
    printf("paced: %.0f of %d MiB stream, ring %.0f MiB: %.4f s per step, bus time %.4f\n",
           streamed / (1 << 20), PACED_BLOCKS, ring / (1 << 20), times.steady, streamed / paced_bus);
    assert_true(times.steady >= (streamed - ring / 2) / paced_bus * 0.99);
}

TEST(paced_run_reaches_bus_time) {
    struct error e = {0};
    paced_fixture_open(&e);
    run_paced(1, &e);
    assert_true(plan.stage[0].streamed_bytes_per_evaluation > (PACED_BLOCKS - 3) * PACED_BLOCK_BYTES);
    run_paced(0, &e);
    run_paced(10, &e);
    assert_true(plan.stage[0].streamed_bytes_per_evaluation < PACED_BLOCKS * PACED_BLOCK_BYTES);
    run_paced(PACED_BLOCKS, &e);
    assert_true(plan.stage[0].streamed_bytes_per_evaluation == 0);
    paced_fixture_close();
}

static bool stop_now(void *user) {
    return --*(int *)user > 0;
}

TEST(cancel_ends_run) {
    struct error e = {0};
    int left = 30;
    struct stream_times times;
    paced_fixture_open(&e);
    fixture.run.go_on = stop_now;
    fixture.run.user = &left;
    assert_int_equal(stream_measure(&fixture.run, &need, &e), OK);
    plan_solve(&need, (uint64_t)1 << 50, 0, &plan);
    assert_int_equal(stream_execute(&fixture.run, &need, &plan, &times, &e), CANCELLED);
    assert_true(fixture.checking_device.n_operators < PACED_BLOCKS * PACED_STEPS);
    paced_fixture_close();
}

TEST(cancel_ends_table) {
    static struct stream_table part;
    double half = 0.5;
    struct stream_watch watch = {.go_on = refuse_after, .user = &half};
    struct error e = {0};
    assert_int_equal(stream_timed(&part, &watch, &e), CANCELLED);
    assert_int_equal(part.n_rows, ROWS / 2);
}

int main(void) {
    return run_all_tests(fill_tables, NULL);
}
