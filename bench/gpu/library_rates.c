#include "bench/gpu/library_rates.h"

#include <stdio.h>

struct product {
    struct rig *rig;
    struct product_key key;
    struct product_operands operands;
};

static enum status queue_product(void *user, struct error *e) {
    struct product *p = user;
    return products_run(p->rig->cuda->products, &p->key, &p->operands, p->rig->cuda->compute, e);
}

/* Describes the product and takes memory for its operands. */
static enum status product_make(struct product *p, struct rig *rig, int32_t m, int32_t k, int32_t n, bool f16,
                                struct error *e) {
    *p = (struct product){.rig = rig,
                          .key = {.m = m, .n = n, .k = k, .in_row = k, .f16 = f16, .wide = 1, .out_row = n}};
    uint64_t used = 0, in = workspace_part(&used, 2 * (uint64_t)m * (uint64_t)k);
    uint64_t weight = workspace_part(&used, 2 * (uint64_t)n * (uint64_t)k);
    uint64_t out = workspace_part(&used, 4 * (uint64_t)m * (uint64_t)n);
    uint64_t workspace = workspace_part(&used, PRODUCTS_WORKSPACE);
    if (!rig->cuda->products) return error_set(e, DEVICE, "no cuBLASLt");
    if (rig_take(rig, used, e) != OK) return e->code;
    p->operands = (struct product_operands){.in = rig->memory + in,
                                            .weight = rig->memory + weight,
                                            .out = rig->memory + out,
                                            .workspace = rig->memory + workspace};
    return OK;
}

enum status library_time_product(struct rig *rig, int32_t m, int32_t k, int32_t n, double *seconds,
                                 struct error *e) {
    struct product p;
    if (product_make(&p, rig, m, k, n, false, e) != OK ||
        products_prepare(rig->cuda->products, &p.key, e) != OK)
        return e->code;
    return rig_time(rig, queue_product, &p, seconds, e);
}

/* Measures the algorithms of one product. An algorithm that fails ends the list: cuBLASLt sorts it by
 * expected speed. */
static void measure_ranks(struct rig *rig, const int32_t shape[3], bool f16, json_t *row, struct error *e) {
    struct product p;
    double first = 0, best = 0, work = 2.0 * shape[0] * shape[1] * shape[2];
    int n = 0, best_rank = 0;
    if (product_make(&p, rig, shape[0], shape[1], shape[2], f16, e) != OK) return;
    for (; n < PRODUCTS_RANKS; n++) {
        double seconds = 0;
        struct error refused = {0};
        if (products_choose_ranked(rig->cuda->products, &p.key, n, &refused) != OK ||
            rig_time(rig, queue_product, &p, &seconds, &refused) != OK || seconds <= 0) {
            if (n == 0) *e = refused;
            break;
        }
        if (n == 0) first = seconds;
        if (n == 0 || seconds < best) best = seconds, best_rank = n;
    }
    if (!n) return;
    json_object_set_new(row, "seconds", json_real(first));
    json_object_set_new(row, "flops_per_second", json_real(work / first));
    json_object_set_new(row, "algorithms", json_integer(n));
    json_object_set_new(row, "best", json_integer(best_rank));
    json_object_set_new(row, "best_seconds", json_real(best));
}

struct convolution {
    struct rig *rig;
    struct convolution_key key;
    struct convolution_operands operands;
};

static enum status queue_convolution(void *user, struct error *e) {
    struct convolution *c = user;
    return convolutions_run(c->rig->cuda->convolutions, &c->key, &c->operands, c->rig->cuda->compute, e);
}

static void measure_convolution(struct rig *rig, int32_t rows, int32_t columns, int32_t channels, bool f16,
                                json_t *row, struct error *e) {
    struct convolution c = {.rig = rig,
                            .key = {.rows = rows,
                                    .columns = columns,
                                    .in = channels,
                                    .out = channels,
                                    .side = 3,
                                    .stride = 1,
                                    .f16 = f16}};
    uint64_t width = (f16 ? 2 : sizeof(float)) * (uint64_t)channels, used = 0;
    uint64_t in = workspace_part(&used, width * (uint64_t)(rows + 2) * (uint64_t)(columns + 2));
    uint64_t weights = workspace_part(&used, width * (uint64_t)channels * 9);
    uint64_t out = workspace_part(&used, width * (uint64_t)rows * (uint64_t)columns);
    uint64_t workspace = workspace_part(&used, CONVOLUTIONS_WORKSPACE);
    double seconds = 0, work = 2.0 * 9 * channels * channels * rows * columns;
    if (convolutions_prepare(rig->cuda->convolutions, &c.key, e) != OK || rig_take(rig, used, e) != OK)
        return;
    c.operands = (struct convolution_operands){.in = rig->memory + in,
                                               .weights = rig->memory + weights,
                                               .out = rig->memory + out,
                                               .workspace = rig->memory + workspace};
    if (rig_time(rig, queue_convolution, &c, &seconds, e) != OK || seconds <= 0) return;
    json_object_set_new(row, "seconds", json_real(seconds));
    json_object_set_new(row, "flops_per_second", json_real(work / seconds));
}

