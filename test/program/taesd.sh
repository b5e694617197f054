#!/bin/sh
# --taesd: a tiny decoder in the autoencoder's place, made up here, as a user meets it.
#
# usage: taesd.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/harness.sh"

rm -rf ../taef1 ../taesd
expect 0 "one is made" bench checkpoint taesd ../taef1 --dims taesd_channels=16 --seed 3 -q
check "in two files" [ "$(cd ../taef1 && echo *)" = "config.json diffusion_pytorch_model.safetensors" ]
expect 0 "and another model's" bench checkpoint taesd ../taesd --dims latent_channels=4,taesd_channels=16 -q
expect 0 "what can be made" bench checkpoint help
check "is listed" has ../out '^taesd: --dims'
expect 0 "what it is" inspect ../taef1
check "is known" has ../out '^taesd: taesd, 67 tensors'
check "nothing is left over" lacks ../out '^unknown'

# ---- drawn with ----
said='decoded with the tiny decoder (taesd): the image differs slightly'
draw 0 "drawn" -p fox -o a.png --taesd ../taef1 --save-latent l.safetensors --report r.json
check "a line says so" has ../err "^$said"
check "and the picture" has a.png 'Size: [0-9x]*, VAE Decoder: TAESD, Model: '
tr -d ' \n' <r.json >../flat
check "and the report" has ../flat '"decoder":"taesd"'
check "its stage" has ../flat '"name":"decode","family":"taesd"'
draw 0 "as stable-diffusion.cpp calls it" -p fox -o b.png --tae ../taef1
check "the same file" cmp -s a.png b.png
draw 0 "with the autoencoder" -p fox -o b.png --save-latent m.safetensors
check "nothing is said" lacks ../err "$said"
check "nor in the picture" lacks b.png 'VAE Decoder'
check "another picture" sh -c '! cmp -s a.png b.png'
check "of the same latent" cmp -s l.safetensors m.safetensors
draw 0 "not decoded" -p fox --taesd ../taef1 --no-decode --save-latent m.safetensors
check "nothing is said" lacks ../err "$said"
expect 0 "planned" plan -m "$model" --taesd ../taef1 --json
check "a line says so" has ../err "^$said"
check "and the plan" has ../out '"decoder": "taesd"'

# ---- a latent alone ----
sha=$(sed -n 's/.*"image_sha256":\["\([0-9a-f]*\)".*/\1/p' ../flat)
decoded() { # decoded NAME ARGS...: l.safetensors, to the picture that was drawn
    expect 0 "$@" -o c.png
    check "the same picture" has ../err "sha256 $sha"
}
decoded "it decodes" decode l.safetensors --taesd ../taef1
decoded "beside a model" decode l.safetensors --taesd ../taef1 -m "$model"
expect 0 "as GGUF" convert ../taef1 -o tiny.gguf --type q8_0 -q
decoded "it decodes" decode l.safetensors --taesd tiny.gguf
expect 0 "the least" plan l.safetensors --taesd ../taef1 --json
tr -d ' \n' <../out >../flat
least=$(sed 's/.*"least":{"vram_bytes":0,"ram_bytes":\([0-9]*\)}.*/\1/' ../flat)
decoded "is enough" decode l.safetensors --taesd ../taef1 --max-ram "${least}B"
expect 4 "and a byte less is not" decode l.safetensors --taesd ../taef1 --max-ram $((least - 1))B -o d.png
check "nothing is written" absent d.png

# ---- refused ----
while IFS='|' read -r code line pattern; do
    # shellcheck disable=SC2086
    eval "expect $code '$line' $line -o d.png"
    check "says why" has ../err "^sluice: .*$pattern"
    check "nothing is written" absent d.png
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
expect 2 "nothing to plan by" plan --family zimage --taesd ../taef1

echo "$passed passed, $failed failed"
[ $failed = 0 ]
