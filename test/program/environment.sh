#!/bin/sh
# The program between terminals, pipes and file systems: a first signal ends whatever waits, a closed pipe is no error,
# names out of files do not speak to the terminal, links are not other files, and what may not be read is not missing.
#
# usage: environment.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/harness.sh"

# ---- a pipe that nobody reads or writes ----
mkfifo ../pipe ../pipe.png
waits() { # waits NAME SIGNAL ARGS...: it does not end by itself, and the first signal ends it
    name="$1, SIG$2" signal=$2
    shift 2
    "$sluice" "$@" <"${input:-/dev/null}" >../out 2>../err &
    pid=$!
    sleep 1
    check "it waits" kill -0 $pid
    kill -$signal $pid
    (sleep 3 && kill -KILL $pid 2>/dev/null) &
    guard=$!
    wait $pid
    code=$?
    kill $guard
    wait $guard 2>/dev/null
    check "exit 130, not $code" [ $code = 130 ]
    check "the last line" last_line_rule 130
    check "nothing else is left" empty_folder .
}
small="-W 32 -H 32 --steps 1"
for signal in INT TERM; do
    # shellcheck disable=SC2086
    waits "a report that nobody reads" $signal generate -m "$model" -p x $small --no-decode --report ../pipe
    # shellcheck disable=SC2086
    waits "a picture that nobody reads" $signal generate -m "$model" -p x $small -o ../pipe.png
    waits "a plan's report that nobody reads" $signal plan -m "$model" --report ../pipe
done
sleep 20 >../pipe & # a writer with nothing to say
writer=$!
waits "a plan that nobody writes" INT generate -m "$model" -p x $small -o a.png --plan ../pipe
waits "a prompt that nobody writes" TERM generate -m "$model" $small -o a.png -p @../pipe
kill $writer
mkfifo ../stdin
sleep 20 >../stdin &
writer=$!
input=../stdin
waits "a plan from stdin that nobody writes" INT generate -m "$model" -p x $small -o a.png --plan -
waits "a prompt from stdin that nobody writes" INT generate -m "$model" $small -o a.png -p @-
input=
kill $writer
name="a report that is read late"
(sleep 1 && exec cat ../pipe >../report) &
expect 0 "$name" plan -m "$model" --report ../pipe
wait
check "comes whole" sh -c 'tail -c 3 ../report | grep -q "^}"'
rm -f ../pipe ../pipe.png ../stdin

# ---- a pipe that is closed: who reads has read enough ----
cat >../head_of <<'END'
#!/bin/sh
# head_of FILE SLUICE ARGS...: its first line is read; its code goes to FILE
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
    check "nothing is said of it" lacks ../err 'sluice: '
done
name="a picture into a closed pipe"
# shellcheck disable=SC2086
../head_of ../rc "$sluice" generate -m "$model" -p x $small -o -
check "exit 6, not $(cat ../rc)" [ "$(cat ../rc)" = 6 ]

# ---- closed standard files ----
name="stderr closed"
# shellcheck disable=SC2086
"$sluice" generate -m "$model" $size --steps 1 -p x -o a.png 2>&-
check "exit 0" [ $? = 0 ]
check "no message in the picture" [ "$(head -c 4 a.png | od -An -tx1 | tr -d ' \n')" = 89504e47 ]
name="stdout closed"
"$sluice" devices >&- 2>../err
check "exit 6" [ $? = 6 ]
rm -f a.png

# ---- names from files and flags: CSI as C1, a direction that is turned round, a line's end, no UTF-8 ----
csi=$(printf '\302\233') turn=$(printf '\342\200\256') bell=$(printf '\007') bad=$(printf '\377')
plain_output() { # of ../out and ../err, but for line ends
    for file in ../out ../err; do
        check "$file is plain" lacks $file "$csi"
        check "$file keeps directions" lacks $file "$turn"
        check "$file has no control" [ "$(tr -d '\n\t' <$file | tr -cd '\001-\037\177' | wc -c)" = 0 ]
        check "$file is UTF-8" sh -c "iconv -f utf-8 -t utf-16 <$file >/dev/null"
    done
}
nasty="a$csi$turn$bell${bad}b"
expect 3 "a model of such a name" plan -m "../$nasty"
plain_output
expect 2 "a value" generate --steps "$nasty"
plain_output
expect 2 "a flag" generate "--$nasty"
plain_output
cp -r "$model" "../$nasty"
printf '{"a%sb": "x%sy", "z": "\\u202e\\u009b"}' "$turn" "$csi" >../extra
sed -i "s/^{/{\"a$turn\": \"x$csi\\\\\\\\u202e\",/" "../$nasty/vae/config.json"
for command in "inspect" "inspect --tensors" "inspect --json" "inspect --json --tensors"; do
    # shellcheck disable=SC2086
    expect 0 "$command of such a model" $command "../$nasty"
    plain_output
