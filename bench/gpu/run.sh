#!/bin/sh
# Checks and benchmarks on a machine with a GPU, unattended. Each part writes its result as a line of
# OUT_DIR/results.jsonl before the next part starts. A part that fails or exceeds its time does not stop the rest. A
# part that has a result is skipped, so an interrupted run continues. Finally writes OUT_DIR/GPU-DATE.json with all
# parts, prints tables, and answers each question with PASS, FAIL or UNKNOWN.
# sh run.sh OUT_DIR [--quick|check|bench|all|PART...] [--minutes N] [--again] [--small]
# --quick: the important parts, within 30 minutes. PART: name or prefix of a part (bench.zimage). --minutes: time
# limit, for machines that kill long commands. --again: repeats parts that have results. --small: tiny sizes, to try
# the script. Environment: MODEL, FLUX, SDXL and WAN are folders of random weights (20.5, 25, 7 and 3 GB), written if
# missing; default /tmp/sluice-zimage and so on; --quick writes only the first.
# Exit code: 0 all PASS; 1 a FAIL; 2 wrong arguments; 3 no FAIL, but an UNKNOWN (a part that has not run, a library
# that is missing, a machine that is not fit for timing); 4 no usable GPU, or its driver is too old.
# Parts run in order of importance: basic checks, bus and memory, computing compared with PyTorch, then the rest.
set -u
case ${1:-} in
"" | -*) sed -n '2,14s/^# *//p' "$0" && exit 2 ;;
esac
mkdir -p "$1" || exit 1
out=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")" || exit 1
wanted=
minutes=
again=
small=
quick=
zimage_steps=8
while [ $# -gt 0 ]; do
    case $1 in
    --minutes)
        case ${2:-} in "" | *[!0-9]*) echo "run.sh: --minutes takes a whole number" >&2 && exit 2 ;; esac
        minutes=$2 && shift
        ;;
    --again) again=1 ;;
    --small) small=--small ;;
    --quick)
        quick=1 zimage_steps=4
        wanted="$wanted check.fragments check.pipeline check.context check.algorithms check.int8 check.jit bench.bus bench.rates bench.library \
bench.zimage.all.b1 bench.zimage.9G.b1 bench.zimage.4G.b1 bench.overlap bench.ops.products bench.ops.attention bench.ops.int8 bench.ops.decoder \
bench.torch.products bench.torch.attention"
        ;;
    check) wanted="$wanted check." ;;
    bench) wanted="$wanted bench." ;;
    all) wanted="$wanted check. bench." ;;
    info | check.* | bench.*) wanted="$wanted $1" ;;
    *) echo "run.sh: unknown part $1: expected check, bench, or a name that starts with check. or bench." >&2 && exit 2 ;;
    esac
    shift
done
[ -n "$wanted" ] || wanted="check. bench."
[ -z "$quick" ] || minutes=${minutes:-30}
bin=./bin
[ -x $bin/gpu_results ] || { echo "run.sh: the programs are not built here: run make try-gpu, or run.sh of a bundle (make gpu-bundle)" >&2 && exit 2; }
results=$out/results.jsonl
log=$out/log.txt
rates=$out/rates.json
work=$(mktemp -d)
model=${MODEL:-/tmp/sluice-zimage}
flux=${FLUX:-/tmp/sluice-flux}
sdxl=${SDXL:-/tmp/sluice-sdxl}
wan=${WAN:-/tmp/sluice-wan}
modes=
torch=
python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null && torch=1
commit=$(cat commit 2>/dev/null || echo unknown)
deadline=
shortened=  # the current part has less time than it may need
unfinished= # parts that the time limit left out
[ -z "$minutes" ] || deadline=$(($(date +%s) + minutes * 60))
others= # background processes of this script
trap 'kill $others 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP
export OMP_WAIT_POLICY=passive
if [ -n "${NVIDIA_TF32_OVERRIDE:-}" ]; then
    echo "run.sh: ignores NVIDIA_TF32_OVERRIDE=$NVIDIA_TF32_OVERRIDE, which changes the precision and speed of convolutions"
    unset NVIDIA_TF32_OVERRIDE
fi

# ---- libraries ----

