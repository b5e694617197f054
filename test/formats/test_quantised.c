/* Quantised weights in safetensors files: pairing with their scales and descriptions, and malformed files,
 * whose names begin with the number of the defect (Q01 ...). Each file is generated, opened under a hang
 * guard, must release all memory, and is opened again truncated at every byte. Models in unsupported formats:
 * test_layouts.c. */
#include "test/lib/malformed_files.h"

#include "engine/base/random.h"

#include <ctype.h>

/* Appends a tensor to the header and the data of a file. `piece` is the tensor's name, type and dimensions,
 * then "= NUMBER", which sets the last value (all others are 0), or 'TEXT, the bytes. Names that begin with a
 * point are of layer a.b: .weight is a.b.weight. */
static void put_piece(struct bytes *header, struct bytes *data, const char *piece, const char *end) {
    char name[64], type[16], shape[64] = "";
    int read, n_shape = 0;
    assert_int_equal(sscanf(piece, "%63s %15s%n", name, type, &read), 2);
    const char *at = piece + read;
    size_t size = strstr(type, "32") ? 4 : strstr(type, "16") ? 2 : 1, bytes = size;
    for (char *next; at + 1 < end && isdigit((unsigned char)at[1]); at = next) {
        unsigned long dim = strtoul(at, &next, 10);
        n_shape += snprintf(shape + n_shape, 20, n_shape ? ",%lu" : "%lu", dim);
        bytes *= dim;
    }
    const char *text = at + 1 < end && at[1] == '\'' ? at + 2 : NULL;
    if (text) snprintf(shape, sizeof shape, "%zu", bytes = (size_t)(end - text));
    bytes_print(header, "%c\"%s%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                header->n > 1 ? ',' : ' ', *name == '.' ? "a.b" : "", name, type, shape, data->n,
                data->n + bytes);
    bytes_fill(data, 0, bytes);
    unsigned char *data_end = data->at + data->n;
    if (text) {
        memcpy(data_end - bytes, text, bytes);
    } else if (at + 1 < end) {
        float number = strtof(at + sizeof " =", NULL);
        uint32_t bits;
        memcpy(&bits, &number, sizeof bits);
        if (!strcmp(type, "BF16")) bits >>= 16;
        if (!strcmp(type, "F16")) bits = 0x3800; /* 0.5 in f16; tests use no other f16 value */
        memcpy(data_end - size, &bits, size);
    }
}

/* Writes a safetensors file of the given pieces, separated by "; ". metadata: escaped text of
 * _quantization_metadata, or NULL. Returns the file's size. */
static size_t put_file(const char *name, const char *pieces, const char *metadata) {
    struct bytes file = {0}, header = {0}, data = {0};
    bytes_print(&header, "{");
    if (metadata) bytes_print(&header, "\"__metadata__\":{\"_quantization_metadata\":\"%s\"}", metadata);
    for (const char *end; *pieces; pieces = *end ? end + 2 : end) {
        end = pieces + strcspn(pieces, ";'");
        if (*end == '\'') end = strchr(end, 0);
        put_piece(&header, &data, pieces, end);
    }
    bytes_print(&header, "}");
    for (int i = 0; i < 8; i++) bytes_fill(&file, (char)(header.n >> 8 * i), 1);
    bytes_fill(&file, 0, header.n + data.n);
    memcpy(file.at + 8, header.at, header.n);
    memcpy(file.at + 8 + header.n, data.at, data.n);
    malformed_write(name, file.at, file.n);
    free(file.at), free(header.at), free(data.at);
    return file.n;
}

static struct index_entry weight; /* a.b.weight of the last opened file */
static int n_unused;              /* unused tensors of that file, without the weight */

static enum status open_weight(struct sys *sys, const char *path, struct tensor_index *index,
                               struct error *e) {
    if (component_open(sys, path, index, e) != OK) return e->code;
    const struct index_entry *found = index_find(index, "a.b.weight");
    weight = found ? *found : (struct index_entry){0};
    n_unused = 0;
    for (int i = 0; i < index->n_entries; i++)
        n_unused += !index->entries[i].used && &index->entries[i] != found;
    return OK;
}

static enum status open_file(const char *name, struct error *e) {
    return malformed_open(open_weight, malformed_path(name), e);
}

