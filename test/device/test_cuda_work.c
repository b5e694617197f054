/* cuda_work() (kernels/cuda/work.h), the predicted launches of operators, against launches under the
 * emulator, for a small block of every family. Kernel names and launch counts match exactly. Written bytes,
 * counted in memory, are nearly as many as predicted and never more; reads are not counted. Sums per block
 * equal `bench block --predict`. Skipped on a GPU. */
#include "test/lib/assert_ok.h"
#include "test/lib/seeded.h"

#include "engine/bench/predict.h"
#include "kernels/cuda/conv.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/linear.h"
#include "models/models.h"
#include "test/device/emulated.h"

#include <stdio.h>
#include <string.h>

#pragma weak emu_set_watcher

struct observed {
    const char *kernel;
    int launches;
    double written_bytes;
};

struct counted {
    struct device device; /* first member: struct device * is cast to this type */
    struct sys sys;
    struct device *cuda;
    struct random_component component;
    const struct random_component_sizes *sizes;
    char *snapshot; /* copy of the component's memory after the previous launch */
    /* number of compared bytes from the start of the memory: all but a library's workspace */
    uint64_t watched;
    struct observed observed[WORK_ROWS_MAX];
    int n_observed;
    int launches, calls; /* kernel launches and operator calls of the most recent block */
};

static struct counted counted;
static struct error problem;

/* Returns whether a launched name such as "(round_rows<D>)" is the given kernel (round_rows). */
static bool is_kernel(const char *launched, const char *kernel) {
    launched += launched[0] == '(';
    size_t n = strcspn(launched, "<)");
    return n == strlen(kernel) && !strncmp(launched, kernel, n);
}

/* Returns the bytes that differ from the snapshot, in 4-byte words, which rarely stay unchanged. */
static uint64_t changed_bytes(void) {
    const uint32_t *now = (const uint32_t *)counted.component.memory,
                   *was = (const uint32_t *)counted.snapshot;
    uint64_t words = 0;
    for (uint64_t i = 0; i < counted.watched / 4; i++) words += now[i] != was[i];
    memcpy(counted.snapshot, counted.component.memory, counted.watched);
    return 4 * words;
}

static void count_launch(void *user, const char *kernel) {
    int i = 0;
    while (i < counted.n_observed && strcmp(counted.observed[i].kernel, kernel)) i++;
    /* no operator launches so many different kernels: compare_call will fail */
    if (i == WORK_ROWS_MAX) return;
    if (i == counted.n_observed) counted.observed[counted.n_observed++] = (struct observed){.kernel = kernel};
    counted.observed[i].launches++;
    counted.observed[i].written_bytes += (double)changed_bytes();
}

/* Compares the launches of one operator call with the prediction. Bytes of a second launch have a wider
 * tolerance, because the launch may write zeros over zeros. */
static void compare_call(const struct op *op) {
    struct work_list list;
    int launches = 0, observed = 0;
    cuda_work(op, &list);
    for (int i = 0; i < counted.n_observed; i++) observed += counted.observed[i].launches;
    for (int i = 0; i < list.n; i++) {
        const struct work *w = &list.rows[i];
        int predicted = 0, launched = 0;
        double predicted_bytes = 0, launched_bytes = 0;
        launches += w->launches;
        for (int k = 0; k < list.n; k++) {
            if (strcmp(list.rows[k].kernel, w->kernel)) continue;
            predicted += list.rows[k].launches;
            predicted_bytes += list.rows[k].written_bytes;
        }
        for (int k = 0; k < counted.n_observed; k++) {
            if (!is_kernel(counted.observed[k].kernel, w->kernel)) continue;
            launched += counted.observed[k].launches;
            launched_bytes += counted.observed[k].written_bytes;
        }
        if (predicted != launched)
            fail_msg("%s launches %s %d times, expected %d", op_name(op->kind), w->kernel, launched,
                     predicted);
        if (launched_bytes > predicted_bytes + 64 * launched ||
            launched_bytes < (launched > 1 ? 0.6 : 0.9) * predicted_bytes)
            fail_msg("%s: %s wrote %.0f bytes, expected %.0f", op_name(op->kind), w->kernel, launched_bytes,
                     predicted_bytes);
    }
    if (!counted.sizes->last.kind ||
        random_component_at_last(counted.sizes, &counted.component.refs[counted.component.running]))
        counted.launches += observed;
    if (launches != observed)
        fail_msg("%s launches %d kernels, expected %d", op_name(op->kind), observed, launches);
}

