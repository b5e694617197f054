#!/bin/sh
# Output images: PNG, JPEG and WebP by extension, --quality, metadata, budgets, pipes, names with %d and %s.
#
# usage: output_images.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/harness.sh"

begins() { [ "$(head -c "$2" "$1" | od -An -tx1 | tr -d ' \n')" = "$3" ]; }
bytes() { wc -c <"$1"; }
hash_of() { sed -n 's/.*sha256 \([0-9a-f]*\).*/\1/p' ../err | head -1; }

# ---- formats ----
draw 0 "PNG" -p "a fox" --seed 5 -o a.png
pixels=$(hash_of)
for extension in jpg JPEG; do
    draw 0 "JPEG" -p "a fox" --seed 5 -o a.$extension
    check "JPEG" begins a.$extension 3 ffd8ff
    check "same pixels" [ "$(hash_of)" = "$pixels" ]
    check "EXIF text" has a.$extension UNICODE
done
draw 0 "WebP" -p "a fox" --seed 5 -o a.webp
check "WebP" begins a.webp 4 52494646
check "same pixels" [ "$(hash_of)" = "$pixels" ]
check "EXIF text" has a.webp UNICODE
name="EXIF text as AUTOMATIC1111 writes it"
tr -d '\0' <a.webp >../text
check "prompt" has ../text 'UNICODEa fox$'
check "settings" has ../text '^Steps: 2, .*Seed: 5, Size: '
for file in a.jpg a.webp a.png; do
    draw 0 "$file as input image" -p "a fox" -i $file --strength 0.5 -o from.png
    check "size of the input image" lacks ../err resized
done
draw 0 "output to stdout" -p x -o -
check "PNG" begins ../out 4 89504e47
for extension in jpg webp; do
    draw 0 "$extension --quality 5" -p "a fox" --seed 5 -o low.$extension --quality 5
    check "smaller file" [ "$(bytes low.$extension)" -lt "$(bytes a.$extension)" ]
    draw 0 "$extension --no-metadata" -p "a fox" --seed 5 -o plain.$extension --no-metadata
    check "no text" lacks plain.$extension UNICODE
    check "smaller file" [ "$(bytes plain.$extension)" -lt "$(bytes a.$extension)" ]
done
draw 0 "PNG --no-metadata" -p "a fox" --seed 5 -o plain.png --no-metadata
check "no text" lacks plain.png 'tEXt'
draw 0 "PNG --quality 5" -p x -o plain.png --quality 5
check "message" has ../err '^warning: --quality is ignored: PNG is lossless$'
awk 'BEGIN { for (i = 0; i < 7000; i++) print "a red fox" }' >../long
draw 0 "metadata too long for JPEG" -p @../long -o long.jpg
check "message" has ../err '^warning: long.jpg has no metadata: the text is too long for JPEG'
check "no text" lacks long.jpg UNICODE
expect 0 "save a latent" generate -m "$model" $size --steps 1 -p x --no-decode --save-latent l.safetensors
expect 0 "decode to WebP" decode l.safetensors -m "$model" -o decoded.webp
check "WebP" begins decoded.webp 4 52494646
expect 3 "decode with another model's VAE" decode l.safetensors -m "$model/../../sd35_medium/model" -o x.png
check "message" has ../err '^sluice: .*found a latent of zimage, expected a latent of sd3'
expect 2 "WebP above its size limit" generate -m "$model" -W 16384 -H 16 -p x -o large.webp
check "message" has ../err '^sluice: .*large.webp.*found 16384x16.*16383'
rm -f ./*

# ---- a model with alpha: PNG and WebP keep it, JPEG lies over white ----
alpha="$model/../../qwen_image_21/model"
expect 0 "PNG with alpha" generate -m "$alpha" -W 64 -H 32 --steps 1 -p x -o a.png
pixels=$(hash_of)
check "RGBA" [ "$(od -An -tu1 -j25 -N1 a.png | tr -d ' ')" = 6 ]
expect 0 "PNG with alpha as input image" generate -m "$alpha" --steps 2 -p x -i a.png --strength 0.5 -o b.png
check "no note" lacks ../err transparency
check "RGBA" [ "$(od -An -tu1 -j25 -N1 b.png | tr -d ' ')" = 6 ]
expect 0 "WebP with alpha" generate -m "$alpha" -W 64 -H 32 --steps 1 -p x -o a.webp
check "same pixels" [ "$(hash_of)" = "$pixels" ]
check "EXIF text" has a.webp UNICODE
check "chunk of alpha" has a.webp ALPH
expect 0 "JPEG without alpha" generate -m "$alpha" -W 64 -H 32 --steps 1 -p x -o a.jpg
check "warning" has ../err '^warning: a.jpg: JPEG has no transparency, so the image is laid over white$'
draw 0 "model without alpha reads one with it" -p x -i a.png --strength 0.5 -o c.png
check "note" has ../err '^a.png: transparency is ignored$'
rm -f ./*

# ---- the smallest budget that the error names is enough ----
for extension in jpg webp; do
    draw 4 "$extension, budget too small" -p x -o a.$extension --max-ram 8M
    least=$(sed -n 's/.*--max-ram \([0-9]*\)B.*/\1/p' ../err)
    draw 0 "$extension, smallest budget" -p x -o a.$extension --max-ram "${least}B" --report r.json
    tr -d ' \n' <r.json >../flat
    check "measured memory within the budget" [ "$(sed 's/.*"measured":{\([^}]*\)}.*/\1/; s/.*"ram_bytes":\([0-9]*\).*/\1/' ../flat)" -le "$least" ]
