/* Quantised weights in safetensors files: pairing with their scales and descriptions, and malformed files,
 * whose names begin with the number of the defect (Q01 ...). Each file is generated, opened under a hang
 * guard, must release all memory, and is opened again truncated at every byte. Models in unsupported formats:
 * test_layouts.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/random.h"
#include "loaders/loaders.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
enum { HANG_SECONDS = 20 };
#else
enum { HANG_SECONDS = 2 };
#endif
enum { PIECES_MAX = 8, HEADER_MAX = 1 << 16, DATA_MAX = 1 << 21, CUT_BYTES_MAX = 2000 };

static char folder[] = "/tmp/sluice_quantised_XXXXXX";

static const char *under(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* A tensor of a generated file: zeros, one number, or a text. */
struct piece {
    const char *name, *type;
    int rank, dim[4];
    bool single; /* all values are `number`, in the tensor's type */
    bool last;   /* zeros, except the last value, which is `number` */
    double number;
    const char *text;
};

#define ZEROS(name_, type_, rank_, ...)                                                                      \
    {                                                                                                        \
        .name = name_, .type = type_, .rank = rank_, .dim = { __VA_ARGS__ }                                  \
    }
#define SCALE_OF(name_, type_, number_)                                                                      \
    { .name = name_, .type = type_, .single = true, .number = number_ }
#define SCALE(name_, number_) SCALE_OF(name_, "F32", number_)
#define COMFY_QUANT(layer, text_)                                                                            \
    { .name = layer ".comfy_quant", .type = "U8", .text = text_ }
#define IS(layer, form) COMFY_QUANT(layer, "{\"format\": \"" form "\"}")

static size_t bytes_of(const struct piece *p) {
    if (p->text) return strlen(p->text);
    size_t bytes = strstr(p->type, "32") ? 4 : strstr(p->type, "16") ? 2 : 1;
    for (int i = 0; i < p->rank; i++) bytes *= (size_t)p->dim[i];
    return bytes;
}

static size_t add_entry(char *to, const struct piece *p, size_t at) {
    int n = snprintf(to, HEADER_MAX, "\"%s\":{\"dtype\":\"%s\",\"shape\":[", p->name, p->type);
    if (p->text) n += snprintf(to + n, 32, "%zu", strlen(p->text));
    for (int i = 0; i < p->rank; i++) n += snprintf(to + n, 32, i ? ",%d" : "%d", p->dim[i]);
    n += snprintf(to + n, 64, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes_of(p));
    return (size_t)n;
}

static void fill(const struct piece *p, unsigned char *to) {
    float number = (float)p->number;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    if (p->text) memcpy(to, p->text, strlen(p->text));
    if (p->last) memcpy(to + bytes_of(p) - sizeof bits, &bits, sizeof bits);
    if (!p->single) return;
    if (!strcmp(p->type, "BF16")) bits >>= 16;
    if (!strcmp(p->type, "F16")) bits = 0x3800; /* 0.5 in f16; tests use no other f16 value */
    memcpy(to, &bits, bytes_of(p));
}

/* Builds a safetensors file of the given tensors. metadata: escaped text of _quantization_metadata, or NULL.
 * Freed by the caller. */
static unsigned char *make(const struct piece *pieces, const char *metadata, size_t *bytes) {
    unsigned char *file = calloc(1, 8 + HEADER_MAX + DATA_MAX);
    char *header = (char *)file + 8;
    size_t n = 0, data = 0;
    assert_non_null(file);
    header[n++] = '{';
    if (metadata)
        n += (size_t)snprintf(header + n, HEADER_MAX - 100,
                              "\"__metadata__\":{\"_quantization_metadata\":\"%s\"}", metadata);
    for (const struct piece *p = pieces; p < pieces + PIECES_MAX && p->name; p++) {
        if (n > 1) header[n++] = ',';
        n += add_entry(header + n, p, data);
        data += bytes_of(p);
    }
    header[n++] = '}';
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)(n >> 8 * i);
    *bytes = 8 + n;
    for (const struct piece *p = pieces; p < pieces + PIECES_MAX && p->name; *bytes += bytes_of(p++))
        fill(p, file + *bytes);
    return file;
}

