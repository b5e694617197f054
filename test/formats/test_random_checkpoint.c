/* Generated checkpoints (`sluice-dev checkpoint`): the published layout (shards, index, a tokenizer as large
 * as the embedding), no sparse files, and weights that all matter: one flipped bit gives another latent. SEED
 * in the environment varies the bit. */
#include "bench/dev/checkpoint.h"
#include "test/lib/rig.h"

#include "engine/open/prompt.h"
#include "engine/run/component.h"
#include "engine/base/random.h"
#include "loaders/loaders.h"

#include <sys/stat.h>
#include <unistd.h>
#include <dirent.h>

enum { FLIPS = 12, LONGEST_SECONDS = 300 };

static uint64_t random_state;

static int64_t allocated, apparent; /* allocated and apparent bytes of all files */

static int count_shards(const char *folder, const char *part) {
    char path[512];
    int shards = 0;
    snprintf(path, sizeof path, "%s/%s", folder, part);
    DIR *dir = opendir(path);
    if (!check(dir != NULL, "folder %s is missing", path)) return 0;
    for (struct dirent *file; (file = readdir(dir));) {
        char name[800];
        struct stat s;
        snprintf(name, sizeof name, "%s/%s", path, file->d_name);
        if (stat(name, &s) || !S_ISREG(s.st_mode)) continue;
        shards += strstr(file->d_name, "-of-") != NULL;
        allocated += 512 * (int64_t)s.st_blocks;
        apparent += s.st_size;
    }
    closedir(dir);
    return shards;
}

static void test_published_file_layout(const char *folder, const struct recipe *recipe) {
    allocated = apparent = 0;
    check(count_shards(folder, "transformer") >= 2, "the transformer is not sharded");
    for (const struct slot *s = recipe->slot; s->family; s++)
        check(s->family->kind != FAMILY_TEXT || count_shards(folder, s->folder) >= 2,
              "the %s is not in shards", s->folder);
    check(count_shards(folder, "vae") == 0, "the VAE is sharded");
    check(allocated >= apparent, "%lld bytes are sparse", (long long)(apparent - allocated));
}

/* Tokenizers merge ordinary text, have every token of the recipe, and no id beyond the embedding's rows. */
static void test_tokenizer_fits_embedding(const struct sluice_model *model) {
    static const char text[] = "In the snow, the fox: 12 of them, don't 雪";
    for (int i = 0; i < SLOTS_MAX; i++) {
        const struct tokenizer *tokenizer = model->tokenizer[i];
        const struct text_recipe *recipe = &model->recipe->slot[i].text;
        struct error e = {0};
        int32_t *ids = NULL;
        int n = 0;
        if (!tokenizer) continue;
        int rows = model->component[i].tables[0].tensors[0].shape.dim[0], size = tokenizer_size(tokenizer);
        check(size <= rows && rows - size < 32, "%d token ids for %d embedding rows", size, rows);
        check(!prompt_check(recipe, tokenizer, &e), "%s: %s", recipe->tokenizer, e.what);
        check(!tokenizer_encode(tokenizer, text, sizeof text - 1, &ids, &n, &e), "encoding: %s", e.what);
        check(n > 5 && n < (int)sizeof text - 8, "%d ids for %zu bytes: no merges", n, sizeof text - 1);
        model->sys->release(model->sys, ids);
    }
}

/* Number of weights of a synthetic component with these dims. */
static int64_t count_component(struct component *c, const int *chosen) {
    struct block_ref *refs = calloc(FAMILY_BLOCKS_MAX, sizeof *refs);
    int64_t sum = 0;
    if (!refs) abort();
    component_derive(c, chosen);
    int n = c->family->blocks.list(c, refs);
    for (int b = 0; b < n; b++) {
        int32_t dims[FAMILY_DIMS_MAX];
        component_block_dims(c, &refs[b], dims);
        for (int i = 0; i < refs[b].kind->n_weights; i++) {
            const struct weight_spec *spec = &refs[b].kind->weights[i];
            int64_t elements = !weight_is_optional(spec) && block_has_weight(spec, dims);
            for (int k = 0; k < spec->rank; k++) elements *= dims[spec->dim[k]];
            sum += elements;
        }
    }
    free(refs);
    return sum;
}

