#include "models/vae_full_frame.h"

static int64_t full_frame_max(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t full_frame_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t full_frame_rows(int64_t floats) {
    return (floats + FULL_FRAME_ROW - 1) / FULL_FRAME_ROW;
}

static int64_t full_frame_picture_rows(int64_t Y, int64_t X, int64_t C) {
    return full_frame_rows(Y * X * C);
}

/* Number of buffer rows by which an output begins before its input (lead), at most the output's own rows. */
static int64_t full_frame_lead_rows(int64_t lead, int64_t out_rows) {
    return full_frame_min(full_frame_rows(lead), out_rows);
}

/* Lead of a resnet computed in bands: its output begins this number of buffer rows before its input. The
 * middle feature map of a band starts one row above the band and reads one more input row. */
static int64_t full_frame_resnet_lead(int32_t Y, int32_t X, int32_t in_channels, int32_t channels) {
    enum { HALO = 2 };
    int64_t lead = conv_lead(Y, X, HALO, 1, (int64_t)X * in_channels, (int64_t)X * channels);
    return full_frame_lead_rows(lead, full_frame_picture_rows(Y, X, channels));
}

static int64_t full_frame_upsample_lead(const struct full_frame_level *from,
                                        const struct full_frame_level *to) {
    int64_t in_row = (int64_t)from->X * from->channels, out_row = (int64_t)to->X * to->in_channels;
    return full_frame_lead_rows(conv_lead(to->Y, to->X, 1, 2, in_row, out_row),
                                full_frame_picture_rows(to->Y, to->X, to->in_channels));
}

/* Rows that a level needs. *front: start row of the level's first feature map, as near to 0 as the level's
 * resnets allow. below: the level whose output is upsampled to this level's input, or NULL. */
static int64_t full_frame_measure_level(const struct full_frame_level *l,
                                        const struct full_frame_level *below, bool tiled, int64_t *front) {
    bool widens = l->in_channels != l->channels;
    int64_t first = full_frame_picture_rows(l->Y, l->X, l->in_channels),
            h = full_frame_picture_rows(l->Y, l->X, l->channels);
    int64_t lead = widens ? full_frame_resnet_lead(l->Y, l->X, l->in_channels, l->channels) : 0;
    int64_t up = first;
    if (below)
        up =
            full_frame_picture_rows(below->Y, below->X, below->channels) + full_frame_upsample_lead(below, l);
    *front = lead;
    if (!tiled) return lead + full_frame_max(up, full_frame_max(first, h) + h);
    if (2 * h > lead + up)
        *front += (l->n_resnets - widens) * full_frame_resnet_lead(l->Y, l->X, l->channels, l->channels);
    return *front + up;
}

static int64_t full_frame_measure_level_up(const struct full_frame_level *l, bool deepest, int n_extra,
                                           bool tiled, int64_t *front) {
    int64_t rows = full_frame_measure_level(l, deepest ? NULL : l - 1, tiled, front);
    return full_frame_max(rows, *front + (1 + n_extra) * full_frame_picture_rows(l->Y, l->X, l->channels));
}

/* A level stores h, the feature map between the two convolutions of a resnet, if computing h in bands would
 * need more rows. */
int64_t full_frame_measure_up(const struct full_frame_level *levels, int n, int spare, bool tiled,
                              int64_t *front) {
    int64_t rows = 0, banded_front;
    for (int i = 0; i < n; i++) {
        int n_extra = i == 0 ? spare : 0;
        if (i + 1 < n && !n_extra) n_extra = 1; /* rows for the copy that upsampling reads */
        int64_t level = full_frame_measure_level_up(&levels[i], i == 0, n_extra, false, &front[i]);
        int64_t banded = full_frame_measure_level_up(&levels[i], i == 0, n_extra, tiled, &banded_front);
        if (banded < level) front[i] = banded_front;
        rows = full_frame_max(rows, full_frame_min(level, banded));
    }
    return rows;
}

/* Buffer rows that an encoder level needs; the level's downsampled input is first written to row 0. */
static int64_t full_frame_measure_level_down(const struct full_frame_level *l, bool downsampled, int n_extra,
                                             bool tiled, int64_t *front) {
    int64_t rows = full_frame_measure_level(l, NULL, tiled, front),
            first = full_frame_picture_rows(l->Y, l->X, l->in_channels);
    int64_t further = downsampled && *front && *front < first ? first - *front : 0;
    *front += further;
    return full_frame_max(rows + further,
                          *front + (1 + n_extra) * full_frame_picture_rows(l->Y, l->X, l->channels));
}

int64_t full_frame_measure_down(const struct full_frame_level *levels, int n, int spare, bool tiled,
                                int64_t *front) {
    int64_t rows = 0, banded_front;
    for (int i = 0; i < n; i++) {
        int n_extra = i + 1 == n ? spare : 0;
        int64_t level = full_frame_measure_level_down(&levels[i], i > 0, n_extra, false, &front[i]);
        int64_t banded = full_frame_measure_level_down(&levels[i], i > 0, n_extra, tiled, &banded_front);
        if (banded < level) front[i] = banded_front;
        rows = full_frame_max(rows, full_frame_min(level, banded));
    }
    return rows;
}

static struct tensor full_frame_picture_at(const struct full_frame *full_frame, int64_t at, int32_t Y,
                                           int32_t X, int32_t C) {
    int32_t dim[3] = {Y, X, C};
    struct tensor t = tensor_make(full_frame->memory.data, DTYPE_F32, 3, dim);
    if (t.data) t.data = (char *)t.data + at * full_frame->memory.row_bytes;
    return t;
}

struct tensor full_frame_put(struct full_frame *full_frame, int64_t at, int32_t Y, int32_t X, int32_t C) {
    full_frame->at = at;
    full_frame->picture = full_frame_picture_at(full_frame, at, Y, X, C);
    return full_frame->picture;
}

struct tensor full_frame_back(const struct full_frame *full_frame, int i, int32_t Y, int32_t X, int32_t C) {
    int64_t at = full_frame->memory.dim[0] - (i + 1) * full_frame_picture_rows(Y, X, C);
    if (at < full_frame->at + full_frame_rows(tensor_elements(&full_frame->picture)))
        return (struct tensor){0};
    return full_frame_picture_at(full_frame, at, Y, X, C);
}

int64_t full_frame_before(const struct full_frame *full_frame, int32_t C) {
    const int32_t *dim = full_frame->picture.dim;
    return full_frame->at - full_frame_resnet_lead(dim[0], dim[1], dim[2], C);
}
