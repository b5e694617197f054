#!/bin/sh
# The program on an emulated GPU (test/emu/emu.h): choice of GPUs, VRAM budgets, a GPU that other programs fill, failing CUDA
# calls (out of memory, invalid, GPU lost), and Ctrl-C. A successful run writes the same image; a failing run prints one line,
# exits with its code and writes no image.
#
# usage: program.sh SLUICE MODEL_DIR [SCRATCH_DIR]      SLUICE: built with CONFIG=emu or asan. CALLS=all: more failing calls
. "$(dirname "$0")/../program/harness.sh"
direct=$(sed -n 's/^exec "\(.*\)" "$@"$/\1/p' ../on_cpu) # the program without --device
export OMP_WAIT_POLICY=passive
# Leak checks are off while the GPU is lost: the driver's memory ends with the process.
export ASAN_OPTIONS="detect_leaks=${LEAKS:-1}"

on_gpu() { # on_gpu CODE NAME ARGS...: writes a.png; compares it if CODE is 0
    rm -f a.png
    gpu_code=$1 gpu_name=$2
    shift 2
    draw "$gpu_code" "$gpu_name" -p x -o a.png --device cuda -q "$@"
    if [ "$gpu_code" = 0 ]; then
        [ -e ../first.png ] || cp a.png ../first.png
        check "same image" cmp -s a.png ../first.png
    else
        check "no image" absent a.png
    fi
    rm -f a.png
}
tr_has() { tr -d '\n' <"$1" | sed 's/" *: */":/g;s/, *"/,"/g' | grep -q "$2"; }
with() { # with VARIABLE=VALUE... COMMAND...: sets environment variables for one command
    emu_settings=
    while [ "${1#*=}" != "$1" ]; do
        export "${1?}"
        emu_settings="$emu_settings ${1%%=*}"
        shift
    done
    "$@"
    # shellcheck disable=SC2086
    unset $emu_settings
}

rm -f ../first.png
on_gpu 0 "the first GPU"
with EMU_DRIVER=0 on_gpu 5 "no driver"
check "error message" has ../err '^sluice: no NVIDIA driver found (--device cuda:0)'
with EMU_DRIVER=12080 on_gpu 5 "an old driver"
check "error message" has ../err '^sluice: .*too old.*found a driver for CUDA 12.8, expected a driver for CUDA 13.0 or later (release 580), or'
with EMU_CAPABILITY=9.0 draw 0 "a GPU without machine code in the build" -p x -o a.png --device cuda
check "error message" has ../err 'no machine code for your GPU (Emulated GPU 0, compute capability 9.0)'
check "same image" cmp -s a.png ../first.png
with EMU_CAPABILITY=8.9 draw 0 "a GPU with machine code in the build" -p x -o a.png --device cuda
check "no message" lacks ../err compiling
rm -f a.png
with EMU_DEVICES=0 on_gpu 5 "no GPU"
with EMU_ABSENT=cublaslt on_gpu 5 "no cuBLASLt"
check "error message" has ../err '^sluice: large matrix products need cuBLASLt .*not installed: found cuBLASLt cannot be loaded'
with EMU_ABSENT=cudnn on_gpu 5 "no cuDNN"
check "error message" has ../err '^sluice: convolutions need cuDNN 9, .*not installed: found cuDNN cannot be loaded'
old_cublaslt='cuBLASLt 12.7[a-z. ]* has no kernels for compute capability 12.0: update to 12.8 or later'
old_cudnn='cuDNN 9.6[a-z. ]* has no kernels for compute capability 12.0: update to 9.7 or later'
with EMU_CUBLASLT=12.7 EMU_CAPABILITY=12.0 draw 5 "a new GPU with an old cuBLASLt" -p x -o a.png --device cuda
check "note" has ../err "^this build.*; $old_cublaslt\$"
check "error names the cause" has ../err "^sluice: .*($old_cublaslt).*NOT_SUPPORTED"
with EMU_CUDNN=9.6 EMU_CAPABILITY=12.0 on_gpu 5 "a new GPU with an old cuDNN"
check "error names the cause" has ../err "^sluice: .*($old_cudnn).*ARCH_MISMATCH"
with EMU_CUBLASLT=12.7 EMU_CUDNN=9.6 EMU_CAPABILITY=12.0 expect 0 "devices with old libraries" devices
check "both libraries" has ../out "^  outdated      $old_cublaslt; $old_cudnn\$"
with EMU_CUBLASLT=12.8 EMU_CUDNN=9.7 EMU_CAPABILITY=12.0 expect 0 "devices with new libraries" devices
check "no library is outdated" lacks ../out outdated
with EMU_CUBLASLT=12.0 EMU_CUDNN=9.0 expect 0 "devices with an old GPU and old libraries" devices
check "no library is outdated" lacks ../out outdated
with EMU_DEVICES=2 expect 0 "devices with two GPUs" devices
check "bus ids" [ "$(sed -n 's/^  PCI bus *\([^ ]*\) .*/\1/p' ../out | tr '\n' ' ')" = "0000:C1:00.0 0000:C2:00.0 " ]
with NVIDIA_TF32_OVERRIDE=0 draw 0 "NVIDIA_TF32_OVERRIDE=0" -p x -o a.png --device cuda
check "note" has ../err '^NVIDIA_TF32_OVERRIDE=0 is set: '
with NVIDIA_TF32_OVERRIDE=1 expect 0 "devices with NVIDIA_TF32_OVERRIDE=1" devices
check "no note" lacks ../err TF32
with NVIDIA_TF32_OVERRIDE=0 draw 0 "NVIDIA_TF32_OVERRIDE=0 on the CPU" -p x -o a.png --device cpu
check "no note" lacks ../err TF32
rm -f a.png
with EMU_ABSENT=cudnn draw 0 "latent without cuDNN" -p x --device cuda --no-decode --save-latent l.safetensors -q
rm -f l.safetensors
with EMU_CAPABILITY=7.5 on_gpu 5 "an old GPU"
check "error message" has ../err '^sluice: the GPU cuda:0 .*found compute capability 7.5, expected 8.0 or later'
with EMU_MAPS=0 on_gpu 5 "a GPU without virtual memory"
check "error message" has ../err "^sluice: this GPU does not support CUDA virtual memory management"
with EMU_INTEGRATED=1 on_gpu 5 "an integrated GPU"
check "error message" has ../err '^sluice: GPUs that share the host.s memory are not supported'
with EMU_CAPABILITY=7.5 expect 0 "devices with an old GPU" devices
check "reason" has ../out '^cuda:0: .*too old'
for setting in EMU_DRIVER=0 EMU_CAPABILITY=7.5; do
    with $setting expect 0 "plan with $setting" plan -m "$model" --device cuda
    check "assumed GPU" has ../out '^assumed '
    with $setting expect 2 "--max-vram in percent of an unknown GPU" plan -m "$model" --device cuda --max-vram 80%
    # shellcheck disable=SC2086
    with $setting "$direct" generate -m "$model" $size --steps 2 -p x -o a.png --report r.json -q
    check "falls back to the CPU" has r.json '"device": *"cpu"'
    rm -f a.png r.json
