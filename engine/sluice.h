/* Sluice runs diffusion models that are larger than the memory of the GPU or machine.
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
 *         char line[1024];
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
 *         if (status) fprintf(stderr, "%s\n", sluice_error_line(&error, line, sizeof line));
 *         sluice_session_close(session), sluice_model_close(model);
 *         return status != 0;
 *     }
 *
 * Conventions
 *
 * - Errors: fallible functions return SLUICE_OK or another sluice_code and fill *error.
 * - Structs: the caller sets struct_size to sizeof the struct; new fields are only added at the end.
 *   sluice_error, sluice_part and sluice_lora have no struct_size and never change. 0 or NULL in an options
 *   struct means the default. sluice_request_defaults fills a request.
 * - Strings are UTF-8. The library borrows them during a call. sluice_free frees text that a function
 *   returns.
 * - Units: budgets are bytes, times are seconds, sizes are pixels.
 * - Threads: a model is immutable; threads and sessions may share it. One thread at a time uses a session;
 *   sluice_cancel is the exception: any thread or signal handler may call it. Callbacks run on the calling
 *   thread; for their own session they may call only sluice_cancel (other calls: USAGE). The calling thread
 *   needs SLUICE_STACK_BYTES of free stack to plan, run or measure, and SLUICE_STACK_BYTES_TO_OPEN for every
 *   other fallible function; nothing checks it.
 * - Process: the library never prints, exits, aborts, reads environment variables or installs signal
 *   handlers. Exception: oneDNN ends the process when the C library has no memory left; Sluice checks for
 *   enough free memory before each call to oneDNN.
 *
 * sluice_bench.h has the benchmarks. */
#ifndef SLUICE_H
#define SLUICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_API     __attribute__((visibility("default")))
#define SLUICE_VERSION "0.2.0"

/* Largest accepted values of request fields. A larger number fails with USAGE, a longer text with LIMIT. */
#define SLUICE_THREADS_MAX    1024
#define SLUICE_SIDE_MAX       16384 /* width or height of an input or output image, in pixels */
#define SLUICE_STEPS_MAX      10000
#define SLUICE_BATCH_MAX      64
#define SLUICE_STG_BLOCKS_MAX 8
#define SLUICE_FPS_MAX        1000
#define SLUICE_SCALE_MAX                                                                                     \
    1000.0 /* largest cfg_scale and largest distilled guidance scale; the smallest is 0 */
#define SLUICE_LORAS_MAX        64    /* adapters of a request, including <lora:...> tags in prompts */
#define SLUICE_CFG_UNTIL_LEAST  0.001 /* smallest cfg_until */
#define SLUICE_FLOW_SHIFT_LEAST 0.001
#define SLUICE_FLOW_SHIFT_MAX   1000.0
#define SLUICE_TEXT_BYTES_MAX   (1 << 20) /* UTF-8 bytes of one prompt */

/* Free stack in bytes that the calling thread needs: to plan, run or measure, and for every other fallible
 * function. */
#define SLUICE_STACK_BYTES         (896 << 10)
#define SLUICE_STACK_BYTES_TO_OPEN (192 << 10)

/* Status codes of functions and errors. The numbers never change; sluice_code_name gives the name used in
 * reports. */
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

/* An error, 1,024 bytes. Every string is one NUL-terminated line. Only `what` is never empty. */
struct sluice_error {
    int32_t code;      /* enum sluice_code */
    int32_t exit_code; /* exit code for a program: 1 to 7 or 130 (see `sluice --help`) */
    char what[240], where[320], found[160], expected[160];
    char reserved[136];
};

/* Returns the name of a code without its prefix, for example "TRUNC". Never NULL. */
SLUICE_API const char *sluice_code_name(int code);
/* Writes "what (where): found X, expected Y" to out, truncated to out_bytes with the NUL. Returns out. */
SLUICE_API char *sluice_error_line(const struct sluice_error *error, char *out, size_t out_bytes);
/* Frees a string returned by this library. NULL is allowed. */
SLUICE_API void sluice_free(char *text);

/* ---- models ---- */

typedef struct sluice_model sluice_model;

/* A file or folder for one part of a model. */
struct sluice_part {
    const char *flag; /* flag of the part, as listed by sluice_part_flag: "--vae" */
    const char *path; /* a file, a shard index or a folder. NULL: ignore this entry. "none": run without this
                         part, if the model allows it */
};

/* Returns the flag of part i (i >= 0), or NULL past the last. Writes its description to help unless help is
 * NULL. */
SLUICE_API const char *sluice_part_flag(int i, char *help, size_t help_bytes);

/* Location of a model. Parts are recognised by their tensor names, in the naming of diffusers, of the
 * original checkpoints, of ComfyUI or of llama.cpp. */
