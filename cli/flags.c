/* The tables of flags and commands: see args.h. A row is all that parsing and help of a flag need. */
#include "cli/commands.h"

#include "engine/sluice_bench.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define RUNS      (GENERATE | PLAN)
#define MODELS    (GENERATE | DECODE | PLAN | INSPECT | TOKENIZE)
#define ALL       (MODELS | BENCH | DEVICES | FAMILIES | CONVERT | UPSCALE)
#define AT(field) offsetof(struct args, field)

/* Initialisers of a flag's table row, from the member `value` to `choices`. */
#define RANGE(value, kind, field, least, most) value, kind, AT(field), least, most, NULL
#define VALUE(value, kind, field)              RANGE(value, kind, field, 0, 0)
#define SWITCH(field)                          VALUE(NULL, FLAG_SWITCH, field)
#define TEXT(value, field)                     VALUE(value, FLAG_STRING, field)
#define INPUT(value, field)                    VALUE(value, FLAG_INPUT, field)
#define WHOLE(field, least, most)              RANGE("N", FLAG_WHOLE, field, least, most)
#define ABOVE(value, field, least, most)       RANGE(value, FLAG_REAL_ABOVE, field, least, most)
#define REAL(value, field, least, most)        RANGE(value, FLAG_REAL, field, least, most)
#define CONTROL(value, kind, field, least, most)                                                             \
    value, kind, offsetof(struct control_args, field), least, most, NULL
#define CHOICE(value, field, choices) value, FLAG_CHOICE, AT(field), 0, 0, choices

struct flag flags[FLAGS_MAX];
int n_flags;