static int64_t count_weights(const struct recipe *recipe, int i_slot) {
    const struct slot *slot = &recipe->slot[i_slot];
    struct component c;
    struct sys *sys = NULL;
    int chosen[DIMENSIONS_MAX] = {0};
    configuration_begin(recipe, i_slot, sys, &c);
    for (int i = 0; i < c.family->config.n_dimensions; i++)
        chosen[i] = slot_dimension(slot, &c.family->config.dimensions[i]);
    return count_component(&c, chosen);
}

#define SDXL_NETWORK                                                                                         \
    {"unet3", 0}, {"unet_layers0", 0}, {"unet_heads", 0}, {"unet_convolved", 0}, {"unet_text", 2048},        \
        {"unet_pooled", 1280}, {                                                                             \
        "unet_numbers", 6                                                                                    \
    }

/* Control networks, as diffusers 0.42 counts models of the published configurations. */
static void test_control_weight_counts(void) {
    enum { CHANGES = 14 };
    const struct {
        const struct family *family;
        const char *name;
        int64_t weights;
        struct {
            const char *name;
            int value;
        } dimension[CHANGES]; /* dimensions that differ from the family's published ones */
    } published[] = {
        {&family_unet_control, "networks of Stable Diffusion 1.5", 361279120, {{0}}},
        {&family_unet_control,
         "networks of Stable Diffusion 2.1",
         364228240,
         {{"unet_convolved", 0}, {"unet_text", 1024}, {"unet_heads", 0}}},
        {&family_unet_control,
         "networks of SDXL",
         1251014160,
         {SDXL_NETWORK, {"unet_layers1", 2}, {"unet_layers2", 10}}},
        {&family_unet_control,
         "small networks of SDXL",
         125690640,
         {SDXL_NETWORK, {"unet_layers1", 0}, {"unet_layers2", 0}, {"unet_middle_layers", 0}}},
        {&family_unet_control_union,
         "xinsir's SDXL union, without the queries and keys, which are not read",
         1257287280 - 2 * (320 * 320 + 320),
         {SDXL_NETWORK,
          {"unet_layers1", 2},
          {"unet_layers2", 10},
          {"control_hint0", 48},
          {"control_hint1", 96},
          {"control_hint2", 192},
          {"control_hint3", 384}}},
        {&family_flux_control, "InstantX' Flux.1 union", 3301956608, {{0}}},
        {&family_flux_control,
         "Flux.1 union pro 2.0",
         2140876800,
         {{"double_layers", 6}, {"single_layers", 0}, {"modes", 0}}},
        {&family_flux_control_xlabs, "XLabs' Flux.1 networks", 743807280, {{0}}},
    };
    for (size_t i = 0; i < COUNT_OF(published); i++) {
        struct component c = {.family = published[i].family};
        int chosen[DIMENSIONS_MAX] = {0};
        for (int k = 0; k < c.family->config.n_dimensions; k++) {
            const struct dimension *d = &c.family->config.dimensions[k];
            chosen[k] = d->published;
            for (int n = 0; n < CHANGES && published[i].dimension[n].name; n++)
                if (d->name && !strcmp(d->name, published[i].dimension[n].name))
                    chosen[k] = published[i].dimension[n].value;
        }
        int64_t n = count_component(&c, chosen);
        check(n == published[i].weights, "%s: %lld weights, published %lld", published[i].name, (long long)n,
              (long long)published[i].weights);
    }
}

/* Published files have 2 bytes per weight and a header (flux1-dev.safetensors
 * 23,802,932,552 bytes, flux1-schnell 23,782,506,688, FLUX.1-dev's text_encoder 246,144,352, text_encoder_2
 * 4,994,582,224 and 4,530,066,360, vae 167,666,902). UNets, their VAE, OpenCLIP and Stable Diffusion 3: as
 * diffusers 0.42 and transformers 5 count models of the published configurations. */
