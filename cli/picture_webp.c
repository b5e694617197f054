/* WebP with libwebp. Source of the format: RFC 9649.
 *
 * Decoding: libwebp decodes only whole images; file and pixels are in memory meanwhile, which reading_bytes
 * counts. Encoding: libwebp encodes the image chunk; the extended container with the EXIF chunk is written
 * here. */
#include "cli/picture.h"

#include "cli/fail.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <webp/decode.h>
#include <webp/encode.h>

/* ---- decoding ---- */

/* Memory of decoding. Per pixel: the RGB or RGBA result, libwebp's buffer for a lossy image with
 * transparency, its buffer for a lossless image. In total: libwebp's tables and rows. */
enum { RESULT_BYTES = 4, ALPHA_BYTES = 2, EXACT_BYTES = 4, WEBP_LIBRARY_BYTES = 2 << 20 };

enum { FRAME_BYTES = 16 }; /* header of an ANMF chunk, before the frame's chunks */

/* Properties of a WebP image, or of an animation's first frame. */
struct webp {
    long first, bytes; /* position and size of an animation's first frame; 0, 0: no animation */
    int width, height, orientation;
    bool lossy; /* VP8 chunk found */
    unsigned notes;
};

static unsigned long read_little(const unsigned char *at, int n) {
    unsigned long value = 0;
    while (n-- > 0) value = value << 8 | at[n];
    return value;
}

static void webp_set_size(struct webp *w, unsigned long width, unsigned long height) {
    w->width = (int)width;
    w->height = (int)height;
}