/* All flags but those of model parts (--vae, --clip_l, ...), which flags_init inserts after the first row. */
static const struct flag static_flags[] = {
    {"Model", MODELS | BENCH, "-m", "--model", INPUT("PATH", model.model),
     "diffusers (Hugging Face) folder, a folder with one file per part, or one checkpoint file"},
    {NULL, PLAN, NULL, "--family", TEXT("NAME", model.family),
     "plan a published model without its files: in bf16 or --type, with the longest prompt; `sluice "
     "families` lists the names"},
    {NULL, MODELS, NULL, "--tokenizer", INPUT("PATH", model.tokenizer),
     "tokenizer.json, GGUF file or folder; default: searched"},
    {NULL, MODELS, NULL, "--edit", CHOICE("HOW", model.edit, "plain|plus|2511|longcat"),
     "editing pipeline of files without model_index.json; Qwen-Image-Edit: plain (first release), plus (2509 "
     "and later; the default) or 2511; longcat: LongCat-Image-Edit"},
    {NULL, RUNS | CONVERT, NULL, "--lora",
     RANGE("FILE[:S]", FLAG_LORAS, loras, -SLUICE_SCALE_MAX, SLUICE_SCALE_MAX),
     "LoRA file and strength (default 1); up to 16 times. convert: merge it into the weights"},
    {NULL, RUNS, NULL, "--lora-dir", INPUT("DIR", lora_dir),
     "folder of LoRAs for <lora:NAME:0.8> in a prompt"},
    {NULL, RUNS | CONVERT, NULL, "--lora-partial", SWITCH(lora_partial),
     "warn of LoRA keys without a weight; default: an error"},

    {"Image", RUNS | TOKENIZE, "-p", "--prompt", VALUE("TEXT", FLAG_PROMPT, prompt),
     "what the image should show; @FILE reads a file, @- stdin, @@ is a leading @"},
    {NULL, RUNS, "-n", "--negative-prompt", VALUE("TEXT", FLAG_PROMPT, negative_prompt),
     "what the image should not contain; needs --cfg-scale above 1; @ as with -p; default: empty or the "
     "model authors' default, which -n \"\" turns off"},
    {NULL, RUNS, NULL, "--prompt-weights", CHOICE("HOW", prompt_weights, "on|off"),
     "(word), [word], (word:1.3) and BREAK as in AUTOMATIC1111; off: plain text; default: on for UNets"},
    {NULL, RUNS, NULL, "--clip-skip", WHOLE(clip_skip, 1, 100),
     "CLIP layer, from the end (1: last); default: model's"},
    {NULL, RUNS, "-W", "--width", WHOLE(width, 1, SLUICE_SIDE_MAX),
     "width in pixels; default: of -i, -r (edit models), the aspect of --control-image, or the model's"},
    {NULL, RUNS, "-H", "--height", WHOLE(height, 1, SLUICE_SIDE_MAX),
     "height in pixels; default: as for --width"},
    {NULL, RUNS, NULL, "--steps", WHOLE(steps, 1, SLUICE_STEPS_MAX),
     "number of denoising steps; default: the model's"},
    {NULL, RUNS, NULL, "--cfg-scale", RANGE("S", FLAG_SCALES, cfg_scale, 0, SLUICE_SCALE_MAX),
     "classifier-free guidance, uncond + S*(cond - uncond); 1: off, half the work; HIGH,LOW: one for each "
     "transformer of WAN 2.2; default: the model's"},
    {NULL, RUNS, NULL, "--cfg-norm", REAL("C", cfg_norm, 0, SLUICE_SCALE_MAX),
     "limit the norm of the guided prediction to C times that of cond; 0: no limit (default)"},
    {NULL, RUNS, NULL, "--cfg-until", REAL("U", cfg_until, SLUICE_CFG_UNTIL_LEAST, 1),
     "no guidance in steps with 1 - sigma > U; default 1"},
    {NULL, RUNS, NULL, "--guidance", REAL("S", guidance, 0, SLUICE_SCALE_MAX),
     "distilled guidance (Flux dev); default: the model's"},
    {NULL, RUNS, NULL, "--slg-layers", RANGE("A,B,...", FLAG_LAYERS, slg_layers, 0, 9999),
     "skip-layer guidance for SD3.5 medium: the layers to skip, from 0 (usual: 7,8,9); default: none"},
    {NULL, RUNS, NULL, "--slg-scale", REAL("S", slg_scale, 0, SLUICE_SCALE_MAX),
     "skip-layer strength, S*(cond - skipped); default 2.8"},
    {NULL, RUNS, NULL, "--slg-start", REAL("F", slg_start, 0, 1),
     "skip layers after step F*steps; default 0.01"},
    {NULL, RUNS, NULL, "--slg-end", REAL("F", slg_end, 0, 1), "skip layers until step F*steps; default 0.2"},
    {NULL, RUNS, NULL, "--audio-cfg-scale", REAL("S", audio_cfg_scale, 0, SLUICE_SCALE_MAX),
     "--cfg-scale of the sound (LTX-2)"},
    {NULL, RUNS, NULL, "--cfg-rescale", RANGE("V[,A]", FLAG_SCALES, cfg_rescale, 0, 1),
     "guidance rescale of LTX-2, 0 (off) to 1"},
    {NULL, RUNS, NULL, "--stg-scale", RANGE("V[,A]", FLAG_SCALES, stg_scale, 0, SLUICE_SCALE_MAX),
     "spatio-temporal guidance of LTX-2; 0: off, faster"},
    {NULL, RUNS, NULL, "--stg-blocks", RANGE("A,B,...", FLAG_LAYERS, stg_blocks, 0, 9999),
     "blocks of --stg-scale, from 0; default: the model's"},
    {NULL, RUNS, NULL, "--modality-scale", RANGE("V[,A]", FLAG_SCALES, modality_scale, 0, SLUICE_SCALE_MAX),
     "modality guidance of LTX-2; 1: off, faster"},
    {NULL, RUNS, "-s", "--seed", VALUE("N", FLAG_SEED, seed),
     "random seed, default 0; -1 picks one and prints it"},
    {NULL, RUNS, "-b", "--batch", WHOLE(batch, 1, SLUICE_BATCH_MAX),
     "number of images, with seeds S, S+1, ...; default 1"},
    {NULL, RUNS, NULL, "--sampler", "NAME", FLAG_SAMPLER, AT(sampler), 0, 0,
     "euler|euler_a|heun|dpm2|dpm2_a|dpm++2s_a|dpm++2m|dpm++3m|dpm++2m_sde|dpm++_sde|lms|ipndm|pndm|ddim|"
     "deis|unipc|"
     "lcm|tcd|euler_ancestral|dpm_2|dpm_2_ancestral|dpmpp_2s_ancestral|dpmpp_2m|dpmpp_2m_sde|dpmpp_sde|uni_"
     "pc|plms",
     "sampling method: euler, euler_a, heun, dpm2, dpm2_a, dpm++2s_a, dpm++2m, dpm++3m, dpm++2m_sde, "
     "dpm++_sde, lms, ipndm, pndm, ddim, deis, unipc, lcm, tcd, or a name of ComfyUI or AUTOMATIC1111 "
     "(\"DPM++ 2M Karras\"); default: the model's"},
    {NULL, RUNS, NULL, "--scheduler", "NAME", FLAG_SCHEDULER, AT(scheduler), 0, 0,
     "leading|trailing|linspace|discrete|karras|exponential|ays|sgm_uniform|simple|smoothstep|kl_optimal|lcm|"
     "bong_tangent|beta|normal|align_your_steps",
     "noise schedule: leading, trailing and linspace as in diffusers; discrete, karras, exponential, ays, "
     "sgm_uniform, simple, smoothstep, kl_optimal, lcm, bong_tangent and beta as in stable-diffusion.cpp; "
     "default: the model's"},
    {NULL, RUNS, NULL, "--prediction", CHOICE("WHAT", prediction, "eps|v|flow"),
     "prediction type of the model: eps (noise), v (velocity) or flow; default: from the model's files"},
    {NULL, RUNS, NULL, "--flow-shift", REAL("S", flow_shift, SLUICE_FLOW_SHIFT_LEAST, SLUICE_FLOW_SHIFT_MAX),
     "timestep shift of flow models; default: the model's"},
    {NULL, RUNS, NULL, "--sigmas", RANGE("A,B,...", FLAG_SIGMAS, sigmas, 0, 1),
     "noise levels of the steps, decreasing, without the final 0; replaces --steps"},
    {NULL, RUNS, NULL, "--upscale-sigmas", RANGE("A,B,...", FLAG_SIGMAS, upscale_sigmas, 0, 1),
     "noise levels of the second pass (--upscaler); default 0.909375,0.725,0.421875"},
    {NULL, RUNS, NULL, "--init-latent", INPUT("FILE", init_latent),
     "start noise: safetensors file with tensor \"latent\""},
    {NULL, RUNS, "-i", "--init-img", INPUT("FILE", init_image),
     "input image of img2img, inpainting or image-to-video; PNG, JPEG or WebP; sets the default size"},
    {NULL, RUNS, NULL, "--end-img", INPUT("FILE", end_image),
     "last frame of a video; needs -i, the first frame"},
    {NULL, RUNS, NULL, "--fit", CHOICE("HOW", fit, "crop|pad|stretch"),
     "fit -i, --end-img, --control and --mask to the output size; pad: with edge pixels; default crop"},
    {NULL, RUNS, NULL, "--strength", REAL("S", strength, 0, 1),
     "denoising strength of img2img, 0 to 1: runs the last steps*S steps; 1 ignores the image; default: 1 "
     "with --mask, else the model's"},
    {NULL, RUNS, "-r", "--ref-image", VALUE("FILE", FLAG_INPUTS, references),
     "reference image or image to edit; up to eight times"},
    {NULL, RUNS, NULL, "--mask", INPUT("FILE", mask), "mask for -i or --control: white is repainted"},
    {NULL, RUNS, NULL, "--control", INPUT("DIR", control),
     "control video of VACE: folder of numbered frames"},
    {NULL, RUNS, NULL, "--control-image", CONTROL("FILE", FLAG_CONTROL_INPUT, image, 0, 0),
     "image for the --control-net before it, or for Flux Canny or Depth; stretched; the flags below "
     "belong to it"},
    {NULL, RUNS, NULL, "--control-strength", CONTROL("S", FLAG_CONTROL_REAL, strength, 0, SLUICE_SCALE_MAX),
     "factor of the network's residuals; default 1"},
    {NULL, RUNS, NULL, "--control-start", CONTROL("F", FLAG_CONTROL_REAL, start, 0, 1),
     "use the network from step F*steps on; default 0"},
    {NULL, RUNS, NULL, "--control-end", CONTROL("F", FLAG_CONTROL_REAL, end, 0.001, 1),
     "use the network until step F*steps; default 1"},
    {NULL, RUNS, NULL, "--control-mode", CONTROL("N", FLAG_CONTROL_STRING, mode, 0, 0),
     "number or name of the image kind (union networks)"},
    {NULL, RUNS, NULL, "--control-mask", CONTROL("FILE", FLAG_CONTROL_INPUT, mask, 0, 0),
     "mask of an inpainting network; default: --mask"},
    {NULL, RUNS, NULL, "--control-inpaint", CONTROL("FILE", FLAG_CONTROL_INPUT, inpaint, 0, 0),
     "image that the network inpaints; default: -i"},
    {NULL, RUNS, NULL, "--canny", CONTROL(NULL, FLAG_CONTROL_SWITCH, canny, 0, 0),
     "replace the control image by its edges"},
    {NULL, RUNS, NULL, "--guess-mode", SWITCH(guess_mode),
     "follow the image more than the prompt (SD 1, 2, XL)"},
    {NULL, RUNS, NULL, "--redux-image", RANGE("FILE", FLAG_INPUTS, redux_images, 0, SLUICE_CONTROLS_MAX),
     "image added to the prompt (Flux Redux); repeatable"},
    {NULL, RUNS, NULL, "--redux-strength", REAL("S", redux_strength, 0.001, SLUICE_SCALE_MAX),
     "factor of prompt and image embeddings; default 1"},
    {NULL, RUNS, NULL, "--hires", ABOVE("SCALE", hires, 1, 8),
     "second pass at SCALE times the size, rounded down to the model's step; default: none"},
    {NULL, RUNS, NULL, "--hires-strength", ABOVE("S", hires_strength, 0, 1),
     "denoising strength of the second pass; default 0.5"},
    {NULL, RUNS, NULL, "--hires-steps", WHOLE(hires_steps, 1, SLUICE_STEPS_MAX),
     "second pass: S*N of N steps run; default: --steps"},
    {NULL, RUNS, NULL, "--hires-upscaler", "HOW", FLAG_CHOICE_OR_PART, AT(hires_upscaler), 0, 0,
     "latent|latent-bilinear|lanczos", "latent (default), latent-bilinear, lanczos or a FILE"},
    {NULL, RUNS | INSPECT | UPSCALE, NULL, "--upscale-model", VALUE("FILE", FLAG_PART, parts),
     "enlarge the result with this network (ESRGAN)"},
    {NULL, RUNS, NULL, "--frames", WHOLE(frames, 1, 100000),
     "video frames; default: --control's, else the model's"},
    {NULL, RUNS | DECODE, NULL, "--fps", WHOLE(fps, 1, 1000), "frames per second; default: the model's"},

    {"Output", RUNS | DECODE | UPSCALE | CONVERT, "-o", "--output", TEXT("PATH", output),
     "output file, default output.png or output.mp4; images: .png, .jpg, .webp; videos: .mp4, .webm, .gif, "
     "or one image per frame, also a folder; convert: .gguf, .safetensors; %d is the number from 1, %03d "
     "with three digits, %s the seed; several images without %d: name-1.png ...; - is stdout"},
    {NULL, RUNS | DECODE | UPSCALE, NULL, "--quality", WHOLE(quality, 1, 100),
     "quality of JPEG, WebP, MP4, WebM, 1 to 100; default 90"},
    {NULL, RUNS | DECODE | UPSCALE, NULL, "--no-metadata", SWITCH(no_metadata),
     "store no prompt, seed and settings in the output file"},
    {NULL, RUNS, NULL, "--save-latent", TEXT("FILE", save_latent),
     "save the final latents: safetensors, tensor \"latent\""},
    {NULL, RUNS, NULL, "--save-audio-latent", TEXT("FILE", save_audio_latent),
     "save the final sound latents (LTX-2), as --save-latent"},
    {NULL, RUNS, NULL, "--no-audio", SWITCH(no_audio),
     "do not decode the sound (LTX-2); the video stays the same"},
    {NULL, RUNS, NULL, "--preview", CHOICE("HOW", preview, "latent|taesd|vae|proj|tae"),
     "preview image after each step; latent (proj): rough colours, free; taesd (tae): decoded by --taesd; "
     "vae: decoded in full, slow; of a video the first frame"},
    {NULL, RUNS, NULL, "--preview-every", WHOLE(preview_every, 1, SLUICE_STEPS_MAX),
     "preview every N steps; default 1"},
    {NULL, RUNS, NULL, "--preview-path", TEXT("FILE", preview_path),
     "preview file, .png or .jpg, %d and %s as with -o; default: the terminal if it shows images, else "
     "preview.png"},
    {NULL, RUNS, NULL, "--no-decode", SWITCH(no_decode), "stop after denoising, write no image"},
    {NULL, RUNS | DECODE, NULL, "--dump", TEXT("DIR", dump),
     "write intermediate tensors as safetensors files"},
    {NULL, RUNS | DECODE | UPSCALE, NULL, "--report", TEXT("FILE", report),
     "write plan, timings and measured memory as JSON, also if the run fails; - is stdout"},
    {NULL, PLAN | INSPECT | TOKENIZE | BENCH | DEVICES | FAMILIES | CONVERT, NULL, "--json", SWITCH(json),
     "print JSON instead of text"},
    {NULL, INSPECT, NULL, "--tensors", SWITCH(tensors), "list name, type and shape of every tensor"},
    {NULL, FAMILIES, NULL, "--plans", SWITCH(plans),
     "print each model's minimum memory and predicted time for four GPU models and a CPU"},
    {NULL, PLAN, NULL, "--types", SWITCH(types), "compare weight types (quantisation) of the model"},

    {"Memory and device", RUNS | DECODE | UPSCALE, NULL, "--max-ram", VALUE("SIZE", FLAG_SIZE, max_ram_bytes),
     "RAM limit of the process: 3G, 512M, 123456B, 80%, a bare number is GiB; default: free RAM minus a "
     "reserve"},
    {NULL, RUNS | DECODE | UPSCALE, NULL, "--max-vram", VALUE("SIZE", FLAG_DEVICE_SIZE, max_vram),
     "VRAM limit, CUDA libraries included; default: free VRAM minus 5 %, at least 512 MiB"},
    {NULL, RUNS | DECODE, NULL, "--plan", INPUT("FILE", plan),
     "run exactly this plan, printed by `sluice plan --json` and perhaps edited"},
    {NULL, RUNS, NULL, "--prompt-cache", TEXT("DIR", prompt_cache),
     "folder of stored text encoder outputs, reused if there"},
    {NULL, RUNS | DECODE, NULL, "--no-replan", SWITCH(no_replan),
     "no effect: plans never change during a run"},
    {NULL, RUNS | DECODE | UPSCALE, NULL, "--rates", INPUT("FILE", rates),
     "measured rates of this machine, from `sluice bench bus --save` and `bench ops --save`; default: "
     "assumed rates"},
    {NULL, RUNS | DECODE, NULL, "--vae-tiling", CHOICE("HOW", vae_tiling, "auto|on|off"),
     "memory of the VAE decoder; on: least VRAM, a little slower; off: keep all buffers; same image; default "
     "auto: the fastest that fits"},
    {NULL, RUNS | DECODE, NULL, "--direct-io", CHOICE("HOW", direct_io, "auto|on|off"),
     "read the model past the page cache (O_DIRECT); auto (default): if it is larger than 3/4 of the RAM"},
    {NULL, RUNS | DECODE | UPSCALE | BENCH, NULL, "--device", TEXT("NAME", device),
     "cpu, cuda (first GPU) or cuda:N; default: cuda if present; plan: also a GPU model, as in cuda:4090 "
     "(`sluice devices` lists them); bench block: cuda needs --predict"},
    {NULL, RUNS | DECODE | BENCH | FAMILIES | UPSCALE, NULL, "--precision",
     CHOICE("TYPE", precision, "f32|bf16|f16|int8"),
     "arithmetic of text encoders and transformer; default: f32 on the CPU; on a GPU f16 for UNets, else "
     "bf16; int8: faster, other pixels"},
    {NULL, RUNS | CONVERT | BENCH, NULL, "--type", TEXT("TYPE", type),
     "quantise transformer and text encoders while reading: int8_convrot, f8_e4m3, q8_0, q6_k, q5_k, q4_k "
     "...; less memory and transfer, other pixels (see `plan --types`); convert: type to write; bench block: "
     "type of the matrices"},
    {NULL, CONVERT, NULL, "--rule", VALUE("REGEX=TYPE", FLAG_STRINGS, rules),
     "type of the tensors whose name the regex matches; the first match wins, before --type; up to 16 times"},
    {NULL, CONVERT, NULL, "--part", TEXT("NAME", part),
     "part to convert: in a checkpoint file the part's flag without dashes (vae), in a diffusers folder the "
     "subfolder (transformer)"},
    {NULL, RUNS | DECODE | UPSCALE | BENCH, "-t", "--threads", WHOLE(threads, 1, SLUICE_THREADS_MAX),
     "CPU threads; default: the physical cores it may use"},

    {"Benchmark", PLAN, NULL, "--dims", TEXT("LIST", dimensions),
     "model sizes name=value,... instead of the published ones, for `plan --family` (an unknown name lists "
     "all); clip_g.name=value changes one part"},
    {NULL, BENCH, NULL, "--rank", WHOLE(rank, 1, SLUICE_ADAPTER_RANK_MAX),
     "bench block: also time the block with a LoRA of this rank"},
    {NULL, BENCH, NULL, "--save", TEXT("FILE", save),
     "add the rates that `bench bus` or `bench ops` measures to this file, for --rates"},
    {NULL, BENCH, NULL, "--predict", TEXT("CARD", predict),
     "bench block: predict the times of each family's block on a GPU model such as 4090, without the GPU "
     "(`sluice devices` lists them); all: on every model"},
    {NULL, BENCH, NULL, "--dir", TEXT("DIR", folder),
     "bench bus: folder on the disk to measure, where a file of 256 MiB is written; default: the current "
     "folder; with -m the model's largest file is read instead"},

    {"Messages", ALL, "-q", "--quiet", SWITCH(quiet), "print only warnings and errors"},
    {NULL, RUNS | DECODE | UPSCALE, "-v", "--verbose", SWITCH(verbose),
     "print the plan before, stage times after the run"},
    {NULL, RUNS | DECODE | UPSCALE | BENCH | CONVERT, NULL, "--no-progress", SWITCH(no_progress),
     "print no progress line"},
};

