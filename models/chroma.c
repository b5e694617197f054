/* Chroma1 transformer (diffusers: ChromaTransformer2DModel): the blocks of Flux.1 (flux_blocks.h), with all
 * modulations of a step from one small network, the approximator. There is no pooled prompt and no embedded
 * guidance.
 *
 * The approximator maps R rows of sinusoids to R rows of DIM values. Row i reads the timestep, a constant 0
 * (the guidance scale of the model that Chroma was distilled from) and the index i. The rows are, in order:
 * shift, scale, gate of each single block; the six modulations of each double block's image stream; those of
 * its text stream; shift and scale of the final layer. They depend on the timestep alone.
 *
 * The text encoder masks the padding, and the transformer reads one padding row (text_recipe.masks_padding,
 * padding_max). Source: diffusers 0.42, models/transformers/transformer_chroma.py and
 * pipelines/chroma/pipeline_chroma.py. That version passes the attention mask as floats, which attention adds
 * to the scores instead of masking (issues 12116 and 13619); here the transformer does not read masked rows.
 */
#include "models/flux_blocks.h"

enum {
    APPROXIMATOR = FLUX_DIMS, /* width of the approximator */
    APPROXIMATOR_LAYERS,
    SINUSOIDS, /* values of an approximator input row */
};

enum { LAYERS = 5 }; /* number of approximator layers in all published models */

/* Epsilon of the approximator's norms: the machine epsilon of f32, the default of torch.nn.RMSNorm. */
static const float chroma_norm_eps = 1.1920929e-7f;
static const float chroma_time_scale = 1000;

struct approximator_weights {
    struct linear_weights in;
    struct {
        struct tensor norm;
        struct linear_weights linear_1, linear_2;
    } layer[LAYERS];
    struct linear_weights out;
};

/* clang-format off */
#define LAYER(X, S, n)                                                                                       \
    X##WEIGHT(S, layer[n].norm, (.rank = 1, .dim = {APPROXIMATOR}),                                          \
              "norms." #n ".weight", "norms." #n ".scale")                                                   \
    X##LINEAR(S, layer[n].linear_1, APPROXIMATOR, APPROXIMATOR,                                              \
              "layers." #n ".linear_1", "layers." #n ".in_layer")                                            \
    X##LINEAR(S, layer[n].linear_2, APPROXIMATOR, APPROXIMATOR,                                              \
              "layers." #n ".linear_2", "layers." #n ".out_layer")
#define APPROXIMATOR_ROWS(X, S)                                                                              \
    X##LINEAR(S, in, APPROXIMATOR, SINUSOIDS, "in_proj")                                                     \
    LAYER(X, S, 0) LAYER(X, S, 1) LAYER(X, S, 2) LAYER(X, S, 3) LAYER(X, S, 4)                               \
    X##LINEAR(S, out, DIM, APPROXIMATOR, "out_proj")
WEIGHT_TABLE(chroma_approximator_table, APPROXIMATOR_ROWS, approximator_weights,
             "distilled_guidance_layer.", "distilled_guidance_layer.");
/* clang-format on */

/* Copies approximator rows [n, DIM] to modulation[:, row, :]; modulation is [blocks, rows, n DIM / blocks].
 */
static void chroma_store(struct context *x, struct tensor modulation, int32_t row, struct tensor from) {
    int32_t blocks = modulation.dim[0], columns = modulation.dim[2];
    struct tensor all = tensor_reshape(modulation, 2, (int32_t[]){blocks, modulation.dim[1] * columns});
    op_copy(x, tensor_slice_columns(all, row * columns, columns),
            tensor_reshape(from, 2, (int32_t[]){blocks, columns}));
}

/* Copies the approximator's output [R, DIM] to row `row` of all modulations. The final layer takes scale
 * before shift. */
static void chroma_store_rows(struct context *x, const struct flux_state *s, int32_t row,
                              struct tensor from) {
    int32_t singles = 3 * s->single_modulation.dim[0], doubles = 6 * s->image_modulation.dim[0];
    int32_t last = singles + 2 * doubles, dim = from.dim[1];
    struct tensor final = tensor_slice(s->final_modulation, row, 1);
    chroma_store(x, s->single_modulation, row, tensor_slice(from, 0, singles));
    chroma_store(x, s->image_modulation, row, tensor_slice(from, singles, doubles));
    chroma_store(x, s->text_modulation, row, tensor_slice(from, singles + doubles, doubles));
    op_copy(x, tensor_slice_columns(final, 0, dim), tensor_slice(from, last + 1, 1));
    op_copy(x, tensor_slice_columns(final, dim, dim), tensor_slice(from, last, 1));
}

/* Computes the modulations of the visit's timesteps, one timestep after the other in the same scratch memory.
 * Input row i: sinusoids of the timestep (a quarter of the columns), of 0 (a quarter), of 1000 i (half). */
