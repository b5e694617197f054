/* The verdict of a run: one line per question (gpu_results.h). */
#include "bench/gpu/gpu_results.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { WHY = 160, NAME = 64, HASH = 64, WORDS_MOST = 16 };

/* Limits of the timing questions. */
static const double operator_share = 0.15, floor_ratio = 1.05, torch_ratio = 1.10;
/* Operators below this time are bound by launches, whose time varies. */
static const double operator_least_seconds = 20e-6;

struct answer {
    enum verdict verdict;
    char why[WHY];
};

__attribute__((format(printf, 3, 4))) static void answer(struct answer *a, enum verdict verdict,
                                                         const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(a->why, sizeof a->why, format, values);
    va_end(values);
    a->verdict = verdict;
}

static const json_t *part_of(const json_t *document, const char *name) {
    return json_object_get(json_object_get(document, "parts"), name);
}

static bool begins(const char *text, const char *prefix) {
    return !strncmp(text, prefix, strlen(prefix));
}

static bool is_status(const json_t *part, const char *status) {
    const char *found = member_text(part, "status", NULL);
    return found && !strcmp(found, status);
}

/* Answers for a part without data: UNKNOWN if it was skipped or has not run, FAIL if it failed. */
static void answer_missing(struct answer *a, const json_t *part, const char *name) {
    const char *reason = member_text(part, "reason", NULL);
    if (!part)
        answer(a, VERDICT_UNKNOWN, "%s has not run", name);
    else if (is_status(part, "skipped"))
        answer(a, VERDICT_UNKNOWN, "%s", reason ? reason : "skipped");
    else
        answer(a, VERDICT_FAIL, "%s: %s", name, member_text(part, "status", NULL));
}

