/* Finds the format of image files by signature or extension, applies the EXIF orientation, and makes EXIF
 * blocks: see picture.h. Sources: TIFF 6.0, section 2; EXIF 2.3, tag 274. */
#include "cli/picture.h"

#include "cli/fail.h"
#include "cli/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef PICTURES_JPEG
#define picture_jpeg_read_info NULL
#define picture_jpeg_decode    NULL
#define picture_encode_jpeg    NULL
#endif
#ifndef PICTURES_WEBP
#define picture_webp_read_info NULL
#define picture_webp_decode    NULL
#define picture_encode_webp    NULL
#endif

/* The WebP encoder's memory, measured with noise of 2048x2048 at quality 100: 4.0 bytes per pixel, including
 * 1 MiB and the encoded file; 34.1 with alpha, which libwebp compresses without loss. */
enum { ANY_SIDE = SLUICE_SIDE_MAX, WEBP_SIDE = 16383, WEBP_BYTES_A_PIXEL = 6, WEBP_ALPHA_BYTES_A_PIXEL = 40 };

/* The image formats. Functions are NULL if the program was built without the format's library. */
static const struct format {
    const char *extension, *also; /* also: another file name extension of the format, or NULL */
    const char *library;
    int offset; /* position of the format's signature in the file */
    const char *signature;
    size_t signature_bytes;
    int (*read_info)(struct picture_source *source, struct sluice_error *e);
    int (*decode)(struct picture_source *source, const struct row_sink *rows, struct sluice_error *e);
    int (*encode)(FILE *to, const char *name, const struct picture_content *content, struct sluice_error *e);
    bool quality, alpha; /* the encoder has a quality setting; the format has alpha */
    /* Limits of the encoder: width and height, memory per pixel without and with alpha. */
    int side_most, bytes_a_pixel, alpha_bytes_a_pixel;
} formats[] = {
    {".png", NULL, "libpng", 0, "\x89PNG\r\n\x1a\n", 8, picture_png_read_info, picture_png_decode,
     picture_encode_png, false, true, ANY_SIDE, 0, 0},
    {".jpg", ".jpeg", "libjpeg", 0, "\xff\xd8\xff", 3, picture_jpeg_read_info, picture_jpeg_decode,
     picture_encode_jpeg, true, false, ANY_SIDE, 0, 0},
    {".webp", NULL, "libwebp", 8, "WEBP", 4, picture_webp_read_info, picture_webp_decode, picture_encode_webp,
     true, true, WEBP_SIDE, WEBP_BYTES_A_PIXEL, WEBP_ALPHA_BYTES_A_PIXEL},
};

enum { N_FORMATS = sizeof formats / sizeof *formats };

/* ---- EXIF ---- */

enum { ENTRY_BYTES = 12, ORIENTATION = 274, SHORT = 3, READ_BYTES = 4096 };

struct tiff {
    unsigned char at[READ_BYTES]; /* first bytes of the TIFF structure, which include its directory */
    size_t bytes;
    bool big_endian;
};

/* Reads an integer of n bytes at offset `at` in the file's byte order; 0 beyond the end. */
static unsigned long number_at(const struct tiff *t, size_t at, size_t n) {
    unsigned long value = 0;
    if (at > t->bytes || n > t->bytes - at) return 0;
    for (size_t i = 0; i < n; i++) value = value << 8 | t->at[at + (t->big_endian ? i : n - 1 - i)];
    return value;
}

int exif_orientation(FILE *from, unsigned long bytes) {
    struct tiff t;
    t.bytes = fread(t.at, 1, bytes < READ_BYTES ? bytes : READ_BYTES, from);
    if (t.bytes < 8 || (memcmp(t.at, "II*\0", 4) != 0 && memcmp(t.at, "MM\0*", 4) != 0)) return 1;
    t.big_endian = t.at[0] == 'M';
    size_t directory = number_at(&t, 4, 4), n = number_at(&t, directory, 2);
    for (size_t i = 0; i < n; i++) {
        size_t entry = directory + 2 + i * ENTRY_BYTES;
        if (number_at(&t, entry, 2) != ORIENTATION || number_at(&t, entry + 2, 2) != SHORT) continue;
        unsigned long orientation = number_at(&t, entry + 8, 2);
        return orientation >= 1 && orientation <= 8 ? (int)orientation : 1;
    }
    return 1;
}

