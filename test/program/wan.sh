#!/bin/sh
# Wan models with two transformers: default negative prompt, guidance, shift, sampler, frames and frame rate from the
# folder's configuration files.
#
# usage: wan.sh SLUICE MODEL_DIR [SCRATCH_DIR]      (two transformers, boundary_ratio .875)
. "$(dirname "$0")/harness.sh"

latent() { # latent NAME ARGS...: generates 5 frames in 4 steps; latent hash in $found
    name_of=$1
    shift
    expect 0 "$name_of" generate -p x -W 32 -H 16 --frames 5 --steps 4 --no-decode --report r.json "$@"
    found=$(tr -d ' \n' <r.json | sed 's/.*"latent_sha256":\["\([0-9a-f]*\).*/\1/')
}
same() { # same NAME ARGS...: the latent hash must be $had
    latent "$@"
    check "same latent" [ "$found" = "$had" ]
}
other() { # other NAME ARGS...: the latent hash must not be $had
    latent "$@"
    check "other latent" [ "$found" != "$had" ]
}
cp -rL "$model" wan

# ---- guidance per transformer, negative prompt ----
default_note='^the negative prompt is this model.s default; '
latent "defaults" -m wan --dump .
had=$found
check "note on the default negative prompt" has ../err "$default_note"
check "one note, without the text" [ "$(grep -c 'negative prompt' ../err)$(grep -c '色调艳丽' ../err)" = 10 ]
check "the default negative prompt is encoded" [ -s tokens_uncond.safetensors ]
rm -f ./*.safetensors
same "--cfg-scale 4,3, the defaults" -m wan --cfg-scale 4,3
other "other scale for the second transformer" -m wan --cfg-scale 4,2
other "other scale for the first transformer" -m wan --cfg-scale 5,3
latent "one scale for both transformers" -m wan --cfg-scale 3
had=$found
same "the same scale twice" -m wan --cfg-scale 3,3
other "empty negative prompt" -m wan --cfg-scale 3 -n ''
check "no note" lacks ../err "$default_note"
latent "without guidance" -m wan --cfg-scale 1
check "no note" lacks ../err "$default_note"
had=$found
same "--cfg-scale 1,1" -m wan --cfg-scale 1,1
expect 0 "image with guidance" generate -m wan -p x -W 32 -H 16 --frames 1 --steps 2 -o x.png
check "negative prompt in the metadata" has x.png '^Negative prompt: .*色调艳丽'
check "scales in the metadata" has x.png 'CFG scale: 4, CFG scale low: 3,'
expect 0 "image with guidance" generate -m wan -p x -n '' -W 32 -H 16 --frames 1 --steps 2 -o x.png --cfg-scale 2
check "no negative prompt in the metadata" lacks x.png 'Negative prompt'
rm -f x.png
expect 0 "video without a guided step" generate -m wan -p x -W 32 -H 16 --frames 5 --steps 2 --cfg-until .001 -o x.gif
check "one warning, with digits that differ" [ "$(grep 'cfg-until' ../err)" = \
    "warning: --cfg-until 0.001 turns guidance off: the first step begins at 0.00100000005" ]
rm -f x.gif

# ---- defaults in plans ----
expect 0 "plan as a table" plan -m wan -W 32 -H 16
check "table has the shortened negative prompt" has ../out 'negative_prompt "色调艳丽[^"]*\.\.\."'
planned() { # planned NAME PATTERN ARGS...: plans; the JSON must match PATTERN
    name_of=$1 pattern=$2
    shift 2
    expect 0 "$name_of" plan --json "$@"
    tr -d ' \n' <../out >../flat
    check "plan has $pattern" has ../flat "$pattern"
}
planned "boundary" '"boundary":0.875' -m wan -W 32 -H 16
check "CFG scales" has ../flat '"cfg_scale":4.0,.*"cfg_scale_low":3.0'
check "negative prompt" has ../flat '"negative_prompt":"色调艳丽'
check "frames" has ../flat '"frames":81'
check "shift" has ../flat '"flow_shift":3.0'
check "sampler" has ../flat '"sampler":"unipc"'
planned "--cfg-scale 3,1: one lane in the second stage" '"name":"denoise_2","family":"wan","evaluations":[0-9]*,"lanes":1,' -m wan --cfg-scale 3,1
check "two lanes in the first stage" has ../flat '"name":"denoise","family":"wan","evaluations":[0-9]*,"lanes":2,'

# ---- scheduler_config.json: the class and its shift ----
scheduler() { # scheduler JSON
    echo "$1" >wan/scheduler/scheduler_config.json
}
solver='"use_flow_sigmas": true, "prediction_type": "flow_prediction"'
latent "UniPC" -m "$model"
had=$found
scheduler "{\"_class_name\": \"UniPCMultistepScheduler\", $solver, \"shift\": 3.0}"
same "shift under Euler's key" -m wan
scheduler "{\"_class_name\": \"UniPCMultistepScheduler\", $solver, \"shift\": 7, \"flow_shift\": 3}"
same "shift under both keys" -m wan
scheduler "{\"_class_name\": \"UniPCMultistepScheduler\", $solver, \"flow_shift\": 7}"
same "--flow-shift overrides the file" -m wan --flow-shift 3
scheduler '{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3}'
same "sampler by a flag" -m wan --sampler unipc
other "Euler" -m wan
had=$found
same "Euler by a flag" -m "$model" --sampler euler
scheduler "{\"_class_name\": \"DPMSolverMultistepScheduler\", $solver, \"flow_shift\": 3}"
latent "DPM-Solver++" -m wan
had=$found
same "DPM-Solver++ by a flag" -m "$model" --sampler dpm++2m
while IFS='|' read -r json pattern; do
    [ -z "$json" ] && continue
    scheduler "$json"
    expect 3 "$json" plan -m wan
    check "error names $pattern" has ../err "$pattern"
done <<END
{"_class_name": "UniPCMultistepScheduler"}|use_flow_sigmas
{"_class_name": "UniPCMultistepScheduler", $solver, "use_karras_sigmas": true}|use_karras_sigmas
{"_class_name": "UniPCMultistepScheduler", $solver, "final_sigmas_type": "sigma_min"}|final_sigmas_type
{"_class_name": "UniPCMultistepScheduler", $solver, "use_dynamic_shifting": true}|use_dynamic_shifting
{"_class_name": "UniPCMultistepScheduler", $solver, "flow_shift": [3]}|flow_shift
{"_class_name": "UniPCMultistepScheduler", $solver, "odd": 1}|odd
{"_class_name": "EulerDiscreteScheduler"}|EulerDiscreteScheduler
END
cp "$model/scheduler/scheduler_config.json" wan/scheduler/

# ---- model_index.json without a boundary: the first transformer is the only one ----
sed 's/"boundary_ratio": *[0-9.]*/"boundary_ratio": null/' "$model/model_index.json" >wan/model_index.json
latent "no boundary_ratio" -m wan -n ''
had=$found
rm -rf alone
cp -r wan alone
rm -r alone/transformer_2
sed '/transformer_2/,/]/d' "$model/model_index.json" | sed 's/"boundary_ratio": *[0-9.]*/"boundary_ratio": null/' >alone/model_index.json
same "folder with the first transformer alone" -m alone -n '' --cfg-scale 4
expect 2 "two scales for one transformer" generate -m wan -p x --cfg-scale 4,3 -o x.png
sed 's/"boundary_ratio": *[0-9.]*/"boundary_ratio": 0/' "$model/model_index.json" >wan/model_index.json
same "boundary_ratio 0" -m wan -n ''
rm -r alone
cp "$model/model_index.json" wan/

