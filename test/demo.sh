#!/bin/sh
# make demo: a gallery drawn under a memory budget that is smaller than the model (bench/gallery.c).
# Without models/demo: one image from a new model with random weights, which shows noise.
set -eu
sluice=$1
folder=$2
mkdir -p "$folder"
if [ -f models/demo/model_index.json ]; then
    exec "$(dirname "$sluice")/gallery" models/demo "$folder/gallery.png"
fi
model=$folder/model
prompt="a red fox in the snow"
rm -rf "$model"
echo "writing a small model with random weights to $model"
"$sluice" bench checkpoint zimage "$model" -q --no-progress --seed 1 --dims heads=6,axis0=16,axis1=24,axis2=24,\
layers=12,refiners=2,hidden=512,text_heads=8,text_key_heads=2,text_head_dim=64,text_ff=1024,text_layers=6,\
vocabulary=512,vae0=64,vae1=64,vae2=32,vae3=32,vae_groups=8
printf '{"width": 256, "height": 192, "steps": 8, "cfg_scale": 2}\n' >"$model/sluice.json"
# Midway between the least budget and the size with all blocks resident.
all=$("$sluice" plan --device cpu -m "$model" -p "$prompt" --max-ram 1G --json | sed -n 's/^ *"ram_bytes": \([0-9]*\).*/\1/p' | sed -n 2p)
least=$("$sluice" plan --device cpu -m "$model" -p "$prompt" --max-ram 1G --json | sed -n 's/^ *"ram_bytes": \([0-9]*\).*/\1/p' | sed -n 3p)
budget=$(((all + least) / 2))
echo "all blocks resident: $((all >> 20)) MiB; least budget: $((least >> 20)) MiB; this run: $((budget >> 20)) MiB"
"$sluice" generate --device cpu -m "$model" -p "$prompt" --seed 42 --max-ram "${budget}B" -o "$folder/demo.png" --report "$folder/report.json"
moved=$(sed -n 's/^ *"bytes_moved": \([0-9]*\).*/\1/p' "$folder/report.json" | sed -n 2p)
peak=$(sed -n 's/^ *"ram_bytes": \([0-9]*\).*/\1/p' "$folder/report.json" | tail -1)
echo "streamed $((moved >> 20)) MiB of weights while denoising; peak memory of the process: $((peak >> 20)) MiB"
echo "image: $folder/demo.png"
echo "The image is noise: the weights are random, because the trained model models/demo is missing."