# Appends a folder to LD_LIBRARY_PATH unless it is listed already.
add_folder() {
    case ":${LD_LIBRARY_PATH:-}:" in
    *":$1:"*) ;;
    *) LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$1 ;;
    esac
}
# Finds the first of these library names in the dynamic linker's cache or in $folders; adds its folder to
# LD_LIBRARY_PATH.
look_for() {
    what=$1
    shift
    for name in "$@"; do
        path=$(ldconfig -p 2>/dev/null | sed -n "s|^[[:space:]]*$name .* => ||p" | head -1)
        for folder in $folders; do
            [ -z "$path" ] && [ -e "$folder/$name" ] && path=$folder/$name
        done
        [ -n "$path" ] || continue
        echo "$what: $path"
        add_folder "${path%/*}"
        return 0
    done
    echo "$what: not found"
    return 1
}
# PyTorch's wheels contain cuBLASLt and cuDNN in their own folders.
python_folders() {
    python3 -c 'import glob, sys
for path in sys.path:
    print("\n".join(sorted(glob.glob(path + "/nvidia/*/lib"))))' 2>/dev/null
}
wheels=$(python_folders)
folders=$(
    echo "${LD_LIBRARY_PATH:-}" | tr ':' '\n'
    ls -d /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib /usr/local/nvidia/lib64 /usr/local/nvidia/lib \
        /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/lib/wsl/lib 2>/dev/null
    echo "$wheels"
)
list_libraries() {
    look_for "driver" libcuda.so.1
    look_for "cuBLASLt" libcublasLt.so.13 libcublasLt.so.12
    look_for "NVRTC" libnvrtc.so.13 libnvrtc.so.12
    look_for "cuDNN" libcudnn.so.9
    # Libraries from a wheel may need other wheels' libraries, in versions that the system lacks.
    for folder in $wheels; do add_folder "$folder"; done
}

# ---- parts ----

print_log() { echo "$*" | tee -a "$log"; }
is_wanted() {
    for pattern in $wanted; do
        case $1 in "$pattern"*) return 0 ;; esac
    done
    return 1
}
has_result() { grep -q "\"part\": \"$1\"" "$results"; }
# begin PART SECONDS: returns 0 if the part is to run now; sets limit
begin() {
    is_wanted "$1" || return 1
    if [ -z "$again" ] && has_result "$1"; then
        print_log "$1: has a result"
        return 1
    fi
    limit=$2
    if [ -n "$deadline" ]; then
        left=$((deadline - $(date +%s)))
        [ $left -gt 15 ] || { print_log "$1: not begun, time limit reached" && unfinished="$unfinished $1" && return 1; }
        shortened=
        [ $left -ge "$limit" ] || { limit=$left && shortened=1; }
    fi
    : >"$work/log"
    began=$(date +%s.%N)
    part_ends=$(($(date +%s) + limit))
    return 0
}
# end PART EXIT [more arguments of gpu_results add]: stores and prints the result
end() {
    name=$1
    code=$2
    shift 2
    { echo "=== $name, exit $code" && cat "$work/log"; } >>"$log"
    if [ $code = 124 ] && [ -n "$shortened" ]; then
        print_log "$name: stopped by --minutes, will be repeated by the next run"
        unfinished="$unfinished $name"
        return
    fi
    seconds=$(echo "$began $(date +%s.%N)" | awk '{ printf "%.2f", $2 - $1 }')
    $bin/gpu_results add "$results" "$name" "$code" "$seconds" "$work/log" "$@" | tee -a "$log"
}
# timeout cannot run shell functions: demo applies $allowed itself
with_limit() {
    allowed=$1
    shift
    case $1 in
    demo) "$@" ;;
    *) timeout -k 10 "$allowed" "$@" ;;
    esac
}
limited() { timeout -k 10 "$limit" "$@"; }
# run PART SECONDS COMMAND...: the result is the exit code and output
run() {
    part=$1
    begin "$part" "$2" || return 0
    shift 2
    limited "$@" >"$work/log" 2>&1
    end "$part" $?
}
# measure PART SECONDS COMMAND...: stdout is JSON that becomes part of the result; a copy stays in $work/PART
measure() {
    part=$1
    begin "$part" "$2" || return 0
    shift 2
    limited "$@" >"$work/$part" 2>"$work/log"
    end "$part" $? --data "$work/$part"
}
skip() {
    begin "$1" 1 || return 0
    echo "SKIP $1: $2" >"$work/log"
    end "$1" 0 --status skipped "reason=$2"
}

# ---- functions for checks ----

