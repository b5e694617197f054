# The tables of models/README.md, from `sluice families --plans --json`: one member a line, indented.
#   sluice families --plans --json | awk -f test/families.awk
# J[PATH] is a value: "0/name" of the first family, "0/plans/2/seconds"; N[PATH] is the length of a list.
function text(line) {
    sub(/,$/, "", line)
    gsub(/^"|"$/, "", line)
    return line == "null" ? "" : line
}
{
    line = $0
    sub(/^ */, "", line)
    if (line ~ /^[]}]/) { path = parent[depth--]; next }
    key = ""
    if (match(line, /^"[^"]*": /)) {
        key = substr(line, 2, RLENGTH - 4)
        line = substr(line, RLENGTH + 1)
    } else if (NR > 1) {
        key = N[path]++
    }
    at = key == "" || path == "" ? key : path "/" key
    if (line ~ /^[[{]/ && line !~ /[]}],?$/) {
        parent[++depth] = path
        path = at
    } else {
        J[at] = line ~ /^[[{]/ ? "" : text(line)
    }
}
function family(f, key) { return J["families/" f "/" key] }
function brief(seconds,    n) { # a time in one unit
    seconds += 0
    if (seconds < 600) return sprintf(seconds >= 9.95 ? "%.0f s" : seconds >= 0.995 ? "%.1f s" : "%.2f s", seconds)
    if ((n = seconds / 60) < 180) return sprintf("%.0f min", n)
    if ((n = seconds / 3600) < 72) return sprintf("%.0f h", n)
    return sprintf("%.0f days", seconds / 86400)
}
function gib(plan, key) { return J[plan "/" key "_bytes"] / 1073741824 }
function put(word) { # a word of a list item that is wrapped to 120 columns
    if (column && column + 1 + length(word) > 119) { printf "\n "; column = 1 }
    printf "%s%s", (column ? " " : ""), word
    column += (column ? 1 : 0) + length(word)
}
function phrase(f, what,    i, list) {
    if (what == "layouts") {
        for (i = 0; i < N["families/" f "/layouts"]; i++) list = list (i ? ", " : " ") family(f, "layouts/" i)
        return "opened from" list ":"
    }
    if (family(f, "reference") != "") return "compared with " family(f, "reference") " as whole pipelines:"
    return "compared part by part only, parts of `" family(f, "like") "`:"
}
# One item for each phrase: its families, or, where most families share it, all but the others.
function shared(what,    f, k, n, i, words, same, names, first) {
    for (f = 0; f < all; f++) {
        n = names = 0
        first = 1
        for (k = 0; k < all; k++) {
            same = phrase(k, what) == phrase(f, what)
            if (same && k < f) first = 0
            n += same
        }
        if (!first) continue
        column = 0
        put("-")
        names = split(phrase(f, what) (2 * n <= all ? "" : n < all ? " all but" : " all"), words, " ")
        for (i = 1; i <= names; i++) put(words[i])
        names = 2 * n <= all ? n : all - n
        for (k = 0; k < all; k++)
            if ((phrase(k, what) == phrase(f, what)) == (2 * n <= all))
                put("`" family(k, "name") "`" (--names ? "," : ""))
        printf "\n"
    }
}
function source(f, s,    at) {
    at = "sources/" s "/"
    return family(f, at "repository") SUBSEP family(f, at "files") SUBSEP family(f, at "flag")
}
function has_source(f, what,    s) {
    for (s = 0; s < N["families/" f "/sources"]; s++) if (source(f, s) == what) return 1
    return 0
}
# Who uses a source: among the families with the same denoiser. "": an earlier family lists the source.
function users(f, s,    k, n, related, list) {
    for (k = 0; k < all; k++) {
        if (family(k, "denoiser") != family(f, "denoiser")) continue
        related++
        if (!has_source(k, source(f, s))) continue
        if (k < f) return ""
        list = list (n++ ? ", " : "") "`" family(k, "name") "`"
    }
    return n == related && n > 1 ? "all `" family(f, "denoiser") "` families" : list
}
END {
    all = N["families"]
    short["--negative-prompt"] = "-n"
    short["--init-img"] = "-i"
    short["--ref-image"] = "-r"
    print "| `--family` | models | size, steps | inputs besides the prompt |\n|---|---|---|---|"
    for (f = 0; f < all; f++) {
        frames = family(f, "frames") + 0 > 1 ? " x " family(f, "frames") : ""
        printf "| `%s` | %s | %sx%s%s, %s | ", family(f, "name"), family(f, "title"), family(f, "width"),
            family(f, "height"), frames, family(f, "steps")
        for (i = 0; i < N["families/" f "/takes"]; i++) {
            flag = family(f, "takes/" i "/flag")
            strong = family(f, "takes/" i "/needed") == "true" ? "**" : ""
            if (flag in short) flag = short[flag]
            printf "%s%s`%s`%s", (i ? " " : ""), strong, flag, strong
        }
        print " |"
    }
    print ""
    shared("reference")
    shared("layouts")
    print "\n| `--family` | flag | on Hugging Face | files, GB |\n|---|---|---|---|"
    for (f = 0; f < all; f++)
        for (s = 0; s < N["families/" f "/sources"]; s++) {
            at = "sources/" s "/"
            if ((who = users(f, s)) == "") continue
            files = family(f, at "files") == "" ? "the folder" : "`" family(f, at "files") "`"
            if (family(f, at "megabytes") + 0 > 0) files = files sprintf(", %.3g", family(f, at "megabytes") / 1000)
            flag = family(f, at "flag") == "" ? "-m" : family(f, at "flag")
            printf "| %s | `%s` | `%s` | %s |\n", who, flag, family(f, at "repository"), files
        }
    print "\n| network | flag | models | GB in bf16 | on Hugging Face |\n|---|---|---|---|---|"
    for (f = 0; f < N["networks"]; f++) {
        at = "networks/" f "/"
        list = J[at "kind"] == "control" ? "" : "all"
        for (i = 0; i < N[at "of"]; i++) list = list (i ? ", " : "") "`" J[at "of/" i] "`"
        files = N[at "sources"] ? "" : "-"
        for (i = 0; i < N[at "sources"]; i++) {
            file = J[at "sources/" i "/files"]
            files = files (i ? ", " : "") "`" J[at "sources/" i "/repository"] (file == "" ? "" : "/" file) "`"
        }
        printf "| `%s` | `%s` | %s | %.3g | %s |\n", J[at "name"], J[at "flag"], list, J[at "bytes"] / 1e9, files
    }
    print "\nVRAM + RAM and RAM: minimum, GiB. Other columns: predicted time per step, total.\n"
    for (f = -1; f < all; f++) { # -1: the head
        line = f < 0 ? "| `--family`" : "| `" family(f, "name") "`"
        plans = N["families/" (f < 0 ? 0 : f) "/plans"]
        for (i = 0; i < plans; i++) {
            plan = "families/" (f < 0 ? 0 : f) "/plans/" i
            card = J[plan "/card"]
            sub(/^GeForce /, "", card)
            sub(/,.*/, "", card)
            on_card = gib(plan, "budget/vram") > 0
            if (!on_card) card = "2 cores"
            least = (on_card ? sprintf("%.1f + ", gib(plan, "least/vram")) : "") sprintf("%.1f", gib(plan, "least/ram"))
            fits = gib(plan, "least/vram") <= gib(plan, "budget/vram") &&
                gib(plan, "least/ram") <= gib(plan, "budget/ram")
            times = fits ? brief(J[plan "/step_seconds"]) ", " brief(J[plan "/seconds"]) : "-"
            if (!i || !on_card) line = line " | " (f >= 0 ? least : on_card ? "VRAM + RAM" : "RAM")
            line = line " | " (f >= 0 ? times : card)
        }
        print line " |"
        if (f < 0) {
            printf "|---|---|"
            for (i = 0; i < plans; i++) printf "---|"
            print "---|"
        }
    }
    print ""
    for (i = 0; i < plans; i++) print "    " family(0, "plans/" i "/command")
}
