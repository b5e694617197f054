/* Convolutions and group statistics computed in pieces give the bits of the computation in one piece. A
 * convolution may overwrite its own input if its output starts conv_lead bytes before the input; a smaller
 * distance is rejected. The environment variable SEED changes all random cases. */
#include "engine/base/random.h"
#include "test/lib/block_runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 40, COLUMNS_MOST = 1500, WORKSPACE = 64 << 20 };

static uint64_t random_state;
static struct eager eager;
static struct error problem;
static struct context x = {.device = &eager.device, .error = &problem};

static int32_t between(int32_t least, int32_t most) {
    return least + (int32_t)random_below(&random_state, (uint64_t)(most - least + 1));
}

static struct tensor filled(int rank, const int32_t *dim) {
    struct tensor t = test_tensor(DTYPE_F32, rank, dim);
    for (int64_t i = 0; i < tensor_elements(&t); i++)
        ((float *)t.data)[i] = (float)((double)random_below(&random_state, 20001) / 10000 - 1);
    return t;
}

static void assert_same(struct tensor a, struct tensor b) {
    assert_int_equal(tensor_elements(&a), tensor_elements(&b));
    assert_memory_equal(a.data, b.data, (size_t)tensor_bytes(&a));
}

/* Returns the smallest sufficient lead (distance in bytes from output to input) over all bands of up to
 * `band` rows at any position. */
static int64_t lead_needed(int32_t rows, int32_t band, int halo, int up, int64_t in_row, int64_t out_row) {
    int64_t most = 0;
    for (int32_t end = 1; end <= rows; end++)
        for (int32_t height = 1; height <= band && height <= end; height++) {
            int32_t first = end - height - halo;
            int64_t lead = end * out_row - (first > 0 ? first / up : 0) * in_row;
            if (lead > most) most = lead;
        }
    return most;
}

/* conv_lead (bytes from output to input) is at least the needed lead; only image edges may need less. */
static void test_lead_is_sufficient(void **state) {
    (void)state;
    for (int i = 0; i < 10 * CASES; i++) {
        int up = between(1, 2), halo = between(0, 2);
        int32_t rows = up * between(1, 100), columns = between(60, 3000), band = conv_band_rows(columns);
        rows -= between(0, up - 1); /* the upsampled image may be cropped by a row */
        int64_t in_row = between(1, 9), out_row = between(1, 9);
        int64_t needed = lead_needed(rows, band, halo, up, in_row, out_row);
        int64_t lead = conv_lead(rows, columns, halo, up, in_row, out_row);
        int64_t edge = ((band < rows ? band : rows) + halo + up) * in_row;
        assert_true(lead >= needed && lead <= needed + edge);
    }
    assert_true(conv_band_rows(1) == 8192 && conv_band_rows(1024) == 8 && conv_band_rows(1 << 14) == 4);
}

struct conv {
    struct tensor in, weight, out;
    struct epilogue epilogue;
    struct conv_options options;
};

static struct tensor conv_out(const struct tensor *in, int32_t channels, const struct conv_options *o) {
    return test_tensor(
        DTYPE_F32, 3,
        (int32_t[]){conv_size(in->dim[0], o, o->cut_row), conv_size(in->dim[1], o, o->cut_column), channels});
}

/* Makes a convolution of an image so wide that it is computed in several bands of few rows. */
static struct conv make_conv(int up) {
    static const int32_t channels[] = {3, 4, 8, 10, 16, 24, 32, 64};
    int32_t X = between(100, COLUMNS_MOST / up), Y = between(1, 60),
            k = 1 + 2 * (int)random_below(&random_state, 2);
    int32_t C = channels[random_below(&random_state, 8)], N = channels[random_below(&random_state, 8)];
    struct conv c = {.in = filled(3, (int32_t[]){Y, X, C}),
                     .weight = filled(4, (int32_t[]){N, C, k, k}),
                     .epilogue.bias = filled(1, &N),
                     .options = {.upsample = up, .activation = (enum activation)(k / 2)}};
    c.options.cut_row = between(0, up - 1);
    c.options.cut_column = between(0, up - 1);
    c.options.finish = between(0, 1) ? FINISH_RELU : FINISH_NONE;
    c.out = conv_out(&c.in, N, &c.options);
    if (k > 1 && up == 1)
        c.options.norm = (struct group_norm){filled(2, (int32_t[]){1, 2}), filled(1, &C), filled(1, &C)};
    return c;
}

