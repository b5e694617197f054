/* Tiny decoders in the autoencoder's place (--taesd): found by their flag alone, under every name that their
 * files have; pictures are the reference's; a model may then be without its autoencoder; what is no tiny
 * decoder, or another model's, is refused in words. */
#include "test/lib/shown.h"

#include "engine/sluice_bench.h"

#define MODEL  "test/golden/zimage_a/model"
#define TINIES "test/golden/taesd"

/* ---- pictures ---- */

/* Those of one folder's latents, the tiny decoder alone and beside a model. */
static void test_reference(const char *name) {
    char path[PILE_PATH], number[24];
    snprintf(path, sizeof path, TINIES "/%s/reference.safetensors", name);
    struct pile *p = pile_of(path);
    snprintf(path, sizeof path, TINIES "/%s", name);
    for (int i = 0; i < 2; i++) {
        snprintf(number, sizeof number, "latent%d", i);
        struct item *t = pile_find(p, number);
        const int32_t dim[4] = {1, t->dim[0], t->dim[1], t->dim[2]};
        const char *latent = shown_write_latent(number, 4, dim, t->data);
        snprintf(number, sizeof number, "picture%d", i);
        const struct item *truth = pile_find(p, number);
        const float *colours = (const float *)(const void *)truth->data;
        for (int beside = 0; beside < 1 + (dim[1] == 16); beside++) {
            struct shown shown =
                shown_decode((options){.taesd = path, .model = beside ? MODEL : NULL}, latent);
            if (shown.rgb) shown_expect(&shown, truth->dim[0], truth->dim[1], colours, path);
            check(!strcmp(shown.decoder, "taesd"), "%s: decoded by %s", path, shown.decoder);
            free(shown.rgb);
        }
    }
    pile_free(p);
}

/* ---- names ---- */

/* Its authors count the limit on the latent as a layer. */
static struct pile *named_originally(const struct pile *of, const char *prefix) {
    static const char before[] = "decoder.layers.";
    struct pile *p = calloc(1, sizeof *p);
    char name[PILE_NAME];
    if (!p) abort();
    for (int i = 0; i < of->n; i++) {
        const struct item *t = &of->item[i];
        char *rest;
        long number = strtol(t->name + strlen(before), &rest, 10);
        snprintf(name, sizeof name, "%ld%s", number + 1, rest);
        pile_add(p, prefix, name, t->type, t->rank, t->dim, t->data, t->bytes);
    }
    return p;
}

static void add_number(struct pile *p, const char *name, float value) {
    pile_add(p, "", name, "F32", 0, NULL, &value, sizeof value);
}

/* What a file may hold besides. */
static void add_encoder(struct pile *p, const char *prefix) {
    static const float values[4];
    pile_add(p, prefix, "0.weight", "F32", 2, (int32_t[]){2, 2}, values, sizeof values);
}

static void is_read(struct pile *p, const char *config, const char *what) {
    struct rig rig;
    const char *path = under("named.safetensors");
    write_pile(p, path, config);
    gives_the_same((options){.model = MODEL, .taesd = path}, what);
    if (open_rig(&rig, (options){.model = MODEL, .taesd = path}, what)) {
        const struct component *tiny = model_component(rig.model, FAMILY_TINY_DECODER);
        check(tiny->family && !tiny->n_unknown, "%s: tensors are left over", what);
    }
    rig_close(&rig);
    pile_free(p);
}

static void test_names(const struct pile *tiny) {
    struct pile *p = pile_copy(tiny, "");
    add_encoder(p, "encoder.layers.");
    is_read(p, tiny->config, "diffusers' names");
    is_read(named_originally(tiny, ""), tiny->config, "their authors' names");
    p = named_originally(tiny, "decoder.");
    add_encoder(p, "encoder.");
    is_read(p, tiny->config, "both halves");
    p = named_originally(tiny, "taesd_decoder.");
    add_encoder(p, "taesd_encoder.");
    add_number(p, "vae_scale", 0.3611F);
    add_number(p, "vae_shift", 0.1159F);
    is_read(p, tiny->config, "as ComfyUI keeps it");
    is_read(pile_copy(tiny, "tae."), tiny->config, "behind a prefix");
    /* Beside another part: the flag says which is meant. */
    p = named_originally(tiny, "taesd_decoder.");
    struct pile *vae = pile_read(MODEL, "vae");
    pile_append(p, vae, "vae.");
    pile_free(vae);
    is_read(p, tiny->config, "beside an autoencoder");
}

/* ---- where it is found ---- */

static const char *tiny_path(void) {
    return under("tiny.safetensors");
}

static void link_model(const char *folder) {
    char command[4 * PILE_PATH];
    snprintf(command, sizeof command, "mkdir '%s' && cp -rL %s/. '%s'", folder, MODEL, folder);
    check(!system(command), "%s", command);
}

