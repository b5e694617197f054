#!/bin/sh
# make check, make check-all: every ring in the order of its cost, with its minutes, one sum at the end. Each ring is a command whose output
# holds a line "N passed, N failed" or cmocka's summary; a ring that prints neither counts as failed.
set -u
cd "$(dirname "$0")/.." || exit 1
# all: every n of every kind of fault instead of a seeded few, every held-out prompt, and the readers of files once more in debug.
all=${1:-}
[ "$all" != all ] || export FAULTS=all DEMO_PROMPTS=200 DAMAGE=500
# OpenMP's threads sleep rather than spin while they wait: tests share the machine with others.
export OMP_WAIT_POLICY=passive
passed=0
failed=0
skips=
lacks_bf16=1
grep -qE '^flags.*(avx512_bf16|amx_bf16)' /proc/cpuinfo && lacks_bf16=0
log=build/check.log
mkdir -p build
: >"$log"
ring() {
    name=$1
    shift
    began=$(date +%s)
    "$@" >build/ring.log 2>&1
    status=$?
    seconds=$(($(date +%s) - began))
    counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed' build/ring.log | tail -1)
    good=$(echo "$counts" | sed -n 's/^\([0-9]*\) passed.*/\1/p')
    bad=$(echo "$counts" | sed -n 's/.* \([0-9]*\) failed.*/\1/p')
    if [ -z "$good" ]; then # cmocka's own summary
        good=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' build/ring.log | awk '{ n += $1 } END { print n + 0 }')
        bad=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' build/ring.log | awk '{ n += $1 } END { print n + 0 }')
        [ "$good" != 0 ] || [ "$bad" != 0 ] || bad=1
    fi
    [ $status = 0 ] || [ "$bad" != 0 ] || bad=1
    passed=$((passed + good))
    failed=$((failed + bad))
    printf '%-28s %5d passed %3d failed  %d.%d min\n' "$name" "$good" "$bad" $((seconds / 60)) $((seconds % 60 / 6))
    { echo "=== $name"; cat build/ring.log; } >>"$log"
    expect_skips "$name" build/ring.log
    if [ "$bad" != 0 ]; then
        grep -vE '^(SKIP|\[ +(OK|RUN))' build/ring.log | tail -40
    fi
}
# Nothing is skipped but bf16, and that only where the processor, or what the ring lets oneDNN use of it, has no
# instructions for it; there it is skipped and never computed.
expect_skips() {
    case $1 in
    avx2\ golden | avx2\ rings_zimage | avx2\ rings_flux | avx2\ rings_clip | avx2\ rings_t5 | avx2\ bf16) expected=1 ;;
    *\ golden | *\ rings_zimage | *\ rings_flux | *\ rings_clip | *\ rings_t5 | *\ bf16 | *\ residency* | program | budget) expected=$lacks_bf16 ;;
    *) expected=0 ;;
    esac
    skipped=0
    grep '^SKIP .*bf16' "$2" && skipped=1
    [ $skipped = $expected ] || skips="$skips $1"
    grep '^SKIP ' "$2" | grep -v '^SKIP .*bf16' && skips="$skips $1"
    return 0
}
format() {
    if clang-format --dry-run -Werror $(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cc'); then echo "1 passed, 0 failed"; else echo "0 passed, 1 failed"; fi
}
# The second compiler: warnings are errors there too. Nothing of it is linked: it has its own OpenMP. CUDA's headers are the
# emulator's; what includes those of cuBLASLt and cuDNN is read by gcc alone, where they are.
clang_reads() {
    n=0
    bad=0
    for file in $(git ls-files '*.c'); do
        ! grep -qE '^#include <cu(blasLt|dnn).*\.h>' "$file" || continue
        n=$((n + 1))
        clang -std=c11 -D_GNU_SOURCE -fopenmp -ffp-contract=off -I. -Itest/emu -Wall -Wextra -Werror -Wshadow -Wvla \
            -Wstrict-prototypes -Wmissing-prototypes -fsyntax-only "$file" || bad=$((bad + 1))
    done
    echo "$((n - bad)) passed, $bad failed"
    [ $bad = 0 ]
}
build() {
    make -s -j"$(nproc)" "$@" >build/make.log 2>&1 || { tail -30 build/make.log; echo "0 passed, 1 failed"; exit 1; }
}
tests=$(ls test/test_*.c | sed 's/.*test_\(.*\)\.c/\1/')

ring house sh test/house.sh
ring format format
ring clang clang_reads
build tests
for name in $tests; do ring "release $name" "build/release/test_$name"; done
# Most users' processors end at AVX2, where oneDNN takes other paths.
for name in golden rings_zimage rings_flux rings_clip rings_t5 rings_vae rings_vae_encoder ops bf16; do
    ring "avx2 $name" env DNNL_MAX_CPU_ISA=AVX2 "build/release/test_$name"
done
ring "program" sh test/cli/run.sh build/release/sluice test/golden/zimage_a/model build/cli_test
ring "pictures in" sh test/cli/pictures.sh build/release/sluice test/golden/flux_a/model build/pictures_test
ring "benches" sh test/cli/benches.sh build/release/sluice test/golden/zimage_a/model build/benches_test
ring "install" sh test/test_install.sh
ring "budget" sh test/test_budget.sh build/release/sluice
build CONFIG=asan tests
# A few prompts are enough for the sanitizer to see every line of the demo's reader.
for name in $tests; do ring "asan $name" env DEMO_PROMPTS=4 "build/asan/test_$name"; done
if [ "$all" = all ]; then
    build CONFIG=debug build/debug/test_loaders build/debug/test_tokenizer build/debug/test_faults
    for name in loaders tokenizer; do ring "debug $name" "build/debug/test_$name"; done
    ring "debug faults" env -u FAULTS build/debug/test_faults
fi
build CONFIG=tsan build/tsan/tsan_store build/tsan/tsan_pieces build/tsan/tsan_early build/tsan/tsan_give_up
ring "tsan store" build/tsan/tsan_store
ring "tsan pieces" build/tsan/tsan_pieces
ring "tsan early" build/tsan/tsan_early
ring "tsan give_up" build/tsan/tsan_give_up
# The CUDA device on the CPU: one order of threads, or all three, whose results are the same bits.
emulated_orders() {
    good=0
    bad=0
    bits=
    for order in forward reverse random; do
        EMU_ORDER=$order SEED=1 "$1" >build/order.log 2>&1 || bad=$((bad + 1))
        cat build/order.log
        this=$(sed -n 's/.* calls, bits //p' build/order.log)
        [ -n "$this" ] && [ "${bits:=$this}" = "$this" ] && good=$((good + 1)) || bad=$((bad + 1))
    done
    echo "$good passed, $bad failed"
}
said=$(make -s cuda-said)
echo "$said"
case $said in *"built for GPUs"*) ring "cuda doors" make -s doors ;; esac
seed=$(date +%s)
echo "threads go on in random order, EMU_SEED=$seed"
for config in emu emu_asan emu_tsan; do
    build CONFIG=$config cuda-tests
    ring "$config self" build/$config/emu_self
    kind=test
    [ $config != emu_tsan ] || kind=tsan
    for program in build/$config/${kind}_cuda_*; do
        [ -x "$program" ] && [ "${program%.d}" = "$program" ] || continue
        ring "$config ${program##*_cuda_}" env EMU_ORDER=random EMU_SEED="$seed" "$program"
    done
    [ "$all" != all ] || ring "$config orders" emulated_orders build/$config/${kind}_cuda_ops
