#!/bin/sh
# Fails if a CUDA kernel has an empty body for some architecture: such a kernel would succeed without writing its result.
# Checks PTX, because machine code is compiled from PTX and the driver may compile PTX for any later GPU. A body is empty
# if it neither stores to memory other than the thread's own, nor calls a function, nor traps. Needs nvcc, no GPU.
#
# -G turns off optimisation of the PTX: a second per file instead of 12. Sources without __CUDA_ARCH__ have the same PTX
# for all architectures, so one architecture is checked.
#
# usage: kernel_bodies.sh NVCC FOLDER ARCH...      NVCC: command and flags; FOLDER: for the PTX; ARCH: 80, 90 ...
set -eu
nvcc=$1
folder=$2
shift 2
mkdir -p "$folder"
rm -f "$folder"/*.ptx
! grep -l '^ *#.*__CUDA_ARCH__' kernels/cuda/*.h kernels/cuda/*.cuh || {
    echo "kernel_bodies: only .cu files may test __CUDA_ARCH__, because this check searches only them for it"
    exit 1
}
for kernel in kernels/cuda/*.cu; do
    archs=$*
    grep -q __CUDA_ARCH__ "$kernel" || archs=$1
    for arch in $archs; do
        $nvcc -G -arch="compute_$arch" -ptx -o "$folder/$(basename "$kernel" .cu).$arch.ptx" "$kernel"
    done
done
awk '
    / \.entry / || /^\.entry / { name = $0; sub(/.*\.entry /, "", name); sub(/\(.*/, "", name); works = 0 }
    name != "" && /^[ \t]*(@[%!a-z0-9]+ +)?(st|red|atom|call|trap)[. \t;(]/ && !/st\.(local|param)/ { works = 1 }
    /^}/ && name != "" { works ? good++ : bad++; if (!works) print FILENAME ": " name " has an empty body"; name = "" }
    END { print good + 0 " passed, " bad + 0 " failed"; exit bad > 0 || !good }' "$folder"/*.ptx