/* Converts well-formed UTF-8 to UTF-16, big-endian; returns the end of the output. */
static unsigned char *put_utf16(unsigned char *to, const char *utf8) {
    for (const unsigned char *in = (const unsigned char *)utf8; *in;) {
        int more = *in >= 0xF0 ? 3 : *in >= 0xE0 ? 2 : *in >= 0xC0 ? 1 : 0;
        unsigned long code = more ? *in & (0x3Fu >> more) : *in;
        for (in++; more > 0 && *in; more--) code = code << 6 | (*in++ & 0x3F);
        unsigned long high = code >= 0x10000 ? 0xD800 + ((code - 0x10000) >> 10) : 0;
        if (high) *to++ = (unsigned char)(high >> 8), *to++ = (unsigned char)high;
        unsigned long low = high ? 0xDC00 + ((code - 0x10000) & 0x3FF) : code;
        *to++ = (unsigned char)(low >> 8), *to++ = (unsigned char)low;
    }
    return to;
}

/* Writes a TIFF directory of one entry. entry: tag and type; value: offset of its data. Returns the end of
 * the directory. */
static unsigned char *put_directory(unsigned char *to, const unsigned short *entry, size_t count,
                                    size_t value) {
    const unsigned char head[] = {
        0, 1, (unsigned char)(entry[0] >> 8), (unsigned char)entry[0], 0, (unsigned char)entry[1]};
    memcpy(to, head, sizeof head);
    to += sizeof head;
    for (int i = 3; i >= 0; i--) *to++ = (unsigned char)(count >> 8 * i);
    for (int i = 3; i >= 0; i--) *to++ = (unsigned char)(value >> 8 * i);
    return memset(to, 0, 4), to + 4;
}

bool exif_from_comment(const char *utf8, struct exif *out) {
    enum { MARK = 6, TIFF_HEAD = 8, DIRECTORY = 18, CODE = 8, LONG = 4, UNDEFINED = 7 };
    static const unsigned short more[] = {0x8769, LONG}, comment[] = {0x9286, UNDEFINED};
    size_t start = TIFF_HEAD + 2 * DIRECTORY, most = MARK + start + CODE + 2 * strlen(utf8) + 1;
    out->at = calloc(1, most);
    if (!out->at) return false;
    memcpy(out->at, "Exif\0\0MM\0*\0\0\0\10", MARK + TIFF_HEAD);
    unsigned char *text = out->at + MARK + start;
    memcpy(text, "UNICODE", CODE);
    out->bytes = (size_t)(put_utf16(text + CODE, utf8) - out->at);
    unsigned char *next = put_directory(out->at + MARK + TIFF_HEAD, more, 1, TIFF_HEAD + DIRECTORY);
    put_directory(next, comment, out->bytes - MARK - start, start);
    return true;
}

/* ---- reading ---- */

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
    if (regular)
        fail(e, SLUICE_MEMORY, "cannot read the image" WHERE "%s", name);
    else
        fail(e, SLUICE_IO, "cannot read the image" WHERE "%s" FOUND "%s" EXPECTED "a file", name,
             S_ISDIR(info.st_mode) ? "a folder" : "a pipe or a device");
    close(file);
    return NULL;
}

/* Signatures of file types that are not supported images, for the error message; the first match applies. */
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

