/* Values of adapter tensors, and the conversion of LoHa, LoKr, LoRA with a middle factor (lora_mid) and
 * matrix differences to LoRA form: two low-rank factors in memory. Exact except for one rounding to f32.
 *
 *   LoRA with a middle: B, A with A[a, i, y, x] = sum over b of mid[a, b, y, x] down[b, i].
 *   LoHa: (B1 A1) o (B2 A2) = B A with B[o, (j, k)] = B1[o, j] B2[o, k] and A[(j, k), i] = A1[j, i] A2[k, i],
 *         of rank r1 r2. With a core t, A1[j, i, y, x] is the sum over k of t[j, k, y, x] w1_b[k, i], and B1
 *         is w1_a transposed.
 *   LoKr: kron(P1 Q1, P2 Q2) = kron(P1, P2) kron(Q1, Q2).
 *
 * A matrix without factors, also a matrix difference, counts as its product with the identity matrix on its
 * shorter side. */
#ifndef SLUICE_OPEN_ADAPTER_FACTORS_H
#define SLUICE_OPEN_ADAPTER_FACTORS_H

#include "engine/open/adapter_file.h"

/* Reads all factors of an adapter once. NONFINITE, with the tensor's name, if a value is NaN or infinite.
 * Call before a run; a plan does not need this check. */
enum status adapter_check_finite(const struct adapter *adapter, struct error *e);

/* Sizes of the two factors in LoRA form: up [rows, rank], down [rank, columns]. */
struct derived_size {
    int64_t rows, columns, rank;
};

/* True if the module must be converted to LoRA form: LoHa, LoKr, lora_mid or a matrix difference. */
bool adapter_is_derived(const struct adapter_module *module);
/* Computes the sizes of a module's two factors in LoRA form. SHAPE: inconsistent tensors of the module.
 * OVERFLOW: a size exceeds its integer type. */
enum status adapter_derived_size(const struct adapter *adapter, const struct adapter_module *module,
                                 struct derived_size *size, struct error *e);
/* Computes the factors up and down, with the sizes of adapter_derived_size. Fails with MEMORY or an error of
 * reading. */
enum status adapter_derive(const struct adapter *adapter, const struct adapter_module *module, float *up,
                           float *down, struct error *e);

/* One of the two matrices of a LoHa or LoKr module, as up [rows, rank] times down [rank, columns]. LoHa
 * multiplies the two matrices elementwise, LoKr forms their Kronecker product. */
struct derived_half {
    float *up, *down;
    int64_t rows, rank, columns;
};
/* Reads the two matrices of a LoHa or LoKr module. Fails with MEMORY or an error of reading. Free with
 * adapter_drop_halves in any case. */
enum status adapter_read_halves(const struct adapter *adapter, const struct adapter_module *module,
                                struct derived_half halves[2], struct error *e);
void adapter_drop_halves(const struct adapter *adapter, struct derived_half halves[2]);

#endif
