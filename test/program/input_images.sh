#!/bin/sh
# Pictures in, as a user gives them: -i, --end-img, --strength, --mask, --ref-image, --control. What files may hold is test_picture_read.c's.
#
# usage: input_images.sh SLUICE FLUX_MODEL_DIR [SCRATCH_DIR]; models that fill and that take references lie beside that one.
. "$(dirname "$0")/harness.sh"
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
printf 'GIF89a' >../gif.png
printf '\211PNG\r\n\032\n' >../short.png
: >../empty.png
mkdir -p ../folder.png
[ -p ../pipe.png ] || mkfifo ../pipe.png
while IFS='|' read -r file pattern; do
    for flag in -i --end-img --mask -r; do
        draw_from 3 "$flag $file" ../nowhere $flag "../$file" -o a.png
        check "message has the file" has ../err "^sluice: .*$file"
        check "message has $pattern" has ../err "^sluice: .*$pattern"
    done
done <<END
gif.png|a GIF image
jpeg.png|Premature end
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

# ---- what does not fit, or nobody uses: said from the head, all that there is of this one ----
printf '\211PNG\r\n\032\n\0\0\0\015IHDR\0\0\100\0\0\0\100\0\10\2\0\0\0' >../head.png # 16384x16384
draw_from 4 "a picture beyond the budget" "$model" -i ../head.png --max-ram 50M -o a.png
check "the least that would do" has ../err '^sluice: .*the smallest budget that works is --max-ram [0-9]*B'
draw_from 4 "a reference beyond the budget" "$kontext" -W 64 -H 48 -r ../head.png --max-ram 50M -o a.png
check "the least that would do" has ../err '^sluice: .*the smallest budget that works is --max-ram [0-9]*B'
expect 4 "its plan" plan -m "$kontext" -W 64 -H 48 -r ../head.png --max-ram 50M
draw_from 2 "a mask of nothing" "$model" --mask ../head.png -o a.png
check "of what" has ../err '^sluice: a mask .*there is none: expected --init-img FILE in addition'
draw_from 2 "an end that nobody goes to" "$model" -i ../head.png --end-img ../head.png -o a.png
check "who would" has ../err '^sluice: --end-img cannot be used with this model .*a model that takes a last frame'
mkdir -p ../frames ../no_frames
for i in 2 4 5 6 10; do cp ../wide.png ../frames/f-$i.png; done
draw_from 2 "a video that leads nobody" "$model" --control ../frames -o a.png
check "who would be led" has ../err '^sluice: --control cannot be used with this model .*a model with a control video'
draw_from 3 "a folder without pictures" ../nowhere --control ../no_frames -o a.png
check "is named" has ../err '^sluice: .*no images (../no_frames)'
cp ../jpeg.png ../frames/f-3.png
draw_from 3 "a frame that is no picture" ../nowhere --control ../frames -o a.png
check "is named" has ../err '^sluice: .*f-3.png'
draw_from 2 "a frame that would be overwritten" "$model" --control ../frames -o ../frames/f-2.png
check "is named" has ../err '^sluice: --output would overwrite a file in the folder of --control'
draw_from 2 "a reference that nobody uses" "$model" -r ../head.png -o a.png
check "who would" has ../err '^sluice: .*a model that takes references'
# Interlaced it would have to be held whole; as it comes in rows it takes next to nothing.
draw_from 3 "a large picture for a small one" "$model" -i ../head.png -W 64 -H 48 --max-ram 50M -o a.png
check "is read" has ../err '^sluice: the image file ends too early, .* (../head.png)'
{ head -c 28 ../head.png && printf '\1'; } >../interlaced.png
draw_from 4 "interlaced" "$model" -i ../interlaced.png -W 64 -H 48 --max-ram 50M -o a.png
check "the least that would do" has ../err '^sluice: .*the smallest budget that works is --max-ram [0-9]*B'
rm ../interlaced.png
printf '\211PNG\r\n\032\n\0\0\0\015IHDR\0\0\1\0\0\0\1\0\10\2\0\0\0' >../head.png # 256x256
draw_from 3 "one that fits" "$kontext" -W 64 -H 48 -r ../head.png -o a.png
check "is read then" has ../err '^sluice: the image file ends too early, .* (../head.png)'
rm ../head.png

# ---- flags: command line | what the message holds ----
while IFS='|' read -r code line pattern; do
    # shellcheck disable=SC2086
    draw_from "$code" "$line" "$model" $line -o a.png
    check "message has $pattern" has ../err "^sluice: .*$pattern"
done <<END
2|--strength 0.5|--init-img FILE
2|-i ../wide.png --strength 0|more than 0, up to 1
2|-i ../wide.png --strength 1e-18|no step would run
2|-i ../wide.png -i ../tall.png|given twice
2|--mask ../wide.png|an input image to repaint
2|-r ../wide.png|a model that takes references
2|-i ../small.png -W 65|multiple of
2|--fit pad|no input image to fit
2|-i ../wide.png --fit fill|crop.pad.stretch
END
many=
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do many="$many -r ../wide.png"; done
# shellcheck disable=SC2086
draw_from 2 "sixteen references" "$kontext" $many -o a.png
check "the library counts" has ../err '^sluice: too many reference images .* expected at most [1-9]'
# shellcheck disable=SC2086
draw_from 2 "seventeen references" "$kontext" $many -r ../wide.png -o a.png
check "the program counts" has ../err '^sluice: given too many times (--ref-image)'
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