/* Finds the format by the signature. A file that ends inside a signature matches by its first bytes. */
static int find_format(struct picture_source *source, struct sluice_error *e) {
    enum { HEAD_BYTES = 16 };
    unsigned char head[HEAD_BYTES] = {0};
    size_t bytes = fread(head, 1, sizeof head, source->from);
    if (ferror(source->from)) return picture_unreadable(source->name, errno, e);
    for (source->format = 0; source->format < N_FORMATS; source->format++) {
        const struct format *format = &formats[source->format];
        size_t first = (size_t)format->offset, n = format->signature_bytes;
        if (bytes < first + n) n = bytes > first ? bytes - first : 0;
        if (format->decode && n && memcmp(head + first, format->signature, n) == 0) return SLUICE_OK;
    }
    if (!bytes) return picture_too_short(source->name, 0, e);
    const char *kind = "an unknown format";
    for (size_t i = sizeof foreign / sizeof *foreign; i-- > 0;)
        if (memcmp(head + foreign[i].offset, foreign[i].start, foreign[i].bytes) == 0) kind = foreign[i].kind;
    return fail(e, SLUICE_BADMAGIC,
                "unsupported image format" WHERE "%s, byte 0" FOUND "%s" EXPECTED
                "a PNG, JPEG or WebP image (JPEG and WebP if the program was built with them)",
                source->name, kind);
}

/* Opens the file and reads its header. The caller closes source->from, also after failure. */
static int open_source(struct picture_source *source, const char *name, struct sluice_error *e) {
    *source = (struct picture_source){.name = name, .orientation = 1};
    source->from = open_regular(name, e);
    if (!source->from || find_format(source, e)) return e->code;
    return formats[source->format].read_info(source, e);
}

/* A decoded image to rotate or mirror by its EXIF orientation. */
struct oriented {
    const struct picture_source *source;
    size_t bytes;           /* per pixel: 3, or 4 with alpha */
    uint8_t *pixels, *next; /* all pixels as stored; end of the rows stored so far */
    uint8_t *row;           /* buffer for one row in displayed orientation */
};

/* Size as displayed: orientations 5 to 8 swap rows and columns. */
static int shown_width(const struct picture_source *source) {
    return source->orientation > 4 ? source->height : source->width;
}

static int shown_height(const struct picture_source *source) {
    return source->orientation > 4 ? source->width : source->height;
}

static uint64_t orientation_bytes(const struct picture_source *source) {
    uint64_t pixels = (uint64_t)source->width * (uint64_t)source->height;
    return source->orientation == 1 ? 0 : 4 * (pixels + (uint64_t)shown_width(source));
}

static void store_row(void *to, const uint8_t *row) {
    struct oriented *t = to;
    memcpy(t->next, row, t->bytes * (size_t)t->source->width);
    t->next += t->bytes * (size_t)t->source->width;
}

/* Passes the decoded rows on in the orientation that EXIF tag 274 gives. Source: EXIF 2.3. */
static void write_oriented(const struct oriented *t, const struct row_sink *rows) {
    static const bool left[] = {[2] = true, [3] = true, [7] = true, [8] = true},
                      up[] = {[3] = true, [4] = true, [6] = true, [7] = true, [8] = false};
    const struct picture_source *s = t->source;
    for (int y = 0; y < shown_height(s); y++) {
        for (int x = 0; x < shown_width(s); x++) {
            int column = s->orientation > 4 ? y : x, row = s->orientation > 4 ? x : y;
            if (left[s->orientation]) column = s->width - 1 - column;
            if (up[s->orientation]) row = s->height - 1 - row;
            size_t from = (size_t)row * (size_t)s->width + (size_t)column;
            memcpy(t->row + t->bytes * (size_t)x, t->pixels + t->bytes * from, t->bytes);
        }
        rows->take(rows->to, t->row);
    }
}

static int decode_oriented(struct picture_source *source, const struct row_sink *rows,
                           struct sluice_error *e) {
    if (source->orientation == 1) return formats[source->format].decode(source, rows, e);
    struct oriented t = {
        .source = source, .bytes = rows->rgba ? 4 : 3, .pixels = malloc(orientation_bytes(source))};
    if (!t.pixels) return picture_no_memory(source->name, e);
    t.next = t.pixels;
    t.row = t.pixels + t.bytes * (size_t)source->width * (size_t)source->height;
    int status = formats[source->format].decode(source, &(struct row_sink){store_row, &t, rows->rgba}, e);
    if (!status) write_oriented(&t, rows);
    free(t.pixels);
    return status;
}

