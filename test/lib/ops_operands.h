/* Operands of the operator tests: random tensors of any type in a pool, read and written value by value on
 * the host, and the context for operator calls. A device with its own operand memory sets operand_alloc. */
#ifndef SLUICE_TEST_OPS_OPERANDS_H
#define SLUICE_TEST_OPS_OPERANDS_H

#include "kernels/ops.h"
#include "test/lib/assert_ok.h"
#include "test/lib/seeded.h"

#include <math.h>
#include <string.h>

enum { POOL_BYTES = 512 << 20 };

extern struct context x;
extern struct error problem;
/* Expects that the last operator call failed with INTERNAL and an error line that contains `part`; clears the
 * error. */
void expect_error_text(const char *part);
extern char *pool;
extern size_t pool_used;

/* Allocates operands; NULL: operands come from the pool. */
extern void *(*operand_alloc)(size_t bytes);
extern void (*operand_free_all)(void);
/* Rounds the operands of products and attention as the device does; NULL: no rounding. */
extern double (*operand_rounding)(double value);

/* Rounds to bf16 (to nearest even) by arithmetic, without bit operations, unlike the engine. */
double nearest_bf16(double value);
/* The same for f16, with its subnormal numbers and infinities. */
double nearest_f16(double value);
double rounded(double value);
void pool_open(void);
uint64_t hash_out(const struct op *op);

extern uint64_t random_state;

uint64_t random_bits(void);
int random_int(int least, int most);
float random_value(void);

/* Allocates from the pool; the memory is valid until the next case. */
void *pool_alloc(size_t bytes);
void *operand_memory(size_t bytes);
void case_begin(void);
uint32_t bits_of(float value);
double load(const struct tensor *t, int64_t row, int64_t column);

/* Makes a tensor of random values in (-init_scale, init_scale). gap: number of unused elements between rows.
 */
struct tensor tensor_random(enum dtype dtype, int rank, const int32_t *dim, int gap, double init_scale);

#define SHAPE(...)                                                                                           \
    (int)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)), (int32_t[]) {                                 \
        __VA_ARGS__                                                                                          \
    }

extern const struct tensor absent;

#endif
