/* Functions that all benchmarks share: see bench.h. */
#include "engine/bench/bench.h"

#include "engine/machine/machine.h"
#include "engine/machine/rates_file.h"
#include "engine/open/public_structs.h"
#include "loaders/json.h"

#include <stdlib.h>

enum status bench_start(struct bench *bench, const struct sluice_bench_options *options, struct error *e) {
    struct rates ignored = {0};
    *bench = (struct bench){0};
    sys_init_machine(&bench->sys);
    if (!check_struct_size(options, "options", e)) return e->code;
    copy_sized(&bench->options, sizeof bench->options, options);
    bench->json_failures = failed_json_allocations();
    bench->rows = json_array();
    bench->threads = bench->options.threads ? bench->options.threads : machine_threads("");
    if (!bench->rows) return error_set(e, MEMORY, "no memory for a table");
    if (!check_threads(bench->threads, e)) return e->code;
    return bench->options.saved ? rates_read("cpu", NULL, bench->options.saved, 0, &ignored, e) : OK;
}

enum status bench_go_on(const struct bench *bench, double fraction, const char *what, struct error *e) {
    const struct sluice_bench_options *o = &bench->options;
    if (!o->on_progress || o->on_progress(o->user, fraction, what)) return OK;
    return error_set(e, CANCELLED, "cancelled");
}

int bench_finish(struct bench *bench, json_t *rest, int threads, char **json, char **rates, struct error *e,
                 struct sluice_error *error) {
    char machine[256], *nowhere;
    if (!check_not_null(json, "json", e)) json = &nowhere;
    *json = NULL;
    if (rates) *rates = NULL;
    if (e->code == OK && rates)
        rates_merge(bench->options.saved, &bench->measured, machine_describe(machine, sizeof machine),
                    threads, rates, e);
    if (e->code == OK) {
        json_t *report = json_pack("{s:i, s:O}", "version", 1, "rows", bench->rows);
        if (rest) json_count_failure(json_object_update(report, rest));
        *json = json_to_text(report, JSON_INDENT(1) | JSON_REAL_PRECISION(6), bench->json_failures);
    }
    if (e->code == OK && !*json) {
        error_set(e, MEMORY, "no memory for the table's text");
        if (rates) sluice_free(*rates);
        if (rates) *rates = NULL;
    }
    json_decref(rest);
    json_decref(bench->rows);
    return publish_error(e, error);
}

static int bench_by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, bench_by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}
