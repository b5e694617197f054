#!/bin/sh
# Flag names of other programs, their unsupported flags, and warnings on prompt syntax that other programs interpret.
#
# usage: flag_names.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/harness.sh"

# ---- flag synonyms: another program's name | this program's name ----
request() { # request ARGS...: plans; request and plan hash in ../flat
    expect 0 "plan $*" plan -m "$model" --max-ram 90% --json "$@"
    tr -d ' \n' <../out | sed 's/.*"request":{\([^}]*\)}.*"hash":"\([^"]*\)".*/\1 \2/' >../flat
}
while IFS='|' read -r theirs ours; do
    [ -z "$theirs" ] && continue
    # shellcheck disable=SC2086
    request $ours
    cp ../flat ../flat.ours
    # shellcheck disable=SC2086
    request $theirs
    check "same request and hash" cmp -s ../flat ../flat.ours
    request
    check "differs from the defaults" sh -c '! cmp -s ../flat ../flat.ours'
done <<END
--cfg 2|--cfg-scale 2
--negative x --cfg=2|--negative-prompt x --cfg-scale 2
--batch-count 3|--batch 3
-b3|--batch 3
--sampling-method euler --steps 5|--sampler euler --steps 5
--schedule simple --steps 5|--scheduler simple --steps 5
--num-inference-steps 5|--steps 5
-W128 -H96|--width 128 --height 96
END
for scale in x 2, ,2 2,x 2,0 2,-1 2,3,4 -1,2 1001,2 0x2,3 nan,2; do
    expect 2 "--cfg-scale $scale" plan -m "$model" --cfg-scale="$scale"
    check "error lists valid values" has ../err 'as A,B'
done
expect 2 "--cfg-scale 2,3 of one transformer" plan -m "$model" --cfg-scale 2,3
check "error names the cause" has ../err 'no second transformer'
for layers in x 7, ,7 7,,8 -1 7,-1 1.5 0x7 10000 '[7' '7]' '[]' '[7,]' '[7] 8' '[[7]]' 99999999999999999999 "$(seq -s, 65)"; do
    expect 2 "--slg-layers $layers" plan -m "$model" --slg-layers="$layers"
    check "error lists valid values" has ../err 'as 7,8,9, at most 64'
done
for flag in --slg-layers --skip-layers; do
    expect 2 "$flag with a model without skip-layer guidance" plan -m "$model" $flag 0,1 --slg-scale 3
    check "error names the cause" has ../err 'slg-layers cannot be used with this model.*such as SD3'
done
for flag in '--slg-scale 3' '--slg-start 0' '--slg-end .5' '--skip-layer-start .1' '--skip-layer-end .1'; do
    # shellcheck disable=SC2086
    expect 2 "$flag without --slg-layers" plan -m "$model" $flag
    check "error names the cause" has ../err 'there are no layers to skip (--slg-.*--slg-layers A,B too'
done
for flag in '--slg-scale -1' '--slg-start 1.1' '--slg-end nan'; do
    # shellcheck disable=SC2086
    expect 2 "$flag" plan -m "$model" --slg-layers 1 $flag
    check "error lists valid values" has ../err "^sluice: .*${flag% *}.*expected a number from 0 to 1"
done
for seed in '-s 7' -s7; do
    # shellcheck disable=SC2086
    draw 0 "$seed" -p x -o a.png $seed
    check "seed 7" has ../err '^seed 7$'
done
draw 0 "-s-1" -p x -o a.png -s-1
check "prints a random seed" has ../err '^seed [0-9]*$'
rm -f a.png
name="one flag under two names"
expect 2 "$name" plan -m "$model" --cfg 2 --cfg-scale 3
check "given twice" has ../err 'given twice.*--cfg-scale'

# ---- one-line errors: command line | pattern of the error message ----
while IFS='|' read -r line pattern; do
    [ -z "$line" ] && continue
    # shellcheck disable=SC2086
    expect 2 "$line" $line
    check "message has $pattern" has ../err "^sluice: .*$pattern"
    check "one line on stderr" [ "$(wc -l <../err)" = 1 ]