struct sluice_model_options {
    size_t struct_size;
    const char *model; /* a diffusers folder, a folder of parts, or a file with several parts; or NULL */
    const struct sluice_part *parts; /* other files for single parts; each flag at most once, only
                                        "--control-net" up to SLUICE_CONTROLS_MAX times */
    int n_parts;
    const char *tokenizer; /* tokenizer file or folder; NULL: search the model's folder, then the text
                              encoder's folder */
    bool decodes_only; /* open only the VAE, for sluice_decode and its plan; sluice_run fails with USAGE */
    int64_t max_ram_bytes; /* limit in bytes for file headers: a larger header fails with BUDGET before it is
                              read. Small headers always pass, so that a plan can report the memory it needs.
                              0: no limit */
    /* Editing pipeline: "plain", "plus" or "2511" of Qwen-Image-Edit, "longcat" of LongCat-Image-Edit; NULL:
     * read from the model's files */
    const char *edit;
    const char *family; /* for planning without files: name of a published model, as listed by sluice_families
                           ("zimage"). It is planned in bf16 with the longest prompt. NULL: open files */
    const char *dimensions; /* with family: model dimensions to change, "name=value,..."; or NULL */
    const char *latent; /* with decodes_only: the latent file to decode. Its shape selects the image or video
                           pipeline if the VAE's files fit both. Or NULL */
};

/* Opens a model: reads headers and configurations, recognises the pipeline, and checks name, shape and type
 * of every tensor. Reads no weights. Anything missing, damaged or in the wrong slot gives exit code 3. */
SLUICE_API int sluice_model_open(const struct sluice_model_options *options, sluice_model **model,
                                 struct sluice_error *error);
SLUICE_API void sluice_model_close(sluice_model *model);

/* True if the model makes images with alpha, and reads the alpha of init_image, end_image and references.
 * Other models ignore alpha. */
SLUICE_API bool sluice_model_has_alpha(const sluice_model *model);

/* True if the model makes videos with sound and its files include the audio VAE and the vocoder. */
SLUICE_API bool sluice_model_has_sound(const sluice_model *model);

/* True if the frame rate of a request changes the model's videos (LTX-2), not only their playback. */
SLUICE_API bool sluice_model_reads_fps(const sluice_model *model);

/* Describes files as the JSON of `sluice inspect`. tensors: add name, type and shape of every tensor. Missing
 * or damaged parts are no error if other parts can be read; "missing" lists them, and "complete" is false.
 * For an adapter file (in `model`, alone) the JSON holds
 * "adapter":{"file","tensors","bytes","types":{TYPE:bytes},"modules","dialects", "forms" ("LoRA", "LoHa",
 * "LoKr", "difference", "DoRA"),"ranks","alphas" (each {NAME:modules}),"parts":[{"name",
 * "modules","ranks","alphas"}],"recipes" (published models that take all of it)}. */
SLUICE_API int sluice_inspect(const struct sluice_model_options *options, bool tensors, char **json,
                              struct sluice_error *error);

/* Tokenizes a text. With a model: {"encoders":[{"name","ids":[...],"tokens","truncated"}]}, the input of each
 * text encoder, prompt template included. For image editing models one reference image is assumed; it is one
 * token. Encoders that split long prompts into chunks add "window" (tokens a chunk), weighted prompts add
 * "weights" (one number a token). With options->tokenizer alone: an array of the ids, without template. */
SLUICE_API int sluice_tokenize(const struct sluice_model_options *options, const char *text,
                               size_t text_bytes, char **json, struct sluice_error *error);

/* ---- sessions ---- */

typedef struct sluice_session sluice_session;

struct sluice_progress {
    size_t struct_size;
    const char *stage;    /* "vision", "text", "text_2", "encode", "hoist", "denoise", "decode",
                             "upscale" */
    int step, of;         /* current and last evaluation of this stage, from 1; 0 before the first */
    double fraction;      /* share of the whole run that is done; a successful run ends with 1 */
    double seconds, eta;  /* seconds since the start of the run; estimated seconds left, negative: unknown */
    double stall_seconds; /* seconds spent waiting for weights so far in the run */
    int64_t bytes_read;
    const char *source; /* source of streamed weights in this stage: "disk" or "bus" */
};

