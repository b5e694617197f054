/* Which weights an adapter's modules change (adapters/names.txt), and which adapter files are refused
 * (adapters/invalid.txt): quickly, with an error that names the file, and without leaks. Factors are zeros in
 * sparse files. test_adapter_forms.c tests values. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/open/adapter_combine.h"
#include "test/lib/adapter_files.h"
#include "test/lib/check.h"
#include "test/lib/fault_sys.h"
#include "test/lib/script.h"
#include "test/lib/temporary_folder.h"

#define W1 "diffusion_model.layers.0.feed_forward.w1"

static struct sluice_model *zimage, *sd1, *flux, *published;

/* ---- Adapter files ---- */

/* Writes the tensors of "MODULE END TYPE SHAPE ... [metadata JSON]" to adapter.safetensors. */
static const char *write_tensors(const char *const *words, int n) {
    static const struct {
        const char *name;
        int size;
    } types[] = {{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8}, {"I64", 8}, {"U8", 1}, {"F8_E4M3", 1}};
    const char *module = "", *metadata = NULL;
    struct adapter_writer w;
    adapter_writer_begin(&w);
    for (int i = 0; i < n; i++) {
        char name[256];
        int32_t dim[8];
        int type = 0;
        if (is(words[i], "metadata")) {
            metadata = words[++i];
        } else if (*words[i] != '.' && *words[i] != '-') {
            module = words[i];
        } else {
            snprintf(name, sizeof name, "%s%s", module, is(words[i], "-") ? "" : words[i]);
            while (type < COUNT_OF(types) - 1 && !is(types[type].name, words[i + 1])) type++;
            adapter_writer_add(&w, name, words[i + 1], types[type].size,
                               adapter_dimensions(words[i + 2], dim), dim, NULL);
            i += 2;
        }
    }
    return adapter_writer_end(&w, temporary_path("adapter.safetensors"), metadata);
}

/* Opens an adapter and matches it with the model on a memory-counting sys. All memory must be freed. */
static enum status match_refusing_leaks(const struct sluice_model *m, const char *path, bool partial,
                                        struct adapter_match *match, struct error *e) {
    struct adapter *a = NULL;
    int64_t before = sys_memory_use(m->sys).live_bytes[LINE_HOST];
    int open_before = count_open_files();
    *match = (struct adapter_match){0};
    *e = (struct error){0};
    if (adapter_open(m->sys, path, &a, e) == OK) adapter_match(a, m, partial, match, e);
    struct adapter_match copy = *match;
    adapter_match_destroy(match);
    adapter_close(a);
    check(sys_memory_use(m->sys).live_bytes[LINE_HOST] == before && count_open_files() == open_before,
          "a refused adapter leaks memory");
    *match = copy; /* callers read only counts and warnings, which remain valid */
    return e->code;
}

/* Expects CODE [unmatched=N] [notes=N] WORD...; the words are in the error or in the first note. */
static void expect_match(const struct command *c, const struct sluice_model *m, const char *path,
                         bool partial) {
    struct adapter_match match;
    struct error e;
    char line[1024];
    enum status code = match_refusing_leaks(m, path, partial, &match, &e);
    error_line(&e, line, sizeof line);
    check(is(status_name(code), c->word[c->arrow + 1]), "%s: %s: %s", c->where, status_name(code), line);
    check(code == OK || e.exit == 3, "%s: exit %d", c->where, e.exit);
    const char *text = code == OK && match.n_notes ? match.note[0] : line;
    for (int i = c->arrow + 2; i < c->n; i++) {
        const char *word = c->word[i];
        if (!strncmp(word, "unmatched=", 10))
            check(match.n_unmatched == atoi(word + 10), "%s: %d unmatched", c->where, match.n_unmatched);
        else if (!strncmp(word, "notes=", 6))
            check(match.n_notes == atoi(word + 6), "%s: %d notes", c->where, match.n_notes);
        else
            check(strstr(text, word) != NULL, "%s: no '%s' in: %s", c->where, word, text);
    }
}

/* ---- Commands of the scripts ---- */

static struct sluice_model *model_named(const char *name) {
    check(is(name, "zimage") || is(name, "sd1") || is(name, "flux") || is(name, "published"),
          "there is no model %s", name);
    return is(name, "sd1") ? sd1 : is(name, "flux") ? flux : is(name, "published") ? published : zimage;
}

static void command_adapter(struct command *c) {
    expect_match(c, model_named(c->word[0]), write_tensors(c->word + 1, c->arrow - 1), false);
}

static void command_partial(struct command *c) {
    expect_match(c, model_named(c->word[0]), write_tensors(c->word + 1, c->arrow - 1), true);
}

