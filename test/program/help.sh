#!/bin/sh
# Help within one screen, --help-all, shell completions and the man page, which come from one table of flags.
#
# usage: help.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/harness.sh"

fits() { # fits FILE LINES: at most so many lines of 80 columns
    check "at most $2 lines" [ "$(wc -l <"$1")" -le "$2" ]
    check "at most 80 columns" [ "$(wc -L <"$1")" -le 80 ]
}
flags_in() { # flags_in FILE: the flags of a help text, one per line
    sed -n 's/^  \(-., \|    \)\(--[a-z0-9_-]*\).*/\2/p' "$1" | sort
}
expect 0 "sluice --help" --help
fits ../out 24
check "commands" has ../out '^  generate  *generate images'
expect 0 "sluice --help-all" --help-all
fits ../out 1000
cp ../out ../help_all
commands=$(sed -n 's/^usage: sluice \([a-z]*\).*/\1/p' ../help_all)
check "all 12 commands" [ "$(echo "$commands" | wc -l)" = 12 ]
expect 0 "help generate" help generate
check "usage of generate" has ../out '^usage: sluice generate'
expect 0 "completion bash" completion bash
cp ../out ../complete.bash
for command in $commands; do
    expect 0 "$command --help" $command --help
    fits ../out 24
    check "usage" has ../out "^usage: sluice $command"
    flags_in ../out >../short
    check "at most 15 flags" [ "$(wc -l <../short)" -le 15 ]
    expect 0 "$command --help-all" $command --help-all
    fits ../out 220
    check "is part of sluice --help-all" grep -qF "$(head -n 1 ../out)" ../help_all
    flags_in ../out >../all
    check "--help-all lists the flags of --help" [ -z "$(comm -23 ../short ../all)" ]
    [ "$(wc -l <../all)" -le 10 ] || check "--help lists at least 7 flags" [ "$(wc -l <../short)" -ge 7 ]
    sed -n "s/^    $command) names=\"\(.*\) --help --help-all\" ;;/\1/p" ../complete.bash | tr ' ' '\n' | grep . | sort >../completed
    check "bash completes the flags of --help-all" cmp -s ../all ../completed
done
flags_in ../help_all | sort -u >../flags
for command in inspect convert; do
    expect 0 "$command" $command --help-all
    flags_in ../out >../accepted
    for flag in $(comm -13 ../accepted ../flags); do
        expect 2 "$command $flag" $command $flag
        check "the flag is refused" has ../err 'belongs to other commands'
    done
    for flag in $(cat ../accepted); do
        expect 2 "$command $flag without a value" $command $flag -q
        check "the flag is accepted" lacks ../err 'belongs to other commands'
    done
done
expect 2 "unsupported shell" completion tcsh
check "error lists the shells" has ../err 'bash, zsh or fish'

# ---- bash ----
cat >../completes <<'END'
# completes WORD...: bash's completions of the last word
. ../complete.bash
compopt() { :; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_sluice
echo "${COMPREPLY[*]}"
END
while IFS='|' read -r words offered; do
    name="completing $words"
    # shellcheck disable=SC2086
    got=$(bash ../completes $words 2>../err)
    check "$offered, not $got" [ "$got" = "$offered" ]
    check "no error" [ ! -s ../err ]
done <<END
sluice gen|generate
sluice de|decode devices
sluice generate --cfg-s|--cfg-scale
sluice generate --vae-tiling o|on off
sluice decode --steps|
sluice plan --typ|--types --type
sluice inspect --ten|--tensors
sluice plan --family sdxl_t|
sluice plan --family sd35_l|sd35_large sd35_large_turbo
sluice generate --type q4|q4_k q4_0
sluice generate --device c|cpu cuda
sluice plan --device cuda : 409|4090
sluice plan --device cuda : h|h100 h200
sluice generate --precision f1|
sluice bench bl|block
sluice families wan_v|wan_vace
sluice completion z|zsh
sluice generate --sampler dpm++2m|dpm++2m dpm++2m_sde
sluice generate -W 5|
sluice generate -m te|
END

# ---- zsh, fish and the man page; syntax is checked if the shell or groff is installed ----
expect 0 "completion zsh" completion zsh
cp ../out ../_sluice
expect 0 "completion fish" completion fish
cp ../out ../sluice.fish
expect 0 "manual" manual
cp ../out ../sluice.1
name="zsh, fish and man page"
for flag in $(cat ../flags); do
    check "zsh has $flag" has ../_sluice "[,' *]$flag[})\['\\\\]"
    check "fish has $flag" has ../sluice.fish " -l ${flag#--} "
    check "man page has $flag" has ../sluice.1 "\\\\fB$(echo "$flag" | sed 's/-/\\\\-/g')\\\\fR"
done
check "man page has names of other programs" has ../sluice.1 'sampling\\-method'
if command -v zsh >/dev/null; then check "zsh accepts the script" zsh -n ../_sluice; fi
if command -v fish >/dev/null; then
    check "fish accepts the script" fish -n ../sluice.fish
    check "fish completes" [ "$(fish -c 'source ../sluice.fish; complete -C "sluice inspect --ten"' | cut -f 1)" = --tensors ]
fi
if command -v groff >/dev/null; then check "groff prints no warning" [ -z "$(groff -man -Tascii -ww ../sluice.1 2>&1 >/dev/null)" ]; fi

echo "$passed passed, $failed failed"
[ $failed = 0 ]
