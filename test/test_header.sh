#!/bin/sh
# The program in the comment at the top of engine/sluice.h: cut out as it stands there, compiled with warnings as errors
# against the archive, run on a tiny model. Argument: the build folder.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build/release}
folder=$(mktemp -d /tmp/sluice-header-XXXXXX) || exit 1
trap 'rm -rf "$folder"' EXIT
passed=0
failed=0
expect() { # WHAT COMMAND...
    what=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "header: $what"; fi
}
# Lines of code are indented by four spaces after the star; the rules begin where the program ends.
sed -n '/A complete program:/,/^ \* Rules\./s/^ \*     //p' engine/sluice.h >"$folder/program.c"
compile() {
    # shellcheck disable=SC2086
    ${CC:-gcc} -std=c11 -Wall -Wextra -Werror ${CFLAGS:-} -I. -o "$folder/program" "$folder/program.c" "$build/libsluice.a" \
        -fopenmp -ldnnl -ljansson -lpcre2-8 -lutf8proc -lnettle -lm -lpthread
}
status_is() { # STATUS COMMAND...
    wanted=$1
    shift
    "$@" 2>"$folder/said"
    [ $? = "$wanted" ]
}
expect "the program does not compile" compile
cp -r test/golden/zimage_a/model "$folder/model"
echo '{"width": 112, "height": 80, "steps": 2}' >"$folder/model/sluice.json"
expect "a picture cannot be drawn" status_is 0 "$folder/program" "$folder/model" "a red fox" "$folder/fox.ppm"
header="P6 112 80 255"
expect "the picture's header is not '$header'" [ "$(head -n 1 "$folder/fox.ppm")" = "$header" ]
expect "the picture has not $((14 + 112 * 80 * 3)) bytes" [ "$(wc -c <"$folder/fox.ppm")" = $((14 + 112 * 80 * 3)) ]
colours=$(tail -c +15 "$folder/fox.ppm" | od -An -v -tu1 -w3 | sort -u | wc -l)
expect "the picture has $colours colours" [ "$colours" -gt 1000 ]
expect "a second picture differs" status_is 0 "$folder/program" "$folder/model" "a red fox" "$folder/again.ppm"
expect "a second picture differs" cmp -s "$folder/fox.ppm" "$folder/again.ppm"
expect "a missing argument is not refused" status_is 2 "$folder/program" "$folder/model"
expect "a missing model is not refused" status_is 1 "$folder/program" "$folder/none" "a red fox" "$folder/none.ppm"
expect "a missing model is not named: $(cat "$folder/said")" grep -q "^MISSING: " "$folder/said"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
