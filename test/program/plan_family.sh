#!/bin/sh
# sluice plan --family plans without model files: every family, and the same plan as for generated files. sluice families.
#
# usage: plan_family.sh SLUICE MODEL_DIR [SCRATCH_DIR]   (MODEL_DIR is not used: models are generated)
. "$(dirname "$0")/harness.sh"

# ---- every family at its published sizes ----
expect 0 "families" families
families=$(sed -n '/^$/q; 2,$s/^\([a-z0-9_]*\) .*/\1/p' ../out)
check "control networks, with their models" has ../out '^unet_control  *[0-9.]* [MG]iB  sd15, .*sdxl'
check "upscalers" has ../out '^rrdbnet  *[0-9.]* MiB  upscaler$'
check "size, steps and pipeline of flux" has ../out '^flux  *1024x1024  *28  *3[0-9.]* GiB  FluxPipeline'
check "at least 12 families" [ "$(echo "$families" | wc -l)" -ge 12 ]
for family in $families; do
    expect 0 "plan $family" plan --family "$family" --frames 1 --max-ram 5G
    check "prints the smallest budget" has ../out '^minimum  *RAM [0-9.]* [MG]iB'
    check "note on published sizes" has ../err "^no files: planned with the published sizes of $family"
done
# ---- control networks without files ----
expect 0 "a control network" plan --family sdxl --control-net unet_control --max-ram 5G --json
check "with the sizes of its denoiser" has ../out '"control.down_blocks.2.attentions.1.transformer_blocks.9.text"'
expect 0 "a control network with other sizes" plan --family zimage --control-net zimage_control:layers=3 --max-ram 5G
check "bytes" has ../out '^control  zimage_control:1; networks of 1.88 GiB, [0-9.]* GiB streamed/call$'
expect 2 "an unknown control network" plan --family sdxl --control-net controlnet
check "lists the known ones" has ../err 'found controlnet, expected unet_control, '
expect 2 "a control network of another model" plan --family sdxl --control-net flux_control
check "names both models" has ../err 'for models of transformer (flux), expected a control network for UNet (unet)'

# ---- upscalers without files ----
expect 0 "an upscaler" plan --family sd15 --hires 2 --upscale-model rrdbnet --device cuda:3060 --max-ram 5G --json
check "is planned" has ../out '"family": "rrdbnet"'
expect 0 "an upscaler between the passes" plan --family sd15 --hires 2 --hires-upscaler srvgg:srvgg_scale=2 --max-ram 5G --json
check "is planned" has ../out '"family": "srvgg"'
expect 2 "an unknown upscaler" plan --family sd15 --upscale-model x4plus
check "lists the known ones" has ../err 'found x4plus, expected rrdbnet, srvgg, '
expect 2 "a control network as upscaler" plan --family sd15 --upscale-model unet_control