static void put(const char *name, const void *bytes, size_t n) {
    FILE *file = fopen(under(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void guard(int seconds) {
    struct itimerval timer = {.it_value.tv_sec = seconds};
    setitimer(ITIMER_PROF, &timer, NULL);
}

struct outcome {
    struct index_entry weight;
    int n_unused; /* unused tensors of the file, without the weight */
};

static enum status open_file(const char *name, struct outcome *outcome, struct error *e) {
    struct sys sys;
    struct tensor_index index;
    sys_init_machine(&sys);
    *e = (struct error){0};
    guard(HANG_SECONDS);
    enum status code = component_open(&sys, under(name), &index, e);
    guard(0);
    assert_int_equal(code, e->code);
    assert_true(sys_memory_use(&sys).peak_bytes[LINE_HOST] <= (64 << 20) + DATA_MAX);
    if (code == OK) {
        const struct index_entry *weight = index_find(&index, "a.b.weight");
        assert_int_equal(sys_memory_use(&sys).live_bytes[LINE_HOST], index.host_bytes);
        *outcome = (struct outcome){0};
        if (weight) outcome->weight = *weight;
        for (int i = 0; i < index.n_entries; i++)
            outcome->n_unused += !index.entries[i].used && &index.entries[i] != weight;
    }
    index_destroy(&index);
    assert_int_equal(sys_memory_use(&sys).live_bytes[LINE_HOST], 0);
    return code;
}

struct row {
    const char *id;
    struct piece pieces[PIECES_MAX];
    const char *metadata;
    enum status code;
    const char *word; /* word that the error message must have */
    struct {
        enum dtype dtype;
        double scale;
        uint64_t scales_bytes;
        int32_t columns;
        int n_unused;
    } becomes;
};

#define LOADS(...)                                                                                           \
    OK, NULL, {                                                                                              \
        __VA_ARGS__                                                                                          \
    }
#define FAILS(code_, word)                                                                                   \
    code_, word, {                                                                                           \
        0                                                                                                    \
    }

#define E4M3(...)     ZEROS("a.b.weight", "F8_E4M3", 2, __VA_ARGS__)
#define INT8(...)     ZEROS("a.b.weight", "I8", 2, __VA_ARGS__)
#define PACKED(...)   ZEROS("a.b.weight", "U8", 2, __VA_ARGS__)
#define LAYER(text)   "{\\\"layers\\\": {\\\"a.b\\\": " text "}}"
#define FORM(form)    "{\\\"format\\\": \\\"" form "\\\"}"
#define PREFIXED      "model.diffusion_model.a.b"
#define ROTATED(more) "{\"format\": \"int8_tensorwise\", \"convrot\": true" more "}"

static const struct row rows[] = {
    {"plain fp8", {E4M3(4, 8)}, NULL, LOADS(DTYPE_F8_E4M3, 1, 0, 8, 0)},
    {"plain fp8 of rank 4",
     {ZEROS("a.b.weight", "F8_E5M2", 4, 2, 3, 1, 1)},
     NULL,
     LOADS(DTYPE_F8_E5M2, 1, 0, 1, 0)},
    {"Q01 scale_weight",
     {E4M3(4, 8), SCALE("a.b.scale_weight", 0.25)},
     NULL,
     LOADS(DTYPE_F8_E4M3, 0.25, 0, 8, 0)},
    {"Q01 weight_scale",
     {E4M3(4, 8), SCALE("a.b.weight_scale", 3), SCALE("a.b.input_scale", 1)},
     NULL,
     LOADS(DTYPE_F8_E4M3, 3, 0, 8, 0)},
    {"Q01 weight_scale of rank 4",
     {ZEROS("a.b.weight", "F8_E5M2", 4, 2, 3, 1, 1), SCALE("a.b.weight_scale", 3)},
     NULL,
     LOADS(DTYPE_F8_E5M2, 3, 0, 1, 0)},
    {"Q01 bf16 scale",
     {E4M3(4, 8), SCALE_OF("a.b.weight_scale", "BF16", 0.125)},
     NULL,
     LOADS(DTYPE_F8_E4M3, 0.125, 0, 8, 0)},
    {"Q01 f16 scale",
     {E4M3(4, 8), SCALE_OF("a.b.weight_scale", "F16", 0.5)},
     NULL,
     LOADS(DTYPE_F8_E4M3, 0.5, 0, 8, 0)},
    {"Q01 two scales",
     {E4M3(4, 8), SCALE("a.b.weight_scale", 3), SCALE("a.b.scale_weight", 3)},
     NULL,
     FAILS(DUP, "a.b.scale_weight")},
    {"scaled_fp8",
     {E4M3(4, 8), SCALE("a.b.scale_weight", 2), SCALE("a.b.scale_input", 1), ZEROS("scaled_fp8", "F32", 1, 2),
      ZEROS("a.b.bias", "F8_E4M3", 1, 4)},
     NULL,
     LOADS(DTYPE_F8_E4M3, 2, 0, 8, 1)},
    {"scaled_fp8 without elements",
     {E4M3(4, 8), SCALE("a.b.scale_weight", 2), ZEROS("a.scaled_fp8", "F8_E4M3", 1, 0)},
     NULL,
     LOADS(DTYPE_F8_E4M3, 2, 0, 8, 0)},
    {"Q02 marked, no scale",
     {E4M3(4, 8), ZEROS("a.scaled_fp8", "F8_E4M3", 1, 2)},
     NULL,
     FAILS(MISSING, "a.b.scale_weight")},
    {"Q02 another part is marked",
     {E4M3(4, 8), ZEROS("c.scaled_fp8", "F8_E4M3", 1, 2)},
     NULL,
     LOADS(DTYPE_F8_E4M3, 1, 0, 8, 0)},
    {"Q02 described, no scale",
     {E4M3(4, 8), IS("a.b", "float8_e4m3fn")},
     NULL,
     FAILS(MISSING, "a.b.weight_scale")},
    {"Q02 scale of bf16",
     {ZEROS("a.b.weight", "BF16", 2, 4, 8), SCALE("a.b.weight_scale", 2)},
     NULL,
     FAILS(META, "not quantised")},
    {"Q02 description of bf16",
     {ZEROS("a.b.weight", "BF16", 2, 4, 8), SCALE("a.b.weight_scale", 2), IS("a.b", "float8_e4m3fn")},
     NULL,
     FAILS(META, "F8_E4M3 for float8_e4m3fn")},
    {"Q02 description of another fp8",
     {E4M3(4, 8), SCALE("a.b.weight_scale", 2), IS("a.b", "float8_e5m2")},
     NULL,
     FAILS(META, "F8_E5M2 for float8_e5m2")},
    {"Q03 NaN", {E4M3(4, 8), SCALE("a.b.weight_scale", NAN)}, NULL, FAILS(META, "nan")},
    {"Q03 Inf", {E4M3(4, 8), SCALE("a.b.weight_scale", INFINITY)}, NULL, FAILS(META, "inf")},
    {"Q03 bf16 Inf",
     {E4M3(4, 8), SCALE_OF("a.b.weight_scale", "BF16", -INFINITY)},
     NULL,
     FAILS(META, "-inf")},
    {"Q03 zero", {E4M3(4, 8), SCALE("a.b.weight_scale", 0)}, NULL, LOADS(DTYPE_F8_E4M3, 0, 0, 8, 0)},
    {"Q03 negative", {E4M3(4, 8), SCALE("a.b.weight_scale", -2)}, NULL, LOADS(DTYPE_F8_E4M3, -2, 0, 8, 0)},
    {"Q03 no number",
     {E4M3(4, 8), ZEROS("a.b.weight_scale", "I32", 1, 1)},
     NULL,
     FAILS(META, "F32, F16 or BF16")},
    {"Q03 a row each",
     {E4M3(4, 8), ZEROS("a.b.weight_scale", "F32", 2, 4, 1)},
     NULL,
     LOADS(DTYPE_F8_E4M3, 1, 16, 8, 0)},
    {"Q03 [1, 1]",
     {E4M3(4, 8), ZEROS("a.b.weight_scale", "F32", 2, 1, 1)},
     NULL,
     LOADS(DTYPE_F8_E4M3, 0, 0, 8, 0)},
    {"Q03 NaN in the last row",
     {E4M3(300, 8),
      {.name = "a.b.weight_scale", .type = "F32", .rank = 2, .dim = {300, 1}, .last = true, .number = NAN}},
     NULL,
     FAILS(META, "nan in row 299")},
    {"Q03 wrong rows",
     {E4M3(4, 8), ZEROS("a.b.weight_scale", "F32", 2, 5, 1)},
     NULL,
     FAILS(SHAPE, "found F32 [5, 1], expected a single value, or F32 [4, 1]")},
    {"Q03 a flat row each", {E4M3(4, 8), ZEROS("a.b.weight_scale", "F32", 1, 4)}, NULL, FAILS(SHAPE, "[4]")},
    {"Q03 a column each",
     {E4M3(4, 8), ZEROS("a.b.weight_scale", "F32", 2, 1, 8)},
     NULL,
     FAILS(SHAPE, "[1, 8]")},
    {"Q03 halves a row", {E4M3(4, 8), ZEROS("a.b.weight_scale", "F16", 2, 4, 1)}, NULL, FAILS(META, "F16")},
    {"Q03 none", {E4M3(4, 8), ZEROS("a.b.weight_scale", "F32", 1, 0)}, NULL, FAILS(SHAPE, "[0]")},
    {"Q03 rows of rank 4",
     {ZEROS("a.b.weight", "F8_E5M2", 4, 2, 3, 1, 1), ZEROS("a.b.weight_scale", "F32", 2, 2, 1)},
     NULL,
     FAILS(SHAPE, "expected a single value")},
    {"Q04 broken", {E4M3(4, 8), COMFY_QUANT("a.b", "{\"format\": ")}, NULL, FAILS(META, "a.b.comfy_quant")},
    {"Q04 no JSON", {E4M3(4, 8), COMFY_QUANT("a.b", "\x01\x02\xff")}, NULL, FAILS(META, "a.b.comfy_quant")},
    {"Q04 empty", {E4M3(4, 8), COMFY_QUANT("a.b", "")}, NULL, FAILS(META, "a.b.comfy_quant")},
    {"Q04 list", {E4M3(4, 8), COMFY_QUANT("a.b", "[1]")}, NULL, FAILS(META, "an object with the key")},
    {"Q04 format of no text",
     {E4M3(4, 8), COMFY_QUANT("a.b", "{\"format\": 8}")},
     NULL,
     FAILS(META, "an object with the key")},
    {"Q04 format twice",
     {E4M3(4, 8), COMFY_QUANT("a.b", "{\"format\": \"nvfp4\", \"format\": \"nvfp4\"}")},
     NULL,
     FAILS(META, "duplicate")},
    {"Q04 deep",
     {E4M3(4, 8), COMFY_QUANT("a.b", "{\"x\": [[[[[[[[[[1]]]]]]]]]]}")},
     NULL,
     FAILS(LIMIT, "nested")},
    {"Q04 1 MB", {E4M3(4, 8), ZEROS("a.b.comfy_quant", "U8", 1, 1 << 20)}, NULL, FAILS(LIMIT, "1048576")},
    {"Q04 numbers", {E4M3(4, 8), ZEROS("a.b.comfy_quant", "F32", 1, 4)}, NULL, FAILS(META, "F32")},
    {"Q04 foo", {E4M3(4, 8), IS("a.b", "foo")}, NULL, FAILS(UNSUPPORTED, "\"foo\"")},
    {"Q04 convrot_w4a4",
     {PACKED(16, 8), IS("a.b", "convrot_w4a4")},
     NULL,
     FAILS(UNSUPPORTED, "convrot_w4a4")},
    {"Q04 w4a8", {INT8(16, 8), IS("a.b", "asym_w4a8_int8")}, NULL, FAILS(UNSUPPORTED, "asym_w4a8_int8")},
    {"Q04 awq", {INT8(16, 8), IS("a.b", "awq_w4a16")}, NULL, FAILS(UNSUPPORTED, "awq_w4a16")},
    {"Q04 of nothing", {E4M3(4, 8), IS("a.c", "nvfp4")}, NULL, FAILS(MISSING, "'a.c.weight'")},
    {"described fp8",
     {E4M3(4, 8), SCALE("a.b.weight_scale", 2),
      COMFY_QUANT("a.b", "{\"format\": \"float8_e4m3fn\", \"full_precision_matrix_mult\": true}")},
     NULL,
     LOADS(DTYPE_F8_E4M3, 2, 0, 8, 0)},
    {"attention",
     {E4M3(4, 8), SCALE("a.b.weight_scale", 2), ZEROS("a.comfy_attention.config", "U8", 1, 3)},
     NULL,
     LOADS(DTYPE_F8_E4M3, 2, 0, 8, 0)},
    {"nvfp4",
     {PACKED(144, 32), ZEROS("a.b.weight_scale", "F8_E4M3", 2, 256, 4), SCALE("a.b.weight_scale_2", 0.5),
      SCALE("a.b.input_scale", 9), IS("a.b", "nvfp4")},
     NULL,
     LOADS(DTYPE_NVFP4_TILED, 0.5, 1024, 64, 0)},
    {"Q05 scales as they come",
     {PACKED(144, 32), ZEROS("a.b.weight_scale", "F8_E4M3", 2, 144, 4), SCALE("a.b.weight_scale_2", 0.5),
      IS("a.b", "nvfp4")},
     NULL,
     FAILS(SHAPE, "[256, 4]")},
    {"Q05 columns as they come",
     {PACKED(128, 48), ZEROS("a.b.weight_scale", "F8_E4M3", 2, 128, 6), SCALE("a.b.weight_scale_2", 0.5),
      IS("a.b", "nvfp4")},
     NULL,
     FAILS(SHAPE, "[128, 8]")},
    {"Q05 scales of two bytes",
     {PACKED(144, 32), ZEROS("a.b.weight_scale", "F16", 2, 256, 4), SCALE("a.b.weight_scale_2", 0.5),
      IS("a.b", "nvfp4")},
     NULL,
     FAILS(SHAPE, "of one byte")},
    {"Q05 no second scale",
     {PACKED(144, 32), ZEROS("a.b.weight_scale", "F8_E4M3", 2, 256, 4), IS("a.b", "nvfp4")},
     NULL,
     FAILS(MISSING, "a.b.weight_scale_2")},
    {"Q05 no first scale",
     {PACKED(144, 32), SCALE("a.b.weight_scale_2", 1), IS("a.b", "nvfp4")},
     NULL,
     FAILS(MISSING, "a.b.weight_scale'")},
    {"Q05 many second scales",
     {PACKED(144, 32), ZEROS("a.b.weight_scale", "F8_E4M3", 2, 256, 4),
      ZEROS("a.b.weight_scale_2", "F32", 1, 2), IS("a.b", "nvfp4")},
     NULL,
     FAILS(SHAPE, "weight_scale_2")},
    {"Q05 odd columns",
     {PACKED(144, 31), ZEROS("a.b.weight_scale", "F8_E4M3", 2, 256, 4), SCALE("a.b.weight_scale_2", 0.5),
      IS("a.b", "nvfp4")},
     NULL,
     FAILS(SHAPE, "a.b.weight")},
    {"Q05 odd rows",
     {PACKED(143, 32), ZEROS("a.b.weight_scale", "F8_E4M3", 2, 256, 4), SCALE("a.b.weight_scale_2", 0.5),
      IS("a.b", "nvfp4")},
     NULL,
     FAILS(SHAPE, "a.b.weight")},
    {"Q05 a vector",
     {ZEROS("a.b.weight", "U8", 1, 64), ZEROS("a.b.weight_scale", "F8_E4M3", 2, 128, 4),
      SCALE("a.b.weight_scale_2", 0.5), IS("a.b", "nvfp4")},
     NULL,
     FAILS(SHAPE, "a.b.weight")},
    {"Q05 bytes with signs", {INT8(144, 32), IS("a.b", "nvfp4")}, NULL, FAILS(META, "U8 for nvfp4")},
    {"mxfp8",
     {E4M3(16, 64), ZEROS("a.b.weight_scale", "F8_E8M0", 2, 128, 4), IS("a.b", "mxfp8")},
     NULL,
     LOADS(DTYPE_MXFP8_TILED, 1, 512, 64, 0)},
    {"mxfp8 with bytes for scales",
     {E4M3(160, 160), ZEROS("a.b.weight_scale", "U8", 2, 256, 8), IS("a.b", "mxfp8")},
     NULL,
     LOADS(DTYPE_MXFP8_TILED, 1, 2048, 160, 0)},
    {"mxfp8 of 48 columns",
     {E4M3(16, 48), ZEROS("a.b.weight_scale", "U8", 2, 128, 4), IS("a.b", "mxfp8")},
     NULL,
     FAILS(SHAPE, "columns a multiple of 32")},
    {"int8",
     {INT8(4, 8), SCALE("a.b.weight_scale", 0.5), IS("a.b", "int8_tensorwise")},
     NULL,
     LOADS(DTYPE_I8, 0.5, 0, 8, 0)},
    {"int8 rows",
     {INT8(4, 8), ZEROS("a.b.weight_scale", "F32", 2, 4, 1), IS("a.b", "int8_tensorwise")},
     NULL,
     LOADS(DTYPE_I8, 1, 16, 8, 0)},
    {"int8 unmarked: refused where it is used",
     {INT8(4, 8), SCALE("a.b.weight_scale", 0.5)},
     NULL,
     LOADS(DTYPE_I8, 1, 0, 8, 1)},
    {"int8 without scale",
     {INT8(4, 8), IS("a.b", "int8_tensorwise")},
     NULL,
     FAILS(MISSING, "a.b.weight_scale")},
    {"Q06 groups of 128",
     {INT8(4, 256), SCALE("a.b.weight_scale", 1),
      COMFY_QUANT("a.b", ROTATED(", \"convrot_groupsize\": 128"))},
     NULL,
     FAILS(META, "groups of 128 for 256 columns")},
    {"Q06 groups of 256 for 64",
     {INT8(4, 64), SCALE("a.b.weight_scale", 1), COMFY_QUANT("a.b", ROTATED(""))},
     NULL,
     FAILS(META, "groups of 256 for 64 columns")},
    {"Q06 groups of 0",
     {INT8(4, 64), SCALE("a.b.weight_scale", 1), COMFY_QUANT("a.b", ROTATED(", \"convrot_groupsize\": 0"))},
     NULL,
     FAILS(META, "convrot_groupsize")},
    {"Q06 rotated by a word",
     {INT8(4, 64), SCALE("a.b.weight_scale", 1),
      COMFY_QUANT("a.b", "{\"format\": \"int8_tensorwise\", \"convrot\": \"yes\"}")},
     NULL,
     FAILS(META, "true or false for convrot")},
    {"Q06 groups of no number",
     {INT8(4, 64), SCALE("a.b.weight_scale", 1),
      COMFY_QUANT("a.b", ROTATED(", \"convrot_groupsize\": \"64\""))},
     NULL,
     FAILS(META, "convrot_groupsize")},
    {"rotated in 64s",
     {INT8(4, 64), SCALE("a.b.weight_scale", 0.5),
      COMFY_QUANT("a.b", ROTATED(", \"convrot_groupsize\": 64"))},
     NULL,
     LOADS(DTYPE_I8_ROT64, 0.5, 0, 64, 0)},
    {"rotated in as many as is usual, a scale a row",
     {INT8(4, 512), ZEROS("a.b.weight_scale", "F32", 2, 4, 1),
      COMFY_QUANT("a.b", ROTATED(", \"orig_dtype\": \"torch.bfloat16\", \"per_row\": true"))},
     NULL,
     LOADS(DTYPE_I8_ROT256, 1, 16, 512, 0)},
    {"rotated in 16s by metadata, scales in a list",
     {INT8(4, 48), ZEROS("a.b.weight_scale", "F32", 1, 4)},
     LAYER("{\\\"format\\\": \\\"int8_tensorwise\\\", \\\"convrot\\\": true, \\\"convrot_groupsize\\\": 16}"),
     LOADS(DTYPE_I8_ROT16, 1, 16, 48, 0)},
    {"described as not rotated",
     {INT8(4, 64), SCALE("a.b.weight_scale", 0.5),
      COMFY_QUANT("a.b", "{\"format\": \"int8_tensorwise\", \"convrot\": false, \"convrot_groupsize\": 64}")},
     NULL,
     LOADS(DTYPE_I8, 0.5, 0, 64, 0)},
    {"Q06 rotated in 4s",
     {INT8(4, 64), SCALE("a.b.weight_scale", 1), COMFY_QUANT("a.b", ROTATED(", \"convrot_groupsize\": 4"))},
     NULL,
     FAILS(UNSUPPORTED, "groups of 4 for 64 columns")},
    {"Q06 rotated in 1024s",
     {INT8(4, 1024), SCALE("a.b.weight_scale", 1),
      COMFY_QUANT("a.b", ROTATED(", \"convrot_groupsize\": 1024"))},
     NULL,
     FAILS(UNSUPPORTED, "16, 64 or 256")},
    {"Q06 groups beyond 64 bits",
     {INT8(4, 64), SCALE("a.b.weight_scale", 1),
      COMFY_QUANT("a.b", ROTATED(", \"convrot_groupsize\": 9223372036854775807"))},
     NULL,
     FAILS(META, "power of 4")},
    {"Q06 a rotated vector",
     {ZEROS("a.b.weight", "I8", 1, 256), SCALE("a.b.weight_scale", 1), COMFY_QUANT("a.b", ROTATED(""))},
     NULL,
     FAILS(META, "a matrix's columns")},
    {"Q06 rotated without scale",
     {INT8(4, 256), COMFY_QUANT("a.b", ROTATED(""))},
     NULL,
     FAILS(MISSING, "a.b.weight_scale")},
    {"Q06 rotated, a scale a column",
     {INT8(4, 256), ZEROS("a.b.weight_scale", "F32", 2, 1, 256), COMFY_QUANT("a.b", ROTATED(""))},
     NULL,
     FAILS(SHAPE, "[1, 256]")},
    {"Q06 rotated fp8",
     {E4M3(4, 256), SCALE("a.b.weight_scale", 1),
      COMFY_QUANT("a.b", "{\"format\": \"float8_e4m3fn\", \"convrot\": true}")},
     NULL,
     FAILS(UNSUPPORTED, "float8_e4m3fn with convrot")},
    {"Q06 rotated, of another type",
     {E4M3(4, 256), SCALE("a.b.weight_scale", 1), COMFY_QUANT("a.b", ROTATED(""))},
     NULL,
     FAILS(META, "I8 for int8_tensorwise")},
    {"Q06 in metadata",
     {INT8(4, 8), SCALE("a.b.weight_scale", 0.5)},
     LAYER(FORM("int8_tensorwise")),
     LOADS(DTYPE_I8, 0.5, 0, 8, 0)},
    {"Q06 metadata of a layer that is not there",
     {INT8(4, 8)},
     "{\\\"format_version\\\": \\\"1.0\\\", \\\"layers\\\": {\\\"c\\\": " FORM("foo") "}}",
     LOADS(DTYPE_I8, 1, 0, 8, 0)},
    {"Q06 metadata foo", {INT8(4, 8)}, LAYER(FORM("foo")), FAILS(UNSUPPORTED, "\"foo\"")},
    {"Q06 metadata without layers", {INT8(4, 8)}, "{}", FAILS(META, "_quantization_metadata")},
    {"Q06 metadata no JSON", {INT8(4, 8)}, "layers", FAILS(META, "_quantization_metadata")},
    {"Q06 metadata cut",
     {INT8(4, 8)},
     "{\\\"layers\\\": {\\\"a.b\\\": ",
     FAILS(META, "_quantization_metadata")},
    {"Q06 metadata of no object",
     {INT8(4, 8)},
     "{\\\"layers\\\": []}",
     FAILS(META, "_quantization_metadata")},
    {"Q06 metadata deep", {INT8(4, 8)}, LAYER("[[[[[[[[[[[[1]]]]]]]]]]]]"), FAILS(LIMIT, "nested")},
    {"Q06 layers twice", {INT8(4, 8)}, "{\\\"layers\\\": {}, \\\"layers\\\": {}}", FAILS(DUP, "twice")},
    {"Q06 a layer twice",
     {INT8(4, 8), SCALE("a.b.weight_scale", 0.5)},
     "{\\\"layers\\\": {\\\"a.b\\\": " FORM("int8_tensorwise") ", \\\"a.b\\\": " FORM("nvfp4") "}}",
     FAILS(DUP, "a.b")},
    {"Q06 NUL in a layer's name",
     {INT8(4, 8)},
     "{\\\"layers\\\": {\\\"a\\\\u0000b\\\": " FORM("nvfp4") "}}",
     FAILS(META, "cannot be read")},
};

static void check_outcome(const struct row *row, const struct outcome *o) {
    const struct index_entry *w = &o->weight;
    if (w->dtype == row->becomes.dtype && (double)w->scale == row->becomes.scale &&
        w->scales.bytes == row->becomes.scales_bytes && w->dim[w->rank - 1] == row->becomes.columns &&
        o->n_unused == row->becomes.n_unused)
        return;
    fail_msg("%s: %s, scale %g, %llu bytes of scales, %d columns, %d unused", row->id, dtype_name(w->dtype),
             (double)w->scale, (unsigned long long)w->scales.bytes, (int)w->dim[w->rank - 1], o->n_unused);
}

static void test_pairing_and_malformed_files(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *row = &rows[i];
        struct outcome outcome = {0};
        struct error e;
        char line[1024];
        size_t bytes;
        unsigned char *file = make(row->pieces, row->metadata, &bytes);
        put("row.safetensors", file, bytes);
        open_file("row.safetensors", &outcome, &e);
        error_line(&e, line, sizeof line);
        if (e.code != row->code || (row->word && !strstr(line, row->word)) ||
            (row->code != OK && !strstr(line, folder)))
            fail_msg("%s: %s (expected %s, '%s'): %s", row->id, status_name(e.code), status_name(row->code),
                     row->word ? row->word : "", line);
        if (row->code == OK) check_outcome(row, &outcome);
        for (size_t n = bytes; n-- > 0 && bytes <= CUT_BYTES_MAX;) {
            assert_int_equal(truncate(under("row.safetensors"), (off_t)n), 0);
            if (open_file("row.safetensors", &outcome, &e) == OK)
                fail_msg("%s: OK when cut at byte %zu", row->id, n);
        }
        free(file);
    }
}

/* Tests tensor names with a prefix that the layer names in the metadata lack. */
static void test_Q06_prefix(void **state) {
    (void)state;
    const struct piece pieces[PIECES_MAX] = {ZEROS(PREFIXED ".weight", "I8", 2, 4, 8),
                                             ZEROS(PREFIXED ".weight_scale", "F32", 2, 4, 1)};
    struct outcome outcome = {0};
    struct error e;
    size_t bytes;
    unsigned char *file = make(pieces, LAYER(FORM("int8_tensorwise")), &bytes);
    put("prefix.safetensors", file, bytes);
    assert_int_equal(open_file("prefix.safetensors", &outcome, &e), OK);
    assert_int_equal(outcome.n_unused, 1); /* the weight counts as unused, under its prefixed name */
    free(file);
}

static const char description[] =
    "{\"format\": \"int8_tensorwise\", \"params\": {\"x\": [1, 2.5, null, \"\"]}}";

static enum status open_description(const char *text, struct error *e) {
    const struct piece pieces[PIECES_MAX] = {INT8(4, 8), SCALE("a.b.weight_scale", 1),
                                             COMFY_QUANT("a.b", text)};
    struct outcome outcome = {0};
    size_t bytes;
    unsigned char *file = make(pieces, NULL, &bytes);
    put("description.safetensors", file, bytes);
    free(file);
    return open_file("description.safetensors", &outcome, e);
}

static void test_Q04_cuts(void **state) {
    (void)state;
    struct error e;
    assert_int_equal(open_description(description, &e), OK);
    for (size_t n = 0; n + 1 < sizeof description; n++) {
        char cut[sizeof description] = "";
        memcpy(cut, description, n);
        if (open_description(cut, &e) != META) fail_msg("cut at %zu: %s", n, status_name(e.code));
    }
}

static void test_Q04_random(void **state) {
    (void)state;
    uint64_t random = 1;
    for (int i = 0; i < 500; i++) {
        char text[sizeof description];
        struct error e;
        memcpy(text, description, sizeof text);
        for (int k = 0; k < 1 + i % 3; k++)
            text[random_next(&random) % (sizeof text - 1)] = (char)(1 + random_next(&random) % 255);
        enum status code = open_description(text, &e);
        if (code != OK && code != META && code != UNSUPPORTED && code != LIMIT && code != MISSING)
            fail_msg("'%s': %s", text, status_name(code));
    }
}

/* Pairs a weight with a scale in another shard. The metadata of a shard describes only the layers of this
 * shard. */
static void test_scale_in_another_shard(void **state) {
    (void)state;
    static const char index[] =
        "{\"weight_map\":{\"a.b.weight\":\"1.safetensors\",\"c.weight\":\"2.safetensors\","
        "\"a.b.weight_scale\":\"2.safetensors\",\"c.weight_scale\":\"1.safetensors\"}}";
    const struct piece one[PIECES_MAX] = {INT8(4, 8), SCALE("c.weight_scale", 1)};
    const struct piece two[PIECES_MAX] = {ZEROS("c.weight", "I8", 2, 4, 8),
                                          ZEROS("a.b.weight_scale", "F32", 2, 4, 1)};
    struct outcome outcome = {0};
    struct error e;
    size_t bytes;
    unsigned char *file = make(one, LAYER(FORM("int8_tensorwise")), &bytes);
    put("1.safetensors", file, bytes);
    free(file);
    file = make(two, "{\\\"layers\\\": {\\\"c\\\": " FORM("int8_tensorwise") "}}", &bytes);
    put("2.safetensors", file, bytes);
    free(file);
    put("model.safetensors.index.json", index, strlen(index));
    assert_int_equal(open_file("model.safetensors.index.json", &outcome, &e), OK);
    assert_true(outcome.weight.quant_described && outcome.weight.scales.bytes == 16);
    assert_int_not_equal(outcome.weight.scales.source, outcome.weight.source);
    assert_int_equal(outcome.n_unused, 1);
}

static int allocs_left;
static void *(*machine_alloc)(struct sys *sys, enum memory_line line, uint64_t bytes);

static void *failing_alloc(struct sys *sys, enum memory_line line, uint64_t bytes) {
    return allocs_left-- ? machine_alloc(sys, line, bytes) : NULL;
}

static void test_every_alloc_fails_once(void **state) {
    (void)state;
    struct sys sys;
    struct tensor_index index;
    struct error e = {0};
    int n = 0;
    sys_init_machine(&sys);
    machine_alloc = sys.alloc;
    sys.alloc = failing_alloc;
    for (allocs_left = 0; component_open(&sys, under("model.safetensors.index.json"), &index, &e) != OK;
         allocs_left = ++n) {
        assert_int_equal(e.code, MEMORY);
        assert_int_equal(sys_memory_use(&sys).live_bytes[LINE_HOST], 0);
        e = (struct error){0};
    }
    assert_true(n > 10);
    index_destroy(&index);
    assert_int_equal(sys_memory_use(&sys).live_bytes[LINE_HOST], 0);
}

static int set_up(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state) {
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairing_and_malformed_files),
        cmocka_unit_test(test_Q06_prefix),
        cmocka_unit_test(test_Q04_cuts),
        cmocka_unit_test(test_Q04_random),
        cmocka_unit_test(test_scale_in_another_shard),
        cmocka_unit_test(test_every_alloc_fails_once),
    };
    int n = sizeof tests / sizeof *tests, failed = cmocka_run_group_tests(tests, set_up, tear_down);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}
