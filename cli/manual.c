/* `sluice manual`: prints the man page from the tables of commands and flags. */
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/flags.h"

#include <string.h>

/* Prints text with roff escapes for backslashes, dashes and a leading . or '. */
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
    for (int i = 0; (other = flag_synonym(flag->name, i)); i++) {
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
        {"0", "success"},
        {"1", "internal error (bug)"},
        {"2", "wrong usage: a flag, a value or a combination of flags"},
        {"3", "a model or another input file is missing, damaged or of the wrong kind"},
        {"4", "over the memory budget; the message names the smallest sufficient budget"},
        {"5", "GPU or memory failure"},
        {"6", "output not written"},
        {"7", "NaN or infinity in the weights or the result"},
        {"130", "cancelled"},
    };
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        printf(".TP\n.B %s\n%s\n", codes[i].code, codes[i].what);
}

int manual_command(const struct args *args, struct sluice_error *e) {
    (void)args;
    (void)e;
    printf(".TH SLUICE 1 \"\" \"sluice %s\" \"User Commands\"\n"
           ".SH NAME\nsluice \\- run diffusion models that are larger than GPU memory and RAM\n"
           ".SH SYNOPSIS\n.B sluice\n.I COMMAND\n[\\fIflags\\fR]\n"
           ".SH DESCRIPTION\nGenerates images and videos with diffusion models. Weights that do not fit the "
           "memory budget are streamed from disk or RAM during the computation.\n"
           ".SH COMMANDS\n",
           sluice_version());
    for (int i = 0; i < N_COMMANDS; i++) put_command(&commands[i]);
    printf(".SH FLAGS\nIn brackets: the commands that take the flag.\n");
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
