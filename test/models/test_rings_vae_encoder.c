/* The encoder against the reference, on fixtures of its own (test/golden/vae_encoder.py): its moments, every
 * weight's influence on them, the same bits with a large and a small canvas, on the device and on the host,
 * and for pictures of several sizes in one stage; and what it takes beside the decoder. */
#include "engine/base/random.h"
#include "loaders/loaders.h"
#include "models/models.h"
#include "models/vae_blocks.h"
#include "test/lib/rings.h"
#include "test/lib/vae_run.h"

static const struct gate gates[] = {{"moments", 9.05e-7, 2.7e-6}, {0}};
/* Convolutions round their operands to TF32 there, attention and its products to bf16. measured: under
 * emulation. */
static const struct gate gpu_gates[] = {{"moments", 2.89e-3, 8e-3}, {0}};

static const char *const names[] = {"f32", "bf16", "authors"};
enum { FIXTURES = COUNT_OF(names) };

static struct sluice_model models[FIXTURES];

/* ---- fixtures ---- */

enum { ENCODER_SLOT = 0 }; /* these models have nothing else */

static void open_encoder(struct fixture *f, struct sluice_model *model, const char *name) {
    struct sys *sys = &rings_state.sys;
    struct component *c = &model->component[ENCODER_SLOT];
    struct config config = {0};
    struct error e = {0};
    char path[1024];
    snprintf(f->name, sizeof f->name, "%s", name);
    f->model = model;
    f->bf16 = json_object(); /* PyTorch's errors in bf16 are not known */
    snprintf(path, sizeof path, "test/golden/vae_encoder/%s/rings.safetensors", name);
    safetensors_open(sys, path, &f->rings, &e);
    *c = (struct component){.family = &family_vae_kl_encoder, .sys = sys};
    snprintf(path, sizeof path, "test/golden/vae_encoder/%s/diffusion_pytorch_model.safetensors", name);
    safetensors_open(sys, path, &c->index, &e);
    snprintf(path, sizeof path, "test/golden/vae_encoder/%s/config.json", name);
    config_read(sys, path, &config, &e);
    assert_ok(&e);
    assert_true(c->family->probe(&c->index) && !family_vae_kl.probe(&c->index));
    component_bind(c, &config, &e);
    assert_ok(&e);
    assert_int_equal(c->n_unknown, 0);
    config_destroy(&config);
}

static int open_encoders(void **state) {
    (void)state;
    for (int i = 0; i < FIXTURES; i++) open_encoder(&rings_state.fixtures[i], &models[i], names[i]);
    return 0;
}

static int close_encoders(void **state) {
    (void)state;
    for (int i = 0; i < FIXTURES; i++) {
        struct fixture *f = &rings_state.fixtures[i];
        json_decref(f->bf16);
        index_destroy(&f->rings);
        component_destroy(&models[i].component[ENCODER_SLOT]);
    }
    return 0;
}

static const struct component *encoder_of(const struct fixture *f) {
    return &f->model->component[ENCODER_SLOT];
}

/* ---- lanes ---- */

static struct lane lane_of(const struct fixture *f, struct tensor picture, bool tiled) {
    const struct component *c = encoder_of(f);
    int32_t factor = c->pixel_factor;
    int32_t dim[3] = {picture.dim[0] / factor, picture.dim[1] / factor, 2 * c->latent_channels};
    return (struct lane){.picture = picture, .moments = test_tensor(DTYPE_F32, 3, dim), .tiled = tiled};
}

static struct lane ring_lane(const struct fixture *f, int i) {
    char name[32];
    snprintf(name, sizeof name, "picture%d", i);
    return lane_of(f, ring(f, name), false);
}

/* Of so many latent pixels. */
static struct lane random_lane(const struct fixture *f, int32_t Y, int32_t X, bool tiled) {
    int32_t factor = encoder_of(f)->pixel_factor;
    uint64_t random = (uint64_t)Y + 1;
    struct tensor picture = test_tensor(DTYPE_F32, 3, (int32_t[]){Y * factor, X * factor, 3});
    for (int64_t i = 0; i < tensor_elements(&picture); i++)
        ((float *)picture.data)[i] = (float)((double)random_below(&random, 256) / 127.5 - 1);
    return lane_of(f, picture, tiled);
}