struct sluice_image {
    size_t struct_size;
    int index; /* 0 .. batch-1 */
    int width, height;
    const uint8_t *rgb; /* height rows of width RGB triples, packed; valid during the call */
    uint64_t seed;
    const char *sha256; /* SHA-256 of the pixels (not of a file) as RGB triples, or as RGBA with alpha,
                           hexadecimal */
    int frame, frames;  /* frame number 0 .. frames-1 and frames of the video; an image has 1 */
    const char *sampler, *scheduler, *prediction; /* sampling settings that were used, by the names of a
                                                     request; NULL for decoded latents */
    double cfg_scale;            /* classifier-free guidance scale that was used; 1: no guidance */
    double cfg_scale_low;        /* guidance scale of the second transformer (WAN 2.2); 0: the model has one
                                    transformer */
    const char *negative_prompt; /* negative prompt that was used, possibly the model's default; NULL: none */
    const char *video_sha256; /* SHA-256 of all frames' pixels, passed with a video's last frame; else NULL */
    double slg_scale;         /* skip-layer guidance scale that was used; 0: none */
    const char *loras;        /* adapters and strengths, "style:0.8, turbo:1"; NULL: none */
    const char *decoder;      /* tiny decoder that was used: "taesd"; NULL: the VAE's decoder */
    double cfg_norm, cfg_until; /* limits of guidance that were used; 0 and 1: none */
    /* Opacity, 255: opaque; height packed rows of width bytes; valid during the call. rgb is not
     * premultiplied by alpha. NULL: the model has no alpha, every pixel is opaque. */
    const uint8_t *alpha;
    /* Control images that were used, one line each: "Module: canny, Model: NAME, Weight: 0.8, Guidance Start:
     * 0, Guidance End: 1"; valid during the call. NULL: none. */
    const char *controls;
    int first_width, first_height; /* size of the first pass (hires_scale); 0: there was one pass */
    /* Denoising strength and steps of the second pass; 0: there was one pass. */
    double hires_strength;
    int hires_steps;
    int enlarged; /* factor by which an upscaler enlarged the sides (--upscale-model); 0: none did */
};

/* The sound of a video, passed before the video's first frame. */
struct sluice_sound {
    size_t struct_size;
    int index; /* 0 .. batch-1, as in sluice_image */
    int sample_rate, channels;
    int64_t samples;    /* number of samples of each channel */
    const float *pcm;   /* [samples][channels], -1 to 1; valid during the call */
    const char *sha256; /* SHA-256 of pcm as little-endian f32, hexadecimal */
};

/* A preview of an image, made after a step. */
struct sluice_preview {
    size_t struct_size;
    int index;          /* 0 .. batch-1 */
    int step, of;       /* finished step, from 1, and number of steps */
    int width, height;  /* size of the preview in pixels, often smaller than the image: see sluice_request */
    const uint8_t *rgb; /* height rows of width RGB triples, packed; valid during the call */
    uint64_t seed;
    const uint8_t *alpha; /* as in sluice_image, or NULL */
};

enum sluice_level { SLUICE_WARNING = 1, SLUICE_INFO = 2 };

struct sluice_session_options {
    size_t struct_size;
    const char *device; /* "cpu", "cuda", "cuda:N"; NULL: the first usable GPU, else the CPU */
    int threads;        /* CPU threads; 0: the physical cores allowed by CPU affinity and cgroup quota */
    void (*on_log)(void *user, int level, const char *line);
    void (*on_progress)(void *user, const struct sluice_progress *progress);
    void (*on_image)(void *user, const struct sluice_image *image);
    void *user; /* passed to every callback */
    /* The session only plans. "cuda" then needs no GPU and assumes a GPU's properties; "cuda:CARD", such as
     * "cuda:4090", assumes the memory size and data sheet rates of a card that sluice_devices lists. */
    bool plans_only;
    /* Size of the in-memory prompt cache; 0: none. The cache holds text encoder outputs, so that a repeated
     * prompt skips its text encoder. One prompt takes 4 bytes a token and channel (8 MiB for T5's 512
     * tokens). Plans include the cache's current contents. */
    uint64_t prompt_cache_bytes;
    /* An existing folder for a prompt cache on disk, shared between sessions; NULL: none. One file a prompt
     * and encoder; files are never deleted, and damaged files are replaced. A failed write is a warning. */
    const char *prompt_cache;
    void (*on_preview)(void *user,
                       const struct sluice_preview *preview);       /* called if request->preview is set */
    void (*on_sound)(void *user, const struct sluice_sound *sound); /* called for models with sound (LTX-2) */
};

/* Opens a session. Allocates no large memory. The model must stay open until the session is closed. */
SLUICE_API int sluice_session_open(sluice_model *model, const struct sluice_session_options *options,
                                   sluice_session **session, struct sluice_error *error);
SLUICE_API void sluice_session_close(sluice_session *session);

/* ---- requests ---- */

