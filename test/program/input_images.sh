#!/bin/sh
# Input images: -i, --end-img, --strength, --fit, --mask, --ref-image, --control. test_picture_read.c tests the decoders.
#
# usage: input_images.sh SLUICE FLUX_MODEL_DIR [SCRATCH_DIR]; flux_fill and flux_kontext must lie beside it.
. "$(dirname "$0")/harness.sh"
fixtures=$(cd "$model/../.." && pwd)
fill=$fixtures/flux_fill/model kontext=$fixtures/flux_kontext/model
few="--steps 4 --seed 5"

hash_of() { sed -n 's/.*sha256 \([0-9a-f]*\).*/\1/p' ../err | head -1; }
draw_from() { # draw_from CODE NAME MODEL ARGS...: generates in 4 steps; image hash in $hash
    draw_code=$1 draw_name=$2 draw_model=$3
    shift 3
    # shellcheck disable=SC2086
    expect "$draw_code" "$draw_name" generate -m "$draw_model" -p "a red fox" $few "$@"
    hash=$(hash_of)
}

# ---- input images of 64x48 and 48x64 ----
draw_from 0 "write a wide image" "$model" -W 64 -H 48 -o ../wide.png
from_noise=$hash
check "no denoising strength in the metadata" lacks ../wide.png 'Denoising strength'
draw_from 0 "write a tall image" "$model" -W 48 -H 64 -o ../tall.png
cp "$fixtures/pictures/colours_alpha.png" ../small.png # 19x13

# ---- invalid image files: reported before the model is opened ----
printf '\377\330\377\340 JFIF' >../jpeg.png
printf 'GIF89a' >../gif.png
printf '\211PNG\r\n\032\n' >../short.png
: >../empty.png
mkdir -p ../folder.png
[ -p ../pipe.png ] || mkfifo ../pipe.png
while IFS='|' read -r file pattern; do
    for flag in -i --end-img --mask -r; do
        draw_from 3 "$flag $file" ../nowhere $flag "../$file" -o a.png
        check "error names the file" has ../err "^sluice: .*$file"
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
draw_from 3 "input /dev/zero" ../nowhere -i /dev/zero -o a.png
check "error message" has ../err "^sluice: .*a pipe or a device"
draw_from 3 "second reference is invalid" ../nowhere -r ../wide.png -r ../jpeg.png -o a.png
check "error message" has ../err "^sluice: .*jpeg.png"
name="refused images"
check "no file is written" empty_folder .

# ---- images above the budget or unsupported by the model: refused by their header (the file has nothing else) ----
printf '\211PNG\r\n\032\n\0\0\0\015IHDR\0\0\100\0\0\0\100\0\10\2\0\0\0' >../head.png # 16384x16384
draw_from 4 "input image above the budget" "$model" -i ../head.png --max-ram 50M -o a.png
check "error names the smallest budget" has ../err '^sluice: .*the smallest budget that works is --max-ram [0-9]*B'
draw_from 4 "reference above the budget" "$kontext" -W 64 -H 48 -r ../head.png --max-ram 50M -o a.png
check "error names the smallest budget" has ../err '^sluice: .*the smallest budget that works is --max-ram [0-9]*B'
expect 4 "plan with the reference" plan -m "$kontext" -W 64 -H 48 -r ../head.png --max-ram 50M
draw_from 2 "mask without input image" "$model" --mask ../head.png -o a.png
check "error names --init-img" has ../err '^sluice: a mask .*there is none: expected --init-img FILE in addition'
draw_from 2 "--end-img with a model without last frame" "$model" -i ../head.png --end-img ../head.png -o a.png
check "error names the models that support it" has ../err '^sluice: --end-img cannot be used with this model .*a model that takes a last frame'
rm -rf ../frames
mkdir -p ../frames ../no_frames
for i in 2 4 5 6 10; do cp ../wide.png ../frames/f-$i.png; done
draw_from 2 "--control with a model without control video" "$model" --control ../frames -o a.png
check "error names the models that support it" has ../err '^sluice: --control cannot be used with this model .*a model with a control video'
draw_from 3 "control folder without images" ../nowhere --control ../no_frames -o a.png
check "error names the file" has ../err '^sluice: .*no images (../no_frames)'
cp ../jpeg.png ../frames/f-3.png
draw_from 3 "control frame that is not an image" ../nowhere --control ../frames -o a.png
check "error names the file" has ../err '^sluice: .*f-3.png'
draw_from 2 "output over a control frame" "$model" --control ../frames -o ../frames/f-2.png
check "error names the file" has ../err '^sluice: --output would overwrite a file in the folder of --control'
draw_from 2 "--ref-image with a model without references" "$model" -r ../head.png -o a.png
check "error names the models that support it" has ../err '^sluice: .*a model that takes references'
# An interlaced PNG is held as a whole; any other PNG is read in rows and needs little memory.
draw_from 3 "large input image for a small output, read in rows" "$model" -i ../head.png -W 64 -H 48 --max-ram 50M -o a.png
check "error of reading, not of memory" has ../err '^sluice: the image file ends too early, .* (../head.png)'
{ head -c 28 ../head.png && printf '\1'; } >../interlaced.png
draw_from 4 "interlaced input image, held as a whole" "$model" -i ../interlaced.png -W 64 -H 48 --max-ram 50M -o a.png
check "error names the smallest budget" has ../err '^sluice: .*the smallest budget that works is --max-ram [0-9]*B'
rm ../interlaced.png
printf '\211PNG\r\n\032\n\0\0\0\015IHDR\0\0\1\0\0\0\1\0\10\2\0\0\0' >../head.png # 256x256
draw_from 3 "reference within the budget" "$kontext" -W 64 -H 48 -r ../head.png -o a.png
check "error of reading, not of memory" has ../err '^sluice: the image file ends too early, .* (../head.png)'
rm ../head.png

