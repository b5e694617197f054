#!/bin/sh
# A family at its published size, with random weights (zimage: 20.5 GB, flux: 33.7 GB, written to DIR unless it is there): what a
# step takes in memory and time, at 256x256 within 4 GiB and at its least budget (the same picture), and at 1024x1024 at the least.
#   sh bench/full_size.sh DIR [PROGRAM [FAMILY]]          minutes, and a disk with room for it
set -eu
model=$1
sluice=${2:-build/release/sluice}
family=${3:-zimage}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_WAIT_POLICY=passive
prompt="a red fox in the snow"
[ -d "$model" ] || "$sluice" bench checkpoint "$family" "$model" --seed 5
[ "$(du -s -B1 "$model" | cut -f1)" -ge "$(du -s -B1 --apparent-size "$model" | cut -f1)" ] || echo "$model has holes"
echo "headers of $(ls "$model"/*/*.safetensors | wc -l) files: $(/usr/bin/time -f %e "$sluice" inspect "$model" 2>&1 >/dev/null) s"

# draw WIDTH HEIGHT BUDGET: one step; prints a line, leaves the report
draw() {
    report=$work/$1x$2-$3.json
    seconds=$(/usr/bin/time -f '%e %M' "$sluice" generate -m "$model" -p "$prompt" -W "$1" -H "$2" --steps 1 --seed 1 \
        --device cpu --max-ram "$3" -q --no-progress -o "$work/fox.png" --report "$report" 2>&1)
    planned=$(tr -d '\n' <"$report" | sed 's/.*"peak": *{[^}]*"ram_bytes": *\([0-9]*\).*/\1/')
    echo "$1x$2 --max-ram $3: ${seconds% *} s, VmHWM $((${seconds#* } / 1024)) MiB of $((planned >> 20)) MiB planned"
}
# least WIDTH HEIGHT: the least budget, as the plan names it
least() {
    "$sluice" plan --device cpu -m "$model" -p "$prompt" -W "$1" -H "$2" --steps 1 --json |
        tr -d '\n' | sed 's/.*"least": *{[^}]*"ram_bytes": *\([0-9]*\).*/\1B/'
}
picture() { tr -d '\n ' <"$1" | sed 's/.*"image_sha256":\["\([0-9a-f]*\).*/\1/'; }

draw 256 256 4G
first=$(picture "$report")
draw 256 256 "$(least 256 256)"
[ "$first" = "$(picture "$report")" ] && echo "the same picture" || echo "ANOTHER PICTURE"
draw 1024 1024 "$(least 1024 1024)"
