/* Published models of the recipes (recipe.published): each recipe has a title; each download source names a
 * flag of the recipe and a file, or a repository with the folder of an extra slot; the stated reference is
 * the diffusers version that made the pipeline fixture of the recipe. A recipe without its own fixture must
 * name fixtures of its components. */
#include "models/models.h"

#include "engine/open/model.h"
#include "test/lib/check.h"
#include "test/lib/fixtures.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define RECIPE(name) &recipe_##name,
static const struct recipe *const published[] = {PUBLISHED_RECIPES(RECIPE)};
enum { N_PUBLISHED = sizeof published / sizeof *published, REFERENCE = 64 };

static const struct slot *slot_of_flag(const struct recipe *r, const char *flag) {
    for (int i = 0; r->slot[i].family; i++)
        if (r->slot[i].flag && !strcmp(r->slot[i].flag, flag)) return &r->slot[i];
    return NULL;
}

static void test_sources(const struct recipe *r) {
    const struct hf_source *s;
    check(recipe_source(r, 0), "%s has no download source", r->name);
    for (int i = 0; (s = recipe_source(r, i)); i++) {
        check(strchr(s->repository, '/') && !strchr(s->repository, ' '), "'%s' is not OWNER/REPOSITORY",
              s->repository);
        const struct slot *slot = s->flag ? slot_of_flag(r, s->flag) : NULL;
        if (s->flag && check(slot, "%s: recipe %s has no flag %s", s->repository, r->name, s->flag))
            check(s->files || (slot->extra && slot->folder), "%s: no files listed for %s", s->repository,
                  s->flag);
    }
}

/* Recipes that share a list of sources have denoisers of the same family. */
static void test_shared_sources_have_one_denoiser(const struct recipe *a, const struct recipe *b) {
    for (int i = 0; i < PUBLISHED_SOURCES_MAX; i++)
        for (int k = 0; k < PUBLISHED_SOURCES_MAX; k++)
            check(!a->published.sources[i] || a->published.sources[i] != b->published.sources[k] ||
                      recipe_family(a, FAMILY_DENOISER) == recipe_family(b, FAMILY_DENOISER),
                  "%s and %s share sources but have different denoisers", a->name, b->name);
}

/* A pipeline fixture: its recipe, and the program that made its data, such as "diffusers 0.42.1". */
struct compared {
    const char *recipe;
    char reference[REFERENCE];
};

static struct compared compared[64];
static int n_compared;

static void read_reference(const struct fixture *f, char reference[REFERENCE]) {
    char path[256];
    snprintf(path, sizeof path, "test/golden/%s/expect.json", f->name);
    json_t *expect = json_load_file(path, 0, NULL);
    const char *version =
        json_string_value(json_object_get(json_object_get(expect, "versions"), "diffusers"));
    check(version, "%s has no diffusers version", path);
    snprintf(reference, REFERENCE, "diffusers %s", version ? version : "");
    json_decref(expect);
}

static void read_fixture(const struct fixture *f) {
    struct sluice_model_options from = {.struct_size = sizeof from, .model = fixture_model(f)};
    struct sluice_model *model = NULL;
    struct error e = {0};
    if (!check(model_open(NULL, &from, &model, &e) == OK, "%s: %s", f->name, e.what)) return;
    struct compared *c = &compared[n_compared++];
    c->recipe = model->recipe->name;
    read_reference(f, c->reference);
    model_close(model);
}

static const struct compared *compared_of(const struct recipe *r) {
    for (int i = 0; i < n_compared; i++)
        if (!strcmp(compared[i].recipe, r->name)) return &compared[i];
    return NULL;
}

static void test_reference_matches_fixture(const struct recipe *r) {
    const struct publication *p = &r->published;
    const struct compared *c = compared_of(r);
    const char *name = r->name;
    if (!p->reference) {
        check(!c, "%s: has a fixture by %s but no reference", name, c ? c->reference : "");
        check(p->parts_compared_in && compared_of(p->parts_compared_in),
              "%s: no fixture named for its components", name);
        return;
    }
    check(!p->parts_compared_in, "%s: names other fixtures although it has one", name);
    if (!check(c, "%s: reference %s, but no fixture", name, p->reference)) return;
    check(!strcmp(c->reference, p->reference), "%s: reference %s, fixture made by %s", name, p->reference,
          c->reference);
}

int main(void) {
    for (int i = 0; i < n_fixtures; i++)
        if (fixtures[i].pipeline) read_fixture(&fixtures[i]);
    for (int i = 0; i < N_PUBLISHED; i++) {
        check(published[i]->published.title, "%s has no title", published[i]->name);
        test_sources(published[i]);
        test_reference_matches_fixture(published[i]);
        for (int k = 0; k < i; k++) test_shared_sources_have_one_denoiser(published[i], published[k]);
    }
    return finish();
}
