/* Tables of flags of other programs: see flag_synonyms.h. No flag of sluice is in these tables. */
#include "cli/flag_synonyms.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static const struct {
    const char *theirs, *ours;
} same[] = {
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
    {"--tensor-type-rules", "--rule"},
    {"--qwen2vl", "--llm"},
    {"--qwen2vl_vision", "--llm_vision"},
    {"--skip-layers", "--slg-layers"},
    {"--tae", "--taesd"},
    {"--skip-layer-start", "--slg-start"},
    {"--skip-layer-end", "--slg-end"},
    {"--preview-interval", "--preview-every"},
};

static const struct {
    const char *theirs; /* flags of other programs, each between spaces */
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
    {" --upscale-model --upscale-repeats --upscale-tile-size --upscaler --upscale-sigmas --hires "
     "--hires-strength --hires-steps --hires-upscaler ",
     "larger -W N and -H N: upscalers are not implemented"},
    {" --control-net --controlnet --control-image --control-strength --control-start --control-end "
     "--control-mode "
     "--control-mask --control-inpaint --canny --guess-mode ",
     "a run without ControlNet, which is not implemented (--control DIR: control video of VACE)"},
    {" --redux --redux-image --redux-strength ", "a run without Flux Redux, which is not implemented"},
    {" --cache --cache-mode --cache-threshold --cache-max-skip --cache-retention --cache-ratios --easycache ",
     "a run without a step cache, which is not implemented"},
    {" --nag-scale --cfg-zero --cfg-norm --cfg-until --cfg-rescale --stg-scale --stg-blocks ",
     "--cfg-scale S: this kind of guidance is not implemented"},
    {" --ip-adapter --ipadapter --pulid ", "a run without IP-Adapter, which is not implemented"},
    {" --preview-noisy ", "--preview latent: the model's prediction without noise"},
    {" --vae-tile-size --vae-tile-overlap --vae-relative-tile-size ", "--vae-tiling auto|on|off"},
    {" --rng --sampler-rng ", "--seed N alone: its noise is the same on every device"},
    {" --guidance-scale ", "--cfg-scale S, or --guidance S for models that were distilled with it"},
    {" --eta --sigmas --timestep-shift --prediction --img-cfg-scale ",
     "a run without this flag: no supported model takes it"},
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

enum { N_SAME = sizeof same / sizeof *same, N_OTHERS = sizeof others / sizeof *others };

const char *flag_synonym_target(const char *typed) {
    for (int i = 0; i < N_SAME; i++)
        if (strcmp(same[i].theirs, typed) == 0) return same[i].ours;
    return NULL;
}

static bool is_among(const char *list, const char *word) {
    size_t bytes = strlen(word);
    for (const char *at = list; bytes && (at = strstr(at, word)); at++)
        if (at > list && at[-1] == ' ' && at[bytes] == ' ') return true;
    return false;
}

const char *foreign_flag_advice(const char *typed) {
    for (int i = 0; i < N_OTHERS; i++)
        if (is_among(others[i].theirs, typed)) return others[i].answer;
    return NULL;
}

const char *flag_synonym(const char *ours, int i) {
    for (int k = 0; k < N_SAME; k++)
        if (strcmp(same[k].ours, ours) == 0 && i-- == 0) return same[k].theirs;
    return NULL;
}
