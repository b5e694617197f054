#!/bin/sh
# The command-line program: flags, exit codes, messages, output files, signals, invalid models. plan.sh tests plan,
# benches.sh inspect, devices and bench.
#
# usage: run.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/harness.sh"

# ---- help and version ----
expect 0 version --version
check "version line" has ../out '^sluice [0-9]*\.[0-9]*\.[0-9]*$'
expect 0 help --help
for command in generate decode plan inspect tokenize convert bench devices families; do
    check "help lists $command" has ../out "^  $command "
done
for command in generate decode plan inspect tokenize convert bench devices families; do
    expect 0 "$command --help" $command --help
    check "usage line" has ../out "^usage: sluice $command"
    check "stderr is empty" [ ! -s ../err ]
done
expect 0 "--help with an unknown flag" generate --help --nonsense
expect 2 "no command"
expect 2 "unknown command" genrate
check "suggests a command" has ../err 'did you mean generate'
expect 2 "unknown command, no suggestion" xyzzy
expect 2 "convert without input" convert
check "error message" has ../err 'IN\.\.\.'

# ---- invalid command lines: command line | pattern of the error message ----
while IFS='|' read -r line pattern; do
    [ -z "$line" ] && continue
    # shellcheck disable=SC2086
    expect 2 "$line" $line
    check "message has $pattern" has ../err "^sluice: .*$pattern"
done <<END
generate --stepz 3|did you mean --steps
generate --cfg_scale 3|did you mean --cfg-scale
generate --MODEL x|did you mean --model
generate --xyzzy|unknown flag
generate -z|unknown flag
generate --tensors|belongs to other commands
inspect --steps 3|belongs to other commands
generate --json|belongs to other commands.*--report -
generate word|word
generate --steps|--steps
generate --steps --seed 1|--steps
generate -m -p x|--model
generate --steps 0|--steps
generate --steps -1|--steps
generate --steps 3x|--steps
generate --steps 3.5|--steps
generate --steps=|--steps
generate --steps 0x10|--steps
generate --steps 99999999999999999999|--steps
generate --steps 18446744073709551617|--steps
generate --steps nan|--steps
generate --steps +|--steps
generate --no-decode=yes|--no-decode
generate -m x -p x --no-decode|--save-latent
generate -W 0|--width
generate -W -16|--width
generate -H 0|--height
generate -H 1e3|--height
generate -b 0|--batch
generate -t 0|--threads
generate -t -1|--threads
generate --cfg-scale nan|--cfg-scale
generate --cfg-scale inf|--cfg-scale
generate --cfg-scale 1;5|--cfg-scale
generate --cfg-scale -1|--cfg-scale
generate --guidance x|--guidance
generate --flow-shift 0|--flow-shift
generate --flow-shift -3|--flow-shift
generate --strength 2|--strength
generate --strength -0.1|--strength
generate --seed -2|--seed
generate --seed 1.5|--seed
generate --seed 9223372036854775808|--seed
generate --seed abc|--seed
generate --max-ram 0|--max-ram
generate --max-ram 0G|--max-ram
generate --max-ram 0%|--max-ram
generate --max-ram -1G|--max-ram
generate --max-ram 3X|--max-ram
generate --max-ram 3GG|--max-ram
generate --max-ram 1.2.3G|--max-ram
generate --max-ram G|--max-ram
generate --max-ram 1.5B|--max-ram
generate --max-ram 0.1B|--max-ram
generate --max-ram 1e3M|--max-ram
generate --max-ram 0x10G|--max-ram
generate --max-ram nan|--max-ram
generate --max-ram 101%|above the memory
generate --max-ram 999999T|above the memory
generate --device cuda:4060 --max-ram 900T|above the memory
plan --max-ram 900T|above the memory
plan --device cuda:0 --max-ram 900T|above the memory
generate --max-ram 9223372036854775808B|above the memory
generate --max-ram 18446744073709551617B|above the memory
generate --max-ram 99999999999999999999999999999999999G|above the memory
generate --max-vram 0|--max-vram
generate --sampler dpm|--sampler
generate --scheduler karass|--scheduler
generate --vae-tiling maybe|--vae-tiling
generate --direct-io maybe|--direct-io
generate --precision f64|--precision
generate -q -v|contradict
generate --steps 3 --steps 4|given twice
decode|LATENT
decode a b|unexpected argument
plan --steps 0|--steps
inspect|no model is given
inspect -m a b|two models
tokenize -m x|no prompt is given
tokenize -p x|tokenizer
bench|bus.ops
bench stream --clock paced|make dev.*sluice-dev stream
bench checkpoint zimage ck --dims a=1|make dev
bench block --save x|belongs to other benches
bench block --predict 6090|such as 4090
bench block --predict 4090 --device cpu|predictions are for the GPU
bench block --predict 4090 --device cuda:3060|cuda, or cuda:4090
bench block --device cuda|make bench-gpu
bench ops --predict 4090|belongs to other benches
bench bus word|unexpected argument
bench ops a b|unexpected argument
bench bus --dims a=1|belongs to other commands: plan
bench ops --dir .|belongs to other benches
bench ops -m x|belongs to other benches
bench load|-m DIR
bench load -m x -t 1|belongs to other benches
bench bus --dir . -m x|contradict
bench ops --save -|--save
bench ops -t 0|--threads
devices word|word
families word|word
families --markdown|unknown flag
END
check "no temporary folder" empty_folder .

