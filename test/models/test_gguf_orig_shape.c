/* GGUF files as ComfyUI-GGUF's tools/convert.py makes them of UNets: matrices and convolutions whose rows are
 * no multiple of the 256-value block are flattened, quantised, and get their shape in comfy.gguf.orig_shape.
 * Such a model must give the latent of its dequantised weights. */
#include "kernels/cpu/weights.h"
#include "loaders/gguf/gguf.h"
#include "loaders/quantise/quantise.h"
#include "test/lib/layout_checks.h"

#define MODEL "test/golden/sd1/model"

enum { BLOCK = 256, KEY_BYTES = TENSOR_SET_NAME + 32, WIDTH = 56, HEIGHT = 40 };

struct flattened {
    struct tensor_set *tensor_set;
    char keys[TENSOR_SET_MAX][KEY_BYTES];
    struct gguf_metadata metadata[TENSOR_SET_MAX];
    struct named_tensor tensors[TENSOR_SET_MAX];
    void *blocks[TENSOR_SET_MAX]; /* quantised data of each tensor; NULL: the tensor is not quantised */
    int n_metadata, n_flattened;
};

static enum status give_bytes(void *user, int i, void *to, uint64_t bytes, struct error *e) {
    struct flattened *f = user;
    (void)e;
    memcpy(to, f->blocks[i] ? f->blocks[i] : f->tensor_set->item[i].data, bytes);
    return OK;
}

static void widen(struct item *item) {
    enum dtype dtype = !strcmp(item->type, "F32")   ? DTYPE_F32
                       : !strcmp(item->type, "F16") ? DTYPE_F16
                                                    : DTYPE_BF16;
    struct tensor stored = tensor_make(item->data, dtype, item->rank, item->dim);
    size_t bytes = (size_t)tensor_elements(&stored) * sizeof(float);
    float *numbers = malloc(bytes);
    if (!numbers) abort();
    weights_widen(numbers, &stored, 0, tensor_rows(&stored));
    free(item->data);
    item->data = (unsigned char *)numbers;
    item->bytes = bytes;
    item->type = "F32";
}

/* Flattens and quantises a tensor; the tensor set gets the dequantised values, the weights of the expected
 * result. */
static void flatten(struct flattened *f, int i, enum dtype dtype) {
    struct item *item = &f->tensor_set->item[i];
    int32_t n = (int32_t)(item->bytes / sizeof(float)), dim[2] = {n / BLOCK, BLOCK};
    struct tensor blocks = tensor_make(NULL, dtype, 2, dim);
    blocks.data = f->blocks[i] = malloc((size_t)tensor_bytes(&blocks));
    quantise_rows(dtype, 1, (const float *)(const void *)item->data, dim[0], BLOCK, blocks.data);
    weights_widen((float *)(void *)item->data, &blocks, 0, dim[0]);
    f->tensors[i].tensor = blocks;
    if (item->dim[item->rank - 1] % BLOCK == 0) return;
    snprintf(f->keys[i], KEY_BYTES, "comfy.gguf.orig_shape.%s", item->name);
    f->metadata[f->n_metadata++] =
        (struct gguf_metadata){.key = f->keys[i], .kind = GGUF_I32, .array = item->dim, .n = item->rank};
    f->n_flattened++;
}

static void write_flattened(struct flattened *f, const char *path, enum dtype dtype) {
    struct tensor_maker maker = {f, give_bytes};
    struct sys sys;
    struct error e = {0};
    char line[1024];
    sys_init_machine(&sys);
    f->metadata[f->n_metadata++] =
        (struct gguf_metadata){.key = "general.architecture", .kind = GGUF_STRING, .text = "sd1"};
    for (int i = 0; i < f->tensor_set->n; i++) {
        struct item *item = &f->tensor_set->item[i];
        widen(item);
        f->tensors[i] =
            (struct named_tensor){item->name, tensor_make(NULL, DTYPE_F32, item->rank, item->dim)};
        if (item->rank > 1 && item->bytes / sizeof(float) % BLOCK == 0) flatten(f, i, dtype);
    }
    gguf_write_made(&sys, path, f->metadata, f->n_metadata, f->tensors, f->tensor_set->n, &maker, &e);
    check(e.code == OK, "%s", error_line(&e, line, sizeof line));
}

static void test_flattened_weights_give_same_latent(enum dtype dtype) {
    static struct flattened f;
    struct rig rig;
    options from = {.model = MODEL, .diffusion_model = temporary_path("twin.safetensors")};
    f = (struct flattened){.tensor_set = tensor_set_from_component(MODEL, "unet")};
    write_flattened(&f, temporary_path("flattened.gguf"), dtype);
    write_tensor_set(f.tensor_set, from.diffusion_model, NULL);
    write_file(temporary_path("config.json"), f.tensor_set->config, strlen(f.tensor_set->config));
    check(f.n_flattened >= 30, "only %d tensors are flattened", f.n_flattened);
    expected_request = request_fox(WIDTH, HEIGHT, 2, 1, 1);
    if (rig_open_paths(&rig, from, "numbers")) {
        expected_result = run(&rig, &expected_request);
        check(expected_result.code == SLUICE_OK, "%s: %s", dtype_name(dtype), expected_result.error.what);
        rig_close(&rig);
        from.diffusion_model = temporary_path("flattened.gguf");
        expect_same_result(from, dtype_name(dtype));
    }
    for (int i = 0; i < f.tensor_set->n; i++) free(f.blocks[i]);
    tensor_set_free(f.tensor_set);
}

int main(void) {
    static const enum dtype types[] = {DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_K, DTYPE_Q6_K};
    temporary_make();
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        test_flattened_weights_give_same_latent(types[i]);
    return finish();
}
