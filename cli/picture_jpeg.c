/* JPEG with libjpeg. Its errors end in longjmp, so the state after setjmp is in struct jpeg or struct
 * jpeg_encoder, not in local variables.
 *
 * Decoding: errors that libjpeg would repair silently (missing data, invalid codes) are errors here.
 * Encoding: below quality 90 chroma is subsampled (4:2:0); above, edges between pure colours stay sharp
 * (4:4:4). */
#include "cli/picture.h"

#include "cli/fail.h"
#include "cli/messages.h"

#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

/* ---- decoding ---- */

/* JPEG_LIBRARY_BYTES: memory of libjpeg without rows of blocks. SCANS_MAX: limit of scans, since each scan
 * costs a pass over the image, however few bytes it has. Encoders write about ten. */
enum { JPEG_LIBRARY_BYTES = 512 << 10, SCANS_MAX = 100, CMYK_COMPONENTS = 4, ROWS_OF_BLOCKS = 8 };

enum { APP1 = 0xE1, START_OF_SCAN = 0xDA };

struct jpeg {
    struct jpeg_decompress_struct from;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf end;
    const struct row_sink *rows;
    unsigned char *row;
    bool too_many_scans, no_memory;
    char message[JMSG_LENGTH_MAX];
    int problem; /* libjpeg's message code */
};

static void decode_on_error(j_common_ptr common) {
    struct jpeg *j = common->client_data;
    j->problem = common->err->msg_code;
    common->err->format_message(common, j->message);
    longjmp(j->end, 1);
}

/* Warnings become errors, except extra bytes between markers and an inconsistent Adobe marker: they change no
 * pixel. */
static void decode_on_message(j_common_ptr common, int level) {
    int code = common->err->msg_code;
    if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_ADOBE_XFORM) decode_on_error(common);
}

static void decode_on_progress(j_common_ptr common) {
    struct jpeg *j = common->client_data;
    j->too_many_scans = j->from.input_scan_number > SCANS_MAX;
    if (j->too_many_scans) longjmp(j->end, 1);
}

static void decode_begin(struct jpeg *j, FILE *file) {
    j->from.err = jpeg_std_error(&j->errors);
    j->from.client_data = j;
    j->errors.error_exit = decode_on_error;
    j->errors.emit_message = decode_on_message;
    jpeg_create_decompress(&j->from);
    j->progress.progress_monitor = decode_on_progress;
    j->from.progress = &j->progress;
    jpeg_stdio_src(&j->from, file);
    jpeg_read_header(&j->from, TRUE);
}

static int code_of_problem(const struct jpeg *j) {
    switch (j->problem) {
    case JWRN_JPEG_EOF:
    case JERR_INPUT_EMPTY:
    case JERR_INPUT_EOF:
    case JERR_NO_SOI:
        return SLUICE_TRUNC;
    case JERR_OUT_OF_MEMORY:
        return SLUICE_MEMORY;
    case JERR_IMAGE_TOO_BIG:
    case JERR_EMPTY_IMAGE:
        return SLUICE_LIMIT;
    case JERR_BAD_PRECISION:
    case JERR_SOF_UNSUPPORTED:
    case JERR_CONVERSION_NOTIMPL:
        return SLUICE_UNSUPPORTED;
    default:
        return SLUICE_IO;
    }
}

static int jpeg_damaged(const struct jpeg *j, const struct picture_source *source, struct sluice_error *e) {
    int code = j->too_many_scans ? SLUICE_LIMIT : code_of_problem(j);
    if (j->no_memory || code == SLUICE_MEMORY) return picture_no_memory(source->name, e);
    if (ferror(source->from)) return picture_unreadable(source->name, errno ? errno : EIO, e);
    if (j->too_many_scans)
        return fail(e, code,
                    "the image is damaged" WHERE "%s" FOUND "more than %d scans" EXPECTED "at most %d",
                    source->name, SCANS_MAX, SCANS_MAX);
    return fail(e, code, "%s" WHERE "%s" FOUND "%s",
                code == SLUICE_TRUNC         ? "the image file ends too early, maybe an incomplete download"
                : code == SLUICE_UNSUPPORTED ? "unsupported JPEG variant"
                                             : "the image is damaged",
                source->name, j->message);
}

/* Reads the orientation from the EXIF segment before the first scan; 1 if there is none. */
static int segment_orientation(FILE *from) {
    unsigned char head[4], begin[6] = {0};
    if (fseek(from, 2, SEEK_SET)) return 1;
    for (int i = 0; i < EXIF_CHUNKS_MAX && fread(head, 1, sizeof head, from) == sizeof head; i++) {
        long bytes = (head[2] << 8 | head[3]) - 2, next = ftell(from) + bytes;
        if (bytes < 0 || head[0] != 0xFF || head[1] == START_OF_SCAN) break;
        if (head[1] == APP1 && bytes > (long)sizeof begin &&
            fread(begin, 1, sizeof begin, from) == sizeof begin)
            if (!memcmp(begin, "Exif\0", sizeof begin))
                return exif_orientation(from, (unsigned long)bytes - sizeof begin);
        if (fseek(from, next, SEEK_SET)) break;
    }
    return 1;
}

