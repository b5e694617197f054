#!/bin/sh
# Compares Sluice with stable-diffusion.cpp and diffusers: the same prompt with the same Z-Image (published width, 6
# layers, random weights in bf16) on this machine's CPU in f32, alternating in every round. Prints a Markdown table with
# minimum / median times in seconds.
#
#   PYTHON=venv/bin/python SD_SOURCE=URL SD_COMMIT=HASH sh bench/peers.sh DIR [ROUNDS [SIZE...]] >table.md
#
# PYTHON has torch, diffusers, transformers and accelerate. SD_SOURCE is the git repository of stable-diffusion.cpp,
# from which SD_COMMIT is fetched, or a folder with its source. It is built in DIR twice, with default options and with
# its tuned matrix products; the latter runs with flash attention. Either may be "none", which leaves its columns empty.
# DIR keeps the model and the builds for later runs: 10 GB.
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
[ $# -ge 1 ] || refuse "no working folder: sh bench/peers.sh DIR [ROUNDS [SIZE...]]"
[ -x "$sluice" ] || refuse "there is no $sluice: run make, or set SLUICE to another program"
python=${PYTHON:-}
[ -n "$python" ] || refuse "PYTHON is not set: expected a Python with torch, diffusers, transformers and accelerate, or none"
sd_source=${SD_SOURCE:-}
[ -n "$sd_source" ] || refuse "SD_SOURCE is not set: expected stable-diffusion.cpp's repository or a folder with its source, or none"
[ "$python" != none ] || [ "$sd_source" = none ] || [ -f "$1/transformer.safetensors" ] ||
    refuse "PYTHON is none, but it is needed to convert the model for stable-diffusion.cpp"
[ "$python" = none ] || "$python" -c "import torch, diffusers, transformers, accelerate" 2>/dev/null ||
    refuse "$python lacks torch, diffusers, transformers or accelerate"
case $steps in
'' | *[!0-9]* | 0 | 1) refuse "invalid STEPS: found '$steps', expected 2 or more (the first step is not counted)" ;;
esac
mkdir -p "$1"
dir=$(cd "$1" && pwd)
rounds=${2:-3}
case $rounds in '' | *[!0-9]* | 0) refuse "invalid number of rounds: found '$rounds', expected 1 or more" ;; esac
shift $(($# > 2 ? 2 : $#))
sizes=${*:-256 512}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# ---- builds and model files ----

fetch_sd() {
    [ -d "$dir/sd" ] && return
    rm -rf "$dir/sd.part"
    if [ -d "$sd_source" ]; then
        cp -r "$sd_source" "$dir/sd.part"
    else
        [ -n "${SD_COMMIT:-}" ] || refuse "SD_COMMIT is not set: the commit of $sd_source to build"
        git clone --quiet "$sd_source" "$dir/sd.part" && git -C "$dir/sd.part" checkout --quiet "$SD_COMMIT" &&
            git -C "$dir/sd.part" submodule --quiet update --init --recursive ||
            refuse "cannot fetch stable-diffusion.cpp from $sd_source at $SD_COMMIT (SD_SOURCE=none leaves it out)"
    fi
    # The number of layers and the text encoder layers that Z-Image uses are constants in the source.
    set_constant z_image.hpp num_layers 30 $layers
    set_constant z_image.hpp num_refiner_layers 2 1
    set_constant conditioner.hpp out_layers '{35}' "{$((text_layers - 1))}"
    mv "$dir/sd.part" "$dir/sd"
}
set_constant() { # FILE NAME WAS BECOMES
    file=$dir/sd.part/src/$1
    grep -q "$2 *= $3;" "$file" 2>/dev/null || refuse "this commit of stable-diffusion.cpp has no '$2 = $3' in src/$1: choose another"
    sed -i "s/\($2 *= \)$3;/\1$4;/" "$file"
}
build_sd() { # NAME OPTION...
    [ -x "$dir/$1/bin/sd-cli" ] && return
    name=$1
    shift
    { cmake -S "$dir/sd" -B "$dir/$name" "$@" && cmake --build "$dir/$name" -j "$(nproc)" --target sd-cli; } >"$dir/$name.log" 2>&1 ||
        refuse "cannot build stable-diffusion.cpp: see $dir/$name.log"
}
if [ "$sd_source" != none ]; then
    for tool in cmake git c++; do command -v $tool >/dev/null || refuse "$tool is missing; stable-diffusion.cpp needs it to build"; done
    fetch_sd
    build_sd sd-default
    build_sd sd-tuned -DGGML_LLAMAFILE=ON
fi
model=$dir/model
[ -d "$model" ] || "$sluice-dev" checkpoint zimage "$model" --seed 7 --no-progress -q \
    --dims layers=$layers,refiners=1,text_layers=$text_layers
# stable-diffusion.cpp reads neither shards nor separate q, k and v of this model.
if [ "$sd_source" != none ]; then
    [ -f "$dir/text_encoder.safetensors" ] ||
        "$sluice" convert "$model/text_encoder" -o "$dir/text_encoder.safetensors" --type bf16 --no-progress -q >/dev/null
    [ -f "$dir/transformer.safetensors" ] || {
        "$python" bench/peers_fuse.py "$model/transformer" "$dir/transformer.part" &&
            mv "$dir/transformer.part" "$dir/transformer.safetensors"
    }
fi

# ---- one run of each program: lines "SIZE TOOL PART SECONDS" ----

now() { date +%s.%N; }
failed() {
    tail -n 5 "$work/log" >&2
    refuse "$1 failed at $size x $size: see its last lines above"
}
run_sluice() {
    "$sluice" generate -m "$model" -p "$prompt" -W "$size" -H "$size" --steps $steps --seed 1 --device cpu -t "$threads" -q \
        --no-progress -o "$work/sluice.png" --report "$work/report.json" >"$work/log" 2>&1 || failed sluice
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
# used: CPU seconds of all child processes waited for. Not called in a subshell, which has no children of its own yet.
cpu_time() {
    times >"$work/cpu_time"
    used=$(sed -n '2s/[ms]/ /gp' "$work/cpu_time" | awk '{ print 60 * $1 + $2 + 60 * $3 + $4 }')
}
run() { # NAME COMMAND...: the times of its parts and of the whole run
    name=$1
    shift
    cpu_time
    before=$used
    began=$(now)
    "$@" >"$work/parts"
    ended=$(now)
    cpu_time
    echo "run $began $ended cpu $before $used" | awk '{ print $1, $3 - $2; print $4, $6 - $5 }' >>"$work/parts"
    sed "s/^/$size $name /" "$work/parts" >>"$work/times"
}

# ---- rounds ----

find "$dir" -name '*.safetensors' -exec cat {} + >/dev/null
load=$(cut -d' ' -f1 /proc/loadavg)
: >"$work/times"
for round in $(seq "$rounds"); do
    for size in $sizes; do
        echo "round $round of $rounds, $size x $size" >&2
        run sluice run_sluice
        [ "$sd_source" = none ] || run sd sd sd-default
        [ "$sd_source" = none ] || run sd-tuned sd sd-tuned --diffusion-fa
        [ "$python" = none ] || run diffusers diffusers
    done
done

# ---- the table ----

version_of_sd() {
    [ "$sd_source" = none ] && echo "not measured (SD_SOURCE=none)" && return
    echo "$sd_source ${SD_COMMIT:-} with $layers layers; f32 weights (\`--type f32\`); tuned: \`-DGGML_LLAMAFILE=ON\`, \`--diffusion-fa\`"
}
version_of_diffusers() {
    [ "$python" = none ] && echo "not measured (PYTHON=none)" && return
    "$python" -c "import torch, diffusers, transformers
print(f'{diffusers.__version__}, torch {torch.__version__}, transformers {transformers.__version__}; torch_dtype=float32')"
}
cat <<END
# Comparison with stable-diffusion.cpp and diffusers, $(date -u +%F)

- machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $threads threads, load average $load before,
  $(cut -d' ' -f1 /proc/loadavg) after
- Sluice: $("$sluice" --version 2>&1 | head -n 1), $(git rev-parse --short HEAD 2>/dev/null || echo "no commit")
- stable-diffusion.cpp: $(version_of_sd)
- diffusers: $(version_of_diffusers)
- model: \`sluice-dev checkpoint zimage DIR --dims layers=$layers,refiners=1,text_layers=$text_layers\`; bf16
  files in the page cache, f32 arithmetic
- command: \`STEPS=$steps sh bench/peers.sh DIR $rounds $(echo $sizes)\`, which runs all programs; the first step is not counted

Seconds, minimum / median of $rounds rounds. Sluice's text encoder time includes reading its weights. A whole run is a
process from start to image, including loading.

| image | part | Sluice | sd.cpp | sd.cpp, tuned | diffusers |
|---|---|---|---|---|---|
END
sort -s -k1,3 -k4,4g "$work/times" | awk -v sizes="$sizes" '
    { key = $1 " " $2 " " $3; value[key, n[key]++] = $4 }
    function cell(key, c) {
        if (!(c = n[key])) return "-"
        return sprintf("%.2f / %.2f", value[key, 0], (value[key, int((c - 1) / 2)] + value[key, int(c / 2)]) / 2)
    }
    END {
        split("step text decode run cpu", part, " ")
        name["step"] = "one step"; name["text"] = "text encoder"; name["decode"] = "decoder"; name["run"] = "whole run"
        name["cpu"] = "whole run, CPU time"
        split("sluice sd sd-tuned diffusers", tool, " ")
        many = split(sizes, size, " ")
        for (i = 1; i <= many; i++)
            for (p = 1; p <= 5; p++) {
                row = "| " size[i] "x" size[i] " | " name[part[p]] " |"
                for (t = 1; t <= 4; t++) row = row " " cell(size[i] " " tool[t] " " part[p]) " |"
                print row
            }
    }'
