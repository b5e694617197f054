/* ConvRot int8 weights (rotated in groups of 16) in every family: a converted model is bit-identical to the
 * model with the dequantised f32 weights, in products, embedding lookups, modulation and attention.
 * test_dequantise.c checks the values; test_mixed_types.c compares with a reference. */
#include "engine/sluice_bench.h"
#include "test/lib/random_models.h"
#include "test/lib/rig.h"

enum { PATH = 192 };

/* Paths of a model's component files in one weight type, with the command-line flag of each file. */
struct parts {
    struct sluice_part part[SLOTS_MAX];
    char path[SLOTS_MAX][PATH];
    int n;
};

static bool is_converted(const struct slot *slot) {
    enum family_kind kind = slot->family->kind;
    if (slot->extra) return false; /* no part of the checkpoint: Flux.1 Redux */
    return kind == FAMILY_TEXT || kind == FAMILY_DENOISER || kind == FAMILY_VISION;
}

/* Converts each component file of `from` (NULL: of the model folder) to the given weight type. */
static void convert_parts(const struct recipe *recipe, const char *folder, const struct parts *from,
                          const char *type, struct parts *to) {
    for (int i = 0; recipe->slot[i].family; i++) {
        const struct slot *slot = &recipe->slot[i];
        if (!is_converted(slot)) continue;
        const char *input = format_text("%s/%s", folder, slot->folder);
        snprintf(to->path[to->n], PATH, "%s/%s%d.safetensors", temporary, type, i);
        const char *inputs[] = {from ? from->path[to->n] : input};
        struct sluice_convert_options options = {.struct_size = sizeof options,
                                                 .inputs = inputs,
                                                 .n_inputs = 1,
                                                 .part = slot->family->name,
                                                 .output = to->path[to->n],
                                                 .type = type};
        struct sluice_error e;
        check(!sluice_convert(&options, NULL, &e), "converting %s of %s to %s: %s (%s)", slot->flag, folder,
              type, e.what, e.where);
        to->part[to->n] = (struct sluice_part){slot->flag, to->path[to->n]};
        to->n++;
    }
}

static int count_rotated(const struct component *c) {
    int n = 0;
    for (int b = 0; b < c->n_blocks; b++)
        for (int i = 0; i < c->blocks[b].n_tensors; i++)
            n += dtype_is_rotated(c->blocks[b].tensors[i].shape.dtype);
    return n;
}

/* Families that must be covered: at least one model of each family must run with a rotated weight matrix. */
static const char *const all[] = {"zimage", "qwen3",      "flux",     "clip",           "t5",
                                  "unet",   "qwen_image", "qwen25vl", "qwen25vl_vision"};
enum { N_ALL = sizeof all / sizeof *all };
static int n_rotated[N_ALL];

static void count_rotated_of_family(const struct component *c) {
    for (int i = 0; c->family && i < N_ALL; i++)
        if (!strcmp(c->family->name, all[i])) n_rotated[i] += count_rotated(c);
}

/* Runs two denoising steps with the given component files. */
static struct result run_with_parts(const char *folder, const struct parts *parts) {
    const struct sluice_picture fox = noise_picture(0, 48, 40), *const references[] = {&fox};
    struct rig rig;
    if (!rig_open_with(
            &rig, (struct sluice_model_options){.model = folder, .parts = parts->part, .n_parts = parts->n},
            (struct sluice_session_options){.device = "cpu", .threads = 2}, 1))
        return (struct result){0};
    const struct recipe *recipe = rig.model->recipe;
    for (int i = 0; recipe->slot[i].family; i++) count_rotated_of_family(&rig.model->component[i]);
    int side = rig.model->size_step;
    struct sluice_request request = request_fox(3 * side, 2 * side, 2, 1, 1);
    if (recipe->images.references_min) request.references = references, request.n_references = 1;
    request.no_decode = true;
    struct result r = run_ok(&rig, &request, folder);
    rig_close(&rig);
    return r;
}

static void test_rotated_equals_dequantised(const char *folder) {
    static const struct parts none;
    struct parts rotated = {.n = 0}, dequantised = {.n = 0};
    struct rig rig;
    if (!rig_open(&rig, folder, 1, 1)) return;
    const struct recipe *recipe = rig.model->recipe;
    rig_close(&rig);
    convert_parts(recipe, folder, NULL, "i8_rot16", &rotated);
    convert_parts(recipe, folder, &rotated, "f32", &dequantised);
    struct result as_files = run_with_parts(folder, &none), of_int8 = run_with_parts(folder, &rotated),
                  of_f32 = run_with_parts(folder, &dequantised);
    same(&of_f32, &of_int8, folder);
    check(strcmp(as_files.latent[0], of_int8.latent[0]) != 0, "%s: rotated int8 does not change the latent",
          folder);
}

/* A Flux model whose CLIP and T5 rows are multiples of the rotation group of 16; no fixture has such rows. */
static const char *flux_checkpoint(void) {
    return random_model(
        "flux", "flux",
        "heads=2,axis0=16,axis1=24,axis2=24,double_layers=1,single_layers=1,hidden=64,clip_heads=2,clip_ff="
        "96,"
        "clip_layers=1,clip_vocabulary=600,pooled=64,clip_projection=64,t5_heads=2,t5_head_dim=32,t5_ff=96,"
        "t5_layers=1,t5_vocabulary=600,vae0=32,vae1=32,vae2=16,vae3=16,vae_groups=8,latent_channels=4",
        11);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    test_rotated_equals_dequantised("test/golden/zimage_a/model");
    test_rotated_equals_dequantised("test/golden/sd1/model");
    test_rotated_equals_dequantised("test/golden/qwen_image/model");
    test_rotated_equals_dequantised("test/golden/qwen_edit_plus/model");
    test_rotated_equals_dequantised(flux_checkpoint());
    for (int i = 0; i < N_ALL; i++) check(n_rotated[i] > 0, "no run used a rotated matrix of %s", all[i]);
    return finish();
}
