#!/bin/sh
# bench/gpu/run.sh on the emulated device: results are written part by part, a failing or hanging part does not stop the others,
# finished parts are skipped, and a missing GPU is reported. A fake nvidia-smi in PATH reports a machine fit or unfit for timing.
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

# fake_smi LINE [PID]: an nvidia-smi with one GPU, at the emulated GPU's bus address. LINE: the fields of run.sh's sample; PID:
# another program on the GPU.
fake_smi() {
    mkdir -p "$work/path"
    cat >"$work/path/nvidia-smi" <<END
#!/bin/sh
case "\$*" in
*clocks_event_reasons*) exit 2 ;;
"--query-gpu=driver_version "*) echo 580.65.06 && exit ;;
"-i 0000:C1:00.0 --query-compute-apps="*) echo "${2:-}" && exit ;;
"-i 0000:C1:00.0 --query-gpu=memory.used "*) echo 300 ;;
"-i 0000:C1:00.0 --query-gpu="*) echo "$1" ;;
*) echo "no such GPU: \$*" >&2 && exit 6 ;;
esac
case "\$*" in *-lms*) while sleep 0.2; do echo "$1"; done ;; esac
END
    chmod +x "$work/path/nvidia-smi"
}
# PCIe generation and its maximum, width and its maximum, W, limit and default, MHz and its maximum, C, busy %, MiB, ECC, MIG,
# throttle reasons
fit="4, 4, 16, 16, 441.02, 450.00, 450.00, 2520, 3105, 71, 0, 300, [N/A], [N/A], 0x0000000000000004"
hot="4, 4, 4, 16, 210.00, 300.00, 450.00, 1100, 3105, 92, 0, 300, Disabled, Enabled, 0x0000000000000048"
PATH=$work/path:$PATH

fake_smi "$fit"
script out check.fragments bench.bus bench.ops.bytes --small
check "UNKNOWN: exit 3, not $code" [ $code = 3 ]
check "five results" lines "$results" 5
check "fit" has "$work/log" '^Machine: fit for timing'
check "state under load" has "$work/log" 'under load: PCIe 4.0 x16, .* 2520 of 3105 MHz; 441 of 450 W; 71 C; 300 MiB in use'
check "PASS" has "$work/log" '^PASS  *results right  *[0-9]* checks'
check "UNKNOWN with its reason" has "$work/log" '^UNKNOWN  *operators as calculated  *kernels/cuda/cards.c lacks this GPU'
check "questions of other parts are not asked" lacks "$work/log" 'two runs'
check "the verdict is in the result" has "$(ls "$work"/out/emulated-gpu-0-*.json)" '"verdict": "PASS"'
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
script out check.fragments --small
check "all PASS: exit 0, not $code" [ $code = 0 ]
fake_smi "$hot" 4711
script out check.fragments bench.ops.bytes --again --small
check "not fit for timing" has "$work/log" '^This machine is not fit for timing:$'
for reason in "PCIe x4: too narrow" "power limit 300 W instead of 450 W" "throttled by heat" "1100 of 3105 MHz" "1 other program" "MIG is on"; do
    check "$reason" has "$work/log" "^  - $reason"
done
rm -r "$work/path"
check "--again repeats a part" [ "$(grep -c '"check.fragments"' "$results")" = 2 ]
# Parts run in order of importance, whatever their order on the command line.
MODEL=$work/weights-z FLUX=$work/weights-f script day bench.load bench.flux.all bench.torch bench.overlap bench.zimage.all.b1 bench.memory bench.bus \
    check.algorithms check.int8 check.jit check.context check.pipeline --small
day=$work/day/results.jsonl
check "exit 3, not $code" [ $code = 3 ]
check "no nvidia-smi" has "$work/log" '^Machine: fitness for timing unknown: nvidia-smi not found'
order=$(sed -n 's/^{"part": "\([^"]*\)".*/\1/p' "$day" | tr '\n' ' ')
wanted="info fitness check.pipeline check.context check.algorithms check.int8 check.jit bench.bus bench.memory bench.checkpoint bench.zimage.all.b1 bench.overlap \
bench.torch.products bench.torch.attention bench.torch.decoder bench.torch.zimage.eager bench.torch.zimage.compiled bench.torch.zimage.cudnn \
bench.torch.flux.eager bench.torch.flux.compiled bench.torch.flux.cudnn bench.torch.sdxl.eager bench.torch.wan.eager bench.flux_checkpoint bench.flux.all.b1 bench.load "
check "order of the parts, not $order" [ "$order" = "$wanted" ]
check "no part failed" lacks "$day" '"status": "failed"'
check "pipeline" has "$day" '"part": "check.pipeline", "status": "done", .*"failed": 0'
check "CUDA context size" has "$day" '"part": "check.context", "status": "done", .*"context_bytes": [1-9]'
check "one hash for all algorithms" has "$day" '"part": "check.algorithms", "status": "done", .*"passed": 14, "failed": 0'
check "one hash with int8" has "$work/log" '^PASS  *the same with int8  *demo model, 7 runs'
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