const struct command commands[N_COMMANDS] = {
    {"generate", GENERATE, generate_command, NULL, 0, 0, "generate images or videos from a prompt",
     "sluice generate -m DIR -p \"a red fox in the snow\" --max-ram 3G -o fox.png", NULL},
    {"decode", DECODE, decode_command, "LATENT.safetensors", 1, 1,
     "decode a saved latent into an image or video", "sluice decode fox.safetensors -m DIR -o fox.png", NULL},
    {"upscale", UPSCALE, upscale_command, "IMAGE", 1, 1, "enlarge an image with an upscaler such as ESRGAN",
     "sluice upscale fox.png --upscale-model x4plus.safetensors -o large.png", NULL},
    {"plan", PLAN, plan_command, "[LATENT.safetensors | IMAGE]", 0, 1,
     "show memory, placement and time of a run without running it",
     "sluice plan --family qwen_image --device cuda:4090 --max-ram 16G", NULL},
    {"inspect", INSPECT, inspect_command, "[PATH]", 0, 1, "show what model or LoRA files contain",
     "sluice inspect PATH --tensors", NULL},
    {"tokenize", TOKENIZE, tokenize_command, NULL, 0, 0, "print the token ids of a prompt",
     "sluice tokenize -m DIR -p \"a red fox\"", NULL},
    {"convert", CONVERT, convert_command, "IN...", 1, OPERANDS_MAX,
     "convert (quantise) the weights of one model part",
     "sluice convert DIR/transformer -o transformer.gguf --type q8_0", NULL},
    {"bench", BENCH, bench_command, "bus|ops|load|block", 1, 1, "measure this machine",
     "sluice bench bus --save rates.json",
     "bus: speed of disk and memory; ops: speed of arithmetic; load: how fast a model is read; block: time "
     "of "
     "one block and of a decoder against their matrix products."},
    {"devices", DEVICES, devices_command, NULL, 0, 0, "list the devices of this machine", "sluice devices",
     NULL},
    {"families", FAMILIES, families_command, "[NAME]", 0, 1, "list the supported models, or show one",
     "sluice families flux", NULL},
    {"completion", COMPLETION, completion_command, "bash|zsh|fish", 1, 1,
     "print a completion script for a shell", "sluice completion bash >/etc/bash_completion.d/sluice", NULL},
    {"manual", MANUAL, manual_command, NULL, 0, 0, "print the man page", "sluice manual | man -l -", NULL},
};

