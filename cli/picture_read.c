/* Opens image files, recognises the format and applies the EXIF orientation. */
#include "cli/picture_read.h"

#include "cli/fail.h"
#include "cli/picture_formats.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int picture_unreadable(const char *name, int problem, struct sluice_error *e) {
    return fail(e, problem == ENOENT ? SLUICE_MISSING : SLUICE_IO, "cannot read the image: %s" WHERE "%s",
                strerror(problem), name);
}

/* Opens a regular file. Pipes and devices are refused, because they may block or never end. */
static FILE *open_regular(const char *name, struct sluice_error *e) {
    struct stat info;
    int file = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        picture_unreadable(name, errno, e);
        return NULL;
    }
    bool regular = fstat(file, &info) == 0 && S_ISREG(info.st_mode);
    FILE *from = regular ? fdopen(file, "rb") : NULL;
    if (from) return from;
    fail(e, regular ? SLUICE_MEMORY : SLUICE_IO, "cannot read the image" WHERE "%s", name);
    if (!regular) fail_found(e, S_ISDIR(info.st_mode) ? "a folder" : "a pipe or a device");
    if (!regular) fail_expected(e, "a file");
    close(file);
    return NULL;
}

static const struct {
    int offset;
    const char *start;
    size_t bytes;
    const char *kind;
} foreign[] = {
    {0, "\xff\xd8\xff", 3, "a JPEG image"},
    {8, "WEBP", 4, "a WebP image"},
    {0, "GIF8", 4, "a GIF image"},
    {0, "BM", 2, "a BMP image"},
    {0, "II*\0", 4, "a TIFF image"},
    {0, "MM\0*", 4, "a TIFF image"},
    {4, "ftypavif", 8, "an AVIF image"},
    {4, "ftyphei", 7, "an HEIF image"},
    {4, "ftypmif1", 8, "an HEIF image"},
    {0, "\xff\x0a", 2, "a JPEG XL image"},
    {0, "8BPS", 4, "a Photoshop document"},
    {0, "\x89PNG", 4, "a PNG image damaged by a text-mode transfer (converted line ends)"},
    {0, "%PDF", 4, "a PDF document"},
    {0, "<", 1, "an HTML, SVG or XML document"},
    {0, "version ", 8, "a git-lfs pointer (run git lfs pull)"},
};

static int fail_unsupported(const char *name, const unsigned char *header, struct sluice_error *e) {
    fail(e, SLUICE_BADMAGIC, "unsupported image format" WHERE "%s, byte 0" FOUND "an unknown format", name);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        if (memcmp(header + foreign[i].offset, foreign[i].start, foreign[i].bytes) == 0) {
            fail_found(e, "%s", foreign[i].kind);
            break;
        }
    }
    return fail_expected(e, "a PNG, JPEG or WebP image (JPEG and WebP if the program was built with them)");
}

int picture_too_short(const char *name, long long bytes, struct sluice_error *e) {
    return fail(e, SLUICE_TRUNC,
                "the image file ends too early, maybe an incomplete download" WHERE "%s" FOUND "%lld bytes",
                name, bytes);
}

int picture_no_memory(const char *name, struct sluice_error *e) {
    return fail(e, SLUICE_MEMORY, "no memory to read the image" WHERE "%s", name);
}

int picture_check_sides(const char *name, long long width, long long height, struct sluice_error *e) {
    enum { MOST = PICTURE_READ_SIDE_MAX };
    if (width >= 1 && width <= MOST && height >= 1 && height <= MOST) return SLUICE_OK;
    return fail(e, SLUICE_LIMIT,
                "unsupported image size" WHERE "%s" FOUND "%lldx%lld" EXPECTED "sides of 1 to %d pixels",
                name, width, height, MOST);
}

enum { HEAD_BYTES = 16 };

static const struct {
    int offset;
    const char *start;
    size_t bytes;
    int (*read_info)(struct picture_source *source, struct sluice_error *e);
    int (*decode)(struct picture_source *source, const struct row_sink *rows, struct sluice_error *e);
} kinds[] = {
    {0, "\x89PNG\r\n\x1a\n", 8, picture_png_read_info, picture_png_decode},
#ifdef PICTURES_JPEG
    {0, "\xff\xd8\xff", 3, picture_jpeg_read_info, picture_jpeg_decode},
#endif
#ifdef PICTURES_WEBP
    {8, "WEBP", 4, picture_webp_read_info, picture_webp_decode},
#endif
};

enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* Finds the decoder by the signature. A file that ends inside a signature matches by its first bytes. */
static int find_kind(struct picture_source *source, struct sluice_error *e) {
    unsigned char head[HEAD_BYTES] = {0};
    size_t bytes = fread(head, 1, sizeof head, source->from);
    if (ferror(source->from)) return picture_unreadable(source->name, errno, e);
    for (source->kind = 0; source->kind < N_KINDS; source->kind++) {
        size_t first = (size_t)kinds[source->kind].offset, n = kinds[source->kind].bytes;
        if (bytes < first + n) n = bytes > first ? bytes - first : 0;
        if (n && memcmp(head + first, kinds[source->kind].start, n) == 0) return SLUICE_OK;
    }
    return bytes ? fail_unsupported(source->name, head, e) : picture_too_short(source->name, 0, e);
}