# ---- flags: exit code | flags | pattern of the error message ----
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
2|-r ../wide.png|a model that takes references, such as .*Qwen-Image-2.1
2|-i ../small.png -W 65|multiple of
2|--fit pad|no input image to fit
2|-i ../wide.png --fit fill|crop.pad.stretch
END
many=
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do many="$many -r ../wide.png"; done
# shellcheck disable=SC2086
draw_from 2 "16 references" "$kontext" $many -o a.png
check "error of the library" has ../err '^sluice: too many reference images .* expected at most [1-9]'
# shellcheck disable=SC2086
draw_from 2 "17 references" "$kontext" $many -r ../wide.png -o a.png
check "error of the program" has ../err '^sluice: flag given too many times (--ref-image)'
for flag in -i --mask "-r ../tall.png -r"; do
    # shellcheck disable=SC2086
    draw_from 2 "$flag over itself" "$kontext" $flag ../wide.png -o ../wide.png
    check "error names both flags" has ../err '^sluice: --output would overwrite the file of --\(init-img\|mask\|ref-image\)'
done
draw_from 2 "--report over the first reference" "$kontext" -r ../wide.png -r ../tall.png --report ../wide.png -o a.png
check "error names both flags" has ../err '^sluice: --report would overwrite the file of --ref-image'
name="refused images"
check "no file is written" empty_folder .

# ---- --init-img and --strength ----
draw_from 0 "--init-img --strength 0.6" "$model" -i ../wide.png --strength 0.6 -o a.png
from_image=$hash
check "size of the input image" has ../err 'wrote a.png (64x48, '
check "strength in the metadata" has a.png 'Denoising strength: 0.6, Version'
check "differs from the image without input" [ "$hash" != "$from_noise" ]
draw_from 0 "the same with -W and -H" "$model" -i ../wide.png --strength 0.6 -W 64 -H 48 -o a.png
check "same image" [ "$hash" = "$from_image" ]
draw_from 0 "--strength 0.3" "$model" -i ../wide.png --strength 0.3 -o a.png
check "other image" [ "$hash" != "$from_image" ]
draw_from 0 "default strength" "$model" -i ../wide.png -o a.png
check "message" has a.png 'Denoising strength: 0\.[0-9]*, Version'
check "no warning" lacks ../err '^warning'
draw_from 0 "--strength 1" "$model" -i ../wide.png --strength 1 -o a.png
check "warning" has ../err '^warning: the input image has no influence: at --strength 1 all 4 steps run'
draw_from 0 "other image" "$model" -i ../tall.png --strength 0.6 -o a.png
check "size of the input image" has ../err 'wrote a.png (48x64, '

# ---- --fit: input images of another size ----
draw_from 0 "default --fit" "$model" -i ../tall.png -W 64 -H 48 -o a.png
cropped=$hash
check "message" has ../err '^../tall.png (48x64) is resized to 64x85 and cropped to 64x48$'
draw_from 0 "--fit crop" "$model" -q -i ../tall.png -W 64 -H 48 --fit crop -o b.png
check "no message" lacks ../err resized
check "same image" cmp a.png b.png
draw_from 0 "--fit pad" "$model" -i ../tall.png -W 64 -H 48 --fit pad -o a.png
check "other image" [ "$hash" != "$cropped" ]
check "message" has ../err '^../tall.png (48x64) is resized to 36x48 and padded to 64x48$'
draw_from 0 "--fit stretch" "$model" -i ../tall.png -W 64 -H 48 --fit stretch -o b.png
check "other image" [ "$hash" != "$cropped" ]
check "message" has ../err '^../tall.png (48x64) is resized to 64x48$'
draw_from 0 "crop without resizing" "$model" -i ../tall.png -W 32 -H 64 -o b.png
check "message" has ../err '^../tall.png (48x64) is cropped to 32x64$'
draw_from 0 "input size that is no multiple of 16" "$model" -i ../small.png -o a.png
check "size rounded down to multiples of 16" has ../err 'wrote a.png (16x16, '
draw_from 0 "--fit pad, same size" "$model" -i ../tall.png -W 48 -H 64 --fit pad -o a.png
check "no message" lacks ../err resized