passed=0
failed=0
late=
# expect WHAT CODE COMMAND...: expects this exit code, and for codes other than 0 exactly one line that starts with
# sluice:, as the last line
expect() {
    what=$1
    want=$2
    shift 2
    left=$((part_ends - $(date +%s)))
    [ $left -gt 0 ] || { late=1 && code=124 && return; }
    [ $left -le 120 ] || left=120
    : >"$work/stderr"
    with_limit $left "$@" >"$work/stdout" 2>"$work/stderr"
    code=$?
    good=0
    case "|$want|" in *"|$code|"*) good=1 ;; esac
    if [ $code != 0 ] && { [ "$(grep -c '^sluice: ' "$work/stderr")" != 1 ] || ! tail -1 "$work/stderr" | grep -q '^sluice: '; }; then good=0; fi
    if [ $good = 1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    [ $good = 1 ] && word=ok || word=FAILED
    echo "$word: $what: exit $code of $want: $(tail -1 "$work/stderr")"
}
sum() {
    [ -z "$late" ] || echo "the part's time limit was reached"
    echo "$passed passed, $failed failed"
    [ -z "$late" ] || return 124
    [ $failed = 0 ]
}
no_decode=
demo() { # demo STEPS FLAGS...: generates with the demo model
    steps=$1
    shift
    # shellcheck disable=SC2086
    timeout -k 10 "$allowed" "$bin/sluice" generate -m models/demo -p "two blue squares at the top on a yellow background" --device cuda --steps "$steps" \
        --seed 3 -q --no-progress --report "$work/report" -o "$work/demo.png" $no_decode "$@"
}
latent() { tr -d '\n ' <"$work/report" | sed -n 's/.*"latent_sha256":\["\([0-9a-f]*\).*/\1/p'; }
planned() { # planned peak|least FLAGS...: VRAM bytes of a run of demo
    which=$1
    shift
    # shellcheck disable=SC2086
    "$bin/sluice" plan -m models/demo -p "two blue squares at the top on a yellow background" --device cuda --json $no_decode "$@" |
        tr -d '\n' | sed "s/.*\"$which\": *{[^}]*\"vram_bytes\": *\([0-9]*\).*/\1/"
}

refusals() {
    passed=0
    failed=0
    late=
    expect "no such GPU" 2 demo 1 --device cuda:99
    expect "no such device" 2 demo 1 --device gpu
    expect "more memory than the GPU has" 2 demo 1 --max-vram 9999G
    expect "almost no memory" "2|4" demo 1 --max-vram 1M
    expect "an unsupported precision" 2 demo 1 --precision f16
    CUDA_VISIBLE_DEVICES= expect "no visible GPU" "$([ -n "$emulated" ] && echo 0 || echo 5)" demo 1
    expect "a plan without a GPU" 0 env CUDA_VISIBLE_DEVICES= "$bin/sluice" plan -m models/demo --device cuda
    sum
}

