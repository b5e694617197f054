#!/bin/sh
# Two transformers, and what a folder of WAN says where a user says nothing: negative prompt, guidance, shift, sampler,
# frames and rate.
#
# usage: wan.sh SLUICE MODEL_DIR [SCRATCH_DIR]      (two transformers with a boundary of .875)
. "$(dirname "$0")/harness.sh"

latent() { # latent NAME ARGS...: of five frames after four steps, in $found
    name_of=$1
    shift
    expect 0 "$name_of" generate -p x -W 32 -H 16 --frames 5 --steps 4 --no-decode --report r.json "$@"
    found=$(tr -d ' \n' <r.json | sed 's/.*"latent_sha256":\["\([0-9a-f]*\).*/\1/')
}
same() { # same NAME ARGS...: as $had
    latent "$@"
    check "other latents" [ "$found" = "$had" ]
}
other() { # other NAME ARGS...: than $had
    latent "$@"
    check "the same latents" [ "$found" != "$had" ]
}
cp -rL "$model" wan

# ---- guidance of each, and the negative prompt ----
own='^the negative prompt is this model.s default; '
latent "nothing said" -m wan --dump .
had=$found
check "the negative prompt is said" has ../err "$own"
check "once, without its text" [ "$(grep -c 'negative prompt' ../err)$(grep -c '色调艳丽' ../err)" = 10 ]
check "and read" [ -s tokens_uncond.safetensors ]
rm -f ./*.safetensors
same "the recipe's scales" -m wan --cfg-scale 4,3
other "another for the second" -m wan --cfg-scale 4,2
other "another for the first" -m wan --cfg-scale 5,3
latent "one for both" -m wan --cfg-scale 3
had=$found
same "the same twice" -m wan --cfg-scale 3,3
other "no negative prompt" -m wan --cfg-scale 3 -n ''
check "no word of it" lacks ../err "$own"
latent "without guidance" -m wan --cfg-scale 1
check "nothing is read" lacks ../err "$own"
had=$found
same "of both" -m wan --cfg-scale 1,1
expect 0 "a video" generate -m wan -p x -W 32 -H 16 --frames 1 --steps 2 -o x.png
check "the negative prompt is in it" has x.png '^Negative prompt: .*色调艳丽'
check "the scales" has x.png 'CFG scale: 4, CFG scale low: 3,'
expect 0 "a video" generate -m wan -p x -n '' -W 32 -H 16 --frames 1 --steps 2 -o x.png --cfg-scale 2
check "no negative prompt in it" lacks x.png 'Negative prompt'
rm -f x.png

# ---- planned ----
expect 0 "the table" plan -m wan -W 32 -H 16
check "has the text, cut between quotes" has ../out 'negative_prompt "色调艳丽[^"]*\.\.\."'
planned() { # planned NAME PATTERN ARGS...
    name_of=$1 pattern=$2
    shift 2
    expect 0 "$name_of" plan --json "$@"
    tr -d ' \n' <../out >../flat
    check "no $pattern" has ../flat "$pattern"
}
planned "boundary" '"boundary":0.875' -m wan -W 32 -H 16
check "scales" has ../flat '"cfg_scale":4.0,.*"cfg_scale_low":3.0'
check "negative prompt" has ../flat '"negative_prompt":"色调艳丽'
check "frames" has ../flat '"frames":81'
check "shift" has ../flat '"flow_shift":3.0'
check "sampler" has ../flat '"sampler":"unipc"'
planned "no guidance of the second" '"name":"denoise_2","family":"wan","evaluations":[0-9]*,"lanes":1,' -m wan --cfg-scale 3,1
check "of the first" has ../flat '"name":"denoise","family":"wan","evaluations":[0-9]*,"lanes":2,'

# ---- scheduler_config.json: the class and its shift ----
scheduler() { # scheduler JSON
    echo "$1" >wan/scheduler/scheduler_config.json
}
solver='"use_flow_sigmas": true, "prediction_type": "flow_prediction"'
latent "UniPC" -m "$model"
had=$found
scheduler "{\"_class_name\": \"UniPCMultistepScheduler\", $solver, \"shift\": 3.0}"
same "a shift under Euler's name" -m wan
scheduler "{\"_class_name\": \"UniPCMultistepScheduler\", $solver, \"shift\": 7, \"flow_shift\": 3}"
same "a shift under both" -m wan
scheduler "{\"_class_name\": \"UniPCMultistepScheduler\", $solver, \"flow_shift\": 7}"
same "a flag" -m wan --flow-shift 3
scheduler '{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3}'
same "a sampler's own grid" -m wan --sampler unipc
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
    check "no word of $pattern" has ../err "$pattern"
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
latent "no boundary" -m wan -n ''
had=$found
rm -rf alone
cp -r wan alone
rm -r alone/transformer_2
sed '/transformer_2/,/]/d' "$model/model_index.json" | sed 's/"boundary_ratio": *[0-9.]*/"boundary_ratio": null/' >alone/model_index.json
same "the first alone" -m alone -n '' --cfg-scale 4
expect 2 "no second scale" generate -m wan -p x --cfg-scale 4,3 -o x.png
sed 's/"boundary_ratio": *[0-9.]*/"boundary_ratio": 0/' "$model/model_index.json" >wan/model_index.json
same "a boundary of 0" -m wan -n ''
rm -r alone
cp "$model/model_index.json" wan/

