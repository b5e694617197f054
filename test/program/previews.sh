#!/bin/sh
# --preview: files, names, errors; previews do not change the image.
#
# usage: previews.sh SLUICE MODEL_DIR [SCRATCH_DIR]     (a model with published latent-to-RGB factors)
. "$(dirname "$0")/harness.sh"

small="-W 48 -H 32 --steps 3"
preview() { # preview CODE NAME ARGS...
    code_of=$1 name_of=$2
    shift 2
    # shellcheck disable=SC2086
    expect "$code_of" "$name_of" generate -m "$model" -p fox $small "$@"
}
image_hash() { sed -n 's/^wrote.*sha256 \([0-9a-f]*\)).*/\1/p' ../err; }
sides() { od -An -tu1 -j16 -N8 "$1" | tr -s ' '; }

# ---- preview files; the image does not change ----
preview 0 "no previews" -o a.png
had=$(image_hash)
preview 0 "default preview file" -o a.png --preview latent
check "file name is printed once" [ "$(grep -c '^preview file: preview.png$' ../err)" = 1 ]
check "no warning on colours" lacks ../err 'preview colours'
check "same image" [ "$(image_hash)" = "$had" ]
check "preview has the latent's size" [ "$(sides preview.png)" = " 0 0 0 6 0 0 0 4" ]
rm -f preview.png
preview 0 "--preview vae as JPEG" -o a.png --preview vae --preview-path look.jpg
check "same image" [ "$(image_hash)" = "$had" ]
check "preview is a JPEG" has look.jpg JFIF
check "no preview.png" absent preview.png
rm -f look.jpg
preview 0 "flag names of stable-diffusion.cpp" -o a.png --preview proj --preview-interval 2 --preview-path look.png
check "preview file is written" [ -s look.png ]
rm -f look.png
preview 0 "--preview-every as large as the number of steps" -o a.png --preview latent --preview-every 3
check "no preview after the last step" absent preview.png
preview 0 "--no-decode, preview after the last step" --no-decode --preview vae --preview-every 3
check "preview has the image's size" [ "$(sides preview.png)" = " 0 0 0 48 0 0 0 32" ]
rm -f preview.png
preview 0 "batch of three" -b 3 -s 7 -o a.png --preview latent
for i in 1 2 3; do check "preview of image $i" [ -s "preview-$i.png" ]; done
rm -f preview-?.png a-?.png
preview 0 "%s in --preview-path" -b 2 -s 7 -o a.png --preview latent --preview-path 'look-%s.png'
for i in 7 8; do check "preview of seed $i" [ -s "look-$i.png" ]; done
rm -f look-?.png a-?.png
TERM=xterm-kitty preview 0 "TERM of kitty, stderr is a file" -o a.png --preview latent
check "no image on stderr" lacks ../err 'Ga=T'
check "preview file is written" [ -s preview.png ]
rm -f preview.png

expect 0 "model with its own latent space" generate -m "$demo" -p fox --steps 2 -o a.png --preview latent
check "warning on colours" has ../err "^warning: preview colours may be wrong"
rm -f preview.png

# ---- plan ----
# shellcheck disable=SC2086
expect 0 "plan with previews" plan -m "$model" $small --preview vae --preview-every 2
check "table lists previews" has ../out '^previews 1, vae; each needs .* RAM during the steps$'

# ---- failed previews: one warning, and the image is still written ----
ln -s /dev/full full.png
preview 0 "full disk" -o a.png --preview latent --preview-path full.png
check "same image" [ "$(image_hash)" = "$had" ]
check "one warning" [ "$(grep -c 'warning: cannot write previews: .*full.png' ../err)" = 1 ]
rm -f full.png

# ---- errors: exit code | flags | pattern of the error message ----
mkdir folder.png
while IFS='|' read -r code line pattern; do
    [ -z "$line" ] && continue
    # shellcheck disable=SC2086
    preview "$code" "$line" -o a.png $line
    check "error message" has ../err "$pattern"
done <<END
2|--preview sketch|expected latent.taesd.vae
2|--preview taesd|expected --taesd FILE
2|--preview-every 2|previews are off
2|--preview-path look.png|previews are off
2|--preview latent --preview-every 0|--preview-every
2|--preview latent --preview-path look.webp|a file name ending in .png, .jpg or .jpeg
2|--preview latent --preview-path look|a file name ending in .png, .jpg or .jpeg
2|--preview latent --preview-path -|a file name ending in .png, .jpg or .jpeg
2|--preview latent --preview-path a.png|name the same file
2|--preview latent --preview-path ./a.png|name the same file
2|--preview latent --preview-path $model/vae/config.json|a file name ending in
6|--preview latent --preview-path gone/look.png|gone/look.png
6|--preview latent --preview-path folder.png|folder.png
2|--preview-noisy|--preview latent
END
rm -rf folder.png a.png

check "no file is left" empty_folder .
echo "$passed passed, $failed failed"
[ $failed = 0 ]
