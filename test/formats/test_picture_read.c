/* Image input (cli/picture.c): files written by Pillow give the pixels that Pillow reads
 * (test/golden/pictures/kinds.py), and every legal kind of PNG the exact pixels. Each defect is an error with
 * its own code. Then every truncation and random damage, which must not cause a crash, hang or leak.
 *
 * Files lie in memory (memfd_create). SEED in the environment varies the damage. */
#include "cli/picture.h"
#include "engine/base/random.h"
#include "test/lib/check.h"
#include "test/lib/cmocka_tests.h"
#include "test/lib/png_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

enum { PNG_MUTATIONS = 5000, MUTATIONS = 4000, RECENT_SECONDS = 10, WIDTH = 19, HEIGHT = 13 };

static struct sluice_error problem;
static struct sluice_picture picture;
static uint8_t *pixels; /* RGB triples, or RGBA quadruples if as_rgba */
static bool as_rgba;
static int n_rows;
static unsigned notes; /* PICTURE_TRANSPARENT, PICTURE_ANIMATED of the last image */
static uint64_t random_state = 1;

static void take_row(void *to, const uint8_t *row) {
    (void)to;
    size_t bytes = (as_rgba ? 4 : 3) * (size_t)picture.width;
    assert_true(n_rows < picture.height);
    memcpy(pixels + (size_t)n_rows++ * bytes, row, bytes);
}

/* Reads an image's size, then its pixels, as a run does. An image that needs more than `memory` bytes is not
 * decoded, as under a memory budget. */
static int read_file(const char *name, uint64_t memory) {
    unsigned more = 0;
    problem = (struct sluice_error){0};
    picture = (struct sluice_picture){0};
    notes = 0;
    int status = picture_open(name, &picture, &notes, &problem);
    if (status || picture.reading_bytes > memory) return status;
    free(pixels);
    pixels = malloc((size_t)picture.width * (size_t)picture.height * 4);
    assert_non_null(pixels);
    n_rows = 0;
    status = picture_read(&picture, &(struct row_sink){take_row, NULL, as_rgba}, &more, &problem);
    if (!status) assert_int_equal(n_rows, picture.height);
    notes |= more;
    return status;
}

static int read_within(const struct bytes *b, uint64_t memory) {
    char name[64];
    int file = memfd_create("picture", MFD_CLOEXEC);
    assert_true(file >= 0);
    assert_int_equal(write(file, b->at, b->n), (ssize_t)b->n);
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    int status = read_file(name, memory);
    close(file);
    assert_int_equal(status, problem.code);
    if (status && (problem.exit_code != 3 || !problem.what[0] || !problem.where[0]))
        fail_msg("exit code %d: %s, %s", problem.exit_code, problem.what, problem.where);
    return status;
}

static int read_bytes(const struct bytes *b) {
    return read_within(b, UINT64_MAX);
}

/* Expects the error code and a text in the message when the file is read. Frees the bytes. */
static void expect(struct bytes *b, int code, const char *text) {
    char line[1024] = "";
    int status = read_bytes(b);
    if (status) sluice_error_line(&problem, line, sizeof line);
    if (status != code || !strstr(line, text))
        fail_msg("%s instead of %s with '%s': %s", sluice_code_name(status), sluice_code_name(code), text,
                 line);
    free(b->at);
    *b = (struct bytes){0};
}

static struct bytes golden(const char *name) {
    char path[128];
    snprintf(path, sizeof path, "test/golden/pictures/%s", name);
    return bytes_of_file(path);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static long peak_kib(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return use.ru_maxrss;
}

static void ignore_row(void *to, const uint8_t *row) {
    *(uint64_t *)to += row[0] < 255;
}

/* Plain PNG needs memory for a few rows; interlaced PNG reports and needs memory for all rows. */
TEST(reading_memory_bounded) {
    struct kind k = {16384, 4096, 1, 0, false};
    uint64_t n = 0;
    struct bytes b = png_make(k);
    FILE *file = tmpfile();
    char name[64];
    unsigned nothing;
    fwrite(b.at, 1, b.n, file);
    fflush(file);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fileno(file));
    assert_int_equal(picture_open(name, &picture, &nothing, &problem), SLUICE_OK);
    assert_true(picture.reading_bytes < 1 << 20);
    long before = peak_kib();
    assert_int_equal(picture_read(&picture, &(struct row_sink){ignore_row, &n, false}, &nothing, &problem),
                     SLUICE_OK);
    assert_true(n > 0 && peak_kib() - before < 8 << 10);
    b.at[28] = 1;
    rewind(file);
    fwrite(b.at, 1, b.n, file);
    fflush(file);
    assert_int_equal(picture_open(name, &picture, &nothing, &problem), SLUICE_OK);
    assert_true(picture.reading_bytes > 3 * 16384 * 4096);
    fclose(file);
    free(b.at);
}