# fill MIB SECONDS [constantly]: another process allocates all GPU memory except MIB
fill() {
    "$bin/fill_gpu" "$@" >"$work/fill" 2>&1 &
    filler=$!
    others="$others $filler"
    for i in $(seq 100); do
        grep -q ready "$work/fill" && break
        sleep 0.1
    done
    echo "another program: $(cat "$work/fill")"
}
unfill() {
    kill "$filler" 2>/dev/null
    wait "$filler" 2>/dev/null
}
same() { # checks that a successful run has the same latent as the first
    [ "$code" = 0 ] || return 0
    if [ "$(latent)" = "$first" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $1: the latent differs"
    fi
}
# A second process leaves less and less GPU memory; then one allocates memory during a run. Each run must give the same
# result or fail with a one-line reason; afterwards the same result is generated again.
ladder() {
    passed=0
    failed=0
    late=
    expect "alone" 0 demo 4
    first=$(latent)
    least=$(planned least)
    mib=$((least >> 20))
    expect "alone, smallest budget" 0 demo 4 --max-vram "${least}B"
    same "alone, smallest budget"
    expect "one byte less" 4 demo 4 --max-vram "$((least - 1))B"
    for left in $((mib * 4)) $((mib + 1024)) $((mib + 600)) $((mib + 100)) $mib $((mib - 20)) $((mib / 2)) 300 100 20 0; do
        [ "$left" -ge 0 ] || continue
        fill "$left" 120
        expect "$left MiB left" "0|2|4|5" demo 4
        same "$left MiB left"
        expect "$left MiB left, smallest budget" "0|2|4|5" demo 4 --max-vram "${least}B"
        same "$left MiB left, smallest budget"
        unfill
    done
    expect "alone again" 0 demo 4
    same "alone again"
    # enough steps that the other process starts during the run
    [ -n "$emulated" ] && long=60 || long=3000
    expect "long run, alone" 0 demo "$long"
    first=$(latent)
    for i in 1 2 3 4; do
        (sleep "$i" && exec "$bin/fill_gpu" 0 60 constantly) >"$work/fill" 2>&1 &
        filler=$!
        others="$others $filler"
        expect "memory filled after $i s" "0|2|4|5" demo "$long"
        same "memory filled after $i s"
        unfill
    done
    expect "long run, alone again" 0 demo "$long"
    same "long run, alone again"
    sum
}

# sanitize TOOL PART SECONDS COMMAND...: runs NVIDIA's compute-sanitizer, which exits 99 for findings
sanitize() {
    tool=$1
    part=$2
    seconds=$3
    shift 3
    if [ -z "$sanitizer" ]; then
        skip "$part" "compute-sanitizer not found"
    else
        run "$part" "$seconds" "$sanitizer" --tool "$tool" --error-exitcode 99 "$@"
    fi
}

# ---- functions for benchmarks ----

# Writes 256 MB into a folder; prints MB per second.
write_rate() {
    begin_ms=$(date +%s%3N)
    dd if=/dev/zero of="$1/sluice-write-rate" bs=1M count=256 conv=fdatasync 2>/dev/null
    rm -f "$1/sluice-write-rate"
    echo $((256000 / ($(date +%s%3N) - begin_ms + 1)))
}
# checkpoint FAMILY FOLDER GB SMALL ABOUT DIMS: writes random weights of the family unless they exist; describes them in
# FOLDER/complete
checkpoint() {
    family=$1
    folder=$2
    gb=$3
    dims=$6
    about=$5
    if [ -e "$folder/complete" ]; then
        cat "$folder/complete"
        return 0
    fi
    rm -rf "$folder"
    mkdir -p "$(dirname "$folder")" || return 1
    free_gb=$(df -Pk "$(dirname "$folder")" | awk 'NR == 2 { printf "%d", $4 * 1024 / 1e9 }')
    if [ -n "$small" ]; then
        dims=$4
        about=tiny
    elif [ "$free_gb" -lt $((gb + 2)) ]; then
        [ "$family" = zimage ] || { echo "only $free_gb GB free for $folder" && return 77; }
        # a layer is 0.36 GB, a text encoder layer 0.2 GB, the rest 0.8 GB
        layers=$(((free_gb - 4) * 10 / 8))
        [ $layers -ge 3 ] || { echo "only $free_gb GB free for $folder" && return 77; }
        [ $layers -le 30 ] || layers=30
        dims="layers=$layers,text_layers=$layers"
        about="$layers layers each instead of 30 and 36, because only $free_gb GB of disk were free"
    elif [ -n "$quick" ] && [ "$(write_rate "$(dirname "$folder")")" -lt 100 ]; then
        dims="layers=8,text_layers=8"
        about="8 layers each instead of 30 and 36, because the disk is slow"
    fi
    "$bin/sluice-dev" checkpoint "$family" "$folder" --seed 5 --no-progress ${dims:+--dims "$dims"} || return 1
    echo "$about" >"$folder/complete"
    cat "$folder/complete"
}
zimage_checkpoint() {
    checkpoint zimage "$model" 20 \
        heads=8,layers=4,refiners=1,hidden=512,text_heads=8,text_key_heads=2,text_head_dim=64,text_ff=1536,text_layers=4,vocabulary=2000,vae0=128,vae1=128,vae2=64,vae3=64,vae_groups=16 \
        "published sizes" ""
}
# Flux.1 with one T5 layer, because its text encoders are read only once.
flux_checkpoint() {
    checkpoint flux "$flux" 25 \
        heads=2,axis0=8,axis1=12,axis2=12,double_layers=1,single_layers=2,hidden=64,pooled=64,clip_heads=4,clip_ff=128,clip_layers=2,clip_vocabulary=1000,t5_heads=4,t5_head_dim=16,t5_ff=128,t5_layers=1,t5_vocabulary=1000,vae0=32,vae1=32,vae2=16,vae3=16,vae_groups=8 \
        "published sizes, a layer of T5" t5_layers=1
}
# SDXL, and two blocks of WAN 2.1 14B with a small text encoder, whose time is not compared.
sdxl_checkpoint() {
    checkpoint sdxl "$sdxl" 7 \
        clip_vocabulary=1000,clip_ff=64,clip_layers=2,text_encoder.pooled=16,text_encoder.clip_heads=2,text_encoder.clip_projection=16,text_encoder_2.pooled=24,text_encoder_2.clip_heads=2,text_encoder_2.clip_projection=24,unet0=32,unet1=64,unet2=64,unet_layers2=1,unet_text=40,unet_pooled=24,vae0=32,vae1=32,vae2=16,vae3=16,vae_groups=8 \
        "published sizes" ""
}
wan_checkpoint() {
    checkpoint wan "$wan" 3 \
        t5_vocabulary=600,hidden=64,t5_heads=2,t5_head_dim=16,t5_ff=96,t5_layers=2,heads=2,wan_head=24,wan_ff=96,layers=2,vae_base=8 \
        "two blocks of the 14B model" layers=2,t5_layers=2,t5_vocabulary=32000
}
# write_checkpoint FAMILY FOLDER: part bench.checkpoint for Z-Image, bench.FAMILY_checkpoint for others
write_checkpoint() {
    part=bench.$1_checkpoint
    [ "$1" != zimage ] || part=bench.checkpoint
    if begin $part 590; then
        "$1_checkpoint" >"$work/log" 2>&1
        end $part $? "weights=$(cat "$2/complete" 2>/dev/null)"
    elif is_wanted $part && has_result $part && [ ! -e "$2/complete" ]; then
        "$1_checkpoint" >>"$log" 2>&1 # the result is from another machine: the weights are missing here
    fi
}
# Queries one GPU, by its bus address: nvidia-smi and CUDA may number GPUs differently.
smi() { nvidia-smi -i "$bus" "$@" 2>/dev/null; }
smi_used() { smi --query-gpu=memory.used --format=csv,noheader,nounits | head -1; }
# draws FAMILY FOLDER STEPS BUDGET BATCH SECONDS [FLAGS]: times a generation
draws() {
    part=bench.$1.$4.b$5
    [ -e "$2/complete" ] || { skip "$part" "no weights" && return 0; }
    begin "$part" "$6" || return 0
    side=1024
    [ -z "$small" ] || side=64
    flags=${7:-"-W $side -H $side $no_decode"}
    [ "$4" = all ] || flags="$flags --max-vram $4"
    [ ! -e "$rates" ] || flags="$flags --rates $rates"
    rm -f "$work/report" "$work/smi"
    before=$(smi_used)
    if [ -n "$before" ]; then
        nvidia-smi -i "$bus" --query-gpu=memory.used --format=csv,noheader,nounits -lms 200 >"$work/smi" 2>/dev/null &
        sampler=$!
        others="$others $sampler"
    fi
    # shellcheck disable=SC2086
    limited "$bin/sluice" generate -m "$2" -p "a red fox in the snow" --steps "$3" --seed 1 -b "$5" --device cuda \
        --no-progress --report "$work/report" -o "$work/fox.png" $flags >"$work/log" 2>&1
    code=$?
    [ -z "$before" ] || kill "$sampler" 2>/dev/null
    status=
    # the budget is too small, or larger than the GPU's memory
    if [ $code = 4 ] || { [ $code = 2 ] && grep -q '^sluice: .*--max-vram' "$work/log"; }; then status="--status refused"; fi
    peak=$(sort -n "$work/smi" 2>/dev/null | tail -1)
    # shellcheck disable=SC2086
    end "$part" $code $status --report "$work/report" ${peak:+smi_peak_mib=$peak} ${before:+smi_before_mib=$before} \
        "weights=$(cat "$2/complete" 2>/dev/null)"
}
# one_hash FLAGS...: runs demo twice, then with five budgets from the smallest to the largest useful one. Checks that all
# latents are equal. Sets $hash, $hash_again and $hash_budgets (- for a failed run); keeps the first report in
# $work/first.
one_hash() {
    n=4
    [ -z "$small" ] || n=1
    passed=0
    failed=0
    late=
    hash= hash_again= hash_budgets=
    rm -f "$work/report" "$work/first"
    expect "a run" 0 demo $n "$@"
    [ "$code" = 0 ] || return
    first=$(latent)
    hash=$first
    cp "$work/report" "$work/first"
    expect "the same run" 0 demo $n "$@"
    [ "$code" = 0 ] && hash_again=$(latent)
    same "the same run"
    least=$(planned least "$@")
    most=$(planned peak "$@")
    for i in 0 1 2 3 4; do
        budget=$((least + i * (most - least) / 4))
        expect "budget of $budget bytes" 0 demo $n --max-vram "${budget}B" "$@"
        [ "$code" = 0 ] && hash_budgets="$hash_budgets $(latent)" || hash_budgets="$hash_budgets -"
        same "budget of $budget bytes"
    done
}
# Checks that the report lists the libraries' algorithms; the part stores the report.
algorithms() {
    one_hash
    if tr -d ' \n' <"$work/first" | grep -q '"algorithms":\[{'; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: the report lists no algorithms"
    fi
    sum
}
int8() {
    one_hash --precision int8
    sum
}
# Lets the driver compile the kernels' PTX, as for a GPU that is newer than this build.
jit() {
    export CUDA_FORCE_PTX_JIT=1
    "$bin/test_cuda_fragments" && { [ -n "$small" ] || ONLY="test_attention*" "$bin/test_cuda_ops"; }
    code=$?
    unset CUDA_FORCE_PTX_JIT
    return $code
}

# ---- fitness for timing ----

# Prints the fields that bench/gpu/fitness.c reads, in its order; the last is $throttle, whose name depends on the driver.
sample() { smi "--query-gpu=$fields,$throttle" --format=csv,noheader,nounits; }
fields=pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,power.draw,power.limit,power.default_limit
fields=$fields,clocks.sm,clocks.max.sm,temperature.gpu,utilization.gpu,memory.used,ecc.mode.current,mig.mode.current
# Samples the idle GPU, then the GPU under load.
fitness() {
    seconds=10
    [ -z "$small" ] || seconds=1
    for i in 1 2 3; do sample && sleep 0.3; done >"$work/smi.idle"
    smi --query-compute-apps=pid --format=csv,noheader >"$work/smi.processes"
    nvidia-smi -i "$bus" "--query-gpu=$fields,$throttle" --format=csv,noheader,nounits -lms 200 >"$work/smi.load" 2>/dev/null &
    sampler=$!
    others="$others $sampler"
    # shellcheck disable=SC2086
    limited $bin/device_bench load $seconds $small >"$work/load"
    code=$?
    kill "$sampler" 2>/dev/null
    wait "$sampler" 2>/dev/null
    [ $code = 0 ] && $bin/gpu_results fitness "$work/smi.idle" "$work/smi.load" "$work/load" "$work/smi.processes" >"$work/fitness"
}

# ---- machine information ----

ldconfig -p 2>/dev/null | grep -q 'libstdc++\.so\.6 ' || export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$PWD/lib/compiler"
$bin/gpu_results readme >/dev/null || { print_log "run.sh: the programs of this folder cannot run here: $(ldd $bin/gpu_results | grep 'not found')" && exit 1; }
least_driver=$(grep -x '[0-9]*' driver 2>/dev/null)
print_log "sluice $commit${least_driver:+ for NVIDIA driver $least_driver or newer}, $(date -u '+%Y-%m-%d %H:%M UTC'), $(uname -sr), $(nproc) CPUs"
list_libraries >"$work/libraries"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}"
tee -a "$log" <"$work/libraries"
{ nvidia-smi 2>&1 || echo "no nvidia-smi"; } | tee -a "$log" | grep -E 'Driver|MiB|no nvidia' | cut -c1-100
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | sed -n '1s/^\([0-9]*\)\..*/\1/p')
if [ -n "$driver" ] && [ "$driver" -lt "${least_driver:-0}" ]; then
    print_log "run.sh: this build needs NVIDIA driver $least_driver or newer: found $driver. Update the driver; nothing was run." && exit 4