static void assert_same(struct tensor a, struct tensor b) {
    assert_memory_equal(a.data, b.data, (size_t)tensor_bytes(&b));
}

/* ---- tests ---- */

static void test_moments(const struct fixture *f) {
    const struct component *c = encoder_of(f);
    assert_true(c->latent_scale == 0.7f && c->latent_shift > 0 && c->latent_shift < 0.2f);
    for (int i = 0; i < 2; i++) {
        char name[32];
        struct bench *b = bench_open(f, ENCODER_SLOT, ring_lane(f, i));
        bench_all(b, 0);
        snprintf(name, sizeof name, "moments%d", i);
        struct tensor truth = ring(f, name);
        assert_int_equal(tensor_elements(&b->lane.moments), tensor_elements(&truth));
        expect_close(f, "moments", b->lane.moments, truth.data);
        bench_close(b);
    }
}

/* All blocks, of one of them with number `weight` left zero. */
static void encode_without(struct bench *b, int block, int weight) {
    for (int i = 0; i < b->component->n_blocks; i++) {
        struct block copy = b->component->blocks[i];
        struct image_segment segments[BLOCK_WEIGHTS_MAX];
        for (int k = copy.n_segments = 0; k < b->component->blocks[i].n_segments; k++)
            if (i != block || k != weight) segments[copy.n_segments++] = copy.segments[k];
        copy.segments = segments;
        bench_visit(b, &copy, 0);
    }
}

/* A key bias adds the same to all scores of a query: softmax cancels it. */
static bool matters(const struct block *block, int weight) {
    return block->tensors[weight].offset != offsetof(struct attention_weights, k_bias) ||
           strcmp(block->kind->name, "attention");
}

static void test_influence(const struct fixture *f) {
    const double LEAST = 1e-3, NOTHING = 1e-6;
    struct bench *b = bench_open(f, ENCODER_SLOT, ring_lane(f, 0));
    double least = INFINITY;
    int n = 0;
    bench_all(b, 0);
    struct tensor truth = test_copy(b->lane.moments);
    for (int i = 0; i < b->component->n_blocks; i++) {
        const struct block *block = &b->component->blocks[i];
        assert_int_equal(block->n_segments, block->n_tensors);
        for (int k = 0; k < block->n_tensors; k++, n++) {
            encode_without(b, i, k);
            double moved = distance(b->lane.moments.data, truth.data, tensor_elements(&truth));
            bool right = matters(block, k) ? moved > LEAST : moved < NOTHING;
            if (!right) fail_msg("%s: tensor %d zeroed moves the moments by %.2e", block->name, k, moved);
            if (matters(block, k) && moved < least) least = moved;
        }
    }
    printf("  %-10s %d tensors zeroed, the least that matters moves the moments by %.2e\n", f->name, n,
           least);
    assert_int_equal(n, b->component->index.n_entries);
    bench_close(b);
}

/* With garbage in the canvas; its bytes to *bytes. */
static struct tensor encode_in(const struct fixture *f, int32_t Y, int32_t X, bool tiled, uint64_t *bytes) {
    struct bench *b = bench_open(f, ENCODER_SLOT, random_lane(f, Y, X, tiled));
    *bytes = b->state.bytes;
    memset(b->state.base, 0xff, b->state.bytes);
    bench_all(b, 0);
    bench_close(b);
    return b->lane.moments;
}

/* The same bits; less memory where pictures are many times as high as a band. */
static void test_tiled(const struct fixture *f) {
    static const int32_t sizes[][2] = {{1, 1}, {7, 3}, {1, 33}, {37, 50}, {70, 31}, {9, 130}, {66, 66}};
    for (int i = 0; i < COUNT_OF(sizes); i++) {
        uint64_t kept_bytes, tiled_bytes;
        void *mark = rings_state.memory;
        int32_t Y = sizes[i][0], X = sizes[i][1];
        struct tensor kept = encode_in(f, Y, X, false, &kept_bytes),
                      tiled = encode_in(f, Y, X, true, &tiled_bytes);
        assert_same(kept, tiled);
        printf("  %-10s canvas for moments of %dx%d: %llu, small %llu\n", f->name, Y, X,
               (unsigned long long)kept_bytes, (unsigned long long)tiled_bytes);
        assert_true(tiled_bytes <= kept_bytes);
        if (encoder_of(f)->pixel_factor == 8 && Y * X >= 37 * 50)
            assert_true(tiled_bytes * 10 < kept_bytes * 9);
        test_memory_free_to(mark);
    }
}

