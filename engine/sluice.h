/* Sluice: diffusion models that are bigger than the memory they run in.
 *
 * A complete program: MODEL PROMPT > picture.ppm. cc program.c $(pkg-config --cflags --libs sluice)
 *
 *     #include <sluice.h>
 *     #include <stdio.h>
 *     static void save(void *file, const struct sluice_image *image) {
 *         fprintf((FILE *)file, "P6 %d %d 255\n", image->width, image->height);
 *         fwrite(image->rgb, 3, (size_t)image->width * (size_t)image->height, (FILE *)file);
 *     }
 *     int main(int argc, char **argv) {
 *         if (argc < 3) return 2;
 *         struct sluice_error error;
 *         struct sluice_model_options from = {.struct_size = sizeof from, .model = argv[1]};
 *         struct sluice_session_options to = {.struct_size = sizeof to, .on_image = save, .user = stdout};
 *         struct sluice_request request = {.struct_size = sizeof request};
 *         sluice_model *model = NULL;
 *         sluice_session *session = NULL;
 *         int status = sluice_model_open(&from, &model, &error);
 *         if (!status) status = sluice_session_open(model, &to, &session, &error);
 *         if (!status) sluice_request_defaults(model, &request), request.prompt = argv[2];
 *         if (!status) status = sluice_run(session, &request, &error);
 *         if (status) fprintf(stderr, "%s: %s\n", sluice_code_name(status), error.what);
 *         sluice_session_close(session), sluice_model_close(model);
 *         return status != 0;
 *     }
 *
 * Rules. Functions return SLUICE_OK or a code and fill *error. Every struct but a pair starts with
 * struct_size, set by the caller, and grows only at its end; fields that are 0 or NULL mean "the default",
 * but for a request's, which sluice_request_defaults fills. Strings are UTF-8 and borrowed for the call,
 * budgets are bytes, times are seconds. Text that the library hands out is freed with sluice_free. The
 * library never prints, exits, aborts, reads the environment or installs a signal handler. (oneDNN may end
 * the process where the C library has no memory for it; room is made sure of before it is called.) Threads: a
 * model is immutable and may be shared; a session belongs to one thread at a time, except sluice_cancel,
 * which any thread or signal handler may call. Callbacks run on the thread that called. A
 * calling thread's stack has to have SLUICE_STACK_BYTES left for what plans, runs or measures, and
 * SLUICE_STACK_BYTES_TO_OPEN for every other function that can fail: with less they are refused with USAGE.
 *
 * What measures the machine, and writes checkpoints to measure with, is in sluice_bench.h. */
#ifndef SLUICE_H
#define SLUICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_API     __attribute__((visibility("default")))
#define SLUICE_VERSION "0.1.0"

/* What may be asked for: more is refused with USAGE, text of more bytes with LIMIT. */
#define SLUICE_THREADS_MAX      1024
#define SLUICE_SIDE_MAX         16384 /* pixels of a picture, in and out */
#define SLUICE_STEPS_MAX        10000
#define SLUICE_BATCH_MAX        64
#define SLUICE_FPS_MAX          1000
#define SLUICE_SCALE_MAX        1000.0 /* cfg_scale and guidance, from 0 */
#define SLUICE_LORAS_MAX        64     /* adapters of a request, its prompts' among them */
#define SLUICE_FLOW_SHIFT_LEAST 0.001
#define SLUICE_FLOW_SHIFT_MAX   1000.0
#define SLUICE_TEXT_BYTES_MAX   (1 << 20) /* of a prompt */

#define SLUICE_STACK_BYTES         (896 << 10)
#define SLUICE_STACK_BYTES_TO_OPEN (192 << 10)

