#!/bin/sh
# The commands inspect, devices and bench, the program sluice-dev, and bench/peers.sh.
#
# usage: benches.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/harness.sh"

# ---- inspect, devices, sluice-dev checkpoint ----
expect 0 "inspect" inspect "$model"
check "first line: complete" [ "$(head -n 1 ../out)" = "complete: all parts of zimage are there" ]
check "at most 60 lines" [ "$(wc -l <../out)" -le 60 ]
check "names the recipe" has ../out "^recipe: "
check "prompt length and tokenizer" has ../out "reads up to [0-9]* tokens, tokenizer "
expect 0 "inspect --json" inspect "$model" --json
check "components" has ../out '"components"'
check "pipeline" has ../out '"pipeline": "ZImagePipeline"'
check "complete" has ../out '"complete": true'
expect 0 "inspect --tensors --json" inspect -m "$model" --tensors --json
expect 3 "inspect a missing folder" inspect ../nowhere
rm -rf ../part && cp -r "$model" ../part && rm -r ../part/vae
expect 3 "inspect without an autoencoder" inspect ../part
check "first line: vae is missing" [ "$(head -n 1 ../out)" = "incomplete: vae is missing" ]
expect 0 "inspect one part" inspect ../part/transformer --json
check "incomplete" has ../out '"complete": false'
rm -r ../part
# A damaged file does not hide the others.
cp -r "$model" ../part && mkdir -p ../part/vae && echo '{' >../part/transformer/config.json
for file in ../part/vae/*.safetensors; do truncate -s 20 "$file"; done
expect 3 "inspect damaged parts" inspect ../part --json
tr -d '\n' <../out >../flat
check "the undamaged text encoder" has ../flat '"components": *\[ *{ *"name": "text_encoder"'
check "both errors" has ../flat '"missing": \[[^]]*vae/[^]]*config.json[^]]*\]'
check "incomplete" has ../out '"complete": false'
check "error message" has ../err '^sluice: a part of the model cannot be read (../part): found .'
rm -r ../part
expect 0 "devices" devices
check "cpu" has ../out '^cpu: .'
check "free memory" has ../out '^  memory .* free$'
check "instruction sets" has ../out '^  instructions .*oneDNN [23]\.'
check "precisions" has ../out '^  precisions .*f32'
bf16=lacks
grep -qE '^flags.*(avx512_bf16|amx_bf16)' /proc/cpuinfo && bf16=has
check "bf16 if the processor supports it" $bf16 ../out '^  precisions   *f32 bf16'
int8=lacks
grep -qE '^flags.*(avx512_vnni|avx_vnni)' /proc/cpuinfo && int8=has
check "int8 if the processor supports it" $int8 ../out '^  precisions .* int8$'
check "cuda" has ../out '^cuda'
check "GPU models for plans" has ../out 'cuda:CARD.*: 3060 .*4090 .*h100'
expect 0 "devices --json" devices --json
check "devices" has ../out '"devices"'
tr -d ' \n' <../out >../flat
check "bf16 if the processor supports it" $bf16 ../flat '"precisions":\["f32","bf16"[],]'
DNNL_MAX_CPU_ISA=AVX2
export DNNL_MAX_CPU_ISA
expect 0 "devices, oneDNN limited to AVX2" devices
check "no bf16" has ../out '^  precisions   *f32$'
unset DNNL_MAX_CPU_ISA
mkdir full && : >full/file
expect_dev 6 "checkpoint into a folder with files" checkpoint zimage full
check "the file is kept" [ -e full/file ]
rm -rf full
expect_dev 3 "checkpoint that cannot be opened" checkpoint unet_control net --dims unet0=40,unet1=0,unet2=0,unet3=0,unet_heads=0
check "no checkpoint" absent net
expect_dev 6 "checkpoint in a missing folder" checkpoint zimage nowhere/ck
tiny=heads=8,axis0=16,axis1=24,axis2=24,layers=1,refiners=1,hidden=384,text_heads=8,text_key_heads=4,text_head_dim=48,\
text_ff=256,text_layers=2,vocabulary=2000,vae0=32,vae1=32,vae2=32,vae3=32,vae_groups=16
mkdir crowd crowd/theirs.tmp.12
echo keep >crowd/theirs.tmp.12/file
writing() { # starts writing a large checkpoint in crowd/; returns when its temporary folder has data
    "$sluice_dev" checkpoint zimage crowd/big --no-progress --dims "$(echo "$tiny" | sed 's/layers=1,/layers=40,/; s/hidden=384/hidden=4096/')" 2>../err &
    pid=$!
    n=0
    while [ $n -lt 100 ] && [ -z "$(find crowd/big.tmp.$pid -size +100k 2>/dev/null)" ]; do
        sleep 0.1
        n=$((n + 1))
    done
}
name="checkpoint, SIGKILL"
writing
kill -KILL $pid
wait $pid 2>/dev/null
check "leaves no checkpoint" absent crowd/big
expect 0 "convert into the same folder" convert "$model/vae" -o crowd/vae.safetensors
check "removes the temporary folder of the killed run" [ "$(ls crowd)" = "$(printf 'theirs.tmp.12\nvae.safetensors')" ]
rm -f crowd/vae.safetensors
name="checkpoint, SIGKILL and again"
writing
kill -KILL $pid
wait $pid 2>/dev/null
writing
check "the next run removes the temporary folder" [ "$(ls crowd)" = "$(printf 'big.tmp.%s\ntheirs.tmp.12' $pid)" ]
expect_dev 0 "checkpoint next to a running one" checkpoint zimage crowd/small --dims "$tiny"
check "keeps the temporary folder of the running one" [ -d crowd/big.tmp.$pid ]
check "removes its lock file" [ -z "$(find crowd/small -name '.*')" ]
kill -TERM $pid
wait $pid
check "exit 130, not $?" [ $? = 130 ]
check "a cancelled run removes its folder" [ "$(ls crowd)" = "$(printf 'small\ntheirs.tmp.12')" ]
check "other programs' folders are kept" [ -s crowd/theirs.tmp.12/file ]
rm -rf crowd
expect_dev 0 "checkpoint help" checkpoint help
check "lists families" has ../out '^zimage: --dims '
check "lists dimensions" has ../out '^  layers  *transformer  *30  *1  *[0-9]'
expect_dev 0 "--help" --help
check "names the command that lists families" has ../out '^usage:.*checkpoint FAMILY DIR'
for args in "" "nothing" "stream --clock sundial" "stream --dims a=1" "stream word" "stream -t 0" "checkpoint zimage ck --json" "checkpoint zimage ck -t 1" \
    "checkpoint" "checkpoint zimage" "checkpoint no_such_family ck" "checkpoint zimage ck more" "checkpoint zimage ck --seed 1x" "checkpoint zimage ck --dims"; do
    # shellcheck disable=SC2086
    expect_dev 2 "sluice-dev $args" $args
done
check "no folder is left" absent ck
for twice in heads=1,heads=2 layers=2,heads=1,layers=2 dtype=f32,dtype=bf16; do
    expect_dev 2 "checkpoint, $twice" checkpoint zimage many --dims $twice
    check "error message" has ../err "^sluice: .*twice.*found '${twice##*,}'"
done
expect_dev 2 "checkpoint, unknown dtype" checkpoint zimage many --dims dtype=bf1
expect_dev 2 "checkpoint, too many layers" checkpoint zimage many --dims layers=1000
check "no file is left" absent many
expect_dev 2 "checkpoint, unknown dimension" checkpoint zimage many --dims vae9=1
check "error lists the dimensions" has ../err ' vae_groups'

expect_dev 0 "checkpoint --adapter" checkpoint zimage a.safetensors --adapter kohya --rank 2 --dims "$tiny" -q
check "writes a file" [ -s a.safetensors ]
mv a.safetensors ../first.safetensors
expect_dev 0 "checkpoint --adapter --seed 1" checkpoint zimage a.safetensors --adapter kohya --rank 2 --dims "$tiny" -q --seed 1
check "other bytes" sh -c '! cmp -s a.safetensors ../first.safetensors'
expect_dev 0 "checkpoint --adapter again" checkpoint zimage a.safetensors --adapter kohya --rank 2 --dims "$tiny" -q
check "same bytes" cmp -s a.safetensors ../first.safetensors

# ---- inspect of an adapter ----
expect 0 "inspect an adapter" inspect a.safetensors
check "form and number of tensors" has ../out '^adapter: LoRA ([0-9]*), [0-9]* tensors, '
check "modules, rank and alpha" has ../out '^  transformer: [0-9]* modules, rank 2 ([0-9]*), alpha '
check "no published size" has ../out 'fits no published model'
expect_dev 0 "an adapter of published size" checkpoint zimage a.safetensors --adapter lokr --rank 2 --text-encoders -q
expect 0 "inspect --json" inspect a.safetensors --json
tr -d ' \n' <../out >../flat
check "empty components array" has ../flat '"components":\[\]'
check "modules" has ../flat '"modules":460,"dialects":{"kohya":460},"forms":{"LoKr":460},"ranks":{"2":460},"alphas":{"[12]":230,"[12]":230}'
check "both components" has ../flat '"name":"text_encoder","modules":252,.*"name":"transformer","modules":208,'
check "recipes" has ../flat '"recipes":\["zimage","zimage_base"\]'
check "no tensor list" lacks ../flat '"list"'
expect 0 "inspect --tensors" inspect a.safetensors --tensors
check "lists tensors" has ../out ' lora_unet_layers_0_attention_qkv.lokr_w2_a$'
sed 's/\.lokr_w2_a/z.oft_diag/g' a.safetensors >oft.safetensors
expect 3 "unsupported adapter form" inspect oft.safetensors
check "error names the form" has ../err OFT
head -c 5000 a.safetensors >oft.safetensors
expect 3 "truncated adapter" inspect oft.safetensors
rm -f a.safetensors oft.safetensors
expect_dev 2 "unknown dialect" checkpoint zimage a.safetensors --adapter koya
check "error lists the dialects" has ../err ' kohya, '
expect_dev 2 "dialect without text encoders" checkpoint zimage a.safetensors --adapter bfl --text-encoders
expect_dev 2 "adapter with a quantised dtype" checkpoint zimage a.safetensors --adapter bfl --dims dtype=q4_k
expect_dev 2 "--rank without --adapter" checkpoint zimage a --rank 4
expect_dev 6 "adapter in a missing folder" checkpoint zimage nowhere/a.safetensors --adapter bfl --dims "$tiny"
check "no file is left" absent a.safetensors

# ---- bench bus, bench ops ----
rm -f ../saved.json
expect 0 "bench bus --json" bench bus --json --save ../saved.json -t 1
tr -d ' \n' <../out >../flat
check "one row per size" has ../flat '^{"version":1,"rows":\[{"path":"disk","bytes":65536,"gbytes_per_second":[0-9.e+-]*,'
check "host copies" has ../flat '{"path":"host_copy","bytes":33554432,"gbytes_per_second":[0-9.e+-]*,'
check "kind of disk" has ../flat '"links":{"disk":"[A-Za-z]'
tr -d ' \n' <../saved.json >../flat
check "rates file has host_copy" has ../flat '"host_copy":[1-9]'
check "rates file has no ops" lacks ../flat '"ops"'
copied=$(number host_copy)
expect 0 "bench ops --json" bench ops --json --save ../saved.json -t 1
tr -d ' \n' <../out >../flat
for op in linear attention conv; do
    check "$op" has ../flat "{\"op\":\"$op\",[^}]*\"threads\":1,\"flops_per_second\":[0-9.e+-]*}"
done
check "bytes" has ../flat '{"op":"bytes",[^}]*"bytes_per_second":[0-9.e+-]*}'
check "no slower thread count" has ../flat '"slower":\[\]}$'
tr -d ' \n' <../saved.json >../flat
check "rates file has ops" has ../flat '"ops":{"linear":[1-9]'
check "rates of bench bus are kept" [ "$(number host_copy)" = "$copied" ]
expect 0 "plan with the saved rates" plan -m "$model" --rates ../saved.json --max-ram 60%
for card in 3060 4060 4060ti 4090 h100; do
    expect 0 "plan for a $card" plan -m "$model" --device cuda:$card --json --max-ram 60%
    tr -d ' \n' <../out >../flat
    check "names the card" has ../flat '"card":"[^"]*,[0-9]*GB"'
    check "budget: the card's memory minus a reserve" has ../flat "\"budget\":{\"vram_bytes\":$(case $card in 3060) echo 12 ;; 4060) echo 8 ;; 4060ti) echo 16 ;; 4090) echo 24 ;; h100) echo 80 ;; esac |
        awk '{ all = $1 * 2 ^ 30; part = int(all / 20); printf "%.0f", all - (part > 2 ^ 29 ? part : 2 ^ 29) }')"
    check "same output again" sh -c "'$sluice' plan -m '$model' --device cuda:$card --json --max-ram 60% 2>../err | cmp -s - ../out"
done
expect 0 "plan for a card, as a table" plan -m "$model" --device cuda:4090
check "names the card" has ../out '^plan .* on GeForce RTX 4090, 24 GB in bf16$'
expect 2 "--max-vram above the card's memory" plan -m "$model" --device cuda:4060 --max-vram 9G
expect 2 "unknown card" plan -m "$model" --device cuda:gtx
check "error lists the cards" has ../err 'cuda:4090'
expect 2 "generate on an assumed card" generate -m "$model" -p x --device cuda:h100
check "error message" has ../err 'can be planned for .*not run on'
expect 0 "bench bus -m, as a table" bench bus -m "$model" -t 1
check "table" has ../out '^host_copy'
check "kind of disk" has ../out '^disk: looks like'
expect 3 "bench bus of a missing model" bench bus -m ../nowhere
expect 0 "bench load --json" bench load -m "$model" --json
tr -d ' \n' <../out >../flat
weights=$(sed 's/.*"bytes":\([0-9]*\),"threads":2,.*/\1/' ../flat)
check "row with warm page cache" has ../flat '^{"version":1,"rows":\[{"path":"load","page_cache":"kept","bytes":[1-9]'
check "row with cold page cache and dd" has ../flat '"page_cache":"dropped",[^}]*"dd_gbytes_per_second":[0-9.e+-]*,"share":[0-9.e+-]*}'
check "header seconds" has ../flat '"header_seconds":[0-9.e+-]*,"open_seconds":[0-9.e+-]*}$'
"$sluice" inspect "$model" --json | tr -d ' \n' >../flat
all=$(grep -o '"bytes":[0-9]*,"types"' ../flat | awk -F: '{ n += $2 } END { print n }')
check "reads all weights but embeddings: $weights of $all" [ "$weights" -gt $((all / 2)) ] && [ "$weights" -lt "$all" ]
expect 0 "bench load, as a table" bench load -m "$model"
check "time for headers" has ../out '^headers opened in [0-9.]* ms;'
expect 3 "bench load of a missing model" bench load -m ../nowhere
expect 6 "bench bus --dir in a missing folder" bench bus --dir nowhere
expect 6 "bench bus --save in a missing folder" bench bus --save nowhere/rates.json
printf garbage >../bad.json
expect 3 "bench bus --save over an invalid file" bench bus --save ../bad.json
check "the file is unchanged" [ "$(cat ../bad.json)" = garbage ]
name="bench bus, file size limit"
(
    ulimit -f 16
    exec "$sluice" bench bus 2>../err >../out
)
code=$?
check "exit 6, not $code" [ $code = 6 ]
check "last line" last_line_rule 6
# Not --clock timed: it ends before the signal is sent.
for command in "bench bus --save rates.json" "bench ops --save rates.json" "bench block" "stream --clock paced"; do
    name="$command, SIGINT"
    case $command in bench*) program=$sluice ;; *) program=$sluice_dev ;; esac
    # shellcheck disable=SC2086
    "$program" $command >../out 2>../err &
    pid=$!
    sleep 0.7
    kill -INT $pid
    wait $pid
    code=$?
    check "exit 130, not $code" [ $code = 130 ]
    check "last line" last_line_rule 130
