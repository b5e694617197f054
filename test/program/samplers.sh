#!/bin/sh
# --sampler and --scheduler: number of evaluations, different latents, names of other programs, defaults, errors.
#
# usage: samplers.sh SLUICE MODEL_DIR [SCRATCH_DIR]      (a flow model; sd1, a UNet, must lie beside it)
. "$(dirname "$0")/harness.sh"

evaluations() { # evaluations ARGS...: plans; number of evaluations of the denoiser in $n
    expect 0 "plan $*" plan -m "$model" --json -W 64 -H 64 --steps 4 "$@"
    n=$(tr -d ' \n' <../out | grep -o '"name":"denoise","family":"[a-z0-9]*","evaluations":[0-9]*' | grep -o '[0-9]*$')
}
: >../all
# sampler|evaluations of 4 steps
while IFS='|' read -r sampler wanted; do
    [ -z "$sampler" ] && continue
    evaluations --sampler "$sampler"
    check "$wanted evaluations, not $n" [ "$n" = "$wanted" ]
    expect 0 "generate $sampler" generate -m "$model" -p x -W 64 -H 48 --steps 4 --no-decode --flow-shift 3 \
        --sampler "$sampler" --save-latent l.safetensors --report r.json --dump .
    check "sigmas in the dump" [ -s sigmas.safetensors ]
    tr -d ' \n' <r.json | sed 's/.*"latent_sha256":\["\([0-9a-f]*\).*/\1/' >>../all
    echo >>../all
    rm -f ./*.safetensors r.json
done <<END
euler|4
euler_a|4
heun|7
dpm2|7
dpm2_a|7
dpm++2s_a|7
dpm++2m|4
dpm++3m|4
dpm++2m_sde|4
lms|4
ipndm|4
unipc|4
lcm|4
END
name="samplers"
# In 4 steps dpm++3m never reaches third order and equals dpm++2m.
check "all latents differ, except dpm++3m's" [ "$(sort -u ../all | wc -l)" = 12 ]
: >../all
for schedule in linspace discrete karras exponential sgm_uniform simple smoothstep kl_optimal lcm bong_tangent beta; do
    expect 0 "generate $schedule" generate -m "$model" -p x -W 64 -H 48 --steps 4 --no-decode --report r.json \
        --scheduler "$schedule"
    tr -d ' \n' <r.json | sed 's/.*"latent_sha256":\["\([0-9a-f]*\).*/\1/' >>../all
    echo >>../all
done
name="schedules"
check "at least 10 different latents" [ "$(sort -u ../all | wc -l)" -ge 10 ]
# ---- names of AUTOMATIC1111, Civitai and ComfyUI: their name | sampler | schedule ----
while IFS='|' read -r theirs sampler schedule; do
    [ -z "$theirs" ] && continue
    expect 0 "$theirs" plan -m "$model" --json --max-ram 1G --sampler "$theirs"
    mv ../out ../theirs
    # shellcheck disable=SC2086
    expect 0 "--sampler $sampler" plan -m "$model" --json --max-ram 1G --sampler $sampler ${schedule:+--scheduler $schedule}
    check "same plan as $sampler $schedule" cmp -s ../out ../theirs
done <<END
EULER|euler|
Euler a|euler_a|
dpm++ 2m karras|dpm++2m|karras
DPM++ 2M Karras|dpm++2m|karras
DPM++ 2M SDE Exponential|dpm++2m_sde|exponential
DPM++ 2M SGM Uniform|dpm++2m|sgm_uniform
DPM2 a|dpm2_a|
LMS Karras|lms|karras
dpmpp_2s_ancestral|dpm++2s_a|
UniPC|unipc|
END
expect 0 "--sampler with a schedule name, and --scheduler" plan -m "$model" --json --max-ram 1G --sampler "DPM++ 2M Karras" --scheduler simple
mv ../out ../theirs
expect 0 "--scheduler overrides the schedule in --sampler" plan -m "$model" --json --max-ram 1G --sampler dpm++2m --scheduler simple
check "--scheduler overrides the schedule in --sampler" cmp -s ../out ../theirs
for unknown in "DPM++ 3M SDE" "DDIM CFG++" "Euler b" Karras ""; do
    expect 2 "$unknown" plan -m "$model" --sampler "$unknown"
    check "error lists all names" has ../err 'expected euler, euler_a, heun, dpm2, dpm2_a, .*, unipc, lcm, tcd$'
done
expect 0 "other name of a schedule" plan -m "$model" --scheduler "SGM Uniform"
expect 2 "unknown schedule" plan -m "$model" --scheduler karass
check "error lists all names" has ../err 'expected leading, trailing, .* karras, .* beta$'

while IFS='|' read -r line pattern; do
    [ -z "$line" ] && continue
    # shellcheck disable=SC2086
    expect 2 "$line" plan -m "$model" $line
    check "message has $pattern" has ../err "$pattern"
done <<END
--sampler tcd|trained noise levels
--sampler pndm|flow models
--scheduler leading|unknown schedule
--scheduler ays|unknown schedule
--scheduler lcm --steps 51|at most 50
--prediction v|flow model
END