/* Codes: pinned numbers, named in messages and reports. */
enum sluice_code {
    SLUICE_OK = 0,
    SLUICE_TRUNC = 1,
    SLUICE_BADMAGIC = 2,
    SLUICE_VERSION_CODE = 3,
    SLUICE_LIMIT = 4,
    SLUICE_OVERFLOW = 5,
    SLUICE_BOUNDS = 6,
    SLUICE_OVERLAP = 7,
    SLUICE_DUP = 8,
    SLUICE_TYPE = 9,
    SLUICE_SHAPE = 10,
    SLUICE_ALIGN = 11,
    SLUICE_JSON = 12,
    SLUICE_UTF8 = 13,
    SLUICE_META = 14,
    SLUICE_MISSING = 15,
    SLUICE_UNUSED = 16,
    SLUICE_IO = 17,
    SLUICE_CHANGED = 18,
    SLUICE_UNSUPPORTED = 19,
    SLUICE_INTERNAL = 32,
    SLUICE_USAGE = 33,
    SLUICE_BUDGET = 34,
    SLUICE_DEVICE = 35,
    SLUICE_MEMORY = 36,
    SLUICE_OUTPUT = 37,
    SLUICE_NONFINITE = 38,
    SLUICE_CANCELLED = 39,
};

/* What went wrong. 1,024 bytes; every string is terminated, one line, and may be empty but what. */
struct sluice_error {
    int32_t code;      /* enum sluice_code */
    int32_t exit_code; /* what a program should exit with: 1, 2, 3, 4, 5, 6, 7 or 130 */
    char what[240], where[320], found[160], expected[160];
    char reserved[136];
};

/* The name of a code without prefix, as reports print it: "TRUNC". Never NULL. */
SLUICE_API const char *sluice_code_name(int code);
/* "what (where): found X, expected Y" into out; returns out. */
SLUICE_API char *sluice_error_line(const struct sluice_error *error, char *out, size_t out_bytes);
/* Frees text that a function handed out; NULL is fine. */
SLUICE_API void sluice_free(char *text);

/* ---- models ---- */

typedef struct sluice_model sluice_model;

/* One part of a model in a place of its own. A pair, and will stay one. */
struct sluice_part {
    const char *flag; /* that names it, as sluice_part_flag lists them: "--vae" */
    const char *path; /* a file, a shard index or a folder; NULL: as if the pair were not there; "none": the
                         part is left out, even if the model has it, where a model may be without it */
};

/* Flag number i, from 0, of those that name parts of models; NULL behind the last. In help, if that is not
 * NULL, what it names in words. */
SLUICE_API const char *sluice_part_flag(int i, char *help, size_t help_bytes);

/* Where the parts are. model: a Hugging Face folder, a folder of parts in any arrangement, or a file that
 * holds several; parts override one each. Parts are told apart by the names of their tensors: diffusers' or
 * their authors', q, k and v fused or not. A tokenizer that is not given is looked for in the model's folder,
 * then beside the text encoder. */
struct sluice_model_options {
    size_t struct_size;
    const char *model;
    const struct sluice_part *parts; /* each flag once */
    int n_parts;
    const char *tokenizer;
    bool decodes_only; /* only the autoencoder is looked for and opened: for sluice_decode and its plan, which
                          need nothing else; whatever else would draw is a USAGE error */
    int64_t max_ram_bytes;  /* a request's budget: a header beyond it is refused (BUDGET) before it is read,
                               but for small ones, so that a plan can say what the request needs. 0: any */
    const char *edit;       /* "plain", "plus", "2511": which of a model's editing pipelines it is, where its
                               weights serve several; NULL: as its files say */
    const char *family;     /* for planning only, instead of all files: as if those that are published for the
                               pipeline of this name ("zimage", as sluice_families lists them) were
                               there, in bf16. Prompts are as long as they can be. NULL: there are files */
    const char *dimensions; /* with family: "name=value,..." instead of its published sizes, or NULL */
    const char *latent;     /* with decodes_only: the file that is to be decoded, so that an autoencoder whose
                               files do not say which pipeline it is of is one of videos if that is; or NULL */
};

