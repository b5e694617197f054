/* A watched device: see bench_watch.h. */
#include "engine/bench/watch.h"

#include <string.h>

static void watch_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    const struct device *target = ((const struct bench_watch *)device)->target;
    target->cost(target, op, cost);
}

static enum status watch_prepare(struct device *device, const struct op *op, struct error *e) {
    struct device *target = ((struct bench_watch *)device)->target;
    return target->prepare(target, op, e);
}

/* oneDNN wants channels in eights. */
static int32_t eights(int32_t n) {
    return (n + 7) / 8 * 8;
}

static struct onednn_key key_of(const struct op *op) {
    const int32_t *out = op->out.dim, *weight = op->in[1].dim;
    if (op->kind == OP_LINEAR)
        return (struct onednn_key){ONEDNN_PRODUCT_T, {op->in[0].dim[0], weight[0], weight[1]}};
    return (struct onednn_key){
        ONEDNN_CONV, {out[0], out[1], eights(weight[1]), eights(weight[0]), weight[2], op->conv.stride == 2}};
}

/* What the table has no room for is not compared; no model of ours comes near. */
static void count_product(struct bench_watch *w, const struct op *op) {
    struct onednn_key key = key_of(op);
    int i = 0;
    while (i < w->n_products && memcmp(&w->products[i].key, &key, sizeof key) != 0) i++;
    if (i == BENCH_PRODUCTS_MAX) return;
    if (i == w->n_products) w->products[w->n_products++] = (struct bench_product){key, 0, op_flops(op)};
    w->products[i].calls++;
}

static enum status watch_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    struct bench_watch *w = (struct bench_watch *)device;
    enum op_class class = op_class_of(op);
    double start = w->sys->clock(w->sys);
    w->target->run(w->target, op, workspace, e);
    w->class[class].seconds += w->sys->clock(w->sys) - start;
    if (class != CLASS_BYTES) w->class[class].flops += op_flops(op);
    if (class == CLASS_LINEAR || class == CLASS_CONV) count_product(w, op);
    return e->code;
}

void bench_watch_init(struct bench_watch *watch, struct sys *sys, struct device *target) {
    *watch = (struct bench_watch){.device = {.name = target->name,
                                             .threads = target->threads,
                                             .cost = watch_cost,
                                             .prepare = watch_prepare,
                                             .run = watch_run},
                                  .sys = sys,
                                  .target = target};
}

void bench_watch_reset(struct bench_watch *watch) {
    memset(watch->class, 0, sizeof watch->class);
    for (int i = 0; i < watch->n_products; i++) watch->products[i].calls = 0;
}
