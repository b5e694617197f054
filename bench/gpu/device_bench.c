/* Measures the first GPU: properties, bus, memory calls, operators. JSON on stdout; one line per result on
 * stderr as it finishes. Used by bench/gpu/run.sh. Usage: device_bench info | card NAME MULTIPROCESSORS GIB |
 * context | load SECONDS | bus | memory | library | ops [GROUP] [--card NAME]; --small for the last five.
 * GROUP: see operators.h. --card: GPU model for calculated times. */
#include "bench/gpu/calculated.h"
#include "bench/gpu/library_rates.h"
#include "bench/gpu/memory_calls.h"
#include "bench/gpu/operators.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const struct error *e) {
    char line[1024];
    fprintf(stderr, "device_bench: %s\n", error_line(e, line, sizeof line));
    return 1;
}

static int print(json_t *json) {
    int problem = json_dumpf(json, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    puts("");
    json_decref(json);
    return problem ? 1 : 0;
}

/* Returns the GPU's model in cards.c, or NULL. Sets *multiprocessors and bus, the GPU's PCI bus address. */
static const struct cuda_card *identify(char bus[32], int *multiprocessors) {
    struct cudaDeviceProp properties;
    *bus = 0;
    *multiprocessors = 0;
    if (cudaDeviceGetPCIBusId(bus, 32, 0) != cudaSuccess) *bus = 0;
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return NULL;
    *multiprocessors = properties.multiProcessorCount;
    return calculated_card(properties.name, properties.multiProcessorCount, properties.totalGlobalMem);
}

static int info(void) {
    struct error e = {0};
    struct cuda_info about;
    struct sys sys;
    char why[256];
    sys_init_machine(&sys);
    int n = cuda_count(why, sizeof why);
    if (!n) {
        fprintf(stderr, "device_bench: %s\n", why);
        return 1;
    }
    if (cuda_describe(0, &about, &e) != OK) return fail(&e);
    struct device *device = cuda_open(&sys, 0, &e);
    if (!device) return fail(&e);
    const struct cuda *cuda = (const struct cuda *)device;
    json_t *json = json_pack("{s:s, s:i, s:s, s:I, s:I, s:s, s:b, s:I}", "gpu", about.name, "gpus", n,
                             "architecture", "", "bytes", (json_int_t)about.bytes, "free_bytes",
                             (json_int_t)about.free_bytes, "library", about.library, "decode",
                             cuda->convolutions != NULL, "own_bytes", (json_int_t)device->overhead_bytes);
    char architecture[16];
    snprintf(architecture, sizeof architecture, "sm_%d%d", about.major, about.minor);
    json_object_set_new(json, "architecture", json_string(architecture));
    char bus[32];
    int multiprocessors;
    const struct cuda_card *card = identify(bus, &multiprocessors);
    json_object_set_new(json, "pci_bus_id", json_string(bus));
    json_object_set_new(json, "multiprocessors", json_integer(multiprocessors));
    if (card) json_object_set_new(json, "card", json_string(card->name));
    if (!cuda->convolutions) json_object_set_new(json, "no_decode", json_string(cuda->cudnn_missing));
    device->destroy(device);
    return print(json);
}

/* Measures the device's memory overhead and compares it with the overhead that plans assume. */

static int context(void) {
    struct sys sys;
    struct error e = {0};
    sys_init_machine(&sys);
    struct device *device = cuda_open(&sys, 0, &e);
    if (!device) return fail(&e);
    uint64_t assumed = device->overhead_bytes;
    device->memory->preallocate(device, 1, &e); /* loads all kernels */
    uint64_t measured = device->memory->context ? device->memory->context(device) : 0;
    json_t *json = json_pack("{s:I, s:I, s:I, s:I}", "own_bytes", (json_int_t)assumed,
                             "own_bytes_from_now_on", (json_int_t)device->overhead_bytes, "context_bytes",
                             (json_int_t)measured, "used_bytes", (json_int_t)device->memory->used(device));
    fprintf(stderr, "context: %.0f MiB measured, %.0f MiB assumed by plans\n", (double)measured / (1 << 20),
            (double)assumed / (1 << 20));
    if (measured > assumed) fprintf(stderr, "FAILED: the context takes more than plans assume\n");
    device->destroy(device);
    int status = print(json);
    if (e.code != OK) return fail(&e);
    return measured > assumed ? 1 : status;
}

static void print_row(const json_t *row) {
    const char *error = json_string_value(json_object_get(row, "error"));
    double flops = json_number_value(json_object_get(row, "flops_per_second"));
    double bytes = json_number_value(json_object_get(row, "bytes_per_second"));
    const json_t *calculated = json_object_get(row, "calculated_seconds"),
                 *share = json_object_get(row, "share");
    fprintf(stderr, "%-27s %-40s ", json_string_value(json_object_get(row, "op")),
            json_string_value(json_object_get(row, "shape")));
    if (error) {
        fprintf(stderr, "%s\n", error);
        return;
    }
    fprintf(stderr, "%9.1f us %8.1f %s", 1e6 * json_number_value(json_object_get(row, "seconds")),
            flops > 0 ? flops / 1e12 : bytes / 1e9, flops > 0 ? "TFLOP/s" : "GB/s   ");
    if (share) fprintf(stderr, " %3.0f %%", 100 * json_number_value(share));
    if (calculated) fprintf(stderr, ", calculated %.1f us", 1e6 * json_number_value(calculated));
    fputs("\n", stderr);
}

/* Keeps GPU and bus busy, so that nvidia-smi can sample clocks, power and the bus link under load. */
static int load(double seconds, bool small) {
    struct rig rig;
    struct error e = {0};
    json_t *rates = NULL;
    if (rig_open(&rig, 0.01, &e) == OK) rates = library_load(&rig, seconds, small, &e);
    rig_close(&rig);
    int status = print(rates ? rates : json_object());
    return e.code == OK ? status : fail(&e);
}

static int library(bool small) {
    struct rig rig;
    struct error e = {0};
    if (rig_open(&rig, small ? 0.01 : 0.3, &e) != OK) {
        rig_close(&rig);
        return fail(&e);
    }
    json_t *rows = library_rates_measure(&rig, small, print_row);
    rig_close(&rig);
    return print(json_pack("{s:o}", "rows", rows));
}

static int bus(bool small) {
    json_t *rows = json_array();
    struct sys sys;
    struct error e = {0};
    sys_init_machine(&sys);
    uint64_t largest = small ? (uint64_t)1 << 20 : (uint64_t)1 << 30;
    for (int path = 0; path < N_CUDA_PATHS && e.code == OK; path++)
        for (uint64_t bytes = (uint64_t)256 << 10; bytes <= largest && e.code == OK; bytes *= 4) {
            double rate;
            const char *name = cuda_path_name((enum cuda_path)path);
            if (cuda_bus_rate(&sys, 0, (enum cuda_path)path, bytes, &rate, &e) != OK) break;
            fprintf(stderr, "%-13s %11llu %8.2f GB/s\n", name, (unsigned long long)bytes, rate / 1e9);
            json_array_append_new(rows, json_pack("{s:s, s:I, s:f}", "path", name, "bytes", (json_int_t)bytes,
                                                  "gbytes_per_second", rate / 1e9));
        }
    int status = print(json_pack("{s:o, s:b}", "rows", rows, "complete", e.code == OK));
    return e.code == OK ? status : fail(&e);
}

static void print_call(const json_t *row) {
    fprintf(stderr, "%-24s %11.0f bytes %10.1f us\n", json_string_value(json_object_get(row, "call")),
            json_number_value(json_object_get(row, "bytes")),
            1e6 * json_number_value(json_object_get(row, "seconds")));
}

static int memory(bool small) {
    struct sys sys;
    struct error e = {0};
    sys_init_machine(&sys);
    struct device *device = cuda_open(&sys, 0, &e);
    if (!device) return fail(&e);
    json_t *rows = memory_calls_measure(&sys, device, small, print_call, &e);
    device->destroy(device);
    int status = print(json_pack("{s:o, s:b}", "rows", rows, "complete", e.code == OK));
    return e.code == OK ? status : fail(&e);
}

static int ops(bool small, const char *group, const char *card_name) {
    struct rig rig;
    struct error e = {0};
    char bus[32];
    int multiprocessors;
    struct operators_options options = {small, group, card_name ? cuda_card_named(card_name) : NULL};
    if (rig_open(&rig, small ? 0.01 : 0.3, &e) != OK) {
        rig_close(&rig);
        return fail(&e);
    }
    if (!card_name) options.card = identify(bus, &multiprocessors);
    json_t *measured = operators_measure(&rig, &options, print_row);
    bool complete = json_is_true(json_object_get(measured, "complete"));
    int status = print(measured);
    rig_close(&rig);
    return complete ? status : 1;
}

/* Prints the GPU model of cards.c for a CUDA device name, a number of multiprocessors and GiB of memory. */
static int card(char **arguments) {
    double bytes = strtod(arguments[2], NULL) * (1 << 30);
    const struct cuda_card *found = calculated_card(arguments[0], atoi(arguments[1]), (uint64_t)bytes);
    puts(found ? found->name : "none");
    return 0;
}

static int usage(void) {
    fprintf(stderr, "usage: device_bench info | card NAME MULTIPROCESSORS GIB | context | load SECONDS | bus "
                    "| memory | library | ops [GROUP] [--card NAME] [--small]\n");
    return 2;
}

static bool is_group(const char *name) {
    for (int i = 0; operators_groups[i]; i++)
        if (!strcmp(operators_groups[i], name)) return true;
    return false;
}

int main(int argc, char **argv) {
    bool small = false;
    const char *group = NULL, *card_name = NULL;
    double seconds = 0;
    if (argc == 5 && !strcmp(argv[1], "card")) return card(argv + 2);
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--small"))
            small = true;
        else if (!strcmp(argv[i], "--card") && i + 1 < argc && cuda_card_named(argv[i + 1]))
            card_name = argv[++i];
        else if (!strcmp(argv[1], "load") && strtod(argv[i], NULL) > 0)
            seconds = strtod(argv[i], NULL);
        else if (is_group(argv[i]))
            group = argv[i];
        else
            return usage();
    }
    if (argc > 1 && !strcmp(argv[1], "info")) return info();
    if (argc > 1 && !strcmp(argv[1], "context")) return context();
    if (argc > 1 && !strcmp(argv[1], "bus")) return bus(small);
    if (argc > 1 && !strcmp(argv[1], "memory")) return memory(small);
    if (argc > 1 && !strcmp(argv[1], "ops")) return ops(small, group, card_name);
    if (argc > 1 && !strcmp(argv[1], "library")) return library(small);
    if (argc > 1 && !strcmp(argv[1], "load") && seconds > 0) return load(seconds, small);
    return usage();
}
