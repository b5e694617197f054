#!/bin/sh
# Pipes, signals, closed streams, unsafe names, links, permissions, missing models: whatever the program
# meets in its environment.
#
# usage: environment.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/harness.sh"

# ---- pipes without reader or writer: the first signal ends the program ----
mkfifo ../pipe ../pipe.png
waits() { # waits NAME SIGNAL ARGS...: the program waits until the signal ends it
    name="$1, SIG$2" signal=$2
    shift 2
    "$sluice" "$@" <"${input:-/dev/null}" >../out 2>../err &
    pid=$!
    sleep 1
    check "still running after a second" kill -0 $pid
    kill -$signal $pid
    (sleep 3 && kill -KILL $pid 2>/dev/null) &
    guard=$!
    wait $pid
    code=$?
    kill $guard
    wait $guard 2>/dev/null
    check "exit 130, not $code" [ $code = 130 ]
    check "last line of stderr" last_line_rule 130
    check "no file is left" empty_folder .
}
small="-W 32 -H 32 --steps 1"
for signal in INT TERM; do
    # shellcheck disable=SC2086
    waits "--report to a pipe without a reader" $signal generate -m "$model" -p x $small --no-decode --report ../pipe
    # shellcheck disable=SC2086
    waits "--output to a pipe without a reader" $signal generate -m "$model" -p x $small -o ../pipe.png
    waits "plan --report to a pipe without a reader" $signal plan -m "$model" --report ../pipe
done
sleep 20 >../pipe & # a writer that writes nothing
writer=$!
waits "--plan from an idle pipe" INT generate -m "$model" -p x $small -o a.png --plan ../pipe
waits "--prompt from an idle pipe" TERM generate -m "$model" $small -o a.png -p @../pipe
kill $writer
mkfifo ../stdin
sleep 20 >../stdin &
writer=$!
input=../stdin
waits "--plan from an idle stdin" INT generate -m "$model" -p x $small -o a.png --plan -
waits "--prompt from an idle stdin" INT generate -m "$model" $small -o a.png -p @-
input=
kill $writer
name="report to a pipe that is read late"
(sleep 1 && exec cat ../pipe >../report) &
expect 0 "$name" plan -m "$model" --report ../pipe
wait
check "report is complete" sh -c 'tail -c 3 ../report | grep -q "^}"'
rm -f ../pipe ../pipe.png ../stdin

# ---- a closed stdout pipe: no error for text, exit 6 for an image ----
cat >../head_of <<'END'
#!/bin/sh
# head_of FILE SLUICE ARGS...: closes the pipe of stdout at once; writes the exit code to FILE
file=$1
shift
{ sleep 0.3; "$@" 2>../err; echo $? >"$file"; } | head -n 0
END
chmod +x ../head_of
for command in "plan -m $model --json" "plan -m $model" "inspect $model --json --tensors" "inspect $model --tensors" --help \
    "generate --help" "tokenize -m $model -p x" devices "plan -m $model -q --report -"; do
    name="$command | head"
    # shellcheck disable=SC2086
    ../head_of ../rc "$sluice" $command
    check "exit 0, not $(cat ../rc)" [ "$(cat ../rc)" = 0 ]
    check "no error message" lacks ../err 'sluice: '
done
name="image to a closed pipe"
# shellcheck disable=SC2086
../head_of ../rc "$sluice" generate -m "$model" -p x $small -o -
check "exit 6, not $(cat ../rc)" [ "$(cat ../rc)" = 6 ]

# ---- closed stderr and stdout ----
name="stderr closed"
# shellcheck disable=SC2086
"$sluice" generate -m "$model" $size --steps 1 -p x -o a.png 2>&-
check "exit 0" [ $? = 0 ]
check "no message in the image file" [ "$(head -c 4 a.png | od -An -tx1 | tr -d ' \n')" = 89504e47 ]
name="stdout closed"
"$sluice" devices >&- 2>../err
check "exit 6" [ $? = 6 ]
rm -f a.png

# ---- unsafe characters in names: C1 CSI, bidirectional override, bell, invalid UTF-8 ----
csi=$(printf '\302\233') turn=$(printf '\342\200\256') bell=$(printf '\007') bad=$(printf '\377')
plain_output() { # checks that ../out and ../err have no unsafe characters
    for file in ../out ../err; do
        check "$file has no CSI" lacks $file "$csi"
        check "$file has no bidirectional control" lacks $file "$turn"
        check "$file has no control characters" [ "$(tr -d '\n\t' <$file | tr -cd '\001-\037\177' | wc -c)" = 0 ]
        check "$file is UTF-8" sh -c "iconv -f utf-8 -t utf-16 <$file >/dev/null"
    done
}
unsafe="a$csi$turn$bell${bad}b"
expect 3 "missing model with unsafe name" plan -m "../$unsafe"
plain_output
expect 2 "unsafe flag value" generate --steps "$unsafe"
plain_output
expect 2 "unsafe flag name" generate "--$unsafe"
plain_output
cp -r "$model" "../$unsafe"
printf '{"a%sb": "x%sy", "z": "\\u202e\\u009b"}' "$turn" "$csi" >../extra
sed -i "s/^{/{\"a$turn\": \"x$csi\\\\\\\\u202e\",/" "../$unsafe/vae/config.json"
for command in "inspect" "inspect --tensors" "inspect --json" "inspect --json --tensors"; do
    # shellcheck disable=SC2086
    expect 0 "$command of a model with unsafe name" $command "../$unsafe"
    plain_output
