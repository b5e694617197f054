/* Checks of the operator wrappers, and the call of the device. */
#include "kernels/ops_check.h"

#include <stdio.h>

static bool elements_are(const struct context *x, enum dtype dtype, enum elements elements) {
    switch (elements) {
    case F32:
        return dtype == DTYPE_F32;
    case OPERANDS:
        return dtype == DTYPE_F32 || dtype == x->device->operands.in[x->precision];
    case F64:
        return dtype == DTYPE_F64;
    case U8:
        return dtype == DTYPE_U8;
    case WEIGHTS:
        return dtype_is_weight(dtype);
    }
    return false;
}

struct check ops_check_begin(struct context *x, enum op_kind kind) {
    return (struct check){x, kind, x->error->code == OK};
}

void ops_format_tensor(const struct tensor *t, char *out, size_t out_bytes) {
    int n = snprintf(out, out_bytes, "%s [", dtype_name(t->dtype));
    for (int i = 0; i < t->rank; i++)
        n += snprintf(out + n, out_bytes - (size_t)n, "%s%d", i ? ", " : "", (int)t->dim[i]);
    snprintf(out + n, out_bytes - (size_t)n, "], %lld bytes a row", (long long)t->row_bytes);
}

static void check_fail(struct check *c, const char *what, const struct tensor *found, const char *expected) {
    char shape[140];
    ops_format_tensor(found, shape, sizeof shape);
    error_set(c->x->error, INTERNAL, "operator %s: invalid %s" FOUND "%s" EXPECTED "%s", op_name(c->kind),
              what, shape, expected);
    c->ok = false;
}

bool ops_tensor_valid(const struct tensor *t) {
    int values = dtype_block_values(t->dtype), bytes = dtype_block_bytes(t->dtype);
    if (t->rank > TENSOR_RANK_MAX || !values) return false;
    for (int i = 0; i < t->rank; i++)
        if (t->dim[i] < 1) return false;
    bool grouped = t->scales || dtype_is_rotated(t->dtype);
    if (tensor_runs_on(t)) return !grouped && tensor_packed(t) && tensor_elements(t) % values == 0;
    return t->row_bytes % bytes == 0 && t->row_bytes >= dtype_bytes(t->dtype, tensor_columns(t));
}

void ops_check_tensor(struct check *c, const char *what, const struct tensor *t, enum elements elements,
                      int rank, const int64_t *dim) {
    enum { EIGHT = 8 };
    if (!c->ok) return;
    bool fits = t->rank == rank && elements_are(c->x, t->dtype, elements) && ops_tensor_valid(t);
    /* Quantisation blocks may cross row boundaries only in a few operators: products read eight values of a
     * row at a time. */
    if (fits && tensor_runs_on(t))
        fits = c->kind == OP_LINEAR || c->kind == OP_LINEAR_FEW
                   ? tensor_columns(t) % EIGHT == 0
                   : c->kind == OP_CONV2D || c->kind == OP_RELATIVE_BIAS;
    for (int i = 0; fits && i < rank; i++) fits = dim[i] < 0 || t->dim[i] == dim[i];
    if (fits) return;
    char expected[140];
    static const char *const words[] = {[F32] = "F32",
                                        [OPERANDS] = "F32 or the device's operand type",
                                        [F64] = "F64",
                                        [U8] = "U8",
                                        [WEIGHTS] = "any weight type"};
    int n = snprintf(expected, sizeof expected, "%s [", words[elements]);
    for (int i = 0; i < rank; i++)
        n += snprintf(expected + n, sizeof expected - (size_t)n, dim[i] < 0 ? "%sany" : "%s%lld",
                      i ? ", " : "", (long long)dim[i]);
    snprintf(expected + n, sizeof expected - (size_t)n, "]");
    check_fail(c, what, t, expected);
}

void ops_check_packed(struct check *c, const char *what, const struct tensor *t) {
    if (c->ok && !tensor_packed(t)) check_fail(c, what, t, "rows without gaps");
}

void ops_check_true(struct check *c, bool fits, const char *what, const struct tensor *t,
                    const char *expected) {
    if (c->ok && !fits) check_fail(c, what, t, expected);
}

void ops_check_vector(struct check *c, const char *what, const struct tensor *t, int64_t n, bool optional) {
    if (optional && t->rank == 0) return;
    ops_check_tensor(c, what, t, WEIGHTS, 1, DIMS(n));
}