static void command_file(struct command *c) {
    expect_match(c, model_named(c->word[0]), c->word[1], false);
}

/* Returns the model of a recipe at published sizes; keeps one open. NULL closes it. */
static struct sluice_model *open_published(const char *recipe) {
    static struct sluice_model *m;
    if (m && recipe && is(m->recipe->name, recipe)) return m;
    model_close(m);
    m = recipe ? adapter_test_model(recipe) : NULL;
    return m;
}

/* Writes the two low-rank factors, of rank 4, of a module whose weight has this shape. */
static const char *write_factors(const char *module, const char *form, const char *shape) {
    static const struct {
        const char *form, *down, *up;
    } forms[] = {
        {"kohya", ".lora_down.weight", ".lora_up.weight"},
        {"peft", ".lora_A.weight", ".lora_B.weight"},
        {"old", "_lora.down.weight", "_lora.up.weight"},
        {"older", ".lora.down.weight", ".lora.up.weight"},
        {"linear", ".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight"},
    };
    struct adapter_writer w;
    char name[256];
    int32_t down[8], up[8] = {0, 4, 1, 1, 1, 1, 1, 1};
    int rank = adapter_dimensions(shape, down), i = 0;
    while (i < COUNT_OF(forms) && !is(forms[i].form, form)) i++;
    if (!check(i < COUNT_OF(forms), "there is no form %s", form)) exit(finish());
    up[0] = down[0];
    down[0] = 4;
    adapter_writer_begin(&w);
    snprintf(name, sizeof name, "%s%s", module, forms[i].down);
    adapter_writer_add(&w, name, "BF16", 2, rank, down, NULL);
    snprintf(name, sizeof name, "%s%s", module, forms[i].up);
    adapter_writer_add(&w, name, "BF16", 2, rank, up, NULL);
    return adapter_writer_end(&w, temporary_path("adapter.safetensors"), NULL);
}

/* Writes what a match changes: "unet: WEIGHT[FIRST+ROWS]... WEIGHT...", or "nothing". */
static void print_match(const struct sluice_model *m, const struct adapter_match *match, char *out,
                        size_t bytes) {
    size_t at = 0;
    snprintf(out, bytes, "nothing");
    for (int slot = 0; slot < SLOTS_MAX; slot++) {
        const struct adapter_part *part = &match->part[slot];
        if (part->n_weights)
            at += (size_t)snprintf(out + at, bytes - at, "%s:", m->recipe->slot[slot].folder);
        for (int i = 0; i < part->n_weights; i++) {
            const struct adapted_weight *w = &part->weights[i];
            const struct block *block = &m->component[slot].blocks[w->block];
            char name[2 * BLOCK_NAME_MAX];
            block_weight_name(block->kind->weights[w->weight].names[0], block->number, name);
            at += (size_t)snprintf(out + at, bytes - at, " %s", name);
            for (int k = 0; k < w->up.n_parts; k++)
                at += (size_t)snprintf(out + at, bytes - at, "[%d+%d]", w->up.part[k].first,
                                       w->up.part[k].rows);
        }
    }
}

/* module RECIPE MODULE FORM SHAPE => WEIGHTS */
static void command_module(struct command *c) {
    const struct sluice_model *m = open_published(c->word[0]);
    struct adapter *a = NULL;
    struct adapter_match match = {0};
    struct error e = {0};
    char line[1024], found[1024], means[1024] = "";
    for (int i = c->arrow + 1; i < c->n; i++) {
        if (*means) strcat(means, " ");
        strcat(means, c->word[i]);
    }
    if (adapter_open(m->sys, write_factors(c->word[1], c->word[2], c->word[3]), &a, &e) == OK)
        adapter_match(a, m, false, &match, &e);
    check(e.code == OK, "%s: %s", c->where, error_line(&e, line, sizeof line));
    print_match(m, &match, found, sizeof found);
    check(is(found, means), "%s: %s means '%s', not '%s'", c->where, c->word[1], found, means);
    check((match.n_notes == 1) == is(means, "nothing"), "%s: %d notes", c->where, match.n_notes);
    adapter_match_destroy(&match);
    adapter_close(a);
}

