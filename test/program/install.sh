#!/bin/sh
# make install: files, exported symbols, and no file left after make uninstall. The example program in the comment at the
# top of engine/sluice.h and a program that calls sluice_bench.h are compiled with pkg-config as C and C++, warnings as
# errors, linked to the shared and the static library, and run on a tiny model.
set -u
cd "$(dirname "$0")/../.." || exit 1
folder=$(mktemp -d /tmp/sluice-install-XXXXXX) || exit 1
trap 'rm -rf "$folder"' EXIT
root=$folder/root
prefix=$root/opt/sluice
passed=0
failed=0
expect() { # expect TEXT COMMAND...: prints TEXT, a description of the defect, if the command fails
    what=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "install: $what"; fi
}
status_is() { # status_is STATUS COMMAND...: compares the exit status; stdout in $folder/out
    wanted=$1
    shift
    "$@" >"$folder/out" 2>"$folder/log"
    [ $? = "$wanted" ]
}
run_make() { make -s --no-print-directory PREFIX=/opt/sluice DESTDIR="$root" "$@" >"$folder/log" 2>&1; }
lists() { (cd "$root" && find . ! -type d | sort | tr '\n' ' '); }

# ---- files and symbols ----
version=$(sed -n 's/^#define SLUICE_VERSION *"\(.*\)"/\1/p' engine/sluice.h)
soname=libsluice.so.${version%%.*}
expect "make install fails: $(cat "$folder/log" 2>/dev/null)" run_make install
expect "a second make install fails: $(cat "$folder/log")" run_make install
expect "a second make install builds files: $(cat "$folder/log")" [ ! -s "$folder/log" ]
files="./opt/sluice/bin/sluice ./opt/sluice/include/sluice.h ./opt/sluice/include/sluice_bench.h ./opt/sluice/lib/libsluice.a \
./opt/sluice/lib/libsluice.so ./opt/sluice/lib/$soname ./opt/sluice/lib/libsluice.so.$version ./opt/sluice/lib/pkgconfig/sluice.pc ./opt/sluice/share/bash-completion/completions/sluice \
./opt/sluice/share/fish/vendor_completions.d/sluice.fish ./opt/sluice/share/man/man1/sluice.1 ./opt/sluice/share/zsh/site-functions/_sluice "
expect "installed files differ: $(lists)" [ "$(lists)" = "$files" ]
expect "the program does not run" status_is 0 "$prefix/bin/sluice" --version
expect "--version prints $(cat "$folder/out")" grep -qF "$version" "$folder/out"
expect "the SONAME is not $soname" sh -c "objdump -p '$prefix/lib/libsluice.so' | grep -q 'SONAME *$soname\$'"
names() { awk '$2 ~ /^[A-Z]$/ && $2 != "U" { print $3 }' | sort; } # strong defined symbols: T, D, B ...
nm -D "$prefix/lib/libsluice.so" | names >"$folder/shared"
nm -g "$prefix/lib/libsluice.a" | names >"$folder/static"
sed -n '/^SLUICE_API/,/;/p' engine/sluice.h engine/sluice_bench.h | grep -oE '\bsluice_[a-z_]+\(' | tr -d '(' | sort -u >"$folder/declared"
expect "symbols of the shared library differ from the headers" diff "$folder/declared" "$folder/shared"
expect "symbols of the static library differ from the headers" diff "$folder/declared" "$folder/static"

