/* A single-file SDXL checkpoint gives the folder's latent, with text encoders named by OpenCLIP (q, k and v
 * in one tensor, the projection transposed), ComfyUI or stable-diffusion.cpp. */
#include "test/lib/random_models.h"
#include "test/lib/model_paths.h"
#include "test/lib/tensor_set.h"

static const char *folder;

static void make_folder(void) {
    folder = random_model(
        "sdxl", "sdxl",
        "unet0=32,unet1=32,unet2=32,unet_layers1=1,unet_layers2=1,unet_middle_layers=1,unet_text=72,"
        "unet_pooled=16,clip_vocabulary=600,clip_ff=48,vae0=32,vae1=32,vae2=32,vae3=32,dtype=f16,"
        "clip_g.pooled=40,clip_g.clip_heads=5,clip_g.clip_layers=4,clip_projection=16,clip_l.pooled=32,"
        "clip_l.clip_heads=2,clip_l.clip_layers=3",
        7);
}

static void transpose(struct item *t) {
    uint16_t *from = (uint16_t *)(void *)t->data, *to = malloc(t->bytes);
    int32_t rows = t->dim[0], columns = t->dim[1];
    if (!to) abort();
    for (int32_t i = 0; i < rows; i++)
        for (int32_t k = 0; k < columns; k++) to[k * rows + i] = from[i * columns + k];
    memcpy(t->data, to, t->bytes);
    free(to);
    t->dim[0] = columns;
    t->dim[1] = rows;
}

static void join_qkv(struct tensor_set *p, struct item *q) {
    for (int i = 0; i < 2; i++) {
        char name[TENSOR_SET_NAME];
        snprintf(name, sizeof name, "%s", q->name);
        memcpy(strstr(name, "q_proj"), i ? "v_proj" : "k_proj", 6);
        join_rows(p, q, name);
    }
    rename_part(q, "self_attn.q_proj.", "attn.in_proj_");
}

static void name_as_openclip(struct tensor_set *p) {
    static const char *const parts[][2] = {{"embeddings.token_embedding", "token_embedding"},
                                           {"final_layer_norm", "ln_final"},
                                           {"embeddings.position_embedding.weight", "positional_embedding"},
                                           {"encoder.layers", "transformer.resblocks"},
                                           {"layer_norm", "ln_"},
                                           {"self_attn.out_proj", "attn.out_proj"},
                                           {"mlp.fc1", "mlp.c_fc"},
                                           {"mlp.fc2", "mlp.c_proj"}};
    for (int i = 0; i < p->n; i++) {
        struct item *t = &p->item[i];
        rename_part(t, "text_model.", "");
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) rename_part(t, parts[k][0], parts[k][1]);
        if (!strcmp(t->name, "text_projection.weight")) {
            transpose(t);
            rename_part(t, ".weight", "");
        }
    }
    for (int i = 0; i < p->n; i++)
        if (strstr(p->item[i].name, "q_proj")) join_qkv(p, &p->item[i]);
    tensor_set_drop(p, "-");
}

static void name_as_sdcpp(struct tensor_set *p) {
    struct item *t = tensor_set_find(p, "text_projection.weight");
    transpose(t);
    rename_part(t, "text_projection.weight", "text_model.text_projection");
}

static const struct {
    const char *what, *l, *g; /* l, g: tensor name prefixes of CLIP-L and OpenCLIP-G in the checkpoint */
    void (*name)(struct tensor_set *p);
} files[] = {
    {"authors", "conditioner.embedders.0.transformer.", "conditioner.embedders.1.model.", name_as_openclip},
    {"ComfyUI", "text_encoders.clip_l.transformer.", "text_encoders.clip_g.transformer.", NULL},
    {"stable-diffusion.cpp", "cond_stage_model.transformer.", "cond_stage_model.1.transformer.",
     name_as_sdcpp},
};

static char *write_one_file(int file) {
    static const char *const components[] = {"text_encoder", "text_encoder_2", "unet", "vae"};
    const char *const prefixes[] = {files[file].l, files[file].g, "model.diffusion_model.",
                                    "first_stage_model."};
    static char path[160];
    struct tensor_set *all = calloc(1, sizeof *all);
    json_t *configs = json_object();
    if (!all) abort();
    for (int i = 0; i < 4; i++) {
        struct tensor_set *p = tensor_set_from_component(folder, components[i]);
        if (i == 1 && files[file].name) files[file].name(p);
        tensor_set_append(all, p, prefixes[i]);
        json_object_set_new(configs, components[i], json_loads(p->config, 0, NULL));
        tensor_set_free(p);
    }
    /* Additional tensors of older files: position ids as floats, and the logit scale between text and image.
     */
    static const float positions[77];
    tensor_set_add(all, files[file].l, "text_model.embeddings.position_ids", "F32", 2, (int32_t[]){1, 77},
                   positions, sizeof positions);
    tensor_set_add(all, files[file].g, "logit_scale", "F32", 1, (int32_t[]){1}, positions, 4);
    char *config = json_dumps(configs, 0);
    snprintf(path, sizeof path, "%s/one.safetensors", temporary);
    write_tensor_set(all, path, config);
    free(config);
    json_decref(configs);
    tensor_set_free(all);
    return path;
}

int main(void) {
    char wanted[HEX], found[HEX];
    struct model_paths whole = {0};
    temporary_make();
    make_folder();
    whole.model = folder;
    const struct sluice_request request = request_fox(64, 64, 1, 1, 3);
    if (n_failed || !sample_latent(model_options(&whole), request, wanted, "pipeline folder"))
        return finish();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct model_paths one = {.model = write_one_file((int)i), .tokenizer = folder};
        if (sample_latent(model_options(&one), request, found, files[i].what))
            check(!strcmp(wanted, found), "%s: latent differs from the folder's", files[i].what);
    }
    return finish();
}