/* Opens headers and configurations, matches families and checks every tensor's name, shape and type; reads no
 * weights. Exit class 3 for anything missing, damaged or in the wrong slot. */
SLUICE_API int sluice_model_open(const struct sluice_model_options *options, sluice_model **model,
                                 struct sluice_error *error);
SLUICE_API void sluice_model_close(sluice_model *model);

/* What is in the files, as the JSON of `sluice inspect`; tensors adds every tensor's name, type and shape.
 * Works on folders with parts missing (listed under "missing"). Of an adapter's file, as `model` alone, there
 * are no components but "adapter":{"file","tensors","bytes","types":{TYPE:bytes},"modules","dialects",
 * "forms" ("LoRA", "LoHa", "LoKr", "difference"),"ranks","alphas" (each {NAME:modules}),"parts":[{"name",
 * "modules","ranks","alphas"}],"recipes" (published models that take all of it)}. */
SLUICE_API int sluice_inspect(const struct sluice_model_options *options, bool tensors, char **json,
                              struct sluice_error *error);

/* Token ids of a text. With a model: {"encoders":[{"name","ids":[...],"tokens","truncated"}]} as the model
 * sees them, template included; of a model that edits there is one picture, which is one token; of an
 * encoder that sees a long prompt in windows also "window", the tokens of each, and where words have weights
 * "weights", a number a token. With options->tokenizer alone: one array of the plain ids. */
SLUICE_API int sluice_tokenize(const struct sluice_model_options *options, const char *text,
                               size_t text_bytes, char **json, struct sluice_error *error);

/* ---- sessions ---- */

typedef struct sluice_session sluice_session;

struct sluice_progress {
    size_t struct_size;
    const char *stage;    /* "vision", "text", "text_2", "encode", "hoist", "denoise", "decode" */
    int step, of;         /* evaluation of this stage, from 1; 0 before the first */
    double fraction;      /* of the whole run's work, moves inside long visits too; a run that ends well ends
                             with 1 */
    double seconds, eta;  /* since the run began; eta is negative while unknown */
    double stall_seconds; /* spent waiting for weights so far */
    int64_t bytes_read;
    const char *source; /* what this stage waits for when it waits: "disk", or the "bus" to a device */
};

struct sluice_image {
    size_t struct_size;
    int index; /* 0 .. batch-1 */
    int width, height;
    const uint8_t *rgb; /* height rows of width RGB triples, packed; valid during the call */
    uint64_t seed;
    const char *sha256; /* hex, of the rows */
    int frame, frames;  /* 0 .. frames-1: those of a video come one after another; frames 1: a picture */
    const char *sampler, *scheduler, *prediction; /* of a run: what a request would call those that made it;
                                                     else NULL */
    double cfg_scale;                             /* that it was guided by; 1: not at all */
    double cfg_scale_low;                         /* and by a second denoiser; 0: there is none */
    const char *negative_prompt; /* that was read, the model's own where a request has none; or NULL */
    const char *video_sha256;    /* with the last frame: hex, of all frames' rows; else NULL */
    double slg_scale;            /* of skip-layer guidance; 0: there was none in any step */
    const char *loras;           /* adapters that it was drawn with, "style:0.8, turbo:1"; NULL: none */
    const char *decoder; /* tiny one, in the autoencoder's place: "taesd"; NULL: the autoencoder's own */
};

/* A look at an image on the way. */
struct sluice_preview {
    size_t struct_size;
    int index;          /* 0 .. batch-1 */
    int step, of;       /* that has just ended, from 1 */
    int width, height;  /* what is to be seen is seldom as large as the picture: see sluice_request */
    const uint8_t *rgb; /* height rows of width RGB triples, packed; valid during the call */
    uint64_t seed;
};

enum sluice_level { SLUICE_WARNING = 1, SLUICE_INFO = 2 };

