#!/bin/sh
# Skip-layer guidance as a user asks for it: planned, said where it does nothing, in the picture's text, refused.
#
# usage: skip_layer_guidance.sh SLUICE MODEL_DIR [SCRATCH_DIR]      (whose layers can be left out, at least three)
. "$(dirname "$0")/harness.sh"

small="-W 32 -H 32 --steps 4"
latent() { # latent NAME ARGS...: in $found
    name_of=$1
    shift
    # shellcheck disable=SC2086
    expect 0 "$name_of" generate -m "$model" -p fox $small --no-decode --report r.json "$@"
    found=$(tr -d ' \n' <r.json | sed 's/.*"latent_sha256":\["\([0-9a-f]*\).*/\1/')
    tr -d ' \n' <r.json >../flat
}

# ---- drawn: one step of four has it ----
latent "nothing left out" --cfg-scale 3
had=$found
check "no word of it" lacks ../flat 'slg_'
latent "a layer left out" --cfg-scale 3 --slg-layers 1 --slg-end .375
left_out=$found
check "another latent" [ "$found" != "$had" ]
check "no word of it" lacks ../err 'slg'
check "the report has it" has ../flat '"slg_layers":\[1\],"slg_scale":2.[0-9]*,"slg_start":0.01,"slg_end":0.375'
check "three lanes" has ../flat '"name":"denoise",[^}]*"lanes":3,'
latent "the same by other programs' names" --cfg 3 --skip-layers 1 --slg-scale 2.8 --skip-layer-start .01 \
    --skip-layer-end .375
check "the same latent" [ "$found" = "$left_out" ]
latent "other layers" --cfg-scale 3 --slg-layers 0,2 --slg-end .375
check "another latent" [ "$found" != "$left_out" ]
left_out=$found
for written in '[0,2]' '[0, 2]' '[ 0 2 ]' '0 , 2'; do
    latent "as stable-diffusion.cpp takes them: $written" --cfg 3 --skip-layers "$written" --skip-layer-end .375
    check "the same latent" [ "$found" = "$left_out" ]
done
latent "another scale" --cfg-scale 3 --slg-layers 0,2 --slg-end .375 --slg-scale 1
check "another latent" [ "$found" != "$left_out" ]

# ---- what does nothing: flags | what is said ----
while IFS='|' read -r line pattern; do
    [ -z "$line" ] && continue
    # shellcheck disable=SC2086
    latent "$line" $line
    check "is said" has ../err "^warning: --slg-layers has no effect.*$pattern"
    check "in one line" [ "$(grep -c slg ../err)" = 1 ]
    check "two lanes at most" has ../flat '"name":"denoise",[^}]*"lanes":[12],'
    case $line in *"scale 3 "*) check "the same latent" [ "$found" = "$had" ] ;; esac
    # shellcheck disable=SC2086
    expect 0 "planned: $line" plan -m "$model" $small $line
    check "is said of the plan, too" has ../err "--slg-layers has no effect.*$pattern"
done <<END
--cfg-scale 1 --slg-layers 1|without guidance (--cfg-scale is 1)
--cfg-scale 3 --slg-layers 1|none of the 4 steps (from 0) is between 0.04 (--slg-start) and 0.8 (--slg-end)
--cfg-scale 3 --slg-layers 1 --slg-start .5 --slg-end .75|is between 2 (--slg-start) and 3
--cfg-scale 3 --slg-layers 1 --slg-scale 0 --slg-end 1|--slg-scale is 0
END

# ---- planned ----
plan() { # plan ARGS...: its JSON in ../flat
    # shellcheck disable=SC2086
    expect 0 "plan $*" plan -m "$model" $small --max-ram 90% --json "$@"
    tr -d ' \n' <../out >../flat
}
plan --cfg-scale 3
hash=$(sed 's/.*"hash":"\([0-9a-f]*\)".*/\1/' ../flat)
plan --cfg-scale 3 --slg-layers 0,1 --slg-end 1
check "its hash" [ "$(sed 's/.*"hash":"\([0-9a-f]*\)".*/\1/' ../flat)" != "$hash" ]
check "its layers" has ../flat '"slg_layers":\[0,1\]'

# ---- in the picture ----
# shellcheck disable=SC2086
expect 0 "a picture" generate -m "$model" -p fox $small --cfg-scale 3 --slg-layers 0,1 --slg-end .375 -o a.png
check "says it" has a.png 'SLG scale: 2.8, Skip layers: "\[0, 1\]", Skip layer start: 0.01, Skip layer end: 0.375, '
# shellcheck disable=SC2086
expect 0 "a picture without a step of it" generate -m "$model" -p fox $small --cfg-scale 3 --slg-layers 0,1 -o a.png
check "says nothing of it" lacks a.png 'Skip layers'
# shellcheck disable=SC2086
expect 0 "without guidance" generate -m "$model" -p fox $small --cfg-scale 1 --slg-layers 0,1 --slg-end .375 -o a.png
check "says nothing of it" lacks a.png 'Skip layer'
rm -f a.png r.json

# ---- refused ----
expect 2 "a layer that there is not" plan -m "$model" --slg-layers 1,999
check "names those that there are" has ../err 'invalid value for --slg-layers: found 999, expected layers from 0 to [0-9]*$'

check "empty" empty_folder .
echo "$passed passed, $failed failed"
[ $failed = 0 ]
