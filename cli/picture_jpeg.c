/* JPEG decoder. libjpeg reports errors by longjmp, so the state after setjmp is in
 * struct jpeg, not in local variables. Errors that libjpeg would repair silently (missing data, invalid
 * codes) are errors here. */
#include "cli/exif.h"
#include "cli/fail.h"
#include "cli/picture_formats.h"

#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

/* Memory of libjpeg without rows of blocks. Limit of scans: encoders write about ten, and each scan costs a
 * pass over the image, however few bytes it has. */
enum { JPEG_LIBRARY_BYTES = 512 << 10, SCANS_MAX = 100, CMYK_COMPONENTS = 4 };

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

static void picture_jpeg_on_error(j_common_ptr common) {
    struct jpeg *j = common->client_data;
    j->problem = common->err->msg_code;
    common->err->format_message(common, j->message);
    longjmp(j->end, 1);
}

/* Warnings become errors, except extra bytes between markers and an inconsistent Adobe marker: they change no
 * pixel. */
static void picture_jpeg_on_message(j_common_ptr common, int level) {
    int code = common->err->msg_code;
    if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_ADOBE_XFORM) picture_jpeg_on_error(common);
}

static void picture_jpeg_on_progress(j_common_ptr common) {
    struct jpeg *j = common->client_data;
    j->too_many_scans = j->from.input_scan_number > SCANS_MAX;
    if (j->too_many_scans) longjmp(j->end, 1);
}

static void picture_jpeg_begin(struct jpeg *j, FILE *file) {
    j->from.err = jpeg_std_error(&j->errors);
    j->from.client_data = j;
    j->errors.error_exit = picture_jpeg_on_error;
    j->errors.emit_message = picture_jpeg_on_message;
    jpeg_create_decompress(&j->from);
    j->progress.progress_monitor = picture_jpeg_on_progress;
    j->from.progress = &j->progress;
    jpeg_stdio_src(&j->from, file);
    jpeg_read_header(&j->from, TRUE);
}

static int picture_jpeg_code_of(const struct jpeg *j) {
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
    int code = j->too_many_scans ? SLUICE_LIMIT : picture_jpeg_code_of(j);
    if (j->no_memory || code == SLUICE_MEMORY) return picture_no_memory(source->name, e);
    if (ferror(source->from)) return picture_unreadable(source->name, errno ? errno : EIO, e);
    fail(e, code, "%s" WHERE "%s",
         code == SLUICE_TRUNC         ? "the image file ends too early, maybe an incomplete download"
         : code == SLUICE_UNSUPPORTED ? "unsupported JPEG variant"
                                      : "the image is damaged",
         source->name);
    if (!j->too_many_scans) return fail_found(e, "%s", j->message);
    fail_found(e, "more than %d scans", SCANS_MAX);
    return fail_expected(e, "at most %d", SCANS_MAX);
}

static int refuse_cmyk(const struct picture_source *source, struct sluice_error *e) {
    return fail(e, SLUICE_UNSUPPORTED,
                "CMYK images are not supported" WHERE "%s" FOUND "a JPEG with 4 components" EXPECTED
                "RGB or grey; convert the image first",
                source->name);
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

/* Memory for 16-bit coefficients: of the whole image if it has several scans, else of some rows of blocks. */
static uint64_t coefficient_bytes(struct jpeg_decompress_struct *from) {
    uint64_t bytes = 0;
    enum { ROWS = 8 };
    for (int i = 0; i < from->num_components; i++) {
        const jpeg_component_info *c = &from->comp_info[i];
        uint64_t rows = jpeg_has_multiple_scans(from) ? c->height_in_blocks + 4u : ROWS;
        bytes += (c->width_in_blocks + 4u) * rows * DCTSIZE2 * sizeof(JCOEF);
    }
    return bytes;
}

static void fill_source(struct picture_source *source, struct jpeg *j) {
    source->width = (int)j->from.image_width;
    source->height = (int)j->from.image_height;
    source->reading_bytes = coefficient_bytes(&j->from) + 3 * (uint64_t)source->width + JPEG_LIBRARY_BYTES;
}

static bool parse_header(struct jpeg *j, FILE *file) {
    if (setjmp(j->end)) return false;
    picture_jpeg_begin(j, file);
    return true;
}

static int check_header(struct picture_source *source, struct jpeg *j, struct sluice_error *e) {
    if (picture_check_sides(source->name, j->from.image_width, j->from.image_height, e)) return e->code;
    if (j->from.num_components == CMYK_COMPONENTS) return refuse_cmyk(source, e);
    fill_source(source, j);
    return SLUICE_OK;
}

int picture_jpeg_read_info(struct picture_source *source, struct sluice_error *e) {
    struct jpeg j = {.rows = NULL};
    rewind(source->from);
    bool done = parse_header(&j, source->from);
    int status = done ? check_header(source, &j, e) : SLUICE_OK;
    jpeg_destroy_decompress(&j.from);
    if (!done) return jpeg_damaged(&j, source, e);
    if (!status) source->orientation = segment_orientation(source->from);
    return status;
}

static bool picture_jpeg_decode_rows(struct jpeg *j, FILE *file) {
    if (setjmp(j->end)) return false;
    picture_jpeg_begin(j, file);
    j->from.out_color_space = JCS_RGB;
    j->row = malloc(3 * (size_t)j->from.image_width);
    j->no_memory = !j->row;
    if (j->no_memory) return false;
    jpeg_start_decompress(&j->from);
    while (j->from.output_scanline < j->from.output_height) {
        jpeg_read_scanlines(&j->from, &j->row, 1);
        j->rows->take(j->rows->to, j->row);
    }
    jpeg_finish_decompress(&j->from);
    return true;
}

int picture_jpeg_decode(struct picture_source *source, const struct row_sink *rows, struct sluice_error *e) {
    struct jpeg j = {.rows = rows};
    rewind(source->from);
    bool done = picture_jpeg_decode_rows(&j, source->from);
    jpeg_destroy_decompress(&j.from);
    free(j.row);
    return done ? SLUICE_OK : jpeg_damaged(&j, source, e);
}