# ---- of other sizes than is drawn ----
draw_from 0 "to crop" "$model" -i ../tall.png -W 64 -H 48 -o a.png
cropped=$hash
check "said" has ../err '^../tall.png (48x64) is resized to 64x85 and cropped to 64x48$'
draw_from 0 "to crop, said" "$model" -q -i ../tall.png -W 64 -H 48 --fit crop -o b.png
check "nothing said" lacks ../err resized
check "the same" cmp a.png b.png
draw_from 0 "to pad" "$model" -i ../tall.png -W 64 -H 48 --fit pad -o a.png
check "another" [ "$hash" != "$cropped" ]
check "said" has ../err '^../tall.png (48x64) is resized to 36x48 and padded to 64x48$'
draw_from 0 "to stretch" "$model" -i ../tall.png -W 64 -H 48 --fit stretch -o b.png
check "another" [ "$hash" != "$cropped" ]
check "said" has ../err '^../tall.png (48x64) is resized to 64x48$'
draw_from 0 "only to crop" "$model" -i ../tall.png -W 32 -H 64 -o b.png
check "said" has ../err '^../tall.png (48x64) is cropped to 32x64$'
draw_from 0 "a size of no whole steps" "$model" -i ../small.png -o a.png
check "rounded down, a step at least" has ../err 'wrote a.png (16x16, '
draw_from 0 "nothing to do" "$model" -i ../tall.png -W 48 -H 64 --fit pad -o a.png
check "nothing said" lacks ../err resized

# ---- other kinds of files ----
for file in halves.jpg near.webp turned_6.jpg; do
    draw_from 0 "from $file" "$model" -i "$fixtures/pictures/$file" -W 64 -H 48 -o a.png
    check "another picture" [ "$hash" != "$cropped" ]
done
check "turned" has ../err 'turned_6.jpg (13x19) is resized'
draw_from 0 "from one that moves" "$model" -i "$fixtures/pictures/moving.webp" -W 64 -H 48 -o a.png
check "said" has ../err 'moving.webp is animated: only the first frame is used$'
draw_from 3 "in colours of print" "$model" -i "$fixtures/pictures/print.jpg" -o b.png
check "said" has ../err '^sluice: .*CMYK'
# The sides of a picture of several scans, and of WebP, beyond what the budget holds: from their heads.
{ head -c 26 "$fixtures/pictures/near.webp" && printf '\377\077\377\077'; } >../large.webp
draw_from 4 "a large WebP" "$model" -i ../large.webp -W 64 -H 48 --max-ram 100M -o b.png
check "the least that would do" has ../err '^sluice: .*the smallest budget that works is --max-ram [0-9]*B'
rm ../large.webp

# ---- to draw anew where a mask is white ----
draw_from 0 "all of a picture" "$model" -i ../wide.png --strength 0.8 -o a.png
all=$hash
draw_from 0 "a part of it" "$model" -i ../wide.png --mask ../wide.png --strength 0.8 -o a.png
check "another" [ "$hash" != "$all" ]
expect 0 "plan it" plan --json -m "$model" -i ../wide.png --mask ../tall.png
check "anew altogether, where nothing else is said" has ../out '"strength": *1'

# ---- to fill ----
draw_from 2 "a model that fills, without a mask" "$fill" -i ../wide.png -o a.png
check "needs both" has ../err '^sluice: .*--init-img and --mask'
draw_from 2 "without anything" "$fill" -o a.png
check "needs both" has ../err '^sluice: .*--init-img and --mask'
draw_from 0 "a mask of another size" "$fill" -i ../wide.png --mask ../tall.png -o a.png
check "said" has ../err '^../tall.png (48x64) is resized to 64x85 and cropped to 64x48$'
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
check "its transparency is a note" has ../err '^../small.png: transparency is ignored'
draw_from 3 "quietly" "$kontext" -q -r ../small.png -o a.png
check "no note" lacks ../err 'transparency'

# ---- plan ----
expect 0 "plan with pictures" plan --json -m "$fill" -i ../wide.png --mask ../wide.png
check "a stage that reads them" has ../out '"name": "encode"'
expect 0 "of the picture's size" plan --json -m "$fill" -i ../tall.png --mask ../tall.png
check "size" has ../out '"height": 64,'
expect 0 "plan with a picture of another size" plan --json -m "$fill" -i ../wide.png --mask ../tall.png --fit pad
check "how it fits" has ../out '"fit": "pad"'
expect 0 "plan without" plan --json -m "$model" -W 64 -H 48
check "no such stage" lacks ../out '"name": "encode"'

rm -rf ../folder.png ../pipe.png
echo "$passed passed, $failed failed"
[ $failed = 0 ]
