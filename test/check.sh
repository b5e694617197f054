#!/bin/sh
# Runs the suites of test/suites for make check, make check-all and make test-SUITE: build by build, one suite a processor. Suites marked + in
# test/suites run alone. Prints one line a suite, the ten slowest, and the totals.
#   check.sh check            every suite of make check; compares the core-seconds with the budget
#   check.sh all              the suites that make check leaves out; skips suites that passed before, unless FRESH=1
#   check.sh suite NAME       one suite, with its full output
# FAIL_ABOVE_BUDGET=F (set by .ci/run): fail above F times the budget. Without it, a slow run only prints a warning.
cd "$(dirname "$0")/.." || exit 1
what=$1
case $what in all) results=build/check-all ;; *) results=build/$what ;; esac
seed=$(date +%s)
export results seed
# CUDA=0: compiling with nvcc takes longer than all suites together. Only with_toolkit suites and make test-SUITE use nvcc.
[ "$what" = suite ] || export CUDA=0
. test/suite.sh
# The budget of make check in core-seconds, builds included, for a processor that runs test/product.c in PRODUCT seconds. On a slower processor the
# budget grows in proportion.
BUDGET=1300
PRODUCT=0.52

awk -v programs="$(ls test/*/test_*.c | grep -v '^test/device/' | sed 's/.*test_\(.*\)\.c/\1/' | tr '\n' ' ')" -f test/suites.awk test/suites >build/list || exit 1
tab=$(printf '\t')

if [ "$what" = suite ]; then
    line=$(awk -F'\t' -v name="$2" '$2 == name' build/list)
    [ -n "$line" ] || { echo "unknown suite: $2. The suites are:"; cut -f 2 build/list | column -c 150; exit 2; }
    IFS=$tab read -r tier name config targets command <<LINE
$line
LINE
    [ "$config" = - ] || build "$config" $targets || exit 1
    eval "$command"
    exit
fi

if [ "$what" = check ] || [ -n "${FRESH:-}" ]; then rm -rf "$results"; fi
mkdir -p "$results"
gcc -O2 -o build/product test/product.c || exit 1
product=
# Skip suites that passed in an earlier run.
for counts in "$results"/*.counts; do
    if grep -qs '^[1-9][0-9]* 0 ' "$counts"; then basename "$counts" .counts; fi
done | grep -v '^build_' >"$results/done"
[ ! -s "$results/done" ] || echo "$(wc -l <"$results/done") suites passed in an earlier run and are skipped; FRESH=1 runs all"
awk -F'\t' -v tier="$what" 'FILENAME == ARGV[1] { done[$1] = 1; next } index($1, tier) == 1 && !($2 in done)' "$results/done" build/list >"$results/list"
for config in - release asan tsan emu debug; do
    awk -F'\t' -v config=$config '$3 == config' "$results/list" >"$results/now"
    [ -s "$results/now" ] || continue
    product="$product $(build/product)"
    targets=$(cut -f 4 "$results/now" | tr ' ' '\n' | sort -u | tr '\n' ' ')
    if [ $config != - ]; then
        suite build_$config "build $config $targets && echo 1 passed, 0 failed"
        [ $status = 0 ] || break
    fi
    awk -F'\t' '$1 !~ /\+/ { print $2; print $5 }' "$results/now" | xargs -r -d '\n' -n 2 -P "$(nproc)" sh -c '. test/suite.sh; suite "$0" "$1"'
    awk -F'\t' '$1 ~ /\+/ { print $2; print $5 }' "$results/now" | xargs -r -d '\n' -n 2 sh -c '. test/suite.sh; suite "$0" "$1"'
done
product="$product $(build/product)"
for file in "$results"/*.log; do echo "=== $file"; cat "$file"; done >"build/$what.log"

# ---- totals ----

echo "the ten slowest:"
for file in "$results"/*.counts; do echo "$(basename "$file" .counts) $(cat "$file")"; done | sort -k 4 -n -r >"$results/costs"
head -10 "$results/costs" | awk '{ printf "    %-28s %7.1f core-seconds\n", $1, $4 }'
set -- $(awk '{ good += $2; bad += $3 } END { print good + 0, bad + 0 }' "$results/costs")
passed=$1
failed=$2
if [ "$what" = check ]; then
    # User and system time of all finished child processes.
    times >"$results/times"
    took=$(awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, part, /[ms]/); sum += part[1] * 60 + part[2] } } END { printf "%.0f", sum }' "$results/times")
    budget=$(echo "$product" | awk -v budget=$BUDGET -v at=$PRODUCT '{ for (i = 1; i <= NF; i++) sum += $i; slow = sum / NF / at; print int(budget * (slow > 1 ? slow : 1)) }')
    echo "$took core-seconds; budget $budget ($BUDGET where test/product.c takes $PRODUCT s; here it took$product)"
    [ "$took" -le "$budget" ] || echo "warning: the tests took $took core-seconds, more than the budget of $budget"
    if [ -n "${FAIL_ABOVE_BUDGET:-}" ] && ! awk -v took="$took" -v budget="$budget" -v times="$FAIL_ABOVE_BUDGET" 'BEGIN { exit took > budget * times }'; then
        echo "the tests took more than $FAIL_ABOVE_BUDGET times the budget"
        failed=$((failed + 1))
    fi
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
