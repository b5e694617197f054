#!/bin/sh
# Beside other programs: with as many busy loops as there are processors, a run with several threads takes hardly more of
# the processors' time than with one, because who waits gives way. Spinning threads took fifty times as much. Whole seconds
# of the processors are compared, not the clock's: those depend on what else the machine does.
#     sh test/program/busy_cpu.sh build/release/sluice MODEL
set -u
bin=$1
model=$2
work=$(mktemp -d) || exit 1
loops=
trap 'kill $loops 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# Seconds of the processors, all threads together.
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
# The least of some: another program may get into any of them.
for round in 1 2 3; do
    seconds 1 >>"$work/one"
    seconds "$(nproc)" >>"$work/all"
done
one=$(sort -n "$work/one" | head -1)
all=$(sort -n "$work/all" | head -1)
echo "beside busy loops: $one s of the processors with one thread, $all s with $(nproc)"
if cmp -s "$work/1.png" "$work/$(nproc).png" && awk -v a="$one" -v b="$all" 'BEGIN { exit !(b <= 1.5 * a + 0.2) }'; then
    echo "1 passed, 0 failed"
else
    echo "FAILED: another picture, or more than 1.5 times the work"
    echo "0 passed, 1 failed"
    exit 1
fi