# ---- flags that the model or the device does not support: flags | pattern of the error message ----
while IFS='|' read -r line pattern; do
    [ -z "$line" ] && continue
    # shellcheck disable=SC2086
    draw 2 "$line" -p x -o a.png $line
    check "message has $pattern" has ../err "^sluice: .*$pattern"
done <<END
--strength 0.5|--strength
--frames 5|--frames
--fps 24|--fps
--device cuda:x|--device
--device tpu|--device
--device cuda:0,cuda:1|a run uses one.*--device
--precision f16|--precision.*f16
--seed 9223372036854775807 -b 2|--seed
END
name="refused runs"
check "no file is written" empty_folder .
# --device cuda: exit 2 in a build without CUDA, exit 5 without a driver; skipped if a GPU is present
expect 0 "devices" devices
gpu=there
has ../out '^cuda: ' && gpu=missing
has ../out '^cuda: this program was built without CUDA' && gpu=unbuilt
if [ $gpu != there ]; then
    for device in cuda cuda:1; do
        draw $([ $gpu = unbuilt ] && echo 2 || echo 5) "--device $device" -p x -o a.png --device $device
        check "error names the flag" has ../err "^sluice: .*--device $device"
    done
    check "no file is written" empty_folder .
    expect 0 "plan for a GPU" plan -m "$model" --device cuda --max-vram 2G --json
    check "lists the assumed GPU" has ../out '"assumed"'
    check "precision bf16" has ../out '"precision": *"bf16"'
    expect 0 "plan for a GPU, as a table" plan -m "$model" --device cuda --max-vram 2G
    check "lists the assumed GPU" has ../out '^assumed  '
    expect 4 "plan for too little device memory" plan -m "$model" --device cuda --max-vram 100M
    check "error names the flag" has ../err '^sluice: .*--max-vram'
    expect 2 "f32 on a GPU" plan -m "$model" --device cuda --precision f32
fi
expect 2 "--device cuda: without a number" plan -m "$model" --device cuda:
# bf16 needs AVX512_BF16 or AMX: oneDNN would emulate it on older processors
for isa in AVX2 AVX512_CORE; do
    DNNL_MAX_CPU_ISA=$isa
    export DNNL_MAX_CPU_ISA
    draw 2 "bf16, oneDNN limited to $isa" -p x -o a.png --precision bf16
    check "error names the missing instructions" has ../err '^sluice: .*--precision.*AVX512_BF16.*found bf16'
    expect 2 "plan bf16, oneDNN limited to $isa" plan -m "$model" --precision bf16
    draw 2 "int8, oneDNN limited to $isa" -p x -o a.png --precision int8
    check "error names the missing int8 instructions" has ../err '^sluice: .*--precision.*_VNNI.*found int8'
    draw 0 "f32, oneDNN limited to $isa" -p x -o a.png --precision f32
    rm -f a.png
done
unset DNNL_MAX_CPU_ISA
if grep -qE '^flags.*(avx512_bf16|amx_bf16)' /proc/cpuinfo; then
    draw 0 "bf16" -p x -o a.png --precision bf16
    expect 0 "plan bf16" plan -m "$model" --precision bf16 --json
    check "precision bf16 in the plan" [ "$(grep -c '"precision": *"bf16"' ../out)" = 2 ]
    rm -f a.png
else
    echo "SKIP bf16: this processor has no instructions for it"
fi
if grep -qE '^flags.*avx512_vnni' /proc/cpuinfo; then
    draw 0 "int8" -p x -o a.png --precision int8
    check "precision in the PNG text" has a.png ', Precision: int8, Seed: '
    # Integer sums are exact with any instructions; AVX512 changes no other operator.
    DNNL_MAX_CPU_ISA=AVX512_CORE_VNNI
    export DNNL_MAX_CPU_ISA
    draw 0 "int8, oneDNN limited to VNNI" -p x -o b.png --precision int8
    unset DNNL_MAX_CPU_ISA
    check "VNNI and the best instructions give one image" cmp -s a.png b.png
    rm -f a.png b.png
else
    echo "SKIP int8: this processor has no AVX512_VNNI instructions to compare with"
fi
check "no file is written" empty_folder .
for budget in 0 0B -1 -512M 101% 1000T 9223372036854775807B; do # everything else in these commands is valid
    draw 2 "--max-ram $budget" -p x -o a.png --save-latent l.safetensors --max-ram $budget
    check "error names the flag" has ../err '^sluice: .*--max-ram'
    expect 2 "plan --max-ram $budget" plan -m "$model" --max-ram $budget
    check "no plan is printed" [ ! -s ../out ]