done
check "no file is left" empty_folder .

# ---- sluice-dev stream (test_stream checks its numbers) ----
expect_dev 0 "stream --json" stream --json
tr -d ' \n' <../out >../flat
check "JSON document" has ../flat '^{"version":1,"rows":\[{"blocks":"zimage","layout":"ours".*}\],"clock":"timed","ahead":\[{.*}\]}$'
check "all keys" has ../flat '{"blocks":"flux","layout":"ours","resident_percent":20,"bus_gbytes_per_second":24.0,"seconds":[0-9.e-]*,"floor_seconds":[0-9.e-]*,"efficiency":[0-9.e-]*}'
for layout in ours prefix suffix even depth1 no_wrap sync branches_apart; do
    check "$layout, 48 rows" [ "$(grep -c "\"layout\": \"$layout\"" ../out)" = 48 ]
done
"$sluice_dev" stream --clock timed --json -t 1 >../again 2>../err
check "same output again" cmp -s ../out ../again
expect_dev 0 "stream, as a table" stream
check "table header" has ../out '^blocks .*prefix .*branches_apart$'
check "table row" has ../out '^qwen_image  *24  60 %'
check "row of a host that runs ahead of the GPU" has ../out '^zimage_3060  *24   0 %  *3 GB/s '
check "nothing on stderr" [ ! -s ../err ]