static void add_row(json_t *rows, json_t *row, const struct error *e, void (*on_row)(const json_t *row)) {
    char text[1024];
    if (e->code != OK) json_object_set_new(row, "error", json_string(error_line(e, text, sizeof text)));
    json_array_append_new(rows, row);
    on_row(row);
}

json_t *library_rates_measure(struct rig *rig, bool small, void (*on_row)(const json_t *row)) {
    /* Z-Image's q and a chunk of its feed-forward, a chunk of WAN 14B's: rows, depth, columns */
    static const int32_t products[][3] = {{4128, 3840, 3840}, {2064, 3840, 10240}, {1820, 5120, 13824}};
    static const int32_t tiny_products[][3] = {{40, 256, 256}};
    static const int32_t channels[] = {128, 256, 512};
    static const int32_t band_rows[] = {8, 64, 256}; /* of 1,024 pixels */
    const int32_t(*shapes)[3] = small ? tiny_products : products;
    json_t *rows = json_array();
    char shape[96];
    for (int i = 0; i < (small ? 1 : 3); i++)
        for (int f16 = 0; f16 < 2; f16++) {
            struct error e = {0};
            snprintf(shape, sizeof shape, "%dx%dx%d", (int)shapes[i][0], (int)shapes[i][1],
                     (int)shapes[i][2]);
            json_t *row =
                json_pack("{s:s, s:s, s:s}", "op", "product", "shape", shape, "type", f16 ? "f16" : "bf16");
            measure_ranks(rig, shapes[i], f16, row, &e);
            add_row(rows, row, &e, on_row);
        }
    for (int i = 0; rig->cuda->convolutions && i < (small ? 1 : 9); i++)
        for (int f16 = 0; f16 < 2; f16++) {
            struct error e = {0};
            int32_t n = small ? 16 : channels[i / 3], columns = small ? 16 : 1024;
            int32_t height = small ? 2 : band_rows[i % 3];
            snprintf(shape, sizeof shape, "%dx%d pixels, %d channels", (int)height, (int)columns, (int)n);
            json_t *row = json_pack("{s:s, s:s, s:s}", "op", "convolution", "shape", shape, "type",
                                    f16 ? "f16" : "tf32");
            measure_convolution(rig, height, columns, n, f16, row, &e);
            add_row(rows, row, &e, on_row);
        }
    rig_give(rig);
    return rows;
}

json_t *library_load(struct rig *rig, double seconds, bool small, struct error *e) {
    enum { QUARTERS = 4, PRODUCTS = 8, COPIES = 2 };
    const struct device_memory *memory = rig->device->memory;
    double work[QUARTERS] = {0}, spent[QUARTERS] = {0}, copied = 0, copying = 0, stalled;
    int32_t side = small ? 64 : 4096;
    uint64_t copy_bytes = sizeof(float) * (uint64_t)side * (uint64_t)side; /* 64 MiB: all of rig->noise */
    struct product p;
    if (product_make(&p, rig, side, side, side, false, e) != OK ||
        products_prepare(rig->cuda->products, &p.key, e) != OK)
        return NULL;
    double start = rig->sys.clock(&rig->sys), now = start;
    while (now - start < seconds && e->code == OK) {
        double began = now;
        uint64_t fence = 0;
        int quarter = (int)(QUARTERS * (now - start) / seconds);
        for (int i = 0; i < PRODUCTS && e->code == OK; i++) queue_product(&p, e);
        /* Copies overwrite the result, which nothing reads. */
        for (int i = 0; i < COPIES; i++)
            fence = memory->copy(rig->device, p.operands.out, rig->noise, copy_bytes, 0);
        memory->wait_copy(rig->device, fence);
        copying += rig->sys.clock(&rig->sys) - began;
        copied += (double)COPIES * (double)copy_bytes;
        memory->wait(rig->device, &stalled, e);
        now = rig->sys.clock(&rig->sys);
        work[quarter] += PRODUCTS * 2.0 * side * side * side;
        spent[quarter] += now - began;
    }
    rig_give(rig);
    if (e->code != OK) return NULL;
    json_t *flops = json_array();
    for (int i = 0; i < QUARTERS && !small; i++)
        if (spent[i] > 0) json_array_append_new(flops, json_real(work[i] / spent[i]));
    return json_pack("{s:o, s:f}", "flops_per_second", flops, "h2d_bytes_per_second", copied / copying);
}