/* Sets size and memory of the source from the header that libjpeg has read. */
static int fill_source(struct picture_source *source, const struct jpeg *j, struct sluice_error *e) {
    const struct jpeg_decompress_struct *from = &j->from;
    if (picture_check_sides(source->name, from->image_width, from->image_height, e)) return e->code;
    if (from->num_components == CMYK_COMPONENTS)
        return fail(e, SLUICE_UNSUPPORTED,
                    "CMYK images are not supported" WHERE "%s" FOUND "a JPEG with 4 components" EXPECTED
                    "RGB or grey; convert the image first",
                    source->name);
    source->width = (int)from->image_width;
    source->height = (int)from->image_height;
    source->reading_bytes = 4 * (uint64_t)source->width + JPEG_LIBRARY_BYTES;
    /* 16-bit coefficients: of the whole image if it has several scans, else of some rows of blocks. */
    for (int i = 0; i < from->num_components; i++) {
        const jpeg_component_info *c = &from->comp_info[i];
        bool several = jpeg_has_multiple_scans((struct jpeg_decompress_struct *)(uintptr_t)from);
        uint64_t rows = several ? c->height_in_blocks + 4u : ROWS_OF_BLOCKS;
        source->reading_bytes += (c->width_in_blocks + 4u) * rows * DCTSIZE2 * sizeof(JCOEF);
    }
    return SLUICE_OK;
}

static bool parse_header(struct jpeg *j, FILE *file) {
    if (setjmp(j->end)) return false;
    decode_begin(j, file);
    return true;
}

int picture_jpeg_read_info(struct picture_source *source, struct sluice_error *e) {
    struct jpeg j = {.rows = NULL};
    rewind(source->from);
    bool done = parse_header(&j, source->from);
    int status = done ? fill_source(source, &j, e) : SLUICE_OK;
    jpeg_destroy_decompress(&j.from);
    if (!done) return jpeg_damaged(&j, source, e);
    if (!status) source->orientation = segment_orientation(source->from);
    return status;
}

static bool decode_rows(struct jpeg *j, FILE *file) {
    if (setjmp(j->end)) return false;
    decode_begin(j, file);
    j->from.out_color_space = JCS_RGB;
    j->row = malloc((j->rows->rgba ? 4 : 3) * (size_t)j->from.image_width);
    j->no_memory = !j->row;
    if (j->no_memory) return false;
    jpeg_start_decompress(&j->from);
    while (j->from.output_scanline < j->from.output_height) {
        jpeg_read_scanlines(&j->from, &j->row, 1);
        for (size_t x = j->rows->rgba ? j->from.image_width : 0; x-- > 0;) {
            memmove(j->row + 4 * x, j->row + 3 * x, 3);
            j->row[4 * x + 3] = 255;
        }
        j->rows->take(j->rows->to, j->row);
    }
    jpeg_finish_decompress(&j->from);
    return true;
}

int picture_jpeg_decode(struct picture_source *source, const struct row_sink *rows, struct sluice_error *e) {
    struct jpeg j = {.rows = rows};
    rewind(source->from);
    bool done = decode_rows(&j, source->from);
    jpeg_destroy_decompress(&j.from);
    free(j.row);
    return done ? SLUICE_OK : jpeg_damaged(&j, source, e);
}

/* ---- encoding ---- */

enum { FULL_COLOUR_QUALITY = 90, APP1_BYTES_MAX = 65533 };

struct jpeg_encoder {
    struct jpeg_compress_struct to;
    struct jpeg_error_mgr errors;
    jmp_buf end;
    int problem;  /* errno of a failed write, or 0 */
    uint8_t *row; /* with alpha: a row over white */
    char message[JMSG_LENGTH_MAX];
};

static void encode_on_error(j_common_ptr common) {
    struct jpeg_encoder *encoder = common->client_data;
    if (common->err->msg_code == JERR_FILE_WRITE) encoder->problem = errno ? errno : EIO;
    common->err->format_message(common, encoder->message);
    longjmp(encoder->end, 1);
}

static void encode_on_message(j_common_ptr common, int level) {
    (void)common, (void)level;
}

static void encode_begin(struct jpeg_encoder *encoder, FILE *file, const struct picture_content *content) {
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

static bool encode_rows(struct jpeg_encoder *encoder, FILE *file, const struct picture_content *content,
                        const struct exif *exif) {
    if (setjmp(encoder->end)) return false;
    encode_begin(encoder, file, content);
    if (exif->bytes) jpeg_write_marker(&encoder->to, JPEG_APP0 + 1, exif->at, (unsigned)exif->bytes);
    while (encoder->to.next_scanline < encoder->to.image_height) {
        const uint8_t *rgb =
            content->image->rgb + 3 * (size_t)encoder->to.next_scanline * encoder->to.image_width;
        const uint8_t *alpha = content->image->alpha;
        for (size_t i = 0, n = encoder->to.image_width; alpha && i < 3 * n; i++)
            encoder->row[i] = picture_over_white(rgb[i], alpha[encoder->to.next_scanline * n + i / 3]);
        JSAMPROW row = alpha ? encoder->row : (JSAMPROW)(uintptr_t)rgb; /* libjpeg only reads the row */
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
    encoder.errors.error_exit = encode_on_error;
    encoder.errors.emit_message = encode_on_message;
    if (content->image->alpha) encoder.row = malloc(3 * (size_t)content->image->width);
    if (content->image->alpha && !encoder.row) {
        free(exif.at);
        return picture_unencodable(name, "no memory", e);
    }
    errno = 0;
    bool done = encode_rows(&encoder, to, content, &exif);
    jpeg_destroy_compress(&encoder.to);
    free(encoder.row);
    free(exif.at);
    if (done) return SLUICE_OK;
    return encoder.problem ? fail_output(e, name, encoder.problem)
                           : picture_unencodable(name, encoder.message, e);
}
