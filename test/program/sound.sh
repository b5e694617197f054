#!/bin/sh
# Videos with sound (LTX-2): tracks and WAV files, --no-audio, silent models, guidance of the sound, sigmas, the second
# stage, saved latents; one sound under every budget.
#
# usage: sound.sh SLUICE MODEL_DIR [SCRATCH_DIR]      (test/golden/ltx2/model)
. "$(dirname "$0")/harness.sh"

cp -rL "$model" ltx2
clip="-m ltx2 -p fox -W 64 -H 64 --frames 9 --steps 2 --seed 3 --cfg-scale 1 --stg-scale 0 --modality-scale 1"
hash() { tr -d ' \n' <r.json | sed "s/.*\"$1\":\[\"\([0-9a-f]*\).*/\1/"; }
video() { # video CODE NAME ARGS...: hashes of pixels and sound in $pixels and $sound
    code=$1 name_of=$2
    shift 2
    # shellcheck disable=SC2086
    expect "$code" "$name_of" generate $clip --report r.json "$@"
    pixels=$(hash image_sha256) sound=$(hash sound_sha256)
}
stream() { # stream FILE KEY: a property of the file's sound
    ffprobe -v error -select_streams a -show_entries "stream=$2" -of default=nw=1:nk=1 "$1"
}
# 9 frames at 24 fps are 9 latents of sound: 33 rows of the spectrogram, 240 samples each.
samples=7920

video 0 "MP4" -o a.mp4
first_pixels=$pixels first_sound=$sound
check "AAC" [ "$(stream a.mp4 codec_name)" = aac ]
check "24 kHz" [ "$(stream a.mp4 sample_rate)" = 24000 ]
check "two channels" [ "$(stream a.mp4 channels)" = 2 ]
check "length" [ "$(stream a.mp4 duration)" = 0.330000 ]
check "no WAV file" absent a.wav
video 0 "WebM" -o a.webm
check "Opus" [ "$(stream a.webm codec_name)" = opus ]
check "same sound in WebM" [ "$sound" = "$first_sound" ]
video 0 "GIF" -o a.gif
check "WAV beside a GIF" [ "$(stream a.wav duration_ts)" = $samples ]
check "note on the WAV file" has ../err 'sound: a.wav'
video 0 "frames" -o frames/ --fps 24
check "WAV beside a folder" cmp -s a.wav frames.wav
check "no warning of --fps" lacks ../err 'fps is ignored'
video 0 "WAV under another budget and one thread" -o b.gif --max-ram 200M --vae-tiling on -t 1
check "same WAV" cmp -s a.wav b.wav
check "same pixels" [ "$pixels" = "$first_pixels" ]

video 0 "--no-audio" -o c.mp4 --no-audio
check "no track" [ -z "$(stream c.mp4 codec_name)" ]
check "same pixels without sound" [ "$pixels" = "$first_pixels" ]
video 0 "another frame rate" -o d.gif --fps 30
check "other pixels at another frame rate" [ "$pixels" != "$first_pixels" ]
expect 2 "--no-audio with an image model" generate -m "$demo" -p x --no-audio -o x.png
check "names the flag" has ../err '--no-audio cannot be used with this model'

# ---- latents ----
video 0 "saved latents" --no-decode --save-audio-latent s.safetensors --save-latent v.safetensors
check "both latents" [ -s s.safetensors -a -s v.safetensors ]
expect 0 "decode" decode v.safetensors -m ltx2 -o e.mp4
check "decode warns of silence" has ../err 'the video has no sound'

# ---- a model without its sound parts ----
mkdir silent && cp -r ltx2/connectors ltx2/text_encoder ltx2/tokenizer ltx2/transformer ltx2/vae ltx2/scheduler silent/
expect 3 "wrong shape of the sound's latent" generate $(echo "$clip" | sed 's/-m ltx2/-m silent/') -o f.mp4
check "names the audio VAE" has ../err 'audio VAE'

# ---- guidance, sigmas, second stage ----
video 0 "guidance of the sound alone" -o g.gif --audio-cfg-scale 3 -n snow
check "other sound" [ "$sound" != "$first_sound" ]
video 0 "--sigmas" -o h.gif --sigmas 1,0.5
video 2 "rising sigmas" -o h.gif --sigmas 0.5,1
expect 2 "a block that the model lacks" generate -m ltx2 -p x -W 64 -H 64 --frames 9 --stg-scale 1 --stg-blocks 3 \
    -o h.gif
check "names the blocks" has ../err 'blocks from 0 to 2'
video 0 "second stage" -o i.mp4 --upscaler ltx2/latent_upsampler --upscale-sigmas 0.9,0.4
width=$(ffprobe -v error -select_streams v -show_entries stream=width -of default=nw=1:nk=1 i.mp4)
check "twice the width" [ "$width" = 128 ]
check "a sound" [ "$(stream i.mp4 codec_name)" = aac ]
video 2 "sigmas without a second stage" -o i.mp4 --upscale-sigmas 0.9,0.4

name="end of the test"
rm -rf ltx2 silent frames ./*.mp4 ./*.webm ./*.gif ./*.wav ./*.json ./*.safetensors
check "no file is left" empty_folder .
echo "$passed passed, $failed failed"
[ $failed = 0 ]
