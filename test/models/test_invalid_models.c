/* Models that resemble a supported family: similar architectures with the same tensor names, and sizes that
 * do not fit together. Opening or planning must refuse each of them, with an error that names the model.
 * Rows: test/lib/invalid_models.c. */
#include "test/lib/layouts.h"

static void set_config(struct tensor_set *p, const char *key, const char *value) {
    json_t *root = json_loads(p->config, 0, NULL);
    json_object_set_new(root, key, json_loads(value, JSON_DECODE_ANY, NULL));
    free(p->config);
    p->config = json_dumps(root, 0);
    json_decref(root);
}

static void test_invalid_model(const struct invalid_model *m) {
    struct tensor_set *p = tensor_set_copy(layouts_part(m->component), "");
    if (m->key) set_config(p, m->key, m->value);
    if (m->tensor && m->n) layouts_resize(p, m->tensor, m->dimension, m->n);
    if (m->tensor && !m->n) tensor_set_drop(p, m->tensor);
    if (m->marker) invalid_models_add_marker(p, m->marker);
    if (m->change) m->change(p);
    expect_refused(layouts_replace_part(m->component, p), m->code,
                   m->what  ? m->what
                   : m->key ? m->key
                            : m->tensor,
                   m->words);
}

int main(int argc, char **argv) {
    temporary_make();
    for (int i = 0; i < n_fixtures; i++) {
        const struct invalid_models *m = fixtures[i].invalid_models;
        if (!m || !fixture_is_selected(&fixtures[i], argv + (argc > 0))) continue;
        layouts_load(m->family, fixture_model(&fixtures[i]));
        for (int k = 0; k < m->n_rows; k++) test_invalid_model(&m->rows[k]);
        for (int k = 0; m->extra_tests && m->extra_tests[k]; k++) m->extra_tests[k]();
        layouts_free();
    }
    return finish();
}