expect 0 "families --json" families --json
tr -d ' \n' <../out >../flat
check "components of zimage" has ../flat '"name":"zimage",.*"pipelines":\["ZImagePipeline".*"parts":\[{"name":"[^"]*","family":"qwen3","flag":"--llm","optional":false,"bytes":[0-9]*}'
check "flags of flux_fill" has ../flat '"name":"flux_fill".*"takes":\[{"flag":"--guidance",[^]]*"--mask","what":"mask","needed":true}'
check "repository to download" has ../flat '{"repository":"Tongyi-MAI/Z-Image-Turbo","flag":null,"files":null,"megabytes":null}'
check "no plans in the list" lacks ../out '"plans"'
check "networks" has ../flat '{"name":"flux_control",[^]]*"kind":"control","flag":"--control-net","of":\["flux"[^]]*\],"modes":\["canny",'
expect 0 "families rrdbnet" families rrdbnet
check "its flag" has ../out '^flag  *--upscale-model FILE'
expect 0 "families unet_control --json" families unet_control --json
check "alone" lacks ../out '"sdxl_refiner"\|"rrdbnet"'
expect 2 "families rrdbnt" families rrdbnt
check "suggests a network" has ../err 'did you mean rrdbnet'
expect 2 "families zimge" families zimge
check "suggests a family" has ../err 'did you mean zimage'
expect 0 "families sd15" families sd15
check "size of a component" has ../out '^  --clip_l  *235 MiB'
check "input images" has ../out '^  --init-img  *input image$'
check "five plans" [ "$(grep -cE '^  (cuda:[a-z0-9]*  *[0-9.]* \+|cpu ) *[0-9.]*; [0-9.]* [a-z]*, ' ../out)" = 5 ]
check "nothing on stderr" [ ! -s ../err ]
expect 0 "families qwen_image_21: no guidance by default" families qwen_image_21
check "says so" has ../out '^default .* 40 steps, without guidance$'
check "lists --negative-prompt" has ../out '^  --negative-prompt  *negative prompt, with --cfg-scale'
check "plans without a negative prompt" lacks ../out ' -n '
check "nothing on stderr" [ ! -s ../err ]
# `families` prints the command of each plan. --max-ram is lowered, because this machine may have less memory.
for family in qwen_image sdxl; do
    expect 0 "$family" families $family --json
    tr -d '\n' <../out | sed 's/"command"/\n&/g' | sed -n 's/^"command": "sluice \(plan .*4060ti[^"]*\(\\" \\"\)*[^"]*\)", *"card".*"least": \({[^}]*}\).*/\1|\3/p' >../planned_vram
    line=$(sed 's/|.*//; s/\\//g; s/--max-ram 20G/--max-ram 3G/' ../planned_vram)
    eval "expect 0 'the printed command' $line --json"
    check "the same least device memory" has ../out "$(sed 's/.*|[^"]*\("vram_bytes": [1-9][0-9]*\).*/\1/' ../planned_vram)"
    check "prints device memory" has ../planned_vram '^plan .*"vram_bytes": [1-9]'
done
expect 0 "plan for a card" plan --family qwen_image --device cuda:4090 --max-vram 20G --max-ram 2G --json
tr -d ' \n' <../out >../flat
check "predicted time" has ../flat '"card":"[^"]*4090.*"seconds":[0-9]'
expect 0 "plan for a card, --max-ram above this machine's memory" plan --family zimage --device cuda:4060 --max-vram 8G --max-ram 900T --json
check "budget as requested" has ../out '"ram_bytes": *989560464998400'
expect 0 "--max-ram above this machine's memory" plan --family zimage --max-ram 900T
# rows * width of the tokens exceeds 2^31
expect 0 "krea2 at 14336 squared" plan --family krea2 -W 14336 -H 14336 --max-ram 900T
expect 0 "little memory" plan --family qwen_image_21 --device cuda:4090 --max-vram 1.6G --max-ram 4G --json
check "the prefix is recomputed" has ../out '"prefix": "recomputed"'
expect 0 "much memory" plan --family qwen_image_21 --device cuda:4090 --max-vram 20G --max-ram 4G --json
check "the prefix is kept" has ../out '"prefix": "kept"'
sed 's/"prefix": "kept"/"prefix": "thrown away"/' <../out >../plan.json
expect 3 "a plan with another word" plan --family qwen_image_21 --device cuda:4090 --max-vram 20G --max-ram 4G --plan ../plan.json
check "names the words" has ../err '"prefix" is neither "kept" nor "recomputed"'

