#!/bin/sh
# The program on an emulated GPU (test/emu/emu.h): which GPUs are taken, budgets of device memory, a GPU that others fill, every
# CUDA call that can fail, once with no memory, once refused, once with the GPU lost, and Ctrl-C. A run that ends well drew the
# same picture; any other leaves one line, its code, and no picture.
#
# usage: program.sh SLUICE MODEL_DIR [SCRATCH_DIR]      SLUICE: of CONFIG=emu or asan. CALLS=all: more of each call
. "$(dirname "$0")/../program/harness.sh"
direct=$(sed -n 's/^exec "\(.*\)" "$@"$/\1/p' ../on_cpu) # without a device by default
export OMP_WAIT_POLICY=passive
# What a lost GPU's driver has is gone with the process: no leak of ours.
export ASAN_OPTIONS="detect_leaks=${LEAKS:-1}"

on_gpu() { # on_gpu CODE NAME ARGS...: draws a.png, and compares it where that ends well
    rm -f a.png
    gpu_code=$1 gpu_name=$2
    shift 2
    draw "$gpu_code" "$gpu_name" -p x -o a.png --device cuda -q "$@"
    if [ "$gpu_code" = 0 ]; then
        [ -e ../first.png ] || cp a.png ../first.png
        check "the same picture" cmp -s a.png ../first.png
    else
        check "no picture" absent a.png
    fi
    rm -f a.png
}
tr_has() { tr -d '\n' <"$1" | sed 's/" *: */":/g;s/, *"/,"/g' | grep -q "$2"; }
with() { # with VARIABLE=VALUE COMMAND...: a setting of the emulator for one run
    emu_setting=$1
    shift
    export "${emu_setting?}"
    "$@"
    unset "${emu_setting%%=*}"
}

# ---- which GPU ----
rm -f ../first.png
on_gpu 0 "the first GPU"
with EMU_DRIVER=0 on_gpu 5 "no driver"
check "says so" has ../err '^sluice: no NVIDIA driver found (--device cuda:0)'
with EMU_DRIVER=12080 on_gpu 5 "an old driver"
check "says so" has ../err '^sluice: .*too old.*found a driver for CUDA 12.8, expected a driver for CUDA 13.0 or later (release 580), or'
with EMU_CAPABILITY=9.0 draw 0 "a GPU that the build has no machine code for" -p x -o a.png --device cuda
check "says so" has ../err 'no machine code for your GPU (Emulated GPU 0, compute capability 9.0)'
check "the same picture" cmp -s a.png ../first.png
with EMU_CAPABILITY=8.9 draw 0 "one that it has some for" -p x -o a.png --device cuda
check "says nothing" lacks ../err compiling
rm -f a.png
with EMU_DEVICES=0 on_gpu 5 "no GPU"
with EMU_ABSENT=cublaslt on_gpu 5 "no cuBLASLt"
check "says so" has ../err '^sluice: large matrix products need cuBLASLt .*not installed: found cuBLASLt cannot be loaded'
with EMU_ABSENT=cudnn on_gpu 5 "no cuDNN"
check "says so" has ../err '^sluice: convolutions need cuDNN 9, .*not installed: found cuDNN cannot be loaded'
with EMU_ABSENT=cudnn draw 0 "a latent without cuDNN" -p x --device cuda --no-decode --save-latent l.safetensors -q
rm -f l.safetensors
with EMU_CAPABILITY=7.5 on_gpu 5 "an old GPU"
check "says so" has ../err '^sluice: the GPU cuda:0 .*found compute capability 7.5, expected 8.0 or later'
with EMU_MAPS=0 on_gpu 5 "a GPU without virtual memory"
check "says so" has ../err "^sluice: this GPU does not support CUDA virtual memory management"
with EMU_INTEGRATED=1 on_gpu 5 "a GPU without memory of its own"
check "says so" has ../err '^sluice: GPUs that share the host.s memory are not supported'
with EMU_CAPABILITY=7.5 expect 0 "an old GPU is listed" devices
check "with why" has ../out '^cuda:0: .*too old'
for setting in EMU_DRIVER=0 EMU_CAPABILITY=7.5; do
    with $setting expect 0 "planned with $setting" plan -m "$model" --device cuda
    check "what is assumed" has ../out '^assumed '
    with $setting expect 2 "a part of an unknown GPU" plan -m "$model" --device cuda --max-vram 80%
    # shellcheck disable=SC2086
    with $setting "$direct" generate -m "$model" $size --steps 2 -p x -o a.png --report r.json -q
    check "no GPU that will do: the CPU draws" has r.json '"device": *"cpu"'
    rm -f a.png r.json
done
# shellcheck disable=SC2086
"$direct" generate -m "$model" $size --steps 2 -p x -o a.png --report r.json -q
check "by default the GPU draws" has r.json '"device": *"cuda"'
rm -f a.png r.json
draw 2 "the second of one GPU" -p x -o a.png --device cuda:1
check "says so" has ../err '^sluice: no such GPU: cuda:1'
with EMU_DEVICES=2 draw 0 "the second of two" -p x -o a.png --device cuda:1
check "the same picture" cmp -s a.png ../first.png
rm -f a.png
on_gpu 2 "f32" --precision f32

# ---- budgets ----
for budget in 0 -1 0% 101% 9G 1000T; do
    on_gpu 2 "--max-vram $budget" --max-vram $budget
    check "names the flag" has ../err '^sluice: .*--max-vram'
