#!/bin/sh
# Generated tables in READMEs, between <!-- NAME ... and <!-- end of NAME: must equal the output of a program.
#   sh test/readme.sh check|near|write README NAME COMMAND...
# check: exactly. near: memory sizes between | and + may differ by one in the last digit or by 2 %: oneDNN's memory depends on
# instruction set and version (measured: up to 37 MiB between AVX2 and AVX-512).
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
    echo "$readme has no markers for the table $name"
    echo "0 passed, 1 failed"
    exit 1
}
same() {
    [ "$how" = near ] || { diff "$readme" "$made"; return; }
    awk -v made="$made" '
        function words(text) { gsub(/[0-9]+(\.[0-9]+)?/, "#", text); return text }
        function number(text) { match(text, /[0-9]+(\.[0-9]+)?/); return substr(text, RSTART, RLENGTH) }
        function unit(text) { return index(text, ".") ? 10 ^ (index(text, ".") - length(text)) : 1 }
        function near(a, b,    x, y, most) {
            x = number(a)
            y = number(b)
            most = unit(x) > 0.02 * x ? unit(x) : 0.02 * x
            return words(a) == words(b) && x - y <= 1.001 * most && y - x <= 1.001 * most
        }
        # Text before the next memory size (in found); the rest is in tail.
        function head(text) {
            if (!match(text, /[|+] [0-9]+\.[0-9] [|+]/)) RSTART = 0
            found = RSTART ? substr(text, RSTART, RLENGTH) : ""
            tail = RSTART ? substr(text, RSTART + RLENGTH) : ""
            return RSTART ? substr(text, 1, RSTART - 1) : text
        }
        function alike(a, b,    before, size) {
            gsub(/[|+]/, "&&", a)
            gsub(/[|+]/, "&&", b)
            do {
                before = head(a)
                size = found
                a = tail
                if (before != head(b) || (size == "") != (found == "")) return 0
                b = tail
                if (size != "" && !near(size, found)) return 0
            } while (size != "")
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
    echo "$readme: table $name is out of date; run make readme"
    echo "0 passed, 1 failed"
    exit 1
fi