enum { LANES = 3 };

/* A stage of pictures of these sizes: each has the bits that it has alone. */
static void run_lanes(struct vae_run *r, struct device *device, const struct lane *alone, bool on_host) {
    const uint64_t plenty = (uint64_t)1 << 40;
    plan_solve(&r->need, plenty, plenty, &r->plan);
    if (on_host) plan_solve(&r->need, plenty, r->plan.vram_least_bytes, &r->plan);
    if (device->memory) assert_int_equal(r->plan.stage[0].pictures_on_host, on_host);
    for (int i = 0; i < LANES; i++)
        memset(r->stage.lanes[i].moments.data, 0, (size_t)tensor_bytes(&alone[i].moments));
    vae_run_execute(r);
    for (int i = 0; i < LANES; i++) assert_same(r->stage.lanes[i].moments, alone[i].moments);
}

static void test_lanes(const struct fixture *f) {
    static const int32_t sizes[LANES][2] = {{3, 40}, {33, 47}, {8, 5}};
    static struct vae_run r;
    struct lane alone[LANES], lanes[LANES];
    struct error e = {0};
    struct device *paced = paced_open(&rings_state.sys, rings_state.device, 0, &e);
    assert_ok(&e);
    for (int tiled = 0; tiled < 2; tiled++) {
        for (int i = 0; i < LANES; i++) {
            struct bench *b = bench_open(f, ENCODER_SLOT, random_lane(f, sizes[i][0], sizes[i][1], tiled));
            bench_all(b, 0);
            bench_close(b);
            alone[i] = lanes[i] = b->lane;
            lanes[i].moments = test_copy(b->lane.moments);
        }
        for (int separate = 0; separate < 2; separate++) {
            struct device *device = separate ? paced : rings_state.device;
            vae_run_measure(&r, encoder_of(f), lanes, LANES, device);
            if (!separate) r.residents.device = NULL;
            for (int on_host = 0; on_host <= separate; on_host++) run_lanes(&r, device, alone, on_host);
            visit_list_destroy(&r.visits);
        }
    }
    paced->destroy(paced);
}

/* ---- memory beside the decoder's ---- */

struct taken {
    uint64_t canvas, scratch, workspace;
};

/* The block's weights without data. */
static void shape_weights(const struct component *c, const struct block_ref *ref, char *structure) {
    int32_t dims[FAMILY_DIMS_MAX], dim[WEIGHT_RANK_MAX];
    component_block_dims(c, ref, dims);
    for (int i = 0; i < ref->kind->n_weights; i++) {
        const struct weight_spec *spec = &ref->kind->weights[i];
        for (int k = 0; k < spec->rank; k++) dim[k] = dims[spec->dim[k]];
        struct tensor t = tensor_make(NULL, DTYPE_BF16, spec->rank, dim);
        if (!spec->optional) memcpy(structure + spec->offset, &t, sizeof t);
    }
}

/* Of all its blocks, run dry. */
static struct taken take(const struct component *c, struct lane lane) {
    static struct block_ref refs[FAMILY_BLOCKS_MAX];
    struct vae_state state = {0};
    struct arena none = arena_counting(), pictures = arena_counting(), scratch = arena_counting();
    struct error e = {0};
    struct dry dry;
    bool ok = true;
    dry_init(&dry, &rings_state.sys, rings_state.device, false);
    struct context x = {.device = &dry.device, .scratch = &scratch, .error = &e};
    lane.state = &state;
    c->family->declare(c, &lane, 1, &none, &pictures, &ok);
    assert_true(ok && !none.peak);
    for (int i = 0, n = c->family->blocks(c, refs); i < n; i++) {
        void *weights = calloc(1, refs[i].kind->weights_bytes);
        struct visit_scope scope = {.settings = c->settings, .lane = &lane, .number = refs[i].number};
        shape_weights(c, &refs[i], weights);
        scratch.used = 0;
        refs[i].kind->forward(&x, weights, &scope);
        free(weights);
    }
    assert_ok(&e);
    dry_destroy(&dry);
    return (struct taken){pictures.peak, scratch.peak, dry.workspace_bytes};
}

static uint64_t bytes_of(struct taken t) {
    return t.canvas + t.scratch + t.workspace;
}

