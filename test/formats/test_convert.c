/* `convert`: the output equals quantising the source's values, from files of every format and type, in
 * bounded memory. Also tests type rules, components, refusals, cancelling, and faults; a failed conversion
 * leaves no output file. */
#include "engine/convert/convert.h"
#include "engine/bench/random_weights.h"
#include "kernels/cpu/weights.h"
#include "loaders/gguf/gguf.h"
#include "loaders/quantise/quantise.h"
#include "loaders/quantised.h"
#include "test/lib/conversions.h"
#include "test/lib/random_models.h"

#include <math.h>
#include <unistd.h>

/* Checks that the output holds the source's values, converted to the type of the output. */
static void check_numbers(const struct opened *from, const struct index_entry *one, const struct opened *to,
                          const struct index_entry *other) {
    int64_t n = entry_elements(one);
    float *numbers = numbers_of(from, one), *found = numbers_of(to, other), largest = 0;
    char *bytes = malloc((size_t)n * 4 + 64);
    if (!bytes) abort();
    struct tensor t = tensor_make(bytes, other->dtype, other->rank, other->dim);
    for (int64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(numbers[i]));
    t.scale = other->dtype == one->dtype ? one->scale : quantise_scale(other->dtype, largest);
    check(other->scale == t.scale, "%s: scale %g, not %g", one->name, (double)other->scale, (double)t.scale);
    float *scales = malloc(((size_t)n + 1) * sizeof *scales);
    bool of_rows = other->dtype != one->dtype && dtype_is_rotated(other->dtype);
    if (!scales || !check(!of_rows || other->scales.bytes, "%s: scales are missing", one->name)) abort();
    for (int64_t i = 0; of_rows && i < tensor_rows(&t); i++)
        scales[i] = quantise_row_scale(other->dtype, numbers + i * tensor_columns(&t), tensor_columns(&t));
    t.scales = of_rows ? scales : NULL;
    if (other->dtype != one->dtype) {
        quantise_rows(other->dtype, t.scale, numbers, tensor_rows(&t), tensor_columns(&t), bytes);
        weights_widen(numbers, &t, 0, tensor_rows(&t));
    }
    check(!memcmp(numbers, found, (size_t)n * sizeof *numbers), "%s as %s: wrong values", one->name,
          dtype_name(other->dtype));
    free(scales);
    free(bytes);
    free(numbers);
    free(found);
}

/* Checks that the file `to` has every tensor of `from`; returns how many have type `counted` in `to`. */
static int compare_files(const char *from_path, const char *to_path, enum dtype counted) {
    struct opened from, to;
    int n = 0;
    if (!open_weights(&from, from_path) || !open_weights(&to, to_path)) return 0;
    for (int i = 0; i < from.index.n_entries; i++) {
        const struct index_entry *one = &from.index.entries[i],
                                 *other = index_find(&to.index, from.index.entries[i].name);
        if (one->used || !check(other != NULL, "%s is missing in the output", one->name)) continue;
        if (check(one->rank == other->rank &&
                      !memcmp(one->dim, other->dim, (size_t)one->rank * sizeof *one->dim),
                  "%s has another shape", one->name))
            check_numbers(&from, one, &to, other);
        n += other->dtype == counted;
    }
    index_destroy(&from.index);
    index_destroy(&to.index);
    return n;
}

/* Checks that the conversion succeeds, keeps the values, and gives n tensors (-1: any number) type `counted`.
 */
static bool expect_values(const struct convert_args *args, enum dtype counted, int n) {
    if (!expect_converted(args)) return false;
    int found = compare_files(args->inputs[0], args->output, counted);
    return check(n < 0 || found == n, "%s to %s: %d tensors of %s instead of %d", args->inputs[0],
                 args->output, found, dtype_name(counted), n);
}

/* Checks the type of a tensor in a file; N_DTYPES: the file lacks the tensor. */
static void expect_type(const char *path, const char *name, enum dtype dtype, const char *rule) {
    struct opened o;
    if (!open_weights(&o, path)) return;
    const struct index_entry *entry = index_find(&o.index, name);
    enum dtype found = entry ? entry->dtype : N_DTYPES;
    check(found == dtype, "%s: %s has type %d: %s", path, name, (int)found, rule);
    index_destroy(&o.index);
}

static const char *model_folder(void) {
    static const char *folder;
    if (!folder)
        folder = random_model(
            "model", "zimage",
            "heads=2,axis0=32,axis1=48,axis2=48,layers=1,refiners=1,hidden=64,text_heads=2,text_key_heads=1,"
            "text_head_dim=32,text_ff=96,text_layers=2,vocabulary=400,vae0=32,vae1=32,vae2=32,vae3=32,"
            "vae_groups=8,latent_channels=4",
            5);
    return folder;
}

static const char *transformer(void) {
    static char path[160];
    snprintf(path, sizeof path, "%s/transformer", model_folder());
    return path;
}

