/* Module names of published adapters, at published model sizes: checks the component and the weights that
 * each module name changes. Sources: kohya's sd-scripts and musubi, diffusers of several versions, peft,
 * ComfyUI, Black Forest Labs, lightx2v. Factors are zeros in a sparse file. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/open/adapter_combine.h"
#include "test/lib/adapter_files.h"
#include "test/lib/check.h"
#include "test/lib/temporary_folder.h"

enum { RANK = 4 };

static const char kohya[] = ".lora_down.weight|.lora_up.weight";
static const char peft[] = ".lora_A.weight|.lora_B.weight";
static const char old[] = "_lora.down.weight|_lora.up.weight";
static const char older[] = ".lora.down.weight|.lora.up.weight";
static const char linear[] = ".lora_linear_layer.down.weight|.lora_linear_layer.up.weight";

static const struct row {
    const char *recipe, *module, *ends;
    int32_t rows, columns[5]; /* shape of the changed weight: rows, input columns, then kernel sides */
    const char *means; /* expected text: component folder, changed weights, and rows within a fused tensor */
} rows[] = {
    {"flux",
     "lora_unet_double_blocks_3_img_attn_qkv",
     kohya,
     9216,
     {3072},
     "transformer: transformer_blocks.3.attn.to_q.weight[0+3072] "
     "transformer_blocks.3.attn.to_k.weight[3072+3072] "
     "transformer_blocks.3.attn.to_v.weight[6144+3072]"},
    {"flux",
     "lora_unet_double_blocks_18_txt_mlp_2",
     kohya,
     3072,
     {12288},
     "transformer: transformer_blocks.18.ff_context.net.2.weight"},
    {"flux",
     "lora_unet_single_blocks_37_linear1",
     kohya,
     21504,
     {3072},
     "transformer: single_transformer_blocks.37.attn.to_q.weight[0+3072] "
     "single_transformer_blocks.37.attn.to_k.weight[3072+3072] "
     "single_transformer_blocks.37.attn.to_v.weight[6144+3072] "
     "single_transformer_blocks.37.proj_mlp.weight[9216+12288]"},
    {"flux",
     "lora_unet_single_blocks_0_linear2",
     kohya,
     3072,
     {15360},
     "transformer: single_transformer_blocks.0.proj_out.weight"},
    {"flux",
     "lora_unet_double_blocks_0_img_mod_lin",
     kohya,
     18432,
     {3072},
     "transformer: transformer_blocks.0.norm1.linear.weight"},
    {"flux",
     "lora_unet_time_in_in_layer",
     kohya,
     3072,
     {256},
     "transformer: time_text_embed.timestep_embedder.linear_1.weight"},
    {"flux",
     "transformer.single_transformer_blocks.5.attn.to_k",
     peft,
     3072,
     {3072},
     "transformer: single_transformer_blocks.5.attn.to_k.weight"},
    {"flux",
     "transformer.transformer_blocks.0.ff.net.0.proj",
     peft,
     12288,
     {3072},
     "transformer: transformer_blocks.0.ff.net.0.proj.weight"},
    {"flux", "transformer.x_embedder", peft, 3072, {64}, "transformer: x_embedder.weight"},
    {"flux",
     "diffusion_model.single_blocks.1.modulation.lin",
     peft,
     9216,
     {3072},
     "transformer: single_transformer_blocks.1.norm.linear.weight"},
    {"flux",
     "double_blocks.2.txt_attn.proj",
     peft,
     3072,
     {3072},
     "transformer: transformer_blocks.2.attn.to_add_out.weight"},
    {"flux",
     "lora_transformer_single_transformer_blocks_3_attn_to_q",
     kohya,
     3072,
     {3072},
     "transformer: single_transformer_blocks.3.attn.to_q.weight"},
    {"flux",
     "diffusion_model.final_layer.adaLN_modulation.1",
     peft,
     6144,
     {3072},
     "transformer: norm_out.linear.weight[3072+3072][0+3072]"},
    {"flux", "transformer.norm_out.linear", peft, 6144, {3072}, "transformer: norm_out.linear.weight"},
    {"flux",
     "lora_te1_text_model_encoder_layers_11_mlp_fc1",
     kohya,
     3072,
     {768},
     "text_encoder: text_model.encoder.layers.11.mlp.fc1.weight"},
    {"flux",
     "lora_te2_encoder_block_0_layer_0_SelfAttention_q",
     kohya,
     4096,
     {4096},
     "text_encoder_2: encoder.block.0.layer.0.SelfAttention.q.weight"},
    {"flux",
     "lora_te3_encoder_block_23_layer_1_DenseReluDense_wi_0",
     kohya,
     10240,
     {4096},
     "text_encoder_2: encoder.block.23.layer.1.DenseReluDense.wi_0.weight"},
    {"flux",
     "text_encoders.clip_l.transformer.text_model.encoder.layers.0.self_attn.k_proj",
     peft,
     768,
     {768},
     "text_encoder: text_model.encoder.layers.0.self_attn.k_proj.weight"},

    {"flux", "lora_te1_text_projection", kohya, 768, {768}, ""},

    {"sdxl",
     "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q",
     kohya,
     640,
     {640},
     "unet: down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q.weight"},
    {"sdxl",
     "lora_unet_middle_block_1_transformer_blocks_9_ff_net_0_proj",
     kohya,
     10240,
     {1280},
     "unet: mid_block.attentions.0.transformer_blocks.9.ff.net.0.proj.weight"},
    {"sdxl",
     "lora_unet_output_blocks_5_1_transformer_blocks_1_attn2_to_k",
     kohya,
     640,
     {2048},
     "unet: up_blocks.1.attentions.2.transformer_blocks.1.attn2.to_k.weight"},
    {"sdxl",
     "lora_unet_down_blocks_2_attentions_1_proj_in",
     kohya,
     1280,
     {1280},
     "unet: down_blocks.2.attentions.1.proj_in.weight"},
    {"sdxl",
     "lora_unet_input_blocks_3_0_op",
     kohya,
     320,
     {320, 3, 3},
     "unet: down_blocks.0.downsamplers.0.conv.weight"},
    {"sdxl", "lora_unet_input_blocks_0_0", kohya, 320, {4, 3, 3}, "unet: conv_in.weight"},
    {"sdxl", "lora_unet_out_2", kohya, 4, {320, 3, 3}, "unet: conv_out.weight"},
    {"sdxl", "lora_unet_label_emb_0_0", kohya, 1280, {2816}, "unet: add_embedding.linear_1.weight"},
    {"sdxl", "lora_unet_time_embed_2", kohya, 1280, {1280}, "unet: time_embedding.linear_2.weight"},
    {"sdxl",
     "lora_unet_output_blocks_2_2_conv",
     kohya,
     1280,
     {1280, 3, 3},
     "unet: up_blocks.0.upsamplers.0.conv.weight"},
    {"sdxl",
     "lora_unet_input_blocks_1_0_emb_layers_1",
     kohya,
     320,
     {1280},
     "unet: down_blocks.0.resnets.0.time_emb_proj.weight"},
    {"sdxl",
     "lora_unet_input_blocks_4_0_skip_connection",
     kohya,
     640,
     {320, 1, 1},
     "unet: down_blocks.1.resnets.0.conv_shortcut.weight"},
    {"sdxl",
     "lora_te1_text_model_encoder_layers_0_self_attn_q_proj",
     kohya,
     768,
     {768},
     "text_encoder: text_model.encoder.layers.0.self_attn.q_proj.weight"},
    {"sdxl",
     "lora_te2_text_model_encoder_layers_30_mlp_fc2",
     kohya,
     1280,
     {5120},
     "text_encoder_2: text_model.encoder.layers.30.mlp.fc2.weight"},
    {"sdxl",
     "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn1.processor.to_out",
     old,
     640,
     {640},
     "unet: down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_out.0.weight"},
    {"sdxl",
     "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn1.processor.to_v",
     old,
     640,
     {640},
     "unet: down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_v.weight"},
    {"sdxl",
     "down_blocks.1.attentions.0.transformer_blocks.1.attn2.to_k",
     older,
     640,
     {2048},
     "unet: down_blocks.1.attentions.0.transformer_blocks.1.attn2.to_k.weight"},
    {"sdxl",
     "text_encoder.text_model.encoder.layers.0.self_attn.to_q",
     old,
     768,
     {768},
     "text_encoder: text_model.encoder.layers.0.self_attn.q_proj.weight"},
    {"sdxl",
     "text_encoder_2.text_model.encoder.layers.5.self_attn.out_proj",
     linear,
     1280,
     {1280},
     "text_encoder_2: text_model.encoder.layers.5.self_attn.out_proj.weight"},

    {"sdxl", "lora_te2_text_projection", kohya, 1280, {1280}, "text_encoder_2: text_projection.weight"},

    {"sd15",
     "lora_te_text_model_encoder_layers_3_mlp_fc1",
     kohya,
     3072,
     {768},
     "text_encoder: text_model.encoder.layers.3.mlp.fc1.weight"},
    {"sd15",
     "lora_unet_down_blocks_0_attentions_0_proj_in",
     kohya,
     320,
     {320, 1, 1},
     "unet: down_blocks.0.attentions.0.proj_in.weight"},
    {"sd15",
     "lora_unet_up_blocks_3_resnets_2_conv_shortcut",
     kohya,
     320,
     {640, 1, 1},
     "unet: up_blocks.3.resnets.2.conv_shortcut.weight"},

    {"sd3",
     "lora_unet_joint_blocks_0_x_block_attn_qkv",
     kohya,
     4608,
     {1536},
     "transformer: transformer_blocks.0.attn.to_q.weight[0+1536] "
     "transformer_blocks.0.attn.to_k.weight[1536+1536] "
     "transformer_blocks.0.attn.to_v.weight[3072+1536]"},
    {"sd3",
     "diffusion_model.joint_blocks.23.context_block.attn.qkv",
     peft,
     4608,
     {1536},
     "transformer: transformer_blocks.23.attn.add_k_proj.weight[1536+1536] "
     "transformer_blocks.23.attn.add_v_proj.weight[3072+1536]"},
    {"sd3",
     "transformer.transformer_blocks.23.norm1_context.linear",
     peft,
     3072,
     {1536},
     "transformer: transformer_blocks.23.norm1_context.linear.weight[1536+1536][0+1536]"},
    {"sd3",
     "transformer.transformer_blocks.5.ff_context.net.2",
     peft,
     1536,
     {6144},
     "transformer: transformer_blocks.5.ff_context.net.2.weight"},
    {"sd3", "transformer.pos_embed.proj", peft, 1536, {16, 2, 2}, "transformer: pos_embed.proj.weight"},
    {"sd3", "transformer.transformer_blocks.23.attn.add_q_proj", peft, 1536, {1536}, ""},
    {"sd3",
     "lora_te3_encoder_block_0_layer_0_SelfAttention_o",
     kohya,
     4096,
     {4096},
     "text_encoder_3: encoder.block.0.layer.0.SelfAttention.o.weight"},

    {"zimage",
     "diffusion_model.layers.3.attention.to_q",
     peft,
     3840,
     {3840},
     "transformer: layers.3.attention.to_q.weight"},
    {"zimage",
     "diffusion_model.layers.3.attention.to_out.0",
     peft,
     3840,
     {3840},
     "transformer: layers.3.attention.to_out.0.weight"},
    {"zimage",
     "lora_unet_layers_29_attention_qkv",
     kohya,
     11520,
     {3840},
     "transformer: layers.29.attention.to_q.weight[0+3840] layers.29.attention.to_k.weight[3840+3840] "
     "layers.29.attention.to_v.weight[7680+3840]"},
    {"zimage",
     "lora_unet_context_refiner_0_attention_out",
     kohya,
     3840,
     {3840},
     "transformer: context_refiner.0.attention.to_out.0.weight"},
    {"zimage",
     "diffusion_model.layers.0.feed_forward.w1",
     peft,
     10240,
     {3840},
     "transformer: layers.0.feed_forward.w1.weight"},
    {"zimage",
     "transformer.layers.0.adaLN_modulation.0",
     peft,
     15360,
     {256},
     "transformer: layers.0.adaLN_modulation.0.weight"},

    {"qwen_image",
     "transformer_blocks.0.attn.add_k_proj",
     kohya,
     3072,
     {3072},
     "transformer: transformer_blocks.0.attn.add_k_proj.weight"},
    {"qwen_image",
     "lora_unet_transformer_blocks_59_img_mlp_net_0_proj",
     kohya,
     12288,
     {3072},
     "transformer: transformer_blocks.59.img_mlp.net.0.proj.weight"},
    {"qwen_image",
     "transformer.transformer_blocks.7.img_mod.1",
     peft,
     18432,
     {3072},
     "transformer: transformer_blocks.7.img_mod.1.weight"},
    {"qwen_image", "transformer_blocks.59.attn.to_add_out", older, 3072, {3072}, ""},

    {"wan",
     "diffusion_model.blocks.0.self_attn.q",
     kohya,
     5120,
     {5120},
     "transformer: blocks.0.attn1.to_q.weight"},
    {"wan", "lora_unet__blocks_39_ffn_2", kohya, 5120, {13824}, "transformer: blocks.39.ffn.net.2.weight"},
    {"wan",
     "lora_unet_blocks_3_cross_attn_o",
     kohya,
     5120,
     {5120},
     "transformer: blocks.3.attn2.to_out.0.weight"},
    {"wan", "diffusion_model.head.head", peft, 64, {5120}, "transformer: proj_out.weight"},
    {"wan",
     "diffusion_model.time_projection.1",
     peft,
     30720,
     {5120},
     "transformer: condition_embedder.time_proj.weight"},
    {"wan",
     "diffusion_model.patch_embedding",
     kohya,
     5120,
     {16, 1, 2, 2},
     "transformer: patch_embedding.weight"},
    {"wan", "transformer.blocks.0.attn2.to_k", peft, 5120, {5120}, "transformer: blocks.0.attn2.to_k.weight"},
    {"wan_i2v",
     "diffusion_model.blocks.0.cross_attn.k_img",
     peft,
     5120,
     {5120},
     "transformer: blocks.0.attn2.add_k_proj.weight"},
    {"wan_i2v",
     "diffusion_model.img_emb.proj.1",
     peft,
     1280,
     {1280},
     "transformer: condition_embedder.image_embedder.ff.net.0.proj.weight"},
    {"wan22",
     "transformer_2.blocks.0.attn1.to_q",
     peft,
     5120,
     {5120},
     "transformer_2: blocks.0.attn1.to_q.weight"},
};

