/* Operator wrappers: check all shapes and types once for all devices, then call the device.
 *
 * Low-rank adapters (LoRA) of a product's weight are added here, with existing operators. OP_LINEAR gets in .
 * down^T as an operand (op.down_product) and adds the adapter's part to each output panel while the panel is
 * in cache. OP_LINEAR_FEW and OP_CONV2D add the adapter's part in separate calls. These functions release
 * scratch on return: devices run operators in call order.
 *
 * Invariants: a device gets only checked calls and checks nothing again. A wrapper reads tensor descriptors,
 * never elements (the dry device has none). After an error no operator runs. */
#include "kernels/ops_check.h"

#include <string.h>

struct tensor context_tensor(struct context *x, enum dtype dtype, int rank, const int32_t *dim) {
    struct tensor t = tensor_make(NULL, dtype, rank, dim);
    if (x->error->code != OK) return t;
    bool ok = ops_tensor_valid(&t);
    if (ok) t = arena_tensor(x->scratch, dtype, rank, dim, &ok);
    if (ok) return t;
    char shape[140];
    ops_format_tensor(&t, shape, sizeof shape);
    error_set(x->error, INTERNAL,
              "scratch memory of the visit is too small" FOUND "%llu of %llu bytes used" EXPECTED
              "space for %s",
              (unsigned long long)x->scratch->used, (unsigned long long)x->scratch->bytes, shape);
    return t;
}

/* Rows of 2-byte types start at multiples of 16 bytes, so that any range of rows is a valid operand. */
struct tensor context_operand(struct context *x, int rank, const int32_t *dim) {
    enum dtype dtype = x->device->operands.in[x->precision];
    int32_t room[TENSOR_RANK_MAX], last = rank - 1, step = dtype == DTYPE_F32 ? 1 : OPERAND_ALIGN / 2;
    memcpy(room, dim, (size_t)rank * sizeof *room);
    room[last] = (room[last] + step - 1) / step * step;
    struct tensor t = context_tensor(x, dtype, rank, room);
    t.dim[last] = dim[last];
    return t;
}

struct tensor context_unrounded(struct context *x, struct tensor operand) {
    return operand.dtype == DTYPE_F32 ? operand : context_tensor(x, DTYPE_F32, operand.rank, operand.dim);
}

static void check_epilogue(struct check *c, const struct tensor *out, const struct tensor *bias,
                           const struct tensor *residual) {
    ops_check_vector(c, "bias", bias, tensor_columns(out), true);
    if (residual->rank) ops_check_like(c, "residual", residual, out);
}

/* Checks that adapters' factors fit the weight and have no adapters of their own. Adapters of a convolution
 * must cover all outputs. */
static void check_adapters(struct check *c, const struct tensor *weight) {
    int32_t n = weight->dim[0];
    for (const struct low_rank *a = c->ok ? weight->adapters : NULL; a; a = a->next) {
        ops_check_tensor(c, "adapter's up", &a->up, WEIGHTS, 2, DIMS(-1, a->down.dim[0]));
        ops_check_packed(c, "adapter's up", &a->up);
        ops_check_true(c, a->down.rank >= 2 && !a->down.adapters && tensor_packed(&a->down), "adapter's down",
                       &a->down, "a matrix without gaps");
        ops_check_true(c, tensor_elements(&a->down) / a->down.dim[0] * n == tensor_elements(weight),
                       "adapter's down", &a->down, "as many values per row as the weight");
        ops_check_true(c, c->kind != OP_CONV2D || (a->up.dim[0] == n && a->row == weight->adapter_row),
                       "adapter's up", &a->up, "all outputs of a convolution");
    }
}

/* Returns an adapter's `down` factor, reshaped so that its rows have the dimensions of the weight's rows. */
static struct tensor down_of(const struct low_rank *adapter, const struct tensor *weight) {
    int32_t dim[TENSOR_RANK_MAX];
    memcpy(dim, weight->dim, sizeof dim);
    dim[0] = adapter->down.dim[0];
    return tensor_reshape(adapter->down, weight->rank, dim);
}

/* Implements op_linear. skinny: few outputs, so a device may split the rows among threads. */
static void ops_linear(struct context *x, struct tensor out, struct tensor in, struct tensor weight,
                       struct epilogue e, bool skinny) {
    struct check c = ops_check_begin(x, OP_LINEAR);
    ops_check_operand(&c, "in", &in, DIMS(-1, -1));
    ops_check_tensor(&c, "weight", &weight, WEIGHTS, 2, DIMS(-1, in.dim[1]));
    ops_check_packed(&c, "weight", &weight);
    ops_check_tensor(&c, "out", &out, OPERANDS, 2, DIMS(in.dim[0], weight.dim[0]));
    check_epilogue(&c, &out, &e.bias, &e.residual);
    ops_check_in_place(&c, &out, &e.residual);
    ops_check_vector(&c, "gate", &e.gate, out.dim[1], true);
    check_adapters(&c, &weight);
    uint64_t used = weight.adapters ? x->scratch->used : 0;
    int32_t ranks = c.ok ? tensor_adapter_ranks(&weight) : 0, column = 0, row;
    struct tensor down_product = {0}, up;
    if (ranks) down_product = context_tensor(x, DTYPE_F32, 2, (int32_t[]){in.dim[0], ranks});
    for (const struct low_rank *a = ranks ? weight.adapters : NULL; a; a = a->next) {
        if (!tensor_adapted_by(&weight, a, &up, &row)) continue;
        struct tensor part = tensor_slice_columns(down_product, column, up.dim[1]);
        ops_linear(x, part, in, down_of(a, &weight), (struct epilogue){0}, true);
        column += up.dim[1];
    }
    c.ok = c.ok && x->error->code == OK;
    bool not_int8 = x->precision == PRECISION_INT8 && (skinny || !int8_group(&weight));
    ops_dispatch(&c, &(struct op){.kind = OP_LINEAR,
                                  .out = out,
                                  .in = {in, weight},
                                  .epilogue = e,
                                  .down_product = down_product,
                                  .precision = not_int8 ? device_default_precision(x->device) : x->precision,
                                  .skinny = skinny});
    if (weight.adapters) x->scratch->used = used;
}

