#!/bin/sh
# Assembles the folder for a machine with a GPU: programs, their libraries except glibc's and CUDA's, models, golden
# files, the script. The bundle is this folder.
# sh bench/gpu/stage.sh BUILD_FOLDER FOLDER PROGRAM...
set -eu
build=$1
to=$2
shift 2
rm -rf "$to"
mkdir -p "$to/bin" "$to/lib/compiler" "$to/test/golden" "$to/models"
for program in "$@"; do strip --strip-unneeded -o "$to/bin/$program" "$build/$program"; done
# Driver and CUDA libraries are opened at run time; if one is linked nevertheless, it is not copied.
for program in "$to"/bin/*; do ldd "$program"; done | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
    while read -r name path; do
        case "$name" in
        libc.so* | libm.so* | libpthread.so* | librt.so* | libdl.so* | ld-linux* | libcuda* | libcublas* | libcudnn* | libnv*) ;;
        # Usually the machine has its own compiler libraries, which its other libraries need; run.sh uses these copies
        # only if there are none.
        libstdc++* | libgcc_s*) cp -L "$path" "$to/lib/compiler/$name" ;;
        *) cp -L "$path" "$to/lib/$name" && strip --strip-unneeded "$to/lib/$name" ;;
        esac
    done
cp -r test/golden/zimage_? test/golden/flux_* test/golden/vae_encoder test/golden/demo test/golden/quantised "$to/test/golden/"
cp -r models/demo "$to/models/"
rm -f "$to/models/demo/gallery.png"
cp bench/gpu/run.sh bench/gpu/torch_compare.py "$to/"
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] || commit=$commit-changed
echo "$commit" >"$to/commit"
