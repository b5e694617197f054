#!/bin/sh
# Videos out: formats and frames by name, what ffprobe finds in them, runs that end early, budgets, saved latents.
#
# usage: output_videos.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/harness.sh"

video() { # video CODE NAME ARGS...: of 5 frames
    video_code=$1 video_name=$2
    shift 2
    expect "$video_code" "$video_name" generate -m "$model" -W 64 -H 48 --frames 5 --steps 1 -p "a fox" -n snow --seed 7 "$@"
}
stream() { ffprobe -v error -count_frames -show_entries "stream=$2" -of default=nw=1:nk=1 "$1" | tr '\n' ' '; }
names() { ls -A | tr '\n' ' '; }
hash_of() { sed -n 's/.*sha256 \([0-9a-f]*\).*/\1/p' ../err | head -1; }
bytes() { wc -c <"$1"; }
reported() { tr -d ' \n' <"$1" | sed "s/.*\"$2\":\[\{0,1\}\"\{0,1\}\([0-9a-f]*\).*/\1/"; }

# ---- formats: name | codec | rate ----
while IFS='|' read -r file codec rate; do
    video 0 "$file" -o "$file" --fps "$rate"
    check "said" has ../err "^wrote $file (5 frames at $rate fps, 64x48, seed 7, pixels sha256 "
    check "a video" has ../err '^done: 1 video in '
    name=$file
    check "what it is" [ "$(stream "$file" codec_name,width,height,r_frame_rate,nb_read_frames)" = "$codec 64 48 $rate/1 5 " ]
    text=$(ffprobe -v error -show_entries format_tags=comment,COMMENT -of default=nw=1 "$file")
    check "its prompt" [ "$(echo "$text" | grep -c 'a fox$')" = 1 ]
    check "what to keep away from" [ "$(echo "$text" | grep -c '^Negative prompt: snow$')" = 1 ]
    check "its settings" [ "$(echo "$text" | grep -c '^Steps: 1, .*Seed: 7, Size: 64x48, Frames: 5, ')" = 1 ]
    video 0 "$file without a text" -o "plain-$file" --no-metadata
    check "none" lacks "plain-$file" fox
