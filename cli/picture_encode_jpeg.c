/* JPEG encoder. Below quality 90 chroma is subsampled (4:2:0); above, edges between pure
 * colours stay sharp (4:4:4). libjpeg reports errors by longjmp, so the state after setjmp is in struct
 * jpeg_encoder, not in local variables. */
#include "cli/exif.h"
#include "cli/fail.h"
#include "cli/picture_write.h"
#include "cli/messages.h"

#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>

#include <jpeglib.h>
#include <jerror.h>

enum { FULL_COLOUR_QUALITY = 90, APP1_BYTES_MAX = 65533 };

struct jpeg_encoder {
    struct jpeg_compress_struct to;
    struct jpeg_error_mgr errors;
    jmp_buf end;
    int problem; /* errno of a failed write */
    char message[JMSG_LENGTH_MAX];
};

static void encode_jpeg_on_error(j_common_ptr common) {
    struct jpeg_encoder *encoder = common->client_data;
    if (common->err->msg_code == JERR_FILE_WRITE) encoder->problem = errno ? errno : EIO;
    common->err->format_message(common, encoder->message);
    longjmp(encoder->end, 1);
}

static void encode_jpeg_on_message(j_common_ptr common, int level) {
    (void)common, (void)level;
}

static void encode_jpeg_begin(struct jpeg_encoder *encoder, FILE *file,
                              const struct picture_content *content) {
    struct jpeg_compress_struct *to = &encoder->to;
    jpeg_create_compress(to);
    jpeg_stdio_dest(to, file);
    to->image_width = (JDIMENSION)content->image->width;
    to->image_height = (JDIMENSION)content->image->height;
    to->input_components = 3;
    to->in_color_space = JCS_RGB;
    jpeg_set_defaults(to);
    jpeg_set_quality(to, content->quality, TRUE);
    if (content->quality >= FULL_COLOUR_QUALITY)
        to->comp_info[0].h_samp_factor = to->comp_info[0].v_samp_factor = 1;
    jpeg_start_compress(to, TRUE);
}

static bool encode_jpeg_rows(struct jpeg_encoder *encoder, FILE *file, const struct picture_content *content,
                             const struct exif *exif) {
    if (setjmp(encoder->end)) return false;
    encode_jpeg_begin(encoder, file, content);
    if (exif->bytes) jpeg_write_marker(&encoder->to, JPEG_APP0 + 1, exif->at, (unsigned)exif->bytes);
    while (encoder->to.next_scanline < encoder->to.image_height) {
        const uint8_t *rgb =
            content->image->rgb + 3 * (size_t)encoder->to.next_scanline * encoder->to.image_width;
        JSAMPROW row = (JSAMPROW)(uintptr_t)rgb; /* libjpeg only reads it */
        jpeg_write_scanlines(&encoder->to, &row, 1);
    }
    jpeg_finish_compress(&encoder->to);
    return true;
}

int picture_encode_jpeg(FILE *to, const char *name, const struct picture_content *content,
                        struct sluice_error *e) {
    struct jpeg_encoder encoder = {.problem = 0};
    struct exif exif = {0};
    if (content->parameters && !exif_from_comment(content->parameters, &exif))
        return fail(e, SLUICE_MEMORY, "no memory for the image's metadata");
    if (exif.bytes > APP1_BYTES_MAX) {
        message_note("warning: %s has no metadata: the text is too long for JPEG", name);
        exif.bytes = 0;
    }
    encoder.to.err = jpeg_std_error(&encoder.errors);
    encoder.to.client_data = &encoder;
    encoder.errors.error_exit = encode_jpeg_on_error;
    encoder.errors.emit_message = encode_jpeg_on_message;
    errno = 0;
    bool done = encode_jpeg_rows(&encoder, to, content, &exif);
    jpeg_destroy_compress(&encoder.to);
    free(exif.at);
    if (done) return SLUICE_OK;
    return encoder.problem ? fail_output(e, name, encoder.problem)
                           : picture_unencodable(name, encoder.message, e);
}