/* Files that Pillow wrote. lies: the EXIF orientation swaps width and height. */
static const struct {
    const char *name;
    unsigned notes;
    bool lies;
} files[] = {
    {"full.jpg", 0, false},
    {"halves.jpg", 0, false},
    {"flat.jpg", 0, false},
    {"scans.jpg", 0, false},
    {"grey_scans.jpg", 0, false},
    {"turned_2.jpg", 0, false},
    {"turned_3.jpg", 0, false},
    {"turned_4.jpg", 0, false},
    {"turned_5.jpg", 0, true},
    {"turned_6.jpg", 0, true},
    {"turned_7.jpg", 0, true},
    {"turned_8.jpg", 0, true},
    {"exact.webp", 0, false},
    {"near.webp", 0, false},
    {"near_clear.webp", PICTURE_TRANSPARENT, false},
    {"moving.webp", PICTURE_ANIMATED, false},
    {"exact_clear.webp", PICTURE_TRANSPARENT, false},
    {"turned_webp.webp", 0, true},
    {"turned_png.png", 0, true},
    {"bits.png", 0, false},
    {"grey.png", 0, false},
    {"grey_alpha.png", PICTURE_TRANSPARENT, false},
    {"palette.png", PICTURE_TRANSPARENT, false},
    {"colours.png", 0, false},
    {"colours_clear.png", PICTURE_TRANSPARENT, false},
    {"colours_alpha.png", PICTURE_TRANSPARENT, false},
    {"deep.png", 0, false},
};
/* The last eight files are PNGs of each colour type, without orientation. */
enum { N_FILES = sizeof files / sizeof *files, N_PLAIN_PNGS = 8, N_KINDS = N_FILES - N_PLAIN_PNGS };

TEST(pixels_equal_pillow) {
    for (int i = 0; i < N_FILES; i++) {
        char rgb_name[64];
        const char *name = files[i].name;
        snprintf(rgb_name, sizeof rgb_name, "%.*s.rgb", (int)strcspn(name, "."), name);
        struct bytes b = golden(name), rgb = golden(rgb_name);
        if (read_bytes(&b)) fail_msg("%s: %s (%s)", name, problem.what, problem.found);
        assert_int_equal(picture.width, files[i].lies ? HEIGHT : WIDTH);
        assert_int_equal(picture.height, files[i].lies ? WIDTH : HEIGHT);
        assert_int_equal(rgb.n, 3 * WIDTH * HEIGHT);
        if (memcmp(pixels, rgb.at, rgb.n)) fail_msg("%s: pixels differ from Pillow's", name);
        if (notes != files[i].notes) fail_msg("%s: notes %u", name, notes);
        free(b.at);
        free(rgb.at);
    }
}

/* The same files as RGBA: Pillow's alpha, or 255. */
TEST(alpha_equals_pillow) {
    int n_clear = 0;
    as_rgba = true;
    for (int i = 0; i < N_FILES; i++) {
        const char *name = files[i].name;
        int stem = (int)strcspn(name, ".");
        char rgb_name[64], alpha_name[64];
        snprintf(rgb_name, sizeof rgb_name, "%.*s.rgb", stem, name);
        snprintf(alpha_name, sizeof alpha_name, "%.*s.alpha", stem, name);
        bool clear = files[i].notes & PICTURE_TRANSPARENT;
        struct bytes b = golden(name), rgb = golden(rgb_name), alpha = {0};
        if (clear) alpha = golden(alpha_name);
        if (read_bytes(&b)) fail_msg("%s: %s (%s)", name, problem.what, problem.found);
        for (size_t k = 0; k < WIDTH * HEIGHT; k++) {
            assert_memory_equal(pixels + 4 * k, rgb.at + 3 * k, 3);
            assert_int_equal(pixels[4 * k + 3], clear ? alpha.at[k] : 255);
            n_clear += pixels[4 * k + 3] < 255;
        }
        free(b.at);
        free(rgb.at);
        free(alpha.at);
    }
    as_rgba = false;
    assert_true(n_clear > 3 * WIDTH * HEIGHT);
}