/* ---- flags of other programs, mostly stable-diffusion.cpp; none is a flag of sluice ---- */

/* Other names of sluice's flags. */
static const struct {
    const char *theirs, *ours;
} synonyms[] = {
    {"--cfg", "--cfg-scale"},
    {"--negative", "--negative-prompt"},
    {"--batch-count", "--batch"},
    {"--sampling-method", "--sampler"},
    {"--lora-model-dir", "--lora-dir"},
    {"--schedule", "--scheduler"},
    {"--num-inference-steps", "--steps"},
    {"--init-image", "--init-img"},
    {"--video-frames", "--frames"},
    {"--control-video", "--control"},
    {"--controlnet", "--control-net"},
    {"--tensor-type-rules", "--rule"},
    {"--qwen2vl", "--llm"},
    {"--qwen2vl_vision", "--llm_vision"},
    {"--skip-layers", "--slg-layers"},
    {"--tae", "--taesd"},
    {"--skip-layer-start", "--slg-start"},
    {"--skip-layer-end", "--slg-end"},
    {"--preview-interval", "--preview-every"},
    {"--audio-guidance-scale", "--audio-cfg-scale"},
    {"--guidance-rescale", "--cfg-rescale"},
};

/* Flags of other programs that sluice does not have, with the advice that the error message gives. */
static const struct {
    const char *theirs; /* names of the flags, each with a space before and after */
    const char *answer;
} others[] = {
    {" --offload-to-cpu --vae-on-cpu --clip-on-cpu --control-net-cpu --backend --params-backend ",
     "--max-vram SIZE and --max-ram SIZE: placement follows from these limits"},
    {" --diffusion-fa --fa --diffusion-conv-direct --vae-conv-direct --force-sdxl-vae-conv-scale --color ",
     "the command without this flag: there is nothing to switch"},
    {" --mmap --no-mmap ", "--direct-io auto|on|off"},
    {" -M --mode ", "the command as the first word: generate, convert, ... (sluice --help)"},
    {" --lora-apply-mode ",
     "a run without this flag: LoRAs are applied at run time; `sluice convert --lora` merges them"},
    {" --upscale-repeats --upscale-tile-size ", "--upscale-model FILE alone: it enlarges any size, once"},
    {" --depth --pose --openpose --hed --softedge --scribble --lineart --mlsd --normal --normal-bae --seg "
     "--segmentation --preprocessor --midas --dwpose ",
     "--control-image FILE, a picture made by the Python package controlnet_aux; only --canny is built in"},
    {" --cache --cache-mode --cache-threshold --cache-max-skip --cache-retention --cache-ratios --easycache ",
     "a run without a step cache, which is not implemented"},
    {" --nag-scale --cfg-zero ", "--cfg-scale S: this kind of guidance is not implemented"},
    {" --ip-adapter --ipadapter --pulid ", "a run without IP-Adapter, which is not implemented"},
    {" --preview-noisy ", "--preview latent: the model's prediction without noise"},
    {" --vae-tile-size --vae-tile-overlap --vae-relative-tile-size ", "--vae-tiling auto|on|off"},
    {" --rng --sampler-rng ", "--seed N alone: its noise is the same on every device"},
    {" --guidance-scale ", "--cfg-scale S, or --guidance S for models that were distilled with it"},
    {" --eta --timestep-shift --img-cfg-scale ", "a run without this flag: no supported model takes it"},
    {" --embd-dir --embeddings ", "a run without this flag: textual inversion is not supported"},
    {" --photo-maker --pm-id-images-dir --pm-style-strength --high-noise-steps --moe-boundary "
     "--vace-strength ",
     "a run without this flag: no supported model takes it"},
    {" --high-noise-cfg-scale ", "--cfg-scale HIGH,LOW"},
    {" --qwen-image-zero-cond-t ", "--edit 2511"},
    {" --size --resolution ", "-W N -H N"},
    {" --unet ", "--diffusion-model FILE"},
    {" --fp8 ", "--type f8_e4m3"},
    {" --gpu ", "--device cuda:N"},
    {" --n-iter --batch-size --num-images ", "-b N"},
    {" --lowvram --medvram --low-vram --cpu-offload ", "--max-vram SIZE"},
};

