#!/bin/sh
# sluice convert: images from converted files, merged LoRAs, plan --types, flags, exit codes, interrupted runs.
#
# usage: convert.sh SLUICE MODEL_DIR [SCRATCH_DIR]   (MODEL_DIR is not used: a model is generated)
. "$(dirname "$0")/harness.sh"

# Rows must be multiples of the quantisers' block sizes; those of the fixtures are not.
rm -rf ../made
expect_dev 0 "write a model" checkpoint zimage ../made -q --dims heads=2,axis0=32,axis1=48,axis2=48,layers=2,refiners=1,hidden=256,text_heads=2,text_key_heads=1,text_head_dim=64,text_ff=512,text_layers=2,vocabulary=400,vae0=32,vae1=32,vae2=32,vae3=32,vae_groups=8,latent_channels=4
model=$scratch/made
transformer=$model/transformer

alike() { # alike "bytes":N,"seconds":S,"fits":true OTHER: equal within 1 %
    echo "$1,$2" | tr -d '"' | awk -F '[:,]' 'function near(a, b) { return a > 0 && a <= 1.01 * b && b <= 1.01 * a }
        END { exit !(near($2, $8) && near($4, $10) && $6 == "true" && $12 == "true") }'
}

# ---- same image as with --type ----
for type in q8_0 q4_k f8_e4m3; do
    form=gguf
    [ $type = f8_e4m3 ] && form=safetensors
    expect 0 "convert to $type" convert "$transformer" -o "t.$form" --type $type
    check "summary line" has ../out "^wrote t.$form: zimage, [0-9]* tensors, [0-9.]* [KM]iB of "
    check "lists types" has ../out "^  $(echo $type | tr a-z A-Z) "
    expect 0 "convert the encoder to $type" convert "$model/text_encoder" -o "l.$form" --type $type -q
    check "-q prints nothing on stdout" [ ! -s ../out ]
    check "-q prints nothing on stderr" [ ! -s ../err ]
    draw 0 "generate --type $type" -p "a red fox" --type $type --no-metadata -o type.png --save-latent type.safetensors
    draw 0 "generate from the $type files" -p "a red fox" --diffusion-model "t.$form" --llm "l.$form" --no-metadata -o file.png \
        --save-latent file.safetensors
    check "same image" cmp -s type.png file.png
    check "same latent" cmp -s type.safetensors file.safetensors
    # plan --types predicts the size and time of converted files, except that GGUF keeps vectors in f32.
    expect 0 "plan --types" plan -m "$model" $size --max-ram 1G --types --json
    planned=$(tr -d ' \n' <../out | sed "s/.*\"type\":\"$type\",\"convert\":{\([^}]*\)}.*/\1/")
    expect 0 "plan the $type files" plan -m "$model" $size --max-ram 1G --types --json \
        --diffusion-model "t.$form" --llm "l.$form"
    had=$(tr -d ' \n' <../out | sed 's/.*"types":\[{\([^}]*\),"type":null.*/\1/')
    check "size and time planned for --type ($planned) match the files ($had)" alike "$planned" "$had"
    rm -f ./*
done

# ---- int8_convrot: converting it to f32 does not change the image ----
expect 0 "convert to int8_convrot" convert "$transformer" -o t.safetensors --type int8_convrot
check "lists types" has ../out "^  I8_ROT256 "
expect 0 "convert int8_convrot to f32" convert t.safetensors -o numbers.safetensors --type f32 -q
expect 0 "convert the text encoder" convert "$model/text_encoder" -o l.safetensors --type int8_convrot -q
draw 0 "generate with int8_convrot files" -p "a red fox" --diffusion-model t.safetensors --llm l.safetensors -o rotated.png
expect 0 "convert the text encoder to f32" convert l.safetensors -o words.safetensors --type f32 -q
draw 0 "generate with the f32 files" -p "a red fox" --diffusion-model numbers.safetensors --llm words.safetensors -o numbers.png
check "same image" cmp -s rotated.png numbers.png
rm -f ./*

# ---- merged LoRAs ----
sizes=heads=2,axis0=32,axis1=48,axis2=48,layers=2,refiners=1,hidden=256,text_heads=2,text_key_heads=1,text_head_dim=64,text_ff=512,text_layers=2,vocabulary=400,latent_channels=4
expect_dev 0 "write an adapter" checkpoint zimage style.safetensors --adapter kohya --rank 2 --text-encoders --dims $sizes -q
expect 0 "convert --lora" convert "$transformer" -o t.safetensors --lora style.safetensors:0.5 --lora style.safetensors
check "error message" has ../out '^  LoRAs are merged into 37 of them$'
expect 0 "convert the text encoder" convert "$model/text_encoder" -o l.safetensors --lora style.safetensors:1.5 --json
check "JSON counts merged tensors" has ../out '"merged": 14'
draw 0 "generate without the LoRA" -p "a red fox" -o plain.png
draw 0 "generate with the merged files" -p "a red fox" --diffusion-model t.safetensors --llm l.safetensors -o merged.png
check "other image" sh -c '! cmp -s plain.png merged.png'
expect 3 "--lora with a file that is no adapter" convert "$transformer" -o u.safetensors --lora t.safetensors
check "error message" has ../err 'the file is not a LoRA or other adapter'
expect 3 "--lora into a VAE" convert "$model/vae" -o u.safetensors --lora style.safetensors
expect 2 "a LoRA without --lora" convert style.safetensors -o u.safetensors
check "error message" has ../err '^sluice: .*adapter, not a model .*--lora style.safetensors'
expect 2 "output over the LoRA file" convert "$transformer" -o style.safetensors --lora style.safetensors
check "no file is left" absent u.safetensors
rm -f ./*

# ---- plan --types ----
expect 0 "plan without --types" plan -m "$model" $size --max-ram 1G --json
check "no type table" lacks ../out '"types"'
expect 0 "plan --types" plan -m "$model" $size --max-ram 1G --types
check "table header" has ../out '^--type .* while reading  *by convert$'
check "row of int8_convrot" has ../out '^int8_convrot  *[0-9.]* [KM]iB  *[0-9.]* s  *[0-9.]* s$'
check "row of q4_k" has ../out '^q4_k  *[0-9.]* [KM]iB  *[0-9.]* s  *[0-9.]* s$'
while IFS='|' read -r line pattern; do
    # shellcheck disable=SC2086
    expect 2 "plan --types $line" plan -m "$model" --types $line
    check "message has $pattern" has ../err "^sluice: .*--types.*$pattern"
done <<END
--type q8_0|--type
--plan nowhere.json|--plan
latent.safetensors|a latent
END

# ---- flags ----
expect 0 "convert --json" convert "$transformer" -o t.gguf --type q8_0 --json
tr -d ' \n' <../out >../flat
check "JSON document" has ../flat '^{"version":1,"family":"zimage","tensors":[0-9]*,"from_bytes":[0-9]*,"bytes":[0-9]*,"types":{.*}}$'
check "progress lines" has ../err '^converting [0-9]* %'
expect 0 "convert --no-progress" convert "$transformer" -o t.gguf --type q8_0 --no-progress
check "no progress" [ ! -s ../err ]
expect 0 "--rule" convert "$transformer" -o t.gguf --type q8_0 --rule 'to_q=q4_0' --rule 'to_[qk]=q5_0'
check "three types" [ "$(grep -c '^  Q[458]_0 ' ../out)" = 3 ]
expect 0 "convert --part of a pipeline folder" convert "$model" --part text_encoder -o l.gguf --type q8_0
check "writes the text encoder" has ../out '^wrote l.gguf: qwen3,'
expect 0 "convert a converted file" convert t.gguf -o again.safetensors --type bf16
expect 0 "inspect the result" inspect again.safetensors
rm -f ./*
while IFS='|' read -r code line pattern; do
    # shellcheck disable=SC2086
    expect "$code" "convert $line" convert $line
    check "message has $pattern" has ../err "^sluice: .*$pattern"
    check "no file is left" empty_folder .
done <<END
2|$transformer|--output
2|$transformer -o x.bin --type q8_0|.gguf or .safetensors
2|$transformer -o x.gguf --type q9_0|q9_0
2|$transformer -o x.gguf --type f8_e4m3|in .gguf
2|$transformer -o x.gguf --type int8_convrot|in .gguf
2|$transformer -o x.safetensors --type q4_k|in .safetensors
2|$transformer -o x.gguf --rule x|regex=type
2|$transformer -o x.gguf --rule to_k=q8_0 --rule to_w=q8_0|no tensor name matches.*to_w=q8_0
2|$transformer -o x.gguf --rule (=q8_0|--rule
2|$transformer -o x.gguf --steps 3|belongs to other commands
2|$model -o x.gguf --type q8_0|--part
2|$transformer -o x.gguf --part vae --rule|--rule
3|nowhere -o x.gguf|nowhere
3|$model/model_index.json -o x.gguf|model_index.json
6|$transformer -o no/such/x.gguf --type q8_0|no/such
END
expect 0 "convert, first time" convert "$transformer" -o t.gguf --type q8_0 -q
cp t.gguf ../before.gguf
expect 0 "convert over the older file" convert "$transformer" -o t.gguf --type q8_0 -q
check "same bytes" cmp -s t.gguf ../before.gguf
expect 2 "convert over its own input" convert t.gguf -o t.gguf --type q4_0
check "the file is unchanged" cmp -s t.gguf ../before.gguf
name="file size limit"
(
    ulimit -f 16
    exec "$sluice" convert "$transformer" -o t.gguf --type q4_0 2>../err >../out
)
code=$?
check "exit 6, not $code" [ $code = 6 ]
check "last line" last_line_rule 6
check "the older file is unchanged" cmp -s t.gguf ../before.gguf
rm -f ./*

# ---- Ctrl-C, while a sparse file of 2 GiB is converted ----
name="SIGINT"
header='{"a.weight":{"dtype":"BF16","shape":[65536,16384],"data_offsets":[0,2147483648]}}'
printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header" >../large.safetensors
truncate -s $((8 + ${#header} + 2147483648)) ../large.safetensors
"$sluice" convert ../large.safetensors -o large.gguf --type q4_k >../out 2>../err &
pid=$!
sleep 1
kill -INT $pid
wait $pid
code=$?
check "exit 130, not $code" [ $code = 130 ]
check "last line" last_line_rule 130
check "no file is left" empty_folder .
rm -rf ../large.safetensors ../before.gguf ../made

echo "$passed passed, $failed failed"
[ $failed = 0 ]