void ops_check_like(struct check *c, const char *what, const struct tensor *t, const struct tensor *other) {
    int64_t dim[TENSOR_RANK_MAX];
    for (int i = 0; i < other->rank; i++) dim[i] = other->dim[i];
    ops_check_tensor(c, what, t, F32, other->rank, dim);
}

/* Returns the address after the last value of a tensor's last row. */
static uintptr_t end_of(const struct tensor *t) {
    int64_t last = (tensor_rows(t) - 1) * t->row_bytes;
    return (uintptr_t)t->data + (uintptr_t)(last + dtype_bytes(t->dtype, tensor_columns(t)));
}

bool ops_no_overlap(const struct tensor *a, const struct tensor *b) {
    return !a->data || !b->data || end_of(a) <= (uintptr_t)b->data || end_of(b) <= (uintptr_t)a->data;
}

void ops_check_operand(struct check *c, const char *what, const struct tensor *t, const int64_t dim[2]) {
    ops_check_tensor(c, what, t, OPERANDS, 2, dim);
    ops_check_true(c, t->dtype == DTYPE_F32 || (uintptr_t)t->data % OPERAND_ALIGN == 0, what, t,
                   "F32, or an address that is a multiple of 16");
}

void ops_check_result(struct check *c, const struct tensor *out, const struct tensor *in) {
    int64_t dim[TENSOR_RANK_MAX];
    for (int i = 0; i < in->rank; i++) dim[i] = in->dim[i];
    ops_check_tensor(c, "out", out, OPERANDS, in->rank, dim);
}

void ops_check_in_place(struct check *c, const struct tensor *out, const struct tensor *in) {
    ops_check_true(c, !in->rank || out->dtype == in->dtype || ops_no_overlap(out, in), "out", out,
                   "the type of the tensor that it overwrites");
}

void ops_check_rows(struct check *c, const char *what, const struct tensor *t) {
    ops_check_true(c, t->rank >= 1 && t->dtype == DTYPE_F32 && ops_tensor_valid(t), what, t,
                   "F32 rows, rank at least 1");
}

/* Rejects a weight with adapters in operators that would ignore the adapters. */
static void check_unadapted(struct check *c, const struct op *op) {
    const struct tensor *list[OP_OPERANDS_MAX];
    int n = c->ok ? op_operands(op, list) : 0;
    for (int i = 0; i < n; i++) {
        if (!list[i]->adapters || (op->kind == OP_LINEAR && list[i] == &op->in[1])) continue;
        if (!tensor_adapter_ranks(list[i])) continue;
        check_fail(c, "weight with adapters", list[i], "a weight of linear, linear_few or conv2d");
        c->x->error->code = UNSUPPORTED;
        return;
    }
}

void ops_dispatch(struct check *c, const struct op *op) {
    struct context *x = c->x;
    check_unadapted(c, op);
    if (!c->ok || (x->tick && !x->tick(x->tick_user))) return;
    struct op_cost cost = {0};
    x->device->cost(x->device, op, &cost);
    if (cost.workspace_bytes > x->workspace_bytes) {
        error_set(x->error, INTERNAL,
                  "operator %s: the workspace is too small" FOUND "%llu bytes" EXPECTED "%llu bytes",
                  op_name(op->kind), (unsigned long long)x->workspace_bytes,
                  (unsigned long long)cost.workspace_bytes);
        return;
    }
    const struct tensor *list[OP_OPERANDS_MAX];
    int n = x->await ? op_operands(op, list) : 0;
    for (int i = 0; i < n; i++)
        if (list[i]->rank && !x->await(x->await_user, list[i])) return;
    const struct low_rank *adapters = op->down_product.rank ? op->in[1].adapters : NULL;
    for (const struct low_rank *a = x->await ? adapters : NULL; a; a = a->next)
        if (!x->await(x->await_user, &a->up)) return;
    if (x->device->run(x->device, op, x->workspace, x->error) != OK) return;
    x->flops += op_flops(op);
    /* FLOPs of adapters inside this operator; adapters that run as separate operators count there. */
    if (op->kind == OP_LINEAR && op->skinny)
        x->adapter_flops += op_flops(op);
    else if (op->kind == OP_LINEAR && op->down_product.rank)
        x->adapter_flops += 2 * (double)tensor_elements(&op->out) * op->down_product.dim[1];
}
