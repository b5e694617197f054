/* Attention in int8 mode (kernels/cuda/attention_int8.cu): errors against f64 beside those of bf16 mode, on
 * data with equal channels, with channels of k that have a bias, and with tokens that are larger than others;
 * which calls use it; equal bits for unaligned operands and for groups of heads; values that are not finite.
 */
#include "test/device/cuda_checker.h"

#include "kernels/cuda/attention_int8.h"
#include "test/device/attention_groups.h"
#include "test/lib/cmocka_tests.h"

struct attention_data {
    int32_t t, s, heads, key_heads, d;
    enum dtype type; /* of q, k and v */
    int gap;         /* unused elements between rows */
    float bias;      /* deviation of a bias of k's channels; other values have a deviation of 1 */
    float outlier;   /* factor of every hundredth key */
};

static struct tensor q, k, v, out;

/* Nearly normal values of deviation 1. */
static float normal(void) {
    float sum = 0;
    for (int i = 0; i < 3; i++) sum += random_value();
    return sum;
}

static void put(const struct tensor *t, int64_t row, int64_t column, float value) {
    char *at = (char *)t->data + row * t->row_bytes;
    if (t->dtype == DTYPE_F32)
        ((float *)at)[column] = value;
    else
        ((uint16_t *)at)[column] = (uint16_t)(bits_of((float)nearest_bf16((double)value)) >> 16);
}

static void make(const struct attention_data *c) {
    case_begin();
    int32_t columns = c->heads * c->d, key_columns = c->key_heads * c->d;
    q = tensor_random(c->type, SHAPE(c->t, columns), c->gap, 1);
    k = tensor_random(c->type, SHAPE(c->s, key_columns), c->gap, 1);
    v = tensor_random(c->type, SHAPE(c->s, key_columns), c->gap, 1);
    out = tensor_random(DTYPE_F32, SHAPE(c->t, columns), c->gap, 1);
    for (int32_t row = 0; row < c->t; row++)
        for (int32_t i = 0; i < columns; i++) put(&q, row, i, normal());
    for (int32_t i = 0; i < key_columns; i++) {
        float bias = c->bias * normal();
        for (int32_t row = 0; row < c->s; row++) {
            float factor = row % 100 == 50 ? c->outlier : 1;
            put(&k, row, i, factor * normal() + bias), put(&v, row, i, factor * normal());
        }
    }
}

static void attend(const struct attention_data *c, enum precision precision) {
    x.precision = precision;
    op_attention(&x, out, q, k, v,
                 (struct attention_options){
                     .queries = c->heads, .keys = c->key_heads, .scale = 1 / sqrtf((float)c->d)});
    assert_ok(&problem);
}

/* Returns the relative error of every `step`-th row of the result. */
static double attention_error(const struct attention_data *c, int step) {
    double wrong = 0, all = 0, p[1024], scale = 1 / sqrt((double)c->d);
    assert_true(c->s <= 1024);
    for (int32_t row = 0; row < c->t; row += step)
        for (int32_t head = 0; head < c->heads; head++) {
            int64_t at = (int64_t)head * c->d, key_at = (int64_t)(head / (c->heads / c->key_heads)) * c->d;
            double most = -1e300, sum = 0;
            for (int32_t j = 0; j < c->s; j++) {
                p[j] = 0;
                for (int32_t i = 0; i < c->d; i++)
                    p[j] += load(&q, row, at + i) * load(&k, j, key_at + i) * scale;
                most = fmax(most, p[j]);
            }
            for (int32_t j = 0; j < c->s; j++) sum += p[j] = exp(p[j] - most);
            for (int32_t i = 0; i < c->d; i++) {
                double truth = 0;
                for (int32_t j = 0; j < c->s; j++) truth += p[j] / sum * load(&v, j, key_at + i);
                double off = load(&out, row, at + i) - truth;
                wrong += off * off, all += truth * truth;
            }
        }
    return sqrt(wrong / all);
}

/* The last row of a block and of a warp, one key in the last tile, shared key heads, padded heads, unaligned
 * rows. known: the measured error; 1.5 times as much is allowed. */