/* The test transformer has 3 layers (two of them refiners) of 7 matrices, and two modulation matrices. One
 * matrix per layer has rows that cannot be divided into quantisation blocks. */
enum { LAYERS = 3, MATRICES = LAYERS * 7 + 2, MATRICES_IN_BLOCKS = MATRICES - LAYERS };

static void test_type_of_each_tensor(void) {
    static const char *const names[] = {"q8_0", "q4_0", "q5_0", "q4_k", "q5_k", "q6_k", "f16"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *output = temporary_path("every.gguf");
        enum dtype dtype = quantise_type(names[i]);
        if (!expect_values(ASK(transformer(), output, names[i]), dtype,
                           dtype == DTYPE_F16 ? MATRICES : MATRICES_IN_BLOCKS))
            continue;
        expect_type(output, "t_embedder.mlp.0.weight", DTYPE_BF16, "embedders are not quantised");
        expect_type(output, "x_pad_token", DTYPE_F32, "vectors are f32");
        expect_type(output, "layers.0.attention_norm1.weight", DTYPE_F32, "norms are f32");
        check_no_leak(names[i]);
    }
}

/* Encoder projections that only some pipelines use are not quantised. */
static void test_projections_not_quantised(void) {
    static const char sizes[] =
        "heads=2,layers=1,sd3_positions=9,hidden=128,sd3_pooled=160,latent_channels=4,vae0=32,vae1=32,"
        "vae2=32,vae3=32,clip_vocabulary=600,clip_layers=2,clip_ff=64,clip_l.pooled=64,clip_l.clip_heads=1,"
        "clip_l.clip_projection=64,clip_g.pooled=96,clip_g.clip_heads=2,clip_g.clip_projection=96,"
        "t5_vocabulary=600,t5_heads=2,t5_head_dim=16,t5_ff=32,t5_layers=1";
    static const char *const folders[] = {"text_encoder", "text_encoder_2"};
    const char *model = random_model("projected", "sd35_large", sizes, 5);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        const char *output = temporary_path("projected.gguf");
        char folder[200];
        snprintf(folder, sizeof folder, "%s/%s", model, folders[i]);
        if (!expect_converted(ASK(folder, output, "q8_0"))) continue;
        expect_type(output, "text_projection.weight", DTYPE_BF16, "projections are not quantised");
        expect_type(output, "text_model.encoder.layers.0.mlp.fc1.weight", DTYPE_Q8_0, "layers are quantised");
    }
}

/* Converting a converted file again keeps the data and scales of its f8 tensors. */
static void test_scaled_f8_kept(void) {
    static const char *const names[] = {"f8_e4m3", "f8_e5m2"};
    for (size_t i = 0; i < 2; i++) {
        const char *output = temporary_path("f8.safetensors");
        if (!expect_values(ASK(transformer(), output, names[i]), quantise_type(names[i]), MATRICES)) continue;
        expect_values(ASK(output, temporary_path("again.safetensors"), names[i]), quantise_type(names[i]),
                      MATRICES);
        expect_values(ASK(output, temporary_path("of_f8.gguf"), "q8_0"), DTYPE_Q8_0, -1);
    }
}

/* The output GGUF has its architecture and the configuration of the source's folder. */
static void test_gguf_describes_itself(void) {
    const char *output = temporary_path("says.gguf");
    struct opened o;
    struct error e = {0};
    struct config config = {0};
    if (!expect_converted(ASK(transformer(), output, "q6_k")) || !open_weights(&o, output)) return;
    if (check(config_parse(&o.machine, output, o.index.config, NULL, &config, &e) == OK, "%s", e.what)) {
        int type = 0;
        check(!strcmp(config_string(&config, "general.architecture", ""), "lumina2"),
              "wrong general.architecture");
        config_int(&config, "general.file_type", 0, 100, &type, &e);
        check(type == 18, "file type %d", type);
        check(strstr(config_string(&config, "config", ""), "ZImageTransformer2DModel") != NULL,
              "its configuration");
    }
    config_destroy(&config);
    index_destroy(&o.index);
}

/* Qwen3 and Qwen3-VL's language model have the same tensors: config.json decides, or else --part. */
static void test_config_decides_between_equal_tensors(void) {
    static const char sizes[] =
        "vocabulary=400,hidden=64,text_heads=2,text_key_heads=1,text_head_dim=32,text_ff=96,heads=4,"
        "key_heads=2,axis0=8,axis1=12,axis2=12,layers=1,feed_forward=96,fusion_heads=2,fusion_key_heads=2,"
        "fusion_ff=96,vae_base=16";
    static const char *const outputs[][3] = {
        {"vl.gguf", "q8_0"}, {"vl.safetensors", "f16"}, {"vl_part.gguf", "q8_0", "qwen3vl"}};
    char folder[200], config[220];
    snprintf(folder, sizeof folder, "%s/text_encoder", random_model("vl", "krea2", sizes, 5));
    snprintf(config, sizeof config, "%s/config.json", folder);
    for (size_t i = 0; i < COUNT_OF(outputs); i++) {
        const char *output = temporary_path(outputs[i][0]);
        struct sys machine;
        struct tensor_index index = {0};
        struct contents contents;
        struct error e = {0};
        if (outputs[i][2]) check(unlink(config) == 0, "cannot remove %s", config);
        if (!expect_converted(ASK(folder, output, outputs[i][1], .part = outputs[i][2]))) continue;
        sys_init_machine(&machine);
        if (!check(contents_open(&machine, output, &index, &contents, &e) == OK, "%s: %s", output, e.what))
            continue;
        check(contents.n == 1 && contents.component[0].family == &family_qwen3vl, "%s: %d, %s", output,
              contents.n, contents.n ? contents.component[0].family->name : "none");
        index_destroy(&index);
    }
}

