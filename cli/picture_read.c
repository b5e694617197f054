/* Pictures in: see picture_read.h.
 *
 * What a file says of itself is checked here before libpng and before memory is taken; chunks that are not
 * needed are passed over unread, so that none can be too large or inflate. libpng leaves its functions by
 * longjmp, so everything between setjmp and the end lies in struct decoder, not in locals. */
#include "cli/picture_read.h"

#include "cli/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_BYTES = 26 }; /* signature, and IHDR up to its colour type */

struct decoder {
    png_structp png;
    png_infop info;
    FILE *from;
    const char *name;
    int width, height, depth, colours;
    unsigned char *rgb;
    bool transparent;
    long long at;      /* bytes read */
    long long allowed; /* bytes that may still be read; negative: any number */
    bool ended, failed, excessive;
    char message[120];
};

/* ---- the file ---- */

static int picture_read_unreadable(const char *name, int problem, struct sluice_error *e) {
    fail(e, problem == ENOENT ? SLUICE_MISSING : SLUICE_IO, "the picture cannot be read");
    fail_where(e, "%s", name);
    return fail_found(e, "%s", strerror(problem));
}

/* Without waiting for a pipe's writer: nothing but a file has an end to count on. */
static FILE *open_regular(const char *name, struct sluice_error *e) {
    struct stat info;
    int file = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        picture_read_unreadable(name, errno, e);
        return NULL;
    }
    bool regular = fstat(file, &info) == 0 && S_ISREG(info.st_mode);
    FILE *from = regular ? fdopen(file, "rb") : NULL;
    if (from) return from;
    fail(e, regular ? SLUICE_MEMORY : SLUICE_IO, "the picture cannot be read");
    fail_where(e, "%s", name);
    if (!regular) fail_found(e, S_ISDIR(info.st_mode) ? "a folder" : "a pipe or a device");
    if (!regular) fail_expected(e, "a PNG file");
    close(file);
    return NULL;
}

/* ---- what it says it is ---- */

static const struct {
    int offset;
    const char *start;
    size_t bytes;
    const char *kind;
} foreign[] = {
    {0, "\xff\xd8\xff", 3, "a JPEG picture"},
    {8, "WEBP", 4, "a WebP picture"},
    {0, "GIF8", 4, "a GIF picture"},
    {0, "BM", 2, "a BMP picture"},
    {0, "II*\0", 4, "a TIFF picture"},
    {0, "MM\0*", 4, "a TIFF picture"},
    {4, "ftypavif", 8, "an AVIF picture"},
    {4, "ftyphei", 7, "an HEIF picture"},
    {4, "ftypmif1", 8, "an HEIF picture"},
    {0, "\xff\x0a", 2, "a JPEG XL picture"},
    {0, "8BPS", 4, "a Photoshop document"},
    {0, "\x89PNG", 4, "a PNG picture whose line ends were converted, as text"},
    {0, "%PDF", 4, "a PDF document"},
    {0, "<", 1, "an HTML, SVG or XML document"},
    {0, "version ", 8, "a git-lfs pointer (run git lfs pull)"},
};

static int of_another_kind(const char *name, const unsigned char *header, struct sluice_error *e) {
    fail(e, SLUICE_BADMAGIC, "the picture is no PNG");
    fail_where(e, "%s, byte 0", name);
    fail_found(e, "a file of another kind");
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        if (memcmp(header + foreign[i].offset, foreign[i].start, foreign[i].bytes) == 0) {
            fail_found(e, "%s", foreign[i].kind);
            break;
        }
    }
    return fail_expected(e, "a PNG: pictures of other formats are not read");
}

static int too_short(const char *name, long long bytes, struct sluice_error *e) {
    fail(e, SLUICE_TRUNC, "the picture ends too early");
    fail_where(e, "%s", name);
    fail_found(e, "%lld bytes", bytes);
    return fail_expected(e, "more");
}

static bool is_legal(int depth, int colours) {
    static const unsigned char depths[] = {
        [0] = 1 | 2 | 4 | 8 | 16, [2] = 8 | 16, [3] = 1 | 2 | 4 | 8, [4] = 8 | 16, [6] = 8 | 16};
    bool power = depth > 0 && depth <= 16 && (depth & (depth - 1)) == 0;
    return power && colours < (int)sizeof depths && depths[colours] & depth;
}