void op_linear(struct context *x, struct tensor out, struct tensor in, struct tensor weight,
               struct epilogue e) {
    ops_linear(x, out, in, weight, e, false);
}

void op_linear_few(struct context *x, struct tensor out, struct tensor in, struct tensor weight,
                   struct tensor bias, enum activation activation) {
    struct check c = ops_check_begin(x, OP_LINEAR_FEW);
    ops_check_tensor(&c, "in", &in, F32, 2, DIMS(-1, -1));
    ops_check_tensor(&c, "weight", &weight, WEIGHTS, 2, DIMS(-1, in.dim[1]));
    ops_check_packed(&c, "weight", &weight);
    ops_check_tensor(&c, "out", &out, F32, 2, DIMS(in.dim[0], weight.dim[0]));
    ops_check_vector(&c, "bias", &bias, out.dim[1], true);
    check_adapters(&c, &weight);
    if (!c.ok || !weight.adapters) {
        ops_dispatch(
            &c, &(struct op){
                    .kind = OP_LINEAR_FEW, .out = out, .in = {in, weight, bias}, .activation = activation});
        return;
    }
    struct tensor base = weight, none = {0}, up;
    int32_t row;
    base.adapters = NULL;
    op_linear_few(x, out, in, base, bias, activation);
    double before = x->flops;
    for (const struct low_rank *a = weight.adapters; a; a = a->next) {
        if (!tensor_adapted_by(&weight, a, &up, &row)) continue;
        uint64_t used = x->scratch->used;
        struct tensor part = tensor_slice_columns(out, row, up.dim[0]), down = down_of(a, &weight);
        struct tensor inner = context_tensor(x, DTYPE_F32, 2, (int32_t[]){in.dim[0], down.dim[0]});
        struct tensor sum = context_tensor(x, DTYPE_F32, 2, part.dim);
        op_linear_few(x, inner, in, down, none, activation);
        op_linear_few(x, sum, inner, up, none, ACTIVATION_NONE);
        op_add(x, part, part, sum);
        x->scratch->used = used;
    }
    x->adapter_flops += x->flops - before;
}

void op_attention(struct context *x, struct tensor out, struct tensor q, struct tensor k, struct tensor v,
                  struct attention_options heads) {
    struct check c = ops_check_begin(x, OP_ATTENTION);
    ops_check_operand(&c, "q", &q, DIMS(-1, -1));
    ops_check_true(&c, heads.queries > 0 && heads.keys > 0 && heads.queries % heads.keys == 0, "heads", &q,
                   "a multiple of the key heads");
    ops_check_true(&c,
                   c.ok && q.dim[1] % heads.queries == 0 && q.dim[1] / heads.queries <= ATTENTION_HEAD_MAX,
                   "q", &q, "heads of at most 1152 columns");
    int64_t columns = c.ok ? (int64_t)q.dim[1] / heads.queries * heads.keys : 0;
    ops_check_operand(&c, "k", &k, DIMS(-1, columns));
    ops_check_operand(&c, "v", &v, DIMS(k.dim[0], columns));
    ops_check_true(&c, v.dtype == k.dtype, "v", &v, "k's type");
    ops_check_result(&c, &out, &q);
    ops_check_in_place(&c, &out, &q);
    ops_check_true(&c, !heads.causal || k.dim[0] >= q.dim[0], "k", &k, "at least as many keys as queries");
    if (heads.relative_bias.rank)
        ops_check_tensor(&c, "relative bias", &heads.relative_bias, F32, 2,
                         DIMS(heads.queries, (int64_t)q.dim[0] + k.dim[0] - 1));
    ops_dispatch(&c, &(struct op){.kind = OP_ATTENTION,
                                  .out = out,
                                  .in = {q, k, v, heads.relative_bias},
                                  .precision = x->precision,
                                  .n = heads.queries,
                                  .scale = heads.scale,
                                  .causal = heads.causal});
}

void op_relative_bias(struct context *x, struct tensor out, struct tensor table,
                      struct distance_buckets buckets) {
    struct check c = ops_check_begin(x, OP_RELATIVE_BIAS);
    ops_check_tensor(&c, "table", &table, WEIGHTS, 2, DIMS(-1, -1));
    ops_check_packed(&c, "table", &table);
    ops_check_true(
        &c, table.dim[0] % 4 == 0 && table.dim[0] <= 128 && buckets.max_distance > table.dim[0] / 4, "table",
        &table, "a multiple of 4 buckets, at most 128, that do not end before max_distance");
    ops_check_tensor(&c, "out", &out, F32, 2, DIMS(table.dim[1], -1));
    ops_check_true(&c, out.dim[1] % 2 == 1, "out", &out, "an odd number of distances");
    ops_dispatch(
        &c, &(struct op){
                .kind = OP_RELATIVE_BIAS, .out = out, .in = {table}, .max_distance = buckets.max_distance});
}

