/* Tables of GPU results (gpu_results.h). Every number comes from a result; a dash stands for a missing
 * number. */
#include "bench/gpu/gpu_results.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const json_t *member(const json_t *json, va_list path) {
    const char *name;
    while (json && (name = va_arg(path, const char *))) json = json_object_get(json, name);
    return json;
}

double member_number(const json_t *json, double otherwise, ...) {
    va_list path;
    va_start(path, otherwise);
    const json_t *found = member(json, path);
    va_end(path);
    return json_is_number(found) ? json_number_value(found) : otherwise;
}

const char *member_text(const json_t *json, ...) {
    va_list path;
    va_start(path, json);
    const json_t *found = member(json, path);
    va_end(path);
    return json_string_value(found);
}

static const json_t *part_of(const json_t *document, const char *name) {
    return json_object_get(json_object_get(document, "parts"), name);
}

static const json_t *rows_of(const json_t *document, const char *part) {
    return json_object_get(json_object_get(part_of(document, part), "data"), "rows");
}

/* Returns the best rate of the bus in bytes per second; 0: not measured. */
static double best_bus(const json_t *document, const char *path) {
    double best = 0;
    size_t i;
    json_t *row;
    json_array_foreach(rows_of(document, "bench.bus"), i, row) {
        double rate = 1e9 * member_number(row, 0, "gbytes_per_second", NULL);
        if (!strcmp(member_text(row, "path", NULL), path) && rate > best) best = rate;
    }
    return best;
}

/* Returns the result row of operator `op` whose shape contains the text `shape`, or NULL. */
static const json_t *row_of(const json_t *rows, const char *op, const char *shape) {
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) {
        const char *found_op = member_text(row, "op", NULL), *found = member_text(row, "shape", NULL);
        if (found_op && found && !strcmp(found_op, op) && strstr(found, shape)) return row;
    }
    return NULL;
}

static const json_t *steps_part(const json_t *document, const char *family, const char *budget, int batch) {
    char name[64];
    snprintf(name, sizeof name, "bench.%s.%s.b%d", family, budget, batch);
    return part_of(document, name);
}

static const json_t *zimage(const json_t *document, const char *budget, int batch) {
    return steps_part(document, "zimage", budget, batch);
}

static json_t *torch_rows_of(const json_t *document) {
    const char *name;
    json_t *part, *rows = json_array();
    json_object_foreach(json_object_get(document, "parts"), name, part) {
        json_t *own = json_object_get(json_object_get(part, "data"), "rows");
        if (own && !strncmp(name, "bench.torch.", 12)) json_array_extend(rows, own);
    }
    return rows;
}

static double step_number(const json_t *part, const char *name) {
    return member_number(part, -1, "data", "step", name, NULL);
}

/* Lower bound of a step: the larger of the step's time with everything resident (in the same run) and the
 * time of its streamed bytes at the bus's best rate. Without a resident run, the report's own value. */
static double floor_of(const json_t *document, const json_t *part, int batch) {
    const json_t *all = zimage(document, "all", batch);
    double resident = step_number(all, "bytes_moved") == 0 ? step_number(all, "seconds") : -1;
    double bus = best_bus(document, "h2d_pinned");
    if (resident <= 0 || bus <= 0) return step_number(part, "floor_seconds");
    double bytes = step_number(part, "bytes_moved") / bus;
    return bytes > resident ? bytes : resident;
}

static double least_share(const json_t *rows, const char *roof, double *most) {
    double least = -1;
    size_t i;
    json_t *row;
    *most = -1;
    json_array_foreach(rows, i, row) {
        const char *found = member_text(row, "roof", NULL);
        double share = member_number(row, -1, "share", NULL);
        if (!found || strcmp(found, roof) || share < 0) continue;
        if (least < 0 || share < least) least = share;
        if (share > *most) *most = share;
    }
    return least;
}

static void print_or_dash(const char *format, double value, bool known) {
    known ? printf(format, value) : printf("-");
}

static const char *const budgets[] = {"all", "9G", "6G", "4G", "2G"};
enum { N_BUDGETS = sizeof budgets / sizeof *budgets };