/* An input image: height rows of width packed RGB triples, in memory or read by a callback. */
struct sluice_picture {
    size_t struct_size;
    int width, height; /* 1 to SLUICE_SIDE_MAX */
    const uint8_t *rgb;
    const char *name; /* name of the image in messages, usually the file's; or NULL */
    /* Callback, used if rgb is NULL: writes all rows to rgb, memory of the library. Called after the request
     * is accepted, never for a plan; for a reference image possibly twice. Returns 0, or an error that ends
     * the run. */
    int (*read)(const struct sluice_picture *picture, uint8_t *rgb, struct sluice_error *error);
    void *user; /* pointer for the caller's callbacks read and read_rows */
    /* Optional callback, in addition to read: calls take(to, row) for each row from top to bottom. The
     * library then resamples the image without holding all rows in memory. */
    int (*read_rows)(const struct sluice_picture *picture, void (*take)(void *to, const uint8_t *row),
                     void *to, struct sluice_error *error);
    uint64_t reading_bytes; /* temporary memory in bytes that the callbacks need; the plan counts it */
    /* Opacity of `rgb`: height packed rows of width bytes, 255: opaque; NULL: every pixel is opaque. rgb is
     * not premultiplied by alpha. Only models with alpha read it (sluice_model_has_alpha). */
    const uint8_t *alpha;
    /* Optional callback, in addition to read, for a picture with alpha: as read_rows, with rows of RGBA
     * quadruples. Models with alpha call it instead of read and read_rows. */
    int (*read_rgba_rows)(const struct sluice_picture *picture, void (*take)(void *to, const uint8_t *row),
                          void *to, struct sluice_error *error);
};

/* An adapter (LoRA) and its strength. */
struct sluice_lora {
    const char *path;
    double strength; /* strength, -SLUICE_SCALE_MAX to SLUICE_SCALE_MAX; 1: as trained */
};

#define SLUICE_CONTROLS_MAX 4 /* control networks of a model, and control images of a request */

/* A control image for a control network (ControlNet), or for a model that reads one itself (Flux.1 Canny and
 * Depth). */
struct sluice_control {
    size_t struct_size;
    int network; /* number of the control network, from 0, in the order of the model's parts "--control-net";
                    -1: the model itself reads the image */
    const struct sluice_picture *image; /* control image, stretched to the output size. NULL: only for
                                           networks that inpaint */
    double strength;   /* factor of the network's residuals (diffusers: controlnet_conditioning_scale), 0 to
                          SLUICE_SCALE_MAX; 1: as trained */
    double start, end; /* range of steps, 0 to 1: step i of n steps uses the network if i/n >= start and
                          (i+1)/n <= end; end 0 means 1 */
    int mode; /* kind of the control image, for networks that take several kinds (union): 0, 1, ...; -1: the
                 network takes one kind */
    /* Inpainting networks: an image, and the mask of its repainted region (white). Both or neither; NULL:
     * mask and init_image of the request, if it has them. */
    const struct sluice_picture *mask, *inpaint;
    bool canny; /* replace the control image by its edges, white on black (OpenCV's Canny with thresholds 100
                   and 200) */
    const char *mode_name; /* name of the kind, such as "canny", in place of mode; or NULL */
};

