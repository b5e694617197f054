#!/bin/sh
# Source rules: which headers a folder may include, file sizes, forbidden calls and names, READMEs.
set -u
cd "$(dirname "$0")/.." || exit 1
failed=0
passed=0
complain() {
    echo "house: $1"
    failed=$((failed + 1))
}
# may FOLDER PATTERN...: files of the folder may include only project headers that match a pattern.
may() {
    folder=$1
    shift
    for file in $(git ls-files --cached --others --exclude-standard -- "$folder/*.c" "$folder/*.h" "$folder/*.cu" "$folder/*.cuh"); do
        case "$file" in kernels/*/*) [ "$folder" = kernels ] && continue ;; esac
        for header in $(sed -n 's/^#include "\(.*\)"/\1/p' "$file"); do
            ok=0
            for pattern in "$@"; do
                # shellcheck disable=SC2254
                case "$header" in $pattern) ok=1 ;; esac
            done
            [ $ok = 1 ] && passed=$((passed + 1)) || complain "$file may not include $header"
        done
    done
}
may engine/base engine/sluice.h 'engine/base/*'
may kernels 'engine/base/*' 'kernels/*.h'
may kernels/dry 'engine/base/*' kernels/ops.h kernels/device.h 'kernels/dry/*'
may kernels/cpu 'engine/base/*' kernels/ops.h kernels/device.h 'kernels/cpu/*'
# ptx_emulated.h is in test/emu: kernels compiled for the CPU include it.
may kernels/cuda 'engine/base/*' kernels/ops.h kernels/device.h 'kernels/cuda/*' ptx_emulated.h
may loaders 'engine/base/*' 'loaders/*'
# The dry device computes the planner's sizes.
may engine/run 'engine/base/*' 'engine/run/*' kernels/ops.h kernels/device.h kernels/dry/dry.h
may engine/sample 'engine/base/*' 'engine/sample/*'
may models 'engine/base/*' 'engine/run/*' 'engine/sample/*' kernels/ops.h 'models/*'
may engine/open engine/sluice.h 'engine/base/*' 'engine/run/*' 'engine/open/*' 'loaders/*' models/models.h
may engine/pictures engine/sluice.h 'engine/base/*' 'engine/pictures/*' engine/open/public_structs.h kernels/ops.h
may engine/machine engine/sluice.h 'engine/base/*' engine/run/plan.h 'engine/machine/*' 'kernels/*' 'loaders/*'
may engine/cache engine/sluice.h 'engine/base/*' 'engine/run/*' 'engine/open/*' 'engine/cache/*' 'kernels/*' 'loaders/*' 'models/*'
may engine/job engine/sluice.h 'engine/base/*' 'engine/run/*' 'engine/sample/*' 'engine/open/*' 'engine/pictures/*' 'engine/machine/*' 'engine/cache/*' 'engine/job/*' 'kernels/*' 'loaders/*' 'models/*'
may engine/generate engine/sluice.h 'engine/base/*' 'engine/run/*' 'engine/sample/*' 'engine/open/*' 'engine/pictures/*' 'engine/machine/*' 'engine/cache/*' 'engine/job/*' 'engine/generate/*' 'kernels/*' 'loaders/*' 'models/*'
may engine/api engine/sluice.h 'engine/base/*' 'engine/run/*' 'engine/sample/*' 'engine/open/*' 'engine/pictures/*' 'engine/machine/*' 'engine/cache/*' 'engine/job/*' 'engine/generate/*' 'engine/api/*' 'kernels/*' 'loaders/*' 'models/*'
may engine/bench 'engine/*' 'kernels/*' 'loaders/*' 'models/*'
may engine/convert 'engine/*' 'kernels/*' 'loaders/*' 'models/*'
may bench/dev 'engine/*' 'kernels/*' 'loaders/*' 'models/*' 'bench/dev/*' 'cli/*'
may cli engine/sluice.h engine/sluice_bench.h 'cli/*'
# No include circle among the units of the product; a unit is the files of one name (NAME.c, NAME.h, NAME.cu).
# tsort reports the units on circles.
git ls-files --cached --others --exclude-standard -- engine kernels loaders models cli | grep -E '\.(c|h|cu|cuh)$' | while read -r file; do
    [ -f "$file" ] && sed -n "s,^#include \"\\(.*\\)\".*,$file \\1,p" "$file"
done | sed -E 's/\.(c|h|cu|cuh)( |$)/\2/g' | awk '$1 != $2 { print }' >build/includes
tsort build/includes 2>&1 >/dev/null | sed -n 's/^tsort: \([a-z].*\/[^ ]*\)$/\1/p' | sort -u >build/in_circles
while read -r unit; do complain "$unit lies on a circle of includes"; done <build/in_circles
[ -s build/includes ] && passed=$((passed + 1)) || complain "no includes were found"
for file in $(git ls-files --cached --others --exclude-standard | grep -E '\.(c|h|cu|cuh|py|sh|mk)$'); do
    [ -f "$file" ] || continue
    lines=$(wc -l <"$file")
    [ "$lines" -le 800 ] && passed=$((passed + 1)) || complain "$file has $lines lines; the maximum is 800"
    case "${file##*/}" in *util* | *common* | *misc*) complain "$file: a file name must not contain util, common or misc" ;; esac
