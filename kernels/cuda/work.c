/* Kernel launches of operators and their FLOPs and bytes (work.h). */
#include "kernels/cuda/work.h"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_int8.h"
#include "kernels/cuda/conv.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/rope.h"

enum { HALF = 2, FLOAT = sizeof(float) };

const char *work_class_name(enum work_class of) {
    static const char *const class_names[N_WORK_CLASSES] = {"product",        "product_int8", "attention",
                                                            "attention_int8", "conv",         "pass"};
    return class_names[of];
}

/* Appends a kernel's row to the list of work, unless it has no launches. */
static void work_add(struct work_list *list, struct work work) {
    if (work.launches > 0) list->rows[list->n++] = work;
}

static double bytes_of(const struct tensor *t) {
    return t->rank ? (double)(tensor_bytes(t) + tensor_scales_bytes(t)) : 0;
}

static void work_add_pass(struct work_list *list, const char *kernel, double flops, double reads,
                          double writes) {
    work_add(list, (struct work){.kernel = kernel,
                                 .class = WORK_PASS,
                                 .launches = 1,
                                 .flops = flops,
                                 .read_bytes = reads,
                                 .written_bytes = writes});
}

static void add_widening(struct work_list *list, const struct tensor *vector) {
    work_add_pass(list, "widen_vector", 0, bytes_of(vector), FLOAT * (double)tensor_columns(vector));
}

static void widen_unless_plain(struct work_list *list, const struct tensor *vector) {
    if (!weight_is_plain(vector)) add_widening(list, vector);
}

/* Adds the work of `panels` int8 panels of `columns` columns: quantisation of weights, and the product with
 * the part of the epilogue that its kernel includes. */
static void add_int8_panels(struct work_list *list, const struct op *op, const struct linear_layout *l,
                            int32_t columns, int panels) {
    const struct epilogue *e = &op->epilogue;
    double m = op->in[0].dim[0], k = op->in[1].dim[1], all = panels * m * columns;
    double share = (double)panels * columns / op->in[1].dim[0], weight = bytes_of(&op->in[1]);
    double scales = panels * FLOAT * (m + columns);
    if (l->converts) {
        bool decodes = op->in[1].dtype == DTYPE_I4_ROT256; /* the weight has row scales: none are written */
        work_add(list, (struct work){.kernel = decodes ? "decode_i4" : "quantise_rows",
                                     .class = WORK_PASS,
                                     .launches = panels,
                                     .read_bytes = share * weight,
                                     .written_bytes = (double)panels * columns * (decodes ? k : k + FLOAT)});
        weight = op->in[1].dim[0] * k;
    }
    struct work product = {.kernel = "multiply_int8", .class = WORK_PRODUCT_INT8, .launches = panels};
    product.m = op->in[0].dim[0], product.n = columns, product.k = op->in[1].dim[1];
    product.flops = 2 * all * k;
    product.read_bytes = panels * m * k + share * (weight + bytes_of(&e->bias)) + scales;
    if (!l->finishes) product.read_bytes += share * (bytes_of(&e->gate) + bytes_of(&e->residual));
    product.written_bytes = l->stages ? FLOAT * all : share * bytes_of(&op->out);
    work_add(list, product);
}

/* Adds the epilogue kernel of `panels` product panels of `columns` columns. */
static void add_finishes(struct work_list *list, const struct op *op, const struct linear_layout *l,
                         int32_t columns, int panels) {
    const struct epilogue *e = &op->epilogue;
    double all = (double)panels * op->in[0].dim[0] * columns,
           share = (double)panels * columns / op->in[1].dim[0];
    struct work finish = {.kernel = "finish_rows", .class = WORK_PASS, .launches = l->finishes ? panels : 0};
    finish.flops = 4 * all;
    finish.read_bytes = FLOAT * all + share * (bytes_of(&e->gate) + bytes_of(&e->residual));
    finish.written_bytes = share * bytes_of(&op->out);
    work_add(list, finish);
}