static unsigned char eight_bits(unsigned v, unsigned depth) {
    unsigned most = (1u << depth) - 1;
    return (unsigned char)((v * 255 + most / 2) / most);
}

static void expected_pixel(struct kind k, unsigned x, unsigned y, unsigned char rgb[3]) {
    for (unsigned c = 0; c < 3; c++)
        rgb[c] = eight_bits(png_sample_of(k, x, y, k.colours & 2 ? c : 0), k.depth);
    if (k.colours == 3) png_palette_of(png_sample_of(k, x, y, 0), rgb);
}

/* Alpha of a pixel; clear: the file has the tRNS chunk of put_transparency. */
static int expected_alpha(struct kind k, bool clear, unsigned x, unsigned y) {
    unsigned first = png_sample_of(k, x, y, 0);
    if (k.colours & 4) return eight_bits(png_sample_of(k, x, y, k.colours & 2 ? 3 : 1), k.depth);
    if (!clear) return 255;
    if (k.colours == 3) return first < 2 ? (int)first : 255;
    if (k.colours == 0) return first == 1 ? 0 : 255;
    return first == 1 && png_sample_of(k, x, y, 1) == 1 && png_sample_of(k, x, y, 2) == 0 ? 0 : 255;
}

static void assert_pixels(struct kind k, bool clear) {
    size_t bytes = as_rgba ? 4 : 3;
    unsigned char rgb[3];
    assert_int_equal(picture.width, k.width);
    assert_int_equal(picture.height, k.height);
    for (unsigned y = 0; y < k.height; y++)
        for (unsigned x = 0; x < k.width; x++) {
            expected_pixel(k, x, y, rgb);
            const uint8_t *pixel = pixels + bytes * (y * k.width + x);
            if (memcmp(rgb, pixel, 3) != 0 || (as_rgba && pixel[3] != expected_alpha(k, clear, x, y)))
                fail_msg("%ux%u, %u bits of type %u%s: wrong pixel at %u, %u", k.width, k.height, k.depth,
                         k.colours, k.interlaced ? ", interlaced" : "", x, y);
        }
}

static bool is_legal(unsigned depth, unsigned colours) {
    static const struct {
        unsigned depth, colours;
    } legal[15] = {{1, 0}, {2, 0}, {4, 0}, {8, 0}, {16, 0}, {8, 2}, {16, 2}, {1, 3},
                   {2, 3}, {4, 3}, {8, 3}, {8, 4}, {16, 4}, {8, 6}, {16, 6}};
    for (int i = 0; i < 15; i++)
        if (legal[i].depth == depth && legal[i].colours == colours) return true;
    return false;
}

/* Adds a tRNS chunk, which does not change the colours. */
static void put_transparency(struct bytes *b, struct kind k) {
    static const unsigned char bytes[6] = {0, 1, 0, 1, 0, 0};
    png_put_chunk(b, "tRNS", bytes, k.colours == 3 ? 2 : k.colours == 2 ? 6 : 2);
}

static void check_kind(struct kind k, bool clear, size_t idat) {
    struct bytes b = {0};
    png_put_start(&b, k);
    if (clear) put_transparency(&b, k);
    png_put_idat(&b, k, idat);
    png_put_chunk(&b, "IEND", "", 0);
    for (int i = 0; i < 2; i++) {
        as_rgba = i;
        if (read_bytes(&b)) fail_msg("%u bits of type %u: %s", k.depth, k.colours, problem.found);
        assert_pixels(k, clear);
    }
    as_rgba = false;
    if (read_bytes(&b)) fail_msg("%u bits of type %u: %s", k.depth, k.colours, problem.found);
    assert_true((notes == PICTURE_TRANSPARENT) == (clear || k.colours & 4));
    free(b.at);
}

/* All legal kinds of PNG files. */
TEST(png_of_every_legal_kind) {
    static const unsigned sizes[][2] = {{1, 1}, {7, 1}, {1, 7}, {2, 2}, {3, 5}, {8, 8}, {9, 17}, {67, 11}};
    int n = 0;
    for (unsigned colours = 0; colours <= 6; colours++)
        for (unsigned depth = 1; depth <= 16; depth *= 2)
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes && is_legal(depth, colours); i++, n++)
                for (int interlaced = 0; interlaced < 2; interlaced++) {
                    struct kind k = {sizes[i][0], sizes[i][1], depth, colours, interlaced};
                    check_kind(k, false, 8192);
                    check_kind(k, false, 1);
                    if (colours < 4) check_kind(k, true, 8192);
                }
    assert_int_equal(n, 15 * 8);
}