static uint64_t library_bytes(const struct op *op) {
    return op->kind == OP_LINEAR ? linear_library_bytes(op) : op->kind == OP_CONV2D ? CONV_LIBRARY_BYTES : 0;
}

static void counting_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    counted.cuda->cost(counted.cuda, op, cost);
}

static bool is_in_place(const struct op *op) {
    const struct tensor *list[OP_OPERANDS_MAX];
    const char *out = op->out.data, *end = out + tensor_rows(&op->out) * op->out.row_bytes;
    for (int n = op_operands(op, list); n--;) {
        const char *in = list[n]->data;
        if (list[n]->rank && in < end && out < in + tensor_rows(list[n]) * list[n]->row_bytes) return true;
    }
    return false;
}

static void fill_rows(const struct tensor *t, int byte) {
    int64_t bytes = dtype_bytes(t->dtype, tensor_columns(t));
    for (int64_t i = 0; i < tensor_rows(t); i++)
        memset((char *)t->data + i * t->row_bytes, byte, (size_t)bytes);
}

/* Fills the result, so that writing the same values as an earlier call shows as written bytes. In-place
 * operators change their values, except maps that keep values and convolutions of zeros. */
static void fill_result(const struct op *op) {
    bool maps = op->kind == OP_MAP && (op->map == MAP_CLAMP || op->map == MAP_FILL);
    if (maps || !is_in_place(op))
        fill_rows(&op->out, 0x41);
    else if (op->kind == OP_CONV2D)
        fill_rows(&op->in[0], 0x3f);
}

static enum status counting_run(struct device *device, const struct op *op, void *workspace,
                                struct error *e) {
    const struct random_component *c = &counted.component;
    struct op_cost cost;
    double stalled = 0;
    counting_cost(device, op, &cost);
    memset(workspace, 0xff, cost.workspace_bytes);
    counted.n_observed = 0;
    fill_result(op);
    counted.watched = (uint64_t)((char *)workspace - c->memory) + cost.workspace_bytes - library_bytes(op);
    memcpy(counted.snapshot, c->memory, counted.watched);
    counted.cuda->run(counted.cuda, op, workspace, e);
    counted.cuda->memory->wait(counted.cuda, &stalled, e);
    assert_ok(&problem);
    compare_call(op);
    counted.calls++;
    return OK;
}

static void *alloc_mapped(struct sys *sys, enum memory_line line, size_t bytes) {
    return counted.cuda->memory->alloc_mapped(counted.cuda, bytes);
}

static void free_mapped(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    counted.cuda->memory->free_mapped(counted.cuda, memory, bytes);
}

/* A component whose launches are counted up to the block last_kind, last_index (NULL: all blocks). text: rows
 * and columns of the text; latent: channels and side of the latent; side: of the image; then the values of
 * the family's dimensions. */
#define COMPONENT(name, last_kind, last_index, type_, text, columns, channels, latent, side, ...)            \
    .family = &family_##name, .chosen = (const int[]){__VA_ARGS__}, .text_rows = (text),                     \
    .text_columns = (columns), .latent_channels = (channels), .latent_side = (latent),                       \
    .picture_side = (side), .last = {last_kind, last_index}, .type = DTYPE_##type_
/* A component whose launches are counted for the first block of a kind. */
#define FIRST_BLOCK(name, kind, ...) .block = (kind), COMPONENT(name, kind, 0, __VA_ARGS__)
#define VAE_SIZES                    4, 16, 16, 8, 8, 2, 4, 0
#define WAN_VAE_SIZES                16, 8, 1, 2, 2, 2, 2
#define WAN22_VAE_SIZES              6, 8, 8, 1, 1, 2, 2, 2
#define QWEN21_VAE_SIZES             6, 8, 8, 1, 1, 2, 2, 4, 2
/* Channels and resnets of five levels, then the steps between levels; LTX-2.0's decoder has four levels. */
#define LTX_VAE_SIZES         6, 16, 1, 8, 1, 8, 1, 6, 2, 0, 0, 8, 8, 8, 0
#define LTX23_VAE_SIZES       6, 16, 1, 8, 1, 8, 1, 4, 1, 6, 2, 8, 8, 2, 4
#define LTX_VAE_ENCODER_SIZES 6, 4, 1, 8, 1, 8, 1, 16, 1, 16, 1, 4, 2, 8, 8
#define LTX_LATENT            .latent_frames = 3, .latent_columns = 5, .sound = {3, 7, 6}

