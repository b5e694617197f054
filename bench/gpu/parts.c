/* Parts of a benchmark run on a GPU machine (gpu_results.h). */
#include "bench/gpu/gpu_results.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE = 4096, LINES_MOST = 20, STEPS_MOST = 1024 };

struct printed {
    int passed, failed;
    json_t *failures, *skipped, *last;
};

static void append_line(json_t *list, const char *line, size_t most, bool newest) {
    if (newest && json_array_size(list) == most) json_array_remove(list, 0);
    if (json_array_size(list) < most) json_array_append_new(list, json_string(line));
}

static void read_line(struct printed *p, const char *line) {
    int good, bad;
    if (!line[0]) return;
    /* counts of the log's last "N passed, M failed" line */
    if (sscanf(line, "%d passed, %d failed", &good, &bad) == 2) p->passed = good, p->failed = bad;
    if (!strncmp(line, "SKIP", 4)) append_line(p->skipped, line, LINES_MOST, false);
    if (strstr(line, "FAILED") || strstr(line, "[   LINE   ]") || strstr(line, "[  ERROR   ]") ||
        !strncmp(line, "sluice: ", 8))
        append_line(p->failures, line, LINES_MOST, false);
    append_line(p->last, line, LINES_MOST / 2, true);
}

static struct printed read_printed(const char *path) {
    struct printed p = {-1, -1, json_array(), json_array(), json_array()};
    char line[LINE];
    FILE *file = path ? fopen(path, "r") : NULL;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = 0;
        read_line(&p, line);
    }
    if (file) fclose(file);
    return p;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double steps_median(const json_t *report, const char *member) {
    const json_t *steps = json_object_get(report, "steps");
    double values[STEPS_MOST];
    size_t n = 0, first = json_array_size(steps) > 1;
    for (size_t i = first; i < json_array_size(steps) && n < STEPS_MOST; i++) {
        const json_t *value = json_object_get(json_array_get(steps, i), member);
        if (json_is_number(value)) values[n++] = json_number_value(value);
    }
    if (!n) return -1;
    qsort(values, n, sizeof *values, by_value);
    return values[n / 2];
}

/* Loads a JSON report without its lists of blocks, which are most of its bytes. */
static json_t *reduced(const char *path) {
    json_t *report = json_load_file(path, 0, NULL), *stage;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(report, "plan"), "stages"), i, stage)
        json_object_del(stage, "blocks");
    json_array_foreach(json_object_get(report, "stages"), i, stage) json_object_del(stage, "blocks");
    static const char *const members[] = {"seconds",       "compute_seconds", "bytes_moved",
                                          "stall_seconds", "floor_seconds",   "efficiency"};
    json_t *step = json_object();
    for (i = 0; i < sizeof members / sizeof *members; i++)
        if (steps_median(report, members[i]) >= 0)
            json_object_set_new(step, members[i], json_real(steps_median(report, members[i])));
    if (report)
        json_object_set_new(report, "step", step);
    else
        json_decref(step);
    return report;
}

static const char *status_of(const struct part_options *o, const struct printed *p) {
    if (o->status) return o->status;
    if (o->exit_code == 124 || o->exit_code == 137) return "timeout";
    return o->exit_code || p->failed > 0 ? "failed" : "done";
}

static void add_facts(const struct part_options *o, json_t *part) {
    for (int i = 0; i < o->n_facts; i++) {
        char name[64], *end = NULL;
        const char *equals = strchr(o->facts[i], '=');
        if (!equals || (size_t)(equals - o->facts[i]) >= sizeof name) continue;
        snprintf(name, sizeof name, "%.*s", (int)(equals - o->facts[i]), o->facts[i]);
        double number = strtod(equals + 1, &end);
        bool whole = equals[1] && end && !*end;
        json_object_set_new(part, name, whole ? json_real(number) : json_string(equals + 1));
    }
}

static json_t *make_part(const struct part_options *o) {
    struct printed p = read_printed(o->log);
    const char *status = status_of(o, &p);
    json_t *part = json_pack("{s:s, s:s, s:i, s:f}", "part", o->name, "status", status, "exit", o->exit_code,
                             "seconds", o->seconds);
    if (p.passed >= 0) json_object_set_new(part, "passed", json_integer(p.passed));
    if (p.failed >= 0) json_object_set_new(part, "failed", json_integer(p.failed));
    if (json_array_size(p.failures)) json_object_set(part, "failures", p.failures);
    if (json_array_size(p.skipped)) json_object_set(part, "skipped", p.skipped);
    if (strcmp(status, "done")) json_object_set(part, "last_lines", p.last);
    json_decref(p.failures), json_decref(p.skipped), json_decref(p.last);
    add_facts(o, part);
    /* A part whose report cannot be read is stored without the report, but with its exit code. */
    json_t *data = o->report ? reduced(o->report) : o->data ? json_load_file(o->data, 0, NULL) : NULL;
    if (data) json_object_set_new(part, "data", data);
    return part;
}

static void print_part(const json_t *part) {
    const char *status = member_text(part, "status", NULL);
    printf("%-28s %-8s %6.1f s", member_text(part, "part", NULL), status,
           member_number(part, 0, "seconds", NULL));
    if (json_object_get(part, "passed"))
        printf("  %.0f passed, %.0f failed", member_number(part, 0, "passed", NULL),
               member_number(part, 0, "failed", NULL));
    const json_t *last = json_object_get(part, "last_lines");
    const char *line = json_string_value(json_array_get(last, json_array_size(last) - 1));
    if (strcmp(status, "done") && line) printf("  %.100s", line);
    puts("");
}

int part_add(const struct part_options *options) {
    json_t *part = make_part(options);
    char *text = json_dumps(part, JSON_REAL_PRECISION(6));
    FILE *file = fopen(options->results, "a");
    bool good = text && file && fprintf(file, "%s\n", text) > 0 && !fflush(file) && !fsync(fileno(file));
    if (file) good &= !fclose(file);
    print_part(part);
    free(text);
    json_decref(part);
    if (!good) fprintf(stderr, "gpu_results: cannot write %s\n", options->results);
    return good ? 0 : 1;
}

json_t *parts_assemble(const char *results, const char *date, const char *commit) {
    FILE *file = fopen(results, "r");
    if (!file) return NULL;
    json_t *parts = json_object(), *part;
    size_t bytes = 0;
    char *line = NULL;
    /* Skips truncated lines of the results file. */
    while (getline(&line, &bytes, file) > 0) {
        part = json_loads(line, 0, NULL);
        const char *name = member_text(part, "part", NULL);
        if (name) json_object_set(parts, name, part);
        json_decref(part);
    }
    free(line);
    fclose(file);
    const char *gpu = member_text(json_object_get(parts, "info"), "data", "gpu", NULL);
    return json_pack("{s:i, s:s, s:s, s:s, s:s, s:o}", "version", 1, "kind", "gpu", "gpu",
                     gpu ? gpu : "unknown", "date", date, "commit", commit, "parts", parts);
}