fi
$bin/sluice devices 2>&1 | tee -a "$log"
wanted="$wanted info"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer 2>/dev/null | head -1)
emulated=
$bin/sluice devices 2>/dev/null | grep -q Emulated && emulated=1
: >>"$results"
[ -n "$again" ] || sed -i '/"part": "\(info\|fitness\)"/d' "$results" 2>/dev/null
cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -1)
begin info 120 && {
    limited $bin/device_bench info >"$work/info" 2>"$work/log"
    info=$?
    cat "$work/libraries" >>"$work/log"
    end info $info --data "$work/info" "cpu=$cpu, $(nproc) threads" "kernel=$(uname -r)" "driver=$driver"
    [ $info = 0 ] || { print_log "run.sh: no GPU usable here: $(head -1 "$work/log")" && exit 4; }
}
fact() { sed -n "s/.*\"$1\": \"\([^\"]*\)\".*/\1/p" "$work/info" 2>/dev/null; }
bus=$(fact pci_bus_id)
for throttle in clocks_event_reasons.active clocks_throttle_reasons.active ""; do
    [ -n "$throttle" ] && sample >/dev/null && break
done
case "$wanted" in *bench.*) wanted="$wanted fitness" ;; esac
if [ -z "$throttle" ]; then
    skip fitness "nvidia-smi not found, or it does not answer for this GPU"
