/* LoRAs applied while weights stream: bit-identical results under every budget and plan, plans that count
 * adapter bytes, sessions that change adapters, LoRA tags in prompts, prompt cache entries per adapter.
 *
 * Z-Image covers fused tensors (several projections in one), SDXL covers convolutions and text encoders.
 * test_loras.c checks the values. */
#include "bench/dev/checkpoint.h"
#include "test/lib/random_models.h"
#include "test/lib/residency.h"

#include <sys/stat.h>
#include <unistd.h>

#define ZIMAGE                                                                                               \
    "heads=3,axis0=16,axis1=24,axis2=24,layers=4,refiners=1,hidden=160,text_heads=4,text_key_heads=2,"       \
    "text_head_dim=32,text_ff=416,text_layers=3,vocabulary=400,vae0=32,vae1=32,vae2=16,vae3=16,vae_groups="  \
    "8,latent_channels=16,dtype="
#define SDXL                                                                                                 \
    "unet0=32,unet1=32,unet2=32,unet_layers1=1,unet_layers2=1,unet_middle_layers=1,clip_vocabulary=600,"     \
    "clip_ff=48,vae0=32,vae1=32,vae2=32,vae3=32,clip_g.pooled=40,clip_g.clip_heads=5,clip_g.clip_layers=4,"  \
    "clip_projection=16,clip_l.pooled=32,clip_l.clip_heads=2,clip_l.clip_layers=3,unet_text=72,"             \
    "unet_pooled=16,dtype="

struct random_setup {
    const char *recipe, *folder;
    char first[160], second[160];
};

static void make_adapter(const char *recipe, const char *sizes, const char *dialect, int rank,
                         char path[160]) {
    static int n;
    struct error e = {0};
    struct adapter_options options = {
        .base = {.family = recipe, .dimensions = sizes, .seed = (uint64_t)n},
        .dialect = dialect,
        .rank = rank,
        .text_encoders = true,
    };
    snprintf(path, 160, "%s/adapter%d.safetensors", temporary, n++);
    int code = adapter_write(&options, path, &e);
    check(!code, "%s %s: %s (%s) %s", recipe, dialect, e.what, e.where, e.found);
}

static struct sluice_request request_with(const struct sluice_lora *loras, int n) {
    struct sluice_request r = request_fox(48, 32, 2, 1, 3);
    r.no_decode = true;
    r.loras = loras;
    r.n_loras = n;
    return r;
}

static json_int_t adapter_bytes(json_t *plan) {
    return number(stage_of(plan, "denoise"), "adapter_bytes");
}

static void test_every_plan_keeps_bits(const struct random_setup *m) {
    struct sluice_lora two[] = {{m->first, 0.6}, {m->second, 1}};
    struct sluice_request plain = request_with(NULL, 0), adapted = request_with(two, 2);
    plain.no_decode = adapted.no_decode = false;
    struct result base = run_fresh(m->folder, 2, plain), want = run_fresh(m->folder, 2, adapted);
    struct rig rig;
    if (!rig_open(&rig, m->folder, 2, 5)) return;
    check(strcmp(base.latent[0], want.latent[0]), "%s: adapters have no effect", m->recipe);
    budgets(&rig, adapted, &want, thorough_or(10, 5), m->recipe);
    direct_reads(&rig, adapted, &want, thorough_or(6, 3), m->recipe);
    edited_plan(&rig, adapted, &want, m->recipe);
    edited_plans(&rig, adapted, &want, thorough_or(EDITS_ALL, 4), m->recipe);
    rig_close(&rig);
}

/* Expects that the request, run with a new model and session, gives the result of another request. */
static void expect_same(const struct random_setup *m, struct sluice_request request,
                        const struct result *want, const char *what) {
    struct result got = run_fresh(m->folder, 2, request);
    same(want, &got, what);
}

