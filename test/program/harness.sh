# Functions for the shell tests of the program, which source this file. Needs no Python and no network.
#
# The script's arguments: SLUICE MODEL_DIR [SCRATCH_DIR]
#
# Each run is checked for its exit code and for the rule of the last line: after a failure exactly one line of stderr
# begins with "sluice: ", and it is the last line; after success no line does.
LC_ALL=C
export LC_ALL
sluice=$1 model=$2 scratch=${3:-}
if [ ! -x "$sluice" ] || [ ! -d "$model" ]; then
    echo "usage: $0 SLUICE MODEL_DIR [SCRATCH_DIR]" >&2
    exit 2
fi
case $sluice in /*) ;; *) sluice=$PWD/$sluice ;; esac
case $model in /*) ;; *) model=$PWD/$model ;; esac
demo=$(cd "$(dirname "$0")/../../models/demo" && pwd) # a transformer large enough to be streamed at the smallest budget
if [ -z "$scratch" ]; then
    scratch=$(mktemp -d) || exit 2
    trap 'rm -rf "$scratch"' EXIT
fi
mkdir -p "$scratch" && cd "$scratch" && scratch=$PWD || exit 2
rm -rf work && mkdir work && cd work || exit 2

# Runs the program with --device cpu, because the default is the GPU on machines that have one.
cat >../on_cpu <<END
#!/bin/sh
case \$1 in
generate | decode | upscale | plan)
    case " \$* " in
    *" --device"*) ;;
    *) command=\$1 && shift && set -- "\$command" --device cpu "\$@" ;;
    esac
    ;;
esac
exec "$sluice" "\$@"
END
chmod +x ../on_cpu
sluice_dev=$sluice-dev # make dev; beside the program
sluice=$scratch/on_cpu

passed=0 failed=0
size="-W ${SIZE_W:-64} -H ${SIZE_H:-48}"

ok() { passed=$((passed + 1)); }
bad() {
    failed=$((failed + 1))
    echo "FAIL $name: $1"
    [ -s ../err ] && sed 's/^/    | /' ../err | tail -5
}
check() { # check TEXT COMMAND...: passes if the command succeeds; prints TEXT if it fails
    what=$1
    shift
    if "$@"; then ok; else bad "$what"; fi
}
has() { grep -aq -e "$2" "$1"; }
lacks() { ! grep -aq -e "$2" "$1"; }
absent() { [ ! -e "$1" ]; }
empty_folder() { [ -z "$(ls -A "$1")" ]; }

number() { sed "s/.*\"$1\":\([0-9.e+-]*\)[,}].*/\1/" ../flat; } # number KEY: the last number under this key in ../flat
last_line_rule() { # last_line_rule CODE: see the top of this file
    n=$(tr '\r' '\n' <../err | grep -ac '^sluice: ')
    if [ "$1" = 0 ]; then
        [ "$n" = 0 ]
    else
        [ "$n" = 1 ] && tail -n 1 ../err | grep -aq '^sluice: '
    fi
}
expect() { # expect CODE NAME ARGS...: runs sluice, checks the exit code; output in ../out and ../err
    expect_of "$sluice" "$@"
}
expect_dev() { # the same of sluice-dev
    expect_of "$sluice_dev" "$@"
}
expect_of() { # expect_of PROGRAM CODE NAME ARGS...
    program=$1 expected=$2 name=$3
    shift 3
    "$program" "$@" >../out 2>../err
    code=$?
    if [ $code = "$expected" ]; then ok; else bad "exit $code, not $expected"; fi
    if last_line_rule $code; then ok; else bad "last line of stderr"; fi
}
draw() { # draw CODE NAME ARGS...: generates an image in 2 steps
    draw_code=$1 draw_name=$2
    shift 2
    # shellcheck disable=SC2086
    expect "$draw_code" "$draw_name" generate -m "$model" $size --steps 2 "$@"
}
