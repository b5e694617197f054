#!/bin/sh
# GPU architectures that make chooses, and the driver that a bundle names: dry runs with a fake toolkit, which compile
# nothing.
set -u
cd "$(dirname "$0")/../.." || exit 1
folder=$(mktemp -d /tmp/sluice-architectures-XXXXXX) || exit 1
trap 'rm -rf "$folder"' EXIT
unset CUDA CUDA_ARCHS MAKEFLAGS
passed=0
failed=0

# toolkit RELEASE ARCH...: a toolkit whose nvcc has this release and supports these architectures
toolkit() {
    release=$1
    shift
    mkdir -p "$folder/bin" "$folder/include"
    : >"$folder/include/cudnn.h"
    printf '#!/bin/sh\ncase $1 in\n--version) echo "Cuda compilation tools, release %s, V%s.88" ;;\n--list-gpu-code) printf "sm_%%s\\n" %s ;;\nesac\n' \
        "$release" "$release" "$*" >"$folder/bin/nvcc"
    chmod +x "$folder/bin/nvcc"
}
# dry_run TARGET [VARIABLE=VALUE...]: commands and messages of make in $folder/log
dry_run() {
    target=$1
    shift
    make -n --no-print-directory CONFIG=release CUDA=1 NVCC="$folder/bin/nvcc" B="$folder/build" "$@" "$target" >"$folder/log" 2>&1
}
# expect NAME PATTERN: the log has a line that matches
expect() {
    if grep -q -e "$2" "$folder/log"; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "architectures: $1: no line matches: $2" && cat "$folder/log"; fi
}
# builds NAME "ARCH..." "PTX..." [VARIABLE=VALUE...]: checks the -gencode options
builds() {
    name=$1 wanted=
    for arch in $2; do wanted="$wanted -gencode arch=compute_$arch,code=sm_$arch"; done
    for arch in $3; do wanted="$wanted -gencode arch=compute_$arch,code=compute_$arch"; done
    shift 3
    dry_run "$folder/build/obj/kernels/cuda/attention.o" "$@"
    expect "$name" "-ccbin [^ ]* *$(echo "$wanted" | sed 's/^ *//;s/ /  */g') *-Xptxas"
}

toolkit 13.0 75 80 86 87 88 89 90 100 110 103 120 121
builds "two architectures" "80 89" 89 CUDA_ARCHS="80 89"
builds "PTX of 9.0 for GPUs between generations" "80 90 120" "120 90" CUDA_ARCHS="80 90 120"
builds "an unknown architecture beside a known one" 80 80 CUDA_ARCHS="80 999"
expect "message" 'cuda: this nvcc does not support sm_999: skipped'
builds "only unknown architectures" "80 90 120" "120 90" CUDA_ARCHS="998 999"
expect "message" 'cuda: this nvcc does not support sm_998 sm_999: skipped'
expect "message" 'cuda: CUDA_ARCHS has no supported architecture: building for sm_80 sm_90 sm_120'
builds "an architecture that kernels do not support" "80 90 120" "120 90" CUDA_ARCHS=75
toolkit 12.4 75 80 86 87 89 90
builds "an old toolkit" "80 90" 90 CUDA_ARCHS=120
expect "message" 'cuda: CUDA_ARCHS has no supported architecture: building for sm_80 sm_90$'
toolkit 10.2 70 75
dry_run all CUDA_ARCHS=75
expect "no architecture" 'supports none of sm_80 sm_90 sm_120: install CUDA 12.8 or later, or use CUDA=0'

for pair in 13.0:580 13.2:580 12.8:525 12.9:525 14.1:unknown; do
    toolkit "${pair%:*}" 80 90 120
    dry_run gpu-stage GPU_PROGRAMS=
    expect "driver for CUDA ${pair%:*}" "^echo ${pair#*:} >.*/gpu/driver"
done

echo "$passed passed, $failed failed"
[ $failed = 0 ]