TEST(other_formats_refused) {
    static const struct {
        const char *start, *kind;
        size_t n;
    } rows[] = {{"GIF89a\1\0\1\0", "a GIF image", 10},
                {"BM\1\2\3\4", "a BMP image", 6},
                {"\0\0\0\40ftypavif", "an AVIF image", 12},
                {"\x89PNG\n\x1a\n\0\0\0\15IHDR", "converted line ends", 15},
                {"<!DOCTYPE html>", "an HTML", 15},
                {"version https://git-lfs", "git-lfs", 23},
                {"nothing known", "an unknown format", 13},
                {"\0\0\0\0\0\0\0\0", "an unknown format", 8}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bytes b = {0};
        bytes_put(&b, rows[i].start, rows[i].n);
        expect(&b, SLUICE_BADMAGIC, rows[i].kind);
    }
    expect(&(struct bytes){0}, SLUICE_TRUNC, "found 0 bytes");
}

static void assert_unreadable(const char *name, int code, const char *text) {
    char line[1024];
    assert_int_equal(read_file(name, UINT64_MAX), code);
    sluice_error_line(&problem, line, sizeof line);
    if (!strstr(line, text) || !strstr(line, name)) fail_msg("'%s' is missing in: %s", text, line);
}

/* No program writes to the named pipe: opening the pipe and waiting would block for ever. */
TEST(unreadable_paths_refused) {
    char folder[] = "/tmp/picture_read_XXXXXX", name[64];
    assert_non_null(mkdtemp(folder));
    snprintf(name, sizeof name, "%s/pipe", folder);
    assert_int_equal(mkfifo(name, 0600), 0);
    assert_unreadable(name, SLUICE_IO, "a pipe or a device");
    unlink(name);
    assert_unreadable(name, SLUICE_MISSING, "No such file");
    assert_unreadable(folder, SLUICE_IO, "a folder");
    assert_unreadable("/dev/zero", SLUICE_IO, "a pipe or a device");
    assert_int_equal(symlink(name, name), 0);
    assert_unreadable(name, SLUICE_IO, "symbolic links");
    unlink(name);
    rmdir(folder);
}

static const struct kind grey = {9, 5, 8, 0, false}, places = {9, 5, 4, 3, false};

/* Sizes beyond the limit are refused before memory is allocated; else the largest size would fail with
 * another error. */
TEST(png_size_limits) {
    static const unsigned sides[][2] = {{0, 0},        {0, 5},
                                        {5, 0},        {16385, 1},
                                        {1, 16385},    {0x7fffffff, 0x7fffffff},
                                        {1u << 31, 1}, {0xffffffff, 0xffffffff}};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        struct bytes b = {0};
        png_put_signature(&b);
        png_put_ihdr(&b, (struct kind){sides[i][0], sides[i][1], 8, 2, false});
        expect(&b, SLUICE_LIMIT, "sides of 1 to 16384");
    }
}

TEST(png_illegal_kinds_refused) {
    for (unsigned depth = 0; depth <= 33; depth++)
        for (unsigned colours = 0; colours <= 8; colours++) {
            struct bytes b = {0};
            if (is_legal(depth, colours)) continue;
            png_put_signature(&b);
            png_put_ihdr(&b, (struct kind){9, 9, depth, colours, false});
            expect(&b, SLUICE_TYPE, "colour type");
        }
}

/* Refuses undefined compression, filter and interlace methods, and a first chunk other than IHDR. */
TEST(png_invalid_header_refused) {
    for (int i = 10; i <= 12; i++) {
        unsigned char data[13] = {0, 0, 0, 9, 0, 0, 0, 5, 8, 0, 0, 0, 0};
        struct bytes b = {0};
        data[i] = 2;
        png_put_signature(&b);
        png_put_chunk(&b, "IHDR", data, sizeof data);
        expect(&b, SLUICE_TYPE, "IHDR");
    }
    struct bytes b = {0};
    png_put_signature(&b);
    png_put_chunk(&b, "IDAT", "0123456789abc", 13);
    expect(&b, SLUICE_TYPE, "a chunk IHDR");
}

