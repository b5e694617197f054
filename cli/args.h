/* The command line: the tables of flags and commands (flags.c), for parsing, --help, man page, completions
 * and "did you mean"; the names that other programs use for flags, samplers and noise schedules; and the
 * parsed command line, with syntax and ranges checked (args.c). Commands check what needs a model or a disk.
 */
#ifndef SLUICE_CLI_ARGS_H
#define SLUICE_CLI_ARGS_H

#include "engine/sluice.h"

#include <stdbool.h>
#include <stddef.h>

/* ---- tables ---- */

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
    UPSCALE = 2048,
};

enum { OPERANDS_MAX = 64 };

enum flag_kind {
    FLAG_SWITCH,  /* switch without a value, stored as bool */
    FLAG_STRING,  /* text that must not be empty, stored as const char * */
    FLAG_STRINGS, /* texts of a repeatable flag, stored as struct strings */
    FLAG_INPUT,  /* path of a file or folder that is read, so that no output may overwrite it; const char * */
    FLAG_INPUTS, /* paths as for FLAG_INPUT, of a repeatable flag, stored as struct strings */
    FLAG_LORAS,  /* LoRA files with strengths, of a repeatable flag, stored as struct loras */
    FLAG_PROMPT, /* struct prompt_text */
    FLAG_WHOLE,  /* whole number in [least, most], stored as int */
    FLAG_REAL,   /* number in [least, most], stored as double */
    FLAG_REAL_ABOVE,     /* as FLAG_REAL, without the number `least` itself */
    FLAG_SCALES,         /* one or two numbers in [least, most], stored as struct scales */
    FLAG_LAYERS,         /* layer numbers in [least, most], stored as struct layers */
    FLAG_SIGMAS,         /* list of numbers above `least`, up to `most`, stored as struct sigmas */
    FLAG_SEED,           /* struct seed */
    FLAG_SIZE,           /* size of RAM in bytes, stored as int64_t */
    FLAG_DEVICE_SIZE,    /* struct device_size */
    FLAG_CHOICE,         /* one of the words in `choices`, stored as const char * */
    FLAG_CHOICE_OR_PART, /* as FLAG_CHOICE; any other text is the path of a model part and stores "model" */
    FLAG_SAMPLER,   /* name of a sampler, const char *; a schedule in the name goes to sampler_schedule */
    FLAG_SCHEDULER, /* name of a noise schedule, stored as const char * */
    FLAG_PART,      /* path of a model part, appended to struct args' parts */
    /* Flags of one control image; `offset` is in struct control_args, not in struct args. */
    FLAG_CONTROL_NET,    /* path of a control network, a part of the model */
    FLAG_CONTROL_INPUT,  /* path of an image, stored as const char * */
    FLAG_CONTROL_STRING, /* text, stored as const char * */
    FLAG_CONTROL_REAL,   /* number in [least, most], stored as double */
    FLAG_CONTROL_SWITCH, /* switch, stored as bool */
};

struct flag {
    const char *group;  /* heading of the flag in --help; NULL: same heading as the previous flag */
    unsigned commands;  /* enum command_bit */
    const char *letter; /* "-m" or NULL */
    const char *name;   /* "--model" */
    const char *value;  /* placeholder of the flag's value in --help; NULL for a switch */
    enum flag_kind kind;
    size_t offset; /* offset of the flag's value in struct args */
    double least, most;
    const char *choices; /* valid values of the flag, as "auto|on|off" */
    const char *help;
};

static inline bool flag_repeats(const struct flag *flag) {
    return flag->kind == FLAG_STRINGS || flag->kind == FLAG_INPUTS || flag->kind == FLAG_LORAS ||
           flag->kind >= FLAG_CONTROL_NET;
}

/* True if the value names a file or folder that is read; of a prompt, if it is @FILE. */
static inline bool flag_reads(const struct flag *flag) {
    return flag->kind == FLAG_INPUT || flag->kind == FLAG_INPUTS || flag->kind == FLAG_LORAS ||
           flag->kind == FLAG_PROMPT || flag->kind == FLAG_PART || flag->kind == FLAG_CONTROL_NET ||
           flag->kind == FLAG_CONTROL_INPUT;
}