enum { N_SAME = sizeof synonyms / sizeof *synonyms, N_OTHERS = sizeof others / sizeof *others };

const char *foreign_flag_advice(const char *typed) {
    size_t bytes = strlen(typed);
    for (int i = 0; i < N_OTHERS; i++)
        for (const char *at = others[i].theirs; bytes && (at = strstr(at, typed)); at++)
            if (at > others[i].theirs && at[-1] == ' ' && at[bytes] == ' ') return others[i].answer;
    return NULL;
}

const char *flag_synonym(const char *ours, int i) {
    for (int k = 0; k < N_SAME; k++)
        if (strcmp(synonyms[k].ours, ours) == 0 && i-- == 0) return synonyms[k].theirs;
    return NULL;
}

/* ---- search ---- */

/* True for a model part whose flag has a row in static_flags. */
static bool has_row(const char *name) {
    for (size_t i = 0; i < sizeof static_flags / sizeof *static_flags; i++)
        if (strcmp(static_flags[i].name, name) == 0) return true;
    return false;
}

void flags_init(void) {
    static char help[COMPONENT_FILES_MAX][192];
    const char *name;
    n_flags = 0;
    flags[n_flags++] = static_flags[0];
    for (int i = 0; i < COMPONENT_FILES_MAX && (name = sluice_part_flag(i, help[i], sizeof help[i])); i++) {
        bool network = strcmp(name, "--control-net") == 0;
        if (has_row(name)) continue;
        flags[n_flags++] = (struct flag){.commands = MODELS,
                                         .name = name,
                                         .value = "PATH",
                                         .kind = network ? FLAG_CONTROL_NET : FLAG_PART,
                                         .help = help[i]};
    }
    for (size_t i = 1; i < sizeof static_flags / sizeof *static_flags; i++)
        flags[n_flags++] = static_flags[i];
}