static void test_published_weight_counts(void) {
    enum { SLOTS = 6, VAE_16 = 83819683, VAE_4 = 83653863 };
    enum { CLIP_L = 123060480, CLIP_H = 340387840, CLIP_G = 694659840 };
    const int64_t t5 = 4762310656, projected_l = CLIP_L + 768 * 768;
    const struct {
        const char *recipe;
        int64_t weights[SLOTS]; /* number of weights by slot; a VAE's encoder counts with the decoder */
    } published[] = {{"flux", {CLIP_L, t5, 11901408320, VAE_16}},
                     {"flux_kontext", {CLIP_L, t5, 11901408320, VAE_16}},
                     {"flux_schnell", {CLIP_L, t5, 11891178560, VAE_16}},
                     {"flux_fill", {CLIP_L, t5, 11902391360, VAE_16}},
                     {"flux_canny", {CLIP_L, t5, 11901604928, VAE_16}},
                     {"flux_depth", {CLIP_L, t5, 11901604928, VAE_16}},
                     {"longcat_image", {676550144, 7070619136, 6270668864, VAE_16}},
                     {"longcat_image_edit", {676550144, 7070619136, 6270668864, VAE_16}},
                     {"chroma", {t5, 8899983424, VAE_16}},
                     {"ovis_image", {1720574976, 7370449728, VAE_16}},
                     {"krea2", {4022468096, 12820073036}},
                     {"sd15", {CLIP_L, 859520964, VAE_4}},
                     {"sd15_inpaint", {CLIP_L, 859535364, VAE_4}},
                     {"sd2", {CLIP_H, 865910724, VAE_4}},
                     {"sdxl", {CLIP_L, CLIP_G, 2567463684, VAE_4}},
                     {"sdxl_refiner", {CLIP_G, 2259526660, VAE_4}},
                     {"sd3", {projected_l, CLIP_G, t5, 2084951104, VAE_16}},
                     {"sd35_medium", {projected_l, CLIP_G, t5, 2469663936, VAE_16}},
                     {"sd35_large", {projected_l, CLIP_G, t5, 8146280768, VAE_16}},
                     {"sd35_large_turbo", {projected_l, CLIP_G, t5, 8146280768, VAE_16}},
                     {"anima", {596049920, 134663680, 1956405248}},
                     {"qwen_image", {676550144, 7070619136, 20430401088}}};
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        const struct recipe *const *r = recipes;
        while (*r && strcmp((*r)->name, published[i].recipe)) r++;
        if (!check(*r != NULL, "unknown recipe %s", published[i].recipe)) continue;
        for (int slot = 0; published[i].weights[slot]; slot++) {
            int64_t n = count_weights(*r, slot);
            if ((*r)->slot[slot].family->kind == FAMILY_DECODER) n += count_weights(*r, slot + 1);
            check(n == published[i].weights[slot], "%s: %lld weights in slot %d, not %lld", (*r)->name,
                  (long long)n, slot, (long long)published[i].weights[slot]);
        }
    }
}

static void flip(const char *path, uint64_t offset) {
    unsigned char byte = 0;
    FILE *f = fopen(path, "r+b");
    if (!check(f && !fseek(f, (long)offset, SEEK_SET) && fread(&byte, 1, 1, f) == 1, "cannot read %s", path))
        return;
    byte ^= 1; /* flips a mantissa bit of bf16, or the lowest exponent bit */
    check(!fseek(f, (long)offset, SEEK_SET) && fwrite(&byte, 1, 1, f) == 1 && !fclose(f), "cannot write %s",
          path);
}

static struct result draw_from(const char *folder) {
    struct rig rig;
    struct result r = {.code = -1};
    struct sluice_request request = request_fox(48, 32, 2, 1, 2);
    request.no_decode = true;
    if (!rig_open(&rig, folder, 1, 3)) return r;
    r = run(&rig, &request);
    rig_close(&rig);
    return r;
}

/* Returns the file offset of a random byte of a tensor that every run reads, in shard number `source`. */
static uint64_t random_weight_byte(const struct component *c, int source) {
    for (;;) {
        const struct block *block = &c->blocks[random_below(&random_state, (uint64_t)c->n_blocks)];
        const struct packed_segment *s =
            &block->segments[random_below(&random_state, (uint64_t)block->n_segments)];
        if (s->source == &c->index.sources[source])
            return s->file_offset + random_below(&random_state, s->bytes);
    }
}

/* Flips bits in the denoiser and in a text encoder that uses all its weights (CLIP's positions beyond the
 * prompt have no effect). */