struct sluice_session_options {
    size_t struct_size;
    const char *device; /* "cpu", "cuda", "cuda:N"; NULL: the first GPU if it will do, else the CPU */
    int threads;        /* 0: the physical cores that it may use, or fewer where a quota of
                           processor time is less */
    void (*on_log)(void *user, int level, const char *line);
    void (*on_progress)(void *user, const struct sluice_progress *progress);
    void (*on_image)(void *user, const struct sluice_image *image);
    void *user; /* given back to every callback */
    /* The session only plans: then "cuda" needs no GPU, and numbers about it are assumed; "cuda:CARD" is one
     * of the cards known by name (3060, 4060, 4060ti, 4090, h100), with its memory and calculated rates. */
    bool plans_only;
    /* Keeps what text encoders make of prompts, in up to so many bytes of the host's memory, so that a later
     * picture of a prompt begins without its encoder; 0: keeps nothing. A prompt takes 4 bytes for each token
     * and column (8 MiB of T5's 512 tokens). Plans count what is kept: they are those of the request as it
     * would run now. */
    uint64_t prompt_cache_bytes;
    /* An existing folder in which what text encoders make of prompts is found, and kept for other sessions, a
     * file a prompt and encoder that nobody deletes; NULL: none. A damaged file is replaced; one that cannot
     * be written is a warning. */
    const char *prompt_cache;
    void (*on_preview)(void *user, const struct sluice_preview *preview); /* where a request asks for them */
};

/* Cheap: allocates nothing of size. The model must outlive the session. */
SLUICE_API int sluice_session_open(sluice_model *model, const struct sluice_session_options *options,
                                   sluice_session **session, struct sluice_error *error);
SLUICE_API void sluice_session_close(sluice_session *session);

/* ---- requests ---- */

/* A picture to read: height rows of width RGB triples, packed. */
struct sluice_picture {
    size_t struct_size;
    int width, height; /* 1 to SLUICE_SIDE_MAX */
    const uint8_t *rgb;
    const char *name; /* what messages call it, a file's name; or NULL */
    /* Where rgb is NULL: writes height rows to memory that the library takes once a run is known to fit its
     * budget, so that what is refused, or only planned, is never read. A reference may be read twice, for two
     * encoders. Not 0: the error, which ends the run.
     */
    int (*read)(const struct sluice_picture *picture, uint8_t *rgb, struct sluice_error *error);
    void *user; /* for read and read_rows */
    /* Beside read, or NULL: hands `take` the rows from the first to the last, each with `to`. A picture that
     * is resampled is then never held whole. */
    int (*read_rows)(const struct sluice_picture *picture, void (*take)(void *to, const uint8_t *row),
                     void *to, struct sluice_error *error);
    uint64_t reading_bytes; /* what reading takes for a while beside the pixels, to be counted */
};

/* An adapter (LoRA): a file, and how much of it counts. A pair, and will stay one. */
struct sluice_lora {
    const char *path;
    double strength; /* 1: as it was trained; -SLUICE_SCALE_MAX to SLUICE_SCALE_MAX */
};

