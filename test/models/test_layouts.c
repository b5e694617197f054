/* File layouts of published checkpoints: split files, all-in-one files with prefixes, folders of parts, and
 * tensors under diffusers' or the authors' names. Each layout must give exactly the results of the Hugging
 * Face folder from which it was made. Impossible layouts are refused. Rows per fixture and tests of one
 * family are in test/lib/layouts_FAMILY.c. */
#include "engine/convert/convert.h"
#include "test/lib/layouts.h"

static void test_split_files_give_same_latent(const struct layouts *l) {
    const char *paths[LAYOUT_PARTS];
    for (int i = 0; i < l->family->n_parts; i++) paths[i] = l->family->parts[i].file;
    layouts_write_parts(paths, !l->no_configs);
    expect_same_result(layouts_part_files(), "the authors' file, other components by flags");
    check(strstr(captured_log, l->warnings[0]) && strstr(captured_log, l->warnings[1]),
          "an assumption is not logged: %s", captured_log);
}

static void test_file_for_wrong_slot_refused(const struct layout_family *family) {
    for (int slot = 0; slot < family->n_parts; slot++)
        for (int passed = 0; passed < family->n_parts; passed++) {
            if (passed == slot) continue;
            const struct layout_part *expected = &family->parts[slot], *part = &family->parts[passed];
            options from = layouts_part_files();
            layouts_set_path(&from, expected->component, temporary_path(part->file));
            expect_refused(from, UNSUPPORTED, "wrong slot",
                           WORDS("holds another component", part->found_text, expected->expected_text,
                                 expected->flag_text));
        }
}

static void test_single_file_gives_same_latent(const struct layouts *l) {
    const struct layout_family *family = l->family;
    size_t n = (size_t)family->n_parts + (l->two_in_file != NULL);
    for (int i = 0; i < family->n_all; i++) {
        const struct all_in_one *one = &family->all[i];
        const char *what = one->prefix[1];
        options from = {.model = temporary_path("all.safetensors"), .tokenizer = current_model.tokenizer};
        int written = layouts_write_all(from.model, one), found = 0;
        expect_same_result(from, what);
        check(!strstr(captured_log, "unknown"), "%s: %s", what, captured_log);
        json_t *root = inspect(from), *components = json_object_get(root, "components"), *component;
        size_t k;
        check(count(root, "components") == n && !count(root, "unknown") && !count(root, "missing"),
              "%s: inspect finds %zu components, %zu unknown, %zu missing tensors", what,
              count(root, "components"), count(root, "unknown"), count(root, "missing"));
        json_array_foreach(components, k, component) found += (int)number(component, "tensors");
        check(found == written, "%s: inspect counts %d of %d tensors", what, found, written);
        json_decref(root);
    }
}

/* Converts one component to the other file format (safetensors, GGUF) with unchanged types. The latent must
 * not change. */
static void expect_converted_same(const struct layout_part *part, options from, const char *input,
                                  const char *name, const char *form) {
    struct sys machine;
    struct error e = {0};
    char line[1024], what[TENSOR_SET_PATH + 64];
    const char *output = temporary_path(form);
    struct sluice_convert_options asked = {
        .struct_size = sizeof asked, .inputs = &input, .n_inputs = 1, .part = name, .output = output};
    snprintf(what, sizeof what, "convert %s%s%s", input, name ? " --part " : "", name ? name : "");
    sys_init_machine(&machine);
    if (!check(convert_files(&machine, &asked, NULL, &e) == OK, "%s: %s", what,
               error_line(&e, line, sizeof line)))
        return;
    layouts_set_path(&from, part->component, output);
    expect_same_result(from, what);
    remove(output);
}

/* Selects the component to convert: in a folder by name and by path, in a file by file name or by prefix. */
static void test_converted_component_gives_same_latent(const struct layouts *l) {
    for (int i = 0; i < l->family->n_parts; i++) {
        const struct layout_part *part = &l->family->parts[i];
        options folder = {.model = current_model.folder, .tokenizer = l->tokenizer_model};
        char path[TENSOR_SET_PATH];
        snprintf(path, sizeof path, "%s/%s", current_model.folder, part->component);
        expect_converted_same(part, folder, current_model.folder, part->component, "part.safetensors");
        expect_converted_same(part, folder, current_model.folder, part->component, "part.gguf");
        const char *which =
            l->two_in_file && !strcmp(l->two_in_file, part->component) ? part->component : NULL;
        expect_converted_same(part, folder, path, which, "part.safetensors");
        expect_converted_same(part, layouts_part_files(), temporary_path(part->file), which,
                              "part.safetensors");
        for (int k = 0; l->one_file && k < l->family->n_all; k++) {
            options all = {.model = temporary_path("all.safetensors"), .tokenizer = current_model.tokenizer};
            layouts_write_all(all.model, &l->family->all[k]);
            expect_converted_same(part, all, all.model, part->component, "part.safetensors");
        }
    }
}

