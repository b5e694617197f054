/* `sluice bench block --predict`: kernel launches of one block of each family on a GPU, from the same dry run
 * that plans use. Launches come from kernels/cuda/work.h, seconds from a card's data sheet
 * (kernels/cuda/cards.h). */
#include "engine/bench/predict.h"

#include "kernels/cuda/cuda.h"
#include "loaders/json.h"
#include "models/models.h"

#include <string.h>

/* Sizes of the predicted blocks: an image of 1024 x 1024 (Stable Diffusion 1: 512 x 512) or a video of 832 x
 * 480 in 81 frames, with the longest prompts. Flux.1: the kind of block in which a step spends more time.
 * Vision encoders: a layer with window attention. UNets: a transformer layer at full size. VAEs: a resnet at
 * full size. Tiny VAEs: a block at half size. */
#define LATENT .latent_channels = 16, .latent_side = 128, .picture_side = 1024, .type = DTYPE_BF16
#define TEXT(rows, columns)                                                                                  \
    .text_rows = rows, .text_columns = columns, .latent_channels = 1, .latent_side = 1, .picture_side = 1,   \
    .type = DTYPE_BF16
#define ONLY(kind_) .block = kind_, .last = {kind_, 0}
/* Wan 2.2: four frames of 1280 x 704; the decoder produces 2x2 pixels at a time. */
#define WAN22_VIDEO                                                                                          \
    .text_rows = 1, .text_columns = 1, .latent_channels = 48, .latent_frames = 3, .latent_side = 44,         \
    .latent_columns = 80, .picture_side = 704, .chunk = 2, .type = DTYPE_BF16
enum { RESNET_OF_UP_3 = 301, RESNET_OF_DOWN_0 = 0, PIXELS = 1024 * 1024, WAN22_VIDEO_PIXELS = 4 * 352 * 640 };
/* Tiny VAEs: the last level before full size, which is computed together with the colours. */
enum { BLOCK_OF_TAESD = 14, BLOCK_OF_TAEHV = 202, TINY_PIXELS = 512 * 512 };

static const struct predict_case cases[] = {
    {{.family = &family_zimage, .text_rows = 32, .text_columns = 2560, LATENT, ONLY("layer")}, 4128},
    {{.family = &family_flux, .text_rows = 512, .text_columns = 4096, LATENT, ONLY("single")}, 4608},
    {{.family = &family_unet,
      .text_rows = 77,
      .text_columns = 768,
      .latent_channels = 4,
      .latent_side = 64,
      .picture_side = 512,
      .type = DTYPE_BF16,
      ONLY("down_layer")},
     4096},
    {{.family = &family_qwen_image, .text_rows = 64, .text_columns = 3584, LATENT, ONLY("layer")}, 4160},
    {{.family = &family_wan,
      .text_rows = 512,
      .text_columns = 4096,
      .latent_channels = 16,
      .latent_frames = 21,
      .latent_side = 60,
      .latent_columns = 104,
      .picture_side = 1,
      .type = DTYPE_BF16,
      ONLY("layer")},
     21 * 30 * 52},
    {{.family = &family_sd3, .text_rows = 77 + 256, .text_columns = 4096, LATENT, ONLY("layer")}, 4429},
    {{.family = &family_qwen3, TEXT(512, 2560), ONLY("layer")}, 512},
    {{.family = &family_qwen25vl, TEXT(512, 3584), ONLY("layer")}, 512},
    {{.family = &family_qwen25vl_vision,
      .text_rows = 37 * 37,
      .text_columns = 3584,
      .latent_channels = 1,
      .latent_side = 1,
      .picture_side = 1036,
      .type = DTYPE_BF16,
      ONLY("layer")},
     74 * 74},
    {{.family = &family_clip, TEXT(77, 768), ONLY("layer")}, 77},
    {{.family = &family_clip_vision,
      .text_rows = 257,
      .text_columns = 1280,
      .latent_channels = 1,
      .latent_side = 1,
      .picture_side = 224,
      .type = DTYPE_BF16,
      ONLY("layer")},
     257},
    {{.family = &family_t5, TEXT(512, 4096), ONLY("layer")}, 512},
    {{.family = &family_umt5, TEXT(512, 4096), ONLY("layer")}, 512},
    {{.family = &family_vae_kl,
      .text_rows = 1,
      .text_columns = 1,
      LATENT,
      .last = {"resnet", RESNET_OF_UP_3}},
     PIXELS},
    {{.family = &family_vae_kl_encoder,
      .text_rows = 1,
      .text_columns = 1,
      LATENT,
      .last = {"resnet", RESNET_OF_DOWN_0}},
     PIXELS},
    {{.family = &family_vae_wan,
      .text_rows = 1,
      .text_columns = 1,
      LATENT,
      .last = {"resnet", RESNET_OF_UP_3}},
     PIXELS},
    {{.family = &family_vae_wan_encoder,
      .text_rows = 1,
      .text_columns = 1,
      LATENT,
      .last = {"resnet", RESNET_OF_DOWN_0}},
     PIXELS},
    {{.family = &family_vae_wan22, WAN22_VIDEO, .last = {"resnet", RESNET_OF_UP_3}}, WAN22_VIDEO_PIXELS},
    {{.family = &family_vae_wan22_encoder, WAN22_VIDEO, .last = {"resnet", RESNET_OF_DOWN_0}},
     WAN22_VIDEO_PIXELS},
    {{.family = &family_taesd, .text_rows = 1, .text_columns = 1, LATENT, .last = {"block", BLOCK_OF_TAESD}},
     TINY_PIXELS},
    {{.family = &family_taehv, .text_rows = 1, .text_columns = 1, LATENT, .last = {"block", BLOCK_OF_TAEHV}},
     TINY_PIXELS},
};

const struct predict_case *predict_cases(int *n) {
    *n = COUNT_OF(cases);
    return cases;
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
    for (int i = 0; i < COUNT_OF(cases); i++) {
        struct predict_case c = cases[i];
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
