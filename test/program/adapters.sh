#!/bin/sh
# Adapters as a user names them: by flags and in prompts, planned, reported, in the picture's text, refused.
#
# usage: adapters.sh SLUICE MODEL_DIR [SCRATCH_DIR]      (any model: one of random weights is written beside it)
. "$(dirname "$0")/harness.sh"

sizes="heads=2,axis0=16,axis1=8,axis2=8,layers=2,refiners=1,hidden=64,text_heads=2,text_key_heads=1,text_head_dim=32"
sizes="$sizes,text_ff=96,text_layers=2,vocabulary=400,vae0=32,vae1=32,vae2=16,vae3=16,vae_groups=8,latent_channels=16"
mkdir -p ../loras/styles
rm -rf ../made ../loras/new.safetensors
expect 0 "a model" bench checkpoint zimage ../made --dims "$sizes,dtype=f32" -q
other_model=$model
model=$scratch/made
expect 0 "an adapter" bench checkpoint zimage ../loras/ink.safetensors --dims "$sizes" --adapter comfy --rank 4 -q
expect 0 "another" bench checkpoint zimage ../loras/styles/oil.safetensors --dims "$sizes" --adapter diffusers --rank 3 \
    --seed 7 -q
ink=../loras/ink.safetensors oil=../loras/styles/oil.safetensors
cp $ink '../loras/a:0.5'

latent() { # latent NAME PROMPT ARGS...: its hash in $found, the report in ../flat
    name_of=$1 prompt=$2
    shift 2
    expect 0 "$name_of" generate -m "$model" -p "$prompt" -W 32 -H 32 --steps 2 --no-decode --report r.json "$@"
    found=$(tr -d ' \n' <r.json | sed 's/.*"latent_sha256":\["\([0-9a-f]*\).*/\1/')
    tr -d '\n' <r.json | sed 's/: /:/g; s/,  */,/g; s/{  */{/g; s/\[  */[/g; s/  *\([]}]\)/\1/g' >../flat
}
same() { check "the same latent" [ "$found" = "$1" ]; }
differs() { check "another latent" [ "$found" != "$1" ]; }

# ---- drawn ----
latent "no adapter" "a fox"
base=$found
check "no word of it" lacks ../flat '"loras"'
latent "an adapter" "a fox" --lora $ink
whole=$found
differs "$base"
check "the report has it" has ../flat '"loras":\[{"name":"ink","strength":1.0,"bytes":[0-9]*,"modules":[0-9]*,"unmatched":0}\]'
check "and what it brings" has ../flat '"adapter_bytes":[1-9]'
latent "its strength" "a fox" --lora $ink:1
same "$whole"
latent "less of it" "a fox" --lora=$ink:.6
less=$found
differs "$whole"
latent "twice" "a fox" --lora $ink:0.2 --lora $ink:0.4
same "$less"
latent "none of it" "a fox" --lora $ink:0
same "$base"
check "no word of it" lacks ../flat '"loras"'
latent "less than none" "a fox" --lora $ink:-1
differs "$whole"
differs "$base"
latent "two" "a fox" --lora $ink:0.6 --lora $oil
two=$found
differs "$less"
latent "a name with a colon, which a strength needs behind it" "a fox" --lora '../loras/a:0.5:1'
same "$whole"

# ---- part of it ----
expect 0 "of a model with a layer more" bench checkpoint zimage ../loras/more.safetensors --adapter kohya --rank 2 -q \
    --dims "$(echo "$sizes" | sed 's/,layers=2,/,layers=3,/')"
expect 3 "which fits nothing" generate -m "$model" -p fox -W 32 -H 32 --steps 2 --no-decode -q --lora ../loras/more.safetensors
check "names it, and how many more" has ../err '^sluice: .*lora_unet_layers_2_.* 5 others (.*more.safetensors).*nearest'
latent "the rest of it" "a fox" --lora ../loras/more.safetensors --lora-partial
differs "$base"
check "is a warning" has ../err '^warning: more: .*lora_unet_layers_2_'

# ---- in prompts ----
latent "in the prompt" "a fox <lora:ink:0.6>" --lora-dir ../loras
same "$less"
latent "in front, by another program's flag" "<lora:ink:0.6> a fox" --lora-model-dir ../loras/
same "$less"
latent "in a folder below" "a <lora:ink:0.6> <lora:styles/oil> fox" --lora-dir ../loras
same "$two"
latent "with a flag" "a fox <lora:styles/oil>" --lora $ink:0.6 --lora-dir ../loras
same "$two"
latent "in the negative prompt" "a fox" -n '<lora:ink:0.6>' --lora-dir ../loras --cfg-scale 1
same "$less"
latent "nowhere to look" "a fox <lora:ink:0.6>"
differs "$less"
check "is said" has ../err '^warning: --prompt: <lora:...> loads no LoRA without --lora-dir'