struct sluice_request {
    size_t struct_size;
    const char *prompt;          /* NULL: the longest the model takes (for planning only) */
    const char *negative_prompt; /* NULL: the model's own, as WAN's authors have one; else "", or of models
                                    that are trained so (SDXL) no text at all */
    int width, height; /* pixels, multiples of the model's step; 0: init_image's (of a video as many pixels as
                          the model's, with init_image's aspect), rounded down to it, else, of a model that
                          edits, the last reference's aspect, else the model's */
    int steps;         /* at least 1 */
    int batch;         /* images, seeds seed, seed+1, ...; 0 means 1 */
    double cfg_scale;  /* uncond + s*(cond - uncond); exactly 1: no second lane; of models that are trained
                          so (Qwen-Image) 1 without a negative prompt */
    double guidance;   /* distilled guidance, for models that take it: no other value than 0 for others */
    double flow_shift; /* 0: the model's */
    uint64_t seed;
    bool no_decode;        /* stop after the latent */
    const char *precision; /* of transformer and text encoder: "f32" or "bf16"; NULL: the device's own, f32 on
                              the CPU, bf16 on a GPU */
    const char *init_latent; /* safetensors file with the initial noise (tensor "latent"), or NULL */
    const char *save_latent; /* where to write the final latents, or NULL; there whole or not at all */
    const char *dump;        /* an existing folder for what a reference is compared by, or NULL */
    const char *plan;        /* JSON text of a plan to run exactly, or NULL */
    int64_t max_ram_bytes; /* budget for a process that holds nothing but the library: its own bytes and 12 to
                              15 MiB for the bare process; what else a program holds comes on top. 0: what is
                              free less a reserve */
    int64_t max_vram_bytes;  /* device memory that the process takes, context and libraries included; 0: what
                                is free less a twentieth, at least 512 MiB, at most half. Ignored on the CPU */
    const char *rates;       /* JSON text of measured rates (a bench's), or NULL: stated defaults */
    const char *rates_name;  /* what the plan calls them, a file's name; NULL: "given" */
    const char *direct_io;   /* "on", "off": read weights past the page cache; "auto" or NULL: where the model
                                is larger than what the cache of this machine could keep */
    const char *vae_tiling;  /* the decoder's whole-picture buffers: "on": the least memory, at the cost of
                                computing some of it twice, and of the bus where the device has memory of its
                                own; "off": all kept, on the device; "auto" or NULL: the faster that fits */
    const char *plan_name;   /* what messages call the plan, a file's name; NULL: "plan" */
    double max_vram_percent; /* of all that the device has, up to 100; where max_vram_bytes is 0 */
    /* Pictures in; the caller's for as long as a call takes. */
    const struct sluice_picture
        *init_image; /* to start from, or to fill; of models that make videos of pictures the first frame;
                        made to fit where it has another size; or NULL */
    double strength; /* above 0, to 1: how far to leave it. Of `steps` the last steps * strength are run, as
                        diffusers counts */
    const struct sluice_picture *mask; /* white where init_image is drawn anew: by a model that sees the
                                          mask, else with the rest put back after every step; fitted as it; or
                                          NULL */
    const struct sluice_picture *const *references; /* to refer to, of any sizes: one of other than whole
                                                       tokens or of more pixels than the model was trained
                                                       with is resized first */
    int n_references;
    const char
        *type; /* keep weights of transformer and text encoders in this type, converted as they are read:
                  "f8_e4m3", "q8_0", "q4_k" ...: fewer bytes, other pixels. NULL: as files have them */
    int frames, fps; /* of a video; frames 1: a picture; 0: as many as lead it, else the model's, and so fps,
                        which changes nothing that is drawn */
    bool converted;  /* for planning only: as if sluice_convert had made files of `type` beforehand, so that
                        nothing is converted as it is read */
    int image_bytes_a_pixel; /* what on_image takes while pictures or frames are decoded, a pixel of one, to
                                be counted, and 1 MiB: 0 to 1024; 0: nothing */
    const char *fit; /* of init_image and mask where they have another size than is drawn: "crop" or NULL: as
                        large as covers it, centred; "pad": as large as fits into it, its edges go on;
                        "stretch". Resampled by Pillow's Lanczos */
    const char *prompt_weights; /* "on" or NULL: (word), [word] and (word:1.3) in prompts weigh words, BREAK
                                   divides them, for models that take it; "off": they are text */
    int clip_skip; /* which of CLIP's layers is read of a prompt: 1 the last, 2 the one before ...; 0: the one
                      that the model was trained with */
    /* Names; NULL: the model's own, as its scheduler_config.json says. */
    const char *sampler;    /* "euler", "euler_a", "dpm++2m" ...: how a step is taken; the grid stays */
    const char *scheduler;  /* the grid: "leading", "trailing", "linspace": the model's own of that spacing;
                               "karras", "simple", "beta" ...: stable-diffusion.cpp's */
    const char *prediction; /* what the denoiser gives: "eps", "v", "flow" */
    const struct sluice_picture *end_image; /* a video's last frame beside init_image, its first; fitted as
                                               it; for models that take one; or NULL */
    double cfg_scale_low; /* of a model with two denoisers the second's cfg_scale; 0: the same as cfg_scale */
    const struct sluice_picture *const *control; /* frames of a video that leads the one that is drawn, for
                                                    models that take it, all of one size; mask then says
                                                    where it is drawn anew; or NULL */
    int n_control;        /* as many as `frames`, or more; frames 0: of these as many as a video may have */
    int64_t caller_bytes; /* what the caller itself holds through the run, to be counted against
                             max_ram_bytes: libraries that write a video ... */
    /* Skip-layer guidance, for models whose layers can be left out (SD3): in every step i, from 0, of the n
     * that are run, with n * start < i < n * end, slg_scale * (cond - skipped) is added to what is guided;
     * skipped is what the model gives of the prompt without these layers. Only with guidance (cfg_scale). */
    const int *slg_layers; /* numbers from 0; the caller's for as long as a call takes; or NULL */
    int n_slg_layers;      /* 0: there is none, and the other three say nothing */
    double slg_scale, slg_start, slg_end; /* 0 to SLUICE_SCALE_MAX; 0 to 1 */
    /* Previews, of every image behind each step that preview_every divides, but the last, unless no_decode:
     * what the denoiser takes the picture to be there. They change no bit of the picture, are planned for
     * like all else, and need the session's on_preview. "latent": a colour a latent pixel, about, which takes
     * no time; of a video a sheet of its latent frames, row by row. "vae": decoded, of a video the first
     * frame, in a small run of its own, which keeps nothing. "taesd": the same by a tiny decoder, with which
     * the picture itself is then not decoded. NULL: none. */
    const char *preview;
    int preview_every; /* 0 means 1 */
    /* Adapters that change transformer and text encoders, whose own weights stay as they are: what a file
     * brings is computed beside them and added. Several add; so do the strengths of a file that is named
     * twice; one of strength 0 changes nothing and is not read. A session reads the model's weights no second
     * time where they change. */
    const struct sluice_lora *loras; /* the caller's for as long as a call takes; or NULL */
    int n_loras;
    bool lora_partial; /* what of an adapter fits no weight of the model is a warning, else it is MISSING */
    const char *lora_dir; /* where prompts' <lora:NAME:0.8> are found, NAME.safetensors; NAME may have folders
                             in it; they are taken out of the texts. NULL: they are text */
};