done
check "no file is written" empty_folder .
expect 2 "no model" generate -p x
expect 2 "no prompt" generate -m "$model"
expect 2 "-W 17" generate -m "$model" -p x -W 17 -H 48 -o a.png
expect 2 "bmp" generate -m "$model" -p x -o a.bmp
expect 2 "no extension" generate -m "$model" -p x -o a
expect 2 "twice %d" generate -m "$model" -p x -o %d%d.png
expect 2 "batch of 2 to stdout" generate -m "$model" -p x -b 2 -o -
expect 2 "two outputs with one name" generate -m "$model" -p x -o a.png --save-latent ./a.png
expect 2 "--report names an image" generate -m "$model" -p x -b 2 -o a.png --report a-2.png
printf keep >a.png
expect 2 "--report names the image, with an invalid flag" generate --steps 0 -o a.png --report a.png
check "the file is unchanged" [ "$(cat a.png)" = keep ]
rm -f a.png
check "no file is written" empty_folder .

# ---- outputs never overwrite inputs: command line | pattern of the error message ----
rm -rf ../in ../in.before
mkdir -p ../in/part/inner ../in/tokens ../in/tokenizer_2 ../in/away ../in/there && cd ../in || exit 2
for file in away/config.json part/inner/config.json a.json l.safetensors sigmas.safetensors b.png part/config.json part/w-00001-of-00002.safetensors part/w.json tokens/tokenizer.json tokenizer_2/spiece.model; do
    echo keep >$file
done
ln -s part link
ln -s ../l.safetensors part/l.safetensors
ln -s ../away part/away
ln -s l.safetensors to_l
ln -s part/config.json to_config
cp -r . ../in.before
while IFS='|' read -r line pattern; do
    [ -z "$line" ] && continue
    # shellcheck disable=SC2086
    expect 2 "$line" $line
    check "message has $pattern" has ../err "^sluice: .*$pattern"
    check "no file is changed" diff -r . ../in.before
done <<END
generate -m part -p x --save-latent part/config.json|--save-latent would overwrite a file in the folder of --model .*"part/config.json"
generate -m link -p x --report part/config.json|--report would overwrite a file in the folder of --model
generate -m part -p x --report link/../part/config.json|--report would overwrite .* --model
generate -m part -p x --report to_config|--report would overwrite .* --model
generate -m part -p x --report away/config.json|--report would overwrite a file in the folder of --model
generate -m part -p x --save-latent part/l.safetensors|--save-latent would overwrite .* --model
generate -m $model --vae part -p x --report part/config.json|--report would overwrite a file in the folder of --vae
generate -m $model --llm l.safetensors -p x --save-latent l.safetensors|--save-latent would overwrite the file of --llm
generate -m $model --vae part/w.json -p x --save-latent part/w-00001-of-00002.safetensors|would overwrite a file that is read with the file of --vae
generate -m $model --tokenizer tokens/tokenizer.json -p x --save-latent tokens/tokenizer.json|--save-latent would overwrite the file of --tokenizer
generate -m $model --llm part -p x --report tokenizer_2/spiece.model|--report would overwrite a file that is read with --llm
generate -m $model --llm part/w.json -p x --save-latent tokenizer_2/spiece.model|--save-latent would overwrite a file that is read with --llm
generate -m $model -p x --init-latent l.safetensors --save-latent l.safetensors|--save-latent would overwrite the file of --init-latent
generate -m $model -p x --init-latent to_l --save-latent ./l.safetensors|--save-latent would overwrite the file of --init-latent
generate -m $model -p x --init-latent l.safetensors --report to_l|--report would overwrite the file of --init-latent
generate -m $model -p x --init-latent sigmas.safetensors --dump .|--dump would overwrite the file of --init-latent .*sigmas
generate -m . -p x --dump .|--dump would overwrite a file in the folder of --model .*sigmas
generate -m $model -p x --init-latent b.png -o b.png|--output would overwrite the file of --init-latent
generate -m $model -p x --init-latent b.png -b 2 --steps 0 --report b.png|--steps
generate -m $model -p x --clip_l a.json --report a.json|--report would overwrite the file of --clip_l
generate -m $model -p @a.json --report a.json|--report would overwrite the file of --prompt
generate -m $model -p x -n @a.json --save-latent a.json|--save-latent would overwrite the file of --negative-prompt
generate -m $model -p x --plan a.json --save-latent a.json|--save-latent would overwrite the file of --plan
generate -m $model -p x --rates a.json --report a.json|--report would overwrite the file of --rates
plan -m $model --rates a.json --report a.json|--report would overwrite the file of --rates
plan -m part --report part/config.json|--report would overwrite .* --model
decode l.safetensors -m $model --report l.safetensors|--report would overwrite the input file l.safetensors
bench bus -m part --save part/config.json|--save would overwrite .* --model
generate -m $model -p x --dump x.png -o x.png|--dump and --output name the same file
generate -m $model -p x --dump ./x/ --report x|--dump and --report name the same file
generate -m $model -p x --dump x --save-latent x|--dump and --save-latent name the same file
END
# Where bind mounts are not allowed, only the symbolic links above are tested.
for mounted in part part/inner; do
    unshare -rm true 2>/dev/null || continue
    name="an output through a bind mount of $mounted"
    unshare -rm sh -c 'mount --bind "$1" there && exec "$2" generate -m part -p x --report there/config.json' - $mounted "$sluice" 2>../err
    code=$?
    check "exit 2, not $code" [ $code = 2 ]
    check "error names the input folder" has ../err 'would overwrite a file in the folder of --model'
    check "no file is changed" diff -r . ../in.before