/* Adds the work of `panels` product panels of `columns` columns: weight conversion, product, epilogue. */
static void add_panels(struct work_list *list, const struct op *op, const struct linear_layout *l,
                       int32_t columns, int panels) {
    const struct epilogue *e = &op->epilogue;
    double m = op->in[0].dim[0], k = linear_depth(op), each = m * columns, all = panels * each;
    double share = (double)panels * columns /
                   op->in[1].dim[0]; /* share of the weight's columns that these panels have */
    struct work rounding = {.kernel = "round_rows", .class = WORK_PASS, .launches = l->converts ? panels : 0};
    rounding.read_bytes = share * bytes_of(&op->in[1]);
    rounding.written_bytes = (double)panels * HALF * k * columns;
    work_add(list, rounding);
    struct work product = {.kernel = "product", .class = WORK_PRODUCT, .launches = panels};
    product.m = op->in[0].dim[0], product.n = columns, product.k = linear_depth(op);
    product.flops = 2 * all * op->in[1].dim[1];
    double bias = e->bias.rank ? linear_library_rounds(op) ? HALF : FLOAT : 0;
    product.read_bytes = panels * HALF * k * (m + columns) + panels * bias * columns;
    product.read_bytes += l->stages ? 0 : share * bytes_of(&e->residual);
    product.written_bytes = l->stages ? FLOAT * all : share * bytes_of(&op->out);
    work_add(list, product);
}

/* Adds the work of the adapters on all panels: rounding of their factors, and skinny products onto a part of
 * out. */
static void add_adapters(struct work_list *list, const struct op *op, const struct linear_layout *l) {
    double m = op->in[0].dim[0];
    struct work rounding = {.kernel = "round_rows", .class = WORK_PASS};
    struct work product = {.kernel = "product", .class = WORK_PRODUCT, .m = op->in[0].dim[0]};
    int32_t n = op->in[1].dim[0], column;
    struct tensor up;
    for (const struct low_rank *a = op->in[1].adapters; a; a = a->next)
        if (linear_adapter_part(op, a, 0, n, &up, &column)) {
            rounding.launches++;
            rounding.read_bytes += FLOAT * m * up.dim[1];
            rounding.written_bytes += HALF * m * linear_padded(up.dim[1]);
        }
    for (int32_t first = 0; first < n; first += l->panel)
        for (const struct low_rank *a = op->in[1].adapters; a; a = a->next) {
            if (!linear_adapter_part(op, a, first, n - first < l->panel ? n - first : l->panel, &up, &column))
                continue;
            double depth = linear_padded(up.dim[1]), wide = up.dim[0], results = FLOAT * m * wide;
            rounding.launches++, product.launches++;
            rounding.read_bytes += bytes_of(&up);
            rounding.written_bytes += HALF * depth * wide;
            product.flops += 2 * m * wide * up.dim[1];
            product.read_bytes += HALF * depth * (m + wide) + results;
            product.written_bytes += results;
            product.n = up.dim[0] > product.n ? up.dim[0] : product.n;
            product.k = (int32_t)depth > product.k ? (int32_t)depth : product.k;
        }
    work_add(list, rounding);
    work_add(list, product);
}

static void linear_work(const struct op *op, struct work_list *list) {
    struct linear_layout l = cuda_linear_layout(op);
    const struct tensor *bias = &op->epilogue.bias;
    int32_t n = op->in[1].dim[0], last = n % l.panel;
    void (*add)(struct work_list * list, const struct op *op, const struct linear_layout *l, int32_t columns,
                int panels) = l.int8 ? add_int8_panels : add_panels;
    if (linear_moves_bias(op)) add_widening(list, bias);
    if (linear_moves_gate(op)) add_widening(list, &op->epilogue.gate);
    if (l.int8)
        work_add_pass(list, "quantise_rows", 0, bytes_of(&op->in[0]),
                      (double)op->in[0].dim[0] * (op->in[1].dim[1] + FLOAT));
    else if (l.rounds)
        work_add_pass(list, "round_rows", 0, bytes_of(&op->in[0]),
                      HALF * (double)op->in[0].dim[0] * linear_depth(op));
    add(list, op, &l, l.panel, n / l.panel);
    add_finishes(list, op, &l, l.panel, n / l.panel);
    if (last) add(list, op, &l, last, 1), add_finishes(list, op, &l, last, 1);
    if (op->down_product.rank) add_adapters(list, op, &l);
}

