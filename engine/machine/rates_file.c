#include "engine/machine/rates_file.h"

#include "engine/sluice.h"
#include "kernels/cuda/cards.h"
#include "loaders/json.h"

#include <stddef.h>
#include <string.h>

/* Rates of one CPU thread: about a third of `bench ops -t 1` on a Zen 5 EPYC with AVX-512 (194, 175, 236
 * GFLOP/s, 27 GB/s: bench/LOG.md); a desktop with AVX2 reaches a third. The rates are low so that runs end
 * earlier than predicted rather than later. */
static const struct op_rates thread_rates = {
    .per_second = {[CLASS_LINEAR] = 60e9, [CLASS_ATTENTION] = 50e9, [CLASS_CONV] = 70e9, [CLASS_BYTES] = 8e9},
};

/* Rate of bf16 products as a share of f32 products, assumed if only f32 was measured: an Intel server without
 * AMX reaches 0.53 (bench/LOG.md) because its bf16 instruction issues at a quarter of the rate; other
 * processors reach 2 and more. */
static const double bf16_share = 0.5;

/* Likewise for int8 products. VNNI multiplies four times as many values per instruction as f32; rotating and
 * quantising the input costs a part of the gain (bench/LOG.md: 3.4 to 3.8 times in total). */
static const double int8_share = 2.5;

/* Sets the rates of bf16 and int8 that were not measured. In int8 mode the CPU computes attention in f32. */
static void assume_rounded(struct op_rates *rates) {
    double *per_second = rates->per_second;
    if (per_second[CLASS_LINEAR_BF16] <= 0)
        per_second[CLASS_LINEAR_BF16] = bf16_share * per_second[CLASS_LINEAR];
    if (per_second[CLASS_LINEAR_INT8] <= 0)
        per_second[CLASS_LINEAR_INT8] = int8_share * per_second[CLASS_LINEAR];
    if (per_second[CLASS_ATTENTION_INT8] <= 0) per_second[CLASS_ATTENTION_INT8] = per_second[CLASS_ATTENTION];
}

/* Default rates: a SATA disk, a copy within one memory channel, and the slowest common desktop link (PCIe
 * Gen3 x8). At these rates a thread computes 120 FLOPs per byte read (a Zen 5 EPYC: 90, bench/LOG.md), so a
 * plan keeps rather one block too many resident than one too few. */
enum { DISK_MB = 500, HOST_COPY_MB = 5000, H2D_MB = 6000 };

/* Memory-bound operators saturate two memory channels at about four threads. */
enum { THREADS_OF_MEMORY = 4, THREADS_MAX = SLUICE_THREADS_MAX };

static double useful_threads(int class, int threads) {
    return class == CLASS_BYTES && threads > THREADS_OF_MEMORY ? THREADS_OF_MEMORY : threads;
}

/* GPU model whose rates are the defaults of "cuda", in a PCIe Gen3 x8 slot. */
static const char cuda_assumed[] = "3060";

static bool is_cuda(const char *device) {
    return !strcmp(device, "cuda");
}

void rates_default(const char *device, int threads, struct rates *rates) {
    int n = threads > 0 ? threads : 1;
    *rates = (struct rates){.disk = DISK_MB * 1e6, .host_copy = HOST_COPY_MB * 1e6, .h2d = H2D_MB * 1e6};
    for (int i = 0; i < N_OP_CLASSES; i++)
        rates->ops.per_second[i] = useful_threads(i, n) * thread_rates.per_second[i];
    assume_rounded(&rates->ops);
    if (is_cuda(device)) rates->ops = cuda_card_rates(cuda_card_named(cuda_assumed));
}

/* Disk and memory of a PC with a recent card: a PCIe Gen3 NVMe disk, copies within two memory channels. */
enum { CARD_DISK_MB = 3000, CARD_HOST_COPY_MB = 10000 };

void rates_of_card(const struct cuda_card *card, struct rates *rates) {
    *rates = (struct rates){.ops = cuda_card_rates(card),
                            .disk = CARD_DISK_MB * 1e6,
                            .host_copy = CARD_HOST_COPY_MB * 1e6,
                            .h2d = card->bus_bytes_per_second};
}

/* Upper bound of a rate: above any machine's, and low enough for exact sums of times in double. */
static const double most_per_second = 1e18;

struct place {
    const char *file, *key;
};

static enum status bad_file(struct error *e, struct place at, const char *expected) {
    return error_set(e, META, "invalid rates file" WHERE "%s, key '%s'" EXPECTED "%s", at.file, at.key,
                     expected);
}

static enum status read_rate(struct place at, const json_t *value, double *rate, struct error *e) {
    if (!json_is_number(value)) return bad_file(e, at, "a number: bytes or operations per second");
    double number = json_number_value(value);
    if (number >= 1 && number <= most_per_second) {
        *rate = number;
        return OK;
    }
    return error_set(e, USAGE,
                     "a rate is out of range" WHERE "%s, key '%s'" FOUND "%g" EXPECTED "1 to %g per second",
                     at.file, at.key, number, most_per_second);
}

static enum status read_ops(struct place parent, json_t *ops, struct op_rates *rates, struct error *e) {
    const char *key;
    json_t *value;
    if (!json_is_object(ops)) return bad_file(e, parent, "an object of operator rates");
    json_object_foreach(ops, key, value) {
        int class = 0;
        while (class < N_OP_CLASSES && strcmp(key, op_class_name((enum op_class) class))) class ++;
        struct place at = {parent.file, key};
        if (class == N_OP_CLASSES) {
            return bad_file(e, at,
                            "linear, linear_bf16, linear_int8, attention, attention_int8, conv, bytes");
        }
        if (read_rate(at, value, &rates->per_second[class], e) != OK) return e->code;
    }
    return OK;
}

