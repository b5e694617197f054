/* `sluice bench block --predict`: kernel launches of one block of each family on a GPU, from the same dry run
 * that plans use. Launches come from kernels/cuda/work.h, seconds from a card's data sheet
 * (kernels/cuda/cards.h). */
#include "engine/bench/predict.h"

#include "loaders/json.h"
#include "models/models.h"

#include <string.h>

struct predict_case predict_case_of(const struct family *family, int i) {
    static const struct predicted_block none;
    const struct predicted_block *p = i < PREDICTED_MAX ? &family->predicted[i] : &none;
    return (struct predict_case){.name = p->kind,
                                 .sizes = {.family = family,
                                           .block = p->alone ? p->kind : NULL,
                                           .text_rows = p->text_rows ? p->text_rows : 1,
                                           .text_columns = p->text_columns ? p->text_columns : 1,
                                           .latent_channels = p->latent_channels ? p->latent_channels : 1,
                                           .latent_frames = p->latent_frames,
                                           .latent_side = p->latent_side ? p->latent_side : 1,
                                           .latent_columns = p->latent_columns,
                                           .sound = {p->sound[0], p->sound[1], p->sound[2]},
                                           .picture_side = p->picture_side ? p->picture_side : 1,
                                           .chunk = p->chunk,
                                           .type = DTYPE_BF16,
                                           .last = {p->whole ? NULL : p->kind, p->number},
                                           .chosen = p->dims},
                                 .tokens = p->tokens};
}

/* A device that adds up the launches of a component's last block instead of computing. */
struct predicting {
    struct device device; /* first member */
    const struct cuda_card *card;
    const struct random_component_sizes *sizes;
    const struct random_component *component;
    struct predict_rows *rows;
};

static enum status predicting_run(struct device *device, const struct op *op, void *workspace,
                                  struct error *e) {
    struct predicting *p = (struct predicting *)device;
    struct predict_rows *rows = p->rows;
    struct work_list list;
    (void)workspace;
    const struct block_ref *running = &p->component->refs[p->component->running];
    if (p->sizes->last.kind && !random_component_at_last(p->sizes, running)) return OK;
    cuda_work(op, &list);
    for (int i = 0; i < list.n; i++) {
        const struct work *work = &list.rows[i];
        int k = 0;
        while (k < rows->n && (rows->rows[k].op != op->kind || strcmp(rows->rows[k].kernel, work->kernel)))
            k++;
        if (k == PREDICT_ROWS_MAX)
            return error_set(e, INTERNAL, "a block launches more kinds of kernels than the table holds");
        struct predict_row *row = &rows->rows[k];
        if (k == rows->n) {
            *row = (struct predict_row){.op = op->kind, .kernel = work->kernel, .class = work->class};
            rows->n++;
        }
        row->calls += work->launches;
        row->flops += work->flops;
        row->bytes += work->read_bytes + work->written_bytes;
        row->seconds += cuda_card_seconds(p->card, work);
    }
    return OK;
}

static void predicting_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    (void)device, (void)op;
    *cost = (struct op_cost){0};
}

enum status predict_block(struct sys *sys, const struct device *cuda, const struct cuda_card *card,
                          const struct predict_case *c, struct predict_rows *rows, struct error *e) {
    struct random_component component;
    struct predicting p = {.device = {.name = cuda->name,
                                      .chunks = cuda->chunks,
                                      .operands = cuda->operands,
                                      .unsupported = {[PRECISION_F32] = cuda->unsupported[PRECISION_F32]},
                                      .cost = predicting_cost,
                                      .run = predicting_run},
                           .card = card,
                           .sizes = &c->sizes,
                           .component = &component,
                           .rows = rows};
    rows->n = 0;
    if (random_component_count(&component, sys, &p.device, &c->sizes, e) == OK)
        random_component_run(&component, &p.device, e);
    random_component_destroy(&component);
    return e->code;
}

static void put_kernels(struct bench *bench, const struct predict_case *c, const struct predict_rows *rows) {
    for (int k = 0; k < rows->n; k++) {
        const struct predict_row *row = &rows->rows[k];
        json_push(bench->rows,
                  json_pack("{s:s, s:s, s:i, s:s, s:s, s:i, s:I, s:I, s:f, s:s}", "family",
                            c->sizes.family->name, "block", c->name, "tokens", c->tokens, "op",
                            op_name(row->op), "class", work_class_name(row->class), "calls", row->calls,
                            "flops", (json_int_t)row->flops, "bytes", (json_int_t)row->bytes, "seconds",
                            row->seconds, "kernel", row->kernel));
    }
}

static enum status predict_card(struct bench *bench, const struct device *cuda, const struct cuda_card *card,
                                bool all, enum precision precision, enum dtype type, struct error *e) {
    struct predict_rows rows;
    for (const struct family *const *f = families; *f; f++) {
        struct predict_case c;
        for (int i = 0; (c = predict_case_of(*f, i)).name; i++) {
            /* --precision applies to denoisers only. */
            c.sizes.precision = (*f)->kind == FAMILY_DENOISER ? precision : PRECISION_F32;
            c.sizes.type = random_component_type(*f, c.sizes.precision, type);
            if (predict_block(&bench->sys, cuda, card, &c, &rows, e) != OK) return e->code;
            if (!all) {
                put_kernels(bench, &c, &rows);
                continue;
            }
            double seconds = 0;
            for (int k = 0; k < rows.n; k++) seconds += rows.rows[k].seconds;
            json_push(bench->rows,
                      json_pack("{s:s, s:s, s:i, s:s, s:f}", "family", (*f)->name, "block", c.name, "tokens",
                                c.tokens, "card", card->name, "seconds", seconds));
        }
    }
    return OK;
}

enum status predict_bench(struct bench *bench, const struct device *cuda, const char *name,
                          enum precision precision, enum dtype type, struct error *e) {
    const struct cuda_card *card = cuda_card_named(name);
    bool all = !strcmp(name, "all");
    if (!card && !all)
        return error_set(e, USAGE,
                         "unknown GPU model" FOUND "%.60s" EXPECTED
                         "a card such as 4090 (`sluice devices` lists them), or all",
                         name);
    if (card) return predict_card(bench, cuda, card, false, precision, type, e);
    for (int i = 0; (card = cuda_card_at(i)); i++)
        if (predict_card(bench, cuda, card, true, precision, type, e) != OK) break;
    return e->code;
}