static struct sluice_model *open_published(const char *recipe) {
    struct sluice_model_options options = {.struct_size = sizeof options, .family = recipe};
    struct sluice_model *model = NULL;
    struct error e = {0};
    char line[1024];
    model_open(NULL, &options, &model, &e);
    check(e.code == OK, "%s: %s", recipe, error_line(&e, line, sizeof line));
    return model;
}

static const char *write_row(const struct row *row) {
    static char path[128];
    struct adapter_writer w;
    char name[256];
    const char *bar = strchr(row->ends, '|');
    int32_t down[6] = {RANK}, up[6] = {row->rows, RANK, 1, 1, 1, 1};
    int rank = 1;
    while (rank < 6 && row->columns[rank - 1]) {
        down[rank] = row->columns[rank - 1];
        rank++;
    }
    snprintf(path, sizeof path, "%s/adapter.safetensors", temporary);
    adapter_writer_begin(&w);
    snprintf(name, sizeof name, "%s%.*s", row->module, (int)(bar - row->ends), row->ends);
    adapter_writer_add(&w, name, "BF16", 2, rank, down, NULL);
    snprintf(name, sizeof name, "%s%s", row->module, bar + 1);
    adapter_writer_add(&w, name, "BF16", 2, rank, up, NULL);
    return adapter_writer_end(&w, path, NULL);
}

