#!/bin/sh
# --taesd: a tiny decoder instead of the VAE. The decoders here have random weights.
#
# usage: taesd.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/harness.sh"

rm -rf ../taef1 ../taesd
expect_dev 0 "write a tiny decoder" checkpoint taesd ../taef1 --dims taesd_channels=16 --seed 3 -q
check "two files" [ "$(cd ../taef1 && echo *)" = "config.json diffusion_pytorch_model.safetensors" ]
expect_dev 0 "write a tiny decoder of another model" checkpoint taesd ../taesd --dims latent_channels=4,taesd_channels=16 -q
expect_dev 0 "checkpoint help" checkpoint help
check "help lists taesd" has ../out '^taesd: --dims'
expect 0 "inspect the tiny decoder" inspect ../taef1
check "inspect names the format" has ../out '^taesd: taesd, 67 tensors'
check "no unknown tensors" lacks ../out '^unknown'

# ---- generate ----
note='decoded with the tiny decoder (taesd): the image differs slightly'
draw 0 "generate with --taesd" -p fox -o a.png --taesd ../taef1 --save-latent l.safetensors --report r.json
check "note on the tiny decoder" has ../err "^$note"
check "decoder in the metadata" has a.png 'Size: [0-9x]*, VAE Decoder: TAESD, Model: '
tr -d ' \n' <r.json >../flat
check "decoder in the report" has ../flat '"decoder":"taesd"'
check "decode stage" has ../flat '"name":"decode","family":"taesd"'
draw 0 "--tae, as in stable-diffusion.cpp" -p fox -o b.png --tae ../taef1
check "same file" cmp -s a.png b.png
draw 0 "generate with the VAE" -p fox -o b.png --save-latent m.safetensors
check "no note" lacks ../err "$note"
check "no decoder in the metadata" lacks b.png 'VAE Decoder'
check "other image" sh -c '! cmp -s a.png b.png'
check "same latent" cmp -s l.safetensors m.safetensors
draw 0 "--taesd with --no-decode" -p fox --taesd ../taef1 --no-decode --save-latent m.safetensors
check "no note" lacks ../err "$note"
expect 0 "plan with --taesd" plan -m "$model" --taesd ../taef1 --json
check "note on the tiny decoder" has ../err "^$note"
check "decoder in the plan" has ../out '"decoder": "taesd"'

# ---- decode ----
sha=$(sed -n 's/.*"image_sha256":\["\([0-9a-f]*\)".*/\1/p' ../flat)
decoded() { # decoded NAME ARGS...: decodes l.safetensors; the image must equal the generated one
    expect 0 "$@" -o c.png
    check "same image" has ../err "sha256 $sha"
}
decoded "decode with --taesd" decode l.safetensors --taesd ../taef1
decoded "decode with --taesd and --model" decode l.safetensors --taesd ../taef1 -m "$model"
expect 0 "convert the tiny decoder to GGUF" convert ../taef1 -o tiny.gguf --type q8_0 -q
decoded "decode with --taesd" decode l.safetensors --taesd tiny.gguf
expect 0 "plan of the latent" plan l.safetensors --taesd ../taef1 --json
tr -d ' \n' <../out >../flat
least=$(sed 's/.*"least":{"vram_bytes":0,"ram_bytes":\([0-9]*\)}.*/\1/' ../flat)
decoded "decode with the smallest budget" decode l.safetensors --taesd ../taef1 --max-ram "${least}B"
expect 4 "decode with one byte less" decode l.safetensors --taesd ../taef1 --max-ram $((least - 1))B -o d.png
check "no image is written" absent d.png

# ---- errors: exit code | command line | pattern of the error message ----
while IFS='|' read -r code line pattern; do
    # shellcheck disable=SC2086
    eval "expect $code '$line' $line -o d.png"
    check "error message" has ../err "^sluice: .*$pattern"
    check "no image is written" absent d.png
done <<'END'
3|decode l.safetensors --taesd ../taesd|does not fit this model
3|decode l.safetensors --taesd ../taesd -m "$model"|found 4 in the tiny decoder, expected 16 as in the autoencoder
3|decode l.safetensors --vae ../taef1|found tiny decoder (taesd), expected autoencoder (.*for --vae
3|decode l.safetensors -m ../taef1|found a tiny decoder (taesd), which is used only with --taesd
3|decode l.safetensors --taesd "$model/vae"|found autoencoder (vae_kl), expected tiny decoder (.*for --taesd
3|generate -m "$model" -p x --taesd ../taesd|found 4 in the tiny decoder
3|generate -m ../taef1 -p x --taesd ../taef1|has no
2|decode l.safetensors|--vae PATH or --taesd PATH
END
expect 2 "plan --family with --taesd" plan --family zimage --taesd ../taef1

echo "$passed passed, $failed failed"
[ $failed = 0 ]
