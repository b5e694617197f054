/* Test cases of the shortcuts around the levels of a video VAE. Expected values follow diffusers 0.42
 * (AvgDown3D and DupUp3D), value by value. */
#include "test/lib/ops_cases.h"

static struct tensor shortcut_base(const struct tensor *out, int place) {
    if (place == 0) return absent;
    return place == 2 ? *out : tensor_random(DTYPE_F32, 3, out->dim, 0, 1);
}

/* Returns value `k` of the group of pixels at the finer level that one pixel of the coarser level covers. */
static double fine_value(const struct tensor frames[2], const struct shortcut *s, int64_t y, int64_t xx,
                         int64_t k) {
    int64_t area = s->side * s->side, c = k / (s->frames * area), place = k % area;
    const struct tensor *frame = &frames[s->frames == 1 ? 1 : k / area % 2];
    int64_t row = y * s->side + place / s->side, column = xx * s->side + place % s->side;
    return frame->rank ? load(frame, row * frame->dim[1] + column, c) : 0;
}

/* Checks downsampling by means. rows, columns: size of the smaller image. `place` 0: nothing is added; 1: the
 * output is separate from the addend; 2: the output overwrites the addend. */
static void case_mean_down(int32_t rows, int32_t columns, int32_t c, int32_t n, struct shortcut s,
                           int place) {
    case_begin();
    int32_t fine[3] = {rows * s.side, columns * s.side, c}, run = c * s.frames * s.side * s.side / n;
    struct tensor frames[2] = {absent, tensor_random(DTYPE_F32, 3, fine, place, 1)};
    if (s.frames == 2 && place != 1) frames[0] = tensor_random(DTYPE_F32, 3, fine, 0, 1);
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(rows, columns, n), place, 1);
    struct tensor base = shortcut_base(&out, place);
    double *truth = op_truth(&out);
    for (int64_t i = 0; i < tensor_elements(&out); i++) {
        int64_t pixel = i / n, first = i % n * run;
        truth[i] = base.rank ? load(&base, pixel, i % n) : 0;
        for (int64_t k = first; k < first + run; k++)
            truth[i] += fine_value(frames, &s, pixel / columns, pixel % columns, k) / run;
    }
    op_mean_down(&x, out, frames[1], frames[0], base, s);
    op_expect(OP_MEAN_DOWN, &out, truth);
}

static void case_repeat_up(int32_t rows, int32_t columns, int32_t c, int32_t n, struct shortcut s,
                           int place) {
    case_begin();
    int32_t side = s.side, each = s.frames * side * side, repeats = n * each / c;
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(rows, columns, c), place, 1);
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(rows * side, columns * side, n), place, 1);
    struct tensor base = shortcut_base(&out, place);
    double *truth = op_truth(&out);
    for (int64_t i = 0; i < tensor_elements(&out); i++) {
        int64_t pixel = i / n, y = pixel / (columns * side), xx = pixel % (columns * side);
        int64_t value = i % n * each + (s.frame * side + y % side) * side + xx % side;
        truth[i] = (base.rank ? load(&base, pixel, i % n) : 0) +
                   load(&in, y / side * columns + xx / side, value / repeats);
    }
    op_repeat_up(&x, out, in, base, s);
    op_expect(OP_REPEAT_UP, &out, truth);
}

/* Tests Wan 2.2's channel ratios at small sizes, further channel ratios, and the first frame of a video
 * alone. */
void case_shortcuts(void) {
    static const struct {
        int32_t rows, columns, c, n;
        struct shortcut s;
    } downs[] = {{3, 5, 20, 20, {1, 2, 0}}, {3, 5, 20, 40, {2, 2, 0}}, {4, 3, 40, 40, {2, 2, 0}},
                 {3, 5, 24, 12, {1, 1, 0}}, {5, 13, 3, 1, {2, 2, 0}},  {2, 7, 6, 16, {2, 2, 0}},
                 {3, 5, 5, 5, {2, 1, 0}}},
      ups[] = {{3, 5, 32, 32, {2, 2, 0}}, {3, 5, 32, 32, {2, 2, 1}}, {4, 3, 32, 16, {1, 2, 0}},
               {2, 7, 6, 9, {2, 2, 1}},   {1, 1, 8, 1, {2, 2, 0}},   {3, 4, 7, 21, {1, 1, 0}},
               {2, 3, 5, 5, {2, 1, 1}}};
    for (int i = 0; i < 7; i++)
        for (int place = 0; place < 3; place++) {
            case_mean_down(downs[i].rows, downs[i].columns, downs[i].c, downs[i].n, downs[i].s, place);
            case_repeat_up(ups[i].rows, ups[i].columns, ups[i].c, ups[i].n, ups[i].s, place);
        }
}