/* Of a model that has one lying about, and is not told to use it. */
static void test_unasked(void) {
    struct result tiny = wanted;
    struct rig rig;
    const char *folder = under("with");
    char place[PILE_PATH];
    link_model(folder);
    if (open_rig(&rig, (options){.model = MODEL}, "without")) wanted = run(&rig, &wanted_request);
    rig_close(&rig);
    check(strcmp(wanted.image[0], tiny.image[0]) != 0, "the tiny decoder draws what the large one does");
    check(!strcmp(wanted.latent[0], tiny.latent[0]), "the tiny decoder changes the latent");
    for (int i = 0; i < 2; i++) { /* ComfyUI has a folder of them */
        snprintf(place, sizeof place, "%s/taesd_%d.safetensors", folder, i);
        copy_file(tiny_path(), place);
    }
    gives_the_same((options){.model = folder}, "tiny decoders beside a model");
    gives_the_same((options){.model = MODEL, .taesd = "none"}, "none");
    result_free(&wanted);
    wanted = tiny;
    gives_the_same((options){.model = folder, .taesd = place}, "one of them");
}

/* Of a folder the autoencoder decodes, also where what is looked at first is a tiny decoder. */
static void test_found_first(void) {
    char place[PILE_PATH];
    snprintf(place, sizeof place, "mkdir '%s'", under("flat"));
    check(!system(place), "%s", place);
    snprintf(place, sizeof place, "%s/a.safetensors", under("flat"));
    copy_file(tiny_path(), place);
    snprintf(place, sizeof place, "%s/b.safetensors", under("flat"));
    copy_file(MODEL "/vae/diffusion_pytorch_model.safetensors", place);
    snprintf(place, sizeof place, "%s/config.json", under("flat"));
    copy_file(MODEL "/vae/config.json", place);
    struct pile *reference = pile_of(TINIES "/authors/reference.safetensors");
    const struct item *t = pile_find(reference, "latent0");
    const char *latent =
        shown_write_latent("first", 4, (int32_t[]){1, t->dim[0], t->dim[1], t->dim[2]}, t->data);
    pile_free(reference);
    struct shown shown = shown_decode((options){.model = under("flat")}, latent);
    check(!strcmp(shown.decoder, "none"), "decoded by %s", shown.decoder);
    free(shown.rgb);
}

/* A folder, or parts, without the autoencoder. */
static void test_alone(void) {
    static const unsigned char grey[48 * 32 * 3];
    struct rig rig;
    struct sluice_picture picture = {.struct_size = sizeof picture, .width = 48, .height = 32, .rgb = grey};
    struct sluice_request request = wanted_request;
    char command[PILE_PATH];
    link_model(under("without"));
    snprintf(command, sizeof command, "rm -r '%s/vae'", under("without"));
    check(!system(command), "%s", command);
    options from = {.model = under("without"), .taesd = tiny_path()};
    gives_the_same(from, "without the autoencoder");
    is_refused((options){.model = from.model}, MISSING, "with neither", WORDS("no 'vae'", "--vae"));
    request.init_image = &picture;
    request.strength = 0.5;
    if (open_rig(&rig, from, "a picture to start from")) {
        struct result r = run(&rig, &request);
        check(r.code == SLUICE_MISSING && strstr(r.error.what, "no autoencoder") &&
                  strstr(r.error.expected, "--vae"),
              "a picture to start from: %s", r.error.what);
        result_free(&r);
    }
    rig_close(&rig);
    json_t *all = inspect(from);
    check(all && !count(all, "missing") && !count(all, "unknown"), "something is missing beside it");
    json_decref(all);
    all = inspect((options){.model = tiny_path()});
    check(all && count(all, "components") == 1 && !count(all, "unknown"), "it is not found by itself");
    json_decref(all);
    is_refused((options){.model = tiny_path(), .decodes_only = true}, MISSING, "without its flag",
               WORDS("no 'vae'", "tiny decoder", "--taesd"));
}

/* ---- one that only its name tells from another's ---- */

static void is_named(const char *name, const char *told) {
    struct rig rig;
    char path[PILE_PATH];
    snprintf(path, sizeof path, "mkdir -p '%s/%s'", under("names"), name);
    check(!system(path), "%s", path);
    snprintf(path, sizeof path, "%s/%s/x.safetensors", under("names"), name);
    copy_file(tiny_path(), path);
    if (open_rig(&rig, (options){.model = MODEL, .taesd = path}, name))
        check(told ? strstr(said, told) && strstr(said, "colours may be wrong")
                   : !strstr(said, "colours may be wrong"),
              "%s: %s", name, said);
    rig_close(&rig);
}

static void test_other_names(void) {
    is_named("taef1", NULL);
    is_named("tiny", NULL);
    is_named("taesd33", NULL);
    is_named("taesd3", "has \"taesd3\", which is for another model than zimage");
    is_named("models--madebyollin--TAESDXL", "says \"taesdxl\"");
    is_named("taesd3_and_taef1", NULL);
}

/* ---- what is none ---- */