done
expect 0 "its plan" plan -m "../$nasty"
plain_output
expect 0 "its plan as JSON" plan -m "../$nasty" --json
plain_output
draw_model=$model model=../$nasty
draw 0 "its picture" -p "$turn" -o "../o$turn$csi.png" -v
plain_output
model=$draw_model
name="letters of every length stay"
expect 3 "$name" plan -m "../caf$(printf '\303\251-\347\213\220-\360\237\246\212')"
check "as they are" has ../err "$(printf '\303\251-\347\213\220-\360\237\246\212')"
rm -rf ../o*.png "../$nasty"

# ---- ComfyUI's `models` folder: most of its subfolders have nothing but a placeholder ----
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
while [ $i -lt 300 ]; do # more than may be components
    : >comfy/loras/$i.safetensors
    i=$((i + 1))
done
comfy() { # comfy NAME
    expect 0 "$1" plan -m comfy --tokenizer "$demo/tokenizer" -p x --json
}
comfy "ComfyUI's folders"
mkdir comfy/vae/inner && mv comfy/vae/*.* comfy/vae/inner
comfy "a folder with subfolders only"
mv comfy/diffusion_models/*.* comfy/unet
comfy "a transformer in unet"
expect 0 "what is in it" inspect --tokenizer "$demo/tokenizer" comfy
rm -r comfy

# ---- searches that must not leave the model ----
mkdir -p parts/kernel && ln -s /proc parts/kernel/proc
expect 3 "a link to /proc" plan -m parts -p x
check "finds no model" has ../err "the model has no 'transformer'"
rm -r parts
expect 2 "the root of the file system" plan -m / -p x
check "says so" has ../err 'root of the file system'

# ---- how to get what is missing ----
expect 3 "a repository's name" plan -m Z-Image-Turbo -p x
check "says how to get it" has ../err 'hf download Tongyi-MAI/Z-Image-Turbo --local-dir Z-Image-Turbo'
expect 3 "a file of a repository" plan -m ../sd_xl_base_1.0.safetensors -p x
check "says how to get it" has ../err 'hf download stabilityai/stable-diffusion-xl-base-1.0 sd_xl_base_1.0.safetensors'
expect 3 "another name" plan -m no_model -p x
check "says where models are listed" has ../err 'sluice families'
flux=$demo/../../test/golden/flux_a/model
for part in transformer vae text_encoder text_encoder_2; do
    mkdir -p flux/of_$part
    cp "$flux"/$part/* flux/of_$part
done
for given in "" "--tokenizer $flux/tokenizer" "--tokenizer $flux/tokenizer_2"; do
    # shellcheck disable=SC2086
    expect 3 "Flux with tokenizers '$given'" plan -m flux -p x $given
    check "says which folders" has ../err "tokenizer DIR with tokenizer/ and tokenizer_2/ in DIR: hf download black-forest"
done
mkdir both && cp -r "$flux/tokenizer" "$flux/tokenizer_2" both
expect 0 "and they serve" plan -m flux -p x --tokenizer both --json
rm -r flux both

# ---- one file under several names ----
mkdir -p parts/drawing parts/text parts/vae
cp "$demo"/transformer/* parts/drawing
cp "$demo"/text_encoder/* parts/text
cp "$demo"/vae/* parts/vae
parts() { # parts CODE NAME
    expect "$1" "$2" plan -m parts --tokenizer "$demo/tokenizer" -p x --json
}
parts 0 "parts"
for part in drawing text vae; do
    file=$(cd parts/$part && ls ./*.safetensors)
    ln parts/$part/"$file" parts/$part/another.safetensors
    parts 0 "a hard link in $part"
    ln -sf "$file" parts/$part/another.safetensors
    parts 0 "a link in $part"
    rm parts/$part/another.safetensors
done
ln -s . parts/itself
parts 0 "a folder in itself"
rm parts/itself
ln -s "$PWD/parts/vae" ../vae
expect 0 "a flag's link to one of them" plan -m parts --vae ../vae --tokenizer "$demo/tokenizer" -p x
cp "parts/vae/$file" parts/vae/another.safetensors
parts 3 "a copy is another file"
check "says so" has ../err 'another.safetensors'
rm -rf parts ../vae

# ---- a folder that is gone ----
mkdir ../gone
name="a deleted current folder"
# shellcheck disable=SC2086
(cd ../gone && rmdir ../gone && exec "$sluice" generate -m "$model" -p x $small -o x.png 2>../err >../out)
code=$?
check "exit 6, not $code" [ $code = 6 ]
check "says so" has ../err '^sluice: .*the current folder no longer exists (x.png)$'
# shellcheck disable=SC2086
expect 6 "a folder that is not there" generate -m "$model" -p x $small -o not_there/x.png
check "says so" has ../err '^sluice: .*the folder not_there does not exist; create it first (not_there/x.png)$'

# ---- a run without a GPU says so, unless that was asked for ----
built=$(sed -n 's/^exec "\(.*\)" "\$@"$/\1/p' "$sluice")
if "$built" devices | grep -q '^cuda: '; then
    cpu_line() { # cpu_line ARGS...: the first line of stderr of a run
        "$built" generate -m "$model" -p x --no-decode "$@" 2>&1 >/dev/null | head -n 1
    }
    reason=$("$built" devices | sed -n 's/^cuda: //p')
    name="a run on the CPU"
    # shellcheck disable=SC2086
    check "is the first line" [ "$(cpu_line $small)" = "running on the CPU, without a GPU: $reason" ]
    # shellcheck disable=SC2086
    check "not for --device cpu" [ "$(cpu_line $small --device cpu)" = "seed 0" ]
    # shellcheck disable=SC2086
    check "not with -q" [ -z "$(cpu_line $small -q)" ]
fi

# ---- what may not be read is not missing ----
# As somebody who is not root, in a folder that everybody can reach.
public=$(mktemp -d /tmp/sluice-readable-XXXXXX) || exit 2
chmod 755 "$public"
built=$(sed -n 's/^exec "\(.*\)" "\$@"$/\1/p' "$sluice")
cp "$built" "$public/sluice" && cp -r "$demo" "$public/model" && chmod -R a+rX "$public"
somebody="setpriv --reuid=65534 --regid=65534 --clear-groups"
[ "$(id -u)" = 0 ] || somebody=
unreadable() { # unreadable NAME PATTERN ARGS...
    name=$1 pattern=$2
    shift 2
    (cd / && $somebody "$public/sluice" "$@") >../out 2>../err
    code=$?
    check "exit 3, not $code" [ $code = 3 ]
    check "it may not be read" has ../err "^sluice: .*$pattern.*Permission denied"
    check "is not said to be missing" lacks ../err 'no such\|missing'
    chmod -R u+rwX,a+rX "$public"
}
(cd / && $somebody "$public/sluice" plan -m "$public/model" -q) >../out 2>../err
name="readable"
check "exit 0, not $?" [ $? = 0 ]
mkdir "$public/parts" "$public/parts/inner"
cp "$demo/vae/diffusion_pytorch_model.safetensors" "$public/parts/inner/vae.safetensors"
chmod 000 "$public/model"
unreadable "a model's folder" "$public/model" plan -m "$public/model"
chmod 000 "$public/model/transformer"
unreadable "a part's folder" "$public/model/transformer" plan -m "$public/model"
chmod 000 "$public/model/vae/diffusion_pytorch_model.safetensors"
unreadable "a file" "diffusion_pytorch_model.safetensors" plan -m "$public/model"
chmod 644 "$public/model"
unreadable "a folder that may be listed and no more" "$public/model" plan -m "$public/model"
chmod 000 "$public"/model/model_index.json
unreadable "the pipeline's file" "model_index.json" plan -m "$public/model"
chmod 000 "$public"/model/tokenizer
unreadable "the tokenizer" "tokenizer" plan -m "$public/model"
chmod 000 "$public"/parts/inner
unreadable "a folder of parts" "parts/inner" plan -m "$public/parts"
chmod 700 "$public/parts" && [ -z "$somebody" ] || chown 0 "$public/parts"
rm -rf "$public"

# ---- little stack: looking works, what plans says what it lacks ----
on_little() { # on_little KIB CODE ARGS...: with that much stack
    kib=$1 want=$2 name="a stack of $1 KiB: $3 $4"
    shift 2
    (ulimit -s "$kib" && exec "$sluice" "$@") >../out 2>../err
    code=$?
    check "exit $want, not $code" [ $code = "$want" ]
    check "the last line" last_line_rule $code
    [ $code = 0 ] || check "says so" has ../err 'stack is too small.*KiB left, expected .*ulimit -s'
}
for command in --help devices "inspect $demo --tensors" "tokenize -m $demo -p x" "convert $demo/vae -o v.gguf"; do
    # shellcheck disable=SC2086
    on_little 256 0 $command
    [ "$command" = --help ] || on_little 64 2 $command
done
rm -f v.gguf
for command in "plan -m $demo" "generate -m $demo -p x" "bench ops" "bench block" "bench stream" "bench load -m $demo" \
    "bench checkpoint zimage ck"; do
    # shellcheck disable=SC2086
    on_little 256 2 $command
done
check "nothing was left" empty_folder .

echo "$passed passed, $failed failed"
[ $failed = 0 ]