static int check_header(struct decoder *d, const unsigned char *h, struct sluice_error *e) {
    png_uint_32 width = png_get_uint_32(h + 16), height = png_get_uint_32(h + 20);
    if (memcmp(h + 8, "\0\0\0\15IHDR", 8) != 0) {
        fail(e, SLUICE_TYPE, "the picture does not begin with its header");
        fail_where(e, "%s, byte 8", d->name);
        return fail_expected(e, "a chunk IHDR of 13 bytes");
    }
    if (width - 1 >= PICTURE_READ_SIDE_MAX || height - 1 >= PICTURE_READ_SIDE_MAX) {
        fail(e, SLUICE_LIMIT, "the picture has a size that is not allowed");
        fail_where(e, "%s, byte 16", d->name);
        fail_found(e, "%lux%lu", (unsigned long)width, (unsigned long)height);
        return fail_expected(e, "sides of 1 to %d pixels", PICTURE_READ_SIDE_MAX);
    }
    if (!is_legal(h[24], h[25])) {
        fail(e, SLUICE_TYPE, "PNG has no such pixels");
        fail_where(e, "%s, byte 24", d->name);
        fail_found(e, "%d bits, colour type %d", h[24], h[25]);
        return fail_expected(e, "1 to 16 bits of colour type 0, 2, 3, 4 or 6");
    }
    d->width = (int)width;
    d->height = (int)height;
    d->depth = h[24];
    d->colours = h[25];
    return SLUICE_OK;
}

static int picture_read_header(struct decoder *d, struct sluice_error *e) {
    unsigned char header[HEADER_BYTES] = {0};
    size_t bytes = fread(header, 1, sizeof header, d->from);
    if (ferror(d->from)) return picture_read_unreadable(d->name, errno, e);
    if (bytes && memcmp(header, "\x89PNG\r\n\x1a\n", bytes < 8 ? bytes : 8) != 0)
        return of_another_kind(d->name, header, e);
    if (bytes < sizeof header) return too_short(d->name, (long long)bytes, e);
    rewind(d->from);
    return check_header(d, header, e);
}

/* ---- libpng ---- */

static void picture_read_on_error(png_structp png, png_const_charp message) {
    struct decoder *d = png_get_error_ptr(png);
    snprintf(d->message, sizeof d->message, "%s", message);
    png_longjmp(png, 1);
}

static void picture_read_on_warning(png_structp png, png_const_charp message) {
    (void)png;
    (void)message;
}

static void picture_read_bytes(png_structp png, png_bytep to, size_t n) {
    struct decoder *d = png_get_io_ptr(png);
    d->excessive = d->allowed >= 0 && (long long)n > d->allowed;
    if (d->excessive) png_error(png, "data for more than the picture");
    if (d->allowed >= 0) d->allowed -= (long long)n;
    size_t got = fread(to, 1, n, d->from);
    d->at += (long long)got;
    if (got == n) return;
    d->failed = ferror(d->from);
    d->ended = !d->failed;
    png_error(png, "read failed");
}

/* Chunks that nobody needs are dropped as they come, so libpng's limit of their size, which would refuse
 * large ones, is not for them. What it mends silently (too much data, transparency of more colours than there
 * are) is an error. */