void op_rms_norm(struct context *x, struct tensor out, struct tensor in, struct tensor weight, float eps,
                 struct modulation m) {
    struct check c = ops_check_begin(x, OP_RMS_NORM);
    ops_check_rows(&c, "in", &in);
    ops_check_result(&c, &out, &in);
    ops_check_in_place(&c, &out, &in);
    ops_check_vector(&c, "weight", &weight, -1, true);
    int32_t columns = c.ok && !weight.rank ? tensor_columns(&in) : weight.dim[0];
    ops_check_true(&c, c.ok && tensor_columns(&in) % columns == 0, "in", &in,
                   "rows that are a multiple of the weight's size");
    ops_check_true(&c, weight.rank || !m.zero_centered, "weight", &weight, "a weight that is stored minus 1");
    ops_check_vector(&c, "scale", &m.scale, columns, true);
    if (m.shift.rank) ops_check_tensor(&c, "shift", &m.shift, F32, 1, DIMS(columns));
    ops_check_vector(&c, "gate", &m.gate, columns, true);
    if (m.base.rank) ops_check_like(&c, "base", &m.base, &in);
    ops_check_in_place(&c, &out, &m.base);
    bool ends = !m.gate.rank && !m.base.rank;
    ops_check_true(&c, !m.activation || ends, "activation", &in, "no activation with gate or base");
    ops_check_true(&c, !m.shift.rank || ends, "shift", &in, "no shift with gate or base");
    ops_dispatch(&c, &(struct op){.kind = OP_RMS_NORM,
                                  .out = out,
                                  .in = {in, weight},
                                  .n = columns,
                                  .eps = eps,
                                  .zero_centered = m.zero_centered,
                                  .modulation = m});
}

void op_layer_norm(struct context *x, struct tensor out, struct tensor in, struct affine affine, float eps) {
    struct check c = ops_check_begin(x, OP_LAYER_NORM);
    ops_check_rows(&c, "in", &in);
    ops_check_result(&c, &out, &in);
    ops_check_in_place(&c, &out, &in);
    ops_check_vector(&c, "weight", &affine.weight, tensor_columns(&in), true);
    ops_check_vector(&c, "bias", &affine.bias, tensor_columns(&in), true);
    ops_check_vector(&c, "scale", &affine.scale, tensor_columns(&in), true);
    ops_check_vector(&c, "shift", &affine.shift, tensor_columns(&in), true);
    ops_dispatch(&c, &(struct op){.kind = OP_LAYER_NORM,
                                  .out = out,
                                  .in = {in, affine.weight, affine.bias, affine.scale, affine.shift},
                                  .eps = eps});
}

void op_group_statistics(struct context *x, struct tensor out, struct tensor in, struct rows_before before,
                         int groups, float eps) {
    struct check c = ops_check_begin(x, OP_GROUP_STATISTICS);
    ops_check_tensor(&c, "in", &in, F32, 3, DIMS(-1, -1, -1));
    ops_check_true(&c, c.ok && groups > 0 && in.dim[2] % groups == 0, "in", &in, "channels in whole groups");
    ops_check_tensor(&c, "out", &out, F32, 2, DIMS(groups, 2));
    ops_check_packed(&c, "out", &out);
    if (before.sums.rank) ops_check_tensor(&c, "sums", &before.sums, F64, 2, DIMS(groups, 2));
    if (before.sums.rank) ops_check_packed(&c, "sums", &before.sums);
    ops_check_true(&c, before.rows >= 0 && (before.sums.rank || !before.rows), "rows before", &in,
                   "0 unless running sums are given");
    ops_dispatch(&c, &(struct op){.kind = OP_GROUP_STATISTICS,
                                  .out = out,
                                  .in = {in, before.sums},
                                  .n = groups,
                                  .eps = eps,
                                  .rows_before = before.rows});
}

void op_group_range(struct context *x, struct tensor out, struct tensor in, int groups, float scale,
                    float eps) {
    struct check c = ops_check_begin(x, OP_GROUP_RANGE);
    ops_check_tensor(&c, "in", &in, F32, 3, DIMS(-1, -1, -1));
    ops_check_true(&c, c.ok && groups > 0 && in.dim[2] % groups == 0, "in", &in, "channels in whole groups");
    ops_check_tensor(&c, "out", &out, F32, 2, DIMS(groups, 2));
    ops_check_packed(&c, "out", &out);
    ops_dispatch(
        &c, &(struct op){
                .kind = OP_GROUP_RANGE, .out = out, .in = {in}, .n = groups, .scale = scale, .eps = eps});
}

static void check_group_norm(struct check *c, const struct group_norm *norm, int64_t channels) {
    ops_check_tensor(c, "statistics", &norm->statistics, F32, 2, DIMS(-1, 2));
    ops_check_packed(c, "statistics", &norm->statistics);
    ops_check_true(c, c->ok && channels % norm->statistics.dim[0] == 0, "statistics", &norm->statistics,
                   "a number of groups that divides the channels");
    ops_check_vector(c, "norm weight", &norm->weight, channels, true);
    ops_check_vector(c, "norm bias", &norm->bias, channels, true);
}

void op_group_norm(struct context *x, struct tensor out, struct tensor in, struct group_norm norm) {
    struct check c = ops_check_begin(x, OP_GROUP_NORM);
    ops_check_rows(&c, "in", &in);
    ops_check_like(&c, "out", &out, &in);
    check_group_norm(&c, &norm, tensor_columns(&in));
    ops_dispatch(&c, &(struct op){.kind = OP_GROUP_NORM, .out = out, .in = {in}, .group_norm = norm});
}

