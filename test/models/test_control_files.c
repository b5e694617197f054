/* Files of control networks: prefixes, conversion, inspection, and the errors for other files. Uses
 * the synthetic networks (test/lib/synthetic_control.c). */
#include "loaders/loaders.h"
#include "test/lib/gates.h"
#include "test/lib/random_models.h"
#include "test/lib/residency.h"

static struct sluice_picture image;
static const char *model, *network;

/* Runs a request with one control image; networks: paths of --control-net. */
static struct result run_nets(const char *const *networks, int n, const char *type) {
    struct sluice_part parts[SLUICE_CONTROLS_MAX + 1];
    struct sluice_control control = {
        .struct_size = sizeof control, .image = &image, .strength = 1, .end = 1, .mode = -1};
    struct sluice_request r = gate_synthetic.request;
    struct rig rig = {0};
    struct result result = {.code = -1};
    struct error e = {0};
    for (int i = 0; i < n; i++) parts[i] = (struct sluice_part){"--control-net", networks[i]};
    struct sluice_model_options from = {
        .struct_size = sizeof from, .model = model, .parts = parts, .n_parts = n};
    r.batch = r.frames = 1;
    r.steps = 2;
    r.no_decode = true;
    r.controls = &control;
    r.n_controls = 1;
    r.type = type;
    fault_sys_init(&rig.fault_sys, 5);
    if (model_open(&rig.fault_sys.sys, &from, &rig.model, &e) != OK) {
        char line[1024];
        snprintf(result.error.what, sizeof result.error.what, "%s", error_line(&e, line, sizeof line));
        result.code = (int)e.code;
    } else if (rig_open_session(&rig, (struct sluice_session_options){.threads = 1})) {
        result = run(&rig, &r);
    }
    rig_close(&rig);
    return result;
}

static struct result run_net(const char *path, const char *type) {
    return run_nets(&path, 1, type);
}

/* Writes the tensors of a network with a prefix of their names. */
static const char *write_prefixed(const char *prefix) {
    enum { TENSORS_MOST = 64 };
    static char path[160];
    struct named_tensor tensors[TENSORS_MOST];
    char names[TENSORS_MOST][96];
    struct sys sys;
    struct error e = {0};
    struct tensor_index index;
    sys_init_machine(&sys);
    snprintf(path, sizeof path, "%s/prefixed.safetensors", temporary);
    check(component_open(&sys, network, &index, &e) == OK && index.n_entries <= TENSORS_MOST, "%s", e.what);
    for (int i = 0; i < index.n_entries; i++) {
        const struct index_entry *entry = &index.entries[i];
        snprintf(names[i], sizeof names[i], "%s%s", prefix, entry->name);
        tensors[i] = (struct named_tensor){
            names[i], tensor_make(malloc(entry->bytes), entry->dtype, entry->rank, entry->dim)};
        source_read(&index.sources[entry->source], tensors[i].tensor.data, entry->bytes, entry->offset, &e);
    }
    check(safetensors_write(&sys, path, tensors, index.n_entries, &e) == OK, "%s", e.what);
    for (int i = 0; i < index.n_entries; i++) free(tensors[i].tensor.data);
    index_destroy(&index);
    return path;
}

/* Converts the network; returns the path of the file. */
static const char *convert(const char *type, const char *ending) {
    static char path[4][160];
    static int n;
    struct sluice_error error;
    char *to = path[n++ % 4], *json = NULL;
    snprintf(to, sizeof path[0], "%s/converted_%d.%s", temporary, n, ending);
    struct sluice_convert_options options = {
        .struct_size = sizeof options, .inputs = &network, .n_inputs = 1, .output = to, .type = type};
    check(!sluice_convert(&options, &json, &error), "convert to %s: %s (%s) %s", type, error.what,
          error.where, error.found);
    sluice_free(json);
    return to;
}

static void test_files_give_equal_bits(void) {
    struct result want = run_net(network, NULL);
    check(want.code == OK && want.n_latents == 1, "%s", want.error.what);
    struct result r = run_net(write_prefixed("control_model."), NULL);
    same(&want, &r, "with a prefix");
    r = run_net(convert(NULL, "safetensors"), NULL);
    same(&want, &r, "converted to safetensors");
    r = run_net(convert("f32", "gguf"), NULL);
    same(&want, &r, "converted to GGUF");
    /* The same types in the network's file and by --type, which also converts the model. */
    struct result typed = run_net(network, "q8_0");
    const char *file = convert("q8_0", "gguf");
    r = run_net(file, "q8_0");
    same(&typed, &r, "converted to q8_0");
    r = run_net(file, NULL);
    check(r.code == OK && strcmp(r.latent[0], want.latent[0]) && strcmp(r.latent[0], typed.latent[0]),
          "a network in q8_0 changes nothing: %s", r.error.what);
}

