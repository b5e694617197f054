/* Checks with samples of nvidia-smi whether a machine is fit for timing (gpu_results.h). */
#include "bench/gpu/gpu_results.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fields of a sample, in the order of run.sh's query; a field that the GPU lacks is NAN or "". */
enum field {
    PCIE_GENERATION,
    PCIE_GENERATION_MAX,
    PCIE_WIDTH,
    PCIE_WIDTH_MAX,
    POWER,
    POWER_LIMIT,
    POWER_DEFAULT,
    SM_CLOCK,
    SM_CLOCK_MAX,
    TEMPERATURE,
    UTILIZATION,
    MEMORY_USED,
    ECC,
    MIG,
    THROTTLE,
    N_FIELDS
};

enum { SAMPLES_MOST = 1024, TEXT = 256 };

/* Bits of clocks_event_reasons.active that report a fault of cooling or power supply: hardware slowdown,
 * thermal slowdown by software and hardware, power brake (NVML: nvmlClocksEventReasons). A reached power
 * limit (bit 4) is normal under load. */
static const unsigned long long throttled_bits = 0x8 | 0x20 | 0x40 | 0x80;

struct samples {
    int n;
    double value[N_FIELDS][SAMPLES_MOST];
    bool enabled[N_FIELDS]; /* the field is "Enabled" in the first sample */
};

static double number_of(const char *text) {
    char *end;
    double value = strncmp(text, "0x", 2) ? strtod(text, &end) : (double)strtoull(text, &end, 16);
    return end == text ? NAN : value;
}

/* Reads lines such as "4, 4, 16, 16, 441.02, ...". A missing file gives no samples. */
static void samples_read(struct samples *s, const char *path) {
    char line[1024];
    FILE *file = fopen(path, "r");
    s->n = 0;
    while (file && s->n < SAMPLES_MOST && fgets(line, sizeof line, file)) {
        char *at = line;
        int field = 0;
        for (; field < N_FIELDS && at; field++) {
            char *next = strchr(at, ',');
            if (next) *next++ = 0;
            at += strspn(at, " ");
            s->value[field][s->n] = number_of(at);
            if (!s->n) s->enabled[field] = !strncmp(at, "Enabled", 7);
            at = next;
        }
        if (field == N_FIELDS) s->n++;
    }
    if (file) fclose(file);
}

/* Returns the median of a field over the samples of the last two thirds, without the ramp-up; NAN: unknown.
 */
static double median(const struct samples *s, enum field field) {
    double values[SAMPLES_MOST];
    int n = 0;
    for (int i = s->n / 3; i < s->n; i++)
        if (!isnan(s->value[field][i])) values[n++] = s->value[field][i];
    return n ? median_of(values, (size_t)n) : NAN;
}

/* Returns the share of samples with a bit of throttled_bits. */
static double throttled_share(const struct samples *s) {
    int bad = 0;
    for (int i = 0; i < s->n; i++) {
        double bits = s->value[THROTTLE][i];
        bad += !isnan(bits) && ((unsigned long long)bits & throttled_bits);
    }
    return s->n ? (double)bad / s->n : 0;
}

__attribute__((format(printf, 2, 3))) static void add_line(json_t *list, const char *format, ...) {
    char text[TEXT];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    json_array_append_new(list, json_string(text));
}

static int count_lines(const char *path) {
    char line[1024];
    int n = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) n += isdigit((unsigned char)line[0]) != 0;
    if (file) fclose(file);
    return n;
}

static void judge_link(const struct samples *load, json_t *reasons, json_t *notes) {
    double generation = median(load, PCIE_GENERATION), most = median(load, PCIE_GENERATION_MAX);
    double width = median(load, PCIE_WIDTH), widest = median(load, PCIE_WIDTH_MAX);
    if (generation < most) add_line(reasons, "PCIe %.0f.0 instead of %.0f.0 under load", generation, most);
    if (width <= 4)
        add_line(reasons, "PCIe x%.0f: too narrow for streaming", width);
    else if (width < widest)
        add_line(notes, "PCIe x%.0f of x%.0f", width, widest);
}

static void judge_power(const struct samples *load, const json_t *bench, json_t *reasons) {
    const json_t *rates = json_object_get(bench, "flops_per_second");
    double limit = median(load, POWER_LIMIT), usual = median(load, POWER_DEFAULT);
    double clock = median(load, SM_CLOCK), fastest = median(load, SM_CLOCK_MAX);
    double first = json_number_value(json_array_get(rates, 1));
    double last = json_number_value(json_array_get(rates, json_array_size(rates) - 1));
    double share = throttled_share(load);
    if (limit < 0.95 * usual)
        add_line(reasons, "power limit %.0f W instead of %.0f W (nvidia-smi -pl)", limit, usual);
    if (share > 0.1)
        add_line(reasons, "throttled by heat or power supply in %.0f %% of the samples, at %.0f C",
                 100 * share, median(load, TEMPERATURE));
    if (clock < 0.5 * fastest) add_line(reasons, "%.0f of %.0f MHz under load", clock, fastest);
    if (json_array_size(rates) > 2 && last < 0.9 * first)
        add_line(reasons, "products are %.0f %% slower at the end of the load", 100 * (1 - last / first));
}

static void put_number(json_t *json, const char *name, double value) {
    if (!isnan(value)) json_object_set_new(json, name, json_real(value));
}

int fitness_print(const struct fitness_files *files) {
    static struct samples idle, load;
    json_t *reasons = json_array(), *notes = json_array();
    json_t *bench = json_load_file(files->bench, 0, NULL);
    int others = count_lines(files->processes);
    samples_read(&idle, files->idle);
    samples_read(&load, files->load);
    if (!idle.n || !load.n) add_line(reasons, "nvidia-smi gave no samples");
    judge_link(&load, reasons, notes);
    judge_power(&load, bench, reasons);
    if (others) add_line(reasons, "%d other program%s on this GPU", others, others > 1 ? "s" : "");
    if (median(&idle, UTILIZATION) > 10)
        add_line(reasons, "%.0f %% busy before the start", median(&idle, UTILIZATION));
    if (load.enabled[MIG]) add_line(reasons, "MIG is on: other tenants share this GPU");
    if (load.enabled[ECC]) add_line(notes, "ECC on");
    if (median(&idle, MEMORY_USED) > 200)
        add_line(notes, "%.0f MiB in use before the start", median(&idle, MEMORY_USED));
    json_t *json =
        json_pack("{s:b, s:o, s:o}", "fit", !json_array_size(reasons), "reasons", reasons, "notes", notes);
    put_number(json, "pcie_generation", median(&load, PCIE_GENERATION));
    put_number(json, "pcie_width", median(&load, PCIE_WIDTH));
    put_number(json, "pcie_width_max", median(&load, PCIE_WIDTH_MAX));
    put_number(json, "watts", median(&load, POWER));
    put_number(json, "watts_limit", median(&load, POWER_LIMIT));
    put_number(json, "sm_mhz", median(&load, SM_CLOCK));
    put_number(json, "sm_mhz_max", median(&load, SM_CLOCK_MAX));
    put_number(json, "celsius", median(&load, TEMPERATURE));
    if (bench) json_object_set_new(json, "load", bench);
    int problem = json_dumpf(json, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    puts("");
    json_decref(json);
    return problem ? 1 : 0;
}
