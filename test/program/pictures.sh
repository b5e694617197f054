#!/bin/sh
# Pictures in, as a user gives them: -i, --strength, --mask, --ref-image. What files may hold is test_picture_read.c's.
#
# usage: pictures.sh SLUICE FLUX_MODEL_DIR [SCRATCH_DIR]; models that fill and that take references lie beside that one.
. "$(dirname "$0")/program.sh"
fixtures=$(cd "$model/../.." && pwd)
fill=$fixtures/flux_fill/model kontext=$fixtures/flux_kontext/model
few="--steps 4 --seed 5"

hash_of() { sed -n 's/.*sha256 \([0-9a-f]*\).*/\1/p' ../err | head -1; }
draw_from() { # draw_from CODE NAME MODEL ARGS...: four steps; its hash in $hash
    draw_code=$1 draw_name=$2 draw_model=$3
    shift 3
    # shellcheck disable=SC2086
    expect "$draw_code" "$draw_name" generate -m "$draw_model" -p "a red fox" $few "$@"
    hash=$(hash_of)
}

# ---- pictures to give, drawn here: 64x48 and 48x64 ----
draw_from 0 "a picture" "$model" -W 64 -H 48 -o ../wide.png
from_noise=$hash
check "without a word of strength" lacks ../wide.png 'Denoising strength'
draw_from 0 "a tall one" "$model" -W 48 -H 64 -o ../tall.png
cp "$fixtures/pictures/colours_alpha.png" ../small.png # 19x13

# ---- files that are no pictures: named before a model is looked for ----
printf '\377\330\377\340 JFIF' >../jpeg.png
printf '\211PNG\r\n\032\n' >../short.png
: >../empty.png
mkdir -p ../folder.png
[ -p ../pipe.png ] || mkfifo ../pipe.png
while IFS='|' read -r file pattern; do
    for flag in -i --mask -r; do
        draw_from 3 "$flag $file" ../nowhere $flag "../$file" -o a.png
        check "message has $pattern" has ../err "^sluice: .*$file.*$pattern"
    done
done <<END
jpeg.png|a JPEG picture
short.png|8 bytes
empty.png|0 bytes
folder.png|a folder
pipe.png|a pipe or a device
no_such.png|No such file
END
draw_from 3 "no end of zeros" ../nowhere -i /dev/zero -o a.png
check "message" has ../err "^sluice: .*a pipe or a device"
draw_from 3 "the second reference" ../nowhere -r ../wide.png -r ../jpeg.png -o a.png
check "message" has ../err "^sluice: .*jpeg.png"
name="nothing written"
check "no file" empty_folder .

# ---- flags: command line | what the message holds ----
while IFS='|' read -r code line pattern; do
    # shellcheck disable=SC2086
    draw_from "$code" "$line" "$model" $line -o a.png
    check "message has $pattern" has ../err "^sluice: .*$pattern"
done <<END
2|--strength 0.5|--init-img FILE
2|-i ../wide.png --strength 0|more than 0, up to 1
2|-i ../wide.png --strength 1e-18|leaves no step
2|-i ../wide.png -i ../tall.png|given twice
2|-i ../wide.png --mask ../wide.png|a model that fills
2|-r ../wide.png|a model that takes references
2|-i ../small.png|multiple of
3|-i ../wide.png -W 64 -H 64|found 64x48, expected 64x64
3|-i ../wide.png -W 48|found 64x48, expected 48x48
END
many=
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do many="$many -r ../wide.png"; done
# shellcheck disable=SC2086
draw_from 2 "sixteen references" "$kontext" $many -o a.png
check "the library counts" has ../err '^sluice: there are more references .* expected at most [1-9]'
# shellcheck disable=SC2086
draw_from 2 "seventeen references" "$kontext" $many -r ../wide.png -o a.png
check "the program counts" has ../err '^sluice: given too often (--ref-image)'
for flag in -i --mask "-r ../tall.png -r"; do
    # shellcheck disable=SC2086
    draw_from 2 "$flag over itself" "$kontext" $flag ../wide.png -o ../wide.png
    check "names both" has ../err '^sluice: --output would overwrite the file of --\(init-img\|mask\|ref-image\)'