static void test_inspect_finds_components(const struct fixture *f) {
    const struct expected_recipe *expected = f->expected;
    const char *fixture = f->name, *recipe = expected->recipe;
    sluice_model *m = NULL;
    struct sluice_error e;
    options from = {.model = fixture_model(f)};
    json_t *root = inspect(from), *second = json_array_get(json_object_get(root, "components"), 1);
    const char *found = json_string_value(json_object_get(root, "recipe"));
    check(found && !strcmp(found, recipe), "%s: recipe %s", fixture, found ? found : "none");
    check(number(second, "max_sequence_length") == expected->t5_tokens &&
              !strcmp(json_string_value(json_object_get(second, "tokenizer")), "unigram"),
          "%s: wrong T5 token count", fixture);
    check(!count(root, "missing") && !count(root, "unknown") && !count(root, "notes"),
          "%s: %zu missing, %zu unknown tensors, %zu notes", fixture, count(root, "missing"),
          count(root, "unknown"), count(root, "notes"));
    json_decref(root);
    if (!check(!sluice_model_open(model_options(&from), &m, &e), "%s: %s (%s)", fixture, e.what, e.where))
        return;
    check(!strcmp(m->recipe->name, recipe) && m->references_max == expected->references && m->pipeline_named,
          "%s: %s, %d", fixture, m->recipe->name, m->references_max);
    check(model_component(m, FAMILY_ENCODER)->family && model_component(m, FAMILY_ENCODER)->n_unknown == 0,
          "%s: inspect finds no VAE encoder", fixture);
    sluice_model_close(m);
}

static bool read_model(const struct fixture *f) {
    static char tokenizer[TENSOR_SET_PATH], folder[TENSOR_SET_PATH];
    const struct layouts *l = f->layouts;
    struct rig rig;
    snprintf(folder, sizeof folder, "%s", fixture_model(f));
    snprintf(tokenizer, sizeof tokenizer, "%s%s", l->tokenizer_model ? l->tokenizer_model : folder,
             l->tokenizer ? l->tokenizer : "");
    layouts_load(l->family, folder);
    current_model.tokenizer = tokenizer;
    current_model.no_configs = l->no_configs;
    expected_request = request_fox(l->width, l->height, 2, 1, 1);
    expected_request.frames = l->frames;
    expected_request.guidance = l->guidance;
    expected_request.flow_shift = l->flow_shift;
    if (!rig_open_paths(&rig, (options){.model = folder, .tokenizer = l->tokenizer_model}, f->name))
        return false;
    check(l->folder_warning ? strstr(captured_log, l->folder_warning) != NULL : !captured_log[0],
          "a Hugging Face folder needs an assumption: %s", captured_log);
    expected_result = run(&rig, &expected_request);
    check(expected_result.code == SLUICE_OK, "%s: %s", f->name, expected_result.error.what);
    rig_close(&rig);
    return true;
}

static void test_layouts(const struct layouts *l) {
    test_split_files_give_same_latent(l);
    test_converted_component_gives_same_latent(l);
    if (l->one_file) test_single_file_gives_same_latent(l);
    if (l->wrong_slots) test_file_for_wrong_slot_refused(l->family);
    for (int i = 0; l->extra_tests[i]; i++) l->extra_tests[i]();
}

int main(int argc, char **argv) {
    temporary_make();
    for (int i = 0; i < n_fixtures; i++) {
        const struct fixture *f = &fixtures[i];
        if (!fixture_is_selected(f, argv + (argc > 0))) continue;
        if (f->layouts) {
            if (read_model(f)) test_layouts(f->layouts);
            layouts_free();
        }
        if (f->expected) test_inspect_finds_components(f);
    }
    return finish();
}
