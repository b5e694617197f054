/* Parses the command line by the tables of flags and commands (flags.h). Does not check combinations of
 * flags. */
#include "cli/args.h"

#include "cli/fail.h"
#include "cli/help.h"
#include "cli/flags.h"
#include "cli/prompt.h"
#include "cli/values.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLAG_NAME_MAX = 64 }; /* buffer for a flag name as typed; no flag has so long a name */

static char *commands_of(const struct flag *flag, char *out, size_t out_bytes) {
    size_t bytes = 0;
    for (int i = 0; i < N_COMMANDS; i++)
        if (flag->commands & commands[i].bit && bytes < out_bytes)
            bytes +=
                (size_t)snprintf(out + bytes, out_bytes - bytes, "%s%s", bytes ? ", " : "", commands[i].name);
    return out;
}

static int unknown_flag(const struct args *args, const char *typed, struct sluice_error *e) {
    char of[96];
    const struct flag *elsewhere = flag_find(typed);
    const char *nearest = flag_nearest(args->command->bit, typed);
    const char *answer = foreign_flag_advice(typed);
    bool is_json_flag = elsewhere && args->command->bit & (GENERATE | DECODE) && !strcmp(typed, "--json");
    if (elsewhere) {
        fail(e, SLUICE_USAGE, "this flag belongs to other commands: %s",
             commands_of(elsewhere, of, sizeof of));
    } else if (answer) {
        fail(e, SLUICE_USAGE, "not a flag of this program");
    } else if (nearest) {
        fail(e, SLUICE_USAGE, "unknown flag, did you mean %s?", nearest);
    } else {
        fail(e, SLUICE_USAGE, "unknown flag");
    }
    fail_where(e, "sluice %s", args->command->name);
    fail_found(e, "%s", typed);
    if (answer && !elsewhere) return fail_expected(e, "%s", answer);
    if (is_json_flag) return fail_expected(e, "--report FILE, or --report - for JSON on stdout");
    return fail_expected(e, "a flag that sluice %s --help-all lists", args->command->name);
}

static int missing_value(const struct flag *flag, const char *found, struct sluice_error *e) {
    fail(e, SLUICE_USAGE, "a value is missing" WHERE "%s" FOUND "%s", flag->name, found ? found : "nothing");
    char clause[256];
    if (flag->kind == FLAG_CHOICE) return fail_expected(e, "%s", flag->choices);
    if (flag->kind == FLAG_SAMPLER) return fail_expected(e, "%s", sampler_list(clause, sizeof clause));
    if (flag->kind == FLAG_SCHEDULER) return fail_expected(e, "%s", schedule_list(clause, sizeof clause));
    return fail_expected(e, "%s: %s", flag->value, help_clause(flag, clause, sizeof clause));
}

/* Error for a flag that is repeated with another value. Repeating a flag with an equal value is accepted. */
static int repeated_with_other_value(const struct flag *flag, const char *first, const char *second,
                                     struct sluice_error *e) {
    return fail(e, SLUICE_USAGE,
                "flag given twice with different values" WHERE "%s" FOUND "\"%s\" and \"%s\"" EXPECTED
                "one value",
                flag->name, first, second);
}

static int store_string(const struct flag *flag, const char *text, const char **out, struct sluice_error *e) {
    if (!*text) return fail_value(e, flag->name, text, flag->value);
    *out = text;
    return SLUICE_OK;
}

static int too_often(const struct flag *flag, const char *text, int most, struct sluice_error *e) {
    return fail(e, SLUICE_USAGE,
                "flag given too many times" WHERE "%s" FOUND "\"%s\"" EXPECTED "at most %d times", flag->name,
                text, most);
}

static int store_another(const struct flag *flag, const char *text, struct strings *out,
                         struct sluice_error *e) {
    if (out->n == STRINGS_MAX) return too_often(flag, text, STRINGS_MAX, e);
    return store_string(flag, text, &out->at[out->n++], e);
}

static int store_lora(const struct flag *flag, const char *text, struct loras *out, struct sluice_error *e) {
    if (out->n == SLUICE_LORAS_MAX) return too_often(flag, text, SLUICE_LORAS_MAX, e);
    return value_lora(flag, text, &out->at[out->n++], e);
}