done
rm -f ./*

# ---- files that cannot be written ----
before_the_run() { # before_the_run PATTERN: the error matches PATTERN and came before any computation
    check "message has $1" has ../err "^sluice: .*$1"
    check "is found before the run" lacks ../err '^\(seed\|encoding\|sampling\)'
}
long=$(printf '%0300d' 7)
while IFS='|' read -r line pattern; do
    # shellcheck disable=SC2086
    draw 6 "$line" -p x $line
    before_the_run "$pattern"
done <<END
-o $long.png|File name too long
-b 2 -o $long-%d.png|File name too long
--report $long.json|File name too long
--save-latent $long.safetensors|File name too long
--preview latent --preview-path $long.png|File name too long
-o gone/a.png|the folder gone does not exist; create it first
--report gone/r.json|the folder gone does not exist; create it first
--save-latent gone/l.safetensors|the folder gone does not exist; create it first
-o /proc/a.png|/proc/a.png
END
check "no file is left" empty_folder .
draw 4 "run above the budget" -p x --max-ram 8M
check "prints no seed" lacks ../err '^seed'

# ---- pipes ----
mkfifo p.png
draw 0 "write to a file" -p "a fox" --seed 5 -o a.png
name="a pipe without a reader"
# shellcheck disable=SC2086
"$sluice" generate -m "$model" $size --steps 2 -p "a fox" --seed 5 -o p.png 2>../err &
n=0
while [ $n -lt 300 ] && ! has ../err '^waiting for a reader of the pipe p.png$'; do
    sleep 0.1
    n=$((n + 1))
done
cat p.png >got.png
wait $!
check "exit $?" [ $? = 0 ]
check "written when a reader opens the pipe" cmp -s a.png got.png
check "warning before the run" [ "$(sed -n '/^seed/q; p' ../err)" = "warning: p.png is a pipe without a reader; writing waits for one" ]
rm got.png
cat p.png >got.png &
sleep 0.3
draw 0 "a pipe with a reader" -p "a fox" --seed 5 -o p.png
wait $!
check "no warning" lacks ../err 'reader'
check "same bytes" cmp -s a.png got.png
rm -f ./*
if [ -w /dev/full ]; then
    for extension in jpg webp; do
        ln -s /dev/full full.$extension
        draw 6 "full disk, $extension" -p x -o full.$extension
        check "No space" has ../err '^sluice: .*No space left'
    done
    rm -f ./*
fi

# ---- names: pattern | files of a batch of two, seeds 7 and 8 ----
while IFS='|' read -r pattern files; do
    draw 0 "$pattern" -p x -b 2 --seed 7 -o "$pattern"
    check "file names" [ "$(ls -A | tr '\n' ' ')" = "$files " ]
    rm -f ./*
done <<END
n%dm.png|n1m.png n2m.png
%03d.jpg|001.jpg 002.jpg
fox-%s.webp|fox-7.webp fox-8.webp
%02d-%s.png|01-7.png 02-8.png
100%%.png|100%-1.png 100%-2.png
%s%%%d.png|7%1.png 8%2.png
END
mkdir there
while IFS='|' read -r pattern message; do
    draw 2 "$pattern" -p x -o "$pattern"
    check "message has $message" has ../err "^sluice: .*--output.*$message"
done <<END
%x.png|only the placeholders
a%.png|only the placeholders
%3d.png|only the placeholders
%00d.png|only the placeholders
%0d.png|only the placeholders
%010d.png|only the placeholders
%03s.png|only the placeholders
%d%d.png|%d at most once
%d%03d.png|%d at most once
%s%s.png|%s at most once
a.bmp|.png, .jpg, .jpeg or .webp
a.jpg.gif|.png, .jpg, .jpeg or .webp: this model generates images
a.mp4|this model generates images
folder/|found "folder/", expected a file name, such as folder/output.png
there|found "there", expected a file name, such as there/output.png
name|a file name ending in .png, .jpg, .jpeg or .webp; for videos
END
rmdir there
draw 0 "%s with a random seed" -p x --seed -1 -o 'fox-%s.png'
check "file name" [ "$(ls -A)" = "fox-$(sed -n 's/^seed //p' ../err).png" ]
rm -f ./*
expect 0 "save a latent" generate -m "$model" $size --steps 1 -p x --no-decode --save-latent ../l.safetensors
expect 2 "%s with decode" decode ../l.safetensors -m "$model" -o '%s.png'
check "message" has ../err '^sluice: .*a saved latent has no seed'
draw 2 "--quality 0" -p x -o a.jpg --quality 0
draw 2 "--quality 101" -p x -o a.jpg --quality 101
name="refused commands"
check "no file is written" empty_folder .

echo "$passed passed, $failed failed"
[ $failed = 0 ]
