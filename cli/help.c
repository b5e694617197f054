/* --help: see help.h. */
#include "cli/help.h"

#include "engine/sluice.h"

#include <stdio.h>
#include <string.h>

/* Prints text from the given column, broken at spaces before column 100. */
static void print_wrapped(const char *text, int column) {
    int at = column;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (at > column && at + 1 + word > 100) at = printf("\n%*s", column, "") - 1;
        at += printf("%s%.*s", at > column ? " " : "", word, text);
        text += word + (text[word] == ' ');
    }
    putchar('\n');
}

static void print_flag(const struct flag *flag) {
    char left[80];
    const char *choices = flag->choices && strcmp(flag->name, "--sampler") ? flag->choices : flag->value;
    snprintf(left, sizeof left, "  %s%s%s%s%s", flag->letter ? flag->letter : "  ",
             flag->letter ? ", " : "  ", flag->name, flag->value ? " " : "", flag->value ? choices : "");
    printf("%-34s", left);
    if (strlen(left) > 33) printf("\n%34s", "");
    print_wrapped(flag->help, 34);
}

void help_command(const struct command *command) {
    const char *group = "", *printed = "";
    printf("sluice %s: %s\n\nusage: sluice %s %s%s[flags]\n       %s\n", command->name, command->summary,
           command->name, command->operands ? command->operands : "", command->operands ? " " : "",
           command->example);
    for (int i = 0; i < n_flags; i++) {
        if (flags[i].group) group = flags[i].group;
        if (!(flags[i].commands & command->bit)) continue;
        if (group != printed) printf("\n%s\n", group);
        printed = group;
        print_flag(&flags[i]);
    }
    printf("\n      --help                      this text\n");
}

void help_program(void) {
    printf("sluice %s: diffusion models that are bigger than the memory they run in\n\n"
           "usage: sluice COMMAND [flags]\n\n",
           sluice_version());
    for (int i = 0; i < N_COMMANDS; i++) printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    printf("\nsluice COMMAND --help lists a command's flags; sluice --version prints the version.\n\n"
           "To start:\n  %s\n  %s\n\n",
           commands[0].example, commands[2].example);
    printf("Exit codes: 0 done, 1 our mistake, 2 wrong usage, 3 a file is missing, damaged or in the wrong "
           "place,\n"
           "4 does not fit the budget, 5 device or memory failure, 6 output not written, 7 not a number, 130 "
           "cancelled.\n");
}
