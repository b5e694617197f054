#!/bin/sh
# The tables of GPUs in bench/README.md, between two comments: what the results in bench/results say and nothing else.
#   sh bench/gpu/readme.sh GPU_RESULTS check|write
set -eu
results=$1
cd "$(dirname "$0")/../.."
case "$results" in /*) ;; *) results=./$results ;; esac
made=$(mktemp)
trap 'rm -f "$made"' EXIT
"$results" readme bench/results/*.json >"$made.table"
awk -v table="$made.table" '/^<!-- end of GPU results/ { skip = 0 }
    !skip { print }
    /^<!-- GPU results/ { while ((getline line <table) > 0) print line; skip = 1 }' bench/README.md >"$made"
rm -f "$made.table"
grep -q '^<!-- end of GPU results' "$made" || { echo "bench/README.md has no place for GPU results"; echo "0 passed, 1 failed"; exit 1; }
if [ "$2" = write ]; then
    cat "$made" >bench/README.md
elif diff bench/README.md "$made"; then
    echo "1 passed, 0 failed"
else
    echo "bench/README.md says other than bench/results: make readme"
    echo "0 passed, 1 failed"
    exit 1
fi