/* Appends the path of a model part (--vae PATH). A repeated pair of flag and path adds nothing. */
static int store_part(struct args *args, const struct flag *flag, const char *text, struct sluice_error *e) {
    int n = args->model.n_parts;
    for (int i = 0; i < n; i++)
        if (args->parts[i].flag == flag->name) return SLUICE_OK;
    args->parts[n].flag = flag->name;
    args->model.parts = args->parts;
    args->model.n_parts++;
    return store_string(flag, text, &args->parts[n].path, e);
}

static int store(struct args *args, const struct flag *flag, const char *text, struct sluice_error *e) {
    void *to = (char *)args + flag->offset;
    switch (flag->kind) {
    case FLAG_SWITCH:
        *(bool *)to = true;
        return SLUICE_OK;
    case FLAG_STRING:
        return store_string(flag, text, to, e);
    case FLAG_STRINGS:
        return store_another(flag, text, to, e);
    case FLAG_LORAS:
        return store_lora(flag, text, to, e);
    case FLAG_PROMPT:
        ((struct prompt_text *)to)->typed = text;
        return SLUICE_OK;
    case FLAG_WHOLE:
        return value_whole(flag, text, to, e);
    case FLAG_REAL:
        return value_real(flag, text, to, e);
    case FLAG_SCALES:
        return value_scales(flag, text, to, e);
    case FLAG_LAYERS:
        return value_layers(flag, text, to, e);
    case FLAG_SEED:
        return value_seed(flag, text, to, e);
    case FLAG_SIZE:
        return value_size(flag, text, to, e);
    case FLAG_DEVICE_SIZE:
        return value_device_size(flag, text, to, e);
    case FLAG_CHOICE:
        *(const char **)to = text;
        return value_choice(flag, text, e);
    case FLAG_SAMPLER:
        return value_sampler(flag, text, &args->sampler, &args->sampler_schedule, e);
    case FLAG_SCHEDULER:
        return value_schedule(flag, text, to, e);
    case FLAG_PART:
        return store_part(args, flag, text, e);
    }
    return fail(e, SLUICE_INTERNAL, "a flag of unknown kind");
}

static int args_take(struct args *args, const struct flag *flag, const char *text, struct sluice_error *e) {
    long row = flag - flags;
    if (args->is_set[row] && text && !flag_repeats(flag) && strcmp(args->typed[row], text) != 0)
        return repeated_with_other_value(flag, args->typed[row], text, e);
    args->is_set[row] = true;
    args->typed[row] = text;
    return store(args, flag, text, e);
}

/* Splits "--name=value" and "-b4": copies the name, returns the value, or NULL if there is none. */
static const char *split_word(const char *word, char name[FLAG_NAME_MAX]) {
    size_t length = word[1] == '-' ? strcspn(word, "=") : 2;
    if (word[1] != '-' && !isdigit((unsigned char)word[length + (word[length] == '-')]))
        length = strlen(word);
    snprintf(name, FLAG_NAME_MAX, "%.*s", (int)length, word);
    return word[length] ? word + length + (word[length] == '=') : NULL;
}

/* Reads the flag at argv[*i] and its value; sets *i to the last word read. If the next word is a flag, the
 * value is missing; "--name=-m" passes such a value. */
static int read_flag(struct args *args, int argc, char **argv, int *i, struct sluice_error *e) {
    char name[FLAG_NAME_MAX];
    const char *value = split_word(argv[*i], name);
    const struct flag *flag = flag_find(name);
    if (!flag || !(flag->commands & args->command->bit)) return unknown_flag(args, name, e);
    if (flag->kind == FLAG_SWITCH)
        return value ? fail_value(e, flag->name, value, "no value: this flag is a switch")
                     : args_take(args, flag, NULL, e);
    if (value) return args_take(args, flag, value, e);
    const char *next = *i + 1 < argc ? argv[*i + 1] : NULL;
    if (!next || flag_find(next) || strncmp(next, "--help", 6) == 0) return missing_value(flag, next, e);
    ++*i;
    return args_take(args, flag, next, e);
}