done
cd ../work && rm -rf ../in ../in.before
copy() { # copy NAME: makes a copy of the model, to be damaged
    rm -rf "$1" && cp -r "$model" "$1"
}
copy other
expect 0 "new files in the model's folder" generate -m other -p x --steps 1 -W 32 -H 32 --no-decode --save-latent other/l.safetensors --report other/r.json
check "both files are written" [ -s other/l.safetensors ]
rm -rf other

# ---- prompts ----
printf 'a red fox\nin the snow' >../prompt
printf 'bad \377 text' >../notutf8
printf 'bad \355\240\200 text' >../surrogate
printf 'nul\0text' >../nul
expect 3 "missing prompt file" generate -m "$model" -p @../nowhere
expect 2 "not UTF-8" generate -m "$model" -p x -n @../notutf8
check "error names the byte" has ../err 'byte 4'
expect 2 "surrogate" generate -m "$model" -p @../surrogate
expect 2 "NUL" generate -m "$model" -p @../nul
expect 2 "endless prompt" generate -m "$model" -p @/dev/zero
check "error names the limit" has ../err 'the prompt is too long.*at most 1048576 bytes'
mkfifo ../pipe
expect 3 "a prompt from a pipe without a writer" tokenize -m "$model" -p @../pipe
check "error message" has ../err 'no process writes to'
expect 3 "a plan from a pipe without a writer" plan -m "$model" --plan ../pipe
{ sleep 1.5 && printf 'a fox'; } >../pipe &
expect 0 "a prompt from a slow pipe" tokenize -m "$model" -p @../pipe
cp ../out ../out.pipe
wait
expect 3 "a prompt from a folder" tokenize -m "$model" -p @..
rm -f ../pipe
expect 2 "not UTF-8 on the command line" generate -m "$model" -p "$(printf 'x\377')"
expect 0 "tokenize" tokenize -m "$model" -p "a fox"
check "prints token ids" has ../out '[0-9]'
check "same ids from a pipe" cmp -s ../out ../out.pipe
expect 0 "tokenize --json" tokenize -m "$model" -p "a fox" --json
check "lists encoders" has ../out '"encoders"'
expect 0 "tokenize empty" tokenize -m "$model" -p ""
expect 0 "tokenize a file" tokenize -m "$model" -p @../prompt --json
cp ../out ../out.file
expect 0 "tokenize the same text" tokenize -m "$model" -p "$(cat ../prompt)" --json
check "same ids" cmp -s ../out ../out.file
if [ -d "$model/tokenizer" ]; then
    expect 0 "tokenize with --tokenizer" tokenize --tokenizer "$model/tokenizer" -p "a fox" --json
    tr -d ' \n' <../out >../flat
    check "prints one array" has ../flat '^\[[0-9,]*\]$'
fi