static void test_vae_not_quantised(void) {
    char folder[192];
    snprintf(folder, sizeof folder, "%s/vae", model_folder());
    expect_values(ASK(folder, temporary_path("vae.gguf"), "q8_0"), DTYPE_Q8_0, 0);
}

/* Blocks that span rows, as in ComfyUI's GGUF files, are dequantised, in either output format. */
static void test_rows_without_whole_blocks_dequantised(void) {
    static const char from[] = "test/golden/gguf/aligned.gguf";
    expect_values(ASK(from, temporary_path("flattened.gguf"), "q8_0"), DTYPE_F32, 2);
    expect_values(ASK(from, temporary_path("flattened.safetensors"), "f8_e4m3"), DTYPE_F32, 1);
}

static void test_first_matching_rule_applies(void) {
    const char *output = temporary_path("rules.gguf");
    if (!expect_values(
            ASK(transformer(), output, "q8_0",
                .rules = {"^layers\\..*to_[qk]=q6_k", "to_q=q4_0", "t_embedder=q5_0", "norm1=f16"}),
            DTYPE_Q8_0, -1))
        return;
    expect_type(output, "layers.0.attention.to_q.weight", DTYPE_Q6_K, "the first matching rule applies");
    expect_type(output, "noise_refiner.0.attention.to_q.weight", DTYPE_Q4_0, "the second rule applies");
    expect_type(output, "layers.0.attention.to_v.weight", DTYPE_Q8_0, "without a rule: the default type");
    expect_type(output, "t_embedder.mlp.0.weight", DTYPE_Q5_0, "rules override what is not quantised");
    expect_type(output, "t_embedder.mlp.0.bias", DTYPE_F32, "a vector has no block type");
    expect_type(output, "layers.0.attention_norm1.weight", DTYPE_F16, "a vector gets the rule's plain type");
}

static void test_invalid_rules_refused(void) {
    const char *output = temporary_path("wrong.gguf"), *other = temporary_path("wrong.safetensors");
    const char *from = transformer();
    expect_not_converted(ASK(from, output, "q8_0", .rules = {"abc"}), USAGE, "--rule \"abc\"");
    expect_not_converted(ASK(from, output, "q8_0", .rules = {"=q8_0"}), USAGE, "regex=type");
    expect_not_converted(ASK(from, output, "q8_0", .rules = {"a(=q8_0"}), USAGE, "--rule \"a(=q8_0\"");
    expect_not_converted(ASK(from, output, "q8_0", .rules = {"a=q9_0"}), USAGE, "q9_0");
    expect_not_converted(ASK(from, output, "q8_0", .rules = {"a=f8_e4m3"}), USAGE, "f8_e4m3");
    expect_not_converted(ASK(from, output, "q8_0", .rules = {"(.+)+[!?]=q8_0"}), USAGE, "too long");
    expect_not_converted(ASK(from, output, "f8_e4m3"), USAGE, "in .gguf");
    expect_not_converted(ASK(from, other, "q8_0"), USAGE, "in .safetensors");
    expect_not_converted(ASK(from, output, "q2_k"), USAGE, "q2_k");
    expect_not_converted(ASK(from, temporary_path("wrong.bin"), "q8_0"), USAGE, ".gguf or .safetensors");
    expect_not_converted(ASK(from, NULL, "q8_0"), USAGE, ".gguf or .safetensors");
    expect_not_converted(ASK(from, temporary_path("no/such/x.gguf"), "q8_0"), OUTPUT, "no/such");
    expect_not_converted(ASK(temporary_path("absent"), output, "q8_0"), MISSING, "absent");
    expect_not_converted(&(struct convert_args){.output = output, .type = "q8_0"}, USAGE, "0 inputs");
}

static uint64_t random_state = 7;

/* Returns a named tensor of random values in the given type. */
static struct named_tensor synthetic_tensor(const char *name, enum dtype dtype, int32_t rows,
                                            int32_t columns) {
    struct named_tensor t = {name, tensor_make(NULL, dtype, 2, (int32_t[]){rows, columns})};
    t.tensor.data = calloc(1, (size_t)tensor_bytes(&t.tensor) + 64);
    if (!t.tensor.data) abort();
    random_weights_fill(&random_state, &t.tensor, 1, t.tensor.data, (uint64_t)tensor_bytes(&t.tensor));
    return t;
}

