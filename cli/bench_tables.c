/* `sluice bench load` and `block`: print measured or predicted times. */
#include "cli/bench.h"

#include "cli/fail.h"
#include "cli/fields.h"
#include "cli/outfile.h"
#include "cli/messages.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static void print_load(json_t *root) {
    size_t i;
    json_t *row;
    char bytes[32];
    printf("headers opened in %.1f ms; the whole model, tokenizer included, in %.1f\n",
           1e3 * field_number(root, "header_seconds"), 1e3 * field_number(root, "open_seconds"));
    printf("%-12s %10s %8s %8s %8s %8s\n", "page cache", "read", "threads", "GB/s", "dd", "of dd");
    json_array_foreach(json_object_get(root, "rows"), i, row) {
        printf("%-12s %10s %8.0f %8.2f %8.2f %6.0f %%\n", field_string(row, "page_cache"),
               progress_bytes(field_number(row, "bytes"), bytes), field_number(row, "threads"),
               field_number(row, "gbytes_per_second"), field_number(row, "dd_gbytes_per_second"),
               100 * field_number(row, "share"));
    }
}

static void print_share(const json_t *row, const char *name) {
    if (json_object_get(row, name))
        printf(" %9.0f %%", 100 * field_number(row, name));
    else
        printf(" %11s", "");
}

static void print_block(json_t *root) {
    size_t i;
    json_t *row;
    const json_t *rows = json_object_get(root, "rows");
    json_array_foreach(rows, i, row) {
        if (strcmp(field_string(row, "what"), "all") == 0)
            printf("%s%s: %s, %s weights, %.0f threads\n%-10s %9s %9s %11s %11s\n", i ? "\n" : "",
                   field_string(row, "part"), field_string(row, "shape"), field_string(row, "type"),
                   field_number(row, "threads"), "", "seconds", "GFLOP/s", "of library", "of the time");
        printf("%-10s %9.4f ", field_string(row, "what"), field_number(row, "seconds"));
        if (json_object_get(row, "flops_per_second"))
            printf("%9.1f", field_number(row, "flops_per_second") / 1e9);
        else
            printf("%9s", "");
        print_share(row, "product_rate_share");
        print_share(row, "time_share");
        if (json_object_get(row, "of_bf16"))
            printf("   %.3f of the time with bf16", field_number(row, "of_bf16"));
        if (json_object_get(row, "of_f32")) printf("   %.3f of the time in f32", field_number(row, "of_f32"));
        if (json_object_get(row, "of_base"))
            printf("   %.3f of the time without an adapter of rank %.0f", field_number(row, "of_base"),
                   field_number(row, "adapter_rank"));
        puts("");
    }
    puts("\nof library: against the same products and convolutions in oneDNN, with f32 weights repacked "
         "beforehand.");
}

static const char *const predicted_classes[] = {"product",        "product_int8", "attention",
                                                "attention_int8", "conv",         "pass"};
enum { N_PREDICTED = sizeof predicted_classes / sizeof *predicted_classes };

struct predicted {
    double calls, flops, bytes, seconds;
};

static void predicted_add(struct predicted *sum, const struct predicted *of) {
    sum->calls += of->calls;
    sum->flops += of->flops;
    sum->bytes += of->bytes;
    sum->seconds += of->seconds;
}

static void predicted_print(const char *what, const char *kernel, const struct predicted *p) {
    printf("%-18s %-24s %6.0f %10.1f %10.1f %9.3f\n", what, kernel, p->calls, p->flops / 1e9, p->bytes / 1e6,
           1e3 * p->seconds);
}

static bool of_one_block(const json_t *a, const json_t *b) {
    return a && b && strcmp(field_string(a, "family"), field_string(b, "family")) == 0 &&
           strcmp(field_string(a, "block"), field_string(b, "block")) == 0;
}

enum { CARD_WIDTH = 12, TABLE_WIDTH = 110 };

static int block_width(const json_t *row) {
    size_t family = strlen(field_string(row, "family")), block = strlen(field_string(row, "block"));
    size_t width = family > block ? family : block;
    return 2 + (int)(width > 7 ? width : 7);
}

/* Prints a table with one line per card and one column per block, split into parts at most TABLE_WIDTH
 * characters wide. Rows are grouped by card, with the same order of blocks for each card. */
