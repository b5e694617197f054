/* The residency gate for every stored weight type: streamed or resident, quantised weights and scales give
 * bit-identical results within the planned memory.
 *
 * The transformer has two layers and two refiners. Its matrices have one weight type, or several in turn so
 * that blocks of one kind differ in size; the files are safetensors or GGUF. Without the environment variable
 * THOROUGH only every fifth type runs. */
#include "test/lib/residency.h"
#include "test/lib/random_models.h"

enum { TYPE_BUDGETS = 3, EVERY = 5, IN_BF16 = 3 };

static const struct stored {
    const char *dtype;
    enum dtype of[4]; /* weight types that the transformer's matrices have in turn; F32 ends the list */
} stored[] = {
    {"f8_e4m3_rows/i8_rot256/nvfp4_tiled/mxfp8_tiled/i8/bf16",
     {DTYPE_F8_E4M3, DTYPE_I8_ROT256, DTYPE_NVFP4_TILED, DTYPE_MXFP8_TILED}},
    {"f8_e4m3_scaled", {DTYPE_F8_E4M3}},
    {"nvfp4_tiled", {DTYPE_NVFP4_TILED}},
    {"q4_0", {DTYPE_Q4_0}},
    {"q4_k", {DTYPE_Q4_K}},
    {"q4_k/q6_k/bf16/q8_0/iq4_xs", {DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_BF16, DTYPE_Q8_0}},
    {"i8_rows", {DTYPE_I8}},
    {"q4_1", {DTYPE_Q4_1}},
    {"q5_0", {DTYPE_Q5_0}},
    {"mxfp8_tiled", {DTYPE_MXFP8_TILED}},
    {"q5_1", {DTYPE_Q5_1}},
    {"q8_0", {DTYPE_Q8_0}},
    {"f8_e5m2", {DTYPE_F8_E5M2}},
    {"q2_k", {DTYPE_Q2_K}},
    {"q3_k", {DTYPE_Q3_K}},
    {"f8_e4m3", {DTYPE_F8_E4M3}},
    {"q5_k", {DTYPE_Q5_K}},
    {"q6_k", {DTYPE_Q6_K}},
    {"i8", {DTYPE_I8}},
    {"iq4_nl", {DTYPE_IQ4_NL}},
    {"iq4_xs", {DTYPE_IQ4_XS}},
    {"f8_e4m3_rows", {DTYPE_F8_E4M3}},
    {"mxfp4", {DTYPE_MXFP4}},
    {"nvfp4", {DTYPE_NVFP4}},
    {"f16", {DTYPE_F16}},
    {"i8_rot16/i8_rot64/i8_rot256", {DTYPE_I8_ROT16, DTYPE_I8_ROT64, DTYPE_I8_ROT256}},
};

static int count_matrices(const struct component *c, enum dtype dtype) {
    int n = 0;
    for (int b = 0; b < c->n_blocks; b++)
        for (int i = 0; i < c->blocks[b].n_tensors; i++)
            n += c->blocks[b].tensors[i].shape.dtype == dtype && c->blocks[b].tensors[i].shape.rank == 2;
    return n;
}

static bool blocks_differ(const struct component *c) {
    for (int b = 1; b < c->n_blocks; b++)
        for (int a = 0; a < b; a++)
            if (c->blocks[b].kind == c->blocks[a].kind && c->blocks[b].bytes != c->blocks[a].bytes)
                return true;
    return false;
}

static void check_types(const struct rig *rig, const struct stored *s) {
    const struct component *c = model_component(rig->model, FAMILY_DENOISER);
    bool mixed = strchr(s->dtype, '/') != NULL;
    for (int i = 0; i < 4 && s->of[i]; i++) {
        int n = count_matrices(c, s->of[i]), least = mixed ? 4 : 20;
        check(n >= least, "%s: only %d matrices of %s", s->dtype, n, dtype_name(s->of[i]));
    }
    check(blocks_differ(c) == mixed, "%s: blocks of one kind %s in size", s->dtype,
          mixed ? "do not differ" : "differ");
}

/* Compares runs without decoding, because the VAE's weight types are the same in every model. */
static void test_type_keeps_bits(const struct stored *s, int threads, const char *precision) {
    struct rig rig;
    struct sluice_request request = request_fox(48, 32, 2, 1, 1);
    const char *folder = stored_checkpoint(s->dtype);
    request.no_decode = true;
    request.precision = precision;
    if (!rig_open(&rig, folder, threads, 7)) return;
    check_types(&rig, s);
    struct result want = run_fresh(folder, threads, request);
    rig.fault_sys.delay_us = 300;
    rig.fault_sys.short_reads = true;
    struct tally t = budgets(&rig, request, &want, TYPE_BUDGETS, s->dtype);
    check(tally_of(&t, "denoise") >= TYPE_BUDGETS - 1, "%s streams at only %d budgets", s->dtype,
          tally_of(&t, "denoise"));
    edited_plan(&rig, request, &want, s->dtype);
    rig_close(&rig);
}

static bool computes_in_bf16(void) {
    struct rig rig;
    if (!rig_open(&rig, "test/golden/zimage_b/model", 1, 1)) return false;
    const char *reason = rig.session->device->unsupported[PRECISION_BF16];
    rig_close(&rig);
    if (reason) printf("SKIP stored types in bf16: %s\n", reason);
    return !reason;
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    for (int i = 0; i < (int)COUNT_OF(stored); i++)
        if (thorough() || i % EVERY == 0) test_type_keeps_bits(&stored[i], 1 + i % 2, NULL);
    bool in_bf16 = computes_in_bf16();
    for (int i = 0; in_bf16 && i < (!thorough() ? 1 : IN_BF16); i++)
        test_type_keeps_bits(&stored[i], 2, "bf16");
    return finish();
}
