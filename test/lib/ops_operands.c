#include "test/lib/ops_operands.h"

#include "engine/base/half.h"

#include <sys/mman.h>

struct context x;
struct error problem;
char *pool;
size_t pool_used;
void *(*operand_alloc)(size_t bytes);
void (*operand_free_all)(void);
double (*operand_rounding)(double value);

void expect_error_text(const char *part) {
    char line[1200];
    assert_int_equal(problem.code, INTERNAL);
    error_line(&problem, line, sizeof line);
    if (!strstr(line, part)) fail_msg("%s", line);
    problem = (struct error){0};
}

double nearest_bf16(double value) {
    int exponent;
    if (value == 0 || !isfinite(value)) return value;
    frexp(value, &exponent);
    if (exponent < -125) exponent = -125; /* f32 subnormals have the step of the smallest normal numbers */
    return ldexp(nearbyint(ldexp(value, 8 - exponent)), exponent - 8);
}

double nearest_f16(double value) {
    int exponent;
    if (value == 0 || !isfinite(value)) return value;
    frexp(value, &exponent);
    if (exponent < -13) exponent = -13;
    double nearest = ldexp(nearbyint(ldexp(value, 11 - exponent)), exponent - 11);
    return fabs(nearest) < 65536 ? nearest : copysign(INFINITY, value);
}

double rounded(double value) {
    return operand_rounding ? operand_rounding(value) : value;
}

void pool_open(void) {
    pool = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(pool != MAP_FAILED);
}

uint64_t hash_out(const struct op *op) {
    uint64_t h = 0xcbf29ce484222325u;
    int64_t bytes = (int64_t)tensor_columns(&op->out) * dtype_bits(op->out.dtype) / 8;
    for (int64_t i = 0; i < tensor_rows(&op->out); i++)
        for (int64_t j = 0; j < bytes; j++)
            h = (h ^ ((unsigned char *)op->out.data)[i * op->out.row_bytes + j]) * 0x100000001b3u;
    return h;
}

uint64_t random_state;

uint64_t random_bits(void) {
    return random_next(&random_state);
}

int random_int(int least, int most) {
    return least + (int)(random_bits() % (uint64_t)(most - least + 1));
}

float random_value(void) {
    return (float)((double)(random_bits() >> 40) / (1 << 23) - 1);
}

void *pool_alloc(size_t bytes) {
    void *p = pool + pool_used;
    pool_used += (bytes + 511) / 256 * 256;
    assert_true(pool_used <= POOL_BYTES);
    return p;
}

void *operand_memory(size_t bytes) {
    return operand_alloc ? operand_alloc(bytes) : pool_alloc(bytes);
}

void case_begin(void) {
    pool_used = 0;
    if (operand_free_all) operand_free_all();
}

uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Rounds an f32 to f16 towards zero; only for values that are normal in f16. */
static uint16_t narrow_f16(float value) {
    uint32_t bits = bits_of(value);
    int exponent = (int)(bits >> 23 & 255) - 112;
    if (exponent <= 0) return 0;
    return (uint16_t)((bits >> 16 & 0x8000) | (uint32_t)exponent << 10 | (bits >> 13 & 0x3ff));
}

static void store(struct tensor *t, int64_t row, int32_t column, float value) {
    char *at = (char *)t->data + row * t->row_bytes;
    if (t->dtype == DTYPE_F32)
        ((float *)at)[column] = value;
    else if (t->dtype == DTYPE_F16)
        ((uint16_t *)at)[column] = narrow_f16(value);
    else
        ((uint16_t *)at)[column] = (uint16_t)(bits_of(value) >> 16);
}

double load(const struct tensor *t, int64_t row, int64_t column) {
    const char *at = (const char *)t->data + row * t->row_bytes;
    if (t->dtype == DTYPE_F32) return ((const float *)at)[column];
    uint16_t h = ((const uint16_t *)at)[column];
    if (t->dtype == DTYPE_BF16) return (union float_bits){.bits = (uint32_t)h << 16}.value;
    int exponent = (h & 0x7fff) >> 10, mantissa = h & 0x3ff;
    double size = ldexp(exponent ? mantissa + 0x400 : mantissa, (exponent ? exponent : 1) - 25);
    return h & 0x8000 ? -size : size;
}

struct tensor tensor_random(enum dtype dtype, int rank, const int32_t *dim, int gap, double init_scale) {
    struct tensor t = tensor_make(NULL, dtype, rank, dim);
    t.row_bytes += (int64_t)gap * dtype_bits(dtype) / 8;
    t.data = operand_memory((size_t)(tensor_rows(&t) * t.row_bytes));
    memset(t.data, 0xff, (size_t)(tensor_rows(&t) * t.row_bytes));
    for (int64_t i = 0; i < tensor_rows(&t); i++)
        for (int32_t j = 0; j < tensor_columns(&t); j++) store(&t, i, j, random_value() * (float)init_scale);
    return t;
}

const struct tensor absent;
