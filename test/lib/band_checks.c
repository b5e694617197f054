/* The last levels of a VAE decoder, computed in bands of rows (vae_bands.h), give the same bits as their
 * operators run one after another over whole feature maps, for block tests. */
#include "models/vae_bands.h"
#include "test/lib/block_tests.h"

#include <string.h>

enum { BAND_RESNETS = 2, BAND_CHANNELS = 4, BAND_INPUT = 8, BAND_COLOURS = 3 };

/* Channels rise and fall, so that the first resnets of two levels have a shortcut convolution. */
static const int32_t band_channels[VAE_BANDS_LEVELS] = {6, 3, 3};

/* Weights of one level. */
struct band_level {
    struct linear_weights up;
    struct resnet_weights resnet[BAND_RESNETS];
};

static struct tensor band_values(int rank, const int32_t *dim) {
    static uint64_t seed;
    return random_tensor(rank, dim, 1, ++seed);
}

static struct linear_weights band_conv(int32_t out, int32_t in, int32_t side) {
    return (struct linear_weights){band_values(4, (int32_t[]){out, in, side, side}), band_values(1, &out)};
}

/* Makes random weights of all levels. */
static void band_weights(const struct vae_bands *bands, struct band_level *levels) {
    for (int i = 0; i < bands->n; i++) {
        int32_t in = bands->in_channels[i], out = bands->channels[i];
        levels[i].up = band_conv(in, i ? bands->channels[i - 1] : bands->before, 3);
        for (int k = 0; k < BAND_RESNETS; k++, in = out) {
            struct resnet_weights *w = &levels[i].resnet[k];
            *w = (struct resnet_weights){.norm1.weight = band_values(1, &in),
                                         .conv1 = band_conv(out, in, 3),
                                         .norm2.weight = band_values(1, &out),
                                         .conv2 = band_conv(out, out, 3)};
            if (in != out) w->shortcut = band_conv(out, in, 1);
        }
    }
}

/* Declares the last n of n + 1 levels. */
static struct vae_bands band_declare(struct context *x, int n) {
    struct component c = {.dims = {[LEVELS] = n + 1, [RESNETS] = BAND_RESNETS, [CHANNELS] = BAND_CHANNELS}};
    bool ok = true;
    for (int i = 0; i < n; i++) {
        c.dims[CHANNELS + 1 + i] = band_channels[i];
        c.dims[IN_CHANNELS + 1 + i] = i ? band_channels[i - 1] : BAND_CHANNELS;
    }
    struct vae_bands bands = vae_bands_declare(&c, x->scratch, &ok);
    for (int i = 0; i < n; i++) bands.shortcut[i] = (struct shortcut){i ? 1 : 2, 2, i ? 0 : 1};
    assert_true(ok && bands.first == 1 && bands.n == n);
    return bands;
}

/* Convolves a whole feature map. norm: weight of the norm before the convolution, rank 0: none. */
static struct tensor band_convolve(struct context *x, struct tensor in, const struct linear_weights *w,
                                   struct tensor norm, struct tensor residual, int up) {
    struct conv_options options = {.upsample = up};
    int32_t dim[3] = {up * in.dim[0], up * in.dim[1], w->bias.dim[0]};
    struct tensor out = test_tensor(DTYPE_F32, 3, dim);
    if (norm.rank) {
        options.activation = ACTIVATION_SILU;
        options.pixel_norm = (struct pixel_norm){norm, vae_pixel_eps(norm)};
    }
    op_conv2d(x, out, in, w->weight, (struct epilogue){.bias = w->bias, .residual = residual}, options);
    return out;
}

/* Decodes layer by layer, each over the whole feature map. */
static struct tensor band_decode_whole(struct context *x, const struct vae_bands *bands,
                                       const struct band_level *levels, const struct out_weights *w,
                                       struct tensor in, struct tensor level_input) {
    const struct tensor none = {0};
    for (int i = 0; i < bands->n; i++) {
        const struct band_level *l = &levels[i];
        in = band_convolve(x, in, &l->up, none, none, 2);
        op_repeat_up(x, in, level_input, in, bands->shortcut[i]);
        level_input = in;
        for (int k = 0; k < BAND_RESNETS; k++) {
            const struct resnet_weights *r = &l->resnet[k];
            struct tensor h = band_convolve(x, in, &r->conv1, r->norm1.weight, none, 1);
            if (r->shortcut.weight.rank) in = band_convolve(x, in, &r->shortcut, none, none, 1);
            in = band_convolve(x, h, &r->conv2, r->norm2.weight, in, 1);
        }
    }
    return band_convolve(x, in, &w->conv, w->norm.weight, none, 1);
}

/* n: levels; Y, X: size of the feature map before them. The image has one band, several of which the last is
 * partial, fewer rows than the levels' lags, or a single latent pixel. */
void check_bands(struct block_test *t, const json_t *step) {
    static const struct {
        int n;
        int32_t Y, X;
    } sizes[] = {{1, 70, 600}, {2, 9, 300}, {2, 13, 512}, {3, 11, 130}, {3, 17, 65}, {3, 1, 1}, {3, 6, 256}};
    struct context *x = &t->runner->context;
    (void)step;
    for (int i = 0; i < COUNT_OF(sizes); i++) {
        void *mark = golden_state.memory;
        int32_t Y = sizes[i].Y, X = sizes[i].X, n = sizes[i].n, last = band_channels[n - 1];
        x->scratch->used = 0;
        memset(x->scratch->base, 0xff, x->scratch->bytes);
        struct vae_bands bands = band_declare(x, n);
        struct band_level levels[VAE_BANDS_LEVELS];
        band_weights(&bands, levels);
        struct out_weights out = {.norm.weight = band_values(1, &last),
                                  .conv = band_conv(BAND_COLOURS, last, 3)};
        struct tensor from = band_values(3, (int32_t[]){Y, X, BAND_CHANNELS}),
                      input = band_values(3, (int32_t[]){Y, X, BAND_INPUT}),
                      want = band_decode_whole(x, &bands, levels, &out, from, input),
                      got = test_tensor(DTYPE_F32, 3, want.dim);
        for (int k = 0; k < n; k++) {
            vae_bands_keep_up(x, &bands, 1 + k, &levels[k].up);
            for (int r = 0; r < BAND_RESNETS; r++)
                vae_bands_keep_resnet(x, &bands, 1 + k, r, &levels[k].resnet[r]);
        }
        vae_bands_forward(x, &bands, &out, got, from, input);
        assert_ok(x->error);
        assert_memory_equal(got.data, want.data, (size_t)tensor_bytes(&want));
        test_memory_free_to(mark);
    }
}