TEST(chunk_lengths_checked) {
    static const uint32_t lengths[] = {0xffffffff, 0x80000000, 0x7fffffff, 1000};
    for (int ancillary = 0; ancillary < 2; ancillary++)
        for (int i = 0; i < 4; i++) {
            struct bytes b = {0};
            png_put_start(&b, grey);
            png_put_u32(&b, lengths[i]);
            bytes_put(&b, ancillary ? "tEXtabcd" : "IDATabcd", 8);
            expect(&b, i < 2 ? SLUICE_BOUNDS : SLUICE_TRUNC, "");
        }
    struct bytes b = {0};
    png_put_start(&b, grey);
    png_put_idat(&b, grey, 8192);
    expect(&b, SLUICE_TRUNC, "ends too early");
    png_put_start(&b, grey);
    png_put_chunk(&b, "IEND", "", 0);
    expect(&b, SLUICE_IO, "IEND");
}

TEST(checksums_checked) {
    static const char *const chunks[] = {"IHDR", "PLTE", "tEXt", "IDAT", "IEND"};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        struct bytes b = {0};
        png_put_start(&b, places);
        png_put_chunk(&b, "tEXt", "a\0b", 3);
        png_put_idat(&b, places, 8192);
        png_put_chunk(&b, "IEND", "", 0);
        unsigned char *chunk = memmem(b.at, b.n, chunks[i], 4);
        uint32_t n = (uint32_t)chunk[-2] << 8 | chunk[-1];
        chunk[4 + n] ^= 1;
        expect(&b, SLUICE_IO, "CRC");
    }
}

static void put_data(struct bytes *b, const void *rows, size_t n) {
    struct bytes data = {0};
    png_put_deflated(&data, rows, n);
    png_put_chunk(b, "IDAT", data.at, data.n);
    png_put_chunk(b, "IEND", "", 0);
    free(data.at);
}

/* Tests too little and too much image data (zeros), and data after the end of the compressed stream. Excess
 * data is not inflated to the end. */
TEST(wrong_amount_of_data_refused) {
    static const struct {
        size_t n;
        int code;
        const char *text;
    } rows[] = {{0, SLUICE_TRUNC, "Not enough"},
                {1, SLUICE_TRUNC, "Not enough"},
                {49, SLUICE_TRUNC, "Not enough"},
                {50, SLUICE_OK, ""},
                {51, SLUICE_LIMIT, "oo much"},
                {60, SLUICE_LIMIT, "oo much"},
                {160 << 20, SLUICE_LIMIT, "more compressed data"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unsigned char *zeros = calloc(1, rows[i].n + 1);
        struct bytes b = {0};
        png_put_start(&b, grey);
        put_data(&b, zeros, rows[i].n);
        free(zeros);
        expect(&b, rows[i].code, rows[i].text);
    }
    struct bytes b = {0}, data = {0};
    png_put_start(&b, grey);
    png_put_deflated(&data, (char[50]){0}, 50);
    bytes_put(&data, "more", 4);
    png_put_chunk(&b, "IDAT", data.at, data.n);
    png_put_chunk(&b, "IEND", "", 0);
    free(data.at);
    expect(&b, SLUICE_LIMIT, "");
}

TEST(invalid_contents_refused) {
    struct bytes b = {0};
    unsigned char rows[50] = {0};
    rows[20] = 5;
    png_put_start(&b, grey);
    put_data(&b, rows, sizeof rows);
    expect(&b, SLUICE_TYPE, "filter");
    for (unsigned n = 15; n <= 16; n++) { /* the image uses palette index 15 and needs 16 entries */
        png_put_signature(&b);
        png_put_ihdr(&b, places);
        png_put_palette(&b, n);
        png_put_idat(&b, places, 8192);
        png_put_chunk(&b, "IEND", "", 0);
        expect(&b, n < 16 ? SLUICE_BOUNDS : SLUICE_OK, n < 16 ? "palette index" : "");
    }
    static const unsigned wrong[] = {0, 257};
    for (int i = 0; i < 2; i++) {
        png_put_signature(&b);
        png_put_ihdr(&b, (struct kind){9, 5, 8, 3, false});
        if (wrong[i]) png_put_palette(&b, wrong[i]);
        png_put_idat(&b, (struct kind){9, 5, 8, 3, false}, 8192);
        expect(&b, SLUICE_BOUNDS, "PLTE");
    }
    png_put_start(&b, places);
    png_put_chunk(&b, "tRNS", "0123456789abcdefg", 17);
    png_put_idat(&b, places, 8192);
    png_put_chunk(&b, "IEND", "", 0);
    expect(&b, SLUICE_BOUNDS, "tRNS");
    png_put_start(&b, grey);
    png_put_chunk(&b, "CgBI", "abcd", 4);
    expect(&b, SLUICE_UNSUPPORTED, "CgBI");
}

struct bits {
    struct bytes b;
    unsigned byte, n;
};

static void put_bits(struct bits *to, unsigned value, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        to->byte |= (value >> i & 1) << to->n;
        if (++to->n < 8) continue;
        bytes_number(&to->b, to->byte, 1);
        to->byte = to->n = 0;
    }
}

