/* PNG with libpng. Its errors end in longjmp, so the state after setjmp is in struct decoder or struct
 * encoder, not in local variables.
 *
 * Decoding: the header is checked before libpng is called and before memory is allocated. Unneeded chunks are
 * skipped, so that their size does not matter.
 * Encoding: the text `parameters` is a tEXt chunk, which more tools read, or an iTXt chunk if Latin-1 cannot
 * hold it. */
#include "cli/picture.h"

#include "cli/fail.h"

#include <errno.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>

static void ignore_warning(png_structp png, png_const_charp message) {
    (void)png, (void)message;
}

/* ---- decoding ---- */

/* Bytes of the PNG signature and IHDR chunk, up to the colour type (LEAST) or to the interlace method. */
enum { LEAST_HEADER_BYTES = 26, HEADER_BYTES = 29 };

enum { LIBRARY_BYTES = 256 << 10 }; /* memory of libpng and zlib, without pixel rows */

struct decoder {
    png_structp png;
    png_infop info;
    FILE *from;
    const char *name;
    int width, height, depth, colours;
    bool interlaced;
    const struct row_sink *rows;
    size_t bytes;          /* per pixel: 3, or 4 with alpha */
    unsigned char *pixels; /* buffer of one row, or of all rows of an interlaced image */
    bool transparent;
    long long at;      /* file position: bytes read so far */
    long long allowed; /* limit of the bytes that may still be read from the file; negative: no limit */
    bool ended, failed, excessive;
    char message[120];
};

/* Reads signature and IHDR. A file that ends after the colour type is accepted here and fails in decoding. */
static int read_header(struct decoder *d, struct sluice_error *e) {
    /* Allowed bits per sample by colour type, as a set of powers of two. */
    static const unsigned char depths[] = {
        [0] = 1 | 2 | 4 | 8 | 16, [2] = 8 | 16, [3] = 1 | 2 | 4 | 8, [4] = 8 | 16, [6] = 8 | 16};
    unsigned char h[HEADER_BYTES] = {0};
    rewind(d->from);
    size_t bytes = fread(h, 1, sizeof h, d->from);
    if (ferror(d->from)) return picture_unreadable(d->name, errno, e);
    if (bytes < LEAST_HEADER_BYTES) return picture_too_short(d->name, (long long)bytes, e);
    png_uint_32 width = png_get_uint_32(h + 16), height = png_get_uint_32(h + 20);
    if (memcmp(h + 8, "\0\0\0\15IHDR", 8) != 0)
        return fail(e, SLUICE_TYPE,
                    "invalid PNG: the first chunk is not IHDR" WHERE "%s, byte 8" EXPECTED
                    "a chunk IHDR of 13 bytes",
                    d->name);
    if (picture_check_sides(d->name, width, height, e)) return e->code;
    d->width = (int)width;
    d->height = (int)height;
    d->depth = h[24];
    d->colours = h[25];
    d->interlaced = h[28];
    bool power = d->depth > 0 && d->depth <= 16 && (d->depth & (d->depth - 1)) == 0;
    if (power && d->colours < (int)sizeof depths && depths[d->colours] & d->depth) return SLUICE_OK;
    return fail(e, SLUICE_TYPE,
                "invalid PNG: unknown pixel format" WHERE "%s, byte 24" FOUND
                "%d bits, colour type %d" EXPECTED "1 to 16 bits and colour type 0, 2, 3, 4 or 6",
                d->name, d->depth, d->colours);
}

static void decode_on_error(png_structp png, png_const_charp message) {
    struct decoder *d = png_get_error_ptr(png);
    snprintf(d->message, sizeof d->message, "%s", message);
    png_longjmp(png, 1);
}

static void read_bytes(png_structp png, png_bytep to, size_t n) {
    struct decoder *d = png_get_io_ptr(png);
    d->excessive = d->allowed >= 0 && (long long)n > d->allowed;
    if (d->excessive) png_error(png, "more compressed data than the image needs");
    if (d->allowed >= 0) d->allowed -= (long long)n;
    size_t got = fread(to, 1, n, d->from);
    d->at += (long long)got;
    if (got == n) return;
    d->failed = ferror(d->from);
    d->ended = !d->failed;
    png_error(png, "read failed");
}

static bool has_palette(const struct decoder *d) {
    return d->colours == PNG_COLOR_TYPE_PALETTE;
}

/* Requests 8-bit rows of RGB or RGBA. Palette images keep their indices, because libpng would read beyond the
 * palette's end. */
static int transform(struct decoder *d) {
    if (has_palette(d)) {
        png_set_packing(d->png);
    } else {
        bool alpha = d->colours & PNG_COLOR_MASK_ALPHA, rgba = d->rows->rgba;
        if (d->depth < 8) png_set_expand_gray_1_2_4_to_8(d->png);
        if (rgba && d->transparent) png_set_tRNS_to_alpha(d->png);
        if (d->depth == 16) png_set_scale_16(d->png);
        if (alpha && !rgba) png_set_strip_alpha(d->png);
        if (rgba && !alpha && !d->transparent) png_set_add_alpha(d->png, 255, PNG_FILLER_AFTER);
        if (!(d->colours & PNG_COLOR_MASK_COLOR)) png_set_gray_to_rgb(d->png);
    }
    int passes = png_set_interlace_handling(d->png);
    png_read_update_info(d->png, d->info);
    size_t columns = (size_t)d->width * (has_palette(d) ? 1 : d->bytes);
    if (png_get_rowbytes(d->png, d->info) != columns) png_error(d->png, "rows of another size");
    return passes;
}