static void few_work(const struct op *op, struct work_list *list) {
    struct few_layout l = cuda_few_layout(op);
    double in = FLOAT * (double)op->in[0].dim[0] * l.columns;
    work_add_pass(list, "few_rows", 4 * (double)tensor_elements(&op->in[0]), bytes_of(&op->in[0]), in);
    widen_unless_plain(list, &op->in[2]);
    work_add_pass(list, "few_columns", op_flops(op), bytes_of(&op->in[1]) + bytes_of(&op->in[2]) + in,
                  bytes_of(&op->out));
}

static void attention_int8_work(const struct op *op, struct work_list *list) {
    struct int8_attention_layout l = cuda_int8_attention_layout(op);
    int32_t keys = op->in[1].dim[0], columns = op->in[1].dim[1], heads = columns / (op->in[0].dim[1] / op->n),
            sampled = keys < INT8_MEAN_KEYS ? keys : INT8_MEAN_KEYS;
    double records = (double)heads * l.key_tiles * INT8_RECORD(l.head);
    work_add_pass(list, "attention_mean", (double)sampled * columns, bytes_of(&op->in[1]) * sampled / keys,
                  FLOAT * (double)columns);
    struct work quantise = {.kernel = "attention_quantise", .class = WORK_PASS};
    struct work attend = {.kernel = "attend_int8", .class = WORK_ATTENTION_INT8};
    for (int32_t first = 0; first < heads; first += l.at_once, quantise.launches++)
        attend.launches += int8_attention_launches(op, &l, int8_group_heads(&l, heads, first));
    quantise.flops = 4.0 * keys * columns;
    quantise.read_bytes = bytes_of(&op->in[1]) + bytes_of(&op->in[2]) + FLOAT * (double)columns;
    quantise.written_bytes = records;
    work_add(list, quantise);
    attend.flops = 4.0 * op->in[0].dim[1] * op->in[0].dim[0] * keys;
    attend.read_bytes = bytes_of(&op->in[0]) + records;
    attend.written_bytes = bytes_of(&op->out);
    attend.n = op->in[0].dim[1];
    attend.k = op->n * l.head;
    work_add(list, attend);
}

static void attention_work(const struct op *op, struct work_list *list) {
    if (attention_is_int8(op)) {
        attention_int8_work(op, list);
        return;
    }
    struct attention_layout l = cuda_attention_layout(op);
    double queries = op->in[0].dim[0],
           pairs = queries * op->in[1].dim[0]; /* pairs of a query and a key that it attends to */
    if (op->causal) pairs -= queries * (queries - 1) / 2;
    double keys = bytes_of(&op->in[1]) + bytes_of(&op->in[2]), columns = op->in[0].dim[1];
    if (l.packs) {
        double packed = (double)(l.end - l.keys);
        work_add_pass(list, "attention_pack", 0, keys, packed);
        keys = packed;
    }
    struct work attend = {.kernel = "attend", .class = WORK_ATTENTION};
    attend.launches = attention_launches(op);
    attend.flops = 4 * columns * pairs;
    attend.read_bytes = bytes_of(&op->in[0]) + keys + bytes_of(&op->in[3]);
    attend.written_bytes = bytes_of(&op->out);
    attend.n = op->in[0].dim[1];
    attend.k = op->n * l.head;
    work_add(list, attend);
}

static void rms_work(const struct op *op, struct work_list *list) {
    struct rms_layout l = cuda_rms_layout(op);
    const struct modulation *m = &op->modulation;
    double vectors = bytes_of(&op->in[1]), made = (double)FLOAT * op->n;
    if (!l.direct) {
        vectors += bytes_of(&m->scale) + bytes_of(&m->gate);
        made *= m->gate.rank ? 2 : 1;
        work_add_pass(list, "cuda_rms_vectors", 0, vectors, made);
        vectors = made;
    }
    work_add_pass(list, m->activation ? "rms_activated" : "rms_runs", op_flops(op),
                  bytes_of(&op->in[0]) + bytes_of(&m->base) + bytes_of(&m->shift) + vectors,
                  bytes_of(&op->out));
}

