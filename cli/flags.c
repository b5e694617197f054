/* The tables of flags and commands: see flags.h. A row here is all that a flag needs to be parsed and
 * explained; what it does stands in the command that reads its field. */
#include "cli/flags.h"

#include "cli/args.h"
#include "cli/names.h"
#include "engine/sluice_bench.h"

#include <stdbool.h>
#include <string.h>

#define RUNS      (GENERATE | PLAN)
#define MODELS    (GENERATE | DECODE | PLAN | INSPECT | TOKENIZE)
#define ALL       (MODELS | BENCH | DEVICES | FAMILIES | CONVERT)
#define AT(field) offsetof(struct args, field)

struct flag flags[FLAGS_MAX];
int n_flags;

/* Our own; parts' rows come behind the first, but those that the library does not know yet: they are the last
 * of their group, and refused. */
static const struct flag own[] = {
    {"Model", MODELS | BENCH, "-m", "--model", "PATH", FLAG_STRING, AT(model.model), 0, 0, NULL,
     "Hugging Face folder, folder of parts, or one file with all of them", NULL},
    {NULL, PLAN, NULL, "--family", "NAME", FLAG_STRING, AT(model.family), 0, 0, NULL,
     "a model as it is published, without files; in bf16 or in --type, and with the longest prompt; `sluice "
     "families` lists them",
     NULL},
    {NULL, MODELS, NULL, "--tokenizer", "PATH", FLAG_STRING, AT(model.tokenizer), 0, 0, NULL,
     "tokenizer.json, a GGUF file, or a folder with the tokenizer's files", NULL},
    {NULL, MODELS, NULL, "--edit", "HOW", FLAG_CHOICE, AT(model.edit), 0, 0, "plain|plus|2511",
     "how Qwen-Image-Edit's files are to be used: plain, its first, edits one picture; plus, from 2509 on, "
     "up to "
     "three; 2511: files that do not say they are that one; default what a folder's model_index.json names, "
     "else plus where there are pictures",
     NULL},
    {NULL, RUNS | CONVERT, NULL, "--lora", "FILE[:S]", FLAG_LORAS, AT(loras), -SLUICE_SCALE_MAX,
     SLUICE_SCALE_MAX, NULL,
     "adapter (LoRA), and how much of it counts; default 1; up to sixteen times. convert: merges it", NULL},
    {NULL, RUNS, NULL, "--lora-dir", "DIR", FLAG_STRING, AT(lora_dir), 0, 0, NULL,
     "where <lora:NAME:0.8> in a prompt is found", NULL},
    {NULL, RUNS | CONVERT, NULL, "--lora-partial", NULL, FLAG_SWITCH, AT(lora_partial), 0, 0, NULL,
     "only a warning where some of an adapter fits nothing", NULL},

    {"Picture", RUNS | TOKENIZE, "-p", "--prompt", "TEXT", FLAG_PROMPT, AT(prompt), 0, 0, NULL,
     "what to draw; @FILE reads a file, @- stdin, @@ begins a text with an @", NULL},
    {NULL, RUNS, "-n", "--negative-prompt", "TEXT", FLAG_PROMPT, AT(negative_prompt), 0, 0, NULL,
     "what to keep away from, where --cfg-scale is not 1; @ as with -p; default empty, or the model's own, "
     "which -n \"\" leaves out",
     NULL},
    {NULL, RUNS, NULL, "--prompt-weights", "HOW", FLAG_CHOICE, AT(prompt_weights), 0, 0, "on|off",
     "(word), [word], (word:1.3) weigh words and BREAK divides a prompt, for UNets; off: all is text; "
     "default "
     "on where the model takes it",
     NULL},
    {NULL, RUNS, NULL, "--clip-skip", "N", FLAG_WHOLE, AT(clip_skip), 1, 100, NULL,
     "which of CLIP's layers is read of a prompt: 1 the last, 2 the one before ...; default the model's",
     NULL},
    {NULL, RUNS, "-W", "--width", "N", FLAG_WHOLE, AT(width), 1, SLUICE_SIDE_MAX, NULL,
     "pixels, default those of -i, else of the last -r of a model that edits, else the model's", NULL},
    {NULL, RUNS, "-H", "--height", "N", FLAG_WHOLE, AT(height), 1, SLUICE_SIDE_MAX, NULL,
     "pixels, default those of -i, else of the last -r of a model that edits, else the model's", NULL},
    {NULL, RUNS, NULL, "--steps", "N", FLAG_WHOLE, AT(steps), 1, SLUICE_STEPS_MAX, NULL,
     "denoising steps, default the model's", NULL},
    {NULL, RUNS, NULL, "--cfg-scale", "S", FLAG_SCALES, AT(cfg_scale), 0, SLUICE_SCALE_MAX, NULL,
     "uncond + S*(cond - uncond); 1 halves the work; HIGH,LOW: of a model with two transformers each its "
     "own; "
     "default the model's",
     NULL},
    {NULL, RUNS, NULL, "--guidance", "S", FLAG_REAL, AT(guidance), 0, SLUICE_SCALE_MAX, NULL,
     "distilled guidance, for models that take it; default the model's", NULL},
    {NULL, RUNS, NULL, "--slg-layers", "A,B,...", FLAG_LAYERS, AT(slg_layers), 0, 9999, NULL,
     "skip-layer guidance, for SD3.5 medium (7,8,9): away from what is drawn without these layers, counted "
     "from 0; default none",
     NULL},
    {NULL, RUNS, NULL, "--slg-scale", "S", FLAG_REAL, AT(slg_scale), 0, SLUICE_SCALE_MAX, NULL,
     "how far: adds S*(cond - skipped); default 2.8", NULL},
    {NULL, RUNS, NULL, "--slg-start", "F", FLAG_REAL, AT(slg_start), 0, 1, NULL,
     "in steps i, from 0, of n with n*F < i; default 0.01", NULL},
    {NULL, RUNS, NULL, "--slg-end", "F", FLAG_REAL, AT(slg_end), 0, 1, NULL, "and i < n*F; default 0.2",
     NULL},
    {NULL, RUNS | BENCH, "-s", "--seed", "N", FLAG_SEED, AT(seed), 0, 0, NULL,
     "of the noise, default 0; -1 draws one and prints it", NULL},
    {NULL, RUNS, "-b", "--batch", "N", FLAG_WHOLE, AT(batch), 1, SLUICE_BATCH_MAX, NULL,
     "how many pictures, of seeds S, S+1, ...; default 1", NULL},
    {NULL, RUNS, NULL, "--sampler", "NAME", FLAG_CHOICE, AT(sampler), 0, 0,
     "euler|euler_a|heun|dpm2|dpm2_a|dpm++2s_a|dpm++2m|dpm++3m|dpm++2m_sde|dpm++_sde|lms|ipndm|pndm|ddim|"
     "deis|unipc|"
     "lcm|tcd|euler_ancestral|dpm_2|dpm_2_ancestral|dpmpp_2s_ancestral|dpmpp_2m|dpmpp_2m_sde|dpmpp_sde|uni_"
     "pc|plms",
     "how a step is taken: euler, euler_a, heun, dpm2, dpm2_a, dpm++2s_a, dpm++2m, dpm++3m, dpm++2m_sde, "
     "dpm++_sde, lms, ipndm, pndm, ddim, deis, unipc, lcm, tcd, or ComfyUI's names of them; default the "
     "model's",
     NULL},
    {NULL, RUNS, NULL, "--scheduler", "NAME", FLAG_CHOICE, AT(scheduler), 0, 0,
     "leading|trailing|linspace|discrete|karras|exponential|ays|sgm_uniform|simple|smoothstep|kl_optimal|lcm|"
     "bong_tangent|beta|normal|align_your_steps",
     "how much noise each step begins with: leading, trailing and linspace as diffusers spaces timesteps; "
     "discrete, karras, exponential, ays, sgm_uniform, simple, smoothstep, kl_optimal, lcm, bong_tangent, "
     "beta as stable-diffusion.cpp has them; default the model's",
     NULL},
    {NULL, RUNS, NULL, "--prediction", "WHAT", FLAG_CHOICE, AT(prediction), 0, 0, "eps|v|flow",
     "what the model gives, where its files do not say it: noise, velocity, or noise less picture", NULL},
    {NULL, RUNS, NULL, "--flow-shift", "S", FLAG_REAL, AT(flow_shift), SLUICE_FLOW_SHIFT_LEAST,
     SLUICE_FLOW_SHIFT_MAX, NULL, "S in S*u/(1+(S-1)*u); default the model's", NULL},
    {NULL, RUNS, NULL, "--init-latent", "FILE", FLAG_STRING, AT(init_latent), 0, 0, NULL,
     "initial noise instead of the seed's: safetensors, tensor latent", NULL},
    {NULL, RUNS, "-i", "--init-img", "FILE", FLAG_STRING, AT(init_image), 0, 0, NULL,
     "picture to start from, of a video the first frame (PNG, JPEG, WebP); --width and --height default to "
     "its "
     "own, of a video to its aspect",
     NULL},
    {NULL, RUNS, NULL, "--end-img", "FILE", FLAG_STRING, AT(end_image), 0, 0, NULL,
     "a video's last frame, beside -i, its first, for models that take one", NULL},
    {NULL, RUNS, NULL, "--fit", "HOW", FLAG_CHOICE, AT(fit), 0, 0, "crop|pad|stretch",
     "-i, --end-img, --control and --mask of another size than is drawn: cover it and lose what is beyond, "
     "lie within "
     "it and go on "
     "as "
     "their edges, or lose their aspect; default crop",
     NULL},
    {NULL, RUNS, NULL, "--strength", "S", FLAG_REAL, AT(strength), 0, 1, NULL,
     "how far to leave it: the last steps*S steps are run; 1 keeps nothing; default the model's, with "
     "--mask 1",
     NULL},
    {NULL, RUNS, "-r", "--ref-image", "FILE", FLAG_STRINGS, AT(references), 0, 0, NULL,
     "picture to refer to, of any size, for models that take them; up to three times", NULL},
    {NULL, RUNS, NULL, "--mask", "FILE", FLAG_STRING, AT(mask), 0, 0, NULL,
     "white where -i's picture is drawn anew; the rest of it stays, as it is or as a model that fills has it",
     NULL},
    {NULL, RUNS, NULL, "--control", "DIR", FLAG_STRING, AT(control), 0, 0, NULL,
     "a folder of numbered pictures: frames of a video that leads the one that is drawn, for models that "
     "take "
     "one; --mask then says where it is drawn anew",
     NULL},
    {NULL, RUNS, NULL, "--frames", "N", FLAG_WHOLE, AT(frames), 1, 100000, NULL,
     "length of a video; default the model's", NULL},
    {NULL, RUNS | DECODE, NULL, "--fps", "N", FLAG_WHOLE, AT(fps), 1, 1000, NULL,
     "frames a second that a video is shown at; default the model's", NULL},

    {"Output", RUNS | DECODE | CONVERT, "-o", "--output", "PATH", FLAG_STRING, AT(output), 0, 0, NULL,
     "where to write, default output.png, of videos output.mp4; .png, .jpg or .webp; of videos .mp4, .webm, "
     ".gif, or a picture a frame, also in a folder; of convert .gguf or .safetensors; %d is the picture's or "
     "frame's number from 1, %03d of three digits, %s its seed; several without: name-1.png ...; - is stdout",
     NULL},
    {NULL, RUNS | DECODE, NULL, "--quality", "N", FLAG_WHOLE, AT(quality), 1, 100, NULL,
     "of JPEG, WebP, MP4 and WebM; default 90", NULL},
    {NULL, RUNS | DECODE, NULL, "--no-metadata", NULL, FLAG_SWITCH, AT(no_metadata), 0, 0, NULL,
     "no prompt, seed and settings in the picture or video", NULL},
    {NULL, RUNS, NULL, "--save-latent", "FILE", FLAG_STRING, AT(save_latent), 0, 0, NULL,
     "the final latents: safetensors, tensor latent", NULL},
    {NULL, RUNS, NULL, "--preview", "HOW", FLAG_CHOICE, AT(preview), 0, 0, "latent|taesd|vae|proj|tae",
     "a look at each picture behind a step; latent: a colour for each of the latent's pixels, which takes no "
     "time; taesd: by --taesd's small decoder; vae: decoded, which takes as long as the picture's end, of a "
     "video the first frame; the picture "
     "itself is the same",
     NULL},
    {NULL, RUNS, NULL, "--preview-every", "N", FLAG_WHOLE, AT(preview_every), 1, SLUICE_STEPS_MAX, NULL,
     "behind every Nth step alone; default each", NULL},
    {NULL, RUNS, NULL, "--preview-path", "FILE", FLAG_STRING, AT(preview_path), 0, 0, NULL,
     "where to write it, over the last one: .png or .jpg, %d and %s as with -o; default the terminal, where "
     "it "
     "is known to show pictures (kitty, Ghostty, iTerm2, WezTerm), else preview.png",
     NULL},
    {NULL, RUNS, NULL, "--no-decode", NULL, FLAG_SWITCH, AT(no_decode), 0, 0, NULL,
     "stop after the latent: no picture", NULL},
    {NULL, RUNS | DECODE, NULL, "--dump", "DIR", FLAG_STRING, AT(dump), 0, 0, NULL,
     "everything in between, as safetensors files, for comparing with a reference", NULL},
    {NULL, RUNS | DECODE, NULL, "--report", "FILE", FLAG_STRING, AT(report), 0, 0, NULL,
     "what was planned and measured, as JSON, also when the run fails; - is stdout", NULL},
    {NULL, PLAN | INSPECT | TOKENIZE | BENCH | DEVICES | FAMILIES | CONVERT, NULL, "--json", NULL,
     FLAG_SWITCH, AT(json), 0, 0, NULL, "JSON instead of text", NULL},
    {NULL, INSPECT, NULL, "--tensors", NULL, FLAG_SWITCH, AT(tensors), 0, 0, NULL,
     "every tensor's name, type and shape", NULL},
    {NULL, FAMILIES, NULL, "--plans", NULL, FLAG_SWITCH, AT(plans), 0, 0, NULL,
     "also what each would take, of memory and time: on named cards and on a processor", NULL},
    {NULL, FAMILIES, NULL, "--markdown", NULL, FLAG_SWITCH, AT(markdown), 0, 0, NULL,
     "all of it as the tables of models/README.md", NULL},
    {NULL, PLAN, NULL, "--types", NULL, FLAG_SWITCH, AT(types), 0, 0, NULL,
     "also what smaller types of weights would bring, converted as they are read and by `sluice convert` "
     "beforehand",
     NULL},

    {"Memory and device", RUNS | DECODE, NULL, "--max-ram", "SIZE", FLAG_SIZE, AT(max_ram_bytes), 0, 0, NULL,
     "the most the whole process takes: 3G, 2.5G, 512M, 123456B, 80%, a bare number is GiB; default what is "
     "free, less a reserve",
     NULL},
    {NULL, RUNS | DECODE, NULL, "--max-vram", "SIZE", FLAG_DEVICE_SIZE, AT(max_vram), 0, 0, NULL,
     "the most that the program takes on the GPU, its libraries included; default what is free less a "
     "twentieth, at least "
     "512 MiB; on the CPU only --max-ram applies",
     NULL},
    {NULL, RUNS | DECODE, NULL, "--plan", "FILE", FLAG_STRING, AT(plan), 0, 0, NULL,
     "run exactly this plan, as `sluice plan --json` printed it or edited", NULL},
    {NULL, RUNS, NULL, "--prompt-cache", "DIR", FLAG_STRING, AT(prompt_cache), 0, 0, NULL,
     "keep what text encoders make of prompts in files there, and begin without an encoder where one is "
     "found",
     NULL},
    {NULL, RUNS | DECODE, NULL, "--no-replan", NULL, FLAG_SWITCH, AT(no_replan), 0, 0, NULL,
     "keep the first plan although measured rates differ; accepted, but plans never change for that yet",
     NULL},
    {NULL, RUNS | DECODE, NULL, "--rates", "FILE", FLAG_STRING, AT(rates), 0, 0, NULL,
     "what this machine was measured to do, as `sluice bench bus --save` and `bench ops --save` wrote it; "
     "default: stated assumptions",
     NULL},
    {NULL, RUNS | DECODE, NULL, "--vae-tiling", "HOW", FLAG_CHOICE, AT(vae_tiling), 0, 0, "auto|on|off",
     "the decoder's large buffers: on: the least memory (on a device: in the host's), for a little time; "
     "off: "
     "all kept; the picture is the same; default auto: the faster that fits",
     NULL},
    {NULL, RUNS | DECODE, NULL, "--direct-io", "HOW", FLAG_CHOICE, AT(direct_io), 0, 0, "auto|on|off",
     "read the model past the system's file cache; auto: where it is larger than three quarters of the "
     "machine's memory, and would push everything else out; default auto",
     NULL},
    {NULL, RUNS | DECODE | BENCH, NULL, "--device", "NAME", FLAG_STRING, AT(device), 0, 0, NULL,
     "cpu, cuda (the first GPU) or cuda:N; default cuda where there is one; `plan` needs none, and knows "
     "cuda:CARD (3060, 4060, 4060ti, 4090, h100); bench block: cuda with --predict",
     NULL},
    {NULL, RUNS | DECODE, NULL, "--precision", "TYPE", FLAG_CHOICE, AT(precision), 0, 0, "f32|bf16|f16",
     "of text encoder and transformer; default f32 on the CPU, bf16 on a GPU", NULL},
    {NULL, RUNS | CONVERT | BENCH, NULL, "--type", "TYPE", FLAG_STRING, AT(type), 0, 0, NULL,
     "keep weights as f8_e4m3, q8_0, q6_k, q5_k, q4_k ...; of transformer and text encoders, converted as "
     "they "
     "are read: less memory and less to move, another picture, and `plan --types` says what each would "
     "bring; "
     "convert: what is written, also int8_convrot; bench block: of its matrices, beside bf16",
     NULL},
    {NULL, CONVERT, NULL, "--rule", "REGEX=TYPE", FLAG_STRINGS, AT(rules), 0, 0, NULL,
     "tensors in whose name the regex is found get that type; the first that fits wins, before --type; up to "
     "sixteen times",
     NULL},
    {NULL, CONVERT, NULL, "--part", "NAME", FLAG_STRING, AT(part), 0, 0, NULL,
     "of a file that holds several parts the one to convert (its flag without dashes: vae), of a Hugging "
     "Face "
     "folder a folder in it (transformer)",
     NULL},
    {NULL, RUNS | DECODE | BENCH, "-t", "--threads", "N", FLAG_WHOLE, AT(threads), 1, SLUICE_THREADS_MAX,
     NULL, "default the physical cores that it may use, or fewer where a control group's quota is less",
     NULL},

    {"Benchmark", BENCH | PLAN, NULL, "--dims", "LIST", FLAG_STRING, AT(dimensions), 0, 0, NULL,
     "name=value,... of those that `sluice bench checkpoint help` lists, or clip_g.name=value of one part "
     "alone; checkpoint, plan --family: instead of published sizes",
     NULL},
    {NULL, BENCH, NULL, "--adapter", "DIALECT", FLAG_STRING, AT(adapter), 0, 0, NULL,
     "checkpoint: a LoRA file for the family instead, FILE.safetensors in place of DIR, called as diffusers, "
     "kohya, comfy and others do (an unknown name lists them)",
     NULL},
    {NULL, BENCH, NULL, "--rank", "N", FLAG_WHOLE, AT(rank), 1, SLUICE_ADAPTER_RANK_MAX, NULL,
     "of --adapter; default 16. block: with such an adapter on every product, beside the same block without",
     NULL},
    {NULL, BENCH, NULL, "--text-encoders", NULL, FLAG_SWITCH, AT(text_encoders), 0, 0, NULL,
     "--adapter changes these too", NULL},
    {NULL, BENCH, NULL, "--save", "FILE", FLAG_STRING, AT(save), 0, 0, NULL,
     "bus, ops: add what was measured to this rates file, for --rates", NULL},
    {NULL, BENCH, NULL, "--clock", "WHICH", FLAG_CHOICE, AT(clock), 0, 0, "timed|paced",
     "stream: a virtual clock, the same everywhere (seconds), or this machine's (minutes): the CPU behind a "
     "bus of set rates; default timed",
     NULL},
    {NULL, BENCH, NULL, "--predict", "CARD", FLAG_STRING, AT(predict), 0, 0, NULL,
     "block: calculate instead what a block of each family takes on a GPU that need not be there: 3060, "
     "4060, "
     "4060ti, 4090 or h100",
     NULL},
    {NULL, BENCH, NULL, "--dir", "DIR", FLAG_STRING, AT(folder), 0, 0, NULL,
     "bus: the disk to measure: a file of 256 MiB is written and read there; default here. With -m a model's "
     "largest file is read instead",
     NULL},

    {"Messages", ALL, "-q", "--quiet", NULL, FLAG_SWITCH, AT(quiet), 0, 0, NULL, "only warnings and errors",
     NULL},
    {NULL, RUNS | DECODE, "-v", "--verbose", NULL, FLAG_SWITCH, AT(verbose), 0, 0, NULL,
     "also the plan, before the run", NULL},
    {NULL, RUNS | DECODE | BENCH | CONVERT, NULL, "--no-progress", NULL, FLAG_SWITCH, AT(no_progress), 0, 0,
     NULL, "no progress line", NULL},
};