# ---- control networks at their published sizes ----
# network NAME FAMILY BYTES: the bf16 weights of a network, 2 bytes per parameter. Blocks start at multiples of 256 bytes.
network() {
    expect 0 "$1" plan --family "$2" --control-net "$1" --max-ram 5G --json
    awk -F'[:,]' '/"name": "control\./ {network = 1; next} network {sum += $2; network = 0} END {printf "%.0f\n", sum / 1e7}' ../out >../bytes
    check "$3 GB: $(cat ../bytes)" [ "$(cat ../bytes)" = "$(echo "$3" | tr -d .)" ]
}
# Z-Image Union 2.1, lite, 1.0: parameters counted from VideoX-Fun's classes; sizes of the published files
network zimage_control zimage 6.71
network zimage_control:layers=3 zimage 2.02
network zimage_control:layers=6,control_channels=16,refiner_hints=0 zimage 3.10
# Qwen-Image Union (1,768 M parameters) and Inpainting (2,117 M), InstantX' network of Stable Diffusion 3 (1,063 M): counted
# from diffusers' classes, without the last layer's weights for text after attention (94 M, 94 M, 33 M), with 4,096 rows of
# the position table. 3.5 large: 2,153 M
network qwen_image_control qwen_image 3.35
network qwen_image_control:layers=6,masked=1 qwen_image 4.05
network sd3_control sd3 2.07
network sd35_control sd35_large 4.31

# ---- same plan as for a generated checkpoint ----
zimage=heads=4,axis0=16,axis1=24,axis2=24,layers=2,refiners=1,hidden=256,text_heads=4,text_key_heads=2,text_head_dim=64,text_ff=512,text_layers=2,vae0=32,vae1=32,vae2=16,vae3=16,vae_groups=8,latent_channels=4,vocabulary=400
flux=heads=2,axis0=16,axis1=24,axis2=24,double_layers=1,single_layers=1,hidden=64,clip_heads=2,clip_ff=32,clip_layers=1,pooled=32,clip_projection=32,t5_heads=2,t5_head_dim=16,t5_ff=32,t5_layers=1,vae0=32,vae1=32,vae2=16,vae3=16,vae_groups=8,latent_channels=4,clip_vocabulary=600,t5_vocabulary=600
qwen_image=vision_layers=2,vision_width=64,vision_heads=2,vision_ff=96,hidden=128,vocabulary=600,text_heads=2,text_key_heads=1,text_ff=96,text_layers=2,heads=2,axis0=16,axis1=24,axis2=24,layers=2,vae_base=16
sd3=heads=2,layers=2,sd3_positions=66,hidden=80,sd3_pooled=72,clip_vocabulary=600,clip_ff=48,clip_l.pooled=32,clip_l.clip_heads=2,clip_l.clip_layers=2,clip_l.clip_projection=32,clip_g.pooled=40,clip_g.clip_heads=2,clip_g.clip_layers=2,clip_g.clip_projection=40,t5_vocabulary=600,t5_heads=2,t5_head_dim=16,t5_ff=32,t5_layers=1,vae0=32,vae1=32,vae2=32,vae3=32
parts() { # the stages of a plan, without the model's name and the memory of tokenizers
    tr -d ' \n' <../out | sed -e 's/.*"stages":\[//' -e 's/"peak_ram_bytes":[0-9]*//g'
}
same() { # same NAME FAMILY SIZES FLAGS...: compares the plans of folder NAME and of the family
    folder=$1 family=$2 sizes=$3
    shift 3
    expect 0 "plan $folder $*" plan -m "../$folder" --max-ram 1G --json "$@"
    parts >../from_files
    expect 0 "plan $family $*" plan --family "$family" --dims "$sizes" --max-ram 1G --json "$@"
    parts >../from_family
    check "same stages" cmp -s ../from_files ../from_family
}
for family in zimage flux qwen_image; do
    rm -rf "../$family"
    eval "sizes=\$$family"
    expect_dev 0 "write $family" checkpoint $family "../$family" -q --dims "$sizes"
    same $family $family "$sizes"
    same $family $family "$sizes" -W 640 -H 384 --steps 3 -b 2 --no-decode
    same $family $family "$sizes" --device cuda:3060 --max-vram 2G
done