static void expect_stream(struct bits *stream) {
    struct bytes b = {0};
    put_bits(stream, 0, 7);
    bytes_put(&stream->b, (char[64]){0}, 64);
    png_put_start(&b, grey);
    png_put_chunk(&b, "IDAT", stream->b.at, stream->b.n);
    png_put_chunk(&b, "IEND", "", 0);
    free(stream->b.at);
    *stream = (struct bits){0};
    expect(&b, SLUICE_IO, "IDAT");
}

static void put_stream_start(struct bits *to, unsigned type) {
    put_bits(to, 0x78, 8);
    put_bits(to, 0x01, 8);
    put_bits(to, 1, 1);
    put_bits(to, type, 2);
}

TEST(invalid_deflate_refused) {
    struct bits stream = {0};
    put_stream_start(&stream, 0); /* stored deflate block: a length, and the complement of another length */
    put_bits(&stream, 0, 5);
    put_bits(&stream, 50, 16);
    put_bits(&stream, 50, 16);
    expect_stream(&stream);
    put_stream_start(&stream, 1); /* literal 0 (0x30, most significant bit first), length 3, distance 4 */
    put_bits(&stream, 0x0c, 8);
    put_bits(&stream, 0x40, 7);
    put_bits(&stream, 0x18, 5);
    expect_stream(&stream);
    put_stream_start(&stream, 2); /* all nineteen code lengths of the deflate block have one bit */
    put_bits(&stream, 15 << 10, 14);
    for (int i = 0; i < 19; i++) put_bits(&stream, 1, 3);
    expect_stream(&stream);
    put_stream_start(&stream, 3);
    expect_stream(&stream);
    put_bits(&stream, 0x7979, 16); /* an invalid zlib header */
    expect_stream(&stream);
}

/* Appends two ancillary chunks of the compressed text, which inflates to 100 MiB. */
static void put_bomb(struct bytes *b, const struct bytes *text) {
    png_put_chunk(b, "zTXt", text->at, text->n);
    png_put_chunk(b, "iCCP", text->at, text->n);
}

/* Ancillary chunks before and after the image data, also large ones, are skipped without being inflated or
 * stored. */
TEST(ancillary_chunks_skipped) {
    enum { SKIPPED = 40 << 20, INFLATED = 100 << 20 };
    struct bytes b = {0}, bomb = {0};
    char *zeros = calloc(1, INFLATED);
    bytes_put(&bomb, "key\0", 5);
    png_put_deflated(&bomb, zeros, INFLATED);
    png_put_start(&b, grey);
    for (int i = 0; i < 50000; i++) png_put_chunk(&b, "tEXt", "a\0b", 3);
    put_bomb(&b, &bomb);
    png_put_chunk(&b, "caBX", zeros, SKIPPED);
    png_put_idat(&b, grey, 8192);
    for (int i = 0; i < 50000; i++) png_put_chunk(&b, i % 2 ? "sPLT" : "prVt", "a\0\10", 3);
    put_bomb(&b, &bomb);
    png_put_chunk(&b, "IEND", "", 0);
    bytes_put(&b, "and more after the end.", 23);
    double began = seconds();
    long before = peak_kib();
    assert_int_equal(read_bytes(&b), SLUICE_OK);
    assert_true(seconds() - began < RECENT_SECONDS);
    /* The file is in memory too. Measured: SKIPPED bytes plus 1 MiB, file included. */
    assert_true(peak_kib() - before < 2 * (SKIPPED >> 10));
    assert_pixels(grey, false);
    free(b.at);
    free(bomb.at);
    free(zeros);
}

TEST(png_truncation_refused) {
    struct bytes whole = png_make(places);
    for (size_t n = 0; n < whole.n; n++) {
        struct bytes part = {whole.at, n, n};
        assert_int_equal(read_bytes(&part), SLUICE_TRUNC);
    }
    free(whole.at);
}

