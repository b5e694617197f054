#!/bin/sh
# LoRAs by --lora and by prompt tags: images, plans, reports, metadata, errors.
#
# usage: adapters.sh SLUICE MODEL_DIR [SCRATCH_DIR]      (any model; a random one is generated for the adapters)
. "$(dirname "$0")/harness.sh"

sizes="heads=2,axis0=16,axis1=8,axis2=8,layers=2,refiners=1,hidden=64,text_heads=2,text_key_heads=1,text_head_dim=32"
sizes="$sizes,text_ff=96,text_layers=2,vocabulary=400,vae0=32,vae1=32,vae2=16,vae3=16,vae_groups=8,latent_channels=16"
mkdir -p ../loras/styles
rm -rf ../made ../loras/new.safetensors
expect_dev 0 "write a model" checkpoint zimage ../made --dims "$sizes,dtype=f32" -q
other_model=$model
model=$scratch/made
expect_dev 0 "an adapter" checkpoint zimage ../loras/ink.safetensors --dims "$sizes" --adapter comfy --rank 4 -q
expect_dev 0 "write a second adapter" checkpoint zimage ../loras/styles/oil.safetensors --dims "$sizes" --adapter diffusers --rank 3 \
    --seed 7 -q
ink=../loras/ink.safetensors oil=../loras/styles/oil.safetensors
cp $ink '../loras/a:0.5'

latent() { # latent NAME PROMPT ARGS...: generates; latent hash in $found, report in ../flat
    name_of=$1 prompt=$2
    shift 2
    expect 0 "$name_of" generate -m "$model" -p "$prompt" -W 32 -H 32 --steps 2 --no-decode --report r.json "$@"
    found=$(tr -d ' \n' <r.json | sed 's/.*"latent_sha256":\["\([0-9a-f]*\).*/\1/')
    tr -d '\n' <r.json | sed 's/: /:/g; s/,  */,/g; s/{  */{/g; s/\[  */[/g; s/  *\([]}]\)/\1/g' >../flat
}
same() { check "same latent" [ "$found" = "$1" ]; }
differs() { check "other latent" [ "$found" != "$1" ]; }

# ---- strengths ----
latent "no adapter" "a fox"
base=$found
check "no LoRA is mentioned" lacks ../flat '"loras"'
latent "an adapter" "a fox" --lora $ink
whole=$found
differs "$base"
check "report lists the LoRA" has ../flat '"loras":\[{"name":"ink","strength":1.0,"bytes":[0-9]*,"modules":[0-9]*,"unmatched":0}\]'
check "report counts adapter bytes" has ../flat '"adapter_bytes":[1-9]'
latent "strength 1" "a fox" --lora $ink:1
same "$whole"
latent "strength .6" "a fox" --lora=$ink:.6
less=$found
differs "$whole"
latent "the same adapter twice" "a fox" --lora $ink:0.2 --lora $ink:0.4
same "$less"
latent "strength 0" "a fox" --lora $ink:0
same "$base"
check "no LoRA is mentioned" lacks ../flat '"loras"'
latent "strength -1" "a fox" --lora $ink:-1
differs "$whole"
differs "$base"
latent "two adapters" "a fox" --lora $ink:0.6 --lora $oil
two=$found
differs "$less"
latent "file name with a colon, strength appended" "a fox" --lora '../loras/a:0.5:1'
same "$whole"

# ---- unmatched keys ----
expect_dev 0 "write an adapter of a model with one more layer" checkpoint zimage ../loras/more.safetensors --adapter kohya --rank 2 -q \
    --dims "$(echo "$sizes" | sed 's/,layers=2,/,layers=3,/')"
expect 3 "--lora FOLDER" generate -m "$model" -p fox --lora ../loras -q
check "error names --lora-dir" has ../err '^sluice: .*is a folder: name the file, or use --lora-dir (../loras)$'
expect 3 "an adapter with unmatched keys" generate -m "$model" -p fox -W 32 -H 32 --steps 2 --no-decode -q --report r.json --lora ../loras/more.safetensors
check "error names the first key and counts the others" has ../err '^sluice: .*lora_unet_layers_2_.* 5 more (.*more.safetensors).*nearest'
latent "--lora-partial" "a fox" --lora ../loras/more.safetensors --lora-partial
differs "$base"
check "warning names the key" has ../err '^warning: more: .*lora_unet_layers_2_'