/* Reads size and properties from the first bytes of a chunk. */
static void webp_read_chunk(struct webp *w, const char *type, const unsigned char *data, long at,
                            long bytes) {
    enum { ANIMATED = 2, ALPHA = 16 };
    bool sized = w->width > 0;
    if (!memcmp(type, "VP8 ", 4)) w->lossy = true;
    if (!memcmp(type, "VP8X", 4)) {
        if (data[0] & ALPHA) w->notes |= PICTURE_TRANSPARENT;
        if (data[0] & ANIMATED) w->notes |= PICTURE_ANIMATED;
        if (!(data[0] & ANIMATED))
            webp_set_size(w, read_little(data + 4, 3) + 1, read_little(data + 7, 3) + 1);
    } else if (!memcmp(type, "ANMF", 4) && !sized) {
        webp_set_size(w, read_little(data + 6, 3) + 1, read_little(data + 9, 3) + 1);
        w->first = at + FRAME_BYTES;
        w->bytes = bytes - FRAME_BYTES;
    } else if (!memcmp(type, "VP8 ", 4) && !sized) {
        webp_set_size(w, read_little(data + 6, 2) & 0x3FFF, read_little(data + 8, 2) & 0x3FFF);
    } else if (!memcmp(type, "VP8L", 4) && !sized) {
        unsigned long bits = read_little(data + 1, 4);
        webp_set_size(w, (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1);
        if (bits >> 28 & 1) w->notes |= PICTURE_TRANSPARENT;
    }
}

/* Walks all chunks, including those inside the first frame, and reads their first bytes. Some writers put
 * "Exif\0\0" before the EXIF data. */
static void webp_walk(struct webp *w, FILE *from) {
    unsigned char head[8], data[12];
    long at = 12;
    for (int i = 0; i < EXIF_CHUNKS_MAX && !fseek(from, at, SEEK_SET); i++) {
        if (fread(head, 1, sizeof head, from) != sizeof head) break;
        unsigned long bytes = read_little(head + 4, 4);
        memset(data, 0, sizeof data);
        size_t got = fread(data, 1, bytes < sizeof data ? bytes : sizeof data, from);
        if (!memcmp(head, "EXIF", 4)) {
            long skipped = got >= 6 && !memcmp(data, "Exif\0", 6) ? 6 : 0;
            if (!fseek(from, at + 8 + skipped, SEEK_SET)) w->orientation = exif_orientation(from, bytes);
        } else if (got >= 10 || !memcmp(head, "VP8L", 4)) {
            webp_read_chunk(w, (const char *)head, data, at + 8, (long)bytes);
        }
        at += 8 + (w->first == at + 8 + FRAME_BYTES ? FRAME_BYTES : (long)(bytes + (bytes & 1)));
    }
}

static long webp_file_bytes(FILE *from) {
    return fseek(from, 0, SEEK_END) ? -1 : ftell(from);
}

static int webp_damaged(const char *name, VP8StatusCode why, struct sluice_error *e) {
    if (why == VP8_STATUS_OUT_OF_MEMORY) return picture_no_memory(name, e);
    bool early = why == VP8_STATUS_NOT_ENOUGH_DATA || why == VP8_STATUS_SUSPENDED;
    return fail(e, early ? SLUICE_TRUNC : SLUICE_IO, "%s" WHERE "%s",
                early ? "the image file ends too early, maybe an incomplete download"
                      : "the image is damaged: invalid WebP",
                name);
}

int picture_webp_read_info(struct picture_source *source, struct sluice_error *e) {
    struct webp w = {.orientation = 1};
    webp_walk(&w, source->from);
    long bytes = webp_file_bytes(source->from);
    if (ferror(source->from) || bytes < 0) return picture_unreadable(source->name, errno ? errno : EIO, e);
    if (!w.width) return webp_damaged(source->name, VP8_STATUS_NOT_ENOUGH_DATA, e);
    if (picture_check_sides(source->name, w.width, w.height, e)) return e->code;
    source->width = w.width;
    source->height = w.height;
    source->orientation = w.orientation;
    source->notes = w.notes;
    int more = !w.lossy ? EXACT_BYTES : w.notes & PICTURE_TRANSPARENT ? ALPHA_BYTES : 0;
    source->reading_bytes = (uint64_t)bytes + WEBP_LIBRARY_BYTES +
                            (uint64_t)(RESULT_BYTES + more) * (uint64_t)w.width * (uint64_t)w.height;
    return SLUICE_OK;
}

/* Loads the bytes of the first frame into a new buffer. */
static uint8_t *webp_load(FILE *from, size_t *bytes) {
    struct webp w = {.orientation = 1};
    webp_walk(&w, from);
    long all = webp_file_bytes(from);
    if (!w.first || w.first > all) w.first = 0, w.bytes = all;
    if (w.bytes > all - w.first) w.bytes = all - w.first;
    if (w.bytes < 0) w.bytes = 0;
    uint8_t *data = malloc((size_t)w.bytes + 1);
    *bytes = data && !fseek(from, w.first, SEEK_SET) ? fread(data, 1, (size_t)w.bytes, from) : 0;
    return data;
}

int picture_webp_decode(struct picture_source *source, const struct row_sink *rows, struct sluice_error *e) {
    size_t bytes, pitch = (rows->rgba ? 4 : 3) * (size_t)source->width;
    uint8_t *data = webp_load(source->from, &bytes), *pixels = malloc(pitch * (size_t)source->height);
    WebPDecoderConfig config;
    VP8StatusCode why = VP8_STATUS_OUT_OF_MEMORY;
    if (data && pixels && WebPInitDecoderConfig(&config)) why = WebPGetFeatures(data, bytes, &config.input);
    /* libwebp does not notice an animation that is cut off after its first frame: the file must be as long as
     * its RIFF header says. */
    unsigned char head[8];
    bool read = !fseek(source->from, 0, SEEK_SET) && fread(head, 1, sizeof head, source->from) == sizeof head;
    if (why == VP8_STATUS_OK && (!read || webp_file_bytes(source->from) < 8 + (long)read_little(head + 4, 4)))
        why = VP8_STATUS_NOT_ENOUGH_DATA;
    if (why == VP8_STATUS_OK &&
        (config.input.width != source->width || config.input.height != source->height))
        why = VP8_STATUS_BITSTREAM_ERROR;
    if (why == VP8_STATUS_OK) {
        config.output.colorspace = rows->rgba ? MODE_RGBA : MODE_RGB;
        config.output.is_external_memory = 1;
        config.output.u.RGBA = (WebPRGBABuffer){pixels, (int)pitch, pitch * (size_t)source->height};
        why = WebPDecode(data, bytes, &config);
    }
    for (size_t y = 0; why == VP8_STATUS_OK && y < (size_t)source->height; y++)
        rows->take(rows->to, pixels + y * pitch);
    free(data);
    free(pixels);
    return why == VP8_STATUS_OK ? SLUICE_OK : webp_damaged(source->name, why, e);
}

/* ---- encoding ---- */

enum {
    RIFF_BYTES = 12,
    CHUNK_BYTES = 8,
    EXTENDED_BYTES = 10,
    HAS_EXIF = 8,
    HAS_ALPHA = 16,
    EXIF_MARK_BYTES = 6
};

static unsigned char *put_little(unsigned char *to, size_t value, int n) {
    for (int i = 0; i < n; i++) *to++ = (unsigned char)(value >> 8 * i);
    return to;
}

static unsigned char *put_chunk_head(unsigned char *to, const char *type, size_t bytes) {
    memcpy(to, type, 4);
    return put_little(to + 4, bytes, 4);
}

static bool put_bytes(FILE *to, const void *from, size_t bytes) {
    return fwrite(from, 1, bytes, to) == bytes;
}

/* Writes the file: as libwebp encoded it, or with EXIF in the extended container: RIFF header, VP8X chunk,
 * alpha chunk, image chunk, EXIF chunk. Replaces the VP8X chunk that libwebp writes for images with alpha. */
static bool put_all(FILE *to, const struct sluice_image *image, const WebPMemoryWriter *encoded_data,
                    const struct exif *exif) {
    unsigned char head[64], chunk[CHUNK_BYTES];
    if (!exif->bytes) return put_bytes(to, encoded_data->mem, encoded_data->size);
    bool extended = encoded_data->size > RIFF_BYTES && !memcmp(encoded_data->mem + RIFF_BYTES, "VP8X", 4);
    size_t first = RIFF_BYTES + (extended ? CHUNK_BYTES + EXTENDED_BYTES : 0);
    size_t chunks = encoded_data->size - first, text = exif->bytes - EXIF_MARK_BYTES;
    size_t all = 4 + CHUNK_BYTES + EXTENDED_BYTES + chunks + CHUNK_BYTES + text + (text & 1);
    unsigned char *next = put_chunk_head(head, "RIFF", all);
    memcpy(next, "WEBP", 4);
    next = put_chunk_head(next + 4, "VP8X", EXTENDED_BYTES);
    next = put_little(next, HAS_EXIF | (extended ? HAS_ALPHA : 0), 4);
    next = put_little(next, (size_t)image->width - 1, 3);
    next = put_little(next, (size_t)image->height - 1, 3);
    put_chunk_head(chunk, "EXIF", text);
    return put_bytes(to, head, (size_t)(next - head)) && put_bytes(to, encoded_data->mem + first, chunks) &&
           put_bytes(to, chunk, sizeof chunk) && put_bytes(to, exif->at + EXIF_MARK_BYTES, text + (text & 1));
}

/* Converts the pixels to a WebPPicture. Colours and alpha are first joined in an RGBA copy. */
static bool webp_import(WebPPicture *picture, const struct sluice_image *image) {
    size_t pitch = 4 * (size_t)image->width;
    if (!image->alpha) return WebPPictureImportRGB(picture, image->rgb, 3 * image->width);
    uint8_t *rgba = malloc(pitch * (size_t)image->height);
    for (size_t y = 0; rgba && y < (size_t)image->height; y++) picture_join_row(image, y, rgba + y * pitch);
    bool imported = rgba && WebPPictureImportRGBA(picture, rgba, (int)pitch);
    if (!rgba) picture->error_code = VP8_ENC_ERROR_OUT_OF_MEMORY;
    free(rgba);
    return imported;
}

/* Encodes the image with libwebp. On failure picture->error_code has the reason. */
static bool webp_encode(const struct picture_content *content, WebPPicture *picture,
                        WebPMemoryWriter *encoded_data) {
    WebPConfig config;
    if (!WebPConfigPreset(&config, WEBP_PRESET_DEFAULT, (float)content->quality)) return false;
    config.low_memory = 1; /* with low_memory libwebp needs a seventh of the memory */
    picture->width = content->image->width;
    picture->height = content->image->height;
    picture->writer = WebPMemoryWrite;
    picture->custom_ptr = encoded_data;
    return webp_import(picture, content->image) && WebPEncode(&config, picture);
}

int picture_encode_webp(FILE *to, const char *name, const struct picture_content *content,
                        struct sluice_error *e) {
    WebPMemoryWriter encoded_data;
    WebPPicture picture;
    struct exif exif = {0};
    if (content->parameters && !exif_from_comment(content->parameters, &exif))
        return fail(e, SLUICE_MEMORY, "no memory for the image's metadata");
    WebPMemoryWriterInit(&encoded_data);
    bool encoded = WebPPictureInit(&picture) && webp_encode(content, &picture, &encoded_data);
    errno = 0;
    if (!encoded)
        picture_unencodable(
            name, picture.error_code == VP8_ENC_ERROR_OUT_OF_MEMORY ? "no memory" : "libwebp failed", e);
    else if (!put_all(to, content->image, &encoded_data, &exif))
        fail_output(e, name, errno ? errno : EIO);
    WebPPictureFree(&picture);
    WebPMemoryWriterClear(&encoded_data);
    free(exif.at);
    return e->code;
}