/* Parts whose checks have a question of their own. */
static bool asked_elsewhere(const char *name) {
    static const char *const own[] = {"check.algorithms", "check.int8",      "check.context",  "check.jit",
                                      "check.memcheck",   "check.racecheck", "check.synccheck"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (begins(name, own[i])) return true;
    return false;
}

/* Sums up the parts that are selected by `belongs`: one failed part means FAIL, one skipped part UNKNOWN. */
static void judge_parts(const json_t *document, struct answer *a, bool (*belongs)(const char *name)) {
    const char *name, *bad = NULL, *skipped = NULL;
    json_t *part;
    int passed = 0, failed = 0, n = 0;
    json_object_foreach(json_object_get(document, "parts"), name, part) {
        if (!belongs(name)) continue;
        n++;
        passed += (int)member_number(part, 0, "passed", NULL);
        if (is_status(part, "skipped")) {
            if (!skipped) skipped = name;
        } else if (!is_status(part, "done")) {
            failed++;
            if (!bad) bad = name;
        }
    }
    const json_t *lines = json_object_get(bad ? part_of(document, bad) : NULL, "failures");
    const char *line = json_string_value(json_array_get(lines, 0));
    if (bad)
        answer(a, VERDICT_FAIL, "%s: %s%s%.90s; %d part%s failed", bad,
               member_text(part_of(document, bad), "status", NULL), line ? ": " : "", line ? line : "",
               failed, failed > 1 ? "s" : "");
    else if (skipped)
        answer(a, VERDICT_UNKNOWN, "%s: %s", skipped,
               member_text(part_of(document, skipped), "reason", NULL));
    else if (!n)
        answer(a, VERDICT_UNKNOWN, "no check has run");
    else
        answer(a, VERDICT_PASS, "%d checks", passed);
}

static bool is_result_check(const char *name) {
    return begins(name, "check.") && !asked_elsewhere(name);
}

static bool is_sanitizer(const char *name) {
    return begins(name, "check.memcheck") || begins(name, "check.racecheck") ||
           begins(name, "check.synccheck");
}

static void judge_results(const json_t *document, struct answer *a) {
    judge_parts(document, a, is_result_check);
}

static void judge_sanitizers(const json_t *document, struct answer *a) {
    judge_parts(document, a, is_sanitizer);
}

static void judge_two_runs(const json_t *document, struct answer *a) {
    const json_t *part = part_of(document, "check.algorithms");
    const char *first = member_text(part, "hash", NULL), *second = member_text(part, "hash_again", NULL);
    if (!first || !second || !first[0])
        answer_missing(a, part, "check.algorithms");
    else if (strcmp(first, second) != 0)
        answer(a, VERDICT_FAIL, "latents %.8s and %.8s", first, second);
    else
        answer(a, VERDICT_PASS, "latent %.8s", first);
}

/* Counts the hashes of a text such as "3fa9 3fa9 71c0"; *same: all are equal. "-" stands for a failed run. */
static int count_hashes(const char *text, bool *same) {
    char first[HASH + 1] = "", word[HASH + 1];
    int n = 0, length;
    *same = true;
    for (; text && sscanf(text, " %64s%n", word, &length) == 1; text += length, n++) {
        if (!n) memcpy(first, word, sizeof first);
        if (strcmp(first, word) != 0 || !strcmp(word, "-")) *same = false;
    }
    return n;
}

/* Compares the latents of all budgets of a family and batch that have run with the same number of steps. */
static void compare_budgets(const json_t *document, const char *prefix, const char *batch, int *n,
                            const char **differs) {
    const char *name;
    json_t *part;
    const json_t *first = NULL, *first_steps = NULL;
    int own = 0;
    json_object_foreach(json_object_get(document, "parts"), name, part) {
        const json_t *data = json_object_get(part, "data");
        const json_t *hashes = json_object_get(data, "latent_sha256");
        const json_t *request = json_object_get(json_object_get(data, "plan"), "request");
        const json_t *steps = json_object_get(request, "steps");
        size_t length = strlen(name), tail = strlen(batch);
        if (!begins(name, prefix) || length < tail || strcmp(name + length - tail, batch) != 0) continue;
        if (!json_array_size(hashes)) continue;
        if (!first) first = hashes, first_steps = steps;
        if (steps && first_steps && !json_equal(steps, first_steps)) continue;
        own++;
        if (!json_equal(hashes, first)) *differs = name;
    }
    if (own > 1) *n += own;
}

static void judge_budgets(const json_t *document, struct answer *a) {
    const json_t *part = part_of(document, "check.algorithms");
    const char *differs = NULL;
    bool same;
    int demo = count_hashes(member_text(part, "hash_budgets", NULL), &same), full = 0;
    compare_budgets(document, "bench.zimage.", ".b1", &full, &differs);
    compare_budgets(document, "bench.zimage.", ".b4", &full, &differs);
    compare_budgets(document, "bench.flux.", ".b1", &full, &differs);
    if (differs)
        answer(a, VERDICT_FAIL, "%s has another latent", differs);
    else if (demo && !same)
        answer(a, VERDICT_FAIL, "the demo model's latents differ");
    else if (demo < 2)
        answer_missing(a, part, "check.algorithms");
    else if (full)
        answer(a, VERDICT_PASS, "demo model with %d budgets; published sizes, %d runs", demo, full);
    else
        answer(a, VERDICT_PASS, "demo model with %d budgets", demo);
}

static void judge_int8(const json_t *document, struct answer *a) {
    const json_t *part = part_of(document, "check.int8");
    bool same;
    int n = count_hashes(member_text(part, "hash_budgets", NULL), &same);
    if (n < 2)
        answer_missing(a, part, "check.int8");
    else if (!same || !is_status(part, "done"))
        answer(a, VERDICT_FAIL, "the demo model's latents differ");
    else
        answer(a, VERDICT_PASS, "demo model, %d runs", n);
}

static void judge_context(const json_t *document, struct answer *a) {
    const json_t *part = part_of(document, "check.context");
    double measured = member_number(part, 0, "data", "context_bytes", NULL) / (1 << 20);
    double assumed = member_number(part, 0, "data", "own_bytes", NULL) / (1 << 20);
    if (measured <= 0 || assumed <= 0)
        answer_missing(a, part, "check.context");
    else
        answer(a, measured > assumed ? VERDICT_FAIL : VERDICT_PASS, "%.0f MiB used, %.0f MiB planned",
               measured, assumed);
}

static void judge_jit(const json_t *document, struct answer *a) {
    const json_t *part = part_of(document, "check.jit");
    if (is_status(part, "done"))
        answer(a, VERDICT_PASS, "%.0f checks", member_number(part, 0, "passed", NULL));
    else
        answer_missing(a, part, "check.jit");
}

/* Operators whose measured time was compared with the calculated time. */
struct operators_seen {
    int n, off;                          /* compared; off by more than operator_share */
    double worst;                        /* measured / calculated of the operator that is farthest off */
    const json_t *worst_row, *error_row; /* error_row: an operator that failed, or NULL */
};

/* Returns a ratio or its inverse, whichever is larger. */
static double from_one(double ratio) {
    return ratio > 1 ? ratio : 1 / ratio;
}

static void see_operator(struct operators_seen *seen, const json_t *row) {
    double calculated = member_number(row, 0, "calculated_seconds", NULL);
    double measured = member_number(row, 0, "seconds", NULL), ratio = measured / calculated;
    const char *error = member_text(row, "error", NULL);
    if (error && !begins(error, "not supported")) seen->error_row = row;
    if (calculated <= 0 || measured < operator_least_seconds) return;
    seen->n++;
    if (ratio >= 1 - operator_share && ratio <= 1 + operator_share) return;
    seen->off++;
    if (seen->worst_row && from_one(ratio) <= from_one(seen->worst)) return;
    seen->worst = ratio;
    seen->worst_row = row;
}

static void judge_operators(const json_t *document, struct answer *a) {
    const json_t *info = part_of(document, "info");
    struct operators_seen seen = {0};
    const char *name;
    json_t *part, *row;
    size_t i;
    json_object_foreach(json_object_get(document, "parts"), name, part) {
        if (!begins(name, "bench.ops.")) continue;
        json_array_foreach(json_object_get(json_object_get(part, "data"), "rows"), i, row)
            see_operator(&seen, row);
    }
    if (seen.error_row)
        answer(a, VERDICT_FAIL, "%s %s: %.90s", member_text(seen.error_row, "op", NULL),
               member_text(seen.error_row, "shape", NULL), member_text(seen.error_row, "error", NULL));
    else if (!seen.n && info && !member_text(info, "data", "card", NULL))
        answer(a, VERDICT_UNKNOWN, "kernels/cuda/cards.c lacks this GPU");
    else if (!seen.n)
        answer(a, VERDICT_UNKNOWN, "no operator was measured");
    else if (seen.off)
        answer(a, VERDICT_FAIL, "%d of %d off by more than 15 %%; %s %s takes %.2f of the calculated time",
               seen.off, seen.n, member_text(seen.worst_row, "op", NULL),
               member_text(seen.worst_row, "shape", NULL), seen.worst);
    else
        answer(a, VERDICT_PASS, "%d of %d within 15 %%", seen.n, seen.n);
}

static void judge_floor(const json_t *document, struct answer *a) {
    json_t *rows = overlap_of(document), *row;
    const char *budget = NULL;
    double worst = 0;
    size_t i;
    json_array_foreach(rows, i, row) {
        double ratio = member_number(row, 0, "ratio", NULL);
        if (ratio <= worst || member_number(row, 0, "bytes", NULL) <= 0) continue;
        worst = ratio;
        budget = member_text(row, "budget", NULL);
    }
    if (!budget)
        answer(a, VERDICT_UNKNOWN, "no streamed step was measured");
    else
        answer(a, worst > floor_ratio ? VERDICT_FAIL : VERDICT_PASS, "at most %.3f (budget %s); limit %.2f",
               worst, budget, floor_ratio);
    json_decref(rows);
}

static void judge_torch(const json_t *document, struct answer *a) {
    json_t *rows = torch_comparison_of(document, "eager"), *row;
    const char *what = NULL, *name, *reason = NULL;
    json_t *part;
    double worst = 0;
    size_t i, n = json_array_size(rows);
    json_array_foreach(rows, i, row) {
        double ratio = member_number(row, 0, "ratio", NULL);
        if (ratio <= worst) continue;
        worst = ratio;
        what = member_text(row, "what", NULL);
    }
    json_object_foreach(json_object_get(document, "parts"), name,
                        part) if (begins(name, "bench.torch.") && !reason) reason =
        member_text(part, "reason", NULL);
    if (!n)
        answer(a, VERDICT_UNKNOWN, "%s", reason ? reason : "nothing to compare");
    else
        answer(a, worst > torch_ratio ? VERDICT_FAIL : VERDICT_PASS,
               "at most %.2f of PyTorch's time (%s); limit %.2f", worst, what, torch_ratio);
    json_decref(rows);
}

/* parts: names or prefixes of the parts that answer the question. */
static const struct question {
    const char *words, *parts;
    bool timing;
    void (*judge)(const json_t *document, struct answer *a);
} questions[] = {
    {"results right",
     "check.fragments check.pipeline check.gate check.store check.refusals check.ops check.weights "
     "check.golden check.blocks check.memory check.ladder",
     false, judge_results},
    {"two runs, one image", "check.algorithms", false, judge_two_runs},
    {"all budgets, one image", "check.algorithms bench.zimage bench.flux", false, judge_budgets},
    {"the same with int8", "check.int8", false, judge_int8},
    {"CUDA context as planned", "check.context", false, judge_context},
    {"kernels compiled by driver", "check.jit", false, judge_jit},
    {"no memory errors, no races", "check.memcheck check.racecheck check.synccheck", false, judge_sanitizers},
    {"operators as calculated", "bench.ops", true, judge_operators},
    {"step close to its bound", "bench.zimage bench.overlap", true, judge_floor},
    {"as fast as PyTorch", "bench.torch", true, judge_torch},
};
enum { N_QUESTIONS = sizeof questions / sizeof *questions };

/* True if a word of the list and the pattern are equal up to the end of the shorter. */
static bool matches(const char *words, const char *pattern) {
    char word[NAME];
    int length;
    for (; sscanf(words, " %63s%n", word, &length) == 1; words += length)
        if (begins(word, pattern) || begins(pattern, word)) return true;
    return false;
}

static bool is_asked(const struct question *q, char **patterns, int n_patterns) {
    for (int i = 0; i < n_patterns; i++)
        if (matches(q->parts, patterns[i])) return true;
    return false;
}

/* Finds the first part of the list that belongs to the question; false: none. */
static bool open_part(const struct question *q, const char *open, char part[NAME]) {
    int length;
    for (; sscanf(open, " %63s%n", part, &length) == 1; open += length)
        if (matches(q->parts, part)) return true;
    return false;
}

static const char *word_of(enum verdict verdict) {
    return verdict == VERDICT_PASS ? "PASS" : verdict == VERDICT_FAIL ? "FAIL" : "UNKNOWN";
}

static void print_list(const json_t *list, const char *before, const char *between) {
    size_t i;
    json_t *line;
    json_array_foreach(list, i, line) printf("%s%s", i ? between : before, json_string_value(line));
}

/* Prints the machine's state under load, and whether it is fit for timing. Returns NULL if it is, else why
 * times do not count. */
static const char *print_machine(const json_t *document) {
    const json_t *part = part_of(document, "fitness"), *data = json_object_get(part, "data");
    bool fit = json_is_true(json_object_get(data, "fit"));
    const char *reason = member_text(part, "reason", NULL);
    if (!part) return "fitness for timing not checked";
    if (fit) printf("Machine: fit for timing");
    if (!fit && data) {
        printf("This machine is not fit for timing:");
        print_list(json_object_get(data, "reasons"), "\n  - ", "\n  - ");
    }
    if (!data) printf("Machine: fitness for timing unknown: %s", reason ? reason : "no result");
    printf("\n");
    double generation = member_number(data, 0, "pcie_generation", NULL);
    if (generation > 0)
        printf("  under load: PCIe %.0f.0 x%.0f, %.1f GB/s; %.0f of %.0f MHz; %.0f of %.0f W; %.0f C",
               generation, member_number(data, 0, "pcie_width", NULL),
               member_number(data, 0, "load", "h2d_bytes_per_second", NULL) / 1e9,
               member_number(data, 0, "sm_mhz", NULL), member_number(data, 0, "sm_mhz_max", NULL),
               member_number(data, 0, "watts", NULL), member_number(data, 0, "watts_limit", NULL),
               member_number(data, 0, "celsius", NULL));
    print_list(json_object_get(data, "notes"), "; ", "; ");
    if (generation > 0) printf("\n");
    return fit ? NULL : data ? "machine not fit for timing" : "fitness for timing unknown";
}

static void judge(const json_t *document, const struct question *q, const char *open, const char *unfit,
                  struct answer *a) {
    char part[NAME], measured[WHY];
    q->judge(document, a);
    if (a->verdict != VERDICT_FAIL && open_part(q, open, part))
        answer(a, VERDICT_UNKNOWN, "%s has not finished: repeat the command", part);
    if (!q->timing || !unfit || a->verdict == VERDICT_UNKNOWN) return;
    memcpy(measured, a->why, sizeof measured);
    answer(a, VERDICT_UNKNOWN, "%s; %.110s", unfit, measured);
}

enum verdict verdict_page(json_t *document, char **patterns, int n_patterns, const char *open) {
    json_t *verdicts = json_array();
    int passed = 0, failed = 0, unknown = 0;
    const char *gpu = member_text(document, "gpu", NULL), *commit = member_text(document, "commit", NULL);
    printf("Sluice %s on %s, %s\n", commit, gpu, member_text(document, "date", NULL));
    const char *unfit = print_machine(document);
    printf("\n");
    for (int i = 0; i < N_QUESTIONS; i++) {
        const struct question *q = &questions[i];
        struct answer a = {0};
        if (!is_asked(q, patterns, n_patterns)) continue;
        judge(document, q, open, unfit, &a);
        passed += a.verdict == VERDICT_PASS;
        failed += a.verdict == VERDICT_FAIL;
        unknown += a.verdict == VERDICT_UNKNOWN;
        printf("%-7s  %-26s  %s\n", word_of(a.verdict), q->words, a.why);
        json_array_append_new(verdicts, json_pack("{s:s, s:s, s:s}", "question", q->words, "verdict",
                                                  word_of(a.verdict), "why", a.why));
    }
    json_object_set_new(document, "verdicts", verdicts);
    enum verdict all = failed ? VERDICT_FAIL : unknown ? VERDICT_UNKNOWN : VERDICT_PASS;
    printf("\n%d PASS, %d FAIL, %d UNKNOWN: %s\n", passed, failed, unknown, word_of(all));
    return all;
}
