/* Assignment of components to slots where a recipe has several slots of one family: by flag, else folder,
 * else prefix, else content, else order. Also: CLIP-L, -H and -G by width, two files for one slot, and the
 * list of component flags. */
#include "engine/open/component_files.h"
#include "engine/open/pipeline.h"
#include "engine/sluice.h"
#include "models/slots.h"
#include "test/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const first_prefixes[] = {"", "one.", NULL}, *const second_prefixes[] = {"", "two.", NULL};

/* Simulates the recognition of a component by content: true if the number `view` of the tensor index is odd.
 */
static bool is_odd(const struct tensor_index *view) {
    return view->view % 2 == 1;
}

static bool is_even(const struct tensor_index *view) {
    return view->view % 2 == 0;
}

#define SLOT(number, ...)                                                                                    \
    {                                                                                                        \
        .family = &family_clip, .flag = "--" #number, .folder = #number, .prefixes = number##_prefixes,      \
        __VA_ARGS__                                                                                          \
    }

static const struct recipe several = {.slot = {SLOT(first), SLOT(second), {.family = &family_t5}}},
                           by_content = {.slot = {SLOT(first, .matches = is_odd),
                                                  SLOT(second, .matches = is_even)}},
                           alone = {.slot = {SLOT(first)}};

#define PART(...)                                                                                            \
    { .family = &family_clip, __VA_ARGS__ }

enum { NONE = -1, PARTS = 3 };

static const struct {
    const char *what;
    const struct recipe *recipe;
    struct component_file file[PARTS];
    int n_parts, first, second; /* first, second: expected component of the first and of the second slot */
} rows[] = {
    {"order", &several, {PART(), PART()}, 2, 0, 1},
    {"one file", &several, {PART()}, 1, 0, NONE},
    {"flags, the other way round", &several, {PART(.flag = "--second"), PART(.flag = "--first")}, 2, 1, 0},
    {"a flag before a found component", &several, {PART(), PART(), PART(.flag = "--first")}, 3, 2, 0},
    {"another pipeline's flag", &several, {PART(.flag = "--third")}, 1, NONE, NONE},
    {"folders", &several, {PART(.folder = "second"), PART(.folder = "first")}, 2, 1, 0},
    {"a flag before a folder", &several, {PART(.folder = "first"), PART(.flag = "--first")}, 2, 1, NONE},
    {"prefixes", &several, {PART(.prefix = "two."), PART(.prefix = "one.")}, 2, 1, 0},
    {"a prefix before order", &several, {PART(), PART(.prefix = "one.")}, 2, 1, 0},
    {"content", &by_content, {PART(.view = 2), PART(.view = 1)}, 2, 1, 0},
    {"content under the wrong flag", &by_content, {PART(.view = 2, .flag = "--first")}, 1, NONE, NONE},
    {"two components of the same content", &by_content, {PART(.view = 1), PART(.view = 3)}, 2, 0, NONE},
    {"misplaced", &several, {PART(.misplaced = true), PART()}, 2, 1, NONE},
    {"one slot takes any flag", &alone, {PART(.flag = "--third")}, 1, 0, NONE},
    {"one slot, flag before folder", &alone, {PART(), PART(.folder = "x"), PART(.flag = "--y")}, 3, 2, NONE},
    {"another family", &several, {{.family = &family_qwen3}}, 1, NONE, NONE},
};

static char path[] = "folder/file";

static void test_slot_assignment(void) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct component_files files = {.n_opened = 1, .n_files = rows[i].n_parts};
        const struct component_file *in[SLOTS_MAX];
        files.opened[0].path = path;
        memcpy(files.file, rows[i].file, sizeof rows[i].file);
        parts_assign(&files, rows[i].recipe, in);
        const int want[2] = {rows[i].first, rows[i].second};
        for (int slot = 0; slot < 2; slot++) {
            const struct component_file *file = want[slot] == NONE ? NULL : &files.file[want[slot]];
            check(in[slot] == file, "%s: slot %d has component %td", rows[i].what, slot,
                  in[slot] ? in[slot] - files.file : (ptrdiff_t)NONE);
            check(parts_in_slot(&files, rows[i].recipe, slot) == file, "%s: parts_in_slot of slot %d differs",
                  rows[i].what, slot);
        }
    }
}

static void test_slot_by_file_name(void) {
    static const struct {
        const char *path[2], *prefix;
        int first, second;
    } of[] = {{{"m/a_second.safetensors", "m/b_first.safetensors"}, NULL, 1, 0},
              {{"m/second-fp16.gguf", NULL}, NULL, NONE, 0},
              {{"m/seconds.safetensors", "m/FIRST.safetensors"}, NULL, 1, 0},
              {{"second/a.safetensors", "second/b.safetensors"}, NULL, 0, 1},
              {{"m/second.safetensors", NULL}, "one.", 0, NONE}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        int n = 1 + (of[i].path[1] != NULL);
        struct component_files files = {.n_opened = n, .n_files = n};
        const struct component_file *in[SLOTS_MAX];
        for (int k = 0; k < n; k++) {
            files.opened[k].path = strdup(of[i].path[k]);
            files.file[k] = (struct component_file)PART(.opened = k, .prefix = of[i].prefix);
        }
        parts_assign(&files, &several, in);
        check(in[0] == (of[i].first == NONE ? NULL : &files.file[of[i].first]) &&
                  in[1] == (of[i].second == NONE ? NULL : &files.file[of[i].second]),
              "%s", of[i].path[0]);
        for (int k = 0; k < n; k++) free(files.opened[k].path);
    }
}