/* A LoRA strength of 1e-30 changes no bit: quantisation scales come from the base weights alone. */
static void test_negligible_strength_changes_nothing(const struct random_setup *m, const char *type) {
    struct sluice_lora little[] = {{m->first, 1e-30}};
    struct sluice_request r = request_with(little, 0);
    r.type = type;
    struct result want = run_fresh(m->folder, 2, r);
    r.n_loras = 1;
    expect_same(m, r, &want, "LoRA strength 1e-30");
}

/* Weights are quantised while they are read (--type); the quantisation scales are computed at the start of
 * the run. */
static void test_quantised_weights_with_adapters(const struct random_setup *m, const char *type) {
    struct sluice_lora two[] = {{m->first, 0.6}, {m->second, 1}};
    struct sluice_request r = request_with(two, 2);
    struct rig rig;
    r.type = type;
    struct result want = run_fresh(m->folder, 2, r);
    if (!rig_open(&rig, m->folder, 2, 5)) return;
    budgets(&rig, r, &want, 3, type);
    r.type = NULL;
    struct result other = run(&rig, &r);
    check(strcmp(want.latent[0], other.latent[0]), "%s: --type %s does not change the latent", m->recipe,
          type);
    r.type = type;
    run_same(&rig, &r, &want, "the same --type a second time");
    test_negligible_strength_changes_nothing(m, type);
    rig_close(&rig);
}

static json_t *plan_with(struct rig *rig, const struct sluice_lora *loras, int n, json_int_t budget) {
    struct sluice_request request = request_with(loras, n);
    json_int_t all;
    if (!budget) bounds(rig, request, &budget, &all);
    request.max_ram_bytes = budget;
    return query(rig, &request, NULL);
}

/* The plan counts the adapter bytes that each step reads. The plan hash depends on each adapter's summed
 * strength. */