done
# The library must not exit, abort, read the environment, print or raise signals. Results must not depend on fast-math options (below).
hits=$(grep -nE '\b(getenv|_?exit|quick_exit|abort|raise|kill|signal|sigaction|system|popen|alloca|longjmp|perror|v?f?printf|f?puts|f?putc|putchar)\(' \
    -r engine kernels loaders models --include='*.c' --include='*.h' --include='*.cu' --include='*.cuh' | grep -vE '^[^:]*:[0-9]*: (\*|/\*)')
[ -z "$hits" ] && passed=$((passed + 1)) || complain "forbidden call in the library:
$hits"
# Jansson's allocator belongs to the whole process: a library must not set it.
hits=$(grep -rn json_set_alloc_funcs engine kernels loaders models cli)
[ -z "$hits" ] && passed=$((passed + 1)) || complain "$hits"
# json_put and json_push of loaders/json.h count failed allocations, so that incomplete documents are not returned.
hits=$(grep -rnE 'json_(object_set|array_append)_new\(' engine loaders --include='*.c' | grep -vE '^loaders/json|if \(|return ')
[ -z "$hits" ] && passed=$((passed + 1)) || complain "use json_put and json_push of loaders/json.h:
$hits"
# A file's content must never cause an assertion. The assertion in safetensors_write.c checks its caller.
hits=$(grep -rnE '\bassert\(' loaders --include='*.c' | grep -v '^loaders/safetensors_write.c:')
[ -z "$hits" ] && passed=$((passed + 1)) || complain "assertion in a file reader:
$hits"
hits=$(grep -nE 'ffast-math|use_fast_math|Ofast' Makefile test/check.mk)
[ -z "$hits" ] && passed=$((passed + 1)) || complain "$hits"
# READMEs: line length for terminals, length of the first README, existing files.
newline='
'
sources=$(git ls-files --cached --others --exclude-standard | sed 's/^/\//')
for file in $(echo "$sources" | sed -n 's/^\/\(.*README\.md\)$/\1/p'); do
    # Tables that a program writes may be wider.
    long=$(awk '/^<!-- .*: made by / { made = 1 } /^<!-- end of / { made = 0 }
        length > 120 && !made { print FNR }' "$file" | tr '\n' ' ')
    [ -z "$long" ] && passed=$((passed + 1)) || complain "$file: more than 120 characters in line $long"
    for name in $(grep -oE '`[A-Za-z0-9_./-]+\.(c|h|cu|cuh|py|sh|md)`' "$file" | tr -d '`' | sort -u); do
        case "$sources$newline" in *"/$name$newline"*) ;; *) complain "$file: mentions $name, which does not exist" ;; esac
    done
done
lines=$(wc -l <README.md)
[ "$lines" -le 150 ] && passed=$((passed + 1)) || complain "README.md has $lines lines; the maximum is 150"
# Each seeded fault (test/emu/faults.sh) must change exactly one line of its file; faults.sh itself takes minutes.
sed -n 's/^fault \([a-z]*\) \([^ ]*\) .*/\1 \2/p' test/emu/faults.sh >build/seeded
while read -r name file; do
    changed=$(sed -f "test/emu/faults/$name.sed" "$file" | diff "$file" - | grep -c '^<')
    [ "$changed" = 1 ] && passed=$((passed + 1)) || complain "seeded fault $name changes $changed lines of $file"
done <build/seeded
for name in *; do
    case "$name" in Makefile | README.md | LICENSE | engine | kernels | loaders | models | cli | bench | test | build) ;;
    *) complain "$name does not belong at the top level" ;;
    esac
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
