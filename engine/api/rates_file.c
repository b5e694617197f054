/* Rates as text: see rates_file.h. */
#include "engine/api/rates_file.h"

#include "engine/sluice.h"
#include "kernels/cuda/cards.h"
#include "loaders/json.h"

#include <stddef.h>
#include <string.h>

/* ---- defaults ---- */

/* One thread of the CPU: about a third of what `bench ops -t 1` measured on an EPYC of the Zen 5 generation
 * with AVX-512 (194, 175, 236 GFLOP/s, 27 GB/s: bench/LOG.md); a desktop with AVX2 reaches that. Low on
 * purpose: a run that ends sooner than predicted annoys nobody. */
static const struct op_rates thread_rates = {
    .per_second = {[CLASS_LINEAR] = 60e9, [CLASS_ATTENTION] = 50e9, [CLASS_CONV] = 70e9, [CLASS_BYTES] = 8e9},
};

/* Of products in bf16 to those in f32, where only these are known: what an Intel server without AMX does
 * (0.53 measured: bench/LOG.md), whose bf16 instruction is issued at a quarter of the rate. Others reach 2
 * and more. */
static const double bf16_share = 0.5;

static void assume_bf16(struct op_rates *rates) {
    rates->per_second[CLASS_LINEAR_BF16] = bf16_share * rates->per_second[CLASS_LINEAR];
}

/* A SATA disk, one memory channel's copy, and the narrowest link that people have in a desktop (PCIe Gen3
 * x8). Residents follow from the ratio: while the disk reads a byte a thread does 120 FLOPs here, 90 on that
 * EPYC, so that assumed rates rather keep a block too many than wait for it. */
enum { DISK_MB = 500, HOST_COPY_MB = 5000, H2D_MB = 6000 };

/* Two channels of memory feed about four threads; more of them move no more bytes. */
enum { THREADS_OF_MEMORY = 4, THREADS_MAX = SLUICE_THREADS_MAX };

/* Threads that make this class faster. */
static double useful_threads(int class, int threads) {
    return class == CLASS_BYTES && threads > THREADS_OF_MEMORY ? THREADS_OF_MEMORY : threads;
}

/* A GPU of which nothing is known: this card, in half of a PCIe Gen3 slot. */
static const char cuda_assumed[] = "3060";

static bool is_cuda(const char *device) {
    return !strcmp(device, "cuda");
}

void rates_default(const char *device, int threads, struct rates *rates) {
    int n = threads > 0 ? threads : 1;
    *rates = (struct rates){.disk = DISK_MB * 1e6, .host_copy = HOST_COPY_MB * 1e6, .h2d = H2D_MB * 1e6};
    for (int i = 0; i < N_OP_CLASSES; i++)
        rates->ops.per_second[i] = useful_threads(i, n) * thread_rates.per_second[i];
    assume_bf16(&rates->ops);
    if (is_cuda(device)) rates->ops = cuda_card_rates(cuda_card_named(cuda_assumed));
}

/* Beside a card of the last years: an NVMe disk of Gen3, two channels' copy. */
enum { CARD_DISK_MB = 3000, CARD_HOST_COPY_MB = 10000 };

void rates_of_card(const struct cuda_card *card, struct rates *rates) {
    *rates = (struct rates){.ops = cuda_card_rates(card),
                            .disk = CARD_DISK_MB * 1e6,
                            .host_copy = CARD_HOST_COPY_MB * 1e6,
                            .h2d = card->bus_bytes_per_second};
}

/* ---- reading ---- */

/* Above what any machine does in a second, and below what sums of times could lose. */
static const double most_per_second = 1e18;

/* A member by its key, for messages. */
struct place {
    const char *file, *key;
};

static enum status bad_file(struct error *e, struct place at, const char *expected) {
    error_set(e, META, "the rates file is not usable");
    error_where(e, "%s, key '%s'", at.file, at.key);
    return error_expected(e, "%s", expected);
}

static enum status read_rate(struct place at, const json_t *value, double *rate, struct error *e) {
    if (!json_is_number(value)) return bad_file(e, at, "a number of bytes or operations a second");
    double number = json_number_value(value);
    if (number >= 1 && number <= most_per_second) {
        *rate = number;
        return OK;
    }
    error_set(e, USAGE, "a rate that no machine has");
    error_where(e, "%s, key '%s'", at.file, at.key);
    error_found(e, "%g", number);
    return error_expected(e, "1 to %g a second", most_per_second);
}

