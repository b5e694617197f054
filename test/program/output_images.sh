#!/bin/sh
# Pictures out: formats by extension, quality, the text in them, names with numbers and seeds.
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
    check "of the same pixels" [ "$(hash_of)" = "$pixels" ]
    check "with a text" has a.$extension UNICODE
done
draw 0 "WebP" -p "a fox" --seed 5 -o a.webp
check "WebP" begins a.webp 4 52494646
check "of the same pixels" [ "$(hash_of)" = "$pixels" ]
check "with a text" has a.webp UNICODE
name="text as others write it"
tr -d '\0' <a.webp >../text
check "prompt" has ../text 'UNICODEa fox$'
check "settings" has ../text '^Steps: 2, .*Seed: 5, Size: '
for file in a.jpg a.webp a.png; do
    draw 0 "to start from $file" -p "a fox" -i $file --strength 0.5 -o from.png
    check "of its size" lacks ../err resized
done
draw 0 "to stdout" -p x -o -
check "PNG" begins ../out 4 89504e47
for extension in jpg webp; do
    draw 0 "$extension of little quality" -p "a fox" --seed 5 -o low.$extension --quality 5
    check "smaller" [ "$(bytes low.$extension)" -lt "$(bytes a.$extension)" ]
    draw 0 "$extension without a text" -p "a fox" --seed 5 -o plain.$extension --no-metadata
    check "none" lacks plain.$extension UNICODE
    check "smaller by it" [ "$(bytes plain.$extension)" -lt "$(bytes a.$extension)" ]
done
draw 0 "PNG without a text" -p "a fox" --seed 5 -o plain.png --no-metadata
check "none" lacks plain.png 'tEXt'
draw 0 "PNG with a quality" -p x -o plain.png --quality 5
check "said" has ../err '^warning: --quality is ignored: PNG is lossless$'
awk 'BEGIN { for (i = 0; i < 7000; i++) print "a red fox" }' >../long
draw 0 "a text beyond JPEG's room" -p @../long -o long.jpg
check "said" has ../err '^warning: long.jpg has no metadata: the text is too long for JPEG'
check "none" lacks long.jpg UNICODE
expect 0 "a latent" generate -m "$model" $size --steps 1 -p x --no-decode --save-latent l.safetensors
expect 0 "decoded to WebP" decode l.safetensors -m "$model" -o decoded.webp
check "WebP" begins decoded.webp 4 52494646
expect 2 "sides beyond WebP's" generate -m "$model" -W 16384 -H 16 -p x -o large.webp
check "said" has ../err '^sluice: .*large.webp.*found 16384x16.*16383'
rm -f ./*

# ---- budgets: the least that would do does ----
for extension in jpg webp; do
    draw 4 "$extension, too little" -p x -o a.$extension --max-ram 8M
    least=$(sed -n 's/.*--max-ram \([0-9]*\)B.*/\1/p' ../err)
    draw 0 "$extension, the least" -p x -o a.$extension --max-ram "${least}B" --report r.json
    tr -d ' \n' <r.json >../flat
    check "is kept to" [ "$(sed 's/.*"measured":{\([^}]*\)}.*/\1/; s/.*"ram_bytes":\([0-9]*\).*/\1/' ../flat)" -le "$least" ]
done
rm -f ./*

# ---- files that cannot be written ----
before_the_run() { # before_the_run PATTERN: the error is of that pattern, and nothing was computed
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
check "nothing is left" empty_folder .
draw 4 "a run over its budget" -p x --max-ram 8M
check "prints no seed" lacks ../err '^seed'

# ---- pipes ----
mkfifo p.png
draw 0 "the same to a file" -p "a fox" --seed 5 -o a.png
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
check "is written when a reader comes" cmp -s a.png got.png
check "is a warning before the run" [ "$(sed -n '/^seed/q; p' ../err)" = "warning: p.png is a pipe without a reader; writing waits for one" ]
rm got.png
cat p.png >got.png &
sleep 0.3
draw 0 "a pipe with a reader" -p "a fox" --seed 5 -o p.png
wait $!
check "no warning" lacks ../err 'reader'
check "is written" cmp -s a.png got.png
rm -f ./*
if [ -w /dev/full ]; then
    for extension in jpg webp; do
        ln -s /dev/full full.$extension
        draw 6 "a full disk, $extension" -p x -o full.$extension
        check "No space" has ../err '^sluice: .*No space left'
    done
    rm -f ./*
fi

# ---- names: pattern | files of a batch of two, seeds 7 and 8 ----
while IFS='|' read -r pattern files; do
    draw 0 "$pattern" -p x -b 2 --seed 7 -o "$pattern"
    check "names" [ "$(ls -A | tr '\n' ' ')" = "$files " ]
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
draw 0 "of a seed that is drawn" -p x --seed -1 -o 'fox-%s.png'
check "its name" [ "$(ls -A)" = "fox-$(sed -n 's/^seed //p' ../err).png" ]
rm -f ./*
expect 0 "a latent" generate -m "$model" $size --steps 1 -p x --no-decode --save-latent ../l.safetensors
expect 2 "a latent's seed" decode ../l.safetensors -m "$model" -o '%s.png'
check "said" has ../err '^sluice: .*a saved latent has no seed'
draw 2 "a quality of 0" -p x -o a.jpg --quality 0
draw 2 "a quality of 101" -p x -o a.jpg --quality 101
name="nothing written"
check "no file" empty_folder .

echo "$passed passed, $failed failed"
[ $failed = 0 ]