static void test_every_bit_matters(const char *folder, const struct sluice_model *model) {
    const int slots[] = {!recipe_condition(model->recipe, 0, CONDITION_TOKENS),
                         recipe_slot(model->recipe, FAMILY_DENOISER)};
    struct result want = draw_from(folder);
    for (int i = 0; i < FLIPS; i++) {
        const struct component *c = &model->component[slots[i & 1]];
        int source = i / 2 % c->index.n_sources;
        const char *path = c->index.sources[source].path;
        uint64_t offset = random_weight_byte(c, source);
        flip(path, offset);
        struct result got = draw_from(folder);
        check(got.code == SLUICE_OK && strcmp(got.latent[0], want.latent[0]),
              "%s: flipping byte %llu has no effect", path, (unsigned long long)offset);
        flip(path, offset);
    }
    struct result again = draw_from(folder);
    same(&want, &again, "every bit flipped back");
}

static void check_numbers(const char *folder, const char *file, const char *const *keys, const double *values,
                          int n) {
    char path[192];
    struct config config = {0};
    struct error e = {0};
    struct sys machine;
    sys_init_machine(&machine);
    snprintf(path, sizeof path, "%s/%s", folder, file);
    check(config_read(&machine, path, &config, &e) == OK, "%s: %s", path, e.what);
    for (int i = 0; i < n; i++) {
        const struct config_value *found = config_find(&config, keys[i]);
        check(found ? found->number == values[i] : values[i] < 0, "%s: %s is %g, not %g", file, keys[i],
              found ? found->number : -1, values[i]);
    }
    config_destroy(&config);
}

/* Language model and vision encoder share one configuration; the processor has its own folder. A number below
 * 0 means that the configuration must lack the key. */
static void test_vision_language_files(const char *folder) {
    static const char *const keys[] = {"num_attention_heads",
                                       "rope_scaling.mrope_section.0",
                                       "rope_scaling.mrope_section.2",
                                       "vision_config.num_heads",
                                       "vision_config.fullatt_block_indexes.0",
                                       "vision_config.fullatt_block_indexes.3",
                                       "vision_config.fullatt_block_indexes.4",
                                       "vision_config.rope_parameters.rope_theta"};
    static const double values[] = {4, 4, 4, 2, 1, 8, -1, 1e4};
    static const char *const picture_keys[] = {"size.shortest_edge", "size.longest_edge", "merge_size"};
    static const double picture_values[] = {3136, 12845056, 2};
    char path[192];
    check_numbers(folder, "text_encoder/config.json", keys, values, COUNT_OF(keys));
    check_numbers(folder, "processor/preprocessor_config.json", picture_keys, picture_values,
                  COUNT_OF(picture_keys));
    snprintf(path, sizeof path, "%s/processor/tokenizer.json", folder);
    check(!access(path, R_OK), "%s is missing", path);
}

static void test_opens_as_its_recipe(const char *recipe, const char *dimensions, bool flips) {
    char folder[128];
    struct sluice_error e;
    struct sluice_model *model = NULL;
    snprintf(folder, sizeof folder, "%s/%s", temporary, recipe);
    struct error unwritten = {0};
    int code = checkpoint_write(
        &(struct checkpoint_options){.family = recipe, .dimensions = dimensions, .seed = random_state},
        folder, &unwritten);
    struct sluice_model_options from = {.struct_size = sizeof from, .model = folder};
    if (!check(!code && !sluice_model_open(&from, &model, &e), "%s: %s%s", recipe, unwritten.what,
               code ? "" : e.what))
        return;
    check(!strcmp(model->recipe->name, recipe), "%s opens as %s", recipe, model->recipe->name);
    check(model_component(model, FAMILY_ENCODER)->family != NULL, "%s: the VAE encoder is missing", recipe);
    check(model->shift_rule == model->recipe->denoising.shift_rule && model->has_schedule,
          "%s: wrong schedule", recipe);
    for (int i = 0; i < SLOTS_MAX; i++)
        check(!model->component[i].n_unknown, "%s: %d unknown tensors", recipe,
              model->component[i].n_unknown);
    test_published_file_layout(folder, model->recipe);
    test_tokenizer_fits_embedding(model);
    if (flips) test_every_bit_matters(folder, model);
    if (model->recipe->text.processor.class) test_vision_language_files(folder);
    sluice_model_close(model);
}

#define ZIMAGE                                                                                               \
    "heads=3,axis0=16,axis1=24,axis2=24,layers=5,refiners=1,hidden=160,text_heads=4,text_key_heads=2,"       \
    "text_head_dim=32,text_ff=416,text_layers=5,vocabulary=1200,vae0=32,vae1=32,vae2=32,vae3=32,vae_groups=" \
    "8"