/* True if blocks of tokens divide an image of rows x columns tokens evenly. */
static bool token_order_fits(struct token_order order, int64_t rows, int64_t columns) {
    int block = order.block > 1 ? order.block : 1;
    return order.window >= 0 && order.block >= 0 && order.window % block == 0 && rows % block == 0 &&
           columns % block == 0;
}

void op_rope_table(struct context *x, struct tensor out, const struct rope_options *options) {
    struct check c = ops_check_begin(x, OP_ROPE_TABLE);
    int64_t tokens = 0, pairs = 0;
    bool fits = options->n_axes >= 1 && options->n_axes <= ROPE_AXES_MAX && options->n_grids >= 1 &&
                options->n_grids <= ROPE_GRIDS_MAX &&
                (!options->mrope_interleaved || (options->mrope && options->n_axes == 3));
    for (int a = 0; fits && a < options->n_axes; a++) {
        fits = options->axis_dim[a] > 0 && options->axis_dim[a] % 2 == 0;
        pairs += options->axis_dim[a] / 2;
    }
    for (int g = 0; fits && g < options->n_grids; g++) {
        const struct rope_grid *grid = &options->grid[g];
        int axes = grid->diagonal ? 1 : options->n_axes;
        int64_t n = 1;
        for (int a = 0; a < axes; a++) n *= grid->extent[a] > 0 ? grid->extent[a] : 0;
        fits = n > 0;
        tokens += n;
        if (fits && (grid->token_order.window || grid->token_order.block))
            fits = axes >= 2 &&
                   token_order_fits(grid->token_order, grid->extent[axes - 2], grid->extent[axes - 1]);
    }
    ops_check_true(&c, fits, "axes or grids", &out,
                   "1 to 4 even axes, 1 to 18 non-empty grids, whole blocks of tokens");
    ops_check_tensor(&c, "out", &out, F32, 3, DIMS(tokens, pairs, 2));
    ops_check_packed(&c, "out", &out);
    ops_dispatch(&c, &(struct op){.kind = OP_ROPE_TABLE, .out = out, .rope = *options});
}

void op_rope_axis(struct context *x, struct tensor out, struct rope_axis axis) {
    struct check c = ops_check_begin(x, OP_ROPE_AXIS);
    ops_check_tensor(&c, "out", &out, F32, 3, DIMS(-1, -1, 2));
    ops_check_packed(&c, "out", &out);
    int64_t end = c.ok ? (int64_t)axis.step * out.dim[0] + axis.first : 0;
    ops_check_true(
        &c, axis.theta > 0 && axis.denominator > 0 && axis.size > 0 && axis.step >= 0 && end <= INT32_MAX,
        "axis", &out, "positive theta, denominator and size, and positions below 2^31");
    ops_dispatch(&c, &(struct op){.kind = OP_ROPE_AXIS, .out = out, .axis = axis});
}

/* Checks a table with one part per axis: the rows of `in` are tokens of the grid, and the axes share the
 * rotated pairs evenly. */
static void check_axes(struct check *c, const struct tensor *in, const struct tensor *table,
                       const struct rope_axes *axes) {
    int64_t tokens = 1, rows = 0, pairs = c->ok ? in->dim[1] / 2 - axes->n_unrotated : 0;
    bool fits = c->ok && axes->n_axes > 0 && axes->n_axes <= TOKEN_AXES_MAX && axes->n_unrotated >= 0 &&
                pairs > 0 && pairs % axes->n_axes == 0;
    for (int a = 0; fits && a < TOKEN_AXES_MAX; a++) {
        bool rotates = a < axes->n_axes;
        fits = axes->extent[a] >= rotates && tokens <= INT32_MAX;
        tokens *= axes->extent[a] ? axes->extent[a] : 1;
        rows += rotates ? axes->extent[a] : 0;
    }
    ops_check_true(c, fits && axes->first_token >= 0 && axes->first_token + (int64_t)in->dim[0] <= tokens,
                   "in", in, "tokens of a grid, and 1 to 3 axes that share the rotated pairs evenly");
    ops_check_tensor(c, "table", table, F32, 3, DIMS(rows, fits ? pairs / axes->n_axes : 0, 2));
}

void op_rope(struct context *x, struct tensor out, struct tensor in, struct tensor table,
             struct rotation rotation) {
    struct check c = ops_check_begin(x, OP_ROPE);
    int heads = rotation.heads;
    ops_check_tensor(&c, "in", &in, F32, 2, DIMS(-1, -1));
    ops_check_true(&c,
                   c.ok && heads > 0 && in.dim[1] % (2 * heads) == 0 && in.dim[1] / heads <= ROPE_HEAD_MAX,
                   "in", &in, "heads of an even number of columns, at most 512");
    int64_t head = c.ok ? in.dim[1] / heads : 0;
    ops_check_result(&c, &out, &in);
    ops_check_in_place(&c, &out, &in);
    if (rotation.axes.n_axes)
        check_axes(&c, &in, &table, &rotation.axes);
    else
        ops_check_tensor(&c, "table", &table, F32, 3, DIMS(in.dim[0], head / 2, 2));
    ops_check_packed(&c, "table", &table);
    ops_check_vector(&c, "norm", &rotation.norm, head, true);
    ops_dispatch(&c, &(struct op){.kind = OP_ROPE,
                                  .out = out,
                                  .in = {in, table, rotation.norm},
                                  .n = heads,
                                  .eps = rotation.eps,
                                  .zero_centered = rotation.zero_centered,
                                  .rotation = rotation});
}