# ---- sluice.json ----
echo '{"frames": 9, "fps": 12, "steps": 3, "cfg_scale": 2, "flow_shift": 4}' >wan/sluice.json
planned "frames" '"frames":9' -m wan -W 32 -H 16
check "one scale for both" has ../flat '"cfg_scale":2.0,.*"cfg_scale_low":2.0'
check "shift" has ../flat '"flow_shift":4.0'
echo '{"cfg_scale": 2, "cfg_scale_low": 5}' >wan/sluice.json
planned "two scales" '"cfg_scale":2.0,.*"cfg_scale_low":5.0' -m wan
planned "--cfg-scale overrides both" '"cfg_scale":6.0,.*"cfg_scale_low":6.0' -m wan --cfg-scale 6
for wrong in '"frames": 0' '"fps": 0' '"fps": "x"' '"cfg_scale_low": -1'; do
    echo "{$wrong}" >wan/sluice.json
    expect 3 "$wrong" plan -m wan
    check "error names the key" has ../err "$(echo "$wrong" | sed 's/"\([a-z_]*\)".*/\1/')"
done
rm -rf wan r.json

# ---- sluice-dev checkpoint writes the published configuration ----
expect_dev 0 "checkpoint wan22" checkpoint wan22 made -q --dims \
    t5_vocabulary=600,hidden=64,t5_heads=2,t5_head_dim=16,t5_ff=96,t5_layers=2,heads=2,wan_head=24,wan_ff=96,layers=1,vae_base=8
check "boundary_ratio" has made/model_index.json '"boundary_ratio": 0.875'
check "second transformer" has made/model_index.json '"transformer_2"'
check "UniPC" has made/scheduler/scheduler_config.json '"use_flow_sigmas": true'
planned "published shift" '"flow_shift":12.0' -m made
check "no assumed configuration" lacks ../err 'scheduler_config'

# ---- a VAE file without a model: config.json beside it tells Wan from Qwen-Image ----
frames() { tr -d ' \n' <r.json | sed 's/.*"image_sha256":\["\([0-9a-f]*\).*/\1/'; }
expect 0 "generate frames and a latent" generate -m made -p x -W 32 -H 16 --frames 5 --steps 1 -o 'f-%d.png' --save-latent l.safetensors \
    --report r.json
had=$(frames)
mkdir alone
mv made/vae/diffusion_pytorch_model.safetensors alone/vae.safetensors
expect 0 "VAE file without config.json" decode -m alone/vae.safetensors l.safetensors -o 'd-%d.png' --report r.json
check "same frames" [ "$(frames)" = "$had" ]
sed 's/AutoencoderKLWan/AutoencoderKLQwenImage/' made/vae/config.json >alone/config.json
expect 3 "config.json of Qwen-Image's VAE" decode -m alone/vae.safetensors l.safetensors -o 'd-%d.png'
check "error suggests config.json" has ../err 'for video latents .*config.json beside'
mv made/vae/config.json alone/
expect 0 "config.json of Wan's VAE" decode -m alone/vae.safetensors l.safetensors -o 'd-%d.png' --report r.json
check "same frames" [ "$(frames)" = "$had" ]
rm -rf made alone l.safetensors r.json ./f-?.png ./d-?.png

name="end of the test"
check "no file is left" empty_folder .
echo "$passed passed, $failed failed"
[ $failed = 0 ]