static void test_two_components_for_one_slot_refused(void) {
    static const struct recipe odd = {.slot = {SLOT(first, .matches = is_odd)}};
    for (int other = 2; other < 4; other++) {
        struct component_files files = {
            .n_opened = 1, .n_files = 2, .file = {PART(.view = 1), PART(.view = other)}};
        struct error e = {0};
        files.opened[0].path = path;
        enum status code = pipeline_check_duplicates(&files, &odd, "folder", &e);
        check((code == OK) == (other % 2 == 0), "views 1 and %d: %s", other, e.what);
    }
}

/* One of the optional text encoders is enough; encoders that model_index.json declares are required. */
static void test_required_encoder_missing(void) {
    static const struct recipe either = {
        .slot = {SLOT(first, .optional = true), SLOT(second, .optional = true)}};
    static const struct sluice_part none[] = {{"--first", "none"}, {"--second", "none"}};
    static const struct {
        struct component_file file;
        const char *named;
        int n_none, missing;
        enum status absent;
    } of[] = {{{0}, NULL, 0, 2, OK},
              {PART(.prefix = "one."), NULL, 0, 0, OK},
              {PART(.prefix = "two."), NULL, 0, 0, OK},
              {PART(.prefix = "two."), "first", 0, 1, OK},
              {PART(.prefix = "two."), "first", 1, 0, OK},
              {PART(.prefix = "two."), NULL, 2, 2, USAGE}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct sluice_model_options options = {.parts = none, .n_parts = of[i].n_none};
        struct component_files files = {.options = &options,
                                        .n_opened = 1,
                                        .n_files = 1,
                                        .file = {of[i].file},
                                        .declared = {of[i].named}};
        struct missing_part missing[SLOTS_MAX];
        struct error e = {0};
        files.opened[0].path = path;
        int n = pipeline_missing(&files, &either, missing);
        check(n == of[i].missing, "row %zu: %d missing", i, n);
        check(pipeline_check_disabled_parts(&options, &either, "model", &e) == of[i].absent, "absent %zu: %s",
              i, e.what);
    }
    struct sluice_part part = {"--first", "./none"};
    struct sluice_model_options options = {.parts = &part, .n_parts = 1};
    struct component_files files = {.options = &options, .n_opened = 1, .n_files = 1, .file = {PART()}};
    struct error e = {0};
    files.opened[0].path = path;
    check(parts_in_slot(&files, &several, 0) == files.file, "a file named ./none disables its slot");
    part.path = "none";
    check(!parts_in_slot(&files, &several, 0) && parts_in_slot(&files, &several, 1) == files.file,
          "a disabled slot has a component");
    check(pipeline_check_disabled_parts(&options, &several, "model", &e) == USAGE,
          "disabling a required component: %s", e.what);
}

/* A published width selects one slot; a component of any other width fits any slot. */
static void test_clip_by_width(void) {
    static const struct {
        int32_t width;
        bool l, h, g;
    } of[] = {{768, true, false, false},
              {1024, false, true, false},
              {1280, false, false, true},
              {32, true, true, true}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        for (int open = 0; open < 2; open++) {
            struct index_entry entry = {.name = open ? "token_embedding.weight"
                                                     : "text_model.embeddings.token_embedding.weight",
                                        .rank = 2,
                                        .dim = {600, of[i].width}};
            struct tensor_index index = {.entries = &entry, .n_entries = 1};
            check(clip_is_l(&index) == of[i].l && clip_is_h(&index) == of[i].h &&
                      clip_is_g(&index) == of[i].g,
                  "width %d", (int)of[i].width);
        }
}

/* Every slot except VAE encoders has a flag. The library lists each flag once, and no other flags. */
static void test_every_slot_flag_listed_once(void) {
    const struct slot *slot;
    const char *flag;
    char help[192];
    for (int i = 0; (slot = models_slot(i)); i++) {
        int n = 0;
        check(!slot->flag == (slot->family->kind == FAMILY_ENCODER), "%s: flag", slot->family->name);
        for (int k = 0; slot->flag && (flag = sluice_part_flag(k, NULL, 0)); k++)
            n += !strcmp(flag, slot->flag);
        check(n == (slot->flag != NULL), "%s: flag listed %d times", slot->family->name, n);
        check(!slot->flag || part_flag_takes(slot->flag, slot->family), "%s: its flag is refused",
              slot->family->name);
    }
    for (int k = 0; (flag = sluice_part_flag(k, help, sizeof help)); k++)
        check(strstr(help, ")") && (!strstr(help, "; none") == !part_flag_optional(flag)), "%s: %s", flag,
              help);
}

static void test_invalid_component_flags_refused(void) {
    const struct sluice_part unknown[] = {{"--nothing", "x"}}, repeated[] = {{"--vae", "x"}, {"--vae", "y"}},
                             empty[] = {{"--vae", NULL}};
    const struct {
        const struct sluice_part *parts;
        int n;
        const char *word;
    } refused[] = {
        {unknown, 1, "unknown component flag"}, {repeated, 2, "given twice"}, {empty, 1, "no model"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct sluice_error e = {0};
        sluice_model *model;
        struct sluice_model_options from = {
            .struct_size = sizeof from, .parts = refused[i].parts, .n_parts = refused[i].n};
        int code = sluice_model_open(&from, &model, &e);
        check(code == SLUICE_USAGE && e.exit_code == 2 && strstr(e.what, refused[i].word), "%s: %s",
              refused[i].word, e.what);
    }
}

int main(void) {
    test_slot_assignment();
    test_slot_by_file_name();
    test_two_components_for_one_slot_refused();
    test_required_encoder_missing();
    test_clip_by_width();
    test_every_slot_flag_listed_once();
    test_invalid_component_flags_refused();
    return finish();
}