struct sluice_request {
    size_t struct_size;
    const char *prompt;          /* prompt; NULL: plan for the longest prompt (planning only) */
    const char *negative_prompt; /* negative prompt; NULL: the model's default (WAN: the authors' text; SDXL:
                                    zero embeddings; other models: "") */
    int width, height; /* output size in pixels, multiples of the model's step (8, 16 or 32). 0: size of
                          init_image, rounded down (video: its aspect at the model's pixel count); image
                          editing: aspect of the last reference (Flux.2: size of the first reference,
                          rounded down); control networks: aspect of the first control image at the
                          model's pixel count; else the model's default size. Flux.2 shrinks sizes of
                          input images to at most 1024 x 1024 pixels */
    int steps;         /* at least 1 */
    int batch;         /* number of images or videos, with seeds seed, seed+1, ...; 0 means 1 */
    double cfg_scale;  /* classifier-free guidance scale s: uncond + s*(cond - uncond). 1: one evaluation a
                          step instead of two. Qwen-Image uses 1 if there is no negative prompt */
    double guidance;   /* distilled guidance (Flux dev, LCM); must be 0 for other models */
    double flow_shift; /* timestep shift of flow matching; 0: the model's default */
    uint64_t seed;
    bool no_decode; /* skip the VAE decode stage */
    /* Arithmetic of transformer and text encoders: "f32" or "bf16". On a GPU "f16" for UNets, "bf16" for
     * their text encoders. "int8": 8-bit products in the transformer (W8A8 with rotated rows), the default
     * precision in text encoders; slightly different images. NULL: f32 on the CPU; on a GPU f16 for UNets,
     * else bf16. */
    const char *precision;
    const char *init_latent; /* safetensors file with the initial noise, tensor "latent"; NULL: noise drawn
                                from the seed */
    const char *save_latent; /* file to write the final latents to, never left partial; or NULL */
    const char *dump;        /* folder to dump the tensors of each stage to, for comparison with a reference
                                implementation; or NULL */
    const char *plan;        /* JSON text of a plan to execute exactly, or NULL */
    int64_t max_ram_bytes; /* host memory budget in bytes: the library's memory and 12 to 15 MiB for the bare
                              process. Other memory of the calling program is not included (see caller_bytes).
                              0: the free memory less a reserve */
    int64_t
        max_vram_bytes; /* device memory budget of the process in bytes, CUDA context and libraries included.
                           0: the free memory less 5 % (at least 512 MiB, at most half). Ignored on the CPU */
    const char *rates;  /* JSON text of measured rates (sluice_bench.h); NULL: assumed rates */
    const char *rates_name;  /* name of the rates in the plan, usually the rates file's name; NULL: "given" */
    const char *direct_io;   /* "on", "off": read weights with O_DIRECT, past the page cache; "auto" or NULL:
                                only if the model is larger than 3/4 of the machine's memory */
    const char *vae_tiling;  /* memory of the VAE decoder; the pixels never change. "on": least memory, some
                                layers computed twice, large buffers in host memory. "off": all in device
                                memory. "auto" or NULL: the faster one that fits */
    const char *plan_name;   /* name of the plan in messages, usually a file's; NULL: "plan" */
    double max_vram_percent; /* if max_vram_bytes is 0: device memory budget in percent of the device's
                                memory, up to 100 */
    /* Input images; the library borrows them during a call. */
    const struct sluice_picture *init_image; /* input image for img2img and inpainting; first frame for
                                                image-to-video. Resized as `fit` says. Or NULL */
    double strength; /* denoising strength, above 0 to 1: the last steps*strength steps run, counted as in
                        diffusers; 1 ignores init_image */
    const struct sluice_picture
        *mask; /* inpainting mask for init_image: white is repainted. Fill models read the mask; with other
                  models the black region is restored after every step. Resized like init_image. Or NULL */
    const struct sluice_picture *const *
        references; /* reference images of any size for image editing models; resized to the model's limits */
    int n_references;
    /* Type to which weights of transformer and text encoders are converted while reading: "int8_convrot",
     * "q8_0", "q4_k", ... Less memory, other pixels. NULL: keep the files' types. */
    const char *type;
    int frames, fps; /* frames of a video; 1: an image; 0: as many as `control`, else the model's default. fps
                        changes no pixel; 0: the model's default */
    bool converted;  /* planning only: assume that sluice_convert has written files of `type` */
    int image_bytes_a_pixel; /* memory that on_image needs, in bytes a pixel of one image, 0 to 1024; the plan
                                counts it, and 1 MiB if it is not 0 */
    const char *fit; /* how init_image, end_image, control and mask are resized: "crop" or NULL: cover and
                        crop the centre; "pad": fit inside and repeat the edge pixels; "stretch". Pillow's
                        Lanczos */
    const char *prompt_weights; /* prompt weighting as in A1111, for UNet models. "on" or NULL: (word),
                                   [word], (word:1.3) and BREAK; "off": plain text */
    int clip_skip; /* layer of CLIP whose hidden states are used: 1 the last, 2 the one before, ...; 0: the
                      model's default */
    /* Names of sampling settings; NULL: the model's default, from scheduler_config.json. */
    const char *sampler;   /* sampler: "euler", "euler_a", "dpm++2m", ... */
    const char *scheduler; /* noise schedule: "leading", "trailing", "linspace" (diffusers' timestep spacing);
                              "karras", "simple", "beta", ... (as in stable-diffusion.cpp) */
    const char *prediction; /* prediction type of the denoiser: "eps", "v", "flow" */
    const struct sluice_picture
        *end_image;       /* last frame of a video whose first frame is init_image; or NULL */
    double cfg_scale_low; /* cfg_scale of the second transformer (WAN 2.2); 0: the same as cfg_scale */
    const struct sluice_picture *const *control; /* frames of the control video (VACE), all of one size;
                                                    mask then selects the repainted region; or NULL */
    int n_control; /* number of control frames, at least `frames`; if `frames` is 0, also the length of the
                      video */
    int64_t caller_bytes; /* bytes that the calling program needs during the run (a video encoder, say),
                             counted against max_ram_bytes */
    /* Skip-layer guidance (SD3): in steps i = 0 .. n-1 with n*slg_start < i < n*slg_end, adds
     * slg_scale * (cond - skipped) to the guided prediction; skipped is the prediction of the prompt without
     * these layers. Needs cfg_scale above 1. */
    const int *slg_layers; /* numbers of the skipped layers, from 0, borrowed during a call; or NULL */
    int n_slg_layers;      /* number of skipped layers; 0: no skip-layer guidance */
    double slg_scale, slg_start, slg_end; /* slg_scale 0 to SLUICE_SCALE_MAX; slg_start and slg_end 0 to 1 */
    /* Previews for on_preview after every preview_every-th step but the last. They change no pixel; the plan
     * counts them. "latent": one colour per latent pixel, no decoder, all latent frames of a video on one
     * sheet. "vae": decoded by the VAE (a video's first frame). "taesd": decoded by the tiny decoder, while
     * the VAE decodes the image. NULL: none. */
    const char *preview;
    int preview_every; /* 0 means 1 */
    /* Adapters for transformer and text encoders, added at run time; the weights stay unchanged. Strengths of
     * a file that is listed twice add up; a file of total strength 0 is not read. Changing adapters does not
     * read the model's weights again. */
    const struct sluice_lora *loras; /* adapters, borrowed during a call; or NULL */
    int n_loras;
    bool lora_partial;    /* adapter key without a matching weight: true: a warning; false: error MISSING */
    const char *lora_dir; /* folder of NAME.safetensors for <lora:NAME:0.8> tags in prompts; NAME may contain
                             subfolders. NULL: tags are plain text */
    /* Limits of classifier-free guidance; without effect if cfg_scale is 1.
     *
     * Limit of the guided prediction's L2 norm, over all channels and pixels of one image or video, in units
     * of the conditional prediction's norm: a longer prediction is scaled down to the limit. Applied after
     * the model's own guidance rule and before skip-layer guidance. 0 to SLUICE_SCALE_MAX; 0: no limit. */
    double cfg_norm;
    /* Level at which guidance ends: the first step that begins with 1 - sigma above it (eps and v models:
     * (1000 - timestep)/1000) and all later steps skip the negative prompt. SLUICE_CFG_UNTIL_LEAST to 1; 0
     * means 1: all steps are guided. */
    double cfg_until;
    const struct sluice_control *controls; /* control images; or NULL */
    int n_controls;                        /* at most SLUICE_CONTROLS_MAX */
    /* Control networks of UNets: residuals are smaller in shallow layers, and absent for the negative prompt.
     * The control image then counts more than the prompt (diffusers: guess_mode). */
    bool guess_mode;
    /* Images of Flux.1 Redux, or NULL: their embeddings, added up, follow those of the positive prompt. A
     * NULL prompt is then zeros. */
    const struct sluice_picture *const *redux_images;
    int n_redux_images;    /* at most SLUICE_CONTROLS_MAX */
    double redux_strength; /* factor of the prompt and image embeddings, 0 to SLUICE_SCALE_MAX; 0 means 1 */
    /* Second pass ("hires fix"): the latent of the first pass, at width x height, is enlarged by hires_scale,
     * noised as for img2img with strength hires_strength, and denoised again. 0: no second pass; else above
     * 1, to 8. The sides of the result are rounded down to the model's step. */
    double hires_scale;
    double hires_strength; /* denoising strength of the second pass, above 0 to 1; 0 means 0.5 */
    int hires_steps; /* steps N of the second pass, of which the last hires_strength*N run; 0: as `steps` */
    /* Enlargement between the passes: "latent" (nearest), "latent-bilinear"; "lanczos": the decoded image, by
     * Pillow's Lanczos; "model": the decoded image, by the part "--hires-upscaler". NULL: "latent" */
    const char *hires_upscaler;
    /* Enlarge the finished images with the part "--upscale-model". The upscaler reads the image as bytes, as
     * sluice_upscale does. Alpha is enlarged by Pillow's Lanczos. Previews are not enlarged. */
    bool upscale;
    /* Sigmas of the steps, decreasing, above 0 to 1, without the final 0. They replace the model's schedule
     * and its shift, and n_sigmas replaces `steps`. Not with scheduler or flow_shift. Flow models only. NULL:
     * the model's schedule. */
    const double *sigmas;
    int n_sigmas; /* at most SLUICE_STEPS_MAX */
    /* Models with sound (LTX-2). no_audio: do not decode the sound; the video's pixels stay the same. */
    bool no_audio;
    const char *save_audio_latent; /* file to write the final sound latents to, as save_latent; or NULL */
    /* Guidance of LTX-2, for the video and (audio_...) for its sound. A field audio_... of 0 has the video's
     * value. All guidance acts on x, the predicted clean latent: x is the prompt's, and each other pass has
     * its own. audio_cfg_scale: cfg_scale of the sound. */
    double audio_cfg_scale;
    /* Spatio-temporal guidance adds stg_scale * (x - x_stg). In that pass the self-attention of the blocks
     * stg_blocks outputs its values, without attention weights. 0 to SLUICE_SCALE_MAX; 0: off. */
    double stg_scale, audio_stg_scale;
    const int *stg_blocks; /* block numbers from 0 */
    int n_stg_blocks;      /* at most SLUICE_STG_BLOCKS_MAX */
    /* Modality guidance adds (modality_scale - 1) * (x - x_isolated). That pass has no attention between
     * video and sound. 0 to SLUICE_SCALE_MAX; 1: off; 0 means 1. */
    double modality_scale, audio_modality_scale;
    /* Guidance rescale, 0 to 1: 1 scales the guided x to the standard deviation of x, 0 leaves it unchanged,
     * values between interpolate. */
    double cfg_rescale, audio_cfg_rescale;
    /* Second pass of LTX-2. The part "--upscaler" enlarges the final latent of the first pass, which has the
     * size width x height. Then the steps of upscale_sigmas (as `sigmas`) run without guidance. NULL:
     * 0.909375, 0.725, 0.421875. */
    bool upscale_latent;
    const double *upscale_sigmas;
    int n_upscale_sigmas; /* at most SLUICE_STEPS_MAX */
};