# ---- bench block --predict (test_predict and test_cuda_work check its numbers) ----
expect 0 "bench block --predict --json" bench block --device cuda --predict 3060 --json
tr -d ' \n' <../out >../flat
check "JSON document" has ../flat '^{"version":1,"rows":\[{"family":"zimage".*}\],"card":"3060","precision":"bf16"}$'
check "all keys" has ../flat '{"family":"zimage","block":"layer","tokens":4128,"op":"attention","class":"attention","calls":1,"flops":261740298240,"bytes":[0-9]*,"seconds":[0-9.e-]*,'
for family in zimage flux unet qwen_image qwen3 mistral qwen25vl qwen25vl_vision qwen3vl qwen3vl_vision clip t5 vae_kl vae_kl_encoder vae_wan vae_wan_encoder; do
    check "$family" has ../flat "{\"family\":\"$family\",\"block\""
done
for class in product attention conv pass; do check "$class" has ../flat "\"class\":\"$class\""; done
"$sluice" bench block --predict 3060 --json >../again 2>../err
check "same output again" cmp -s ../out ../again
expect 0 "bench block --predict, as a table" bench block --device cuda --predict h100
check "says predicted, not measured" has ../out '^predicted for h100 in bf16, not measured$'
check "names the block" has ../out '^zimage, block "layer", 4128 tokens$'
check "total of matrix products" has ../out '^all product  *[0-9]* *1460.9 '
check "nothing on stderr" [ ! -s ../err ]
expect 0 "prediction for a card" bench block --device cuda --predict 4090
time=$(awk '$1 == "all" && NF == 5 { print $5; exit }' ../out) # of the first block, zimage's
expect 0 "predictions for all cards" bench block --device cuda --predict all
check "the same time, $time ms" has ../out "^4090  *$time "
check "one line per card in each part" [ "$(grep -c '^h100 ' ../out)" = "$(grep -c '^card ' ../out)" ]
expect 0 "prediction in int8" bench block --device cuda --predict 4090 --precision int8
check "names the precision" has ../out '^predicted for 4090 in int8, not measured$'
check "total of int8 products" has ../out '^all product_int8  *[0-9]* *1460.9 '
expect 2 "prediction in a precision that GPUs lack" bench block --device cuda --predict 4090 --precision f32
check "error message" has ../err '^sluice: invalid value for --precision: '
expect 2 "bench block --predict of an unknown card" bench block --predict none
check "error names the command that lists cards" has ../err 'sluice devices'
for command in bench plan; do
    expect 0 "$command --help-all" $command --help-all
    check "names the command that lists cards" has ../out 'sluice devices'
done

# ---- bench/peers.sh checks its requirements before it fetches or writes a file ----
lacking() { # lacking PATTERN NAME=VALUE...: fails with this message
    name="bench/peers.sh: $1"
    text=$1
    shift
    env -u PYTHON -u SD_SOURCE SLUICE="$sluice" "$@" sh "$demo/../../bench/peers.sh" "$scratch/work/peers" >../out 2>../err
    check "exit 2, not $?" [ $? = 2 ]
    check "one line on stderr" [ "$(wc -l <../err)" = 1 ]
    check "error message" has ../err "^peers.sh: .*$text"
}
lacking "there is no .*nowhere" SLUICE=nowhere
lacking "PYTHON is not set" SD_SOURCE=none
lacking "lacks torch" PYTHON=false SD_SOURCE=none
lacking "SD_SOURCE is not set" PYTHON=none
lacking "PYTHON is none" PYTHON=none SD_SOURCE=elsewhere
lacking "expected 2 or more" PYTHON=none SD_SOURCE=none STEPS=1

check "no file is left" empty_folder .

echo "$passed passed, $failed failed"
[ $failed = 0 ]
