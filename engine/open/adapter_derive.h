/* Factors that no file has as they are: what LoHa, LoKr and a LoRA with a middle add is a product of two
 * matrices, too, which are multiplied out in memory. Exact but for rounding to f32, once.
 *
 *   LoRA with a middle: B, A with A[a, i, y, x] = sum over b of mid[a, b, y, x] down[b, i].
 *   LoHa: (B1 A1) o (B2 A2) = B A with B[o, (j, k)] = B1[o, j] B2[o, k] and A[(j, k), i] = A1[j, i] A2[k, i],
 * of rank r1 r2; where it has a core t, A1[j, i, y, x] is the sum over k of t[j, k, y, x] w1_b[k, i], and B1
 * is w1_a transposed. LoKr: kron(P1 Q1, P2 Q2) = kron(P1, P2) kron(Q1, Q2), where a matrix that is whole is
 * its product with the unit matrix on its shorter side. So is a difference of a matrix. */
#ifndef SLUICE_OPEN_ADAPTER_DERIVE_H
#define SLUICE_OPEN_ADAPTER_DERIVE_H

#include "engine/open/adapter_file.h"

/* A module's factors: up [rows, rank], down [rank, columns]. */
struct derived_size {
    int64_t rows, columns, rank;
};

bool adapter_is_derived(const struct adapter_module *module);
/* Of a module that is. SHAPE where its parts do not fit each other, OVERFLOW. */
enum status adapter_derived_size(const struct adapter *adapter, const struct adapter_module *module,
                                 struct derived_size *size, struct error *e);
/* What a LoHa or LoKr multiplies, value by value or as Kronecker's product: two matrices up [rows, rank] .
 * down [rank, columns]. Whatever reading fails with; MEMORY. Freed with adapter_drop_halves, also on failure.
 */
struct derived_half {
    float *up, *down;
    int64_t rows, rank, columns;
};
enum status adapter_read_halves(const struct adapter *adapter, const struct adapter_module *module,
                                struct derived_half halves[2], struct error *e);
void adapter_drop_halves(const struct adapter *adapter, struct derived_half halves[2]);
/* Fills both, of that size. Whatever reading fails with; MEMORY. */
enum status adapter_derive(const struct adapter *adapter, const struct adapter_module *module, float *up,
                           float *down, struct error *e);

#endif
