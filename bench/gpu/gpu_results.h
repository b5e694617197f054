/* Results of a GPU machine: one JSON line per part, written as it finishes; a document assembled from the
 * parts; tables. A part:
 * {"part","status":"done|failed|timeout|skipped|refused","exit","seconds","passed","failed","failures":[...],
 * "skipped":[...],"data":...}. The document:
 * {"version":1,"kind":"gpu","gpu","date","commit","parts":{NAME:part}}. */
#ifndef SLUICE_BENCH_GPU_RESULTS_H
#define SLUICE_BENCH_GPU_RESULTS_H

#include <jansson.h>
#include <stdbool.h>

struct part_options {
    const char *results, *name, *status; /* file of all results; part; status NULL: from the exit code */
    int exit_code;
    double seconds;
    const char *log;           /* path of the file with the part's output */
    const char *data, *report; /* paths of JSON files whose contents are added to the part's line, or NULL */
    char **facts;              /* "name=value" pairs to add to the part's line */
    int n_facts;
};

/* Appends a part's line to the results and prints a readable line. Returns 0, or 1 if the file cannot be
 * written. */
int part_add(const struct part_options *options);
/* Assembles the document from the results file; NULL if the file cannot be read. If the file has several
 * lines of a part, the last line counts. */
json_t *parts_assemble(const char *results, const char *date, const char *commit);

/* Files from which fitness for timing is determined. idle, load: CSV lines of nvidia-smi with the fields of
 * run.sh, before and under load. bench: output of device_bench load. processes: one line per other program on
 * the GPU, which starts with its process id. */
struct fitness_files {
    const char *idle, *load, *bench, *processes;
};
/* Prints {"fit","reasons":[...],"notes":[...],"pcie_generation",...}: fit is false if a clock, power, bus or
 * sharing problem makes times unfit for comparison. Returns 0, or 1 if it cannot print. */
int fitness_print(const struct fitness_files *files);

/* Exit codes of a run. */
enum verdict { VERDICT_PASS = 0, VERDICT_FAIL = 1, VERDICT_UNKNOWN = 3 };
/* Answers the questions whose parts the patterns select: adds "verdicts":[{"question","verdict","why"}] to
 * the document and prints the page. unfinished: names of parts that the time limit left out, separated by
 * spaces. Returns the run's exit code. */
enum verdict verdict_page(json_t *document, char **patterns, int n_patterns, const char *unfinished);

void table_short(const json_t *document);
/* Sorts the n values, at least one, and returns the median. */
double median_of(double *values, size_t n);
/* For each memory budget of Z-Image: step time divided by max(computing, bytes / bus). Computing is the step
 * with everything resident, the bus rate is the best one of the same document. Rows
 * {"budget","bytes","seconds","floor_seconds","ratio"}. */
json_t *overlap_of(const json_t *document);
/* Compares Sluice with PyTorch in a mode (eager, compiled, cudnn), both resident. Rows
 * {"what","sluice_seconds","torch_seconds","ratio"}. */
json_t *torch_comparison_of(const json_t *document, const char *mode);
/* Prints bench/README.md's table of GPU results from n documents, oldest first. */
void table_readme(json_t *const *documents, int n);

/* member_number(json, 0, "a", "b", NULL) returns json.a.b or, if that is not a number, the second
 * argument. */
double member_number(const json_t *json, double otherwise, ...);
/* Returns the text member at a path such as json.a.b; NULL if the member is missing. */
const char *member_text(const json_t *json, ...);
/* Median of a report's member over the steps, except the first step, which includes loading; -1: no further
 * steps. */
double steps_median(const json_t *report, const char *member);

#endif
