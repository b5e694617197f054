/* Text and image encoders of WAN models: umT5 from files with other names and an embedded tokenizer, and the
 * image preprocessing of CLIP. Scripts of test_layouts.c test the authors' names of umT5, the names of CLIP's
 * vision encoder, and encoders that do not fit. */
#include "test/lib/random_models.h"
#include "test/lib/model_paths.h"
#include "test/lib/tensor_set.h"

static const char *folder;

/* Makes a random Wan model whose vision encoder has CLIP's default head size of 80. */
static void make_folder(void) {
    folder =
        random_model("wan", "wan_i2v",
                     "layers=1,heads=2,wan_ff=64,t5_layers=2,hidden=64,t5_heads=2,t5_head_dim=16,t5_ff=48,"
                     "t5_vocabulary=400,clip_vision_layers=3,clip_vision_width=160,clip_vision_heads=2,"
                     "clip_vision_ff=64,clip_vision_size=56,vae_base=8,dtype=f16",
                     5);
}

enum { SIDE_X = 70, SIDE_Y = 45 };

/* Computes the latent after one step of image-to-video. */
static bool draw_video(struct model_paths from, char latent[HEX], const char *what) {
    static uint8_t rgb[SIDE_X * SIDE_Y * 3];
    for (size_t i = 0; i < sizeof rgb; i++) rgb[i] = (uint8_t)(i * i % 251);
    const struct sluice_picture picture = {
        .struct_size = sizeof picture, .width = SIDE_X, .height = SIDE_Y, .rgb = rgb};
    struct sluice_request request = request_fox(48, 32, 1, 1, 1);
    request.frames = 5;
    request.init_image = &picture;
    request.strength = 1;
    return sample_latent(model_options(&from), request, latent, what);
}

static void expect_latent(struct model_paths from, const char *wanted, const char *what) {
    char found[HEX];
    if (draw_video(from, found, what)) check(!strcmp(wanted, found), "%s: the latent differs", what);
}

struct names {
    const char *from, *to;
};

static void rename_all(struct tensor_set *p, const struct names *names) {
    for (int i = 0; i < p->n; i++)
        for (const struct names *n = names; n->from; n++) rename_part(&p->item[i], n->from, n->to);
}

static void name_as_gguf(struct tensor_set *p) {
    static const struct names names[] = {{"shared.", "token_embd."},
                                         {"encoder.final_layer_norm.", "enc.output_norm."},
                                         {"layer.0.SelfAttention.relative_attention_bias.", "attn_rel_b."},
                                         {"layer.0.SelfAttention.", "attn_"},
                                         {"layer.0.layer_norm.", "attn_norm."},
                                         {"layer.1.DenseReluDense.wi_0.", "ffn_gate."},
                                         {"layer.1.DenseReluDense.wi_1.", "ffn_up."},
                                         {"layer.1.DenseReluDense.wo.", "ffn_down."},
                                         {"layer.1.layer_norm.", "ffn_norm."},
                                         {"encoder.block.", "enc.blk."},
                                         {NULL, NULL}};
    rename_all(p, names);
}

static void name_embedding_tied(struct tensor_set *p) {
    static const struct names names[] = {{"shared.", "encoder.embed_tokens."}, {NULL, NULL}};
    rename_all(p, names);
}

/* Converted files give the same latent: safetensors with the embedded tokenizer; GGUF cannot hold the
 * tokenizer and needs --tokenizer. */
static void test_converted_text_encoder(struct model_paths from, const char *wanted) {
    static const char *const ends[] = {".converted.safetensors", ".gguf"};
    char path[TENSOR_SET_PATH + 32], tokenizer[TENSOR_SET_PATH];
    const char *inputs[] = {from.t5xxl};
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer", folder);
    for (int i = 0; i < 2; i++) {
        char *json = NULL;
        struct sluice_error e;
        snprintf(path, sizeof path, "%s%s", inputs[0], ends[i]);
        struct sluice_convert_options to = {
            .struct_size = sizeof to, .inputs = inputs, .n_inputs = 1, .output = path};
        check(!sluice_convert(&to, &json, &e), "%s: %s %s", path, e.what, e.found);
        free(json);
        from.t5xxl = path;
        from.tokenizer = i ? tokenizer : NULL;
        expect_latent(from, wanted, path);
    }
}