static void rope_work(const struct op *op, struct work_list *list) {
    widen_unless_plain(list, &op->in[2]);
    work_add_pass(list, op->rotation.axes.n_axes ? "rope_by_axes" : "rope_runs", op_flops(op),
                  bytes_of(&op->in[0]) + bytes_of(&op->in[1]) + bytes_of(&op->in[2]), bytes_of(&op->out));
}

static void layer_work(const struct op *op, struct work_list *list) {
    double reads = bytes_of(&op->in[0]);
    for (int i = 1; i <= LAYER_VECTORS; i++) {
        widen_unless_plain(list, &op->in[i]);
        reads += bytes_of(&op->in[i]);
    }
    work_add_pass(list, "layer_runs", op_flops(op), reads, bytes_of(&op->out));
}

static void statistics_work(const struct op *op, struct work_list *list) {
    struct statistics_layout l = cuda_statistics_layout(op);
    double sums = 2 * sizeof(double) * (double)op->in[0].dim[0] * l.pieces * op->n;
    work_add_pass(list, "sum_piece", op_flops(op), bytes_of(&op->in[0]), sums);
    work_add_pass(list, "finish_statistics", 0, sums, bytes_of(&op->out));
}

static void range_work(const struct op *op, struct work_list *list) {
    double parts = (double)RANGE_PART_BYTES * cuda_range_layout(op).pieces * op->n;
    work_add_pass(list, "range_piece", op_flops(op), bytes_of(&op->in[0]), parts);
    work_add_pass(list, "finish_range", 0, parts, bytes_of(&op->out));
}

static void add_channel_norm(struct work_list *list, const struct group_norm *norm, int32_t channels) {
    work_add_pass(list, "channel_norm", 0,
                  bytes_of(&norm->statistics) + bytes_of(&norm->weight) + bytes_of(&norm->bias),
                  3 * FLOAT * (double)channels);
}

static void group_work(const struct op *op, struct work_list *list) {
    add_channel_norm(list, &op->group_norm, tensor_columns(&op->in[0]));
    work_add_pass(list, "norm_channels", op_flops(op), bytes_of(&op->in[0]), bytes_of(&op->out));
}

/* Adds the work of `bands` bands of `rows` rows each: gathering, convolution, and the pass for bias and
 * residual. */
static void add_bands(struct work_list *list, const struct op *op, const struct conv_layout *l, int32_t rows,
                      int bands) {
    double value = (double)conv_value_bytes(l), taps = l->side * l->side, n = (double)l->phases * l->n_padded;
    double gathered = (double)bands * conv_reach(l, rows) * conv_reach(l, l->columns) * l->c_padded;
    double pixels = (double)conv_library_size(l, rows) * conv_library_size(l, l->columns);
    double share = (double)bands * rows / l->rows, outputs = share * (double)tensor_elements(&op->out);
    int32_t each = conv_finish_rows(op, l), area = l->doubled ? 1 : op->conv.upsample * op->conv.upsample;
    struct work gather = {.kernel = conv_norms_pixels(&op->conv) ? "gather_normed" : "gather_pixels",
                          .class = WORK_PASS,
                          .launches = bands,
                          .flops = 7 * gathered,
                          .read_bytes = FLOAT * gathered / area,
                          .written_bytes = value * gathered};
    work_add(list, gather);
    struct work convolution = {.kernel = "convolution", .class = WORK_CONV, .f16 = l->f16, .launches = bands};
    convolution.m = (int32_t)pixels, convolution.n = (int32_t)n, convolution.k = (int32_t)taps * l->c_padded;
    convolution.flops = bands * 2 * pixels * l->phases * op->in[1].dim[0] * taps * op->in[1].dim[1];
    convolution.read_bytes = value * (gathered + bands * n * taps * l->c_padded);
    convolution.written_bytes = value * bands * pixels * n;
    work_add(list, convolution);
    struct work finish = {.kernel = "finish_pixels", .class = WORK_PASS};
    finish.launches = bands * ((rows + each - 1) / each);
    finish.flops = 2 * outputs;
    finish.read_bytes = value * outputs + share * bytes_of(&op->in[3]);
    finish.written_bytes = FLOAT * outputs;
    work_add(list, finish);
}

