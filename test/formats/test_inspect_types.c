/* `inspect` on quantised checkpoints: groups of tensors with their bytes and bits per weight, compared with
 * sums over the list of tensors that `inspect` also prints; and errors that name the broken file. */
#include "test/lib/random_models.h"
#include "test/lib/rig.h"

#include <sys/stat.h>
#include <unistd.h>
#include <math.h>

static json_t *inspect(const char *folder, struct sluice_error *e) {
    struct sluice_model_options from = {.struct_size = sizeof from, .model = folder};
    char *json = NULL;
    sluice_inspect(&from, true, &json, e);
    json_t *root = json ? json_loads(json, 0, NULL) : NULL;
    sluice_free(json);
    return root;
}

static json_t *named(json_t *list, const char *name) {
    size_t i;
    json_t *one;
    json_array_foreach(list, i,
                       one) if (!strcmp(json_string_value(json_object_get(one, "name")), name)) return one;
    return NULL;
}

static bool is_scale(const char *name) {
    return strstr(name, "_scale") || strstr(name, "comfy_quant");
}

/* Checks the bytes of the group of tensors whose names begin with `begin`. */
static void check_group(json_t *component, json_t *group, const char *begin, const char *what) {
    json_int_t bytes = 0, values = 0, tensors = 0, of_types = 0;
    size_t i, k;
    const char *type;
    json_t *tensor, *dim, *some;
    json_array_foreach(json_object_get(component, "list"), i, tensor) {
        const char *name = json_string_value(json_object_get(tensor, "name"));
        json_int_t n = !is_scale(name);
        if (strncmp(name, begin, strlen(begin))) continue;
        json_array_foreach(json_object_get(tensor, "shape"), k, dim) n *= json_integer_value(dim);
        tensors++;
        values += n;
        bytes += number(tensor, "bytes");
    }
    json_object_foreach(json_object_get(group, "types"), type, some) of_types += json_integer_value(some);
    check(bytes && number(group, "bytes") == bytes && of_types == bytes,
          "%s: %lld bytes, %lld of types, not %lld", what, (long long)number(group, "bytes"),
          (long long)of_types, (long long)bytes);
    check(number(group, "tensors") == tensors && number(group, "values") == values,
          "%s: %lld tensors, %lld values", what, (long long)number(group, "tensors"),
          (long long)number(group, "values"));
    double bits = json_real_value(json_object_get(group, "bits_per_weight"));
    check(fabs(bits - 8.0 * (double)bytes / (double)values) < 1e-9, "%s: reported %g bits per weight", what,
          bits);
}

/* Norms in bf16 and scales add few bits per weight: measured 0.002 to 0.013, with a scale per row 0.051. */
static void test_bits_per_weight(const char *dtype, const char *type, double bits) {
    struct sluice_error e;
    json_t *root = inspect(stored_checkpoint(dtype), &e);
    json_t *transformer = named(json_object_get(root, "components"), "transformer");
    json_t *groups = json_object_get(transformer, "groups"), *layers = named(groups, "layers.N");
    if (!check(layers != NULL, "%s: no group of layers", dtype)) return;
    check_group(transformer, transformer, "", dtype);
    check_group(transformer, layers, "layers.", dtype);
    check_group(transformer, named(groups, "noise_refiner.N"), "noise_refiner.", dtype);
    double reported = json_real_value(json_object_get(layers, "bits_per_weight"));
    check(reported >= bits && reported < bits + 0.06, "%s: %g bits per weight instead of %g", dtype, reported,
          bits);
    check(number(json_object_get(layers, "types"), type) > 0, "%s: type %s is not listed", dtype, type);
    check(!json_array_size(json_object_get(root, "unknown")), "%s: unknown tensors", dtype);
    check(!json_array_size(json_object_get(root, "missing")), "%s: missing tensors", dtype);
    json_decref(root);
}

/* The list of missing parts names the truncated file and the byte. */
static void test_truncated_file_named(const char *dtype, const char *file) {
    char path[256];
    struct stat s;
    struct sluice_error e = {0};
    const char *folder = stored_checkpoint(dtype);
    snprintf(path, sizeof path, "%s/transformer/%s", folder, file);
    check(!stat(path, &s) && !truncate(path, s.st_size - 1), "cannot truncate %s", path);
    json_t *root = inspect(folder, &e);
    char *missing = json_dumps(json_object_get(root, "missing"), 0);
    snprintf(path, sizeof path, "%s, byte", file);
    check(missing && strstr(missing, path) && strstr(missing, "file ends"), "%s, cut: %s %s", file, e.what,
          missing ? missing : "");
    check(json_is_false(json_object_get(root, "complete")), "%s, cut: reported as complete", file);
    free(missing);
    json_decref(root);
}

/* Renames a tensor in a GGUF header; the names have equal lengths. */
static void rename_tensor(const char *path, const char *from, const char *to) {
    static char header[1 << 16];
    FILE *file = fopen(path, "r+b");
    size_t n = file ? fread(header, 1, sizeof header, file) : 0;
    char *at = memmem(header, n, from, strlen(from));
    check(at != NULL, "%s has no '%s'", path, from);
    if (at) memcpy(at, to, strlen(to));
    if (at) check(!fseek(file, 0, SEEK_SET) && fwrite(header, 1, n, file) == n, "cannot write %s", path);
    if (file) fclose(file);
}

static bool lists(const json_t *list, const char *word) {
    size_t i;
    json_t *line;
    json_array_foreach(list, i, line) if (strstr(json_string_value(line), word)) return true;
    return false;
}

static void test_missing_and_unknown_tensors_listed(void) {
    char path[256];
    struct sluice_error e = {0};
    const char *folder = stored_checkpoint("q8_0");
    snprintf(path, sizeof path, "%s/transformer/diffusion_pytorch_model.gguf", folder);
    rename_tensor(path, "layers.1.feed_forward.w1.weight", "layers.1.feed_forward.w9.weight");
    rename_tensor(path, "layers.1.attention.norm_k.weight", "layers.1.attention.norm_z.weight");
    json_t *root = inspect(folder, &e);
    const json_t *missing = json_object_get(root, "missing"), *unknown = json_object_get(root, "unknown");
    check(json_array_size(missing) == 2 && lists(missing, "layers.1.feed_forward.w1.weight") &&
              lists(missing, "layers.1.attention.norm_k.weight"),
          "%zu are missing", json_array_size(missing));
    check(json_array_size(unknown) == 2 && lists(unknown, "feed_forward.w9") && lists(unknown, "norm_z"),
          "%zu are unknown", json_array_size(unknown));
    json_decref(root);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    test_bits_per_weight("f8_e4m3_scaled", "F8_E4M3", 8);
    test_bits_per_weight("i8_rows", "I8", 8);
    test_bits_per_weight("i8_rot256", "I8_ROT256", 8);
    test_bits_per_weight("nvfp4_tiled", "NVFP4_TILED", 4.5);
    test_bits_per_weight("mxfp8_tiled", "MXFP8_TILED", 8.25);
    test_bits_per_weight("q4_k", "Q4_K", 4.5);
    test_bits_per_weight("q8_0", "Q8_0", 8.5);
    test_bits_per_weight("bf16", "BF16", 16);
    test_truncated_file_named("f8_e4m3_scaled", "diffusion_pytorch_model-00001-of-00002.safetensors");
    test_truncated_file_named("q4_k", "diffusion_pytorch_model.gguf");
    test_missing_and_unknown_tensors_listed();
    return finish();
}
