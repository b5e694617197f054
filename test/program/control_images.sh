#!/bin/sh
# Control images on the command line: which network and settings an image gets, plans, metadata, warnings, errors.
# test_control_images.c tests the results.
#
# usage: control_images.sh SLUICE MODEL_DIR [SCRATCH_DIR]      (Stable Diffusion 1, for which test/golden/control_sd1 has networks)
. "$(dirname "$0")/harness.sh"

golden=$(cd "$(dirname "$demo")/../test/golden" && pwd)
net=$golden/control_sd1/controlnet net_2=$golden/control_sd1/controlnet_2
image=$golden/pictures/colours.png other=$golden/pictures/full.jpg
size="-W 40 -H 48 --steps 2"

planned() { # planned NAME FLAGS...: the controls of a plan in $found: network, strength, range, edges of each
    name_of=$1
    shift
    # shellcheck disable=SC2086
    expect 0 "$name_of" plan -m "$model" -p fox $size --json "$@"
    tr -d ' \n' <../out >../flat
    found=$(sed -n 's/.*"controls":\[\([^]]*\)\].*/\1/p' ../flat |
        sed 's/{"network":\([-0-9]*\),"name":"\([^"]*\)","strength":\([^,]*\),"start":\([^,]*\),"end":\([^,]*\),"canny":\([tf]\)[^}]*}/\1 \2 \3 \4 \5 \6/g')
}
same() { # same EXPECTED
    check "controls are $1, not $found" [ "$found" = "$1" ]
}

# ---- which network and settings an image gets ----
planned "one image" --control-net "$net" --control-image "$image" --control-strength .75 --canny
same "0 controlnet 0.75 0.0 1.0 t"
planned "settings in front of the image" --control-net "$net" --control-strength .75 --canny --control-image "$image"
same "0 controlnet 0.75 0.0 1.0 t"
planned "image in front of the network" --control-image "$image" --canny --controlnet "$net" --control-strength .75
same "0 controlnet 0.75 0.0 1.0 t"
planned "two networks" --control-net "$net" --control-image "$image" --control-end .5 --control-net "$net_2" \
    --control-start .5 --control-image "$other"
same "0 controlnet 1.0 0.0 0.5 f,1 controlnet_2 1.0 0.5 1.0 f"
planned "two images of one network" --control-net "$net" --control-image "$image" --control-image "$other" \
    --control-strength 2
same "0 controlnet 1.0 0.0 1.0 f,0 controlnet 2.0 0.0 1.0 f"
planned "equal flags twice" --control-net "$net" --control-image "$image" --canny --canny --control-strength 1 \
    --control-strength 1
same "0 controlnet 1.0 0.0 1.0 t"
expect 0 "plan as text" plan -m "$model" -p fox --control-net "$net" --control-image "$image" --control-end .5 --canny
check "plan has the control" has ../out '^control  controlnet:1 canny (0 to 0.5 of the steps)'
expect 0 "plan without image and prompt" plan -m "$model" --control-net "$net"
check "plan assumes an image" has ../out 'controls_assumed true'

# ---- a run ----
# shellcheck disable=SC2086
expect 0 "guess mode" generate -m "$model" -p fox $size --control-net "$net" --control-image "$image" --guess-mode -o a.png
check "metadata" has a.png 'ControlNet 0: "Module: none, Model: controlnet, Weight: 1, Guidance Start: 0, Guidance End: 1, Control Mode: ControlNet is more important"'
check "the image is stretched" has ../err 'colours.png (19x13) is resized to 40x48'
# shellcheck disable=SC2086
expect 0 "unused images" generate -m "$model" -p fox $size -o b.png --control-net "$net" --control-image "$image" \
    --control-start .7 --control-image "$image" --control-strength 0
check "warning of the range" has ../err '^warning: control image 0 has no effect: none of the 3 steps lies between --control-start 0.7'
check "warning of the strength" has ../err '^warning: control image 1 has no effect: --control-strength is 0'

# ---- an inpainting network takes the request's image and mask ----
# shellcheck disable=SC2086
expect 0 "inpainting without control image" generate -m "$golden/zimage_base/model" -p fox -W 32 -H 48 --steps 1 -i "$image" --mask "$image" \
    --control-net "$golden/control_zimage/controlnet_2" --no-decode --save-latent a.safetensors
rm -f a.safetensors

