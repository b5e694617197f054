/* Texts made from the tables of args.h: --help and --help-all, the man page, and completions for shells. */
#include "cli/commands.h"

#include "cli/fail.h"

#include <jansson.h>
#include <string.h>

/* ---- --help ---- */

enum { WIDTH = 80, FLAG_COLUMN = 26 }; /* FLAG_COLUMN: where the help text of a flag begins */

/* Flags that --help lists, at most 15, each between spaces; commands that are absent here list all their
 * flags. */
static const struct {
    enum command_bit command;
    const char *flags;
} first[] = {
    {GENERATE,
     " --model --prompt --negative-prompt --width --height --steps --cfg-scale --seed --batch --init-img "
     "--lora --output --max-ram --max-vram --device "},
    {UPSCALE, " --upscale-model --output --quality --max-ram --max-vram --device --precision --report "},
    {DECODE,
     " --model --vae --taesd --output --max-ram --max-vram --device --vae-tiling --report --threads "},
    {PLAN,
     " --model --family --width --height --batch --max-ram --max-vram --device --precision --type --json "},
    {INSPECT,
     " --model --diffusion-model --llm --llm_vision --clip_l --t5xxl --vae --tokenizer --json --tensors "},
    {TOKENIZE, " --model --llm --clip_l --t5xxl --tokenizer --prompt --json "},
    {BENCH, " --model --json --type --threads --save --dir --predict --precision "},
};

/* Prints text from the given column on, wrapped to WIDTH columns; further lines begin at the same column. */
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

/* Help of flags that mean less to one command than to others. */
static const struct {
    unsigned command;
    const char *flag, *help;
} own_help[] = {{UPSCALE, "--output", "output image, .png, .jpg or .webp; default output.png; - is stdout"},
                {UPSCALE, "--precision", "arithmetic of the network; default: f32 on the CPU, f16 on a GPU"},
                {UPSCALE, "--upscale-model", "network that enlarges the image (ESRGAN), safetensors or GGUF"},
                {UPSCALE, "--quality", "quality of JPEG and WebP, 1 to 100; default 90"},
                {UPSCALE, "--no-metadata", "store no settings in the output file"}};

static const char *help_of(const struct flag *flag, const struct command *command) {
    for (size_t i = 0; i < sizeof own_help / sizeof *own_help; i++)
        if (own_help[i].command == command->bit && !strcmp(own_help[i].flag, flag->name))
            return own_help[i].help;
    return flag->help;
}

/* The placeholder of a flag's value ("FILE") or a short list of its choices; NULL for a switch. */
static const char *help_value(const struct flag *flag) {
    enum { LONG = 40 };
    bool several = flag->choices && strchr(flag->choices, '|') && strlen(flag->choices) <= LONG;
    return several ? flag->choices : flag->value;
}

void help_command(const struct command *command, bool all) {
    const char *group = "", *printed = "", *listed = NULL;
    bool omitted = false;
    char left[160], clause[256];
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        if (first[i].command == command->bit) listed = first[i].flags;
    print_wrapped(command->summary, printf("sluice %s: ", command->name));
    putchar('\n');
    int column = printf("usage: ");
    snprintf(left, sizeof left, "sluice %s %s%s[flags]", command->name,
             command->operands ? command->operands : "", command->operands ? " " : "");
    print_wrapped(left, column);
    printf("%*s%s\n\n", column, "", command->example);
    if (command->details && all) print_wrapped(command->details, 0);
    for (int i = 0; i < n_flags; i++) {
        const struct flag *flag = &flags[i];
        if (flag->group) group = flag->group;
        if (!(flag->commands & command->bit)) continue;
        snprintf(left, sizeof left, " %s ", flag->name);
        if (!all && listed && !strstr(listed, left)) {
            omitted = true;
            continue;
        }
        if (all && group != printed) printf("\n%s\n", group);
        printed = group;
        const char *value = help_value(flag);
        int bytes = snprintf(left, sizeof left, "  %s%s%s%s%s", flag->letter ? flag->letter : "  ",
                             flag->letter ? ", " : "  ", flag->name, value ? " " : "", value ? value : "");
        printf("%-*s", FLAG_COLUMN, left);
        if (bytes >= FLAG_COLUMN) printf("\n%*s", FLAG_COLUMN, "");
        struct flag shown = *flag;
        shown.help = help_of(flag, command);
        print_wrapped(all ? shown.help : flag_clause(&shown, clause, sizeof clause), FLAG_COLUMN);
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
           commands[0].example, command_find("plan")->example);
    print_wrapped("Exit codes: 0 success, 1 internal error, 2 usage, 3 input file, 4 memory budget, 5 GPU or "
                  "memory failure, 6 output not written, 7 NaN, 130 cancelled.",
                  0);
}

