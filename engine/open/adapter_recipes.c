/* Lists the recipes that an adapter fits, by matching it to each recipe's published model without files. */
#include "engine/open/adapter_file.h"
#include "engine/open/published.h"
#include "loaders/alloc_array.h"

static bool fits(const struct adapter *a, const struct recipe *recipe, struct sluice_model *m,
                 struct sizes *sizes) {
    struct error failure = {0};
    struct sluice_model_options options = {0};
    *m = (struct sluice_model){.sys = a->sys, .recipe = recipe, .published = true};
    bool does =
        sizes_read(sizes, recipe, SLOTS_MAX, NULL, &failure) == OK &&
        published_bind(a->sys, recipe, sizes, &options, m->component, &m->tokenizer_bytes, &failure) == OK &&
        adapter_fits(a, m);
    for (int i = 0; i < SLOTS_MAX; i++) component_destroy(&m->component[i]);
    return does;
}

int adapter_recipes(const struct adapter *a, const struct recipe **list, int n_max) {
    struct error failure = {0};
    int n = 0;
    struct sluice_model *m = alloc_array(a->sys, 1, sizeof *m, &failure);
    struct sizes *sizes = alloc_array(a->sys, 1, sizeof *sizes, &failure);
    for (const struct recipe *const *r = recipes; *r && n < n_max && m && sizes; r++)
        if (fits(a, *r, m, sizes)) list[n++] = *r;
    a->sys->release(a->sys, m);
    a->sys->release(a->sys, sizes);
    return n;
}
