# One ring of check.sh, which reads this: runs a command, prints its name, sums and minutes, keeps what it said in build/rings. The command's
# output holds a line "N passed, N failed" or cmocka's summary; a ring that prints neither counts as failed.
set -u
# OpenMP's threads sleep rather than spin while they wait: tests share the machine with others.
export OMP_WAIT_POLICY=passive
rings=build/rings
lacks_bf16=1
grep -qE '^flags.*(avx512_bf16|amx_bf16)' /proc/cpuinfo && lacks_bf16=0
# Nothing is skipped but bf16, and that only where the processor, or what the ring lets oneDNN use of it, has no
# instructions for it; there it is skipped and never computed.
expect_skips() {
    case $1 in
    emu*) expected=0 ;;
    avx2\ golden | avx2\ rings_zimage | avx2\ rings_flux | avx2\ rings_clip | avx2\ rings_t5 | avx2\ bf16) expected=1 ;;
    *\ golden | *\ rings_zimage | *\ rings_flux | *\ rings_clip | *\ rings_t5 | *\ bf16 | *\ residency* | program | budget) expected=$lacks_bf16 ;;
    *) expected=0 ;;
    esac
    skipped=0
    grep '^SKIP .*bf16' "$2" && skipped=1
    [ $skipped = $expected ] || echo "$1" >>$rings/skips
    grep '^SKIP ' "$2" | grep -v '^SKIP .*bf16' && echo "$1" >>$rings/skips
    return 0
}
# ring NAME COMMAND...
ring() {
    name=$1
    shift
    file=$rings/$(echo "$name" | tr ' /' '__')
    began=$(date +%s)
    ("$@") >"$file.log" 2>&1
    status=$?
    seconds=$(($(date +%s) - began))
    counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$file.log" | tail -1)
    good=$(echo "$counts" | sed -n 's/^\([0-9]*\) passed.*/\1/p')
    bad=$(echo "$counts" | sed -n 's/.* \([0-9]*\) failed.*/\1/p')
    if [ -z "$good" ]; then # cmocka's own summary
        good=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$file.log" | awk '{ n += $1 } END { print n + 0 }')
        bad=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' "$file.log" | awk '{ n += $1 } END { print n + 0 }')
        [ "$good" != 0 ] || [ "$bad" != 0 ] || bad=1
    fi
    [ $status = 0 ] || [ "$bad" != 0 ] || bad=1
    echo "$good $bad" >"$file.counts"
    {
        printf '%-28s %5d passed %3d failed  %d.%d min\n' "$name" "$good" "$bad" $((seconds / 60)) $((seconds % 60 / 6))
        expect_skips "$name" "$file.log"
        [ "$bad" = 0 ] || grep -vE '^(SKIP|\[ +(OK|RUN))' "$file.log" | tail -40
    } >"$file.said"
    cat "$file.said"
}