const struct flag *flag_find(const char *typed) {
    for (int i = 0; i < n_flags; i++) {
        bool letter = flags[i].letter && strcmp(flags[i].letter, typed) == 0;
        if (letter || strcmp(flags[i].name, typed) == 0) return &flags[i];
    }
    for (int i = 0; i < N_SAME; i++)
        if (strcmp(synonyms[i].theirs, typed) == 0) return flag_find(synonyms[i].ours);
    return NULL;
}

/* The first clause of a help text. It ends at a semicolon. A long clause ends at a colon, unless the colon is
 * in the first NAME bytes
 * ("bench bus: ..."). */
char *flag_clause(const struct flag *flag, char *out, size_t out_bytes) {
    enum { LONG = 54, NAME = 16 }; /* LONG: width in columns of a help text in --help */
    size_t length = strcspn(flag->help, ";");
    const char *colon = length > NAME ? strstr(flag->help + NAME, ": ") : NULL;
    if (length > LONG && colon && colon < flag->help + length) length = (size_t)(colon - flag->help);
    snprintf(out, out_bytes, "%.*s", (int)length, flag->help);
    return out;
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

/* Levenshtein distance of flag names, ignoring case; _ in a equals -. FAR above LONGEST bytes. */
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

/* Similar names differ in at most a third of the letters ("--stpes"), or the shorter one, of three letters or
 * more, begins the longer one. */
bool name_nearer(const char *typed, const char *name, int *best) {
    enum { BEGINNING = 3 };
    int allowed = (int)strlen(name) / 3;
    typed += strspn(typed, "-"), name += strspn(name, "-"); /* "-steps" suggests --steps */
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
        for (int k = 0; other; other = flag_synonym(flags[i].name, k++))
            if (name_nearer(typed, other, &best)) name = flags[i].name;
    }
    return name;
}

