#!/bin/sh
# Beside stable-diffusion.cpp and diffusers: the same prompt with the same made-up Z-Image (published width, 6 layers, bf16) on this
# machine's processor in f32, tool by tool in every round. Prints a table in markdown, minimum / median in seconds.
#
#   PYTHON=venv/bin/python SD_SOURCE=URL SD_COMMIT=HASH sh bench/peers.sh DIR [ROUNDS [SIZE...]] >table.md
#
# PYTHON has torch, diffusers, transformers and accelerate. SD_SOURCE is stable-diffusion.cpp's git repository, of which SD_COMMIT is
# fetched, or a folder with its source; it is built in DIR twice, as it comes and with its tuned products, and the latter runs with flash
# attention. Either may be "none": its columns stay empty. DIR keeps model and builds for the next time: 10 GB.
set -eu
cd "$(dirname "$0")/.."
sluice=${SLUICE:-build/release/sluice}
threads=${THREADS:-$(nproc)}
prompt="a red fox in the snow"
steps=${STEPS:-3}
layers=6
text_layers=4

refuse() {
    echo "peers.sh: $1" >&2
    exit 2
}
[ $# -ge 1 ] || refuse "no folder to work in was given: sh bench/peers.sh DIR [ROUNDS [SIZE...]]"
[ -x "$sluice" ] || refuse "there is no $sluice: make builds it, SLUICE names another"
python=${PYTHON:-}
[ -n "$python" ] || refuse "PYTHON is not set: a Python with torch, diffusers, transformers and accelerate, or none"
sd_source=${SD_SOURCE:-}
[ -n "$sd_source" ] || refuse "SD_SOURCE is not set: stable-diffusion.cpp's repository or a folder with its source, or none"
[ "$python" != none ] || [ "$sd_source" = none ] || [ -f "$1/transformer.safetensors" ] ||
    refuse "PYTHON is none: stable-diffusion.cpp's file of the model is made with it"
[ "$python" = none ] || "$python" -c "import torch, diffusers, transformers, accelerate" 2>/dev/null ||
    refuse "$python lacks torch, diffusers, transformers or accelerate"
case $steps in
'' | *[!0-9]* | 0 | 1) refuse "STEPS cannot be used: found '$steps', expected 2 or more, for the first is not counted" ;;
esac
mkdir -p "$1"
dir=$(cd "$1" && pwd)
rounds=${2:-3}
case $rounds in '' | *[!0-9]* | 0) refuse "the number of rounds cannot be used: found '$rounds', expected 1 or more" ;; esac
shift $(($# > 2 ? 2 : $#))
sizes=${*:-256 512}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# ---- what is compared ----

fetch_sd() {
    [ -d "$dir/sd" ] && return
    rm -rf "$dir/sd.part"
    if [ -d "$sd_source" ]; then
        cp -r "$sd_source" "$dir/sd.part"
    else
        [ -n "${SD_COMMIT:-}" ] || refuse "SD_COMMIT is not set: the commit of $sd_source to build"
        git clone --quiet "$sd_source" "$dir/sd.part" && git -C "$dir/sd.part" checkout --quiet "$SD_COMMIT" &&
            git -C "$dir/sd.part" submodule --quiet update --init --recursive ||
            refuse "stable-diffusion.cpp could not be fetched from $sd_source at $SD_COMMIT (SD_SOURCE=none goes without)"
    fi
    # How many layers Z-Image has, and which of the text encoder's it reads, are constants there.
    set_constant z_image.hpp num_layers 30 $layers
    set_constant z_image.hpp num_refiner_layers 2 1
    set_constant conditioner.hpp out_layers '{35}' "{$((text_layers - 1))}"
    mv "$dir/sd.part" "$dir/sd"
}
set_constant() { # FILE NAME WAS BECOMES
    file=$dir/sd.part/src/$1
    grep -q "$2 *= $3;" "$file" 2>/dev/null || refuse "this commit of stable-diffusion.cpp has no '$2 = $3' in src/$1: take another"
    sed -i "s/\($2 *= \)$3;/\1$4;/" "$file"
}
build_sd() { # NAME OPTION...
    [ -x "$dir/$1/bin/sd-cli" ] && return
    name=$1
    shift
    { cmake -S "$dir/sd" -B "$dir/$name" "$@" && cmake --build "$dir/$name" -j "$(nproc)" --target sd-cli; } >"$dir/$name.log" 2>&1 ||
        refuse "stable-diffusion.cpp could not be built: $dir/$name.log"
}
if [ "$sd_source" != none ]; then
    for tool in cmake git c++; do command -v $tool >/dev/null || refuse "$tool is missing, which building stable-diffusion.cpp takes"; done
    fetch_sd
    build_sd sd-default
    build_sd sd-tuned -DGGML_LLAMAFILE=ON
fi
model=$dir/model
[ -d "$model" ] || "$sluice" bench checkpoint zimage "$model" --seed 7 --no-progress -q \
    --dims layers=$layers,refiners=1,text_layers=$text_layers
# It reads no shards, nor this model's q, k and v apart.
if [ "$sd_source" != none ]; then
    [ -f "$dir/text_encoder.safetensors" ] ||
        "$sluice" convert "$model/text_encoder" -o "$dir/text_encoder.safetensors" --type bf16 --no-progress -q >/dev/null
    [ -f "$dir/transformer.safetensors" ] || {
        "$python" bench/peers_fuse.py "$model/transformer" "$dir/transformer.part" &&
            mv "$dir/transformer.part" "$dir/transformer.safetensors"
    }
fi

# ---- one run of each: lines "SIZE TOOL PART SECONDS" ----

now() { date +%s.%N; }
failed() {
    tail -n 5 "$work/log" >&2
    refuse "$1 failed at $size x $size: its last lines are above"
}
ours() {
    "$sluice" generate -m "$model" -p "$prompt" -W "$size" -H "$size" --steps $steps --seed 1 --device cpu -t "$threads" -q \
        --no-progress -o "$work/ours.png" --report "$work/report.json" >"$work/log" 2>&1 || failed sluice
    tr -d ' \n' <"$work/report.json" | sed 's/.*"measured"://' >"$work/measured"
    for part in text decode; do
        echo "$part $(sed 's/.*"name":"'$part'",[^}]*"seconds":\([^,]*\),"compute_seconds".*/\1/' "$work/measured")"
    done
    grep -o '"sigma":[^,]*,"seconds":[^,]*' "$work/measured" | sed '1d; s/.*:/step /'
}
sd() { # BUILD FLAG...
    build=$1
    shift
    "$dir/$build/bin/sd-cli" --diffusion-model "$dir/transformer.safetensors" --llm "$dir/text_encoder.safetensors" \
        --vae "$model/vae/diffusion_pytorch_model.safetensors" --type f32 -p "$prompt" -W "$size" -H "$size" --steps $steps --seed 1 \
        --cfg-scale 1 -t "$threads" -v -o "$work/sd.png" "$@" >"$work/log" 2>&1 || failed stable-diffusion.cpp
    tr '\r' '\n' <"$work/log" >"$work/lines"
    sed -n 's/.*get_learned_condition completed, taking \([0-9.]*\)s.*/text \1/p' "$work/lines"
    sed -n 's/.*decode_first_stage completed, taking \([0-9.]*\)s.*/decode \1/p' "$work/lines"
    grep -oE "[0-9]+/$steps - [0-9.]+(s/it|it/s)" "$work/lines" | sort -u | sed '/^1\//d; s/.* - //' |
        awk '/it\/s/ { print "step", 1 / $0; next } { print "step", $0 + 0 }'
}
diffusers() {
    "$python" bench/peers_diffusers.py "$model" "$size" $steps "$threads" "$prompt" "$work/diffusers.png" >"$work/out" 2>"$work/log" ||
        failed diffusers
    cat "$work/out"
}
# used: the processor's seconds of all that this shell has waited for. No subshell asks, for it has waited for nothing.
processor() {
    times >"$work/processor"
    used=$(sed -n '2s/[ms]/ /gp' "$work/processor" | awk '{ print 60 * $1 + $2 + 60 * $3 + $4 }')
}
run() { # NAME COMMAND...: its parts and all of it
    name=$1
    shift
    processor
    before=$used
    began=$(now)
    "$@" >"$work/parts"
    ended=$(now)
    processor
    echo "run $began $ended processor $before $used" | awk '{ print $1, $3 - $2; print $4, $6 - $5 }' >>"$work/parts"
    sed "s/^/$size $name /" "$work/parts" >>"$work/times"
}

# ---- rounds ----

find "$dir" -name '*.safetensors' -exec cat {} + >/dev/null
load=$(cut -d' ' -f1 /proc/loadavg)
: >"$work/times"
for round in $(seq "$rounds"); do
    for size in $sizes; do
        echo "round $round of $rounds, $size x $size" >&2
        run ours ours
        [ "$sd_source" = none ] || run sd sd sd-default
        [ "$sd_source" = none ] || run sd-tuned sd sd-tuned --diffusion-fa
        [ "$python" = none ] || run diffusers diffusers
    done
done

# ---- the table ----

version_of_sd() {
    [ "$sd_source" = none ] && echo "none was given: its columns are empty" && return
    echo "$sd_source ${SD_COMMIT:-} with $layers layers; weights in f32 (\`--type f32\`); tuned: \`-DGGML_LLAMAFILE=ON\`, \`--diffusion-fa\`"
}
version_of_diffusers() {
    [ "$python" = none ] && echo "none was given: its column is empty" && return
    "$python" -c "import torch, diffusers, transformers
print(f'{diffusers.__version__}, torch {torch.__version__}, transformers {transformers.__version__}; torch_dtype=float32')"
}
cat <<END
# Beside stable-diffusion.cpp and diffusers, $(date -u +%F)

- machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $threads threads, load of others and ours $load before,
  $(cut -d' ' -f1 /proc/loadavg) after
- ours: $("$sluice" --version 2>&1 | head -n 1), $(git rev-parse --short HEAD 2>/dev/null || echo "no commit")
- stable-diffusion.cpp: $(version_of_sd)
- diffusers: $(version_of_diffusers)
- model: \`sluice bench checkpoint zimage DIR --dims layers=$layers,refiners=1,text_layers=$text_layers\`; bf16 in
  files, f32 arithmetic, files in the page cache
- command: \`STEPS=$steps sh bench/peers.sh DIR $rounds $(echo $sizes)\`, everybody's are in it; the first step is left out

Seconds, minimum / median of $rounds rounds. The text encoder's time holds the reading of its weights with ours; a run is
a process from its start to the picture, and loads everything.

| picture | what | ours | sd.cpp | sd.cpp, tuned | diffusers |
|---|---|---|---|---|---|
END
sort -s -k1,3 -k4,4g "$work/times" | awk -v sizes="$sizes" '
    { key = $1 " " $2 " " $3; value[key, n[key]++] = $4 }
    function cell(key, c) {
        if (!(c = n[key])) return "-"
        return sprintf("%.2f / %.2f", value[key, 0], (value[key, int((c - 1) / 2)] + value[key, int(c / 2)]) / 2)
    }
    END {
        split("step text decode run processor", part, " ")
        name["step"] = "a step"; name["text"] = "text encoder"; name["decode"] = "decoder"; name["run"] = "whole run"
        name["processor"] = "its processor seconds"
        split("ours sd sd-tuned diffusers", tool, " ")
        many = split(sizes, size, " ")
        for (i = 1; i <= many; i++)
            for (p = 1; p <= 5; p++) {
                row = "| " size[i] "x" size[i] " | " name[part[p]] " |"
                for (t = 1; t <= 4; t++) row = row " " cell(size[i] " " tool[t] " " part[p]) " |"
                print row
            }
    }'
