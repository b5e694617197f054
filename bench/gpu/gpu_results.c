/* Stores and prints results of a GPU machine, for bench/gpu/run.sh and bench/README.md.
 *   gpu_results add RESULTS PART EXIT SECONDS LOG [--status S] [--data FILE] [--report FILE] [NAME=VALUE...]
 *   gpu_results rates RATES OPERATORS      writes measured rates into a rates file
 *   gpu_results overlap RESULTS            step times relative to max(computing, bytes / bus), as JSON
 *   gpu_results fitness IDLE LOAD BENCH PROCESSES      whether the machine is fit for timing, as JSON
 *   gpu_results document RESULTS FOLDER DATE COMMIT UNFINISHED PATTERN...
 *       writes FOLDER/GPU-DATE.json; prints its tables and the verdict on parts that begin with a pattern.
 *       UNFINISHED: parts that the time limit left out. Exits 0 for PASS, 1 for FAIL, 3 for UNKNOWN
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

/* Replaces the home folder in all texts by "~": results are published, and paths may contain a person's
 * name. */
static void hide_home(json_t *json, const char *home) {
    const char *at, *name;
    json_t *member;
    size_t i;
    while (json_is_string(json) && (at = strstr(json_string_value(json), home))) {
        const char *text = json_string_value(json);
        json_t *shorter = json_sprintf("%.*s~%s", (int)(at - text), text, at + strlen(home));
        json_string_set(json, json_string_value(shorter));
        json_decref(shorter);
    }
    json_object_foreach(json, name, member) hide_home(member, home);
    json_array_foreach(json, i, member) hide_home(member, home);
}

static int document(char **arguments, char **patterns, int n_patterns) {
    const char *results = arguments[0], *folder = arguments[1], *date = arguments[2], *home = getenv("HOME");
    char name[128], path[PATH];
    json_t *json = parts_assemble(results, date, arguments[3]);
    if (!json) return complain("cannot read", results);
    if (home && strlen(home) > 1) hide_home(json, home);
    plain_name(member_text(json, "gpu", NULL), name, sizeof name);
    snprintf(path, sizeof path, "%s/%s-%s.json", folder, name, date);
    table_short(json);
    puts("");
    enum verdict verdict = verdict_page(json, patterns, n_patterns, arguments[4]);
    if (json_dump_file(json, path, JSON_INDENT(1) | JSON_REAL_PRECISION(6)))
        return complain("cannot write", path);
    printf("result file: %s\n", path);
    json_decref(json);
    return (int)verdict;
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
    if (!strcmp(verb, "document") && argc >= 7) return document(argv + 2, argv + 7, argc - 7);
    if (!strcmp(verb, "fitness") && argc == 6)
        return fitness_print(&(struct fitness_files){argv[2], argv[3], argv[4], argv[5]});
    if (!strcmp(verb, "readme")) return readme(argc - 2, argv + 2);
    fprintf(stderr, "usage: gpu_results add | rates | overlap | fitness | document | readme: see "
                    "bench/gpu/gpu_results.c\n");
    return 2;
}