void op_glu(struct context *x, struct tensor out, struct tensor a, struct tensor b,
            enum activation activation) {
    struct check c = ops_check_begin(x, OP_GLU);
    ops_check_rows(&c, "a", &a);
    ops_check_rows(&c, "b", &b);
    bool heads = c.ok && tensor_columns(&a) != tensor_columns(&b);
    ops_check_true(&c, !heads || (a.rank == b.rank && tensor_columns(&b) % tensor_columns(&a) == 0), "a", &a,
                   "b's columns, or one column for each head of b");
    struct tensor expected = b;
    if (heads) expected.dim[b.rank - 1] = a.dim[a.rank - 1];
    ops_check_like(&c, "a", &a, &expected);
    ops_check_result(&c, &out, &b);
    ops_check_in_place(&c, &out, &a);
    ops_check_in_place(&c, &out, &b);
    ops_check_true(&c, !heads || ops_no_overlap(&out, &a), "out", &out, "memory that does not overlap a");
    ops_dispatch(&c, &(struct op){.kind = OP_GLU, .out = out, .in = {a, b}, .activation = activation});
}

void op_add(struct context *x, struct tensor out, struct tensor a, struct tensor b) {
    op_add_scaled(x, out, a, b, 1);
}

void op_add_scaled(struct context *x, struct tensor out, struct tensor a, struct tensor b, float factor) {
    struct check c = ops_check_begin(x, OP_ADD);
    ops_check_rows(&c, "a", &a);
    ops_check_like(&c, "out", &out, &a);
    int64_t dim[TENSOR_RANK_MAX];
    for (int i = 0; i < a.rank; i++) dim[i] = i + 1 < a.rank && tensor_rows(&b) == 1 ? 1 : a.dim[i];
    ops_check_tensor(&c, "b", &b, WEIGHTS, a.rank, dim);
    ops_dispatch(&c, &(struct op){.kind = OP_ADD, .out = out, .in = {a, b}, .scale = factor});
}

void op_add_positions(struct context *x, struct tensor out, struct tensor a, struct tensor table,
                      struct position_grid grid) {
    struct check c = ops_check_begin(x, OP_ADD_POSITIONS);
    int64_t tokens = (int64_t)grid.rows * grid.columns;
    ops_check_tensor(&c, "a", &a, F32, 2, DIMS(tokens, -1));
    ops_check_like(&c, "out", &out, &a);
    ops_check_true(
        &c, grid.rows > 0 && grid.columns > 0 && token_order_fits(grid.token_order, grid.rows, grid.columns),
        "a", &a, "tokens in whole blocks");
    ops_check_tensor(&c, "table", &table, WEIGHTS, 2, DIMS((int64_t)grid.side * grid.side, a.dim[1]));
    ops_dispatch(&c, &(struct op){.kind = OP_ADD_POSITIONS, .out = out, .in = {a, table}, .positions = grid});
}

void op_copy(struct context *x, struct tensor out, struct tensor in) {
    struct check c = ops_check_begin(x, OP_COPY);
    ops_check_true(&c, in.rank >= 1, "in", &in, "rows, rank at least 1");
    ops_check_result(&c, &out, &in);
    ops_check_tensor(&c, "in", &in, WEIGHTS, out.rank, DIMS(-1, -1, -1, -1, -1, -1));
    ops_dispatch(&c, &(struct op){.kind = OP_COPY, .out = out, .in = {in}});
}

void op_broadcast_row(struct context *x, struct tensor out, struct tensor row) {
    struct check c = ops_check_begin(x, OP_BROADCAST_ROW);
    ops_check_tensor(&c, "out", &out, F32, 2, DIMS(-1, -1));
    ops_check_tensor(&c, "row", &row, WEIGHTS, 2, DIMS(1, out.dim[1]));
    ops_dispatch(&c, &(struct op){.kind = OP_BROADCAST_ROW, .out = out, .in = {row}});
}

/* Checks the tokens' dimensions against the image or latent that is cut into these tokens. */
static void check_patches(struct check *c, const struct tensor *tokens, const struct tensor *latent,
                          const struct patches *p) {
    ops_check_tensor(c, "latent", latent, F32, 3, DIMS(-1, -1, -1));
    int64_t rows = latent->dim[p->pixels ? 0 : 1], columns = latent->dim[p->pixels ? 1 : 2];
    ops_check_true(c, c->ok && p->side > 0 && rows % p->side == 0 && columns % p->side == 0, "latent", latent,
                   "rows and columns in whole patches");
    if (!c->ok) return;
    rows /= p->side, columns /= p->side;
    ops_check_true(c, token_order_fits(p->token_order, rows, columns), "latent", latent,
                   "patches in whole blocks");
    ops_check_true(
        c, p->frames ? p->order == PATCH_CHANNELS_FIRST && p->frame >= 0 && p->frame < p->frames : !p->frame,
        "frame", latent, "one of the frames, with channels first");
    int64_t values = (int64_t)p->side * p->side * latent->dim[p->pixels ? 2 : 0];
    ops_check_tensor(c, "tokens", tokens, F32, 2,
                     DIMS(rows * columns, p->frames > 1 ? values * p->frames : values));
}

void op_patchify(struct context *x, struct tensor tokens, struct tensor latent, struct patches patches) {
    struct check c = ops_check_begin(x, OP_PATCHIFY);
    check_patches(&c, &tokens, &latent, &patches);
    ops_dispatch(&c, &(struct op){.kind = OP_PATCHIFY, .out = tokens, .in = {latent}, .patches = patches});
}

void op_unpatchify(struct context *x, struct tensor latent, struct tensor tokens, struct patches patches,
                   float factor) {
    struct check c = ops_check_begin(x, OP_UNPATCHIFY);
    check_patches(&c, &tokens, &latent, &patches);
    ops_dispatch(
        &c, &(struct op){
                .kind = OP_UNPATCHIFY, .out = latent, .in = {tokens}, .patches = patches, .scale = factor});
}