#define FLUX                                                                                                 \
    "heads=2,axis0=8,axis1=12,axis2=12,double_layers=2,single_layers=3,hidden=96,pooled=128,clip_heads=2,"   \
    "clip_ff=160,clip_layers=2,clip_vocabulary=1000,t5_heads=3,t5_head_dim=16,t5_ff=112,t5_layers=2,"        \
    "t5_vocabulary=700,vae0=32,vae1=32,vae2=32,vae3=32,vae_groups=8"
#define CHROMA                                                                                               \
    "heads=2,axis0=8,axis1=12,axis2=12,double_layers=2,single_layers=3,approximator=72,hidden=96,"           \
    "t5_heads=3,t5_head_dim=16,t5_ff=112,t5_layers=2,t5_vocabulary=700,vae0=32,vae1=32,vae2=32,vae3=32,"     \
    "vae_groups=8"

#define OVIS                                                                                                 \
    "heads=2,axis0=8,axis1=12,axis2=12,double_layers=2,single_layers=3,hidden=96,vocabulary=1200,"           \
    "text_heads=4,text_key_heads=2,text_head_dim=32,text_ff=160,text_layers=3,vae0=32,vae1=32,vae2=32,"      \
    "vae3=32,vae_groups=8"
#define QWEN                                                                                                 \
    "vision_layers=9,vision_width=40,vision_heads=2,vision_ff=48,hidden=96,vocabulary=1200,text_heads=4,"    \
    "text_key_heads=2,text_ff=160,text_layers=3,heads=2,axis0=8,axis1=12,axis2=12,layers=3,vae_base=16"

/* A tensor that a generated adapter must have, as published files do. */
static const struct named_factor {
    const char *family, *dialect, *name, *shape;
} factors[] = {
    {"flux", "kohya", "lora_unet_double_blocks_18_img_attn_qkv.lora_up.weight", "9216x4"},
    {"flux", "kohya", "lora_unet_single_blocks_0_linear1.lora_up.weight", "21504x4"},
    {"flux", "kohya", "lora_te1_text_model_encoder_layers_0_mlp_fc1.lora_down.weight", "4x768"},
    {"flux", "kohya", "lora_te3_encoder_block_23_layer_1_DenseReluDense_wi_0.alpha", ""},
    {"flux", "diffusers", "transformer.single_transformer_blocks.37.attn.to_v.lora_B.weight", "3072x4"},
    {"flux", "bfl", "double_blocks.3.txt_mlp.2.lora_A.weight", "4x12288"},
    {"longcat_image", "kohya", "lora_unet_single_blocks_19_linear1.lora_up.weight", "21504x4"},
    {"longcat_image", "diffusers", "transformer.transformer_blocks.9.attn.add_k_proj.lora_B.weight",
     "3072x4"},
    {"chroma", "kohya", "lora_unet_distilled_guidance_layer_layers_4_in_layer.lora_up.weight", "5120x4"},
    {"chroma", "diffusers", "transformer.transformer_blocks.18.attn.add_q_proj.lora_B.weight", "3072x4"},
    {"ovis_image", "kohya", "lora_unet_single_blocks_26_linear1.lora_up.weight", "33792x4"},
    {"ovis_image", "diffusers", "transformer.transformer_blocks.0.ff.net.0.proj.lora_B.weight", "24576x4"},
    {"krea2", "comfy", "diffusion_model.blocks.27.attn.wk.lora_B.weight", "1536x4"},
    {"krea2", "diffusers", "transformer.text_fusion.refiner_blocks.1.attn.to_gate.lora_B.weight", "2560x4"},
    {"anima", "kohya", "lora_unet_blocks_27_adaln_modulation_mlp_2.lora_up.weight", "6144x4"},
    {"anima", "kohya", "lora_te_model_layers_27_self_attn_k_proj.lora_down.weight", "4x1024"},
    {"anima", "lokr", "lora_unet_llm_adapter_blocks_5_cross_attn_k_proj.lokr_w1", "4x4"},
    {"anima", "comfy", "diffusion_model.blocks.0.cross_attn.k_proj.lora_A.weight", "4x1024"},
    {"anima", "diffusers", "transformer.transformer_blocks.5.ff.net.0.proj.lora_B.weight", "8192x4"},
    {"sdxl", "kohya", "lora_unet_input_blocks_4_1_transformer_blocks_1_attn2_to_k.lora_down.weight",
     "4x2048"},
    {"sdxl", "kohya", "lora_te2_text_model_encoder_layers_31_self_attn_q_proj.lora_up.weight", "1280x4"},
    {"sdxl", "kohya_diffusers", "lora_unet_down_blocks_1_resnets_0_conv1.lora_down.weight", "4x320x3x3"},
    {"sdxl", "diffusers_old", "unet.mid_block.resnets.0.conv2.lora.up.weight", "1280x4x1x1"},
    {"sdxl", "lokr", "lora_unet_input_blocks_1_0_in_layers_2.lokr_w2_b", "4x720"},
    {"sd15", "kohya", "lora_te_text_model_encoder_layers_11_mlp_fc2.lora_down.weight", "4x3072"},
    {"sd35_medium", "comfy", "diffusion_model.joint_blocks.23.context_block.adaLN_modulation.1.lora_B.weight",
     "3072x4"},
    {"sd35_medium", "diffusers", "transformer.transformer_blocks.23.norm1_context.linear.lora_B.weight",
     "3072x4"},
    {"wan", "comfy_vectors", "diffusion_model.blocks.39.self_attn.norm_q.diff", "5120"},
    {"wan", "comfy_vectors", "diffusion_model.blocks.0.ffn.2.diff_b", "5120"},
    {"wan", "kohya", "lora_unet_blocks_0_cross_attn_k.lora_down.weight", "4x5120"},
    {"zimage", "comfy", "diffusion_model.layers.29.attention.qkv.lora_B.weight", "11520x4"},
    {"zimage", "loha", "lycoris_layers_0_feed_forward_w2.hada_w2_b", "4x10240"},
    {"qwen_image", "peft", "base_model.model.transformer_blocks.59.attn.add_q_proj.lora_A.default.weight",
     "4x3072"},
};