elif begin fitness 60; then
    fitness 2>"$work/log"
    end fitness $? --data "$work/fitness"
fi
if grep -q '"decode": false' "$work/info" 2>/dev/null; then
    no_decode="--no-decode --save-latent $work/latent.safetensors"
    print_log "decode skipped: no cuDNN"
fi

# ---- basic checks ----

run check.fragments 120 $bin/test_cuda_fragments
if [ -n "$no_decode" ]; then
    skip check.pipeline "decode skipped: no cuDNN"
else
    run check.pipeline 300 env SLUICE_TEST_DEVICE=cuda $bin/test_golden zimage_a
fi
measure check.context 120 $bin/device_bench context
if [ -n "$no_decode" ]; then
    skip check.gate "decode skipped: no cuDNN"
else
    run check.gate 500 env SLUICE_TEST_DEVICE=cuda $bin/test_cuda_gate
fi
run check.store 300 $bin/test_cuda_store
# The sanitizer is a hundred times slower: skip convolutions without cuDNN, else the largest products.
sanitized='test_linear_of*'
cases=10
[ -z "$no_decode" ] || sanitized='test_conv*'
[ -z "$no_decode" ] || cases=0
sanitize memcheck check.memcheck.draw 300 $bin/sluice generate -m models/demo -p "a red square" --device cuda --steps 1 -q --no-progress \
    -o "$work/memcheck.png" $no_decode