static const struct {
    const char *key;
    size_t offset;
} paths[] = {{"disk", offsetof(struct rates, disk)},
             {"host_copy", offsetof(struct rates, host_copy)},
             {"h2d", offsetof(struct rates, h2d)}};
enum { N_PATHS = sizeof paths / sizeof *paths };

static double *path_rate(struct rates *rates, int i) {
    return (double *)((char *)rates + paths[i].offset);
}

/* Rates of a file: operators on the CPU (ops) and the GPU (cuda); 0: absent. */
struct file_rates {
    struct rates paths; /* paths.ops is unused */
    struct op_rates ops, cuda;
};

static enum status read_member(struct place at, json_t *value, struct file_rates *file_rates,
                               struct error *e) {
    for (int i = 0; i < N_PATHS; i++)
        if (!strcmp(at.key, paths[i].key)) return read_rate(at, value, path_rate(&file_rates->paths, i), e);
    if (!strcmp(at.key, "ops")) return read_ops(at, value, &file_rates->ops, e);
    if (!strcmp(at.key, "cuda")) return read_ops(at, value, &file_rates->cuda, e);
    /* The text "machine" is for people; plans do not depend on the text. */
    if (!strcmp(at.key, "machine")) return json_is_string(value) ? OK : bad_file(e, at, "a string");
    if (!strcmp(at.key, "threads")) {
        json_int_t n = json_integer_value(value);
        bool usable = json_is_integer(value) && n >= 1 && n <= THREADS_MAX;
        return usable ? OK : bad_file(e, at, "a whole number of threads from 1 to 1024");
    }
    if (!strcmp(at.key, "version")) return json_integer_value(value) == 1 ? OK : bad_file(e, at, "1");
    return bad_file(e, at, "version, machine, threads, disk, host_copy, h2d, ops, cuda");
}

static enum status parse(const char *file, const char *text, json_t **root, struct file_rates *file_rates,
                         struct error *e) {
    const char *key;
    json_t *value;
    if (json_parse(file, text, strlen(text), 4, root, e) != OK) return e->code;
    if (!json_object_get(*root, "version")) return bad_file(e, (struct place){file, "version"}, "1");
    json_object_foreach(*root, key, value) {
        if (read_member((struct place){file, key}, value, file_rates, e) != OK) return e->code;
    }
    return OK;
}

static void apply_file_rates(const struct file_rates *file_rates, const char *device, int threads,
                             int measured, struct rates *rates) {
    struct rates from = file_rates->paths;
    from.ops = is_cuda(device) ? file_rates->cuda : file_rates->ops;
    for (int i = 0; i < N_PATHS; i++)
        if (*path_rate(&from, i) > 0) *path_rate(rates, i) = *path_rate(&from, i);
    if (!is_cuda(device)) assume_rounded(&from.ops);
    /* If the session has fewer threads than the rate was measured with, the rate is scaled down. With more
     * threads the measured rate stays, because additional threads may not be faster. */
    bool scaled = threads && threads < measured;
    for (int i = 0; i < N_OP_CLASSES; i++) {
        double share = scaled ? useful_threads(i, threads) / useful_threads(i, measured) : 1;
        if (from.ops.per_second[i] > 0) rates->ops.per_second[i] = from.ops.per_second[i] * share;
    }
}

enum status rates_read(const char *device, const char *file, const char *text, int threads,
                       struct rates *rates, struct error *e) {
    json_t *root = NULL;
    struct file_rates file_rates = {0};
    if (parse(file ? file : "rates", text, &root, &file_rates, e) == OK)
        apply_file_rates(&file_rates, device, threads,
                         (int)json_integer_value(json_object_get(root, "threads")), rates);
    json_decref(root);
    return e->code;
}

static void put_rate(json_t *object, const char *key, double rate) {
    if (rate > 0) json_put(object, key, json_real(rate));
}

enum status rates_merge(const char *old, const struct rates *measured, const char *machine, int threads,
                        char **text, struct error *e) {
    struct file_rates ignored = {0};
    unsigned json_failures = failed_json_allocations();
    json_t *root = NULL;
    *text = NULL;
    if (old)
        parse("rates", old, &root, &ignored, e);
    else
        root = json_pack("{s:i}", "version", 1);
    if (e->code == OK && root) {
        json_put(root, "machine", json_string(machine));
        if (threads) json_put(root, "threads", json_integer(threads));
        struct rates rates = *measured;
        json_t *ops = json_object_get(root, "ops"), *made = ops ? NULL : json_object();
        for (int i = 0; i < N_PATHS; i++) put_rate(root, paths[i].key, *path_rate(&rates, i));
        for (int i = 0; i < N_OP_CLASSES; i++)
            put_rate(ops ? ops : made, op_class_name((enum op_class)i), rates.ops.per_second[i]);
        if (made && json_object_size(made)) json_count_failure(json_object_set(root, "ops", made));
        json_decref(made);
        /* Rates are written with six digits: more than any measurement's accuracy, and still readable. */
        *text = json_to_text(json_incref(root), JSON_INDENT(1) | JSON_REAL_PRECISION(6), json_failures);
    }
    json_decref(root);
    return e->code != OK || *text ? e->code
                                  : error_set(e, MEMORY, "no memory for the JSON of the rates file");
}
