#!/bin/sh
# Output videos: MP4, WebM, GIF and frames, checked with ffprobe; file names, budgets, saved latents, interrupted runs.
#
# usage: output_videos.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/harness.sh"

video() { # video CODE NAME ARGS...: generates 5 frames
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
    check "error message" has ../err "^wrote $file (5 frames at $rate fps, 64x48, seed 7, pixels sha256 "
    check "summary counts one video" has ../err '^done: 1 video in '
    name=$file
    check "codec, size, rate and frames" [ "$(stream "$file" codec_name,width,height,r_frame_rate,nb_read_frames)" = "$codec 64 48 $rate/1 5 " ]
    text=$(ffprobe -v error -show_entries format_tags=comment,COMMENT -of default=nw=1 "$file")
    check "prompt in the metadata" [ "$(echo "$text" | grep -c 'a fox$')" = 1 ]
    check "negative prompt in the metadata" [ "$(echo "$text" | grep -c '^Negative prompt: snow$')" = 1 ]
    check "settings in the metadata" [ "$(echo "$text" | grep -c '^Steps: 1, .*Seed: 7, Size: 64x48, Frames: 5, ')" = 1 ]
    video 0 "$file --no-metadata" -o "plain-$file" --no-metadata
    check "no metadata" lacks "plain-$file" fox
done <<END
a.mp4|h264|16
a.webm|vp9|24
a.gif|gif|20
A.MP4|h264|30
END
pixels=$(hash_of)
video 0 "default frame rate" -o own.webm --report ../r.json
check "16 fps" [ "$(stream own.webm r_frame_rate)" = "16/1 " ]
check "same pixels" [ "$(reported ../r.json image_sha256)" = "$pixels" ]
for file in low.mp4 low.webm; do
    video 0 "--quality 5" -o $file --quality 5
    check "smaller file" [ "$(bytes $file)" -lt "$(bytes "a.${file#low.}")" ]
done
video 0 "GIF --quality 5" -o low.gif --quality 5
check "warning" has ../err '^warning: --quality is ignored: GIF has no quality setting$'
video 2 "GIF above 50 fps" -o fast.gif --fps 60
check "error message" has ../err '^sluice: .*fast.gif.*--fps 60.*at most 50'
rm -f ./*

# ---- frames ----
video 0 "one image per frame" -o 'f-%d.png'
check "five images, no other file" [ "$(names)" = "f-1.png f-2.png f-3.png f-4.png f-5.png " ]
check "error message" has ../err '^wrote f-1.png (first of 5 frames, 64x48, seed 7, '
name="hash of the images"
check "is the hash of all pixels" [ "$(ffmpeg -v error -i f-%d.png -f rawvideo -pix_fmt rgb24 - | sha256sum | cut -c 1-64)" = "$pixels" ]
check "metadata in each image" has f-5.png 'tEXtparameters'
video 0 "MP4 of the same video" -o x.mp4
name="frames of the MP4"
ffmpeg -v error -y -i x.mp4 -framerate 16 -i f-%d.png -lavfi "[0]format=rgb24[a];[1]format=rgb24[b];[a][b]psnr=stats_file=../psnr" -f null - 2>../out
check "are close to the images" [ "$(sed 's/.*psnr_avg:\([0-9]*\).*/\1/' ../psnr | awk '$1 >= 20' | wc -l)" = 5 ]
rm -f ./*
while IFS='|' read -r pattern arguments files; do
    # shellcheck disable=SC2086
    expect 0 "$pattern" generate -m "$model" -W 32 -H 32 --frames 5 --steps 1 -p x --seed 7 $arguments -o "$pattern"
    check "file names" [ "$(find . -type f | sed 's/^..//' | sort | tr '\n' ' ')" = "$files " ]
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
video 0 "output to an existing folder" -o there
check "overwrites old frames" lacks there/0002.png old
check "keeps other files" [ "$(ls there | wc -l) $(cat there/mine)" = "6 mine" ]
rm -rf ./*
expect 0 "video of one frame" generate -m "$model" -W 32 -H 32 --frames 1 --steps 1 -p x -o one.mp4
check "one frame" [ "$(stream one.mp4 nb_read_frames)" = "1 " ]
rm -f ./*
expect 0 "default file name" generate -m "$model" -W 32 -H 32 --frames 5 --steps 1 -p x
check "summary counts one video" [ "$(names)" = "output.mp4 " ]
rm -f ./*

# ---- errors: flags | pattern of the error message ----
while IFS='|' read -r arguments message; do
    # shellcheck disable=SC2086
    video 2 "$arguments" $arguments
    check "message has $message" has ../err "^sluice: .*$message"
    check "no file is written" empty_folder .
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
video 6 "output in a missing folder" -o gone/x.mp4
long=$(printf '%0300d' 7)
for file in "$long.mp4" "$long-%d.png" "$long/"; do
    video 6 "file name too long" -o "$file"
    check "error message" has ../err '^sluice: .*File name too long'
    check "is found before the run" lacks ../err '^\(seed\|encoding\|sampling\)'
done
video 6 "folder in a missing folder" -o gone/folder/
mkdir d-3.png
video 6 "a folder has the name of a frame" -o d-%d.png
check "no other file" [ "$(names)" = "d-3.png " ]
rm -rf ./*
for i in 1 2 3; do cp "$demo/../../README.md" x-$i.png; done
video 2 "output over the prompt file" -p @x-2.png -o x.png
check "the file is unchanged" cmp -s x-2.png "$demo/../../README.md"
mkdir control && cp x-1.png control/f-2.png
video 2 "output over frames of --control" --control control -o control/f-%d.png
check "error message" has ../err '^sluice: --output would overwrite a file in the folder of --control'
rm -rf ./*

# ---- saved latents ----
video 0 "save latents" -b 2 --save-latent l.safetensors -o x.mp4
pixels=$(hash_of)
expect 0 "decode to MP4" decode l.safetensors -m "$model" -o y.mp4 --fps 12
check "same pixels" [ "$(hash_of)" = "$pixels" ]
check "both videos" [ "$(stream y-1.mp4 r_frame_rate,nb_read_frames) $(stream y-2.mp4 nb_read_frames)" = "12/1 5  5 " ]
check "error message" has ../err '^done: 2 videos in '
expect 0 "decode, default file names" decode l.safetensors -m "$model"
check "two MP4 files" [ "$(ls output-1.mp4 output-2.mp4 | wc -l)" = 2 ]
expect 2 "decode, --report names a frame" decode l.safetensors -m "$model" -o z.png --report z-2-5.png
expect 0 "decode to frames" decode l.safetensors -m "$model" -o 'z-%d.png'
check "frame names" [ "$(ls z-*.png | wc -l) $(ls z-2-5.png)" = "10 z-2-5.png" ]
mkdir dump
expect 0 "decode with --dump" decode l.safetensors -m "$model" -o z.gif --dump dump
check "one dump file per frame" [ "$(ls dump | wc -l) $(ls dump | head -1)" = "10 decoded_001_frame_0000.safetensors" ]
rm -rf ./*

# ---- the smallest budget that the error names is enough ----
for file in b.mp4 b.webm b.gif b.png; do
    video 4 "$file, budget too small" -o $file --max-ram 9M
    check "no file is written" empty_folder .
    least=$(sed -n 's/.*--max-ram \([0-9]*\)B.*/\1/p' ../err)
    video 0 "$file, smallest budget" -o $file --max-ram "${least}B" --report ../r.json
    measured=$(tr -d ' \n' <../r.json | sed 's/.*"measured":{\([^}]*\)}.*/\1/; s/.*"ram_bytes":\([0-9]*\).*/\1/')
    check "measured memory within the budget: $measured of $least" [ "$measured" -le "$least" ]
    check "measured memory within 32 MiB of the budget: $measured of $least" [ "$((least - measured))" -le $((32 << 20)) ]
    rm -f ./*
done

# ---- full disks and interrupted runs leave no file but the latent ----
if [ -w /dev/full ]; then
    ln -s /dev/full full.mp4
    video 6 "full disk" -o full.mp4 --save-latent l.safetensors
    check "No space" has ../err '^sluice: .*No space left.*full.mp4'
    check "the latent is kept" [ -s l.safetensors ]
    rm -f ./*
fi
(
    ulimit -f 14 # in units of 512 bytes
    video 6 "file size limit of 7 KiB" -o new/ --save-latent l.safetensors
    cp ../err ../err_frames
    echo "$passed $failed" >../sums
)
read -r passed failed <../sums
check "error names the frame" has ../err_frames '^sluice: .*File too large.*new/000[1-9].png'
check "only the latent is left" [ "$(names)" = "l.safetensors " ]
rm -rf ./*
ends_early() { # ends_early SIGNAL CODE OUTPUT FILE: sends the signal while frames are decoded and FILE exists
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
    check "no file is left" empty_folder .
    rm -rf ./*
done
# Creates the folder `made` when the second temporary frame appears.
(until [ -e made ] || [ -e ../ended ]; do
    sleep 0.05
    for file in c-1.png.tmp.*/c-2.png; do [ ! -e "$file" ] || mkdir -p made; done
done) &
ends_early KILL 137 c-%d.png made
touch ../ended
check "the killed run left frames" [ -d made ]
rm -rf made ../ended
video 0 "run after a killed run" -o c.mp4
check "files of the killed run are removed" [ "$(names)" = "c.mp4 " ]

# ---- a tiny decoder ----
rm -rf ../taehv
expect_dev 0 "write a tiny video decoder" checkpoint taehv ../taehv -q \
    --dims latent_channels=5,taehv_channels0=16,taehv_channels1=8,taehv_channels2=6,taehv_channels3=5
video 0 "generate with --taesd" -o tiny.webm --taesd ../taehv --save-latent tiny.safetensors
check "note on the tiny decoder" has ../err '^decoded with the tiny video decoder (taehv): the image differs slightly'
check "same size and frames" [ "$(stream tiny.webm width,height,nb_read_frames)" = "64 48 5 " ]
check "decoder in the metadata" has tiny.webm 'VAE Decoder: TAEHV, '
tiny=$(hash_of)
check "other pixels" [ "$tiny" != "$pixels" ]
expect 0 "convert the tiny decoder to GGUF" convert ../taehv -o tiny.gguf --type q8_0 -q
expect 0 "decode without the model" decode tiny.safetensors --taesd tiny.gguf -o again.webm
check "same pixels" [ "$(hash_of)" = "$tiny" ]
expect 0 "inspect the tiny decoder" inspect ../taehv
check "inspect names the format" has ../out '^taesd: taehv, 64 tensors'

echo "$passed passed, $failed failed"
[ $failed = 0 ]