# ---- JPEG and WebP ----
for file in halves.jpg near.webp turned_6.jpg; do
    draw_from 0 "input $file" "$model" -i "$fixtures/pictures/$file" -W 64 -H 48 -o a.png
    check "other image" [ "$hash" != "$cropped" ]
done
check "EXIF orientation applied" has ../err 'turned_6.jpg (13x19) is resized'
draw_from 0 "animated input" "$model" -i "$fixtures/pictures/moving.webp" -W 64 -H 48 -o a.png
check "message" has ../err 'moving.webp is animated: only the first frame is used$'
draw_from 3 "CMYK input" "$model" -i "$fixtures/pictures/print.jpg" -o b.png
check "message" has ../err '^sluice: .*CMYK'
# A WebP above the budget is refused by its header.
{ head -c 26 "$fixtures/pictures/near.webp" && printf '\377\077\377\077'; } >../large.webp
draw_from 4 "WebP above the budget" "$model" -i ../large.webp -W 64 -H 48 --max-ram 100M -o b.png
check "error names the smallest budget" has ../err '^sluice: .*the smallest budget that works is --max-ram [0-9]*B'
rm ../large.webp

# ---- --mask: inpainting ----
draw_from 0 "no mask" "$model" -i ../wide.png --strength 0.8 -o a.png
all=$hash
draw_from 0 "--mask" "$model" -i ../wide.png --mask ../wide.png --strength 0.8 -o a.png
check "other image" [ "$hash" != "$all" ]
expect 0 "plan with a mask" plan --json -m "$model" -i ../wide.png --mask ../tall.png
check "default strength 1" has ../out '"strength": *1'

# ---- fill models ----
draw_from 2 "fill model without mask" "$fill" -i ../wide.png -o a.png
check "error names --init-img and --mask" has ../err '^sluice: .*--init-img and --mask'
draw_from 2 "fill model without images" "$fill" -o a.png
check "error names --init-img and --mask" has ../err '^sluice: .*--init-img and --mask'
draw_from 0 "mask of another size" "$fill" -i ../wide.png --mask ../tall.png -o a.png
check "message" has ../err '^../tall.png (48x64) is resized to 64x85 and cropped to 64x48$'
draw_from 0 "fill model with image and mask" "$fill" -i ../wide.png --mask ../wide.png -o a.png
filled=$hash
draw_from 0 "fill model with another image" "$fill" -i a.png --mask ../wide.png -o b.png
check "other image" [ "$hash" != "$filled" ]

# ---- --ref-image ----
draw_from 0 "no reference" "$kontext" -W 64 -H 48 -o a.png
alone=$hash
draw_from 0 "reference of another size" "$kontext" -W 64 -H 48 -r ../tall.png -o a.png
check "requested size" has ../err 'wrote a.png (64x48, '
check "other image" [ "$hash" != "$alone" ]
one=$hash
draw_from 0 "two references" "$kontext" -W 64 -H 48 -r ../tall.png -r ../wide.png -o a.png
check "other image" [ "$hash" != "$one" ]
draw_from 3 "reference below the minimum size" "$kontext" -W 64 -H 48 -r ../small.png -o a.png
check "error message" has ../err '^sluice: .*small.png.*found 19x13'
check "note on transparency" has ../err '^../small.png: transparency is ignored'
draw_from 3 "reference below the minimum size, -q" "$kontext" -q -r ../small.png -o a.png
check "no note" lacks ../err 'transparency'

# ---- plan ----
expect 0 "plan with image and mask" plan --json -m "$fill" -i ../wide.png --mask ../wide.png
check "encode stage" has ../out '"name": "encode"'
expect 0 "plan with a tall image" plan --json -m "$fill" -i ../tall.png --mask ../tall.png
check "size of the input image" has ../out '"height": 64,'
expect 0 "plan with a mask of another size" plan --json -m "$fill" -i ../wide.png --mask ../tall.png --fit pad
check "fit mode" has ../out '"fit": "pad"'
expect 0 "plan without images" plan --json -m "$model" -W 64 -H 48
check "no encode stage" lacks ../out '"name": "encode"'

rm -rf ../folder.png ../pipe.png
echo "$passed passed, $failed failed"
[ $failed = 0 ]
