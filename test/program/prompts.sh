#!/bin/sh
# Prompts from files and from stdin, as editors and scripts write them.
#
# usage: prompts.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/harness.sh"

fox=$(printf 'a red fox\nin the snow')
# Of a picture: its text tells what the model was asked.
prompt_is() { # prompt_is NAME TEXT ARGS...: drawn so, the picture says that prompt
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
prompt_is "as it is" "$fox" -p @../prompt
draw 0 "as typed" -p "$fox" -o ../plain.png
same_picture() { # same_picture NAME ARGS...: the file of what was typed
    same_name=$1
    shift
    draw 0 "$same_name" -o a.png "$@"
    check "the same file" cmp -s a.png ../plain.png
    rm -f a.png
}
file '\357\273\277a red fox\nin the snow'
same_picture "a byte order mark" -p @../prompt
file 'a red fox\r\nin the snow'
same_picture "CRLF" -p @../prompt
file 'a red fox\nin the snow\n'
same_picture "a final newline" -p @../prompt
file '\357\273\277a red fox\r\nin the snow\r\n'
same_picture "all of them" -p @../prompt
same_picture "stdin" -p @- <../prompt
name="a pipe"
# shellcheck disable=SC2086
cat ../prompt | "$sluice" generate -m "$model" $size --steps 2 -p @- -o a.png 2>../err
check "the same file" cmp -s a.png ../plain.png
rm -f a.png
file 'a red fox\nin the snow\n\n'
draw 0 "two final newlines" -p @../prompt -o a.png
check "one of them stays" sh -c '! cmp -s a.png ../plain.png'
file 'a\rfox'
prompt_is "CR alone stays" "$(printf 'a\rfox')" -p @../prompt
file ''
prompt_is "an empty file" "" -p @../prompt
file '\n'
prompt_is "a lone newline" "" -p @../prompt
file '\357\273\277'
prompt_is "a lone mark" "" -p @../prompt
name="an empty pipe"
: | "$sluice" tokenize -m "$model" -p @- >../out.pipe 2>../err
expect 0 "an empty text" tokenize -m "$model" -p ""
check "the same ids" cmp -s ../out ../out.pipe
prompt_is "an @" "@fox" -p @@fox
prompt_is "an @ alone" "@" -p @@
echo other >../@fox
prompt_is "no file is read" "@../@fox" -p @@../@fox

draw 0 "a negative prompt as typed" -p x -n "$fox" --cfg-scale 2 -o ../plain.png
file '\357\273\277a red fox\r\nin the snow\r\n'
same_picture "of a file" -p x -n @../prompt --cfg-scale 2
same_picture "of stdin" -p x -n @- --cfg-scale 2 <../prompt
draw 2 "both of stdin" -p @- -n @- -o a.png </dev/null
check "says so" has ../err 'both prompts are read from stdin'
expect 3 "no such file" generate -m "$model" -p @ -o a.png
printf '@' >../prompt
expect 2 "a text is no file to be spared" generate -m "$model" -p @@../prompt --report ../prompt --steps 0
check "the report is written" has ../prompt '"exit"'

# ---- an editing pipeline's folder says what it is also beside another file of its transformer ----
edits=$(dirname "$(dirname "$model")")/qwen_edit/model
expect 0 "as the folder names it" tokenize -m "$edits" -p "a red fox" --json
cp ../out ../named
expect 0 "with a transformer of its own" tokenize -m "$edits" --diffusion-model "$edits/transformer" -p "a red fox" --json
check "the same" cmp -s ../out ../named

# ---- tokenize: a file's bytes as they are ----
file 'a red fox\r\n'
expect 0 "tokenize a file" tokenize -m "$model" -p @../prompt
cp ../out ../out.file
expect 0 "plain ids" tokenize --tokenizer "$model/tokenizer" -p "a red fox" --json
cp ../out ../plain
expect 0 "plain ids of a model's folder" tokenize --tokenizer "$model" -p "a red fox" --json
check "the same" cmp -s ../out ../plain
expect 0 "tokenize what a model draws" tokenize -m "$model" -p "a red fox"
check "other ids" sh -c '! cmp -s ../out ../out.file'
expect 0 "tokenize stdin" tokenize -m "$model" -p @- <../prompt
check "the same ids" cmp -s ../out ../out.file
# ---- words that weigh, layers of CLIP ----
refuses() { # refuses PATTERN ARGS...
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
expect 0 "a small UNet" bench checkpoint sd15 "$unet" --dims "unet0=32,unet1=32,unet2=32,unet3=32,unet_heads=2,unet_text=32,\
pooled=32,clip_heads=2,clip_layers=3,clip_vocabulary=600,clip_ff=48,vae0=32,vae1=32,vae2=32,vae3=32,dtype=f16"
by_unet() { # by_unet NAME ARGS...: draws ../NAME.png
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
for same in even last; do check "$same is plain" cmp -s ../plain.png "../$same.png"; done
for other in weighed text skipped; do check "$other is not plain" sh -c "! cmp -s ../plain.png ../$other.png"; done
check "text is not weighed" sh -c '! cmp -s ../text.png ../weighed.png'
check "no warning" lacks ../err '^warning: '
expect 0 "the picture says it" generate -m "$unet" -W 64 -H 64 --steps 1 -p a --clip-skip 2 --prompt-weights off -o a.png
check "as the web UI does" sh -c "tr '\\0' '\\n' <a.png | grep -q 'Clip skip: 2, Emphasis: None, '"
expect 0 "what the encoder sees" tokenize -m "$unet" -p 'a (red:1.5) fox BREAK b'
check "two windows" has ../out '^text_encoder: 154 tokens in windows of 77$'
check "weights" has ../out '^weights 1 1 1.5 '
expect 2 "a layer that there is not" generate -m "$unet" -p x --clip-skip 4 -o a.png
check "which there are" has ../err 'expected 1 to 3'
rm -rf "$unet" ../@fox a.png
check "nothing was left" empty_folder .

echo "$passed passed, $failed failed"
[ $failed = 0 ]