/* half FILE MODULE => HIGH LOW notes=N: numbers of weights that change in WAN 2.2's two transformers */
static void command_half(struct command *c) {
    const struct sluice_model *m = open_published("wan22");
    struct adapter *a = NULL;
    struct adapter_match match = {0};
    struct error e = {0};
    char path[256], found[64], wanted[64];
    snprintf(path, sizeof path, "%s/%s", temporary, c->word[0]);
    *strrchr(path, '/') = 0;
    mkdir(path, 0777);
    path[strlen(path)] = '/';
    if (!check(!rename(write_factors(c->word[1], "peft", "5120x5120"), path), "%s", path)) return;
    if (adapter_open(m->sys, path, &a, &e) == OK) adapter_match(a, m, false, &match, &e);
    snprintf(found, sizeof found, "%d %d notes=%d", match.part[1].n_weights, match.part[2].n_weights,
             match.n_notes);
    snprintf(wanted, sizeof wanted, "%s %s %s", c->word[3], c->word[4], c->word[5]);
    check(e.code == OK && is(found, wanted), "%s: %s: %s, not %s: %s", c->where, c->word[0], found, wanted,
          e.what);
    adapter_match_destroy(&match);
    adapter_close(a);
}

/* Opens and matches an adapter and combines it for the denoiser: 4 weights, 2 vectors. */
static enum status use_everything(const struct sluice_model *m, const char *path, struct error *e) {
    struct adapter *a = NULL;
    struct adapter_match match = {0};
    struct adapter_combination c = {0};
    int slot = recipe_slot(m->recipe, FAMILY_DENOISER);
    *e = (struct error){0};
    if (adapter_open(m->sys, path, &a, e) == OK && adapter_match(a, m, false, &match, e) == OK &&
        adapter_check_finite(a, e) == OK) {
        struct adapter_use use = {&match, 1};
        adapters_combine(m, slot, &use, 1, &c, e);
        check(e->code != OK || (c.n_weights == 4 && c.n_vectors == 2), "%d weights, %d vectors", c.n_weights,
              c.n_vectors);
    }
    adapter_combination_destroy(&c);
    adapter_match_destroy(&match);
    adapter_close(a);
    return e->code;
}

/* faults sd1 TENSORS metadata JSON: each call of the adapter reader fails in turn; expects the fault's error
 * code and no leak. */
static void command_faults(struct command *c) {
    enum { CALLS_MOST = 1000 };
    static const struct {
        enum call call;
        enum fault fault;
        enum status code, other;
    } faults[] = {{CALL_ALLOC, FAULT_ERROR, MEMORY, MEMORY},
                  {CALL_READ, FAULT_ERROR, IO, IO},
                  {CALL_READ, FAULT_END, TRUNC, TRUNC},
                  {CALL_OPEN, FAULT_ERROR, IO, IO},
                  {CALL_IDENTIFY, FAULT_ERROR, IO, CHANGED}};
    static struct fault_sys fault_sys;
    const char *path = write_tensors(c->word + 1, c->n - 1);
    struct sluice_model_options options = {.struct_size = sizeof options, .model = "test/golden/sd1/model"};
    struct sluice_model *m = NULL;
    struct error e = {0};
    fault_sys_init(&fault_sys, 1);
    if (!check(model_open(&fault_sys.sys, &options, &m, &e) == OK, "%s", e.what)) return;
    int64_t before = fault_sys_live_bytes(&fault_sys);
    check(use_everything(m, path, &e) == OK, "%s", e.what);
    for (int i = 0; i < COUNT_OF(faults); i++) {
        long at = 0;
        enum status code;
        do {
            fault_sys_fail(&fault_sys, faults[i].call, ++at, 0);
            fault_sys.fault = faults[i].fault;
            code = use_everything(m, path, &e);
            check(code == OK || code == faults[i].code || code == faults[i].other, "fault %d at %ld: %s: %s",
                  i, at, status_name(code), e.what);
            check(fault_sys_live_bytes(&fault_sys) == before, "fault %d at %ld: %ld bytes leak", i, at,
                  (long)(fault_sys_live_bytes(&fault_sys) - before));
        } while (code != OK && at < CALLS_MOST);
        check(at > 1 && at < CALLS_MOST, "fault %d failed %ld times", i, at - 1);
    }
    fault_sys_fail(&fault_sys, CALL_ALLOC, 0, 0);
    model_close(m);
}

/* ---- Values ---- */

static const char *write_pair(double alpha, float value) {
    float down[72] = {0};
    struct adapter_writer w;
    down[71] = value;
    adapter_writer_begin(&w);
    adapter_writer_add_f32(&w, W1 ".lora_A.weight", down, 2, 36, 0);
    adapter_writer_add_f32(&w, W1 ".lora_B.weight", NULL, 96, 2, 0);
    adapter_writer_add(&w, W1 ".alpha", "F64", 8, 0, NULL, &alpha);
    return adapter_writer_end(&w, temporary_path("adapter.safetensors"), NULL);
}

