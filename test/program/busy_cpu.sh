#!/bin/sh
# Busy machine: next to one busy loop per processor, a run with several threads needs at most 1.5 times the CPU time of a
# run with one thread, because waiting threads sleep. Spinning threads needed fifty times as much. CPU time is compared,
# because wall-clock time depends on other programs.
#     sh test/program/busy_cpu.sh build/release/sluice MODEL
set -u
bin=$1
model=$2
work=$(mktemp -d) || exit 1
loops=
trap 'kill $loops 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# seconds THREADS: generates; prints the CPU time of all threads.
seconds() {
    times >"$work/before"
    "$bin" generate -m "$model" -p "a fox" -W 192 -H 160 --steps 20 --seed 1 -t "$1" -q -o "$work/$1.png" || exit 1
    times >"$work/after"
    awk 'FNR == 2 { for (i = 1; i <= 2; i++) { split($i, part, /[ms]/); sum[FILENAME] += part[1] * 60 + part[2] } }
         END { print sum[ARGV[2]] - sum[ARGV[1]] }' "$work/before" "$work/after"
}
for _ in $(seq "$(nproc)"); do
    (while :; do :; done) &
    loops="$loops $!"
done
# The minimum of three runs, because other programs may disturb one.
for round in 1 2 3; do
    seconds 1 >>"$work/one"
    seconds "$(nproc)" >>"$work/all"
done
one=$(sort -n "$work/one" | head -1)
all=$(sort -n "$work/all" | head -1)
echo "CPU time next to busy loops: $one s with one thread, $all s with $(nproc)"
if cmp -s "$work/1.png" "$work/$(nproc).png" && awk -v a="$one" -v b="$all" 'BEGIN { exit !(b <= 1.5 * a + 0.2) }'; then
    echo "1 passed, 0 failed"
else
    echo "FAILED: another image, or more than 1.5 times the CPU time"
    echo "0 passed, 1 failed"
    exit 1
fi
