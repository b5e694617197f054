/* The parsed command line, with syntax and ranges checked; commands check what needs a model or a disk. */
#ifndef SLUICE_CLI_ARGS_H
#define SLUICE_CLI_ARGS_H

#include "cli/flags.h"
#include "engine/sluice.h"

#include <stdbool.h>

/* A prompt (-p, -n): as typed, and the text, which args_parse reads. */
struct prompt_text {
    const char *typed;
    char *text; /* owned, NUL-terminated; `tokenize` also accepts NULs inside */
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

/* Guidance scales of the high-noise and the low-noise transformer; low 0: the low-noise scale equals the
 * high-noise scale. */
struct scales {
    double high, low;
};

enum { LAYERS_MAX = 64 };
struct layers {
    int at[LAYERS_MAX], n;
};

/* LoRAs of --lora; the paths are owned. */
struct loras {
    struct sluice_lora at[SLUICE_LORAS_MAX];
    int n;
};

struct args {
    const struct command *command;
    bool is_set[FLAGS_MAX];       /* true if the command line has flags[i] */
    const char *typed[FLAGS_MAX]; /* last value of flags[i] as typed */
    const char *operands[OPERANDS_MAX];
    int n_operands;

    struct sluice_model_options model; /* model.parts points at the array `parts` of this struct */
    struct sluice_part parts[COMPONENT_FILES_MAX];
    struct prompt_text prompt, negative_prompt;
    int width, height, frames, fps, steps, batch, threads, quality, clip_skip, preview_every;
    struct scales cfg_scale;
    double guidance, flow_shift, strength, slg_scale, slg_start, slg_end;
    struct layers slg_layers;
    struct seed seed;
    const char *sampler_schedule; /* noise schedule in a sampler name, Karras in "DPM++ 2M Karras"; or NULL */
    const char *sampler, *scheduler, *prediction, *device, *precision, *type, *vae_tiling, *direct_io, *fit,
        *prompt_weights;
    const char *output, *init_image, *end_image, *control, *mask, *init_latent, *save_latent, *dump,
        *prompt_cache, *plan, *rates, *report, *preview, *preview_path;
    const char *adapter;
    int rank;
    const char *dimensions, *save, *folder, *clock, *predict;
    const char *part;
    struct strings references, rules;
    struct loras loras;
    const char *lora_dir;
    int64_t max_ram_bytes;
    struct device_size max_vram;
    bool lora_partial, no_metadata, text_encoders, no_decode, no_replan, json, tensors, types, plans,
        markdown, quiet, verbose, no_progress, help, help_all;
};

/* Parses argv as flags and operands of the command; reads the prompts: of files, removes a byte order mark,
 * CR before LF and one final newline (tokenize keeps all bytes). Returns the first error, but parses the rest
 * too, so that --report is found. Borrows strings from argv. */
int args_parse(struct args *args, const struct command *command, int argc, char **argv,
               struct sluice_error *e);
void args_destroy(struct args *args);

/* True if the command line has the flag of this long name. */
bool args_has_flag(const struct args *args, const char *name);
/* Value i of a flag as typed, counted from 0 (--lora: the path); NULL after the last. */
const char *args_value(const struct args *args, const struct flag *flag, int i);

/* FILE of a prompt "@FILE" ("-": stdin); NULL for text. Text that begins with @ is typed as "@@...". */
const char *prompt_file(const char *typed);
/* Error for a size that is above this machine's memory. */
int value_above_memory(const struct flag *flag, const char *text, struct sluice_error *e);

#endif