struct args;

struct command {
    const char *name;
    enum command_bit bit;
    int (*run)(const struct args *args, struct sluice_error *e);
    const char *operands; /* operands of the command as shown in --help, or NULL */
    int n_operands_least, n_operands;
    const char *summary;
    const char *example;
    const char *details; /* further text for --help-all, or NULL */
};

/* All flags in the order of --help; filled by flags_init, which main calls first. */
enum { FLAGS_MAX = 144, COMPONENT_FILES_MAX = 24 };
extern struct flag flags[FLAGS_MAX];
extern int n_flags;
void flags_init(void);

#define N_COMMANDS 12
extern const struct command commands[N_COMMANDS];

/* Finds a flag by letter ("-m"), name or synonym; NULL if unknown. */
const struct flag *flag_find(const char *typed);
/* Copies the first clause of a flag's help text into out; returns out. */
char *flag_clause(const struct flag *flag, char *out, size_t out_bytes);
const struct command *command_find(const char *name);
/* Return the flag of a command, or the command, whose name is most similar to the typed text; NULL if no name
 * is similar. */
const char *flag_nearest(unsigned command, const char *typed);
const char *command_nearest(const char *typed);
/* True if `name` is similar to the typed text and closer than all earlier names; then lowers *best, the
 * distance of the closest name. Start with 100. */
bool name_nearer(const char *typed, const char *name, int *best);

/* What to use instead of another program's flag; NULL for an unknown flag. */
const char *foreign_flag_advice(const char *typed);
/* Synonym i, counted from 0, of a flag of sluice; NULL after the last. */
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

/* ---- the parsed command line ---- */

/* A prompt (-p, -n): as typed, and the text, which args_parse reads. */
struct prompt_text {
    const char *typed;
    char *text; /* text of the prompt, owned, NUL-terminated; of `tokenize` also with NULs inside */
    size_t bytes;
};

struct seed {
    uint64_t value;
    bool random; /* --seed -1: the command picks a random seed */
};

enum { STRINGS_MAX = 16 };
struct strings {
    const char *at[STRINGS_MAX];
    int n;
};

/* A size of GPU memory, in bytes or in percent of all its memory; the unused member is 0. */
struct device_size {
    int64_t bytes;
    double percent;
};

/* One or two numbers: guidance scales of the high-noise and the low-noise transformer, or values for video
 * and sound. second 0: one number was given, for both. */
struct scales {
    double first, second;
};

enum { LAYERS_MAX = 64 };
struct layers {
    int at[LAYERS_MAX], n;
};

/* Sigmas of the steps: --sigmas, --upscale-sigmas. */
enum { SIGMAS_MAX = 256 };
struct sigmas {
    double at[SIGMAS_MAX];
    int n;
};

/* LoRAs that --lora names; the paths are owned. */
struct loras {
    struct sluice_lora at[SLUICE_LORAS_MAX];
    int n;
};

/* A control image and its settings. */
struct control_args {
    int network; /* index of its --control-net; -1: there is none, and the denoiser reads the image */
    const char *image, *mask, *inpaint, *mode;
    double strength, start, end;
    bool canny;
    const char *typed[FLAGS_MAX]; /* the value of flags[i] for this control as typed; NULL: absent */
};

/* The control images of the command line, in its order. */
struct controls {
    struct control_args at[SLUICE_CONTROLS_MAX];
    int n, n_networks;
    bool begins; /* true: the next control flag starts a new entry of `at` */
};

struct args {
    const struct command *command;
    bool is_set[FLAGS_MAX];       /* true if the command line has flags[i] */
    const char *typed[FLAGS_MAX]; /* the value of flags[i] as typed last */
    const char *operands[OPERANDS_MAX];
    int n_operands;

