/* WebP encoder. libwebp encodes the image chunk; the extended container with the EXIF
 * chunk is written here. Source of the container: RFC 9649. */
#include "cli/exif.h"
#include "cli/fail.h"
#include "cli/picture_write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <webp/encode.h>

enum { RIFF_BYTES = 12, CHUNK_BYTES = 8, EXTENDED_BYTES = 10, HAS_EXIF = 8, EXIF_MARK_BYTES = 6 };

static unsigned char *put_little(unsigned char *to, size_t value, int n) {
    for (int i = 0; i < n; i++) *to++ = (unsigned char)(value >> 8 * i);
    return to;
}

static unsigned char *put_chunk_head(unsigned char *to, const char *type, size_t bytes) {
    memcpy(to, type, 4);
    return put_little(to + 4, bytes, 4);
}

/* Writes the bytes before the image chunk: RIFF header and VP8X chunk. Returns their number. */
static size_t webp_head(unsigned char *head, const struct sluice_image *image, size_t own_bytes,
                        size_t exif_bytes) {
    size_t all = 4 + CHUNK_BYTES + EXTENDED_BYTES + own_bytes + CHUNK_BYTES + exif_bytes + (exif_bytes & 1);
    unsigned char *to = put_chunk_head(head, "RIFF", all);
    memcpy(to, "WEBP", 4);
    to = put_chunk_head(to + 4, "VP8X", EXTENDED_BYTES);
    to = put_little(to, HAS_EXIF, 4);
    to = put_little(to, (size_t)image->width - 1, 3);
    return (size_t)(put_little(to, (size_t)image->height - 1, 3) - head);
}

static bool put_bytes(FILE *to, const void *from, size_t bytes) {
    return fwrite(from, 1, bytes, to) == bytes;
}

static bool put_all(FILE *to, const struct sluice_image *image, const WebPMemoryWriter *encoded_data,
                    const struct exif *exif) {
    unsigned char head[64], chunk[CHUNK_BYTES];
    if (!exif->bytes) return put_bytes(to, encoded_data->mem, encoded_data->size);
    size_t own = encoded_data->size - RIFF_BYTES, text = exif->bytes - EXIF_MARK_BYTES;
    put_chunk_head(chunk, "EXIF", text);
    return put_bytes(to, head, webp_head(head, image, own, text)) &&
           put_bytes(to, encoded_data->mem + RIFF_BYTES, own) && put_bytes(to, chunk, sizeof chunk) &&
           put_bytes(to, exif->at + EXIF_MARK_BYTES, text + (text & 1));
}

/* On failure picture->error_code has the reason. */
static bool webp_encode(const struct picture_content *content, WebPPicture *picture,
                        WebPMemoryWriter *encoded_data) {
    WebPConfig config;
    if (!WebPConfigPreset(&config, WEBP_PRESET_DEFAULT, (float)content->quality)) return false;
    config.low_memory = 1; /* with low_memory libwebp needs a seventh of the memory */
    picture->width = content->image->width;
    picture->height = content->image->height;
    picture->writer = WebPMemoryWrite;
    picture->custom_ptr = encoded_data;
    return WebPPictureImportRGB(picture, content->image->rgb, 3 * content->image->width) &&
           WebPEncode(&config, picture);
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
