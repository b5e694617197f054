/* The flags and commands as tables, for parsing, --help, man page, completions and "did you mean"; and the
 * names that other programs use for flags, samplers and noise schedules. */
#ifndef SLUICE_CLI_FLAGS_H
#define SLUICE_CLI_FLAGS_H

#include <stdbool.h>
#include <stddef.h>

enum command_bit {
    GENERATE = 1,
    DECODE = 2,
    PLAN = 4,
    INSPECT = 8,
    TOKENIZE = 16,
    BENCH = 32,
    DEVICES = 64,
    CONVERT = 128,
    COMPLETION = 256,
    MANUAL = 512,
    FAMILIES = 1024,
};

enum { OPERANDS_MAX = 64 };

enum flag_kind {
    FLAG_SWITCH,      /* bool; takes no value */
    FLAG_STRING,      /* const char *; not empty */
    FLAG_STRINGS,     /* struct strings; may be repeated */
    FLAG_LORAS,       /* struct loras; may be repeated */
    FLAG_PROMPT,      /* struct prompt_text */
    FLAG_WHOLE,       /* int in [least, most] */
    FLAG_REAL,        /* double in [least, most] */
    FLAG_SCALES,      /* struct scales: one or two doubles, each in [least, most] */
    FLAG_LAYERS,      /* struct layers: whole numbers in [least, most] */
    FLAG_SEED,        /* struct seed */
    FLAG_SIZE,        /* int64_t bytes of RAM */
    FLAG_DEVICE_SIZE, /* struct device_size */
    FLAG_CHOICE,      /* const char *, one of choices */
    FLAG_SAMPLER,     /* const char *: the sampler; a schedule in its name goes to sampler_schedule */
    FLAG_SCHEDULER,   /* const char *: the noise schedule */
    FLAG_PART,        /* path of a model part, appended to struct args' parts */
};

struct flag {
    const char *group;  /* heading in --help; NULL: same as the row before */
    unsigned commands;  /* enum command_bit */
    const char *letter; /* "-m" or NULL */
    const char *name;   /* "--model" */
    const char *value;  /* placeholder of the value in --help; NULL for a switch */
    enum flag_kind kind;
    size_t offset; /* offset of the value in struct args */
    double least, most;
    const char *choices; /* valid values, as "auto|on|off" */
    const char *help;
};

static inline bool flag_repeats(const struct flag *flag) {
    return flag->kind == FLAG_STRINGS || flag->kind == FLAG_LORAS;
}

struct command {
    const char *name;
    enum command_bit bit;
    const char *operands; /* operands as in --help, or NULL */
    int n_operands_least, n_operands;
    const char *summary;
    const char *example;
    const char *details; /* further text for --help-all, or NULL */
};

/* All flags in the order of --help; filled by flags_init, which main calls first. */
enum { FLAGS_MAX = 112, COMPONENT_FILES_MAX = 16 };
extern struct flag flags[FLAGS_MAX];
extern int n_flags;
void flags_init(void);

#define N_COMMANDS 11
extern const struct command commands[N_COMMANDS];

/* Finds a flag by letter ("-m"), name or synonym; NULL if unknown. */
const struct flag *flag_find(const char *typed);
const struct command *command_find(const char *name);
/* Return the flag of a command, or the command, whose name is most similar to the typed text; NULL if no name
 * is similar. */
const char *flag_nearest(unsigned command, const char *typed);
const char *command_nearest(const char *typed);

/* What to use instead of another program's flag; NULL for an unknown flag. */
const char *foreign_flag_advice(const char *typed);
/* Synonym i of our flag, counted from 0; NULL after the last. */
const char *flag_synonym(const char *ours, int i);

/* The value of --sampler for a name as ComfyUI, or the infotext of AUTOMATIC1111's web UI and Civitai, writes
 * it
 * ("DPM++ 2M Karras"); case, spaces, _ and - are ignored. Sets *schedule to the --scheduler value of a
 * schedule at its end, or NULL. NULL for an unknown name. */
const char *sampler_parse(const char *text, const char **schedule);
/* The value of --scheduler for a schedule's name; NULL for an unknown one. */
const char *schedule_parse(const char *text);
/* All values of --sampler, or of --scheduler, separated by commas; returns out. */
char *sampler_list(char *out, size_t out_bytes);
char *schedule_list(char *out, size_t out_bytes);
/* The web UI's name of a sampler or schedule; name itself if it has none. */
const char *sampler_webui_name(const char *name);
const char *schedule_webui_name(const char *name);

#endif