done
on_gpu 0 "all of it" --max-vram 100%
on_gpu 0 "a part of it" --max-vram 12.5%
# shellcheck disable=SC2086
expect 0 "the plan" plan -m "$model" $size --steps 2 -p x --device cuda --json
tr -d ' \n' <../out >../flat
least_vram=$(sed 's/.*"least":{"vram_bytes":\([0-9]*\).*/\1/' ../flat)
least_ram=$(sed 's/.*"least":{"vram_bytes":[0-9]*,"ram_bytes":\([0-9]*\).*/\1/' ../flat)
mv ../out ../plan.json
on_gpu 0 "the least of both" --max-vram "${least_vram}B" --max-ram "${least_ram}B"
on_gpu 4 "a byte below" --max-vram $((least_vram - 1))B --report r.json
check "names the least" has ../err "^sluice: .*--max-vram ${least_vram}B"
check "exit 4 in report" has r.json '"exit": *4'
rm -f r.json
on_gpu 4 "a byte of host memory below" --max-ram $((least_ram - 1))B
check "names the least" has ../err "^sluice: .*--max-ram ${least_ram}B"
on_gpu 0 "its own plan" --plan ../plan.json --report r.json
check "the plan's hash" has r.json "$(grep -o '"hash": *"[0-9a-f]*"' ../plan.json)"
rm -f r.json
draw 4 "the GPU's plan on the CPU" -p x -o a.png --device cpu --plan ../plan.json
check "says so" has ../err '^sluice: .*another device'
with EMU_CONTEXT=$((896 << 20)) on_gpu 4 "a context larger than assumed" --max-vram "${least_vram}B" --report r.json
with EMU_CONTEXT=$((896 << 20)) on_gpu 0 "the same with enough" --report r.json
check "what it took" has r.json '"context_bytes": *939524096'
check "what it was taken for" has r.json "\"device_bytes\": *$(((896 + 192 + 32) << 20))"
check "what convolutions ran" tr_has r.json '"op":"conv2d","shape":"[0-9x ]*pixels,[^"]*","algorithm":"emulated"'
check "what products ran" tr_has r.json '"op":"linear","shape":"[0-9x ]*","algorithm":"emulated"'
with EMU_CODE=$((600 << 20)) on_gpu 0 "kernels larger than assumed" --report r.json
check "what they took" has r.json '"context_bytes": *905969664'
with EMU_ABSENT=nvml on_gpu 0 "without NVML" --max-vram "${least_vram}B" --report r.json
check "nothing is known of the context" lacks r.json '"context_bytes"'
rm -f r.json
with EMU_TAKEN=$((8 << 30)) on_gpu 4 "a full GPU"
with EMU_TAKEN=$(((8 << 30) - (300 << 20))) on_gpu 5 "a GPU that others fill" --max-vram 4G
check "says so" has ../err '^sluice: not enough free GPU memory.*--max-vram.*free'
draw 0 "eight at the least" -p x -b 8 -o b.png --device cuda --max-vram "${least_vram}B" --save-latent l.safetensors \
    --report b.json -q
check "the first is the same" cmp -s b-1.png ../first.png
expect 0 "decoded elsewhere" decode l.safetensors -m "$model" -o d.png --device cuda --max-vram "${least_vram}B" \
    --report d.json -q
hashes() { tr -d ' \n' <"$1" | sed 's/.*"image_sha256":\[\([^]]*\).*/\1/'; }
check "the same pictures" [ "$(hashes b.json)" = "$(hashes d.json)" ]
rm -f ./*

# ---- what fails ----
# call numbers of enum emu_call; errors: no memory, refused, lost
counts="1 4 16 60"
[ "${CALLS:-}" != all ] || counts="1 2 3 $(seq 5 7 200)"
for call in 1 2 3 4 5 6 7 8 9; do
    for error in 2 1 700; do
        for n in $counts; do
            name="EMU_FAIL=$call:$n:$error"
            [ $error = 700 ] && ASAN_OPTIONS=detect_leaks=0
            # shellcheck disable=SC2086
            EMU_FAIL=$call:$n:$error timeout 120 "$sluice" generate -m "$model" $size --steps 2 -p x -o a.png --report r.json \
                --device cuda -q >../out 2>../err
            code=$?
            ASAN_OPTIONS="detect_leaks=${LEAKS:-1}"
            check "exit $code" [ $code = 0 -o $code = 5 ]
            check "last line" last_line_rule $code
            check "the report's exit" has r.json "\"exit\": *$code"
            if [ $code = 0 ]; then
                check "the same picture" cmp -s a.png ../first.png
            else
                check "no picture" absent a.png
                [ $error != 700 ] || check "says that it is lost" has ../err '^sluice: .*lost'
            fi
            rm -f a.png r.json
        done
    done
done
check "nothing was left" empty_folder .

# ---- Ctrl-C ----
for delay in 0 20000; do
    name="SIGINT, copies that take up to $delay us"
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
    check "exit 130, not $code" [ $code = 130 ]
    check "last line" last_line_rule 130
    check "no picture" absent c.png
    check "report exit" has c.json '"exit": *130'
    rm -f c.json
done
check "nothing was left" empty_folder .

echo "$passed passed, $failed failed"
[ $failed = 0 ]