/* Prints two table cells: seconds per step, and the lower bound as a share of these seconds. */
static void print_step(const json_t *document, const char *budget, int batch, const char *between) {
    const json_t *part = zimage(document, budget, batch);
    const char *status = member_text(part, "status", NULL);
    double seconds = step_number(part, "seconds"), floor = floor_of(document, part, batch);
    bool known = status && !strcmp(status, "done") && seconds > 0;
    if (!known) printf("%s", status ? status : "-");
    if (known) printf("%.3f", seconds);
    printf("%s", between);
    print_or_dash("%.0f %%", 100 * floor / seconds, known && floor > 0);
}

static void print_memory(const json_t *document, const char *budget) {
    const json_t *part = zimage(document, budget, 1);
    double planned = member_number(part, -1, "data", "plan", "peak", "vram_bytes", NULL);
    double measured =
        member_number(part, -1, "smi_peak_mib", NULL) - member_number(part, 0, "smi_before_mib", NULL);
    print_or_dash("%.0f", planned / (1 << 20), planned >= 0);
    printf(" | ");
    print_or_dash("%.0f", measured, measured >= 0);
    printf(" | ");
    double bytes = step_number(part, "bytes_moved");
    print_or_dash("%.2f", bytes / 1e9, bytes >= 0);
}

static bool same_pictures(const json_t *document, int batch, int *n) {
    const json_t *first = NULL;
    bool same = true;
    *n = 0;
    for (int i = 0; i < N_BUDGETS; i++) {
        const json_t *part = zimage(document, budgets[i], batch), *data = json_object_get(part, "data");
        const json_t *hashes = json_object_get(data, "latent_sha256");
        if (!json_array_size(hashes)) continue;
        if (first && !json_equal(first, hashes)) same = false;
        first = first ? first : hashes;
        ++*n;
    }
    return same;
}

static void count_checks(const json_t *document, int *passed, int *failed, int *broken) {
    const char *name;
    json_t *part;
    *passed = *failed = *broken = 0;
    json_object_foreach(json_object_get(document, "parts"), name, part) {
        if (strncmp(name, "check.", 6)) continue;
        *passed += (int)member_number(part, 0, "passed", NULL);
        *failed += (int)member_number(part, 0, "failed", NULL);
        const char *status = member_text(part, "status", NULL);
        *broken += strcmp(status, "done") && strcmp(status, "skipped");
    }
}

static json_t *operators_of(const json_t *document, double *products, double *copy) {
    const char *name;
    json_t *part, *rows = json_array();
    *products = *copy = 0;
    json_object_foreach(json_object_get(document, "parts"), name, part) {
        if (strncmp(name, "bench.ops.", 10)) continue;
        double p = member_number(part, 0, "data", "roofs", "products_flops_per_second", NULL);
        double c = member_number(part, 0, "data", "roofs", "copy_bytes_per_second", NULL);
        json_t *own = json_object_get(json_object_get(part, "data"), "rows");
        if (own) json_array_extend(rows, own);
        if (p > *products) *products = p;
        if (c > *copy) *copy = c;
    }
    return rows;
}

static void print_operators(const json_t *document) {
    double products, copy, most;
    json_t *rows = operators_of(document, &products, &copy);
    const json_t *q = row_of(rows, "linear", "q, k, v, out"),
                 *attention = row_of(rows, "attention", "a layer");
    if (products > 0 || copy > 0)
        printf("- peak: cuBLASLt product of 8192^3 %.0f TFLOP/s; copy within the GPU %.0f GB/s\n",
               products / 1e12, copy / 1e9);
    if (q) printf("- products of a layer: %.0f %% of peak\n", 100 * member_number(q, 0, "share", NULL));
    if (attention)
        printf("- attention of a layer: %.0f TFLOP/s, %.0f %% of peak\n",
               member_number(attention, 0, "flops_per_second", NULL) / 1e12,
               100 * member_number(attention, 0, "share", NULL));
    double least = least_share(rows, "copy", &most);
    if (least >= 0)
        printf("- memory-bound operators: %.0f to %.0f %% of the copy rate (above 100: served from "
               "the cache)\n",
               100 * least, 100 * most);
    json_decref(rows);
}

static void print_checks(const json_t *document) {
    int passed, failed, broken, n;
    count_checks(document, &passed, &failed, &broken);
    printf("- checks: %d passed, %d failed", passed, failed);
    if (broken) printf(", %d parts failed", broken);
    puts("");
    bool same = same_pictures(document, 1, &n);
    if (n > 1)
        printf("- %d budgets, one image: %s\n", n, same ? "equal latents, bit for bit" : "LATENTS DIFFER");
}

