#!/bin/sh
# Skip-layer guidance (--slg-*): latents, warnings if it has no effect, plans, metadata, errors.
#
# usage: skip_layer_guidance.sh SLUICE MODEL_DIR [SCRATCH_DIR]      (a model that supports it, with at least 3 layers)
. "$(dirname "$0")/harness.sh"

small="-W 32 -H 32 --steps 4"
latent() { # latent NAME ARGS...: generates; latent hash in $found, report in ../flat
    name_of=$1
    shift
    # shellcheck disable=SC2086
    expect 0 "$name_of" generate -m "$model" -p fox $small --no-decode --report r.json "$@"
    found=$(tr -d ' \n' <r.json | sed 's/.*"latent_sha256":\["\([0-9a-f]*\).*/\1/')
    tr -d ' \n' <r.json >../flat
}

# ---- latents: one of four steps is within the range ----
latent "without skip-layer guidance" --cfg-scale 3
without=$found
check "not mentioned" lacks ../flat 'slg_'
latent "--slg-layers 1" --cfg-scale 3 --slg-layers 1 --slg-end .375
skipped=$found
check "other latent" [ "$found" != "$without" ]
check "not mentioned" lacks ../err 'slg'
check "report has the settings" has ../flat '"slg_layers":\[1\],"slg_scale":2.[0-9]*,"slg_start":0.01,"slg_end":0.375'
check "three lanes" has ../flat '"name":"denoise",[^}]*"lanes":3,'
latent "flag names of other programs" --cfg 3 --skip-layers 1 --slg-scale 2.8 --skip-layer-start .01 \
    --skip-layer-end .375
check "same latent" [ "$found" = "$skipped" ]
latent "--slg-layers 0,2" --cfg-scale 3 --slg-layers 0,2 --slg-end .375
check "other latent" [ "$found" != "$skipped" ]
skipped=$found
for written in '[0,2]' '[0, 2]' '[ 0 2 ]' '0 , 2'; do
    latent "list syntax of stable-diffusion.cpp: $written" --cfg 3 --skip-layers "$written" --skip-layer-end .375
    check "same latent" [ "$found" = "$skipped" ]
done
latent "--slg-scale 1" --cfg-scale 3 --slg-layers 0,2 --slg-end .375 --slg-scale 1
check "other latent" [ "$found" != "$skipped" ]

# ---- no effect: flags | pattern of the warning ----
while IFS='|' read -r line pattern; do
    [ -z "$line" ] && continue
    # shellcheck disable=SC2086
    latent "$line" $line
    check "warning" has ../err "^warning: --slg-layers has no effect.*$pattern"
    check "one line on stderr" [ "$(grep -c slg ../err)" = 1 ]
    check "at most two lanes" has ../flat '"name":"denoise",[^}]*"lanes":[12],'
    case $line in *"scale 3 "*) check "same latent" [ "$found" = "$without" ] ;; esac
    # shellcheck disable=SC2086
    expect 0 "plan $line" plan -m "$model" $small $line
    check "plan prints the warning" has ../err "--slg-layers has no effect.*$pattern"
done <<END
--cfg-scale 1 --slg-layers 1|without guidance (--cfg-scale is 1)
--cfg-scale 3 --slg-layers 1|none of the 4 steps (from 0) is between step 0.04 (--slg-start 0.01) and step 0.8 (--slg-end 0.2)
--cfg-scale 3 --slg-layers 1 --slg-start .5 --slg-end .75|is between step 2 (--slg-start 0.5) and step 3
--cfg-scale 3.0 --slg-layers 1 --slg-end .375 --cfg-until .001|have no guidance (--cfg-until 0.001)
--cfg-scale 3 --slg-layers 1 --slg-scale 0 --slg-end 1|--slg-scale is 0
END

# ---- plans ----
plan() { # plan ARGS...: plans; JSON in ../flat
    # shellcheck disable=SC2086
    expect 0 "plan $*" plan -m "$model" $small --max-ram 90% --json "$@"
    tr -d ' \n' <../out >../flat
}
plan --cfg-scale 3
hash=$(sed 's/.*"hash":"\([0-9a-f]*\)".*/\1/' ../flat)
plan --cfg-scale 3 --slg-layers 0,1 --slg-end 1
check "other plan hash" [ "$(sed 's/.*"hash":"\([0-9a-f]*\)".*/\1/' ../flat)" != "$hash" ]
check "layers in the plan" has ../flat '"slg_layers":\[0,1\]'

# ---- metadata ----
# shellcheck disable=SC2086
expect 0 "image with skip-layer guidance" generate -m "$model" -p fox $small --cfg-scale 3 --slg-layers 0,1 --slg-end .375 -o a.png
check "settings in the metadata" has a.png 'SLG scale: 2.8, Skip layers: "\[0, 1\]", Skip layer start: 0.01, Skip layer end: 0.375, '
# shellcheck disable=SC2086
expect 0 "image whose steps are all outside the range" generate -m "$model" -p fox $small --cfg-scale 3 --slg-layers 0,1 -o a.png
check "no settings in the metadata" lacks a.png 'Skip layers'
# shellcheck disable=SC2086
expect 0 "image without guidance" generate -m "$model" -p fox $small --cfg-scale 1 --slg-layers 0,1 --slg-end .375 -o a.png
check "no settings in the metadata" lacks a.png 'Skip layer'
rm -f a.png r.json

# ---- errors ----
expect 2 "layer out of range" plan -m "$model" --slg-layers 1,999
check "error names the valid layers" has ../err 'invalid value for --slg-layers: found 999, expected layers from 0 to [0-9]*$'

check "no file is left" empty_folder .
echo "$passed passed, $failed failed"
[ $failed = 0 ]
