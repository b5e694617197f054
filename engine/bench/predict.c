/* `sluice bench block --predict`: kernel launches of one block of each family on a GPU, from the same dry run
 * that plans use. Launches come from kernels/cuda/work.h, seconds from a card's data sheet
 * (kernels/cuda/cards.h). */
#include "engine/bench/predict.h"

#include "kernels/cuda/cuda.h"
#include "loaders/json.h"
#include "models/models.h"

#include <string.h>

struct predict_case predict_case_of(const struct family *family) {
    const struct predicted_block *p = &family->predicted;
    return (struct predict_case){.sizes = {.family = family,
                                           .block = p->alone ? p->kind : NULL,
                                           .text_rows = p->text_rows ? p->text_rows : 1,
                                           .text_columns = p->text_columns ? p->text_columns : 1,
                                           .latent_channels = p->latent_channels ? p->latent_channels : 1,
                                           .latent_frames = p->latent_frames,
                                           .latent_side = p->latent_side ? p->latent_side : 1,
                                           .latent_columns = p->latent_columns,
                                           .picture_side = p->picture_side ? p->picture_side : 1,
                                           .chunk = p->chunk,
                                           .type = DTYPE_BF16,
                                           .last = {p->kind, p->number}},
                                 .tokens = p->tokens};
}

struct predicting {
    struct device device; /* first member */
    const struct cuda_card *card;
    const struct random_component_sizes *sizes;
    const struct random_component *component;
    struct predict_rows *rows;
};

static struct predict_row *row_of(struct predict_rows *rows, enum op_kind op, const struct work *work) {
    int i = 0;
    while (i < rows->n && (rows->rows[i].op != op || strcmp(rows->rows[i].kernel, work->kernel))) i++;
    if (i == PREDICT_ROWS_MAX) return NULL;
    if (i == rows->n)
        rows->rows[rows->n++] = (struct predict_row){.op = op, .kernel = work->kernel, .class = work->class};
    return &rows->rows[i];
}

static enum status predicting_run(struct device *device, const struct op *op, void *workspace,
                                  struct error *e) {
    struct predicting *p = (struct predicting *)device;
    struct work_list list;
    (void)workspace;
    if (!random_component_at_last(p->sizes, &p->component->refs[p->component->running])) return OK;
    cuda_work(op, &list);
    for (int i = 0; i < list.n; i++) {
        struct predict_row *row = row_of(p->rows, op->kind, &list.rows[i]);
        if (!row)
            return error_set(e, INTERNAL, "a block launches more kinds of kernels than the table holds");
        row->calls += list.rows[i].launches;
        row->flops += list.rows[i].flops;
        row->bytes += list.rows[i].read_bytes + list.rows[i].written_bytes;
        row->seconds += cuda_card_seconds(p->card, &list.rows[i]);
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

static void add_row(struct bench *bench, const struct predict_case *c, const struct predict_row *row) {
    json_push(bench->rows,
              json_pack("{s:s, s:s, s:i, s:s, s:s, s:i, s:I, s:I, s:f, s:s}", "family", c->sizes.family->name,
                        "block", c->sizes.last.kind, "tokens", c->tokens, "op", op_name(row->op), "class",
                        work_class_name(row->class), "calls", row->calls, "flops", (json_int_t)row->flops,
                        "bytes", (json_int_t)row->bytes, "seconds", row->seconds, "kernel", row->kernel));
}

static enum status predict_families(struct bench *bench, const struct device *cuda,
                                    const struct cuda_card *card, enum dtype type, struct error *e) {
    struct predict_rows rows;
    for (const struct family *const *f = families; *f; f++) {
        if (!(*f)->predicted.kind) continue;
        struct predict_case c = predict_case_of(*f);
        c.sizes.type = type;
        if (predict_block(&bench->sys, cuda, card, &c, &rows, e) != OK) return e->code;
        for (int k = 0; k < rows.n; k++) add_row(bench, &c, &rows.rows[k]);
    }
    return OK;
}

static enum status no_card(const char *name, struct error *e) {
    char known[128];
    return error_set(e, USAGE, "unknown GPU model" FOUND "%.60s" EXPECTED "%s", name,
                     cuda_card_names(known, sizeof known));
}

enum status predict_bench(struct bench *bench, const char *name, enum dtype type, struct error *e) {
    const struct cuda_card *card = cuda_card_named(name);
    if (!card) return no_card(name, e);
    struct device *cuda = cuda_plan_device(&bench->sys, card, e);
    if (!cuda) return e->code;
    predict_families(bench, cuda, card, type, e);
    cuda->destroy(cuda);
    return e->code;
}
