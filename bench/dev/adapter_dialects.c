/* Naming conventions of random test adapters, as used by sd-scripts (kohya), diffusers, peft, ComfyUI and
 * LyCORIS. */
#include "bench/dev/adapter_dialects.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct adapter_naming dialects[] = {
    {.name = "diffusers",
     .transformer = "transformer.",
     .unet = "unet.",
     .texts = TEXTS_BY_FOLDER,
     .alphas = ALPHAS_IN_METADATA,
     .down = ".lora_A.weight",
     .up = ".lora_B.weight"},
    {.name = "diffusers_old",
     .transformer = "transformer.",
     .unet = "unet.",
     .texts = TEXTS_BY_FOLDER,
     .down = ".lora.down.weight",
     .up = ".lora.up.weight"},
    {.name = "peft",
     .transformer = "base_model.model.",
     .unet = "base_model.model.",
     .down = ".lora_A.default.weight",
     .up = ".lora_B.default.weight"},
    {.name = "kohya",
     .transformer = "lora_unet_",
     .unet = "lora_unet_",
     .authors = true,
     .flattened = true,
     .texts = TEXTS_BY_NUMBER,
     .alphas = ALPHAS_OF_MODULES,
     .down = ".lora_down.weight",
     .up = ".lora_up.weight"},
    {.name = "kohya_diffusers",
     .transformer = "lora_transformer_",
     .unet = "lora_unet_",
     .flattened = true,
     .texts = TEXTS_BY_NUMBER,
     .alphas = ALPHAS_OF_MODULES,
     .down = ".lora_down.weight",
     .up = ".lora_up.weight"},
    {.name = "comfy",
     .transformer = "diffusion_model.",
     .unet = "diffusion_model.",
     .authors = true,
     .texts = TEXTS_BY_PREFIX,
     .alphas = ALPHAS_OF_MODULES,
     .down = ".lora_A.weight",
     .up = ".lora_B.weight"},
    {.name = "comfy_vectors",
     .transformer = "diffusion_model.",
     .unet = "diffusion_model.",
     .authors = true,
     .vectors = true,
     .texts = TEXTS_BY_PREFIX,
     .alphas = ALPHAS_OF_MODULES,
     .down = ".lora_down.weight",
     .up = ".lora_up.weight"},
    {.name = "bfl",
     .transformer = "",
     .unet = "",
     .authors = true,
     .down = ".lora_A.weight",
     .up = ".lora_B.weight"},
    {.name = "loha",
     .transformer = "lycoris_",
     .unet = "lycoris_",
     .flattened = true,
     .form = ADAPTER_LOHA,
     .alphas = ALPHAS_OF_MODULES},
    {.name = "lokr",
     .transformer = "lora_unet_",
     .unet = "lora_unet_",
     .authors = true,
     .flattened = true,
     .form = ADAPTER_LOKR,
     .texts = TEXTS_BY_NUMBER,
     .alphas = ALPHAS_OF_MODULES},
};
enum { N_DIALECTS = COUNT_OF(dialects) };