    struct sluice_model_options model; /* model.parts points at the array `parts` of this struct */
    struct sluice_part parts[COMPONENT_FILES_MAX + SLUICE_CONTROLS_MAX];
    struct prompt_text prompt, negative_prompt;
    int width, height, frames, fps, steps, batch, threads, quality, clip_skip, preview_every;
    struct scales cfg_scale;
    double redux_strength, hires, hires_strength, guidance, cfg_norm, cfg_until, flow_shift, strength,
        slg_scale, slg_start, slg_end;
    struct layers slg_layers, stg_blocks;
    struct scales stg_scale, modality_scale, cfg_rescale;
    double audio_cfg_scale;
    struct sigmas sigmas, upscale_sigmas;
    struct seed seed;
    const char *sampler_schedule; /* noise schedule in a sampler name, Karras in "DPM++ 2M Karras"; or NULL */
    const char *sampler, *scheduler, *prediction, *device, *precision, *type, *vae_tiling, *direct_io, *fit,
        *prompt_weights;
    const char *output, *init_image, *end_image, *control, *mask, *init_latent, *save_latent,
        *save_audio_latent, *dump, *prompt_cache, *plan, *rates, *report, *preview, *preview_path;
    int rank;
    const char *dimensions, *save, *folder, *predict;
    const char *part;
    struct strings references, rules, redux_images;
    struct controls controls;
    int hires_steps;
    const char *hires_upscaler;
    struct loras loras;
    const char *lora_dir;
    int64_t max_ram_bytes;
    struct device_size max_vram;
    bool no_audio, guess_mode, lora_partial, no_metadata, no_decode, no_replan, json, tensors, types, plans,
        quiet, verbose, no_progress, help, help_all;
};

/* Parses argv as flags and operands of the command, and reads the prompts. Text of prompt files loses a byte
 * order mark, CR before LF and one final newline (tokenize keeps all bytes). Returns the first error, but
 * parses the remaining words too, so that --report is found. Borrows strings from argv. */
int args_parse(struct args *args, const struct command *command, int argc, char **argv,
               struct sluice_error *e);
void args_destroy(struct args *args);

/* True if the command line has the flag of this long name. */
bool args_has_flag(const struct args *args, const char *name);
/* Value i of a flag as typed, counted from 0 (--lora: the path); NULL after the last. */
const char *args_value(const struct args *args, const struct flag *flag, int i);

/* Parses a number in the range of the flag. Fails with USAGE. */
int value_real(const struct flag *flag, const char *text, double *out, struct sluice_error *e);
/* FILE of a prompt "@FILE" ("-": stdin); NULL for text. Text that begins with @ is typed as "@@...". */
const char *prompt_file(const char *typed);
/* Error for a size that is above this machine's memory. */
int value_above_memory(const struct flag *flag, const char *text, struct sluice_error *e);

/* ---- control images (args_controls.c) ----
 *
 * Each --control-image after `--control-net PATH` is a control of that network. The other --control flags and
 * --canny change the latest control; directly after --control-net they start a new one. Controls before the
 * first --control-net belong to the first network. */

/* Stores a flag of kind FLAG_CONTROL_*. Fails with USAGE. */
int controls_store(struct args *args, const struct flag *flag, const char *text, struct sluice_error *e);
/* Value i of such a flag as typed, counted from 0; NULL after the last. */
const char *controls_value(const struct args *args, const struct flag *flag, int i);
/* True if no control belongs to this network, and `plan` does not assume one. With -i and --mask an
 * inpainting network can run without. */
bool controls_lack(const struct args *args, int network);
/* Refuses networks without a control image. `plan` without a prompt and without control images assumes one
 * for each network. Call after all flags are read. */
int controls_check(const struct args *args, struct sluice_error *e);

/* ---- text files that flags name ---- */

struct textfile_kind {
    const char *what; /* name in messages, such as "the plan" */
    size_t bytes_max;
    int too_large; /* error code for a file above bytes_max; a regular file is then not read */
};

/* Reads a text file, or stdin if path is "-", into *text, NUL-terminated; the caller frees it. NUL bytes are
 * an error. Exit codes: 5 if out of memory, 130 after a signal, else 3. */
int textfile_read(const char *path, const struct textfile_kind *kind, char **text, struct sluice_error *e);

#endif