/* Opens the file and reads its header. The caller closes source->from, also after failure. */
static int open_source(struct picture_source *source, const char *name, struct sluice_error *e) {
    *source = (struct picture_source){.name = name, .orientation = 1};
    source->from = open_regular(name, e);
    if (!source->from || find_kind(source, e)) return e->code;
    return kinds[source->kind].read_info(source, e);
}

/* A decoded image that is rotated or mirrored by its EXIF orientation. */
struct oriented {
    const struct picture_source *source;
    uint8_t *rgb, *next;
    uint8_t *row;
};

/* True if rows and columns are swapped (orientations 5 to 8). */
static bool is_transposed(const struct picture_source *source) {
    return source->orientation > 4;
}

static uint64_t orientation_bytes(const struct picture_source *source) {
    uint64_t pixels = (uint64_t)source->width * (uint64_t)source->height;
    return source->orientation == 1
               ? 0
               : 3 * (pixels + (uint64_t)(is_transposed(source) ? source->height : source->width));
}

static void store_row(void *to, const uint8_t *row) {
    struct oriented *t = to;
    memcpy(t->next, row, 3 * (size_t)t->source->width);
    t->next += 3 * (size_t)t->source->width;
}

/* Returns the stored pixel that is displayed at (x, y). Source: EXIF 2.3, tag 274. */
static const uint8_t *stored_pixel(const struct oriented *t, int x, int y) {
    static const bool left[] = {[2] = true, [3] = true, [7] = true, [8] = true},
                      up[] = {[3] = true, [4] = true, [6] = true, [7] = true, [8] = false};
    const struct picture_source *s = t->source;
    int column = is_transposed(s) ? y : x, row = is_transposed(s) ? x : y;
    if (left[s->orientation]) column = s->width - 1 - column;
    if (up[s->orientation]) row = s->height - 1 - row;
    return t->rgb + 3 * ((size_t)row * (size_t)s->width + (size_t)column);
}

static void write_oriented(const struct oriented *t, const struct row_sink *rows) {
    int width = is_transposed(t->source) ? t->source->height : t->source->width;
    int height = is_transposed(t->source) ? t->source->width : t->source->height;
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) memcpy(t->row + 3 * (size_t)x, stored_pixel(t, x, y), 3);
        rows->take(rows->to, t->row);
    }
}

static int decode_oriented(struct picture_source *source, const struct row_sink *rows,
                           struct sluice_error *e) {
    if (source->orientation == 1) return kinds[source->kind].decode(source, rows, e);
    struct oriented t = {.source = source, .rgb = malloc(orientation_bytes(source))};
    if (!t.rgb) return picture_no_memory(source->name, e);
    t.next = t.rgb;
    t.row = t.rgb + 3 * (size_t)source->width * (size_t)source->height;
    int status = kinds[source->kind].decode(source, &(struct row_sink){store_row, &t}, e);
    if (!status) write_oriented(&t, rows);
    free(t.rgb);
    return status;
}

int picture_open(const char *name, struct sluice_picture *picture, unsigned *notes, struct sluice_error *e) {
    struct picture_source source;
    int status = open_source(&source, name, e);
    if (source.from) fclose(source.from);
    *picture = (struct sluice_picture){.struct_size = sizeof *picture, .name = name};
    if (status) return status;
    picture->width = is_transposed(&source) ? source.height : source.width;
    picture->height = is_transposed(&source) ? source.width : source.height;
    picture->reading_bytes = source.reading_bytes + orientation_bytes(&source);
    *notes = source.notes;
    return SLUICE_OK;
}

static int picture_changed(const struct picture_source *source, const struct sluice_picture *then,
                           struct sluice_error *e) {
    return fail(e, SLUICE_CHANGED,
                "the image file changed during the run" WHERE "%s" FOUND "%dx%d" EXPECTED "%dx%d",
                source->name, source->width, source->height, then->width, then->height);
}

int picture_read(const struct sluice_picture *picture, const struct row_sink *rows, unsigned *notes,
                 struct sluice_error *e) {
    struct picture_source source;
    int status = open_source(&source, picture->name, e);
    *notes = 0;
    if (!status && ((is_transposed(&source) ? source.height : source.width) != picture->width ||
                    (is_transposed(&source) ? source.width : source.height) != picture->height))
        status = picture_changed(&source, picture, e);
    unsigned known = source.notes;
    if (!status) status = decode_oriented(&source, rows, e);
    if (source.from) fclose(source.from);
    *notes = source.notes & ~known;
    return status;
}
