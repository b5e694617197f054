#!/bin/sh
# make check, make check-all: every ring in the order of its cost, with its minutes, one sum at the end. Rings that neither time anything nor
# watch the machine's memory go as many at a time as there are processors; what a ring is: ring.sh.
cd "$(dirname "$0")/.." || exit 1
. test/ring.sh
# all: every n of every kind of fault instead of a seeded few, every held-out prompt, every budget again with AVX2 and under sanitizers, and the
# readers of files once more in debug.
all=${1:-}
[ "$all" != all ] || export FAULTS=all DEMO_PROMPTS=200 DAMAGE=500 RESIDENCY=all
rm -rf $rings
mkdir -p $rings
# Each line of the input is the words of a ring.
together() {
    xargs -d '\n' -n 1 -P "$(nproc)" sh -c '. test/ring.sh; eval "ring $0"'
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
tests=$(ls test/*/test_*.c | grep -v '^test/device/' | sed 's/.*test_\(.*\)\.c/\1/')

ring house sh test/house.sh
ring format format
ring clang clang_reads
# The longest first, so that none is left alone at the end; in one process at a time what measures seconds or gives memory up.
alone="block_bench early give_up pressure rates"
longest="residency residency_flux residency_types demo store lanes damage disk"
rest=$(for name in $tests; do case " $alone $longest " in *" $name "*) ;; *) echo "$name" ;; esac done)
build tests
{
    for name in $longest $rest; do echo "'release $name' build/release/test_$name"; done
    # Most users' processors end at AVX2, where oneDNN takes other paths.
    for name in golden rings_zimage rings_flux rings_clip rings_t5 rings_vae rings_vae_encoder ops bf16; do
        echo "'avx2 $name' env DNNL_MAX_CPU_ISA=AVX2 build/release/test_$name"
    done
    echo "program sh test/program/run.sh build/release/sluice test/golden/zimage_a/model build/cli_test"
    echo "convert sh test/program/convert.sh build/release/sluice test/golden/zimage_a/model build/convert_test"
    echo "'pictures in' sh test/program/pictures.sh build/release/sluice test/golden/flux_a/model build/pictures_test"
} | together
for name in $alone; do ring "release $name" "build/release/test_$name"; done
ring "benches" sh test/program/benches.sh build/release/sluice test/golden/zimage_a/model build/benches_test
ring "install" sh test/program/install.sh
ring "budget" sh test/program/budget.sh build/release/sluice
build CONFIG=asan tests
# A few prompts are enough for the sanitizer to see every line of the demo's reader.
{
    for name in $longest $rest; do echo "'asan $name' env DEMO_PROMPTS=4 build/asan/test_$name"; done
} | together
for name in $alone; do ring "asan $name" "build/asan/test_$name"; done
if [ "$all" = all ]; then
    build CONFIG=debug build/debug/test_loaders build/debug/test_tokenizer build/debug/test_faults
    for name in loaders tokenizer; do ring "debug $name" "build/debug/test_$name"; done
    ring "debug faults" env -u FAULTS build/debug/test_faults
fi
build CONFIG=tsan build/tsan/test_store build/tsan/test_pieces build/tsan/test_early build/tsan/test_give_up
ring "tsan store" build/tsan/test_store
ring "tsan pieces" build/tsan/test_pieces
ring "tsan early" build/tsan/test_early
ring "tsan give_up" build/tsan/test_give_up
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
for config in emu asan tsan; do
    build CONFIG=$config cuda-tests
    kind=test
    [ $config != emu_tsan ] || kind=tsan
    {
        for program in build/$config/${kind}_cuda_*; do
            [ -x "$program" ] && [ "${program%.d}" = "$program" ] || continue
            echo "'$config ${program##*_cuda_}' env EMU_ORDER=random EMU_SEED=$seed $program"
        done
        echo "'$config self' build/$config/emu_self"
    } | together
    [ "$all" != all ] || ring "$config orders" emulated_orders build/$config/${kind}_cuda_ops
done
build CONFIG=emu build/emu/sluice gpu-stage
build CONFIG=emu build/emu/test_golden build/emu/test_rings_zimage build/emu/test_rings_flux build/emu/test_rings_clip build/emu/test_rings_t5 \
    build/emu/test_rings_vae build/emu/test_rings_vae_encoder build/emu/test_stored
{
    echo "'emu program' env ${all:+CALLS=$all} sh test/device/program.sh build/emu/sluice test/golden/zimage_a/model build/cuda_test"
    echo "'emu pipeline' env SLUICE_TEST_DEVICE=cuda build/emu/test_golden"
    for name in rings_zimage rings_flux rings_clip rings_t5 rings_vae rings_vae_encoder stored; do
        echo "'emu $name' env SLUICE_TEST_DEVICE=cuda build/emu/test_$name"
    done
} | together
build build/release/gpu_results
ring "readme" sh bench/gpu/readme.sh build/release/gpu_results check
ring "gpu script" sh test/program/gpu_script.sh build/emu/gpu build/gpu_script_test
if [ "$all" = all ]; then ring "emu faults" sh test/emu/faults.sh; else ring "emu faults" sh test/emu/faults.sh 2; fi
for file in $rings/*.log; do echo "=== $file"; cat "$file"; done >build/check.log
set -- $(cat $rings/*.counts | awk '{ good += $1; bad += $2 } END { print good + 0, bad + 0 }')
passed=$1
failed=$2
[ ! -s $rings/skips ] || { echo "skips other than expected in: $(paste -sd, $rings/skips)"; failed=$((failed + 1)); }
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