/* Fills every field with the model's defaults; prompt and paths with NULL, seed with 0. */
SLUICE_API void sluice_request_defaults(const sluice_model *model, struct sluice_request *request);

/* The plan as the JSON of `sluice plan --json`. Allocates nothing of size and reads no weights. A request
 * that cannot fit still gives its plan; fits says whether it would run. decode_latent: plan sluice_decode of
 * that file instead. */
SLUICE_API int sluice_plan_query(sluice_session *session, const struct sluice_request *request,
                                 const char *decode_latent, char **json, bool *fits,
                                 struct sluice_error *error);

/* Runs a request: images through on_image as each is ready, a video's frames in their order, and all of one
 * video before the next. BUDGET (naming the least that would do) before
 * any weight is read if it does not fit. A second run equals a fresh process bit for bit. */
SLUICE_API int sluice_run(sluice_session *session, const struct sluice_request *request,
                          struct sluice_error *error);

/* Decodes saved latents (safetensors, tensor "latent", f32 [N, C, h, w], of videos [N, C, F, h, w]); width,
 * height and frames follow from it. */
SLUICE_API int sluice_decode(sluice_session *session, const struct sluice_request *request,
                             const char *latent_file, struct sluice_error *error);

/* The report of the last run or decode, failed ones included, as the JSON of --report. */
SLUICE_API int sluice_report(sluice_session *session, char **json, struct sluice_error *error);

