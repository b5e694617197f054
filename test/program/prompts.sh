#!/bin/sh
# Prompts from files, stdin and the command line; tokenize; --prompt-weights and --clip-skip.
#
# usage: prompts.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/harness.sh"

fox=$(printf 'a red fox\nin the snow')
prompt_is() { # prompt_is NAME TEXT ARGS...: generates; the image's metadata must contain exactly this prompt
    prompt_name=$1 text=$2
    shift 2
    draw 0 "$prompt_name" --steps=2 -o a.png "$@"
    printf '%s\nSteps: ' "$text" >../wanted
    tr '\0' '\n' <a.png | sed -n '/tEXtparameters$/,/^.*Steps: /p' | sed '1d; s/^Steps: .*/Steps: /' | tr -d '\n' >../got
    tr -d '\n' <../wanted >../wanted.line
    check "the prompt is $text" cmp -s ../got ../wanted.line
    rm -f a.png
}
file() { printf "$1" >../prompt; }

file 'a red fox\nin the snow'
prompt_is "prompt from a file" "$fox" -p @../prompt
draw 0 "prompt on the command line" -p "$fox" -o ../plain.png
same_image() { # same_image NAME ARGS...: generates; the file must equal ../plain.png
    same_name=$1
    shift
    draw 0 "$same_name" -o a.png "$@"
    check "same file" cmp -s a.png ../plain.png
    rm -f a.png
}
file '\357\273\277a red fox\nin the snow'
same_image "UTF-8 byte order mark" -p @../prompt
file 'a red fox\r\nin the snow'
same_image "CRLF" -p @../prompt
file 'a red fox\nin the snow\n'
same_image "final newline" -p @../prompt
file '\357\273\277a red fox\r\nin the snow\r\n'
same_image "byte order mark, CRLF and final newline" -p @../prompt
same_image "stdin" -p @- <../prompt
name="a pipe"
# shellcheck disable=SC2086
cat ../prompt | "$sluice" generate -m "$model" $size --steps 2 -p @- -o a.png 2>../err
check "same file" cmp -s a.png ../plain.png
rm -f a.png
file 'a red fox\nin the snow\n\n'
draw 0 "two final newlines" -p @../prompt -o a.png
check "one newline is kept" sh -c '! cmp -s a.png ../plain.png'
file 'a\rfox'
prompt_is "CR without LF is kept" "$(printf 'a\rfox')" -p @../prompt
file ''
prompt_is "an empty file" "" -p @../prompt
file '\n'
prompt_is "file with one newline" "" -p @../prompt
file '\357\273\277'
prompt_is "file with only a byte order mark" "" -p @../prompt
name="an empty pipe"
: | "$sluice" tokenize -m "$model" -p @- >../out.pipe 2>../err
expect 0 "tokenize an empty prompt" tokenize -m "$model" -p ""
check "same ids" cmp -s ../out ../out.pipe
prompt_is "@@fox is the prompt @fox" "@fox" -p @@fox
prompt_is "@@ is the prompt @" "@" -p @@
echo other >../@fox
prompt_is "@@ reads no file" "@../@fox" -p @@../@fox

draw 0 "negative prompt on the command line" -p x -n "$fox" --cfg-scale 2 -o ../plain.png
file '\357\273\277a red fox\r\nin the snow\r\n'
same_image "negative prompt from a file" -p x -n @../prompt --cfg-scale 2
same_image "negative prompt from stdin" -p x -n @- --cfg-scale 2 <../prompt
draw 2 "both prompts from stdin" -p @- -n @- -o a.png </dev/null
check "error message" has ../err 'both prompts are read from stdin'
expect 3 "@ without a file name" generate -m "$model" -p @ -o a.png
printf '@' >../prompt
expect 2 "--report to a file whose name is in an @@ prompt" generate -m "$model" -p @@../prompt --report ../prompt --steps 0
check "the report is written" has ../prompt '"exit"'