/* Small blocks of every family but control networks, which read the state of a denoiser: heads of 16 to 24
 * columns, odd channel counts where possible, images that need padding, products of bf16 and of int8, images
 * of several bands, a whole UNet resampled to odd sizes, whole upscalers, and a whole SD3. The SD3 model has
 * a block with dual attention and a context_pre_only block, a position table as large as the image, and rows
 * of 60 with a gap where products read them. */
static const struct random_component_sizes blocks[] = {
    {FIRST_BLOCK(zimage, "layer", BF16, 32, 64, 16, 12, 96, 4, 8, 8, 8, 1, 1, 64, 16)},
    {FIRST_BLOCK(zimage, "layer", Q8_0, 32, 64, 16, 8, 64, 4, 8, 8, 8, 1, 1, 64, 16)},
    {FIRST_BLOCK(zimage, "layer", BF16, 32, 64, 16, 8, 64, 4, 8, 8, 8, 1, 1, 64, 16),
     .precision = PRECISION_INT8},
    {FIRST_BLOCK(flux, "single", I8_ROT16, 32, 64, 16, 8, 64, 4, 8, 8, 8, 1, 1, 64, 16, 32, 1, 0, 0),
     .precision = PRECISION_INT8},
    {FIRST_BLOCK(flux, "single", BF16, 32, 64, 16, 12, 96, 4, 8, 8, 8, 1, 1, 64, 16, 32, 1, 0, 0)},
    {FIRST_BLOCK(flux, "double", F16, 32, 64, 16, 8, 64, 4, 8, 8, 8, 1, 1, 64, 16, 32, 1, 0, 0)},
    {FIRST_BLOCK(flux2, "single", BF16, 32, 64, 20, 8, 128, 4, 8, 4, 4, 8, 1, 1, 64, 20, 1)},
    {FIRST_BLOCK(flux2, "double", BF16, 32, 64, 20, 8, 128, 4, 8, 4, 4, 8, 1, 1, 64, 20, 1)},
    {FIRST_BLOCK(ovis_image, "double", BF16, 32, 64, 16, 8, 64, 4, 8, 8, 8, 1, 1, 64, 16)},
    {FIRST_BLOCK(krea2, "layer", BF16, 32, 120, 16, 8, 64, 4, 2, 4, 6, 6, 72, 1, 40, 3, 4, 2, 40, 1, 1, 16)},
    {FIRST_BLOCK(krea2, "tap_fusion", BF16, 20, 120, 16, 8, 64, 4, 2, 4, 6, 6, 72, 1, 40, 3, 4, 2, 40, 1, 1,
                 16)},
    {FIRST_BLOCK(qwen_image, "layer", BF16, 32, 72, 16, 10, 80, 4, 4, 6, 6, 2, 72, 16)},
    {FIRST_BLOCK(qwen_image_21, "layer", BF16, 32, 40, 20, 10, 160, 4, 4, 6, 6, 2, 40, 20)},
    {COMPONENT(unet, NULL, 0, F16, 77, 72, 4, 9, 72, 40, 64, 0, 0, 1, 1, 0, 0, 1, 1, 4, 8, 2, 72, 40, 2, 0, 4,
               16)},
    {COMPONENT(sd3, NULL, 0, BF16, 31, 40, 4, 10, 80, 3, 20, 2, 40, 56, 4, 5, 1, 1)},
    {FIRST_BLOCK(anima, "layer", BF16, 32, 40, 16, 8, 64, 4, 24, 1, 8, 16, 40)},
    {FIRST_BLOCK(anima_adapter, "layer", BF16, 30, 72, 1, 1, 1, 300, 3, 40, 1, 72)},
    {FIRST_BLOCK(qwen3, "layer", BF16, 50, 72, 1, 1, 1, 300, 72, 4, 2, 16, 104, 2)},
    {FIRST_BLOCK(qwen25vl, "layer", BF16, 50, 72, 1, 1, 1, 300, 72, 4, 2, 104, 2)},
    {FIRST_BLOCK(qwen25vl_vision, "layer", BF16, 25, 72, 1, 1, 140, 2, 80, 4, 104, 72)},
    {FIRST_BLOCK(qwen3vl, "layer", BF16, 50, 72, 1, 1, 1, 300, 72, 4, 2, 16, 104, 2)},
    {COMPONENT(qwen3vl_vision, NULL, 0, BF16, 25, 288, 1, 1, 160, 4, 80, 4, 104, 72, 49)},
    {FIRST_BLOCK(clip, "layer", BF16, 77, 64, 1, 1, 1, 300, 64, 4, 100, 2, 77, 64)},
    {FIRST_BLOCK(wan, "layer", BF16, 24, 40, 4, 10, 1, 3, 24, 120, 2, 40, 4, 0, 0, 0, 0), .latent_frames = 3,
     .latent_columns = 8},
    {FIRST_BLOCK(clip_vision, "layer", BF16, 26, 80, 1, 1, 70, 3, 80, 4, 104, 70)},
    {FIRST_BLOCK(siglip, "layer", BF16, 25, 80, 1, 1, 70, 3, 80, 4, 104, 70)},
    {COMPONENT(redux, NULL, 0, BF16, 25, 72, 1, 1, 1, 80, 72)},
    {FIRST_BLOCK(t5, "layer", BF16, 30, 72, 1, 1, 1, 300, 72, 4, 16, 120, 2, 32)},
    {FIRST_BLOCK(umt5, "layer", BF16, 30, 72, 1, 1, 1, 300, 72, 4, 16, 120, 2, 32)},
    {COMPONENT(vae_kl, "resnet", 301, BF16, 1, 1, 4, 16, 128, VAE_SIZES)},
    {COMPONENT(vae_kl_encoder, "resnet", 0, BF16, 1, 1, 4, 16, 128, VAE_SIZES)},
    {COMPONENT(vae_wan, "resnet", 301, BF16, 1, 1, 16, 16, 128, WAN_VAE_SIZES)},
    {COMPONENT(vae_wan_encoder, "resnet", 0, BF16, 1, 1, 16, 16, 128, WAN_VAE_SIZES)},
    {COMPONENT(vae_wan22, "resnet", 301, BF16, 1, 1, 6, 3, 48, WAN22_VAE_SIZES), .latent_frames = 3,
     .latent_columns = 5, .chunk = 2},
    {COMPONENT(vae_wan22_encoder, "resnet", 100, BF16, 1, 1, 6, 3, 48, WAN22_VAE_SIZES), .latent_frames = 3,
     .latent_columns = 5, .chunk = 2},
    {COMPONENT(vae_qwen21, "resnet", 401, BF16, 1, 1, 6, 3, 48, QWEN21_VAE_SIZES), .latent_columns = 5},
    {COMPONENT(vae_qwen21_encoder, "resnet", 100, BF16, 1, 1, 6, 3, 48, QWEN21_VAE_SIZES),
     .latent_columns = 5},
    {FIRST_BLOCK(gemma3, "layer", BF16, 50, 3 * 72, 1, 1, 1, 300, 72, 4, 2, 16, 104, 2)},
    {COMPONENT(ltx2_projection, NULL, 0, BF16, 70, 48, 1, 1, 1, 40, 9, 48, 48, 0)},
    {COMPONENT(ltx2_projection, NULL, 0, BF16, 70, 88, 1, 1, 1, 40, 3, 48, 40, 1)},
    {COMPONENT(ltx2_connectors, NULL, 0, BF16, 50, 144, 1, 1, 1, 16, 3, 3, 24, 24, 1, 1, 0)},
    {COMPONENT(ltx2_connectors, NULL, 0, BF16, 50, 120, 1, 1, 1, 16, 3, 3, 24, 16, 1, 1, 1)},
    {COMPONENT(ltx2, NULL, 0, BF16, 24, 80, 20, 4, 4, 4, 20, 3, 16, 1, 20, 18, 40, 0), LTX_LATENT},
    {COMPONENT(ltx2, NULL, 0, BF16, 24, 128, 20, 4, 4, 4, 20, 3, 16, 1, 20, 18, 0, 1), LTX_LATENT},
    {COMPONENT(vae_ltx2, NULL, 0, BF16, 1, 1, 6, 2, 64, LTX_VAE_SIZES), .latent_columns = 3},
    {COMPONENT(vae_ltx2, "resnet", 301, BF16, 1, 1, 6, 2, 64, LTX23_VAE_SIZES), .latent_frames = 3,
     .latent_columns = 3, .chunk = 7},
    {COMPONENT(vae_ltx2_encoder, "resnet", 200, BF16, 1, 1, 6, 2, 64, LTX_VAE_ENCODER_SIZES),
     .latent_frames = 3, .latent_columns = 3, .chunk = 1},
    {COMPONENT(ltx2_upsampler, NULL, 0, BF16, 1, 1, 20, 4, 4, 20, 32, 1), .latent_frames = 3,
     .latent_columns = 5},
    {COMPONENT(ltx2_audio_vae, "resnet", 1, BF16, 1, 1, 1, 1, 1, 3, 12, 2, 2), .sound = {3, 5, 4}},
    {COMPONENT(ltx2_vocoder, "resnet", 2, F16, 1, 1, 1, 1, 1, 0, 32), .sound = {2, 2, 64}},
    {FIRST_BLOCK(ltx2_vocoder, "resnet", F16, 1, 1, 1, 1, 1, 1, 64), .sound = {2, 1, 64}},
    {FIRST_BLOCK(ltx2_vocoder, "mel_stft", F16, 1, 1, 1, 1, 1, 1, 64), .sound = {2, 1, 64}},
    {COMPONENT(rrdbnet, NULL, 0, BF16, 1, 1, 1, 1, 9, 20, 1, 12, 2, 1)},
    {COMPONENT(srvgg, NULL, 0, BF16, 1, 1, 1, 1, 9, 20, 3, 3)},
};