static void chroma_forward_approximator(struct context *x, const void *weights,
                                        const struct visit_scope *scope) {
    const struct approximator_weights *w = weights;
    const struct flux_state *s = scope->lane->state;
    int32_t rows = 3 * s->single_modulation.dim[0] + 12 * s->image_modulation.dim[0] + 2;
    int32_t width = w->in.weight.dim[0], part = w->in.weight.dim[1] / 4;
    struct tensor in = context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows, 4 * part});
    struct tensor same = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, 2 * part});
    struct tensor h = context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows, width});
    struct tensor n = context_operand(x, 2, h.dim), up = context_operand(x, 2, h.dim);
    struct tensor out = context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows, w->out.weight.dim[0]});
    for (int32_t i = 0; i < rows; i++)
        op_timestep(x, tensor_slice_columns(tensor_slice(in, i, 1), 2 * part, 2 * part), 1000 * (float)i,
                    TIMESTEP_USUAL);
    op_timestep(x, tensor_slice_columns(same, part, part), 0, TIMESTEP_USUAL);
    for (int t = 0; t < scope->n_timesteps; t++) {
        op_timestep(x, tensor_slice_columns(same, 0, part), scope->timesteps[t] * chroma_time_scale,
                    TIMESTEP_USUAL);
        op_broadcast_row(x, tensor_slice_columns(in, 0, 2 * part), same);
        /* The sinusoids are never rounded to bf16. */
        op_linear_few(x, h, in, w->in.weight, w->in.bias, ACTIVATION_NONE);
        for (int k = 0; k < LAYERS; k++) {
            op_rms_norm(x, n, h, w->layer[k].norm, chroma_norm_eps, (struct modulation){0});
            op_linear(x, up, n, w->layer[k].linear_1.weight,
                      (struct epilogue){.bias = w->layer[k].linear_1.bias, .activation = ACTIVATION_SILU});
            op_linear(x, h, up, w->layer[k].linear_2.weight,
                      (struct epilogue){.bias = w->layer[k].linear_2.bias, .residual = h});
        }
        mmdit_linear(x, out, h, &w->out);
        chroma_store_rows(x, s, s->final_modulation.dim[0] == 1 ? 0 : scope->timestep + t, out);
    }
}

BLOCK(chroma_kind_approximator, "approximator", "distilled_guidance_layer", chroma_approximator_table,
      approximator_weights, chroma_forward_approximator, .update_rate = UPDATE_PER_TIMESTEP,
      .never_quantised = true);

static const struct flux_details chroma_details = {.context = &flux_kind_context,
                                                   .conditioning = &chroma_kind_approximator,
                                                   .double_block = &flux_kind_double,
                                                   .single_block = &flux_kind_single};

static bool chroma_probe(const struct tensor_index *index) {
    return flux_has_blocks(index) && index_find(index, "distilled_guidance_layer.in_proj.weight");
}

static enum status chroma_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"nerf_", "Chroma1-Radiance, which denoises pixels and has no VAE"},
        {0},
    };
    return component_refuse_similar(c, relatives, "Chroma1 (HD, Base, Flash)", e);
}

static enum status chroma_configure(struct component *c, const struct config *config, struct error *e) {
    const int32_t *d = c->dims;
    if (d[APPROXIMATOR_LAYERS] != LAYERS || d[SINUSOIDS] % 8)
        return error_set(e, UNSUPPORTED,
                         "unsupported Chroma variant" WHERE "%s, distilled_guidance_layer" FOUND
                         "%d layers, %d inputs" EXPECTED
                         "%d layers and a multiple of 8 inputs (Chroma1 HD, Base, Flash: 64)",
                         c->index.sources[0].path, d[APPROXIMATOR_LAYERS], d[SINUSOIDS], LAYERS);
    return flux_configure(c, config, e);
}

static const char *const chroma_architectures[] = {"flux", "chroma", NULL};
/* Sizes of the published Chroma1, 8.9 B parameters. */
static const struct dimension chroma_dimensions[] = {
    FLUX_DIMENSIONS(19, 38, 4096),
    {"approximator", 5120, 8, 65536, .place = APPROXIMATOR,
     OF_TENSOR(2, 0, "distilled_guidance_layer.in_proj.weight"), .key = "approximator_hidden_dim"},
    {"approximator_channels", 64, 8, 4096, .place = SINUSOIDS,
     OF_TENSOR(2, 1, "distilled_guidance_layer.in_proj.weight"), .key = "approximator_num_channels"},
    {"approximator_layers", LAYERS, LAYERS, LAYERS, .place = APPROXIMATOR_LAYERS,
     OF_BLOCKS("distilled_guidance_layer.layers."), .key = "approximator_layers"},
    FLUX_TENSOR_DIMENSIONS,
    FLUX_FEED_FORWARD,
};
static const struct setting chroma_settings[] = {FLUX_AXES};