# ---- --diffusion-model does not change the pipeline that the model folder names ----
edits=$(dirname "$(dirname "$model")")/qwen_edit/model
expect 0 "tokenize with the model folder" tokenize -m "$edits" -p "a red fox" --json
cp ../out ../named
expect 0 "tokenize with another transformer file" tokenize -m "$edits" --diffusion-model "$edits/transformer" -p "a red fox" --json
check "same ids" cmp -s ../out ../named

# ---- tokenize ----
file 'a red fox\r\n'
expect 0 "tokenize a file" tokenize -m "$model" -p @../prompt
cp ../out ../out.file
expect 0 "tokenize --tokenizer DIR/tokenizer" tokenize --tokenizer "$model/tokenizer" -p "a red fox" --json
cp ../out ../plain
expect 0 "tokenize --tokenizer DIR" tokenize --tokenizer "$model" -p "a red fox" --json
check "same ids" cmp -s ../out ../plain
expect 0 "tokenize with the model's template" tokenize -m "$model" -p "a red fox"
check "other ids" sh -c '! cmp -s ../out ../out.file'
expect 0 "tokenize stdin" tokenize -m "$model" -p @- <../prompt
check "same ids" cmp -s ../out ../out.file
# ---- --prompt-weights and --clip-skip ----
refuses() { # refuses PATTERN ARGS...: generate fails with exit code 2 and this message
    pattern=$1
    shift
    draw 2 "refused: $*" -p x -o a.png "$@"
    check "message has $pattern" has ../err "^sluice: .*$pattern"
}
refuses '--clip-skip.*expected a model that reads the hidden states of a CLIP' --clip-skip 2
refuses '--clip-skip' --clip-skip 0
refuses '--prompt-weights on.*expected off' --prompt-weights on
refuses '--prompt-weights.*on|off' --prompt-weights perhaps
unet=../unet
expect_dev 0 "write a small UNet" checkpoint sd15 "$unet" --dims "unet0=32,unet1=32,unet2=32,unet3=32,unet_heads=2,unet_text=32,\
pooled=32,clip_heads=2,clip_layers=3,clip_vocabulary=600,clip_ff=48,vae0=32,vae1=32,vae2=32,vae3=32,dtype=f16"
by_unet() { # by_unet NAME ARGS...: generates ../NAME.png with the UNet
    unet_name=$1
    shift
    expect 0 "$unet_name" generate -m "$unet" -W 64 -H 64 --steps 1 -o "../$unet_name.png" --no-metadata "$@"
}
by_unet plain -p 'a red fox'
by_unet even -p 'a (red:1) fox' --prompt-weights on
by_unet weighed -p 'a (red:1.5) fox'
by_unet text -p 'a (red:1.5) fox' --prompt-weights off
by_unet last -p 'a red fox' --clip-skip 1
by_unet skipped -p 'a red fox' --clip-skip 2
for same in even last; do check "$same.png equals plain.png" cmp -s ../plain.png "../$same.png"; done
for other in weighed text skipped; do check "$other.png differs from plain.png" sh -c "! cmp -s ../plain.png ../$other.png"; done
check "text.png differs from weighed.png" sh -c '! cmp -s ../text.png ../weighed.png'
check "no warning" lacks ../err '^warning: '
expect 0 "image with --clip-skip and --prompt-weights" generate -m "$unet" -W 64 -H 64 --steps 1 -p a --clip-skip 2 --prompt-weights off -o a.png
check "metadata as AUTOMATIC1111 writes it" sh -c "tr '\\0' '\\n' <a.png | grep -q 'Clip skip: 2, Emphasis: None, '"
expect 0 "tokenize with BREAK and weights" tokenize -m "$unet" -p 'a (red:1.5) fox BREAK b'
check "two windows of 77 tokens" has ../out '^text_encoder: 154 tokens in windows of 77$'
check "token weights" has ../out '^weights 1 1 1.5 '
expect 2 "--clip-skip above the number of layers" generate -m "$unet" -p x --clip-skip 4 -o a.png
check "error names the valid range" has ../err 'expected 1 to 3'
rm -rf "$unet" ../@fox a.png
check "no file is left" empty_folder .

echo "$passed passed, $failed failed"
[ $failed = 0 ]
