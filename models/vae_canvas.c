/* The canvas: see vae_canvas.h. */
#include "models/vae_canvas.h"

static int64_t canvas_most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t canvas_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t canvas_in_rows(int64_t floats) {
    return (floats + CANVAS_ROW - 1) / CANVAS_ROW;
}

static int64_t canvas_picture_rows(int64_t Y, int64_t X, int64_t C) {
    return canvas_in_rows(Y * X * C);
}

/* Nothing needs more than to lie apart. */
static int64_t canvas_lead_rows(int64_t lead, int64_t out_rows) {
    return canvas_least(canvas_in_rows(lead), out_rows);
}

/* The next band's h begins one row before it, and that row is made from one more. */
static int64_t canvas_resnet_lead(int32_t Y, int32_t X, int32_t before, int32_t channels) {
    enum { HALO = 2 };
    int64_t lead = conv_lead(Y, X, HALO, 1, (int64_t)X * before, (int64_t)X * channels);
    return canvas_lead_rows(lead, canvas_picture_rows(Y, X, channels));
}

static int64_t canvas_upsample_lead(const struct canvas_level *from, const struct canvas_level *to) {
    int64_t in_row = (int64_t)from->X * from->channels, out_row = (int64_t)to->X * to->before;
    return canvas_lead_rows(conv_lead(to->Y, to->X, 1, 2, in_row, out_row),
                            canvas_picture_rows(to->Y, to->X, to->before));
}

/* Rows that a level needs with its first picture at *front, which is chosen as near to 0 as its resnets
 * allow. below: the level that its first picture is upsampled from; NULL for none. */
static int64_t canvas_measure_level(const struct canvas_level *l, const struct canvas_level *below,
                                    bool tiled, int64_t *front) {
    bool widens = l->before != l->channels;
    int64_t first = canvas_picture_rows(l->Y, l->X, l->before),
            h = canvas_picture_rows(l->Y, l->X, l->channels);
    int64_t lead = widens ? canvas_resnet_lead(l->Y, l->X, l->before, l->channels) : 0;
    int64_t up = first;
    if (below) up = canvas_picture_rows(below->Y, below->X, below->channels) + canvas_upsample_lead(below, l);
    *front = lead;
    if (!tiled) return lead + canvas_most(up, canvas_most(first, h) + h);
    if (2 * h > lead + up)
        *front += (l->n_resnets - widens) * canvas_resnet_lead(l->Y, l->X, l->channels, l->channels);
    return *front + up;
}

static int64_t canvas_measure_level_up(const struct canvas_level *l, bool deepest, int beside, bool tiled,
                                       int64_t *front) {
    int64_t rows = canvas_measure_level(l, deepest ? NULL : l - 1, tiled, front);
    return canvas_most(rows, *front + (1 + beside) * canvas_picture_rows(l->Y, l->X, l->channels));
}

/* A level whose resnets would go far to the front to save h is better off with room for h. */
int64_t canvas_measure_up(const struct canvas_level *levels, int n, int spare, bool tiled, int64_t *front) {
    int64_t rows = 0, banded_front;
    for (int i = 0; i < n; i++) {
        int beside = i == 0 ? spare : 0;
        if (i + 1 < n && !beside) beside = 1; /* it moves to the back */
        int64_t level = canvas_measure_level_up(&levels[i], i == 0, beside, false, &front[i]);
        int64_t banded = canvas_measure_level_up(&levels[i], i == 0, beside, tiled, &banded_front);
        if (banded < level) front[i] = banded_front;
        rows = canvas_most(rows, canvas_least(level, banded));
    }
    return rows;
}

/* Downsampled pictures go to row 0 first, so the next level's is there or lies behind that. */
static int64_t canvas_measure_level_down(const struct canvas_level *l, bool downsampled, int beside,
                                         bool tiled, int64_t *front) {
    int64_t rows = canvas_measure_level(l, NULL, tiled, front),
            first = canvas_picture_rows(l->Y, l->X, l->before);
    int64_t further = downsampled && *front && *front < first ? first - *front : 0;
    *front += further;
    return canvas_most(rows + further, *front + (1 + beside) * canvas_picture_rows(l->Y, l->X, l->channels));
}

/* As upwards. */
int64_t canvas_measure_down(const struct canvas_level *levels, int n, int spare, bool tiled, int64_t *front) {
    int64_t rows = 0, banded_front;
    for (int i = 0; i < n; i++) {
        int beside = i + 1 == n ? spare : 0;
        int64_t level = canvas_measure_level_down(&levels[i], i > 0, beside, false, &front[i]);
        int64_t banded = canvas_measure_level_down(&levels[i], i > 0, beside, tiled, &banded_front);
        if (banded < level) front[i] = banded_front;
        rows = canvas_most(rows, canvas_least(level, banded));
    }
    return rows;
}

static struct tensor canvas_picture_at(const struct canvas *canvas, int64_t at, int32_t Y, int32_t X,
                                       int32_t C) {
    int32_t dim[3] = {Y, X, C};
    struct tensor t = tensor_make(canvas->memory.data, DTYPE_F32, 3, dim);
    if (t.data) t.data = (char *)t.data + at * canvas->memory.row_bytes;
    return t;
}

struct tensor canvas_put(struct canvas *canvas, int64_t at, int32_t Y, int32_t X, int32_t C) {
    canvas->at = at;
    canvas->picture = canvas_picture_at(canvas, at, Y, X, C);
    return canvas->picture;
}

struct tensor canvas_back(const struct canvas *canvas, int i, int32_t Y, int32_t X, int32_t C) {
    int64_t at = canvas->memory.dim[0] - (i + 1) * canvas_picture_rows(Y, X, C);
    if (at < canvas->at + canvas_in_rows(tensor_elements(&canvas->picture))) return (struct tensor){0};
    return canvas_picture_at(canvas, at, Y, X, C);
}

int64_t canvas_before(const struct canvas *canvas, int32_t C) {
    const int32_t *dim = canvas->picture.dim;
    return canvas->at - canvas_resnet_lead(dim[0], dim[1], dim[2], C);
}