TEST(errors) {
    static const struct {
        const char *data;
        struct attention_data c;
        double known;
    } cases[] = {
        {"normal", {513, 257, 2, 1, 64, DTYPE_F32, 0, 0, 1}, 7.57e-3},
        {"normal", {512, 320, 1, 1, 96, DTYPE_BF16, 0, 0, 1}, 7.63e-3},
        {"normal", {545, 300, 1, 1, 128, DTYPE_BF16, 0, 0, 1}, 7.63e-3},
        {"padded", {512, 256, 1, 1, 71, DTYPE_F32, 1, 0, 1}, 7.50e-3},
        {"channel bias", {512, 300, 1, 1, 128, DTYPE_F32, 0, 4, 1}, 7.88e-3},
        {"large tokens", {512, 300, 1, 1, 128, DTYPE_F32, 0, 0, 6}, 1.15e-2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct attention_data *c = &cases[i].c;
        random_state = 1;
        make(c);
        attend(c, PRECISION_INT8);
        double found = attention_error(c, 7);
        attend(c, PRECISION_BF16);
        printf("  %-13s T %d, S %d, D %d: int8 %.2e, bf16 %.2e\n", cases[i].data, c->t, c->s, c->d, found,
               attention_error(c, 7));
        if (!(found <= 1.5 * cases[i].known))
            fail_msg("%s: error %.2e, measured %.2e", cases[i].data, found, cases[i].known);
    }
}

static uint64_t bits_of_call(const struct attention_data *c, enum precision precision) {
    random_state = 1;
    make(c);
    checker.bits = 0;
    attend(c, precision);
    return checker.bits;
}

/* Short calls, small heads and large heads are computed as in bf16 mode. */
TEST(which_calls) {
    static const struct attention_data plain[] = {{511, 256, 1, 1, 64, DTYPE_BF16, 0, 0, 1},
                                                  {512, 255, 1, 1, 64, DTYPE_BF16, 0, 0, 1},
                                                  {512, 256, 1, 1, 56, DTYPE_BF16, 0, 0, 1},
                                                  {512, 256, 1, 1, 136, DTYPE_BF16, 0, 0, 1}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        assert_true(bits_of_call(&plain[i], PRECISION_INT8) == bits_of_call(&plain[i], PRECISION_BF16));
    struct attention_data c = {512, 256, 1, 1, 64, DTYPE_BF16, 0, 0, 1};
    assert_true(bits_of_call(&c, PRECISION_INT8) != bits_of_call(&c, PRECISION_BF16));
}

/* Rule R1 (kernels/README.md): rows that are not aligned give the same bits. */
TEST(places_alike) {
    struct attention_data c = {512, 256, 1, 1, 64, DTYPE_F32, 0, 0, 1};
    uint64_t bits = bits_of_call(&c, PRECISION_INT8);
    c.gap = 3;
    checker.shift = 4;
    assert_true(bits_of_call(&c, PRECISION_INT8) == bits);
    checker.shift = 0;
}

static enum status run_in_groups(struct device *device, const struct op *op, void *unused, struct error *e) {
    struct int8_attention_layout l = int8_attention_layout_limited(op, 1);
    assert_int_equal(l.at_once, 1);
    memcpy(checker.snapshot, checker.operands, checker.used);
    assert_true(device_memory_put(checker.cuda, checker.together, checker.operands, checker.used));
    struct op moved = op_on_device(op);
    attention_in_groups(checker.cuda, &moved, 1, checker.workspace, e);
    checker_wait();
    assert_true(device_memory_get(checker.cuda, checker.operands, checker.together, checker.used));
    checker.bits = (checker.bits ^ take_bits(op)) * 0x100000001b3u;
    return OK;
}

/* Groups of heads, which save workspace in long videos, change no bits. */
TEST(groups_of_heads) {
    const struct attention_data c = {512, 256, 4, 2, 64, DTYPE_BF16, 0, 0, 1};
    uint64_t bits = bits_of_call(&c, PRECISION_INT8);
    checker.device.run = run_in_groups;
    uint64_t grouped = bits_of_call(&c, PRECISION_INT8);
    checker.device.run = checker_run;
    assert_true(grouped == bits);
    struct op wan = {.kind = OP_ATTENTION, .n = 40, .precision = PRECISION_INT8};
    for (int i = 0; i < 3; i++) wan.in[i] = tensor_make(NULL, DTYPE_BF16, SHAPE(32760, 5120));
    struct int8_attention_layout l = cuda_int8_attention_layout(&wan);
    assert_true(attention_is_int8(&wan));
    assert_int_equal(l.at_once, 14);
    assert_true(l.end - l.records <= INT8_RECORDS_MAX);
}

/* One non-finite value spreads to its row of the result (in q), its column (in v) or its head (in k) only. */
TEST(not_finite) {
    const struct attention_data c = {512, 256, 2, 2, 64, DTYPE_F32, 0, 0, 1};
    for (int where = 0; where < 3; where++) {
        random_state = 1;
        make(&c);
        put(where == 0 ? &q : where == 1 ? &k : &v, 100, 10, where == 2 ? INFINITY : NAN);
        attend(&c, PRECISION_INT8);
        for (int32_t row = 0; row < c.t; row++)
            for (int32_t i = 0; i < 2 * c.d; i++) {
                bool expected =
                    i < c.d && (where == 1 || (where == 0 && row == 100) || (where == 2 && i == 10));
                assert_int_equal(!isfinite(load(&out, row, i)), expected);
            }
    }
}

/* Cases with equal scores: a scale of 0, queries of 0, equal keys. */
TEST(equal_scores) {
    const struct attention_data c = {512, 256, 1, 1, 64, DTYPE_F32, 0, 0, 1};
    for (int how = 0; how < 3; how++) {
        make(&c);
        for (int32_t i = 0; i < c.d; i++) {
            for (int32_t row = 0; row < c.t && how == 1; row++) put(&q, row, i, 0);
            for (int32_t row = 0; row < c.s && how == 2; row++) put(&k, row, i, (float)i);
        }
        x.precision = PRECISION_INT8;
        op_attention(&x, out, q, k, v,
                     (struct attention_options){.queries = 1, .keys = 1, .scale = how ? -0.1f : 0});
        assert_ok(&problem);
        for (int32_t i = 0; i < c.d; i++) {
            double mean = 0;
            for (int32_t row = 0; row < c.s; row++) mean += load(&v, row, i) / c.s;
            for (int32_t row = 0; row < c.t; row += 101) assert_true(fabs(load(&out, row, i) - mean) <= 1e-3);
        }
    }
}

int main(void) {
    return run_all_tests(set_up, tear_down);
}