static void write_free(const char *path, struct named_tensor *tensors, int n) {
    struct sys machine;
    struct error e = {0};
    sys_init_machine(&machine);
    size_t length = strlen(path);
    if (length > 5 && !strcmp(path + length - 5, ".gguf"))
        gguf_write_made(&machine, path, NULL, 0, tensors, n, NULL, &e);
    else
        safetensors_write(&machine, path, tensors, n, &e);
    check(e.code == OK, "%s: %s", path, e.what);
    for (int i = 0; i < n; i++) free(tensors[i].tensor.data);
}

static void test_every_source_type(void) {
    static char names[N_DTYPES][16];
    struct named_tensor tensors[N_DTYPES];
    const char *from = temporary_path("types.gguf");
    int n = 0;
    for (int dtype = 0; dtype < N_DTYPES; dtype++) {
        bool blocks = dtype >= DTYPE_Q4_0 && dtype <= DTYPE_NVFP4;
        if (!blocks && dtype != DTYPE_F32 && dtype != DTYPE_F16 && dtype != DTYPE_BF16) continue;
        snprintf(names[n], sizeof names[n], "%d.weight", dtype);
        tensors[n] = synthetic_tensor(names[n], (enum dtype)dtype, 7, 512);
        n++;
    }
    write_free(from, tensors, n);
    check(n == 17, "%d source types", n);
    expect_values(ASK(from, temporary_path("f32.safetensors"), "f32"), DTYPE_F32, n);
    expect_values(ASK(from, temporary_path("q6.gguf"), "q6_k"), DTYPE_Q6_K, n);
    expect_values(ASK(from, temporary_path("same.gguf"), NULL), DTYPE_Q4_K, 1);
    /* safetensors cannot hold block types */
    expect_values(ASK(from, temporary_path("kept.safetensors"), NULL), DTYPE_F32, n - 2);
}

/* Tensors with rows of no whole quantisation blocks, or of one or over two dimensions, keep their type. */
static void test_odd_shapes_keep_their_type(void) {
    const char *from = temporary_path("odd.safetensors"), *to = temporary_path("odd.gguf");
    struct named_tensor tensors[] = {
        synthetic_tensor("a.weight", DTYPE_F32, 64, 40),  synthetic_tensor("b.weight", DTYPE_BF16, 64, 288),
        synthetic_tensor("c.weight", DTYPE_BF16, 1, 512), synthetic_tensor("d.weight", DTYPE_F16, 32, 32),
        synthetic_tensor("e", DTYPE_F16, 17, 256),        synthetic_tensor("f.weight", DTYPE_BF16, 8, 4608),
        synthetic_tensor("g.weight", DTYPE_F32, 0, 512),
    };
    tensors[5].tensor = tensor_reshape(tensors[5].tensor, 4, (int32_t[]){8, 512, 3, 3});
    write_free(from, tensors, 7);
    expect_values(ASK(from, to, "q5_k"), DTYPE_Q5_K, 1);
    expect_type(to, "a.weight", DTYPE_F32, "rows of 40");
    expect_type(to, "b.weight", DTYPE_Q8_0, "rows of 288");
    expect_type(to, "f.weight", DTYPE_BF16, "a convolution");
    to = temporary_path("odd8.safetensors");
    expect_values(ASK(from, to, "fp8"), DTYPE_F8_E4M3, 2);
    expect_type(to, "e", DTYPE_F16, "a tensor without a layer name cannot get a scale");
}

/* Writes one int8 matrix with scales, in the format of ComfyUI. */
static void write_int8(const char *path, int columns, const char *form, int rank, int n_scales) {
    struct named_tensor tensors[3] = {
        synthetic_tensor("a.weight", DTYPE_I8, 70, columns),
        {"a.weight_scale", tensor_make(NULL, DTYPE_F32, rank, (int32_t[]){n_scales, 1})},
        {"a.comfy_quant", tensor_make(strdup(form), DTYPE_U8, 1, (int32_t[]){(int32_t)strlen(form)})}};
    float *scales = tensors[1].tensor.data = malloc((size_t)n_scales * sizeof *scales);
    for (int i = 0; scales && i < n_scales; i++) scales[i] = (float)(i + 16) / 64;
    write_free(path, tensors, 3);
}

static struct tensor copied(const void *from, enum dtype dtype, int rank, int32_t rows, int32_t columns) {
    struct tensor t = tensor_make(NULL, dtype, rank, (int32_t[]){rank ? rows : 1, columns});
    t.data = malloc((size_t)tensor_bytes(&t));
    return t.data ? (memcpy(t.data, from, (size_t)tensor_bytes(&t)), t) : t;
}

