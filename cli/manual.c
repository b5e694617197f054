/* `sluice manual`: the man page, from the tables of commands and flags. */
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/names.h"

#include <string.h>

/* Of roff: a backslash, a dash that is typed as one, and what begins a line. */
static void put_roff(const char *text) {
    if (*text == '.' || *text == '\'') printf("\\&");
    for (; *text; text++) {
        if (*text == '\\')
            printf("\\e");
        else if (*text == '-')
            printf("\\-");
        else
            putchar(*text);
    }
}

static void put_command(const struct command *command) {
    printf(".TP\n.B sluice ");
    put_roff(command->name);
    if (command->operands) putchar(' ');
    if (command->operands) put_roff(command->operands);
    printf("\n");
    put_roff(command->summary);
    if (command->details) printf(".\n");
    if (command->details) put_roff(command->details);
    printf("\n");
}

static void put_names(const struct flag *flag) {
    const char *other;
    printf(".TP\n\\fB");
    if (flag->letter) put_roff(flag->letter);
    if (flag->letter) printf("\\fR, \\fB");
    put_roff(flag->name);
    for (int i = 0; (other = name_other(flag->name, i)); i++) {
        printf("\\fR, \\fB");
        put_roff(other);
    }
    printf("\\fR");
    if (flag->value) printf(" \\fI");
    if (flag->value) put_roff(help_value(flag));
    if (flag->value) printf("\\fR");
    printf("\n");
}

static void put_flag(const struct flag *flag) {
    int n = 0;
    put_names(flag);
    put_roff(flag->help);
    printf(" (");
    for (int i = 0; i < N_COMMANDS; i++)
        if (flag->commands & commands[i].bit) printf("%s%s", n++ ? ", " : "", commands[i].name);
    printf(")\n");
}

static void put_flags(void) {
    for (int i = 0; i < n_flags; i++) {
        if (flags[i].group) printf(".SS %s\n", flags[i].group);
        put_flag(&flags[i]);
    }
}

static void put_exit_codes(void) {
    static const struct {
        const char *code, *what;
    } codes[] = {
        {"0", "done"},
        {"1", "our mistake"},
        {"2", "wrong usage: a flag, a value, a combination"},
        {"3", "a model or another input is missing, damaged or in the wrong place"},
        {"4", "does not fit the budget; the message names the least that would"},
        {"5", "device or memory failure"},
        {"6", "output not written"},
        {"7", "a number that is none"},
        {"130", "cancelled"},
    };
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        printf(".TP\n.B %s\n%s\n", codes[i].code, codes[i].what);
}

int manual_command(const struct args *args, struct sluice_error *e) {
    (void)args;
    (void)e;
    printf(".TH SLUICE 1 \"\" \"sluice %s\" \"User Commands\"\n"
           ".SH NAME\nsluice \\- diffusion models that are bigger than the memory they run in\n"
           ".SH SYNOPSIS\n.B sluice\n.I COMMAND\n[\\fIflags\\fR]\n"
           ".SH DESCRIPTION\nDraws pictures with diffusion models whose weights flow from disk as they are "
           "used, within a budget of memory that is known beforehand.\n"
           ".SH COMMANDS\n",
           sluice_version());
    for (int i = 0; i < N_COMMANDS; i++) put_command(&commands[i]);
    printf(".SH FLAGS\nIn brackets: the commands that take it.\n");
    put_flags();
    printf(".SH EXIT STATUS\n");
    put_exit_codes();
    printf(".SH EXAMPLES\n");
    for (int i = 0; i < N_COMMANDS; i++) {
        printf(".PP\n.EX\n");
        put_roff(commands[i].example);
        printf("\n.EE\n");
    }
    return SLUICE_OK;
}