static void print_cards(const json_t *root) {
    const json_t *rows = json_object_get(root, "rows");
    size_t n = json_array_size(rows), n_blocks = 0, next;
    const char *first_card = field_string(json_array_get(rows, 0), "card");
    while (n_blocks < n && strcmp(field_string(json_array_get(rows, n_blocks), "card"), first_card) == 0)
        n_blocks++;
    printf("predicted milliseconds per block in %s, not measured\n", field_string(root, "precision"));
    for (size_t first = 0; first < n_blocks; first = next) {
        int width = CARD_WIDTH;
        for (next = first; next < n_blocks; next++) {
            width += block_width(json_array_get(rows, next));
            if (width > TABLE_WIDTH) break;
        }
        const char *const heads[] = {"family", "block"};
        for (int line = 0; line < 2; line++) {
            printf("\n%-*s", CARD_WIDTH, line ? "card" : "");
            for (size_t k = first; k < next; k++)
                printf("%*s", block_width(json_array_get(rows, k)),
                       field_string(json_array_get(rows, k), heads[line]));
        }
        for (size_t i = 0; i < n; i++) {
            const json_t *row = json_array_get(rows, i);
            size_t k = i % n_blocks;
            if (k == first) printf("\n%-*s", CARD_WIDTH, field_string(row, "card"));
            if (k >= first && k < next) printf("%*.3f", block_width(row), 1e3 * field_number(row, "seconds"));
        }
        printf("\n");
    }
}

static void print_prediction(json_t *root) {
    size_t i;
    json_t *row;
    const json_t *rows = json_object_get(root, "rows");
    struct predicted sums[N_PREDICTED] = {0};
    if (strcmp(field_string(root, "card"), "all") == 0) {
        print_cards(root);
        return;
    }
    printf("predicted for %s in %s, not measured\n", field_string(root, "card"),
           field_string(root, "precision"));
    json_array_foreach(rows, i, row) {
        struct predicted p = {field_number(row, "calls"), field_number(row, "flops"),
                              field_number(row, "bytes"), field_number(row, "seconds")};
        int class = 0;
        while (class < N_PREDICTED - 1 && strcmp(field_string(row, "class"), predicted_classes[class]) != 0)
            class ++;
        if (!i || !of_one_block(row, json_array_get(rows, i - 1)))
            printf("\n%s, block \"%s\", %.0f tokens\n%-18s %-24s %6s %10s %10s %9s\n",
                   field_string(row, "family"), field_string(row, "block"), field_number(row, "tokens"),
                   "operator", "kernel", "calls", "GFLOP", "MB", "ms");
        predicted_print(field_string(row, "op"), field_string(row, "kernel"), &p);
        predicted_add(&sums[class], &p);
        if (of_one_block(row, json_array_get(rows, i + 1))) continue;
        struct predicted all = {0};
        for (int k = 0; k < N_PREDICTED; k++) {
            char what[32];
            if (!sums[k].calls) continue;
            snprintf(what, sizeof what, "all %s", predicted_classes[k]);
            predicted_print(what, "", &sums[k]);
            predicted_add(&all, &sums[k]);
            sums[k] = (struct predicted){0};
        }
        predicted_print("all", "", &all);
    }
}

static int measure_table(const struct args *args, void (*print)(json_t *),
                         int (*measure)(const struct sluice_bench_options *, char **, struct sluice_error *),
                         struct sluice_error *e) {
    char *json = NULL;
    interrupt_gracefully();
    struct sluice_bench_options options = bench_options(args);
    int status = measure(&options, &json, e);
    message_live_end();
    if (!status) status = answer_show(args, json, "table", print, e);
    sluice_free(json);
    return status;
}

int bench_load(const struct args *args, struct sluice_error *e) {
    if (args->model.model || args->model.n_parts)
        return measure_table(args, print_load, sluice_bench_load, e);
    return fail(e, SLUICE_USAGE, "no model is given" WHERE "sluice bench load" EXPECTED "-m DIR");
}

int bench_block(const struct args *args, struct sluice_error *e) {
    const char *device = args->device ? args->device : "", *card = device + strcspn(device, ":");
    bool gpu = strncmp(device, "cuda", 4) == 0;
    /* --device is a CPU or, with --predict, "cuda" or "cuda:CARD" for the GPU CARD of the card table */
    bool fits =
        args->predict ? gpu && card == device + 4 && (!*card || !strcasecmp(card + 1, args->predict)) : !gpu;
    if (!args->device || fits)
        return measure_table(args, args->predict ? print_prediction : print_block, sluice_bench_block, e);
    if (args->predict)
        return fail(e, SLUICE_USAGE,
                    "predictions are for the GPU that --predict names" WHERE
                    "--device of sluice bench block" FOUND "%s" EXPECTED "cuda, or cuda:%s",
                    args->device, args->predict);
    return fail(e, SLUICE_USAGE,
                "this bench measures the CPU; `make bench-gpu` measures a GPU" WHERE
                "--device of sluice bench block" FOUND "%s" EXPECTED "cpu, or --predict CARD",
                args->device);
}
