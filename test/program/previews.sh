#!/bin/sh
# Previews as a user asks for them: files, names, what is refused; the picture is the same.
#
# usage: previews.sh SLUICE MODEL_DIR [SCRATCH_DIR]     (whose latents have colours that are known)
. "$(dirname "$0")/harness.sh"

small="-W 48 -H 32 --steps 3"
preview() { # preview CODE NAME ARGS...
    code_of=$1 name_of=$2
    shift 2
    # shellcheck disable=SC2086
    expect "$code_of" "$name_of" generate -m "$model" -p fox $small "$@"
}
picture_hash() { sed -n 's/^wrote.*sha256 \([0-9a-f]*\)).*/\1/p' ../err; }
sides() { od -An -tu1 -j16 -N8 "$1" | tr -s ' '; }

# ---- shown: the same picture, and a file ----
preview 0 "no previews" -o a.png
had=$(picture_hash)
preview 0 "in preview.png" -o a.png --preview latent
check "which is said once" [ "$(grep -c '^preview file: preview.png$' ../err)" = 1 ]
check "no word of its colours" lacks ../err 'preview colours'
check "the same picture" [ "$(picture_hash)" = "$had" ]
check "as large as the latent" [ "$(sides preview.png)" = " 0 0 0 6 0 0 0 4" ]
rm -f preview.png
preview 0 "decoded, as JPEG" -o a.png --preview vae --preview-path look.jpg
check "the same picture" [ "$(picture_hash)" = "$had" ]
check "a JPEG" has look.jpg JFIF
check "no other name" absent preview.png
rm -f look.jpg
preview 0 "by stable-diffusion.cpp's names" -o a.png --preview proj --preview-interval 2 --preview-path look.png
check "is there" [ -s look.png ]
rm -f look.png
preview 0 "behind a step that there is not" -o a.png --preview latent --preview-every 3
check "the last step has the picture" absent preview.png
preview 0 "without a picture the last step has one" --no-decode --preview vae --preview-every 3
check "as large as the picture" [ "$(sides preview.png)" = " 0 0 0 48 0 0 0 32" ]
rm -f preview.png
preview 0 "each of three" -b 3 -s 7 -o a.png --preview latent
for i in 1 2 3; do check "picture $i" [ -s "preview-$i.png" ]; done
rm -f preview-?.png a-?.png
preview 0 "each by its seed" -b 2 -s 7 -o a.png --preview latent --preview-path 'look-%s.png'
for i in 7 8; do check "seed $i" [ -s "look-$i.png" ]; done
rm -f look-?.png a-?.png
TERM=xterm-kitty preview 0 "a terminal that is none" -o a.png --preview latent
check "is shown no picture" lacks ../err 'Ga=T'
check "but has a file" [ -s preview.png ]
rm -f preview.png

expect 0 "an autoencoder of one's own" generate -m "$demo" -p fox --steps 2 -o a.png --preview latent
check "says so" has ../err "^warning: preview colours may be wrong"
rm -f preview.png

# ---- planned ----
# shellcheck disable=SC2086
expect 0 "a plan" plan -m "$model" $small --preview vae --preview-every 2
check "says it" has ../out '^previews 1, vae; each needs .* RAM during the steps$'

# ---- not shown: one warning, and the picture all the same ----
ln -s /dev/full full.png
preview 0 "a disk that is full" -o a.png --preview latent --preview-path full.png
check "the same picture" [ "$(picture_hash)" = "$had" ]
check "one warning" [ "$(grep -c 'warning: cannot write previews: .*full.png' ../err)" = 1 ]
rm -f full.png

# ---- refused: flags | what is said ----
mkdir folder.png
while IFS='|' read -r code line pattern; do
    [ -z "$line" ] && continue
    # shellcheck disable=SC2086
    preview "$code" "$line" -o a.png $line
    check "is said" has ../err "$pattern"
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

check "empty" empty_folder .
echo "$passed passed, $failed failed"
[ $failed = 0 ]