static void conv_work(const struct op *op, struct work_list *list) {
    struct conv_layout l = cuda_conv_layout(op);
    const struct tensor *pixel_norm = &op->conv.pixel_norm.weight;
    double weights = (double)l.phases * l.n_padded * l.c_padded * l.side * l.side;
    if (op->conv.norm.statistics.rank) add_channel_norm(list, &op->conv.norm, op->in[0].dim[2]);
    if (conv_widens(pixel_norm)) add_widening(list, pixel_norm);
    if (conv_widens(&op->in[2])) add_widening(list, &op->in[2]);
    if (conv_widens(&op->conv.slopes)) add_widening(list, &op->conv.slopes);
    work_add_pass(list, "cuda_pad_weights", 0, bytes_of(&op->in[1]), (double)conv_value_bytes(&l) * weights);
    add_bands(list, op, &l, l.band, l.rows / l.band);
    if (l.rows % l.band) add_bands(list, op, &l, l.rows % l.band, 1);
}

/* Adds operators that launch one kernel: once, or for operators with host-computed values in the launch
 * arguments once per at_once columns of out. */
static void pass_work(const struct op *op, struct work_list *list) {
    static const struct {
        const char *kernel;
        int at_once;
    } passes[N_OP_KINDS] = {
        [OP_ROPE_TABLE] = {"table_pairs", ROPE_PAIRS_AT_ONCE},
        [OP_ROPE_AXIS] = {"axis_pairs", AXIS_PAIRS_AT_ONCE},
        [OP_TIMESTEP] = {"write_values", TIMES_AT_ONCE},
        [OP_RELATIVE_BIAS] = {"expand_buckets", DISTANCES_AT_ONCE},
        [OP_GLU] = {"glu_rows", 0},
        [OP_ADD] = {"add_rows", 0},
        [OP_COPY] = {"copy_rows", 0},
        [OP_ADD_POSITIONS] = {"add_table", 0},
        [OP_BROADCAST_ROW] = {"copy_rows", 0},
        [OP_PATCHIFY] = {"move_patches", 0},
        [OP_UNPATCHIFY] = {"move_patches", 0},
        [OP_MEAN_DOWN] = {"mean_pixels", 0},
        [OP_REPEAT_UP] = {"repeat_pixels", 0},
        [OP_LATENT_TO_IMAGE] = {"move_latent", 0},
        [OP_IMAGE_TO_RGB] = {"rgb_rows", 0},
        [OP_MAP] = {"map_values", 0},
        [OP_SNAKE] = {"snake_tile", 0},
        [OP_SINC_UP] = {"sinc_values", 0},
    };
    int at_once = passes[op->kind].at_once;
    struct work pass = {.kernel = passes[op->kind].kernel, .class = WORK_PASS, .launches = 1};
    if (at_once) pass.launches = (op->out.dim[1] + at_once - 1) / at_once;
    pass.flops = op_flops(op);
    for (int i = 0; i < OP_INPUTS; i++) pass.read_bytes += bytes_of(&op->in[i]);
    pass.written_bytes = bytes_of(&op->out);
    /* Tokens of several frames: the operator moves the columns of one frame. */
    if (op->kind == OP_PATCHIFY && op->patches.frames) pass.written_bytes /= op->patches.frames;
    if (op->kind == OP_UNPATCHIFY && op->patches.frames) pass.read_bytes /= op->patches.frames;
    work_add(list, pass);
}

void cuda_work(const struct op *op, struct work_list *list) {
    static void (*const works[N_OP_KINDS])(const struct op *op, struct work_list *list) = {
        [OP_LINEAR] = linear_work,    [OP_LINEAR_FEW] = few_work,    [OP_ATTENTION] = attention_work,
        [OP_RMS_NORM] = rms_work,     [OP_LAYER_NORM] = layer_work,  [OP_GROUP_STATISTICS] = statistics_work,
        [OP_GROUP_NORM] = group_work, [OP_GROUP_RANGE] = range_work, [OP_CONV2D] = conv_work,
        [OP_ROPE] = rope_work,
    };
    list->n = 0;
    (works[op->kind] ? works[op->kind] : pass_work)(op, list);
}