static void damage(struct bytes *b) {
    size_t at = random_below(&random_state, b->n), n = random_below(&random_state, 16) + 1;
    struct bytes out = {0};
    if (n > b->n - at) n = b->n - at;
    switch (random_below(&random_state, 6)) {
    case 0:
        b->n = at;
        return;
    case 1:
        bytes_put(&out, b->at, at);
        bytes_put(&out, b->at + at + n, b->n - at - n);
        break;
    case 2:
        bytes_put(&out, b->at, at + n);
        bytes_put(&out, b->at + at, b->n - at);
        break;
    default:
        b->at[at] = (unsigned char)random_next(&random_state);
        return;
    }
    free(b->at);
    *b = out;
}

/* Recomputes the checksums of PNG chunks, so that damage reaches the decoder. */
static void mend_checksums(struct bytes *b) {
    for (size_t at = 8; at + 12 <= b->n;) {
        size_t n = (size_t)b->at[at] << 24 | (size_t)b->at[at + 1] << 16 | (size_t)b->at[at + 2] << 8 |
                   b->at[at + 3];
        if (n > b->n - at - 12) return;
        uint32_t crc = (uint32_t)crc32(0, b->at + at + 4, (uInt)(n + 4));
        for (int i = 0; i < 4; i++) b->at[at + 8 + n + (size_t)i] = (unsigned char)(crc >> (24 - 8 * i));
        at += 12 + n;
    }
}

TEST(png_damage_never_crashes) {
    int open = count_open_files(), n_good = 0, n_bad = 0;
    double began = seconds();
    for (int i = 0; i < PNG_MUTATIONS; i++) {
        static const unsigned colours[] = {0, 2, 3, 4, 6};
        unsigned type = colours[i / 2 % 5];
        struct kind k = {17, 9, type == 3 ? 4 : 8, type, i & 1};
        struct bytes b = i % 3 ? png_make(k) : golden(files[N_KINDS + i / 3 % N_PLAIN_PNGS].name);
        for (uint64_t n = random_below(&random_state, 3) + 1; n > 0 && b.n; n--) damage(&b);
        if (i & 4) mend_checksums(&b);
        int status = b.n ? read_bytes(&b) : SLUICE_OK;
        n_good += !status;
        n_bad += status != SLUICE_OK;
        free(b.at);
    }
    printf("damage: %d of %d files still readable\n", n_good, n_good + n_bad);
    assert_true(n_good && n_bad > PNG_MUTATIONS / 2);
    assert_true(seconds() - began < 60);
    assert_int_equal(count_open_files(), open);
}

/* Returns a pointer to byte `at` of the segment of a JPEG marker, counted from the segment's two length
 * bytes. */
static unsigned char *segment(struct bytes *b, unsigned marker, size_t at) {
    for (size_t i = 2; i + 4 < b->n; i += 2 + (size_t)(b->at[i + 2] << 8 | b->at[i + 3]))
        if (b->at[i + 1] == marker) return b->at + i + 2 + at;
    fail_msg("no JPEG marker %x", marker);
    return NULL;
}

static void set_sides(struct bytes *b, unsigned marker, unsigned side) {
    for (int i = 3; i <= 5; i += 2) {
        segment(b, marker, (size_t)i)[0] = (unsigned char)(side >> 8);
        segment(b, marker, (size_t)i)[1] = (unsigned char)side;
    }
}

enum { BASELINE = 0xC0, PROGRESSIVE = 0xC2, LARGE = 16 << 20 };

/* Size limits and the memory estimate are computed from the image header alone. */
TEST(header_size_limits) {
    struct bytes b = golden("full.jpg");
    set_sides(&b, BASELINE, 65500);
    expect(&b, SLUICE_LIMIT, "sides of 1 to 16384");
    b = golden("full.jpg");
    set_sides(&b, BASELINE, 65535);
    expect(&b, SLUICE_LIMIT, "65500");
    b = golden("scans.jpg");
    set_sides(&b, PROGRESSIVE, 16384); /* progressive: the coefficients of the whole image are in memory */
    assert_int_equal(read_within(&b, LARGE), SLUICE_OK);
    assert_true(picture.width == 16384 && picture.reading_bytes > 700u << 20);
    free(b.at);
    b = golden("full.jpg");
    set_sides(&b, BASELINE, 16384); /* baseline: decoded row by row; the first rows are in the file */
    expect(&b, SLUICE_IO, "premature end");
    assert_true(picture.reading_bytes < 16 << 20);
    b = golden("near.webp");
    memcpy(b.at + 26, "\377\77\377\77", 4); /* changes the header's size to 16383 x 16383 */
    assert_int_equal(read_within(&b, LARGE), SLUICE_OK);
    assert_true(picture.width == 16383 && picture.reading_bytes > 700u << 20);
    free(b.at);
}