/* Sets every field to the model's default: prompt and paths to NULL, seed to 0. */
SLUICE_API void sluice_request_defaults(const sluice_model *model, struct sluice_request *request);

/* Plans a request without running it; *json as in `sluice plan --json`. Reads no weights. A request that does
 * not fit its budget still gets a plan, with *fits false. decode_latent: plan sluice_decode of that file; or
 * NULL. The session keeps the plan until its next call: sluice_run of the same request (or sluice_decode of
 * that file) executes it without planning again. */
SLUICE_API int sluice_plan_query(sluice_session *session, const struct sluice_request *request,
                                 const char *decode_latent, char **json, bool *fits,
                                 struct sluice_error *error);

/* The numbers of a plan. Budgets and peaks of device memory are 0 on the CPU. */
struct sluice_plan {
    size_t struct_size;
    char hash[17];                    /* identifies the plan, in hexadecimal */
    bool fits;                        /* the plan works within both budgets */
    int batch, width, height, frames; /* number and size of the images or videos; an image has 1 frame */
    int64_t ram_budget_bytes, vram_budget_bytes;
    int64_t ram_peak_bytes, vram_peak_bytes;
    int64_t ram_least_bytes, vram_least_bytes; /* smallest budget that works; the other budget as given */
    double seconds, floor_seconds;             /* predicted time and its lower bound; 0: unknown */
    const char *bound; /* what limits the time: "compute", "bus", "disk"; NULL: unknown */
};

