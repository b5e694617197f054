#!/bin/sh
# Tests a model of published size with random weights (zimage: 20.5 GB, flux: 33.7 GB, written to DIR if missing):
# memory and time of one step at 256x256 with 4 GiB and with the minimum budget (the images must be equal), and at
# 1024x1024 with the minimum budget.
#   sh bench/full_size.sh DIR [PROGRAM [FAMILY]]          takes minutes, and disk space for the model
set -eu
model=$1
sluice=${2:-build/release/sluice}
family=${3:-zimage}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_WAIT_POLICY=passive
prompt="a red fox in the snow"
[ -d "$model" ] || "$sluice-dev" checkpoint "$family" "$model" --seed 5
[ "$(du -s -B1 "$model" | cut -f1)" -ge "$(du -s -B1 --apparent-size "$model" | cut -f1)" ] || echo "warning: $model contains sparse files"
echo "opening the headers of $(ls "$model"/*/*.safetensors | wc -l) files: $(/usr/bin/time -f %e "$sluice" inspect "$model" 2>&1 >/dev/null) s"

# draw WIDTH HEIGHT BUDGET: generates with one step, prints a line, leaves the report
draw() {
    report=$work/$1x$2-$3.json
    seconds=$(/usr/bin/time -f '%e %M' "$sluice" generate -m "$model" -p "$prompt" -W "$1" -H "$2" --steps 1 --seed 1 \
        --device cpu --max-ram "$3" -q --no-progress -o "$work/fox.png" --report "$report" 2>&1)
    planned=$(tr -d '\n' <"$report" | sed 's/.*"peak": *{[^}]*"ram_bytes": *\([0-9]*\).*/\1/')
    echo "$1x$2 --max-ram $3: ${seconds% *} s, VmHWM $((${seconds#* } / 1024)) MiB, planned $((planned >> 20)) MiB"
}
# least WIDTH HEIGHT: the minimum budget according to `sluice plan`
least() {
    "$sluice" plan --device cpu -m "$model" -p "$prompt" -W "$1" -H "$2" --steps 1 --json |
        tr -d '\n' | sed 's/.*"least": *{[^}]*"ram_bytes": *\([0-9]*\).*/\1B/'
}
picture() { tr -d '\n ' <"$1" | sed 's/.*"image_sha256":\["\([0-9a-f]*\).*/\1/'; }

draw 256 256 4G
first=$(picture "$report")
draw 256 256 "$(least 256 256)"
[ "$first" = "$(picture "$report")" ] && echo "the images are equal" || echo "THE IMAGES DIFFER"
draw 1024 1024 "$(least 1024 1024)"
