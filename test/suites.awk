# Expands test/suites to one line per suite, tab-separated: tier (check, all; with +: runs alone), name, CONFIG or -, targets, command.
# -v programs="...": names of all test programs.
BEGIN { FS = " *\\| *" }
/^ *(#|$)/ { next }
{
    n = split($2, names, " ")
    for (i = 1; i <= n; i++) {
        before = index(names[i], ":") ? substr(names[i], 1, index(names[i], ":") - 1) "_" : ""
        own = substr(names[i], index(names[i], ":") + 1)
        if (own != "programs") {
            suite(before, own)
            continue
        }
        n_programs = split(programs, all, " ")
        for (k = 1; k <= n_programs; k++)
            if (!((before all[k]) in known)) suite(before, all[k])
    }
}
function suite(before, own,    build, command, config) {
    known[before own] = 1
    build = $3
    command = $4
    gsub(/@/, own, build)
    gsub(/@/, own, command)
    config = build
    sub(/ .*/, "", config)
    if (!sub(/^[^ ]+ /, "", build)) build = "-"
    printf "%s\t%s\t%s\t%s\t%s\n", $1, before own, config, build, command
}