const struct command commands[N_COMMANDS] = {
    {"generate", GENERATE, NULL, 0, 0, "draw pictures from a prompt",
     "sluice generate -m DIR -p \"a red fox in the snow\" --max-ram 3G -o fox.png", NULL},
    {"decode", DECODE, "LATENT.safetensors", 1, 1, "turn a saved latent into a picture",
     "sluice decode fox.safetensors -m DIR -o fox.png", NULL},
    {"plan", PLAN, "[LATENT.safetensors]", 0, 1, "say what a run would need and take, without running it",
     "sluice plan --family qwen_image --device cuda:4090 --max-ram 16G", NULL},
    {"inspect", INSPECT, "[PATH]", 0, 1, "say what is in a model's files", "sluice inspect PATH --tensors",
     NULL},
    {"tokenize", TOKENIZE, NULL, 0, 0, "print a prompt's token ids as the model sees them",
     "sluice tokenize -m DIR -p \"a red fox\"", NULL},
    {"convert", CONVERT, "IN...", 1, OPERANDS_MAX, "rewrite one part's weights in other types",
     "sluice convert DIR/transformer -o transformer.gguf --type q8_0", NULL},
    {"bench", BENCH, "bus|ops|load|stream|block|checkpoint [FAMILY DIR|help]", 1, 3,
     "measure this machine; write models of random weights", "sluice bench bus --save rates.json",
     "bus: disk and memory; ops: arithmetic; load: how fast a model comes to memory; stream: how near to its "
     "floor a streamed step comes; block: how near to its products a block and a decoder come; checkpoint: "
     "writes a model of random weights."},
    {"devices", DEVICES, NULL, 0, 0, "list what a run can use", "sluice devices", NULL},
    {"families", FAMILIES, "[NAME]", 0, 1, "list which models can be run, or say all about one",
     "sluice families flux", NULL},
    {"completion", COMPLETION, "bash|zsh|fish", 1, 1, "print what a shell needs to complete flags",
     "sluice completion bash >/etc/bash_completion.d/sluice", NULL},
    {"manual", MANUAL, NULL, 0, 0, "print the man page", "sluice manual | man -l -", NULL},
};

