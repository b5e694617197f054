#!/bin/sh
# Prints ptxas statistics of every kernel for each architecture: registers, stack and spills in bytes, instructions,
# instructions of its main loop (the loop with most tensor core instructions, else the longest; a loop may contain
# rarely executed code), and the loop's tensor core, shared memory and special function instructions. Fails if a kernel
# spills, has a stack, or neither stores nor traps. Needs nvcc and cuobjdump, no GPU.
#
# usage: sass.sh FOLDER ARCH...      FOLDER: NAME.ARCH.cubin and NAME.ARCH.log, written by make sass
set -eu
folder=$1
shift
cuobjdump=$(command -v cuobjdump || echo /usr/local/cuda/bin/cuobjdump)
[ -x "$cuobjdump" ] || { echo "sass: cuobjdump not found (PyPI: nvidia-cuda-cuobjdump)" >&2; exit 1; }

# Converts ptxas lines, then cuobjdump lines, of one file to lines "kernel registers stack spills instructions loop mma
# shared special works". works: number of instructions that store or trap.
figures() {
    awk '
    function end_kernel(   i, j, n, best, best_mma, mma, first, last) {
        if (kernel == "") return
        best = -1; best_mma = -1
        for (i = 0; i < n_back; i++) {
            first = place[target[i]]; last = from[i]
            mma = 0
            for (j = first; j <= last; j++) mma += code[j] ~ /^[HQ]MMA/
            n = last - first + 1
            if (mma > best_mma || (mma == best_mma && n > best)) { best = n; best_mma = mma; at = first; to = last }
        }
        shared = special = 0
        if (best > 0) for (j = at; j <= to; j++) { shared += code[j] ~ /^(LDSM|LDS|STS|LDGSTS)/; special += code[j] ~ /^MUFU/ }
        printf "%s %d %d %d %d %d %d %d %d %d\n", kernel, registers[kernel], stack[kernel], spills[kernel], n_code, best < 0 ? 0 : best,
            best_mma < 0 ? 0 : best_mma, shared, special, works
    }
    /Function properties for/ { of = $NF }
    /bytes stack frame/ { stack[of] = $1; spills[of] = $5 + $9 }
    /Used [0-9]+ registers/ { for (i = 1; i < NF; i++) if ($i == "Used") registers[of] = $(i + 1) }
    /^\t\tFunction : / { end_kernel(); kernel = $3; n_code = n_back = works = 0; delete place; delete code }
    /^ +\/\*[0-9a-f]+\*\/ / {
        address = substr($1, 3, length($1) - 4)
        sub(/^0+/, "", address)
        op = $2
        operand = $3
        if (op ~ /^@/) { op = $3; operand = $4 }
        if (op == "NOP") next
        works += op ~ /^(ST|STG|RED|REDG|ATOM|ATOMG|BPT)(\.|$)/
        place[address] = n_code; code[n_code] = op
        if (op ~ /^BRA/) {
            for (i = 2; i <= NF; i++) if ($i ~ /^0x[0-9a-f]+$/) { operand = $i; break }
            sub(/^0x0*/, "", operand)
            if (operand in place) { from[n_back] = n_code; target[n_back++] = operand }
        }
        n_code++
    }
    END { end_kernel() }'
}

printf '%-72s %-8s %5s %5s %6s %6s %5s %4s %6s %7s\n' kernel for regs stack spills instr. loop mma shared special
bad=0
for cubin in "$folder"/*."$1".cubin; do
    name=$(basename "$cubin" ".$1.cubin")
    for arch in "$@"; do
        { cat "$folder/$name.$arch.log"; "$cuobjdump" -sass "$folder/$name.$arch.cubin"; } | figures >"$folder/$name.$arch.figures"
        awk -v arch="sm_$arch" '{ print $1, arch, $2, $3, $4, $5, $6, $7, $8, $9, $10 }' "$folder/$name.$arch.figures"
    done
done | c++filt | sed 's/^void //; s/(\([^)]*\)) sm_/ sm_/' >"$folder/figures"
sort -s -k1,1 "$folder/figures" | awk '{ n = NF; name = $1; for (i = 2; i <= n - 10; i++) name = name $i
    printf "%-72s %-8s %5d %5d %6d %6d %5d %4d %6d %7d\n", name, $(n - 9), $(n - 8), $(n - 7), $(n - 6), $(n - 5), $(n - 4), $(n - 3), $(n - 2), $(n - 1) }'
awk '{ kernels++; if ($(NF - 7) + $(NF - 6) > 0) { bad++; print "sass: spills or stack: " $0 } else if (!$NF) { bad++; print "sass: neither stores nor traps: " $0 } } END { print kernels - bad " passed, " bad + 0 " failed"; exit bad > 0 || !kernels }' \
    "$folder/figures" || bad=1
exit $bad