/* beside: inspects the network as two --control-net parts of the model; else alone. */
static json_t *inspect(const char *path, bool beside) {
    struct sluice_part parts[] = {{"--control-net", path}, {"--control-net", path}};
    struct sluice_model_options from = {.struct_size = sizeof from,
                                        .model = beside ? model : path,
                                        .parts = parts,
                                        .n_parts = beside ? 2 : 0};
    struct sluice_error e;
    char *text = NULL;
    check(!sluice_inspect(&from, false, &text, &e), "inspect: %s", e.what);
    json_t *json = text ? json_loads(text, 0, NULL) : NULL;
    sluice_free(text);
    return json;
}

static void test_inspect(void) {
    for (int beside = 0; beside < 2; beside++) {
        json_t *json = inspect(network, beside), *components = json_object_get(json, "components");
        size_t n = json_array_size(components);
        check(json_is_true(json_object_get(json, "complete")) &&
                  !json_array_size(json_object_get(json, "unknown")),
              "inspect %d: incomplete", beside);
        if (!check(beside ? n > 3 : n == 1, "inspect %d: %zu components", beside, n)) continue;
        json_t *last = json_array_get(components, n - 1), *control = json_object_get(last, "control");
        check(!strcmp(word(last, "name"), beside ? "controlnet_2" : "controlnet") &&
                  !strcmp(word(last, "family"), "synthetic_control") &&
                  !strcmp(word(control, "denoiser"), "synthetic_denoiser") &&
                  !strcmp(word(control, "input"), "pixels") && number(control, "blocks") == 8,
              "inspect %d: wrong network", beside);
        json_decref(json);
    }
}

/* Writes a file with one tensor. */
static const char *write_tensor(const char *name) {
    static char path[160];
    struct sys sys;
    struct error e = {0};
    float value[4] = {0};
    struct named_tensor one = {name, tensor_make(value, DTYPE_F32, 1, (int32_t[]){4})};
    sys_init_machine(&sys);
    snprintf(path, sizeof path, "%s/one.safetensors", temporary);
    check(safetensors_write(&sys, path, &one, 1, &e) == OK, "%s", e.what);
    return path;
}

static void expect_refused(const char *const *networks, int n, enum status code, const char *words) {
    struct result r = run_nets(networks, n, NULL);
    check(r.code == (int)code && strstr(r.error.what, words), "%s: code %d, %s", words, r.code, r.error.what);
}

static void test_other_files_are_named(void) {
    static const struct {
        const char *tensor, *words;
    } files[] = {{"lora_controlnet", "found a Control-LoRA"},
                 {"difference", "stored as difference"},
                 {"controlnet_blocks.0.linear.weight", "found a MistoLine network"},
                 {"adapter.body.0.in_conv.weight", "found a T2I adapter"},
                 {"image_proj.proj.weight", "found an IP-Adapter"},
                 {"lora_unet_x.lora_down.weight", "found a LoRA or other adapter, which --lora takes"},
                 {"x.weight", "found 1 tensors of no known component"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *path = write_tensor(files[i].tensor);
        expect_refused(&path, 1, UNSUPPORTED, files[i].words);
    }
    const char *five[] = {network, network, network, network, network}, *path = "none";
    expect_refused(five, 5, USAGE, "too many control networks");
    expect_refused(&path, 1, USAGE, "if this flag is absent");
    path = "/nonexistent";
    expect_refused(&path, 1, MISSING, "/nonexistent");
    path = format_text("%s/vae", model);
    expect_refused(&path, 1, UNSUPPORTED, "found synthetic decoder (synthetic_video_vae)");
    path = random_model("narrow", "synthetic_control", "control_pooled=40,dtype=f32", 5);
    expect_refused(&path, 1, SHAPE, "does not fit the model");
    const char *own = model;
    model = "test/golden/zimage_a/model";
    expect_refused(&network, 1, UNSUPPORTED, "the control network is for another model");
    model = network;
    expect_refused(NULL, 0, MISSING, "which is used only with --control-net");
    model = own;
}

int main(void) {
    temporary_make();
    gates_begin();
    image = noise_picture(1, 20, 12);
    model = synthetic_checkpoint();
    network = random_model("control", "synthetic_control", "dtype=f32", 5);
    test_files_give_equal_bits();
    test_inspect();
    test_other_files_are_named();
    return finish();
}
