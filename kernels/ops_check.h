/* Checks of the operator wrappers: types, shapes and addresses of tensors. A wrapper begins a struct check,
 * checks each tensor, and calls ops_dispatch. */
#ifndef SLUICE_KERNELS_OPS_CHECK_H
#define SLUICE_KERNELS_OPS_CHECK_H

#include "kernels/ops.h"

enum { OPERAND_ALIGN = 16 }; /* alignment of operand rows, in bytes */

/* Element types that an operator accepts for one of its tensors. */
enum elements { F32, OPERANDS, F64, U8, WEIGHTS };

/* State of the checks of one operator call. The first failed check sets the context's error; later checks do
 * nothing. */
struct check {
    struct context *x;
    enum op_kind kind;
    bool ok;
};

#define DIMS(...)                                                                                            \
    (const int64_t[]) {                                                                                      \
        __VA_ARGS__                                                                                          \
    }

/* Begins the checks of a call; all checks do nothing if the context has an error. */
struct check ops_check_begin(struct context *x, enum op_kind kind);
/* Writes a tensor's type, dimensions and row stride for a message. */
void ops_format_tensor(const struct tensor *t, char *out, size_t out_bytes);
/* True if a tensor descriptor has a valid rank and positive dimensions. Quantisation blocks must fill each
 * row, or cross rows and fill the whole tensor. Types with separate scales or rotation cannot cross rows. */
bool ops_tensor_valid(const struct tensor *t);
/* Checks a tensor's element type, rank and dimensions; dimension -1: any size. */
void ops_check_tensor(struct check *c, const char *what, const struct tensor *t, enum elements elements,
                      int rank, const int64_t *dim);
/* Checks that a tensor's rows have no gaps. */
void ops_check_packed(struct check *c, const char *what, const struct tensor *t);
/* Fails unless `fits`. what, t, expected: name, value and condition for the message. */
void ops_check_true(struct check *c, bool fits, const char *what, const struct tensor *t,
                    const char *expected);
/* Checks a vector of n values (-1: any number) of any weight type. */
void ops_check_vector(struct check *c, const char *what, const struct tensor *t, int64_t n, bool optional);
/* Checks an f32 tensor that must have the dimensions of another tensor. */
void ops_check_like(struct check *c, const char *what, const struct tensor *t, const struct tensor *other);
/* True if two tensors share no byte between their first and last rows, or one of the tensors has no address
 * yet. */
bool ops_no_overlap(const struct tensor *a, const struct tensor *b);
/* Checks an operand of a product or of attention: f32, or the type that the device rounds operands to, at a
 * multiple of 16 bytes. */
void ops_check_operand(struct check *c, const char *what, const struct tensor *t, const int64_t dim[2]);
/* Checks a result with the dimensions of `in`: f32, or the type that the device rounds operands to. */
void ops_check_result(struct check *c, const struct tensor *out, const struct tensor *in);
/* Checks that an aliased result has its input's type: other element sizes would overwrite unread values. */
void ops_check_in_place(struct check *c, const struct tensor *out, const struct tensor *in);
/* Checks a tensor of f32 rows of any rank from 1 on. */
void ops_check_rows(struct check *c, const char *what, const struct tensor *t);
/* Unless a check failed: waits for the operands (await), runs the operator, and counts its FLOPs. */
void ops_dispatch(struct check *c, const struct op *op);

#endif