static void test_plan_counts_adapters(const struct random_setup *m) {
    const struct sluice_lora one[] = {{m->first, 0.6}}, none[] = {{m->first, 0}}, more[] = {{m->first, 0.7}},
                             twice[] = {{m->first, 0.3}, {m->first, 0.3}};
    struct rig rig;
    if (!rig_open(&rig, m->folder, 2, 5)) return;
    json_t *before = plan_with(&rig, NULL, 0, 0), *after = plan_with(&rig, one, 1, 0);
    json_int_t grown = blocks_bytes(after, "denoise") - blocks_bytes(before, "denoise");
    check(adapter_bytes(after) > 0 && grown == adapter_bytes(after),
          "%s: planned weights of a step grow by %lld bytes, expected %lld", m->recipe, (long long)grown,
          (long long)adapter_bytes(after));
    check(real(stage_of(after, "denoise"), "adapter_flops") > 0, "%s: the plan counts no FLOPs for adapters",
          m->recipe);
    const struct {
        json_t *plan, *other;
        bool same;
        const char *what;
    } rows[] = {
        {after, plan_with(&rig, twice, 2, ram(after, "budget")), true, "a LoRA given twice at half strength"},
        {before, plan_with(&rig, none, 1, ram(before, "budget")), true, "a LoRA of strength 0"},
        {after, plan_with(&rig, more, 1, ram(after, "budget")), false, "another strength"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check(!strcmp(word(rows[i].plan, "hash"), word(rows[i].other, "hash")) == rows[i].same,
              "%s: %s: plan hashes", m->recipe, rows[i].what);
    rig_close(&rig);
}

static json_int_t fresh_bytes(const struct random_setup *m, const struct sluice_request *request) {
    struct rig rig;
    if (!rig_open(&rig, m->folder, 2, 5)) return 0;
    run(&rig, request);
    json_int_t bytes = rig_stages_sum(&rig, "bytes_moved");
    rig_close(&rig);
    return bytes;
}

/* Returns the number of bytes that the adapters add to the reads of a new session. */
static json_int_t expected_adapter_bytes(const struct random_setup *m, struct sluice_request request) {
    json_int_t with = fresh_bytes(m, &request);
    request.n_loras = 0;
    return with - fresh_bytes(m, &request);
}

/* Runs after an adapter change and compares the bits with a new session. The run may read only embedding rows
 * (`rows` bytes) and, if `reads`, the adapter bytes. */
static void run_changed(struct rig *rig, const struct random_setup *m, struct sluice_request request,
                        bool reads, json_int_t rows, const char *what) {
    struct result want = run_fresh(m->folder, 2, request);
    run_equal(rig, &request, &want, what);
    json_int_t read = rig_stages_sum(rig, "bytes_moved"),
               bytes = rows + (reads ? expected_adapter_bytes(m, request) : 0);
    check(read == bytes, "%s, %s: read %lld bytes, expected %lld", m->recipe, what, (long long)read,
          (long long)bytes);
}

static void test_session_change_reads_only_adapter(const struct random_setup *m) {
    struct sluice_lora first[] = {{m->first, 0.6}}, second[] = {{m->second, 1}},
                       both[] = {{m->first, -0.5}, {m->second, 0.25}}, stronger[] = {{m->first, 1.5}};
    struct rig rig;
    struct sluice_request r = request_with(NULL, 0);
    if (!rig_open(&rig, m->folder, 2, 5)) return;
    r.max_ram_bytes = plenty;
    for (int i = 0; i < 2; i++) run(&rig, &r);
    json_int_t rows = rig_stages_sum(&rig, "bytes_moved");
    r.loras = first;
    r.n_loras = 1;
    run_changed(&rig, m, r, true, rows, "the first adapter");
    run_changed(&rig, m, r, false, rows, "the first adapter, again");
    r.loras = stronger;
    run_changed(&rig, m, r, false, rows, "another strength");
    r.loras = second;
    run_changed(&rig, m, r, true, rows, "the second adapter");
    r.loras = both;
    r.n_loras = 2;
    run_changed(&rig, m, r, true, rows, "both adapters");
    r.n_loras = 0;
    run_changed(&rig, m, r, false, rows, "no adapter again");
    check(rows < (json_int_t)index_bytes(&model_component(rig.model, FAMILY_DENOISER)->index) / 8,
          "%s: embedding rows of %lld bytes exceed an eighth of the model", m->recipe, (long long)rows);
    rig_close(&rig);
}

static void test_tags_equal_options(const struct random_setup *m) {
    struct sluice_lora one[] = {{m->first, 0.6}, {m->first, -0.6}, {m->first, 0.6}};
    struct sluice_request plain = request_with(NULL, 0), adapted = request_with(one, 1), r;
    struct result base = run_fresh(m->folder, 2, plain), want = run_fresh(m->folder, 2, adapted);
    char marked[256], name[64];
    snprintf(name, sizeof name, "%s", strrchr(m->first, '/') + 1);
    *strstr(name, ".safetensors") = 0;
    adapted.n_loras = 2;
    expect_same(m, adapted, &base, "strengths that sum to 0");
    adapted.n_loras = 3;
    expect_same(m, adapted, &want, "strengths that sum to 0.6");
    r = plain;
    r.lora_dir = temporary;
    snprintf(marked, sizeof marked, "<lora:%s:0.6> %s", name, plain.prompt);
    r.prompt = marked;
    expect_same(m, r, &want, "LoRA tag in the prompt");
    snprintf(marked, sizeof marked, "%s <lora:%s:.25> <lora:%s:0.35>", plain.prompt, name, name);
    expect_same(m, r, &want, "two LoRA tags in the prompt");
    r.prompt = plain.prompt;
    snprintf(marked, sizeof marked, "%s<lora:%s:0.6>", plain.negative_prompt ? plain.negative_prompt : "",
             name);
    r.negative_prompt = marked;
    expect_same(m, r, &want, "LoRA tag in the negative prompt");
    snprintf(marked, sizeof marked, "<lora:%s:0>", name);
    r.negative_prompt = plain.negative_prompt;
    snprintf(marked, sizeof marked, "%s <lora:%s:0>", plain.prompt, name);
    r.prompt = marked;
    expect_same(m, r, &base, "LoRA tag of strength 0");
}

static void test_prompt_cache_separates_adapters(const struct random_setup *m) {
    struct sluice_lora first[] = {{m->first, 0.6}}, stronger[] = {{m->first, 1}};
    struct sluice_session_options options = {.threads = 2, .prompt_cache_bytes = 64 << 20};
    struct rig rig;
    struct sluice_request r = request_with(NULL, 0);
    if (!rig_open(&rig, m->folder, 2, 5)) return;
    if (!rig_open_session(&rig, options)) return;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 3; i++) {
            r.loras = i == 1 ? first : stronger;
            r.n_loras = i > 0;
            struct result want = run_fresh(m->folder, 2, r),
                          got = run_equal(&rig, &r, &want, "with the prompt cache");
            bool hit = json_object_get(json_object_get(got.plan, "request"), "prompt_cache_hits");
            check(hit == (round > 0), "%s, round %d, request %d: unexpected prompt cache %s", m->recipe,
                  round, i, hit ? "hit" : "miss");
        }
    rig_close(&rig);
}

/* A changed alpha in adapter_config.json must invalidate residents and prompt cache. */
static void test_changed_alpha_file_is_reread(const struct random_setup *m, const char *path) {
    char folder[160], file[200];
    struct sluice_lora one[] = {{file, 1}};
    struct sluice_session_options options = {.threads = 2, .prompt_cache_bytes = 64 << 20};
    struct rig rig;
    struct sluice_request r = request_with(one, 1);
    char first[HEX];
    snprintf(folder, sizeof folder, "%s/beside", temporary);
    snprintf(file, sizeof file, "%s/adapter_model.safetensors", folder);
    if (!check(!mkdir(folder, 0777) && !rename(path, file), "%s", folder)) return;
    if (!rig_open(&rig, m->folder, 2, 5)) return;
    if (!rig_open_session(&rig, options)) return;
    for (int i = 0; i < 2; i++) {
        write_text_below(folder, "adapter_config.json", i ? "{\"lora_alpha\": 40}" : "{\"lora_alpha\": 4}");
        struct result want = run_fresh(m->folder, 2, r);
        run_equal(&rig, &r, &want, "alpha in adapter_config.json");
        check(!i || strcmp(first, want.latent[0]), "%s: lora_alpha in adapter_config.json has no effect",
              m->recipe);
        memcpy(first, want.latent[0], sizeof first);
    }
    rig_close(&rig);
}

int main(void) {
    char config_adapter[160];
    temporary_make();
    struct random_setup zimage = {.recipe = "zimage",
                                  .folder = random_model("zimage", "zimage", ZIMAGE "bf16", 11)};
    make_adapter("zimage", ZIMAGE "f32", "comfy", 3, zimage.first);
    make_adapter("zimage", ZIMAGE "bf16", "diffusers", 5, zimage.second);
    struct random_setup sdxl = {.recipe = "sdxl", .folder = random_model("sdxl", "sdxl", SDXL "f16", 12)};
    make_adapter("sdxl", SDXL "f16", "kohya", 2, sdxl.first);
    make_adapter("sdxl", SDXL "f32", "kohya_diffusers", 4, sdxl.second);
    const struct random_setup *const all[] = {&zimage, &sdxl};
    for (int i = 0; i < 2; i++) {
        test_every_plan_keeps_bits(all[i]);
        test_plan_counts_adapters(all[i]);
        test_session_change_reads_only_adapter(all[i]);
        test_tags_equal_options(all[i]);
    }
    test_quantised_weights_with_adapters(&zimage, "q8_0");
    test_quantised_weights_with_adapters(&sdxl, "f8_e4m3");
    test_prompt_cache_separates_adapters(&sdxl);
    make_adapter("sdxl", SDXL "f32", "diffusers_old", 2, config_adapter);
    test_changed_alpha_file_is_reread(&sdxl, config_adapter);
    return finish();
}