# ---- in prompts ----
latent "<lora:> tag in the prompt" "a fox <lora:ink:0.6>" --lora-dir ../loras
same "$less"
latent "tag at the start, --lora-model-dir" "<lora:ink:0.6> a fox" --lora-model-dir ../loras/
same "$less"
latent "tag with a subfolder" "a <lora:ink:0.6> <lora:styles/oil> fox" --lora-dir ../loras
same "$two"
latent "tag and --lora" "a fox <lora:styles/oil>" --lora $ink:0.6 --lora-dir ../loras
same "$two"
latent "tag in the negative prompt" "a fox" -n '<lora:ink:0.6>' --lora-dir ../loras --cfg-scale 1
same "$less"
latent "tag without --lora-dir" "a fox <lora:ink:0.6>"
differs "$less"
check "warning" has ../err '^warning: --prompt: <lora:...> loads no LoRA without --lora-dir'

# ---- image metadata ----
expect 0 "image with two LoRAs" generate -m "$model" -p "a fox <lora:ink:0.6>" --lora $oil --lora-dir ../loras -W 32 -H 32 --steps 1 \
    -o a.png -q
check "metadata lists the LoRAs" has a.png 'Lora: "oil:1, ink:0.6"'
check "metadata has the prompt with its tag" has a.png 'a fox <lora:ink:0.6>'
expect 0 "image with a LoRA of strength 0" generate -m "$model" -p "a fox" --lora $oil:0 -W 32 -H 32 --steps 1 -o a.png -q
check "no LoRA is mentioned" lacks a.png 'Lora'

# ---- plans ----
plan="plan -m $model -p fox -W 32 -H 32 --steps 2 --no-decode"
# shellcheck disable=SC2086
expect 0 "plan with two LoRAs" $plan --lora $ink:0.6 --lora $oil
check "table lists the LoRAs" has ../out '^LoRAs  *ink:0.6, oil:1: .* % computation'
# shellcheck disable=SC2086
expect 0 "plan as JSON" $plan --lora $ink:0.6 --json
cp ../out ../ink.json
# shellcheck disable=SC2086
expect 0 "plan with another strength" $plan --lora $ink:0.7 --json
check "other plan hash" [ "$(grep '"hash"' ../out)" != "$(grep '"hash"' ../ink.json)" ]
latent "run with the saved plan" "a fox" --lora $ink:0.6 --plan ../ink.json
same "$less"
expect 4 "run with other LoRAs than planned" generate -m "$model" -p fox -W 32 -H 32 --steps 2 --no-decode --report r.json --lora $oil --plan ../ink.json
check "error message" has ../err 'another request or model: other LoRAs'
expect 0 "plan --family with a LoRA" plan --family zimage --dims "$sizes" --lora $ink
check "table lists the LoRA" has ../out '^LoRAs  *ink:1'

# ---- file names that end like a strength ----
cp $ink '../loras/ink:0.5'
latent "file name that ends like a strength" "a fox" --lora '../loras/ink:0.5'
had=$found
latent "the original file" "a fox" --lora $ink
same "$had"
cp $ink '../loras/a:0.5.safetensors'
latent "write a second adapter" "a fox" --lora '../loras/a:0.5.safetensors'
same "$had"
latent "file name with a colon and a strength" "a fox" --lora '../loras/a:0.5.safetensors:1'
same "$had"

# ---- errors: exit code | flags | pattern of the error message ----
printf 'no safetensors' >../loras/text.safetensors
head -c 2000 $ink >../loras/short.safetensors
while IFS='|' read -r code line pattern; do
    [ -z "$line" ] && continue
    # shellcheck disable=SC2086
    expect "$code" "$line" generate -m "$model" -W 32 -H 32 --steps 1 -o b.png $line
    check "error message" has ../err "^sluice: .*$pattern"
    check "one line on stderr" [ "$(wc -l <../err)" = 1 ]
    check "no image is written" absent b.png
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
expect 2 "--save-latent over an adapter of the prompt" generate -m "$model" -p 'fox <lora:ink>' --lora-dir ../loras \
    -W 32 -H 32 --steps 1 -q --save-latent $ink
check "error message" has ../err 'would overwrite an adapter in the folder of --lora-dir'
check "the adapter is unchanged" cmp -s $ink ../ink.before
expect 0 "--save-latent to a new file in --lora-dir" generate -m "$model" -p 'fox <lora:ink>' --lora-dir ../loras -W 32 -H 32 --steps 1 -q --no-decode \
    --save-latent ../loras/new.safetensors
expect 3 "adapter of another model" generate -m "$other_model" -p fox -W 32 -H 32 --steps 1 --lora $ink -q -o b.png
check "error names the adapter" has ../err 'ink'

echo "$passed passed, $failed failed"
[ $failed = 0 ]