/* ComfyUI's text encoder files hold the tokenizer as a tensor; this test provides no other tokenizer. */
static void test_text_encoder_names(const char *wanted) {
    static const struct {
        const char *what, *prefix;
        void (*name)(struct tensor_set *p);
    } rows[] = {
        {"an embedded tokenizer", "", NULL},
        {"an embedded tokenizer, with a prefix", "text_encoders.umt5xxl.transformer.", NULL},
        {"the embedding's other name", "", name_embedding_tied},
        {"llama.cpp's names", "", name_as_gguf},
    };
    char path[TENSOR_SET_PATH], source[TENSOR_SET_PATH], denoiser[TENSOR_SET_PATH], vae[TENSOR_SET_PATH],
        seeing[TENSOR_SET_PATH];
    snprintf(path, sizeof path, "%s/umt5.safetensors", temporary);
    snprintf(source, sizeof source, "%s/tokenizer/spiece.model", folder);
    snprintf(denoiser, sizeof denoiser, "%s/transformer", folder);
    snprintf(vae, sizeof vae, "%s/vae", folder);
    snprintf(seeing, sizeof seeing, "%s/image_encoder", folder);
    size_t bytes;
    char *spiece = read_file(source, &bytes);
    if (!spiece) abort();
    for (int i = 0; i < COUNT_OF(rows); i++) {
        struct tensor_set *p = tensor_set_from_component(folder, "text_encoder"),
                          *named = calloc(1, sizeof *named);
        if (!named) abort();
        if (rows[i].name) rows[i].name(p);
        tensor_set_append(named, p, rows[i].prefix);
        tensor_set_add(named, *rows[i].prefix ? "text_encoders." : "", "spiece_model", "U8", 1,
                       (int32_t[]){(int32_t)bytes}, spiece, bytes);
        write_tensor_set(named, path, NULL);
        struct model_paths from = {
            .diffusion_model = denoiser, .t5xxl = path, .clip_vision = seeing, .vae = vae};
        expect_latent(from, wanted, rows[i].what);
        if (!i) test_converted_text_encoder(from, wanted);
        tensor_set_free(p);
        tensor_set_free(named);
    }
    free(spiece);
}

static struct vision_grid vision_grid_of(const char *clip, int width, int height) {
    struct sluice_model *model = NULL;
    struct sluice_error e;
    struct model_paths from = {.model = folder, .clip_vision = clip};
    struct vision_grid grid = {0};
    if (!check(!sluice_model_open(model_options(&from), &model, &e), "%s: %s", clip ? clip : folder, e.what))
        return grid;
    const struct component *c = model_component(model, FAMILY_VISION);
    grid = c->family->lanes.vision_grid(c, width, height);
    sluice_model_close(model);
    return grid;
}

static void expect_vision_grid(struct vision_grid got, int width, int height, int left, int top,
                               const char *what) {
    check(got.width == 56 && got.height == 56 && got.columns * got.rows == 17 && got.whole.width == width &&
              got.whole.height == height && got.whole.left == left && got.whole.top == top,
          "%s: %dx%d at %d, %d of %dx%d, %d tokens", what, got.width, got.height, got.whole.left,
          got.whole.top, got.whole.width, got.whole.height, got.columns * got.rows);
}

