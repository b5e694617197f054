/* Whole pipelines from weights as people's files have them: GGUF with types that differ from tensor to
 * tensor, ComfyUI's, T5 in scaled fp8, tokenizers in metadata; parts under names of their own and by flags.
 *
 * Truth is what the reference computes in f32 from the numbers that these weights stand for
 * (test/golden/stored.py). That each type's numbers are right to the bit is in test_weights.c. */
#include "test/lib/golden_run.h"

#include <limits.h>

static const struct gate gates[] = {
    {"hidden", 5.12e-6, 1e-5}, {"pooled", 2e-7, 6e-7},         {"latent after a step", 1.18e-6, 4e-6},
    {"latent", 1.81e-6, 6e-6}, {"noise.randn", 9.16e-7, 2e-6}, {0},
};

/* In bf16, of which the reference's own errors are not known here: measured under emulation. A tensor of
 * another type than it is has an error of its own size. */
static const struct gate gpu_gates[] = {
    {"hidden", 1.08e-2, 3e-2}, {"pooled", 3.32e-3, 1e-2},      {"latent after a step", 3.29e-3, 1e-2},
    {"latent", 6.15e-3, 2e-2}, {"noise.randn", 9.16e-7, 2e-6}, {0},
};

static bool seen[N_DTYPES]; /* in what the fixtures' runs read */

static void see_types(const struct sluice_model *model) {
    for (int slot = 0; slot < SLOTS_MAX; slot++)
        for (int i = 0; i < model->component[slot].n_blocks; i++) {
            const struct block *block = &model->component[slot].blocks[i];
            for (int k = 0; k < block->n_tensors; k++) seen[block->tensors[k].shape.dtype] = true;
        }
}

static void run_cases(struct public_run *p) {
    json_t *cases = json_object_get(p->fixture->expect, "cases"), *c;
    size_t i;
    json_array_foreach(cases, i, c) {
        char latent[PATH], file[TAIL];
        struct sluice_error error;
        struct sluice_request r = request_of(p, c);
        snprintf(latent, sizeof latent, "%s/final.safetensors", p->folder);
        r.save_latent = latent;
        r.no_decode = true;
        assert_public(sluice_run(p->session, &r, &error), &error);
        expect_texts(p, c);
        for (int step = 1; step < r.steps; step++) {
            snprintf(file, sizeof file, "latent_%03d", step);
            expect_dump(p, c, file, "latent after a step", file);
        }
        expect_latents(p, c);
    }
}

static void test_found(const struct fixture *f) {
    char path[PATH];
    struct public_run *p = open_run(f, model_path(f, path), false);
    see_types(p->model);
    run_cases(p);
    close_run(p);
}

/* ---- each part by its flag ---- */

enum { DIFFUSION_MODEL, LLM, CLIP_L, T5XXL, VAE, TOKENIZER, N_FLAGS };

#define VAE_FILE "vae/diffusion_pytorch_model.safetensors"

/* Files below model/; NULL: no flag. */
static const struct {
    const char *fixture, *file[N_FLAGS];
} flagged[] = {
    {"zimage_gguf",
     {[DIFFUSION_MODEL] = "diffusion_models/zimage.gguf",
      [LLM] = "text_encoders/qwen3.gguf",
      [VAE] = VAE_FILE}},
    {"zimage_comfy",
     {[DIFFUSION_MODEL] = "diffusion_models/zimage.safetensors",
      [LLM] = "text_encoder_a/model.safetensors",
      [VAE] = VAE_FILE,
      [TOKENIZER] = "../../zimage_gguf/model/text_encoders/qwen3.gguf"}},
    {"flux_gguf",
     {[DIFFUSION_MODEL] = "unet/flux.gguf",
      [T5XXL] = "t5/t5.gguf",
      [CLIP_L] = "clip/model.safetensors",
      [VAE] = VAE_FILE}},
    {"flux_fp8",
     {[DIFFUSION_MODEL] = "unet/flux.gguf",
      [T5XXL] = "t5/t5xxl_fp8_e4m3fn_scaled.safetensors",
      [CLIP_L] = "clip",
      [VAE] = "vae"}},
};

static void test_flagged(const struct fixture *f) {
    static char path[N_FLAGS][PATH];
    const char *flag[N_FLAGS] = {0};
    size_t i = 0;
    while (i < (size_t)COUNT_OF(flagged) && strcmp(flagged[i].fixture, f->name)) i++;
    assert_true(i < (size_t)COUNT_OF(flagged));
    for (int k = 0; k < N_FLAGS; k++) {
        if (!flagged[i].file[k]) continue;
        snprintf(path[k], PATH, "%s/model/%s", f->path, flagged[i].file[k]);
        flag[k] = path[k];
    }
    struct public_run *p =
        open_parts(f,
                   &(struct sluice_model_options){.struct_size = sizeof(struct sluice_model_options),
                                                  .diffusion_model = flag[DIFFUSION_MODEL],
                                                  .llm = flag[LLM],
                                                  .clip_l = flag[CLIP_L],
                                                  .t5xxl = flag[T5XXL],
                                                  .vae = flag[VAE],
                                                  .tokenizer = flag[TOKENIZER]},
                   false);
    run_cases(p);
    close_run(p);
}

/* ---- in the folders of Hugging Face's layout ---- */

static void link_part(const struct fixture *f, const char *folder, const char *to, const char *part) {
    char from[PATH], real[PATH_MAX], name[PATH];
    snprintf(from, sizeof from, "%s/model/%s", f->path, part);
    snprintf(name, sizeof name, "%s/%s", folder, to);
    assert_non_null(realpath(from, real));
    assert_int_equal(symlink(real, name), 0);
}

static void test_foldered(const struct fixture *f) {
    char folder[] = "/tmp/sluice-stored-XXXXXX", command[PATH];
    bool own_text = !strcmp(f->name, "zimage_gguf");
    assert_non_null(mkdtemp(folder));
    link_part(f, folder, "transformer", "diffusion_models");
    link_part(f, folder, "text_encoder", own_text ? "text_encoders" : "text_encoder_a");
    if (!own_text) link_part(f, folder, "tokenizer", "tokenizer");
    link_part(f, folder, "vae", "vae");
    struct public_run *p = open_run(f, folder, false);
    run_cases(p);
    close_run(p);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
}

int main(void) {
    static const struct ring_test tests[] = {
        {"found by content", test_found, PRECISION_F32, true, NULL},
        {"by flags", test_flagged, PRECISION_F32, false, NULL},
        {"in folders", test_foldered, PRECISION_F32, false, "case0.hidden.uncond"},
    };
    int failed = rings_main_in("test/golden/stored", "stored", tests, COUNT_OF(tests), gates, gpu_gates);
    for (enum dtype type = 0; type < N_DTYPES; type++) {
        if (!dtype_is_weight(type) || seen[type]) continue;
        printf("no fixture has weights of %s\n", dtype_name(type));
        failed = 1;
    }
    return failed;
}
