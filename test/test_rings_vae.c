/* The decoder's blocks one by one, each on the reference's input, and the whole of it.
 *
 * A block's input is a picture in the family's canvas, so this program sees the lane state by including the
 * family. The copy of its functions goes by other names and is not called: the forwards that run are the
 * engine's own. */
#define family_vae_kl           family_vae_kl_copy
#define decoder_latent_channels decoder_latent_channels_copy
#define decoder_factor          decoder_factor_copy
#include "models/vae_kl.c"

#include "test/rings.h"

static const struct gate gates[] = {
    {"vae.resnet", 2.52e-7, 8e-7},
    {"vae.resnet_shortcut", 2.89e-7, 9e-7},
    {"vae.attention", 2.18e-7, 7e-7},
    {"vae.upsampler", 3.18e-7, 1e-6},
    {"vae.mid", 4.9e-7, 1.5e-6},
    {"decoder", 1.99e-6, 6e-6},
    {0},
};

static struct bench *open_decoder(const struct fixture *f) {
    struct tensor latent = ring_single(f, "decoder.in"), out = ring_single(f, "decoder.out");
    struct lane lane = {.latent = latent,
                        .picture =
                            test_tensor(DTYPE_F32, 3, (int32_t[]){out.dim[1], out.dim[2], out.dim[0]})};
    return bench_open(f, ROLE_DECODER, lane);
}

/* [C, Y, X] to [Y, X, C]. */
static struct tensor channels_last(struct tensor t) {
    int32_t C = t.dim[0], Y = t.dim[1], X = t.dim[2];
    struct tensor out = test_tensor(DTYPE_F32, 3, (int32_t[]){Y, X, C});
    for (int64_t i = 0; i < (int64_t)Y * X; i++)
        for (int32_t c = 0; c < C; c++)
            ((float *)out.data)[i * C + c] = ((float *)t.data)[(int64_t)c * Y * X + i];
    return out;
}

static void put_picture(struct bench *b, struct tensor picture) {
    struct vae_state *s = b->lane.state;
    assert_true(tensor_bytes(&picture) <= tensor_bytes(&s->canvas));
    memcpy(s->canvas.data, picture.data, (size_t)tensor_bytes(&picture));
    s->picture = tensor_make(s->canvas.data, DTYPE_F32, 3, picture.dim);
}

/* The block of a module of the reference: "decoder.up_blocks.0.upsamplers.0" is our "up_blocks.0.upsample".
 */
static const struct block *block_of(const struct bench *b, const char *module) {
    assert_true(!strncmp(module, "decoder.", 8));
    for (int i = 0; i < b->component->n_blocks; i++) {
        const struct block *block = &b->component->blocks[i];
        if (!strncmp(block->name, module + 8, strlen(block->name))) return block;
    }
    fail_msg("no block for %s", module);
    return NULL;
}

static struct tensor ring_picture(const struct fixture *f, const char *name, const char *side) {
    char path[64];
    snprintf(path, sizeof path, "%s.%s", name, side);
    return channels_last(ring_single(f, path));
}

static void expect_picture(const struct fixture *f, const char *name, struct tensor ours) {
    struct tensor out = ring_picture(f, name, "out");
    for (int i = 0; i < 3; i++) assert_int_equal(ours.dim[i], out.dim[i]);
    expect_close(f, name, ours, out.data);
}

static void one_block(const struct fixture *f, const char *name) {
    struct bench *b = open_decoder(f);
    const struct vae_state *s = b->lane.state;
    json_t *about = json_object_get(json_object_get(f->expect, "blocks"), name);
    put_picture(b, ring_picture(f, name, "in"));
    bench_visit(b, block_of(b, json_string_value(json_object_get(about, "module"))), 0);
    expect_picture(f, name, s->picture);
    bench_close(b);
}

static void test_blocks(const struct fixture *f) {
    one_block(f, "vae.resnet");
    one_block(f, "vae.resnet_shortcut");
    one_block(f, "vae.attention");
    one_block(f, "vae.upsampler");
}

static void test_mid(const struct fixture *f) {
    struct bench *b = open_decoder(f);
    const struct vae_state *s = b->lane.state;
    put_picture(b, ring_picture(f, "vae.mid", "in"));
    bench_visit(b, bench_block(b, "mid_block.resnets.0"), 0);
    bench_visit(b, bench_block(b, "mid_block.attentions.0"), 0);
    bench_visit(b, bench_block(b, "mid_block.resnets.1"), 0);
    expect_picture(f, "vae.mid", s->picture);
    bench_close(b);
}

/* The ring's latent is scaled and shifted already. */
static void test_decoder(const struct fixture *f) {
    struct bench *b = open_decoder(f);
    struct vae_settings plain;
    memcpy(&plain, b->settings, sizeof plain);
    plain.scale = 1;
    plain.shift = 0;
    b->settings = &plain;
    bench_all(b, 0);
    expect_picture(f, "decoder", b->lane.picture);
    bench_close(b);
}

int main(void) {
    static const struct ring_test tests[] = {
        {"blocks", test_blocks}, {"mid", test_mid}, {"decoder", test_decoder}};
    return rings_main("vae rings", tests, COUNT_OF(tests), gates);
}