script late --quick --minutes 0
check "--minutes 0 runs nothing" has "$work/log" '^check.fragments: not begun'
check "no result" [ ! -s "$work/late/results.jsonl" ]
check "unfinished: exit 3, not $code" [ $code = 3 ]
check "says how to finish" has "$work/log" '^UNKNOWN  *step close to its bound  *bench.zimage.all.b1 has not finished: repeat the command'
EMU_CAPABILITY=9.0 script jit check.jit --small
check "kernels compiled by the driver" has "$work/log" '^PASS  *kernels compiled by driver'

# made FIT REASONS MEMORY_STATUS HASH SECONDS LATENT STEP_SECONDS TORCH_SECONDS MORE_ROWS: the results of an invented run.
# Z-Image streams 5 GB at 25 GB/s, 0.2 s, which is less than the 0.5 s of a resident step.
made() {
    cat <<END
{"part": "info", "status": "done", "data": {"gpu": "NVIDIA GeForce RTX 4090", "architecture": "sm_89", "bytes": 25769803776, "library": "x", "card": "4090"}}
{"part": "fitness", "status": "done", "data": {"fit": $1, "reasons": [$2], "notes": []}}
{"part": "check.ops", "status": "done", "passed": 812, "failed": 0}
{"part": "check.memory", "status": "$3", "passed": 3, "failed": 1, "failures": ["FAILED: a leak"]}
{"part": "check.algorithms", "status": "done", "hash": "3fa9", "hash_again": "$4", "hash_budgets": "3fa9 3fa9"}
{"part": "bench.bus", "status": "done", "data": {"rows": [{"path": "h2d_pinned", "gbytes_per_second": 25}]}}
{"part": "bench.ops.attention", "status": "done", "data": {"rows": [
 {"op": "attention", "shape": "a layer", "seconds": $5, "calculated_seconds": 0.002, "constant": "attention", "measured_constant": 0.8},
 {"op": "linear", "shape": "int8", "error": "not supported: no int8"}$9]}}
{"part": "bench.zimage.all.b1", "status": "done", "data": {"latent_sha256": ["71c0"], "step": {"seconds": 0.5, "bytes_moved": 0}}}
{"part": "bench.zimage.9G.b1", "status": "done", "data": {"latent_sha256": ["$6"], "step": {"seconds": $7, "bytes_moved": 5e9}}}
{"part": "bench.torch.zimage.eager", "status": "done", "data": {"rows": [{"op": "step", "shape": "zimage, eager, ", "seconds": $8}]}}
END
}
# verdicts NAME CODE MADE_ARGUMENT...: the report's verdict lines on made's results must equal stdin
verdicts() {
    name=$1 want=$2
    shift 2
    made "$@" | tr -d '\n' | sed 's/{"part"/\n&/g' | sed 1d >"$work/made.jsonl"
    echo >>"$work/made.jsonl"
    "$stage/bin/gpu_results" document "$work/made.jsonl" "$work" 2026-01-01 abc "" check. bench. >"$work/made"
    code=$?
    check "$name: exit $want, not $code" [ $code = $want ]
    grep -E '^(PASS|FAIL|UNKNOWN) ' "$work/made" >"$work/lines"
    diff - "$work/lines" >"$work/difference"
    check "$name: verdicts: $(cat "$work/difference")" [ ! -s "$work/difference" ]
}
common="UNKNOWN  the same with int8          check.int8 has not run
UNKNOWN  CUDA context as planned     check.context has not run
UNKNOWN  kernels compiled by driver  check.jit has not run
UNKNOWN  no memory errors, no races  no check has run"
verdicts good 3 true "" done 3fa9 0.0022 71c0 0.51 0.48 "" <<END
PASS     results right               815 checks
PASS     two runs, one image         latent 3fa9
PASS     all budgets, one image      demo model with 2 budgets; published sizes, 2 runs
$common
PASS     operators as calculated     1 of 1 within 15 %
PASS     step close to its bound     at most 1.020 (budget 9G); limit 1.05
PASS     as fast as PyTorch          at most 1.04 of PyTorch's time (zimage step); limit 1.10
END
check "constants for cards.c" has "$work/made" '^for kernels/cuda/cards.c: .name = "4090", .bus_bytes_per_second = 25.0e9, .attention = 0.800'
verdicts bad 1 true "" failed 71c0 0.0024 3fa9 0.53 0.45 "" <<END
FAIL     results right               check.memory: failed: FAILED: a leak; 1 part failed
FAIL     two runs, one image         latents 3fa9 and 71c0
FAIL     all budgets, one image      bench.zimage.9G.b1 has a different latent
$common
FAIL     operators as calculated     1 of 1 off by more than 15 %; attention a layer takes 1.20 of the calculated time
FAIL     step close to its bound     at most 1.060 (budget 9G); limit 1.05
FAIL     as fast as PyTorch          at most 1.11 of PyTorch's time (zimage step); limit 1.10
END
verdicts error 1 true "" done 3fa9 0.0022 71c0 0.51 0.48 ', {"op": "conv2d", "shape": "in", "error": "cuDNN: choosing failed"}' <<END
PASS     results right               815 checks
PASS     two runs, one image         latent 3fa9
PASS     all budgets, one image      demo model with 2 budgets; published sizes, 2 runs
$common
FAIL     operators as calculated     conv2d in: cuDNN: choosing failed
PASS     step close to its bound     at most 1.020 (budget 9G); limit 1.05
PASS     as fast as PyTorch          at most 1.04 of PyTorch's time (zimage step); limit 1.10
END
verdicts unfit 3 false '"PCIe x4"' done 3fa9 0.0024 71c0 0.53 0.45 "" <<END
PASS     results right               815 checks
PASS     two runs, one image         latent 3fa9
PASS     all budgets, one image      demo model with 2 budgets; published sizes, 2 runs
$common
UNKNOWN  operators as calculated     machine not fit for timing; 1 of 1 off by more than 15 %; attention a layer takes 1.20 of the calculated time
UNKNOWN  step close to its bound     machine not fit for timing; at most 1.060 (budget 9G); limit 1.05
UNKNOWN  as fast as PyTorch          machine not fit for timing; at most 1.11 of PyTorch's time (zimage step); limit 1.10
END
check "not fit" has "$work/made" '^  - PCIe x4$'