sanitize racecheck check.racecheck.attention 300 env "ONLY=test_attention*" $bin/test_cuda_ops
if begin check.algorithms 300; then
    algorithms >"$work/log" 2>&1
    end check.algorithms $? --report "$work/first" "hash=$hash" "hash_again=$hash_again" "hash_budgets=$hash_budgets"
fi
if is_wanted check.int8 && [ -z "$(planned least --precision int8 2>/dev/null)" ]; then
    skip check.int8 "this build has no --precision int8 for GPUs"
elif begin check.int8 300; then
    int8 >"$work/log" 2>&1
    end check.int8 $? "hash_budgets=$hash $hash_again $hash_budgets"
fi
case $(fact architecture) in
sm_8?) skip check.jit "the build's PTX is for GPUs from compute capability 9.0 on" ;;
*)
    if begin check.jit 300; then
        jit >"$work/log" 2>&1
        end check.jit $?
    fi
    ;;
esac

# ---- bus, memory calls, overlap of copies and computing ----

# shellcheck disable=SC2086
measure bench.bus 200 $bin/device_bench bus $small
if begin bench.rates 120; then
    (cd "$work" && limited "$OLDPWD/bin/sluice" bench bus --save "$rates" --no-progress) >"$work/log" 2>&1
    end bench.rates $?
fi
# shellcheck disable=SC2086
measure bench.memory 200 $bin/device_bench memory $small
case "$wanted" in *bench.zimage* | *bench.overlap* | *bench.load*) wanted="$wanted bench.checkpoint" ;; esac
write_checkpoint zimage "$model"
for budget in all 9G 6G 4G 2G; do draws zimage "$model" $zimage_steps $budget 1 300; done
measure bench.overlap 30 $bin/gpu_results overlap "$results"

# ---- computing ----

# shellcheck disable=SC2086
measure bench.library 200 $bin/device_bench library $small
# One process per group: a lost GPU in one does not stop the others.
operators() {
    # shellcheck disable=SC2086
    measure bench.ops.$1 200 $bin/device_bench ops $small "$1"
    [ "$1" = quantised ] || [ ! -s "$work/bench.ops.$1" ] || $bin/gpu_results rates "$rates" "$work/bench.ops.$1"
}
operators products
operators attention
operators int8
torch_part() { # torch_part PART [MODE]: PyTorch, one process per part
    # shellcheck disable=SC2086
    measure "bench.torch.$1${2:+.$2}" 590 python3 torch_compare.py $small "$@"
}
for family in zimage flux; do modes="$modes $family.eager $family.compiled $family.cudnn"; done
for part in products attention decoder $modes sdxl.eager wan.eager; do
    if [ -n "$torch" ]; then
        torch_part $(echo "$part" | tr . ' ')
    else
        skip bench.torch.$part "no PyTorch that can use a GPU"
    fi
