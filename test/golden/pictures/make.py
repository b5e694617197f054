#!/usr/bin/env python3
"""Images written and read by Pillow: NAME.png and NAME.rgb, the rows of RGB triples of convert("RGB"), and
NAME.alpha, the alpha of convert("RGBA") of an image with transparency.

    make.py

(Pillow 13.0.0, NumPy 2.4.6.)  For 16-bit files, which Pillow truncates to 8 bits, NAME.rgb has the nearest of 255 levels instead.
"""

import os

import numpy as np
from PIL import Image, PngImagePlugin

HERE = os.path.dirname(os.path.abspath(__file__))
WIDTH, HEIGHT = 19, 13


def values(seed, channels, most=255):
    return np.random.default_rng(seed).integers(0, most + 1, (HEIGHT, WIDTH, channels))


def picture(mode):
    if mode == "1":
        return Image.fromarray((values(1, 1, 1)[:, :, 0] * 255).astype(np.uint8)).convert("1")
    if mode == "P":
        made = Image.fromarray(values(2, 1, 36)[:, :, 0].astype(np.uint8), "P")
        made.putpalette(values(3, 3).reshape(-1)[: 37 * 3].astype(np.uint8).tobytes())
        return made
    channels = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}[mode]
    return Image.fromarray(values(4, channels).astype(np.uint8).squeeze(), mode)


def save(name, made, **how):
    path = os.path.join(HERE, name + ".png")
    made.save(path, **how)
    with open(os.path.join(HERE, name + ".rgb"), "wb") as file:
        file.write(Image.open(path).convert("RGB").tobytes())
    if "A" in made.mode or "transparency" in how:
        with open(os.path.join(HERE, name + ".alpha"), "wb") as file:
            file.write(Image.open(path).convert("RGBA").getchannel("A").tobytes())


def save_16(name):
    grey = values(5, 1, 65535)[:, :, 0].astype(np.uint16)
    Image.fromarray(grey).save(os.path.join(HERE, name + ".png"))
    nearest = (grey.astype(np.int64) * 255 + 32767) // 65535
    with open(os.path.join(HERE, name + ".rgb"), "wb") as file:
        file.write(np.repeat(nearest.astype(np.uint8)[:, :, None], 3, 2).tobytes())


def text():
    info = PngImagePlugin.PngInfo()
    info.add_text("parameters", "a fox\nSteps: 4")
    info.add_itxt("title", "Füchse", zip=True)
    return info


def main():
    save("bits", picture("1"))
    save("grey", picture("L"), dpi=(72, 72))
    save("grey_alpha", picture("LA"))
    save("palette", picture("P"), transparency=3)
    save("colours", picture("RGB"), pnginfo=text(), icc_profile=b"not a profile" * 20)
    save("colours_clear", picture("RGB"), transparency=(1, 2, 3))
    save("colours_alpha", picture("RGBA"), optimize=True)
    save_16("deep")


if __name__ == "__main__":
    main()