/* ---- sluice manual ---- */

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

static void put_flag(const struct flag *flag) {
    const char *other;
    int n = 0;
    printf(".TP\n\\fB");
    if (flag->letter) {
        put_roff(flag->letter);
        printf("\\fR, \\fB");
    }
    put_roff(flag->name);
    for (int i = 0; (other = flag_synonym(flag->name, i)); i++) {
        printf("\\fR, \\fB");
        put_roff(other);
    }
    printf("\\fR");
    if (flag->value) {
        printf(" \\fI");
        put_roff(help_value(flag));
        printf("\\fR");
    }
    printf("\n");
    put_roff(flag->help);
    printf(" (");
    for (int i = 0; i < N_COMMANDS; i++)
        if (flag->commands & commands[i].bit) printf("%s%s", n++ ? ", " : "", commands[i].name);
    printf(")\n");
}

int manual_command(const struct args *args, struct sluice_error *e) {
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
    (void)args;
    (void)e;
    printf(".TH SLUICE 1 \"\" \"sluice %s\" \"User Commands\"\n"
           ".SH NAME\nsluice \\- run diffusion models that are larger than GPU memory and RAM\n"
           ".SH SYNOPSIS\n.B sluice\n.I COMMAND\n[\\fIflags\\fR]\n"
           ".SH DESCRIPTION\nGenerates images and videos with diffusion models. Weights that do not fit the "
           "memory budget are streamed from disk or RAM during the computation.\n"
           ".SH COMMANDS\n",
           sluice_version());
    for (const struct command *c = commands; c < commands + N_COMMANDS; c++) {
        printf(".TP\n.B sluice ");
        put_roff(c->name);
        if (c->operands) putchar(' ');
        if (c->operands) put_roff(c->operands);
        printf("\n");
        put_roff(c->summary);
        if (c->details) printf(".\n");
        if (c->details) put_roff(c->details);
        printf("\n");
    }
    printf(".SH FLAGS\nIn brackets: the commands that take the flag.\n");
    for (int i = 0; i < n_flags; i++) {
        if (flags[i].group) printf(".SS %s\n", flags[i].group);
        put_flag(&flags[i]);
    }
    printf(".SH EXIT STATUS\n");
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        printf(".TP\n.B %s\n%s\n", codes[i].code, codes[i].what);
    printf(".SH EXAMPLES\n");
    for (int i = 0; i < N_COMMANDS; i++) {
        printf(".PP\n.EX\n");
        put_roff(commands[i].example);
        printf("\n.EE\n");
    }
    return SLUICE_OK;
}

/* ---- sluice completion ---- */

enum { WORDS_BYTES = 2048 };

/* Word lists for shell completion, from the library, each word followed by a space: families, compute
 * precisions that this machine supports, and GPU models to plan for. */
static struct { char families[WORDS_BYTES], precisions[WORDS_BYTES], cards[WORDS_BYTES]; } words;

static void add_word(char *list, const char *word) {
    size_t bytes = word ? strlen(word) : 0;
    for (const char *at = list; bytes && *at; at += strcspn(at, " ") + 1)
        if (strncmp(at, word, bytes) == 0 && at[bytes] == ' ') return;
    if (bytes) snprintf(list + strlen(list), WORDS_BYTES - strlen(list), "%s ", word);
}