done
# shellcheck disable=SC2086
"$direct" generate -m "$model" $size --steps 2 -p x -o a.png --report r.json -q
check "uses the GPU by default" has r.json '"device": *"cuda"'
rm -f a.png r.json
draw 2 "cuda:1 with one GPU" -p x -o a.png --device cuda:1
check "error message" has ../err '^sluice: no such GPU: cuda:1'
with EMU_DEVICES=2 draw 0 "cuda:1 with two GPUs" -p x -o a.png --device cuda:1
check "same image" cmp -s a.png ../first.png
rm -f a.png
on_gpu 2 "f32" --precision f32
on_gpu 2 "f16 of a model without a bound" --precision f16
check "error names the range" has ../err '^sluice: .*--precision: .*exceed the range of f16'

for budget in 0 -1 0% 101% 9G 1000T; do
    on_gpu 2 "--max-vram $budget" --max-vram $budget
    check "error names the flag" has ../err '^sluice: .*--max-vram'
done
on_gpu 0 "all VRAM" --max-vram 100%
on_gpu 0 "12.5% of VRAM" --max-vram 12.5%
# shellcheck disable=SC2086
expect 0 "plan" plan -m "$model" $size --steps 2 -p x --device cuda --json
tr -d ' \n' <../out >../flat
least_vram=$(sed 's/.*"least":{"vram_bytes":\([0-9]*\).*/\1/' ../flat)
least_ram=$(sed 's/.*"least":{"vram_bytes":[0-9]*,"ram_bytes":\([0-9]*\).*/\1/' ../flat)
mv ../out ../plan.json
on_gpu 0 "minimum VRAM and RAM" --max-vram "${least_vram}B" --max-ram "${least_ram}B"
on_gpu 4 "one byte below the minimum VRAM" --max-vram $((least_vram - 1))B --report r.json
check "error names the minimum" has ../err "^sluice: .*--max-vram ${least_vram}B"
check "exit 4 in report" has r.json '"exit": *4'
rm -f r.json
on_gpu 4 "one byte below the minimum RAM" --max-ram $((least_ram - 1))B
check "error names the minimum" has ../err "^sluice: .*--max-ram ${least_ram}B"
on_gpu 0 "plan file" --plan ../plan.json --report r.json
check "plan hash" has r.json "$(grep -o '"hash": *"[0-9a-f]*"' ../plan.json)"
rm -f r.json
draw 4 "GPU plan on the CPU" -p x -o a.png --device cpu --plan ../plan.json
check "error message" has ../err '^sluice: .*another device'
with EMU_CONTEXT=$((896 << 20)) on_gpu 4 "CUDA context larger than assumed" --max-vram "${least_vram}B" --report r.json
with EMU_CONTEXT=$((896 << 20)) on_gpu 0 "large context without a budget" --report r.json
check "measured context" has r.json '"context_bytes": *939524096'
check "device_bytes" has r.json "\"device_bytes\": *$(((896 + 192 + 32) << 20))"
check "reported convolutions" tr_has r.json '"op":"conv2d","shape":"[0-9x ]*pixels,[^"]*","algorithm":"emulated"'
check "reported products" tr_has r.json '"op":"linear","shape":"[0-9x ]*","algorithm":"emulated"'
with EMU_CODE=$((600 << 20)) on_gpu 0 "kernel code larger than assumed" --report r.json
check "measured kernel code" has r.json '"context_bytes": *905969664'
with EMU_ABSENT=nvml on_gpu 0 "without NVML" --max-vram "${least_vram}B" --report r.json
check "no context_bytes" lacks r.json '"context_bytes"'
rm -f r.json
with EMU_TAKEN=$((8 << 30)) on_gpu 4 "GPU memory in use by others"
with EMU_TAKEN=$(((8 << 30) - (300 << 20))) on_gpu 5 "a GPU filled by other programs" --max-vram 4G
check "error message" has ../err '^sluice: not enough free GPU memory.*--max-vram.*free'
draw 0 "batch of 8 with minimum VRAM" -p x -b 8 -o b.png --device cuda --max-vram "${least_vram}B" --save-latent l.safetensors \
    --report b.json -q