static int predicted_launches(const struct random_component_sizes *sizes) {
    const struct predict_case c = {.sizes = *sizes};
    struct predict_rows rows;
    int launches = 0;
    predict_block(&counted.sys, counted.cuda, cuda_card_at(0), &c, &rows, &problem);
    assert_ok(&problem);
    for (int i = 0; i < rows.n; i++) launches += rows.rows[i].calls;
    return launches;
}

static void count_block(const struct random_component_sizes *sizes) {
    struct random_component *component = &counted.component;
    random_component_make(component, &counted.sys, counted.cuda, sizes, &problem);
    assert_ok(&problem);
    counted.snapshot = counted.sys.alloc(&counted.sys, LINE_HOST, component->bytes);
    assert_non_null(counted.snapshot);
    counted.sizes = sizes;
    counted.launches = 0;
    emu_set_watcher(count_launch, NULL);
    random_component_run(component, &counted.device, &problem);
    emu_set_watcher(NULL, NULL);
    assert_ok(&problem);
    assert_int_equal(counted.launches, predicted_launches(sizes));
    counted.sys.release(&counted.sys, counted.snapshot);
    random_component_destroy(component);
}

TEST(predicted_launches_match) {
    if (!emulated()) {
        print_message("SKIP cuda_work: only the emulator reports launches\n");
        skip();
    }
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) count_block(&blocks[i]);
    print_message("%d operator calls\n", counted.calls);
}

static int set_up(void **state) {
    sys_init_machine(&counted.sys);
    if (!emulated()) return 0;
    counted.cuda = cuda_open(&counted.sys, 0, &problem);
    assert_ok(&problem);
    /* so few rows per chunk of attention that small blocks have several chunks */
    counted.cuda->chunks = (struct row_chunks){32, 16};
    counted.device = (struct device){.name = "counted",
                                     .chunks = counted.cuda->chunks,
                                     .operands = counted.cuda->operands,
                                     .cost = counting_cost,
                                     .run = counting_run};
    counted.cuda->memory->preallocate(counted.cuda, 1, &problem); /* loads the CUDA kernels */
    assert_ok(&problem);
    counted.sys.map = alloc_mapped;
    counted.sys.unmap = free_mapped;
    return 0;
}

static int tear_down(void **state) {
    if (counted.cuda) counted.cuda->destroy(counted.cuda);
    return 0;
}

int main(void) {
    return run_all_tests(set_up, tear_down);
}