static void print_steps(const json_t *document) {
    puts("| `--max-vram` | planned MiB | used MiB | GB per step | s per step, `-b 1` | lower bound | s per "
         "step, "
         "`-b 4` | lower bound |");
    puts("|---|---|---|---|---|---|---|---|");
    for (int i = 0; i < N_BUDGETS; i++) {
        printf("| %s | ", budgets[i]);
        print_memory(document, budgets[i]);
        printf(" | ");
        print_step(document, budgets[i], 1, " | ");
        printf(" | ");
        print_step(document, budgets[i], 4, " | ");
        puts(" |");
    }
    puts("");
}

static void print_links(const json_t *document) {
    double bus = best_bus(document, "h2d_pinned");
    if (bus > 0)
        printf("- bus, from pinned memory: %.1f GB/s; to pinned memory: %.1f GB/s\n", bus / 1e9,
               best_bus(document, "d2h_pinned") / 1e9);
}

static void add_comparison(json_t *rows, const char *what, double sluice, double torch) {
    if (sluice > 0 && torch > 0)
        json_array_append_new(rows, json_pack("{s:s, s:f, s:f, s:f}", "what", what, "sluice_seconds", sluice,
                                              "torch_seconds", torch, "ratio", sluice / torch));
}

/* Returns the seconds that the GPU computes in a stage of a run; -1: unknown. */
static double stage_seconds(const json_t *part, const char *stage) {
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(json_object_get(part, "data"), "stages"), i, row) {
        const char *name = member_text(row, "name", NULL);
        if (name && !strcmp(name, stage)) return member_number(row, -1, "compute_seconds", NULL);
    }
    return -1;
}

static double row_seconds(const json_t *rows, const char *op, const char *shape) {
    return member_number(row_of(rows, op, shape), -1, "seconds", NULL);
}

/* PyTorch's step excludes embedders and final layer; Sluice's step includes them. */
json_t *torch_comparison_of(const json_t *document, const char *mode) {
    static const char *const families[] = {"zimage", "flux", "sdxl", "wan"};
    double products, copy;
    json_t *rows = json_array(), *torch = torch_rows_of(document);
    json_t *operators = operators_of(document, &products, &copy);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char shape[64], what[64];
        snprintf(shape, sizeof shape, "%s, %s, ", families[i], mode);
        snprintf(what, sizeof what, "%s step", families[i]);
        add_comparison(rows, what, step_number(steps_part(document, families[i], "all", 1), "seconds"),
                       row_seconds(torch, "step", shape));
    }
    if (!strcmp(mode, "eager")) {
        add_comparison(rows, "decoder", stage_seconds(zimage(document, "all", 1), "decode"),
                       row_seconds(torch, "decoder", ""));
        add_comparison(rows, "attention", row_seconds(operators, "attention", "a layer"),
                       row_seconds(torch, "attention", "4128x30x128"));
        add_comparison(rows, "product", row_seconds(operators, "linear", "q, k, v, out"),
                       row_seconds(torch, "linear", "4128x3840x3840"));
    }
    json_decref(operators);
    json_decref(torch);
    return rows;
}

static void print_torch(const json_t *document) {
    static const char *const modes[] = {"eager", "compiled", "cudnn"};
    for (int m = 0; m < 3; m++) {
        json_t *rows = torch_comparison_of(document, modes[m]), *row;
        size_t i;
        json_array_foreach(rows, i, row) {
            printf("- %s: Sluice %.3g ms, PyTorch %s %.3g ms, %.2f of its time\n",
                   member_text(row, "what", NULL), 1e3 * member_number(row, 0, "sluice_seconds", NULL),
                   modes[m], 1e3 * member_number(row, 0, "torch_seconds", NULL),
                   member_number(row, 0, "ratio", NULL));
        }
        json_decref(rows);
    }
}

json_t *overlap_of(const json_t *document) {
    json_t *rows = json_array();
    for (int i = 0; i < N_BUDGETS; i++) {
        const json_t *part = zimage(document, budgets[i], 1);
        double step = step_number(part, "seconds"), floor = floor_of(document, part, 1);
        if (step <= 0 || floor <= 0) continue;
        json_array_append_new(rows, json_pack("{s:s, s:f, s:f, s:f, s:f}", "budget", budgets[i], "bytes",
                                              step_number(part, "bytes_moved"), "seconds", step,
                                              "floor_seconds", floor, "ratio", step / floor));
    }
    return rows;
}

