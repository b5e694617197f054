/* `sluice completion`: what a shell completes, from the tables of commands and flags. */
#include "cli/commands.h"
#include "cli/fail.h"
#include "cli/help.h"

#include <string.h>

static bool is_path(const struct flag *flag) {
    static const char *const values[] = {"PATH", "FILE", "DIR", "FILE[:S]"};
    for (size_t i = 0; flag->value && i < sizeof values / sizeof *values; i++)
        if (strcmp(flag->value, values[i]) == 0) return true;
    return false;
}

/* The choices of a flag, apart by spaces. */
static void put_choices(const struct flag *flag) {
    for (const char *c = flag->choices; *c; c++) putchar(*c == '|' ? ' ' : *c);
}

static void put_commands(void) {
    for (int i = 0; i < N_COMMANDS; i++) printf("%s ", commands[i].name);
}

/* ---- bash ---- */

/* "-W|--width)": what stands before a value. */
static void bash_case(const struct flag *flag) {
    printf("    %s%s%s) ", flag->letter ? flag->letter : "", flag->letter ? "|" : "", flag->name);
}

static void bash_values(void) {
    for (int i = 0; i < n_flags; i++) {
        const struct flag *flag = &flags[i];
        if (!flag->value || is_path(flag)) continue;
        bash_case(flag);
        printf("compopt +o default; ");
        if (flag->choices) {
            printf("COMPREPLY=($(compgen -W \"");
            put_choices(flag);
            printf("\" -- \"$word\")); ");
        }
        printf("return ;;\n");
    }
    for (int i = 0; i < n_flags; i++) {
        if (!is_path(&flags[i])) continue;
        bash_case(&flags[i]);
        printf("return ;;\n");
    }
}

static void complete_bash(void) {
    printf("# bash completion of sluice %s\n_sluice() {\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} names=\n"
           "    COMPREPLY=()\n    if [ \"$COMP_CWORD\" = 1 ]; then\n        COMPREPLY=($(compgen -W \"",
           sluice_version());
    put_commands();
    printf("--help --help-all --version\" -- \"$word\"))\n        return\n    fi\n    case $before in\n");
    bash_values();
    printf("    esac\n    case ${COMP_WORDS[1]} in\n");
    for (int i = 0; i < N_COMMANDS; i++) {
        printf("    %s) names=\"", commands[i].name);
        for (int k = 0; k < n_flags; k++)
            if (flags[k].commands & commands[i].bit) printf("%s ", flags[k].name);
        printf("--help --help-all\" ;;\n");
    }
    printf("    esac\n    case $word in -*) COMPREPLY=($(compgen -W \"$names\" -- \"$word\")) ;; esac\n}\n"
           "complete -o default -F _sluice sluice\n");
}

/* ---- zsh ---- */

/* For _arguments, within single quotes. */
static void zsh_text(const char *text) {
    for (; *text; text++) {
        if (strchr("[]:\\", *text)) putchar('\\');
        if (*text == '\'') printf("'\\'");
        putchar(*text);
    }
}

static void zsh_flag(const struct flag *flag) {
    char clause[256];
    const char *again = flag_repeats(flag) ? "*" : "";
    printf(" \\\n        ");
    if (flag->letter && !*again) printf("'(%s %s)'", flag->letter, flag->name);
    if (flag->letter)
        printf("%s{%s,%s}'[", *again ? "\\*" : "", flag->letter, flag->name);
    else
        printf("'%s%s[", again, flag->name);
    zsh_text(help_clause(flag, clause, sizeof clause));
    putchar(']');
    if (flag->value) printf(":%s:", flag->value);
    if (is_path(flag)) printf("_files");
    if (flag->choices) {
        putchar('(');
        put_choices(flag);
        putchar(')');
    }
    putchar('\'');
}

static void complete_zsh(void) {
    printf("#compdef sluice\n# zsh completion of sluice %s\n_sluice() {\n    local -a commands\n    "
           "commands=(\n",
           sluice_version());
    for (int i = 0; i < N_COMMANDS; i++) {
        printf("        '%s:", commands[i].name);
        zsh_text(commands[i].summary);
        printf("'\n");
    }
    printf(
        "    )\n    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    fi\n"
        "    local command=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $command in\n");
    for (int i = 0; i < N_COMMANDS; i++) {
        printf("    %s)\n        _arguments", commands[i].name);
        for (int k = 0; k < n_flags; k++)
            if (flags[k].commands & commands[i].bit) zsh_flag(&flags[k]);
        printf(" \\\n        '--help[its most used flags]' '--help-all[all its flags]' '*:file:_files' ;;\n");
    }
    printf("    esac\n}\nif [ \"$funcstack[1]\" = _sluice ]; then\n    _sluice \"$@\"\nelse\n"
           "    compdef _sluice sluice\nfi\n");
}

/* ---- fish ---- */

/* Within single quotes. */
static void fish_text(const char *text) {
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\') putchar('\\');
        putchar(*text);
    }
}

static void fish_flag(const struct flag *flag) {
    char clause[256];
    printf("complete -c sluice -n '__fish_seen_subcommand_from");
    for (int i = 0; i < N_COMMANDS; i++)
        if (flag->commands & commands[i].bit) printf(" %s", commands[i].name);
    printf("' -l %s", flag->name + 2);
    if (flag->letter) printf(" -s %s", flag->letter + 1);
    if (flag->value) printf(is_path(flag) ? " -r -F" : " -x");
    if (flag->choices) {
        printf(" -a '");
        put_choices(flag);
        putchar('\'');
    }
    printf(" -d '");
    fish_text(help_clause(flag, clause, sizeof clause));
    printf("'\n");
}

static void complete_fish(void) {
    printf("# fish completion of sluice %s\n", sluice_version());
    for (int i = 0; i < N_COMMANDS; i++) {
        printf("complete -c sluice -n __fish_use_subcommand -f -a %s -d '", commands[i].name);
        fish_text(commands[i].summary);
        printf("'\n");
    }
    printf("complete -c sluice -l help -d 'the most used flags'\n"
           "complete -c sluice -l help-all -d 'all flags'\n");
    for (int i = 0; i < n_flags; i++) fish_flag(&flags[i]);
}

int completion_command(const struct args *args, struct sluice_error *e) {
    static const struct {
        const char *shell;
        void (*complete)(void);
    } shells[] = {{"bash", complete_bash}, {"zsh", complete_zsh}, {"fish", complete_fish}};
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
        if (strcmp(args->operands[0], shells[i].shell) != 0) continue;
        shells[i].complete();
        return SLUICE_OK;
    }
    return fail_value(e, "sluice completion", args->operands[0], "bash, zsh or fish");
}