static size_t print_weight(const struct component *c, const struct adapted_weight *w, char *out,
                           size_t bytes) {
    char name[2 * BLOCK_NAME_MAX];
    const struct block *block = &c->blocks[w->block];
    size_t at = (size_t)snprintf(
        out, bytes, " %s", block_weight_name(block->kind->weights[w->weight].names[0], block->number, name));
    for (int i = 0; i < w->up.n_parts; i++)
        at += (size_t)snprintf(out + at, bytes - at, "[%d+%d]", w->up.part[i].first, w->up.part[i].rows);
    return at;
}

static void print_match(const struct sluice_model *m, const struct adapter_match *match, char *out,
                        size_t bytes) {
    size_t at = 0;
    *out = 0;
    for (int slot = 0; slot < SLOTS_MAX; slot++) {
        const struct adapter_part *part = &match->part[slot];
        if (part->n_weights)
            at += (size_t)snprintf(out + at, bytes - at, "%s:", m->recipe->slot[slot].folder);
        for (int i = 0; i < part->n_weights; i++)
            at += print_weight(&m->component[slot], &part->weights[i], out + at, bytes - at);
    }
}

static void test_name_finds_weights(const struct row *row, const struct sluice_model *m) {
    struct adapter *a = NULL;
    struct adapter_match match;
    struct error e = {0};
    char line[1024], means[1024];
    if (adapter_open(m->sys, write_row(row), &a, &e) == OK) adapter_match(a, m, false, &match, &e);
    if (check(e.code == OK, "%s: %s: %s", row->recipe, row->module, error_line(&e, line, sizeof line))) {
        print_match(m, &match, means, sizeof means);
        check(!strcmp(means, row->means), "%s: %s means '%s', not '%s'", row->recipe, row->module, means,
              row->means);
        check((match.n_notes == 1) == !*row->means, "%s: %s: %d notes", row->recipe, row->module,
              match.n_notes);
        adapter_match_destroy(&match);
    }
    adapter_close(a);
}

