/* LoRA tags in prompts (<lora:NAME:STRENGTH>): the remaining text, the adapters, and refusals. */
#include "engine/open/prompt_syntax.h"
#include "test/lib/check.h"

#include <string.h>

struct row {
    const char *text, *remaining; /* remaining NULL: the text is refused */
    int n;
    const char *name[2];
    double strength[2];
};

static const struct row rows[] = {
    {"a fox", "a fox", 0, {0}, {0}},
    {"a fox <lora:x>", "a fox", 1, {"x"}, {1}},
    {"<lora:x:0.5> a fox", "a fox", 1, {"x"}, {0.5}},
    {"a <lora:styles/ink:-1.25> fox", "a fox", 1, {"styles/ink"}, {-1.25}},
    {"a<lora:x>fox", "afox", 1, {"x"}, {1}},
    {"a<lora:x:1> fox", "a fox", 1, {"x"}, {1}},
    {"a fox, <lora:x:0> <lora:y y:2e-1>", "a fox,", 2, {"x", "y y"}, {0, 0.2}},
    {"<lora:x><lora:x>", "", 2, {"x", "x"}, {1, 1}},
    {"(red <lora:x:+.5>:1.2)\nfox", "(red :1.2)\nfox", 1, {"x"}, {0.5}},
    {"a <lora:..x/.y:1>", "a", 1, {"..x/.y"}, {1}},
    /* A tag without an end, or with another name than lora, stays in the prompt. */
    {"a <lora:x", "a <lora:x", 0, {0}, {0}},
    {"a <lora:x\n>", "a <lora:x\n>", 0, {0}, {0}},
    {"a <lora:<lora:x>", "a <lora:", 1, {"x"}, {1}},
    {"a <lore:x> <LORA:x>", "a <lore:x> <LORA:x>", 0, {0}, {0}},
    {"a <lora:>", NULL, 0, {0}, {0}},
    {"a <lora::1>", NULL, 0, {0}, {0}},
    {"a <lora:x:>", NULL, 0, {0}, {0}},
    {"a <lora:x:one>", NULL, 0, {0}, {0}},
    {"a <lora:x:1:0.5>", NULL, 0, {0}, {0}},
    {"a <lora:x:0x1>", NULL, 0, {0}, {0}},
    {"a <lora:x:nan>", NULL, 0, {0}, {0}},
    {"a <lora:x: 1>", NULL, 0, {0}, {0}},
    {"a <lora:x:1e9>", NULL, 0, {0}, {0}},
    {"a <lora:../x>", NULL, 0, {0}, {0}},
    {"a <lora:y/../../x:1>", NULL, 0, {0}, {0}},
    {"a <lora:y/..>", NULL, 0, {0}, {0}},
    {"a <lora:/x>", NULL, 0, {0}, {0}},
    {"a <lora:|high_noise|x:1>", NULL, 0, {0}, {0}},
};

static void test_tag_parsing(struct sys *sys, const struct row *row) {
    struct lora_tags tags;
    struct error e = {0};
    enum status status = lora_tags_read(sys, "prompt", row->text, &tags, &e);
    check(status == (row->remaining ? OK : USAGE), "%s: %s", row->text, e.what);
    if (row->remaining) {
        const char *remaining = tags.text ? tags.text : row->text;
        check(!strcmp(remaining, row->remaining), "%s: remaining text '%s'", row->text, remaining);
        check(tags.n == row->n, "%s: %d tags", row->text, tags.n);
    } else {
        check(strstr(e.found, "<lora:"), "%s: the error found %s", row->text, e.found);
    }
    for (int i = 0; i < tags.n && row->remaining; i++)
        check(!strcmp(tags.tag[i].name, row->name[i]) && tags.tag[i].strength == row->strength[i],
              "%s has %s at %g", row->text, tags.tag[i].name, tags.tag[i].strength);
    lora_tags_destroy(sys, &tags);
}

static void test_tag_limit(struct sys *sys) {
    char text[8 * (SLUICE_LORAS_MAX + 1) + 1] = "";
    struct lora_tags tags;
    struct error e = {0};
    for (int i = 0; i <= SLUICE_LORAS_MAX; i++) {
        check(lora_tags_read(sys, "prompt", text, &tags, &e) == OK && tags.n == i, "%d tags", i);
        lora_tags_destroy(sys, &tags);
        strcat(text, "<lora:x>");
    }
    check(lora_tags_read(sys, "prompt", text, &tags, &e) == USAGE, "one tag too many is accepted");
    lora_tags_destroy(sys, &tags);
}

int main(void) {
    struct sys sys;
    sys_init_machine(&sys);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) test_tag_parsing(&sys, &rows[i]);
    test_tag_limit(&sys);
    check(sys_memory_use(&sys).live_bytes[LINE_HOST] == 0, "memory leaks");
    return finish();
}