# card WANTED NAME MULTIPROCESSORS GIB: the model in cards.c for a GPU of this name, as CUDA reports it
card() { check "card $2" [ "$("$stage/bin/device_bench" card "$2" "$3" "$4")" = "$1" ]; }
card 4090 "NVIDIA GeForce RTX 4090" 128 23.6
card none "NVIDIA GeForce RTX 4090 Laptop GPU" 76 15.6
card 4060ti "NVIDIA GeForce RTX 4060 Ti" 34 15.6
card a100 "NVIDIA A100-SXM4-40GB" 108 39.4
card a100_80gb "NVIDIA A100-SXM4-80GB" 108 79.2
card h100 "NVIDIA H100 80GB HBM3" 132 79.1
card none "NVIDIA H100 PCIe" 114 79.1

# broken PROGRAM BODY: replaces a program by a script. The stage is hard-linked, so the old file is removed first.
broken() { rm "$work/stage/bin/$1" && printf '#!/bin/sh\n%s\n' "$2" >"$work/stage/bin/$1" && chmod +x "$work/stage/bin/$1"; }
broken test_cuda_fragments 'echo "2 passed, 1 failed"; kill -SEGV $$'
broken device_bench '[ "$1" != info ] && exec sleep 600; exec '"'$stage/bin/device_bench'"' info'
sed -i 's/^measure bench.bus 200/measure bench.bus 2/' "$work/stage/run.sh"
script broken check.fragments check.refusals bench.bus --small
results=$work/broken/results.jsonl
check "a crashed part is reported as failed" has "$results" '"part": "check.fragments", "status": "failed", "exit": 139, .*"failed": 1'
check "FAIL: exit 1, not $code" [ $code = 1 ]
check "FAIL with its reason" has "$work/log" '^FAIL  *results right  *check.fragments: failed'
check "a hanging part times out" has "$results" '"part": "bench.bus", "status": "timeout"'
check "later parts run" has "$results" '"part": "check.refusals", "status": "done"'
check "prints the failed part" has "$work/log" '^check.fragments: failed'

EMU_DEVICES=0 script none check
check "no GPU: exit 4, not $code" [ $code = 4 ]
check "prints: no GPU" has "$work/log" '^run.sh: no GPU'
fake_smi "$fit"
rm -f "$work/stage/driver" && echo 590 >"$work/stage/driver"
script old check
check "old driver: exit 4, not $code" [ $code = 4 ]
check "names both drivers" has "$work/log" 'needs NVIDIA driver 590 or newer: found 580'
echo "$passed passed, $failed failed"
[ $failed = 0 ]