/* Fills *plan with the numbers of the session's latest plan: of sluice_plan_query, sluice_run or
 * sluice_decode. USAGE: there is none yet. */
SLUICE_API int sluice_plan_summary(const sluice_session *session, struct sluice_plan *plan,
                                   struct sluice_error *error);

/* Runs a request. Calls on_image for each finished image, or for the frames of each video in order. Fails
 * with BUDGET, before any weight is read, if the request does not fit; the error names the least budget.
 * Results do not depend on earlier runs of the session. */
SLUICE_API int sluice_run(sluice_session *session, const struct sluice_request *request,
                          struct sluice_error *error);

/* Decodes saved latents: safetensors, tensor "latent", f32 [N, C, h, w], for videos [N, C, F, h, w]. Ignores
 * the request's width, height and frames. */
SLUICE_API int sluice_decode(sluice_session *session, const struct sluice_request *request,
                             const char *latent_file, struct sluice_error *error);

/* Enlarges an image with the part "--upscale-model". The upscaler may be the model's only part; the model is
 * then opened without any other file. on_image gets the result, with alpha if the image has any; its index is
 * 0 and its seed the request's. Of the request only budgets, precision ("f32", "f16", "bf16"), rates,
 * direct_io, caller_bytes and image_bytes_a_pixel are read. sluice_run and sluice_plan_query do the same for
 * init_image if the upscaler is the model's only part. USAGE: the result would have more than SLUICE_SIDE_MAX
 * pixels a side. */
SLUICE_API int sluice_upscale(sluice_session *session, const struct sluice_picture *picture,
                              const struct sluice_request *request, struct sluice_error *error);

/* Reports the last run or decode, also a failed one, as the JSON of `sluice generate --report`. */
SLUICE_API int sluice_report(sluice_session *session, char **json, struct sluice_error *error);