done
case "$wanted" in *bench.flux.*) wanted="$wanted bench.flux_checkpoint" ;; esac
write_checkpoint flux "$flux"
for budget in all 12G 6G; do draws flux "$flux" 4 $budget 1 400; done
# --cfg-scale 1: one evaluation per step, as in torch_compare.py.
case "$wanted" in *bench.sdxl.*) wanted="$wanted bench.sdxl_checkpoint" ;; esac
case "$wanted" in *bench.wan.*) wanted="$wanted bench.wan_checkpoint" ;; esac
write_checkpoint sdxl "$sdxl"
write_checkpoint wan "$wan"
video="-W 832 -H 480 --frames 81"
[ -z "$small" ] || video="-W 64 -H 64 --frames 5"
side=1024
[ -z "$small" ] || side=64
draws sdxl "$sdxl" 4 all 1 300 "-W $side -H $side --cfg-scale 1 --no-decode --save-latent $work/latent.safetensors"
draws wan "$wan" 3 all 1 400 "$video --cfg-scale 1 --no-decode --save-latent $work/latent.safetensors"

# ---- loading, refusals, quantised types ----

if [ -e "$model/complete" ]; then
    measure bench.load 300 $bin/sluice bench load -m "$model" --json --no-progress
else
    skip bench.load "no weights"
fi
if begin check.refusals 300; then
    refusals >"$work/log" 2>&1
    end check.refusals $?
fi
operators quantised

# ---- everything else in detail ----

if [ -n "$no_decode" ]; then
    run check.ops 500 env "SKIP=test_conv*" CASES=0 $bin/test_cuda_ops # random cases include convolutions
    run check.weights 300 env "SKIP=test_conv*" $bin/test_cuda_weights
    for family in zimage flux clip t5; do run check.blocks.$family 300 env SLUICE_TEST_DEVICE=cuda $bin/test_blocks $family; done
    for part in vae vae_encoder; do skip check.blocks.$part "decode skipped: no cuDNN"; done
    skip check.golden "decode skipped: no cuDNN"
else
    run check.ops 500 $bin/test_cuda_ops
    run check.weights 300 $bin/test_cuda_weights
    if [ -z "$small" ]; then run check.ops_random 300 env "ONLY=test_random" CASES=1000 $bin/test_cuda_ops; fi
    run check.golden 300 env SLUICE_TEST_DEVICE=cuda $bin/test_golden
    for family in zimage flux clip t5 vae vae_encoder; do
        run check.blocks.$family 300 env SLUICE_TEST_DEVICE=cuda $bin/test_blocks $family
    done
fi
run check.memory 300 $bin/test_cuda_memory
if begin check.ladder 500; then
    ladder >"$work/log" 2>&1
    end check.ladder $?
fi
sanitize memcheck check.memcheck.fragments 200 $bin/test_cuda_fragments
sanitize memcheck check.memcheck.weights 200 env ONLY=test_rows $bin/test_cuda_weights
sanitize memcheck check.memcheck.ops 500 env "SKIP=$sanitized" CASES=$cases $bin/test_cuda_ops
sanitize racecheck check.racecheck.ops 500 env "SKIP=$sanitized" CASES=$cases $bin/test_cuda_ops
sanitize synccheck check.synccheck.ops 500 env "SKIP=$sanitized" CASES=$cases $bin/test_cuda_ops
operators bytes
for part in decoder unet qwen_image wan; do
    if [ -n "$no_decode" ]; then skip bench.ops.$part "decode skipped: no cuDNN"; else operators $part; fi
done
for budget in all 9G 6G 4G 2G; do draws zimage "$model" 8 $budget 4 300; done

# ---- document and verdict ----

# shellcheck disable=SC2086
$bin/gpu_results document "$results" "$out" "$(date -u +%Y-%m-%d)" "$commit" "$unfinished" $wanted >"$work/page"
code=$?
tee -a "$log" <"$work/page"
exit $code
