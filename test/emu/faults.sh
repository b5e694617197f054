#!/bin/sh
# Shows that the emulator's tests find faults: each fault of test/emu/faults is applied to a copy of the tree, and the test
# program built there must fail with the expected report. faults.sh [NAME...]: these faults, or all; faults.sh N: N random
# faults (SEED, else the clock). Needs the built configurations: their objects are copied, so only changed files compile.
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD
work=build/faults
passed=0
failed=0
race='WARNING: ThreadSanitizer: data race'
wrong='wrong bytes in|: error .*, gate |wrote outside its result|gave different bits'

miss() {
    echo "faults: $1: $2"
    failed=$((failed + 1))
}
# tree CONFIG: copies sources and objects with their times.
tree() {
    rm -rf "$work/tree"
    [ -d "build/$1/obj" ] || { echo "faults: CONFIG=$1 is not built: run make CONFIG=$1 cuda-tests"; exit 1; }
    mkdir -p "$work/tree/test" "$work/tree/build/$1" "$work/tree/bench"
    cp -a Makefile engine kernels loaders models cli "$work/tree/"
    cp -a bench/gpu bench/dev "$work/tree/bench/"
    cp -a test/*.mk test/lib test/emu test/device test/fuzz "$work/tree/test/"
    cp -a "build/$1/obj" "$work/tree/build/$1/"
}
# put NAME FILE: applies a fault, which must change or delete exactly one line.
put() {
    cp -p "$2" "$work/before"
    sed -i -f "test/emu/faults/$1.sed" "$2"
    changed=$(diff "$work/before" "$2" | grep -c '^<')
    added=$(diff "$work/before" "$2" | grep -c '^>')
    [ "$changed" = 1 ] && [ "$added" -le 1 ]
}
# fault NAME FILE CONFIG PROGRAM TESTS REPORT: TESTS is a cmocka pattern, REPORT a grep -E pattern.
fault() {
    case " $wanted " in *" $1 "* | "  ") ;; *) return ;; esac
    tree "$3"
    put "$1" "$work/tree/$2" || { miss "$1" "does not apply to $2"; return; }
    rm -f "$work/tree/build/$3/$4"
    make -C "$work/tree" -s -j"$(nproc)" CONFIG="$3" "build/$3/$4" >"$work/$1.log" 2>&1 ||
        { miss "$1" "does not build: $root/$work/$1.log"; return; }
    ONLY=$5 SEED=1 timeout 600 "$work/tree/build/$3/$4" >"$work/$1.log" 2>&1
    status=$?
    line=$(grep -m1 -E "$6" "$work/$1.log")
    if [ $status = 0 ] || [ $status = 124 ] || [ -z "$line" ]; then
        miss "$1" "not reported by $4 (status $status): $root/$work/$1.log"
    else
        passed=$((passed + 1))
        echo "$1: $line"
    fi
}

wanted=$*
case "$wanted" in
[1-9])
    wanted=$(ls test/emu/faults | sed -n 's/\.sed$//p' | awk -v seed="${SEED:-$(date +%s)}" 'BEGIN { srand(seed) } { print rand(), $1 }' |
        sort | awk -v n="$wanted" 'NR <= n { print $2 }' | tr '\n' ' ')
    ;;
esac
mkdir -p $work
fault await kernels/cuda/streams.c tsan test_cuda_store test_copies_precede_operators "$race"
fault event kernels/cuda/streams.c tsan test_cuda_store test_copies_precede_operators "$race"
fault barrier kernels/cuda/attention.cu tsan test_cuda_ops test_attention "$race|$wrong"
fault index kernels/cuda/image.cu asan test_cuda_ops test_elementwise "AddressSanitizer|$wrong"
fault distance kernels/cuda/attention.cu asan test_cuda_ops test_attention "AddressSanitizer|$wrong"
fault slot engine/run/store_pieces.c tsan test_cuda_store test_copies_precede_operators "$race"
fault pin engine/run/resident_memory.c emu test_cuda_store test_copies_precede_operators 'copies from memory that is not pinned'
fault strides test/emu/warps.cc emu test_cuda_fragments test_strides 'FAILED.*test_strides'
export EMU_MMA=truncate
fault cut test/emu/warps.cc emu test_cuda_ops test_attention "$wrong"
unset EMU_MMA
fault int8_strides test/emu/warps.cc emu test_cuda_fragments test_mma_s8 'FAILED.*test_mma_s8'
fault int8_barrier kernels/cuda/linear_int8.cu emu test_cuda_int8 test_epilogue_matches_f64 'case .*: error|different bits'
fault int8_swizzle kernels/cuda/linear_int8.cu emu test_cuda_accesses 'test_accesses*' 'passes per 100 phases'
fault int8_mean kernels/cuda/attention_int8.cu emu test_cuda_attention test_errors 'channel bias: error'
fault int8_tile kernels/cuda/attention_int8.cu emu test_cuda_attention test_errors ': error .*, measured'
fault bank kernels/cuda/attention.cu emu test_cuda_accesses 'test_accesses*' 'passes per 100 phases'
fault sector kernels/cuda/row_access.cuh emu test_cuda_accesses 'test_accesses*' 'sectors per 100 needed'
rm -rf "$work/tree"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
