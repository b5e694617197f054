#include "test/lib/tensor_notation.h"

#include "test/lib/golden.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* A part of a tensor. stride: bytes from one index of an axis to the next. */
struct view {
    char *data;
    int rank;
    int32_t dim[TENSOR_RANK_MAX];
    int64_t stride[TENSOR_RANK_MAX];
    size_t element; /* bytes of one element */
};

static struct view whole_view(struct tensor t) {
    struct view v = {.data = t.data, .rank = t.rank, .element = (size_t)dtype_bits(t.dtype) / 8};
    assert_true(tensor_packed(&t));
    int64_t stride = (int64_t)v.element;
    for (int i = t.rank - 1; i >= 0; i--) {
        v.dim[i] = t.dim[i];
        v.stride[i] = stride;
        stride *= t.dim[i];
    }
    return v;
}

static int32_t read_number(const char **at, int32_t absent) {
    if (!isdigit((unsigned char)**at)) return absent;
    char *end;
    int32_t number = (int32_t)strtol(*at, &end, 10);
    *at = end;
    return number;
}

/* Applies slices such as "[0,:,2:8]"; returns the text behind them. */
static const char *apply_slices(struct view *v, const char *at) {
    int axis = 0;
    while (*at != ']') {
        at++; /* the bracket or a comma */
        assert_true(axis < v->rank);
        int32_t first = read_number(&at, 0), last = first + 1, step = 1;
        bool is_range = *at == ':';
        if (is_range) {
            at++;
            last = read_number(&at, v->dim[axis]);
            if (*at == ':') at++, step = read_number(&at, 1);
        }
        assert_true((*at == ',' || *at == ']') && first < last && last <= v->dim[axis]);
        v->data += first * v->stride[axis];
        v->dim[axis] = (last - first + step - 1) / step;
        v->stride[axis] *= step;
        if (is_range) {
            axis++;
            continue;
        }
        v->rank--; /* a single index drops its axis */
        for (int i = axis; i < v->rank; i++) {
            v->dim[i] = v->dim[i + 1];
            v->stride[i] = v->stride[i + 1];
        }
    }
    return at + 1;
}

/* Applies a permutation such as "cyx->yxc". */
static void permute(struct view *v, const char *axes) {
    struct view from = *v;
    assert_int_equal(strlen(axes), 2 * (size_t)from.rank + strlen("->"));
    for (int i = 0; i < from.rank; i++) {
        const char *place = memchr(axes, axes[from.rank + 2 + i], (size_t)from.rank);
        assert_non_null(place);
        v->dim[i] = from.dim[place - axes];
        v->stride[i] = from.stride[place - axes];
    }
}

static struct view view_of(struct tensor t, const char *part) {
    struct view v = whole_view(t);
    if (*part == '[') part = apply_slices(&v, part);
    if (*part == ' ')
        permute(&v, part + 1);
    else
        assert_int_equal(*part, 0);
    return v;
}

/* Copies between the view, from axis `axis` on, and packed memory; returns the end of the latter. */
static char *copy_view(const struct view *v, int axis, char *data, char *packed, bool writes) {
    if (axis == v->rank || axis == TENSOR_RANK_MAX) {
        memcpy(writes ? data : packed, writes ? packed : data, v->element);
        return packed + v->element;
    }
    for (int32_t i = 0; i < v->dim[axis]; i++)
        packed = copy_view(v, axis + 1, data + i * v->stride[axis], packed, writes);
    return packed;
}

struct tensor notation_read(struct tensor from, const char *part) {
    struct view v = view_of(from, part);
    struct tensor out = test_tensor(from.dtype, v.rank, v.dim);
    copy_view(&v, 0, v.data, out.data, false);
    return out;
}

void notation_write(struct tensor to, const char *part, struct tensor from) {
    struct view v = view_of(to, part);
    int64_t n = 1;
    for (int i = 0; i < v.rank; i++) n *= v.dim[i];
    assert_int_equal(n, tensor_elements(&from));
    assert_int_equal(to.dtype, from.dtype);
    copy_view(&v, 0, v.data, from.data, true);
}
