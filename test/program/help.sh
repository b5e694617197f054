#!/bin/sh
# What the program says of itself: help that fits a screen, all of it, completions and the man page, from one table.
#
# usage: help.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/harness.sh"

fits() { # fits FILE LINES: no longer, and no wider than 80 columns
    check "at most $2 lines" [ "$(wc -l <"$1")" -le "$2" ]
    check "at most 80 columns" [ "$(wc -L <"$1")" -le 80 ]
}
flags_in() { # flags_in FILE: that a help lists, a line each
    sed -n 's/^  \(-., \|    \)\(--[a-z0-9_-]*\).*/\2/p' "$1" | sort
}
expect 0 "the program's help" --help
fits ../out 24
check "commands" has ../out '^  generate  *generate images'
expect 0 "all that there is" --help-all
fits ../out 1000
cp ../out ../everything
commands=$(sed -n 's/^usage: sluice \([a-z]*\).*/\1/p' ../everything)
check "every command" [ "$(echo "$commands" | wc -l)" = 11 ]
expect 0 "bash" completion bash
cp ../out ../complete.bash
for command in $commands; do
    expect 0 "$command --help" $command --help
    fits ../out 24
    check "usage" has ../out "^usage: sluice $command"
    flags_in ../out >../some
    check "at most ten flags" [ "$(wc -l <../some)" -le 10 ]
    expect 0 "$command --help-all" $command --help-all
    fits ../out 200
    check "is in all that there is" grep -qF "$(head -n 1 ../out)" ../everything
    flags_in ../out >../all
    check "the ten are among all" [ -z "$(comm -23 ../some ../all)" ]
    [ "$(wc -l <../all)" -le 10 ] || check "ten, or nearly" [ "$(wc -l <../some)" -ge 7 ]
    sed -n "s/^    $command) names=\"\(.*\) --help --help-all\" ;;/\1/p" ../complete.bash | tr ' ' '\n' | grep . | sort >../completed
    check "bash completes what help lists" cmp -s ../all ../completed
done
flags_in ../everything | sort -u >../flags
for command in inspect convert; do
    expect 0 "$command" $command --help-all
    flags_in ../out >../own
    for flag in $(comm -13 ../own ../flags); do
        expect 2 "$command $flag" $command $flag
        check "is not its own" has ../err 'belongs to other commands'
    done
    for flag in $(cat ../own); do
        expect 2 "$command $flag without a value" $command $flag -q
        check "is its own" lacks ../err 'belongs to other commands'
    done
done
expect 2 "another shell" completion tcsh
check "says which there are" has ../err 'bash, zsh or fish'

# ---- bash ----
cat >../completes <<'END'
# completes WORD...: what bash offers for the last one
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
sluice generate --cf|--cfg-scale
sluice generate --vae-tiling o|on off
sluice decode --steps|
sluice plan --typ|--types --type
sluice inspect --te|--tensors
sluice plan --family sdxl_t|
sluice plan --family sd35_l|sd35_large sd35_large_turbo
sluice generate --type q4|q4_k q4_0
sluice generate --device c|cpu cuda
sluice plan --device cuda : 40|4060 4060ti 4090
sluice plan --device cuda :|3060 4060 4060ti 4090 h100
sluice generate --precision f1|
sluice bench st|stream
sluice families wan_v|wan_vace
sluice completion z|zsh
sluice generate --sampler dpm++2m|dpm++2m dpm++2m_sde
sluice generate -W 5|
sluice generate -m te|
END

# ---- the other shells and the page: where they are here, they read it ----
expect 0 "zsh" completion zsh
cp ../out ../_sluice
expect 0 "fish" completion fish
cp ../out ../sluice.fish
expect 0 "the page" manual
cp ../out ../sluice.1
name="other forms"
for flag in $(cat ../flags); do
    check "zsh has $flag" has ../_sluice "[,' *]$flag[})\['\\\\]"
    check "fish has $flag" has ../sluice.fish " -l ${flag#--} "
    check "the page has $flag" has ../sluice.1 "\\\\fB$(echo "$flag" | sed 's/-/\\\\-/g')\\\\fR"
done
check "the page has other programs' names" has ../sluice.1 'sampling\\-method'
if command -v zsh >/dev/null; then check "zsh reads it" zsh -n ../_sluice; fi
if command -v fish >/dev/null; then
    check "fish reads it" fish -n ../sluice.fish
    check "and completes" [ "$(fish -c 'source ../sluice.fish; complete -C "sluice inspect --te"' | cut -f 1)" = --tensors ]
fi
if command -v groff >/dev/null; then check "groff warns of nothing" [ -z "$(groff -man -Tascii -ww ../sluice.1 2>&1 >/dev/null)" ]; fi

echo "$passed passed, $failed failed"
[ $failed = 0 ]