static void print_taken(const char *does, struct taken t) {
    printf(" to %s %llu + %llu + %llu", does, (unsigned long long)t.canvas, (unsigned long long)t.scratch,
           (unsigned long long)t.workspace);
}

/* Of Flux's autoencoder, whose widest pictures in the encoder have 128 channels: one of them, and h if it is
 * kept, and little more; and no more than the decoder takes. */
static void test_beside_decoder(void **state) {
    static const int32_t sizes[][2] = {{1024, 1024}, {512, 512}, {2048, 1024}, {768, 1360}, {256, 4096}};
    static struct component half[2];
    int chosen[N_VAE_DIMENSIONS];
    (void)state;
    for (int i = 0; i < N_VAE_DIMENSIONS; i++) chosen[i] = vae_dimensions[i].published;
    for (int i = 0; i < 2; i++) {
        half[i] = (struct component){.family = i ? &family_vae_kl_encoder : &family_vae_kl};
        half[i].family->derive(&half[i], chosen);
    }
    for (int i = 0; i < 2 * COUNT_OF(sizes); i++) {
        int32_t Y = sizes[i / 2][0], X = sizes[i / 2][1];
        bool tiled = i % 2;
        struct lane lane = {.latent = tensor_make(NULL, DTYPE_F32, 3, (int32_t[]){16, Y / 8, X / 8}),
                            .picture = tensor_make(NULL, DTYPE_F32, 3, (int32_t[]){Y, X, 3}),
                            .moments = tensor_make(NULL, DTYPE_F32, 3, (int32_t[]){Y / 8, X / 8, 32}),
                            .tiled = tiled};
        struct taken decodes = take(&half[0], lane), encodes = take(&half[1], lane);
        uint64_t least = sizeof(float) * 128 * (uint64_t)Y * (uint64_t)X * (2 - tiled);
        printf("  %dx%d%s:", X, Y, tiled ? " tiled" : "");
        print_taken("decode", decodes);
        print_taken("encode", encodes);
        printf(", %.3f of the least canvas\n", (double)encodes.canvas / (double)least);
        assert_true(encodes.canvas >= least && encodes.canvas * 8 <= least * 9);
        assert_true(bytes_of(encodes) <= bytes_of(decodes));
    }
}

/* ---- what does not fit ---- */

/* The shape that a file claims of a tensor, changed before it is bound. */
static void misfit(const char *tensor, int place, int32_t dim, const char *what) {
    struct sys *sys = &rings_state.sys;
    struct component c = {.family = &family_vae_kl_encoder, .sys = sys};
    struct config config = {0};
    struct error e = {0};
    safetensors_open(sys, "test/golden/vae_encoder/f32/diffusion_pytorch_model.safetensors", &c.index, &e);
    config_read(sys, "test/golden/vae_encoder/f32/config.json", &config, &e);
    assert_ok(&e);
    index_find(&c.index, tensor)->dim[place] = dim;
    assert_int_equal(component_bind(&c, &config, &e), SHAPE);
    if (!strstr(e.what, what)) fail_msg("%s, not %s", e.what, what);
    component_destroy(&c);
    config_destroy(&config);
}

static void test_misfits(void **state) {
    (void)state;
    misfit("encoder.conv_out.weight", 0, 9, "tensor 'encoder.conv_out.weight' has the wrong shape");
    misfit("encoder.conv_out.weight", 0, 1, "tensor 'encoder.conv_out.weight' has the wrong shape");
    misfit("encoder.conv_in.weight", 1, 4, "tensor 'encoder.conv_in.weight' has the wrong shape");
    misfit("encoder.down_blocks.1.resnets.0.conv1.weight", 0, 7, "the encoder's sizes do not fit together");
    misfit("encoder.down_blocks.3.resnets.0.conv1.weight", 0, 514, "the encoder's sizes do not fit together");
    misfit("encoder.down_blocks.0.downsamplers.0.conv.weight", 2, 4,
           "tensor 'encoder.down_blocks.0.downsamplers.0.conv.weight' has the wrong shape");
}

enum { GRAFTED_MAX = 256 };