check "first image" cmp -s b-1.png ../first.png
expect 0 "decode the saved latent" decode l.safetensors -m "$model" -o d.png --device cuda --max-vram "${least_vram}B" \
    --report d.json -q
hashes() { tr -d ' \n' <"$1" | sed 's/.*"image_sha256":\[\([^]]*\).*/\1/'; }
check "same images" [ "$(hashes b.json)" = "$(hashes d.json)" ]
rm -f ./*

# Failing calls. call: number of enum emu_call; error: 2 out of memory, 1 invalid value, 700 GPU lost
fails() { # fails CALL N ERROR: the N-th call fails; sets code
    name="EMU_FAIL=$1:$2:$3"
    [ "$3" = 700 ] && ASAN_OPTIONS=detect_leaks=0
    # shellcheck disable=SC2086
    EMU_FAIL=$1:$2:$3 timeout 120 "$sluice" generate -m "$model" $size --steps 2 -p x -o a.png --report r.json \
        --device cuda -q >../out 2>../err
    code=$?
    ASAN_OPTIONS="detect_leaks=${LEAKS:-1}"
    check "exit $code" [ $code = 0 -o $code = 5 ]
    check "last line" last_line_rule $code
    check "exit in report" has r.json "\"exit\": *$code"
    if [ $code = 0 ]; then
        check "same image" cmp -s a.png ../first.png
    else
        check "no image" absent a.png
        [ "$3" != 700 ] || check "error says that the GPU is lost" has ../err '^sluice: .*lost'
    fi
    rm -f a.png r.json
}
counts="1 16"
[ "${CALLS:-}" != all ] || counts="1 2 3 $(seq 5 7 200)"
for call in 1 2 3 4 5 6 7 8 9; do
    # No run survives the loss of the GPU: a run that succeeds has fewer than n calls of the kind, so no error of the n-th
    # call or a later one could be seen.
    reached=
    for n in $counts; do
        fails $call $n 700
        [ $code = 0 ] && break
        reached="$reached $n"
    done
    check "call $call is made" [ -n "$reached" ]
    for n in $reached; do
        fails $call $n 2
        fails $call $n 1
    done
done
check "no files left" empty_folder .

for delay in 0 20000; do
    name="SIGINT, copies delayed by up to $delay us"
    : >../err
    # shellcheck disable=SC2086
    EMU_DELAY=$delay "$sluice" generate -m "$model" $size --steps 10000 -p x -o c.png --device cuda --report c.json \
        --max-vram "${least_vram}B" >../out 2>../err &
    pid=$!
    n=0
    while [ $n -lt 200 ] && ! grep -q '^denoise' ../err; do
        sleep 0.1
        n=$((n + 1))
    done
    kill -INT $pid
    wait $pid
    code=$?
    check "exit 130, found $code" [ $code = 130 ]
    check "last line" last_line_rule 130
    check "no image" absent c.png
    check "report exit" has c.json '"exit": *130'
    rm -f c.json
done
check "no files left" empty_folder .

echo "$passed passed, $failed failed"
[ $failed = 0 ]
