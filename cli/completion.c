/* `sluice completion`: prints completion scripts for shells, from the tables of commands and flags. */
#include "cli/commands.h"
#include "cli/fail.h"
#include "cli/help.h"

#include <jansson.h>
#include <string.h>

enum { WORDS_BYTES = 2048 };

/* Words from the library, each followed by a space: families, and precisions of this machine. */
static struct { char families[WORDS_BYTES], precisions[WORDS_BYTES]; } words;

static void add_word(char *list, const char *word) {
    size_t bytes = word ? strlen(word) : 0;
    for (const char *at = list; bytes && *at; at += strcspn(at, " ") + 1)
        if (strncmp(at, word, bytes) == 0 && at[bytes] == ' ') return;
    if (bytes) snprintf(list + strlen(list), WORDS_BYTES - strlen(list), "%s ", word);
}

static void load_families(void) {
    struct sluice_error ignored;
    char *text = NULL;
    size_t i;
    json_t *family;
    if (sluice_families(&text, &ignored)) return;
    json_t *root = json_loads(text, 0, NULL);
    json_array_foreach(json_object_get(root, "families"), i, family) {
        add_word(words.families, json_string_value(json_object_get(family, "name")));
    }
    json_decref(root);
    sluice_free(text);
}

static void load_precisions(void) {
    struct sluice_error ignored;
    char *text = NULL;
    size_t i, k;
    json_t *device, *precision;
    if (sluice_devices(&text, &ignored)) return;
    json_t *root = json_loads(text, 0, NULL);
    json_array_foreach(json_object_get(root, "devices"), i, device) {
        json_array_foreach(json_object_get(device, "precisions"), k, precision)
            add_word(words.precisions, json_string_value(precision));
    }
    json_decref(root);
    sluice_free(text);
}

static bool is_path(const struct flag *flag) {
    static const char *const values[] = {"PATH", "FILE", "DIR", "FILE[:S]"};
    for (size_t i = 0; flag->value && i < sizeof values / sizeof *values; i++)
        if (strcmp(flag->value, values[i]) == 0) return true;
    return false;
}

