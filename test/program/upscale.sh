#!/bin/sh
# sluice upscale, and --upscale-model of generate: files, sizes, budgets, plans, errors. test_upscale compares pixels.
#
# usage: upscale.sh SLUICE MODEL_DIR [SCRATCH_DIR]
golden=$(cd "$(dirname "$0")/../golden" && pwd)
. "$(dirname "$0")/harness.sh"

x4=$golden/upscale/esrgan/model.safetensors x2=$golden/upscale/srvgg_x2/model.safetensors
picture=$golden/pictures/colours.png alpha=$golden/pictures/colours_alpha.png

# ---- sluice upscale ----
expect 0 "enlarge an image" upscale "$picture" --upscale-model "$x4" -o a.png --report r.json
sha=$(sed -n 's/^wrote a.png ([0-9x]*, pixels sha256 \([0-9a-f]*\))$/\1/p' ../err)
check "line of the image" [ -n "$sha" ]
tr -d ' \n' <r.json >../flat
check "report: image" has ../flat "\"image_sha256\":\[\"$sha\"\]"
check "report: stage" has ../flat '"name":"upscale","family":"rrdbnet"'
check "no alpha" lacks a.png tRNS
expect 0 "JPEG" upscale "$picture" --upscale-model "$x2" -o a.jpg
check "JPEG is written" [ -s a.jpg ]
expect 0 "alpha" upscale "$alpha" --upscale-model "$x2" -o b.png
check "no warning about transparency" lacks ../err transparen
expect 0 "inspect" inspect "$x4"
check "inspect names the family" has ../out '^upscaler: rrdbnet, '
expect 0 "convert to GGUF" convert "$x4" -o x4.gguf --type q8_0 -q
expect 0 "GGUF" upscale "$picture" --upscale-model x4.gguf -o c.png
check "same pixels" has ../err "$sha"
check "no seed" lacks ../err '^seed'
expect 0 "plan" plan "$picture" --upscale-model "$x4" --json
tr -d ' \n' <../out >../flat
least=$(sed 's/.*"least":{"vram_bytes":0,"ram_bytes":\([0-9]*\)}.*/\1/' ../flat)
expect 0 "least budget" upscale "$picture" --upscale-model "$x4" -o c.png --max-ram "${least}B"
check "same pixels" cmp -s a.png c.png
expect 4 "one byte less" upscale "$picture" --upscale-model "$x4" -o d.png --max-ram $((least - 1))B
expect 0 "plan for a GPU" plan "$picture" --upscale-model "$x4" --device cuda:4060

expect 0 "help" upscale --help-all
check "help of images" lacks ../out 'mp4\|text encoders'

# ---- generate ----
draw 0 "generate" -p fox -o e.png
draw 0 "generate with an upscaler" -p fox -o f.png --upscale-model "$x2" --report r.json
check "size" has ../err '^wrote f.png (128x96, '
check "metadata" has f.png 'Size: 64x48, .*, Postprocess upscale by: 2, Postprocess upscaler: model.safetensors, '
draw 0 "generate with an upscaler between the passes" -p fox -o h.png --hires 1.5 --hires-upscaler "$x2"
check "metadata" has h.png 'Hires upscaler: model.safetensors, '
check "stage" has r.json '"upscale"'
expect 0 "enlarge the saved image" upscale e.png --upscale-model "$x2" -o g.png
sha=$(sed -n 's/.*sha256 \([0-9a-f]*\)).*/\1/p' ../err)
check "same pixels as in one run" has r.json "$sha"

# ---- errors: exit code | command line | pattern of the error message ----
cp "$picture" copy.png
printf 'PK\003\004 0123456789' >x4.pth
while IFS='|' read -r code line pattern; do
    # shellcheck disable=SC2086
    eval "expect $code '$line' $line"
    check "error message" has ../err "^sluice: .*$pattern"
    check "no image is written" absent d.png
done <<'END'
2|upscale|expected .*IMAGE
2|upscale copy.png -o d.png|no upscaler is given
3|upscale none.png --upscale-model "$x4" -o d.png|none.png
3|upscale copy.png --upscale-model x4.pth -o d.png|to convert: python -c .*params_ema.*params
3|upscale copy.png --upscale-model copy.png -o d.png|found a PNG picture, expected [^;]*$
2|upscale copy.png --upscale-model none -o d.png|no network enlarges
2|upscale copy.png --upscale-model "$x4" -o d.mp4|`upscale` writes images
2|upscale copy.png --upscale-model "$x4" -o d_%s.png|an image to enlarge has no seed
2|generate -m "$model" -p x --upscale-model "$x4" --no-decode --save-latent l -o d.png|--no-decode makes no image
2|generate -m "$model" -p x --hires 1 -o d.png|expected a number above 1, to 8
2|generate -m "$model" -p x --hires 0 -o d.png|expected a number above 1, to 8
2|generate -m "$model" -p x --hires 2 --hires-strength 0 -o d.png|expected a number above 0, to 1
3|upscale copy.png --upscale-model "$model/vae" -o d.png|expected upscaler (rrdbnet or srvgg) for --upscale-model
2|upscale copy.png --upscale-model "$x4" -o copy.png|would overwrite
2|upscale copy.png --upscale-model "$x4" --steps 3 -o d.png|--steps
3|generate -m "$model" --vae "$x4" -p x -o d.png|found upscaler (rrdbnet)
END

echo "$passed passed, $failed failed"
[ $failed = 0 ]
