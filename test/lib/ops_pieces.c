/* Convolutions and group statistics computed in pieces or over their own input, compared with the result of
 * one call. */
#include "test/lib/ops_tests.h"

struct conv {
    struct tensor in, weight, out;
    struct epilogue epilogue;
    struct conv_options options;
};

static int32_t channels(void) {
    static const int32_t counts[] = {3, 4, 8, 10, 16, 24, 32, 64};
    return counts[random_int(0, ops_on == ON_CPU ? 7 : 5)];
}

static struct tensor random_f32(int rank, const int32_t *dim) {
    return tensor_random(DTYPE_F32, rank, dim, 0, 1);
}

static void conv_give_out(struct conv *c) {
    const struct conv_options *o = &c->options;
    c->out = random_f32(SHAPE(conv_size(c->in.dim[0], o, o->cut_row),
                              conv_size(c->in.dim[1], o, o->cut_column), c->weight.dim[0]));
}

/* Makes a convolution of an image so wide that it is computed in several bands of few rows. A GPU's bands are
 * eight times as large; on a GPU some images are wide enough for several. */
static struct conv make_conv(void) {
    bool small = ops_on == ON_TSAN, wide = ops_on != ON_CPU && !small && random_int(0, 3) == 0;
    int up = random_int(1, 2);
    int32_t columns = wide ? 16384 / up : random_int(small ? 5 : 100, small ? 9 : 1200 / up),
            rows = random_int(1, wide    ? 18 / up
                                 : small ? 6
                                         : 40);
    int32_t k = 1 + 2 * random_bool(), c = wide ? 4 : channels(), n = wide ? 3 : channels();
    case_begin();
    struct conv v = {.in = random_f32(SHAPE(rows, columns, c)),
                     .weight = tensor_random(random_dtype(), SHAPE(n, c, k, k), 0, 1),
                     .epilogue.bias = tensor_random(random_dtype(), SHAPE(n), 0, 1),
                     .options = {.upsample = up,
                                 .activation = (enum activation)(k / 2),
                                 .finish = random_bool() ? FINISH_RELU : FINISH_NONE}};
    if (up == 2) v.options.cut_row = random_bool(), v.options.cut_column = random_bool();
    if (up == 1 && (k == 1 || random_bool()))
        v.options.pixel_norm = (struct pixel_norm){tensor_random(random_dtype(), SHAPE(c), 0, 1), 1e-5f};
    else if (up == 1)
        v.options.norm = (struct group_norm){
            random_f32(SHAPE(1, 2)), tensor_random(random_dtype(), SHAPE(c), 0, 1), random_f32(SHAPE(c))};
    conv_give_out(&v);
    if (random_bool()) v.epilogue.residual = random_f32(3, v.out.dim);
    return v;
}

/* Makes a convolution with more weights than fit the cache, which the CPU device computes in panels of output
 * channels. */
static struct conv make_panels(void) {
    int32_t c = 8 * random_int(116, 130), n = 288;
    case_begin();
    struct conv v = {.in = random_f32(SHAPE(random_int(5, 20), random_int(100, 200), c)),
                     .weight = random_f32(SHAPE(n, c, 3, 3)),
                     .epilogue.bias = random_f32(SHAPE(n)),
                     .options = {.upsample = 1}};
    conv_give_out(&v);
    return v;
}

static struct conv make_strided(void) {
    bool small = ops_on == ON_TSAN;
    int32_t before = random_bool();
    int32_t columns = 2 * random_int(small ? 1 : 50, small ? 4 : 700) - before * random_bool();
    int32_t rows = 2 * random_int(1, small ? 3 : 30) - before * random_bool(), c = channels(), n = channels();
    case_begin();
    struct conv v = {.in = random_f32(SHAPE(rows, columns, c)),
                     .weight = tensor_random(random_dtype(), SHAPE(n, c, 3, 3), 0, 1),
                     .epilogue.bias = random_f32(SHAPE(n)),
                     .options = {.upsample = 1, .stride = 2, .pad_before = before}};
    conv_give_out(&v);
    return v;
}

static void assert_same(struct tensor a, struct tensor b) {
    assert_ok(&problem);
    assert_int_equal(tensor_elements(&a), tensor_elements(&b));
    assert_memory_equal(a.data, b.data, (size_t)tensor_bytes(&a));
}

/* Computes any rows of the convolution, from the whole input or from the needed rows only. */
void test_conv_pieces(void **state) {
    for (int i = 0; i < ops_pictures; i++) {
        random_state = 100 + (uint64_t)i;
        struct conv c = ops_on == ON_CPU && i == 0 ? make_panels() : make_conv();
        struct tensor pieces = random_f32(3, c.out.dim);
        int32_t rows = c.out.dim[0], halo = c.weight.dim[2] / 2;
        op_conv2d(&x, c.out, c.in, c.weight, c.epilogue, c.options);
        for (int32_t y = 0, n; y < rows; y += n) {
            n = random_int(1, rows - y < 20 ? rows - y : 20);
            int32_t from = y < halo ? 0 : y - halo, to = y + n + halo < rows ? y + n + halo : rows;
            bool needed_only = random_bool() && c.options.upsample == 1;
            struct epilogue e = c.epilogue;
            if (e.residual.rank) e.residual = tensor_slice(e.residual, y, n);
            c.options.first_row = needed_only ? y - from : y;
            op_conv2d(&x, tensor_slice(pieces, y, n),
                      needed_only ? tensor_slice(c.in, from, to - from) : c.in, c.weight, e, c.options);
        }
        assert_same(c.out, pieces);
    }
}