struct row {
    const char *id, *pieces;
    enum status code;
    const char *word;     /* word that the error message must have */
    const char *metadata; /* escaped text of _quantization_metadata */
    struct {
        enum dtype dtype;
        double scale;
        uint64_t scales_bytes;
        int32_t columns;
        int n_unused;
    } becomes;
};

#define LOADS(...)          .becomes = {__VA_ARGS__}
#define FAILS(code_, word_) .code = code_, .word = word_

#define E4M3          ".weight F8_E4M3 4 8"
#define INT8          ".weight I8 4 8"
#define IS(form)      ".comfy_quant U8 '{\"format\": \"" form "\"}"
#define ROTATED(more) ".comfy_quant U8 '{\"format\": \"int8_tensorwise\", \"convrot\": true" more "}"
#define ROTATED_BY(n) ROTATED(", \"convrot_groupsize\": " n)
/* A w4a8 weight of 4 rows and 256 columns; W4 lacks the description. */
#define LEVELS     "; .weight_codebook F32 16"
#define CHANNELS   "; .weight_s_channel F32 4"
#define GROUPS     "; .weight_s_rel F8_E4M3 4 16"
#define PACKED     ".weight I8 4 128"
#define W4         PACKED LEVELS CHANNELS GROUPS "; "
#define W4A8(more) ".comfy_quant U8 '{\"format\": \"asym_w4a8_int8\"" more "}"
/* An nvfp4 weight of 144 rows and 64 columns, with factors of its columns (AWQ). */
#define NVFP4         ".weight U8 144 32; .weight_scale F8_E4M3 256 4; .weight_scale_2 F32 = 0.5; "
#define FACTORS(more) ".pre_quant_scale BF16 64" more "; "
#define LAYER(text)   "{\\\"layers\\\": {\\\"a.b\\\": " text "}}"
#define FORM(form)    "{\\\"format\\\": \\\"" form "\\\"}"

