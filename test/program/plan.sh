#!/bin/sh
# The command plan: units of memory sizes, the tables, --rates files, advice. plan_family.sh tests plan --family.
#
# usage: plan.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/harness.sh"

# ---- plan: sizes ----
for text in 512M 0.5G 0.5 536870912B 524288K 512MiB; do
    "$sluice" plan -m "$model" $size --max-ram $text --json >../out 2>../err
    code=$? name="size $text"
    check "exit 0 or 4, not $code" [ $((code % 4)) = 0 ]
    tr -d ' \n' <../out >../flat
    check "budget of 536870912 bytes" has ../flat '"budget":{[^}]*"ram_bytes":536870912'
done
expect 0 "--max-ram in percent" plan -m "$model" $size --max-ram 80%
check "prints a table" has ../out '^stage '
check "sizes in MiB or GiB" has ../out '^budget   RAM [0-9.]* [MG]iB$'
expect 0 "plan -v" plan -m "$model" $size --max-ram 80% -v
check "-v adds sizes in bytes" has ../out '^budget   RAM [0-9.]* [MG]iB ([0-9]* bytes)$'
check "note on the assumed prompt length" has ../err 'longest'
for how in on off; do
    expect 0 "plan --direct-io $how" plan -m "$model" $size --max-ram 80% --direct-io $how
    [ $how = on ] && found=has || found=lacks
    check "O_DIRECT in the table" $found ../out "^reads .*O_DIRECT"
done
expect 4 "plan above the budget" plan -m "$model" $size --max-ram 1B --json
check "prints the smallest budget" has ../out '"least"'
least=$(tr -d ' \n' <../out | sed 's/.*"least":{[^}]*"ram_bytes":\([0-9]*\).*/\1/')
check "error names the smallest budget" has ../err "at least [0-9.]* MiB (--max-ram ${least}B)$"

# ---- rates ----
rates() { # rates CODE TEXT: plans with a rates file that contains TEXT
    printf '%s' "$2" >../rates.json
    # shellcheck disable=SC2086
    expect "$1" "rates $2" plan -m "$model" $size --max-ram 512M --rates ../rates.json --json
    tr -d ' \n' <../out >../flat
}
expect 3 "missing rates file" plan -m "$model" --rates ../nowhere
check "error names the file" has ../err 'nowhere'
expect 3 "--rates is a folder" plan -m "$model" --rates .
check "error message" has ../err 'Is a directory'
rates 3 garbage
check "error names the byte" has ../err 'rates.json, byte'
rates 3 '{"version":1,"disk":1e9,"disk":1e9}'
for value in '"fast"' NaN Infinity -Infinity null true [] {}; do
    rates 3 "{\"version\":1,\"disk\":$value}"
    check "names the rates file" has ../err '^sluice: .*rates.json'
    check "no plan is printed" [ ! -s ../out ]
done
for text in '' '{}' '[]' null '{"version":1,"dsik":1e9}' '{"version":1,"ops":[]}' '{"version":1,"ops":{"linear":"1"}}'; do
    rates 3 "$text"
    check "names the rates file" has ../err '^sluice: .*rates.json'
done
dd if=/dev/zero bs=65536 count=512 2>/dev/null | tr '\0' ' ' >../rates.json
for file in ../rates.json /dev/zero; do
    expect 3 "rates file too large: $file" plan -m "$model" --rates $file
    check "error message" has ../err '^sluice: .* is too large'
done
for value in 0 -1 -1e9 0.5 1e19; do
    rates 2 "{\"version\":1,\"disk\":$value}"
    check "error names the key" has ../err "key 'disk'"
done
rates 2 '{"version":1,"ops":{"linear":-1}}'
check "error names the key" has ../err "key 'linear'"
draw 2 "generate with a rate of 0" -p x -o a.png --rates ../rates.json
check "no image is written" absent a.png
# shellcheck disable=SC2086
expect 0 "default rates" plan -m "$model" $size --max-ram 512M --json
tr -d ' \n' <../out >../flat
check "rates are the defaults" has ../flat '"rates":"default"'
first=$(cat ../flat)
# shellcheck disable=SC2086
expect 0 "default rates again" plan -m "$model" $size --max-ram 512M --json
tr -d ' \n' <../out >../flat
check "same plan and hash" [ "$(cat ../flat)" = "$first" ]
rates 0 '{"version":1,"disk":1e9,"ops":{"linear":1e9,"attention":1e9,"conv":1e9,"bytes":1e9}}'
check "names the rates file" has ../flat '"rates":"../rates.json"'
first=$(cat ../flat)
rates 0 '{"version":1,"disk":1e9,"ops":{"linear":1e9,"attention":1e9,"conv":1e9,"bytes":1e9}}'
check "same plan and hash" [ "$(cat ../flat)" = "$first" ]
slow=$(number seconds)
check "predicts another time" [ "$slow" != "$first" ]
rates 0 '{"version":1,"disk":1e12,"ops":{"linear":1e12,"attention":1e12,"conv":1e12,"bytes":1e12}}'
check "faster rates predict another time" [ "$(number seconds)" != "$slow" ]
printf '{"version":1,"ops":{"linear":1000}}' >../rates.json
draw 0 "generate with very slow rates" -p x -o a.png --rates ../rates.json
check "prints the estimated time" has ../err '^estimated time: [1-9][0-9]* minutes'
printf '{"version":1}' >../rates.json
draw 0 "generate with rates" -p x -o a.png --rates ../rates.json --report ../r.json
check "report names the rates file" has ../r.json '"rates": "../rates.json"'
rm -f a.png ../r.json
# shellcheck disable=SC2086
expect 0 "plan with assumed rates, as a table" plan -m "$model" $size --max-ram 512M
check "names the rates" has ../out '^rates    assumed'
check "total time and time per step" has ../out '^time .* in total, .* per step'
check "names the bottleneck" has ../out '^bound  *\(compute\|disk\)'
check "advice as a table" has ../out '^advice '