# ---- sluice.json ----
echo '{"frames": 9, "fps": 12, "steps": 3, "cfg_scale": 2, "flow_shift": 4}' >wan/sluice.json
planned "frames" '"frames":9' -m wan -W 32 -H 16
check "one scale is both's" has ../flat '"cfg_scale":2.0,.*"cfg_scale_low":2.0'
check "shift" has ../flat '"flow_shift":4.0'
echo '{"cfg_scale": 2, "cfg_scale_low": 5}' >wan/sluice.json
planned "two scales" '"cfg_scale":2.0,.*"cfg_scale_low":5.0' -m wan
planned "a flag for both" '"cfg_scale":6.0,.*"cfg_scale_low":6.0' -m wan --cfg-scale 6
for wrong in '"frames": 0' '"fps": 0' '"fps": "x"' '"cfg_scale_low": -1'; do
    echo "{$wrong}" >wan/sluice.json
    expect 3 "$wrong" plan -m wan
    check "which key" has ../err "$(echo "$wrong" | sed 's/"\([a-z_]*\)".*/\1/')"
done
rm -rf wan r.json

# ---- a folder of random weights says what is published ----
expect 0 "bench checkpoint wan22" bench checkpoint wan22 made -q --dims \
    t5_vocabulary=600,hidden=64,t5_heads=2,t5_head_dim=16,t5_ff=96,t5_layers=2,heads=2,wan_head=24,wan_ff=96,layers=1,vae_base=8
check "a boundary" has made/model_index.json '"boundary_ratio": 0.875'
check "two transformers" has made/model_index.json '"transformer_2"'
check "UniPC" has made/scheduler/scheduler_config.json '"use_flow_sigmas": true'
planned "its shift" '"flow_shift":12.0' -m made
check "nothing is assumed" lacks ../err 'scheduler_config'

# ---- an autoencoder by itself is WAN's or Qwen-Image's: what lies beside it tells ----
frames() { tr -d ' \n' <r.json | sed 's/.*"image_sha256":\["\([0-9a-f]*\).*/\1/'; }
expect 0 "a latent" generate -m made -p x -W 32 -H 16 --frames 5 --steps 1 -o 'f-%d.png' --save-latent l.safetensors \
    --report r.json
had=$(frames)
mkdir alone
mv made/vae/diffusion_pytorch_model.safetensors alone/vae.safetensors
expect 0 "nothing beside it" decode -m alone/vae.safetensors l.safetensors -o 'd-%d.png' --report r.json
check "other frames" [ "$(frames)" = "$had" ]
sed 's/AutoencoderKLWan/AutoencoderKLQwenImage/' made/vae/config.json >alone/config.json
expect 3 "Qwen-Image's" decode -m alone/vae.safetensors l.safetensors -o 'd-%d.png'
check "what would help" has ../err 'for video latents .*config.json beside'
mv made/vae/config.json alone/
expect 0 "its config.json beside it" decode -m alone/vae.safetensors l.safetensors -o 'd-%d.png' --report r.json
check "other frames" [ "$(frames)" = "$had" ]
rm -rf made alone l.safetensors r.json ./f-?.png ./d-?.png

name="nothing left"
check "empty" empty_folder .
echo "$passed passed, $failed failed"
[ $failed = 0 ]