static void run_conv(const struct conv *c, struct tensor out, struct tensor in, struct epilogue epilogue) {
    op_conv2d(&x, out, in, c->weight, epilogue, c->options);
}

/* Makes a convolution with more weights than fit the cache, which the CPU device computes in panels of output
 * channels. */
static struct conv make_panels(void) {
    int32_t C = 8 * between(116, 130), N = 288, dim[] = {N, C, 3, 3};
    struct conv c = {.in = filled(3, (int32_t[]){between(5, 20), between(100, 500), C}),
                     .weight = filled(4, dim),
                     .epilogue.bias = filled(1, &N),
                     .options = {.upsample = 1}};
    c.out = conv_out(&c.in, N, &c.options);
    return c;
}

/* Computes any rows of the convolution, from the whole input or from the needed rows only. */
static void test_pieces_equal_whole(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        struct conv c = i < CASES / 20 ? make_panels() : make_conv(between(1, 2));
        int32_t Y = c.out.dim[0], halo = c.weight.dim[2] / 2;
        if (between(0, 1)) c.epilogue.residual = filled(3, c.out.dim);
        run_conv(&c, c.out, c.in, c.epilogue);
        struct tensor pieces = test_tensor(DTYPE_F32, 3, c.out.dim);
        for (int32_t y = 0, n; y < Y; y += n) {
            n = between(1, Y - y < 20 ? Y - y : 20);
            int32_t from = y < halo ? 0 : y - halo, to = y + n + halo < Y ? y + n + halo : Y;
            bool rows_only = between(0, 1) && c.options.upsample == 1;
            struct epilogue e = c.epilogue;
            if (e.residual.rank) e.residual = tensor_slice(e.residual, y, n);
            c.options.first_row = rows_only ? y - from : y;
            run_conv(&c, tensor_slice(pieces, y, n), rows_only ? tensor_slice(c.in, from, to - from) : c.in,
                     e);
        }
        assert_ok(&problem);
        assert_same(c.out, pieces);
        test_memory_free_to(NULL);
    }
}

static struct tensor copy_to(char *memory, struct tensor t, int64_t at) {
    memcpy(memory + at, t.data, (size_t)tensor_bytes(&t));
    t.data = memory + at;
    return t;
}

/* The convolution's output overwrites its input, or the residual. */
static void test_output_may_overlap_input(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        struct conv c = make_conv(between(1, 2));
        struct epilogue e = c.epilogue;
        bool residual = between(0, 1);
        const struct tensor *over = residual ? &c.out : &c.in; /* the overwritten tensor: residual or input */
        if (residual) c.epilogue.residual = filled(3, c.out.dim);
        int halo = residual ? 0 : c.weight.dim[2] / 2, up = residual ? 1 : c.options.upsample;
        int64_t in_row = tensor_bytes(over) / over->dim[0], out_row = tensor_bytes(&c.out) / c.out.dim[0];
        int64_t lead = conv_lead(c.out.dim[0], c.out.dim[1], halo, up, in_row, out_row);
        run_conv(&c, c.out, c.in, c.epilogue);
        char *memory = test_memory((size_t)(lead + tensor_bytes(&c.in) + 2 * tensor_bytes(&c.out)));
        struct tensor out = c.out, in = c.in;
        out.data = memory;
        if (residual)
            e.residual = copy_to(memory, c.epilogue.residual, lead);
        else
            in = copy_to(memory, c.in, lead);
        run_conv(&c, out, in, e);
        assert_ok(&problem);
        assert_same(c.out, out);
        /* with a lead of the output's size or more, output and overwritten tensor do not overlap */
        if (lead < tensor_bytes(&out)) {
            out.data = memory + 4;
            run_conv(&c, out, in, e);
            assert_int_equal(problem.code, INTERNAL);
            problem = (struct error){0};
        }
        test_memory_free_to(NULL);
    }
}

static struct conv make_strided(void) {
    static const int32_t channels[] = {3, 4, 8, 10, 16, 24, 32, 64};
    int32_t before = between(0, 1);
    int32_t X = 2 * between(50, COLUMNS_MOST / 2) - before * between(0, 1);
    int32_t Y = 2 * between(1, 30) - before * between(0, 1);
    int32_t C = channels[random_below(&random_state, 8)], N = channels[random_below(&random_state, 8)];
    struct conv c = {.in = filled(3, (int32_t[]){Y, X, C}),
                     .weight = filled(4, (int32_t[]){N, C, 3, 3}),
                     .epilogue.bias = filled(1, &N),
                     .options = {.upsample = 1, .stride = 2, .pad_before = before}};
    c.out = conv_out(&c.in, N, &c.options);
    return c;
}