/* Makes the current run return CANCELLED at the next operator. Safe in any thread or signal handler. Without
 * a current run it does nothing. */
SLUICE_API void sluice_cancel(sluice_session *session);

/* ---- converting ---- */

struct sluice_convert_options {
    size_t struct_size;
    const char *const
        *inputs; /* files, shard indexes or folders with the weights of one component to convert */
    int n_inputs;
    const char *part;   /* component to convert. In a single-file checkpoint: its flag without dashes ("vae").
                           In a diffusers folder: its folder ("transformer"). NULL: the only component */
    const char *output; /* output file; its name ends in .gguf or .safetensors */
    const char *type; /* type to convert to: "q8_0", "q4_k", "f8_e4m3" (safetensors only), "bf16", ...; NULL:
                         keep the types */
    /* "regex=type": the first PCRE2 pattern that matches part of a tensor's name sets its type, before
     * `type`; ignored for tensors that are never quantised. USAGE if a pattern matches no tensor. */
    const char *const *rules;
    int n_rules;
    /* Progress callback; what: the current tensor. A return value of false ends the conversion with
     * CANCELLED. May be NULL. */
    bool (*on_progress)(void *user, double fraction, const char *what);
    void *user;
    const struct sluice_lora *loras; /* adapters to merge into the weights, in order; or NULL */
    int n_loras;
    bool lora_partial; /* true: adapter keys without a matching weight are ignored; false: they fail */
};

/* Converts the weights of one component to other types, in one file that is never left partial. Matrices get
 * the requested type, or a similar type with smaller blocks if their rows are too short. Vectors, embeddings,
 * final layers and VAE weights keep their types, as with `type` of a request: both give the same pixels.
 * Tensor names stay (without the prefix of a single-file checkpoint); the configuration is copied. Memory: at
 * most 64 MiB, the headers and one row of the widest tensor. NONFINITE: a weight is NaN or infinite; LIMIT: a
 * weight is too large for its type.
 *
 * Each adapter adds strength * scale * B A to its weights, computed in f32 and rounded once. LoHa and LoKr of
 * any rank and whole matrices can be merged too. Modules for other components are skipped; MISSING if no
 * module matches. Needs memory for the factors of one weight and, for LoKr, for that weight in f32.
 * UNSUPPORTED if a merged weight would keep a type that cannot be written.
 *
 * *json (json may be NULL): {"version":1,"family","tensors","from_bytes","bytes","types":{TYPE:bytes}} and,
 * with adapters, "merged": the number of changed tensors. */
SLUICE_API int sluice_convert(const struct sluice_convert_options *options, char **json,
                              struct sluice_error *error);

/* Lists the supported models and their published files: {"version":1,"families":[{"name","title","denoiser",
 * "pipelines":[...],"width","height","frames","steps","cfg_scale","cfg_needs_negative" (guidance only with a
 * negative prompt),"bytes" (all weights in bf16),"parts":[{"name","family","flag","optional","bytes"}],
 * "takes" (inputs other than the prompt):[{"flag","what","needed"}],"layouts" (of files):[...],
 * "sources":[{"repository" (Hugging Face),"flag" (null: a whole model),"files" (null: a diffusers folder),
 * "megabytes" (10^6 bytes, or null)}],"reference" (implementation that results are compared with, or null),
 * "like" (family whose parts are compared instead, or null)}],"networks" (parts that belong to no
 * model):[{"name","title","kind" ("control" or "upscaler"),"flag","of" (names of the models that a control
 * network controls):[...],"modes" (of a union network):[...],"bytes" (in bf16),"bytes_for" (the model
 * that a control network's size is for, or null),"sources" (as above)}]}. */
SLUICE_API int sluice_families(char **json, struct sluice_error *error);

/* ---- the machine ---- */

/* Lists devices: {"version":1,"devices":[{"name","processor","bytes","free_bytes","threads" (default of a
 * session),"hardware_threads","instructions","library","precisions":["f32", ...],"bus","outdated"}],
 * "absent":[{"name","reason"}],"cards":[{"name","title"}]}. cards: GPU models for plans without the
 * GPU, with device "cuda:NAME". GPUs only: "bus" is the PCI bus id for nvidia-smi -i, whose GPU numbers may
 * differ; "outdated", if a library has no kernels for the GPU, names the library's version and the needed
 * one. */
SLUICE_API int sluice_devices(char **json, struct sluice_error *error);

/* Returns the machine's memory in bytes, or the memory limit of the Linux control group (cgroup) if lower;
 * INT64_MAX if unknown. */
SLUICE_API int64_t sluice_memory_bytes(void);

SLUICE_API const char *sluice_version(void);

#ifdef __cplusplus
}
#endif

#endif