# ---- the picture's text ----
expect 0 "a picture" generate -m "$model" -p "a fox <lora:ink:0.6>" --lora $oil --lora-dir ../loras -W 32 -H 32 --steps 1 \
    -o a.png -q
check "names what it was drawn with" has a.png 'Lora: "oil:1, ink:0.6"'
check "and the prompt as it was" has a.png 'a fox <lora:ink:0.6>'
expect 0 "without" generate -m "$model" -p "a fox" --lora $oil:0 -W 32 -H 32 --steps 1 -o a.png -q
check "no word of it" lacks a.png 'Lora'

# ---- planned ----
plan="plan -m $model -p fox -W 32 -H 32 --steps 2 --no-decode"
# shellcheck disable=SC2086
expect 0 "a plan" $plan --lora $ink:0.6 --lora $oil
check "names them" has ../out '^LoRAs  *ink:0.6, oil:1: .* % computation'
# shellcheck disable=SC2086
expect 0 "as JSON" $plan --lora $ink:0.6 --json
cp ../out ../ink.json
# shellcheck disable=SC2086
expect 0 "another strength" $plan --lora $ink:0.7 --json
check "another hash" [ "$(grep '"hash"' ../out)" != "$(grep '"hash"' ../ink.json)" ]
latent "that plan" "a fox" --lora $ink:0.6 --plan ../ink.json
same "$less"
expect 4 "other adapters than the plan's" generate -m "$model" -p fox -W 32 -H 32 --steps 2 --no-decode --lora $oil --plan ../ink.json
check "says so" has ../err 'another request or model: other LoRAs'
expect 0 "without files" plan --family zimage --dims "$sizes" --lora $ink
check "is planned" has ../out '^LoRAs  *ink:1'

# ---- a file whose name ends like a strength ----
cp $ink '../loras/ink:0.5'
latent "a file of that name" "a fox" --lora '../loras/ink:0.5'
had=$found
latent "the file itself" "a fox" --lora $ink
same "$had"
cp $ink '../loras/a:0.5.safetensors'
latent "another" "a fox" --lora '../loras/a:0.5.safetensors'
same "$had"
latent "with a strength" "a fox" --lora '../loras/a:0.5.safetensors:1'
same "$had"

# ---- refused: code | flags | what is said ----
printf 'no safetensors' >../loras/text.safetensors
head -c 2000 $ink >../loras/short.safetensors
while IFS='|' read -r code line pattern; do
    [ -z "$line" ] && continue
    # shellcheck disable=SC2086
    expect "$code" "$line" generate -m "$model" -W 32 -H 32 --steps 1 -o b.png $line
    check "says why" has ../err "^sluice: .*$pattern"
    check "in one line" [ "$(wc -l <../err)" = 1 ]
    check "draws nothing" absent b.png
done <<END
2|-q -p fox --lora $ink:1e9|a number from -1000 to 1000
2|-q -p fox --lora :1|FILE\[:S\]
2|-q -p <lora:ink:much> --lora-dir ../loras|<lora:ink:much>
2|-q -p <lora:../made/x> --lora-dir ../loras|leads out of --lora-dir
2|-q -p fox --lora $ink -o ../loras/ink.safetensors|
3|-q -p fox --lora ../loras/nothing.safetensors|nothing.safetensors
3|-q -p <lora:nothing> --lora-dir ../loras|loras/nothing.safetensors
3|-q -p <lora:ink> --lora-dir ../nowhere|--lora-dir does not exist (../nowhere)
3|-q -p fox --lora-dir ../nowhere|--lora-dir does not exist (../nowhere)
3|-q -p fox --lora ../loras|loras
3|-q -p fox --lora ../loras/text.safetensors|text.safetensors
3|-q -p fox --lora ../loras/short.safetensors|short.safetensors
3|-q -p fox --lora ../made/vae/diffusion_pytorch_model.safetensors|diffusion_pytorch_model
END
cp $ink ../ink.before
expect 2 "a latent in the place of an adapter that a prompt names" generate -m "$model" -p 'fox <lora:ink>' --lora-dir ../loras \
    -W 32 -H 32 --steps 1 -q --save-latent $ink
check "says so" has ../err 'would overwrite an adapter in the folder of --lora-dir'
check "which stays" cmp -s $ink ../ink.before
expect 0 "a latent beside them" generate -m "$model" -p 'fox <lora:ink>' --lora-dir ../loras -W 32 -H 32 --steps 1 -q --no-decode \
    --save-latent ../loras/new.safetensors
expect 3 "an adapter of another model" generate -m "$other_model" -p fox -W 32 -H 32 --steps 1 --lora $ink -q -o b.png
check "names file or key" has ../err 'ink'

echo "$passed passed, $failed failed"
[ $failed = 0 ]