/* Checks resize and crop sizes against transformers' get_resize_output_image_size and center_crop. */
static void test_resize_and_crop_sizes(void) {
    expect_vision_grid(vision_grid_of(NULL, 56, 56), 56, 56, 0, 0, "no resize");
    expect_vision_grid(vision_grid_of(NULL, 64, 48), 74, 56, 9, 0, "wide");
    expect_vision_grid(vision_grid_of(NULL, 480, 640), 56, 74, 0, 9, "high");
    expect_vision_grid(vision_grid_of(NULL, 101, 37), 152, 56, 48, 0, "an odd rest");
    expect_vision_grid(vision_grid_of(NULL, 3, 1000), 56, 18666, 0, 9305, "very high");
    expect_vision_grid(vision_grid_of(NULL, 57, 56), 57, 56, 0, 0, "half a pixel");
}

/* Writes a vision encoder's folder with the given preprocessor_config.json. */
static const char *with_processor(const char *text) {
    const char *at = temporary_path("eyes");
    char path[TENSOR_SET_PATH];
    struct tensor_set *p = tensor_set_from_component(folder, "image_encoder");
    mkdir(at, 0777);
    snprintf(path, sizeof path, "%s/model.safetensors", at);
    write_tensor_set(p, path, NULL);
    snprintf(path, sizeof path, "%s/config.json", at);
    write_file(path, p->config, strlen(p->config));
    snprintf(path, sizeof path, "%s/preprocessor_config.json", at);
    write_file(path, text, strlen(text));
    tensor_set_free(p);
    return at;
}

static void test_preprocessor_config(void) {
    static const struct {
        const char *text;
        int code;
        const char *says;
    } rows[] = {
        {"{\"size\": 40, \"crop_size\": 56}", SLUICE_META, "a shorter edge of 40"},
        {"{\"size\": {\"shortest_edge\": 56}, \"crop_size\": {\"height\": 28, \"width\": 28}}", SLUICE_META,
         "cropped to 28x28"},
        {"{\"do_center_crop\": false}", SLUICE_META, "not cropped"},
        {"{\"size\": {\"height\": 56, \"width\": 40}}", SLUICE_META, "resized to 40x56"},
        {"{\"size\": {\"height\": 56}}", SLUICE_META, "resized to 0x56"},
        {"{\"size\": {\"shortest_edge\": 56, \"longest_edge\": 80}}", SLUICE_UNSUPPORTED, "80"},
        {"{\"resample\": 2}", SLUICE_META, "2"},
        {"{\"do_normalize\": false}", SLUICE_UNSUPPORTED, "do_normalize false"},
        {"{\"image_mean\": [0.5, 0.5]}", SLUICE_META, "2"},
        {"{\"image_std\": [0, 1, 1]}", SLUICE_META, "0"},
    };
    expect_vision_grid(vision_grid_of(with_processor("{\"size\": 80, \"crop_size\": 56}"), 64, 48), 106, 80,
                       25, 12, "size larger than crop_size");
    expect_vision_grid(vision_grid_of(with_processor("{\"size\": {\"height\": 60, \"width\": 70}}"), 640, 48),
                       70, 60, 7, 2, "height and width given");
    expect_vision_grid(vision_grid_of(with_processor("{}"), 64, 48), 74, 56, 9, 0, "empty configuration");
    for (int i = 0; i < COUNT_OF(rows); i++) {
        struct sluice_model *model = NULL;
        struct sluice_error e = {0};
        struct model_paths from = {.model = folder, .clip_vision = with_processor(rows[i].text)};
        int code = sluice_model_open(model_options(&from), &model, &e);
        check(code == rows[i].code && strstr(e.found, rows[i].says), "%s: %s %s: %s", rows[i].text,
              sluice_code_name(code), e.what, e.found);
        sluice_model_close(model);
    }
}

int main(void) {
    char wanted[HEX];
    temporary_make();
    make_folder();
    if (n_failed || !draw_video((struct model_paths){.model = folder}, wanted, "pipeline folder"))
        return finish();
    test_text_encoder_names(wanted);
    test_resize_and_crop_sizes();
    test_preprocessor_config();
    return finish();
}