void op_timestep(struct context *x, struct tensor out, float t, enum timestep_form form) {
    struct check c = ops_check_begin(x, OP_TIMESTEP);
    ops_check_tensor(&c, "out", &out, F32, 2, DIMS(1, -1));
    ops_check_true(&c, out.dim[1] % 2 == 0 && (form != TIMESTEP_TO_END || out.dim[1] > 2), "out", &out,
                   "an even number of columns (more than 2 for TIMESTEP_TO_END)");
    ops_dispatch(&c, &(struct op){.kind = OP_TIMESTEP, .out = out, .scale = t, .form = form});
}

int32_t conv_size(int32_t in, const struct conv_options *options, bool cut) {
    if (options->stride == 2) return (in + options->pad_before) / 2;
    return in * options->upsample - cut;
}

/* About 8,192 pixels per band: a band's input and output stay in a core's cache, and all cores get bands. */
int32_t conv_band_rows(int32_t columns) {
    enum { PIXELS = 8192, ROWS_LEAST = 4 };
    return PIXELS / columns > ROWS_LEAST ? PIXELS / columns : ROWS_LEAST;
}

/* A band that ends before row e of `out` reads no row of `in` above (e - band - halo) / upsample, rounded
 * down. That row's address minus the band's end is linear in e up to rounding: the minimum is at e = 0 or e =
 * rows. */
int64_t conv_lead(int32_t rows, int32_t columns, int halo, int upsample, int64_t in_row, int64_t out_row) {
    int32_t band = conv_band_rows(columns);
    int64_t reach = ((band < rows ? band : rows) + halo + 2 * (upsample - 1)) / upsample;
    int64_t growth = rows * out_row - rows / upsample * in_row;
    return reach * in_row + (growth > 0 ? growth : 0);
}

/* True if two images are disjoint columns of one wider image. */
static bool are_other_columns(const struct tensor *a, const struct tensor *b) {
    int64_t step = a->row_bytes, a_bytes = (int64_t)sizeof(float) * a->dim[2],
            b_bytes = (int64_t)sizeof(float) * b->dim[2];
    if (step != b->row_bytes) return false;
    int64_t after = (int64_t)((uintptr_t)b->data - (uintptr_t)a->data) % step;
    if (after < 0) after += step;
    return after >= a_bytes && after + b_bytes <= step;
}

/* True if `out` of a convolution does not overlap the input rows that it reads, or starts far enough before
 * them. */
static bool conv_no_conflict(const struct tensor *out, const struct tensor *in, int32_t first_row, int halo,
                             int up) {
    uintptr_t from = (uintptr_t)out->data, to = (uintptr_t)in->data;
    if (ops_no_overlap(out, in) || are_other_columns(out, in)) return true;
    int64_t in_row = in->row_bytes * in->dim[1], out_row = out->row_bytes * out->dim[1];
    int64_t lead = conv_lead(out->dim[0], out->dim[1], halo, up, in_row, out_row);
    return (int64_t)(to - from) + first_row / up * in_row >= lead;
}

/* Checks where `out` may overlap the input and the residual (op_conv2d). */
static void check_conv_overlap(struct check *c, const struct tensor *out, const struct tensor *in,
                               const struct tensor *residual, const struct conv_options *o, int halo) {
    if (!c->ok) return;
    if (o->stride == 2) {
        /* A band is gathered before it is written; later bands read from twice the band's end, minus the
         * padding row. The required distance is linear in the band's end, so the first or the last band needs
         * most. */
        int64_t in_row = in->row_bytes * in->dim[1], out_row = out->row_bytes * out->dim[1];
        int64_t growth = out_row - 2 * in_row;
        int64_t lead = (growth > 0 ? out->dim[0] * growth : growth) + o->pad_before * in_row;
        int64_t distance = (int64_t)((uintptr_t)in->data - (uintptr_t)out->data);
        ops_check_true(c, ops_no_overlap(out, in) || distance >= (lead > 0 ? lead : 0), "out", out,
                       "starting at in, or far enough before it");
        return;
    }
    ops_check_true(c, conv_no_conflict(out, in, o->first_row, halo, o->upsample), "out", out,
                   "far enough before in");
    if (residual->rank && residual->data != out->data)
        ops_check_true(c, conv_no_conflict(out, residual, 0, 0, 1), "out", out,
                       "residual, or far enough before it");
}

/* Checks a convolution's stride, padding and cut rows or columns, and options that stride 2 excludes. */
static void check_stride(struct check *c, const struct tensor *in, const struct tensor *weight,
                         const struct epilogue *e, const struct conv_options *o) {
    ops_check_true(c, o->stride >= 0 && o->stride <= 2, "stride", in, "0, 1 or 2");
    ops_check_true(c, o->pad_before == 0 || (o->pad_before == 1 && o->stride == 2), "before", in,
                   "0, or 1 with stride 2");
    ops_check_true(c, o->upsample == 2 || (!o->cut_row && !o->cut_column), "cut", in,
                   "cut_row and cut_column only with upsample 2");
    if (o->stride != 2) return;
    ops_check_true(c, o->pad_before || (in->dim[0] % 2 == 0 && in->dim[1] % 2 == 0), "in", in,
                   "even rows and columns for stride 2");
    ops_check_true(c, weight->dim[2] == 3, "weight", weight, "a kernel of 3 for stride 2");
    bool normed = o->norm.statistics.rank || conv_norms_pixels(o);
    ops_check_true(c, !normed && o->upsample == 1 && !e->residual.rank, "options", in,
                   "no norm, upsampling or residual with stride 2");
}

