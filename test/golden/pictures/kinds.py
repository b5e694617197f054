#!/usr/bin/env python3
"""Images written and read by Pillow: NAME.jpg or NAME.webp or NAME.png, and NAME.rgb, the rows of RGB triples of
exif_transpose and convert("RGB"); of an animation the first frame.  NAME.alpha: alpha of an image that has it.

    kinds.py

(Pillow 13.0.0.)  turned_N: EXIF orientation N.  print: CMYK, which Sluice rejects.
"""

import os

from drawn import draw
from PIL import Image, ImageOps

HERE = os.path.dirname(os.path.abspath(__file__))
WIDTH, HEIGHT = 19, 13


def save(name, made, **how):
    path = os.path.join(HERE, name)
    made.save(path, **how)
    if made.mode == "CMYK":
        return
    with open(os.path.splitext(path)[0] + ".rgb", "wb") as file:
        file.write(ImageOps.exif_transpose(Image.open(path)).convert("RGB").tobytes())
    if Image.open(path).mode == "RGBA":
        with open(os.path.splitext(path)[0] + ".alpha", "wb") as file:
            file.write(Image.open(path).getchannel("A").tobytes())


def exif(orientation):
    tags = Image.Exif()
    tags[271], tags[274] = "a camera", orientation
    return tags


def main():
    noise, other = draw(1, HEIGHT, WIDTH), draw(2, HEIGHT, WIDTH)
    smooth = noise.resize((5, 5)).resize((WIDTH, HEIGHT))
    clear = smooth.convert("RGBA")
    clear.putalpha(other.convert("L"))
    save("full.jpg", smooth, quality=90, subsampling="4:4:4", comment="a fox")
    save("halves.jpg", smooth, quality=90, subsampling="4:2:0")
    save("flat.jpg", smooth, quality=90, subsampling="4:2:2", restart_marker_blocks=1)
    save("scans.jpg", smooth, quality=75, subsampling="4:2:0", progressive=True)
    save("grey_scans.jpg", smooth.convert("L"), progressive=True)
    save("print.jpg", smooth.convert("CMYK"))
    for orientation in range(2, 9):
        save(f"turned_{orientation}.jpg", smooth, quality=75, exif=exif(orientation))
    save("exact.webp", noise, lossless=True)
    save("near.webp", smooth, quality=80)
    save("near_clear.webp", clear, quality=80, exact=True)
    save("exact_clear.webp", clear, lossless=True, exact=True)
    save("turned_webp.webp", noise, lossless=True, exif=exif(6))
    save("moving.webp", noise, lossless=True, save_all=True, append_images=[other])
    save("turned_png.png", noise, exif=exif(5))


if __name__ == "__main__":
    main()