/* A row for each flag that the library has for a part. */
static void add_parts(void) {
    static char help[COMPONENT_FILES_MAX][96];
    const char *name;
    for (int i = 0; i < COMPONENT_FILES_MAX && (name = sluice_part_flag(i, help[i], sizeof help[i])); i++)
        flags[n_flags++] = (struct flag){
            .commands = MODELS, .name = name, .value = "PATH", .kind = FLAG_PART, .help = help[i]};
}

void flags_init(void) {
    n_flags = 0;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        flags[n_flags++] = own[i];
        if (!i) add_parts();
    }
}

const struct flag *flag_find(const char *typed) {
    for (int i = 0; i < n_flags; i++) {
        bool letter = flags[i].letter && strcmp(flags[i].letter, typed) == 0;
        if (letter || strcmp(flags[i].name, typed) == 0) return &flags[i];
    }
    const char *ours = name_ours(typed);
    return ours ? flag_find(ours) : NULL;
}

const struct command *command_find(const char *name) {
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    }
    return NULL;
}

static int flags_least(int a, int b) {
    return a < b ? a : b;
}

/* Levenshtein's distance, case and _ for - ignored; names are short, longer ones count as far. */
static int distance(const char *a, const char *b) {
    enum { LONGEST = 40, FAR = 100 };
    int row[LONGEST + 1];
    size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a > LONGEST || n_b > LONGEST) return FAR;
    for (size_t j = 0; j <= n_b; j++) row[j] = (int)j;
    for (size_t i = 1; i <= n_a; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= n_b; j++) {
            bool same = (a[i - 1] | 32) == (b[j - 1] | 32) || (a[i - 1] == '_' && b[j - 1] == '-');
            int replaced = diagonal + !same;
            diagonal = row[j];
            row[j] = flags_least(replaced, 1 + flags_least(row[j], row[j - 1]));
        }
    }
    return row[n_b];
}