/* A file's tensors under `prefix`, read; returns their number. */
static int take_tensors(const struct tensor_index *index, const char *prefix, struct named_tensor *to) {
    int n = 0;
    for (int i = 0; i < index->n_entries; i++) {
        if (strncmp(index->entries[i].name, prefix, strlen(prefix)) != 0) continue;
        assert_true(n < GRAFTED_MAX);
        to[n++] = (struct named_tensor){index->entries[i].name, read_tensor(index, index->entries[i].name)};
    }
    return n;
}

/* A model whose autoencoder's halves are of two autoencoders: opening it is an error that names `what`. */
static void graft(const char *model, const char *encoder, const char *what) {
    static struct named_tensor tensors[3 * GRAFTED_MAX];
    struct sys *sys = &rings_state.sys;
    struct tensor_index halves[2];
    struct sluice_model *opened = NULL;
    struct error e = {0};
    char path[512], folder[] = "/tmp/sluice-halves-XXXXXX", command[1536];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/vae/diffusion_pytorch_model.safetensors", model);
    safetensors_open(sys, path, &halves[0], &e);
    snprintf(path, sizeof path, "test/golden/vae_encoder/%s/diffusion_pytorch_model.safetensors", encoder);
    safetensors_open(sys, path, &halves[1], &e);
    assert_ok(&e);
    int n = take_tensors(&halves[0], "decoder.", tensors);
    n += take_tensors(&halves[0], "post_quant_conv.", tensors + n);
    n += take_tensors(&halves[1], "", tensors + n);
    snprintf(path, sizeof path, "%s/ae.safetensors", folder);
    snprintf(command, sizeof command, "cp %s/vae/config.json %s", model, folder);
    assert_int_equal(system(command), 0);
    assert_int_equal(safetensors_write(sys, path, tensors, n, &e), OK);
    struct sluice_model_options options = {.struct_size = sizeof options, .model = model, .vae = path};
    assert_int_equal(model_open(sys, &options, &opened, &e), SHAPE);
    if (!strstr(e.what, what)) fail_msg("%s, not %s", e.what, what);
    for (int i = 0; i < 2; i++) index_destroy(&halves[i]);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_halves(void **state) {
    (void)state;
    graft("test/golden/zimage_a/model", "f32", "do not fit together: latent channels");
    graft("test/golden/zimage_b/model", "authors", "do not fit together: pixels under a latent pixel's side");
}

int main(void) {
    enum { TESTS = 4, LABEL = 64 };
    static const struct ring_test tests[TESTS] = {{"moments", test_moments, PRECISION_F32, true, NULL},
                                                  {"influence", test_influence, PRECISION_F32, false, NULL},
                                                  {"tiled", test_tiled, PRECISION_F32, false, NULL},
                                                  {"lanes", test_lanes, PRECISION_F32, false, NULL}};
    static struct ring_run runs[FIXTURES * TESTS];
    static char labels[FIXTURES * TESTS][LABEL];
    struct CMUnitTest units[FIXTURES * TESTS + 3];
    struct error e = {0};
    int n = 0;
    sys_init_machine(&rings_state.sys);
    rings_state.device = device_open(&rings_state.sys, test_device(), RING_THREADS, false, &e);
    if (!rings_state.device) printf("%s\n0 passed, 1 failed\n", e.what);
    if (!rings_state.device) return 1;
    rings_state.gates = on_gpu() ? gpu_gates : gates;
    for (int i = 0; i < FIXTURES * TESTS; i++) {
        const struct ring_test *test = &tests[i % TESTS];
        if (on_gpu() && !test->gpu) continue;
        runs[n] = (struct ring_run){&rings_state.fixtures[i / TESTS], test};
        snprintf(labels[n], LABEL, "%s: %s", names[i / TESTS], test->name);
        units[n] = (struct CMUnitTest){
            .name = labels[n], .test_func = run_ring_test, .teardown_func = free_ring_test};
        units[n].initial_state = &runs[n];
        n++;
    }
    units[n++] = (struct CMUnitTest){.name = "beside the decoder", .test_func = test_beside_decoder};
    units[n++] = (struct CMUnitTest){.name = "misfits", .test_func = test_misfits};
    units[n] = (struct CMUnitTest){.name = "halves", .test_func = test_halves};
    units[n++].teardown_func = free_ring_test;
    int failed =
        _cmocka_run_group_tests("vae encoder rings", units, (size_t)n, open_encoders, close_encoders);
    printf("%d passed, %d failed\n", n - failed, failed);
    rings_state.device->destroy(rings_state.device);
    return failed != 0;
}