static const struct row rows[] = {
    {"plain fp8", E4M3, LOADS(DTYPE_F8_E4M3, 1, 0, 8, 0)},
    {"plain fp8 of rank 4", ".weight F8_E5M2 2 3 1 1", LOADS(DTYPE_F8_E5M2, 1, 0, 1, 0)},
    {"Q01 scale_weight", E4M3 "; .scale_weight F32 = 0.25", LOADS(DTYPE_F8_E4M3, 0.25, 0, 8, 0)},
    {"Q01 weight_scale", E4M3 "; .weight_scale F32 = 3; .input_scale F32 = 1",
     LOADS(DTYPE_F8_E4M3, 3, 0, 8, 0)},
    {"Q01 weight_scale of rank 4", ".weight F8_E5M2 2 3 1 1; .weight_scale F32 = 3",
     LOADS(DTYPE_F8_E5M2, 3, 0, 1, 0)},
    {"Q01 bf16 scale", E4M3 "; .weight_scale BF16 = 0.125", LOADS(DTYPE_F8_E4M3, 0.125, 0, 8, 0)},
    {"Q01 f16 scale", E4M3 "; .weight_scale F16 = 0.5", LOADS(DTYPE_F8_E4M3, 0.5, 0, 8, 0)},
    {"Q01 two scales", E4M3 "; .weight_scale F32 = 3; .scale_weight F32 = 3", FAILS(DUP, "a.b.scale_weight")},
    {"scaled_fp8", E4M3 "; .scale_weight F32 = 2; .scale_input F32 = 1; scaled_fp8 F32 2; .bias F8_E4M3 4",
     LOADS(DTYPE_F8_E4M3, 2, 0, 8, 1)},
    {"scaled_fp8 without elements", E4M3 "; .scale_weight F32 = 2; a.scaled_fp8 F8_E4M3 0",
     LOADS(DTYPE_F8_E4M3, 2, 0, 8, 0)},
    {"Q02 marked, no scale", E4M3 "; a.scaled_fp8 F8_E4M3 2", FAILS(MISSING, "a.b.scale_weight")},
    {"Q02 another part is marked", E4M3 "; c.scaled_fp8 F8_E4M3 2", LOADS(DTYPE_F8_E4M3, 1, 0, 8, 0)},
    {"Q02 described, no scale", E4M3 "; " IS("float8_e4m3fn"), FAILS(MISSING, "a.b.weight_scale")},
    {"Q02 scale of bf16", ".weight BF16 4 8; .weight_scale F32 = 2", FAILS(META, "not quantised")},
    {"Q02 description of bf16", ".weight BF16 4 8; .weight_scale F32 = 2; " IS("float8_e4m3fn"),
     FAILS(META, "F8_E4M3 for float8_e4m3fn")},
    {"Q02 description of another fp8", E4M3 "; .weight_scale F32 = 2; " IS("float8_e5m2"),
     FAILS(META, "F8_E5M2 for float8_e5m2")},
    {"Q03 NaN", E4M3 "; .weight_scale F32 = nan", FAILS(META, "nan")},
    {"Q03 Inf", E4M3 "; .weight_scale F32 = inf", FAILS(META, "inf")},
    {"Q03 bf16 Inf", E4M3 "; .weight_scale BF16 = -inf", FAILS(META, "-inf")},
    {"Q03 zero", E4M3 "; .weight_scale F32 = 0", LOADS(DTYPE_F8_E4M3, 0, 0, 8, 0)},
    {"Q03 negative", E4M3 "; .weight_scale F32 = -2", LOADS(DTYPE_F8_E4M3, -2, 0, 8, 0)},
    {"Q03 no number", E4M3 "; .weight_scale I32 1", FAILS(META, "F32, F16 or BF16")},
    {"Q03 a row each", E4M3 "; .weight_scale F32 4 1", LOADS(DTYPE_F8_E4M3, 1, 16, 8, 0)},
    {"Q03 [1, 1]", E4M3 "; .weight_scale F32 1 1", LOADS(DTYPE_F8_E4M3, 0, 0, 8, 0)},
    {"Q03 NaN in the last row", ".weight F8_E4M3 300 8; .weight_scale F32 300 1 = nan",
     FAILS(META, "nan in row 299")},
    {"Q03 wrong rows", E4M3 "; .weight_scale F32 5 1",
     FAILS(SHAPE, "found F32 [5, 1], expected a single value, or F32 [4, 1]")},
    {"Q03 a flat row each", E4M3 "; .weight_scale F32 4", FAILS(SHAPE, "[4]")},
    {"Q03 a column each", E4M3 "; .weight_scale F32 1 8", FAILS(SHAPE, "[1, 8]")},
    {"Q03 halves a row", E4M3 "; .weight_scale F16 4 1", FAILS(META, "F16")},
    {"Q03 none", E4M3 "; .weight_scale F32 0", FAILS(SHAPE, "[0]")},
    {"Q03 rows of rank 4", ".weight F8_E5M2 2 3 1 1; .weight_scale F32 2 1",
     FAILS(SHAPE, "expected a single value")},
    {"Q04 broken", E4M3 "; .comfy_quant U8 '{\"format\": ", FAILS(META, "a.b.comfy_quant")},
    {"Q04 no JSON", E4M3 "; .comfy_quant U8 '\x01\x02\xff", FAILS(META, "a.b.comfy_quant")},
    {"Q04 empty", E4M3 "; .comfy_quant U8 '", FAILS(META, "a.b.comfy_quant")},
    {"Q04 list", E4M3 "; .comfy_quant U8 '[1]", FAILS(META, "an object with the key")},
    {"Q04 format of no text", E4M3 "; .comfy_quant U8 '{\"format\": 8}",
     FAILS(META, "an object with the key")},
    {"Q04 format twice", E4M3 "; .comfy_quant U8 '{\"format\": \"nvfp4\", \"format\": \"nvfp4\"}",
     FAILS(META, "duplicate")},
    {"Q04 deep", E4M3 "; .comfy_quant U8 '{\"x\": [[[[[[[[[[1]]]]]]]]]]}", FAILS(LIMIT, "nested")},
    {"Q04 1 MB", E4M3 "; .comfy_quant U8 1048576", FAILS(LIMIT, "1048576")},
    {"Q04 numbers", E4M3 "; .comfy_quant F32 4", FAILS(META, "F32")},
    {"Q04 foo", E4M3 "; " IS("foo"), FAILS(UNSUPPORTED, "\"foo\"")},
    {"Q04 convrot_w4a4", ".weight U8 16 8; " IS("convrot_w4a4"), FAILS(UNSUPPORTED, "convrot_w4a4")},
    {"Q04 awq", ".weight I8 16 8; " IS("awq_w4a16"), FAILS(UNSUPPORTED, "awq_w4a16")},
    {"Q04 of nothing", E4M3 "; a.c.comfy_quant U8 '{\"format\": \"nvfp4\"}", FAILS(MISSING, "'a.c.weight'")},
    {"described fp8",
     E4M3 "; .weight_scale F32 = 2; .comfy_quant U8 '{\"format\": \"float8_e4m3fn\", "
          "\"full_precision_matrix_mult\": true}",
     LOADS(DTYPE_F8_E4M3, 2, 0, 8, 0)},
    {"attention", E4M3 "; .weight_scale F32 = 2; a.comfy_attention.config U8 3",
     LOADS(DTYPE_F8_E4M3, 2, 0, 8, 0)},
    {"nvfp4",
     ".weight U8 144 32; .weight_scale F8_E4M3 256 4; .weight_scale_2 F32 = 0.5; .input_scale F32 = 9; " IS(
         "nvfp4"),
     LOADS(DTYPE_NVFP4_TILED, 0.5, 1024, 64, 0)},
    {"nvfp4 awq", NVFP4 FACTORS("") IS("nvfp4"), LOADS(DTYPE_NVFP4_AWQ, 0.5, 1152, 64, 0)},
    {"nvfp4 awq, full precision",
     NVFP4 FACTORS(" = 2") ".input_scale F32 = 9; .comfy_quant U8 '{\"format\": \"nvfp4\", "
                           "\"full_precision_matrix_mult\": true}",
     LOADS(DTYPE_NVFP4_AWQ, 0.5, 1152, 64, 0)},
    {"Q07 factors of f32", NVFP4 ".pre_quant_scale F32 64; " IS("nvfp4"),
     FAILS(SHAPE, "found F32 [64], expected BF16 [64]")},
    {"Q07 too few factors", NVFP4 ".pre_quant_scale BF16 32; " IS("nvfp4"),
     FAILS(SHAPE, "found BF16 [32], expected BF16 [64]")},
    {"Q07 factors in rows", NVFP4 ".pre_quant_scale BF16 1 64; " IS("nvfp4"), FAILS(SHAPE, "BF16 [1, 64]")},
    {"Q07 a factor that is NaN", NVFP4 FACTORS(" = nan") IS("nvfp4"), FAILS(META, "nan in column 63")},
    {"Q07 a factor that is infinite", NVFP4 FACTORS(" = -inf") IS("nvfp4"), FAILS(META, "-inf in column 63")},
    {"Q07 factors without tiles", ".weight U8 144 32; .weight_scale_2 F32 = 0.5; " FACTORS("") IS("nvfp4"),
     FAILS(MISSING, "weight_scale'")},
    {"Q07 factors of fp8: refused where they are used",
     E4M3 "; .weight_scale F32 = 2; .pre_quant_scale BF16 8; " IS("float8_e4m3fn"),
     LOADS(DTYPE_F8_E4M3, 2, 0, 8, 1)},
    {"w4a8", W4 W4A8(""), LOADS(DTYPE_I4_ROT256, 1, 144, 256, 0)},
    {"w4a8 with settings", W4 W4A8(", \"group_size\": 16, \"convrot_groupsize\": 256, \"convrot\": true"),
     LOADS(DTYPE_I4_ROT256, 1, 144, 256, 0)},
    {"w4a8 with nested settings and bytes as scales",
     PACKED LEVELS CHANNELS "; .weight_s_rel U8 4 16; " W4A8(", \"params\": {\"group_size\": 16}"),
     LOADS(DTYPE_I4_ROT256, 1, 144, 256, 0)},
    {"Q08 groups of 32", W4 W4A8(", \"group_size\": 32"),
     FAILS(UNSUPPORTED, "group_size 32, convrot_groupsize 256, expected group_size 16")},
    {"Q08 nested groups of 32", W4 W4A8(", \"params\": {\"group_size\": 32}"),
     FAILS(UNSUPPORTED, "group_size 32")},
    {"Q08 rotated in 64s", W4 W4A8(", \"convrot_groupsize\": 64"),
     FAILS(UNSUPPORTED, "convrot_groupsize 64, expected")},
    {"Q08 groups of no number", W4 W4A8(", \"group_size\": \"16\""), FAILS(META, "number for group_size")},
    {"Q08 groups of 0", W4 W4A8(", \"group_size\": 0"), FAILS(META, "number for group_size")},
    {"Q08 six bits", ".weight I8 4 192" LEVELS CHANNELS GROUPS "; " W4A8(""),
     FAILS(UNSUPPORTED, "found 6 bits a value, expected 4 bits a value")},
    {"Q08 a correction", W4 ".weight_correction BF16 16 4; " W4A8(""),
     FAILS(UNSUPPORTED, "a.b.weight_correction")},
    {"Q08 odd columns", ".weight I8 4 127" LEVELS CHANNELS GROUPS "; " W4A8(""),
     FAILS(SHAPE, "columns a multiple of 128 bytes")},
    {"Q08 a vector", ".weight I8 128" LEVELS CHANNELS GROUPS "; " W4A8(""), FAILS(SHAPE, "a matrix")},
    {"Q08 bytes without signs", ".weight U8 4 128" LEVELS CHANNELS GROUPS "; " W4A8(""),
     FAILS(META, "I8 for asym_w4a8_int8")},
    {"Q08 no levels", PACKED CHANNELS GROUPS "; " W4A8(""), FAILS(MISSING, "a.b.weight_codebook")},
    {"Q08 no row scales", PACKED LEVELS GROUPS "; " W4A8(""), FAILS(MISSING, "a.b.weight_s_channel")},
    {"Q08 no group scales", PACKED LEVELS CHANNELS "; " W4A8(""), FAILS(MISSING, "a.b.weight_s_rel")},
    {"Q08 group scales of another shape", PACKED LEVELS CHANNELS "; .weight_s_rel F8_E4M3 4 8; " W4A8(""),
     FAILS(SHAPE, "found F8_E4M3 [4, 8], expected F8_E4M3 [4, 16]")},
    {"Q08 group scales of f32", PACKED LEVELS CHANNELS "; .weight_s_rel F32 4 16; " W4A8(""),
     FAILS(SHAPE, "found F32 [4, 16], expected F8_E4M3 [4, 16]")},
    {"Q08 too many row scales", PACKED LEVELS GROUPS "; .weight_s_channel F32 5; " W4A8(""),
     FAILS(SHAPE, "found F32 [5], expected F32 [4]")},
    {"Q08 row scales of bf16", PACKED LEVELS GROUPS "; .weight_s_channel BF16 4; " W4A8(""),
     FAILS(SHAPE, "found BF16 [4], expected F32 [4]")},
    {"Q08 8 levels", PACKED CHANNELS GROUPS "; .weight_codebook F32 8; " W4A8(""),
     FAILS(SHAPE, "found F32 [8], expected F32 [16]")},
    {"Q08 a level that is NaN", PACKED LEVELS " = nan" CHANNELS GROUPS "; " W4A8(""),
     FAILS(META, "nan in level 15")},
    {"Q08 an infinite row scale", PACKED LEVELS CHANNELS " = inf" GROUPS "; " W4A8(""),
     FAILS(META, "inf in row 3")},
    {"Q08 w4a8 by metadata", PACKED LEVELS CHANNELS GROUPS, LOADS(DTYPE_I4_ROT256, 1, 144, 256, 0),
     .metadata = LAYER(FORM("asym_w4a8_int8"))},
    {"Q05 scales as they come",
     ".weight U8 144 32; .weight_scale F8_E4M3 144 4; .weight_scale_2 F32 = 0.5; " IS("nvfp4"),
     FAILS(SHAPE, "[256, 4]")},
    {"Q05 columns as they come",
     ".weight U8 128 48; .weight_scale F8_E4M3 128 6; .weight_scale_2 F32 = 0.5; " IS("nvfp4"),
     FAILS(SHAPE, "[128, 8]")},
    {"Q05 scales of two bytes",
     ".weight U8 144 32; .weight_scale F16 256 4; .weight_scale_2 F32 = 0.5; " IS("nvfp4"),
     FAILS(SHAPE, "of one byte")},
    {"Q05 no second scale", ".weight U8 144 32; .weight_scale F8_E4M3 256 4; " IS("nvfp4"),
     FAILS(MISSING, "a.b.weight_scale_2")},
    {"Q05 no first scale", ".weight U8 144 32; .weight_scale_2 F32 = 1; " IS("nvfp4"),
     FAILS(MISSING, "a.b.weight_scale'")},
    {"Q05 many second scales",
     ".weight U8 144 32; .weight_scale F8_E4M3 256 4; .weight_scale_2 F32 2; " IS("nvfp4"),
     FAILS(SHAPE, "weight_scale_2")},
    {"Q05 odd columns",
     ".weight U8 144 31; .weight_scale F8_E4M3 256 4; .weight_scale_2 F32 = 0.5; " IS("nvfp4"),
     FAILS(SHAPE, "a.b.weight")},
    {"Q05 odd rows",
     ".weight U8 143 32; .weight_scale F8_E4M3 256 4; .weight_scale_2 F32 = 0.5; " IS("nvfp4"),
     FAILS(SHAPE, "a.b.weight")},
    {"Q05 a vector", ".weight U8 64; .weight_scale F8_E4M3 128 4; .weight_scale_2 F32 = 0.5; " IS("nvfp4"),
     FAILS(SHAPE, "a.b.weight")},
    {"Q05 bytes with signs", ".weight I8 144 32; " IS("nvfp4"), FAILS(META, "U8 for nvfp4")},
    {"mxfp8", ".weight F8_E4M3 16 64; .weight_scale F8_E8M0 128 4; " IS("mxfp8"),
     LOADS(DTYPE_MXFP8_TILED, 1, 512, 64, 0)},
    {"mxfp8 with bytes for scales", ".weight F8_E4M3 160 160; .weight_scale U8 256 8; " IS("mxfp8"),
     LOADS(DTYPE_MXFP8_TILED, 1, 2048, 160, 0)},
    {"mxfp8 of 48 columns", ".weight F8_E4M3 16 48; .weight_scale U8 128 4; " IS("mxfp8"),
     FAILS(SHAPE, "columns a multiple of 32")},
    {"int8", INT8 "; .weight_scale F32 = 0.5; " IS("int8_tensorwise"), LOADS(DTYPE_I8, 0.5, 0, 8, 0)},
    {"int8 rows", INT8 "; .weight_scale F32 4 1; " IS("int8_tensorwise"), LOADS(DTYPE_I8, 1, 16, 8, 0)},
    {"int8 unmarked: refused where it is used", INT8 "; .weight_scale F32 = 0.5",
     LOADS(DTYPE_I8, 1, 0, 8, 1)},
    {"int8 without scale", INT8 "; " IS("int8_tensorwise"), FAILS(MISSING, "a.b.weight_scale")},
    {"Q06 groups of 128", ".weight I8 4 256; .weight_scale F32 = 1; " ROTATED_BY("128"),
     FAILS(META, "groups of 128 for 256 columns")},
    {"Q06 groups of 256 for 64", ".weight I8 4 64; .weight_scale F32 = 1; " ROTATED(""),
     FAILS(META, "groups of 256 for 64 columns")},
    {"Q06 groups of 0", ".weight I8 4 64; .weight_scale F32 = 1; " ROTATED_BY("0"),
     FAILS(META, "convrot_groupsize")},
    {"Q06 rotated by a word",
     ".weight I8 4 64; .weight_scale F32 = 1; .comfy_quant U8 '{\"format\": \"int8_tensorwise\", "
     "\"convrot\": \"yes\"}",
     FAILS(META, "true or false for convrot")},
    {"Q06 groups of no number",
     ".weight I8 4 64; .weight_scale F32 = 1; " ROTATED(", \"convrot_groupsize\": \"64\""),
     FAILS(META, "convrot_groupsize")},
    {"rotated in 64s", ".weight I8 4 64; .weight_scale F32 = 0.5; " ROTATED_BY("64"),
     LOADS(DTYPE_I8_ROT64, 0.5, 0, 64, 0)},
    {"rotated in as many as is usual, a scale a row",
     ".weight I8 4 512; .weight_scale F32 4 1; " ROTATED(
         ", \"orig_dtype\": \"torch.bfloat16\", \"per_row\": true"),
     LOADS(DTYPE_I8_ROT256, 1, 16, 512, 0)},
    {"rotated in 16s by metadata, scales in a list", ".weight I8 4 48; .weight_scale F32 4",
     LOADS(DTYPE_I8_ROT16, 1, 16, 48, 0),
     .metadata = LAYER(
         "{\\\"format\\\": \\\"int8_tensorwise\\\", \\\"convrot\\\": true, \\\"convrot_groupsize\\\": 16}")},
    {"described as not rotated",
     ".weight I8 4 64; .weight_scale F32 = 0.5; .comfy_quant U8 '{\"format\": \"int8_tensorwise\", "
     "\"convrot\": false, \"convrot_groupsize\": 64}",
     LOADS(DTYPE_I8, 0.5, 0, 64, 0)},
    {"rotated in 64s by nested settings",
     ".weight I8 4 64; .weight_scale F32 = 0.5; .comfy_quant U8 '{\"format\": \"int8_tensorwise\", "
     "\"params\": {\"convrot\": true, \"convrot_groupsize\": 64}}",
     LOADS(DTYPE_I8_ROT64, 0.5, 0, 64, 0)},
    {"Q06 rotated in 4s", ".weight I8 4 64; .weight_scale F32 = 1; " ROTATED_BY("4"),
     FAILS(UNSUPPORTED, "groups of 4 for 64 columns")},
    {"Q06 rotated in 1024s", ".weight I8 4 1024; .weight_scale F32 = 1; " ROTATED_BY("1024"),
     FAILS(UNSUPPORTED, "16, 64 or 256")},
    {"Q06 groups beyond 64 bits",
     ".weight I8 4 64; .weight_scale F32 = 1; " ROTATED_BY("9223372036854775807"), FAILS(META, "power of 4")},
    {"Q06 a rotated vector", ".weight I8 256; .weight_scale F32 = 1; " ROTATED(""),
     FAILS(META, "a matrix's columns")},
    {"Q06 rotated without scale", ".weight I8 4 256; " ROTATED(""), FAILS(MISSING, "a.b.weight_scale")},
    {"Q06 rotated, a scale a column", ".weight I8 4 256; .weight_scale F32 1 256; " ROTATED(""),
     FAILS(SHAPE, "[1, 256]")},
    {"Q06 rotated fp8",
     ".weight F8_E4M3 4 256; .weight_scale F32 = 1; .comfy_quant U8 '{\"format\": \"float8_e4m3fn\", "
     "\"convrot\": true}",
     FAILS(UNSUPPORTED, "float8_e4m3fn with convrot")},
    {"Q06 rotated, of another type", ".weight F8_E4M3 4 256; .weight_scale F32 = 1; " ROTATED(""),
     FAILS(META, "I8 for int8_tensorwise")},
    {"Q06 in metadata", INT8 "; .weight_scale F32 = 0.5", LOADS(DTYPE_I8, 0.5, 0, 8, 0),
     .metadata = LAYER(FORM("int8_tensorwise"))},
    {"Q06 metadata of a layer that is not there", INT8, LOADS(DTYPE_I8, 1, 0, 8, 0),
     .metadata = "{\\\"format_version\\\": \\\"1.0\\\", \\\"layers\\\": {\\\"c\\\": " FORM("foo") "}}"},
    {"Q06 metadata foo", INT8, FAILS(UNSUPPORTED, "\"foo\""), .metadata = LAYER(FORM("foo"))},
    {"Q06 metadata without layers", INT8, FAILS(META, "_quantization_metadata"), .metadata = "{}"},
    {"Q06 metadata no JSON", INT8, FAILS(META, "_quantization_metadata"), .metadata = "layers"},
    {"Q06 metadata cut", INT8, FAILS(META, "_quantization_metadata"),
     .metadata = "{\\\"layers\\\": {\\\"a.b\\\": "},
    {"Q06 metadata of no object", INT8, FAILS(META, "_quantization_metadata"),
     .metadata = "{\\\"layers\\\": []}"},
    {"Q06 metadata deep", INT8, FAILS(LIMIT, "nested"), .metadata = LAYER("[[[[[[[[[[[[1]]]]]]]]]]]]")},
    {"Q06 layers twice", INT8, FAILS(DUP, "twice"), .metadata = "{\\\"layers\\\": {}, \\\"layers\\\": {}}"},
    {"Q06 a layer twice", INT8 "; .weight_scale F32 = 0.5", FAILS(DUP, "a.b"),
     .metadata =
         "{\\\"layers\\\": {\\\"a.b\\\": " FORM("int8_tensorwise") ", \\\"a.b\\\": " FORM("nvfp4") "}}"},
    {"Q06 NUL in a layer's name", INT8, FAILS(META, "cannot be read"),
     .metadata = "{\\\"layers\\\": {\\\"a\\\\u0000b\\\": " FORM("nvfp4") "}}"},
};

