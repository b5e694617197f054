#!/bin/sh
# The command plan: units of memory sizes, the tables, --rates files, advice. plan_family.sh tests plan --family.
#
# usage: plan.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/harness.sh"

# ---- plan: sizes ----
for text in 512M 0.5G 0.5 536870912B 524288K 512MiB; do
    "$sluice" plan -m "$model" $size --max-ram $text --json >../out 2>../err
    code=$? name="size $text"
    check "0 or 4, not $code" [ $((code % 4)) = 0 ]
    tr -d ' \n' <../out >../flat
    check "536870912 bytes" has ../flat '"budget":{[^}]*"ram_bytes":536870912'
done
expect 0 "plan in percent" plan -m "$model" $size --max-ram 80%
check "table" has ../out '^stage '
check "sizes as people write them" has ../out '^budget   RAM [0-9.]* [MG]iB$'
expect 0 "plan -v" plan -m "$model" $size --max-ram 80% -v
check "to the byte" has ../out '^budget   RAM [0-9.]* [MG]iB ([0-9]* bytes)$'
check "longest prompt is said" has ../err 'longest'
for how in on off; do
    expect 0 "plan --direct-io $how" plan -m "$model" $size --max-ram 80% --direct-io $how
    [ $how = on ] && found=has || found=lacks
    check "reads past the cache are said" $found ../out "^reads .*O_DIRECT"
done
expect 4 "plan that does not fit" plan -m "$model" $size --max-ram 1B --json
check "the plan all the same" has ../out '"least"'
least=$(tr -d ' \n' <../out | sed 's/.*"least":{[^}]*"ram_bytes":\([0-9]*\).*/\1/')
check "least is named" has ../err "at least [0-9.]* MiB (--max-ram ${least}B)$"

# ---- rates ----
rates() { # rates CODE TEXT: a plan with a rates file that holds TEXT
    printf '%s' "$2" >../rates.json
    # shellcheck disable=SC2086
    expect "$1" "rates $2" plan -m "$model" $size --max-ram 512M --rates ../rates.json --json
    tr -d ' \n' <../out >../flat
}
expect 3 "missing rates file" plan -m "$model" --rates ../nowhere
check "names it" has ../err 'nowhere'
expect 3 "rates that are a folder" plan -m "$model" --rates .
check "says so" has ../err 'Is a directory'
rates 3 garbage
check "says where" has ../err 'rates.json, byte'
rates 3 '{"version":1,"disk":1e9,"disk":1e9}'
for value in '"fast"' NaN Infinity -Infinity null true [] {}; do
    rates 3 "{\"version\":1,\"disk\":$value}"
    check "names the file" has ../err '^sluice: .*rates.json'
    check "no plan" [ ! -s ../out ]
done
for text in '' '{}' '[]' null '{"version":1,"dsik":1e9}' '{"version":1,"ops":[]}' '{"version":1,"ops":{"linear":"1"}}'; do
    rates 3 "$text"
    check "names the file" has ../err '^sluice: .*rates.json'
done
dd if=/dev/zero bs=65536 count=512 2>/dev/null | tr '\0' ' ' >../rates.json
for file in ../rates.json /dev/zero; do
    expect 3 "rates without end, $file" plan -m "$model" --rates $file
    check "says so" has ../err '^sluice: .* is too large'
done
for value in 0 -1 -1e9 0.5 1e19; do
    rates 2 "{\"version\":1,\"disk\":$value}"
    check "names the key" has ../err "key 'disk'"
done
rates 2 '{"version":1,"ops":{"linear":-1}}'
check "names the key" has ../err "key 'linear'"
draw 2 "generate with a rate of 0" -p x -o a.png --rates ../rates.json
check "no picture" absent a.png
# shellcheck disable=SC2086
expect 0 "default rates" plan -m "$model" $size --max-ram 512M --json
tr -d ' \n' <../out >../flat
check "says default" has ../flat '"rates":"default"'
first=$(cat ../flat)
# shellcheck disable=SC2086
expect 0 "default rates again" plan -m "$model" $size --max-ram 512M --json
tr -d ' \n' <../out >../flat
check "the same plan, hash included" [ "$(cat ../flat)" = "$first" ]
rates 0 '{"version":1,"disk":1e9,"ops":{"linear":1e9,"attention":1e9,"conv":1e9,"bytes":1e9}}'
check "names the file" has ../flat '"rates":"../rates.json"'
first=$(cat ../flat)
rates 0 '{"version":1,"disk":1e9,"ops":{"linear":1e9,"attention":1e9,"conv":1e9,"bytes":1e9}}'
check "the same plan, hash included" [ "$(cat ../flat)" = "$first" ]
slow=$(number seconds)
check "seconds are predicted" [ "$slow" != "$first" ]
rates 0 '{"version":1,"disk":1e12,"ops":{"linear":1e12,"attention":1e12,"conv":1e12,"bytes":1e12}}'
check "other rates, other seconds" [ "$(number seconds)" != "$slow" ]
printf '{"version":1,"ops":{"linear":1000}}' >../rates.json
draw 0 "generate with rates of a snail" -p x -o a.png --rates ../rates.json
check "what they say is announced" has ../err '^estimated time: [1-9][0-9]* minutes'
printf '{"version":1}' >../rates.json
draw 0 "generate with rates" -p x -o a.png --rates ../rates.json --report ../r.json
check "in the report" has ../r.json '"rates": "../rates.json"'
rm -f a.png ../r.json
# shellcheck disable=SC2086
expect 0 "plan says in words" plan -m "$model" $size --max-ram 512M
check "what rates" has ../out '^rates    assumed'
check "time in all and a step" has ../out '^time .* in total, .* per step'
check "what binds" has ../out '^bound  *\(compute\|disk\)'
check "advice in words" has ../out '^advice '

# ---- advice ----
# Computing takes no time next to a disk this slow, so memory, the disk and images a step all help.
printf '{"version":1,"disk":10000000}' >../rates.json
"$sluice" plan -m "$demo" --max-ram 1B --json 2>../err | tr -d ' \n' >../flat
least=$(sed 's/.*"least":{"vram_bytes":0,"ram_bytes":\([0-9]*\)}.*/\1/' ../flat)
check "no advice where it does not fit" has ../flat '"advice":\[\]'
: $((least += 2000000)) # four images have more state
expect 0 "advice of a slow disk" plan -m "$demo" --max-ram "${least}B" --rates ../rates.json --json
tr -d ' \n' <../out >../flat
for kind in ram disk batch; do check "advice on $kind" has ../flat "\"kind\":\"$kind\""; done
check "its numbers" has ../flat '"seconds_per_step":[0-9.e-]*,"extra_bytes":[0-9]'
expect 0 "advice in words" plan -m "$demo" --max-ram "${least}B" --rates ../rates.json
check "memory" has ../out '^advice   +[0-9.]* [KMG]*i*B RAM: .* \(per step\|in total\)$'
check "disk" has ../out '^advice   disk 2 times as fast: '
check "images a step" has ../out '^advice   batch of 4: .* per image$'
# shellcheck disable=SC2086
expect 0 "nothing helps" plan -m "$model" $size --max-ram 80%
check "and it says so" has ../out '^advice   more memory would not help$'
rm -f ../rates.json

expect 2 "plan takes generate's flags and refusals" plan -m "$model" --frames 5
expect 3 "plan of no model" plan -m ../nowhere
expect 3 "plan of a missing latent" plan ../nowhere -m "$model"
check "no file is left" empty_folder .

echo "$passed passed, $failed failed"
[ $failed = 0 ]
