#!/bin/sh
# The tree that `make install` makes: which files, which symbols, gone after `make uninstall`. Against it, by pkg-config,
# the program in the comment at the top of engine/sluice.h: cut out as it stands there, compiled with warnings as errors as
# C and as C++, linked to the shared and to the static library, run on a tiny model. So is one that asks for a bench.
set -u
cd "$(dirname "$0")/../.." || exit 1
folder=$(mktemp -d /tmp/sluice-install-XXXXXX) || exit 1
trap 'rm -rf "$folder"' EXIT
root=$folder/root
prefix=$root/opt/sluice
passed=0
failed=0
expect() { # WHAT COMMAND...
    what=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "install: $what"; fi
}
status_is() { # STATUS COMMAND... the last one writes to $folder/out
    wanted=$1
    shift
    "$@" >"$folder/out" 2>"$folder/said"
    [ $? = "$wanted" ]
}
make_it() { make -s --no-print-directory PREFIX=/opt/sluice DESTDIR="$root" "$@" >"$folder/said" 2>&1; }
lists() { (cd "$root" && find . ! -type d | sort | tr '\n' ' '); }

# ---- the tree ----
version=$(sed -n 's/^#define SLUICE_VERSION *"\(.*\)"/\1/p' engine/sluice.h)
soname=libsluice.so.${version%%.*}
expect "make install: $(cat "$folder/said" 2>/dev/null)" make_it install
expect "make install again builds something: $(cat "$folder/said")" make_it install
expect "make install again builds something: $(cat "$folder/said")" [ ! -s "$folder/said" ]
files="./opt/sluice/bin/sluice ./opt/sluice/include/sluice.h ./opt/sluice/include/sluice_bench.h ./opt/sluice/lib/libsluice.a \
./opt/sluice/lib/libsluice.so ./opt/sluice/lib/$soname ./opt/sluice/lib/libsluice.so.$version ./opt/sluice/lib/pkgconfig/sluice.pc ./opt/sluice/share/bash-completion/completions/sluice \
./opt/sluice/share/fish/vendor_completions.d/sluice.fish ./opt/sluice/share/man/man1/sluice.1 ./opt/sluice/share/zsh/site-functions/_sluice "
expect "other files: $(lists)" [ "$(lists)" = "$files" ]
expect "the program does not run" status_is 0 "$prefix/bin/sluice" --version
expect "the program says $(cat "$folder/out")" grep -qF "$version" "$folder/out"
expect "the library's name is not $soname" sh -c "objdump -p '$prefix/lib/libsluice.so' | grep -q 'SONAME *$soname\$'"
names() { awk '$2 ~ /^[A-Z]$/ && $2 != "U" { print $3 }' | sort; } # T, D, B ...: defined, strong
nm -D "$prefix/lib/libsluice.so" | names >"$folder/shared"
nm -g "$prefix/lib/libsluice.a" | names >"$folder/static"
sed -n '/^SLUICE_API/,/;/p' engine/sluice.h engine/sluice_bench.h | grep -oE '\bsluice_[a-z_]+\(' | tr -d '(' | sort -u >"$folder/promised"
expect "names in the shared library and not in the headers, or the reverse" diff "$folder/promised" "$folder/shared"
expect "names in the archive and not in the headers, or the reverse" diff "$folder/promised" "$folder/static"

# ---- the program ----
export PKG_CONFIG_PATH="$prefix/lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$root"
# Lines of code are indented by four spaces after the star; the rules begin where the program ends.
sed -n '/A complete program:/,/^ \* Rules\./s/^ \*     //p' engine/sluice.h >"$folder/program.c"
cat >"$folder/bench.c" <<'END'
#include <sluice_bench.h>
#include <stdio.h>
int main(void) {
    struct sluice_error error;
    struct sluice_bench_options options = {.struct_size = sizeof options, .threads = -1};
    char *families = NULL, *rows = NULL;
    if (sluice_checkpoint_families(&families, &error)) return 1;
    puts(families);
    sluice_free(families);
    return sluice_bench_load(&options, &rows, &error) != SLUICE_USAGE;
}
END
warnings="-Wall -Wextra -Werror"
# shellcheck disable=SC2046,SC2086
compile() { # HOW
    flags=$(pkg-config --cflags sluice) && shared=$(pkg-config --libs sluice) && all=$(pkg-config --static --libs sluice) ||
        return 1
    case $1 in
    shared) gcc -std=c11 $warnings $flags -o "$folder/shared_c" "$folder/program.c" $shared ;;
    # -lsluice would be the shared one, which lies beside it.
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
expect "a picture cannot be drawn" status_is 0 "$folder/shared_c" "$folder/model" "a red fox"
mv "$folder/out" "$folder/fox.ppm"
header="P6 112 80 255"
expect "the picture's header is not '$header'" [ "$(head -n 1 "$folder/fox.ppm")" = "$header" ]
expect "the picture has not $((14 + 112 * 80 * 3)) bytes" [ "$(wc -c <"$folder/fox.ppm")" = $((14 + 112 * 80 * 3)) ]
colours=$(tail -c +15 "$folder/fox.ppm" | od -An -v -tu1 -w3 | sort -u | wc -l)
expect "the picture has $colours colours" [ "$colours" -gt 1000 ]
for program in shared_c static_c shared_c++; do
    expect "$program draws nothing" status_is 0 "$folder/$program" "$folder/model" "a red fox"
    expect "$program draws another picture" cmp -s "$folder/fox.ppm" "$folder/out"
done
for program in bench_c bench_c++; do
    expect "$program lists no families" status_is 0 "$folder/$program"
    expect "$program lists other families" grep -q '"name": "zimage"' "$folder/out"
done
expect "a missing argument is not refused" status_is 2 "$folder/shared_c" "$folder/model"
expect "a missing model is not refused" status_is 1 "$folder/shared_c" "$folder/none" "a red fox"
expect "a missing model is not named: $(cat "$folder/said")" grep -q "^MISSING: " "$folder/said"

# ---- without DESTDIR the loader's cache is brought up to date ----
mkdir "$folder/fake"
printf '#!/bin/sh\ntouch "%s/ldconfig_ran"\n' "$folder" >"$folder/fake/ldconfig"
chmod +x "$folder/fake/ldconfig"
without_destdir() { PATH="$folder/fake:$PATH" make -s --no-print-directory PREFIX="$folder/here" "$1" >"$folder/said" 2>&1; }
expect "ldconfig runs for DESTDIR" [ ! -e "$folder/ldconfig_ran" ]
expect "make install without DESTDIR" without_destdir install
expect "ldconfig does not run" [ -e "$folder/ldconfig_ran" ]
printf '#!/bin/sh\nexit 1\n' >"$folder/fake/ldconfig"
expect "make install without rights to run ldconfig" without_destdir install
expect "ldconfig is not mentioned" grep -q 'sudo ldconfig' "$folder/said"
without_destdir uninstall

expect "make uninstall" make_it uninstall
expect "make uninstall leaves $(lists)" [ -z "$(lists)" ]
echo "$passed passed, $failed failed"
[ $failed = 0 ]