static int read_operand(struct args *args, const char *text, struct sluice_error *e) {
    if (args->n_operands < args->command->n_operands && *text) {
        args->operands[args->n_operands++] = text;
        return SLUICE_OK;
    }
    return fail(e, SLUICE_USAGE, "unexpected argument" WHERE "sluice %s" FOUND "\"%s\"" EXPECTED "flags%s%s",
                args->command->name, text, args->command->operands ? " and " : " only",
                args->command->operands ? args->command->operands : "");
}

static int read_word(struct args *args, int argc, char **argv, int *i, bool *only_operands,
                     struct sluice_error *e) {
    const char *word = argv[*i];
    if (*only_operands || word[0] != '-' || !word[1]) return read_operand(args, word, e);
    if (strcmp(word, "--") == 0) {
        *only_operands = true;
        return SLUICE_OK;
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        args->help = true;
        return SLUICE_OK;
    }
    if (strcmp(word, "--help-all") == 0) {
        args->help = args->help_all = true;
        return SLUICE_OK;
    }
    return read_flag(args, argc, argv, i, e);
}

static int check_together(const struct args *args, struct sluice_error *e) {
    if (args->quiet && args->verbose) {
        return fail(e, SLUICE_USAGE,
                    "-q and -v contradict each other" WHERE "sluice %s" EXPECTED "one of them",
                    args->command->name);
    }
    if (args->n_operands >= args->command->n_operands_least) return SLUICE_OK;
    return fail(e, SLUICE_USAGE, "an argument is missing" WHERE "sluice %s" EXPECTED "%s",
                args->command->name, args->command->operands);
}

static int two_from_stdin(struct sluice_error *e) {
    return fail(e, SLUICE_USAGE,
                "both prompts are read from stdin" WHERE "--prompt, --negative-prompt" FOUND
                "\"@-\" twice" EXPECTED "a file for one of them");
}

static bool from_stdin(const struct prompt_text *prompt) {
    return prompt->typed && strcmp(prompt->typed, "@-") == 0;
}

/* Reads the files of @FILE prompts. Runs last, so that a mistyped flag is reported first. */
static int read_prompts(struct args *args, struct sluice_error *e) {
    bool as_bytes = args->command->bit == TOKENIZE;
    int status = SLUICE_OK;
    if (from_stdin(&args->prompt) && from_stdin(&args->negative_prompt)) return two_from_stdin(e);
    if (args->prompt.typed) status = prompt_read(&args->prompt, "--prompt", as_bytes, e);
    if (!status && args->negative_prompt.typed)
        status = prompt_read(&args->negative_prompt, "--negative-prompt", as_bytes, e);
    return status;
}

int args_parse(struct args *args, const struct command *command, int argc, char **argv,
               struct sluice_error *e) {
    bool only_operands = false;
    int status = SLUICE_OK;
    memset(args, 0, sizeof *args);
    args->command = command;
    args->model.struct_size = sizeof args->model;
    for (int i = 0; i < argc; i++) {
        struct sluice_error later;
        int problem = read_word(args, argc, argv, &i, &only_operands, &later);
        if (problem && !status) *e = later;
        if (problem && !status) status = problem;
    }
    if (args->help) return SLUICE_OK;
    if (!status) status = check_together(args, e);
    if (!status) status = read_prompts(args, e);
    return status;
}

void args_destroy(struct args *args) {
    free(args->prompt.text);
    free(args->negative_prompt.text);
    for (int i = 0; i < args->loras.n; i++) free((char *)(uintptr_t)args->loras.at[i].path);
}

bool args_has_flag(const struct args *args, const char *name) {
    const struct flag *flag = flag_find(name);
    return flag && args->is_set[flag - flags];
}

const char *args_value(const struct args *args, const struct flag *flag, int i) {
    const struct strings *several = (const void *)((const char *)args + flag->offset);
    const struct loras *loras = (const void *)several;
    if (flag->kind == FLAG_LORAS) return i < loras->n ? loras->at[i].path : NULL;
    if (flag->kind == FLAG_STRINGS) return i < several->n ? several->at[i] : NULL;
    return i == 0 ? args->typed[flag - flags] : NULL;
}