# ---- advice ----
# With a disk this slow the run waits only for weights, so more memory, a faster disk and larger batches all help.
printf '{"version":1,"disk":10000000}' >../rates.json
"$sluice" plan -m "$demo" --max-ram 1B --json 2>../err | tr -d ' \n' >../flat
least=$(sed 's/.*"least":{"vram_bytes":0,"ram_bytes":\([0-9]*\)}.*/\1/' ../flat)
check "no advice for a plan above the budget" has ../flat '"advice":\[\]'
: $((least += 2000000)) # room for the activations of a batch of four
expect 0 "advice with a slow disk" plan -m "$demo" --max-ram "${least}B" --rates ../rates.json --json
tr -d ' \n' <../out >../flat
for kind in ram disk batch; do check "advice of kind $kind" has ../flat "\"kind\":\"$kind\""; done
check "seconds and bytes of the advice" has ../flat '"seconds_per_step":[0-9.e-]*,"extra_bytes":[0-9]'
expect 0 "advice as a table" plan -m "$demo" --max-ram "${least}B" --rates ../rates.json
check "advice: memory" has ../out '^advice   +[0-9.]* [KMG]*i*B RAM: .* \(per step\|in total\)$'
check "advice: disk" has ../out '^advice   disk 2 times as fast: '
check "advice: batch" has ../out '^advice   batch of 4: .* per step and image$'
# shellcheck disable=SC2086
expect 0 "advice when everything is resident" plan -m "$model" $size --max-ram 80%
check "more memory would not help" has ../out '^advice   more memory would not help$'
rm -f ../rates.json

# ---- --precision int8 ----
lacking() { # lacking FILE PATTERN: true if no line of the file matches
    ! grep -q "$2" "$1"
}
DNNL_MAX_CPU_ISA=AVX2
export DNNL_MAX_CPU_ISA
expect 0 "plan on a CPU without int8 products" plan --family zimage --device cpu --max-ram 20G
check "no advice to use int8" lacking ../out 'precision int8'
expect 2 "int8 on a CPU without int8 products" plan --family zimage --device cpu --precision int8
check "error message" has ../err '^sluice: invalid value for --precision: .*found int8, expected f32$'
unset DNNL_MAX_CPU_ISA
# seconds_of BEFORE AFTER: prints the "seconds" of ../flat between two patterns, with 6 digits
seconds_of() {
    sed "s/.*$1\"seconds\":\([0-9.]*\),$2.*/\1/" ../flat | awk '{ printf "%.6g", $1 }'
}
# int8_advised KIND FLAG...: plan must advise int8 by an entry of this kind. Sets $advised to its seconds and $planned to the
# seconds of a plan with --precision int8.
int8_advised() {
    kind=$1
    shift
    name="plan $*"
    "$sluice" plan "$@" --json 2>../err | tr -d ' \n' >../flat
    check "advice of kind $kind" has ../flat "\"kind\":\"$kind\",\"stage\":\"denoise\",\"factor\":[1-9][0-9.]*,\"seconds\":"
    advised=$(seconds_of "\"kind\":\"$kind\"[^}]*" '"seconds_per')
    "$sluice" plan "$@" --precision int8 --json 2>../err | tr -d ' \n' >../flat
    check "no advice to use int8 again" lacking ../flat '"kind":"int8'
    planned=$(seconds_of "" '"floor_seconds":[0-9.]*,"bound":"[a-z]*","device_bytes"')
}
int8_advised int8 --family wan --frames 81 --device cuda:4090 --max-vram 20G --max-ram 20G --direct-io on
check "takes the advised time, $advised s, not $planned" [ "$advised" = "$planned" ]
# Converting the weights takes longer than eight steps.
int8_advised int8_files --family zimage --device cuda:4090 --max-vram 20G --max-ram 20G --direct-io on
check "less than with conversion, $advised s, $planned" [ "${advised%.*}" -lt "${planned%.*}" ]
expect 0 "advice to use int8 for a UNet" plan --family sdxl --device cuda:3060 --max-vram 11G --max-ram 20G --direct-io on
check "one line" has ../out '^advice   --precision int8.* times as fast; other pixels$'
expect 0 "advice to use int8, as a table" plan --family qwen_image --device cuda:3060 --max-vram 11G --max-ram 20G --direct-io on
check "one line" has ../out '^advice   --precision int8: .* in total, [0-9.]* times as fast; other pixels$'
expect 0 "advice to convert, as a table" plan --family zimage --device cuda:4090 --max-vram 20G --max-ram 20G --direct-io on
check "one line" has ../out '^advice   --precision int8 with a transformer converted to int8_convrot: .* other pixels$'
printf '{"version":1,"disk":1000000}' >../rates.json
expect 0 "plan that waits for the disk" plan --family qwen_image --device cuda:3060 --max-vram 4G --max-ram 4G --rates ../rates.json
check "bound by the disk" has ../out '^bound    disk'
check "no advice to use int8" lacking ../out 'precision int8'
rm -f ../rates.json

expect 2 "plan refuses unsupported flags as generate does" plan -m "$model" --frames 5
expect 3 "plan of a missing model" plan -m ../nowhere
expect 3 "plan of a missing latent" plan ../nowhere -m "$model"
check "no file is left" empty_folder .

echo "$passed passed, $failed failed"
[ $failed = 0 ]