/* Writes one matrix in ComfyUI's w4a8, or in nvfp4 with factors of the columns (AWQ). */
static void write_sections(const char *path, enum dtype dtype) {
    enum { ROWS = 80, COLUMNS = 512, FACTORS = 2 * COLUMNS, CHANNELS = 64, GROUPS = CHANNELS + 4 * ROWS };
    struct named_tensor tensors[6] = {synthetic_tensor("a.weight", dtype, ROWS, COLUMNS)};
    struct tensor weight = tensors[0].tensor;
    const char *form = quantised_format_text(dtype);
    bool w4a8 = dtype == DTYPE_I4_ROT256;
    weight.scale = random_weights_scale(&weight, 1);
    weight.scales = &weight; /* any pointer but NULL: tensor_scales_bytes counts */
    char *scales = malloc((size_t)tensor_scales_bytes(&weight));
    random_weights_fill_scales(&random_state, &weight, 1, scales, (uint64_t)tensor_scales_bytes(&weight));
    tensors[0].tensor =
        tensor_make(weight.data, w4a8 ? DTYPE_I8 : DTYPE_U8, 2, (int32_t[]){ROWS, COLUMNS / 2});
    tensors[1] = (struct named_tensor){"a.comfy_quant", copied(form, DTYPE_U8, 1, (int32_t)strlen(form), 0)};
    if (w4a8) {
        tensors[2] = (struct named_tensor){"a.weight_codebook", copied(scales, DTYPE_F32, 1, 16, 0)};
        tensors[3] =
            (struct named_tensor){"a.weight_s_channel", copied(scales + CHANNELS, DTYPE_F32, 1, ROWS, 0)};
        tensors[4] = (struct named_tensor){"a.weight_s_rel",
                                           copied(scales + GROUPS, DTYPE_F8_E4M3, 2, ROWS, COLUMNS / 16)};
    } else {
        tensors[2] = (struct named_tensor){"a.pre_quant_scale", copied(scales, DTYPE_BF16, 1, COLUMNS, 0)};
        tensors[3] = (struct named_tensor){"a.weight_scale",
                                           copied(scales + FACTORS, DTYPE_F8_E4M3, 2, 128, COLUMNS / 16)};
        tensors[4] = (struct named_tensor){"a.weight_scale_2", copied(&weight.scale, DTYPE_F32, 0, 0, 0)};
    }
    free(scales);
    write_free(path, tensors, 5);
}

/* Types whose scales are several tensors are converted to other types, and dequantised if no type is given.
 */
static void test_types_with_sections(void) {
    static const enum dtype types[] = {DTYPE_I4_ROT256, DTYPE_NVFP4_AWQ};
    const char *from = temporary_path("sections.safetensors");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        write_sections(from, types[i]);
        expect_type(from, "a.weight", types[i], "as stored");
        expect_values(ASK(from, temporary_path("sections.gguf"), "q8_0"), DTYPE_Q8_0, 1);
        expect_values(ASK(from, temporary_path("rotated.safetensors"), "int8_convrot"), DTYPE_I8_ROT256, 1);
        expect_values(ASK(from, temporary_path("plain.safetensors"), NULL), DTYPE_F32, 1);
    }
}

/* int8 with a scale per row is dequantised before it is quantised to another type. */
static void test_row_scaled_int8_requantised(void) {
    const char *from = temporary_path("int8.safetensors"), *to = temporary_path("int8.gguf");
    write_int8(from, 256, "{\"format\":\"int8_tensorwise\"}", 2, 70);
    expect_values(ASK(from, to, "q8_0"), DTYPE_Q8_0, -1);
    expect_type(to, "a.weight_scale", N_DTYPES, "unused scales are not written");
    expect_values(ASK(from, temporary_path("kept8.safetensors"), NULL), DTYPE_I8, 1);
}

/* Rotated int8 has rotation groups of 256, 64 or 16 values, as the row length allows; the tensor comfy_quant
 * names each layer's type. */
static void test_rotated_int8_groups(void) {
    const char *output = temporary_path("rotated.safetensors"), *again = temporary_path("again.safetensors");
    const char *from = temporary_path("shapes.safetensors");
    expect_values(ASK(transformer(), output, "int8_convrot"), DTYPE_I8_ROT256, MATRICES_IN_BLOCKS);
    expect_type(output, "layers.0.attention.to_q.comfy_quant", DTYPE_U8, "a description of each layer");
    expect_type(output, "t_embedder.mlp.0.weight", DTYPE_BF16, "embedders are not quantised");
    expect_values(ASK(output, again, "int8_convrot"), DTYPE_I8_ROT256, MATRICES_IN_BLOCKS);
    expect_values(ASK(output, again, NULL), DTYPE_I8_ROT256, MATRICES_IN_BLOCKS);
    expect_values(ASK(output, again, "i8_rot16"), DTYPE_I8_ROT16, MATRICES_IN_BLOCKS);
    expect_values(ASK(output, temporary_path("of_rotated.gguf"), "q8_0"), DTYPE_Q8_0, MATRICES_IN_BLOCKS);
    struct named_tensor shapes[] = {
        synthetic_tensor("a.weight", DTYPE_BF16, 6000, 192),
        synthetic_tensor("b.weight", DTYPE_BF16, 8, 144),
        synthetic_tensor("c.weight", DTYPE_BF16, 8, 136),
        synthetic_tensor("d", DTYPE_BF16, 8, 256),
    };
    write_free(from, shapes, 4);
    expect_values(ASK(from, again, "int8_convrot"), DTYPE_I8_ROT64, 1);
    expect_values(ASK(again, output, NULL), DTYPE_I8_ROT64, 1);
    expect_type(again, "b.weight", DTYPE_I8_ROT16, "rows of 144");
    expect_type(again, "c.weight", DTYPE_BF16, "rows of 136");
    expect_type(again, "d", DTYPE_BF16, "a tensor without a layer name cannot get scales");
    expect_not_converted(ASK(from, temporary_path("rotated.gguf"), "int8_convrot"), USAGE, "int8_convrot");
}

