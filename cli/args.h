/* What the user typed, as numbers and names. Checked for syntax and range here; what needs the model or the
 * disk is checked by the commands. */
#ifndef SLUICE_CLI_ARGS_H
#define SLUICE_CLI_ARGS_H

#include "cli/flags.h"
#include "engine/sluice.h"

#include <stdbool.h>

/* -p and -n: what was typed, and after prompt_read the text itself. */
struct prompt_text {
    const char *typed;
    char *text; /* owned, terminated; may hold NULs when it came from a file */
    size_t bytes;
};

struct seed {
    uint64_t value;
    bool random; /* -1: drawn when a command runs */
};

/* What a flag was given as several times. */
enum { STRINGS_MAX = 16 };
struct strings {
    const char *at[STRINGS_MAX];
    int n;
};

/* Of a device that only the library knows: one of the two, the other is 0. */
struct device_size {
    int64_t bytes;
    double percent;
};

/* Of a model with two transformers; low 0: as high. */
struct scales {
    double high, low;
};

enum { LAYERS_MAX = 64 };
struct layers {
    int at[LAYERS_MAX], n;
};

/* Adapters, whose paths are owned. */
struct loras {
    struct sluice_lora at[SLUICE_LORAS_MAX];
    int n;
};

struct args {
    const struct command *command;
    bool given[FLAGS_MAX];        /* by the row of the table */
    const char *typed[FLAGS_MAX]; /* its value as typed, the last one */
    const char *operands[OPERANDS_MAX];
    int n_operands;

    struct sluice_model_options model; /* its parts are these */
    struct sluice_part parts[COMPONENT_FILES_MAX];
    struct prompt_text prompt, negative_prompt;
    int width, height, frames, fps, steps, batch, threads, quality, clip_skip, preview_every;
    struct scales cfg_scale;
    double guidance, flow_shift, strength, slg_scale, slg_start, slg_end;
    struct layers slg_layers;
    struct seed seed;
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

/* Reads argv[first..] as flags and operands of command. The first mistake is reported, but the rest is read
 * all the same so that --report is known. Strings are borrowed from argv. */
int args_parse(struct args *args, const struct command *command, int argc, char **argv,
               struct sluice_error *e);
void args_destroy(struct args *args);

/* Was the flag of that long name given? */
bool args_given(const struct args *args, const char *name);
/* Value i of that flag as typed, from 0, of an adapter its path; NULL behind the last. */
const char *args_value(const struct args *args, const struct flag *flag, int i);

#endif