/* Words that complete the value of a flag, instead of its `choices`; NULL: the flag has no word list. */
static const char *listed_words(const struct flag *flag) {
    static const struct {
        const char *flag, *words;
    } lists[] = {
        {"--family", words.families},
        {"--precision", words.precisions},
        {"--type", "f32 bf16 f16 f8_e4m3 f8_e5m2 q8_0 q6_k q5_k q5_0 q4_k q4_0 int8_convrot "},
        {"--device", "cpu cuda "},
        {"--predict", "3060 4060 4060ti 4090 h100 "},
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (strcmp(flag->name, lists[i].flag) == 0 && *lists[i].words) return lists[i].words;
    return NULL;
}

static bool has_words(const struct flag *flag) {
    return flag->choices || listed_words(flag);
}

static void put_words(const struct flag *flag) {
    const char *listed = listed_words(flag);
    if (listed) {
        printf("%.*s", (int)strlen(listed) - 1, listed);
        return;
    }
    for (const char *c = flag->choices; *c; c++) putchar(*c == '|' ? ' ' : *c);
}

/* Words that complete the first operand of a command; NULL: a file name, or no operand. */
static const char *operand_words(const struct command *command) {
    switch (command->bit) {
    case BENCH:
        return "bus ops load block";
    case FAMILIES:
        return words.families;
    case COMPLETION:
        return "bash zsh fish";
    default:
        return NULL;
    }
}

static void put_commands(void) {
    for (int i = 0; i < N_COMMANDS; i++) printf("%s ", commands[i].name);
}

/* Prints the case label of a flag, "-W|--width)". */
static void bash_case(const struct flag *flag) {
    printf("    %s%s%s) ", flag->letter ? flag->letter : "", flag->letter ? "|" : "", flag->name);
}

static void bash_values(void) {
    for (int i = 0; i < n_flags; i++) {
        const struct flag *flag = &flags[i];
        if (!flag->value || is_path(flag)) continue;
        bash_case(flag);
        printf("compopt +o default; ");
        if (has_words(flag)) {
            printf("COMPREPLY=($(compgen -W \"");
            put_words(flag);
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

/* Completes CARD in `plan --device cuda:CARD`: bash splits the word at the colon. */
static void bash_cards(void) {
    printf("    case ${COMP_WORDS[1]}$before$word in plancuda:|plan:*) compopt +o default\n"
           "        COMPREPLY=($(compgen -W \"3060 4060 4060ti 4090 h100\" -- \"${word#:}\")); return ;; "
           "esac\n");
}

static void bash_operands(void) {
    printf("    if [ \"$COMP_CWORD\" = 2 ]; then case ${COMP_WORDS[1]} in\n");
    for (int i = 0; i < N_COMMANDS; i++) {
        const char *list = operand_words(&commands[i]);
        if (list)
            printf(
                "    %s) case $word in -*) ;; *) COMPREPLY=($(compgen -W \"%s\" -- \"$word\")) ;; esac ;;\n",
                commands[i].name, list);
    }
    printf("    esac; fi\n");
}

static void complete_bash(void) {
    printf("# bash completion of sluice %s\n_sluice() {\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} names=\n"
           "    COMPREPLY=()\n    if [ \"$COMP_CWORD\" = 1 ]; then\n        COMPREPLY=($(compgen -W \"",
           sluice_version());
    put_commands();
    printf("--help --help-all --version\" -- \"$word\"))\n        return\n    fi\n");
    bash_cards();
    printf("    case $before in\n");
    bash_values();
    printf("    esac\n");
    bash_operands();
    printf("    case ${COMP_WORDS[1]} in\n");
    for (int i = 0; i < N_COMMANDS; i++) {
        printf("    %s) names=\"", commands[i].name);
        for (int k = 0; k < n_flags; k++)
            if (flags[k].commands & commands[i].bit) printf("%s ", flags[k].name);
        printf("--help --help-all\" ;;\n");
    }
    printf("    esac\n    case $word in -*) COMPREPLY=($(compgen -W \"$names\" -- \"$word\")) ;; esac\n}\n"
           "complete -o default -F _sluice sluice\n");
}

/* Prints text escaped for _arguments, within single quotes. */
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
    if (has_words(flag)) {
        putchar('(');
        put_words(flag);
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
        const char *list = operand_words(&commands[i]);
        printf("    %s)\n        _arguments", commands[i].name);
        for (int k = 0; k < n_flags; k++)
            if (flags[k].commands & commands[i].bit) zsh_flag(&flags[k]);
        printf(" \\\n        '--help[list the most used flags]' '--help-all[list all flags]'");
        if (list) printf(" '1:%s:(%s)'", commands[i].name, list);
        printf(" '*:file:_files' ;;\n");
    }
    printf("    esac\n}\nif [ \"$funcstack[1]\" = _sluice ]; then\n    _sluice \"$@\"\nelse\n"
           "    compdef _sluice sluice\nfi\n");
}

/* Prints text escaped for fish's single quotes. */
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
    if (has_words(flag)) {
        printf(" -a '");
        put_words(flag);
        putchar('\'');
    }
    printf(" -d '");
    fish_text(help_clause(flag, clause, sizeof clause));
    printf("'\n");
}

static void complete_fish(void) {
    printf("# fish completion of sluice %s\n", sluice_version());
    for (int i = 0; i < N_COMMANDS; i++) {
        const char *list = operand_words(&commands[i]);
        printf("complete -c sluice -n __fish_use_subcommand -f -a %s -d '", commands[i].name);
        fish_text(commands[i].summary);
        printf("'\n");
        if (list)
            printf("complete -c sluice -n '__fish_seen_subcommand_from %s' -f -a '%s'\n", commands[i].name,
                   list);
    }
    printf("complete -c sluice -l help -d 'list the most used flags'\n"
           "complete -c sluice -l help-all -d 'list all flags'\n");
    for (int i = 0; i < n_flags; i++) fish_flag(&flags[i]);
}

int completion_command(const struct args *args, struct sluice_error *e) {
    static const struct {
        const char *shell;
        void (*complete)(void);
    } shells[] = {{"bash", complete_bash}, {"zsh", complete_zsh}, {"fish", complete_fish}};
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
        if (strcmp(args->operands[0], shells[i].shell) != 0) continue;
        load_families();
        load_precisions();
        shells[i].complete();
        return SLUICE_OK;
    }
    return fail_value(e, "sluice completion", args->operands[0], "bash, zsh or fish");
}