done <<END
a.mp4|h264|16
a.webm|vp9|24
a.gif|gif|20
A.MP4|h264|30
END
pixels=$(hash_of)
video 0 "the model's own rate" -o own.webm --report ../r.json
check "16" [ "$(stream own.webm r_frame_rate)" = "16/1 " ]
check "of the same pixels" [ "$(reported ../r.json image_sha256)" = "$pixels" ]
for file in low.mp4 low.webm; do
    video 0 "little quality" -o $file --quality 5
    check "smaller" [ "$(bytes $file)" -lt "$(bytes "a.${file#low.}")" ]
done
video 0 "a GIF of some quality" -o low.gif --quality 5
check "has none" has ../err '^warning: --quality is ignored: GIF has no quality setting$'
video 2 "a GIF too fast" -o fast.gif --fps 60
check "said" has ../err '^sluice: .*fast.gif.*--fps 60.*at most 50'
rm -f ./*

# ---- frames ----
video 0 "a picture a frame" -o 'f-%d.png'
check "all, and nothing else" [ "$(names)" = "f-1.png f-2.png f-3.png f-4.png f-5.png " ]
check "said" has ../err '^wrote f-1.png (first of 5 frames, 64x48, seed 7, '
name="their hash"
check "is all rows'" [ "$(ffmpeg -v error -i f-%d.png -f rawvideo -pix_fmt rgb24 - | sha256sum | cut -c 1-64)" = "$pixels" ]
check "their text" has f-5.png 'tEXtparameters'
video 0 "its own names" -o x.mp4
name="a video's frames"
ffmpeg -v error -y -i x.mp4 -framerate 16 -i f-%d.png -lavfi "[0]format=rgb24[a];[1]format=rgb24[b];[a][b]psnr=stats_file=../psnr" -f null - 2>../out
check "are the pictures'" [ "$(sed 's/.*psnr_avg:\([0-9]*\).*/\1/' ../psnr | awk '$1 >= 20' | wc -l)" = 5 ]
rm -f ./*
while IFS='|' read -r pattern arguments files; do
    # shellcheck disable=SC2086
    expect 0 "$pattern" generate -m "$model" -W 32 -H 32 --frames 5 --steps 1 -p x --seed 7 $arguments -o "$pattern"
    check "names" [ "$(find . -type f | sed 's/^..//' | sort | tr '\n' ' ')" = "$files " ]
    rm -rf ./*
done <<END
x.png||x-1.png x-2.png x-3.png x-4.png x-5.png
x.jpg||x-1.jpg x-2.jpg x-3.jpg x-4.jpg x-5.jpg
f%02d.webp||f01.webp f02.webp f03.webp f04.webp f05.webp
x.mp4|-b 2|x-1.mp4 x-2.mp4
n%d.webm|-b 2|n1.webm n2.webm
fox-%s.gif|-b 2|fox-7.gif fox-8.gif
x-%d.png|-b 2|x-1-1.png x-1-2.png x-1-3.png x-1-4.png x-1-5.png x-2-1.png x-2-2.png x-2-3.png x-2-4.png x-2-5.png
x.png|-b 2|x-1-1.png x-1-2.png x-1-3.png x-1-4.png x-1-5.png x-2-1.png x-2-2.png x-2-3.png x-2-4.png x-2-5.png
%s-%d.png|-b 2|7-1.png 7-2.png 7-3.png 7-4.png 7-5.png 8-1.png 8-2.png 8-3.png 8-4.png 8-5.png
%s.png||7-1.png 7-2.png 7-3.png 7-4.png 7-5.png
new/||new/0001.png new/0002.png new/0003.png new/0004.png new/0005.png
new|-b 2|new/1-0001.png new/1-0002.png new/1-0003.png new/1-0004.png new/1-0005.png new/2-0001.png new/2-0002.png new/2-0003.png new/2-0004.png new/2-0005.png
END
mkdir there && echo old >there/0002.png && echo mine >there/mine
video 0 "into a folder that is there" -o there
check "over what was there" lacks there/0002.png old
check "and nothing else" [ "$(ls there | wc -l) $(cat there/mine)" = "6 mine" ]
rm -rf ./*
expect 0 "a video of one frame" generate -m "$model" -W 32 -H 32 --frames 1 --steps 1 -p x -o one.mp4
check "has it" [ "$(stream one.mp4 nb_read_frames)" = "1 " ]
rm -f ./*
expect 0 "without a name" generate -m "$model" -W 32 -H 32 --frames 5 --steps 1 -p x
check "a video" [ "$(names)" = "output.mp4 " ]
rm -f ./*

# ---- what is refused: arguments | message ----
while IFS='|' read -r arguments message; do
    # shellcheck disable=SC2086
    video 2 "$arguments" $arguments
    check "message has $message" has ../err "^sluice: .*$message"
    check "nothing is there" empty_folder .
done <<END
-o -|stdout takes only one image
-o d%d/x.png|%d only after the last /
-o d%d/|a folder without %d
-o x.avi|.png, .jpg, .jpeg or .webp; for videos .mp4, .webm or .gif
-o x.mp4 --report x.mp4|two different names
-o x-%d.png --save-latent x-3.png|two different names
-o x.png --report x-5.png|two different names
-o x.mp4 --fps 0|--fps
END
video 6 "a folder that is missing" -o gone/x.mp4
long=$(printf '%0300d' 7)
for file in "$long.mp4" "$long-%d.png" "$long/"; do
    video 6 "a name that is too long" -o "$file"
    check "message" has ../err '^sluice: .*File name too long'
    check "is found before the run" lacks ../err '^\(seed\|encoding\|sampling\)'
done
video 6 "a folder in one that is missing" -o gone/folder/
mkdir d-3.png
video 6 "a frame's name that is a folder's" -o d-%d.png
check "nothing else" [ "$(names)" = "d-3.png " ]
rm -rf ./*
for i in 1 2 3; do cp "$demo/../../README.md" x-$i.png; done
video 2 "over what is read" -p @x-2.png -o x.png
check "it stays" cmp -s x-2.png "$demo/../../README.md"
mkdir led && cp x-1.png led/f-2.png
video 2 "over frames that lead" --control led -o led/f-%d.png
check "said" has ../err '^sluice: --output would overwrite a file in the folder of --control'
rm -rf ./*

# ---- saved latents ----
video 0 "a latent" -b 2 --save-latent l.safetensors -o x.mp4
pixels=$(hash_of)
expect 0 "decoded" decode l.safetensors -m "$model" -o y.mp4 --fps 12
check "of the same pixels" [ "$(hash_of)" = "$pixels" ]
check "both" [ "$(stream y-1.mp4 r_frame_rate,nb_read_frames) $(stream y-2.mp4 nb_read_frames)" = "12/1 5  5 " ]
check "said" has ../err '^done: 2 videos in '
expect 0 "decoded without a name" decode l.safetensors -m "$model"
check "to videos" [ "$(ls output-1.mp4 output-2.mp4 | wc -l)" = 2 ]
expect 2 "decoded, two outputs of one name" decode l.safetensors -m "$model" -o z.png --report z-2-5.png
expect 0 "decoded to frames" decode l.safetensors -m "$model" -o 'z-%d.png'
check "named" [ "$(ls z-*.png | wc -l) $(ls z-2-5.png)" = "10 z-2-5.png" ]
mkdir dump
expect 0 "dumped" decode l.safetensors -m "$model" -o z.gif --dump dump
check "frame by frame" [ "$(ls dump | wc -l) $(ls dump | head -1)" = "10 decoded_001_frame_0000.safetensors" ]
rm -rf ./*

# ---- budgets: the least that would do does ----
for file in b.mp4 b.webm b.gif b.png; do
    video 4 "$file, too little" -o $file --max-ram 9M
    check "nothing" empty_folder .
    least=$(sed -n 's/.*--max-ram \([0-9]*\)B.*/\1/p' ../err)
    video 0 "$file, the least" -o $file --max-ram "${least}B" --report ../r.json
    measured=$(tr -d ' \n' <../r.json | sed 's/.*"measured":{\([^}]*\)}.*/\1/; s/.*"ram_bytes":\([0-9]*\).*/\1/')
    check "is kept to: $measured of $least" [ "$measured" -le "$least" ]
    check "and is not far: $measured of $least" [ "$((least - measured))" -le $((32 << 20)) ]
    rm -f ./*
done

# ---- disks that are full, and runs that end early: nothing is left but the latent ----
if [ -w /dev/full ]; then
    ln -s /dev/full full.mp4
    video 6 "a full disk" -o full.mp4 --save-latent l.safetensors
    check "No space" has ../err '^sluice: .*No space left.*full.mp4'
    check "the latent is there" [ -s l.safetensors ]
    rm -f ./*
fi
(
    ulimit -f 14 # of 512 bytes
    video 6 "files of 7 KiB" -o new/ --save-latent l.safetensors
    cp ../err ../err_frames
    echo "$passed $failed" >../sums
)
read -r passed failed <../sums
check "too large" has ../err_frames '^sluice: .*File too large.*new/000[1-9].png'
check "the latent alone" [ "$(names)" = "l.safetensors " ]
rm -rf ./*
ends_early() { # ends_early SIGNAL CODE OUTPUT FILE: while pictures are made, and FILE is there
    name="$3 ended by $1"
    "$sluice" generate -m "$model" -W 192 -H 192 --frames 81 --steps 1 -p x --cfg-scale 1 -o "$3" >../out 2>../err &
    pid=$!
    until { grep -q '^decoding' ../err && [ -e "$4" ]; } || ! kill -0 $pid 2>/dev/null; do sleep 0.05; done
    sleep 0.2
    kill -"$1" $pid
    wait $pid 2>/dev/null
    code=$?
    check "exit $code" [ $code = "$2" ]
}
for file in c.mp4 c.webm c-%d.png folder/; do
    ends_early INT 130 $file .
    check "nothing is left" empty_folder .
    rm -rf ./*
done
# what is written before it has its name
(until [ -e made ] || [ -e ../ended ]; do
    sleep 0.05
    for file in c-1.png.tmp.*/c-2.png; do [ ! -e "$file" ] || mkdir -p made; done
done) &
ends_early KILL 137 c-%d.png made
touch ../ended
check "something was there" [ -d made ]
rm -rf made ../ended
video 0 "after a run that was killed" -o c.mp4
check "what it left is gone" [ "$(names)" = "c.mp4 " ]

# ---- a tiny decoder ----
rm -rf ../taehv
expect 0 "a tiny decoder is made" bench checkpoint taehv ../taehv -q \
    --dims latent_channels=5,taehv_channels0=16,taehv_channels1=8,taehv_channels2=6,taehv_channels3=5
video 0 "it decodes" -o tiny.webm --taesd ../taehv --save-latent tiny.safetensors
check "a line says so" has ../err '^decoded with the tiny video decoder (taehv): the image differs slightly'
check "as many frames" [ "$(stream tiny.webm width,height,nb_read_frames)" = "64 48 5 " ]
check "and the video" has tiny.webm 'VAE Decoder: TAEHV, '
tiny=$(hash_of)
check "other pixels" [ "$tiny" != "$pixels" ]
expect 0 "as GGUF" convert ../taehv -o tiny.gguf --type q8_0 -q
expect 0 "without the model" decode tiny.safetensors --taesd tiny.gguf -o again.webm
check "the same pixels" [ "$(hash_of)" = "$tiny" ]
expect 0 "what it is" inspect ../taehv
check "is known" has ../out '^taesd: taehv, 64 tensors'

echo "$passed passed, $failed failed"
[ $failed = 0 ]