/* A third of the letters may differ: "--step" is --steps, "--foo" is nothing. So is a name's beginning, or
 * more than the whole of it. */
static bool nearer(const char *typed, const char *name, int *best) {
    enum { BEGINNING = 3 };
    int allowed = (int)strlen(name) / 3;
    typed += strspn(typed, "-"), name += strspn(name, "-"); /* "-steps" is near --steps */
    size_t shorter = strlen(typed) < strlen(name) ? strlen(typed) : strlen(name);
    bool begins = shorter >= BEGINNING && strncmp(typed, name, shorter) == 0;
    int away = begins ? allowed : distance(typed, name);
    if (away > allowed || away >= *best) return false;
    *best = away;
    return true;
}

const char *flag_nearest(unsigned command, const char *typed) {
    const char *name = NULL;
    int best = 100;
    for (int i = 0; i < n_flags; i++) {
        if (!(flags[i].commands & command)) continue;
        const char *other = flags[i].name;
        for (int k = 0; other; other = name_other(flags[i].name, k++))
            if (nearer(typed, other, &best)) name = flags[i].name;
    }
    return name;
}

const char *command_nearest(const char *typed) {
    const char *name = NULL;
    int best = 100;
    for (int i = 0; i < N_COMMANDS; i++) {
        if (nearer(typed, commands[i].name, &best)) name = commands[i].name;
    }
    return name;
}