# ---- shift_terminal (the last sigma) applies to the model's own shift, not to --flow-shift ----
last_sigma() { # last_sigma WANTED ARGS...: generates; checks the last sigma of the report
    wanted=$1
    shift
    expect 0 "generate $*" generate -m terminal -p x -W 64 -H 48 --no-decode --report r.json "$@"
    found=$(tr -d ' \n' <r.json | grep -o '"sigma":[0-9.]*' | tail -n 1)
    check "is $wanted, not $found" [ "${found#"\"sigma\":$wanted"}" != "$found" ]
}
cp -r "$model" terminal
sed -i 's/"shift": /"shift_terminal": 0.02, "shift": /' terminal/scheduler/scheduler_config.json
last_sigma 0.0199999 --steps 4
last_sigma 0.5 --steps 4 --flow-shift 3
last_sigma 1.0 --steps 1
echo '{"flow_shift": 3}' >terminal/sluice.json
last_sigma 0.5 --steps 4
sed -i 's/0.02/1/' terminal/scheduler/scheduler_config.json
expect 3 "shift_terminal 1" plan -m terminal
check "error names the key" has ../err "'shift_terminal'"
rm -rf terminal r.json

# ---- defaults of SDXL: size and steps from sample_size and the scheduler's class ----
defaults() { # defaults WANTED ARGS...: checks "width steps cfg_scale" of the plan
    wanted=$1
    shift
    expect 0 "plan $*" plan --json "$@"
    found=$(tr -d ' \n' <../out | sed 's/.*"width":\([0-9]*\),.*"steps":\([0-9]*\),"cfg_scale":\([0-9.]*\).*/\1 \2 \3/')
    check "is $wanted, not $found" [ "$found" = "$wanted" ]
}
expect_dev 0 "checkpoint sdxl" checkpoint sdxl xl -q --dims \
    clip_layers=2,unet0=32,unet1=64,unet2=64,unet_layers2=1,unet_middle_layers=1,unet_heads=2,clip_vocabulary=600
defaults "1024 50 5.0" -m xl
sed -i 's/"sample_size": 128/"sample_size": 64/' xl/unet/config.json
defaults "512 50 5.0" -m xl
sed -i 's/"leading"/"trailing"/; s/EulerDiscrete/EulerAncestralDiscrete/' xl/scheduler/scheduler_config.json
defaults "512 4 1.0" -m xl
defaults "512 7 2.0" -m xl --steps 7 --cfg-scale 2
sed -i 's/EulerAncestralDiscrete/DPMSolverSDE/' xl/scheduler/scheduler_config.json
expect 3 "unsupported scheduler class" plan -m xl
check "error names the class" has ../err DPMSolverSDEScheduler
rm -rf xl

# ---- Qwen-Image: guidance only with a negative prompt ----
qwen=$(dirname "$(dirname "$model")")/qwen_image/model
defaults "1024 50 1.0" -m "$qwen"
defaults "1024 50 4.0" -m "$qwen" -n ''
defaults "1024 50 1.0" -m "$qwen" --cfg-scale 7
expect 2 "--cfg-scale -1" plan -m "$qwen" --cfg-scale -1
expect 0 "default CFG scale without negative prompt" generate -m "$qwen" -p x -W 64 -H 48 --steps 1 --no-decode --report r.json
check "note on the unused scale" has ../err '^--cfg-scale 4 has no effect: .*negative prompt'
expect 0 "--cfg-scale without negative prompt" generate -m "$qwen" -p x -W 64 -H 48 --steps 1 -o x.png --cfg-scale 7
check "CFG scale 1 in the metadata" has x.png 'CFG scale: 1,'
check "warning on the unused scale" has ../err '^warning: --cfg-scale 7 has no effect: .*negative prompt'
expect 0 "--cfg-scale with a negative prompt" generate -m "$qwen" -p x -n '' -W 64 -H 48 --steps 1 -o x.png --cfg-scale 7
check "CFG scale 7 in the metadata" has x.png 'CFG scale: 7,'
check "no warning" lacks ../err 'has no effect'

# ---- UNet: ancestral and SDE samplers; the folder's scheduler is PNDM, whose schedule does not end at sigma 0 ----
model=$(dirname "$(dirname "$model")")/sd1/model
: >../all
while IFS='|' read -r sampler wanted; do
    [ -z "$sampler" ] && continue
    evaluations --sampler "$sampler"
    check "$wanted evaluations, not $n" [ "$n" = "$wanted" ]
    expect 0 "generate $sampler" generate -m "$model" -p x -W 64 -H 48 --steps 4 --no-decode --report r.json \
        --sampler "$sampler"
    tr -d ' \n' <r.json | sed 's/.*"latent_sha256":\["\([0-9a-f]*\).*/\1/' >>../all
    echo >>../all
done <<END
pndm|5
euler|4
euler_a|4
heun|8
dpm2|8
dpm2_a|8
dpm++2s_a|8
dpm++_sde|8
dpm++2m_sde|4
lms|4
ddim|4
deis|4
lcm|4
tcd|4
END
name="samplers of a UNet"
check "all latents differ" [ "$(sort -u ../all | wc -l)" = 14 ]
evaluations
check "default sampler of the folder" [ "$n" = 5 ]
evaluations --scheduler karras --sampler heun
check "7 evaluations" [ "$n" = 7 ]
expect 2 "--flow-shift with a model that is not a flow model" plan -m "$model" --flow-shift 3
check "error message" has ../err 'not a flow model'
expect 0 "a UNet as a flow model" generate -m "$model" -p x -W 64 -H 48 --steps 4 --prediction flow --flow-shift 3 \
    -o x.png
check "sampler and schedule in the metadata" has x.png 'Sampler: Euler, Schedule type: Simple'
rm -f ./*

echo "$passed passed, $failed failed"
[ $failed = 0 ]
