#!/bin/sh
# make check, make check-all, make test-SUITE: the suites of test/suites, one build after the other, and the longest first, as many at a time as
# there are processors, but for those that measure seconds or give memory up. One line a suite, the ten slowest, and one sum at the end.
#   check.sh check            all of make check; what they took is held to the budget
#   check.sh all              what make check leaves out; a suite that passed before is not run again, unless FRESH=1
#   check.sh suite NAME       one, which says what it says
cd "$(dirname "$0")/.." || exit 1
what=$1
case $what in all) results=build/check-all ;; *) results=build/$what ;; esac
seed=$(date +%s)
export results seed
# nvcc takes longer than all of the rest: suites with_toolkit alone, and one that a developer names, build with it.
[ "$what" = suite ] || export CUDA=0
. test/suite.sh
# Core-seconds that make check may take, builds included, on a processor that does the timed product in PRODUCT seconds; a slower one may take
# longer in proportion.
BUDGET=1300
PRODUCT=0.52

awk -v programs="$(ls test/*/test_*.c | grep -v '^test/device/' | sed 's/.*test_\(.*\)\.c/\1/' | tr '\n' ' ')" -f test/suites.awk test/suites >build/list || exit 1
tab=$(printf '\t')

if [ "$what" = suite ]; then
    line=$(awk -F'\t' -v name="$2" '$2 == name' build/list)
    [ -n "$line" ] || { echo "no suite is called $2; there are"; cut -f 2 build/list | column -c 150; exit 2; }
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
# What passed before is left out.
for counts in "$results"/*.counts; do
    if grep -qs '^[1-9][0-9]* 0 ' "$counts"; then basename "$counts" .counts; fi
done | grep -v '^build_' >"$results/done"
[ ! -s "$results/done" ] || echo "$(wc -l <"$results/done") suites passed before and are left out; FRESH=1 runs them too"
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

# ---- what it took ----

echo "the ten slowest:"
for file in "$results"/*.counts; do echo "$(basename "$file" .counts) $(cat "$file")"; done | sort -k 4 -n -r >"$results/costs"
head -10 "$results/costs" | awk '{ printf "    %-28s %7.1f core-seconds\n", $1, $4 }'
set -- $(awk '{ good += $2; bad += $3 } END { print good + 0, bad + 0 }' "$results/costs")
passed=$1
failed=$2
if [ "$what" = check ]; then
    # Of all processes that ended, these lines' too.
    times >"$results/times"
    took=$(awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, part, /[ms]/); sum += part[1] * 60 + part[2] } } END { printf "%.0f", sum }' "$results/times")
    limit=$(echo "$product" | awk -v budget=$BUDGET -v at=$PRODUCT '{ for (i = 1; i <= NF; i++) sum += $i; slow = sum / NF / at; print int(budget * (slow > 1 ? slow : 1)) }')
    echo "$took core-seconds of $limit: $BUDGET where the timed product takes $PRODUCT s; here it took$product"
    [ "$took" -le "$limit" ] || { echo "more than the budget"; failed=$((failed + 1)); }
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