const struct family family_chroma = {
    FLUX_FAMILY(chroma, .configure = chroma_configure, .derive = flux_derive),
    .name = "chroma",
    .details = &chroma_details,
    .files = {.architectures = chroma_architectures,
              .config_key = "_class_name",
              .config_value = "ChromaTransformer2DModel",
              .probe = chroma_probe,
              .refuse = chroma_refuse},
    .predicted = {{.kind = "approximator", .alone = true, .tokens = 344}},
};

/* clang-format off */
static const struct hf_source chroma_sources[] = {
    {"comfyanonymous/flux_text_encoders", "--t5xxl", "t5xxl_fp16.safetensors", 9790},
    {"comfyanonymous/flux_text_encoders", "--t5xxl", "t5xxl_fp8_e4m3fn.safetensors", 4890},
    {"city96/t5-v1_1-xxl-encoder-gguf", "--t5xxl", "t5-v1_1-xxl-encoder-Q8_0.gguf", 5060},
    {"lodestones/Chroma", "--vae", "ae.safetensors", 335},
    {"madebyollin/taef1", "--taesd", TAE, 0},
    {0},
};
static const struct hf_source chroma_files[] = {
    {"lodestones/Chroma1-HD", NULL, NULL, 0},
    {"lodestones/Chroma1-HD", "--diffusion-model", "Chroma1-HD.safetensors", 17800},
    {"silveroxides/Chroma1-HD-GGUF", "--diffusion-model", "Chroma1-HD-Q4_K_M.gguf", 5560},
    {0},
};
static const struct hf_source chroma_base_files[] = {
    {"lodestones/Chroma1-Base", NULL, NULL, 0},
    {"lodestones/Chroma1-Base", "--diffusion-model", "Chroma1-Base.safetensors", 17800},
    {0},
};
static const struct hf_source chroma_flash_files[] = {
    {"lodestones/Chroma1-Flash", NULL, NULL, 0},
    {"lodestones/Chroma1-Flash", "--diffusion-model", "Chroma1-HD-Flash.safetensors", 17800},
    {0},
};

/* Chroma1: diffusers 0.42, pipelines/chroma. T5 reads the raw prompt; padding is masked. Defaults are those of
 * __call__; schedules are those of the published scheduler_config.json: HD a fixed shift of 3, Base beta
 * sigmas without a shift, Flash no shift. Flash is distilled to few steps without guidance ("flash-heun-8-steps-
 * cfg-1" in the authors' file names); with Euler, its default here, users take 16 steps. The shapes of all three
 * are equal, so the names of the files tell them apart. */
#define CHROMA                                                                                               \
    .slot = {{.family = &family_t5, .flag = "--t5xxl", .folder = "text_encoder",                             \
              .prefixes = NAMES(T5XXL_PREFIXES),                                                             \
              TEXT_T5("", 512), .text.masks_padding = true, .text.padding_max = 1},                          \
             DENOISER(family_chroma), VAE_KL},                                                               \
    .text = {.condition = {{.slot = 0, .what = CONDITION_TOKENS}}, .n_conditions = 1},                       \
    .images.samples_posterior = true,                                                                        \
    .denoising = {.span = {{1, INFINITY}}, .guide = guidance_cfg, .shift_rule = FLOW_SHIFT_FIXED,            \
                  .shift_line = {.base_shift = 0.5, .max_shift = 1.15,                                       \
                                 .base_tokens = 256, .max_tokens = 4096},                                    \
                  .sampling = {.prediction = &prediction_flow, .schedule = &schedule_flow,                   \
                               .sampler = &sampler_euler, .grid = {.grid_f64 = true}}},                      \
    .selection.pipelines = {"ChromaPipeline", "ChromaImg2ImgPipeline"},                                      \
    .defaults = {.width = 1024, .height = 1024, .strength = 0.9}, .patch = 2,                                \
    .colours = &latent_colours_flux
/* clang-format on */

const struct recipe recipe_chroma = {
    CHROMA,
    .name = "chroma",
    .denoising.flow_shift = 3,
    .defaults.steps = 35,
    .defaults.cfg_scale = 5,
    .published = {.title = "Chroma1-HD", .reference = DIFFUSERS, .sources = {chroma_files, chroma_sources}},
};

const struct recipe recipe_chroma_base = {
    CHROMA,
    .name = "chroma_base",
    .selection.name_word = "base",
    .denoising.flow_shift = 1,
    .denoising.sampling.grid.sigma_spacing = SIGMAS_BETA,
    .defaults.steps = 35,
    .defaults.cfg_scale = 5,
    .published = {.title = "Chroma1-Base",
                  .parts_compared_in = &recipe_chroma,
                  .sources = {chroma_base_files, chroma_sources}},
};

const struct recipe recipe_chroma_flash = {
    CHROMA,
    .name = "chroma_flash",
    .selection.name_word = "flash",
    .denoising.flow_shift = 1,
    .defaults.steps = 16,
    .defaults.cfg_scale = 1,
    .published = {.title = "Chroma1-Flash",
                  .parts_compared_in = &recipe_chroma,
                  .sources = {chroma_flash_files, chroma_sources}},
};