TEST(pairing_and_malformed_files) {
    enum { CUT_MAX = 2000 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *row = &rows[i];
        size_t bytes = put_file("row.safetensors", row->pieces, row->metadata);
        malformed_expect(open_weight, row->id, "row.safetensors", row->code, row->word);
        if (row->code == OK &&
            (weight.dtype != row->becomes.dtype || (double)weight.scale != row->becomes.scale ||
             weight.scales.bytes != row->becomes.scales_bytes ||
             weight.dim[weight.rank - 1] != row->becomes.columns || n_unused != row->becomes.n_unused))
            fail_msg("%s: %s, scale %g, %llu bytes of scales, %d columns, %d unused", row->id,
                     dtype_name(weight.dtype), (double)weight.scale, (unsigned long long)weight.scales.bytes,
                     (int)weight.dim[weight.rank - 1], n_unused);
        for (size_t n = bytes; n-- > 0 && bytes <= CUT_MAX;) {
            struct error e;
            assert_int_equal(truncate(malformed_path("row.safetensors"), (off_t)n), 0);
            if (open_file("row.safetensors", &e) == OK) fail_msg("%s: OK when cut at byte %zu", row->id, n);
        }
    }
}

/* Tests tensor names with a prefix that the layer names in the metadata lack. */
TEST(Q06_prefix) {
    struct error e;
    put_file("prefix.safetensors",
             "model.diffusion_model.a.b.weight I8 4 8; model.diffusion_model.a.b.weight_scale F32 4 1",
             LAYER(FORM("int8_tensorwise")));
    assert_int_equal(open_file("prefix.safetensors", &e), OK);
    assert_int_equal(n_unused, 1); /* the weight counts as unused, under its prefixed name */
}