# ---- generate ----
draw 0 "one image" -p "a fox" --seed 42 -o fox.png --report r.json
check "output is a PNG" [ "$(head -c 8 fox.png | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a ]
check "prompt in the PNG text" has fox.png 'tEXtparameters'
check "settings in the PNG text" has fox.png "^Steps: 2, Sampler: Euler, Schedule type: Simple, CFG scale: [0-9.]*, .*Seed: 42, Size: ${SIZE_W:-64}x${SIZE_H:-48}, Model: $(basename "$model"), Version: sluice "
check "stdout is empty" [ ! -s ../out ]
check "seed on stderr" has ../err '^seed 42$'
check "file name on stderr" has ../err '^wrote fox.png '
check "summary on stderr" has ../err '^done: 1 image '
check "hash of the pixels on stderr" has ../err '^wrote fox.png (.*, pixels sha256 [0-9a-f]*)$'
check "no progress lines after the last image" [ "$(sed -n '/^wrote/,$p' ../err | grep -c '^\(wrote\|done\)')" = "$(sed -n '/^wrote/,$p' ../err | wc -l)" ]
check "no advice after a run that waited for nothing" [ "$(tail -n 1 ../err | cut -c 1-6)" = "done: " ]
tr -d ' \n' <r.json >../flat
check "report exit" has ../flat '"exit":0'
check "report seed" has ../flat '"seed":42'
for key in version plan seconds latent_sha256 image_sha256 measured stages steps; do
    check "report has $key" has ../flat "\"$key\":"
done
check "no replanning" has ../flat '"replanned":\[\]'
for key in compute_seconds user_seconds system_seconds gbytes_per_second stall_block_seconds floor_seconds efficiency planned_ram_bytes measured_ram_bytes; do
    check "stage has $key" has ../flat "\"name\":\"denoise\"[^}]*\"$key\":"
done
for key in compute_seconds user_seconds system_seconds page_faults gbytes_per_second stall_seconds stall_block stall_block_seconds floor_seconds efficiency; do
    check "step has $key" has ../flat "\"index\":0[^}]*\"$key\":"
done
check "no error in the report" lacks ../flat '"error"'
check "no other files" [ "$(ls -A | tr '\n' ' ')" = "fox.png r.json " ]
cp fox.png ../first.png
draw 0 "again, overwriting the file" -p "a fox" --seed 42 -o fox.png -q
check "same file" cmp -s fox.png ../first.png
check "-q prints nothing" [ ! -s ../err ]
draw 0 "direct reads" -p "a fox" --seed 42 -o fox.png -q --direct-io on
check "same file" cmp -s fox.png ../first.png
rm -f fox.png r.json
draw 0 "default name" -p x
check "output.png" [ -s output.png ]
rm -f output.png
draw 0 "prompt that fits into Latin-1" -p "$(printf 'caf\303\251')" -n "$(printf '\303\274ber')" --cfg-scale 2 -o a.png
check "tEXt" has a.png 'tEXtparameters'
check "prompt in Latin-1" has a.png "^.*caf$(printf '\351')$"
check "negative prompt" has a.png '^Negative prompt: '
draw 0 "prompt that does not fit into Latin-1" -p "$(printf 'a \347\213\220 fox')" -o a.png
check "iTXt" has a.png 'iTXtparameters'
check "prompt in UTF-8" has a.png "$(printf 'a \347\213\220 fox')"
draw 0 "@FILE" -p @../prompt -o a.png
check "second line of the prompt" has a.png '^in the snow$'
rm -f a.png
draw 0 "batch" -p x -b 3 --seed 7 -o x.png
check "three names" [ "$(ls -A | tr '\n' ' ')" = "x-1.png x-2.png x-3.png " ]
check "seed of the third" has x-3.png 'Seed: 9,'
rm -f ./*.png
draw 0 "batch with %d" -p x -b 2 -o 'n%dm.png'
check "file names" [ "$(ls -A | tr '\n' ' ')" = "n1m.png n2m.png " ]
rm -f ./*.png
draw 0 "one image with %d" -p x -o '%d.png'
check "1.png" [ -s 1.png ]
rm -f ./*.png
draw 0 "stdout" -p x -o -
check "stdout holds a PNG and nothing else" [ "$(head -c 8 ../out | od -An -tx1 | tr -d ' \n')$(tail -c 8 ../out | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a49454e44ae426082 ]
draw 0 "report on stdout" -p x -o a.png --report -
check "stdout holds only JSON" [ "$(head -c 1 ../out)" = "{" ]
draw 2 "report and image on stdout" -p x -o - --report -
rm -f a.png
draw 0 "random seed" -p x --seed -1 -o a.png
seed=$(sed -n 's/^seed //p' ../err)
check "the printed seed is in the file" has a.png "Seed: $seed,"
draw 0 "another random seed" -p x --seed -1 -o a.png -q
check "differs from the first seed" lacks ../err "^seed $seed$"
check "printed despite -q" has ../err "^seed [0-9]"
draw 0 "equals form, equal duplicate, end of flags" -p x --prompt=x --steps=2 -o a.png --
rm -f a.png
draw 0 "--no-decode" -p x --no-decode --save-latent l.safetensors
check "only the latent is written" [ "$(ls -A)" = l.safetensors ]
expect 0 "decode" decode l.safetensors -m "$model" -o d.png --report -
check "output is a PNG" [ -s d.png ]
check "no settings in the PNG text" lacks d.png 'Steps:'
check "report on stdout" has ../out '"exit"'
image_hash() { sed -n 's/^wrote .* sha256 \([0-9a-f]*\)).*/\1/p' ../err; }
whole=$(image_hash)
expect 0 "decode with --vae alone" decode l.safetensors --vae "$model/vae" -o e.png
check "prints a hash" [ -n "$whole" ]
check "same image" [ "$(image_hash)" = "$whole" ]
expect 0 "plan of a latent" plan l.safetensors --vae "$model/vae" --json
expect 3 "decode without a VAE in the folder" decode l.safetensors -m "$model/transformer" -o d2.png
check "error message" has ../err "^sluice: the model has no 'vae' "
expect 2 "decode without a VAE" decode l.safetensors --llm "$model/text_encoder" -o d2.png
expect 3 "decode a missing file" decode ../nowhere -m "$model" -o d2.png
check "no image is written" absent d2.png
rm -f ./*
# ---- --vae-tiling: memory of the decoder ----
wide="-W 400 -H 272 --steps 1 --cfg-scale 1"
last_number() { tr -d ' \n' <../out | sed "s/.*$1\":\([0-9]*\).*/\1/"; } # last_number KEY: the last number under this key in ../out
for how in off on; do
    # shellcheck disable=SC2086
    expect 0 "plan --vae-tiling $how" plan -m "$demo" -p x $wide --max-ram 60% --json --vae-tiling $how
    bytes=$(last_number state_bytes) least=$(last_number 'least":{[^}]*"ram_bytes')
    [ $how = on ] && check "tiling reduces the decoder's memory" [ "$bytes" -lt "$kept_bytes" ]
    kept_bytes=$bytes
    tr -d ' \n' <../out >../flat
    check "plan names the tiling" has ../flat "\"vae_tiling\":\"$how\""
    # shellcheck disable=SC2086
    expect 0 "--vae-tiling $how at the smallest budget" generate -m "$demo" -p x $wide -o $how.png --vae-tiling $how --max-ram "${least}B"
done
check "same image" cmp -s on.png off.png
# shellcheck disable=SC2086
expect 4 "one byte below the decoder's budget" generate -m "$demo" -p x $wide -o a.png --vae-tiling on --max-ram "$((least - 1))B" --save-latent l.safetensors
check "error message" has ../err "only the decode .*--max-ram ${least}B"
check "error suggests --no-decode" has ../err '\-\-no-decode --save-latent FILE'
check "no file is left" [ "$(ls)" = "$(printf 'off.png\non.png')" ]
# shellcheck disable=SC2086
expect 0 "the suggested flags" generate -m "$demo" -p x $wide --no-decode --save-latent l.safetensors --max-ram "$((least - 1))B"
expect 0 "decode the saved latent" decode l.safetensors -m "$demo" -o late.png --report ../r.json
expect 0 "generate with decode" generate -m "$demo" -p x $wide -o a.png --report ../r2.json
image=$(tr -d " \n" <../r2.json | grep -o '"image_sha256":\[[^]]*')
tr -d ' \n' <../r.json >../flat
check "same image" has ../flat "${image#*[}"
rm -f ./*
draw 0 "-v shows the plan" -p x -o a.png -v
check "lists stages" has ../err '^stage '
check "summary of each stage" has ../err '^stage denoise: .* s (computing .* GB/s.*; peak RAM so far .*, planned '
rm -f a.png

# ---- budgets and missing models ----
draw 4 "budget of 1 byte" -p x -o a.png --max-ram 1B --report r.json
check "sizes in MiB" has ../err 'is --max-ram [0-9]*B ([0-9.]* MiB) (memory): found a budget of 1 B, expected at least [0-9.]* MiB'
tr -d ' \n' <r.json >../flat
check "report exit" has ../flat '"exit":4'
check "report error" has ../flat '"code":"BUDGET"'
check "no image is written" absent a.png
rm -f r.json
expect 3 "no such model" generate -m ../nowhere -p x -o a.png --report r.json
tr -d ' \n' <r.json >../flat
check "minimal report of a missing model" has ../flat '"exit":3'
for key in version plan seed seconds latent_sha256 image_sha256 measured stages steps error; do
    check "report has $key" has ../flat "\"$key\":"
done
rm -f r.json
expect 2 "report of an invalid flag" generate --steps 0 --report r.json
check "exit 2 in report" has r.json '"exit": *2'
rm -f r.json
draw 3 "missing plan file" -p x -o a.png --plan ../nowhere
for text in garbage '{"version":1,"version":1}' '{"version":2}' '{"version":1,"stages":[]}'; do
    printf '%s' "$text" >../bad_plan.json
    code_of=3
    [ "$text" = '{"version":1,"stages":[]}' ] && code_of=4
    draw $code_of "plan $text" -p x -o a.png --plan ../bad_plan.json
    check "error names the file" has ../err '^sluice: .*(../bad_plan\.json'
done
# shellcheck disable=SC2086
expect 0 "a plan of 3 steps" plan -m "$model" $size --steps 3 -p x --json
cp ../out ../bad_plan.json
draw 4 "the same plan for 2 steps" -p x -o a.png --plan ../bad_plan.json
check "error names both step counts" has ../err '(../bad_plan\.json): found steps 3 in the plan, expected steps 2 as requested'
# ---- memory for opening files ----
# A safetensors header may be padded with blanks: 90 MB of blanks must be counted against the budget.
vae=$model/vae/diffusion_pytorch_model.safetensors
header=$(od -An -tu8 -N8 "$vae" | tr -d ' ')
blanks=90000000
mkdir -p ../blanks && cp "$model/vae/config.json" ../blanks
{
    for shift in 0 8 16 24 32 40 48 56; do printf "\\$(printf %o $((((header + blanks) >> shift) & 255)))"; done
    tail -c +9 "$vae" | head -c "$header"
    head -c $blanks /dev/zero | tr '\0' ' '
    tail -c +$((9 + header)) "$vae"
} >../blanks/diffusion_pytorch_model.safetensors
for budget in 1B 50M; do
    draw 4 "header larger than --max-ram $budget" -p x -o a.png --vae ../blanks --max-ram $budget
    check "error names the file" has ../err '^sluice: .*(../blanks/[^)]*): found a budget'
    least=$(sed -n 's/^sluice: .*the smallest budget that works is --max-ram \([0-9]*B\) .*/\1/p' ../err)
    draw 0 "the smallest budget $least" -p x -o a.png --vae ../blanks --max-ram "${least:-1B}"
done
expect 0 "plan without a budget" plan -m "$model" $size --vae ../blanks
rm -rf ../blanks a.png

# A plan file that is too large is refused before memory is allocated for it.
printf '{"version":1}' >../bad_plan.json
truncate -s 60M ../bad_plan.json
draw 2 "a plan of 60 MB" -p x -o a.png --plan ../bad_plan.json
check "refused by file size" has ../err "found 60.0 MiB, expected at most 4.00 MiB"
awk 'BEGIN { printf "["; for (i = 0; i < 1000000; i++) printf "1,"; print "1]" }' >../bad_plan.json
draw 3 "plan of a million numbers" -p x -o a.png --plan ../bad_plan.json
check "error message" has ../err '^sluice: .*more values than any plan has (../bad_plan\.json)'
rm -f ../bad_plan.json

# ---- outputs that cannot be written ----
draw 6 "output in a missing folder" -p x -o nowhere/a.png --report r.json
check "exit 6 in report" has r.json '"exit": *6'
rm -f r.json
draw 6 "output in /proc" -p x -o /proc/a.png
mkdir folder.png
draw 6 "output is a folder" -p x -o folder.png
rmdir folder.png
draw 6 "--report in a missing folder" -p x -o a.png --report nowhere/r.json
draw 6 "--save-latent in a missing folder" -p x -o a.png --save-latent nowhere/l.safetensors
draw 6 "--dump in a missing folder" -p x -o a.png --dump nowhere/d
check "no file is left" empty_folder .
ln -s /dev/full a.png
draw 6 "full disk" -p x -o a.png --report r.json
check "error names the cause" has ../err 'No space left'
check "exit 6 in report" has r.json '"exit": *6'
check "OUTPUT in report" has r.json '"OUTPUT"'
rm -f a.png r.json
ln -s /dev/full a-2.png
draw 6 "second of three images fails" -p x -b 3 -o a.png
check "the first image is kept" [ -s a-1.png ]
check "the third image is not written" absent a-3.png
rm -f ./*
draw 6 "report on a full disk" -p x -o a.png --report /dev/full
check "error names the cause" has ../err 'No space left'
rm -f a.png
name="file size limit"
(
    ulimit -f 16 # not smaller, because OpenMP runtimes write a small file too
    # shellcheck disable=SC2086
    exec "$sluice" generate -m "$model" -W 256 -H 256 --steps 1 -p x -o a.png 2>../err
)
code=$?
check "exit 6, not $code" [ $code = 6 ]
check "last line" last_line_rule 6
check "no file is left" empty_folder .
for output in "--save-latent l.safetensors" "--dump ."; do
    name="file size limit, $output"
    (
        ulimit -f 16
        # shellcheck disable=SC2086
        exec "$sluice" generate -m "$model" -W 256 -H 256 --steps 1 -p x --no-decode $output 2>../err
    )
    code=$?
    check "exit 6, not $code" [ $code = 6 ]
    check "last line" last_line_rule 6
    check "no temporary or partial file" [ -z "$(ls -A | grep -v -e '^tokens' -e '^sigmas')" ]
    rm -f ./*
done
for command in "plan -m $model" "inspect $model" "inspect $model --tensors" "tokenize -m $model -p x" devices --help; do
    name="$command > /dev/full"
    # shellcheck disable=SC2086
    "$sluice" $command >/dev/full 2>../err
    code=$?
    check "exit 6, not $code" [ $code = 6 ]
    check "error names the cause" has ../err 'No space left'
    check "last line" last_line_rule 6
done
if [ "$(id -u)" != 0 ]; then
    mkdir locked && chmod 555 locked
    draw 6 "read-only folder" -p x -o locked/a.png
    rmdir locked
fi

# ---- Ctrl-C ----
start_long() { # starts a run of many minutes in the background; returns when a stage has begun
    : >../err # progress lines of the previous run
    # shellcheck disable=SC2086
    env "--${hangup:-default}-signal=HUP" "$sluice" generate -m "$model" $size --steps 10000 -p x -o c.png --report c.json "$@" >../out 2>../err &
    pid=$!
    n=0
    while [ $n -lt 100 ] && ! grep -qE '^(encoding|sampling)' ../err; do
        sleep 0.1
        n=$((n + 1))
    done
}
for signal in INT TERM HUP; do
    name="one SIG$signal"
    start_long
    kill -$signal $pid
    wait $pid
    code=$?
    check "exit 130, not $code" [ $code = 130 ]
    check "last line" last_line_rule 130
    check "no image is written" absent c.png
    check "report exit" has c.json '"exit": *130'
    rm -f c.json
    check "no other file" empty_folder .
done
name="SIGHUP under nohup"
hangup=ignore
start_long
hangup=default
kill -HUP $pid
sleep 0.3
check "continues after SIGHUP" kill -INT $pid
wait $pid
code=$?
check "exit 130 after SIGINT, not $code" [ $code = 130 ]
rm -f c.json
name="two SIGINT"
start_long
kill -INT $pid
sleep 0.2
kill -INT $pid 2>/dev/null
before=$(date +%s)
wait $pid
code=$?
after=$(date +%s)
check "exit 130, not $code" [ $code = 130 ]
check "ends within a second" [ $((after - before)) -le 1 ]
check "last line" last_line_rule 130
check "no image is written" absent c.png
rm -f c.json
check "no other file" empty_folder .

# ---- unsupported and incomplete models ----
copy other && printf '{"_class_name": "FluxPipeline"}' >other/model_index.json
expect 3 "unsupported pipeline" plan -m other
check "names the pipeline" has ../err 'FluxPipeline'
expect 3 "inspect an unsupported pipeline" inspect other
check "names the pipeline" has ../out '^pipeline: FluxPipeline$'
check "lists supported pipelines" has ../out 'expected .*ZImagePipeline'
copy other && printf '{"_class_name": "DPMSolverMultistepScheduler"}' >other/scheduler/scheduler_config.json
expect 3 "unsupported scheduler" plan -m other
copy other && printf '{"shift": [3]}' >other/scheduler/scheduler_config.json
expect 3 "a list for a number" plan -m other
copy other && rm other/text_encoder/config.json && ln -s nowhere other/text_encoder/config.json
expect 3 "a configuration that is a dangling link" plan -m other
copy other && sed 's/<|im_start|>/<|im_other|>/g' "$model/tokenizer/tokenizer.json" >other/tokenizer/tokenizer.json 2>/dev/null
expect 3 "tokenizer without the chat template's tokens" tokenize -m other -p x
shard=transformer/diffusion_pytorch_model-00001-of-00002.safetensors # exists in the model of make check
wrong() { # wrong CODE NAME PATTERN: generating with the damaged copy fails with this code and message, and leaves no file
    draw_model=$model model=$PWD/other
    draw "$1" "$2" -p x -o a.png --save-latent a.safetensors --seed 1
    model=$draw_model
    check "message has $3" has ../err "^sluice: .*$3"
    rm -rf other
    check "no file is left" empty_folder .
}
if [ -e "$model/$shard" ]; then
    copy other && rm "other/$shard"
    wrong 3 "missing shard" "$shard"
    copy other && truncate -s -2 "other/$shard"
    wrong 3 "truncated shard" 'file ends too early, maybe an incomplete download (.*found .*, expected'
    copy other && sed -i 's/"shape":\[64,36\]/"shape":[36,64]/' "other/$shard"
    wrong 3 "wrong shape" 'found \[36, 64\], expected \[64, 36\]'
    copy other && sed -i 's/linear.bias":{"dtype":"F32/linear.bias":{"dtype":"I32/' "other/$shard"
    wrong 3 "unsupported element type" 'found I32, expected F32, F16, BF16 or a quantised type'
    copy other && sed -i 's,: "diffusion_pytorch_model-00001,: "../fusion_pytorch_model-00001,' other/transformer/*.index.json
    wrong 3 "index that names a file outside the folder" 'leaves the model folder'
    copy other && size_of=$(wc -c <"other/$shard") && printf '\300\177' | dd of="other/$shard" bs=1 seek=$((size_of - 2)) conv=notrunc 2>/dev/null
    wrong 7 "NaN in weights" 'stage '
fi
odd=$(printf 'od\377d') # not UTF-8
copy "$odd"
expect 0 "model path that is not UTF-8" plan -m "$odd" --json
check "prints a plan" has ../out '"hash"'
rm -rf "$odd"
if mknod nulldevice c 1 3 2>/dev/null; then
    draw 6 "latent to a device file" -p x --no-decode --save-latent nulldevice
    check "the device file is kept" [ -c nulldevice ]
fi
rm -rf other nulldevice
check "no file is left" empty_folder .

echo "$passed passed, $failed failed"
[ $failed = 0 ]