static enum status read_ops(struct place parent, json_t *ops, struct op_rates *rates, struct error *e) {
    const char *key;
    json_t *value;
    if (!json_is_object(ops)) return bad_file(e, parent, "an object");
    json_object_foreach(ops, key, value) {
        int class = 0;
        while (class < N_OP_CLASSES && strcmp(key, op_class_name((enum op_class) class))) class ++;
        struct place at = {parent.file, key};
        if (class == N_OP_CLASSES) return bad_file(e, at, "linear, linear_bf16, attention, conv, bytes");
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

static enum status read_threads(struct place at, const json_t *value, struct error *e) {
    json_int_t n = json_integer_value(value);
    bool usable = json_is_integer(value) && n >= 1 && n <= THREADS_MAX;
    return usable ? OK : bad_file(e, at, "a whole number of threads that a session can have");
}

/* What a file says: ops apart by device. */
struct said {
    struct rates paths; /* its ops are not used */
    struct op_rates ops, cuda;
};

static enum status read_member(struct place at, json_t *value, struct said *said, struct error *e) {
    for (int i = 0; i < N_PATHS; i++)
        if (!strcmp(at.key, paths[i].key)) return read_rate(at, value, path_rate(&said->paths, i), e);
    if (!strcmp(at.key, "ops")) return read_ops(at, value, &said->ops, e);
    if (!strcmp(at.key, "cuda")) return read_ops(at, value, &said->cuda, e);
    /* For people: no number of a plan follows from it. */
    if (!strcmp(at.key, "machine")) return json_is_string(value) ? OK : bad_file(e, at, "a text");
    if (!strcmp(at.key, "threads")) return read_threads(at, value, e);
    if (!strcmp(at.key, "version")) return json_integer_value(value) == 1 ? OK : bad_file(e, at, "1");
    return bad_file(e, at, "version, machine, threads, disk, host_copy, h2d, ops, cuda");
}

static enum status parse(const char *file, const char *text, json_t **root, struct said *said,
                         struct error *e) {
    const char *key;
    json_t *value;
    if (json_parse(file, text, strlen(text), 4, root, e) != OK) return e->code;
    if (!json_object_get(*root, "version")) return bad_file(e, (struct place){file, "version"}, "1");
    json_object_foreach(*root, key, value) {
        if (read_member((struct place){file, key}, value, said, e) != OK) return e->code;
    }
    return OK;
}

/* What was measured with more threads than will compute is as much slower as they are fewer. More of them
 * than were measured are not known to be faster. */
static double share_of_threads(int class, int threads, int measured) {
    if (!threads || threads >= measured) return 1;
    return useful_threads(class, threads) / useful_threads(class, measured);
}

static void put_over(const struct said *said, const char *device, int threads, int measured,
                     struct rates *rates) {
    struct rates from = said->paths;
    from.ops = is_cuda(device) ? said->cuda : said->ops;
    for (int i = 0; i < N_PATHS; i++)
        if (*path_rate(&from, i) > 0) *path_rate(rates, i) = *path_rate(&from, i);
    if (!is_cuda(device) && from.ops.per_second[CLASS_LINEAR_BF16] <= 0) assume_bf16(&from.ops);
    for (int i = 0; i < N_OP_CLASSES; i++)
        if (from.ops.per_second[i] > 0)
            rates->ops.per_second[i] = from.ops.per_second[i] * share_of_threads(i, threads, measured);
}

enum status rates_read(const char *device, const char *file, const char *text, int threads,
                       struct rates *rates, struct error *e) {
    json_t *root = NULL;
    struct said said = {0};
    if (parse(file ? file : "rates", text, &root, &said, e) == OK)
        put_over(&said, device, threads, (int)json_integer_value(json_object_get(root, "threads")), rates);
    json_decref(root);
    return e->code;
}

/* ---- writing ---- */

static void put_rate(json_t *object, const char *key, double rate) {
    if (rate > 0) json_put(object, key, json_real(rate));
}

static void put_measured(json_t *root, const struct rates *measured) {
    struct rates rates = *measured;
    json_t *ops = json_object_get(root, "ops"), *made = ops ? NULL : json_object();
    for (int i = 0; i < N_PATHS; i++) put_rate(root, paths[i].key, *path_rate(&rates, i));
    for (int i = 0; i < N_OP_CLASSES; i++)
        put_rate(ops ? ops : made, op_class_name((enum op_class)i), rates.ops.per_second[i]);
    if (made && json_object_size(made)) json_watch(json_object_set(root, "ops", made));
    json_decref(made);
}

enum status rates_merge(const char *old, const struct rates *measured, const char *machine, int threads,
                        char **text, struct error *e) {
    struct said ignored = {0};
    unsigned losses = json_losses();
    json_t *root = NULL;
    *text = NULL;
    if (old)
        parse("rates", old, &root, &ignored, e);
    else
        root = json_pack("{s:i}", "version", 1);
    if (e->code == OK && root) {
        json_put(root, "machine", json_string(machine));
        if (threads) json_put(root, "threads", json_integer(threads));
        put_measured(root, measured);
        /* Six digits are more than any measurement is worth, and people read this. */
        *text = json_hand_out(json_incref(root), JSON_INDENT(1) | JSON_REAL_PRECISION(6), losses);
    }
    json_decref(root);
    return e->code != OK || *text ? e->code : error_set(e, MEMORY, "no memory for the text of rates");
}