static void test_rotated_int8_with_one_scale(void) {
    const char *from = temporary_path("single.safetensors"), *to = temporary_path("single2.safetensors");
    write_int8(from, 192, "{\"format\":\"int8_tensorwise\",\"convrot\":true,\"convrot_groupsize\":64}", 0, 1);
    expect_values(ASK(from, to, NULL), DTYPE_I8_ROT64, 1);
    expect_values(ASK(from, to, "f32"), DTYPE_F32, 1);
    /* GGUF cannot hold rotated int8 */
    expect_values(ASK(from, temporary_path("single.gguf"), NULL), DTYPE_F32, 1);
}

/* The output keeps all metadata of a GGUF source, such as its tokenizer, except file type and alignment. */
static void test_metadata_copied(void) {
    static const char from[] = "test/golden/stored/zimage_gguf/model/text_encoders/qwen3.gguf";
    static const char changed_key[] = "general.file_type";
    const char *to = temporary_path("along.gguf");
    struct opened one, two;
    struct gguf *before = NULL, *after = NULL;
    struct gguf_text key;
    struct gguf_value value, other;
    struct error e = {0};
    if (!expect_converted(ASK(from, to, "q8_0")) || !open_weights(&one, from) || !open_weights(&two, to))
        return;
    check(!gguf_read(&one.index.sources[0], &before, &e) && !gguf_read(&two.index.sources[0], &after, &e),
          "reading headers");
    int n = 0;
    for (; before && after && gguf_pair_at(before, n, &key, &value); n++) {
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)key.bytes, key.text);
        if (!strcmp(name, changed_key) || !strcmp(name, "general.alignment")) continue;
        bool same = gguf_find(after, name, &other) && value.kind == other.kind &&
                    value.array == other.array && value.n == other.n && value.bytes == other.bytes;
        check(same && !memcmp(value.data, other.data, value.bytes), "metadata '%s' changes", name);
    }
    check(n > 10, "only %d metadata keys", n);
    gguf_close(before);
    gguf_close(after);
    index_destroy(&one.index);
    index_destroy(&two.index);
}

static void test_inputs_merged(void) {
    const char *one = temporary_path("one.safetensors"), *two = temporary_path("two.gguf"),
               *to = temporary_path("both.gguf");
    struct named_tensor first[] = {synthetic_tensor("a.weight", DTYPE_BF16, 8, 256)};
    struct named_tensor second[] = {synthetic_tensor("b.weight", DTYPE_Q4_K, 8, 256)};
    write_free(one, first, 1);
    write_free(two, second, 1);
    if (expect_converted(ASK(one, to, "q8_0", .inputs[1] = two))) {
        compare_files(one, to, DTYPE_Q8_0);
        compare_files(two, to, DTYPE_Q8_0);
    }
    expect_not_converted(ASK(one, to, "q8_0", .inputs[1] = one), DUP, "a.weight");
    expect_not_converted(ASK(one, two, "q8_0", .inputs[1] = two), USAGE, "one of the input files");
}

static void write_all_in_one(const char *path) {
    static const char *const parts[][2] = {{"transformer", "model.diffusion_model."}, {"vae", "vae."}};
    static struct named_tensor tensors[512];
    int n = 0;
    for (int p = 0; p < 2; p++) {
        char folder[192];
        struct opened o;
        snprintf(folder, sizeof folder, "%s/%s", model_folder(), parts[p][0]);
        if (!open_weights(&o, folder)) return;
        for (int i = 0; i < o.index.n_entries && n < 512; i++) {
            const struct index_entry *entry = &o.index.entries[i];
            struct error e = {0};
            char name[256];
            snprintf(name, sizeof name, "%s%s", parts[p][1], entry->name);
            tensors[n].name = strdup(name);
            tensors[n].tensor = tensor_make(malloc(entry->bytes), entry->dtype, entry->rank, entry->dim);
            source_read(&o.index.sources[entry->source], tensors[n].tensor.data, entry->bytes, entry->offset,
                        &e);
            n++;
        }
        index_destroy(&o.index);
    }
    write_free(path, tensors, n);
    for (int i = 0; i < n; i++) free((char *)(uintptr_t)tensors[i].name);
}