done
expect 0 "plan of a model with unsafe name" plan -m "../$unsafe"
plain_output
expect 0 "plan --json of a model with unsafe name" plan -m "../$unsafe" --json
plain_output
draw_model=$model model=../$unsafe
draw 0 "generate with a model with unsafe name" -p "$turn" -o "../o$turn$csi.png" -v
plain_output
model=$draw_model
name="letters of two to four bytes"
expect 3 "$name" plan -m "../caf$(printf '\303\251-\347\213\220-\360\237\246\212')"
check "are printed unchanged" has ../err "$(printf '\303\251-\347\213\220-\360\237\246\212')"
rm -rf ../o*.png "../$unsafe"

# ---- ComfyUI's `models` folder: most subfolders contain only a placeholder file ----
for folder in checkpoints clip clip_vision configs controlnet diffusers diffusion_models embeddings gligen hypernetworks \
    loras model_patches photomaker style_models text_encoders unet upscale_models vae vae_approx audio_encoders \
    latent_upscale_models; do
    mkdir -p comfy/$folder
    : >comfy/$folder/put_${folder}_here
done
cp "$demo"/transformer/* comfy/diffusion_models
cp "$demo"/text_encoder/* comfy/text_encoders
cp "$demo"/vae/* comfy/vae
i=0
while [ $i -lt 300 ]; do # more files than a model may have components
    : >comfy/loras/$i.safetensors
    i=$((i + 1))
done
comfy() { # comfy NAME: plans with the folder
    expect 0 "$1" plan -m comfy --tokenizer "$demo/tokenizer" -p x --json
}
comfy "ComfyUI's models folder"
mkdir comfy/vae/inner && mv comfy/vae/*.* comfy/vae/inner
comfy "VAE in a subfolder"
mv comfy/diffusion_models/*.* comfy/unet
comfy "a transformer in unet"
expect 0 "inspect the folder" inspect --tokenizer "$demo/tokenizer" comfy
rm -r comfy

# ---- the search for components does not follow links to /proc, and refuses / ----
mkdir -p parts/kernel && ln -s /proc parts/kernel/proc
expect 3 "a link to /proc" plan -m parts -p x
check "error message" has ../err "the model has no 'transformer'"
rm -r parts
expect 2 "--model /" plan -m / -p x
check "error message" has ../err 'root of the file system'

# ---- missing models and tokenizers: errors with the download command ----
expect 3 "repository name instead of a folder" plan -m Z-Image-Turbo -p x
check "error has the download command" has ../err 'hf download Tongyi-MAI/Z-Image-Turbo --local-dir Z-Image-Turbo'
expect 3 "missing file of a known repository" plan -m ../sd_xl_base_1.0.safetensors -p x
check "error has the download command" has ../err 'hf download stabilityai/stable-diffusion-xl-base-1.0 sd_xl_base_1.0.safetensors'
expect 3 "unknown name" plan -m no_model -p x
check "error names sluice families" has ../err 'sluice families'
flux=$demo/../../test/golden/flux_a/model
for part in transformer vae text_encoder text_encoder_2; do
    mkdir -p flux/of_$part
    cp "$flux"/$part/* flux/of_$part
done
for tokenizer in "" "--tokenizer $flux/tokenizer" "--tokenizer $flux/tokenizer_2"; do
    # shellcheck disable=SC2086
    expect 3 "Flux with tokenizers '$tokenizer'" plan -m flux -p x $tokenizer
    check "error has the download command of the tokenizers" has ../err "tokenizer DIR with tokenizer/ and tokenizer_2/ in DIR: hf download black-forest"
done
mkdir both && cp -r "$flux/tokenizer" "$flux/tokenizer_2" both
expect 0 "folder with both tokenizers" plan -m flux -p x --tokenizer both --json
rm -r flux both

# ---- links to a component are one file, copies are two ----
mkdir -p parts/drawing parts/text parts/vae
cp "$demo"/transformer/* parts/drawing
cp "$demo"/text_encoder/* parts/text
cp "$demo"/vae/* parts/vae
parts() { # parts CODE NAME: plans with the folder
    expect "$1" "$2" plan -m parts --tokenizer "$demo/tokenizer" -p x --json
}
parts 0 "folder of components"
for part in drawing text vae; do
    file=$(cd parts/$part && ls ./*.safetensors)
    ln parts/$part/"$file" parts/$part/another.safetensors
    parts 0 "a hard link in $part"
    ln -sf "$file" parts/$part/another.safetensors
    parts 0 "a link in $part"
    rm parts/$part/another.safetensors
done
ln -s . parts/itself
parts 0 "link to the folder itself"
rm parts/itself
ln -s "$PWD/parts/vae" ../vae
expect 0 "--vae by a symbolic link" plan -m parts --vae ../vae --tokenizer "$demo/tokenizer" -p x
cp "parts/vae/$file" parts/vae/another.safetensors
parts 3 "copy of a component"
check "error message" has ../err 'another.safetensors'
rm -rf parts ../vae

# ---- missing current folder, missing output folder ----
mkdir ../gone
name="deleted current folder"
# shellcheck disable=SC2086
(cd ../gone && rmdir ../gone && exec "$sluice" generate -m "$model" -p x $small -o x.png 2>../err >../out)
code=$?
check "exit 6, not $code" [ $code = 6 ]
check "error message" has ../err '^sluice: .*the current folder no longer exists (x.png)$'
mkdir ../gone
(cd ../gone && rmdir ../gone && exec "$sluice" inspect . 2>../err >../out)
code=$?
check "inspect: exit 3, not $code" [ $code = 3 ]
check "inspect: note" has ../err '^note: the current folder no longer exists$'
# shellcheck disable=SC2086
expect 6 "output in a missing folder" generate -m "$model" -p x $small -o not_there/x.png
check "error message" has ../err '^sluice: .*the folder not_there does not exist; create it first (not_there/x.png)$'

# ---- a run falls back to the CPU with a note, but not for --device cpu or -q ----
built=$(sed -n 's/^exec "\(.*\)" "\$@"$/\1/p' "$sluice")
if "$built" devices | grep -q '^cuda: '; then
    cpu_line() { # cpu_line ARGS...: the first line of stderr
        "$built" generate -m "$model" -p x --no-decode --report ../cpu.json "$@" 2>&1 >/dev/null | head -n 1
    }
    reason=$("$built" devices | sed -n 's/^cuda: //p')
    name="a run on the CPU"
    # shellcheck disable=SC2086
    check "first line of stderr" [ "$(cpu_line $small)" = "running on the CPU, without a GPU: $reason" ]
    # shellcheck disable=SC2086
    check "no note with --device cpu" [ "$(cpu_line $small --device cpu)" = "seed 0" ]
    # shellcheck disable=SC2086
    check "no note with -q" [ -z "$(cpu_line $small -q)" ]
fi

# ---- unreadable files are not reported as missing ----
# Runs as user 65534, because root can read every file; the files are in /tmp, where that user can reach them.
public=$(mktemp -d /tmp/sluice-readable-XXXXXX) || exit 2
chmod 755 "$public"
built=$(sed -n 's/^exec "\(.*\)" "\$@"$/\1/p' "$sluice")
cp "$built" "$public/sluice" && cp -r "$demo" "$public/model" && chmod -R a+rX "$public"
as_user="setpriv --reuid=65534 --regid=65534 --clear-groups"
[ "$(id -u)" = 0 ] || as_user=
unreadable() { # unreadable NAME PATTERN ARGS...: exit 3 and "Permission denied" for the file of PATTERN
    name=$1 pattern=$2
    shift 2
    (cd / && $as_user "$public/sluice" "$@") >../out 2>../err
    code=$?
    check "exit 3, not $code" [ $code = 3 ]
    check "error: permission denied" has ../err "^sluice: .*$pattern.*Permission denied"
    check "error does not say missing" lacks ../err 'no such\|missing'
    chmod -R u+rwX,a+rX "$public"
}
(cd / && $as_user "$public/sluice" plan -m "$public/model" -q) >../out 2>../err
name="readable model"
check "exit 0, not $?" [ $? = 0 ]
mkdir "$public/parts" "$public/parts/inner"
cp "$demo/vae/diffusion_pytorch_model.safetensors" "$public/parts/inner/vae.safetensors"
chmod 000 "$public/model"
unreadable "unreadable model folder" "$public/model" plan -m "$public/model"
chmod 000 "$public/model/transformer"
unreadable "unreadable component folder" "$public/model/transformer" plan -m "$public/model"
chmod 000 "$public/model/vae/diffusion_pytorch_model.safetensors"
unreadable "unreadable weight file" "diffusion_pytorch_model.safetensors" plan -m "$public/model"
chmod 644 "$public/model"
unreadable "folder without search permission" "$public/model" plan -m "$public/model"
chmod 000 "$public"/model/model_index.json
unreadable "unreadable model_index.json" "model_index.json" plan -m "$public/model"
chmod 000 "$public"/model/tokenizer
unreadable "unreadable tokenizer" "tokenizer" plan -m "$public/model"
chmod 000 "$public"/parts/inner
unreadable "unreadable subfolder" "parts/inner" plan -m "$public/parts"
chmod 700 "$public/parts" && [ -z "$as_user" ] || chown 0 "$public/parts"
rm -rf "$public"

check "no file is left" empty_folder .

echo "$passed passed, $failed failed"
[ $failed = 0 ]
