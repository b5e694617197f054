#!/bin/sh
# A README's tables that a program makes, between two comments: what the program prints and nothing else.
#   sh test/readme.sh check|near|write README NAME COMMAND...     between <!-- NAME ... and <!-- end of NAME
# check: to the letter. near: numbers may differ by one in their last digit or by 2 %, for what oneDNN takes of memory
# differs by instructions and version (measured: by up to 37 MiB between AVX2 and AVX-512).
set -eu
how=$1 readme=$2 name=$3
shift 3
cd "$(dirname "$0")/.."
made=$(mktemp)
trap 'rm -f "$made" "$made".*' EXIT
"$@" >"$made.table"
awk -v table="$made.table" -v name="$name" 'index($0, "<!-- end of " name) == 1 { skip = 0; ended = 1 }
    !skip { print }
    index($0, "<!-- " name) == 1 { while ((getline line <table) > 0) print line; skip = 1 }
    END { exit !ended }' "$readme" >"$made" || {
    echo "$readme has no place for $name"
    echo "0 passed, 1 failed"
    exit 1
}
same() {
    [ "$how" = near ] || { diff "$readme" "$made"; return; }
    awk -v made="$made" '
        function words(text) { gsub(/[0-9]+(\.[0-9]+)?/, "#", text); return text }
        function number(text) { return match(text, /[0-9]+(\.[0-9]+)?/) ? substr(text, RSTART, RLENGTH) : "" }
        function unit(text) { return index(text, ".") ? 10 ^ (index(text, ".") - length(text)) : 1 }
        function alike(a, b,    x, y, off, most) {
            if (words(a) != words(b)) return 0
            while ((x = number(a)) != "") {
                a = substr(a, RSTART + RLENGTH)
                y = number(b)
                b = substr(b, RSTART + RLENGTH)
                off = x + 0 > y + 0 ? x - y : y - x
                most = unit(x) > 0.02 * x ? unit(x) : 0.02 * x
                if (off > 1.001 * most) return 0
            }
            return 1
        }
        {
            if ((getline line <made) <= 0) line = "(nothing)"
            if (!alike($0, line)) { print "< " $0; print "> " line; wrong = 1 }
        }
        END { if ((getline line <made) > 0) { print "> " line; wrong = 1 }; exit wrong }' "$readme"
}
if [ "$how" = write ]; then
    cat "$made" >"$readme"
elif same; then
    echo "1 passed, 0 failed"
else
    echo "$readme says other than $name: make readme"
    echo "0 passed, 1 failed"
    exit 1
fi
