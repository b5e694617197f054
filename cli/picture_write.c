#include "cli/picture_write.h"

#include "cli/fail.h"
#include "cli/outfile.h"

#include <string.h>

/* The WebP encoder's memory, measured with noise of 2048x2048 at quality 100: 4.0 bytes per pixel, including
 * 1 MiB and the encoded file. */
enum { ANY_SIDE = SLUICE_SIDE_MAX, WEBP_SIDE = 16383, WEBP_BYTES_A_PIXEL = 6 };

#ifndef PICTURES_JPEG
#define picture_encode_jpeg NULL
#endif
#ifndef PICTURES_WEBP
#define picture_encode_webp NULL
#endif

typedef int picture_encoder(FILE *to, const char *name, const struct picture_content *content,
                            struct sluice_error *e);

/* Image formats. encode: NULL if the program was built without the library. */
static const struct format {
    const char *extension, *library;
    picture_encoder *encode;
    bool quality;
    int side_most, bytes_a_pixel;
} formats[] = {
    {".png", "libpng", picture_encode_png, false, ANY_SIDE, 0},
    {".jpg", "libjpeg", picture_encode_jpeg, true, ANY_SIDE, 0},
    {".jpeg", "libjpeg", picture_encode_jpeg, true, ANY_SIDE, 0},
    {".webp", "libwebp", picture_encode_webp, true, WEBP_SIDE, WEBP_BYTES_A_PIXEL},
};

/* NULL: unknown extension. A file named ".png" has no extension. */
static const struct format *find_format(const char *name) {
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name, *dot = strrchr(base, '.');
    if (strcmp(name, "-") == 0) return &formats[0];
    for (size_t i = 0; dot && dot > base && i < sizeof formats / sizeof *formats; i++)
        if (strcasecmp(dot, formats[i].extension) == 0) return &formats[i];
    return NULL;
}

bool picture_has_extension(const char *name) {
    return find_format(name) != NULL;
}

int picture_check_name(const char *name, struct sluice_error *e) {
    const struct format *format = find_format(name);
    if (format && format->encode) return SLUICE_OK;
    if (!format)
        return fail_value(e, "--output", name,
                          "a file name ending in .png, .jpg, .jpeg or .webp; for videos .mp4, .webm or .gif");
    return fail(e, SLUICE_USAGE,
                "this program was built without %s and cannot write this image format" WHERE "--output" FOUND
                "\"%s\"" EXPECTED "a .png file",
                format->library, name);
}

int picture_write_bytes_a_pixel(const char *name) {
    const struct format *format = find_format(name);
    return format ? format->bytes_a_pixel : 0;
}

int picture_max_side(const char *name) {
    const struct format *format = find_format(name);
    return format ? format->side_most : ANY_SIDE;
}

bool picture_takes_quality(const char *name) {
    const struct format *format = find_format(name);
    return format && format->quality;
}

int picture_unencodable(const char *name, const char *message, struct sluice_error *e) {
    return fail(e, SLUICE_OUTPUT, "cannot encode the image: %s" WHERE "%s", message, name);
}

int picture_write(const char *name, const struct picture_content *content, struct sluice_error *e) {
    picture_encoder *encode = find_format(name)->encode;
    struct outfile out;
    if (strcmp(name, "-") == 0) {
        int status = encode(stdout, "stdout", content, e);
        return status ? status : outfile_flush_stdout(e);
    }
    int status = outfile_open(&out, name, e);
    if (status) return status;
    status = encode(out.file, name, content, e);
    if (!status) return outfile_commit(&out, e);
    outfile_abandon(&out);
    return status;
}
