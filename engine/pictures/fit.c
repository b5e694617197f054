/* Fits pictures: implements fit.h. */
#include "engine/pictures/fit.h"

#include "engine/open/public_structs.h"
#include "kernels/ops.h"

#include <string.h>

static const char *const fit_names[] = {[FIT_CROP] = "crop", [FIT_PAD] = "pad", [FIT_STRETCH] = "stretch"};

const char *fit_name(enum fit fit) {
    return fit_names[fit];
}

enum status fit_find(const char *name, enum fit *fit, struct error *e) {
    for (*fit = FIT_CROP; name && *fit < N_FITS; ++*fit)
        if (!strcmp(name, fit_names[*fit])) break;
    if (*fit < N_FITS) return OK;
    return error_set(
        e, USAGE, "unknown way to resize pictures (--fit)" FOUND "%s" EXPECTED "crop, pad or stretch", name);
}

/* Offset that centres a length `inner` in a length `outer`; inner and outer are halved before subtracting, as
 * in diffusers. */
static int middle(int outer, int inner) {
    return outer / 2 - inner / 2;
}

struct fitting fit_make(enum fit fit, struct picture_size from, struct picture_size size) {
    struct fitting f = {.from = from, .size = size, .part = {.whole = size, .size = size}};
    if (fit == FIT_STRETCH) return f;
    /* `whole`, the resampled picture, keeps the picture's aspect ratio. FIT_CROP: the smallest size that
     * covers `size`; FIT_PAD: the largest size inside `size`. flatter: `size` is wider than the picture,
     * relative to its height. */
    bool flatter = (int64_t)size.width * from.height > (int64_t)from.width * size.height;
    int64_t width = (int64_t)size.height * from.width / from.height;
    int64_t height = (int64_t)size.width * from.height / from.width;
    struct picture_size whole = size;
    if (flatter == (fit == FIT_CROP))
        whole.height = height < 1 ? 1 : (int)height;
    else
        whole.width = width < 1 ? 1 : (int)width;
    f.part.whole = whole;
    if (fit == FIT_PAD) {
        f.part.size = whole;
        f.left = middle(size.width, whole.width);
        f.top = middle(size.height, whole.height);
    } else {
        f.part.x = middle(whole.width, size.width);
        f.part.y = middle(whole.height, size.height);
    }
    return f;
}

bool fit_changes(const struct fitting *f) {
    const struct picture_size from = f->from, whole = f->part.whole;
    return from.width != whole.width || from.height != whole.height || from.width != f->size.width ||
           from.height != f->size.height;
}

static uint64_t rgb_bytes(struct picture_size size) {
    return 3 * (uint64_t)size.width * (uint64_t)size.height;
}

uint64_t fit_bytes(const struct sluice_picture *picture, const struct fitting *f) {
    uint64_t bytes = picture->reading_bytes;
    if (!fit_changes(f)) return bytes;
    bool has_rows = picture->rgb || picture->read_rows || f->part.alpha;
    return bytes + resample_bytes(f->from, &f->part) + (has_rows ? 0 : rgb_bytes(f->from));
}

/* Callback of read_rows. */
static void push_row(void *to, const uint8_t *row) {
    resample_push_row(to, row);
}

static void push_all_rows(struct resampling *r, const uint8_t *rgb, struct picture_size size) {
    for (size_t y = 0; y < (size_t)size.height; y++) resample_push_row(r, rgb + 3 * y * (size_t)size.width);
}

/* Pushes the rows of a picture in memory as RGBA. */
static void push_all_rgba_rows(struct resampling *r, const struct sluice_picture *picture) {
    const uint8_t *rgb = picture->rgb, *alpha = picture->alpha;
    for (int y = 0; y < picture->height; y++) {
        for (int x = 0; x < picture->width; x++, rgb += 3) {
            memcpy(r->pixels + 4 * x, rgb, 3);
            r->pixels[4 * x + 3] = *alpha++;
        }
        resample_push_row(r, r->pixels);
    }
}

/* Destination of the rows of a picture that keeps its size. */
struct rgba_rows {
    uint8_t *rgb, *alpha;
    int width;
};

/* Callback of read_rgba_rows: stores colours and alpha apart. */
static void store_rgba_row(void *to, const uint8_t *row) {
    struct rgba_rows *rows = to;
    for (int x = 0; x < rows->width; x++, row += 4, rows->rgb += 3) {
        memcpy(rows->rgb, row, 3);
        *rows->alpha++ = row[3];
    }
}