done
draw_from 2 "the first reference" "$kontext" -r ../wide.png -r ../tall.png --report ../wide.png -o a.png
check "names both" has ../err '^sluice: --report would overwrite the file of --ref-image'
name="nothing written"
check "no file" empty_folder .

# ---- to start from ----
draw_from 0 "from a picture" "$model" -i ../wide.png --strength 0.6 -o a.png
from_picture=$hash
check "of its size" has ../err 'wrote a.png (64x48, '
check "said in the picture" has a.png 'Denoising strength: 0.6, Version'
check "not from noise" [ "$hash" != "$from_noise" ]
draw_from 0 "again, its size said" "$model" -i ../wide.png --strength 0.6 -W 64 -H 48 -o a.png
check "the same" [ "$hash" = "$from_picture" ]
draw_from 0 "nearer" "$model" -i ../wide.png --strength 0.3 -o a.png
check "another" [ "$hash" != "$from_picture" ]
draw_from 0 "the model's own strength" "$model" -i ../wide.png -o a.png
check "said" has a.png 'Denoising strength: 0\.[0-9]*, Version'
draw_from 0 "another picture" "$model" -i ../tall.png --strength 0.6 -o a.png
check "of its size" has ../err 'wrote a.png (48x64, '

# ---- to fill ----
draw_from 2 "a model that fills, without a mask" "$fill" -i ../wide.png -o a.png
check "needs both" has ../err '^sluice: .*--init-img and --mask'
draw_from 2 "without anything" "$fill" -o a.png
check "needs both" has ../err '^sluice: .*--init-img and --mask'
draw_from 3 "a mask of another size" "$fill" -i ../wide.png --mask ../tall.png -o a.png
check "both sizes" has ../err '^sluice: .*tall.png.*found 48x64, expected 64x48'
draw_from 0 "filled" "$fill" -i ../wide.png --mask ../wide.png -o a.png
filled=$hash
draw_from 0 "another picture around the mask" "$fill" -i a.png --mask ../wide.png -o b.png
check "another" [ "$hash" != "$filled" ]

# ---- to refer to ----
draw_from 0 "no reference" "$kontext" -W 64 -H 48 -o a.png
alone=$hash
draw_from 0 "a reference of another size" "$kontext" -W 64 -H 48 -r ../tall.png -o a.png
check "the size that was asked for" has ../err 'wrote a.png (64x48, '
check "another" [ "$hash" != "$alone" ]
one=$hash
draw_from 0 "two references" "$kontext" -W 64 -H 48 -r ../tall.png -r ../wide.png -o a.png
check "another" [ "$hash" != "$one" ]
draw_from 3 "a reference that is too small" "$kontext" -W 64 -H 48 -r ../small.png -o a.png
check "message" has ../err '^sluice: .*small.png.*found 19x13'
check "its transparency is a note" has ../err '^../small.png: its transparency is not used'
draw_from 3 "quietly" "$kontext" -q -r ../small.png -o a.png
check "no note" lacks ../err 'transparency'

# ---- plan ----
expect 0 "plan with pictures" plan --json -m "$fill" -i ../wide.png --mask ../wide.png
check "a stage that reads them" has ../out '"name": "encode"'
expect 0 "of the picture's size" plan --json -m "$fill" -i ../tall.png --mask ../tall.png
check "size" has ../out '"height": 64,'
expect 3 "plan with a picture of another size" plan -m "$fill" -i ../wide.png --mask ../tall.png
expect 0 "plan without" plan --json -m "$model" -W 64 -H 48
check "no such stage" lacks ../out '"name": "encode"'

rm -rf ../folder.png ../pipe.png
echo "$passed passed, $failed failed"
[ $failed = 0 ]