static void print_document(const json_t *document) {
    const json_t *info = json_object_get(part_of(document, "info"), "data");
    const char *library = member_text(info, "library", NULL),
               *architecture = member_text(info, "architecture", NULL);
    const char *weights = member_text(part_of(document, "bench.checkpoint"), "weights", NULL);
    printf("%s (%s, %.0f GiB; %s), %s, commit %s.\n\n", member_text(document, "gpu", NULL),
           architecture ? architecture : "?", member_number(info, 0, "bytes", NULL) / (1 << 30),
           library ? library : "libraries unknown", member_text(document, "date", NULL),
           member_text(document, "commit", NULL));
    if (weights) printf("Z-Image with random weights (%s), 1024x1024:\n\n", weights);
    if (weights) print_steps(document);
    print_links(document);
    print_operators(document);
    print_torch(document);
    print_checks(document);
}

static int by_number(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median_of(double *values, size_t n) {
    qsort(values, n, sizeof *values, by_number);
    return values[n / 2];
}

/* Prints the median of an efficiency constant over all operators that it bounds. */
static void print_constant(const json_t *rows, const char *constant) {
    enum { MOST = 256 };
    double values[MOST];
    size_t i, n = 0;
    json_t *row;
    json_array_foreach(rows, i, row) {
        const char *found = member_text(row, "constant", NULL);
        if (found && !strcmp(found, constant) && n < MOST)
            values[n++] = member_number(row, 0, "measured_constant", NULL);
    }
    if (n) printf(", .%s = %.3f", constant, median_of(values, n));
}

/* Prints measured and calculated times of the operators, and the resulting constants for cards.c. */
static void print_calculated(const json_t *document) {
    static const char *const constants[] = {"products", "attention",     "convolutions",
                                            "passes",   "int8_products", "int8_attention"};
    const char *card = member_text(part_of(document, "info"), "data", "card", NULL);
    double products, copy, bus = best_bus(document, "h2d_pinned");
    json_t *rows = operators_of(document, &products, &copy), *row;
    size_t i;
    if (card) printf("\n%-58s %12s %14s  ratio\n", "operator", "measured, us", "calculated, us");
    json_array_foreach(rows, i, row) {
        double seconds = member_number(row, 0, "seconds", NULL);
        double calculated = member_number(row, 0, "calculated_seconds", NULL);
        if (!card || calculated <= 0) continue;
        printf("%-16s %-41s %12.1f %14.1f  %.2f\n", member_text(row, "op", NULL),
               member_text(row, "shape", NULL), 1e6 * seconds, 1e6 * calculated, seconds / calculated);
    }
    if (card) {
        printf("\nfor kernels/cuda/cards.c: .name = \"%s\"", card);
        if (bus > 0) printf(", .bus_bytes_per_second = %.1fe9", bus / 1e9);
        for (i = 0; i < sizeof constants / sizeof *constants; i++) print_constant(rows, constants[i]);
        printf("\n");
    }
    json_decref(rows);
}

/* Prints cuBLASLt's first algorithm beside the best of eight, and cuDNN's rate by band. */
static void print_library(const json_t *document) {
    size_t i;
    json_t *row;
    json_array_foreach(rows_of(document, "bench.library"), i, row) {
        double seconds = member_number(row, 0, "seconds", NULL),
               best = member_number(row, 0, "best_seconds", NULL);
        if (seconds <= 0) continue;
        printf("- library: %s %s, %s: %.1f TFLOP/s", member_text(row, "op", NULL),
               member_text(row, "shape", NULL), member_text(row, "type", NULL),
               member_number(row, 0, "flops_per_second", NULL) / 1e12);
        if (best > 0)
            printf("; first algorithm takes %.2f of the best of %.0f", seconds / best,
                   member_number(row, 0, "algorithms", NULL));
        puts("");
    }
}

void table_short(const json_t *document) {
    const char *name;
    json_t *part;
    puts("");
    json_object_foreach(json_object_get(document, "parts"), name, part) {
        const char *status = member_text(part, "status", NULL);
        if (strcmp(status, "done")) printf("%s: %s\n", name, status);
    }
    print_calculated(document);
    puts("");
    print_document(document);
    print_library(document);
}

void table_readme(json_t *const *documents, int n) {
    if (!n) puts("no GPU run yet");
    for (int i = 0; i < n; i++) {
        if (i) puts("");
        print_document(documents[i]);
    }
}