# ---- models without control networks ----
expect 2 "Flux Canny" plan --family flux_canny --control-net flux_control
check "message" has ../err 'reads a control image itself and takes no control network (--control-net flux_control)'
expect 0 "inputs of Flux Canny" families flux_canny --json
check "no control network" lacks ../out '"--control-net"'
expect 2 "refiner" plan --family sdxl_refiner --control-net unet_control
check "message" has ../err 'found 6 add_time_ids .*expected as in the model: 5 add_time_ids'

# ---- a plan for other control images is refused ----
# shellcheck disable=SC2086
expect 0 "plan" plan -m "$model" -p fox $size --control-net "$net" --control-image "$image" --json
cp ../out plan.json
with_plan() { # with_plan CODE FLAGS...
    code=$1
    shift
    # shellcheck disable=SC2086
    expect "$code" "plan, $*" generate -m "$model" -p fox $size --plan plan.json -o a.png "$@"
}
planned="--control-net $net --control-image $image"
# shellcheck disable=SC2086
with_plan 4 $planned --control-end .5
check "message" has ../err 'control image 0 differs (plan.json): found network 0, range 0 to 1'
# shellcheck disable=SC2086
with_plan 4 $planned --control-image "$image"
check "message" has ../err 'number of control images differs'
# shellcheck disable=SC2086
with_plan 0 $planned --control-strength .5
rm -f plan.json a.png

# ---- errors: exit code | flags | pattern ----
cp "$image" c.png
while IFS='|' read -r code line pattern; do
    [ -n "$line" ] || continue
    # shellcheck disable=SC2086
    expect "$code" "$line" generate -m "$model" -p fox $line
    check "message has $pattern" has ../err "^sluice: .*$pattern"
done <<END
2|--control-net $net|control network has no control image.*--control-image FILE after it
2|--control-net $net --control-net $net_2 --control-image c.png|no control image (--control-net $net)
2|--control-image c.png|this model reads no control image itself.*--control-net FILE
2|--control-net $net --control-strength 1|control 0 has no control image
2|--control-net $net --control-image c.png --control-strength 1 --control-strength 2|given twice for one control image.*"1" and "2"
2|--control-net $net --control-image c.png --control-end 0|--control-end.*a number from 0.001 to 1
2|--control-net $net --control-image c.png --control-mode canny|only for union control networks
2|--control-net $net --control-image c.png --control-mode 4294967295|only for union control networks
2|--control-net $net --control-image c.png --control-mask c.png|--control-mask cannot be used with this control network
3|--control-net $net --control-image none.png|cannot read the image.*none.png
2|--control-net $net --control-image c.png -o c.png|--output would overwrite the file of --control-image
2|--guess-mode|there is no control network
2|--hires-steps 3|there is no second pass
2|--control-net $net --control-net $net_2 --control-image c.png -i c.png|no control image.*for inpainting networks
2|--control-net $net -i c.png --mask c.png|control 0 has no control image
2|--canny|there is no control image (--canny): expected --control-image FILE
2|--control-strength 1|there is no control image (--control-strength 1)
2|--redux-image c.png --redux-strength 0|--redux-strength): found "0", expected a number from 0.001
2|--redux-image c.png --redux-image c.png --redux-image c.png --redux-image c.png --redux-image c.png|at most 4 times
2|--redux-strength 1|there is no image for Flux Redux
2|--preprocessor hed|--preprocessor, expected --control-image FILE
2|--control c.png --scribble|--scribble, expected --control-image FILE.*controlnet_aux
END
images="--control-image c.png --control-image c.png --control-image c.png --control-image c.png"
# shellcheck disable=SC2086
expect 2 "five images" generate -m "$model" -p fox --control-net "$net" $images --control-image c.png
check "message" has ../err '^sluice: flag given too many times (--control-image).*at most 4 times'
# the demo model's own control network: the outline changes the image, the budget does not
shapes="a red circle and a blue square on a white background"
for run in "1 --max-ram 1G" "2 --max-ram 80M" "3 --control-strength 0"; do
    # shellcheck disable=SC2086
    expect 0 "demo run $run" generate -m "$demo" -p "$shapes" --control-net "$demo/controlnet" \
        --control-image "$demo/outline.png" ${run#* } -o "d${run%% *}.png"
done
check "the budget changes no pixel" cmp d1.png d2.png
check "the outline changes the image" sh -c "! cmp -s d1.png d3.png"
rm -f d1.png d2.png d3.png
rm -f a.png b.png c.png
check "no file is left" empty_folder .
echo "$passed passed, $failed failed"
[ $failed = 0 ]