static const char description[] =
    "{\"format\": \"int8_tensorwise\", \"params\": {\"x\": [1, 2.5, null, \"\"]}}";

static enum status open_description(const char *text, struct error *e) {
    char pieces[256];
    snprintf(pieces, sizeof pieces, INT8 "; .weight_scale F32 = 1; .comfy_quant U8 '%s", text);
    put_file("description.safetensors", pieces, NULL);
    return open_file("description.safetensors", e);
}

TEST(Q04_cuts) {
    struct error e;
    assert_int_equal(open_description(description, &e), OK);
    for (size_t n = 0; n + 1 < sizeof description; n++) {
        char cut[sizeof description] = "";
        memcpy(cut, description, n);
        if (open_description(cut, &e) != META) fail_msg("cut at %zu: %s", n, status_name(e.code));
    }
}

TEST(Q04_random) {
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
TEST(scale_in_another_shard) {
    struct error e;
    put_file("1.safetensors", INT8 "; c.weight_scale F32 = 1", LAYER(FORM("int8_tensorwise")));
    put_file("2.safetensors", "c.weight I8 4 8; .weight_scale F32 4 1",
             "{\\\"layers\\\": {\\\"c\\\": " FORM("int8_tensorwise") "}}");
    malformed_write_text("model.safetensors.index.json",
                         "{\"weight_map\":{\"a.b.weight\":\"1.safetensors\",\"c.weight\":\"2.safetensors\","
                         "\"a.b.weight_scale\":\"2.safetensors\",\"c.weight_scale\":\"1.safetensors\"}}");
    assert_int_equal(open_file("model.safetensors.index.json", &e), OK);
    assert_true(weight.quant_described && weight.scales.bytes == 16);
    assert_int_not_equal(weight.scales.section[0].source, weight.source);
    assert_int_equal(n_unused, 1);
}

static enum status open_shards(struct sys *sys, struct error *e) {
    struct tensor_index index;
    if (component_open(sys, malformed_path("model.safetensors.index.json"), &index, e) == OK)
        index_destroy(&index);
    return e->code;
}

TEST(every_call_fails_once) {
    assert_true(malformed_fail_calls(open_shards, NULL) > 10);
}

int main(void) {
    return run_all_tests(malformed_set_up, malformed_tear_down);
}