const struct adapter_naming *adapter_naming_find(const char *name, struct error *e) {
    char names[200] = "";
    size_t n = 0;
    for (int i = 0; i < N_DIALECTS; i++)
        if (!strcmp(dialects[i].name, name)) return &dialects[i];
    for (int i = 0; i < N_DIALECTS && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", dialects[i].name);
    error_set(e, USAGE, "unknown adapter dialect" FOUND "'%s'" EXPECTED "%s", name, names);
    return NULL;
}

/* Number of a text encoder in sd-scripts' module names: 1 for CLIP-L, 2 for CLIP-G, 3 for T5. */
static int text_number(const struct slot *slot) {
    if (!strcmp(slot->flag, "--clip_l")) return 1;
    return strcmp(slot->flag, "--clip_g") ? 3 : 2;
}

static bool has_other_texts(const struct recipe *recipe, int slot) {
    for (int i = 0; recipe->slot[i].family; i++)
        if (i != slot && recipe->slot[i].family->kind == FAMILY_TEXT && !recipe->slot[i].reads) return true;
    return false;
}

/* Writes the prefix of Anima's text adapter. Trainers that use the authors' names treat the adapter as a part
 * of the transformer. Source: kohya-ss/sd-scripts, networks/lora_anima.py ("lora_unet_llm_adapter_"). */
static bool text_adapter_prefix(const struct adapter_naming *dialect, const struct slot *slot, char *prefix) {
    const char *part = slot->flag + strspn(slot->flag, "-"), *end = dialect->flattened ? "_" : ".";
    if (dialect->texts == TEXTS_BY_FOLDER) return snprintf(prefix, BLOCK_NAME_MAX, "%s.", slot->folder) > 0;
    return dialect->texts != TEXTS_NONE && dialect->authors &&
           snprintf(prefix, BLOCK_NAME_MAX, "%s%s%s", dialect->transformer, part, end) > 0;
}

static bool text_prefix(const struct adapter_naming *dialect, const struct recipe *recipe, int slot,
                        char *prefix) {
    static const char folder[] = "text_encoders.";
    const struct slot *s = &recipe->slot[slot];
    const char *const *whole = s->prefixes;
    if (s->reads) return text_adapter_prefix(dialect, s, prefix);
    switch (dialect->texts) {
    case TEXTS_BY_FOLDER:
        return snprintf(prefix, BLOCK_NAME_MAX, "%s.", s->folder) > 0;
    case TEXTS_BY_NUMBER:
        if (!has_other_texts(recipe, slot)) return snprintf(prefix, BLOCK_NAME_MAX, "lora_te_") > 0;
        return snprintf(prefix, BLOCK_NAME_MAX, "lora_te%d_", text_number(s)) > 0;
    case TEXTS_BY_PREFIX:
        while (*whole && strncmp(*whole, folder, sizeof folder - 1) != 0) whole++;
        return *whole && snprintf(prefix, BLOCK_NAME_MAX, "%s", *whole) > 0;
    default:
        return false;
    }
}

bool adapter_naming_prefix(const struct adapter_naming *dialect, const struct recipe *recipe, int slot,
                           char *prefix) {
    const struct family *family = recipe->slot[slot].family;
    if (family->kind == FAMILY_TEXT) return text_prefix(dialect, recipe, slot, prefix);
    bool is_unet = !strcmp(recipe->slot[slot].folder, "unet");
    const char *of_denoiser = is_unet ? dialect->unet : dialect->transformer;
    return snprintf(prefix, BLOCK_NAME_MAX, "%s", of_denoiser) >= 0;
}

static const double strength = 0.25; /* standard deviation of an adapter's change, relative to the weight's */

static int64_t columns_of(int n_dims, const int32_t *dim) {
    int64_t columns = 1;
    for (int i = 1; i < n_dims; i++) columns *= dim[i];
    return columns;
}

int32_t adapter_rank_of(int n_dims, const int32_t *dim, int rank) {
    int64_t columns = columns_of(n_dims, dim);
    int32_t least = columns < dim[0] ? (int32_t)columns : dim[0];
    return rank < least ? rank : least;
}

static struct adapter_factor factor(const char *end, int32_t rows, int64_t columns, double init_scale) {
    return (struct adapter_factor){
        .end = end, .rank = 2, .dim = {rows, (int32_t)columns}, .init_scale = init_scale};
}

/* LoRA factors. For a convolution, `down` has the kernel's height and width, and both factors (`down` and
 * `up`) have four dimensions. */
static int make_lora(const struct adapter_naming *dialect, int n_dims, const int32_t *dim, int32_t rank,
                     struct adapter_factor *factors) {
    struct adapter_factor down = {.end = dialect->down, .rank = n_dims, .dim = {rank}, .init_scale = 1};
    struct adapter_factor up = {
        .end = dialect->up, .rank = n_dims, .dim = {dim[0], rank}, .init_scale = strength};
    for (int i = 1; i < n_dims; i++) down.dim[i] = dim[i];
    for (int i = 2; i < n_dims; i++) up.dim[i] = 1;
    factors[0] = down;
    factors[1] = up;
    return 2;
}

/* LoHa factors: an elementwise product of two low-rank products; the second product has values about 1. The
 * change's rank is rank^2, at most half of the matrix's smaller side. */
static int make_loha(int64_t columns, int32_t rows, int32_t rank, struct adapter_factor *factors) {
    int64_t least = columns < rows ? columns : rows;
    while (rank > 1 && 2 * (int64_t)rank * rank > least) rank--;
    factors[0] = factor(".hada_w1_a", rows, rank, strength);
    factors[1] = factor(".hada_w1_b", rank, columns, 1);
    factors[2] = factor(".hada_w2_a", rows, rank, 1);
    factors[3] = factor(".hada_w2_b", rank, columns, sqrt((double)columns));
    return 4;
}

/* Number of rows or columns of LoKr's outer matrix: the largest of 4, 2 and 1 that divides the weight's
 * number and is smaller. */
enum { OUTER = 4 };
static int32_t outer_side(int32_t n) {
    int32_t side = OUTER;
    while (side > 1 && (n % side || n == side)) side /= 2;
    return side;
}

/* LoKr factors. The outer matrix has values of about 1. The inner matrix has at most half of its possible
 * rank. */
static int make_lokr(int n_dims, const int32_t *dim, int rank, struct adapter_factor *factors) {
    int32_t rows = outer_side(dim[0]), columns = outer_side(dim[1]);
    int32_t inner[WEIGHT_FILE_RANK_MAX] = {dim[0] / rows, dim[1] / columns};
    for (int i = 2; i < n_dims; i++) inner[i] = dim[i];
    int32_t most = (adapter_rank_of(n_dims, inner, INT32_MAX) + 1) / 2, r = rank < most ? rank : most;
    factors[0] = factor(".lokr_w1", rows, columns, sqrt(columns));
    factors[1] = factor(".lokr_w2_a", inner[0], r, strength);
    factors[2] = factor(".lokr_w2_b", r, columns_of(n_dims, inner), 1 / sqrt(columns));
    return 3;
}

int adapter_naming_factors(const struct adapter_naming *dialect, int n_dims, const int32_t *dim, int rank,
                           double alpha, struct adapter_factor factors[ADAPTER_FACTORS_MAX]) {
    int32_t r = adapter_rank_of(n_dims, dim, rank);
    int n;
    if (dialect->form == ADAPTER_LOHA)
        n = make_loha(columns_of(n_dims, dim), dim[0], r, factors);
    else if (dialect->form == ADAPTER_LOKR)
        n = make_lokr(n_dims, dim, rank, factors);
    else
        n = make_lora(dialect, n_dims, dim, r, factors);
    if (dialect->form != ADAPTER_LORA)
        r = dialect->form == ADAPTER_LOHA ? factors[1].dim[0] : factors[2].dim[0];
    if (alpha > 0) factors[n++] = (struct adapter_factor){.end = ".alpha", .alpha = (float)(alpha * r)};
    return n;
}