done
build CONFIG=emu build/emu/sluice gpu-stage
ring "emu program" env ${all:+CALLS=$all} sh test/cuda/program.sh build/emu/sluice test/golden/zimage_a/model build/cuda_test
build CONFIG=emu build/emu/test_golden build/emu/test_rings_zimage build/emu/test_rings_flux build/emu/test_rings_clip build/emu/test_rings_t5 \
    build/emu/test_rings_vae build/emu/test_rings_vae_encoder
ring "emu pipeline" env SLUICE_TEST_DEVICE=cuda build/emu/test_golden
ring "emu blocks" env SLUICE_TEST_DEVICE=cuda build/emu/test_rings_zimage
for family in flux clip t5; do ring "emu $family blocks" env SLUICE_TEST_DEVICE=cuda build/emu/test_rings_$family; done
ring "emu decoder" env SLUICE_TEST_DEVICE=cuda build/emu/test_rings_vae
ring "emu encoder" env SLUICE_TEST_DEVICE=cuda build/emu/test_rings_vae_encoder
build build/release/gpu_results
ring "readme" sh bench/gpu/readme.sh build/release/gpu_results check
ring "gpu script" sh test/test_gpu_script.sh build/emu/gpu build/gpu_script_test
if [ "$all" = all ]; then ring "emu faults" sh test/emu/faults.sh; else ring "emu faults" sh test/emu/faults.sh 2; fi
[ -z "$skips" ] || { echo "skips other than expected in:$skips"; failed=$((failed + 1)); }
echo "$passed passed, $failed failed"
[ $failed = 0 ]