/* If the tensor names of a file name no transformer, words in the file name choose one of the two
 * transformers. */
static void test_file_name_chooses_transformer(void) {
    static const struct {
        const char *name;
        bool first, second; /* first, second: whether the file must change the high-noise, the low-noise
                               transformer */
    } names[] = {
        {"style_high_noise.safetensors", true, false},
        {"Wan2.2-HighNoise-v2 turbo.safetensors", true, false},
        {"wan22 low-noise detailed.safetensors", false, true},
        {"Wan22_Lightning_HIGH_fp16.safetensors", true, false},
        {"lora_rank64_low.safetensors", false, true},
        {"low/low-poly_high.safetensors", true, false},
        {"low/poly.safetensors", false, true},
        {"high_noise/style-v2.safetensors", true, false},
        {"low-poly.safetensors", true, true},
        {"high quality 2.safetensors", true, true},
        {"low-key/portrait.safetensors", true, true},
        {"slow.safetensors", true, true},
        {"low_high.safetensors", true, false},
    };
    struct sluice_model *m = open_published("wan22");
    for (int i = 0; m && i < COUNT_OF(names); i++) {
        char path[256];
        struct adapter *a = NULL;
        struct adapter_match match = {0};
        struct error e = {0};
        static const struct row row = {"wan22", "blocks.0.attn1.to_q", peft, 5120, {5120}, ""};
        snprintf(path, sizeof path, "%s/%s", temporary, names[i].name);
        *strrchr(path, '/') = 0;
        mkdir(path, 0777);
        path[strlen(path)] = '/';
        if (!check(!rename(write_row(&row), path), "%s", path)) continue;
        if (adapter_open(m->sys, path, &a, &e) == OK) adapter_match(a, m, false, &match, &e);
        check(e.code == OK && (match.part[1].n_weights > 0) == names[i].first &&
                  (match.part[2].n_weights > 0) == names[i].second && match.n_notes == 1,
              "%s: %s: for %d and %d, %d notes", names[i].name, e.what, match.part[1].n_weights,
              match.part[2].n_weights, match.n_notes);
        adapter_match_destroy(&match);
        adapter_close(a);
    }
    model_close(m);
}

int main(void) {
    struct sluice_model *m = NULL;
    temporary_make();
    test_file_name_chooses_transformer();
    for (int i = 0; i < COUNT_OF(rows); i++) {
        if (!m || strcmp(m->recipe->name, rows[i].recipe) != 0) {
            model_close(m);
            m = open_published(rows[i].recipe);
        }
        if (m) test_name_finds_weights(&rows[i], m);
    }
    model_close(m);
    return finish();
}