static void test_adapter_has_published_names(const struct named_factor *want) {
    char path[128];
    struct adapter_options options = {
        .base = {.family = want->family, .seed = random_state}, .dialect = want->dialect, .rank = 4};
    struct sys machine;
    struct tensor_index index = {0};
    struct error e = {0};
    sys_init_machine(&machine);
    options.text_encoders = !strncmp(want->name, "lora_te", 7) || strstr(want->name, "llm_adapter");
    snprintf(path, sizeof path, "%s/adapter.safetensors", temporary);
    if (!check(adapter_write(&options, path, &e) == OK && safetensors_open(&machine, path, &index, &e) == OK,
               "%s %s: %s", want->family, want->dialect, e.what))
        return;
    const struct index_entry *found = index_find(&index, want->name);
    char shape[64] = "";
    for (int i = 0, n = 0; found && i < found->rank; i++)
        n += snprintf(shape + n, 12, i ? "x%d" : "%d", found->dim[i]);
    check(found && !strcmp(shape, want->shape), "%s %s: %s %s %s", want->family, want->dialect, want->name,
          found ? "has shape" : "is missing", shape);
    index_destroy(&index);
}

int main(void) {
    const char *seed = getenv("SEED");
    random_state = seed ? strtoull(seed, NULL, 0) : 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(LONGEST_SECONDS);
    temporary_make();
    test_published_weight_counts();
    test_control_weight_counts();
    for (size_t i = 0; i < COUNT_OF(factors); i++) test_adapter_has_published_names(&factors[i]);
    test_opens_as_its_recipe("zimage", ZIMAGE, true);
    test_opens_as_its_recipe("flux", FLUX, true);
    test_opens_as_its_recipe("flux_schnell", FLUX, false);
    test_opens_as_its_recipe("flux_kontext", FLUX, false);
    test_opens_as_its_recipe("flux_fill", FLUX, false);
    test_opens_as_its_recipe("flux_canny", FLUX, false);
    test_opens_as_its_recipe("flux_depth", FLUX, false);
    test_opens_as_its_recipe("chroma", CHROMA, false);
    test_opens_as_its_recipe("ovis_image", OVIS, false);
    test_opens_as_its_recipe("qwen_image", QWEN, true);
    test_opens_as_its_recipe("qwen_image_edit_plus", QWEN, false);
    return finish();
}