/* Ends the run at its next visit with CANCELLED. From any thread or signal handler; before a run it does
 * nothing. */
SLUICE_API void sluice_cancel(sluice_session *session);

/* ---- converting ---- */

struct sluice_convert_options {
    size_t struct_size;
    const char *const *inputs; /* files, shard indexes or folders that together are one component's weights */
    int n_inputs;
    const char *part;   /* of a file that holds several (its flag without dashes: "vae"), of a Hugging Face
                           folder ("transformer"); NULL: the only one */
    const char *output; /* ends in .gguf or .safetensors */
    const char
        *type; /* "q8_0", "q4_k", "f8_e4m3" (safetensors), "bf16" ...; NULL: what has a type keeps it */
    /* "regex=type": the first whose PCRE2 pattern is found in a tensor's name says its type, where that suits
     * the tensor at all. */
    const char *const *rules;
    int n_rules;
    /* Called before each piece; what is being converted. False ends it with CANCELLED. May be NULL. */
    bool (*on_progress)(void *user, double fraction, const char *what);
    void *user;
    const struct sluice_lora *loras; /* adapters that are merged into the weights, in this order; or NULL */
    int n_loras;
    bool lora_partial; /* what of an adapter fits no weight is left out, no error */
};

/* Writes one component's weights to one file in other types, there whole or not at all. Matrices take the
 * type asked for, or one with smaller blocks where their rows are too short; vectors, embeddings, final
 * layers and an autoencoder's weights keep theirs, as under a request's `type`: both give the same picture.
 * Names of tensors stay (but for what tells parts of one file apart); a configuration goes along. Takes at
 * most 64 MiB beside the headers and one row of the widest tensor. NONFINITE if a weight is no number, LIMIT
 * if it is too large for its type.
 *
 * With adapters each becomes W + strength scale B A, computed in f32 and rounded once; all that `generate`
 * takes is merged, and whole matrices, LoHa and LoKr of any rank. What of an adapter is for other parts stays
 * out; MISSING if nothing is for this one. Takes the factors of one weight besides, and for LoKr as much as
 * that weight in f32. UNSUPPORTED where a weight would keep a type that nothing here writes.
 * *json: {"version":1,"family","tensors","from_bytes","bytes","types":{TYPE:bytes}} and, with adapters,
 * "merged" (tensors that they changed), or json NULL. */
SLUICE_API int sluice_convert(const struct sluice_convert_options *options, char **json,
                              struct sluice_error *error);

/* What can be run, with what is published of it: {"version":1,"families":[{"name","title","denoiser",
 * "pipelines":[...],"width","height","frames","steps","cfg_scale","guides_if_negative" (only with a negative
 * prompt),"bytes" (of all weights in bf16),"parts":[{"name","family","flag","optional" (a model may be
 * without),"bytes"}],"takes" (beside a prompt):[{"flag","what","needed"}],"layouts" (of its
 * files):[...],"sources":[{"repository" (at Hugging Face),"flag" (null: it is a whole model),"files" (null: a
 * folder as diffusers has it),"megabytes" (of 10^6 bytes, three digits, or null)}],"reference" (whose
 * pictures it is compared with, or null),"like" (then: whose parts it has)}]}. */
SLUICE_API int sluice_families(char **json, struct sluice_error *error);

/* ---- the machine ---- */

/* {"version":1,"devices":[{"name","processor","bytes","free_bytes","threads" (a session's, unless it says
 * otherwise),"hardware_threads","instructions","library","precisions":["f32", ...]}],
 * "absent":[{"name","reason"}]} */
SLUICE_API int sluice_devices(char **json, struct sluice_error *error);

/* Memory of the machine, or what control groups limit it to; INT64_MAX where the system does not say. */
SLUICE_API int64_t sluice_memory_bytes(void);

SLUICE_API const char *sluice_version(void);

#ifdef __cplusplus
}
#endif

#endif
