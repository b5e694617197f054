#include "bench/gpu/calculated.h"

#include <ctype.h>
#include <stddef.h>
#include <string.h>

static const struct {
    const char *name;
    size_t offset;
} constants[CALCULATED_CONSTANTS] = {{"products", offsetof(struct cuda_card, products)},
                                     {"attention", offsetof(struct cuda_card, attention)},
                                     {"convolutions", offsetof(struct cuda_card, convolutions)},
                                     {"passes", offsetof(struct cuda_card, passes)},
                                     {"int8_products", offsetof(struct cuda_card, int8_products)},
                                     {"int8_attention", offsetof(struct cuda_card, int8_attention)}};

static double *constant_of(struct cuda_card *card, int i) {
    return (double *)(void *)((char *)card + constants[i].offset);
}

/* Copies letters and digits in lower case. */
static void plain(const char *from, char *to, size_t bytes) {
    size_t n = 0;
    for (; *from && n + 1 < bytes; from++)
        if (isalnum((unsigned char)*from)) to[n++] = (char)tolower((unsigned char)*from);
    to[n] = 0;
}

/* A GPU model is identified by its model number, such as 4060 or a100, by multiprocessors and by memory
 * within 10 %. Multiprocessors and memory distinguish a 4060 from a 4060 Ti, and PCIe from SXM versions. */
const struct cuda_card *calculated_card(const char *gpu, int multiprocessors, uint64_t bytes) {
    const struct cuda_card *card;
    char name[128], model[128];
    plain(gpu, name, sizeof name);
    if (strstr(name, "laptop")) return NULL;
    for (int i = 0; (card = cuda_card_at(i)); i++) {
        double share = (double)bytes / (double)card->memory_bytes;
        size_t length = strspn(card->name, "abcdefghijklmnopqrstuvwxyz");
        length += strspn(card->name + length, "0123456789");
        if (length >= sizeof model) continue;
        memcpy(model, card->name, length);
        model[length] = 0;
        if (strstr(name, model) && card->multiprocessors == multiprocessors && share > 0.9 && share < 1.1)
            return card;
    }
    return NULL;
}

static void calculated_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    (void)device, (void)op;
    *cost = (struct op_cost){0};
}

/* Adds up seconds, and by constant the part of them that is in inverse proportion to the constant. That part
 * falls by 1 / 101 if the constant grows by 1 %. */
static enum status calculated_run(struct device *device, const struct op *op, void *workspace,
                                  struct error *e) {
    struct calculated *c = (struct calculated *)device;
    struct work_list list;
    (void)workspace, (void)e;
    cuda_work(op, &list);
    for (int i = 0; i < list.n; i++) {
        double seconds = cuda_card_seconds(c->card, &list.rows[i]);
        c->seconds += seconds;
        for (int k = 0; k < CALCULATED_CONSTANTS; k++) {
            struct cuda_card faster = *c->card;
            *constant_of(&faster, k) *= 1.01;
            c->bound_seconds[k] += 101 * (seconds - cuda_card_seconds(&faster, &list.rows[i]));
        }
    }
    return OK;
}

void calculated_init(struct calculated *c, const struct device *like, const struct cuda_card *card) {
    *c = (struct calculated){.device = *like, .card = card};
    c->device.cost = calculated_cost;
    c->device.run = calculated_run;
}

const char *calculated_constant(const struct calculated *c, double measured_seconds, double *value) {
    struct cuda_card card = *c->card;
    for (int k = 0; k < CALCULATED_CONSTANTS; k++) {
        double rest = c->seconds - c->bound_seconds[k];
        if (c->bound_seconds[k] < 0.7 * c->seconds || measured_seconds <= rest) continue;
        *value = *constant_of(&card, k) * c->bound_seconds[k] / (measured_seconds - rest);
        return constants[k].name;
    }
    return NULL;
}