/* Arguments of op_conv2d. */
struct conv_call {
    struct tensor out, in, weight;
    struct epilogue epilogue;
    struct conv_options options;
};

/* op_conv2d with this adapter and all later adapters in the list. All `down` convolutions run before the main
 * convolution writes `out`, because `out` may overlap `in`. */
static void low_rank_conv(struct context *x, const struct conv_call *call, const struct low_rank *adapter) {
    const struct tensor *out = &call->out;
    struct tensor weight = call->weight;
    weight.adapters = NULL;
    if (!adapter) {
        op_conv2d(x, *out, call->in, weight, call->epilogue, call->options);
        return;
    }
    uint64_t used = x->scratch->used;
    int32_t n = out->dim[2], r = adapter->down.dim[0];
    struct tensor inner = context_tensor(x, DTYPE_F32, 3, (int32_t[]){out->dim[0], out->dim[1], r});
    double before = x->flops;
    op_conv2d(x, inner, call->in, down_of(adapter, &weight), (struct epilogue){0}, call->options);
    x->adapter_flops += x->flops - before;
    low_rank_conv(x, call, adapter->next);
    before = x->flops;
    op_conv2d(x, *out, inner, tensor_reshape(adapter->up, 4, (int32_t[]){n, r, 1, 1}),
              (struct epilogue){.residual = *out}, (struct conv_options){.upsample = 1});
    x->adapter_flops += x->flops - before;
    x->scratch->used = used;
}

void op_conv2d(struct context *x, struct tensor out, struct tensor in, struct tensor weight,
               struct epilogue e, struct conv_options options) {
    struct check c = ops_check_begin(x, OP_CONV2D);
    int64_t first = options.first_row;
    ops_check_tensor(&c, "in", &in, F32, 3, DIMS(-1, -1, -1));
    ops_check_true(&c, options.upsample == 1 || options.upsample == 2, "upsample", &in, "1 or 2");
    ops_check_tensor(&c, "weight", &weight, WEIGHTS, 4, DIMS(-1, in.dim[2], -1, weight.dim[2]));
    ops_check_packed(&c, "weight", &weight);
    ops_check_true(&c, weight.dim[2] == 1 || weight.dim[2] == 3, "weight", &weight, "a kernel of 1 or 3");
    check_stride(&c, &in, &weight, &e, &options);
    int64_t rows = conv_size(in.dim[0], &options, options.cut_row);
    int64_t columns = conv_size(in.dim[1], &options, options.cut_column);
    ops_check_tensor(&c, "out", &out, F32, 3, DIMS(-1, columns, weight.dim[0]));
    ops_check_true(&c, first >= 0 && (options.stride != 2 || !first) && first + out.dim[0] <= rows, "out",
                   &out, "a band of rows within the result");
    check_epilogue(&c, &out, &e.bias, &e.residual);
    ops_check_true(&c, !e.gate.rank && e.activation == ACTIVATION_NONE, "epilogue", &e.gate,
                   "only bias and residual");
    check_conv_overlap(&c, &out, &in, &e.residual, &options, weight.dim[2] / 2);
    if (options.norm.statistics.rank) check_group_norm(&c, &options.norm, in.dim[2]);
    ops_check_vector(&c, "pixel norm", &options.pixel_norm.weight, in.dim[2], true);
    ops_check_true(&c, !options.norm.statistics.rank || !conv_norms_pixels(&options), "pixel norm", &in,
                   "either a group norm or a pixel norm");
    ops_check_vector(&c, "slopes", &options.slopes, weight.dim[0], options.finish != FINISH_PRELU);
    check_adapters(&c, &weight);
    ops_check_true(&c, !weight.adapters || (options.finish == FINISH_NONE && options.scale == 0), "adapters",
                   &weight, "no scale or finish");
    if (c.ok && weight.adapters) {
        low_rank_conv(x, &(struct conv_call){out, in, weight, e, options}, weight.adapters);
        return;
    }
    if (options.scale == 0) options.scale = 1;
    ops_dispatch(&c, &(struct op){.kind = OP_CONV2D,
                                  .out = out,
                                  .in = {in, weight, e.bias, e.residual},
                                  .conv = options,
                                  .precision = x->precision});
}

/* Checks a Wan 2.2 shortcut. fine: the image of higher resolution; coarse: the image of lower resolution; its
 * channel count divides the number of fine values per coarse pixel. */
static void check_shortcut(struct check *c, const struct tensor *out, const struct tensor *fine,
                           const struct tensor *coarse, const struct shortcut *s) {
    int32_t f = s->frames, side = s->side;
    ops_check_true(c, (f == 1 || f == 2) && (side == 1 || side == 2) && s->frame >= 0 && s->frame < f,
                   "shortcut", out, "frames 1 or 2, a valid frame index, side 1 or 2");
    ops_check_tensor(c, "coarse image", coarse, F32, 3, DIMS(-1, -1, -1));
    ops_check_tensor(c, "fine image", fine, F32, 3,
                     DIMS((int64_t)coarse->dim[0] * side, (int64_t)coarse->dim[1] * side, -1));
    if (!c->ok) return;
    int64_t values = (int64_t)fine->dim[2] * f * side * side;
    ops_check_true(c, values % coarse->dim[2] == 0, "coarse image", coarse,
                   "channels that divide the values");
}

