/* The flags and commands as tables: parsing, --help and "did you mean" all come from them. */
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
    FLAG_STRINGS,     /* struct strings; may be given several times */
    FLAG_LORAS,       /* struct loras; may be given several times */
    FLAG_PROMPT,      /* struct prompt_text */
    FLAG_WHOLE,       /* int within [least, most] */
    FLAG_REAL,        /* double within [least, most] */
    FLAG_SCALES,      /* struct scales: one or two doubles within [least, most] */
    FLAG_LAYERS,      /* struct layers: whole numbers within [least, most] */
    FLAG_SEED,        /* struct seed */
    FLAG_SIZE,        /* int64_t bytes, of this machine */
    FLAG_DEVICE_SIZE, /* struct device_size */
    FLAG_CHOICE,      /* const char *, one of choices */
    FLAG_PART,        /* a part of a model: added to struct args' parts */
};

struct flag {
    const char *group;  /* heading of --help; NULL continues the one before */
    unsigned commands;  /* enum command_bit */
    const char *letter; /* "-m" or NULL */
    const char *name;   /* "--model" */
    const char *value;  /* how --help calls its value; NULL for a switch */
    enum flag_kind kind;
    size_t offset; /* of the value in struct args */
    double least, most;
    const char *choices; /* "auto|on|off" */
    const char *help;
    const char *refused; /* why no model of this build can honour it; NULL: it works */
};

/* May it be given several times, with a value each? */
static inline bool flag_repeats(const struct flag *flag) {
    return flag->kind == FLAG_STRINGS || flag->kind == FLAG_LORAS;
}

struct command {
    const char *name;
    enum command_bit bit;
    const char *operands; /* as --help shows them, or NULL */
    int n_operands_least, n_operands;
    const char *summary;
    const char *example;
    const char *details; /* of its help, or NULL */
};

/* All flags, in the order of --help; those of parts are the library's. Filled by flags_init, which comes
 * first of all. */
enum { FLAGS_MAX = 112, COMPONENT_FILES_MAX = 16 };
extern struct flag flags[FLAGS_MAX];
extern int n_flags;
void flags_init(void);

#define N_COMMANDS 11
extern const struct command commands[N_COMMANDS];

/* By its letter or name as typed, also another program's; NULL if there is none. */
const struct flag *flag_find(const char *typed);
const struct command *command_find(const char *name);
/* The flag of that command, or the command, nearest to what was typed, or NULL when nothing is near. */
const char *flag_nearest(unsigned command, const char *typed);
const char *command_nearest(const char *typed);

#endif