const char *command_nearest(const char *typed) {
    const char *name = NULL;
    int best = 100;
    for (int i = 0; i < N_COMMANDS; i++) {
        if (name_nearer(typed, commands[i].name, &best)) name = commands[i].name;
    }
    return name;
}

/* ---- names of samplers and schedules ---- */

enum { NAME_MAX_BYTES = 64 };

/* Names of a sampler or schedule: the flag's value, AUTOMATIC1111's name and ComfyUI's name. NULL: the
 * program lacks the sampler or schedule, or its name equals `ours`. */
struct name {
    const char *ours, *webui, *comfy;
};

static const struct name samplers[] = {
    {"euler", "Euler", NULL},
    {"euler_a", "Euler a", "euler_ancestral"},
    {"heun", "Heun", NULL},
    {"dpm2", "DPM2", "dpm_2"},
    {"dpm2_a", "DPM2 a", "dpm_2_ancestral"},
    {"dpm++2s_a", "DPM++ 2S a", "dpmpp_2s_ancestral"},
    {"dpm++2m", "DPM++ 2M", "dpmpp_2m"},
    {"dpm++3m", NULL, NULL},
    {"dpm++2m_sde", "DPM++ 2M SDE", "dpmpp_2m_sde"},
    {"dpm++_sde", "DPM++ SDE", "dpmpp_sde"},
    {"lms", "LMS", NULL},
    {"ipndm", NULL, NULL},
    {"pndm", "PLMS", NULL},
    {"ddim", "DDIM", NULL},
    {"deis", NULL, NULL},
    {"unipc", "UniPC", "uni_pc"},
    {"lcm", "LCM", NULL},
    {"tcd", NULL, NULL},
};