/* The adapter's values are finite, but overflow at a scale of 1,000. */
static void test_scale_overflow_refused(void) {
    struct adapter *a = NULL;
    struct adapter_match match = {0};
    struct adapter_combination c = {0};
    struct adapter_use use = {&match, 1};
    struct error e = {0};
    int slot = recipe_slot(zimage->recipe, FAMILY_DENOISER);
    if (adapter_open(zimage->sys, write_pair(1e38, 0), &a, &e) == OK)
        adapter_match(a, zimage, false, &match, &e);
    check(e.code == OK && adapters_combine(zimage, slot, &use, 1, &c, &e) == OK, "%s", e.what);
    adapter_combination_destroy(&c);
    use.strength = 1000;
    check(adapters_combine(zimage, slot, &use, 1, &c, &e) == META && strstr(e.what, W1), "%s", e.what);
    adapter_match_destroy(&match);
    adapter_close(a);
}

static void test_nonfinite_values_refused(void) {
    const double alphas[] = {__builtin_nan(""), __builtin_inf(), 1e300};
    struct adapter_match match;
    struct adapter *a = NULL;
    struct error e = {0};
    char line[1024];
    for (int i = 0; i < COUNT_OF(alphas); i++) {
        match_refusing_leaks(zimage, write_pair(alphas[i], 0), false, &match, &e);
        error_line(&e, line, sizeof line);
        check(e.code == META && e.exit == 3 && strstr(line, "not finite") && strstr(line, ".alpha"),
              "alpha %g: %s", alphas[i], line);
    }
    check(match_refusing_leaks(zimage, write_pair(0, 0), false, &match, &e) == OK && match.n_notes == 1 &&
              strstr(match.note[0], "alpha is 0"),
          "alpha 0: %s, %d warnings", e.what, match.n_notes);
    check(adapter_open(zimage->sys, write_pair(1, 1), &a, &e) == OK && adapter_check_finite(a, &e) == OK,
          "%s", e.what);
    adapter_close(a);
    check(adapter_open(zimage->sys, write_pair(1, __builtin_nanf("")), &a, &e) == OK &&
              adapter_check_finite(a, &e) == NONFINITE && strstr(e.what, W1 ".lora_A.weight"),
          "a factor with NaN: %s", e.what);
    adapter_close(a);
}

/* The adapter file has the maximum number of tensors, whose names have long common prefixes. */
static void test_many_unmatched_tensors_are_fast(void) {
    enum { MODULES = LOADER_TENSORS_MAX / 2 };
    struct adapter_match match;
    struct adapter_writer w;
    struct error e;
    char name[160];
    adapter_writer_begin(&w);
    for (int i = 0; i < MODULES; i++) {
        snprintf(name, sizeof name, "lora_unet_layers_%d_feed_forward_w1.lora_down.weight", i);
        adapter_writer_add_f32(&w, name, NULL, 2, 36, 0);
        snprintf(name, sizeof name, "lora_unet_layers_%d_feed_forward_w1.lora_up.weight", i);
        adapter_writer_add_f32(&w, name, NULL, 96, 2, 0);
    }
    const char *path = adapter_writer_end(&w, temporary_path("adapter.safetensors"), NULL);
    check(match_refusing_leaks(zimage, path, false, &match, &e) == MISSING, "%d modules: %s", MODULES,
          e.what);
    check(match_refusing_leaks(zimage, path, true, &match, &e) == OK && match.n_unmatched > MODULES - 100,
          "%d modules: %s, %d unmatched", MODULES, e.what, match.n_unmatched);
}

int main(void) {
    static const struct script_command commands[] = {{"module", 4, 1, command_module},
                                                     {"half", 2, 3, command_half},
                                                     {"adapter", 1, 1, command_adapter},
                                                     {"partial", 1, 1, command_partial},
                                                     {"file", 2, 1, command_file},
                                                     {"faults", 4, 0, command_faults},
                                                     {0}};
    temporary_make();
    zimage = adapter_test_model("test/golden/zimage_a/model");
    sd1 = adapter_test_model("test/golden/sd1/model");
    flux = adapter_test_model("test/golden/flux_a/model");
    published = adapter_test_model("zimage");
    script_run("test/models/adapters/names.txt", commands, NULL);
    script_run("test/models/adapters/invalid.txt", commands, NULL);
    test_scale_overflow_refused();
    test_nonfinite_values_refused();
    test_many_unmatched_tensors_are_fast();
    open_published(NULL);
    model_close(zimage);
    model_close(sd1);
    model_close(flux);
    model_close(published);
    return finish();
}
