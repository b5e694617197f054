# Functions for check.sh: run one suite of test/suites, print its name, counts and core-seconds (processor time of all its processes), and write log and
# counts to $results. The command must print "N passed, N failed" or cmocka's summary; otherwise the suite fails.
set -u
# OpenMP threads sleep while they wait instead of spinning: suites run side by side.
export OMP_WAIT_POLICY=passive
# lacks FLAG...: prints 0 if the processor has one of the flags of /proc/cpuinfo, else 1.
lacks() {
    flags=$(sed -n 's/^flags[^:]*: *//p' /proc/cpuinfo | head -1)
    for flag in "$@"; do
        case " $flags " in *" $flag "*) echo 0 && return ;; esac
    done
    echo 1
}
lacks_bf16=$(lacks avx512_bf16 amx_bf16)

# ---- suites without a test program ----

house_holds() {
    sh test/house.sh
}
format_holds() {
    if clang-format --dry-run -Werror $(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cc'); then echo "1 passed, 0 failed"; else echo "0 passed, 1 failed"; fi
}
# Compiles all C files outside test/ with clang, warnings as errors, without linking (clang has its own OpenMP). CUDA headers are the emulator's; files that
# include cuBLASLt or cuDNN headers are skipped.
clang_holds() {
    n=0
    bad=0
    for file in $(git ls-files '*.c' ':!test'); do
        ! grep -qE '^#include <cu(blasLt|dnn).*\.h>' "$file" || continue
        n=$((n + 1))
        clang -std=c11 -D_GNU_SOURCE -fopenmp -ffp-contract=off -I. -Itest/emu -Wall -Wextra -Werror -Wshadow -Wvla \
            -Wstrict-prototypes -Wmissing-prototypes -fsyntax-only "$file" || bad=$((bad + 1))
    done
    echo "$((n - bad)) passed, $bad failed"
    [ $bad = 0 ]
}
# Runs a command only if nvcc and CUDA's headers are installed.
with_toolkit() {
    unset CUDA
    report=$(make -s cuda-said)
    echo "$report"
    case $report in *"built for GPUs"*) "$@" ;; *) echo "0 passed, 0 failed" ;; esac
}
nvcc_holds() {
    make -s -j"$(nproc)" B=build/release-nvcc CUDA_STRICT=1 all && echo "1 passed, 0 failed"
}
# Runs a test with each order of emulated threads; all must give the same bits.
emulated_orders() {
    good=0
    bad=0
    bits=
    for order in forward reverse random; do
        EMU_ORDER=$order SEED=1 "$1" >"$1.order" 2>&1 || bad=$((bad + 1))
        cat "$1.order"
        this=$(sed -n 's/.* calls, bits //p' "$1.order")
        [ -n "$this" ] && [ "${bits:=$this}" = "$this" ] && good=$((good + 1)) || bad=$((bad + 1))
    done
    echo "$good passed, $bad failed"
}
# Seeds faults in copies of the sources: the emulator's tests must detect each (test/emu/faults.sh).
emulator_finds_faults() {
    for config in asan tsan emu; do make -s CONFIG=$config cuda-tests || return; done
    sh test/emu/faults.sh
}

# ---- running a suite ----

# build CONFIG FILE...: makes files of build/CONFIG.
build() {
    config=$1
    shift
    make -s -j"$(nproc)" CONFIG="$config" $(printf "build/$config/%s " "$@")
}

# Only tests of bf16 and int8 may be skipped, and must be where the processor, or the instruction set that the suite allows oneDNN, has no
# such products.
expect_skips() {
    bf16=0
    int8=0
    case $1 in
    emu* | cuda* | *_cuda_* | *packed_blocks | *partial_blocks) ;;
    *avx2_golden | *avx2_blocks | *avx2_bf16 | *avx2_residency*) bf16=1 ;;
    *avx2_budget) bf16=1 int8=1 ;;
    *avx_vnni_int8) int8=$(lacks avx_vnni) ;;
    *vnni_int8) int8=$(lacks avx512_vnni) ;;
    *int8) int8=$(lacks avx512_vnni avx_vnni) ;;
    program) bf16=$lacks_bf16 int8=$(lacks avx512_vnni) ;;
    *budget) bf16=$lacks_bf16 int8=$(lacks avx512_vnni avx_vnni) ;;
    *golden | *blocks | *bf16 | *residency* | *ops_adapters) bf16=$lacks_bf16 ;;
    esac
    skips bf16 $bf16 "$2" && skips int8 $int8 "$2" && ! grep '^SKIP ' "$2" | grep -qv '^SKIP .*\(bf16\|int8\)'
}
# skips PRECISION EXPECTED LOG: the log has skipped tests of the precision if EXPECTED is 1, and none if it is 0.
skips() {
    skipped=0
    ! grep -q "^SKIP .*$1" "$3" || skipped=1
    [ $skipped = "$2" ]
}
# suite NAME COMMAND...
suite() {
    name=$1
    shift
    file=$results/$name
    /usr/bin/time -q -f '%U %S %e' -o "$file.time" sh -c '. test/suite.sh; eval "$0"' "$*" >"$file.log" 2>&1
    status=$?
    counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$file.log" | tail -1)
    good=$(echo "$counts" | sed -n 's/^\([0-9]*\) passed.*/\1/p')
    bad=$(echo "$counts" | sed -n 's/.* \([0-9]*\) failed.*/\1/p')
    if [ -z "$good" ]; then # cmocka's own summary
        good=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$file.log" | awk '{ n += $1 } END { print n + 0 }')
        bad=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' "$file.log" | awk '{ n += $1 } END { print n + 0 }')
        [ "$good" != 0 ] || [ "$bad" != 0 ] || bad=1
    fi
    [ $status = 0 ] || [ "$bad" != 0 ] || bad=1
    skips=as_expected
    expect_skips "$name" "$file.log" || { skips=others; bad=$((bad + 1)); }
    echo "$good $bad $(tail -1 "$file.time" | awk '{ print $1 + $2, $3 }')" >"$file.counts"
    {
        awk -v name="$name" '{ printf "%-28s %5d passed %3d failed %7.1f core-seconds %5d:%02d\n", name, $1, $2, $3, $4 / 60, $4 % 60 }' "$file.counts"
        [ $skips = as_expected ] || echo "skips other than expected:"
        grep '^SKIP ' "$file.log"
        [ "$bad" = 0 ] || grep -vE '^(SKIP|\[ +(OK|RUN))' "$file.log" | tail -40
    } >"$file.summary"
    cat "$file.summary"
}
