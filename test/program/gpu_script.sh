#!/bin/sh
# bench/gpu/run.sh on the emulated device: results are written part by part, a failing or hanging part does not stop the others,
# finished parts are skipped, and a missing GPU is reported.
#   sh test/program/gpu_script.sh STAGE WORK        STAGE: the folder that make CONFIG=emu gpu-stage creates
set -u
stage=$(cd "$1" && pwd)
mkdir -p "$2"
work=$(cd "$2" && pwd)
rm -rf "${work:?}"/*
passed=0
failed=0
check() {
    what=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $what"
    fi
}
has() { grep -q -- "$2" "$1"; }
lacks() { ! grep -q -- "$2" "$1"; }
lines() { [ "$(grep -c . "$1")" = "$2" ]; }
# script OUT ARGUMENTS...: runs the script; exit code in $code
script() {
    out=$1
    shift
    sh "$work/stage/run.sh" "$work/$out" "$@" >"$work/log" 2>&1
    code=$?
}
cp -rl "$stage" "$work/stage"
results=$work/out/results.jsonl

script out check.fragments bench.bus bench.ops.bytes --small
check "exit 0" [ $code = 0 ]
check "four results" lines "$results" 4
check "fragments" has "$results" '"part": "check.fragments", "status": "done", .*"failed": 0'
check "bus" has "$results" '"part": "bench.bus", "status": "done", .*"h2d_pinned"'
check "rms_norm" has "$results" '"part": "bench.ops.bytes", "status": "done", .*"rms_norm"'
check "no errors" lacks "$results" '"error"'
check "result document" has "$work"/out/emulated-gpu-0-*.json '"kind": "gpu"'
check "rates file" has "$work/out/rates.json" '"cuda"'
check "bus line" has "$work/log" '^- bus, from pinned memory'
"$stage/bin/gpu_results" readme "$work"/out/emulated-gpu-0-*.json >"$work/table"
check "README table" has "$work/table" '^Emulated GPU 0 (sm_80'

script out check.fragments bench.ops. --small
check "a finished part is skipped" has "$work/log" '^check.fragments: has a result'
check "other parts run" has "$results" '"part": "bench.ops.decoder", "status": "done"'
script out check.fragments --again --small
check "--again repeats a part" [ "$(grep -c '"check.fragments"' "$results")" = 2 ]
# Parts run in order of importance, whatever their order on the command line.
MODEL=$work/weights-z FLUX=$work/weights-f script day bench.load bench.flux.all bench.torch bench.overlap bench.zimage.all bench.memory bench.bus \
    check.algorithms check.context check.pipeline --small
day=$work/day/results.jsonl
check "exit 0" [ $code = 0 ]
order=$(sed -n 's/^{"part": "\([^"]*\)".*/\1/p' "$day" | tr '\n' ' ')
wanted="info check.pipeline check.context check.algorithms bench.bus bench.memory bench.checkpoint bench.zimage.all.b1 bench.overlap \
bench.torch.products bench.torch.attention bench.torch.zimage.eager bench.torch.zimage.compiled bench.torch.zimage.cudnn \
bench.torch.flux.eager bench.torch.flux.compiled bench.torch.flux.cudnn bench.flux_checkpoint bench.flux.all.b1 bench.load bench.zimage.all.b4 "
check "order of the parts, not $order" [ "$order" = "$wanted" ]
check "no part failed" lacks "$day" '"status": "failed"'
check "pipeline" has "$day" '"part": "check.pipeline", "status": "done", .*"failed": 0'
check "CUDA context size" has "$day" '"part": "check.context", "status": "done", .*"context_bytes": [1-9]'
check "one hash for all algorithms" has "$day" '"part": "check.algorithms", "status": "done", .*"passed": 6, "failed": 0'
check "lists the algorithms" has "$day" '"algorithms": \[{"op"'
for call in "pin cold" "pin warm" unpin provide commit decommit; do check "$call" has "$day" "\"call\": \"$call\", \"bytes\": 2097152"; done
check "overlap" has "$day" '"part": "bench.overlap", "status": "done", .*"budget": "all", .*"ratio": [0-9.]*'
if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    check "PyTorch" has "$day" '"part": "bench.torch.flux.cudnn", "status": "done"'
else
    check "PyTorch is reported as missing" has "$day" '"part": "bench.torch.flux.cudnn", "status": "skipped", .*"reason": "no PyTorch that can use a GPU"'
fi
check "Flux" has "$day" '"part": "bench.flux.all.b1", "status": "done", .*"latent_sha256"'
check "loading" has "$day" '"part": "bench.load", "status": "done", .*"page_cache"'
check "row in the table" has "$work/log" '^| all | [1-9]'

script late check.fragments --minutes 0
check "--minutes 0 runs nothing" has "$work/log" '^check.fragments: not begun'
check "no result" [ ! -s "$work/late/results.jsonl" ]

# broken PROGRAM BODY: replaces a program by a script. The stage is hard-linked, so the old file is removed first.
broken() { rm "$work/stage/bin/$1" && printf '#!/bin/sh\n%s\n' "$2" >"$work/stage/bin/$1" && chmod +x "$work/stage/bin/$1"; }
broken test_cuda_fragments 'echo "2 passed, 1 failed"; kill -SEGV $$'
broken device_bench '[ "$1" != info ] && exec sleep 600; exec '"'$stage/bin/device_bench'"' info'
sed -i 's/^measure bench.bus 200/measure bench.bus 2/' "$work/stage/run.sh"
script broken check.fragments check.refusals bench.bus --small
results=$work/broken/results.jsonl
check "a crashed part is reported as failed" has "$results" '"part": "check.fragments", "status": "failed", "exit": 139, .*"failed": 1'
check "a hanging part times out" has "$results" '"part": "bench.bus", "status": "timeout"'
check "later parts run" has "$results" '"part": "check.refusals", "status": "done"'
check "prints the failed part" has "$work/log" '^check.fragments: failed'

EMU_DEVICES=0 script none check
check "no GPU: exit 1, not $code" [ $code = 1 ]
check "prints: no GPU" has "$work/log" '^run.sh: no GPU'
echo "$passed passed, $failed failed"
[ $failed = 0 ]