int picture_open(const char *name, struct sluice_picture *picture, unsigned *notes, struct sluice_error *e) {
    struct picture_source source;
    int status = open_source(&source, name, e);
    if (source.from) fclose(source.from);
    *picture = (struct sluice_picture){.struct_size = sizeof *picture, .name = name};
    if (status) return status;
    picture->width = shown_width(&source);
    picture->height = shown_height(&source);
    picture->reading_bytes = source.reading_bytes + orientation_bytes(&source);
    *notes = source.notes;
    return SLUICE_OK;
}

int picture_read(const struct sluice_picture *picture, const struct row_sink *rows, unsigned *notes,
                 struct sluice_error *e) {
    struct picture_source source;
    int status = open_source(&source, picture->name, e);
    *notes = 0;
    if (!status && (shown_width(&source) != picture->width || shown_height(&source) != picture->height))
        status = fail(e, SLUICE_CHANGED,
                      "the image file changed during the run" WHERE "%s" FOUND "%dx%d" EXPECTED "%dx%d",
                      source.name, source.width, source.height, picture->width, picture->height);
    unsigned known = source.notes;
    if (!status) status = decode_oriented(&source, rows, e);
    if (source.from) fclose(source.from);
    *notes = source.notes & ~known & ~(rows->rgba ? PICTURE_TRANSPARENT : 0u);
    return status;
}

/* ---- writing ---- */

/* Returns the image format of a name's extension, or NULL. A file named ".png" has no extension. */
static const struct format *format_of(const char *name) {
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name, *dot = strrchr(base, '.');
    if (strcmp(name, "-") == 0) return &formats[0];
    for (int i = 0; dot && dot > base && i < N_FORMATS; i++)
        if (!strcasecmp(dot, formats[i].extension) || (formats[i].also && !strcasecmp(dot, formats[i].also)))
            return &formats[i];
    return NULL;
}

bool picture_has_extension(const char *name) {
    return format_of(name) != NULL;
}

int picture_check_name(const char *name, struct sluice_error *e) {
    const struct format *format = format_of(name);
    if (format && format->encode) return SLUICE_OK;
    if (!format)
        return fail_value(e, "--output", name,
                          "a file name ending in .png, .jpg, .jpeg or .webp; for videos .mp4, .webm or .gif");
    return fail(e, SLUICE_USAGE,
                "this program was built without %s and cannot write this image format" WHERE "--output" FOUND
                "\"%s\"" EXPECTED "a .png file",
                format->library, name);
}

int picture_write_bytes_a_pixel(const char *name, bool alpha) {
    const struct format *format = format_of(name);
    if (!format) return 0;
    return alpha ? format->alpha_bytes_a_pixel : format->bytes_a_pixel;
}

int picture_max_side(const char *name) {
    const struct format *format = format_of(name);
    return format ? format->side_most : ANY_SIDE;
}

bool picture_takes_quality(const char *name) {
    const struct format *format = format_of(name);
    return format && format->quality;
}

bool picture_keeps_alpha(const char *name) {
    const struct format *format = format_of(name);
    return format && format->alpha;
}

int picture_unencodable(const char *name, const char *message, struct sluice_error *e) {
    return fail(e, SLUICE_OUTPUT, "cannot encode the image: %s" WHERE "%s", message, name);
}

void picture_join_row(const struct sluice_image *image, size_t y, uint8_t *to) {
    size_t columns = (size_t)image->width;
    const uint8_t *rgb = image->rgb + 3 * y * columns, *alpha = image->alpha + y * columns;
    for (size_t x = 0; x < columns; x++, to += 4) {
        memcpy(to, rgb + 3 * x, 3);
        to[3] = alpha[x];
    }
}

int picture_write(const char *name, const struct picture_content *content, struct sluice_error *e) {
    const struct format *format = format_of(name);
    struct outfile out;
    if (strcmp(name, "-") == 0) {
        int status = format->encode(stdout, "stdout", content, e);
        return status ? status : outfile_flush_stdout(e);
    }
    int status = outfile_open(&out, name, e);
    if (status) return status;
    status = format->encode(out.file, name, content, e);
    if (!status) return outfile_commit(&out, e);
    outfile_abandon(&out);
    return status;
}
