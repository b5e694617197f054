#!/bin/sh
# bench/gpu/run.sh on the emulated device: what is found is written part by part, a part that fails or hangs stops no other, what
# has a result is not done again, and no GPU is said.
#   sh test/program/gpu_script.sh STAGE WORK        STAGE: what make CONFIG=emu gpu-stage made
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
# script OUT ARGUMENTS...: its exit code in $code
script() {
    out=$1
    shift
    sh "$work/stage/run.sh" "$work/$out" "$@" >"$work/said" 2>&1
    code=$?
}
cp -rl "$stage" "$work/stage"
results=$work/out/results.jsonl

script out check.fragments bench.bus bench.ops.bytes --small
check "it ends well" [ $code = 0 ]
check "four parts" lines "$results" 4
check "fragments" has "$results" '"part": "check.fragments", "status": "done", .*"failed": 0'
check "bus" has "$results" '"part": "bench.bus", "status": "done", .*"h2d_pinned"'
check "operators" has "$results" '"part": "bench.ops.bytes", "status": "done", .*"rms_norm"'
check "no errors among them" lacks "$results" '"error"'
check "a document" has "$work"/out/emulated-gpu-0-*.json '"kind": "gpu"'
check "rates for plans" has "$work/out/rates.json" '"cuda"'
check "a table" has "$work/said" '^- bus, from pinned memory'
"$stage/bin/gpu_results" readme "$work"/out/emulated-gpu-0-*.json >"$work/table"
check "the README's" has "$work/table" '^Emulated GPU 0 (sm_80'

script out check.fragments bench.ops. --small
check "what has a result is left out" has "$work/said" '^check.fragments: has a result'
check "and the rest done" has "$results" '"part": "bench.ops.decoder", "status": "done"'
script out check.fragments --again --small
check "again" [ "$(grep -c '"check.fragments"' "$results")" = 2 ]
# In the order in which parts tell most, whatever order they were asked in.
MODEL=$work/weights-z FLUX=$work/weights-f script day bench.load bench.flux.all bench.torch bench.overlap bench.zimage.all bench.memory bench.bus \
    check.algorithms check.context check.pipeline --small
day=$work/day/results.jsonl
check "it ends well" [ $code = 0 ]
order=$(sed -n 's/^{"part": "\([^"]*\)".*/\1/p' "$day" | tr '\n' ' ')
want="info check.pipeline check.context check.algorithms bench.bus bench.memory bench.checkpoint bench.zimage.all.b1 bench.overlap \
bench.torch.products bench.torch.attention bench.torch.zimage.eager bench.torch.zimage.compiled bench.torch.zimage.cudnn \
bench.torch.flux.eager bench.torch.flux.compiled bench.torch.flux.cudnn bench.flux_checkpoint bench.flux.all.b1 bench.load bench.zimage.all.b4 "
check "the order of the day, not $order" [ "$order" = "$want" ]
check "no part failed" lacks "$day" '"status": "failed"'
check "the pipeline" has "$day" '"part": "check.pipeline", "status": "done", .*"failed": 0'
check "what the context takes" has "$day" '"part": "check.context", "status": "done", .*"context_bytes": [1-9]'
check "one hash" has "$day" '"part": "check.algorithms", "status": "done", .*"passed": 6, "failed": 0'
check "which algorithms" has "$day" '"algorithms": \[{"op"'
for call in "pin cold" "pin warm" unpin provide commit decommit; do check "$call" has "$day" "\"call\": \"$call\", \"bytes\": 2097152"; done
check "overlap" has "$day" '"part": "bench.overlap", "status": "done", .*"budget": "all", .*"ratio": [0-9.]*'
if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    check "PyTorch" has "$day" '"part": "bench.torch.flux.cudnn", "status": "done"'
else
    check "no PyTorch is said" has "$day" '"part": "bench.torch.flux.cudnn", "status": "skipped", .*"reason": "no PyTorch that sees a GPU"'
fi
check "Flux" has "$day" '"part": "bench.flux.all.b1", "status": "done", .*"latent_sha256"'
check "loading" has "$day" '"part": "bench.load", "status": "done", .*"page_cache"'
check "in the table" has "$work/said" '^| all | [1-9]'

script late check.fragments --minutes 0
check "no time" has "$work/said" '^check.fragments: not begun'
check "nothing was claimed" [ ! -s "$work/late/results.jsonl" ]

# Links into the stage: a new file, so that the stage keeps its own.
broken() { rm "$work/stage/bin/$1" && printf '#!/bin/sh\n%s\n' "$2" >"$work/stage/bin/$1" && chmod +x "$work/stage/bin/$1"; }
broken test_cuda_fragments 'echo "2 passed, 1 failed"; kill -SEGV $$'
broken device_bench '[ "$1" != info ] && exec sleep 600; exec '"'$stage/bin/device_bench'"' info'
sed -i 's/^measure bench.bus 200/measure bench.bus 2/' "$work/stage/run.sh"
script broken check.fragments check.refusals bench.bus --small
results=$work/broken/results.jsonl
check "a crash is a result" has "$results" '"part": "check.fragments", "status": "failed", "exit": 139, .*"failed": 1'
check "what hangs is ended" has "$results" '"part": "bench.bus", "status": "timeout"'
check "the rest went on" has "$results" '"part": "check.refusals", "status": "done"'
check "and all of it is told" has "$work/said" '^check.fragments: failed'

EMU_DEVICES=0 script none check
check "no GPU: exit 1, not $code" [ $code = 1 ]
check "no GPU is said" has "$work/said" '^run.sh: no GPU'
echo "$passed passed, $failed failed"
[ $failed = 0 ]
