/* PNG encoder. The text `parameters` is a tEXt chunk, which more tools read, or an iTXt
 * chunk if Latin-1 cannot hold it. libpng reports errors by longjmp, so the state after setjmp is in struct
 * encoder, not in local variables. */
#include "cli/fail.h"
#include "cli/picture_write.h"

#include <errno.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct encoder {
    png_structp png;
    png_infop info;
    FILE *to;
    const struct sluice_image *image;
    char *latin1; /* the text in Latin-1; NULL: Latin-1 cannot hold it */
    const char *utf8;
    int problem; /* errno of a failed write */
    char message[160];
};

static void encode_png_on_error(png_structp png, png_const_charp message) {
    struct encoder *encoder = png_get_error_ptr(png);
    snprintf(encoder->message, sizeof encoder->message, "%s", message);
    png_longjmp(png, 1);
}

static void encode_png_on_warning(png_structp png, png_const_charp message) {
    (void)png;
    (void)message;
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

static void set_text(struct encoder *encoder) {
    char key[] = "parameters", *utf8 = (char *)(uintptr_t)encoder->utf8; /* libpng only reads it */
    png_text text = {.key = key, .text = encoder->latin1 ? encoder->latin1 : utf8};
    text.compression = encoder->latin1 ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
    if (encoder->utf8) png_set_text(encoder->png, encoder->info, &text, 1);
}

static bool encode(struct encoder *encoder) {
    const struct sluice_image *image = encoder->image;
    if (setjmp(png_jmpbuf(encoder->png))) return false;
    png_set_write_fn(encoder->png, encoder, write_bytes, flush_bytes);
    png_set_IHDR(encoder->png, encoder->info, (png_uint_32)image->width, (png_uint_32)image->height, 8,
                 PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    set_text(encoder);
    png_write_info(encoder->png, encoder->info);
    for (size_t y = 0; y < (size_t)image->height; y++)
        png_write_row(encoder->png, image->rgb + y * (size_t)image->width * 3);
    png_write_end(encoder->png, encoder->info);
    return true;
}

int picture_encode_png(FILE *to, const char *name, const struct picture_content *content,
                       struct sluice_error *e) {
    struct encoder encoder = {.to = to, .image = content->image, .utf8 = content->parameters};
    encoder.png =
        png_create_write_struct(PNG_LIBPNG_VER_STRING, &encoder, encode_png_on_error, encode_png_on_warning);
    encoder.info = encoder.png ? png_create_info_struct(encoder.png) : NULL;
    encoder.latin1 = content->parameters ? to_latin1(content->parameters) : NULL;
    bool done = encoder.info && encode(&encoder);
    free(encoder.latin1);
    png_destroy_write_struct(&encoder.png, &encoder.info);
    if (done) return SLUICE_OK;
    if (encoder.problem) return fail_output(e, name, encoder.problem);
    return picture_unencodable(name, encoder.message[0] ? encoder.message : "no memory", e);
}
