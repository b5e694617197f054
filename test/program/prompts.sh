#!/bin/sh
# Prompts from files and from stdin, as editors and scripts write them.
#
# usage: prompts.sh SLUICE MODEL_DIR [SCRATCH_DIR]
. "$(dirname "$0")/program.sh"

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
check "says so" has ../err 'both prompts from stdin'
expect 3 "no such file" generate -m "$model" -p @ -o a.png
printf '@' >../prompt
expect 2 "a text is no file to be spared" generate -m "$model" -p @@../prompt --report ../prompt --steps 0
check "the report is written" has ../prompt '"exit"'

# ---- tokenize: a file's bytes as they are ----
file 'a red fox\r\n'
expect 0 "tokenize a file" tokenize -m "$model" -p @../prompt
cp ../out ../out.file
expect 0 "tokenize what a model draws" tokenize -m "$model" -p "a red fox"
check "other ids" sh -c '! cmp -s ../out ../out.file'
expect 0 "tokenize stdin" tokenize -m "$model" -p @- <../prompt
check "the same ids" cmp -s ../out ../out.file
rm -f ../@fox a.png
check "nothing was left" empty_folder .

echo "$passed passed, $failed failed"
[ $failed = 0 ]