static const struct name schedules[] = {
    {"leading", NULL, NULL},
    {"trailing", NULL, NULL},
    {"linspace", NULL, NULL},
    {"discrete", "Uniform", "normal"},
    {"karras", "Karras", NULL},
    {"exponential", "Exponential", NULL},
    {"ays", "Align Your Steps", "align_your_steps"},
    {"sgm_uniform", "SGM Uniform", NULL},
    {"simple", "Simple", NULL},
    {"smoothstep", NULL, NULL},
    {"kl_optimal", "KL Optimal", NULL},
    {"lcm", NULL, NULL},
    {"bong_tangent", NULL, NULL},
    {"beta", "Beta", NULL},
};

enum { N_SAMPLERS = sizeof samplers / sizeof *samplers, N_SCHEDULES = sizeof schedules / sizeof *schedules };

/* Copies a sampler's name in lower case, with only its letters, digits and +. */
static void simplify(const char *name, char out[NAME_MAX_BYTES]) {
    size_t n = 0;
    for (; *name && n + 1 < NAME_MAX_BYTES; name++)
        if (isalnum((unsigned char)*name) || *name == '+') out[n++] = (char)tolower((unsigned char)*name);
    out[n] = 0;
}

/* Compares the start of text with one spelling of a name: 0 ours, 1 AUTOMATIC1111's, 2 ComfyUI's. Returns the
 * matching bytes, 0 if the name does not match. */
static size_t prefix_bytes(const struct name *name, const char *text, int spelling) {
    const char *const spellings[] = {name->ours, name->webui, name->comfy};
    char simple[NAME_MAX_BYTES];
    if (!spellings[spelling]) return 0;
    simplify(spellings[spelling], simple);
    return strncmp(text, simple, strlen(simple)) == 0 ? strlen(simple) : 0;
}

static const char *find_schedule(const char *simple) {
    for (int i = 0; i < N_SCHEDULES; i++)
        for (int k = 0; k < 3; k++) {
            size_t bytes = prefix_bytes(&schedules[i], simple, k);
            if (bytes && !simple[bytes]) return schedules[i].ours;
        }
    return NULL;
}

const char *sampler_parse(const char *text, const char **schedule) {
    char simple[NAME_MAX_BYTES];
    simplify(text, simple);
    for (int i = 0; i < N_SAMPLERS; i++)
        for (int k = 0; k < 3; k++) {
            size_t bytes = prefix_bytes(&samplers[i], simple, k);
            if (!bytes) continue;
            *schedule = find_schedule(simple + bytes);
            if (*schedule || !simple[bytes]) return samplers[i].ours;
        }
    return NULL;
}

const char *schedule_parse(const char *text) {
    char simple[NAME_MAX_BYTES];
    simplify(text, simple);
    return find_schedule(simple);
}

static char *list(const struct name *names, int n, char *out, size_t out_bytes) {
    size_t bytes = 0;
    for (int i = 0; i < n && bytes < out_bytes; i++)
        bytes += (size_t)snprintf(out + bytes, out_bytes - bytes, "%s%s", i ? ", " : "", names[i].ours);
    return out;
}

char *sampler_list(char *out, size_t out_bytes) {
    return list(samplers, N_SAMPLERS, out, out_bytes);
}

char *schedule_list(char *out, size_t out_bytes) {
    return list(schedules, N_SCHEDULES, out, out_bytes);
}

static const char *webui_name(const struct name *names, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(names[i].ours, name) == 0) return names[i].webui ? names[i].webui : name;
    return name;
}

const char *sampler_webui_name(const char *name) {
    return webui_name(samplers, N_SAMPLERS, name);
}

const char *schedule_webui_name(const char *name) {
    return webui_name(schedules, N_SCHEDULES, name);
}