# ---- the example program ----
export PKG_CONFIG_PATH="$prefix/lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$root"
# Code lines have four spaces after the star; the program ends before the line "Rules.".
sed -n '/A complete program:/,/^ \* Rules\./s/^ \*     //p' engine/sluice.h >"$folder/program.c"
cat >"$folder/bench.c" <<'END'
#include <sluice_bench.h>
#include <stdio.h>
int main(void) {
    struct sluice_error error;
    struct sluice_bench_options options = {.struct_size = sizeof options, .threads = -1};
    char *json = NULL, *rows = NULL;
    if (sluice_bench_load(&options, &rows, &error) != SLUICE_USAGE) return 1;
    options.threads = 1, options.predict = "4090";
    if (sluice_bench_block(&options, &json, &error)) return 1;
    puts(json);
    sluice_free(json);
    return 0;
}
END
warnings="-Wall -Wextra -Werror"
# shellcheck disable=SC2046,SC2086
compile() { # compile shared | static | c++ | bench | bench++
    flags=$(pkg-config --cflags sluice) && shared=$(pkg-config --libs sluice) && all=$(pkg-config --static --libs sluice) ||
        return 1
    case $1 in
    shared) gcc -std=c11 $warnings $flags -o "$folder/shared_c" "$folder/program.c" $shared ;;
    # -lsluice would link the shared library, which is in the same folder.
    static) gcc -std=c11 $warnings $flags -o "$folder/static_c" "$folder/program.c" $(echo "$all" | sed 's/-lsluice/-l:libsluice.a/') ;;
    c++) clang -x c++ -std=c++20 $warnings $flags -o "$folder/shared_c++" "$folder/program.c" $shared ;;
    bench) gcc -std=c11 -pedantic $warnings $flags -o "$folder/bench_c" "$folder/bench.c" $shared ;;
    bench++) clang -x c++ -std=c++20 $warnings $flags -o "$folder/bench_c++" "$folder/bench.c" $shared ;;
    esac
}
for how in shared static c++ bench bench++; do expect "the program does not compile: $how" compile $how; done
needs() { objdump -p "$1" | grep -q "NEEDED *$soname\$"; }
expect "the shared library is not used" needs "$folder/shared_c"
expect "the static library is not used" sh -c "! objdump -p '$folder/static_c' | grep -q libsluice"
cp -r test/golden/zimage_a/model "$folder/model"
echo '{"width": 112, "height": 80, "steps": 2}' >"$folder/model/sluice.json"
export LD_LIBRARY_PATH="$prefix/lib"
expect "the example program fails" status_is 0 "$folder/shared_c" "$folder/model" "a red fox"
mv "$folder/out" "$folder/fox.ppm"
header="P6 112 80 255"
expect "the image's header is not '$header'" [ "$(head -n 1 "$folder/fox.ppm")" = "$header" ]
expect "the image does not have $((14 + 112 * 80 * 3)) bytes" [ "$(wc -c <"$folder/fox.ppm")" = $((14 + 112 * 80 * 3)) ]
colours=$(tail -c +15 "$folder/fox.ppm" | od -An -v -tu1 -w3 | sort -u | wc -l)
expect "the image has only $colours colours" [ "$colours" -gt 1000 ]
for program in shared_c static_c shared_c++; do
    expect "$program fails" status_is 0 "$folder/$program" "$folder/model" "a red fox"
    expect "$program writes another image" cmp -s "$folder/fox.ppm" "$folder/out"
done
for program in bench_c bench_c++; do
    expect "$program fails" status_is 0 "$folder/$program"
    expect "$program does not list zimage" grep -q '"family": "zimage"' "$folder/out"
done
expect "no exit status 2 for a missing argument" status_is 2 "$folder/shared_c" "$folder/model"
expect "no exit status 1 for a missing model" status_is 1 "$folder/shared_c" "$folder/none" "a red fox"
expect "no error for a missing model: $(cat "$folder/log")" grep -q "no such model file or folder ($folder/none)" "$folder/log"

# ---- without DESTDIR make install runs ldconfig ----
mkdir "$folder/fake"
printf '#!/bin/sh\ntouch "%s/ldconfig_ran"\n' "$folder" >"$folder/fake/ldconfig"
chmod +x "$folder/fake/ldconfig"
without_destdir() { PATH="$folder/fake:$PATH" make -s --no-print-directory PREFIX="$folder/here" "$1" >"$folder/log" 2>&1; }
expect "ldconfig runs with DESTDIR" [ ! -e "$folder/ldconfig_ran" ]
expect "make install without DESTDIR fails" without_destdir install
expect "ldconfig does not run without DESTDIR" [ -e "$folder/ldconfig_ran" ]
printf '#!/bin/sh\nexit 1\n' >"$folder/fake/ldconfig"
expect "make install fails if ldconfig fails" without_destdir install
expect "no hint to run sudo ldconfig" grep -q 'sudo ldconfig' "$folder/log"
without_destdir uninstall

expect "make uninstall fails" run_make uninstall
expect "make uninstall leaves $(lists)" [ -z "$(lists)" ]
echo "$passed passed, $failed failed"
[ $failed = 0 ]