static unsigned char *row_of(const struct decoder *d, int y) {
    return d->pixels + (d->interlaced ? (size_t)y * (size_t)d->width * d->bytes : 0);
}

/* Replaces palette indices by colours in place, last pixel first: the indices lie at the row's start. */
static void expand_palette(struct decoder *d, unsigned char *row) {
    png_colorp palette = NULL;
    png_bytep alpha = NULL;
    int n = 0, n_alpha = 0;
    if (d->transparent) png_get_tRNS(d->png, d->info, &alpha, &n_alpha, NULL);
    png_get_PLTE(d->png, d->info, &palette, &n);
    for (size_t x = (size_t)d->width; x-- > 0;) {
        if (row[x] >= n) png_error(d->png, "palette index out of range");
        int index = row[x];
        unsigned char *pixel = row + d->bytes * x;
        pixel[0] = palette[index].red;
        pixel[1] = palette[index].green;
        pixel[2] = palette[index].blue;
        if (d->rows->rgba) pixel[3] = index < n_alpha ? alpha[index] : 255;
    }
}

/* False if libpng failed. Limits the compressed bytes per row, because libpng would inflate any amount of
 * data after the last row; a valid row needs little more than its size. */
static bool decode(struct decoder *d) {
    if (setjmp(png_jmpbuf(d->png))) return false;
    png_set_read_fn(d->png, d, read_bytes);
    png_set_user_limits(d->png, PICTURE_READ_SIDE_MAX, PICTURE_READ_SIDE_MAX);
    png_set_keep_unknown_chunks(d->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_chunk_malloc_max(d->png, PNG_UINT_31_MAX); /* libpng's size limit for chunks is switched off */
    /* Errors that libpng would repair silently (extra data, tRNS with too many entries) are errors here. */
    png_set_crc_action(d->png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_set_benign_errors(d->png, 0);
    png_read_info(d->png, d->info);
    d->transparent = png_get_valid(d->png, d->info, PNG_INFO_tRNS);
    int passes = transform(d);
    for (int pass = 0; pass < passes; pass++) {
        for (int y = 0; y < d->height; y++) {
            d->allowed = 16LL * 8 * d->width + 65536;
            png_read_row(d->png, row_of(d, y), NULL);
            if (pass < passes - 1) continue;
            if (has_palette(d)) expand_palette(d, row_of(d, y));
            d->rows->take(d->rows->to, row_of(d, y));
        }
    }
    d->allowed = -1;
    png_read_end(d->png, NULL);
    return true;
}

/* Maps parts of libpng's messages to error codes; the first match applies, IO if none matches. */
static const struct {
    const char *part;
    int code;
} error_codes[] = {
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

static int damaged(const struct decoder *d, struct sluice_error *e) {
    int code = SLUICE_IO;
    for (size_t i = sizeof error_codes / sizeof *error_codes; i-- > 0;)
        if (strstr(d->message, error_codes[i].part)) code = error_codes[i].code;
    if (d->excessive) code = SLUICE_LIMIT;
    if (d->ended) return picture_too_short(d->name, d->at, e);
    if (d->failed) return picture_unreadable(d->name, EIO, e);
    return fail(e, code, "%s" WHERE "%s, before byte %lld" FOUND "%s",
                code == SLUICE_MEMORY ? "no memory to read the image" : "the image is damaged", d->name,
                d->at, d->message);
}

static uint64_t buffer_bytes(const struct decoder *d) {
    return 4 * (uint64_t)d->width * (d->interlaced ? (uint64_t)d->height : 1);
}

/* Reads the orientation from the eXIf chunk before the image data; 1 if there is none. */
static int chunk_orientation(FILE *from) {
    unsigned char head[8];
    if (fseek(from, 8, SEEK_SET)) return 1;
    for (int i = 0; i < EXIF_CHUNKS_MAX && fread(head, 1, sizeof head, from) == sizeof head; i++) {
        png_uint_32 bytes = png_get_uint_32(head);
        if (memcmp(head + 4, "IDAT", 4) == 0) break;
        if (memcmp(head + 4, "eXIf", 4) == 0) return exif_orientation(from, bytes);
        if (bytes > PNG_UINT_31_MAX || fseek(from, (long)bytes + 4, SEEK_CUR)) break;
    }
    return 1;
}

int picture_png_read_info(struct picture_source *source, struct sluice_error *e) {
    struct decoder d = {.from = source->from, .name = source->name};
    if (read_header(&d, e)) return e->code;
    source->width = d.width;
    source->height = d.height;
    source->notes = d.colours & PNG_COLOR_MASK_ALPHA ? PICTURE_TRANSPARENT : 0;
    source->reading_bytes = buffer_bytes(&d) + LIBRARY_BYTES;
    source->orientation = chunk_orientation(d.from);
    return SLUICE_OK;
}

int picture_png_decode(struct picture_source *source, const struct row_sink *rows, struct sluice_error *e) {
    struct decoder d = {.from = source->from, .name = source->name, .rows = rows, .allowed = -1};
    if (read_header(&d, e)) return e->code;
    rewind(d.from);
    d.bytes = rows->rgba ? 4 : 3;
    d.pixels = malloc(buffer_bytes(&d));
    d.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &d, decode_on_error, ignore_warning);
    d.info = d.png ? png_create_info_struct(d.png) : NULL;
    if (!d.info || !d.pixels) snprintf(d.message, sizeof d.message, "out of memory");
    bool done = d.info && d.pixels && decode(&d);
    png_destroy_read_struct(&d.png, &d.info, NULL);
    free(d.pixels);
    if (d.transparent) source->notes |= PICTURE_TRANSPARENT;
    return done ? SLUICE_OK : damaged(&d, e);
}

/* ---- encoding ---- */

struct encoder {
    png_structp png;
    png_infop info;
    FILE *to;
    const struct sluice_image *image;
    char *latin1; /* generation parameters in Latin-1; NULL: Latin-1 cannot hold them */
    const char *utf8;
    unsigned char *row; /* with alpha: a row of RGBA quadruples */
    int problem;        /* errno of a failed write, or 0 */
    char message[160];
};

static void encode_on_error(png_structp png, png_const_charp message) {
    struct encoder *encoder = png_get_error_ptr(png);
    snprintf(encoder->message, sizeof encoder->message, "%s", message);
    png_longjmp(png, 1);
}

static void write_bytes(png_structp png, png_bytep bytes, size_t n) {
    struct encoder *encoder = png_get_io_ptr(png);
    errno = 0;
    if (fwrite(bytes, 1, n, encoder->to) == n) return;
    encoder->problem = errno ? errno : EIO;
    png_error(png, "write failed");
}

static void flush_bytes(png_structp png) {
    (void)png;
}

/* Converts well-formed UTF-8 to Latin-1, to be freed. NULL: a character above U+00FF, or out of memory. */
static char *to_latin1(const char *utf8) {
    char *out = malloc(strlen(utf8) + 1), *end = out;
    for (const unsigned char *in = (const unsigned char *)utf8; out && *in; in++) {
        if (*in > 0xC3) {
            free(out);
            return NULL;
        }
        unsigned code = *in;
        if (code >= 0xC2) code = (code & 3) << 6 | (*++in & 0x3F);
        *end++ = (char)code;
    }
    if (out) *end = 0;
    return out;
}

static bool encode(struct encoder *encoder) {
    const struct sluice_image *image = encoder->image;
    if (setjmp(png_jmpbuf(encoder->png))) return false;
    png_set_write_fn(encoder->png, encoder, write_bytes, flush_bytes);
    png_set_IHDR(encoder->png, encoder->info, (png_uint_32)image->width, (png_uint_32)image->height, 8,
                 image->alpha ? PNG_COLOR_TYPE_RGBA : PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    char key[] = "parameters", *utf8 = (char *)(uintptr_t)encoder->utf8; /* libpng only reads the text */
    png_text text = {.key = key, .text = encoder->latin1 ? encoder->latin1 : utf8};
    text.compression = encoder->latin1 ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
    if (encoder->utf8) png_set_text(encoder->png, encoder->info, &text, 1);
    png_write_info(encoder->png, encoder->info);
    for (size_t y = 0, columns = (size_t)image->width; y < (size_t)image->height; y++) {
        const uint8_t *row = image->rgb + y * columns * 3;
        if (image->alpha) picture_join_row(image, y, encoder->row);
        png_write_row(encoder->png, image->alpha ? encoder->row : row);
    }
    png_write_end(encoder->png, encoder->info);
    return true;
}

int picture_encode_png(FILE *to, const char *name, const struct picture_content *content,
                       struct sluice_error *e) {
    struct encoder encoder = {.to = to, .image = content->image, .utf8 = content->parameters};
    encoder.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &encoder, encode_on_error, ignore_warning);
    encoder.info = encoder.png ? png_create_info_struct(encoder.png) : NULL;
    encoder.latin1 = content->parameters ? to_latin1(content->parameters) : NULL;
    if (content->image->alpha) encoder.row = malloc(4 * (size_t)content->image->width);
    bool done = encoder.info && (encoder.row || !content->image->alpha) && encode(&encoder);
    free(encoder.latin1);
    free(encoder.row);
    png_destroy_write_struct(&encoder.png, &encoder.info);
    if (done) return SLUICE_OK;
    if (encoder.problem) return fail_output(e, name, encoder.problem);
    return picture_unencodable(name, encoder.message[0] ? encoder.message : "no memory", e);
}