static void test_part_option(void) {
    const char *from = temporary_path("all.safetensors"), *to = temporary_path("part.gguf");
    write_all_in_one(from);
    expect_not_converted(ASK(from, to, "q8_0"), USAGE, "diffusion-model, vae");
    expect_not_converted(ASK(from, to, "q8_0", .part = "llm"), USAGE, "found llm");
    expect_not_converted(ASK(model_folder(), to, "q8_0"), USAGE, "--part");
    static const char *const names[] = {"diffusion-model", "zimage", "model.diffusion_model"};
    for (size_t i = 0; i < 3; i++)
        if (expect_converted(ASK(from, to, "q8_0", .part = names[i])))
            check(compare_files(transformer(), to, DTYPE_Q8_0) == MATRICES_IN_BLOCKS, "--part %s", names[i]);
    if (expect_converted(ASK(model_folder(), to, "q8_0", .part = "transformer")))
        check(compare_files(transformer(), to, DTYPE_Q8_0) == MATRICES_IN_BLOCKS, "--part of a folder");
}

static void test_nonfinite_values_refused(void) {
    const char *from = temporary_path("nan.safetensors"), *to = temporary_path("nan.gguf");
    static const float strange[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        struct named_tensor tensors[] = {synthetic_tensor("a.weight", DTYPE_F32, 8, 256)};
        ((float *)tensors[0].tensor.data)[700] = strange[i];
        write_free(from, tensors, 1);
        expect_not_converted(ASK(from, to, "q8_0"), NONFINITE, "a.weight");
        expect_not_converted(ASK(from, temporary_path("nan8.safetensors"), "fp8"), NONFINITE, "a.weight");
        expect_not_converted(ASK(from, temporary_path("nan8.safetensors"), "int8_convrot"), NONFINITE,
                             "a.weight");
    }
}

/* Values just beyond the target type's range are refused; values just within it give finite results. */
static void test_values_beyond_type_refused(void) {
    static const struct {
        const char *type;
        float most;
    } types[] = {{"f16", 65504},    {"q4_0", 458528},  {"q5_0", 982560}, {"q8_0", 8319008},
                 {"q6_k", 1965120}, {"q4_k", 4061248}, {"q5_k", 4061248}};
    const char *from = temporary_path("large.safetensors"), *to = temporary_path("large.gguf"),
               *back = temporary_path("back.safetensors");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int beyond = 0; beyond < 2; beyond++) {
            struct named_tensor tensors[] = {synthetic_tensor("a.weight", DTYPE_F32, 8, 256)};
            ((float *)tensors[0].tensor.data)[700] = -types[i].most * (beyond ? 1.001f : 1);
            write_free(from, tensors, 1);
            if (beyond)
                expect_not_converted(ASK(from, to, types[i].type), LIMIT, "a.weight");
            else if (expect_converted(ASK(from, to, types[i].type)))
                expect_converted(ASK(to, back, "f32"));
        }
    struct named_tensor huge = synthetic_tensor("a.weight", DTYPE_F32, 8, 256);
    for (int i = 0; i < 256; i++) ((float *)huge.tensor.data)[i] = 3e38f;
    write_free(from, &huge, 1);
    expect_not_converted(ASK(from, back, "int8_convrot"), LIMIT, "a.weight");
}

/* Writes a bf16 tensor as a sparse file. */
static bool make_hole(const char *path, int rows, int columns) {
    char header[160];
    long long bytes = 2LL * rows * columns;
    uint64_t n =
        (uint64_t)snprintf(header, sizeof header,
                           "{\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[%d,%d],\"data_offsets\":[0,%lld]}}",
                           rows, columns, bytes);
    FILE *file = fopen(path, "wb");
    if (!file) return false;
    fwrite(&n, sizeof n, 1, file);
    fwrite(header, n, 1, file);
    fclose(file);
    return truncate(path, (off_t)(8 + n) + bytes) == 0;
}

/* Converts 34 million values: peak memory does not depend on the number of values. Measured: 24.0 MiB. */
static void test_peak_memory_bounded(void) {
    const char *from = temporary_path("large.safetensors"), *to = temporary_path("large.gguf");
    if (!check(make_hole(from, 8192, 4096), "cannot make a sparse file")) return;
    fault_sys_restart(&convert_sys);
    if (expect_converted(ASK(from, to, "q8_0"))) {
        int64_t peak = 0;
        for (int i = 0; i < N_MEMORY_LINES; i++) peak += convert_sys.sys.use.peak_bytes[i];
        printf("peak %.1f MiB\n", (double)peak / 0x1p20);
        check(peak < 32 << 20, "%lld bytes", (long long)peak);
    }
    unlink(from);
    unlink(to);
}