done <<END
generate --offload-to-cpu|--offload-to-cpu, expected --max-vram SIZE and --max-ram SIZE
generate --qwen-image-zero-cond-t|--qwen-image-zero-cond-t, expected --edit 2511
generate --vae-on-cpu|--max-vram
generate --clip-on-cpu|--max-vram
generate --diffusion-fa|nothing to switch
generate -M img2img|-M, expected the command as the first word
generate --mode txt2img|as the first word
generate --lora-apply-mode auto|convert --lora
generate --upscale-repeats 2|--upscale-model FILE alone
generate -p x --control-net x|a control network has no control image
generate -p x --controlnet x|--control-net x
generate --unet x|--unet, expected --diffusion-model
generate --fp8|--fp8, expected --type f8_e4m3
generate --gpu 0|--gpu, expected --device cuda:N
generate --n-iter 2|--n-iter, expected -b N
generate --batch-size 2|--batch-size, expected -b N
generate --num-images 2|--num-images, expected -b N
generate --embd-dir x|textual inversion is not supported
generate --embeddings x|textual inversion is not supported
generate --openpose|controlnet_aux
generate --cache mag|step cache
generate --rng cuda|--seed N
generate --mmap|--direct-io
generate --guidance-scale 3|--cfg-scale S, or --guidance S
generate --vae-tile-size 32x32|--vae-tiling auto
generate --vae-tiling --seed 1|--vae-tiling.*found --seed, expected auto|on|off
generate -steps 3|did you mean --steps
generate -prompt x|did you mean --prompt
generate --neg x|did you mean --negative-prompt
generate --steps-count 3|did you mean --steps
generate --sampling_method euler|did you mean --sampler
generate --batch-cout 3|did you mean --batch
generate -q4|--quiet.*found "4", expected no value
generate -W|a value is missing.*--width
generate -W5x|--width.*found "5x"
generate -t 1025|--threads.*a whole number from 1 to 1024
generate -W 16385|--width.*a whole number from 1 to 16384
generate --flow-shift 1e-4|--flow-shift.*a number from 0.001 to 1000
generate -z4|unknown flag
generate -b3 --xyzzy|unknown flag
decode x --json|--report - for JSON
generate -b3 -b4|given twice
generate --tensors|other commands: inspect
inspect --steps 3|other commands: generate, plan
-m model -p fox|no command is given.*found -m, expected a command before the flags, such as sluice generate -m
--steps 3|no command is given.*sluice generate --steps
END

# ---- warnings on prompt syntax without effect ----
warned() { # warned PATTERN ARGS...: generates; prints exactly this warning
    pattern=$1
    shift
    draw 0 "warning: $pattern" -o a.png "$@"
    check "prints the warning" has ../err "^warning: .*$pattern"
    check "prints one warning" [ "$(grep -c '^warning: ' ../err)" = 1 ]
    rm -f a.png
}
warned '--prompt: <lora:' -p 'a fox <lora:foxes:0.8>'
warned 'the prompt has (word:1.3)' -p 'a (red:1.3) fox' -q
warned 'the prompt has (word:1.3)' -p '((very) red:.5) (fox:2)'
warned 'the negative prompt has (word' -p 'a fox' -n '(blue:2)' --cfg-scale 2
warned '--negative-prompt has no effect' -p 'a fox' -n blue --cfg-scale 1
expect 0 "plan prints the warning" plan -m "$model" -p 'a fox' -n blue --cfg-scale 1
check "prints the warning" has ../err '^warning: --negative-prompt has no effect'
for text in 'a (red) fox' 'at 10:30 (noon)' 'a fox: 1.3' '(1:x)' '(a:)' ')a:1(' 'a <lore>'; do
    draw 0 "no warning: $text" -o a.png -p "$text" -n "" --cfg-scale 1
    check "no warning" lacks ../err '^warning: '
done
draw 0 "negative prompt with guidance" -o a.png -p x -n blue --cfg-scale 2
check "no warning" lacks ../err '^warning: '
rm -f a.png
check "no file is left" empty_folder .

echo "$passed passed, $failed failed"
[ $failed = 0 ]