static const char *without_layer(const struct pile *tiny, const char *layer, const char *added) {
    struct pile *p = pile_copy(tiny, "");
    const char *path = under("near.safetensors");
    if (layer) pile_drop(p, layer);
    if (added) add_encoder(p, added);
    write_pile(p, path, tiny->config);
    pile_free(p);
    return path;
}

static void test_misfits(const struct pile *tiny) {
    static const char vae[] = MODEL "/vae";
    is_refused((options){.model = MODEL, .taesd = vae}, UNSUPPORTED, "an autoencoder",
               WORDS("holds another component", "autoencoder (vae_kl)", "tiny decoder (", "--taesd"));
    is_refused((options){.model = MODEL, .vae = tiny_path()}, UNSUPPORTED, "in the autoencoder's place",
               WORDS("holds another component", "tiny decoder (taesd)", "autoencoder (", "--vae"));
    is_refused((options){.model = MODEL, .taesd = TINIES "/f32"}, SHAPE, "of another model",
               WORDS("latent channels", "4 in the tiny decoder", "16 as in the autoencoder"));
    is_refused((options){.model = under("without"), .taesd = TINIES "/f32"}, SHAPE, "of another model",
               WORDS("latent channels", "4 in the tiny decoder", "16 as in the transformer"));
    is_refused((options){.model = MODEL, .taesd = TINIES "/f32", .decodes_only = true}, SHAPE,
               "of another model, to decode", WORDS("latent channels", "4 in the tiny decoder"));
    is_refused((options){.model = MODEL, .taesd = "/nowhere"}, MISSING, "nothing", WORDS("/nowhere"));
    is_refused((options){.model = MODEL, .taesd = without_layer(tiny, NULL, "decoder.layers.2.pool.")},
               UNSUPPORTED, "of Flux.2", WORDS("TAEF2"));
    is_refused((options){.model = MODEL, .taesd = without_layer(tiny, NULL, "decoder.layers.19.")},
               UNSUPPORTED, "longer", WORDS("more layers"));
    is_refused((options){.model = MODEL, .taesd = without_layer(tiny, "decoder.layers.6.", NULL)}, MISSING,
               "shorter", WORDS("decoder.layers.6.weight", "near.safetensors"));
}

/* The n-th allocation fails while a model opens; and a weight that is no number. */
static void test_failures(const struct pile *tiny) {
    struct rig rig;
    opens_without_memory((options){.model = MODEL, .taesd = tiny_path()});
    struct pile *p = pile_copy(tiny, "");
    const char *path = under("nan.safetensors");
    memset(p->item[0].data, 0xff, 2);
    write_pile(p, path, tiny->config);
    pile_free(p);
    if (open_rig(&rig, (options){.model = MODEL, .taesd = path}, "NaN")) {
        struct result r = run(&rig, &wanted_request);
        check(r.code == SLUICE_NONFINITE && r.error.exit_code == 7 && !r.n_images && r.n_latents == 1,
              "NaN: %s", r.code ? r.error.what : "drawn");
        result_free(&r);
    }
    rig_close(&rig);
}

/* ---- made up ---- */

static void test_made(void) {
    struct sluice_error e;
    const char *folder = under("made");
    check(!sluice_checkpoint_write("taesd", folder, "taesd_channels=8", 5, NULL, NULL, &e), "made: %s",
          e.what);
    struct rig rig;
    if (open_rig(&rig, (options){.model = MODEL, .taesd = folder}, "made")) {
        struct result r = run(&rig, &wanted_request);
        check(r.code == SLUICE_OK && strcmp(r.image[0], wanted.image[0]) != 0, "made: %s", r.error.what);
        check(strstr(said, "decoded with the tiny decoder (taesd): another picture") != NULL,
              "it is not said: %s", said);
        result_free(&r);
    }
    rig_close(&rig);
    check(sluice_checkpoint_write("taesd", under("other"), "vae0=8", 5, NULL, NULL, &e) == SLUICE_USAGE &&
              strstr(e.where, "taesd_channels") && !strstr(e.where, "layers"),
          "another part's dimension: %s", e.where);
    check(sluice_checkpoint_write("zimage", under("other"), "taesd_channels=8", 5, NULL, NULL, &e) ==
              SLUICE_USAGE,
          "a dimension of what is no part of a model");
}

int main(void) {
    struct rig rig;
    temporary_make();
    struct pile *tiny = pile_read(TINIES, "bf16");
    write_pile(tiny, tiny_path(), tiny->config);
    test_reference("f32");
    test_reference("bf16");
    test_reference("authors");
    wanted_request = request_fox(48, 32, 2, 1, 1);
    if (open_rig(&rig, (options){.model = MODEL, .taesd = TINIES "/bf16"}, "a folder"))
        wanted = run(&rig, &wanted_request);
    rig_close(&rig);
    check(wanted.n_images == 1, "nothing is drawn: %s", wanted.error.what);
    test_names(tiny);
    test_unasked();
    test_found_first();
    test_alone();
    test_other_names();
    test_misfits(tiny);
    test_failures(tiny);
    test_made();
    result_free(&wanted);
    pile_free(tiny);
    return finish();
}