/* A strided convolution in pieces has the bits of the whole result, except in the row at the padded side. */
static void test_strided_pieces_equal_whole(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        struct conv c = make_strided();
        int32_t rows = c.out.dim[0];
        run_conv(&c, c.out, c.in, c.epilogue);
        for (int32_t y = 0; y < rows;) {
            int32_t n = between(1, rows - y), left = c.in.dim[0] - 2 * y;
            int32_t wrong = c.options.pad_before && y,
                    same = n - (wrong || (!c.options.pad_before && y + n < rows));
            struct tensor piece = test_tensor(DTYPE_F32, 3, (int32_t[]){n, c.out.dim[1], c.out.dim[2]});
            run_conv(&c, piece, tensor_slice(c.in, 2 * y, 2 * n < left ? 2 * n : left), c.epilogue);
            if (same) assert_same(tensor_slice(c.out, y + wrong, same), tensor_slice(piece, wrong, same));
            y += same ? same : 1;
        }
        assert_ok(&problem);
        test_memory_free_to(NULL);
    }
}

/* Returns the lead at which every band is written before the input rows still to be read. */
static int64_t strided_lead(const struct conv *c) {
    int64_t in_row = tensor_bytes(&c->in) / c->in.dim[0], out_row = tensor_bytes(&c->out) / c->out.dim[0];
    int64_t most = 0;
    for (int32_t end = 1; end <= c->out.dim[0]; end++) {
        int64_t lead = end * out_row - (2 * end - c->options.pad_before) * in_row;
        most = lead > most ? lead : most;
    }
    return most;
}

/* The output of a strided convolution may start at its input, or before it where rows grow. */
static void test_strided_output_may_overlap_input(void **state) {
    int longer = 0;
    (void)state;
    for (int i = 0; i < CASES; i++) {
        struct conv c = make_strided();
        int64_t lead = strided_lead(&c);
        run_conv(&c, c.out, c.in, c.epilogue);
        char *memory = test_memory((size_t)(lead + tensor_bytes(&c.in) + tensor_bytes(&c.out)));
        struct tensor out = c.out, in = copy_to(memory, c.in, lead);
        out.data = memory;
        run_conv(&c, out, in, c.epilogue);
        assert_ok(&problem);
        assert_same(c.out, out);
        longer += lead > 0;
        out.data = memory + 4;
        run_conv(&c, out, in, c.epilogue);
        assert_int_equal(problem.code, INTERNAL);
        problem = (struct error){0};
        test_memory_free_to(NULL);
    }
    assert_true(longer > 0 && longer < CASES);
}

static void test_statistics_pieces_equal_whole(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        int32_t groups = between(1, 8), Y = between(1, 50), dim[2] = {groups, 2};
        struct tensor in = filled(3, (int32_t[]){Y, between(1, 60), groups * between(1, 6)});
        struct tensor whole = test_tensor(DTYPE_F32, 2, dim), pieces = test_tensor(DTYPE_F32, 2, dim);
        struct rows_before before = {.sums = test_tensor(DTYPE_F64, 2, dim)};
        memset(before.sums.data, 0xff, (size_t)tensor_bytes(&before.sums));
        op_group_statistics(&x, whole, in, (struct rows_before){0}, groups, 1e-6f);
        for (int32_t y = 0, n; y < Y; y += n) {
            n = between(1, Y - y);
            before.rows = y;
            op_group_statistics(&x, pieces, tensor_slice(in, y, n), before, groups, 1e-6f);
        }
        assert_ok(&problem);
        assert_same(whole, pieces);
        test_memory_free_to(NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lead_is_sufficient),
        cmocka_unit_test(test_pieces_equal_whole),
        cmocka_unit_test(test_output_may_overlap_input),
        cmocka_unit_test(test_strided_pieces_equal_whole),
        cmocka_unit_test(test_strided_output_may_overlap_input),
        cmocka_unit_test(test_statistics_pieces_equal_whole),
    };
    const char *seed = getenv("SEED");
    random_state = seed ? strtoull(seed, NULL, 0) : 1;
    sys_init_machine(&golden_state.sys);
    golden_state.device = device_open(&golden_state.sys, "cpu", GOLDEN_THREADS, false, &problem);
    eager = eager_open(golden_state.device);
    int n = COUNT_OF(tests), failed = eager.target ? cmocka_run_group_tests(tests, NULL, NULL) : n;
    eager_close(&eager);
    if (eager.target) eager.target->destroy(eager.target);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}