/* Checks the memory in bytes per pixel, besides the file and 2 MiB: lossy 4, lossy with alpha 6, lossless and
 * animations 8. */
TEST(webp_memory) {
    static const struct {
        const char *name;
        uint64_t a_pixel;
    } rows[] = {{"near.webp", 4}, {"near_clear.webp", 6}, {"exact.webp", 8}, {"moving.webp", 8}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bytes b = golden(rows[i].name);
        assert_int_equal(read_within(&b, LARGE), SLUICE_OK);
        assert_int_equal(picture.reading_bytes, b.n + (2 << 20) + rows[i].a_pixel * WIDTH * HEIGHT);
        free(b.at);
    }
}

TEST(unsupported_kinds_refused) {
    struct bytes b = golden("print.jpg");
    expect(&b, SLUICE_UNSUPPORTED, "CMYK");
    b = golden("full.jpg");
    *segment(&b, BASELINE, 2) = 12; /* bits per sample */
    expect(&b, SLUICE_UNSUPPORTED, "12");
    bytes_put(&b, "\xff\xd8\xff\xe0 JFIF", 9);
    expect(&b, SLUICE_TRUNC, "ends too early");
    bytes_put(&b, "RIFF\1\2\3\4WEBPVP8 ", 16);
    expect(&b, SLUICE_TRUNC, "ends too early");
    bytes_put(&b, "RIFF\1\2\3\4WEBP", 12);
    bytes_put(&b, (char[64]){0}, 64);
    expect(&b, SLUICE_TRUNC, "ends too early");
    b = golden("moving.webp"); /* an animation truncated after its first frame */
    b.n -= 2;
    expect(&b, SLUICE_TRUNC, "ends too early");
}

/* Refuses a progressive JPEG with many empty scans, because each scan costs a pass over the image. */
TEST(jpeg_scan_bomb_refused) {
    struct bytes b = golden("grey_scans.jpg"), more = {0};
    size_t first = 2;
    while (b.at[first + 1] != 0xDA) first += 2 + (size_t)(b.at[first + 2] << 8 | b.at[first + 3]);
    bytes_put(&more, b.at, first);
    for (int i = 0; i < 200; i++) bytes_put(&more, "\xff\xda\0\10\1\1\0\0\0\0\0\0", 12);
    bytes_put(&more, b.at + first, b.n - first);
    free(b.at);
    int status = read_within(&more, LARGE);
    assert_true(status == SLUICE_LIMIT || status == SLUICE_IO);
    free(more.at);
}

/* Opening every truncation of a file must fail, except within RIFF padding and EXIF at the end. */
TEST(every_truncation_refused) {
    for (int i = 0; i < N_KINDS; i++) {
        struct bytes whole = golden(files[i].name);
        for (size_t n = 0; n < whole.n; n++) {
            struct bytes part = {whole.at, n, n};
            int status = read_within(&part, LARGE);
            bool jpeg = strstr(files[i].name, ".jpg") != NULL;
            if (jpeg && status != SLUICE_TRUNC && status != SLUICE_IO)
                fail_msg("%s at %zu: %d", files[i].name, n, status);
            if (n < whole.n / 3) assert_true(status != SLUICE_OK);
        }
        free(whole.at);
    }
}

TEST(damage_never_crashes) {
    int n_bad = 0;
    for (int i = 0; i < MUTATIONS; i++) {
        struct bytes b = golden(files[i % N_KINDS].name);
        for (uint64_t n = random_below(&random_state, 3) + 1; n > 0; n--)
            b.at[random_below(&random_state, b.n)] = (unsigned char)random_next(&random_state);
        n_bad += read_within(&b, LARGE) != SLUICE_OK;
        free(b.at);
    }
    printf("damage: %d of %d files refused\n", n_bad, MUTATIONS);
    assert_true(n_bad > MUTATIONS / 8);
}

int main(void) {
    if (getenv("SEED")) random_state = strtoull(getenv("SEED"), NULL, 10);
    return run_all_tests(NULL, NULL);
}