static enum status fit_no_memory(const struct sluice_picture *picture, struct error *e) {
    return error_set(e, MEMORY, "no memory to read a picture" WHERE "%s", picture->name ? picture->name : "");
}

/* Reads a whole picture that has no row reader, then passes the picture's rows to the resampler. */
static enum status read_whole_picture(struct sys *sys, const struct sluice_picture *picture,
                                      struct resampling *r, struct error *e) {
    struct picture_size size = {picture->width, picture->height};
    struct sluice_error failed = {0};
    uint8_t *rgb = sys->map(sys, LINE_HOST, rgb_bytes(size));
    if (!rgb) return fit_no_memory(picture, e);
    if (picture->read(picture, rgb, &failed))
        adopt_error(&failed, e);
    else
        push_all_rows(r, rgb, size);
    sys->unmap(sys, LINE_HOST, rgb, rgb_bytes(size));
    return e->code;
}

static enum status read_picture_rows(struct sys *sys, const struct sluice_picture *picture,
                                     struct resampling *r, struct error *e) {
    struct sluice_error failed = {0};
    bool alpha = r->channels == RGBA;
    if (picture->rgb && alpha)
        push_all_rgba_rows(r, picture);
    else if (picture->rgb)
        push_all_rows(r, picture->rgb, (struct picture_size){picture->width, picture->height});
    else if (!alpha && !picture->read_rows)
        return read_whole_picture(sys, picture, r, e);
    else if ((alpha ? picture->read_rgba_rows : picture->read_rows)(picture, push_row, r, &failed))
        return adopt_error(&failed, e);
    if (resample_done(r)) return OK;
    return error_set(
        e, IO, "read_rows of a picture delivered too few rows" WHERE "%s" FOUND "%d rows" EXPECTED "%d rows",
        picture->name ? picture->name : "", r->taken, picture->height);
}

/* Pads the fitted picture with copies of edge pixels: left and right of each row, then above and below. n:
 * bytes per pixel. */
static void pad(const struct fitting *f, uint8_t *to, size_t n) {
    size_t pitch = n * (size_t)f->size.width;
    int right = f->left + f->part.size.width, bottom = f->top + f->part.size.height;
    for (int y = f->top; y < bottom; y++) {
        uint8_t *row = to + pitch * (size_t)y;
        for (int x = 0; x < f->left; x++) memcpy(row + n * (size_t)x, row + n * (size_t)f->left, n);
        for (int x = right; x < f->size.width; x++)
            memcpy(row + n * (size_t)x, row + n * (size_t)(right - 1), n);
    }
    for (int y = 0; y < f->size.height; y++) {
        int edge = y < f->top ? f->top : bottom - 1;
        if (y < f->top || y >= bottom) memcpy(to + pitch * (size_t)y, to + pitch * (size_t)edge, pitch);
    }
}

enum status fit_read(struct sys *sys, const struct sluice_picture *picture, const struct fitting *f,
                     uint8_t *to, uint8_t *alpha, struct error *e) {
    struct sluice_error failed = {0};
    struct resampling r;
    size_t columns = (size_t)f->size.width, pitch = 3 * columns;
    if (!fit_changes(f) && picture->rgb && !f->part.alpha) {
        memcpy(to, picture->rgb, rgb_bytes(f->size));
        return OK;
    }
    if (!fit_changes(f)) {
        struct rgba_rows rows = {to, alpha, f->size.width};
        int status = f->part.alpha ? picture->read_rgba_rows(picture, store_rgba_row, &rows, &failed)
                                   : picture->read(picture, to, &failed);
        return status ? adopt_error(&failed, e) : OK;
    }
    void *memory = sys->alloc(sys, LINE_HOST, resample_bytes(f->from, &f->part));
    if (!memory) return fit_no_memory(picture, e);
    resample_begin(&r, f->from, &f->part, memory, to + pitch * (size_t)f->top + 3 * (size_t)f->left, pitch);
    if (f->part.alpha) {
        r.alpha = alpha + columns * (size_t)f->top + f->left;
        r.alpha_pitch = columns;
    }
    if (read_picture_rows(sys, picture, &r, e) == OK) {
        pad(f, to, 3);
        if (f->part.alpha) pad(f, alpha, 1);
    }
    sys->release(sys, memory);
    return e->code;
}
