#include "cli/help.h"

#include "engine/sluice.h"

#include <string.h>

enum { WIDTH = 80, FLAG_COLUMN = 26 };

/* Flags that --help lists, each between spaces; commands that are absent here list all their flags. */
static const struct {
    enum command_bit command;
    const char *flags;
} first[] = {
    {GENERATE,
     " --model --prompt --negative-prompt --width --height --steps --cfg-scale --seed --batch --init-img "
     "--lora --output --max-ram --max-vram --device "},
    {DECODE,
     " --model --vae --taesd --output --max-ram --max-vram --device --vae-tiling --report --threads "},
    {PLAN, " --model --family --width --height --batch --max-ram --max-vram --device --type --json "},
    {INSPECT,
     " --model --diffusion-model --llm --llm_vision --clip_l --t5xxl --vae --tokenizer --json --tensors "},
    {TOKENIZE, " --model --llm --clip_l --t5xxl --tokenizer --prompt --json "},
    {BENCH, " --model --json --type --threads --save --dir --predict "},
};

static bool is_first(const struct flag *flag, enum command_bit command) {
    char word[64];
    snprintf(word, sizeof word, " %s ", flag->name);
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        if (first[i].command == command) return strstr(first[i].flags, word) != NULL;
    return true;
}

/* Prints text from this column on, wrapped to WIDTH columns; further lines begin at the same column. */
static void print_wrapped(const char *text, int column) {
    int at = column;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (at > column && at + 1 + word > WIDTH) at = printf("\n%*s", column, "") - 1;
        at += printf("%s%.*s", at > column ? " " : "", word, text);
        text += word + (text[word] == ' ');
    }
    putchar('\n');
}

const char *help_value(const struct flag *flag) {
    enum { LONG = 40 };
    bool several = flag->choices && strchr(flag->choices, '|') && strlen(flag->choices) <= LONG;
    return several ? flag->choices : flag->value;
}

/* A clause ends at a semicolon. A long clause ends at a colon, unless the colon is in the first NAME bytes
 * ("bench bus: ..."). */
char *help_clause(const struct flag *flag, char *out, size_t out_bytes) {
    enum { LONG = WIDTH - FLAG_COLUMN, NAME = 16 };
    size_t length = strcspn(flag->help, ";");
    const char *colon = length > NAME ? strstr(flag->help + NAME, ": ") : NULL;
    if (length > LONG && colon && colon < flag->help + length) length = (size_t)(colon - flag->help);
    snprintf(out, out_bytes, "%.*s", (int)length, flag->help);
    return out;
}

static void print_flag(const struct flag *flag, bool all) {
    char left[96], clause[256];
    const char *value = help_value(flag);
    int bytes = snprintf(left, sizeof left, "  %s%s%s%s%s", flag->letter ? flag->letter : "  ",
                         flag->letter ? ", " : "  ", flag->name, value ? " " : "", value ? value : "");
    printf("%-*s", FLAG_COLUMN, left);
    if (bytes >= FLAG_COLUMN) printf("\n%*s", FLAG_COLUMN, "");
    print_wrapped(all ? flag->help : help_clause(flag, clause, sizeof clause), FLAG_COLUMN);
}

static void print_usage(const struct command *command) {
    const char *name = command->name, *operands = command->operands;
    int column = printf("usage: ");
    char line[160];
    snprintf(line, sizeof line, "sluice %s %s%s[flags]", name, operands ? operands : "", operands ? " " : "");
    print_wrapped(line, column);
    printf("%*s%s\n\n", column, "", command->example);
}

void help_command(const struct command *command, bool all) {
    const char *group = "", *printed = "";
    bool omitted = false;
    int column = printf("sluice %s: ", command->name);
    print_wrapped(command->summary, column);
    putchar('\n');
    print_usage(command);
    if (command->details && all) print_wrapped(command->details, 0);
    for (int i = 0; i < n_flags; i++) {
        if (flags[i].group) group = flags[i].group;
        if (!(flags[i].commands & command->bit)) continue;
        bool shown = all || is_first(&flags[i], command->bit);
        if (!shown) omitted = true;
        if (shown && all && group != printed) printf("\n%s\n", group);
        if (shown && all) printed = group;
        if (shown) print_flag(&flags[i], all);
    }
    if (omitted) printf("\nsluice %s --help-all lists all flags.\n", command->name);
}

void help_everything(void) {
    for (int i = 0; i < N_COMMANDS; i++) {
        if (i) printf("\n\n");
        help_command(&commands[i], true);
    }
}

void help_program(void) {
    printf("sluice %s: runs diffusion models that are larger than GPU memory and RAM\n\n"
           "usage: sluice COMMAND [flags]\n\n",
           sluice_version());
    for (int i = 0; i < N_COMMANDS; i++) printf("  %-10s  %s\n", commands[i].name, commands[i].summary);
    printf("\nCOMMAND --help lists the most used flags, --help-all all of them.\n\n  %s\n  %s\n\n",
           commands[0].example, commands[2].example);
    print_wrapped("Exit codes: 0 success, 1 internal error, 2 wrong usage, 3 bad or missing input file, 4 "
                  "over the memory budget, 5 GPU or memory failure, 6 output not written, 7 NaN in weights "
                  "or result, 130 cancelled.",
                  0);
}