/* Checks that `out` shares no memory with an input tensor, which may be absent. */
static void check_no_overlap(struct check *c, const struct tensor *out, const struct tensor *in) {
    ops_check_true(c, !in->rank || ops_no_overlap(out, in), "out", out,
                   "memory that does not overlap an input");
}

/* Checks the base tensor, which is added to `out`: absent, `out` itself, or without overlap. */
static void check_base(struct check *c, const struct tensor *out, const struct tensor *base) {
    if (base->rank) ops_check_like(c, "base", base, out);
    ops_check_true(c, !base->rank || base->data == out->data || ops_no_overlap(out, base), "out", out,
                   "base itself, or no overlap");
}

void op_mean_down(struct context *x, struct tensor out, struct tensor in, struct tensor before,
                  struct tensor base, struct shortcut shortcut) {
    struct check c = ops_check_begin(x, OP_MEAN_DOWN);
    check_shortcut(&c, &out, &in, &out, &shortcut);
    ops_check_true(&c, shortcut.frames == 2 || !before.rank, "before", &before,
                   "no earlier frame when frames is 1");
    if (before.rank) ops_check_like(&c, "before", &before, &in);
    check_no_overlap(&c, &out, &in);
    check_no_overlap(&c, &out, &before);
    check_base(&c, &out, &base);
    ops_dispatch(
        &c, &(struct op){.kind = OP_MEAN_DOWN, .out = out, .in = {in, before, base}, .shortcut = shortcut});
}

void op_repeat_up(struct context *x, struct tensor out, struct tensor in, struct tensor base,
                  struct shortcut shortcut) {
    struct check c = ops_check_begin(x, OP_REPEAT_UP);
    check_shortcut(&c, &out, &out, &in, &shortcut);
    check_no_overlap(&c, &out, &in);
    check_base(&c, &out, &base);
    ops_dispatch(&c, &(struct op){.kind = OP_REPEAT_UP, .out = out, .in = {in, base}, .shortcut = shortcut});
}

void op_latent_to_image(struct context *x, struct tensor out, struct tensor latent,
                        struct latent_format format) {
    struct check c = ops_check_begin(x, OP_LATENT_TO_IMAGE);
    ops_check_tensor(&c, "latent", &latent, F32, 3, DIMS(-1, -1, -1));
    ops_check_tensor(&c, "out", &out, F32, 3, DIMS(latent.dim[1], latent.dim[2], latent.dim[0]));
    ops_check_true(&c, format.n == 1 || (format.n == latent.dim[0] && format.n <= LATENT_VALUES_MAX),
                   "format", &latent, "a scale and a shift per channel, or one for all");
    ops_dispatch(&c, &(struct op){.kind = OP_LATENT_TO_IMAGE, .out = out, .in = {latent}, .format = format});
}

void op_image_to_rgb(struct context *x, struct tensor out, struct tensor in) {
    struct check c = ops_check_begin(x, OP_IMAGE_TO_RGB);
    ops_check_tensor(&c, "in", &in, F32, 3, DIMS(-1, -1, -1));
    ops_check_tensor(&c, "out", &out, U8, 3, DIMS(in.dim[0], in.dim[1], in.dim[2]));
    ops_dispatch(&c, &(struct op){.kind = OP_IMAGE_TO_RGB, .out = out, .in = {in}});
}

void op_map(struct context *x, struct tensor out, struct tensor in, enum map_form form, float parameter) {
    struct check c = ops_check_begin(x, OP_MAP);
    ops_check_rows(&c, "in", &in);
    struct tensor mapped = in;
    if (c.ok && form == MAP_MAGNITUDE) {
        ops_check_true(&c, tensor_columns(&in) % 2 == 0, "in", &in, "an even number of columns");
        mapped.dim[in.rank - 1] /= 2;
        check_no_overlap(&c, &out, &in);
    }
    ops_check_like(&c, "out", &out, &mapped);
    ops_dispatch(&c, &(struct op){.kind = OP_MAP, .out = out, .in = {in}, .map = form, .scale = parameter});
}

void op_snake(struct context *x, struct tensor out, struct tensor in, struct snake snake) {
    struct check c = ops_check_begin(x, OP_SNAKE);
    ops_check_tensor(&c, "in", &in, F32, 2, DIMS(-1, -1));
    ops_check_like(&c, "out", &out, &in);
    check_no_overlap(&c, &out, &in);
    ops_check_vector(&c, "alpha", &snake.alpha, in.dim[1], false);
    ops_check_vector(&c, "beta", &snake.beta, in.dim[1], false);
    ops_check_vector(&c, "upsampling filter", &snake.up, SNAKE_TAPS, false);
    ops_check_vector(&c, "downsampling filter", &snake.down, SNAKE_TAPS, false);
    ops_dispatch(&c, &(struct op){.kind = OP_SNAKE,
                                  .out = out,
                                  .in = {in, snake.alpha, snake.beta, snake.up, snake.down}});
}

void op_sinc_up(struct context *x, struct tensor out, struct tensor in, struct tensor base, int32_t ratio) {
    struct check c = ops_check_begin(x, OP_SINC_UP);
    ops_check_tensor(&c, "in", &in, F32, 2, DIMS(-1, -1));
    ops_check_true(&c, ratio >= 1 && ratio <= SINC_RATIO_MAX, "ratio", &in, "a ratio from 1 to 16");
    ops_check_tensor(&c, "out", &out, F32, 2, DIMS((int64_t)ratio * in.dim[0], in.dim[1]));
    check_no_overlap(&c, &out, &in);
    check_base(&c, &out, &base);
    ops_dispatch(&c, &(struct op){.kind = OP_SINC_UP, .out = out, .in = {in, base}, .ratio = ratio});
}
