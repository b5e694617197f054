#!/bin/sh
# Measured memory against the plan: VmHWM of real runs never exceeds --max-ram, and the plan is at most max(10 %, 32 MiB)
# above VmHWM. Tested at several budgets from the smallest to all weights resident (THOROUGH=1: 12), on a tiny fixture
# and on a checkpoint of at least 300 MB whose smallest budget is under a third of all resident. One byte below the smallest budget is refused
# with an error that names it. A model ten times larger than --max-ram also keeps the budget, and all of its bytes are
# read with O_DIRECT. The memory of a process outside its plan depends on oneDNN's instruction set: DNNL_MAX_CPU_ISA=AVX2
# or SSE41 before the command tests another one.
#     sh test/program/budget.sh build/release
set -u
bin=${1:-build/release}
[ -d "$bin" ] && bin=$bin/sluice
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
passed=0
failed=0
result="-o $work/x.png"
some=5
[ -z "${THOROUGH:-}" ] || some=12
least=0
all=0
check() { # check STATUS TEXT: passes if STATUS is 0
    if [ "$1" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED $2"; fi
}
# field FILE KEY OBJECT: the number N in "OBJECT": { ... "KEY": N
field() { tr -d '\n ' <"$1" | grep -o "\"$3\":{[^{}]*}" | head -1 | grep -o "\"$2\":[0-9]*" | cut -d: -f2; }
mib() { awk -v b="$1" 'BEGIN { printf "%.1f", b / 1048576 }'; }

# Also measures with /usr/bin/time, if installed, because the report reads VmHWM before the process ends.
timed() {
    if [ -x /usr/bin/time ]; then /usr/bin/time -f %M -o "$work/kib" "$@"; else echo 0 >"$work/kib"; "$@"; fi
}

draw() { # draw BUDGET: generates; sets status, measured and planned
    rm -f "$work/report.json" "$work/x.png" "$work/x.safetensors"
    # shellcheck disable=SC2086
    timed "$bin" generate --device cpu -m "$model" $flags --max-ram "$1B" -q --no-progress --report "$work/report.json" \
        $result 2>"$work/stderr"
    status=$?
    measured=$(field "$work/report.json" ram_bytes measured)
    planned=$(field "$work/report.json" ram_bytes peak)
    kernel=$(($(tail -1 "$work/kib") * 1024))
    [ "$kernel" -le "${measured:-0}" ] || measured=$kernel
}

one_budget() {
    draw "$1"
    check $status "$name at $1: exit $status: $(cat "$work/stderr")"
    [ $status = 0 ] || return
    over=$((planned - measured))
    margin=$((measured / 10))
    [ $margin -gt 33554432 ] || margin=33554432
    printf '%-6s %12s %12s %12s %8s\n' "$name" "$(mib "$1")" "$(mib "$planned")" "$(mib "$measured")" "$(mib $over)"
    [ "$measured" -le "$1" ]
    check $? "$name: $measured bytes used of a budget of $1"
    [ "$planned" -le "$1" ]
    check $? "$name: $planned bytes planned for a budget of $1"
    [ $over -le $margin ]
    check $? "$name: planned $planned is more than $margin above measured $measured"
}

below_minimum() {
    draw $((least - 1))
    [ $status = 4 ]
    check $? "$name: exit $status with one byte below the smallest budget"
    [ "$(grep -c . "$work/stderr")" = 1 ] && grep -q "^sluice: .*$least" "$work/stderr"
    check $? "$name: the error does not name the smallest budget $least: $(cat "$work/stderr")"
    [ ! -e "$work/x.png" ] && [ ! -e "$work/x.safetensors" ]
    check $? "$name: a refused run left a file"
}

table() { # table NAME MODEL FLAGS BUDGETS: tests so many budgets, and one byte below the smallest
    name=$1 model=$2 flags=$3 budgets=$4
    # shellcheck disable=SC2086
    "$bin" plan --device cpu -m "$model" $flags --max-ram 60% --json >"$work/plan.json" || { check 1 "$name: plan failed"; return; }
    least=$(field "$work/plan.json" ram_bytes least)
    all=$(field "$work/plan.json" ram_bytes peak)
    printf '%-6s %12s %12s %12s %8s   (MiB) least %s, all %s\n' "" budget planned measured over "$(mib "$least")" "$(mib "$all")"
    i=0
    while [ $i -lt $budgets ]; do
        one_budget $((least + (all - least) * i / (budgets - 1)))
        i=$((i + 1))
    done
    below_minimum
}

# sum FILE KEY: the sum of all numbers under this key
sum() { grep -o "\"$2\": *[0-9]*" "$1" | awk -F: '{ n += $2 } END { printf "%d", n }'; }

ten_times() {
    name=ten model=$work/ten flags="-p fox -W 96 -H 64 --steps 2 --cfg-scale 1 --seed 1 -t 2 --direct-io off"
    "$bin-dev" checkpoint zimage "$model" --seed 3 -q --no-progress --dims \
        "heads=8,axis0=16,axis1=24,axis2=24,layers=28,refiners=1,hidden=384,text_heads=8,text_key_heads=4,text_head_dim=48,text_ff=1536,text_layers=26,vocabulary=2000,vae0=64,vae1=64,vae2=32,vae3=32,vae_groups=16,dtype=f32" \
        >/dev/null || check 1 "$name: sluice-dev checkpoint failed"
    budget=$(($(cat "$model"/*/*.safetensors | wc -c) / 10))
    draw $budget
    check $status "$name, --direct-io off: exit $status: $(cat "$work/stderr")"
    picture=$(tr -d '\n ' <"$work/report.json" | grep -o '"image_sha256":\[[^]]*')
    [ "$(sum "$work/report.json" bytes_direct)" = 0 ]
    check $? "$name: O_DIRECT reads with --direct-io off"
    flags=${flags%off}on
    one_budget $budget
    [ "$picture" = "$(tr -d '\n ' <"$work/report.json" | grep -o '"image_sha256":\[[^]]*')" ]
    check $? "$name: --direct-io on changes the image"
    if grep -q 'reading through the page cache' "$work/stderr"; then
        echo "SKIP direct reads: the file system of $work does not allow them"
        return
    fi
    moved=$(sum "$work/report.json" bytes_moved)
    direct=$(sum "$work/report.json" bytes_direct)
    [ "$moved" -gt $((budget * 10)) ] && [ "$direct" -ge $((budget * 10)) ]
    check $? "$name: $moved bytes read, $direct of them with O_DIRECT"
}

fixture=$(dirname "$0")/../golden/zimage_a/model
table tiny "$fixture" "-p fox -W 112 -H 80 --steps 2 --cfg-scale 2 --seed 1 -t 2" $some
# Without the VAE decoder the plan is hardly larger than the bare process.
result="--save-latent $work/x.safetensors"
for threads in 1 8; do
    table bare "$fixture" "-p fox -W 32 -H 32 --steps 1 --cfg-scale 1 --seed 1 --no-decode -t $threads" 3
done
result="-o $work/x.png"

# A large tokenizer leaves free holes in the heap; a long run must not grow the heap around them.
"$bin-dev" checkpoint zimage "$work/words" --seed 3 -q --no-progress --dims \
    "heads=8,axis0=16,axis1=24,axis2=24,layers=3,refiners=1,hidden=64,text_heads=4,text_key_heads=2,text_head_dim=32,text_ff=256,text_layers=2,vocabulary=120000,vae0=32,vae1=32,vae2=32,vae3=32,vae_groups=16,dtype=f32" \
    >/dev/null || check 1 "words: sluice-dev checkpoint failed"
table words "$work/words" "-p fox -W 128 -H 96 --steps 100 --cfg-scale 1 --seed 1 -t 2" 2

"$bin-dev" checkpoint zimage "$work/large" --seed 3 -q --no-progress --dims \
    "heads=8,axis0=16,axis1=24,axis2=24,layers=16,refiners=1,hidden=640,text_heads=8,text_key_heads=4,text_head_dim=64,text_ff=2048,text_layers=12,vocabulary=2000,vae0=128,vae1=128,vae2=64,vae3=32,vae_groups=16,dtype=f32" \
    >/dev/null || check 1 "large: sluice-dev checkpoint failed"
bytes=$(du -sk "$work/large" | awk '{ print $1 * 1024 }')
[ "$bytes" -ge 300000000 ]
check $? "the large checkpoint has only $bytes bytes"
table large "$work/large" "-p fox -W 128 -H 96 --steps 2 --cfg-scale 1 --seed 1 -t 2" $some
[ $((least * 3)) -lt "$all" ]
check $? "the smallest budget $least is not under a third of all resident $all"
for precision in bf16 int8; do
    if "$bin" devices --json | sed -n '/"cpu"/,/]/p' | grep -q "\"$precision\""; then
        table $precision "$work/large" "-p fox -W 128 -H 96 --steps 1 --cfg-scale 1 --seed 1 -t 2 --precision $precision" 3
    else
        echo "SKIP $precision: this processor has no instructions for it"
    fi
done
rm -rf "$work/large"
ten_times
echo "$passed passed, $failed failed"
[ $failed = 0 ]