/* Converts a sparse tensor of 4 TiB, if the file system allows it; expects an error before any read. */
static void test_disk_too_small_refused(void) {
    const char *from = temporary_path("huge.safetensors"), *to = temporary_path("huge.gguf");
    if (make_hole(from, 1 << 30, 1 << 11)) {
        expect_not_converted(ASK(from, to, "q8_0"), OUTPUT, "not enough disk space");
    }
    unlink(from);
}

/* Fails the n-th call of a kind during a conversion, for each n until a conversion makes fewer calls. may_do:
 * the conversion may succeed, because the call is repeated or only detects that the file changed. */
static void fail_every(enum call call, enum status code, bool may_do) {
    const char *from = temporary_path("small.safetensors"), *to = temporary_path("small.gguf");
    struct error e;
    int files = count_open_files();
    for (long n = 1; n < 1000; n++) {
        unlink(to);
        fault_sys_fail(&convert_sys, call, n, 0);
        enum status status = convert(ASK(from, to, "q4_k"), &e);
        bool failed = atomic_load(&convert_sys.count[call]) >= n;
        bool expected = status == code || (may_do && (status == OK || status == CHANGED));
        check(failed ? expected : status == OK, "call kind %d, call %ld: %s", call, n, status_name(status));
        check(file_exists(to) == (status == OK),
              "call kind %d, call %ld: output file after an error, or none", call, n);
        check_no_leak("a fault");
        check(count_open_files() == files, "call kind %d, call %ld: a file stays open", call, n);
        if (!failed) break;
        check(n < 999, "call kind %d: conversion never succeeds", call);
    }
    fault_sys_restart(&convert_sys);
}

static void test_no_output_after_fault(void) {
    struct named_tensor tensors[] = {synthetic_tensor("a.weight", DTYPE_BF16, 8, 256),
                                     synthetic_tensor("b.weight", DTYPE_F32, 1, 256)};
    write_free(temporary_path("small.safetensors"), tensors, 2);
    fail_every(CALL_ALLOC, MEMORY, false);
    fail_every(CALL_OPEN, IO, true);
    fail_every(CALL_IDENTIFY, IO, true);
    fail_every(CALL_READ, IO, true);
    fail_every(CALL_CREATE, OUTPUT, false);
    fail_every(CALL_WRITE, OUTPUT, false);
    fail_every(CALL_FLUSH, OUTPUT, false);
    fail_every(CALL_RENAME, OUTPUT, false);
}

struct patience {
    int left, calls;
    double last;
};

static bool wait_for(void *user, double fraction, const char *what) {
    struct patience *patience = user;
    check(fraction >= patience->last && fraction <= 1 && *what, "%s: progress %g after %g", what, fraction,
          patience->last);
    patience->last = fraction;
    patience->calls++;
    return patience->left-- > 0;
}

static void test_cancelled_conversion_leaves_nothing(void) {
    const char *to = temporary_path("cancelled.gguf");
    const char *const inputs[] = {transformer()};
    struct patience patience = {.left = 20};
    struct sluice_convert_options options = {.struct_size = sizeof options,
                                             .inputs = inputs,
                                             .n_inputs = 1,
                                             .output = to,
                                             .type = "q8_0",
                                             .on_progress = wait_for,
                                             .user = &patience};
    struct error e = {0};
    check(convert_files(&convert_sys.sys, &options, NULL, &e) == CANCELLED, "%s", e.what);
    check(!file_exists(to) && patience.calls == 21, "not cancelled, or progress reported %d times",
          patience.calls);
    check_no_leak("cancelled");
    patience = (struct patience){.left = 100000};
    e = (struct error){0};
    char *json = NULL;
    check(convert_files(&convert_sys.sys, &options, &json, &e) == OK, "%s", e.what);
    json_t *summary = json ? json_loads(json, 0, NULL) : NULL;
    check(number(summary, "tensors") > MATRICES && number(summary, "from_bytes") > number(summary, "bytes"),
          "the summary: %s", json ? json : "none");
    json_decref(summary);
    free(json);
}

int main(void) {
    temporary_make();
    fault_sys_init(&convert_sys, 1);
    test_type_of_each_tensor();
    test_projections_not_quantised();
    test_scaled_f8_kept();
    test_rotated_int8_groups();
    test_gguf_describes_itself();
    test_config_decides_between_equal_tensors();
    test_vae_not_quantised();
    test_rows_without_whole_blocks_dequantised();
    test_first_matching_rule_applies();
    test_invalid_rules_refused();
    test_every_source_type();
    test_odd_shapes_keep_their_type();
    test_row_scaled_int8_requantised();
    test_types_with_sections();
    test_rotated_int8_with_one_scale();
    test_metadata_copied();
    test_inputs_merged();
    test_part_option();
    test_nonfinite_values_refused();
    test_values_beyond_type_refused();
    test_peak_memory_bounded();
    test_disk_too_small_refused();
    test_no_output_after_fault();
    test_cancelled_conversion_leaves_nothing();
    return finish();
}