/* A strided convolution in pieces has the bits of the whole result, except in the row at the padded side. */
void test_conv_strided_pieces(void **state) {
    for (int i = 0; i < ops_pictures; i++) {
        random_state = 150 + (uint64_t)i;
        struct conv c = make_strided();
        int32_t rows = c.out.dim[0];
        op_conv2d(&x, c.out, c.in, c.weight, c.epilogue, c.options);
        for (int32_t y = 0; y < rows;) {
            int32_t n = random_int(1, rows - y), left = c.in.dim[0] - 2 * y;
            int32_t wrong = c.options.pad_before && y,
                    same = n - (wrong || (!c.options.pad_before && y + n < rows));
            struct tensor piece = random_f32(SHAPE(n, c.out.dim[1], c.out.dim[2]));
            op_conv2d(&x, piece, tensor_slice(c.in, 2 * y, 2 * n < left ? 2 * n : left), c.weight, c.epilogue,
                      c.options);
            if (same) assert_same(tensor_slice(c.out, y + wrong, same), tensor_slice(piece, wrong, same));
            y += same ? same : 1;
        }
        assert_ok(&problem);
    }
}

/* Runs the convolution with its output `lead` bytes before a copy of its input or residual, then with a
 * smaller lead, which must be rejected if the tensors overlap. */
static void expect_overlap(const struct conv *c, bool over_residual, int64_t lead) {
    struct tensor over = over_residual ? c->epilogue.residual : c->in, out = c->out, in = c->in;
    struct epilogue e = c->epilogue;
    op_conv2d(&x, c->out, c->in, c->weight, c->epilogue, c->options);
    out.data = operand_memory((size_t)(lead + tensor_bytes(&over) + tensor_bytes(&out)));
    const void *from = over.data;
    over.data = (char *)out.data + lead;
    memcpy(over.data, from, (size_t)tensor_bytes(&over));
    *(over_residual ? &e.residual : &in) = over;
    op_conv2d(&x, out, in, c->weight, e, c->options);
    assert_same(c->out, out);
    if (lead >= tensor_bytes(&out)) return;
    out.data = (char *)out.data + 4;
    op_conv2d(&x, out, in, c->weight, e, c->options);
    assert_int_equal(problem.code, INTERNAL);
    problem = (struct error){0};
}

void test_conv_overlap(void **state) {
    for (int i = 0; i < ops_pictures; i++) {
        random_state = 200 + (uint64_t)i;
        struct conv c = make_conv();
        bool residual = c.epilogue.residual.rank;
        int halo = residual ? 0 : c.weight.dim[2] / 2, up = residual ? 1 : c.options.upsample;
        const struct tensor *over = residual ? &c.out : &c.in;
        int64_t in_row = tensor_bytes(over) / over->dim[0], out_row = tensor_bytes(&c.out) / c.out.dim[0];
        expect_overlap(&c, residual, conv_lead(c.out.dim[0], c.out.dim[1], halo, up, in_row, out_row));
    }
}

void test_conv_strided_overlap(void **state) {
    int longer = 0;
    for (int i = 0; i < ops_pictures; i++) {
        random_state = 250 + (uint64_t)i;
        struct conv c = make_strided();
        int64_t in_row = tensor_bytes(&c.in) / c.in.dim[0], out_row = tensor_bytes(&c.out) / c.out.dim[0];
        /* the lead at which every band is written before the input rows still to be read */
        int64_t lead = 0;
        for (int32_t end = 1; end <= c.out.dim[0]; end++) {
            int64_t needed = end * out_row - (2 * end - c.options.pad_before) * in_row;
            lead = needed > lead ? needed : lead;
        }
        expect_overlap(&c, false, lead);
        longer += lead > 0;
    }
    assert_true(longer > 0 && longer < ops_pictures);
}

void test_statistics_pieces(void **state) {
    bool small = ops_on == ON_TSAN;
    for (int i = 0; i < ops_pictures; i++) {
        random_state = 300 + (uint64_t)i;
        int32_t groups = random_int(1, 8), rows = random_int(1, small ? 5 : 50);
        case_begin();
        struct tensor in = random_f32(SHAPE(rows, random_int(1, small ? 9 : 60), groups * random_int(1, 6)));
        struct tensor whole = random_f32(SHAPE(groups, 2)), pieces = random_f32(SHAPE(groups, 2));
        struct rows_before before = {.sums = tensor_make(NULL, DTYPE_F64, SHAPE(groups, 2))};
        before.sums.data = operand_memory((size_t)tensor_bytes(&before.sums));
        memset(before.sums.data, 0xff, (size_t)tensor_bytes(&before.sums));
        op_group_statistics(&x, whole, in, (struct rows_before){0}, groups, 1e-6f);
        for (int32_t y = 0, n; y < rows; y += n) {
            n = random_int(1, rows - y);
            before.rows = y;
            op_group_statistics(&x, pieces, tensor_slice(in, y, n), before, groups, 1e-6f);
        }
        assert_same(whole, pieces);
    }
}