static void set_up(struct decoder *d) {
    png_set_read_fn(d->png, d, picture_read_bytes);
    png_set_user_limits(d->png, PICTURE_READ_SIDE_MAX, PICTURE_READ_SIDE_MAX);
    png_set_keep_unknown_chunks(d->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_chunk_malloc_max(d->png, PNG_UINT_31_MAX);
    png_set_crc_action(d->png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_set_benign_errors(d->png, 0);
}

static bool has_palette(const struct decoder *d) {
    return d->colours == PNG_COLOR_TYPE_PALETTE;
}

/* Palettes stay places, which libpng would look up beyond the palette's end. */
static int transform(struct decoder *d) {
    if (has_palette(d)) {
        png_set_packing(d->png);
    } else {
        if (d->depth < 8) png_set_expand_gray_1_2_4_to_8(d->png);
        if (d->depth == 16) png_set_scale_16(d->png);
        if (d->colours & PNG_COLOR_MASK_ALPHA) png_set_strip_alpha(d->png);
        if (!(d->colours & PNG_COLOR_MASK_COLOR)) png_set_gray_to_rgb(d->png);
    }
    int passes = png_set_interlace_handling(d->png);
    png_read_update_info(d->png, d->info);
    size_t columns = (size_t)d->width * (has_palette(d) ? 1 : 3);
    if (png_get_rowbytes(d->png, d->info) != columns) png_error(d->png, "rows of another size");
    return passes;
}

static unsigned char *row_of(const struct decoder *d, int y) {
    return d->rgb + (size_t)y * (size_t)d->width * 3;
}

/* From the end, for the places lie where the first third of the colours will. */
static void look_up(struct decoder *d) {
    png_colorp palette = NULL;
    int n = 0;
    png_get_PLTE(d->png, d->info, &palette, &n);
    for (int y = 0; y < d->height; y++) {
        unsigned char *row = row_of(d, y);
        for (size_t x = (size_t)d->width; x-- > 0;) {
            if (row[x] >= n) png_error(d->png, "palette index out of range");
            png_color colour = palette[row[x]];
            row[3 * x] = colour.red;
            row[3 * x + 1] = colour.green;
            row[3 * x + 2] = colour.blue;
        }
    }
}

/* False if libpng gave up. A row's data cannot be much larger than the row, even in chunks of one byte each;
 * what is behind the last row would be inflated to its end, were it not for this limit. */
static bool decode(struct decoder *d) {
    if (setjmp(png_jmpbuf(d->png))) return false;
    set_up(d);
    png_read_info(d->png, d->info);
    d->transparent = d->colours & PNG_COLOR_MASK_ALPHA || png_get_valid(d->png, d->info, PNG_INFO_tRNS);
    int passes = transform(d);
    for (int pass = 0; pass < passes; pass++) {
        for (int y = 0; y < d->height; y++) {
            d->allowed = 16LL * 8 * d->width + 65536;
            png_read_row(d->png, row_of(d, y), NULL);
        }
    }
    d->allowed = -1;
    png_read_end(d->png, NULL);
    if (has_palette(d)) look_up(d);
    return true;
}

/* ---- what went wrong ---- */

/* By what libpng says, the first that fits; else IO. */
static const struct {
    const char *part;
    int code;
} said[] = {
    {"CRC error", SLUICE_IO},
    {"emory", SLUICE_MEMORY},
    {"Not enough image data", SLUICE_TRUNC},
    {"unexpected end", SLUICE_TRUNC},
    {"oo much image data", SLUICE_LIMIT},
    {"xtra compressed data", SLUICE_LIMIT},
    {"oo many IDATs", SLUICE_LIMIT},
    {"too large", SLUICE_LIMIT},
    {"out of range", SLUICE_BOUNDS},
    {"PLTE", SLUICE_BOUNDS},
    {"tRNS", SLUICE_BOUNDS},
    {"filter", SLUICE_TYPE},
    {"IHDR", SLUICE_TYPE},
    {"invalid chunk type", SLUICE_TYPE},
    {"unhandled critical chunk", SLUICE_UNSUPPORTED},
};

static int picture_read_code_of(const char *message) {
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        if (strstr(message, said[i].part)) return said[i].code;
    return SLUICE_IO;
}

static int damaged(const struct decoder *d, struct sluice_error *e) {
    int code = d->excessive ? SLUICE_LIMIT : picture_read_code_of(d->message);
    if (d->ended) return too_short(d->name, d->at, e);
    if (d->failed) return picture_read_unreadable(d->name, EIO, e);
    fail(e, code, code == SLUICE_MEMORY ? "no memory to read the picture" : "the picture is damaged");
    fail_where(e, "%s, before byte %lld", d->name, d->at);
    return fail_found(e, "%s", d->message);
}

static int decode_from(struct decoder *d, struct sluice_error *e) {
    d->rgb = malloc((size_t)d->width * (size_t)d->height * 3);
    d->png = d->rgb ? png_create_read_struct(PNG_LIBPNG_VER_STRING, d, picture_read_on_error,
                                             picture_read_on_warning)
                    : NULL;
    d->info = d->png ? png_create_info_struct(d->png) : NULL;
    if (!d->info) snprintf(d->message, sizeof d->message, "out of memory");
    bool done = d->info && decode(d);
    png_destroy_read_struct(&d->png, &d->info, NULL);
    if (done) return SLUICE_OK;
    free(d->rgb);
    return damaged(d, e);
}

int picture_read(const char *name, struct sluice_picture *picture, bool *transparent,
                 struct sluice_error *e) {
    struct decoder d = {.name = name, .allowed = -1};
    *picture = (struct sluice_picture){.struct_size = sizeof *picture, .name = name};
    d.from = open_regular(name, e);
    if (!d.from) return e->code;
    int status = picture_read_header(&d, e);
    if (!status) status = decode_from(&d, e);
    fclose(d.from);
    if (status) return status;
    picture->width = d.width;
    picture->height = d.height;
    picture->rgb = d.rgb;
    *transparent = d.transparent;
    return SLUICE_OK;
}

void picture_free(struct sluice_picture *picture) {
    free((void *)(uintptr_t)picture->rgb);
    picture->rgb = NULL;
}
