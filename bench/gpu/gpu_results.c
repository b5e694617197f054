/* Stores and prints results of a GPU machine, for bench/gpu/run.sh and bench/README.md.
 *   gpu_results add RESULTS PART EXIT SECONDS LOG [--status S] [--data FILE] [--report FILE] [NAME=VALUE...]
 *   gpu_results rates RATES OPERATORS      writes measured rates into a rates file
 *   gpu_results overlap RESULTS            step times relative to max(computing, bytes / bus), as JSON
 *   gpu_results document RESULTS FOLDER DATE COMMIT      writes FOLDER/GPU-DATE.json and prints its table
 *   gpu_results readme FILE...             prints bench/README.md's table of all files with GPU results */
#include "bench/gpu/gpu_results.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOCUMENTS_MOST = 256, PATH = 4096 };

static int complain(const char *what, const char *path) {
    fprintf(stderr, "gpu_results: %s %s\n", what, path);
    return 1;
}

static int add(int argc, char **argv) {
    struct part_options o = {.results = argv[0],
                             .name = argv[1],
                             .exit_code = atoi(argv[2]),
                             .seconds = strtod(argv[3], NULL),
                             .log = argv[4]};
    int i = 5;
    for (; i + 1 < argc && !strncmp(argv[i], "--", 2); i += 2) {
        if (!strcmp(argv[i], "--status")) o.status = argv[i + 1];
        if (!strcmp(argv[i], "--data")) o.data = argv[i + 1];
        if (!strcmp(argv[i], "--report")) o.report = argv[i + 1];
    }
    o.facts = argv + i;
    o.n_facts = argc - i;
    return part_add(&o);
}

static int rates(const char *path, const char *operators) {
    json_t *measured = json_load_file(operators, 0, NULL), *file = json_load_file(path, 0, NULL);
    json_t *cuda = json_object_get(measured, "rates");
    if (!file) file = json_pack("{s:i}", "version", 1);
    if (!json_object_size(cuda)) return complain("no rates in", operators);
    if (json_is_object(json_object_get(file, "cuda")))
        json_object_update(json_object_get(file, "cuda"), cuda);
    else
        json_object_set(file, "cuda", cuda);
    return json_dump_file(file, path, JSON_INDENT(1)) ? complain("cannot write", path) : 0;
}

/* Converts "NVIDIA H100 80GB HBM3" to "nvidia-h100-80gb-hbm3". */
static void plain_name(const char *from, char *to, size_t bytes) {
    size_t n = 0;
    for (; *from && n + 1 < bytes; from++) {
        bool plain = isalnum((unsigned char)*from) != 0;
        if (plain) to[n++] = (char)tolower((unsigned char)*from);
        if (!plain && n && to[n - 1] != '-') to[n++] = '-';
    }
    while (n && to[n - 1] == '-') n--;
    to[n] = 0;
}

static int document(const char *results, const char *folder, const char *date, const char *commit) {
    char name[128], path[PATH];
    json_t *json = parts_assemble(results, date, commit);
    if (!json) return complain("cannot read", results);
    plain_name(member_text(json, "gpu", NULL), name, sizeof name);
    snprintf(path, sizeof path, "%s/%s-%s.json", folder, name, date);
    if (json_dump_file(json, path, JSON_INDENT(1) | JSON_REAL_PRECISION(6)))
        return complain("cannot write", path);
    table_short(json);
    printf("\n%s\n", path);
    json_decref(json);
    return 0;
}

static int overlap(const char *results) {
    json_t *all = parts_assemble(results, "", "");
    if (!all) return complain("cannot read", results);
    json_t *json = json_pack("{s:o}", "rows", overlap_of(all));
    bool any = json_array_size(json_object_get(json, "rows")) > 0;
    json_dumpf(json, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    json_decref(json);
    json_decref(all);
    return any ? 0 : complain("no Z-Image steps in", results);
}

static int by_date(const void *a, const void *b) {
    return strcmp(member_text(*(json_t *const *)a, "date", NULL),
                  member_text(*(json_t *const *)b, "date", NULL));
}

static int readme(int n_files, char **files) {
    json_t *documents[DOCUMENTS_MOST];
    int n = 0;
    for (int i = 0; i < n_files && n < DOCUMENTS_MOST; i++) {
        json_t *json = json_load_file(files[i], 0, NULL);
        const char *kind = member_text(json, "kind", NULL);
        if (kind && !strcmp(kind, "gpu") && member_text(json, "date", NULL))
            documents[n++] = json;
        else
            json_decref(json);
    }
    qsort(documents, (size_t)n, sizeof *documents, by_date);
    table_readme(documents, n);
    while (n) json_decref(documents[--n]);
    return 0;
}

int main(int argc, char **argv) {
    const char *verb = argc > 1 ? argv[1] : "";
    if (!strcmp(verb, "add") && argc >= 7) return add(argc - 2, argv + 2);
    if (!strcmp(verb, "rates") && argc == 4) return rates(argv[2], argv[3]);
    if (!strcmp(verb, "overlap") && argc == 3) return overlap(argv[2]);
    if (!strcmp(verb, "document") && argc == 6) return document(argv[2], argv[3], argv[4], argv[5]);
    if (!strcmp(verb, "readme")) return readme(argc - 2, argv + 2);
    fprintf(stderr,
            "usage: gpu_results add | rates | overlap | document | readme: see bench/gpu/gpu_results.c\n");
    return 2;
}