# ---- without a text encoder ----
expect_dev 0 "write sd3" checkpoint sd3 ../sd3 -q --dims $sd3
same sd3 sd3 $sd3 --t5xxl none
check "second text stage" has ../out '"text_2"'
check "no third text stage" lacks ../out '"text_3"'
same sd3 sd3 $sd3 --clip_l none --clip_g none
check "families sd15" lacks ../out '"text_2"'
check "note on the missing text encoder" has ../err '^no CLIP-L text encoder (--clip_l): zeros replace'
expect 0 "hidden size below the pooled size" plan --family sd3 --dims hidden=1024 --clip_l none --clip_g none --max-ram 2G

# ---- --type: same plan as for converted files ----
for part in transformer text_encoder; do
    expect 0 "convert $part" convert ../zimage/$part -o ../$part.safetensors --type int8_convrot -q
done
expect 0 "plan with the converted files" plan -m ../zimage --diffusion-model ../transformer.safetensors --llm ../text_encoder.safetensors \
    --max-ram 1G --json
parts >../from_files
expect 0 "plan --type" plan --family zimage --dims $zimage --type int8_convrot --max-ram 1G --json
parts >../from_family
check "same stages" cmp -s ../from_files ../from_family
check "note on converted files" has ../err '^--type int8_convrot: planned for files written by `sluice convert'
check "assumes the longest prompt" has ../out '"longest_prompt_assumed": *true'
expect 0 "plan --type q4_k" plan --family zimage --dims $zimage --type q4_k --max-ram 1G --json
parts >../from_family
check "other stages" sh -c '! cmp -s ../from_files ../from_family'

# ---- required input images are assumed ----
expect 0 "plan of a fill model" plan --family flux_fill --max-ram 2G --json -p fox
check "plan reports the assumption" has ../out '"mask_assumed": *true'
check "note on the missing tokenizer" has ../err '^no tokenizer: planned for the longest prompt'
expect 0 "plan of an editing model" plan --family qwen_image_edit --max-ram 2G --json -p fox
check "plan reports the assumption" has ../out '"reference_assumed": *true'

# ---- errors: flags | pattern of the error message ----
while IFS='|' read -r line pattern; do
    # shellcheck disable=SC2086
    expect 2 "plan $line" plan $line
    check "message has $pattern" has ../err "^sluice: .*$pattern"
done <<END
--family nothing|found nothing, expected one that .sluice families. lists
--family zimage -m ../zimage|--family
--family zimage --vae ../zimage/vae|--family
--family zimage --vae none|needs its autoencoder.*--vae none
--family sd3 --clip_l none --clip_g none --t5xxl none|needs its text encoders
--family zimage --tokenizer ../zimage|--family
--family zimage --dims dtype=f32|dtype
--family zimage --dims nothing=3|known: dtype vocabulary
--family zimage --dims heads=2,heads=3|twice
--family qwen_image_edit --dims vision_heads=1024|inconsistent vision encoder sizes
--family zimage --type nothing|--type.*int8_convrot
--family zimage --device cuda:6090|cuda:6090.*sluice devices
--family zimage latent.safetensors|latent
-m ../zimage --dims heads=2|--family NAME
END
expect 2 "generate" generate --family zimage -p fox
rm -rf ../zimage ../flux ../qwen_image ../sd3 ../transformer.safetensors ../text_encoder.safetensors ../from_files ../from_family
# ---- families --precision ----
if "$sluice" devices | grep -q '^  precisions .* int8$'; then
    expect 0 "plans of a family in int8" families zimage --precision int8
    check "commands have the precision" [ "$(grep -c -- '--direct-io on --precision int8$' ../out)" = 5 ]
else
    expect 2 "plans of a family in int8 on a CPU without int8 products" families zimage --precision int8
    check "error message" has ../err 'invalid value for --precision: this CPU'
fi

echo "$passed passed, $failed failed"
[ $failed = 0 ]