static void load_words(void) {
    struct sluice_error ignored;
    char *families = NULL, *devices = NULL;
    size_t i, k;
    json_t *family, *device, *precision, *card;
    json_t *root = sluice_families(&families, &ignored) ? NULL : json_loads(families, 0, NULL);
    json_array_foreach(json_object_get(root, "families"), i, family)
        add_word(words.families, json_string_value(json_object_get(family, "name")));
    json_decref(root);
    root = sluice_devices(&devices, &ignored) ? NULL : json_loads(devices, 0, NULL);
    json_array_foreach(json_object_get(root, "devices"), i, device)
        json_array_foreach(json_object_get(device, "precisions"), k, precision)
            add_word(words.precisions, json_string_value(precision));
    json_array_foreach(json_object_get(root, "cards"), i, card)
        add_word(words.cards, json_string_value(json_object_get(card, "name")));
    json_decref(root);
    sluice_free(families);
    sluice_free(devices);
}

static bool is_path(const struct flag *flag) {
    static const char *const values[] = {"PATH", "FILE", "DIR", "FILE[:S]"};
    for (size_t i = 0; flag->value && i < sizeof values / sizeof *values; i++)
        if (strcmp(flag->value, values[i]) == 0) return true;
    return false;
}

/* Completion words for the value of a flag that has no `choices`; NULL: the flag has no word list. */
static const char *listed_words(const struct flag *flag) {
    static const struct {
        const char *flag, *words;
    } lists[] = {
        {"--family", words.families},
        {"--precision", words.precisions},
        {"--type", "f32 bf16 f16 f8_e4m3 f8_e5m2 q8_0 q6_k q5_k q5_0 q4_k q4_0 int8_convrot "},
        {"--device", "cpu cuda "},
        {"--predict", words.cards},
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

/* Completion words for the first operand of a command; NULL: a file name, or no operand. */
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

/* Prints the case label of a flag in a bash script, "-W|--width)". */
static void bash_case(const struct flag *flag) {
    printf("    %s%s%s) ", flag->letter ? flag->letter : "", flag->letter ? "|" : "", flag->name);
}

static void complete_bash(void) {
    printf("# bash completion of sluice %s\n_sluice() {\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} names=\n"
           "    COMPREPLY=()\n    if [ \"$COMP_CWORD\" = 1 ]; then\n        COMPREPLY=($(compgen -W \"",
           sluice_version());
    for (int i = 0; i < N_COMMANDS; i++) printf("%s ", commands[i].name);
    printf("--help --help-all --version\" -- \"$word\"))\n        return\n    fi\n");
    /* Completes CARD in `plan --device cuda:CARD`: bash splits the word at the colon. */
    printf("    case ${COMP_WORDS[1]}$before$word in plancuda:|plan:*) compopt +o default\n"
           "        COMPREPLY=($(compgen -W \"%s\" -- \"${word#:}\")); return ;; "
           "esac\n",
           words.cards);
    printf("    case $before in\n");
    for (const struct flag *flag = flags; flag < flags + n_flags; flag++) {
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
    printf("    esac\n    if [ \"$COMP_CWORD\" = 2 ]; then case ${COMP_WORDS[1]} in\n");
    for (int i = 0; i < N_COMMANDS; i++) {
        const char *list = operand_words(&commands[i]);
        if (list)
            printf(
                "    %s) case $word in -*) ;; *) COMPREPLY=($(compgen -W \"%s\" -- \"$word\")) ;; esac ;;\n",
                commands[i].name, list);
    }
    printf("    esac; fi\n    case ${COMP_WORDS[1]} in\n");
    for (int i = 0; i < N_COMMANDS; i++) {
        printf("    %s) names=\"", commands[i].name);
        for (int k = 0; k < n_flags; k++)
            if (flags[k].commands & commands[i].bit) printf("%s ", flags[k].name);
        printf("--help --help-all\" ;;\n");
    }
    printf("    esac\n    case $word in -*) COMPREPLY=($(compgen -W \"$names\" -- \"$word\")) ;; esac\n}\n"
           "complete -o default -F _sluice sluice\n");
}

/* Prints text escaped for zsh's _arguments, within single quotes. */
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
    zsh_text(flag_clause(flag, clause, sizeof clause));
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
    fish_text(flag_clause(flag, clause, sizeof clause));
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
        load_words();
        shells[i].complete();
        return SLUICE_OK;
    }
    return fail_value(e, "sluice completion", args->operands[0], "bash, zsh or fish");
}
